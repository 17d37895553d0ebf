//! Who is let in and who goes, as data.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::testkit::account::dev_key;
use crate::testkit::devchain::ledger::Ledger;
use crate::testkit::devchain::options::{DevChainOptions, GWEI};
use crate::testkit::devchain::samples::{CHAIN, signed, signed_legacy, transfer};
use alloy::consensus::{TxEip1559, TxLegacy};
use alloy::primitives::TxKind;

const FEE: u128 = 10 * GWEI as u128;
const TIP: u128 = GWEI as u128;

/// A chain on which account 0 used nonce 0 and has a transaction waiting on nonce 1.
fn scene() -> Ledger {
    let mut ledger = Ledger::new(DevChainOptions::default());
    ledger.send(&signed(0, transfer(0))).unwrap();
    ledger.mine();
    ledger.send(&signed(0, transfer(1))).unwrap();
    ledger
}

#[test]
fn who_is_let_in() {
    let fees = |nonce, max_fee_per_gas, max_priority_fee_per_gas| TxEip1559 {
        max_fee_per_gas,
        max_priority_fee_per_gas,
        ..transfer(nonce)
    };
    let table = [
        ("the next nonce", transfer(2), "ok"),
        ("a gap", transfer(9), "ok"),
        ("below the base fee", fees(2, 5, 1), "ok"),
        ("used", transfer(0), "nonce too low: next nonce 1, tx nonce 0"),
        ("the same", transfer(1), "already known"),
        ("a tenth more", fees(1, FEE * 11 / 10, TIP * 11 / 10), "ok"),
        ("less than a tenth more", fees(1, FEE * 11 / 10 - 1, TIP * 2), "replacement transaction underpriced"),
        ("the same tip", fees(1, FEE * 2, TIP), "replacement transaction underpriced"),
        ("no tip", fees(2, FEE, 0), "transaction underpriced: gas tip cap 0, minimum needed 1"),
        ("odd fees", fees(2, 1, 2), "max priority fee per gas higher than max fee per gas"),
        (
            "too little gas",
            TxEip1559 { gas_limit: 20_999, ..transfer(2) },
            "intrinsic gas too low: gas 20999, minimum needed 21000",
        ),
        (
            "too little gas for data",
            TxEip1559 { gas_limit: 21_016, input: vec![1].into(), ..transfer(2) },
            "insufficient gas for floor data gas cost: gas 21016, minimum needed 21040",
        ),
        ("too much gas", TxEip1559 { gas_limit: 36_000_001, ..transfer(2) }, "exceeds block gas limit"),
        (
            "another chain",
            TxEip1559 { chain_id: 1, ..transfer(2) },
            "invalid sender: invalid chain id for signer: have 1 want 31337",
        ),
        (
            "other code",
            TxEip1559 { to: TxKind::Create, gas_limit: 100_000, ..transfer(2) },
            "the development chain runs its sample contract and plain transfers only",
        ),
    ];
    for (name, transaction, expected) in table {
        let said = scene().send(&signed(0, transaction)).map_or_else(|refused| refused.to_string(), |_| "ok".into());
        assert_eq!(said, expected, "{name}");
    }
    let rich = TxEip1559 { value: DevChainOptions::default().balance, ..transfer(0) };
    let refused = scene().send(&signed(1, rich)).unwrap_err().to_string();
    assert!(refused.starts_with("insufficient funds for gas * price + value: balance 1"), "{refused}");
    assert!(refused.ends_with(&format!("overshot {}", 21_000 * FEE)), "{refused}");
    let big = TxEip1559 { input: vec![0; TRANSACTION_BYTES_MAX].into(), gas_limit: 2_000_000, ..transfer(2) };
    assert!(matches!(scene().send(&signed(0, big)), Err(Refused::Oversized(_))));
    assert!(matches!(scene().send(&[1, 2, 3]), Err(Refused::Unreadable(_))));
}

#[test]
fn legacy_transactions_are_let_in_if_they_name_the_chain() {
    let legacy = |chain_id| TxLegacy {
        chain_id,
        gas_price: FEE,
        gas_limit: 21_000,
        to: Address::ZERO.into(),
        ..TxLegacy::default()
    };
    assert!(scene().send(&signed_legacy(1, legacy(Some(CHAIN)))).is_ok());
    assert_eq!(scene().send(&signed_legacy(1, legacy(None))), Err(Refused::Unprotected));
}

#[test]
fn a_full_pool_lets_the_cheapest_go() {
    let mut ledger = Ledger::new(DevChainOptions { pool_max: 3, ..DevChainOptions::default() });
    let with_tip = |nonce, tip| TxEip1559 { max_priority_fee_per_gas: tip, ..transfer(nonce) };
    let cheap = ledger.send(&signed(0, with_tip(0, 5))).unwrap();
    let last = ledger.send(&signed(1, with_tip(1, 7))).unwrap();
    let first = ledger.send(&signed(1, with_tip(0, 6))).unwrap();
    assert_eq!(ledger.send(&signed(2, with_tip(0, 5))), Err(Refused::Underpriced));
    ledger.send(&signed(2, with_tip(0, 8))).unwrap();
    assert!(ledger.pool.get(&cheap).is_none());
    // Of an account, the last goes before the first: no gap is torn.
    ledger.send(&signed(3, with_tip(0, 9))).unwrap();
    assert_eq!((ledger.pool.get(&last).is_some(), ledger.pool.get(&first).is_some()), (false, true));
}

#[test]
fn a_queue_above_a_gap_is_bounded() {
    let mut ledger = Ledger::new(DevChainOptions { queued_max: 2, ..DevChainOptions::default() });
    let account = dev_key(0).address();
    for nonce in [7, 3, 5, 9] {
        ledger.send(&signed(0, transfer(nonce))).unwrap();
    }
    let nonces = |ledger: &Ledger| ledger.pool.of(account).map(|waiting| waiting.nonce()).collect::<Vec<_>>();
    assert_eq!(nonces(&ledger), [3, 5]);
    for nonce in 0..3 {
        ledger.send(&signed(0, transfer(nonce))).unwrap();
    }
    assert_eq!(ledger.pool.next_nonce(account, 0), 4);
    assert_eq!(nonces(&ledger), [0, 1, 2, 3, 5]);
}
