//! What holds when two processes share a store, on every store that they can share: two
//! handles on the same data, as far as it can tell.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use roundtrip::clock::ManualClock;
use roundtrip::inbox::StateKind;
use roundtrip::sender::{AttemptKind, LaneStatus};
use roundtrip::store::journal::Event;
use roundtrip::store::op::{
    Admission, Admit, Define, Effect, LaneOrder, Lead, Lease, NewRequest, Op, Order, Outcome, Seat, Stale,
};
use roundtrip::store::policy::{Gate, Horizon, RoutePolicy};
use roundtrip::store::{ReadExt, Store, StoreExt, Topic};
use roundtrip::testkit::bench::{Harness, OPTIONS, START};
use roundtrip::testkit::samples::*;
use roundtrip::words::{ClaimId, Nonce};

/// How long anything may take that must happen.
pub(crate) const HAPPEN_MAX: Duration = Duration::from_secs(60);

/// Generates the cases, on what a harness opens again and again without dropping it.
macro_rules! sharing {
    ($harness:expr) => {
        crate::sharing::sharing_by_polling!($harness);
        crate::sharing::cases! { $harness => a_hint_reaches_the_other_process }
    };
}

/// The same, where processes tell each other nothing.
macro_rules! sharing_by_polling {
    ($harness:expr) => {
        crate::sharing::cases! { $harness =>
            no_request_is_handed_out_to_two_processes
            a_long_queue_is_handed_out_in_order_although_a_stranger_writes
            a_request_that_two_processes_admit_is_admitted_once
            batches_on_their_way_are_done_once_although_a_stranger_came_first
            a_lane_has_one_owner_among_processes
            the_journal_is_read_in_order_while_two_processes_write
        }
    };
}

macro_rules! cases {
    ($harness:expr => $($case:ident)*) => {
        $(
            #[tokio::test]
            async fn $case() {
                crate::sharing::$case(crate::sharing::Two::open($harness).await).await;
            }
        )*
    };
}

pub(crate) use {cases, sharing, sharing_by_polling};

/// Two processes that share a store.
pub(crate) struct Two {
    clock: ManualClock,
    one: Arc<dyn Store>,
    other: Arc<dyn Store>,
}

impl Two {
    pub(crate) async fn open(harness: impl Harness) -> Two {
        let clock = ManualClock::at(START);
        let one = harness.open(Arc::new(clock.clone()), OPTIONS).await.unwrap();
        let other = harness.open(Arc::new(clock.clone()), OPTIONS).await.unwrap();
        one.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
        Two { clock, one, other }
    }
}

pub(crate) async fn no_request_is_handed_out_to_two_processes(Two { one, other, .. }: Two) {
    one.apply_one(Admit { cursor: None, requests: requests(1..=200) }).await.unwrap();
    let drain = |store: Arc<dyn Store>, first: u64| async move {
        let mut taken = Vec::new();
        for claim in first.. {
            let outcome = store.apply_one(Lease { claim: ClaimId(claim), ..lease(7) }).await.unwrap();
            let Outcome::Applied(Effect::Leased(grants)) = outcome else { panic!("{outcome:?}") };
            if grants.is_empty() {
                break;
            }
            taken.extend(grants);
        }
        taken
    };
    let (mut taken, others) = tokio::join!(drain(one, 1), drain(other, 1000));
    assert!(!taken.is_empty() && !others.is_empty(), "both had their turns");
    taken.extend(others);
    let ids: BTreeSet<_> = taken.iter().map(|grant| grant.id).collect();
    let tokens: BTreeSet<_> = taken.iter().map(|grant| grant.token).collect();
    assert_eq!((taken.len(), ids.len(), tokens.len()), (200, 200, 200));
}

/// A process that is alone has the first of a long queue at hand, and fetches more when they run short; unless somebody
/// wrote since.
pub(crate) async fn a_long_queue_is_handed_out_in_order_although_a_stranger_writes(Two { one, other, .. }: Two) {
    let long = RoutePolicy { capacity: 10_000, work_on: Gate::Seen, ..policy() };
    one.apply_one(Define { route: route(), policy: long }).await.unwrap();
    for first in (1..7000).step_by(500) {
        one.apply_one(Admit { cursor: None, requests: requests(first..first + 500) }).await.unwrap();
    }
    let mut taken = Vec::new();
    for claim in 1.. {
        if claim == 13 {
            other.apply_one(Admit { cursor: None, requests: requests(7001..=7001) }).await.unwrap();
        }
        let outcome = one.apply_one(Lease { claim: ClaimId(claim), ..lease(500) }).await.unwrap();
        let Outcome::Applied(Effect::Leased(grants)) = outcome else { panic!("{outcome:?}") };
        if grants.is_empty() {
            break;
        }
        if claim % 5 == 0 {
            let answers = grants.iter().take(50).map(|grant| answer(grant).into()).collect();
            assert!(one.apply(answers).await.unwrap().iter().all(Outcome::holds));
        }
        taken.extend(grants.into_iter().map(|grant| grant.id));
    }
    assert!(taken.iter().copied().eq((1..=7001).map(id)), "{} were handed out, or not in order", taken.len());
}

pub(crate) async fn a_request_that_two_processes_admit_is_admitted_once(Two { one, other, .. }: Two) {
    for n in 1..=20 {
        // The same event, seen by two listeners; and another event that asks for the same.
        let again = NewRequest { occurrence: occurrence(1000 + n), ..request(n) };
        let admit = |requests: Vec<NewRequest>| Admit { cursor: None, requests };
        let (first, second) =
            tokio::join!(one.apply_one(admit(vec![request(n)])), other.apply_one(admit(vec![request(n), again])));
        let admissions = [first.unwrap(), second.unwrap()].into_iter().flat_map(|outcome| match outcome {
            Outcome::Applied(Effect::Admitted(all, _)) | Outcome::Duplicate(Effect::Admitted(all, _)) => all,
            other => panic!("{other:?}"),
        });
        let admissions: Vec<Admission> = admissions.collect();
        let new = admissions.iter().filter(|admission| matches!(admission, Admission::New { .. })).count();
        let known = admissions.iter().filter(|admission| matches!(admission, Admission::Known { .. })).count();
        assert_eq!((new, known, admissions.len()), (1, 1, 3), "{admissions:?}");
    }
    let counts = other.counts().await.unwrap();
    assert_eq!(counts.iter().map(|count| count.requests).sum::<u64>(), 20);
}

/// A process that is alone sends a batch before the last one is written. If a stranger comes
/// first, none of them holds, and each is done anew.
pub(crate) async fn batches_on_their_way_are_done_once_although_a_stranger_came_first(Two { one, other, .. }: Two) {
    let new = |outcome: Outcome| match outcome {
        Outcome::Applied(Effect::Admitted(all, _)) | Outcome::Duplicate(Effect::Admitted(all, _)) => {
            all.into_iter().filter(|admission| matches!(admission, Admission::New { .. })).count()
        }
        other => panic!("{other:?}"),
    };
    let mut admitted = 0;
    for base in (0..6).map(|round| round * 1000) {
        // Alone for a while, so that all is at hand.
        for n in 1..=3 {
            one.apply_one(Admit { cursor: None, requests: requests(base + n..=base + n) }).await.unwrap();
        }
        let stranger = other.apply_one(Admit { cursor: None, requests: requests(base + 100..=base + 100) });
        admitted += 3 + new(stranger.await.unwrap());
        let admit = |from, to| one.apply_one(Admit { cursor: None, requests: requests(base + from..=base + to) });
        // Few and many are sent in different ways.
        for (from, few) in [(100, 8), (150, 80)] {
            let (first, second, third) =
                tokio::join!(admit(from, from + few), admit(from + 5, from + few + 5), admit(from + 9, from + few + 9));
            admitted += new(first.unwrap()) + new(second.unwrap()) + new(third.unwrap());
            let stranger = other.apply_one(Admit { cursor: None, requests: requests(base + 150..=base + 150) });
            admitted += new(stranger.await.unwrap());
        }
        let (taken, more) = tokio::join!(one.apply_one(Lease { claim: ClaimId(base), ..lease(64) }), admit(250, 259));
        let Outcome::Applied(Effect::Leased(grants)) = taken.unwrap() else { panic!("not leased") };
        admitted += new(more.unwrap());
        let answers: Vec<Op> = grants.iter().map(|grant| Op::Answer(answer(grant))).collect();
        let (these, those) = answers.split_at(answers.len() / 2);
        let (these, those) = tokio::join!(one.apply(these.to_vec()), one.apply(those.to_vec()));
        assert!(these.unwrap().iter().chain(&those.unwrap()).all(Outcome::holds));
    }
    assert_eq!(admitted, 6 * (3 + 18 + 90 + 10));
    let counts = other.counts().await.unwrap();
    assert_eq!(counts.iter().map(|count| count.requests).sum::<u64>(), admitted as u64);
    let mut last = None;
    while let page = other.journal(last.map_or(1, |last| last + 1), 1000).await.unwrap()
        && !page.entries.is_empty()
    {
        for entry in page.entries {
            assert_eq!(entry.position, last.map_or(entry.position, |last| last + 1), "no gap");
            last = Some(entry.position);
        }
    }
}

pub(crate) async fn a_lane_has_one_owner_among_processes(Two { clock, one, other }: Two) {
    let order = Order::Open { destination: destination(), window: 4, first: Nonce(0) };
    one.apply_one(LaneOrder { lane: lane(), order }).await.unwrap();
    let seat = |holder, ttl_ms| Lead { seat: Seat::Lane(lane()), holder, ttl_ms };
    let led = |outcome: Outcome| match outcome {
        Outcome::Applied(Effect::Led(token, _)) => token,
        other => panic!("{other:?}"),
    };
    // The one that started first has the lower epoch; neither takes the other's for a rollback.
    let first = led(other.apply_one(seat(holder(), 1000)).await.unwrap());
    let refused = one.apply_one(seat(other_holder(), 1000)).await.unwrap();
    assert!(matches!(refused, Outcome::Stale(Stale::Seat { .. })), "{refused:?}");
    let empty = |n| vec![parcel(&[], signed(n, AttemptKind::Cancel))];
    let stored = one.apply_one(assign(first, 0, empty(1))).await.unwrap();
    assert_eq!(stored, Outcome::Applied(Effect::Assigned(1, None)), "whichever process a sender speaks through");
    clock.advance_ms(1000);
    let second = led(one.apply_one(seat(other_holder(), 1000)).await.unwrap());
    let (late, stored) =
        tokio::join!(other.apply_one(assign(first, 1, empty(2))), one.apply_one(assign(second, 1, empty(3))));
    assert!(matches!(late.unwrap(), Outcome::Stale(Stale::Seat { .. })));
    assert_eq!(stored.unwrap(), Outcome::Applied(Effect::Assigned(1, None)));
    let view = other.lane(lane()).await.unwrap().unwrap();
    assert_eq!((view.next, view.under_way, view.status), (Nonce(2), 2, LaneStatus::Active));
}

/// Whoever reads the journal while others write misses nothing: it is in the order of commits.
pub(crate) async fn the_journal_is_read_in_order_while_two_processes_write(Two { one, other, .. }: Two) {
    let write = |store: Arc<dyn Store>, numbers: std::ops::Range<u64>| async move {
        for n in numbers {
            store.apply_one(Admit { cursor: None, requests: vec![request(n)] }).await.unwrap();
        }
    };
    let (last, reader) = (81, other.clone());
    let follow = async move {
        let (mut from, mut read) = (1, Vec::new());
        while read.len() < last {
            let page = reader.journal(from, 10).await.unwrap();
            from = page.entries.last().map_or(from, |entry| entry.position + 1);
            read.extend(page.entries.into_iter().map(|entry| entry.position));
        }
        read
    };
    let ((), (), read) = tokio::join!(write(one, 1..41), write(other, 101..141), follow);
    assert!(read.into_iter().eq(1..=last as u64), "every entry once, in order");
}

pub(crate) async fn a_hint_reaches_the_other_process(Two { one, other, .. }: Two) {
    let mut changes = other.changes(Topic::Inbox(route()));
    assert!(changes.changed().await, "everybody looks once at the start");
    // The first hint may come before the other listens; whoever then starts to listen looks.
    for n in 1..=3 {
        one.apply_one(Admit { cursor: None, requests: vec![request(n)] }).await.unwrap();
        let hinted = tokio::time::timeout(HAPPEN_MAX, changes.changed()).await;
        assert!(hinted.is_ok_and(|here| here), "request {n} is not told of");
    }
}

/// Requests go through a store in two processes, and something happens to its server so many
/// times on the way: each is answered once, and none is lost. Answers how many calls failed.
///
/// Whoever admits and whoever answers are tasks of their own, so that they go on while it happens.
pub(crate) async fn nothing_is_lost(
    intake: Arc<dyn Store>,
    work: Arc<dyn Store>,
    requests: u64,
    times: u64,
    mut happens: impl AsyncFnMut(),
) -> u64 {
    let policy = RoutePolicy { destination: None, publish_on: Gate::Seen, horizon: Horizon::Forever, ..policy() };
    until_known(&*intake, Define { route: route(), policy }.into()).await;
    let (failed, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let admit = tokio::spawn({
        let failed = failed.clone();
        async move {
            for n in 1..=requests {
                let admit = Admit { cursor: None, requests: vec![request(n)] };
                until_known_counting(&*intake, admit.into(), &failed).await;
            }
        }
    });
    let answer_all = tokio::spawn({
        let (work, failed, answered) = (work.clone(), failed.clone(), answered.clone());
        async move {
            for claim in 1.. {
                let lease = Lease { claim: ClaimId(claim), ..lease(5) };
                let Effect::Leased(grants) = until_known_counting(&*work, lease.into(), &failed).await else {
                    panic!("a lease brings grants")
                };
                for grant in &grants {
                    until_known_counting(&*work, answer(grant).into(), &failed).await;
                    answered.fetch_add(1, Ordering::SeqCst);
                }
                if answered.load(Ordering::SeqCst) == requests {
                    break;
                }
            }
        }
    });
    for time in 1..=times {
        while answered.load(Ordering::SeqCst) < time * requests / (times + 1) && !answer_all.is_finished() {
            tokio::task::yield_now().await;
        }
        happens().await;
    }
    admit.await.unwrap();
    answer_all.await.unwrap();
    assert_eq!(work.counts().await.unwrap(), []);
    for n in 1..=requests {
        let told = work.timeline(id(n)).await.unwrap();
        let told: Vec<&Event> = told.iter().map(|entry| &entry.event).collect();
        let whole =
            matches!(told[..], [Event::Admitted { .. }, Event::Leased { .. }, Event::Answered, Event::Ended { .. }]);
        assert!(whole, "request {n}: {told:?}");
    }
    failed.load(Ordering::SeqCst)
}

/// Replays an operation until its outcome is known, and shows what it brought.
pub(crate) async fn until_known(store: &dyn Store, op: Op) -> Effect {
    until_known_counting(store, op, &AtomicU64::new(0)).await
}

/// The same, and counts the calls that failed.
async fn until_known_counting(store: &dyn Store, op: Op, failed: &AtomicU64) -> Effect {
    let started = Instant::now();
    loop {
        match store.apply(vec![op.clone()]).await.map(|mut outcomes| outcomes.remove(0)) {
            Ok(Outcome::Applied(effect) | Outcome::Duplicate(effect)) => return effect,
            // The answer that was lost had settled it.
            Ok(Outcome::Stale(Stale::Lease(StateKind::Settled))) => return Effect::Now(StateKind::Settled),
            Ok(other) => panic!("{op:?}: {other:?}"),
            Err(error) => assert!(error.is_retryable() && started.elapsed() < HAPPEN_MAX, "{op:?}: {error}"),
        }
        failed.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
}
