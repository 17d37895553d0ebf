//! Many workers at once, on real threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use roundtrip::clock::SystemClock;
use roundtrip::inbox::{End, StateKind};
use roundtrip::listener::Ending;
use roundtrip::station::Shutdown;
use roundtrip::store::journal::Event;
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::{Batched, MemoryStore, Options, ReadExt, Store};
use roundtrip::testkit::samples::id;
use roundtrip::words::RequestId;
use roundtrip::worker::{Failure, Job, Typed, WorkerOptions, handler_fn};
use tokio::task::JoinSet;

use super::{Rig, numbered};

const WORKERS: usize = 32;
const REQUESTS: u64 = 2000;

/// Under which leases each request was handled, and how often as its last.
type Log = Arc<Mutex<HashMap<RequestId, Vec<String>>>>;

/// 32 workers share a route; some requests panic or fail the first time. Each attempt is
/// made under a lease of its own, and each request has one response.
async fn share_a_route(store: Arc<dyn Store>) {
    let rig = Rig::new(store, Arc::new(SystemClock::new()), None);
    rig.define(RoutePolicy::default()).await;
    let log = Log::default();
    let shutdown = Shutdown::new();
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let log = log.clone();
        let handler = handler_fn(move |n: u64, job: Job| {
            log.lock().unwrap().entry(job.id()).or_default().push(job.key());
            async move {
                tokio::task::yield_now().await;
                match (n % 50, job.attempt()) {
                    (0, 1) => panic!("the first time"),
                    (1, 1) => Err(Failure::retry("the first time")),
                    _ => Ok(n * n),
                }
            }
        });
        let options = WorkerOptions { concurrency: 4, ..WorkerOptions::default() };
        workers.spawn(rig.worker(options, Typed(handler)).run(shutdown.clone()));
    }
    for batch in (0..REQUESTS).collect::<Vec<_>>().chunks(100) {
        rig.admit(batch.iter().map(|&n| numbered(n)).collect()).await;
    }
    for end in rig.ends((0..REQUESTS).map(id)).await {
        assert!(matches!(end, Ending::Ended(receipt) if receipt.end == End::Settled), "{end:?}");
    }
    shutdown.cancel();
    while let Some(ended) = workers.join_next().await {
        ended.unwrap().unwrap();
    }
    let log = log.lock().unwrap().clone();
    for n in 0..REQUESTS {
        let expected = if n % 50 < 2 { 2 } else { 1 };
        let keys = &log[&id(n)];
        assert_eq!(keys.len(), expected, "request {n} was handled under {keys:?}");
        assert_eq!(rig.count(id(n), |event| matches!(event, Event::Leased { .. })).await, expected);
        assert_eq!(rig.count(id(n), |event| *event == Event::Answered).await, 1, "one response for {n}");
    }
    let mut keys: Vec<&String> = log.values().flatten().collect();
    let count = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), count, "no two attempts share a lease");
    assert!(rig.store.counts().await.unwrap().iter().all(|count| !StateKind::LIVE.contains(&count.state)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn share_a_route_in_memory() {
    share_a_route(Arc::new(Batched::new(MemoryStore::new(Arc::new(SystemClock::new()), Options::default())))).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn share_a_route_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = roundtrip::store::SqliteStore::open(path, Arc::new(SystemClock::new()), Options::default()).unwrap();
    share_a_route(Arc::new(store)).await;
}
