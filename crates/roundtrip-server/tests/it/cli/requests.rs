//! Requests, dead letters, routes and listeners, each at an instance and on a store alone.

use serde_json::{Value, json};

use super::Shell;
use crate::metrics::{hooked, receiver};
use crate::program::Program;

const CONFIG: &str = r#"
[store]
url = "sqlite:store.db"

[routes.a]
to = "caller"

[routes.b]
to = "caller"

[routes.tick]
every = { period = "1h" }

[destinations.caller.keep]
at_least = "1h"
"#;

/// Dead letters of two causes on a route; the ids of both kinds.
async fn die(program: &Program, route: &str) -> (Vec<String>, String) {
    let mut many = Vec::new();
    for n in 0..3 {
        many.push(program.dead_letter(route, &format!("HTTP 50{n} from upstream")).await);
    }
    (many, program.dead_letter(route, "no such pair").await)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// Everything that is done to requests, on one route.
fn requests(shell: &Shell<'_>, route: &str, letter: &str) {
    let submitted = shell.json(&["requests", "submit", route, r#"{"n": 7}"#]);
    let id = text(&submitted["id"]).to_owned();
    let said = shell.says(&["requests", "submit", route, "8", "--idempotency-key", "k"]);
    assert!(said.contains(" new, at the "), "{said}");
    assert!(shell.says(&["requests", "submit", route, "8", "--idempotency-key", "k"]).contains(" known, at the "));
    let found = shell.json(&["requests", "list", "--route", route, "--state", "queued"]);
    assert_eq!(found["requests"].as_array().unwrap().len(), 2, "{found}");
    let table = shell.says(&["requests", "list", "--route", route, "--limit", "1"]);
    assert!(table.starts_with("ID ") && table.contains("there are more"), "{table}");
    // By its first digits, an odd number of them.
    let shown = shell.json(&["requests", "show", &id[..15]]);
    assert_eq!((&shown["request"]["id"], &shown["request"]["payload"]), (&json!(id), &json!({"n": 7})));
    let story = shell.says(&["requests", "show", letter]);
    assert!(story.contains("no such pair") && story.contains("admitted") && story.contains("died"), "{story}");
    let cancelled = shell.json(&["requests", "cancel", &id]);
    assert_eq!(cancelled[0]["state"], "withdrawn");
    assert!(shell.says(&["requests", "retry", &letter[..20]]).contains("is queued now"));
    let again = shell.refuses(&["requests", "retry", letter]);
    assert!(again.contains(letter) && again.contains("it is queued"), "{again}");
    assert_eq!(shell.says(&["requests", "list", "--prefix", "ffffffff"]), "no live request is like this\n");
}

/// Everything that is done to dead letters, on one route.
fn dead(shell: &Shell<'_>, route: &str) {
    let listed = shell.says(&["dead", "list", "--route", route]);
    assert!(listed.contains("HTTP … from upstream") && listed.contains("fatal"), "{listed}");
    let preview = shell.says(&["dead", "retry", "--route", route]);
    assert!(preview.contains("3 dead letters would be retried: say --yes"), "{preview}");
    assert_eq!(shell.json(&["dead", "list", "--route", route])["total"], 3, "a preview changes nothing");
    let prefix = text(&shell.json(&["dead", "list", "--route", route])["causes"][0]["example"]).to_owned();
    assert_eq!(shell.says(&["dead", "drop", "--prefix", &prefix, "--yes"]), "1 dead letter dropped\n");
    let retried = shell.json(&["dead", "retry", "--route", route, "--cause", "HTTP … from upstream", "--yes"]);
    assert_eq!((&retried["requests"], &retried["done"]), (&json!(2), &json!(true)));
    assert_eq!(shell.says(&["dead", "list", "--route", route]), "no dead letter is like this\n");
    assert_eq!(shell.says(&["dead", "retry", "--route", route, "--yes"]), "no dead letter is like this\n");
}

/// Everything that is done to routes and listeners.
fn routes(shell: &Shell<'_>, route: &str) {
    assert_eq!(shell.says(&["routes", "pause", route]), format!("route {route} is paused\n"));
    assert_eq!(shell.says(&["routes", "pause", route]), format!("route {route} was paused before\n"));
    let table = shell.says(&["routes", "list"]);
    assert!(table.lines().any(|line| line.starts_with(route) && line.ends_with("paused")), "{table}");
    assert_eq!(shell.says(&["routes", "resume", route]), format!("route {route} is resumed\n"));
    let listed = shell.json(&["routes", "list"]);
    let found = listed.as_array().unwrap().iter().find(|found| found["name"] == route).unwrap();
    assert_eq!((&found["paused"], &found["live"]), (&json!(false), &found["states"]["queued"]), "{found}");
    let listeners = shell.json(&["listeners"]);
    assert_eq!(listeners["listeners"][0]["name"], "tick", "{listeners}");
    assert!(shell.says(&["listeners"]).contains("elsewhere"));
    let top = shell.says(&["top", "--once"]);
    assert!(top.contains("ROUTE") && top.contains("LISTENER") && top.starts_with("the "), "{top}");
    assert_eq!(shell.json(&["top", "--once"])["routes"].as_array().unwrap().len(), 3);
    assert!(shell.refuses(&["top"]).contains("say --once"));
}

/// What each of them refuses, and what it says then.
fn refusals(shell: &Shell<'_>) {
    for (arguments, part) in [
        (&["requests", "show", &"7".repeat(64)][..], "it never came, or it ended so long ago"),
        (&["requests", "show", "0000000000000000"], "no live request begins with 0000000000000000"),
        (&["requests", "show", "no digits"], "is no id"),
        (&["requests", "cancel", &"7".repeat(64)], "cancel 7777"),
        (&["requests", "list", "--state", "asleep"], "is no state"),
        (&["requests", "list", "--state", "settled"], "only live requests are listed"),
        (&["requests", "list", "--prefix", "xyz0"], "hexadecimal digits"),
        (&["requests", "submit", "nowhere", "1"], "no route is called \"nowhere\""),
        (&["requests", "submit", "a", "{"], "no JSON"),
        (&["requests", "submit", "a", "--file", "missing.json"], "missing.json cannot be read"),
        (&["dead", "drop", "--yes"], "nothing says which dead letters"),
        (&["dead", "list", "--prefix", "xyz"], "up to 64 hexadecimal digits"),
        (&["routes", "pause", "nowhere"], "route nowhere is not defined"),
        (&["routes", "resume", "a b"], "is no name"),
        (&["lanes", "show", "nowhere"], "no lane is called \"nowhere\""),
        (&["lanes", "pause", "nowhere"], "no lane of this name is here"),
        (&["lanes", "cancel", "nowhere", "--nonce", "1"], "no lane of this name is here"),
    ] {
        let said = shell.refuses(arguments);
        assert!(said.contains(part), "{arguments:?} says {said}");
    }
    let usage = shell.run(&["requests", "list", "--since", "yesterday"]);
    assert!(usage.code == Some(2) && usage.err.contains("how long ago"), "{usage:?}");
}

/// Ids that begin alike are told apart by more digits.
fn ambiguous(shell: &Shell<'_>, route: &str) {
    let id = |last: char| format!("beef{route}{}{last}", "0".repeat(58));
    for last in ['1', '2'] {
        shell.says(&["requests", "submit", route, "1", "--id", &id(last)]);
    }
    let said = shell.refuses(&["requests", "cancel", &format!("beef{route}")]);
    assert!(
        said.contains("is ambiguous, give more digits") && said.contains(&id('1')) && said.contains(&id('2')),
        "{said}"
    );
    shell.says(&["requests", "cancel", &id('1'), &id('2')]);
}

#[tokio::test]
async fn every_noun_at_an_instance_and_on_its_store() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let (_, letter_a) = die(&program, "a").await;
    let (_, letter_b) = die(&program, "b").await;
    let everything = |shell: &Shell<'_>, route: &str, letter: &str| {
        requests(shell, route, letter);
        dead(shell, route);
        routes(shell, route);
        refusals(shell);
        ambiguous(shell, route);
    };
    let shell = Shell::beside(folder.path(), &program);
    everything(&shell, "a", &letter_a);
    let waiting = shell.run(&["requests", "submit", "a", "1", "--wait", "1ms"]);
    assert!(waiting.err.contains("is queued") && waiting.out.is_empty(), "{waiting:?}");
    assert_eq!(waiting.code, Some(1), "what is no answer is no success");
    assert!(program.stop().contains("\"by\":\"anybody\",\"act\":\"retry\""), "what a person does is in the log");
    let shell = Shell::alone(folder.path());
    everything(&shell, "b", &letter_b);
    // What was ordered of the store is what the next instance finds.
    let program = Program::start(folder.path(), CONFIG);
    let (_, counts) = program.get("/v1/counts").await;
    let queued = |route: &str| {
        let all = counts["counts"].as_array().unwrap().iter();
        all.filter(|count| count["route"] == route && count["state"] == "queued")
            .map(|c| c["requests"].as_u64())
            .collect()
    };
    assert_eq!((queued("a"), queued("b")), (vec![Some(5)], vec![Some(4)]), "{counts}");
}

#[tokio::test]
async fn a_payload_comes_from_a_file_or_standard_input_and_an_answer_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let shell = Shell::beside(folder.path(), &program);
    std::fs::write(folder.path().join("ask.json"), "[1, 2]").unwrap();
    let asked = shell.json(&["requests", "submit", "a", "--file", "ask.json"]);
    let shown = shell.json(&["requests", "show", text(&asked["id"])]);
    assert_eq!(shown["request"]["payload"], json!([1, 2]));
    let raw =
        shell.json(&["requests", "submit", "b", "--file", "ask.json", "--raw", "--priority", "3", "--due-in", "1h"]);
    let shown = shell.json(&["requests", "show", text(&raw["id"])]);
    assert_eq!((&shown["request"]["encoding"], &shown["request"]["state"]), (&json!("raw"), &json!("held")));
    assert!(shell.refuses(&["requests", "submit", "a"]).contains("no JSON"), "standard input was empty");
    let work = async {
        loop {
            let job = program.lease("a").await;
            let answer = job["payload"].clone();
            assert_eq!(program.answer(&job, answer).await, "done");
            if job["payload"] == json!("wanted") {
                return;
            }
        }
    };
    let folder = folder.path().to_owned();
    let base = program.base().to_owned();
    let asks = tokio::task::spawn_blocking(move || {
        Shell::alone(&folder).with("ROUNDTRIP_URL", &base).says(&[
            "requests",
            "submit",
            "a",
            "\"wanted\"",
            "--wait",
            "30s",
        ])
    });
    let (answer, ()) = tokio::join!(asks, work);
    assert_eq!(answer.unwrap(), "\"wanted\"\n");
}

/// What keeps an answer from being delivered is told, with how often it was tried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_takes_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("{CONFIG}{}", hooked(folder.path(), &receiver(usize::MAX).await));
    let program = Program::start(folder.path(), &config);
    program.post("/v1/routes/told/requests", &json!(1)).await;
    let job = program.lease("told").await;
    assert_eq!(program.answer(&job, json!(2)).await, "done");
    let shell = Shell::beside(folder.path(), &program);
    let id = text(&job["id"]);
    let tried = |shown: &Value| shown["request"]["delivery_failures"].as_u64().is_some_and(|times| times >= 2);
    let shown = shell.until(&["requests", "show", id], tried).await;
    let request = &shown["request"];
    assert_eq!((&request["state"], &request["error"]["class"]), (&json!("ready"), &json!("transport")));
    assert!(text(&request["error"]["text"]).contains("503") && request["delivery_failed_at_ms"].is_u64(), "{request}");
    let told = shown["timeline"]["entries"].as_array().unwrap().iter().filter(|entry| entry["event"] == "undelivered");
    assert_eq!(told.count(), 1, "a reason that stays the same is told once: {shown}");
    let story = shell.says(&["requests", "show", id]);
    assert!(story.contains("not taken  ") && story.contains("x, last at 2"), "{story}");
    assert!(shell.says(&["requests", "list", "--error", "503"]).contains(&id[..8]), "it is found by why it waits");
}
