//! What observes calls and deliveries: a layer around the API, and a sink around a sink.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use roundtrip::outbox::{Sink, SinkError, SinkFuture};
use roundtrip::store::query::ReadyDelivery;

use super::meters::Meters;
use super::spans::Delivery;
use super::{Inner, Telemetry};

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

/// A sink whose deliveries are counted, and part of their requests' traces.
pub(crate) struct Observed<S> {
    inner: S,
    destination: String,
    telemetry: Telemetry,
}

impl<S: Sink> Observed<S> {
    pub(crate) fn new(inner: S, destination: &str, telemetry: &Telemetry) -> Observed<S> {
        Observed { inner, destination: destination.to_owned(), telemetry: telemetry.clone() }
    }

    async fn delivered(&self, delivery: &ReadyDelivery) -> Result<(), SinkError> {
        let Inner { meters, traces, clock, .. } = &*self.telemetry.0;
        let (ReadyDelivery { id, generation, route, .. }, from, begun) = (delivery, clock.now(), Instant::now());
        let delivered = match traces {
            Some(traces) => {
                let context = traces.handed_on(*id, *generation, delivery.trace.as_deref());
                let trace = Some(context.to_string().into());
                self.inner.deliver(&ReadyDelivery { trace, ..delivery.clone() }).await
            }
            None => self.inner.deliver(delivery).await,
        };
        let result = match &delivered {
            Ok(()) => "delivered",
            Err(SinkError::Retry { .. }) => "failed",
            Err(SinkError::Refused(_)) => "refused",
        };
        meters.delivery(&self.destination, result, begun.elapsed());
        if let Some(traces) = traces {
            let (id, generation, destination, to) = (*id, *generation, self.destination.as_str(), clock.now());
            traces.delivery(&Delivery { id, generation, route, destination, result, from, to });
        }
        delivered
    }
}

impl<S: Sink> Sink for Observed<S> {
    fn deliver<'a>(&'a self, delivery: &'a ReadyDelivery) -> SinkFuture<'a> {
        Box::pin(self.delivered(delivery))
    }

    fn wants_trace(&self) -> bool {
        self.inner.wants_trace() || self.telemetry.0.traces.is_some()
    }

    fn target(&self, delivery: &ReadyDelivery) -> String {
        self.inner.target(delivery)
    }
}
