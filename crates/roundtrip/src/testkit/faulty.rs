//! A store that loses an answer at a chosen call.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::store::op::{Op, Outcome};
use crate::store::query::{Query, Reply};
use crate::store::{Changes, Store, StoreError, StoreFuture, Topic};

/// On which side of the commit the answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The batch never reached the store.
    Before,
    /// The batch is in the store, and nobody was told.
    After,
}

/// A store whose `apply` number `call`, counted from 0, answers [`StoreError::Unknown`].
pub struct Faulty<S> {
    inner: S,
    cut: Cut,
    call: usize,
    calls: AtomicUsize,
}

impl<S> Faulty<S> {
    /// Cuts this call; a call that never comes makes a store without faults.
    pub fn new(inner: S, cut: Cut, call: usize) -> Faulty<S> {
        Faulty { inner, cut, call, calls: AtomicUsize::new(0) }
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
            match self.cut {
                Cut::Before if call == self.call => Err(StoreError::Unknown),
                Cut::After if call == self.call => {
                    self.inner.apply(batch).await?;
                    Err(StoreError::Unknown)
                }
                _ => self.inner.apply(batch).await,
            }
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.inner.read(query)
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.inner.changes(topic)
    }
}
