//! The stream of updates: resumed where it was left, reset when that is forgotten.

use reqwest::Method;
use serde_json::{Value, json};

use super::program::Program;

const CONFIG: &str = r#"
[store]
url = "sqlite:store.db"
journal_entries = 8

[routes.work]
[routes.other]
"#;

/// Reads so many events of a stream: their names, ids and data.
async fn events(program: &Program, path: &str, last: Option<&str>, count: usize) -> Vec<(String, Option<u64>, Value)> {
    let mut call = program.call(Method::GET, path);
    if let Some(last) = last {
        call = call.header("last-event-id", last);
    }
    let mut response = call.send().await.unwrap();
    let (mut text, mut found) = (String::new(), Vec::new());
    while found.len() < count {
        text.push_str(std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap());
        while let Some((event, rest)) = text.clone().split_once("\n\n") {
            let field =
                |name: &str| event.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).map(str::to_owned);
            if let Some(name) = field("event") {
                let data = field("data").and_then(|data| serde_json::from_str(&data).ok()).unwrap_or_default();
                found.push((name, field("id").and_then(|id| id.parse().ok()), data));
            }
            text = rest.to_owned();
        }
    }
    found
}

#[tokio::test]
async fn a_reader_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let asks = async {
        for n in 0..3 {
            program.post("/v1/routes/work/requests", &json!(n)).await;
            program.post("/v1/routes/other/requests", &json!(n)).await;
        }
    };
    let (first, ()) = tokio::join!(events(&program, "/v1/updates?from=0&event=admitted&route=work", None, 3), asks);
    let numbers: Vec<u64> = first.iter().filter_map(|(_, id, _)| *id).collect();
    assert!(first.iter().all(|(name, _, data)| name == "admitted" && data["route"] == "work"), "{first:?}");
    let again = events(&program, "/v1/updates?event=admitted&route=work", Some(&numbers[0].to_string()), 2).await;
    assert_eq!(again, first[1..]);
}

#[tokio::test]
async fn a_route_is_followed_from_admission_to_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), &CONFIG.replace("journal_entries = 8", ""));
    for route in ["other", "work"] {
        program.post(&format!("/v1/routes/{route}/requests"), &json!(1)).await;
        let (_, leased) = program.post("/v1/work/lease", &json!({"route": route, "worker": "me"})).await;
        let (id, token) = (&leased["jobs"][0]["id"], &leased["jobs"][0]["token"]);
        let answer = json!({"jobs": [{"id": id, "token": token, "response": 2}]});
        program.post("/v1/work/answer", &answer).await;
    }
    let found = events(&program, "/v1/updates?from=1&route=work", None, 5).await;
    assert!(found.iter().all(|(_, _, data)| data["route"] == "work"), "{found:?}");
    let names: Vec<&str> = found.iter().map(|(name, _, _)| name.as_str()).collect();
    assert_eq!(names, ["defined", "admitted", "leased", "answered", "ended"]);
}

#[tokio::test]
async fn a_reader_that_was_away_for_too_long_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    for n in 0..30 {
        program.post("/v1/routes/work/requests", &json!(n)).await;
    }
    let found = events(&program, "/v1/updates", Some("1"), 2).await;
    assert_eq!(found[0].0, "reset");
    assert!(found[1].1 > Some(2), "{found:?}");
    let again = events(&program, "/v1/updates", Some(&found[0].1.unwrap().to_string()), 1).await;
    assert_eq!(again[0], found[1], "whoever comes back with the id of a reset misses nothing more");
    // A place that is none: something was missed, and nobody knows how much.
    for last in ["nonsense", "-1", "99999999999999999999"] {
        assert_eq!(events(&program, "/v1/updates?from=0", Some(last), 1).await[0].0, "reset", "{last}");
    }
}

/// Silence would look like peace.
#[tokio::test]
async fn a_filter_that_could_never_match_is_refused_with_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let id = "ab".repeat(32);
    for (filter, told) in [
        ("event=admited", "no event is called \"admited\": there is admitted, attached, "),
        ("event=admitted,", "no event is called \"\": there is "),
        ("route=wrok", "no route is called \"wrok\": there is other, work"),
        ("lane=first", "no lane is called \"first\": there is none"),
        ("request=12", "no update is of the request \"12\": "),
    ] {
        let (status, problem) = program.get(&format!("/v1/updates?{filter}")).await;
        assert_eq!(status, 400, "{filter}: {problem}");
        assert!(problem["detail"].as_str().unwrap().starts_with(told), "{filter}: {problem}");
    }
    // A request may be yet to come, in either case of its digits.
    for filter in [format!("request=0x{}", id.to_uppercase()), "event=ended,%20reset".to_owned()] {
        let answer = program.call(Method::GET, &format!("/v1/updates?{filter}")).send().await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), answer.headers()["content-type"].as_bytes()),
            (200, &b"text/event-stream"[..])
        );
    }
}
