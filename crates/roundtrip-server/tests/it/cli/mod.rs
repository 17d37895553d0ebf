//! The command from a terminal: every noun, at an instance that runs and on a store without one,
//! and what it says when it cannot.

mod condition;
mod deploy;
mod desk;
mod doctor;
mod every;
mod lanes;
mod playbook;
mod requests;
mod store;
mod terminal;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::program::{PROGRAM, Program};

/// Where nobody listens.
const NOBODY: &str = "127.0.0.1:1";
/// How often something is looked at before it counts as never.
const LOOKS_MAX: usize = 600;

/// A folder in memory, if there is such a disk: a doctor that should find all well must not find that of the machine full.
pub(crate) fn roomy_folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

/// A terminal in a folder with a configuration.
pub(crate) struct Shell<'a> {
    folder: &'a Path,
    environment: Vec<(&'static str, String)>,
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl<'a> Shell<'a> {
    /// Beside this instance, which the configuration leads to.
    pub(crate) fn beside(folder: &'a Path, program: &Program) -> Shell<'a> {
        Shell::at(folder, program.base().trim_start_matches("http://"))
    }

    /// Where no instance runs.
    pub(crate) fn alone(folder: &'a Path) -> Shell<'a> {
        Shell::at(folder, NOBODY)
    }

    fn at(folder: &'a Path, listen: &str) -> Shell<'a> {
        Shell { folder, environment: vec![("ROUNDTRIP__API__LISTEN", listen.to_owned())] }
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Shell<'a> {
        self.environment.push((name, value.to_owned()));
        self
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Done {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).current_dir(self.folder).stdin(Stdio::null());
        command.env_remove("ROUNDTRIP_URL").env_remove("ROUNDTRIP_TOKEN").env_remove("ROUNDTRIP_CA");
        let output = command.envs(self.environment.iter().map(|(name, value)| (name, value))).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Done { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// What it says when it does what it should.
    pub(crate) fn says(&self, arguments: &[&str]) -> String {
        let done = self.run(arguments);
        // No bar is drawn where there is no terminal.
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{arguments:?}: {done:?}");
        done.out
    }

    /// The same as JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.says(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Why it does not.
    pub(crate) fn refuses(&self, arguments: &[&str]) -> String {
        let done = self.run(arguments);
        assert_eq!((done.code, done.out.as_str()), (Some(1), ""), "{arguments:?}: {done:?}");
        done.err
    }

    /// Runs a command again and again until what it says is like this.
    pub(crate) async fn until(&self, arguments: &[&str], is_so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        for _ in 0..LOOKS_MAX {
            let done = self.run(&[arguments, &["--json"]].concat());
            last = serde_json::from_str(&done.out).unwrap_or(Value::String(done.err));
            if is_so(&last) {
                return last;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{arguments:?} never said that: {last}");
    }
}
