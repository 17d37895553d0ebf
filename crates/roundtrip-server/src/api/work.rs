//! Work over HTTP: lease, extend, answer, fail, release. Each call takes many, and answers one by one.
//!
//! Failure modes: a lease whose answer was lost is asked for again with the same claim, and is
//! the same; an answer that was recorded before is recorded once. A worker that dies says
//! nothing: its lease runs out.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use roundtrip::inbox::StateKind;
use roundtrip::store::op::{self, Effect, Grant, Missing, Notice, Op, Outcome, Stale};
use roundtrip::store::{StoreExt, Topic};
use roundtrip::words::{
    BATCH_OPS_MAX, ClaimId, ErrorClass, ErrorNote, GroupKey, ItemId, ParseError, Payload, RequestId, RouteName, Token,
    UnixMs, WorkerName,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::Api;
use super::body::{self, Whole, WireEncoding, at_most, shown};
use super::problem::Problem;
use super::views::{State as WireState, WireMoment, WireStanding};

/// Most requests in one lease.
pub(super) const LEASE_MAX: usize = 256;
/// How often to look for work without a hint.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Asks for work.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LeaseCall {
    /// Of which route.
    #[schema(min_length = 1, max_length = 128)]
    pub route: String,
    /// Who asks.
    #[schema(min_length = 1, max_length = 128)]
    pub worker: String,
    /// How many at most; 1 if absent.
    #[schema(minimum = 1)]
    pub max: Option<usize>,
    /// How long to wait for work, in milliseconds; not at all if absent.
    pub wait_ms: Option<Whole>,
    /// For how long the work is wanted, in milliseconds; as the route says if absent.
    pub lease_ms: Option<Whole>,
    /// A number of the caller's for this call: the same again gets the same work again.
    pub claim: Option<Whole>,
}

/// Work.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Leased {
    /// What was handed out; empty if there was nothing.
    pub jobs: Vec<Job>,
}

/// A request in a worker's hand.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Job {
    /// Which request.
    pub id: String,
    /// What to answer with: it says who has the request.
    pub token: String,
    /// When the lease runs out, in milliseconds since 1970.
    pub until_ms: u64,
    /// Which attempt this is, from 1.
    pub attempt: u16,
    /// Which generation of the id.
    pub generation: u32,
    /// Which content, from 0.
    pub revision: u16,
    /// Whether its origin calls it final.
    pub standing: WireStanding,
    /// Of no use after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<WireMoment>,
    /// How to read the payload.
    pub encoding: WireEncoding,
    /// What is asked: JSON as it is, everything else as base64.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// The trace context to work in, as `traceparent` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

impl From<Grant> for Job {
    fn from(grant: Grant) -> Job {
        let (encoding, payload) = shown(&grant.payload);
        Job {
            id: grant.id.to_string(),
            token: grant.token.to_string(),
            until_ms: grant.until.0,
            attempt: grant.attempt,
            generation: grant.generation,
            revision: grant.revision,
            standing: grant.standing.into(),
            deadline: grant.deadline.as_ref().map(WireMoment::from),
            encoding,
            payload,
            trace: grant.trace.map(String::from),
        }
    }
}

/// Takes requests of a route, and waits for some if there are none.
#[utoipa::path(
    post, path = "/v1/work/lease", tag = "work", request_body = LeaseCall,
    responses(
        (status = 200, description = "What was handed out.", body = Leased),
        Problem,
    ),
)]
pub(super) async fn lease(
    State(api): State<Api>,
    call: Result<Json<LeaseCall>, JsonRejection>,
) -> Result<Json<Leased>, Problem> {
    let Json(call) = call?;
    let route = RouteName::new(&call.route)?;
    let wait = Duration::from_millis(call.wait_ms.unwrap_or_default().0).min(api.wait_max);
    let until = Instant::now() + wait;
    let lease = op::Lease {
        route: route.clone(),
        worker: WorkerName::new(&call.worker)?,
        max: at_most(call.max, 1, LEASE_MAX)?,
        claim: ClaimId(call.claim.map_or_else(|| fastrand::u64(..), |claim| claim.0)),
        lease_ms: call.lease_ms.map(|length| length.0),
    };
    let mut changes = api.store.changes(Topic::Inbox(route));
    loop {
        let mut jobs = granted(api.store.apply_one(lease.clone()).await?)?;
        api.telemetry.hand_on(&mut jobs);
        if !jobs.is_empty() || Instant::now() >= until || api.stopping() {
            return Ok(Json(Leased { jobs: jobs.into_iter().map(Job::from).collect() }));
        }
        tokio::select! {
            () = changes.hinted() => {}
            () = tokio::time::sleep_until(until.min(Instant::now() + LOOK_EVERY)) => {}
            () = api.shutdown.cancelled() => {}
        }
    }
}

/// What a lease came to.
pub(super) fn granted(outcome: Outcome) -> Result<Vec<Grant>, Problem> {
    match outcome {
        Outcome::Applied(Effect::Leased(grants)) | Outcome::Duplicate(Effect::Leased(grants)) => Ok(grants),
        other => Err(other.into()),
    }
}

/// Which lease.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(super) struct Held {
    /// Which request.
    #[schema(pattern = "^(0x)?[0-9a-fA-F]{64}$")]
    pub id: String,
    /// The lease's token.
    #[schema(pattern = "^[0-9]{1,19}-[0-9]{1,19}$")]
    pub token: String,
}

impl Held {
    fn read(&self) -> Result<(RequestId, Token), Problem> {
        Ok((self.id.parse()?, self.token.parse()?))
    }
}

/// Keeps leases.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendCall {
    /// Which.
    #[schema(min_items = 1, max_items = 4096)]
    pub jobs: Vec<Held>,
    /// For how long from now, in milliseconds; as the route says if absent.
    pub lease_ms: Option<Whole>,
}

/// Records answers.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AnswerCall {
    /// The answers.
    #[schema(min_items = 1, max_items = 4096)]
    pub jobs: Vec<Answered>,
}

/// An answer.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Answered {
    /// Which request.
    #[schema(pattern = "^(0x)?[0-9a-fA-F]{64}$")]
    pub id: String,
    /// The lease's token.
    #[schema(pattern = "^[0-9]{1,19}-[0-9]{1,19}$")]
    pub token: String,
    /// The answer: any JSON, or base64 if `encoding` says so.
    #[schema(value_type = serde_json::Value)]
    pub response: Box<RawValue>,
    /// How to read it.
    #[serde(default)]
    pub encoding: WireEncoding,
    /// Requests that follow from it, stored in the same commit.
    #[serde(default)]
    pub follow_ups: Vec<FollowUp>,
    /// Items for groups that follow from it, stored in the same commit.
    #[serde(default)]
    pub items: Vec<Item>,
}

/// A request that follows from an answer.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FollowUp {
    /// On which route.
    pub route: String,
    /// What is asked.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// How to read it.
    #[serde(default)]
    pub encoding: WireEncoding,
}

/// An item for a group.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Item {
    /// Which group.
    pub group: String,
    /// The item; the same again is the same item.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// How to read it.
    #[serde(default)]
    pub encoding: WireEncoding,
}

/// Reports failures.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FailCall {
    /// Which.
    #[schema(min_items = 1, max_items = 4096)]
    pub jobs: Vec<Failed>,
}

/// What a failure leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Then {
    /// It is tried again, unless its attempts are used up.
    #[default]
    Retry,
    /// It is a dead letter; or its `response` is published as a failure.
    Dead,
    /// It was done before, and what came of it is not known: the request ends well, without an answer.
    Elsewhere,
}

/// A failure.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Failed {
    /// Which request.
    #[schema(pattern = "^(0x)?[0-9a-fA-F]{64}$")]
    pub id: String,
    /// The lease's token.
    #[schema(pattern = "^[0-9]{1,19}-[0-9]{1,19}$")]
    pub token: String,
    /// What went wrong, for the person who reads it.
    pub error: String,
    /// What is to happen now.
    #[serde(default)]
    pub then: Then,
    /// Whether the way to the work failed and not the work: that costs no attempt.
    #[serde(default)]
    pub transport: bool,
    /// Not before so long, in milliseconds; as the route says if absent.
    pub after_ms: Option<Whole>,
    /// With `dead`: what to publish.
    #[schema(value_type = Option<serde_json::Value>)]
    pub response: Option<Box<RawValue>>,
}

/// Gives work back at no cost.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseCall {
    /// Which.
    #[schema(min_items = 1, max_items = 4096)]
    pub jobs: Vec<Held>,
    /// Not to be handed out again before so long, in milliseconds.
    #[serde(default)]
    pub after_ms: Whole,
}

/// What became of each, in the order in which they came.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Results {
    /// One for each.
    pub jobs: Vec<JobResult>,
}

/// What became of one.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct JobResult {
    /// Which request.
    pub id: String,
    /// `done`, `superseded` (the content changed: it will be handed out again), `lost` (somebody
    /// else has it, or it is over), `unknown` (there is no such request), or `invalid`.
    pub result: &'static str,
    /// Where the request is now, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<WireState>,
    /// Until when the lease lasts now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// What the worker should know: `finalized`, `orphaned`, `included`, `superseded`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<&'static str>,
    /// Why, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What became of an operation on a leased request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) verdict: Verdict,
    pub(super) state: Option<StateKind>,
    pub(super) until: Option<UnixMs>,
    pub(super) notices: Vec<Notice>,
    pub(super) detail: Option<String>,
}

/// The short of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Verdict {
    #[default]
    Done,
    Superseded,
    Lost,
    Unknown,
    Invalid,
    Full,
}

impl From<Outcome> for Told {
    fn from(outcome: Outcome) -> Told {
        let bare = |verdict| Told { verdict, ..Told::default() };
        match outcome {
            Outcome::Applied(effect) | Outcome::Duplicate(effect) => match effect {
                Effect::Extended(until, notices) => Told { until: Some(until), notices, ..Told::default() },
                Effect::Now(state) => Told { state: Some(state), ..Told::default() },
                _ => Told::default(),
            },
            Outcome::Stale(Stale::Superseded) => bare(Verdict::Superseded),
            Outcome::Stale(Stale::Lease(state) | Stale::State(state)) => {
                Told { state: Some(state), ..bare(Verdict::Lost) }
            }
            Outcome::NotFound(Missing::Request(_)) => bare(Verdict::Unknown),
            Outcome::Invalid(invalid) => Told { detail: Some(invalid.to_string()), ..bare(Verdict::Invalid) },
            Outcome::Full(full) => Told { detail: Some(full.to_string()), ..bare(Verdict::Full) },
            other => Told { detail: Some(Problem::from(other).detail), ..bare(Verdict::Lost) },
        }
    }
}

impl JobResult {
    fn of(id: String, told: Told) -> JobResult {
        let result = match told.verdict {
            Verdict::Done => "done",
            Verdict::Superseded => "superseded",
            Verdict::Lost => "lost",
            Verdict::Unknown => "unknown",
            Verdict::Invalid => "invalid",
            Verdict::Full => "full",
        };
        let notice = |notice: &Notice| match notice {
            Notice::Finalized => "finalized",
            Notice::Orphaned => "orphaned",
            Notice::Included => "included",
            Notice::Superseded => "superseded",
        };
        JobResult {
            id,
            result,
            state: told.state.map(WireState::from),
            until_ms: told.until.map(|until| until.0),
            notices: told.notices.iter().map(notice).collect(),
            detail: told.detail,
        }
    }
}

impl Api {
    /// Does this to each job, in one commit.
    async fn each<T>(
        &self,
        jobs: Vec<T>,
        id: impl Fn(&T) -> String,
        op: impl Fn(T) -> Result<Op, Problem>,
    ) -> Result<Json<Results>, Problem> {
        if jobs.is_empty() || jobs.len() > BATCH_OPS_MAX {
            return Err(Problem::unprocessable(format!("{} jobs: 1 to {BATCH_OPS_MAX} go together", jobs.len())));
        }
        let ids: Vec<String> = jobs.iter().map(id).collect();
        let batch: Vec<Op> = jobs.into_iter().map(op).collect::<Result<_, _>>()?;
        let outcomes = self.store.apply(batch).await?;
        Ok(Json(Results {
            jobs: ids.into_iter().zip(outcomes).map(|(id, outcome)| JobResult::of(id, outcome.into())).collect(),
        }))
    }
}

/// Keeps leases for longer, and hears what changed.
#[utoipa::path(
    post, path = "/v1/work/extend", tag = "work", request_body = ExtendCall,
    responses(
        (status = 200, description = "What became of each.", body = Results),
        Problem,
    ),
)]
pub(super) async fn extend(
    State(api): State<Api>,
    call: Result<Json<ExtendCall>, JsonRejection>,
) -> Result<Json<Results>, Problem> {
    let Json(call) = call?;
    let lease_ms = call.lease_ms.map(|length| length.0);
    api.each(
        call.jobs,
        |job| job.id.clone(),
        |job| {
            let (id, token) = job.read()?;
            Ok(op::Extend { id, token, lease_ms }.into())
        },
    )
    .await
}

/// Records answers, each once.
#[utoipa::path(
    post, path = "/v1/work/answer", tag = "work", request_body = AnswerCall,
    responses(
        (status = 200, description = "What became of each.", body = Results),
        Problem,
    ),
)]
pub(super) async fn answer(
    State(api): State<Api>,
    call: Result<Json<AnswerCall>, JsonRejection>,
) -> Result<Json<Results>, Problem> {
    let Json(call) = call?;
    api.each(
        call.jobs,
        |job| job.id.clone(),
        |job| {
            let follow_up = |new: &FollowUp| Ok(follow_up(&new.route, body::read(new.encoding, &new.payload)?)?);
            let follow_ups = job.follow_ups.iter().map(follow_up).collect::<Result<_, Problem>>()?;
            let item = |new: &Item| Ok(item(&new.group, body::read(new.encoding, &new.payload)?)?);
            let items = job.items.iter().map(item).collect::<Result<_, Problem>>()?;
            let response = body::read(job.encoding, &job.response)?;
            Ok(op::Answer { id: job.id.parse()?, token: job.token.parse()?, response, follow_ups, items }.into())
        },
    )
    .await
}

/// A request that follows from an answer.
pub(super) fn follow_up(route: &str, payload: Payload) -> Result<op::NewRequest, ParseError> {
    Ok(roundtrip::listener::request(&RouteName::new(route)?, payload))
}

/// An item that follows from an answer.
pub(super) fn item(group: &str, payload: Payload) -> Result<op::Gather, ParseError> {
    let id = ItemId::of(&[group.as_bytes(), &payload.bytes]);
    Ok(op::Gather { group: GroupKey::new(group)?, item: id, payload, plan: None })
}

/// Reports failures.
#[utoipa::path(
    post, path = "/v1/work/fail", tag = "work", request_body = FailCall,
    responses(
        (status = 200, description = "What became of each.", body = Results),
        Problem,
    ),
)]
pub(super) async fn fail(
    State(api): State<Api>,
    call: Result<Json<FailCall>, JsonRejection>,
) -> Result<Json<Results>, Problem> {
    let Json(call) = call?;
    api.each(
        call.jobs,
        |job| job.id.clone(),
        |job| {
            let response = job.response.as_deref().map(|value| body::read(WireEncoding::Json, value)).transpose()?;
            let then = match job.then {
                Then::Retry => op::Verdict::Retry { after_ms: job.after_ms.map(|length| length.0) },
                Then::Dead => op::Verdict::Dead { response },
                Then::Elsewhere => op::Verdict::Elsewhere,
            };
            let (error, verdict) = failure(&job.error, job.transport, then);
            Ok(op::Fail { id: job.id.parse()?, token: job.token.parse()?, error, verdict }.into())
        },
    )
    .await
}

/// What a failure is recorded as.
pub(super) fn failure(error: &str, transport: bool, then: op::Verdict) -> (ErrorNote, op::Verdict) {
    let class = match then {
        _ if transport => ErrorClass::Transport,
        op::Verdict::Retry { .. } => ErrorClass::Retryable,
        op::Verdict::Dead { .. } | op::Verdict::Elsewhere => ErrorClass::Fatal,
    };
    (ErrorNote::new(class, error), then)
}

/// Gives work back at no cost.
#[utoipa::path(
    post, path = "/v1/work/release", tag = "work", request_body = ReleaseCall,
    responses(
        (status = 200, description = "What became of each.", body = Results),
        Problem,
    ),
)]
pub(super) async fn release(
    State(api): State<Api>,
    call: Result<Json<ReleaseCall>, JsonRejection>,
) -> Result<Json<Results>, Problem> {
    let Json(call) = call?;
    let after_ms = call.after_ms.0;
    api.each(
        call.jobs,
        |job| job.id.clone(),
        |job| {
            let (id, token) = job.read()?;
            Ok(op::Release { id, token, after_ms }.into())
        },
    )
    .await
}
