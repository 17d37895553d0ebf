//! `amend`: what an origin says about requests that are already here.

use crate::inbox::{Standing, StateKind};
use crate::sender::AttemptKind;
use crate::store::Topic;
use crate::store::op::{
    Admission, Amend, Amendment, Effect, Fail, Lead, Missing, NewRequest, Notice, Op, Outcome, Remedy, Seat, Stale,
    Verdict,
};
use crate::store::policy::{Gate, RoutePolicy};
use crate::testkit::bench::Bench;
use crate::testkit::samples::*;
use crate::words::{ErrorClass, Height, Moment, OriginName, Payload, Place, Token};

async fn led(bench: &Bench, policy: RoutePolicy) -> Token {
    bench.define(policy).await;
    bench.lead(Seat::Route(route())).await
}

fn now(state: StateKind) -> Effect {
    Effect::Now(state)
}

/// Only the lead of the route amends, and only what is here.
pub async fn only_the_lead_amends(bench: Bench) {
    let lead = led(&bench, policy()).await;
    bench.admit(vec![request(1)]).await;
    let stranger = Token { epoch: lead.epoch, count: lead.count + 1 };
    let until = bench.now().plus(3_600_000);
    let seat = || Outcome::Stale(Stale::Seat { holder: Some(holder()), until });
    let all = |lead| {
        [finalize(lead, 1), orphan(lead, 1), include(lead, 1, 5), withdraw(lead, 1), supersede(lead, 1, 1001, "x")]
    };
    for change in all(stranger).into_iter().chain([elsewhere(stranger, 1)]) {
        assert_eq!(bench.apply(change.clone()).await, seat(), "{change:?}");
    }
    let nobody = |change: &Amend| match &change.change {
        Amendment::Supersede { .. } | Amendment::Elsewhere { .. } => Missing::Request(id(2)),
        _ => Missing::Occurrence(occurrence(2)),
    };
    let of_2 = [finalize(lead, 2), orphan(lead, 2), withdraw(lead, 2), supersede(lead, 2, 2, "x"), elsewhere(lead, 2)];
    for change in of_2 {
        let missing = nobody(&change);
        assert_eq!(bench.apply(change).await, Outcome::NotFound(missing));
    }
    bench.expect(&[(1, StateKind::Queued)]).await;
}

/// Finality is told once; a repeat changes nothing; what was final stays so.
pub async fn what_is_final_stays_final(bench: Bench) {
    let lead = led(&bench, policy()).await;
    bench.admit(vec![request(1)]).await;
    assert_eq!(bench.applied(finalize(lead, 1)).await, now(StateKind::Queued));
    assert_eq!(bench.live(1).await.0.standing, Standing::Final);
    assert_eq!(bench.apply(finalize(lead, 1)).await, Outcome::Duplicate(now(StateKind::Queued)));
    for change in [orphan(lead, 1), include(lead, 1, 5), withdraw(lead, 1)] {
        assert_eq!(bench.apply(change).await, Outcome::Stale(Stale::State(StateKind::Queued)));
    }
}

/// A reorg takes a request out of the queue, and brings it back elsewhere.
pub async fn a_reorg_takes_away_and_brings_back(mut bench: Bench) {
    let lead = led(&bench, policy()).await;
    bench.admit(vec![request(1)]).await;
    assert_eq!(bench.applied(orphan(lead, 1)).await, now(StateKind::Held));
    assert_eq!(bench.apply(orphan(lead, 1)).await, Outcome::Duplicate(now(StateKind::Held)));
    bench.restart().await;
    assert_eq!(bench.live(1).await.0.standing, Standing::Orphaned);
    assert_eq!(bench.lease(1).await, []);
    assert_eq!(bench.applied(include(lead, 1, 777)).await, now(StateKind::Queued));
    assert_eq!(bench.apply(include(lead, 1, 777)).await, Outcome::Duplicate(now(StateKind::Queued)));
    bench.restart().await;
    let shown = bench.live(1).await.0.occurrences[0].clone();
    assert_eq!((shown.place.map(|place| place.height), shown.standing), (Some(Height(777)), Standing::Seen));
}

/// An answer to a request that a reorg took away waits until it is back and final.
pub async fn an_orphaned_answer_waits(bench: Bench) {
    let lead = led(&bench, RoutePolicy { publish_on: Gate::Seen, ..policy() }).await;
    bench.admit(vec![request(1)]).await;
    let grant = bench.lease_one().await;
    bench.applied(orphan(lead, 1)).await;
    assert_eq!(bench.applied(answer(&grant)).await, now(StateKind::Waiting));
    assert_eq!(bench.applied(include(lead, 1, 5)).await, now(StateKind::Ready));
    assert_eq!(bench.applied(orphan(lead, 1)).await, now(StateKind::Waiting));
}

/// A worker at work is told, and told again until its lease ends: an answer to a
/// heartbeat may be lost.
pub async fn a_worker_at_work_is_told(mut bench: Bench) {
    let lead = led(&bench, policy()).await;
    bench.admit(vec![request(1)]).await;
    let grant = bench.lease_one().await;
    bench.applied(orphan(lead, 1)).await;
    bench.applied(include(lead, 1, 5)).await;
    bench.applied(finalize(lead, 1)).await;
    let until = bench.now().plus(60_000);
    let told = Effect::Extended(until, vec![Notice::Orphaned, Notice::Included, Notice::Finalized]);
    assert_eq!(bench.applied(extend(&grant)).await, told);
    bench.restart().await;
    assert_eq!(bench.applied(extend(&grant)).await, told);
}

/// What happens a second time while a worker is at work is told a second time.
pub async fn a_worker_at_work_is_told_again(bench: Bench) {
    let lead = led(&bench, policy()).await;
    bench.admit(vec![request(1)]).await;
    let grant = bench.lease_one().await;
    bench.applied(orphan(lead, 1)).await;
    bench.applied(include(lead, 1, 5)).await;
    bench.applied(orphan(lead, 1)).await;
    let told = Effect::Extended(bench.now().plus(60_000), vec![Notice::Included, Notice::Orphaned]);
    assert_eq!(bench.applied(extend(&grant)).await, told);
}

/// A worker whose request ends is hinted, so that it need not wait for its heartbeat.
pub async fn the_end_of_a_leased_request_is_hinted(bench: Bench) {
    let lead = led(&bench, policy()).await;
    bench.admit(vec![request(1)]).await;
    let grant = bench.lease_one().await;
    let mut amendments = bench.store().changes(Topic::Amendments);
    assert!(amendments.changed().await, "a reader looks once at once");
    bench.applied(elsewhere(lead, 1)).await;
    assert!(amendments.changed().await);
    assert_eq!(bench.apply(extend(&grant)).await, Outcome::Stale(Stale::Lease(StateKind::Elsewhere)));
}

/// Other content replaces what was queued or answered, and is worked on anew.
pub async fn superseded_content_is_worked_on_anew(mut bench: Bench) {
    let lead = led(&bench, policy()).await;
    bench.admit(vec![request(1)]).await;
    assert_eq!(bench.applied(supersede(lead, 1, 1001, "second")).await, now(StateKind::Queued));
    let again = bench.apply(supersede(lead, 1, 1001, "second")).await;
    assert_eq!(again, Outcome::Duplicate(now(StateKind::Queued)));
    let grant = bench.lease_one().await;
    assert_eq!((grant.revision, &grant.payload), (1, &Payload::raw("second")));
    bench.applied(answer(&grant)).await;
    assert_eq!(bench.applied(supersede(lead, 1, 1002, "third")).await, now(StateKind::Queued));
    bench.restart().await;
    let (view, bodies) = bench.live(1).await;
    assert_eq!((view.revision, bodies.response), (2, None), "an answer to other content is void");
    let grant = bench.lease_one().await;
    assert_eq!((grant.revision, grant.payload), (2, Payload::raw("third")));
}

/// A deadline is said of a content: other content has its own, or none.
pub async fn superseded_content_takes_its_deadline_along(mut bench: Bench) {
    let lead = led(&bench, policy()).await;
    let soon: Moment = bench.now().plus(100).into();
    bench.admit(vec![NewRequest { deadline: Some(soon.clone()), ..request(1) }]).await;
    let with = |by, content, deadline: Option<Moment>| {
        let (occurrence, place, payload) = (occurrence(by), Some(place(100 + by)), Payload::raw(content));
        amend(lead, Amendment::Supersede { id: id(1), occurrence, place, payload, deadline })
    };
    bench.applied(with(1001, "second", Some(block_time(500_000)))).await;
    bench.restart().await;
    bench.clock.advance_ms(200);
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(0));
    assert_eq!(bench.live(1).await.0.deadline, Some(block_time(500_000)));
    bench.applied(with(1002, "third", None)).await;
    bench.applied(tick(500)).await;
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(0));
    bench.applied(with(1, "first", Some(soon))).await;
    bench.restart().await;
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(1), "back to where it was");
}

/// A worker that answers superseded content is refused; the request goes back at no cost.
pub async fn an_answer_to_superseded_content_is_not_taken(bench: Bench) {
    let lead = led(&bench, policy()).await;
    bench.admit(vec![request(1)]).await;
    let grant = bench.lease_one().await;
    assert_eq!(bench.applied(supersede(lead, 1, 1001, "second")).await, now(StateKind::Leased));
    let told = bench.applied(extend(&grant)).await;
    assert_eq!(told, Effect::Extended(bench.now().plus(60_000), vec![Notice::Superseded]));
    assert_eq!(bench.apply(answer(&grant)).await, Outcome::Stale(Stale::Superseded));
    assert_eq!(bench.apply(answer(&grant)).await, Outcome::Stale(Stale::Lease(StateKind::Queued)));
    let again = bench.lease_one().await;
    assert_eq!((again.attempt, again.payload), (1, Payload::raw("second")));
}

/// A worker that fails on superseded content says nothing about what is there now.
pub async fn a_failure_of_superseded_content_is_not_taken(bench: Bench) {
    let lead = led(&bench, policy()).await;
    bench.admit(vec![request(1)]).await;
    let grant = bench.lease_one().await;
    bench.applied(supersede(lead, 1, 1001, "second")).await;
    let fatal = Fail { verdict: Verdict::Dead { response: None }, ..fail(&grant, ErrorClass::Fatal) };
    assert_eq!(bench.apply(fatal).await, Outcome::Stale(Stale::Superseded));
    let again = bench.lease_one().await;
    assert_eq!((again.attempt, again.payload), (1, Payload::raw("second")));
    assert_eq!(bench.live(1).await.0.error, None);
}

/// Publication needs the content that was answered to be final, not some other
/// content of the same id.
pub async fn only_final_content_is_published(bench: Bench) {
    let lead = led(&bench, policy()).await;
    bench.admit(vec![final_request(1)]).await;
    bench.applied(supersede(lead, 1, 1001, "second")).await;
    let grant = bench.lease_one().await;
    assert_eq!(bench.applied(answer(&grant)).await, now(StateKind::Waiting));
    assert_eq!(bench.apply(finalize(lead, 1)).await, Outcome::Stale(Stale::Superseded));
    assert_eq!(bench.applied(finalize(lead, 1001)).await, now(StateKind::Ready));
}

/// Content that its origin took back is not published in the place of what is left.
pub async fn withdrawn_content_is_not_published(bench: Bench) {
    let lead = led(&bench, policy()).await;
    bench.admit(vec![request(1)]).await;
    bench.applied(supersede(lead, 1, 1001, "second")).await;
    let grant = bench.lease_one().await;
    bench.applied(answer(&grant)).await;
    bench.applied(orphan(lead, 1001)).await;
    assert_eq!(bench.applied(withdraw(lead, 1001)).await, now(StateKind::Waiting));
    assert_eq!(bench.apply(finalize(lead, 1)).await, Outcome::Stale(Stale::Superseded));
    // The lead restores what the remaining occurrence shows.
    assert_eq!(bench.applied(supersede(lead, 1, 1, "request 1")).await, now(StateKind::Queued));
    let grant = bench.lease_one().await;
    assert_eq!(grant.payload, Payload::raw("request 1"));
    bench.applied(answer(&grant)).await;
    assert_eq!(bench.applied(finalize(lead, 1)).await, now(StateKind::Ready));
}

/// A request ends as withdrawn with its last occurrence, and may come again.
pub async fn withdrawal_takes_the_last_occurrence(bench: Bench) {
    let lead = led(&bench, policy()).await;
    bench.admit(vec![request(1), NewRequest { occurrence: occurrence(1001), ..request(1) }]).await;
    let stands = Outcome::Stale(Stale::State(StateKind::Queued));
    assert_eq!(bench.apply(withdraw(lead, 1)).await, stands, "its origin still shows it");
    bench.applied(orphan(lead, 1)).await;
    assert_eq!(bench.applied(withdraw(lead, 1)).await, now(StateKind::Queued));
    let gone = Outcome::NotFound(Missing::Occurrence(occurrence(1)));
    assert_eq!(bench.apply(withdraw(lead, 1)).await, gone);
    bench.applied(orphan(lead, 1001)).await;
    assert_eq!(bench.applied(withdraw(lead, 1001)).await, now(StateKind::Withdrawn));
    bench.expect(&[(1, StateKind::Withdrawn)]).await;
    assert_eq!(bench.admit(vec![request(1)]).await, [Admission::New { generation: 1 }]);
}

/// From its slot on, the outside decides about a request, nobody else.
pub async fn nothing_is_amended_after_assignment(bench: Bench) {
    let lead = led(&bench, RoutePolicy { publish_on: Gate::Seen, ..policy() }).await;
    let owner = bench.open_lane(4).await;
    bench.admit(vec![NewRequest { deadline: Some(bench.now().plus(1000).into()), ..request(1) }]).await;
    let grant = bench.lease_one().await;
    bench.applied(answer(&grant)).await;
    let carry = signed(1, AttemptKind::Carry);
    bench.applied(assign(owner, 0, vec![parcel(&[1], carry)])).await;
    bench.clock.advance_ms(2000);
    bench.applied(orphan(lead, 1)).await;
    let late: [Op; 4] = [
        withdraw(lead, 1).into(),
        supersede(lead, 1, 1001, "x").into(),
        elsewhere(lead, 1).into(),
        mend(1, Remedy::Cancel).into(),
    ];
    for op in late {
        let outcome = bench.apply(op.clone()).await;
        assert_eq!(outcome, Outcome::Stale(Stale::State(StateKind::Assigned)), "{op:?}");
    }
    assert_eq!(bench.applied(Op::Expire { limit: 10 }).await, Effect::Count(0));
    // Its standing is kept all the same, for whoever reads it.
    assert_eq!(bench.applied(include(lead, 1, 5)).await, now(StateKind::Assigned));
    bench.expect(&[(1, StateKind::Assigned)]).await;
}

/// Somebody else's answer ends a request in whatever state before its slot.
pub async fn answered_elsewhere_ends_it(bench: Bench) {
    let lead = led(&bench, policy()).await;
    bench.admit(requests([1, 2, 3])).await;
    let grant = bench.lease_one().await;
    let answered = bench.lease_one().await;
    bench.applied(answer(&answered)).await;
    for n in 1..=3 {
        assert_eq!(bench.applied(elsewhere(lead, n)).await, now(StateKind::Elsewhere));
        bench.expect(&[(n, StateKind::Elsewhere)]).await;
        let replay = bench.apply(elsewhere(lead, n)).await;
        assert_eq!(replay, Outcome::Stale(Stale::State(StateKind::Elsewhere)));
    }
    let late = bench.apply(answer(&grant)).await;
    assert_eq!(late, Outcome::Stale(Stale::Lease(StateKind::Elsewhere)));
}

/// What each origin shows on a route is amended by a lead of its own, fenced by its own seat.
pub async fn each_origin_of_a_route_has_its_lead(bench: Bench) {
    bench.define(policy()).await;
    let other = name_of_another_origin();
    let there = Place { origin: other.clone(), height: Height(7) };
    bench.admit(vec![request(1), NewRequest { place: Some(there), ..request(2) }]).await;
    let feed = |origin: &OriginName| Seat::Feed(route(), origin.clone());
    let first = bench.lead(feed(&origin())).await;
    let second = bench.apply(Lead { seat: feed(&other), holder: other_holder(), ..lead() }).await;
    let Outcome::Applied(Effect::Led(second, _)) = second else { panic!("the other seat is free: {second:?}") };
    let not_its = |outcome: Outcome| assert!(matches!(outcome, Outcome::Stale(Stale::Seat { .. })), "{outcome:?}");
    not_its(bench.apply(finalize(first, 2)).await);
    not_its(bench.apply(finalize(second, 1)).await);
    assert!(bench.apply(finalize(first, 1)).await.holds());
    assert!(bench.apply(finalize(second, 2)).await.holds());
    // Whoever takes a feed over fences the one before, and nobody else.
    let freed = Lead { seat: feed(&other), holder: other_holder(), ttl_ms: 0 };
    assert!(bench.apply(freed).await.holds());
    bench.lead(feed(&other)).await;
    not_its(bench.apply(orphan(second, 2)).await);
    bench.admit(vec![request(3)]).await;
    assert!(bench.apply(orphan(first, 3)).await.holds());
    // Any of them may tell that somebody else answered.
    assert!(bench.apply(elsewhere(first, 2)).await.holds());
}

fn name_of_another_origin() -> OriginName {
    OriginName::new("chain-b").unwrap_or_else(|error| panic!("{error}"))
}
