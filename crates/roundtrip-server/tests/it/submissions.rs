//! What is the same submission and what is not, and how refusals are told.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::program::Program;

const CONFIG: &str = r#"
[store]
url = "memory:"

[routes.given]

[routes.content]
identity = "content"

[routes.fields]
identity = ["/n"]

[routes.tiny]
capacity = 3

[routes.form]
submit_path = "/convert"
forms = true
"#;

/// Submits this text; the status, and what is told of it.
async fn submitted(program: &Program, path: &str, key: Option<&str>, body: &str) -> (StatusCode, Value) {
    let call = program.call(Method::POST, path).body(body.to_owned());
    let call = key.map_or(call.try_clone().unwrap(), |key| call.header("idempotency-key", key.as_bytes()));
    told(call).await
}

async fn told(call: reqwest::RequestBuilder) -> (StatusCode, Value) {
    let answer = call.send().await.unwrap();
    let (status, kind) = (answer.status(), answer.headers()["content-type"].to_str().unwrap().to_owned());
    assert!(status.is_success() || kind == "application/problem+json", "{status}: {kind}");
    (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap())
}

#[tokio::test]
async fn a_repeat_is_told_from_another_request_of_the_same_key_or_id() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let (new, again, refused) = (StatusCode::CREATED, StatusCode::OK, StatusCode::CONFLICT);
    let [stated, elsewhere] = ["given", "tiny"].map(|route| format!("{route}/requests?id={}", "ab".repeat(32)));
    for (path, key, body, status, word) in [
        ("given/requests", Some("k"), r#"{"a": 1}"#, new, "new"),
        ("given/requests", Some("k"), r#"{"a": 1}"#, again, "known"),
        ("given/requests", Some("k"), r#"{"a":1}"#, again, "known"),
        ("given/requests", Some("k"), r#"{"a":2}"#, refused, "idempotency key"),
        (&stated, None, r#"{"b": 1}"#, new, "new"),
        (&stated, None, r#"{"b":1}"#, again, "known"),
        (&stated, None, r#"{"b":2}"#, refused, "this id"),
        (&elsewhere, None, r#"{"b":1}"#, refused, "another route"),
        // First without the key, and with other white space.
        ("content/requests", None, r#"{"c": 1}"#, new, "new"),
        ("content/requests", Some("k"), r#"{"c":1}"#, again, "attached"),
        ("content/requests", Some("k"), r#"{"c":1}"#, again, "known"),
        ("content/requests", Some("k"), r#"{"c":2}"#, refused, "idempotency key"),
        ("fields/requests", Some("k"), r#"{"n": 1, "at": 1}"#, new, "new"),
        ("fields/requests", Some("k"), r#"{"n": 1, "at": 2}"#, again, "known"),
        ("fields/requests", Some("k"), r#"{"n": 2, "at": 1}"#, refused, "idempotency key"),
        ("given/requests", Some("schlüssel"), "1", StatusCode::UNPROCESSABLE_ENTITY, "ASCII"),
    ] {
        let (found, said) = submitted(&program, &format!("/v1/routes/{path}"), key, body).await;
        let words = if found.is_success() { &said["admission"] } else { &said["detail"] };
        assert!(found == status && words.as_str().unwrap().contains(word), "{path} {key:?} {body}: {found} {said}");
    }
    // What is over is known by its id alone.
    for _ in 0..2 {
        let job = program.lease("given").await;
        assert_eq!(program.answer(&job, json!(1)).await, "done");
    }
    let (status, said) = submitted(&program, &format!("/v1/routes/{stated}"), None, r#"{"b":2}"#).await;
    assert_eq!((status, &said["admission"]), (again, &json!("known")), "{said}");
}

#[tokio::test]
async fn among_many_each_conflict_is_told_and_the_others_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    for route in ["given", "content"] {
        submitted(&program, &format!("/v1/routes/{route}/requests"), Some("before"), "1").await;
        let keyed = |key: &str, payload: u8| json!({"payload": payload, "idempotency_key": key});
        let mut items = vec![
            (keyed("before", 1), "known"),
            (keyed("before", 2), "conflict"),
            (keyed("here", 3), "new"),
            (keyed("here", 4), "conflict"),
            (keyed("here", 3), "known"),
            (json!({"payload": 5}), "new"),
        ];
        if route == "given" {
            let stated = |payload: u8| json!({"payload": payload, "id": "cd".repeat(32)});
            items.extend([(stated(6), "new"), (stated(6), "known"), (stated(7), "conflict")]);
        }
        let (requests, words): (Vec<Value>, Vec<&str>) = items.into_iter().unzip();
        let path = format!("/v1/routes/{route}/requests/bulk");
        let (status, said) = program.post(&path, &json!({"requests": requests})).await;
        assert_eq!(status, StatusCode::OK, "{said}");
        let told = said["requests"].as_array().unwrap();
        assert_eq!(told.iter().map(|one| one["admission"].as_str().unwrap()).collect::<Vec<_>>(), words, "{route}");
        for (one, sent) in told.iter().zip(&requests) {
            assert_eq!(one["detail"].is_string(), one["admission"] == "conflict", "{one}");
            // Whatever is told as taken is there, as it was sent.
            if one["admission"] != "conflict" {
                let (_, found) = program.get(one["status_url"].as_str().unwrap()).await;
                assert_eq!(found["payload"], sent["payload"], "{one}");
            }
        }
    }
}

#[tokio::test]
async fn where_forms_are_taken_nothing_else_is_stored_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let (form, twice) = ("application/x-www-form-urlencoded", StatusCode::UNPROCESSABLE_ENTITY);
    for (query, kind, body, status) in [
        ("", form, "a=1&b=2", StatusCode::CREATED),
        ("", form, r#"{"a": "1", "b": "2"}"#, StatusCode::CREATED),
        ("?a=1", form, "b=2", StatusCode::CREATED),
        ("", "Application/LD+JSON; charset=utf-8", r#"{"a": "1", "b": "2"}"#, StatusCode::CREATED),
        ("?a=1&a=2", form, "", twice),
        ("", form, "a=1&a=2", twice),
        ("?a=1", form, "a=2", twice),
        ("", "text/plain", "a=1", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("", "multipart/form-data; boundary=x", "--x--", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("", form, "{a", StatusCode::BAD_REQUEST),
    ] {
        let call = program.call(Method::POST, &format!("/convert{query}")).header("content-type", kind);
        let (found, said) = told(call.body(body)).await;
        assert_eq!(found, status, "{query} {kind} {body}: {said}");
        if found.is_success() {
            assert_eq!(program.lease("form").await["payload"], json!({"a": "1", "b": "2"}), "{query} {kind} {body}");
        }
    }
}

#[tokio::test]
async fn refusals_are_problems_in_plain_words() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    for n in 0..3 {
        program.post("/v1/routes/tiny/requests", &json!(n)).await;
    }
    let (_, full) = program.post("/v1/routes/tiny/requests", &json!(4)).await;
    let words = "route tiny is full: it takes 3 live requests at the most; nothing was stored";
    assert_eq!(full["detail"], json!(words));
    for (method, path, status, part) in [
        (Method::GET, "/v1/requests/%ff", 400, "UTF-8"),
        (Method::GET, "/v1/requests/%ff/timeline", 400, "UTF-8"),
        (Method::GET, "/v1/requests/%ff/payload", 400, "UTF-8"),
        (Method::POST, "/v1/requests/%ff/retry", 400, "UTF-8"),
        (Method::POST, "/v1/routes/%ff/requests", 400, "UTF-8"),
        (Method::GET, "/v1/lanes/%ff", 400, "UTF-8"),
        (Method::GET, "/v1/transactions/%ff", 400, "UTF-8"),
        (Method::GET, "/v1/destinations/%ff/rebuild", 400, "UTF-8"),
        (Method::GET, "/v1/requests?state=settled", 422, "/v1/ended"),
        (Method::GET, "/v1/requests?id_prefix=xyz", 422, "hexadecimal"),
        (Method::GET, "/v1/dead?id_prefix=xyz", 422, "hexadecimal"),
        (Method::GET, "/v1/requests?bogus=1", 400, "the query cannot be read: bogus: unknown field"),
        (Method::POST, "/v1/work/lease", 415, "Content-Type: application/json"),
    ] {
        let (found, said) = told(program.call(method, path)).await;
        let detail = said["detail"].as_str().unwrap();
        assert!(found.as_u16() == status && detail.contains(part), "{path}: {found} {said}");
    }
}

#[tokio::test]
async fn ids_are_found_by_any_number_of_their_digits() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let ids = ["abc", "abd"].map(|digits| format!("{digits:0<64}"));
    for id in &ids {
        program.post(&format!("/v1/routes/given/requests?id={id}"), &json!(1)).await;
        let job = program.lease("given").await;
        let failed = json!({"jobs": [{"id": job["id"], "token": job["token"], "error": "no", "then": "dead"}]});
        program.post("/v1/work/fail", &failed).await;
    }
    for (prefix, count) in [("ab", 2), ("0xABC", 1), ("abd0", 1), ("abe", 0), ("a", 2)] {
        let (_, page) = program.get(&format!("/v1/requests?id_prefix={prefix}")).await;
        assert_eq!(page["requests"].as_array().map(Vec::len), Some(count), "{prefix}: {page}");
        let (_, dead) = program.get(&format!("/v1/dead?id_prefix={prefix}")).await;
        assert_eq!(dead["total"], json!(count), "{prefix}: {dead}");
    }
}
