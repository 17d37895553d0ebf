//! The courier's operation, for destinations without lanes: `publish` records what
//! became of a delivery after it was made.
//!
//! A crash between the two leaves the answer ready, and it is delivered again under the
//! same id; so the outside may see it twice, and the store ends it once. The answer's own
//! token is named: one that was superseded while it was on its way ends nothing.

use super::Machine;
use crate::inbox::{End, State, StateKind};
use crate::outbox::Delivery;
use crate::store::disk::{ColdReceipt, Disk};
use crate::store::journal::Event;
use crate::store::op::{Effect, Invalid, Missing, Outcome, Publish, PublishResult, Seat, Stale};
use crate::words::{Destination, ErrorNote};

impl Machine {
    pub(super) fn publish<D: Disk>(&mut self, disk: &mut D, op: Publish) -> Result<Outcome, Outcome> {
        self.check_no_lanes(&op.destination)?;
        self.check_seat(&Seat::Destination(op.destination.clone()), op.owner)?;
        let Some(slot) = self.find_request(&op.id) else { return self.published_before(disk, &op) };
        let request = self.requests.get(slot);
        if self.route(request.route).policy.destination.as_ref() != Some(&op.destination) {
            return Err(Outcome::Invalid(Invalid::OtherDestination(op.id)));
        }
        let refused = matches!(op.result, PublishResult::Refused(_));
        let failure = match &request.state {
            State::Answered(answer) if answer.delivery == Delivery::Ready && answer.token == op.answer => {
                answer.failure
            }
            State::Dead(letter) if refused && letter.answer.as_ref().is_some_and(|a| a.token == op.answer) => {
                return Ok(Outcome::Duplicate(Effect::Now(StateKind::Dead)));
            }
            _ => return Err(Outcome::Stale(Stale::Delivery(op.id, self.kind(request)))),
        };
        match op.result {
            PublishResult::Delivered => {
                self.note(slot, Event::Published { destination: op.destination });
                self.finish(disk, slot);
            }
            PublishResult::Refused(error) => self.die(slot, ErrorNote::new(error.class, &error.text)),
        }
        let now = if failure || refused { StateKind::Dead } else { StateKind::Settled };
        Ok(Outcome::Applied(Effect::Now(now)))
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
