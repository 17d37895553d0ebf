//! The outbox: answers on their way to where they are wanted. Lanes take those for
//! chains (see [`crate::sender`]); a [`Courier`] takes the others to a [`Sink`].

mod courier;
#[cfg(feature = "redis")]
mod list;
mod sink;
mod stats;
mod targets;
#[cfg(feature = "webhook")]
mod webhook;

pub use courier::{Courier, CourierOptions};
#[cfg(feature = "redis")]
pub use list::RedisListSink;
pub use sink::{CallSink, ChannelSink, Handed, Sink, SinkError, SinkFuture};
pub use stats::CourierStats;
#[cfg(feature = "webhook")]
pub use webhook::{BadEndpoint, Endpoint, Endpoints, WebhookOptions, WebhookSink};

use serde::{Deserialize, Serialize};

use crate::words::{Nonce, UnixMs};

/// A lane's number in this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct LaneNo(pub(crate) u16);

/// How far an answer is. What happens on the slot is the parcel's to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Delivery {
    /// Its request may still be taken back.
    Waiting,
    /// To be sent.
    Ready,
    /// On a slot: from here on the outside decides.
    Assigned { lane: LaneNo, nonce: Nonce },
}

/// That an answer was not taken where it is wanted, by no lane, and is tried again. What was wrong is the
/// request's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Undelivered {
    /// How often this answer failed to be delivered.
    pub times: u32,
    /// When it last did.
    pub at: UnixMs,
}

impl Delivery {
    /// Opens or shuts the way out; what is on a slot stays there.
    pub(crate) fn pass_gate(&mut self, open: bool) {
        match self {
            Delivery::Waiting | Delivery::Ready if open => *self = Delivery::Ready,
            Delivery::Waiting | Delivery::Ready => *self = Delivery::Waiting,
            Delivery::Assigned { .. } => {}
        }
    }
}
