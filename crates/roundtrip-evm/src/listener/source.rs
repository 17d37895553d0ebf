//! The blocks of a chain, with the requests that their events make.

use alloy::primitives::{B256, U64};
use roundtrip::inbox::Standing;
use roundtrip::listener::{BlockSource, SourceBlock, SourceError, SourceFuture, Tips};
use roundtrip::store::op::NewRequest;
use roundtrip::words::{Height, OccurrenceId, Payload, RequestId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::logs::{Occurrences, WireLog, by_block, explains, linked};
use super::watch::{Watch, filter, may_show};
use crate::rpc::{CallError, Finality, Header, Rpc};

/// A chain whose events are requests, over JSON-RPC.
///
/// A request's payload is `{"event": name, "signature": name and types, "address": contract,
/// "args": {..}}`.
#[derive(Clone, Debug)]
pub struct EvmSource {
    rpc: Rpc,
    chain_id: u64,
    finality: Finality,
    watches: Vec<Watch>,
}

impl EvmSource {
    /// The chain of this number, which the node is trusted to be on.
    pub fn new(rpc: Rpc, chain_id: u64, finality: Finality, watches: Vec<Watch>) -> EvmSource {
        EvmSource { rpc, chain_id, finality, watches }
    }

    async fn look(&self) -> Result<Tips, CallError> {
        let head = self.rpc.head().await?;
        let finalized = self.rpc.finalized(&head, self.finality).await?;
        Ok(Tips { head: head.at, finalized: finalized.at, time: head.time })
    }

    async fn read(&self, from: Height, to: Height) -> Result<Vec<SourceBlock>, CallError> {
        let headers = linked(self.rpc.headers(from, to).await?);
        let (headers, logs) = self.logs(headers).await?;
        let blocks = by_block(&headers, logs).map_err(CallError::NoAnswer)?;
        let mut read = Vec::with_capacity(headers.len());
        for (header, logs) in headers.iter().zip(blocks) {
            let logs = if logs.is_empty() { self.doubted(header).await? } else { logs };
            let requests = self.requests(&logs);
            read.push(SourceBlock { at: header.at, parent: header.parent, time: header.time, requests });
        }
        Ok(read)
    }

    /// The logs of these blocks, or of fewer where the node refuses so many.
    async fn logs(&self, mut headers: Vec<Header>) -> Result<(Vec<Header>, Vec<WireLog>), CallError> {
        loop {
            let (Some(first), Some(last)) = (headers.first(), headers.last()) else {
                return Err(CallError::NoAnswer("the node has no such block yet".into()));
            };
            let [from, to] = [first, last].map(|header| U64::from(header.at.height.0));
            let range = json!({"fromBlock": from, "toBlock": to});
            match self.rpc.call("eth_getLogs", [filter(range, &self.watches)]).await {
                Ok(logs) => return Ok((headers, logs)),
                Err(CallError::Refused { .. }) if headers.len() > 1 => headers.truncate(headers.len() / 2),
                Err(error) => return Err(error),
            }
        }
    }

    /// The logs of a block of which the node showed none, if its bloom says otherwise.
    async fn doubted(&self, header: &Header) -> Result<Vec<WireLog>, CallError> {
        if !may_show(&header.bloom, &self.watches) {
            return Ok(Vec::new());
        }
        let receipts = self.receipts(header).await?;
        let logs: Vec<WireLog> = receipts.into_iter().flat_map(|receipt| receipt.logs).collect();
        if logs.iter().any(|log| log.block_hash.0 != header.at.hash) || !explains(&logs, &header.bloom) {
            return Err(CallError::NoAnswer("receipts that are not those of the block".into()));
        }
        Ok(logs)
    }

    async fn receipts(&self, header: &Header) -> Result<Vec<WireReceipt>, CallError> {
        let number = U64::from(header.at.height.0);
        let receipts: Option<Vec<WireReceipt>> = match self.rpc.call("eth_getBlockReceipts", [number]).await {
            Err(error) if error.is_unknown_method() => return self.receipts_one_by_one(number).await,
            answer => answer?,
        };
        receipts.ok_or_else(|| CallError::NoAnswer("a block without receipts".into()))
    }

    /// Where a node does not show receipts by the block.
    async fn receipts_one_by_one(&self, number: U64) -> Result<Vec<WireReceipt>, CallError> {
        let block: Option<WireBlock> = self.rpc.call("eth_getBlockByNumber", (number, false)).await?;
        let block = block.ok_or_else(|| CallError::NoAnswer("a block that was there is not".into()))?;
        let params: Vec<Value> = block.transactions.iter().map(|hash| json!([hash])).collect();
        let mut receipts = Vec::with_capacity(params.len());
        for receipt in self.rpc.calls::<_, Option<WireReceipt>>("eth_getTransactionReceipt", &params).await {
            receipts.push(receipt?.ok_or_else(|| CallError::NoAnswer("a transaction without a receipt".into()))?);
        }
        Ok(receipts)
    }

    fn requests(&self, logs: &[WireLog]) -> Vec<NewRequest> {
        let mut occurrences = Occurrences::on(self.chain_id);
        let mut requests = Vec::new();
        for log in logs {
            let wanting = self.watches.iter().filter(|watch| watch.wants(&log.address, &log.topics));
            let wanting: Vec<&Watch> = wanting.collect();
            if !wanting.is_empty() {
                requests.extend(requests_of(log, occurrences.of(log), &wanting));
            }
        }
        requests
    }
}

/// What a log asks for: one request on each route that watches it.
fn requests_of(log: &WireLog, occurrence: OccurrenceId, watches: &[&Watch]) -> Vec<NewRequest> {
    let mut requests: Vec<NewRequest> = Vec::new();
    for watch in watches {
        if requests.iter().any(|request| request.route == watch.route) {
            continue;
        }
        match request(watch, occurrence, log) {
            Ok(request) => requests.push(request),
            // Nothing but its form says that a log is of an anonymous event.
            Err(_) if watch.event.topic().is_none() => {}
            Err(error) => {
                tracing::error!(route = %watch.route, transaction = %log.transaction_hash, error, "a log was left out: it cannot be read");
            }
        }
    }
    requests
}

fn request(watch: &Watch, occurrence: OccurrenceId, log: &WireLog) -> Result<NewRequest, String> {
    let (event, args) = (&watch.event, watch.event.decode(&log.body())?);
    let address = log.address.to_string();
    let payload = json!({"event": event.name(), "signature": event.signature(), "address": address, "args": args});
    let payload = Payload::json(payload.to_string());
    let id = watch.identity.id_of(&watch.route, &payload).map_err(|error| error.to_string())?;
    Ok(NewRequest {
        route: watch.route.clone(),
        id: id.unwrap_or_else(|| RequestId::of(&[watch.route.as_str().as_bytes(), occurrence.as_bytes()])),
        // One log may make requests on several routes.
        occurrence: OccurrenceId::of(&[occurrence.as_bytes(), watch.route.as_str().as_bytes()]),
        place: None,
        standing: Standing::Seen,
        payload,
        due: None,
        deadline: None,
        priority: 0,
        key: None,
        trace: None,
    })
}
#[derive(Debug, Deserialize)]
struct WireBlock {
    transactions: Vec<B256>,
}

#[derive(Debug, Deserialize)]
struct WireReceipt {
    logs: Vec<WireLog>,
}

impl From<CallError> for SourceError {
    fn from(error: CallError) -> SourceError {
        SourceError::Unreachable(error.to_string())
    }
}

impl BlockSource for EvmSource {
    fn tips(&self) -> SourceFuture<'_, Tips> {
        Box::pin(async { Ok(self.look().await?) })
    }

    fn blocks(&self, from: Height, to: Height) -> SourceFuture<'_, Vec<SourceBlock>> {
        Box::pin(async move { Ok(self.read(from, to).await?) })
    }
}
