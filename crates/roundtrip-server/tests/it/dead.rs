//! Dead letters together: told apart by cause, mended in bulk.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::program::Program;

const CONFIG: &str = r#"
[store]
url = "sqlite:store.db"

[routes.work]
[routes.other]
"#;

/// How many dead letters there are, of which causes.
async fn causes(program: &Program, query: &str) -> Vec<(String, String, u64)> {
    let (status, found) = program.get(&format!("/v1/dead{query}")).await;
    assert_eq!(status, StatusCode::OK, "{found}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let told = found["causes"].as_array().unwrap().iter();
    told.map(|c| (text(&c["route"]), text(&c["cause"]), c["requests"].as_u64().unwrap())).collect()
}

#[tokio::test]
async fn dead_letters_are_told_apart_by_cause_and_mended_by_filter() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    for n in 0..5 {
        program.dead_letter("work", &format!("HTTP 50{n} from upstream")).await;
    }
    program.dead_letter("work", "no such pair").await;
    program.dead_letter("other", "HTTP 502 from upstream").await;
    let cause = |route: &str, cause: &str, n| (route.to_owned(), cause.to_owned(), n);
    let http = "HTTP … from upstream";
    let mut all = causes(&program, "").await;
    all[1..].sort();
    assert_eq!(all, [cause("work", http, 5), cause("other", http, 1), cause("work", "no such pair", 1)]);
    assert_eq!(causes(&program, "?route=other").await, [cause("other", http, 1)]);
    assert_eq!(causes(&program, "?error=no%20such").await, [cause("work", "no such pair", 1)]);
    assert_eq!(causes(&program, "?route=nobody").await, []);
    // A page at a time, and nothing beyond what the filter names.
    let mend = async |remedy: &str, call: Value| program.post(&format!("/v1/dead/{remedy}"), &call).await;
    let mut call = json!({"filter": {"route": "work", "cause": http}, "limit": 2});
    let mut done = 0;
    loop {
        let (status, mended) = mend("retry", call.clone()).await;
        assert_eq!(status, StatusCode::OK, "{mended}");
        done += mended["done"].as_u64().unwrap();
        match mended.get("next") {
            Some(next) => call["after"] = next.clone(),
            None => break,
        }
    }
    assert_eq!(done, 5);
    assert_eq!(causes(&program, "").await.len(), 2);
    assert_eq!(program.lease("work").await["attempt"], json!(1), "it is worked on from its first attempt");
    assert_eq!(mend("drop", json!({})).await.0, StatusCode::UNPROCESSABLE_ENTITY, "an open filter needs a word");
    assert_eq!(mend("burn", json!({"all": true})).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(mend("drop", json!({"filter": {"id_prefix": "xyz"}})).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    // What died after the look is left alone.
    let up_to = program.get("/v1/dead").await.1["up_to"].clone();
    program.dead_letter("other", "late").await;
    let (_, dropped) = mend("drop", json!({"all": true, "filter": {"up_to": up_to}})).await;
    assert_eq!(dropped, json!({"done": 2, "passed_over": 0}));
    assert_eq!(causes(&program, "").await, [cause("other", "late", 1)]);
}
