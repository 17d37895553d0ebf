//! Sending: answers go out as transactions, a lane per account.
//!
//! ```text
//!   look:       head ──▶ counts at it, and at final depth ──▶ logs, receipts below ──▶ sighting
//!   sign:       call ──▶ gas ──▶ fees ──▶ signed bytes            (stored by the engine)
//!   broadcast:  bytes ──▶ node ──▶ what its words mean
//! ```
//!
//! When to do which is the engine's ([`roundtrip::sender::Sender`]).
//!
//! Failure modes: only a closed list of a node's answers proves that bytes were rejected;
//! everything else means "maybe sent". A slot counts as used by somebody else only when
//! that transaction itself was found at final depth, never because a receipt is missing.

mod arguments;
pub(crate) mod call;
mod chain;
mod effects;
mod fees;
mod foreign;
mod heads;
mod history;
mod look;
mod nodes;
pub(crate) mod outcomes;
pub(crate) mod reception;
mod sign;
mod signer;
mod transaction;
pub(crate) mod why;

pub use call::{BadFunction, Call, Calls, ContractCall};
pub use chain::{EvmChain, EvmChainOptions, EvmRoute, Gas, Purse};
pub use outcomes::{BadRefusal, Outcome, Outcomes};
pub use signer::{Environment, LaneSigner, Secret, SecretSource, SignerError, SignerSource, SignerUrl};
pub use transaction::Signed;
