//! Listening in the worst weather: 20,000 events over 2,000 blocks that reorgs take back, move
//! and drop, from a node behind a proxy that loses, refuses, lags and lies. Two listeners feed
//! one route; they are killed again and again, and one of them dies for good half way.
//!
//! Once the weather is good, the store has one final request for every event that is on the
//! chain, where it is on the chain, and everything else is marked as withdrawn.
//!
//! `SEED=n` throws the same dice again; what they hit depends on what the processes do meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use alloy::primitives::{Address, B256, Bytes, keccak256};
use roundtrip::inbox::{End, Standing};
use roundtrip::store::query::{Found, ListFilter};
use roundtrip::store::{Options, ReadExt, open};
use roundtrip::words::{PAGE_MAX, Payload, RequestId, RouteName};
use roundtrip_evm::EventSignature;
use roundtrip_evm::testkit::child::{Child, ListenOrders};
use roundtrip_evm::testkit::fakenode::{FakeChain, FakeLog, FakeNode};
use roundtrip_evm::testkit::proxy::{Fault, Proxy, ProxyFaults};
use serde_json::json;

use super::chaos::{Home, postgres, redis, redis_cluster};

const EVENTS_IN_A_BLOCK: u64 = 10;
const BLOCKS: u64 = 2_000;
const KILLS: u64 = 20;
const FINAL_DEPTH: u64 = 8;
const REORG_BLOCKS_MAX: usize = 6;
/// So many of a thousand blocks are taken back again, with some before them.
const REORGS_PER_MILLE: u16 = 40;
/// So many of a thousand events that were taken back never come again.
const DROPPED_PER_MILLE: u16 = 150;
const BLOCK: Duration = Duration::from_millis(8);
const CHAIN_ID: u64 = 7;
const EVENT: &str = "Asked(uint256 indexed id)";
const FIRST_SEED: u64 = 6;
/// After the storm, the store must agree within so long.
const CALM_MAX: Duration = Duration::from_secs(120);
const CALM_LOOK: Duration = Duration::from_secs(2);

fn storm() -> ProxyFaults {
    ProxyFaults::none()
        .with(Fault::LostAnswer, 30)
        .with(Fault::Delay, 100)
        .delay_up_to(20)
        .with(Fault::TooManyRequests, 20)
        .with(Fault::ErrorBefore, 30)
        .with(Fault::Truncated, 20)
        .with(Fault::Reordered, 200)
        .with(Fault::LaggingHead, 100)
        .lag_by(3)
        .with(Fault::EmptyLogs, 100)
        .with(Fault::NullReceipts, 50)
}

fn asked(n: u64) -> FakeLog {
    let topic = EventSignature::parse(EVENT).unwrap().topic().unwrap();
    let topics = vec![topic, B256::left_padding_from(&n.to_be_bytes())];
    let address = Address::repeat_byte(0xB0);
    FakeLog { address, topics, data: Bytes::new(), transaction: keccak256(n.to_be_bytes()) }
}

/// The chain, and what happens to it.
struct Sky {
    chain: FakeChain,
    dice: fastrand::Rng,
    asked: u64,
    /// What was taken back and is to come again.
    again: Vec<FakeLog>,
    reorgs: u64,
}

impl Sky {
    async fn block(&mut self) {
        tokio::time::sleep(BLOCK).await;
        let fresh = self.asked..self.asked + EVENTS_IN_A_BLOCK;
        self.asked = fresh.end;
        let mut logs: Vec<FakeLog> = fresh.map(asked).collect();
        // Elsewhere, and at another place among others.
        let back = self.dice.usize(..=self.again.len());
        logs.extend(self.again.split_off(self.again.len() - back));
        self.dice.shuffle(&mut logs);
        self.chain.mine(logs);
        if self.dice.u16(..1_000) < REORGS_PER_MILLE {
            let taken = self.chain.take_back(self.dice.usize(1..=REORG_BLOCKS_MAX));
            let returns = |_: &FakeLog| self.dice.u16(..1_000) >= DROPPED_PER_MILLE;
            self.again.extend(taken.into_iter().filter(returns));
            self.reorgs += 1;
        }
        self.chain.finalize(self.chain.head().saturating_sub(FINAL_DEPTH));
    }
}

/// The listeners: two processes on a server, two in one process on a file that is its own.
struct Lives {
    orders: Vec<ListenOrders>,
    children: Vec<Option<Child>>,
}

fn start(orders: &ListenOrders) -> Child {
    Child::start(Path::new(env!("CARGO_BIN_EXE_evm-victim")), orders).unwrap()
}

impl Lives {
    fn begin(home: &Home, url: &str) -> Lives {
        let orders = |listeners: &[&str]| ListenOrders {
            urls: vec![url.to_owned()],
            chain_id: CHAIN_ID,
            store: home.url.clone(),
            event: EVENT.to_owned(),
            argument: "id".to_owned(),
            route: "board".to_owned(),
            listeners: listeners.iter().map(|&name| name.to_owned()).collect(),
        };
        let orders = match home.relays {
            1 => vec![orders(&["first", "second"])],
            _ => vec![orders(&["first"]), orders(&["second"])],
        };
        let children = orders.iter().map(|orders| Some(start(orders))).collect();
        Lives { orders, children }
    }

    fn kill(&mut self, one: usize) {
        let child = self.children[one].as_mut().unwrap();
        assert_eq!(child.ended().unwrap(), None, "a listener ended by itself");
        child.kill().unwrap();
        self.children[one] = Some(start(&self.orders[one]));
    }

    /// The second listener is gone for good.
    fn lose_the_second(&mut self) {
        match self.orders.len() {
            1 => {
                self.orders[0].listeners.truncate(1);
                self.kill(0);
            }
            _ => {
                self.children[1].take().unwrap().kill().unwrap();
                self.orders.truncate(1);
                self.children.truncate(1);
            }
        }
    }

    async fn rest(&mut self) {
        for child in &mut self.children {
            child.take().unwrap().stop().await.unwrap();
        }
    }

    fn wake(&mut self) {
        self.children = self.orders.iter().map(|orders| Some(start(orders))).collect();
    }
}

/// The id of event `n`.
fn id_of(orders: &ListenOrders, n: u64) -> RequestId {
    let payload = Payload::json(json!({"args": {"id": n.to_string()}}).to_string());
    orders.identity().unwrap().id_of(&RouteName::new("board").unwrap(), &payload).unwrap().unwrap()
}

/// What the store has that the chain has not, or the other way round; in words.
async fn differences(home: &Home, orders: &ListenOrders, sky: &Sky) -> Vec<String> {
    let store = open(&home.url, Options::default()).unwrap();
    let mut expected: BTreeMap<RequestId, (u64, u64)> = BTreeMap::new();
    for (height, log) in sky.chain.logs() {
        let n = u64::from_be_bytes(log.topics[1][24..].try_into().unwrap());
        let twice = expected.insert(id_of(orders, n), (n, height));
        assert_eq!(twice, None, "the chain shows each event once");
    }
    let (mut wrong, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(ListFilter { limit: PAGE_MAX, after, ..ListFilter::default() }).await.unwrap();
        for view in page.requests {
            let place = view.occurrences[0].place.as_ref().map(|place| place.height.0);
            match expected.remove(&view.id) {
                Some((_, height)) if view.standing == Standing::Final && place == Some(height) => {}
                Some((n, height)) => wrong.push(format!("{n} at {height} is {:?} at {place:?}", view.standing)),
                None => wrong.push(format!("{} is not on the chain, and {:?}", view.id, view.standing)),
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    wrong.extend(expected.values().map(|(n, height)| format!("{n} at {height} is missing")));
    for log in &sky.again {
        let n = u64::from_be_bytes(log.topics[1][24..].try_into().unwrap());
        wrong.push(format!("{n} is still to come"));
    }
    let canonical: Vec<B256> = sky.chain.logs().into_iter().map(|(_, log)| log.transaction).collect();
    let canonical: std::collections::HashSet<B256> = canonical.into_iter().collect();
    for n in (0..sky.asked).filter(|n| !canonical.contains(&asked(*n).transaction)) {
        match store.get(id_of(orders, n)).await.unwrap() {
            None => {}
            Some(Found::Ended(receipt)) if receipt.end == End::Withdrawn => {}
            other => wrong.push(format!("{n} is gone and not withdrawn: {other:?}")),
        }
    }
    store.close().await.unwrap();
    wrong
}

async fn weather(home: Home) {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(FIRST_SEED);
    println!("seed {seed}");
    let mut dice = fastrand::Rng::with_seed(seed);
    let chain = FakeChain::new();
    let node = FakeNode::on(&chain, CHAIN_ID).serve_http().await.unwrap();
    let proxy = Proxy::start(node.url().parse().unwrap(), dice.u64(..), storm()).await.unwrap();
    let mut lives = Lives::begin(&home, proxy.url().as_str());
    let mut sky = Sky { chain, dice: dice.fork(), asked: 0, again: Vec::new(), reorgs: 0 };
    for block in 1..=BLOCKS {
        sky.block().await;
        if block.is_multiple_of(BLOCKS / KILLS) {
            let one = dice.usize(..lives.children.len());
            lives.kill(one);
        }
        if block == BLOCKS / 2 {
            lives.lose_the_second();
        }
    }
    proxy.set_faults(ProxyFaults::none());
    sky.chain.mine(std::mem::take(&mut sky.again));
    sky.chain.mine_empty(3);
    sky.chain.finalize(sky.chain.head());
    assert!(sky.reorgs > 20, "{} reorgs", sky.reorgs);
    let started = Instant::now();
    loop {
        tokio::time::sleep(CALM_LOOK).await;
        lives.rest().await;
        let wrong = differences(&home, &lives.orders[0], &sky).await;
        if wrong.is_empty() {
            break;
        }
        let few: Vec<&String> = wrong.iter().take(5).collect();
        assert!(started.elapsed() < CALM_MAX, "{} differences, such as {few:?}", wrong.len());
        lives.wake();
    }
}

/// A store that two processes share.
fn shared(url: String) -> Home {
    Home { url, relays: 2, kill_server: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_one_request_and_every_withdrawn_one_is_marked_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("storm.db").display());
    weather(Home { url, relays: 1, kill_server: None }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_one_request_and_every_withdrawn_one_is_marked_on_postgres() {
    weather(shared(postgres().url("storm"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_one_request_and_every_withdrawn_one_is_marked_on_redis() {
    weather(shared(redis().url("storm"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_one_request_and_every_withdrawn_one_is_marked_on_a_redis_cluster() {
    weather(shared(redis_cluster().url("storm"))).await;
}
