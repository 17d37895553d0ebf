//! The Redis store: the conformance suite on servers that the tests start, each case in a
//! store of its own, with crashes as new handles on it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use roundtrip::clock::{Clock, ManualClock};
use roundtrip::sender::LaneStatus;
use roundtrip::store::archive::{Place, verify};
use roundtrip::store::journal::Event;
use roundtrip::store::op::{Admission, Admit, Define, Effect, LaneOrder, NewRequest, Op, Order, Outcome};
use roundtrip::store::policy::{Gate, RoutePolicy};
use roundtrip::store::{Options, ReadExt, RedisStore, Store, StoreError, StoreExt, StoreFuture, Topic};
use roundtrip::testkit::bench::{Harness, OPTIONS, START};
use roundtrip::testkit::samples::*;
use roundtrip::testkit::servers::{RedisCluster, RedisServer};
use roundtrip::words::{Nonce, Payload, RequestId};

use crate::between::{Between, How, To};
use crate::certificate::certificate;
use crate::sharing::{HAPPEN_MAX, nothing_is_lost, sharing};

/// The one server of this test run.
fn server() -> &'static RedisServer {
    static SERVER: OnceLock<RedisServer> = OnceLock::new();
    SERVER.get_or_init(|| RedisServer::start(RedisServer::UNSYNCED).unwrap())
}

/// The one cluster of this test run.
fn cluster() -> &'static RedisCluster {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| RedisCluster::start_with(RedisServer::UNSYNCED).unwrap())
}

/// A name that no other case has.
fn name() -> String {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    format!("case-{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// A store of its own, for as long as its server runs, and behind how many that are queued it keeps requests as they came.
pub(crate) struct OnServer(String, Option<u64>);

impl Default for OnServer {
    /// All queues are taken to be long.
    fn default() -> Self {
        OnServer(server().url(&name()), Some(0))
    }
}

impl OnServer {
    async fn store(&self, clock: Arc<dyn Clock>, options: Options) -> RedisStore {
        let mut store = RedisStore::new(&self.0, options).unwrap().with_clock(clock);
        if let Some(queued) = self.1 {
            store = store.with_far_back(queued);
        }
        store.start().await.unwrap();
        store
    }
}

impl OnServer {
    pub(crate) fn on_cluster() -> OnServer {
        OnServer(cluster().url(&name()), Some(0))
    }

    /// The store at a URL.
    pub(crate) fn at(url: &str) -> OnServer {
        OnServer(url.to_owned(), None)
    }

    /// The same, of processes that tell each other nothing, and take queues to be long when they are.
    pub(crate) fn by_polling(self) -> OnServer {
        OnServer(self.0.replace('?', "?poll_only=true&"), None)
    }

    /// What the server answers to a command on one of the store's keys.
    pub(crate) fn said(&self, command: &str, key: &str, arguments: &[&str]) -> String {
        server().said(&[&[command, &self.key(key)], arguments].concat()).unwrap()
    }
}

impl OnServer {
    /// Whether there is anything under one of the store's keys.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.said("EXISTS", key, &[]) == "1"
    }

    /// What a script on one of the store's keys answers.
    pub(crate) fn run(&self, key: &str, script: &str) -> String {
        server().said(&["EVAL", script, "1", &self.key(key)]).unwrap()
    }

    fn key(&self, key: &str) -> String {
        format!("roundtrip:{{{}}}:{key}", self.0.rsplit_once('=').unwrap().1)
    }
}

impl Harness for OnServer {
    fn open(&self, clock: Arc<dyn Clock>, options: Options) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(async move { Ok(Arc::new(self.store(clock, options).await) as Arc<dyn Store>) })
    }

    fn place(&self) -> Option<Place> {
        Some(Place::Url(self.0.clone()))
    }
}

roundtrip::conformance!(OnServer::default());
sharing!(OnServer::default());

mod by_polling_alone {
    use super::OnServer;

    roundtrip::conformance!(OnServer::default().by_polling());
    crate::sharing::sharing_by_polling!(OnServer::default().by_polling());
}

mod on_a_cluster {
    use super::OnServer;

    roundtrip::conformance!(OnServer::on_cluster());
    crate::sharing::sharing!(OnServer::on_cluster());
}

mod on_a_cluster_by_polling_alone {
    use super::OnServer;

    roundtrip::conformance!(OnServer::on_cluster().by_polling());
    crate::sharing::sharing_by_polling!(OnServer::on_cluster().by_polling());
}

/// The server dies again and again while requests go through it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_nothing() {
    let server = RedisServer::start(RedisServer::SYNCED).unwrap();
    let open = || RedisStore::new(&server.url("killed"), Options::default()).unwrap().with_far_back(0);
    let kill = async || {
        let killed = server.kill().unwrap();
        tokio::task::block_in_place(|| server.wait_until_ready(killed)).unwrap();
    };
    let failed = nothing_is_lost(Arc::new(open()), Arc::new(open()), 300, 4, kill).await;
    assert!(failed > 0, "it never died while it was asked something");
}

/// A server forgets its scripts when it restarts, or when it is told to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forgets_its_scripts_is_told_them_again() {
    let server = RedisServer::start(RedisServer::SYNCED).unwrap();
    let open = || RedisStore::new(&server.url("forgetful"), Options::default()).unwrap().with_far_back(0);
    nothing_is_lost(Arc::new(open()), Arc::new(open()), 100, 20, async || {
        assert_eq!(tokio::task::block_in_place(|| server.said(&["SCRIPT", "FLUSH"])).unwrap(), "OK");
    })
    .await;
}

/// A small batch and a large one are on their way together, and the server knows the script of neither: what the small one
/// sends again must not become part of the large one's transaction.
#[tokio::test]
async fn a_script_that_is_forgotten_holds_up_no_batch_behind_it() {
    let place = OnServer::default();
    let store = place.store(Arc::new(ManualClock::at(START)), OPTIONS).await;
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    for round in 0..20 {
        let first = round * 100 + 1;
        let admit = |numbers| Op::from(Admit { cursor: None, requests: requests(numbers) });
        // From here on it takes itself to be alone.
        store.apply(vec![admit(first..=first)]).await.unwrap();
        server().said(&["SCRIPT", "FLUSH"]).unwrap();
        let (small, large) = (vec![admit(first + 1..=first + 2)], vec![admit(first + 3..=first + 50)]);
        let (small, large) = tokio::join!(store.apply(small), store.apply(large));
        let is_done = |outcomes: Vec<Outcome>| outcomes.iter().all(|outcome| matches!(outcome, Outcome::Applied(_)));
        assert!(is_done(small.unwrap()) && is_done(large.unwrap()), "round {round}");
    }
    assert_eq!(store.counts().await.unwrap().iter().map(|count| count.requests).sum::<u64>(), 20 * 51);
}

/// A server that comes back with less than it had acknowledged: all lanes stop.
#[tokio::test]
async fn a_server_that_lost_writes_is_noticed() {
    let (place, clock) = (OnServer::default(), ManualClock::at(START));
    let open = || place.store(Arc::new(clock.clone()), OPTIONS);
    let (one, other) = (open().await, open().await);
    let order = Order::Open { destination: destination(), window: 4, first: Nonce(0) };
    one.apply_one(LaneOrder { lane: lane(), order }).await.unwrap();
    one.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    // As on a replica that had not heard of the last commit: another one has its number.
    let version: u64 = place.said("HGET", "numbers", &["version"]).parse().unwrap();
    place.said("HSET", "lineage", &[&(version % 1024).to_string(), &format!("{version} 1")]);
    one.apply_one(Admit { cursor: None, requests: vec![request(1)] }).await.unwrap();
    assert_eq!(one.lane(lane()).await.unwrap().unwrap().status, LaneStatus::Stopped);
    // Whoever knew of nothing that is lost has nothing to say.
    other.apply_one(Admit { cursor: None, requests: vec![request(2)] }).await.unwrap();
    let told = other.journal(1, 100).await.unwrap().entries;
    assert_eq!(told.iter().filter(|entry| entry.event == Event::RolledBack).count(), 1);
}

/// The same, where others have committed more often since than every version is told of: whoever lost something knows by
/// its own newest, and whoever was silent for so long and lost nothing goes on.
#[tokio::test]
async fn writes_that_were_lost_long_before_are_noticed() {
    for (lost, status) in [(1, LaneStatus::Stopped), (0, LaneStatus::Active)] {
        let (place, clock) = (OnServer::default(), ManualClock::at(START));
        let store = place.store(Arc::new(clock), OPTIONS).await;
        let order = Order::Open { destination: destination(), window: 4, first: Nonce(0) };
        store.apply_one(LaneOrder { lane: lane(), order }).await.unwrap();
        store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
        let number = |name| place.said("HGET", "numbers", &[name]).parse::<u64>().unwrap();
        let (version, epoch) = (number("version"), number("epoch"));
        place.said("HSET", "lineage", &[&format!("by {epoch}"), &format!("{} 1", version - lost)]);
        place.said("HSET", "numbers", &["version", &(version + 2000).to_string()]);
        store.apply_one(Admit { cursor: None, requests: vec![request(1)] }).await.unwrap();
        assert_eq!(store.lane(lane()).await.unwrap().unwrap().status, status, "{lost} lost");
    }
}

/// Of processes that began long ago and have written nothing since, a start keeps nothing.
#[tokio::test]
async fn whoever_wrote_long_ago_is_forgotten() {
    let (place, clock) = (OnServer::default(), ManualClock::at(START));
    drop(place.store(Arc::new(clock.clone()), OPTIONS).await);
    place.said("HSET", "lineage", &["by 5", "1 1"]);
    let lately = format!("by {}", START.0 - 1000);
    place.said("HSET", "lineage", &[&lately, "1 1"]);
    let store = place.store(Arc::new(clock), OPTIONS).await;
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    let knows = |name: &str| place.said("HEXISTS", "lineage", &[name]);
    assert_eq!((knows("by 5"), knows(&lately)), ("0".to_owned(), "1".to_owned()));
}

/// A server that comes back empty.
#[tokio::test]
async fn a_server_that_lost_everything_is_noticed() {
    let place = OnServer::default();
    let store = place.store(Arc::new(ManualClock::at(START)), OPTIONS).await;
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    for key in ["numbers", "lineage", "fixture", "changed", "journal"] {
        place.said("DEL", key, &[]);
    }
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    let told = store.journal(1, 100).await.unwrap().entries;
    assert!(told.iter().any(|entry| entry.event == Event::RolledBack), "{told:?}");
    store.apply_one(Admit { cursor: None, requests: vec![request(1)] }).await.unwrap();
    assert_eq!(place.store(Arc::new(ManualClock::at(START)), OPTIONS).await.counts().await.unwrap()[0].requests, 1);
}

#[tokio::test]
async fn keys_of_another_program_are_refused() {
    let place = OnServer::default();
    place.said("SET", "live", &["mine"]);
    let refused = RedisStore::new(&place.0, OPTIONS).unwrap().start().await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::NotAStore { reason, .. } if reason.contains(":live is a string")),
        "{refused}"
    );
}

/// As a process of another format leaves the numbers, which this one's programs may or may not know.
fn upgrade(place: &OnServer, format: &str, needs: &str) {
    place.said("HINCRBY", "numbers", &["version", "1"]);
    place.said("HSET", "numbers", &["format", format, "needs", needs]);
}

/// Processes of the format before go on, and start, beside one that only added something; until one needs more.
#[tokio::test]
async fn a_newer_format_is_refused_if_it_needs_a_newer_version() {
    let (place, clock) = (OnServer::default(), Arc::new(ManualClock::at(START)));
    let older = place.store(clock.clone(), OPTIONS).await;
    older.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    upgrade(&place, "4", "3");
    older.apply_one(Admit { cursor: None, requests: vec![request(1)] }).await.unwrap();
    let another = place.store(clock, OPTIONS).await;
    another.apply_one(Admit { cursor: None, requests: vec![request(2)] }).await.unwrap();
    assert_eq!(older.counts().await.unwrap()[0].requests, 2);
    assert_eq!(place.said("HGET", "numbers", &["format"]), "4", "what is newer stays so");
    upgrade(&place, "5", "5");
    let refusals = [
        older.apply_one(Admit { cursor: None, requests: vec![request(3)] }).await.err(),
        older.counts().await.err(),
        RedisStore::new(&place.0, OPTIONS).unwrap().start().await.err(),
    ];
    for refused in refusals {
        assert!(matches!(refused, Some(StoreError::NewerFormat { found: 5, known: 3, .. })), "{refused:?}");
    }
}

/// A large commit is at the server before it is known whether it is to be done. Whoever gives it up in between, at
/// whatever moment, leaves none of it, and a connection that the next call can use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_commit_that_is_given_up_at_any_moment_is_whole_or_not_there() {
    const LARGE: u64 = 64;
    let (place, clock) = (OnServer::default(), Arc::new(ManualClock::at(START)));
    let store = place.store(clock.clone(), OPTIONS).await;
    let policy = RoutePolicy { capacity: 100_000, ..policy() };
    store.apply_one(Define { route: route(), policy }).await.unwrap();
    let mut given_up = 0;
    for n in 0..100 {
        let requests: Vec<_> = (n * LARGE..(n + 1) * LARGE).map(request).collect();
        let admit = || Admit { cursor: None, requests: requests.clone() };
        let patience = Duration::from_micros(30 * n);
        given_up += u64::from(tokio::time::timeout(patience, store.apply_one(admit())).await.is_err());
        let there = store.counts().await.unwrap().iter().map(|count| count.requests).sum::<u64>();
        assert!([n * LARGE, (n + 1) * LARGE].contains(&there), "{there} after {n}");
        assert!(store.apply_one(admit()).await.unwrap().holds());
    }
    assert!(given_up > 0, "none was given up");
    let all = place.store(clock, OPTIONS).await.counts().await.unwrap();
    assert_eq!(all.iter().map(|count| count.requests).sum::<u64>(), 100 * LARGE);
}

/// Whoever may not do all that commits do is refused at the start: a script that is stopped half way leaves what it wrote.
#[tokio::test]
async fn a_role_that_may_not_do_all_that_commits_do_is_refused() {
    let place = OnServer::default();
    let host = server().address();
    for command in ["xdel", "xtrim", "xadd", "zrem", "zadd", "hincrby", "publish"] {
        let user = format!("not-{command}");
        server().said(&["ACL", "SETUSER", &user, "on", ">pass", "~*", "&*", "+@all", &format!("-{command}")]).unwrap();
        let url = place.0.replace(&host, &format!("{user}:pass@{host}"));
        let refused = RedisStore::new(&url, OPTIONS).unwrap().start().await.unwrap_err();
        assert!(matches!(&refused, StoreError::Io { reason, .. } if reason.contains(command)), "{command}: {refused}");
    }
    // What docs/stores.md says is enough.
    let documented =
        include_str!("../../../../docs/stores.md").lines().find_map(|line| line.strip_prefix("ACL SETUSER "));
    let name = place.0.rsplit_once('=').unwrap().1;
    let documented = documented.unwrap().replace("{main}", &format!("{{{name}}}"));
    server().said(&["ACL", "SETUSER"].into_iter().chain(documented.split(' ')).collect::<Vec<_>>()).unwrap();
    let allowed = OnServer(place.0.replace(&host, &format!("roundtrip:PASSWORD@{host}")), Some(0));
    let store = allowed.store(Arc::new(ManualClock::at(START)), OPTIONS).await;
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    store.apply_one(Admit { cursor: None, requests: requests(1..=100) }).await.unwrap();
    assert!(store.apply_one(lease(100)).await.unwrap().holds());
    assert_eq!(store.counts().await.unwrap()[0].requests, 100);
}

/// What waits behind many others is kept as it came, in one entry of a stream, until it changes; what is long, and what
/// is handed out soon, is not. Nothing of it stays when it ends.
#[tokio::test]
async fn what_waits_for_long_is_kept_as_it_came() {
    let place = OnServer(server().url(&name()), Some(2));
    let store = place.store(Arc::new(ManualClock::at(START)), OPTIONS).await;
    // An answer ends its request.
    let policy = RoutePolicy { publish_on: Gate::Seen, ..RoutePolicy::default() };
    store.apply_one(Define { route: route(), policy }).await.unwrap();
    let kept = || ["XLEN fresh", "HLEN live", "HLEN body"].map(|what| what.split_once(' ').unwrap());
    let check = |expected: [&str; 3]| {
        let found = kept().map(|(command, key)| place.said(command, key, &[]));
        assert_eq!(found, expected, "in the stream, rows and bodies beside it");
    };
    store.apply_one(Admit { cursor: None, requests: requests(1..=2) }).await.unwrap();
    check(["0", "2", "2"]);
    let long = NewRequest { payload: Payload::raw(vec![7; 4096]), ..request(5) };
    store.apply_one(Admit { cursor: None, requests: vec![request(3), request(4), long] }).await.unwrap();
    check(["2", "3", "3"]);
    let other = place.store(Arc::new(ManualClock::at(START)), OPTIONS).await;
    let Outcome::Applied(Effect::Leased(grants)) = other.apply_one(lease(5)).await.unwrap() else {
        panic!("not leased")
    };
    let order: Vec<RequestId> = grants.iter().map(|grant| grant.id).collect();
    assert_eq!(order, (1..=5).map(id).collect::<Vec<_>>());
    assert_eq!(grants[3].payload, request(4).payload);
    check(["2", "5", "3"]);
    let answers = grants.iter().map(|grant| Op::Answer(answer(grant))).collect();
    other.apply(answers).await.unwrap();
    check(["0", "0", "0"]);
}

/// Nobody looks for a receipt of what is as it came, so there must be none.
#[tokio::test]
async fn a_receipt_of_what_is_kept_as_it_came_is_named() {
    let place = OnServer::default();
    let store = place.store(Arc::new(ManualClock::at(START)), OPTIONS).await;
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    store.apply_one(Admit { cursor: None, requests: requests(1..=2) }).await.unwrap();
    drop(store);
    let faults = async || verify(place.place().unwrap()).await.unwrap().faults;
    assert_eq!(faults().await, []);
    let receipt = format!(
        "local id = string.gsub('{}', '%x%x', function(digits) return string.char(tonumber(digits, 16)) end) \
         return redis.call('HSET', KEYS[1], id, 'receipt')",
        id(2)
    );
    assert_eq!(place.run("ended", &receipt), "1");
    let faults: Vec<String> = faults().await.iter().map(ToString::to_string).collect();
    let named = format!("{} is there, and its request is in key fresh", id(2));
    assert!(faults.iter().any(|fault| fault.contains(&named)), "{faults:#?}");
}

/// Before the first release what is queued was listed in another way; nobody has such a store but by accident.
#[tokio::test]
async fn a_format_from_before_the_first_release_is_refused() {
    let (place, clock) = (OnServer::default(), Arc::new(ManualClock::at(START)));
    let store = place.store(clock, OPTIONS).await;
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    upgrade(&place, "1", "1");
    let refusals = [store.counts().await.err(), RedisStore::new(&place.0, OPTIONS).unwrap().start().await.err()];
    for refused in refusals {
        let Some(StoreError::Io { reason, .. }) = refused else { panic!("{refused:?}") };
        assert!(reason.contains("format 1"), "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_would_lose_what_it_acknowledged_is_refused() {
    let server = RedisServer::start(&format!("{} --maxmemory-policy allkeys-lru", RedisServer::SYNCED)).unwrap();
    let refused = RedisStore::new(&server.url("evicted"), OPTIONS).unwrap().start().await.unwrap_err();
    assert!(refused.to_string().contains("set `maxmemory-policy noeviction`"), "{refused}");
}

/// Hints come by TLS too; and whom nobody vouches for, or for another name, is not spoken to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_tls_only_the_server_itself_is_spoken_to() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (folder, others) = (certificate(), certificate());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (roots, key) = (file("cert.pem"), file("key.pem"));
    let tls = format!("--tls-port {port} --tls-cert-file {roots} --tls-key-file {key} --tls-ca-cert-file {roots}");
    let _server = RedisServer::start(&format!("{} {tls} --tls-auth-clients no", RedisServer::SYNCED)).unwrap();
    let at = |host: &str, parameters: &str| {
        RedisStore::new(&format!("rediss://{host}:{port}?name=tls{parameters}"), OPTIONS).unwrap()
    };
    let trusting = || at("localhost", &format!("&sslrootcert={roots}"));
    let (store, other) = (trusting(), trusting());
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    other.start().await.unwrap();
    let mut changes = other.changes(Topic::Inbox(route()));
    assert!(changes.changed().await, "everybody looks once at the start");
    store.apply_one(Admit { cursor: None, requests: vec![request(1)] }).await.unwrap();
    assert!(tokio::time::timeout(HAPPEN_MAX, changes.changed()).await.unwrap());
    assert_eq!(other.counts().await.unwrap()[0].requests, 1);
    let wrong = others.path().join("cert.pem").display().to_string();
    let strangers = [
        at("localhost", ""),
        at("localhost", &format!("&sslrootcert={wrong}")),
        at("127.0.0.1", &format!("&sslrootcert={roots}")),
    ];
    for stranger in strangers {
        let refused = stranger.start().await.unwrap_err();
        assert!(!refused.is_retryable() && refused.to_string().contains("certificate is refused"), "{refused}");
    }
    for (file, why) in [(key, "holds no certificate"), ("nowhere.pem".to_owned(), "No such file")] {
        let refused = RedisStore::new(&format!("rediss://localhost?sslrootcert={file}"), OPTIONS).err().unwrap();
        assert!(refused.to_string().contains(why), "{refused}");
    }
}

/// A full server stores nothing of a batch, and goes on when it has room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_whole_batches() {
    let server = RedisServer::start(RedisServer::SYNCED).unwrap();
    let store = RedisStore::new(&server.url("full"), OPTIONS).unwrap();
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    server.said(&["CONFIG", "SET", "maxmemory", "1000"]).unwrap();
    let admit = Admit { cursor: None, requests: requests(1..=10) };
    let refused = store.apply_one(admit.clone()).await.unwrap_err();
    assert!(matches!(refused, StoreError::DiskFull { .. }) && refused.is_retryable(), "{refused}");
    assert_eq!(store.counts().await.unwrap(), []);
    server.said(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    store.apply_one(admit).await.unwrap();
    assert_eq!(store.counts().await.unwrap()[0].requests, 10);
}

/// The slot of the store goes round from node to node while requests go through it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_loses_nothing() {
    let (cluster, name) = (cluster(), name());
    let open = || RedisStore::new(&cluster.url(&name), Options::default()).unwrap().with_far_back(0);
    let key = format!("roundtrip:{{{name}}}:numbers");
    let move_on = async || tokio::task::block_in_place(|| cluster.move_on(&key)).unwrap();
    nothing_is_lost(Arc::new(open()), Arc::new(open()), 200, 6, move_on).await;
}

/// Waits until a server says so, while others go on.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !tokio::task::block_in_place(&holds) {
        assert!(started.elapsed() < HAPPEN_MAX, "not so after {HAPPEN_MAX:?}: {what}");
        tokio::task::yield_now().await;
    }
}

/// A slot that moves has its keys on two nodes, and then all on one that does not have the slot yet. Whoever calls meanwhile is
/// told to try again, and then to ask there. All are answered once the slot has moved, and what they ask is done once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_is_on_two_nodes_is_waited_for() {
    let cluster = RedisCluster::start_with(RedisServer::UNSYNCED).unwrap();
    let open = || RedisStore::new(&cluster.url("halved"), OPTIONS).unwrap().with_far_back(0);
    let (store, other) = (open(), open());
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    store.apply_one(Admit { cursor: None, requests: requests(1..=10) }).await.unwrap();
    assert_eq!(other.counts().await.unwrap()[0].requests, 10);
    let numbers = "roundtrip:{halved}:numbers";
    // What is few and what is many is sent in different ways. The third move leads back to the first node.
    for (first, last) in [(11, 12), (13, 76), (77, 78)] {
        let moving = cluster.begin_move(numbers).unwrap();
        let from = moving.from;
        let refusals = |error| from.refusals(error).unwrap();
        let (again_before, ask_before, moved_before) = (refusals("TRYAGAIN"), refusals("ASK"), refusals("MOVED"));
        moving.carry(numbers).unwrap();
        let has_moved = AtomicBool::new(false);
        let admit = async {
            let admitted = store.apply_one(Admit { cursor: None, requests: requests(first..=last) }).await;
            (admitted, has_moved.load(Ordering::SeqCst))
        };
        let count = async { (other.counts().await, has_moved.load(Ordering::SeqCst)) };
        let move_it = async {
            until("some of the keys are elsewhere", || refusals("TRYAGAIN") > again_before + 1).await;
            tokio::task::block_in_place(|| moving.carry_all()).unwrap();
            until("all of the keys are elsewhere", || refusals("ASK") > ask_before + 1).await;
            has_moved.store(true, Ordering::SeqCst);
            tokio::task::block_in_place(|| moving.end()).unwrap();
        };
        let ((admitted, late), (counted, late_too), ()) = tokio::join!(admit, count, move_it);
        assert!(late && late_too, "answered while the slot was on two nodes");
        let Ok(Outcome::Applied(Effect::Admitted(admissions, _))) = admitted else { panic!("{admitted:?}") };
        assert!(admissions.iter().all(|admission| matches!(admission, Admission::New { .. })), "{admissions:?}");
        let counted = counted.unwrap()[0].requests;
        assert!([first - 1, last].contains(&counted), "{counted} of {last}");
        assert!(refusals("MOVED") > moved_before, "whoever comes to the node that had it is sent on");
    }
    drop((store, other));
    assert_eq!(open().counts().await.unwrap()[0].requests, 78);
    assert_eq!(verify(Place::Url(cluster.url("halved"))).await.unwrap().faults, []);
}

/// Only commits say where hints go.
const COMMIT_SAYS: &[u8] = b":hints\r\n";

async fn between() -> Between {
    between_at(COMMIT_SAYS).await
}

async fn between_at(says: &'static [u8]) -> Between {
    Between::open(To::Address(server().address()), says).await
}

/// A process is stopped after it has worked a batch out, and goes on after another has
/// written: what it worked out is not written, but worked out again.
#[tokio::test]
async fn a_process_that_was_stopped_cannot_write_over_others() {
    let place = OnServer::default();
    let between = between().await;
    let clock = ManualClock::at(START);
    let stopped = OnServer(place.0.replace(&server().address(), &between.address), None);
    let (stopped, other) =
        (stopped.store(Arc::new(clock.clone()), OPTIONS).await, place.store(Arc::new(clock), OPTIONS).await);
    stopped.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    between.meddle(How::Hold);
    let admit = |requests| Admit { cursor: None, requests };
    let stop = async {
        between.meddling.caught.notified().await;
        // Its turn lapses.
        let outcome = other.apply_one(admit(vec![request(1)])).await.unwrap();
        assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
        between.meddling.go_on.notify_one();
    };
    let (outcome, ()) = tokio::join!(stopped.apply_one(admit(vec![request(1), request(2)])), stop);
    let Outcome::Applied(Effect::Admitted(admissions, _)) = outcome.unwrap() else { panic!("not admitted") };
    assert!(matches!(admissions[..], [Admission::Known { .. }, Admission::New { .. }]), "{admissions:?}");
    assert_eq!(other.counts().await.unwrap().iter().map(|count| count.requests).sum::<u64>(), 2);
}

#[tokio::test]
async fn a_connection_that_breaks_leaves_the_outcome_unknown() {
    let (place, between) = (OnServer::default(), between().await);
    let store = OnServer(place.0.replace(&server().address(), &between.address), Some(0));
    let store = store.store(Arc::new(ManualClock::at(START)), OPTIONS).await;
    crate::between::a_connection_that_breaks_leaves_the_outcome_unknown(&store, &between).await;
}

/// Longer than a server takes, and no longer than a test may.
const PATIENCE: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_silent_server_leaves_the_outcome_unknown() {
    let (place, between) = (OnServer::default(), between().await);
    let store = RedisStore::new(&place.0.replace(&server().address(), &between.address), OPTIONS).unwrap();
    crate::between::a_silent_server_leaves_the_outcome_unknown(&store.with_patience(PATIENCE), &between).await;
}

#[tokio::test]
async fn a_read_that_a_silent_server_took_is_asked_again_by_another_connection() {
    let (place, between) = (OnServer::default(), between_at(b"\r\nread\r\n").await);
    let store = RedisStore::new(&place.0.replace(&server().address(), &between.address), OPTIONS).unwrap();
    crate::between::a_read_that_a_silent_server_took_is_asked_again(&store.with_patience(PATIENCE), &between).await;
}

async fn hints_that_are_lost_from_this_on_are_given(says: &'static [u8]) {
    let (place, between) = (OnServer::default(), between_at(says).await);
    let listens = RedisStore::new(&place.0.replace(&server().address(), &between.address), OPTIONS).unwrap();
    let (listens, other) = (listens.with_patience(PATIENCE), RedisStore::new(&place.0, OPTIONS).unwrap());
    crate::between::hints_that_a_silent_connection_lost_are_given(&listens, &other, &between).await;
}

#[tokio::test]
async fn hints_that_a_silent_connection_lost_are_given() {
    hints_that_are_lost_from_this_on_are_given(b"PING\r\n").await;
}

#[tokio::test]
async fn hints_that_a_connection_lost_which_was_silent_from_the_first_are_given() {
    hints_that_are_lost_from_this_on_are_given(b"SUBSCRIBE\r\n").await;
}

/// Its commands are at the server before the word to do them is: cut off before they are all there, before the word, and
/// after it.
#[tokio::test]
async fn a_large_commit_that_is_cut_off_is_written_whole_or_not_at_all() {
    let in_the_middle = (COMMIT_SAYS, vec![(How::CutBefore, false)]);
    let at_the_word = (&b"EXEC\r\n"[..], vec![(How::CutBefore, false), (How::CutAfter, true)]);
    for (commit_says, cuts) in [in_the_middle, at_the_word] {
        let (place, between) = (OnServer::default(), between_at(commit_says).await);
        let store = OnServer(place.0.replace(&server().address(), &between.address), Some(0));
        let store = store.store(Arc::new(ManualClock::at(START)), OPTIONS).await;
        crate::between::a_large_commit_that_is_cut_off_is_written_whole_or_not_at_all(&store, &between, &cuts).await;
    }
}

/// The server reads few short entries from the start for each that is looked for, unless it is kept from that.
#[tokio::test]
async fn short_entries_are_found_at_once_however_few_there_are() {
    let place = OnServer::default();
    let store = place.store(Arc::new(ManualClock::at(START)), OPTIONS).await;
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    for key in ["state", "queue", "due", "deadline", "lease", "claim", "slot"] {
        assert_eq!(place.run(key, "return redis.call('OBJECT', 'ENCODING', KEYS[1])"), "skiplist", "{key}");
    }
    for key in ["id", "shown"] {
        assert_eq!(place.run(key, "return redis.call('OBJECT', 'ENCODING', KEYS[1])"), "hashtable", "{key}");
    }
}

/// What a read asks for comes with where the store stands: a commit cannot come in between, however many there
/// are, and no read has to take a turn that ticks would wait for.
#[tokio::test]
async fn a_read_is_one_call_whatever_is_written_before_it() {
    let server = RedisServer::start(RedisServer::UNSYNCED).unwrap();
    let open = || RedisStore::new(&server.url("calls"), OPTIONS).unwrap();
    let (reader, writer) = (open(), open());
    let policy = RoutePolicy { destination: Some(destination()), ..policy() };
    writer.apply_one(Define { route: route(), policy }).await.unwrap();
    let order = |order| LaneOrder { lane: lane(), order };
    writer.apply_one(order(Order::Open { destination: destination(), window: 4, first: Nonce(0) })).await.unwrap();
    reader.lane(lane()).await.unwrap();
    let calls = || server.calls("evalsha").unwrap();
    for paused in [true, false, true, false] {
        let told = if paused { Order::Pause { reason: "why".into() } } else { Order::Resume };
        writer.apply_one(order(told)).await.unwrap();
        let before = calls();
        let status = reader.lane(lane()).await.unwrap().unwrap().status;
        assert_eq!((status == LaneStatus::Active, calls() - before), (!paused, 1));
        assert_eq!((reader.ready(destination(), 5).await.unwrap().len(), calls() - before), (0, 2));
        assert_eq!(
            (reader.lane_outlines().await.unwrap()[0].status == LaneStatus::Active, calls() - before),
            (!paused, 3)
        );
    }
}
