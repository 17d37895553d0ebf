//! The dashboard: files that are part of the program, and who is looking.
//!
//! Whatever it shows comes from the same calls that everybody has. The files say nothing of the
//! store, so they are served to anybody; a token goes into the fragment of a link, which a
//! browser keeps to itself, and from there into the header of each call.

use std::borrow::Cow;
use std::io::Write;
use std::sync::OnceLock;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use flate2::Compression;
use flate2::write::GzEncoder;
use roundtrip::words::RequestId;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::auth::{Caller, Role};
use super::problem::Problem;

/// Where the files are.
const AT: &str = "/dashboard/";
/// What a page may do: run our scripts, look as our styles say, and call this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Kept, and asked about before it is used again.
const CACHING: &str = "no-cache";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PICTURE: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// A file of the dashboard.
struct File {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
    /// The same, made smaller when it is first asked for.
    packed: OnceLock<Vec<u8>>,
}

macro_rules! files {
    ($($name:literal $kind:ident,)*) => {
        [$(File {
            name: $name,
            kind: $kind,
            bytes: include_bytes!(concat!("../../dashboard/", $name)),
            packed: OnceLock::new(),
        },)*]
    };
}

/// All of it; the first is what is served at `/`, the second at `/docs`.
static FILES: [File; 29] = files![
    "index.html" HTML,
    "docs.html" HTML,
    "docs.js" SCRIPT,
    "style.css" CSS,
    "app.js" SCRIPT,
    "api.js" SCRIPT,
    "live.js" SCRIPT,
    "dom.js" SCRIPT,
    "words.js" SCRIPT,
    "parts.js" SCRIPT,
    "faults.js" SCRIPT,
    "chart.js" SCRIPT,
    "pages/overview.js" SCRIPT,
    "pages/flow.js" SCRIPT,
    "pages/attention.js" SCRIPT,
    "pages/doctor.js" SCRIPT,
    "pages/orders.js" SCRIPT,
    "pages/routes.js" SCRIPT,
    "pages/listeners.js" SCRIPT,
    "pages/lanes.js" SCRIPT,
    "pages/slots.js" SCRIPT,
    "pages/requests.js" SCRIPT,
    "pages/request.js" SCRIPT,
    "pages/dead.js" SCRIPT,
    "pages/queues.js" SCRIPT,
    "icon.svg" PICTURE,
    "vendor/uplot.js" SCRIPT,
    "vendor/uplot.css" CSS,
    "vendor/uplot.LICENSE" TEXT,
];

impl File {
    /// What it holds. While developing, what is on disk now, so that a reload shows a change.
    fn content(&self) -> Cow<'static, [u8]> {
        #[cfg(debug_assertions)]
        if let Ok(bytes) = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard/").to_owned() + self.name) {
            return Cow::Owned(bytes);
        }
        Cow::Borrowed(self.bytes)
    }

    /// The same, gzipped; nothing if that fails.
    fn packed(&self, content: &[u8]) -> Option<Cow<'_, [u8]>> {
        // While developing, it is another one each time.
        if !std::ptr::eq(content, self.bytes) {
            return gzip(content).ok().map(Cow::Owned);
        }
        let packed = self.packed.get_or_init(|| gzip(content).unwrap_or_default());
        Some(Cow::Borrowed(packed.as_slice())).filter(|packed| !packed.is_empty())
    }

    /// The file, or word that the browser has it already.
    fn serve(&self, asked: &HeaderMap) -> Response {
        let content = self.content();
        let encodings = asked.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let packed = if encodings.contains("gzip") { self.packed(&content) } else { None };
        let form = if packed.is_some() { "gzip" } else { "plain" };
        let tag = format!("\"{:.16}-{form}\"", RequestId::of(&[&content]).to_string());
        let known = asked.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
        let fresh = known.is_some_and(|known| known.split(',').any(|one| one.trim().trim_start_matches("W/") == tag));
        let headers = [
            (header::CONTENT_TYPE, self.kind),
            (header::VARY, "accept-encoding"),
            (header::CACHE_CONTROL, CACHING),
            (header::ETAG, tag.as_str()),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        ];
        let small = packed.is_some().then_some([(header::CONTENT_ENCODING, "gzip")]);
        match fresh {
            true => (StatusCode::NOT_MODIFIED, headers).into_response(),
            false => (headers, small, packed.unwrap_or(content).into_owned()).into_response(),
        }
    }
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// The files, under their paths.
pub(super) fn files() -> Router<Api> {
    FILES.iter().enumerate().fold(Router::new(), |router, (n, file)| {
        let serve = move |asked: HeaderMap| async move { file.serve(&asked) };
        let router = router.route(&format!("{AT}{}", file.name), get(serve));
        if n == 0 { router.route("/", get(serve)) } else { router }
    })
}

/// The page that shows the calls.
pub(super) fn docs(asked: &HeaderMap) -> Response {
    FILES[1].serve(asked)
}

/// What is said of a path that has nothing: to a browser as a page, to everybody else as a problem.
pub(super) async fn nothing_here(asked: HeaderMap) -> Response {
    let wanted = asked.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if wanted.contains("text/html") {
        // What a browser has of the front page is not what it asked for.
        return (StatusCode::NOT_FOUND, FILES[0].serve(&HeaderMap::new())).into_response();
    }
    Problem::not_found("there is nothing at this path; /docs shows what there is").into_response()
}

/// Who calls, and what they may do.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct Me {
    /// The name in the token; `anybody` where nobody needs one.
    pub name: String,
    /// What they may do.
    pub roles: Vec<Role>,
    /// Until when the token is good, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// The program's version.
    pub version: &'static str,
    /// The time here, in milliseconds since 1970.
    pub now_ms: u64,
}

/// Who calls, and what they may do.
#[utoipa::path(
    get, path = "/v1/me", tag = "session",
    responses(
        (status = 200, description = "Who calls.", body = Me),
        Problem,
    ),
)]
pub(super) async fn me(State(api): State<Api>, Extension(caller): Extension<Caller>) -> Json<Me> {
    let Caller { name, roles, expires_at_s, .. } = caller;
    let expires_at_ms = expires_at_s.map(|at| at.saturating_mul(1000));
    Json(Me { name, roles, expires_at_ms, version: env!("CARGO_PKG_VERSION"), now_ms: api.now().0 })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::path::Path;

    use super::*;

    fn names(folder: &Path, prefix: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            match entry.file_type().unwrap().is_dir() {
                true => names(&entry.path(), &format!("{name}/"), found),
                false => found.push(name),
            }
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served() {
        let mut found = Vec::new();
        names(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard")), "", &mut found);
        let mut served: Vec<String> = FILES.iter().map(|file| file.name.to_owned()).collect();
        found.sort();
        served.sort();
        assert_eq!(found, served);
    }

    #[test]
    fn a_file_that_the_browser_has_is_not_sent_again() {
        let first = FILES[0].serve(&HeaderMap::new());
        let tag = first.headers()[header::ETAG].clone();
        let again = FILES[0].serve(&HeaderMap::from_iter([(header::IF_NONE_MATCH, tag)]));
        assert_eq!((first.status(), again.status()), (StatusCode::OK, StatusCode::NOT_MODIFIED));
        let other = FILES[0].serve(&HeaderMap::from_iter([(header::IF_NONE_MATCH, "\"other\"".parse().unwrap())]));
        assert_eq!(other.status(), StatusCode::OK);
    }

    #[test]
    fn a_file_is_sent_small_to_whoever_can_read_that_and_is_not_taken_for_the_other_form() {
        let small = HeaderMap::from_iter([(header::ACCEPT_ENCODING, "gzip, br".parse().unwrap())]);
        let [packed, plain] = [&small, &HeaderMap::new()].map(|asked| FILES[0].serve(asked));
        assert_eq!(packed.headers()[header::CONTENT_ENCODING], "gzip");
        assert!(!plain.headers().contains_key(header::CONTENT_ENCODING));
        assert_ne!(packed.headers()[header::ETAG], plain.headers()[header::ETAG]);
        for file in FILES.iter().filter(|file| file.bytes.len() > 1000) {
            assert!(gzip(file.bytes).unwrap().len() * 10 < file.bytes.len() * 7, "{}", file.name);
        }
    }

    #[tokio::test]
    async fn a_path_without_anything_is_a_page_for_browsers_and_a_problem_for_programs() {
        for (accept, kind) in [("text/html,*/*;q=0.8", HTML), ("application/json", "application/problem+json")] {
            let asked = HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())]);
            let told = nothing_here(asked).await;
            assert_eq!(
                (told.status(), told.headers()[header::CONTENT_TYPE].to_str().unwrap()),
                (StatusCode::NOT_FOUND, kind)
            );
        }
    }

    #[test]
    fn nothing_names_another_server() {
        for file in FILES.iter().filter(|file| [HTML, CSS, SCRIPT].contains(&file.kind)) {
            let text = std::str::from_utf8(file.bytes).unwrap();
            let ours = text.replace("http://www.w3.org/2000/svg", "").replace("https://github.com/leeoniya/uPlot", "");
            assert!(!ours.contains("http://") && !ours.contains("https://"), "{}", file.name);
        }
    }
}
