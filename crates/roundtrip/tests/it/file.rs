//! The embedded store's file: one owner, readers beside it, refusals in plain words,
//! and a restored older file that is noticed.

use std::path::Path;
use std::sync::Arc;

use roundtrip::clock::{Clock, ManualClock, SystemClock};
use roundtrip::listener::Cursor;
use roundtrip::sender::LaneStatus;
use roundtrip::store::op::{Admit, Define, Effect, LaneOrder, Lead, Lease, Op, Order, Outcome, Seat, Stale};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::{Found, ListFilter};
use roundtrip::store::{Options, ReadExt, SqliteReader, SqliteStore, Store, StoreError, StoreExt, open};
use roundtrip::testkit::samples::{self, lane, listener, request, route};
use roundtrip::words::{ClaimId, Nonce, Token, UnixMs};
use rusqlite::Connection;

fn open_at(path: &Path, clock: &ManualClock) -> Result<SqliteStore, StoreError> {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    SqliteStore::open(path, clock, Options::default())
}

fn clock() -> ManualClock {
    ManualClock::at(UnixMs(1_800_000_000_000))
}

async fn define(store: &impl Store) {
    let op = Op::Define(Define { route: route(), policy: RoutePolicy::default() });
    assert!(store.apply_one(op).await.unwrap().holds());
}

fn admit(n: u64) -> Op {
    Op::Admit(Admit { cursor: None, requests: vec![request(n)] })
}

#[tokio::test]
async fn a_second_owner_is_refused_and_told_who_the_first_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let owner = open_at(&path, &clock()).unwrap();
    let refusal = open_at(&path, &clock()).err().unwrap();
    assert_eq!(refusal, StoreError::Owned { path: path.display().to_string(), owner: std::process::id().to_string() });
    assert!(refusal.to_string().contains("one process owns a store"));
    drop(owner);
    open_at(&path, &clock()).unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn a_second_owner_is_refused_under_any_name_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let _owner = open_at(&path, &clock()).unwrap();
    let alias = folder.path().join("alias.db");
    std::os::unix::fs::symlink(&path, &alias).unwrap();
    assert!(matches!(open_at(&alias, &clock()), Err(StoreError::Owned { .. })));
    let roundabout = folder.path().join("..").join(folder.path().file_name().unwrap()).join("store.db");
    assert!(matches!(open_at(&roundabout, &clock()), Err(StoreError::Owned { .. })));
}

#[tokio::test]
async fn a_closed_store_refuses_and_can_be_opened_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    for n in 0..3 {
        let store = open(&url, Options::default()).unwrap();
        define(&store).await;
        assert!(store.apply_one(samples::lease(1)).await.unwrap().holds());
        assert!(store.apply_one(admit(n)).await.unwrap().holds());
        store.close().await.unwrap();
        assert_eq!(store.apply_one(admit(n)).await, Err(StoreError::Closed));
    }
}

#[tokio::test]
async fn readers_see_whole_commits_while_receipts_are_spilled_and_merged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let options = Options { spill_receipts: 2, ..Options::default() };
    let owner = SqliteStore::open(&path, Arc::new(clock()), options).unwrap();
    define(&owner).await;
    let reader = SqliteReader::open(&path, Arc::new(clock()), options).unwrap();
    for n in 0..120 {
        owner.apply_one(admit(n)).await.unwrap();
        owner.apply_one(samples::mend(n, roundtrip::store::op::Remedy::Cancel)).await.unwrap();
        for known in [0, n / 2, n] {
            let found = reader.get(samples::id(known)).await.unwrap();
            assert!(matches!(found, Some(Found::Ended(_))), "{known} of {n}: {found:?}");
        }
    }
}

#[tokio::test]
async fn a_longer_journal_does_not_claim_what_a_shorter_one_forgot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let open = |journal_entries| {
        SqliteStore::open(&path, Arc::new(clock()), Options { journal_entries, ..Options::default() }).unwrap()
    };
    let store = open(10);
    define(&store).await;
    for n in 0..1000 {
        store.apply_one(admit(n)).await.unwrap();
    }
    drop(store);
    let page = open(1 << 20).journal(5, 10).await.unwrap();
    assert!(page.reset, "entry 5 is gone: {:?}", page.entries.first());
}

#[tokio::test]
async fn readers_beside_the_owner_see_each_commit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let owner = open_at(&path, &clock()).unwrap();
    define(&owner).await;
    let reader = SqliteReader::open(&path, Arc::new(clock()), Options::default()).unwrap();
    for n in 0..3_u64 {
        owner.apply_one(admit(n)).await.unwrap();
        let page = reader.list(ListFilter { limit: 10, ..ListFilter::default() }).await.unwrap();
        assert_eq!(page.requests.len() as u64, n + 1);
        let id = request(n).id;
        let found = reader.get(id).await.unwrap();
        assert!(matches!(found, Some(Found::Live(_, bodies)) if bodies.payload == request(n).payload));
    }
    assert_eq!(reader.counts().await.unwrap(), owner.counts().await.unwrap());
    assert_eq!(reader.apply(vec![admit(9)]).await, Err(StoreError::ReadOnly));
    // A reader is no owner: it keeps nobody out.
    drop(owner);
    open_at(&path, &clock()).unwrap();
}

/// A process that is being started holds copies of all locks for a moment.
#[tokio::test]
async fn a_store_opens_again_while_other_processes_are_started() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        let start = || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                std::process::Command::new("true").status().unwrap();
            }
        };
        threads.spawn(start);
        threads.spawn(start);
        let opened: Result<(), StoreError> = (0..100).try_for_each(|_| open_at(&path, &clock()).map(drop));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        opened.unwrap();
    });
}

#[tokio::test]
async fn a_newer_format_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    drop(open_at(&path, &clock()).unwrap());
    Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 99").unwrap();
    let newer = StoreError::NewerFormat { path: path.display().to_string(), found: 99, known: 1 };
    assert_eq!(open_at(&path, &clock()).err().unwrap(), newer);
    assert_eq!(SqliteReader::open(&path, Arc::new(clock()), Options::default()).err().unwrap(), newer);
}

#[tokio::test]
async fn what_is_not_a_store_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "not a database, but long enough to look into: ".repeat(40)).unwrap();
    assert!(matches!(open_at(&text, &clock()), Err(StoreError::NotAStore { .. })));
    assert!(std::fs::read_to_string(&text).unwrap().starts_with("not a database"));
    let foreign = folder.path().join("foreign.db");
    Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let refusal = open_at(&foreign, &clock()).err().unwrap();
    assert!(refusal.to_string().contains("another program"), "{refusal}");
    let nowhere = folder.path().join("no/such/folder/store.db");
    assert!(matches!(open_at(&nowhere, &clock()), Err(StoreError::Io { .. })));
}

#[tokio::test]
async fn a_url_names_a_store_or_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for url in ["", "sqlite:", "sqlite://", "postgres", "mysql://localhost/x", "memory:x"] {
        let refusal = open(url, Options::default()).err().unwrap();
        assert_eq!(refusal, StoreError::BadUrl { url: url.into() });
    }
    open("memory:", Options::default()).unwrap();
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    open(&url, Options::default()).unwrap();
    assert!(folder.path().join("store.db").exists());
}

#[tokio::test]
async fn a_seat_from_before_the_start_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("store.db"), clock());
    let store = open_at(&path, &clock).unwrap();
    assert!(store.apply_one(samples::lead()).await.unwrap().holds());
    let other = Lead { holder: samples::other_holder(), ..samples::lead() };
    assert!(matches!(store.apply_one(other.clone()).await.unwrap(), Outcome::Stale(Stale::Seat { .. })));
    store.close().await.unwrap();
    // Whoever held it was part of the process that owned the file, and is gone.
    let store = open_at(&path, &clock).unwrap();
    assert!(store.apply_one(other).await.unwrap().holds());
}

/// What a deployment outside the file remembers.
struct Outside {
    cursor: Cursor,
    owner: Token,
    lease: Token,
}

async fn move_cursor(store: &impl Store, expected: Option<Cursor>, to: u64) -> Outcome {
    store.apply_one(Op::Admit(samples::admit_at(expected, to, vec![request(to)]))).await.unwrap()
}

async fn take_lane(store: &impl Store) -> Token {
    match store.apply_one(Op::Lead(Lead { seat: Seat::Lane(lane()), ..samples::lead() })).await.unwrap() {
        Outcome::Applied(Effect::Led(token, _)) => token,
        other => panic!("{other:?}"),
    }
}

async fn take_lease(store: &impl Store) -> Token {
    let lease = Lease { claim: ClaimId(7), ..samples::lease(1) };
    match store.apply_one(lease).await.unwrap() {
        Outcome::Applied(Effect::Leased(grants)) => grants[0].token,
        other => panic!("{other:?}"),
    }
}

/// Lets a store live on past the moment at which its file was saved.
async fn live_on(path: &Path, saved: &Path, clock: &ManualClock) -> Outside {
    let store = open_at(path, clock).unwrap();
    define(&store).await;
    let order = Order::Open { destination: samples::destination(), window: 16, first: Nonce(0) };
    store.apply_one(LaneOrder { lane: lane(), order }).await.unwrap();
    let first = move_cursor(&store, None, 1).await;
    assert!(first.holds(), "{first:?}");
    drop(store);
    std::fs::copy(path, saved).unwrap();
    clock.advance_ms(60_000);
    let store = open_at(path, clock).unwrap();
    let held = store.cursor(listener()).await.unwrap();
    let Outcome::Applied(Effect::Admitted(_, Some(cursor))) = move_cursor(&store, held, 2).await else { panic!() };
    Outside { cursor, owner: take_lane(&store).await, lease: take_lease(&store).await }
}

async fn restored(clock: &ManualClock) -> (tempfile::TempDir, SqliteStore, Outside) {
    let folder = tempfile::tempdir().unwrap();
    let (path, saved) = (folder.path().join("store.db"), folder.path().join("saved.db"));
    let outside = live_on(&path, &saved, clock).await;
    clock.advance_ms(60_000);
    let restored = folder.path().join("restored.db");
    std::fs::copy(saved, &restored).unwrap();
    let store = open_at(&restored, clock).unwrap();
    (folder, store, outside)
}

async fn lane_status(store: &impl Store) -> LaneStatus {
    store.lane(lane()).await.unwrap().unwrap().status
}

#[tokio::test]
async fn a_restored_older_file_is_noticed_by_the_cursor_that_the_listener_remembers() {
    let (_folder, store, outside) = restored(&clock()).await;
    assert_eq!(lane_status(&store).await, LaneStatus::Active);
    assert_eq!(move_cursor(&store, Some(outside.cursor), 3).await, Outcome::Stale(Stale::RolledBack));
    assert_eq!(lane_status(&store).await, LaneStatus::Stopped);
}

#[tokio::test]
async fn a_restored_older_file_is_noticed_by_what_the_outside_has_seen_of_a_lane() {
    let (_folder, store, _) = restored(&clock()).await;
    let observe = Op::Lane(LaneOrder { lane: lane(), order: Order::Observe { outside_next: Nonce(1) } });
    let outcome = store.apply_one(observe).await.unwrap();
    assert_eq!(outcome, Outcome::Applied(Effect::Lane(LaneStatus::Stopped)));
    let resume = Op::Lane(LaneOrder { lane: lane(), order: Order::Resume });
    assert_eq!(store.apply_one(resume).await.unwrap(), Outcome::Stale(Stale::Lane(LaneStatus::Stopped)));
}

#[tokio::test]
async fn a_restored_older_file_issues_no_token_again() {
    let (_folder, store, outside) = restored(&clock()).await;
    let (owner, lease) = (take_lane(&store).await, take_lease(&store).await);
    assert!(owner > outside.owner && lease > outside.lease, "tokens of a restored file must be newer than any before");
}

#[tokio::test]
async fn the_default_clock_and_options_open_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let store = SqliteStore::open(folder.path().join("store.db"), clock, Options::default()).unwrap();
    define(&store).await;
    assert!(store.apply_one(admit(1)).await.unwrap().holds());
}
