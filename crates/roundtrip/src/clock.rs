//! Time is passed in, never reached for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::words::UnixMs;

/// Where a store and a station get the time from.
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> UnixMs;
}

/// The machine's clock: wall time at the start, then the monotonic clock, so that
/// a wall clock set back while the process runs moves nothing back.
#[derive(Clone, Debug)]
pub struct SystemClock {
    started_at: UnixMs,
    started: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    pub fn new() -> SystemClock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started_at = UnixMs(u64::try_from(wall.as_millis()).unwrap_or(u64::MAX));
        SystemClock { started_at, started: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> UnixMs {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.started_at.plus(elapsed)
    }
}

/// A clock that stands still until it is set, forward or back.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows this time.
    pub fn at(time: UnixMs) -> ManualClock {
        ManualClock(Arc::new(AtomicU64::new(time.0)))
    }

    /// Shows this time from now on; it may be earlier than the last.
    pub fn set(&self, time: UnixMs) {
        self.0.store(time.0, Ordering::SeqCst);
    }

    /// Moves on by so many milliseconds.
    pub fn advance_ms(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> UnixMs {
        UnixMs(self.0.load(Ordering::SeqCst))
    }
}
