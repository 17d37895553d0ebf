//! What was asked and answered, byte for byte.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use roundtrip::store::ReadExt;
use roundtrip::store::query::{Bodies, Found};
use roundtrip::words::{Payload, RequestId};

use super::Api;
use super::path::Path;
use super::problem::Problem;
use super::requests::gone;

/// Bytes as they are stored, whatever they are: never run or shown by a browser.
fn bytes_of(payload: Payload) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/octet-stream"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, payload.bytes).into_response()
}

impl Api {
    async fn bodies(&self, id: &str) -> Result<Bodies, Problem> {
        let id: RequestId = id.parse()?;
        match self.store.get(id).await? {
            Some(Found::Live(_, bodies)) => Ok(bodies),
            Some(Found::Ended(_)) => Err(Problem::not_found(format!("request {id} has ended, and its bytes are gone"))),
            None => Err(gone(id)),
        }
    }
}

/// What is asked, byte for byte as it came.
#[utoipa::path(
    get, path = "/v1/requests/{id}/payload", tag = "requests",
    params(("id" = String, Path, description = "Which request.")),
    responses(
        (status = 200, description = "The bytes.", body = Vec<u8>, content_type = "application/octet-stream"),
        Problem,
    ),
)]
pub(super) async fn payload(State(api): State<Api>, Path(id): Path<String>) -> Result<Response, Problem> {
    Ok(bytes_of(api.bodies(&id).await?.payload))
}

/// The answer, byte for byte as it was given.
#[utoipa::path(
    get, path = "/v1/requests/{id}/response", tag = "requests",
    params(("id" = String, Path, description = "Which request.")),
    responses(
        (status = 200, description = "The bytes.", body = Vec<u8>, content_type = "application/octet-stream"),
        Problem,
    ),
)]
pub(super) async fn response(State(api): State<Api>, Path(id): Path<String>) -> Result<Response, Problem> {
    let response = api.bodies(&id).await?.response;
    response.map(bytes_of).ok_or_else(|| Problem::not_found(format!("request {id} has no answer yet")))
}
