//! The state machine behind the memory and the SQLite store: all live records with
//! their indexes, and one function per operation, in one file per station.
//!
//! ```text
//!   Op ──▶ apply ──▶ station function ──▶ change one record, re-list it, note it ──▶ Outcome
//!                                                     │
//!                                        flush: rows of what changed ──▶ Disk
//! ```
//!
//! The machine never waits, never reads a clock and never fails; a disk that fails
//! keeps the failure for the commit to report, and the machine is then thrown away
//! and loaded again. So its state is always one that was, or is about to be, durable.

mod admit;
mod amend;
mod behind;
#[cfg(test)]
mod explore;
mod gather;
mod line;
mod load;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod loan;
mod pace;
mod publish;
mod read;
mod receipts;
mod send;
mod slots;
mod upkeep;
mod work;

use std::collections::{BTreeMap, BTreeSet};

use line::{Lines, Ranked};
pub(crate) use load::next_epoch;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use loan::{Listed, Loan};
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use pace::Pace;
#[cfg(not(any(feature = "postgres", feature = "redis")))]
use pace::Pace;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use read::{LOOK_MAX, TIMELINE_MAX};
use receipts::HotReceipts;
pub(crate) use receipts::cold_keys;
use slots::Slots;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use work::random_place;

use crate::groups::GroupState;
use crate::inbox::{AnswerMark, Clocks, End, LeaseMark, OriginNo, Receipt, Request, RouteNo, State, StateKind, When};
use crate::listener::{Cursor, Origin};
use crate::outbox::{Delivery, LaneNo};
use crate::sender::{Lane, LaneStatus, ParcelStage};
use crate::store::disk::{ColdReceipt, Disk, Fixture, HighWater, Mark, Tenure};
use crate::store::journal::{Event, KeptEntry, Subject};
use crate::store::op::{Effect, Invalid, Missing, Op, Outcome, Seat, Stale};
use crate::store::policy::{Horizon, QueueOrder, RoutePolicy};
use crate::store::witness::{LaneStep, Move, RequestStep};
use crate::store::{News, Options, Topic};
use crate::words::{
    ClaimId, Destination, ErrorClass, ErrorNote, GroupKey, Height, ItemId, LaneName, ListenerName, Moment, Nonce,
    OccurrenceId, OriginName, RequestId, RouteName, Seq, Token, UnixMs,
};

/// How many requests one batch queues because their moment has come; the next goes on.
pub(crate) const PROMOTE_MAX: usize = 4096;
/// Most routes, lanes or origins.
const NAMES_MAX: usize = u16::MAX as usize;

/// Maps are looked up for every operation; keys that outsiders choose are hashed with a
/// seed of the process's own.
type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// A record's place in memory; never leaves the machine.
type Slot = u32;

/// A route with its requests, listed by state.
#[derive(Clone, Debug)]
struct Route {
    name: RouteName,
    policy: RoutePolicy,
    paused: bool,
    lists: [BTreeMap<Seq, Slot>; StateKind::LIVE.len()],
    /// Queued requests in the order of their turn; unused by plain fifo.
    ranked: Ranked,
    lines: Lines,
    pace: Pace,
    /// How many live requests it has besides those that are here: none, unless this
    /// machine is on loan.
    elsewhere: u64,
}

impl Route {
    fn new(name: RouteName, policy: RoutePolicy, paused: bool) -> Route {
        let (lists, ranked, lines, pace) = Default::default();
        Route { name, policy, paused, lists, ranked, lines, pace, elsewhere: 0 }
    }

    fn live(&self) -> u64 {
        self.elsewhere + self.lists.iter().map(|list| list.len() as u64).sum::<u64>()
    }
}

#[derive(Clone, Debug)]
struct Group {
    no: u64,
    state: GroupState,
    /// The items, and whether each was late.
    members: HashMap<ItemId, bool>,
    /// The items' numbers and whether each was late, in the order of arrival.
    order: Vec<(u64, ItemId, bool)>,
    late: u64,
    forget_at: Option<UnixMs>,
    /// How it seals itself, while it is open.
    plan: Option<Planned>,
    /// Where it is among the timers.
    timer: Option<When>,
}

/// A group's plan, less its request, which only the disk keeps.
#[derive(Clone, Copy, Debug)]
struct Planned {
    items: u64,
    at: When,
}

impl Group {
    fn new(no: u64, state: GroupState, forget_at: Option<UnixMs>) -> Group {
        let (members, order) = (HashMap::default(), Vec::new());
        Group { no, state, members, order, late: 0, forget_at, plan: None, timer: None }
    }

    /// Whether it has as many items as its plan waits for.
    fn is_full(&self) -> bool {
        self.plan.is_some_and(|plan| self.in_time() >= plan.items)
    }

    /// When it is to be sealed; at once if it is full and its route had no room before.
    fn seal_at(&self) -> When {
        match self.plan {
            Some(_) if self.is_full() => When::ALWAYS,
            Some(plan) => plan.at,
            None => When::NEVER,
        }
    }

    fn push(&mut self, no: u64, id: ItemId, late: bool) {
        self.members.insert(id, late);
        self.order.push((no, id, late));
        self.late += u64::from(late);
    }

    fn in_time(&self) -> u64 {
        self.order.len() as u64 - self.late
    }
}

/// All live state of a store.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    options: Options,
    epoch: u64,
    tokens: u64,
    /// The newest epoch of all processes that share the store, if it is shared.
    newest_epoch: Option<u64>,
    high: HighWater,
    requests: Slots,
    routes: Vec<Route>,
    route_numbers: HashMap<RouteName, RouteNo>,
    origins: Vec<Origin>,
    lanes: Vec<Lane>,
    lane_numbers: HashMap<LaneName, LaneNo>,
    cursors: BTreeMap<ListenerName, Cursor>,
    seats: BTreeMap<Seat, Tenure>,
    groups: HashMap<GroupKey, Group>,
    /// The groups that a live request refers to; one, unless callers gave two the same request.
    groups_of: HashMap<RequestId, Vec<GroupKey>>,
    /// Sealed groups whose request has ended, by when they may be forgotten.
    groups_to_forget: BTreeSet<(UnixMs, GroupKey)>,
    /// Open groups that seal themselves, by when and by number.
    timers: BTreeMap<(When, u64), GroupKey>,
    receipts: HotReceipts,
    outbox: HashMap<Destination, BTreeMap<Seq, Slot>>,
    leases: BTreeMap<(UnixMs, Seq), Slot>,
    claims: BTreeMap<(ClaimId, Seq), Slot>,
    due: BTreeMap<(When, Seq), Slot>,
    deadlines: BTreeMap<(When, Seq), Slot>,
    dead: BTreeMap<(UnixMs, Seq), Slot>,
    behind: BTreeMap<(RequestId, Seq), Slot>,
    dirty: Vec<Slot>,
    /// Leases granted since the last flush. The flush after the next one writes them:
    /// most are answered by then, and never need to be written at all.
    fresh_leases: Vec<Slot>,
    dirty_lanes: BTreeSet<LaneNo>,
    high_flushed: HighWater,
    entries: Vec<KeptEntry>,
    /// The first entry that the journal had when it was opened.
    journal_first: u64,
    touched: BTreeSet<Topic>,
    /// What a witness is to be told.
    moves: Vec<Move>,
    /// Origins whose head has moved on, until all that waited for it is queued.
    ticked: Vec<OriginNo>,
    /// How many more requests this batch may queue because their moment has come.
    promotions_left: usize,
    now: UnixMs,
}

impl Machine {
    /// An empty machine in this epoch.
    pub(crate) fn new(options: Options, epoch: u64) -> Machine {
        let high = HighWater { seq: 1, entry: 1, receipt: 1, item: 1, group: 1 };
        Machine {
            receipts: HotReceipts::new(high.receipt),
            options,
            epoch,
            tokens: 0,
            newest_epoch: None,
            high,
            requests: Slots::default(),
            routes: Vec::new(),
            route_numbers: HashMap::default(),
            origins: Vec::new(),
            lanes: Vec::new(),
            lane_numbers: HashMap::default(),
            cursors: BTreeMap::new(),
            seats: BTreeMap::new(),
            groups: HashMap::default(),
            groups_of: HashMap::default(),
            groups_to_forget: BTreeSet::new(),
            timers: BTreeMap::new(),
            outbox: HashMap::default(),
            leases: BTreeMap::new(),
            claims: BTreeMap::new(),
            due: BTreeMap::new(),
            deadlines: BTreeMap::new(),
            dead: BTreeMap::new(),
            behind: BTreeMap::new(),
            dirty: Vec::new(),
            fresh_leases: Vec::new(),
            dirty_lanes: BTreeSet::new(),
            high_flushed: high,
            entries: Vec::new(),
            journal_first: 1,
            touched: BTreeSet::new(),
            moves: Vec::new(),
            ticked: Vec::new(),
            promotions_left: 0,
            now: UnixMs(0),
        }
    }

    /// Starts a batch: sets its one time and queues what has come due.
    ///
    /// Time may step back. Nothing is then undone; what waits for a time waits for it
    /// to come round again.
    pub(crate) fn tick<D: Disk>(&mut self, disk: &mut D, now: UnixMs) {
        self.now = now;
        self.promotions_left = PROMOTE_MAX;
        self.promote(disk);
    }

    /// Queues what has come due, as far as the batch's share goes.
    fn promote<D: Disk>(&mut self, disk: &mut D) {
        while self.promotions_left > 0
            && let Some(slot) = self.next_ripe()
        {
            self.promotions_left -= 1;
            self.regate(disk, slot);
        }
    }

    /// A request that is held although its moment has come.
    fn next_ripe(&mut self) -> Option<Slot> {
        match self.due.first_key_value() {
            Some((&(first, _), &slot)) if first.wall().is_some_and(|due| due <= self.now) => return Some(slot),
            _ => {}
        }
        while let Some(&origin) = self.ticked.last() {
            match When::clocks_of(origin).into_iter().find_map(|first| self.ripe_from(first)) {
                Some(slot) => return Some(slot),
                None => self.ticked.pop(),
            };
        }
        None
    }

    /// The first that is due at this moment or later, if its moment has come.
    fn ripe_from(&self, first: When) -> Option<Slot> {
        let (&(due, _), &slot) = self.due.range((first, Seq(0))..).next()?;
        self.clocks().reached(due).then_some(slot)
    }

    /// When a batch next has something to queue because its moment has come: at once, if
    /// more had come than the last one took; `None` while nothing waits for a time.
    #[cfg_attr(
        not(feature = "sqlite"),
        allow(dead_code, reason = "for the thread that owns a file, to wake by itself")
    )]
    pub(crate) fn next_due(&self) -> Option<UnixMs> {
        if !self.ticked.is_empty() {
            return Some(self.now);
        }
        let (&(first, _), _) = self.due.first_key_value()?;
        first.wall().filter(|_| first != When::NEVER)
    }

    fn clocks(&self) -> Clocks<'_> {
        Clocks { now: self.now, origins: &self.origins }
    }

    /// A moment as the store keeps it.
    fn when<D: Disk>(&mut self, disk: &mut D, moment: Option<&Moment>) -> Option<When> {
        moment.map(|moment| match moment {
            Moment::At(time) => When::at(*time),
            Moment::Height(place) => When::height(self.origin_no(disk, &place.origin), place.height),
            Moment::BlockTime { origin, at } => When::block_time(self.origin_no(disk, origin), *at),
        })
    }

    /// Sets the time at which the next reads happen.
    pub(crate) fn set_now(&mut self, now: UnixMs) {
        self.now = now;
    }

    /// Does one operation, or none of it.
    pub(crate) fn apply<D: Disk>(&mut self, disk: &mut D, op: Op) -> Outcome {
        match op {
            Op::Define(op) => self.define(disk, op),
            Op::Pause(op) => self.pause(disk, op),
            Op::Admit(op) => self.admit(disk, op),
            Op::Amend(op) => self.amend(disk, op),
            Op::Lease(op) => self.lease(disk, op),
            Op::Extend(op) => self.extend(disk, op),
            Op::Answer(op) => self.answer(disk, op),
            Op::Fail(op) => self.fail(disk, op),
            Op::Release(op) => self.release(disk, op),
            Op::Lead(op) => self.lead(disk, op),
            Op::Lane(op) => self.order_lane(disk, op),
            Op::Assign(op) => self.assign(disk, op),
            Op::Fill(op) => self.fill(disk, op),
            Op::Reject(op) => self.reject(disk, op),
            Op::Already(op) => self.already(disk, op),
            Op::Attempt(op) => self.attempt(disk, op),
            Op::Settle(op) => self.settle(disk, op),
            Op::Tick(op) => self.tick_origin(disk, op),
            Op::Rescue { limit } => self.rescue(disk, limit),
            Op::Expire { limit } => self.expire(disk, limit),
            Op::Publish(op) => self.publish(disk, op),
            Op::Fire { limit } => self.fire(disk, limit),
            Op::Prune(op) => self.prune(disk, op),
            Op::Gather(op) => self.gather(disk, op),
            Op::Close(op) => self.close(disk, op),
            Op::Mend(op) => self.mend(disk, op),
        }
        .unwrap_or_else(|refusal| refusal)
    }

    /// Whether something changed that no row on disk shows yet.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
            || !self.fresh_leases.is_empty()
            || !self.dirty_lanes.is_empty()
            || !self.entries.is_empty()
            || self.high != self.high_flushed
    }

    /// Writes the rows of all that changed since the last flush, each once.
    pub(crate) fn flush<D: Disk>(&mut self, disk: &mut D) {
        for slot in std::mem::take(&mut self.dirty) {
            let Some(request) = self.requests.get_mut_if_live(slot) else { continue };
            if !std::mem::take(&mut request.rows.dirty) {
                continue;
            }
            if request.needs_mark() {
                disk.put_mark(request.seq, &request.mark());
                request.rows.has_mark = true;
            } else if std::mem::take(&mut request.rows.has_mark) {
                disk.delete_mark(request.seq);
            }
        }
        self.dirty = std::mem::take(&mut self.fresh_leases);
        for &slot in &self.dirty {
            if let Some(request) = self.requests.get_mut_if_live(slot) {
                request.rows.dirty = true;
            }
        }
        for no in std::mem::take(&mut self.dirty_lanes) {
            let lane = &self.lanes[usize::from(no.0)];
            disk.put_fixture(&Fixture::Lane {
                no,
                name: lane.name.clone(),
                destination: lane.destination.clone(),
                window: lane.window,
                next: lane.next,
                settled: lane.settled,
                status: lane.status.clone(),
            });
        }
        if !self.entries.is_empty() || self.high != self.high_flushed {
            disk.append_journal(&self.entries, &self.high);
            self.entries.clear();
            self.high_flushed = self.high;
            disk.trim_journal(self.journal_floor());
        }
        self.spill_receipts(disk);
        if disk.wants_tidying() {
            self.tidy_receipts(disk);
        }
    }

    /// What is told once the commit is durable, taken once.
    pub(crate) fn take_news(&mut self) -> News {
        News { touched: std::mem::take(&mut self.touched), moves: std::mem::take(&mut self.moves) }
    }

    fn journal_floor(&self) -> u64 {
        self.high.entry.saturating_sub(self.options.journal_entries).max(self.journal_first).max(1)
    }

    fn token(&mut self) -> Token {
        self.tokens += 1;
        Token { epoch: self.epoch, count: self.tokens }
    }

    fn route(&self, no: RouteNo) -> &Route {
        &self.routes[usize::from(no.0)]
    }

    fn route_no(&self, name: &RouteName) -> Result<RouteNo, Outcome> {
        let known = self.route_numbers.get(name).copied();
        known.ok_or_else(|| Outcome::Invalid(Invalid::UnknownRoute(name.clone())))
    }

    /// An origin's number; a new one is numbered and written.
    fn origin_no<D: Disk>(&mut self, disk: &mut D, name: &OriginName) -> OriginNo {
        if let Some(known) = self.known_origin(name) {
            return known;
        }
        let no = OriginNo(u16::try_from(self.origins.len()).unwrap_or(u16::MAX));
        self.origins.push(Origin { name: name.clone(), floor: Height(0), head: None });
        self.put_origin(disk, no);
        no
    }

    fn put_origin<D: Disk>(&self, disk: &mut D, no: OriginNo) {
        let Origin { name, floor, head } = self.origins[usize::from(no.0)].clone();
        disk.put_fixture(&Fixture::Origin { no, name, floor, head });
    }

    fn known_origin(&self, name: &OriginName) -> Option<OriginNo> {
        let at = self.origins.iter().position(|origin| origin.name == *name)?;
        u16::try_from(at).ok().map(OriginNo)
    }

    /// What state a request is in, with the stage of its parcel.
    fn kind(&self, request: &Request) -> StateKind {
        match &request.state {
            State::Held => StateKind::Held,
            State::Queued => StateKind::Queued,
            State::Leased(_) => StateKind::Leased,
            State::Dead(_) => StateKind::Dead,
            State::Answered(answer) => match answer.delivery {
                Delivery::Waiting => StateKind::Waiting,
                Delivery::Ready => StateKind::Ready,
                Delivery::Assigned { lane, nonce } => match self.stage(lane, nonce) {
                    ParcelStage::Assigned => StateKind::Assigned,
                    ParcelStage::Included => StateKind::Included,
                    ParcelStage::Confirmed => StateKind::Confirmed,
                },
            },
        }
    }

    fn stage(&self, lane: LaneNo, nonce: Nonce) -> ParcelStage {
        let parcels = &self.lanes[usize::from(lane.0)].parcels;
        parcels.get(&nonce).map_or(ParcelStage::Assigned, |parcel| parcel.stage.kind())
    }

    fn kind_at(&self, slot: Slot) -> StateKind {
        self.kind(self.requests.get(slot))
    }

    /// Takes a request out of every index that its state put it into.
    fn unlist(&mut self, slot: Slot) {
        let kind = self.kind_at(slot);
        let request = self.requests.get(slot);
        let seq = request.seq;
        let route = &mut self.routes[usize::from(request.route.0)];
        route.lists[kind as usize].remove(&seq);
        if route.policy.order != QueueOrder::Fifo && route.leave_line(request) {
            self.touched.insert(Topic::Inbox(route.name.clone()));
        }
        match &request.state {
            State::Held => {
                self.due.remove(&(request.due, seq));
                if request.behind {
                    self.behind.remove(&(request.id, seq));
                }
            }
            State::Queued => {}
            State::Leased(lease) => {
                self.leases.remove(&(lease.until, seq));
                self.claims.remove(&(lease.claim, seq));
            }
            State::Answered(_) if kind == StateKind::Ready => {
                if let Some(ready) = route.policy.destination.as_ref().and_then(|to| self.outbox.get_mut(to)) {
                    ready.remove(&seq);
                }
            }
            State::Answered(_) => {}
            State::Dead(letter) => {
                self.dead.remove(&(letter.forget_at, seq));
            }
        }
        if request.deadline != When::NEVER {
            self.deadlines.remove(&(request.deadline, seq));
        }
    }

    /// Puts a request into every index that its state calls for.
    fn list(&mut self, slot: Slot) {
        let kind = self.kind_at(slot);
        let request = self.requests.get(slot);
        let seq = request.seq;
        let route = &mut self.routes[usize::from(request.route.0)];
        route.lists[kind as usize].insert(seq, slot);
        if route.policy.order != QueueOrder::Fifo && route.line_up(request, slot) {
            self.touched.insert(Topic::Inbox(route.name.clone()));
        }
        let mut can_expire = true;
        match &request.state {
            State::Held => {
                if request.waits_for_time(&route.policy) {
                    self.due.insert((request.due, seq), slot);
                }
                if request.behind {
                    self.behind.insert((request.id, seq), slot);
                }
            }
            State::Queued => {
                self.touched.insert(Topic::Inbox(route.name.clone()));
            }
            State::Leased(lease) => {
                self.leases.insert((lease.until, seq), slot);
                self.claims.insert((lease.claim, seq), slot);
            }
            State::Answered(answer) => {
                if let (Delivery::Ready, Some(to)) = (answer.delivery, &route.policy.destination) {
                    self.outbox.entry(to.clone()).or_default().insert(seq, slot);
                    self.touched.insert(Topic::Outbox(to.clone()));
                }
                can_expire = !matches!(answer.delivery, Delivery::Assigned { .. });
            }
            State::Dead(letter) => {
                self.dead.insert((letter.forget_at, seq), slot);
                can_expire = false;
            }
        }
        if can_expire && request.deadline != When::NEVER {
            self.deadlines.insert((request.deadline, seq), slot);
        }
    }

    /// Changes a request's state and keeps every index true to it.
    fn change<T>(&mut self, slot: Slot, with: impl FnOnce(&mut Request, &RoutePolicy, UnixMs) -> T) -> T {
        self.change_by_clocks(slot, |request, policy, clocks| with(request, policy, clocks.now))
    }

    fn change_by_clocks<T>(&mut self, slot: Slot, with: impl FnOnce(&mut Request, &RoutePolicy, Clocks<'_>) -> T) -> T {
        self.unlist(slot);
        let request = self.requests.get_mut(slot);
        let policy = &self.routes[usize::from(request.route.0)].policy;
        let result = with(request, policy, Clocks { now: self.now, origins: &self.origins });
        self.mark_dirty(slot);
        self.list(slot);
        result
    }

    /// Has the request's changeable part written by the next flush.
    fn mark_dirty(&mut self, slot: Slot) {
        if !std::mem::replace(&mut self.requests.get_mut(slot).rows.dirty, true) {
            self.dirty.push(slot);
        }
    }

    /// Hands a queued request out.
    fn grant_lease(&mut self, slot: Slot, lease: LeaseMark) {
        self.unlist(slot);
        self.requests.get_mut(slot).lease(lease);
        self.fresh_leases.push(slot);
        self.list(slot);
    }

    /// Lets the gates decide again; an answer that nobody wants sent settles here.
    fn regate<D: Disk>(&mut self, disk: &mut D, slot: Slot) {
        self.change_and_regate(disk, slot, |_, _| {});
    }

    /// Changes a request's state, then lets the gates decide.
    fn change_and_regate<D: Disk>(&mut self, disk: &mut D, slot: Slot, with: impl FnOnce(&mut Request, UnixMs)) {
        let unwanted = self.change_by_clocks(slot, |request, policy, clocks| {
            with(request, clocks.now);
            request.pass_gates(policy, clocks);
            matches!(&request.state, State::Answered(answer) if answer.delivery == Delivery::Ready)
                && policy.destination.is_none()
        });
        if unwanted {
            self.finish(disk, slot);
        }
    }

    /// Ends a request whose answer is where it was wanted.
    fn finish<D: Disk>(&mut self, disk: &mut D, slot: Slot) {
        let failed = matches!(&self.requests.get(slot).state, State::Answered(answer) if answer.failure);
        self.end(disk, slot, if failed { End::Dead } else { End::Settled });
    }

    /// Makes a request a dead letter.
    fn die(&mut self, slot: Slot, error: ErrorNote) {
        self.note(slot, Event::Died { error: error.clone() });
        self.change(slot, |request, policy, now| {
            request.error = Some(Box::new(error));
            request.die(policy, now);
        });
    }

    /// Ends a request: its rows go, its receipt stays.
    fn end<D: Disk>(&mut self, disk: &mut D, slot: Slot, end: End) {
        self.note(slot, Event::Ended { end });
        self.unlist(slot);
        let request = self.requests.remove(slot);
        if let State::Leased(_) = request.state {
            // Somebody is at work on it.
            self.touched.insert(Topic::Amendments);
        }
        let policy = &self.route(request.route).policy;
        let (now, withdrawn) = (self.now, end == End::Withdrawn);
        let blocks_until = match policy.horizon {
            _ if withdrawn => UnixMs(0),
            Horizon::UntilSettled => UnixMs(0),
            Horizon::For { ms } => now.plus(ms),
            Horizon::Forever => UnixMs::NEVER,
        };
        let kept_until = now.plus(policy.retention.of(end));
        let mark = |o: &crate::inbox::Occurrence| (o.id, o.origin.map(|origin| (origin, o.height)));
        // What a reorg took away before its content was answered is news if it comes back.
        let unanswered = |o: &&crate::inbox::Occurrence| {
            o.standing == crate::inbox::Standing::Orphaned && o.revision != request.revision
        };
        let all = request.occurrences.as_slice().iter();
        let occurrences = all.filter(|o| !unanswered(o)).map(mark).collect();
        self.delete_rows(disk, &request);
        let receipt = Receipt {
            id: request.id,
            generation: request.generation,
            end,
            ended_at: now,
            blocks_until,
            kept_until,
            last_entry: request.last_entry,
            occurrences,
        };
        self.remember_receipt(disk, receipt);
        if request.behind {
            return;
        }
        self.move_up(disk, request.id);
        // What moved up may be the one that refers to a group.
        if self.find_request(&request.id).is_none() {
            for key in self.groups_of.remove(&request.id).unwrap_or_default() {
                self.forget_group_at(disk, &key, kept_until);
            }
        }
    }

    fn delete_rows<D: Disk>(&self, disk: &mut D, request: &Request) {
        disk.delete_request(request.seq);
        if request.rows.has_mark {
            disk.delete_mark(request.seq);
        }
        if request.has_answer() {
            disk.delete_answer(request.seq);
        }
    }

    /// Notes a change of a request in the journal.
    fn note(&mut self, slot: Slot, event: Event) {
        let position = self.high.entry;
        self.high.entry += 1;
        let request = self.requests.get_mut(slot);
        let previous = std::mem::replace(&mut request.last_entry, position);
        let (subject, route) = (Subject::Request(request.id), Some(request.route));
        if let Some(step) = RequestStep::of(&event) {
            let (id, generation, admitted_at) = (request.id, request.generation, request.admitted_at);
            let route = self.routes[usize::from(request.route.0)].name.clone();
            self.moves.push(Move::Request { id, generation, route, admitted_at, at: self.now, step });
        }
        self.entries.push(KeptEntry { position, at: self.now, subject, route, event, previous });
    }

    /// Notes a change of anything else in the journal.
    fn note_on(&mut self, subject: Subject, event: Event) {
        let position = self.high.entry;
        self.high.entry += 1;
        if let (Subject::Lane(lane), Some(step)) = (&subject, LaneStep::of(&event)) {
            self.moves.push(Move::Lane { lane: lane.clone(), step });
        }
        self.entries.push(KeptEntry { position, at: self.now, subject, route: None, event, previous: 0 });
    }

    /// Somebody outside remembers what this store does not: until a person or a
    /// reconciliation has matched what was sent, nothing more is sent.
    pub(crate) fn stop_lanes(&mut self) -> Outcome {
        self.note_on(Subject::Store, Event::RolledBack);
        for at in 0..self.lanes.len() {
            self.set_lane_status(at, LaneStatus::Stopped);
        }
        Outcome::Stale(Stale::RolledBack)
    }

    /// The live request of this id; `late` says what it means here that it has ended.
    fn live<D: Disk>(
        &self,
        disk: &mut D,
        id: &RequestId,
        late: impl FnOnce(StateKind) -> Stale,
    ) -> Result<Slot, Outcome> {
        if let Some(slot) = self.find_request(id) {
            return Ok(slot);
        }
        Err(match self.receipt_of(disk, id) {
            Some(ColdReceipt::Ended { end, .. }) => Outcome::Stale(late(end.kind())),
            _ => Outcome::NotFound(Missing::Request(*id)),
        })
    }

    fn find_request(&self, id: &RequestId) -> Option<Slot> {
        self.requests.by_id(id)
    }

    fn find_occurrence(&self, id: &OccurrenceId) -> Option<Slot> {
        self.requests.by_occurrence(id)
    }
}

impl Request {
    /// Whether its changeable part is more than its request and answer rows imply.
    fn needs_mark(&self) -> bool {
        match self.state {
            State::Held | State::Queued => {
                !self.rows.as_admitted || self.attempts > 0 || self.crashes > 0 || self.error.is_some()
            }
            State::Leased(_) | State::Dead(_) => true,
            State::Answered(_) => !self.rows.as_admitted || self.error.is_some(),
        }
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark {
            attempts: self.attempts,
            crashes: self.crashes,
            misses: self.misses,
            revision: self.revision,
            due: self.due,
            occurrences: self.occurrences.clone(),
            state: self.state.clone(),
            error: self.error.clone(),
            last_entry: self.last_entry,
        }
    }

    fn answer(&self) -> Option<&AnswerMark> {
        match &self.state {
            State::Answered(answer) => Some(answer),
            State::Dead(letter) => letter.answer.as_ref(),
            State::Held | State::Queued | State::Leased(_) => None,
        }
    }

    fn has_answer(&self) -> bool {
        self.answer().is_some()
    }
}

/// The note of a worker that went silent.
fn silent_worker() -> ErrorNote {
    ErrorNote::new(ErrorClass::Crash, "the lease ran out: the worker died or went silent")
}

/// A plain success.
fn done() -> Result<Outcome, Outcome> {
    Ok(Outcome::Applied(Effect::Done))
}
