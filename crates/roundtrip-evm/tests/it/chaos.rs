//! The whole round trip on a real node in the worst weather: requests are asked on Anvil, and
//! a relay in a process of its own answers them, on an embedded store and through a proxy
//! that loses, delays, refuses, cuts, reorders and lies. The process is killed again and
//! again, wherever it is; Anvil reorgs, forgets transactions and raises its base fee.
//!
//! On a server that is a store for many, four relays share it and compete for its lanes. Some
//! are frozen until others have taken over what they held, and go on as if nothing had been;
//! the server itself is killed in the middle of it all. Their clocks are minutes apart.
//!
//! Once the weather is good, everything ends: the outside checker, which asks Anvil itself,
//! finds one answer to each request, no second try at any of them, and no gap.
//!
//! `SEED=n` throws the same dice again; what they hit depends on what the processes do
//! meanwhile. With `SOAK` more is asked, and other seeds follow.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use alloy::primitives::{Address, B256, Bytes};
use alloy::rpc::client::RpcClient;
use alloy::sol_types::SolEvent;
use roundtrip::store::{Options, ReadExt, Store, open};
use roundtrip::testkit::servers::{PostgresServer, RedisCluster, RedisServer};
use roundtrip_evm::testkit::account::{deploy_board, dev_signers};
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::checker::{Verdict, check};
use roundtrip_evm::testkit::child::{Child, Orders};
use roundtrip_evm::testkit::deployment::answer_to;
use roundtrip_evm::testkit::node::{AnvilOptions, Node};
use roundtrip_evm::testkit::proxy::{Fault, Proxy, ProxyFaults};
use roundtrip_evm::testkit::submitter::{Submitter, SubmitterOptions};
use serde_json::{Value, json};

use super::world::payloads;

/// How much is asked, and how much where there is time.
const REQUESTS: usize = 2_000;
const SOAK_REQUESTS: usize = 5_000;
const KILLS: usize = 50;
/// The accounts that answer.
const LANES: [usize; 4] = [6, 7, 8, 9];
/// What a plain run throws, and how many runs follow it where there is time.
const FIRST_SEED: u64 = 4;
const SOAK_SEEDS: u64 = 8;
const FINAL_DEPTH: u64 = 6;
const BLOCK: Duration = Duration::from_millis(80);
/// Between two kills up to so much time passes, for each thousand requests: the storm lasts about as
/// long as they are asked.
const LIFE_MS_MAX_PER_THOUSAND: u64 = 1_000;
/// How many relays share a server.
const RELAYS: usize = 4;
/// How far their clocks are ahead; the first is right, since an embedded store goes by it.
const CLOCKS_AHEAD_MS: [i64; RELAYS] = [0, 300_000, -300_000, 60_000];
/// So many of a thousand times a relay is frozen instead of killed, for so long: longer than
/// it may hold what it holds.
const FREEZES_PER_MILLE: u16 = 300;
const FROZEN: Duration = Duration::from_millis(1_500);
/// Between so many kills of relays one of the server.
const KILLS_PER_SERVER_KILL: usize = 12;
/// After the storm, a thousand requests must end within so long.
const CALM_PER_THOUSAND: Duration = Duration::from_secs(120);
const GWEI: u64 = 1_000_000_000;

/// So many of a thousand blocks see this happen.
const REORGS_PER_MILLE: u16 = 80;
const REORG_BLOCKS_MAX: u64 = FINAL_DEPTH - 1;
const DROPS_PER_MILLE: u16 = 120;
const CLEARED_PER_MILLE: u16 = 20;
const SPIKES_PER_MILLE: u16 = 30;
const SPIKE_WEI: u64 = 20 * GWEI;

fn storm() -> ProxyFaults {
    ProxyFaults::none()
        .with(Fault::LostAnswer, 60)
        .with(Fault::Delay, 200)
        .delay_up_to(60)
        .with(Fault::TooManyRequests, 40)
        .with(Fault::ErrorBefore, 40)
        .with(Fault::ErrorAfter, 40)
        .with(Fault::Truncated, 40)
        .with(Fault::Reordered, 200)
        .with(Fault::LaggingHead, 120)
        .lag_by(3)
        .with(Fault::EmptyLogs, 200)
        .with(Fault::NullReceipts, 100)
}

/// What Anvil did to its transactions.
#[derive(Debug, Default)]
struct Weather {
    blocks: u64,
    reorgs: u64,
    drops: u64,
    spikes: u64,
}

/// The chain, and what happens to it.
struct Sky {
    node: Node,
    dice: fastrand::Rng,
    weather: Weather,
}

impl Sky {
    fn meets(&mut self, per_mille: u16) -> bool {
        self.dice.u16(..1_000) < per_mille
    }

    /// Another block.
    async fn mine(&mut self) {
        self.node.mine(1).await.unwrap();
        self.weather.blocks += 1;
    }

    /// Another block after a while, in good weather.
    async fn block(&mut self) {
        tokio::time::sleep(BLOCK).await;
        self.mine().await;
    }

    /// Another block after a while, in bad weather.
    async fn stormy_block(&mut self) {
        tokio::time::sleep(BLOCK).await;
        if self.meets(DROPS_PER_MILLE)
            && let Some(hash) = self.any_waiting().await
        {
            self.node.drop_transaction(hash).await.unwrap();
            self.weather.drops += 1;
        }
        if self.meets(CLEARED_PER_MILLE) {
            self.node.drop_all().await.unwrap();
            self.weather.drops += 1;
        }
        if self.meets(SPIKES_PER_MILLE) {
            self.node.set_next_base_fee(SPIKE_WEI).await.unwrap();
            self.weather.spikes += 1;
        }
        self.mine().await;
        if self.meets(REORGS_PER_MILLE) {
            let depth = self.dice.u64(1..=REORG_BLOCKS_MAX);
            self.node.reorg(depth).await.unwrap();
            self.weather.reorgs += 1;
        }
    }

    /// A transaction that waits to be mined.
    async fn any_waiting(&mut self) -> Option<B256> {
        let pool: Value = self.node.client().request_noparams("txpool_content").await.unwrap();
        let accounts = pool["pending"].as_object()?.values().filter_map(Value::as_object);
        let hashes: Vec<&Value> = accounts.flat_map(|account| account.values()).map(|sent| &sent["hash"]).collect();
        let chosen = hashes.get(self.dice.usize(..hashes.len().max(1)))?;
        serde_json::from_value((*chosen).clone()).ok()
    }
}

/// Where the relays keep what they know.
pub(super) struct Home {
    /// The store's URL.
    pub(super) url: String,
    /// How many relays share it.
    pub(super) relays: usize,
    /// Kills the server; another comes up by itself.
    pub(super) kill_server: Option<fn()>,
}

/// The relays, and what happens to them.
struct Lives {
    orders: Orders,
    children: Vec<Child>,
    /// Who is frozen, and until when.
    frozen: Vec<(Instant, usize)>,
    deaths: Deaths,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Deaths {
    killed: usize,
    frozen: usize,
    servers: usize,
}

impl Lives {
    fn begin(orders: Orders, relays: usize) -> Lives {
        let children = (0..relays).map(|at| start(&orders, at)).collect();
        Lives { orders, children, frozen: Vec::new(), deaths: Deaths::default() }
    }

    /// Lets the relays live for a while, then kills or freezes one, again and again.
    async fn suffer(mut self, life_ms_max: u64, kill_server: Option<fn()>, mut dice: fastrand::Rng) -> Lives {
        while self.deaths.killed < KILLS {
            tokio::time::sleep(Duration::from_millis(dice.u64(..life_ms_max))).await;
            self.thaw(Instant::now());
            self.all_live();
            let one = dice.usize(..self.children.len());
            let is_frozen = self.frozen.iter().any(|(_, frozen)| *frozen == one);
            if self.children.len() > 1 && !is_frozen && dice.u16(..1_000) < FREEZES_PER_MILLE {
                self.children[one].freeze().unwrap();
                self.frozen.push((Instant::now() + FROZEN, one));
                self.deaths.frozen += 1;
                continue;
            }
            self.children[one].kill().unwrap();
            self.frozen.retain(|(_, frozen)| *frozen != one);
            self.children[one] = start(&self.orders, one);
            self.deaths.killed += 1;
            if let (Some(kill), true) = (kill_server, self.deaths.killed.is_multiple_of(KILLS_PER_SERVER_KILL)) {
                kill();
                self.deaths.servers += 1;
            }
        }
        tokio::time::sleep(FROZEN).await;
        self.thaw(Instant::now());
        self
    }

    fn thaw(&mut self, now: Instant) {
        let (over, still) = self.frozen.iter().partition(|(until, _)| *until <= now);
        self.frozen = still;
        let over: Vec<(Instant, usize)> = over;
        over.into_iter().for_each(|(_, one)| self.children[one].thaw().unwrap());
    }

    fn all_live(&mut self) {
        for child in &mut self.children {
            assert_eq!(child.ended().unwrap(), None, "a relay ended by itself");
        }
    }
}

/// Starts the relay at this place, by a clock that is its own.
fn start(orders: &Orders, at: usize) -> Child {
    let orders = Orders { clock_ahead_ms: CLOCKS_AHEAD_MS[at], ..orders.clone() };
    Child::start(Path::new(env!("CARGO_BIN_EXE_evm-victim")), &orders).unwrap()
}

/// What is asked of whom, and who answers.
struct Round {
    client: RpcClient,
    board: Address,
    lanes: Vec<Address>,
    payloads: Vec<Bytes>,
    /// The store's URL.
    store: String,
}

impl Round {
    /// How many answers the chain shows.
    async fn answered(&self) -> usize {
        let topics = [RequestBoard::Responded::SIGNATURE_HASH];
        let filter = json!([{"address": self.board, "fromBlock": "0x0", "topics": topics}]);
        let logs: Vec<Value> = self.client.request("eth_getLogs", filter).await.unwrap();
        logs.len()
    }

    /// What the checker says if all is well.
    fn clean(&self) -> Verdict {
        Verdict { settled: self.payloads.len() as u64, lost: 0, doubled: 0, wrong: 0, gaps: 0 }
    }

    async fn verdict(&self) -> Verdict {
        check(&self.client, self.board, &self.payloads, &self.lanes, answer_to).await.unwrap()
    }

    fn submit(&self) -> Submitter {
        // Slowly, so that it lasts as long as the storm.
        let options = SubmitterOptions { window: 1, depth: FINAL_DEPTH + 1, ..SubmitterOptions::default() };
        let keys = dev_signers()[1..5].to_vec();
        Submitter::start(self.client.clone(), self.board, keys, self.payloads.clone(), options)
    }

    /// Makes blocks until everything is answered once, in good weather.
    async fn calm(&self, sky: &mut Sky, submitter: Submitter, mut lives: Lives) {
        let (started, count) = (Instant::now(), self.payloads.len());
        let within = CALM_PER_THOUSAND * u32::try_from(count.div_ceil(1_000)).unwrap();
        loop {
            sky.block().await;
            lives.all_live();
            let late = started.elapsed() > within;
            let ripe = submitter.is_finished() && self.answered().await >= count;
            if !ripe && !late {
                continue;
            }
            let verdict = self.verdict().await;
            if verdict == self.clean() {
                break;
            }
            if late {
                drop(lives);
                panic!("{verdict}; {:?}; left in the store: {}", sky.weather, self.left().await);
            }
        }
        for child in lives.children {
            child.stop().await.unwrap();
        }
        assert_eq!(submitter.finish().await.unwrap().len(), count);
    }

    /// For whoever reads of a failure.
    async fn left(&self) -> String {
        let store = open(&self.store, Options::default()).unwrap();
        let (counts, lanes) = (store.counts().await.unwrap(), store.lanes().await.unwrap());
        store.close().await.unwrap();
        format!("{counts:?} {lanes:?}")
    }
}

/// Whether there is time.
fn soaks() -> bool {
    std::env::var_os("SOAK").is_some()
}

/// One run on this store.
async fn run(home: &Home, seed: u64) {
    let count = if soaks() { SOAK_REQUESTS } else { REQUESTS };
    println!("seed {seed}, {count} requests");
    let started = Instant::now();
    let mut dice = fastrand::Rng::with_seed(seed);
    let node = Node::anvil(AnvilOptions::default()).await.unwrap();
    let proxy = Proxy::start(node.url(), dice.u64(..), storm()).await.unwrap();
    let client = node.client();
    let lanes: Vec<Address> = LANES.iter().map(|&lane| dev_signers()[lane].address()).collect();
    let board = deploy_board(&client, &dev_signers()[0], &lanes).await.unwrap();
    // No reorg reaches the board itself.
    node.mine(FINAL_DEPTH).await.unwrap();
    let orders = Orders {
        url: proxy.url().to_string(),
        store: home.url.clone(),
        board,
        from_block: 0,
        lanes: LANES.to_vec(),
        final_depth: FINAL_DEPTH,
        clock_ahead_ms: 0,
    };
    let round = Round { client, board, lanes, payloads: payloads(count), store: home.url.clone() };

    let submitter = round.submit();
    let lives = Lives::begin(orders, home.relays);
    let life_ms_max = LIFE_MS_MAX_PER_THOUSAND * (count as u64).div_ceil(1_000);
    let lives = tokio::spawn(lives.suffer(life_ms_max, home.kill_server, dice.fork()));
    let mut sky = Sky { node, dice, weather: Weather::default() };
    while !lives.is_finished() {
        sky.stormy_block().await;
    }
    let lives = lives.await.unwrap();
    let deaths = lives.deaths;
    let (stormy, asked, answered) = (started.elapsed(), submitter.progress().mined, round.answered().await);
    proxy.set_faults(ProxyFaults::none());
    round.calm(&mut sky, submitter, lives).await;

    // Nobody sends any more.
    let verdict = round.verdict().await;
    let weather = &sky.weather;
    let faults = Fault::ALL.map(|fault| (fault, proxy.count(fault)));
    println!("{verdict}, gaps {}; {deaths:?}, {weather:?}, proxy {faults:?}", verdict.gaps);
    println!("{asked} asked and {answered} answered in {stormy:.1?} of storm, all in {:.1?}", started.elapsed());
    assert_eq!(verdict, round.clean());
    // Good weather would show nothing.
    assert_eq!(deaths.killed, KILLS);
    assert_eq!((deaths.frozen > 0, deaths.servers > 0), (home.relays > 1, home.kill_server.is_some()), "{deaths:?}");
    assert!(weather.reorgs > 0 && weather.drops > 0 && weather.spikes > 0, "{weather:?}");
    assert!(faults.iter().all(|(_, count)| *count > 0), "{faults:?}");
    assert!(answered > 0, "nothing was answered between the kills");
}

/// As many runs as there is time for, each on a store of its own.
pub(super) async fn runs(home: impl Fn() -> Home) {
    if let Ok(seed) = std::env::var("SEED") {
        return run(&home(), seed.parse().unwrap()).await;
    }
    let more = if soaks() { SOAK_SEEDS } else { 0 };
    for seed in FIRST_SEED..=FIRST_SEED + more {
        run(&home(), seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_however_often_it_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let files = std::cell::Cell::new(0);
    runs(|| {
        files.set(files.get() + 1);
        let file = folder.path().join(format!("chaos-{}.db", files.get()));
        Home { url: format!("sqlite:{}", file.display()), relays: 1, kill_server: None }
    })
    .await;
}

/// The one server of this test run.
pub(super) fn postgres() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(|| PostgresServer::start(&[]).unwrap())
}

pub(super) fn redis() -> &'static RedisServer {
    static SERVER: OnceLock<RedisServer> = OnceLock::new();
    SERVER.get_or_init(|| RedisServer::start(RedisServer::SYNCED).unwrap())
}

pub(super) fn redis_cluster() -> &'static RedisCluster {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| RedisCluster::start().unwrap())
}

/// Runs of relays that share a store, under names of their own.
async fn shared(url: impl Fn(&str) -> String, kill_server: fn()) {
    let names = std::cell::Cell::new(0);
    runs(|| {
        names.set(names.get() + 1);
        Home { url: url(&format!("chaos_{}", names.get())), relays: RELAYS, kill_server: Some(kill_server) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_that_share_a_postgres_lose_and_double_nothing() {
    shared(|name| postgres().url(name), || assert!(postgres().kill().is_ok())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_that_share_a_redis_lose_and_double_nothing() {
    shared(|name| redis().url(name), || assert!(redis().kill().is_ok())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_that_share_a_redis_cluster_lose_and_double_nothing() {
    shared(|name| redis_cluster().url(name), || assert!(redis_cluster().kill().is_ok())).await;
}
