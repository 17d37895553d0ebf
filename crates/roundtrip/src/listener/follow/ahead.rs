//! Fetching ahead: final blocks do not change, so those that follow are asked for while others
//! are stored.
//!
//! ```text
//!   stored ◀── taken ◀── [ fetched or under way, RANGES_MAX at the most ] ◀── source
//! ```
//!
//! Two ranges are under way at a time, so that the source is at work while an answer of it is
//! read. A source that answers less than it is asked for makes the guess where the next range
//! begins a wrong one: then only one is, from where the answer ended.
//!
//! Failure modes: one that failed is forgotten with all that follow it, and asked for again by
//! whoever needs it. All of them end with the follower.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::source::{BlockSource, SourceBlock, SourceError};
use crate::words::Height;

/// Most ranges that are fetched and not stored.
const RANGES_MAX: usize = 2;

/// A range that is asked for.
struct Fetching {
    from: Height,
    to: Height,
    task: JoinHandle<Result<Vec<SourceBlock>, SourceError>>,
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The ranges that are asked for, each beginning where the one before it ends.
#[derive(Default)]
pub(super) struct Ahead(VecDeque<Fetching>);

impl Ahead {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The blocks from this height on, and up to where they were asked for, if they are here
    /// or on their way.
    pub(super) async fn take(&mut self, from: Height) -> Option<(Height, Vec<SourceBlock>)> {
        let fetched = match self.0.pop_front() {
            Some(mut first) if first.from == from => {
                (&mut first.task).await.ok().and_then(Result::ok).map(|blocks| (first.to, blocks))
            }
            _ => None,
        };
        if fetched.is_none() {
            self.clear();
        }
        fetched
    }

    /// Asks for what follows the last answer, as far as it is final: `read` is how far it
    /// went, and how far it should have.
    pub(super) fn top_up(
        &mut self,
        source: &Arc<dyn BlockSource>,
        read: (Height, Height),
        finalized: Height,
        range: u64,
    ) {
        let (read_to, asked_to) = read;
        let mut next = Height(read_to.0.saturating_add(1));
        if self.0.front().is_some_and(|first| first.from != next) {
            self.clear();
        }
        let most = if read_to < asked_to { 1 } else { RANGES_MAX };
        next = self.0.back().map_or(next, |last| Height(last.to.0.saturating_add(1)));
        while self.0.len() < most && next <= finalized {
            let (from, to) = (next, Height(next.0.saturating_add(range.max(1) - 1)).min(finalized));
            let source = source.clone();
            let task = tokio::spawn(async move { source.blocks(from, to).await });
            self.0.push_back(Fetching { from, to, task });
            next = Height(to.0.saturating_add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::Mutex;

    use super::super::source::{SourceFuture, Tips};
    use super::*;
    use crate::words::{Position, UnixMs};

    /// Answers at most so many blocks, and writes down what it was asked for.
    struct Short(u64, Mutex<Vec<(u64, u64)>>);

    impl BlockSource for Short {
        fn tips(&self) -> SourceFuture<'_, Tips> {
            Box::pin(async { Err(SourceError::Unreachable("nobody asks".into())) })
        }

        fn blocks(&self, from: Height, to: Height) -> SourceFuture<'_, Vec<SourceBlock>> {
            self.1.lock().unwrap().push((from.0, to.0));
            let block = |height| SourceBlock {
                at: Position { height: Height(height), hash: [0; 32] },
                parent: [0; 32],
                time: UnixMs(0),
                requests: Vec::new(),
                answered: Vec::new(),
            };
            let last = to.0.min(from.0 + self.0 - 1);
            Box::pin(async move {
                match self.0 {
                    0 => Err(SourceError::Unreachable("nothing".into())),
                    _ => Ok((from.0..=last).map(block).collect()),
                }
            })
        }
    }

    /// Reads up to the end; answers what was asked for.
    async fn read(answers: u64, finalized: u64) -> Vec<(u64, u64)> {
        let short = Arc::new(Short(answers, Mutex::default()));
        let source: Arc<dyn BlockSource> = short.clone();
        let (mut ahead, mut from) = (Ahead::default(), Height(1));
        while from.0 <= finalized {
            let to = Height(from.0 + 9).min(Height(finalized));
            let (to, blocks) = match ahead.take(from).await {
                Some(fetched) => fetched,
                None => (to, source.blocks(from, to).await.unwrap()),
            };
            assert_eq!(blocks[0].at.height, from);
            let read_to = blocks.last().unwrap().at.height;
            ahead.top_up(&source, (read_to, to), Height(finalized), 10);
            assert!(ahead.0.len() <= RANGES_MAX);
            from = Height(read_to.0 + 1);
        }
        short.1.lock().unwrap().clone()
    }

    #[tokio::test]
    async fn every_range_is_asked_for_once() {
        assert_eq!(read(10, 35).await, [(1, 10), (11, 20), (21, 30), (31, 35)]);
    }

    #[tokio::test]
    async fn a_short_answer_is_followed_from_where_it_ended() {
        let asked = read(4, 22).await;
        let starts: Vec<u64> = asked.iter().map(|(from, _)| *from).collect();
        assert_eq!(starts, [1, 5, 9, 13, 17, 21], "one at a time, and none in vain");
    }

    #[tokio::test]
    async fn what_failed_and_what_follows_it_is_forgotten() {
        let source: Arc<dyn BlockSource> = Arc::new(Short(0, Mutex::default()));
        let mut ahead = Ahead::default();
        ahead.top_up(&source, (Height(10), Height(10)), Height(99), 10);
        assert_eq!(ahead.0.len(), RANGES_MAX);
        assert!(ahead.take(Height(11)).await.is_none() && ahead.is_empty());
        ahead.top_up(&source, (Height(10), Height(10)), Height(99), 10);
        assert!(ahead.take(Height(12)).await.is_none() && ahead.is_empty(), "it is of other heights");
    }
}
