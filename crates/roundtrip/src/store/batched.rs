//! Natural batching in front of any store: while one commit is in flight, calls queue
//! up; the next commit takes all of them. No timers, so a lone caller never waits, and
//! a caller is answered only after the commit that holds its operations.
//!
//! A call is never split over two commits. A store error is told to every caller of
//! the commit that it struck; an operation that is refused is refused alone.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::op::{Op, Outcome};
use super::query::{Query, Reply};
use super::{Changes, Store, StoreError, StoreFuture, Topic, check_batch};

/// How many calls may wait before callers are held up.
const WAITING_MAX: usize = 8192;

/// How much one commit takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// At most so many operations; one call may bring more by itself.
    pub ops: usize,
    /// At most so many bytes of payload; one call may bring more by itself.
    pub bytes: usize,
}

impl Default for BatchLimits {
    fn default() -> Self {
        BatchLimits { ops: 2048, bytes: 8 << 20 }
    }
}

/// A store with natural batching in front of it. Cheap to clone; the commits end when
/// the last clone is dropped and all that was accepted is answered.
pub struct Batched<S> {
    inner: Arc<S>,
    calls: mpsc::Sender<Call>,
}

impl<S> Clone for Batched<S> {
    fn clone(&self) -> Self {
        Batched { inner: self.inner.clone(), calls: self.calls.clone() }
    }
}

struct Call {
    ops: Vec<Op>,
    bytes: usize,
    answer: oneshot::Sender<Result<Vec<Outcome>, StoreError>>,
}

impl<S: Store> Batched<S> {
    /// Puts batching in front of a store, with the usual limits. Needs a tokio runtime.
    pub fn new(inner: S) -> Batched<S> {
        Batched::with_limits(inner, BatchLimits::default())
    }

    /// Puts batching in front of a store. Needs a tokio runtime.
    pub fn with_limits(inner: S, limits: BatchLimits) -> Batched<S> {
        let inner = Arc::new(inner);
        let (calls, waiting) = mpsc::channel(WAITING_MAX);
        tokio::spawn(commit_all(inner.clone(), waiting, limits));
        Batched { inner, calls }
    }

    /// The store behind.
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

/// Commits calls as they come until every handle is gone.
async fn commit_all<S: Store>(store: Arc<S>, mut waiting: mpsc::Receiver<Call>, limits: BatchLimits) {
    let mut held_back: Option<Call> = None;
    loop {
        let first = match held_back.take() {
            Some(call) => call,
            None => match waiting.recv().await {
                Some(call) => call,
                None => return,
            },
        };
        let mut answers = vec![(first.ops.len(), first.answer)];
        let (mut batch, mut bytes) = (first.ops, first.bytes);
        while let Ok(call) = waiting.try_recv() {
            if batch.len() + call.ops.len() > limits.ops || bytes + call.bytes > limits.bytes {
                held_back = Some(call);
                break;
            }
            bytes += call.bytes;
            answers.push((call.ops.len(), call.answer));
            batch.extend(call.ops);
        }
        match store.apply(batch).await {
            Ok(outcomes) => {
                let mut outcomes = outcomes.into_iter();
                for (count, answer) in answers {
                    // A caller that went away has given up its answer; the commit stands.
                    let _gone = answer.send(Ok(outcomes.by_ref().take(count).collect()));
                }
            }
            Err(error) => {
                for (_, answer) in answers {
                    let _gone = answer.send(Err(error.clone()));
                }
            }
        }
    }
}

impl<S: Store> Store for Batched<S> {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let bytes = check_batch(&batch)?;
            let (answer, answered) = oneshot::channel();
            let call = Call { ops: batch, bytes, answer };
            self.calls.send(call).await.map_err(|_closed| StoreError::Closed)?;
            answered.await.map_err(|_lost| StoreError::Unknown)?
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.inner.read(query)
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.inner.changes(topic)
    }
}
