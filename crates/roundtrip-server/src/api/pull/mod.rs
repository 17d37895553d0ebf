//! Work over one stream (gRPC): what the calls under `/v1/work` do, with many under way at a time.
//!
//! ```text
//!   worker says ──▶ hear ──▶ a commit of all that was said meanwhile, a few at a time ──▶ results ─┐
//!   room ─────────▶ hand out ──▶ lease, as many as there is room for ──▶ jobs ─────────────────────┼──▶ worker
//!   store ────────▶ warn: something was amended ───────────────────────────────────────────────────┘
//! ```
//!
//! The stream owns nothing: leases stand in the store, and may be answered on another stream.
//! Failure modes: a stream that breaks takes nothing away, and the worker says again what it had
//! no result for; jobs that were on their way to it run out; a store that is away while results
//! come ends the stream (`UNAVAILABLE`), since the worker is who has them; one that is away while
//! work is asked for is asked again with the same claim.

mod wire;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::Request as HttpRequest;
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response as HttpResponse};
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, StreamExt};
use roundtrip::store::op::{self, Op};
use roundtrip::store::{StoreExt, Topic};
use roundtrip::words::{BATCH_OPS_MAX, ClaimId, LEASE_MAX, RouteName, WorkerName};
use roundtrip_wire::v1::work_server::{Work, WorkServer};
use roundtrip_wire::v1::{FromWorker, Open, ToWorker};
use tokio::sync::{Semaphore, mpsc};
use tonic::codegen::BoxStream;
use tonic::{Code, Request, Response, Status, Streaming};

use self::wire::{Said, handfuls};
use super::Api;
use super::auth::Caller;
use super::problem::Problem;
use super::work::{LOOK_EVERY, Told, granted};

/// Under which path the calls of the stream's service are.
pub(super) const PATH: &str = "/roundtrip.v1.Work/{call}";

/// Most requests that a worker may have asked for and not got.
const ROOM_MAX: usize = 1 << 16;
/// How much is heard together, in bytes of payloads and in things said; a last message may go beyond.
const HEARD_BYTES_MAX: usize = 4 << 20;
const HEARD_MAX: usize = BATCH_OPS_MAX;
/// How many commits of one stream are under way at a time.
const COMMITS_MAX: usize = 4;
/// How many messages may wait for a worker that does not read.
const UNREAD_MAX: usize = 8;
/// How often a worker is told at most that something was amended.
const WARN_GAP: Duration = Duration::from_millis(100);

/// The service.
pub(super) struct Pull(Api);

/// The service, which takes messages up to this size.
pub(super) fn service(api: Api, message_bytes_max: usize) -> WorkServer<Pull> {
    WorkServer::new(Pull(api)).max_decoding_message_size(message_bytes_max).max_encoding_message_size(usize::MAX)
}

/// Tells a refusal in the words of gRPC.
pub(super) async fn refused_in_its_words(request: HttpRequest, next: Next) -> HttpResponse {
    let is_grpc = request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let response = next.run(request).await;
    match response.extensions().get::<Problem>() {
        Some(problem) if is_grpc => status_of(problem).into_http::<axum::body::Body>().into_response(),
        _ => response,
    }
}

fn status_of(problem: &Problem) -> Status {
    let code = match problem.status {
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        413 | 422 => Code::InvalidArgument,
        429 => Code::ResourceExhausted,
        500.. => Code::Unavailable,
        _ => Code::FailedPrecondition,
    };
    Status::new(code, problem.detail.clone())
}

impl From<Problem> for Status {
    fn from(problem: Problem) -> Status {
        status_of(&problem)
    }
}

type Telling = mpsc::Sender<Result<ToWorker, Status>>;

#[tonic::async_trait]
impl Work for Pull {
    type PullStream = BoxStream<ToWorker>;

    async fn pull(&self, request: Request<Streaming<FromWorker>>) -> Result<Response<Self::PullStream>, Status> {
        let until = request.extensions().get::<Caller>().and_then(|caller| caller.until);
        let (tell, mut told) = mpsc::channel(UNREAD_MAX);
        let api = self.0.clone();
        tokio::spawn(async move {
            let expired = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            };
            let ended = tokio::select! {
                () = tell.closed() => return,
                () = expired => Err(Status::unauthenticated("the token has expired")),
                ended = converse(api, request.into_inner(), &tell) => ended,
            };
            if let Err(status) = ended {
                // Whoever is gone need not know.
                let _gone = tell.send(Err(status)).await;
            }
        });
        Ok(Response::new(Box::pin(futures_util::stream::poll_fn(move |context| told.poll_recv(context)))))
    }
}

/// Talks with a worker until either has said all.
async fn converse(api: Api, mut said: Streaming<FromWorker>, tell: &Telling) -> Result<(), Status> {
    let first = tokio::select! {
        first = said.message() => first?,
        () = api.shutdown.cancelled() => return Ok(()),
    };
    let Some(first) = first else { return Ok(()) };
    let open = first.open.clone().ok_or_else(|| Status::invalid_argument("the first message says `open`"))?;
    let (room, warned) = (Semaphore::new(0), AtomicU64::new(0));
    tokio::select! {
        ended = hear(&api, first, said, &room, tell) => ended,
        ended = hand_out(&api, open, &room, &warned, tell) => ended,
        ended = warn(&api, &warned, tell) => ended,
    }
}

/// Does what the worker says, and tells what became of it, in the order in which it was said.
async fn hear(
    api: &Api,
    first: FromWorker,
    mut said: Streaming<FromWorker>,
    room: &Semaphore,
    tell: &Telling,
) -> Result<(), Status> {
    let mut under_way = FuturesOrdered::new();
    let mut message = Some(first);
    while let Some(first) = message {
        let all = heard_together(first, &mut said, room)?;
        under_way.extend(handfuls(all).into_iter().map(|handful| apply(api, handful)));
        // More is heard meanwhile.
        message = loop {
            tokio::select! {
                biased;
                Some(results) = under_way.next() => tell_results(tell, results?).await?,
                message = said.message(), if under_way.len() < COMMITS_MAX => break message?,
                () = api.shutdown.cancelled() => break None,
            }
        };
    }
    while let Some(results) = under_way.next().await {
        tell_results(tell, results?).await?;
    }
    Ok(())
}

/// What this message says, and those that are there already.
fn heard_together(first: FromWorker, said: &mut Streaming<FromWorker>, room: &Semaphore) -> Result<Vec<Said>, Status> {
    let (mut all, mut bytes, mut message) = (Vec::new(), 0, Some(first));
    while let Some(next) = message {
        room.add_permits((next.room as usize).min(ROOM_MAX.saturating_sub(room.available_permits())));
        for said in wire::said(next) {
            bytes += said.payload_bytes();
            all.push(said);
        }
        let full = bytes >= HEARD_BYTES_MAX || all.len() >= HEARD_MAX;
        message = if full { None } else { said.message().now_or_never().transpose()?.flatten() };
    }
    Ok(all)
}

async fn tell_results(tell: &Telling, results: Vec<roundtrip_wire::v1::Result>) -> Result<(), Status> {
    send(tell, ToWorker { results, ..ToWorker::default() }).await
}

/// Does all of this in one commit.
async fn apply(api: &Api, said: Vec<Said>) -> Result<Vec<roundtrip_wire::v1::Result>, Status> {
    let (mut results, mut batch, mut helds) = (Vec::new(), Vec::<Op>::new(), Vec::new());
    for Said { held, op } in said {
        match op {
            Ok(op) => {
                batch.push(op);
                helds.push(held);
            }
            Err(why) => results.push(wire::senseless(held, why)),
        }
    }
    if !batch.is_empty() {
        let outcomes = api.store.apply(batch).await.map_err(Problem::from)?;
        results.extend(helds.into_iter().zip(outcomes).map(|(held, outcome)| wire::result(held, Told::from(outcome))));
    }
    Ok(results)
}

/// Hands out work, as long as there is room for it.
async fn hand_out(api: &Api, open: Open, room: &Semaphore, warned: &AtomicU64, tell: &Telling) -> Result<(), Status> {
    let sense = |error: roundtrip::words::ParseError| Status::invalid_argument(error.to_string());
    let route = RouteName::new(&open.route).map_err(sense)?;
    let worker = WorkerName::new(&open.worker).map_err(sense)?;
    let mut changes = api.store.changes(Topic::Inbox(route.clone()));
    let mut claim = ClaimId(fastrand::u64(..));
    loop {
        // Never closed; the room that was not used is given back when `wanted` goes.
        let Ok(mut wanted) = room.acquire().await else { return Ok(()) };
        let more = u32::try_from(room.available_permits().min(LEASE_MAX - 1)).unwrap_or(0);
        if let Ok(more) = room.try_acquire_many(more) {
            wanted.merge(more);
        }
        let lease = op::Lease {
            route: route.clone(),
            worker: worker.clone(),
            max: wanted.num_permits(),
            claim,
            lease_ms: open.lease_ms,
        };
        let warnings = warned.load(Ordering::Relaxed);
        let mut jobs = match api.store.apply_one(lease).await {
            Ok(outcome) => granted(outcome)?,
            Err(error) => {
                // They may have been handed out: the same claim gets the same.
                tracing::warn!(%error, route = %route, "work is looked for again");
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            }
        };
        claim = ClaimId(fastrand::u64(..));
        if jobs.is_empty() {
            drop(wanted);
            tokio::select! {
                () = changes.hinted() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            continue;
        }
        if let Some(used) = wanted.split(jobs.len().min(wanted.num_permits())) {
            used.forget();
        }
        drop(wanted);
        api.telemetry.hand_on(&mut jobs);
        for jobs in wire::letters(jobs) {
            // A warning that went out before these did may be of one of them.
            let amended = warned.load(Ordering::Relaxed) != warnings;
            send(tell, ToWorker { jobs, amended, ..ToWorker::default() }).await?;
        }
    }
}

/// Warns the worker when something was amended, which may be something that it has.
async fn warn(api: &Api, warned: &AtomicU64, tell: &Telling) -> Result<(), Status> {
    let mut amended = api.store.changes(Topic::Amendments);
    // The first hint speaks of what was before.
    amended.hinted().await;
    loop {
        tokio::time::sleep(WARN_GAP).await;
        amended.hinted().await;
        warned.fetch_add(1, Ordering::Relaxed);
        send(tell, ToWorker { amended: true, ..ToWorker::default() }).await?;
    }
}

async fn send(tell: &Telling, message: ToWorker) -> Result<(), Status> {
    tell.send(Ok(message)).await.map_err(|_| Status::cancelled("the worker is gone"))
}
