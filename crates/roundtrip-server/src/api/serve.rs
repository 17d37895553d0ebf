//! Serving connections, with limits.
//!
//! ```text
//!   accept ──▶ TLS, if wanted ──▶ headers within their limits ──▶ a call, if there is room ──▶ router
//! ```
//!
//! Failure modes: beyond the limit of connections nobody is accepted until one ends, so callers
//! wait, and whoever asks for nothing for a while loses its place; beyond the limit of calls they are told to come again (503). When it is time to stop,
//! calls under way are finished, and no new one is taken.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state, map_response_with_state};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use roundtrip::station::{Shutdown, StationError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::hearing::heard_out;
use super::problem::{BODY_TOO_LARGE, Problem};

/// How long a caller has to show its headers, or to shake hands.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// How often a caller over HTTP/2 must show that it is there.
const ALIVE_EVERY: Duration = Duration::from_secs(20);
/// How long a connection may go without a call.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// How long to wait after a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// How long calls under way have to end.
const STOP_WITHIN: Duration = Duration::from_secs(20);

/// How much is taken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest body, in bytes.
    pub body_bytes_max: usize,
    /// Longest headers, in bytes.
    pub header_bytes_max: usize,
    /// Most connections.
    pub connections_max: usize,
    /// Most calls.
    pub calls_max: usize,
}

/// A router that takes no larger bodies, and no more calls at a time.
pub fn limited(router: Router, limits: Limits) -> Router {
    let calls = Arc::new(Semaphore::new(limits.calls_max));
    router
        .layer(DefaultBodyLimit::max(limits.body_bytes_max))
        .layer(map_response_with_state(limits.body_bytes_max, told_how_much))
        .layer(from_fn_with_state(limits.body_bytes_max, heard_out))
        .layer(from_fn_with_state(calls, one_of_many))
}

/// Tells whoever sent too much how much is taken.
async fn told_how_much(State(most): State<usize>, response: Response) -> Response {
    match response.extensions().get::<Problem>() {
        Some(problem) if problem.detail == BODY_TOO_LARGE => {
            let detail = format!("{BODY_TOO_LARGE}: {most} bytes are taken at the most (api.body_bytes_max)");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail).into_response()
        }
        _ => response,
    }
}

/// Serves until told to stop.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    tls: Option<TlsAcceptor>,
    shutdown: Shutdown,
) -> Result<(), StationError> {
    let connections = Arc::new(Semaphore::new(limits.connections_max));
    let graceful = GracefulShutdown::new();
    let mut under_way = JoinSet::new();
    loop {
        while under_way.try_join_next().is_some() {}
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &connections) => accepted,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        let (router, tls, watcher, stopping) = (router.clone(), tls.clone(), graceful.watcher(), shutdown.clone());
        under_way.spawn(async move {
            let _place = place;
            // Whoever connects and says nothing keeps neither others out nor the program from its end.
            let mut first = [0];
            let spoken = tokio::select! {
                () = stopping.cancelled() => false,
                spoken = tokio::time::timeout(HEADERS_WITHIN, stream.peek(&mut first)) => matches!(spoken, Ok(Ok(1))),
            };
            if !spoken {
                return;
            }
            match tls {
                None => converse(stream, router, limits, watcher).await,
                Some(tls) => {
                    if let Ok(Ok(stream)) = tokio::time::timeout(HEADERS_WITHIN, tls.accept(stream)).await {
                        converse(stream, router, limits, watcher).await;
                    }
                }
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(STOP_WITHIN, graceful.shutdown()).await.is_err() {
        tracing::warn!("calls under way did not end in time, and are cut off");
    }
    Ok(())
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = connections.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _from) = listener.accept().await?;
    // What is small is sent at once: else it waits for the other side's acknowledgement, which waits too.
    stream.set_nodelay(true)?;
    Ok((stream, place))
}

/// Serves one connection until its end.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    limits: Limits,
    watcher: hyper_util::server::graceful::Watcher,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN).max_buf_size(limits.header_bytes_max);
    let header_list = u32::try_from(limits.header_bytes_max).unwrap_or(u32::MAX);
    let http2 = &mut builder.http2();
    http2.timer(TokioTimer::new()).max_header_list_size(header_list);
    http2.keep_alive_interval(ALIVE_EVERY).keep_alive_timeout(HEADERS_WITHIN);
    let (calls, idle) = Calls::none();
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request| calls.counted(router.call(request)));
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        ended = watcher.watch(connection.into_owned()) => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended badly");
            }
        }
        () = idle => tracing::debug!("a connection that asked for nothing is closed"),
    }
}

/// The calls under way on one connection, up to the last of what is answered.
#[derive(Clone)]
struct Calls(watch::Sender<usize>);

impl Calls {
    /// None so far; and what ends once there was none for as long as a connection may go without.
    fn none() -> (Calls, impl Future<Output = ()>) {
        let (calls, mut count) = watch::channel(0);
        let idle = async move {
            loop {
                let waits = if *count.borrow_and_update() == 0 { IDLE_MAX } else { Duration::MAX };
                match tokio::time::timeout(waits, count.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => return,
                }
            }
        };
        (Calls(calls), idle)
    }

    fn begin(&self) -> Call {
        self.0.send_modify(|count| *count += 1);
        Call(self.clone())
    }

    /// A call that counts until all of its answer is sent: a stream is one for as long as it goes on.
    fn counted<E, F>(&self, answering: F) -> impl Future<Output = F::Output> + use<E, F>
    where
        F: Future<Output = Result<Response, E>>,
    {
        let call = self.begin();
        async move {
            let whole = answering.await?;
            Ok(whole.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _until_the_end = &call;
                    frame
                }))
            }))
        }
    }
}

/// A call under way, until it is dropped.
struct Call(Calls);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// Lets a call pass if there is room.
async fn one_of_many(State(calls): State<Arc<Semaphore>>, request: Request, next: Next) -> Result<Response, Problem> {
    match calls.try_acquire() {
        Ok(_place) => Ok(next.run(request).await),
        Err(_) => Err(Problem::later("too many calls at a time")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Whether it has come to its end by then.
    async fn ends_within(idle: &mut (impl Future<Output = ()> + Unpin), length: Duration) -> bool {
        tokio::time::timeout(length, idle).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_calls_comes_to_its_end_and_one_that_still_answers_does_not() {
        let (calls, idle) = Calls::none();
        let mut idle = Box::pin(idle);
        assert!(!ends_within(&mut idle, IDLE_MAX / 2).await);
        let streams = calls.counted(async { Ok::<_, std::convert::Infallible>(Response::new(Body::from("long"))) });
        let answer = streams.await.unwrap();
        assert!(!ends_within(&mut idle, IDLE_MAX * 100).await, "its answer is still under way");
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "long");
        assert!(!ends_within(&mut idle, IDLE_MAX / 2).await);
        drop(calls.begin());
        assert!(!ends_within(&mut idle, IDLE_MAX / 2 + IDLE_MAX / 4).await, "it asked for something since");
        assert!(ends_within(&mut idle, IDLE_MAX).await);
    }
}
