//! Fetching what a batch needs, in as few flights as what depends on what allows.
//!
//! ```text
//!   what is named or due ──▶ what shares an id with what may end ──▶ lines of keys, parcels
//! ```
//!
//! Nothing is locked row by row: whoever writes holds the one row of `numbers`, and whoever
//! reads has a snapshot.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Row;

use super::needs::{Needs, Wanted};
use super::tray::Tray;
use super::wire::{Call, PgError, Wire, decode, hash, int, ordered, param, time, uint};
use crate::groups::GroupState;
use crate::inbox::{Request, RouteNo, State, When};
use crate::outbox::{Delivery, LaneNo};
use crate::sender::Parcel;
use crate::store::disk::{Body, ColdKey, ColdReceipt, Fixture, GroupRow, ItemRow};
use crate::store::machine::{PROMOTE_MAX, Pace, random_place};
use crate::store::policy::QueueOrder;
use crate::words::{
    Encoding, GroupKey, ItemId, Nonce, OccurrenceId, OrderKey, Payload, REPLY_BYTES_MAX, RequestId, RouteName, Seq,
    UnixMs,
};

/// How many more are fetched for leases in random order that share a batch: each starts at
/// another place.
const RANDOM_MORE: usize = 256;

const NAMED: &str = "
WITH named AS (
    SELECT unnest($1::bytea[]) AS id
    UNION SELECT l.id FROM unnest($2::bytea[]) o(occurrence) JOIN shown s USING (occurrence) JOIN live l USING (seq)
    UNION SELECT substring(p.deliveries FROM 1 + 32 * at FOR 32)
        FROM unnest($3::integer[], $4::bigint[]) s(lane, nonce) JOIN parcel p USING (lane, nonce),
             generate_series(0, length(p.deliveries) / 32 - 1) at)
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM named JOIN live l USING (id)";
const ROUTES: &str = "SELECT seq, record, state, turn, due, deadline FROM live WHERE route = ANY($1::integer[])";
const BODIES: &str = "
SELECT l.seq, b.encoding, b.payload, b.trace
FROM unnest($1::bytea[]) n(id) JOIN live l USING (id) JOIN body b USING (seq)";
/// As many of these, in order, as a reply has room for.
const BODIES_OF: &str = "
SELECT seq, encoding, payload, trace FROM (
    SELECT b.*, sum(length(b.payload)) OVER (ORDER BY n.at) - length(b.payload) AS before
    FROM unnest($1::bigint[]) WITH ORDINALITY n(seq, at) JOIN body b USING (seq)) b
WHERE before <= $2";
const RESPONSES: &str = "
SELECT l.seq, r.encoding, r.payload FROM unnest($1::bytea[]) n(id) JOIN live l USING (id) JOIN response r USING (seq)";
const ENDED: &str = "SELECT e.id, e.record FROM unnest($1::bytea[]) n(id) JOIN ended e USING (id)";
const SEEN: &str =
    "SELECT s.occurrence, s.record FROM unnest($1::bytea[]) n(occurrence) JOIN seen s USING (occurrence)";
const DUE: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM unnest($1::bigint[], $2::bigint[]) r(first, last),
    LATERAL (SELECT * FROM live WHERE due BETWEEN r.first AND r.last ORDER BY due, seq LIMIT $3) l";
const OVERDUE: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM unnest($1::bigint[], $2::bigint[]) r(first, last),
    LATERAL (SELECT * FROM live WHERE deadline BETWEEN r.first AND r.last ORDER BY deadline, seq LIMIT $3) l";
const SILENT: &str = "
SELECT seq, record, state, turn, due, deadline FROM live WHERE lease_until <= $1 ORDER BY lease_until, seq LIMIT $2";
const DEAD: &str = "
SELECT seq, record, state, turn, due, deadline FROM live WHERE forget_at <= $1 ORDER BY forget_at, seq LIMIT $2";
/// The first of a route that may be handed out, from a place on and around, as far as a
/// reply has room for them.
const TURNS: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline, b.encoding, b.payload, b.trace FROM (
    SELECT *, sum(bytes) OVER (ORDER BY turn < $6, turn, seq) - bytes AS before FROM (
        (SELECT * FROM live WHERE route = $1 AND turn >= $6 AND (deadline IS NULL OR NOT EXISTS (
            SELECT FROM unnest($3::bigint[], $4::bigint[]) r(first, last) WHERE deadline BETWEEN first AND last))
            ORDER BY turn, seq LIMIT $2)
        UNION ALL
        (SELECT * FROM live WHERE route = $1 AND turn < $6 AND (deadline IS NULL OR NOT EXISTS (
            SELECT FROM unnest($3::bigint[], $4::bigint[]) r(first, last) WHERE deadline BETWEEN first AND last))
            ORDER BY turn, seq LIMIT $2)) first) l
    JOIN body b USING (seq) WHERE l.before < $5";
const CLAIMED: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline, b.encoding, b.payload, b.trace
FROM live l JOIN body b USING (seq) WHERE l.claim = ANY($1::bigint[])";
/// The first in line of each key, and those of it that are with workers.
const LINES: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline
FROM unnest($1::integer[], $2::text[], $3::bigint[]) k(route, key, few), LATERAL (
    (SELECT * FROM live w WHERE w.route = k.route AND w.key = k.key AND w.key IS NOT NULL AND w.state <= 2
        AND NOT w.behind AND w.state < 2 ORDER BY w.seq LIMIT k.few)
    UNION ALL
    SELECT * FROM live w WHERE w.route = k.route AND w.key = k.key AND w.key IS NOT NULL AND w.state = 2) l";
const LANES: &str = "SELECT lane, nonce, record FROM parcel WHERE lane = ANY($1::integer[])";
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
const EXPIRED_IDS: &str = "SELECT id FROM ended WHERE until <= $1 ORDER BY until LIMIT $2";
const EXPIRED_OCCURRENCES: &str = "
(SELECT occurrence FROM seen WHERE until <= $1 ORDER BY until LIMIT $2)
UNION ALL
SELECT s.occurrence FROM unnest($3::integer[], $4::bigint[]) f(origin, floor),
    LATERAL (SELECT occurrence FROM seen WHERE origin = f.origin AND height < f.floor LIMIT $2) s";
const COUNTED: &str = "SELECT route, sum(requests)::bigint FROM counted GROUP BY route";
const PACES: &str = "SELECT route, epoch, record FROM pace";

/// A live request as it was fetched.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) request: Request,
    pub(super) record: Vec<u8>,
    pub(super) listed: Listed,
}

/// The columns beside a record that do not follow from it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) state: i16,
    pub(super) turn: Option<i64>,
    pub(super) due: Option<i64>,
    pub(super) deadline: Option<i64>,
}

/// What was fetched.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    pub(super) live: BTreeMap<Seq, Loaded>,
    pub(super) parcels: BTreeMap<(LaneNo, Nonce), Parcel>,
    pub(super) groups: BTreeMap<u64, (GroupRow, Option<i64>)>,
    pub(super) items: BTreeMap<u64, ItemRow>,
    pub(super) counted: Vec<(RouteNo, u64)>,
    pub(super) paces: BTreeMap<RouteNo, (u64, Pace)>,
    pub(super) tray: Tray,
    /// Ids of requests that operations name, by occurrence or slot too: they may end.
    named: BTreeSet<RequestId>,
    /// Ids whose live requests are all here.
    closed: BTreeSet<RequestId>,
}

/// What the store knows when it fetches.
pub(super) struct Sight<'a> {
    pub(super) now: UnixMs,
    pub(super) epoch: u64,
    pub(super) tokens: u64,
    pub(super) fixtures: &'a BTreeMap<(u8, String), Fixture>,
}

impl Sight<'_> {
    fn routes(&self) -> impl Iterator<Item = (RouteNo, &RouteName, QueueOrder)> {
        self.fixtures.values().filter_map(|fixture| match fixture {
            Fixture::Route { no, name, policy, .. } => Some((*no, name, policy.order)),
            _ => None,
        })
    }

    /// How many of one key each route with keys hands out at a time.
    fn keyed(&self) -> BTreeMap<RouteNo, u16> {
        let keyed = self.routes().filter_map(|(no, _, order)| match order {
            QueueOrder::KeyedFifo { per_key } => Some((no, per_key)),
            _ => None,
        });
        keyed.collect()
    }

    fn is_random(&self, route: RouteNo) -> bool {
        self.routes().any(|(no, _, order)| no == route && order == QueueOrder::Random)
    }
}

/// What an answer of a flight holds.
#[derive(Clone, Copy)]
enum Of {
    Live,
    Named,
    /// Live requests of which all that share their ids are needed.
    Ending,
    WithBody,
    Bodies,
    Responses,
    Ended,
    Seen,
    Parcels,
    Groups,
    Items,
    ExpiredIds,
    ExpiredOccurrences,
    Counted,
    Paces,
}

/// Calls, and what each brings.
#[derive(Default)]
pub(super) struct Flight<'a> {
    calls: Vec<Call<'a>>,
    of: Vec<Of>,
}

impl<'a> Flight<'a> {
    fn add(&mut self, of: Of, sql: &'static str, params: Vec<super::wire::Param<'a>>) {
        self.calls.push(Call::new(sql, params));
        self.of.push(of);
    }

    fn add_named(&mut self, needs: &'a Needs) {
        if needs.ids.is_empty() && needs.occurrences.is_empty() && needs.slots.is_empty() {
            return;
        }
        let (lanes, nonces): (Vec<i32>, Vec<i64>) = needs.slots.iter().map(slot).unzip();
        let (ids, occurrences) = (id_bytes(&needs.ids), occurrence_bytes(&needs.occurrences));
        self.add(Of::Named, NAMED, vec![param(ids.clone()), param(occurrences.clone()), param(lanes), param(nonces)]);
        if !ids.is_empty() {
            self.add(Of::Ended, ENDED, vec![param(ids.clone())]);
            self.add(Of::Groups, GROUPS_OF, vec![param(ids)]);
        }
        if !needs.occurrences.is_empty() {
            self.add(Of::Seen, SEEN, vec![param(occurrences)]);
        }
        if !needs.bodies.is_empty() {
            self.add(Of::Bodies, BODIES, vec![param(id_bytes(&needs.bodies))]);
        }
    }

    fn add_leases(&mut self, needs: &Needs, sight: &Sight<'_>) {
        for (&route, &Wanted { requests, leases }) in &needs.leases {
            let (first, last) = ranges(&needs.reached);
            let bytes = few(REPLY_BYTES_MAX.saturating_mul(leases));
            let (place, more) = match sight.is_random(route) {
                true => (ordered(random_place(sight.epoch, sight.tokens)), RANDOM_MORE * (leases - 1)),
                false => (i64::MIN, 0),
            };
            let bounds = vec![param(i32::from(route.0)), param(few(requests + more)), param(first), param(last)];
            self.add(Of::WithBody, TURNS, bounds.into_iter().chain([param(bytes), param(place)]).collect());
        }
        if !needs.claims.is_empty() {
            let claims: Vec<i64> = needs.claims.iter().map(|claim| int(claim.0)).collect();
            self.add(Of::WithBody, CLAIMED, vec![param(claims)]);
        }
    }

    fn add_duties(&mut self, needs: &'a Needs, sight: &Sight<'_>) {
        let now = time(sight.now);
        let due = |sql, of, limit: usize, flight: &mut Flight<'a>| {
            let (first, last) = ranges(&needs.reached);
            flight.add(of, sql, vec![param(first), param(last), param(few(limit))]);
        };
        due(DUE, Of::Live, PROMOTE_MAX, self);
        if needs.rescue > 0 {
            self.add(Of::Live, SILENT, vec![param(now), param(few(needs.rescue))]);
        }
        if needs.expire > 0 {
            due(OVERDUE, Of::Ending, needs.expire, self);
        }
        if needs.fire > 0 {
            due(FIRED, Of::Groups, needs.fire, self);
        }
        if needs.prune > 0 {
            let limit = few(needs.prune);
            let (origins, floors): (Vec<i32>, Vec<i64>) =
                needs.floors.iter().map(|(origin, floor)| (i32::from(origin.0), int(floor.0))).unzip();
            self.add(Of::Ending, DEAD, vec![param(now), param(limit)]);
            self.add(Of::Groups, OUTLIVED, vec![param(now), param(limit)]);
            self.add(Of::ExpiredIds, EXPIRED_IDS, vec![param(now), param(limit)]);
            let over = vec![param(now), param(limit), param(origins), param(floors)];
            self.add(Of::ExpiredOccurrences, EXPIRED_OCCURRENCES, over);
        }
    }

    fn add_rest(&mut self, needs: &'a Needs) {
        if !needs.routes.is_empty() {
            let routes: Vec<i32> = needs.routes.iter().map(|no| i32::from(no.0)).collect();
            self.add(Of::Ending, ROUTES, vec![param(routes)]);
        }
        self.add_lanes(&needs.lanes);
        self.add_groups(&needs.groups);
        self.add(Of::Counted, COUNTED, Vec::new());
        self.add(Of::Paces, PACES, Vec::new());
    }

    pub(super) fn add_lanes(&mut self, lanes: &BTreeSet<LaneNo>) {
        if !lanes.is_empty() {
            let lanes: Vec<i32> = lanes.iter().map(|no| i32::from(no.0)).collect();
            self.add(Of::Parcels, LANES, vec![param(lanes)]);
        }
    }

    pub(super) fn add_groups(&mut self, groups: &'a BTreeSet<GroupKey>) {
        if !groups.is_empty() {
            let keys: Vec<&str> = groups.iter().map(GroupKey::as_str).collect();
            self.add(Of::Groups, GROUPS, vec![param(keys)]);
        }
    }

    /// Live requests by a statement of the caller's.
    pub(super) fn add_live(&mut self, sql: &'static str, params: Vec<super::wire::Param<'a>>) {
        self.add(Of::Live, sql, params);
    }

    pub(super) fn add_responses(&mut self, needs: &Needs) {
        self.add(Of::Responses, RESPONSES, vec![param(id_bytes(&needs.ids))]);
    }
}

impl Fetched {
    /// Everything that a batch needs.
    pub(super) async fn all(wire: &mut Wire, needs: &Needs, sight: &Sight<'_>) -> Result<Fetched, PgError> {
        let mut fetched = Fetched::default();
        let mut flight = Flight::default();
        flight.add_named(needs);
        flight.add_leases(needs, sight);
        flight.add_duties(needs, sight);
        flight.add_rest(needs);
        let ending = fetched.fly(wire, flight).await?;
        fetched.closed.extend(&needs.ids);
        fetched.follow(wire, ending, needs, sight).await?;
        Ok(fetched)
    }

    /// Bodies that nobody foresaw: of what was queued by the very batch that leases it.
    pub(super) async fn take_bodies(&mut self, wire: &mut Wire, seqs: Vec<Seq>) -> Result<(), PgError> {
        let seqs: Vec<i64> = seqs.into_iter().map(|seq| int(seq.0)).collect();
        let mut flight = Flight::default();
        flight.add(Of::Bodies, BODIES_OF, vec![param(seqs), param(few(REPLY_BYTES_MAX))]);
        self.fly(wire, flight).await.map(drop)
    }

    /// What these needs name, for a read.
    pub(super) async fn named(wire: &mut Wire, needs: &Needs, sight: &Sight<'_>) -> Result<Fetched, PgError> {
        let mut flight = Flight::default();
        flight.add_named(needs);
        flight.add_lanes(&needs.lanes);
        flight.add_groups(&needs.groups);
        flight.add_responses(needs);
        Fetched::by(wire, flight, sight).await
    }

    /// What one flight brings, for a read.
    pub(super) async fn by(wire: &mut Wire, flight: Flight<'_>, sight: &Sight<'_>) -> Result<Fetched, PgError> {
        let mut fetched = Fetched::default();
        fetched.fly(wire, flight).await?;
        let mut after = Flight::default();
        fetched.add_parcels_of_live(&mut after);
        let named = fetched.groups.values().map(|(row, _)| row.key.clone()).collect();
        fetched.add_items(&mut after, &named, sight, i64::MAX);
        fetched.fly(wire, after).await?;
        Ok(fetched)
    }

    /// What follows from what is here: what shares an id with what may end, what open
    /// groups are to be sealed with, lines of keys, stages of parcels.
    async fn follow(
        &mut self,
        wire: &mut Wire,
        ending: BTreeSet<RequestId>,
        needs: &Needs,
        sight: &Sight<'_>,
    ) -> Result<(), PgError> {
        let mut more = self.more_named(ending);
        more.slots.clear();
        let mut flight = Flight::default();
        flight.add_named(&more);
        self.add_items(&mut flight, &needs.groups, sight, few(needs.prune).saturating_add(1));
        self.fly(wire, flight).await?;
        self.closed.extend(&more.ids);
        let mut flight = Flight::default();
        self.add_lines(&mut flight, needs, sight);
        self.add_parcels_of_live(&mut flight);
        self.add_groups_of_named(&mut flight);
        self.fly(wire, flight).await?;
        Ok(())
    }

    fn more_named(&self, ending: BTreeSet<RequestId>) -> Needs {
        let mut more = Needs { ids: ending, ..Needs::default() };
        for plan in self.tray.plans.values() {
            more.add_new(&plan.request);
        }
        for cold in self.tray.cold.values() {
            if let ColdReceipt::Seen { id, .. } = cold {
                more.ids.insert(*id);
            }
        }
        more.ids.retain(|id| !self.closed.contains(id) || more.bodies.contains(id));
        more
    }

    fn add_items(&self, flight: &mut Flight<'_>, named: &BTreeSet<GroupKey>, sight: &Sight<'_>, forgettable: i64) {
        let (mut groups, mut fews) = (Vec::new(), Vec::new());
        for (no, (row, _)) in &self.groups {
            // Of one that is to go, only as many as can go now; of one that is named or open, all.
            let goes = row.forget_at.is_some_and(|at| at <= sight.now);
            if !goes && !named.contains(&row.key) && row.state != GroupState::Open {
                continue;
            }
            groups.push(int(*no));
            fews.push(if goes && !named.contains(&row.key) { forgettable } else { i64::MAX });
        }
        if !groups.is_empty() {
            flight.add(Of::Items, ITEMS, vec![param(groups), param(fews)]);
        }
    }

    /// The lines of every key that is touched, as far as they can move up.
    fn add_lines(&self, flight: &mut Flight<'_>, needs: &Needs, sight: &Sight<'_>) {
        let keyed = sight.keyed();
        if keyed.is_empty() {
            return;
        }
        let mut touched: BTreeMap<(RouteNo, &OrderKey), i64> = BTreeMap::new();
        let live = self.live.values().filter_map(|loaded| Some((loaded.request.route, loaded.request.key.as_deref()?)));
        let numbers: BTreeMap<&RouteName, RouteNo> = sight.routes().map(|(no, name, _)| (name, no)).collect();
        let plans = self.tray.plans.values().filter_map(|plan| Some((&plan.request.route, plan.request.key.as_ref()?)));
        let new = needs.keys.iter().map(|(route, key)| (route, key)).chain(plans);
        let new = new.filter_map(|(route, key)| Some((*numbers.get(route)?, key)));
        for (route, key) in live.chain(new) {
            if let Some(per_key) = keyed.get(&route).filter(|_| !needs.routes.contains(&route)) {
                *touched.entry((route, key)).or_insert(i64::from(*per_key)) += 1;
            }
        }
        if touched.is_empty() {
            return;
        }
        let routes: Vec<i32> = touched.keys().map(|(route, _)| i32::from(route.0)).collect();
        let keys: Vec<String> = touched.keys().map(|(_, key)| key.to_string()).collect();
        let fews: Vec<i64> = touched.values().copied().collect();
        flight.add(Of::Live, LINES, vec![param(routes), param(keys), param(fews)]);
    }

    /// The parcels of requests that are on a slot: their stages are part of the state.
    fn add_parcels_of_live(&self, flight: &mut Flight<'_>) {
        let on_slot = self.live.values().filter_map(|loaded| match &loaded.request.state {
            State::Answered(answer) => match answer.delivery {
                Delivery::Assigned { lane, nonce } => Some((lane, nonce)),
                Delivery::Waiting | Delivery::Ready => None,
            },
            _ => None,
        });
        let missing: BTreeSet<_> = on_slot.filter(|slot| !self.parcels.contains_key(slot)).collect();
        if !missing.is_empty() {
            let (lanes, nonces): (Vec<i32>, Vec<i64>) = missing.iter().map(slot).unzip();
            flight.add(Of::Parcels, PARCELS, vec![param(lanes), param(nonces)]);
        }
    }

    /// The groups that refer to requests named otherwise than by id.
    fn add_groups_of_named(&self, flight: &mut Flight<'_>) {
        let others: BTreeSet<RequestId> = self.named.difference(&self.closed).copied().collect();
        if !others.is_empty() {
            flight.add(Of::Groups, GROUPS_OF, vec![param(id_bytes(&others))]);
        }
    }

    /// Flies, and takes in what comes; answers the ids of what may end.
    async fn fly(&mut self, wire: &mut Wire, flight: Flight<'_>) -> Result<BTreeSet<RequestId>, PgError> {
        let mut ending = BTreeSet::new();
        if flight.calls.is_empty() {
            return Ok(ending);
        }
        let answers = wire.fly("", flight.calls, "").await?;
        for (of, rows) in flight.of.into_iter().zip(answers) {
            for row in rows {
                self.take(of, &row, &mut ending)?;
            }
        }
        Ok(ending)
    }

    fn take(&mut self, of: Of, row: &Row, ending: &mut BTreeSet<RequestId>) -> Result<(), PgError> {
        match of {
            Of::Live => {
                self.take_live(row)?;
            }
            Of::Named => {
                let seq = self.take_live(row)?;
                self.named.extend(self.live.get(&seq).map(|loaded| loaded.request.id));
            }
            Of::Ending => {
                let seq = self.take_live(row)?;
                ending.extend(self.live.get(&seq).map(|loaded| loaded.request.id));
            }
            Of::WithBody => {
                let seq = self.take_live(row)?;
                self.tray.bodies.insert(seq, body(row, 6)?);
            }
            Of::Bodies => {
                self.tray.bodies.insert(Seq(uint(row.try_get(0)?)), body(row, 1)?);
            }
            Of::Responses => {
                self.tray.responses.insert(Seq(uint(row.try_get(0)?)), payload(row, 1)?);
            }
            Of::Ended => {
                let id = RequestId(hash("ended", row.try_get(0)?)?);
                self.tray.cold.insert(ColdKey::Request(id), decode("ended", row.try_get(1)?)?);
            }
            Of::Seen => {
                let id = OccurrenceId(hash("seen", row.try_get(0)?)?);
                self.tray.cold.insert(ColdKey::Occurrence(id), decode("seen", row.try_get(1)?)?);
            }
            Of::Parcels => {
                let slot = (LaneNo(small("parcel", row.try_get::<_, i32>(0)?)?), Nonce(uint(row.try_get(1)?)));
                self.parcels.insert(slot, decode("parcel", row.try_get(2)?)?);
            }
            Of::Groups => {
                let no = uint(row.try_get(0)?);
                let group: GroupRow = decode("grp", row.try_get(2)?)?;
                if let Some(plan) = &group.plan {
                    self.tray.plans.insert(no, plan.clone());
                }
                self.groups.insert(no, (group, row.try_get(1)?));
            }
            Of::Items => {
                let (group, id) = (uint(row.try_get(1)?), ItemId(hash("item", row.try_get(2)?)?));
                self.items.insert(uint(row.try_get(0)?), ItemRow { group, id, late: row.try_get(3)? });
            }
            Of::ExpiredIds => {
                let id = RequestId(hash("ended", row.try_get(0)?)?);
                self.tray.expired.push(ColdKey::Request(id));
            }
            Of::ExpiredOccurrences => {
                let id = OccurrenceId(hash("seen", row.try_get(0)?)?);
                self.tray.expired.push(ColdKey::Occurrence(id));
            }
            Of::Counted => {
                let route = RouteNo(small("counted", row.try_get::<_, i32>(0)?)?);
                self.counted.push((route, uint(row.try_get(1)?)));
            }
            Of::Paces => {
                let route = RouteNo(small("pace", row.try_get::<_, i32>(0)?)?);
                self.paces.insert(route, (uint(row.try_get(1)?), decode("pace", row.try_get(2)?)?));
            }
        }
        Ok(())
    }

    pub(super) fn take_live(&mut self, row: &Row) -> Result<Seq, PgError> {
        let seq = Seq(uint(row.try_get(0)?));
        if let Entry::Vacant(place) = self.live.entry(seq) {
            let record: Vec<u8> = row.try_get(1)?;
            let request: Request = decode("live", &record)?;
            let (state, turn) = (row.try_get(2)?, row.try_get(3)?);
            let listed = Listed { state, turn, due: row.try_get(4)?, deadline: row.try_get(5)? };
            place.insert(Loaded { request, record, listed });
        }
        Ok(seq)
    }
}

/// A moment by which a group is to be looked at, as its column says.
pub(super) fn timer(column: Option<i64>) -> When {
    column.map_or(When::NEVER, When::from_bits)
}

pub(super) fn body(row: &Row, at: usize) -> Result<Body, PgError> {
    let trace: Option<&[u8]> = row.try_get(at + 2)?;
    let trace = trace.map(|bytes| std::str::from_utf8(bytes).map(Box::from)).transpose();
    Ok(Body { payload: payload(row, at)?, trace: trace.map_err(|error| PgError::damaged("body", error))? })
}

pub(super) fn payload(row: &Row, at: usize) -> Result<Payload, PgError> {
    let encoding = match row.try_get::<_, i16>(at)? {
        0 => Encoding::Raw,
        1 => Encoding::Json,
        2 => Encoding::Cbor,
        3 => Encoding::Protobuf,
        other => return Err(PgError::damaged("payloads", format!("encoding {other}"))),
    };
    let bytes: Vec<u8> = row.try_get(at + 1)?;
    Ok(Payload { encoding, bytes: bytes.into() })
}

fn small(what: &str, number: i32) -> Result<u16, PgError> {
    u16::try_from(number).map_err(|error| PgError::damaged(what, error))
}

fn slot(&(lane, nonce): &(LaneNo, Nonce)) -> (i32, i64) {
    (i32::from(lane.0), int(nonce.0))
}

fn id_bytes(ids: &BTreeSet<RequestId>) -> Vec<Vec<u8>> {
    ids.iter().map(|id| id.0.to_vec()).collect()
}

fn occurrence_bytes(ids: &BTreeSet<OccurrenceId>) -> Vec<Vec<u8>> {
    ids.iter().map(|id| id.0.to_vec()).collect()
}

fn ranges(reached: &[(When, When)]) -> (Vec<i64>, Vec<i64>) {
    reached.iter().map(|(first, last)| (first.to_bits(), last.to_bits())).unzip()
}

pub(super) fn few(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
