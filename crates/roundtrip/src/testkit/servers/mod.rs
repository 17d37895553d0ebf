//! Real servers for tests and benchmarks, each with a folder and a port or a socket of its
//! own.
//!
//! ```text
//! start ──▶ a shell keeps it up ──▶ killed: comes up again ──▶ the run ends: gone, and its folder
//! ```
//!
//! The shell that keeps a server up reads from the process that started it, and ends the
//! server when nothing can come from there any more: a run that is killed outright leaves
//! nothing behind either.

mod postgres;
mod redis;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use postgres::{FrozenServer, PostgresServer};
pub use redis::{MovingSlot, RedisCluster, RedisServer};

/// How long a server may take to come up.
const START_MAX: Duration = Duration::from_secs(60);
/// How often it is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(5);

/// A new folder of this kind; short, since sockets in it must have short names.
fn new_folder(kind: &str) -> io::Result<PathBuf> {
    static FOLDERS: AtomicU64 = AtomicU64::new(0);
    let name = format!("roundtrip-{kind}-{}-{}", std::process::id(), FOLDERS.fetch_add(1, Ordering::Relaxed));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder)?;
    Ok(folder)
}

/// Waits until a server takes connections.
fn wait_until<T>(what: &Path, mut ready: impl FnMut() -> Option<T>) -> io::Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = ready() {
            return Ok(found);
        }
        if started.elapsed() > START_MAX {
            return Err(io::Error::other(format!("it does not start: see {}", what.display())));
        }
        std::thread::sleep(LOOK);
    }
}

/// Runs a command to its end.
fn run(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {status}"))) }
}
