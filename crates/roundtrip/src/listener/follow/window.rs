//! The blocks that a follower remembers: from one that is surely final up to the last
//! one read. Lost with the process, and read again after a start.

use std::collections::{HashMap, VecDeque};

use super::source::{Answered, SourceBlock};
use crate::words::{Height, OccurrenceId, Position, RequestId};

/// A block that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) at: Position,
    /// What it shows, in its order.
    pub(super) shown: Vec<(OccurrenceId, RequestId)>,
    /// What it shows to be answered.
    pub(super) answered: Vec<Answered>,
}

impl Link {
    pub(super) fn of(block: &SourceBlock) -> Link {
        let shown = block.requests.iter().map(|request| (request.occurrence, request.id)).collect();
        Link { at: block.at, shown, answered: block.answered.clone() }
    }
}

/// The blocks read since the base, of which those above `finalized` may still go.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    /// What was read up to, final when it was written down; `None` before the first block.
    base: Option<Position>,
    /// Whether the source was seen to stand by the base.
    pub(super) checked: bool,
    /// Above it every block is here; at or below it, those that show nothing may be missing.
    links: VecDeque<Link>,
    finalized: Option<Height>,
    places: HashMap<OccurrenceId, Height, foldhash::fast::RandomState>,
}

impl Window {
    /// Nothing but the base is known.
    pub(super) fn from(base: Option<Position>) -> Window {
        Window { base, checked: base.is_none(), finalized: base.map(|base| base.height), ..Window::default() }
    }

    /// The lowest height that is remembered; `first` if nothing was read.
    pub(super) fn start(&self, first: Height) -> Height {
        let lowest = self.links.front().map_or(first, |link| link.at.height);
        self.base.map_or(lowest, |base| Height(base.height.0.saturating_add(1)))
    }

    /// The last block read.
    pub(super) fn tip(&self) -> Option<Position> {
        self.links.back().map(|link| link.at).or(self.base)
    }

    /// The next block to read; `first` if none was.
    pub(super) fn next(&self, first: Height) -> Height {
        self.tip().map_or(first, |tip| Height(tip.height.0.saturating_add(1)))
    }

    /// The lowest height above this block, or of all that was read.
    pub(super) fn next_after(&self, block: Option<Position>) -> Height {
        let first = self.links.front().map_or(Height(0), |link| link.at.height);
        block.map_or(first, |block| Height(block.height.0.saturating_add(1)))
    }

    /// Up to where no block that was read can go.
    pub(super) fn finalized(&self) -> Option<Height> {
        self.finalized
    }

    /// Whether nothing at this height can go.
    pub(super) fn is_final(&self, height: Height) -> bool {
        self.finalized.is_some_and(|finalized| height <= finalized)
    }

    /// Nothing at or below this height can go from now on; answers whether that is news.
    pub(super) fn raise(&mut self, height: Height) -> bool {
        let news = !self.is_final(height);
        self.finalized = self.finalized.max(Some(height));
        news
    }

    /// The newest final block that was read.
    pub(super) fn mark(&self) -> Option<Position> {
        self.finalized.and_then(|finalized| self.at_or_below(finalized))
    }

    /// The newest known block that is not above this height.
    pub(super) fn at_or_below(&self, height: Height) -> Option<Position> {
        let above = self.links.partition_point(|link| link.at.height <= height);
        let link = above.checked_sub(1).and_then(|at| self.links.get(at)).map(|link| link.at);
        link.or(self.base.filter(|base| base.height <= height))
    }

    /// The known block at this very height.
    pub(super) fn at(&self, height: Height) -> Option<Position> {
        self.at_or_below(height).filter(|at| at.height == height)
    }

    /// Where an occurrence is, among the blocks that were read.
    pub(super) fn place_of(&self, occurrence: &OccurrenceId) -> Option<Height> {
        self.places.get(occurrence).copied()
    }

    pub(super) fn links(&self) -> impl DoubleEndedIterator<Item = &Link> {
        self.links.iter()
    }

    /// What the blocks above one height, up to another, show to be answered.
    pub(super) fn answered(&self, after: Option<Height>, to: Height) -> Vec<Answered> {
        let first = self.links.partition_point(|link| after.is_some_and(|after| link.at.height <= after));
        let passed = self.links.range(first..).take_while(|link| link.at.height <= to);
        passed.flat_map(|link| link.answered.iter().cloned()).collect()
    }

    /// How many heights lie between the base and this one.
    pub(super) fn depth_of(&self, height: Height) -> u64 {
        let below = self.base.map(|base| base.height).or(self.links.front().map(|link| link.at.height));
        below.map_or(0, |below| height.0.saturating_sub(below.0))
    }

    /// Another block was read.
    pub(super) fn push(&mut self, link: Link) {
        debug_assert!(self.tip().is_none_or(|tip| tip.height < link.at.height), "blocks are read upwards");
        self.places.extend(link.shown.iter().map(|(occurrence, _)| (*occurrence, link.at.height)));
        self.links.push_back(link);
    }

    /// Forgets the blocks above this one, which a reorg took away, or all of them;
    /// answers what they showed.
    pub(super) fn back_to(&mut self, ancestor: Option<Height>) -> Vec<OccurrenceId> {
        let mut gone = Vec::new();
        while let Some(link) = self.links.pop_back_if(|link| ancestor.is_none_or(|height| link.at.height > height)) {
            gone.extend(self.forget(&link));
        }
        gone
    }

    /// Forgets blocks up to this height, where all is settled.
    pub(super) fn prune(&mut self, height: Height) {
        while let Some(link) = self.links.pop_front_if(|link| link.at.height <= height) {
            self.forget(&link);
            self.base = Some(link.at);
        }
    }

    fn forget(&mut self, link: &Link) -> Vec<OccurrenceId> {
        let here = |occurrence: &&OccurrenceId| self.places.get(*occurrence) == Some(&link.at.height);
        let gone: Vec<OccurrenceId> =
            link.shown.iter().map(|(occurrence, _)| occurrence).filter(here).copied().collect();
        gone.iter().for_each(|occurrence| {
            self.places.remove(occurrence);
        });
        gone
    }
}
