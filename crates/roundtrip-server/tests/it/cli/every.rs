//! Every command that there is, tried with the real program: well, as text and as JSON, and badly. A command without
//! a row here is a failed test.

use std::collections::{BTreeMap, BTreeSet};

use alloy::primitives::Bytes;
use roundtrip_evm::testkit::account::dev_key;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::Shell;
use super::lanes::blocks_every;
use crate::chain::{Site, work};
use crate::program::Program;

/// A command; what it is told when all is well, in this order; and what it refuses, with a part of what it says then.
/// Words in braces stand for what the scene has.
struct Tried {
    command: &'static str,
    well: &'static [&'static str],
    badly: (&'static str, &'static str),
}

const fn tried(command: &'static str, well: &'static [&'static str], badly: (&'static str, &'static str)) -> Tried {
    Tried { command, well, badly }
}

/// The account of the lane that somebody else uses too.
const OTHERS: usize = 7;
const NOBODY_THERE: &str = "--url http://127.0.0.1:1";

/// All of them. `run` is what the scene runs.
const ALL: [Tried; 32] = [
    tried("init", &["other.toml"], ("", "is there already")),
    tried("check", &["", "--offline"], ("--config missing.toml", "missing.toml cannot be read")),
    tried("run", &[], ("--config missing.toml", "missing.toml cannot be read")),
    tried("requests list", &["", "--route plain --state queued --json"], ("--state asleep", "is no state")),
    tried("requests show", &["{queued}", "{queued} --json"], ("0000000000000000", "no live request begins with")),
    tried("requests retry", &["{dead 1}", "{dead 2} --anew --json"], ("{queued}", "it is queued")),
    tried("requests cancel", &["{cancel 1}", "{cancel 2} --json"], ("{none}", "cancel 7777")),
    tried("requests submit", &["plain 1", "plain 2 --json"], ("nowhere 1", "no route is called \"nowhere\"")),
    tried("dead list", &["", "--route plain --json"], ("--prefix xyz", "up to 64 hexadecimal digits")),
    tried(
        "dead retry",
        &["--all", "--all --anew", "--error again --yes", "--all --json"],
        ("--yes", "nothing says which dead letters"),
    ),
    tried(
        "dead drop",
        &["--all", "--error gone --yes", "--all --yes --json"],
        ("--yes", "nothing says which dead letters"),
    ),
    tried("lanes list", &["", "--json"], (NOBODY_THERE, "nobody answers there")),
    tried("lanes show", &["a", "a --json"], ("nowhere", "no lane is called \"nowhere\"")),
    tried("lanes reconcile", &["c --next 1 --json"], ("a --next 1000", "only a stopped lane is reconciled")),
    tried("lanes pause", &["b --reason why", "b --json"], ("nowhere", "no lane of this name")),
    tried("lanes cancel", &["a --nonce 0", "a --nonce 1 --json"], ("a --nonce 99", "nothing is on slot 99")),
    tried("lanes resume", &["b", "b --json"], ("nowhere", "no lane of this name")),
    tried(
        "lanes rebuild",
        &["a --no-wait", "a --no-wait --json"],
        ("nowhere", "no lane and no destination with lanes is called \"nowhere\""),
    ),
    tried("routes list", &["", "--json"], (NOBODY_THERE, "nobody answers there")),
    tried("routes pause", &["plain", "plain --json"], ("nowhere", "route nowhere is not defined")),
    tried("routes resume", &["plain", "plain --json"], ("nowhere", "route nowhere is not defined")),
    tried("listeners", &["", "--json"], (NOBODY_THERE, "nobody answers there")),
    tried(
        "token create",
        &["--config auth.toml --role viewer", "--config auth.toml --role worker,viewer --ttl 1d --json"],
        ("--role viewer", "names no api.auth.secret"),
    ),
    tried("store migrate", &["--store sqlite:new.db", "--store sqlite:new.db --json"], ("", "is in use by process")),
    tried("store verify", &["--store sqlite:new.db", "--store sqlite:new.db --json"], ("", "is in use by process")),
    tried(
        "store copy",
        &["--store sqlite:new.db --to sqlite:one.db", "--store sqlite:new.db --to sqlite:two.db --json"],
        ("--store sqlite:missing.db --to sqlite:one.db", "there is no store at missing.db"),
    ),
    tried("doctor", &["", "--json"], ("--url nowhere", "this is no address")),
    tried("top", &["--once", "--once --json"], ("", "say --once")),
    tried("completions", &["bash"], ("tcsh", "invalid value 'tcsh'")),
    tried("schema", &[""], ("--yaml", "unexpected argument")),
    tried("metrics", &[""], ("--json", "unexpected argument")),
    tried("reference", &["", "--cli"], ("--html", "unexpected argument")),
];

/// The commands that there are, and those of them that take `--json`.
fn commands(shell: &Shell<'_>) -> (BTreeSet<String>, BTreeSet<String>) {
    let reference = shell.says(&["reference", "--cli"]);
    let mut headings: Vec<String> = Vec::new();
    for line in reference.lines() {
        let Some(heading) = line.trim_start_matches('#').strip_prefix(" `roundtrip ") else { continue };
        let word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
        let words: Vec<&str> = heading.trim_end_matches('`').split(' ').take_while(word).collect();
        headings.push(words.join(" "));
    }
    let leaf = |name: &&String| !headings.iter().any(|other| other.starts_with(&format!("{name} ")));
    let all: BTreeSet<String> = headings.iter().filter(leaf).cloned().collect();
    let takes_json = |name: &&String| {
        let words: Vec<&str> = name.split(' ').chain(["--help"]).collect();
        shell.says(&words).contains("--json")
    };
    let json = all.iter().filter(takes_json).cloned().collect();
    (all, json)
}

/// A program with something of everything: requests in several states, dead letters, a lane with two slots under way and
/// one that is stopped.
struct Scene {
    site: Site,
    folder: tempfile::TempDir,
    program: Program,
    words: BTreeMap<&'static str, String>,
}

impl Scene {
    async fn set() -> Scene {
        let (mut site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
        site.keys.push(("KEY_C", dev_key(OTHERS).to_bytes().to_string()));
        std::fs::write(folder.path().join("api.secret"), "0123456789abcdef0123456789abcdef").unwrap();
        std::fs::write(
            folder.path().join("auth.toml"),
            "[store]\nurl = \"memory:\"\n[api.auth]\nsecret = { file = \"api.secret\" }\n",
        )
        .unwrap();
        let config = format!(
            r#"{}
[routes.plain]

[lanes.c]
signer = {{ key = {{ env = "KEY_C" }} }}

[destinations.other.transactions]
chain = "dev"
lanes = ["c"]
contract = "{}"
function = "respond(uint256 id, bytes32 content, bytes answer)"
"#,
            site.config("sqlite:store.db"),
            site.board
        );
        let program = site.start(folder.path(), &config, &[]);
        let mut words = BTreeMap::from([("none", "7".repeat(64))]);
        for (name, error) in [("dead 1", "once"), ("dead 2", "twice"), ("", "again"), ("", "gone"), ("", "last")] {
            words.insert(name, program.dead_letter("plain", error).await);
        }
        for name in ["queued", "cancel 1", "cancel 2"] {
            let (_, accepted) = program.post("/v1/routes/plain/requests", &json!(name)).await;
            words.insert(name, accepted["id"].as_str().unwrap().to_owned());
        }
        let scene = Scene { site, folder, program, words };
        scene.set_lanes().await;
        scene
    }

    /// Two answers are on slots of the one lane and are not mined; somebody else has used the account of the other.
    async fn set_lanes(&self) {
        let Scene { site, folder, program, .. } = self;
        let shell = Shell::beside(folder.path(), program);
        shell.until(&["lanes", "list"], |found| found["lanes"].as_array().is_some_and(|lanes| lanes.len() == 3)).await;
        let account = dev_key(OTHERS).address();
        let sent = json!({"from": account, "to": account});
        let _: Value = site.node.client().request("eth_sendTransaction", [sent]).await.unwrap();
        shell.until(&["lanes", "show", "c"], |lane| lane["status"] == "stopped").await;
        for lane in ["a", "b"] {
            shell.says(&["lanes", "pause", lane]);
        }
        let (_address, api) = watch::channel(program.base().to_owned());
        let worker = tokio::spawn(work(api));
        let payloads: [Bytes; 2] = [b"one".to_vec().into(), b"two".to_vec().into()];
        site.ask(&payloads).finish().await.unwrap();
        shell.until(&["requests", "list", "--state", "ready"], |found| !found["requests"][1].is_null()).await;
        worker.abort();
        blocks_every(site, 0).await;
        shell.says(&["lanes", "resume", "a"]);
        shell.until(&["lanes", "show", "a"], |lane| lane["parcels"][1]["stage"] == "assigned").await;
    }

    /// What a command is told, with what stands for something put in its place.
    fn arguments(&self, command: &str, told: &str) -> Vec<String> {
        let mut told = told.to_owned();
        for (name, value) in &self.words {
            told = told.replace(&format!("{{{name}}}"), value);
        }
        format!("{command} {told}").split_whitespace().map(str::to_owned).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_is_tried_well_and_badly() {
    let scene = Scene::set().await;
    let mut shell = Shell::beside(scene.folder.path(), &scene.program);
    for (name, key) in &scene.site.keys {
        shell = shell.with(name, key);
    }
    let (all, json) = commands(&shell);
    let rows: BTreeSet<String> = ALL.iter().map(|row| row.command.to_owned()).collect();
    assert_eq!(rows, all, "each has its row");
    for Tried { command, well, badly: (told, part) } in &ALL {
        let as_json = |told: &&str| told.ends_with("--json");
        assert_eq!(well.iter().any(as_json), json.contains(*command), "{command} as JSON");
        for told in *well {
            let arguments = scene.arguments(command, told);
            let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let done = shell.run(&words);
            // A doctor that finds something says so by its exit code.
            let good = done.code == Some(0) || (*command == "doctor" && matches!(done.code, Some(3 | 4)));
            assert!(good && done.err.is_empty() && !done.out.is_empty(), "{arguments:?}: {done:?}");
            let read = serde_json::from_str::<Value>(&done.out);
            assert!(!as_json(told) || read.is_ok(), "{arguments:?} says no JSON: {done:?}");
        }
        let arguments = scene.arguments(command, told);
        let refused = shell.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(matches!(refused.code, Some(1 | 2)), "{arguments:?}: {refused:?}");
        assert!(refused.err.contains(part) && refused.out.is_empty(), "{arguments:?}: {refused:?}");
    }
    assert!(scene.program.stop().contains("stopped"));
}
