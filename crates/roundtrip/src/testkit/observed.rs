//! A store that remembers what it was told and what it said.

use std::sync::{Arc, Mutex, PoisonError};

use crate::store::op::{Op, Outcome};
use crate::store::query::{Query, Reply};
use crate::store::witness::Witness;
use crate::store::{Changes, Store, StoreError, StoreFuture, Topic};

/// One call of `apply` and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What was asked.
    pub batch: Vec<Op>,
    /// What was answered.
    pub answer: Result<Vec<Outcome>, StoreError>,
}

/// The calls that were answered, in order; unbounded, for tests alone.
#[derive(Clone, Default)]
pub struct Record(Arc<Mutex<Vec<Seen>>>);

impl Record {
    /// The calls so far.
    pub fn calls(&self) -> Vec<Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many operations each call so far brought.
    pub fn sizes(&self) -> Vec<usize> {
        self.calls().iter().map(|seen| seen.batch.len()).collect()
    }
}

/// A store that records every `apply` once it is answered.
pub struct Observed<S> {
    inner: S,
    record: Record,
}

impl<S> Observed<S> {
    /// A store, and where to read what it did.
    pub fn new(inner: S) -> (Observed<S>, Record) {
        let record = Record::default();
        (Observed { inner, record: record.clone() }, record)
    }
}

impl<S: Store> Store for Observed<S> {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let answer = self.inner.apply(batch.clone()).await;
            let seen = Seen { batch, answer: answer.clone() };
            self.record.0.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
            answer
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.inner.read(query)
    }

    fn witness(&self, witness: Arc<dyn Witness>) {
        self.inner.witness(witness);
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.inner.changes(topic)
    }
}
