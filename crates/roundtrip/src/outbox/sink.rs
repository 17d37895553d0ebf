//! Where answers go when no lane takes them: the seam, and sinks within the process.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::store::query::ReadyDelivery;

/// A delivery under way.
pub type SinkFuture<'a> = Pin<Box<dyn Future<Output = Result<(), SinkError>> + Send + 'a>>;

/// Why a delivery was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// It may succeed later; it is tried until it does.
    #[error("{error}")]
    Retry {
        /// Not before so long, if the receiver said so.
        after: Option<Duration>,
        /// What went wrong, for the person who reads it; without payload or secret.
        error: String,
    },
    /// It will never be taken: a dead letter that keeps its answer.
    #[error("{0}")]
    Refused(String),
}

impl SinkError {
    /// May succeed later.
    pub fn retry(error: impl Into<String>) -> SinkError {
        SinkError::Retry { after: None, error: error.into() }
    }
}

/// Takes answers. `Ok` means that the answer is where it was wanted and stays there.
///
/// A delivery may be made again, after a crash or a lost answer: a sink passes the request's
/// id, generation and revision on, so that the receiver can tell.
pub trait Sink: Send + Sync + 'static {
    /// Makes one delivery. Dropping the future gives it up.
    fn deliver<'a>(&'a self, delivery: &'a ReadyDelivery) -> SinkFuture<'a>;

    /// Whether it passes [`ReadyDelivery::trace`] on, which costs a read for each delivery.
    fn wants_trace(&self) -> bool {
        false
    }

    /// For whom it is. Deliveries for one target are made one after the other, in the order
    /// of admission, and a target that fails holds up nobody else. The name is shown in logs.
    fn target(&self, delivery: &ReadyDelivery) -> String;
}

/// A sink that is an asynchronous function, for one target.
pub struct CallSink<F>(F);

impl<F, R> CallSink<F>
where
    F: Fn(ReadyDelivery) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), SinkError>> + Send + 'static,
{
    /// Calls this for each delivery.
    pub fn new(call: F) -> CallSink<F> {
        CallSink(call)
    }
}

impl<F, R> Sink for CallSink<F>
where
    F: Fn(ReadyDelivery) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), SinkError>> + Send + 'static,
{
    fn deliver<'a>(&'a self, delivery: &'a ReadyDelivery) -> SinkFuture<'a> {
        Box::pin((self.0)(delivery.clone()))
    }

    fn target(&self, _delivery: &ReadyDelivery) -> String {
        "call".into()
    }
}

/// A delivery handed to somebody in this process.
#[derive(Debug)]
pub struct Handed {
    /// What is delivered.
    pub delivery: ReadyDelivery,
    taken: oneshot::Sender<()>,
}

impl Handed {
    /// It is where it was wanted. Dropping it instead makes it come again.
    pub fn taken(self) {
        // A courier that is gone delivers it again under the same id.
        let _gone = self.taken.send(());
    }
}

/// A sink within the process: a bounded channel whose receiver says when it has taken a
/// delivery, for one target.
pub struct ChannelSink(mpsc::Sender<Handed>);

impl ChannelSink {
    /// A sink, and where its deliveries come out; so many wait in between.
    pub fn new(capacity: usize) -> (ChannelSink, mpsc::Receiver<Handed>) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        (ChannelSink(sender), receiver)
    }
}

impl Sink for ChannelSink {
    fn deliver<'a>(&'a self, delivery: &'a ReadyDelivery) -> SinkFuture<'a> {
        Box::pin(async move {
            let (taken, answer) = oneshot::channel();
            let handed = Handed { delivery: delivery.clone(), taken };
            self.0.send(handed).await.map_err(|_gone| SinkError::retry("nobody receives from the channel"))?;
            answer.await.map_err(|_dropped| SinkError::retry("the receiver dropped the delivery"))
        })
    }

    fn target(&self, _delivery: &ReadyDelivery) -> String {
        "channel".into()
    }
}
