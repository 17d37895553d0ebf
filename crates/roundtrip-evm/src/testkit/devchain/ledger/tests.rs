//! Blocks, fees and reorgs, as data.

#![allow(clippy::unwrap_used, reason = "tests")]

use alloy::consensus::TxEip1559;
use alloy::primitives::BloomInput;
use alloy::sol_types::SolEvent;

use super::*;
use crate::testkit::board::RequestBoard;
use crate::testkit::devchain::faults::Faults;
use crate::testkit::devchain::options::GWEI;
use crate::testkit::devchain::samples::{request, signed, transfer};

fn chain(base_fee: BaseFee) -> Ledger {
    Ledger::new(DevChainOptions { base_fee, ..DevChainOptions::default() })
}

fn tipping(nonce: u64, tip: u64) -> TxEip1559 {
    TxEip1559 { max_priority_fee_per_gas: u128::from(tip), ..transfer(nonce) }
}

/// The accounts whose transactions are in the newest block, in order.
fn mined(ledger: &Ledger) -> Vec<(usize, u64)> {
    let who = |address| (0..10).find(|index| dev_key(*index).address() == address).unwrap();
    let newest = ledger.blocks.last().unwrap();
    newest.transactions.iter().map(|there| (who(there.sent.from()), there.sent.nonce())).collect()
}

#[test]
fn the_dearest_come_first_and_each_account_in_order() {
    let mut ledger = chain(BaseFee::Fixed(GWEI));
    for (account, nonce, tip) in [(0, 1, 9), (0, 0, 1), (1, 0, 5), (2, 0, 5), (3, 1, 99)] {
        ledger.send(&signed(account, tipping(nonce, tip))).unwrap();
    }
    ledger.mine();
    assert_eq!(mined(&ledger), [(1, 0), (2, 0), (0, 0), (0, 1)]);
    assert_eq!(ledger.pool.len(), 1, "what lies above a gap stays");
}

#[test]
fn what_is_below_the_base_fee_waits() {
    let mut ledger = chain(BaseFee::Fixed(20 * GWEI));
    ledger.send(&signed(0, transfer(0))).unwrap();
    ledger.mine();
    assert_eq!(mined(&ledger), []);
    ledger.base_fee = 10 * GWEI;
    ledger.mine();
    assert_eq!(mined(&ledger), [(0, 0)]);
}

#[test]
fn a_block_holds_what_its_gas_allows() {
    let mut ledger = Ledger::new(DevChainOptions { block_gas_limit: 50_000, ..DevChainOptions::default() });
    for nonce in 0..3 {
        ledger.send(&signed(0, transfer(nonce))).unwrap();
    }
    ledger.mine();
    assert_eq!(mined(&ledger), [(0, 0), (0, 1)]);
    ledger.mine();
    assert_eq!(mined(&ledger), [(0, 2)]);
}

#[test]
fn the_base_fee_moves_by_use_or_stays() {
    // The limit is four transfers: two are the target.
    let table = [
        (BaseFee::Moving(8_000), 0, 7_000),
        (BaseFee::Moving(8_000), 1, 7_500),
        (BaseFee::Moving(8_000), 2, 8_000),
        (BaseFee::Moving(8_000), 4, 9_000),
        (BaseFee::Fixed(8_000), 4, 8_000),
    ];
    for (base_fee, transfers, expected) in table {
        let options = DevChainOptions { base_fee, block_gas_limit: 84_000, ..DevChainOptions::default() };
        let mut ledger = Ledger::new(options);
        ledger.base_fee = 8_000;
        for nonce in 0..transfers {
            ledger.send(&signed(0, transfer(nonce))).unwrap();
        }
        ledger.mine();
        assert_eq!((mined(&ledger).len() as u64, ledger.base_fee), (transfers, expected), "{base_fee:?}");
    }
}

#[test]
fn fees_are_paid_and_money_moves() {
    let mut ledger = chain(BaseFee::Fixed(2 * GWEI));
    ledger.send(&signed(0, transfer(0))).unwrap();
    ledger.mine();
    let spent = ledger.options.balance - ledger.state.balance(dev_key(0).address(), 1);
    assert_eq!(spent, U256::from(21_000 * 3 * GWEI + 1));
    assert_eq!(ledger.state.balance(MINER, 1), U256::from(21_000 * GWEI));
    assert_eq!(ledger.state.balance(Address::repeat_byte(9), 1), U256::from(1));
}

#[test]
fn too_little_gas_uses_all_of_it_for_nothing() {
    let mut ledger = chain(BaseFee::Fixed(GWEI));
    let board = ledger.deploy(&[]);
    ledger.send(&signed(0, TxEip1559 { gas_limit: 30_000, ..request(board, 0, "a") })).unwrap();
    ledger.mine();
    let there = &ledger.blocks[1].transactions[0];
    assert_eq!((there.succeeded, there.gas_used, there.logs.len()), (false, 30_000, 0));
    assert_eq!(ledger.state.board(board, 1).unwrap().asked(), 0);
}

#[test]
fn logs_are_in_the_bloom_and_blocks_follow_each_other() {
    let mut ledger = chain(BaseFee::Moving(GWEI));
    let board = ledger.deploy(&[]);
    ledger.send(&signed(0, request(board, 0, "a"))).unwrap();
    ledger.send(&signed(1, request(board, 0, "b"))).unwrap();
    ledger.mine();
    ledger.mine();
    let [first, second, third] = ledger.blocks.as_slice() else { panic!("three blocks") };
    assert_eq!((second.header.parent_hash, third.header.parent_hash), (first.hash, second.hash));
    assert_eq!(second.header.hash_slow(), second.hash);
    assert!(second.header.logs_bloom.contains_input(BloomInput::Raw(board.as_slice())));
    assert!(
        second.header.logs_bloom.contains_input(BloomInput::Raw(RequestBoard::Requested::SIGNATURE_HASH.as_slice()))
    );
    assert!(third.header.logs_bloom.is_zero());
    let firsts: Vec<u64> = second.transactions.iter().map(|there| there.first_log).collect();
    assert_eq!(firsts, [0, 1]);
}

/// A chain with a request in block 1, one of another account in block 2, and one waiting.
fn before_a_reorg() -> (Ledger, Address) {
    let mut ledger = chain(BaseFee::Fixed(GWEI));
    let board = ledger.deploy(&[]);
    ledger.send(&signed(0, request(board, 0, "a"))).unwrap();
    ledger.mine();
    ledger.send(&signed(1, request(board, 0, "b"))).unwrap();
    ledger.mine();
    (ledger, board)
}

#[test]
fn a_reorg_takes_back_what_its_blocks_did() {
    let table = [
        // How, requests on the new branch, where they are, and how many wait.
        (Reorg::ToPool, vec![], 2),
        (Reorg::Dropped, vec![], 0),
        (Reorg::Reordered, vec![1, 1], 0),
        (Reorg::Later, vec![3, 3], 0),
    ];
    for (how, heights, waiting) in table {
        let (mut ledger, board) = before_a_reorg();
        let old: Vec<Position> = ledger.blocks[1..].iter().map(|block| block.position()).collect();
        let spent = ledger.state.balance(dev_key(0).address(), 2);
        let done = ledger.reorg(2, how);
        assert_eq!((&done.removed, done.head.height.0), (&old, 3), "{how:?}");
        let asked: Vec<u64> = ledger.blocks.iter().flat_map(|block| block.logs().map(|_| block.number())).collect();
        assert_eq!((asked, ledger.pool.len()), (heights.clone(), waiting), "{how:?}");
        let used = u64::from(!heights.is_empty());
        assert_eq!(ledger.state.nonce(dev_key(0).address(), 3), used, "{how:?}");
        assert_eq!(ledger.state.balance(dev_key(0).address(), 3) == spent, used == 1, "{how:?}");
        assert_eq!(ledger.state.board(board, 3).unwrap().asked(), 2 * used, "{how:?}");
        assert!(
            ledger.orphan(&B256::from(old[0].hash)).is_some() && ledger.height_of(&B256::from(old[0].hash)).is_none()
        );
        assert!(ledger.blocks.iter().skip(1).all(|block| !old.contains(&block.position())), "{how:?}");
    }
}

#[test]
fn a_reorg_stops_at_the_first_block_and_remembers_so_many() {
    let (mut ledger, _) = before_a_reorg();
    assert_eq!(ledger.reorg(99, Reorg::Dropped).removed.len(), 2);
    for _ in 0..ORPHANS_MAX {
        ledger.reorg(1, Reorg::Dropped);
    }
    assert_eq!(ledger.orphans.len(), ORPHANS_MAX);
}

#[test]
fn what_happens_by_chance_happens() {
    let mut ledger = Ledger::new(DevChainOptions { finality: 4, ..DevChainOptions::default() });
    ledger.chance.faults = Faults { drop: 1000, ..Faults::default() };
    ledger.send(&signed(0, transfer(0))).unwrap();
    ledger.mine();
    assert_eq!((mined(&ledger).len(), ledger.pool.len()), (0, 0));

    ledger.chance.faults = Faults { evict: 1000, ..Faults::default() };
    ledger.send(&signed(0, transfer(0))).unwrap();
    ledger.mine();
    assert_eq!((mined(&ledger).len(), ledger.pool.len()), (0, 0));

    ledger.chance.faults = Faults { reorg: 1000, reorg_blocks: 9, ..Faults::default() };
    for _ in 0..50 {
        let (height, final_block) = (ledger.height(), ledger.finalized(ledger.height()));
        let kept = ledger.blocks[usize::try_from(final_block).unwrap()].hash;
        ledger.mine();
        assert_eq!(ledger.height_of(&kept), Some(final_block), "no final block goes");
        assert!(ledger.height() > height);
    }
    assert!(ledger.forks > 40);
}

#[test]
fn what_cannot_be_paid_any_more_is_forgotten() {
    let mut ledger = chain(BaseFee::Fixed(20 * GWEI));
    ledger.send(&signed(0, transfer(0))).unwrap();
    ledger.state.endow(dev_key(0).address(), U256::from(21_000) * U256::from(10 * GWEI));
    ledger.mine();
    assert_eq!(ledger.pool.len(), 0);
    assert!(matches!(ledger.send(&signed(0, transfer(0))), Err(Refused::Funds { .. })));
}

#[test]
fn a_spike_ends() {
    let mut ledger = chain(BaseFee::Fixed(GWEI));
    ledger.chance.faults = Faults { spike: 1000, spike_times: 7, spike_blocks: 2, ..Faults::default() };
    ledger.mine();
    ledger.chance.faults = Faults::default();
    ledger.mine();
    ledger.mine();
    let fees: Vec<u64> = ledger.blocks.iter().map(|block| block.base_fee() / GWEI).collect();
    assert_eq!(fees, [1, 7, 7, 1]);
}
