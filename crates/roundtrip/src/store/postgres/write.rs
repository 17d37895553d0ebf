//! Changes as statements: one for each kind of row, all of them and the commit in one flight.

use tokio_postgres::types::ToSql;

use super::wire::{Call, Param, int, ordered, param, time};
use crate::inbox::{RouteNo, When};
use crate::store::disk::{ColdKey, ColdReceipt, Fixture, GroupRow};
use crate::store::loan::{Changes, Damaged, Put, encode, request_of};
use crate::store::machine::Pace;
use crate::words::{OccurrenceId, Payload, Seq};

const PUT_NUMBERS: &str = "
UPDATE numbers SET seq = $1, entry = $2, receipt = $3, item = $4, grp = $5, journal_floor = $6, fixtures = $7";
const PUT_FIXTURES: &str = "
INSERT INTO fixture (kind, name, version, record)
SELECT kind, name, $4, record FROM unnest($1::smallint[], $2::text[], $3::bytea[]) f(kind, name, record)
ON CONFLICT (kind, name) DO UPDATE SET version = excluded.version, record = excluded.record";
const INSERT_LIVE: &str = "
INSERT INTO live (seq, id, route, behind, key, admitted_at, state, turn, due, deadline, lease_until, claim, forget_at,
                  bytes, record)
SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::integer[], $4::boolean[], $5::text[], $6::bigint[], $7::smallint[],
                     $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[],
                     $14::integer[], $15::bytea[])";
/// Whoever keeps its body keeps its length.
const UPDATE_LIVE: &str = "
UPDATE live l
SET behind = n.behind, state = n.state, turn = n.turn, due = n.due, deadline = n.deadline, lease_until = n.lease_until,
    claim = n.claim, forget_at = n.forget_at, bytes = coalesce(n.bytes, l.bytes), record = n.record
FROM unnest($1::bigint[], $2::boolean[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
            $8::bigint[], $9::bigint[], $10::integer[], $11::bytea[])
    n(seq, behind, state, turn, due, deadline, lease_until, claim, forget_at, bytes, record)
WHERE l.seq = n.seq";
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

/// The statements that write these changes; none, if there are none.
pub(super) fn writes<'a>(changes: &'a Changes<'_>, newest_epoch: u64) -> Result<Vec<Call<'a>>, Damaged> {
    let mut calls = Vec::new();
    write_live(&mut calls, changes);
    write_receipts(&mut calls, changes)?;
    write_parcels(&mut calls, changes)?;
    write_groups(&mut calls, changes)?;
    write_items(&mut calls, changes);
    write_journal(&mut calls, changes)?;
    write_paces(&mut calls, &changes.paces, newest_epoch)?;
    if let Some(numbers) = &changes.numbers {
        let high = numbers.high;
        if let Some(fixtures) = changes.fixtures {
            write_fixtures(&mut calls, fixtures.iter(), numbers.fixtures)?;
        }
        let numbers =
            [high.seq, high.entry, high.receipt, high.item, high.group, numbers.journal_floor, numbers.fixtures];
        calls.push(Call::new(PUT_NUMBERS, numbers.into_iter().map(|number| param(int(number))).collect()));
    }
    Ok(calls)
}

fn write_live<'a>(calls: &mut Vec<Call<'a>>, changes: &'a Changes<'_>) {
    if !changes.counts.is_empty() {
        let routes: Vec<i32> = changes.counts.keys().map(|(route, _)| i32::from(route.0)).collect();
        let states: Vec<i16> = changes.counts.keys().map(|(_, state)| *state as i16).collect();
        let deltas: Vec<i64> = changes.counts.values().copied().collect();
        calls.push(Call::new(START_COUNTS, vec![param(routes.clone()), param(states.clone())]));
        calls.push(Call::new(COUNT, vec![param(routes), param(states), param(deltas)]));
    }
    let (new, changed): (Vec<_>, Vec<_>) = changes.live.iter().partition(|put| put.was.is_none());
    if !new.is_empty() {
        let fixed = fixed_columns(&new);
        calls.push(Call::new(INSERT_LIVE, fixed.into_iter().chain(live_columns(&new)).collect()));
    }
    if !changed.is_empty() {
        let named =
            [column(changed.iter(), |put| int(put.request.seq.0)), column(changed.iter(), |put| put.request.behind)];
        calls.push(Call::new(UPDATE_LIVE, named.into_iter().chain(live_columns(&changed)).collect()));
    }
    write_shown(calls, &changes.shown, &changes.hidden);
    if !changes.bodies.is_empty() {
        let traces: Vec<Option<&[u8]>> =
            changes.bodies.iter().map(|(_, body)| body.trace.as_deref().map(str::as_bytes)).collect();
        let (encodings, payloads) = payloads(changes.bodies.iter().map(|(_, body)| &body.payload));
        let seqs = seqs(changes.bodies.iter().map(|(seq, _)| *seq));
        calls.push(Call::new(PUT_BODIES, vec![seqs, encodings, payloads, param(traces)]));
    }
    if !changes.responses.is_empty() {
        let (encodings, payloads) = payloads(changes.responses.iter().map(|(_, response)| *response));
        let seqs = seqs(changes.responses.iter().map(|(seq, _)| *seq));
        calls.push(Call::new(PUT_RESPONSES, vec![seqs, encodings, payloads]));
    }
    let gone = || changes.gone.iter().map(|was| was.request.seq);
    if !changes.void_responses.is_empty() || !changes.gone.is_empty() {
        let void = changes.void_responses.iter().copied().chain(gone());
        calls.push(Call::new(DELETE_RESPONSES, vec![seqs(void)]));
    }
    if !changes.gone.is_empty() {
        calls.push(Call::new(DELETE_LIVE, vec![seqs(gone())]));
        calls.push(Call::new(DELETE_BODIES, vec![seqs(gone())]));
    }
}

/// What is written once of rows of `live`, and whether they are behind.
fn fixed_columns<'a>(rows: &[&'a Put<'_>]) -> Vec<Param<'a>> {
    vec![
        column(rows.iter().copied(), |put| int(put.request.seq.0)),
        column(rows.iter().copied(), |put| &put.request.id.0[..]),
        column(rows.iter().copied(), |put| i32::from(put.request.route.0)),
        column(rows.iter().copied(), |put| put.request.behind),
        column(rows.iter().copied(), |put| put.request.key.as_ref().map(|key| key.as_str())),
        column(rows.iter().copied(), |put| time(put.request.admitted_at)),
    ]
}

/// The rest, column by column.
fn live_columns<'a>(rows: &[&'a Put<'_>]) -> Vec<Param<'a>> {
    vec![
        column(rows.iter().copied(), |put| put.listed.state as i16),
        column(rows.iter().copied(), |put| put.listed.turn.map(ordered)),
        column(rows.iter().copied(), |put| put.listed.due.map(When::to_bits)),
        column(rows.iter().copied(), |put| put.listed.deadline.map(When::to_bits)),
        column(rows.iter().copied(), |put| put.lease().map(|lease| time(lease.until))),
        column(rows.iter().copied(), |put| put.lease().map(|lease| int(lease.claim.0))),
        column(rows.iter().copied(), |put| put.forget_at().map(time)),
        column(rows.iter().copied(), |put| put.bytes.map(|bytes| i32::try_from(bytes).unwrap_or(i32::MAX))),
        column(rows.iter().copied(), |put| &put.record[..]),
    ]
}

/// One column of rows.
fn column<'a, R, T>(rows: impl IntoIterator<Item = R>, of: impl Fn(R) -> T) -> Param<'a>
where
    T: ToSql + Sync + Send + 'a,
{
    param(rows.into_iter().map(of).collect::<Vec<T>>())
}

fn seqs(all: impl Iterator<Item = Seq>) -> Param<'static> {
    param(all.map(|seq| int(seq.0)).collect::<Vec<i64>>())
}

fn write_shown<'a>(calls: &mut Vec<Call<'a>>, shown: &'a [(OccurrenceId, Seq)], hidden: &'a [OccurrenceId]) {
    if !hidden.is_empty() {
        calls.push(Call::new(DELETE_SHOWN, vec![column(hidden, |id| &id.0[..])]));
    }
    if !shown.is_empty() {
        let ids = column(shown, |(id, _)| &id.0[..]);
        calls.push(Call::new(PUT_SHOWN, vec![ids, seqs(shown.iter().map(|(_, seq)| *seq))]));
    }
}

/// Two columns of payloads.
fn payloads<'a>(all: impl Iterator<Item = &'a Payload>) -> (Param<'a>, Param<'a>) {
    let (encodings, bytes): (Vec<i16>, Vec<&[u8]>) = all.map(|p| (p.encoding as i16, p.bytes.as_ref())).unzip();
    (param(encodings), param(bytes))
}

fn write_receipts<'a>(calls: &mut Vec<Call<'a>>, changes: &'a Changes<'_>) -> Result<(), Damaged> {
    let (mut ids, mut untils, mut records) = (Vec::new(), Vec::new(), Vec::new());
    let (mut seen, mut seen_untils, mut origins, mut heights, mut seen_records) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (key, cold) in &changes.receipts {
        match key {
            ColdKey::Request(id) => {
                ids.push(&id.0[..]);
                untils.push(time(cold.until()));
                records.push(encode(cold)?);
            }
            ColdKey::Occurrence(id) => {
                let origin = match cold {
                    ColdReceipt::Seen { origin, .. } => *origin,
                    ColdReceipt::Ended { .. } => None,
                };
                seen.push(&id.0[..]);
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
    for key in &changes.forgotten {
        match key {
            ColdKey::Request(id) => ids.push(&id.0[..]),
            ColdKey::Occurrence(id) => occurrences.push(&id.0[..]),
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

fn write_parcels<'a>(calls: &mut Vec<Call<'a>>, changes: &'a Changes<'_>) -> Result<(), Damaged> {
    if !changes.parcels.is_empty() {
        let lanes = column(&changes.parcels, |(lane, _, _)| i32::from(lane.0));
        let nonces = column(&changes.parcels, |(_, nonce, _)| int(nonce.0));
        let deliveries =
            column(&changes.parcels, |(_, _, p)| p.deliveries.iter().flat_map(|id| id.0).collect::<Vec<u8>>());
        let records = changes.parcels.iter().map(|(_, _, parcel)| encode(parcel)).collect::<Result<Vec<_>, _>>()?;
        calls.push(Call::new(PUT_PARCELS, vec![lanes, nonces, deliveries, param(records)]));
    }
    if !changes.gone_parcels.is_empty() {
        let lanes = column(&changes.gone_parcels, |(lane, _)| i32::from(lane.0));
        let nonces = column(&changes.gone_parcels, |(_, nonce)| int(nonce.0));
        calls.push(Call::new(DELETE_PARCELS, vec![lanes, nonces]));
    }
    Ok(())
}

/// A moment by which a group is to be looked at, as its column says.
fn timer(at: When) -> Option<i64> {
    (at != When::NEVER).then(|| at.to_bits())
}

fn write_groups<'a>(calls: &mut Vec<Call<'a>>, changes: &'a Changes<'_>) -> Result<(), Damaged> {
    let groups = &changes.groups;
    if !groups.is_empty() {
        let record = |(_, row, _): &(u64, &GroupRow, When)| encode(row);
        let params = vec![
            column(groups, |(no, _, _)| int(*no)),
            column(groups, |(_, row, _)| row.key.as_str()),
            column(groups, |(_, row, _)| request_of(row).map(|id| id.0.to_vec())),
            column(groups, |(_, row, _)| row.forget_at.map(time)),
            column(groups, |(_, _, at)| timer(*at)),
            param(groups.iter().map(record).collect::<Result<Vec<_>, _>>()?),
        ];
        calls.push(Call::new(PUT_GROUPS, params));
    }
    if !changes.timers.is_empty() {
        let nos = column(&changes.timers, |(no, _)| int(*no));
        calls.push(Call::new(SET_TIMERS, vec![nos, column(&changes.timers, |(_, at)| timer(*at))]));
    }
    Ok(())
}

fn write_items<'a>(calls: &mut Vec<Call<'a>>, changes: &'a Changes<'_>) {
    let new = &changes.items;
    if !new.is_empty() {
        let (encodings, payloads) = payloads(new.iter().map(|(_, _, payload)| *payload));
        let params = vec![
            column(new, |(no, _, _)| int(*no)),
            column(new, |(_, row, _)| int(row.group)),
            column(new, |(_, row, _)| &row.id.0[..]),
            column(new, |(_, row, _)| row.late),
            encodings,
            payloads,
        ];
        calls.push(Call::new(PUT_ITEMS, params));
    }
    if !changes.gone_items.is_empty() {
        calls.push(Call::new(DELETE_ITEMS, vec![column(&changes.gone_items, |no| int(*no))]));
    }
    let gone = &changes.gone_groups;
    if !gone.is_empty() {
        calls.push(Call::new(DELETE_GROUPS, vec![column(gone, |no| int(*no))]));
        calls.push(Call::new(DELETE_ITEMS_OF, vec![column(gone, |no| int(*no))]));
    }
}

fn write_journal<'a>(calls: &mut Vec<Call<'a>>, changes: &'a Changes<'_>) -> Result<(), Damaged> {
    let entries = changes.entries;
    if !entries.is_empty() {
        let positions = column(entries, |entry| int(entry.position));
        let previous = column(entries, |entry| int(entry.previous));
        let records = entries.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
        calls.push(Call::new(APPEND_JOURNAL, vec![positions, previous, param(records)]));
    }
    if !changes.trimmed.is_empty() {
        let range = vec![param(int(changes.trimmed.start)), param(int(changes.trimmed.end))];
        calls.push(Call::new(TRIM_JOURNAL, range));
    }
    Ok(())
}

fn write_paces<'a>(calls: &mut Vec<Call<'a>>, paces: &'a [(RouteNo, &Pace)], epoch: u64) -> Result<(), Damaged> {
    if !paces.is_empty() {
        let records = paces.iter().map(|(_, pace)| encode(pace)).collect::<Result<Vec<_>, _>>()?;
        let routes = column(paces, |(no, _)| i32::from(no.0));
        calls.push(Call::new(PUT_PACES, vec![routes, param(int(epoch)), param(records)]));
    }
    Ok(())
}

fn write_fixtures<'a>(
    calls: &mut Vec<Call<'a>>,
    rows: impl Iterator<Item = (&'a (u8, String), &'a Fixture)>,
    version: u64,
) -> Result<(), Damaged> {
    let (mut kinds, mut names, mut records) = (Vec::new(), Vec::new(), Vec::new());
    for ((kind, name), fixture) in rows {
        kinds.push(i16::from(*kind));
        names.push(name.as_str());
        records.push(encode(fixture)?);
    }
    calls.push(Call::new(PUT_FIXTURES, vec![param(kinds), param(names), param(records), param(int(version))]));
    Ok(())
}
