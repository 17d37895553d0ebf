//! Workers and upkeep on a store that other processes share.
//!
//! What a request asks for decides what becomes of it: a twentieth is held at its first and second attempt until the
//! process is told to go on, a twentieth panics at its first, and a twentieth fails.

use std::sync::Arc;
use std::time::Duration;

use roundtrip::clock::SystemClock;
use roundtrip::relay::Relay;
use roundtrip::store::{Options, Store, open};
use roundtrip::upkeep::UpkeepOptions;
use roundtrip::words::{RouteName, WorkerName};
use roundtrip::worker::{self, Job, Typed, Worker, WorkerOptions, handler_fn};
use tokio::sync::watch;

use crate::{Failure, tell};

/// Works until nothing can come from the standard input any more.
pub(crate) async fn work(url: &str, workers: usize) -> Result<(), Failure> {
    let store = open(url, Options::default())?;
    let (go, goes) = watch::channel(false);
    let left_alone = tokio::task::spawn_blocking(move || {
        let told = std::io::stdin().lines().map_while(Result::ok);
        told.filter(|line| line == "go").for_each(|_go| _ = go.send_replace(true));
    });
    // Whoever dies holds nothing up for long.
    let options = UpkeepOptions { interval: Duration::from_millis(100), seat_ms: 1000, ..UpkeepOptions::default() };
    let mut relay = Relay::new(store.clone()).upkeep(options, Arc::new(Vec::new));
    for n in 0..workers {
        let worker = worker_of(store.clone(), n, goes.clone())?;
        relay = relay.station(&worker.name.to_string(), |shutdown| worker.run(shutdown));
    }
    let running = relay.stop_when(async { drop(left_alone.await) }).start().await?;
    tell("ready")?;
    running.ended().await?;
    store.close().await?;
    tell("finished")
}

fn worker_of(store: Arc<dyn Store>, n: usize, goes: watch::Receiver<bool>) -> Result<Worker, Failure> {
    let handler = handler_fn(move |n: u64, job: Job| handle(n, job, goes.clone()));
    Ok(Worker {
        store,
        clock: Arc::new(SystemClock::new()),
        seed: fastrand::u64(..),
        name: WorkerName::new(&format!("victim-{}-{n}", std::process::id()))?,
        route: RouteName::new("orders")?,
        handler: Arc::new(Typed(handler)),
        options: WorkerOptions { concurrency: 4, ..WorkerOptions::default() },
        open: None,
    })
}

async fn handle(n: u64, job: Job, mut goes: watch::Receiver<bool>) -> Result<u64, worker::Failure> {
    let told = |what: &str| tell(&format!("{what} {} {}", job.id(), job.key())).map_err(worker::Failure::retry);
    told("began")?;
    match (n % 20, job.attempt()) {
        (0, 1 | 2) => {
            told("holds")?;
            goes.wait_for(|go| *go).await?;
        }
        // Without the hook that would print it.
        (1, 1) => std::panic::resume_unwind(Box::new("the first time")),
        (2, 1) => return Err(worker::Failure::retry("the first time")),
        _ => tokio::task::yield_now().await,
    }
    Ok(n * n)
}
