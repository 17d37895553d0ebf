//! `gather`, `close`: items under a key, then one request.

use crate::groups::GroupState;
use crate::inbox::StateKind;
use crate::store::ReadExt;
use crate::store::op::{Close, Effect, Full, Gather, Invalid, NewRequest, Outcome, Prune};
use crate::store::policy::{Retention, RoutePolicy};
use crate::store::query::GroupView;
use crate::testkit::bench::{Bench, must};
use crate::testkit::samples::*;

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
