//! Ticks that need nothing from the server but their commit, for a process that is alone.

use redis::Value;

use super::ask::{Arguments, bytes, list, number};
use super::flight::{Certain, Flight, Heard, Known, Mode};
use super::link::LinkError;
use super::put::Brought;
use super::{LATE_MAX, RedisStore, Writer, Written, hints};
use crate::store::loan::{Assumed, Changes, Damaged, Sight, Ticked};
use crate::store::op::{Op, Outcome};

/// How many requests a commit by script may change.
const SCRIPT_ROWS_MAX: usize = 32;

/// A tick that is done with what is at hand.
struct Done<'a> {
    process: &'a str,
    epoch: u64,
    certain: Certain,
    known: &'a Known,
    ticked: &'a Ticked,
    assumed: &'a Assumed,
}

impl RedisStore {
    /// Does a batch with what is at hand, if that does and all is as it seems; nothing, if not.
    pub(super) async fn tick_at_hand(
        &self,
        writer: &mut Writer,
        process: &str,
        epoch: u64,
        known: &Known,
        batch: &[Op],
    ) -> Result<Option<Vec<Outcome>>, LinkError> {
        let Some(certain) = writer.certain.filter(|_| writer.shelf_version == known.version) else { return Ok(None) };
        let sight = Sight { epoch, tokens: writer.tokens, numbers: known.numbers, fixtures: &known.fixtures };
        let Some((ticked, assumed)) = writer.shelf.tick(self.options, &sight, batch).await? else { return Ok(None) };
        // A token that was issued is never issued again, whatever becomes of the commit.
        writer.tokens = ticked.tokens();
        let changes = ticked.changes()?;
        if changes.is_empty() {
            // What is refused may be for another reason than one that was assumed.
            if !assumed.is_empty() || !self.is_still(process, known, certain).await? {
                return Ok(None);
            }
            writer.known = Some(known.clone());
        } else {
            let done = Done { process, epoch, certain, known, ticked: &ticked, assumed: &assumed };
            let Some(heard) = self.commit_if(&done, &changes).await? else { return Ok(None) };
            let written = Written { ticked: &ticked, changes: &changes, epoch, alone: true };
            self.note(writer, known.clone(), heard, &written);
        }
        drop(changes);
        let (outcomes, touched) = ticked.finish();
        self.hints.give(touched);
        Ok(Some(outcomes))
    }

    /// Whether the store stands where it is known to.
    async fn is_still(&self, process: &str, known: &Known, certain: Certain) -> Result<bool, LinkError> {
        let mut flight = Flight { certain: Some(certain), ..self.server.flight(process, Mode::Look) };
        Ok(flight.look(Some(known.clone())).await?.version == known.version)
    }

    /// Commits if all is as expected, and answers when that was. A script does it at once; but it
    /// takes the server longer to read many arguments as a script's than as those of commands.
    async fn commit_if(&self, done: &Done<'_>, changes: &Changes<'_>) -> Result<Option<Heard>, LinkError> {
        // What is left of a group's items takes a script of its own.
        if !changes.gone_groups.is_empty() {
            return Ok(None);
        }
        let link = &self.server.writing;
        let is_large = changes.live.len() + changes.gone.len() > SCRIPT_ROWS_MAX;
        let arguments = self.expectations(done, if is_large { None } else { Some(changes) })?;
        let answer = match is_large {
            true => link.watch(&self.server.commit, &arguments).await?,
            false => link.call(&self.server.commit, &arguments).await?,
        };
        let mut answer = list(answer)?;
        if bytes(answer.next())? != b"done" {
            return Ok(None);
        }
        if !is_large {
            return Ok(Some(Heard::now(number(answer.next())?)));
        }
        let mut commands = self.server.commands(done.known, changes, &Brought::default(), done.epoch)?;
        commands.extend([self.server.publish(done.ticked, done.epoch), redis::cmd("TIME")]);
        match link.commit(&commands).await {
            Ok(mut answers) => Ok(Some(Heard::from_time(answers.pop().unwrap_or(Value::Nil))?)),
            Err(LinkError::Moved) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What `commit.lua` is to make sure of, and what it then writes, if anything.
    fn expectations(&self, done: &Done<'_>, writes: Option<&Changes<'_>>) -> Result<Arguments, Damaged> {
        let mut arguments = Arguments::of([done.process]);
        arguments.push_number(done.known.version);
        arguments.push_number(done.certain.version);
        arguments.push_number(done.certain.tag);
        match self.server.clock {
            Some(_) => arguments.push(""),
            None => arguments.push_number(done.known.numbers.now.0),
        }
        arguments.push_number(LATE_MAX.as_millis());
        arguments.push_counted(&Arguments::of(done.assumed.ids.iter().map(|id| id.0)));
        arguments.push_counted(&Arguments::of(done.assumed.occurrences.iter().map(|occurrence| occurrence.0)));
        let Some(changes) = writes else {
            arguments.push_all(["", ""]);
            return Ok(arguments);
        };
        arguments.push(&self.server.channel);
        arguments.push(hints::message(done.ticked.touched(), done.epoch));
        for command in self.server.rows(done.known, changes, &Brought::default(), done.epoch)? {
            arguments.push(command.name);
            arguments.push_number(command.key as usize);
            arguments.push_counted(&command.arguments);
        }
        Ok(arguments)
    }
}
