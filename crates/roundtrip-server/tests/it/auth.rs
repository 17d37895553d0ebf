//! Who may call what: one test over every call that the API describes, and over those that it does not.

use std::process::Command;
use std::time::Duration;

use base64::Engine;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use reqwest::{Method, StatusCode};
use roundtrip_server::api::auth::{Role, sign};
use serde_json::{Value, json};
use tonic::Code;

use super::program::Program;
use super::stream::{Line, wants};

const SECRET: &str = "a secret of more than 32 bytes, for tests";
const CONFIG: &str = r#"
[store]
url = "memory:"

[api.auth]
secret = { env = "API_SECRET" }

[telemetry]
listen = "127.0.0.1:0"

[routes.work]
submit_path = "/own"
"#;

const HOUR: Duration = Duration::from_secs(3600);

/// Which role each kind of call needs, by its tag and path.
fn needed(tag: &str, method: &Method, path: &str) -> Vec<Role> {
    match (tag, method, path) {
        ("session", ..) => vec![Role::Viewer, Role::Submitter, Role::Worker, Role::Operator],
        ("watch", ..) => vec![Role::Viewer, Role::Operator],
        ("work", ..) => vec![Role::Worker],
        ("operations", ..) => vec![Role::Operator],
        ("requests", &Method::POST, _) => vec![Role::Submitter, Role::Operator],
        ("requests", _, "/v1/requests/{id}") => vec![Role::Viewer, Role::Operator, Role::Submitter],
        ("requests", ..) => vec![Role::Viewer, Role::Operator],
        other => panic!("nobody said who may call {other:?}"),
    }
}

#[tokio::test]
async fn every_call_wants_a_good_token_with_its_role() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start_with(folder.path(), CONFIG, &[("API_SECRET", SECRET)]);
    let viewer = sign(SECRET.as_bytes(), "v", &[Role::Viewer], HOUR).unwrap();
    let described = program.call(Method::GET, "/v1/openapi.json").bearer_auth(&viewer).send().await.unwrap();
    assert_eq!(described.status(), StatusCode::OK);
    let described: Value = serde_json::from_str(&described.text().await.unwrap()).unwrap();
    let (api, door) = (program.base(), program.metrics());
    // The other door shows the same to the same.
    let mut calls = vec![(door, Method::GET, "/metrics".to_owned(), vec![Role::Viewer, Role::Operator])];
    for (path, methods) in described["paths"].as_object().unwrap() {
        for (method, call) in methods.as_object().unwrap() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let tag = call["tags"][0].as_str().unwrap();
            if tag != "health" {
                let roles = needed(tag, &method, path);
                calls.push((api, method, path.replace("{id}", &"0".repeat(64)).replace(['{', '}'], ""), roles));
            } else {
                for base in [api, door] {
                    let call = program.call_at(base, method.clone(), path);
                    assert_eq!(call.send().await.unwrap().status(), StatusCode::OK, "{path}");
                }
            }
        }
    }
    assert!(calls.len() > 15, "{calls:?}");
    for path in ["/own", "/metrics", "/v1/openapi.json"] {
        assert!(calls.iter().any(|(base, _, called, _)| *base == api && called == path), "{path} is not described");
    }
    // Pages are for everybody, and say nothing: what they show they ask for with a token.
    for page in ["/", "/docs", "/docs/", "/dashboard/docs.js"] {
        let shown = program.call(Method::GET, page).send().await.unwrap();
        assert_eq!(shown.status(), StatusCode::OK, "{page}");
        assert!(!shown.text().await.unwrap().contains("/own"), "{page}");
    }
    let expired = {
        // Good in all but its time.
        let claims =
            serde_json::json!({"sub": "w", "exp": 1_000_000, "roles": ["viewer", "submitter", "worker", "operator"]});
        let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes());
        jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
    };
    let all = [Role::Viewer, Role::Submitter, Role::Worker, Role::Operator];
    let forged = sign(&[7; 40], "f", &all, HOUR).unwrap();
    let unsigned = format!("{}.", viewer.rsplit_once('.').unwrap().0);
    for (base, method, path, roles) in calls {
        let status = async |token: Option<&str>| {
            let call =
                program.call_at(base, method.clone(), &path).header("content-type", "application/json").body("{}");
            let call = token.map_or(call.try_clone().unwrap(), |token| call.bearer_auth(token));
            call.send().await.unwrap().status()
        };
        for bad in [None, Some(""), Some(forged.as_str()), Some(&expired), Some(&unsigned)] {
            assert_eq!(status(bad).await, StatusCode::UNAUTHORIZED, "{method} {path}: {bad:?}");
        }
        for role in all {
            let token = sign(SECRET.as_bytes(), "r", &[role], HOUR).unwrap();
            let found = status(Some(&token)).await;
            let refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&found);
            assert_eq!(refused, !roles.contains(&role), "{method} {path} by {role:?}: {found}");
        }
    }
    // The stream of work is no call that the document describes.
    let pull =
        async |token: Option<&str>| Line::open(program.base(), token, wants("work", 0)).await.err().map(|e| e.code());
    for bad in [None, Some(""), Some(forged.as_str()), Some(&expired), Some(&unsigned)] {
        assert_eq!(pull(bad).await, Some(Code::Unauthenticated), "{bad:?}");
    }
    for role in all {
        let token = sign(SECRET.as_bytes(), "r", &[role], HOUR).unwrap();
        assert_eq!(pull(Some(&token)).await, (role != Role::Worker).then_some(Code::PermissionDenied), "{role:?}");
    }
    let said = program.stop();
    assert!(!said.contains(SECRET) && !said.contains(&viewer), "no secret is in the log");
}

#[tokio::test]
async fn a_token_of_the_command_opens_the_door() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start_with(folder.path(), CONFIG, &[("API_SECRET", SECRET)]);
    assert_eq!(program.get("/v1/counts").await.0, StatusCode::UNAUTHORIZED);
    let token = std::process::Command::new(super::program::PROGRAM)
        .args(["token", "create", "--role", "viewer", "--name", "me"])
        .current_dir(folder.path())
        .env("API_SECRET", SECRET)
        .output()
        .unwrap();
    let program = program.with_token(String::from_utf8(token.stdout).unwrap().trim());
    assert_eq!(program.get("/v1/counts").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_caller_that_calls_too_often_is_told_to_come_later() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("{CONFIG}\n[api]\ncalls_per_second = 2\n");
    let program = Program::start_with(folder.path(), &config, &[("API_SECRET", SECRET)]);
    let token = |name: &str| sign(SECRET.as_bytes(), name, &[Role::Viewer], HOUR).unwrap();
    let call =
        async |name: &str| program.call(Method::GET, "/v1/counts").bearer_auth(token(name)).send().await.unwrap();
    let mut refused = None;
    // Two a second are let through: of many at once, one is not.
    for _ in 0..50 {
        let answer = call("busy").await;
        if answer.status() == StatusCode::TOO_MANY_REQUESTS {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("nobody was refused");
    assert_eq!(refused.headers()["retry-after"].to_str().unwrap(), "1");
    assert_eq!(call("calm").await.status(), StatusCode::OK, "others have an allowance of their own");
}

/// Where the program has a public key alone, only the holder of the other one signs.
#[tokio::test]
async fn a_public_key_takes_what_its_holder_signed_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let make = "openssl genpkey -algorithm ed25519 -out key.pem && openssl pkey -in key.pem -pubout -out public.pem";
    let made = Command::new("sh").args(["-c", make]).current_dir(folder.path()).status().unwrap();
    assert!(made.success(), "openssl: {made}");
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let claims = json!({"sub": "v", "exp": u32::MAX, "roles": ["viewer"]});
    let signed = |algorithm, key: &EncodingKey| jsonwebtoken::encode(&Header::new(algorithm), &claims, key).unwrap();
    let good = signed(Algorithm::EdDSA, &EncodingKey::from_ed_pem(&read("key.pem")).unwrap());
    // The public key is known to all, and is no secret to sign with.
    let forged = signed(Algorithm::HS256, &EncodingKey::from_secret(&read("public.pem")));
    let none = format!("{}.{}.", base64("{\"alg\":\"none\"}"), base64(&claims.to_string()));
    let config = "[store]\nurl = \"memory:\"\n[api.auth]\npublic_key = { file = \"public.pem\" }\n";
    let program = Program::start(folder.path(), config);
    for (token, status) in
        [(&good, StatusCode::OK), (&forged, StatusCode::UNAUTHORIZED), (&none, StatusCode::UNAUTHORIZED)]
    {
        let answer = program.call(Method::GET, "/v1/counts").bearer_auth(token).send().await.unwrap();
        assert_eq!(answer.status(), status, "{token}");
    }
}

fn base64(text: &str) -> String {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text)
}
