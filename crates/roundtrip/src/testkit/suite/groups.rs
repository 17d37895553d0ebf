//! `gather`, `close`: items under a key, then one request.

use crate::groups::GroupState;
use crate::inbox::StateKind;
use crate::store::ReadExt;
use crate::store::op::{
    Answer, Close, Define, Effect, Full, Gather, GroupPlan, Invalid, NewRequest, Op, Outcome, Prune, Remedy,
};
use crate::store::policy::{Retention, RoutePolicy};
use crate::store::query::GroupView;
use crate::testkit::bench::{Bench, must};
use crate::testkit::samples::*;
use crate::words::{GROUP_ITEMS_MAX, Moment, UnixMs};

fn close(n: u64) -> Close {
    Close { group: group(), request: request(n) }
}

async fn view(bench: &Bench, skip: u64, limit: usize) -> Option<GroupView> {
    must(bench.store().group(group(), skip, limit).await, "group")
}

fn gathered(items: u64, late: bool) -> Effect {
    Effect::Gathered { items, late }
}

/// An item joins once; after the seal it is recorded as late.
pub async fn an_item_joins_once(mut bench: Bench) {
    bench.define(policy()).await;
    assert_eq!(view(&bench, 0, 9).await, None);
    assert_eq!(bench.applied(gather(1)).await, gathered(1, false));
    assert_eq!(bench.applied(gather(2)).await, gathered(2, false));
    assert_eq!(bench.apply(gather(1)).await, Outcome::Duplicate(gathered(2, false)));
    let closed = Effect::Closed { items: 2, request: id(1) };
    assert_eq!(bench.applied(close(1)).await, closed);
    assert_eq!(bench.apply(close(2)).await, Outcome::Duplicate(closed), "a group is sealed once");
    assert_eq!(bench.found(2).await, None);
    assert_eq!(bench.applied(gather(3)).await, gathered(2, true));
    assert_eq!(bench.apply(gather(3)).await, Outcome::Duplicate(gathered(2, true)));
    bench.restart().await;
    assert!(matches!(bench.apply(gather(2)).await, Outcome::Duplicate(_)), "it is remembered");
    let found = view(&bench, 0, 9).await.unwrap_or_else(|| panic!("the group is kept"));
    assert_eq!((found.items, found.late), (2, 1));
    assert_eq!(found.state, GroupState::Sealed { items: 2, at: bench.now(), request: id(1) });
    let page: Vec<_> = found.page.iter().map(|item| (item.id, item.late, item.payload.clone())).collect();
    let item_of = |n, late| (item(n), late, gather(n).payload);
    assert_eq!(page, [item_of(1, false), item_of(2, false), item_of(3, true)]);
    bench.expect(&[(1, StateKind::Queued)]).await;
}

/// Items are read page by page, in the order in which they came.
pub async fn items_are_paged(bench: Bench) {
    bench.batch((0..25).map(|n| gather(n).into()).collect()).await;
    let mut seen = Vec::new();
    for skip in [0, 10, 20, 30] {
        let found = view(&bench, skip, 10).await.unwrap_or_else(|| panic!("the group is kept"));
        assert_eq!(found.items, 25);
        seen.extend(found.page.into_iter().map(|item| item.id));
    }
    assert_eq!(seen, (0..25).map(item).collect::<Vec<_>>());
}

/// A group that cannot become a request stays open.
pub async fn a_seal_is_all_or_nothing(bench: Bench) {
    bench.define(RoutePolicy { capacity: 1, ..policy() }).await;
    bench.applied(gather(1)).await;
    let nowhere = NewRequest { route: route_named("nowhere"), ..request(1) };
    let unknown = bench.apply(Close { group: group(), request: nowhere }).await;
    assert_eq!(unknown, Outcome::Invalid(Invalid::UnknownRoute(route_named("nowhere"))));
    bench.admit(vec![request(9)]).await;
    let full = bench.apply(close(1)).await;
    assert_eq!(full, Outcome::Full(Full::Route { route: route(), capacity: 1 }));
    assert_eq!(view(&bench, 0, 9).await.map(|group| group.state), Some(GroupState::Open));
    assert_eq!(bench.applied(gather(2)).await, gathered(2, false));
    // An empty group can be sealed too: its window closed and nothing came.
    bench.define(policy()).await;
    let empty = Close { group: group_named("empty"), request: request(2) };
    assert_eq!(bench.applied(empty).await, Effect::Closed { items: 0, request: id(2) });
}

/// A group is kept as long as its request's receipt, and then forgotten.
pub async fn a_group_is_forgotten_after_its_request(mut bench: Bench) {
    bench.define(RoutePolicy { destination: None, retention: Retention::all(1000), ..policy() }).await;
    bench.applied(gather(1)).await;
    bench.applied(Close { group: group(), request: final_request(1) }).await;
    let open = Gather { group: group_named("open"), ..gather(1) };
    bench.applied(open).await;
    bench.clock.advance_ms(5000);
    let prune = Prune { limit: 100, floors: Vec::new() };
    assert_eq!(bench.applied(prune.clone()).await, Effect::Count(0), "its request is not done");
    let grant = bench.lease_one().await;
    bench.applied(answer(&grant)).await;
    bench.restart().await;
    bench.clock.advance_ms(999);
    bench.applied(prune.clone()).await;
    assert!(view(&bench, 0, 9).await.is_some());
    bench.clock.advance_ms(1);
    bench.applied(prune).await;
    assert_eq!(view(&bench, 0, 9).await, None);
    let open = must(bench.store().group(group_named("open"), 0, 9).await, "group");
    assert_eq!(open.map(|group| group.items), Some(1), "an open group waits for ever");
}

fn planned(n: u64, seal_at_items: Option<u64>, seal_at: Option<Moment>) -> Gather {
    let plan = GroupPlan { seal_at_items, seal_at, request: final_request(1) };
    Gather { plan: Some(Box::new(plan)), ..gather(n) }
}

fn fire(limit: usize) -> Op {
    Op::Fire { limit }
}

async fn sealed_with(bench: &Bench) -> Option<u64> {
    match view(bench, 0, 9).await.map(|group| group.state) {
        Some(GroupState::Sealed { items, .. }) => Some(items),
        _ => None,
    }
}

/// The item that makes a group full seals it, once; what comes after is late.
pub async fn a_full_group_seals_itself(mut bench: Bench) {
    bench.define(policy()).await;
    assert_eq!(bench.applied(planned(1, Some(3), None)).await, gathered(1, false));
    let found = view(&bench, 0, 9).await.unwrap_or_else(|| panic!("the group is open"));
    assert_eq!((found.seal_at_items, found.seal_at), (Some(3), None));
    bench.restart().await;
    // Only the item that opens a group has a say.
    assert_eq!(bench.applied(planned(2, Some(1), None)).await, gathered(2, false));
    assert_eq!(bench.apply(planned(2, Some(1), None)).await, Outcome::Duplicate(gathered(2, false)));
    assert_eq!(bench.found(1).await, None);
    assert_eq!(bench.applied(gather(3)).await, gathered(3, false));
    bench.expect(&[(1, StateKind::Queued)]).await;
    assert_eq!(bench.apply(gather(3)).await, Outcome::Duplicate(gathered(3, false)), "it came in time");
    assert_eq!(bench.applied(gather(4)).await, gathered(3, true));
    assert_eq!(bench.apply(gather(4)).await, Outcome::Duplicate(gathered(3, true)));
    bench.restart().await;
    assert_eq!(bench.applied(fire(9)).await, Effect::Count(0));
    let found = view(&bench, 0, 9).await.unwrap_or_else(|| panic!("the group is kept"));
    assert_eq!((found.items, found.late, found.seal_at_items), (3, 1, None));
    assert_eq!(bench.apply(close(2)).await, Outcome::Duplicate(Effect::Closed { items: 3, request: id(1) }));
}

/// An answer's items seal the group with the answer.
pub async fn an_answer_may_seal_a_group(bench: Bench) {
    bench.define(RoutePolicy { destination: None, ..policy() }).await;
    bench.admit(vec![final_request(9)]).await;
    let grant = bench.lease_one().await;
    let items = vec![planned(1, Some(2), None), gather(2), gather(3)];
    bench.applied(Answer { items, ..answer(&grant) }).await;
    bench.expect(&[(9, StateKind::Settled), (1, StateKind::Queued)]).await;
    let found = view(&bench, 0, 9).await.unwrap_or_else(|| panic!("the group is kept"));
    assert_eq!((found.items, found.late), (2, 1));
}

/// When its moment has come, `fire` seals a group, after any restart.
pub async fn a_timer_seals_a_group(mut bench: Bench) {
    bench.define(policy()).await;
    let at = bench.now().plus(1000);
    bench.applied(planned(1, Some(9), Some(at.into()))).await;
    let other = Gather { group: group_named("other"), ..planned(1, None, Some(UnixMs::NEVER.into())) };
    bench.applied(other).await;
    bench.clock.advance_ms(999);
    bench.restart().await;
    assert_eq!(bench.applied(fire(9)).await, Effect::Count(0));
    assert_eq!(bench.applied(gather(2)).await, gathered(2, false));
    bench.clock.advance_ms(1);
    bench.restart().await;
    // Until somebody fires, it is open.
    assert_eq!(bench.applied(gather(3)).await, gathered(3, false));
    assert_eq!(bench.applied(fire(9)).await, Effect::Count(1));
    assert_eq!(bench.applied(fire(9)).await, Effect::Count(0));
    assert_eq!(sealed_with(&bench).await, Some(3));
    bench.expect(&[(1, StateKind::Queued)]).await;
    assert_eq!(bench.applied(gather(4)).await, gathered(3, true));
}

/// A group may be sealed at a chain's height.
pub async fn a_height_seals_a_group(mut bench: Bench) {
    bench.define(policy()).await;
    bench.applied(planned(1, None, Some(place(500).into()))).await;
    bench.applied(tick(499)).await;
    assert_eq!(bench.applied(fire(9)).await, Effect::Count(0));
    bench.restart().await;
    let found = view(&bench, 0, 9).await.unwrap_or_else(|| panic!("the group is open"));
    assert_eq!(found.seal_at, Some(Moment::Height(place(500))));
    bench.applied(tick(500)).await;
    assert_eq!(bench.applied(fire(9)).await, Effect::Count(1));
    bench.expect(&[(1, StateKind::Queued)]).await;
}

/// A group may be sealed at a time of a chain's blocks.
pub async fn a_blocks_time_seals_a_group(mut bench: Bench) {
    bench.define(policy()).await;
    bench.applied(planned(1, None, Some(block_time(500_000)))).await;
    bench.clock.advance_ms(1_000_000);
    bench.applied(tick(499)).await;
    assert_eq!(bench.applied(fire(9)).await, Effect::Count(0));
    bench.restart().await;
    let found = view(&bench, 0, 9).await.unwrap_or_else(|| panic!("the group is open"));
    assert_eq!(found.seal_at, Some(block_time(500_000)));
    bench.applied(tick(500)).await;
    assert_eq!(bench.applied(fire(9)).await, Effect::Count(1));
    bench.expect(&[(1, StateKind::Queued)]).await;
}

/// Firing does no more than its limit at a time.
pub async fn firing_is_bounded(bench: Bench) {
    bench.define(policy()).await;
    let now = bench.now();
    for n in 1..=5 {
        let plan = GroupPlan { seal_at_items: None, seal_at: Some(now.into()), request: final_request(n) };
        let key = group_named(&format!("group-{n}"));
        bench.applied(Gather { group: key, plan: Some(Box::new(plan)), ..gather(n) }).await;
    }
    for expected in [2, 2, 1, 0] {
        assert_eq!(bench.applied(fire(2)).await, Effect::Count(expected));
    }
}

/// A full route makes a seal wait: items still join, other groups are sealed meanwhile,
/// and it is made up for when there is room.
pub async fn a_seal_waits_for_room(mut bench: Bench) {
    bench.define(RoutePolicy { capacity: 1, ..policy() }).await;
    bench.applied(Op::Define(Define { route: route_named("quotes"), policy: policy() })).await;
    bench.admit(vec![final_request(9)]).await;
    let now = bench.now();
    assert_eq!(bench.applied(planned(1, Some(1), Some(now.into()))).await, gathered(1, false));
    let elsewhere = NewRequest { route: route_named("quotes"), ..final_request(2) };
    let plan = Some(Box::new(GroupPlan { seal_at_items: None, seal_at: Some(now.into()), request: elsewhere }));
    bench.applied(Gather { group: group_named("other"), plan, ..gather(1) }).await;
    assert_eq!(bench.applied(fire(1)).await, Effect::Count(1), "the full route holds up nobody else");
    bench.expect(&[(2, StateKind::Queued)]).await;
    for _ in 0..2 {
        assert_eq!(bench.applied(fire(9)).await, Effect::Count(0));
        bench.restart().await;
        bench.clock.advance_ms(1);
    }
    assert_eq!(bench.applied(gather(2)).await, gathered(2, false));
    assert_eq!(sealed_with(&bench).await, None);
    bench.applied(mend(9, Remedy::Cancel)).await;
    bench.clock.advance_ms(1);
    assert_eq!(bench.applied(fire(9)).await, Effect::Count(1));
    assert_eq!(sealed_with(&bench).await, Some(2));
    bench.expect(&[(1, StateKind::Queued)]).await;
}

/// A plan that could never be carried out is refused with its item; closing by hand
/// takes its place.
pub async fn a_plan_is_checked_when_it_is_made(bench: Bench) {
    let unknown = bench.apply(planned(1, Some(2), None)).await;
    assert_eq!(unknown, Outcome::Invalid(Invalid::UnknownRoute(route())));
    bench.define(policy()).await;
    let far = place(1 << 46);
    let too_high = bench.apply(planned(1, None, Some(far.clone().into()))).await;
    assert_eq!(too_high, Outcome::Invalid(Invalid::HeightTooHigh(far)));
    let many = bench.apply(planned(1, Some(GROUP_ITEMS_MAX + 1), None)).await;
    assert!(matches!(many, Outcome::Invalid(Invalid::TooMany { .. })), "{many:?}");
    assert_eq!(view(&bench, 0, 9).await, None);
    bench.applied(planned(1, Some(2), Some(bench.now().into()))).await;
    assert_eq!(bench.applied(close(2)).await, Effect::Closed { items: 1, request: id(2) });
    assert_eq!(bench.applied(fire(9)).await, Effect::Count(0));
    assert_eq!(bench.applied(gather(2)).await, gathered(1, true));
    assert_eq!(bench.found(1).await, None);
}
