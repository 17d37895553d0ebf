//! The durable timer, and requests that code submits.

use std::sync::Arc;
use std::time::Duration;

use roundtrip::inbox::StateKind;
use roundtrip::listener::{CatchUp, Every, Source, SubmitError, Submitter, request};
use roundtrip::station::Shutdown;
use roundtrip::store::op::{Admission, Full, Invalid, NewRequest, Op, Remedy};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::ListFilter;
use roundtrip::store::{ReadExt, StoreExt};
use roundtrip::testkit::faulty::{Cut, Faulty};
use roundtrip::testkit::samples::{id, listener, mend, route, route_named};
use roundtrip::words::{OccurrenceId, Payload};

use super::{Rig, numbered, on_each_store};

on_each_store! {
    a_timer_fires_once_for_each_tick
    missed_ticks_are_caught_up_with
    two_processes_share_a_timer
    a_timer_waits_for_room
    a_lost_answer_costs_no_tick
    a_submission_is_recognised
    submissions_are_pushed_back
}

const PERIOD: Duration = Duration::from_secs(10);

fn every(catch_up: CatchUp) -> Every {
    let make = |tick: roundtrip::listener::Tick| {
        assert_eq!(tick.at.0, tick.number * 10_000);
        request(&route(), Payload::json(tick.number.to_string()))
    };
    Every::new(listener(), PERIOD, make).catch_up(catch_up)
}

/// Runs a timer for so long, then drops it as a crash would.
async fn run_for(rig: &Rig, time: Duration, catch_up: CatchUp) {
    let running = every(catch_up).run(rig.store.clone(), rig.clock.clone(), Shutdown::new());
    assert!(tokio::time::timeout(time, running).await.is_err(), "a timer runs until it is stopped");
}

/// The ticks that were admitted, in order, counted from the first that was due.
async fn ticks(rig: &Rig, first: u64) -> Vec<u64> {
    let page = rig.store.list(ListFilter { limit: 1000, ..ListFilter::default() }).await.unwrap();
    let mut ticks = Vec::new();
    for view in page.requests {
        let (_, bodies) = rig.live(view.id).await;
        let number = serde_json::from_slice::<u64>(&bodies.payload.bytes).unwrap();
        assert_eq!(view.id, Every::id(&listener(), PERIOD, number));
        ticks.push(number - first);
    }
    ticks
}

async fn a_timer_fires_once_for_each_tick(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    let first = rig.clock.now().0 / 10_000 + 1;
    run_for(&rig, Duration::from_millis(35_000), CatchUp::All).await;
    assert_eq!(ticks(&rig, first).await, [0, 1, 2]);
    for _ in 0..3 {
        run_for(&rig, Duration::from_millis(1), CatchUp::All).await;
    }
    assert_eq!(ticks(&rig, first).await, [0, 1, 2], "a restart fires nothing twice");
    run_for(&rig, PERIOD, CatchUp::All).await;
    assert_eq!(ticks(&rig, first).await, [0, 1, 2, 3]);
}

async fn missed_ticks_are_caught_up_with(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    let first = rig.clock.now().0 / 10_000 + 1;
    run_for(&rig, Duration::from_millis(1), CatchUp::All).await;
    tokio::time::sleep(3 * PERIOD).await;
    run_for(&rig, Duration::from_millis(1), CatchUp::All).await;
    assert_eq!(ticks(&rig, first).await, [0, 1, 2], "all of them");
    tokio::time::sleep(3 * PERIOD).await;
    run_for(&rig, Duration::from_millis(1), CatchUp::Latest).await;
    assert_eq!(ticks(&rig, first).await, [0, 1, 2, 5], "the newest alone");
    tokio::time::sleep(600 * PERIOD).await;
    run_for(&rig, Duration::from_millis(1), CatchUp::All).await;
    assert_eq!(ticks(&rig, first).await.len(), 604, "more than one commit takes");
}

async fn two_processes_share_a_timer(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    let first = rig.clock.now().0 / 10_000 + 1;
    let time = Duration::from_millis(55_000);
    tokio::join!(run_for(&rig, time, CatchUp::All), run_for(&rig, time, CatchUp::Latest));
    assert_eq!(ticks(&rig, first).await, [0, 1, 2, 3, 4]);
}

async fn a_timer_waits_for_room(rig: Rig) {
    rig.define(RoutePolicy { capacity: 2, ..RoutePolicy::default() }).await;
    let first = rig.clock.now().0 / 10_000 + 1;
    run_for(&rig, Duration::from_millis(45_000), CatchUp::All).await;
    assert_eq!(ticks(&rig, first).await, [0, 1], "the cursor is held");
    for n in 0..2 {
        rig.apply(roundtrip::store::op::Mend { id: Every::id(&listener(), PERIOD, first + n), remedy: Remedy::Cancel })
            .await;
    }
    run_for(&rig, Duration::from_millis(1), CatchUp::All).await;
    assert_eq!(ticks(&rig, first).await, [2, 3]);
}

async fn a_lost_answer_costs_no_tick(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    let first = rig.clock.now().0 / 10_000 + 1;
    for cut in [Cut::Before, Cut::After] {
        for call in 0..2 {
            let faulty = Arc::new(Faulty::new(rig.store.clone(), cut, call));
            let running = every(CatchUp::All).run(faulty, rig.clock.clone(), Shutdown::new());
            assert!(tokio::time::timeout(2 * PERIOD, running).await.is_err());
        }
    }
    let fired = ticks(&rig, first).await;
    assert_eq!(fired, (0..fired.len() as u64).collect::<Vec<_>>());
    assert!(fired.len() >= 7, "{fired:?}");
}

async fn a_submission_is_recognised(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    let submitter = Submitter::new(rig.store.clone());
    let submitted = submitter.submit_json("orders", &7).await.unwrap();
    assert_eq!(submitted.admission, Admission::New { generation: 0 });
    let again = submitter.submit_json("orders", &7).await.unwrap();
    assert_eq!(again.id, submitted.id);
    assert!(matches!(again.admission, Admission::Known { state: StateKind::Queued, .. }), "{again:?}");
    // Asked for by somebody else, it is the same request.
    let other = NewRequest { occurrence: OccurrenceId::of(&[b"other"]), ..request(&route(), Payload::json("7")) };
    let joined = submitter.submit(other).await.unwrap();
    assert_eq!(joined.admission, Admission::Attached { state: StateKind::Queued, same_content: true });
    assert_eq!(submitter.ended(id(99)).await.unwrap(), None);

    let waits = tokio::spawn({
        let (submitter, id) = (submitter.clone(), submitted.id);
        async move { submitter.ended(id).await.unwrap() }
    });
    rig.apply(Op::Mend(roundtrip::store::op::Mend { id: submitted.id, remedy: Remedy::Cancel })).await;
    let ended = waits.await.unwrap();
    assert!(matches!(ended, Some(roundtrip::listener::Ending::Ended(_))), "{ended:?}");
}

async fn submissions_are_pushed_back(rig: Rig) {
    rig.define(RoutePolicy { capacity: 1, ..RoutePolicy::default() }).await;
    let submitter = Submitter::new(rig.store.clone());
    submitter.submit(numbered(1)).await.unwrap();
    let full = submitter.submit(numbered(2)).await.unwrap_err();
    assert_eq!(full, SubmitError::Full(Full::Route { route: route(), capacity: 1 }));
    assert!(full.is_retryable());
    rig.apply(mend(1, Remedy::Cancel)).await;
    submitter.submit(numbered(2)).await.unwrap();
    let nowhere = submitter.submit(NewRequest { route: route_named("nowhere"), ..numbered(3) }).await.unwrap_err();
    assert_eq!(nowhere, SubmitError::Invalid(Invalid::UnknownRoute(route_named("nowhere"))));
    assert!(!nowhere.is_retryable());
    assert!(rig.store.apply_one(Op::Rescue { limit: 1 }).await.unwrap().holds());
}
