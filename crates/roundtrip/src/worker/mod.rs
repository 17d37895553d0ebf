//! Working: leases requests of a route, has a handler answer them, and records what
//! became of each.
//!
//! ```text
//!            room?            handler              one call for all that ended
//!   queued ────────▶ leased ──────────▶ ended ──────────────────────────────▶ recorded
//!                      │  ▲
//!                      └──┘ extended at a third of the lease; brings amendments
//! ```
//!
//! Failure modes: a handler that fails, takes too long or panics costs its own request
//! an attempt, and nobody else anything. A worker that dies leaves leases that run out. A
//! worker that was silent for too long has lost its leases, and what it says is refused.
//! A store whose answer is lost is asked again; a full disk is waited for; any other
//! store error ends the worker.

mod decide;
mod handler;
mod job;
mod run;

pub use handler::{
    Done, Failure, Handled, Handler, HandlerFn, HandlerFuture, IntoHandled, RawHandler, RawHandlerFn, Typed,
    handler_fn, raw_handler_fn,
};
pub use job::{Job, JobNotice};
pub(crate) use run::panic_message;
pub use run::{Worker, WorkerOptions};
