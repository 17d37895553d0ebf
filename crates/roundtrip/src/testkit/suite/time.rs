//! Moments: what waits for a time, or for a chain's height or time, and `tick`, which tells
//! how high a chain is and what time it is there.

use crate::inbox::StateKind;
use crate::listener::Head;
use crate::store::op::{Admit, ChainTick, Effect, Invalid, NewRequest, Op, Outcome, Prune, Remedy, Seat};
use crate::store::policy::{Gate, QueueOrder, RoutePolicy};
use crate::store::query::OriginView;
use crate::store::{ReadExt, Topic};
use crate::testkit::bench::{Bench, must};
use crate::testkit::samples::*;
use crate::words::{ErrorClass, Height, Moment, OriginName, Place};

fn due_at(n: u64, height: u64) -> NewRequest {
    NewRequest { due: Some(place(height).into()), ..final_request(n) }
}

fn other_chain() -> OriginName {
    OriginName::new("chain-d").unwrap_or_else(|error| panic!("{error}"))
}

/// A request that is due at a height is held until a tick reaches it; another chain's
/// ticks, and time, do not matter.
pub async fn a_request_waits_for_a_height(mut bench: Bench) {
    bench.define(policy()).await;
    bench.admit(vec![due_at(1, 500), due_at(2, 501), due_at(3, 510)]).await;
    let (view, _) = bench.live(1).await;
    assert_eq!(view.due, Some(Moment::Height(place(500))));
    bench.clock.advance_ms(1_000_000);
    bench.applied(tick(499)).await;
    bench.applied(ChainTick { origin: other_chain(), ..tick(1000) }).await;
    bench.expect(&[(1, StateKind::Held), (2, StateKind::Held)]).await;
    let mut hints = bench.store().changes(Topic::Inbox(route()));
    assert!(hints.changed().await, "a reader looks once at once");
    bench.applied(tick(501)).await;
    assert!(hints.changed().await, "workers are told");
    bench.expect(&[(1, StateKind::Queued), (2, StateKind::Queued), (3, StateKind::Held)]).await;
    drop(hints);
    bench.restart().await;
    bench.expect(&[(1, StateKind::Queued), (3, StateKind::Held)]).await;
    bench.admit(vec![due_at(4, 501), due_at(5, 502)]).await;
    bench.expect(&[(4, StateKind::Queued), (5, StateKind::Held)]).await;
    // What was handed out and comes back waits for a time, not for its height again.
    let grant = bench.lease_one().await;
    bench.applied(fail(&grant, ErrorClass::Retryable)).await;
    bench.expect(&[(1, StateKind::Queued)]).await;
}

/// Both its height and its finality must come.
pub async fn a_height_does_not_stand_for_finality(bench: Bench) {
    bench.define(RoutePolicy { work_on: Gate::Final, ..policy() }).await;
    let lead = bench.lead(Seat::Route(route())).await;
    bench.admit(vec![NewRequest { due: Some(place(500).into()), ..request(1) }]).await;
    bench.applied(tick(600)).await;
    bench.expect(&[(1, StateKind::Held)]).await;
    bench.applied(finalize(lead, 1)).await;
    bench.expect(&[(1, StateKind::Queued)]).await;
}

/// A deadline at a height ends a request under the same rules as a time does.
pub async fn a_deadline_may_be_a_height(mut bench: Bench) {
    bench.define(policy()).await;
    let with = |n, height| NewRequest { deadline: Some(place(height).into()), ..final_request(n) };
    bench.admit(vec![with(1, 500), with(2, 500), with(3, 501), with(4, 500), final_request(5)]).await;
    let grant = bench.lease_one().await;
    assert_eq!(grant.deadline, Some(Moment::Height(place(500))));
    bench.applied(fail(&grant, ErrorClass::Fatal)).await;
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(0));
    bench.applied(tick(500)).await;
    let handed_out: Vec<_> = bench.lease(2).await.into_iter().map(|grant| grant.id).collect();
    assert_eq!(handed_out, [id(3), id(5)], "nothing is handed out past its deadline");
    bench.commit().await;
    bench.restart().await;
    assert_eq!(bench.applied(Op::Expire { limit: 1 }).await, Effect::Count(1));
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(1));
    use StateKind::{Dead, Expired};
    bench.expect(&[(1, Dead), (2, Expired), (4, Expired)]).await;
    bench.applied(mend(1, Remedy::Retry)).await;
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(1), "its time is over, like any other's");
    bench.expect(&[(3, StateKind::Leased)]).await;
}

/// A request that is due at a time of a chain is held until a block of that time is told of;
/// the store's clock does not matter, nor does a later block that is dated earlier.
pub async fn a_request_waits_for_a_blocks_time(mut bench: Bench) {
    bench.define(policy()).await;
    let due = |n, ms| NewRequest { due: Some(block_time(ms)), ..final_request(n) };
    bench.admit(vec![due(1, 500_000), due(2, 500_001), due_at(3, 510)]).await;
    let (view, _) = bench.live(1).await;
    assert_eq!(view.due, Some(block_time(500_000)));
    bench.clock.advance_ms(1_000_000);
    bench.applied(ChainTick { origin: other_chain(), ..tick(1000) }).await;
    bench.applied(tick(499)).await;
    bench.expect(&[(1, StateKind::Held), (2, StateKind::Held)]).await;
    bench.applied(tick(500)).await;
    bench.expect(&[(1, StateKind::Queued), (2, StateKind::Held), (3, StateKind::Held)]).await;
    bench.restart().await;
    bench.expect(&[(1, StateKind::Queued), (2, StateKind::Held)]).await;
    bench.applied(ChainTick { at: tick(400).at, ..tick(501) }).await;
    bench.admit(vec![due(4, 500_000)]).await;
    bench.expect(&[(2, StateKind::Held), (4, StateKind::Queued)]).await;
    bench.applied(tick(510)).await;
    bench.expect(&[(2, StateKind::Queued), (3, StateKind::Queued)]).await;
}

/// A deadline by a chain's clock passes when a block of that time is told of, and never
/// because time passes here: while the chain stands still, or nobody tells of it, the
/// request lives on.
pub async fn a_deadline_may_be_by_a_chains_clock(mut bench: Bench) {
    bench.define(policy()).await;
    let with = |n, ms| NewRequest { deadline: Some(block_time(ms)), ..final_request(n) };
    bench.admit(vec![with(1, 500_000), with(2, 500_000), with(3, 500_001), with(4, u64::MAX)]).await;
    bench.applied(tick(499)).await;
    bench.clock.advance_ms(1_000_000_000);
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(0), "the chain is not there yet");
    let grant = bench.lease_one().await;
    assert_eq!(grant.deadline, Some(block_time(500_000)), "and its requests are worked on");
    bench.applied(release(&grant)).await;
    bench.applied(tick(500)).await;
    let handed_out: Vec<_> = bench.lease(9).await.into_iter().map(|grant| (grant.id, grant.deadline)).collect();
    let expected = [(id(3), Some(block_time(500_001))), (id(4), None)];
    assert_eq!(handed_out, expected, "what is past its deadline is not handed out, and one may be for ever");
    bench.commit().await;
    bench.restart().await;
    assert_eq!(bench.applied(Op::Expire { limit: 1 }).await, Effect::Count(1));
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(1));
    use StateKind::{Expired, Leased};
    bench.expect(&[(1, Expired), (2, Expired), (3, Leased), (4, Leased)]).await;
}

/// Times, and the heights and times of several chains, do not stand in each other's way.
pub async fn every_clock_is_looked_at(bench: Bench) {
    bench.define(policy()).await;
    let other = |height| Place { origin: other_chain(), height: Height(height) };
    let far = bench.now().plus(1_000_000);
    let other_time = Moment::BlockTime { origin: other_chain(), at: tick(7).at };
    let moments: [Moment; 5] = [far.into(), place(500).into(), other(7).into(), block_time(500_000), other_time];
    for (n, deadline) in (1..).zip(moments) {
        bench.admit(vec![NewRequest { deadline: Some(deadline), ..request(n) }]).await;
    }
    bench.applied(ChainTick { origin: other_chain(), ..tick(7) }).await;
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(2));
    use StateKind::{Expired, Queued};
    bench.expect(&[(1, Queued), (2, Queued), (3, Expired), (4, Queued), (5, Expired)]).await;
    bench.applied(tick(500)).await;
    bench.clock.set(far);
    assert_eq!(bench.applied(Op::Expire { limit: 9 }).await, Effect::Count(3));
}

/// In a queue ordered by deadline, heights come after times, and before no deadline; times
/// are times, whether by the store's clock or by a chain's.
pub async fn heights_have_their_place_in_a_queue_by_deadline(mut bench: Bench) {
    bench.define(RoutePolicy { order: QueueOrder::Deadline, ..policy() }).await;
    let far = bench.now().plus(1_000_000_000);
    let sooner = Moment::BlockTime { origin: origin(), at: far.plus(1) };
    let moments: [Moment; 5] = [place(500).into(), far.into(), place(400).into(), place(300).into(), sooner];
    let deadlines = std::iter::once(None).chain(moments.map(Some));
    let new = (1..).zip(deadlines).map(|(n, deadline)| NewRequest { deadline, ..request(n) });
    bench.admit(new.collect()).await;
    bench.applied(tick(300)).await;
    bench.restart().await;
    let handed_out: Vec<_> = bench.lease(9).await.into_iter().map(|grant| grant.id).collect();
    assert_eq!(handed_out, [3, 6, 4, 2, 1].map(id), "one was past its deadline");
}

/// A head only grows, outlives a restart, and tells when it was last heard of and how far
/// its clock is behind.
pub async fn a_head_only_grows(mut bench: Bench) {
    let origins = |bench: &Bench| {
        let store = bench.store().clone();
        async move { must(store.origins().await, "origins") }
    };
    assert_eq!(origins(&bench).await, []);
    bench.applied(tick(500)).await;
    let told_at = bench.now();
    bench.clock.advance_ms(60_000);
    assert_eq!(bench.apply(tick(500)).await, Outcome::Duplicate(Effect::Done));
    assert_eq!(bench.apply(tick(400)).await, Outcome::Duplicate(Effect::Done));
    let head = Some(Head { height: Height(500), at: tick(500).at, told_at });
    let behind_ms = Some(bench.now().since(tick(500).at.min(told_at)));
    let known = OriginView { name: origin(), floor: Height(0), head, behind_ms };
    assert_eq!(origins(&bench).await, std::slice::from_ref(&known));
    assert!(behind_ms >= Some(60_000), "{behind_ms:?}");
    bench.applied(Prune { limit: 9, floors: vec![place(20)] }).await;
    bench.restart().await;
    assert_eq!(origins(&bench).await, [OriginView { floor: Height(20), ..known }], "neither forgets the other");
}

/// A height that cannot be kept is refused, with all that came with it.
pub async fn a_height_beyond_all_chains_is_refused(bench: Bench) {
    bench.define(policy()).await;
    let far = place(1 << 46);
    for new in [
        NewRequest { due: Some(far.clone().into()), ..request(1) },
        NewRequest { deadline: Some(far.clone().into()), ..request(1) },
    ] {
        let outcome = bench.apply(Admit { cursor: None, requests: vec![request(2), new] }).await;
        assert_eq!(outcome, Outcome::Invalid(Invalid::HeightTooHigh(far.clone())));
    }
    assert_eq!(bench.found(2).await, None);
    bench.admit(vec![NewRequest { due: Some(place((1 << 46) - 1).into()), ..request(1) }]).await;
    bench.expect(&[(1, StateKind::Held)]).await;
}
