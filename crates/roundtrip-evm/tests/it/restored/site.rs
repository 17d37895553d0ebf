//! A chain with a board, and stores of one kind that are copied, and opened again a day later.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use alloy::primitives::{Address, B256, Bytes, TxKind, U64};
use alloy::rpc::client::RpcClient;
use alloy::signers::local::PrivateKeySigner;
use alloy::sol_types::SolCall;
use roundtrip::clock::{Clock, SystemClock};
use roundtrip::inbox::StateKind;
use roundtrip::relay::Running;
use roundtrip::sender::chain::Chain;
use roundtrip::sender::{LaneStatus, Patience};
use roundtrip::store::archive::copy;
use roundtrip::store::op::{Op, Outcome};
use roundtrip::store::query::{ListFilter, Query, Reply};
use roundtrip::store::{
    Batched, Changes, Options, PostgresStore, ReadExt, RedisStore, SqliteStore, Store, StoreFuture, Topic,
};
use roundtrip::words::{Height, LaneName, Moment, PAGE_MAX, RouteName, UnixMs};
use roundtrip_evm::Rpc;
use roundtrip_evm::testkit::account::{Call, Fees, deploy_board, dev_signers, head};
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::checker::{Verdict, check};
use roundtrip_evm::testkit::deployment::{Deployment, GAS, Pace, ROUTE, answer_to, by_the_contract};
use roundtrip_evm::testkit::devchain::{DevChain, DevChainOptions};
use roundtrip_evm::testkit::node::{AnvilOptions, Node};

use crate::chaos::{postgres, redis, redis_cluster};
use crate::world::{CHAIN_ID, FINAL_DEPTH, STEADY};

/// What makes blocks.
pub(super) enum Ground {
    Dev(DevChain),
    Anvil(Node),
}

impl Ground {
    pub(super) fn dev() -> Ground {
        Ground::Dev(DevChain::new(DevChainOptions { finality: FINAL_DEPTH, ..DevChainOptions::default() }))
    }

    pub(super) async fn anvil() -> Ground {
        Ground::Anvil(Node::anvil(AnvilOptions::default()).await.unwrap())
    }

    pub(super) fn client(&self) -> RpcClient {
        match self {
            Ground::Dev(chain) => chain.client(),
            Ground::Anvil(node) => node.client(),
        }
    }

    pub(super) async fn mine(&self) {
        match self {
            Ground::Dev(chain) => drop(chain.mine()),
            Ground::Anvil(node) => node.mine(1).await.unwrap(),
        }
    }

    pub(super) async fn set_base_fee(&self, wei: u64) {
        match self {
            Ground::Dev(chain) => chain.set_base_fee(wei),
            Ground::Anvil(node) => node.set_next_base_fee(wei).await.unwrap(),
        }
    }

    /// The next block is a day later. The development chain has a block every so many seconds, always.
    pub(super) async fn pass_a_day(&self) {
        if let Ground::Anvil(node) = self {
            node.pass_time(DAY_MS / 1000).await.unwrap();
        }
    }
}

pub(super) const BLOCK: Duration = Duration::from_millis(30);
pub(super) const PATIENCE: Duration = Duration::from_secs(90);
pub(super) const DAY_MS: u64 = 24 * 3_600_000;
/// How long seats and leases last.
pub(super) const HOLD_MS: u64 = 1_000;
/// How long an answer is of use, where that is tested.
pub(super) const OF_USE_MS: u64 = 3_600_000;

/// A clock of the stores and of the relays that a test moves ahead.
#[derive(Clone)]
pub(super) struct Ahead(SystemClock, Arc<AtomicU64>);

impl Clock for Ahead {
    fn now(&self) -> UnixMs {
        self.0.now().plus(self.1.load(Ordering::SeqCst))
    }
}

/// Which stores a test is on.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Sqlite,
    Postgres,
    Redis,
    Cluster,
}

/// A store that gives every request a deadline.
pub(super) struct Hurried(Arc<dyn Store>, Ahead);

impl Store for Hurried {
    fn apply(&self, mut batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        for op in &mut batch {
            let Op::Admit(admit) = op else { continue };
            let deadline = Moment::At(self.1.now().plus(OF_USE_MS));
            admit.requests.iter_mut().for_each(|request| request.deadline = Some(deadline.clone()));
        }
        self.0.apply(batch)
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.0.read(query)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.0.close()
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.0.changes(topic)
    }
}

/// A chain with a board, and stores of one kind.
pub(super) struct Site {
    pub(super) ground: Ground,
    pub(super) client: RpcClient,
    board: Address,
    pub(super) lanes: Vec<PrivateKeySigner>,
    pub(super) asked: Vec<Bytes>,
    pub(super) patience: Patience,
    kind: Kind,
    /// Whether requests have deadlines.
    pub(super) hurried: bool,
    pub(super) clock: Ahead,
    /// What its stores are called, so that no other test's are.
    name: String,
    folder: tempfile::TempDir,
}

impl Site {
    pub(super) async fn new(ground: Ground, kind: Kind, lanes: usize) -> Site {
        static SITES: AtomicU64 = AtomicU64::new(0);
        let client = ground.client();
        let lanes = dev_signers()[5..5 + lanes].to_vec();
        let accounts: Vec<Address> = lanes.iter().map(|lane| lane.address()).collect();
        let board = match &ground {
            Ground::Dev(chain) => chain.deploy_board(&accounts),
            Ground::Anvil(_) => deploy_board(&client, &dev_signers()[0], &accounts).await.unwrap(),
        };
        Site {
            ground,
            client,
            board,
            lanes,
            asked: Vec::new(),
            patience: STEADY,
            kind,
            hurried: false,
            clock: Ahead(SystemClock::new(), Arc::default()),
            name: format!("restored_{}", SITES.fetch_add(1, Ordering::Relaxed)),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(super) fn deployment(&self) -> Deployment {
        Deployment {
            rpc: Rpc::over(self.client.clone()),
            chain_id: CHAIN_ID,
            board: self.board,
            from_block: Height(0),
            lanes: self.lanes.clone(),
            final_depth: FINAL_DEPTH,
            identity: by_the_contract().unwrap(),
            gas: GAS,
            parcel_max: 1,
            pace: Pace { poll: Duration::from_millis(20), hold_ms: HOLD_MS, patience: self.patience, window: 16 },
        }
    }

    /// Where the store of this name is.
    pub(super) fn url(&self, store: &str) -> String {
        let name = format!("{}_{store}", self.name);
        match self.kind {
            Kind::Sqlite => format!("sqlite:{}", self.folder.path().join(name).join("store.db").display()),
            Kind::Postgres => postgres().url(&name),
            Kind::Redis => redis().url(&name),
            Kind::Cluster => redis_cluster().url(&name),
        }
    }

    /// Opens the store of this name, by the test's clock.
    pub(super) fn open(&self, store: &str) -> Arc<dyn Store> {
        let (url, clock, options) = (self.url(store), Arc::new(self.clock.clone()), Options::default());
        let store: Arc<dyn Store> = match self.kind {
            Kind::Sqlite => {
                let file = url.trim_start_matches("sqlite:");
                std::fs::create_dir_all(Path::new(file).parent().unwrap()).unwrap();
                Arc::new(SqliteStore::open(file, clock, options).unwrap())
            }
            Kind::Postgres => Arc::new(Batched::new(PostgresStore::new(&url, options).unwrap().with_clock(clock))),
            Kind::Redis | Kind::Cluster => {
                Arc::new(Batched::new(RedisStore::new(&url, options).unwrap().with_clock(clock)))
            }
        };
        if self.hurried { Arc::new(Hurried(store, self.clock.clone())) } else { store }
    }

    /// A relay on this store.
    pub(super) async fn relay(&self, store: &Arc<dyn Store>) -> Running {
        let chain = Arc::new(self.deployment().chain().unwrap());
        self.relay_to(store, chain).await
    }

    pub(super) async fn relay_to(&self, store: &Arc<dyn Store>, chain: Arc<dyn Chain>) -> Running {
        let clock = Arc::new(self.clock.clone());
        self.deployment().relay_to(store.clone(), clock, chain).unwrap().start().await.unwrap()
    }

    /// Copies one store to another, of which nothing is there yet. Nobody may use either.
    pub(super) async fn copy(&self, from: &str, to: &str) {
        if let Kind::Sqlite = self.kind {
            let file = self.url(to).trim_start_matches("sqlite:").to_owned();
            std::fs::create_dir_all(Path::new(&file).parent().unwrap()).unwrap();
        }
        copy(self.url(from).as_str(), self.url(to).as_str(), |_| ControlFlow::Continue(())).await.unwrap();
    }

    /// Asks so many more; they wait to be mined.
    pub(super) async fn ask(&mut self, count: usize) {
        for _ in 0..count {
            let payload: Bytes = format!("ask {}", self.asked.len()).into_bytes().into();
            let input = RequestBoard::requestCall { payload: payload.clone() }.abi_encode();
            self.send(&dev_signers()[1], self.asked.len() as u64, input).await;
            self.asked.push(payload);
        }
    }

    /// Somebody's call of the board waits to be mined.
    pub(super) async fn send(&self, key: &PrivateKeySigner, nonce: u64, input: Vec<u8>) {
        let call = Call {
            chain_id: CHAIN_ID,
            nonce,
            to: TxKind::Call(self.board),
            input: input.into(),
            gas_limit: 200_000,
            fees: Fees::above(head(&self.client).await.unwrap().base_fee()),
        };
        let raw = call.sign(key).unwrap();
        let _: B256 = self.client.request("eth_sendRawTransaction", (&raw.bytes,)).await.unwrap();
    }

    /// Makes blocks until something is so.
    pub(super) async fn mine_until(&self, what: &str, so: impl AsyncFn() -> bool) {
        let started = Instant::now();
        while !so().await {
            assert!(started.elapsed() < PATIENCE, "waited in vain: {what}");
            tokio::time::sleep(BLOCK).await;
            self.ground.mine().await;
        }
    }

    /// How many transactions of the lanes are mined.
    pub(super) async fn sent(&self) -> u64 {
        let mut sent = 0;
        for lane in &self.lanes {
            let count: U64 = self.client.request("eth_getTransactionCount", (lane.address(), "latest")).await.unwrap();
            sent += count.to::<u64>();
        }
        sent
    }

    /// Makes blocks until everything is answered, and nothing is left in the store: each answer
    /// once, by one transaction, without a hole in the nonces.
    pub(super) async fn settled(&self, store: &Arc<dyn Store>) {
        let accounts: Vec<Address> = self.lanes.iter().map(|lane| lane.address()).collect();
        let verdict = async || check(&self.client, self.board, &self.asked, &accounts, answer_to).await.unwrap();
        let idle = async || is_drained(store).await && self.sent().await >= self.asked.len() as u64;
        self.mine_until("nothing is left", idle).await;
        let clean = Verdict { settled: self.asked.len() as u64, lost: 0, doubled: 0, wrong: 0, gaps: 0 };
        assert_eq!(verdict().await, clean);
        assert_eq!(self.sent().await, self.asked.len() as u64, "one transaction for each answer");
    }

    pub(super) async fn statuses(&self, store: &Arc<dyn Store>) -> Vec<LaneStatus> {
        let mut statuses = Vec::new();
        for n in 0..self.lanes.len() {
            statuses.push(store.lane(lane(n)).await.unwrap().unwrap().status);
        }
        statuses
    }

    /// A day passes for everybody.
    pub(super) async fn a_day_passes(&self) {
        self.clock.1.fetch_add(DAY_MS, Ordering::SeqCst);
        self.ground.pass_a_day().await;
    }
}

pub(super) fn lane(n: usize) -> LaneName {
    LaneName::new(&format!("lane-{n}")).unwrap()
}

pub(super) fn route() -> RouteName {
    RouteName::new(ROUTE).unwrap()
}

/// Whether no request is live, and nothing is under way.
pub(super) async fn is_drained(store: &Arc<dyn Store>) -> bool {
    let under_way: usize = store.lanes().await.unwrap().iter().map(|lane| lane.under_way).sum();
    let live: u64 = store.counts().await.unwrap().iter().map(|count| count.requests).sum();
    live == 0 && under_way == 0
}

pub(super) async fn in_state(store: &Arc<dyn Store>, state: StateKind) -> usize {
    let filter = ListFilter { states: vec![state], limit: PAGE_MAX, ..ListFilter::default() };
    store.list(filter).await.unwrap().requests.len()
}

pub(super) async fn stop(store: Arc<dyn Store>, relay: Running) {
    relay.shutdown().await.unwrap();
    store.close().await.unwrap();
}
