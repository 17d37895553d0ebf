//! Somebody else who signs, over JSON-RPC in the way of Web3Signer.
//!
//! What comes back is a whole transaction. It is decoded and compared with what was asked
//! for, and its signature must be the account's: a signer that is set up for another chain,
//! or that means well and changes a fee, must not have its transaction sent.

use std::time::Duration;

use alloy::consensus::transaction::SignerRecoverable;
use alloy::consensus::{SignableTransaction, Transaction, TxEnvelope};
use alloy::eips::eip2718::Decodable2718;
use alloy::network::TxSigner;
use alloy::primitives::{Address, Bytes, Signature, U64, U128};
use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::rpc::{CallError, Rpc};

/// How long one try may take, and how many there are before the lane's next look.
const TRY_WITHIN: Duration = Duration::from_secs(3);
const TRIES: usize = 3;

/// An account whose key somebody else has.
pub(super) struct Remote {
    rpc: Rpc,
    address: Address,
}

/// What comes back: the bytes alone, or as geth has it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Signed {
    Raw(Bytes),
    WithFields { raw: Bytes },
}

impl Remote {
    pub(super) fn new(rpc: Rpc, address: Address) -> Remote {
        Remote { rpc, address }
    }

    pub(super) fn name(&self) -> &str {
        self.rpc.name()
    }

    /// The accounts that it signs for.
    pub(super) async fn accounts(&self) -> Result<Vec<Address>, CallError> {
        within(self.rpc.call("eth_accounts", ())).await
    }

    /// Asks until it answers, some times; signing twice does no harm.
    async fn signed(&self, transaction: &Value) -> Result<Bytes, CallError> {
        let mut last = CallError::NoAnswer("it was not asked".into());
        for _ in 0..TRIES {
            match within(self.rpc.call::<_, Signed>("eth_signTransaction", [transaction])).await {
                Ok(Signed::Raw(raw) | Signed::WithFields { raw }) => return Ok(raw),
                Err(refused @ CallError::Refused { .. }) => return Err(refused),
                Err(silent @ CallError::NoAnswer(_)) => last = silent,
            }
        }
        Err(last)
    }
}

async fn within<T>(call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
    let late = |_| Err(CallError::NoAnswer("no answer in time".into()));
    tokio::time::timeout(TRY_WITHIN, call).await.unwrap_or_else(late)
}

#[async_trait]
impl TxSigner<Signature> for Remote {
    fn address(&self) -> Address {
        self.address
    }

    async fn sign_transaction(
        &self,
        wanted: &mut dyn SignableTransaction<Signature>,
    ) -> alloy::signers::Result<Signature> {
        let failed = |why: String| alloy::signers::Error::message(format!("{}: {why}", self.name()));
        let raw = self.signed(&wish(self.address, wanted)).await.map_err(|error| failed(error.to_string()))?;
        checked(wanted, self.address, &raw).map_err(failed)
    }
}

/// What is to be signed, as Web3Signer takes it; it knows the chain by itself, others are told.
fn wish(from: Address, wanted: &dyn SignableTransaction<Signature>) -> Value {
    let mut wish = json!({
        "from": from,
        "to": wanted.to(),
        "gas": U64::from(wanted.gas_limit()),
        "nonce": U64::from(wanted.nonce()),
        "value": wanted.value(),
        "data": wanted.input(),
        "chainId": wanted.chain_id().map(U64::from),
    });
    match (wanted.gas_price(), wanted.max_priority_fee_per_gas()) {
        (Some(price), _) => wish["gasPrice"] = json!(U128::from(price)),
        (None, tip) => {
            wish["maxFeePerGas"] = json!(U128::from(wanted.max_fee_per_gas()));
            wish["maxPriorityFeePerGas"] = json!(U128::from(tip.unwrap_or_default()));
        }
    }
    wish
}

/// The signature of what came back, if it is what was asked for.
fn checked(wanted: &dyn SignableTransaction<Signature>, from: Address, raw: &[u8]) -> Result<Signature, String> {
    let signed = TxEnvelope::decode_2718_exact(raw).map_err(|_| "it returned no transaction".to_owned())?;
    let differs = |what: &str| Err(format!("it signed something else: another {what} than was asked for"));
    match () {
        () if signed.chain_id() != wanted.chain_id() => return differs("chain"),
        () if signed.nonce() != wanted.nonce() => return differs("nonce"),
        () if signed.kind() != wanted.kind() => return differs("receiver"),
        () if signed.value() != wanted.value() => return differs("value"),
        () if signed.input() != wanted.input() => return differs("input"),
        // Fees, gas, type, and whatever else a transaction may have.
        () if signed.signature_hash() != wanted.signature_hash() => return differs("fee, gas limit or type"),
        () => {}
    }
    match signed.recover_signer() {
        Ok(signer) if signer == from => Ok(*signed.signature()),
        Ok(other) => Err(format!("it signed with the key of {other}, not of {from}")),
        Err(_) => Err("its signature is not valid".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::consensus::{TxEip1559, TxLegacy};
    use alloy::eips::eip2718::Encodable2718;
    use alloy::primitives::{TxKind, U256};
    use alloy::signers::SignerSync;
    use alloy::signers::local::PrivateKeySigner;

    use super::*;

    fn transfer() -> TxEip1559 {
        TxEip1559 {
            chain_id: 7,
            nonce: 3,
            gas_limit: 50_000,
            max_fee_per_gas: 20,
            max_priority_fee_per_gas: 2,
            to: TxKind::Call(Address::repeat_byte(1)),
            value: U256::from(9),
            input: vec![1, 2].into(),
            ..TxEip1559::default()
        }
    }

    fn signed<T: SignableTransaction<Signature>>(transaction: T, key: &PrivateKeySigner) -> Vec<u8>
    where
        TxEnvelope: From<alloy::consensus::Signed<T>>,
    {
        let signature = key.sign_hash_sync(&transaction.signature_hash()).unwrap();
        TxEnvelope::from(transaction.into_signed(signature)).encoded_2718()
    }

    #[test]
    fn only_what_was_asked_for_is_taken() {
        let key = PrivateKeySigner::from_slice(&[1; 32]).unwrap();
        let other = PrivateKeySigner::from_slice(&[2; 32]).unwrap();
        let legacy = TxLegacy {
            chain_id: Some(7),
            nonce: 3,
            gas_price: 20,
            gas_limit: 50_000,
            to: transfer().to,
            value: transfer().value,
            input: transfer().input,
        };
        let cases = [
            ("", signed(transfer(), &key)),
            ("another chain", signed(TxEip1559 { chain_id: 1, ..transfer() }, &key)),
            ("another nonce", signed(TxEip1559 { nonce: 4, ..transfer() }, &key)),
            ("another receiver", signed(TxEip1559 { to: TxKind::Call(Address::ZERO), ..transfer() }, &key)),
            ("another value", signed(TxEip1559 { value: U256::ZERO, ..transfer() }, &key)),
            ("another input", signed(TxEip1559 { input: Bytes::new(), ..transfer() }, &key)),
            ("another fee", signed(TxEip1559 { max_fee_per_gas: 21, ..transfer() }, &key)),
            ("another fee", signed(TxEip1559 { gas_limit: 50_001, ..transfer() }, &key)),
            ("another fee", signed(legacy, &key)),
            ("with the key of", signed(transfer(), &other)),
            ("no transaction", vec![1, 2, 3]),
            ("no transaction", [signed(transfer(), &key), vec![0]].concat()),
        ];
        for (part, raw) in cases {
            match checked(&transfer(), key.address(), &raw) {
                Ok(signature) => assert_eq!(
                    (part, signed(transfer(), &key)),
                    ("", TxEnvelope::from(transfer().into_signed(signature)).encoded_2718())
                ),
                Err(why) => assert!(!part.is_empty() && why.contains(part), "{part}: {why}"),
            }
        }
    }

    #[test]
    fn both_kinds_of_fees_are_told() {
        let dynamic = wish(Address::ZERO, &transfer());
        assert_eq!((&dynamic["maxFeePerGas"], &dynamic["maxPriorityFeePerGas"]), (&json!("0x14"), &json!("0x2")));
        assert_eq!(
            (dynamic.get("gasPrice"), &dynamic["nonce"], &dynamic["value"]),
            (None, &json!("0x3"), &json!("0x9"))
        );
        let legacy = wish(Address::ZERO, &TxLegacy { gas_price: 5, ..TxLegacy::default() });
        assert_eq!((&legacy["gasPrice"], legacy.get("maxFeePerGas")), (&json!("0x5"), None));
    }
}
