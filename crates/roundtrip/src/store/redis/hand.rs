//! Ticks that need nothing from the server but their commit, for a process that is alone.

use redis::{Cmd, Value};

use super::ahead::Ahead;
use super::ask::{Arguments, bytes, list, number};
use super::flight::{Certain, Heard, Known, Mode};
use super::keys::{COMMIT_KEYS, Key};
use super::link::{Commit, LinkError};
use super::put::Brought;
use super::server::{Author, new_tag};
use super::{LATE_MAX, RedisStore, Writer, Written, hints};
use crate::store::loan::{Assumed, Changes, Damaged, Sight, Ticked};
use crate::store::op::{Op, Outcome};
use crate::store::sent::Sent;

/// How many requests a commit by script may change.
const SCRIPT_ROWS_MAX: usize = 32;

/// A tick that is done with what is at hand.
struct Done<'a> {
    process: &'a str,
    epoch: u64,
    /// By which this commit is told from every other.
    tag: u64,
    /// The last commit of this process.
    sent: Certain,
    known: &'a Known,
    ticked: &'a Ticked,
    assumed: &'a Assumed,
    /// What is shown of it under keys of the user's naming.
    shown: Vec<Cmd>,
}

impl Done<'_> {
    fn author(&self) -> Author {
        Author { epoch: self.epoch, tag: self.tag }
    }
}

/// What is on its way to the server.
enum Launched<'a> {
    Script(Sent<'a, Result<Value, LinkError>>),
    /// With how many of its commands show something.
    Commit(Commit<'a>, usize),
}

/// When a commit was done, and what its commands that show said.
type Landed = (Heard, Vec<Value>);

impl Launched<'_> {
    /// When it was done, if all was as expected, and what came of showing.
    async fn land(self) -> Result<Option<Landed>, LinkError> {
        let landed = match self {
            Launched::Script(sent) => {
                sent.land().await.map(|answer| Ok(said_done(answer)?.map(|heard| (heard, vec![]))))
            }
            Launched::Commit(commit, shown) => commit.land().await.map(|mut answers| {
                let heard = Heard::from_time(answers.pop().unwrap_or(Value::Nil))?;
                // Before the time there is what was shown.
                Ok(Some((heard, answers.split_off(answers.len().saturating_sub(shown)))))
            }),
        };
        match landed {
            Ok(landed) => landed,
            Err(LinkError::Moved) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// When the server was as `commit.lua` was told, if it was.
fn said_done(answer: Value) -> Result<Option<Heard>, LinkError> {
    let mut answer = list(answer)?;
    let is_done = bytes(answer.next())? == b"done";
    let heard = Heard::now(number(answer.next())?);
    Ok(is_done.then_some(heard))
}

/// Whether none of the fields is there that were asked for.
fn is_nothing(found: &Value) -> bool {
    matches!(found, Value::Array(values) if values.iter().all(|value| *value == Value::Nil))
}

impl RedisStore {
    /// Does a batch with what is at hand, if that does and all is as it seems; nothing, if not.
    /// The next batch need not wait for the commit: it takes it that this one is written, and its
    /// own commit makes sure.
    pub(super) async fn tick_at_hand(
        &self,
        process: &str,
        epoch: u64,
        batch: &[Op],
    ) -> Result<Option<Vec<Outcome>>, LinkError> {
        let mut writer = self.writer.lock().await;
        if writer.crowded > 0 || writer.rolled_back || writer.sent.is_none() {
            return Ok(None);
        }
        let known = match self.stand(&mut writer, &mut self.server.flight(process, Mode::Look), epoch).await {
            Ok(known) => known,
            // Whoever borrows meets the same, and knows what to do.
            Err(LinkError::Moved | LinkError::RolledBack) => return Ok(None),
            Err(error) => return Err(error),
        };
        let turn = writer.turn;
        let Some((ticked, launched)) = self.try_at_hand(&mut writer, process, epoch, &known, batch).await? else {
            writer.known = Some(known).filter(|_| writer.turn == turn);
            return Ok(None);
        };
        let sent = writer.sent;
        drop(writer);
        let landed = launched.land().await;
        if let Ok(Some((heard, shown))) = landed {
            self.showing.heed(shown.into_iter());
            if let Some(sent) = sent {
                self.confirm(sent, heard);
            }
            // The batch behind this one may be sent by now: the server would wait while callers are told.
            tokio::task::yield_now().await;
            let (outcomes, news) = ticked.finish();
            self.hints.tell(news);
            return Ok(Some(outcomes));
        }
        let mut writer = self.writer.lock().await;
        if writer.turn == turn {
            writer.forget();
        }
        landed.map(|_otherwise| None)
    }

    /// Works a batch out and sends it on its way.
    async fn try_at_hand(
        &self,
        writer: &mut Writer,
        process: &str,
        epoch: u64,
        known: &Known,
        batch: &[Op],
    ) -> Result<Option<(Ticked, Launched<'_>)>, LinkError> {
        let Some(sent) = writer.sent.filter(|_| writer.shelf_version == known.version) else { return Ok(None) };
        let sight = Sight { epoch, tokens: writer.tokens, numbers: known.numbers, fixtures: &known.fixtures };
        let mut done = writer.shelf.tick(self.options, &sight, batch).await?;
        if done.is_none() {
            let mut flight = self.server.flight(process, Mode::Look);
            flight.start_from(known);
            done = match writer.shelf.restock(&mut Ahead(flight), &sight).await {
                Ok(true) => writer.shelf.tick(self.options, &sight, batch).await?,
                Ok(false) => None,
                // Somebody else wrote: whoever borrows starts from that.
                Err(LinkError::Moved) => {
                    writer.forget();
                    None
                }
                Err(error) => return Err(error),
            };
        }
        let Some((ticked, assumed)) = done else { return Ok(None) };
        // A token that was issued is never issued again, whatever becomes of the commit.
        writer.tokens = ticked.tokens();
        let changes = ticked.changes()?;
        // What is refused may be for another reason than one that was assumed; and what is left of
        // a group's items takes a script of its own.
        if changes.is_empty() && !assumed.is_empty() || !changes.gone_groups.is_empty() {
            return Ok(None);
        }
        let Some(shown) = self.showing.of_tick_at_hand(&writer.shelf, &known.fixtures, &ticked, &changes) else {
            return Ok(None);
        };
        let tag = new_tag();
        let done = Done { process, epoch, tag, sent, known, ticked: &ticked, assumed: &assumed, shown };
        let Some(launched) = self.launch(&done, &changes).await? else {
            writer.forget();
            return Ok(None);
        };
        match changes.is_empty() {
            true => writer.known = Some(known.clone()),
            false => writer.note(known.clone(), &Written { ticked: &ticked, changes: &changes, tag, alone: true }),
        }
        drop(changes);
        Ok(Some((ticked, launched)))
    }

    /// Sends a commit that does nothing unless all is as expected; nothing, if it is known not to
    /// be. A script does it at once; but it takes the server longer to read many arguments as a
    /// script's than as those of commands, so of a large commit it sees none.
    async fn launch(&self, done: &Done<'_>, changes: &Changes<'_>) -> Result<Option<Launched<'_>>, LinkError> {
        let link = &self.server.writing;
        // Where there is no connection, whoever borrows makes one.
        let Some(line) = link.line().await else { return Ok(None) };
        let is_large = changes.live.len() + changes.gone.len() > SCRIPT_ROWS_MAX;
        // What is shown is part of a transaction: a script may not be stopped half way by a key that is not the store's.
        if !is_large && done.shown.is_empty() {
            let writes = Some(changes).filter(|changes| !changes.is_empty());
            let (keys, arguments) = self.expectations(done, done.assumed, writes)?;
            return Ok(Some(Launched::Script(line.call(&keys, &self.server.commit, &arguments).await)));
        }
        let (keys, arguments) = self.expectations(done, &Assumed::default(), None)?;
        let reads = self.reads(done.assumed);
        // The server answers once it has done the commit before this one: meanwhile there is enough to do here.
        let looks = line.look(&reads, &keys, &self.server.commit, &arguments).await;
        // Whoever writes to the connection may have no other thread than this one.
        tokio::task::yield_now().await;
        let mut commands = self.server.commands(done.known, changes, &Brought::default(), done.author())?;
        commands.push(self.server.publish(done.ticked, done.epoch));
        commands.extend(done.shown.iter().cloned());
        commands.push(redis::cmd("TIME"));
        // They are at the server by the time that it has looked, so that it need not wait for more than the word.
        let prepared = line.prepare(commands).await;
        let is_expected = match looks.land().await {
            Ok((found, script)) => said_done(script)?.is_some() && found.iter().all(is_nothing),
            Err(LinkError::Moved) => return Ok(None),
            Err(_) if link.is_torn() => return Ok(None),
            Err(error) => return Err(error),
        };
        if is_expected {
            return Ok(Some(Launched::Commit(prepared.launch().await, done.shown.len())));
        }
        match prepared.discard().await {
            Ok(()) | Err(LinkError::Moved) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads that bring nothing if what was taken to be absent is.
    fn reads(&self, assumed: &Assumed) -> Vec<Cmd> {
        let ids = Arguments::of(assumed.ids.iter().map(|id| id.0));
        let occurrences = Arguments::of(assumed.occurrences.iter().map(|occurrence| occurrence.0));
        let of = |key| match key {
            Key::Id | Key::Ended => (key, &ids),
            _ => (key, &occurrences),
        };
        let live = [Key::Id, Key::Shown].into_iter().filter(|_| !assumed.has_all_live);
        let all = live.chain([Key::Ended, Key::Seen]).map(of).filter(|(_, fields)| !fields.ends.is_empty());
        all.map(|(key, fields)| self.server.writing.on("HMGET", key, fields)).collect()
    }

    /// The keys that `commit.lua` needs, what it is to make sure of, and what it then writes, if anything.
    fn expectations(
        &self,
        done: &Done<'_>,
        assumed: &Assumed,
        writes: Option<&Changes<'_>>,
    ) -> Result<(Vec<Key>, Arguments), Damaged> {
        let (mut keys, mut arguments) = (COMMIT_KEYS.to_vec(), Arguments::of([done.process]));
        arguments.push_number(done.known.version);
        arguments.push_number(done.sent.version);
        arguments.push_number(done.sent.tag);
        match self.server.clock {
            Some(_) => arguments.push(""),
            None => arguments.push_number(done.known.numbers.now.0),
        }
        arguments.push_number(LATE_MAX.as_millis());
        arguments.push(if assumed.has_all_live { "ended" } else { "all" });
        arguments.push_counted(&Arguments::of(assumed.ids.iter().map(|id| id.0)));
        arguments.push_counted(&Arguments::of(assumed.occurrences.iter().map(|occurrence| occurrence.0)));
        let Some(changes) = writes else {
            arguments.push_all(["", ""]);
            return Ok((keys, arguments));
        };
        arguments.push(&self.server.channel);
        arguments.push(hints::message(done.ticked.touched(), done.epoch));
        for command in self.server.rows(done.known, changes, &Brought::default(), done.author())? {
            let place = keys.iter().position(|key| *key == command.key).unwrap_or_else(|| {
                keys.push(command.key);
                keys.len() - 1
            });
            arguments.push(command.name);
            arguments.push_number(place + 1);
            arguments.push_counted(&command.arguments);
        }
        Ok((keys, arguments))
    }
}
