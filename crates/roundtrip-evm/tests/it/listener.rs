//! Listening to nodes that a test writes: what they refuse, cut off, hide, forge and forget,
//! and what becomes of it. Time stands still while anybody has work.

use std::sync::Arc;
use std::time::Duration;

use alloy::primitives::{Address, B256, Bytes, keccak256};
use roundtrip::clock::Clock;
use roundtrip::inbox::{End, Identity, Standing};
use roundtrip::listener::{BlockSource, Follower, FollowerOptions, FollowerStats, SourceBlock, SourceError};
use roundtrip::station::{Shutdown, StationError};
use roundtrip::store::op::{Define, Mend, Remedy};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::{Found, ListFilter, RequestView};
use roundtrip::store::{MemoryStore, Options, ReadExt, Store, StoreError, StoreExt};
use roundtrip::testkit::faulty::{Cut, Faulty};
use roundtrip::words::{Height, HolderName, ListenerName, OriginName, PAGE_MAX, RequestId, RouteName, UnixMs};
use roundtrip_evm::rpc::Finality;
use roundtrip_evm::testkit::fakenode::{FakeChain, FakeLog, FakeNode, balanced};
use roundtrip_evm::{EventSignature, EvmSource, Watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub(crate) const CHAIN_ID: u64 = 7;
/// A few looks at the chain.
pub(crate) const SHORT: Duration = Duration::from_secs(3);
/// Longer than a seat is held, and than a node's failures are remembered.
pub(crate) const LONG: Duration = Duration::from_secs(300);

fn board() -> Address {
    Address::repeat_byte(0xB0)
}

fn event() -> EventSignature {
    EventSignature::parse("Asked(uint256 indexed id)").unwrap()
}

pub(crate) fn watch() -> Watch {
    Watch::new(RouteName::new("board").unwrap(), event(), Identity::Given).at([board()])
}

/// The log of request `n`, in a transaction of its own.
pub(crate) fn asked(n: u64) -> FakeLog {
    let topics = vec![event().topic().unwrap(), B256::left_padding_from(&n.to_be_bytes())];
    FakeLog { address: board(), topics, data: Bytes::new(), transaction: keccak256(n.to_be_bytes()) }
}

pub(crate) fn source(nodes: &[&FakeNode]) -> EvmSource {
    let first = EvmSource::new(nodes[0].rpc(), CHAIN_ID, Finality::Finalized, vec![watch()]);
    nodes[1..].iter().fold(first, |source, node| source.also(node.rpc()))
}

fn numbers(block: &SourceBlock) -> Vec<u64> {
    let number = |payload: &[u8]| -> u64 {
        let payload: serde_json::Value = serde_json::from_slice(payload).unwrap();
        payload["args"]["id"].as_str().unwrap().parse().unwrap()
    };
    block.requests.iter().map(|request| number(&request.payload.bytes)).collect()
}

/// Reads all heights up to the end, in as many answers as it takes.
async fn read_all(source: &EvmSource, to: u64) -> Vec<u64> {
    let (mut from, mut read) = (1, Vec::new());
    while from <= to {
        let blocks = source.blocks(Height(from), Height(to)).await.unwrap();
        let heights: Vec<u64> = blocks.iter().map(|block| block.at.height.0).collect();
        assert_eq!(heights, (from..from + heights.len() as u64).collect::<Vec<_>>(), "no hole");
        read.extend(blocks.iter().flat_map(numbers));
        from += heights.len() as u64;
    }
    read
}

/// A chain whose block `n` shows request `n`.
fn one_in_each(blocks: u64) -> FakeChain {
    let chain = FakeChain::new();
    (1..=blocks).for_each(|n| assert_eq!(chain.mine(vec![asked(n)]), n));
    chain
}

#[tokio::test(start_paused = true)]
async fn incident_8_a_limit_of_a_provider_narrows_the_range_and_loses_nothing() {
    let words = ["eth_getLogs is limited to a 5 range", "block range is too wide", "what is this?"];
    for words in words {
        let chain = one_in_each(40);
        let node = FakeNode::on(&chain, CHAIN_ID);
        node.moods().range_max = Some((5, words.into()));
        assert_eq!(read_all(&source(&[&node]), 40).await, (1..=40).collect::<Vec<_>>(), "{words}");
        assert!(node.asked("eth_getLogs") < 24, "{words}: {}", node.asked("eth_getLogs"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cap_of_results_is_kept_to_and_one_block_beyond_it_is_read_by_its_receipts() {
    let chain = one_in_each(20);
    chain.mine((21..=30).map(asked).collect());
    chain.mine(vec![asked(31)]);
    let node = FakeNode::on(&chain, CHAIN_ID);
    node.moods().results_max = Some((4, "query returned more than 4 results".into()));
    assert_eq!(read_all(&source(&[&node]), 22).await, (1..=31).collect::<Vec<_>>());
    assert_eq!(node.asked("eth_getBlockReceipts"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_cut_off_without_a_word_is_not_taken_for_whole() {
    let chain = FakeChain::new();
    (0..3).for_each(|block| {
        chain.mine((block * 600..(block + 1) * 600).map(asked).collect());
    });
    let node = FakeNode::on(&chain, CHAIN_ID);
    node.moods().cut_off_at = Some(1_000);
    assert_eq!(read_all(&source(&[&node]), 3).await, (0..1_800).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn incident_8_an_empty_answer_for_a_block_that_has_logs_is_settled_by_receipts_or_another_node() {
    let chain = one_in_each(9);
    let (node, other) = (FakeNode::on(&chain, CHAIN_ID), FakeNode::on(&chain, CHAIN_ID));
    node.moods().hides = [asked(4).transaction].into();
    assert_eq!(read_all(&source(&[&node]), 9).await, (1..=9).collect::<Vec<_>>(), "by receipts");
    node.moods().hides_receipts = true;
    let alone = source(&[&node]).blocks(Height(1), Height(9)).await;
    assert!(matches!(alone, Err(SourceError::Unreachable(_))), "{alone:?}");
    assert_eq!(read_all(&source(&[&node, &other]), 9).await, (1..=9).collect::<Vec<_>>(), "by the other node");
}

#[tokio::test(start_paused = true)]
async fn incident_8_a_pruned_node_says_so_and_another_has_what_it_forgot() {
    let chain = one_in_each(9);
    let (node, archive) = (FakeNode::on(&chain, CHAIN_ID), FakeNode::on(&chain, CHAIN_ID));
    node.moods().pruned_below = 5;
    let alone = source(&[&node]).blocks(Height(1), Height(9)).await.unwrap_err().to_string();
    assert!(alone.contains("does not have block 1"), "{alone}");
    assert_eq!(read_all(&source(&[&node, &archive]), 9).await, (1..=9).collect::<Vec<_>>());
    node.moods().refuses = Some((4444, "pruned history unavailable".into()));
    archive.moods().silent = true;
    assert!(source(&[&node, &archive]).blocks(Height(1), Height(9)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn f15_a_balancer_between_nodes_of_different_heights_hides_nothing() {
    let chain = one_in_each(30);
    let nodes = [0, 7, 3].map(|lag| {
        let node = FakeNode::on(&chain, CHAIN_ID);
        node.moods().lag = lag;
        node
    });
    let source = EvmSource::new(balanced(&nodes), CHAIN_ID, Finality::Finalized, vec![watch()]);
    let mut answered = 0;
    for from in (20..=30).cycle().take(200) {
        let Ok(blocks) = source.blocks(Height(from), Height(30)).await else { continue };
        answered += 1;
        for block in blocks {
            assert_eq!(numbers(&block), [block.at.height.0], "a block without its log");
        }
    }
    assert!(answered > 20, "{answered} answers");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_fails_is_passed_over_and_comes_back() {
    let chain = one_in_each(3);
    let (first, second) = (FakeNode::on(&chain, CHAIN_ID), FakeNode::on(&chain, CHAIN_ID));
    let source = source(&[&first, &second]);
    source.tips().await.unwrap();
    assert_eq!((first.asked("eth_chainId"), second.asked("eth_chainId")), (1, 0), "the first is preferred");
    first.moods().silent = true;
    source.tips().await.unwrap();
    first.moods().silent = false;
    let before = first.asked("eth_getBlockByNumber");
    source.tips().await.unwrap();
    assert_eq!(first.asked("eth_getBlockByNumber"), before, "not so soon");
    tokio::time::sleep(LONG).await;
    source.tips().await.unwrap();
    assert!(first.asked("eth_getBlockByNumber") > before, "preferred again");
    first.moods().silent = true;
    second.moods().refuses = Some((429, "too many requests".into()));
    let error = source.tips().await.unwrap_err().to_string();
    assert!(error.contains("connection refused") && error.contains("too many requests"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_node_of_another_chain_is_refused() {
    let chain = one_in_each(3);
    let (wrong, right) = (FakeNode::on(&chain, CHAIN_ID), FakeNode::on(&chain, CHAIN_ID));
    wrong.moods().chain_id = Some(1);
    let error = source(&[&wrong]).tips().await.unwrap_err();
    assert!(matches!(&error, SourceError::Violation(text) if text.contains("is on chain 1, not on 7")), "{error}");
    assert_eq!(wrong.asked("eth_getBlockByNumber"), 0, "nothing else was asked of it");
    assert_eq!(read_all(&source(&[&wrong, &right]), 3).await, [1, 2, 3]);
    assert_eq!(wrong.asked("eth_getLogs"), 0);
}

#[tokio::test(start_paused = true)]
async fn with_a_quorum_one_node_can_neither_forge_nor_hide_a_request() {
    let chain = one_in_each(9);
    chain.finalize(9);
    let [honest, other, liar] = [(); 3].map(|()| FakeNode::on(&chain, CHAIN_ID));
    let three = || source(&[&liar, &honest, &other]).quorum(2).unwrap();
    // Hidden where others show, so that no bloom tells.
    let chain_of_two = chain.mine(vec![asked(10), asked(11)]);
    liar.moods().hides = [asked(11).transaction].into();
    liar.moods().forges = [(5, vec![asked(99)])].into();
    assert_eq!(read_all(&three(), chain_of_two).await, (1..=11).collect::<Vec<_>>());
    assert!(read_all(&source(&[&liar]), chain_of_two).await.contains(&99), "alone it is believed");
    // A head of its own making, and silence, are outvoted too.
    other.moods().lag = 2;
    let tips = three().tips().await.unwrap();
    assert_eq!((tips.head.height, tips.finalized.height), (Height(10), Height(9)));
    honest.moods().silent = true;
    let short = three().tips().await.unwrap();
    assert_eq!(short.head.height, Height(8), "what two have reached");
    other.moods().silent = true;
    assert!(three().tips().await.is_err());
    let none = source(&[&honest, &other]).quorum(3).unwrap_err().to_string();
    assert!(none.contains("no more than there are URLs"), "{none}");
}

/// Shows the time of the paused runtime.
struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn now(&self) -> UnixMs {
        UnixMs(1_000_000 + u64::try_from(self.0.elapsed().as_millis()).unwrap())
    }
}

/// A follower's world: a chain, a node, and a store that stays.
pub(crate) struct World {
    pub(crate) chain: FakeChain,
    pub(crate) node: FakeNode,
    pub(crate) store: MemoryStore,
    clock: Arc<RuntimeClock>,
    pub(crate) options: FollowerOptions,
    started: usize,
}

pub(crate) struct Running {
    task: JoinHandle<Result<(), StationError>>,
    shutdown: Shutdown,
    stats: Arc<FollowerStats>,
}

impl Running {
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// It halts by itself, and says why.
    pub(crate) async fn halted(self) -> String {
        match tokio::time::timeout(LONG, self.task).await.unwrap().unwrap() {
            Err(StationError::Halted(text)) => text,
            other => panic!("it ended with {other:?}"),
        }
    }
}

impl World {
    pub(crate) async fn new(policy: RoutePolicy) -> World {
        let clock = Arc::new(RuntimeClock(Instant::now()));
        let store = MemoryStore::new(clock.clone(), Options::default());
        let route = RouteName::new("board").unwrap();
        assert!(store.apply_one(Define { route, policy }).await.unwrap().holds());
        let chain = FakeChain::new();
        let node = FakeNode::on(&chain, CHAIN_ID);
        let options = FollowerOptions { from_block: Height(1), ..FollowerOptions::default() };
        World { chain, node, store, clock, options, started: 0 }
    }

    fn start(&mut self) -> Running {
        self.start_by(source(&[&self.node]))
    }

    pub(crate) fn start_by(&mut self, source: EvmSource) -> Running {
        self.start_on(Arc::new(self.store.clone()), source)
    }

    fn start_on(&mut self, store: Arc<dyn Store>, source: EvmSource) -> Running {
        self.started += 1;
        let stats = Arc::<FollowerStats>::default();
        let follower = Follower {
            store,
            source: Arc::new(source),
            clock: self.clock.clone(),
            holder: HolderName::new(&format!("holder-{}", self.started)).unwrap(),
            listener: ListenerName::new("board").unwrap(),
            origin: OriginName::new("chain").unwrap(),
            routes: vec![RouteName::new("board").unwrap()],
            options: self.options,
            stats: stats.clone(),
        };
        let shutdown = Shutdown::new();
        let task = tokio::spawn(follower.run(shutdown.clone()));
        Running { task, shutdown, stats }
    }

    /// What is live, by number: height and standing.
    pub(crate) async fn live(&self) -> Vec<(u64, u64, Standing)> {
        let mut live: Vec<_> = self
            .numbered()
            .await
            .into_iter()
            .map(|(n, view)| (n, view.occurrences[0].place.as_ref().unwrap().height.0, view.standing))
            .collect();
        live.sort_unstable();
        live
    }

    /// The live requests with their numbers; dead letters of bad logs have none.
    async fn numbered(&self) -> Vec<(u64, RequestView)> {
        let mut numbered = Vec::new();
        for view in self.views().await {
            let Some(Found::Live(_, bodies)) = self.store.get(view.id).await.unwrap() else { continue };
            let payload: serde_json::Value = serde_json::from_slice(&bodies.payload.bytes).unwrap();
            if let Some(n) = payload["args"]["id"].as_str() {
                numbered.push((n.parse().unwrap(), view));
            }
        }
        numbered
    }

    async fn views(&self) -> Vec<RequestView> {
        self.store.list(ListFilter { limit: PAGE_MAX, ..ListFilter::default() }).await.unwrap().requests
    }

    pub(crate) async fn ids(&self) -> Vec<RequestId> {
        self.views().await.into_iter().map(|view| view.id).collect()
    }

    pub(crate) async fn cursor(&self) -> Option<u64> {
        let listener = ListenerName::new("board").unwrap();
        self.store.cursor(listener).await.unwrap().map(|cursor| cursor.at.height.0)
    }
}

pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

#[tokio::test(start_paused = true)]
async fn f1_the_cursor_never_passes_what_is_not_stored() {
    for cut in [Cut::Before, Cut::After] {
        for call in 0..6 {
            let mut world = World::new(RoutePolicy::default()).await;
            (1..=8).for_each(|n| {
                world.chain.mine(vec![asked(n)]);
            });
            world.chain.finalize(6);
            world.options.range = 2;
            // The store fails for good at this call, and the process with it.
            let faulty = Faulty::with_error(world.store.clone(), cut, call..usize::MAX, StoreError::Closed);
            let node = world.node.clone();
            let running = world.start_on(Arc::new(faulty), source(&[&node]));
            pass(SHORT).await;
            running.task.abort();
            let stored: Vec<u64> = world.live().await.iter().map(|(n, ..)| *n).collect();
            let passed = world.cursor().await.unwrap_or(0);
            assert!((1..=passed).all(|n| stored.contains(&n)), "{stored:?} and the cursor at {passed}");
            let running = world.start();
            pass(LONG).await;
            let all: Vec<u64> = world.live().await.iter().map(|(n, ..)| *n).collect();
            assert_eq!(all, (1..=8).collect::<Vec<_>>(), "cut {cut:?} at call {call}");
            running.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn f2_a_start_goes_on_from_the_cursor_and_not_from_the_head() {
    let mut world = World::new(RoutePolicy::default()).await;
    world.chain.mine(vec![asked(1)]);
    world.chain.finalize(1);
    let running = world.start();
    pass(SHORT).await;
    running.stop().await;
    (2..=50).for_each(|n| {
        world.chain.mine(vec![asked(n)]);
    });
    world.chain.finalize(45);
    let running = world.start();
    pass(SHORT).await;
    assert_eq!(world.live().await.len(), 50);
    assert_eq!(world.cursor().await, Some(45));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn f12_one_bad_log_takes_no_other_down() {
    let mut world = World::new(RoutePolicy::default()).await;
    let bad = FakeLog { topics: vec![event().topic().unwrap()], ..asked(2) };
    let other = FakeLog { topics: vec![keccak256("Other()")], ..asked(3) };
    world.chain.mine(vec![asked(1), bad, other, asked(4)]);
    world.chain.mine(vec![asked(5)]);
    world.chain.finalize(2);
    let running = world.start();
    pass(SHORT).await;
    let live: Vec<u64> = world.live().await.iter().map(|(n, ..)| *n).collect();
    assert_eq!(live, [1, 4, 5]);
    assert_eq!(running.stats.quarantined(), 1);
    let dead: Vec<_> = world.views().await.into_iter().filter_map(|view| view.error).collect();
    assert!(matches!(&dead[..], [error] if error.text.contains("cannot be a request")), "{dead:?}");
    assert_eq!(world.cursor().await, Some(2), "and the cursor is past it");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn f13_a_reorg_at_the_head_is_told() {
    let mut world = World::new(RoutePolicy::default()).await;
    world.chain.mine(vec![asked(1)]);
    let running = world.start();
    pass(SHORT).await;
    assert_eq!(world.live().await, [(1, 1, Standing::Seen)]);
    world.chain.take_back(1);
    world.chain.mine(vec![asked(2)]);
    pass(SHORT).await;
    assert_eq!(world.live().await, [(1, 1, Standing::Orphaned), (2, 1, Standing::Seen)]);
    world.chain.mine_empty(1);
    world.chain.finalize(1);
    pass(SHORT).await;
    assert_eq!(world.live().await, [(2, 1, Standing::Final)], "the other is withdrawn");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn incident_6_the_same_transaction_elsewhere_is_the_same_request() {
    let mut world = World::new(RoutePolicy::default()).await;
    world.chain.mine_empty(2);
    world.chain.finalize(1);
    world.chain.mine(vec![asked(8), asked(1)]);
    let running = world.start();
    pass(SHORT).await;
    let before = world.views().await.into_iter().find(|view| view.occurrences[0].place.is_some()).unwrap().seq;
    // Replaced at the same height, back and forth, and then in another block at another place.
    for _ in 0..3 {
        world.chain.take_back(1);
        world.chain.mine(vec![asked(9)]);
        pass(SHORT).await;
        world.chain.take_back(1);
        world.chain.mine(vec![asked(8), asked(1)]);
        pass(SHORT).await;
    }
    assert_eq!(world.live().await[..2], [(1, 3, Standing::Seen), (8, 3, Standing::Seen)]);
    world.chain.take_back(1);
    world.chain.mine_empty(1);
    world.chain.mine(vec![asked(1), asked(8)]);
    pass(SHORT).await;
    let live = world.live().await;
    assert_eq!(live[..2], [(1, 4, Standing::Seen), (8, 4, Standing::Seen)]);
    assert!(world.views().await.iter().any(|view| view.seq == before), "admitted once");
    world.chain.mine_empty(3);
    world.chain.finalize(6);
    pass(SHORT).await;
    assert_eq!(world.live().await, [(1, 4, Standing::Final), (8, 4, Standing::Final)], "9 is withdrawn");
    // Deeper than what is final: this listener halts, and says what to do.
    world.chain.take_back(4);
    world.chain.mine_empty(6);
    let halted = running.halted().await;
    assert!(halted.contains("was final as"), "{halted}");
}

#[tokio::test(start_paused = true)]
async fn f14_no_boundary_of_a_range_hides_an_event() {
    for range in [1, 2, 3, 7] {
        let mut world = World::new(RoutePolicy::default()).await;
        world.options.range = range;
        (1..=21).for_each(|n| {
            world.chain.mine(vec![asked(n)]);
        });
        world.chain.finalize(14);
        let running = world.start();
        pass(SHORT).await;
        // Away for a while, in the midst of it.
        world.node.moods().silent = true;
        (22..=30).for_each(|n| {
            world.chain.mine(vec![asked(n)]);
        });
        pass(SHORT).await;
        world.node.moods().silent = false;
        pass(LONG).await;
        let live: Vec<u64> = world.live().await.iter().map(|(n, ..)| *n).collect();
        assert_eq!(live, (1..=30).collect::<Vec<_>>(), "range {range}");
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f16_a_full_route_pushes_back_and_loses_nothing() {
    let mut world = World::new(RoutePolicy { capacity: 3, ..RoutePolicy::default() }).await;
    (1..=9).for_each(|n| {
        world.chain.mine(vec![asked(n)]);
    });
    world.chain.finalize(9);
    let running = world.start();
    let mut seen: Vec<u64> = Vec::new();
    for _ in 0..9 {
        pass(SHORT).await;
        let live = world.numbered().await;
        assert!(live.len() <= 3);
        let Some((n, view)) = live.into_iter().min_by_key(|(n, _)| *n) else { break };
        seen.push(n);
        assert!(world.store.apply_one(Mend { id: view.id, remedy: Remedy::Cancel }).await.unwrap().holds());
    }
    assert_eq!(seen, (1..=9).collect::<Vec<_>>());
    pass(SHORT).await;
    assert_eq!(world.cursor().await, Some(9));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn incident_9_empty_blocks_are_passed_and_a_restart_resumes_at_the_head() {
    let mut world = World::new(RoutePolicy::default()).await;
    world.chain.mine_empty(20_000);
    world.chain.finalize(19_990);
    world.options.range = 1_000;
    // Killed on the way: what was passed is not read again.
    let running = world.start();
    let passed = loop {
        match world.cursor().await {
            Some(passed) if passed >= 5_000 => break passed,
            _ => tokio::task::yield_now().await,
        }
    };
    assert!(passed < 19_990, "it moves while there is more to read");
    running.task.abort();
    let before = world.node.asked("eth_getBlockByNumber");
    let running = world.start();
    pass(LONG).await;
    assert_eq!(world.cursor().await, Some(19_990));
    let read = (world.node.asked("eth_getBlockByNumber") - before) as u64;
    assert!(read < 20_000 - passed + 2_000, "{read} blocks were read after {passed}");
    running.stop().await;
    let before = world.node.asked("eth_getBlockByNumber");
    world.chain.mine(vec![asked(1)]);
    let running = world.start();
    pass(SHORT).await;
    assert_eq!(world.live().await, [(1, 20_001, Standing::Seen)]);
    assert!(world.node.asked("eth_getBlockByNumber") - before < 100, "it did not read it all again");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_node_shows_in_part_is_found_by_the_second_pass() {
    let mut world = World::new(RoutePolicy::default()).await;
    world.options.again_ms = 60_000;
    // The bloom is explained by the log that is shown.
    world.chain.mine(vec![asked(1), FakeLog { topics: asked(1).topics, ..asked(2) }]);
    world.chain.finalize(1);
    world.node.moods().hides = [asked(2).transaction].into();
    let running = world.start();
    pass(SHORT).await;
    assert_eq!(world.live().await.len(), 1);
    pass(LONG).await;
    assert_eq!(world.live().await.len(), 2);
    assert_eq!(running.stats.missed(), 1);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_request_is_marked_so() {
    let mut world = World::new(RoutePolicy::default()).await;
    world.chain.mine(vec![asked(1)]);
    let running = world.start();
    pass(SHORT).await;
    let id = world.views().await[0].id;
    world.chain.take_back(1);
    world.chain.mine_empty(3);
    world.chain.finalize(3);
    pass(LONG).await;
    let Some(Found::Ended(receipt)) = world.store.get(id).await.unwrap() else { panic!("it is still there") };
    assert_eq!(receipt.end, End::Withdrawn);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_probe_says_what_a_node_lacks_and_what_to_do() {
    let chain = one_in_each(9);
    chain.finalize(9);
    let node = FakeNode::on(&chain, CHAIN_ID);
    let troubles = async |from: u64| -> Vec<String> {
        source(&[&node]).probe(Height(from)).await.iter().map(ToString::to_string).collect()
    };
    assert_eq!(troubles(1).await, Vec::<String>::new());
    assert_eq!(troubles(10).await, Vec::<String>::new(), "the next block");
    let one = async |from: u64, part: &str| {
        let found = troubles(from).await;
        assert!(matches!(&found[..], [only] if only.contains(part)), "{found:?}");
    };
    one(11, "the first block to read is 11, and the newest of a node is 9: correct from_block").await;
    node.moods().pruned_below = 5;
    one(1, "use a node with an archive, or a later from_block").await;
    assert_eq!(troubles(5).await, Vec::<String>::new());
    node.moods().no_receipts = true;
    one(5, "does not show a block's receipts").await;
    node.moods().no_receipts = false;
    node.moods().no_tags = true;
    one(5, "set a depth instead").await;
    node.moods().chain_id = Some(1);
    one(5, "is on chain 1, not on 7: correct its URL").await;
    node.moods().silent = true;
    one(5, "connection refused").await;
    node.moods().silent = false;
    node.moods().chain_id = None;
    node.moods().no_tags = false;
    let live = source(&[&node]).live("ws://127.0.0.1:1/KEY").unwrap().probe(Height(5)).await;
    assert!(matches!(&live[..], [only] if !only.to_string().contains("KEY")), "{live:?}");
}
