//! Loading a machine from its rows, by sequential scans, in an epoch of its own.

use super::pace::Pace;
use super::{Group, Machine, Planned, Route, Slot};
use crate::groups::GroupState;
use crate::inbox::{Clocks, Request, State, When};
use crate::listener::Origin;
use crate::outbox::{Delivery, LaneNo};
use crate::sender::Lane;
use crate::store::Options;
use crate::store::disk::{AnswerHead, Fixture, Mark, Rows};
use crate::store::op::GroupPlan;
use crate::words::{Moment, Nonce, Seq, UnixMs};

/// The epoch of the next start: later than every one before. It is the time in
/// milliseconds, and no start is that quick, so a restored older file does not repeat
/// the epochs that came after it was saved.
pub(crate) fn next_epoch(last: u64, now: UnixMs) -> u64 {
    last.saturating_add(1).max(now.0)
}

/// Requests in the order of their rows, to be found by number while loading.
type BySeq = Vec<(Seq, Slot)>;

fn slot_of(by_seq: &BySeq, seq: Seq) -> Option<Slot> {
    let at = by_seq.binary_search_by_key(&seq, |(seq, _)| *seq).ok()?;
    Some(by_seq[at].1)
}

impl Machine {
    /// Rebuilds the machine that these rows stand for.
    pub(crate) fn load<R: Rows>(options: Options, rows: &R, epoch: u64, now: UnixMs) -> Result<Machine, R::Error> {
        let mut machine = Machine::new(options, epoch);
        machine.now = now;
        let high = rows.high_water()?;
        if high != Default::default() {
            machine.high = high;
        }
        machine.journal_first = rows.first_entry()?;
        machine.load_fixtures(rows)?;
        let by_seq = machine.load_requests(rows)?;
        machine.load_parcels(rows)?;
        machine.relist(&by_seq);
        machine.load_groups(rows)?;
        rows.receipts(&mut |no, row| machine.receipts.push(no, row))?;
        machine.high_flushed = machine.high;
        machine.touched.clear();
        Ok(machine)
    }

    fn load_fixtures<R: Rows>(&mut self, rows: &R) -> Result<(), R::Error> {
        let (mut routes, mut origins, mut lanes) = (Vec::new(), Vec::new(), Vec::new());
        rows.fixtures(&mut |fixture| match fixture {
            Fixture::Route { no, name, policy, paused } => {
                let pace = Pace::used_up(policy.rate, self.now);
                routes.push((no, Route { pace, ..Route::new(name, policy, paused) }));
            }
            Fixture::Origin { no, name, floor, head } => origins.push((no, Origin { name, floor, head })),
            Fixture::Lane { no, name, destination, window, next, settled, status } => {
                let (parcels, elsewhere) = Default::default();
                lanes.push((no, Lane { no, name, destination, window, next, settled, status, parcels, elsewhere }));
            }
            Fixture::Cursor { listener, cursor } => {
                self.cursors.insert(listener, cursor);
            }
            Fixture::Seat { seat, tenure } => {
                self.seats.insert(seat, tenure);
            }
        })?;
        routes.sort_by_key(|(no, _)| *no);
        origins.sort_by_key(|(no, _)| *no);
        lanes.sort_by_key(|(no, _)| *no);
        self.route_numbers = routes.iter().map(|(no, route)| (route.name.clone(), *no)).collect();
        self.lane_numbers = lanes.iter().map(|(no, lane)| (lane.name.clone(), *no)).collect();
        self.routes = routes.into_iter().map(|(_, route)| route).collect();
        self.origins = origins.into_iter().map(|(_, origin)| origin).collect();
        self.lanes = lanes.into_iter().map(|(_, lane)| lane).collect();
        Ok(())
    }

    /// Requests as admitted, then as answered, then with what marks say beyond that.
    ///
    /// A lease that was written is taken over as it was: its worker may still answer.
    /// It lasts at most as long from now as it was granted for, whatever the clock did.
    fn load_requests<R: Rows>(&mut self, rows: &R) -> Result<BySeq, R::Error> {
        let mut by_seq = BySeq::new();
        let now = self.now;
        rows.requests(&mut |row| {
            let mut request = Request::admitted(&row);
            request.behind = self.requests.by_id(&row.id).is_some();
            by_seq.push((row.seq, self.requests.insert(request)));
        })?;
        rows.answers(&mut |seq, head| {
            if let Some(slot) = slot_of(&by_seq, seq) {
                self.requests.get_mut(slot).take_answer(&head);
            }
        })?;
        rows.marks(&mut |seq, mark| {
            let Some(slot) = slot_of(&by_seq, seq) else { return };
            let mut request = self.requests.remove(slot);
            request.take_mark(mark);
            if let State::Leased(lease) = &mut request.state {
                let latest = now.plus(lease.lease_ms);
                request.rows.dirty = lease.until > latest;
                lease.until = lease.until.min(latest);
            }
            if request.rows.dirty {
                self.dirty.push(slot);
            }
            let again = self.requests.insert(request);
            debug_assert_eq!(again, slot, "the slot just freed is the next one used");
        })?;
        Ok(by_seq)
    }

    fn load_parcels<R: Rows>(&mut self, rows: &R) -> Result<(), R::Error> {
        rows.parcels(&mut |lane, nonce, parcel| {
            for (id, entry) in parcel.deliveries.iter().zip(parcel.entry..) {
                let Some(slot) = self.requests.by_id(id) else { continue };
                self.requests.get_mut(slot).take_slot(lane, nonce, entry);
            }
            self.lanes[usize::from(lane.0)].parcels.insert(nonce, parcel);
        })
    }

    /// Lets the gates decide and fills the indexes.
    fn relist(&mut self, by_seq: &BySeq) {
        for &(_, slot) in by_seq {
            let request = self.requests.get_mut(slot);
            let policy = &self.routes[usize::from(request.route.0)].policy;
            request.pass_gates(policy, Clocks { now: self.now, origins: &self.origins });
            self.list(slot);
        }
    }

    fn load_groups<R: Rows>(&mut self, rows: &R) -> Result<(), R::Error> {
        let mut keys = std::collections::HashMap::new();
        rows.groups(&mut |no, row| {
            if let (GroupState::Sealed { request, .. }, None) = (row.state, row.forget_at) {
                self.groups_of.entry(request).or_default().push(row.key.clone());
            }
            if let Some(at) = row.forget_at {
                self.groups_to_forget.insert((at, row.key.clone()));
            }
            keys.insert(no, row.key.clone());
            let mut group = Group::new(no, row.state, row.forget_at);
            group.plan = row.plan.map(|plan| self.planned(&plan));
            self.groups.insert(row.key, group);
        })?;
        rows.items(&mut |no, item| {
            if let Some(group) = keys.get(&item.group).and_then(|key| self.groups.get_mut(key)) {
                group.push(no, item.id, item.late);
            }
        })?;
        keys.values().for_each(|key| self.set_timer(key));
        Ok(())
    }

    /// A plan as it was when its group was opened: its origin has a number since then.
    fn planned(&self, plan: &GroupPlan) -> Planned {
        let at = plan.seal_at.as_ref().and_then(|moment| match moment {
            Moment::At(time) => Some(When::at(*time)),
            Moment::Height(place) => self.known_origin(&place.origin).map(|no| When::height(no, place.height)),
            Moment::BlockTime { origin, at } => self.known_origin(origin).map(|no| When::block_time(no, *at)),
        });
        Planned { items: plan.seal_at_items.unwrap_or(u64::MAX), at: at.unwrap_or(When::NEVER) }
    }
}

impl Request {
    /// It was answered, as this row says.
    pub(crate) fn take_answer(&mut self, head: &AnswerHead) {
        self.attempts = head.attempts;
        self.crashes = head.crashes;
        self.last_entry = head.entry;
        self.state = State::Answered(Box::new(head.mark(Delivery::Waiting)));
    }

    /// It is as this row says, beyond what its other rows imply.
    pub(crate) fn take_mark(&mut self, mark: Mark) {
        self.attempts = mark.attempts;
        self.crashes = mark.crashes;
        self.misses = mark.misses;
        self.revision = mark.revision;
        self.due = mark.due;
        self.occurrences = mark.occurrences;
        self.error = mark.error;
        self.last_entry = mark.last_entry;
        self.state = mark.state;
        // Its parcel, if there is one, says where it is.
        if let State::Answered(answer) = &mut self.state {
            answer.delivery = Delivery::Waiting;
        }
        self.rows.has_mark = true;
        self.rows.as_admitted = false;
    }

    /// The parcel on this slot carries its answer.
    pub(crate) fn take_slot(&mut self, lane: LaneNo, nonce: Nonce, entry: u64) {
        self.last_entry = self.last_entry.max(entry);
        if let State::Answered(answer) = &mut self.state {
            answer.delivery = Delivery::Assigned { lane, nonce };
        }
    }
}
