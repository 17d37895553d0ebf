//! The Redis store: the conformance suite on servers that the tests start, each case in a
//! store of its own, with crashes as new handles on it.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use roundtrip::clock::{Clock, ManualClock};
use roundtrip::inbox::StateKind;
use roundtrip::sender::{AttemptKind, LaneStatus};
use roundtrip::store::journal::Event;
use roundtrip::store::op::{
    Admission, Admit, Define, Effect, LaneOrder, Lead, Lease, NewRequest, Op, Order, Outcome, Seat, Stale,
};
use roundtrip::store::policy::{Gate, Horizon, RoutePolicy};
use roundtrip::store::{Options, ReadExt, RedisStore, Store, StoreError, StoreExt, StoreFuture, Topic};
use roundtrip::testkit::bench::{Harness, OPTIONS, START};
use roundtrip::testkit::samples::*;
use roundtrip::words::{ClaimId, Nonce};

/// How long a server may take to start, and anything to happen that must.
const START_MAX: Duration = Duration::from_secs(60);

/// A server of the test run's own.
struct Server {
    folder: PathBuf,
    port: u16,
    /// Ends the server and removes its folder when the test run ends, however it ends: its
    /// input closes then.
    _keeper: Child,
}

impl Server {
    /// The one server of this test run.
    fn get() -> &'static Server {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| Server::start("--appendfsync always"))
    }

    fn start(settings: &str) -> Server {
        let folder = tempfile::Builder::new().prefix("roundtrip-redis").tempdir().unwrap().keep();
        let port = free_port();
        // Started again whenever it dies, until the test run ends.
        let keep = format!(
            "cd {folder}; (while [ ! -e stop ]; do redis-server --bind 127.0.0.1 --port {port} --dir {folder} --save '' \
             --appendonly yes --daemonize no --pidfile {folder}/pid {settings} >> log 2>&1; done) & \
             cat > /dev/null; touch stop; kill -KILL $(cat pid); wait; rm -rf {folder}",
            folder = folder.display(),
        );
        let keeper = Command::new("sh").arg("-c").arg(keep).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let server = Server { folder, port, _keeper: keeper };
        server.wait_until_ready(None);
        server
    }

    /// Waits for the server that comes after the one with this process number.
    fn wait_until_ready(&self, before: Option<String>) {
        let started = Instant::now();
        while self.ready().is_none_or(|number| Some(number) == before) {
            assert!(started.elapsed() < START_MAX, "the server does not start: see {}/log", self.folder.display());
            std::thread::yield_now();
        }
    }

    /// The process number of a server that answers.
    fn ready(&self) -> Option<String> {
        let info = self.said(&["INFO", "server"]);
        info.lines().find_map(|line| line.strip_prefix("process_id:")).map(|number| number.trim().to_owned())
    }

    /// Ends the server as a power cut would; the next is on its way.
    fn kill(&self) -> Option<String> {
        let number = self.ready()?;
        run(Command::new("kill").arg("-KILL").arg(&number));
        Some(number)
    }

    /// What the server answers to a command.
    fn said(&self, command: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-h", "127.0.0.1", "-p", &port]).args(command).output();
        let output = output.unwrap_or_else(|error| panic!("no redis-cli ({error}): run scripts/install-tools"));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn url(&self, name: &str) -> String {
        format!("redis://127.0.0.1:{}?name={name}", self.port)
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// A name that no other case has.
fn name() -> String {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    format!("case-{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// A store of its own, for as long as the server runs.
pub(crate) struct OnServer(String);

impl Default for OnServer {
    fn default() -> Self {
        OnServer(Server::get().url(&name()))
    }
}

impl OnServer {
    async fn store(&self, clock: Arc<dyn Clock>, options: Options) -> RedisStore {
        let store = RedisStore::new(&self.0, options).unwrap().with_clock(clock);
        store.start().await.unwrap();
        store
    }
}

impl Harness for OnServer {
    fn open(&self, clock: Arc<dyn Clock>, options: Options) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(async move { Ok(Arc::new(self.store(clock, options).await) as Arc<dyn Store>) })
    }
}

roundtrip::conformance!(OnServer::default());
