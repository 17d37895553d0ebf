//! From a chain and back by the program: events of a real Anvil in, a worker that pulls over
//! HTTP, transactions out; in one process, and in one for each role, each of them killed in turn.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use alloy::primitives::{Address, Bytes, keccak256};
use reqwest::StatusCode;
use roundtrip::testkit::servers::{PostgresServer, RedisServer};
use roundtrip_evm::testkit::account::{deploy_board, dev_key, dev_signers};
use roundtrip_evm::testkit::checker::check;
use roundtrip_evm::testkit::deployment::answer_to;
use roundtrip_evm::testkit::node::{AnvilOptions, Mining, Node};
use roundtrip_evm::testkit::submitter::{Submitter, SubmitterOptions};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::program::{PROGRAM, Program};
use super::tool::{HttpServer, says};

const REQUESTS: usize = 60;
const LANES: [usize; 2] = [8, 9];

/// A node with the sample contract, and who asks there.
pub(crate) struct Site {
    pub(crate) node: Node,
    pub(crate) board: Address,
    pub(crate) keys: Vec<(&'static str, String)>,
}

impl Site {
    /// A block comes as often as this.
    pub(crate) async fn ready(ms: u64) -> Site {
        let node = Node::anvil(AnvilOptions { mining: Mining::Every { ms }, ..AnvilOptions::default() }).await.unwrap();
        let board = deploy_board(&node.client(), &dev_signers()[0], &lanes()).await.unwrap();
        let keys = ["KEY_A", "KEY_B"].into_iter().zip(LANES.map(|n| dev_key(n).to_bytes().to_string())).collect();
        Site { node, board, keys }
    }

    pub(crate) fn config(&self, store: &str) -> String {
        format!(
            r#"
seat = "2s"

[store]
url = "{store}"

[chains.dev]
chain_id = 31337
urls = ["{url}"]
finality = 3
poll = "50ms"

[lanes.a]
signer = {{ key = {{ env = "KEY_A" }} }}

[lanes.b]
signer = {{ key = {{ env = "KEY_B" }} }}

[routes.board]
to = "board"
identity = ["/address", "/args/id"]
lease = "2s"
crashes_max = 1000
backoff = {{ first = "0s" }}

[[routes.board.events]]
chain = "dev"
event = "Requested(uint256 indexed id, address indexed from, bytes payload)"
addresses = ["{board}"]

[destinations.board.transactions]
chain = "dev"
lanes = ["a", "b"]
contract = "{board}"
function = "respond(uint256 id, bytes32 content, bytes answer)"
arguments = {{ id = "/request/args/id", content = "/response/content", answer = "/response/answer" }}
gas = 150000
resend = "1s"
timeout = "2s"
"#,
            url = self.node.url(),
            board = self.board,
        )
    }

    pub(crate) fn start(&self, folder: &Path, config: &str, only: &[&str]) -> Program {
        let keys: Vec<(&str, &str)> = self.keys.iter().map(|(name, key)| (*name, key.as_str())).collect();
        Program::start_as(folder, config, &keys, only)
    }

    pub(crate) fn ask(&self, payloads: &[Bytes]) -> Submitter {
        let options = SubmitterOptions { window: 10, ..SubmitterOptions::default() };
        Submitter::start(self.node.client(), self.board, dev_signers()[1..3].to_vec(), payloads.to_vec(), options)
    }

    /// Waits until every request has its answer, once.
    pub(crate) async fn settled(&self, payloads: &[Bytes]) {
        let wanted = format!("settled {}, lost 0, doubled 0", payloads.len());
        let mut last = String::new();
        for _ in 0..600 {
            last = check(&self.node.client(), self.board, payloads, &lanes(), answer_to).await.unwrap().to_string();
            if last == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        panic!("{last}");
    }
}

fn lanes() -> Vec<Address> {
    LANES.map(|n| dev_key(n).address()).to_vec()
}

fn payloads() -> Vec<Bytes> {
    (0..REQUESTS).map(|n| format!("request {n}").into_bytes().into()).collect()
}

/// A worker as anybody could write it: pulls, answers, and comes again whatever happens.
pub(crate) async fn work(api: watch::Receiver<String>) {
    let client = roundtrip_evm::rpc::web_client(Duration::from_secs(10)).unwrap();
    let post = async |path: &str, body: Value| -> Option<Value> {
        let url = format!("{}{path}", *api.borrow());
        let call = client.post(url).header("content-type", "application/json").body(body.to_string());
        let answer = call.send().await.ok().filter(|answer| answer.status() == StatusCode::OK)?;
        serde_json::from_str(&answer.text().await.ok()?).ok()
    };
    loop {
        let leased = post("/v1/work/lease", json!({"route": "board", "worker": "w", "max": 8, "wait_ms": 1000})).await;
        let Some(leased) = leased else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let answers: Vec<Value> = leased["jobs"].as_array().unwrap().iter().map(answered).collect();
        if !answers.is_empty() {
            // If it is not heard, the lease runs out and the work comes again.
            post("/v1/work/answer", json!({"jobs": answers})).await;
        }
    }
}

fn answered(job: &Value) -> Value {
    let payload: Bytes = job["payload"]["args"]["payload"].as_str().unwrap().parse().unwrap();
    let response = json!({"content": keccak256(&payload), "answer": answer_to(&payload)});
    json!({"id": job["id"], "token": job["token"], "response": response})
}

/// A contract that is not there is told, at each place that names it.
#[tokio::test]
async fn a_check_asks_whether_the_contracts_are_there() {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let checked = |config: &str| {
        std::fs::write(folder.path().join("roundtrip.toml"), config).unwrap();
        let mut command = Command::new(PROGRAM);
        command.arg("check").current_dir(folder.path()).envs(site.keys.iter().map(|(name, key)| (name, key)));
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let config = site.config("sqlite:store.db");
    assert_eq!(checked(&config), "");
    let nobody = Address::repeat_byte(7).to_string();
    let told = checked(&config.replace(&site.board.to_string(), &nobody));
    let missing = format!("there is no contract at {nobody} on chain dev");
    for path in ["routes.board.events.0.addresses.0", "destinations.board.transactions.contract"] {
        assert!(told.contains(&format!(" {path}: {missing}")), "{path} is not in:\n{told}");
    }
    assert_eq!(told.lines().count(), 2, "{told}");
}

#[tokio::test]
async fn one_process_does_all_and_is_killed_on_the_way() {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let config = site.config("sqlite:store.db");
    let program = site.start(folder.path(), &config, &[]);
    let (address, api) = watch::channel(program.base().to_owned());
    let worker = tokio::spawn(work(api));
    let payloads = payloads();
    let mut submitter = site.ask(&payloads);
    submitter.wait_until(|far| far.deep * 2 >= REQUESTS).await;
    program.kill();
    let program = site.start(folder.path(), &config, &[]);
    address.send(program.base().to_owned()).unwrap();
    submitter.finish().await.unwrap();
    site.settled(&payloads).await;
    worker.abort();
    let refused = program.post("/v1/lanes/a/reconcile", &json!({"next": 1_000_000})).await;
    assert_eq!(refused.0, StatusCode::CONFLICT, "only a stopped lane is reconciled");
    // Nothing was forgotten, so that there is nothing to rebuild.
    assert_eq!(program.get("/v1/destinations/board/rebuild").await.1, json!({"progress": "idle"}));
    program.post("/v1/destinations/board/rebuild", &json!({"patience_ms": 1000})).await;
    let rebuilt = loop {
        let (_, rebuilt) = program.get("/v1/destinations/board/rebuild").await;
        if rebuilt["progress"] == "done" {
            break rebuilt["rebuilt"].clone();
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(rebuilt, json!({"sent": 0, "done": 0, "failed": 0, "foreign": 0, "unanswered": 0}));
    let said = program.stop();
    for (_, key) in &site.keys {
        assert!(!said.contains(key.trim_start_matches("0x")), "no key is in the log");
    }
}

/// Every role is a process of its own; each is killed while the others work. A worker that pulls and a tool
/// that is called share the work.
async fn roles_apart(store: &str) {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let tool = HttpServer::answering(|asked| {
        let payload: Bytes = asked.body["payload"].as_str().unwrap().parse().unwrap();
        says(200, &json!({"content": keccak256(&payload), "answer": answer_to(&payload)}).to_string())
    })
    .await;
    let config = format!(
        r#"{}
[routes.board.work]
internal = ["127.0.0.1"]
http.url = "{}"
input = {{ payload = "/request/args/payload" }}
"#,
        site.config(store),
        tool.url("/"),
    );
    let roles = ["listen", "work", "send", "api"];
    let mut programs: Vec<Program> = roles.iter().map(|role| site.start(folder.path(), &config, &[role])).collect();
    let (address, api) = watch::channel(programs[3].base().to_owned());
    let worker = tokio::spawn(work(api));
    let payloads = payloads();
    let mut submitter = site.ask(&payloads);
    for (at, role) in roles.iter().enumerate() {
        submitter.wait_until(|far| far.deep * (roles.len() + 1) >= REQUESTS * (at + 1)).await;
        programs.remove(at).kill();
        programs.insert(at, site.start(folder.path(), &config, &[role]));
        address.send(programs[3].base().to_owned()).unwrap();
    }
    submitter.finish().await.unwrap();
    site.settled(&payloads).await;
    worker.abort();
    assert!(!tool.asked().is_empty(), "the tool had a part in it");
    programs.into_iter().for_each(|program| assert!(program.stop().contains("stopped")));
}

#[tokio::test]
async fn roles_apart_on_postgres_survive_the_death_of_each() {
    let server = PostgresServer::start(&[]).unwrap();
    server.wait_until_ready(None).unwrap();
    roles_apart(&server.url("roundtrip")).await;
}

#[tokio::test]
async fn roles_apart_on_redis_survive_the_death_of_each() {
    let server = RedisServer::start(RedisServer::SYNCED).unwrap();
    server.wait_until_ready(None).unwrap();
    roles_apart(&server.url("roundtrip")).await;
}
