//! Where the data is: what is asked of the server beside the ticks, and what a commit says to it.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::ask::{Arguments, bytes, list};
use super::check::{self, Finding};
use super::flight::{Flight, Known, Mode};
use super::keys::{ANCHOR, ANCHORED, CLEAR, Key, Script, keys_of};
use super::link::{Link, LinkError};
use super::place::Place;
use super::put::{self, Brought, Command};
use super::{FORMAT, LINEAGE_MAX, NEEDS, hints};
use crate::clock::Clock;
use crate::store::StoreError;
use crate::store::loan::{Changes, Damaged, Ticked};
use crate::store::projection::BadProjection;
use crate::words::UnixMs;

/// Whose commit it is, by its start, and what tells it from all others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Author {
    pub(super) epoch: u64,
    pub(super) tag: u64,
}

/// What the names of processes in `lineage` begin with; `fetch.lua` repeats it.
const AUTHOR: &str = "by ";
/// How long after a process's start its newest version may be forgotten, until it writes again.
const AUTHOR_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Where the data is.
pub(super) struct Server {
    pub(super) place: Place,
    /// As errors name it.
    pub(super) name: String,
    pub(super) channel: String,
    pub(super) fetch: Script,
    pub(super) commit: Script,
    pub(super) give: Script,
    pub(super) writing: Link,
    pub(super) reading: Link,
    /// Behind how many that are queued requests are kept as they came.
    pub(super) far_back: u64,
    /// In place of the server's clock, for tests.
    pub(super) clock: Option<Arc<dyn Clock>>,
}

impl Server {
    pub(super) fn flight<'a>(&'a self, process: &'a str, mode: Mode) -> Flight<'a> {
        let (link, script, brought) = (&self.writing, &self.fetch, Brought::default());
        Flight {
            link,
            script,
            process,
            mode,
            certain: None,
            version: 0,
            fixtures: None,
            brought,
            heard: None,
            moved: None,
            ahead: None,
        }
    }

    /// Of what kind each key is; answers those that there are. Keys of another program are refused.
    pub(super) async fn kinds(&self) -> Result<Vec<String>, StoreError> {
        let kinds = self.writing.call(&Script::kinds(), &Arguments::default()).await;
        let kinds = kinds.and_then(|kinds| Ok(list(kinds)?)).map_err(|error| error.at(&self.name))?;
        let mut there = Vec::new();
        for (kind, (key, expected)) in kinds.zip(keys_of(&self.place.name)) {
            let kind: String = redis::from_redis_value(kind).unwrap_or_default();
            if kind == "none" {
                continue;
            }
            if kind != expected {
                return Err(StoreError::NotAStore { path: self.name.clone(), reason: format!("{key} is a {kind}") });
            }
            there.push(key);
        }
        Ok(there)
    }

    /// Refuses a store that a copy has begun to fill: what is missing would be taken for never seen.
    pub(super) async fn refuse_half_copied(&self) -> Result<(), StoreError> {
        let copying = self.writing.key(Key::Copying);
        match self.kinds().await?.iter().any(|key| key == copying) {
            true => Err(StoreError::HalfCopied { path: self.in_words() }),
            false => Ok(()),
        }
    }

    /// Refuses a server that would lose what it acknowledges.
    pub(super) async fn check(&self, shows: bool) -> Result<(), StoreError> {
        let mut refusals = Vec::new();
        let said = check::ask(&self.writing).await;
        if said.is_cluster && shows {
            refusals.push(BadProjection::OnCluster.to_string());
        }
        for finding in check::findings(&said) {
            match finding {
                Finding::Refuse(reason) => refusals.push(reason),
                Finding::Warn(reason) => tracing::warn!(server = %self.name, "{reason}"),
            }
        }
        match refusals.is_empty() {
            true => Ok(()),
            false => Err(StoreError::Io { path: self.name.clone(), reason: refusals.join("; ") }),
        }
    }

    /// The server and which of its stores.
    pub(super) fn in_words(&self) -> String {
        format!("{}, store {}", self.name, self.place.name)
    }

    /// The commands that write a tick's changes, but for groups that are gone.
    pub(super) fn rows(
        &self,
        known: &Known,
        changes: &Changes<'_>,
        brought: &Brought,
        author: Author,
    ) -> Result<Vec<Command>, Damaged> {
        let fresh = put::fresh(changes, known.numbers.high.seq, self.far_back);
        // Both may be refused, by a stream that somebody else wrote to or for want of memory: a script is only stopped
        // before it has written anything if they come first.
        let mut commands = put::put_fresh(&fresh);
        commands.extend([
            Command { name: "HSET", key: Key::Numbers, arguments: numbers(known, changes) },
            Command { name: "HSET", key: Key::Lineage, arguments: lineage(known.version + 1, author) },
        ]);
        commands.extend(put::put(changes, brought, &fresh, known.numbers.newest_epoch)?);
        Ok(commands)
    }

    /// What a start does besides: whatever commands commits are made of, once each, without effect where the others have
    /// none. A role that may not do one of them is refused there, in a transaction that is void then; a script would be
    /// stopped half way.
    pub(super) fn rehearsal(&self) -> Vec<Cmd> {
        let harmless: [(&str, Key, &[&str]); 6] = [
            // Nothing is there while a process starts.
            ("XADD", Key::Copying, &["NOMKSTREAM", "1", "", ""]),
            ("XDEL", Key::Fresh, &["1-1"]),
            ("XTRIM", Key::Journal, &["MINID", "=", "0"]),
            ("ZREM", Key::Queue, &[""]),
            ("HDEL", Key::Live, &[""]),
            ("HINCRBY", Key::Numbers, &["epoch", "0"]),
        ];
        let harmless = harmless.iter().map(|(name, key, with)| self.writing.on(name, *key, &Arguments::of(*with)));
        self.anchors().into_iter().chain(harmless).collect()
    }

    /// What a start forgets: the newest versions of processes that began long ago. Whoever of them is still there writes its
    /// own again with its next commit.
    pub(super) async fn former_authors(&self, now: UnixMs) -> Result<Option<Cmd>, LinkError> {
        let entries = self.writing.read(vec![self.writing.on("HKEYS", Key::Lineage, &Arguments::default())]).await?;
        let names = entries.into_iter().flat_map(list).flatten().filter_map(|name| bytes(Some(name)).ok());
        let kept_ms = u64::try_from(AUTHOR_KEPT.as_millis()).unwrap_or(u64::MAX);
        let is_former = |name: &Vec<u8>| {
            let name = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix(AUTHOR));
            name.and_then(|epoch| epoch.parse::<u64>().ok()).is_some_and(|epoch| epoch.saturating_add(kept_ms) < now.0)
        };
        let former = Arguments::of(names.filter(is_former));
        Ok((!former.ends.is_empty()).then(|| self.writing.on("HDEL", Key::Lineage, &former)))
    }

    /// The commands that keep short entries quick to find.
    fn anchors(&self) -> Vec<Cmd> {
        let anchor = |&(key, command): &(Key, &str)| {
            let arguments: [&[u8]; 2] = if command == "ZADD" { [b"0", &ANCHOR] } else { [&ANCHOR, b""] };
            self.writing.on(command, key, &Arguments::of(arguments))
        };
        ANCHORED.iter().map(anchor).collect()
    }

    /// Tells other processes what a tick touched.
    pub(super) fn publish(&self, ticked: &Ticked, epoch: u64) -> Cmd {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&self.channel).arg(hints::message(ticked.touched(), epoch));
        publish
    }

    /// The commands that write these changes, and give back the turn.
    pub(super) fn commands(
        &self,
        known: &Known,
        changes: &Changes<'_>,
        brought: &Brought,
        author: Author,
    ) -> Result<Vec<Cmd>, Damaged> {
        let link = &self.writing;
        let rows = self.rows(known, changes, brought, author)?;
        let mut commands = vec![link.on("HDEL", Key::Turn, &Arguments::of(["holder", "until"]))];
        commands.extend(rows.iter().map(|command| link.on(command.name, command.key, &command.arguments)));
        for no in &changes.gone_groups {
            let mut clear = redis::cmd("EVAL");
            let keys = [Key::ItemOf, Key::Item, Key::ItemBody].map(|key| link.key(key));
            clear.arg(CLEAR).arg(keys.len()).arg(&keys).arg(&no.to_be_bytes()[..]);
            commands.push(clear);
        }
        Ok(commands)
    }

    /// Gives back a turn that brought nothing to write.
    pub(super) async fn give_turn(&self, link: &Link, process: &str) -> Result<(), LinkError> {
        link.call(&self.give, &Arguments::of([process])).await.map(drop)
    }

    pub(super) fn now(&self, known: &Known) -> UnixMs {
        match &self.clock {
            Some(clock) => clock.now(),
            None => UnixMs(known.heard.ms()),
        }
    }
}

/// What tells a commit from all others: two of one process may be meant to be the same version, if
/// the first of them fails.
pub(super) fn new_tag() -> u64 {
    fastrand::u64(..)
}

/// What tells a new store from all others.
pub(super) fn new_run() -> String {
    format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
}

/// The numbers as they stand after a commit: all of them in the first, later those that changed.
fn numbers(known: &Known, changes: &Changes<'_>) -> Arguments {
    let before = known.numbers;
    let after = changes.numbers.map_or(before, |numbers| numbers.after(before));
    let (was, is) = (before.high, after.high);
    let numbers = [
        ("seq", was.seq, is.seq),
        ("entry", was.entry, is.entry),
        ("receipt", was.receipt, is.receipt),
        ("item", was.item, is.item),
        ("group", was.group, is.group),
        ("floor", before.journal_floor, after.journal_floor),
        ("fixtures", before.fixtures, after.fixtures),
        // What a newer version wrote stays newer.
        ("format", known.format, known.format.max(u64::from(FORMAT))),
        ("needs", known.needs, known.needs.max(u64::from(NEEDS))),
    ];
    let is_first = known.version == 0;
    let mut arguments = Arguments::default();
    if is_first {
        arguments.push_all(["run", &known.run]);
    }
    // The epoch is the newest that this process knows of, which the server may not.
    let always = [("version", known.version + 1), ("epoch", before.newest_epoch)];
    let changed = numbers.into_iter().filter(|(_, was, is)| is_first || was != is);
    for (name, number) in always.into_iter().chain(changed.map(|(name, _, is)| (name, is))) {
        arguments.push(name);
        arguments.push_number(number);
    }
    arguments
}

/// Which commit made a version, and which is its process's newest, as `fetch.lua` compares them.
fn lineage(version: u64, Author { epoch, tag }: Author) -> Arguments {
    let commit = format!("{version} {tag}");
    Arguments::of([(version % LINEAGE_MAX).to_string(), commit.clone(), format!("{AUTHOR}{epoch}"), commit])
}
