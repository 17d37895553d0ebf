//! Callers are heard out, as far as that is little, before they are refused.
//!
//! ```text
//!   body ──▶ lent to the call ──▶ dropped unread: it comes back ──▶ its rest is read and forgotten ──▶ the refusal goes
//! ```
//!
//! Some clients over HTTP/2, such as curl 7.88, take an answer that comes before they have said all for a broken
//! stream, and show no word of it. Failure modes: whoever says too much, or too slowly, is answered while it speaks.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::oneshot;

/// How much is heard of whoever is refused for what it is, in bytes.
const HEARD_BYTES_MAX: usize = 64 << 10;
/// How many times what a body may have is heard of whoever is refused for having more.
const HEARD_TOO_LARGE: usize = 4;
/// For how long a caller is heard.
const HEARD_WITHIN: Duration = Duration::from_secs(2);

/// Answers a call; before a refusal goes out, the rest of what the caller says is heard.
pub(super) async fn heard_out(State(body_bytes_max): State<usize>, request: Request, next: Next) -> Response {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    // A stream does not come to its end before it is answered.
    let is_stream = kind.is_some_and(|kind| kind.starts_with("application/grpc"));
    if request.version() != Version::HTTP_2 || is_stream {
        return next.run(request).await;
    }
    let (back, mut returned) = oneshot::channel();
    let response = next.run(request.map(|body| Body::new(Lent { body, back: Some(back) }))).await;
    // What is still being read is nobody else's to read.
    if let Ok(rest) = returned.try_recv()
        && !response.status().is_success()
    {
        let most = match response.status() {
            StatusCode::PAYLOAD_TOO_LARGE => body_bytes_max.saturating_mul(HEARD_TOO_LARGE),
            _ => HEARD_BYTES_MAX,
        };
        // Whoever did not come to an end by then is answered nevertheless.
        let _late = tokio::time::timeout(HEARD_WITHIN, forget(rest, most)).await;
    }
    response
}

/// Reads so much of a body at the most, and keeps nothing of it.
async fn forget(mut body: Body, most: usize) {
    let mut heard = 0;
    while heard < most
        && let Some(Ok(frame)) = body.frame().await
    {
        heard += frame.data_ref().map_or(0, Bytes::len);
    }
}

/// A body that comes back when whoever has it lets it go.
struct Lent {
    body: Body,
    back: Option<oneshot::Sender<Body>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(back) = self.back.take() {
            // Nobody wants it where the call itself was dropped.
            let _unwanted = back.send(std::mem::take(&mut self.body));
        }
    }
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::extract::DefaultBodyLimit;
    use axum::middleware::from_fn_with_state;
    use axum::routing::post;
    use tower_service::Service;

    use super::*;

    const LIMIT: usize = 10_000;
    const PIECE: usize = 1_000;

    /// How many bytes of a body were heard when its call was answered, and with which status.
    async fn heard(path: &str, version: Version, kind: &str, pieces: usize) -> (u16, usize) {
        let router = Router::new()
            .route("/read", post(async |body: Bytes| body.len().to_string()))
            .route("/refuse", post(async || StatusCode::FORBIDDEN))
            .route("/take", post(async || StatusCode::OK))
            .layer(DefaultBodyLimit::max(LIMIT))
            .layer(from_fn_with_state(LIMIT, heard_out));
        let heard = Arc::new(AtomicUsize::new(0));
        let hears = heard.clone();
        let said = futures_util::stream::iter((0..pieces).map(move |_| {
            hears.fetch_add(PIECE, Ordering::Relaxed);
            Ok::<_, Infallible>(Bytes::from_static(&[0; PIECE]))
        }));
        let call = Request::post(path).version(version).header("content-type", kind);
        let answer = router.clone().call(call.body(Body::from_stream(said)).unwrap()).await.unwrap();
        (answer.status().as_u16(), heard.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_waits_for_what_is_said_as_far_as_that_is_little() {
        let (two, json) = (Version::HTTP_2, "application/json");
        for (path, version, kind, pieces, expected) in [
            ("/read", two, json, 9, (200, 9 * PIECE)),
            ("/read", two, json, 30, (413, 30 * PIECE)),
            // What was read before is not counted.
            ("/read", two, json, 1_000, (413, LIMIT + PIECE + LIMIT * HEARD_TOO_LARGE)),
            ("/refuse", two, json, 30, (403, 30 * PIECE)),
            ("/refuse", two, json, 1_000, (403, HEARD_BYTES_MAX.next_multiple_of(PIECE))),
            ("/take", two, json, 30, (200, 0)),
            ("/refuse", two, "application/grpc+proto", 30, (403, 0)),
            ("/refuse", Version::HTTP_11, json, 30, (403, 0)),
        ] {
            assert_eq!(heard(path, version, kind, pieces).await, expected, "{path} {version:?} {kind} {pieces}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_speaks_without_end_is_answered_meanwhile() {
        let router = Router::new()
            .route("/refuse", post(async || StatusCode::FORBIDDEN))
            .layer(from_fn_with_state(LIMIT, heard_out));
        let silent = Body::from_stream(futures_util::stream::pending::<Result<Bytes, Infallible>>());
        let call = Request::post("/refuse").version(Version::HTTP_2).body(silent).unwrap();
        let began = tokio::time::Instant::now();
        assert_eq!(router.clone().call(call).await.unwrap().status(), StatusCode::FORBIDDEN);
        assert_eq!(began.elapsed(), HEARD_WITHIN);
    }
}
