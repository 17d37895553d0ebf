//! What a store keeps twice: entries of sorted sets and hashes that repeat what records say, so that
//! records are found. Each is looked for, and so is what belongs to no record.
//!
//! Failure modes: a row that cannot be read is named, and the rest goes on.

use std::collections::{BTreeMap, HashMap};

use super::archive::{HashRow, RedisKeeper, sizes};
use super::ask::{Arguments, bytes, group, list, live_row, number, parcel, parcel_ids};
use super::bytes::{Parts, item, members, receipt, receipt_when, seq};
use super::keys::Key;
use super::link::LinkError;
use super::put::{group_members, noted_in};
use crate::store::archive::Fault;
use crate::store::disk::ColdKey;
use crate::store::loan::{Damaged, LiveRow};
use crate::words::{OccurrenceId, RequestId};

/// How many faults are told.
const FAULTS_MAX: usize = 100;
/// How many rows are compared at a time.
const ROWS: usize = 1000;

/// Sorted sets and hashes that repeat what the records under another key say.
const REPEATED: [(Key, &[Key]); 4] = [
    (
        Key::Live,
        &[
            Key::State,
            Key::Queue,
            Key::Line,
            Key::Due,
            Key::Deadline,
            Key::Lease,
            Key::Claim,
            Key::Dead,
            Key::Behind,
            Key::Id,
            Key::Shown,
        ],
    ),
    (Key::Group, &[Key::GroupNamed, Key::GroupOf, Key::GroupTimer, Key::GroupForget]),
    (Key::Item, &[Key::ItemOf]),
    (Key::Parcel, &[Key::Slot]),
];

/// Hashes with a row for some records under another key.
const BESIDE: [(Key, Key); 3] = [(Key::Live, Key::Body), (Key::Live, Key::Response), (Key::Item, Key::ItemBody)];

/// An entry that repeats something: a member of a sorted set, without a value, or a field of a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    key: Key,
    field: Vec<u8>,
    value: Vec<u8>,
}

impl Entry {
    fn member(key: Key, member: &[u8]) -> Entry {
        Entry { key, field: member.to_vec(), value: Vec::new() }
    }
}

/// What was found so far.
#[derive(Default)]
struct Audit {
    faults: Vec<Fault>,
    /// How many entries each key should have.
    expected: BTreeMap<Key, u64>,
}

impl Audit {
    fn tell(&mut self, record: impl std::fmt::Display, rule: impl std::fmt::Display) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(Fault::new(record, rule));
        }
    }

    /// What was read of a row; nothing, if it cannot be.
    fn read<T>(&mut self, key: Key, field: &[u8], row: Result<T, Damaged>) -> Option<T> {
        match row {
            Ok(row) => Some(row),
            Err(damaged) => {
                self.tell(format!("row {} of key {}", hex(field), key.name()), format!("is damaged: {damaged}"));
                None
            }
        }
    }
}

/// Everything that is wrong with what is kept twice.
pub(super) async fn faults(keeper: &mut RedisKeeper) -> Result<Vec<Fault>, LinkError> {
    let mut audit = Audit::default();
    for (owner, keys) in REPEATED {
        look_for_entries(keeper, &mut audit, owner).await?;
        for (key, size) in keys.iter().zip(sizes(keeper, keys).await?) {
            if audit.expected.get(key).copied().unwrap_or(0) != size {
                look_for_strays(keeper, &mut audit, owner, *key).await?;
            }
        }
    }
    for (owner, key) in BESIDE {
        look_for_orphans(keeper, &mut audit, owner, key).await?;
    }
    for key in [Key::Ended, Key::Seen] {
        look_at_receipts(keeper, &mut audit, key).await?;
    }
    look_at_news(keeper, &mut audit).await?;
    let (named, rows) = (keeper.fixtures(), sizes(keeper, &[Key::Fixture]).await?);
    if rows != [named] {
        audit.tell("key changed", format!("leads to {named} rows of key fixture, and there are {rows:?}"));
    }
    let newest = list(keeper.ask("newest_fresh", &Arguments::default()).await?)?.next();
    let (newest, next) = (number(newest)?, keeper.next_seq());
    if newest >= next {
        audit.tell("key fresh", format!("has had number {newest}, so it does not take the next, which is {next}"));
    }
    Ok(audit.faults)
}

/// Whether every record under a key has its entries.
async fn look_for_entries(keeper: &mut RedisKeeper, audit: &mut Audit, owner: Key) -> Result<(), LinkError> {
    let mut after = Vec::new();
    loop {
        let rows = keeper.rows_after(owner, None, &after, ROWS).await?;
        let Some([last, _, _]) = rows.last() else { return Ok(()) };
        after.clone_from(last);
        let (mut arguments, mut wanted) = (Arguments::default(), Vec::new());
        for row in &rows {
            let Some((name, entries)) = audit.read(owner, &row[0], entries_of(owner, row)) else { continue };
            for Entry { key, field, value } in entries {
                *audit.expected.entry(key).or_default() += 1;
                arguments.push_number(key as usize);
                arguments.push_all([field, value]);
                wanted.push((name.clone(), key));
            }
        }
        for place in places(keeper, "lacking", &arguments).await? {
            if let Some((name, key)) = wanted.get(place) {
                audit.tell(name, format!("is not in key {}, or not as its record says", key.name()));
            }
        }
    }
}

/// Entries of a key that no record has.
async fn look_for_strays(keeper: &mut RedisKeeper, audit: &mut Audit, owner: Key, key: Key) -> Result<(), LinkError> {
    let mut after = Vec::new();
    loop {
        let entries = entries_after(keeper, key, &after).await?;
        let Some(last) = entries.last() else { return Ok(()) };
        after.clone_from(&last.field);
        let owners: Vec<Box<[u8]>> = entries.iter().map(|entry| owner_of(owner, entry).into()).collect();
        let rows = all_rows(keeper, owner, &owners).await?;
        for (entry, of) in entries.iter().zip(&owners) {
            let known = rows.get(of).and_then(|row| entries_of(owner, row).ok());
            if !known.is_some_and(|(_, entries)| entries.contains(entry)) {
                let record = format!("entry {} of key {}", hex(&entry.field), key.name());
                audit.tell(record, format!("belongs to no row of key {}", owner.name()));
            }
        }
    }
}

/// The next entries of a sorted set or a hash.
async fn entries_after(keeper: &mut RedisKeeper, key: Key, after: &[u8]) -> Result<Vec<Entry>, LinkError> {
    if matches!(key, Key::Id | Key::Shown | Key::GroupNamed) {
        let rows = keeper.rows_after(key, None, after, ROWS).await?;
        return Ok(rows.into_iter().map(|[field, value, _]| Entry { key, field, value }).collect());
    }
    let place = (key as usize).to_string();
    let members = list(keeper.ask("members", &Arguments::of([place.as_bytes(), after])).await?)?;
    let entries = members.map(|member| Ok(Entry { key, field: bytes(Some(member))?, value: Vec::new() }));
    Ok(entries.collect::<Result<_, Damaged>>()?)
}

/// The field of the record that an entry belongs to: its value, or what its member ends with.
fn owner_of(owner: Key, entry: &Entry) -> Vec<u8> {
    match (&entry.value[..], owner) {
        ([], Key::Parcel) => entry.field.clone(),
        ([], _) => entry.field[entry.field.len().saturating_sub(8)..].to_vec(),
        (value, _) => value.to_vec(),
    }
}

/// The rows of all of these fields, however long.
async fn all_rows(
    keeper: &RedisKeeper,
    key: Key,
    fields: &[Box<[u8]>],
) -> Result<HashMap<Box<[u8]>, HashRow>, LinkError> {
    let (mut all, mut rest) = (HashMap::new(), fields);
    while !rest.is_empty() {
        let rows = keeper.rows(key, None, rest).await?;
        let Some([last, _, _]) = rows.last() else { break };
        let place = rest.iter().rposition(|field| **field == **last).unwrap_or(rest.len() - 1);
        rest = &rest[place + 1..];
        all.extend(rows.into_iter().map(|row| (row[0].clone().into(), row)));
    }
    Ok(all)
}

/// Rows beside records that are not there.
async fn look_for_orphans(keeper: &mut RedisKeeper, audit: &mut Audit, owner: Key, key: Key) -> Result<(), LinkError> {
    let mut after = Vec::new();
    loop {
        let fields = keeper.fields_after(key, &after, ROWS).await?;
        let Some(last) = fields.last() else { return Ok(()) };
        after = last.to_vec();
        let rows = all_rows(keeper, owner, &fields).await?;
        for field in fields.iter().filter(|field| !rows.contains_key(*field)) {
            let record = format!("row {} of key {}", hex(field), key.name());
            audit.tell(record, format!("belongs to no row of key {}", owner.name()));
        }
    }
}

/// Whether receipts say when they may be forgotten, and are noted to be.
async fn look_at_receipts(keeper: &mut RedisKeeper, audit: &mut Audit, key: Key) -> Result<(), LinkError> {
    let mut after = Vec::new();
    loop {
        let rows = keeper.rows_after(key, None, &after, ROWS).await?;
        let Some([last, _, _]) = rows.last() else { return Ok(()) };
        after.clone_from(last);
        let mut notes: BTreeMap<Key, (Arguments, Vec<String>)> = BTreeMap::new();
        for row in &rows {
            let read = cold_key(key, &row[0]).and_then(|of| Ok((of, receipt(&row[1])?)));
            let Some((of, receipt)) = audit.read(key, &row[0], read) else { continue };
            let (name, when) = (in_words(&of), receipt_when(&receipt));
            if row[1].get(1..=when.len()) != Some(&when[..]) {
                audit.tell(&name, "says another time at which it may be forgotten than its record");
            }
            if let Some(noted) = noted_in(&of, &receipt) {
                let (arguments, names) = notes.entry(noted).or_default();
                arguments.push_all([&when, &row[0]]);
                names.push(name);
            }
        }
        for (noted, (pairs, names)) in notes {
            let mut arguments = Arguments::of([(noted as usize).to_string()]);
            arguments.append(&pairs);
            for place in places(keeper, "unnoted", &arguments).await? {
                if let Some(name) = names.get(place) {
                    audit.tell(name, format!("is not noted in key {}, so it is never forgotten", noted.name()));
                }
            }
        }
    }
}

/// Whether what is as it came has no receipts: nobody looks for them.
async fn look_at_news(keeper: &mut RedisKeeper, audit: &mut Audit) -> Result<(), LinkError> {
    let mut after = 0;
    while let Some((last, numbers)) = keeper.fresh_after(after).await? {
        after = last;
        let (mut ids, mut shown) = (Vec::<Box<[u8]>>::new(), Vec::<Box<[u8]>>::new());
        for [_, row, _] in all_rows(keeper, Key::Live, &numbers).await?.into_values() {
            // What is damaged is told with its entries.
            let Ok(LiveRow { loaded, .. }) = live_row(&row) else { continue };
            let request = &loaded.request;
            ids.push(request.id.0.into());
            shown.extend(request.occurrences.as_slice().iter().map(|occurrence| occurrence.id.0.into()));
        }
        for (key, names) in [(Key::Ended, ids), (Key::Seen, shown)] {
            for name in all_rows(keeper, key, &names).await?.into_keys() {
                audit.tell(in_words(&cold_key(key, &name)?), "is there, and its request is in key fresh, as it came");
            }
        }
    }
    Ok(())
}

/// Places in a list.
async fn places(keeper: &RedisKeeper, what: &str, arguments: &Arguments) -> Result<Vec<usize>, LinkError> {
    let places = list(keeper.ask(what, arguments).await?)?;
    let place = |value| Ok(usize::try_from(number(Some(value))?).unwrap_or(usize::MAX));
    Ok(places.map(place).collect::<Result<_, Damaged>>()?)
}

/// What the record under a key is called, and the entries that repeat it.
fn entries_of(owner: Key, [field, value, _]: &HashRow) -> Result<(String, Vec<Entry>), Damaged> {
    match owner {
        Key::Live => {
            let row = live_row(value)?;
            let (request, no) = (&row.loaded.request, seq(field)?);
            let mut entries: Vec<Entry> = members(request, &row.loaded.listed)
                .iter()
                .map(|member| Entry::member(member.key, member.as_slice()))
                .collect();
            if !request.behind {
                entries.push(Entry { key: Key::Id, field: request.id.0.to_vec(), value: field.clone() });
            }
            for occurrence in request.occurrences.as_slice() {
                entries.push(Entry { key: Key::Shown, field: occurrence.id.0.to_vec(), value: field.clone() });
            }
            if request.seq != no {
                return Err(Damaged::new("live", format!("it is of request number {}", request.seq.0)));
            }
            Ok((format!("request {} (number {})", request.id, no.0), entries))
        }
        Key::Group => {
            let (no, row, timer) = group(field, value)?;
            let mut entries: Vec<Entry> =
                group_members(no, &row, timer).iter().map(|(key, member)| Entry::member(*key, member)).collect();
            entries.push(Entry {
                key: Key::GroupNamed,
                field: row.key.as_str().as_bytes().to_vec(),
                value: field.clone(),
            });
            Ok((format!("group {}", row.key), entries))
        }
        Key::Item => {
            let (no, row) = (seq(field)?, item(value)?);
            let member = [row.group.to_be_bytes(), no.0.to_be_bytes()].concat();
            Ok((format!("item {} (number {})", row.id, no.0), vec![Entry::member(Key::ItemOf, &member)]))
        }
        _ => {
            if parcel_ids(value)? != parcel(value)?.deliveries {
                return Err(Damaged::new("parcel", "it is found by other requests than it carries"));
            }
            Ok((format!("the parcel on slot {}", hex(field)), vec![Entry::member(Key::Slot, field)]))
        }
    }
}

/// The key of a receipt.
pub(super) fn cold_key(of: Key, field: &[u8]) -> Result<ColdKey, Damaged> {
    let id = Parts::of(of.name(), field).whole()?;
    Ok(if of == Key::Ended { ColdKey::Request(RequestId(id)) } else { ColdKey::Occurrence(OccurrenceId(id)) })
}

fn in_words(key: &ColdKey) -> String {
    match key {
        ColdKey::Request(id) => format!("the receipt of request {id}"),
        ColdKey::Occurrence(id) => format!("the receipt of occurrence {id}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
