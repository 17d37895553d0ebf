//! The outside checker: it reads only the chain and the submitter's own list, and counts
//! what was settled, lost, doubled, answered wrongly, and the holes in the lanes' nonces. It
//! knows nothing of the store, nor of the listener and the sender that it judges.
//!
//! ```text
//! blocks, receipts, accounts, pool ──▶ Facts ──▶ judge ──▶ Verdict
//! ```
//!
//! What a lane tried and the contract refused is counted as doubled too: the contract saved
//! the day, and the sender did not. A chain that moves while it is read is read on, or again,
//! a bounded number of times; what is under way meanwhile counts as gaps, so the lanes should
//! be at rest. A node without `txpool_content` shows no queued transactions;
//! the counts of its accounts still do.

mod judge;
mod read;

pub use judge::{Account, Facts, Log, Transaction, Verdict, judge};
pub use read::{CheckError, read_facts};

use alloy::primitives::{Address, Bytes};
use alloy::rpc::client::RpcClient;

/// Reads the whole chain, and judges it.
///
/// `lanes` are the accounts that answer, from their first transaction on; `expected_answer`
/// says what the answer to a payload must be.
pub async fn check(
    client: &RpcClient,
    board: Address,
    payloads: &[Bytes],
    lanes: &[Address],
    expected_answer: fn(&[u8]) -> Bytes,
) -> Result<Verdict, CheckError> {
    let facts = read_facts(client, lanes).await?;
    Ok(judge(&facts, board, payloads, expected_answer))
}
