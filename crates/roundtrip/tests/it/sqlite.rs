//! The SQLite store: the conformance suite on it, with crashes as restarts.

use std::sync::Arc;

use roundtrip::clock::Clock;
use roundtrip::store::op::{Op, Outcome};
use roundtrip::store::query::{Query, Reply};
use roundtrip::store::{Changes, Options, SqliteStore, Store, StoreFuture, Topic};
use roundtrip::testkit::bench::Harness;
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
}

roundtrip::conformance!(OnDisk::default());
