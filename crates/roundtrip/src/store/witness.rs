//! Who is told of what this process does: each step of a request or a lane, once the commit
//! that holds it is durable.
//!
//! Several processes share a store, and the journal tells of all of them. A witness is told
//! only of what its own process did, so that what all of them count adds up. A commit whose
//! answer was lost is not told of, though it may be durable.

use std::fmt::Debug;

use crate::inbox::End;
use crate::store::journal::Event;
use crate::words::{ErrorClass, LaneName, RequestId, RouteName, UnixMs};

/// Whoever counts or follows what this process does. It is called where the commits are made:
/// it must not wait.
pub trait Witness: Debug + Send + Sync {
    /// These steps are durable, in this order. A lease may still be forgotten by a crash.
    fn saw(&self, moves: &[Move]);
}

/// One step of something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// Of a request.
    Request {
        /// Which.
        id: RequestId,
        /// Which generation of its id.
        generation: u32,
        /// Its route.
        route: RouteName,
        /// When it came in, by the store's clock.
        admitted_at: UnixMs,
        /// When it took the step, by the same clock.
        at: UnixMs,
        /// Which step.
        step: RequestStep,
    },
    /// Of a lane.
    Lane {
        /// Which.
        lane: LaneName,
        /// Which step.
        step: LaneStep,
    },
}

/// A step of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestStep {
    /// It came in.
    Admitted,
    /// Another occurrence of it came in.
    Repeated,
    /// Its origin calls it final.
    Finalized,
    /// Its content changed.
    Superseded,
    /// A worker took it.
    Leased {
        /// Which attempt, from 1.
        attempt: u16,
    },
    /// A worker gave it back at no cost.
    Released,
    /// A worker failed, or died; it will be tried again.
    Failed(ErrorClass),
    /// A response is recorded.
    Answered,
    /// It is on a slot of this lane, with its bytes stored.
    Assigned(LaneName),
    /// In a block.
    Mined,
    /// At the route's depth.
    Confirmed,
    /// A reorg took its transaction out of the chain.
    Unmined,
    /// Its slot was used for something else; it will be sent again.
    Returned,
    /// It was delivered to a destination without lanes.
    Published,
    /// A failure response takes the place of its answer.
    Replaced,
    /// It is a dead letter.
    Died,
    /// A dead letter is tried again.
    Rearmed,
    /// It ended.
    Ended(End),
}

impl RequestStep {
    /// The step that the journal notes so; what is no step of a request is none.
    pub(crate) fn of(event: &Event) -> Option<RequestStep> {
        Some(match event {
            Event::Admitted { .. } => RequestStep::Admitted,
            Event::Attached => RequestStep::Repeated,
            Event::Finalized => RequestStep::Finalized,
            Event::Superseded { .. } => RequestStep::Superseded,
            Event::Leased { attempt, .. } => RequestStep::Leased { attempt: *attempt },
            Event::Released => RequestStep::Released,
            Event::Failed { error, .. } => RequestStep::Failed(error.class),
            Event::Answered => RequestStep::Answered,
            Event::Assigned { lane, .. } => RequestStep::Assigned(lane.clone()),
            Event::Mined { .. } => RequestStep::Mined,
            Event::Confirmed { .. } => RequestStep::Confirmed,
            Event::Unmined => RequestStep::Unmined,
            Event::Returned { .. } => RequestStep::Returned,
            Event::Published { .. } => RequestStep::Published,
            Event::Replaced { .. } => RequestStep::Replaced,
            Event::Died { .. } => RequestStep::Died,
            Event::Rearmed | Event::Reworked => RequestStep::Rearmed,
            Event::Ended { end } => RequestStep::Ended(*end),
            // An occurrence that goes and comes back is no step: what follows from it is.
            Event::Orphaned | Event::Included => return None,
            // Whoever delivers counts each time.
            Event::Undelivered { .. } => return None,
            // Its end is the step.
            Event::DoneElsewhere { .. } => return None,
            Event::LaneStatus { .. }
            | Event::Attempted { .. }
            | Event::CancelWished { .. }
            | Event::Filled { .. }
            | Event::Sealed { .. }
            | Event::Defined
            | Event::Paused { .. }
            | Event::RolledBack => return None,
        })
    }
}

/// A step of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneStep {
    /// Another signed attempt for a slot is stored.
    Attempted,
    /// A slot that was passed over has a parcel now.
    Filled,
    /// A parcel is to be cancelled.
    CancelWished,
}

impl LaneStep {
    /// The step that the journal notes so.
    pub(crate) fn of(event: &Event) -> Option<LaneStep> {
        match event {
            Event::Attempted { .. } => Some(LaneStep::Attempted),
            Event::Filled { .. } => Some(LaneStep::Filled),
            Event::CancelWished { .. } => Some(LaneStep::CancelWished),
            _ => None,
        }
    }
}
