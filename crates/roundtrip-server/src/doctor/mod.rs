//! Whether all is well, and what to do about what is not.
//!
//! ```text
//!   store, its file or server, nodes, accounts ──▶ facts ──▶ decide ──▶ findings, each with what to do
//! ```
//!
//! Failure modes: what cannot be asked is a finding itself; a look changes nothing.

mod decide;
mod facts;

pub use decide::{Finding, Level};
pub use facts::Outside;

use facts::Facts;

use std::sync::Arc;

use roundtrip::sender::SenderStats;
use roundtrip::store::Store;
use roundtrip_tools::Away;

use crate::api::WireListener;

/// What the process that is asked knows besides the store.
pub(crate) struct Here {
    /// How its listeners get on, and where those of others are; or why the store does not tell.
    pub(crate) listeners: Result<Vec<WireListener>, String>,
    /// The tools that it calls, by their routes; and since when those that cannot be asked are away.
    pub(crate) tools: Vec<(String, Option<Away>)>,
    /// What its senders know of their lanes.
    pub(crate) senders: Vec<Arc<SenderStats>>,
}

/// Looks at everything that can be looked at from here.
pub(crate) async fn examine(store: &dyn Store, here: Here, outside: &Outside) -> Vec<Finding> {
    decide::findings(&Facts::gather(store, here, outside).await)
}
