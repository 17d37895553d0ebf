//! What counts calls and deliveries: a layer around the API, and a sink around a sink.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use roundtrip::outbox::{Sink, SinkError, SinkFuture};
use roundtrip::store::query::ReadyDelivery;

use super::meters::Meters;

/// Counts a call by the template of its path: what callers write must not make metrics.
pub(crate) async fn count(State(meters): State<Arc<Meters>>, request: Request, next: Next) -> Response {
    let method = match *request.method() {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    };
    let path = request.extensions().get::<MatchedPath>().cloned();
    let begun = Instant::now();
    let response = next.run(request).await;
    let path = path.as_ref().map_or("none", MatchedPath::as_str);
    meters.call(method, path, response.status().as_str(), begun.elapsed());
    response
}

/// A sink whose deliveries are counted.
pub(crate) struct Counted<S> {
    inner: S,
    destination: String,
    meters: Arc<Meters>,
}

impl<S: Sink> Counted<S> {
    pub(crate) fn new(inner: S, destination: &str, meters: Arc<Meters>) -> Counted<S> {
        Counted { inner, destination: destination.to_owned(), meters }
    }
}

impl<S: Sink> Sink for Counted<S> {
    fn deliver<'a>(&'a self, delivery: &'a ReadyDelivery) -> SinkFuture<'a> {
        Box::pin(async move {
            let begun = Instant::now();
            let delivered = self.inner.deliver(delivery).await;
            let result = match &delivered {
                Ok(()) => "delivered",
                Err(SinkError::Retry { .. }) => "failed",
                Err(SinkError::Refused(_)) => "refused",
            };
            self.meters.delivery(&self.destination, result, begun.elapsed());
            delivered
        })
    }

    fn target(&self, delivery: &ReadyDelivery) -> String {
        self.inner.target(delivery)
    }
}
