//! Requests over HTTP: submit, look up, wait for, list; and what a person does to one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use roundtrip::inbox::Identity;
use roundtrip::listener::request_with_id;
use roundtrip::store::op::{Admission, Admit, Effect, Mend, Missing, NewRequest, Outcome, Remedy, Stale};
use roundtrip::store::query::{Found, ListFilter};
use roundtrip::store::{ReadExt, StoreExt};
use roundtrip::trace::TraceContext;
use roundtrip::words::{
    ADMIT_MAX, Encoding, OccurrenceId, OrderKey, PAGE_MAX, Payload, RequestId, RouteName, Seq, UnixMs,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::body::{self, Whole, WireEncoding};
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
    /// The requests; all are stored, or none.
    pub requests: Vec<BulkItem>,
}

/// A request that is durable.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Accepted {
    /// Its id.
    pub id: String,
    /// `new`, `attached`, `dropped`, `rearmed`, `behind`, `voted`, `known` or `ended`.
    pub admission: Cow<'static, str>,
    /// Where its state can be read.
    pub status_url: String,
}

/// Many requests that are durable, in the order in which they came.
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
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let SubmitQuery { id, due_ms, deadline_ms, priority, key, .. } = query;
        let (idempotency_key, trace) = (text("idempotency-key"), trace_of(headers));
        let manner = Manner { id, idempotency_key: idempotency_key.clone(), due_ms, deadline_ms, priority, key, trace };
        let request = request_of(&route, &identity, payload, manner)?;
        let id = request.id;
        let (keyed, payload) = (idempotency_key.is_some(), request.payload.clone());
        let accepted = self.admit(vec![request]).await?.into_iter().next();
        let accepted = accepted.ok_or_else(|| Problem::later("the store answered nothing"))?;
        if keyed && accepted.admission == "known" {
            self.check_key(id, &payload).await?;
        }
        if wait.is_some() {
            let found = self.waited(id, wait).await?.ok_or_else(|| gone(id))?;
            return Ok(Json(found).into_response());
        }
        let status = if accepted.admission == "new" { StatusCode::CREATED } else { StatusCode::OK };
        let location = [(header::LOCATION, accepted.status_url.clone())];
        Ok((status, location, Json(accepted)).into_response())
    }

    /// Refuses a key that was used for another request, which nothing was stored of.
    async fn check_key(&self, id: RequestId, payload: &Payload) -> Result<(), Problem> {
        let same = match self.store.get(id).await? {
            Some(Found::Live(_, bodies)) => bodies.payload == *payload,
            // What was asked is forgotten with the end; the id is what is left to compare.
            Some(Found::Ended(_)) => true,
            None => false,
        };
        if same {
            Ok(())
        } else {
            Err(Problem::conflict("this Idempotency-Key was used for another request: nothing was stored"))
        }
    }

    async fn admit(&self, requests: Vec<NewRequest>) -> Result<Vec<Accepted>, Problem> {
        let ids: Vec<RequestId> = requests.iter().map(|request| request.id).collect();
        let traces: Vec<Option<Box<str>>> = requests.iter().map(|request| request.trace.clone()).collect();
        match self.store.apply_one(Admit { cursor: None, requests }).await? {
            Outcome::Applied(Effect::Admitted(admissions, _)) | Outcome::Duplicate(Effect::Admitted(admissions, _)) => {
                for ((id, trace), admission) in ids.iter().zip(traces).zip(&admissions) {
                    if matches!(admission, Admission::New { .. }) {
                        self.telemetry.admitted(*id, trace.as_deref());
                    }
                }
                Ok(ids.iter().zip(&admissions).map(|(id, admission)| accepted(id, admission)).collect())
            }
            Outcome::Full(full) => Err(Problem::later(format!("no room: {full:?}; nothing was stored"))),
            Outcome::Invalid(invalid) => Err(invalid.into()),
            other => Err(Problem::conflict(format!("refused: {other:?}"))),
        }
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
        Ok(self.store.get(id).await?.map(WireRequest::from))
    }

    fn wait(&self, text: Option<&str>) -> Result<Option<Duration>, Problem> {
        let Some(text) = text else { return Ok(None) };
        let length = humantime::parse_duration(text)
            .map_err(|_| Problem::unprocessable(format!("{text:?} is no length of time, such as 30s")))?;
        Ok(Some(length.min(self.wait_max)))
    }
}

fn accepted(id: &RequestId, admission: &Admission) -> Accepted {
    let word = match admission {
        Admission::New { .. } => "new",
        Admission::Attached { .. } => "attached",
        Admission::Dropped { .. } => "dropped",
        Admission::Rearmed { .. } => "rearmed",
        Admission::Behind { .. } => "behind",
        Admission::Voted { .. } => "voted",
        Admission::Known { .. } => "known",
        Admission::Ended(_) => "ended",
    };
    Accepted { id: id.to_string(), admission: word.into(), status_url: format!("/v1/requests/{id}") }
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
/// the same submission: it is recognised, and nothing happens twice.
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
/// those of a JSON object, if the route says so and no JSON comes; else as everywhere.
pub(super) async fn submit_at(
    route: String,
    State(api): State<Api>,
    uri: Uri,
    headers: HeaderMap,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let bytes = bytes?;
    let forms = api.premises.routes.get(&route).is_some_and(|intake| intake.forms);
    if !forms || content_type(&headers) == Some("application/json") {
        let Query(query) = Query::try_from_uri(&uri)?;
        let payload = payload_of(&headers, bytes)?;
        return api.submitted(&route, query, &headers, payload).await;
    }
    let Query(mut fields) = Query::<BTreeMap<String, String>>::try_from_uri(&uri)?;
    let query = SubmitQuery { wait: fields.remove("wait"), ..SubmitQuery::default() };
    let form: BTreeMap<String, String> =
        serde_urlencoded::from_bytes(&bytes).map_err(|error| Problem::unprocessable(error.to_string()))?;
    fields.extend(form);
    let json = serde_json::to_vec(&fields).map_err(|error| Problem::unprocessable(error.to_string()))?;
    api.submitted(&route, query, &headers, Payload::json(json)).await
}

/// The trace context that a call came with; one that is none is left out.
fn trace_of(headers: &HeaderMap) -> Option<Box<str>> {
    let given = headers.get("traceparent")?.to_str().ok()?;
    TraceContext::parse(given).map(|context| context.to_string().into())
}

fn content_type(headers: &HeaderMap) -> Option<&str> {
    let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    kind.split(';').next().map(str::trim)
}

/// What a body asks.
fn payload_of(headers: &HeaderMap, bytes: Bytes) -> Result<Payload, Problem> {
    let encoding = match content_type(headers) {
        // What curl says of a body unless it is told otherwise.
        None | Some("application/json" | "application/x-www-form-urlencoded") => Encoding::Json,
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

/// Submits many requests: all are stored in one commit, or none.
#[utoipa::path(
    post, path = "/v1/routes/{route}/requests/bulk", tag = "requests",
    params(("route" = String, Path, description = "Which route.")),
    request_body = Bulk,
    responses(
        (status = 200, description = "All are durable.", body = BulkAccepted),
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
        requests.push(request_of(&route, &identity, payload, manner)?);
    }
    Ok(Json(BulkAccepted { requests: api.admit(requests).await? }))
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
    /// Only ids that begin with these hexadecimal digits; an even number of them.
    pub id_prefix: Option<String>,
    /// Only those whose last error contains this text.
    pub error: Option<String>,
    /// What the page before said is next.
    pub after: Option<Whole>,
    /// At most so many.
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
    let mut states = Vec::new();
    for word in query.state.iter().flat_map(|text| text.split(',')) {
        let state: views::State = serde_json::from_value(word.trim().into())
            .map_err(|_| Problem::unprocessable(format!("{word:?} is no state")))?;
        let live =
            state.live().ok_or_else(|| Problem::unprocessable(format!("{word}: only live requests are listed")))?;
        states.push(live);
    }
    let filter = ListFilter {
        route: query.route.as_deref().map(RouteName::new).transpose()?,
        states,
        from: query.from_ms.map(|ms| UnixMs(ms.0)),
        to: query.to_ms.map(|ms| UnixMs(ms.0)),
        id_prefix: query.id_prefix.as_deref().map(prefix).transpose()?.unwrap_or_default(),
        error_text: query.error,
        after: query.after.map(|seq| Seq(seq.0)),
        limit: query.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX),
    };
    let page = api.store.list(filter).await?;
    let requests = page.requests.into_iter().map(WireRequest::from).collect();
    Ok(Json(WirePage { requests, next: page.next.map(|seq| seq.0) }))
}

/// The bytes that an id begins with.
pub(super) fn prefix(text: &str) -> Result<Vec<u8>, Problem> {
    let bad = || Problem::unprocessable(format!("{text:?} is no even number of hexadecimal digits, 64 at the most"));
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.len() > 64 || !digits.len().is_multiple_of(2) || !digits.is_ascii() {
        return Err(bad());
    }
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| bad());
    (0..digits.len()).step_by(2).map(byte).collect()
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
    /// A dead letter is tried again.
    Retry,
    /// A dead letter is given up for good.
    Drop,
    /// A request that nothing was sent for is withdrawn.
    Cancel,
}

/// A person retries, drops or cancels a request.
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
    path: Result<Path<(String, WireRemedy)>, PathRejection>,
    axum::Extension(caller): axum::Extension<super::auth::Caller>,
) -> Result<Json<Mended>, Problem> {
    let Path((id, remedy)) = path?;
    let id: RequestId = id.parse()?;
    let (what, called) = match remedy {
        WireRemedy::Retry => (Remedy::Retry, "retry"),
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
            Err(Problem::conflict(format!("it is {:?}, which {called} does not change", views::State::from(state))))
        }
        other => Err(Problem::conflict(format!("refused: {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

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

    #[test]
    fn a_prefix_is_bytes() {
        assert_eq!(prefix("0x0aff").unwrap(), [10, 255]);
        for bad in ["0", "zz", "ää", &"0".repeat(66)] {
            assert!(prefix(bad).is_err(), "{bad}");
        }
    }
}
