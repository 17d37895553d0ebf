//! On a terminal: the live view, and a bar on long work.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{NOBODY, PROGRAM};
use crate::program::Program;

/// Runs the command on a terminal of its own.
fn on_terminal(folder: &Path, listen: &str, arguments: &str) -> Child {
    Command::new("script")
        .args(["-qefc", &format!("stty rows 40 cols 160; {PROGRAM} {arguments}"), "/dev/null"])
        .current_dir(folder)
        .env("ROUNDTRIP__API__LISTEN", listen)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script is there, of util-linux")
}

/// Reads until this was shown; all that was.
fn shown_until(child: &mut Child, part: &str) -> String {
    let (mut shown, mut some) = (String::new(), [0; 4096]);
    while !shown.contains(part) {
        let read = child.stdout.as_mut().unwrap().read(&mut some).unwrap();
        assert!(read > 0, "it ended without {part:?}: {shown}");
        shown.push_str(&String::from_utf8_lossy(&some[..read]));
    }
    shown
}

#[tokio::test]
async fn the_live_view_moves_and_a_key_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), "[store]\nurl = \"sqlite:store.db\"\n[routes.work]\n");
    let listen = program.base().trim_start_matches("http://").to_owned();
    let mut top = on_terminal(folder.path(), &listen, "top --every 50ms");
    shown_until(&mut top, "CAPACITY");
    // What is new is shown by a later look.
    program.post("/v1/routes/work/pause", &serde_json::json!(null)).await;
    shown_until(&mut top, "paused");
    top.stdin.as_mut().unwrap().write_all(b"q").unwrap();
    shown_until(&mut top, "\x1b[?1049l");
    assert!(top.wait().unwrap().success(), "the terminal is given back");
}

#[test]
fn long_work_shows_a_bar() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("roundtrip.toml"), "[store]\nurl = \"sqlite:store.db\"\n").unwrap();
    let mut made = on_terminal(folder.path(), NOBODY, "store migrate");
    assert!(made.wait().unwrap().success());
    let mut checked = on_terminal(folder.path(), NOBODY, "store verify");
    let shown = shown_until(&mut checked, "every invariant holds");
    assert!(shown.contains("records checked:"), "{shown}");
    assert!(checked.wait().unwrap().success());
}

/// Whoever reads may have had enough.
#[test]
fn a_reader_that_goes_away_is_no_fault() {
    let child = Command::new(PROGRAM).args(["reference"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
}
