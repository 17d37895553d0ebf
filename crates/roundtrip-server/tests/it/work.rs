//! The protocol of workers that pull, over HTTP.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::program::Program;

const CONFIG: &str = r#"
[store]
url = "sqlite:store.db"

[routes.work]
to = "caller"
attempts_max = 2
backoff = { first = "0s" }

[routes.more]

[destinations.caller.keep]
at_least = "1h"
"#;

async fn ask(program: &Program, n: u64) -> Value {
    program.post("/v1/routes/work/requests", &json!(n)).await.1
}

#[tokio::test]
async fn a_lease_is_heard_of_while_it_is_waited_for_and_its_repeat_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let call = json!({"route": "work", "worker": "w", "wait_ms": 20_000, "claim": 7});
    let (leased, _) = tokio::join!(program.post("/v1/work/lease", &call), ask(&program, 1));
    assert_eq!(leased.1["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(program.post("/v1/work/lease", &call).await.1, leased.1, "its answer may have been lost");
    let other = json!({"route": "work", "worker": "w", "claim": 8});
    assert_eq!(program.post("/v1/work/lease", &other).await.1, json!({"jobs": []}));
}

#[tokio::test]
async fn work_is_kept_given_back_or_failed() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    ask(&program, 1).await;
    let held = |job: &Value| json!({"jobs": [{"id": job["id"], "token": job["token"]}]});
    let job = program.lease("work").await;
    let mut longer = held(&job);
    longer["lease_ms"] = json!(3_600_000);
    let (_, kept) = program.post("/v1/work/extend", &longer).await;
    assert!(kept["jobs"][0]["until_ms"].as_u64() > job["until_ms"].as_u64(), "{kept}");
    assert_eq!(program.post("/v1/work/release", &held(&job)).await.1["jobs"][0]["result"], json!("done"));
    assert_eq!(program.post("/v1/work/extend", &held(&job)).await.1["jobs"][0]["result"], json!("lost"));
    let fail = async |job: &Value| {
        let call = json!({"jobs": [{"id": job["id"], "token": job["token"], "error": "not today"}]});
        program.post("/v1/work/fail", &call).await.1["jobs"][0]["state"].clone()
    };
    let first = program.lease("work").await;
    assert_eq!(first["attempt"], json!(1), "what was given back cost no attempt");
    assert_eq!(fail(&first).await, json!("queued"));
    let second = program.lease("work").await;
    assert_eq!((second["attempt"].clone(), fail(&second).await), (json!(2), json!("dead")));
}

#[tokio::test]
async fn what_was_done_before_ends_without_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    ask(&program, 1).await;
    let job = program.lease("work").await;
    let done = json!({"id": job["id"], "token": job["token"], "error": "done last week", "then": "elsewhere"});
    for _ in 0..2 {
        let (_, told) = program.post("/v1/work/fail", &json!({"jobs": [done]})).await;
        assert_eq!((&told["jobs"][0]["result"], &told["jobs"][0]["state"]), (&json!("done"), &json!("elsewhere")));
    }
    let (_, found) = program.get(&format!("/v1/requests/{}", job["id"].as_str().unwrap())).await;
    assert_eq!((&found["state"], &found["response"]), (&json!("elsewhere"), &Value::Null), "{found}");
    let (_, told) = program.get(&format!("/v1/requests/{}/timeline", job["id"].as_str().unwrap())).await;
    let why = told["entries"].as_array().unwrap().iter().filter(|entry| entry["event"] == "done_elsewhere");
    assert_eq!(why.map(|entry| &entry["detail"]).collect::<Vec<_>>(), ["done last week"], "told once: {told}");
}

#[tokio::test]
async fn an_answer_brings_what_follows_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    ask(&program, 1).await;
    let job = program.lease("work").await;
    let next = json!([{"route": "more", "payload": {"of": 1}}]);
    let call = json!({"jobs": [{"id": job["id"], "token": job["token"], "response": 1, "follow_ups": next}]});
    assert_eq!(program.post("/v1/work/answer", &call).await.0, StatusCode::OK);
    assert_eq!(program.lease("more").await["payload"], json!({"of": 1}));
}

#[tokio::test]
async fn bytes_travel_as_base64() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let raw = program.call(reqwest::Method::POST, "/v1/routes/work/requests");
    raw.header("content-type", "application/octet-stream").body(vec![0, 255]).send().await.unwrap();
    let job = program.lease("work").await;
    assert_eq!((&job["encoding"], &job["payload"]), (&json!("raw"), &json!("AP8=")));
    let call = json!({"jobs": [{"id": job["id"], "token": job["token"], "response": "AQI=", "encoding": "raw"}]});
    assert_eq!(program.post("/v1/work/answer", &call).await.1["jobs"][0]["result"], json!("done"));
    let (_, found) = program.get(&format!("/v1/requests/{}", job["id"].as_str().unwrap())).await;
    assert_eq!((&found["response_encoding"], &found["response"]), (&json!("raw"), &json!("AQI=")));
}
