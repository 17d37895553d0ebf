//! The next of a queue and what belongs to it, for a process that is alone, by plain commands: a server takes longer to
//! hand many rows to a script, and to take them back, than to read them.
//!
//! Failure modes: nothing keeps these reads together but the commit of the tick that uses them, which fails if somebody
//! wrote meanwhile. A row that is missing means that somebody did.

use redis::Value;

use super::ask::{Arguments, bytes, list, live_row};
use super::bytes::receipt;
use super::flight::Flight;
use super::keys::Key;
use super::link::LinkError;
use crate::inbox::RouteNo;
use crate::store::disk::ColdKey;
use crate::store::loan::{Damaged, Found, Lender, LiveRow, Want};
use crate::words::Seq;

/// A flight that takes the shorter way where there is one.
pub(super) struct Ahead<'a>(pub(super) Flight<'a>);

impl Lender for Ahead<'_> {
    type Error = LinkError;

    async fn fly(&mut self, wants: &[Want]) -> Result<Vec<Found>, LinkError> {
        let mut found = Vec::with_capacity(wants.len());
        for want in wants {
            match want {
                Want::Next { route, after, requests, reached, bytes } => {
                    let mut rows = self.next(*route, *after, *requests, *bytes).await?;
                    let is_over = |when| reached.iter().any(|(first, last)| (*first..=*last).contains(&when));
                    rows.retain(|row| !row.listed.deadline.is_some_and(is_over));
                    found.push(Found::Live(rows));
                }
                Want::Ended(ids) => {
                    let of = ids.iter().map(|id| (id.0, ColdKey::Request(*id))).collect();
                    found.push(self.receipts(Key::Ended, of).await?);
                }
                Want::Seen(occurrences) => {
                    let of = occurrences.iter().map(|id| (id.0, ColdKey::Occurrence(*id))).collect();
                    found.push(self.receipts(Key::Seen, of).await?);
                }
                _ => found.extend(self.0.fly(std::slice::from_ref(want)).await?),
            }
        }
        Ok(found)
    }
}

impl Ahead<'_> {
    /// The first of a route that come after this one, by turn, until their payloads are as long as this.
    async fn next(
        &mut self,
        route: RouteNo,
        (turn, seq): (u64, Seq),
        requests: usize,
        bytes: usize,
    ) -> Result<Vec<LiveRow>, LinkError> {
        let route = route.0.to_be_bytes();
        let mut range = Arguments::of([
            [&b"("[..], &route, &turn.to_be_bytes(), &seq.0.to_be_bytes()].concat(),
            [&b"["[..], &route, &[0xff; 16]].concat(),
        ]);
        range.push_all(["LIMIT", "0"]);
        range.push_number(requests);
        let numbers = self.read("ZRANGEBYLEX", Key::Queue, &range).await?;
        let numbers = numbers.iter().filter_map(|member| member.as_ref()?.last_chunk::<8>().copied());
        let seqs: Vec<Seq> = numbers.map(|number| Seq(u64::from_be_bytes(number))).collect();
        if seqs.is_empty() {
            return Ok(Vec::new());
        }
        let fields = Arguments::of(seqs.iter().map(|seq| seq.0.to_be_bytes()));
        let rows = self.read("HMGET", Key::Live, &fields).await?;
        let row = |row: &Option<Vec<u8>>| Ok(live_row(row.as_ref().ok_or(LinkError::Moved)?)?);
        let mut rows = rows.iter().map(row).collect::<Result<Vec<_>, LinkError>>()?;
        let Some(Found::Bodies(bodies)) = self.0.fly(&[Want::BodiesOf { seqs, bytes }]).await?.pop() else {
            return Err(Damaged::new("answers", "no bodies").into());
        };
        // They come in the order in which they were asked for, as far as they do.
        rows.truncate(bodies.len());
        for (row, (seq, body)) in rows.iter_mut().zip(bodies) {
            if row.request.seq != seq {
                return Err(LinkError::Moved);
            }
            row.body = Some(body);
        }
        Ok(rows)
    }

    /// The receipts that are there of these.
    async fn receipts(&mut self, key: Key, of: Vec<([u8; 32], ColdKey)>) -> Result<Found, LinkError> {
        if of.is_empty() {
            return Ok(Found::Receipts(Vec::new()));
        }
        let values = self.read("HMGET", key, &Arguments::of(of.iter().map(|(field, _)| field))).await?;
        let there = of.iter().zip(values).filter_map(|((_, key), value)| Some((*key, value?)));
        let receipts = there.map(|(key, value)| Ok((key, receipt(&value)?)));
        Ok(Found::Receipts(receipts.collect::<Result<_, Damaged>>()?))
    }

    /// The values that one command brings.
    async fn read(&self, name: &str, key: Key, arguments: &Arguments) -> Result<Vec<Option<Vec<u8>>>, LinkError> {
        let link = self.0.link;
        let answer = link.read(link.on(name, key, arguments)).await?;
        let value = |value| match value {
            Value::Nil => Ok(None),
            other => bytes(Some(other)).map(Some),
        };
        Ok(list(answer)?.map(value).collect::<Result<_, Damaged>>()?)
    }
}
