//! Groups: items gathered under a key until the group is sealed, then one request
//! that refers to them.

use serde::{Deserialize, Serialize};

use crate::words::{RequestId, UnixMs};

/// Whether a group still gathers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GroupState {
    /// Items join.
    Open,
    /// Sealed; items that come now are recorded as late.
    Sealed {
        /// How many items it was sealed with.
        items: u64,
        /// When.
        at: UnixMs,
        /// The request that refers to it.
        request: RequestId,
    },
}

/// What gathering an item comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    InTime,
    Late,
}

impl GroupState {
    /// How an item that comes now is recorded.
    pub(crate) fn arrival(&self) -> Arrival {
        match self {
            GroupState::Open => Arrival::InTime,
            GroupState::Sealed { .. } => Arrival::Late,
        }
    }
}
