//! Incidents of other systems, each by its number in the list that the sender was built from:
//! what went wrong there does not go wrong here. Incident 1 is in `kills`, incident 7 also in `anvil`,
//! where the chain is a real node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use alloy::primitives::Address;
use roundtrip::sender::chain::{Broadcast, Cargo, Chain, ChainFuture, Reception, Sighting, Unsigned};
use roundtrip::sender::{LaneStatus, ParcelStage, SignedAttempt};
use roundtrip::store::op::{Op, Outcome};
use roundtrip::store::query::{ParcelView, Query, Reply};
use roundtrip::store::{Changes, Store, StoreFuture, Topic};
use roundtrip::words::{LaneName, Nonce};
use roundtrip_evm::testkit::devchain::{Faults, GWEI, Reorg};
use tokio::sync::watch;

use super::heard::Heard;
use super::scene::{BLOCK, FINAL_DEPTH, Mood, Scene, Way};

#[tokio::test(start_paused = true)]
async fn incident_2_a_node_takes_a_hundred_and_every_answer_is_lost() {
    let scene = Scene { window: 100, ..Scene::new(1) };
    scene.chain.lose_next("eth_sendRawTransaction", 20);
    scene.ask(100);
    let _relay = scene.relay(scene.deployment().chain().unwrap()).await;
    scene.settled().await;
    assert_eq!(scene.used(0), 100, "one slot each, none twice");
}

#[tokio::test(start_paused = true)]
async fn incident_3_an_outage_while_requests_keep_coming_ends_by_itself() {
    let scene = Scene::new(2);
    let way = Way::to(&scene.chain);
    let _relay = scene.relay(scene.view(&way)).await;
    scene.ask(20);
    scene.mine_until("some are answered", async || scene.used(0) + scene.used(1) > 0).await;
    way.set(Mood::Closed);
    for _ in 0..30 {
        scene.ask(3);
        scene.chain.mine();
        tokio::time::sleep(BLOCK).await;
    }
    way.set(Mood::Open);
    scene.settled().await;
    assert_eq!((scene.status(0).await, scene.status(1).await), (LaneStatus::Active, LaneStatus::Active));
}

#[tokio::test(start_paused = true)]
async fn incident_4_somebody_else_uses_a_slot_of_ours() {
    let scene = Scene::new(1);
    let way = Way::to(&scene.chain);
    way.set(Mood::Swallows);
    let _relay = scene.relay(scene.view(&way)).await;
    scene.ask(1);
    scene.mine_until("an answer has a slot", async || !scene.lane(0).await.parcels.is_empty()).await;
    scene.send(&scene.lanes[0], 0, Address::repeat_byte(7), Vec::new());
    scene.chain.mine();
    way.set(Mood::Open);
    scene.settled().await;
    assert_eq!(scene.used(0), 2, "the answer took another slot");
}

#[tokio::test(start_paused = true)]
async fn incident_5_a_pool_forgets_a_transaction_between_others() {
    let scene = Scene::new(1);
    let _relay = scene.relay(scene.deployment().chain().unwrap()).await;
    scene.ask(5);
    scene.mine(FINAL_DEPTH + 1);
    let ours = || {
        let pool = scene.chain.pool().into_iter();
        pool.filter(|waiting| waiting.from() == scene.lanes[0].address()).collect::<Vec<_>>()
    };
    scene.until("five answers wait", async || ours().len() == 5).await;
    // None of them is mined while the middle one goes.
    scene.chain.set_base_fee(100 * GWEI);
    assert!(scene.chain.drop_pending(ours()[2].hash));
    scene.chain.set_base_fee(GWEI);
    scene.settled().await;
    assert_eq!(scene.used(0), 5);
}

#[tokio::test(start_paused = true)]
async fn incident_7_a_node_that_lags_behind_takes_nothing_back() {
    let scene = Scene::new(1);
    let _relay = scene.relay(scene.deployment().chain().unwrap()).await;
    scene.ask(1);
    let stage = async || scene.lane(0).await.parcels.first().map(|parcel| parcel.stage);
    scene.mine_until("the answer is confirmed", async || stage().await == Some(ParcelStage::Confirmed)).await;
    scene.chain.set_faults(Faults { lag: 1_000, lag_blocks: 3, ..Faults::default() });
    for _ in 0..20 {
        tokio::time::sleep(BLOCK).await;
        assert_eq!(stage().await, Some(ParcelStage::Confirmed));
    }
    scene.chain.set_faults(Faults::default());
    scene.settled().await;
    assert_eq!(scene.used(0), 1);
}

/// What was final is settled for good: its bytes are gone, and nothing is sent a second time. The
/// chain that broke its word is told of by whoever meets it, and the lane waits for a person.
#[tokio::test(start_paused = true)]
async fn incident_7_a_reorg_after_final_stops_the_listener_and_pauses_the_lane() {
    for how in [Reorg::Dropped, Reorg::ToPool] {
        let scene = Scene::new(1);
        let relay = scene.relay(scene.deployment().chain().unwrap()).await;
        scene.ask(2);
        scene.settled().await;
        let paused = async || matches!(scene.status(0).await, LaneStatus::Paused { .. });
        assert!(!paused().await);
        let deep = scene.chain.head().height.0 - 1;
        scene.chain.reorg(deep, how);
        scene.until("the lane is paused", paused).await;
        scene.until("the listener is halted", async || !relay.halted().is_empty()).await;
        let LaneStatus::Paused { reason } = scene.status(0).await else { panic!("it is paused") };
        assert!(reason.contains("took back what was final"), "{reason}");
        scene.mine(FINAL_DEPTH + 1);
        tokio::time::sleep(BLOCK * 30).await;
        // Whoever dropped it decides: nobody here sends it again.
        let back = if how == Reorg::Dropped { 0 } else { 2 };
        assert_eq!((scene.used(0), scene.lane(0).await.next), (back, Nonce(2)), "{how:?}");
        assert!(paused().await, "only a person resumes it");
    }
}

/// A chain on which the first lane pays all that it may, and is told that it is not enough.
struct Capped<C>(C);

impl<C: Chain> Chain for Capped<C> {
    fn look<'a>(&'a self, lane: &'a LaneName, parcels: &'a [ParcelView]) -> ChainFuture<'a, Sighting> {
        self.0.look(lane, parcels)
    }

    fn sign<'a>(
        &'a self,
        lane: &'a LaneName,
        nonce: Nonce,
        cargo: Cargo<'a>,
    ) -> ChainFuture<'a, SignedAttempt, Unsigned> {
        match cargo {
            Cargo::Dearer(..) if lane.as_str() == "lane-0" => Box::pin(async { Err(Unsigned::AtCap) }),
            _ => self.0.sign(lane, nonce, cargo),
        }
    }

    fn broadcast<'a>(&'a self, lane: &'a LaneName, attempts: &'a [SignedAttempt]) -> Broadcast<'a> {
        match lane.as_str() {
            "lane-0" => Box::pin(async { vec![Ok(Reception::TooCheap); attempts.len()] }),
            _ => self.0.broadcast(lane, attempts),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn incident_11_one_lane_at_its_fee_cap_is_told_of_once_and_the_others_go_on() {
    let heard = Heard::default();
    let _listening = tracing::subscriber::set_default(heard.clone());
    let scene = Scene { window: 1, ..Scene::new(2) };
    let _relay = scene.relay(Capped(scene.deployment().chain().unwrap())).await;
    scene.ask(20);
    scene.mine_until("the other lane has done the rest", async || scene.used(1) == 19).await;
    let parcels = scene.lane(0).await.parcels;
    assert_eq!((scene.used(0), parcels.len(), parcels[0].attempts.len()), (0, 1, 1), "the same bytes, kept");
    assert_eq!(heard.text().matches("a slot pays all that it may").count(), 1, "one alert");
}

/// Whether a relay goes on; a closed gate is a process that does not get any time.
#[derive(Clone)]
struct Gate {
    open: watch::Sender<bool>,
    /// Whether the first broadcast closes it.
    set: Arc<AtomicBool>,
}

impl Gate {
    async fn pass(&self) {
        // It never closes for good while a test runs.
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}

struct GatedStore(Arc<dyn Store>, Gate);

impl Store for GatedStore {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            self.1.pass().await;
            let outcomes = self.0.apply(batch).await;
            self.1.pass().await;
            outcomes
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        Box::pin(async move {
            self.1.pass().await;
            self.0.read(query).await
        })
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.0.changes(topic)
    }
}

struct GatedChain<C>(C, Gate);

impl<C: Chain> Chain for GatedChain<C> {
    fn look<'a>(&'a self, lane: &'a LaneName, parcels: &'a [ParcelView]) -> ChainFuture<'a, Sighting> {
        Box::pin(async move {
            self.1.pass().await;
            self.0.look(lane, parcels).await
        })
    }

    fn sign<'a>(
        &'a self,
        lane: &'a LaneName,
        nonce: Nonce,
        cargo: Cargo<'a>,
    ) -> ChainFuture<'a, SignedAttempt, Unsigned> {
        Box::pin(async move {
            self.1.pass().await;
            self.0.sign(lane, nonce, cargo).await
        })
    }

    fn broadcast<'a>(&'a self, lane: &'a LaneName, attempts: &'a [SignedAttempt]) -> Broadcast<'a> {
        Box::pin(async move {
            if self.1.set.swap(false, Ordering::SeqCst) {
                self.1.open.send_replace(false);
            }
            self.1.pass().await;
            self.0.broadcast(lane, attempts).await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn incident_14_an_owner_that_sleeps_longer_than_its_seat_does_no_harm() {
    let scene = Scene::new(1);
    let gate = Gate { open: watch::Sender::new(true), set: Arc::new(AtomicBool::new(true)) };
    let store = Arc::new(GatedStore(scene.store.clone(), gate.clone()));
    let _sleeper = scene.relay_on(store, GatedChain(scene.deployment().chain().unwrap(), gate.clone())).await;
    scene.ask(10);
    scene.mine_until("the owner is about to send, and sleeps", async || !*gate.open.borrow()).await;
    let stored = scene.lane(0).await.parcels;
    assert!(!stored.is_empty() && scene.used(0) == 0, "stored, and not sent");
    let _other = scene.relay(scene.deployment().chain().unwrap()).await;
    scene.mine_until("another takes over and sends", async || scene.used(0) > 0).await;
    gate.open.send_replace(true);
    scene.settled().await;
    assert_eq!(scene.used(0), 10, "one slot each");
}
