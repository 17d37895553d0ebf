//! A Postgres server.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{new_folder, run, wait_until};

/// A Postgres server, reached by a socket in its folder.
#[derive(Debug)]
pub struct PostgresServer {
    folder: PathBuf,
    /// Its input closes when the process that started it ends, however it ends.
    _keeper: Child,
}

impl PostgresServer {
    /// What leaves it to the system when writes reach the disk: enough for whoever kills the server and not the
    /// machine, and faster.
    pub const UNSYNCED: &str = "fsync=off";

    /// Starts one, with these lines in its configuration; waits until it takes connections.
    pub fn start(settings: &[&str]) -> io::Result<PostgresServer> {
        let folder = new_folder("pg")?;
        // The server does not run as root.
        let user = if is_root() { "runuser -u postgres --" } else { "" };
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(&folder))?;
        }
        let (place, bin) = (folder.display(), programs()?);
        let bin = bin.display();
        let initdb =
            format!("cd {place}; {user} {bin}/initdb -D data -U postgres -A trust -E UTF8 --no-locale --no-sync");
        run(Command::new("sh").arg("-c").arg(initdb).stdout(Stdio::null()))?;
        let settings: String = settings.iter().map(|setting| format!(" -c {setting}")).collect();
        let keep = format!(
            "cd {place}; (while [ ! -e stop ]; do {user} {bin}/postgres -D data -k {place} -c listen_addresses= \
             -c max_connections=200{settings} >> log 2>&1; done) & cat > /dev/null; touch stop; \
             kill -INT $(head -n 1 data/postmaster.pid); wait; rm -rf {place}",
        );
        let keeper = Command::new("sh").arg("-c").arg(keep).stdin(Stdio::piped()).spawn()?;
        let server = PostgresServer { folder, _keeper: keeper };
        server.wait_until_ready(None)?;
        Ok(server)
    }

    /// Where it writes what it has to say.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Waits until it takes connections; after a kill, until the one that comes next does.
    pub fn wait_until_ready(&self, killed: Option<u32>) -> io::Result<()> {
        let other = || self.process_id().filter(|number| Some(*number) != killed);
        wait_until(&self.folder.join("log"), other).map(drop)
    }

    /// The process that takes connections, if one does.
    fn process_id(&self) -> Option<u32> {
        let status = std::fs::read_to_string(self.folder.join("data/postmaster.pid")).ok()?;
        let ready = status.lines().any(|line| line.trim() == "ready");
        status.lines().next()?.trim().parse().ok().filter(|_| ready)
    }

    /// Ends it with all that serve its connections, as a power cut would, and answers which process it was; the next is on its way.
    /// Nothing is killed that is not up.
    pub fn kill(&self) -> io::Result<Option<u32>> {
        let Some(number) = self.process_id() else { return Ok(None) };
        signal_all("KILL", number)?;
        Ok(Some(number))
    }

    /// Stops it where it is, with all that serve its connections, as a machine that swaps does; until what this
    /// returns goes.
    pub fn freeze(&self) -> io::Result<FrozenServer> {
        let number = self.process_id().ok_or_else(|| io::Error::other("it is not up"))?;
        signal_all("STOP", number)?;
        Ok(FrozenServer(number))
    }

    /// A store on it, in this schema.
    pub fn url(&self, schema: &str) -> String {
        let host = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{host}/postgres?schema={schema}")
    }
}

/// A server that stands still, and goes on when this goes.
#[derive(Debug)]
pub struct FrozenServer(u32);

impl Drop for FrozenServer {
    fn drop(&mut self) {
        // One that is gone by now needs nothing.
        let _gone = signal_all("CONT", self.0);
    }
}

/// Signals a server, first of all, and those that it has started.
fn signal_all(signal: &str, server: u32) -> io::Result<()> {
    // Who they are is asked before the first is gone.
    let script = format!("kill -{signal} {server} $(pgrep -P {server})");
    run(Command::new("sh").arg("-c").arg(script))
}

fn is_root() -> bool {
    std::fs::read_dir("/root").is_ok()
}

/// Where the server's programs are: Debian keeps them out of the path.
fn programs() -> io::Result<PathBuf> {
    let installed = Path::new("/usr/lib/postgresql").read_dir();
    let installed = installed.map(|folder| folder.flatten().map(|version| version.path().join("bin")));
    let mut installed: Vec<PathBuf> = installed.map(Iterator::collect).unwrap_or_default();
    installed.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = installed.into_iter().rev().chain(std::env::split_paths(&path));
    let mut found = found.filter(|folder| folder.join("initdb").exists());
    found.next().ok_or_else(|| io::Error::other("no initdb: run scripts/install-tools"))
}
