//! How often one caller may call: so many times in a second, and as many at once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Callers that are remembered; beyond, those that have not called lately are forgotten.
const CALLERS_MAX: usize = 10_000;

/// What is left of each caller's allowance.
pub(super) struct Rates {
    per_second: f64,
    callers: Mutex<HashMap<String, Bucket>>,
}

struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    /// What is left now.
    fn refilled(&self, now: Instant, per_second: f64) -> f64 {
        (self.left + now.saturating_duration_since(self.at).as_secs_f64() * per_second).min(per_second)
    }
}

impl Rates {
    pub(super) fn new(per_second: u32) -> Rates {
        Rates { per_second: f64::from(per_second), callers: Mutex::default() }
    }

    /// Whether this caller may call now; if so, it has called.
    pub(super) fn take(&self, caller: &str, now: Instant) -> bool {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if callers.len() >= CALLERS_MAX {
            callers.retain(|_, bucket| bucket.refilled(now, self.per_second) < self.per_second);
        }
        let full = Bucket { left: self.per_second, at: now };
        let bucket = callers.entry(caller.to_owned()).or_insert(full);
        let left = bucket.refilled(now, self.per_second);
        let may = left >= 1.0;
        *bucket = Bucket { left: if may { left - 1.0 } else { left }, at: now };
        may
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_allowance_is_used_up_and_comes_back() {
        let (rates, start) = (Rates::new(3), Instant::now());
        let may = |caller: &str, ms: u64| rates.take(caller, start + Duration::from_millis(ms));
        assert_eq!([0, 0, 0, 0].map(|ms| may("a", ms)), [true, true, true, false]);
        assert!(may("b", 0), "another caller has an allowance of its own");
        assert_eq!([100, 400, 500].map(|ms| may("a", ms)), [false, true, false]);
        assert_eq!(
            [9_000, 9_000, 9_000, 9_000].map(|ms| may("a", ms)),
            [true, true, true, false],
            "not more than it was"
        );
    }
}
