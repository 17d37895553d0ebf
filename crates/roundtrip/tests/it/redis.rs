//! The Redis store: the conformance suite on servers that the tests start, each case in a
//! store of its own, with crashes as new handles on it.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use roundtrip::clock::{Clock, ManualClock};
use roundtrip::sender::LaneStatus;
use roundtrip::store::journal::Event;
use roundtrip::store::op::{Admit, Define, LaneOrder, Order};
use roundtrip::store::{Options, ReadExt, RedisStore, Store, StoreError, StoreExt, StoreFuture};
use roundtrip::testkit::bench::{Harness, OPTIONS, START};
use roundtrip::testkit::samples::*;
use roundtrip::words::Nonce;

use crate::sharing::{nothing_is_lost, sharing};

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
sharing!(OnServer::default());

/// The server dies again and again while requests go through it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_nothing() {
    let server = Server::start("--appendfsync always");
    let open = || RedisStore::new(&server.url("killed"), Options::default()).unwrap();
    nothing_is_lost(&open(), &open(), 300, 4, async |_| {
        let before = server.kill();
        tokio::task::block_in_place(|| server.wait_until_ready(before));
    })
    .await;
}

/// A server forgets its scripts when it restarts, or when it is told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forgets_its_scripts_is_told_them_again() {
    let server = Server::start("--appendfsync always");
    let open = || RedisStore::new(&server.url("forgetful"), Options::default()).unwrap();
    nothing_is_lost(&open(), &open(), 100, 20, async |_| {
        assert_eq!(tokio::task::block_in_place(|| server.said(&["SCRIPT", "FLUSH"])), "OK");
    })
    .await;
}

/// What was worked out from a version that is no longer the newest is not written: it is
/// worked out again.
#[tokio::test]
async fn a_process_that_was_stopped_cannot_write_over_others() {
    let (place, clock) = (OnServer::default(), ManualClock::at(START));
    let (one, other) = (place.store(Arc::new(clock.clone()), OPTIONS).await, place.store(Arc::new(clock), OPTIONS).await);
    one.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    other.apply_one(Admit { cursor: None, requests: vec![request(1)] }).await.unwrap();
    // What the server does with a commit from the version before: the one that defined the route.
    let name = place.0.rsplit_once('=').unwrap().1;
    let version = |field: &str| Server::get().said(&["HGET", &format!("roundtrip:{{{name}}}:numbers"), field]);
    let before: u64 = version("version").parse().unwrap();
    one.apply_one(Admit { cursor: None, requests: vec![request(1), request(2)] }).await.unwrap();
    assert_eq!(version("version"), (before + 1).to_string(), "one commit, although it began from an old version");
    assert_eq!(version("seq"), "3", "and it saw what the other had written");
}

/// A server that comes back with less than it had acknowledged: all lanes stop.
#[tokio::test]
async fn a_server_that_lost_writes_is_noticed() {
    let (place, clock) = (OnServer::default(), ManualClock::at(START));
    let (one, other) =
        (place.store(Arc::new(clock.clone()), OPTIONS).await, place.store(Arc::new(clock), OPTIONS).await);
    let order = Order::Open { destination: destination(), window: 4, first: Nonce(0) };
    one.apply_one(LaneOrder { lane: lane(), order }).await.unwrap();
    one.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    // As a replica that had not heard of the last commit: another one has its number.
    let name = place.0.rsplit_once('=').unwrap().1;
    let (numbers, lineage) = (format!("roundtrip:{{{name}}}:numbers"), format!("roundtrip:{{{name}}}:lineage"));
    let version: u64 = Server::get().said(&["HGET", &numbers, "version"]).parse().unwrap();
    Server::get().said(&["HSET", &lineage, &(version % 1024).to_string(), &format!("{version} 1")]);
    one.apply_one(Admit { cursor: None, requests: vec![request(1)] }).await.unwrap();
    assert_eq!(one.lane(lane()).await.unwrap().unwrap().status, LaneStatus::Stopped);
    // Whoever knew of nothing that is lost has nothing to say.
    other.apply_one(Admit { cursor: None, requests: vec![request(2)] }).await.unwrap();
    let told = other.journal(1, 100).await.unwrap().entries;
    assert_eq!(told.iter().filter(|entry| entry.event == Event::RolledBack).count(), 1);
}

#[tokio::test]
async fn keys_of_another_program_are_refused() {
    let place = OnServer::default();
    let name = place.0.rsplit_once('=').unwrap().1;
    Server::get().said(&["SET", &format!("roundtrip:{{{name}}}:live"), "mine"]);
    let refused = RedisStore::new(&place.0, OPTIONS).unwrap().start().await.unwrap_err();
    assert!(matches!(&refused, StoreError::NotAStore { reason, .. } if reason.contains(":live is a string")), "{refused}");
}

#[tokio::test]
async fn a_newer_format_is_refused() {
    let place = OnServer::default();
    place.store(Arc::new(ManualClock::at(START)), OPTIONS).await;
    let name = place.0.rsplit_once('=').unwrap().1;
    Server::get().said(&["HSET", &format!("roundtrip:{{{name}}}:numbers"), "format", "99"]);
    let refused = RedisStore::new(&place.0, OPTIONS).unwrap().start().await.unwrap_err();
    assert!(matches!(refused, StoreError::NewerFormat { found: 99, known: 1, .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_would_lose_what_it_acknowledged_is_refused() {
    let server = Server::start("--appendfsync always --maxmemory-policy allkeys-lru");
    let refused = RedisStore::new(&server.url("evicted"), OPTIONS).unwrap().start().await.unwrap_err();
    assert!(refused.to_string().contains("set `maxmemory-policy noeviction`"), "{refused}");
}

/// A full server stores nothing of a batch, and goes on when it has room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_whole_batches() {
    let server = Server::start("--appendfsync always");
    let store = RedisStore::new(&server.url("full"), OPTIONS).unwrap();
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    server.said(&["CONFIG", "SET", "maxmemory", "1000"]);
    let admit = Admit { cursor: None, requests: requests(1..=10) };
    let refused = store.apply_one(admit.clone()).await.unwrap_err();
    assert!(matches!(refused, StoreError::DiskFull { .. }) && refused.is_retryable(), "{refused}");
    assert_eq!(store.counts().await.unwrap(), []);
    server.said(&["CONFIG", "SET", "maxmemory", "0"]);
    store.apply_one(admit).await.unwrap();
    assert_eq!(store.counts().await.unwrap()[0].requests, 10);
}
