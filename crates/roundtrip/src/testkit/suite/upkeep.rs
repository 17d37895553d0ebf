//! `rescue`, `expire`, `prune`: in bounded steps, by the clock, which may step back.

use crate::inbox::{End, StateKind};
use crate::sender::{AttemptKind, ParcelStage};
use crate::store::ReadExt;
use crate::store::op::{
    Admission, Close, Effect, Invalid, Lease, NewRequest, Op, Outcome, Prune, Remedy, Sight, Stale,
};
use crate::store::policy::{Retention, RoutePolicy};
use crate::testkit::bench::{Bench, must};
use crate::testkit::samples::*;
use crate::words::{ErrorClass, Moment, UnixMs};

fn prune(limit: usize) -> Prune {
    Prune { limit, floors: Vec::new() }
}

/// Leases that ran out go back, at most as many as asked for, and the crash is counted.
pub async fn a_silent_worker_loses_its_lease(bench: Bench) {
    bench.define(policy()).await;
    bench.admit(requests([1, 2, 3])).await;
    let grants = bench.lease(2).await;
    let Effect::Leased(longer) = bench.applied(Lease { lease_ms: Some(90_000), ..lease(1) }).await else {
        panic!("a lease brings grants")
    };
    bench.clock.advance_ms(60_000);
    assert_eq!(bench.applied(Op::Rescue { limit: 1 }).await, Effect::Count(1));
    assert_eq!(bench.applied(Op::Rescue { limit: 9 }).await, Effect::Count(1));
    assert_eq!(bench.applied(Op::Rescue { limit: 9 }).await, Effect::Count(0));
    bench.expect(&[(1, StateKind::Queued), (2, StateKind::Queued), (3, StateKind::Leased)]).await;
    let (view, _) = bench.live(1).await;
    assert_eq!((view.attempts, view.crashes), (1, 1));
    assert_eq!(view.error.map(|error| error.class), Some(ErrorClass::Crash));
    assert_eq!(bench.apply(answer(&grants[0])).await, Outcome::Stale(Stale::Lease(StateKind::Queued)));
    bench.applied(answer(&longer[0])).await;
}

/// A lease that ran out holds until somebody takes it back.
pub async fn an_overdue_lease_holds_until_it_is_taken_back(bench: Bench) {
    bench.define(policy()).await;
    bench.admit(vec![request(1)]).await;
    let grant = bench.lease_one().await;
    bench.clock.advance_ms(1_000_000);
    assert_eq!(bench.applied(answer(&grant)).await, Effect::Now(StateKind::Waiting));
}

/// What is past its deadline ends, in whatever state before its slot.
pub async fn a_deadline_ends_a_request(bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(4).await;
    let deadline = Some(Moment::At(bench.now().plus(100)));
    let with = |n| NewRequest { deadline: deadline.clone(), ..final_request(n) };
    let held = NewRequest { due: Some(UnixMs::NEVER.into()), ..with(5) };
    bench.admit(vec![with(1), with(2), with(3), with(4), held, final_request(6)]).await;
    let grants = bench.lease(3).await;
    bench.applied(answer(&grants[0])).await;
    bench.applied(answer(&grants[1])).await;
    let carry = signed(1, AttemptKind::Carry);
    bench.applied(assign(owner, 0, vec![parcel(&[1], carry)])).await;
    bench.clock.advance_ms(99);
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(0));
    bench.clock.advance_ms(1);
    assert_eq!(bench.applied(Op::Expire { limit: 3 }).await, Effect::Count(3));
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(1));
    use StateKind::{Assigned, Expired, Queued};
    bench.expect(&[(1, Assigned), (2, Expired), (3, Expired), (4, Expired), (5, Expired), (6, Queued)]).await;
    assert_eq!(bench.apply(answer(&grants[2])).await, Outcome::Stale(Stale::Lease(Expired)));
    // Back from its slot unsent, it is past its deadline like the rest.
    bench.applied(settle(owner, 0, ParcelStage::Assigned, Sight::Displaced)).await;
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(1));
}

/// A dead letter has no deadline: it waits for a person.
pub async fn a_dead_letter_does_not_expire(bench: Bench) {
    bench.define(policy()).await;
    bench.admit(vec![NewRequest { deadline: Some(bench.now().plus(100).into()), ..request(1) }]).await;
    let grant = bench.lease_one().await;
    bench.applied(fail(&grant, ErrorClass::Fatal)).await;
    bench.clock.advance_ms(100);
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(0));
    bench.applied(mend(1, Remedy::Retry)).await;
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(1));
}

/// Pruning does no more than its limit at a time, and comes to an end.
pub async fn pruning_is_bounded(bench: Bench) {
    let short = RoutePolicy { dead_ms: 10, retention: Retention::all(10), destination: None, ..policy() };
    bench.define(short).await;
    // Without a place, time alone decides about receipts.
    let placeless = |n| NewRequest { place: None, ..final_request(n) };
    for n in 1..=3 {
        bench.admit(vec![placeless(n)]).await;
        let grant = bench.lease_one().await;
        bench.applied(fail(&grant, ErrorClass::Fatal)).await;
    }
    for n in 1..=3 {
        bench.applied(gather(n)).await;
    }
    bench.applied(Close { group: group(), request: placeless(4) }).await;
    let grant = bench.lease_one().await;
    bench.applied(answer(&grant)).await;
    assert_eq!(bench.applied(prune(9)).await, Effect::Count(0), "nothing is old enough");
    bench.clock.advance_ms(10);
    // Three dead letters, three items, their group, and the receipt of request 4.
    let (mut counts, mut total) = (Vec::new(), 0);
    loop {
        let Effect::Count(count) = bench.applied(prune(2)).await else { panic!("pruning counts") };
        counts.push(count);
        total += count;
        if count == 0 {
            break;
        }
        assert!(counts.len() < 20, "pruning ends: {counts:?}");
    }
    assert!(counts.iter().all(|count| *count <= 2), "{counts:?}");
    assert!(total >= 7, "{counts:?}");
    assert_eq!(must(bench.store().group(group(), 0, 9).await, "group"), None);
    bench.expect(&[(1, StateKind::Dead), (3, StateKind::Dead)]).await;
    bench.clock.advance_ms(10);
    bench.applied(prune(9)).await;
    for n in 1..=4 {
        assert_eq!(bench.found(n).await, None, "request {n} is forgotten");
    }
}

/// Below an origin's floor occurrences are forgotten and nothing is admitted; above it
/// they are known, however old.
pub async fn a_floor_forgets_and_refuses(mut bench: Bench) {
    bench.define(RoutePolicy { destination: None, retention: Retention::all(10), ..policy() }).await;
    for n in 1..=30 {
        bench.answered(n).await;
    }
    bench.clock.advance_ms(1000);
    let floor = place(120);
    for _ in 0..10 {
        bench.applied(Prune { limit: 100, floors: vec![floor.clone(), place(50)] }).await;
    }
    for _ in 0..2 {
        // Request n was seen at height 100 + n.
        let deep = bench.apply(admit_at(None, 10, vec![request(19)])).await;
        let too_deep = Invalid::TooDeep { place: place(119), floor: floor.height };
        assert_eq!(deep, Outcome::Invalid(too_deep));
        let again = bench.admit(vec![request(20), request(30)]).await;
        assert_eq!(again, vec![Admission::Known { state: End::Settled.kind(), standing: None }; 2]);
        bench.restart().await;
    }
}

/// A clock that steps back takes no lease away early and ends nothing twice.
pub async fn upkeep_bears_a_clock_that_steps_back(mut bench: Bench) {
    bench.define(policy()).await;
    let start = bench.now();
    bench.admit(vec![request(1), NewRequest { deadline: Some(start.plus(100).into()), ..request(2) }]).await;
    let grant = bench.lease_one().await;
    bench.commit().await;
    bench.clock.set(UnixMs(start.0 - 3_600_000));
    for op in [Op::Rescue { limit: 9 }, Op::Expire { limit: 9 }, prune(9).into()] {
        assert_eq!(bench.applied(op).await, Effect::Count(0));
    }
    // After a restart a lease lasts at most one lease time, whatever the clock did.
    bench.restart().await;
    bench.clock.advance_ms(59_999);
    assert_eq!(bench.applied(Op::Rescue { limit: 9 }).await, Effect::Count(0));
    bench.clock.advance_ms(1);
    assert_eq!(bench.applied(Op::Rescue { limit: 9 }).await, Effect::Count(1));
    assert_eq!(bench.apply(extend(&grant)).await, Outcome::Stale(Stale::Lease(StateKind::Queued)));
    bench.clock.set(start.plus(100));
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(1));
    bench.clock.set(start);
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(0));
    bench.expect(&[(2, StateKind::Expired)]).await;
}
