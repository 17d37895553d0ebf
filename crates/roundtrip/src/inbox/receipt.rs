//! What is left of a request after its end, so that a repeat is recognised.

use serde::{Deserialize, Serialize};

use crate::inbox::{OriginNo, StateKind};
use crate::words::{Height, OccurrenceId, RequestId, UnixMs};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum End {
    /// Its answer is final where it was wanted.
    Settled,
    /// It failed for good, and nobody will try again.
    Dead,
    /// Its deadline came first.
    Expired,
    /// Its origin took it back, or a person did.
    Withdrawn,
    /// Somebody else answered it.
    Elsewhere,
}

impl End {
    /// The end as a state.
    pub fn kind(self) -> StateKind {
        match self {
            End::Settled => StateKind::Settled,
            End::Dead => StateKind::Dead,
            End::Expired => StateKind::Expired,
            End::Withdrawn => StateKind::Withdrawn,
            End::Elsewhere => StateKind::Elsewhere,
        }
    }
}

/// An origin and a height of it, as the store numbers origins.
pub(crate) type OriginMark = Option<(OriginNo, Height)>;

/// The record of an ended request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) id: RequestId,
    pub(crate) generation: u32,
    pub(crate) end: End,
    pub(crate) ended_at: UnixMs,
    /// Until when a repeat of the id is refused.
    pub(crate) blocks_until: UnixMs,
    /// Until when it can be looked up, at the least.
    pub(crate) kept_until: UnixMs,
    /// Where its timeline ends in the journal.
    pub(crate) last_entry: u64,
    /// The occurrences that it stands for; none after its origin withdrew it, which must
    /// not block the event if it comes back.
    pub(crate) occurrences: Vec<(OccurrenceId, OriginMark)>,
}

/// That an occurrence was seen, and of which request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct OccurrenceNote {
    pub(crate) occurrence: OccurrenceId,
    pub(crate) id: RequestId,
    pub(crate) end: End,
    pub(crate) origin: OriginMark,
    /// Until when it is remembered; with an origin, until its floor passes the height.
    pub(crate) kept_until: UnixMs,
}
