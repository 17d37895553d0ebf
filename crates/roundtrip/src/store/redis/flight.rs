//! What is asked of the server for one tick or one read, all of it at one version.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::ask::{Arguments, bytes, found, list, number};
use super::keys::Script;
use super::link::{Link, LinkError};
use super::put::Brought;
use super::{FORMAT, NEEDS, OLDEST};
use crate::store::disk::{Fixture, HighWater};
use crate::store::loan::{Changes, Damaged, FixtureRows, Found, Lender, Numbers, Want, decode};

/// How long a process waits for its turn before it tells its caller to try again.
const TURN_MAX: Duration = Duration::from_secs(10);
/// How long each of those before it is given. A turn is asked for again at most this much
/// times [`PLACES_MAX`] later, which must be sooner than the server forgets who waits.
const PLACE: Duration = Duration::from_millis(1);
const PLACES_MAX: u32 = 8;

/// Whoever asks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    /// A tick, or a read that must not be disturbed: only one at a time.
    Turn,
    /// A tick of a process that seems to be alone: it takes a turn only if others do.
    Alone,
    /// A read.
    Look,
}

/// What a process knows to be written, and by which tag it would know it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Certain {
    pub(super) version: u64,
    pub(super) tag: u64,
}

/// Where the store stood when it was last heard of.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) version: u64,
    /// Which store it is, whatever its name; empty before its first commit.
    pub(super) run: String,
    pub(super) format: u64,
    /// The oldest format whose programs may work on it.
    pub(super) needs: u64,
    /// All but the time.
    pub(super) numbers: Numbers,
    pub(super) fixtures: FixtureRows,
    pub(super) heard: Heard,
}

impl Known {
    /// Goes on to where the store stands after these changes.
    pub(super) fn step(&mut self, changes: &Changes<'_>) {
        self.version += 1;
        self.format = self.format.max(u64::from(FORMAT));
        self.needs = self.needs.max(u64::from(NEEDS));
        if let Some(numbers) = &changes.numbers {
            self.numbers = numbers.after(self.numbers);
        }
    }
}

/// The server's time at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    ms: u64,
    at: Instant,
}

impl Heard {
    pub(super) fn now(ms: u64) -> Heard {
        Heard { ms, at: Instant::now() }
    }

    /// The server's time now.
    pub(super) fn ms(&self) -> u64 {
        self.ms.saturating_add(u64::try_from(self.at.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// The server's time, from what `TIME` brings.
    pub(super) fn from_time(time: Value) -> Result<Heard, Damaged> {
        let mut parts = list(time)?;
        let (seconds, micros) = (number(parts.next())?, number(parts.next())?);
        Ok(Heard::now(seconds.saturating_mul(1000).saturating_add(micros / 1000)))
    }

    /// Whichever is newer.
    pub(super) fn max(self, other: Heard) -> Heard {
        if self.at < other.at { other } else { self }
    }

    pub(super) fn is_older_than(&self, age: Duration) -> bool {
        self.at.elapsed() > age
    }
}

/// Calls of `fetch.lua` that belong together.
pub(super) struct Flight<'a> {
    pub(super) link: &'a Link,
    pub(super) script: &'a Script,
    /// By which the server knows who waits and whose turn it is.
    pub(super) process: &'a str,
    pub(super) mode: Mode,
    pub(super) certain: Option<Certain>,
    /// The version that all of it is to be of.
    pub(super) version: u64,
    /// The version of the fixtures that are known.
    pub(super) fixtures: Option<u64>,
    pub(super) brought: Brought,
    pub(super) heard: Option<Heard>,
    /// Where the store stands, if it is not where it was thought to.
    pub(super) moved: Option<Vec<Value>>,
    /// What came with the call that told where the store stands.
    pub(super) ahead: Option<(Vec<Want>, Vec<Found>)>,
}

/// The version that a call expects.
#[derive(Clone, Copy)]
enum Expected {
    /// None: only where the store stands is asked for.
    Unknown,
    /// Whichever it is: all that is asked for comes by this call.
    Any,
    This(u64),
}

/// What a read asks for first, by what is known before any call.
#[derive(Default)]
pub(super) struct FirstWants(pub(super) Vec<Want>);

/// It has asked, and that is all.
pub(super) struct HasAsked;

impl From<Damaged> for HasAsked {
    fn from(_: Damaged) -> HasAsked {
        HasAsked
    }
}

impl Lender for FirstWants {
    type Error = HasAsked;

    async fn fly(&mut self, wants: &[Want]) -> Result<Vec<Found>, HasAsked> {
        self.0 = wants.to_vec();
        Err(HasAsked)
    }
}

/// What a call brought.
enum Answer {
    Wait(u32),
    /// Where the store stands.
    Moved(Vec<Value>),
    /// What each want brings, and, if it was not known, where the store stands.
    Here(Vec<Value>, std::vec::IntoIter<Value>),
}

impl Flight<'_> {
    /// Where the store stands now, given where it stood.
    pub(super) async fn look(&mut self, before: Option<Known>) -> Result<Known, LinkError> {
        self.fixtures = before.as_ref().map(|known| known.numbers.fixtures);
        let answer = match self.moved.take() {
            Some(answer) => answer,
            None => match self.ask(Expected::Unknown, &[]).await? {
                Answer::Moved(answer) => answer,
                _ => return Err(Damaged::new("answers", "wants that nobody had").into()),
            },
        };
        self.ahead = None;
        self.stand(before, answer)
    }

    /// The same, with what is likely to be wanted then. No commit can come between the two, so that what
    /// takes no other call is never asked for twice.
    pub(super) async fn look_for(&mut self, before: Known, wants: Vec<Want>) -> Result<Known, LinkError> {
        if wants.is_empty() {
            return self.look(Some(before)).await;
        }
        self.fixtures = Some(before.numbers.fixtures);
        let Answer::Here(answer, rows) = self.ask(Expected::Any, &wants).await? else {
            return Err(Damaged::new("answers", "where any version would do").into());
        };
        let found = self.found_all(&wants, rows)?;
        self.ahead = Some((wants, found));
        self.stand(Some(before), answer)
    }

    /// Where the store stands, by what was known and what a call told.
    fn stand(&mut self, before: Option<Known>, answer: Vec<Value>) -> Result<Known, LinkError> {
        let mut known = self.known(answer)?;
        if let Some(before) = before {
            let mut fixtures = before.fixtures;
            fixtures.append(&mut known.fixtures);
            known.fixtures = fixtures;
        }
        self.start_from(&known);
        Ok(known)
    }

    /// All that is asked for is to be of where the store stood then.
    pub(super) fn start_from(&mut self, known: &Known) {
        self.version = known.version;
        self.fixtures = Some(known.numbers.fixtures);
    }

    async fn ask(&mut self, expected: Expected, wants: &[Want]) -> Result<Answer, LinkError> {
        let mut arguments = Arguments::default();
        arguments.push(self.process);
        arguments.push(match self.mode {
            Mode::Turn => "tick",
            Mode::Alone => "alone",
            Mode::Look => "read",
        });
        match expected {
            Expected::Unknown => arguments.push(""),
            Expected::Any => arguments.push("*"),
            Expected::This(version) => arguments.push_number(version),
        }
        push_or_none(&mut arguments, self.certain.map(|certain| certain.version));
        push_or_none(&mut arguments, self.certain.map(|certain| certain.tag));
        match self.fixtures {
            Some(version) => arguments.push_number(version),
            None => arguments.push("-1"),
        }
        arguments.push_wants(wants);
        let until = Instant::now() + TURN_MAX;
        loop {
            let answer = match self.mode {
                Mode::Turn | Mode::Alone => self.link.watch(self.script, &arguments).await?,
                Mode::Look => self.link.call(self.script, &arguments).await?,
            };
            match self.answer(answer)? {
                Answer::Wait(_) if Instant::now() > until => return Err(LinkError::Crowded),
                Answer::Wait(before) => {
                    // Whoever has waited has the turn in the end.
                    self.mode = Mode::Turn;
                    tokio::time::sleep(PLACE * before.clamp(1, PLACES_MAX)).await;
                }
                other => return Ok(other),
            }
        }
    }

    fn answer(&mut self, answer: Value) -> Result<Answer, LinkError> {
        let mut answer = list(answer)?;
        let what = bytes(answer.next())?;
        self.heard = Some(Heard::now(number(answer.next())?));
        if what == b"wait" {
            let before = number(answer.next())?;
            return Ok(Answer::Wait(u32::try_from(before).unwrap_or(PLACES_MAX)));
        }
        if bytes(answer.next())? == b"lost" {
            return Err(LinkError::RolledBack);
        }
        match &what[..] {
            b"moved" => Ok(Answer::Moved(answer.collect())),
            b"here" => {
                let stands = answer.by_ref().take(2).collect();
                Ok(Answer::Here(stands, answer))
            }
            _ => Err(Damaged::new("answers", "an unknown one").into()),
        }
    }

    fn known(&self, answer: Vec<Value>) -> Result<Known, LinkError> {
        let mut answer = answer.into_iter();
        let none = || Damaged::new("answers", "too short");
        let mut numbers = list(answer.next().ok_or_else(none)?)?;
        let mut fixtures = list(answer.next().ok_or_else(none)?)?;
        let heard = self.heard.ok_or_else(none)?;
        let version = number_or(numbers.next(), 0)?;
        let run = String::from_utf8(bytes(numbers.next())?).map_err(|error| Damaged::new("numbers", error))?;
        let newest_epoch = number_or(numbers.next(), 0)?;
        let mut first = || number_or(numbers.next(), 1);
        let high = HighWater { seq: first()?, entry: first()?, receipt: first()?, item: first()?, group: first()? };
        let journal_floor = first()?;
        let fixtures_version = number_or(numbers.next(), 0)?;
        let (format, needs) = (number_or(numbers.next(), 0)?, number_or(numbers.next(), 0)?);
        if needs > u64::from(FORMAT) {
            return Err(LinkError::Newer(u32::try_from(needs).unwrap_or(u32::MAX)));
        }
        if version > 0 && format < u64::from(OLDEST) {
            return Err(LinkError::Older(u32::try_from(format).unwrap_or(u32::MAX)));
        }
        let mut rows = BTreeMap::new();
        while let (Some(_name), record) = (fixtures.next(), fixtures.next()) {
            let fixture: Fixture = decode("fixture", &bytes(record)?)?;
            rows.insert(fixture.key(), fixture);
        }
        let numbers = Numbers { newest_epoch, high, journal_floor, fixtures: fixtures_version, ..Numbers::default() };
        Ok(Known { version, run, format, needs, numbers, fixtures: rows, heard })
    }
}

fn push_or_none(arguments: &mut Arguments, number: Option<u64>) {
    match number {
        Some(number) => arguments.push_number(number),
        None => arguments.push(""),
    }
}

/// A number that is not there before the first commit.
fn number_or(value: Option<Value>, first: u64) -> Result<u64, Damaged> {
    match value {
        Some(Value::BulkString(text)) if text.is_empty() => Ok(first),
        other => number(other),
    }
}

impl Lender for Flight<'_> {
    type Error = LinkError;

    async fn fly(&mut self, wants: &[Want]) -> Result<Vec<Found>, LinkError> {
        if let Some((ahead, found)) = self.ahead.take()
            && ahead == wants
        {
            return Ok(found);
        }
        match self.ask(Expected::This(self.version), wants).await? {
            Answer::Here(_, answers) => Ok(self.found_all(wants, answers)?),
            Answer::Moved(answer) => {
                self.moved = Some(answer);
                Err(LinkError::Moved)
            }
            Answer::Wait(_) => Err(LinkError::Crowded),
        }
    }
}

impl Flight<'_> {
    /// The rows that each of these wants brought.
    fn found_all(&mut self, wants: &[Want], mut answers: std::vec::IntoIter<Value>) -> Result<Vec<Found>, Damaged> {
        let mut brought = Vec::with_capacity(wants.len());
        for want in wants {
            let answer = answers.next().ok_or_else(|| Damaged::new("answers", "one is missing"))?;
            let found = found(want, answer, &mut self.brought.notes)?;
            match &found {
                Found::Groups(rows) => {
                    let rows = rows.iter().map(|(no, row, timer)| (*no, (row.clone(), *timer)));
                    self.brought.groups.extend(rows);
                }
                Found::Items(rows) => self.brought.items.extend(rows.iter().map(|(no, row)| (*no, row.group))),
                _ => {}
            }
            brought.push(found);
        }
        Ok(brought)
    }
}
