//! The stations on each store, under a paused clock: time moves only when nothing else can.

mod examples;
#[cfg(feature = "sqlite")]
mod keyed;
mod many;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod polling;
#[cfg(all(feature = "sqlite", any(feature = "postgres", feature = "redis")))]
mod processes;
mod relay;
mod timer;
mod worker;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use roundtrip::clock::{Clock, TokioClock};
use roundtrip::inbox::StateKind;
use roundtrip::listener::{Ending, Submitter, request_with_id};
use roundtrip::station::{Shutdown, StationError};
use roundtrip::store::journal::Event;
use roundtrip::store::op::{Admit, Define, NewRequest, Op, Outcome};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::{Bodies, Found, RequestView};
use roundtrip::store::{Batched, MemoryStore, Options, ReadExt, Store, StoreExt};
use roundtrip::testkit::bench::START;
use roundtrip::testkit::samples::route;
use roundtrip::testkit::silent::Silent;
use roundtrip::words::{Payload, RequestId, WorkerName};
use roundtrip::worker::{RawHandler, Worker, WorkerOptions};
use tokio::task::JoinHandle;

/// Each case once on the memory store, once with all hints lost, and once on SQLite, each on a rig of its own.
macro_rules! on_each_store {
    ($($case:ident)*) => {
        crate::stations::on_stores_with_hints! { $($case)* }

        mod without_hints {
            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                super::$case(crate::stations::Rig::without_hints()).await;
            })*
        }
    };
}
pub(crate) use on_each_store;

/// Each case on those that tell what changed at once: for what would come later without.
macro_rules! on_stores_with_hints {
    ($($case:ident)*) => {
        mod memory {
            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                super::$case(crate::stations::Rig::in_memory()).await;
            })*
        }

        #[cfg(feature = "sqlite")]
        mod sqlite {
            $(#[tokio::test(start_paused = true)]
            async fn $case() {
                super::$case(crate::stations::Rig::on_disk()).await;
            })*
        }
    };
}
pub(crate) use on_stores_with_hints;

/// A store whose calls hold the paused clock, since its answers come from a thread that
/// the clock does not know of.
#[cfg(feature = "sqlite")]
struct Unhurried(Arc<roundtrip::store::SqliteStore>);

#[cfg(feature = "sqlite")]
impl Unhurried {
    async fn hold<T: Send + 'static>(call: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || runtime.block_on(call)).await.unwrap()
    }
}

#[cfg(feature = "sqlite")]
impl Store for Unhurried {
    fn apply(&self, batch: Vec<Op>) -> roundtrip::store::StoreFuture<'_, Vec<Outcome>> {
        let store = self.0.clone();
        Box::pin(Self::hold(async move { store.apply(batch).await }))
    }

    fn read(
        &self,
        query: roundtrip::store::query::Query,
    ) -> roundtrip::store::StoreFuture<'_, roundtrip::store::query::Reply> {
        let store = self.0.clone();
        Box::pin(Self::hold(async move { store.read(query).await }))
    }

    fn changes(&self, topic: roundtrip::store::Topic) -> roundtrip::store::Changes {
        self.0.changes(topic)
    }
}

/// A store, its clock, and short verbs.
pub(crate) struct Rig {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    _folder: Option<tempfile::TempDir>,
    workers: AtomicU64,
}

impl Rig {
    fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, folder: Option<tempfile::TempDir>) -> Rig {
        Rig { store, clock, _folder: folder, workers: AtomicU64::new(0) }
    }

    pub(crate) fn in_memory() -> Rig {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(START));
        let store = Batched::new(MemoryStore::new(clock.clone(), Options::default()));
        Rig::new(Arc::new(store), clock, None)
    }

    /// In memory, where nobody is told that anything changed: polling alone must do.
    pub(crate) fn without_hints() -> Rig {
        let Rig { store, clock, .. } = Rig::in_memory();
        Rig::new(Arc::new(Silent::new(store)), clock, None)
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn on_disk() -> Rig {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(START));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        let store = roundtrip::store::SqliteStore::open(path, clock.clone(), Options::default()).unwrap();
        Rig::new(Arc::new(Unhurried(Arc::new(store))), clock, Some(folder))
    }

    pub(crate) async fn define(&self, policy: RoutePolicy) {
        self.apply(Define { route: route(), policy }).await;
    }

    /// Applies an operation that must take effect.
    pub(crate) async fn apply(&self, op: impl Into<Op>) -> Outcome {
        let outcome = self.store.apply_one(op).await.unwrap();
        assert!(outcome.holds(), "{outcome:?}");
        outcome
    }

    pub(crate) async fn admit(&self, requests: Vec<NewRequest>) {
        self.apply(Admit { cursor: None, requests }).await;
    }

    /// A worker with a name of its own on the sample route.
    pub(crate) fn worker(&self, options: WorkerOptions, handler: impl RawHandler) -> Worker {
        self.worker_on(self.store.clone(), options, handler)
    }

    pub(crate) fn worker_on(&self, store: Arc<dyn Store>, options: WorkerOptions, handler: impl RawHandler) -> Worker {
        let n = self.workers.fetch_add(1, Ordering::Relaxed);
        Worker {
            store,
            clock: self.clock.clone(),
            seed: n,
            name: WorkerName::new(&format!("worker-{n}")).unwrap(),
            route: route(),
            handler: Arc::new(handler),
            options,
            open: None,
        }
    }

    /// Waits for the ends of requests.
    pub(crate) async fn ends(&self, ids: impl IntoIterator<Item = RequestId>) -> Vec<Ending> {
        let submitter = Submitter::new(self.store.clone());
        let mut ends = Vec::new();
        for id in ids {
            ends.push(submitter.ended(id).await.unwrap().unwrap());
        }
        ends
    }

    pub(crate) async fn live(&self, id: RequestId) -> (RequestView, Bodies) {
        match self.store.get(id).await.unwrap() {
            Some(Found::Live(view, bodies)) => (*view, bodies),
            other => panic!("{id} is not live: {other:?}"),
        }
    }

    pub(crate) async fn state(&self, id: RequestId) -> Option<StateKind> {
        self.store.get(id).await.unwrap().map(|found| match found {
            Found::Live(view, _) => view.phase.kind(),
            Found::Ended(receipt) => receipt.end.kind(),
        })
    }

    /// How often the journal tells of such an event of a request.
    pub(crate) async fn count(&self, id: RequestId, event: impl Fn(&Event) -> bool) -> usize {
        self.store.timeline(id).await.unwrap().iter().filter(|entry| event(&entry.event)).count()
    }

    /// Takes silent workers' leases back every so often, until dropped.
    pub(crate) fn rescuer(&self, every: Duration) -> tokio::task::JoinSet<()> {
        let store = self.store.clone();
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                store.apply_one(Op::Rescue { limit: 100 }).await.unwrap();
            }
        });
        task
    }
}

/// A station in a task, and what stops it.
pub(crate) struct Task {
    pub(crate) shutdown: Shutdown,
    handle: JoinHandle<Result<(), StationError>>,
}

impl Task {
    pub(crate) fn of(worker: Worker) -> Task {
        let shutdown = Shutdown::new();
        Task { handle: tokio::spawn(worker.run(shutdown.clone())), shutdown }
    }

    /// Tells it to stop, and waits until it has.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.ended().await.unwrap();
    }

    /// Waits until it ends.
    pub(crate) async fn ended(self) -> Result<(), StationError> {
        self.handle.await.unwrap()
    }

    /// Ends it as a crash would.
    pub(crate) async fn kill(self) {
        self.handle.abort();
        assert!(self.handle.await.unwrap_err().is_cancelled());
    }
}

/// The n-th request of the sample route, with its number as JSON.
pub(crate) fn numbered(n: u64) -> NewRequest {
    request_with_id(&route(), roundtrip::testkit::samples::id(n), Payload::json(n.to_string()))
}
