//! The sender's operations: `lead`, orders to lanes, `assign`, `fill`, `attempt`, `settle`.

use std::collections::{BTreeMap, HashSet};

use super::admit::check_payload;
use super::{Machine, NAMES_MAX, Slot};
use crate::inbox::{End, State, StateKind};
use crate::outbox::{Delivery, LaneNo};
use crate::sender::{AttemptKind, Fate, Lane, LaneStatus, Parcel, SignedAttempt, Stage, Step};
use crate::store::Topic;
use crate::store::disk::{ColdReceipt, Disk, Fixture, Tenure};
use crate::store::journal::{Event, Subject};
use crate::store::op::{
    AfterCancel, Already, Assign, Attempt, Effect, Fill, Full, Invalid, Judgement, LaneOrder, Lead, Missing, NewParcel,
    Order, Outcome, Reject, Seat, Settle, Sight, Stale,
};
use crate::words::{
    ASSIGN_MAX, ATTEMPTS_MAX, ErrorNote, HOLD_MS_MAX, LaneName, Nonce, PARCEL_MAX, PAYLOAD_BYTES_MAX, Payload,
    RequestId, Token, UnixMs, WINDOW_MAX,
};

impl Machine {
    /// Gives a free seat to whoever asks, and more time to whoever has it. A seat from before
    /// this start is free, unless the store is shared: whoever held it was part of the process
    /// that owned this store.
    pub(super) fn lead<D: Disk>(&mut self, disk: &mut D, op: Lead) -> Result<Outcome, Outcome> {
        if let Seat::Destination(destination) = &op.seat {
            self.check_no_lanes(destination)?;
        }
        let until = self.now.plus(op.ttl_ms.min(HOLD_MS_MAX));
        let tenure = match self.seats.get(&op.seat) {
            Some(held) if held.holder == op.holder => Tenure { until, ..held.clone() },
            Some(held) if held.until > self.now && self.may_be_alive(held.token) => {
                let (holder, until) = (Some(held.holder.clone()), held.until);
                return Err(Outcome::Stale(Stale::Seat { holder, until }));
            }
            _ => Tenure { holder: op.holder, token: self.token(), until },
        };
        let effect = Effect::Led(tenure.token, until);
        disk.put_fixture(&Fixture::Seat { seat: op.seat.clone(), tenure: tenure.clone() });
        self.seats.insert(op.seat, tenure);
        Ok(Outcome::Applied(effect))
    }

    fn may_be_alive(&self, holder: Token) -> bool {
        self.newest_epoch.is_some() || holder.epoch == self.epoch
    }

    /// A token holds as long as nobody has taken the seat since, even past its time.
    pub(super) fn check_seat(&mut self, seat: &Seat, token: Token) -> Result<(), Outcome> {
        if token.epoch > self.newest_epoch.unwrap_or(self.epoch) {
            return Err(self.stop_lanes());
        }
        match self.seats.get(seat) {
            Some(tenure) if tenure.token == token => Ok(()),
            Some(tenure) => {
                let (holder, until) = (Some(tenure.holder.clone()), tenure.until);
                Err(Outcome::Stale(Stale::Seat { holder, until }))
            }
            None => Err(Outcome::Stale(Stale::Seat { holder: None, until: UnixMs(0) })),
        }
    }

    fn lane_no(&self, name: &LaneName) -> Result<LaneNo, Outcome> {
        let known = self.lane_numbers.get(name).copied();
        known.ok_or_else(|| Outcome::NotFound(Missing::Lane(name.clone())))
    }

    fn lane_mut(&mut self, no: LaneNo) -> &mut Lane {
        &mut self.lanes[usize::from(no.0)]
    }

    pub(super) fn order_lane<D: Disk>(&mut self, disk: &mut D, op: LaneOrder) -> Result<Outcome, Outcome> {
        if let Order::Open { destination, window, first } = op.order {
            if window > WINDOW_MAX {
                let (count, max) = (window as usize, WINDOW_MAX as usize);
                return Err(Outcome::Invalid(Invalid::TooMany { what: "parcels under way", count, max }));
            }
            let lane = Lane {
                no: LaneNo(0),
                name: op.lane,
                destination,
                window,
                next: first,
                // Nobody has shown it yet.
                settled: Nonce(0),
                status: LaneStatus::Active,
                parcels: BTreeMap::new(),
                elsewhere: 0,
            };
            return self.open_lane(lane);
        }
        let no = self.lane_no(&op.lane)?;
        if let Order::Cancel { nonce, then } = op.order {
            return self.wish_cancel(disk, no, nonce, then);
        }
        if let Order::Settled { below } = op.order {
            return Ok(self.settle_below(no, below));
        }
        let now = self.now;
        let lane = self.lane_mut(no);
        let (next, stopped) = (lane.next, lane.status == LaneStatus::Stopped);
        let status = match op.order {
            Order::Open { .. } | Order::Cancel { .. } | Order::Settled { .. } => lane.status.clone(),
            Order::Observe { outside_next } if outside_next > next => LaneStatus::Stopped,
            Order::Observe { .. } => lane.status.clone(),
            // Slots that were used outside are never used again; slots that the store
            // knows of stay known.
            Order::Reconcile { outside_next } if stopped => {
                lane.next = next.max(outside_next);
                self.dirty_lanes.insert(no);
                LaneStatus::Active
            }
            // Nobody has shown that these were used: each of them would be filled, at a cost.
            Order::Reconcile { outside_next } if outside_next > next => {
                return Err(Outcome::Stale(Stale::Lane(lane.status.clone())));
            }
            Order::Reconcile { .. } => lane.status.clone(),
            _ if stopped => return Err(Outcome::Stale(Stale::Lane(LaneStatus::Stopped))),
            Order::Pause { reason } => LaneStatus::Paused { reason },
            Order::Quarantine { for_ms } => lane.status.quarantined(now.plus(for_ms)),
            Order::Unfunded { reason } => lane.status.unfunded(reason, now),
            Order::Funded => lane.status.funded(),
            Order::Resume => LaneStatus::Active,
        };
        let changed = self.set_lane_status(usize::from(no.0), status.clone());
        let effect = Effect::Lane(status);
        Ok(if changed { Outcome::Applied(effect) } else { Outcome::Duplicate(effect) })
    }

    fn open_lane(&mut self, mut lane: Lane) -> Result<Outcome, Outcome> {
        let effect = |status: &LaneStatus| Effect::Lane(status.clone());
        if let Some(&no) = self.lane_numbers.get(&lane.name) {
            let known = self.lane_mut(no);
            if known.destination != lane.destination {
                let (lane, destination) = (lane.name, known.destination.clone());
                return Err(Outcome::Invalid(Invalid::LaneTaken { lane, destination }));
            }
            let same = std::mem::replace(&mut known.window, lane.window) == lane.window;
            let effect = effect(&known.status);
            self.dirty_lanes.insert(no);
            return Ok(if same { Outcome::Duplicate(effect) } else { Outcome::Applied(effect) });
        }
        if self.lanes.len() >= NAMES_MAX {
            return Err(Outcome::Invalid(Invalid::TooManyNames(NAMES_MAX)));
        }
        self.check_no_seat(&lane.destination)?;
        let no = LaneNo(u16::try_from(self.lanes.len()).unwrap_or(u16::MAX));
        lane.no = no;
        let effect = effect(&lane.status);
        self.note_on(Subject::Lane(lane.name.clone()), Event::LaneStatus { status: lane.status.clone() });
        self.lane_numbers.insert(lane.name.clone(), no);
        self.lanes.push(lane);
        self.dirty_lanes.insert(no);
        Ok(Outcome::Applied(effect))
    }

    /// Remembers what the outside shows to be used up; it never falls back.
    fn settle_below(&mut self, no: LaneNo, below: Nonce) -> Outcome {
        let lane = self.lane_mut(no);
        let (effect, settled) = (Effect::Lane(lane.status.clone()), lane.settled.max(below.min(lane.next)));
        if settled == lane.settled {
            return Outcome::Duplicate(effect);
        }
        lane.settled = settled;
        self.dirty_lanes.insert(no);
        Outcome::Applied(effect)
    }

    /// Notes that a parcel is no longer wanted, for its sender to act on.
    fn wish_cancel<D: Disk>(
        &mut self,
        disk: &mut D,
        no: LaneNo,
        nonce: Nonce,
        then: AfterCancel,
    ) -> Result<Outcome, Outcome> {
        let then = match then {
            AfterCancel::Requeue => AfterCancel::Requeue,
            AfterCancel::Dead(error) => AfterCancel::Dead(ErrorNote::new(error.class, &error.text)),
        };
        let lane = self.lane_mut(no);
        let effect = Effect::Lane(lane.status.clone());
        let destination = lane.destination.clone();
        let parcel = lane.parcels.get_mut(&nonce).ok_or(Outcome::NotFound(Missing::Parcel(nonce)))?;
        if parcel.stage != Stage::Assigned {
            return Err(Outcome::Stale(Stale::Parcel(parcel.stage.kind())));
        }
        if parcel.cancel.as_ref() == Some(&then) {
            return Ok(Outcome::Duplicate(effect));
        }
        parcel.cancel = Some(then.clone());
        self.note_parcel(disk, no, nonce, Event::CancelWished { nonce, then });
        self.touched.insert(Topic::Outbox(destination));
        Ok(Outcome::Applied(effect))
    }

    pub(super) fn set_lane_status(&mut self, at: usize, status: LaneStatus) -> bool {
        let lane = &mut self.lanes[at];
        if lane.status == status {
            return false;
        }
        lane.status = status.clone();
        let (no, name, destination) = (lane.no, lane.name.clone(), lane.destination.clone());
        self.dirty_lanes.insert(no);
        self.note_on(Subject::Lane(name), Event::LaneStatus { status });
        self.touched.insert(Topic::Outbox(destination));
        true
    }

    pub(super) fn assign<D: Disk>(&mut self, disk: &mut D, op: Assign) -> Result<Outcome, Outcome> {
        let no = self.lane_no(&op.lane)?;
        if op.parcels.is_empty() {
            return Err(Outcome::Invalid(Invalid::Empty("list of parcels")));
        }
        if op.parcels.len() > ASSIGN_MAX {
            let count = op.parcels.len();
            return Err(Outcome::Invalid(Invalid::TooMany { what: "parcels", count, max: ASSIGN_MAX }));
        }
        self.check_seat(&Seat::Lane(op.lane), op.owner)?;
        self.end_quarantine(no);
        let (mut stored, mut fresh, mut rest) = (0, false, None);
        for (parcel, nonce) in op.parcels.into_iter().zip((0..).map(|n| op.first.plus(n))) {
            match self.assign_one(disk, no, nonce, parcel) {
                Ok(is_new) => {
                    stored += 1;
                    fresh |= is_new;
                }
                Err(refusal) if stored == 0 => return Err(refusal),
                Err(refusal) => {
                    rest = Some(Box::new(refusal));
                    break;
                }
            }
        }
        let effect = Effect::Assigned(stored, rest);
        Ok(if fresh { Outcome::Applied(effect) } else { Outcome::Duplicate(effect) })
    }

    /// A quarantine ends by itself, once somebody wants to use the lane.
    fn end_quarantine(&mut self, no: LaneNo) {
        if self.lanes[usize::from(no.0)].quarantine_is_over(self.now) {
            self.set_lane_status(usize::from(no.0), LaneStatus::Active);
        }
    }

    /// Puts one parcel on the lane's next slot; answers whether it is new there.
    fn assign_one<D: Disk>(&mut self, disk: &mut D, no: LaneNo, nonce: Nonce, new: NewParcel) -> Result<bool, Outcome> {
        let lane = self.lane_mut(no);
        if nonce < lane.next {
            let same = lane.parcels.get(&nonce).is_some_and(|parcel| parcel.has_attempt(&new.attempt.hash));
            return if same { Ok(false) } else { Err(Outcome::Stale(Stale::Nonce { next: lane.next })) };
        }
        if lane.next.0 == u64::MAX {
            return Err(Outcome::Full(Full::Slots));
        }
        if nonce > lane.next {
            return Err(Outcome::Stale(Stale::Nonce { next: lane.next }));
        }
        if lane.status != LaneStatus::Active {
            return Err(Outcome::Stale(Stale::Lane(lane.status.clone())));
        }
        if lane.under_way() >= lane.window as usize {
            return Err(Outcome::Full(Full::Window { window: lane.window }));
        }
        let slots = self.ready_slots(disk, no, &new)?;
        self.occupy(disk, no, nonce, new, slots);
        self.lane_mut(no).next = nonce.plus(1);
        self.dirty_lanes.insert(no);
        Ok(true)
    }

    /// Puts a checked parcel on its slot, and these requests with it.
    fn occupy<D: Disk>(&mut self, disk: &mut D, no: LaneNo, nonce: Nonce, new: NewParcel, slots: Vec<Slot>) {
        let attempt = new.attempt.note();
        let parcel = Parcel {
            deliveries: new.deliveries,
            attempts: vec![new.attempt],
            stage: Stage::Assigned,
            entry: self.high.entry,
            cancel: None,
        };
        disk.put_parcel(no, nonce, &parcel);
        let lane = self.lane_mut(no);
        let name = lane.name.clone();
        lane.parcels.insert(nonce, parcel);
        for slot in slots {
            self.note(slot, Event::Assigned { lane: name.clone(), nonce, attempt });
            self.set_delivery(slot, Delivery::Assigned { lane: no, nonce });
        }
    }

    /// Puts a parcel on a slot that was passed over.
    pub(super) fn fill<D: Disk>(&mut self, disk: &mut D, op: Fill) -> Result<Outcome, Outcome> {
        let no = self.lane_no(&op.lane)?;
        self.check_seat(&Seat::Lane(op.lane.clone()), op.owner)?;
        let (nonce, new) = (op.nonce, op.parcel);
        let hash = new.attempt.hash;
        let lane = &self.lanes[usize::from(no.0)];
        if lane.parcels.get(&nonce).is_some_and(|parcel| parcel.has_attempt(&hash)) {
            return Ok(Outcome::Duplicate(Effect::Done));
        }
        if !lane.is_gap(nonce) {
            return Err(Outcome::Stale(Stale::Nonce { next: lane.next }));
        }
        if !new.deliveries.is_empty() {
            self.end_quarantine(no);
        }
        self.lanes[usize::from(no.0)].takes_fill(nonce, new.deliveries.is_empty())?;
        let slots = self.ready_slots(disk, no, &new)?;
        self.occupy(disk, no, nonce, new, slots);
        self.note_on(Subject::Lane(op.lane), Event::Filled { nonce, hash });
        Ok(Outcome::Applied(Effect::Done))
    }

    /// The requests that a parcel is to carry, if every one may be sent on this lane now.
    fn ready_slots<D: Disk>(&self, disk: &mut D, no: LaneNo, new: &NewParcel) -> Result<Vec<Slot>, Outcome> {
        check_attempt(&new.attempt, &new.deliveries)?;
        if new.deliveries.len() > PARCEL_MAX {
            let count = new.deliveries.len();
            return Err(Outcome::Invalid(Invalid::TooMany { what: "deliveries", count, max: PARCEL_MAX }));
        }
        if !new.answers.is_empty() && new.answers.len() != new.deliveries.len() {
            let (count, max) = (new.answers.len(), new.deliveries.len());
            return Err(Outcome::Invalid(Invalid::TooMany { what: "answers", count, max }));
        }
        let destination = &self.lanes[usize::from(no.0)].destination;
        let mut seen = HashSet::new();
        let mut slots = Vec::with_capacity(new.deliveries.len());
        for (n, id) in new.deliveries.iter().enumerate() {
            if new.deliveries.len() > 1 && !seen.insert(id) {
                return Err(Outcome::Invalid(Invalid::Repeated("a delivery")));
            }
            let slot = self.live(disk, id, |kind| Stale::Delivery(*id, kind))?;
            let request = self.requests.get(slot);
            if self.route(request.route).policy.destination.as_ref() != Some(destination) {
                return Err(Outcome::Invalid(Invalid::OtherDestination(*id)));
            }
            match &request.state {
                State::Answered(answer)
                    if answer.delivery == Delivery::Ready
                        && new.answers.get(n).is_none_or(|signed| *signed == answer.token) =>
                {
                    slots.push(slot);
                }
                _ => return Err(Outcome::Stale(Stale::Delivery(*id, self.kind(request)))),
            }
        }
        Ok(slots)
    }

    /// Takes a ready answer out of the queue for a person to look at.
    pub(super) fn reject<D: Disk>(&mut self, disk: &mut D, op: Reject) -> Result<Outcome, Outcome> {
        let no = self.lane_no(&op.lane)?;
        self.check_seat(&Seat::Lane(op.lane), op.owner)?;
        op.instead.as_ref().map_or(Ok(()), check_payload)?;
        let slot = self.live(disk, &op.id, |kind| Stale::Delivery(op.id, kind))?;
        let request = self.requests.get(slot);
        if self.route(request.route).policy.destination.as_ref() != Some(&self.lanes[usize::from(no.0)].destination) {
            return Err(Outcome::Invalid(Invalid::OtherDestination(op.id)));
        }
        match &request.state {
            State::Answered(answer) if answer.delivery == Delivery::Ready && answer.token == op.answer => {
                let (seq, error) = (request.seq, ErrorNote::new(op.error.class, &op.error.text));
                match &op.instead {
                    Some(response) => self.replace_answer(disk, slot, error, response),
                    None => self.die(slot, error),
                }
                Ok(Outcome::Applied(Effect::Now(self.kind_unless(slot, seq, StateKind::Dead))))
            }
            State::Dead(letter) if letter.answer.as_ref().is_some_and(|answer| answer.token == op.answer) => {
                Ok(Outcome::Duplicate(Effect::Now(StateKind::Dead)))
            }
            _ => Err(Outcome::Stale(Stale::Delivery(op.id, self.kind(request)))),
        }
    }

    /// Records a failure response in place of an answer that can never be sent, under a token
    /// of its own: what is said of the old answer again says nothing of this one.
    fn replace_answer<D: Disk>(&mut self, disk: &mut D, slot: Slot, error: ErrorNote, response: &Payload) {
        let request = self.requests.get(slot);
        if matches!(&request.state, State::Answered(answer) if answer.failure) {
            return self.die(slot, error);
        }
        disk.void_answer(request.seq);
        self.note(slot, Event::Replaced { error: error.clone() });
        self.change(slot, |request, _, _| request.error = Some(Box::new(error)));
        let token = self.token();
        self.record(disk, slot, token, response, true);
    }

    /// Ends a ready answer that the outside shows to be done.
    pub(super) fn already<D: Disk>(&mut self, disk: &mut D, op: Already) -> Result<Outcome, Outcome> {
        let no = self.lane_no(&op.lane)?;
        self.check_seat(&Seat::Lane(op.lane), op.owner)?;
        let Some(slot) = self.find_request(&op.id) else { return self.done_before(disk, op.id) };
        let destination = self.lanes[usize::from(no.0)].destination.clone();
        let request = self.requests.get(slot);
        if self.route(request.route).policy.destination.as_ref() != Some(&destination) {
            return Err(Outcome::Invalid(Invalid::OtherDestination(op.id)));
        }
        let failure = match &request.state {
            State::Answered(answer) if answer.delivery == Delivery::Ready && answer.token == op.answer => {
                answer.failure
            }
            _ => return Err(Outcome::Stale(Stale::Delivery(op.id, self.kind(request)))),
        };
        self.note(slot, Event::Published { destination });
        self.finish(disk, slot);
        Ok(Outcome::Applied(Effect::Now(if failure { StateKind::Dead } else { StateKind::Settled })))
    }

    /// What a replay is told when the request has ended.
    fn done_before<D: Disk>(&self, disk: &mut D, id: RequestId) -> Result<Outcome, Outcome> {
        match self.receipt_of(disk, &id) {
            Some(ColdReceipt::Ended { end: end @ (End::Settled | End::Dead), .. }) => {
                Ok(Outcome::Duplicate(Effect::Now(end.kind())))
            }
            Some(ColdReceipt::Ended { end, .. }) => Err(Outcome::Stale(Stale::Delivery(id, end.kind()))),
            _ => Err(Outcome::NotFound(Missing::Request(id))),
        }
    }

    fn set_delivery(&mut self, slot: Slot, to: Delivery) {
        self.change(slot, |request, _, _| {
            if let State::Answered(answer) = &mut request.state {
                answer.delivery = to;
            }
        });
    }

    pub(super) fn attempt<D: Disk>(&mut self, disk: &mut D, op: Attempt) -> Result<Outcome, Outcome> {
        let no = self.lane_no(&op.lane)?;
        self.check_seat(&Seat::Lane(op.lane), op.owner)?;
        let (nonce, attempt) = (op.nonce, op.attempt.note());
        let parcel = self.lane_mut(no).parcels.get_mut(&nonce);
        let parcel = parcel.ok_or(Outcome::NotFound(Missing::Parcel(nonce)))?;
        if parcel.has_attempt(&attempt.hash) {
            return Ok(Outcome::Duplicate(Effect::Done));
        }
        check_attempt(&op.attempt, &parcel.deliveries)?;
        if parcel.attempts.len() >= ATTEMPTS_MAX {
            return Err(Outcome::Full(Full::Attempts));
        }
        parcel.attempts.push(op.attempt);
        self.note_parcel(disk, no, nonce, Event::Attempted { nonce, attempt });
        Ok(Outcome::Applied(Effect::Done))
    }

    pub(super) fn settle<D: Disk>(&mut self, disk: &mut D, op: Settle) -> Result<Outcome, Outcome> {
        let no = self.lane_no(&op.lane)?;
        self.check_seat(&Seat::Lane(op.lane), op.owner)?;
        if let Sight::Final(_, Judgement::Replaced(_, response)) = &op.sight {
            check_payload(response)?;
        }
        let lane = self.lane_mut(no);
        let Some(parcel) = lane.parcels.get(&op.nonce) else {
            let ended = op.nonce < lane.settled;
            return if ended {
                Ok(Outcome::Duplicate(Effect::Done))
            } else {
                Err(Outcome::NotFound(Missing::Parcel(op.nonce)))
            };
        };
        let (step, passed) = (parcel.see(op.expected, &op.sight)?, parcel.passed_over(&op.sight));
        if let (Step::To(_) | Step::End(_), Some(block)) = (&step, passed) {
            // Whoever reads a timeline sees each stage, also where the chain showed two of them at once.
            self.note_carried(disk, no, op.nonce, &Event::Mined { block });
        }
        match step {
            Step::Known => return Ok(Outcome::Duplicate(Effect::Done)),
            Step::To(stage) => self.move_parcel(disk, no, op.nonce, stage),
            Step::End(fate) => self.end_parcel(disk, no, op.nonce, fate),
        }
        Ok(Outcome::Applied(Effect::Done))
    }

    fn carried(&self, no: LaneNo, nonce: Nonce) -> Vec<Slot> {
        let parcel = &self.lanes[usize::from(no.0)].parcels[&nonce];
        parcel.deliveries.iter().filter_map(|id| self.find_request(id)).collect()
    }

    fn move_parcel<D: Disk>(&mut self, disk: &mut D, no: LaneNo, nonce: Nonce, stage: Stage) {
        let event = match stage {
            Stage::Assigned => Event::Unmined,
            Stage::Included(block) => Event::Mined { block },
            Stage::Confirmed(block) => Event::Confirmed { block },
        };
        let slots = self.carried(no, nonce);
        slots.iter().for_each(|&slot| self.unlist(slot));
        if let Some(parcel) = self.lane_mut(no).parcels.get_mut(&nonce) {
            parcel.stage = stage;
        }
        slots.iter().for_each(|&slot| self.list(slot));
        self.note_carried(disk, no, nonce, &event);
    }

    /// Notes a change of a parcel, on its lane and on each request that it carries, and writes it.
    fn note_parcel<D: Disk>(&mut self, disk: &mut D, no: LaneNo, nonce: Nonce, event: Event) {
        let lane = self.lanes[usize::from(no.0)].name.clone();
        self.note_on(Subject::Lane(lane), event.clone());
        self.note_carried(disk, no, nonce, &event);
    }

    /// Notes a change of a parcel on each request that it carries, and writes it.
    fn note_carried<D: Disk>(&mut self, disk: &mut D, no: LaneNo, nonce: Nonce, event: &Event) {
        let entry = self.high.entry;
        if let Some(parcel) = self.lane_mut(no).parcels.get_mut(&nonce) {
            parcel.entry = entry;
            disk.put_parcel(no, nonce, parcel);
        }
        for slot in self.carried(no, nonce) {
            self.note(slot, event.clone());
        }
    }

    fn end_parcel<D: Disk>(&mut self, disk: &mut D, no: LaneNo, nonce: Nonce, fate: Fate) {
        let slots = self.carried(no, nonce);
        for slot in slots {
            match &fate {
                Fate::Done => self.finish(disk, slot),
                Fate::Dead(error) => self.die(slot, error.clone()),
                Fate::Replaced(error, response) => self.replace_answer(disk, slot, error.clone(), response),
                Fate::Return(error) => {
                    self.note(slot, Event::Returned { error: error.clone() });
                    self.change_and_regate(disk, slot, |request, _| {
                        if let State::Answered(answer) = &mut request.state {
                            answer.delivery = Delivery::Waiting;
                        }
                        request.error = error.clone().map(Box::new).or(request.error.take());
                        request.rows.as_admitted = false;
                    });
                }
            }
        }
        let lane = self.lane_mut(no);
        lane.parcels.remove(&nonce);
        lane.settled = lane.settled.max(nonce.plus(1));
        let destination = lane.destination.clone();
        disk.delete_parcel(no, nonce);
        self.dirty_lanes.insert(no);
        // There is room in the window again.
        self.touched.insert(Topic::Outbox(destination));
    }
}

fn check_attempt(attempt: &SignedAttempt, deliveries: &[RequestId]) -> Result<(), Outcome> {
    if deliveries.is_empty() && attempt.kind == AttemptKind::Carry {
        return Err(Outcome::Invalid(Invalid::Empty("parcel with an attempt that carries it")));
    }
    let bytes = attempt.bytes.len();
    if bytes > PAYLOAD_BYTES_MAX {
        return Err(Outcome::Invalid(Invalid::PayloadTooLarge { bytes, max: PAYLOAD_BYTES_MAX }));
    }
    Ok(())
}
