//! Natural batching: what queues up during a commit goes into the next one.

use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Waker};

use roundtrip::clock::{Clock, ManualClock};
use roundtrip::store::op::{Admit, Define, Effect, Invalid, NewRequest, Op, Outcome};
use roundtrip::store::query::{Query, Reply};
use roundtrip::store::{
    BatchLimits, Batched, Changes, Glimpse, MemoryStore, Options, ReadExt, SqliteStore, Store, StoreError, StoreExt,
    StoreFuture, Topic,
};
use roundtrip::testkit::bench::START;
use roundtrip::testkit::faulty::{Cut, Faulty};
use roundtrip::testkit::observed::{Observed, Record};
use roundtrip::testkit::samples::{id, lease, policy, request, route, route_named};
use roundtrip::testkit::slow::{Gate, Slow};
use roundtrip::words::{BATCH_OPS_MAX, Payload, UnixMs};

type Calls<'a> = Vec<StoreFuture<'a, Vec<Outcome>>>;

/// Batching in front of a gate in front of a store that defines the sample route, and
/// that loses the answer to one commit.
struct Line {
    store: Batched<Slow<Observed<Faulty<MemoryStore>>>>,
    memory: MemoryStore,
    gate: Gate,
    record: Record,
}

const NO_CUT: usize = usize::MAX;

async fn line(limits: BatchLimits, cut: usize) -> Line {
    line_of(1, limits, cut).await
}

/// With a store that takes so many batches at a time.
async fn line_of(at_a_time: usize, limits: BatchLimits, cut: usize) -> Line {
    let memory = MemoryStore::new(Arc::new(ManualClock::at(START)), Options::default());
    memory.apply_one(Op::Define(Define { route: route(), policy: policy() })).await.unwrap();
    let (observed, record) = Observed::new(Faulty::new(memory.clone(), Cut::Before, cut));
    let (slow, gate) = Slow::new(observed);
    Line { store: Batched::with_limits(slow.taking(at_a_time), limits), memory, gate, record }
}

impl Line {
    /// Puts a call in the line; it is not answered yet.
    fn call(&self, ops: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        let mut call = self.store.apply(ops);
        assert!(is_waiting(&mut call), "answered before any commit");
        call
    }

    /// One call at the gate, and these behind it.
    async fn queue(&self, behind: Vec<Vec<Op>>) -> Calls<'_> {
        let first = self.call(vec![admit(1000)]);
        self.gate.arrived(1).await;
        std::iter::once(first).chain(behind.into_iter().map(|ops| self.call(ops))).collect()
    }
}

/// Polls once; the future keeps its place.
fn is_waiting<T>(call: &mut StoreFuture<'_, T>) -> bool {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

fn admit(n: u64) -> Op {
    Op::Admit(Admit { cursor: None, requests: vec![request(n)] })
}

fn admit_bytes(n: u64, bytes: usize) -> Op {
    let payload = Payload::raw(vec![0; bytes]);
    Op::Admit(Admit { cursor: None, requests: vec![NewRequest { payload, ..request(n) }] })
}

async fn all(calls: Calls<'_>) -> Vec<Result<Vec<Outcome>, StoreError>> {
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await);
    }
    answers
}

#[tokio::test]
async fn calls_that_come_during_a_commit_go_into_the_next() {
    let line = line(BatchLimits::default(), NO_CUT).await;
    let mut calls = line.queue((0..5).map(|n| vec![admit(n)]).collect()).await;
    assert!(calls.iter_mut().all(is_waiting));
    line.gate.let_through(1);
    let first = calls.remove(0).await.unwrap();
    assert!(first[0].holds());
    line.gate.arrived(2).await;
    assert!(calls.iter_mut().all(is_waiting), "nobody is answered before the commit");
    assert_eq!(line.record.sizes(), [1]);
    line.gate.let_through(1);
    for answer in all(calls).await {
        let outcomes = answer.unwrap();
        assert!(matches!(outcomes[..], [Outcome::Applied(Effect::Admitted(..))]), "{outcomes:?}");
    }
    assert_eq!(line.record.sizes(), [1, 5], "two commits for six calls");
}

#[tokio::test]
async fn a_store_that_takes_two_batches_gets_a_second_when_it_is_worth_one() {
    let line = line_of(2, BatchLimits::default(), NO_CUT).await;
    let first = line.call((0..4).map(admit).collect());
    line.gate.arrived(1).await;
    // One is too few beside four, two are not; and two batches are as many as it takes.
    let second = line.call(vec![admit(10)]);
    let third = line.call(vec![admit(11)]);
    line.gate.arrived(2).await;
    let fourth = line.call((20..24).map(admit).collect());
    line.gate.let_through(3);
    for answer in all(vec![first, second, third, fourth]).await {
        assert!(answer.unwrap().iter().all(Outcome::holds));
    }
    assert_eq!(line.record.sizes(), [4, 2, 4]);
}

#[tokio::test]
async fn two_batches_at_a_time_share_what_there_is() {
    let line = line_of(2, BatchLimits::default(), NO_CUT).await;
    let calls: Calls<'_> = (0..100).map(|n| line.call((8 * n..8 * (n + 1)).map(admit).collect())).collect();
    line.gate.arrived(2).await;
    line.gate.let_through(3);
    for answer in all(calls).await {
        assert!(answer.unwrap().iter().all(Outcome::holds));
    }
    assert_eq!(line.record.sizes(), [256, 280, 264], "a third of all each, where one would take them all");
}

#[tokio::test]
async fn commits_are_bounded_and_calls_never_split() {
    let ops = |sizes: &[usize]| -> Vec<Vec<Op>> {
        let mut numbers = 0..;
        sizes.iter().map(|&size| numbers.by_ref().take(size).map(admit).collect()).collect()
    };
    let bytes =
        |sizes: &[usize]| -> Vec<Vec<Op>> { (0..).zip(sizes).map(|(n, &size)| vec![admit_bytes(n, size)]).collect() };
    let leases = |count| (0..count).map(|_| vec![Op::Lease(lease(1))]).collect();
    let most = BatchLimits { ops: 3, bytes: 100 };
    let cases = [
        (ops(&[1, 1, 1, 1, 1, 1, 1]), vec![1, 3, 3, 1]),
        (ops(&[2, 2, 1]), vec![1, 2, 3]),
        (ops(&[1, 5, 1]), vec![1, 1, 5, 1]),
        (leases(7), vec![1, 3, 3, 1]),
        (bytes(&[50, 50, 1]), vec![1, 2, 1]),
        (bytes(&[101, 1, 99]), vec![1, 1, 2]),
    ];
    for (behind, expected) in cases {
        let line = line(most, NO_CUT).await;
        let sizes: Vec<_> = behind.iter().map(Vec::len).collect();
        let calls = line.queue(behind).await;
        line.gate.let_through(100);
        let answers = all(calls).await.into_iter().skip(1).map(|answer| answer.unwrap().len());
        assert_eq!(answers.collect::<Vec<_>>(), sizes, "each caller has its own outcomes");
        assert_eq!(line.record.sizes(), expected);
    }
}

#[tokio::test]
async fn leases_do_not_wait_for_a_commit() {
    let line = line(BatchLimits::default(), NO_CUT).await;
    let leased = || vec![Op::Lease(lease(1))];
    let mut calls = line.queue(vec![vec![admit(1)], leased(), vec![admit(2)], leased()]).await;
    line.gate.let_through(2);
    line.gate.arrived(3).await;
    // The one at the gate and the leases behind it are answered; the admissions wait.
    let waiting: Vec<_> = calls.iter_mut().map(is_waiting).collect();
    assert_eq!(waiting, [false, true, false, true, false]);
    assert_eq!(line.record.sizes(), [1, 2]);
    line.gate.let_through(1);
    assert!(calls.remove(1).await.unwrap()[0].holds());
    assert_eq!(line.record.sizes(), [1, 2, 2]);
}

#[tokio::test]
async fn a_refused_operation_is_refused_to_its_caller_alone() {
    let line = line(BatchLimits::default(), NO_CUT).await;
    let nowhere = NewRequest { route: route_named("nowhere"), ..request(2) };
    let bad = Op::Admit(Admit { cursor: None, requests: vec![nowhere] });
    let calls = line.queue(vec![vec![admit(1)], vec![bad], vec![admit(3)]]).await;
    line.gate.let_through(2);
    let answers: Vec<_> = all(calls).await.into_iter().map(|answer| answer.unwrap().remove(0)).collect();
    assert_eq!(answers[2], Outcome::Invalid(Invalid::UnknownRoute(route_named("nowhere"))));
    assert!([&answers[0], &answers[1], &answers[3]].iter().all(|outcome| outcome.holds()), "{answers:?}");
    assert_eq!(line.record.sizes(), [1, 3]);
}

#[tokio::test]
async fn a_store_error_reaches_the_callers_of_its_commit_alone() {
    let line = line(BatchLimits { ops: 2, bytes: 100 }, 1).await;
    let calls = line.queue((0..4).map(|n| vec![admit(n)]).collect()).await;
    line.gate.let_through(3);
    let struck: Vec<_> = all(calls).await.into_iter().map(|answer| answer.err()).collect();
    let lost = Some(StoreError::Unknown);
    assert_eq!(struck, [None, lost.clone(), lost, None, None]);
    // The callers replay, and the line goes on.
    line.gate.let_through(1);
    assert!(line.store.apply_one(admit(0)).await.unwrap().holds());
}

#[tokio::test]
async fn a_call_commits_although_its_caller_went_away() {
    let line = line(BatchLimits::default(), NO_CUT).await;
    let mut changes = line.memory.changes(Topic::Inbox(route()));
    assert!(changes.changed().await);
    drop(line.queue(vec![vec![admit(1)], vec![admit(2)]]).await);
    let Line { store, memory, gate, record } = line;
    // The handle goes too: what was accepted is committed first.
    drop(store);
    gate.let_through(2);
    assert!(changes.changed().await);
    gate.arrived(2).await;
    while memory.get(id(2)).await.unwrap().is_none() {
        assert!(changes.changed().await);
    }
    assert!(memory.get(id(1)).await.unwrap().is_some());
    assert_eq!(record.sizes(), [1, 2]);
}

#[tokio::test]
async fn a_batch_that_is_too_large_never_joins_the_line() {
    let line = line(BatchLimits::default(), NO_CUT).await;
    let large = (0..=BATCH_OPS_MAX as u64).map(admit).collect();
    let refused = line.store.apply(large).await;
    assert_eq!(refused, Err(StoreError::BatchTooLarge { ops: BATCH_OPS_MAX + 1, bytes: refused_bytes() }));
    assert_eq!(line.record.calls(), []);
}

fn refused_bytes() -> usize {
    (0..=BATCH_OPS_MAX as u64).map(|n| request(n).payload.bytes.len()).sum()
}

/// A clock that stands in the way of the store's thread once it has been told to.
struct Barred(Mutex<Option<mpsc::Receiver<()>>>);

impl Clock for Barred {
    fn now(&self) -> UnixMs {
        // The answer is that the bar was lifted, or that nobody can lift it any more.
        let _lifted = self.0.lock().unwrap().take().map(|bar| bar.recv());
        START
    }
}

#[tokio::test]
async fn the_embedded_store_takes_all_that_queued_up_into_one_commit() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(Barred(Mutex::new(None)));
    let commits = Arc::new(Mutex::new(vec![0]));
    let seen = commits.clone();
    let watch = move |glimpse: Glimpse<'_>| {
        let mut commits = seen.lock().unwrap();
        match glimpse {
            Glimpse::Outcomes(outcomes) => *commits.last_mut().unwrap() += outcomes.len(),
            Glimpse::Commit => commits.push(0),
        }
    };
    let path = folder.path().join("store.db");
    let store = SqliteStore::open_watched(path, clock.clone(), Options::default(), watch).unwrap();
    store.apply_one(Op::Define(Define { route: route(), policy: policy() })).await.unwrap();
    let (lift, bar) = mpsc::channel();
    *clock.0.lock().unwrap() = Some(bar);
    // One call is before the bar; what comes while it waits is one commit, refusals and all.
    let mut calls: Calls<'_> = Vec::new();
    for n in 0..50 {
        let unknown = NewRequest { route: route_named("unknown"), ..request(1000 + n) };
        let refused = Op::Admit(Admit { cursor: None, requests: vec![unknown] });
        let mut call = store.apply(vec![admit(n), refused]);
        assert!(is_waiting(&mut call));
        calls.push(call);
    }
    lift.send(()).unwrap();
    for answer in all(calls).await {
        let outcomes = answer.unwrap();
        assert!(outcomes[0].holds());
        assert!(matches!(outcomes[1], Outcome::Invalid(Invalid::UnknownRoute(_))));
    }
    let commits = commits.lock().unwrap().clone();
    assert_eq!(commits.iter().sum::<usize>(), 101);
    assert!(commits.len() <= 4, "the define, at most one call before the bar, and the rest: {commits:?}");
}

/// A store that panics.
struct Panicking;

impl Store for Panicking {
    fn apply(&self, _batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        // Without the hook that would print it.
        Box::pin(async { std::panic::resume_unwind(Box::new("a store that panics")) })
    }

    fn read(&self, _query: Query) -> StoreFuture<'_, Reply> {
        Box::pin(std::future::pending())
    }

    fn changes(&self, _topic: Topic) -> Changes {
        unreachable!("nobody follows it")
    }
}

#[tokio::test]
async fn a_panic_behind_the_line_is_told_to_every_caller() {
    let store = Batched::new(Panicking);
    for _ in 0..3 {
        let error = store.apply(vec![admit(1)]).await.unwrap_err();
        assert!(matches!(&error, StoreError::Damaged(why) if why.contains("panicked")), "{error}");
        assert!(!error.is_retryable());
    }
}
