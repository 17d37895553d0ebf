//! What answers requests: a [`Handler`] with types, a [`RawHandler`] on bytes, or a closure.

use std::error::Error;
use std::fmt::{self, Display};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Job;
use crate::store::op::{Gather, NewRequest};
use crate::words::{Encoding, ErrorClass, Payload};

/// Answers the requests of a route, as types that serde knows; on the wire they are JSON.
///
/// A handler runs at least once for each request: a crash, a lost lease or a failure
/// runs it again. What it does outside should carry [`Job::key`] or the request's id.
/// A request that does not decode is a dead letter with the reason, and costs nobody else.
///
/// ```
/// use roundtrip::worker::{Failure, Handled, Handler, Job};
///
/// struct Square;
///
/// impl Handler for Square {
///     type Request = u64;
///     type Response = u64;
///
///     async fn handle(&self, n: u64, _job: Job) -> Result<Handled<u64>, Failure> {
///         let square = n.checked_mul(n).ok_or_else(|| Failure::fatal("the square does not fit"))?;
///         Ok(square.into())
///     }
/// }
/// ```
pub trait Handler: Send + Sync + 'static {
    /// What is asked.
    type Request: DeserializeOwned + Send;
    /// What is answered.
    type Response: Serialize + Send;

    /// Works on one request.
    fn handle(
        &self,
        request: Self::Request,
        job: Job,
    ) -> impl Future<Output = Result<Handled<Self::Response>, Failure>> + Send;
}

/// The future of a [`RawHandler`].
pub type HandlerFuture<'a> = Pin<Box<dyn Future<Output = Result<Handled<Payload>, Failure>> + Send + 'a>>;

/// Answers the requests of a route, as bytes.
pub trait RawHandler: Send + Sync + 'static {
    /// Works on one request.
    fn handle(&self, payload: Payload, job: Job) -> HandlerFuture<'_>;
}

/// What became of a request that the handler did not fail on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handled<R> {
    /// It is answered.
    Done(Done<R>),
    /// Not now: it comes back after this time, at no cost.
    Snooze(Duration),
    /// It ends here, without an answer.
    Cancel {
        /// Why, for the person who reads it.
        reason: String,
        /// What to publish; without it the request is a dead letter.
        response: Option<Payload>,
    },
    /// It was done before, and what came of it is not known here: it ends well, without an answer.
    Elsewhere {
        /// How that is known, for the person who reads its timeline.
        reason: String,
    },
}

impl<R> Handled<R> {
    /// The request ends as a dead letter with this reason.
    pub fn cancel(reason: impl Into<String>) -> Handled<R> {
        Handled::Cancel { reason: reason.into(), response: None }
    }
}

impl<R> From<R> for Handled<R> {
    fn from(response: R) -> Handled<R> {
        Handled::Done(Done::new(response))
    }
}

/// A response, and what follows from it; all of it is stored in one commit, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done<R> {
    /// The response.
    pub response: R,
    /// Requests that follow from it.
    pub follow_ups: Vec<NewRequest>,
    /// Items that join groups.
    pub items: Vec<Gather>,
}

impl<R> Done<R> {
    /// A response that nothing follows from.
    pub fn new(response: R) -> Done<R> {
        Done { response, follow_ups: Vec::new(), items: Vec::new() }
    }

    /// And this request comes in.
    #[must_use]
    pub fn then(mut self, request: NewRequest) -> Done<R> {
        self.follow_ups.push(request);
        self
    }

    /// And this item joins its group.
    #[must_use]
    pub fn gather(mut self, item: Gather) -> Done<R> {
        self.items.push(item);
        self
    }
}

impl<R> From<Done<R>> for Handled<R> {
    fn from(done: Done<R>) -> Handled<R> {
        Handled::Done(done)
    }
}

/// Why a handler could not answer.
///
/// Every error converts into one that is tried again, so `?` does what is usually meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub(crate) class: ErrorClass,
    pub(crate) text: String,
    pub(crate) after: Option<Duration>,
    pub(crate) response: Option<Payload>,
}

impl Failure {
    fn new(class: ErrorClass, text: impl Display) -> Failure {
        Failure { class, text: text.to_string(), after: None, response: None }
    }

    /// The work failed and may succeed later; costs an attempt.
    pub fn retry(text: impl Display) -> Failure {
        Failure::new(ErrorClass::Retryable, text)
    }

    /// The work will never succeed: a dead letter, or the failure response if one is given.
    pub fn fatal(text: impl Display) -> Failure {
        Failure::new(ErrorClass::Fatal, text)
    }

    /// What the work depends on could not be reached; costs no attempt.
    pub fn transport(text: impl Display) -> Failure {
        Failure::new(ErrorClass::Transport, text)
    }

    /// Not again before so long, whatever the route's backoff says; a fatal failure is
    /// never tried again.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Failure {
        self.after = Some(delay);
        self
    }

    /// Publishes this if the failure is fatal.
    #[must_use]
    pub fn with_response(mut self, response: Payload) -> Failure {
        self.response = Some(response);
        self
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An error and what it says caused it.
impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Failure::retry(text)
    }
}

/// A [`Handler`] as a [`RawHandler`]: JSON in, JSON out.
pub struct Typed<H>(pub H);

impl<H: Handler> RawHandler for Typed<H> {
    fn handle(&self, payload: Payload, job: Job) -> HandlerFuture<'_> {
        Box::pin(async move {
            let request = decode(&payload)?;
            Ok(match self.0.handle(request, job).await? {
                Handled::Done(Done { response, follow_ups, items }) => {
                    Handled::Done(Done { response: encode(&response)?, follow_ups, items })
                }
                Handled::Snooze(delay) => Handled::Snooze(delay),
                Handled::Cancel { reason, response } => Handled::Cancel { reason, response },
                Handled::Elsewhere { reason } => Handled::Elsewhere { reason },
            })
        })
    }
}

fn decode<T: DeserializeOwned>(payload: &Payload) -> Result<T, Failure> {
    if payload.encoding != Encoding::Json {
        let text = format!("the request is {:?}, and its handler reads Json", payload.encoding);
        return Err(Failure::fatal(text));
    }
    serde_json::from_slice(&payload.bytes)
        .map_err(|error| Failure::fatal(format!("the request does not decode: {error}")))
}

fn encode<T: Serialize>(response: &T) -> Result<Payload, Failure> {
    let bytes = serde_json::to_vec(response);
    bytes.map(Payload::json).map_err(|error| Failure::fatal(format!("the response does not encode: {error}")))
}

/// What a closure may answer with: a response, or a [`Handled`] of one.
pub trait IntoHandled {
    /// The response.
    type Response: Serialize + Send;

    /// As what became of the request.
    fn into_handled(self) -> Handled<Self::Response>;
}

impl<R: Serialize + Send> IntoHandled for R {
    type Response = R;

    fn into_handled(self) -> Handled<R> {
        self.into()
    }
}

impl<R: Serialize + Send> IntoHandled for Handled<R> {
    type Response = R;

    fn into_handled(self) -> Handled<R> {
        self
    }
}

impl<R: Serialize + Send> IntoHandled for Done<R> {
    type Response = R;

    fn into_handled(self) -> Handled<R> {
        self.into()
    }
}

/// A [`Handler`] that is a closure; see [`handler_fn`].
pub struct HandlerFn<F, Q> {
    work: F,
    takes: PhantomData<fn(Q)>,
}

/// A closure as a [`Handler`]. It answers with a response, a [`Done`] or a [`Handled`].
///
/// ```
/// use roundtrip::worker::{handler_fn, Failure};
///
/// let parse = handler_fn(|text: String, _job| async move {
///     let n: u64 = text.parse()?;
///     if n == 0 {
///         return Err(Failure::fatal("nothing to invert"));
///     }
///     Ok(1.0 / n as f64)
/// });
/// # let _ = parse;
/// ```
pub fn handler_fn<F, Q, T, W>(work: F) -> HandlerFn<F, Q>
where
    F: Fn(Q, Job) -> W + Send + Sync + 'static,
    Q: DeserializeOwned + Send + 'static,
    W: Future<Output = Result<T, Failure>> + Send,
    T: IntoHandled,
{
    HandlerFn { work, takes: PhantomData }
}

impl<F, Q, T, W> Handler for HandlerFn<F, Q>
where
    F: Fn(Q, Job) -> W + Send + Sync + 'static,
    Q: DeserializeOwned + Send + 'static,
    W: Future<Output = Result<T, Failure>> + Send,
    T: IntoHandled,
{
    type Request = Q;
    type Response = T::Response;

    async fn handle(&self, request: Q, job: Job) -> Result<Handled<T::Response>, Failure> {
        Ok((self.work)(request, job).await?.into_handled())
    }
}

/// A [`RawHandler`] that is a closure; see [`raw_handler_fn`].
pub struct RawHandlerFn<F>(F);

/// A closure on bytes as a [`RawHandler`].
pub fn raw_handler_fn<F, W>(work: F) -> RawHandlerFn<F>
where
    F: Fn(Payload, Job) -> W + Send + Sync + 'static,
    W: Future<Output = Result<Handled<Payload>, Failure>> + Send + 'static,
{
    RawHandlerFn(work)
}

impl<F, W> RawHandler for RawHandlerFn<F>
where
    F: Fn(Payload, Job) -> W + Send + Sync + 'static,
    W: Future<Output = Result<Handled<Payload>, Failure>> + Send + 'static,
{
    fn handle(&self, payload: Payload, job: Job) -> HandlerFuture<'_> {
        Box::pin((self.0)(payload, job))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::worker::job::{Desk, tests::grant};

    fn job() -> Job {
        Desk::open(&grant(1)).1
    }

    async fn ask(handler: impl Handler, payload: Payload) -> Result<Handled<Payload>, Failure> {
        Typed(handler).handle(payload, job()).await
    }

    fn half() -> impl Handler {
        handler_fn(|n: u64, _job| async move {
            Ok(match n {
                0 => Handled::Snooze(Duration::from_secs(1)),
                n if n % 2 == 0 => (n / 2).into(),
                _ => Handled::cancel("odd"),
            })
        })
    }

    #[tokio::test]
    async fn types_are_json_on_the_wire() {
        let answered = Handled::from(Payload::json("21"));
        assert_eq!(ask(half(), Payload::json("42")).await, Ok(answered));
        assert_eq!(ask(half(), Payload::json("0")).await, Ok(Handled::Snooze(Duration::from_secs(1))));
        assert_eq!(ask(half(), Payload::json("1")).await, Ok(Handled::cancel("odd")));
    }

    #[tokio::test]
    async fn what_does_not_decode_is_fatal_with_the_reason() {
        let failure = ask(half(), Payload::json("{}")).await.unwrap_err();
        assert_eq!(failure.class, ErrorClass::Fatal);
        assert!(failure.text.starts_with("the request does not decode: invalid type: map"), "{failure}");
        let failure = ask(half(), Payload::raw("42")).await.unwrap_err();
        assert_eq!(failure, Failure::fatal("the request is Raw, and its handler reads Json"));
    }

    #[tokio::test]
    async fn what_does_not_encode_is_fatal_with_the_reason() {
        let pairs = handler_fn(|(): (), _job| async move { Ok(std::collections::BTreeMap::from([((1, 2), 3)])) });
        let failure = ask(pairs, Payload::json("null")).await.unwrap_err();
        assert_eq!(failure, Failure::fatal("the response does not encode: key must be a string"));
    }

    #[test]
    fn any_error_is_a_failure_that_is_tried_again() {
        fn parse() -> Result<u64, Failure> {
            Ok("x".parse::<u64>()?)
        }
        assert_eq!(parse().unwrap_err(), Failure::retry("invalid digit found in string"));

        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] std::num::ParseIntError);
        let inner = "x".parse::<u64>().unwrap_err();
        assert_eq!(Failure::from(Outer(inner)).text, "outer: invalid digit found in string");
    }
}
