//! What a caller is told when a call did not do what it asked: RFC 9457, `application/problem+json`.

use std::borrow::Cow;

use axum::Json;
use axum::extract::rejection::{BytesRejection, JsonRejection, PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use roundtrip::listener::SubmitError;
use roundtrip::store::StoreError;
use roundtrip::store::op::Invalid;
use roundtrip::words::ParseError;
use serde::{Deserialize, Serialize};
use utoipa::{IntoResponses, ToSchema};

/// After how many seconds a caller may come again.
const AGAIN_AFTER_S: u32 = 1;

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

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Problem {
        match error {
            SubmitError::Full(full) => Problem::later(format!("no room: {full:?}")),
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

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Problem {
        Problem::new(rejection.status(), rejection.body_text())
    }
}

impl From<BytesRejection> for Problem {
    fn from(rejection: BytesRejection) -> Problem {
        Problem::new(rejection.status(), rejection.body_text())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Problem {
        Problem::new(rejection.status(), rejection.body_text())
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Problem {
        Problem::new(rejection.status(), rejection.body_text())
    }
}
