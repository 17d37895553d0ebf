//! The bench that a case works on: a store, its clock, and a restart at hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::samples;
use crate::clock::{Clock, ManualClock};
use crate::inbox::StateKind;
use crate::sender::AttemptKind;
use crate::store::archive::{Place, verify_at};
use crate::store::op::{
    Admission, Admit, Assign, Define, Effect, Grant, LaneOrder, Lead, Lease, NewRequest, Op, Order, Outcome, Seat,
};
use crate::store::policy::RoutePolicy;
use crate::store::query::{Bodies, Found, RequestView};
use crate::store::{Batched, MemoryStore, Options, ReadExt, Store, StoreError, StoreExt, StoreFuture};
use crate::words::{ClaimId, Nonce, Token, UnixMs};

/// When every bench starts.
pub const START: UnixMs = UnixMs(1_790_000_000_000);

/// What every bench keeps: little, so that journals are trimmed and receipts spilled
/// in cases that do not think of either.
pub const OPTIONS: Options = Options { journal_entries: 512, spill_receipts: 4, lease_write_ms: 3_600_000 };

/// One store's data, for as long as a case lasts. All that an implementor writes.
pub trait Harness: Send + Sync + 'static {
    /// Opens the store. The first call finds no data; every later one is a start after
    /// a crash on the data of the one before, whose handles are dropped by then.
    fn open(&self, clock: Arc<dyn Clock>, options: Options) -> StoreFuture<'_, Arc<dyn Store>>;

    /// Where the data is, if the store can be copied and verified.
    fn place(&self) -> Option<Place> {
        None
    }
}

impl<H: Harness + ?Sized> Harness for Arc<H> {
    fn open(&self, clock: Arc<dyn Clock>, options: Options) -> StoreFuture<'_, Arc<dyn Store>> {
        (**self).open(clock, options)
    }

    fn place(&self) -> Option<Place> {
        (**self).place()
    }
}

impl<H: Harness + ?Sized> Harness for Box<H> {
    fn open(&self, clock: Arc<dyn Clock>, options: Options) -> StoreFuture<'_, Arc<dyn Store>> {
        (**self).open(clock, options)
    }

    fn place(&self) -> Option<Place> {
        (**self).place()
    }
}

/// The memory store's data.
#[derive(Default)]
pub struct InMemory(OnceLock<MemoryStore>);

impl Harness for InMemory {
    fn open(&self, clock: Arc<dyn Clock>, options: Options) -> StoreFuture<'_, Arc<dyn Store>> {
        let known = self.0.get().inspect(|store| store.crash());
        let store = known.unwrap_or_else(|| self.0.get_or_init(|| MemoryStore::new(clock, options))).clone();
        Box::pin(async move { Ok(Arc::new(store) as Arc<dyn Store>) })
    }

    fn place(&self) -> Option<Place> {
        self.0.get().map(Place::from)
    }
}

/// Any harness, with natural batching in front of its stores.
#[derive(Default)]
pub struct InBatches<H> {
    harness: H,
    behind: Mutex<Option<Weak<dyn Store>>>,
}

impl<H> InBatches<H> {
    /// Batching in front of this harness's stores.
    pub fn of(harness: H) -> InBatches<H> {
        InBatches { harness, behind: Mutex::new(None) }
    }
}

impl<H: Harness> Harness for InBatches<H> {
    fn open(&self, clock: Arc<dyn Clock>, options: Options) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(async move {
            let before = self.behind.lock().unwrap_or_else(PoisonError::into_inner).take();
            // The writer's task lets go of its store when it next runs.
            while before.as_ref().is_some_and(|store| store.strong_count() > 0) {
                tokio::task::yield_now().await;
            }
            let store = self.harness.open(clock, options).await?;
            *self.behind.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(&store));
            Ok(Arc::new(Batched::new(store)) as Arc<dyn Store>)
        })
    }

    fn place(&self) -> Option<Place> {
        self.harness.place()
    }
}

/// A store under test, with verbs short enough for a case to read as prose.
///
/// Verbs panic on what a case does not expect, and name the operation that caused it.
pub struct Bench {
    /// The store's clock.
    pub clock: ManualClock,
    harness: Arc<dyn Harness>,
    options: Options,
    store: Option<Arc<dyn Store>>,
    claims: AtomicU64,
}

impl Bench {
    /// A bench with an empty store, at [`START`], with [`OPTIONS`].
    pub async fn open(harness: impl Harness) -> Bench {
        Bench::open_with(harness, OPTIONS).await
    }

    /// A bench with an empty store, at [`START`], with options of its own.
    pub async fn open_with(harness: impl Harness, options: Options) -> Bench {
        let (clock, harness) = (ManualClock::at(START), Arc::new(harness));
        let mut bench = Bench { clock, harness, options, store: None, claims: AtomicU64::new(0) };
        bench.restart().await;
        bench
    }

    /// Drops the store and opens it again on the same data.
    pub async fn restart(&mut self) {
        self.store = None;
        let opened = self.harness.open(Arc::new(self.clock.clone()), self.options).await;
        self.store = Some(opened.unwrap_or_else(|error| panic!("the store does not open: {error}")));
    }

    /// Closes the store, has every invariant of what it left checked, and opens it again.
    pub async fn verify(&mut self) {
        self.store = None;
        if let Some(place) = self.harness.place() {
            let verdict = must(verify_at(place, &self.clock).await, "verify");
            assert!(verdict.is_sound(), "{verdict}");
        }
        self.restart().await;
    }

    /// Closes the store for as long as somebody else works on its data.
    pub fn close(&mut self) -> Place {
        self.store = None;
        self.harness.place().unwrap_or_else(|| panic!("the harness does not tell where its data is"))
    }

    /// The store itself.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.store.as_ref().unwrap_or_else(|| panic!("the store is open between restarts"))
    }

    /// The time on the bench's clock.
    pub fn now(&self) -> UnixMs {
        self.clock.now()
    }

    /// Applies a batch; the store must not fail.
    pub async fn batch(&self, ops: Vec<Op>) -> Vec<Outcome> {
        let count = ops.len();
        let outcomes = must(self.store().apply(ops).await, "apply");
        assert_eq!(outcomes.len(), count, "an outcome for each operation");
        outcomes
    }

    /// Applies one operation; the store must not fail.
    pub async fn apply(&self, op: impl Into<Op>) -> Outcome {
        must(self.store().apply_one(op.into()).await, "apply")
    }

    /// Applies one operation that must take effect now.
    pub async fn applied(&self, op: impl Into<Op>) -> Effect {
        let op = op.into();
        match self.apply(op.clone()).await {
            Outcome::Applied(effect) => effect,
            other => panic!("{op:?} was not applied: {other:?}"),
        }
    }

    /// Commits without any effect, after which leases and extends are durable too: a
    /// store may wait one commit longer before it writes them.
    pub async fn commit(&self) {
        for _ in 0..2 {
            assert_eq!(self.applied(Op::Expire { limit: 0 }).await, Effect::Count(0));
        }
    }

    /// Defines the sample route.
    pub async fn define(&self, policy: RoutePolicy) {
        self.applied(Op::Define(Define { route: samples::route(), policy })).await;
    }

    /// Admits requests that come from no listener.
    pub async fn admit(&self, requests: Vec<NewRequest>) -> Vec<Admission> {
        match self.apply(Op::Admit(Admit { cursor: None, requests })).await {
            Outcome::Applied(Effect::Admitted(admissions, None))
            | Outcome::Duplicate(Effect::Admitted(admissions, None)) => admissions,
            other => panic!("not admitted: {other:?}"),
        }
    }

    /// Leases up to so many requests of the sample route, under a claim of their own.
    pub async fn lease(&self, max: usize) -> Vec<Grant> {
        let claim = ClaimId(self.claims.fetch_add(1, Ordering::Relaxed) + 1_000_000);
        match self.applied(Lease { claim, ..samples::lease(max) }).await {
            Effect::Leased(grants) => grants,
            other => panic!("a lease brought {other:?}"),
        }
    }

    /// Leases the one request that is to come next.
    pub async fn lease_one(&self) -> Grant {
        let mut grants = self.lease(1).await;
        grants.pop().unwrap_or_else(|| panic!("nothing was queued"))
    }

    /// Admits the final sample request `n`, leases and answers it.
    pub async fn answered(&self, n: u64) -> Grant {
        self.admit(vec![samples::final_request(n)]).await;
        let grant = self.lease_one().await;
        assert_eq!(grant.id, samples::id(n), "the queue was empty before");
        self.applied(samples::answer(&grant)).await;
        grant
    }

    /// Takes a seat for the sample holder, for an hour.
    pub async fn lead(&self, seat: Seat) -> Token {
        match self.applied(Lead { seat, ..samples::lead() }).await {
            Effect::Led(token, _) => token,
            other => panic!("a seat brought {other:?}"),
        }
    }

    /// Opens the sample lane from slot 0 and takes its seat.
    pub async fn open_lane(&self, window: u32) -> Token {
        let order = Order::Open { destination: samples::destination(), window, first: Nonce(0) };
        self.applied(LaneOrder { lane: samples::lane(), order }).await;
        self.lead(Seat::Lane(samples::lane())).await
    }

    /// Somebody has used the slots of the sample lane below this one, so that it stops, and a
    /// person believes it: what is not used after all are gaps.
    pub async fn pass_over(&self, outside_next: u64) {
        let outside_next = Nonce(outside_next);
        for order in [Order::Observe { outside_next }, Order::Reconcile { outside_next }] {
            self.applied(LaneOrder { lane: samples::lane(), order }).await;
        }
    }

    /// Answers the sample request `n` and puts it alone on this slot.
    pub async fn assigned(&self, owner: Token, nonce: u64, n: u64) {
        self.answered(n).await;
        let parcels = vec![samples::parcel(&[n], samples::signed(n, AttemptKind::Carry))];
        let assign = Assign { lane: samples::lane(), owner, first: Nonce(nonce), parcels };
        assert_eq!(self.applied(assign).await, Effect::Assigned(1, None));
    }

    /// The sample request `n` as the store shows it.
    pub async fn found(&self, n: u64) -> Option<Found> {
        must(self.store().get(samples::id(n)).await, "get")
    }

    /// The sample request `n`, which must be live.
    pub async fn live(&self, n: u64) -> (RequestView, Bodies) {
        match self.found(n).await {
            Some(Found::Live(view, bodies)) => (*view, bodies),
            other => panic!("request {n} is not live: {other:?}"),
        }
    }

    /// The state of the sample request `n`, live or remembered.
    pub async fn state(&self, n: u64) -> Option<StateKind> {
        self.found(n).await.map(|found| match found {
            Found::Live(view, _) => view.phase.kind(),
            Found::Ended(receipt) => receipt.end.kind(),
        })
    }

    /// Checks the states of sample requests, live or remembered.
    #[track_caller]
    pub fn expect<'a>(&'a self, states: &'a [(u64, StateKind)]) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            for &(n, expected) in states {
                assert_eq!(self.state(n).await, Some(expected), "the state of request {n}, expected at {caller}");
            }
        }
    }
}

/// The value of a call to the store that must not fail.
#[track_caller]
pub fn must<T>(result: Result<T, StoreError>, what: &str) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what} failed: {error}"),
    }
}
