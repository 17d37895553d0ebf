//! The Postgres store: the conformance suite on a server that the tests start, each case in
//! a schema of its own, with crashes as new handles on it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use roundtrip::clock::{Clock, ManualClock};
use roundtrip::inbox::StateKind;
use roundtrip::sender::{AttemptKind, LaneStatus};
use roundtrip::store::archive::Place;
use roundtrip::store::journal::Event;
use roundtrip::store::op::{
    Admission, Admit, Define, Effect, LaneOrder, Lead, Lease, NewRequest, Op, Order, Outcome, Seat, Stale,
};
use roundtrip::store::policy::{Gate, Horizon, RoutePolicy};
use roundtrip::store::{Options, PostgresStore, ReadExt, Store, StoreError, StoreExt, StoreFuture, Topic};
use roundtrip::testkit::bench::{Harness, OPTIONS, START};
use roundtrip::testkit::samples::*;
use roundtrip::testkit::servers::PostgresServer;
use roundtrip::words::{ClaimId, Nonce};
use tokio_postgres::NoTls;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The one server of this test run.
fn server() -> &'static PostgresServer {
    static SERVER: OnceLock<PostgresServer> = OnceLock::new();
    SERVER.get_or_init(|| PostgresServer::start(&[]).unwrap())
}

/// A schema of its own, for as long as the server runs.
pub(crate) struct OnServer(String);

impl Default for OnServer {
    fn default() -> Self {
        static SCHEMAS: AtomicU64 = AtomicU64::new(0);
        OnServer(server().url(&format!("case_{}", SCHEMAS.fetch_add(1, Ordering::Relaxed))))
    }
}

impl OnServer {
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

/// Two processes that share a store, as far as it can tell.
struct Two {
    clock: ManualClock,
    one: Arc<PostgresStore>,
    other: Arc<PostgresStore>,
}

impl Two {
    async fn open() -> Two {
        let (schema, clock) = (OnServer::default(), ManualClock::at(START));
        let open = || schema.store(Arc::new(clock.clone()), OPTIONS);
        let (one, other) = (Arc::new(open().await), Arc::new(open().await));
        one.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
        Two { clock, one, other }
    }
}

#[tokio::test]
async fn no_request_is_handed_out_to_two_processes() {
    let Two { one, other, .. } = Two::open().await;
    one.apply_one(Admit { cursor: None, requests: requests(1..=200) }).await.unwrap();
    let drain = |store: Arc<PostgresStore>, first: u64| async move {
        let mut taken = Vec::new();
        for claim in first.. {
            let outcome = store.apply_one(Lease { claim: ClaimId(claim), ..lease(7) }).await.unwrap();
            let Outcome::Applied(Effect::Leased(grants)) = outcome else { panic!("{outcome:?}") };
            if grants.is_empty() {
                break;
            }
            taken.extend(grants);
        }
        taken
    };
    let (mut taken, others) = tokio::join!(drain(one, 1), drain(other, 1000));
    assert!(!taken.is_empty() && !others.is_empty(), "both had their turns");
    taken.extend(others);
    let ids: BTreeSet<_> = taken.iter().map(|grant| grant.id).collect();
    let tokens: BTreeSet<_> = taken.iter().map(|grant| grant.token).collect();
    assert_eq!((taken.len(), ids.len(), tokens.len()), (200, 200, 200));
}

#[tokio::test]
async fn a_request_that_two_processes_admit_is_admitted_once() {
    let Two { one, other, .. } = Two::open().await;
    for n in 1..=20 {
        // The same event, seen by two listeners; and another event that asks for the same.
        let again = NewRequest { occurrence: occurrence(1000 + n), ..request(n) };
        let admit = |requests: Vec<NewRequest>| Admit { cursor: None, requests };
        let (first, second) =
            tokio::join!(one.apply_one(admit(vec![request(n)])), other.apply_one(admit(vec![request(n), again])));
        let admissions = [first.unwrap(), second.unwrap()].into_iter().flat_map(|outcome| match outcome {
            Outcome::Applied(Effect::Admitted(all, _)) | Outcome::Duplicate(Effect::Admitted(all, _)) => all,
            other => panic!("{other:?}"),
        });
        let admissions: Vec<Admission> = admissions.collect();
        let new = admissions.iter().filter(|admission| matches!(admission, Admission::New { .. })).count();
        let known = admissions.iter().filter(|admission| matches!(admission, Admission::Known { .. })).count();
        assert_eq!((new, known, admissions.len()), (1, 1, 3), "{admissions:?}");
    }
    let counts = other.counts().await.unwrap();
    assert_eq!(counts.iter().map(|count| count.requests).sum::<u64>(), 20);
}

#[tokio::test]
async fn a_lane_has_one_owner_among_processes() {
    let Two { clock, one, other } = Two::open().await;
    let order = Order::Open { destination: destination(), window: 4, first: Nonce(0) };
    one.apply_one(LaneOrder { lane: lane(), order }).await.unwrap();
    let seat = |holder, ttl_ms| Lead { seat: Seat::Lane(lane()), holder, ttl_ms };
    let led = |outcome: Outcome| match outcome {
        Outcome::Applied(Effect::Led(token, _)) => token,
        other => panic!("{other:?}"),
    };
    // The one that started first has the lower epoch; neither takes the other's for a rollback.
    let first = led(other.apply_one(seat(holder(), 1000)).await.unwrap());
    let refused = one.apply_one(seat(other_holder(), 1000)).await.unwrap();
    assert!(matches!(refused, Outcome::Stale(Stale::Seat { .. })), "{refused:?}");
    let empty = |n| vec![parcel(&[], signed(n, AttemptKind::Cancel))];
    let stored = one.apply_one(assign(first, 0, empty(1))).await.unwrap();
    assert_eq!(stored, Outcome::Applied(Effect::Assigned(1, None)), "whichever process a sender speaks through");
    clock.advance_ms(1000);
    let second = led(one.apply_one(seat(other_holder(), 1000)).await.unwrap());
    let (late, stored) =
        tokio::join!(other.apply_one(assign(first, 1, empty(2))), one.apply_one(assign(second, 1, empty(3))));
    assert!(matches!(late.unwrap(), Outcome::Stale(Stale::Seat { .. })));
    assert_eq!(stored.unwrap(), Outcome::Applied(Effect::Assigned(1, None)));
    let view = other.lane(lane()).await.unwrap().unwrap();
    assert_eq!((view.next, view.under_way, view.status), (Nonce(2), 2, LaneStatus::Active));
}

/// Whoever reads the journal while others write misses nothing: it is in the order of commits.
#[tokio::test]
async fn the_journal_is_read_in_order_while_two_processes_write() {
    let Two { one, other, .. } = Two::open().await;
    let write = |store: Arc<PostgresStore>, numbers: std::ops::Range<u64>| async move {
        for n in numbers {
            store.apply_one(Admit { cursor: None, requests: vec![request(n)] }).await.unwrap();
        }
    };
    let (last, reader) = (81, other.clone());
    let follow = async move {
        let (mut from, mut read) = (1, Vec::new());
        while read.len() < last {
            let page = reader.journal(from, 10).await.unwrap();
            from = page.entries.last().map_or(from, |entry| entry.position + 1);
            read.extend(page.entries.into_iter().map(|entry| entry.position));
        }
        read
    };
    let ((), (), read) = tokio::join!(write(one, 1..41), write(other, 101..141), follow);
    assert!(read.into_iter().eq(1..=last as u64), "every entry once, in order");
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
    client.batch_execute(&format!("INSERT INTO {name}.migration VALUES (99)")).await.unwrap();
    drop(client);
    connection.await.unwrap().unwrap();
    let newer = PostgresStore::new(&schema.0, OPTIONS).unwrap();
    let refused = newer.start().await.unwrap_err();
    assert!(matches!(refused, StoreError::NewerFormat { found: 99, known: 1, .. }), "{refused}");
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

/// A folder with a certificate for `localhost` and its key, which the server may read.
fn certificate() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout key.pem \
                -out cert.pem -subj /CN=localhost -addext subjectAltName=DNS:localhost \
                -addext basicConstraints=critical,CA:FALSE 2> /dev/null \
                && if [ $(id -u) = 0 ]; then chown -R postgres .; fi";
    let made = std::process::Command::new("sh").arg("-c").arg(make).current_dir(folder.path()).status().unwrap();
    assert!(made.success(), "openssl: {made}");
    folder
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

#[tokio::test]
async fn a_hint_reaches_the_other_process() {
    let Two { one, other, .. } = Two::open().await;
    let mut changes = other.changes(Topic::Inbox(route()));
    assert!(changes.changed().await, "everybody looks once at the start");
    // The first hint may come before the other listens; whoever then starts to listen looks.
    for n in 1..=3 {
        one.apply_one(Admit { cursor: None, requests: vec![request(n)] }).await.unwrap();
        let hinted = tokio::time::timeout(PATIENCE, changes.changed()).await;
        assert!(hinted.is_ok_and(|here| here), "request {n} is not told of");
    }
}

/// The server dies again and again while requests go through it: each of them is answered
/// once, and none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_nothing() {
    const REQUESTS: u64 = 300;
    const KILLS: u64 = 4;
    let server = PostgresServer::start(&[]).unwrap();
    let open = || PostgresStore::new(&server.url("killed"), Options::default()).unwrap();
    let (intake, work) = (open(), open());
    let policy = RoutePolicy { destination: None, publish_on: Gate::Seen, horizon: Horizon::Forever, ..policy() };
    until_known(&intake, Define { route: route(), policy }.into()).await;
    let admit = async {
        for n in 1..=REQUESTS {
            until_known(&intake, Admit { cursor: None, requests: vec![request(n)] }.into()).await;
        }
    };
    let answered = AtomicU64::new(0);
    let answer_all = async {
        for claim in 1.. {
            let Effect::Leased(grants) = until_known(&work, Lease { claim: ClaimId(claim), ..lease(5) }.into()).await
            else {
                panic!("a lease brings grants")
            };
            for grant in &grants {
                until_known(&work, answer(grant).into()).await;
                answered.fetch_add(1, Ordering::SeqCst);
            }
            if answered.load(Ordering::SeqCst) == REQUESTS {
                break;
            }
        }
    };
    let kill = async {
        for kill in 1..=KILLS {
            while answered.load(Ordering::SeqCst) < kill * REQUESTS / (KILLS + 1) {
                tokio::task::yield_now().await;
            }
            let killed = server.kill().unwrap();
            tokio::task::block_in_place(|| server.wait_until_ready(killed)).unwrap();
        }
    };
    tokio::join!(admit, answer_all, kill);
    assert_eq!(work.counts().await.unwrap(), []);
    for n in 1..=REQUESTS {
        let told = work.timeline(id(n)).await.unwrap();
        let told: Vec<&Event> = told.iter().map(|entry| &entry.event).collect();
        let whole =
            matches!(told[..], [Event::Admitted { .. }, Event::Leased { .. }, Event::Answered, Event::Ended { .. }]);
        assert!(whole, "request {n}: {told:?}");
    }
}

/// Does one operation until its outcome is known, and shows what it brought.
async fn until_known(store: &PostgresStore, op: Op) -> Effect {
    let started = Instant::now();
    loop {
        match store.apply_one(op.clone()).await {
            Ok(Outcome::Applied(effect) | Outcome::Duplicate(effect)) => return effect,
            // The answer that was lost had settled it.
            Ok(Outcome::Stale(Stale::Lease(StateKind::Settled))) => return Effect::Now(StateKind::Settled),
            Ok(other) => panic!("{op:?}: {other:?}"),
            Err(error) => assert!(error.is_retryable() && started.elapsed() < PATIENCE, "{op:?}: {error}"),
        }
        tokio::task::yield_now().await;
    }
}
