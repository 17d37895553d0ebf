//! The program as a process of its own, on a port that the system picks.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::Value;

/// What the tests run.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_roundtrip");

/// No call takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running program; killed when it goes.
pub(crate) struct Program {
    child: Child,
    /// What it said so far, and whoever hears the rest.
    said: Arc<Mutex<Vec<String>>>,
    heard: Option<JoinHandle<()>>,
    base: String,
    /// Where its metrics are served besides.
    metrics: Option<String>,
    client: Client,
    token: Option<String>,
}

impl Program {
    /// Runs a configuration in this folder, and waits until it listens.
    pub(crate) fn start(folder: &Path, config: &str) -> Program {
        Program::start_with(folder, config, &[])
    }

    pub(crate) fn start_with(folder: &Path, config: &str, environment: &[(&str, &str)]) -> Program {
        Program::start_as(folder, config, environment, &[])
    }

    /// Runs a part of it.
    pub(crate) fn start_as(folder: &Path, config: &str, environment: &[(&str, &str)], only: &[&str]) -> Program {
        let mut command = Command::new(PROGRAM);
        command.arg("run").args(only.iter().flat_map(|role| ["--only", role]));
        Program::start_by(command, folder, config, environment)
    }

    /// Runs a configuration by a command that comes to `roundtrip run`.
    pub(crate) fn start_by(mut command: Command, folder: &Path, config: &str, environment: &[(&str, &str)]) -> Program {
        std::fs::write(folder.join("roundtrip.toml"), config).unwrap();
        let client = roundtrip_evm::rpc::web_client(PATIENCE).unwrap();
        let mut child = command
            .current_dir(folder)
            .env("ROUNDTRIP__API__LISTEN", "127.0.0.1:0")
            .env("ROUNDTRIP__LOG__FORMAT", "json")
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (mut said, mut address, mut metrics, mut running) = (Vec::new(), None, None, false);
        for line in lines.by_ref().map_while(Result::ok) {
            let told: Value = serde_json::from_str(&line).unwrap_or_default();
            said.push(line);
            if let Some(found) = told["address"].as_str() {
                address = Some(found.to_owned());
            }
            if let Some(found) = told["metrics"].as_str() {
                metrics = Some(format!("http://{found}"));
            }
            if told["message"] == "running" {
                running = true;
                break;
            }
        }
        assert!(running, "it does not run: {said:?}");
        let said = Arc::new(Mutex::new(said));
        let hears = said.clone();
        let heard =
            std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| hears.lock().unwrap().push(line)));
        let heard = Some(heard);
        let address = address.unwrap_or_default();
        Program { child, said, heard, base: format!("http://{address}"), metrics, client, token: None }
    }

    /// The same, called with this token.
    pub(crate) fn with_token(mut self, token: &str) -> Program {
        self.token = Some(token.to_owned());
        self
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Where its metrics are served, besides the API.
    pub(crate) fn metrics(&self) -> &str {
        self.metrics.as_deref().unwrap()
    }

    pub(crate) fn call(&self, method: Method, path: &str) -> RequestBuilder {
        self.call_at(&self.base, method, path)
    }

    /// Calls another door of it.
    pub(crate) fn call_at(&self, base: &str, method: Method, path: &str) -> RequestBuilder {
        let call = self.client.request(method, format!("{base}{path}"));
        match &self.token {
            Some(token) => call.bearer_auth(token),
            None => call,
        }
    }

    /// Posts JSON; the status, and the JSON that came back.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        answer(self.call(Method::POST, path).header("content-type", "application/json").body(body.to_string())).await
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        answer(self.call(Method::GET, path)).await
    }

    pub(crate) async fn get_at(&self, base: &str, path: &str) -> (StatusCode, Value) {
        answer(self.call_at(base, Method::GET, path)).await
    }

    /// Takes one job of a route, which is there or will be.
    pub(crate) async fn lease(&self, route: &str) -> Value {
        let call = serde_json::json!({"route": route, "worker": "tester", "wait_ms": 20_000});
        let (status, leased) = self.post("/v1/work/lease", &call).await;
        assert_eq!(status, StatusCode::OK, "{leased}");
        leased["jobs"][0].clone()
    }

    /// Answers a job; what became of it.
    pub(crate) async fn answer(&self, job: &Value, response: Value) -> String {
        let call = serde_json::json!({"jobs": [{"id": job["id"], "token": job["token"], "response": response}]});
        let (status, results) = self.post("/v1/work/answer", &call).await;
        assert_eq!(status, StatusCode::OK, "{results}");
        results["jobs"][0]["result"].as_str().unwrap().to_owned()
    }

    /// Makes a dead letter that died of this; its id.
    pub(crate) async fn dead_letter(&self, route: &str, error: &str) -> String {
        self.post(&format!("/v1/routes/{route}/requests"), &serde_json::json!({"of": error})).await;
        let job = self.lease(route).await;
        let failed =
            serde_json::json!({"jobs": [{"id": job["id"], "token": job["token"], "error": error, "then": "dead"}]});
        let (_, results) = self.post("/v1/work/fail", &failed).await;
        assert_eq!(results["jobs"][0]["state"], "dead", "{results}");
        job["id"].as_str().unwrap().to_owned()
    }

    /// Signals it, such as `STOP`, after which it stands still.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success(), "kill -{name}: {sent}");
    }

    /// Asks it to stop, and waits until it has, well; all that it said.
    pub(crate) fn stop(mut self) -> String {
        let asked = Command::new("kill").arg("-TERM").arg(self.child.id().to_string()).status().unwrap();
        assert!(asked.success() && self.child.wait().unwrap().success());
        self.heard.take().unwrap().join().unwrap();
        self.log()
    }

    /// All that it said so far.
    pub(crate) fn log(&self) -> String {
        self.said.lock().unwrap().join("\n")
    }

    /// As if the power went.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

async fn answer(call: RequestBuilder) -> (StatusCode, Value) {
    let response = call.send().await.unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}
