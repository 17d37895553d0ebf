//! Webhooks, signed by the Standard Webhooks specification: a POST of the response with
//! `webhook-id`, `webhook-timestamp` and `webhook-signature`, and with the `traceparent` that the request came with.
//!
//! The id names the request, its generation and its revision, so every repeat of a delivery
//! carries the same one, and a receiver that remembers ids handles each answer once.
//!
//! Failure modes: a time-out, a broken connection, a redirect (none is followed) and every
//! status without a meaning here may have been a delivery and may not; it is made again. What
//! a status means is `judge`'s to say. A receiver's clock that is off by more than its
//! tolerance refuses what it should take.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, USER_AGENT};
use hyper::{Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::sink::{Sink, SinkError, SinkFuture};
use crate::calling::{SECRET_BYTES_MIN, SigningKey, cause, retry_after};
use crate::clock::Clock;
use crate::station::StationError;
use crate::store::query::ReadyDelivery;
use crate::trace::TraceContext;
use crate::words::{Encoding, UnixMs};

/// Why an endpoint cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEndpoint {
    /// Not a URL that can be called.
    #[error("the URL of {name} cannot be called: use http:// or https:// with a host")]
    Url {
        /// Which endpoint.
        name: String,
    },
    /// Not a secret.
    #[error("the secret of {name} is none: use whsec_ and base64 of at least {SECRET_BYTES_MIN} bytes")]
    Secret {
        /// Which endpoint.
        name: String,
    },
}

/// Where webhooks go. `Debug` shows the name alone: URLs and secrets never reach a log line.
#[derive(Clone)]
pub struct Endpoint {
    name: String,
    url: Uri,
    key: SigningKey,
}

impl Endpoint {
    /// An endpoint by a name for people, its URL, and the secret that signs for it, as
    /// `whsec_` and base64.
    pub fn new(name: &str, url: &str, secret: &str) -> Result<Endpoint, BadEndpoint> {
        let bad_url = || BadEndpoint::Url { name: name.to_owned() };
        let url: Uri = url.parse().map_err(|_invalid| bad_url())?;
        if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none() {
            return Err(bad_url());
        }
        let key = SigningKey::read(secret).map_err(|_bad| BadEndpoint::Secret { name: name.to_owned() })?;
        Ok(Endpoint { name: name.to_owned(), url, key })
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.name)
    }
}

/// Says where an answer goes; without a place to go it is refused.
pub type Endpoints = Arc<dyn Fn(&ReadyDelivery) -> Option<Arc<Endpoint>> + Send + Sync>;

/// How webhooks are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookOptions {
    /// How long a receiver has to answer.
    pub timeout: Duration,
    /// How much of its answer is read; nobody looks at it, but a connection whose answer was
    /// read can be used again.
    pub answer_bytes_max: usize,
}

impl Default for WebhookOptions {
    fn default() -> Self {
        WebhookOptions { timeout: Duration::from_secs(15), answer_bytes_max: 16 << 10 }
    }
}

/// A sink that sends webhooks; each endpoint is a target.
pub struct WebhookSink {
    endpoints: Endpoints,
    clock: Arc<dyn Clock>,
    options: WebhookOptions,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl WebhookSink {
    /// Sends to these endpoints; the clock is what receivers hold timestamps against. TLS
    /// trusts the web's root certificates.
    pub fn new(
        endpoints: Endpoints,
        clock: Arc<dyn Clock>,
        options: WebhookOptions,
    ) -> Result<WebhookSink, StationError> {
        let tls = HttpsConnectorBuilder::new().with_provider_and_webpki_roots(rustls::crypto::ring::default_provider());
        let tls = tls.map_err(|error| StationError::Broken(format!("TLS cannot be set up: {error}")))?;
        let connector = tls.https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Ok(WebhookSink { endpoints, clock, options, client })
    }

    async fn send(&self, endpoint: &Endpoint, delivery: &ReadyDelivery) -> Result<(), SinkError> {
        let request = request(endpoint, delivery, self.clock.now())?;
        let call = async {
            let answer = self.client.request(request).await.map_err(|error| SinkError::retry(cause(&error)))?;
            let (status, after) = (answer.status().as_u16(), retry_after(answer.headers(), self.clock.now()));
            self.read(answer).await;
            judge(status, after)
        };
        let late = || SinkError::retry(format!("no answer within {} ms", self.options.timeout.as_millis()));
        tokio::time::timeout(self.options.timeout, call).await.map_err(|_elapsed| late())?
    }

    async fn read(&self, answer: Response<hyper::body::Incoming>) {
        // A longer answer costs the connection, and changes nothing.
        let _unread = Limited::new(answer.into_body(), self.options.answer_bytes_max).collect().await;
    }
}

impl Sink for WebhookSink {
    fn deliver<'a>(&'a self, delivery: &'a ReadyDelivery) -> SinkFuture<'a> {
        Box::pin(async move {
            let Some(endpoint) = (self.endpoints)(delivery) else {
                return Err(SinkError::Refused(format!("route {} has no endpoint for this answer", delivery.route)));
            };
            self.send(&endpoint, delivery).await
        })
    }

    fn wants_trace(&self) -> bool {
        true
    }

    fn target(&self, delivery: &ReadyDelivery) -> String {
        (self.endpoints)(delivery).map(|endpoint| endpoint.name.clone()).unwrap_or_default()
    }
}

/// The same for every repeat of a delivery, and for no other.
fn webhook_id(delivery: &ReadyDelivery) -> String {
    format!("msg_{}_{}_{}", delivery.id, delivery.generation, delivery.revision)
}

fn request(endpoint: &Endpoint, delivery: &ReadyDelivery, now: UnixMs) -> Result<Request<Full<Bytes>>, SinkError> {
    let (id, timestamp, body) = (webhook_id(delivery), now.0 / 1000, delivery.response.bytes.clone());
    let signature = endpoint.key.sign(&id, timestamp, &body);
    let traced = delivery.trace.as_deref().filter(|trace| TraceContext::parse(trace).is_some());
    let post = Request::post(endpoint.url.clone());
    let post = traced.into_iter().fold(post, |post, trace| post.header("traceparent", trace));
    post.header(CONTENT_TYPE, content_type(delivery.response.encoding))
        .header(USER_AGENT, concat!("roundtrip/", env!("CARGO_PKG_VERSION")))
        .header("webhook-id", id)
        .header("webhook-timestamp", timestamp)
        .header("webhook-signature", signature)
        .body(Full::new(body))
        .map_err(|error| SinkError::Refused(format!("no request can be made of it: {error}")))
}

fn content_type(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Raw => "application/octet-stream",
        Encoding::Json => "application/json",
        Encoding::Cbor => "application/cbor",
        Encoding::Protobuf => "application/x-protobuf",
    }
}

/// What a status says of a delivery.
fn judge(status: u16, after: Option<Duration>) -> Result<(), SinkError> {
    let error = || format!("the receiver answered {status}");
    match status {
        // 409: it has this id already.
        200..=299 | 409 => Ok(()),
        429 | 503 => Err(SinkError::Retry { after, error: error() }),
        408 | 425 => Err(SinkError::retry(error())),
        // The receiver is not set up, or not any longer: that is no fault of the message, and a
        // bad deploy must not turn all that waits for it into dead letters.
        401 | 403..=405 | 407 => Err(SinkError::retry(error())),
        400..=499 => Err(SinkError::Refused(error())),
        _ => Err(SinkError::retry(error())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::words::{Payload, RequestId, RouteName, Seq, Token};

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn delivery(generation: u32, revision: u16) -> ReadyDelivery {
        ReadyDelivery {
            id: RequestId([0xAB; 32]),
            seq: Seq(1),
            route: RouteName::new("route").unwrap(),
            generation,
            revision,
            answer: Token { epoch: 1, count: 1 },
            response: Payload::json("{}"),
            failure: false,
            failures: 0,
            request: None,
            trace: None,
        }
    }

    #[test]
    fn ids_tell_answers_apart_and_nothing_else() {
        assert_eq!(webhook_id(&delivery(0, 0)), format!("msg_{}_0_0", "ab".repeat(32)));
        let again = ReadyDelivery { seq: Seq(9), answer: Token { epoch: 2, count: 2 }, ..delivery(0, 0) };
        assert_eq!(webhook_id(&again), webhook_id(&delivery(0, 0)));
        assert_ne!(webhook_id(&delivery(1, 0)), webhook_id(&delivery(0, 0)));
        assert_ne!(webhook_id(&delivery(0, 1)), webhook_id(&delivery(0, 0)));
    }

    #[test]
    fn the_receiver_is_told_of_the_trace_if_there_is_one() {
        let endpoint = Endpoint::new("hook", "https://example.com/hook", SECRET).unwrap();
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let told = |trace: Option<&str>| {
            let delivery = ReadyDelivery { trace: trace.map(Box::from), ..delivery(0, 0) };
            let request = request(&endpoint, &delivery, UnixMs(0)).unwrap();
            request.headers().get("traceparent").map(|trace| trace.to_str().unwrap().to_owned())
        };
        assert_eq!(told(Some(given)).as_deref(), Some(given));
        assert_eq!((told(None), told(Some("no\ncontext"))), (None, None));
    }

    #[test]
    fn endpoints_are_checked_and_keep_their_secret() {
        let url = |url| Endpoint::new("hook", url, SECRET);
        assert_eq!(format!("{:?}", url("https://user:word@example.com/?key=1").unwrap()), "Endpoint(hook)");
        for bad in ["", "example.com", "/hook", "ftp://example.com", "https://"] {
            assert_eq!(url(bad).unwrap_err(), BadEndpoint::Url { name: "hook".into() }, "{bad}");
        }
        for bad in ["", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_", "whsec_c2hvcnQ=", "whsec_%"] {
            let refused = Endpoint::new("hook", "http://localhost", bad).unwrap_err();
            assert_eq!(refused, BadEndpoint::Secret { name: "hook".into() }, "{bad}");
        }
    }

    #[test]
    fn what_a_status_means() {
        let asked = Some(Duration::from_secs(7));
        let retry =
            |status: u16, after| Err(SinkError::Retry { after, error: format!("the receiver answered {status}") });
        let refused = |status: u16| Err(SinkError::Refused(format!("the receiver answered {status}")));
        for status in [200, 201, 202, 204, 299, 409] {
            assert_eq!(judge(status, asked), Ok(()), "{status}");
        }
        for status in [400, 402, 406, 410, 413, 422, 451, 499] {
            assert_eq!(judge(status, asked), refused(status), "{status}");
        }
        for status in [429, 503] {
            assert_eq!(judge(status, asked), retry(status, asked), "{status}");
        }
        for status in [301, 302, 307, 308, 304, 401, 403, 404, 405, 407, 408, 425, 500, 502, 504, 599] {
            assert_eq!(judge(status, asked), retry(status, None), "{status}");
        }
    }
}
