//! The SQLite store: the conformance suite on it, with crashes as restarts.

use std::sync::Arc;

use roundtrip::clock::{Clock, SystemClock};
use roundtrip::store::archive::Place;
use roundtrip::store::op::{Admit, Define, Effect, NewRequest, Op, Outcome};
use roundtrip::store::query::{Query, Reply};
use roundtrip::store::witness::Witness;
use roundtrip::store::{Changes, Options, SqliteStore, Store, StoreExt, StoreFuture, Topic};
use roundtrip::testkit::bench::Harness;
use roundtrip::testkit::samples::{final_request, lease, policy, route};
use tempfile::TempDir;

/// A file of its own, gone with the case.
pub(crate) struct OnDisk(TempDir);

impl Default for OnDisk {
    fn default() -> Self {
        OnDisk(tempfile::tempdir().unwrap())
    }
}

impl Harness for OnDisk {
    fn open(&self, clock: Arc<dyn Clock>, options: Options) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(async move {
            let store = SqliteStore::open(self.0.path().join("store.db"), clock, options)?;
            Ok(Arc::new(Crashing(Some(store))) as Arc<dyn Store>)
        })
    }

    fn place(&self) -> Option<Place> {
        Some(Place::Url(format!("sqlite:{}", self.0.path().join("store.db").display())))
    }
}

/// Ends as a crash would, where the store itself would write what is unwritten.
struct Crashing(Option<SqliteStore>);

impl Crashing {
    fn store(&self) -> &SqliteStore {
        self.0.as_ref().unwrap()
    }
}

impl Drop for Crashing {
    fn drop(&mut self) {
        self.0.take().unwrap().crash();
    }
}

impl Store for Crashing {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        self.store().apply(batch)
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.store().read(query)
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.store().changes(topic)
    }

    fn witness(&self, witness: Arc<dyn Witness>) {
        self.store().witness(witness);
    }
}

roundtrip::conformance!(OnDisk::default());

#[tokio::test]
async fn a_request_that_comes_due_is_told_of_without_any_call() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(SystemClock::new());
    let store = SqliteStore::open(folder.path().join("store.db"), clock.clone(), Options::default()).unwrap();
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    let mut queued = store.changes(Topic::Inbox(route()));
    assert!(queued.changed().await, "everybody looks once at the start");
    let due = Some(clock.now().plus(30).into());
    store.apply_one(Admit { cursor: None, requests: vec![NewRequest { due, ..final_request(1) }] }).await.unwrap();
    assert!(queued.changed().await);
    let Outcome::Applied(Effect::Leased(grants)) = store.apply_one(lease(1)).await.unwrap() else {
        panic!("a lease is granted");
    };
    assert_eq!(grants.len(), 1);
}
