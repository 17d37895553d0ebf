//! Changes as statements: one for each kind of row, all of them and the commit in one flight.

use std::collections::BTreeMap;

use tokio_postgres::types::ToSql;

use super::copy::Rows;
use super::wire::{Call, Param, int, ordered, param, time};
use crate::inbox::{LeaseMark, Request, RouteNo, StateKind, When};
use crate::store::disk::{Body, ColdKey, ColdReceipt, Fixture, GroupRow};
use crate::store::journal::KeptEntry;
use crate::store::loan::{Assumed, Changes, Damaged, Loaded, NewNumbers, Put, PutReceipt, encode, request_of};
use crate::store::machine::Pace;
use crate::words::{OccurrenceId, Payload, Seq, UnixMs};

const PUT_NUMBERS: &str = "
WITH counts AS (
    UPDATE counted c SET requests = c.requests + d.change
    FROM unnest($8::integer[], $9::smallint[], $10::bigint[]) d(route, state, change)
    WHERE c.route = d.route AND c.state = d.state)
UPDATE numbers SET tick = tick + 1, seq = $1, entry = $2, receipt = $3, item = $4, grp = $5, journal_floor = $6,
                   fixtures = $7, mark = $11";
/// The same, if the last tick was this one and left this mark, the time is about what it was taken to be, and none
/// of what was taken to be absent is there. If it is otherwise, no tick is a number, and the
/// commit fails. The row of `numbers` is locked before those of `counted`, as everywhere.
const PUT_NUMBERS_IF: &str = "
WITH counts AS (
    UPDATE counted c SET requests = c.requests + d.change
    FROM unnest($8::integer[], $9::smallint[], $10::bigint[]) d(route, state, change)
    WHERE c.route = d.route AND c.state = d.state)
UPDATE numbers SET seq = $1, entry = $2, receipt = $3, item = $4, grp = $5, journal_floor = $6, fixtures = $7,
    mark = $11, tick = CASE WHEN tick = $12 AND mark = $13
        AND coalesce(abs((extract(epoch FROM clock_timestamp()) * 1000)::bigint - $14) <= $15, true)
        AND NOT EXISTS (SELECT FROM unnest($16::bytea[]) n(id) JOIN ended USING (id))
        AND NOT EXISTS (SELECT FROM unnest($17::bytea[]) n(occurrence) JOIN seen USING (occurrence))
        AND NOT EXISTS (SELECT FROM unnest($18::bytea[]) n(id) JOIN live USING (id))
        AND NOT EXISTS (SELECT FROM unnest($19::bytea[]) n(occurrence) JOIN live USING (occurrence))
        AND NOT EXISTS (SELECT FROM unnest($19::bytea[]) n(occurrence) JOIN shown USING (occurrence))
        THEN tick + 1 END
RETURNING (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
const PUT_FIXTURES: &str = "
WITH counts AS (
    INSERT INTO counted (route, state, requests) SELECT route, state, 0 FROM unnest($5::integer[]) route,
        generate_series(0, 8) state ON CONFLICT DO NOTHING)
INSERT INTO fixture (kind, name, version, record, no)
SELECT kind, name, $4, record, no
FROM unnest($1::smallint[], $2::text[], $3::bytea[], $6::integer[]) f(kind, name, record, no)
ON CONFLICT (kind, name) DO UPDATE SET version = excluded.version, record = excluded.record";
const INSERT_LIVE: &str = "
INSERT INTO live (seq, id, route, key, admitted_at, encoding, payload, trace, occurrence, behind, state, turn, due,
                  deadline, forget_at, record)
SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::integer[], $4::text[], $5::bigint[], $6::smallint[], $7::bytea[],
                     $8::bytea[], $9::bytea[], $10::boolean[], $11::smallint[], $12::bigint[], $13::bigint[],
                     $14::bigint[], $15::bigint[], $16::bytea[])";
const COPY_LIVE: &str = "
COPY live (seq, id, route, key, admitted_at, encoding, payload, trace, occurrence, behind, state, turn, due, deadline,
           forget_at, record) FROM STDIN (FORMAT binary)";
const UPDATE_LIVE: &str = "
UPDATE live l
SET occurrence = n.occurrence, behind = n.behind, state = n.state, turn = n.turn, due = n.due, deadline = n.deadline,
    forget_at = n.forget_at, record = n.record
FROM unnest($1::bigint[], $2::bytea[], $3::boolean[], $4::smallint[], $5::bigint[], $6::bigint[], $7::bigint[],
            $8::bigint[], $9::bytea[])
    n(seq, occurrence, behind, state, turn, due, deadline, forget_at, record)
WHERE l.seq = n.seq";
const PUT_QUEUED: &str = "
INSERT INTO queued (route, turn, seq) SELECT * FROM unnest($1::integer[], $2::bigint[], $3::bigint[])";
const DELETE_QUEUED: &str = "
DELETE FROM queued q USING unnest($1::integer[], $2::bigint[], $3::bigint[]) n(route, turn, seq)
WHERE q.route = n.route AND q.turn = n.turn AND q.seq = n.seq";
const INSERT_HELD: &str = "
INSERT INTO held (seq, claim, lease_until, record, route, key)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::integer[], $6::text[])";
const UPDATE_HELD: &str = "
UPDATE held h SET claim = n.claim, lease_until = n.lease_until, record = n.record
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[]) n(seq, claim, lease_until, record)
WHERE h.seq = n.seq";
const DELETE_HELD: &str = "DELETE FROM held WHERE seq = ANY($1::bigint[])";
const REPLACE_BODIES: &str = "
UPDATE live l SET encoding = n.encoding, payload = n.payload, trace = n.trace
FROM unnest($1::bigint[], $2::smallint[], $3::bytea[], $4::bytea[]) n(seq, encoding, payload, trace)
WHERE l.seq = n.seq";
const DELETE_LIVE: &str = "DELETE FROM live WHERE seq = ANY($1::bigint[])";
const DELETE_RESPONSES: &str = "DELETE FROM response WHERE seq = ANY($1::bigint[])";
const PUT_RESPONSES: &str = "
INSERT INTO response (seq, encoding, payload) SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::bytea[])
ON CONFLICT (seq) DO UPDATE SET encoding = excluded.encoding, payload = excluded.payload";
const PUT_SHOWN: &str = "
INSERT INTO shown (occurrence, seq) SELECT * FROM unnest($1::bytea[], $2::bigint[])
ON CONFLICT (occurrence) DO UPDATE SET seq = excluded.seq";
const DELETE_SHOWN: &str = "DELETE FROM shown WHERE occurrence = ANY($1::bytea[])";
const PUT_ENDED: &str = "
INSERT INTO ended (id, until, record) SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bytea[])";
const COPY_ENDED: &str = "COPY ended (id, until, record) FROM STDIN (FORMAT binary)";
const DELETE_ENDED: &str = "DELETE FROM ended e USING unnest($1::bytea[]) n(id) WHERE e.id = n.id";
const PUT_SEEN: &str = "
INSERT INTO seen (occurrence, until, origin, height, record)
SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::integer[], $4::bigint[], $5::bytea[])";
const COPY_SEEN: &str = "COPY seen (occurrence, until, origin, height, record) FROM STDIN (FORMAT binary)";
const DELETE_SEEN: &str =
    "DELETE FROM seen s USING unnest($1::bytea[]) n(occurrence) WHERE s.occurrence = n.occurrence";
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
INSERT INTO journal (first, last, previous, entries)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[])";
/// What begins before the bound, and of that what ends before it: no index knows of ends.
const TRIM_JOURNAL: &str = "DELETE FROM journal WHERE first >= $1 AND first < $2 AND last < $2";
const PUT_PACES: &str = "
INSERT INTO pace (route, epoch, record)
SELECT route, $2, record FROM unnest($1::integer[], $3::bytea[]) p(route, record)
ON CONFLICT (route) DO UPDATE SET epoch = excluded.epoch, record = excluded.record";

/// So many new rows are copied. For fewer it does not pay that the server first asks for them.
const COPY_MIN: usize = 64;
/// About how many bytes a row takes beside its payload.
const ROW_BYTES: usize = 256;

/// How many entries a row of the journal holds: few enough for a page to hold some rows.
const JOURNAL_ROW_MAX: usize = 24;

/// How far the time may be from what a tick took it to be: a process that was stopped for longer
/// must not write what it had worked out before.
pub(super) const LATE_MAX_MS: i64 = 5000;

/// A tick that wrote something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tick {
    pub(super) number: i64,
    /// What no other tick leaves: of two that were meant to be the same in number, this tells which it was.
    pub(super) mark: i64,
}

impl Tick {
    /// The one after this.
    pub(super) fn next(self) -> Tick {
        Tick { number: self.number + 1, mark: fastrand::i64(..) }
    }
}

/// What a tick that looked at nothing takes to be so.
pub(super) struct Expected {
    /// The last tick.
    pub(super) tick: Tick,
    /// The server's time, if that is the time.
    pub(super) now: Option<UnixMs>,
    pub(super) assumed: Assumed,
}

/// The statements that write these changes, with the mark of their tick; none, if there are none.
pub(super) fn writes<'a>(changes: &'a Changes<'_>, newest_epoch: u64, mark: i64) -> Result<Vec<Call<'a>>, Damaged> {
    let mut calls = write_rows(changes, newest_epoch)?;
    if let Some(numbers) = &changes.numbers {
        calls.push(Call::new(PUT_NUMBERS, number_columns(numbers, changes, mark)));
    }
    Ok(calls)
}

/// The statements that write these changes if all is as expected; the first brings the time.
pub(super) fn writes_if<'a>(
    expected: &'a Expected,
    changes: &'a Changes<'_>,
    newest_epoch: u64,
    mark: i64,
) -> Result<Vec<Call<'a>>, Damaged> {
    let Some(numbers) = &changes.numbers else { return Ok(Vec::new()) };
    let Assumed { ids, occurrences, has_all_live } = &expected.assumed;
    let mut params = number_columns(numbers, changes, mark);
    params.extend([
        param(expected.tick.number),
        param(expected.tick.mark),
        param(expected.now.map(time)),
        param(LATE_MAX_MS),
        column(ids, |id| &id.0[..]),
        column(occurrences, |occurrence| &occurrence.0[..]),
        column(ids.iter().filter(|_| !has_all_live), |id| &id.0[..]),
        column(occurrences.iter().filter(|_| !has_all_live), |occurrence| &occurrence.0[..]),
    ]);
    let mut calls = vec![Call::new(PUT_NUMBERS_IF, params)];
    calls.extend(write_rows(changes, newest_epoch)?);
    Ok(calls)
}

fn number_columns<'a>(numbers: &NewNumbers, changes: &'a Changes<'_>, mark: i64) -> Vec<Param<'a>> {
    let high = numbers.high;
    let numbers = [high.seq, high.entry, high.receipt, high.item, high.group, numbers.journal_floor, numbers.fixtures];
    let counts = [
        column(changes.counts.keys(), |(route, _)| i32::from(route.0)),
        column(changes.counts.keys(), |(_, state)| *state as i16),
        column(changes.counts.values(), |change| *change),
    ];
    numbers.into_iter().map(|number| param(int(number))).chain(counts).chain([param(mark)]).collect()
}

/// All but the numbers.
fn write_rows<'a>(changes: &'a Changes<'_>, newest_epoch: u64) -> Result<Vec<Call<'a>>, Damaged> {
    let mut calls = Vec::new();
    write_live(&mut calls, changes);
    write_receipts(&mut calls, changes)?;
    write_parcels(&mut calls, changes)?;
    write_groups(&mut calls, changes)?;
    write_items(&mut calls, changes);
    write_journal(&mut calls, changes)?;
    write_paces(&mut calls, &changes.paces, newest_epoch)?;
    if let (Some(numbers), Some(fixtures)) = (&changes.numbers, changes.fixtures) {
        write_fixtures(&mut calls, fixtures.iter(), numbers.fixtures)?;
    }
    Ok(calls)
}

fn write_live<'a>(calls: &mut Vec<Call<'a>>, changes: &'a Changes<'_>) {
    let new: Vec<&Put<'_>> = changes.live.iter().filter(|put| put.was.is_none()).collect();
    if new.len() >= COPY_MIN {
        calls.push(Call::copy(COPY_LIVE, live_rows(&new)));
    } else if !new.is_empty() {
        let fixed = fixed_columns(&new);
        calls.push(Call::new(INSERT_LIVE, fixed.into_iter().chain(live_columns(&new)).collect()));
    }
    let changed: Vec<&Put<'_>> =
        changes.live.iter().filter(|put| put.was.is_some_and(|was| changes_row(put, was))).collect();
    if !changed.is_empty() {
        let seqs = seqs(changed.iter().map(|put| put.request.seq));
        calls.push(Call::new(UPDATE_LIVE, [seqs].into_iter().chain(live_columns(&changed)).collect()));
    }
    let replaced = changes.live.iter().filter(|put| put.was.is_some());
    let replaced: Vec<(Seq, &Body)> = replaced.filter_map(|put| Some((put.request.seq, put.body?))).collect();
    if !replaced.is_empty() {
        let columns = body_columns(replaced.iter().map(|(_, body)| Some(*body)));
        let seqs = seqs(replaced.iter().map(|(seq, _)| *seq));
        calls.push(Call::new(REPLACE_BODIES, [seqs].into_iter().chain(columns).collect()));
    }
    write_queued(calls, changes);
    write_held(calls, changes);
    write_shown(calls, changes);
    if !changes.responses.is_empty() {
        let (encodings, payloads) = payloads(changes.responses.iter().map(|(_, response)| *response));
        let seqs = seqs(changes.responses.iter().map(|(seq, _)| *seq));
        calls.push(Call::new(PUT_RESPONSES, vec![seqs, encodings, payloads]));
    }
    let answered = changes.gone.iter().filter(|was| may_be_answered(was.listed.state)).map(|was| was.request.seq);
    let void: Vec<Seq> = changes.void_responses.iter().copied().chain(answered).collect();
    if !void.is_empty() {
        calls.push(Call::new(DELETE_RESPONSES, vec![seqs(void.into_iter())]));
    }
    if !changes.gone.is_empty() {
        calls.push(Call::new(DELETE_LIVE, vec![seqs(changes.gone.iter().map(|was| was.request.seq))]));
    }
}

/// Whether more changed of a request than that it was handed out, or held on to.
fn changes_row(put: &Put<'_>, was: &Loaded) -> bool {
    let was_queued = matches!(was.listed.state, StateKind::Queued | StateKind::Leased);
    let same = first_occurrence(put.request) == first_occurrence(&was.request)
        && put.listed.deadline == was.listed.deadline
        && put.request.behind == was.request.behind;
    put.lease().is_none() || !was_queued || !same
}

fn first_occurrence(request: &Request) -> Option<&[u8]> {
    request.occurrences.as_slice().first().map(|first| &first.id.0[..])
}

/// Who may be handed out now, and may no more.
fn write_queued(calls: &mut Vec<Call<'_>>, changes: &Changes<'_>) {
    let place = |request: &Request, turn: u64| (i32::from(request.route.0), ordered(turn), int(request.seq.0));
    let mut queued = Vec::new();
    let mut gone: Vec<_> = changes.gone.iter().filter_map(|was| Some(place(&was.request, was.listed.turn?))).collect();
    for put in &changes.live {
        let (before, after) = (put.was.and_then(|was| was.listed.turn), put.listed.turn);
        if before != after {
            gone.extend(before.map(|turn| place(put.request, turn)));
            queued.extend(after.map(|turn| place(put.request, turn)));
        }
    }
    for (sql, rows) in [(DELETE_QUEUED, gone), (PUT_QUEUED, queued)] {
        if !rows.is_empty() {
            let columns = [column(&rows, |row| row.1), column(&rows, |row| row.2)];
            calls.push(Call::new(sql, [column(&rows, |row| row.0)].into_iter().chain(columns).collect()));
        }
    }
}

/// What workers hold now, and no more.
fn write_held<'a>(calls: &mut Vec<Call<'a>>, changes: &'a Changes<'_>) {
    let was_held = |was: &Loaded| was.listed.state == StateKind::Leased;
    let let_go = changes.live.iter().filter(|put| put.lease().is_none()).filter_map(|put| put.was);
    let over: Vec<Seq> =
        let_go.chain(changes.gone.iter().copied()).filter(|was| was_held(was)).map(|was| was.request.seq).collect();
    if !over.is_empty() {
        calls.push(Call::new(DELETE_HELD, vec![seqs(over.into_iter())]));
    }
    let held = changes.live.iter().filter_map(|put| Some((put, put.lease()?)));
    let (still, new): (Vec<_>, Vec<_>) = held.partition(|(put, _)| put.was.is_some_and(was_held));
    if !new.is_empty() {
        let more = [
            column(&new, |(put, _)| i32::from(put.request.route.0)),
            column(new.iter().copied(), |(put, _)| put.request.key.as_ref().map(|key| key.as_str())),
        ];
        calls.push(Call::new(INSERT_HELD, lease_columns(&new).into_iter().chain(more).collect()));
    }
    if !still.is_empty() {
        calls.push(Call::new(UPDATE_HELD, lease_columns(&still).into()));
    }
}

fn lease_columns<'a>(held: &[(&'a Put<'_>, &LeaseMark)]) -> [Param<'a>; 4] {
    [
        column(held, |(put, _)| int(put.request.seq.0)),
        column(held, |(_, lease)| int(lease.claim.0)),
        column(held, |(_, lease)| time(lease.until)),
        column(held.iter().copied(), |(put, _)| &put.record[..]),
    ]
}

/// Whether a request in this state may have a response.
fn may_be_answered(state: StateKind) -> bool {
    !matches!(state, StateKind::Held | StateKind::Queued | StateKind::Leased)
}

/// What is written once of rows of `live`, with their bodies.
fn fixed_columns<'a>(rows: &[&'a Put<'_>]) -> Vec<Param<'a>> {
    let fixed = [
        column(rows.iter().copied(), |put| int(put.request.seq.0)),
        column(rows.iter().copied(), |put| &put.request.id.0[..]),
        column(rows.iter().copied(), |put| i32::from(put.request.route.0)),
        column(rows.iter().copied(), |put| put.request.key.as_ref().map(|key| key.as_str())),
        column(rows.iter().copied(), |put| time(put.request.admitted_at)),
    ];
    fixed.into_iter().chain(body_columns(rows.iter().map(|put| put.body))).collect()
}

/// New rows of `live`, to be copied; one without a body is refused by the server.
fn live_rows(new: &[&Put<'_>]) -> Rows<16> {
    let payload = |put: &&Put<'_>| put.body.map_or(0, |body| body.payload.bytes.len());
    let mut rows = Rows::with_room(new.iter().map(payload).sum::<usize>() + new.len() * ROW_BYTES);
    for put in new {
        let Put { request, listed, body, .. } = put;
        rows.push([
            &int(request.seq.0),
            &&request.id.0[..],
            &i32::from(request.route.0),
            &request.key.as_ref().map(|key| key.as_str()),
            &time(request.admitted_at),
            &body.map(|body| body.payload.encoding as i16),
            &body.map(|body| body.payload.bytes.as_ref()),
            &body.and_then(|body| body.trace.as_deref()),
            &first_occurrence(request),
            &request.behind,
            &(row_state(put) as i16),
            &listed.turn.map(ordered),
            &listed.due.map(When::to_bits),
            &listed.deadline.map(When::to_bits),
            &put.forget_at().map(time),
            &&put.record[..],
        ]);
    }
    rows
}

/// Bodies, column by column; a row without one is refused by the server.
fn body_columns<'a>(bodies: impl Iterator<Item = Option<&'a Body>> + Clone) -> [Param<'a>; 3] {
    [
        column(bodies.clone(), |body| body.map(|body| body.payload.encoding as i16)),
        column(bodies.clone(), |body| body.map(|body| body.payload.bytes.as_ref())),
        column(bodies, |body| body.and_then(|body| body.trace.as_deref()).map(str::as_bytes)),
    ]
}

/// What is leased is queued, but for its row of `held`.
fn row_state(put: &Put<'_>) -> StateKind {
    match put.listed.state {
        StateKind::Leased => StateKind::Queued,
        other => other,
    }
}

/// The rest, column by column.
fn live_columns<'a>(rows: &[&'a Put<'_>]) -> Vec<Param<'a>> {
    vec![
        column(rows.iter().copied(), |put| first_occurrence(put.request)),
        column(rows.iter().copied(), |put| put.request.behind),
        column(rows.iter().copied(), |put| row_state(put) as i16),
        column(rows.iter().copied(), |put| put.listed.turn.map(ordered)),
        column(rows.iter().copied(), |put| put.listed.due.map(When::to_bits)),
        column(rows.iter().copied(), |put| put.listed.deadline.map(When::to_bits)),
        column(rows.iter().copied(), |put| put.forget_at().map(time)),
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

/// The occurrences beside the first that show a request.
fn others(request: &Request) -> impl Iterator<Item = (OccurrenceId, Seq)> {
    request.occurrences.as_slice().iter().skip(1).map(|other| (other.id, request.seq))
}

fn write_shown(calls: &mut Vec<Call<'_>>, changes: &Changes<'_>) {
    let was = changes.live.iter().filter_map(|put| put.was).chain(changes.gone.iter().copied());
    let before: BTreeMap<OccurrenceId, Seq> = was.flat_map(|was| others(&was.request)).collect();
    let after: BTreeMap<OccurrenceId, Seq> = changes.live.iter().flat_map(|put| others(put.request)).collect();
    let hidden: Vec<&OccurrenceId> = before.keys().filter(|id| !after.contains_key(id)).collect();
    if !hidden.is_empty() {
        calls.push(Call::new(DELETE_SHOWN, vec![column(hidden, |id| id.0.to_vec())]));
    }
    let shown: Vec<(OccurrenceId, Seq)> = after.into_iter().filter(|(id, seq)| before.get(id) != Some(seq)).collect();
    if !shown.is_empty() {
        let ids = column(&shown, |(id, _)| id.0.to_vec());
        calls.push(Call::new(PUT_SHOWN, vec![ids, seqs(shown.iter().map(|(_, seq)| *seq))]));
    }
}

/// Two columns of payloads.
fn payloads<'a>(all: impl Iterator<Item = &'a Payload>) -> (Param<'a>, Param<'a>) {
    let (encodings, bytes): (Vec<i16>, Vec<&[u8]>) = all.map(|p| (p.encoding as i16, p.bytes.as_ref())).unzip();
    (param(encodings), param(bytes))
}

fn write_receipts<'a>(calls: &mut Vec<Call<'a>>, changes: &'a Changes<'_>) -> Result<(), Damaged> {
    let of_id = |put: &&PutReceipt<'_>| matches!(put.key, ColdKey::Request(_));
    let (ended, seen): (Vec<&PutReceipt<'_>>, Vec<_>) = changes.receipts.iter().partition(of_id);
    // Where one may be, it makes room.
    let replaced = changes.receipts.iter().filter(|put| !put.is_new).map(|put| put.key);
    let (ids, occurrences): (Vec<&ColdKey>, Vec<_>) =
        changes.forgotten.iter().copied().chain(replaced).partition(|key| matches!(key, ColdKey::Request(_)));
    for (sql, keys) in [(DELETE_ENDED, ids), (DELETE_SEEN, occurrences)] {
        if !keys.is_empty() {
            calls.push(Call::new(sql, vec![column(keys, key_bytes)]));
        }
    }
    for (receipts, write) in [(ended, write_ended as WriteReceipts<'a>), (seen, write_seen)] {
        if !receipts.is_empty() {
            calls.push(write(&receipts)?);
        }
    }
    Ok(())
}

/// Writes receipts of one kind.
type WriteReceipts<'a> = fn(&[&'a PutReceipt<'_>]) -> Result<Call<'a>, Damaged>;

fn write_ended<'a>(receipts: &[&'a PutReceipt<'_>]) -> Result<Call<'a>, Damaged> {
    let records = records(receipts)?;
    if receipts.len() >= COPY_MIN {
        let mut rows = Rows::<3>::with_room(receipts.len() * ROW_BYTES);
        for (put, record) in receipts.iter().zip(&records) {
            rows.push([&key_bytes(put.key), &time(put.receipt.until()), &&record[..]]);
        }
        return Ok(Call::copy(COPY_ENDED, rows));
    }
    let keys = column(receipts, |put| key_bytes(put.key));
    Ok(Call::new(PUT_ENDED, vec![keys, column(receipts, |put| time(put.receipt.until())), param(records)]))
}

fn write_seen<'a>(receipts: &[&'a PutReceipt<'_>]) -> Result<Call<'a>, Damaged> {
    let records = records(receipts)?;
    let origin = |put: &PutReceipt<'_>| match put.receipt {
        ColdReceipt::Seen { origin, .. } => *origin,
        ColdReceipt::Ended { .. } => None,
    };
    let until = |put: &PutReceipt<'_>| origin(put).is_none().then(|| time(put.receipt.until()));
    let chain = |put: &PutReceipt<'_>| origin(put).map(|(origin, _)| i32::from(origin.0));
    let height = |put: &PutReceipt<'_>| origin(put).map(|(_, height)| int(height.0));
    if receipts.len() >= COPY_MIN {
        let mut rows = Rows::<5>::with_room(receipts.len() * ROW_BYTES);
        for (put, record) in receipts.iter().zip(&records) {
            rows.push([&key_bytes(put.key), &until(put), &chain(put), &height(put), &&record[..]]);
        }
        return Ok(Call::copy(COPY_SEEN, rows));
    }
    let columns = vec![
        column(receipts, |put| key_bytes(put.key)),
        column(receipts, |put| until(put)),
        column(receipts, |put| chain(put)),
        column(receipts, |put| height(put)),
        param(records),
    ];
    Ok(Call::new(PUT_SEEN, columns))
}

fn records(receipts: &[&PutReceipt<'_>]) -> Result<Vec<Vec<u8>>, Damaged> {
    receipts.iter().map(|put| encode(put.receipt)).collect()
}

fn key_bytes(key: &ColdKey) -> &[u8] {
    match key {
        ColdKey::Request(id) => &id.0,
        ColdKey::Occurrence(id) => &id.0,
    }
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

fn write_journal(calls: &mut Vec<Call<'_>>, changes: &Changes<'_>) -> Result<(), Damaged> {
    let rows = || changes.entries.chunks(JOURNAL_ROW_MAX);
    if !changes.entries.is_empty() {
        let previous =
            |row: &[KeptEntry]| row.iter().flat_map(|entry| entry.previous.to_be_bytes()).collect::<Vec<u8>>();
        let params = vec![
            column(rows(), |row| row.first().map(|entry| int(entry.position))),
            column(rows(), |row| row.last().map(|entry| int(entry.position))),
            column(rows(), previous),
            param(rows().map(|row| encode(&row)).collect::<Result<Vec<_>, _>>()?),
        ];
        calls.push(Call::new(APPEND_JOURNAL, params));
    }
    if !changes.trimmed.is_empty() {
        // A row that the last trim cut into goes now.
        let first = changes.trimmed.start.saturating_sub(JOURNAL_ROW_MAX as u64);
        calls.push(Call::new(TRIM_JOURNAL, vec![param(int(first)), param(int(changes.trimmed.end))]));
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
    let mut numbers = Vec::new();
    for ((kind, name), fixture) in rows {
        numbers.push(match fixture {
            Fixture::Route { no, .. } => Some(i32::from(no.0)),
            _ => None,
        });
        kinds.push(i16::from(*kind));
        names.push(name.as_str());
        records.push(encode(fixture)?);
    }
    let routes: Vec<i32> = numbers.iter().copied().flatten().collect();
    let params = vec![param(kinds), param(names), param(records), param(int(version)), param(routes), param(numbers)];
    calls.push(Call::new(PUT_FIXTURES, params));
    Ok(())
}
