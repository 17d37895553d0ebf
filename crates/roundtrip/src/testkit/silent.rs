//! A store that gives no hints.

use std::sync::Arc;

use crate::store::op::{Op, Outcome};
use crate::store::query::{Query, Reply};
use crate::store::witness::Witness;
use crate::store::{Changes, Hints, Store, StoreFuture, Topic};

/// A store that never tells that anything changed, as if every hint were lost on its way: whoever
/// relies on one waits for ever.
pub struct Silent<S> {
    inner: S,
    /// Followed by all, and told nothing.
    hints: Hints,
}

impl<S> Silent<S> {
    /// The same store, without its hints.
    pub fn new(inner: S) -> Silent<S> {
        Silent { inner, hints: Hints::default() }
    }
}

impl<S: Store> Store for Silent<S> {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        self.inner.apply(batch)
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.inner.read(query)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.close()
    }

    fn witness(&self, witness: Arc<dyn Witness>) {
        self.inner.witness(witness);
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.hints.follow(topic)
    }
}
