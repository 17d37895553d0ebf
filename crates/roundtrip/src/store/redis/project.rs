//! Projections on a Redis server: what a commit shows under keys of the user's naming, as
//! commands of that commit.
//!
//! ```text
//!   a tick's steps ──▶ what they need that is not at hand: one more fetch, at the same version
//!                  ──▶ writes ──▶ show.lua, some at a time, within MULTI and EXEC
//! ```
//!
//! Failure modes: EXEC undoes nothing, so a write that fails must not be taken for a commit
//! that did. The script makes sure of that: it looks what a key is before it writes, leaves out
//! what does not work, and says so; here it is counted and logged. Whatever was left out is
//! written by [`RedisStore::project_again`] once its cause is gone.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use redis::{Cmd, Value};

use super::ask::{bytes, list, number};
use super::flight::{Flight, Mode};
use super::keys::SHOW;
use super::link::LinkError;
use super::put::Brought;
use super::{Done, RedisStore, Rows, Shelf, Sight, TRIES_MAX, Ticked, Writer};
use crate::inbox::StateKind;
use crate::store::StoreError;
use crate::store::loan::{self, Damaged, FixtureRows, Found, Lender, LiveRow, Texts, Want, routes};
use crate::store::projection::{Form, Lacking, Projection, Shower, Step, Write};
use crate::words::{REPLY_BYTES_MAX, RouteName, Seq};

/// How many arguments one call of the script has, beyond which the next write is another call's.
const ARGUMENTS_MAX: usize = 20_000;
/// How many requests are shown again in one commit.
const PAGE: usize = 256;

/// How projections fare in one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectionHealth {
    /// How many writes were left out since the start: their key was something else or none, or the
    /// server did not let the store write it.
    pub left_out: u64,
    /// The last key, and why.
    pub last: Option<(String, String)>,
}

/// What is shown, and how that fares.
#[derive(Default)]
pub(super) struct Showing {
    projections: Vec<Projection>,
    health: Mutex<ProjectionHealth>,
}

/// What one page of showing again came to.
pub(super) struct Page {
    pub(super) requests: u64,
    /// The last request, if there may be more after it.
    pub(super) last: Option<Seq>,
}

impl Showing {
    pub(super) fn new(projections: Vec<Projection>) -> Showing {
        Showing { projections, health: Mutex::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.projections.is_empty()
    }

    pub(super) fn health(&self) -> ProjectionHealth {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What a tick shows.
    pub(super) async fn of_tick<'a>(
        &self,
        flight: &mut Flight<'_>,
        fixtures: &'a FixtureRows,
        ticked: &'a Ticked,
        changes: &Rows<'a>,
    ) -> Result<Vec<Cmd>, LinkError> {
        if self.is_empty() || (changes.live.is_empty() && changes.gone.is_empty()) {
            return Ok(Vec::new());
        }
        let shower = Shower::new(&self.projections, routes(fixtures, Some(changes)));
        let lacking = shower.lacking(&ticked.steps(changes, &Texts::default()));
        let texts = fetch(flight, lacking).await?;
        Ok(self.commands(&shower, &ticked.steps(changes, &texts)))
    }

    /// The same, for a tick that needs nothing from the server; nothing, if more is shown of it than is at hand.
    pub(super) fn of_tick_at_hand<'a>(
        &self,
        shelf: &Shelf,
        fixtures: &'a FixtureRows,
        ticked: &'a Ticked,
        changes: &Rows<'a>,
    ) -> Option<Vec<Cmd>> {
        if self.is_empty() {
            return Some(Vec::new());
        }
        let (mut texts, shower) = (Texts::default(), Shower::new(&self.projections, routes(fixtures, Some(changes))));
        let Lacking { bodies, responses } = shower.lacking(&ticked.steps(changes, &texts));
        if !responses.is_empty() {
            return None;
        }
        texts.take(vec![shelf.bodies(bodies)?]);
        Some(self.commands(&shower, &ticked.steps(changes, &texts)))
    }

    fn commands(&self, shower: &Shower<'_>, steps: &[Step<'_>]) -> Vec<Cmd> {
        let (writes, refused) = shower.writes(steps);
        if refused > 0 {
            self.note(refused, "".to_owned(), "it would be the store's own, empty or too long".to_owned());
        }
        calls(&writes)
    }

    /// Looks at what came of showing.
    pub(super) fn heed(&self, answers: impl Iterator<Item = Value>) {
        for answer in answers {
            match left_out(answer) {
                Ok((0, ..)) => {}
                Ok((count, key, why)) => self.note(count, key, why),
                Err(error) => tracing::warn!(%error, "whether a projection was written is not known"),
            }
        }
    }

    fn note(&self, count: u64, key: String, why: String) {
        tracing::warn!(count, %key, %why, "a projection was left out; the commit is complete without it");
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        health.left_out = health.left_out.saturating_add(count);
        health.last = Some((key, why));
    }
}

/// What is lacking, at the version of the flight.
async fn fetch(flight: &mut Flight<'_>, lacking: Lacking) -> Result<Texts, LinkError> {
    let (mut texts, Lacking { mut bodies, responses }) = (Texts::default(), lacking);
    if !responses.is_empty() {
        texts.take(flight.fly(&[Want::Responses(responses)]).await?);
    }
    while !bodies.is_empty() {
        let want = Want::BodiesOf { seqs: bodies.iter().copied().collect(), bytes: REPLY_BYTES_MAX };
        let found = flight.fly(&[want]).await?;
        let brought: BTreeSet<Seq> = seqs_of(&found);
        // What is not there is not going to be.
        if brought.is_empty() {
            break;
        }
        bodies.retain(|seq| !brought.contains(seq));
        texts.take(found);
    }
    Ok(texts)
}

fn seqs_of(found: &[Found]) -> BTreeSet<Seq> {
    let bodies = found.iter().filter_map(|found| match found {
        Found::Bodies(rows) => Some(rows.iter().map(|(seq, _)| *seq)),
        _ => None,
    });
    bodies.flatten().collect()
}

/// Calls of the script, as few as its bound allows.
fn calls(writes: &[Write]) -> Vec<Cmd> {
    let (mut calls, mut length): (Vec<Cmd>, usize) = (Vec::new(), ARGUMENTS_MAX);
    for Write { kind, key, command, arguments, .. } in writes {
        if length >= ARGUMENTS_MAX {
            let mut show = redis::cmd("EVAL");
            show.arg(SHOW).arg(0);
            calls.push(show);
            length = 0;
        }
        let Some(show) = calls.last_mut() else { break };
        show.arg(kind.word()).arg(&key[..]).arg(*command).arg(arguments.len());
        arguments.iter().for_each(|argument| {
            show.arg(&argument[..]);
        });
        length += 4 + arguments.len();
    }
    calls
}

/// How many writes were left out, and of the first its key and why.
fn left_out(answer: Value) -> Result<(u64, String, String), Damaged> {
    let mut answer = list(answer)?;
    let count = number(answer.next())?;
    let mut text = || bytes(answer.next()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok((count, text()?, text()?))
}

impl RedisStore {
    /// Shows a page of live requests again, in one commit.
    pub(super) async fn project_page(&self, epoch: u64, after: Option<Seq>) -> Result<Page, StoreError> {
        let mut writer = self.writer.lock().await;
        for _ in 0..TRIES_MAX {
            match self.try_project(&mut writer, epoch, after).await {
                Ok(page) => return Ok(page),
                Err(LinkError::Moved) => writer.known = None,
                Err(error) => {
                    writer.known = None;
                    return Err(error.at(&self.server.name));
                }
            }
        }
        Err(StoreError::Unknown)
    }

    async fn try_project(&self, writer: &mut Writer, epoch: u64, after: Option<Seq>) -> Result<Page, LinkError> {
        let process = format!("{epoch}0");
        let mut flight = self.server.flight(&process, Mode::Turn);
        writer.known = None;
        let known = self.stand(writer, &mut flight, epoch).await?;
        let numbers = known.numbers;
        let rows = self.page(&mut flight, &known.fixtures, after).await?;
        let shows: Vec<Projection> = self.showing.projections.iter().filter(|by| is_a_state(by)).cloned().collect();
        let shower = Shower::new(&shows, routes(&known.fixtures, None));
        let lacking = shower.lacking(&Texts::default().steps_of(&rows));
        let texts = fetch(&mut flight, lacking).await?;
        let shown = self.showing.commands(&shower, &texts.steps_of(&rows));
        let sight = Sight { epoch, tokens: writer.tokens, numbers, fixtures: &known.fixtures };
        let ticked = loan::nothing(self.options, &sight);
        let (changes, brought) = (ticked.changes()?, Brought::default());
        let page = Page {
            requests: rows.len() as u64,
            last: rows.last().filter(|_| rows.len() == PAGE).map(|row| row.loaded.request.seq),
        };
        let (process, has_turn) = (&*process, true);
        let (must, begin) = (!shown.is_empty(), Vec::new());
        let done = Done { process, epoch, ticked: &ticked, changes, brought, must, begin, shown, has_turn };
        self.write(writer, known.clone(), done).await?;
        Ok(page)
    }

    async fn page(
        &self,
        flight: &mut Flight<'_>,
        fixtures: &FixtureRows,
        after: Option<Seq>,
    ) -> Result<Vec<LiveRow>, LinkError> {
        let shown = |name: &RouteName| self.showing.projections.iter().any(|by| by.route == *name);
        let routes = routes(fixtures, None).filter(|(_, name)| shown(name));
        let of: Vec<_> = routes.flat_map(|(no, _)| StateKind::LIVE.map(|state| (no, state))).collect();
        if of.is_empty() {
            return Ok(Vec::new());
        }
        let mut rows = match flight.fly(&[Want::Page { of, after, limit: PAGE }]).await?.pop() {
            Some(Found::Live(rows)) => rows,
            _ => Vec::new(),
        };
        rows.sort_by_key(|row| row.loaded.request.seq);
        rows.truncate(PAGE);
        Ok(rows)
    }
}

/// Whether a projection shows what is, and not what happens.
fn is_a_state(projection: &Projection) -> bool {
    !matches!(projection.form, Form::List(_) | Form::Count(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::projection::Kind;

    #[test]
    fn calls_are_as_few_as_their_bound_allows() {
        let write = |arguments: usize| Write {
            kind: Kind::Set,
            key: b"key".to_vec(),
            command: "SADD",
            arguments: vec![b"member".to_vec(); arguments],
            joins: true,
        };
        assert_eq!(calls(&[]).len(), 0);
        assert_eq!(calls(&[write(1), write(1000)]).len(), 1);
        let many: Vec<Write> = (0..30).map(|_| write(1000)).collect();
        assert_eq!(calls(&many).len(), 2);
        let arguments: usize = calls(&many).iter().map(|call| call.args_iter().count() - 3).sum();
        assert_eq!(arguments, 30 * 1004, "each write once");
    }
}
