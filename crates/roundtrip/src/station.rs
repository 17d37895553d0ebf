//! What every station is: a loop that owns its work until it is told to stop.

use std::time::Duration;

use crate::store::StoreError;
use crate::words::UnixMs;

/// A seat is renewed when this part of its time is over, and one that somebody else has is
/// tried for again after this part.
const SEAT_RENEWED_AFTER: u64 = 2;
const SEAT_TRIED_AFTER: u64 = 4;
/// The longest time that is waited for anything.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Told to every station when it is time to stop.
pub type Shutdown = tokio_util::sync::CancellationToken;

/// Why a station stopped although nobody told it to.
#[derive(Debug, thiserror::Error)]
pub enum StationError {
    /// The store cannot go on.
    #[error("the store failed: {0}")]
    Store(#[from] StoreError),
    /// The station itself cannot go on.
    #[error("{0}")]
    Broken(String),
    /// The station stops until a person has looked at what it works with; the others can go
    /// on without it.
    #[error("{0}")]
    Halted(String),
}

/// A time that may be added to an instant: a year at most. Whoever says "for ever" with a
/// huge duration means just that, and the sum of it and now would be a panic.
pub(crate) fn bounded(time: Duration) -> Duration {
    time.min(WAIT_MAX)
}

/// Whether it is time to ask for a seat. By the asker's own clock alone: what the store
/// says of times is by another, which may be minutes away.
pub(crate) fn seat_is_due(now: UnixMs, asked_at: Option<UnixMs>, held: bool, seat_ms: u64) -> bool {
    let part = if held { SEAT_RENEWED_AFTER } else { SEAT_TRIED_AFTER };
    asked_at.is_none_or(|asked_at| now.since(asked_at) >= seat_ms / part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_asked_for_early_enough_to_keep_it_and_rarely_otherwise() {
        let due = |after: u64, held| seat_is_due(UnixMs(5_000 + after), Some(UnixMs(5_000)), held, 1_000);
        assert!(seat_is_due(UnixMs(0), None, false, 1_000), "never asked for");
        assert_eq!([499, 500].map(|after| due(after, true)), [false, true], "held");
        assert_eq!([249, 250].map(|after| due(after, false)), [false, true], "somebody else's");
    }
}
