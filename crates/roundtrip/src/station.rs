//! What every station is: a loop that owns its work until it is told to stop.

use crate::store::StoreError;

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
