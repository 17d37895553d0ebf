//! Whether all is well: the exit code tells, and each finding says what to do.

use roundtrip::testkit::servers::{PostgresServer, RedisServer};
use serde_json::json;

use super::{Shell, roomy_folder};
use crate::program::Program;

#[tokio::test]
async fn the_exit_code_tells_and_findings_say_what_to_do() {
    let folder = roomy_folder();
    let config = "[store]\nurl = \"sqlite:store.db\"\n[routes.small]\ncapacity = 2\n[routes.work]\n";
    let program = Program::start(folder.path(), config);
    let beside = Shell::beside(folder.path(), &program);
    let well = beside.run(&["doctor"]);
    assert_eq!(well.code, Some(0), "{well:?}");
    assert!(well.out.ends_with("all is well\n") && well.out.contains("synced at every commit"), "{well:?}");
    program.dead_letter("work", "no").await;
    let look = beside.run(&["doctor", "--json"]);
    assert_eq!(look.code, Some(3), "{look:?}");
    let found: serde_json::Value = serde_json::from_str(&look.out).unwrap();
    let first = &found["findings"][0];
    assert_eq!((&first["level"], &first["about"]), (&json!("look"), &json!("route work")), "{found}");
    for n in 0..2 {
        program.post("/v1/routes/small/requests", &json!(n)).await;
    }
    program.stop();
    let bad = Shell::alone(folder.path()).run(&["doctor"]);
    assert_eq!(bad.code, Some(4), "{bad:?}");
    let lines: Vec<&str> = bad.out.lines().collect();
    assert_eq!(lines[0], "BAD   route small: it is full and takes nothing more: 2 of 2 places are taken");
    assert!(lines[1].trim_start().starts_with("→ see where they are"), "{bad:?}");
    assert!(bad.out.ends_with("1 bad, 2 to look at\n"), "{bad:?}");
    assert!(bad.out.contains("LOOK  instance: none answers"), "{bad:?}");
    let refused = Shell::alone(folder.path()).run(&["doctor", "--store", "sqlite:missing.db"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
}

/// Servers that do not keep what they acknowledge are told, while somebody runs on them.
#[tokio::test]
async fn servers_are_asked_how_they_are_set() {
    let unsynced = PostgresServer::start(&["synchronous_commit=off", "autovacuum=off"]).unwrap();
    unsynced.wait_until_ready(None).unwrap();
    let redis = RedisServer::start(RedisServer::UNSYNCED).unwrap();
    for (url, code, parts) in [
        (unsynced.url("doctor"), 4, ["synchronous_commit is off", "autovacuum is off"]),
        (redis.url("doctor"), 3, ["appendfsync is no", "set `appendfsync always`"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let program = Program::start(folder.path(), &format!("[store]\nurl = \"{url}\"\n[routes.work]\n"));
        let found = Shell::beside(folder.path(), &program).run(&["doctor"]);
        assert_eq!(found.code, Some(code), "{found:?}");
        assert!(parts.iter().all(|part| found.out.contains(part)), "{found:?}");
    }
    redis.said(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("roundtrip.toml"), format!("[store]\nurl = \"{}\"\n", redis.url("doctor")))
        .unwrap();
    let found = Shell::alone(folder.path()).run(&["doctor"]);
    assert_eq!(found.code, Some(4), "a start on such a server is refused, and the doctor says why: {found:?}");
    assert!(found.out.contains("maxmemory-policy is allkeys-lru"), "{found:?}");
    assert!(found.out.contains("set `maxmemory-policy noeviction`"), "{found:?}");
    assert!(found.out.ends_with("1 bad, 1 to look at\n"), "once, and that no instance runs: {found:?}");
}

/// An instance that says nothing is bad, and nobody waits for it for long.
#[tokio::test]
async fn an_instance_that_stands_still_is_told_in_time() {
    let folder = roomy_folder();
    let program = Program::start(folder.path(), "[store]\nurl = \"sqlite:store.db\"\n[routes.work]\n");
    program.signal("STOP");
    let asked = std::time::Instant::now();
    let alone = Shell::alone(folder.path());
    let found = alone.run(&["doctor", "--url", program.base()]);
    assert_eq!(found.code, Some(4), "{found:?}");
    let told = format!("BAD   instance: that at {} was not reached: it did not answer in time\n", program.base());
    assert!(found.out.starts_with(&told) && found.out.ends_with("1 bad, 0 to look at\n"), "{found:?}");
    let beside = Shell::beside(folder.path(), &program).run(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&beside.out).unwrap();
    assert_eq!((beside.code, &json["findings"][0]["kind"]), (Some(4), &json!("no_instance")), "{beside:?}");
    assert!(alone.refuses(&["routes", "list", "--url", program.base()]).contains("it did not answer in time"));
    assert!(asked.elapsed() < std::time::Duration::from_secs(30), "10 seconds for each are enough");
    program.signal("CONT");
    assert_eq!(alone.run(&["doctor", "--url", program.base()]).code, Some(0));
    let nobody = alone.run(&["doctor", "--url", "http://127.0.0.1:1"]);
    assert!(nobody.code == Some(4) && nobody.out.contains("nobody answers there"), "{nobody:?}");
}
