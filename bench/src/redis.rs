//! Lifecycles on a Redis server of the run's own, every write synced, beside the leanest
//! script that somebody would write by hand for the same three durable steps: admit, lease,
//! answer.
//!
//! The script by hand keeps as many in flight, in three batches: one call completes the
//! first, claims the second and enqueues the third.

use redis::Script;
use redis::aio::MultiplexedConnection;
use roundtrip::store::op::{Answer, Define, Effect, Grant, Lease, Op, Outcome};
use roundtrip::store::policy::{Gate, Horizon, Retention, RoutePolicy};
use roundtrip::store::projection::{Form, ListEnd, ListForm, MapForm, Projection, Template};
use roundtrip::store::{Batched, Options, ReadExt, RedisStore, Store, StoreExt};
use roundtrip::testkit::servers::RedisServer;
use roundtrip::words::{ClaimId, WorkerName};

use crate::Scale;
use crate::lifecycle::{PAYLOAD_BYTES, id, request, route, run, runtime};
use crate::report::{Report, cpu_seconds, median};
use crate::servers::{self, IN_FLIGHT, Measured};

/// Live requests by which memory is measured.
const LIVE: usize = 100_000;
/// In how many parts growth is measured.
const PARTS: u64 = 5;
/// How long a lease lasts, where what a run left is taken over.
const LEASE_MS: u64 = 2_000;
/// How many entries the journal has, where growth is measured: few, so that it is full early.
const JOURNAL: u64 = 10_000;

type Failure = Box<dyn std::error::Error>;

const FLOOR: &str = include_str!("redis_floor.lua");

/// Every write is synced. The log is written anew between runs and not by itself in the middle of one, which takes a
/// processor and would hide how long it became.
fn start() -> Result<RedisServer, Failure> {
    Ok(RedisServer::start(&format!("{} --auto-aof-rewrite-percentage 0", RedisServer::SYNCED))?)
}

async fn connect(server: &RedisServer) -> Result<MultiplexedConnection, Failure> {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(server.url("").replace("?name=", ""))?;
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

/// A number that the server tells of itself.
async fn told(server: &RedisServer, section: &str, name: &str) -> Result<f64, Failure> {
    let info: String = redis::cmd("INFO").arg(section).query_async(&mut connect(server).await?).await?;
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.ok_or("the server does not tell")?.trim().parse()?)
}

/// What a dashboard may read: what is asked, by id; where it is; and what happened last.
fn projections() -> Result<Vec<Projection>, Failure> {
    let text = Template::new;
    let map = |value| Ok::<_, Failure>(Form::Map(MapForm { field: text("{id}")?, value: text(value)? }));
    let news = ListForm { value: text("{id} {state}")?, max: 1000, end: ListEnd::Right };
    let of = |key: &str, form: Form| Ok::<_, Failure>(Projection::new(route(), text(key)?, form));
    Ok(vec![of("requests", map("{request}")?)?, of("states", map("{state}")?)?, of("news", Form::List(news))?])
}

async fn open(server: &RedisServer, name: &str) -> Result<Batched<RedisStore>, Failure> {
    open_showing(server, name, Vec::new()).await
}

async fn open_showing(
    server: &RedisServer,
    name: &str,
    projections: Vec<Projection>,
) -> Result<Batched<RedisStore>, Failure> {
    let store = RedisStore::new(&server.url(name), Options::default())?.with_projections(projections)?;
    let store = Batched::new(store);
    let policy = RoutePolicy { publish_on: Gate::Seen, capacity: 10_000_000, ..RoutePolicy::default() };
    store.apply_one(Define { route: route(), policy }).await?;
    Ok(store)
}

/// What a run took: processor time of the server and of this process, and bytes of the server's log.
struct Toll {
    seconds: f64,
    own: f64,
    bytes: f64,
}

impl Toll {
    async fn so_far(server: &RedisServer) -> Result<Toll, Failure> {
        let seconds = told(server, "cpu", "used_cpu_user").await? + told(server, "cpu", "used_cpu_sys").await?;
        Ok(Toll { seconds, own: cpu_seconds(), bytes: told(server, "persistence", "aof_current_size").await? })
    }

    /// How many bytes each lifecycle took since.
    async fn since(self, server: &RedisServer, what: &str, count: u64) -> Result<f64, Failure> {
        let now = Toll::so_far(server).await?;
        let each = |now: f64, before: f64| (now - before) * 1e6 / count as f64;
        let (server, own) = (each(now.seconds, self.seconds), each(now.own, self.own));
        eprintln!("  {what}: {server:.1} us of the server's processor time each, {own:.1} of the client's");
        Ok((now.bytes - self.bytes) / count as f64)
    }
}

async fn ours(server: &RedisServer, in_flight: usize, count: u64) -> Result<Measured, Failure> {
    let store = open(server, "ours").await?;
    let before = Toll::so_far(server).await?;
    let rate = run(store.clone(), &[], 0, in_flight, count).await?;
    let each = before.since(server, "ours", count).await?;
    store.close().await?;
    empty(server).await?;
    Ok((rate, each))
}

/// Forgets everything, and what is logged of it.
async fn empty(server: &RedisServer) -> Result<(), Failure> {
    let mut connection = connect(server).await?;
    () = redis::cmd("FLUSHALL").query_async(&mut connection).await?;
    // The server may be at it by itself, since its log grew.
    rewritten(server).await?;
    () = redis::cmd("BGREWRITEAOF").query_async(&mut connection).await?;
    rewritten(server).await
}

/// Waits until the server's log is not being written anew.
async fn rewritten(server: &RedisServer) -> Result<(), Failure> {
    while told(server, "persistence", "aof_rewrite_in_progress").await?
        + told(server, "persistence", "aof_rewrite_scheduled").await?
        > 0.0
    {
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// The script by hand.
struct Floor {
    name: &'static str,
    connection: MultiplexedConnection,
    script: Script,
    next: u64,
    token: u64,
}

impl Floor {
    async fn new(server: &RedisServer, name: &'static str) -> Result<Floor, Failure> {
        Ok(Floor { name, connection: connect(server).await?, script: Script::new(FLOOR), next: 0, token: 0 })
    }

    /// One call: completes these, claims and enqueues so many; answers what it claimed.
    async fn tick(&mut self, done: &[Vec<u8>], claim: usize, enqueue: usize) -> Result<Vec<Vec<u8>>, Failure> {
        let mut call = self.script.prepare_invoke();
        for key in ["job", "queue", "lease", "receipt"] {
            call.key(format!("{{{}}}:{key}", self.name));
        }
        let now = u64::try_from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis())?;
        call.arg(self.token).arg(self.token + 1).arg(done.len()).arg(claim).arg(now).arg(now + LEASE_MS);
        for id in done {
            call.arg(id);
        }
        for n in self.next..self.next + enqueue as u64 {
            call.arg(&id(n).0[..]).arg(request(n).payload.bytes.as_ref());
        }
        let claimed: Vec<Vec<u8>> = call.invoke_async(&mut self.connection).await?;
        self.next += enqueue as u64;
        self.token += 1;
        // Every other one is a payload.
        let claimed: Vec<_> = claimed.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].len())).collect();
        assert!(claimed.iter().all(|(_, length)| *length == PAYLOAD_BYTES));
        Ok(claimed.into_iter().map(|(id, _)| id).collect())
    }

    async fn run(&mut self, in_flight: usize, count: u64) -> Result<f64, Failure> {
        let started = std::time::Instant::now();
        let (mut ended, mut claimed) = (0, Vec::new());
        while ended < count {
            ended += claimed.len() as u64;
            if in_flight < 3 {
                self.tick(&claimed, 0, 0).await?;
                self.tick(&[], 0, in_flight).await?;
                claimed = self.tick(&[], in_flight, 0).await?;
            } else {
                claimed = self.tick(&claimed, in_flight / 3, in_flight / 3).await?;
            }
        }
        Ok(ended as f64 / started.elapsed().as_secs_f64())
    }
}

async fn floor(server: &RedisServer, in_flight: usize, count: u64) -> Result<Measured, Failure> {
    let mut floor = Floor::new(server, "floor").await?;
    let before = Toll::so_far(server).await?;
    let rate = floor.run(in_flight, count).await?;
    let each = before.since(server, "by hand", count).await?;
    empty(server).await?;
    Ok((rate, each))
}

/// How much memory a live request takes beside its payload, and a receipt.
async fn memory(server: &RedisServer) -> Result<(f64, f64), Failure> {
    let store = open(server, "memory").await?;
    let before = told(server, "memory", "used_memory_dataset").await?;
    servers::admit(&store, LIVE).await?;
    let live = told(server, "memory", "used_memory_dataset").await?;
    let each = (live - before) / LIVE as f64 - PAYLOAD_BYTES as f64;
    run(store.clone(), &[], LIVE as u64, IN_FLIGHT, LIVE as u64).await?;
    // As many live as before, and a receipt for each that ended.
    let receipt = (told(server, "memory", "used_memory_dataset").await? - live) / LIVE as f64;
    store.close().await?;
    empty(server).await?;
    Ok((each, receipt))
}

/// Ours beside the floor.
pub(crate) fn beside_floor(report: &mut Report, scale: Scale, in_flights: &[usize]) -> Result<(), Failure> {
    report.store = "redis";
    let server = start()?;
    let ours = |in_flight, count| runtime()?.block_on(ours(&server, in_flight, count));
    let floor = |in_flight, count| runtime()?.block_on(floor(&server, in_flight, count));
    servers::beside_floor(report, scale, in_flights, "hand-written script", ours, floor)?;
    report.store = "sqlite";
    Ok(())
}

/// Whole lifecycles, each sent over a lane and settled there.
pub(crate) fn beside_unsent(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    report.store = "redis";
    let server = start()?;
    let sent = |count| {
        runtime()?.block_on(async {
            let store = Batched::new(RedisStore::new(&server.url("sent"), Options::default())?);
            let rate = servers::sent(&store, count).await?;
            empty(&server).await?;
            Ok(rate)
        })
    };
    servers::beside_unsent(report, scale, sent, |count| runtime()?.block_on(ours(&server, IN_FLIGHT, count)))?;
    report.store = "sqlite";
    Ok(())
}

/// Speed with and without projections, each in turn.
pub(crate) fn beside_unshown(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    report.store = "redis";
    let server = start()?;
    let count = (scale.lifecycles * 64) as u64;
    let rate = async |projections: Vec<Projection>| {
        let store = open_showing(&server, "shown", projections).await?;
        let rate = run(store.clone(), &[], 0, IN_FLIGHT, count).await?;
        store.close().await?;
        empty(&server).await?;
        Ok::<f64, Failure>(rate)
    };
    let (mut shown, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        shown.push(runtime()?.block_on(rate(projections()?))?);
        plain.push(runtime()?.block_on(rate(Vec::new()))?);
    }
    let bench = "redis, two maps and a list shown".to_owned();
    report.speed(bench, median(shown), "nothing shown".to_owned(), median(plain), "lifecycles/s");
    report.store = "sqlite";
    Ok(())
}

/// Memory for each live request.
pub(crate) fn weights(report: &mut Report) -> Result<(), Failure> {
    report.store = "redis";
    let server = start()?;
    let (live, receipt) = runtime()?.block_on(memory(&server))?;
    let beside = "its payload".to_owned();
    report.cost("redis, memory of a live request less its payload".into(), live, beside, PAYLOAD_BYTES as f64, "bytes");
    let beside = "its payload".to_owned();
    report.cost("redis, memory of a receipt with its journal".into(), receipt, beside, PAYLOAD_BYTES as f64, "bytes");
    report.store = "sqlite";
    Ok(())
}

/// Requests that go through, end, and are forgotten as upkeep forgets: how much memory is in use, and how many keys
/// there are, after each part of them.
async fn go_through(server: &RedisServer, count: u64) -> Result<Vec<(f64, u64)>, Failure> {
    let options = Options { journal_entries: JOURNAL, ..Options::default() };
    let store = Batched::new(RedisStore::new(&server.url("growth"), options)?);
    let retention = Retention { settled_ms: 0, failed_ms: 0, withdrawn_ms: 0 };
    let policy = RoutePolicy {
        publish_on: Gate::Seen,
        horizon: Horizon::UntilSettled,
        retention,
        lease_ms: LEASE_MS,
        crashes_max: u16::MAX,
        capacity: 10_000_000,
        ..RoutePolicy::default()
    };
    store.apply_one(Define { route: route(), policy }).await?;
    let mut measured = Vec::new();
    for part in 0..PARTS {
        let (first, done) = (part * count / PARTS, std::sync::atomic::AtomicBool::new(false));
        let going = async {
            let rate = run(store.clone(), &[], first, IN_FLIGHT, count / PARTS).await;
            done.store(true, std::sync::atomic::Ordering::SeqCst);
            rate
        };
        let (rate, forgotten) = tokio::try_join!(going, servers::prune(&store, &done))?;
        drain(&store).await?;
        let keys: u64 = redis::cmd("DBSIZE").query_async(&mut connect(server).await?).await?;
        let megabytes = told(server, "memory", "used_memory_dataset").await? / 1_048_576.0;
        let ended = (part + 1) * count / PARTS;
        eprintln!("  after {ended}: {megabytes:.1} MB, {keys} keys, {rate:.0}/s, {forgotten} receipts forgotten");
        measured.push((megabytes, keys));
    }
    store.close().await?;
    Ok(measured)
}

/// Ends what the run before left in flight, as other workers would, and forgets it.
async fn drain(store: &impl Store) -> Result<(), Failure> {
    for claim in 0.. {
        store.apply_one(Op::Rescue { limit: 1000 }).await?;
        let (worker, claim) = (WorkerName::new("drain")?, ClaimId(u64::MAX - claim));
        let lease = Lease { route: route(), worker, max: 1000, claim, lease_ms: None };
        let Outcome::Applied(Effect::Leased(grants)) = store.apply_one(lease).await? else { continue };
        let answer = |grant: Grant| {
            let (id, token, response) = (grant.id, grant.token, grant.payload);
            Op::Answer(Answer { id, token, response, follow_ups: Vec::new(), items: Vec::new() })
        };
        if grants.is_empty() && store.counts().await?.is_empty() {
            break;
        }
        store.apply(grants.into_iter().map(answer).collect()).await?;
    }
    servers::prune(store, &std::sync::atomic::AtomicBool::new(true)).await.map(drop)
}

/// Whether anything grows while everything ends and is forgotten.
pub(crate) fn growth(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    report.store = "redis";
    let server = start()?;
    let count = scale.backlog as u64;
    let measured = runtime()?.block_on(go_through(&server, count))?;
    if let [(first, first_keys), .., (last, last_keys)] = measured[..] {
        let (bench, beside) = (format!("redis, after {count} requests"), format!("after {}", count / PARTS));
        report.cost(format!("{bench}, memory"), last, beside.clone(), first, "MB");
        report.cost(format!("{bench}, keys"), last_keys as f64, beside, first_keys as f64, "keys");
    }
    report.store = "sqlite";
    Ok(())
}

/// What a store does that several processes share.
pub(crate) fn shared(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    report.store = "redis";
    let server = start()?;
    runtime()?.block_on(servers::shared(report, scale, async |name| open(&server, name).await))?;
    report.store = "sqlite";
    Ok(())
}

/// Speed with a small and a large backlog.
pub(crate) fn flatness(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    report.store = "redis";
    let server = start()?;
    let filled = async |name, backlog| {
        let store = open(&server, name).await?;
        servers::admit(&store, backlog).await?;
        Ok(store)
    };
    let ours = async |store: &Batched<RedisStore>, in_flight, first, count| {
        let before = Toll::so_far(&server).await?;
        let rate = run(store.clone(), &[], first, in_flight, count).await?;
        before.since(&server, "ours", count).await?;
        Ok(rate)
    };
    runtime()?.block_on(servers::flatness(report, scale, filled, ours))?;
    runtime()?.block_on(floor_flatness(report, &server, scale))?;
    report.store = "sqlite";
    Ok(())
}

/// The same for the script by hand: what a long queue costs on such a server whatever is built on it.
async fn floor_flatness(report: &mut Report, server: &RedisServer, scale: Scale) -> Result<(), Failure> {
    empty(server).await?;
    let filled = async |name, backlog: usize| {
        let mut floor = Floor::new(server, name).await?;
        for first in (0..backlog).step_by(1000) {
            floor.tick(&[], 0, 1000.min(backlog - first)).await?;
        }
        Ok::<Floor, Failure>(floor)
    };
    let (mut large, mut small) = (filled("large", scale.backlog).await?, filled("small", servers::SMALL).await?);
    for in_flight in servers::IN_FLIGHTS {
        let count = (scale.lifecycles * in_flight.min(32)) as u64;
        let (mut of_large, mut of_small) = (Vec::new(), Vec::new());
        for _ in 0..2 * scale.rounds {
            of_large.push(large.run(in_flight, count).await?);
            of_small.push(small.run(in_flight, count).await?);
        }
        servers::report_flatness(report, scale, in_flight, " by hand", (of_large, of_small));
    }
    empty(server).await
}
