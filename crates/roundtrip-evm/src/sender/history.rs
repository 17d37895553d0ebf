//! What an account has sent: in which block it used a slot, and the transactions from there on.

use alloy::primitives::{Address, B256, U64};
use roundtrip::words::{Height, Nonce, Position, UnixMs};
use serde::Deserialize;

use super::chain::WireTransaction;
use crate::rpc::{CallError, Rpc};

/// How many blocks with transactions of the account one look at its past reads.
const BLOCKS_AT_ONCE: usize = 16;

/// A block with its transactions.
#[derive(Debug, Deserialize)]
pub(super) struct WireBlock {
    number: U64,
    hash: B256,
    timestamp: U64,
    transactions: Vec<WireTransaction>,
}

impl WireBlock {
    pub(super) async fn at(rpc: &Rpc, height: Height) -> Result<WireBlock, CallError> {
        let block: Option<WireBlock> = rpc.call("eth_getBlockByNumber", (U64::from(height.0), true)).await?;
        block.ok_or_else(|| CallError::NoAnswer(format!("there is no block {}", height.0)))
    }

    pub(super) fn position(&self) -> Position {
        Position { height: Height(self.number.to()), hash: self.hash.0 }
    }

    pub(super) fn time(&self) -> UnixMs {
        UnixMs(self.timestamp.to::<u64>().saturating_mul(1000))
    }

    /// What an account sent in it from this slot on, in the order of slots.
    pub(super) fn sent_by(self, account: Address, from: Nonce) -> Vec<WireTransaction> {
        let own = |sent: &WireTransaction| sent.from == account && sent.nonce.to::<u64>() >= from.0;
        let mut own: Vec<WireTransaction> = self.transactions.into_iter().filter(own).collect();
        own.sort_by_key(|sent| sent.nonce);
        own
    }
}

/// A transaction of an account, and where it is.
pub(super) struct Sent {
    pub(super) transaction: WireTransaction,
    pub(super) at: Position,
    pub(super) time: UnixMs,
}

/// What an account has sent from this slot on, up to this block, as far as one look goes. It is
/// looked for above `after`, if that is known.
pub(super) async fn sent(
    rpc: &Rpc,
    account: Address,
    from: Nonce,
    after: Option<Height>,
    up_to: Height,
) -> Result<Vec<Sent>, CallError> {
    let beyond = count_at(rpc, account, up_to.0).await?;
    let (mut next, mut after) = (from, after);
    let mut found = Vec::new();
    for _ in 0..BLOCKS_AT_ONCE {
        if next >= beyond {
            break;
        }
        let height = match after {
            Some(after) => block_above(rpc, account, next, after, up_to).await?,
            None => block_of(rpc, account, next, up_to).await?,
        };
        let block = WireBlock::at(rpc, height).await?;
        let (at, time) = (block.position(), block.time());
        let own = block.sent_by(account, next);
        let missing = || CallError::NoAnswer(format!("what used slot {} is not in its block", next.0));
        let last = own.last().ok_or_else(missing)?;
        next = Nonce(last.nonce.to::<u64>()).plus(1);
        after = Some(height);
        found.extend(own.into_iter().map(|transaction| Sent { transaction, at, time }));
    }
    Ok(found)
}

/// The block in which an account used a nonce, at or below this one, where it is used:
/// in growing steps down, then halving.
pub(super) async fn block_of(rpc: &Rpc, account: Address, nonce: Nonce, used_at: Height) -> Result<Height, CallError> {
    let (mut used, mut step) = (used_at.0, 1);
    let free = loop {
        let Some(below) = used.checked_sub(step) else { break 0 };
        if count_at(rpc, account, below).await? <= nonce {
            break below + 1;
        }
        (used, step) = (below, step * 2);
    };
    between(rpc, account, nonce, free, used).await
}

/// The same above a block where it was not used yet: in growing steps up, then halving.
async fn block_above(
    rpc: &Rpc,
    account: Address,
    nonce: Nonce,
    unused_at: Height,
    used_at: Height,
) -> Result<Height, CallError> {
    let (mut free, mut step) = (unused_at.0 + 1, 0);
    loop {
        let above = (free + step).min(used_at.0);
        if above == used_at.0 || count_at(rpc, account, above).await? > nonce {
            return between(rpc, account, nonce, free, above).await;
        }
        (free, step) = (above + 1, step * 2 + 1);
    }
}

/// The lowest of these blocks at which a nonce is used; it is at the highest.
async fn between(rpc: &Rpc, account: Address, nonce: Nonce, lowest: u64, highest: u64) -> Result<Height, CallError> {
    let (mut free, mut used) = (lowest, highest);
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
