//! Nodes that a test writes: one chain of blocks and logs, and any number of nodes that show
//! it, each with the moods of a provider. They answer what a listener asks for, in this
//! process or over HTTP, and nothing else.
//!
//! Unlike the development chain nothing is executed here, so a test can say what no honest
//! node would: logs that are hidden, forged, cut off, or of another branch.

use std::collections::{BTreeMap, BTreeSet};
use std::future::IntoFuture;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alloy::primitives::{Address, B256, Bloom, BloomInput, Bytes, U64, keccak256};
use alloy::transports::{TransportError, TransportErrorKind};
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::routing::post;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::rpc::Rpc;
use crate::testkit::way;

/// Seconds between two blocks.
const BLOCK_SECONDS: u64 = 12;

/// A log that a test writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeLog {
    /// Who emits it.
    pub address: Address,
    /// Its topics.
    pub topics: Vec<B256>,
    /// Its data.
    pub data: Bytes,
    /// In which transaction; a reorg may put the same one elsewhere.
    pub transaction: B256,
}

#[derive(Clone, Debug)]
struct FakeBlock {
    hash: B256,
    parent: B256,
    logs: Vec<FakeLog>,
}

#[derive(Default)]
struct Blocks {
    blocks: Vec<FakeBlock>,
    finalized: u64,
    mined: u64,
}

/// The chain; clones are the same one.
#[derive(Clone, Default)]
pub struct FakeChain {
    blocks: Arc<Mutex<Blocks>>,
}

impl FakeChain {
    /// A chain with its first block.
    pub fn new() -> FakeChain {
        let chain = FakeChain::default();
        chain.mine(Vec::new());
        chain
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another block with these logs; answers its height.
    pub fn mine(&self, logs: Vec<FakeLog>) -> u64 {
        let mut chain = self.blocks();
        chain.mined += 1;
        let hash = keccak256(chain.mined.to_be_bytes());
        let parent = chain.blocks.last().map_or(B256::ZERO, |block| block.hash);
        chain.blocks.push(FakeBlock { hash, parent, logs });
        chain.blocks.len() as u64 - 1
    }

    /// So many blocks without logs.
    pub fn mine_empty(&self, count: usize) {
        (0..count).for_each(|_| {
            self.mine(Vec::new());
        });
    }

    /// Takes back so many of the newest blocks, however final; answers their logs.
    pub fn take_back(&self, count: usize) -> Vec<FakeLog> {
        let mut chain = self.blocks();
        let kept = chain.blocks.len().saturating_sub(count).max(1);
        chain.blocks.split_off(kept).into_iter().flat_map(|block| block.logs).collect()
    }

    /// Everything up to this height is final.
    pub fn finalize(&self, height: u64) {
        let mut chain = self.blocks();
        chain.finalized = height.min(chain.blocks.len() as u64 - 1);
    }

    /// Every log on the chain, with its height, in order.
    pub fn logs(&self) -> Vec<(u64, FakeLog)> {
        let chain = self.blocks();
        let heights = (0u64..).zip(&chain.blocks);
        heights.flat_map(|(height, block)| block.logs.iter().map(move |log| (height, log.clone()))).collect()
    }

    /// The height of the newest block.
    pub fn head(&self) -> u64 {
        self.blocks().blocks.len() as u64 - 1
    }
}

/// How a node is; by default, honest and well.
#[derive(Clone, Debug, Default)]
pub struct Moods {
    /// It does not answer at all.
    pub silent: bool,
    /// It answers every call with this error.
    pub refuses: Option<(i64, String)>,
    /// It is on another chain.
    pub chain_id: Option<u64>,
    /// How many blocks it is behind.
    pub lag: u64,
    /// The widest range of logs, and its words for a wider one.
    pub range_max: Option<(u64, String)>,
    /// Most logs in one answer, and its words for more.
    pub results_max: Option<(usize, String)>,
    /// Answers of logs end after so many, without a word.
    pub cut_off_at: Option<usize>,
    /// Below this height it has neither blocks nor logs.
    pub pruned_below: u64,
    /// Logs of these transactions are not in its answers of logs.
    pub hides: BTreeSet<B256>,
    /// Nor in its receipts.
    pub hides_receipts: bool,
    /// Logs that are in no block, by height.
    pub forges: BTreeMap<u64, Vec<FakeLog>>,
    /// It does not know receipts by the block, nor one by one.
    pub no_receipts: bool,
    /// It does not know which blocks are safe or final.
    pub no_tags: bool,
}

/// One node on a chain; clones are the same one.
#[derive(Clone)]
pub struct FakeNode {
    chain: FakeChain,
    chain_id: u64,
    moods: Arc<Mutex<Moods>>,
    /// The methods that were asked for, in their order.
    calls: Arc<Mutex<Vec<String>>>,
}

/// What a call comes to.
type Answered = Result<Value, (i64, String)>;

impl FakeNode {
    /// An honest node.
    pub fn on(chain: &FakeChain, chain_id: u64) -> FakeNode {
        FakeNode { chain: chain.clone(), chain_id, moods: Arc::default(), calls: Arc::default() }
    }

    /// Its moods, to be changed.
    pub fn moods(&self) -> MutexGuard<'_, Moods> {
        self.moods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often a method was asked for.
    pub fn asked(&self, method: &str) -> usize {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|call| *call == method).count()
    }

    /// A way to it.
    pub fn rpc(&self) -> Rpc {
        let node = self.clone();
        Rpc::over(way::client(move |request| node.carry(&request)))
    }

    /// One exchange in this process.
    fn carry(&self, request: &str) -> way::Answer {
        let answer = match serde_json::from_str(request) {
            _ if self.moods().silent => Err(TransportErrorKind::custom_str("connection refused")),
            Ok(request) => Ok(self.respond(&request).to_string()),
            Err(error) => Err(TransportError::ser_err(error)),
        };
        Box::pin(async { answer })
    }

    fn answer(&self, method: &str, params: &Value) -> Answered {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(method.to_owned());
        let moods = self.moods().clone();
        if let Some(refusal) = moods.refuses {
            return Err(refusal);
        }
        match method {
            "eth_chainId" => Ok(json!(U64::from(moods.chain_id.unwrap_or(self.chain_id)))),
            "eth_blockNumber" => Ok(json!(U64::from(self.chain.head().saturating_sub(moods.lag)))),
            "eth_getBlockByNumber" => Ok(self.block(&moods, &params[0])),
            "eth_getLogs" => self.logs(&moods, &params[0]),
            "eth_getBlockReceipts" if moods.no_receipts => Err((-32000, "not now".into())),
            "eth_getBlockReceipts" => Ok(self.receipts(&moods, &params[0])),
            _ => Err((-32601, format!("the method {method} does not exist"))),
        }
    }

    /// The height that a tag means, if the node has come so far and still has it.
    fn height(&self, moods: &Moods, tag: &Value) -> Option<u64> {
        let chain = self.chain.blocks();
        let head = (chain.blocks.len() as u64 - 1).saturating_sub(moods.lag);
        let height = match tag.as_str()? {
            "latest" => head,
            "safe" | "finalized" if moods.no_tags => return None,
            "safe" | "finalized" => chain.finalized.min(head),
            number => u64::from_str_radix(number.trim_start_matches("0x"), 16).ok()?,
        };
        (moods.pruned_below..=head).contains(&height).then_some(height)
    }

    fn at(&self, height: u64) -> Option<FakeBlock> {
        self.chain.blocks().blocks.get(usize::try_from(height).ok()?).cloned()
    }

    fn block(&self, moods: &Moods, tag: &Value) -> Value {
        let Some((height, block)) = self.height(moods, tag).and_then(|height| Some((height, self.at(height)?))) else {
            return Value::Null;
        };
        let mut bloom = Bloom::ZERO;
        for log in &block.logs {
            bloom.accrue(BloomInput::Raw(log.address.as_slice()));
            log.topics.iter().for_each(|topic| bloom.accrue(BloomInput::Raw(topic.as_slice())));
        }
        json!({
            "number": U64::from(height), "hash": block.hash, "parentHash": block.parent,
            "timestamp": U64::from(height * BLOCK_SECONDS), "logsBloom": bloom, "transactions": [],
        })
    }

    fn logs(&self, moods: &Moods, filter: &Value) -> Answered {
        let [from, to] = ["fromBlock", "toBlock"].map(|end| self.height(moods, &filter[end]));
        let Some(from) = from else { return Err((-32602, "block range extends beyond current head block".into())) };
        let head = self.chain.head().saturating_sub(moods.lag);
        let to = to.unwrap_or(head);
        if let Some((max, words)) = &moods.range_max
            && to - from + 1 > *max
        {
            return Err((-32602, words.clone()));
        }
        let mut found: Vec<Value> = (from..=to).flat_map(|height| self.shown(moods, height, true)).collect();
        found.retain(|log| wanted(log, filter));
        if let Some((max, words)) = &moods.results_max
            && found.len() > *max
        {
            return Err((-32005, words.clone()));
        }
        found.truncate(moods.cut_off_at.unwrap_or(usize::MAX));
        Ok(json!(found))
    }

    /// The logs of a block as this node shows them.
    fn shown(&self, moods: &Moods, height: u64, hides: bool) -> Vec<Value> {
        let Some(block) = self.at(height) else { return Vec::new() };
        let forged = moods.forges.get(&height).cloned().unwrap_or_default();
        let show = |(index, log): (usize, FakeLog)| {
            let removed = hides && moods.hides.contains(&log.transaction);
            (!removed).then(|| {
                json!({
                    "address": log.address, "topics": log.topics, "data": log.data, "blockNumber": U64::from(height),
                    "blockHash": block.hash, "transactionHash": log.transaction, "logIndex": U64::from(index),
                })
            })
        };
        block.logs.iter().cloned().chain(forged).enumerate().filter_map(show).collect()
    }

    fn receipts(&self, moods: &Moods, tag: &Value) -> Value {
        match self.height(moods, tag) {
            Some(height) => json!([{"logs": self.shown(moods, height, moods.hides_receipts)}]),
            None => Value::Null,
        }
    }

    fn respond(&self, request: &Value) -> Value {
        if let Value::Array(batch) = request {
            return batch.iter().map(|one| self.respond(one)).collect();
        }
        let method = request["method"].as_str().unwrap_or_default();
        match self.answer(method, &request["params"]) {
            Ok(result) => json!({"jsonrpc": "2.0", "id": request["id"], "result": result}),
            Err((code, message)) => {
                json!({"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": message}})
            }
        }
    }
}

impl FakeNode {
    /// Serves the node over HTTP on a free port of this machine, until what is returned is dropped.
    pub async fn serve_http(&self) -> io::Result<ServedNode> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let respond = |State(node): State<FakeNode>, request: String| async move {
            let request: Value = serde_json::from_str(&request).unwrap_or_default();
            ([(header::CONTENT_TYPE, "application/json")], node.respond(&request).to_string())
        };
        let router = Router::new().route("/", post(respond)).with_state(self.clone());
        let mut server = JoinSet::new();
        server.spawn(axum::serve(listener, router).into_future());
        Ok(ServedNode { url, _server: server })
    }
}

/// A node that is served over HTTP.
pub struct ServedNode {
    url: String,
    /// Dropped, it is gone.
    _server: JoinSet<io::Result<()>>,
}

impl ServedNode {
    /// Where it is served.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Whether a log is what a filter asks for.
fn wanted(log: &Value, filter: &Value) -> bool {
    let one_of = |wanted: &Value, found: &Value| match wanted {
        Value::Null => true,
        Value::Array(any) => any.contains(found),
        one => one == found,
    };
    let topics = filter["topics"].as_array().cloned().unwrap_or_default();
    let found = log["topics"].as_array().cloned().unwrap_or_default();
    let fits = |(at, wanted): (usize, &Value)| found.get(at).is_some_and(|topic| one_of(wanted, topic));
    one_of(&filter["address"], &log["address"]) && topics.iter().enumerate().all(fits)
}

/// A way to one of these nodes, another one for every request; a batch is one request.
pub fn balanced(nodes: &[FakeNode]) -> Rpc {
    let (nodes, turn) = (nodes.to_vec(), AtomicUsize::new(1));
    Rpc::over(way::client(move |request| nodes[turn.fetch_add(1, Ordering::Relaxed) % nodes.len()].carry(&request)))
}
