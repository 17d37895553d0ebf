//! The courier's operation, for destinations without lanes: `publish` records what
//! became of a delivery after it was made.
//!
//! A crash between the two leaves the answer ready, and it is delivered again under the
//! same id; so the outside may see it twice, and the store ends it once. The answer's own
//! token is named: one that was superseded while it was on its way ends nothing.

use super::{Machine, Slot};
use crate::inbox::{End, State, StateKind};
use crate::outbox::{Delivery, Undelivered};
use crate::store::disk::{ColdReceipt, Disk};
use crate::store::journal::Event;
use crate::store::op::{Effect, Invalid, Missing, Outcome, Publish, PublishResult, Seat, Stale};
use crate::words::{Destination, ErrorNote, Token};

impl Machine {
    pub(super) fn publish<D: Disk>(&mut self, disk: &mut D, op: Publish) -> Result<Outcome, Outcome> {
        self.check_no_lanes(&op.destination)?;
        self.check_seat(&Seat::Destination(op.destination.clone()), op.owner)?;
        let Some(slot) = self.find_request(&op.id) else { return self.published_before(disk, &op) };
        let request = self.requests.get(slot);
        if self.route(request.route).policy.destination.as_ref() != Some(&op.destination) {
            return Err(Outcome::Invalid(Invalid::OtherDestination(op.id)));
        }
        let bounded = |error: ErrorNote| ErrorNote::new(error.class, &error.text);
        let refusal = match op.result {
            PublishResult::Delivered => None,
            PublishResult::Refused(error) => Some(bounded(error)),
            PublishResult::Failed { error, before } => {
                return self.undelivered(slot, op.answer, bounded(error), before);
            }
        };
        let refused = refusal.is_some();
        let failure = match &request.state {
            State::Answered(answer) if answer.delivery == Delivery::Ready && answer.token == op.answer => {
                answer.failure
            }
            State::Dead(letter) if refused && letter.answer.as_ref().is_some_and(|a| a.token == op.answer) => {
                return Ok(Outcome::Duplicate(Effect::Now(StateKind::Dead)));
            }
            _ => return Err(Outcome::Stale(Stale::Delivery(op.id, self.kind(request)))),
        };
        match refusal {
            None => {
                self.note(slot, Event::Published { destination: op.destination });
                self.finish(disk, slot);
            }
            Some(error) => self.die(slot, error),
        }
        let now = if failure || refused { StateKind::Dead } else { StateKind::Settled };
        Ok(Outcome::Applied(Effect::Now(now)))
    }

    /// Remembers that a delivery failed, and why. The journal tells of it when the reason is another
    /// one than before, so that a receiver that is away for days does not fill a timeline.
    fn undelivered(&mut self, slot: Slot, token: Token, error: ErrorNote, before: u32) -> Result<Outcome, Outcome> {
        let (request, now) = (self.requests.get(slot), Effect::Now(StateKind::Ready));
        let failures = match &request.state {
            State::Answered(answer) if answer.delivery == Delivery::Ready && answer.token == token => answer.failures(),
            _ => return Err(Outcome::Stale(Stale::Delivery(request.id, self.kind(request)))),
        };
        if failures > before {
            return Ok(Outcome::Duplicate(now));
        }
        if failures == 0 || request.error.as_deref() != Some(&error) {
            self.note(slot, Event::Undelivered { error: error.clone() });
        }
        let (times, at) = (failures.saturating_add(1), self.now);
        // It stays where it is listed: nobody is hinted at what has just failed.
        let request = self.requests.get_mut(slot);
        request.error = Some(Box::new(error));
        if let State::Answered(answer) = &mut request.state {
            answer.undelivered = Some(Box::new(Undelivered { times, at }));
        }
        self.mark_dirty(slot);
        Ok(Outcome::Applied(now))
    }

    /// What a replay is told when the request has ended.
    fn published_before<D: Disk>(&self, disk: &mut D, op: &Publish) -> Result<Outcome, Outcome> {
        let Some(ColdReceipt::Ended { end, .. }) = self.receipt_of(disk, &op.id) else {
            return Err(Outcome::NotFound(Missing::Request(op.id)));
        };
        match (&op.result, end) {
            (PublishResult::Delivered, End::Settled | End::Dead) | (PublishResult::Refused(_), End::Dead) => {
                Ok(Outcome::Duplicate(Effect::Now(end.kind())))
            }
            _ => Err(Outcome::Stale(Stale::Delivery(op.id, end.kind()))),
        }
    }

    /// A destination has lanes or a seat, not both: each side alone decides what is sent.
    pub(super) fn check_no_lanes(&self, destination: &Destination) -> Result<(), Outcome> {
        if self.lanes.iter().any(|lane| lane.destination == *destination) {
            return Err(Outcome::Invalid(Invalid::ServedByLanes(destination.clone())));
        }
        Ok(())
    }

    pub(super) fn check_no_seat(&self, destination: &Destination) -> Result<(), Outcome> {
        match self.seats.get(&Seat::Destination(destination.clone())) {
            Some(tenure) if tenure.until > self.now => {
                let (destination, holder) = (destination.clone(), tenure.holder.clone());
                Err(Outcome::Invalid(Invalid::ServedBySeat { destination, holder }))
            }
            _ => Ok(()),
        }
    }
}
