//! What the server does for each statement of the Postgres store, when there is much in it: no statement
//! reads more rows for there being more, whatever the server believes of its tables.
//!
//! The server itself tells of every statement that it has carried out, with the plan by which it did and how
//! many rows each step went through. The statements are those of a life of random operations and of every
//! read, on a store in which much waits and much has ended.

use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom};

use roundtrip::store::op::{Admit, Lease, NewRequest, Op};
use roundtrip::store::policy::{Gate, Horizon, RoutePolicy};
use roundtrip::store::query::ListFilter;
use roundtrip::store::{Options, ReadExt};
use roundtrip::testkit::bench::{Bench, InMemory};
use roundtrip::testkit::picture::Picture;
use roundtrip::testkit::samples::{answer, fail, id, lease, policy, request, route_named};
use roundtrip::testkit::servers::PostgresServer;
use roundtrip::words::{ClaimId, ErrorClass, RouteName};
use serde_json::Value;
use tokio_postgres::NoTls;

use crate::postgres::OnServer;
use crate::random::{Life, sights};

/// How many requests wait; and as many more have ended.
const BACKLOG: u64 = 20_000;
/// How many are admitted at a time.
const AT_ONCE: u64 = 500;
/// How many rows one step of a statement may go through: more than any batch of these has to do with, and far
/// fewer than there are.
const ROWS_MAX: u64 = 2_500;
/// How many batches of random operations each time.
const BATCHES: usize = 60;
/// How many different statements must have been seen, of about as many that there are.
const STATEMENTS_MIN: usize = 55;
/// The first of the requests that only wait.
const FIRST: u64 = 1_000_000;

/// What makes the server tell of every plan.
const TELLING: [&str; 8] = [
    "shared_preload_libraries=auto_explain",
    "auto_explain.log_min_duration=0",
    "auto_explain.log_analyze=on",
    "auto_explain.log_timing=off",
    "auto_explain.log_format=json",
    "log_line_prefix=",
    "autovacuum=off",
    "allow_system_table_mods=on",
];

fn waiting() -> RouteName {
    route_named("waiting")
}

fn waits(n: u64) -> NewRequest {
    NewRequest { route: waiting(), ..request(n) }
}

/// A store in which much waits and much has ended.
async fn loaded() -> Bench {
    let bench = Bench::open_with(InMemory::default(), OPTIONS).await;
    let policy = RoutePolicy {
        destination: None,
        publish_on: Gate::Seen,
        work_on: Gate::Seen,
        horizon: Horizon::Forever,
        capacity: 4 * BACKLOG,
        ..policy()
    };
    bench.applied(roundtrip::store::op::Define { route: waiting(), policy }).await;
    for from in (FIRST..FIRST + 2 * BACKLOG).step_by(usize::try_from(AT_ONCE).unwrap()) {
        bench.admit((from..from + AT_ONCE).map(waits).collect()).await;
        if from < FIRST + BACKLOG {
            work(&bench, from, usize::try_from(AT_ONCE).unwrap()).await;
        }
    }
    bench
}

/// The journal is full, and has more rows than a step may go through.
const OPTIONS: Options = Options { journal_entries: 30 * ROWS_MAX, spill_receipts: 1 << 14, lease_write_ms: 20 };

/// Takes some of those that wait, and answers them.
async fn work(bench: &Bench, claim: u64, count: usize) {
    let taken = Lease { route: waiting(), claim: ClaimId(claim), ..lease(count) };
    let roundtrip::store::op::Effect::Leased(grants) = bench.applied(taken).await else { panic!("a lease is granted") };
    assert_eq!(grants.len(), count);
    bench.batch(grants.iter().map(|grant| answer(grant).into()).collect()).await;
}

/// Everything that goes on in a store, on one in which there is much.
async fn go_on(bench: &Bench, life: &mut Life, time: u64) {
    life.go_on(&[bench], BATCHES).await;
    Picture::of(&**bench.store(), &sights()).await;
    work(bench, time, 50).await;
    let taken = Lease { route: waiting(), claim: ClaimId(time + 1), ..lease(3) };
    let roundtrip::store::op::Effect::Leased(grants) = bench.applied(taken).await else { panic!("a lease is granted") };
    bench.applied(fail(&grants[0], ErrorClass::Retryable)).await;
    bench.applied(fail(&grants[1], ErrorClass::Fatal)).await;
    let new = FIRST + 10 * BACKLOG + 100 * time;
    bench.admit((new..new + 50).chain(FIRST..FIRST + 50).map(waits).collect()).await;
    for op in [Op::Rescue { limit: 100 }, Op::Expire { limit: 100 }, Op::Fire { limit: 100 }] {
        bench.applied(op).await;
    }
    let store = bench.store();
    store.counts().await.unwrap();
    for n in [FIRST, FIRST + BACKLOG, FIRST + 2 * BACKLOG - 1] {
        store.get(id(n)).await.unwrap();
        store.timeline(id(n)).await.unwrap();
    }
    let page = store.list(ListFilter { route: Some(waiting()), limit: 100, ..ListFilter::default() }).await.unwrap();
    let after = page.requests.last().map(|request| request.seq);
    store.list(ListFilter { after, limit: 100, ..ListFilter::default() }).await.unwrap();
    bench.batch(vec![Op::Admit(Admit { cursor: None, requests: vec![waits(new)] })]).await;
}

/// A statement, and what is wrong with how it was carried out.
fn faults(told: &str) -> (BTreeSet<String>, Vec<String>) {
    let (mut statements, mut faults) = (BTreeSet::new(), Vec::new());
    for part in told.split("LOG:  duration:").skip(1) {
        let plan: String = part.lines().skip(1).take_while(|line| line.starts_with('\t')).collect();
        let plan: Value = serde_json::from_str(&plan).unwrap_or_else(|error| panic!("{error}: {part}"));
        let statement = plan["Query Text"].as_str().unwrap_or_default().to_owned();
        look_at(&plan["Plan"], &mut |wrong| faults.push(format!("{wrong}: {statement}")));
        statements.insert(statement);
    }
    (statements, faults)
}

fn look_at(step: &Value, tell: &mut dyn FnMut(String)) {
    let number = |name: &str| step[name].as_f64().unwrap_or(0.0);
    let rows = number("Actual Rows") + number("Rows Removed by Filter") + number("Rows Removed by Index Recheck");
    let (kind, table) = (step["Node Type"].as_str().unwrap_or_default(), step["Relation Name"].as_str().unwrap_or(""));
    let rows = rows * number("Actual Loops");
    if rows > ROWS_MAX as f64 {
        tell(format!("{kind} of {table} goes through {rows} rows"));
    }
    if kind == "Seq Scan" && !["numbers", "migration", "counted", "pace", "fixture"].contains(&table) {
        tell(format!("{kind} of {table}"));
    }
    for below in step["Plans"].as_array().into_iter().flatten() {
        look_at(below, tell);
    }
}

#[tokio::test]
async fn no_statement_reads_more_for_there_being_more() {
    let settings: Vec<&str> = TELLING.into_iter().chain([PostgresServer::UNSYNCED]).collect();
    let server = PostgresServer::start(&settings).unwrap();
    let url = server.url("plans");
    let mut bench = Bench::open_with(OnServer::at(url.clone()), OPTIONS).await;
    let (client, connection) = tokio_postgres::connect(url.split_once('?').unwrap().0, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("SET search_path TO plans; ANALYZE").await.unwrap();
    let mut source = loaded().await;
    crate::archive::copied(source.close(), bench.close()).await;
    bench.clock.set(source.now());
    bench.restart().await;
    let mut life = Life::begin(&bench, 1).await;
    let beliefs = [
        ("that all is empty, as it once was", "SELECT 1"),
        ("nothing", "DELETE FROM pg_statistic; UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE relkind = 'r'"),
        ("what is true", "ANALYZE"),
    ];
    let (mut log, mut statements) = (std::fs::File::open(server.log()).unwrap(), BTreeSet::new());
    for (time, (belief, sql)) in (1..).zip(beliefs) {
        client.batch_execute(sql).await.unwrap();
        bench.restart().await;
        log.seek(SeekFrom::End(0)).unwrap();
        go_on(&bench, &mut life, 1000 * time).await;
        let mut told = String::new();
        log.read_to_string(&mut told).unwrap();
        let (seen, faults) = faults(&told);
        assert!(faults.is_empty(), "while the server believes {belief}: {faults:#?}");
        statements.extend(seen);
    }
    assert!(statements.len() >= STATEMENTS_MIN, "only {} statements", statements.len());
}
