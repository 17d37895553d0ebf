//! JSON-RPC: requests and batches in, answers out, with the codes and words of geth.
//!
//! One item's failure is that item's answer; only what cannot be read at all, and batches
//! that are too long, are answered as a whole.

mod calls;
mod fees;
mod logs;
mod show;
mod view;

use alloy::eips::{BlockId, BlockNumberOrTag};
use alloy::primitives::{Address, B256, Bytes};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::faults::Sight;
use super::ledger::Ledger;
use super::pool::Refused;
use crate::testkit::board::DEPLOYED_CODE;
use view::View;

/// How many requests a batch may hold.
const BATCH_MAX: usize = 1_000;

const PARSE_ERROR: i64 = -32_700;
const INVALID_REQUEST: i64 = -32_600;
const METHOD_NOT_FOUND: i64 = -32_601;
const INVALID_PARAMS: i64 = -32_602;
const INTERNAL_ERROR: i64 = -32_603;
/// What a node says to nearly everything that it refuses.
const SERVER_ERROR: i64 = -32_000;
/// More than a provider gives in one answer.
const LIMIT_EXCEEDED: i64 = -32_005;
/// The contract refused.
const REVERTED: i64 = 3;

/// The error of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Fault {
    code: i64,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Bytes>,
}

impl Fault {
    fn new(code: i64, message: impl Into<String>) -> Fault {
        Fault { code, message: message.into(), data: None }
    }
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Fault {
        Fault::new(SERVER_ERROR, refused.to_string())
    }
}

/// One request of those that came together.
struct Item {
    /// Without it, nobody waits for an answer.
    id: Option<Value>,
    body: Result<Body, Fault>,
}

struct Body {
    method: String,
    params: Params,
}

/// What came over the door.
pub(super) struct Incoming(Shape);

enum Shape {
    Single(Item),
    Batch(Vec<Item>),
    Broken(Fault),
}

impl Incoming {
    /// The methods that are asked for.
    pub(super) fn methods(&self) -> impl Iterator<Item = &str> {
        let items = match &self.0 {
            Shape::Single(item) => std::slice::from_ref(item),
            Shape::Batch(items) => items,
            Shape::Broken(_) => &[],
        };
        items.iter().filter_map(|item| item.body.as_ref().ok()).map(|body| body.method.as_str())
    }
}

/// Reads what came.
pub(super) fn read(request: &str) -> Incoming {
    Incoming(match serde_json::from_str(request) {
        Err(error) => Shape::Broken(Fault::new(PARSE_ERROR, format!("parse error: {error}"))),
        Ok(Value::Array(items)) if items.is_empty() => Shape::Broken(Fault::new(INVALID_REQUEST, "empty batch")),
        Ok(Value::Array(items)) if items.len() > BATCH_MAX => {
            Shape::Broken(Fault::new(INVALID_REQUEST, "batch too large"))
        }
        Ok(Value::Array(items)) => Shape::Batch(items.into_iter().map(item).collect()),
        Ok(single) => Shape::Single(item(single)),
    })
}

fn item(mut value: Value) -> Item {
    let mut take = |name| value.get_mut(name).map(Value::take);
    let (id, method, params) = (take("id"), take("method"), take("params"));
    match (method, params) {
        (Some(Value::String(method)), None | Some(Value::Null)) => {
            Item { id, body: Ok(Body { method, params: Params(Vec::new()) }) }
        }
        (Some(Value::String(method)), Some(Value::Array(params))) => {
            Item { id, body: Ok(Body { method, params: Params(params) }) }
        }
        (Some(Value::String(_)), Some(_)) => Item { id, body: Err(Fault::new(INVALID_PARAMS, "non-array args")) },
        // Somebody who sends no request at all is told so, with or without an id.
        _ => Item { id: id.or(Some(Value::Null)), body: Err(Fault::new(INVALID_REQUEST, "invalid request")) },
    }
}

/// Carries out what came, as well as the chain is seen, and writes the answer.
pub(super) fn answer(ledger: &mut Ledger, incoming: &Incoming, sight: Sight) -> String {
    match &incoming.0 {
        Shape::Broken(fault) => respond(&Value::Null, Err(fault.clone())).to_string(),
        Shape::Single(item) => carry_out(ledger, item, sight).map_or_else(String::new, |answer| answer.to_string()),
        Shape::Batch(items) => {
            let answers: Vec<Value> = items.iter().filter_map(|item| carry_out(ledger, item, sight)).collect();
            if answers.is_empty() { String::new() } else { Value::Array(answers).to_string() }
        }
    }
}

fn carry_out(ledger: &mut Ledger, item: &Item, sight: Sight) -> Option<Value> {
    let result = match &item.body {
        Ok(body) => dispatch(ledger, body, sight),
        Err(fault) => Err(fault.clone()),
    };
    item.id.as_ref().map(|id| respond(id, result))
}

fn respond(id: &Value, result: Result<Value, Fault>) -> Value {
    match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(fault) => json!({ "jsonrpc": "2.0", "id": id, "error": fault }),
    }
}

fn dispatch(ledger: &mut Ledger, body: &Body, sight: Sight) -> Result<Value, Fault> {
    let params = &body.params;
    match body.method.as_str() {
        "eth_sendRawTransaction" => return shown(ledger.send(&params.required::<Bytes>(0)?)?),
        "evm_mine" => {
            ledger.mine();
            return shown("0x0");
        }
        _ => {}
    }
    let view = View::new(ledger, sight.lag);
    match body.method.as_str() {
        "web3_clientVersion" => shown(concat!("roundtrip-devchain/", env!("CARGO_PKG_VERSION"))),
        "net_version" => shown(view.ledger.options.chain_id.to_string()),
        "eth_chainId" => quantity(view.ledger.options.chain_id),
        "eth_syncing" => shown(false),
        "eth_blockNumber" => quantity(view.head),
        "eth_getBlockByNumber" => {
            let number = view.number(params.required(0)?);
            show::block(number.and_then(|number| view.block(number)), params.optional(1)?.unwrap_or(false))
        }
        "eth_getBlockByHash" => {
            let hash: B256 = params.required(0)?;
            show::block(view.block_by_hash(&hash), params.optional(1)?.unwrap_or(false))
        }
        "eth_getBlockReceipts" => {
            let block = view.block_at(params.required::<BlockId>(0)?);
            shown(block.map(|block| show::receipts(block)))
        }
        "eth_getTransactionByHash" => show::transaction(&view, params.required(0)?),
        "eth_getTransactionReceipt" => {
            let hash: B256 = params.required(0)?;
            shown(view.place(&hash).filter(|_| !sight.blind).and_then(|(block, index)| show::receipt(block, index)))
        }
        "eth_getLogs" if sight.blind => shown([(); 0]),
        "eth_getLogs" => logs::matching(&view, &params.required(0)?),
        "eth_getTransactionCount" => count(&view, params.required(0)?, params.optional(1)?),
        "eth_getBalance" => {
            let (account, at) = (params.required(0)?, view.height(params.optional(1)?)?);
            shown(view.ledger.state.balance(account, at))
        }
        "eth_getCode" => {
            let (account, at) = (params.required(0)?, view.height(params.optional(1)?)?);
            shown(view.ledger.state.board(account, at).map_or(Bytes::new(), |_| Bytes::from_static(DEPLOYED_CODE)))
        }
        "eth_call" => calls::call(&view, &params.required(0)?, params.optional(1)?),
        "eth_estimateGas" => calls::estimate(&view, &params.required(0)?, params.optional(1)?),
        "eth_gasPrice" => quantity(view.ledger.base_fee.saturating_add(view.ledger.options.tip)),
        "eth_maxPriorityFeePerGas" => quantity(view.ledger.options.tip),
        "eth_feeHistory" => fees::history(&view, params.required(0)?, params.required(1)?, params.optional(2)?),
        "txpool_content" => show::pool(view.ledger),
        "txpool_status" => {
            let (pending, queued) = show::pending_and_queued(view.ledger);
            shown(json!({ "pending": hex(pending.len() as u64), "queued": hex(queued.len() as u64) }))
        }
        other => Err(Fault::new(METHOD_NOT_FOUND, format!("the method {other} does not exist/is not available"))),
    }
}

/// How many transactions the account has sent; only here `pending` is more than `latest`.
fn count(view: &View<'_>, account: Address, at: Option<BlockId>) -> Result<Value, Fault> {
    let mined = view.ledger.state.nonce(account, view.height(at)?);
    match at {
        Some(BlockId::Number(BlockNumberOrTag::Pending)) => quantity(view.ledger.pool.next_nonce(account, mined)),
        _ => quantity(mined),
    }
}

fn shown(value: impl Serialize) -> Result<Value, Fault> {
    serde_json::to_value(value).map_err(|error| Fault::new(INTERNAL_ERROR, error.to_string()))
}

fn hex(number: u64) -> String {
    format!("0x{number:x}")
}

fn quantity(number: u64) -> Result<Value, Fault> {
    Ok(Value::String(hex(number)))
}

/// The arguments of a request.
struct Params(Vec<Value>);

impl Params {
    fn required<T: DeserializeOwned>(&self, index: usize) -> Result<T, Fault> {
        let missing = || Fault::new(INVALID_PARAMS, format!("missing value for required argument {index}"));
        self.optional(index)?.ok_or_else(missing)
    }

    fn optional<T: DeserializeOwned>(&self, index: usize) -> Result<Option<T>, Fault> {
        let Some(value) = self.0.get(index).filter(|value| !value.is_null()) else { return Ok(None) };
        let invalid = |error| Fault::new(INVALID_PARAMS, format!("invalid argument {index}: {error}"));
        T::deserialize(value).map(Some).map_err(invalid)
    }
}

#[cfg(test)]
mod tests;
