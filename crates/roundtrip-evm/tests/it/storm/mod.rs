//! Listening in the worst weather: 20,000 events over 2,000 blocks that reorgs take back, move
//! and drop, from a node behind a proxy that loses, refuses, lags and lies. Two listeners feed
//! one route; they are killed again and again, and one of them dies for good half way. The
//! chain is one that the test writes, so that every store can be tried, or that of an Anvil.
//!
//! Once the weather is good, the store has one final request for every event that is on the
//! chain, where it is on the chain, and everything else is marked as withdrawn.
//!
//! `SEED=n` throws the same dice again; what they hit depends on what the processes do meanwhile.

mod anvil;
mod fake;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use roundtrip::inbox::{End, Standing};
use roundtrip::store::query::{Found, ListFilter};
use roundtrip::store::{Options, ReadExt, open};
use roundtrip::words::{PAGE_MAX, Payload, RequestId, RouteName};
use roundtrip_evm::testkit::child::{Child, ListenOrders};
use roundtrip_evm::testkit::proxy::{Fault, Proxy, ProxyFaults};
use serde_json::json;

use anvil::AnvilSky;
use fake::FakeSky;

use super::chaos::{Home, postgres, redis, redis_cluster};

const EVENTS_IN_A_BLOCK: u64 = 10;
const BLOCKS: u64 = 2_000;
/// A storm goes on until it has had every fault, for so many blocks at the most.
const BLOCKS_MAX: u64 = 3 * BLOCKS;
const KILLS: u64 = 20;
const FINAL_DEPTH: u64 = 8;
const REORG_BLOCKS_MAX: usize = 6;
/// So many of a thousand blocks are taken back again, with some before them.
const REORGS_PER_MILLE: u16 = 40;
/// So many of a thousand events that were taken back never come again.
const DROPPED_PER_MILLE: u16 = 150;
const BLOCK: Duration = Duration::from_millis(8);
const FIRST_SEED: u64 = 6;
/// After the storm, the store must agree within so long.
const CALM_MAX: Duration = Duration::from_secs(120);
const CALM_LOOK: Duration = Duration::from_secs(2);

/// So many of a thousand requests meet these.
const FAULTS: [(Fault, u16); 9] = [
    (Fault::LostAnswer, 30),
    (Fault::Delay, 100),
    (Fault::TooManyRequests, 20),
    (Fault::ErrorBefore, 30),
    (Fault::Truncated, 20),
    (Fault::Reordered, 200),
    (Fault::LaggingHead, 100),
    (Fault::EmptyLogs, 100),
    (Fault::NullReceipts, 50),
];

fn storm() -> ProxyFaults {
    let calm = ProxyFaults::none().delay_up_to(20).lag_by(3);
    FAULTS.into_iter().fold(calm, |faults, (fault, per_mille)| faults.with(fault, per_mille))
}

/// What no request has met yet. How many requests there are is up to the listeners: a slow machine asks less.
fn unmet(proxy: &Proxy) -> Vec<Fault> {
    let faults = FAULTS.into_iter().map(|(fault, _)| fault);
    faults.filter(|fault| proxy.count(*fault) == 0).collect()
}

/// The events that are on the chain: number and height.
type Canonical = Vec<(u64, u64)>;

/// The chain, and what happens to it.
trait Sky {
    /// Where its node is.
    fn url(&self) -> String;
    fn chain_id(&self) -> u64;
    /// The event that is listened to; its argument `id` is its number.
    fn event(&self) -> &'static str;
    /// Another block with new events, some that were taken back, and now and then a reorg.
    async fn block(&mut self);
    /// Everything that is to come is there, and final.
    async fn clear(&mut self);
    /// How many events there were so far, from number 0.
    fn asked(&self) -> u64;
    fn reorgs(&self) -> u64;
    /// What is on the chain, as the chain itself tells.
    async fn canonical(&self) -> Canonical;
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
    fn begin(home: &Home, url: &str, sky: &impl Sky) -> Lives {
        let orders = |listeners: &[&str]| ListenOrders {
            urls: vec![url.to_owned()],
            chain_id: sky.chain_id(),
            store: home.url.clone(),
            event: sky.event().to_owned(),
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
async fn differences(home: &Home, orders: &ListenOrders, sky: &impl Sky) -> Vec<String> {
    let store = open(&home.url, Options::default()).unwrap();
    let canonical = sky.canonical().await;
    let mut expected: BTreeMap<RequestId, (u64, u64)> = BTreeMap::new();
    for &(n, height) in &canonical {
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
    let canonical: BTreeSet<u64> = canonical.into_iter().map(|(n, _)| n).collect();
    for n in (0..sky.asked()).filter(|n| !canonical.contains(n)) {
        match store.get(id_of(orders, n)).await.unwrap() {
            None => {}
            Some(Found::Ended(receipt)) if receipt.end == End::Withdrawn => {}
            other => wrong.push(format!("{n} is gone and not withdrawn: {other:?}")),
        }
    }
    store.close().await.unwrap();
    wrong
}

fn dice() -> fastrand::Rng {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(FIRST_SEED);
    println!("seed {seed}");
    fastrand::Rng::with_seed(seed)
}

async fn weather(home: Home, mut sky: impl Sky, mut dice: fastrand::Rng) {
    let proxy = Proxy::start(sky.url().parse().unwrap(), dice.u64(..), storm()).await.unwrap();
    let mut lives = Lives::begin(&home, proxy.url().as_str(), &sky);
    let mut blocks = 0;
    while blocks < BLOCKS || !unmet(&proxy).is_empty() {
        assert!(blocks < BLOCKS_MAX, "{:?} never came", unmet(&proxy));
        tokio::time::sleep(BLOCK).await;
        sky.block().await;
        blocks += 1;
        if blocks.is_multiple_of(BLOCKS / KILLS) {
            let one = dice.usize(..lives.children.len());
            lives.kill(one);
        }
        if blocks == BLOCKS / 2 {
            lives.lose_the_second();
        }
    }
    proxy.set_faults(ProxyFaults::none());
    sky.clear().await;
    assert_eq!(sky.asked(), blocks * EVENTS_IN_A_BLOCK);
    assert!(sky.reorgs() > 20, "{} reorgs", sky.reorgs());
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

/// The same on a chain that is written here.
async fn written(home: Home) {
    let mut dice = dice();
    let sky = FakeSky::new(dice.fork()).await;
    weather(home, sky, dice).await;
}

/// A store that two processes share.
fn shared(url: String) -> Home {
    Home { url, relays: 2, kill_server: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_one_request_and_every_withdrawn_one_is_marked_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("storm.db").display());
    written(Home { url, relays: 1, kill_server: None }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_one_request_and_every_withdrawn_one_is_marked_on_postgres() {
    written(shared(postgres().url("storm"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_one_request_and_every_withdrawn_one_is_marked_on_redis() {
    written(shared(redis().url("storm"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_is_one_request_and_every_withdrawn_one_is_marked_on_a_redis_cluster() {
    written(shared(redis_cluster().url("storm"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_event_of_an_anvil_is_one_request_and_every_withdrawn_one_is_marked_by_two_processes() {
    let mut dice = dice();
    let sky = AnvilSky::new(dice.fork()).await;
    weather(shared(postgres().url("storm-anvil")), sky, dice).await;
}
