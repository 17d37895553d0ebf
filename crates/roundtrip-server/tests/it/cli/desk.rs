//! Whom a command speaks to, and what it says where nobody takes its orders.

use std::time::Duration;

use roundtrip::testkit::servers::{PostgresServer, RedisServer};
use roundtrip_server::api::auth::{Role, sign};

use super::{NOBODY, Shell};
use crate::program::Program;

const SECRET: &str = "a secret of more than 32 bytes, for tests";
const CONFIG: &str = r#"
[store]
url = "sqlite:store.db"

[api.auth]
secret = { env = "API_SECRET" }

[routes.work]
"#;

#[tokio::test]
async fn an_instance_is_found_by_its_configuration_or_named() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start_with(folder.path(), CONFIG, &[("API_SECRET", SECRET)]);
    let shell = || Shell::beside(folder.path(), &program);
    // The secret signs a token for one command.
    assert!(shell().with("API_SECRET", SECRET).says(&["routes", "list"]).contains("work"));
    let elsewhere = tempfile::tempdir().unwrap();
    let away = || Shell::alone(elsewhere.path());
    let hour = Duration::from_secs(3600);
    let viewer = sign(SECRET.as_bytes(), "v", &[Role::Viewer], hour).unwrap();
    let url = ["--url", program.base()];
    let named = [&["routes", "list", "--token", &viewer][..], &url].concat();
    assert!(away().says(&named).contains("work"), "no configuration is needed");
    let said = away().refuses(&[&["routes", "list"][..], &url].concat());
    assert!(said.contains("does not know this caller") && said.contains("roundtrip token create"), "{said}");
    let forged = sign(&[7; 40], "f", &[Role::Operator], hour).unwrap();
    let said = away().with("ROUNDTRIP_TOKEN", &forged).refuses(&[&["routes", "list"][..], &url].concat());
    assert!(said.contains("does not know this caller") && !said.contains(&forged), "{said}");
    let said = away().with("ROUNDTRIP_TOKEN", &viewer).refuses(&[&["routes", "pause", "work"][..], &url].concat());
    assert!(said.contains("needs one of the roles operator, and this token has none of them"), "{said}");
    let said = shell().refuses(&["routes", "list"]);
    assert!(said.contains("no token could be signed") && said.contains("API_SECRET"), "{said}");
    // The store of an instance can be looked at beside it, and takes orders from nobody else.
    let beside = || Shell::alone(folder.path()).with("API_SECRET", SECRET);
    assert!(beside().says(&["routes", "list"]).contains("work"));
    assert!(shell().says(&["routes", "list", "--store", "sqlite:store.db"]).contains("work"));
    let said = beside().refuses(&["routes", "pause", "work"]);
    assert!(said.contains("is in use by process") && said.contains("--url"), "{said}");
    let said = shell().refuses(&["routes", "pause", "work", "--store", "sqlite:store.db"]);
    assert!(said.contains("is in use by process"), "{said}");
}

#[tokio::test]
async fn where_nobody_takes_orders_it_is_told_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let shell = Shell::alone(folder.path());
    for (arguments, part) in [
        (&["routes", "list"][..], "there is no roundtrip.toml here"),
        (&["routes", "list", "--config", "other.toml"], "other.toml cannot be read"),
        (&["routes", "list", "--url", &format!("http://{NOBODY}")], "nobody answers there: start it"),
        (&["routes", "list", "--url", "nowhere"], "this is no address"),
        (&["routes", "list", "--store", "sqlite:missing.db"], "there is no store at missing.db"),
        (&["routes", "list", "--store", "memory:"], "a store in memory is in its instance alone"),
        (&["routes", "list", "--store", "ftp://h"], "names no store"),
    ] {
        let said = shell.refuses(arguments);
        assert!(said.contains(part), "{arguments:?} says {said}");
    }
    let both = shell.run(&["routes", "list", "--url", "http://h", "--store", "sqlite:a"]);
    assert_eq!(both.code, Some(2), "{both:?}");
    // What listens there is something else.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let answering = std::thread::spawn(move || {
        use std::io::{Read, Write};
        // The first connection only finds out whether somebody is there.
        for stream in other.incoming().take(2) {
            let mut stream = stream.unwrap();
            let _heard = stream.read(&mut [0; 1024]);
            let _said = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi");
        }
    });
    std::fs::write(folder.path().join("roundtrip.toml"), "[store]\nurl = \"sqlite:store.db\"\n").unwrap();
    let said = Shell::at(folder.path(), &address).refuses(&["routes", "list"]);
    assert!(said.contains("is not Roundtrip"), "{said}");
    answering.join().unwrap();
}

#[tokio::test]
async fn a_store_on_a_server_is_worked_on_beside_its_instance() {
    let postgres = PostgresServer::start(&[]).unwrap();
    postgres.wait_until_ready(None).unwrap();
    let redis = RedisServer::start(RedisServer::SYNCED).unwrap();
    for url in [postgres.url("desk"), redis.url("desk")] {
        let folder = tempfile::tempdir().unwrap();
        let config = format!("[store]\nurl = \"{url}\"\n[routes.work]\n");
        let program = Program::start(folder.path(), &config);
        let letter = program.dead_letter("work", "no").await;
        let shell = Shell::alone(folder.path());
        assert!(shell.says(&["dead", "list"]).contains(&letter[..16]), "{url}");
        assert_eq!(shell.says(&["dead", "retry", "--all", "--yes", "--store", &url]), "1 dead letter retried\n");
        assert_eq!(program.lease("work").await["id"], letter, "the instance hands it out");
        let found = shell.run(&["doctor"]);
        assert!(found.out.contains("well  store on ") && found.code == Some(3), "{url}: {found:?}");
    }
}

#[test]
fn a_token_is_signed_for_whom_it_says() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("roundtrip.toml"), CONFIG).unwrap();
    let shell = || Shell::alone(folder.path()).with("USER", "ada");
    let token =
        shell().with("API_SECRET", SECRET).says(&["token", "create", "--role", "viewer,operator", "--ttl", "2h"]);
    let keys = roundtrip_server::api::auth::Keys::default().secret(SECRET.as_bytes()).unwrap();
    let claims = keys.read(token.trim()).unwrap();
    let now = jsonwebtoken::get_current_timestamp();
    assert_eq!((claims.sub.as_str(), claims.roles), ("ada", vec![Role::Viewer, Role::Operator]));
    assert!((now + 7100..now + 7300).contains(&claims.exp));
    let create = |more: &[&'static str]| [&["token", "create"][..], more].concat();
    assert_eq!(shell().run(&create(&[])).code, Some(2), "a role is needed");
    assert_eq!(shell().run(&create(&["--role", "king"])).code, Some(2));
    let said = shell().refuses(&create(&["--role", "viewer"]));
    assert!(said.contains("API_SECRET"), "{said}");
    let said = shell().with("API_SECRET", "short").refuses(&create(&["--role", "viewer"]));
    assert!(said.contains("at least 32 bytes"), "{said}");
    let said = shell().with("API_SECRET", SECRET).refuses(&create(&["--role", "viewer", "--ttl", "0s"]));
    assert!(said.contains("--ttl"), "{said}");
    std::fs::write(folder.path().join("roundtrip.toml"), "[store]\nurl = \"memory:\"\n").unwrap();
    let said = shell().refuses(&create(&["--role", "viewer"]));
    assert!(said.contains("names no api.auth.secret"), "{said}");
}

#[test]
fn shells_complete_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let shell = Shell::alone(folder.path());
    for (name, part) in [("bash", "_roundtrip()"), ("zsh", "#compdef roundtrip"), ("fish", "complete -c roundtrip")] {
        let script = shell.says(&["completions", name]);
        assert!(script.contains(part) && script.contains("reconcile"), "{name}");
    }
    assert_eq!(shell.run(&["completions", "tcsh"]).code, Some(2));
}
