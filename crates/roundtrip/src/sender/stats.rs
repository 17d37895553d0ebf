//! What a sender knows of its lanes beyond the store, for whoever watches it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::words::{LaneName, Nonce};

/// What a sender knows of its lanes, as of its last look at each. A lane that another process sends on is
/// not known here.
#[derive(Debug, Default)]
pub struct SenderStats {
    at_cap: Mutex<BTreeMap<LaneName, Nonce>>,
}

impl SenderStats {
    /// The lowest slot of a lane that pays all that it may and is not mined, if there is one.
    pub fn at_cap(&self, lane: &LaneName) -> Option<Nonce> {
        self.at_cap.lock().unwrap_or_else(PoisonError::into_inner).get(lane).copied()
    }

    pub(super) fn set_at_cap(&self, lane: &LaneName, slot: Option<Nonce>) {
        let mut at_cap = self.at_cap.lock().unwrap_or_else(PoisonError::into_inner);
        match slot {
            Some(slot) => at_cap.insert(lane.clone(), slot),
            None => at_cap.remove(lane),
        };
    }
}
