//! Workers in three languages pass one test: they answer, fail for good, fail and try again, say what was done before, come
//! back to a program that was killed, and stop when they are told to.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use reqwest::StatusCode;
use roundtrip_client::{Client, Failure, Options, Settings, Shutdown, Worker};
use serde_json::{Value, json};

use super::program::Program;

const CONFIG: &str = r#"
[store]
url = "sqlite:store.db"

[api]
listen = "127.0.0.1:0"

[routes.square]
to = "caller"
lease = "3s"
crashes_max = 100
backoff = { first = "0s" }

[destinations.caller.keep]
at_least = "1h"
"#;

/// How an accepted request stands once it is answered, or dead.
async fn ended(program: &Program, accepted: &Value) -> Value {
    let (status, found) = program.get(&format!("{}?wait=30s", accepted["status_url"].as_str().unwrap())).await;
    assert_eq!(status, StatusCode::OK, "{found}");
    found
}

async fn ask(program: &Program, payload: Value) -> Value {
    let (status, accepted) = program.post("/v1/routes/square/requests", &payload).await;
    assert_eq!(status, StatusCode::CREATED, "{accepted}");
    accepted
}

async fn squares(program: &Program, numbers: std::ops::Range<u64>) {
    let mut asked = Vec::new();
    for n in numbers.clone() {
        asked.push(ask(program, json!({"n": n})).await);
    }
    for (n, accepted) in numbers.zip(&asked) {
        assert_eq!(ended(program, accepted).await["response"], json!({"square": n * n}));
    }
}

/// What every worker must do.
async fn protocol(start: impl AsyncFn(&str) -> Running) {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let worker = start(program.base()).await;
    squares(&program, 0..20).await;
    let dead = ended(&program, &ask(&program, json!({"n": "seven"})).await).await;
    assert_eq!((&dead["state"], &dead["error"]["text"]), (&json!("dead"), &json!("n is no whole number")));
    let second = ended(&program, &ask(&program, json!({"n": 3, "fail_once": true})).await).await;
    assert_eq!((&second["response"], &second["attempts"]), (&json!({"square": 9}), &json!(2)));
    // What was done before ends without an answer; how the worker knows stands in its timeline.
    let before = ended(&program, &ask(&program, json!({"n": 4, "done": "last week"})).await).await;
    assert_eq!((&before["state"], &before["response"]), (&json!("elsewhere"), &Value::Null), "{before}");
    let (_, told) = program.get(&format!("/v1/requests/{}/timeline", before["id"].as_str().unwrap())).await;
    let why = told["entries"].as_array().unwrap().iter().find(|entry| entry["event"] == "done_elsewhere");
    assert_eq!(why.map(|entry| &entry["detail"]), Some(&json!("done last week")), "{told}");
    // The program dies and comes back under its address, and the worker finds it again.
    let address = program.base().trim_start_matches("http://").to_owned();
    program.kill();
    let program = Program::start_with(folder.path(), CONFIG, &[("ROUNDTRIP__API__LISTEN", &address)]);
    squares(&program, 20..40).await;
    worker.stop().await;
}

enum Running {
    Process(Child),
    Task(Shutdown, tokio::task::JoinHandle<()>),
}

impl Running {
    async fn stop(self) {
        match self {
            Running::Process(mut child) => {
                let told = Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().unwrap();
                assert!(told.success());
                let status = tokio::task::spawn_blocking(move || child.wait()).await.unwrap().unwrap();
                assert!(status.success(), "{status}");
            }
            Running::Task(shutdown, task) => {
                shutdown.cancel();
                task.await.unwrap();
            }
        }
    }
}

/// Where the examples are.
fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/workers")
}

fn square(payload: &Value, attempt: u16) -> Result<Value, Failure> {
    if payload["fail_once"] == true && attempt == 1 {
        return Err(Failure::Retry("not at the first attempt".to_owned()));
    }
    if let Some(when) = payload["done"].as_str() {
        return Err(Failure::Elsewhere(format!("done {when}")));
    }
    let n = payload["n"].as_u64().ok_or_else(|| Failure::Never("n is no whole number".to_owned()))?;
    Ok(json!({"square": n * n}))
}

fn running(worker: Worker) -> Running {
    let shutdown = Shutdown::new();
    let run = worker.run(move |job| async move { square(&job.payload, job.attempt) }, shutdown.clone());
    Running::Task(shutdown, tokio::spawn(async move { run.await.unwrap() }))
}

fn options() -> Options {
    Options { in_flight: 8, ..Options::of("square", "rust") }
}

#[tokio::test]
async fn a_worker_in_rust() {
    protocol(async |url: &str| {
        let client = Client::new(Settings::of(url)).unwrap();
        running(Worker::new(client, options()))
    })
    .await;
}

#[tokio::test]
async fn a_worker_in_rust_on_a_stream() {
    protocol(async |url: &str| running(Worker::streaming(Settings::of(url), options()).unwrap())).await;
}

#[tokio::test]
async fn a_worker_in_python() {
    protocol(async |url: &str| {
        let mut command = Command::new("python3");
        Running::Process(command.arg(examples().join("worker.py")).args([url, "square"]).spawn().unwrap())
    })
    .await;
}

#[tokio::test]
async fn a_worker_in_typescript() {
    let folder = tempfile::tempdir().unwrap();
    let compiled = Command::new("node")
        .arg(super::fuzz::tools().join("node_modules/typescript/bin/tsc"))
        .args(["--strict", "--target", "es2022", "--lib", "es2022,dom", "--module", "es2022", "--types", ""])
        .arg("--outDir")
        .arg(folder.path())
        .arg(examples().join("worker.ts"))
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stdout));
    protocol(async |url: &str| {
        let mut command = Command::new("node");
        Running::Process(command.arg(folder.path().join("worker.js")).args([url, "square"]).spawn().unwrap())
    })
    .await;
}
