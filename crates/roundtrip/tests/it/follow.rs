//! Following a chain that reorganises itself: a scripted source, the memory store, and a
//! clock that only moves when everybody waits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use proptest::prelude::*;
use roundtrip::clock::Clock;
use roundtrip::inbox::{End, Standing, StateKind};
use roundtrip::listener::{
    Answered, BlockSource, Follower, FollowerOptions, FollowerStats, SourceBlock, SourceError, SourceFuture, Stall,
    Tips,
};
use roundtrip::station::{Shutdown, StationError};
use roundtrip::store::op::{Admit, Amendment, Define, NewRequest, Op, Outcome, Prune, Seat};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::{Found, Query, Reply};
use roundtrip::store::{Changes, MemoryStore, Options, ReadExt, Store, StoreExt, StoreFuture, Topic};
use roundtrip::testkit::observed::{Observed, Record};
use roundtrip::testkit::samples::{self, id, listener, occurrence, origin, route};
use roundtrip::words::{Height, HolderName, ListenerName, OriginName, PAYLOAD_BYTES_MAX, Payload, Position, UnixMs};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Longer than a seat is held.
const LONG: Duration = Duration::from_secs(60);
/// A few looks at the chain.
const SHORT: Duration = Duration::from_secs(2);

/// Shows the time of the paused runtime.
struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn now(&self) -> UnixMs {
        UnixMs(1_000_000 + u64::try_from(self.0.elapsed().as_millis()).unwrap())
    }
}

/// An event: which request it shows, and with which content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    n: u64,
    request: u64,
}

/// Event `n`, of a request of its own.
fn event(n: u64) -> Event {
    Event { n, request: n }
}

fn request_of(event: Event) -> NewRequest {
    let payload = Payload::raw(format!("content {}", event.n));
    NewRequest { id: id(event.request), occurrence: occurrence(event.n), payload, ..samples::request(event.n) }
}

/// A chain that a test writes, block by block.
#[derive(Default)]
struct Script {
    blocks: Vec<SourceBlock>,
    finalized: u64,
    mined: u64,
    /// So many calls fail.
    failures: u32,
    /// What the tips are instead.
    tips: Option<(u64, u64)>,
    /// Most blocks in one answer.
    answers: usize,
    /// Leaves out what it may.
    sparse: bool,
    /// Events that are not shown, unless they are asked for again.
    hidden: Vec<u64>,
}

#[derive(Clone)]
struct Chain {
    script: Arc<Mutex<Script>>,
    calls: Arc<AtomicUsize>,
}

impl Chain {
    /// A chain with nothing but its first block, which is final.
    fn new() -> Chain {
        let script = Arc::new(Mutex::new(Script { answers: usize::MAX, ..Script::default() }));
        let chain = Chain { script, calls: Arc::default() };
        chain.mine(&[]);
        chain
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    fn mine(&self, events: &[Event]) {
        self.mine_requests(events.iter().copied().map(request_of).collect());
    }

    fn mine_requests(&self, requests: Vec<NewRequest>) {
        let mut script = self.script();
        script.mined += 1;
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&script.mined.to_be_bytes());
        let height = Height(script.blocks.len() as u64);
        let parent = script.blocks.last().map_or([0; 32], |block| block.at.hash);
        let (at, time) = (Position { height, hash }, UnixMs(height.0));
        script.blocks.push(SourceBlock { at, parent, time, requests, answered: Vec::new() });
    }

    /// A block that shows this request to be answered.
    fn mine_answer(&self, request: u64) {
        self.mine(&[]);
        let answered = Answered { route: route(), id: id(request) };
        self.script().blocks.last_mut().unwrap().answered.push(answered);
    }

    fn mine_empty(&self, count: usize) {
        (0..count).for_each(|_| self.mine(&[]));
    }

    /// Takes back as many blocks as it may, at most so many; answers the events that were in them.
    fn take_back(&self, depth: usize) -> Vec<NewRequest> {
        let mut script = self.script();
        let kept = script.blocks.len().saturating_sub(depth).max(usize::try_from(script.finalized).unwrap() + 1);
        let kept = kept.min(script.blocks.len());
        script.blocks.split_off(kept).into_iter().flat_map(|block| block.requests).collect()
    }

    fn finalize(&self, height: u64) {
        let mut script = self.script();
        let head = script.blocks.len() as u64 - 1;
        script.finalized = script.finalized.max(height).min(head);
    }

    fn finalize_all(&self) {
        self.finalize(u64::MAX);
    }

    fn head(&self) -> u64 {
        self.script().blocks.len() as u64 - 1
    }

    /// Every event on the chain, with its height, in order.
    fn events(&self) -> Vec<(u64, NewRequest)> {
        let script = self.script();
        let all = script.blocks.iter().flat_map(|b| b.requests.iter().map(move |r| (b.at.height.0, r.clone())));
        all.collect()
    }

    fn call(&self) -> Result<MutexGuard<'_, Script>, SourceError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut script = self.script();
        if script.failures > 0 {
            script.failures -= 1;
            return Err(SourceError::Unreachable("a test says so".into()));
        }
        Ok(script)
    }
}

impl BlockSource for Chain {
    fn tips(&self) -> SourceFuture<'_, Tips> {
        Box::pin(async {
            let script = self.call()?;
            let (head, finalized) = script.tips.unwrap_or((script.blocks.len() as u64 - 1, script.finalized));
            let at = |height: u64| script.blocks[usize::try_from(height).unwrap()].at;
            Ok(Tips { head: at(head), finalized: at(finalized), time: UnixMs(head) })
        })
    }

    fn blocks(&self, from: Height, to: Height) -> SourceFuture<'_, Vec<SourceBlock>> {
        Box::pin(async move {
            let script = self.call()?;
            let asked = script.blocks.iter().filter(|block| (from..=to).contains(&block.at.height));
            let mut asked: Vec<SourceBlock> = asked.take(script.answers).cloned().collect();
            let hidden: Vec<_> = script.hidden.iter().map(|&n| occurrence(n)).collect();
            asked.iter_mut().for_each(|block| block.requests.retain(|request| !hidden.contains(&request.occurrence)));
            let Some(last) = asked.last().map(|block| block.at.height) else {
                return Err(SourceError::Unreachable("no such block yet".into()));
            };
            if script.sparse {
                let may_miss = |b: &SourceBlock| b.at.height.0 <= script.finalized && b.at.height != last;
                asked.retain(|block| !block.requests.is_empty() || !may_miss(block));
            }
            Ok(asked)
        })
    }

    fn blocks_again(&self, from: Height, to: Height) -> SourceFuture<'_, Vec<SourceBlock>> {
        Box::pin(async move {
            let script = self.call()?;
            Ok(script.blocks.iter().filter(|block| (from..=to).contains(&block.at.height)).cloned().collect())
        })
    }
}

/// A store whose caller dies at a chosen call: it hears nothing any more.
struct Deadly {
    inner: MemoryStore,
    left: Arc<AtomicUsize>,
    after: bool,
}

impl Store for Deadly {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            if self.left.fetch_sub(1, Ordering::SeqCst) > 1 {
                return self.inner.apply(batch).await;
            }
            self.left.store(1, Ordering::SeqCst);
            if self.after {
                self.inner.apply(batch).await?;
            }
            std::future::pending().await
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.inner.read(query)
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.inner.changes(topic)
    }
}

struct World {
    chain: Chain,
    store: MemoryStore,
    clock: Arc<RuntimeClock>,
    options: FollowerOptions,
    started: usize,
}

/// A follower at work.
struct Running {
    task: JoinHandle<Result<(), StationError>>,
    shutdown: Shutdown,
    stats: Arc<FollowerStats>,
}

impl Running {
    /// It dies.
    async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.is_err_and(|error| error.is_cancelled()), "it was still running");
    }

    /// It is told to stop.
    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// It stops by itself, and says why.
    async fn stopped(self) -> String {
        tokio::time::timeout(LONG, self.task).await.unwrap().unwrap().unwrap_err().to_string()
    }
}

impl World {
    async fn new() -> World {
        World::with(samples::policy()).await
    }

    async fn with(policy: RoutePolicy) -> World {
        let clock = Arc::new(RuntimeClock(Instant::now()));
        let store = MemoryStore::new(clock.clone(), Options::default());
        let defined = store.apply_one(Define { route: route(), policy }).await.unwrap();
        assert!(defined.holds());
        let options = FollowerOptions { from_block: Height(1), range: 3, ..FollowerOptions::default() };
        World { chain: Chain::new(), store, clock, options, started: 0 }
    }

    fn start(&mut self) -> Running {
        self.start_on(Arc::new(self.store.clone()), listener())
    }

    fn start_on(&mut self, store: Arc<dyn Store>, listener: ListenerName) -> Running {
        let chain = self.chain.clone();
        self.start_as(store, listener, origin(), chain)
    }

    fn start_as(&mut self, store: Arc<dyn Store>, listener: ListenerName, origin: OriginName, chain: Chain) -> Running {
        self.started += 1;
        let stats = Arc::<FollowerStats>::default();
        let follower = Follower {
            store,
            source: Arc::new(chain),
            clock: self.clock.clone(),
            holder: HolderName::new(&format!("holder-{}", self.started)).unwrap(),
            listener,
            origin,
            routes: vec![route()],
            options: self.options,
            stats: stats.clone(),
        };
        let shutdown = Shutdown::new();
        Running { task: tokio::spawn(follower.run(shutdown.clone())), shutdown, stats }
    }

    /// Starts one whose calls of the store are recorded.
    fn start_observed(&mut self) -> (Running, Record) {
        let (observed, record) = Observed::new(self.store.clone());
        (self.start_on(Arc::new(observed), listener()), record)
    }

    /// The height, standing and content of a live request, or its end.
    async fn sight(&self, n: u64) -> Sight {
        match self.store.get(id(n)).await.unwrap() {
            None => Sight::Nothing,
            Some(Found::Ended(receipt)) => Sight::Ended(receipt.end),
            Some(Found::Live(view, bodies)) => {
                let current = view.occurrences.iter().filter(|shown| shown.revision == view.revision);
                let best = current.max_by_key(|shown| shown.standing).unwrap();
                let content = String::from_utf8(bodies.payload.bytes.to_vec()).unwrap();
                Sight::Live(best.place.as_ref().unwrap().height.0, view.standing, content)
            }
        }
    }

    async fn cursor(&self) -> Option<u64> {
        self.store.cursor(listener()).await.unwrap().map(|cursor| cursor.at.height.0)
    }

    /// Whether the store says of every request what the chain, all of it final, says.
    async fn agrees(&self, requests: u64) -> Result<(), String> {
        let mut newest = BTreeMap::new();
        for (height, request) in self.chain.events() {
            newest.insert(request.id, (height, String::from_utf8(request.payload.bytes.to_vec()).unwrap()));
        }
        for n in 0..requests {
            let expected =
                newest.get(&id(n)).map(|(height, content)| Sight::Live(*height, Standing::Final, content.clone()));
            let found = self.sight(n).await;
            let agrees = match &expected {
                Some(expected) => found == *expected,
                None => matches!(found, Sight::Nothing | Sight::Ended(End::Withdrawn)),
            };
            if !agrees {
                return Err(format!("request {n}: the chain says {expected:?}, the store {found:?}"));
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Sight {
    Nothing,
    Live(u64, Standing, String),
    Ended(End),
}

fn live(n: u64, height: u64, standing: Standing) -> Sight {
    Sight::Live(height, standing, format!("content {n}"))
}

/// Lets everybody work until there is nothing to do for so long.
async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

#[tokio::test(start_paused = true)]
async fn it_catches_up_and_passes_empty_blocks() {
    let mut world = World::new().await;
    for n in 1..=10 {
        world.chain.mine(&[event(n)]);
        world.chain.mine_empty(7);
    }
    world.chain.finalize(70);
    world.chain.script().sparse = true;
    let running = world.start();
    pass(SHORT).await;
    world.agrees(9).await.unwrap();
    assert_eq!(world.sight(10).await, live(10, 73, Standing::Seen));
    assert_eq!(world.cursor().await, Some(70));
    assert_eq!(running.stats.read_to(), Height(80));
    world.chain.mine_empty(30);
    world.chain.finalize_all();
    pass(SHORT).await;
    world.agrees(11).await.unwrap();
    assert_eq!(world.cursor().await, Some(110), "empty blocks move it");
    let origins = world.store.origins().await.unwrap();
    assert_eq!(origins[0].head.map(|head| (head.height, head.at)), Some((Height(110), UnixMs(110))), "and the height");
    running.stop().await;
    assert!(
        world.store.seat(Seat::Feed(route(), origin())).await.unwrap().unwrap().until <= world.clock.now(),
        "the seat is free"
    );
}

#[tokio::test(start_paused = true)]
async fn it_starts_where_it_is_told_and_then_where_it_was() {
    let mut world = World::new().await;
    world.chain.mine(&[event(1)]);
    world.chain.mine_empty(4);
    world.chain.mine(&[event(2)]);
    world.chain.finalize(3);
    world.options.from_block = Height(5);
    let running = world.start();
    pass(SHORT).await;
    assert_eq!(world.sight(1).await, Sight::Nothing);
    assert_eq!(world.sight(2).await, live(2, 6, Standing::Seen));
    assert_eq!(world.cursor().await, None, "nothing that is final was read");
    running.stop().await;
    world.chain.finalize_all();
    let running = world.start();
    pass(SHORT).await;
    assert_eq!(world.sight(1).await, Sight::Nothing);
    assert_eq!(world.sight(2).await, live(2, 6, Standing::Final));
    running.stop().await;
    // From then on the cursor counts: nothing is skipped.
    world.options.from_block = Height(100);
    world.chain.mine(&[event(3)]);
    let running = world.start();
    pass(SHORT).await;
    assert_eq!(world.sight(3).await, live(3, 7, Standing::Seen));
    assert_eq!(world.cursor().await, Some(6));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reorg_of_any_depth_moves_what_it_moves() {
    for depth in 1..=8 {
        let mut world = World::new().await;
        world.chain.mine_empty(2);
        world.chain.finalize(2);
        (1..=8).for_each(|n| world.chain.mine(&[event(n)]));
        let running = world.start();
        pass(SHORT).await;
        // All that was taken back comes again, one block later; the last never does.
        let mut gone = world.chain.take_back(depth);
        gone.pop();
        world.chain.mine_empty(2);
        gone.into_iter().for_each(|request| world.chain.mine_requests(vec![request]));
        pass(SHORT).await;
        assert_eq!(running.stats.reorgs(), 1, "at depth {depth}");
        let kept = 8 - depth as u64;
        for n in 1..8 {
            let height = if n <= kept { n + 2 } else { n + 4 };
            assert_eq!(world.sight(n).await, live(n, height, Standing::Seen), "request {n} at depth {depth}");
        }
        assert_eq!(world.sight(8).await, live(8, 10, Standing::Orphaned));
        world.chain.mine_empty(4);
        world.chain.finalize(9);
        pass(SHORT).await;
        assert_eq!(world.sight(8).await, live(8, 10, Standing::Orphaned), "finality has not passed it");
        world.chain.finalize_all();
        pass(SHORT).await;
        assert_eq!(world.sight(8).await, Sight::Ended(End::Withdrawn));
        world.agrees(9).await.unwrap();
        // What comes back after its withdrawal is admitted anew.
        world.chain.mine(&[event(8)]);
        world.chain.finalize_all();
        pass(SHORT).await;
        world.agrees(9).await.unwrap();
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_shorter_chain_takes_away_what_it_does_not_show() {
    let mut world = World::new().await;
    (1..=5).for_each(|n| world.chain.mine(&[event(n)]));
    let running = world.start();
    pass(SHORT).await;
    world.chain.take_back(3);
    world.chain.mine_empty(1);
    pass(SHORT).await;
    assert_eq!(world.sight(2).await, live(2, 2, Standing::Seen));
    for n in 3..=5 {
        assert_eq!(world.sight(n).await, live(n, n, Standing::Orphaned));
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn amendments_are_made_in_their_order() {
    let mut world = World::new().await;
    let other = Event { n: 11, request: 1 };
    world.chain.mine(&[event(1)]);
    world.chain.mine(&[event(2), event(3), other]);
    let (running, record) = world.start_observed();
    pass(SHORT).await;
    assert_eq!(world.sight(1).await, Sight::Live(2, Standing::Seen, "content 11".into()));
    let before = record.calls().len();
    // Everything at once: 3 and 11 are gone, 1 is the newest content again, 2 has moved, all is final.
    world.chain.take_back(1);
    world.chain.mine_empty(1);
    world.chain.mine(&[event(2)]);
    world.chain.finalize_all();
    pass(SHORT).await;
    world.agrees(12).await.unwrap();
    let amends = record.calls()[before..].iter().flat_map(|call| call.batch.clone()).collect::<Vec<_>>();
    let names = amends.iter().filter_map(|op| match op {
        Op::Amend(amend) => Some(match &amend.change {
            Amendment::Orphan { .. } => "orphan",
            Amendment::Supersede { .. } => "supersede",
            Amendment::Include { .. } => "include",
            Amendment::Finalize { .. } => "finalize",
            Amendment::Withdraw { .. } => "withdraw",
            Amendment::Elsewhere { .. } => "elsewhere",
        }),
        _ => None,
    });
    let names: Vec<&str> = names.collect();
    let order = ["orphan", "supersede", "include", "finalize", "withdraw"];
    let ranks: Vec<usize> = names.iter().map(|name| order.iter().position(|known| known == name).unwrap()).collect();
    assert!(order.iter().all(|name| names.contains(name)), "{names:?}");
    assert!(ranks.is_sorted(), "{names:?}");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_or_lags_is_waited_for() {
    let mut world = World::new().await;
    (1..=6).for_each(|n| world.chain.mine(&[event(n)]));
    world.chain.finalize(3);
    world.chain.script().failures = 5;
    world.chain.script().answers = 2;
    let running = world.start();
    pass(LONG).await;
    assert_eq!(world.sight(6).await, live(6, 6, Standing::Seen));
    // Another node, which is not as far, is no reorg, and takes nothing back.
    for tips in [(5, 3), (4, 2), (2, 1), (0, 0)] {
        world.chain.script().tips = Some(tips);
        pass(SHORT).await;
        assert_eq!(world.sight(6).await, live(6, 6, Standing::Seen));
        assert_eq!(world.cursor().await, Some(3));
    }
    assert_eq!(running.stats.reorgs(), 0);
    world.chain.script().tips = None;
    world.chain.mine(&[event(7)]);
    world.chain.finalize_all();
    // It fails at every call there is, one after the other.
    for failures in 1..=8 {
        world.chain.script().failures = failures;
        world.chain.mine_empty(1);
        pass(LONG).await;
    }
    world.agrees(8).await.unwrap();
    assert_eq!(running.stats.reorgs(), 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_after_a_reorg_that_became_final_loses_nothing() {
    let mut world = World::new().await;
    world.chain.mine_empty(2);
    world.chain.finalize(1);
    (1..=4).for_each(|n| world.chain.mine(&[event(n)]));
    let running = world.start();
    pass(SHORT).await;
    running.kill().await;
    world.store.crash();
    // While nobody looks, the chain becomes another one, and that one final; 3 moves down.
    world.chain.take_back(4);
    world.chain.mine(&[event(3), event(5)]);
    world.chain.mine_empty(20);
    world.chain.finalize_all();
    world.chain.script().sparse = true;
    pass(LONG).await;
    let running = world.start();
    pass(SHORT).await;
    world.agrees(6).await.unwrap();
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn finality_may_pass_what_was_read_on_another_branch() {
    let mut world = World::new().await;
    world.chain.mine_empty(2);
    world.chain.finalize(1);
    (1..=4).for_each(|n| world.chain.mine(&[event(n)]));
    world.chain.script().sparse = true;
    let running = world.start();
    pass(SHORT).await;
    // Between two looks; every block that would show the break shows nothing and is left out.
    world.chain.take_back(3);
    world.chain.mine_empty(20);
    world.chain.mine(&[event(2)]);
    world.chain.finalize_all();
    pass(SHORT).await;
    world.agrees(5).await.unwrap();
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn finality_that_breaks_its_word_stops_it() {
    let broken = |world: &World| {
        let mut script = world.chain.script();
        script.blocks.truncate(2);
        drop(script);
        world.chain.mine_empty(6);
    };
    // While it runs.
    let mut world = World::new().await;
    world.chain.mine_empty(4);
    world.chain.finalize_all();
    let running = world.start();
    pass(SHORT).await;
    broken(&world);
    let text = running.stopped().await;
    assert!(text.starts_with("block 4 was final as ") && text.contains("check which chain"), "{text}");
    // And after a start.
    let running = world.start();
    let text = running.stopped().await;
    assert!(text.starts_with("block 4 was final as "), "{text}");
    assert_eq!(world.cursor().await, Some(4), "nothing moved");
}

#[tokio::test(start_paused = true)]
async fn a_reorg_beyond_its_bound_halts_it_alone() {
    let mut world = World::new().await;
    world.options.reorg_max = 2;
    world.chain.mine_empty(6);
    let running = world.start();
    pass(SHORT).await;
    world.chain.take_back(2);
    world.chain.mine_empty(3);
    pass(SHORT).await;
    assert_eq!(running.stats.reorgs(), 1, "so deep is followed");
    world.chain.take_back(3);
    world.chain.mine_empty(4);
    assert_eq!(running.stats.stall(), None);
    let halted = tokio::time::timeout(LONG, running.task).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(&halted, StationError::Halted(text) if text.contains("raise reorg_max")), "{halted}");
    assert_eq!(running.stats.stall(), Some(Stall::Halted(halted.to_string())));
}

#[tokio::test(start_paused = true)]
async fn a_first_block_in_the_future_halts_it() {
    let mut world = World::new().await;
    world.options.from_block = Height(5_000);
    let text = world.start().stopped().await;
    assert!(text.contains("correct from_block"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn what_a_source_hid_at_first_is_found_by_the_second_pass() {
    let mut world = World::new().await;
    world.options.again_ms = 60_000;
    world.chain.script().hidden = vec![2];
    world.chain.mine(&[event(1), event(2)]);
    world.chain.mine_empty(8);
    world.chain.finalize(7);
    let running = world.start();
    pass(SHORT).await;
    assert_eq!(world.sight(1).await, live(1, 1, Standing::Final));
    assert_eq!(world.sight(2).await, Sight::Nothing);
    pass(Duration::from_secs(90)).await;
    assert_eq!(world.sight(2).await, live(2, 1, Standing::Final));
    assert_eq!((running.stats.missed(), running.stats.quarantined()), (1, 0));
    // Once is enough.
    let before = world.chain.calls.load(Ordering::SeqCst);
    pass(Duration::from_secs(90)).await;
    assert_eq!(running.stats.missed(), 1);
    world.chain.script().hidden.clear();
    assert!(world.chain.calls.load(Ordering::SeqCst) > before);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_others_answered_ends_once_that_is_final() {
    let mut world = World::new().await;
    world.chain.mine(&[event(1), event(2), event(3)]);
    let running = world.start();
    world.chain.mine_answer(1);
    pass(SHORT).await;
    assert_eq!(world.sight(1).await, live(1, 1, Standing::Seen), "a reorg may take the answer back");
    // It does, and another request is answered instead.
    world.chain.take_back(1);
    world.chain.mine_answer(2);
    world.chain.mine_empty(2);
    world.chain.finalize_all();
    pass(SHORT).await;
    assert_eq!(world.sight(1).await, live(1, 1, Standing::Final));
    assert_eq!(world.sight(2).await, Sight::Ended(End::Elsewhere));
    running.stop().await;
    // What is final when it is first read ends in the same commit; what is unknown changes nothing.
    world.chain.mine(&[event(4)]);
    world.chain.mine_answer(4);
    world.chain.mine_answer(77);
    world.chain.mine_answer(3);
    world.chain.finalize_all();
    let running = world.start();
    pass(SHORT).await;
    assert_eq!(world.sight(4).await, Sight::Ended(End::Elsewhere));
    assert_eq!(world.sight(3).await, Sight::Ended(End::Elsewhere));
    assert_eq!(world.cursor().await, Some(world.chain.head()));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_route_holds_the_cursor() {
    let mut world = World::with(RoutePolicy { capacity: 4, ..samples::policy() }).await;
    let crowd: Vec<Event> = (1..=6).map(event).collect();
    world.chain.mine(&[]);
    world.chain.mine(&crowd);
    world.chain.finalize_all();
    let running = world.start();
    pass(SHORT).await;
    assert_eq!(world.cursor().await, None, "the range is not stored");
    assert_eq!(world.sight(4).await, live(4, 2, Standing::Final), "what there was room for is");
    assert_eq!(world.sight(5).await, Sight::Nothing);
    assert!(matches!(running.stats.stall(), Some(Stall::Waits(why)) if why.contains("no room")));
    for n in [1, 2] {
        let ended = world.store.apply_one(samples::mend(n, roundtrip::store::op::Remedy::Cancel)).await.unwrap();
        assert!(ended.holds());
    }
    pass(SHORT).await;
    assert_eq!(world.sight(6).await, live(6, 2, Standing::Final));
    assert_eq!(world.cursor().await, Some(2));
    assert_eq!((running.stats.stall(), running.stats.head()), (None, Height(2)));
    running.stop().await;
}

/// What the store says of the dead letter of event `n`.
async fn letter_of(world: &World, n: u64) -> (StateKind, String, Payload) {
    let flawed = roundtrip::listener::flawed(&route(), occurrence(n), Payload::default(), "");
    let Some(Found::Live(view, bodies)) = world.store.get(flawed.id).await.unwrap() else { panic!("event {n}") };
    (view.phase.kind(), view.error.map(|error| error.text.to_string()).unwrap_or_default(), bodies.payload)
}

#[tokio::test(start_paused = true)]
async fn one_bad_request_keeps_no_other_out() {
    let mut world = World::new().await;
    let too_large = Payload::raw(vec![0; PAYLOAD_BYTES_MAX + 1]);
    let flaw = roundtrip::listener::flawed(&route(), occurrence(4), Payload::raw("a log"), "it cannot be read");
    let bad = [
        NewRequest { payload: too_large, ..request_of(event(2)) },
        flaw,
        NewRequest { trace: Some("t".repeat(300).into()), ..request_of(event(6)) },
    ];
    let good = [1, 3, 5].map(|n| request_of(event(n)));
    world.chain.mine_requests(good.iter().zip(&bad).flat_map(|(good, bad)| [good.clone(), bad.clone()]).collect());
    world.chain.finalize_all();
    let running = world.start();
    pass(SHORT).await;
    for n in [1, 3, 5] {
        assert_eq!(world.sight(n).await, live(n, 1, Standing::Final));
    }
    let stub = Payload::json(format!("{{\"left_out_bytes\":{}}}", PAYLOAD_BYTES_MAX + 1));
    let expected = [
        (2, "over the limit", stub),
        (4, "it cannot be read", Payload::raw("a log")),
        (6, "bytes of trace context", Payload::raw("content 6")),
    ];
    for (n, reason, payload) in expected {
        let (state, error, kept) = letter_of(&world, n).await;
        assert_eq!((state, kept), (StateKind::Dead, payload));
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(running.stats.quarantined(), 3);
    assert_eq!(world.cursor().await, Some(1));
    running.stop().await;
    // Read again, they are known.
    let running = world.start_on(Arc::new(world.store.clone()), ListenerName::new("again").unwrap());
    pass(SHORT).await;
    assert_eq!(running.stats.quarantined(), 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_the_chain_takes_back_is_withdrawn() {
    let mut world = World::new().await;
    world.chain.mine_requests(vec![roundtrip::listener::flawed(&route(), occurrence(4), Payload::raw("a log"), "why")]);
    let running = world.start();
    pass(SHORT).await;
    assert_eq!(letter_of(&world, 4).await.0, StateKind::Dead);
    world.chain.take_back(1);
    world.chain.mine_empty(2);
    world.chain.finalize_all();
    pass(LONG).await;
    let id = roundtrip::listener::flawed(&route(), occurrence(4), Payload::default(), "").id;
    let Some(Found::Ended(receipt)) = world.store.get(id).await.unwrap() else { panic!("it is still there") };
    assert_eq!(receipt.end, End::Withdrawn);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_route_that_is_not_defined_stops_it() {
    let mut world = World::new().await;
    let elsewhere = NewRequest { route: samples::route_named("nowhere"), ..request_of(event(4)) };
    world.chain.mine_requests(vec![elsewhere]);
    let running = world.start();
    let text = running.stopped().await;
    assert!(text.contains("nowhere is not defined"), "{text}");
    assert_eq!(world.cursor().await, None, "nothing is passed over");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_replayed_stops_it() {
    let mut world = World::new().await;
    world.chain.mine(&[event(1)]);
    world.chain.mine_empty(9);
    world.chain.finalize_all();
    let floors = vec![samples::place(5)];
    let admitted = Admit { cursor: None, requests: vec![samples::final_request(50)] };
    assert!(world.store.apply_one(admitted).await.unwrap().holds(), "the origin is known");
    assert!(world.store.apply_one(Prune { limit: 10, floors }).await.unwrap().holds());
    let text = world.start().stopped().await;
    assert!(text.contains("height 1 of chain-a is below 5"), "{text}");
    assert_eq!(world.cursor().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_rolled_back_stops_it() {
    let mut world = World::new().await;
    world.chain.mine(&[event(1)]);
    world.chain.finalize_all();
    let swapped = Swapped::default();
    *swapped.0.lock().unwrap() = Some(world.store.clone());
    let running = world.start_on(Arc::new(swapped.clone()), listener());
    pass(SHORT).await;
    let older = World::new().await;
    *swapped.0.lock().unwrap() = Some(older.store);
    world.chain.mine(&[event(2)]);
    world.chain.finalize_all();
    let text = running.stopped().await;
    assert!(text.contains("it was rolled back"), "{text}");
}

/// A store that may become an older one.
#[derive(Clone, Default)]
struct Swapped(Arc<Mutex<Option<MemoryStore>>>);

impl Swapped {
    fn now(&self) -> MemoryStore {
        self.0.lock().unwrap().clone().unwrap()
    }
}

impl Store for Swapped {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async { self.now().apply(batch).await })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        Box::pin(async { self.now().read(query).await })
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.now().changes(topic)
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_followers_one_leads() {
    let mut world = World::new().await;
    world.chain.mine(&[event(1)]);
    let (first, first_record) = world.start_observed();
    pass(SHORT).await;
    let (observed, second_record) = Observed::new(world.store.clone());
    let second = world.start_on(Arc::new(observed), ListenerName::new("listener-2").unwrap());
    world.chain.mine(&[event(2)]);
    pass(SHORT).await;
    world.chain.take_back(1);
    world.chain.mine(&[event(3)]);
    world.chain.mine(&[event(2)]);
    world.chain.finalize(2);
    pass(SHORT).await;
    let amends = |record: &Record| {
        let calls = record.calls();
        calls.iter().flat_map(|call| &call.batch).filter(|op| matches!(op, Op::Amend(_))).count()
    };
    assert!(amends(&first_record) > 0);
    assert_eq!(amends(&second_record), 0);
    assert_eq!(world.sight(2).await, live(2, 3, Standing::Seen));
    // The lead dies, a reorg comes, and what it left is settled by the other one.
    first.kill().await;
    world.chain.take_back(1);
    world.chain.mine(&[event(4)]);
    pass(LONG).await;
    assert_eq!(world.sight(2).await, live(2, 3, Standing::Orphaned));
    world.chain.finalize_all();
    pass(SHORT).await;
    assert!(amends(&second_record) > 0);
    world.agrees(5).await.unwrap();
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_starts_later_settles_what_others_left() {
    let mut world = World::new().await;
    world.chain.mine(&[event(1), event(2)]);
    let first = world.start();
    pass(SHORT).await;
    first.kill().await;
    world.chain.take_back(1);
    world.chain.mine_empty(3);
    world.chain.mine(&[event(1)]);
    world.chain.mine_empty(5);
    world.chain.mine(&[event(3)]);
    world.chain.finalize_all();
    world.options.from_block = Height(8);
    let second = world.start_on(Arc::new(world.store.clone()), ListenerName::new("listener-2").unwrap());
    pass(LONG).await;
    assert_eq!(world.sight(2).await, Sight::Ended(End::Withdrawn));
    assert_eq!(world.sight(3).await, live(3, 10, Standing::Final));
    // 1 came back where only the first one reads, which admits it anew once it is here again.
    world.options.from_block = Height(1);
    let first = world.start();
    pass(LONG).await;
    world.agrees(4).await.unwrap();
    first.stop().await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_never_read_here_is_looked_for_in_its_block() {
    let mut world = World::new().await;
    world.chain.mine(&[event(1)]);
    let first = world.start();
    pass(SHORT).await;
    first.kill().await;
    world.chain.mine_empty(9);
    world.chain.finalize_all();
    world.options.from_block = Height(8);
    let second = world.start_on(Arc::new(world.store.clone()), ListenerName::new("listener-2").unwrap());
    pass(LONG).await;
    world.agrees(2).await.unwrap();
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_one_chain_shows_is_not_superseded_by_another() {
    let mut world = World::new().await;
    let (name, other) = (OriginName::new("other").unwrap(), Chain::new());
    // The same request, with other content, far higher on the other chain.
    let (here, there) = (event(1), Event { n: 2, request: 1 });
    world.chain.mine_empty(2);
    world.chain.mine(&[here]);
    world.chain.finalize_all();
    other.mine_empty(9);
    other.finalize_all();
    other.mine(&[there]);
    let store = Arc::new(world.store.clone());
    let (first, second_listener) = (world.start(), ListenerName::new("listener-2").unwrap());
    pass(SHORT).await;
    let second = world.start_as(store, second_listener, name.clone(), other.clone());
    pass(LONG).await;
    assert_eq!(world.sight(1).await, live(1, 3, Standing::Final), "nothing says which chain's is newer");
    // A chain supersedes what it showed itself, however low it is.
    world.chain.mine(&[Event { n: 3, request: 1 }]);
    pass(SHORT).await;
    assert_eq!(world.sight(1).await, live(3, 4, Standing::Seen));
    // A reorg there looks for nothing here, and its lead gets on with its own.
    other.take_back(1);
    other.mine(&[event(4)]);
    other.mine_empty(2);
    other.finalize_all();
    pass(LONG).await;
    assert_eq!(world.sight(1).await, live(3, 4, Standing::Seen));
    assert_eq!(world.sight(4).await, live(4, 10, Standing::Final));
    let settled = ListenerName::new(&format!("lead:{}@{name}", route())).unwrap();
    let settled = world.store.cursor(settled).await.unwrap().map(|cursor| cursor.at.height);
    assert_eq!(settled, Some(Height(12)));
    first.stop().await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_another_chain_shows_takes_the_place_of_what_is_withdrawn() {
    let mut world = World::new().await;
    let other = Chain::new();
    world.chain.mine(&[event(1)]);
    other.mine_empty(9);
    other.mine(&[Event { n: 2, request: 1 }]);
    other.finalize_all();
    let store = Arc::new(world.store.clone());
    let (first, second_listener) = (world.start(), ListenerName::new("listener-2").unwrap());
    pass(SHORT).await;
    let second = world.start_as(store, second_listener, OriginName::new("other").unwrap(), other);
    pass(SHORT).await;
    assert_eq!(world.sight(1).await, live(1, 1, Standing::Seen));
    world.chain.take_back(1);
    world.chain.mine_empty(2);
    pass(SHORT).await;
    assert_eq!(world.sight(1).await, live(1, 1, Standing::Orphaned), "it may come back");
    world.chain.finalize_all();
    pass(LONG).await;
    assert_eq!(world.sight(1).await, live(2, 10, Standing::Final));
    first.stop().await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_processes_may_share_a_listener() {
    let mut world = World::new().await;
    let (first, second) = (world.start(), world.start());
    for n in 1..=20 {
        world.chain.mine(&[event(n)]);
        world.chain.finalize(n.saturating_sub(3));
        pass(SHORT).await;
    }
    world.chain.finalize_all();
    pass(SHORT).await;
    world.agrees(21).await.unwrap();
    assert_eq!(world.cursor().await, Some(20));
    first.stop().await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn finality_that_does_not_come_bounds_what_is_remembered() {
    let mut world = World::new().await;
    world.options.window_max = 10;
    world.chain.mine_empty(2);
    world.chain.finalize(2);
    (1..=30).for_each(|n| world.chain.mine(&[event(n)]));
    let running = world.start();
    pass(SHORT).await;
    assert!(running.stats.read_to().0 <= 12, "read to {:?}", running.stats.read_to());
    world.chain.finalize(12);
    pass(SHORT).await;
    assert!((13..=22).contains(&running.stats.read_to().0), "read to {:?}", running.stats.read_to());
    world.chain.finalize_all();
    pass(SHORT).await;
    world.agrees(31).await.unwrap();
    running.stop().await;
}

/// What a random chain does next.
#[derive(Clone, Debug)]
enum Action {
    Mine(Vec<u64>),
    Reorg { depth: usize, come_back: bool, reversed: bool },
    Finalize(u64),
    Look,
    Fail(u32),
}

/// So many events there are, two of each request.
const EVENTS: u64 = 12;

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => proptest::collection::vec(0..EVENTS, 0..3).prop_map(Action::Mine),
        2 => (1..6usize, any::<bool>(), any::<bool>())
            .prop_map(|(depth, come_back, reversed)| Action::Reorg { depth, come_back, reversed }),
        2 => (0..4u64).prop_map(Action::Finalize),
        4 => Just(Action::Look),
        1 => (1..3u32).prop_map(Action::Fail),
    ]
}

fn act(chain: &Chain, action: &Action) {
    match action {
        Action::Mine(events) => {
            let there: Vec<_> = chain.events().iter().map(|(_, request)| request.occurrence).collect();
            let mut events: Vec<u64> = events.iter().copied().filter(|n| !there.contains(&occurrence(*n))).collect();
            events.sort_unstable();
            events.dedup();
            let events: Vec<Event> = events.into_iter().map(|n| Event { n, request: n / 2 }).collect();
            chain.mine(&events);
        }
        Action::Reorg { depth, come_back, reversed } => {
            let mut gone = chain.take_back(*depth);
            if *reversed {
                gone.reverse();
            }
            chain.mine_empty(1);
            if *come_back {
                gone.into_iter().for_each(|request| chain.mine_requests(vec![request]));
            }
        }
        Action::Finalize(behind) => chain.finalize(chain.head().saturating_sub(*behind)),
        Action::Fail(calls) => chain.script().failures = *calls,
        Action::Look => {}
    }
}

/// Where and how a follower dies, and for how many actions nobody follows.
#[derive(Clone, Debug)]
struct Death {
    call: usize,
    after: bool,
    absent: usize,
}

fn death() -> impl Strategy<Value = Death> {
    (1..40usize, any::<bool>(), 0..12usize).prop_map(|(call, after, absent)| Death { call, after, absent })
}

/// A follower that will die, unless it has no death.
struct Doomed {
    running: Running,
    death: Option<(Arc<AtomicUsize>, Death)>,
}

impl Doomed {
    fn start(world: &mut World, death: Option<Death>) -> Doomed {
        let Some(death) = death else { return Doomed { running: world.start(), death: None } };
        let left = Arc::new(AtomicUsize::new(death.call + 1));
        let store = Deadly { inner: world.store.clone(), left: left.clone(), after: death.after };
        Doomed { running: world.start_on(Arc::new(store), listener()), death: Some((left, death)) }
    }

    /// For how long nobody follows, once it came to the call at which it dies.
    fn absent(&self) -> Option<usize> {
        let (left, death) = self.death.as_ref()?;
        (left.load(Ordering::SeqCst) == 1).then_some(death.absent)
    }
}

/// Runs a script with followers that die, and then one that does not: the store must come
/// to say what the chain says.
async fn survives(actions: Vec<Action>, deaths: Vec<Death>, sparse: bool, answers: usize) -> Result<(), String> {
    let mut world = World::new().await;
    (world.chain.script().sparse, world.chain.script().answers) = (sparse, answers);
    let mut deaths = deaths.into_iter();
    let mut absent = 0usize;
    let mut doomed: Option<Doomed> = None;
    for action in &actions {
        if doomed.is_none() && absent == 0 {
            doomed = Some(Doomed::start(&mut world, deaths.next()));
        }
        absent = absent.saturating_sub(1);
        act(&world.chain, action);
        if matches!(action, Action::Look) {
            pass(SHORT).await;
        }
        if let Some(dead) = doomed.take_if(|doomed| doomed.absent().is_some()) {
            absent = dead.absent().unwrap_or(0);
            dead.running.kill().await;
            world.store.crash();
        }
    }
    if let Some(dead) = doomed {
        dead.running.kill().await;
        world.store.crash();
    }
    // Finality goes past every height where anything was.
    world.chain.mine_empty(actions.len());
    world.chain.finalize_all();
    let last = world.start();
    pass(LONG).await;
    let agrees = world.agrees(EVENTS / 2).await;
    last.stop().await;
    agrees
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_chain_and_any_crash_end_in_the_same_state(
        actions in proptest::collection::vec(action(), 1..40),
        deaths in proptest::collection::vec(death(), 0..4),
        sparse in any::<bool>(),
        answers in 1..5usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let ended = runtime.block_on(survives(actions, deaths, sparse, answers));
        prop_assert!(ended.is_ok(), "{}", ended.unwrap_err());
    }
}

#[test]
fn a_crash_at_any_call_ends_in_the_same_state() {
    let script = || {
        let mut actions: Vec<Action> = Vec::new();
        for n in 0..4 {
            actions.extend([Action::Mine(vec![2 * n, 2 * n + 1]), Action::Look, Action::Mine(vec![]), Action::Look]);
            actions.extend([Action::Reorg { depth: 2, come_back: n % 2 == 0, reversed: n == 2 }, Action::Look]);
            actions.extend([Action::Finalize(1), Action::Look]);
        }
        actions
    };
    for call in 1..60 {
        for (after, absent) in [(false, 0), (true, 0), (true, 6), (true, 100)] {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let ended = runtime.block_on(survives(script(), vec![Death { call, after, absent }], true, 2));
            assert_eq!(ended, Ok(()), "call {call}, after: {after}, absent: {absent}");
        }
    }
}
