//! Whether somebody else used a slot of ours: the very transaction is looked for.

use alloy::primitives::{Address, U64};
use roundtrip::store::query::ParcelView;
use roundtrip::words::{Height, Nonce};
use serde::Deserialize;

use super::chain::WireTransaction;
use super::heads::View;
use crate::rpc::{CallError, Rpc};

#[derive(Debug, Deserialize)]
struct WireBlock {
    transactions: Vec<WireTransaction>,
}

/// Makes sure that somebody else used a slot: the transaction itself is looked for,
/// since a node that lost a receipt says the same as one that never had it.
pub(super) async fn prove(rpc: &Rpc, account: Address, view: &View, parcel: &ParcelView) -> Result<(), CallError> {
    let block = block_of(rpc, account, parcel.nonce, view.final_height).await?;
    let block: Option<WireBlock> = rpc.call("eth_getBlockByNumber", (U64::from(block.0), true)).await?;
    let sent = block.into_iter().flat_map(|block| block.transactions);
    let user = sent.into_iter().find(|sent| sent.from == account && sent.nonce.to::<u64>() == parcel.nonce.0);
    let user = user.ok_or_else(|| CallError::NoAnswer("the transaction that used a slot cannot be found".into()))?;
    if parcel.attempts.iter().any(|attempt| attempt.hash.0 == user.hash.0) {
        return Err(CallError::NoAnswer("the node has our transaction and no receipt for it".into()));
    }
    tracing::warn!(nonce = parcel.nonce.0, transaction = %user.hash, "somebody else used a slot of this lane");
    Ok(())
}

/// The block in which an account used a nonce, at or below this one, where it is used:
/// in growing steps down, then halving.
async fn block_of(rpc: &Rpc, account: Address, nonce: Nonce, used_at: Height) -> Result<Height, CallError> {
    let (mut used, mut step) = (used_at.0, 1);
    let mut free = loop {
        let Some(below) = used.checked_sub(step) else { break 0 };
        if count_at(rpc, account, below).await? <= nonce {
            break below + 1;
        }
        (used, step) = (below, step * 2);
    };
    while free < used {
        let middle = free + (used - free) / 2;
        match count_at(rpc, account, middle).await? > nonce {
            true => used = middle,
            false => free = middle + 1,
        }
    }
    Ok(Height(used))
}

async fn count_at(rpc: &Rpc, account: Address, height: u64) -> Result<Nonce, CallError> {
    let count: U64 = rpc.call("eth_getTransactionCount", (account, U64::from(height))).await?;
    Ok(Nonce(count.to()))
}
