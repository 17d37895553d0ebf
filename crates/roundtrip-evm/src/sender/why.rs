//! Why a transaction had no effect, or would have none, in the words of the contract and the node.

use alloy::primitives::{Bytes, U64};
use serde_json::{Value, json};

use super::chain::{WireReceipt, WireTransaction};
use super::outcomes::readable;
use crate::rpc::{CallError, Rpc};

/// Why a transaction had no effect: for what it means to its answers, and for the person who
/// reads of it.
pub(super) struct NoEffect {
    pub(super) text: String,
    pub(super) message: String,
    pub(super) revert: Option<Bytes>,
}

impl NoEffect {
    /// None, if it had one.
    pub(super) async fn of(rpc: &Rpc, wire: &WireReceipt) -> Result<Option<NoEffect>, CallError> {
        if wire.status == U64::from(1) {
            return Ok(None);
        }
        let (message, revert) = why_reverted(rpc, wire).await?;
        let why = revert_text(&message, revert.as_ref());
        let text = format!("transaction {} in block {} had no effect: {why}", wire.transaction_hash, wire.block_number);
        Ok(Some(NoEffect { text, message, revert }))
    }
}

/// Why a transaction had no effect, where the same call has one.
const UNEXPLAINED: &str = "it ran out of gas, or another transaction of its block changed the outcome";

/// What the same call says on the block before, which is mostly why it failed; or on its own
/// block, if another transaction of that came first.
async fn why_reverted(rpc: &Rpc, wire: &WireReceipt) -> Result<(String, Option<Bytes>), CallError> {
    let sent: Option<WireTransaction> = rpc.call("eth_getTransactionByHash", [wire.transaction_hash]).await?;
    let Some(sent) = sent else { return Err(CallError::NoAnswer("a receipt without its transaction".into())) };
    let call = json!({"from": sent.from, "to": sent.to, "data": sent.input, "value": sent.value, "gas": sent.gas});
    let at = wire.block_number.to::<u64>();
    for height in [at.saturating_sub(1), at] {
        match rpc.call::<_, Value>("eth_call", (&call, U64::from(height))).await {
            Err(CallError::Refused { message, revert, .. }) => return Ok((message, revert)),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
    }
    Ok((UNEXPLAINED.to_owned(), None))
}

/// What a contract reverted with: the node's words, and the bytes, whose first four name the error.
pub(crate) fn revert_text(message: &str, revert: Option<&Bytes>) -> String {
    let message = readable(message);
    match revert {
        Some(data) if !data.is_empty() && !message.contains(&data.to_string()) => format!("{message} ({data})"),
        _ => message,
    }
}
