//! What a batch may touch, as a pure function of the batch and the fixtures: what is to be
//! fetched before a machine on loan can do it.
//!
//! | operation | fetched |
//! |---|---|
//! | all | fixtures, counts per route, what has come due |
//! | define | the route's requests, if its policies change |
//! | admit, close, follow-ups, plans | live requests and receipts by id and by occurrence, with bodies |
//! | amend | by occurrence or id; to supersede, with bodies |
//! | extend, answer, fail, release, publish, mend, reject, parcels | live requests and receipts by id |
//! | lease | the first in the route's order, with bodies; what the claim holds |
//! | assign | how many parcels are under way on its lane; of a replay, those on its slots |
//! | attempt, settle, a cancel | the parcel on the slot, and the requests that it carries |
//! | fill | all parcels of the lane |
//! | gather, close, fire | the group with the ids of its items |
//! | rescue, expire, prune | what is due, in bounded number |
//!
//! With every live request come those that share its id, since its end moves them up, and on
//! routes with keys the first in line of its key.

use std::collections::{BTreeMap, BTreeSet};

use crate::inbox::{OriginNo, RouteNo, When};
use crate::outbox::LaneNo;
use crate::store::disk::Fixture;
use crate::store::op::{Amendment, ChainTick, Gather, NewRequest, Op, Order};
use crate::words::{
    ASSIGN_MAX, ClaimId, GroupKey, Height, LEASE_MAX, LaneName, Nonce, OccurrenceId, OrderKey, OriginName, Place,
    RequestId, RouteName, UPKEEP_MAX, UnixMs,
};

/// How many groups beyond its limit a `fire` may find without room.
const FULL_GROUPS_MAX: usize = 256;

/// How many requests leases of a route want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Wanted {
    pub(in crate::store) requests: usize,
    pub(in crate::store) leases: usize,
}

/// What is to be fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Needs {
    pub(in crate::store) ids: BTreeSet<RequestId>,
    /// Those of the ids whose live requests are needed with bodies.
    pub(in crate::store) bodies: BTreeSet<RequestId>,
    pub(in crate::store) occurrences: BTreeSet<OccurrenceId>,
    pub(in crate::store) leases: BTreeMap<RouteNo, Wanted>,
    pub(in crate::store) claims: BTreeSet<ClaimId>,
    pub(in crate::store) routes: BTreeSet<RouteNo>,
    /// Lanes whose parcels are needed, all of them.
    pub(in crate::store) lanes: BTreeSet<LaneNo>,
    /// Lanes of which it is needed how many parcels are under way.
    pub(in crate::store) windows: BTreeSet<LaneNo>,
    /// Slots whose parcels are needed.
    pub(in crate::store) parcels: BTreeSet<(LaneNo, Nonce)>,
    /// Slots whose deliveries are needed.
    pub(in crate::store) slots: BTreeSet<(LaneNo, Nonce)>,
    pub(in crate::store) groups: BTreeSet<GroupKey>,
    /// Keys of requests that come in.
    pub(in crate::store) keys: BTreeSet<(RouteName, OrderKey)>,
    pub(in crate::store) rescue: usize,
    pub(in crate::store) expire: usize,
    pub(in crate::store) fire: usize,
    pub(in crate::store) prune: usize,
    /// Every moment that has come lies in one of these ranges, one for each clock.
    pub(in crate::store) reached: Vec<(When, When)>,
    /// Heights below which receipts are forgotten.
    pub(in crate::store) floors: Vec<(OriginNo, Height)>,
}

/// The fixtures by name, as far as they are needed to tell what is.
#[derive(Default)]
struct Known<'a> {
    routes: BTreeMap<&'a RouteName, (RouteNo, &'a crate::store::policy::RoutePolicy)>,
    /// With the first slot that was never given out.
    lanes: BTreeMap<&'a LaneName, (LaneNo, Nonce)>,
    origins: BTreeMap<&'a OriginName, OriginMarks>,
}

struct OriginMarks {
    no: OriginNo,
    /// Height and time.
    head: Option<(Height, UnixMs)>,
    floor: Height,
}

impl<'a> Known<'a> {
    fn of(fixtures: impl Iterator<Item = &'a Fixture>) -> Known<'a> {
        let mut known = Known::default();
        for fixture in fixtures {
            match fixture {
                Fixture::Route { no, name, policy, .. } => {
                    known.routes.insert(name, (*no, policy));
                }
                Fixture::Lane { no, name, next, .. } => {
                    known.lanes.insert(name, (*no, *next));
                }
                Fixture::Origin { no, name, floor, head } => {
                    let head = head.map(|head| (head.height, head.at));
                    known.origins.insert(name, OriginMarks { no: *no, head, floor: *floor });
                }
                Fixture::Cursor { .. } | Fixture::Seat { .. } => {}
            }
        }
        known
    }

    /// A lane's slot that may have a parcel: one that was never given out has none.
    fn slot(&self, lane: &LaneName, nonce: Nonce) -> Option<(LaneNo, Nonce)> {
        self.lanes.get(lane).filter(|(_, next)| nonce < *next).map(|(no, _)| (*no, nonce))
    }

    fn raise_floor(&mut self, place: &Place) {
        if let Some(origin) = self.origins.get_mut(&place.origin) {
            origin.floor = origin.floor.max(place.height);
        }
    }

    fn raise_head(&mut self, tick: &ChainTick) {
        if let Some(origin) = self.origins.get_mut(&tick.origin) {
            origin.head = match origin.head {
                Some((height, at)) if height >= tick.height => Some((height, at)),
                head => Some((tick.height, head.map_or(tick.at, |(_, at)| at.max(tick.at)))),
            };
        }
    }
}

impl Needs {
    /// What this batch needs at this time.
    pub(in crate::store) fn of<'a>(batch: &[Op], fixtures: impl Iterator<Item = &'a Fixture>, now: UnixMs) -> Needs {
        let mut known = Known::of(fixtures);
        let mut needs = Needs::default();
        for op in batch {
            match op {
                Op::Tick(tick) => known.raise_head(tick),
                Op::Prune(prune) => prune.floors.iter().for_each(|place| known.raise_floor(place)),
                _ => {}
            }
            needs.add(op, &known);
        }
        // Whoever is named may leave a queue from which a lease then needs one more.
        let named = needs.ids.len() + needs.occurrences.len();
        needs.leases.values_mut().for_each(|wanted| wanted.requests += named);
        needs.reached.push((When::ALWAYS, When::at(now)));
        for origin in known.origins.values() {
            if let Some((height, time)) = origin.head {
                needs.reached.extend(When::reached_by(origin.no, height, time));
            }
            if needs.prune > 0 {
                needs.floors.push((origin.no, origin.floor));
            }
        }
        needs
    }

    fn add(&mut self, op: &Op, known: &Known<'_>) {
        match op {
            Op::Define(op) => {
                let changed = known.routes.get(&op.route).filter(|(_, policy)| **policy != op.policy);
                self.routes.extend(changed.map(|(no, _)| *no));
            }
            Op::Pause(_) | Op::Lead(_) | Op::Tick(_) => {}
            Op::Admit(op) => op.requests.iter().for_each(|request| self.add_new(request)),
            Op::Amend(op) => self.add_amendment(&op.change),
            Op::Lease(op) => {
                self.claims.insert(op.claim);
                if let Some((no, _)) = known.routes.get(&op.route) {
                    let wanted = self.leases.entry(*no).or_default();
                    wanted.requests += op.max.min(LEASE_MAX);
                    wanted.leases += 1;
                }
            }
            Op::Extend(op) => self.add_id(op.id),
            Op::Answer(op) => {
                self.add_id(op.id);
                op.follow_ups.iter().for_each(|request| self.add_new(request));
                op.items.iter().for_each(|item| self.add_item(item));
            }
            Op::Fail(op) => self.add_id(op.id),
            Op::Release(op) => self.add_id(op.id),
            Op::Publish(op) => self.add_id(op.id),
            Op::Mend(op) => self.add_id(op.id),
            Op::Reject(op) => self.add_id(op.id),
            Op::Already(op) => self.add_id(op.id),
            Op::Lane(op) => {
                if let Order::Cancel { nonce, .. } = op.order {
                    self.add_slot(known.slot(&op.lane, nonce));
                }
            }
            Op::Assign(op) => {
                let slots = op.parcels.iter().take(ASSIGN_MAX).zip((0..).map(|n| op.first.plus(n)));
                self.windows.extend(known.lanes.get(&op.lane).map(|(no, _)| *no));
                self.parcels.extend(slots.filter_map(|(_, nonce)| known.slot(&op.lane, nonce)));
                self.ids.extend(op.parcels.iter().flat_map(|parcel| parcel.deliveries.iter().copied()));
            }
            Op::Fill(op) => {
                self.lanes.extend(known.lanes.get(&op.lane).map(|(no, _)| *no));
                self.ids.extend(op.parcel.deliveries.iter().copied());
            }
            Op::Attempt(op) => self.add_slot(known.slot(&op.lane, op.nonce)),
            Op::Settle(op) => self.add_slot(known.slot(&op.lane, op.nonce)),
            Op::Rescue { limit } => self.rescue += (*limit).min(UPKEEP_MAX),
            Op::Expire { limit } => self.expire += (*limit).min(UPKEEP_MAX),
            Op::Fire { limit } => self.fire += (*limit).min(UPKEEP_MAX) + FULL_GROUPS_MAX,
            Op::Prune(op) => self.prune += op.limit.min(UPKEEP_MAX),
            Op::Gather(op) => self.add_item(op),
            Op::Close(op) => {
                self.groups.insert(op.group.clone());
                self.add_new(&op.request);
            }
        }
    }

    /// A parcel, with the requests that it carries.
    fn add_slot(&mut self, slot: Option<(LaneNo, Nonce)>) {
        self.parcels.extend(slot);
        self.slots.extend(slot);
    }

    fn add_id(&mut self, id: RequestId) {
        self.ids.insert(id);
    }

    /// A request that comes in: what it may repeat is compared by content.
    pub(in crate::store) fn add_new(&mut self, request: &NewRequest) {
        self.ids.insert(request.id);
        self.bodies.insert(request.id);
        self.occurrences.insert(request.occurrence);
        self.keys.extend(request.key.clone().map(|key| (request.route.clone(), key)));
    }

    fn add_item(&mut self, item: &Gather) {
        self.groups.insert(item.group.clone());
        if let Some(plan) = &item.plan {
            self.add_new(&plan.request);
        }
    }

    fn add_amendment(&mut self, change: &Amendment) {
        match change {
            Amendment::Finalize { occurrence }
            | Amendment::Orphan { occurrence }
            | Amendment::Include { occurrence, .. }
            | Amendment::Withdraw { occurrence } => {
                self.occurrences.insert(*occurrence);
            }
            Amendment::Supersede { id, occurrence, .. } => {
                self.ids.insert(*id);
                self.bodies.insert(*id);
                self.occurrences.insert(*occurrence);
            }
            Amendment::Elsewhere { id } => {
                self.ids.insert(*id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::listener::Head;
    use crate::sender::{AttemptKind, LaneStatus, ParcelStage, SignedAttempt};
    use crate::store::op::{Assign, ChainTick, Define, Extend, Fill, Lease, NewParcel, Prune, Settle, Sight};
    use crate::store::policy::RoutePolicy;
    use crate::words::{AttemptHash, Destination, Token, WorkerName};

    const NOW: UnixMs = UnixMs(1000);

    fn route() -> RouteName {
        RouteName::new("orders").unwrap()
    }

    fn origin() -> OriginName {
        OriginName::new("chain").unwrap()
    }

    fn needs(batch: &[Op]) -> Needs {
        let head = Some(Head { height: Height(7), at: NOW, told_at: NOW });
        let fixtures = [
            Fixture::Route { no: RouteNo(0), name: route(), policy: RoutePolicy::default(), paused: false },
            Fixture::Origin { no: OriginNo(3), name: origin(), floor: Height(2), head },
            Fixture::Lane {
                no: LaneNo(2),
                name: LaneName::new("lane").unwrap(),
                destination: Destination::new("chain").unwrap(),
                window: 4,
                next: Nonce(7),
                settled: Nonce(0),
                status: LaneStatus::Active,
            },
        ];
        Needs::of(batch, fixtures.iter(), NOW)
    }

    fn lease(max: usize) -> Op {
        let (worker, claim) = (WorkerName::new("w").unwrap(), ClaimId(9));
        Op::Lease(Lease { route: route(), worker, max, claim, lease_ms: None })
    }

    #[test]
    fn a_route_is_read_whole_only_if_its_policies_change() {
        let define = |policy| needs(&[Op::Define(Define { route: route(), policy })]).routes;
        assert_eq!(define(RoutePolicy::default()), BTreeSet::new());
        assert_eq!(define(RoutePolicy { capacity: 1, ..RoutePolicy::default() }), BTreeSet::from([RouteNo(0)]));
    }

    #[test]
    fn leases_reach_past_those_that_the_batch_names() {
        let id = RequestId([1; 32]);
        let extend = Op::Extend(Extend { id, token: Token { epoch: 1, count: 1 }, lease_ms: None });
        let wanted = |batch: &[Op]| needs(batch).leases[&RouteNo(0)];
        assert_eq!(wanted(&[lease(5)]), Wanted { requests: 5, leases: 1 });
        assert_eq!(wanted(&[lease(5), extend, lease(usize::MAX)]), Wanted { requests: 6 + LEASE_MAX, leases: 2 });
    }

    #[test]
    fn a_lane_is_asked_for_what_an_operation_looks_at() {
        let (lane, owner, no) = (LaneName::new("lane").unwrap(), Token { epoch: 1, count: 1 }, LaneNo(2));
        let attempt = SignedAttempt {
            hash: AttemptHash([1; 32]),
            kind: AttemptKind::Cancel,
            bytes: Default::default(),
            fee: None,
        };
        let parcel = || NewParcel { deliveries: Vec::new(), answers: Vec::new(), attempt: attempt.clone() };
        let assign = |first| {
            let (lane, parcels) = (lane.clone(), vec![parcel(), parcel(), parcel()]);
            Op::Assign(Assign { lane, owner, first: Nonce(first), parcels })
        };
        let slots = |nonces: &[u64]| nonces.iter().map(|nonce| (no, Nonce(*nonce))).collect::<BTreeSet<_>>();
        // What was never given out holds nothing.
        let new = needs(&[assign(7)]);
        assert_eq!((new.windows, new.parcels, new.lanes), ([no].into(), slots(&[]), BTreeSet::new()));
        assert_eq!(needs(&[assign(5)]).parcels, slots(&[5, 6]));
        let settle = |nonce| {
            let (lane, nonce, expected) = (lane.clone(), Nonce(nonce), ParcelStage::Assigned);
            Op::Settle(Settle { lane, owner, nonce, expected, sight: Sight::Displaced })
        };
        let settled = needs(&[settle(6), settle(7)]);
        assert_eq!((settled.parcels, settled.slots, settled.windows), (slots(&[6]), slots(&[6]), BTreeSet::new()));
        let fill = Op::Fill(Fill { lane: lane.clone(), owner, nonce: Nonce(3), parcel: parcel() });
        assert_eq!(needs(&[fill]).lanes, [no].into());
    }

    #[test]
    fn a_tick_and_a_floor_count_in_their_own_batch() {
        let wall = (When::ALWAYS, When::at(NOW));
        let chain = |height, time| {
            let [heights, times] = When::clocks_of(OriginNo(3));
            let last = When::block_time(OriginNo(3), UnixMs(time));
            [wall, (heights, When::height(OriginNo(3), Height(height))), (times, last)]
        };
        assert_eq!(needs(&[]).reached, chain(7, NOW.0));
        let tick = |height, at| Op::Tick(ChainTick { origin: origin(), height: Height(height), at: UnixMs(at) });
        assert_eq!(needs(&[tick(9, 2_000), tick(8, 3_000)]).reached, chain(9, 2_000), "only what is higher counts");
        assert_eq!(needs(&[tick(9, 10)]).reached, chain(9, NOW.0), "a clock does not go back");
        let floors = vec![Place { origin: origin(), height: Height(5) }];
        assert_eq!(needs(&[Op::Prune(Prune { limit: 4, floors })]).floors, [(OriginNo(3), Height(5))]);
    }
}
