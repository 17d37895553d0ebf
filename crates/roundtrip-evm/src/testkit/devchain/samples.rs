//! Signed transactions for the tests of these modules.

#![allow(clippy::unwrap_used, reason = "tests")]

use alloy::consensus::{SignableTransaction, TxEip1559, TxEnvelope, TxLegacy};
use alloy::eips::eip2718::Encodable2718;
use alloy::primitives::{Address, Bytes, TxKind, U256};
use alloy::signers::SignerSync;
use alloy::sol_types::SolCall;

use super::options::GWEI;
use crate::testkit::account::dev_key;
use crate::testkit::board::RequestBoard;

pub(super) const CHAIN: u64 = 31_337;

/// A transfer that every pool takes.
pub(super) fn transfer(nonce: u64) -> TxEip1559 {
    TxEip1559 {
        chain_id: CHAIN,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: u128::from(10 * GWEI),
        max_priority_fee_per_gas: u128::from(GWEI),
        to: TxKind::Call(Address::repeat_byte(9)),
        value: U256::from(1),
        ..TxEip1559::default()
    }
}

/// A request to a board.
pub(super) fn request(board: Address, nonce: u64, payload: &'static str) -> TxEip1559 {
    let input = RequestBoard::requestCall { payload: Bytes::from_static(payload.as_bytes()) }.abi_encode();
    TxEip1559 { gas_limit: 200_000, to: board.into(), value: U256::ZERO, input: input.into(), ..transfer(nonce) }
}

/// What a development account sends.
pub(super) fn signed(account: usize, transaction: TxEip1559) -> Vec<u8> {
    let signature = dev_key(account).sign_hash_sync(&transaction.signature_hash()).unwrap();
    TxEnvelope::Eip1559(transaction.into_signed(signature)).encoded_2718()
}

/// The same before EIP-1559.
pub(super) fn signed_legacy(account: usize, transaction: TxLegacy) -> Vec<u8> {
    let signature = dev_key(account).sign_hash_sync(&transaction.signature_hash()).unwrap();
    TxEnvelope::Legacy(transaction.into_signed(signature)).encoded_2718()
}
