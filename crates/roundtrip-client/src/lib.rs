//! A worker outside the program: pulls requests of a route over HTTP or one stream of gRPC, and
//! answers them.
//!
//! ```text
//!   lease (waits for work) ──▶ handler ──▶ answer, or fail
//!                                 ▲
//!                     extend ─────┘ while it works; hears what became of the request
//! ```
//!
//! [`Client`] has the calls, [`Worker`] the loop; [`Worker::streaming`] is the same loop over a stream,
//! which is faster where work is quick. Failure modes: a program that is away is asked
//! again, without end; an answer that was not heard is sent again, and counts once; work that
//! somebody else has by now is dropped. When it is told to stop, a worker finishes what it has in
//! hand. One that dies says nothing: its leases run out.

mod client;
mod stream;
mod worker;

pub use client::{CallError, Client, Failed, Job, Kept, Leased, Outcome, Settings, Verdict};
pub use worker::{Failure, Options, Worker};

/// Told to a worker when it is time to stop.
pub type Shutdown = tokio_util::sync::CancellationToken;
