//! Wants as statements, and rows as what they bring.
//!
//! Nothing is locked row by row: whoever writes holds the one row of `numbers`, and whoever
//! reads has a snapshot.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio_postgres::Row;

use super::oldest::Oldest;
use super::wire::{Call, Param, PgError, Wire, hash, int, ordered, param, time, uint, unordered};
use crate::inbox::{Request, RouteNo, StateKind, When};
use crate::outbox::LaneNo;
use crate::store::disk::{Body, ColdKey, GroupRow, ItemRow};
use crate::store::journal::KeptEntry;
use crate::store::loan::{CountedRow, Damaged, Found, Known, Lender, LiveRow, Loaded, Want, decode};
use crate::store::machine::{Listed, Pace};
use crate::words::{Encoding, GroupKey, ItemId, Nonce, OccurrenceId, Payload, RequestId, Seq, UnixMs};

const BY_ID: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM unnest($1::bytea[]) n(id) JOIN request l USING (id)";
const BEHIND: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM unnest($1::bytea[]) n(id) JOIN request l USING (id)
WHERE l.behind";
/// All that share an id with whoever shows an occurrence or is a delivery of a slot.
const NAMED: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM unnest($1::bytea[]) n(id) JOIN request l USING (id)
UNION ALL
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM (
    SELECT l.id FROM unnest($2::bytea[]) o(occurrence) JOIN live l USING (occurrence)
    UNION SELECT l.id FROM unnest($2::bytea[]) o(occurrence) JOIN shown s USING (occurrence) JOIN live l USING (seq)
    UNION SELECT substring(p.deliveries FROM 1 + 32 * at FOR 32)
        FROM unnest($3::integer[], $4::bigint[]) s(lane, nonce) JOIN parcel p USING (lane, nonce),
             generate_series(0, length(p.deliveries) / 32 - 1) at) n
    JOIN request l USING (id)";
/// One route after the other and in the order of their index: else a server that knows of one route with most of all
/// requests goes through all of them for any.
const ROUTES: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM unnest($1::integer[]) n(route), LATERAL (
    SELECT * FROM request r WHERE r.route = n.route ORDER BY r.queued_state, r.seq) l";
const BODIES: &str = "
SELECT l.seq, l.encoding, l.payload, l.trace FROM unnest($1::bytea[]) n(id) JOIN live l USING (id)";
/// As many of these, in order, as a reply has room for.
const BODIES_OF: &str = "
SELECT seq, encoding, payload, trace FROM (
    SELECT l.*, sum(length(l.payload)) OVER (ORDER BY n.at) - length(l.payload) AS before
    FROM unnest($1::bigint[]) WITH ORDINALITY n(seq, at) JOIN live l USING (seq)) b
WHERE before <= $2";
const RESPONSES: &str = "
SELECT l.seq, r.encoding, r.payload FROM unnest($1::bytea[]) n(id) JOIN live l USING (id) JOIN response r USING (seq)";
const ENDED: &str = "SELECT e.id, e.record FROM unnest($1::bytea[]) n(id) JOIN ended e USING (id)";
const SEEN: &str =
    "SELECT s.occurrence, s.record FROM unnest($1::bytea[]) n(occurrence) JOIN seen s USING (occurrence)";
const DUE: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM unnest($1::bigint[], $2::bigint[]) r(first, last),
    LATERAL (SELECT * FROM request WHERE due BETWEEN r.first AND r.last ORDER BY due, seq LIMIT $3) l";
const OVERDUE: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM unnest($1::bigint[], $2::bigint[]) r(first, last),
    LATERAL (SELECT * FROM request WHERE deadline BETWEEN r.first AND r.last ORDER BY deadline, seq LIMIT $3) l";
/// What workers hold is few enough to be looked through.
const SILENT: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM (
    SELECT * FROM held WHERE lease_until <= $1 ORDER BY lease_until, seq LIMIT $2) h JOIN request l USING (seq)";
const DEAD: &str = "
SELECT seq, record, state, turn, due, deadline FROM request WHERE forget_at <= $1 ORDER BY forget_at, seq LIMIT $2";
/// The first of a route that may be handed out, from a place on and around, as far as a
/// reply has room for them.
const TURNS: &str = "
SELECT seq, record, state, turn, due, deadline, encoding, payload, trace FROM (
    SELECT *, sum(length(payload)) OVER (ORDER BY turn < $6, turn, seq) - length(payload) AS before FROM (
        (SELECT l.* FROM queued q JOIN live l USING (seq)
            WHERE q.route = $1 AND q.turn >= $6 AND (l.deadline IS NULL OR NOT EXISTS (
                SELECT FROM unnest($3::bigint[], $4::bigint[]) r(first, last) WHERE l.deadline BETWEEN first AND last))
            ORDER BY q.turn, q.seq LIMIT $2)
        UNION ALL
        (SELECT l.* FROM queued q JOIN live l USING (seq)
            WHERE q.route = $1 AND q.turn < $6 AND (l.deadline IS NULL OR NOT EXISTS (
                SELECT FROM unnest($3::bigint[], $4::bigint[]) r(first, last) WHERE l.deadline BETWEEN first AND last))
            ORDER BY q.turn, q.seq LIMIT $2)) first) l
WHERE l.before < $5";
/// The next in order. Those before have gone, and their places in the index are passed over until they are cleared.
const NEXT: &str = "
SELECT seq, record, state, turn, due, deadline, encoding, payload, trace FROM (
    SELECT *, sum(length(payload)) OVER (ORDER BY turn, seq) - length(payload) AS before FROM (
        SELECT l.* FROM queued q JOIN live l USING (seq)
        WHERE q.route = $1 AND (q.turn, q.seq) > ($6, $7) AND (l.deadline IS NULL OR NOT EXISTS (
            SELECT FROM unnest($3::bigint[], $4::bigint[]) r(first, last) WHERE l.deadline BETWEEN first AND last))
        ORDER BY q.turn, q.seq LIMIT $2) next) l
WHERE l.before < $5";
/// In the order of their index: else a server that knows of few rows goes through all that are not cleared yet.
const CLAIMED: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline, l.encoding, l.payload, l.trace
FROM unnest($1::bigint[]) c(claim), LATERAL (SELECT seq FROM held WHERE claim = c.claim ORDER BY lease_until) h
    JOIN request l USING (seq)";
/// The first in line of each key, and those of it that are with workers.
const LINES: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline
FROM unnest($1::integer[], $2::text[], $3::bigint[]) k(route, key, few), LATERAL (
    (SELECT * FROM request w WHERE w.route = k.route AND w.key = k.key AND w.key IS NOT NULL AND w.queued_state <= 1
        AND NOT w.behind AND NOT w.leased ORDER BY w.seq LIMIT k.few)
    UNION ALL
    SELECT w.* FROM held h JOIN request w USING (seq)
    WHERE h.route = k.route AND h.key = k.key AND h.key IS NOT NULL) l";
const LANES: &str = "SELECT lane, nonce, record FROM parcel WHERE lane = ANY($1::integer[])";
const UNDER_WAY: &str = "SELECT lane, count(*) FROM parcel WHERE lane = ANY($1::integer[]) GROUP BY lane";
const PARCELS: &str = "
SELECT p.lane, p.nonce, p.record
FROM unnest($1::integer[], $2::bigint[]) s(lane, nonce) JOIN parcel p USING (lane, nonce)";
const GROUPS: &str = "SELECT g.no, g.timer, g.record FROM unnest($1::text[]) n(key) JOIN grp g USING (key)";
const GROUPS_OF: &str = "
SELECT g.no, g.timer, g.record FROM unnest($1::bytea[]) n(request) JOIN grp g USING (request) WHERE g.forget_at IS NULL";
const FIRED: &str = "
SELECT g.no, g.timer, g.record FROM unnest($1::bigint[], $2::bigint[]) r(first, last),
    LATERAL (SELECT * FROM grp WHERE timer BETWEEN r.first AND r.last ORDER BY timer, no LIMIT $3) g";
const OUTLIVED: &str = "SELECT no, timer, record FROM grp WHERE forget_at <= $1 ORDER BY forget_at, no LIMIT $2";
const ITEMS: &str = "
SELECT i.no, i.grp, i.id, i.late FROM unnest($1::bigint[], $2::bigint[]) g(no, few),
    LATERAL (SELECT * FROM item WHERE grp = g.no ORDER BY no DESC LIMIT g.few) i";
const EXPIRED_IDS: &str = "SELECT id, until FROM ended WHERE until BETWEEN $3 AND $1 ORDER BY until LIMIT $2";
const EXPIRED_OCCURRENCES: &str = "
(SELECT occurrence, until FROM seen WHERE until BETWEEN $5 AND $1 ORDER BY until LIMIT $2)
UNION ALL
SELECT s.occurrence, NULL FROM unnest($3::integer[], $4::bigint[]) f(origin, floor),
    LATERAL (SELECT occurrence FROM seen WHERE origin = f.origin AND height < f.floor LIMIT $2) s";
pub(super) const COUNTED: &str = "SELECT route, state, requests FROM counted";
pub(super) const PACES: &str = "SELECT route, epoch, record FROM pace";
const LEASED: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM held h JOIN request l USING (seq)
WHERE h.lease_until > $1";
const COUNTS: &str = "
SELECT c.route, c.state, c.requests, CASE c.state
    WHEN 2 THEN (SELECT min(l.admitted_at) FROM held h JOIN live l USING (seq) WHERE h.route = c.route)
    ELSE (SELECT l.admitted_at FROM request l
        WHERE l.route = c.route AND l.queued_state = c.state AND NOT l.leased ORDER BY l.seq LIMIT 1) END
FROM counted c WHERE c.requests > 0 ORDER BY c.route, c.state";
const PAGE: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM unnest($1::integer[], $2::smallint[]) w(route, state),
    LATERAL (
        (SELECT * FROM request WHERE route = w.route AND queued_state = w.state AND NOT leased AND seq > $3
            ORDER BY seq LIMIT $4)
        UNION ALL
        (SELECT l.* FROM held h JOIN request l USING (seq) WHERE w.state = 2 AND h.route = w.route AND h.seq > $3
            ORDER BY h.seq LIMIT $4)) l
ORDER BY l.seq LIMIT $4";
const READY: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline, l.encoding, l.payload FROM (
    SELECT f.seq, f.record, f.state, f.turn, f.due, f.deadline, r.encoding, r.payload,
        sum(length(r.payload)) OVER (ORDER BY f.seq) - length(r.payload) AS before FROM (
        SELECT l.* FROM unnest($1::integer[]) w(route),
            LATERAL (SELECT * FROM live WHERE route = w.route AND state = 4 AND seq > $2 ORDER BY seq LIMIT $3) l
        ORDER BY l.seq LIMIT $3) f JOIN response r USING (seq)) l
WHERE l.before <= $4";
/// Positions from the last to the first, and the rows that hold them.
const CHAIN: &str = "
WITH RECURSIVE chain AS (
    SELECT $1::bigint AS position, j.*, 1 AS length
    FROM (SELECT * FROM journal WHERE first <= $1 ORDER BY first DESC LIMIT 1) j WHERE j.last >= $1
    UNION ALL SELECT before.position, j.*, c.length + 1
    FROM chain c, LATERAL (SELECT ('x' || encode(substring(c.previous FROM (1 + 8 * (c.position - c.first))::integer
        FOR 8), 'hex'))::bit(64)::bigint AS position) before,
        LATERAL (SELECT * FROM journal WHERE first <= before.position ORDER BY first DESC LIMIT 1) j
    WHERE c.length < $2 AND j.last >= before.position)
SELECT position, position, entries FROM chain";
const ENTRIES: &str = "
SELECT greatest(first, $1), least(last, $1 + $2 - 1), entries FROM journal
WHERE first >= coalesce((SELECT first FROM journal WHERE first <= $1 ORDER BY first DESC LIMIT 1), 0)
    AND last >= $1 AND first < $1 + $2 ORDER BY first";
const ITEM_PAYLOADS: &str = "
SELECT no, encoding, payload FROM (
    SELECT i.no, i.encoding, i.payload, sum(length(i.payload)) OVER (ORDER BY i.no) - length(i.payload) AS before FROM (
        SELECT i.* FROM item i JOIN grp g ON i.grp = g.no WHERE g.key = $1 ORDER BY i.no OFFSET $2 LIMIT $3) i) i
WHERE before <= $4";

impl Lender for Wire {
    type Error = PgError;

    async fn fly(&mut self, wants: &[Want]) -> Result<Vec<Found>, PgError> {
        let calls = wants.iter().map(|want| call(want, &Oldest::default())).collect();
        let answers = self.send("", calls, "").await?;
        wants.iter().zip(answers).map(|(want, rows)| found(want, &rows)).collect()
    }
}

/// A connection, and what is known without it.
pub(super) struct Desk<'a> {
    pub(super) wire: &'a mut Wire,
    pub(super) known: &'a Known,
    pub(super) oldest: &'a mut Oldest,
}

impl Desk<'_> {
    /// Sends a plain command, calls and what the wants ask, all in one flight; answers what
    /// the calls brought and what was found.
    pub(super) async fn fly_after(
        &mut self,
        before: &'static str,
        calls: Vec<Call<'_>>,
        wants: &[Want],
    ) -> Result<(Vec<Vec<Row>>, Vec<Found>), PgError> {
        let mut all: Vec<Option<Found>> = wants.iter().map(|want| self.known.answer(want)).collect();
        let asked = || wants.iter().zip(&all).filter(|(_, known)| known.is_none()).map(|(want, _)| want);
        let (own, asked): (usize, Vec<&Want>) = (calls.len(), asked().collect());
        let calls: Vec<Call<'_>> = calls.into_iter().chain(asked.iter().map(|want| call(want, self.oldest))).collect();
        if calls.is_empty() {
            return Ok((Vec::new(), all.into_iter().flatten().collect()));
        }
        let mut answers = self.wire.send(before, calls, "").await?;
        let rest = answers.split_off(own);
        for ((place, want), rows) in all.iter_mut().filter(|known| known.is_none()).zip(asked).zip(rest) {
            *place = Some(found(want, &rows)?);
            self.oldest.learn(want, &rows)?;
        }
        Ok((answers, all.into_iter().flatten().collect()))
    }
}

impl Lender for Desk<'_> {
    type Error = PgError;

    async fn fly(&mut self, wants: &[Want]) -> Result<Vec<Found>, PgError> {
        Ok(self.fly_after("", Vec::new(), wants).await?.1)
    }
}

/// The statement that answers a want.
fn call<'a>(want: &'a Want, oldest: &Oldest) -> Call<'a> {
    match want {
        Want::Named { ids, occurrences, slots } => {
            if occurrences.is_empty() && slots.is_empty() {
                return Call::new(BY_ID, vec![param(id_bytes(ids))]);
            }
            let (lanes, nonces): (Vec<i32>, Vec<i64>) = slots.iter().map(slot).unzip();
            let occurrences = param(occurrence_bytes(occurrences));
            Call::new(NAMED, vec![param(id_bytes(ids)), occurrences, param(lanes), param(nonces)])
        }
        Want::Behind(ids) => Call::new(BEHIND, vec![param(id_bytes(ids))]),
        Want::Bodies(ids) => Call::new(BODIES, vec![param(id_bytes(ids))]),
        Want::BodiesOf { seqs, bytes } => {
            let seqs: Vec<i64> = seqs.iter().map(|seq| int(seq.0)).collect();
            Call::new(BODIES_OF, vec![param(seqs), param(few(*bytes))])
        }
        Want::Responses(ids) => Call::new(RESPONSES, vec![param(id_bytes(ids))]),
        Want::Ended(ids) => Call::new(ENDED, vec![param(id_bytes(ids))]),
        Want::Seen(occurrences) => Call::new(SEEN, vec![param(occurrence_bytes(occurrences))]),
        Want::GroupsOf(ids) => Call::new(GROUPS_OF, vec![param(id_bytes(ids))]),
        Want::Turns { route, requests, reached, bytes, from } => {
            let (first, last) = ranges(reached);
            let bounds = vec![param(i32::from(route.0)), param(few(*requests)), first, last];
            let more = [param(few(*bytes)), param(ordered(*from))];
            Call::new(TURNS, bounds.into_iter().chain(more).collect())
        }
        Want::Next { route, after: (turn, seq), requests, reached, bytes } => {
            let (first, last) = ranges(reached);
            let bounds = vec![param(i32::from(route.0)), param(few(*requests)), first, last];
            let more = [param(few(*bytes)), param(ordered(*turn)), param(int(seq.0))];
            Call::new(NEXT, bounds.into_iter().chain(more).collect())
        }
        Want::Claimed(claims) => {
            let claims: Vec<i64> = claims.iter().map(|claim| int(claim.0)).collect();
            Call::new(CLAIMED, vec![param(claims)])
        }
        Want::Due { reached, limit } => due(DUE, reached, *limit),
        Want::Overdue { reached, limit } => due(OVERDUE, reached, *limit),
        Want::Fired { reached, limit } => due(FIRED, reached, *limit),
        Want::Silent { now, limit } => over(SILENT, *now, *limit),
        Want::Dead { now, limit } => over(DEAD, *now, *limit),
        Want::Outlived { now, limit } => over(OUTLIVED, *now, *limit),
        Want::ExpiredIds { now, limit } => {
            Call::new(EXPIRED_IDS, vec![param(time(*now)), param(few(*limit)), param(oldest.id)])
        }
        Want::ExpiredOccurrences { now, limit, floors } => {
            let (origins, floors): (Vec<i32>, Vec<i64>) =
                floors.iter().map(|(origin, floor)| (i32::from(origin.0), int(floor.0))).unzip();
            let (bounds, oldest) = ([param(time(*now)), param(few(*limit))], param(oldest.occurrence));
            Call::new(EXPIRED_OCCURRENCES, bounds.into_iter().chain([param(origins), param(floors), oldest]).collect())
        }
        Want::Leased { now } => Call::new(LEASED, vec![param(time(*now))]),
        Want::Routes(routes) => Call::new(ROUTES, vec![numbers_of(routes.iter())]),
        Want::Lanes(lanes) => Call::new(LANES, vec![lanes_of(lanes)]),
        Want::UnderWay(lanes) => Call::new(UNDER_WAY, vec![lanes_of(lanes)]),
        Want::Parcels(slots) => {
            let (lanes, nonces): (Vec<i32>, Vec<i64>) = slots.iter().map(slot).unzip();
            Call::new(PARCELS, vec![param(lanes), param(nonces)])
        }
        Want::Groups(groups) => {
            let keys: Vec<&str> = groups.iter().map(GroupKey::as_str).collect();
            Call::new(GROUPS, vec![param(keys)])
        }
        Want::Items(of) => {
            let (groups, fews): (Vec<i64>, Vec<i64>) = of.iter().map(|(no, most)| (int(*no), few(*most))).unzip();
            Call::new(ITEMS, vec![param(groups), param(fews)])
        }
        Want::Lines(lines) => {
            let keys: Vec<&str> = lines.iter().map(|(_, key, _)| key.as_str()).collect();
            let fews: Vec<i64> = lines.iter().map(|(_, _, most)| few(*most)).collect();
            let routes = numbers_of(lines.iter().map(|(route, _, _)| route));
            Call::new(LINES, vec![routes, param(keys), param(fews)])
        }
        Want::Counted => Call::new(COUNTED, Vec::new()),
        Want::Paces => Call::new(PACES, Vec::new()),
        Want::Page { of, after, limit } => {
            let states: Vec<i16> = of.iter().map(|(_, state)| *state as i16).collect();
            let routes = numbers_of(of.iter().map(|(route, _)| route));
            Call::new(PAGE, vec![routes, param(states), param(number(*after)), param(few(*limit))])
        }
        Want::Ready { routes, after, limit, bytes } => {
            let bounds = vec![numbers_of(routes.iter()), param(number(*after)), param(few(*limit)), param(few(*bytes))];
            Call::new(READY, bounds)
        }
        Want::Chain { last, limit } => {
            let limit = i32::try_from(*limit).unwrap_or(i32::MAX);
            Call::new(CHAIN, vec![param(int(*last)), param(limit)])
        }
        Want::Entries { from, limit } => Call::new(ENTRIES, vec![param(int(*from)), param(few(*limit))]),
        Want::ItemPayloads { group, skip, limit, bytes } => {
            let skip = i64::try_from(*skip).unwrap_or(i64::MAX);
            let bounds = vec![param(group.as_str()), param(skip), param(few(*limit)), param(few(*bytes))];
            Call::new(ITEM_PAYLOADS, bounds)
        }
        Want::Counts => Call::new(COUNTS, Vec::new()),
    }
}

/// What these rows are, as the answer to a want.
pub(super) fn found(want: &Want, rows: &[Row]) -> Result<Found, PgError> {
    Ok(match want {
        Want::Turns { .. } | Want::Next { .. } | Want::Claimed(_) => {
            Found::Live(each(rows, |row| Ok(LiveRow { body: Some(body(row, 6)?), ..live(row)? }))?)
        }
        Want::Ready { .. } => {
            Found::Live(each(rows, |row| Ok(LiveRow { response: Some(payload(row, 6)?), ..live(row)? }))?)
        }
        Want::Named { .. }
        | Want::Behind(_)
        | Want::Due { .. }
        | Want::Overdue { .. }
        | Want::Silent { .. }
        | Want::Dead { .. } => Found::Live(each(rows, live)?),
        Want::Leased { .. } | Want::Routes(_) | Want::Lines(_) | Want::Page { .. } => Found::Live(each(rows, live)?),
        Want::Bodies(_) | Want::BodiesOf { .. } => Found::Bodies(each(rows, |row| Ok((seq(row)?, body(row, 1)?)))?),
        Want::Responses(_) => Found::Responses(each(rows, |row| Ok((seq(row)?, payload(row, 1)?)))?),
        Want::Ended(_) => Found::Receipts(each(rows, |row| Ok((ended(row)?, decode("ended", row.try_get(1)?)?)))?),
        Want::Seen(_) => Found::Receipts(each(rows, |row| Ok((seen(row)?, decode("seen", row.try_get(1)?)?)))?),
        Want::ExpiredIds { .. } => Found::Expired(each(rows, ended)?),
        Want::ExpiredOccurrences { .. } => Found::Expired(each(rows, seen)?),
        Want::Lanes(_) | Want::Parcels(_) => Found::Parcels(each(rows, |row| {
            let slot = (LaneNo(small("parcel", row.try_get(0)?)?), Nonce(uint(row.try_get(1)?)));
            Ok((slot, decode("parcel", row.try_get(2)?)?))
        })?),
        Want::UnderWay(_) => {
            Found::UnderWay(each(rows, |row| Ok((LaneNo(small("parcel", row.try_get(0)?)?), uint(row.try_get(1)?))))?)
        }
        Want::Groups(_) | Want::GroupsOf(_) | Want::Fired { .. } | Want::Outlived { .. } => {
            Found::Groups(each(rows, group)?)
        }
        Want::Items(_) => Found::Items(each(rows, |row| {
            let (group, id) = (uint(row.try_get(1)?), ItemId(hash("item", row.try_get(2)?)?));
            Ok((uint(row.try_get(0)?), ItemRow { group, id, late: row.try_get(3)? }))
        })?),
        Want::ItemPayloads { .. } => {
            Found::ItemPayloads(each(rows, |row| Ok((uint(row.try_get(0)?), payload(row, 1)?)))?)
        }
        Want::Chain { .. } | Want::Entries { .. } => {
            Found::Entries(each(rows, entries)?.into_iter().flatten().collect())
        }
        Want::Counted => Found::Counted(each(rows, counted)?),
        Want::Paces => Found::Paces(each(rows, pace)?),
        Want::Counts => Found::Counts(each(rows, |row| {
            let oldest: Option<i64> = row.try_get(3)?;
            let oldest = oldest.ok_or_else(|| Damaged::new("counted", "requests that are not there"))?;
            let (route, state, requests) = (route(row)?, state(row, 1)?, uint(row.try_get(2)?));
            Ok(CountedRow { route, state, requests, oldest_at: UnixMs(uint(oldest)) })
        })?),
    })
}

/// Of the entries in a row those that are asked for.
fn entries(row: &Row) -> Result<Vec<KeptEntry>, PgError> {
    let wanted = uint(row.try_get(0)?)..=uint(row.try_get(1)?);
    let mut entries: Vec<KeptEntry> = decode("journal", row.try_get(2)?)?;
    entries.retain(|entry| wanted.contains(&entry.position));
    Ok(entries)
}

/// How many live requests a route has in a state.
pub(super) fn counted(row: &Row) -> Result<((RouteNo, StateKind), u64), PgError> {
    Ok(((route(row)?, state(row, 1)?), uint(row.try_get(2)?)))
}

/// What a route handed out lately, and the newest epoch when that was written.
pub(super) fn pace(row: &Row) -> Result<(RouteNo, u64, Pace), PgError> {
    Ok((route(row)?, uint(row.try_get(1)?), decode("pace", row.try_get(2)?)?))
}

pub(super) fn each<T>(rows: &[Row], of: impl Fn(&Row) -> Result<T, PgError>) -> Result<Vec<T>, PgError> {
    rows.iter().map(of).collect()
}

pub(super) fn live(row: &Row) -> Result<LiveRow, PgError> {
    let record: Vec<u8> = row.try_get(1)?;
    let request: Request = decode("live", &record)?;
    let (turn, due, deadline): (Option<i64>, Option<i64>, Option<i64>) =
        (row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
    let listed = Listed {
        state: state(row, 2)?,
        turn: turn.map(unordered),
        due: due.map(When::from_bits),
        deadline: deadline.map(When::from_bits),
    };
    let loaded = Arc::new(Loaded { request, record, listed });
    Ok(LiveRow { loaded, body: None, response: None, is_news: false })
}

pub(super) fn group(row: &Row) -> Result<(u64, GroupRow, When), PgError> {
    let timer: Option<i64> = row.try_get(1)?;
    let timer = timer.map_or(When::NEVER, When::from_bits);
    Ok((uint(row.try_get(0)?), decode("grp", row.try_get(2)?)?, timer))
}

fn seq(row: &Row) -> Result<Seq, PgError> {
    Ok(Seq(uint(row.try_get(0)?)))
}

fn route(row: &Row) -> Result<RouteNo, PgError> {
    Ok(RouteNo(small("routes", row.try_get(0)?)?))
}

fn state(row: &Row, at: usize) -> Result<StateKind, PgError> {
    let number: i16 = row.try_get(at)?;
    let state = StateKind::LIVE.into_iter().find(|kind| *kind as i16 == number);
    Ok(state.ok_or_else(|| Damaged::new("live", format!("state {number}")))?)
}

pub(super) fn ended(row: &Row) -> Result<ColdKey, PgError> {
    Ok(ColdKey::Request(RequestId(hash("ended", row.try_get(0)?)?)))
}

pub(super) fn seen(row: &Row) -> Result<ColdKey, PgError> {
    Ok(ColdKey::Occurrence(OccurrenceId(hash("seen", row.try_get(0)?)?)))
}

fn body(row: &Row, at: usize) -> Result<Body, PgError> {
    let trace: Option<&[u8]> = row.try_get(at + 2)?;
    let trace = trace.map(|bytes| std::str::from_utf8(bytes).map(Box::from)).transpose();
    Ok(Body { payload: payload(row, at)?, trace: trace.map_err(|error| Damaged::new("body", error))? })
}

pub(super) fn payload(row: &Row, at: usize) -> Result<Payload, PgError> {
    let encoding = match row.try_get::<_, i16>(at)? {
        0 => Encoding::Raw,
        1 => Encoding::Json,
        2 => Encoding::Cbor,
        3 => Encoding::Protobuf,
        other => return Err(Damaged::new("payloads", format!("encoding {other}")).into()),
    };
    let bytes: Vec<u8> = row.try_get(at + 1)?;
    Ok(Payload { encoding, bytes: bytes.into() })
}

fn small(what: &str, number: i32) -> Result<u16, PgError> {
    Ok(u16::try_from(number).map_err(|error| Damaged::new(what, error))?)
}

fn due<'a>(sql: &'static str, reached: &[(When, When)], limit: usize) -> Call<'a> {
    let (first, last) = ranges(reached);
    Call::new(sql, vec![first, last, param(few(limit))])
}

fn over<'a>(sql: &'static str, now: UnixMs, limit: usize) -> Call<'a> {
    Call::new(sql, vec![param(time(now)), param(few(limit))])
}

fn slot(&(lane, nonce): &(LaneNo, Nonce)) -> (i32, i64) {
    (i32::from(lane.0), int(nonce.0))
}

fn lanes_of(lanes: &BTreeSet<LaneNo>) -> Param<'static> {
    param(lanes.iter().map(|no| i32::from(no.0)).collect::<Vec<i32>>())
}

fn numbers_of<'a>(routes: impl Iterator<Item = &'a RouteNo>) -> Param<'static> {
    param(routes.map(|no| i32::from(no.0)).collect::<Vec<i32>>())
}

fn number(after: Option<Seq>) -> i64 {
    after.map_or(0, |seq| int(seq.0))
}

fn id_bytes(ids: &BTreeSet<RequestId>) -> Vec<&[u8]> {
    ids.iter().map(|id| &id.0[..]).collect()
}

fn occurrence_bytes(ids: &BTreeSet<OccurrenceId>) -> Vec<&[u8]> {
    ids.iter().map(|id| &id.0[..]).collect()
}

fn ranges(reached: &[(When, When)]) -> (Param<'static>, Param<'static>) {
    let (first, last): (Vec<i64>, Vec<i64>) =
        reached.iter().map(|(first, last)| (first.to_bits(), last.to_bits())).unzip();
    (param(first), param(last))
}

fn few(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
