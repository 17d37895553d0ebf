//! What a courier knows of its deliveries beyond the store, for whoever watches it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::words::RequestId;

/// Deliveries of which it is known when they are tried again; of more, nothing is said.
const KNOWN_MAX: usize = 1 << 14;

/// When a courier tries again what failed. A delivery that another process makes is not known here.
#[derive(Debug, Default)]
pub struct CourierStats {
    due: Mutex<HashMap<RequestId, Instant>>,
}

impl CourierStats {
    /// When a delivery that failed is tried again, if that is not over.
    pub fn due(&self, id: &RequestId) -> Option<Instant> {
        self.all().get(id).copied().filter(|due| *due > Instant::now())
    }

    pub(super) fn set_due(&self, id: RequestId, due: Instant, now: Instant) {
        let mut all = self.all();
        if all.len() >= KNOWN_MAX {
            // What is over was tried, or was given to somebody else.
            all.retain(|_, due| *due > now);
        }
        if all.len() < KNOWN_MAX {
            all.insert(id, due);
        }
    }

    pub(super) fn forget(&self, id: &RequestId) {
        self.all().remove(id);
    }

    pub(super) fn forget_all(&self) {
        self.all().clear();
    }

    fn all(&self) -> MutexGuard<'_, HashMap<RequestId, Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_due_is_known_until_then_and_bounded() {
        let (stats, now) = (CourierStats::default(), Instant::now());
        let id = |n: usize| RequestId::of(&[&n.to_le_bytes()]);
        let second = Duration::from_secs(1);
        for n in 0..=KNOWN_MAX {
            stats.set_due(id(n), now + second, now);
        }
        assert_eq!((stats.due(&id(0)), stats.due(&id(KNOWN_MAX))), (Some(now + second), None));
        stats.forget(&id(0));
        assert_eq!(stats.due(&id(0)), None);
        tokio::time::advance(second).await;
        assert_eq!(stats.due(&id(1)), None, "its time has come");
        for n in [0, KNOWN_MAX] {
            stats.set_due(id(n), now + 2 * second, now + second);
        }
        assert_eq!(
            (stats.due(&id(KNOWN_MAX)), stats.all().len()),
            (Some(now + 2 * second), 2),
            "what is over made room"
        );
        stats.forget_all();
        assert_eq!(stats.due(&id(0)), None);
    }
}
