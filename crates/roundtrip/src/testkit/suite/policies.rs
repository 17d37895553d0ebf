//! Each policy of a route, by a case that fails without it.

use crate::inbox::{End, StateKind};
use crate::store::ReadExt;
use crate::store::op::{Admission, Admit, Effect, Full, NewRequest, Op, Outcome, Prune, Remedy, Seat};
use crate::store::policy::{Gate, Horizon, QueueOrder, RoutePolicy};
use crate::store::query::Found;
use crate::testkit::bench::{Bench, must};
use crate::testkit::samples::*;
use crate::words::{ErrorClass, UnixMs};

/// `work_on`: work starts when a request is seen, or only when it is final.
pub async fn work_on(bench: Bench) {
    for (n, gate, state) in [(1, Gate::Seen, StateKind::Queued), (2, Gate::Final, StateKind::Held)] {
        bench.define(RoutePolicy { work_on: gate, ..policy() }).await;
        let lead = bench.lead(Seat::Route(route())).await;
        bench.admit(vec![request(n)]).await;
        bench.expect(&[(n, state)]).await;
        bench.applied(finalize(lead, n)).await;
        bench.expect(&[(n, StateKind::Queued)]).await;
    }
}

/// `publish_on`: an answer goes out when its request is seen, or only when it is final.
pub async fn publish_on(bench: Bench) {
    for (n, gate, state) in [(1, Gate::Seen, StateKind::Ready), (2, Gate::Final, StateKind::Waiting)] {
        bench.define(RoutePolicy { publish_on: gate, ..policy() }).await;
        let lead = bench.lead(Seat::Route(route())).await;
        bench.admit(vec![request(n)]).await;
        let grant = bench.lease_one().await;
        assert_eq!(bench.applied(answer(&grant)).await, Effect::Now(state));
        bench.applied(finalize(lead, n)).await;
        bench.expect(&[(n, StateKind::Ready)]).await;
    }
}

/// `order`: as they came, or the higher priority first.
pub async fn order(mut bench: Bench) {
    let cases = [(10, QueueOrder::Fifo, [10, 11, 12, 13]), (20, QueueOrder::Priority, [21, 23, 20, 22])];
    for (first, queue, expected) in cases {
        bench.define(RoutePolicy { order: queue, ..policy() }).await;
        let priorities = (first..).zip([0, 255, 0, 7]);
        bench.admit(priorities.map(|(n, priority)| NewRequest { priority, ..request(n) }).collect()).await;
        bench.restart().await;
        let grants = [bench.lease(1).await, bench.lease(9).await].concat();
        assert_eq!(grants.iter().map(|grant| grant.id).collect::<Vec<_>>(), expected.map(id), "{queue:?}");
        for grant in grants.iter().rev() {
            bench.applied(release(grant)).await;
        }
        let grants = bench.lease(9).await;
        let ids: Vec<_> = grants.iter().map(|grant| grant.id).collect();
        assert_eq!(ids, expected.map(id), "back in the queue each is where it was: {queue:?}");
    }
}

/// `horizon`: how long an ended id blocks a repeat.
pub async fn horizon(mut bench: Bench) {
    let ended = Admission::Ended(End::Settled);
    let new = Admission::New { generation: 1 };
    let cases = [
        (2, Horizon::For { ms: 1000 }, 999, &ended),
        (1, Horizon::UntilSettled, 0, &new),
        (3, Horizon::For { ms: 1000 }, 1000, &new),
        (4, Horizon::Forever, 1_000_000_000, &ended),
    ];
    for (n, horizon, after_ms, expected) in cases {
        bench.define(RoutePolicy { horizon, destination: None, ..policy() }).await;
        bench.answered(n).await;
        bench.clock.advance_ms(after_ms);
        bench.applied(Prune { limit: 1000, floors: Vec::new() }).await;
        bench.restart().await;
        let due = Some(UnixMs::NEVER);
        let anew = NewRequest { occurrence: occurrence(1000 + n), due, ..request(n) };
        let admission = bench.admit(vec![anew]).await.remove(0);
        assert_eq!(&admission, expected, "{horizon:?} after {after_ms} ms");
    }
}

/// `capacity`: a full route pushes back, with everything, and holds the cursor; what
/// is already here still joins.
pub async fn capacity(mut bench: Bench) {
    bench.define(RoutePolicy { capacity: 2, ..policy() }).await;
    let full = || Outcome::Full(Full::Route { route: route(), capacity: 2 });
    assert_eq!(bench.apply(admit_at(None, 10, requests([1, 2, 3]))).await, full());
    assert_eq!(must(bench.store().cursor(listener()).await, "cursor"), None);
    bench.applied(admit_at(None, 10, requests([1, 2]))).await;
    bench.restart().await;
    assert_eq!(bench.apply(Admit { cursor: None, requests: requests([3]) }).await, full());
    let another = NewRequest { occurrence: occurrence(1001), ..request(1) };
    assert!(matches!(
        bench.admit(vec![another, request(2)]).await[..],
        [Admission::Attached { same_content: true, .. }, Admission::Known { .. }]
    ));
    bench.applied(mend(1, Remedy::Cancel)).await;
    assert_eq!(bench.admit(requests([3])).await, [Admission::New { generation: 0 }]);
}

/// A full route does not push back what it would not keep.
pub async fn capacity_lets_ended_ids_pass(bench: Bench) {
    bench.define(RoutePolicy { capacity: 1, horizon: Horizon::Forever, destination: None, ..policy() }).await;
    bench.answered(1).await;
    bench.admit(vec![request(2)]).await;
    let repeat = NewRequest { occurrence: occurrence(1001), ..request(1) };
    assert_eq!(bench.admit(vec![repeat]).await, [Admission::Ended(End::Settled)]);
}

/// `lease_ms`: how long a lease lasts unless the worker says otherwise.
pub async fn lease_ms(bench: Bench) {
    bench.define(RoutePolicy { lease_ms: 30, ..policy() }).await;
    bench.admit(vec![request(1)]).await;
    let grant = bench.lease_one().await;
    assert_eq!(grant.until, bench.now().plus(30));
    bench.clock.advance_ms(20);
    assert_eq!(bench.applied(extend(&grant)).await, Effect::Extended(bench.now().plus(30), vec![]));
    bench.clock.advance_ms(30);
    assert_eq!(bench.applied(Op::Rescue { limit: 9 }).await, Effect::Count(1));
}

/// `attempts_max`: how many attempts fail before the request is a dead letter.
pub async fn attempts_max(bench: Bench) {
    bench.define(RoutePolicy { attempts_max: 3, ..policy() }).await;
    bench.admit(vec![request(1)]).await;
    for expected in [StateKind::Queued, StateKind::Queued, StateKind::Dead] {
        let grant = bench.lease_one().await;
        assert_eq!(bench.applied(fail(&grant, ErrorClass::Retryable)).await, Effect::Now(expected));
    }
}

/// `crashes_max`: how many workers go silent with a request before it is a dead letter.
pub async fn crashes_max(mut bench: Bench) {
    bench.define(RoutePolicy { crashes_max: 3, ..policy() }).await;
    bench.admit(vec![request(1)]).await;
    for expected in [StateKind::Queued, StateKind::Queued, StateKind::Dead] {
        bench.lease_one().await;
        bench.clock.advance_ms(60_000);
        assert_eq!(bench.applied(Op::Rescue { limit: 9 }).await, Effect::Count(1));
        bench.restart().await;
        bench.expect(&[(1, expected)]).await;
    }
}

/// `destination`: where answers go; without one, an answer settles the request.
pub async fn destination_of_answers(bench: Bench) {
    bench.define(policy()).await;
    bench.answered(1).await;
    bench.expect(&[(1, StateKind::Ready)]).await;
    let ready = |to| async { must(bench.store().ready(to, 9).await, "ready").len() };
    assert_eq!((ready(destination()).await, ready(other_destination()).await), (1, 0));
    bench.define(RoutePolicy { destination: Some(other_destination()), ..policy() }).await;
    assert_eq!((ready(destination()).await, ready(other_destination()).await), (0, 1));
    bench.define(RoutePolicy { destination: None, ..policy() }).await;
    bench.answered(2).await;
    bench.expect(&[(1, StateKind::Settled), (2, StateKind::Settled)]).await;
}

/// `receipt_ms`: how long an ended request can be looked up, at the least.
pub async fn receipt_ms(mut bench: Bench) {
    bench.define(RoutePolicy { receipt_ms: 1000, destination: None, ..policy() }).await;
    // Many, so that the first are spilled.
    for n in 1..=20 {
        bench.answered(n).await;
    }
    bench.clock.advance_ms(999);
    bench.applied(Prune { limit: 1000, floors: Vec::new() }).await;
    bench.restart().await;
    bench.expect(&[(1, StateKind::Settled), (20, StateKind::Settled)]).await;
    bench.clock.advance_ms(1);
    bench.applied(Prune { limit: 1000, floors: Vec::new() }).await;
    for n in 1..=20 {
        assert_eq!(bench.found(n).await, None, "request {n}");
    }
}

/// `dead_ms`: how long a dead letter waits for a person.
pub async fn dead_ms(mut bench: Bench) {
    bench.define(RoutePolicy { dead_ms: 1000, ..policy() }).await;
    bench.admit(vec![request(1)]).await;
    let grant = bench.lease_one().await;
    bench.applied(fail(&grant, ErrorClass::Fatal)).await;
    let prune = Prune { limit: 9, floors: Vec::new() };
    bench.clock.advance_ms(999);
    assert_eq!(bench.applied(prune.clone()).await, Effect::Count(0));
    bench.restart().await;
    bench.clock.advance_ms(1);
    assert_eq!(bench.applied(prune).await, Effect::Count(1));
    let found = bench.found(1).await;
    assert!(matches!(found, Some(Found::Ended(receipt)) if receipt.end == End::Dead), "{found:?}");
}
