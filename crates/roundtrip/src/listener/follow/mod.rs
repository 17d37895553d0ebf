//! Following a chain: reads blocks into the inbox, and tells the store what became of them.
//!
//! ```text
//!   seats ──▶ tips ──▶ look ──▶ read ──▶ join ──▶ admit (stored, cursor moves) ──▶ amend (the lead)
//!                       │                 │
//!                       └── fork ─────────┴──▶ back to the common block, then read again
//! ```
//!
//! Final blocks are read a second time, now and then, in case the source hid something.
//!
//! The cursor is the newest *final* block up to which everything is stored, and every
//! admission moves its version. So no reorg ever touches it, and after a start the blocks
//! above it are read again: what is known is recognised by its occurrence. Meanwhile the
//! blocks above it are remembered, and a reorg goes back to where the chains part.
//!
//! One follower at a time leads what an origin feeds to a route, and amends its requests. How far it got is a cursor
//! of its own, named after route and origin: everything on the chain up to there is final in
//! the store too. Whoever leads next starts there, so that it knows of every occurrence that
//! is not final in the store whether it is on the chain.
//!
//! Failure modes: a source that does not answer, or lags behind, is waited for. A route that
//! is full holds the cursor; the lead goes on amending, which may make room. One request that
//! nobody could work on, or that the store can never take, is stored as a dead letter with
//! its reason. A chain that takes back what was final, or more than `reorg_max` blocks, halts
//! this follower, with what happened and what to do; others go on. A store that was rolled
//! back stops it too.

mod again;
mod ahead;
mod decide;
mod intake;
mod lead;
mod source;
mod window;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use source::{Answered, BlockSource, SourceBlock, SourceError, SourceFuture, SourceNode, Tips};

use again::Again;
use ahead::Ahead;
use decide::{Joined, Reach, Start, Step};
use lead::Leads;
use window::Window;

use super::Cursor;
use crate::clock::Clock;
use crate::persist;
use crate::station::{Shutdown, StationError};
use crate::store::{ReadExt, Store, StoreError};
use crate::words::{ADMIT_MAX, Height, HolderName, ListenerName, OriginName, Position, RouteName, UnixMs};

/// How many times in a row the wait for a silent source doubles.
const DOUBLINGS_MAX: u32 = 5;

/// How a follower follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerOptions {
    /// The first block to read, where there is no cursor yet.
    pub from_block: Height,
    /// Most blocks in one read.
    pub range: u64,
    /// Most blocks that are remembered because finality has not come; beyond, nothing
    /// more is read until it does.
    pub window_max: u64,
    /// The deepest reorg that is followed; a deeper one, though nothing final was taken back,
    /// stops the listener until a person has looked.
    pub reorg_max: u64,
    /// How long a route's seat is taken for; a dead lead keeps amendments waiting for so long.
    pub seat_ms: u64,
    /// How often the lead looks through the store for occurrences that others brought and
    /// that the chain does not show.
    pub relist_ms: u64,
    /// How often final blocks are read a second time, in case the source hid something.
    pub again_ms: u64,
    /// Most blocks that are; of more, the newest. 0 for no second pass.
    pub again_max: u64,
    /// How often to look for new blocks.
    pub poll: Duration,
}

impl Default for FollowerOptions {
    fn default() -> Self {
        FollowerOptions {
            from_block: Height(0),
            range: 100,
            window_max: 1 << 17,
            reorg_max: u64::MAX,
            seat_ms: 15_000,
            relist_ms: 600_000,
            again_ms: 600_000,
            again_max: 10_000,
            poll: Duration::from_millis(500),
        }
    }
}

/// What a follower has done since its start, for whoever watches it.
#[derive(Debug, Default)]
pub struct FollowerStats {
    blocks: AtomicU64,
    reorgs: AtomicU64,
    quarantined: AtomicU64,
    missed: AtomicU64,
    read_to: AtomicU64,
    read_time_ms: AtomicU64,
    head: AtomicU64,
    looked_at_ms: AtomicU64,
    finalized: AtomicU64,
    stall: Mutex<Option<Stall>>,
}

/// Why a follower does not get on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stall {
    /// It waits for something, and goes on by itself: a source that is silent or lags behind, a
    /// route without room.
    Waits(String),
    /// It stopped until a person has looked.
    Halted(String),
}

impl FollowerStats {
    /// How many blocks were read; one that is read again counts again.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// How many reorgs were seen.
    pub fn reorgs(&self) -> u64 {
        self.reorgs.load(Ordering::Relaxed)
    }

    /// How many requests were stored as dead letters, because nobody could work on them as
    /// they are. Every one is in the log, at level error; this should be 0.
    pub fn quarantined(&self) -> u64 {
        self.quarantined.load(Ordering::Relaxed)
    }

    /// How many requests the source did not show at first, and only the second pass found.
    /// Every one is in the log, at level error; this should be 0.
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// The last block that was read.
    pub fn read_to(&self) -> Height {
        Height(self.read_to.load(Ordering::Relaxed))
    }

    /// The time of that block, by its chain; 1970 before the first.
    pub fn read_time(&self) -> UnixMs {
        UnixMs(self.read_time_ms.load(Ordering::Relaxed))
    }

    /// The newest final block that the source named.
    pub fn finalized(&self) -> Height {
        Height(self.finalized.load(Ordering::Relaxed))
    }

    /// The newest block that the source named; 0 before it named one.
    pub fn head(&self) -> Height {
        Height(self.head.load(Ordering::Relaxed))
    }

    /// When the source last named it, by the clock here; 1970 before the first time.
    pub fn looked_at(&self) -> UnixMs {
        UnixMs(self.looked_at_ms.load(Ordering::Relaxed))
    }

    /// Why it does not get on; nothing, if it does.
    pub fn stall(&self) -> Option<Stall> {
        self.stall.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, stall: Option<Stall>) {
        *self.stall.lock().unwrap_or_else(PoisonError::into_inner) = stall;
    }
}

/// The station that follows one origin for some routes.
///
/// Dropping its future is a crash: what was admitted is stored, and what was not is read
/// again by whoever follows next.
pub struct Follower {
    /// Where requests go.
    pub store: Arc<dyn Store>,
    /// Where blocks come from.
    pub source: Arc<dyn BlockSource>,
    /// What the time is.
    pub clock: Arc<dyn Clock>,
    /// Who leads; unique to a process and its start.
    pub holder: HolderName,
    /// Whose cursor moves.
    pub listener: ListenerName,
    /// Whose heights the blocks have.
    pub origin: OriginName,
    /// The routes whose requests it may amend.
    pub routes: Vec<RouteName>,
    /// How.
    pub options: FollowerOptions,
    /// What was done so far.
    pub stats: Arc<FollowerStats>,
}

/// Why a round ended early.
enum Halt {
    /// The source is to be asked again later.
    Later(String),
    /// The follower cannot go on.
    Stop(StationError),
}

impl From<SourceError> for Halt {
    fn from(error: SourceError) -> Halt {
        match error {
            SourceError::Unreachable(_) => Halt::Later(error.to_string()),
            SourceError::Violation(_) => halted(error.to_string()),
        }
    }
}

impl From<StoreError> for Halt {
    fn from(error: StoreError) -> Halt {
        Halt::Stop(error.into())
    }
}

/// The chain did what it must not: only this listener is concerned.
fn halted(text: String) -> Halt {
    Halt::Stop(StationError::Halted(text))
}

fn broken(text: String) -> Halt {
    Halt::Stop(StationError::Broken(text))
}

fn rolled_back() -> Halt {
    broken(
        "the store no longer has what this listener was told is stored: it was rolled back, and its lanes have stopped; \
         reconcile the lanes, then start again"
            .to_owned(),
    )
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// There is more to do at once.
    Again,
    /// There is nothing to do for now.
    Rest,
}

/// What a follower knows between two rounds.
struct Known {
    cursor: Option<Cursor>,
    window: Window,
    leads: Leads,
    /// Final blocks that are fetched while others are stored.
    ahead: Ahead,
    tips: Option<Tips>,
    /// The height that the store was last told.
    told: Option<Height>,
    /// Whether it was said that the chain has not come to the first block.
    said_early: bool,
    again: Again,
    /// Most requests in one admission; fewer while a route is full.
    admit_max: usize,
}

impl Follower {
    /// Follows until told to stop, then gives its seats up.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), StationError> {
        let leads = Leads::of(&self.origin, &self.routes)?;
        let (cursor, window) = (None, Window::from(None));
        let again = Again::from(None, self.options.from_block, self.clock.now());
        let admit_max = ADMIT_MAX;
        let mut known = Known {
            cursor,
            window,
            leads,
            ahead: Ahead::default(),
            tips: None,
            told: None,
            said_early: false,
            again,
            admit_max,
        };
        let ended = shutdown.run_until_cancelled(self.rounds(&mut known)).await;
        if let Some(Err(error)) = ended {
            return Err(error);
        }
        self.step_down(&known.leads).await;
        Ok(())
    }

    async fn rounds(&self, known: &mut Known) -> Result<(), StationError> {
        known.cursor = self.cursor(&self.listener).await?;
        known.window = Window::from(known.cursor.map(|cursor| cursor.at));
        let passed = known.cursor.map(|cursor| cursor.at.height);
        known.again = Again::from(passed, self.options.from_block, self.clock.now());
        let mut silent = 0;
        loop {
            match self.run_once(known).await {
                Ok(Pace::Again) => {
                    silent = 0;
                    // Every round gives way, so that a stop is heard in the midst of a long catch-up.
                    tokio::task::yield_now().await;
                    continue;
                }
                Ok(Pace::Rest) => silent = 0,
                Err(Halt::Later(error)) => {
                    silent = DOUBLINGS_MAX.min(silent + 1);
                    self.stats.note(Some(Stall::Waits(error.clone())));
                    tracing::warn!(listener = %self.listener, error, "the chain is looked at again later");
                }
                Err(Halt::Stop(error)) => {
                    tracing::error!(listener = %self.listener, %error, "the listener stops");
                    self.stats.note(Some(Stall::Halted(error.to_string())));
                    return Err(error);
                }
            }
            self.rest(silent).await;
        }
    }

    /// Waits for the next look, which news bring forward unless the source is in trouble.
    async fn rest(&self, silent: u32) {
        let pause = tokio::time::sleep(self.options.poll.saturating_mul(1 << silent));
        if silent > 0 {
            return pause.await;
        }
        tokio::select! {
            () = pause => {}
            () = self.source.news() => {}
        }
    }

    /// One look at the chain: at most one range is read, and the lead amends.
    async fn run_once(&self, known: &mut Known) -> Result<Pace, Halt> {
        self.hold_seats(known).await?;
        // While blocks are fetched ahead, all of them final, the last look is good enough.
        let tips = match known.tips.take().filter(|_| !known.ahead.is_empty()) {
            Some(tips) => tips,
            None => {
                let tips = self.source.tips().await?;
                self.stats.looked_at_ms.store(self.clock.now().0, Ordering::Relaxed);
                tips
            }
        };
        known.tips = Some(tips);
        match decide::start(&known.window, &tips, self.options.from_block) {
            Start::There => {}
            Start::Never(text) => return Err(halted(text)),
            Start::Soon => self.say_early(known, &tips),
        }
        self.stats.head.store(tips.head.height.0, Ordering::Relaxed);
        self.stats.finalized.store(tips.finalized.height.0, Ordering::Relaxed);
        let reach =
            Reach { first: self.options.from_block, range: self.options.range, window_max: self.options.window_max };
        match decide::look(&known.window, &tips, reach) {
            Step::Level => {
                self.stats.note(None);
                self.pass_finality(known, &tips);
                self.move_cursor(known).await?;
                self.amend(known, true).await?;
                self.look_again(known).await?;
                Ok(Pace::Rest)
            }
            Step::Wait(why) => {
                tracing::warn!(listener = %self.listener, head = tips.head.height.0, finalized = tips.finalized.height.0, why, "the listener waits");
                self.stats.note(Some(Stall::Waits(why.to_string())));
                Ok(Pace::Rest)
            }
            Step::Hold => {
                tracing::warn!(listener = %self.listener, head = tips.head.height.0, finalized = tips.finalized.height.0, "finality is too far behind: nothing more is read until it comes");
                self.stats.note(Some(Stall::Waits("finality is too far behind".to_owned())));
                self.pass_finality(known, &tips);
                self.move_cursor(known).await?;
                self.amend(known, false).await?;
                Ok(Pace::Rest)
            }
            Step::Check(at) => self.check(known, at).await,
            Step::Fork => self.go_back(known, &tips).await,
            Step::Violation(text) => Err(halted(text)),
            Step::Read { from, to } => {
                self.pass_finality(known, &tips);
                self.read(known, &tips, from, to).await
            }
        }
    }

    /// Says, once, that the first block is waited for.
    fn say_early(&self, known: &mut Known, tips: &Tips) {
        if !std::mem::replace(&mut known.said_early, true) {
            let (first, head) = (self.options.from_block.0, tips.head.height.0);
            tracing::warn!(listener = %self.listener, first, head, "the first block to read is not there yet, and is waited for: if that is not meant, correct from_block");
        }
    }

    /// The source stands by what was read, as far as its finality goes.
    fn pass_finality(&self, known: &mut Known, tips: &Tips) {
        known.window.checked = true;
        known.leads.changed |= known.window.raise(tips.finalized.height);
    }

    /// Looks whether the last block read, which finality has passed, is on the final chain.
    async fn check(&self, known: &mut Known, at: Position) -> Result<Pace, Halt> {
        if self.hash_at(at.height).await? == Some(at.hash) {
            known.window.checked = true;
            known.leads.changed |= known.window.raise(at.height);
            return Ok(Pace::Again);
        }
        let tips = self.source.tips().await?;
        match known.window.is_final(at.height) {
            true => Err(halted(decide::violation(at, self.hash_at(at.height).await?))),
            false => self.go_back(known, &tips).await,
        }
    }

    async fn hash_at(&self, height: Height) -> Result<Option<[u8; 32]>, Halt> {
        let blocks = self.source.blocks(height, height).await?;
        Ok(blocks.iter().find(|block| block.at.height == height).map(|block| block.at.hash))
    }

    /// Goes back to the newest block that is still there. One that is too old does no harm:
    /// what is read again is recognised.
    async fn go_back(&self, known: &mut Known, tips: &Tips) -> Result<Pace, Halt> {
        let mark = known.window.mark();
        let lowest = known.window.next_after(mark);
        let ancestor = match self.common_above(&known.window, lowest, tips).await? {
            Some(height) => Some(height),
            None => self.still_final(mark).await?,
        };
        let tip = known.window.tip().map(|tip| tip.height.0);
        if let Some(text) = decide::too_deep(known.window.tip(), ancestor, self.options.reorg_max) {
            return Err(halted(text));
        }
        tracing::info!(listener = %self.listener, ?tip, ancestor = ?ancestor.map(|height| height.0), "a reorg");
        self.stats.reorgs.fetch_add(1, Ordering::Relaxed);
        let gone = known.window.back_to(ancestor);
        known.leads.lose(&gone);
        known.ahead.clear();
        Ok(Pace::Again)
    }

    /// The newest block above what is final that was read as it is, looked for from the top.
    async fn common_above(&self, window: &Window, lowest: Height, tips: &Tips) -> Result<Option<Height>, Halt> {
        let mut top = window.tip().map_or(lowest, |tip| tip.height).min(tips.head.height);
        while top >= lowest {
            let from = lowest.max(Height(top.0.saturating_sub(self.options.range.max(1) - 1)));
            let present = self.source.blocks(from, top).await?;
            if let Some(height) = decide::common(window, &present) {
                return Ok(Some(height));
            }
            let Some(below) = from.0.checked_sub(1) else { return Ok(None) };
            top = Height(below);
        }
        Ok(None)
    }

    /// The newest final block, if the source stands by it, as it must.
    async fn still_final(&self, mark: Option<Position>) -> Result<Option<Height>, Halt> {
        let Some(mark) = mark else { return Ok(None) };
        match self.hash_at(mark.height).await? {
            Some(hash) if hash == mark.hash => Ok(Some(mark.height)),
            found => Err(halted(decide::violation(mark, found))),
        }
    }

    /// Reads these heights and stores what they show, while the next ones are fetched.
    async fn read(&self, known: &mut Known, tips: &Tips, from: Height, to: Height) -> Result<Pace, Halt> {
        // A read ahead that failed is made again, and fails loudly then.
        let (to, mut blocks) = match known.ahead.take(from).await {
            Some(fetched) => fetched,
            None => (to, self.source.blocks(from, to).await?),
        };
        let count = match decide::join(&known.window, from, to, &blocks) {
            Joined::Take(count) => count,
            Joined::Fork => return self.go_back(known, tips).await,
            Joined::Violation(text) => return Err(halted(text)),
        };
        blocks.truncate(count);
        let read_to = blocks.last().map_or(from, |block| block.at.height);
        known.ahead.top_up(&self.source, (read_to, to), tips.finalized.height, self.options.range);
        let last = blocks.last().map(|block| (block.at.height, block.time));
        let pace = self.store_blocks(known, blocks).await?;
        if pace == Pace::Rest {
            known.ahead.clear();
        }
        let level = known.window.next(self.options.from_block) > tips.head.height;
        let told = last.filter(|(height, _)| known.window.tip().is_some_and(|tip| tip.height >= *height));
        let told = told.filter(|(height, _)| known.told.is_none_or(|told| *height > told));
        // Asked for at once, both are in one commit.
        let (heard, amended) = tokio::join!(self.tell_height(told), self.amend(known, level));
        known.told = heard?.or(known.told);
        amended?;
        Ok(pace)
    }

    async fn cursor(&self, listener: &ListenerName) -> Result<Option<Cursor>, StoreError> {
        persist::read(|| self.store.cursor(listener.clone())).await
    }
}
