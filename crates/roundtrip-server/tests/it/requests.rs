//! Requests over HTTP: submitted once, looked up, waited for, listed.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::program::Program;

const CONFIG: &str = r#"
[store]
url = "sqlite:store.db"

[routes.square]
to = "caller"

[routes.hashed]
to = "caller"
identity = "content"

[routes.small]
capacity = 1

[routes.shut]
submit = false

[routes.form]
to = "caller"
submit_path = "/convert"
forms = true

[routes.own]
to = "caller"
submit_path = "/own/path"

[destinations.caller.keep]
at_least = "1h"
"#;

#[tokio::test]
async fn an_accepted_request_outlives_a_crash_and_is_answered_once() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let (status, accepted) = program.post("/v1/routes/square/requests", &json!(7)).await;
    assert_eq!((status, &accepted["admission"]), (StatusCode::CREATED, &json!("new")));
    program.kill();
    let program = Program::start(folder.path(), CONFIG);
    let job = program.lease("square").await;
    assert_eq!((&job["id"], &job["payload"], &job["attempt"]), (&accepted["id"], &json!(7), &json!(1)));
    assert_eq!(program.answer(&job, json!(49)).await, "done");
    assert_eq!(program.answer(&job, json!(50)).await, "done", "a repeat of the answer, which changes nothing");
    let (_, found) = program.get(accepted["status_url"].as_str().unwrap()).await;
    assert_eq!((&found["state"], &found["response"]), (&json!("ready"), &json!(49)));
    let (_, timeline) = program.get(&format!("/v1/requests/{}/timeline", accepted["id"].as_str().unwrap())).await;
    let events: Vec<&str> =
        timeline["entries"].as_array().unwrap().iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["admitted", "leased", "answered"]);
    assert!(program.stop().contains("stopped"));
}

/// The trace that a request came with, or one that is made of its id, is shown while it is live and after its end.
#[tokio::test]
async fn a_trace_outlives_its_request() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let context = format!("00-{trace}-00f067aa0ba902b7-01");
    for given in [Some(context), None] {
        let mut call = program.call(Method::POST, "/v1/routes/small/requests").body("1");
        if let Some(context) = &given {
            call = call.header("traceparent", context);
        }
        let accepted: Value =
            call.header("content-type", "application/json").send().await.unwrap().json().await.unwrap();
        let path = accepted["status_url"].as_str().unwrap();
        let (_, live) = program.get(path).await;
        let job = program.lease("small").await;
        assert_eq!(program.answer(&job, json!(2)).await, "done");
        let (_, ended) = program.get(path).await;
        assert_eq!((&live["state"], &ended["state"]), (&json!("queued"), &json!("settled")));
        assert_eq!(live["trace_id"], ended["trace_id"]);
        let shown = ended["trace_id"].as_str().unwrap();
        assert!(shown.len() == 32 && (given.is_some() == (shown == trace)), "{ended}");
    }
}

#[tokio::test]
async fn whoever_submits_can_wait_for_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let work = async {
        let job = program.lease("square").await;
        assert_eq!(program.answer(&job, json!({"is": 81})).await, "done");
    };
    let asked = json!(9);
    let ((status, found), ()) = tokio::join!(program.post("/v1/routes/square/requests?wait=20s", &asked), work);
    assert_eq!((status, &found["response"]), (StatusCode::OK, &json!({"is": 81})));
}

#[tokio::test]
async fn a_repeat_is_recognised_by_its_key_its_id_or_its_content() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let keyed = async |key: &str, body: Value| {
        let call = program.call(Method::POST, "/v1/routes/square/requests").header("idempotency-key", key);
        let answer = call.body(body.to_string()).send().await.unwrap();
        let status = answer.status();
        (status, serde_json::from_str::<Value>(&answer.text().await.unwrap()).unwrap())
    };
    let (first, second) = (keyed("one", json!(1)).await, keyed("one", json!(1)).await);
    assert_eq!((first.0, second.0), (StatusCode::CREATED, StatusCode::OK));
    assert_eq!((&first.1["id"], &second.1["admission"]), (&second.1["id"], &json!("known")));
    assert_ne!(keyed("two", json!(1)).await.1["id"], first.1["id"]);
    assert_eq!(keyed("one", json!(5)).await.0, StatusCode::CONFLICT, "the key is of another request");

    let id = "ab".repeat(32);
    let path = format!("/v1/routes/square/requests?id={id}");
    let (status, stated) = program.post(&path, &json!(2)).await;
    assert_eq!((status, &stated["id"]), (StatusCode::CREATED, &json!(id)));
    assert_eq!(program.post(&path, &json!(2)).await.0, StatusCode::OK);

    let (_, hashed) = program.post("/v1/routes/hashed/requests", &json!({"a": 1, "b": 2})).await;
    let (status, again) = program.post("/v1/routes/hashed/requests", &json!({"b": 2, "a": 1})).await;
    assert_eq!((status, &again["id"]), (StatusCode::OK, &hashed["id"]), "the order of keys does not matter");
    let (status, refused) = program.post(&format!("/v1/routes/hashed/requests?id={id}"), &json!({"a": 1})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("should have the id"), "{refused}");
}

#[tokio::test]
async fn many_are_stored_together_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let items: Vec<Value> = (0..100).map(|n| json!({"payload": {"n": n}})).collect();
    let (status, stored) = program.post("/v1/routes/hashed/requests/bulk", &json!({"requests": items})).await;
    assert_eq!((status, stored["requests"].as_array().unwrap().len()), (StatusCode::OK, 100));
    let bad = json!({"requests": [{"payload": {"n": 1000}}, {"payload": 1, "id": "12"}]});
    assert_eq!(program.post("/v1/routes/hashed/requests/bulk", &bad).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    let (_, counts) = program.get("/v1/counts").await;
    assert_eq!(counts["counts"][0]["requests"], json!(100));
}

#[tokio::test]
async fn pages_follow_each_other_and_filters_hold() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let items: Vec<Value> = (0..7).map(|n| json!({"payload": n})).collect();
    program.post("/v1/routes/square/requests/bulk", &json!({"requests": items})).await;
    program.post("/v1/routes/hashed/requests", &json!(1)).await;
    let job = program.lease("square").await;
    let (mut seen, mut after) = (0, String::new());
    loop {
        let (_, page) = program.get(&format!("/v1/requests?route=square&limit=3{after}")).await;
        seen += page["requests"].as_array().unwrap().len();
        let Some(next) = page["next"].as_u64() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(seen, 7);
    let ids = async |query: &str| {
        let (_, page) = program.get(&format!("/v1/requests?{query}")).await;
        page["requests"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids("state=leased").await, [job["id"].clone()]);
    assert_eq!(ids("state=queued,leased").await.len(), 8);
    assert_eq!(ids(&format!("id_prefix={}", &job["id"].as_str().unwrap()[..8])).await, [job["id"].clone()]);
    assert!(ids("to_ms=1000").await.is_empty());
}

#[tokio::test]
async fn a_dead_letter_waits_for_a_person() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    program.post("/v1/routes/square/requests", &json!(3)).await;
    let job = program.lease("square").await;
    let failed = json!({"jobs": [{"id": job["id"], "token": job["token"], "error": "no such thing", "then": "dead"}]});
    assert_eq!(program.post("/v1/work/fail", &failed).await.1["jobs"][0]["state"], json!("dead"));
    let path = format!("/v1/requests/{}", job["id"].as_str().unwrap());
    let (_, found) = program.get("/v1/requests?error=no%20such").await;
    assert_eq!(found["requests"][0]["error"]["text"], json!("no such thing"));
    assert_eq!(program.post(&format!("{path}/retry"), &json!({})).await.1, json!({"state": "queued"}));
    assert_eq!(program.post(&format!("{path}/retry"), &json!({})).await.0, StatusCode::CONFLICT);
    assert_eq!(program.post(&format!("{path}/cancel"), &json!({})).await.1, json!({"state": "withdrawn"}));
    let said = program.stop();
    assert!(said.contains("\"act\":\"cancel\""), "{said}");
}

#[tokio::test]
async fn what_cannot_be_taken_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    program.post("/v1/routes/small/requests", &json!(1)).await;
    let full = program.call(Method::POST, "/v1/routes/small/requests").body("2").send().await.unwrap();
    assert_eq!(
        (full.status(), full.headers()["retry-after"].to_str().unwrap()),
        (StatusCode::SERVICE_UNAVAILABLE, "1")
    );
    assert_eq!(full.headers()["content-type"], "application/problem+json");
    let cases = [
        ("/v1/routes/square/requests", "{", StatusCode::BAD_REQUEST, "no JSON"),
        ("/v1/routes/none/requests", "1", StatusCode::NOT_FOUND, "none"),
        ("/v1/routes/shut/requests", "1", StatusCode::FORBIDDEN, "over the API"),
        ("/v1/routes/square/requests?id=7", "1", StatusCode::UNPROCESSABLE_ENTITY, "64 hexadecimal digits"),
        ("/v1/routes/square/requests?wait=soon", "1", StatusCode::UNPROCESSABLE_ENTITY, "length of time"),
        ("/v1/routes/square/requests?wit=1s", "1", StatusCode::BAD_REQUEST, "wit"),
        ("/v1/work/lease", "{\"route\": \"square\"}", StatusCode::UNPROCESSABLE_ENTITY, "worker"),
        ("/v1/work/lease", "{\"route\": \"none\", \"worker\": \"w\"}", StatusCode::NOT_FOUND, "not defined"),
        ("/v1/work/answer", "{\"jobs\": []}", StatusCode::UNPROCESSABLE_ENTITY, "0 jobs"),
        ("/v1/routes/square/stop", "", StatusCode::BAD_REQUEST, "`pause` or `resume`"),
        ("/v1/lanes/none/resume", "{}", StatusCode::NOT_FOUND, "lane"),
        ("/v1/destinations/none/rebuild", "{\"patience_ms\": 1}", StatusCode::NOT_FOUND, "ask one that does"),
        ("/v1/nothing", "", StatusCode::NOT_FOUND, "/docs"),
    ];
    for (path, body, status, part) in cases {
        let call = program.call(Method::POST, path).header("content-type", "application/json").body(body);
        let answer = call.send().await.unwrap();
        assert_eq!(answer.status(), status, "{path}");
        let problem: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        assert!(problem["detail"].as_str().unwrap().contains(part), "{path}: {problem}");
    }
    let strange = program.call(Method::POST, "/v1/routes/square/pause").header("origin", "https://evil.example");
    assert_eq!(strange.send().await.unwrap().status(), StatusCode::FORBIDDEN);
    let large = vec![b'1'; 5 << 20];
    let refused = program.call(Method::POST, "/v1/routes/square/requests").body(large).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
}

#[tokio::test]
async fn a_route_may_take_forms_under_a_path_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let form =
        program.call(Method::POST, "/convert?from=EUR").header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(form.body("to=CHF&amount=12.50").send().await.unwrap().status(), StatusCode::CREATED);
    let job = program.lease("form").await;
    assert_eq!(job["payload"], json!({"from": "EUR", "to": "CHF", "amount": "12.50"}));
    // What is no form is as everywhere, and nothing of it is passed over.
    let id = "cd".repeat(32);
    let (status, own) = program.post(&format!("/own/path?id={id}"), &json!({"n": 1})).await;
    assert_eq!((status, &own["id"]), (StatusCode::CREATED, &json!(id)));
    assert_eq!(program.lease("own").await["payload"], json!({"n": 1}));
    for path in ["/own/path?from=EUR", "/convert?from=EUR"] {
        assert_eq!(program.post(path, &json!({"n": 1})).await.0, StatusCode::BAD_REQUEST, "{path}");
    }
}

/// What ended is found by route, end, time and id, page by page, newest first.
#[tokio::test]
async fn what_ended_is_filtered_and_paged() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "[store]\nurl = \"memory:\"\n[routes.a]\n[routes.b]\n");
    let mut ids = Vec::new();
    for (n, route) in ["a", "b", "a", "a", "b"].into_iter().enumerate() {
        let id = format!("{n}{:0<63}", "abc");
        program.post(&format!("/v1/routes/{route}/requests?id={id}"), &json!(n)).await;
        if n == 3 {
            program.post(&format!("/v1/requests/{id}/cancel"), &json!({})).await;
        } else {
            let job = program.lease(route).await;
            assert_eq!(program.answer(&job, json!(1)).await, "done");
        }
        ids.push(id);
    }
    let ended = async |query: &str| program.get(&format!("/v1/ended?{query}")).await;
    let found = |page: &Value| -> Vec<usize> {
        let requests = page["requests"].as_array().unwrap().iter();
        requests.map(|one| ids.iter().position(|id| one["id"] == id.as_str()).unwrap()).collect()
    };
    let mut all = ended("").await.1;
    for _ in 0..600 {
        if found(&all).len() == 5 {
            break;
        }
        // The journal is read beside.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        all = ended("").await.1;
    }
    assert_eq!(found(&all), [4, 3, 2, 1, 0]);
    let time = |n: usize| all["requests"][4 - n]["ended_at_ms"].as_u64().unwrap();
    let later: Vec<usize> = (0..5).rev().filter(|n| time(*n) >= time(2)).collect();
    for (query, wanted) in [
        ("route=a".to_owned(), vec![3, 2, 0]),
        ("state=withdrawn".to_owned(), vec![3]),
        ("route=b&state=settled,withdrawn".to_owned(), vec![4, 1]),
        ("state=dead".to_owned(), vec![]),
        ("id_prefix=2a".to_owned(), vec![2]),
        ("id_prefix=2ab".to_owned(), vec![2]),
        (format!("from_ms={}", time(2)), later.clone()),
        (format!("to_ms={}", time(2)), (0..5).rev().filter(|n| !later.contains(n)).collect()),
    ] {
        let (_, page) = ended(&query).await;
        assert_eq!((found(&page), &page["next"]), (wanted, &Value::Null), "{query}");
    }
    let (mut paged, mut next) = (Vec::new(), String::new());
    for pages in 1.. {
        let (_, page) = ended(&format!("limit=2{next}")).await;
        paged.extend(found(&page));
        let Some(after) = page["next"].as_u64() else {
            assert_eq!(pages, 3);
            break;
        };
        next = format!("&after={after}");
    }
    assert_eq!(paged, [4, 3, 2, 1, 0]);
    for (path, part) in [
        ("/v1/ended?state=queued", "/v1/requests"),
        ("/v1/ended?state=nothing", "is no state"),
        ("/v1/ended?limit=0", "from 1 to 1000"),
        ("/v1/requests?limit=0", "from 1 to 1000"),
    ] {
        let (status, told) = program.get(path).await;
        let detail = told["detail"].as_str().unwrap();
        assert!(status == StatusCode::UNPROCESSABLE_ENTITY && detail.contains(part), "{path}: {told}");
    }
    let (status, _) = program.post("/v1/work/lease", &json!({"route": "a", "worker": "w", "max": 0})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "a worker that wants nothing is given nothing");
}
