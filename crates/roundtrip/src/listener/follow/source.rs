//! What a follower needs of a chain, whatever chain that is.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::store::op::NewRequest;
use crate::words::{Height, Position, RequestId, RouteName, UnixMs};

/// A future that a source hands out.
pub type SourceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, SourceError>> + Send + 'a>>;

/// Why blocks could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Not now; to be tried again.
    #[error("the source gave no answer: {0}")]
    Unreachable(String),
    /// The source says what cannot be; the listener stops loudly.
    #[error("the source says what cannot be: {0}")]
    Violation(String),
}

/// A chain, as a listener sees it. Any call may be answered by another node than the
/// last one: what a node that lags behind says is waited out, never taken for a reorg.
pub trait BlockSource: Send + Sync + 'static {
    /// The newest block, and the newest one beyond any reorg.
    fn tips(&self) -> SourceFuture<'_, Tips>;

    /// The blocks of these heights, inclusive, on the present chain, in order.
    ///
    /// A prefix may be answered, at least one block, never with a hole above the finalized
    /// height. At or below it, blocks that show nothing may be left out, except the last.
    fn blocks(&self, from: Height, to: Height) -> SourceFuture<'_, Vec<SourceBlock>>;

    /// The same once more for final blocks, from elsewhere or by other means where there are
    /// any, for whoever looks whether something was missed.
    fn blocks_again(&self, from: Height, to: Height) -> SourceFuture<'_, Vec<SourceBlock>> {
        self.blocks(from, to)
    }

    /// Ends when there may be something new; a source that cannot tell leaves it to polling.
    /// A hint: it may come for nothing, and may be dropped at any time.
    fn news(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }

    /// The nodes that it is seen by, for whoever watches; none, if it is not by nodes.
    fn nodes(&self) -> Vec<SourceNode> {
        Vec::new()
    }
}

/// A node, as one of those by which a chain is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceNode {
    /// Where it is, less what may be a key.
    pub name: String,
    /// Whether little is held against it: it answered well lately, or was not asked.
    pub healthy: bool,
    /// How long ago it was last asked; nothing, if it never was.
    pub asked: Option<Duration>,
    /// How long ago it last had an answer; nothing, if it never had one.
    pub answered: Option<Duration>,
}

/// How far a chain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tips {
    /// The newest block.
    pub head: Position,
    /// The newest block beyond any reorg.
    pub finalized: Position,
    /// The time of the newest block, by its chain.
    pub time: UnixMs,
}

/// A block, less what is of no interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceBlock {
    /// Where it is, and its hash.
    pub at: Position,
    /// The hash of the block before it.
    pub parent: [u8; 32],
    /// Its time, by its chain.
    pub time: UnixMs,
    /// What it shows, in its order. The follower sets place and standing.
    pub requests: Vec<NewRequest>,
    /// The requests that it shows to be answered, by whomever.
    pub answered: Vec<Answered>,
}

/// A request that somebody has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// On which route it is.
    pub route: RouteName,
    /// Which.
    pub id: RequestId,
}
