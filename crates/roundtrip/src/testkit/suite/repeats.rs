//! `on_duplicate`: what becomes of a repeat of a live request.

use crate::inbox::{End, Identity, Standing, StateKind};
use crate::store::ReadExt;
use crate::store::op::{Admission, Admit, Close, Full, Grant, NewRequest, Outcome, Remedy, Seat};
use crate::store::policy::{Gate, Horizon, OnDuplicate, RoutePolicy};
use crate::testkit::bench::{Bench, must};
use crate::testkit::samples::*;
use crate::words::{ErrorClass, Height, Payload, RequestId};

fn on(on_duplicate: OnDuplicate) -> RoutePolicy {
    RoutePolicy { on_duplicate, destination: None, ..policy() }
}

/// Request 1 by another occurrence.
fn repeat(occurrence_no: u64) -> NewRequest {
    NewRequest { occurrence: occurrence(occurrence_no), ..final_request(1) }
}

fn other(occurrence_no: u64) -> NewRequest {
    NewRequest { payload: Payload::raw("other"), ..repeat(occurrence_no) }
}

fn known(state: StateKind, standing: Option<Standing>) -> Admission {
    Admission::Known { state, standing }
}

async fn live_count(bench: &Bench) -> u64 {
    must(bench.store().counts().await, "counts").iter().map(|count| count.requests).sum()
}

/// `Drop`: a repeat of what is final is remembered, and changes nothing else.
pub async fn dropped(mut bench: Bench) {
    bench.define(on(OnDuplicate::Drop)).await;
    bench.admit(vec![final_request(1)]).await;
    let before = bench.live(1).await;
    let state = StateKind::Queued;
    assert_eq!(bench.admit(vec![repeat(1001)]).await, [Admission::Dropped { state }]);
    assert_eq!(bench.live(1).await, before);
    bench.restart().await;
    assert_eq!(bench.admit(vec![repeat(1001)]).await, [known(state, None)]);
    // Content that differs is stored all the same.
    let waits = Admission::Attached { state, same_content: false };
    assert_eq!(bench.admit(vec![other(1002)]).await, [waits]);
    assert_eq!(bench.admit(vec![other(1003)]).await, [Admission::Dropped { state: StateKind::Held }]);
    bench.applied(answer(&bench.lease_one().await)).await;
    assert_eq!(
        bench.admit(vec![repeat(1001), other(1003)]).await,
        [known(StateKind::Queued, None), known(StateKind::Queued, None)]
    );
    bench.applied(answer(&bench.lease_one().await)).await;
    assert_eq!(bench.admit(vec![repeat(1001)]).await, [known(StateKind::Settled, None)]);
    assert_eq!(bench.admit(vec![repeat(1004)]).await, [Admission::New { generation: 2 }], "ended, it is no repeat");
}

/// `Drop`: a repeat of what may still be withdrawn is kept, because it may be all that is left.
pub async fn nothing_is_dropped_that_may_be_needed(bench: Bench) {
    bench.define(on(OnDuplicate::Drop)).await;
    let lead = bench.lead(Seat::Route(route())).await;
    bench.admit(vec![request(1)]).await;
    let attached = Admission::Attached { state: StateKind::Queued, same_content: true };
    assert_eq!(bench.admit(vec![NewRequest { standing: Standing::Seen, ..repeat(1001) }]).await, [attached]);
    bench.applied(orphan(lead, 1)).await;
    bench.applied(withdraw(lead, 1)).await;
    bench.expect(&[(1, StateKind::Queued)]).await;
}

/// `Rearm`: a repeat of a dead letter has it worked on again, once.
pub async fn rearmed(mut bench: Bench) {
    bench.define(on(OnDuplicate::Rearm)).await;
    bench.admit(vec![final_request(1)]).await;
    let attached = |state| Admission::Attached { state, same_content: true };
    assert_eq!(bench.admit(vec![repeat(1001)]).await, [attached(StateKind::Queued)]);
    bench.applied(fail(&bench.lease_one().await, ErrorClass::Fatal)).await;
    assert_eq!(bench.admit(vec![repeat(1001)]).await, [known(StateKind::Dead, Some(Standing::Final))], "no news");
    let waits = Admission::Attached { state: StateKind::Dead, same_content: false };
    assert_eq!(bench.admit(vec![other(1002)]).await, [waits], "another question");
    bench.restart().await;
    assert_eq!(bench.admit(vec![repeat(1003)]).await, [Admission::Rearmed { state: StateKind::Queued }]);
    assert_eq!(bench.admit(vec![repeat(1003)]).await, [known(StateKind::Queued, Some(Standing::Final))]);
    bench.restart().await;
    let grant = bench.lease_one().await;
    assert_eq!((grant.id, grant.attempt, grant.generation), (id(1), 1, 0), "from its first attempt");
}

/// Without `Rearm` a repeat leaves a dead letter to a person.
pub async fn a_dead_letter_is_left_alone(bench: Bench) {
    for (n, on_duplicate) in [(1, OnDuplicate::Attach), (2, OnDuplicate::Drop), (3, OnDuplicate::NewGeneration)] {
        bench.define(on(on_duplicate)).await;
        bench.admit(vec![final_request(n)]).await;
        bench.applied(fail(&bench.lease_one().await, ErrorClass::Fatal)).await;
        bench.admit(vec![NewRequest { occurrence: occurrence(1000 + n), ..final_request(n) }]).await;
        bench.expect(&[(n, StateKind::Dead)]).await;
        assert_eq!(bench.lease(9).await, []);
    }
}

/// `NewGeneration`: every repeat is a request of its own, worked on after the one before,
/// whatever the horizon says.
pub async fn new_generations(mut bench: Bench) {
    bench.define(RoutePolicy { horizon: Horizon::Forever, ..on(OnDuplicate::NewGeneration) }).await;
    let admissions = bench.admit(vec![final_request(1), repeat(1001), other(1002), repeat(1001)]).await;
    let behind = |generation| Admission::Behind { generation };
    let new = Admission::New { generation: 0 };
    assert_eq!(admissions, [new, behind(1), behind(2), known(StateKind::Held, Some(Standing::Final))]);
    for (generation, payload) in [(0, request(1).payload), (1, request(1).payload), (2, other(1).payload)] {
        bench.restart().await;
        let grants = bench.lease(9).await;
        let seen: Vec<_> = grants.iter().map(|grant| (grant.id, grant.generation, grant.payload.clone())).collect();
        assert_eq!(seen, [(id(1), generation, payload)]);
        bench.applied(answer(&grants[0])).await;
    }
    assert_eq!(live_count(&bench).await, 0);
    assert_eq!(bench.admit(vec![repeat(1003)]).await, [Admission::New { generation: 3 }], "no horizon blocks it");
    assert_eq!(bench.admit(vec![repeat(1001)]).await, [known(StateKind::Queued, None)]);
}

/// Every generation takes its own room, and one that is withdrawn leaves the others.
pub async fn generations_take_room_of_their_own(bench: Bench) {
    bench.define(RoutePolicy { capacity: 3, ..on(OnDuplicate::NewGeneration) }).await;
    let lead = bench.lead(Seat::Route(route())).await;
    let seen = |n| NewRequest { standing: Standing::Seen, ..repeat(n) };
    let full = Outcome::Full(Full::Route { route: route(), capacity: 3 });
    let four = vec![final_request(1), seen(1001), repeat(1002), repeat(1003)];
    assert_eq!(bench.apply(Admit { cursor: None, requests: four.clone() }).await, full);
    bench.admit(four[..3].to_vec()).await;
    assert_eq!(bench.apply(Admit { cursor: None, requests: vec![repeat(1003)] }).await, full);
    bench.applied(orphan(lead, 1001)).await;
    bench.applied(withdraw(lead, 1001)).await;
    bench.applied(answer(&bench.lease_one().await)).await;
    assert_eq!(bench.lease_one().await.generation, 2);
    assert_eq!(bench.lease(9).await, []);
}

/// A group stays as long as a generation may refer to it.
pub async fn a_group_outlives_the_generation_before(bench: Bench) {
    let short = crate::store::policy::Retention::all(0);
    bench.define(RoutePolicy { retention: short, ..on(OnDuplicate::NewGeneration) }).await;
    bench.admit(vec![final_request(1)]).await;
    bench.applied(gather(1)).await;
    bench.applied(Close { group: group(), request: repeat(1001) }).await;
    for items in [Some(1), None] {
        bench.applied(answer(&bench.lease_one().await)).await;
        bench.applied(crate::store::op::Prune { limit: 99, floors: Vec::new() }).await;
        let found = must(bench.store().group(group(), 0, 9).await, "group");
        assert_eq!(found.map(|group| group.items), items);
    }
}

fn voting(needed: u32) -> RoutePolicy {
    let identity = Identity::Content;
    let horizon = Horizon::For { ms: 60_000 };
    RoutePolicy { identity, horizon, ..on(OnDuplicate::Vote { needed }) }
}

/// Vote `n` for the one question.
fn vote(n: u64, standing: Standing) -> NewRequest {
    let payload = Payload::json(r#"{"what":"is asked"}"#);
    let id = Identity::Content.id_of(&route(), &payload).ok().flatten().unwrap_or(RequestId([0; 32]));
    NewRequest { id, payload, standing, ..request(n) }
}

fn voted(state: StateKind, votes: u32, needed: u32) -> Admission {
    Admission::Voted { state, votes, needed }
}

/// `Vote`: distinct occurrences are votes, and work is held until enough of them stand.
pub async fn votes_open_the_way(mut bench: Bench) {
    use StateKind::{Held, Queued};
    bench.define(voting(3)).await;
    let lead = bench.lead(Seat::Route(route())).await;
    let seen = |n| vote(n, Standing::Seen);
    assert_eq!(bench.admit(vec![seen(1), seen(2)]).await, [Admission::New { generation: 0 }, voted(Held, 2, 3)]);
    assert_eq!(bench.admit(vec![seen(2)]).await, [known(Held, Some(Standing::Seen))], "nobody votes twice");
    bench.restart().await;
    assert_eq!(bench.lease(9).await, []);
    bench.applied(orphan(lead, 1)).await;
    assert_eq!(bench.admit(vec![seen(3)]).await, [voted(Held, 2, 3)], "what a reorg took away does not count");
    assert_eq!(bench.lease(9).await, []);
    assert_eq!(bench.admit(vec![seen(4)]).await, [voted(Queued, 3, 3)]);
    bench.applied(orphan(lead, 4)).await;
    assert_eq!(bench.lease(9).await, []);
    bench.applied(include(lead, 1, 101)).await;
    bench.restart().await;
    assert_eq!(bench.lease(9).await.len(), 1);
}

/// Votes count as the gates want them: for work, and again for publication.
pub async fn votes_count_as_the_gates_want_them(bench: Bench) {
    bench.define(RoutePolicy { work_on: Gate::Seen, publish_on: Gate::Final, ..voting(2) }).await;
    let lead = bench.lead(Seat::Route(route())).await;
    bench.admit(vec![vote(1, Standing::Final), vote(2, Standing::Seen)]).await;
    let grant: Grant = bench.lease_one().await;
    assert_eq!(bench.applied(answer(&grant)).await, crate::store::op::Effect::Now(StateKind::Waiting));
    let settled = bench.applied(finalize(lead, 2)).await;
    assert_eq!(settled, crate::store::op::Effect::Now(StateKind::Settled));
    // A late vote is known as one, within the horizon.
    assert_eq!(bench.admit(vec![vote(3, Standing::Final)]).await, [Admission::Ended(End::Settled)]);
    assert_eq!(bench.lease(9).await, []);

    bench.define(RoutePolicy { work_on: Gate::Final, ..voting(2) }).await;
    bench.clock.advance_ms(60_000);
    let admissions = bench.admit(vec![vote(4, Standing::Final), vote(5, Standing::Seen)]).await;
    assert_eq!(admissions, [Admission::New { generation: 1 }, voted(StateKind::Held, 1, 2)]);
    bench.applied(finalize(lead, 5)).await;
    assert_eq!(bench.lease(9).await.len(), 1);
}

/// A withdrawn vote is gone; the last one takes the request with it.
pub async fn withdrawn_votes_are_gone(bench: Bench) {
    bench.define(voting(2)).await;
    let lead = bench.lead(Seat::Route(route())).await;
    bench.admit(vec![vote(1, Standing::Seen), vote(2, Standing::Seen)]).await;
    for n in [1, 2] {
        bench.applied(orphan(lead, n)).await;
        bench.applied(withdraw(lead, n)).await;
        assert_eq!(bench.lease(9).await, []);
    }
    let again =
        NewRequest { place: Some(crate::words::Place { height: Height(300), ..place(1) }), ..vote(1, Standing::Seen) };
    assert_eq!(bench.admit(vec![again]).await, [Admission::New { generation: 1 }]);
    assert_eq!(bench.apply(mend(1, Remedy::Retry)).await, Outcome::NotFound(crate::store::op::Missing::Request(id(1))));
}
