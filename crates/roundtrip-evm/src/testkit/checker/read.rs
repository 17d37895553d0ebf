//! Reading the facts: every block with its transactions and receipts, the lanes' counts, and
//! the pool.

use std::collections::{BTreeMap, BTreeSet};

use alloy::primitives::{Address, B256, Bytes, U64};
use alloy::rpc::client::RpcClient;
use alloy::transports::{TransportError, TransportResult};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::judge::{Account, Facts, Log, Transaction};

/// How many blocks are asked for in one JSON-RPC batch.
const READ_BATCH_BLOCKS: usize = 50;
/// How often a chain that moves is read again.
const READS: u32 = 5;
const METHOD_NOT_FOUND: i64 = -32601;

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The node did not answer, or not as a node does.
    #[error("the chain cannot be read: {0}")]
    Rpc(#[from] TransportError),
    /// A block lacks something that belongs to it.
    #[error("block {0} is not whole: its receipts are not those of its transactions")]
    NotWhole(u64),
    /// The chain kept changing.
    #[error("the chain was reorganised each of the {READS} times that it was read: let it rest first")]
    Moved,
}

/// Reads all that the verdict depends on, of one and the same chain.
pub async fn read_facts(client: &RpcClient, lanes: &[Address]) -> Result<Facts, CheckError> {
    for _ in 0..READS {
        let head: U64 = client.request_noparams("eth_blockNumber").await?;
        let Some(blocks) = read_blocks(client, head.to()).await? else { continue };
        let accounts = read_accounts(client, lanes).await?;
        // The accounts were read after the blocks: both are of one chain if its head is the same.
        let newest: Option<WireHead> = client.request("eth_getBlockByNumber", ("latest", false)).await?;
        if newest.map(|head| head.hash) == blocks.last().map(|(block, _)| block.hash) {
            return Ok(Facts { transactions: transactions(blocks)?, accounts });
        }
    }
    Err(CheckError::Moved)
}

type Read = (WireBlock, Vec<WireReceipt>);

/// None when the blocks are not a chain: it changed meanwhile.
async fn read_blocks(client: &RpcClient, head: u64) -> TransportResult<Option<Vec<Read>>> {
    let mut blocks: Vec<Read> = Vec::new();
    let numbers: Vec<U64> = (0..=head).map(U64::from).collect();
    for some in numbers.chunks(READ_BATCH_BLOCKS) {
        let mut batch = client.new_batch();
        let mut waiters = Vec::with_capacity(some.len());
        for number in some {
            let block = batch.add_call::<_, Option<WireBlock>>("eth_getBlockByNumber", &(number, true))?;
            let receipts = batch.add_call::<_, Option<Vec<WireReceipt>>>("eth_getBlockReceipts", &(number,))?;
            waiters.push((block, receipts));
        }
        batch.send().await?;
        for (block, receipts) in waiters {
            let (Some(block), Some(receipts)) = (block.await?, receipts.await?) else { return Ok(None) };
            let follows = blocks.last().is_none_or(|(before, _)| before.hash == block.parent_hash);
            let whole = receipts.iter().all(|receipt| receipt.block_hash == block.hash);
            if !follows || !whole {
                return Ok(None);
            }
            blocks.push((block, receipts));
        }
    }
    Ok(Some(blocks))
}

fn transactions(blocks: Vec<Read>) -> Result<Vec<Transaction>, CheckError> {
    let mut all = Vec::new();
    for (block, receipts) in blocks {
        let mut by_hash: BTreeMap<B256, WireReceipt> =
            receipts.into_iter().map(|receipt| (receipt.transaction_hash, receipt)).collect();
        for transaction in block.transactions {
            let receipt = by_hash.remove(&transaction.hash).ok_or(CheckError::NotWhole(block.number.to()))?;
            all.push(Transaction {
                from: transaction.from,
                to: transaction.to,
                nonce: transaction.nonce.to(),
                input: transaction.input,
                succeeded: receipt.status == U64::ONE,
                logs: receipt.logs,
            });
        }
        if !by_hash.is_empty() {
            return Err(CheckError::NotWhole(block.number.to()));
        }
    }
    Ok(all)
}

async fn read_accounts(client: &RpcClient, lanes: &[Address]) -> TransportResult<Vec<Account>> {
    let pool = match client.request_noparams::<WirePool>("txpool_content").await {
        Ok(pool) => pool,
        Err(TransportError::ErrorResp(error)) if error.code == METHOD_NOT_FOUND => WirePool::default(),
        Err(error) => return Err(error),
    };
    let mut accounts = Vec::with_capacity(lanes.len());
    for address in lanes {
        let latest: U64 = client.request("eth_getTransactionCount", (address, "latest")).await?;
        let pending: U64 = client.request("eth_getTransactionCount", (address, "pending")).await?;
        let pool = pool.nonces(address);
        accounts.push(Account { address: *address, latest: latest.to(), pending: pending.to(), pool });
    }
    Ok(accounts)
}

#[derive(Debug, Deserialize)]
struct WireHead {
    hash: B256,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireBlock {
    number: U64,
    hash: B256,
    parent_hash: B256,
    transactions: Vec<WireTransaction>,
}

#[derive(Debug, Deserialize)]
struct WireTransaction {
    hash: B256,
    from: Address,
    to: Option<Address>,
    nonce: U64,
    input: Bytes,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireReceipt {
    transaction_hash: B256,
    block_hash: B256,
    status: U64,
    #[serde(deserialize_with = "logs")]
    logs: Vec<Log>,
}

#[derive(Debug, Deserialize)]
struct WireLog {
    address: Address,
    topics: Vec<B256>,
    data: Bytes,
}

fn logs<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Log>, D::Error> {
    let logs = Vec::<WireLog>::deserialize(deserializer)?;
    Ok(logs.into_iter().map(|WireLog { address, topics, data }| Log { address, topics, data }).collect())
}

/// By account, and by nonce in decimal.
type WirePoolPart = BTreeMap<Address, BTreeMap<String, IgnoredAny>>;

#[derive(Clone, Debug, Default, Deserialize)]
struct WirePool {
    pending: WirePoolPart,
    queued: WirePoolPart,
}

impl WirePool {
    fn nonces(&self, account: &Address) -> BTreeSet<u64> {
        let parts = [&self.pending, &self.queued];
        let keys = parts.into_iter().filter_map(|part| part.get(account)).flat_map(BTreeMap::keys);
        keys.filter_map(|nonce| nonce.parse().ok()).collect()
    }
}
