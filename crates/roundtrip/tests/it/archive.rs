//! Copying a store to any other, and verifying it: with everything in it, stopped in the middle,
//! changed meanwhile, damaged.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use roundtrip::clock::{Clock, ManualClock};
use roundtrip::inbox::StateKind;
use roundtrip::store::archive::{Copied, CopyError, Kind, Place, Verdict, copy, verify};
use roundtrip::store::{ReadExt, SqliteReader, SqliteStore, StoreError};
use roundtrip::testkit::bench::{Bench, Harness, InMemory, START};
use roundtrip::testkit::picture::Picture;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::random::{Life, OPTIONS, sights};
use crate::sqlite::OnDisk;

/// How many different lives are copied.
const LIVES: u64 = 12;
/// How many batches each of them lasts.
const BATCHES: usize = 120;

/// The seed of a life that has something of everything; another is looked for, should that change.
const FULL_LIFE: u64 = 5601;

/// A file in a folder of its own.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("store.db")
    }

    fn place(&self) -> Place {
        at(&self.file())
    }

    fn open(&self) -> Result<SqliteStore, StoreError> {
        SqliteStore::open(self.file(), Arc::new(ManualClock::at(START)), OPTIONS)
    }

    fn edit(&self, sql: &str) -> usize {
        Connection::open(self.file()).unwrap().execute(sql, []).unwrap()
    }
}

fn at(path: &Path) -> Place {
    Place::Url(format!("sqlite:{}", path.display()))
}

pub(crate) async fn copied(from: impl Into<Place>, to: impl Into<Place>) -> Copied {
    copy(from, to, |_| ControlFlow::Continue(())).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Copies so many pages, and breaks off.
async fn copy_pages(from: impl Into<Place>, to: impl Into<Place>, pages: u64) -> Result<Copied, CopyError> {
    let seen = AtomicU64::new(0);
    let stop = move |_| match seen.fetch_add(1, Ordering::Relaxed) + 1 >= pages {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    copy(from, to, stop).await
}

async fn sound(place: impl Into<Place>) -> Verdict {
    let verdict = verify(place).await.unwrap();
    assert!(verdict.is_sound(), "{verdict}");
    verdict
}

async fn lived<H: Harness>(harness: H, seed: u64) -> (Bench, Life) {
    let bench = Bench::open_with(harness, OPTIONS).await;
    let mut life = Life::begin(&bench, seed).await;
    life.go_on(&[&bench], BATCHES).await;
    (bench, life)
}

/// A file with a life in it.
async fn lived_file(seed: u64) -> Folder {
    let (mut bench, _) = lived(InMemory::default(), seed).await;
    let folder = Folder::new();
    copied(bench.close(), folder.place()).await;
    folder
}

async fn picture(bench: &Bench) -> Picture {
    bench.commit().await;
    Picture::of(&**bench.store(), &sights()).await
}

/// Copies a store into a new one of another kind, and opens that at the same time.
async fn moved(from: &mut Bench, to: impl Harness) -> Bench {
    let mut bench = Bench::open_with(to, OPTIONS).await;
    copied(from.close(), bench.close()).await;
    bench.clock.set(from.clock.now());
    bench.restart().await;
    bench
}

/// What the lives of a test had in them.
#[derive(Default)]
struct Covered {
    kinds: BTreeSet<Kind>,
    states: BTreeSet<StateKind>,
}

impl Covered {
    async fn add(&mut self, bench: &Bench, verdict: &Verdict) {
        self.kinds.extend(verdict.records.iter().filter(|(_, count)| *count > 0).map(|(kind, _)| *kind));
        let counts = bench.store().counts().await.unwrap();
        self.states.extend(counts.iter().filter(|count| count.requests > 0).map(|count| count.state));
    }

    fn is_all(&self) -> bool {
        self.kinds == Kind::ALL.into() && self.states == StateKind::LIVE.into()
    }
}

#[tokio::test]
async fn a_copy_shows_the_same_and_goes_on_alike() {
    let mut covered = Covered::default();
    for seed in 0..LIVES {
        let (mut one, mut life) = lived(InMemory::default(), seed).await;
        let mut two = moved(&mut one, OnDisk::default()).await;
        #[cfg(feature = "postgres")]
        let mut three = moved(&mut two, crate::postgres::OnServer::default()).await;
        #[cfg(not(feature = "postgres"))]
        let mut three = moved(&mut two, OnDisk::default()).await;
        let mut four = moved(&mut three, InMemory::default()).await;
        for bench in [&mut one, &mut two, &mut three] {
            bench.restart().await;
        }
        let verdict = sound(one.close()).await;
        one.restart().await;
        covered.add(&one, &verdict).await;
        // So much later, every start takes the same epoch, and so issues the same tokens.
        let later = one.clock.now().plus(10);
        let expected = picture(&one).await;
        expected.assert_same(&picture(&three).await, "a copy in between");
        three.verify().await;
        for bench in [&mut one, &mut two, &mut four] {
            expected.assert_same(&picture(bench).await, "a copy");
            bench.clock.set(later);
            bench.restart().await;
        }
        life.go_on(&[&one, &two, &four], BATCHES / 2).await;
        let expected = picture(&one).await;
        for bench in [&mut one, &mut two, &mut four] {
            expected.assert_same(&picture(bench).await, "a copy that went on");
            bench.verify().await;
        }
    }
    assert!(covered.is_all());
}

/// A new store of each kind.
fn kinds() -> Vec<(&'static str, Box<dyn Harness>)> {
    vec![
        ("memory", Box::new(InMemory::default())),
        ("sqlite", Box::new(OnDisk::default())),
        #[cfg(feature = "postgres")]
        ("postgres", Box::new(crate::postgres::OnServer::default())),
        #[cfg(feature = "redis")]
        ("redis", Box::new(crate::redis::OnServer::default())),
        #[cfg(feature = "redis")]
        ("redis-cluster", Box::new(crate::redis::OnServer::on_cluster())),
    ]
}

/// A life in which there is something of everything.
async fn full_life() -> (Bench, Picture) {
    for seed in FULL_LIFE..FULL_LIFE + 1000 {
        let (mut bench, _) = lived(InMemory::default(), seed).await;
        let (mut covered, verdict) = (Covered::default(), sound(bench.close()).await);
        bench.restart().await;
        covered.add(&bench, &verdict).await;
        if covered.is_all() {
            let picture = picture(&bench).await;
            return (bench, picture);
        }
    }
    panic!("no life has something of everything")
}

/// From every kind of store to every kind: all that was there arrives, and shows the same.
#[tokio::test]
async fn every_kind_of_store_is_copied_to_every_kind() {
    let (mut life, expected) = full_life().await;
    let now = life.clock.now();
    let all = sound(life.close()).await.records;
    let mut sources = Vec::new();
    for (kind, harness) in kinds() {
        let mut source = Bench::open_with(harness, OPTIONS).await;
        source.clock.set(now);
        assert_eq!(copied(life.close(), source.close()).await.records, all, "memory to {kind}");
        sources.push((kind, source));
    }
    for (from, source) in &mut sources {
        for (to, harness) in kinds() {
            let mut copy = Bench::open_with(harness, OPTIONS).await;
            copy.clock.set(now);
            assert_eq!(copied(source.close(), copy.close()).await.records, all, "{from} to {to}");
            assert_eq!(sound(copy.close()).await.records, all, "{from} to {to}");
            copy.restart().await;
            expected.assert_same(&picture(&copy).await, format!("{from} to {to}"));
        }
    }
}

#[tokio::test]
async fn a_copy_that_is_stopped_anywhere_goes_on_where_it_was() {
    let source = lived_file(1).await;
    let whole = Folder::new();
    let all = copied(source.place(), whole.place()).await;
    assert!(!all.resumed);
    let mut stops = 0;
    for pages in 1.. {
        let folder = Folder::new();
        match copy_pages(source.place(), folder.place(), pages).await {
            Err(error) => assert_eq!(error, CopyError::Stopped),
            Ok(_) => break,
        }
        stops += 1;
        let shut = StoreError::HalfCopied { path: folder.file().canonicalize().unwrap().display().to_string() };
        assert_eq!(folder.open().err(), Some(shut.clone()));
        assert!(shut.to_string().contains("run the copy again"));
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(START));
        assert!(matches!(SqliteReader::open(folder.file(), clock, OPTIONS), Err(StoreError::HalfCopied { .. })));
        assert_eq!(verify(folder.place()).await, Err(shut));
        let rest = copied(source.place(), folder.place()).await;
        assert_eq!(rest, Copied { resumed: true, ..all.clone() });
        assert_eq!(sound(folder.place()).await.records, all.records);
        folder.open().unwrap();
    }
    assert!(stops >= Kind::ALL.len(), "a copy of {stops} pages");
}

#[tokio::test]
async fn a_source_that_was_worked_on_is_copied_anew() {
    let (source, folder) = (lived_file(2).await, Folder::new());
    assert_eq!(copy_pages(source.place(), folder.place(), 5).await, Err(CopyError::Stopped));
    drop(source.open().unwrap());
    let again = copied(source.place(), folder.place()).await;
    assert!(!again.resumed);
    assert_eq!(sound(folder.place()).await.records, again.records);
    folder.open().unwrap();
}

#[tokio::test]
async fn a_store_that_holds_something_is_not_copied_to() {
    let (source, other) = (lived_file(3).await, lived_file(4).await);
    let before = sound(other.place()).await;
    let refusal = copy_pages(source.place(), other.place(), 100).await.unwrap_err();
    assert!(matches!(refusal, CopyError::NotEmpty { .. }), "{refusal}");
    assert_eq!(sound(other.place()).await, before);
}

#[tokio::test]
async fn nobody_works_on_what_is_copied_or_verified() {
    let (source, folder) = (lived_file(5).await, Folder::new());
    let owner = source.open().unwrap();
    let refusal = copy_pages(source.place(), folder.place(), 1).await.unwrap_err();
    assert!(matches!(refusal, CopyError::Source(StoreError::Owned { .. })), "{refusal}");
    assert!(matches!(verify(source.place()).await, Err(StoreError::Owned { .. })));
    drop(owner);
    sound(source.place()).await;
    let missing = verify(folder.place()).await.unwrap_err();
    assert!(missing.to_string().ends_with("there is no such file"), "{missing}");
}

#[tokio::test]
async fn what_arrived_otherwise_is_named() {
    let source = lived_file(6).await;
    for (sql, words) in [
        ("UPDATE request SET body = X'00' WHERE seq = (SELECT min(seq) FROM request)", "which is changed"),
        ("DELETE FROM request WHERE seq = (SELECT max(seq) FROM request)", "which is missing"),
    ] {
        let folder = Folder::new();
        // All is written, and only the comparison is left.
        let pages = Kind::ALL.len() as u64;
        assert_eq!(copy_pages(source.place(), folder.place(), pages).await, Err(CopyError::Stopped));
        assert_eq!(folder.edit(sql), 1, "{sql}");
        let told = copy_pages(source.place(), folder.place(), 100).await.unwrap_err();
        let CopyError::Differs { differences } = &told else { panic!("{told}") };
        assert!(differences.iter().any(|told| told.starts_with("request") && told.ends_with(words)), "{differences:?}");
        assert!(matches!(folder.open(), Err(StoreError::HalfCopied { .. })));
    }
}

#[tokio::test]
async fn damage_to_a_file_is_named() {
    let garbage = "X'FFFFFFFFFFFFFFFFFFFFFFFFFF'";
    let cases = [
        ("UPDATE fixture SET row = {} WHERE kind = 0", "table fixture cannot be read"),
        ("UPDATE fixture SET name = 'other' WHERE name = 'lane-1' AND kind = 2", "table fixture is of another name"),
        ("UPDATE request SET head = {}", "table request cannot be read"),
        ("UPDATE request SET route = 77", "is on route number 77, which does not exist"),
        ("UPDATE mark SET row = {}", "table request cannot be read"),
        ("UPDATE mark SET seq = seq + 100000", "table mark belongs to no live request"),
        ("UPDATE answer SET head = {}", "table request cannot be read"),
        ("UPDATE answer SET seq = seq + 100000", "table answer belongs to no live request"),
        ("UPDATE parcel SET row = {}", "table parcel cannot be read"),
        ("UPDATE parcel SET nonce = nonce + 1000", "is on a slot that was never given out"),
        ("DELETE FROM parcel", "and no parcel carries it"),
        ("UPDATE groups SET row = {}", "table groups cannot be read"),
        ("UPDATE item SET groups = 77", "is of group number 77, which does not exist"),
        (
            "UPDATE journal SET entries = {} WHERE position = (SELECT min(position) FROM journal)",
            "table journal cannot be read",
        ),
        ("INSERT INTO journal SELECT position + 1000, entries FROM journal ORDER BY position LIMIT 1", "should be"),
        ("UPDATE receipt_block SET data = {}", "receipts cannot be read"),
        ("DELETE FROM receipt_block", "receipts cannot be read"),
        ("UPDATE meta SET value = 1 WHERE key = 'epoch'", "of a start that has not been"),
    ];
    let whole = lived_file(7).await;
    for (sql, words) in cases {
        let folder = Folder::new();
        std::fs::copy(whole.file(), folder.file()).unwrap();
        assert!(folder.edit(&sql.replace("{}", garbage)) > 0, "{sql}: nothing is there to be damaged");
        let verdict = verify(folder.place()).await.unwrap();
        let told: Vec<String> = verdict.faults.iter().map(ToString::to_string).collect();
        assert!(told.iter().any(|told| told.contains(words)), "{sql}: {told:#?}");
    }
}

#[cfg(any(feature = "postgres", feature = "redis"))]
mod on_servers {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use roundtrip::store::Options;
    use roundtrip::store::policy::{Gate, Horizon, RoutePolicy};
    use roundtrip::testkit::samples::{answer, policy, requests};

    use super::*;
    use crate::sharing::HAPPEN_MAX;

    /// How many requests make a copy of many pages.
    const LARGE: u64 = 4000;

    /// Where nothing is yet, on each server.
    fn new_places() -> Vec<String> {
        let url = |harness: &dyn Harness| match harness.place() {
            Some(Place::Url(url)) => url,
            _ => panic!("a store on a server has a URL"),
        };
        vec![
            #[cfg(feature = "postgres")]
            url(&crate::postgres::OnServer::default()),
            #[cfg(feature = "redis")]
            url(&crate::redis::OnServer::default()),
        ]
    }

    async fn start(url: &str) -> Result<(), StoreError> {
        roundtrip::store::open(url, OPTIONS)?.counts().await.map(drop)
    }

    #[tokio::test]
    async fn a_copy_that_is_stopped_anywhere_goes_on_where_it_was() {
        let source = lived_file(8).await;
        let all = sound(source.place()).await.records;
        for pages in 1..=Kind::ALL.len() as u64 {
            for url in new_places() {
                let back = Folder::new();
                assert_eq!(copy_pages(source.place(), &*url, pages).await, Err(CopyError::Stopped));
                assert!(matches!(start(&url).await, Err(StoreError::HalfCopied { .. })));
                assert!(matches!(verify(&*url).await, Err(StoreError::HalfCopied { .. })));
                let rest = copied(source.place(), &*url).await;
                assert_eq!((rest.resumed, &rest.records), (true, &all));
                assert_eq!(sound(&*url).await.records, all);
                assert_eq!(copy_pages(&*url, back.place(), pages).await, Err(CopyError::Stopped));
                let rest = copied(&*url, back.place()).await;
                assert_eq!((rest.resumed, &rest.records), (true, &all));
                start(&url).await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn what_was_half_copied_from_elsewhere_is_copied_anew() {
        let (one, two) = (lived_file(9).await, lived_file(10).await);
        for url in new_places() {
            assert_eq!(copy_pages(one.place(), &*url, 7).await, Err(CopyError::Stopped));
            let again = copied(two.place(), &*url).await;
            assert!(!again.resumed);
            assert_eq!(sound(&*url).await.records, again.records);
            let refusal = copy_pages(one.place(), &*url, 1).await.unwrap_err();
            assert!(matches!(refusal, CopyError::NotEmpty { .. }), "{refusal}");
        }
    }

    /// Another process, as far as the server can tell.
    fn start_elsewhere(url: &str) {
        let url = url.to_owned();
        let process = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(start(&url)).unwrap();
        });
        process.join().unwrap();
    }

    #[tokio::test]
    async fn a_source_that_is_in_use_is_told() {
        let source = lived_file(11).await;
        for url in new_places() {
            copied(source.place(), &*url).await;
            let (folder, used) = (Folder::new(), url.clone());
            let use_it = move |_| {
                start_elsewhere(&used);
                ControlFlow::Continue(())
            };
            let refusal = copy(&*url, folder.place(), use_it).await.unwrap_err();
            assert!(matches!(refusal, CopyError::Moved { .. }), "{refusal}");
            assert!(matches!(folder.open(), Err(StoreError::HalfCopied { .. })));
            assert!(!copied(&*url, folder.place()).await.resumed);
        }
    }

    /// A file whose copy takes many pages.
    async fn large_file() -> Folder {
        let bench = Bench::open_with(InMemory::default(), Options::default()).await;
        let policy = RoutePolicy { destination: None, publish_on: Gate::Seen, horizon: Horizon::Forever, ..policy() };
        bench.define(policy).await;
        for from in (0..LARGE).step_by(500) {
            bench.admit(requests(from..from + 500)).await;
        }
        for _ in (0..LARGE / 2).step_by(500) {
            let grants = bench.lease(500).await;
            bench.batch(grants.iter().map(|grant| answer(grant).into()).collect()).await;
        }
        let (mut bench, folder) = (bench, Folder::new());
        copied(bench.close(), folder.place()).await;
        folder
    }

    /// Runs a process that copies, and kills it after so many pages; whether it came to its end.
    fn copy_elsewhere(from: &str, to: &str, kill_after: usize) -> bool {
        let mut victim =
            Command::new(env!("CARGO_BIN_EXE_victim")).args(["copy", from, to]).stdout(Stdio::piped()).spawn().unwrap();
        let lines: Vec<String> = BufReader::new(victim.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok)
            .enumerate()
            .inspect(|(at, _)| {
                if at + 1 == kill_after {
                    victim.kill().unwrap();
                }
            })
            .map(|(_, line)| line)
            .collect();
        let ended = victim.wait().unwrap();
        assert!(ended.success() || lines.len() >= kill_after, "{ended} after {lines:?}");
        lines.last().is_some_and(|line| line == "copied")
    }

    fn url_of(folder: &Folder) -> String {
        format!("sqlite:{}", folder.file().display())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_copy_whose_process_is_killed_goes_on_where_it_was() {
        let source = large_file().await;
        let (all, from) = (sound(source.place()).await.records, url_of(&source));
        let mut dice = fastrand::Rng::with_seed(7);
        for url in new_places() {
            let mut kills = 0;
            // Killed after the last page, it dies while it compares.
            while !tokio::task::block_in_place(|| copy_elsewhere(&from, &url, dice.usize(1..=4))) {
                kills += 1;
                let shut = start(&url).await;
                if shut.is_ok() {
                    // It was complete before its process could say so.
                    break;
                }
                assert!(matches!(shut, Err(StoreError::HalfCopied { .. })), "{shut:?}");
            }
            assert!(kills >= 3, "killed {kills} times");
            assert_eq!(sound(&*url).await.records, all);
            start(&url).await.unwrap();
        }
    }

    /// Copies again and again until it is done; the server dies on the way, each time at another page.
    async fn copied_while_killed(from: &str, to: &str, kill: impl Fn() + Send + Sync + 'static) -> Vec<(Kind, u64)> {
        let (kill, started) = (Arc::new(kill), std::time::Instant::now());
        for page in [2, 3, 5, 1, usize::MAX] {
            let (kill, mut pages) = (kill.clone(), 0);
            let at_page = move |_| {
                pages += 1;
                if pages == page {
                    kill();
                }
                ControlFlow::Continue(())
            };
            let mut copied = copy(from, to, at_page).await;
            while let Err(error) = &copied {
                assert!(error.is_retryable() && started.elapsed() < HAPPEN_MAX, "{error}");
                if page < usize::MAX {
                    break;
                }
                copied = copy(from, to, |_| ControlFlow::Continue(())).await;
            }
            if let Ok(copied) = copied {
                return copied.records;
            }
        }
        unreachable!("the last copy is repeated until it is done")
    }

    #[cfg(feature = "postgres")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_copy_goes_on_after_its_postgres_server_was_killed() {
        let server = Arc::new(roundtrip::testkit::servers::PostgresServer::start(&[]).unwrap());
        let (source, url, killed) = (large_file().await, server.url("copied"), server.clone());
        let all = sound(source.place()).await.records;
        let kill = move || assert!(killed.kill().is_ok());
        assert_eq!(copied_while_killed(&url_of(&source), &url, kill.clone()).await, all);
        let back = Folder::new();
        assert_eq!(copied_while_killed(&url, &url_of(&back), kill).await, all);
        assert_eq!((sound(back.place()).await.records, sound(&*url).await.records), (all.clone(), all));
    }

    #[cfg(feature = "redis")]
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_copy_goes_on_after_its_redis_server_was_killed() {
        use roundtrip::testkit::servers::RedisServer;
        let server = Arc::new(RedisServer::start(RedisServer::SYNCED).unwrap());
        let (source, url, killed) = (large_file().await, server.url("copied"), server.clone());
        let all = sound(source.place()).await.records;
        let kill = move || assert!(killed.kill().is_ok());
        assert_eq!(copied_while_killed(&url_of(&source), &url, kill.clone()).await, all);
        let back = Folder::new();
        assert_eq!(copied_while_killed(&url, &url_of(&back), kill).await, all);
        assert_eq!((sound(back.place()).await.records, sound(&*url).await.records), (all.clone(), all));
    }

    /// What a person can do with: a place where no store is, and one that holds something else.
    #[tokio::test]
    async fn what_is_no_store_is_not_verified() {
        for url in new_places() {
            let refusal = verify(&*url).await.unwrap_err();
            assert!(matches!(refusal, StoreError::NotAStore { .. }), "{refusal}");
            assert!(refusal.to_string().contains("there is none"), "{refusal}");
        }
    }

    /// What a verdict says.
    pub(super) async fn told(url: &str) -> Vec<String> {
        verify(url).await.unwrap().faults.iter().map(ToString::to_string).collect()
    }

    pub(super) async fn lives() -> Vec<Folder> {
        let mut sources = Vec::new();
        for seed in 0..LIVES {
            sources.push(lived_file(seed).await);
        }
        sources
    }
}

#[cfg(feature = "postgres")]
mod on_postgres {
    use tokio_postgres::NoTls;

    use super::on_servers::{lives, told};
    use super::*;
    use crate::postgres::OnServer;

    /// Changes rows behind the store's back; answers how many.
    async fn edit(url: &str, sql: &str) -> u64 {
        let (server, schema) = url.split_once("?schema=").unwrap();
        let (client, connection) = tokio_postgres::connect(server, NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(&format!("SET search_path TO {schema}")).await.unwrap();
        client.execute(sql, &[]).await.unwrap()
    }

    /// A copy of the first of these in which there is something to be changed so.
    async fn changed(sources: &[Folder], sql: &str) -> String {
        for source in sources {
            let Some(Place::Url(url)) = OnServer::default().place() else { panic!("a store on a server has a URL") };
            copied(source.place(), &*url).await;
            if edit(&url, sql).await > 0 {
                return url;
            }
        }
        panic!("{sql}: nothing is there to be changed");
    }

    #[tokio::test]
    async fn rows_that_say_something_else_than_their_records_are_named() {
        let sources = lives().await;
        for (sql, words) in [
            ("UPDATE live SET turn = NULL WHERE turn IS NOT NULL", "is listed as"),
            ("UPDATE live SET deadline = 7 WHERE deadline IS NOT NULL", "is listed as"),
            ("UPDATE held SET claim = claim + 1", "has a column claim"),
            ("UPDATE held SET lease_until = lease_until + 1", "has a column lease_until"),
            ("UPDATE held SET seq = seq + 100000", "table held belongs to no live request"),
            ("UPDATE queued SET seq = seq + 100000", "table queued belongs to no live request"),
            ("DELETE FROM queued", "may be handed out, and has no row in table queued"),
            ("UPDATE live SET behind = true WHERE state = 0 AND NOT behind", "has a column behind"),
            ("UPDATE live SET record = '\\xff'", "is damaged: a row of live cannot be read"),
            ("DELETE FROM shown", "which has no row in table shown"),
            ("UPDATE shown SET seq = seq + 1000", "which does not show it"),
            ("UPDATE counted SET requests = requests + 1 WHERE requests > 0", "the counts of live requests"),
            ("UPDATE response SET seq = seq + 100000", "table response belongs to no live request"),
            ("INSERT INTO ended SELECT * FROM ended LIMIT 1", "of table ended is there more than once"),
            ("INSERT INTO seen SELECT * FROM seen LIMIT 1", "of table seen is there more than once"),
            ("DELETE FROM parcel", "where no parcel carries it"),
            ("UPDATE numbers SET epoch = 1", "of a start that has not been"),
        ] {
            let url = changed(&sources, sql).await;
            let told = told(&url).await;
            assert!(told.iter().any(|told| told.contains(words)), "{sql}: {told:#?}");
        }
    }
}

#[cfg(feature = "redis")]
mod on_redis {
    use super::on_servers::{lives, told};
    use super::*;
    use crate::redis::OnServer;

    /// Takes away what comes first under a key.
    const TAKE: &str = "if redis.call('TYPE', KEYS[1]).ok == 'zset' then return redis.call('ZREMRANGEBYRANK', KEYS[1], 0, 0) end \
                        return redis.call('HDEL', KEYS[1], redis.call('HKEYS', KEYS[1])[1] or '')";
    /// Adds what belongs to nothing.
    const ADD: &str = "if redis.call('TYPE', KEYS[1]).ok == 'zset' then return redis.call('ZADD', KEYS[1], 0, string.rep('stray', 4)) end \
                       return redis.call('HSET', KEYS[1], string.rep('stray', 4), string.rep('stray', 4))";
    /// Writes something that cannot be read into a value.
    const SPOIL: &str = "local field = redis.call('HKEYS', KEYS[1])[1] \
                         if not field then return 0 end redis.call('HSET', KEYS[1], field, '\\255\\255\\255') return 1";
    /// Moves a row to a field that nobody has.
    const ASTRAY: &str = "local field = redis.call('HKEYS', KEYS[1])[1] if not field then return 0 end \
                          redis.call('HSET', KEYS[1], 'nobody!!', redis.call('HGET', KEYS[1], field)) return redis.call('HDEL', KEYS[1], field)";

    /// Puts something under what is no number of a request.
    const SHORT: &str = "return redis.call('HSET', KEYS[1], 'x', 'y')";
    const HUGE: &str = "return redis.call('HSET', KEYS[1], string.rep('\\255', 8), 'y')";

    /// A copy of the first of these in which a script finds something to change under a key.
    async fn changed(sources: &[Folder], key: &str, script: &str) -> String {
        for source in sources {
            let place = OnServer::default();
            let Some(Place::Url(url)) = place.place() else { panic!("a store on a server has a URL") };
            copied(source.place(), &*url).await;
            if place.has(key) && place.run(key, script) == "1" {
                return url;
            }
        }
        panic!("{key}: {script}: nothing is there to be changed");
    }

    #[tokio::test]
    async fn what_says_something_else_than_its_record_is_named() {
        let mut cases: Vec<(&str, &str, String)> = Vec::new();
        let listed = ["state", "queue", "line", "due", "deadline", "lease", "claim", "dead", "behind", "id", "shown"];
        let others = ["slot", "group_key", "group_of", "group_timer", "group_forget", "item_of"];
        for key in listed.into_iter().chain(others) {
            cases.push((key, TAKE, format!("is not in key {key}, or not as its record says")));
            cases.push((key, ADD, format!("of key {key} belongs to no row of key")));
        }
        for key in ["live", "parcel", "group", "item", "ended", "seen"] {
            cases.push((key, SPOIL, format!("of key {key} is damaged: a row of")));
        }
        for key in ["body", "response", "item_body"] {
            cases.push((key, ASTRAY, format!("of key {key} belongs to no row of key")));
        }
        for stray in [SHORT, HUGE] {
            cases.push(("body", stray, "of key body belongs to no row of key".into()));
        }
        for key in ["ended_at", "seen_at", "seen_below"] {
            cases.push((key, TAKE, format!("is not noted in key {key}, so it is never forgotten")));
        }
        let count =
            "for _, of in ipairs(redis.call('HKEYS', KEYS[1])) do redis.call('HINCRBY', KEYS[1], of, 1) end return 1";
        cases.push(("counted", count, "the counts of live requests tell".into()));
        cases.push((
            "numbers",
            "return redis.call('HSET', KEYS[1], 'epoch', 1) + 1",
            "of a start that has not been".into(),
        ));
        cases.push(("fixture", ASTRAY, "key changed leads to".into()));
        cases.push(("body", TAKE, "has no body".into()));
        let sources = lives().await;
        for (key, script, words) in cases {
            let url = changed(&sources, key, script).await;
            let told = told(&url).await;
            assert!(told.iter().any(|told| told.contains(&words)), "{key}: {script}: no {words:?} in {told:#?}");
        }
    }

    /// What waits is a row of a stream, from the start to its first change. It is copied and checked as all others are.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_kept_as_it_came_is_copied_and_checked() {
        let place = OnServer::default();
        let Some(Place::Url(url)) = place.place() else { panic!("a store on a server has a URL") };
        let (bench, _) = lived(place, FULL_LIFE).await;
        drop(bench);
        let place = OnServer::at(&url);
        let first = place.run("fresh", "return redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1][1]");
        sound(&*url).await;
        let copy = Folder::new();
        copied(&*url, copy.place()).await;
        sound(copy.place()).await;
        place.said("XADD", "fresh", &["99999999-0", "r", "\u{1}"]);
        let faults = told(&url).await;
        assert!(faults.iter().any(|told| told.contains("is damaged: a row of live")), "{faults:#?}");
        place.said("XDEL", "fresh", &["99999999-0"]);
        let faults = told(&url).await;
        assert!(faults.iter().any(|told| told.contains("so it does not take the next")), "{faults:#?}");
        place.said("XSETID", "fresh", &["9999-0"]);
        place.said("HSET", "numbers", &["seq", "10000"]);
        assert_eq!(place.said("XDEL", "fresh", &[&first]), "1");
        // It has changed since: its row is elsewhere, and its body was here alone.
        let faults = told(&url).await;
        assert!(faults.iter().any(|told| told.contains("has no body")), "{faults:#?}");
    }
}
