//! The store as a whole: made, checked, copied.

use std::process::Command;

use roundtrip::testkit::servers::{PostgresServer, RedisServer};
use serde_json::{Value, json};

use super::{PROGRAM, Shell};
use crate::program::Program;

const CONFIG: &str = "[store]\nurl = \"sqlite:store.db\"\n[routes.work]\n";

fn of(records: &Value, kind: &str) -> u64 {
    let all = records["records"].as_array().unwrap().iter();
    all.filter(|found| found["kind"] == kind).filter_map(|found| found["records"].as_u64()).sum()
}

#[tokio::test]
async fn a_store_is_made_checked_and_copied_to_every_kind() {
    let (postgres, redis) = (PostgresServer::start(&[]).unwrap(), RedisServer::start(RedisServer::SYNCED).unwrap());
    postgres.wait_until_ready(None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    for n in 0..20 {
        program.post("/v1/routes/work/requests", &json!(n)).await;
    }
    let letter = program.dead_letter("work", "no").await;
    let shell = Shell::alone(folder.path());
    for what in [&["store", "verify"][..], &["store", "migrate"], &["store", "copy", "--to", "sqlite:other.db"]] {
        let said = shell.refuses(what);
        assert!(said.contains("is in use by process"), "{what:?} says {said}");
    }
    program.stop();
    let found = shell.json(&["store", "verify"]);
    assert_eq!((&found["sound"], of(&found, "requests")), (&json!(true), 21), "{found}");
    assert!(shell.says(&["store", "verify"]).contains("every invariant holds"));
    let mut from = "sqlite:store.db".to_owned();
    for to in [postgres.url("copied"), redis.url("copied"), "sqlite:back.db".to_owned()] {
        let copied = shell.json(&["store", "copy", "--store", &from, "--to", &to]);
        assert_eq!((of(&copied, "requests"), &copied["resumed"]), (21, &json!(false)), "{copied}");
        let again = shell.refuses(&["store", "copy", "--store", &from, "--to", &to]);
        assert!(again.contains("is not empty: copy to a new place"), "{again}");
        let sound = shell.says(&["store", "verify", "--store", &to]);
        assert!(sound.contains("every invariant holds"), "{sound}");
        assert!(shell.says(&["dead", "list", "--store", &to]).contains(&letter[..16]), "{to}");
        from = to;
    }
    let said = shell.says(&["store", "copy", "--to", "sqlite:last.db"]);
    assert!(said.contains("copied and compared") && said.contains("never start sqlite:store.db again"), "{said}");
}

/// A copy that dies on the way goes on when the same command is given again.
#[tokio::test]
async fn a_copy_that_was_broken_off_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let large = "x".repeat(256 << 10);
    for n in 0..60 {
        program.post("/v1/routes/work/requests", &json!({"n": n, "text": large})).await;
    }
    program.stop();
    // It may write no file of more than some megabytes, and is killed when it does.
    let copy = "ulimit -f 12000; exec \"$0\" store copy --to sqlite:half.db";
    let broken = Command::new("sh").args(["-c", copy, PROGRAM]).current_dir(folder.path()).output().unwrap();
    assert!(!broken.status.success(), "{broken:?}");
    let shell = Shell::alone(folder.path());
    let said = shell.refuses(&["routes", "list", "--store", "sqlite:half.db"]);
    assert!(said.contains("half"), "what is half copied is not run on: {said}");
    let copied = shell.json(&["store", "copy", "--to", "sqlite:half.db"]);
    assert_eq!((of(&copied, "requests"), &copied["resumed"]), (60, &json!(true)), "{copied}");
    assert!(shell.says(&["store", "verify", "--store", "sqlite:half.db"]).contains("every invariant holds"));
}

#[tokio::test]
async fn a_store_that_is_damaged_is_not_called_sound() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    program.post("/v1/routes/work/requests", &json!(1)).await;
    program.stop();
    // A request is gone that the journal ends at.
    let file = std::fs::read(folder.path().join("store.db")).unwrap();
    let cut = &file[..file.len() / 2];
    std::fs::write(folder.path().join("cut.db"), cut).unwrap();
    let shell = Shell::alone(folder.path());
    let damaged = shell.run(&["store", "verify", "--store", "sqlite:cut.db"]);
    assert_eq!(damaged.code, Some(1), "{damaged:?}");
    assert!(!damaged.out.is_empty() || damaged.err.contains("cut.db"), "{damaged:?}");
}

#[test]
fn a_store_is_made_where_it_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("roundtrip.toml"), CONFIG).unwrap();
    let shell = Shell::alone(folder.path());
    let said = shell.refuses(&["routes", "list"]);
    assert!(said.contains("there is no store at store.db"), "{said}");
    assert!(shell.says(&["store", "migrate"]).contains("sqlite:store.db is as this version needs it"));
    assert_eq!(shell.says(&["routes", "list"]), "there is no route yet\n");
    assert_eq!(shell.says(&["lanes", "list"]), "there is no lane yet: one appears when its instance first sends\n");
    assert_eq!(shell.says(&["listeners"]), "no listener has read anything yet\n");
    for (arguments, part) in [
        (&["store", "verify", "--store", "sqlite:missing.db"][..], "there is no store at missing.db"),
        (&["store", "copy", "--store", "sqlite:missing.db", "--to", "sqlite:b.db"], "there is no store at missing.db"),
        (&["store", "copy", "--to", "ftp://there"], "names no store"),
        (&["store", "verify", "--store", "memory:"], "goes with its instance"),
        (&["store", "verify", "--store", "sqlite:roundtrip.toml"], "roundtrip.toml"),
        (&["store", "migrate", "--store", "sqlite:no/folder.db"], "no/folder.db"),
        (&["store", "migrate", "--store", "postgres://me:secret@127.0.0.1:1/none"], "127.0.0.1:1/none"),
    ] {
        let said = shell.refuses(arguments);
        assert!(said.contains(part) && !said.contains("secret"), "{arguments:?} says {said}");
    }
}
