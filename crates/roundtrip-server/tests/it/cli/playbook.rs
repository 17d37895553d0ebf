//! The 3 a.m. playbook: each test produces the fault and follows `docs/operations.md` to its good end.

use std::net::SocketAddr;
use std::path::Path;

use alloy::primitives::Bytes;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Shell;
use super::lanes::blocks_every;
use crate::chain::{Site, work};
use crate::program::Program;

const PAGE: &str = include_str!("../../../../../docs/operations.md");

/// A section of the page, and whoever follows it.
struct Followed<'a> {
    section: &'static str,
    shell: Shell<'a>,
}

impl<'a> Followed<'a> {
    fn section(name: &str, shell: Shell<'a>) -> Followed<'a> {
        let after = PAGE.split(&format!("\n### {name}\n")).nth(1).unwrap_or_else(|| panic!("the page has no {name:?}"));
        Followed { section: after.split("\n### ").next().unwrap(), shell }
    }

    /// A command, which the section must name.
    fn words<'w>(&self, command: &'w str) -> Vec<&'w str> {
        assert!(self.section.contains(&format!("roundtrip {command}")), "the page does not say {command:?}");
        command.split(' ').collect()
    }

    fn says(&self, command: &str) -> String {
        self.shell.says(&self.words(command))
    }

    /// What the doctor finds, and that its exit code is not 0.
    fn doctor(&self) -> String {
        let found = self.shell.run(&self.words("doctor"));
        assert!(matches!(found.code, Some(3 | 4)), "{found:?}");
        found.out
    }

    async fn until(&self, command: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        self.shell.until(&self.words(command), is_so).await
    }
}

fn payload(text: &str) -> [Bytes; 1] {
    [text.as_bytes().to_vec().into()]
}

/// A program with a worker beside it, which finds it after every start.
struct Running<'a> {
    site: &'a Site,
    folder: &'a Path,
    program: Option<Program>,
    address: watch::Sender<String>,
    worker: JoinHandle<()>,
}

impl<'a> Running<'a> {
    fn start(site: &'a Site, folder: &'a Path, config: &str) -> Running<'a> {
        let program = site.start(folder, config, &[]);
        let (address, api) = watch::channel(program.base().to_owned());
        Running { site, folder, program: Some(program), address, worker: tokio::spawn(work(api)) }
    }

    fn stop(&mut self) {
        self.program.take().unwrap().stop();
    }

    fn again(&mut self, config: &str) {
        let program = self.site.start(self.folder, config, &[]);
        self.address.send(program.base().to_owned()).unwrap();
        self.program = Some(program);
    }

    fn shell(&self) -> Shell<'a> {
        Shell::beside(self.folder, self.program.as_ref().unwrap())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.worker.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_is_stuck() {
    let (site, folder) = (Site::ready(1_000).await, tempfile::tempdir().unwrap());
    let cheap = site.config("sqlite:store.db").replace("gas = 150000", "gas = 150000\nfee_cap_gwei = 3");
    let mut running = Running::start(&site, folder.path(), &cheap);
    let page = Followed::section("A lane is stuck", running.shell());
    page.until("lanes list", |found| found["lanes"].as_array().is_some_and(|lanes| lanes.len() == 2)).await;
    for lane in ["a", "b"] {
        page.shell.says(&["lanes", "pause", lane]);
    }
    let asked = payload("stuck");
    site.ask(&asked).finish().await.unwrap();
    page.shell.until(&["requests", "list", "--state", "ready"], |found| !found["requests"][0].is_null()).await;
    // The chain becomes a thousand times dearer than what may be paid.
    site.node.set_next_base_fee(3_000_000_000_000).await.unwrap();
    page.shell.says(&["lanes", "resume", "a"]);
    page.until("lanes list", |found| found["lanes"].as_array().unwrap().iter().any(|lane| lane["under_way"] == 1))
        .await;
    assert!(page.says("lanes show a").contains("assigned"), "it is not mined");
    let other = page.doctor();
    assert!(other.contains("lane b: it is paused"), "{other}");
    running.stop();
    running.again(&cheap.replace("fee_cap_gwei = 3", "fee_cap_gwei = 1000000"));
    site.settled(&asked).await;
    let page = Followed::section("A lane is stuck", running.shell());
    page.until("lanes show a", |lane| lane["under_way"] == 0).await;
}

/// A way to a node that can be cut.
async fn cuttable(to: SocketAddr, at: Option<SocketAddr>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(at.unwrap_or("127.0.0.1:0".parse().unwrap())).await.unwrap();
    let address = listener.local_addr().unwrap();
    let carrying = tokio::spawn(async move {
        let mut calls = tokio::task::JoinSet::new();
        while let Ok((mut here, _)) = listener.accept().await {
            calls.spawn(async move {
                let mut there = TcpStream::connect(to).await?;
                tokio::io::copy_bidirectional(&mut here, &mut there).await
            });
        }
    });
    (address, carrying)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_lags() {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let node: SocketAddr = site.node.url().socket_addrs(|| None).unwrap()[0];
    let (address, way) = cuttable(node, None).await;
    let url = site.node.url().to_string();
    let config = site
        .config("sqlite:store.db")
        .replace(&format!("urls = [\"{url}\"]"), &format!("urls = [\"http://{address}\"]"));
    assert!(config.contains(&address.to_string()), "{config}");
    let mut running = Running::start(&site, folder.path(), &config);
    running.shell().until(&["listeners"], |found| found["listeners"][0]["state"] == "following").await;
    way.abort();
    let page = Followed::section("A listener lags", running.shell());
    let found = page.until("listeners", |found| found["listeners"][0]["state"] == "waits").await;
    assert!(found["listeners"][0]["detail"].as_str().unwrap().contains("gave no answer"), "{found}");
    let asked = payload("late");
    site.ask(&asked).finish().await.unwrap();
    let told = page.doctor();
    assert!(told.contains("listener board@dev: it waits") && told.contains("it does not answer"), "{told}");
    // Another node, as the page says.
    running.stop();
    running.again(&config.replace(&format!("\"http://{address}\""), &format!("\"http://{address}\", \"{url}\"")));
    let page = Followed::section("A listener lags", running.shell());
    page.until("listeners", |found| found["listeners"][0]["state"] == "following").await;
    site.settled(&asked).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[store]\nurl = \"sqlite:store.db\"\n[routes.work]\ncapacity = 3\n";
    let program = Program::start(folder.path(), config);
    for _ in 0..3 {
        program.dead_letter("work", "HTTP 503 from upstream").await;
    }
    let (status, refused) = program.post("/v1/routes/work/requests", &json!(1)).await;
    assert_eq!(status.as_u16(), 503, "{refused}");
    let page = Followed::section("The store is full", Shell::beside(folder.path(), &program));
    assert!(page.doctor().contains("BAD   route work: it is full"));
    let table = page.says("routes list");
    assert!(table.lines().any(|line| line.starts_with("work") && line.contains(" 3 ")), "{table}");
    assert!(page.says("dead list --route work").contains("HTTP … from upstream"));
    assert!(page.says("dead drop --route work --since 1d").contains("3 dead letters would be dropped"));
    assert_eq!(page.says("dead drop --route work --since 1d --yes"), "3 dead letters dropped\n");
    assert_eq!(program.post("/v1/routes/work/requests", &json!(1)).await.0.as_u16(), 201);
    // Or with more room.
    for n in 2..4 {
        program.post("/v1/routes/work/requests", &json!(n)).await;
    }
    program.stop();
    let program = Program::start(folder.path(), &config.replace('3', "30"));
    assert_eq!(program.post("/v1/routes/work/requests", &json!(4)).await.0.as_u16(), 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_lost() {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let key = folder.path().join("a.key");
    std::fs::write(&key, &site.keys[0].1).unwrap();
    let both = site.config("sqlite:store.db");
    let one = both.replace("lanes = [\"a\", \"b\"]", "lanes = [\"a\"]");
    let config = one.replace("{ env = \"KEY_A\" }", "{ file = \"a.key\" }");
    let mut running = Running::start(&site, folder.path(), &config);
    let first = payload("before");
    site.ask(&first).finish().await.unwrap();
    site.settled(&first).await;
    running.shell().until(&["lanes", "show", "a"], |lane| lane["under_way"] == 0).await;
    running.stop();
    std::fs::remove_file(&key).unwrap();
    // It does not start, and everybody says why.
    let page = Followed::section("A key is lost", Shell::alone(folder.path()));
    let refused = page.shell.run(&page.words("check"));
    assert!(
        refused.code == Some(1) && refused.err.contains("lanes.a.signer: no secret in the file a.key"),
        "{refused:?}"
    );
    assert!(page.shell.refuses(&["run"]).contains("a.key"));
    assert!(page.doctor().contains("BAD   account of lane a: no secret in the file a.key"));
    assert!(page.says("lanes show a").contains("nothing is under way"));
    // Another account takes its place.
    let other = one.replace("lanes = [\"a\"]", "lanes = [\"b\"]").replace("{ env = \"KEY_A\" }", "{ env = \"KEY_B\" }");
    running.again(&other);
    let asked = [first[0].clone(), payload("after")[0].clone()];
    site.ask(&asked[1..]).finish().await.unwrap();
    let page = Followed::section("A key is lost", running.shell());
    page.until("lanes list", |found| found["lanes"].as_array().unwrap().iter().any(|lane| lane["name"] == "b")).await;
    site.settled(&asked).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_pile_up() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "[store]\nurl = \"sqlite:store.db\"\n[routes.work]\n");
    for n in 0..4 {
        program.dead_letter("work", &format!("connection {n} refused")).await;
    }
    let odd = program.dead_letter("work", "no such pair").await;
    let page = Followed::section("Dead letters pile up", Shell::beside(folder.path(), &program));
    assert!(page.doctor().contains("route work: 5 dead letters wait for a person"));
    assert!(page.says("dead list --route work").contains("connection … refused"));
    assert!(page.shell.says(&["requests", "show", &odd]).contains("no such pair"));
    page.words("requests show");
    assert!(page.says("dead retry --route work --error refused").contains("4 dead letters would be retried"));
    assert_eq!(page.says("dead retry --route work --error refused --yes"), "4 dead letters retried\n");
    for _ in 0..4 {
        let job = program.lease("work").await;
        assert_eq!(program.answer(&job, json!(1)).await, "done");
    }
    assert_eq!(page.says("dead drop --route work --error pair --yes"), "1 dead letter dropped\n");
    assert_eq!(page.shell.run(&["doctor"]).code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_was_restored() {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let one = site.config("sqlite:store.db").replace("lanes = [\"a\", \"b\"]", "lanes = [\"a\"]");
    let mut running = Running::start(&site, folder.path(), &one);
    let before = payload("before");
    site.ask(&before).finish().await.unwrap();
    site.settled(&before).await;
    running.stop();
    let store = folder.path().join("store.db");
    let files = ["store.db", "store.db-wal"].map(|name| folder.path().join(name));
    let backup = files.iter().map(|file| std::fs::read(file).ok()).collect::<Vec<_>>();
    running.again(&one);
    let asked = [before[0].clone(), payload("after")[0].clone()];
    site.ask(&asked[1..]).finish().await.unwrap();
    site.settled(&asked).await;
    running.stop();
    // The disk is lost, and an older copy is put in its place.
    for (file, bytes) in files.iter().zip(backup) {
        match bytes {
            Some(bytes) => std::fs::write(file, bytes).unwrap(),
            None => drop(std::fs::remove_file(file)),
        }
    }
    assert!(store.exists());
    running.again(&one);
    let page = Followed::section("A backup was restored", running.shell());
    page.until("lanes list", |found| found["lanes"][0]["status"] == "stopped").await;
    let told = page.doctor();
    assert!(told.contains("BAD   lane a: it is stopped") && told.contains("roundtrip lanes rebuild a"), "{told}");
    let rebuilt = page.says("lanes rebuild a");
    assert!(rebuilt.contains("1 transactions were unknown; 1 answers found done"), "{rebuilt}");
    page.until("lanes list", |found| found["lanes"][0]["status"] == "active").await;
    let more = [asked[0].clone(), asked[1].clone(), payload("on")[0].clone()];
    site.ask(&more[2..]).finish().await.unwrap();
    site.settled(&more).await;
    blocks_every(&site, 0).await;
}
