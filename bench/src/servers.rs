//! What the benches of all stores on servers share: the rows, given how to run ours and the floor.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use roundtrip::store::op::{Admit, Effect, Outcome, Prune};
use roundtrip::store::{Batched, Store, StoreExt};

use crate::Scale;
use crate::lifecycle::{prepare, request, run};
use crate::report::{Report, median};

/// How many are in flight, in runs beside the floor.
pub(crate) const IN_FLIGHTS: [usize; 3] = [1, 128, IN_FLIGHT];
/// How many are in flight in all other runs.
pub(crate) const IN_FLIGHT: usize = 1024;
/// How many processes share a store, where they do.
const PROCESSES: usize = 4;
/// Live requests of the small backlog.
pub(crate) const SMALL: usize = 1_000;

type Failure = Box<dyn std::error::Error>;

/// A rate, and how much was logged for each lifecycle.
pub(crate) type Measured = (f64, f64);

/// Ours and the floor, each in turn, so that both meet the same weather. Both are told how many
/// are in flight, and how many lifecycles to run.
pub(crate) fn beside_floor(
    report: &mut Report,
    scale: Scale,
    in_flights: &[usize],
    by_hand: &str,
    ours: impl Fn(usize, u64) -> Result<Measured, Failure>,
    floor: impl Fn(usize, u64) -> Result<Measured, Failure>,
) -> Result<(), Failure> {
    for &in_flight in in_flights {
        let count = (scale.lifecycles * in_flight.min(64)) as u64;
        let (mut rates, mut floors, mut bytes, mut floor_bytes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..scale.rounds {
            let (rate, each) = ours(in_flight, count)?;
            let (floor_rate, floor_each) = floor(in_flight, count)?;
            eprintln!(
                "  {in_flight} in flight: {rate:.0}/s, {each:.0} bytes; floor {floor_rate:.0}/s, {floor_each:.0}"
            );
            rates.push(rate);
            floors.push(floor_rate);
            bytes.push(each);
            floor_bytes.push(floor_each);
        }
        let bench = format!("{}, {in_flight} in flight", report.store);
        report.speed(bench.clone(), median(rates), by_hand.into(), median(floors), "lifecycles/s");
        report.cost(format!("{bench}, log"), median(bytes), by_hand.into(), median(floor_bytes), "bytes/lifecycle");
    }
    Ok(())
}

/// The rate of lifecycles that are each sent over one of four lanes and settled there.
pub(crate) async fn sent<S: Store + 'static>(store: &Batched<S>, count: u64) -> Result<f64, Failure> {
    let lanes = prepare(store).await?;
    let rate = run(store.clone(), &lanes, 0, IN_FLIGHT, count).await?;
    store.close().await?;
    Ok(rate)
}

/// Lifecycles with and without a lane that sends and settles each, in turn.
pub(crate) fn beside_unsent(
    report: &mut Report,
    scale: Scale,
    sent: impl Fn(u64) -> Result<f64, Failure>,
    ours: impl Fn(u64) -> Result<Measured, Failure>,
) -> Result<(), Failure> {
    let count = (scale.lifecycles * 64) as u64;
    let (mut rates, mut unsent) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        rates.push(sent(count)?);
        unsent.push(ours(count)?.0);
    }
    let bench = format!("{}, assigned to four lanes and settled", report.store);
    report.speed(bench, median(rates), "ended by the answer".into(), median(unsent), "lifecycles/s");
    Ok(())
}

/// Lifecycles by several processes that share one store, beside one that is alone, with as many in flight together. Handles
/// with connections of their own are processes, as far as a server can tell; ours opens one on the store of this name.
pub(crate) async fn shared<S: Store + 'static>(
    report: &mut Report,
    scale: Scale,
    open: impl AsyncFn(&'static str) -> Result<Batched<S>, Failure>,
) -> Result<(), Failure> {
    let count = (scale.lifecycles * 16) as u64;
    let all = async |name, processes: usize, round: u64| {
        let mut stores = Vec::new();
        for _ in 0..processes {
            stores.push(open(name).await?);
        }
        let (in_flight, share) = (IN_FLIGHT / processes, count / processes as u64);
        // What is in flight when a run ends was admitted, too.
        let first = |n| (round * PROCESSES as u64 + n as u64) * (count + 2 * IN_FLIGHT as u64);
        let started = Instant::now();
        let runs = stores.iter().enumerate().map(|(n, store)| run(store.clone(), &[], first(n), in_flight, share));
        futures_util::future::try_join_all(runs).await?;
        let rate = (share * processes as u64) as f64 / started.elapsed().as_secs_f64();
        for store in stores {
            store.close().await?;
        }
        Ok::<f64, Failure>(rate)
    };
    let (mut together, mut alone) = (Vec::new(), Vec::new());
    for round in 0..scale.rounds as u64 {
        together.push(all("together", PROCESSES, round).await?);
        alone.push(all("alone", 1, round).await?);
    }
    let bench = format!("{}, {PROCESSES} processes", report.store);
    report.speed(bench, median(together), "one alone".into(), median(alone), "lifecycles/s");
    Ok(())
}

/// Speed with a small and a large backlog. Both are there all the while and take turns, so that they meet the same
/// weather; ours opens one of this name with so many waiting, and runs lifecycles on it, with so many in flight, from a
/// number on, so many.
pub(crate) async fn flatness<S: Store + 'static>(
    report: &mut Report,
    scale: Scale,
    open: impl AsyncFn(&'static str, usize) -> Result<Batched<S>, Failure>,
    ours: impl AsyncFn(&Batched<S>, usize, u64, u64) -> Result<f64, Failure>,
) -> Result<(), Failure> {
    let (large, small) = (open("large", scale.backlog).await?, open("small", SMALL).await?);
    let mut more = 0;
    for in_flight in IN_FLIGHTS {
        let count = (scale.lifecycles * in_flight.min(32)) as u64;
        let (mut of_large, mut of_small) = (Vec::new(), Vec::new());
        for _ in 0..2 * scale.rounds {
            of_large.push(ours(&large, in_flight, scale.backlog as u64 + more, count).await?);
            of_small.push(ours(&small, in_flight, SMALL as u64 + more, count).await?);
            // What is in flight when a round ends was admitted, too.
            more += count + 2 * IN_FLIGHT as u64;
        }
        report_flatness(report, scale, in_flight, "", (of_large, of_small));
    }
    large.close().await?;
    small.close().await?;
    Ok(())
}

/// The rates behind a large backlog beside those behind a small one.
pub(crate) fn report_flatness(
    report: &mut Report,
    scale: Scale,
    in_flight: usize,
    whose: &str,
    (of_large, of_small): (Vec<f64>, Vec<f64>),
) {
    eprintln!("  {in_flight} in flight{whose}: large {of_large:.0?}, small {of_small:.0?}");
    let bench = format!("{}{whose}, backlog {}, {in_flight} in flight", report.store, scale.backlog);
    report.speed(bench, median(of_large), format!("backlog {SMALL}"), median(of_small), "lifecycles/s");
}

/// Admits so many requests.
pub(crate) async fn admit(store: &impl Store, count: usize) -> Result<(), Failure> {
    for first in (0..count).step_by(1000) {
        let requests = (first..count.min(first + 1000)).map(|n| request(n as u64)).collect();
        store.apply_one(Admit { cursor: None, requests }).await?;
    }
    Ok(())
}

/// Forgets receipts until all is done and nothing is left to forget.
pub(crate) async fn prune(store: &impl Store, done: &AtomicBool) -> Result<u64, Failure> {
    let mut forgotten = 0;
    loop {
        let is_last = done.load(Ordering::SeqCst);
        let prune = Prune { limit: 1000, floors: Vec::new() };
        match store.apply_one(prune).await? {
            Outcome::Applied(Effect::Count(0)) if is_last => return Ok(forgotten),
            Outcome::Applied(Effect::Count(0)) => tokio::time::sleep(Duration::from_millis(10)).await,
            Outcome::Applied(Effect::Count(count)) => forgotten += count as u64,
            other => return Err(format!("a prune brought {other:?}").into()),
        }
    }
}
