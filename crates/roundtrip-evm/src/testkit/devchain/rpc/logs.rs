//! `eth_getLogs`.

use std::sync::Arc;

use alloy::eips::BlockNumberOrTag;
use alloy::rpc::types::{Filter, FilterBlockOption, Log};
use serde_json::Value;

use super::view::View;
use super::{Fault, INVALID_PARAMS, LIMIT_EXCEEDED, SERVER_ERROR, show, shown};
use crate::testkit::devchain::block::DevBlock;

/// The logs that a filter asks for.
pub(super) fn matching(view: &View<'_>, filter: &Filter) -> Result<Value, Fault> {
    let most = view.ledger.options.logs_max.unwrap_or(usize::MAX);
    let mut found: Vec<Log> = Vec::new();
    for block in blocks(view, &filter.block_option)? {
        if !filter.matches_bloom(block.header.logs_bloom) {
            continue;
        }
        for (index, transaction) in block.transactions.iter().enumerate() {
            let logs = show::logs(block, index, transaction);
            found.extend(logs.into_iter().filter(|log| filter.matches(&log.inner)));
        }
        if found.len() > most {
            return Err(Fault::new(LIMIT_EXCEEDED, format!("query returned more than {most} results")));
        }
    }
    shown(found)
}

/// The blocks that are asked for. Beyond the newest there is nothing to begin with, and an
/// end beyond it is the newest; a block that was taken away can be asked for by its hash.
fn blocks<'a>(view: &View<'a>, range: &FilterBlockOption) -> Result<Vec<&'a Arc<DevBlock>>, Fault> {
    let (from, to) = match range {
        FilterBlockOption::AtBlockHash(hash) => {
            let block = view.block_by_hash(hash).ok_or_else(|| Fault::new(SERVER_ERROR, "unknown block"))?;
            return Ok(vec![block]);
        }
        FilterBlockOption::Range { from_block, to_block } => (from_block, to_block),
    };
    let height = |tag: &Option<BlockNumberOrTag>| match tag.unwrap_or(BlockNumberOrTag::Latest) {
        BlockNumberOrTag::Number(number) => number,
        tag => view.number(tag).unwrap_or(view.head),
    };
    let (from, to) = (height(from), height(to));
    if from > view.head {
        return Err(Fault::new(INVALID_PARAMS, "block range extends beyond current head block"));
    }
    if from > to {
        return Err(Fault::new(INVALID_PARAMS, "invalid block range params"));
    }
    Ok((from..=to.min(view.head)).filter_map(|number| view.block(number)).collect())
}
