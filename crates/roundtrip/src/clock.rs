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

/// A clock that moves with the runtime's time, so that a paused runtime moves it as well:
/// what waits and what reads the time agree, and a run repeats exactly.
#[derive(Clone, Debug)]
pub struct TokioClock {
    base: UnixMs,
    started: tokio::time::Instant,
    runtime: tokio::runtime::Handle,
}

impl TokioClock {
    /// A clock that shows this time now. Needs a tokio runtime, whose time it follows.
    pub fn starting_at(base: UnixMs) -> TokioClock {
        TokioClock { base, started: tokio::time::Instant::now(), runtime: tokio::runtime::Handle::current() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> UnixMs {
        // A thread that is not the runtime's, such as a store's, would read another time.
        let _entered = self.runtime.enter();
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.base.plus(elapsed)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_runtimes_time_is_the_same_on_every_thread() {
        let clock = TokioClock::starting_at(UnixMs(1000));
        tokio::time::advance(std::time::Duration::from_secs(60)).await;
        assert_eq!(clock.now(), UnixMs(61_000));
        assert_eq!(std::thread::spawn(move || clock.now()).join().unwrap(), UnixMs(61_000));
    }
}
