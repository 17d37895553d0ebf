//! `eth_feeHistory`.

use std::sync::Arc;

use alloy::eips::BlockNumberOrTag;
use alloy::primitives::U64;
use alloy::rpc::types::FeeHistory;
use serde_json::Value;

use super::view::View;
use super::{Fault, INVALID_PARAMS, SERVER_ERROR, shown};
use crate::testkit::devchain::block::DevBlock;

/// How many blocks one answer covers.
const HISTORY_MAX: u64 = 1_024;
/// How many percentiles one answer has.
const PERCENTILES_MAX: usize = 100;

/// Base fees, the use of gas, and what was paid to the miner.
pub(super) fn history(
    view: &View<'_>,
    count: U64,
    newest: BlockNumberOrTag,
    percentiles: Option<Vec<f64>>,
) -> Result<Value, Fault> {
    let percentiles = percentiles.unwrap_or_default();
    let ordered = percentiles.is_sorted() && percentiles.iter().all(|percent| (0.0..=100.0).contains(percent));
    if !ordered || percentiles.len() > PERCENTILES_MAX {
        return Err(Fault::new(INVALID_PARAMS, "invalid reward percentile"));
    }
    let beyond = || Fault::new(SERVER_ERROR, "request beyond head block");
    let newest = view.number(newest).ok_or_else(beyond)?;
    let count = count.to::<u64>().min(HISTORY_MAX).min(newest + 1);
    let oldest = newest + 1 - count;
    let blocks: Vec<&Arc<DevBlock>> = (oldest..=newest).filter_map(|number| view.block(number)).collect();
    let next = view.block(newest + 1).map_or(view.ledger.base_fee, |next| next.base_fee());
    let base_fees = blocks.iter().map(|block| block.base_fee()).chain([next]).map(u128::from);
    let used = |block: &&Arc<DevBlock>| ratio(block.header.gas_used, block.header.gas_limit);
    let rewards = blocks.iter().map(|block| rewards(block, &percentiles)).collect();
    shown(FeeHistory {
        base_fee_per_gas: base_fees.collect(),
        gas_used_ratio: blocks.iter().map(used).collect(),
        oldest_block: oldest,
        reward: (!percentiles.is_empty()).then_some(rewards),
        ..FeeHistory::default()
    })
}

#[allow(clippy::cast_precision_loss, reason = "a ratio for display; gas is far below 2^53")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// For each percentile of the block's gas, from the cheapest, the tip that was paid there.
fn rewards(block: &DevBlock, percentiles: &[f64]) -> Vec<u128> {
    let mut tips: Vec<(u128, u64)> =
        block.transactions.iter().map(|transaction| (block.tip(transaction), transaction.gas_used)).collect();
    tips.sort_unstable();
    let reward = |percent: &f64| {
        let mut used = 0;
        let reached = tips.iter().find(|(_, gas)| {
            used += gas;
            ratio(used, block.header.gas_used) * 100.0 >= *percent
        });
        reached.or(tips.last()).map_or(0, |(tip, _)| *tip)
    };
    percentiles.iter().map(reward).collect()
}
