//! Fetching what a batch needs, in as few flights as what depends on what allows.
//!
//! ```text
//!   what is named or due ──▶ what shares an id with what may end ──▶ lines of keys, parcels
//! ```

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::needs::{Needs, Wanted};
use super::tray::Tray;
use super::want::{Found, Lender, LiveRow, Want};
use super::{HashSet, Sight};
use crate::groups::GroupState;
use crate::inbox::{Request, RouteNo, State, StateKind, When};
use crate::outbox::{Delivery, LaneNo};
use crate::sender::Parcel;
use crate::store::disk::{ColdKey, ColdReceipt, GroupRow, ItemRow};
use crate::store::machine::{Listed, Loan, PROMOTE_MAX, Pace, random_place};
use crate::store::op::Op;
use crate::store::policy::QueueOrder;
use crate::words::{GroupKey, Nonce, OccurrenceId, OrderKey, REPLY_BYTES_MAX, RequestId, RouteName, Seq};

/// How many more are fetched for leases in random order that share a batch: each starts at
/// another place.
const RANDOM_MORE: usize = 256;
/// Of how many bytes those are that are fetched at once of a queue that ran short at hand.
const AHEAD_BYTES: usize = 4 << 20;

/// A live request as it was fetched. Whoever has it at hand lends it without a copy.
#[derive(Clone, Debug)]
pub(in crate::store) struct Loaded {
    pub(in crate::store) request: Request,
    /// The request's bytes as they are kept: what changed is told by comparing.
    pub(in crate::store) record: Vec<u8>,
    pub(in crate::store) listed: Listed,
}

/// What was fetched.
#[derive(Debug, Default)]
pub(super) struct Fetched {
    pub(super) live: BTreeMap<Seq, Arc<Loaded>>,
    pub(super) parcels: BTreeMap<(LaneNo, Nonce), Parcel>,
    /// How many parcels are under way, of lanes where that was asked.
    pub(super) under_way: BTreeMap<LaneNo, u64>,
    pub(super) groups: BTreeMap<u64, (GroupRow, When)>,
    pub(super) items: BTreeMap<u64, ItemRow>,
    pub(super) counted: BTreeMap<(RouteNo, StateKind), u64>,
    pub(super) paces: BTreeMap<RouteNo, (u64, Pace)>,
    pub(super) tray: Tray,
    /// Ids of requests that operations name, by occurrence or slot too: they may end.
    named: BTreeSet<RequestId>,
    /// Ids whose live requests are all here, and whose receipts are if there are any.
    pub(super) closed: HashSet<RequestId>,
    /// Occurrences whose receipts are here if there are any.
    pub(super) looked_up: HashSet<OccurrenceId>,
    /// Up to where all are here that may be handed out, by route.
    pub(super) reach: BTreeMap<RouteNo, (u64, Seq)>,
    /// Ids of requests that may end although nobody names them.
    ending: BTreeSet<RequestId>,
}

impl Fetched {
    /// Everything that a batch needs, beyond what its first wants found.
    pub(super) async fn all<L: Lender>(
        lender: &mut L,
        first: &First,
        found: Vec<Found>,
        sight: &Sight<'_>,
    ) -> Result<Fetched, L::Error> {
        let mut fetched = Fetched::default();
        fetched.take_all(&first.wants, found);
        fetched.closed.extend(&first.needs.ids);
        fetched.follow(lender, &first.needs, sight).await?;
        Ok(fetched)
    }

    /// Bodies that nobody foresaw: of what was queued by the very batch that leases it.
    pub(super) async fn take_bodies<L: Lender>(&mut self, lender: &mut L, seqs: Vec<Seq>) -> Result<(), L::Error> {
        self.fly(lender, vec![Want::BodiesOf { seqs, bytes: REPLY_BYTES_MAX }]).await
    }

    /// What these needs name, for a read.
    pub(super) async fn named<L: Lender>(
        lender: &mut L,
        needs: &Needs,
        sight: &Sight<'_>,
    ) -> Result<Fetched, L::Error> {
        let mut wants = named(needs);
        if !needs.ids.is_empty() {
            wants.extend([Want::Bodies(needs.bodies.clone()), Want::Responses(needs.ids.clone())]);
        }
        wants.extend(of_sets(needs));
        Fetched::by(lender, wants, sight).await
    }

    /// The next of a queue, with what answers to them will need besides: each of them is the first of its id, so
    /// those are its receipt, those of its occurrences, and whoever is held behind it. What is news has no receipts.
    pub(super) async fn queue<L: Lender>(
        lender: &mut L,
        sight: &Sight<'_>,
        (route, after, requests): (RouteNo, (u64, Seq), usize),
        some_are_held: bool,
    ) -> Result<Fetched, L::Error> {
        let reached = Needs::of(&[], sight.fixtures.values(), sight.numbers.now).reached;
        let next = Want::Next { route, after, requests, reached, bytes: AHEAD_BYTES };
        let wants = [next];
        let found = lender.fly(&wants).await?;
        let (mut ids, mut ended, mut shown) = (HashSet::default(), BTreeSet::new(), BTreeSet::new());
        for row in found.iter().flat_map(Found::live) {
            let request = &row.loaded.request;
            ids.insert(request.id);
            if !row.is_news {
                ended.insert(request.id);
                shown.extend(request.occurrences.as_slice().iter().map(|occurrence| occurrence.id));
            }
        }
        let mut fetched = Fetched::default();
        fetched.take_all(&wants, found);
        let mut wants = vec![Want::Ended(ended), Want::Seen(shown)];
        wants.extend(some_are_held.then(|| Want::Behind(ids.iter().copied().collect())));
        fetched.fly(lender, wants).await?;
        fetched.closed = ids;
        Ok(fetched)
    }

    /// What one flight brings, for a read.
    pub(super) async fn by<L: Lender>(
        lender: &mut L,
        wants: Vec<Want>,
        sight: &Sight<'_>,
    ) -> Result<Fetched, L::Error> {
        let mut fetched = Fetched::default();
        fetched.fly(lender, wants).await?;
        let named = fetched.groups.values().map(|(row, _)| row.key.clone()).collect();
        let items = fetched.items_of(&named, sight, usize::MAX);
        let after = fetched.parcels_of_live().into_iter().chain(items).collect();
        fetched.fly(lender, after).await?;
        Ok(fetched)
    }

    /// What follows from what is here: what shares an id with what may end, what open
    /// groups are to be sealed with, lines of keys, stages of parcels.
    async fn follow<L: Lender>(&mut self, lender: &mut L, needs: &Needs, sight: &Sight<'_>) -> Result<(), L::Error> {
        let more = self.more_named();
        let mut wants = named(&more);
        wants.extend(self.bodies_of(&needs.bodies));
        wants.extend(self.items_of(&needs.groups, sight, needs.prune.saturating_add(1)));
        self.fly(lender, wants).await?;
        self.closed.extend(&more.ids);
        let bodies = more.bodies.difference(&needs.bodies).copied().collect();
        let wants = [self.bodies_of(&bodies), self.lines(needs, sight), self.parcels_of_live(), self.groups_of_named()];
        self.fly(lender, wants.into_iter().flatten().collect()).await
    }

    /// The bodies of those that are live: most requests that come in are new, and repeat nothing.
    fn bodies_of(&self, ids: &BTreeSet<RequestId>) -> Option<Want> {
        if ids.is_empty() {
            return None;
        }
        let live: BTreeSet<RequestId> = self.live.values().map(|loaded| loaded.request.id).collect();
        let known: BTreeSet<RequestId> = ids.intersection(&live).copied().collect();
        (!known.is_empty()).then_some(Want::Bodies(known))
    }

    fn more_named(&self) -> Needs {
        let mut more = Needs { ids: self.ending.clone(), ..Needs::default() };
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

    fn items_of(&self, named: &BTreeSet<GroupKey>, sight: &Sight<'_>, forgettable: usize) -> Option<Want> {
        let mut of = Vec::new();
        for (no, (row, _)) in &self.groups {
            // Of one that is to go, only as many as can go now; of one that is named or open, all.
            let goes = row.forget_at.is_some_and(|at| at <= sight.numbers.now);
            if !goes && !named.contains(&row.key) && row.state != GroupState::Open {
                continue;
            }
            of.push((*no, if goes && !named.contains(&row.key) { forgettable } else { usize::MAX }));
        }
        (!of.is_empty()).then_some(Want::Items(of))
    }

    /// The lines of every key that is touched, as far as they can move up.
    fn lines(&self, needs: &Needs, sight: &Sight<'_>) -> Option<Want> {
        let keyed = sight.keyed();
        if keyed.is_empty() {
            return None;
        }
        let mut touched: BTreeMap<(RouteNo, &OrderKey), usize> = BTreeMap::new();
        let live = self.live.values().filter_map(|loaded| Some((loaded.request.route, loaded.request.key.as_deref()?)));
        let numbers: BTreeMap<&RouteName, RouteNo> = sight.routes().map(|(no, name, _)| (name, no)).collect();
        let plans = self.tray.plans.values().filter_map(|plan| Some((&plan.request.route, plan.request.key.as_ref()?)));
        let new = needs.keys.iter().map(|(route, key)| (route, key)).chain(plans);
        let new = new.filter_map(|(route, key)| Some((*numbers.get(route)?, key)));
        for (route, key) in live.chain(new) {
            if let Some(per_key) = keyed.get(&route).filter(|_| !needs.routes.contains(&route)) {
                *touched.entry((route, key)).or_insert(usize::from(*per_key)) += 1;
            }
        }
        let lines: Vec<_> = touched.into_iter().map(|((route, key), few)| (route, key.clone(), few)).collect();
        (!lines.is_empty()).then_some(Want::Lines(lines))
    }

    /// The parcels of requests that are on a slot: their stages are part of the state.
    fn parcels_of_live(&self) -> Option<Want> {
        let on_slot = self.live.values().filter_map(|loaded| match &loaded.request.state {
            State::Answered(answer) => match answer.delivery {
                Delivery::Assigned { lane, nonce } => Some((lane, nonce)),
                Delivery::Waiting | Delivery::Ready => None,
            },
            _ => None,
        });
        let missing: BTreeSet<_> = on_slot.filter(|slot| !self.parcels.contains_key(slot)).collect();
        (!missing.is_empty()).then_some(Want::Parcels(missing))
    }

    /// The groups that refer to requests named otherwise than by id.
    fn groups_of_named(&self) -> Option<Want> {
        let others: BTreeSet<RequestId> = self.named.iter().filter(|id| !self.closed.contains(id)).copied().collect();
        (!others.is_empty()).then_some(Want::GroupsOf(others))
    }

    /// Flies, and takes in what comes.
    pub(super) async fn fly<L: Lender>(&mut self, lender: &mut L, wants: Vec<Want>) -> Result<(), L::Error> {
        if wants.is_empty() {
            return Ok(());
        }
        let found = lender.fly(&wants).await?;
        self.take_all(&wants, found);
        Ok(())
    }

    fn take_all(&mut self, wants: &[Want], found: Vec<Found>) {
        debug_assert_eq!(wants.len(), found.len(), "an answer for each want");
        wants.iter().zip(found).for_each(|(want, found)| self.take(want, found));
    }

    fn take(&mut self, want: &Want, found: Found) {
        match found {
            Found::Live(rows) => {
                self.note_reach(want, &rows);
                rows.into_iter().for_each(|row| self.take_live(want, row));
            }
            Found::Bodies(rows) => self.tray.bodies.extend(rows),
            Found::Responses(rows) => self.tray.responses.extend(rows),
            Found::Receipts(rows) => {
                if let Want::Seen(occurrences) = want {
                    self.looked_up.extend(occurrences);
                }
                self.tray.cold.extend(rows);
            }
            Found::Expired(rows) => self.tray.expired.extend(rows),
            Found::Parcels(rows) => self.parcels.extend(rows),
            Found::UnderWay(rows) => {
                if let Want::UnderWay(lanes) = want {
                    self.under_way.extend(lanes.iter().map(|lane| (*lane, 0)));
                }
                self.under_way.extend(rows);
            }
            Found::Groups(rows) => {
                for (no, row, timer) in rows {
                    self.tray.plans.extend(row.plan.clone().map(|plan| (no, plan)));
                    self.groups.insert(no, (row, timer));
                }
            }
            Found::Items(rows) => self.items.extend(rows),
            Found::ItemPayloads(rows) => self.tray.item_payloads.extend(rows),
            Found::Entries(rows) => self.tray.journal.extend(rows.into_iter().map(|entry| (entry.position, entry))),
            Found::Counted(rows) => self.counted.extend(rows),
            Found::Paces(rows) => self.paces.extend(rows.into_iter().map(|(no, epoch, pace)| (no, (epoch, pace)))),
            // Asked for by a read that needs nothing else, and answers by itself.
            Found::Counts(_) => {}
        }
    }

    /// All that come before the last of these are among them.
    fn note_reach(&mut self, want: &Want, rows: &[LiveRow]) {
        let (Want::Turns { route, from: 0, .. } | Want::Next { route, .. }) = want else { return };
        let last = rows.iter().filter_map(|row| Some((row.loaded.listed.turn?, row.loaded.request.seq))).max();
        self.reach.extend(last.map(|last| (*route, last)));
    }

    fn take_live(&mut self, want: &Want, row: LiveRow) {
        let LiveRow { loaded, body, response, is_news } = row;
        let (request, seq) = (&loaded.request, loaded.request.seq);
        if is_news {
            self.looked_up.extend(request.occurrences.as_slice().iter().map(|occurrence| occurrence.id));
        }
        match want {
            Want::Named { .. } => {
                self.named.insert(request.id);
            }
            Want::Overdue { .. } | Want::Dead { .. } | Want::Routes(_) => {
                self.ending.insert(request.id);
            }
            _ => {}
        }
        self.tray.bodies.extend(body.map(|body| (seq, body)));
        self.tray.responses.extend(response.map(|response| (seq, response)));
        if let Entry::Vacant(place) = self.live.entry(seq) {
            place.insert(loaded);
        }
    }

    /// Whether a receipt was looked for, and none is there.
    pub(super) fn is_absent(&self, key: &ColdKey) -> bool {
        let looked_for = match key {
            ColdKey::Request(id) => self.closed.contains(id),
            ColdKey::Occurrence(occurrence) => self.looked_up.contains(occurrence),
        };
        looked_for && !self.tray.cold.contains_key(key)
    }

    /// What is fetched, as a machine borrows it.
    pub(super) fn loan(&self, sight: &Sight<'_>) -> Loan {
        let numbers = sight.numbers;
        let paces = self.paces.iter().filter(|(_, (epoch, _))| *epoch == numbers.newest_epoch);
        Loan {
            epoch: sight.epoch,
            tokens: sight.tokens,
            newest_epoch: numbers.newest_epoch,
            now: numbers.now,
            high: numbers.high,
            first_entry: numbers.journal_floor,
            fixtures: sight.fixtures.values().cloned().collect(),
            requests: self.live.values().map(|loaded| loaded.request.clone()).collect(),
            parcels: self.parcels.iter().map(|((lane, nonce), parcel)| (*lane, *nonce, parcel.clone())).collect(),
            under_way: self.under_way.iter().map(|(lane, parcels)| (*lane, *parcels)).collect(),
            groups: self.groups.iter().map(|(no, (row, at))| (*no, row.clone(), *at)).collect(),
            items: self.items.iter().map(|(no, row)| (*no, *row)).collect(),
            live: by_route(&self.counted),
            paces: paces.map(|(no, (_, pace))| (*no, pace.clone())).collect(),
        }
    }
}

/// How many there are of each route, whatever their state.
fn by_route(counted: &BTreeMap<(RouteNo, StateKind), u64>) -> Vec<(RouteNo, u64)> {
    let mut routes: BTreeMap<RouteNo, u64> = BTreeMap::new();
    for ((route, _), requests) in counted {
        *routes.entry(*route).or_default() += requests;
    }
    routes.into_iter().collect()
}

/// What a batch wants first.
#[derive(Debug)]
pub(in crate::store) struct First {
    needs: Needs,
    pub(in crate::store) wants: Vec<Want>,
}

impl First {
    /// What can be asked before anything is known but the batch and the fixtures. The time
    /// may be a guess: what it leaves out comes with the next batch.
    pub(in crate::store) fn of(batch: &[Op], sight: &Sight<'_>) -> First {
        let needs = Needs::of(batch, sight.fixtures.values(), sight.numbers.now);
        First { wants: first_wants(&needs, sight), needs }
    }
}

fn first_wants(needs: &Needs, sight: &Sight<'_>) -> Vec<Want> {
    let mut wants = named(needs);
    wants.extend(leases(needs, sight));
    wants.extend(duties(needs, sight));
    if !needs.routes.is_empty() {
        wants.push(Want::Routes(needs.routes.clone()));
    }
    wants.extend(of_sets(needs));
    wants.extend([Want::Counted, Want::Paces]);
    wants
}

fn named(needs: &Needs) -> Vec<Want> {
    let Needs { ids, occurrences, slots, .. } = needs;
    let mut wants = Vec::new();
    if !ids.is_empty() || !occurrences.is_empty() || !slots.is_empty() {
        wants.push(Want::Named { ids: ids.clone(), occurrences: occurrences.clone(), slots: slots.clone() });
    }
    if !ids.is_empty() {
        wants.extend([Want::Ended(ids.clone()), Want::GroupsOf(ids.clone())]);
    }
    if !occurrences.is_empty() {
        wants.push(Want::Seen(occurrences.clone()));
    }
    wants
}

fn leases(needs: &Needs, sight: &Sight<'_>) -> Vec<Want> {
    let turns = |(&route, &Wanted { requests, leases }): (&RouteNo, &Wanted)| {
        let (from, more) = match sight.order(route) {
            Some(QueueOrder::Random) => (random_place(sight.epoch, sight.tokens), RANDOM_MORE * (leases - 1)),
            // Those that come first are past theirs.
            Some(QueueOrder::Deadline) => (sight.numbers.now.0.saturating_add(1), 0),
            _ => (0, 0),
        };
        let bytes = REPLY_BYTES_MAX.saturating_mul(leases);
        Want::Turns { route, requests: requests + more, reached: needs.reached.clone(), bytes, from }
    };
    let mut wants: Vec<Want> = needs.leases.iter().map(turns).collect();
    if !needs.claims.is_empty() {
        wants.push(Want::Claimed(needs.claims.clone()));
    }
    wants
}

fn duties(needs: &Needs, sight: &Sight<'_>) -> Vec<Want> {
    let now = sight.numbers.now;
    let reached = || needs.reached.clone();
    let mut wants = vec![Want::Due { reached: reached(), limit: PROMOTE_MAX }];
    if needs.rescue > 0 {
        wants.push(Want::Silent { now, limit: needs.rescue });
    }
    if needs.expire > 0 {
        wants.push(Want::Overdue { reached: reached(), limit: needs.expire });
    }
    if needs.fire > 0 {
        wants.push(Want::Fired { reached: reached(), limit: needs.fire });
    }
    if needs.prune > 0 {
        let limit = needs.prune;
        wants.push(Want::Dead { now, limit });
        wants.push(Want::Outlived { now, limit });
        wants.push(Want::ExpiredIds { now, limit });
        wants.push(Want::ExpiredOccurrences { now, limit, floors: needs.floors.clone() });
    }
    wants
}

fn of_sets(needs: &Needs) -> Vec<Want> {
    let mut wants = Vec::new();
    if !needs.lanes.is_empty() {
        wants.push(Want::Lanes(needs.lanes.clone()));
    }
    if !needs.windows.is_empty() {
        wants.push(Want::UnderWay(needs.windows.clone()));
    }
    if !needs.parcels.is_empty() {
        wants.push(Want::Parcels(needs.parcels.clone()));
    }
    if !needs.groups.is_empty() {
        wants.push(Want::Groups(needs.groups.clone()));
    }
    wants
}
