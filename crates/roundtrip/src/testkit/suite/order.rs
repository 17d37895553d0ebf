//! `order`: in which order a route hands out its requests.

use std::collections::BTreeMap;

use crate::inbox::StateKind;
use crate::store::op::{Effect, Fail, Grant, NewRequest, Op, Release, Remedy, Seat, Verdict};
use crate::store::policy::{Gate, QueueOrder, RoutePolicy};
use crate::store::{ReadExt, Topic};
use crate::testkit::bench::{Bench, must};
use crate::testkit::samples::*;
use crate::words::{ErrorClass, OrderKey, Payload, UnixMs};

fn ids(grants: &[Grant]) -> Vec<crate::words::RequestId> {
    grants.iter().map(|grant| grant.id).collect()
}

/// Request `n` with the key `k`.
fn keyed(n: u64, k: u64) -> NewRequest {
    let key = OrderKey::new(&format!("key-{k}")).unwrap_or_else(|error| panic!("{error}"));
    NewRequest { key: Some(key), ..final_request(n) }
}

/// Keys one after the other, each with so many at a time; an answer ends a request.
fn by_key(per_key: u16) -> RoutePolicy {
    RoutePolicy { order: QueueOrder::KeyedFifo { per_key }, destination: None, ..policy() }
}

/// As they came, the higher priority first, or the earliest deadline first.
pub async fn order(mut bench: Bench) {
    let cases = [
        (10, QueueOrder::Fifo, [10, 11, 12, 13]),
        (20, QueueOrder::Priority, [21, 23, 20, 22]),
        (30, QueueOrder::Deadline, [32, 31, 30, 33]),
    ];
    for (first, queue, expected) in cases {
        bench.define(RoutePolicy { order: queue, ..policy() }).await;
        let traits = [(0, None), (255, Some(9_000)), (0, Some(8_000)), (7, None)];
        let new = (first..).zip(traits).map(|(n, (priority, deadline))| {
            let deadline = deadline.map(|ms| bench.now().plus(ms).into());
            NewRequest { priority, deadline, ..request(n) }
        });
        bench.admit(new.collect()).await;
        bench.restart().await;
        let grants = [bench.lease(1).await, bench.lease(9).await].concat();
        assert_eq!(ids(&grants), expected.map(id), "{queue:?}");
        for grant in grants.iter().rev() {
            bench.applied(release(grant)).await;
        }
        let grants = bench.lease(9).await;
        assert_eq!(ids(&grants), expected.map(id), "back in the queue each is where it was: {queue:?}");
    }
}

/// Requests past their deadline, however many, do not keep those after them back.
pub async fn deadlines_that_have_passed_are_passed_over(bench: Bench) {
    bench.define(RoutePolicy { order: QueueOrder::Deadline, ..policy() }).await;
    let soon = bench.now().plus(10);
    bench.admit((1..=1500).map(|n| NewRequest { deadline: Some(soon.into()), ..request(n) }).collect()).await;
    bench.admit(vec![request(2000)]).await;
    bench.clock.advance_ms(10);
    assert_eq!(ids(&bench.lease(9).await), [id(2000)]);
}

/// In random order everything is handed out, and not as it came.
pub async fn random_order(mut bench: Bench) {
    bench.define(RoutePolicy { order: QueueOrder::Random, ..policy() }).await;
    bench.admit(requests(0..60)).await;
    bench.restart().await;
    let mut handed_out = Vec::new();
    for _ in 0..30 {
        handed_out.extend(ids(&bench.lease(2).await));
    }
    let as_they_came: Vec<_> = (0..60).map(id).collect();
    assert_ne!(handed_out, as_they_came);
    let mut sorted = handed_out.clone();
    sorted.sort();
    assert_eq!(sorted, as_they_came, "each of them once");
    // Nobody waits for ever: each lease starts at another place.
    assert_eq!(bench.lease(2).await, []);
    bench.admit(requests(100..110)).await;
    let mut firsts = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let grant = bench.lease_one().await;
        firsts.insert(grant.id);
        bench.applied(release(&grant)).await;
    }
    assert_eq!(firsts.len(), 10, "each of ten comes first sometimes");
}

/// Of one key so many are with workers, in the order of admission; keys do not wait for
/// each other, and requests without one wait for nobody.
pub async fn keyed_fifo(mut bench: Bench) {
    bench.define(by_key(1)).await;
    bench.admit(vec![keyed(1, 1), keyed(2, 1), keyed(3, 2), final_request(4), final_request(5), keyed(6, 1)]).await;
    bench.restart().await;
    let grants = bench.lease(9).await;
    assert_eq!(ids(&grants), [id(1), id(3), id(4), id(5)]);
    assert_eq!(bench.lease(9).await, []);
    bench.commit().await;
    bench.restart().await;
    assert_eq!(bench.lease(9).await, [], "a lease that outlives a start holds its key");
    let mut changes = bench.store().changes(Topic::Inbox(route()));
    assert!(changes.changed().await);
    bench.applied(answer(&grants[0])).await;
    assert!(changes.changed().await, "there is something to lease again");
    assert_eq!(ids(&bench.lease(9).await), [id(2)]);

    bench.define(by_key(2)).await;
    assert_eq!(ids(&bench.lease(9).await), [id(6)], "two at a time, from now on");
}

/// A request that is to be tried again, given back, snoozed or taken from a silent
/// worker keeps its place, and those of its key wait.
pub async fn a_key_waits_for_its_first(mut bench: Bench) {
    bench.define(RoutePolicy { work_on: Gate::Final, ..by_key(1) }).await;
    let lead = bench.lead(Seat::Route(route())).await;
    let seen = |n| NewRequest { standing: crate::inbox::Standing::Seen, ..keyed(n, 1) };
    bench.admit(vec![seen(1), keyed(2, 1), keyed(9, 9)]).await;
    assert_eq!(ids(&bench.lease(9).await), [id(9)], "the first is not final");
    bench.applied(finalize(lead, 1)).await;
    let later = |grant: &Grant, after_ms| -> [Op; 2] {
        let verdict = Verdict::Retry { after_ms: Some(after_ms) };
        let retry = Fail { verdict, ..fail(grant, ErrorClass::Retryable) };
        [retry.into(), Release { after_ms, ..release(grant) }.into()]
    };
    for at in 0..2 {
        for after_ms in [0, 500] {
            let grant = bench.lease_one().await;
            assert_eq!(grant.id, id(1));
            bench.applied(later(&grant, after_ms)[at].clone()).await;
            bench.restart().await;
            if after_ms > 0 {
                assert_eq!(bench.lease(9).await, [], "it keeps its place");
                bench.clock.advance_ms(after_ms);
            }
        }
    }
    assert_eq!(bench.lease_one().await.id, id(1));
    bench.clock.advance_ms(60_000);
    bench.applied(Op::Rescue { limit: 9 }).await;
    let grants = bench.lease(9).await;
    assert_eq!(ids(&grants), [id(1), id(9)], "both workers were silent");
    bench.applied(answer(&grants[0])).await;
    assert_eq!(bench.lease_one().await.id, id(2));
}

/// A dead letter lets the next of its key in, and so does every end; tried again, it
/// comes first, and still no more are with workers than may be.
pub async fn a_dead_letter_does_not_hold_its_key(mut bench: Bench) {
    bench.define(by_key(1)).await;
    bench.admit((1..=5).map(|n| keyed(n, 1)).collect()).await;
    bench.applied(fail(&bench.lease_one().await, ErrorClass::Fatal)).await;
    let second = bench.lease_one().await;
    assert_eq!(second.id, id(2));
    bench.applied(mend(1, Remedy::Retry)).await;
    assert_eq!(bench.lease(9).await, [], "one at a time");
    bench.commit().await;
    bench.restart().await;
    assert_eq!(bench.lease(9).await, []);
    bench.applied(fail(&second, ErrorClass::Retryable)).await;
    let first = bench.lease_one().await;
    assert_eq!(first.id, id(1), "it came before the others");
    bench.applied(answer(&first)).await;
    bench.applied(mend(2, Remedy::Cancel)).await;
    let third = bench.lease_one().await;
    assert_eq!(third.id, id(3));
    bench.applied(mend(3, Remedy::Cancel)).await;
    assert_eq!(bench.lease_one().await.id, id(4));
}

/// What waits behind another request with its id does not hold its key.
pub async fn what_waits_behind_does_not_hold_its_key(bench: Bench) {
    bench.define(RoutePolicy { destination: Some(destination()), ..by_key(1) }).await;
    let other = NewRequest { occurrence: occurrence(1001), payload: Payload::raw("other"), ..keyed(1, 1) };
    bench.admit(vec![keyed(1, 1), other, keyed(2, 1)]).await;
    bench.applied(fail(&bench.lease_one().await, ErrorClass::Fatal)).await;
    bench.expect(&[(1, StateKind::Dead)]).await;
    let grant = bench.lease_one().await;
    assert_eq!(grant.id, id(2), "the other content of request 1 waits for a person");
    bench.applied(answer(&grant)).await;
    bench.applied(mend(1, Remedy::Drop)).await;
    let grant = bench.lease_one().await;
    assert_eq!((grant.id, grant.generation), (id(1), 1));
}

/// A thousand keys keep their order through failures, silence and restarts; a key whose
/// requests kill every worker keeps nobody else back.
pub async fn a_thousand_keys_keep_their_order(mut bench: Bench) {
    const KEYS: u64 = 1000;
    bench.define(RoutePolicy { crashes_max: 2, ..by_key(1) }).await;
    // Request n has the key n % 1000; key 0 is poisoned.
    bench.admit((0..3 * KEYS).map(|n| keyed(n, n % KEYS)).collect()).await;
    let (mut done, mut round) = (BTreeMap::<u64, Vec<u64>>::new(), 0);
    while done.values().map(|order| order.len() as u64).sum::<u64>() < 3 * (KEYS - 1) {
        round += 1;
        assert!(round < 60, "everybody else comes to an end");
        let mut ops = Vec::new();
        let mut held = std::collections::BTreeSet::new();
        for grant in bench.lease(300).await {
            let n = u64::from_be_bytes(std::array::from_fn(|at| grant.id.0[24 + at]));
            assert!(held.insert(n % KEYS), "one of a key at a time");
            match (n * 7 + round) % 5 {
                _ if n % KEYS == 0 => {}
                0 => ops.push(fail(&grant, ErrorClass::Retryable).into()),
                1 => ops.push(release(&grant).into()),
                _ => {
                    done.entry(n % KEYS).or_default().push(n);
                    ops.push(answer(&grant).into());
                }
            }
        }
        bench.batch(ops).await;
        bench.clock.advance_ms(60_000);
        bench.applied(Op::Rescue { limit: 9999 }).await;
        if round % 3 == 0 {
            bench.restart().await;
        }
    }
    for (key, order) in done {
        assert_eq!(order, [key, key + KEYS, key + 2 * KEYS]);
    }
    let counts = must(bench.store().counts().await, "counts");
    assert!(counts.iter().all(|count| count.requests <= 3), "only the poisoned key is left: {counts:?}");
}

/// A long line under one key costs no more than a short one: this ends in time.
pub async fn one_key_may_have_many(bench: Bench) {
    bench.define(by_key(500)).await;
    for part in 0..5 {
        bench.admit((0..4000).map(|n| keyed(part * 4000 + n, 1)).collect()).await;
    }
    for part in 0..2u64 {
        let grants = bench.lease(1000).await;
        let expected: Vec<_> = (part * 500..part * 500 + 500).map(id).collect();
        assert_eq!(ids(&grants), expected);
        let answers = grants.iter().map(|grant| answer(grant).into()).collect();
        bench.batch(answers).await;
    }
    bench.admit(vec![NewRequest { due: Some(UnixMs::NEVER.into()), ..keyed(30_000, 2) }, keyed(30_001, 2)]).await;
    let effect = bench.applied(mend(1000, Remedy::Cancel)).await;
    assert_eq!(effect, Effect::Now(StateKind::Withdrawn));
    assert_eq!(bench.lease(1).await[0].id, id(1001));
}
