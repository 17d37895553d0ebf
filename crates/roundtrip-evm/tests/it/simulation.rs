//! The whole round trip on the development chain, in virtual time, by a seed: requests are
//! asked on the chain, a relay answers them, and crashes at any moment; the chain reorgs,
//! drops, evicts, raises its fees, lags behind and loses answers.
//!
//! Once the faults stop, everything ends: the outside checker finds one answer to each
//! request, no second try at any of them, and no gap.
//!
//! A failing seed is run again with `SEED=n cargo test -p roundtrip-evm ... simulation::`; the
//! same seed does exactly the same, which is a test too. `SIMULATE_SECONDS=n` runs for longer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use alloy::primitives::{Address, B256, Bytes};
use roundtrip::clock::{Clock, TokioClock};
use roundtrip::inbox::Identity;
use roundtrip::relay::Running;
use roundtrip::sender::Patience;
use roundtrip::store::{MemoryStore, Options, ReadExt};
use roundtrip::words::{Height, UnixMs};
use roundtrip_evm::testkit::account::dev_signers;
use roundtrip_evm::testkit::checker::check;
use roundtrip_evm::testkit::deployment::{Deployment, GAS, Pace, answer_to, by_the_contract};
use roundtrip_evm::testkit::devchain::{DevChain, DevChainOptions, Faults};
use roundtrip_evm::testkit::submitter::{Submitter, SubmitterOptions};
use roundtrip_evm::{Gas, Rpc};

/// Seeds that failed once.
const KEPT: [u64; 0] = [];
/// How many seeds a plain run takes.
const SEEDS: u64 = 40;
const REQUESTS: usize = 40;
const FINAL_DEPTH: u64 = 6;
const BLOCK: Duration = Duration::from_secs(2);
/// For so many blocks the weather is bad.
const STORM_BLOCKS: u64 = 60;
/// After it, everything must end within so many.
const CALM_BLOCKS_MAX: u64 = 300;
const STORM: Faults = Faults {
    delay_ms: 600,
    blind: 50,
    fail: 20,
    lose_answer: 20,
    lag: 30,
    lag_blocks: 3,
    drop: 30,
    evict: 10,
    spike: 20,
    spike_times: 8,
    spike_blocks: 4,
    reorg: 100,
    reorg_blocks: FINAL_DEPTH - 1,
};

struct World {
    seed: u64,
    dice: fastrand::Rng,
    chain: DevChain,
    board: Address,
    store: Arc<MemoryStore>,
    clock: Arc<dyn Clock>,
    starts: u64,
}

/// What a run came to.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    head: B256,
    crashes: u64,
    reorgs: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let chain = DevChain::new(DevChainOptions { seed, finality: FINAL_DEPTH, ..DevChainOptions::default() });
        let lanes: Vec<Address> = lanes().iter().map(|lane| lane.address()).collect();
        let board = chain.deploy_board(&lanes);
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(UnixMs(1_700_000_000_000)));
        let store = Arc::new(MemoryStore::new(clock.clone(), Options::default()));
        World { seed, dice: fastrand::Rng::with_seed(seed), chain, board, store, clock, starts: 0 }
    }

    async fn start(&mut self) -> Running {
        self.starts += 1;
        let deployment = Deployment {
            rpc: Rpc::over(self.chain.client()),
            chain_id: self.chain.chain_id(),
            board: self.board,
            from_block: Height(0),
            lanes: lanes(),
            final_depth: FINAL_DEPTH,
            // Half of the seeds know a request by its log alone.
            identity: if self.seed.is_multiple_of(2) { by_the_contract().unwrap() } else { Identity::Given },
            gas: if self.seed.is_multiple_of(3) { Gas::Estimated { margin_percent: 20 } } else { GAS },
            parcel_max: 1,
            pace: Pace {
                poll: Duration::from_millis(700),
                hold_ms: 4_000,
                patience: Patience { resend_ms: 5_000, bump_ms: 10_000 },
                window: 4,
            },
        };
        let relay = deployment.relay(self.store.clone(), self.clock.clone()).unwrap();
        relay.seed(self.seed ^ (self.starts << 32)).start().await.unwrap()
    }

    async fn run(mut self) -> Outcome {
        let payloads: Vec<Bytes> = (0..REQUESTS).map(|n| format!("ask {n}").into_bytes().into()).collect();
        let keys = dev_signers()[..2].to_vec();
        let options = SubmitterOptions { window: 5, depth: FINAL_DEPTH + 1, look_every: BLOCK };
        let submitter = Submitter::start(self.chain.client(), self.board, keys, payloads.clone(), options);
        self.chain.set_faults(STORM);
        let mut relay = self.start().await;
        let mut crashes = 0;
        for _ in 0..STORM_BLOCKS {
            let within = u64::try_from(BLOCK.as_millis()).unwrap();
            let moment = Duration::from_millis(self.dice.u64(..within));
            tokio::time::sleep(moment).await;
            if self.dice.u64(..10) == 0 {
                drop(relay);
                crashes += 1;
                relay = self.start().await;
            }
            tokio::time::sleep(BLOCK - moment).await;
            self.chain.mine();
        }
        self.chain.set_faults(Faults::default());
        let accounts: Vec<Address> = lanes().iter().map(|lane| lane.address()).collect();
        let clean = format!("settled {REQUESTS}, lost 0, doubled 0");
        let mut verdict = String::new();
        for _ in 0..CALM_BLOCKS_MAX {
            tokio::time::sleep(BLOCK).await;
            self.chain.mine();
            let left: u64 = self.store.counts().await.unwrap().iter().map(|count| count.requests).sum();
            if left > 0 || !submitter.is_finished() {
                continue;
            }
            let counted = check(&self.chain.client(), self.board, &payloads, &accounts, answer_to).await.unwrap();
            verdict = counted.to_string();
            if verdict == clean {
                break;
            }
        }
        assert_eq!(verdict, clean, "seed {}; left {:?}", self.seed, self.store.counts().await.unwrap());
        assert_eq!(submitter.finish().await.unwrap().len(), REQUESTS);
        drop(relay);
        let head = B256::from(self.chain.head().hash);
        Outcome { head, crashes, reorgs: self.chain.reorgs() }
    }
}

fn lanes() -> Vec<alloy::signers::local::PrivateKeySigner> {
    dev_signers()[7..].to_vec()
}

fn simulate(seed: u64) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async { World::new(seed).run().await })
}

#[test]
fn every_request_is_answered_once_whatever_the_weather() {
    if let Ok(seed) = std::env::var("SEED") {
        println!("{:?}", simulate(seed.parse().unwrap()));
        return;
    }
    let seconds: u64 = std::env::var("SIMULATE_SECONDS").map_or(0, |seconds| seconds.parse().unwrap());
    let started = Instant::now();
    let (mut crashes, mut reorgs) = (0, 0);
    let more = |seed: &u64| *seed < SEEDS || started.elapsed().as_secs() < seconds;
    for seed in KEPT.into_iter().chain((0..).take_while(more)) {
        let outcome = simulate(seed);
        crashes += outcome.crashes;
        reorgs += outcome.reorgs;
    }
    assert!(crashes > 0 && reorgs > 0, "the weather was too good to show anything");
}

#[test]
fn the_same_seed_does_the_same() {
    assert_eq!(simulate(7), simulate(7));
}
