//! Serving connections, with limits.
//!
//! ```text
//!   accept ──▶ TLS, if wanted ──▶ headers within their limits ──▶ a call, if there is room ──▶ router
//! ```
//!
//! Failure modes: beyond the limit of connections nobody is accepted until one ends, so callers
//! wait; beyond the limit of calls they are told to come again (503). When it is time to stop,
//! calls under way are finished, and no new one is taken.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state, map_response_with_state};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use roundtrip::station::{Shutdown, StationError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::problem::{BODY_TOO_LARGE, Problem};

/// How long a caller has to show its headers, or to shake hands.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// How often a caller over HTTP/2 must show that it is there.
const ALIVE_EVERY: Duration = Duration::from_secs(20);
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
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        tracing::debug!(%error, "a connection ended badly");
    }
}

/// Lets a call pass if there is room.
async fn one_of_many(State(calls): State<Arc<Semaphore>>, request: Request, next: Next) -> Result<Response, Problem> {
    match calls.try_acquire() {
        Ok(_place) => Ok(next.run(request).await),
        Err(_) => Err(Problem::later("too many calls at a time")),
    }
}
