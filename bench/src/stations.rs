//! The stations beside the bare store: what in-process handlers cost, and how soon a
//! request is in a handler's hand.
//!
//! A lifecycle here is admit, lease, answer, without a destination. The bare store's is
//! driven directly, in the same run, by a loop that leases and answers handfuls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use roundtrip::clock::SystemClock;
use roundtrip::station::Shutdown;
use roundtrip::store::op::{Admit, Answer, Define, Effect, Grant, Lease, NewRequest, Op, Outcome};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::{Query, Reply};
use roundtrip::store::{Changes, Options, SqliteStore, Store, StoreExt, StoreFuture, Topic};
use roundtrip::words::{ClaimId, Payload, RequestId, RouteName, WorkerName};
use roundtrip::worker::{Handled, Job, Worker, WorkerOptions, raw_handler_fn};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::Scale;
use crate::lifecycle::{request, route, runtime};
use crate::report::{Report, median};

/// How many a bare loop takes at a time, and how many handlers a worker runs at once.
const HANDFUL: usize = 512;
/// Requests in flight behind the one whose latency is measured.
const LOAD: usize = 64;
/// The first request whose latency is measured; those before are load.
const FIRST_MEASURED: u64 = 1 << 40;
/// All that may be measured so.
const MEASURED: std::ops::Range<u64> = FIRST_MEASURED..FIRST_UNWORKED;
/// The first request that only a commit is measured for.
const FIRST_UNWORKED: u64 = 1 << 41;

type Failure = Box<dyn std::error::Error>;

/// A store that counts answers to the load, and makes room for another request for each.
struct Counted {
    store: Arc<dyn Store>,
    room: Semaphore,
    next: AtomicU64,
    answered: AtomicU64,
    stop_at: u64,
    done: Notify,
}

impl Counted {
    fn new(store: Arc<dyn Store>, in_flight: usize, stop_at: u64) -> Arc<Counted> {
        Arc::new(Counted {
            store,
            room: Semaphore::new(in_flight),
            next: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            stop_at,
            done: Notify::new(),
        })
    }

    fn count(&self, answers: usize) {
        let before = self.answered.fetch_add(answers as u64, Ordering::Relaxed);
        if before + answers as u64 >= self.stop_at {
            self.done.notify_one();
        }
        self.room.add_permits(answers);
    }
}

/// An answer to a request that is measured begins with its number, since it is what was asked.
fn answers_load(op: &Op) -> bool {
    let Op::Answer(answer) = op else { return false };
    let number = answer.response.bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    number.is_none_or(|number| !MEASURED.contains(&number))
}

impl Store for Counted {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let answers = batch.iter().filter(|op| answers_load(op)).count();
            let outcomes = self.store.apply(batch).await?;
            self.count(answers);
            Ok(outcomes)
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.store.read(query)
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.store.changes(topic)
    }
}

/// Keeps as many in flight as there is room for; each request is a call of its own.
async fn admit_all(store: Arc<Counted>) {
    let mut calls = JoinSet::new();
    while let Ok(permit) = store.room.acquire().await {
        permit.forget();
        let n = store.next.fetch_add(1, Ordering::Relaxed);
        let to = store.clone();
        calls.spawn(async move { to.apply_one(Admit { cursor: None, requests: vec![request(n)] }).await });
        while calls.try_join_next().is_some() {}
    }
}

/// Leases and answers, with nothing in between.
async fn work_bare(store: Arc<Counted>) {
    let mut queued = store.changes(Topic::Inbox(route()));
    let mut claim = 0;
    let answer = |Grant { id, token, payload, .. }: Grant| {
        Op::Answer(Answer { id, token, response: payload, follow_ups: Vec::new(), items: Vec::new() })
    };
    while queued.changed().await {
        loop {
            claim += 1;
            let worker = WorkerName::new("bare").expect("a name");
            let lease = Lease { route: route(), worker, max: HANDFUL, claim: ClaimId(claim), lease_ms: None };
            let leased = store.apply_one(lease).await;
            let Ok(Outcome::Applied(Effect::Leased(grants))) = leased else { break };
            if grants.is_empty() {
                break;
            }
            if store.apply(grants.into_iter().map(answer).collect()).await.is_err() {
                return;
            }
        }
    }
}

/// Who waits to hear when a handler starts on a request.
type Starts = Arc<Mutex<HashMap<RequestId, oneshot::Sender<Instant>>>>;

/// Runs a worker whose handler answers with what it is asked.
async fn work_in_process(store: Arc<Counted>, starts: Starts) {
    let handler = raw_handler_fn(move |payload: Payload, job: Job| {
        let waits = starts.lock().unwrap_or_else(PoisonError::into_inner).remove(&job.id());
        async move {
            if let Some(waits) = waits {
                let _gone = waits.send(Instant::now());
            }
            Ok(Handled::from(payload))
        }
    });
    let worker = Worker {
        store,
        clock: Arc::new(SystemClock::new()),
        seed: 1,
        name: WorkerName::new("in-process").expect("a name"),
        route: route(),
        handler: Arc::new(handler),
        options: WorkerOptions { concurrency: HANDFUL, ..WorkerOptions::default() },
        open: None,
    };
    if let Err(error) = worker.run(Shutdown::new()).await {
        eprintln!("the worker ended: {error}");
    }
}

pub(crate) fn policy() -> RoutePolicy {
    RoutePolicy { capacity: 10_000_000, ..RoutePolicy::default() }
}

/// Who does the work.
#[derive(Clone, Copy)]
pub(crate) enum By {
    BareLoop,
    Worker,
    /// A worker of the client's, over a stream to the program's API.
    #[cfg(feature = "program")]
    Stream,
}

/// Lifecycles per second on a store of its own.
pub(crate) async fn rate(by: By, store: Arc<dyn Store>, in_flight: usize, count: u64) -> Result<f64, Failure> {
    let store = Counted::new(store, in_flight, count);
    store.apply_one(Define { route: route(), policy: policy() }).await?;
    let mut stations = JoinSet::new();
    let started = Instant::now();
    match by {
        By::BareLoop => stations.spawn(work_bare(store.clone())),
        By::Worker => stations.spawn(work_in_process(store.clone(), Starts::default())),
        #[cfg(feature = "program")]
        By::Stream => stations.spawn(crate::program::work_over_stream(store.clone(), HANDFUL)),
    };
    stations.spawn(admit_all(store.clone()));
    tokio::select! {
        () = store.done.notified() => {}
        _ended = stations.join_next() => return Err("a station ended".into()),
    }
    let rate = store.answered.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
    stations.shutdown().await;
    Ok(rate)
}

/// A store in this folder.
pub(crate) fn open_sqlite(folder: &tempfile::TempDir) -> Result<Arc<dyn Store>, Failure> {
    let path = folder.path().join("stations.db");
    Ok(Arc::new(SqliteStore::open(path, Arc::new(SystemClock::new()), Options::default())?))
}

fn rate_on_sqlite(by: By, in_flight: usize, count: u64) -> Result<f64, Failure> {
    let folder = tempfile::tempdir_in(".")?;
    runtime()?.block_on(async { rate(by, open_sqlite(&folder)?, in_flight, count).await })
}

/// Median times, in microseconds: from the submission to the start of its handler, and
/// of one commit of the same size on a route that nobody works on.
fn latency(load: usize, samples: usize) -> Result<(f64, f64), Failure> {
    let folder = tempfile::tempdir_in(".")?;
    runtime()?.block_on(async {
        let store = Counted::new(open_sqlite(&folder)?, load, u64::MAX);
        let quiet = RouteName::new("quiet")?;
        for route in [route(), quiet.clone()] {
            store.apply_one(Define { route, policy: policy() }).await?;
        }
        let starts = Starts::default();
        let mut stations = JoinSet::new();
        stations.spawn(work_in_process(store.clone(), starts.clone()));
        stations.spawn(admit_all(store.clone()));
        let (mut latencies, mut commits) = (Vec::new(), Vec::new());
        for n in 0..samples as u64 {
            let measured = request(FIRST_MEASURED + n);
            let (waits, starts_at) = oneshot::channel();
            starts.lock().unwrap_or_else(PoisonError::into_inner).insert(measured.id, waits);
            let begun = Instant::now();
            store.apply_one(Admit { cursor: None, requests: vec![measured] }).await?;
            latencies.push(starts_at.await?.duration_since(begun));
            let unworked = NewRequest { route: quiet.clone(), ..request(FIRST_UNWORKED + n) };
            let begun = Instant::now();
            store.apply_one(Admit { cursor: None, requests: vec![unworked] }).await?;
            commits.push(begun.elapsed());
        }
        stations.shutdown().await;
        let middle = |times: Vec<Duration>| median(times.iter().map(|time| time.as_secs_f64() * 1e6).collect());
        Ok((middle(latencies), middle(commits)))
    })
}

/// The stations beside the bare store, each pair in turn.
pub(crate) fn beside_bare(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    for in_flight in [1, 128, 1024] {
        let count = (scale.lifecycles * in_flight.min(64)) as u64;
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..scale.rounds {
            ours.push(rate_on_sqlite(By::Worker, in_flight, count)?);
            bare.push(rate_on_sqlite(By::BareLoop, in_flight, count)?);
        }
        let bench = format!("in-process handlers, {in_flight} in flight");
        report.speed(bench, median(ours), "bare store".into(), median(bare), "lifecycles/s");
    }
    for (name, load) in [("idle", 0), ("loaded", LOAD)] {
        let (mut ours, mut commits) = (Vec::new(), Vec::new());
        for _ in 0..scale.rounds {
            let (latency, commit) = latency(load, scale.lifecycles)?;
            ours.push(latency);
            commits.push(commit);
        }
        let bench = format!("admit to handler start, {name}");
        report.cost(bench, median(ours), "one commit".into(), median(commits), "us");
    }
    Ok(())
}
