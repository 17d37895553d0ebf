//! The cases of op-stack's transaction manager, each by its name. It works on one transaction at a
//! time, gives up after so many refusals, and then makes another one. Here the bytes of a slot are
//! stored before they go out, so there is nothing to give up: where that answers a case in
//! another way, its test shows what happens instead.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use alloy::consensus::Transaction;
use alloy::primitives::B256;
use roundtrip::sender::chain::{Because, Broadcast, Cargo, Chain, ChainFuture, Reception, Sighting, Unsigned};
use roundtrip::sender::{AttemptKind, LaneStatus, OnTimeout, ParcelStage, Patience, SenderOptions, SignedAttempt};
use roundtrip::store::StoreExt;
use roundtrip::store::op::{AfterCancel, LaneOrder, Order};
use roundtrip::store::query::ParcelView;
use roundtrip::words::{LaneName, Nonce};
use roundtrip_evm::testkit::devchain::{Faults, GWEI, Reorg};

use super::scene::{FINAL_DEPTH, Mood, Scene, Way};
use super::world::signed;

const TOO_LOW: Mood = Mood::Refuses("nonce too low: next nonce 1, tx nonce 0");
/// More refusals than op-stack's manager takes before it aborts.
const MANY: usize = 5;

/// The attempts of the only parcel of the first lane.
async fn attempts(scene: &Scene) -> Vec<SignedAttempt> {
    scene.lane(0).await.parcels.first().map(|parcel| parcel.attempts.clone()).unwrap_or_default()
}

async fn stage(scene: &Scene) -> Option<ParcelStage> {
    scene.lane(0).await.parcels.first().map(|parcel| parcel.stage)
}

/// One request is asked, and its answer has a slot and bytes, which this way was given.
async fn one_answer(scene: &Scene, way: &Way) -> SignedAttempt {
    scene.ask(1);
    scene.mine_until("the answer was sent", async || !way.sent().is_empty()).await;
    attempts(scene).await[0].clone()
}

/// The transactions of the first lane that are in blocks.
fn mined(scene: &Scene) -> Vec<B256> {
    let blocks = scene.chain.blocks();
    let sent = blocks.iter().flat_map(|block| &block.transactions).map(|mined| &mined.sent);
    sent.filter(|sent| sent.from() == scene.lanes[0].address()).map(|sent| sent.hash).collect()
}

/// Waits until this way was given so many more, without a block.
async fn sent_again(scene: &Scene, way: &Way, times: usize) {
    let before = way.sent().len();
    scene.until("it is sent again and again", async || way.sent().len() >= before + times).await;
}

/// A chain that remembers how broadcasts were received.
struct Received<C>(C, Arc<Mutex<Vec<Reception>>>);

impl<C: Chain> Chain for Received<C> {
    fn look<'a>(&'a self, lane: &'a LaneName, parcels: &'a [ParcelView]) -> ChainFuture<'a, Sighting> {
        self.0.look(lane, parcels)
    }

    fn sign<'a>(
        &'a self,
        lane: &'a LaneName,
        nonce: Nonce,
        cargo: Cargo<'a>,
    ) -> ChainFuture<'a, SignedAttempt, Unsigned> {
        self.0.sign(lane, nonce, cargo)
    }

    fn broadcast<'a>(&'a self, lane: &'a LaneName, attempts: &'a [SignedAttempt]) -> Broadcast<'a> {
        Box::pin(async move {
            let received = self.0.broadcast(lane, attempts).await;
            self.1.lock().unwrap().extend(received.iter().flatten().cloned());
            received
        })
    }
}

/// Whoever looks is a block behind and sees nothing mined, so the bytes go out again, to a node
/// that knows better.
#[tokio::test(start_paused = true)]
async fn nonce_too_low_after_our_own_transaction_was_mined_is_no_abort() {
    let scene = Scene::new(1);
    let received: Arc<Mutex<Vec<Reception>>> = Arc::default();
    let _relay = scene.relay(Received(scene.deployment().chain().unwrap(), received.clone())).await;
    scene.ask(1);
    scene.mine(FINAL_DEPTH + 1);
    scene.until("the answer waits to be mined", async || !scene.chain.pool().is_empty()).await;
    let answer = attempts(&scene).await[0].clone();
    scene.chain.set_faults(Faults { lag: 1_000, lag_blocks: 1, ..Faults::default() });
    scene.chain.mine();
    received.lock().unwrap().clear();
    let said = async || received.lock().unwrap().len() >= MANY;
    scene.until("it is sent again and again", said).await;
    assert!(scene.chain.send(&answer.bytes).unwrap_err().to_string().contains("nonce too low"));
    assert!(received.lock().unwrap().iter().all(|said| *said == Reception::Taken), "{received:?}");
    assert_eq!((scene.status(0).await, attempts(&scene).await.len()), (LaneStatus::Active, 1));
    scene.chain.set_faults(Faults::default());
    scene.settled().await;
    assert_eq!(mined(&scene), [B256::from(answer.hash.0)]);
}

/// There is no counter: "nonce too low" proves nothing about bytes that are not in a block, so
/// they are sent again until they are.
#[tokio::test(start_paused = true)]
async fn nonce_too_low_many_times_with_nothing_mined_is_no_abort_either() {
    let scene = Scene::new(1);
    let way = Way::to(&scene.chain);
    way.set(TOO_LOW);
    let _relay = scene.relay(scene.view(&way)).await;
    let answer = one_answer(&scene, &way).await;
    sent_again(&scene, &way, MANY).await;
    assert!(way.sent().iter().all(|sent| sent.0 == answer.hash.0), "the same bytes every time");
    assert_eq!((scene.status(0).await, attempts(&scene).await.len()), (LaneStatus::Active, 1));
    way.set(Mood::Open);
    scene.settled().await;
    assert_eq!(mined(&scene), [B256::from(answer.hash.0)]);
}

/// With no counter there is none to reset: what a reorg took away is sent again as it was.
#[tokio::test(start_paused = true)]
async fn a_reorg_between_refusals_changes_nothing() {
    let scene = Scene::new(1);
    let way = Way::to(&scene.chain);
    let _relay = scene.relay(scene.view(&way)).await;
    let answer = one_answer(&scene, &way).await;
    scene.mine_until("it is in a block", async || stage(&scene).await == Some(ParcelStage::Included)).await;
    way.set(TOO_LOW);
    scene.chain.reorg(FINAL_DEPTH - 1, Reorg::Dropped);
    scene.until("it is not", async || stage(&scene).await == Some(ParcelStage::Assigned)).await;
    sent_again(&scene, &way, MANY).await;
    scene.chain.reorg(1, Reorg::Dropped);
    sent_again(&scene, &way, MANY).await;
    way.set(Mood::Open);
    scene.settled().await;
    assert_eq!(mined(&scene), [B256::from(answer.hash.0)]);
}

/// Bytes that a node took and does not have are sent again; nothing else is signed.
#[tokio::test(start_paused = true)]
async fn what_is_not_in_the_mempool_in_time_is_sent_again() {
    let scene = Scene::new(1);
    let way = Way::to(&scene.chain);
    way.set(Mood::Swallows);
    let _relay = scene.relay(scene.view(&way)).await;
    let answer = one_answer(&scene, &way).await;
    sent_again(&scene, &way, MANY).await;
    assert!(scene.chain.pool().is_empty());
    way.set(Mood::Open);
    scene.settled().await;
    assert_eq!(mined(&scene), [B256::from(answer.hash.0)]);
}

/// A route that wants op-stack's way out has it: the slot is filled with nothing, and the answer
/// takes another one once that is final.
#[tokio::test(start_paused = true)]
async fn what_is_not_in_the_mempool_in_time_is_given_up_if_that_is_wanted() {
    let scene = Scene::new(1);
    let way = Way::to(&scene.chain);
    way.set(Mood::Swallows);
    let send = SenderOptions {
        patience: scene.patience,
        on_timeout: OnTimeout::FillAndRequeue,
        poll: Duration::from_millis(500),
        ..SenderOptions::default()
    };
    let chain: Arc<dyn Chain> = Arc::new(scene.view(&way));
    let relay = scene.deployment().relay_sending(scene.store.clone(), scene.clock.clone(), chain, send).unwrap();
    let _relay = relay.start().await.unwrap();
    let answer = one_answer(&scene, &way).await;
    scene.until("it is given up", async || attempts(&scene).await.len() == 2).await;
    way.set(Mood::Open);
    scene.settled().await;
    let mined = mined(&scene);
    assert!(mined.len() == 2 && !mined.contains(&B256::from(answer.hash.0)), "{mined:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cancel_uses_the_slot_up_and_what_was_mined_first_wins() {
    for carried_first in [false, true] {
        let scene = Scene::new(1);
        let way = Way::to(&scene.chain);
        way.set(Mood::Swallows);
        let _relay = scene.relay(scene.view(&way)).await;
        let answer = one_answer(&scene, &way).await;
        let order = Order::Cancel { nonce: Nonce(0), then: AfterCancel::Requeue };
        let lane = LaneName::new("lane-0").unwrap();
        assert!(scene.store.apply_one(LaneOrder { lane, order }).await.unwrap().holds());
        scene.until("there is a cancel", async || attempts(&scene).await.len() == 2).await;
        let cancel = attempts(&scene).await[1].clone();
        assert_eq!(cancel.kind, AttemptKind::Cancel);
        let first = if carried_first { &answer } else { &cancel };
        scene.chain.send(&first.bytes).unwrap();
        scene.chain.mine();
        way.set(Mood::Open);
        scene.settled().await;
        let mined = mined(&scene);
        assert_eq!(mined[0], B256::from(first.hash.0));
        assert_eq!(mined.len(), if carried_first { 1 } else { 2 }, "an answer that was not carried takes another slot");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bump_is_ten_to_fifteen_percent_on_both_fields_and_a_node_takes_it() {
    let scene = Scene::new(1);
    let chain = scene.deployment().chain().unwrap();
    let lane = LaneName::new("lane-0").unwrap();
    let mut attempts = vec![chain.sign(&lane, Nonce(0), Cargo::Nothing(&[])).await.unwrap()];
    scene.chain.send(&attempts[0].bytes).unwrap();
    for _ in 0..20 {
        let cargo = Cargo::Dearer(&attempts, Because::TooCheap);
        let dearer = chain.sign(&lane, Nonce(0), cargo).await.unwrap();
        let [before, after] = [&attempts[attempts.len() - 1], &dearer].map(signed);
        let [max_fees, tips] = [
            [before.max_fee_per_gas(), after.max_fee_per_gas()],
            [before.max_priority_fee_per_gas().unwrap(), after.max_priority_fee_per_gas().unwrap()],
        ];
        for [before, after] in [max_fees, tips] {
            let in_range = after * 100 >= before * 110 && after * 100 <= before * 115;
            assert!(in_range, "from {before} to {after}");
        }
        scene.chain.send(&dearer.bytes).unwrap();
        attempts.push(dearer);
    }
    let waiting: Vec<B256> = scene.chain.pool().iter().map(|waiting| waiting.hash).collect();
    assert_eq!(waiting, [B256::from(attempts[20].hash.0)], "each replaced the one before");
}

/// Prices rise while nothing gets through: the slot has many attempts, and one that arrives is enough.
#[tokio::test(start_paused = true)]
async fn only_one_publication_succeeds_and_that_is_enough() {
    let scene = Scene { patience: Patience { resend_ms: 3_000, bump_ms: 3_000 }, ..Scene::new(1) };
    let way = Way::to(&scene.chain);
    way.set(Mood::Mute);
    let _relay = scene.relay(scene.view(&way)).await;
    one_answer(&scene, &way).await;
    let mut times_dearer = 1;
    while attempts(&scene).await.len() < 4 {
        times_dearer += 1;
        scene.chain.set_base_fee(3 * times_dearer * GWEI);
        scene.chain.mine();
        let (sent, before) = (way.sent().len(), attempts(&scene).await.len());
        scene
            .until("it pays more", async || attempts(&scene).await.len() > before || way.sent().len() > sent + 1)
            .await;
    }
    let arrived = attempts(&scene).await[2].clone();
    scene.chain.send(&arrived.bytes).unwrap();
    scene.chain.set_base_fee(GWEI);
    // Nothing else ever gets through, and nothing has to.
    scene.settled().await;
    assert_eq!(mined(&scene), [B256::from(arrived.hash.0)]);
}

#[tokio::test(start_paused = true)]
async fn the_cheap_first_attempt_mined_after_a_bump_is_success() {
    let scene = Scene::new(1);
    let way = Way::to(&scene.chain);
    let _relay = scene.relay(scene.view(&way)).await;
    scene.ask(1);
    scene.mine(FINAL_DEPTH + 1);
    scene.until("the answer waits to be mined", async || !scene.chain.pool().is_empty()).await;
    let cheap = attempts(&scene).await[0].clone();
    way.set(Mood::Swallows);
    scene.chain.set_base_fee(50 * GWEI);
    scene.chain.mine();
    scene.until("it pays more", async || attempts(&scene).await.len() > 1).await;
    scene.chain.set_base_fee(GWEI);
    scene.settled().await;
    assert_eq!(mined(&scene), [B256::from(cheap.hash.0)]);
}
