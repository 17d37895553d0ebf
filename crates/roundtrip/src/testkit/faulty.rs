//! A store that fails at chosen calls.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::store::op::{Op, Outcome};
use crate::store::query::{Query, Reply};
use crate::store::witness::Witness;
use crate::store::{Changes, Store, StoreError, StoreFuture, Topic};

/// On which side of the commit the answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The batch never reached the store.
    Before,
    /// The batch is in the store, and nobody was told.
    After,
}

/// A store whose `apply` fails at chosen calls, counted from 0.
pub struct Faulty<S> {
    inner: S,
    cut: Cut,
    struck: Range<usize>,
    error: StoreError,
    calls: AtomicUsize,
}

impl<S> Faulty<S> {
    /// Answers this call with [`StoreError::Unknown`]; a call that never comes makes a
    /// store without faults.
    pub fn new(inner: S, cut: Cut, call: usize) -> Faulty<S> {
        Faulty::with_error(inner, cut, call..call.saturating_add(1), StoreError::Unknown)
    }

    /// Answers these calls with this error.
    pub fn with_error(inner: S, cut: Cut, calls: Range<usize>, error: StoreError) -> Faulty<S> {
        Faulty { inner, cut, struck: calls, error, calls: AtomicUsize::new(0) }
    }

    /// How many calls of `apply` there were.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl<S: Store> Store for Faulty<S> {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let call = self.calls.fetch_add(1, Ordering::SeqCst);
            if !self.struck.contains(&call) {
                return self.inner.apply(batch).await;
            }
            if self.cut == Cut::After {
                self.inner.apply(batch).await?;
            }
            Err(self.error.clone())
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
