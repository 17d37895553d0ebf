//! `backoff`, and what each class of failure costs.

use crate::inbox::StateKind;
use crate::store::op::{Effect, Fail, Grant, Op, Release, Remedy, Verdict};
use crate::store::policy::{Backoff, RoutePolicy};
use crate::testkit::bench::Bench;
use crate::testkit::samples::*;
use crate::words::{ErrorClass, Moment};

const BACKOFF: Backoff = Backoff { first_ms: 1000, factor_percent: 300, max_ms: 20_000, jitter_percent: 25 };

/// A failure whose wait the route decides.
fn retry(grant: &Grant, class: ErrorClass) -> Fail {
    Fail { verdict: Verdict::Retry { after_ms: None }, ..fail(grant, class) }
}

/// The one request is handed out after exactly this wait, and not before.
async fn comes_after(bench: &mut Bench, wait_ms: u64) -> Grant {
    bench.restart().await;
    bench.expect(&[(1, StateKind::Held)]).await;
    bench.clock.advance_ms(wait_ms - 1);
    assert_eq!(bench.lease(1).await, []);
    bench.clock.advance_ms(1);
    bench.lease_one().await
}

/// Each attempt waits longer than the one before, as the route's policy says; a silent
/// worker's request waits like one that failed.
pub async fn backoff(mut bench: Bench) {
    bench.define(RoutePolicy { backoff: BACKOFF, ..policy() }).await;
    bench.admit(vec![request(1)]).await;
    let mut grant = bench.lease_one().await;
    for attempt in 1..=5 {
        assert_eq!(grant.attempt, attempt);
        if attempt == 3 {
            bench.clock.advance_ms(60_000);
            assert_eq!(bench.applied(Op::Rescue { limit: 9 }).await, Effect::Count(1));
        } else {
            bench.applied(retry(&grant, ErrorClass::Retryable)).await;
        }
        let wait_ms = BACKOFF.delay(&id(1), attempt);
        let most = [1000, 3000, 9000, 20_000, 20_000][usize::from(attempt - 1)];
        assert!((most * 3 / 4..=most).contains(&wait_ms), "attempt {attempt} waits {wait_ms} ms");
        grant = comes_after(&mut bench, wait_ms).await;
    }
    // What failed together comes back apart.
    bench.admit(requests(11..=20)).await;
    let grants = bench.lease(10).await;
    let mut waits = std::collections::BTreeSet::new();
    for (n, failed) in (11..).zip(&grants) {
        bench.applied(retry(failed, ErrorClass::Retryable)).await;
        let Some(Moment::At(due)) = bench.live(n).await.0.due else { panic!("it waits for a time") };
        waits.insert(due.since(bench.now()));
        bench.applied(mend(n, Remedy::Cancel)).await;
    }
    assert!(waits.len() > 5 && waits.iter().all(|wait_ms| (750..=1000).contains(wait_ms)), "{waits:?}");
    // The worker knows better.
    bench.applied(Fail { verdict: Verdict::Retry { after_ms: Some(5) }, ..retry(&grant, ErrorClass::Retryable) }).await;
    comes_after(&mut bench, 5).await;
}

/// Transport errors never use a request up, and back off by how many came in a row.
pub async fn transport_errors_never_kill(mut bench: Bench) {
    bench.define(RoutePolicy { backoff: BACKOFF, attempts_max: 2, crashes_max: 1, ..policy() }).await;
    bench.admit(vec![request(1)]).await;
    for (attempt, state) in [(1, StateKind::Held), (2, StateKind::Dead)] {
        for in_a_row in 1..=30 {
            let grant = bench.lease_one().await;
            assert_eq!(grant.attempt, attempt);
            assert_eq!(bench.applied(retry(&grant, ErrorClass::Transport)).await, Effect::Now(StateKind::Held));
            bench.restart().await;
            let (view, _) = bench.live(1).await;
            assert_eq!(view.due, Some(bench.now().plus(BACKOFF.delay(&id(1), in_a_row)).into()));
            assert_eq!((view.attempts, view.misses), (attempt - 1, in_a_row));
            bench.clock.advance_ms(BACKOFF.max_ms);
        }
        // Any other failure costs an attempt, and breaks the row.
        let grant = bench.lease_one().await;
        assert_eq!(bench.applied(retry(&grant, ErrorClass::Retryable)).await, Effect::Now(state));
        bench.clock.advance_ms(BACKOFF.max_ms);
    }
}

/// A request that kills its worker each time is a dead letter soon, however many
/// attempts it might have had.
pub async fn a_request_that_kills_its_workers_is_a_dead_letter(mut bench: Bench) {
    bench.define(RoutePolicy { attempts_max: u16::MAX, crashes_max: 4, backoff: BACKOFF, ..policy() }).await;
    bench.admit(vec![request(1)]).await;
    for crashes in 1..=4 {
        let grant = bench.lease_one().await;
        if crashes % 2 == 0 {
            bench.applied(retry(&grant, ErrorClass::Crash)).await;
        } else {
            bench.commit().await;
            bench.restart().await;
            bench.clock.advance_ms(60_000);
            bench.applied(Op::Rescue { limit: 9 }).await;
        }
        assert_eq!(bench.live(1).await.0.crashes, crashes);
        bench.clock.advance_ms(BACKOFF.max_ms);
    }
    bench.expect(&[(1, StateKind::Dead)]).await;
}

/// A snooze costs no attempt, however often it happens, and takes as long as it says.
pub async fn a_snooze_costs_nothing(mut bench: Bench) {
    bench.define(RoutePolicy { attempts_max: 1, crashes_max: 1, backoff: BACKOFF, ..policy() }).await;
    bench.admit(vec![request(1)]).await;
    let mut grant = bench.lease_one().await;
    for round in 1..=50 {
        assert_eq!(grant.attempt, 1);
        bench.applied(Release { after_ms: round, ..release(&grant) }).await;
        grant = comes_after(&mut bench, round).await;
    }
    let (view, _) = bench.live(1).await;
    assert_eq!((view.attempts, view.crashes, view.misses, view.error), (1, 0, 0, None));
}
