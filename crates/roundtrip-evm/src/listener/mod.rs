//! Listening: the events of contracts come in as requests.
//!
//! ```text
//!   headers and logs ──▶ each in its header's block? ──▶ a bloom without its logs? ──▶ decode ──▶ requests
//!      │ too wide                │ no                             │
//!      └─▶ narrower              └─▶ asked again later            └─▶ the block's receipts, checked against the bloom
//! ```
//!
//! Of several nodes the first that answers is taken, or what enough of them show alike.
//!
//! Reading when, from where, and what to do about a reorg are the engine's
//! ([`roundtrip::listener::Follower`]); this says what the blocks of a range show.
//!
//! Failure modes: what a node says of a moving chain may not fit together; then it is no
//! answer, and is asked for again. A range that a node refuses, cuts off or is too slow for
//! is asked for in parts. Logs that a node leaves out of a block altogether are noticed by
//! the block's bloom. A log that carries the event's topic and cannot be decoded
//! is a dead letter with its reason; the rest goes on.

mod asked;
mod event;
pub(crate) mod limits;
mod live;
mod logs;
mod mempool;
mod node;
mod probe;
mod quorum;
mod source;
mod subscription;
mod watch;

pub use asked::Asked;
pub use event::{AbiError, BadDeadline, BadFilter, BadSignature, EventSignature};
pub use mempool::Mempool;
pub use probe::Trouble;
pub use source::{BadQuorum, EvmSource};
pub use watch::{NoIdentity, NoMatch, Watch};
