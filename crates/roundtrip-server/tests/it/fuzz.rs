//! The API is asked for everything that it describes, and for much that it does not, by
//! schemathesis: no call may break it, and every answer must be as described.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use roundtrip_server::api::auth::{Role, sign};
use serde_json::json;

use super::program::Program;

const SECRET: &str = "a secret of more than 32 bytes, for tests";
const CONFIG: &str = r#"
[store]
url = "sqlite:store.db"

[api]
wait_max = "20ms"

[api.auth]
secret = { env = "API_SECRET" }

[routes.work]
to = "caller"

[routes.own]
submit_path = "/own"

[routes.form]
submit_path = "/forms/take"
forms = true

[destinations.caller.keep]
at_least = "1h"
"#;

/// Names that there are, so that calls get further than a 404.
const NAMES: &str = r#"
[parameters]
"path.route" = "work"
"path.destination" = "caller"
"#;

/// Where what is not built here is installed.
pub(crate) fn tools() -> PathBuf {
    std::env::var_os("ROUNDTRIP_TOOLS").map_or(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools"), PathBuf::from)
}

/// How many calls there are at a path.
fn calls_at(path: &serde_json::Value) -> usize {
    ["get", "post", "put", "delete", "patch"].iter().filter(|method| path.get(method).is_some()).count()
}

#[tokio::test]
async fn no_call_breaks_the_api_and_every_answer_is_as_described() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("schemathesis.toml"), NAMES).unwrap();
    let all = [Role::Viewer, Role::Submitter, Role::Worker, Role::Operator];
    let token = sign(SECRET.as_bytes(), "fuzz", &all, Duration::from_secs(3600)).unwrap();
    let program = Program::start_with(folder.path(), CONFIG, &[("API_SECRET", SECRET)]).with_token(&token);
    for n in 0..20 {
        program.post("/v1/routes/work/requests", &json!(n)).await;
    }
    // Asked for first: by the time that all is done, the program has closed the connection.
    let (_, described) = program.get("/v1/openapi.json").await;
    let calls = described["paths"].as_object().unwrap().values().map(calls_at).sum::<usize>();
    let examples = if cfg!(soak) { "200" } else { "5" };
    let asked = Command::new(tools().join("python/bin/schemathesis"))
        .args(["run", &format!("{}/v1/openapi.json", program.base())])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        // A stream has no end that could be waited for.
        .args(["--exclude-path", "/v1/updates"])
        // What the description cannot say, such as that a lease's length is bounded, is told with 422; and a body
        // of any JSON, or a parameter that is left out, is taken for a breach of it.
        .args(["--exclude-checks", "positive_data_acceptance,negative_data_rejection"])
        // One worker: Python 3.11 loses count of how deep it is when two threads read source at once (CPython 106905).
        .args(["--max-examples", examples, "--seed", "1", "--no-color", "--workers", "1"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&asked.stdout);
    assert!(asked.status.success(), "{report}{}", String::from_utf8_lossy(&asked.stderr));
    // All but the stream, and the description that it reads.
    assert!(report.contains(&format!("Tested: {}\n", calls - 2)), "{calls} calls: {report}");
    let said = program.stop();
    assert!(!said.contains("panicked"), "{said}");
}
