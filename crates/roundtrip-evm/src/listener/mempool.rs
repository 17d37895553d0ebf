//! Transactions that wait to be mined, as requests.
//!
//! ```text
//!   newPendingTransactions ──▶ the transactions of these hashes ──▶ to a watched contract? ──▶ admit
//! ```
//!
//! A mempool cannot be replayed: what is told while nobody listens, or what a node never
//! hears of, is missed, and what was told may never be mined. So this is for work that is
//! worth starting early, never for work that must be done.
//!
//! Failure modes: a connection that is lost is made again. A transaction that is gone when it
//! is asked for is passed over. A route without room makes the source wait, and what a node
//! does not keep meanwhile is missed.

use std::sync::Arc;
use std::time::Duration;

use alloy::primitives::{Address, B256, Bytes, U64, U256};
use roundtrip::clock::Clock;
use roundtrip::listener::{Source, SubmitError, Submitter, request_with_id};
use roundtrip::station::{Shutdown, StationError};
use roundtrip::store::Store;
use roundtrip::store::op::NewRequest;
use roundtrip::words::{Payload, RequestId, RouteName};
use serde::Deserialize;
use serde_json::{Value, json};

use super::subscription::{Subscription, Told};
use crate::rpc::{BadUrl, Rpc};

/// Most transactions that are asked for at once.
const HASHES_MAX: usize = 100;
/// How long a route without room is waited for.
const ROOM_AFTER: Duration = Duration::from_millis(200);

/// A node's mempool. A request's payload is `{"hash": .., "from": .., "to": .., "value": ..,
/// "nonce": .., "input": ..}`, and the transaction's hash makes it the same request; the
/// route's identity must be [`Identity::Given`](roundtrip::inbox::Identity).
pub struct Mempool {
    subscription: Subscription,
    wanted: Wanted,
}

/// Which transactions are requests, and where they are read.
struct Wanted {
    rpc: Rpc,
    route: RouteName,
    to: Vec<Address>,
}

impl Mempool {
    /// The transactions to these contracts, or all of them if none is named: told of over a
    /// WebSocket, and read over HTTP.
    pub fn new(rpc: Rpc, url: &str, route: RouteName, to: Vec<Address>) -> Result<Mempool, BadUrl> {
        let subscription = Subscription::new(url, &[json!(["newPendingTransactions"])])?;
        Ok(Mempool { subscription, wanted: Wanted { rpc, route, to } })
    }

    async fn rounds(&mut self, submitter: &Submitter) -> Result<(), StationError> {
        let Mempool { subscription, wanted } = self;
        loop {
            let Told::Said(first) = subscription.next().await else { continue };
            let mut told = vec![first];
            while told.len() < HASHES_MAX
                && let Some(more) = subscription.more()
            {
                told.push(more);
            }
            for request in wanted.requests(&told).await {
                wanted.submit(submitter, request).await?;
            }
        }
    }
}

impl Wanted {
    /// The requests that transactions of these hashes make, as far as the node has them.
    async fn requests(&self, told: &[Value]) -> Vec<NewRequest> {
        let hashes: Vec<Value> = told.iter().filter(|hash| hash.is_string()).map(|hash| json!([hash])).collect();
        let found = self.rpc.calls::<_, Option<WireTransaction>>("eth_getTransactionByHash", &hashes).await;
        let there = found.into_iter().filter_map(|transaction| transaction.ok().flatten());
        let wanted = there.filter(|tx| self.to.is_empty() || tx.to.is_some_and(|to| self.to.contains(&to)));
        wanted.map(|transaction| transaction.request(&self.route)).collect()
    }

    async fn submit(&self, submitter: &Submitter, request: NewRequest) -> Result<(), StationError> {
        loop {
            match submitter.submit(request.clone()).await {
                Ok(_) => return Ok(()),
                Err(SubmitError::Full(full)) => {
                    tracing::warn!(route = %self.route, ?full, "the mempool waits for room");
                    tokio::time::sleep(ROOM_AFTER).await;
                }
                Err(SubmitError::Store(error)) => return Err(error.into()),
                Err(error) => {
                    return Err(StationError::Broken(format!("route {} takes no transactions: {error}", self.route)));
                }
            }
        }
    }
}

impl Source for Mempool {
    async fn run(
        mut self,
        store: Arc<dyn Store>,
        _clock: Arc<dyn Clock>,
        shutdown: Shutdown,
    ) -> Result<(), StationError> {
        let submitter = Submitter::new(store);
        shutdown.run_until_cancelled(self.rounds(&submitter)).await.unwrap_or(Ok(()))
    }
}

/// A transaction, as nodes write it.
#[derive(Debug, Deserialize)]
struct WireTransaction {
    hash: B256,
    from: Address,
    to: Option<Address>,
    value: U256,
    nonce: U64,
    input: Bytes,
}

impl WireTransaction {
    fn request(&self, route: &RouteName) -> NewRequest {
        let WireTransaction { hash, from, to, value, nonce, input } = self;
        let (from, to) = (from.to_string(), to.map(|to| to.to_string()));
        let payload = json!({
            "hash": hash, "from": from, "to": to, "value": value.to_string(), "nonce": nonce.to::<u64>().to_string(),
            "input": input,
        });
        let id = RequestId::of(&[b"pending", route.as_str().as_bytes(), hash.as_slice()]);
        request_with_id(route, id, Payload::json(payload.to_string()))
    }
}
