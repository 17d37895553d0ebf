//! Signed bytes: made, and read again.

use alloy::consensus::transaction::SignerRecoverable;
use alloy::consensus::{SignableTransaction, Transaction, TxEip1559, TxEnvelope, TxLegacy};
use alloy::eips::eip2718::{Decodable2718, Encodable2718};
use alloy::network::TxSigner;
use alloy::primitives::{Address, B256, Bytes, Signature, TxKind, U256};
use alloy::rpc::types::Transaction as Shown;
use roundtrip::sender::{AttemptKind, SignedAttempt};
use roundtrip::words::{AttemptHash, Nonce};

use super::call::Call;
use super::fees::Fees;
use crate::rpc::{CallError, Rpc};

/// How a chain wants its fees told; it stays the same for all attempts of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeeKind {
    Dynamic,
    Legacy,
}

/// What is to be signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Draft {
    pub(super) chain_id: u64,
    pub(super) nonce: Nonce,
    pub(super) call: Call,
    pub(super) gas: u64,
    pub(super) fees: Fees,
    pub(super) fee_kind: FeeKind,
}

impl Draft {
    pub(super) async fn sign(
        self,
        signer: &(dyn TxSigner<Signature> + Send + Sync),
        kind: AttemptKind,
    ) -> Result<SignedAttempt, alloy::signers::Error> {
        let to = TxKind::Call(self.call.to);
        let envelope: TxEnvelope = match self.fee_kind {
            FeeKind::Dynamic => {
                let mut transaction = TxEip1559 {
                    chain_id: self.chain_id,
                    nonce: self.nonce.0,
                    gas_limit: self.gas,
                    max_fee_per_gas: self.fees.most,
                    max_priority_fee_per_gas: self.fees.tip,
                    to,
                    value: self.call.value,
                    input: self.call.data,
                    ..TxEip1559::default()
                };
                let signature = signer.sign_transaction(&mut transaction).await?;
                transaction.into_signed(signature).into()
            }
            FeeKind::Legacy => {
                let mut transaction = TxLegacy {
                    chain_id: Some(self.chain_id),
                    nonce: self.nonce.0,
                    gas_price: self.fees.most,
                    gas_limit: self.gas,
                    to,
                    value: self.call.value,
                    input: self.call.data,
                };
                let signature = signer.sign_transaction(&mut transaction).await?;
                transaction.into_signed(signature).into()
            }
        };
        let hash = AttemptHash(envelope.tx_hash().0);
        Ok(SignedAttempt { hash, kind, bytes: envelope.encoded_2718().into(), fee: Some(self.fees.most) })
    }

    /// What an attempt says, without its signature.
    pub(super) fn read(attempt: &SignedAttempt) -> Result<Draft, String> {
        let unreadable = |what: &str| format!("stored bytes of {}: {what}", attempt.hash);
        let envelope =
            TxEnvelope::decode_2718(&mut &attempt.bytes[..]).map_err(|error| unreadable(&error.to_string()))?;
        let fee_kind = if envelope.is_dynamic_fee() { FeeKind::Dynamic } else { FeeKind::Legacy };
        let most = envelope.max_fee_per_gas();
        Ok(Draft {
            chain_id: envelope.chain_id().ok_or_else(|| unreadable("of any chain"))?,
            nonce: Nonce(envelope.nonce()),
            call: Call {
                to: envelope.to().ok_or_else(|| unreadable("it creates a contract"))?,
                data: envelope.input().clone(),
                value: envelope.value(),
            },
            gas: envelope.gas_limit(),
            // A legacy transaction has one price, of which all above the base fee is the tip.
            fees: Fees { most, tip: envelope.max_priority_fee_per_gas().unwrap_or(most) },
            fee_kind,
        })
    }
}

/// What signed bytes say, for whoever looks at them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// Who is called.
    pub to: Address,
    /// How much is sent along, in wei.
    pub value: U256,
    /// What is called, and with what.
    pub data: Bytes,
    /// How much gas may be used.
    pub gas: u64,
    /// What is paid for a unit of gas at the most, in wei.
    pub fee_most: u128,
    /// How much of it goes to whoever builds the block, in wei; all of a legacy price.
    pub fee_tip: u128,
}

impl Signed {
    /// What a transaction says that the chain knows; nothing if it knows none of this hash, or
    /// if it creates a contract.
    pub async fn fetch(rpc: &Rpc, hash: AttemptHash) -> Result<Option<Signed>, CallError> {
        let shown: Option<Shown> = rpc.call("eth_getTransactionByHash", [B256::from(hash.0)]).await?;
        Ok(shown.and_then(|shown| {
            let most = shown.max_fee_per_gas();
            Some(Signed {
                to: shown.to()?,
                value: shown.value(),
                data: shown.input().clone(),
                gas: shown.gas_limit(),
                fee_most: most,
                fee_tip: shown.max_priority_fee_per_gas().unwrap_or(most),
            })
        }))
    }

    /// Reads an attempt of an EVM chain; nothing of other bytes.
    pub fn read(attempt: &SignedAttempt) -> Option<Signed> {
        let Draft { call: Call { to, data, value }, gas, fees, .. } = Draft::read(attempt).ok()?;
        Some(Signed { to, value, data, gas, fee_most: fees.most, fee_tip: fees.tip })
    }

    /// Whether a dearer one in its place would pay no more than so much for a unit of gas.
    pub fn can_pay_more(&self, cap: u128) -> bool {
        let paid = Fees { most: self.fee_most, tip: self.fee_tip };
        paid.dearer(paid, cap).is_some()
    }

    /// Who signed an attempt of an EVM chain.
    pub fn by(attempt: &SignedAttempt) -> Option<Address> {
        TxEnvelope::decode_2718(&mut &attempt.bytes[..]).ok()?.recover_signer().ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::signers::local::PrivateKeySigner;

    use super::*;

    #[tokio::test]
    async fn what_is_signed_is_read_back() {
        let signer = PrivateKeySigner::from_slice(&[1; 32]).unwrap();
        let call = Call { to: Address::repeat_byte(1), data: vec![1, 2, 3].into(), value: U256::from(5) };
        let dynamic = Draft {
            chain_id: 31337,
            nonce: Nonce(7),
            call,
            gas: 60_000,
            fees: Fees { most: 20, tip: 2 },
            fee_kind: FeeKind::Dynamic,
        };
        let legacy = Draft { fees: Fees { most: 20, tip: 20 }, fee_kind: FeeKind::Legacy, ..dynamic.clone() };
        for draft in [dynamic, legacy] {
            let attempt = draft.clone().sign(&signer, AttemptKind::Carry).await.unwrap();
            let signed = Signed::read(&attempt).unwrap();
            assert_eq!((signed.to, signed.gas, signed.fee_most), (draft.call.to, draft.gas, draft.fees.most));
            assert_eq!(Draft::read(&attempt), Ok(draft));
            assert_eq!(attempt.hash.0, alloy::primitives::keccak256(&attempt.bytes).0);
        }
    }
}
