//! A store whose commits wait until the test lets them go.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use crate::store::op::{Op, Outcome};
use crate::store::query::{Query, Reply};
use crate::store::witness::Witness;
use crate::store::{Changes, Store, StoreFuture, Topic};

/// A store that holds every `apply` at a gate. Reads pass.
pub struct Slow<S> {
    inner: S,
    gate: Gate,
    at_a_time: usize,
}

/// The test's side of a [`Slow`] store.
#[derive(Clone)]
pub struct Gate {
    passes: Arc<Semaphore>,
    arrived: Arc<watch::Sender<usize>>,
}

impl Gate {
    /// Lets so many calls pass, those that wait and those to come.
    pub fn let_through(&self, calls: usize) {
        self.passes.add_permits(calls);
    }

    /// Waits until so many calls, since the start, have come to the gate.
    pub async fn arrived(&self, calls: usize) {
        let mut arrived = self.arrived.subscribe();
        // The gate itself holds the sender, so the wait cannot end in an error.
        let _reached = arrived.wait_for(|count| *count >= calls).await;
    }
}

impl<S> Slow<S> {
    /// A store with a shut gate, and what opens it.
    pub fn new(inner: S) -> (Slow<S>, Gate) {
        let gate = Gate { passes: Arc::new(Semaphore::new(0)), arrived: Arc::new(watch::channel(0).0) };
        (Slow { inner, gate: gate.clone(), at_a_time: 1 }, gate)
    }

    /// The same, as one that takes so many batches before it has answered the first.
    #[must_use]
    pub fn taking(self, at_a_time: usize) -> Slow<S> {
        Slow { at_a_time, ..self }
    }
}

impl<S: Store> Store for Slow<S> {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            self.gate.arrived.send_modify(|count| *count += 1);
            // The semaphore is never closed.
            if let Ok(pass) = self.gate.passes.acquire().await {
                pass.forget();
            }
            self.inner.apply(batch).await
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

    fn batches_under_way(&self) -> usize {
        self.at_a_time
    }
}
