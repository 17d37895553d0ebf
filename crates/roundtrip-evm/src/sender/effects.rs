//! Which transactions had an effect, as the logs of their blocks show: one call for a
//! block, shared by all lanes, instead of one for each transaction.
//!
//! A transaction that fails leaves no log, so a log of the called contract proves that its
//! transaction is in that block and had its effect. What left none, or is in a block whose
//! logs were not to be had, is looked into by its own receipt.

use std::collections::{BTreeMap, HashMap, HashSet};

use alloy::primitives::{Address, B256};
use roundtrip::words::{AttemptHash, Height, Position};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::heads::View;
use crate::rpc::Rpc;

/// For fewer transactions than this no logs are asked for.
const WORTH_A_CALL: usize = 4;
/// Of how many blocks, from the head down, logs are asked for and remembered.
const BLOCKS_MAX: usize = 32;

/// Reads the logs of the newest blocks, and remembers whose they are.
pub(super) struct Effects {
    /// Whose logs show an effect; with none, no logs are asked for.
    contracts: Vec<Address>,
    blocks: Mutex<BTreeMap<Height, Shown>>,
}

/// What the logs of a block show.
struct Shown {
    hash: [u8; 32],
    transactions: HashSet<AttemptHash>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireLog {
    block_hash: B256,
    transaction_hash: B256,
    #[serde(default)]
    removed: bool,
}

impl Effects {
    pub(super) fn new(contracts: Vec<Address>) -> Effects {
        Effects { contracts, blocks: Mutex::default() }
    }

    /// Those of these transactions that left a log in one of the newest blocks, and where;
    /// none if it is better to ask for each.
    pub(super) async fn of(
        &self,
        rpc: &Rpc,
        view: &View,
        transactions: &[AttemptHash],
    ) -> Option<HashMap<AttemptHash, Position>> {
        if self.contracts.is_empty() || transactions.len() < WORTH_A_CALL {
            return None;
        }
        // Held over the calls, so that lanes that look at once share them.
        let mut blocks = self.blocks.lock().await;
        let newest: Vec<Position> = view.newest(BLOCKS_MAX).collect();
        blocks.retain(|height, shown| newest.contains(&Position { height: *height, hash: shown.hash }));
        let unknown = newest.iter().filter(|at| !blocks.contains_key(&at.height)).copied().collect();
        blocks.extend(self.shown(rpc, unknown).await);
        let place = |transaction: &AttemptHash| {
            let mut shown = blocks.iter().filter(|(_, shown)| shown.transactions.contains(transaction));
            shown.next().map(|(height, shown)| (*transaction, Position { height: *height, hash: shown.hash }))
        };
        Some(transactions.iter().filter_map(place).collect())
    }

    /// What these blocks show, as far as their logs are to be had.
    async fn shown(&self, rpc: &Rpc, blocks: Vec<Position>) -> Vec<(Height, Shown)> {
        let filter = |at: &Position| json!([{"blockHash": B256::from(at.hash), "address": self.contracts}]);
        let params: Vec<Value> = blocks.iter().map(filter).collect();
        let answers = rpc.calls::<_, Vec<WireLog>>("eth_getLogs", &params).await;
        let shown = blocks.into_iter().zip(answers).map(|(at, answer)| {
            let logs = answer.ok()?.into_iter().filter(|log| !log.removed && log.block_hash.0 == at.hash);
            let transactions = logs.map(|log| AttemptHash(log.transaction_hash.0)).collect();
            Some((at.height, Shown { hash: at.hash, transactions }))
        });
        shown.flatten().collect()
    }
}
