//! Looking makes no store and changes none; and a store that is away is told as that.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use roundtrip::testkit::servers::{PostgresServer, RedisServer};

use super::{PROGRAM, Shell};

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
