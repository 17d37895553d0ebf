//! A store that is restored from a copy of before: what was sent since is on the chain, and goes out
//! no second time. On every store, with a copy that is a day old: leases, seats and deadlines of
//! then are over. On the development chain and on Anvil; each answer is counted by the
//! transactions of the lanes, so that it is not the contract that saves the day.

mod site;

use std::sync::Arc;
use std::time::Instant;

use alloy::primitives::{B256, U256, keccak256};
use alloy::sol_types::SolCall;
use roundtrip::clock::Clock;
use roundtrip::inbox::StateKind;
use roundtrip::sender::{LaneStatus, Patience, Progress, Rebuilt};
use roundtrip::store::op::{Lease, Pause, Seat};
use roundtrip::store::{ReadExt, StoreExt};
use roundtrip::words::{ClaimId, WorkerName};
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::deployment::answer_to;
use roundtrip_evm::testkit::devchain::GWEI;
use roundtrip_evm::{EvmRoute, Outcome as Means, Outcomes};

use site::{BLOCK, DAY_MS, Ground, Kind, PATIENCE, Site, in_state, is_drained, lane, route, stop};

use super::world::FINAL_DEPTH;

/// How many requests a worker has that is never heard of again.
const SILENT: usize = 5;

/// When a person asks for the rebuild.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Before anything was read again.
    AtOnce,
    /// When the lanes have stopped, and everything was read and answered again.
    Later,
}

/// A relay is killed with work under way, and so is a worker; the store is copied aside. Another
/// relay goes on for fifty requests more, and everything is final. A day later the copy is put in the store's place.
async fn doubles_nothing(mut site: Site, asked: Asked) {
    let store = site.open("store");
    let relay = site.relay(&store).await;
    site.ask(30).await;
    site.mine_until("some are answered", async || site.sent().await >= 10).await;
    let pause = |paused| Pause { route: route(), paused };
    assert!(store.apply_one(pause(true)).await.unwrap().holds());
    site.ask(SILENT).await;
    site.mine_until("some wait", async || in_state(&store, StateKind::Queued).await == SILENT).await;
    drop(relay);
    assert!(store.apply_one(pause(false)).await.unwrap().holds());
    let worker = WorkerName::new("silent").unwrap();
    let lease = Lease { route: route(), worker, max: SILENT, claim: ClaimId(1), lease_ms: None };
    assert!(store.apply_one(lease).await.unwrap().holds());
    store.close().await.unwrap();
    site.copy("store", "saved").await;

    let store = site.open("store");
    let relay = site.relay(&store).await;
    site.ask(50).await;
    site.settled(&store).await;
    stop(store, relay).await;

    site.a_day_passes().await;
    let store = site.open("saved");
    assert_eq!(in_state(&store, StateKind::Leased).await, SILENT, "the copy has what the silent worker had");
    let seat = store.seat(Seat::Lane(lane(0))).await.unwrap().unwrap();
    assert!(seat.until.plus(DAY_MS / 2) < site.clock.now(), "{seat:?}");
    let relay = site.relay(&store).await;
    let rebuild = relay.rebuild("chain").unwrap();
    if asked == Asked::AtOnce {
        rebuild.begin(PATIENCE);
    }
    site.ask(20).await;
    let stopped = async || site.statuses(&store).await == [LaneStatus::Stopped, LaneStatus::Stopped];
    let before = 30 + SILENT + 50;
    if asked == Asked::Later {
        site.mine_until("the lanes stop", stopped).await;
        // Whatever is answered again meanwhile stays here.
        for _ in 0..30 {
            tokio::time::sleep(BLOCK).await;
            site.ground.mine().await;
        }
        assert_eq!(site.sent().await, before as u64, "nothing goes out while the lanes are stopped");
        rebuild.begin(PATIENCE);
    }
    let done = || match rebuild.progress() {
        Progress::Done(rebuilt) => Some(rebuilt),
        Progress::Idle | Progress::Waits { .. } => None,
    };
    site.mine_until("the lanes are rebuilt", async || done().is_some()).await;
    let Rebuilt { sent, done, failed, foreign, unanswered } = done().unwrap();
    assert!((50 + SILENT..=before).contains(&sent), "{sent} were sent since");
    assert_eq!((done + foreign, failed, unanswered), (sent, 0, 0));
    // What had not gone out by the time of the copy, and is of no use any more, ended as such.
    assert_eq!(foreign >= SILENT, site.hurried, "{foreign} of {sent}");
    assert!(site.hurried || foreign == 0, "{foreign} of {sent}");
    site.settled(&store).await;
    assert_eq!(site.statuses(&store).await, [LaneStatus::Active, LaneStatus::Active]);
    stop(store, relay).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_old_store_doubles_nothing_on_the_development_chain() {
    doubles_nothing(Site::new(Ground::dev(), Kind::Sqlite, 2).await, Asked::Later).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_old_sqlite_store_doubles_nothing_on_anvil() {
    doubles_nothing(Site::new(Ground::anvil().await, Kind::Sqlite, 2).await, Asked::Later).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_old_postgres_store_doubles_nothing_on_anvil() {
    doubles_nothing(Site::new(Ground::anvil().await, Kind::Postgres, 2).await, Asked::Later).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_old_redis_store_doubles_nothing_on_anvil() {
    doubles_nothing(Site::new(Ground::anvil().await, Kind::Redis, 2).await, Asked::Later).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_old_redis_cluster_store_doubles_nothing_on_anvil() {
    doubles_nothing(Site::new(Ground::anvil().await, Kind::Cluster, 2).await, Asked::Later).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_that_is_asked_for_at_once_waits_for_what_is_read_and_answered_again() {
    doubles_nothing(Site::new(Ground::dev(), Kind::Sqlite, 2).await, Asked::AtOnce).await;
    doubles_nothing(Site::new(Ground::anvil().await, Kind::Sqlite, 2).await, Asked::AtOnce).await;
}

/// What the store of a day ago had not sent yet expires as soon as it is opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_old_store_doubles_nothing_whose_deadlines_are_over() {
    let mut site = Site::new(Ground::anvil().await, Kind::Sqlite, 2).await;
    site.hurried = true;
    doubles_nothing(site, Asked::Later).await;
}

/// Somebody else answers first, which to the route is as good, and to its destination is not: what was sent
/// and forgotten is judged as the route does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_judges_by_what_the_route_says() {
    let mut site = Site::new(Ground::dev(), Kind::Sqlite, 2).await;
    let somebody = site.lanes.pop().unwrap();
    let done = Outcomes::new().on("error AlreadyResponded(uint256)", Means::AlreadyDone).unwrap();
    let terms = EvmRoute { outcomes: Some(done), ..EvmRoute::default() };
    let chain = || Arc::new(site.deployment().chain().unwrap().route(route(), terms.clone()));
    let store = site.open("store");
    let relay = site.relay_to(&store, chain()).await;
    site.mine_until("the lane is there", async || !store.lanes().await.unwrap().is_empty()).await;
    stop(store, relay).await;
    site.copy("store", "saved").await;

    let evm = chain();
    let store = site.open("store");
    site.ask(1).await;
    site.ground.mine().await;
    let payload = &site.asked[0];
    let answer = RequestBoard::respondCall { id: U256::ZERO, content: keccak256(payload), answer: answer_to(payload) };
    site.send(&somebody, 0, answer.abi_encode()).await;
    site.ground.mine().await;
    let relay = site.relay_to(&store, evm.clone()).await;
    site.mine_until("ours is refused and final", async || site.sent().await == 1 && is_drained(&store).await).await;
    stop(store, relay).await;

    let store = site.open("saved");
    let relay = site.relay_to(&store, evm).await;
    let rebuild = relay.rebuild("chain").unwrap();
    site.mine_until("the lane stops", async || site.statuses(&store).await == [LaneStatus::Stopped]).await;
    rebuild.begin(PATIENCE);
    site.mine_until("the lane is rebuilt", async || matches!(rebuild.progress(), Progress::Done(_))).await;
    let rebuilt = Rebuilt { sent: 1, done: 1, ..Rebuilt::default() };
    assert_eq!(rebuild.progress(), Progress::Done(rebuilt), "it is no dead letter");
    site.mine_until("nothing is left", async || is_drained(&store).await).await;
    assert_eq!(site.sent().await, 1);
    stop(store, relay).await;
}

/// All that the store forgot are bumps, on slots that it knows: it never had more slots, so no lane
/// stops, and nobody has to rebuild anything.
async fn knows_its_bumps_again(ground: Ground) {
    let mut site = Site::new(ground, Kind::Sqlite, 1).await;
    site.patience = Patience { resend_ms: 200, bump_ms: 200 };
    site.ask(5).await;
    for _ in 0..FINAL_DEPTH + 2 {
        site.ground.mine().await;
    }
    let store = site.open("store");
    let relay = site.relay(&store).await;
    let attempts = async || {
        let lane = store.lane(lane(0)).await.unwrap();
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
    site.copy("store", "saved").await;

    // What was signed is not enough any longer.
    site.ground.set_base_fee(100 * GWEI).await;
    site.ground.mine().await;
    let store = site.open("store");
    let relay = site.relay(&store).await;
    site.settled(&store).await;
    stop(store, relay).await;
    let mut mined = 0;
    for hash in saved {
        let receipt: Option<serde_json::Value> =
            site.client.request("eth_getTransactionReceipt", (hash,)).await.unwrap();
        mined += usize::from(receipt.is_some());
    }
    assert!(mined < 5, "none of them was bumped");

    site.a_day_passes().await;
    let store = site.open("saved");
    let relay = site.relay(&store).await;
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
