//! Roundtrip beside its floors, in one run: ratios, because these machines are noisy.
//!
//! Writes `bench/results/latest.json`, a list of rows, and prints the same as a table.
//! `--quick` takes fewer rounds.

mod backlog;
mod floor;
mod lifecycle;
mod report;
mod trace;

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
    let quick = std::env::args().any(|arg| arg == "--quick");
    let scale = if quick {
        Scale { lifecycles: 500, backlog: 100_000, rounds: 1 }
    } else {
        Scale { lifecycles: 2_000, backlog: 1_000_000, rounds: 1 }
    };
    let mut report = Report::default();
    let only = std::env::args().find_map(|arg| arg.strip_prefix("--only=").map(str::to_owned));
    let wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
    for in_flight in [1, 128, 1024].into_iter().filter(|n| wanted(&n.to_string())) {
        lifecycle::beside_floor(&mut report, in_flight, scale)?;
    }
    if wanted("backlog") {
        backlog::flatness(&mut report, scale)?;
    }
    report.write("bench/results/latest.json")?;
    report.print();
    Ok(())
}
