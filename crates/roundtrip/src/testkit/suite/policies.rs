//! Each policy of a route, by a case that fails without it.

use crate::inbox::{End, StateKind};
use crate::store::ReadExt;
use crate::store::op::{Admission, Admit, Define, Effect, Full, Invalid, NewRequest, Op, Outcome, Prune, Remedy, Seat};
use crate::store::policy::{Gate, Horizon, Rate, Retention, RoutePolicy};
use crate::store::query::Found;
use crate::testkit::bench::{Bench, START, must};
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
        let due = Some(UnixMs::NEVER.into());
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

/// `rate`: no period sees more handed out, whoever asks and however often.
pub async fn rate(mut bench: Bench) {
    let rate = Some(Rate { count: 3, per_ms: 100 });
    bench.define(RoutePolicy { rate, ..policy() }).await;
    bench.admit(requests(1..=20)).await;
    assert_eq!(bench.lease(2).await.len(), 2);
    bench.clock.advance_ms(60);
    let grants = bench.lease(9).await;
    assert_eq!(grants.len(), 1, "the rest of the allowance");
    // What comes back was handed out all the same.
    bench.applied(release(&grants[0])).await;
    assert_eq!(bench.lease(9).await, []);
    bench.clock.advance_ms(39);
    assert_eq!(bench.lease(9).await, []);
    bench.clock.advance_ms(1);
    assert_eq!(bench.lease(9).await.len(), 2, "those of the start no longer count");
    bench.clock.advance_ms(60);
    assert_eq!(bench.lease(9).await.len(), 1);
    // A start does not know what was handed out: nothing more within a period.
    bench.clock.advance_ms(99);
    bench.commit().await;
    bench.restart().await;
    assert_eq!(bench.lease(9).await, []);
    bench.clock.advance_ms(99);
    assert_eq!(bench.lease(9).await, []);
    bench.clock.advance_ms(1);
    assert_eq!(bench.lease(9).await.len(), 3);
    bench.define(policy()).await;
    assert_eq!(bench.lease(20).await.len(), 12, "without a rate, all that are left");
}

/// Policies that could never do what they say are refused, and nothing changes.
pub async fn policies_that_make_no_sense_are_refused(bench: Bench) {
    bench.define(policy()).await;
    let senseless = RoutePolicy { rate: Some(Rate { count: 0, per_ms: 1 }), ..policy() };
    let refused = bench.apply(Define { route: route(), policy: senseless }).await;
    assert!(matches!(refused, Outcome::Invalid(Invalid::Policy(_))), "{refused:?}");
    bench.admit(vec![request(1)]).await;
    assert_eq!(bench.lease(1).await.len(), 1);
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

/// `retention`: how long an ended request can be looked up, at the least, by how it ended.
pub async fn retention(mut bench: Bench) {
    let retention = Retention { settled_ms: 1000, failed_ms: 3000, withdrawn_ms: 2000 };
    bench.define(RoutePolicy { retention, destination: None, ..policy() }).await;
    let lead = bench.lead(Seat::Route(route())).await;
    bench.admit(vec![request(31), request(32), request(33)]).await;
    bench.admit(vec![NewRequest { deadline: Some(bench.now().into()), ..request(34) }]).await;
    bench.applied(elsewhere(lead, 31)).await;
    bench.applied(mend(32, Remedy::Cancel)).await;
    let grant = bench.lease_one().await;
    bench.applied(fail(&grant, ErrorClass::Fatal)).await;
    bench.applied(mend(33, Remedy::Drop)).await;
    bench.applied(Op::Expire { limit: 9 }).await;
    // Many, so that the first are spilled.
    for n in 1..=20 {
        bench.answered(n).await;
    }
    let settled = [(1, StateKind::Settled), (20, StateKind::Settled)];
    let withdrawn = [(31, StateKind::Elsewhere), (32, StateKind::Withdrawn)];
    let failed = [(33, StateKind::Dead), (34, StateKind::Expired)];
    let all = [settled, withdrawn, failed].concat();
    // What is remembered from each time on; a millisecond earlier it is one class more.
    for (ms, kept) in [(1000, &all[2..]), (2000, &all[4..]), (3000, &[])] {
        bench.clock.set(START.plus(ms - 1));
        bench.applied(Prune { limit: 1000, floors: Vec::new() }).await;
        bench.restart().await;
        bench.expect(&all[all.len() - kept.len() - 2..]).await;
        bench.clock.advance_ms(1);
        bench.applied(Prune { limit: 1000, floors: Vec::new() }).await;
        bench.expect(kept).await;
        for (n, _) in &all[..all.len() - kept.len()] {
            assert_eq!(bench.found(*n).await, None, "request {n} after {ms} ms");
        }
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
