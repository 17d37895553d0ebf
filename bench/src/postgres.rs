//! Lifecycles on a Postgres server of the run's own, beside the leanest loop that somebody
//! would write by hand for the same three durable steps: admit, lease, answer.
//!
//! The loop by hand keeps as many in flight, in three batches: one transaction, pipelined,
//! completes the first, claims the second and enqueues the third.

use std::sync::atomic::{AtomicBool, Ordering};

use roundtrip::store::op::Define;
use roundtrip::store::policy::{Gate, Horizon, Retention, RoutePolicy};
use roundtrip::store::{Batched, Options, PostgresStore, Store, StoreExt};
use roundtrip::testkit::servers::PostgresServer;
use tokio_postgres::{Client, NoTls, Statement};

use crate::Scale;
use crate::lifecycle::{id, request, route, run, runtime};
use crate::report::Report;
use crate::servers::{self, IN_FLIGHT, Measured};

/// How many entries the journal has, where growth is measured: few, so that it is full early.
const JOURNAL: u64 = 10_000;

/// As docs/stores.md says to set it for a million live requests. Whoever works by hand has the same server.
const SIZED: [&str; 3] = ["shared_buffers=2GB", "max_wal_size=8GB", "wal_compression=lz4"];

type Failure = Box<dyn std::error::Error>;

const FLOOR: &str = "
CREATE TABLE job (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id bytea NOT NULL UNIQUE, token bigint,
                  until bigint, payload bytea NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX job_queued ON job (seq) WHERE token IS NULL;
CREATE TABLE receipt (id bytea PRIMARY KEY, ended_at bigint NOT NULL)";
const ENQUEUE: &str = "
INSERT INTO job (id, payload) SELECT n.id, n.payload FROM unnest($1::bytea[], $2::bytea[]) n(id, payload)
WHERE NOT EXISTS (SELECT FROM receipt r WHERE r.id = n.id) ON CONFLICT DO NOTHING";
const CLAIM: &str = "
WITH first AS MATERIALIZED (
    SELECT seq FROM job WHERE token IS NULL ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED)
UPDATE job j SET token = $2, until = $3 FROM first f WHERE j.seq = f.seq RETURNING j.seq, j.payload";
const COMPLETE: &str = "
WITH done AS (
    DELETE FROM job j USING unnest($1::bigint[]) d(seq) WHERE j.seq = d.seq AND j.token = $2 RETURNING j.id)
INSERT INTO receipt SELECT id, $3 FROM done";

async fn connect(url: &str) -> Result<Client, Failure> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// How much the server has logged so far, in bytes.
async fn logged(client: &Client) -> Result<f64, Failure> {
    let row = client.query_one("SELECT (pg_current_wal_lsn() - '0/0')::float8", &[]).await?;
    Ok(row.get(0))
}

/// One store in a schema of its own.
async fn open(server: &PostgresServer, schema: &str) -> Result<Batched<PostgresStore>, Failure> {
    let store = Batched::new(PostgresStore::new(&server.url(schema), Options::default())?);
    let policy = RoutePolicy { publish_on: Gate::Seen, capacity: 10_000_000, ..RoutePolicy::default() };
    store.apply_one(Define { route: route(), policy }).await?;
    Ok(store)
}

async fn ours(server: &PostgresServer, in_flight: usize, count: u64) -> Result<Measured, Failure> {
    let watch = connect(&server.url("").replace("?schema=", "")).await?;
    let schema = format!("ours_{in_flight}");
    let store = open(server, &schema).await?;
    watch.batch_execute("CHECKPOINT").await?;
    let before = logged(&watch).await?;
    let rate = run(store.clone(), &[], 0, in_flight, count).await?;
    let each = (logged(&watch).await? - before) / count as f64;
    store.close().await?;
    watch.batch_execute(&format!("DROP SCHEMA {schema} CASCADE; CHECKPOINT")).await?;
    Ok((rate, each))
}

/// The loop by hand.
struct Floor {
    client: Client,
    enqueue: Statement,
    claim: Statement,
    complete: Statement,
    next: u64,
    token: i64,
}

impl Floor {
    async fn open(url: &str) -> Result<Floor, Failure> {
        let client = connect(url).await?;
        client.batch_execute(FLOOR).await?;
        // By indexes, as ours: a table that was empty when it was last looked at is not scanned.
        client.batch_execute("SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off").await?;
        let (enqueue, claim, complete) =
            (client.prepare(ENQUEUE).await?, client.prepare(CLAIM).await?, client.prepare(COMPLETE).await?);
        Ok(Floor { client, enqueue, claim, complete, next: 0, token: 0 })
    }

    /// One transaction: completes these, claims and enqueues so many; answers what it claimed.
    async fn tick(&mut self, done: Vec<i64>, claim: usize, enqueue: usize) -> Result<Vec<i64>, Failure> {
        let requests: Vec<_> = (0..enqueue as u64).map(|n| (id(self.next + n), request(self.next + n))).collect();
        let ids: Vec<&[u8]> = requests.iter().map(|(id, _)| &id.0[..]).collect();
        let payloads: Vec<&[u8]> = requests.iter().map(|(_, request)| request.payload.bytes.as_ref()).collect();
        let (claim, before, token, until) = (i64::try_from(claim)?, self.token, self.token + 1, 1_i64);
        let client = &self.client;
        let (_, _, claimed, _, _) = tokio::try_join!(
            client.batch_execute("BEGIN"),
            async {
                if done.is_empty() { Ok(0) } else { client.execute(&self.complete, &[&done, &before, &until]).await }
            },
            async {
                if claim == 0 { Ok(Vec::new()) } else { client.query(&self.claim, &[&claim, &token, &until]).await }
            },
            async { if ids.is_empty() { Ok(0) } else { client.execute(&self.enqueue, &[&ids, &payloads]).await } },
            client.batch_execute("COMMIT"),
        )?;
        self.next += enqueue as u64;
        self.token = token;
        Ok(claimed.iter().map(|row| row.get(0)).collect())
    }

    async fn run(&mut self, in_flight: usize, count: u64) -> Result<f64, Failure> {
        let started = std::time::Instant::now();
        let (mut ended, mut claimed) = (0, Vec::new());
        while ended < count {
            ended += claimed.len() as u64;
            if in_flight < 3 {
                self.tick(claimed, 0, 0).await?;
                self.tick(Vec::new(), 0, in_flight).await?;
                claimed = self.tick(Vec::new(), in_flight, 0).await?;
            } else {
                claimed = self.tick(claimed, in_flight / 3, in_flight / 3).await?;
            }
        }
        Ok(ended as f64 / started.elapsed().as_secs_f64())
    }
}

async fn floor(server: &PostgresServer, in_flight: usize, count: u64) -> Result<Measured, Failure> {
    let url = server.url("").replace("?schema=", "");
    let mut floor = Floor::open(&url).await?;
    let before = logged(&floor.client).await?;
    let rate = floor.run(in_flight, count).await?;
    let each = (logged(&floor.client).await? - before) / count as f64;
    floor.client.batch_execute("DROP TABLE job, receipt; CHECKPOINT").await?;
    Ok((rate, each))
}

/// Ours beside the floor.
pub(crate) fn beside_floor(report: &mut Report, scale: Scale, in_flights: &[usize]) -> Result<(), Failure> {
    report.store = "postgres";
    let server = PostgresServer::start(&SIZED)?;
    let ours = |in_flight, count| runtime()?.block_on(ours(&server, in_flight, count));
    let floor = |in_flight, count| runtime()?.block_on(floor(&server, in_flight, count));
    servers::beside_floor(report, scale, in_flights, "hand-written loop", ours, floor)?;
    report.store = "sqlite";
    Ok(())
}

/// Whole lifecycles, each sent over a lane and settled there.
pub(crate) fn beside_unsent(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    report.store = "postgres";
    let server = PostgresServer::start(&SIZED)?;
    let sent = |count| {
        runtime()?.block_on(async {
            let store = Batched::new(PostgresStore::new(&server.url("sent"), Options::default())?);
            let rate = servers::sent(&store, count).await?;
            let watch = connect(&server.url("").replace("?schema=", "")).await?;
            watch.batch_execute("DROP SCHEMA sent CASCADE; CHECKPOINT").await?;
            Ok(rate)
        })
    };
    servers::beside_unsent(report, scale, sent, |count| runtime()?.block_on(ours(&server, IN_FLIGHT, count)))?;
    report.store = "sqlite";
    Ok(())
}

/// What a store does that several processes share.
pub(crate) fn shared(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    report.store = "postgres";
    let server = PostgresServer::start(&SIZED)?;
    runtime()?.block_on(servers::shared(report, scale, async |name| open(&server, name).await))?;
    report.store = "sqlite";
    Ok(())
}

/// Speed with a small and a large backlog.
pub(crate) fn flatness(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    report.store = "postgres";
    let server = PostgresServer::start(&SIZED)?;
    let filled = async |schema, backlog| {
        let store = open(&server, schema).await?;
        servers::admit(&store, backlog).await?;
        // What the filling left to write is not what is measured.
        connect(&server.url("").replace("?schema=", "")).await?.batch_execute("CHECKPOINT").await?;
        Ok(store)
    };
    let ours = async |store: &Batched<PostgresStore>, in_flight, first, count| {
        run(store.clone(), &[], first, in_flight, count).await
    };
    runtime()?.block_on(servers::flatness(report, scale, filled, ours))?;
    report.store = "sqlite";
    Ok(())
}

/// What a run leaves behind in a schema: dead rows, and megabytes.
async fn left(watch: &Client, schema: &str) -> Result<(f64, f64), Failure> {
    let sizes = "
        SELECT coalesce(sum(n_dead_tup), 0)::float8, coalesce(sum(pg_total_relation_size(relid)), 0)::float8 / 1048576
        FROM pg_stat_user_tables WHERE schemaname = $1";
    let row = watch.query_one(sizes, &[&schema]).await?;
    Ok((row.get(0), row.get(1)))
}

/// Lifecycles, and upkeep that forgets what they leave; answers their rate.
async fn and_forgotten(store: &Batched<PostgresStore>, first: u64, count: u64) -> Result<f64, Failure> {
    let done = AtomicBool::new(false);
    let going = async {
        let rate = run(store.clone(), &[], first, IN_FLIGHT, count).await;
        done.store(true, Ordering::SeqCst);
        rate
    };
    let (rate, _) = tokio::try_join!(going, servers::prune(store, &done))?;
    Ok(rate)
}

/// Lifecycles while somebody else's snapshot keeps the server from clearing up, or not; and as many again after it.
async fn under_snapshot(server: &PostgresServer, held: bool, count: u64) -> Result<(f64, f64), Failure> {
    let url = server.url("").replace("?schema=", "");
    let (watch, other) = (connect(&url).await?, connect(&url).await?);
    let schema = if held { "held" } else { "free" };
    let options = Options { journal_entries: JOURNAL, ..Options::default() };
    let store = Batched::new(PostgresStore::new(&server.url(schema), options)?);
    let policy = RoutePolicy {
        publish_on: Gate::Seen,
        horizon: Horizon::UntilSettled,
        retention: Retention { settled_ms: 0, failed_ms: 0, withdrawn_ms: 0 },
        capacity: 10_000_000,
        ..RoutePolicy::default()
    };
    store.apply_one(Define { route: route(), policy }).await?;
    if held {
        other.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class").await?;
    }
    let rate = and_forgotten(&store, 0, count).await?;
    let (dead, megabytes) = left(&watch, schema).await?;
    eprintln!("  snapshot {schema}: {rate:.0}/s, {dead:.0} dead rows, {megabytes:.0} MB after {count} lifecycles");
    if held {
        other.batch_execute("COMMIT").await?;
    }
    for time in 1..=2 {
        let rate = and_forgotten(&store, time * count, count).await?;
        let (dead, megabytes) = left(&watch, schema).await?;
        eprintln!("  as many again: {rate:.0}/s, {dead:.0} dead rows, {megabytes:.0} MB");
    }
    store.close().await?;
    watch.batch_execute(&format!("DROP SCHEMA {schema} CASCADE; CHECKPOINT")).await?;
    Ok((rate, megabytes))
}

/// What a snapshot costs that is held all the while, as by a report or a backup.
pub(crate) fn bloat(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    report.store = "postgres";
    let server = PostgresServer::start(&SIZED)?;
    let count = scale.backlog as u64;
    let (held, held_size) = runtime()?.block_on(under_snapshot(&server, true, count))?;
    let (free, free_size) = runtime()?.block_on(under_snapshot(&server, false, count))?;
    let bench = format!("postgres, a snapshot held for {count} lifecycles");
    report.speed(bench.clone(), held, "none held".into(), free, "lifecycles/s");
    report.cost(format!("{bench}, size"), held_size, "none held".into(), free_size, "MB");
    report.store = "sqlite";
    Ok(())
}

/// Among how many partitions receipts are shared out, where they are.
const PARTITIONS: u64 = 8;
/// How many receipts one transaction looks for, puts and forgets.
const RECEIPTS: u64 = 500;
const LOOK_FOR: &str = "SELECT count(*) FROM unnest($1::bytea[]) n(id) JOIN kept USING (id)";
const KEEP: &str = "INSERT INTO kept (id, until, record)
    SELECT id, $2, '\\x00112233445566778899'::bytea FROM unnest($1::bytea[]) n(id)";
const FORGET: &str = "DELETE FROM kept WHERE until < $1";

/// How receipts are forgotten.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forgetting {
    /// One table, from which upkeep deletes.
    Deleted,
    /// A partition for each span of time, of which the oldest is dropped.
    Dropped,
}

/// A table of receipts, each of a transaction's at one time.
struct Receipts {
    client: Client,
    look_for: Statement,
    keep: Statement,
    forgetting: Forgetting,
    /// How many transactions' worth are kept.
    kept: u64,
}

impl Receipts {
    async fn open(url: &str, forgetting: Forgetting, kept: u64) -> Result<Receipts, Failure> {
        let client = connect(url).await?;
        let partitioned = if forgetting == Forgetting::Dropped { "PARTITION BY RANGE (until)" } else { "" };
        let table = format!(
            "CREATE TABLE kept (id bytea NOT NULL, until bigint NOT NULL, record bytea NOT NULL) {partitioned};
             CREATE INDEX ON kept USING hash (id); CREATE INDEX ON kept (until);
             SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"
        );
        client.batch_execute(&table).await?;
        let (look_for, keep) = (client.prepare(LOOK_FOR).await?, client.prepare(KEEP).await?);
        Ok(Receipts { client, look_for, keep, forgetting, kept })
    }

    /// Looks for as many as it puts, and forgets as many of the oldest.
    async fn tick(&self, time: u64) -> Result<(), Failure> {
        let ids: Vec<_> = (time * RECEIPTS..(time + 1) * RECEIPTS).map(id).collect();
        let ids: Vec<&[u8]> = ids.iter().map(|id| &id.0[..]).collect();
        let (client, now, oldest) =
            (&self.client, i64::try_from(time)?, i64::try_from(time.saturating_sub(self.kept))?);
        self.turn_over(time).await?;
        let (_, known, _, _, _) = tokio::try_join!(
            client.batch_execute("BEGIN"),
            async { client.query_one(&self.look_for, &[&ids]).await },
            async { client.execute(&self.keep, &[&ids, &now]).await },
            async {
                if self.forgetting == Forgetting::Dropped { Ok(0) } else { client.execute(FORGET, &[&oldest]).await }
            },
            client.batch_execute("COMMIT"),
        )?;
        assert_eq!(known.get::<_, i64>(0), 0, "all are new");
        Ok(())
    }

    /// Makes the partition that begins at this time, and drops the one that is over.
    async fn turn_over(&self, time: u64) -> Result<(), Failure> {
        let span = self.kept / PARTITIONS;
        if self.forgetting == Forgetting::Deleted || !time.is_multiple_of(span) {
            return Ok(());
        }
        let (no, end) = (time / span, time + span);
        let new = format!("CREATE TABLE kept_{no} PARTITION OF kept FOR VALUES FROM ({time}) TO ({end})");
        self.client.batch_execute(&new).await?;
        if let Some(over) = no.checked_sub(PARTITIONS + 1) {
            self.client.batch_execute(&format!("DROP TABLE kept_{over}")).await?;
        }
        Ok(())
    }
}

/// Fills a table of receipts, and then keeps as many, for as long again; answers how many a second.
async fn keep_receipts(server: &PostgresServer, forgetting: Forgetting, receipts: u64) -> Result<f64, Failure> {
    let kept = receipts / RECEIPTS;
    let table = Receipts::open(&server.url("").replace("?schema=", ""), forgetting, kept).await?;
    for time in 0..kept {
        table.tick(time).await?;
    }
    table.client.batch_execute("CHECKPOINT").await?;
    let started = std::time::Instant::now();
    for time in kept..2 * kept {
        table.tick(time).await?;
    }
    let rate = receipts as f64 / started.elapsed().as_secs_f64();
    table.client.batch_execute("DROP TABLE kept; CHECKPOINT").await?;
    Ok(rate)
}

/// What receipts cost in one table, from which they are deleted, beside partitions that are dropped.
pub(crate) fn receipts(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    report.store = "postgres";
    let server = PostgresServer::start(&SIZED)?;
    let rate = |forgetting| runtime()?.block_on(keep_receipts(&server, forgetting, scale.backlog as u64));
    let (deleted, dropped) = (rate(Forgetting::Deleted)?, rate(Forgetting::Dropped)?);
    let (bench, beside) = (format!("postgres, {} receipts, deleted", scale.backlog), "dropped by partition".to_owned());
    report.speed(bench, deleted, beside, dropped, "receipts/s");
    report.store = "sqlite";
    Ok(())
}
