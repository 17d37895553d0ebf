//! The EVM crate's tests from outside.
#![cfg(feature = "testkit")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod devchain;
//! The tests of EVM chains from outside: against real nodes, and against the testkit itself.
#![cfg(feature = "testkit")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod checker;
mod contracts;
mod nodes;
mod proxy;
