//! The relay: all stations run as one, and end as one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use roundtrip::inbox::{End, Standing, StateKind};
use roundtrip::listener::{Ending, Every, FollowerOptions, request};
use roundtrip::outbox::ChannelSink;
use roundtrip::relay::{Relay, RelayError};
use roundtrip::sender::SenderOptions;
use roundtrip::station::{Shutdown, StationError};
use roundtrip::store::op::{Lease, NewRequest};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::{ReadExt, Store, StoreError};
use roundtrip::testkit::chain::TestChain;
use roundtrip::testkit::faulty::{Cut, Faulty};
use roundtrip::testkit::samples::{destination, id, lease, listener, policy, route};
use roundtrip::words::Payload;
use roundtrip::worker::{Job, Typed, WorkerOptions, handler_fn};
use tokio::sync::oneshot;

use super::{Rig, numbered, on_each_store};

on_each_store! {
    a_relay_carries_from_source_to_end
    answers_reach_their_sink
    events_of_a_chain_are_answered_on_it
    a_dead_workers_request_is_taken_back
    a_fatal_store_error_ends_the_relay
    a_panic_in_a_station_ends_the_relay
    a_halted_station_stops_alone
    a_station_that_does_not_stop_is_named
    a_relay_stops_when_told
    a_relay_may_take_for_ever_to_stop
    a_dropped_relay_leaves_nothing_running
}

fn relay(rig: &Rig) -> Relay {
    relay_on(rig, rig.store.clone())
}

fn relay_on(rig: &Rig, store: Arc<dyn Store>) -> Relay {
    Relay::new(store).clock(rig.clock.clone()).seed(1).name("relay")
}

/// A station that notes that it was told to stop.
fn witness(noted: Arc<AtomicBool>) -> impl FnOnce(Shutdown) -> BoxedStation {
    move |shutdown| {
        Box::pin(async move {
            shutdown.cancelled().await;
            noted.store(true, Ordering::SeqCst);
            Ok(())
        })
    }
}

type BoxedStation = std::pin::Pin<Box<dyn Future<Output = Result<(), StationError>> + Send>>;

async fn a_relay_carries_from_source_to_end(rig: Rig) {
    let square = handler_fn(|n: u64, _job| async move { Ok(n) });
    let from = route();
    let first = rig.clock.now().0 / 1000 + 1;
    let relay = relay(&rig)
        .route("orders", RoutePolicy::default(), square)
        .define("elsewhere", RoutePolicy::default())
        .every("listener-1", Duration::from_secs(1), move |tick| request(&from, Payload::json(tick.number.to_string())))
        .station("short", |_shutdown| async { Ok(()) })
        .start()
        .await
        .unwrap();
    let submitted = relay.submitter().submit_json("orders", &1).await.unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let ticks = [0, 1].map(|n| Every::id(&listener(), Duration::from_secs(1), first + n));
    for id in ticks.into_iter().chain([submitted.id]) {
        assert_eq!(rig.state(id).await, Some(StateKind::Settled));
    }
    relay.shutdown().await.unwrap();
}

async fn answers_reach_their_sink(rig: Rig) {
    let (sink, mut handed) = ChannelSink::new(1);
    let relay = relay(&rig)
        .route("orders", policy(), handler_fn(|n: u64, _job| async move { Ok(n * n) }))
        .sink("chain-b", sink)
        .start()
        .await
        .unwrap();
    let submitted = relay.submitter().submit_json("orders", &7).await.unwrap();
    let delivery = handed.recv().await.unwrap();
    assert_eq!(delivery.delivery.response, Payload::json("49"));
    delivery.taken();
    let ended = relay.submitter().ended(submitted.id).await.unwrap();
    assert!(matches!(ended, Some(Ending::Ended(receipt)) if receipt.end == End::Settled), "{ended:?}");
    relay.shutdown().await.unwrap();
}

async fn a_dead_workers_request_is_taken_back(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    rig.admit(vec![numbered(1)]).await;
    rig.apply(Lease { lease_ms: Some(1000), ..lease(1) }).await;
    let handler = handler_fn(|n: u64, job: Job| async move {
        assert_eq!(job.attempt(), 2);
        Ok(n)
    });
    let relay = relay(&rig).route("orders", RoutePolicy::default(), handler).start().await.unwrap();
    let ended = relay.submitter().ended(id(1)).await.unwrap();
    assert!(matches!(ended, Some(Ending::Ended(receipt)) if receipt.end == End::Settled), "{ended:?}");
    relay.shutdown().await.unwrap();
}

async fn a_fatal_store_error_ends_the_relay(rig: Rig) {
    let failed = StoreError::Failed { path: "store.db".into(), reason: "a sync failed".into() };
    // The definition, an admission and a lease pass; what the worker found out does not.
    let faulty = Faulty::with_error(rig.store.clone(), Cut::Before, 3..usize::MAX, failed.clone());
    let told = Arc::new(AtomicBool::new(false));
    let square = handler_fn(|n: u64, _job| async move { Ok(n) });
    rig.define(RoutePolicy::default()).await;
    let relay = relay_on(&rig, Arc::new(faulty))
        .without_upkeep()
        .route("orders", RoutePolicy::default(), square)
        .station("witness", witness(told.clone()))
        .start()
        .await
        .unwrap();
    rig.admit(vec![numbered(1)]).await;
    let ended = relay.ended().await.unwrap_err();
    assert!(
        matches!(&ended, RelayError::Station { station, error: StationError::Store(error) }
            if station == "worker of orders" && *error == failed),
        "{ended}"
    );
    assert!(ended.to_string().contains("a sync failed"), "{ended}");
    assert!(told.load(Ordering::SeqCst), "the others were told to stop, and did");
}

async fn a_panic_in_a_station_ends_the_relay(rig: Rig) {
    let told = Arc::new(AtomicBool::new(false));
    let (started, starts) = oneshot::channel::<()>();
    let started = std::sync::Mutex::new(Some(started));
    let slow = handler_fn(move |n: u64, _job: Job| {
        let started = started.lock().unwrap().take();
        async move {
            started.map(|started| started.send(()));
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(n)
        }
    });
    let relay = relay(&rig)
        .route("orders", RoutePolicy::default(), slow)
        .station("witness", witness(told.clone()))
        .station("fragile", |_shutdown| async move {
            starts.await.map_err(|_gone| StationError::Broken("nothing started".into()))?;
            panic!("it broke")
        })
        .start()
        .await
        .unwrap();
    rig.admit(vec![numbered(1)]).await;
    let ended = relay.ended().await.unwrap_err();
    assert_eq!(ended.to_string(), "fragile panicked: it broke");
    assert!(told.load(Ordering::SeqCst));
    assert_eq!(rig.state(id(1)).await, Some(StateKind::Settled), "the worker finished what it had in hand");
}

async fn a_halted_station_stops_alone(rig: Rig) {
    let square = handler_fn(|n: u64, _job| async move { Ok(n) });
    let relay = relay(&rig)
        .route("orders", RoutePolicy::default(), square)
        .station("stubborn", |_shutdown| async { Err(StationError::Halted("look at the chain".into())) })
        .start()
        .await
        .unwrap();
    rig.admit(vec![numbered(1)]).await;
    let ended = relay.submitter().ended(id(1)).await.unwrap();
    assert!(matches!(ended, Some(Ending::Ended(receipt)) if receipt.end == End::Settled), "{ended:?}");
    assert_eq!(relay.halted(), [("stubborn".to_owned(), "look at the chain".to_owned())]);
    let ended = relay.shutdown().await.unwrap_err();
    assert_eq!(ended.to_string(), "stubborn ended: look at the chain");
}

async fn a_station_that_does_not_stop_is_named(rig: Rig) {
    let relay = relay(&rig)
        .stop_within(Duration::from_secs(3))
        .station("deaf", |_shutdown| std::future::pending::<Result<(), StationError>>())
        .start()
        .await
        .unwrap();
    let told = tokio::time::Instant::now();
    let ended = relay.shutdown().await.unwrap_err();
    assert_eq!(ended.to_string(), "not stopped in time, and aborted: deaf");
    assert_eq!(told.elapsed(), Duration::from_secs(3));
}

async fn a_relay_stops_when_told(rig: Rig) {
    for way in 0..3 {
        let told = Arc::new(AtomicBool::new(false));
        let outer = Shutdown::new();
        let (stop, stops) = oneshot::channel::<()>();
        let relay = relay(&rig)
            .stop_when(async move { drop(stops.await) })
            .stop_on(&outer)
            .station("witness", witness(told.clone()))
            .start()
            .await
            .unwrap();
        match way {
            0 => drop(stop),
            1 => outer.cancel(),
            _ => relay.token().cancel(),
        }
        relay.ended().await.unwrap();
        assert!(told.load(Ordering::SeqCst));
        assert_eq!(outer.is_cancelled(), way == 1, "what is around the relay is not stopped by it");
    }
}

async fn a_relay_may_take_for_ever_to_stop(rig: Rig) {
    let noted = Arc::new(AtomicBool::new(false));
    let relay =
        relay(&rig).stop_within(Duration::MAX).station("witness", witness(noted.clone())).start().await.unwrap();
    relay.shutdown().await.unwrap();
    assert!(noted.load(Ordering::SeqCst));
}

async fn a_dropped_relay_leaves_nothing_running(rig: Rig) {
    let (alive, mut dies) = tokio::sync::mpsc::channel::<()>(1);
    let holds = alive.clone();
    let endless = handler_fn(move |n: u64, _job: Job| {
        let holds = holds.clone();
        async move {
            holds.send(()).await?;
            std::future::pending::<()>().await;
            Ok(n)
        }
    });
    let relay = relay(&rig)
        .route_with("orders", RoutePolicy::default(), Typed(endless), WorkerOptions::default())
        .station("holder", move |_shutdown| async move {
            let _alive = alive;
            std::future::pending().await
        })
        .start()
        .await
        .unwrap();
    rig.admit(vec![numbered(1)]).await;
    assert_eq!(dies.recv().await, Some(()), "the handler runs");
    drop(relay);
    assert_eq!(dies.recv().await, None, "every task that held the channel is gone");
}

#[tokio::test]
async fn names_must_be_names_and_differ() {
    let rig = Rig::in_memory();
    let handler = || handler_fn(|n: u64, _job| async move { Ok(n) });
    let policy = RoutePolicy::default;
    let twice = relay(&rig).route("a", policy(), handler()).route("a", policy(), handler()).start().await;
    assert!(matches!(twice, Err(RelayError::Repeated(name)) if name == "worker of a"));
    let twice = relay(&rig).define("a", policy()).define("a", policy()).start().await;
    assert!(matches!(twice, Err(RelayError::Repeated(name)) if name == "a"));
    let bad = relay(&rig).define("a b", policy()).start().await;
    assert!(matches!(bad, Err(RelayError::Name(_))));
}

async fn events_of_a_chain_are_answered_on_it(rig: Rig) {
    let chain = TestChain::with_events(|event| NewRequest { standing: Standing::Seen, ..numbered(event) });
    let policy = RoutePolicy { destination: Some(destination()), ..policy() };
    let second = Duration::from_secs(1);
    let relay = relay(&rig)
        .route("orders", policy, handler_fn(|n: u64, _job| async move { Ok(n * n) }))
        .follow(
            "listener",
            "chain",
            Arc::new(chain.clone()),
            &["orders"],
            FollowerOptions { poll: second, ..FollowerOptions::default() },
        )
        .lanes(
            destination().as_str(),
            Arc::new(chain.clone()),
            &["a", "b"],
            SenderOptions { poll: second, ..SenderOptions::default() },
        )
        .start()
        .await
        .unwrap();
    for event in 0..10 {
        chain.emit(event);
    }
    for block in 0..40 {
        tokio::time::sleep(2 * second).await;
        if block == 4 {
            assert_eq!(chain.reorg(3), 3);
        }
        chain.mine();
    }
    assert_eq!(chain.answers(), (0..10).map(|event| (id(event), 1)).collect());
    assert!(rig.store.counts().await.unwrap().is_empty(), "all are settled");
    relay.shutdown().await.unwrap();
}
