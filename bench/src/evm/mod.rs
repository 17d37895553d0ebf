//! Transactions over 4 and 16 lanes: the sender on each store, beside a bare loop on alloy that signs
//! and sends the same calls to the same node and stores nothing.
//!
//! ```text
//!   ours:   ready answers in the store ──▶ sign ──▶ store ──▶ send ──▶ look ──▶ Confirmed, stored
//!   theirs: a list in memory ──▶ sign ──▶ send ──▶ the account's count at the same depth
//! ```
//!
//! Each run has an Anvil of its own, on whose board everything was asked before the clock
//! starts. Whether all of it was answered is asked of the board after the clock stopped.

mod bare;
mod ours;
mod site;
mod small;

use std::sync::Arc;
use std::time::Duration;

use roundtrip::store::{Options, Store, open};
use roundtrip::testkit::servers::{PostgresServer, RedisServer};
use site::{Cost, Site};

use crate::Scale;
use crate::report::{Report, median};

/// Accounts that share the sending.
const LANES: [usize; 2] = [4, 16];
/// Enough for every answer.
const GAS: u64 = 150_000;
/// So many blocks, its own counted, make a transaction confirmed.
const CONFIRMATIONS: u64 = 2;
/// How often each side looks at the chain.
const POLL: Duration = Duration::from_millis(100);
/// No run takes this long.
const RUN_WITHIN: Duration = Duration::from_secs(120);
/// How many answers are timed one by one.
const TIMED: u64 = 200;
/// How many are signed one after the other.
const SIGNED: u64 = 1000;
const STORES: [&str; 3] = ["sqlite", "postgres", "redis"];

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Where stores are made, each of them once.
struct Homes {
    folder: tempfile::TempDir,
    postgres: PostgresServer,
    redis: RedisServer,
    made: u64,
}

impl Homes {
    fn new() -> Result<Homes, Failure> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        Ok(Homes {
            folder: tempfile::tempdir_in(".")?,
            postgres: PostgresServer::start(&[]).map_err(|error| failed(&error))?,
            redis: RedisServer::start(RedisServer::SYNCED).map_err(|error| failed(&error))?,
            made: 0,
        })
    }

    fn url(&mut self, store: &str) -> String {
        self.made += 1;
        let name = format!("evm_{}", self.made);
        match store {
            "postgres" => self.postgres.url(&name),
            "redis" => self.redis.url(&name),
            _ => format!("sqlite:{}", self.folder.path().join(name).display()),
        }
    }
}

/// Runs something on so many threads, with a node of its own; not for ever.
fn on_a_site<T, F>(threads: usize, count: u64, lanes: usize, run: impl FnOnce(Arc<Site>) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(async {
        let site = Arc::new(Site::ready(count, lanes).await?);
        tokio::time::timeout(RUN_WITHIN, run(site)).await?
    })
}

/// What a run came to, in transactions per second.
#[derive(Default)]
struct Rates {
    accepted: Vec<f64>,
    confirmed: Vec<f64>,
}

impl Rates {
    fn push(&mut self, by: &str, count: u64, cost: &Cost) {
        let each_us = |seconds: f64| seconds * 1e6 / count as f64;
        let (accepted, confirmed) = (count as f64 / cost.accepted, count as f64 / cost.seconds);
        let (here_us, node_us) = (each_us(cost.here), each_us(cost.node));
        eprintln!(
            "  {by}: {accepted:.0}/s accepted, {confirmed:.0}/s confirmed, {here_us:.0} us of processor time each, and {node_us:.0} us in the node"
        );
        self.accepted.push(accepted);
        self.confirmed.push(confirmed);
    }
}

fn send_by_bare_loop(count: u64, lanes: usize) -> Result<Cost, Failure> {
    on_a_site(2, count, lanes, async |site| {
        let cost = bare::send_all(&site).await?;
        site.check().await?;
        Ok(cost)
    })
}

fn send_by_sender(url: &str, count: u64, lanes: usize) -> Result<Cost, Failure> {
    on_a_site(2, count, lanes, async |site| {
        let cost = ours::send_all(&site, open(url, Options::default())?).await?;
        site.check().await?;
        Ok(cost)
    })
}

/// All in turn, so that all meet the same weather.
fn rates(report: &mut Report, homes: &mut Homes, scale: Scale, lanes: usize) -> Result<(), Failure> {
    let count = 8 * scale.lifecycles as u64;
    let mut theirs = Rates::default();
    let mut ours = STORES.map(|store| (store, Rates::default()));
    for _ in 0..scale.rounds {
        theirs.push("bare loop", count, &send_by_bare_loop(count, lanes)?);
        for (store, rates) in &mut ours {
            rates.push(store, count, &send_by_sender(&homes.url(store), count, lanes)?);
        }
    }
    let beside = || "bare alloy loop".to_owned();
    let (accepted, confirmed) = (median(theirs.accepted), median(theirs.confirmed));
    for (store, rates) in ours {
        report.store = store;
        let bench = |what: &str| format!("{what} transactions, {lanes} lanes, {store}");
        report.speed(bench("accepted"), median(rates.accepted), beside(), accepted, "tx/s");
        report.speed(bench("confirmed"), median(rates.confirmed), beside(), confirmed, "tx/s");
    }
    Ok(())
}

/// The value below which so many percent lie.
fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * percent / 100).min(values.len() - 1)]
}

fn waits(report: &mut Report, homes: &mut Homes) -> Result<(), Failure> {
    for store in STORES {
        report.store = store;
        let url = homes.url(store);
        let timed = async |site: Arc<Site>| {
            let store: Arc<dyn Store> = open(&url, Options::default())?;
            small::answer_to_broadcast(&site, store).await
        };
        let mut waits = on_a_site(2, TIMED, LANES[0], timed)?;
        for (what, percent) in [("median", 50), ("p99", 99)] {
            let (ours, commit) = (percentile(&mut waits.to_broadcast, percent), percentile(&mut waits.commit, percent));
            report.cost(format!("answer to broadcast, {what}, {store}"), ours, "one commit".into(), commit, "us");
        }
    }
    Ok(())
}

/// Everything about sending.
pub(crate) fn beside_bare_loop(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    let mut homes = Homes::new()?;
    for lanes in LANES {
        rates(report, &mut homes, scale, lanes)?;
    }
    report.store = STORES[0];
    let url = homes.url(STORES[0]);
    let (ours, theirs) = on_a_site(1, SIGNED, 1, async |site| {
        let store: Arc<dyn Store> = open(&url, Options::default())?;
        let signed = small::signatures(&site, &*store).await?;
        store.close().await?;
        Ok(signed)
    })?;
    report.speed("signing, one processor".into(), ours, "bare alloy signing".into(), theirs, "signatures/s");
    waits(report, &mut homes)?;
    report.store = STORES[0];
    Ok(())
}
