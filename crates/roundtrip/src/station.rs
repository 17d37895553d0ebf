//! What every station is: a loop that owns its work until it is told to stop.

use std::time::Duration;

use crate::store::StoreError;

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
}

/// A time that may be added to an instant: a year at most. Whoever says "for ever" with a
/// huge duration means just that, and the sum of it and now would be a panic.
pub(crate) fn bounded(time: Duration) -> Duration {
    time.min(WAIT_MAX)
}
