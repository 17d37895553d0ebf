//! Roundtrip beside its floors, in one run: ratios, because these machines are noisy.
//!
//! Writes `bench/results/latest.json`, a list of rows, and prints the same as a table;
//! a run of one part only prints it.
//! `--quick` takes fewer rounds, `--only=NAME` one part, `--soak` the large store instead.

mod backlog;
#[cfg(feature = "chains")]
mod evm;
mod floor;
mod lifecycle;
#[cfg(feature = "chains")]
mod listening;
mod postgres;
#[cfg(feature = "program")]
mod program;
mod redis;
mod report;
mod servers;
mod soak;
mod stations;
mod trace;
mod wake;

use report::Report;

/// How much of everything a run does.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// Lifecycles measured at 1 in flight; more in flight, more of them.
    pub(crate) lifecycles: usize,
    /// Live requests of the large backlog.
    pub(crate) backlog: usize,
    /// How often each pair of runs is repeated; the median counts.
    pub(crate) rounds: usize,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, path] = args.as_slice()
        && flag == "--reopen"
    {
        return soak::reopen(std::path::Path::new(path));
    }
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let mut report = Report::default();
    if has("--soak") {
        let part = if has("--quick") { 20 } else { 1 };
        let size = soak::Size { receipts: 10_000_000 / part, live: 1_000_000 / part };
        soak::compare(&mut report, size)?;
        report.write("bench/results/soak.json")?;
        report.print();
        return Ok(());
    }
    let quick = has("--quick");
    let scale = if quick {
        Scale { lifecycles: 500, backlog: 100_000, rounds: 1 }
    } else {
        Scale { lifecycles: 2_000, backlog: 1_000_000, rounds: 3 }
    };
    let only = args.iter().find_map(|arg| arg.strip_prefix("--only="));
    let wanted = |name: &str| only.is_none_or(|only| only == name);
    for in_flight in [1, 128, 1024].into_iter().filter(|n| wanted(&n.to_string())) {
        lifecycle::beside_floor(&mut report, in_flight, scale)?;
    }
    if wanted("backlog") {
        backlog::flatness(&mut report, scale)?;
    }
    if wanted("stations") {
        stations::beside_bare(&mut report, scale)?;
    }
    #[cfg(feature = "chains")]
    if wanted("evm") {
        evm::beside_bare_loop(&mut report, scale).map_err(|error| error as Box<dyn std::error::Error>)?;
    }
    #[cfg(feature = "chains")]
    if wanted("listening") {
        listening::beside_bare_loop(&mut report, scale).map_err(|error| error as Box<dyn std::error::Error>)?;
    }
    #[cfg(feature = "program")]
    if wanted("program") {
        program::beside_the_library(&mut report, scale)?;
    }
    let on_postgres = |n: &usize| wanted("postgres") || wanted(&format!("postgres-{n}"));
    let in_flights: Vec<usize> = servers::IN_FLIGHTS.into_iter().filter(on_postgres).collect();
    if !in_flights.is_empty() {
        postgres::beside_floor(&mut report, scale, &in_flights)?;
    }
    if wanted("postgres-shared") {
        postgres::shared(&mut report, scale)?;
    }
    if wanted("postgres-sent") {
        postgres::beside_unsent(&mut report, scale)?;
    }
    if wanted("postgres-backlog") {
        postgres::flatness(&mut report, scale)?;
    }
    let on_redis = |n: &usize| wanted("redis") || wanted(&format!("redis-{n}"));
    let in_flights: Vec<usize> = servers::IN_FLIGHTS.into_iter().filter(on_redis).collect();
    if !in_flights.is_empty() {
        redis::beside_floor(&mut report, scale, &in_flights)?;
    }
    if wanted("redis-shared") {
        redis::shared(&mut report, scale)?;
    }
    if wanted("redis-sent") {
        redis::beside_unsent(&mut report, scale)?;
    }
    if wanted("redis-projections") {
        redis::beside_unshown(&mut report, scale)?;
    }
    if wanted("redis-memory") {
        redis::weights(&mut report)?;
    }
    if wanted("redis-backlog") {
        redis::flatness(&mut report, scale)?;
    }
    if wanted("wake") {
        wake::across_processes(&mut report, scale)?;
    }
    // Minutes long, so only if asked for.
    if only == Some("redis-growth") {
        redis::growth(&mut report, scale)?;
    }
    if only == Some("bloat") {
        postgres::bloat(&mut report, scale)?;
    }
    if only == Some("receipts") {
        postgres::receipts(&mut report, scale)?;
    }
    if only.is_none() {
        report.write("bench/results/latest.json")?;
    }
    report.print();
    Ok(())
}
