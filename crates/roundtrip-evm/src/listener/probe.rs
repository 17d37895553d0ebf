//! Whether a node offers what a listener needs, found out before it is needed.

use roundtrip::words::Height;

use super::node::Node;
use super::watch::Watch;
use crate::rpc::Finality;

/// Something that would keep a listener from its work, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The node does not answer, or is on another chain.
    #[error("{why}")]
    NoUse {
        /// Which node.
        node: String,
        /// Why, by the name of the node.
        why: String,
    },
    /// The node does not know which block is final.
    #[error("{node} does not say which block is {finality:?} ({why}): set a depth instead, or use another node")]
    NoFinality {
        /// Which node.
        node: String,
        /// What was asked for.
        finality: Finality,
        /// What it says.
        why: String,
    },
    /// The first block to read is not there yet.
    #[error("the first block to read is {}, and the newest of {node} is {}: correct from_block or the URL", from.0, head.0)]
    Future {
        /// Which node.
        node: String,
        /// The first block to read.
        from: Height,
        /// The newest block.
        head: Height,
    },
    /// The node does not show the first block to read, or its logs.
    #[error("{node}: {why}")]
    Pruned {
        /// Which node.
        node: String,
        /// The first block to read.
        from: Height,
        /// What it says, and what to do.
        why: String,
    },
    /// The node does not show receipts, so that a doubted block cannot be settled by it.
    #[error("{node} does not show a block's receipts ({why}): give a second URL, or use another node")]
    NoReceipts {
        /// Which node.
        node: String,
        /// What it says.
        why: String,
    },
    /// The WebSocket does not take subscriptions.
    #[error("{node} takes no subscriptions ({why}): correct its URL, or leave it to polling")]
    NoSubscriptions {
        /// Which node.
        node: String,
        /// What it says.
        why: String,
    },
}

/// What is wrong with one node.
pub(super) async fn probe(
    node: &Node,
    chain_id: u64,
    finality: Finality,
    from: Height,
    watches: &[Watch],
) -> Vec<Trouble> {
    let name = || node.endpoint.rpc.name().to_owned();
    if let Err(error) = node.endpoint.on_chain(chain_id).await {
        return vec![Trouble::NoUse { node: name(), why: error.to_string() }];
    }
    let head = match node.endpoint.rpc.head().await {
        Ok(head) => head,
        Err(error) => return vec![Trouble::NoUse { node: name(), why: node.endpoint.failed(error).to_string() }],
    };
    let mut troubles = Vec::new();
    if let Err(error) = node.endpoint.rpc.finalized(&head, finality).await {
        troubles.push(Trouble::NoFinality { node: name(), finality, why: error.to_string() });
    }
    // The block after the newest is there as soon as it is.
    if from.0 > head.at.height.0.saturating_add(1) {
        troubles.push(Trouble::Future { node: name(), from, head: head.at.height });
    } else if from <= head.at.height
        && let Err(error) = node.read(from, from, watches).await
    {
        troubles.push(Trouble::Pruned { node: name(), from, why: error.to_string() });
    }
    if let Err(error) = node.block_logs(&head).await {
        troubles.push(Trouble::NoReceipts { node: name(), why: error.to_string() });
    }
    troubles
}
