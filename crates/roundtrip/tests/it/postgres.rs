//! The Postgres store: the conformance suite on a server that the tests start, each case in
//! a schema of its own, with crashes as new handles on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use roundtrip::clock::{Clock, ManualClock};
use roundtrip::store::archive::Place;
use roundtrip::store::op::{Admit, Define, Effect, Outcome};
use roundtrip::store::{Options, PostgresStore, ReadExt, Store, StoreError, StoreExt, StoreFuture, Topic};
use roundtrip::testkit::bench::{Harness, OPTIONS, START};
use roundtrip::testkit::samples::*;
use roundtrip::testkit::servers::PostgresServer;
use tokio_postgres::NoTls;

use crate::between::{Between, How, To};
use crate::certificate::certificate;
use crate::sharing::{HAPPEN_MAX, nothing_is_lost, sharing, until_known};

/// The one server of this test run.
pub(crate) fn server() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(|| PostgresServer::start(&[PostgresServer::UNSYNCED]).unwrap())
}

/// A schema of its own, for as long as the server runs.
pub(crate) struct OnServer(pub(crate) String);

impl Default for OnServer {
    fn default() -> Self {
        static SCHEMAS: AtomicU64 = AtomicU64::new(0);
        OnServer(server().url(&format!("case_{}", SCHEMAS.fetch_add(1, Ordering::Relaxed))))
    }
}

impl OnServer {
    /// The same, for processes that tell each other nothing.
    pub(crate) fn by_polling(self) -> OnServer {
        OnServer(self.0.replace('?', "?poll_only=true&"))
    }

    /// A schema of another server.
    pub(crate) fn at(url: String) -> OnServer {
        OnServer(url)
    }

    async fn store(&self, clock: Arc<dyn Clock>, options: Options) -> PostgresStore {
        let store = PostgresStore::new(&self.0, options).unwrap().with_clock(clock);
        store.start().await.unwrap();
        store
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

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let schema = OnServer::default();
    let store = schema.store(Arc::new(ManualClock::at(START)), OPTIONS).await;
    store.counts().await.unwrap();
    let (client, connection) =
        tokio_postgres::connect(&schema.0.replace("?schema=", "?application_name="), NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let name = schema.0.rsplit_once('=').unwrap().1;
    client
        .batch_execute(&format!("INSERT INTO {name}.migration VALUES (99); UPDATE {name}.numbers SET needs = 99"))
        .await
        .unwrap();
    drop(client);
    connection.await.unwrap().unwrap();
    let newer = PostgresStore::new(&schema.0, OPTIONS).unwrap();
    let refused = newer.start().await.unwrap_err();
    assert!(matches!(refused, StoreError::NewerFormat { found: 99, known: 2, .. }), "{refused}");
}

/// A role that may use the tables, and create nothing, is enough once they are there.
#[tokio::test]
async fn a_role_that_creates_nothing_is_enough() {
    let schema = OnServer::default();
    let owner = schema.store(Arc::new(ManualClock::at(START)), OPTIONS).await;
    owner.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    let (client, connection) =
        tokio_postgres::connect(&schema.0.replace("?schema=", "?application_name="), NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let name = schema.0.rsplit_once('=').unwrap().1;
    let grants = format!(
        "CREATE ROLE user_{name} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC; \
         GRANT USAGE ON SCHEMA {name} TO user_{name}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {name} TO user_{name}"
    );
    client.batch_execute(&grants).await.unwrap();
    drop(client);
    connection.await.unwrap().unwrap();
    let url = schema.0.replace("postgres@", &format!("user_{name}@"));
    let user = PostgresStore::new(&url, OPTIONS).unwrap();
    user.apply_one(Admit { cursor: None, requests: vec![request(1)] }).await.unwrap();
    assert_eq!(owner.counts().await.unwrap().len(), 1);
}

/// Whoever answers on a new connection may be another server that took the place of the last,
/// with as many ticks, and without what the last of them wrote.
#[tokio::test]
async fn rows_at_hand_do_not_outlive_the_connection() {
    let OnServer(url) = OnServer::default();
    let name = url.rsplit_once('=').unwrap().1.to_owned();
    let store = OnServer(format!("{url}&application_name=hand_{name}"));
    let store = store.store(Arc::new(ManualClock::at(START)), OPTIONS).await;
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    store.apply_one(Admit { cursor: None, requests: vec![final_request(1)] }).await.unwrap();
    let (client, connection) =
        tokio_postgres::connect(&url.replace("?schema=", "?application_name="), NoTls).await.unwrap();
    tokio::spawn(connection);
    let lose = format!("DELETE FROM {name}.queued; DELETE FROM {name}.live; UPDATE {name}.counted SET requests = 0");
    client.batch_execute(&lose).await.unwrap();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
    while !client.query(end, &[&format!("hand_{name}")]).await.unwrap().is_empty() {}
    let granted = loop {
        match store.apply_one(lease(1)).await {
            Ok(Outcome::Applied(Effect::Leased(grants))) => break grants,
            Err(StoreError::Unknown) => {}
            other => panic!("neither leased nor to be tried again: {other:?}"),
        }
    };
    assert_eq!(granted, []);
}

/// What is between this schema's server and whoever goes by this other place.
pub(crate) async fn before(place: &OnServer, says: &'static [u8]) -> (OnServer, Between) {
    let (host, rest) = place.0.split_once('@').unwrap().1.split_once('/').unwrap();
    let socket = std::path::PathBuf::from(host.replace("%2F", "/")).join(".s.PGSQL.5432");
    let between = Between::open(To::Socket(socket), says).await;
    (OnServer(format!("postgres://postgres@{}/{rest}", between.address)), between)
}

/// A store, and what is between it and its server.
async fn behind_a_connection_that_breaks() -> (impl Store, Between) {
    let (store, between) = before(&OnServer::default(), b"COMMIT\0").await;
    (store.store(Arc::new(ManualClock::at(START)), OPTIONS).await, between)
}

/// Longer than a server takes, and no longer than a test may.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

async fn hints_that_are_lost_from_this_on_are_given(says: &'static [u8]) {
    let place = OnServer::default();
    let (listens, between) = before(&place, says).await;
    let [listens, other] = [listens, place].map(|place| PostgresStore::new(&place.0, OPTIONS).unwrap());
    let listens = listens.with_patience(PATIENCE);
    crate::between::hints_that_a_silent_connection_lost_are_given(&listens, &other, &between).await;
}

#[tokio::test]
async fn hints_that_a_silent_connection_lost_are_given() {
    hints_that_are_lost_from_this_on_are_given(b"\x0bSELECT\0").await;
}

#[tokio::test]
async fn hints_that_a_connection_lost_which_was_silent_from_the_first_are_given() {
    hints_that_are_lost_from_this_on_are_given(b"LISTEN ").await;
}

/// A process whose word for others is not taken speaks by another connection from then on.
#[tokio::test]
async fn hints_go_out_again_after_a_silence() {
    let place = OnServer::default();
    let (tells, between) = before(&place, b"pg_notify").await;
    let [tells, other] = [tells, place].map(|place| PostgresStore::new(&place.0, OPTIONS).unwrap());
    let tells = tells.with_patience(PATIENCE);
    between.meddle(How::Silence);
    tells.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    between.happens(&between.meddling.left).await;
    let mut changes = other.changes(Topic::Inbox(route()));
    other.start().await.unwrap();
    assert!(changes.changed().await, "everybody looks once at the start");
    // What begins to listen looks; the last of these is told of.
    for n in 1..=3 {
        tells.apply_one(Admit { cursor: None, requests: vec![request(n)] }).await.unwrap();
        assert!(tokio::time::timeout(HAPPEN_MAX, changes.changed()).await.unwrap(), "request {n}");
    }
}

#[tokio::test]
async fn a_connection_that_breaks_leaves_the_outcome_unknown() {
    let (store, between) = behind_a_connection_that_breaks().await;
    crate::between::a_connection_that_breaks_leaves_the_outcome_unknown(&store, &between).await;
}

#[tokio::test]
async fn a_large_commit_that_is_cut_off_is_written_whole_or_not_at_all() {
    let (store, between) = behind_a_connection_that_breaks().await;
    let cuts = [(How::CutBefore, false), (How::CutAfter, true)];
    crate::between::a_large_commit_that_is_cut_off_is_written_whole_or_not_at_all(&store, &between, &cuts).await;
}

/// A store that waits for no server for long, and what is between them.
async fn before_silence(says: &'static [u8]) -> (PostgresStore, Between) {
    let (store, between) = before(&OnServer::default(), says).await;
    let store = PostgresStore::new(&store.0, OPTIONS).unwrap().with_clock(Arc::new(ManualClock::at(START)));
    (store.with_patience(PATIENCE), between)
}

#[tokio::test]
async fn a_silent_server_leaves_the_outcome_unknown() {
    let (store, between) = before_silence(b"COMMIT\0").await;
    store.start().await.unwrap();
    crate::between::a_silent_server_leaves_the_outcome_unknown(&store, &between).await;
}

/// All that is under way on the connection is unknown, and what was at hand by then is not gone by.
#[tokio::test]
async fn a_silent_server_leaves_the_outcome_of_all_that_is_under_way_unknown() {
    let (store, between) = before_silence(b"COMMIT\0").await;
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    let admit = |n| store.apply_one(Admit { cursor: None, requests: vec![final_request(n)] });
    for n in 1..=2 {
        admit(n).await.unwrap();
    }
    between.meddle(How::Hold);
    let (first, second) = tokio::join!(admit(3), admit(4));
    assert_eq!((first, second), (Err(StoreError::Unknown), Err(StoreError::Unknown)));
    let grants = match store.apply_one(lease(9)).await.unwrap() {
        Outcome::Applied(Effect::Leased(grants)) => grants.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(grants, 2, "nothing was written that the server was not sent");
    // What arrives late does nothing.
    between.meddling.go_on.notify_one();
    between.happens(&between.meddling.left).await;
    assert_eq!(store.counts().await.unwrap()[0].requests, 2);
    for n in 3..=4 {
        assert!(matches!(admit(n).await, Ok(Outcome::Applied(_))), "{n}");
    }
}

/// A process is stopped in the middle of the rows of a large batch, where the server would wait for it without end and all
/// others for the lock that it has. Who waits in vain ends its transaction, of which nothing is stored.
#[tokio::test]
async fn a_process_that_is_stopped_while_it_sends_rows_holds_nobody_up_for_long() {
    stopped_while_it_sends_rows(true).await;
}

/// So does who starts in its place.
#[tokio::test]
async fn a_process_that_is_stopped_while_it_sends_rows_holds_no_start_up_for_long() {
    stopped_while_it_sends_rows(false).await;
}

async fn stopped_while_it_sends_rows(is_other_there: bool) {
    let place = OnServer::default();
    let (stopped, between) = before(&place, b"PGCOPY\n").await;
    let clock = || Arc::new(ManualClock::at(START));
    let stopped = stopped.store(clock(), OPTIONS).await;
    let other = PostgresStore::new(&place.0, OPTIONS).unwrap().with_clock(clock()).with_patience(PATIENCE);
    stopped.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    if is_other_there {
        until_known(&other, Define { route: route(), policy: policy() }.into()).await;
    }
    between.meddle(How::Hold);
    let admit = |numbers| Admit { cursor: None, requests: requests(numbers) };
    let large = async { stopped.apply_one(admit(1..=200)).await };
    let one_more = async {
        between.happens(&between.meddling.caught).await;
        let effect = until_known(&other, admit(201..=201).into()).await;
        between.meddling.go_on.notify_one();
        effect
    };
    let (large, effect) = tokio::join!(large, one_more);
    assert!(matches!(effect, Effect::Admitted(..)), "{effect:?}");
    assert!(large.as_ref().is_err_and(StoreError::is_retryable), "{large:?}");
    assert_eq!(stopped.counts().await.unwrap()[0].requests, 1);
    until_known(&stopped, admit(1..=200).into()).await;
    assert_eq!(stopped.counts().await.unwrap()[0].requests, 201);
}

#[tokio::test]
async fn a_read_that_a_silent_server_took_is_asked_again_by_another_connection() {
    let (store, between) = before_silence(b"READ ONLY\0").await;
    crate::between::a_read_that_a_silent_server_took_is_asked_again(&store, &between).await;
}

/// A server that lets a process in and then answers nothing was not reached.
#[tokio::test]
async fn a_server_that_is_silent_from_the_first_is_told_as_away() {
    let (store, between) = before_silence(b"search_path").await;
    between.meddle(How::Silence);
    let away = store.start().await.unwrap_err();
    assert!(matches!(away, StoreError::Unreachable { .. }) && away.is_retryable(), "{away}");
    between.happens(&between.meddling.left).await;
    store.start().await.unwrap();
}

#[tokio::test]
async fn by_tls_only_the_server_itself_is_spoken_to() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let folder = certificate();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (roots, key, port_setting) = (file("cert.pem"), file("key.pem"), format!("port={port}"));
    let (roots_setting, key_setting) = (format!("ssl_cert_file={roots}"), format!("ssl_key_file={key}"));
    let settings = ["ssl=on", &roots_setting, &key_setting, "listen_addresses=localhost", &port_setting];
    let _server = PostgresServer::start(&settings).unwrap();
    let at = |host: &str, parameters: &str| {
        let url = format!("postgres://postgres@{host}:{port}/postgres?sslmode=verify-full{parameters}");
        PostgresStore::new(&url, OPTIONS).unwrap()
    };
    let store = at("localhost", &format!("&sslrootcert={roots}"));
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    assert_eq!(store.counts().await.unwrap(), []);
    // Nobody vouches for it, or somebody does for another name.
    for stranger in [at("localhost", ""), at("127.0.0.1", &format!("&sslrootcert={roots}"))] {
        let refused = stranger.start().await.unwrap_err();
        assert!(matches!(&refused, StoreError::Io { reason, .. } if reason.contains("certificate")), "{refused}");
    }
}

/// The server dies again and again while requests go through it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_nothing() {
    let server = PostgresServer::start(&[]).unwrap();
    let open = || PostgresStore::new(&server.url("killed"), Options::default()).unwrap();
    let kill = async || {
        let killed = server.kill().unwrap();
        tokio::task::block_in_place(|| server.wait_until_ready(killed)).unwrap();
    };
    let failed = nothing_is_lost(Arc::new(open()), Arc::new(open()), 300, 6, kill).await;
    assert!(failed > 0, "it never died while it was asked something");
}
