//! The description of all calls, and the page that shows it.
//!
//! The page is a file like those of the dashboard: it says nothing by itself, and asks for the description with the
//! token of the dashboard's login. The paths that routes have of their own are described as they are configured.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use utoipa::openapi::path::ParameterIn;
use utoipa::openapi::schema::AdditionalProperties;
use utoipa::openapi::{Content, HttpMethod, ObjectBuilder, OpenApi, RefOr, Type};
use utoipa_swagger_ui as swagger;

use super::problem::Problem;
use super::{Api, Intake, dashboard};

/// Where the page is.
const AT: &str = "/docs";
/// The call that a route's own path stands for.
const SUBMIT: &str = "/v1/routes/{route}/requests";
const FORM: &str = "application/x-www-form-urlencoded";
/// What the page is made of besides.
const PARTS: [&str; 2] = ["swagger-ui.css", "swagger-ui-bundle.js"];

/// The description of all calls, as OpenAPI 3.1.
#[utoipa::path(
    get, path = "/v1/openapi.json", tag = "session",
    responses(
        (status = 200, description = "This document.", body = serde_json::Value),
        Problem,
    ),
)]
pub(super) async fn document(State(api): State<Api>) -> Response {
    Json(api.document()).into_response()
}

/// The page.
pub(super) fn viewer() -> Router<Api> {
    let page = get(|asked| async move { dashboard::docs(&asked) });
    let router = Router::new().route(AT, page.clone()).route(&format!("{AT}/"), page);
    PARTS.into_iter().fold(router, |router, name| router.route(&format!("{AT}/{name}"), get(async move || part(name))))
}

fn part(name: &str) -> Response {
    match swagger::serve(name, Arc::new(swagger::Config::default())) {
        Ok(Some(file)) => {
            let headers =
                [(header::CONTENT_TYPE, file.content_type.as_str()), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
            (headers, file.bytes.into_owned()).into_response()
        }
        Ok(None) | Err(_) => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Describes besides the paths that routes have of their own: each is a submission to its route.
pub(super) fn with_own_paths(mut described: OpenApi, routes: &BTreeMap<String, Intake>) -> OpenApi {
    let Some(submit) = described.paths.get_path_operation(SUBMIT, HttpMethod::Post).cloned() else { return described };
    for (name, intake) in routes {
        let Some(path) = &intake.path else { continue };
        let mut call = submit.clone();
        call.operation_id = Some(format!("submit_to_{name}"));
        call.summary = Some(format!("Submits a request to {name}."));
        let in_path = |parameter: &RefOr<_>| {
            matches!(parameter, RefOr::T(utoipa::openapi::path::Parameter { parameter_in: ParameterIn::Path, .. }))
        };
        call.parameters = call.parameters.map(|all| all.into_iter().filter(|one| !in_path(one)).collect());
        if intake.forms {
            let about = "A form's fields, and with them those of the query but `wait`, are the fields of what is asked, \
                         as texts; with JSON, the query is as everywhere.";
            call.description = call.description.map(|text| format!("{text}\n\n{about}"));
            let text = ObjectBuilder::new().schema_type(Type::String);
            let fields = ObjectBuilder::new().additional_properties(Some(AdditionalProperties::from(text)));
            if let Some(RefOr::T(body)) = &mut call.request_body {
                body.content.insert(FORM.to_owned(), RefOr::T(Content::new(Some(fields))));
            }
        }
        described.paths.add_path_operation(path, vec![HttpMethod::Post], call);
    }
    described
}
