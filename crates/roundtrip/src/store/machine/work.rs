//! The worker's operations: `lease`, `extend`, `answer`, `fail`, `release`; and a
//! person's `mend`.

use super::{Machine, Slot};
use crate::inbox::{AnswerMark, End, LeaseMark, RouteNo, Setback, State, StateKind, When};
use crate::outbox::Delivery;
use crate::sender::{Lane, LaneStatus};
use crate::store::disk::{AnswerHead, Body, Disk};
use crate::store::journal::Event;
use crate::store::op::{
    Answer, Effect, Extend, Fail, Grant, Invalid, Lease, Mend, Outcome, Release, Remedy, Stale, Verdict,
};
use crate::store::policy::QueueOrder;
use crate::words::{ErrorNote, HOLD_MS_MAX, LEASE_MAX, Payload, REPLY_BYTES_MAX, RequestId, Seq, Token};

/// How many expired requests one lease passes over.
const PASS_OVER_MAX: usize = 1024;

/// From where on a lease in random order hands out. Multiples of this number leave no
/// large part of the circle out for long.
pub(crate) fn random_place(epoch: u64, tokens: u64) -> u64 {
    epoch.wrapping_add(tokens).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Machine {
    pub(super) fn lease<D: Disk>(&mut self, disk: &mut D, op: Lease) -> Result<Outcome, Outcome> {
        let no = self.route_no(&op.route)?;
        if op.max > LEASE_MAX {
            return Err(Outcome::Invalid(Invalid::TooMany { what: "leases", count: op.max, max: LEASE_MAX }));
        }
        let replayed = self.grants_of(disk, &op);
        if !replayed.is_empty() {
            return Ok(Outcome::Duplicate(Effect::Leased(replayed)));
        }
        let lease_ms = op.lease_ms.unwrap_or(self.route(no).policy.lease_ms).min(HOLD_MS_MAX);
        let until = self.now.plus(lease_ms);
        let (mut grants, mut bytes) = (Vec::<Grant>::new(), 0);
        let max = self.allowed(no, op.max);
        for slot in self.next_queued(no, max) {
            let body = disk.body(self.requests.get(slot).seq);
            bytes += body.payload.bytes.len();
            if bytes > REPLY_BYTES_MAX && !grants.is_empty() {
                break;
            }
            let lease = LeaseMark {
                token: self.token(),
                until,
                lease_ms,
                claim: op.claim,
                worker: op.worker.clone(),
                revision: self.requests.get(slot).revision,
                notices: Vec::new(),
            };
            self.grant_lease(slot, lease);
            let attempt = self.requests.get(slot).attempts;
            self.note(slot, Event::Leased { worker: op.worker.clone(), attempt });
            grants.extend(self.grant(slot, body));
        }
        self.count_against_rate(no, grants.len());
        Ok(Outcome::Applied(Effect::Leased(grants)))
    }

    /// How many of so many the route's rate lets out now.
    fn allowed(&mut self, no: RouteNo, max: usize) -> usize {
        let (now, route) = (self.now, &mut self.routes[usize::from(no.0)]);
        route.policy.rate.map_or(max, |rate| route.pace.room(rate, now).min(max))
    }

    fn count_against_rate(&mut self, no: RouteNo, given: usize) {
        let (now, route) = (self.now, &mut self.routes[usize::from(no.0)]);
        if let Some(rate) = route.policy.rate {
            route.pace.give(rate, now, u32::try_from(given).unwrap_or(u32::MAX));
        }
    }

    /// The next requests in the route's order. Those past their deadline are passed
    /// over; upkeep ends them.
    fn next_queued(&self, no: RouteNo, max: usize) -> Vec<Slot> {
        let route = self.route(no);
        if route.paused {
            return Vec::new();
        }
        let ranked = &route.ranked;
        match route.policy.order {
            QueueOrder::Fifo => self.in_time(route.lists[StateKind::Queued as usize].values(), max),
            QueueOrder::Priority | QueueOrder::KeyedFifo { .. } => self.in_time(ranked.values(), max),
            QueueOrder::Deadline => {
                // Those that come first are past theirs.
                let first = (self.now.0.saturating_add(1), Seq(0));
                self.in_time(ranked.range(first..).map(|(_, slot)| slot), max)
            }
            QueueOrder::Random => {
                let place = random_place(self.epoch, self.tokens);
                let around = ranked.range((place, Seq(0))..).chain(ranked.range(..(place, Seq(0))));
                self.in_time(around.map(|(_, slot)| slot), max)
            }
        }
    }

    fn in_time<'a>(&self, queued: impl Iterator<Item = &'a Slot>, max: usize) -> Vec<Slot> {
        let in_time = |slot: &&Slot| !self.clocks().reached(self.requests.get(**slot).deadline);
        queued.take(max.saturating_add(PASS_OVER_MAX)).filter(in_time).take(max).copied().collect()
    }

    /// What a claim was given before and still holds.
    fn grants_of<D: Disk>(&self, disk: &mut D, op: &Lease) -> Vec<Grant> {
        let first = (op.claim, Seq(0));
        let held = self.claims.range(first..).take_while(|((claim, _), _)| *claim == op.claim);
        let of_this_caller = held.filter(|&(_, &slot)| {
            let request = self.requests.get(slot);
            let same_worker = matches!(&request.state, State::Leased(lease) if lease.worker == op.worker);
            same_worker && self.route(request.route).name == op.route
        });
        let grant = |slot: Slot| self.grant(slot, disk.body(self.requests.get(slot).seq));
        let mut grants: Vec<Grant> = of_this_caller.map(|(_, &slot)| slot).filter_map(grant).collect();
        // In the order in which they were given.
        grants.sort_by_key(|grant| grant.token);
        grants
    }

    fn grant(&self, slot: Slot, body: Body) -> Option<Grant> {
        let request = self.requests.get(slot);
        let State::Leased(lease) = &request.state else { return None };
        Some(Grant {
            id: request.id,
            token: lease.token,
            until: lease.until,
            attempt: request.attempts,
            generation: request.generation,
            revision: request.revision,
            standing: request.standing(),
            deadline: request.deadline.moment_unless(When::NEVER, &self.origins),
            payload: body.payload,
            trace: body.trace,
        })
    }

    /// The request that this token holds.
    fn held<D: Disk>(&mut self, disk: &mut D, id: &RequestId, token: Token) -> Result<Slot, Outcome> {
        let slot = self.live(disk, id, Stale::Lease)?;
        let kind = self.kind_at(slot);
        self.requests.get_mut(slot).lease_of(token, kind).map_err(Outcome::Stale)?;
        Ok(slot)
    }

    pub(super) fn extend<D: Disk>(&mut self, disk: &mut D, op: Extend) -> Result<Outcome, Outcome> {
        let slot = self.held(disk, &op.id, op.token)?;
        let (until, notices) = self.change(slot, |request, policy, now| {
            let lease_ms = op.lease_ms.unwrap_or(policy.lease_ms).min(HOLD_MS_MAX);
            let until = now.plus(lease_ms);
            match &mut request.state {
                State::Leased(lease) => {
                    lease.lease_ms = lease_ms;
                    lease.until = until;
                    (until, lease.notices.clone())
                }
                _ => (until, Vec::new()),
            }
        });
        Ok(Outcome::Applied(Effect::Extended(until, notices)))
    }

    pub(super) fn answer<D: Disk>(&mut self, disk: &mut D, op: Answer) -> Result<Outcome, Outcome> {
        if let Some(known) = self.answered_before(&op.id, op.token) {
            return Ok(known);
        }
        super::admit::check_payload(&op.response)?;
        self.check_requests(&op.follow_ups)?;
        let slot = self.held(disk, &op.id, op.token)?;
        self.check_revision(disk, slot, op.token)?;
        self.check_capacity(disk, &op.follow_ups)?;
        self.check_gather(&op.items)?;
        let seq = self.requests.get(slot).seq;
        self.record(disk, slot, op.token, &op.response, false);
        for follow_up in op.follow_ups {
            self.admit_one(disk, follow_up);
        }
        for item in op.items {
            self.gather_checked(disk, item);
        }
        Ok(Outcome::Applied(Effect::Now(self.kind_unless(slot, seq, StateKind::Settled))))
    }

    fn answered_before(&self, id: &RequestId, token: Token) -> Option<Outcome> {
        let slot = self.find_request(id)?;
        match &self.requests.get(slot).state {
            State::Answered(answer) if answer.token == token => {
                Some(Outcome::Duplicate(Effect::Now(self.kind_at(slot))))
            }
            _ => None,
        }
    }

    /// What is said of superseded content is not taken: the request goes back, at no
    /// cost, to be worked on as it is now.
    fn check_revision<D: Disk>(&mut self, disk: &mut D, slot: Slot, token: Token) -> Result<(), Outcome> {
        let (kind, revision) = (self.kind_at(slot), self.requests.get(slot).revision);
        let lease = self.requests.get_mut(slot).lease_of(token, kind).map_err(Outcome::Stale)?;
        if lease.revision == revision {
            return Ok(());
        }
        self.change(slot, |request, _, now| {
            request.release(now);
            request.rows.as_admitted = false;
        });
        self.note(slot, Event::Released);
        self.regate(disk, slot);
        Err(Outcome::Stale(Stale::Superseded))
    }

    /// Records a response under this token, and lets it out if it may go.
    pub(super) fn record<D: Disk>(
        &mut self,
        disk: &mut D,
        slot: Slot,
        token: Token,
        response: &Payload,
        failure: bool,
    ) {
        let request = self.requests.get(slot);
        let head =
            AnswerHead { token, failure, attempts: request.attempts, crashes: request.crashes, entry: self.high.entry };
        disk.put_answer(request.seq, &head, response);
        self.note(slot, Event::Answered);
        self.change_and_regate(disk, slot, |request, _| {
            request.misses = 0;
            let answer = AnswerMark { token, failure, delivery: Delivery::Waiting, undelivered: None };
            request.state = State::Answered(Box::new(answer));
        });
    }

    pub(super) fn fail<D: Disk>(&mut self, disk: &mut D, op: Fail) -> Result<Outcome, Outcome> {
        if let Verdict::Dead { response: Some(response) } = &op.verdict {
            super::admit::check_payload(response)?;
            if let Some(known) = self.answered_before(&op.id, op.token) {
                return Ok(known);
            }
        }
        let slot = match self.held(disk, &op.id, op.token) {
            // It is so, whoever said it first.
            Err(Outcome::Stale(Stale::Lease(end @ StateKind::Elsewhere))) if op.verdict == Verdict::Elsewhere => {
                return Ok(Outcome::Duplicate(Effect::Now(end)));
            }
            held => held?,
        };
        self.check_revision(disk, slot, op.token)?;
        let error = ErrorNote::new(op.error.class, &op.error.text);
        match op.verdict {
            Verdict::Elsewhere => {
                if !error.text.is_empty() {
                    self.note(slot, Event::DoneElsewhere { note: error });
                }
                self.end(disk, slot, End::Elsewhere);
                return Ok(Outcome::Applied(Effect::Now(StateKind::Elsewhere)));
            }
            Verdict::Retry { after_ms } => self.setback(slot, error, after_ms),
            Verdict::Dead { response: None } => self.die(slot, error),
            Verdict::Dead { response: Some(response) } => {
                self.change(slot, |request, _, _| request.error = Some(Box::new(error)));
                let seq = self.requests.get(slot).seq;
                self.record(disk, slot, op.token, &response, true);
                return Ok(Outcome::Applied(Effect::Now(self.kind_unless(slot, seq, StateKind::Dead))));
            }
        }
        self.regate(disk, slot);
        Ok(Outcome::Applied(Effect::Now(self.kind_at(slot))))
    }

    /// What a failure or a silent worker makes of a leased request.
    pub(super) fn setback(&mut self, slot: Slot, error: ErrorNote, after_ms: Option<u64>) {
        let noted = error.clone();
        let setback = self.change(slot, |request, policy, now| {
            request.rows.as_admitted = false;
            request.setback(error, after_ms, policy, now)
        });
        match setback {
            Setback::Again { due } => self.note(slot, Event::Failed { error: noted, due }),
            Setback::Dead => self.die(slot, noted),
        }
    }

    pub(super) fn release<D: Disk>(&mut self, disk: &mut D, op: Release) -> Result<Outcome, Outcome> {
        let slot = self.held(disk, &op.id, op.token)?;
        self.note(slot, Event::Released);
        self.change_and_regate(disk, slot, |request, now| {
            request.release(now.plus(op.after_ms));
            request.rows.as_admitted = false;
        });
        Ok(Outcome::Applied(Effect::Now(self.kind_at(slot))))
    }

    pub(super) fn mend<D: Disk>(&mut self, disk: &mut D, op: Mend) -> Result<Outcome, Outcome> {
        let slot = self.live(disk, &op.id, Stale::State)?;
        let kind = self.kind_at(slot);
        match op.remedy {
            Remedy::Retry | Remedy::Rework | Remedy::Drop if kind != StateKind::Dead => {
                return Err(Outcome::Stale(Stale::State(kind)));
            }
            Remedy::Retry => {
                let seq = self.requests.get(slot).seq;
                self.rearm(disk, slot);
                return Ok(Outcome::Applied(Effect::Now(self.kind_unless(slot, seq, StateKind::Settled))));
            }
            Remedy::Rework => {
                self.check_nothing_forgotten(slot)?;
                self.rework(disk, slot);
                return Ok(Outcome::Applied(Effect::Now(self.kind_at(slot))));
            }
            Remedy::Drop => self.end(disk, slot, End::Dead),
            Remedy::Cancel => {
                self.not_yet_assigned(slot)?;
                self.end(disk, slot, End::Withdrawn);
                return Ok(Outcome::Applied(Effect::Now(StateKind::Withdrawn)));
            }
        }
        Ok(Outcome::Applied(Effect::Now(StateKind::Dead)))
    }

    /// A lane that is stopped may have sent what the store has forgotten: that is matched by the answers that
    /// are here, so none of them may go. What the store remembers of a dead letter cannot be sent any more: its
    /// slot was used up for good, or it never had one.
    fn check_nothing_forgotten(&self, slot: Slot) -> Result<(), Outcome> {
        let request = self.requests.get(slot);
        let destination = self.route(request.route).policy.destination.as_ref();
        let stopped = |lane: &Lane| lane.status == LaneStatus::Stopped && Some(&lane.destination) == destination;
        match request.has_answer() && self.lanes.iter().any(stopped) {
            true => Err(Outcome::Stale(Stale::Lane(LaneStatus::Stopped))),
            false => Ok(()),
        }
    }

    /// Has a dead letter worked on anew, without its answer.
    fn rework<D: Disk>(&mut self, disk: &mut D, slot: Slot) {
        let request = self.requests.get(slot);
        if request.has_answer() {
            disk.void_answer(request.seq);
        }
        self.note(slot, Event::Reworked);
        self.change_and_regate(disk, slot, |request, now| {
            request.rework(now);
            request.rows.as_admitted = false;
        });
    }

    /// Lets a dead letter be tried again.
    pub(super) fn rearm<D: Disk>(&mut self, disk: &mut D, slot: Slot) {
        self.note(slot, Event::Rearmed);
        self.change_and_regate(disk, slot, |request, now| {
            request.rearm(now);
            request.rows.as_admitted = false;
        });
    }
}
