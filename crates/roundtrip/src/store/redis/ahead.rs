//! The next of a queue and what belongs to it, for a process that is alone, by plain commands: a server takes longer to
//! hand many rows to a script, and to take them back, than to read them.
//!
//! Failure modes: nothing keeps these reads together but the commit of the tick that uses them, which fails if somebody
//! wrote meanwhile. What is missing is asked for again by a script, which says whether somebody did.

use std::collections::HashMap;

use ::bytes::Bytes;
use futures_util::{StreamExt, stream};
use redis::{Cmd, Value};

use super::ask::{Arguments, bytes, list, live_row};
use super::bytes::{as_it_came, body, receipt};
use super::flight::Flight;
use super::keys::Key;
use super::link::LinkError;
use crate::inbox::{RouteNo, When};
use crate::store::disk::ColdKey;
use crate::store::loan::{Damaged, Found, Lender, LiveRow, Reached, Want};
use crate::words::Seq;

/// Numbers at most this far apart are read together.
const GAP: u64 = 2;
/// How many requests are read together.
const TOGETHER: usize = 512;

/// A flight that takes the shorter way where there is one.
pub(super) struct Ahead<'a>(pub(super) Flight<'a>);

impl Lender for Ahead<'_> {
    type Error = LinkError;

    async fn fly(&mut self, wants: &[Want]) -> Result<Vec<Found>, LinkError> {
        let mut found = Vec::with_capacity(wants.len());
        for want in wants {
            let by_commands = match want {
                Want::Next { route, after, requests, reached, bytes } => {
                    let rows = self.next(*route, *after, *requests, *bytes).await?;
                    rows.map(|rows| Found::Live(not_over(rows, reached)))
                }
                Want::Ended(ids) => {
                    let of = ids.iter().map(|id| (id.0, ColdKey::Request(*id))).collect();
                    Some(self.receipts(Key::Ended, of).await?)
                }
                Want::Seen(occurrences) => {
                    let of = occurrences.iter().map(|id| (id.0, ColdKey::Occurrence(*id))).collect();
                    Some(self.receipts(Key::Seen, of).await?)
                }
                _ => None,
            };
            match by_commands {
                Some(by_commands) => found.push(by_commands),
                None => found.extend(self.0.fly(std::slice::from_ref(want)).await?),
            }
        }
        Ok(found)
    }
}

impl Ahead<'_> {
    /// The first of a route that come after this one, by turn, until their payloads are as long as this; nothing, if one
    /// of them is not there.
    async fn next(
        &self,
        route: RouteNo,
        (turn, seq): (u64, Seq),
        requests: usize,
        bytes: usize,
    ) -> Result<Option<Vec<LiveRow>>, LinkError> {
        let route = route.0.to_be_bytes();
        let mut range = Arguments::of([
            [&b"("[..], &route, &turn.to_be_bytes(), &seq.0.to_be_bytes()].concat(),
            [&b"["[..], &route, &[0xff; 16]].concat(),
        ]);
        range.push_all(["LIMIT", "0"]);
        range.push_number(requests);
        let numbers = values(self.read(vec![self.on("ZRANGEBYLEX", Key::Queue, &range)]).await?.pop())?;
        let numbers = numbers.iter().filter_map(|member| member.as_ref()?.last_chunk::<8>().copied());
        let seqs: Vec<Seq> = numbers.map(|number| Seq(u64::from_be_bytes(number))).collect();
        // While one part is taken in here, the server reads the next.
        let reads: Vec<_> = seqs.chunks(TOGETHER).map(|part| self.part(part)).collect();
        let mut reads = std::pin::pin!(stream::iter(reads).buffered(2).zip(stream::iter(seqs.chunks(TOGETHER))));
        let (mut rows, mut weight) = (Vec::with_capacity(seqs.len()), 0);
        while let Some((answers, part)) = reads.next().await {
            for row in self.rows(part, answers?).await? {
                if weight > bytes {
                    return Ok(Some(rows));
                }
                let Some(row) = row else { return Ok(None) };
                weight += row.body.as_ref().map_or(0, |body| body.payload.bytes.len());
                rows.push(row);
            }
        }
        Ok(Some(rows))
    }

    /// What changed of these since they came, and then what is as it came of each run of them.
    async fn part(&self, seqs: &[Seq]) -> Result<Vec<Value>, LinkError> {
        let mut reads = vec![self.on("HMGET", Key::Live, &Arguments::of(seqs.iter().map(|seq| seq.0.to_be_bytes())))];
        reads.extend(runs(seqs).map(|run| {
            let mut range = Arguments::default();
            run.first().into_iter().chain(run.last()).for_each(|seq| range.push_number(seq.0));
            self.on("XRANGE", Key::Fresh, &range)
        }));
        self.read(reads).await
    }

    /// The rows of a part, as far as they are there.
    async fn rows(&self, seqs: &[Seq], answers: Vec<Value>) -> Result<Vec<Option<LiveRow>>, LinkError> {
        let mut answers = answers.into_iter();
        let changed = values(answers.next())?;
        let mut fresh = HashMap::with_capacity(seqs.len());
        for entries in answers {
            for entry in list(entries)? {
                let (seq, value) = numbered(entry)?;
                fresh.insert(seq, as_it_came(value)?);
            }
        }
        let mut bodies = self.bodies(seqs.iter().filter(|seq| !fresh.contains_key(seq))).await?;
        let row = |(seq, changed): (&Seq, Option<Vec<u8>>)| {
            let (row, asked) = match fresh.remove(seq) {
                Some((row, asked)) => (Some(row), Some(asked)),
                None => (None, bodies.remove(seq)),
            };
            let is_news = changed.is_none();
            let Some((row, asked)) = changed.map(Bytes::from).or(row).zip(asked) else { return Ok(None) };
            Ok(Some(LiveRow { body: Some(body(asked)?), is_news, ..live_row(&row)? }))
        };
        seqs.iter().zip(changed).map(row).collect()
    }

    /// The bodies that are there of what is not as it came.
    async fn bodies(&self, of: impl Iterator<Item = &Seq>) -> Result<HashMap<Seq, Bytes>, LinkError> {
        let seqs: Vec<Seq> = of.copied().collect();
        if seqs.is_empty() {
            return Ok(HashMap::new());
        }
        let fields = Arguments::of(seqs.iter().map(|seq| seq.0.to_be_bytes()));
        let found = values(self.read(vec![self.on("HMGET", Key::Body, &fields)]).await?.pop())?;
        Ok(seqs.into_iter().zip(found).filter_map(|(seq, body)| Some((seq, body?.into()))).collect())
    }

    /// The receipts that are there of these.
    async fn receipts(&mut self, key: Key, of: Vec<([u8; 32], ColdKey)>) -> Result<Found, LinkError> {
        if of.is_empty() {
            return Ok(Found::Receipts(Vec::new()));
        }
        let fields = Arguments::of(of.iter().map(|(field, _)| field));
        let values = values(self.read(vec![self.on("HMGET", key, &fields)]).await?.pop())?;
        let there = of.iter().zip(values).filter_map(|((_, key), value)| Some((*key, value?)));
        let receipts = there.map(|(key, value)| Ok((key, receipt(&value)?)));
        Ok(Found::Receipts(receipts.collect::<Result<_, Damaged>>()?))
    }

    fn on(&self, name: &'static str, key: Key, arguments: &Arguments) -> Cmd {
        self.0.link.on(name, key, arguments)
    }

    async fn read(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, LinkError> {
        self.0.link.read(commands).await
    }
}

/// Numbers that grow, as far as they are near each other.
fn runs(seqs: &[Seq]) -> impl Iterator<Item = &[Seq]> {
    seqs.chunk_by(|one, next| one < next && next.0 - one.0 <= GAP)
}

/// Those whose deadlines are not reached.
fn not_over(mut rows: Vec<LiveRow>, reached: &Reached) -> Vec<LiveRow> {
    let is_over = |when: When| reached.iter().any(|(first, last)| (*first..=*last).contains(&when));
    rows.retain(|row| !row.loaded.listed.deadline.is_some_and(is_over));
    rows
}

/// The values that one command brought.
fn values(answer: Option<Value>) -> Result<Vec<Option<Vec<u8>>>, Damaged> {
    let value = |value| match value {
        Value::Nil => Ok(None),
        other => bytes(Some(other)).map(Some),
    };
    list(answer.unwrap_or(Value::Nil))?.map(value).collect()
}

/// Number and value of an entry of the stream.
fn numbered(entry: Value) -> Result<(Seq, Vec<u8>), Damaged> {
    let mut entry = list(entry)?;
    let id = bytes(entry.next())?;
    let number = std::str::from_utf8(&id).ok().and_then(|id| id.split_once('-')?.0.parse().ok());
    let number = number.ok_or_else(|| Damaged::new("fresh", "its id is no number"))?;
    let fields = list(entry.next().unwrap_or(Value::Nil))?;
    Ok((Seq(number), bytes(fields.last())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_near_each_other_are_read_together() {
        let check = |numbers: &[u64], expected: &[usize]| {
            let seqs: Vec<Seq> = numbers.iter().copied().map(Seq).collect();
            assert_eq!(runs(&seqs).map(<[Seq]>::len).collect::<Vec<_>>(), expected, "{numbers:?}");
        };
        check(&[], &[]);
        check(&[1, 2, 3], &[3]);
        check(&[1, 3, 6, 7], &[2, 2]);
        check(&[7, 3, 4], &[1, 2]);
    }
}
