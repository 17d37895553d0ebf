//! Blocks: what was executed, sealed under a header.
//!
//! Hash, parent, logs bloom, transactions root and receipts root are real; the state root
//! is a placeholder, since the state here is no trie. The header's mix hash holds the seed
//! and a count of the reorgs, so that the same transactions in another branch make another
//! block.

use std::sync::Arc;

use alloy::consensus::constants::EMPTY_ROOT_HASH;
use alloy::consensus::proofs::{calculate_receipt_root, calculate_transaction_root};
use alloy::consensus::{Eip658Value, Header, Receipt, ReceiptEnvelope, Transaction, TxEnvelope};
use alloy::primitives::{Address, B256, Log, keccak256, logs_bloom};
use roundtrip::words::{Height, Position};

use super::pool::Waiting;

/// Who mines all blocks.
pub(super) const MINER: Address = Address::repeat_byte(0xc0);

/// A transaction in a block.
#[derive(Clone, Debug)]
pub struct DevTransaction {
    /// What was sent.
    pub sent: Arc<Waiting>,
    /// Whether it had its effect.
    pub succeeded: bool,
    /// What it used.
    pub gas_used: u64,
    /// What the block's transactions used up to this one.
    pub cumulative_gas_used: u64,
    /// What it paid per gas.
    pub gas_price: u128,
    /// What it emitted.
    pub logs: Vec<Log>,
    /// How many logs came before in the block.
    pub first_log: u64,
    /// The contract that it created.
    pub created: Option<Address>,
}

impl DevTransaction {
    /// Its receipt as the receipts root sees it.
    pub(super) fn receipt(&self) -> ReceiptEnvelope {
        let receipt = Receipt {
            status: Eip658Value::Eip658(self.succeeded),
            cumulative_gas_used: self.cumulative_gas_used,
            logs: self.logs.clone(),
        };
        ReceiptEnvelope::from_typed(self.sent.transaction.inner().tx_type(), receipt)
    }
}

/// A block.
#[derive(Clone, Debug)]
pub struct DevBlock {
    /// Its header.
    pub header: Header,
    /// The hash of its header.
    pub hash: B256,
    /// What it holds, in order.
    pub transactions: Vec<DevTransaction>,
}

/// What a header says beside what follows from the transactions.
pub(super) struct Frame {
    pub(super) parent_hash: B256,
    pub(super) number: u64,
    pub(super) timestamp: u64,
    pub(super) base_fee: u64,
    pub(super) gas_limit: u64,
    pub(super) seed: u64,
    pub(super) forks: u64,
}

impl DevBlock {
    /// Seals what was executed.
    pub(super) fn seal(frame: Frame, transactions: Vec<DevTransaction>) -> DevBlock {
        let sent: Vec<&TxEnvelope> =
            transactions.iter().map(|transaction| transaction.sent.transaction.inner()).collect();
        let receipts: Vec<ReceiptEnvelope> = transactions.iter().map(DevTransaction::receipt).collect();
        let chance = [frame.seed.to_be_bytes(), frame.forks.to_be_bytes(), frame.number.to_be_bytes()].concat();
        let header = Header {
            parent_hash: frame.parent_hash,
            beneficiary: MINER,
            state_root: EMPTY_ROOT_HASH,
            transactions_root: calculate_transaction_root(&sent),
            receipts_root: calculate_receipt_root(&receipts),
            logs_bloom: logs_bloom(transactions.iter().flat_map(|transaction| &transaction.logs)),
            number: frame.number,
            gas_limit: frame.gas_limit,
            gas_used: transactions.last().map_or(0, |last| last.cumulative_gas_used),
            timestamp: frame.timestamp,
            mix_hash: keccak256(chance),
            base_fee_per_gas: Some(frame.base_fee),
            ..Header::default()
        };
        DevBlock { hash: header.hash_slow(), header, transactions }
    }

    /// Its height.
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// Where it is.
    pub fn position(&self) -> Position {
        Position { height: Height(self.number()), hash: self.hash.0 }
    }

    /// What each of its transactions pays per gas beside the tip.
    pub fn base_fee(&self) -> u64 {
        // Every block here has one; the type allows for chains before EIP-1559.
        self.header.base_fee_per_gas.unwrap_or(0)
    }

    /// What its transactions emitted, in order.
    pub fn logs(&self) -> impl Iterator<Item = &Log> {
        self.transactions.iter().flat_map(|transaction| &transaction.logs)
    }

    /// The price that a transaction pays per gas in it.
    pub(super) fn tip(&self, transaction: &DevTransaction) -> u128 {
        transaction.sent.transaction.effective_tip_per_gas(self.base_fee()).unwrap_or(0)
    }
}
