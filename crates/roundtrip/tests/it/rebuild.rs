//! Lanes that are rebuilt from the chain after their store was rolled back: what was sent is not sent
//! again, although the chain would take it.

use std::sync::Arc;
use std::time::Duration;

use roundtrip::sender::{LaneStatus, Progress, Rebuild, Rebuilt, SendOrder};
use roundtrip::store::op::{
    Admit, Assign, ChainTick, Define, Effect, LaneOrder, Lead, NewParcel, Op, Order, Outcome, Seat,
};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::ParcelView;
use roundtrip::store::{MemoryStore, Options, StoreExt};
use roundtrip::testkit::samples::{destination, final_request, id, lane_named, origin, policy, route};
use roundtrip::words::{Height, HolderName, Nonce, UnixMs};

use super::sender::Scene;

/// Longer than any test.
const PATIENT: Duration = Duration::from_secs(100_000);

/// The same chain, with a store as it was before anything was sent: its lanes are open, and it has
/// no requests.
async fn restored(scene: Scene) -> Scene {
    let store = Arc::new(MemoryStore::new(scene.clock.clone(), Options::default()));
    let policy = RoutePolicy { destination: Some(destination()), ..policy() };
    store.apply_one(Define { route: route(), policy }).await.unwrap();
    for lane in &scene.lanes {
        let order = Order::Open { destination: destination(), window: scene.options.window, first: Nonce(0) };
        assert!(store.apply_one(LaneOrder { lane: lane.clone(), order }).await.unwrap().holds());
    }
    Scene { store, rebuild: Rebuild::default(), ..scene }
}

/// A chain that has seen these answers on these lanes, and a store that has not.
async fn forgotten(lanes: &[&str], order: SendOrder, answers: u64) -> Scene {
    let mut scene = Scene::new(lanes).await;
    scene.options.order = order;
    scene.answered(0..answers).await;
    let running = scene.start("before");
    scene.blocks(30).await;
    scene.assert_all_settled(answers).await;
    running.stop().await;
    restored(scene).await
}

fn is_done(scene: &Scene) -> Option<Rebuilt> {
    match scene.rebuild.progress() {
        Progress::Done(rebuilt) => Some(rebuilt),
        Progress::Idle | Progress::Waits { .. } => None,
    }
}

fn waits_for(scene: &Scene) -> String {
    match scene.rebuild.progress() {
        Progress::Waits { until, .. } => until,
        other => panic!("it does not wait: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_before_is_matched_and_the_rest_goes_out() {
    let scene = forgotten(&["a", "b"], SendOrder::Spread, 40).await;
    let running = scene.start("after");
    scene.answered(0..55).await;
    scene.blocks(20).await;
    for lane in ["a", "b"] {
        assert_eq!(scene.lane(lane).await.status, LaneStatus::Stopped);
    }
    assert_eq!((scene.live().await, scene.chain.answers().len()), (55, 40), "nothing goes out");
    scene.rebuild.begin(PATIENT);
    scene.blocks(20).await;
    let rebuilt = Rebuilt { sent: 40, done: 40, ..Rebuilt::default() };
    assert_eq!(is_done(&scene), Some(rebuilt));
    scene.assert_all_settled(55).await;
    running.stop().await;
}

/// One lane was not used, so it is not ahead of the store: it must not send what the other has sent.
#[tokio::test(start_paused = true)]
async fn a_lane_that_is_as_the_store_knows_it_waits_for_one_that_is_not() {
    let mut scene = forgotten(&["a", "b"], SendOrder::Strict, 10).await;
    scene.options.order = SendOrder::Spread;
    scene.answered(0..12).await;
    let running = scene.start("after");
    scene.blocks(20).await;
    assert_eq!(scene.lane("b").await.status, LaneStatus::Active);
    assert_eq!(scene.chain.answers().len(), 10, "nothing goes out");
    scene.rebuild.begin(PATIENT);
    scene.blocks(20).await;
    scene.assert_all_settled(12).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn somebody_else_s_transactions_are_told_and_passed_over() {
    let scene = Scene::new(&["a"]).await;
    let running = scene.start("one");
    scene.blocks(1).await;
    scene.chain.use_slot(&lane_named("a"));
    scene.answered(0..3).await;
    scene.blocks(20).await;
    assert_eq!((scene.lane("a").await.status, scene.live().await), (LaneStatus::Stopped, 3));
    scene.rebuild.begin(PATIENT);
    scene.blocks(20).await;
    assert_eq!(is_done(&scene), Some(Rebuilt { sent: 1, foreign: 1, ..Rebuilt::default() }));
    scene.assert_all_settled(3).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn lanes_that_are_not_stopped_need_no_rebuild_and_go_on_meanwhile() {
    let scene = Scene::new(&["a"]).await;
    scene.rebuild.begin(PATIENT);
    scene.answered(0..40).await;
    let running = scene.start("one");
    scene.blocks(1).await;
    assert_eq!(is_done(&scene), Some(Rebuilt::default()));
    scene.blocks(30).await;
    scene.assert_all_settled(40).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_answered_again_yet_is_waited_for_as_long_as_a_person_says() {
    let patience = Duration::from_secs(60);
    for in_time in [true, false] {
        let scene = forgotten(&["a"], SendOrder::Spread, 4).await;
        let running = scene.start("after");
        scene.answered(0..3).await;
        let requests = vec![final_request(3)];
        scene.store.apply_one(Op::Admit(Admit { cursor: None, requests })).await.unwrap();
        scene.rebuild.begin(patience);
        scene.blocks(40).await;
        let until = waits_for(&scene);
        assert!(until.contains(&id(3).to_string()), "{until}");
        assert_eq!(scene.lane("a").await.status, LaneStatus::Stopped);
        if in_time {
            scene.answered(3..4).await;
        }
        scene.blocks(40).await;
        let unanswered = usize::from(!in_time);
        let rebuilt = Rebuilt { sent: 4, done: 4 - unanswered, foreign: unanswered, unanswered, failed: 0 };
        assert_eq!(is_done(&scene), Some(rebuilt));
        if in_time {
            scene.assert_all_settled(4).await;
        }
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_read_again_yet_is_waited_for() {
    let scene = forgotten(&["a"], SendOrder::Spread, 4).await;
    let tick = |height: u64| ChainTick { origin: origin(), height: Height(height), at: UnixMs(height * 1000) };
    scene.store.apply_one(tick(0)).await.unwrap();
    let running = scene.start("after");
    scene.answered(0..2).await;
    scene.rebuild.begin(PATIENT);
    scene.blocks(10).await;
    let until = waits_for(&scene);
    assert!(until.contains("is read up to"), "{until}");
    scene.answered(2..4).await;
    scene.store.apply_one(tick(1_000)).await.unwrap();
    scene.blocks(10).await;
    assert_eq!(is_done(&scene), Some(Rebuilt { sent: 4, done: 4, ..Rebuilt::default() }));
    scene.assert_all_settled(4).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_had_no_effect_before_goes_out_again() {
    let scene = Scene::new(&["a"]).await;
    scene.answered(0..3).await;
    scene.chain.set_reverting(id(1), true);
    let running = scene.start("before");
    scene.blocks(4).await;
    running.crash().await;
    scene.blocks(10).await;
    let failed = scene.chain.answers().get(&id(1)).copied().unwrap_or(0);
    assert_eq!(failed, 0, "it was sent, and had no effect");
    scene.chain.set_reverting(id(1), false);
    let scene = restored(scene).await;
    scene.answered(0..3).await;
    let running = scene.start("after");
    scene.rebuild.begin(PATIENT);
    scene.blocks(40).await;
    scene.assert_all_settled(3).await;
    running.stop().await;
}

/// The store knows the slot and not the bytes that were mined there: a bump that it forgot.
#[tokio::test(start_paused = true)]
async fn a_forgotten_bump_settles_its_parcel() {
    let scene = Scene::new(&["a"]).await;
    scene.answered(0..1).await;
    let running = scene.start("before");
    tokio::time::sleep(Duration::from_millis(250)).await;
    let parcels = scene.lane("a").await.parcels;
    let [ParcelView { deliveries, attempts, .. }] = &parcels[..] else { panic!("{parcels:?}") };
    let parcel = NewParcel { deliveries: deliveries.clone(), answers: Vec::new(), attempt: attempts[0].clone() };
    scene.chain.set_base_fee(100);
    scene.blocks(60).await;
    scene.assert_all_settled(1).await;
    running.stop().await;

    let scene = restored(scene).await;
    scene.answered(0..1).await;
    // Held by the sender that is to come, as it was when the store was saved.
    let holder = HolderName::new("after").unwrap();
    let lead = Lead { seat: Seat::Lane(lane_named("a")), holder, ttl_ms: 5_000 };
    let Outcome::Applied(Effect::Led(owner, _)) = scene.store.apply_one(lead).await.unwrap() else {
        panic!("the seat is free");
    };
    let assign = Assign { lane: lane_named("a"), owner, first: Nonce(0), parcels: vec![parcel] };
    assert!(scene.store.apply_one(assign).await.unwrap().holds());
    let running = scene.start("after");
    scene.blocks(20).await;
    assert_eq!(scene.lane("a").await.status, LaneStatus::Active, "nothing is to be rebuilt");
    scene.assert_all_settled(1).await;
    running.stop().await;
}
