//! The EVM crate's tests from outside.
#![cfg(feature = "testkit")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod devchain;
