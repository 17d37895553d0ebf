//! The 3 a.m. playbook: each test produces the fault and follows `docs/operations.md` to its good end.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use alloy::primitives::{Bytes, U64};
use roundtrip::testkit::servers::RedisServer;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::lanes::blocks_every;
use super::{LOOKS_MAX, PROGRAM, Shell, roomy_folder};
use crate::chain::{Site, work};
use crate::program::Program;
use crate::tool::{HttpServer, says};

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

    /// Workers come back.
    fn work(&mut self) {
        self.worker = tokio::spawn(work(self.address.subscribe()));
    }

    fn stop(&mut self) {
        self.program.take().unwrap().stop();
    }

    fn again(&mut self, config: &str) {
        let program = self.site.start(self.folder, config, &[]);
        self.address.send_replace(program.base().to_owned());
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
    let at_cap = |lane: &Value| lane["name"] == "a" && lane["at_fee_cap"] == lane["settled"];
    page.until("lanes list", |found| found["lanes"].as_array().unwrap().iter().any(at_cap)).await;
    assert!(page.says("lanes list").contains("is at the fee cap"));
    let told = page.doctor();
    assert!(told.contains("BAD   lane a: slot") && told.contains("raise `fee_cap_gwei`"), "{told}");
    assert!(told.contains("lane b: it is paused"), "{told}");
    running.stop();
    running.again(&cheap.replace("fee_cap_gwei = 3", "fee_cap_gwei = 1000000"));
    site.settled(&asked).await;
    let page = Followed::section("A lane is stuck", running.shell());
    page.until("lanes show a", |lane| lane["under_way"] == 0).await;
}

/// A tool, one that says how it is and one that does not, goes away and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let place = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = place.local_addr().unwrap();
    drop(place);
    let config = format!(
        r#"
[store]
url = "sqlite:store.db"

[routes.plain]
backoff = {{ first = "10ms", max = "50ms" }}

[routes.plain.work]
internal = ["127.0.0.1"]
http.url = "http://{address}/"

[routes.watched.work]
internal = ["127.0.0.1"]
http = {{ url = "http://{address}/", health = "http://{address}/health", health_every = "50ms" }}
"#
    );
    let program = Program::start(folder.path(), &config);
    let mut asked = Vec::new();
    for route in ["plain", "watched"] {
        let (_, accepted) = program.post(&format!("/v1/routes/{route}/requests"), &json!(1)).await;
        asked.push(accepted["status_url"].as_str().unwrap().to_owned());
    }
    let page = Followed::section("A tool is away", Shell::beside(folder.path(), &program));
    let away = |found: &Value, about: &str| {
        let all = found["findings"].as_array().map_or(&[][..], Vec::as_slice).iter();
        all.filter(|one| one["about"] == about && one["level"] == "look").count() == 1
    };
    let both = |found: &Value| away(found, "tool of route plain") && away(found, "tool of route watched");
    let found = page.until("doctor", both).await;
    assert!(found.to_string().contains("it cannot be asked, for"), "{found}");
    assert!(page.doctor().contains("LOOK  tool of route plain: it cannot be asked"));
    let refused = page.shell.run(&page.words("check"));
    assert!(refused.err.contains("routes.watched.work.http.health: it is not well"), "{refused:?}");
    assert!(page.says("requests list --route plain").contains("it cannot be reached"));
    // Where no instance runs, the tool is asked, as nodes are; and the store knows who was tried some times.
    let (_, id) = asked[0].rsplit_once('/').unwrap();
    let tries = |shown: &Value| {
        let all = shown["timeline"]["entries"].as_array().map_or(&[][..], Vec::as_slice).iter();
        all.filter(|entry| entry["event"] == "failed").count()
    };
    page.shell.until(&["requests", "show", id], |shown| tries(shown) >= 3).await;
    program.stop();
    let alone = Shell::alone(folder.path()).run(&["doctor"]);
    let (elsewhere, store) =
        (tempfile::tempdir().unwrap(), format!("sqlite:{}", folder.path().join("store.db").display()));
    for route in ["plain", "watched"] {
        let told = format!("LOOK  tool of route {route}: it was asked from here, and cannot be");
        assert!(alone.out.contains(&told), "{alone:?}");
    }
    let bare = Shell::alone(elsewhere.path()).run(&["doctor", "--store", &store]);
    let told = "LOOK  route plain: 1 request waits for what its worker could not reach";
    assert!(bare.out.contains(told) && !bare.out.contains("tool of route"), "{bare:?}");
    let _tool = HttpServer::on(TcpListener::bind(address).await.unwrap(), |_| says(200, "1"));
    let program = Program::start(folder.path(), &config);
    for one in asked {
        let (_, found) = program.get(&format!("{one}?wait=30s")).await;
        assert_eq!(found["state"], json!("settled"), "{found}");
    }
    let page = Followed::section("A tool is away", Shell::beside(folder.path(), &program));
    page.until("doctor", |found| !away(found, "tool of route plain") && !away(found, "tool of route watched")).await;
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

/// Cuts it, and frees its address.
async fn cut(way: JoinHandle<()>) {
    way.abort();
    assert!(way.await.is_err(), "it was cut");
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
    cut(way).await;
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

/// A node that shows another chain than it did stops the listener, until a person has looked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_is_halted() {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let node: SocketAddr = site.node.url().socket_addrs(|| None).unwrap()[0];
    let (address, way) = cuttable(node, None).await;
    let config = site
        .config("sqlite:store.db")
        .replace(&format!("urls = [\"{}\"]", site.node.url()), &format!("urls = [\"http://{address}\"]"));
    let mut running = Running::start(&site, folder.path(), &config);
    let first = payload("before");
    site.ask(&first).finish().await.unwrap();
    site.settled(&first).await;
    // What answers there now has never seen these blocks.
    let other = Site::ready(200).await;
    other.node.mine(site.node.block_number().await.unwrap() + 20).await.unwrap();
    cut(way).await;
    let (_, way) = cuttable(other.node.url().socket_addrs(|| None).unwrap()[0], Some(address)).await;
    let page = Followed::section("A listener lags", running.shell());
    let found = page.until("listeners", |found| found["listeners"][0]["state"] == "halted").await;
    assert!(found["listeners"][0]["detail"].as_str().unwrap().contains("final"), "{found}");
    assert!(page.doctor().contains("BAD   listener board@dev: it is halted"));
    // The node is corrected, and the program started again.
    cut(way).await;
    running.program.take().unwrap().kill();
    let (_, _way) = cuttable(node, Some(address)).await;
    running.again(&config);
    let page = Followed::section("A listener lags", running.shell());
    page.until("listeners", |found| found["listeners"][0]["state"] == "following").await;
    let asked = [&first[..], &payload("after")].concat();
    site.ask(&asked[1..]).finish().await.unwrap();
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

/// A program whose store is on a small disk of its own, which only it can see.
fn on_a_small_disk(folder: &Path, config: &str) -> Program {
    std::fs::create_dir(folder.join("disk")).unwrap();
    let mut command = Command::new("unshare");
    let within = "mount -t tmpfs -o size=8m tmpfs disk && exec \"$0\" run";
    command.args(["--mount", "--map-root-user", "sh", "-c", within, PROGRAM]);
    Program::start_by(command, folder, config, &[])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_disk_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[store]\nurl = \"sqlite:disk/store.db\"\n[routes.work]\n";
    let program = on_a_small_disk(folder.path(), config);
    let submit = async |n: u64| program.post("/v1/routes/work/requests", &json!({"n": n})).await;
    assert_eq!(submit(0).await.0.as_u16(), 201);
    // Somebody else fills it.
    let seen = format!("/proc/{}/root{}/disk/filler", program.process_id(), folder.path().display());
    let mut filler = std::fs::File::create(&seen).unwrap();
    for size in [1 << 20, 1 << 12] {
        while filler.write_all(&vec![0; size]).is_ok() {}
    }
    let mut accepted = 1;
    let refused = loop {
        // What is on the disk already has some room left in it.
        let (status, told) = submit(accepted).await;
        match status.as_u16() {
            201 => accepted += 1,
            _ => break (status.as_u16(), told),
        }
        assert!(accepted < 100_000, "it is never full");
    };
    assert_eq!(refused.0, 503, "{refused:?}");
    let page = Followed::section("The store is full", Shell::beside(folder.path(), &program));
    let told = page.doctor();
    assert!(told.contains("disk/store.db: ") && told.contains("are left on its disk"), "{told}");
    // Space is freed, and it goes on by itself, with all that it had accepted.
    std::fs::remove_file(&seen).unwrap();
    drop(filler);
    while submit(accepted).await.0.as_u16() != 201 {
        tokio::task::yield_now().await;
    }
    let (_, counts) = program.get("/v1/counts").await;
    assert_eq!(counts["counts"][0]["requests"], json!(accepted + 1), "{counts}");
    assert!(!page.shell.run(&["doctor"]).out.contains("BAD"));
    assert!(program.stop().contains("stopped"));
}

/// A lane under way whose key is gone is brought to its end without it, and another takes what is new.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_lost_while_slots_are_under_way() {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let both = site.config("sqlite:store.db");
    let one = both.replace("lanes = [\"a\", \"b\"]", "lanes = [\"a\"]");
    let mut running = Running::start(&site, folder.path(), &one);
    let shell = running.shell();
    shell.until(&["lanes", "list"], |found| found["lanes"].as_array().is_some_and(|lanes| lanes.len() == 1)).await;
    shell.says(&["lanes", "pause", "a"]);
    let first = payload("before");
    site.ask(&first).finish().await.unwrap();
    shell.until(&["requests", "list", "--state", "ready"], |found| !found["requests"][0].is_null()).await;
    // It is signed and sent, and not mined; then the node forgets it, and the key is gone.
    blocks_every(&site, 0).await;
    shell.says(&["lanes", "resume", "a"]);
    shell.until(&["lanes", "show", "a"], |lane| lane["parcels"][0]["stage"] == "assigned").await;
    running.stop();
    site.node.drop_all().await.unwrap();
    let page = Followed::section("A key is lost", Shell::alone(folder.path()));
    let shown = page.says("lanes show a");
    let address = shown.split("signed by ").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap().to_owned();
    assert!(page.section.contains("signer = { lost = \"0x") && page.section.contains("lanes = [\"b\", \"a\"]"));
    let lost = both
        .replace("lanes = [\"a\", \"b\"]", "lanes = [\"b\", \"a\"]")
        .replace("{ key = { env = \"KEY_A\" } }", &format!("{{ lost = \"{address}\" }}"));
    running.again(&lost);
    let shell = running.shell().with("KEY_B", &site.keys[1].1);
    assert!(shell.says(&["check"]).contains("all is well"));
    blocks_every(&site, 1).await;
    let asked = [first[0].clone(), payload("after")[0].clone()];
    site.ask(&asked[1..]).finish().await.unwrap();
    site.settled(&asked).await;
    let page = Followed::section("A key is lost", running.shell());
    page.until("lanes show a", |lane| lane["under_way"] == 0).await;
    let shown = page.shell.json(&["lanes", "list"]);
    let next = |name: &str| {
        let lane = shown["lanes"].as_array().unwrap().iter().find(|lane| lane["name"] == name).unwrap();
        lane["next"].as_u64().unwrap()
    };
    assert_eq!((next("a"), next("b")), (1, 1), "what was signed went out on the one, what is new on the other");
    let told = page.doctor();
    assert!(
        told.contains("LOOK  account of lane a: the key of") && !told.contains("BAD   account of lane a"),
        "{told}"
    );
    running.stop();
    // Nothing is under way on it any longer, and it can go.
    let without = both.replace("lanes = [\"a\", \"b\"]", "lanes = [\"b\"]");
    running.again(&without);
    let more = [asked[0].clone(), asked[1].clone(), payload("on")[0].clone()];
    site.ask(&more[2..]).finish().await.unwrap();
    site.settled(&more).await;
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
    let refused = page.shell.refuses(&["run"]);
    assert!(refused.contains("lane a cannot sign") && refused.contains("no secret in the file a.key"), "{refused}");
    assert!(page.doctor().contains("BAD   account of lane a: no secret in the file a.key"));
    assert!(page.says("lanes show a").contains("nothing is under way"));
    // It is brought back.
    std::fs::write(&key, &site.keys[0].1).unwrap();
    assert!(page.says("check").contains("all is well"));
    running.again(&config);
    let brought = [first[0].clone(), payload("back")[0].clone()];
    site.ask(&brought[1..]).finish().await.unwrap();
    site.settled(&brought).await;
    running.shell().until(&["lanes", "show", "a"], |lane| lane["under_way"] == 0).await;
    running.stop();
    std::fs::remove_file(&key).unwrap();
    // Or another account takes its place.
    let other = one.replace("lanes = [\"a\"]", "lanes = [\"b\"]").replace("{ env = \"KEY_A\" }", "{ env = \"KEY_B\" }");
    running.again(&other);
    let asked = [&brought[..], &payload("after")].concat();
    site.ask(&asked[2..]).finish().await.unwrap();
    let page = Followed::section("A key is lost", running.shell());
    page.until("lanes list", |found| found["lanes"].as_array().unwrap().iter().any(|lane| lane["name"] == "b")).await;
    site.settled(&asked).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_pile_up() {
    let folder = roomy_folder();
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

/// A program that runs on an older copy of its store: what was asked after it is on the chain, and forgotten.
async fn restored<'a>(site: &'a Site, folder: &'a Path, config: &str) -> (Running<'a>, Vec<Bytes>) {
    let mut running = Running::start(site, folder, config);
    let before = payload("before");
    site.ask(&before).finish().await.unwrap();
    site.settled(&before).await;
    running.stop();
    let files = ["store.db", "store.db-wal"].map(|name| folder.join(name));
    let backup = files.iter().map(|file| std::fs::read(file).ok()).collect::<Vec<_>>();
    running.again(config);
    let asked = [&before[..], &payload("after")].concat();
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
    (running, asked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_was_restored() {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let one = site.config("sqlite:store.db").replace("lanes = [\"a\", \"b\"]", "lanes = [\"a\"]");
    let (mut running, asked) = restored(&site, folder.path(), &one).await;
    running.again(&one);
    let page = Followed::section("A backup was restored", running.shell());
    page.until("lanes list", |found| found["lanes"][0]["status"] == "stopped").await;
    let told = page.doctor();
    assert!(told.contains("BAD   lane a: it is stopped") && told.contains("roundtrip lanes rebuild a"), "{told}");
    let rebuilt = page.says("lanes rebuild a");
    assert!(rebuilt.contains("1 transactions were unknown; 1 answers found done"), "{rebuilt}");
    page.until("lanes list", |found| found["lanes"][0]["status"] == "active").await;
    let more = [&asked[..], &payload("on")].concat();
    site.ask(&more[2..]).finish().await.unwrap();
    site.settled(&more).await;
}

/// Nobody answers again what was forgotten, or the chain cannot be read so far back: a person matches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_was_restored_and_nobody_answers_again() {
    for rebuild in [true, false] {
        let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
        let one = site.config("sqlite:store.db").replace("lanes = [\"a\", \"b\"]", "lanes = [\"a\"]");
        let (mut running, asked) = restored(&site, folder.path(), &one).await;
        running.worker.abort();
        running.again(&one);
        let page = Followed::section("A backup was restored", running.shell());
        page.until("lanes list", |found| found["lanes"][0]["status"] == "stopped").await;
        let open = |found: &Value| found["requests"][0]["state"] == "queued";
        let found = page.until("requests list --state queued,leased", open).await;
        let forgotten = found["requests"][0]["id"].as_str().unwrap();
        assert_eq!(page.says("routes pause board"), "route board is paused\n");
        if rebuild {
            let rebuilt = page.says("lanes rebuild a --patience 1s");
            assert!(rebuilt.contains("1 requests waited for in vain"), "{rebuilt}");
        }
        // It is on the chain: whoever looks there finds its answer.
        page.words("requests cancel");
        page.shell.says(&["requests", "cancel", forgotten]);
        if !rebuild {
            page.words("lanes reconcile a --next");
            let lane = roundtrip_evm::testkit::account::dev_key(8).address();
            let next: U64 = site.node.client().request("eth_getTransactionCount", (lane, "latest")).await.unwrap();
            let said = page.shell.says(&["lanes", "reconcile", "a", "--next", &next.to::<u64>().to_string()]);
            assert_eq!(said, format!("lane a goes on at slot {next}\n", next = next.to::<u64>()));
        }
        assert_eq!(page.says("routes resume board"), "route board is resumed\n");
        page.until("lanes list", |found| found["lanes"][0]["status"] == "active").await;
        running.work();
        let more = [&asked[..], &payload("on")].concat();
        site.ask(&more[2..]).finish().await.unwrap();
        site.settled(&more).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_is_away() {
    let (redis, folder) = (RedisServer::start(RedisServer::SYNCED).unwrap(), tempfile::tempdir().unwrap());
    let (at, way) = cuttable(redis.address().parse().unwrap(), None).await;
    let program = Program::start(folder.path(), &format!("[store]\nurl = \"redis://{at}\"\n[routes.work]\n"));
    program.post("/v1/routes/work/requests", &json!(1)).await;
    cut(way).await;
    let page = Followed::section("The store is away", Shell::beside(folder.path(), &program));
    let told = format!("redis at {at} was not reached");
    let bad = |found: &Value| {
        let all = found["findings"].as_array().map_or(&[][..], Vec::as_slice).iter();
        all.filter(|one| one["level"] == "bad")
            .map(|one| one["found"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    let once = |found: &Value| {
        let bad: Vec<String> = bad(found);
        bad.len() == 1 && bad[0].contains(&told)
    };
    page.until("doctor", once).await;
    let refused = page.shell.run(&page.words("check"));
    assert!(refused.code == Some(1) && refused.err.contains(&told), "{refused:?}");
    // What was broken off is told first; then that nobody is there.
    let mut ready = program.get("/ready").await;
    for _ in 0..LOOKS_MAX {
        if ready.1["detail"].as_str().is_some_and(|detail| detail.contains(&told)) {
            break;
        }
        ready = program.get("/ready").await;
    }
    assert!(ready.0 == 503 && ready.1["detail"].as_str().unwrap().contains(&told), "{ready:?}");
    for _ in 0..LOOKS_MAX {
        if program.log().contains(&told) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(program.log().contains(&told), "the log names the server");
    let (_, _way) = cuttable(redis.address().parse().unwrap(), Some(at)).await;
    page.until("doctor", |found| found["findings"].is_array() && bad(found).is_empty()).await;
    assert!(page.says("routes list").contains("work"));
    program.stop();
}
