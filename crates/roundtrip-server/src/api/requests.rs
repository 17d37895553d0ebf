//! Requests over HTTP: submit, look up, wait for, list; and what a person does to one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use roundtrip::inbox::Identity;
use roundtrip::listener::request_with_id;
use roundtrip::store::journal::Event;
use roundtrip::store::op::{Admission, Admit, Effect, Mend, Missing, NewRequest, Outcome, Remedy, Stale};
use roundtrip::store::query::{Found, ListFilter};
use roundtrip::store::{ReadExt, StoreExt};
use roundtrip::trace::{TraceContext, TraceId};
use roundtrip::words::{
    ADMIT_MAX, Encoding, OccurrenceId, OrderKey, PAGE_MAX, Payload, RequestId, RouteName, Seq, UnixMs,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::body::{self, Whole, WireEncoding, at_most};
use super::path::Path;
use super::problem::Problem;
use super::views::{self, WireEntry, WirePage, WireRequest};

/// How many requests a page shows unless asked for another number.
const PAGE: usize = 100;
/// Longest idempotency key.
const KEY_BYTES_MAX: usize = 256;

/// How a request is submitted.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubmitQuery {
    /// Its id, 64 hexadecimal digits. Where the route's identity is a hash, it must be that hash.
    pub id: Option<String>,
    /// Wait so long for the answer, such as `30s`.
    pub wait: Option<String>,
    /// Not to be worked on before, in milliseconds since 1970.
    pub due_ms: Option<Whole>,
    /// Of no use after, in milliseconds since 1970.
    pub deadline_ms: Option<Whole>,
    /// For routes ordered by priority: higher goes first.
    pub priority: Option<u8>,
    /// For routes ordered by key.
    pub key: Option<String>,
}

/// One of many requests that are submitted together.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BulkItem {
    /// What is asked: any JSON, or base64 if `encoding` says so.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// How to read it.
    #[serde(default)]
    pub encoding: WireEncoding,
    /// Its id.
    pub id: Option<String>,
    /// What makes it the same submission.
    pub idempotency_key: Option<String>,
    /// Not to be worked on before, in milliseconds since 1970.
    pub due_ms: Option<Whole>,
    /// Of no use after, in milliseconds since 1970.
    pub deadline_ms: Option<Whole>,
    /// For routes ordered by priority.
    pub priority: Option<u8>,
    /// For routes ordered by key.
    pub key: Option<String>,
}

/// Many requests.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Bulk {
    /// The requests; those that are no conflict are stored in one commit.
    pub requests: Vec<BulkItem>,
}

/// A request that is durable.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Accepted {
    /// Its id.
    pub id: String,
    /// `new`, `attached`, `dropped`, `rearmed`, `behind`, `voted`, `known` or `ended`; of one among
    /// many also `conflict`: its key or id was used for something else, and nothing of it was stored.
    pub admission: Cow<'static, str>,
    /// Where its state can be read; with `conflict`, that of what has the id, if something has.
    pub status_url: String,
    /// With `conflict`: what is wrong. With `known`: why it could not be compared with what was submitted before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What became of many requests, in the order in which they came.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct BulkAccepted {
    /// One for each.
    pub requests: Vec<Accepted>,
}

/// What of a submission is not its payload.
#[derive(Clone, Debug, Default)]
struct Manner {
    id: Option<String>,
    idempotency_key: Option<String>,
    due_ms: Option<Whole>,
    deadline_ms: Option<Whole>,
    priority: Option<u8>,
    key: Option<String>,
    trace: Option<Box<str>>,
}

/// What a caller says makes a submission the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// Its idempotency key.
    Key,
    /// The id that it states.
    Id,
}

impl Claim {
    fn of(manner: &Manner) -> Option<Claim> {
        let stated = manner.id.as_ref().map(|_| Claim::Id);
        manner.idempotency_key.as_ref().map_or(stated, |_| Some(Claim::Key))
    }

    /// Whether a submission that the store knew asks for what is found under its id.
    fn holds(self, identity: &Identity, known: &NewRequest, found: Option<&Found>) -> bool {
        match found {
            // The key was used with another id.
            None => self == Claim::Id,
            // What was asked is forgotten with the end; the id is what is left to compare.
            Some(Found::Ended(_)) => true,
            // The id is made of what is asked.
            Some(Found::Live(..)) if *identity != Identity::Given => true,
            Some(Found::Live(live, bodies)) => {
                let shown = live.occurrences.iter().find(|shown| shown.id == known.occurrence);
                // The content that it came with is not the live one, and cannot be read.
                let elsewhere = shown.map_or(self == Claim::Id, |shown| shown.revision != live.revision);
                elsewhere || Identity::Content.same_content(&known.route, &bodies.payload, &known.payload)
            }
        }
    }

    fn refusal(self) -> &'static str {
        match self {
            Claim::Key => "this idempotency key was used for another request: nothing was stored",
            Claim::Id => "this id is of a request that asks for something else: nothing was stored",
        }
    }
}

impl Api {
    fn route_for_submission(&self, name: &str) -> Result<(RouteName, Identity), Problem> {
        let unknown = || Problem::not_found(format!("no route is called {name:?}"));
        let route = self.premises.routes.get(name).ok_or_else(unknown)?;
        if !route.submit {
            return Err(Problem::new(StatusCode::FORBIDDEN, format!("route {name} takes no requests over the API")));
        }
        Ok((RouteName::new(name)?, route.identity.clone()))
    }

    /// Stores one request, and tells what became of it.
    async fn submitted(
        &self,
        route: &str,
        query: SubmitQuery,
        headers: &HeaderMap,
        payload: Payload,
    ) -> Result<Response, Problem> {
        let (route, identity) = self.route_for_submission(route)?;
        let wait = self.wait(query.wait.as_deref())?;
        let SubmitQuery { id, due_ms, deadline_ms, priority, key, .. } = query;
        let (idempotency_key, trace) = (key_of(headers)?, trace_of(headers));
        let manner = Manner { id, idempotency_key, due_ms, deadline_ms, priority, key, trace };
        let claim = Claim::of(&manner);
        let request = request_of(&route, &identity, payload, manner)?;
        let id = request.id;
        let accepted = self.admit(&identity, vec![(claim, request)]).await?.into_iter().next();
        let accepted = accepted.ok_or_else(|| Problem::later("the store answered nothing"))?;
        match &accepted.detail {
            Some(conflict) if accepted.admission == CONFLICT => return Err(Problem::conflict(conflict.as_str())),
            // It was stored before, and not by this call.
            Some(unread) => return Err(Problem::later(unread.as_str())),
            None => {}
        }
        // It is stored, whether or not it can be read now.
        if wait.is_some()
            && let Ok(Some(found)) = self.waited(id, wait).await
        {
            return Ok(Json(found).into_response());
        }
        let status = if accepted.admission == "new" { StatusCode::CREATED } else { StatusCode::OK };
        let location = [(header::LOCATION, accepted.status_url.clone())];
        Ok((status, location, Json(accepted)).into_response())
    }

    /// Stores requests, and tells what became of each.
    async fn admit(
        &self,
        identity: &Identity,
        submitted: Vec<(Option<Claim>, NewRequest)>,
    ) -> Result<Vec<Accepted>, Problem> {
        let requests = submitted.iter().map(|(_, request)| request.clone()).collect();
        match self.store.apply_one(Admit { cursor: None, requests }).await? {
            Outcome::Applied(Effect::Admitted(admissions, _)) | Outcome::Duplicate(Effect::Admitted(admissions, _)) => {
                let mut all = Vec::with_capacity(submitted.len());
                for ((claim, request), admission) in submitted.iter().zip(&admissions) {
                    if matches!(admission, Admission::New { .. }) {
                        self.telemetry.admitted(request.id, request.trace.as_deref());
                    }
                    all.push(match self.conflict(identity, *claim, request, admission).await {
                        Ok(conflict) => accepted(&request.id, admission, conflict),
                        Err(unread) => unsure(&request.id, admission, &unread),
                    });
                }
                Ok(all)
            }
            other => Err(other.into()),
        }
    }

    /// What is wrong with a submission that the store took for one that it knows: its key or its
    /// id is of another, so that nothing was stored of this one.
    async fn conflict(
        &self,
        identity: &Identity,
        claim: Option<Claim>,
        request: &NewRequest,
        admission: &Admission,
    ) -> Result<Option<&'static str>, Problem> {
        let (Some(claim), Admission::Known { .. }) = (claim, admission) else { return Ok(None) };
        let found = self.store.get(request.id).await?;
        if let Some(Found::Live(live, _)) = &found
            && live.route != request.route
        {
            return Ok(Some(ELSEWHERE));
        }
        Ok((!claim.holds(identity, request, found.as_ref())).then(|| claim.refusal()))
    }

    /// How a request stands after this long at the most, or as soon as it is answered.
    async fn waited(&self, id: RequestId, wait: Option<Duration>) -> Result<Option<WireRequest>, Problem> {
        if let Some(wait) = wait {
            // How it stands is read below, however the wait ended. One that goes on would hold up a stop.
            tokio::select! {
                _waited = tokio::time::timeout(wait, self.submitter.answered(id)) => {}
                () = self.shutdown.cancelled() => {}
            }
        }
        let found = self.store.get(id).await?;
        let ended = matches!(found, Some(Found::Ended(_)));
        let trace_id = if ended { self.trace_of_ended(id).await? } else { None };
        Ok(found.map(|found| match ended {
            true => WireRequest { trace_id, ..WireRequest::from(found) },
            false => WireRequest { delivery_due_at_ms: self.delivery_due_at_ms(id), ..WireRequest::from(found) },
        }))
    }

    /// When a delivery that failed is tried again, if this process makes it.
    fn delivery_due_at_ms(&self, id: RequestId) -> Option<u64> {
        let due = self.premises.delivery_due_in(&id)?;
        Some(self.now().0.saturating_add(u64::try_from(due.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The trace of a request that ended, as long as the journal tells of its admission: its receipt is small, and
    /// keeps no trace.
    async fn trace_of_ended(&self, id: RequestId) -> Result<Option<String>, Problem> {
        let admitted = self.store.timeline(id).await?.into_iter().find_map(|entry| match entry.event {
            Event::Admitted { trace, .. } => Some(trace),
            _ => None,
        });
        Ok(admitted.map(|trace| trace.unwrap_or_else(|| TraceId::of_request(&id)).to_string()))
    }

    fn wait(&self, text: Option<&str>) -> Result<Option<Duration>, Problem> {
        let Some(text) = text else { return Ok(None) };
        let length = humantime::parse_duration(text)
            .map_err(|_| Problem::unprocessable(format!("{text:?} is no length of time, such as 30s")))?;
        Ok(Some(length.min(self.wait_max)))
    }
}

/// The admission of a submission of which nothing was stored.
const CONFLICT: &str = "conflict";
/// Ids are one for all routes: nobody would work on it where it is asked for now.
const ELSEWHERE: &str = "this id is of a request on another route: nothing was stored";

/// A request that the store knows, and what it asks could not be read to be compared. What was stored with it is
/// stored, so this is no refusal of them all.
fn unsure(id: &RequestId, admission: &Admission, unread: &Problem) -> Accepted {
    let detail =
        format!("whether it asks for the same as before could not be read ({}): submit it again", unread.detail);
    Accepted { detail: Some(detail), ..accepted(id, admission, None) }
}

fn accepted(id: &RequestId, admission: &Admission, conflict: Option<&str>) -> Accepted {
    let word = match admission {
        _ if conflict.is_some() => CONFLICT,
        Admission::New { .. } => "new",
        Admission::Attached { .. } => "attached",
        Admission::Dropped { .. } => "dropped",
        Admission::Rearmed { .. } => "rearmed",
        Admission::Behind { .. } => "behind",
        Admission::Voted { .. } => "voted",
        Admission::Known { .. } => "known",
        Admission::Ended(_) => "ended",
    };
    let (status_url, detail) = (format!("/v1/requests/{id}"), conflict.map(str::to_owned));
    Accepted { id: id.to_string(), admission: word.into(), status_url, detail }
}

/// The request that a submission is. Its id is stated, or that of its content where the route
/// says so, or that of its idempotency key; without any of them it is one of its own. The
/// submission is the same if its key is, or else its id.
fn request_of(route: &RouteName, identity: &Identity, payload: Payload, manner: Manner) -> Result<NewRequest, Problem> {
    if manner.idempotency_key.as_ref().is_some_and(|key| key.is_empty() || key.len() > KEY_BYTES_MAX) {
        return Err(Problem::unprocessable(format!("an idempotency key has 1 to {KEY_BYTES_MAX} bytes")));
    }
    let stated = manner.id.as_deref().map(str::parse::<RequestId>).transpose()?;
    let hash = identity.id_of(route, &payload).map_err(|error| Problem::unprocessable(error.to_string()))?;
    let named = |key: &String| [b"submitted".as_slice(), route.as_str().as_bytes(), key.as_bytes()].map(<[u8]>::to_vec);
    let keyed = manner.idempotency_key.as_ref().map(named);
    let parts = |parts: &[Vec<u8>; 3]| RequestId::of(&[&parts[0], &parts[1], &parts[2]]);
    let id = stated.or(hash).or(keyed.as_ref().map(parts));
    let id = id.unwrap_or_else(|| RequestId(random_bytes()));
    let request = request_with_id(route, id, payload);
    let occurrence =
        keyed.as_ref().map_or(request.occurrence, |parts| OccurrenceId::of(&[&parts[0], &parts[1], &parts[2]]));
    Ok(NewRequest {
        occurrence,
        due: manner.due_ms.map(|ms| UnixMs(ms.0).into()),
        deadline: manner.deadline_ms.map(|ms| UnixMs(ms.0).into()),
        priority: manner.priority.unwrap_or(0),
        key: manner.key.as_deref().map(OrderKey::new).transpose()?,
        trace: manner.trace,
        ..request
    })
}

/// Bytes that nobody has had before.
fn random_bytes() -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.iter_mut().for_each(|byte| *byte = fastrand::u8(..));
    bytes
}

/// Submits a request.
///
/// The body is what is asked: JSON if its content type says so, other bytes otherwise. The answer
/// comes after the request is durable. The same `Idempotency-Key`, or without one the same id, is
/// the same submission: it is recognised, and nothing happens twice. A key or an id that was used
/// for something else is a conflict (409), as far as what was asked is still here.
#[utoipa::path(
    post, path = "/v1/routes/{route}/requests", tag = "requests",
    params(("route" = String, Path, description = "Which route."), SubmitQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "What makes it the same submission.")),
    request_body(content = serde_json::Value, description = "What is asked.", content_type = "application/json"),
    responses(
        (status = 201, description = "It is new, and durable.", body = Accepted),
        (status = 200, description = "It was recognised; or, with `wait`, how it stands.", body = Accepted),
        Problem,
    ),
)]
pub(super) async fn submit(
    State(api): State<Api>,
    Path(route): Path<String>,
    query: Result<Query<SubmitQuery>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let (Query(query), bytes) = (query?, bytes?);
    let payload = payload_of(&headers, bytes)?;
    api.submitted(&route, query, &headers, payload).await
}

/// Submits a request under a route's own path: the fields of its query, or of a form, are
/// those of a JSON object, if the route says so and no JSON comes; else as everywhere. Each
/// has one value.
pub(super) async fn submit_at(
    route: String,
    State(api): State<Api>,
    uri: Uri,
    headers: HeaderMap,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let bytes = bytes?;
    let forms = api.premises.routes.get(&route).is_some_and(|intake| intake.forms);
    if !forms || !is_form(content_type(&headers).as_deref(), &bytes)? {
        let Query(query) = Query::try_from_uri(&uri)?;
        let payload = payload_of(&headers, bytes)?;
        return api.submitted(&route, query, &headers, payload).await;
    }
    let mut fields = BTreeMap::new();
    add_fields(&mut fields, uri.query().unwrap_or_default().as_bytes())?;
    let query = SubmitQuery { wait: fields.remove("wait"), ..SubmitQuery::default() };
    add_fields(&mut fields, &bytes)?;
    let json = serde_json::to_vec(&fields).map_err(|error| Problem::unprocessable(error.to_string()))?;
    api.submitted(&route, query, &headers, Payload::json(json)).await
}

/// The trace context that a call came with; one that is none is left out.
fn trace_of(headers: &HeaderMap) -> Option<Box<str>> {
    let given = headers.get("traceparent")?.to_str().ok()?;
    TraceContext::parse(given).map(|context| context.to_string().into())
}

/// The key that a call came with. One that is passed over would let a repeat happen twice.
fn key_of(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let text = headers.get("idempotency-key").map(|key| key.to_str().map(str::to_owned));
    text.transpose().map_err(|_| Problem::unprocessable("an Idempotency-Key is written in visible ASCII"))
}

fn content_type(headers: &HeaderMap) -> Option<String> {
    let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    kind.split(';').next().map(|kind| kind.trim().to_ascii_lowercase())
}

fn is_json(kind: &str) -> bool {
    kind == "application/json" || kind.ends_with("+json")
}

/// Whether what comes where forms are taken is one, and not JSON. What begins like JSON is none,
/// since a form escapes that: it is what curl sends unless it is told of another type.
fn is_form(kind: Option<&str>, bytes: &[u8]) -> Result<bool, Problem> {
    match kind {
        Some(kind) if is_json(kind) => Ok(false),
        None | Some("application/x-www-form-urlencoded") => {
            Ok(!matches!(bytes.trim_ascii_start().first(), Some(b'{' | b'[' | b'"')))
        }
        Some(_) if bytes.is_empty() => Ok(true),
        Some(kind) => {
            let detail =
                format!("{kind} is not taken here: send application/json or application/x-www-form-urlencoded");
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail))
        }
    }
}

/// Adds what a query or a form says, and refuses to choose among several values.
fn add_fields(fields: &mut BTreeMap<String, String>, form: &[u8]) -> Result<(), Problem> {
    let read: Vec<(String, String)> =
        serde_urlencoded::from_bytes(form).map_err(|error| Problem::unprocessable(error.to_string()))?;
    for (name, value) in read {
        if fields.contains_key(&name) {
            return Err(Problem::unprocessable(format!("`{name}` is there twice, and has one value")));
        }
        fields.insert(name, value);
    }
    Ok(())
}

/// What a body asks.
fn payload_of(headers: &HeaderMap, bytes: Bytes) -> Result<Payload, Problem> {
    let encoding = match content_type(headers).as_deref() {
        // What curl says of a body unless it is told otherwise.
        None | Some("application/x-www-form-urlencoded") => Encoding::Json,
        Some(kind) if is_json(kind) => Encoding::Json,
        Some("application/cbor") => Encoding::Cbor,
        Some("application/x-protobuf" | "application/protobuf") => Encoding::Protobuf,
        Some(_) => Encoding::Raw,
    };
    if encoding == Encoding::Json
        && let Err(error) = serde_json::from_slice::<&RawValue>(&bytes)
    {
        return Err(Problem::new(StatusCode::BAD_REQUEST, format!("the body is no JSON: {error}")));
    }
    Ok(Payload { encoding, bytes })
}

/// Submits many requests: all that are no conflict are stored in one commit, or none.
///
/// Those that were stored before are recognised. One whose key or id was used for something else,
/// also among these, is told as a `conflict`; it keeps the others from nothing.
#[utoipa::path(
    post, path = "/v1/routes/{route}/requests/bulk", tag = "requests",
    params(("route" = String, Path, description = "Which route.")),
    request_body = Bulk,
    responses(
        (status = 200, description = "All are durable but those told as a `conflict`.", body = BulkAccepted),
        Problem,
    ),
)]
pub(super) async fn submit_bulk(
    State(api): State<Api>,
    Path(route): Path<String>,
    headers: HeaderMap,
    bulk: Result<Json<Bulk>, axum::extract::rejection::JsonRejection>,
) -> Result<Json<BulkAccepted>, Problem> {
    let Json(bulk) = bulk?;
    let (route, identity) = api.route_for_submission(&route)?;
    if bulk.requests.is_empty() || bulk.requests.len() > ADMIT_MAX {
        return Err(Problem::unprocessable(format!("{} requests: 1 to {ADMIT_MAX} go together", bulk.requests.len())));
    }
    let mut requests = Vec::with_capacity(bulk.requests.len());
    for item in bulk.requests {
        let payload = body::read(item.encoding, &item.payload)?;
        let BulkItem { id, idempotency_key, due_ms, deadline_ms, priority, key, .. } = item;
        let manner = Manner { id, idempotency_key, due_ms, deadline_ms, priority, key, trace: trace_of(&headers) };
        requests.push((Claim::of(&manner), request_of(&route, &identity, payload, manner)?));
    }
    Ok(Json(BulkAccepted { requests: api.admit(&identity, requests).await? }))
}

pub(super) fn gone(id: RequestId) -> Problem {
    Problem::not_found(format!("no request {id} is here: it never came, or it ended so long ago that it is forgotten"))
}

/// How long to wait.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitQuery {
    /// Wait so long for the answer, such as `30s`.
    pub wait: Option<String>,
}

/// One request, live or remembered.
#[utoipa::path(
    get, path = "/v1/requests/{id}", tag = "requests",
    params(("id" = String, Path, pattern = "^(0x)?[0-9a-fA-F]{64}$", description = "Which request."), WaitQuery),
    responses(
        (status = 200, description = "How it stands.", body = WireRequest),
        Problem,
    ),
)]
pub(super) async fn get(
    State(api): State<Api>,
    Path(id): Path<String>,
    query: Result<Query<WaitQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<WireRequest>, Problem> {
    let Query(query) = query?;
    let id: RequestId = id.parse()?;
    let wait = api.wait(query.wait.as_deref())?;
    api.waited(id, wait).await?.map(Json).ok_or_else(|| gone(id))
}

/// What the journal still holds about a request.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Timeline {
    /// What happened, oldest first.
    pub entries: Vec<WireEntry>,
}

/// What happened to a request, as far as the journal reaches back.
#[utoipa::path(
    get, path = "/v1/requests/{id}/timeline", tag = "requests",
    params(("id" = String, Path, pattern = "^(0x)?[0-9a-fA-F]{64}$", description = "Which request.")),
    responses(
        (status = 200, description = "What happened.", body = Timeline),
        Problem,
    ),
)]
pub(super) async fn timeline(State(api): State<Api>, Path(id): Path<String>) -> Result<Json<Timeline>, Problem> {
    let entries = api.store.timeline(id.parse()?).await?;
    Ok(Json(Timeline { entries: entries.into_iter().map(WireEntry::from).collect() }))
}

/// Which requests.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// Only of this route.
    pub route: Option<String>,
    /// Only in this state; several with commas.
    pub state: Option<String>,
    /// Only those that came in at this time or later, in milliseconds since 1970.
    pub from_ms: Option<Whole>,
    /// Only those that came in before this time.
    pub to_ms: Option<Whole>,
    /// Only ids that begin with these hexadecimal digits.
    pub id_prefix: Option<String>,
    /// Only those whose last error contains this text.
    pub error: Option<String>,
    /// What the page before said is next.
    pub after: Option<Whole>,
    /// At most so many; 100 if nothing is said, 1000 at the most.
    #[param(minimum = 1)]
    pub limit: Option<usize>,
}

/// A page of live requests, oldest first.
#[utoipa::path(
    get, path = "/v1/requests", tag = "requests", params(ListQuery),
    responses(
        (status = 200, description = "A page.", body = WirePage),
        Problem,
    ),
)]
pub(super) async fn list(
    State(api): State<Api>,
    query: Result<Query<ListQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<WirePage>, Problem> {
    let Query(query) = query?;
    let ended = |state: views::State| {
        Problem::unprocessable(format!("{state}: only live requests are listed; /v1/ended has the others"))
    };
    let states = views::states(query.state.as_deref())?.into_iter();
    let states = states.map(|state| state.live().ok_or_else(|| ended(state))).collect::<Result<_, _>>()?;
    let prefix = query.id_prefix.as_deref().map(str::parse::<Prefix>).transpose()?.unwrap_or_default();
    let filter = ListFilter {
        route: query.route.as_deref().map(RouteName::new).transpose()?,
        states,
        from: query.from_ms.map(|ms| UnixMs(ms.0)),
        to: query.to_ms.map(|ms| UnixMs(ms.0)),
        id_prefix: prefix.bytes.clone(),
        error_text: query.error,
        after: query.after.map(|seq| Seq(seq.0)),
        limit: at_most(query.limit, PAGE, PAGE_MAX)?,
    };
    let page = api.store.list(filter).await?;
    let requests =
        page.requests.into_iter().filter(|request| prefix.fits(&request.id)).map(WireRequest::from).collect();
    Ok(Json(WirePage { requests, next: page.next.map(|seq| seq.0) }))
}

/// What ids begin with: whole bytes, which a list can tell, and half of the next one, which it cannot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) bytes: Vec<u8>,
    half: Option<u8>,
}

impl Prefix {
    /// Whether an id that begins with the bytes goes on with the half.
    pub(super) fn fits(&self, id: &RequestId) -> bool {
        let next = id.as_bytes().get(self.bytes.len());
        self.half.is_none_or(|half| next.is_some_and(|next| next >> 4 == half))
    }
}

impl FromStr for Prefix {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Prefix, Problem> {
        let bad = || Problem::unprocessable(format!("{text:?} is not up to 64 hexadecimal digits"));
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let values = digits.chars().map(|digit| digit.to_digit(16).and_then(|value| u8::try_from(value).ok()));
        let values: Vec<u8> =
            values.collect::<Option<_>>().filter(|values: &Vec<u8>| values.len() <= 64).ok_or_else(bad)?;
        let (pairs, rest) = values.as_chunks::<2>();
        Ok(Prefix { bytes: pairs.iter().map(|[high, low]| (high << 4) | low).collect(), half: rest.first().copied() })
    }
}

/// What a person did to a request.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Mended {
    /// Where it is now.
    pub state: views::State,
}

/// What a person does to a request.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum WireRemedy {
    /// A dead letter is tried again; an answer that it has is only sent again.
    Retry,
    /// A dead letter is worked on again, and its answer is thrown away: it was wrong.
    Rework,
    /// A dead letter is given up for good.
    Drop,
    /// A request that nothing was sent for is withdrawn.
    Cancel,
}

/// A person retries, reworks, drops or cancels a request.
#[utoipa::path(
    post, path = "/v1/requests/{id}/{remedy}", tag = "operations",
    params(("id" = String, Path, pattern = "^(0x)?[0-9a-fA-F]{64}$", description = "Which request."),
        ("remedy" = inline(WireRemedy), Path, description = "What is done to it.")),
    responses(
        (status = 200, description = "It is done.", body = Mended),
        Problem,
    ),
)]
pub(super) async fn mend(
    State(api): State<Api>,
    Path((id, remedy)): Path<(String, WireRemedy)>,
    axum::Extension(caller): axum::Extension<super::auth::Caller>,
) -> Result<Json<Mended>, Problem> {
    let id: RequestId = id.parse()?;
    let (what, called) = match remedy {
        WireRemedy::Retry => (Remedy::Retry, "retry"),
        WireRemedy::Rework => (Remedy::Rework, "rework"),
        WireRemedy::Drop => (Remedy::Drop, "drop"),
        WireRemedy::Cancel => (Remedy::Cancel, "cancel"),
    };
    let outcome = api.store.apply_one(Mend { id, remedy: what }).await?;
    super::audit_request(&caller, called, &id, outcome.holds());
    match outcome {
        Outcome::Applied(Effect::Now(state)) | Outcome::Duplicate(Effect::Now(state)) => {
            Ok(Json(Mended { state: state.into() }))
        }
        Outcome::NotFound(Missing::Request(_)) => Err(gone(id)),
        Outcome::Stale(Stale::State(state)) => {
            Err(Problem::conflict(format!("it is {}, which {called} does not change", views::State::from(state))))
        }
        Outcome::Stale(Stale::Lane(_)) => Err(Problem::conflict(
            "a lane of its destination is stopped, and may have sent this answer: reconcile or rebuild it first",
        )),
        other => Err(other.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::body::Body;
    use roundtrip::clock::SystemClock;
    use roundtrip::station::Shutdown;
    use roundtrip::store::op::{Define, Op};
    use roundtrip::store::policy::RoutePolicy;
    use roundtrip::store::query::Reply;
    use roundtrip::store::{Changes, Options, Store, StoreError, StoreFuture, Topic};
    use serde_json::json;
    use tower_service::Service;

    use super::*;
    use crate::api::{Intake, Manners, Premises};
    use crate::telemetry::{Scope, Telemetry};

    fn made(identity: &Identity, payload: &str, manner: Manner) -> Result<NewRequest, Problem> {
        request_of(&RouteName::new("r").unwrap(), identity, Payload::json(payload.to_owned()), manner)
    }

    fn keyed(key: &str) -> Manner {
        Manner { idempotency_key: Some(key.to_owned()), ..Manner::default() }
    }

    #[test]
    fn what_makes_it_the_same_request_and_the_same_submission() {
        let (given, content) = (Identity::Given, Identity::Content);
        let same = |a: &NewRequest, b: &NewRequest| (a.id == b.id, a.occurrence == b.occurrence);
        let one = made(&given, "1", keyed("a")).unwrap();
        assert_eq!(same(&one, &made(&given, "1", keyed("a")).unwrap()), (true, true));
        assert_eq!(same(&one, &made(&given, "1", keyed("b")).unwrap()), (false, false));
        let alone = made(&given, "1", Manner::default()).unwrap();
        assert_eq!(same(&alone, &made(&given, "1", Manner::default()).unwrap()), (false, false));
        let hashed = made(&content, "1", Manner::default()).unwrap();
        assert_eq!(same(&hashed, &made(&content, " 1", Manner::default()).unwrap()), (true, true));
        assert_eq!(same(&hashed, &made(&content, "1", keyed("a")).unwrap()), (true, false));
        assert!(made(&given, "1", keyed("")).is_err());
    }

    /// A store whose requests cannot be read for a while.
    struct Unread {
        inner: Arc<dyn Store>,
        now: AtomicBool,
    }

    impl Store for Unread {
        fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
            self.inner.apply(batch)
        }

        fn read(&self, query: roundtrip::store::query::Query) -> StoreFuture<'_, Reply> {
            match self.now.load(Ordering::Relaxed) {
                true => Box::pin(async { Err(StoreError::Unknown) }),
                false => self.inner.read(query),
            }
        }

        fn changes(&self, topic: Topic) -> Changes {
            self.inner.changes(topic)
        }
    }

    #[tokio::test]
    async fn what_is_stored_is_told_as_that_although_it_cannot_be_read() {
        let inner = roundtrip::store::open("memory:", Options::default()).unwrap();
        let store = Arc::new(Unread { inner, now: AtomicBool::new(false) });
        let route = RouteName::new("r").unwrap();
        store.apply_one(Define { route, policy: RoutePolicy::default() }).await.unwrap();
        let intake = Intake { submit: true, path: None, forms: false, identity: Identity::Given };
        let premises = Premises { routes: BTreeMap::from([("r".to_owned(), intake)]), ..Premises::default() };
        let second = Duration::from_secs(1);
        let manners = Manners {
            keys: None,
            calls_per_second: None,
            wait_max: second,
            store_wait_max: second,
            body_bytes_max: 1000,
        };
        let clock = Arc::new(SystemClock::new());
        let telemetry = Telemetry::start(store.clone(), clock, Scope::default(), None);
        let router = Api::new(store.clone(), Arc::new(premises), manners, telemetry, Shutdown::new()).router();
        let post = async |path: &str, body: serde_json::Value| {
            let call = axum::http::Request::post(path).header("content-type", "application/json");
            let call = call.header("host", "localhost").body(Body::from(body.to_string())).unwrap();
            let answer = router.clone().call(call).await.unwrap();
            let (status, body) = (answer.status(), axum::body::to_bytes(answer.into_body(), 10_000).await.unwrap());
            (status, serde_json::from_slice::<serde_json::Value>(&body).unwrap())
        };
        let keyed = |key: &str| json!({"payload": 1, "idempotency_key": key});
        post("/v1/routes/r/requests/bulk", json!({"requests": [keyed("a")]})).await;
        store.now.store(true, Ordering::Relaxed);
        let (status, told) =
            post("/v1/routes/r/requests/bulk", json!({"requests": [keyed("a"), keyed("b"), {"payload": 2}]})).await;
        let words: Vec<&str> =
            told["requests"].as_array().unwrap().iter().map(|one| one["admission"].as_str().unwrap()).collect();
        assert_eq!((status, words), (StatusCode::OK, vec!["known", "new", "new"]), "{told}");
        let unsure = told["requests"][0]["detail"].as_str().unwrap();
        assert!(unsure.contains("could not be read") && told["requests"][1].get("detail").is_none(), "{told}");
        let (status, told) = post("/v1/routes/r/requests?wait=1ms", json!(3)).await;
        assert_eq!((status, &told["admission"]), (StatusCode::CREATED, &json!("new")), "{told}");
        let known = format!("/v1/routes/r/requests?id={}", told["id"].as_str().unwrap());
        assert_eq!(post(&known, json!(3)).await.0, StatusCode::SERVICE_UNAVAILABLE, "this call stored nothing");
        store.now.store(false, Ordering::Relaxed);
        assert_eq!(post(&known, json!(3)).await.1["admission"], "known");
    }

    #[test]
    fn a_prefix_is_bytes_and_perhaps_a_half() {
        let read = |text: &str| text.parse::<Prefix>();
        assert_eq!(read("0x0aFf").unwrap(), Prefix { bytes: vec![10, 255], half: None });
        let odd = read("abc").unwrap();
        assert_eq!(odd, Prefix { bytes: vec![0xab], half: Some(0xc) });
        let id = |second: u8| RequestId(std::array::from_fn(|at| [0xab, second].get(at).copied().unwrap_or(0)));
        assert!(odd.fits(&id(0xc7)) && !odd.fits(&id(0xb7)));
        for bad in ["zz", "+f", "ää", &"0".repeat(65)] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_form_is_told_from_json_and_other_bodies() {
        let form = Some("application/x-www-form-urlencoded");
        for (kind, body, told) in [
            (form, "a=1", Some(true)),
            (None, "a=1", Some(true)),
            (None, "", Some(true)),
            (form, " {\"a\": 1}", Some(false)),
            (Some("application/json"), "1", Some(false)),
            (Some("application/ld+json"), "1", Some(false)),
            (Some("text/plain"), "", Some(true)),
            (Some("text/plain"), "a=1", None),
        ] {
            assert_eq!(is_form(kind, body.as_bytes()).ok(), told, "{kind:?} {body}");
        }
    }
}
