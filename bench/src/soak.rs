//! Ten million receipts and a million live requests: reopening, memory, dedup look-ups
//! and page reads, each beside the same on a small store. A step that scanned
//! everything would show as a ratio of thousands.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use roundtrip::clock::SystemClock;
use roundtrip::store::op::{Admit, Answer, Define, Effect, Grant, Lease, Op, Outcome};
use roundtrip::store::policy::{Horizon, RoutePolicy};
use roundtrip::store::query::ListFilter;
use roundtrip::store::{Options, ReadExt, SqliteStore, Store, StoreError, StoreExt};
use roundtrip::words::{ClaimId, Seq, WorkerName};

use crate::backlog::resident_mb;
use crate::lifecycle::{id, request, route};
use crate::report::Report;

type Failure = Box<dyn std::error::Error>;

const HANDFUL: u64 = 1000;
/// How often each read or look-up is done.
const SAMPLES: u64 = 2000;
/// How often each store is measured.
const ROUNDS: u64 = 5;
/// How many of them at once.
const AT_ONCE: usize = 100;

/// How large a store is.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) receipts: u64,
    pub(crate) live: u64,
}

const SMALL: Size = Size { receipts: 10_000, live: 1_000 };

/// What one of each costs, in microseconds.
#[derive(Default)]
struct Costs {
    known: f64,
    new: f64,
    get: f64,
    page: f64,
    timeline: f64,
    counts: f64,
}

fn open(path: &Path) -> Result<Arc<SqliteStore>, Failure> {
    Ok(Arc::new(SqliteStore::open(path, Arc::new(SystemClock::new()), Options::default())?))
}

async fn admit(store: impl Store, numbers: std::ops::Range<u64>) -> Result<Outcome, StoreError> {
    let requests = numbers.map(request).collect();
    store.apply_one(Admit { cursor: None, requests }).await
}

/// Fills a store: first what ends as receipts, then what stays.
async fn fill(store: &Arc<SqliteStore>, size: Size) -> Result<(), Failure> {
    let policy = RoutePolicy { horizon: Horizon::Forever, capacity: 100_000_000, ..RoutePolicy::default() };
    store.apply_one(Define { route: route(), policy }).await?;
    let answer = |grant: Grant| {
        let (id, token, response) = (grant.id, grant.token, grant.payload);
        Op::Answer(Answer { id, token, response, follow_ups: Vec::new(), items: Vec::new() })
    };
    for first in (0..size.receipts).step_by(usize::try_from(HANDFUL)?) {
        admit(store.clone(), first..first + HANDFUL).await?;
        let (claim, worker) = (ClaimId(first), WorkerName::new("soak")?);
        let lease = Lease { route: route(), worker, max: usize::try_from(HANDFUL)?, claim, lease_ms: None };
        let Outcome::Applied(Effect::Leased(grants)) = store.apply_one(lease).await? else {
            return Err("nothing was leased".into());
        };
        store.apply(grants.into_iter().map(answer).collect()).await?;
    }
    for first in (0..size.live).step_by(usize::try_from(HANDFUL)?) {
        admit(store.clone(), size.receipts + first..size.receipts + first + HANDFUL).await?;
    }
    Ok(())
}

/// Does something so many times, a handful at once: what one costs, and not what it
/// takes to wake a thread for it. Answers microseconds for one.
async fn each<T, F>(count: u64, with: impl Fn(u64) -> F) -> Result<f64, Failure>
where
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
    T: Send + 'static,
{
    let started = Instant::now();
    for first in (0..count).step_by(AT_ONCE) {
        let mut handful: tokio::task::JoinSet<_> = (first..count.min(first + AT_ONCE as u64)).map(&with).collect();
        while let Some(done) = handful.join_next().await {
            done??;
        }
    }
    Ok(started.elapsed().as_secs_f64() * 1e6 / count as f64)
}

async fn measure(store: Arc<SqliteStore>, size: Size, round: u64) -> Result<Costs, Failure> {
    // Spread over all receipts, so that nothing is near what was just read.
    let old = |n: u64| ((round * SAMPLES + n) * 7_919_993) % size.receipts;
    let all = size.receipts + size.live + round * SAMPLES / 50 * HANDFUL;
    let on = |store: &Arc<SqliteStore>| store.clone();
    let known = each(SAMPLES, |n| admit(on(&store), old(n)..old(n) + 1)).await?;
    // Known or new, the commit is the same; what differs is the look-up of a key that is nowhere.
    let new = |n: u64| admit(on(&store), all + n * HANDFUL..all + n * HANDFUL + HANDFUL);
    let new = each(SAMPLES / 50, new).await? / HANDFUL as f64;
    let get = |n: u64| {
        let (store, id) = (on(&store), id(old(n)));
        async move { store.get(id).await }
    };
    let get = each(SAMPLES, get).await?;
    let page = |n: u64| {
        let after = Some(Seq(size.receipts + (n * 104_729) % size.live));
        let (store, filter) = (on(&store), ListFilter { after, limit: 100, ..ListFilter::default() });
        async move { store.list(filter).await }
    };
    let page = each(SAMPLES, page).await?;
    let timeline = |n: u64| {
        let (store, id) = (on(&store), id(size.receipts + size.live - 1 - n % 1000));
        async move { store.timeline(id).await }
    };
    let timeline = each(SAMPLES, timeline).await?;
    let counts = |_| {
        let store = on(&store);
        async move { store.counts().await }
    };
    let counts = each(SAMPLES, counts).await?;
    Ok(Costs { known, new, get, page, timeline, counts })
}

/// What a process of its own says of opening the store.
pub(crate) fn reopened(path: &Path) -> Result<(f64, f64), Failure> {
    let output = Command::new(std::env::current_exe()?).arg("--reopen").arg(path).output()?;
    let text = String::from_utf8(output.stdout)?;
    let (seconds, mb) = text.trim().split_once(' ').ok_or("no figures")?;
    Ok((seconds.parse()?, mb.parse()?))
}

/// Opens a store and prints how long that took and how much memory it takes.
pub(crate) fn reopen(path: &Path) -> Result<(), Failure> {
    let started = Instant::now();
    let store = open(path)?;
    println!("{} {}", started.elapsed().as_secs_f64(), resident_mb()?);
    drop(store);
    Ok(())
}

/// A store of this size, and what opening it takes.
fn filled(folder: &Path, size: Size) -> Result<(Arc<SqliteStore>, f64, f64), Failure> {
    let path = folder.join(format!("{}.db", size.receipts));
    runtime()?.block_on(async {
        let started = Instant::now();
        fill(&open(&path)?, size).await?;
        eprintln!("  filled with {} receipts, {} live in {:.0?}", size.receipts, size.live, started.elapsed());
        Ok::<_, Failure>(())
    })?;
    let (seconds, mb) = reopened(&path)?;
    Ok((open(&path)?, seconds, mb))
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

impl Costs {
    fn add(&mut self, other: &Costs) {
        let share = 1.0 / ROUNDS as f64;
        self.known += other.known * share;
        self.new += other.new * share;
        self.get += other.get * share;
        self.page += other.page * share;
        self.timeline += other.timeline * share;
        self.counts += other.counts * share;
    }
}

/// The large store beside the small one, in turns, so that both meet the same weather.
pub(crate) fn compare(report: &mut Report, size: Size) -> Result<(), Failure> {
    let folder = tempfile::tempdir_in(".")?;
    let (small_store, ..) = filled(folder.path(), SMALL)?;
    let (large_store, seconds, mb) = filled(folder.path(), size)?;
    let (mut small, mut large) = (Costs::default(), Costs::default());
    let runtime = runtime()?;
    for round in 0..ROUNDS {
        small.add(&runtime.block_on(measure(small_store.clone(), SMALL, round))?);
        large.add(&runtime.block_on(measure(large_store.clone(), size, round))?);
    }
    let beside = format!("{} receipts, {} live", SMALL.receipts, SMALL.live);
    let mut row = |what: &str, ours: f64, theirs: f64| {
        let bench = format!("{what}, {} receipts, {} live", size.receipts, size.live);
        report.cost(bench, ours, beside.clone(), theirs, "us");
    };
    row("admit, known occurrence", large.known, small.known);
    row("admit, new, in handfuls", large.new, small.new);
    row("get, ended", large.get, small.get);
    row("page of 100", large.page, small.page);
    row("timeline", large.timeline, small.timeline);
    row("counts", large.counts, small.counts);
    let scaled = size.live as f64 / 1e6;
    report.cost("reopen".into(), seconds, "3 s for 10^6 live".into(), 3.0 * scaled, "s");
    report.cost("resident memory after reopening".into(), mb, "300 MB for 10^6 live".into(), 300.0 * scaled, "MB");
    Ok(())
}
