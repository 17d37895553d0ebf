//! The command: what it writes, what it refuses, and what it says then.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use reqwest::Method;
use serde_json::json;

use super::certificate::certificate;
use super::program::{PROGRAM, Program};

fn roundtrip(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).current_dir(folder).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_start_takes_two_commands() {
    let folder = tempfile::tempdir().unwrap();
    assert!(roundtrip(folder.path(), &["init"]).status.success());
    let checked = roundtrip(folder.path(), &["check"]);
    assert!(checked.status.success(), "{}", said(&checked));
    let again = roundtrip(folder.path(), &["init"]);
    assert!(!again.status.success() && said(&again).contains("is there already"), "a file is left alone");
}

#[test]
fn everything_that_is_wrong_is_named_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"[store]
url = "sqlite:nowhere/store.db"

[api]
listen = "0.0.0.0:8080"

[chains.main]
chain_id = 1
urls = ["not a url"]

[routes.price]
to = "bord"
on_duplicate = "vote"

[[routes.price.events]]
chain = "mian"
event = "Asked(uint256 id"
addresses = ["0x12"]

[destinations.board.transactions]
chain = "main"
lanes = ["first"]
contract = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
function = "answer(uint256 id, uint256 price)"
arguments = { id = "/request/args/id" }

[destinations.both]
keep = { at_least = "1h" }
list = { url = "redis://127.0.0.1", list = "answers" }

[telemetry]
listen = "0.0.0.0:9464"
"#;
    std::fs::write(folder.path().join("roundtrip.toml"), config).unwrap();
    let told = said(&roundtrip(folder.path(), &["check"]));
    let expected = [
        "roundtrip.toml:5:1: api.listen: 0.0.0.0:8080 can be reached from other machines",
        "roundtrip.toml:9:9: chains.main.urls.0: ",
        "roundtrip.toml:12:1: routes.price.to: no destination is called \"bord\": there is board, both",
        "roundtrip.toml:16:1: routes.price.events.0.chain: no chain is called \"mian\": there is main",
        "roundtrip.toml:17:1: routes.price.events.0.event: ",
        "roundtrip.toml:22:10: destinations.board.transactions.lanes.0: no lane is called \"first\"",
        "roundtrip.toml:25:1: destinations.board.transactions.arguments: ",
        "roundtrip.toml:27:15: destinations.both: a destination is one of",
        "roundtrip.toml:32:1: telemetry.listen: 0.0.0.0:9464 can be reached from other machines",
    ];
    for line in expected {
        assert!(told.contains(line), "{line} is not in:\n{told}");
    }
}

#[test]
fn what_only_the_outside_can_tell_is_found_too() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"[store]
url = "sqlite:nowhere/store.db"

[api.auth]
secret = { env = "NOT_SET_ANYWHERE" }

[chains.main]
chain_id = 1
urls = ["http://127.0.0.1:1"]

[lanes.first]
signer = { key = { file = "missing.key" } }

[routes.price]
to = "board"

[[routes.price.events]]
chain = "main"
event = "Asked(uint256 id)"

[destinations.board.transactions]
chain = "main"
lanes = ["first"]
contract = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
function = "answer(uint256 id)"
"#;
    std::fs::write(folder.path().join("roundtrip.toml"), config).unwrap();
    let checked = roundtrip(folder.path(), &["check"]);
    let told = said(&checked);
    let expected = [
        "roundtrip.toml:2:1: store.url: there is no folder nowhere",
        "roundtrip.toml:5:1: api.auth.secret: no secret in the environment variable NOT_SET_ANYWHERE",
        "roundtrip.toml:9:9: chains.main.urls.0: ",
        "roundtrip.toml:12:1: lanes.first.signer: no secret in the file missing.key",
    ];
    for line in expected {
        assert!(told.contains(line), "{line} is not in:\n{told}");
    }
    assert!(!checked.status.success());
    let offline = roundtrip(folder.path(), &["check", "--offline"]);
    assert!(offline.status.success(), "{}", said(&offline));
}

/// Each key and secret is looked for, whatever else is wrong beside it.
#[test]
fn a_missing_key_is_told_beside_everything_else() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"[store]
url = "sqlite:/proc/store.db"

[chains.main]
chain_id = 1
urls = ["http://127.0.0.1:1"]

[lanes.first]
signer = { key = { env = "NOT_SET_ANYWHERE" } }

[lanes.idle]
signer = { key = { env = "NOT_SET_ANYWHERE" } }

[routes.price]
to = "board"
on_duplicate = "vote"
lease = "0s"
rate = { count = 0, per = "1s" }
horizon = "some"

[routes.price.work.http]
url = "no url"
secret = { file = "missing.secret" }

[destinations.board.transactions]
chain = "main"
lanes = ["first"]
contract = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
function = "answer("
"#;
    std::fs::write(folder.path().join("roundtrip.toml"), config).unwrap();
    let told = said(&roundtrip(folder.path(), &["check"]));
    let expected = [
        "roundtrip.toml:2:1: store.url: no file can be made in /proc",
        "roundtrip.toml:6:9: chains.main.urls.0: ",
        "roundtrip.toml:9:1: lanes.first.signer: no secret in the environment variable NOT_SET_ANYWHERE",
        "roundtrip.toml:16:1: routes.price.on_duplicate: `votes` says how many are needed",
        "roundtrip.toml:17:1: routes.price.lease: a lease of no length",
        "roundtrip.toml:18:1: routes.price.rate: a rate of nothing",
        "roundtrip.toml:19:1: routes.price.horizon: \"some\" is no horizon",
        "roundtrip.toml:22:1: routes.price.work.http.url: ",
        "roundtrip.toml:23:1: routes.price.work.http.secret: no secret in the file missing.secret",
        "roundtrip.toml:29:1: destinations.board.transactions.function: ",
    ];
    let lines: Vec<&str> = told.lines().filter(|line| line.starts_with("roundtrip.toml:")).collect();
    for (line, start) in lines.iter().zip(expected) {
        assert!(line.starts_with(start), "{start} is not where it should be in:\n{told}");
    }
    assert_eq!(lines.len(), expected.len(), "{told}");
    assert!(!told.contains("store.url: store.url"), "{told}");
}

/// What is wrong with one file, secret or address hides no other, and each is told where it stands.
#[test]
fn each_file_secret_and_address_is_told_at_its_own_line() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"[store]
url = "memory:"

[api]
listen = "127.0.0.1:8080"
body_bytes_max = 0

[api.auth]
secret = { file = "short" }
public_key = { env = "NOT_SET_ANYWHERE" }

[api.tls]
certificate = "none.pem"
key = "none.key"

[telemetry]
listen = "127.0.0.1:8080"

[telemetry.traces]
endpoint = "foo"

[telemetry.traces.headers]
authorization = { env = "NOT_SET_ANYWHERE" }

[chains.main]
chain_id = 1
urls = ["http://127.0.0.1:1"]
websockets = ["ws://127.0.0.1:1", "http://127.0.0.1:1"]

[destinations.hook.webhook]
url = "htps:/foo"
secret = { env = "NOT_SET_ANYWHERE" }

[routes.tick]
every = { period = "0s" }

[routes.price]

[[routes.price.events]]
chain = "main"
abi = "broken.json"
event = "Asked"
"#;
    for (name, text) in [("roundtrip.toml", config), ("short", "short"), ("broken.json", "[{")] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let told = said(&roundtrip(folder.path(), &["check"]));
    let expected = [
        "roundtrip.toml:6:1: api.body_bytes_max: no request would be taken",
        "roundtrip.toml:9:1: api.auth.secret: ",
        "roundtrip.toml:10:1: api.auth.public_key: no secret in the environment variable NOT_SET_ANYWHERE",
        "roundtrip.toml:13:1: api.tls.certificate: ",
        "roundtrip.toml:14:1: api.tls.key: ",
        "roundtrip.toml:17:1: telemetry.listen: the API listens here",
        "roundtrip.toml:20:1: telemetry.traces.endpoint: this is no URL",
        "roundtrip.toml:23:1: telemetry.traces.headers.authorization: no secret in",
        "roundtrip.toml:27:9: chains.main.urls.0: ",
        "roundtrip.toml:28:35: chains.main.websockets.1: a WebSocket is called by ws:// or wss://",
        "roundtrip.toml:31:1: destinations.hook.webhook.url: ",
        "roundtrip.toml:32:1: destinations.hook.webhook.secret: no secret in",
        "roundtrip.toml:35:11: routes.tick.every.period: requests would come without end",
        "roundtrip.toml:41:1: routes.price.events.0.abi: ",
    ];
    let lines: Vec<&str> = told.lines().filter(|line| line.starts_with("roundtrip.toml:")).collect();
    for (line, start) in lines.iter().zip(expected) {
        assert!(line.starts_with(start), "{start} is not where it should be in:\n{told}");
    }
    assert_eq!(lines.len(), expected.len(), "{told}");
    assert!(told.contains("broken.json: this is no ABI in JSON"), "{told}");
}

/// Checks a configuration without a look outside: a line for each fault, in the order in which they stand.
fn faults(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let told = said(&roundtrip(folder.path(), &["check", "--offline"]));
    // What a signature lacks is shown in lines of its own.
    told.lines().filter(|line| line.starts_with("roundtrip.toml:")).map(str::to_owned).collect()
}

/// These faults, each by its beginning, and no other.
fn assert_faults(files: &[(&str, &str)], expected: &[&str]) {
    let told = faults(files);
    let all = told.join("\n");
    for (line, start) in told.iter().zip(expected) {
        assert!(line.starts_with(&format!("roundtrip.toml:{start}")), "{start} is not where it should be in:\n{all}");
    }
    assert_eq!(told.len(), expected.len(), "{all}");
}

/// Within one table of work, no fault hides another.
#[test]
fn every_fault_of_a_table_of_work_is_told_at_its_own_line() {
    let config = r#"[store]
url = "memory:"

[routes.tool.work]
concurrency = 0
internal = ["here", "127.0.0.1", "there"]

[routes.tool.work.tls]
ca = "missing.pem"
certificate = "broken.pem"

[routes.tool.work.http]
url = "nowhere"
meta = "http://{nobody}/meta"
definition = "/nothing"
health = "not a url"

[routes.tool.work.http.outcomes]
99 = "retry"
404 = "retry"
many = "fatal"

[[routes.tool.work.prepare]]
name = "id"
get = "nowhere"

[[routes.tool.work.prepare]]
name = "no name"
[routes.tool.work.prepare.call]
chain = "main"
contract = "0x12"
function = "f("

[routes.core.work.grpc]
urls = ["localhost:1", "http://127.0.0.1:1", "ftp://h"]
method = "Core"
descriptors = "missing.bin"

[routes.core.work.grpc.poll]
method = "Other"
request = {}
pending = ["UNAVAILABLE", "SOON"]
unknown = ["NOBODY"]

[routes.core.work.grpc.outcomes]
NONE = "retry"
NOT_FOUND = "retry"
NEVER = "fatal"

[routes.read.work.call]
chain = "main"
contract = "nobody"
function = "priceOf(uint256 id) returns (uint256)"
arguments = { who = 1 }

[routes.read.work.call.outcomes]
"0x12" = "retry"
"error E(uint7)" = "fatal"

[routes.both.work]
identity = true
[routes.both.work.call]
chain = "main"
contract = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
function = "priceOf(uint256 id)"

[routes.none.work]
prepare = [{ name = "page", get = "nowhere" }]
"#;
    let expected = [
        "5:1: routes.tool.work.concurrency: nothing would be worked on",
        "6:13: routes.tool.work.internal.0: \"here\" is no address and no network",
        "6:34: routes.tool.work.internal.2: \"there\" is no address and no network",
        "8:19: routes.tool.work.tls: a certificate comes with its key",
        "9:1: routes.tool.work.tls.ca: ",
        "10:1: routes.tool.work.tls.certificate: ",
        "13:1: routes.tool.work.http.url: ",
        "14:1: routes.tool.work.http.meta: ",
        "15:1: routes.tool.work.http.definition: a tool is defined by `meta` or by `definition`",
        "15:1: routes.tool.work.http.definition: \"/nothing\" names nothing that was prepared",
        "16:1: routes.tool.work.http.health: ",
        "19:1: routes.tool.work.http.outcomes.99: \"99\" is no status",
        "21:1: routes.tool.work.http.outcomes.many: \"many\" is no status",
        "24:1: routes.tool.work.prepare.0.name: \"id\" stands for something else already",
        "25:1: routes.tool.work.prepare.0.get: ",
        "28:1: routes.tool.work.prepare.1.name: \"no name\" is no name",
        "30:1: routes.tool.work.prepare.1.call.chain: no chain is called \"main\": there is none",
        "31:1: routes.tool.work.prepare.1.call.contract: \"0x12\" is no address",
        "32:1: routes.tool.work.prepare.1.call.function: \"f(\" cannot be called",
        "35:9: routes.core.work.grpc.urls.0: \"localhost:1\" begins with neither http:// nor https://",
        "35:46: routes.core.work.grpc.urls.2: \"ftp://h\" begins with neither http:// nor https://",
        "36:1: routes.core.work.grpc.method: \"Core\" is no method",
        "37:1: routes.core.work.grpc.descriptors: ",
        "40:1: routes.core.work.grpc.poll.method: \"Other\" is no method",
        "42:27: routes.core.work.grpc.poll.pending.1: \"SOON\" is no code",
        "43:12: routes.core.work.grpc.poll.unknown.0: \"NOBODY\" is no code",
        "46:1: routes.core.work.grpc.outcomes.NONE: \"NONE\" is no code",
        "48:1: routes.core.work.grpc.outcomes.NEVER: \"NEVER\" is no code",
        "51:1: routes.read.work.call.chain: no chain is called \"main\": there is none",
        "52:1: routes.read.work.call.contract: \"nobody\" is no address",
        "54:1: routes.read.work.call.arguments: ",
        "57:1: routes.read.work.call.outcomes.0x12: \"0x12\" names no refusal",
        "58:1: routes.read.work.call.outcomes.error E(uint7): ",
        "60:14: routes.both.work: work is one of `http`, `grpc`, `call` and `identity`",
        "63:1: routes.both.work.call.chain: no chain is called \"main\": there is none",
        "65:1: routes.both.work.call.function: ",
        "67:14: routes.none.work: work is one of `http`, `grpc`, `call` and `identity`",
        "68:29: routes.none.work.prepare.0.get: ",
    ];
    assert_faults(&[("roundtrip.toml", config), ("broken.pem", "-----BEGIN CERTIFICATE-----\n!")], &expected);
}

/// Within one route and one destination, no fault hides another either.
#[test]
fn every_fault_of_a_route_and_of_a_destination_is_told_at_its_own_line() {
    let config = r#"[store]
url = "memory:"

[api]
store_wait_max = "0s"

[chains.main]
chain_id = 1
urls = ["http://127.0.0.1:1"]

[routes."a b"]
to = "nobody"
identity = ["id", "/args/id", ""]
horizon = "some"
on_duplicate = "vote"
votes = 0
rate = { count = 1, per = "2h" }
backoff = { jitter_percent = 101 }
submit_path = "price"

[[routes."a b".events]]
chain = "mian"
event = "Asked(uint256 indexed id)"
only = { nobody = [1] }
deadline = "later"

[[routes."a b".lists]]
url = "http://h"
list = ""

[routes.price]
identity = ["/args/idd"]
horizon = "some"

[[routes.price.events]]
chain = "mian"
event = "Asked(uint256 indexed id)"

[routes.vote]
on_duplicate = "vote"
votes = 2

[routes.elsewhere]

[[routes.elsewhere.answered_elsewhere]]
chain = "main"
event = "Answered(uint256 indexed id)"
only = { nobody = [1] }
deadline = "later"

[destinations."a b".transactions]
chain = "mian"
lanes = []
contract = "0x12"
function = "answer("
fee_cap_gwei = -1.0
tip_min_gwei = -1.0

[destinations.list.list]
url = "http://h"
list = "{nothing"
value = "{request}"

[destinations.both.webhook]
url = "nowhere"
secret = { env = "NOT_SET_ANYWHERE" }
[destinations.both.transactions]
chain = "main"
lanes = ["first"]
contract = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
function = "answer(uint256 id)"
arguments = { who = 1 }
"#;
    let expected = [
        "5:1: api.store_wait_max: no answer of the store would be waited for",
        "11:9: routes.a b: \"a b\" is not a name",
        "12:1: routes.a b.to: no destination is called \"nobody\"",
        "13:13: routes.a b.identity.0: ",
        "13:31: routes.a b.identity.2: ",
        "14:1: routes.a b.horizon: \"some\" is no horizon",
        "16:1: routes.a b.votes: these policies make no sense: votes are counted from 1",
        "17:1: routes.a b.rate: these policies make no sense: a rate's period is an hour at most",
        "18:1: routes.a b.backoff: these policies make no sense: a jitter of more than 100 percent",
        "19:1: routes.a b.submit_path: \"price\" cannot be a path",
        "19:1: routes.a b.submit_path: nothing would be taken there",
        "22:1: routes.a b.events.0.chain: no chain is called \"mian\": there is main",
        "24:10: routes.a b.events.0.only.nobody: ",
        "25:1: routes.a b.events.0.deadline: ",
        "28:1: routes.a b.lists.0.url: \"http://h\" names no Redis server",
        "29:1: routes.a b.lists.0.list: a list's name has from 1",
        "32:1: routes.price.identity: no request could have an id",
        "33:1: routes.price.horizon: \"some\" is no horizon",
        "36:1: routes.price.events.0.chain: no chain is called \"mian\": there is main",
        "40:1: routes.vote.on_duplicate: these policies make no sense: votes need the identity of content",
        "40:1: routes.vote.on_duplicate: these policies make no sense: votes need a horizon",
        "45:1: routes.elsewhere.answered_elsewhere.0: ",
        "48:10: routes.elsewhere.answered_elsewhere.0.only.nobody: ",
        "49:1: routes.elsewhere.answered_elsewhere.0.deadline: ",
        "51:15: destinations.a b: \"a b\" is not a name",
        "52:1: destinations.a b.transactions.chain: no chain is called \"mian\": there is main",
        "53:1: destinations.a b.transactions.lanes: no lane is named",
        "54:1: destinations.a b.transactions.contract: \"0x12\" is no address",
        "55:1: destinations.a b.transactions.function: \"answer(\" cannot be called",
        "56:1: destinations.a b.transactions.fee_cap_gwei: -1 is no amount of gwei",
        "57:1: destinations.a b.transactions.tip_min_gwei: -1 is no amount of gwei",
        "60:1: destinations.list.list.url: \"http://h\" names no Redis server",
        "61:1: destinations.list.list.list: ",
        "62:1: destinations.list.list.value: ",
        "64:15: destinations.both: a destination is one of",
        "65:1: destinations.both.webhook.url: ",
        "69:10: destinations.both.transactions.lanes.0: no lane is called \"first\"",
        "72:1: destinations.both.transactions.arguments: ",
    ];
    assert_faults(&[("roundtrip.toml", config)], &expected);
}

/// Wherever the command runs.
#[tokio::test]
async fn files_are_found_from_the_folder_of_the_configuration() {
    let (folder, made) = (tempfile::tempdir().unwrap(), certificate());
    let site = folder.path().join("site");
    std::fs::create_dir_all(site.join("keys")).unwrap();
    for name in ["cert.pem", "key.pem"] {
        std::fs::copy(made.path().join(name), site.join("keys").join(name)).unwrap();
    }
    std::fs::write(site.join("keys/api"), "a secret of more than 32 bytes, for tests").unwrap();
    let config = r#"
[store]
url = "sqlite:store.db"

[api.auth]
secret = { file = "keys/api" }

[api.tls]
certificate = "keys/cert.pem"
key = "keys/key.pem"

[routes.idle]
"#;
    std::fs::write(site.join("roundtrip.toml"), config).unwrap();
    let given = ["--config", "site/roundtrip.toml"];
    let checked = roundtrip(folder.path(), &[&["check"][..], &given].concat());
    assert!(checked.status.success(), "{}", said(&checked));
    let made = roundtrip(folder.path(), &[&["store", "migrate"][..], &given].concat());
    assert!(made.status.success(), "{}", said(&made));
    assert!(site.join("store.db").is_file() && !folder.path().join("store.db").exists());
    let token = roundtrip(folder.path(), &[&["token", "create", "--role", "viewer"][..], &given].concat());
    assert!(token.status.success(), "{}", said(&token));
    // What is said on the command line is found from where that is said.
    let beside = roundtrip(folder.path(), &["store", "verify", "--store", "sqlite:store.db"]);
    assert!(said(&beside).contains("there is no store at store.db"), "{}", said(&beside));
}

#[test]
fn a_part_is_refused_where_nobody_can_do_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let route = "[routes.square]\nto = \"caller\"\n[destinations.caller.keep]\nat_least = \"1h\"\n";
    let config = format!("[store]\nurl = \"memory:\"\n{route}");
    std::fs::write(folder.path().join("roundtrip.toml"), config).unwrap();
    let told = said(&roundtrip(folder.path(), &["run", "--only", "api"]));
    assert!(told.contains("shared with nobody, and this process leaves send to others"), "{told}");
    // A file is another's as soon as this process ends.
    let program = Program::start_as(folder.path(), &format!("[store]\nurl = \"sqlite:s.db\"\n{route}"), &[], &["send"]);
    let told = program.stop();
    assert!(told.contains("\"nobody\":\"api\"") && told.contains("\"roles\":\"send\""), "{told}");
    // Where there is no rest, nothing is said.
    let program = Program::start_as(folder.path(), "[store]\nurl = \"memory:\"\n[routes.square]\n", &[], &["api"]);
    assert!(!program.stop().contains("WARN"));
}

/// What an event lacks, and each fault beside another of the same event.
#[test]
fn an_event_is_held_to_what_its_route_wants_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"
[chains.main]
chain_id = 1
urls = ["http://127.0.0.1:1"]

[routes.price]
identity = ["/args/idd"]

[[routes.price.events]]
chain = "main"
event = "Asked(uint256 indexed id)"
addresses = ["0x5FbDB2315678afecb367f032d93F642f64180a"]
only = { nobody = [1] }
deadline = "later"

[[routes.price.events]]
chain = "main"
event = "Asked("
addresses = ["0x1"]
"#;
    std::fs::write(folder.path().join("roundtrip.toml"), config).unwrap();
    let checked = roundtrip(folder.path(), &["check", "--offline"]);
    let told = said(&checked);
    let expected = [
        "routes.price.events.0.addresses.0: ",
        "routes.price.events.0.only.nobody: ",
        "routes.price.events.0.deadline: ",
        "routes.price.events.1.addresses.0: ",
        "routes.price.events.1.event: ",
    ];
    for line in expected {
        assert!(told.contains(line), "{line} is not in:\n{told}");
    }
    let mended = config.split("addresses").next().unwrap();
    std::fs::write(folder.path().join("roundtrip.toml"), mended).unwrap();
    let told = said(&roundtrip(folder.path(), &["check", "--offline"]));
    let wanted = "routes.price.identity: no request could have an id: requests of Asked(uint256) have no /args/idd";
    assert!(told.contains(wanted), "{told}");
}

/// A key that nobody knows, a value that does not fit, a name that is not there, a secret that is not set: all in one
/// go, and nothing that only follows from another.
#[test]
fn what_cannot_be_read_hides_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"[stor]
url = "sqlite:store.db"

[api]
listen = "0.0.0.0:8080"
auth = { secrt = "x" }

[chains.main]
chain_id = "one"
urls = ["http://127.0.0.1:1"]

[chains.side]
chain_id = 2
urls = ["http://127.0.0.1:1"]

[routes.price]
to = "board"
leese = "5s"
capacity = "many"
on_duplicate = "vot"
votes = 2

[[routes.price.events]]
chain = "main"
event = "Asked(uint256 id)"

[[routes.price.events]]
chain = "mian"
event = "Asked(uint256 id"

[destinations.board.transactions]
chain = "main"
lanes = ["first", "second"]
contract = "0x12"
function = "answer(uint256 id)"

[destinations.hook.webhook]
url = "http://127.0.0.1:1"
secret = { env = "NOT_SET_ANYWHERE" }

[lanes.first]
signer = "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"
"#;
    std::fs::write(folder.path().join("roundtrip.toml"), config).unwrap();
    let checked = roundtrip(folder.path(), &["check"]);
    assert!(!checked.status.success());
    let told = said(&checked);
    let expected = [
        "roundtrip.toml:1:1: `store` is missing",
        "roundtrip.toml:1:2: stor: nobody knows this key; is `store` meant?",
        "roundtrip.toml:6:10: api.auth.secrt: nobody knows this key; is `secret` meant?",
        "roundtrip.toml:9:1: chains.main.chain_id: ",
        "roundtrip.toml:10:9: chains.main.urls.0: ",
        "roundtrip.toml:14:9: chains.side.urls.0: ",
        "roundtrip.toml:18:1: routes.price.leese: nobody knows this key; is `lease` meant?",
        "roundtrip.toml:19:1: routes.price.capacity: ",
        "roundtrip.toml:20:1: routes.price.on_duplicate: ",
        "roundtrip.toml:28:1: routes.price.events.1.chain: no chain is called \"mian\": there is main, side",
        "roundtrip.toml:29:1: routes.price.events.1.event: ",
        "roundtrip.toml:33:19: destinations.board.transactions.lanes.1: no lane is called \"second\"",
        "roundtrip.toml:34:1: destinations.board.transactions.contract: ",
        "roundtrip.toml:39:1: destinations.hook.webhook.secret: no secret in the environment variable NOT_SET_ANYWHERE",
        "roundtrip.toml:42:1: lanes.first.signer: a secret is not written here but named",
    ];
    // What a signature lacks is shown in lines of its own.
    let lines: Vec<&str> = told.lines().filter(|line| line.starts_with("roundtrip.toml:")).collect();
    for (line, start) in lines.iter().zip(expected) {
        assert!(line.starts_with(start), "{start} is not where it should be in:\n{told}");
    }
    assert_eq!(lines.len(), expected.len(), "{told}");
}

#[test]
fn the_reference_is_what_the_code_says() {
    let folder = tempfile::tempdir().unwrap();
    let made = roundtrip(folder.path(), &["reference"]);
    let kept = include_str!("../../../../docs/configuration.md");
    let made = String::from_utf8(made.stdout).unwrap();
    assert_eq!(made, kept, "run `cargo run -p roundtrip-server -- reference > docs/configuration.md`");
}

#[test]
fn the_reference_of_the_command_is_what_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    let made = String::from_utf8(roundtrip(folder.path(), &["reference", "--cli"]).stdout).unwrap();
    let kept = include_str!("../../../../docs/cli.md");
    assert_eq!(made, kept, "run `cargo run -p roundtrip-server -- reference --cli > docs/cli.md`");
}

#[test]
fn the_schema_is_what_the_code_says() {
    let folder = tempfile::tempdir().unwrap();
    let made = String::from_utf8(roundtrip(folder.path(), &["schema"]).stdout).unwrap();
    let kept = include_str!("../../../../docs/roundtrip.schema.json");
    assert_eq!(made, kept, "run `cargo run -p roundtrip-server -- schema > docs/roundtrip.schema.json`");
}

/// The example of the README runs as it stands there.
#[tokio::test]
async fn the_readme_shows_what_works() {
    let readme = include_str!("../../../../README.md");
    let example = readme.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), example);
    let asked = json!({"n": 7});
    let (_, accepted) = program.post("/v1/routes/square/requests", &asked).await;
    let job = program.lease("square").await;
    assert_eq!((&job["id"], &job["payload"]), (&accepted["id"], &asked));
    assert_eq!(program.answer(&job, json!(49)).await, "done");
    let (_, found) = program.get(&format!("{}?wait=30s", accepted["status_url"].as_str().unwrap())).await;
    assert_eq!((&found["state"], &found["response"]), (&json!("ready"), &json!(49)));
}

/// Who did what stays in the log however quiet it is to be.
#[tokio::test]
async fn what_operators_do_is_told_at_every_level() {
    let told = async |level: &str| {
        let folder = tempfile::tempdir().unwrap();
        // The start is waited for by what it says.
        let level = format!("warn,roundtrip_server::run=info{level}");
        let config = format!("[store]\nurl = \"memory:\"\n[log]\nlevel = \"{level}\"\n[routes.idle]\n");
        let program = Program::start(folder.path(), &config);
        program.post("/v1/routes/idle/pause", &json!({})).await;
        program.stop().contains("an operator acted")
    };
    assert!(told("").await);
    assert!(!told(",audit=off").await);
}

/// Whoever connects and says nothing keeps nobody out, and a stop is heard although there is no room.
#[tokio::test]
async fn silent_callers_do_not_hold_up_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "[store]\nurl = \"memory:\"\n[api]\nconnections_max = 2\n");
    let address = program.base().trim_start_matches("http://").to_owned();
    let silent: Vec<_> = (0..3).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
    let stopped = tokio::task::spawn_blocking(move || program.stop()).await.unwrap();
    assert!(stopped.contains("stopped"), "{stopped}");
    drop(silent);
}

/// Whoever waits for an answer is told how it stands.
#[tokio::test]
async fn whoever_waits_for_an_answer_does_not_hold_up_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "[store]\nurl = \"memory:\"\n[routes.idle]\n");
    let asks = program.call(Method::POST, "/v1/routes/idle/requests?wait=50s").body("1");
    let waiting = tokio::spawn(asks.header("content-type", "application/json").send());
    while program.get("/v1/counts").await.1["counts"][0]["requests"] != 1 {
        tokio::task::yield_now().await;
    }
    let stopped = tokio::task::spawn_blocking(move || program.stop()).await.unwrap();
    assert!(stopped.contains("stopped") && !stopped.contains("cut off"), "{stopped}");
    assert!(waiting.await.unwrap().unwrap().text().await.unwrap().contains("queued"));
}

/// A store that is away is waited for, until somebody says stop.
#[test]
fn a_program_whose_store_is_away_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[store]\nurl = \"postgres://me@127.0.0.1:1/none\"\n[api]\nlisten = \"127.0.0.1:0\"\n[routes.a]\n";
    std::fs::write(folder.path().join("roundtrip.toml"), config).unwrap();
    let mut child = Command::new(PROGRAM).arg("run").current_dir(folder.path()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    // It has begun to wait when it says that a call is made again.
    assert!(lines.by_ref().any(|line| line.contains("made again")), "it does not wait");
    assert!(Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(lines.filter(|line| line.contains("ERROR")).count(), 0);
    assert!(child.wait().unwrap().success());
}
