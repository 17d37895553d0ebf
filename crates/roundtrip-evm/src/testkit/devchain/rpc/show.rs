//! Blocks, transactions, receipts and the pool as JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy::consensus::Transaction as _;
use alloy::primitives::B256;
use alloy::rpc::types::{Block, BlockTransactions, Header, Log, Transaction, TransactionInfo, TransactionReceipt};
use serde_json::{Value, json};

use super::view::View;
use super::{Fault, shown};
use crate::testkit::devchain::block::{DevBlock, DevTransaction};
use crate::testkit::devchain::ledger::Ledger;
use crate::testkit::devchain::pool::Waiting;

/// A block, with its transactions or with their hashes.
pub(super) fn block(block: Option<&Arc<DevBlock>>, full: bool) -> Result<Value, Fault> {
    let Some(block) = block else { return Ok(Value::Null) };
    let transactions = match full {
        true => BlockTransactions::Full((0..block.transactions.len()).filter_map(|at| mined(block, at)).collect()),
        false => BlockTransactions::Hashes(block.transactions.iter().map(|there| there.sent.hash).collect()),
    };
    shown(Block::new(Header::new(block.header.clone()), transactions))
}

/// A transaction of the chain, or one that waits.
pub(super) fn transaction(view: &View<'_>, hash: B256) -> Result<Value, Fault> {
    match view.place(&hash) {
        Some((block, index)) => shown(mined(block, index)),
        None => shown(view.ledger.pool.get(&hash).map(|known| waiting(known))),
    }
}

fn mined(block: &DevBlock, index: usize) -> Option<Transaction> {
    let info = TransactionInfo {
        hash: None,
        index: Some(index as u64),
        block_hash: Some(block.hash),
        block_number: Some(block.number()),
        base_fee: Some(block.base_fee()),
        block_timestamp: Some(block.header.timestamp),
    };
    let sent = &block.transactions.get(index)?.sent;
    Some(Transaction::from_transaction(sent.transaction.clone(), info))
}

fn waiting(waiting: &Waiting) -> Transaction {
    Transaction::from_transaction(waiting.transaction.clone(), TransactionInfo::default())
}

/// The receipts of a block.
pub(super) fn receipts(block: &DevBlock) -> Vec<TransactionReceipt> {
    (0..block.transactions.len()).filter_map(|index| receipt(block, index)).collect()
}

/// The receipt of a block's transaction.
pub(super) fn receipt(block: &DevBlock, index: usize) -> Option<TransactionReceipt> {
    let transaction = block.transactions.get(index)?;
    let mut shown = logs(block, index, transaction).into_iter();
    Some(TransactionReceipt {
        // Each consensus log becomes the log that was made from it.
        inner: transaction
            .receipt()
            .map_logs(|log| shown.next().unwrap_or_else(|| Log { inner: log, ..Log::default() })),
        transaction_hash: transaction.sent.hash,
        transaction_index: Some(index as u64),
        block_hash: Some(block.hash),
        block_number: Some(block.number()),
        gas_used: transaction.gas_used,
        effective_gas_price: transaction.gas_price,
        blob_gas_used: None,
        blob_gas_price: None,
        from: transaction.sent.from(),
        to: transaction.sent.transaction.to(),
        contract_address: transaction.created,
    })
}

/// What a block's transaction emitted.
pub(super) fn logs(block: &DevBlock, index: usize, transaction: &DevTransaction) -> Vec<Log> {
    let shown = |(number, log): (u64, &alloy::primitives::Log)| Log {
        inner: log.clone(),
        block_hash: Some(block.hash),
        block_number: Some(block.number()),
        block_timestamp: Some(block.header.timestamp),
        transaction_hash: Some(transaction.sent.hash),
        transaction_index: Some(index as u64),
        log_index: Some(number),
        removed: false,
    };
    (transaction.first_log..).zip(&transaction.logs).map(shown).collect()
}

/// What waits: what could be mined, and what lies above a gap.
pub(super) fn pending_and_queued(ledger: &Ledger) -> (Vec<&Arc<Waiting>>, Vec<&Arc<Waiting>>) {
    let height = ledger.height();
    let next = |account| (account, ledger.pool.next_nonce(account, ledger.state.nonce(account, height)));
    let next: BTreeMap<_, _> = ledger.pool.accounts().into_iter().map(next).collect();
    ledger.pool.all().partition(|waiting| next.get(&waiting.from()).is_some_and(|next| waiting.nonce() < *next))
}

pub(super) fn pool(ledger: &Ledger) -> Result<Value, Fault> {
    let by_account = |part: Vec<&Arc<Waiting>>| {
        let mut accounts: BTreeMap<String, BTreeMap<String, Transaction>> = BTreeMap::new();
        for known in part {
            let account = accounts.entry(known.from().to_string()).or_default();
            account.insert(known.nonce().to_string(), waiting(known));
        }
        accounts
    };
    let (pending, queued) = pending_and_queued(ledger);
    shown(json!({ "pending": by_account(pending), "queued": by_account(queued) }))
}
