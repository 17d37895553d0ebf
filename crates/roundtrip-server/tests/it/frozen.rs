//! A store that stands still: whoever called is told in time, and whoever waits is not cut off.

use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use roundtrip::testkit::servers::PostgresServer;
use serde_json::{Value, json};

use super::program::Program;

/// As long as a call waits for the store here.
const BOUND: Duration = Duration::from_millis(700);

#[tokio::test]
async fn a_call_is_told_that_nobody_knows_and_can_be_made_again() {
    let server = PostgresServer::start(&[PostgresServer::UNSYNCED]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let url = server.url("frozen");
    let config = format!("[store]\nurl = \"{url}\"\n[api]\nstore_wait_max = \"700ms\"\n[routes.work]\n[routes.idle]\n");
    let program = Program::start(folder.path(), &config);
    program.post("/v1/routes/work/requests", &json!("first")).await;
    let job = program.lease("work").await;
    let submits = || {
        let call = program.call(Method::POST, "/v1/routes/work/requests").header("idempotency-key", "k");
        call.header("content-type", "application/json").body("1")
    };
    let answers = || {
        let answered = json!({"jobs": [{"id": job["id"], "token": job["token"], "response": 2}]});
        program
            .call(Method::POST, "/v1/work/answer")
            .header("content-type", "application/json")
            .body(answered.to_string())
    };
    let frozen = server.freeze().unwrap();
    for call in [submits(), answers()] {
        let asked = Instant::now();
        let told = call.send().await.unwrap();
        assert!(asked.elapsed() >= BOUND, "it may have been done by then");
        assert_eq!(
            (told.status(), told.headers().contains_key("retry-after")),
            (StatusCode::SERVICE_UNAVAILABLE, true)
        );
        let problem: Value = serde_json::from_str(&told.text().await.unwrap()).unwrap();
        assert!(problem["detail"].as_str().unwrap().contains("nobody knows whether this was done"), "{problem}");
    }
    let (status, problem) = program.get("/v1/counts").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(problem["detail"], "the store was not reached: it did not answer within 700ms");
    drop(frozen);
    // Whatever became of the first call, the second says the same and does nothing more.
    let again = submits().send().await.unwrap();
    assert!(again.status().is_success(), "{again:?}");
    let (_, done) = answer_of(answers()).await;
    assert!(["done", "lost"].contains(&done["jobs"][0]["result"].as_str().unwrap()), "{done}");
    let (_, found) = program.get("/v1/requests").await;
    let live: Vec<&Value> = found["requests"].as_array().unwrap().iter().map(|request| &request["state"]).collect();
    assert_eq!(live, ["queued"], "the answer was recorded once, and the submission is one");
}

/// A wait is many looks at the store.
#[tokio::test]
async fn whoever_waits_for_longer_than_the_store_may_take_is_not_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[store]\nurl = \"memory:\"\n[api]\nstore_wait_max = \"50ms\"\n[routes.work]\n[routes.idle]\n";
    let program = Program::start(folder.path(), config);
    let long = u64::try_from(BOUND.as_millis()).unwrap();
    let asks = program.call(Method::POST, &format!("/v1/routes/idle/requests?wait={long}ms"));
    let asks = answer_of(asks.header("content-type", "application/json").body("1"));
    let lease = json!({"route": "work", "worker": "me", "wait_ms": long});
    let began = Instant::now();
    let ((asked, found), (leased, jobs)) = tokio::join!(asks, program.post("/v1/work/lease", &lease));
    assert_eq!((asked, &found["state"]), (StatusCode::OK, &json!("queued")), "{found}");
    assert_eq!((leased, &jobs["jobs"]), (StatusCode::OK, &json!([])), "{jobs}");
    assert!(began.elapsed() >= BOUND);
}

async fn answer_of(call: reqwest::RequestBuilder) -> (StatusCode, Value) {
    let answer = call.send().await.unwrap();
    let status = answer.status();
    (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap())
}
