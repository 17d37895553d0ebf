//! `define`, `pause` and `admit`: what comes in, once, with its cursor.

use crate::inbox::{End, Identity, Standing, StateKind};
use crate::listener::{Cursor, flawed};
use crate::sender::LaneStatus;
use crate::store::ReadExt;
use crate::store::op::{
    Admission, Admit, Amendment, Define, Effect, Invalid, Mend, NewRequest, Outcome, Pause, Prune, Remedy, Seat, Stale,
};
use crate::store::policy::{Gate, Horizon, QueueOrder, RoutePolicy};
use crate::store::query::Found;
use crate::testkit::bench::{Bench, must};
use crate::testkit::samples::*;
use crate::words::{OCCURRENCES_MAX, Payload, RouteName, TRACE_BYTES_MAX, UnixMs};

fn known(state: StateKind, standing: Option<Standing>) -> Admission {
    Admission::Known { state, standing }
}

fn attached(state: StateKind, same_content: bool) -> Admission {
    Admission::Attached { state, same_content }
}

const NEW: Admission = Admission::New { generation: 0 };

/// A new request is queued and shown as it came.
pub async fn a_new_request_is_queued(bench: Bench) {
    bench.define(policy()).await;
    let new = NewRequest {
        deadline: Some(bench.now().plus(1000).into()),
        priority: 7,
        trace: Some("00-trace".into()),
        payload: Payload::json("{}"),
        ..request(1)
    };
    assert_eq!(bench.admit(vec![new.clone()]).await, [NEW]);
    let (view, bodies) = bench.live(1).await;
    assert_eq!(view.phase.kind(), StateKind::Queued);
    assert_eq!((view.route, view.generation, view.revision), (new.route, 0, 0));
    assert_eq!((view.standing, view.admitted_at), (Standing::Seen, bench.now()));
    assert_eq!((view.deadline, view.priority, view.attempts, view.crashes), (new.deadline, 7, 0, 0));
    let [shown] = &view.occurrences[..] else { panic!("one occurrence, not {:?}", view.occurrences) };
    assert_eq!((shown.id, shown.place.clone(), shown.standing), (new.occurrence, new.place, Standing::Seen));
    assert_eq!((bodies.payload, bodies.response, bodies.trace), (new.payload, None, new.trace));
}

/// A request that is not yet due is held, and queued when its time has come.
pub async fn a_request_waits_until_it_is_due(bench: Bench) {
    bench.define(policy()).await;
    bench.admit(vec![NewRequest { due: Some(bench.now().plus(500).into()), ..request(1) }]).await;
    bench.expect(&[(1, StateKind::Held)]).await;
    bench.clock.advance_ms(499);
    assert_eq!(bench.lease(1).await, []);
    bench.clock.advance_ms(1);
    assert_eq!(bench.lease_one().await.id, id(1));
}

/// The same occurrence, in one admit or in two, is one request.
pub async fn an_occurrence_is_admitted_once(bench: Bench) {
    bench.define(policy()).await;
    let twice = vec![request(1), request(1)];
    assert_eq!(bench.admit(twice).await, [NEW, known(StateKind::Queued, Some(Standing::Seen))]);
    let again = bench.apply(Admit { cursor: None, requests: vec![request(1)] }).await;
    let admissions = vec![known(StateKind::Queued, Some(Standing::Seen))];
    assert_eq!(again, Outcome::Duplicate(Effect::Admitted(admissions, None)));
    assert_eq!(bench.lease(10).await.len(), 1);
}

/// Another occurrence of a live id joins it, and the best standing counts.
pub async fn a_live_id_takes_another_occurrence(bench: Bench) {
    bench.define(RoutePolicy { work_on: Gate::Final, ..policy() }).await;
    bench.admit(vec![request(1)]).await;
    bench.expect(&[(1, StateKind::Held)]).await;
    let another = NewRequest { occurrence: occurrence(1001), ..final_request(1) };
    assert_eq!(bench.admit(vec![another.clone()]).await, [attached(StateKind::Queued, true)]);
    assert_eq!(bench.live(1).await.0.occurrences.len(), 2);
    assert_eq!(bench.admit(vec![another]).await, [known(StateKind::Queued, Some(Standing::Final))]);
}

/// Other content under a live id changes nothing until the route's lead says so.
pub async fn other_content_under_a_live_id_is_reported(bench: Bench) {
    bench.define(policy()).await;
    bench.admit(vec![request(1)]).await;
    let other = NewRequest { occurrence: occurrence(1001), payload: Payload::raw("other"), ..request(1) };
    assert_eq!(bench.admit(vec![other]).await, [attached(StateKind::Queued, false)]);
    let (view, bodies) = bench.live(1).await;
    assert_eq!((view.occurrences.len(), bodies.payload), (1, request(1).payload));
}

fn other_content() -> NewRequest {
    NewRequest { occurrence: occurrence(1001), payload: Payload::raw("other"), ..request(1) }
}

/// Other content under a live id is stored, since the cursor has passed it; it is handed
/// out when the live one has ended.
pub async fn other_content_waits_behind_the_live_one(mut bench: Bench) {
    bench.define(RoutePolicy { destination: None, publish_on: Gate::Seen, ..policy() }).await;
    bench.admit(vec![request(1), other_content()]).await;
    assert_eq!(bench.admit(vec![other_content()]).await, [known(StateKind::Held, Some(Standing::Seen))]);
    bench.restart().await;
    let grants = bench.lease(10).await;
    assert_eq!(grants.len(), 1, "the other waits");
    assert_eq!((grants[0].generation, &grants[0].payload), (0, &request(1).payload));
    bench.applied(answer(&grants[0])).await;
    bench.restart().await;
    let grant = bench.lease_one().await;
    assert_eq!((grant.generation, &grant.payload), (1, &other_content().payload));
    bench.applied(answer(&grant)).await;
    bench.expect(&[(1, StateKind::Settled)]).await;
}

/// The lead's supersede takes over what waits; nothing of it is left to be done twice.
pub async fn superseding_takes_over_what_waits(bench: Bench) {
    bench.define(RoutePolicy { destination: None, ..policy() }).await;
    let lead = bench.lead(Seat::Route(route())).await;
    bench.admit(vec![request(1), other_content()]).await;
    bench.applied(finalize(lead, 1001)).await;
    bench.applied(supersede(lead, 1, 1001, "other")).await;
    let counts = must(bench.store().counts().await, "counts");
    assert_eq!(counts.iter().map(|count| count.requests).sum::<u64>(), 1, "{counts:?}");
    let grant = bench.lease_one().await;
    assert_eq!((grant.standing, &grant.payload), (Standing::Final, &other_content().payload));
    bench.applied(answer(&grant)).await;
    bench.expect(&[(1, StateKind::Settled)]).await;
    assert_eq!(bench.lease(10).await, [], "it was the same content");
}

/// Within the horizon of the one that ended, what waited behind it was a repeat.
pub async fn what_waits_behind_a_blocked_id_was_a_repeat(bench: Bench) {
    let horizon = Horizon::Forever;
    bench.define(RoutePolicy { destination: None, publish_on: Gate::Seen, horizon, ..policy() }).await;
    bench.admit(vec![request(1), other_content()]).await;
    bench.applied(answer(&bench.lease_one().await)).await;
    assert_eq!(bench.lease(10).await, []);
    assert_eq!(bench.admit(vec![other_content()]).await, [known(StateKind::Settled, None)]);
}

/// An occurrence stays known after its request has ended, however it ended, over many
/// later receipts and a restart; only what its origin took back may come again.
pub async fn a_known_occurrence_stays_known_after_the_end(mut bench: Bench) {
    bench.define(RoutePolicy { destination: None, ..policy() }).await;
    let lead = bench.lead(Seat::Route(route())).await;
    bench.admit(requests([1, 2, 3, 4])).await;
    bench.applied(elsewhere(lead, 1)).await;
    bench.applied(mend(2, Remedy::Cancel)).await;
    bench.applied(orphan(lead, 3)).await;
    bench.applied(withdraw(lead, 3)).await;
    let grant = bench.lease_one().await;
    bench.applied(finalize(lead, 4)).await;
    bench.applied(answer(&grant)).await;
    for n in 10..40 {
        bench.answered(n).await;
    }
    for _ in 0..2 {
        let again = bench.admit(vec![request(1), request(2), request(4)]).await;
        let ends = [End::Elsewhere, End::Withdrawn, End::Settled];
        assert_eq!(again, ends.map(|end| known(end.kind(), None)));
        bench.restart().await;
    }
    assert_eq!(bench.admit(vec![request(3)]).await, [Admission::New { generation: 1 }]);
}

/// What a person cancelled does not come back when its block is read again.
pub async fn a_cancelled_request_is_not_admitted_again(bench: Bench) {
    bench.define(policy()).await;
    bench.admit(vec![request(1)]).await;
    bench.applied(mend(1, Remedy::Cancel)).await;
    assert_eq!(bench.admit(vec![request(1)]).await, [known(StateKind::Withdrawn, None)]);
    // Somebody asking anew is another matter.
    let anew = NewRequest { occurrence: occurrence(1001), ..request(1) };
    assert_eq!(bench.admit(vec![anew]).await, [Admission::New { generation: 1 }]);
}

/// An occurrence that came within the horizon of its ended id is known from then on.
pub async fn an_occurrence_of_an_ended_id_is_remembered(bench: Bench) {
    bench.define(RoutePolicy { destination: None, horizon: Horizon::For { ms: 1000 }, ..policy() }).await;
    bench.answered(1).await;
    let late = NewRequest { occurrence: occurrence(1001), ..request(1) };
    assert_eq!(bench.admit(vec![late.clone()]).await, [Admission::Ended(End::Settled)]);
    bench.clock.advance_ms(1000);
    assert_eq!(bench.admit(vec![late]).await, [known(StateKind::Settled, None)]);
}

/// A cursor moves by compare-and-set, with its requests; its replay is recognised.
pub async fn a_cursor_moves_with_its_requests(bench: Bench) {
    bench.define(policy()).await;
    let first = Cursor { version: 1, at: position(10) };
    let moved = |admissions, cursor| Effect::Admitted(admissions, Some(cursor));
    assert_eq!(bench.applied(admit_at(None, 10, requests([1]))).await, moved(vec![NEW], first));
    let replay = bench.apply(admit_at(None, 10, requests([1]))).await;
    let recognised = vec![known(StateKind::Queued, Some(Standing::Seen))];
    assert_eq!(replay, Outcome::Duplicate(moved(recognised, first)));
    // Over empty blocks, then back by a reorg: the version only grows.
    let second = Cursor { version: 2, at: position(20) };
    assert_eq!(bench.applied(admit_at(Some(first), 20, vec![])).await, moved(vec![], second));
    let third = Cursor { version: 3, at: position(15) };
    assert_eq!(bench.applied(admit_at(Some(second), 15, vec![])).await, moved(vec![], third));
    let behind = bench.apply(admit_at(Some(first), 30, requests([2]))).await;
    assert_eq!(behind, Outcome::Stale(Stale::Cursor(Some(third))));
    assert_eq!(bench.found(2).await, None, "a refused admit stores nothing");
    assert_eq!(must(bench.store().cursor(listener()).await, "cursor"), Some(third));
}

/// A listener that was acknowledged further on than the store remembers shows that
/// the store was rolled back: nothing is admitted and every lane stops.
pub async fn a_cursor_ahead_of_the_store_stops_every_lane(bench: Bench) {
    bench.define(policy()).await;
    bench.open_lane(4).await;
    let ahead = Some(Cursor { version: 9, at: position(90) });
    let refused = bench.apply(admit_at(ahead, 91, requests([1]))).await;
    assert_eq!(refused, Outcome::Stale(Stale::RolledBack));
    assert_eq!(bench.found(1).await, None);
    let lanes = must(bench.store().lanes().await, "lanes");
    assert_eq!(lanes.iter().map(|lane| lane.status.clone()).collect::<Vec<_>>(), [LaneStatus::Stopped]);
}

/// One request that cannot be admitted keeps the whole admit and its cursor back.
pub async fn an_admit_is_all_or_nothing(bench: Bench) {
    bench.define(policy()).await;
    bench.applied(Prune { limit: 0, floors: vec![place(50)] }).await;
    let long_trace = "t".repeat(TRACE_BYTES_MAX + 1);
    let bad: [(NewRequest, Invalid); 3] = [
        (NewRequest { route: route_named("nowhere"), ..request(2) }, Invalid::UnknownRoute(route_named("nowhere"))),
        (
            NewRequest { trace: Some(long_trace.into()), ..request(2) },
            Invalid::TooMany { what: "bytes of trace context", count: TRACE_BYTES_MAX + 1, max: TRACE_BYTES_MAX },
        ),
        (
            NewRequest { place: Some(place(49)), ..request(2) },
            Invalid::TooDeep { place: place(49), floor: place(50).height },
        ),
    ];
    for (request_2, invalid) in bad {
        let refused = bench.apply(admit_at(None, 10, vec![request(1), request_2])).await;
        assert_eq!(refused, Outcome::Invalid(invalid));
        assert_eq!(bench.found(1).await, None);
        assert_eq!(must(bench.store().cursor(listener()).await, "cursor"), None);
    }
    bench.applied(admit_at(None, 10, vec![NewRequest { place: Some(place(50)), ..request(1) }])).await;
}

/// A paused route admits and hands out nothing.
pub async fn a_paused_route_hands_out_nothing(mut bench: Bench) {
    bench.define(policy()).await;
    let pause = |paused| Pause { route: route(), paused };
    bench.applied(pause(true)).await;
    assert_eq!(bench.apply(pause(true)).await, Outcome::Duplicate(Effect::Done));
    assert_eq!(bench.admit(vec![request(1)]).await, [NEW]);
    assert_eq!(bench.lease(1).await, []);
    bench.restart().await;
    assert_eq!(bench.lease(1).await, []);
    bench.applied(pause(false)).await;
    assert_eq!(bench.lease(1).await.len(), 1);
    let nowhere: RouteName = route_named("nowhere");
    let unknown = bench.apply(Pause { route: nowhere.clone(), paused: true }).await;
    assert_eq!(unknown, Outcome::Invalid(Invalid::UnknownRoute(nowhere)));
}

/// New policies apply to the requests that are already here.
pub async fn a_redefined_route_applies_to_what_is_here(bench: Bench) {
    let gated = RoutePolicy { work_on: Gate::Final, ..policy() };
    bench.define(gated.clone()).await;
    let same = bench.apply(Define { route: route(), policy: gated }).await;
    assert_eq!(same, Outcome::Duplicate(Effect::Done));
    bench.admit(vec![request(1), NewRequest { priority: 9, ..request(2) }]).await;
    bench.expect(&[(1, StateKind::Held), (2, StateKind::Held)]).await;
    bench.define(RoutePolicy { order: QueueOrder::Priority, ..policy() }).await;
    assert_eq!(bench.lease_one().await.id, id(2));
    let grant = bench.lease_one().await;
    bench.applied(answer(&grant)).await;
    bench.expect(&[(1, StateKind::Waiting)]).await;
    // Published when seen, to nobody: it is settled at once.
    let publish_on = Gate::Seen;
    bench.define(RoutePolicy { publish_on, destination: None, ..policy() }).await;
    bench.expect(&[(1, StateKind::Settled), (2, StateKind::Leased)]).await;
}

/// More occurrences than a request keeps are still recognised.
pub async fn occurrences_are_bounded_and_all_recognised(bench: Bench) {
    bench.define(policy()).await;
    let shown = |n: u64| NewRequest { occurrence: occurrence(1000 + n), ..request(1) };
    let count = OCCURRENCES_MAX as u64 + 5;
    bench.admit((0..count).map(shown).collect()).await;
    assert_eq!(bench.live(1).await.0.occurrences.len(), OCCURRENCES_MAX);
    let again = bench.admit((0..count).map(shown).collect()).await;
    assert!(again.iter().all(|a| matches!(a, Admission::Known { state: StateKind::Queued, .. })), "{again:?}");
    // A supersede does not get past the bound either.
    let lead = bench.lead(Seat::Route(route())).await;
    let payload = Payload::raw("other");
    let change = Amendment::Supersede { id: id(1), occurrence: occurrence(5000), place: None, payload, deadline: None };
    let refused = bench.apply(amend(lead, change)).await;
    assert!(matches!(refused, Outcome::Invalid(Invalid::TooMany { what: "occurrences", .. })), "{refused:?}");
}

/// A clock that steps back undoes nothing, and what waits for a time waits for it.
pub async fn a_clock_that_steps_back_undoes_nothing(mut bench: Bench) {
    bench.define(policy()).await;
    let start = bench.now();
    bench.admit(vec![request(1), NewRequest { due: Some(start.plus(1000).into()), ..request(2) }]).await;
    let grant = bench.lease_one().await;
    bench.commit().await;
    bench.clock.set(UnixMs(start.0 - 100_000));
    assert_eq!(bench.lease(1).await, [], "request 2 is not due");
    assert_eq!(bench.admit(vec![request(3)]).await, [NEW]);
    bench.restart().await;
    bench.applied(answer(&grant)).await;
    bench.clock.set(start.plus(1000));
    let mut leased: Vec<_> = bench.lease(5).await.into_iter().map(|grant| grant.id).collect();
    leased.sort();
    assert_eq!(leased, [id(2), id(3)]);
}

/// What nobody can work on is a dead letter from the start, with its reason, and mended as one.
pub async fn a_flawed_request_is_a_dead_letter(bench: Bench) {
    bench.define(RoutePolicy { identity: Identity::Content, ..policy() }).await;
    let letter = |n: u64| {
        let flawed = flawed(&route(), occurrence(n), Payload::raw("a log"), "it cannot be decoded");
        NewRequest { place: Some(place(100 + n)), ..flawed }
    };
    let (first, second) = (letter(1), letter(2));
    assert_eq!(bench.admit(vec![first.clone(), second.clone()]).await, [NEW, NEW]);
    assert_eq!(bench.admit(vec![first.clone()]).await, [known(StateKind::Dead, Some(Standing::Seen))]);
    let Some(Found::Live(view, bodies)) = must(bench.store().get(first.id).await, "a read") else {
        panic!("it is not there")
    };
    assert_eq!((view.phase.kind(), bodies.payload), (StateKind::Dead, Payload::raw("a log")));
    assert_eq!(view.error.map(|error| error.text), Some("it cannot be decoded".into()));
    assert_eq!(bench.lease(10).await, []);
    // An id of somebody else's would let it meet a sound request.
    let stranger = NewRequest { id: id(7), ..letter(3) };
    let refused = bench.apply(Admit { cursor: None, requests: vec![stranger] }).await;
    assert!(matches!(refused, Outcome::Invalid(Invalid::IdIsNotTheHash { .. })), "{refused:?}");
    let mend = |id, remedy| Mend { id, remedy };
    assert!(bench.apply(mend(second.id, Remedy::Drop)).await.holds());
    assert_eq!(bench.admit(vec![second]).await, [known(StateKind::Dead, None)]);
    assert!(bench.apply(mend(first.id, Remedy::Retry)).await.holds());
    assert_eq!(bench.lease_one().await.id, first.id);
}
