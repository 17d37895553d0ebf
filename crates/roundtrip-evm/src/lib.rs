//! EVM chains for roundtrip: events come in as requests, answers go out as transactions.

#[cfg(feature = "testkit")]
pub mod testkit;
