//! Wants as arguments of `fetch.lua`, and its answers as rows. What each want's arguments are
//! is said there, beside the function of the same name.

use std::collections::BTreeSet;
use std::sync::Arc;

use redis::Value;

use super::bytes::{
    Parts, after, body, item, line, live, origin_height, payload, receipt, seq, slot, state_of, state_prefix, when,
};
use crate::inbox::{RouteNo, StateKind, When};
use crate::outbox::LaneNo;
use crate::sender::Parcel;
use crate::store::disk::{ColdKey, GroupRow};
use crate::store::loan::{CountedRow, Damaged, Found, LiveRow, Loaded, Reached, Want, decode};
use crate::words::{Nonce, OccurrenceId, RequestId, UnixMs};

/// Stands for as many as there are.
const ALL: usize = usize::MAX >> 1;

/// Stands for the ids that were named before.
const THE_NAMED: &str = "*";

/// Arguments of a script, one after the other.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) bytes: Vec<u8>,
    pub(super) ends: Vec<usize>,
}

impl Arguments {
    pub(super) fn of(arguments: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Arguments {
        let mut all = Arguments::default();
        all.push_all(arguments);
        all
    }

    pub(super) fn push(&mut self, argument: impl AsRef<[u8]>) {
        self.push_with(|bytes| bytes.extend(argument.as_ref()));
    }

    pub(super) fn push_number(&mut self, number: impl std::fmt::Display) {
        use std::io::Write;
        // Writing to memory cannot fail.
        self.push_with(|bytes| drop(write!(bytes, "{number}")));
    }

    pub(super) fn push_with(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        put(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    pub(super) fn push_all(&mut self, arguments: impl IntoIterator<Item = impl AsRef<[u8]>>) {
        arguments.into_iter().for_each(|argument| self.push(argument));
    }

    /// How many arguments others are, and those.
    pub(super) fn push_counted(&mut self, others: &Arguments) {
        self.push_number(others.ends.len());
        self.append(others);
    }

    pub(super) fn append(&mut self, other: &Arguments) {
        let start = self.bytes.len();
        self.bytes.extend(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| start + end));
    }

    /// One want: its name, how many arguments it has, and those.
    fn push_want(&mut self, name: &str, put: impl FnOnce(&mut Arguments)) {
        let mut own = Arguments::default();
        put(&mut own);
        self.push(name);
        self.push_number(own.ends.len());
        self.append(&own);
    }

    fn push_reached(&mut self, limit: usize, reached: &Reached) {
        self.push_number(limit.min(ALL));
        self.push_ranges(reached);
    }

    fn push_ranges(&mut self, reached: &Reached) {
        self.push_all(reached.iter().flat_map(|(first, last)| [when(*first), when(*last)]));
    }

    /// What was listed under a time up to now.
    fn push_until(&mut self, limit: usize, now: UnixMs) {
        self.push_number(limit.min(ALL));
        self.push_all([[0; 8], now.0.to_be_bytes()]);
    }

    pub(super) fn push_wants(&mut self, wants: &[Want]) {
        let mut named = None;
        for want in wants {
            self.push_one(want, named);
            if let Want::Named { ids, .. } = want {
                named = Some(ids).filter(|ids| !ids.is_empty());
            }
        }
    }

    fn push_one(&mut self, want: &Want, named: Option<&BTreeSet<RequestId>>) {
        let name = name_of(want);
        self.push_want(name, |own| match want {
            Want::Named { ids, occurrences, slots } => {
                own.push_number(ids.len());
                own.push_number(occurrences.len());
                own.push_all(ids.iter().map(|id| id.0));
                own.push_all(occurrences.iter().map(|id| id.0));
                own.push_all(slots.iter().map(|(lane, nonce)| slot(*lane, *nonce)));
            }
            Want::Bodies(ids) | Want::Responses(ids) | Want::Ended(ids) | Want::GroupsOf(ids) if named == Some(ids) => {
                own.push(THE_NAMED);
            }
            Want::Behind(ids) | Want::Bodies(ids) | Want::Responses(ids) | Want::Ended(ids) | Want::GroupsOf(ids) => {
                own.push_all(ids.iter().map(|id| id.0));
            }
            Want::Seen(occurrences) => own.push_all(occurrences.iter().map(|id| id.0)),
            Want::BodiesOf { seqs, bytes } => {
                own.push_number(bytes);
                own.push_all(seqs.iter().map(|seq| seq.0.to_be_bytes()));
            }
            Want::Turns { route, requests, reached, bytes, from } => {
                own.push(route.0.to_be_bytes());
                own.push_number(requests);
                own.push_number(bytes);
                own.push(from.to_be_bytes());
                own.push_ranges(reached);
            }
            Want::Next { route, after: (turn, seq), requests, reached, bytes } => {
                own.push(route.0.to_be_bytes());
                own.push_number(requests);
                own.push_number(bytes);
                own.push([turn.to_be_bytes(), seq.0.to_be_bytes()].concat());
                own.push_ranges(reached);
            }
            Want::Claimed(claims) => own.push_all(claims.iter().map(|claim| claim.0.to_be_bytes())),
            Want::Due { reached, limit } | Want::Overdue { reached, limit } | Want::Fired { reached, limit } => {
                own.push_reached(*limit, reached);
            }
            Want::Silent { now, limit } | Want::Dead { now, limit } | Want::Outlived { now, limit } => {
                own.push_until(*limit, *now);
            }
            Want::Leased { now } => own.push_all([&b"-1"[..], &after(*now), &u64::MAX.to_be_bytes()]),
            Want::ExpiredIds { now, limit } => {
                own.push_number(limit);
                own.push(after(*now));
            }
            Want::ExpiredOccurrences { now, limit, floors } => {
                own.push_number(limit);
                own.push(after(*now));
                for (origin, floor) in floors {
                    let bound = origin_height(*origin, *floor);
                    own.push_all([&bound[..2], &bound[2..]]);
                }
            }
            Want::Routes(routes) => {
                let prefixes = routes.iter().flat_map(|no| StateKind::LIVE.map(|state| state_prefix(*no, state)));
                own.push_all(prefixes);
            }
            Want::Lanes(lanes) | Want::UnderWay(lanes) => own.push_all(lanes.iter().map(|lane| lane.0.to_be_bytes())),
            Want::Parcels(slots) => own.push_all(slots.iter().map(|(lane, nonce)| slot(*lane, *nonce))),
            Want::Groups(keys) => own.push_all(keys.iter().map(|key| key.as_str())),
            Want::Items(of) => {
                for (group, few) in of {
                    own.push(group.to_be_bytes());
                    own.push_number((*few).min(ALL));
                }
            }
            Want::Lines(of) => {
                for (route, key, few) in of {
                    own.push(line(*route, key));
                    own.push_number(few);
                }
            }
            Want::Counted | Want::Paces | Want::Counts => {}
            Want::Page { of, after, limit } => {
                own.push_number(limit);
                own.push(after.map_or([0; 8], |seq| seq.0.to_be_bytes()));
                own.push_all(of.iter().map(|(route, state)| state_prefix(*route, *state)));
            }
            Want::Ready { routes, after, limit, bytes } => {
                own.push_number(limit);
                own.push(after.map_or([0; 8], |seq| seq.0.to_be_bytes()));
                own.push_number(bytes);
                own.push_all(routes.iter().map(|route| state_prefix(*route, StateKind::Ready)));
            }
            Want::Chain { last, limit } => {
                own.push_number(last);
                own.push_number(limit);
            }
            Want::Entries { from, limit } => {
                own.push_number(from);
                own.push_number(limit);
            }
            Want::ItemPayloads { group, skip, limit, bytes } => {
                own.push(group.as_str());
                own.push_number((*skip).min(ALL as u64));
                own.push_number(limit);
                own.push_number(bytes);
            }
        });
    }
}

fn name_of(want: &Want) -> &'static str {
    match want {
        Want::Named { .. } => "named",
        Want::Behind(_) => "behind",
        Want::Bodies(_) => "bodies",
        Want::BodiesOf { .. } => "bodies_of",
        Want::Responses(_) => "responses",
        Want::Ended(_) => "ended",
        Want::Seen(_) => "seen",
        Want::GroupsOf(_) => "groups_of",
        Want::Turns { .. } => "turns",
        Want::Next { .. } => "next",
        Want::Claimed(_) => "claimed",
        Want::Due { .. } => "due",
        Want::Overdue { .. } => "overdue",
        Want::Silent { .. } | Want::Leased { .. } => "leased",
        Want::Dead { .. } => "dead",
        Want::Fired { .. } => "fired",
        Want::Outlived { .. } => "outlived",
        Want::ExpiredIds { .. } => "expired_ids",
        Want::ExpiredOccurrences { .. } => "expired_occurrences",
        Want::Routes(_) => "routes",
        Want::Lanes(_) => "lanes",
        Want::UnderWay(_) => "under_way",
        Want::Parcels(_) => "parcels",
        Want::Groups(_) => "groups",
        Want::Items(_) => "items",
        Want::Lines(_) => "lines",
        Want::Counted => "counted",
        Want::Paces => "paces",
        Want::Page { .. } => "page",
        Want::Ready { .. } => "ready",
        Want::Chain { .. } => "chain",
        Want::Entries { .. } => "entries",
        Want::ItemPayloads { .. } => "item_payloads",
        Want::Counts => "counts",
    }
}

/// A list of an answer.
pub(super) fn list(value: Value) -> Result<std::vec::IntoIter<Value>, Damaged> {
    match value {
        Value::Array(values) => Ok(values.into_iter()),
        other => Err(Damaged::new("answers", format!("{other:?} in place of a list"))),
    }
}

/// Bytes of an answer.
pub(super) fn bytes(value: Option<Value>) -> Result<Vec<u8>, Damaged> {
    match value {
        Some(Value::BulkString(bytes)) => Ok(bytes),
        other => Err(Damaged::new("answers", format!("{other:?} in place of bytes"))),
    }
}

/// A whole number of an answer, as text or not.
pub(super) fn number(value: Option<Value>) -> Result<u64, Damaged> {
    let text = match value {
        Some(Value::Int(number)) => return Ok(number.cast_unsigned()),
        other => bytes(other)?,
    };
    let text = std::str::from_utf8(&text).map_err(|error| Damaged::new("numbers", error))?;
    text.parse().map_err(|error| Damaged::new("numbers", format!("{text:?}: {error}")))
}

/// So many values at a time.
pub(super) fn each<const N: usize, T>(
    value: Value,
    mut read: impl FnMut([Vec<u8>; N]) -> Result<T, Damaged>,
) -> Result<Vec<T>, Damaged> {
    let mut values = list(value)?;
    let mut rows = Vec::with_capacity(values.len() / N);
    while values.len() > 0 {
        let mut row = [const { Vec::new() }; N];
        for place in &mut row {
            *place = bytes(values.next())?;
        }
        rows.push(read(row)?);
    }
    Ok(rows)
}

/// A note of receipts that expire together, and those of its keys that still do.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) of_ids: bool,
    pub(super) note: Vec<u8>,
    pub(super) keys: Vec<ColdKey>,
}

/// The rows that a want brought. Notes of receipts are kept besides: whoever forgets the
/// receipts forgets them too.
pub(super) fn found(want: &Want, value: Value, notes: &mut Vec<Note>) -> Result<Found, Damaged> {
    Ok(match want {
        Want::Named { .. }
        | Want::Behind(_)
        | Want::Due { .. }
        | Want::Overdue { .. }
        | Want::Silent { .. }
        | Want::Leased { .. }
        | Want::Dead { .. }
        | Want::Routes(_)
        | Want::Lines(_)
        | Want::Page { .. } => Found::Live(each(value, |[_, row]| live_row(&row))?),
        Want::Turns { .. } | Want::Next { .. } | Want::Claimed(_) => {
            Found::Live(each(value, |[_, row, of]| Ok(LiveRow { body: Some(body(of)?), ..live_row(&row)? }))?)
        }
        Want::Ready { .. } => {
            Found::Live(each(value, |[_, row, of]| Ok(LiveRow { response: Some(payload(of)?), ..live_row(&row)? }))?)
        }
        Want::Bodies(_) | Want::BodiesOf { .. } => {
            Found::Bodies(each(value, |[of, value]| Ok((seq(&of)?, body(value)?)))?)
        }
        Want::Responses(_) => Found::Responses(each(value, |[of, value]| Ok((seq(&of)?, payload(value)?)))?),
        Want::Ended(_) => Found::Receipts(each(value, |[id, value]| {
            Ok((ColdKey::Request(RequestId(Parts::of("ended", &id).array()?)), receipt(&value)?))
        })?),
        Want::Seen(_) => Found::Receipts(each(value, |[id, value]| {
            Ok((ColdKey::Occurrence(OccurrenceId(Parts::of("seen", &id).array()?)), receipt(&value)?))
        })?),
        Want::ExpiredIds { .. } => Found::Expired(expired(value, true, notes)?),
        Want::ExpiredOccurrences { .. } => Found::Expired(expired(value, false, notes)?),
        Want::GroupsOf(_) | Want::Fired { .. } | Want::Outlived { .. } | Want::Groups(_) => {
            Found::Groups(each(value, |[no, value]| group(&no, &value))?)
        }
        Want::Lanes(_) | Want::Parcels(_) => {
            Found::Parcels(each(value, |[of, value]| Ok((parcel_slot(&of)?, parcel(&value)?)))?)
        }
        Want::UnderWay(_) => {
            Found::UnderWay(each(value, |[of, count]| Ok((LaneNo(Parts::of("slot", &of).small()?), text(&count)?)))?)
        }
        Want::Items(_) => Found::Items(each(value, |[no, value]| Ok((seq(&no)?.0, item(&value)?)))?),
        Want::ItemPayloads { .. } => {
            Found::ItemPayloads(each(value, |[no, value]| Ok((seq(&no)?.0, payload(value)?)))?)
        }
        Want::Counted => Found::Counted(each(value, |[of, count]| Ok((route_state(&of)?, text(&count)?)))?),
        Want::Paces => Found::Paces(each(value, |[of, value]| {
            let mut parts = Parts::of("pace", &value);
            let epoch = parts.number()?;
            Ok((RouteNo(Parts::of("pace", &of).small()?), epoch, parts.record()?))
        })?),
        Want::Chain { .. } | Want::Entries { .. } => Found::Entries(each(value, |[entry]| decode("journal", &entry))?),
        Want::Counts => Found::Counts(each(value, |[of, count, oldest]| {
            let (route, state) = route_state(&of)?;
            let (_, oldest, _) = live(&oldest)?;
            Ok(CountedRow { route, state, requests: text(&count)?, oldest_at: oldest.admitted_at })
        })?),
    })
}

pub(super) fn live_row(row: &[u8]) -> Result<LiveRow, Damaged> {
    let (listed, request, record) = live(row)?;
    let loaded = Arc::new(Loaded { request, record: record.to_vec(), listed });
    Ok(LiveRow { loaded, body: None, response: None, is_news: false })
}

pub(super) fn group(no: &[u8], value: &[u8]) -> Result<(u64, GroupRow, When), Damaged> {
    let mut parts = Parts::of("group", value);
    let timer = parts.when()?;
    Ok((seq(no)?.0, parts.record()?, timer))
}

fn parcel_slot(of: &[u8]) -> Result<(LaneNo, Nonce), Damaged> {
    let mut parts = Parts::of("parcel", of);
    Ok((LaneNo(parts.small()?), Nonce(parts.number()?)))
}

/// A parcel, whose row begins with the requests by which it is found.
pub(super) fn parcel(value: &[u8]) -> Result<Parcel, Damaged> {
    let mut parts = Parts::of("parcel", value);
    parts.ids()?;
    parts.record()
}

/// The requests by which a parcel is found.
pub(super) fn parcel_ids(value: &[u8]) -> Result<Vec<RequestId>, Damaged> {
    let ids = Parts::of("parcel", value).ids()?;
    ids.chunks_exact(32).map(|id| Ok(RequestId(Parts::of("parcel", id).whole()?))).collect()
}

fn text(count: &[u8]) -> Result<u64, Damaged> {
    let text = std::str::from_utf8(count).map_err(|error| Damaged::new("counted", error))?;
    text.parse().map_err(|error| Damaged::new("counted", error))
}

fn route_state(of: &[u8]) -> Result<(RouteNo, StateKind), Damaged> {
    let mut parts = Parts::of("counted", of);
    Ok((RouteNo(parts.small()?), state_of(parts.byte()?)?))
}

fn expired(value: Value, of_ids: bool, notes: &mut Vec<Note>) -> Result<Vec<ColdKey>, Damaged> {
    let rows = each(value, |[note, keys]| {
        let keys = keys.chunks_exact(32).map(|key| Parts::of("receipts", key).array());
        let keys = keys.map(|key| {
            Ok(if of_ids { ColdKey::Request(RequestId(key?)) } else { ColdKey::Occurrence(OccurrenceId(key?)) })
        });
        Ok(Note { of_ids, note, keys: keys.collect::<Result<_, Damaged>>()? })
    })?;
    let all = rows.iter().flat_map(|note| note.keys.iter().copied()).collect();
    notes.extend(rows);
    Ok(all)
}
