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
/// How often a chain is read on, until it stands still between two looks.
const READS: u32 = 50;
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
    #[error("the chain moved at each of {READS} reads: make its blocks come more slowly")]
    Moved,
}

/// Reads all that the verdict depends on, of one and the same chain.
pub async fn read_facts(client: &RpcClient, lanes: &[Address]) -> Result<Facts, CheckError> {
    let mut blocks = Vec::new();
    for _ in 0..READS {
        let before = read_head(client).await?;
        extend(client, &mut blocks, before.number.to()).await?;
        let accounts = read_accounts(client, lanes).await?;
        // The accounts were read after the blocks: both are of one chain if its head is the same.
        let after = read_head(client).await?;
        match blocks.last() {
            Some((newest, _)) if newest.hash == after.hash => {
                return Ok(Facts { transactions: transactions(blocks)?, accounts });
            }
            // It grew: what was read may still stand.
            Some((newest, _)) if newest.number < after.number => {}
            _ => blocks.clear(),
        }
    }
    Err(CheckError::Moved)
}

type Read = (WireBlock, Vec<WireReceipt>);

async fn read_head(client: &RpcClient) -> TransportResult<WireHead> {
    client.request("eth_getBlockByNumber", ("latest", false)).await
}

/// Reads the blocks after those that were read. What does not follow them leaves nothing of
/// them: the chain changed, and is to be read again.
async fn extend(client: &RpcClient, blocks: &mut Vec<Read>, head: u64) -> TransportResult<()> {
    let numbers: Vec<U64> = (blocks.len() as u64..=head).map(U64::from).collect();
    for some in numbers.chunks(READ_BATCH_BLOCKS) {
        for read in read_blocks(client, some).await? {
            let follows = |block: &WireBlock| blocks.last().is_none_or(|(before, _)| before.hash == block.parent_hash);
            match read {
                (Some(block), Some(receipts)) if follows(&block) && belong(&receipts, &block) => {
                    blocks.push((block, receipts));
                }
                _ => {
                    blocks.clear();
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

fn belong(receipts: &[WireReceipt], block: &WireBlock) -> bool {
    receipts.iter().all(|receipt| receipt.block_hash == block.hash)
}

async fn read_blocks(
    client: &RpcClient,
    numbers: &[U64],
) -> TransportResult<Vec<(Option<WireBlock>, Option<Vec<WireReceipt>>)>> {
    let mut batch = client.new_batch();
    let mut waiters = Vec::with_capacity(numbers.len());
    for number in numbers {
        let block = batch.add_call::<_, Option<WireBlock>>("eth_getBlockByNumber", &(number, true))?;
        let receipts = batch.add_call::<_, Option<Vec<WireReceipt>>>("eth_getBlockReceipts", &(number,))?;
        waiters.push((block, receipts));
    }
    batch.send().await?;
    let mut read = Vec::with_capacity(numbers.len());
    for (block, receipts) in waiters {
        read.push((block.await?, receipts.await?));
    }
    Ok(read)
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
    number: U64,
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
