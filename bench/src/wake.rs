//! How long it takes until a worker of another process has what was admitted, while nothing else goes on.
//!
//! Two handles with connections of their own are two processes, as far as a server can tell: what the one
//! admits the other learns of by a hint through the server, and leases.

use std::time::{Duration, Instant};

use roundtrip::store::op::{Admit, Define, Effect, Lease, Outcome};
use roundtrip::store::policy::{Gate, RoutePolicy};
use roundtrip::store::{Options, PostgresStore, RedisStore, Store, StoreExt, Topic};
use roundtrip::testkit::servers::{PostgresServer, RedisServer};
use roundtrip::words::{ClaimId, WorkerName};
use tokio::sync::mpsc;

use crate::Scale;
use crate::lifecycle::{request, route, runtime};
use crate::report::{Report, median};

/// How long nothing goes on between two requests.
const IDLE: Duration = Duration::from_millis(7);
/// What is wanted.
const WANTED_MS: f64 = 5.0;
/// How long a hint may take before it counts as lost.
const LOST: Duration = Duration::from_secs(5);

type Failure = Box<dyn std::error::Error>;

/// Leases whatever it is told of, and tells when it had it.
async fn lease(store: &dyn Store, had: mpsc::UnboundedSender<Instant>) -> Result<(), Failure> {
    let mut changes = store.changes(Topic::Inbox(route()));
    for claim in 1.. {
        changes.hinted().await;
        let worker = WorkerName::new("worker")?;
        let lease = Lease { route: route(), worker, max: 1, claim: ClaimId(claim), lease_ms: None };
        if let Outcome::Applied(Effect::Leased(grants)) = store.apply_one(lease).await?
            && !grants.is_empty()
        {
            had.send(Instant::now())?;
        }
    }
    Ok(())
}

/// Milliseconds from the call that admits to the grant in another process's hand, for so many requests.
async fn waits(one: &dyn Store, other: &dyn Store, count: u64) -> Result<Vec<f64>, Failure> {
    let policy = RoutePolicy { publish_on: Gate::Seen, capacity: 10_000_000, ..RoutePolicy::default() };
    one.apply_one(Define { route: route(), policy }).await?;
    let (had, mut taken) = mpsc::unbounded_channel::<Instant>();
    let admit = async {
        let mut waits = Vec::new();
        for n in 0..count {
            tokio::time::sleep(IDLE).await;
            let begun = Instant::now();
            one.apply_one(Admit { cursor: None, requests: vec![request(n)] }).await?;
            let had = tokio::time::timeout(LOST, taken.recv()).await?.ok_or("the other process ended")?;
            waits.push(had.duration_since(begun).as_secs_f64() * 1000.0);
        }
        Ok::<_, Failure>(waits)
    };
    tokio::select! {
        waits = admit => waits,
        ended = lease(other, had) => Err(ended.err().unwrap_or_else(|| "nothing is leased any more".into())),
    }
}

fn rows(report: &mut Report, store: &'static str, mut waits: Vec<f64>) {
    waits.sort_by(f64::total_cmp);
    let slow = waits[waits.len() * 99 / 100];
    let bench = format!("{store}, admit to lease in another process, idle");
    report.store = store;
    report.cost(format!("{bench}, median"), median(waits), "wanted".into(), WANTED_MS, "ms");
    report.cost(format!("{bench}, 99 of 100"), slow, "wanted".into(), WANTED_MS, "ms");
    report.store = "sqlite";
}

/// Both servers, every write synced.
pub(crate) fn across_processes(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    let count = scale.lifecycles as u64;
    let server = PostgresServer::start(&[])?;
    let open = || PostgresStore::new(&server.url("wake"), Options::default());
    let on_postgres = runtime()?.block_on(async { waits(&open()?, &open()?, count).await })?;
    rows(report, "postgres", on_postgres);
    let server = RedisServer::start(RedisServer::SYNCED)?;
    let open = || RedisStore::new(&server.url("wake"), Options::default());
    let on_redis = runtime()?.block_on(async { waits(&open()?, &open()?, count).await })?;
    rows(report, "redis", on_redis);
    Ok(())
}
