//! What a caller is told when a call did not do what it asked: RFC 9457, `application/problem+json`.

use std::borrow::Cow;

use axum::Json;
use axum::extract::rejection::{BytesRejection, JsonRejection, PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use roundtrip::listener::SubmitError;
use roundtrip::sender::LaneStatus;
use roundtrip::store::StoreError;
use roundtrip::store::op::{Invalid, Missing, Outcome, Stale};
use roundtrip::words::ParseError;
use serde::{Deserialize, Serialize};
use utoipa::{IntoResponses, ToSchema};

use super::views::State;

/// After how many seconds a caller may come again.
const AGAIN_AFTER_S: u32 = 1;

/// What is said of a body that is larger than one may be.
pub(super) const BODY_TOO_LARGE: &str = "the body is too large";

/// What is said where the store did not say what became of a call.
const OUTCOME_UNKNOWN: &str = "the store did not answer, and nobody knows whether this was done: make the same call again, with the same Idempotency-Key, \
                               id, claim or token, and nothing is done twice";

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoResponses)]
#[response(status = "default", content_type = "application/problem+json")]
pub(crate) struct Problem {
    /// What kind of problem: `about:blank`, so the status says it.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    /// The status, in words.
    pub title: Cow<'static, str>,
    /// The status.
    pub status: u16,
    /// What is wrong, and what to do.
    pub detail: String,
}

impl Problem {
    /// A problem of this status.
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        let title = status.canonical_reason().unwrap_or("refused");
        Problem { kind: "about:blank".into(), title: title.into(), status: status.as_u16(), detail: detail.into() }
    }

    /// What was asked for is not here.
    pub(super) fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, detail)
    }

    /// The call makes no sense.
    pub(super) fn unprocessable(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// What was asked for no longer fits how things are.
    pub(super) fn conflict(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, detail)
    }

    /// Not now: the caller may come again.
    pub(super) fn later(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let later = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS].contains(&status);
        let mut response = (status, Json(self.clone())).into_response();
        // For whoever tells it in other words.
        response.extensions_mut().insert(self);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if later {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(AGAIN_AFTER_S));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        match error {
            StoreError::BatchTooLarge { .. } => Problem::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()),
            StoreError::Unknown => Problem::later(OUTCOME_UNKNOWN),
            error => Problem::later(error.to_string()),
        }
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Problem {
        match invalid {
            Invalid::UnknownRoute(_) => Problem::not_found(invalid.to_string()),
            Invalid::PayloadTooLarge { .. } => Problem::new(StatusCode::PAYLOAD_TOO_LARGE, invalid.to_string()),
            invalid => Problem::unprocessable(invalid.to_string()),
        }
    }
}

/// What became of an operation, where it is not what was asked for.
impl From<Outcome> for Problem {
    fn from(outcome: Outcome) -> Problem {
        match outcome {
            Outcome::Full(full) => Problem::later(format!("{full}; nothing was stored")),
            Outcome::Invalid(invalid) => invalid.into(),
            Outcome::NotFound(missing) => Problem::not_found(not_here(&missing)),
            Outcome::Stale(stale) => Problem::conflict(too_late(stale)),
            Outcome::Applied(_) | Outcome::Duplicate(_) => Problem::later("the store answered something else"),
        }
    }
}

fn not_here(missing: &Missing) -> String {
    match missing {
        Missing::Request(id) => format!("no request {id} is here"),
        Missing::Occurrence(id) => format!("no live request has the occurrence {id}"),
        Missing::Lane(lane) => format!("no lane is called {lane}"),
        Missing::Parcel(nonce) => format!("nothing is on slot {}", nonce.0),
        Missing::Attempt(hash) => format!("the slot has no transaction {hash}"),
    }
}

fn too_late(stale: Stale) -> String {
    match stale {
        Stale::Lease(state) => format!("it is {}, and no longer in this lease", State::from(state)),
        Stale::Superseded => "what is asked was replaced since".to_owned(),
        Stale::State(state) => format!("it is {}, which this does not change", State::from(state)),
        Stale::Cursor(_) => "the listener is at another place".to_owned(),
        Stale::RolledBack => "the store was rolled back, and its lanes have stopped".to_owned(),
        Stale::Seat { holder: Some(holder), .. } => format!("{holder} has this now"),
        Stale::Seat { holder: None, .. } => "somebody else has this now".to_owned(),
        Stale::Nonce { next } => format!("that slot cannot be used: the lane's next one is {}", next.0),
        Stale::Lane(status) => lane_stands(&status),
        Stale::Parcel(_) => "what is on the slot is at another stage".to_owned(),
        Stale::Delivery(id, state) => format!("the answer of {id} is {}, not ready", State::from(state)),
    }
}

fn lane_stands(status: &LaneStatus) -> String {
    match status {
        LaneStatus::Active => "the lane is active".to_owned(),
        LaneStatus::Paused { reason } => format!("the lane is paused: {reason}"),
        LaneStatus::Quarantined { until } => format!("the lane is in quarantine until {} ms since 1970", until.0),
        LaneStatus::Stopped => "the lane is stopped until it is reconciled".to_owned(),
        LaneStatus::Unfunded { reason } => format!("the lane cannot pay: {reason}"),
    }
}

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Problem {
        match error {
            SubmitError::Full(full) => Outcome::Full(full).into(),
            SubmitError::Invalid(invalid) => invalid.into(),
            SubmitError::Store(error) => error.into(),
            SubmitError::Refused(_) => Problem::conflict(error.to_string()),
            SubmitError::Encode(_) => Problem::unprocessable(error.to_string()),
        }
    }
}

impl From<ParseError> for Problem {
    fn from(error: ParseError) -> Problem {
        Problem::unprocessable(error.to_string())
    }
}

/// Why a call could not be read, in our words. How large a body may be is said where that is known.
fn unread(status: StatusCode, text: &str) -> Problem {
    const BEGINNINGS: [(&str, &str); 3] = [
        ("Failed to deserialize query string: ", "the query cannot be read: "),
        ("Failed to deserialize the JSON body into the target type: ", "the body cannot be read: "),
        ("Failed to parse the request body as JSON: ", "the body is no JSON: "),
    ];
    let ours = |(theirs, ours): &(&str, &str)| Some(format!("{ours}{}", text.strip_prefix(theirs)?));
    let detail = match status {
        StatusCode::PAYLOAD_TOO_LARGE => BODY_TOO_LARGE.to_owned(),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "send JSON, with the header Content-Type: application/json".to_owned(),
        _ => BEGINNINGS.iter().find_map(ours).unwrap_or_else(|| text.to_owned()),
    };
    Problem::new(status, detail)
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Problem {
        unread(rejection.status(), &rejection.body_text())
    }
}

impl From<BytesRejection> for Problem {
    fn from(rejection: BytesRejection) -> Problem {
        unread(rejection.status(), &rejection.body_text())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Problem {
        unread(rejection.status(), &rejection.body_text())
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Problem {
        Problem::new(rejection.status(), rejection.body_text())
    }
}
