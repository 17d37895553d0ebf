//! What a transaction asks for, for whoever knows its hash and nothing else; and the transaction that asked.

use alloy::primitives::B256;
use roundtrip::listener::SourceError;
use roundtrip::store::op::NewRequest;
use roundtrip::words::{Height, OccurrenceId};

use super::logs::WireLog;
use super::source::EvmSource;

/// A transaction in a block, and what its events ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The block's height.
    pub height: Height,
    /// The requests, as a listener makes them.
    pub requests: Vec<NewRequest>,
}

impl EvmSource {
    /// The transaction of the block at this height whose event is this occurrence; nothing if the
    /// block does not show it, such as one that a reorg put in its place.
    pub async fn asking(&self, height: Height, shown: OccurrenceId) -> Result<Option<B256>, SourceError> {
        let logs = self.logs_at(height).await?;
        let mut of_each = logs.chunk_by(|one, next| one.transaction_hash == next.transaction_hash);
        let asks = |logs: &&[WireLog]| self.asks(logs).iter().any(|request| request.occurrence == shown);
        Ok(of_each.find(asks).and_then(|logs| logs.first()).map(|log| log.transaction_hash))
    }

    /// What a transaction asks for; nothing if it is in no block. Ids are made of what its
    /// receipt shows, so no index of transactions is needed to find its requests. The first node
    /// that answers is believed: nothing is stored of it.
    pub async fn asked_by(&self, transaction: B256) -> Result<Option<Asked>, SourceError> {
        let logs = self.first(self.in_order(), |node| Box::pin(node.logs_of(transaction))).await?;
        Ok(logs.map(|(height, logs)| Asked { height, requests: self.asks(&logs) }))
    }
}
