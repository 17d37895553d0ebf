//! Who used a slot of ours, if none of the bytes that are stored for it did: the very transaction is
//! looked for, since a node that lost a receipt says the same as one that never had it.

use alloy::consensus::Transaction as _;
use alloy::eips::eip2718::Encodable2718;
use alloy::primitives::{Address, keccak256};
use alloy::rpc::types::Transaction;
use roundtrip::sender::{AttemptKind, SignedAttempt};
use roundtrip::store::query::ParcelView;
use roundtrip::words::AttemptHash;

use super::chain::WireTransaction;
use super::heads::View;
use super::history::{WireBlock, block_of};
use super::transaction::Draft;
use crate::rpc::{CallError, Rpc};

/// Who used a slot.
#[derive(Debug)]
pub(super) enum User {
    /// Somebody else, or we for something else.
    Somebody,
    /// We, with bytes that the store forgot and that do what stored ones do.
    Us(SignedAttempt),
}

/// Finds out who used the slot of a parcel at final depth.
pub(super) async fn user(rpc: &Rpc, account: Address, view: &View, parcel: &ParcelView) -> Result<User, CallError> {
    let height = block_of(rpc, account, parcel.nonce, view.final_height).await?;
    let sent = WireBlock::at(rpc, height).await?.sent_by(account, parcel.nonce);
    let user = sent.into_iter().find(|sent| sent.nonce.to::<u64>() == parcel.nonce.0);
    let user = user.ok_or_else(|| CallError::NoAnswer("the transaction that used a slot cannot be found".into()))?;
    if parcel.attempts.iter().any(|attempt| attempt.hash.0 == user.hash.0) {
        return Err(CallError::NoAnswer("the node has our transaction and no receipt for it".into()));
    }
    match kind_of(&user, parcel) {
        Some(kind) => Ok(User::Us(signed(rpc, &user, kind).await?)),
        None => {
            tracing::warn!(nonce = parcel.nonce.0, transaction = %user.hash, "somebody else used a slot of this lane");
            Ok(User::Somebody)
        }
    }
}

/// Of which kind a transaction is that does what one of a parcel's attempts does.
fn kind_of(user: &WireTransaction, parcel: &ParcelView) -> Option<AttemptKind> {
    let same = |attempt: &&SignedAttempt| Draft::read(attempt).is_ok_and(|draft| Some(draft.call) == user.call());
    parcel.attempts.iter().find(same).map(|attempt| attempt.kind)
}

/// The very bytes of a transaction.
async fn signed(rpc: &Rpc, user: &WireTransaction, kind: AttemptKind) -> Result<SignedAttempt, CallError> {
    let shown: Option<Transaction> = rpc.call("eth_getTransactionByHash", [user.hash]).await?;
    let fee = shown.as_ref().map(|shown| shown.max_fee_per_gas());
    let bytes = shown.map(|shown| shown.into_inner().encoded_2718()).unwrap_or_default();
    if keccak256(&bytes) != user.hash {
        return Err(CallError::NoAnswer("the bytes of a transaction that the store forgot are not to be had".into()));
    }
    Ok(SignedAttempt { hash: AttemptHash(user.hash.0), kind, bytes: bytes.into(), fee })
}
