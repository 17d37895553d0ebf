//! Roundtrip carries requests from where they are made to the worker that can answer
//! them, and each answer back to where it is wanted. Every hand-over is one durable
//! commit: nothing lost, nothing done twice, no slot of a lane left open.
//!
//! ```text
//! listener ──▶ inbox ──▶ worker ──▶ outbox ──▶ sender ──▶ settled
//! ```
//!
//! The modules, in the order of the flow:

#[cfg(feature = "webhook")]
pub mod calling;
pub mod clock;
#[cfg(feature = "redis")]
mod foreign;
mod persist;
pub mod station;
pub mod trace;
pub mod words;

pub mod groups;
pub mod inbox;
pub mod listener;
pub mod outbox;
pub mod sender;
pub mod upkeep;
pub mod worker;

pub mod relay;

pub mod store;

#[cfg(feature = "testkit")]
pub mod testkit;

/// The README's example is compiled and run with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
