//! EVM chains for roundtrip, on alloy: events come in as requests, answers go out as
//! transactions.
//!
//! ```text
//!   node ──▶ rpc ──▶ listener ──▶ (the engine's inbox, workers, outbox) ──▶ sender ──▶ rpc ──▶ node
//!                    events as                                              lanes: nonces,
//!                    requests                                               fees, receipts
//! ```
//!
//! The engine decides when to read, store, send, bump, fill and cancel; this crate says
//! what a chain shows, signs, and knows what a node's answers mean. It keeps nothing:
//! whatever it remembers between two calls saves calls and can be lost at any time.

pub mod abi;
mod endpoint;
mod health;
mod json;
pub mod listener;
pub mod mapping;
pub mod read;
pub mod rpc;
pub mod sender;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use endpoint::NodeReport;
pub use listener::{EventSignature, EvmSource, Watch};
pub use read::{ContractRead, ReadAt, ReadError};
pub use rpc::{Finality, Rpc};
pub use sender::{ContractCall, EvmChain, EvmChainOptions, EvmRoute, Gas, Outcome, Outcomes, Purse, SignerSource};
