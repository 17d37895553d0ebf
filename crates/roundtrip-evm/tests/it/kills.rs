//! A relay is killed at every commit, before it and after it, and at every broadcast, before
//! it and after it, while it sends for the first time, bumps, fills a gap and cancels. Each
//! time another one goes on from what is stored, and the end is the same: everything
//! answered once, no gap, nothing left in the store.
//!
//! The development chain, in virtual time, and SQLite.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use alloy::primitives::{Address, Bytes, TxKind, U256, keccak256};
use alloy::sol_types::SolCall;
use roundtrip::clock::{Clock, TokioClock};
use roundtrip::sender::chain::{Broadcast, Cargo, Chain, ChainFuture, Sighting, Unsigned};
use roundtrip::sender::{Patience, SignedAttempt};
use roundtrip::store::op::{self, AfterCancel, LaneOrder, Op, Order};
use roundtrip::store::query::{ParcelView, Query, Reply};
use roundtrip::store::{Changes, Options, ReadExt, SqliteStore, Store, StoreExt, StoreFuture, Topic};
use roundtrip::words::{LaneName, Nonce, UnixMs};
use roundtrip_evm::testkit::account::{Call, Fees, dev_signers};
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::checker::check;
use roundtrip_evm::testkit::deployment::{Deployment, GAS, Pace, answer_to};
use roundtrip_evm::testkit::devchain::{BaseFee, DevChain, DevChainOptions, GWEI};
use roundtrip_evm::{Gas, Outcome, Outcomes};
use tokio::sync::Notify;

const REQUESTS: usize = 3;
const FINAL_DEPTH: u64 = 2;
const BLOCK: Duration = Duration::from_secs(1);
/// The block before which a stranger's transaction vanishes.
const VANISHES: u64 = 10;
/// No run may take longer, in blocks.
const BLOCKS_MAX: u64 = 400;

/// Where the relay dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    BeforeCommit,
    AfterCommit,
    BeforeBroadcast,
    AfterBroadcast,
}

/// Counts commits and broadcasts, and stops everything at one of them.
struct Knife {
    at: Option<(Point, usize)>,
    commits: AtomicUsize,
    broadcasts: AtomicUsize,
    struck: Notify,
}

impl Knife {
    fn new(at: Option<(Point, usize)>) -> Arc<Knife> {
        Arc::new(Knife { at, commits: AtomicUsize::new(0), broadcasts: AtomicUsize::new(0), struck: Notify::new() })
    }

    /// Passes, or tells whoever waits to kill the relay, and never comes back.
    async fn pass(&self, point: Point, count: usize) {
        if self.at == Some((point, count)) {
            self.struck.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

/// A store at whose commits the relay may die.
struct CutStore {
    inner: Arc<dyn Store>,
    knife: Arc<Knife>,
}

impl Store for CutStore {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<op::Outcome>> {
        Box::pin(async move {
            let count = self.knife.commits.fetch_add(1, Ordering::SeqCst);
            self.knife.pass(Point::BeforeCommit, count).await;
            let inner = self.inner.clone();
            // Virtual time stands still while a blocking task runs, as long as a commit takes.
            let runtime = tokio::runtime::Handle::current();
            let commit = tokio::task::spawn_blocking(move || runtime.block_on(inner.apply(batch)));
            let outcomes = commit.await.unwrap();
            self.knife.pass(Point::AfterCommit, count).await;
            outcomes
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.inner.read(query)
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.inner.changes(topic)
    }
}

/// A chain at whose broadcasts the relay may die.
struct CutChain<C> {
    inner: C,
    knife: Arc<Knife>,
}

impl<C: Chain> Chain for CutChain<C> {
    fn look<'a>(&'a self, lane: &'a LaneName, parcels: &'a [ParcelView]) -> ChainFuture<'a, Sighting> {
        self.inner.look(lane, parcels)
    }

    fn sign<'a>(
        &'a self,
        lane: &'a LaneName,
        nonce: Nonce,
        cargo: Cargo<'a>,
    ) -> ChainFuture<'a, SignedAttempt, Unsigned> {
        self.inner.sign(lane, nonce, cargo)
    }

    fn broadcast<'a>(&'a self, lane: &'a LaneName, attempts: &'a [SignedAttempt]) -> Broadcast<'a> {
        Box::pin(async move {
            let count = self.knife.broadcasts.fetch_add(1, Ordering::SeqCst);
            self.knife.pass(Point::BeforeBroadcast, count).await;
            let receptions = self.inner.broadcast(lane, attempts).await;
            self.knife.pass(Point::AfterBroadcast, count).await;
            receptions
        })
    }
}

/// What makes the lane do more than send once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    FirstSend,
    Bump,
    Fill,
    Cancel,
    /// Somebody else answers the first request, and the contract says so.
    Already,
}

struct World {
    scenario: Scenario,
    chain: DevChain,
    board: Address,
    clock: Arc<dyn Clock>,
    folder: tempfile::TempDir,
}

fn lane() -> LaneName {
    LaneName::new("lane-0").unwrap()
}

impl World {
    fn new(scenario: Scenario) -> World {
        let options =
            DevChainOptions { finality: FINAL_DEPTH, base_fee: BaseFee::Fixed(GWEI), ..DevChainOptions::default() };
        let chain = DevChain::new(options);
        let board = chain.deploy_board(&[dev_signers()[9].address(), dev_signers()[1].address()]);
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(UnixMs(1_700_000_000_000)));
        World { scenario, chain, board, clock, folder: tempfile::tempdir().unwrap() }
    }

    fn open(&self) -> Arc<dyn Store> {
        let file = self.folder.path().join("store.db");
        Arc::new(SqliteStore::open(file, self.clock.clone(), Options::default()).unwrap())
    }

    fn deployment(&self) -> Deployment {
        let gas = if self.scenario == Scenario::Already { Gas::Estimated { margin_percent: 20 } } else { GAS };
        let pace =
            Pace { poll: BLOCK, hold_ms: 5_000, patience: Patience { resend_ms: 3_000, bump_ms: 6_000 }, window: 8 };
        let lanes = vec![dev_signers()[9].clone()];
        Deployment { gas, ..Deployment::on(&self.chain, self.board, lanes, FINAL_DEPTH, pace).unwrap() }
    }

    fn ask(&self, payloads: &[Bytes]) {
        for (payload, nonce) in payloads.iter().zip(0..) {
            let call = Call {
                chain_id: self.chain.chain_id(),
                nonce,
                to: TxKind::Call(self.board),
                input: RequestBoard::requestCall { payload: payload.clone() }.abi_encode().into(),
                gas_limit: 150_000,
                fees: Fees::above(GWEI.into()),
            };
            self.chain.send(&call.sign(&dev_signers()[0]).unwrap().bytes).unwrap();
        }
    }

    /// The outside, before anybody listens.
    fn prepare(&self) {
        if self.scenario != Scenario::Fill {
            return;
        }
        // Somebody else uses the lane's account, so that the lane begins above it.
        let call = Call {
            chain_id: self.chain.chain_id(),
            nonce: 0,
            to: TxKind::Call(Address::ZERO),
            input: Bytes::new(),
            gas_limit: 21_000,
            // Not enough to be mined.
            fees: Fees { max_fee: 1, tip: Some(1) },
        };
        self.chain.send(&call.sign(&dev_signers()[9]).unwrap().bytes).unwrap();
    }

    /// The outside, at every block.
    async fn happen(&self, store: &dyn Store, height: u64) {
        let waiting = self.chain.pool();
        let stuck = waiting.iter().any(|waiting| waiting.from() == dev_signers()[9].address());
        match self.scenario {
            Scenario::FirstSend => {}
            // What was signed is not enough any longer.
            Scenario::Bump if stuck && self.chain.base_fee() == GWEI => self.chain.set_base_fee(20 * GWEI),
            Scenario::Bump => {}
            // The stranger's transaction vanishes: a gap, below what the lane has sent.
            Scenario::Fill if height == VANISHES => drop(self.chain.drop_all_pending()),
            Scenario::Fill => {}
            Scenario::Already if height == 2 => {
                let respond = RequestBoard::respondCall {
                    id: U256::ZERO,
                    content: keccak256(b"ask 0"),
                    answer: answer_to(b"ask 0"),
                };
                let call = Call {
                    chain_id: self.chain.chain_id(),
                    nonce: 0,
                    to: TxKind::Call(self.board),
                    input: respond.abi_encode().into(),
                    gas_limit: 150_000,
                    fees: Fees::above(GWEI.into()),
                };
                self.chain.send(&call.sign(&dev_signers()[1]).unwrap().bytes).unwrap();
            }
            Scenario::Already => {}
            Scenario::Cancel => {
                if stuck && self.chain.base_fee() == GWEI {
                    self.chain.set_base_fee(20 * GWEI);
                    let order = Order::Cancel { nonce: Nonce(0), then: AfterCancel::Requeue };
                    // Too late if it is mined by now, which is what the kill may have led to.
                    let _ = store.apply_one(LaneOrder { lane: lane(), order }).await.unwrap();
                }
            }
        }
    }

    /// Runs until everything is settled; answers whether the knife struck.
    async fn run(&self, at: Option<(Point, usize)>) -> bool {
        self.prepare();
        let payloads: Vec<Bytes> = (0..REQUESTS).map(|n| format!("ask {n}").into_bytes().into()).collect();
        self.ask(&payloads);
        let mut knife = Knife::new(at);
        let mut store = self.open();
        let mut relay = self.start(&store, &knife).await;
        let mut struck = false;
        for height in 1.. {
            assert!(height < BLOCKS_MAX, "{:?} {at:?}: not settled", self.scenario);
            let killed = tokio::time::timeout(BLOCK, knife.struck.notified()).await.is_ok();
            if killed {
                struck = true;
                drop(relay);
                store.close().await.unwrap();
                drop(store);
                knife = Knife::new(None);
                store = self.open();
                relay = self.start(&store, &knife).await;
            }
            self.happen(&*store, height).await;
            self.chain.mine();
            if self.is_settled(&*store, &payloads).await {
                break;
            }
        }
        drop(relay);
        store.close().await.unwrap();
        struck
    }

    async fn start(&self, store: &Arc<dyn Store>, knife: &Arc<Knife>) -> Option<roundtrip::relay::Running> {
        let cut = Arc::new(CutStore { inner: store.clone(), knife: knife.clone() });
        let deployment = self.deployment();
        let done = Outcomes::new().on("error AlreadyResponded(uint256)", Outcome::AlreadyDone).unwrap();
        let inner = deployment.chain().unwrap().outcomes(done);
        let chain = Arc::new(CutChain { inner, knife: knife.clone() });
        let relay = deployment.relay_to(cut, self.clock.clone(), chain).unwrap();
        tokio::select! {
            relay = relay.start() => Some(relay.unwrap()),
            () = knife.struck.notified() => {
                // It died before it ran; whoever waits is told again.
                knife.struck.notify_one();
                None
            }
        }
    }

    /// Before this block, something may still happen outside.
    fn last_event(&self) -> u64 {
        if self.scenario == Scenario::Fill { VANISHES } else { 0 }
    }

    /// Whether everything is answered once on the chain, and nothing is left in the store.
    async fn is_settled(&self, store: &dyn Store, payloads: &[Bytes]) -> bool {
        if store.counts().await.unwrap().iter().any(|count| count.requests > 0)
            || self.chain.head().height.0 < self.last_event()
        {
            return false;
        }
        let under_way = store.lane(lane()).await.unwrap().map_or(0, |lane| lane.under_way);
        let account = dev_signers()[9].address();
        let verdict = check(&self.chain.client(), self.board, payloads, &[account], answer_to).await.unwrap();
        let clean = verdict.to_string() == format!("settled {REQUESTS}, lost 0, doubled 0");
        under_way == 0 && clean
    }
}

/// Kills at every point of a scenario, until one run ends before its point comes.
async fn killed_everywhere(scenario: Scenario) {
    for point in [Point::BeforeCommit, Point::AfterCommit, Point::BeforeBroadcast, Point::AfterBroadcast] {
        let mut count = 0;
        while World::new(scenario).run(Some((point, count))).await {
            count += 1;
        }
        assert!(count > 0, "{scenario:?}: there was no {point:?} to die at");
    }
}

#[tokio::test(start_paused = true)]
async fn incident_1_killed_at_every_step_of_a_first_send() {
    killed_everywhere(Scenario::FirstSend).await;
}

#[tokio::test(start_paused = true)]
async fn incident_1_killed_at_every_step_of_a_bump() {
    killed_everywhere(Scenario::Bump).await;
}

#[tokio::test(start_paused = true)]
async fn incident_1_killed_at_every_step_of_a_fill() {
    killed_everywhere(Scenario::Fill).await;
}

#[tokio::test(start_paused = true)]
async fn incident_1_killed_at_every_step_of_a_cancel() {
    killed_everywhere(Scenario::Cancel).await;
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_step_while_an_answer_is_done_already() {
    killed_everywhere(Scenario::Already).await;
}
