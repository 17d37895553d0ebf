//! Changes as the commands of a commit: one for each kind of change and key, with all of its
//! fields or members. What goes comes before what is put, since a request that moves up takes
//! the place of the one that ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::ask::{Arguments, Note};
use super::bytes::{
    Member, members, put_as_it_came, put_body, put_item, put_live, put_payload, receipt_when, slot, state_prefix, when,
};
use super::keys::Key;
use crate::inbox::{StateKind, When};
use crate::store::disk::{Body, ColdKey, ColdReceipt, GroupRow};
use crate::store::journal::KeptEntry;
use crate::store::loan::{Changes, Damaged, Put, PutReceipt, encode, request_of};
use crate::words::{Seq, UnixMs};

/// How many entries are one part of the journal.
const PART_ENTRIES: usize = 64;
/// How many receipts one note tells of.
const NOTE_KEYS: usize = 64;

/// How many are queued before whoever waits for long: more than processes keep at hand.
pub(super) const FAR_BACK: u64 = 4096;
/// The longest payload that is kept with its row, as it came.
const FRESH_BYTES_MAX: usize = 2048;

/// Requests that are kept as they come.
pub(super) type Fresh<'a> = BTreeMap<Seq, (&'a Put<'a>, &'a Body)>;

/// What the fetches of a tick brought that changes do not tell.
#[derive(Debug, Default)]
pub(super) struct Brought {
    pub(super) groups: HashMap<u64, (GroupRow, When)>,
    /// Which group an item is in.
    pub(super) items: HashMap<u64, u64>,
    pub(super) notes: Vec<Note>,
}

/// One command of a commit.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) name: &'static str,
    pub(super) key: Key,
    pub(super) arguments: Arguments,
}

/// Commands that are alike, until they become one.
#[derive(Default)]
struct Commands(BTreeMap<(Step, Key), Arguments>);

/// Kinds of commands, in the order in which they are sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Unlist,
    Delete,
    Erase,
    Put,
    List,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Unlist => "ZREM",
            Step::Delete => "HDEL",
            Step::Erase => "XDEL",
            Step::Put => "HSET",
            Step::List => "ZADD",
        }
    }
}

impl Commands {
    fn of(&mut self, step: Step, key: Key) -> &mut Arguments {
        self.0.entry((step, key)).or_default()
    }

    fn delete(&mut self, key: Key, field: impl AsRef<[u8]>) {
        self.of(Step::Delete, key).push(field);
    }

    /// Takes away what is of a request as it came, if anything is.
    fn erase(&mut self, seq: Seq) {
        self.of(Step::Erase, Key::Fresh).push_number(seq.0);
    }

    fn put(&mut self, key: Key, field: impl AsRef<[u8]>, value: impl FnOnce(&mut Vec<u8>)) {
        let arguments = self.of(Step::Put, key);
        arguments.push(field);
        arguments.push_with(value);
    }

    fn list(&mut self, key: Key, member: impl AsRef<[u8]>) {
        let arguments = self.of(Step::List, key);
        arguments.push("0");
        arguments.push(member);
    }

    fn unlist(&mut self, key: Key, member: impl AsRef<[u8]>) {
        self.of(Step::Unlist, key).push(member);
    }

    fn relist(&mut self, before: &[Member], after: &[Member]) {
        for gone in before.iter().filter(|member| !after.contains(member)) {
            self.unlist(gone.key, gone.as_slice());
        }
        for new in after.iter().filter(|member| !before.contains(member)) {
            self.list(new.key, new.as_slice());
        }
    }

    fn into_each(self) -> Vec<Command> {
        let each = self.0.into_iter();
        each.map(|((step, key), arguments)| Command { name: step.name(), key, arguments }).collect()
    }
}

fn command(name: &'static str, key: Key, put: impl FnOnce(&mut Arguments)) -> Command {
    let mut arguments = Arguments::default();
    put(&mut arguments);
    Command { name, key, arguments }
}

/// The commands that write these changes, but for what is kept as it came, in the newest epoch.
pub(super) fn put(
    changes: &Changes<'_>,
    brought: &Brought,
    fresh: &Fresh<'_>,
    newest_epoch: u64,
) -> Result<Vec<Command>, Damaged> {
    let mut commands = Commands::default();
    put_requests(&mut commands, changes, fresh);
    put_receipts(&mut commands, changes, &brought.notes)?;
    put_parcels(&mut commands, changes)?;
    put_groups(&mut commands, changes, brought)?;
    for (no, pace) in &changes.paces {
        let record = encode(*pace)?;
        commands.put(Key::Pace, no.0.to_be_bytes(), |value| {
            value.extend(newest_epoch.to_be_bytes());
            value.extend(record);
        });
    }
    put_fixtures(&mut commands, changes)?;
    let mut commands = commands.into_each();
    for ((route, state), change) in &changes.counts {
        commands.push(command("HINCRBY", Key::Counted, |arguments| {
            arguments.push(state_prefix(*route, *state));
            arguments.push_number(change);
        }));
    }
    put_journal(&mut commands, changes)?;
    Ok(commands)
}

/// What is kept as it comes: what is new and will wait for long, in the order of its numbers, and short enough to be read
/// for its row alone. As long as it is as it came, it has no receipts, so whoever reads it need not look for them. A
/// stream takes only numbers above all that it had; those from this one on are.
pub(super) fn fresh<'a>(changes: &'a Changes<'_>, first_new: u64, far_back: u64) -> Fresh<'a> {
    let is_queued = |put: &&Put<'_>| put.listed.state == StateKind::Queued && put.ahead >= far_back;
    let new = changes.live.iter().filter(|put| put.is_news && put.request.seq.0 >= first_new).filter(is_queued);
    let of = new.filter_map(|put| Some((put.request.seq, (put, put.body?))));
    of.filter(|(_, (_, body))| body.payload.bytes.len() <= FRESH_BYTES_MAX).collect()
}

/// The commands that keep these as they come.
pub(super) fn put_fresh(fresh: &Fresh<'_>) -> Vec<Command> {
    let put = |(seq, (put, body)): (&Seq, &(&Put<'_>, &Body))| {
        command("XADD", Key::Fresh, |arguments| {
            arguments.push_number(seq.0);
            arguments.push("r");
            arguments.push_with(|value| put_as_it_came(value, (&put.listed, &put.record), body));
        })
    };
    fresh.iter().map(put).collect()
}

fn put_requests(commands: &mut Commands, changes: &Changes<'_>, fresh: &Fresh<'_>) {
    for was in &changes.gone {
        let seq = was.request.seq.0.to_be_bytes();
        commands.relist(&members(&was.request, &was.listed), &[]);
        commands.erase(was.request.seq);
        commands.delete(Key::Live, seq);
        commands.delete(Key::Body, seq);
        if !matches!(was.listed.state, StateKind::Held | StateKind::Queued | StateKind::Leased) {
            commands.delete(Key::Response, seq);
        }
        if !was.request.behind {
            commands.delete(Key::Id, was.request.id.0);
        }
    }
    for put in &changes.live {
        let (request, seq) = (put.request, put.request.seq.0.to_be_bytes());
        let before = put.was.map(|was| members(&was.request, &was.listed)).unwrap_or_default();
        commands.relist(&before, &members(request, &put.listed));
        if put.was.is_some() && put.body.is_some() {
            // With another body it is not as it came: that is in its own place, as its row is.
            commands.erase(put.request.seq);
        }
        if !fresh.contains_key(&put.request.seq) {
            commands.put(Key::Live, seq, |value| put_live(value, &put.listed, &put.record));
        }
        let was_first = put.was.is_some_and(|was| !was.request.behind);
        match (was_first, !request.behind) {
            (false, true) => commands.put(Key::Id, request.id.0, |value| value.extend(seq)),
            (true, false) => commands.delete(Key::Id, request.id.0),
            _ => {}
        }
    }
    for (seq, body) in changes.bodies.iter().filter(|(seq, _)| !fresh.contains_key(seq)) {
        commands.put(Key::Body, seq.0.to_be_bytes(), |value| put_body(value, body));
    }
    for seq in &changes.void_responses {
        commands.delete(Key::Response, seq.0.to_be_bytes());
    }
    for (seq, response) in &changes.responses {
        commands.put(Key::Response, seq.0.to_be_bytes(), |value| put_payload(value, response));
    }
    for occurrence in &changes.hidden {
        commands.delete(Key::Shown, occurrence.0);
    }
    for (occurrence, seq) in &changes.shown {
        commands.put(Key::Shown, occurrence.0, |value| value.extend(seq.0.to_be_bytes()));
    }
}

fn put_receipts(commands: &mut Commands, changes: &Changes<'_>, notes: &[Note]) -> Result<(), Damaged> {
    let mut expiring: BTreeMap<(Key, Vec<u8>), Vec<[u8; 32]>> = BTreeMap::new();
    for PutReceipt { key, receipt, .. } in &changes.receipts {
        let (of, id) = key_of(key);
        let (at, record) = (receipt_when(receipt), encode(*receipt)?);
        if let Some(noted) = noted_in(key, receipt) {
            expiring.entry((noted, at.clone())).or_default().push(id);
        }
        commands.put(of, id, |value| {
            value.extend(u8::try_from(at.len()));
            value.extend(at);
            value.extend(record);
        });
    }
    for ((noted, at), ids) in expiring {
        for ids in ids.chunks(NOTE_KEYS) {
            commands.list(noted, [&at[..], &ids.concat()].concat());
        }
    }
    let forgotten: BTreeSet<ColdKey> = changes.forgotten.iter().map(|key| **key).collect();
    for key in &forgotten {
        let (of, id) = key_of(key);
        commands.delete(of, id);
    }
    for note in notes.iter().filter(|note| note.keys.iter().all(|key| forgotten.contains(key))) {
        commands.unlist(note_in(note), &note.note);
    }
    Ok(())
}

pub(super) fn key_of(key: &ColdKey) -> (Key, [u8; 32]) {
    match key {
        ColdKey::Request(id) => (Key::Ended, id.0),
        ColdKey::Occurrence(id) => (Key::Seen, id.0),
    }
}

/// Where it is noted when a receipt may be forgotten; nowhere, if that never comes.
pub(super) fn noted_in(key: &ColdKey, receipt: &ColdReceipt) -> Option<Key> {
    match (key, receipt) {
        (_, ColdReceipt::Seen { origin: Some(_), .. }) => Some(Key::SeenBelow),
        (_, receipt) if receipt.until() == UnixMs::NEVER => None,
        (ColdKey::Request(_), _) => Some(Key::EndedAt),
        (ColdKey::Occurrence(_), _) => Some(Key::SeenAt),
    }
}

/// Where a note is: those by time and by height differ in length.
fn note_in(note: &Note) -> Key {
    match (note.of_ids, note.note.len() % 32) {
        (true, _) => Key::EndedAt,
        (false, 8) => Key::SeenAt,
        (false, _) => Key::SeenBelow,
    }
}

fn put_parcels(commands: &mut Commands, changes: &Changes<'_>) -> Result<(), Damaged> {
    for (lane, nonce) in &changes.gone_parcels {
        commands.delete(Key::Parcel, slot(*lane, *nonce));
        commands.unlist(Key::Slot, slot(*lane, *nonce));
    }
    for (lane, nonce, parcel) in &changes.parcels {
        let record = encode(*parcel)?;
        let deliveries = u32::try_from(parcel.deliveries.len()).map_err(|error| Damaged::new("parcel", error))?;
        commands.put(Key::Parcel, slot(*lane, *nonce), |value| {
            value.extend(deliveries.to_be_bytes());
            value.extend(parcel.deliveries.iter().flat_map(|id| id.0));
            value.extend(record);
        });
        commands.list(Key::Slot, slot(*lane, *nonce));
    }
    Ok(())
}

fn put_groups(commands: &mut Commands, changes: &Changes<'_>, brought: &Brought) -> Result<(), Damaged> {
    for no in &changes.gone_groups {
        if let Some((was, timer)) = brought.groups.get(no) {
            relist_group(commands, *no, Some((was, *timer)), None);
            commands.delete(Key::GroupNamed, was.key.as_str());
        }
        commands.delete(Key::Group, no.to_be_bytes());
    }
    for (no, row, timer) in &changes.groups {
        let was = brought.groups.get(no).map(|(was, timer)| (was, *timer));
        put_group(commands, *no, row, *timer, was)?;
    }
    for (no, timer) in &changes.timers {
        if let Some((row, was)) = brought.groups.get(no) {
            put_group(commands, *no, row, *timer, Some((row, *was)))?;
        }
    }
    for no in &changes.gone_items {
        commands.delete(Key::Item, no.to_be_bytes());
        commands.delete(Key::ItemBody, no.to_be_bytes());
        if let Some(group) = brought.items.get(no) {
            commands.unlist(Key::ItemOf, [group.to_be_bytes(), no.to_be_bytes()].concat());
        }
    }
    for (no, row, payload) in &changes.items {
        commands.put(Key::Item, no.to_be_bytes(), |value| put_item(value, row));
        commands.put(Key::ItemBody, no.to_be_bytes(), |value| put_payload(value, payload));
        commands.list(Key::ItemOf, [row.group.to_be_bytes(), no.to_be_bytes()].concat());
    }
    Ok(())
}

fn put_group(
    commands: &mut Commands,
    no: u64,
    row: &GroupRow,
    timer: When,
    was: Option<(&GroupRow, When)>,
) -> Result<(), Damaged> {
    let record = encode(row)?;
    relist_group(commands, no, was, Some((row, timer)));
    if was.is_none() {
        commands.put(Key::GroupNamed, row.key.as_str(), |value| value.extend(no.to_be_bytes()));
    }
    commands.put(Key::Group, no.to_be_bytes(), |value| {
        value.extend(when(timer));
        value.extend(record);
    });
    Ok(())
}

fn relist_group(commands: &mut Commands, no: u64, was: Option<(&GroupRow, When)>, is: Option<(&GroupRow, When)>) {
    let before = was.map(|(row, timer)| group_members(no, row, timer)).unwrap_or_default();
    let after = is.map(|(row, timer)| group_members(no, row, timer)).unwrap_or_default();
    for (key, member) in before.iter().filter(|member| !after.contains(member)) {
        commands.unlist(*key, member);
    }
    for (key, member) in after.iter().filter(|member| !before.contains(member)) {
        commands.list(*key, member);
    }
}

/// Everywhere a group is listed.
pub(super) fn group_members(no: u64, row: &GroupRow, timer: When) -> Vec<(Key, Vec<u8>)> {
    let mut members = Vec::new();
    let no = no.to_be_bytes();
    if timer != When::NEVER {
        members.push((Key::GroupTimer, [when(timer), no].concat()));
    }
    match (row.forget_at, request_of(row)) {
        (Some(at), _) => members.push((Key::GroupForget, [at.0.to_be_bytes(), no].concat())),
        (None, Some(request)) => members.push((Key::GroupOf, [&request.0[..], &no].concat())),
        (None, None) => {}
    }
    members
}

fn put_fixtures(commands: &mut Commands, changes: &Changes<'_>) -> Result<(), Damaged> {
    let (Some(rows), Some(numbers)) = (changes.fixtures, &changes.numbers) else { return Ok(()) };
    for ((kind, name), fixture) in rows {
        let (field, record) = ([&[*kind], name.as_bytes()].concat(), encode(fixture)?);
        commands.put(Key::Fixture, &field, |value| value.extend(record));
        let changed = commands.of(Step::List, Key::Changed);
        changed.push_number(numbers.fixtures);
        changed.push(field);
    }
    Ok(())
}

fn put_journal(commands: &mut Vec<Command>, changes: &Changes<'_>) -> Result<(), Damaged> {
    for part in changes.entries.chunks(PART_ENTRIES) {
        let (Some(first), value) = (part.first(), part_of(part)?) else { continue };
        commands.push(command("XADD", Key::Journal, |arguments| {
            arguments.push_number(first.position);
            arguments.push("e");
            arguments.push(value);
        }));
    }
    if !changes.trimmed.is_empty() {
        // The part that holds the first entry that stays begins less than a part before it.
        let first = changes.trimmed.end.saturating_sub(PART_ENTRIES as u64 - 1);
        commands.push(command("XTRIM", Key::Journal, |arguments| {
            arguments.push_all(["MINID", "="]);
            arguments.push_number(first);
        }));
    }
    Ok(())
}

fn part_of(entries: &[KeptEntry]) -> Result<Vec<u8>, Damaged> {
    let mut part = Vec::new();
    for entry in entries {
        let record = encode(entry)?;
        let length = u32::try_from(record.len()).map_err(|error| Damaged::new("journal", error))?;
        part.extend(entry.previous.to_be_bytes());
        part.extend(length.to_be_bytes());
        part.extend(record);
    }
    Ok(part)
}
