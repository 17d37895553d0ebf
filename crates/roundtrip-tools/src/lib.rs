//! Handlers that call out: HTTP tools, gRPC services, contracts.
//!
//! ```text
//!   request ──▶ prepare ──▶ input ──▶ tool ──▶ answer
//!               cached      a mapping  http       │
//!               reads of    of what    grpc       ├─ already done
//!               registries  was found  contract   ├─ again: it failed, or was not there to be asked
//!               and chains             identity   └─ never
//! ```
//!
//! [`Work`] is what the engine's worker station calls; it knows none of the kinds. Each kind is a
//! [`Tool`]: it is given an [`Errand`] and says what came of it. What a status means is decided by
//! pure functions; a call that ends without one may have had its effect, and carries the same
//! idempotency key when it is made again.
//!
//! Failure modes: whatever a tool does (silence, a page instead of an answer, an endless one, one that
//! its own schema forbids) costs its own request at most, and the engine's bounds on attempts
//! and time end that. No call goes to an address within the network unless its configuration
//! names it ([`egress`]).

mod cache;
pub mod contract;
pub mod egress;
mod errand;
pub mod grpc;
pub mod http;
pub mod identity;
pub mod prepare;
mod presence;
pub mod schema;
pub mod template;
mod web;
mod work;

pub use errand::{Errand, Meaning, Tool, ToolFuture, Trouble};
pub use prepare::{Preparation, Prepared};
pub use presence::{Away, Presence};
pub use template::UrlTemplate;
pub use web::{ClientTls, Web};
pub use work::{RESERVED, Work};
