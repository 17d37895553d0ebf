//! `lease`, `extend`, `answer`, `fail`, `release`; and a person's `mend`.

use crate::inbox::{End, StateKind};
use crate::sender::{AttemptKind, LaneStatus};
use crate::store::ReadExt;
use crate::store::journal::Event;
use crate::store::op::{
    Answer, Effect, Extend, Fail, Full, Invalid, LaneOrder, Lease, Missing, NewParcel, NewRequest, Op, Order, Outcome,
    Reject, Release, Remedy, Stale, Verdict,
};
use crate::store::policy::{QueueOrder, RoutePolicy};
use crate::store::query::Found;
use crate::testkit::bench::{Bench, must};
use crate::testkit::samples::*;
use crate::words::{ClaimId, ErrorClass, LEASE_MAX, Nonce, Payload, Token};

fn now(state: StateKind) -> Effect {
    Effect::Now(state)
}

/// Requests are handed out in order, each once, at most as many as asked for.
pub async fn each_request_is_handed_out_once(bench: Bench) {
    bench.define(policy()).await;
    bench.admit(requests([3, 1, 2])).await;
    assert_eq!(bench.lease(0).await, []);
    let grants = [bench.lease(2).await, bench.lease(5).await].concat();
    assert_eq!(grants.iter().map(|grant| grant.id).collect::<Vec<_>>(), [id(3), id(1), id(2)]);
    let mut tokens: Vec<_> = grants.iter().map(|grant| grant.token).collect();
    tokens.dedup();
    assert_eq!(tokens.len(), 3, "a token for each");
    let first = &grants[0];
    assert_eq!((first.attempt, first.until, &first.payload), (1, bench.now().plus(60_000), &request(3).payload));
}

/// A replayed claim gets the same grants; another worker with the same number does not.
pub async fn a_replayed_claim_gets_the_same_grants(bench: Bench) {
    bench.define(RoutePolicy { order: QueueOrder::Priority, ..policy() }).await;
    bench.admit(vec![request(1), NewRequest { priority: 1, ..request(2) }, request(3)]).await;
    let Effect::Leased(grants) = bench.applied(lease(2)).await else { panic!("a lease brings grants") };
    assert_eq!(grants.iter().map(|grant| grant.id).collect::<Vec<_>>(), [id(2), id(1)]);
    assert_eq!(bench.apply(lease(2)).await, Outcome::Duplicate(Effect::Leased(grants.clone())));
    let other = bench.applied(Lease { worker: other_worker(), ..lease(2) }).await;
    let Effect::Leased(other) = other else { panic!("a lease brings grants") };
    assert_eq!(other.iter().map(|grant| grant.id).collect::<Vec<_>>(), [id(3)]);
    // What the claim no longer holds is not handed out under it again.
    bench.applied(answer(&grants[0])).await;
    assert_eq!(bench.apply(lease(2)).await, Outcome::Duplicate(Effect::Leased(vec![grants[1].clone()])));
}

/// A lease that can never be given is refused.
pub async fn impossible_leases_are_refused(bench: Bench) {
    bench.define(policy()).await;
    let nowhere = route_named("nowhere");
    let unknown = bench.apply(Lease { route: nowhere.clone(), ..lease(1) }).await;
    assert_eq!(unknown, Outcome::Invalid(Invalid::UnknownRoute(nowhere)));
    let many = bench.apply(lease(LEASE_MAX + 1)).await;
    let (count, max) = (LEASE_MAX + 1, LEASE_MAX);
    assert_eq!(many, Outcome::Invalid(Invalid::TooMany { what: "leases", count, max }));
    assert_eq!(bench.applied(lease(LEASE_MAX)).await, Effect::Leased(vec![]));
}

/// What is past its deadline is not handed out, expired or not.
pub async fn nothing_is_handed_out_past_its_deadline(bench: Bench) {
    bench.define(policy()).await;
    let deadline = Some(bench.now().plus(10).into());
    bench.admit(vec![NewRequest { deadline, ..request(1) }, request(2)]).await;
    bench.clock.advance_ms(10);
    assert_eq!(bench.lease(5).await.iter().map(|grant| grant.id).collect::<Vec<_>>(), [id(2)]);
}

/// A heartbeat moves the end of the lease, by the route's time or the worker's own.
pub async fn a_heartbeat_keeps_the_lease(bench: Bench) {
    bench.define(policy()).await;
    bench.admit(vec![request(1)]).await;
    let grant = bench.lease_one().await;
    bench.clock.advance_ms(59_999);
    let extended = bench.applied(extend(&grant)).await;
    assert_eq!(extended, Effect::Extended(bench.now().plus(60_000), vec![]));
    let longer = bench.applied(Extend { lease_ms: Some(90_000), ..extend(&grant) }).await;
    assert_eq!(longer, Effect::Extended(bench.now().plus(90_000), vec![]));
    bench.clock.advance_ms(89_999);
    assert_eq!(bench.applied(Op::Rescue { limit: 9 }).await, Effect::Count(0));
    bench.clock.advance_ms(1);
    assert_eq!(bench.applied(Op::Rescue { limit: 9 }).await, Effect::Count(1));
}

/// Every verb of a worker needs the token of the lease that holds now.
pub async fn only_the_token_counts(bench: Bench) {
    bench.define(policy()).await;
    bench.admit(vec![request(1)]).await;
    let first = bench.lease_one().await;
    let verbs = |grant: &_| -> [Op; 5] {
        let dead = Fail { verdict: Verdict::Dead { response: None }, ..fail(grant, ErrorClass::Fatal) };
        [
            extend(grant).into(),
            answer(grant).into(),
            fail(grant, ErrorClass::Retryable).into(),
            dead.into(),
            release(grant).into(),
        ]
    };
    bench.applied(release(&first)).await;
    for op in verbs(&first) {
        assert_eq!(bench.apply(op.clone()).await, Outcome::Stale(Stale::Lease(StateKind::Queued)), "{op:?}");
    }
    let second = bench.lease_one().await;
    assert!(second.token > first.token, "newer tokens are greater");
    for op in verbs(&first) {
        assert_eq!(bench.apply(op.clone()).await, Outcome::Stale(Stale::Lease(StateKind::Leased)), "{op:?}");
    }
    let mut nobody = second.clone();
    nobody.id = id(9);
    for op in verbs(&nobody) {
        assert_eq!(bench.apply(op).await, Outcome::NotFound(Missing::Request(id(9))));
    }
    bench.applied(answer(&second)).await;
    for op in verbs(&first) {
        assert_eq!(bench.apply(op.clone()).await, Outcome::Stale(Stale::Lease(StateKind::Waiting)), "{op:?}");
    }
}

/// An answer is recorded once and kept as it was given.
pub async fn an_answer_is_recorded_once(mut bench: Bench) {
    bench.define(policy()).await;
    bench.admit(vec![final_request(1)]).await;
    let grant = bench.lease_one().await;
    assert_eq!(bench.applied(answer(&grant)).await, now(StateKind::Ready));
    let other = Answer { response: Payload::raw("another"), ..answer(&grant) };
    assert_eq!(bench.apply(other).await, Outcome::Duplicate(now(StateKind::Ready)));
    bench.restart().await;
    assert_eq!(bench.live(1).await.1.response, Some(response()));
    assert_eq!(bench.apply(answer(&grant)).await, Outcome::Duplicate(now(StateKind::Ready)));
}

/// An answer, its follow-ups and its group items are one commit; if one of them cannot
/// be, none is.
pub async fn an_answer_brings_what_follows_from_it(bench: Bench) {
    bench.define(RoutePolicy { capacity: 2, ..policy() }).await;
    bench.admit(vec![request(1)]).await;
    let grant = bench.lease_one().await;
    let nowhere = NewRequest { route: route_named("nowhere"), ..request(2) };
    let items = vec![gather(1), gather(2)];
    let with = |follow_ups| Answer { follow_ups, items: items.clone(), ..answer(&grant) };
    let unknown = Outcome::Invalid(Invalid::UnknownRoute(route_named("nowhere")));
    assert_eq!(bench.apply(with(vec![request(2), nowhere])).await, unknown);
    let full = Outcome::Full(Full::Route { route: route(), capacity: 2 });
    assert_eq!(bench.apply(with(requests([2, 3]))).await, full);
    bench.expect(&[(1, StateKind::Leased)]).await;
    assert_eq!(must(bench.store().group(group(), 0, 9).await, "group"), None);
    assert_eq!(bench.found(2).await, None);

    assert_eq!(bench.applied(with(requests([2]))).await, now(StateKind::Waiting));
    assert_eq!(bench.apply(with(requests([2]))).await, Outcome::Duplicate(now(StateKind::Waiting)));
    bench.expect(&[(1, StateKind::Waiting), (2, StateKind::Queued)]).await;
    let found = must(bench.store().group(group(), 0, 9).await, "group");
    assert_eq!(found.map(|group| group.items), Some(2));
}

/// A failure costs what its class says.
pub async fn failures_cost_what_their_class_says(bench: Bench) {
    bench.define(RoutePolicy { attempts_max: 2, crashes_max: 2, ..policy() }).await;
    use ErrorClass::*;
    use StateKind::{Dead, Queued};
    // Classes of the failures in turn; the state, attempts and crashes after the last.
    let cases: [(&[ErrorClass], StateKind, u16, u16); 7] = [
        (&[Transport, Transport, Transport, Transport], Queued, 0, 0),
        (&[Retryable], Queued, 1, 0),
        (&[Retryable, Transport, Retryable], Dead, 2, 0),
        (&[Fatal], Dead, 1, 0),
        (&[Crash], Queued, 1, 1),
        (&[Crash, Crash], Dead, 2, 2),
        (&[Transport, Fatal], Dead, 1, 0),
    ];
    for (n, (classes, state, attempts, crashes)) in (1..).zip(cases) {
        bench.admit(vec![request(n)]).await;
        for class in classes {
            let grant = bench.lease_one().await;
            assert_eq!(grant.id, id(n));
            bench.applied(fail(&grant, *class)).await;
        }
        let (view, _) = bench.live(n).await;
        assert_eq!((view.phase.kind(), view.attempts, view.crashes), (state, attempts, crashes), "{classes:?}");
        assert_eq!(view.error, classes.last().map(|class| note(*class)), "{classes:?}");
        if state == Queued {
            bench.applied(mend(n, Remedy::Cancel)).await;
        }
    }
}

/// A failed request waits for as long as its worker said.
pub async fn a_retry_waits(mut bench: Bench) {
    bench.define(policy()).await;
    bench.admit(vec![request(1)]).await;
    let grant = bench.lease_one().await;
    let later = Fail { verdict: Verdict::Retry { after_ms: Some(700) }, ..fail(&grant, ErrorClass::Retryable) };
    assert_eq!(bench.applied(later).await, now(StateKind::Held));
    bench.restart().await;
    bench.clock.advance_ms(699);
    assert_eq!(bench.lease(1).await, []);
    bench.clock.advance_ms(1);
    let grant = bench.lease_one().await;
    assert_eq!(grant.attempt, 2);
    assert_eq!(bench.applied(Release { after_ms: 50, ..release(&grant) }).await, now(StateKind::Held));
    bench.clock.advance_ms(50);
    assert_eq!(bench.lease_one().await.attempt, 2, "giving back costs no attempt");
}

/// A failure may be published like an answer; the request then ends dead.
pub async fn a_failure_can_be_published(bench: Bench) {
    bench.define(policy()).await;
    bench.admit(vec![final_request(1)]).await;
    let grant = bench.lease_one().await;
    let response = Some(Payload::raw("it failed"));
    let publish = |grant: &_, response| Fail { verdict: Verdict::Dead { response }, ..fail(grant, ErrorClass::Fatal) };
    assert_eq!(bench.applied(publish(&grant, response.clone())).await, now(StateKind::Ready));
    assert_eq!(bench.apply(publish(&grant, response.clone())).await, Outcome::Duplicate(now(StateKind::Ready)));
    let ready = must(bench.store().ready(destination(), 9).await, "ready");
    assert_eq!(ready.iter().map(|ready| (ready.id, ready.failure)).collect::<Vec<_>>(), [(id(1), true)]);
    assert_eq!(bench.live(1).await.1.response, response);

    bench.define(RoutePolicy { destination: None, ..policy() }).await;
    bench.expect(&[(1, StateKind::Dead)]).await;
    bench.admit(vec![final_request(2)]).await;
    let grant = bench.lease_one().await;
    assert_eq!(bench.applied(publish(&grant, response)).await, now(StateKind::Dead));
    let found = bench.found(2).await;
    let ended = matches!(found, Some(Found::Ended(receipt)) if receipt.end == End::Dead);
    assert!(ended, "published to nobody, it has ended: {found:?}");
}

/// What was done before, and not here, ends without an answer; who says it again changes nothing.
pub async fn what_was_done_elsewhere_ends_without_an_answer(mut bench: Bench) {
    bench.define(policy()).await;
    bench.admit(vec![final_request(1), final_request(2)]).await;
    let grants = bench.lease(2).await;
    let elsewhere = |grant: &_| Fail { verdict: Verdict::Elsewhere, ..fail(grant, ErrorClass::Fatal) };
    assert_eq!(bench.applied(elsewhere(&grants[0])).await, now(StateKind::Elsewhere));
    bench.expect(&[(1, StateKind::Elsewhere), (2, StateKind::Leased)]).await;
    assert_eq!(must(bench.store().ready(destination(), 9).await, "ready"), [], "nothing is sent");
    // Whoever answered first is not gainsaid.
    assert_eq!(bench.applied(answer(&grants[1])).await, now(StateKind::Ready));
    assert_eq!(bench.apply(elsewhere(&grants[1])).await, Outcome::Stale(Stale::Lease(StateKind::Ready)));
    bench.restart().await;
    assert_eq!(bench.apply(elsewhere(&grants[0])).await, Outcome::Duplicate(now(StateKind::Elsewhere)));
    // How the worker knows is told once, before the end.
    let story = must(bench.store().timeline(id(1)).await, "timeline");
    let told: Vec<Event> = story.into_iter().map(|entry| entry.event).skip(2).collect();
    let why = Event::DoneElsewhere { note: note(ErrorClass::Fatal) };
    assert_eq!(told, [why, Event::Ended { end: End::Elsewhere }]);
}

/// An ended request says how it ended to whoever still holds a token of it.
pub async fn a_worker_that_comes_too_late_is_told_the_end(bench: Bench) {
    bench.define(RoutePolicy { destination: None, ..policy() }).await;
    let grant = bench.answered(1).await;
    let settled = Outcome::Stale(Stale::Lease(StateKind::Settled));
    assert_eq!(bench.apply(answer(&grant)).await, settled);
    assert_eq!(bench.apply(extend(&grant)).await, settled);
    let none = Token { epoch: 1, count: 1 };
    let nobody = Release { id: id(9), token: none, after_ms: 0 };
    assert_eq!(bench.apply(nobody).await, Outcome::NotFound(Missing::Request(id(9))));
}

/// A person retries, drops or cancels, each only where it makes sense.
pub async fn a_person_mends(mut bench: Bench) {
    bench.define(policy()).await;
    bench.admit(requests([1, 2, 3])).await;
    for grant in bench.lease(2).await {
        bench.applied(fail(&grant, ErrorClass::Fatal)).await;
    }
    bench.expect(&[(1, StateKind::Dead), (2, StateKind::Dead), (3, StateKind::Queued)]).await;
    for remedy in [Remedy::Retry, Remedy::Drop] {
        let refused = bench.apply(mend(3, remedy)).await;
        assert_eq!(refused, Outcome::Stale(Stale::State(StateKind::Queued)));
        assert_eq!(bench.apply(mend(9, remedy)).await, Outcome::NotFound(Missing::Request(id(9))));
    }
    assert_eq!(bench.applied(mend(1, Remedy::Retry)).await, now(StateKind::Queued));
    assert_eq!(bench.applied(mend(2, Remedy::Drop)).await, now(StateKind::Dead));
    assert_eq!(bench.applied(mend(3, Remedy::Cancel)).await, now(StateKind::Withdrawn));
    bench.restart().await;
    let (view, _) = bench.live(1).await;
    assert_eq!((view.attempts, view.crashes), (0, 0), "from its first attempt");
    bench.expect(&[(1, StateKind::Queued), (2, StateKind::Dead), (3, StateKind::Withdrawn)]).await;
    let again = bench.apply(mend(3, Remedy::Cancel)).await;
    assert_eq!(again, Outcome::Stale(Stale::State(StateKind::Withdrawn)));
}

/// A person has a dead letter worked on anew: its answer is gone, and whatever is said of that ends nothing.
pub async fn a_wrong_answer_is_worked_out_anew(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(4).await;
    bench.answered(1).await;
    let ready = must(bench.store().ready(destination(), 1).await, "ready");
    let reject = |answer| {
        let error = note(ErrorClass::Fatal);
        Reject { lane: lane(), owner, id: id(1), answer, error, instead: None }
    };
    let refused = bench.apply(mend(1, Remedy::Rework)).await;
    assert_eq!(refused, Outcome::Stale(Stale::State(StateKind::Ready)), "only dead letters are");
    bench.applied(reject(ready[0].answer)).await;
    bench.restart().await;
    assert_eq!(bench.applied(mend(1, Remedy::Rework)).await, now(StateKind::Queued));
    assert_eq!(bench.apply(mend(1, Remedy::Rework)).await, Outcome::Stale(Stale::State(StateKind::Queued)));
    bench.restart().await;
    let (view, bodies) = bench.live(1).await;
    assert_eq!((view.attempts, bodies.response), (0, None), "from its first attempt, without the answer");
    let late = bench.apply(reject(ready[0].answer)).await;
    assert_eq!(late, Outcome::Stale(Stale::Delivery(id(1), StateKind::Queued)));
    let grant = bench.lease_one().await;
    assert_eq!(grant.attempt, 1);
    let better = Payload::raw("better");
    bench.applied(Answer { response: better.clone(), ..answer(&grant) }).await;
    let late = bench.apply(reject(ready[0].answer)).await;
    assert_eq!(late, Outcome::Stale(Stale::Delivery(id(1), StateKind::Ready)), "it is another answer");
    let signed_before = NewParcel { answers: vec![ready[0].answer], ..parcel(&[1], signed(1, AttemptKind::Carry)) };
    let stale = bench.apply(assign(owner, 0, vec![signed_before])).await;
    assert_eq!(stale, Outcome::Stale(Stale::Delivery(id(1), StateKind::Ready)), "the old one has no slot");
    bench.restart().await;
    assert_eq!(bench.live(1).await.1.response, Some(better));
    // One that never had an answer is worked on as after a retry.
    bench.admit(vec![final_request(2)]).await;
    let grant = bench.lease_one().await;
    bench.applied(fail(&grant, ErrorClass::Fatal)).await;
    assert_eq!(bench.applied(mend(2, Remedy::Rework)).await, now(StateKind::Queued));
    // What a stopped lane may have sent is matched by the answer, which stays until it is.
    let newer = must(bench.store().ready(destination(), 1).await, "ready");
    bench.applied(reject(newer[0].answer)).await;
    let order = |order| LaneOrder { lane: lane(), order };
    bench.applied(order(Order::Observe { outside_next: Nonce(1) })).await;
    let stopped = Outcome::Stale(Stale::Lane(LaneStatus::Stopped));
    assert_eq!(bench.apply(mend(1, Remedy::Rework)).await, stopped);
    assert!(bench.live(1).await.1.response.is_some());
    bench.applied(order(Order::Reconcile { outside_next: Nonce(1) })).await;
    bench.applied(mend(1, Remedy::Rework)).await;
    let story = must(bench.store().timeline(id(1)).await, "timeline");
    assert_eq!(story.iter().filter(|entry| entry.event == Event::Reworked).count(), 2);
}

/// Leases that no commit has written may be forgotten by a crash; their requests are
/// not, and neither is a token ever issued again.
pub async fn a_forgotten_lease_costs_nothing(mut bench: Bench) {
    bench.define(policy()).await;
    bench.admit(vec![request(1)]).await;
    let before = bench.lease_one().await;
    bench.restart().await;
    if bench.state(1).await == Some(StateKind::Leased) {
        bench.applied(release(&before)).await;
    }
    let after = bench.lease_one().await;
    assert_ne!(after.token, before.token);
    assert!(after.token.epoch > before.token.epoch, "{} after {}", after.token, before.token);
    assert_eq!(after.attempt, 1);
    assert_eq!(bench.apply(answer(&before)).await, Outcome::Stale(Stale::Lease(StateKind::Leased)));
}

/// A lease that a commit has written is taken over by the next start as it was.
pub async fn a_written_lease_survives_a_restart(mut bench: Bench) {
    bench.define(policy()).await;
    bench.admit(requests([1, 2])).await;
    let Effect::Leased(grants) = bench.applied(lease(2)).await else { panic!("a lease brings grants") };
    bench.commit().await;
    bench.restart().await;
    assert_eq!(bench.apply(lease(2)).await, Outcome::Duplicate(Effect::Leased(grants.clone())));
    assert_eq!(bench.applied(answer(&grants[0])).await, now(StateKind::Waiting));
    bench.clock.advance_ms(60_000);
    assert_eq!(bench.applied(Op::Rescue { limit: 9 }).await, Effect::Count(1));
    let again = bench.applied(Lease { claim: ClaimId(2), ..lease(2) }).await;
    let Effect::Leased(again) = again else { panic!("a lease brings grants") };
    assert_eq!(again.iter().map(|grant| (grant.id, grant.attempt)).collect::<Vec<_>>(), [(id(2), 2)]);
}
