//! Writing what a machine on loan changed: one statement for each kind of row, all of them
//! and the commit in one flight.

use std::collections::{BTreeMap, BTreeSet};

use super::fetch::{Fetched, Listed, Loaded};
use super::tray::Tray;
use super::wire::{Call, PgError, encode, int, ordered, param, time};
use crate::groups::GroupState;
use crate::inbox::{RouteNo, State, When};
use crate::store::disk::{ColdKey, ColdReceipt, GroupRow, HighWater};
use crate::store::machine::{Machine, Pace, Place};
use crate::words::{OccurrenceId, Payload, Seq};

const PUT_NUMBERS: &str = "
UPDATE numbers SET seq = $1, entry = $2, receipt = $3, item = $4, grp = $5, journal_floor = $6, fixtures = $7";
const PUT_FIXTURES: &str = "
INSERT INTO fixture (kind, name, version, record)
SELECT kind, name, $4, record FROM unnest($1::smallint[], $2::text[], $3::bytea[]) f(kind, name, record)
ON CONFLICT (kind, name) DO UPDATE SET version = excluded.version, record = excluded.record";
const PUT_LIVE: &str = "
INSERT INTO live (seq, id, route, state, behind, key, turn, due, deadline, lease_until, claim, forget_at, admitted_at,
                  bytes, record)
SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::integer[], $4::smallint[], $5::boolean[], $6::text[], $7::bigint[],
                     $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[],
                     $14::integer[], $15::bytea[])
ON CONFLICT (seq) DO UPDATE SET
    state = excluded.state, behind = excluded.behind, turn = excluded.turn, due = excluded.due,
    deadline = excluded.deadline, lease_until = excluded.lease_until, claim = excluded.claim,
    forget_at = excluded.forget_at, record = excluded.record,
    bytes = CASE WHEN excluded.bytes < 0 THEN live.bytes ELSE excluded.bytes END";
const DELETE_LIVE: &str = "DELETE FROM live WHERE seq = ANY($1::bigint[])";
const DELETE_BODIES: &str = "DELETE FROM body WHERE seq = ANY($1::bigint[])";
const DELETE_RESPONSES: &str = "DELETE FROM response WHERE seq = ANY($1::bigint[])";
const PUT_BODIES: &str = "
INSERT INTO body (seq, encoding, payload, trace)
SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::bytea[], $4::bytea[])
ON CONFLICT (seq) DO UPDATE SET encoding = excluded.encoding, payload = excluded.payload, trace = excluded.trace";
const PUT_RESPONSES: &str = "
INSERT INTO response (seq, encoding, payload) SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::bytea[])
ON CONFLICT (seq) DO UPDATE SET encoding = excluded.encoding, payload = excluded.payload";
const PUT_SHOWN: &str = "
INSERT INTO shown (occurrence, seq) SELECT * FROM unnest($1::bytea[], $2::bigint[])
ON CONFLICT (occurrence) DO UPDATE SET seq = excluded.seq";
const DELETE_SHOWN: &str = "DELETE FROM shown WHERE occurrence = ANY($1::bytea[])";
const PUT_ENDED: &str = "
INSERT INTO ended (id, until, record) SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bytea[])
ON CONFLICT (id) DO UPDATE SET until = excluded.until, record = excluded.record";
const DELETE_ENDED: &str = "DELETE FROM ended WHERE id = ANY($1::bytea[])";
const PUT_SEEN: &str = "
INSERT INTO seen (occurrence, until, origin, height, record)
SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::integer[], $4::bigint[], $5::bytea[])
ON CONFLICT (occurrence) DO UPDATE
SET until = excluded.until, origin = excluded.origin, height = excluded.height, record = excluded.record";
const DELETE_SEEN: &str = "DELETE FROM seen WHERE occurrence = ANY($1::bytea[])";
const PUT_PARCELS: &str = "
INSERT INTO parcel (lane, nonce, deliveries, record)
SELECT * FROM unnest($1::integer[], $2::bigint[], $3::bytea[], $4::bytea[])
ON CONFLICT (lane, nonce) DO UPDATE SET deliveries = excluded.deliveries, record = excluded.record";
const DELETE_PARCELS: &str = "
DELETE FROM parcel p USING unnest($1::integer[], $2::bigint[]) s(lane, nonce)
WHERE p.lane = s.lane AND p.nonce = s.nonce";
const PUT_GROUPS: &str = "
INSERT INTO grp (no, key, request, forget_at, timer, record)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bytea[])
ON CONFLICT (no) DO UPDATE
SET request = excluded.request, forget_at = excluded.forget_at, timer = excluded.timer, record = excluded.record";
const SET_TIMERS: &str = "
UPDATE grp g SET timer = t.timer FROM unnest($1::bigint[], $2::bigint[]) t(no, timer) WHERE g.no = t.no";
const DELETE_GROUPS: &str = "DELETE FROM grp WHERE no = ANY($1::bigint[])";
/// A group that opened and went in one tick may leave items that were not looked at.
const DELETE_ITEMS_OF: &str = "DELETE FROM item WHERE grp = ANY($1::bigint[])";
const PUT_ITEMS: &str = "
INSERT INTO item (no, grp, id, late, encoding, payload)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::boolean[], $5::smallint[], $6::bytea[])";
const DELETE_ITEMS: &str = "DELETE FROM item WHERE no = ANY($1::bigint[])";
const APPEND_JOURNAL: &str = "
INSERT INTO journal (position, previous, record) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])";
const TRIM_JOURNAL: &str = "DELETE FROM journal WHERE position >= $1 AND position < $2";
const START_COUNTS: &str = "
INSERT INTO counted (route, state, requests)
SELECT route, state, 0 FROM unnest($1::integer[], $2::smallint[]) c(route, state) ON CONFLICT DO NOTHING";
const COUNT: &str = "
UPDATE counted c SET requests = c.requests + d.change
FROM unnest($1::integer[], $2::smallint[], $3::bigint[]) d(route, state, change)
WHERE c.route = d.route AND c.state = d.state";
const PUT_PACES: &str = "
INSERT INTO pace (route, epoch, record)
SELECT route, $2, record FROM unnest($1::integer[], $3::bytea[]) p(route, record)
ON CONFLICT (route) DO UPDATE SET epoch = excluded.epoch, record = excluded.record";

/// Where the numbers stood when the tick began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    pub(super) newest_epoch: u64,
    pub(super) high: HighWater,
    pub(super) journal_floor: u64,
    pub(super) fixtures: i64,
}

/// Rows of one table, column by column.
#[derive(Default)]
struct LiveRows {
    seq: Vec<i64>,
    id: Vec<Vec<u8>>,
    route: Vec<i32>,
    state: Vec<i16>,
    behind: Vec<bool>,
    key: Vec<Option<String>>,
    turn: Vec<Option<i64>>,
    due: Vec<Option<i64>>,
    deadline: Vec<Option<i64>>,
    lease_until: Vec<Option<i64>>,
    claim: Vec<Option<i64>>,
    forget_at: Vec<Option<i64>>,
    admitted_at: Vec<i64>,
    bytes: Vec<i32>,
    record: Vec<Vec<u8>>,
}

impl LiveRows {
    fn push(&mut self, place: &Place<'_>, listed: Listed, bytes: i32, record: Vec<u8>) {
        let request = place.request;
        self.seq.push(int(request.seq.0));
        self.id.push(request.id.0.to_vec());
        self.route.push(i32::from(request.route.0));
        self.state.push(listed.state);
        self.behind.push(request.behind);
        self.key.push(request.key.as_ref().map(|key| key.to_string()));
        self.turn.push(listed.turn);
        self.due.push(listed.due);
        self.deadline.push(listed.deadline);
        let lease = match &request.state {
            State::Leased(lease) => Some(lease),
            _ => None,
        };
        self.lease_until.push(lease.map(|lease| time(lease.until)));
        self.claim.push(lease.map(|lease| int(lease.claim.0)));
        self.forget_at.push(match &request.state {
            State::Dead(letter) => Some(time(letter.forget_at)),
            _ => None,
        });
        self.admitted_at.push(time(request.admitted_at));
        self.bytes.push(bytes);
        self.record.push(record);
    }

    fn call<'a>(self) -> Call<'a> {
        let params = vec![
            param(self.seq),
            param(self.id),
            param(self.route),
            param(self.state),
            param(self.behind),
            param(self.key),
            param(self.turn),
            param(self.due),
            param(self.deadline),
            param(self.lease_until),
            param(self.claim),
            param(self.forget_at),
            param(self.admitted_at),
            param(self.bytes),
            param(self.record),
        ];
        Call::new(PUT_LIVE, params)
    }
}

/// The statements that write what this machine changed; none, if it changed nothing.
pub(super) fn writes<'a>(
    machine: &Machine,
    fetched: &Fetched,
    tray: &'a Tray,
    before: Before,
) -> Result<Vec<Call<'a>>, PgError> {
    let mut calls = Vec::new();
    write_live(&mut calls, machine, &fetched.live, tray)?;
    write_receipts(&mut calls, tray)?;
    write_parcels(&mut calls, tray)?;
    write_groups(&mut calls, machine, fetched, tray)?;
    write_journal(&mut calls, tray, before)?;
    write_paces(&mut calls, machine, fetched, before)?;
    write_fixtures(&mut calls, tray, before)?;
    if !calls.is_empty() || tray.high.is_some() {
        let high = tray.high.unwrap_or(before.high);
        let floor = tray.journal_floor.max(before.journal_floor);
        let numbers = [high.seq, high.entry, high.receipt, high.item, high.group, floor];
        let mut params: Vec<_> = numbers.into_iter().map(|number| param(int(number))).collect();
        params.push(param(before.fixtures + i64::from(!tray.fixtures.is_empty())));
        calls.push(Call::new(PUT_NUMBERS, params));
    }
    Ok(calls)
}

fn listed(place: &Place<'_>) -> Listed {
    Listed {
        state: place.state as i16,
        turn: place.turn.map(ordered),
        due: place.due.map(When::to_bits),
        deadline: place.deadline.map(When::to_bits),
    }
}

fn write_live<'a>(
    calls: &mut Vec<Call<'a>>,
    machine: &Machine,
    loaded: &BTreeMap<Seq, Loaded>,
    tray: &'a Tray,
) -> Result<(), PgError> {
    let (mut rows, mut here) = (LiveRows::default(), BTreeSet::new());
    let mut counted: BTreeMap<(RouteNo, i16), i64> = BTreeMap::new();
    let (mut shown, mut shown_before) = (BTreeMap::new(), BTreeMap::new());
    for place in machine.places() {
        let (request, listed) = (place.request, listed(&place));
        here.insert(request.seq);
        let record = encode(request)?;
        let was = loaded.get(&request.seq);
        if was.is_some_and(|was| was.listed == listed && was.record == record) {
            continue;
        }
        *counted.entry((request.route, listed.state)).or_default() += 1;
        shown.extend(request.occurrences.as_slice().iter().map(|o| (o.id, request.seq)));
        if let Some(was) = was {
            *counted.entry((was.request.route, was.listed.state)).or_default() -= 1;
            shown_before.extend(was.request.occurrences.as_slice().iter().map(|o| (o.id, request.seq)));
        }
        // Whoever keeps its body keeps its length.
        let body = tray.bodies.get(&request.seq).filter(|_| tray.new_bodies.contains(&request.seq));
        let bytes = body.map_or(-1, |body| i32::try_from(body.payload.bytes.len()).unwrap_or(i32::MAX));
        rows.push(&place, listed, bytes, record);
    }
    let mut gone = Vec::new();
    for (seq, was) in loaded.iter().filter(|(seq, _)| !here.contains(seq)) {
        gone.push(int(seq.0));
        *counted.entry((was.request.route, was.listed.state)).or_default() -= 1;
        shown_before.extend(was.request.occurrences.as_slice().iter().map(|o| (o.id, *seq)));
    }
    counted.retain(|_, change| *change != 0);
    if !counted.is_empty() {
        let routes: Vec<i32> = counted.keys().map(|(route, _)| i32::from(route.0)).collect();
        let states: Vec<i16> = counted.keys().map(|(_, state)| *state).collect();
        let changes: Vec<i64> = counted.into_values().collect();
        calls.push(Call::new(START_COUNTS, vec![param(routes.clone()), param(states.clone())]));
        calls.push(Call::new(COUNT, vec![param(routes), param(states), param(changes)]));
    }
    if !rows.seq.is_empty() {
        calls.push(rows.call());
    }
    write_shown(calls, &shown, &shown_before);
    let new_bodies: Vec<&Seq> = tray.new_bodies.intersection(&here).collect();
    write_bodies(calls, &new_bodies, tray);
    let responses = tray.new_responses.intersection(&here);
    let responses: Vec<_> = responses.filter_map(|seq| Some((int(seq.0), tray.responses.get(seq)?))).collect();
    if !responses.is_empty() {
        let seqs: Vec<i64> = responses.iter().map(|(seq, _)| *seq).collect();
        let (encodings, payloads) = payloads(responses.into_iter().map(|(_, response)| response));
        calls.push(Call::new(PUT_RESPONSES, vec![param(seqs), encodings, payloads]));
    }
    let void: Vec<i64> = tray.void_responses.iter().map(|seq| int(seq.0)).chain(gone.iter().copied()).collect();
    if !void.is_empty() {
        calls.push(Call::new(DELETE_RESPONSES, vec![param(void)]));
    }
    if !gone.is_empty() {
        calls.push(Call::new(DELETE_LIVE, vec![param(gone.clone())]));
        calls.push(Call::new(DELETE_BODIES, vec![param(gone)]));
    }
    Ok(())
}

fn write_shown(calls: &mut Vec<Call<'_>>, shown: &BTreeMap<OccurrenceId, Seq>, before: &BTreeMap<OccurrenceId, Seq>) {
    let gone: Vec<Vec<u8>> = before.keys().filter(|id| !shown.contains_key(id)).map(|id| id.0.to_vec()).collect();
    let new = shown.iter().filter(|(id, seq)| before.get(id) != Some(seq));
    let (ids, seqs): (Vec<Vec<u8>>, Vec<i64>) = new.map(|(id, seq)| (id.0.to_vec(), int(seq.0))).unzip();
    if !gone.is_empty() {
        calls.push(Call::new(DELETE_SHOWN, vec![param(gone)]));
    }
    if !ids.is_empty() {
        calls.push(Call::new(PUT_SHOWN, vec![param(ids), param(seqs)]));
    }
}

fn write_bodies<'a>(calls: &mut Vec<Call<'a>>, seqs: &[&Seq], tray: &'a Tray) {
    let bodies: Vec<_> = seqs.iter().filter_map(|seq| Some((int(seq.0), tray.bodies.get(seq)?))).collect();
    if bodies.is_empty() {
        return;
    }
    let seqs: Vec<i64> = bodies.iter().map(|(seq, _)| *seq).collect();
    let traces: Vec<Option<&[u8]>> = bodies.iter().map(|(_, body)| body.trace.as_deref().map(str::as_bytes)).collect();
    let (encodings, payloads) = payloads(bodies.into_iter().map(|(_, body)| &body.payload));
    calls.push(Call::new(PUT_BODIES, vec![param(seqs), encodings, payloads, param(traces)]));
}

/// Two columns of payloads.
fn payloads<'a>(all: impl Iterator<Item = &'a Payload>) -> (super::wire::Param<'a>, super::wire::Param<'a>) {
    let (encodings, bytes): (Vec<i16>, Vec<&[u8]>) = all.map(|p| (p.encoding as i16, p.bytes.as_ref())).unzip();
    (param(encodings), param(bytes))
}

fn write_receipts(calls: &mut Vec<Call<'_>>, tray: &Tray) -> Result<(), PgError> {
    let (mut ids, mut untils, mut records) = (Vec::new(), Vec::new(), Vec::new());
    let (mut seen, mut seen_untils, mut origins, mut heights, mut seen_records) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (key, cold) in &tray.receipts {
        match key {
            ColdKey::Request(id) => {
                ids.push(id.0.to_vec());
                untils.push(time(cold.until()));
                records.push(encode(cold)?);
            }
            ColdKey::Occurrence(id) => {
                let origin = match cold {
                    ColdReceipt::Seen { origin, .. } => *origin,
                    ColdReceipt::Ended { .. } => None,
                };
                seen.push(id.0.to_vec());
                seen_untils.push(origin.is_none().then(|| time(cold.until())));
                origins.push(origin.map(|(origin, _)| i32::from(origin.0)));
                heights.push(origin.map(|(_, height)| int(height.0)));
                seen_records.push(encode(cold)?);
            }
        }
    }
    if !ids.is_empty() {
        calls.push(Call::new(PUT_ENDED, vec![param(ids), param(untils), param(records)]));
    }
    if !seen.is_empty() {
        let params = vec![param(seen), param(seen_untils), param(origins), param(heights), param(seen_records)];
        calls.push(Call::new(PUT_SEEN, params));
    }
    let (mut ids, mut occurrences) = (Vec::new(), Vec::new());
    for key in &tray.forgotten {
        match key {
            ColdKey::Request(id) => ids.push(id.0.to_vec()),
            ColdKey::Occurrence(id) => occurrences.push(id.0.to_vec()),
        }
    }
    if !ids.is_empty() {
        calls.push(Call::new(DELETE_ENDED, vec![param(ids)]));
    }
    if !occurrences.is_empty() {
        calls.push(Call::new(DELETE_SEEN, vec![param(occurrences)]));
    }
    Ok(())
}

fn write_parcels(calls: &mut Vec<Call<'_>>, tray: &Tray) -> Result<(), PgError> {
    let (mut lanes, mut nonces, mut deliveries, mut records) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut gone_lanes, mut gone_nonces) = (Vec::new(), Vec::new());
    for ((lane, nonce), parcel) in &tray.parcels {
        match parcel {
            Some(parcel) => {
                lanes.push(i32::from(lane.0));
                nonces.push(int(nonce.0));
                deliveries.push(parcel.deliveries.iter().flat_map(|id| id.0).collect::<Vec<u8>>());
                records.push(encode(parcel)?);
            }
            None => {
                gone_lanes.push(i32::from(lane.0));
                gone_nonces.push(int(nonce.0));
            }
        }
    }
    if !lanes.is_empty() {
        calls.push(Call::new(PUT_PARCELS, vec![param(lanes), param(nonces), param(deliveries), param(records)]));
    }
    if !gone_lanes.is_empty() {
        calls.push(Call::new(DELETE_PARCELS, vec![param(gone_lanes), param(gone_nonces)]));
    }
    Ok(())
}

fn write_groups<'a>(
    calls: &mut Vec<Call<'a>>,
    machine: &Machine,
    fetched: &Fetched,
    tray: &'a Tray,
) -> Result<(), PgError> {
    let timers: BTreeMap<u64, When> = machine.group_timers().collect();
    let timer = |no: &u64| timers.get(no).filter(|at| **at != When::NEVER).map(|at| at.to_bits());
    let (mut nos, mut keys, mut requests, mut forgets, mut whens, mut records) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut gone = Vec::new();
    for (no, row) in &tray.groups {
        match row {
            Some(row) => {
                nos.push(int(*no));
                keys.push(row.key.as_str());
                requests.push(request_of(row));
                forgets.push(row.forget_at.map(time));
                whens.push(timer(no));
                records.push(encode(row)?);
            }
            None => gone.push(int(*no)),
        }
    }
    if !nos.is_empty() {
        let params = vec![param(nos), param(keys), param(requests), param(forgets), param(whens), param(records)];
        calls.push(Call::new(PUT_GROUPS, params));
    }
    // One that found no room is looked at again later.
    let moved = fetched.groups.iter().filter(|(no, (_, was))| !tray.groups.contains_key(no) && timer(no) != *was);
    let (nos, whens): (Vec<i64>, Vec<Option<i64>>) = moved.map(|(no, _)| (int(*no), timer(no))).unzip();
    if !nos.is_empty() {
        calls.push(Call::new(SET_TIMERS, vec![param(nos), param(whens)]));
    }
    write_items(calls, tray);
    if !gone.is_empty() {
        calls.push(Call::new(DELETE_GROUPS, vec![param(gone.clone())]));
        calls.push(Call::new(DELETE_ITEMS_OF, vec![param(gone)]));
    }
    Ok(())
}

fn request_of(row: &GroupRow) -> Option<Vec<u8>> {
    match row.state {
        GroupState::Sealed { request, .. } => Some(request.0.to_vec()),
        GroupState::Open => None,
    }
}

fn write_items<'a>(calls: &mut Vec<Call<'a>>, tray: &'a Tray) {
    let new: Vec<_> = tray.items.iter().filter_map(|(no, item)| Some((no, item.as_ref()?))).collect();
    if !new.is_empty() {
        let nos: Vec<i64> = new.iter().map(|(no, _)| int(**no)).collect();
        let groups: Vec<i64> = new.iter().map(|(_, (row, _))| int(row.group)).collect();
        let ids: Vec<&[u8]> = new.iter().map(|(_, (row, _))| &row.id.0[..]).collect();
        let late: Vec<bool> = new.iter().map(|(_, (row, _))| row.late).collect();
        let (encodings, payloads) = payloads(new.iter().map(|(_, (_, payload))| payload));
        let params = vec![param(nos), param(groups), param(ids), param(late), encodings, payloads];
        calls.push(Call::new(PUT_ITEMS, params));
    }
    let gone: Vec<i64> = tray.items.iter().filter(|(_, item)| item.is_none()).map(|(no, _)| int(*no)).collect();
    if !gone.is_empty() {
        calls.push(Call::new(DELETE_ITEMS, vec![param(gone)]));
    }
}

fn write_journal(calls: &mut Vec<Call<'_>>, tray: &Tray, before: Before) -> Result<(), PgError> {
    if !tray.entries.is_empty() {
        let positions: Vec<i64> = tray.entries.iter().map(|entry| int(entry.position)).collect();
        let previous: Vec<i64> = tray.entries.iter().map(|entry| int(entry.previous)).collect();
        let records = tray.entries.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
        calls.push(Call::new(APPEND_JOURNAL, vec![param(positions), param(previous), param(records)]));
    }
    if tray.journal_floor > before.journal_floor {
        let range = vec![param(int(before.journal_floor)), param(int(tray.journal_floor))];
        calls.push(Call::new(TRIM_JOURNAL, range));
    }
    Ok(())
}

fn write_paces(calls: &mut Vec<Call<'_>>, machine: &Machine, fetched: &Fetched, before: Before) -> Result<(), PgError> {
    let known = |no: RouteNo, pace: &Pace| {
        fetched.paces.get(&no).is_some_and(|(epoch, was)| *epoch == before.newest_epoch && was == pace)
    };
    let changed: Vec<_> = machine.paces().filter(|(no, pace)| !known(*no, pace)).collect();
    if !changed.is_empty() {
        let routes: Vec<i32> = changed.iter().map(|(no, _)| i32::from(no.0)).collect();
        let records = changed.iter().map(|(_, pace)| encode(pace)).collect::<Result<Vec<_>, _>>()?;
        calls.push(Call::new(PUT_PACES, vec![param(routes), param(int(before.newest_epoch)), param(records)]));
    }
    Ok(())
}

fn write_fixtures(calls: &mut Vec<Call<'_>>, tray: &Tray, before: Before) -> Result<(), PgError> {
    if tray.fixtures.is_empty() {
        return Ok(());
    }
    let kinds: Vec<i16> = tray.fixtures.keys().map(|(kind, _)| i16::from(*kind)).collect();
    let names: Vec<String> = tray.fixtures.keys().map(|(_, name)| name.clone()).collect();
    let records = tray.fixtures.values().map(encode).collect::<Result<Vec<_>, _>>()?;
    let params = vec![param(kinds), param(names), param(records), param(before.fixtures + 1)];
    calls.push(Call::new(PUT_FIXTURES, params));
    Ok(())
}
