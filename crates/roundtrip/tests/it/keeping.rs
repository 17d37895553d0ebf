//! The upkeep station on the memory store, under the runtime's paused clock.

use std::sync::Arc;
use std::time::Duration;

use roundtrip::clock::{Clock, TokioClock};
use roundtrip::inbox::StateKind;
use roundtrip::station::{Shutdown, StationError};
use roundtrip::store::op::{Admit, Gather, GroupPlan, NewRequest, Op, Seat};
use roundtrip::store::{ReadExt, Store, StoreError, StoreExt, StoreFuture, Topic};
use roundtrip::testkit::bench::START;
use roundtrip::testkit::faulty::{Cut, Faulty};
use roundtrip::testkit::samples::*;
use roundtrip::upkeep::{Upkeep, UpkeepOptions};
use roundtrip::words::{HolderName, Place};

use crate::delivering::{start, state, store_with, until};

fn upkeep(store: &Arc<dyn Store>, name: &str) -> Upkeep {
    Upkeep {
        store: store.clone(),
        seed: 7,
        holder: HolderName::new(name).unwrap(),
        floors: Arc::new(Vec::new),
        options: UpkeepOptions::default(),
    }
}

async fn store() -> (Arc<dyn Store>, TokioClock) {
    let clock = TokioClock::starting_at(START);
    (store_with(Arc::new(clock.clone())).await, clock)
}

async fn admit(store: &dyn Store, requests: Vec<NewRequest>) {
    assert!(store.apply_one(Admit { cursor: None, requests }).await.unwrap().holds());
}

async fn leader(store: &dyn Store) -> Option<String> {
    store.seat(Seat::Upkeep).await.unwrap().map(|seat| seat.holder.to_string())
}

#[tokio::test(start_paused = true)]
async fn every_duty_is_seen_to() {
    let (store, clock) = store().await;
    let soon = clock.now().plus(5000);
    let mortal = NewRequest { deadline: Some(soon.into()), ..request(2) };
    let by_height = NewRequest { deadline: Some(place(500).into()), ..request(3) };
    admit(&*store, vec![request(1), mortal, by_height]).await;
    store.apply_one(roundtrip::store::op::Lease { lease_ms: Some(5000), ..lease(1) }).await.unwrap();
    let plan = GroupPlan { seal_at_items: None, seal_at: Some(soon.into()), request: final_request(4) };
    store.apply_one(Gather { plan: Some(Box::new(plan)), ..gather(1) }).await.unwrap();
    let floors: Arc<dyn Fn() -> Vec<Place> + Send + Sync> = Arc::new(|| vec![place(42)]);
    let running = start(|shutdown| Upkeep { floors, ..upkeep(&store, "one") }.run(shutdown));
    until(&*store, [4], StateKind::Queued).await;
    until(&*store, [2], StateKind::Expired).await;
    until(&*store, [1], StateKind::Queued).await;
    assert!(clock.now() <= soon.plus(1200), "about an interval late at the most");
    store.apply_one(tick(500)).await.unwrap();
    until(&*store, [3], StateKind::Expired).await;
    assert_eq!(store.origins().await.unwrap()[0].floor, place(42).height);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_round_goes_on_until_nothing_is_left() {
    let (store, clock) = store().await;
    let mortal = |n| NewRequest { deadline: Some(clock.now().into()), ..request(n) };
    admit(&*store, (0..7).map(mortal).collect()).await;
    let options = UpkeepOptions { batch: 2, ..UpkeepOptions::default() };
    let running = start(|shutdown| Upkeep { options, ..upkeep(&store, "one") }.run(shutdown));
    let began = tokio::time::Instant::now();
    until(&*store, 0..7, StateKind::Expired).await;
    assert_eq!(began.elapsed(), Duration::ZERO, "all in the first round");
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_leader_at_a_time() {
    let (store, clock) = store().await;
    let first = start(|shutdown| upkeep(&store, "one").run(shutdown));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(leader(&*store).await.as_deref(), Some("one"));
    let second = start(|shutdown| upkeep(&store, "two").run(shutdown));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(leader(&*store).await.as_deref(), Some("one"), "it keeps its seat");
    first.stop().await.unwrap();
    let seat = store.seat(Seat::Upkeep).await.unwrap().unwrap();
    assert!(seat.until <= clock.now(), "the seat was given up");
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(leader(&*store).await.as_deref(), Some("two"), "within about an interval");
    // A leader that dies keeps the seat until its time runs out.
    second.task.abort();
    let third = start(|shutdown| upkeep(&store, "three").run(shutdown));
    tokio::time::sleep(Duration::from_secs(17)).await;
    assert_eq!(leader(&*store).await.as_deref(), Some("three"));
    third.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_the_seat_gives_up_nobody_elses() {
    let (store, _) = store().await;
    let first = start(|shutdown| upkeep(&store, "one").run(shutdown));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let second = start(|shutdown| upkeep(&store, "two").run(shutdown));
    tokio::time::sleep(Duration::from_millis(1)).await;
    second.stop().await.unwrap();
    let seat = store.seat(Seat::Upkeep).await.unwrap().unwrap();
    assert_eq!(seat.holder.as_str(), "one");
    assert!(seat.until > START.plus(10_000));
    first.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lost_answers_are_borne() {
    for (call, cut) in (0..4).flat_map(|call| [(call, Cut::Before), (call, Cut::After)]) {
        let (store, clock) = store().await;
        admit(&*store, vec![NewRequest { deadline: Some(clock.now().into()), ..request(1) }]).await;
        let faulty: Arc<dyn Store> = Arc::new(Faulty::new(store.clone(), cut, call));
        let running = start(|shutdown| upkeep(&faulty, "one").run(shutdown));
        until(&*store, [1], StateKind::Expired).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!running.task.is_finished());
        running.stop().await.unwrap();
        assert_eq!(state(&*store, 1).await, Some(StateKind::Expired));
    }
}

/// A store that was closed.
struct Closed(Arc<dyn Store>);

impl Store for Closed {
    fn apply(&self, _batch: Vec<Op>) -> StoreFuture<'_, Vec<roundtrip::store::op::Outcome>> {
        Box::pin(async { Err(StoreError::Closed) })
    }

    fn read(&self, query: roundtrip::store::query::Query) -> StoreFuture<'_, roundtrip::store::query::Reply> {
        self.0.read(query)
    }

    fn changes(&self, topic: Topic) -> roundtrip::store::Changes {
        self.0.changes(topic)
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_failed_ends_it() {
    let (store, _) = store().await;
    let closed: Arc<dyn Store> = Arc::new(Closed(store));
    let error = upkeep(&closed, "one").run(Shutdown::new()).await.unwrap_err();
    assert!(matches!(error, StationError::Store(StoreError::Closed)), "{error}");
}
