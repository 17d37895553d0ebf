//! The dashboard in a real browser, headless, on the real program: a script for each area under
//! `tests/browser`, which looks at what people see and does what they do.

mod still;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use alloy::primitives::{Bytes, keccak256};
use roundtrip_evm::testkit::account::dev_key;
use roundtrip_evm::testkit::deployment::answer_to;
use roundtrip_evm::testkit::proxy::{Fault, Proxy, ProxyFaults};
use roundtrip_server::api::auth::{Role, sign};
use serde_json::json;

use super::chain::Site;
use super::fuzz::tools;
use super::metrics::{hooked, receiver};
use super::program::Program;

const SECRET: &str = "a secret of more than 32 bytes, for tests";
const HOUR: Duration = Duration::from_secs(3600);
const CONFIG: &str = r#"
[store]
url = "sqlite:store.db"

[api.auth]
secret = { env = "API_SECRET" }

[routes.square]
to = "caller"
backoff = { first = "0s" }

[routes.cube]
to = "caller"

[destinations.caller.keep]
at_least = "1h"
"#;

fn token(roles: &[Role], length: Duration) -> String {
    sign(SECRET.as_bytes(), "ada", roles, length).unwrap()
}

fn expired() -> String {
    let claims = json!({"sub": "ada", "exp": 1_700_000_000, "roles": ["operator"]});
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes());
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
}

fn start(folder: &Path, config: &str) -> Program {
    let key = dev_key(0).to_bytes().to_string();
    Program::start_as(folder, config, &[("API_SECRET", SECRET), ("KEY", &key)], &["api"])
}

/// Where the browser is.
fn browser() -> PathBuf {
    let named = std::env::var_os("ROUNDTRIP_CHROMIUM").map(PathBuf::from);
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .flat_map(|folder| ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name)))
        .find(|path| path.is_file());
    named.or(found).expect("chromium is not there: run make tools")
}

/// Runs a script against a program. When it says `ask NAME`, that is done before it goes on.
fn run(script: &str, base: &str, given: &[(&str, &str)], mut asked: impl FnMut(&str)) {
    let all = [Role::Viewer, Role::Submitter, Role::Worker, Role::Operator];
    let mut child = Command::new("node")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser").join(script))
        .env("ROUNDTRIP_TOOLS", std::fs::canonicalize(tools()).unwrap())
        .env("BROWSER", browser())
        .env("BASE", base)
        .env("OPERATOR", token(&all, HOUR))
        .env("VIEWER", token(&[Role::Viewer], HOUR))
        .env("SUBMITTER", token(&[Role::Submitter], HOUR))
        .env("EXPIRED", expired())
        .envs(given.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answers = child.stdin.take().unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        if let Some(what) = line.strip_prefix("ask ") {
            asked(what);
            writeln!(answers, "done").unwrap();
        }
        said.push(line);
    }
    let said = said.join("\n");
    assert!(child.wait().unwrap().success(), "{script}:\n{said}");
    println!("{script}: {said}");
}

fn alone(script: &str, program: &Program, given: &[(&str, &str)]) {
    run(script, program.base(), given, |what| panic!("{script} asks for {what}"));
}

/// The same on a still life of so many rounds, with what it has to know of that.
async fn of_still(script: &str, rounds: u64) {
    let folder = tempfile::tempdir().unwrap();
    let still = still::paint(folder.path(), rounds).await;
    let (settled, dead) = (still.settled.to_string(), still.dead.to_string());
    let given = [("SETTLED", settled.as_str()), ("TRANSACTION", &still.transaction), ("DEAD", &dead)];
    alone(script, &start(folder.path(), &still::config()), &given);
}

#[tokio::test]
async fn whoever_has_a_good_token_is_let_in_and_sees_what_their_role_may_do() {
    of_still("session.mjs", 5).await;
}

#[tokio::test]
async fn the_calls_are_described_to_whoever_is_logged_in() {
    let folder = tempfile::tempdir().unwrap();
    alone("docs.mjs", &start(folder.path(), CONFIG), &[]);
}

#[tokio::test]
async fn what_happens_is_shown_as_it_happens_through_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Some(start(folder.path(), CONFIG));
    let base = program.as_ref().unwrap().base().to_owned();
    let address = base.trim_start_matches("http://").to_owned();
    run("live.mjs", &base, &[], |what| match what {
        "stop" => drop(program.take().unwrap().stop()),
        "start" => {
            let given = [("API_SECRET", SECRET), ("ROUNDTRIP__API__LISTEN", address.as_str())];
            program = Some(Program::start_as(folder.path(), CONFIG, &given, &["api"]));
        }
        other => panic!("{other}"),
    });
}

#[tokio::test]
async fn requests_are_found_and_mended_by_whoever_looks_for_them() {
    of_still("requests.mjs", 5).await;
}

#[tokio::test]
async fn a_lane_is_drawn_slot_by_slot_and_a_route_is_paused_and_resumed() {
    of_still("lanes.mjs", 2).await;
}

#[tokio::test]
async fn whatever_needs_a_person_has_the_button_that_mends_it() {
    of_still("attention.mjs", 2).await;
}

#[tokio::test]
async fn what_cannot_be_shown_is_told_with_what_to_do_next() {
    let folder = tempfile::tempdir().unwrap();
    alone("faults.mjs", &start(folder.path(), CONFIG), &[]);
}

#[tokio::test]
async fn every_page_is_reached_on_a_phone_by_touch_and_by_keyboard() {
    of_still("phone.mjs", 2).await;
}

#[tokio::test]
async fn answers_that_are_kept_for_whoever_asks_wait_for_nobody() {
    of_still("kept.mjs", 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_takes_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let hook = hooked(folder.path(), &receiver(usize::MAX).await);
    let program = Program::start_with(folder.path(), &format!("{CONFIG}{hook}"), &[("API_SECRET", SECRET)]);
    alone("undelivered.mjs", &program, &[]);
}

#[tokio::test]
async fn ten_thousand_requests_are_shown_without_lag() {
    let folder = tempfile::tempdir().unwrap();
    alone("many.mjs", &start(folder.path(), CONFIG), &[]);
}

#[tokio::test]
async fn every_page_can_be_used_by_everybody_in_light_and_dark_and_on_a_phone() {
    // More of the past, where somebody wants pictures of it.
    let rounds = if std::env::var_os("SHOTS").is_some() { 540 } else { 5 };
    of_still("pages.mjs", rounds).await;
}

#[tokio::test]
async fn a_request_of_a_chain_is_followed_from_seen_to_settled() {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let way = Proxy::start(site.node.url(), 1, ProxyFaults::none()).await.unwrap();
    // Behind the node that answers is one that does not, and is not needed.
    let urls = format!("{}\", \"http://127.0.0.1:9", way.url());
    let config = site.config("sqlite:store.db").replace(site.node.url().as_str(), &urls);
    let program = site.start(folder.path(), &config, &[]);
    let [hello, again] = [b"hello", b"again"].map(|words| Bytes::from_static(words));
    let submitter = site.ask(std::slice::from_ref(&hello));
    let told = |payload: &Bytes| (keccak256(payload).to_string(), answer_to(payload).to_string());
    let ((content, answer), (content_2, answer_2)) = (told(&hello), told(&again));
    let (base, node, board) = (program.base().to_owned(), site.node.url().to_string(), site.board.to_string());
    let (more, mut asked) = tokio::sync::mpsc::unbounded_channel();
    let script = tokio::task::spawn_blocking(move || {
        let given = [
            ("CONTENT", content.as_str()),
            ("ANSWER", &answer),
            ("CONTENT_2", &content_2),
            ("ANSWER_2", &answer_2),
            ("NODE", &node),
            ("BOARD", &board),
        ];
        run("chain.mjs", &base, &given, |what| match what {
            "another" => more.send(()).unwrap(),
            "cut" => way.set_faults(ProxyFaults::none().always(Fault::ErrorBefore)),
            other => panic!("{other}"),
        });
    });
    submitter.finish().await.unwrap();
    // Another one asks when the script says so; its blocks are the script's.
    let another = async { asked.recv().await.map(|()| site.ask(std::slice::from_ref(&again))) };
    let (another, ended) = tokio::join!(another, script);
    ended.unwrap();
    drop(another);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_lane_is_rebuilt_or_reconciled_by_whoever_means_it() {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let program = site.start(folder.path(), &site.config("sqlite:store.db"), &[]);
    let node = site.node.url().to_string();
    alone("stopped.mjs", &program, &[("NODE", &node)]);
}
