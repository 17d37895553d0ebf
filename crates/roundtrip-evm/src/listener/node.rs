//! What one node shows of a range of blocks, checked against itself.
//!
//! Headers and logs are asked for at once. The header of the range's last block is asked for
//! a second time in the same request as the logs: behind a load balancer that is the one way
//! to know that whoever showed the logs had come so far, on the same chain.

use std::sync::{Mutex, PoisonError};

use alloy::primitives::{B256, U64};
use roundtrip::listener::Tips;
use roundtrip::words::Height;
use serde::Deserialize;
use serde_json::{Value, json};

use super::limits::{Meaning, Span, may_be_cut_off, meaning};
use super::logs::{WireLog, by_block, explains, linked};
use super::watch::{Watch, filter, may_show};
use crate::endpoint::Endpoint;
use crate::rpc::{CallError, Finality, Header, Rpc};

/// A node, and how wide a range it takes.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) endpoint: Endpoint,
    span: Mutex<Span>,
}

/// A block and its logs; some that nobody watches may be among them.
pub(super) type ReadBlock = (Header, Vec<WireLog>);

impl Node {
    pub(super) fn new(rpc: Rpc) -> Node {
        Node { endpoint: Endpoint::new(rpc), span: Mutex::new(Span::ANY) }
    }

    /// How far it has come.
    pub(super) async fn look(&self, finality: Finality) -> Result<Tips, CallError> {
        let head = self.endpoint.rpc.head().await?;
        let finalized = self.endpoint.rpc.finalized(&head, finality).await?;
        Ok(Tips { head: head.at, finalized: finalized.at, time: head.time })
    }

    /// The same blocks by other means: by the receipts of all that may show what is watched.
    pub(super) async fn read_again(
        &self,
        from: Height,
        to: Height,
        watches: &[Watch],
    ) -> Result<Vec<ReadBlock>, CallError> {
        let mut read = Vec::new();
        for header in linked(self.endpoint.rpc.headers(from, to).await?) {
            let may_show = may_show(&header.bloom, watches);
            let logs = if may_show { self.block_logs(&header).await? } else { Vec::new() };
            read.push((header, logs));
        }
        match read.is_empty() {
            true => Err(no_block(from)),
            false => Ok(read),
        }
    }

    /// The blocks of these heights, or fewer of them where the node takes or has fewer.
    pub(super) async fn read(&self, from: Height, to: Height, watches: &[Watch]) -> Result<Vec<ReadBlock>, CallError> {
        let wanted = to.0.saturating_sub(from.0).saturating_add(1);
        loop {
            let asked = self.span(|span| span.of(wanted));
            let to = Height(from.0.saturating_add(asked - 1));
            let (headers, logs) = tokio::join!(self.endpoint.rpc.headers(from, to), self.logs(from, to, watches));
            let headers = linked(headers?);
            if headers.is_empty() {
                return Err(no_block(from));
            }
            match logs.map_err(|error| (meaning(&error), error)) {
                Ok((logs, last)) => {
                    self.span(|span| span.widen(asked));
                    return self.checked(headers, logs, &last, watches).await;
                }
                Err((Meaning::TooWide { named, lasting }, _)) if asked > 1 => {
                    self.span(|span| span.narrow(asked, named, lasting));
                }
                // One block has more than the node shows at once.
                Err((Meaning::TooWide { .. }, CallError::Refused { .. })) => return self.by_receipts(headers).await,
                Err((Meaning::Pruned, error)) => return Err(pruned(from, &error)),
                Err((_, error)) => return Err(error),
            }
        }
    }

    fn span<T>(&self, with: impl FnOnce(&mut Span) -> T) -> T {
        with(&mut self.span.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The logs of these heights, and the last of the blocks, from whoever showed them.
    async fn logs(&self, from: Height, to: Height, watches: &[Watch]) -> Result<(Vec<WireLog>, Header), CallError> {
        let [first, last] = [from, to].map(|height| U64::from(height.0));
        let range = filter(json!({"fromBlock": first, "toBlock": last}), watches);
        let (logs, header) = self.endpoint.rpc.with_block("eth_getLogs", [range], to).await;
        let logs = logs?;
        match header? {
            Some(header) => Ok((logs, header)),
            None => Err(CallError::NoAnswer(format!("whoever showed logs has not come to block {}", to.0))),
        }
    }

    /// Sorts logs into their blocks, and looks again where some may be missing.
    async fn checked(
        &self,
        mut headers: Vec<Header>,
        logs: Vec<WireLog>,
        last: &Header,
        watches: &[Watch],
    ) -> Result<Vec<ReadBlock>, CallError> {
        let end = headers.last().map_or(Height(0), |header| header.at.height);
        if end == last.at.height && headers.last().is_none_or(|header| header.at != last.at) {
            return Err(CallError::NoAnswer(format!("logs up to another block {}: the chain moved", end.0)));
        }
        let cut_off = may_be_cut_off(logs.len());
        // Headers end where two chains part; the logs above are of another read.
        let logs = logs.into_iter().filter(|log| log.block_number.to::<u64>() <= end.0).collect();
        let mut blocks = by_block(&headers, logs).map_err(CallError::NoAnswer)?;
        if cut_off && let Some(at) = blocks.iter().rposition(|logs| !logs.is_empty()) {
            // Whole blocks only: the last one that shows anything may show a part.
            if at == 0 {
                headers.truncate(1);
                return self.by_receipts(headers).await;
            }
            headers.truncate(at);
            blocks.truncate(at);
        }
        let mut read = Vec::with_capacity(headers.len());
        for (header, logs) in headers.into_iter().zip(blocks) {
            let doubted = logs.is_empty() && may_show(&header.bloom, watches);
            let logs = if doubted { self.block_logs(&header).await? } else { logs };
            read.push((header, logs));
        }
        Ok(read)
    }

    /// The first of these blocks, by its receipts.
    async fn by_receipts(&self, headers: Vec<Header>) -> Result<Vec<ReadBlock>, CallError> {
        let mut read = Vec::new();
        if let Some(header) = headers.into_iter().next() {
            let logs = self.block_logs(&header).await?;
            read.push((header, logs));
        }
        Ok(read)
    }

    /// All logs of a block, by its receipts, checked against its bloom.
    pub(super) async fn block_logs(&self, header: &Header) -> Result<Vec<WireLog>, CallError> {
        let receipts = self.receipts(header).await?;
        let logs: Vec<WireLog> = receipts.into_iter().flat_map(|receipt| receipt.logs).collect();
        if logs.iter().any(|log| log.block_hash.0 != header.at.hash) || !explains(&logs, &header.bloom) {
            return Err(CallError::NoAnswer("receipts that are not those of the block".into()));
        }
        Ok(logs)
    }

    /// The logs of a transaction, and in which block it is.
    pub(super) async fn logs_of(&self, transaction: B256) -> Result<Option<(Height, Vec<WireLog>)>, CallError> {
        let receipt: Option<WireMined> = self.endpoint.rpc.call("eth_getTransactionReceipt", [transaction]).await?;
        Ok(receipt.map(|WireMined { block_number, mut logs }| {
            logs.sort_by_key(|log| log.log_index);
            (Height(block_number.to()), logs)
        }))
    }

    async fn receipts(&self, header: &Header) -> Result<Vec<WireReceipt>, CallError> {
        let number = U64::from(header.at.height.0);
        let receipts: Option<Vec<WireReceipt>> = match self.endpoint.rpc.call("eth_getBlockReceipts", [number]).await {
            Err(error) if error.is_unknown_method() => return self.receipts_one_by_one(number).await,
            answer => answer?,
        };
        receipts.ok_or_else(|| CallError::NoAnswer("a block without receipts".into()))
    }

    /// Where a node does not show receipts by the block.
    async fn receipts_one_by_one(&self, number: U64) -> Result<Vec<WireReceipt>, CallError> {
        let block: Option<WireBlock> = self.endpoint.rpc.call("eth_getBlockByNumber", (number, false)).await?;
        let block = block.ok_or_else(|| CallError::NoAnswer("a block that was there is not".into()))?;
        let params: Vec<Value> = block.transactions.iter().map(|hash| json!([hash])).collect();
        let mut receipts = Vec::with_capacity(params.len());
        for receipt in self.endpoint.rpc.calls::<_, Option<WireReceipt>>("eth_getTransactionReceipt", &params).await {
            receipts.push(receipt?.ok_or_else(|| CallError::NoAnswer("a transaction without a receipt".into()))?);
        }
        Ok(receipts)
    }
}

/// It may lag behind, or have forgotten the block.
fn no_block(height: Height) -> CallError {
    CallError::NoAnswer(format!(
        "it does not have block {}: if it never comes, use a node with an archive, or a later from_block",
        height.0
    ))
}

fn pruned(from: Height, error: &CallError) -> CallError {
    CallError::NoAnswer(format!(
        "it no longer has the logs of block {} ({error}): use a node with an archive, or a later from_block",
        from.0
    ))
}

#[derive(Debug, Deserialize)]
struct WireBlock {
    transactions: Vec<B256>,
}

#[derive(Debug, Deserialize)]
struct WireReceipt {
    logs: Vec<WireLog>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMined {
    block_number: U64,
    logs: Vec<WireLog>,
}
