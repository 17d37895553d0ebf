//! What a backlog costs: speed with 10^3 and 10^6 live requests, memory, and reopening.

use std::path::Path;
use std::sync::Arc;

use roundtrip::clock::SystemClock;
use roundtrip::store::op::Admit;
use roundtrip::store::{Options, SqliteStore, Store, StoreExt};

use crate::Scale;
use crate::lifecycle::{prepare, request, run};
use crate::report::{Report, median};
use crate::soak::reopened;

const IN_FLIGHT: usize = 1024;
const SMALL: usize = 1_000;

type Failure = Box<dyn std::error::Error>;

fn open(path: &Path) -> Result<SqliteStore, Failure> {
    Ok(SqliteStore::open(path, Arc::new(SystemClock::new()), Options::default())?)
}

/// Resident memory of this process.
pub(crate) fn resident_mb() -> Result<f64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
    Ok(kib / 1024.0)
}

/// Fills a store with a backlog, then measures lifecycles through it.
fn measure(path: &Path, backlog: usize, count: u64) -> Result<f64, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = Arc::new(open(path)?);
        let lanes = prepare(&store).await?;
        for first in (0..backlog).step_by(1000) {
            let requests = (first..backlog.min(first + 1000)).map(|n| request(n as u64)).collect();
            store.apply_one(Admit { cursor: None, requests }).await?;
        }
        let rate = run(store.clone(), &lanes, backlog as u64, IN_FLIGHT, count).await?;
        store.close().await?;
        Ok(rate)
    })
}

/// Speed at a small and a large backlog, memory and reopening at the large one.
pub(crate) fn flatness(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    let count = (scale.lifecycles * 64) as u64;
    let (mut small, mut large) = (Vec::new(), Vec::new());
    let (mut memory, mut reopen) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        let folder = tempfile::tempdir_in(".")?;
        let path = folder.path().join("large.db");
        large.push(measure(&path, scale.backlog, count)?);
        // In a process of its own, so that the memory is the store's alone.
        let (seconds, mb) = reopened(&path)?;
        reopen.push(seconds);
        memory.push(mb);
        small.push(measure(&folder.path().join("small.db"), SMALL, count)?);
    }
    let live = scale.backlog;
    report.speed(
        format!("lifecycle, backlog {live}"),
        median(large),
        format!("backlog {SMALL}"),
        median(small),
        "lifecycles/s",
    );
    let scaled = scale.backlog as f64 / 1e6;
    report.cost(
        format!("resident memory, {live} live"),
        median(memory),
        "300 MB for 10^6".into(),
        300.0 * scaled,
        "MB",
    );
    report.cost(format!("reopen, {live} live"), median(reopen), "3 s for 10^6".into(), 3.0 * scaled, "s");
    Ok(())
}
