//! What stands in a call's path. What cannot be read is told as every other problem is.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// The parts of a path that a call's address leaves open.
pub(super) struct Path<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, Problem> {
        let axum::extract::Path(read) = axum::extract::Path::from_request_parts(parts, state).await?;
        Ok(Path(read))
    }
}
