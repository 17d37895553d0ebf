//! The journal: the bounded, ordered record of changes, appended by each commit.
//!
//! An entry about a request names the request's entry before it, so a timeline is
//! read by following that chain, without an index and without a scan.

use serde::{Deserialize, Serialize};

use crate::inbox::{End, RouteNo};
use crate::sender::{AttemptNote, Block, LaneStatus};
use crate::store::op::AfterCancel;
use crate::trace::TraceId;
use crate::words::{
    AttemptHash, Destination, ErrorNote, GroupKey, LaneName, Nonce, RequestId, RouteName, UnixMs, WorkerName,
};

/// One change. `R` is how its route is told: by name, but by number where it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry<R = RouteName> {
    /// Its place in the journal, from 1.
    pub position: u64,
    /// When.
    pub at: UnixMs,
    /// To what.
    pub subject: Subject,
    /// Of which route the request is, if it happened to one.
    pub route: Option<R>,
    /// What happened.
    pub event: Event,
    /// The place of the entry before it about the same request; 0 if there is none.
    pub previous: u64,
}

/// An entry as stores keep it.
pub(crate) type KeptEntry = Entry<RouteNo>;

impl KeptEntry {
    /// The entry, with its route's name.
    pub(crate) fn named(self, name: impl FnOnce(RouteNo) -> Option<RouteName>) -> Entry {
        let Entry { position, at, subject, route, event, previous } = self;
        Entry { position, at, subject, route: route.and_then(name), event, previous }
    }
}

/// What a change happened to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Subject {
    /// A request.
    Request(RequestId),
    /// A lane.
    Lane(LaneName),
    /// A group.
    Group(GroupKey),
    /// A route.
    Route(RouteName),
    /// The store itself.
    Store,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Event {
    /// A request came in.
    Admitted {
        /// Which generation of its id.
        generation: u32,
        /// The trace that it came with, which outlives what it came with.
        trace: Option<TraceId>,
    },
    /// Another occurrence of a live request.
    Attached,
    /// Its origin calls it final.
    Finalized,
    /// A reorg took an occurrence away.
    Orphaned,
    /// A reorg brought an occurrence back.
    Included,
    /// Its content changed.
    Superseded {
        /// Which content it has now.
        revision: u16,
    },
    /// A worker took it.
    Leased {
        /// Who.
        worker: WorkerName,
        /// Which attempt.
        attempt: u16,
    },
    /// A worker gave it back.
    Released,
    /// A worker failed; it will be tried again.
    Failed {
        /// With what.
        error: ErrorNote,
        /// When it is due again.
        due: UnixMs,
    },
    /// A response is recorded.
    Answered,
    /// It is on a slot, with its bytes stored.
    Assigned {
        /// Of which lane.
        lane: LaneName,
        /// Which slot.
        nonce: Nonce,
        /// The first attempt on it.
        attempt: AttemptNote,
    },
    /// In a block.
    Mined {
        /// Which attempt, and where.
        block: Block,
    },
    /// At the route's depth.
    Confirmed {
        /// Which attempt, and where.
        block: Block,
    },
    /// A reorg took its transaction out of the chain.
    Unmined,
    /// Its slot was used for something else; it will be sent again.
    Returned {
        /// Why, if the outside said so.
        error: Option<ErrorNote>,
    },
    /// It was delivered to a destination without lanes.
    Published {
        /// Where.
        destination: Destination,
    },
    /// It is a dead letter.
    Died {
        /// Of what.
        error: ErrorNote,
    },
    /// A person or a repeat wants it tried again.
    Rearmed,
    /// It ended.
    Ended {
        /// How.
        end: End,
    },
    /// A lane's status changed.
    LaneStatus {
        /// To what.
        status: LaneStatus,
    },
    /// Another signed attempt for a slot is stored: told of its lane, and of every request that is on it.
    Attempted {
        /// Which slot.
        nonce: Nonce,
        /// Which attempt.
        attempt: AttemptNote,
    },
    /// A parcel is to be cancelled: told of its lane, and of every request that it carries.
    CancelWished {
        /// On which slot.
        nonce: Nonce,
        /// What becomes of its deliveries if nothing is carried.
        then: AfterCancel,
    },
    /// A slot that was passed over has a parcel now.
    Filled {
        /// Which slot.
        nonce: Nonce,
        /// The attempt that is to use it up.
        hash: AttemptHash,
    },
    /// A group was sealed.
    Sealed {
        /// With so many items.
        items: u64,
        /// Referred to by this request.
        request: RequestId,
    },
    /// A route was defined, or its policies changed.
    Defined,
    /// A route was paused or resumed.
    Paused {
        /// Whether it is paused now.
        paused: bool,
    },
    /// Somebody outside remembers what the store does not.
    RolledBack,
    /// Its answer can never be sent: a failure response takes its place.
    Replaced {
        /// Why.
        error: ErrorNote,
    },
    /// Its worker says that it was done before, elsewhere; its end follows.
    DoneElsewhere {
        /// How the worker knows.
        note: ErrorNote,
    },
    /// A person wants it worked on anew; what was answered to it is gone.
    Reworked,
    /// It could not be delivered to a destination without lanes, and is tried again; told once for
    /// as long as the reason stays the same.
    Undelivered {
        /// Why.
        error: ErrorNote,
    },
}
