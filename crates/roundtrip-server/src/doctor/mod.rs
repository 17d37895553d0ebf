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

use roundtrip::store::Store;

use crate::api::WireListener;

/// Looks at everything that can be looked at from here.
pub(crate) async fn examine(store: &dyn Store, listeners: Vec<WireListener>, outside: &Outside) -> Vec<Finding> {
    decide::findings(&Facts::gather(store, listeners, outside).await)
}
