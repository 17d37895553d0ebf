//! A store that is restored from a copy of before: what was sent since is on the chain, and goes out
//! no second time. On the development chain and on Anvil; each answer is counted by the
//! transactions of the lanes, so that it is not the contract that saves the day.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use alloy::primitives::{Address, B256, Bytes, TxKind, U64};
use alloy::rpc::client::RpcClient;
use alloy::signers::local::PrivateKeySigner;
use alloy::sol_types::SolCall;
use roundtrip::clock::{Clock, SystemClock};
use roundtrip::relay::Running;
use roundtrip::sender::{LaneStatus, Patience, Progress, Rebuilt};
use roundtrip::store::{Options, ReadExt, SqliteStore, Store};
use roundtrip::words::{Height, LaneName};
use roundtrip_evm::Rpc;
use roundtrip_evm::testkit::account::{Call, Fees, deploy_board, dev_signers, head};
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::checker::{Verdict, check};
use roundtrip_evm::testkit::deployment::{Deployment, GAS, Pace, answer_to, by_the_contract};
use roundtrip_evm::testkit::devchain::{DevChain, DevChainOptions, GWEI};
use roundtrip_evm::testkit::node::{AnvilOptions, Node};

use super::world::{CHAIN_ID, FINAL_DEPTH, STEADY};

/// What makes blocks.
enum Ground {
    Dev(DevChain),
    Anvil(Node),
}

impl Ground {
    fn dev() -> Ground {
        Ground::Dev(DevChain::new(DevChainOptions { finality: FINAL_DEPTH, ..DevChainOptions::default() }))
    }

    async fn anvil() -> Ground {
        Ground::Anvil(Node::anvil(AnvilOptions::default()).await.unwrap())
    }

    fn client(&self) -> RpcClient {
        match self {
            Ground::Dev(chain) => chain.client(),
            Ground::Anvil(node) => node.client(),
        }
    }

    async fn mine(&self) {
        match self {
            Ground::Dev(chain) => drop(chain.mine()),
            Ground::Anvil(node) => node.mine(1).await.unwrap(),
        }
    }

    async fn set_base_fee(&self, wei: u64) {
        match self {
            Ground::Dev(chain) => chain.set_base_fee(wei),
            Ground::Anvil(node) => node.set_next_base_fee(wei).await.unwrap(),
        }
    }
}

const BLOCK: Duration = Duration::from_millis(30);
const PATIENCE: Duration = Duration::from_secs(60);

/// A chain with a board, and a folder for the store.
struct Site {
    ground: Ground,
    client: RpcClient,
    board: Address,
    lanes: Vec<PrivateKeySigner>,
    asked: Vec<Bytes>,
    patience: Patience,
    folder: tempfile::TempDir,
}

impl Site {
    async fn new(ground: Ground, lanes: usize) -> Site {
        let client = ground.client();
        let lanes = dev_signers()[5..5 + lanes].to_vec();
        let accounts: Vec<Address> = lanes.iter().map(|lane| lane.address()).collect();
        let board = match &ground {
            Ground::Dev(chain) => chain.deploy_board(&accounts),
            Ground::Anvil(_) => deploy_board(&client, &dev_signers()[0], &accounts).await.unwrap(),
        };
        let (asked, folder) = (Vec::new(), tempfile::tempdir().unwrap());
        Site { ground, client, board, lanes, asked, patience: STEADY, folder }
    }

    fn deployment(&self) -> Deployment {
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
            pace: Pace { poll: Duration::from_millis(20), hold_ms: 1_000, patience: self.patience, window: 16 },
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A relay on the store as it is now.
    async fn start(&self) -> (Arc<SqliteStore>, Running) {
        std::fs::create_dir_all(self.at("store")).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let file = self.at("store").join("store.db");
        let store = Arc::new(SqliteStore::open(file, clock.clone(), Options::default()).unwrap());
        let relay = self.deployment().relay(store.clone(), clock).unwrap().start().await.unwrap();
        (store, relay)
    }

    /// Asks so many more; they wait to be mined.
    async fn ask(&mut self, count: usize) {
        let base_fee: u128 = head(&self.client).await.unwrap().base_fee_per_gas.to();
        for _ in 0..count {
            let payload: Bytes = format!("ask {}", self.asked.len()).into_bytes().into();
            let call = Call {
                chain_id: CHAIN_ID,
                nonce: self.asked.len() as u64,
                to: TxKind::Call(self.board),
                input: RequestBoard::requestCall { payload: payload.clone() }.abi_encode().into(),
                gas_limit: 200_000,
                fees: Fees::above(base_fee),
            };
            let raw = call.sign(&dev_signers()[1]).unwrap();
            let _: B256 = self.client.request("eth_sendRawTransaction", (&raw.bytes,)).await.unwrap();
            self.asked.push(payload);
        }
    }

    /// Makes blocks until something is so.
    async fn mine_until(&self, what: &str, so: impl AsyncFn() -> bool) {
        let started = Instant::now();
        while !so().await {
            assert!(started.elapsed() < PATIENCE, "waited in vain: {what}");
            tokio::time::sleep(BLOCK).await;
            self.ground.mine().await;
        }
    }

    /// How many transactions of the lanes are mined.
    async fn sent(&self) -> u64 {
        let mut sent = 0;
        for lane in &self.lanes {
            let count: U64 = self.client.request("eth_getTransactionCount", (lane.address(), "latest")).await.unwrap();
            sent += count.to::<u64>();
        }
        sent
    }

    /// Makes blocks until everything is answered, and nothing is left in the store: each answer
    /// once, by one transaction, without a hole in the nonces.
    async fn settled(&self, store: &SqliteStore) {
        let accounts: Vec<Address> = self.lanes.iter().map(|lane| lane.address()).collect();
        let verdict = async || check(&self.client, self.board, &self.asked, &accounts, answer_to).await.unwrap();
        let idle = async || {
            let under_way: usize = store.lanes().await.unwrap().iter().map(|lane| lane.under_way).sum();
            let live: u64 = store.counts().await.unwrap().iter().map(|count| count.requests).sum();
            live == 0 && under_way == 0 && self.sent().await >= self.asked.len() as u64
        };
        self.mine_until("nothing is left", idle).await;
        let clean = Verdict { settled: self.asked.len() as u64, lost: 0, doubled: 0, wrong: 0, gaps: 0 };
        assert_eq!(verdict().await, clean);
        assert_eq!(self.sent().await, self.asked.len() as u64, "one transaction for each answer");
    }

    async fn statuses(&self, store: &SqliteStore) -> Vec<LaneStatus> {
        let mut statuses = Vec::new();
        for n in 0..self.lanes.len() {
            let lane = LaneName::new(&format!("lane-{n}")).unwrap();
            statuses.push(store.lane(lane).await.unwrap().unwrap().status);
        }
        statuses
    }
}

async fn stop(store: Arc<SqliteStore>, relay: Running) {
    relay.shutdown().await.unwrap();
    store.close().await.unwrap();
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// When a person asks for the rebuild.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Before anything was read again.
    AtOnce,
    /// When the lanes have stopped, and everything was read and answered again.
    Later,
}

/// The store is copied aside with work under way, the relay goes on for fifty requests more and
/// everything is final; then the copy is put in its place.
async fn doubles_nothing(ground: Ground, asked: Asked) {
    let mut site = Site::new(ground, 2).await;
    let (store, relay) = site.start().await;
    site.ask(30).await;
    site.mine_until("some are answered", async || site.sent().await >= 10).await;
    stop(store, relay).await;
    copy(&site.at("store"), &site.at("saved"));

    let (store, relay) = site.start().await;
    site.ask(50).await;
    site.settled(&store).await;
    stop(store, relay).await;
    copy(&site.at("saved"), &site.at("store"));

    let (store, relay) = site.start().await;
    let rebuild = relay.rebuild("chain").unwrap();
    if asked == Asked::AtOnce {
        rebuild.begin(PATIENCE);
    }
    site.ask(20).await;
    let stopped = async || site.statuses(&store).await == [LaneStatus::Stopped, LaneStatus::Stopped];
    if asked == Asked::Later {
        site.mine_until("the lanes stop", stopped).await;
        // Whatever is answered again meanwhile stays here.
        for _ in 0..30 {
            tokio::time::sleep(BLOCK).await;
            site.ground.mine().await;
        }
        assert_eq!(site.sent().await, 80, "nothing goes out while the lanes are stopped");
        rebuild.begin(PATIENCE);
    }
    let done = || match rebuild.progress() {
        Progress::Done(rebuilt) => Some(rebuilt),
        Progress::Idle | Progress::Waits { .. } => None,
    };
    site.mine_until("the lanes are rebuilt", async || done().is_some()).await;
    let Rebuilt { sent, done, failed, foreign, unanswered } = done().unwrap();
    assert!((50..=80).contains(&sent), "{sent} were sent since");
    assert_eq!((done, failed, foreign, unanswered), (sent, 0, 0, 0));
    site.settled(&store).await;
    assert_eq!(site.statuses(&store).await, [LaneStatus::Active, LaneStatus::Active]);
    stop(store, relay).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_store_doubles_nothing_on_the_development_chain() {
    doubles_nothing(Ground::dev(), Asked::Later).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_store_doubles_nothing_on_anvil() {
    doubles_nothing(Ground::anvil().await, Asked::Later).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_that_is_asked_for_at_once_waits_for_what_is_read_and_answered_again() {
    doubles_nothing(Ground::dev(), Asked::AtOnce).await;
    doubles_nothing(Ground::anvil().await, Asked::AtOnce).await;
}

/// All that the store forgot are bumps, on slots that it knows: it never had more slots, so no lane
/// stops, and nobody has to rebuild anything.
async fn knows_its_bumps_again(ground: Ground) {
    let mut site = Site::new(ground, 1).await;
    site.patience = Patience { resend_ms: 200, bump_ms: 200 };
    site.ask(5).await;
    for _ in 0..FINAL_DEPTH + 2 {
        site.ground.mine().await;
    }
    let (store, relay) = site.start().await;
    let attempts = async || {
        let lane = store.lane(LaneName::new("lane-0").unwrap()).await.unwrap();
        let parcels = lane.map(|lane| lane.parcels).unwrap_or_default();
        parcels.into_iter().flat_map(|parcel| parcel.attempts).map(|one| B256::from(one.hash.0)).collect::<Vec<_>>()
    };
    let started = Instant::now();
    while attempts().await.len() < 5 {
        assert!(started.elapsed() < PATIENCE, "not all have slots");
        tokio::time::sleep(BLOCK).await;
    }
    let saved = attempts().await;
    stop(store, relay).await;
    copy(&site.at("store"), &site.at("saved"));

    // What was signed is not enough any longer.
    site.ground.set_base_fee(100 * GWEI).await;
    site.ground.mine().await;
    let (store, relay) = site.start().await;
    site.settled(&store).await;
    stop(store, relay).await;
    let mut mined = 0;
    for hash in saved {
        let receipt: Option<serde_json::Value> =
            site.client.request("eth_getTransactionReceipt", (hash,)).await.unwrap();
        mined += usize::from(receipt.is_some());
    }
    assert!(mined < 5, "none of them was bumped");
    copy(&site.at("saved"), &site.at("store"));

    let (store, relay) = site.start().await;
    site.settled(&store).await;
    assert_eq!(site.statuses(&store).await, [LaneStatus::Active]);
    stop(store, relay).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_store_knows_its_bumps_again_on_the_development_chain() {
    knows_its_bumps_again(Ground::dev()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_store_knows_its_bumps_again_on_anvil() {
    knows_its_bumps_again(Ground::anvil().await).await;
}
