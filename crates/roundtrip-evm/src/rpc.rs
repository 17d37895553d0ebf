//! The way to a node: JSON-RPC calls, one by one or many at once.
//!
//! Failure modes: a node that refuses says so ([`CallError::Refused`]); everything else,
//! a time-out, a closed connection, a 5xx, an answer that cannot be read, is no answer
//! ([`CallError::NoAnswer`]), and what was asked for may or may not have happened.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alloy::primitives::{Address, B256, Bloom, Bytes, U64, U128};
use alloy::rpc::client::RpcClient;
use alloy::rpc::json_rpc::{RpcRecv, RpcSend};
use alloy::transports::{RpcError, TransportErrorKind};
use futures_util::future::join_all;
use roundtrip::words::{Height, Position, UnixMs};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Most calls in one HTTP request; more go out as several.
const BATCH_MAX: usize = 100;
/// Most characters of an error that came over the wire: some answer with a page.
const ERROR_CHARS_MAX: usize = 300;
/// How long a node may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The node refused it.
    #[error("refused with {code}: {message}")]
    Refused {
        /// The error's code.
        code: i64,
        /// The node's own words.
        message: String,
        /// What a contract reverted with, if it did.
        revert: Option<Bytes>,
    },
    /// No answer that could be relied on.
    #[error("no answer: {0}")]
    NoAnswer(String),
}

/// The codes by which nodes say that they do not know a method: JSON-RPC's own, and that of EIP-1474.
const UNKNOWN_METHOD: [i64; 2] = [-32601, -32004];

impl CallError {
    /// Whether the node does not know the method at all.
    pub fn is_unknown_method(&self) -> bool {
        matches!(self, CallError::Refused { code, .. } if UNKNOWN_METHOD.contains(code))
    }
}

impl From<RpcError<TransportErrorKind>> for CallError {
    fn from(error: RpcError<TransportErrorKind>) -> CallError {
        match error {
            RpcError::ErrorResp(payload) => {
                let revert = payload.as_revert_data();
                CallError::Refused { code: payload.code, message: payload.message.into_owned(), revert }
            }
            // It quotes all of the answer otherwise.
            RpcError::DeserError { err, text } if text.trim_start().starts_with(['{', '[']) => {
                CallError::NoAnswer(format!("an answer that cannot be read: {err}"))
            }
            RpcError::DeserError { .. } => {
                CallError::NoAnswer("an answer that is no JSON: is this the address of a node?".to_owned())
            }
            other => CallError::NoAnswer(without_secrets(&in_full(&other))),
        }
    }
}

/// An error with what caused it, less what was said already and what would fill a page.
fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    let end = text.char_indices().nth(ERROR_CHARS_MAX).map_or(text.len(), |(at, _)| at);
    text.truncate(end);
    text
}

/// A text whose addresses are cut after the host: what follows, or stands before it, is often a key.
pub(crate) fn without_secrets(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || matches!(c, ')' | '"' | ',')).unwrap_or(after.len());
        let (address, next) = after.split_at(end);
        let host = address.split(['/', '?', '#']).next().unwrap_or_default();
        shown.push_str(host.rsplit('@').next().unwrap_or_default());
        rest = next;
    }
    shown + rest
}

/// Says by what connections are encrypted.
pub(crate) fn install_crypto() {
    // Whoever embeds this may have installed another one already, which will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// An HTTP client whose requests may take so long.
pub fn web_client(within: Duration) -> reqwest::Result<reqwest::Client> {
    install_crypto();
    reqwest::Client::builder().timeout(within).build()
}

/// The same, which trusts none but the authorities of this PEM.
pub fn web_client_trusting(within: Duration, authorities: &[u8]) -> reqwest::Result<reqwest::Client> {
    install_crypto();
    let authorities = reqwest::Certificate::from_pem_bundle(authorities)?;
    reqwest::Client::builder().timeout(within).tls_certs_only(authorities).build()
}

/// A URL that no node can be reached by.
#[derive(Debug, thiserror::Error)]
#[error("{url} is no address of a node: {why}")]
pub struct BadUrl {
    url: String,
    why: String,
}

impl BadUrl {
    pub(crate) fn new(url: &str, why: impl Into<String>) -> BadUrl {
        BadUrl { url: without_secrets(url), why: why.into() }
    }
}

/// A way to a node; clones share it.
#[derive(Clone)]
pub struct Rpc {
    client: RpcClient,
    /// Where the node is, less what may be a key.
    name: Arc<str>,
    pacer: Option<Arc<Pacer>>,
}

/// Lets so many calls through in a second, evenly; the others wait their turn.
struct Pacer {
    every: Duration,
    /// When the next call may go.
    next: Mutex<Instant>,
}

impl Pacer {
    /// Waits until so many calls may go.
    async fn turn(&self, calls: usize) {
        let at = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let at = (*next).max(Instant::now());
            *next = at + self.every.saturating_mul(u32::try_from(calls).unwrap_or(u32::MAX));
            at
        };
        tokio::time::sleep_until(at).await;
    }
}

impl fmt::Debug for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Addresses of nodes often carry a key.
        write!(f, "Rpc({})", self.name)
    }
}

impl Rpc {
    /// By HTTP.
    pub fn http(url: &str) -> Result<Rpc, BadUrl> {
        let bad = |why: String| BadUrl::new(url, why);
        let parsed = url.parse::<reqwest::Url>().map_err(|error| bad(error.to_string()))?;
        match parsed.scheme() {
            "http" | "https" => {}
            "ws" | "wss" => {
                return Err(bad("blocks are read over http:// or https://; a WebSocket is for news".to_owned()));
            }
            _ => return Err(bad("it starts with neither http:// nor https://".to_owned())),
        }
        let client = web_client(ANSWER_WITHIN).map_err(|error| bad(error.to_string()))?;
        let rpc = Rpc::over(RpcClient::new_http_with_client(client, parsed));
        Ok(Rpc { name: without_secrets(url).into(), ..rpc })
    }

    /// By any of alloy's transports.
    pub fn over(client: RpcClient) -> Rpc {
        Rpc { client, name: "a node".into(), pacer: None }
    }

    /// The same way, for at most so many calls in a second; each call of a batch counts.
    #[must_use]
    pub fn at_most(mut self, calls_per_second: u32) -> Rpc {
        let every = Duration::from_secs(1) / calls_per_second.max(1);
        self.pacer = Some(Arc::new(Pacer { every, next: Mutex::new(Instant::now()) }));
        self
    }

    /// Where the node is, less what may be a key.
    pub fn name(&self) -> &str {
        &self.name
    }

    async fn turn(&self, calls: usize) {
        if let Some(pacer) = &self.pacer {
            pacer.turn(calls).await;
        }
    }

    /// The same way for whoever talks to the node through alloy.
    pub fn client(&self) -> RpcClient {
        self.client.clone()
    }

    /// One call.
    pub async fn call<P: RpcSend, R: RpcRecv>(&self, method: &'static str, params: P) -> Result<R, CallError> {
        self.turn(1).await;
        Ok(self.client.request(method, params).await?)
    }

    /// Many calls of one method, answered in their order; each has its own result.
    pub async fn calls<P: RpcSend, R: RpcRecv>(&self, method: &'static str, params: &[P]) -> Vec<Result<R, CallError>> {
        let batches = params.chunks(BATCH_MAX).map(|params| self.batch(method, params));
        join_all(batches).await.into_iter().flatten().collect()
    }

    async fn batch<P: RpcSend, R: RpcRecv>(&self, method: &'static str, params: &[P]) -> Vec<Result<R, CallError>> {
        if let [params] = params {
            return vec![self.call(method, params.clone()).await];
        }
        self.turn(params.len()).await;
        let mut batch = self.client.new_batch();
        let waiters: Result<Vec<_>, _> = params.iter().map(|params| batch.add_call::<_, R>(method, params)).collect();
        let failed = |error: RpcError<TransportErrorKind>| {
            let error = CallError::from(error);
            params.iter().map(|_| Err(error.clone())).collect()
        };
        let waiters = match waiters {
            Ok(waiters) => waiters,
            Err(error) => return failed(error),
        };
        if let Err(error) = batch.send().await {
            return failed(error);
        }
        let answers = join_all(waiters).await;
        answers.into_iter().map(|answer| answer.map_err(CallError::from)).collect()
    }

    /// One call, and the block of a height as whoever answers it has it.
    pub(crate) async fn with_block<P: RpcSend, R: RpcRecv>(
        &self,
        method: &'static str,
        params: P,
        height: Height,
    ) -> (Result<R, CallError>, Result<Option<Header>, CallError>) {
        self.turn(2).await;
        let block = json!([U64::from(height.0), false]);
        let mut batch = self.client.new_batch();
        let answer = batch.add_call::<_, R>(method, &params);
        let header = batch.add_call::<_, Option<WireHeader>>("eth_getBlockByNumber", &block);
        let (answer, header) = match (answer, header) {
            (Ok(answer), Ok(header)) => (answer, header),
            (Err(error), _) | (_, Err(error)) => return failed_twice(error),
        };
        if let Err(error) = batch.send().await {
            return failed_twice(error);
        }
        let (answer, header) = futures_util::future::join(answer, header).await;
        (answer.map_err(CallError::from), header.map(|header| header.map(Header::from)).map_err(CallError::from))
    }

    /// The chain's number.
    pub async fn chain_id(&self) -> Result<u64, CallError> {
        Ok(self.call::<_, U64>("eth_chainId", ()).await?.to())
    }

    /// Whether there is a contract at an address now.
    pub async fn has_code(&self, address: Address) -> Result<bool, CallError> {
        Ok(!self.call::<_, Bytes>("eth_getCode", (address, "latest")).await?.is_empty())
    }

    /// The newest block.
    pub async fn head(&self) -> Result<Header, CallError> {
        self.tagged(json!("latest")).await?.ok_or_else(|| CallError::NoAnswer("there is no newest block".into()))
    }

    /// The block of a number or a tag.
    pub(crate) async fn tagged(&self, tag: Value) -> Result<Option<Header>, CallError> {
        Ok(self.call::<_, Option<WireHeader>>("eth_getBlockByNumber", (tag, false)).await?.map(Header::from))
    }

    /// The blocks of these heights, inclusive, as far as the node has them without a hole.
    pub async fn headers(&self, from: Height, to: Height) -> Result<Vec<Header>, CallError> {
        let params: Vec<Value> = (from.0..=to.0).map(|height| json!([U64::from(height), false])).collect();
        let answers = self.calls::<_, Option<WireHeader>>("eth_getBlockByNumber", &params).await;
        let mut headers = Vec::with_capacity(answers.len());
        for answer in answers {
            match answer? {
                Some(header) => headers.push(Header::from(header)),
                None => break,
            }
        }
        Ok(headers)
    }

    /// The newest block that is beyond any reorg, given the newest one.
    pub async fn finalized(&self, head: &Header, finality: Finality) -> Result<Header, CallError> {
        let tag = match finality {
            Finality::Latest | Finality::Depth(0) => return Ok(head.clone()),
            Finality::Depth(depth) => json!(U64::from(head.at.height.0.saturating_sub(depth))),
            Finality::Safe => json!("safe"),
            Finality::Finalized => json!("finalized"),
        };
        self.tagged(tag).await?.ok_or_else(|| CallError::NoAnswer("there is no final block".into()))
    }
}

fn failed_twice<A, B>(error: RpcError<TransportErrorKind>) -> (Result<A, CallError>, Result<B, CallError>) {
    let error = CallError::from(error);
    (Err(error.clone()), Err(error))
}

/// Which blocks no reorg can take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finality {
    /// All of them: a chain without reorgs. One that has any halts its listener; to work at
    /// once on a chain that has, wait for less in the route's policy instead.
    Latest,
    /// Those that are at least so many blocks below the newest one.
    Depth(u64),
    /// Those that the node calls safe.
    Safe,
    /// Those that the node calls finalized.
    Finalized,
}

/// What is needed of a block's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where it is, and its hash.
    pub at: Position,
    /// The hash of the block before it.
    pub parent: [u8; 32],
    /// Its time.
    pub time: UnixMs,
    /// Which logs it may hold.
    pub bloom: Bloom,
    /// What its transactions paid at least; none on chains without EIP-1559.
    pub base_fee: Option<u128>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireHeader {
    number: U64,
    hash: B256,
    parent_hash: B256,
    timestamp: U64,
    logs_bloom: Bloom,
    base_fee_per_gas: Option<U128>,
}

impl From<WireHeader> for Header {
    fn from(wire: WireHeader) -> Header {
        Header {
            at: Position { height: Height(wire.number.to()), hash: wire.hash.0 },
            parent: wire.parent_hash.0,
            time: UnixMs(wire.timestamp.to::<u64>().saturating_mul(1000)),
            bloom: wire.logs_bloom,
            base_fee: wire.base_fee_per_gas.map(|fee| fee.to()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_method_is_told_from_other_refusals() {
        let refused = |code, message: &str| CallError::Refused { code, message: message.into(), revert: None };
        let cases = [
            (refused(-32601, "Method not found"), true),
            (refused(-32004, "Method eth_getBlockReceipts is not supported"), true),
            (refused(-32000, "unknown block"), false),
            (refused(-32602, "BlockOutOfRangeError"), false),
            (CallError::NoAnswer("404".into()), false),
        ];
        for (error, unknown) in cases {
            assert_eq!(error.is_unknown_method(), unknown, "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_wait_for_their_turn() {
        let pacer = Pacer { every: Duration::from_millis(100), next: Mutex::new(Instant::now()) };
        let start = Instant::now();
        let mut waits = Vec::new();
        for calls in [1, 3, 1] {
            pacer.turn(calls).await;
            waits.push(start.elapsed().as_millis());
        }
        assert_eq!(waits, [0, 100, 400]);
        tokio::time::advance(Duration::from_secs(5)).await;
        pacer.turn(1).await;
        assert_eq!(start.elapsed().as_millis(), 5_400, "what was not used is not saved up");
    }

    #[test]
    fn no_key_of_a_node_is_shown() {
        let cases = [
            ("no address at all", "no address at all"),
            ("for url (https://eth.example/v3/KEY?x=KEY): timed out", "for url (https://eth.example): timed out"),
            ("https://user:KEY@eth.example:8545/KEY", "https://eth.example:8545"),
            ("http://a/KEY http://b/KEY", "http://a http://b"),
        ];
        for (text, shown) in cases {
            assert_eq!(without_secrets(text), shown);
        }
        let error = Rpc::http("ftp://eth.example/KEY").err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| !error.contains("KEY")), "{error:?}");
    }
}
