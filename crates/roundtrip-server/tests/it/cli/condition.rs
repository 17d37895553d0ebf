//! Looking makes no store and changes none; and a store that is away is told as that.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use roundtrip::testkit::servers::{PostgresServer, RedisServer};

use super::{PROGRAM, Program, Shell};

/// The schema as the first version left it.
const FIRST: &str = include_str!("../../../../roundtrip/src/store/postgres/schema/0001.sql");

/// Every way to look, and some to order something.
const LOOKS: [&[&str]; 9] = [
    &["routes", "list"],
    &["routes", "pause", "work"],
    &["lanes", "list"],
    &["listeners"],
    &["dead", "list"],
    &["requests", "list"],
    &["doctor"],
    &["store", "verify"],
    &["store", "copy", "--to", "sqlite:copy.db"],
];

/// What the server says to a statement.
fn sql(server: &PostgresServer, statement: &str) -> String {
    let url = server.url("").replace("?schema=", "");
    let asked = Command::new("psql").args([&url, "-v", "ON_ERROR_STOP=1", "-qAtc", statement]).output().unwrap();
    assert!(asked.status.success(), "{asked:?}");
    String::from_utf8(asked.stdout).unwrap().trim().to_owned()
}

fn configured(folder: &Path, url: &str) {
    std::fs::write(folder.join("roundtrip.toml"), format!("[store]\nurl = \"{url}\"\n[routes.work]\n")).unwrap();
}

#[test]
fn a_look_makes_no_store() {
    let (postgres, redis) = (PostgresServer::start(&[]).unwrap(), RedisServer::start(RedisServer::SYNCED).unwrap());
    for (url, which) in [(postgres.url("empty"), "(schema empty)"), (redis.url("empty"), "(store empty)")] {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        configured(folder.path(), &url);
        let shell = Shell::alone(folder.path());
        for look in LOOKS {
            let named = [look, &["--store", &url]].concat();
            for said in [shell.refuses(look), Shell::alone(elsewhere.path()).refuses(&named)] {
                assert!(said.contains("there is no store at") && said.contains(which), "{look:?} says {said}");
                assert!(said.contains("`roundtrip store migrate` make it"), "{look:?} says {said}");
            }
        }
        let said = shell.says(&["check"]);
        assert!(said.contains("all is well") && said.contains("yet: the first start makes it"), "{said}");
        assert_eq!(redis.said(&["DBSIZE"]).unwrap(), "0");
        assert_eq!(sql(&postgres, "SELECT count(*) FROM pg_namespace WHERE nspname = 'empty'"), "0");
        shell.says(&["store", "migrate"]);
        assert_eq!(shell.says(&["routes", "list"]), "there is no route yet\n");
        assert!(shell.says(&["check"]).ends_with("0 lanes\n"), "there is nothing to say of a store that is there");
        redis.said(&["FLUSHALL"]).unwrap();
        sql(&postgres, "DROP SCHEMA IF EXISTS empty CASCADE");
    }
}

/// All that is in a store, as bytes or as its server tells it.
fn content(url: &str, postgres: &PostgresServer, redis: &RedisServer, folder: &Path) -> String {
    match url {
        url if url.starts_with("postgres") => {
            let tables = sql(postgres, "SELECT tablename FROM pg_tables WHERE schemaname = 'here' ORDER BY 1");
            let rows = |table: &str| sql(postgres, &format!("SELECT t.*, xmin FROM here.{table} t ORDER BY t.*::text"));
            tables.lines().map(|table| format!("{table}: {}\n", rows(table))).collect()
        }
        url if url.starts_with("redis") => {
            let keys = redis.said(&["--scan"]).unwrap();
            let mut keys: Vec<&str> = keys.lines().collect();
            keys.sort_unstable();
            keys.into_iter().map(|key| format!("{key}: {}\n", redis.said(&["DUMP", key]).unwrap())).collect()
        }
        _ => {
            let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
            files.sort_unstable();
            // Not what processes agree by on who uses it.
            let lasts = |file: &&PathBuf| !["-shm", ".lock"].iter().any(|end| file.to_string_lossy().ends_with(end));
            let files = files.iter().filter(lasts);
            files.map(|file| format!("{}: {:?}\n", file.display(), std::fs::read(file).unwrap())).collect()
        }
    }
}

/// Whoever only looks leaves no trace, not even that somebody was there.
#[test]
fn a_look_leaves_a_store_as_it_is() {
    let (postgres, redis) = (PostgresServer::start(&[]).unwrap(), RedisServer::start(RedisServer::SYNCED).unwrap());
    for url in ["sqlite:here.db".to_owned(), postgres.url("here"), redis.url("here")] {
        let folder = tempfile::tempdir().unwrap();
        configured(folder.path(), &url);
        let shell = Shell::alone(folder.path());
        shell.says(&["store", "migrate"]);
        let config = std::fs::read_to_string(folder.path().join("roundtrip.toml")).unwrap();
        Program::start(folder.path(), &config).stop();
        let id = shell.json(&["requests", "submit", "work", "1"])["id"].as_str().unwrap().to_owned();

        let before = content(&url, &postgres, &redis, folder.path());
        assert!(before.len() > 100, "{url}: {before}");
        let looks: [&[&str]; 11] = [
            &["routes", "list"],
            &["lanes", "list"],
            &["listeners"],
            &["dead", "list"],
            &["dead", "retry", "--all"],
            &["requests", "list"],
            &["requests", "show", &id],
            &["doctor"],
            &["top", "--once"],
            &["check"],
            &["store", "verify"],
        ];
        for look in looks {
            let looked = shell.run(look);
            assert!(look[0] == "doctor" || looked.code == Some(0), "{look:?} at {url}: {looked:?}");
            assert_eq!(content(&url, &postgres, &redis, folder.path()), before, "{look:?} at {url}");
        }
        shell.says(&["requests", "cancel", &id]);
        assert_ne!(content(&url, &postgres, &redis, folder.path()), before, "{url}: an order changes something");
    }
}

#[test]
fn a_look_leaves_an_older_schema_as_it_is() {
    let (postgres, folder) = (PostgresServer::start(&[]).unwrap(), tempfile::tempdir().unwrap());
    let start = "CREATE SCHEMA old; SET search_path TO old; CREATE TABLE migration (version integer PRIMARY KEY)";
    sql(&postgres, &format!("{start}; {FIRST}; INSERT INTO migration VALUES (1)"));
    configured(folder.path(), &postgres.url("old"));
    let shell = Shell::alone(folder.path());
    let version = || sql(&postgres, "SELECT max(version) FROM old.migration");
    for look in LOOKS {
        let said = shell.refuses(look);
        assert!(said.contains("(schema old) has version 1, and this program wants 2"), "{look:?} says {said}");
        assert!(said.contains("stop older processes before"), "{look:?} says {said}");
    }
    let said = shell.says(&["check"]);
    assert!(said.contains("has version 1, and the first start brings it to 2: stop older processes before"), "{said}");
    assert_eq!(version(), "1");
    shell.says(&["store", "migrate"]);
    assert_eq!(version(), "2");
    assert_eq!(shell.says(&["routes", "list"]), "there is no route yet\n");
}

#[test]
fn a_server_that_is_away_is_told_as_that() {
    for (url, server) in [
        ("redis://me:secret@127.0.0.1:1", "redis at 127.0.0.1:1"),
        ("postgres://me:secret@127.0.0.1:1/orders?schema=a", "postgres at 127.0.0.1:1"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        configured(folder.path(), url);
        let shell = Shell::alone(folder.path());
        let told = format!("{server} was not reached: Connection refused");
        for look in LOOKS.into_iter().filter(|look| look[0] != "doctor").chain([&["check"][..], &["store", "migrate"]])
        {
            let said = shell.refuses(look);
            assert!(said.contains(&told) && !said.contains("secret"), "{look:?} says {said}");
        }
        let found = shell.run(&["doctor"]);
        assert_eq!((found.code, found.out.matches(&told).count()), (Some(4), 1), "{found:?}");
        assert!(found.out.ends_with("1 bad, 1 to look at\n") && !found.out.contains("secret"), "{found:?}");
        // Whoever runs waits for it, and says for whom.
        let mut run = Command::new(PROGRAM);
        let run = run.arg("run").current_dir(folder.path()).env("ROUNDTRIP__API__LISTEN", "127.0.0.1:0");
        let mut run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
        let is_told = lines.find(|line| line.contains(&told)).is_some_and(|line| !line.contains("secret"));
        run.kill().unwrap();
        run.wait().unwrap();
        assert!(is_told, "{server}");
    }
}

/// A host that takes connections and never says a word.
#[test]
fn a_server_that_is_silent_is_told_within_a_bound() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    for (url, server) in [
        (format!("postgres://me:secret@{address}/orders"), format!("postgres at {address}")),
        (format!("redis://me:secret@{address}"), format!("redis at {address}")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        configured(folder.path(), &url);
        let shell = Shell::alone(folder.path());
        for look in [&["routes", "list"][..], &["check"], &["store", "migrate"]] {
            let said = shell.refuses(look);
            assert!(said.contains("no answer within") || said.contains("was not reached"), "{look:?} says {said}");
            assert!(!said.contains("secret"), "{look:?} says {said}");
        }
        let found = shell.run(&["doctor"]);
        assert_eq!(found.code, Some(4), "{found:?}");
        assert!(found.out.contains("BAD   store"), "{server}: {found:?}");
    }
}
