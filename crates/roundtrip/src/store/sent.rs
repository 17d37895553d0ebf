//! Calls that are on their way while the next is prepared.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// A call that is sent, since it was polled once; its answer is waited for later.
pub(super) enum Sent<'a, T> {
    Waiting(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
    Answered(T),
}

impl<'a, T> Sent<'a, T> {
    /// Sends a call.
    pub(super) async fn now(call: impl Future<Output = T> + Send + 'a) -> Sent<'a, T> {
        // However much this task has done, the first poll must not be put off.
        let mut call = Box::pin(tokio::task::unconstrained(call));
        match poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await {
            Poll::Ready(answer) => Sent::Answered(answer),
            Poll::Pending => Sent::Waiting(call),
        }
    }

    /// Waits for the answer.
    pub(super) async fn land(self) -> T {
        match self {
            Sent::Waiting(call) => call.await,
            Sent::Answered(answer) => answer,
        }
    }
}
