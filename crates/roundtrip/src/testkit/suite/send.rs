//! Seats, lanes, `assign`, `fill`, `attempt`, `settle`: out, in order, without gaps.

use crate::inbox::StateKind;
use crate::sender::{AttemptKind, LaneStatus, ParcelStage};
use crate::store::op::{
    AfterCancel, Define, Effect, Fail, Full, Invalid, Judgement, LaneOrder, Lead, Missing, NewRequest, Op, Order,
    Outcome, Remedy, Seat, Sight, Stale, Verdict,
};
use crate::store::policy::RoutePolicy;
use crate::store::query::{LaneOutline, LaneView};
use crate::store::{ReadExt, Topic};
use crate::testkit::bench::{Bench, must};
use crate::testkit::samples::*;
use crate::words::{ATTEMPTS_MAX, ErrorClass, Nonce, Payload, Token};

use AttemptKind::{Cancel, Carry};
use ParcelStage::{Assigned, Confirmed, Included};

fn order(order: Order) -> LaneOrder {
    LaneOrder { lane: lane(), order }
}

fn carries_nothing() -> Outcome {
    Outcome::Invalid(Invalid::Empty("parcel with an attempt that carries it"))
}

async fn lane_view(bench: &Bench) -> LaneView {
    must(bench.store().lane(lane()).await, "lane").unwrap_or_else(|| panic!("the lane is open"))
}

/// A seat has one holder at a time; its token holds until somebody else takes it.
pub async fn a_seat_has_one_holder(bench: Bench) {
    let ask = |holder, ttl_ms| Lead { seat: Seat::Upkeep, holder, ttl_ms };
    let Effect::Led(first, until) = bench.applied(ask(holder(), 1000)).await else { panic!("a seat is led") };
    assert_eq!(until, bench.now().plus(1000));
    bench.clock.advance_ms(500);
    // More time for the holder, under the same token.
    let until = bench.now().plus(1000);
    assert_eq!(bench.applied(ask(holder(), 1000)).await, Effect::Led(first, until));
    let refused = Outcome::Stale(Stale::Seat { holder: Some(holder()), until });
    assert_eq!(bench.apply(ask(other_holder(), 1000)).await, refused);
    // Given up, it is free at once.
    assert_eq!(bench.applied(ask(holder(), 0)).await, Effect::Led(first, bench.now()));
    let Effect::Led(second, until) = bench.applied(ask(other_holder(), 10)).await else { panic!("a seat is led") };
    assert!(second > first, "newer tokens are greater");
    let shown = must(bench.store().seat(Seat::Upkeep).await, "seat").unwrap_or_else(|| panic!("the seat is held"));
    assert_eq!((shown.holder, shown.token, shown.until), (other_holder(), second, until));
    // Run out, it is free too.
    bench.clock.advance_ms(10);
    let Effect::Led(third, _) = bench.applied(ask(holder(), 10)).await else { panic!("a seat is led") };
    assert!(third > second);
}

/// Every write to a lane needs the token of its seat.
pub async fn a_lane_is_written_by_its_holder_alone(bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(4).await;
    bench.assigned(owner, 0, 1).await;
    // Past its time, the token holds as long as nobody has taken the seat.
    bench.clock.advance_ms(3_600_001);
    bench.assigned(owner, 1, 2).await;
    let takeover = Lead { seat: Seat::Lane(lane()), holder: other_holder(), ttl_ms: 10 };
    let Effect::Led(newer, until) = bench.applied(takeover).await else { panic!("a seat is led") };
    bench.answered(3).await;
    bench.pass_over(3).await;
    let writes = |owner| -> [Op; 4] {
        [
            assign(owner, 3, vec![parcel(&[3], signed(3, Carry))]).into(),
            fill(owner, 2, parcel(&[], signed(5, Cancel))).into(),
            attempt(owner, 0, signed(4, Carry)).into(),
            settle(owner, 0, Assigned, Sight::Included(block(1, 5))).into(),
        ]
    };
    for op in writes(owner) {
        let stale = Outcome::Stale(Stale::Seat { holder: Some(other_holder()), until });
        assert_eq!(bench.apply(op.clone()).await, stale, "{op:?}");
    }
    for op in writes(newer) {
        bench.applied(op).await;
    }
}

/// A token of an epoch that the store has not reached shows that it was rolled back.
pub async fn a_token_from_the_future_stops_every_lane(bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(4).await;
    bench.answered(1).await;
    let future = Token { epoch: owner.epoch + 1, count: 1 };
    let parcels = vec![parcel(&[1], signed(1, Carry))];
    assert_eq!(bench.apply(assign(future, 0, parcels.clone())).await, Outcome::Stale(Stale::RolledBack));
    assert_eq!(lane_view(&bench).await.status, LaneStatus::Stopped);
    let stopped = Outcome::Stale(Stale::Lane(LaneStatus::Stopped));
    assert_eq!(bench.apply(assign(owner, 0, parcels)).await, stopped);
    bench.expect(&[(1, StateKind::Ready)]).await;
}

/// Parcels take consecutive slots; the longest valid prefix applies.
pub async fn slots_are_consecutive(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(8).await;
    for n in 1..=4 {
        bench.answered(n).await;
    }
    let one = |n| parcel(&[n], signed(n, Carry));
    let next = |next| Outcome::Stale(Stale::Nonce { next: Nonce(next) });
    assert_eq!(bench.apply(assign(owner, 1, vec![one(1)])).await, next(0), "no gap");
    let two = parcel(&[1, 2], signed(1, Carry));
    let batch = vec![two.clone(), one(9), one(3)];
    let missing = || Some(Box::new(Outcome::NotFound(Missing::Request(id(9)))));
    assert_eq!(bench.applied(assign(owner, 0, batch.clone())).await, Effect::Assigned(1, missing()));
    bench.expect(&[(1, StateKind::Assigned), (2, StateKind::Assigned), (3, StateKind::Ready)]).await;
    let replay = bench.apply(assign(owner, 0, batch)).await;
    assert_eq!(replay, Outcome::Duplicate(Effect::Assigned(1, missing())));
    assert_eq!(bench.apply(assign(owner, 0, vec![one(3)])).await, next(1), "a used slot is not used again");
    // A replay that goes on from where the first one came to.
    let more = bench.applied(assign(owner, 0, vec![two.clone(), one(3)])).await;
    assert_eq!(more, Effect::Assigned(2, None));
    // A gap fill carries nothing.
    bench.applied(assign(owner, 2, vec![parcel(&[], signed(7, Cancel))])).await;
    bench.restart().await;
    let replay = bench.apply(assign(owner, 0, vec![two, one(3)])).await;
    assert_eq!(replay, Outcome::Duplicate(Effect::Assigned(2, None)));
    let view = lane_view(&bench).await;
    assert_eq!((view.next, view.under_way), (Nonce(3), 3));
    let carried: Vec<_> = view.parcels.iter().map(|parcel| parcel.deliveries.clone()).collect();
    assert_eq!(carried, [vec![id(1), id(2)], vec![id(3)], vec![]]);
    assert_eq!(view.parcels[0].attempts, [signed(1, Carry)]);
}

/// What may not go onto a slot is refused, and nothing moves.
pub async fn parcels_carry_what_is_ready_alone(bench: Bench) {
    bench.define(policy()).await;
    let elsewhere = RoutePolicy { destination: Some(other_destination()), ..policy() };
    bench.applied(Define { route: route_named("other"), policy: elsewhere }).await;
    let owner = bench.open_lane(4).await;
    bench.admit(requests([1, 2])).await;
    let waiting = bench.lease_one().await;
    bench.applied(answer(&waiting)).await;
    let other = NewRequest { route: route_named("other"), ..final_request(3) };
    bench.admit(vec![other]).await;
    let ended = bench.lease_one().await;
    assert_eq!(ended.id, id(2));
    bench.applied(mend(2, Remedy::Cancel)).await;
    bench.answered(4).await;
    let delivery = |n, state| Outcome::Stale(Stale::Delivery(id(n), state));
    let cases: [(&[u64], Outcome); 6] = [
        (&[4, 1], delivery(1, StateKind::Waiting)),
        (&[2], delivery(2, StateKind::Withdrawn)),
        (&[4, 3], Outcome::Invalid(Invalid::OtherDestination(id(3)))),
        (&[4, 4], Outcome::Invalid(Invalid::Repeated("a delivery"))),
        (&[9], Outcome::NotFound(Missing::Request(id(9)))),
        (&[4, 9], Outcome::NotFound(Missing::Request(id(9)))),
    ];
    for (numbers, refusal) in cases {
        let outcome = bench.apply(assign(owner, 0, vec![parcel(numbers, signed(1, Carry))])).await;
        assert_eq!(outcome, refusal, "{numbers:?}");
    }
    let nothing = bench.apply(assign(owner, 0, vec![parcel(&[], signed(1, Carry))])).await;
    assert_eq!(nothing, carries_nothing());
    let empty = bench.apply(assign(owner, 0, vec![])).await;
    assert_eq!(empty, Outcome::Invalid(Invalid::Empty("list of parcels")));
    let mut nowhere = assign(owner, 0, vec![parcel(&[4], signed(1, Carry))]);
    nowhere.lane = lane_named("nowhere");
    assert_eq!(bench.apply(nowhere).await, Outcome::NotFound(Missing::Lane(lane_named("nowhere"))));
    assert_eq!(lane_view(&bench).await.next, Nonce(0));
    bench.expect(&[(4, StateKind::Ready)]).await;
}

/// No more parcels are under way than the window lets.
pub async fn a_window_bounds_what_is_under_way(bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(1).await;
    bench.assigned(owner, 0, 1).await;
    bench.answered(2).await;
    let second = assign(owner, 1, vec![parcel(&[2], signed(2, Carry))]);
    assert_eq!(bench.apply(second.clone()).await, Outcome::Full(Full::Window { window: 1 }));
    bench.applied(settle(owner, 0, Assigned, Sight::Final(block(1, 5), Judgement::Done))).await;
    assert_eq!(bench.applied(second).await, Effect::Assigned(1, None));
    let third = assign(owner, 2, vec![parcel(&[], signed(3, Cancel))]);
    assert_eq!(bench.apply(third.clone()).await, Outcome::Full(Full::Window { window: 1 }));
    let wider = order(Order::Open { destination: destination(), window: 2, first: Nonce(0) });
    bench.applied(wider).await;
    bench.applied(third).await;
}

/// Attempts are stored once, up to a bound.
pub async fn attempts_are_stored_before_they_are_sent(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(4).await;
    bench.assigned(owner, 0, 1).await;
    bench.applied(attempt(owner, 0, signed(2, Cancel))).await;
    assert_eq!(bench.apply(attempt(owner, 0, signed(2, Cancel))).await, Outcome::Duplicate(Effect::Done));
    let nothing = bench.apply(attempt(owner, 1, signed(3, Carry))).await;
    assert_eq!(nothing, Outcome::NotFound(Missing::Parcel(Nonce(1))));
    bench.restart().await;
    assert_eq!(lane_view(&bench).await.parcels[0].attempts, [signed(1, Carry), signed(2, Cancel)]);
    for n in 2..ATTEMPTS_MAX as u64 {
        bench.applied(attempt(owner, 0, signed(100 + n, Carry))).await;
    }
    assert_eq!(bench.apply(attempt(owner, 0, signed(999, Carry))).await, Outcome::Full(Full::Attempts));
    assert_eq!(bench.apply(attempt(owner, 0, signed(1, Carry))).await, Outcome::Duplicate(Effect::Done));
}

/// A parcel goes from its slot to final, and back by a reorg; each step only from the
/// stage that the sender saw; each replay known.
pub async fn a_parcel_goes_through_its_stages(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(4).await;
    bench.assigned(owner, 0, 1).await;
    let known = || Outcome::Duplicate(Effect::Done);
    let at = |stage| Outcome::Stale(Stale::Parcel(stage));
    let done = || Outcome::Applied(Effect::Done);
    let (low, high) = (block(1, 5), block(1, 6));
    let no_attempt = || Outcome::NotFound(Missing::Attempt(attempt_hash(9)));
    let steps = [
        (0, Included, Sight::Included(low), at(Assigned), StateKind::Assigned),
        (0, Assigned, Sight::Included(block(9, 5)), no_attempt(), StateKind::Assigned),
        (0, Assigned, Sight::Back, known(), StateKind::Assigned),
        (0, Assigned, Sight::Included(low), done(), StateKind::Included),
        (0, Assigned, Sight::Included(low), known(), StateKind::Included),
        (0, Included, Sight::Included(high), done(), StateKind::Included),
        (0, Included, Sight::Back, done(), StateKind::Assigned),
        (0, Assigned, Sight::Confirmed(low), done(), StateKind::Confirmed),
        (0, Confirmed, Sight::Included(high), at(Confirmed), StateKind::Confirmed),
        (0, Confirmed, Sight::Back, done(), StateKind::Assigned),
        (0, Assigned, Sight::Included(low), done(), StateKind::Included),
        (0, Included, Sight::Confirmed(low), done(), StateKind::Confirmed),
        (0, Included, Sight::Displaced, at(Confirmed), StateKind::Confirmed),
        (0, Included, Sight::Final(low, Judgement::Done), at(Confirmed), StateKind::Confirmed),
        (0, Confirmed, Sight::Final(block(9, 5), Judgement::Done), no_attempt(), StateKind::Confirmed),
        (1, Assigned, Sight::Included(low), Outcome::NotFound(Missing::Parcel(Nonce(1))), StateKind::Confirmed),
        (0, Confirmed, Sight::Final(low, Judgement::Done), done(), StateKind::Settled),
        (0, Confirmed, Sight::Final(low, Judgement::Done), known(), StateKind::Settled),
    ];
    for (nonce, expected, sight, outcome, state) in steps {
        let op = settle(owner, nonce, expected, sight);
        assert_eq!(bench.apply(op.clone()).await, outcome, "{op:?}");
        assert_eq!(bench.state(1).await, Some(state), "after {op:?}");
        bench.restart().await;
        assert_eq!(bench.state(1).await, Some(state), "a restart after {op:?}");
    }
    // The slot stays used, although nothing is kept of it.
    let view = lane_view(&bench).await;
    assert_eq!((view.next, view.under_way), (Nonce(1), 0));
    let again = bench.apply(assign(owner, 0, vec![parcel(&[], signed(5, Cancel))])).await;
    assert_eq!(again, Outcome::Stale(Stale::Nonce { next: Nonce(1) }));
}

/// What a final transaction did decides what becomes of its deliveries.
pub async fn a_final_transaction_is_judged(bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(8).await;
    let again = || Judgement::Again(note(ErrorClass::Retryable));
    let failed = || Judgement::Failed(note(ErrorClass::Fatal));
    let at = |n, judgement| Sight::Final(block(n, 5), judgement);
    let cases = [
        (1, at(1, Judgement::Done), StateKind::Settled, None),
        (2, at(2, again()), StateKind::Ready, Some(note(ErrorClass::Retryable))),
        (3, at(3, failed()), StateKind::Dead, Some(note(ErrorClass::Fatal))),
        // Its cancel was mined: nothing was carried, whatever anybody judged.
        (4, at(104, Judgement::Done), StateKind::Ready, None),
        (5, Sight::Displaced, StateKind::Ready, None),
    ];
    for (n, sight, state, error) in cases {
        bench.assigned(owner, n - 1, n).await;
        bench.applied(attempt(owner, n - 1, signed(100 + n, Cancel))).await;
        bench.applied(settle(owner, n - 1, Assigned, sight.clone())).await;
        assert_eq!(bench.state(n).await, Some(state), "{sight:?}");
        if state != StateKind::Settled {
            let (view, bodies) = bench.live(n).await;
            assert_eq!(view.error, error, "{sight:?}");
            assert_eq!(bodies.response, Some(response()), "an answer is never thrown away");
        }
    }
    // A dead letter with an answer is sent again, not worked out anew.
    assert_eq!(bench.applied(mend(3, Remedy::Retry)).await, Effect::Now(StateKind::Ready));
    let parcels = vec![parcel(&[2, 3, 4, 5], signed(6, Carry))];
    assert_eq!(bench.applied(assign(owner, 5, parcels)).await, Effect::Assigned(1, None));
}

/// A published failure that is done ends the request dead.
pub async fn a_delivered_failure_ends_dead(bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(4).await;
    bench.admit(vec![final_request(1)]).await;
    let grant = bench.lease_one().await;
    let verdict = Verdict::Dead { response: Some(Payload::raw("it failed")) };
    bench.applied(Fail { verdict, ..fail(&grant, ErrorClass::Fatal) }).await;
    bench.applied(assign(owner, 0, vec![parcel(&[1], signed(1, Carry))])).await;
    bench.applied(settle(owner, 0, Assigned, Sight::Final(block(1, 5), Judgement::Done))).await;
    bench.expect(&[(1, StateKind::Dead)]).await;
    let refused = bench.apply(mend(1, Remedy::Retry)).await;
    assert_eq!(refused, Outcome::Stale(Stale::State(StateKind::Dead)), "it has ended");
}

/// An answer that comes back from its slot when its route has no destination any
/// longer is settled like every other.
pub async fn an_answer_that_nobody_wants_any_longer_settles(bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(4).await;
    bench.assigned(owner, 0, 1).await;
    bench.define(RoutePolicy { destination: None, ..policy() }).await;
    bench.expect(&[(1, StateKind::Assigned)]).await;
    bench.applied(settle(owner, 0, Assigned, Sight::Displaced)).await;
    bench.expect(&[(1, StateKind::Settled)]).await;
}

/// Orders to a lane, each with the status after it; a lane that is not active takes nothing.
pub async fn a_lane_obeys_its_orders(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(8).await;
    let later = bench.now().plus(1000);
    let paused = || LaneStatus::Paused { reason: "why".into() };
    let unfunded = || LaneStatus::Unfunded { reason: "nothing left".into() };
    let quarantined = || LaneStatus::Quarantined { until: later };
    let stopped = || Outcome::Stale(Stale::Lane(LaneStatus::Stopped));
    let applied = |status| Outcome::Applied(Effect::Lane(status));
    let same = |status| Outcome::Duplicate(Effect::Lane(status));
    let observe = |next| Order::Observe { outside_next: Nonce(next) };
    let reconcile = |next| Order::Reconcile { outside_next: Nonce(next) };
    let pause = || Order::Pause { reason: "why".into() };
    let broke = || Order::Unfunded { reason: "nothing left".into() };
    let quarantine = |for_ms| Order::Quarantine { for_ms };
    let open = |to| Order::Open { destination: to, window: 8, first: Nonce(77) };
    let taken = Outcome::Invalid(Invalid::LaneTaken { lane: lane(), destination: destination() });
    let orders = [
        (Order::Resume, same(LaneStatus::Active)),
        (open(destination()), same(LaneStatus::Active)),
        (open(other_destination()), taken),
        (pause(), applied(paused())),
        (pause(), same(paused())),
        // A pause outlasts a quarantine, and a lack of funds.
        (quarantine(1000), same(paused())),
        (broke(), same(paused())),
        (Order::Funded, same(paused())),
        (Order::Resume, applied(LaneStatus::Active)),
        (Order::Funded, same(LaneStatus::Active)),
        (broke(), applied(unfunded())),
        (Order::Funded, applied(LaneStatus::Active)),
        (broke(), applied(unfunded())),
        (Order::Resume, applied(LaneStatus::Active)),
        (broke(), applied(unfunded())),
        (quarantine(1000), applied(quarantined())),
        // Neither a shorter one nor a lack of funds ends it sooner.
        (quarantine(500), same(quarantined())),
        (broke(), same(quarantined())),
        (Order::Funded, same(quarantined())),
        (Order::Resume, applied(LaneStatus::Active)),
        (observe(0), same(LaneStatus::Active)),
        (observe(3), applied(LaneStatus::Stopped)),
        (pause(), stopped()),
        (broke(), stopped()),
        (Order::Funded, stopped()),
        (quarantine(1000), stopped()),
        (Order::Resume, stopped()),
        (reconcile(3), applied(LaneStatus::Active)),
        (reconcile(3), same(LaneStatus::Active)),
        // Nobody has used those: only a stopped lane goes on further up.
        (reconcile(4), Outcome::Stale(Stale::Lane(LaneStatus::Active))),
        (pause(), applied(paused())),
        (reconcile(4), Outcome::Stale(Stale::Lane(paused()))),
        (reconcile(3), same(paused())),
        (observe(5), applied(LaneStatus::Stopped)),
        (reconcile(5), applied(LaneStatus::Active)),
        // Slots that the store knows of stay known.
        (observe(6), applied(LaneStatus::Stopped)),
        (reconcile(0), applied(LaneStatus::Active)),
    ];
    for (told, outcome) in orders {
        let op = order(told);
        assert_eq!(bench.apply(op.clone()).await, outcome, "{op:?}");
        let (status, fill) = (lane_view(&bench).await.status, vec![parcel(&[], signed(1, Cancel))]);
        bench.restart().await;
        assert_eq!(lane_view(&bench).await.status, status, "a restart after {op:?}");
        let outline = LaneOutline { name: lane(), destination: destination(), status: status.clone() };
        assert_eq!(must(bench.store().lane_outlines().await, "outlines"), [outline]);
        if status != LaneStatus::Active {
            let refused = bench.apply(assign(owner, lane_view(&bench).await.next.0, fill)).await;
            assert_eq!(refused, Outcome::Stale(Stale::Lane(status)), "{op:?}");
        }
    }
    assert_eq!(lane_view(&bench).await.next, Nonce(5));
    let nowhere = bench.apply(LaneOrder { lane: lane_named("nowhere"), order: Order::Resume }).await;
    assert_eq!(nowhere, Outcome::NotFound(Missing::Lane(lane_named("nowhere"))));
}

/// A slot that was passed over takes one parcel, with answers or with none, and none after
/// it is known to be used up.
pub async fn a_gap_is_filled_once(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(4).await;
    bench.assigned(owner, 0, 1).await;
    bench.pass_over(5).await;
    bench.assigned(owner, 5, 2).await;
    bench.answered(3).await;
    let no_gap = || Outcome::Stale(Stale::Nonce { next: Nonce(6) });
    let known = || Outcome::Duplicate(Effect::Done);
    let nothing = |n| parcel(&[], signed(n, Cancel));
    let carrying = || parcel(&[3], signed(13, Carry));
    let missing = Outcome::NotFound(Missing::Request(id(9)));
    let steps = [
        ("carries nothing", 2, parcel(&[], signed(12, Carry)), carries_nothing()),
        ("not ready", 2, parcel(&[9], signed(12, Carry)), missing),
        ("occupied", 0, nothing(10), no_gap()),
        ("the next one", 6, nothing(16), no_gap()),
        ("with nothing", 2, nothing(12), Outcome::Applied(Effect::Done)),
        ("again", 2, nothing(12), known()),
        ("something else", 2, nothing(22), no_gap()),
        ("with an answer", 3, carrying(), Outcome::Applied(Effect::Done)),
        ("the answer again", 3, carrying(), known()),
    ];
    for (name, nonce, parcel, outcome) in steps {
        assert_eq!(bench.apply(fill(owner, nonce, parcel.clone())).await, outcome, "{name}");
        bench.restart().await;
        let again = if outcome.holds() { known() } else { outcome };
        assert_eq!(bench.apply(fill(owner, nonce, parcel)).await, again, "{name}, after a restart");
    }
    bench.expect(&[(3, StateKind::Assigned)]).await;
    let slots = |view: &LaneView| view.parcels.iter().map(|parcel| parcel.nonce.0).collect::<Vec<_>>();
    let view = lane_view(&bench).await;
    assert_eq!((slots(&view), view.next, view.settled), (vec![0, 2, 3, 5], Nonce(6), Nonce(0)));
    let carry = bench.apply(attempt(owner, 2, signed(32, Carry))).await;
    assert_eq!(carry, carries_nothing(), "there is nothing to carry");
    bench.applied(attempt(owner, 2, signed(33, Cancel))).await;
    // What ended shows that all below it is used up, and that is remembered.
    let unknown = bench.apply(settle(owner, 4, Assigned, Sight::Displaced)).await;
    assert_eq!(unknown, Outcome::NotFound(Missing::Parcel(Nonce(4))));
    bench.applied(settle(owner, 2, Assigned, Sight::Final(block(33, 5), Judgement::Done))).await;
    bench.restart().await;
    let view = lane_view(&bench).await;
    assert_eq!((slots(&view), view.settled), (vec![0, 3, 5], Nonce(3)));
    assert_eq!(bench.apply(settle(owner, 2, Assigned, Sight::Displaced)).await, known());
    for nonce in [1, 2] {
        assert_eq!(bench.apply(fill(owner, nonce, nothing(40))).await, no_gap());
    }
    bench.applied(settle(owner, 3, Assigned, Sight::Final(block(13, 5), Judgement::Done))).await;
    bench.applied(settle(owner, 0, Assigned, Sight::Final(block(1, 5), Judgement::Done))).await;
    assert_eq!(lane_view(&bench).await.settled, Nonce(4), "it never falls back");
    bench.expect(&[(1, StateKind::Settled), (3, StateKind::Settled)]).await;
}

/// What others used up is no gap: it is remembered, takes nothing, and touches nothing of ours.
pub async fn what_others_used_up_is_no_gap(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(8).await;
    bench.assigned(owner, 0, 1).await;
    bench.pass_over(5).await;
    let active = || Effect::Lane(LaneStatus::Active);
    let steps = [
        (3, Outcome::Applied(active()), 3),
        (3, Outcome::Duplicate(active()), 3),
        (1, Outcome::Duplicate(active()), 3),
        // What was never given out may be another's, or forgotten: that is for `Observe`.
        (9, Outcome::Applied(active()), 5),
    ];
    for (below, outcome, settled) in steps {
        let told = order(Order::Settled { below: Nonce(below) });
        assert_eq!(bench.apply(told).await, outcome, "{below}");
        bench.restart().await;
        let view = lane_view(&bench).await;
        assert_eq!((view.settled, view.next, view.under_way), (Nonce(settled), Nonce(5), 1), "{below}");
        let below = parcel(&[], signed(7, Cancel));
        let refused = bench.apply(fill(owner, settled - 1, below)).await;
        assert_eq!(refused, Outcome::Stale(Stale::Nonce { next: Nonce(5) }), "slot {}", settled - 1);
    }
    bench.expect(&[(1, StateKind::Assigned)]).await;
}

/// Answers go onto gaps of active lanes alone; nothing goes onto those of a stopped one.
pub async fn gaps_are_filled_as_the_lane_lets(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(8).await;
    bench.pass_over(9).await;
    bench.answered(1).await;
    bench.answered(2).await;
    let until = bench.now().plus(1000);
    let states = [
        (Order::Pause { reason: "why".into() }, LaneStatus::Paused { reason: "why".into() }),
        (Order::Resume, LaneStatus::Active),
        (Order::Unfunded { reason: "why".into() }, LaneStatus::Unfunded { reason: "why".into() }),
        (Order::Resume, LaneStatus::Active),
        (Order::Quarantine { for_ms: 1000 }, LaneStatus::Quarantined { until }),
        (Order::Observe { outside_next: Nonce(10) }, LaneStatus::Stopped),
    ];
    for (slot, (told, status)) in (0..).zip(states) {
        bench.applied(order(told)).await;
        bench.restart().await;
        let refused = Outcome::Stale(Stale::Lane(status.clone()));
        if status != LaneStatus::Active {
            let carrying = bench.apply(fill(owner, slot, parcel(&[1], signed(100, Carry)))).await;
            assert_eq!(carrying, refused, "answers on a lane that is {status:?}");
        }
        let nothing = bench.apply(fill(owner, slot, parcel(&[], signed(slot, Cancel)))).await;
        let taken = Outcome::Applied(Effect::Done);
        assert_eq!(nothing, if status == LaneStatus::Stopped { refused } else { taken }, "{status:?}");
    }
    bench.applied(order(Order::Reconcile { outside_next: Nonce(9) })).await;
    bench.applied(order(Order::Quarantine { for_ms: 1000 })).await;
    bench.clock.advance_ms(1000);
    bench.applied(fill(owner, 6, parcel(&[1], signed(101, Carry)))).await;
    assert_eq!(lane_view(&bench).await.status, LaneStatus::Active, "the quarantine is over");
    bench.expect(&[(1, StateKind::Assigned), (2, StateKind::Ready)]).await;
}

/// What lies above a gap waits for it, so the window does not keep it open.
pub async fn a_fill_may_go_beyond_the_window(bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(1).await;
    bench.pass_over(9).await;
    bench.assigned(owner, 9, 1).await;
    let nothing = |n| fill(owner, n, parcel(&[], signed(100 + n, Cancel)));
    bench.applied(nothing(5)).await;
    let full = Outcome::Full(Full::Window { window: 1 });
    assert_eq!(bench.apply(nothing(6)).await, full, "twice the window");
    bench.applied(nothing(4)).await;
    assert_eq!(bench.apply(nothing(6)).await, full, "only below everything else");
    for n in [4, 5] {
        bench.applied(settle(owner, n, Assigned, Sight::Final(block(100 + n, 5), Judgement::Done))).await;
    }
    bench.applied(nothing(6)).await;
}

/// A wish to cancel is kept with its parcel; what is mined decides.
pub async fn a_cancel_is_a_wish(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(8).await;
    let dead = || AfterCancel::Dead(note(ErrorClass::Fatal));
    let status = || Effect::Lane(LaneStatus::Active);
    assert_eq!(bench.apply(cancel(0, dead())).await, Outcome::NotFound(Missing::Parcel(Nonce(0))));
    for n in 1..=5 {
        bench.assigned(owner, n - 1, n).await;
    }
    let mut hint = bench.store().changes(Topic::Outbox(destination()));
    assert_eq!(bench.applied(cancel(0, AfterCancel::Requeue)).await, status());
    hint.hinted().await;
    assert_eq!(bench.apply(cancel(0, AfterCancel::Requeue)).await, Outcome::Duplicate(status()));
    // Another wish takes its place.
    assert_eq!(bench.applied(cancel(0, dead())).await, status());
    bench.restart().await;
    assert_eq!(bench.apply(cancel(0, dead())).await, Outcome::Duplicate(status()));
    let wishes = |view: &LaneView| view.parcels.iter().map(|parcel| parcel.cancel.clone()).collect::<Vec<_>>();
    assert_eq!(wishes(&lane_view(&bench).await), [Some(dead()), None, None, None, None]);
    // What is in a block is the chain's to decide; what is out of it again is not.
    bench.applied(settle(owner, 1, Assigned, Sight::Included(block(2, 5)))).await;
    assert_eq!(bench.apply(cancel(1, dead())).await, Outcome::Stale(Stale::Parcel(Included)));
    bench.applied(settle(owner, 1, Included, Sight::Back)).await;
    bench.applied(cancel(1, AfterCancel::Requeue)).await;
    for slot in [2, 4] {
        bench.applied(cancel(slot, dead())).await;
    }
    for slot in 0..4 {
        bench.applied(attempt(owner, slot, signed(100 + slot, Cancel))).await;
    }
    let by_cancel = |slot: u64| Sight::Final(block(100 + slot, 6), Judgement::Done);
    let cases = [
        (1, by_cancel(0), StateKind::Dead),
        (2, by_cancel(1), StateKind::Ready),
        // The one that carries was faster.
        (3, Sight::Final(block(3, 6), Judgement::Done), StateKind::Settled),
        // Nobody wished for this one.
        (4, by_cancel(3), StateKind::Ready),
        // Somebody else used the slot up: nothing was carried either.
        (5, Sight::Displaced, StateKind::Dead),
    ];
    for (n, sight, state) in cases {
        bench.applied(settle(owner, n - 1, Assigned, sight)).await;
        bench.restart().await;
        assert_eq!(bench.state(n).await, Some(state), "request {n}");
        if state == StateKind::Dead {
            let (view, bodies) = bench.live(n).await;
            assert_eq!((view.error, bodies.response), (Some(note(ErrorClass::Fatal)), Some(response())));
        }
    }
    assert_eq!(bench.applied(mend(1, Remedy::Retry)).await, Effect::Now(StateKind::Ready));
}

/// A quarantine ends by itself.
pub async fn a_quarantine_ends(mut bench: Bench) {
    let owner = bench.open_lane(8).await;
    let until = bench.now().plus(1000);
    bench.applied(order(Order::Quarantine { for_ms: 1000 })).await;
    let fill = |n| assign(owner, n, vec![parcel(&[], signed(n, Cancel))]);
    let quarantined = LaneStatus::Quarantined { until };
    assert_eq!(bench.apply(fill(0)).await, Outcome::Stale(Stale::Lane(quarantined)));
    bench.clock.advance_ms(1000);
    bench.applied(fill(0)).await;
    bench.restart().await;
    let view = lane_view(&bench).await;
    assert_eq!((view.status, view.next), (LaneStatus::Active, Nonce(1)));
}
