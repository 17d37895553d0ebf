//! What one answer sees of the chain: all of it, or as it was some blocks ago.

use std::sync::Arc;

use alloy::eips::{BlockId, BlockNumberOrTag};
use alloy::primitives::B256;

use super::{Fault, SERVER_ERROR};
use crate::testkit::devchain::block::DevBlock;
use crate::testkit::devchain::ledger::Ledger;

/// The chain up to a block.
pub(super) struct View<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) head: u64,
}

impl<'a> View<'a> {
    pub(super) fn new(ledger: &'a Ledger, lag: u64) -> View<'a> {
        View { ledger, head: ledger.height().saturating_sub(lag) }
    }

    /// The height that is meant, if it is there.
    pub(super) fn number(&self, tag: BlockNumberOrTag) -> Option<u64> {
        let number = match tag {
            BlockNumberOrTag::Latest | BlockNumberOrTag::Pending => self.head,
            BlockNumberOrTag::Finalized => self.ledger.finalized(self.head),
            BlockNumberOrTag::Safe => self.head.saturating_sub(self.ledger.options.finality / 2),
            BlockNumberOrTag::Earliest => 0,
            BlockNumberOrTag::Number(number) => number,
        };
        (number <= self.head).then_some(number)
    }

    pub(super) fn block(&self, number: u64) -> Option<&'a Arc<DevBlock>> {
        let number = usize::try_from(number).ok().filter(|_| number <= self.head)?;
        self.ledger.blocks.get(number)
    }

    /// A block of the chain, or one that was.
    pub(super) fn block_by_hash(&self, hash: &B256) -> Option<&'a Arc<DevBlock>> {
        match self.ledger.height_of(hash) {
            Some(height) => self.block(height),
            None => self.ledger.orphan(hash),
        }
    }

    pub(super) fn block_at(&self, id: BlockId) -> Option<&'a Arc<DevBlock>> {
        match id {
            BlockId::Hash(hash) => self.block_by_hash(&hash.block_hash),
            BlockId::Number(tag) => self.number(tag).and_then(|number| self.block(number)),
        }
    }

    /// Where a transaction is.
    pub(super) fn place(&self, hash: &B256) -> Option<(&'a Arc<DevBlock>, usize)> {
        self.ledger.place(hash).filter(|(block, _)| block.number() <= self.head)
    }

    /// The height whose state is meant; the newest, if nothing else is. There is no state
    /// of blocks that were taken away.
    pub(super) fn height(&self, id: Option<BlockId>) -> Result<u64, Fault> {
        let unknown = || Fault::new(SERVER_ERROR, "header not found");
        match id {
            None => Ok(self.head),
            Some(BlockId::Number(tag)) => self.number(tag).ok_or_else(unknown),
            Some(BlockId::Hash(hash)) => match self.block_by_hash(&hash.block_hash) {
                None => Err(Fault::new(SERVER_ERROR, "header for hash not found")),
                Some(block) if self.ledger.height_of(&block.hash).is_none() => {
                    Err(Fault::new(SERVER_ERROR, "hash is not currently canonical"))
                }
                Some(block) => Ok(block.number()),
            },
        }
    }
}
