//! `publish`: what became of a delivery to a destination without lanes.

use crate::inbox::StateKind;
use crate::outbox::Undelivered;
use crate::store::journal::Event;
use crate::store::op::{
    Effect, Fail, Invalid, LaneOrder, Lead, Missing, NewRequest, Order, Outcome, Publish, PublishResult, Remedy, Seat,
    Stale, Verdict,
};
use crate::store::policy::{Gate, RoutePolicy};
use crate::store::query::ReadyDelivery;
use crate::store::{ReadExt, Topic};
use crate::testkit::bench::{Bench, must};
use crate::testkit::samples::*;
use crate::words::{ErrorClass, ErrorNote, Nonce, Payload, Seq, Token};

async fn ready(bench: &Bench, after: Option<Seq>, limit: usize) -> Vec<ReadyDelivery> {
    must(bench.store().ready_after(destination(), after, limit).await, "ready")
}

async fn first_ready(bench: &Bench) -> ReadyDelivery {
    ready(bench, None, 1).await.pop().unwrap_or_else(|| panic!("nothing is ready"))
}

async fn courier(bench: &Bench) -> Token {
    bench.lead(Seat::Destination(destination())).await
}

/// A delivery that was made settles its request, once.
pub async fn a_delivery_settles_once(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = courier(&bench).await;
    bench.answered(1).await;
    let delivery = first_ready(&bench).await;
    assert_eq!((delivery.id, delivery.generation, delivery.revision), (id(1), 0, 0));
    let done = delivered(owner, &delivery);
    assert_eq!(bench.applied(done.clone()).await, Effect::Now(StateKind::Settled));
    assert_eq!(bench.apply(done.clone()).await, Outcome::Duplicate(Effect::Now(StateKind::Settled)));
    assert_eq!(ready(&bench, None, 9).await, []);
    let story = must(bench.store().timeline(id(1)).await, "timeline");
    let published = Event::Published { destination: destination() };
    assert!(story.iter().any(|entry| entry.event == published), "{story:?}");
    bench.restart().await;
    assert_eq!(bench.apply(done.clone()).await, Outcome::Duplicate(Effect::Now(StateKind::Settled)));
    // The id comes again: what was delivered before is not this.
    let again = NewRequest { occurrence: occurrence(1001), ..final_request(1) };
    bench.admit(vec![again]).await;
    assert_eq!(bench.apply(done.clone()).await, Outcome::Stale(Stale::Delivery(id(1), StateKind::Queued)));
    let grant = bench.lease_one().await;
    bench.applied(answer(&grant)).await;
    assert_eq!(bench.apply(done).await, Outcome::Stale(Stale::Delivery(id(1), StateKind::Ready)));
    let newer = first_ready(&bench).await;
    assert_eq!(newer.generation, 1);
    bench.applied(delivered(owner, &newer)).await;
}

/// A delivery that is refused for good is a dead letter that keeps its answer, and is
/// delivered again when a person says so.
pub async fn a_refused_delivery_keeps_its_answer(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = courier(&bench).await;
    bench.answered(1).await;
    let delivery = first_ready(&bench).await;
    let error = note(ErrorClass::Fatal);
    let refused = Publish { result: PublishResult::Refused(error.clone()), ..delivered(owner, &delivery) };
    assert_eq!(bench.applied(refused.clone()).await, Effect::Now(StateKind::Dead));
    assert_eq!(bench.apply(refused).await, Outcome::Duplicate(Effect::Now(StateKind::Dead)));
    let late = bench.apply(delivered(owner, &delivery)).await;
    assert_eq!(late, Outcome::Stale(Stale::Delivery(id(1), StateKind::Dead)));
    bench.restart().await;
    let (view, bodies) = bench.live(1).await;
    assert_eq!((view.error, bodies.response), (Some(error), Some(response())));
    assert_eq!(bench.applied(mend(1, Remedy::Retry)).await, Effect::Now(StateKind::Ready));
    let same = first_ready(&bench).await;
    assert_eq!(same, delivery, "the very same answer");
    bench.applied(delivered(owner, &same)).await;
    bench.expect(&[(1, StateKind::Settled)]).await;
}

/// An answer that was not taken stays ready and says why, how often and since when; of a reason that stays
/// the same the journal tells once.
pub async fn an_answer_says_why_it_waits(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = courier(&bench).await;
    bench.answered(1).await;
    let why = |text| ErrorNote::new(ErrorClass::Transport, text);
    let failed = |delivery: &ReadyDelivery, text| {
        let result = PublishResult::Failed { error: why(text), before: delivery.failures };
        Publish { result, ..delivered(owner, delivery) }
    };
    let ready_now = Effect::Now(StateKind::Ready);
    for (n, text) in (1..).zip(["answered 503", "answered 503", "no connection", "answered 503"]) {
        bench.clock.advance_ms(1000);
        let delivery = first_ready(&bench).await;
        assert_eq!(delivery.failures, n - 1);
        assert_eq!(bench.applied(failed(&delivery, text)).await, ready_now);
        assert_eq!(bench.apply(failed(&delivery, text)).await, Outcome::Duplicate(ready_now.clone()), "counted once");
        bench.restart().await;
        let (view, bodies) = bench.live(1).await;
        assert_eq!(view.error, Some(why(text)));
        assert_eq!(view.undelivered, Some(Undelivered { times: n, at: bench.now() }));
        assert_eq!(bodies.response, Some(response()));
    }
    let told = async |bench: &Bench| {
        let story = must(bench.store().timeline(id(1)).await, "timeline");
        let told = story.into_iter().filter_map(|entry| match entry.event {
            Event::Undelivered { error } => Some(error.text.to_string()),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(told(&bench).await, ["answered 503", "no connection", "answered 503"]);
    // Given up on and retried by a person, it counts from the start; and it can still be taken.
    let last = first_ready(&bench).await;
    let refused = Publish { result: PublishResult::Refused(note(ErrorClass::Fatal)), ..delivered(owner, &last) };
    bench.applied(refused).await;
    assert_eq!(bench.apply(failed(&last, "late")).await, Outcome::Stale(Stale::Delivery(id(1), StateKind::Dead)));
    bench.applied(mend(1, Remedy::Retry)).await;
    bench.restart().await;
    let again = first_ready(&bench).await;
    assert_eq!((again.failures, bench.live(1).await.0.undelivered), (0, None));
    bench.applied(delivered(owner, &again)).await;
    assert_eq!(bench.apply(failed(&again, "late")).await, Outcome::Stale(Stale::Delivery(id(1), StateKind::Settled)));
}

/// A failure that was published ends dead, as it does on a lane.
pub async fn a_delivered_failure_ends_dead(bench: Bench) {
    bench.define(policy()).await;
    let owner = courier(&bench).await;
    bench.admit(vec![final_request(1)]).await;
    let grant = bench.lease_one().await;
    let verdict = Verdict::Dead { response: Some(Payload::raw("it failed")) };
    bench.applied(Fail { verdict, ..fail(&grant, ErrorClass::Fatal) }).await;
    let delivery = first_ready(&bench).await;
    assert!(delivery.failure);
    assert_eq!(bench.applied(delivered(owner, &delivery)).await, Effect::Now(StateKind::Dead));
    let replay = bench.apply(delivered(owner, &delivery)).await;
    assert_eq!(replay, Outcome::Duplicate(Effect::Now(StateKind::Dead)));
    assert_eq!(bench.apply(mend(1, Remedy::Retry)).await, Outcome::Stale(Stale::State(StateKind::Dead)), "it ended");
}

/// Only the holder of the destination's seat records, and only for that destination.
pub async fn only_the_courier_publishes(bench: Bench) {
    bench.define(policy()).await;
    bench.answered(1).await;
    let delivery = first_ready(&bench).await;
    let nobody = bench.apply(delivered(delivery.answer, &delivery)).await;
    assert!(matches!(nobody, Outcome::Stale(Stale::Seat { holder: None, .. })), "{nobody:?}");
    let owner = courier(&bench).await;
    bench.clock.advance_ms(3_600_000);
    let seat = Seat::Destination(destination());
    let taken = bench.applied(Lead { seat, holder: other_holder(), ttl_ms: 1000 }).await;
    let Effect::Led(newer, _) = taken else { panic!("a seat brought {taken:?}") };
    let stale = bench.apply(delivered(owner, &delivery)).await;
    assert!(matches!(stale, Outcome::Stale(Stale::Seat { holder: Some(_), .. })), "{stale:?}");
    let other = bench.lead(Seat::Destination(other_destination())).await;
    let elsewhere = Publish { destination: other_destination(), ..delivered(other, &delivery) };
    assert_eq!(bench.apply(elsewhere).await, Outcome::Invalid(Invalid::OtherDestination(id(1))));
    let unknown = Publish { id: id(99), ..delivered(newer, &delivery) };
    assert_eq!(bench.apply(unknown).await, Outcome::NotFound(Missing::Request(id(99))));
    bench.applied(delivered(newer, &delivery)).await;
}

/// What changed on its way is not ended by its delivery.
pub async fn only_the_answer_that_was_delivered_ends(bench: Bench) {
    bench.define(RoutePolicy { publish_on: Gate::Seen, ..policy() }).await;
    let owner = courier(&bench).await;
    let lead = bench.lead(Seat::Route(route())).await;
    bench.admit(requests([1, 2])).await;
    for grant in bench.lease(2).await {
        bench.applied(answer(&grant)).await;
    }
    let both = ready(&bench, None, 9).await;
    bench.applied(orphan(lead, 2)).await;
    let orphaned = bench.apply(delivered(owner, &both[1])).await;
    assert_eq!(orphaned, Outcome::Stale(Stale::Delivery(id(2), StateKind::Waiting)));
    bench.applied(supersede(lead, 1, 1001, "other content")).await;
    let old = bench.apply(delivered(owner, &both[0])).await;
    assert_eq!(old, Outcome::Stale(Stale::Delivery(id(1), StateKind::Queued)));
    let grant = bench.lease_one().await;
    bench.applied(answer(&grant)).await;
    let old = bench.apply(delivered(owner, &both[0])).await;
    assert_eq!(old, Outcome::Stale(Stale::Delivery(id(1), StateKind::Ready)), "another answer is ready now");
    let newer = first_ready(&bench).await;
    assert_eq!(newer.revision, 1);
    bench.applied(delivered(owner, &newer)).await;
    bench.applied(elsewhere(lead, 2)).await;
    let ended = bench.apply(delivered(owner, &both[1])).await;
    assert_eq!(ended, Outcome::Stale(Stale::Delivery(id(2), StateKind::Elsewhere)));
}

/// A destination has lanes or a courier, not both.
pub async fn lanes_and_couriers_do_not_mix(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = courier(&bench).await;
    bench.answered(1).await;
    let delivery = first_ready(&bench).await;
    let open =
        || LaneOrder { lane: lane(), order: Order::Open { destination: destination(), window: 4, first: Nonce(0) } };
    let (taken_by, to) = (holder(), destination());
    let taken = Outcome::Invalid(Invalid::ServedBySeat { destination: to.clone(), holder: taken_by });
    assert_eq!(bench.apply(open()).await, taken);
    let seat = Seat::Destination(to.clone());
    bench.applied(Lead { seat: seat.clone(), ttl_ms: 0, ..lead() }).await;
    bench.restart().await;
    bench.applied(open()).await;
    let served = Outcome::Invalid(Invalid::ServedByLanes(to));
    assert_eq!(bench.apply(Lead { seat, ..lead() }).await, served);
    assert_eq!(bench.apply(delivered(owner, &delivery)).await, served, "the lanes decide from now on");
}

/// What is ready is read page by page, and hinted.
pub async fn ready_answers_are_paged(bench: Bench) {
    bench.define(policy()).await;
    for n in 1..=5 {
        bench.answered(n).await;
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = ready(&bench, after, 2).await;
        let Some(last) = page.last() else { break };
        after = Some(last.seq);
        seen.extend(page.into_iter().map(|delivery| delivery.id));
    }
    assert_eq!(seen, (1..=5).map(id).collect::<Vec<_>>());
    assert_eq!(ready(&bench, Some(Seq(u64::MAX)), 9).await, []);
    let mut hints = bench.store().changes(Topic::Outbox(destination()));
    assert!(hints.changed().await);
    bench.answered(6).await;
    assert!(hints.changed().await);
}
