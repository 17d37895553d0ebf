//! Upkeep: leases of silent workers go back, deadlines end requests, groups are sealed
//! when their moment has come, what retention no longer wants is forgotten, and whoever reads
//! the log is told of chains whose clocks have fallen behind.
//!
//! ```text
//!   take or keep the seat ──▶ rescue, expire, fire, prune ──▶ again those that found their limit
//!          ▲                                                        │ none left
//!          └────────────────────── wait, about an interval ◀────────┘
//! ```
//!
//! One leader at a time does it; the others wait for its seat to be free. Failure modes: a
//! leader that dies keeps the seat until its time runs out, and upkeep rests that long. Two
//! that both believe to lead do no harm, since each operation looks again at what it is
//! about to change. A lost answer or a full disk is waited for; any other store error, and a
//! refused operation, ends the station.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::persist;
use crate::station::{Shutdown, StationError, bounded};
use crate::store::op::{Effect, Lead, Op, Outcome, Prune, Seat, Stale};
use crate::store::query::OriginView;
use crate::store::{ReadExt, Store, StoreExt};
use crate::words::{HolderName, OriginName, Place, UPKEEP_MAX};

/// How long giving up the seat may take.
const STEP_DOWN_WITHIN: Duration = Duration::from_secs(5);

/// Says how deep re-scans may still reach, each time it is asked.
pub type Floors = Arc<dyn Fn() -> Vec<Place> + Send + Sync>;

/// How upkeep is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpkeepOptions {
    /// How long to wait when nothing is left to do; a tenth more or less, by chance.
    pub interval: Duration,
    /// How long the seat is taken for; a dead leader holds upkeep up for so long.
    pub seat_ms: u64,
    /// How many records each operation moves at a time; [`UPKEEP_MAX`] at the most.
    pub batch: usize,
    /// How far an origin's clock may be behind before the log says so: what waits for a height
    /// or a time of it waits on, deadlines too.
    pub stale_after_ms: u64,
}

impl Default for UpkeepOptions {
    fn default() -> Self {
        UpkeepOptions { interval: Duration::from_secs(1), seat_ms: 15_000, batch: 1000, stale_after_ms: 600_000 }
    }
}

/// The station that does the upkeep of a store.
///
/// Dropping its future is a crash: the seat runs out by itself.
pub struct Upkeep {
    /// Which store.
    pub store: Arc<dyn Store>,
    /// Where the randomness of its waiting starts.
    pub seed: u64,
    /// Who does it; unique to a process and its start.
    pub holder: HolderName,
    /// How deep re-scans may still reach; what lies below is forgotten.
    pub floors: Floors,
    /// How.
    pub options: UpkeepOptions,
}

/// What upkeep has to see to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    Rescue,
    Expire,
    Fire,
    Prune,
}

impl Duty {
    const ALL: [Duty; 4] = [Duty::Rescue, Duty::Expire, Duty::Fire, Duty::Prune];
}

/// Whether this one leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Leads,
    Waits,
}

impl Upkeep {
    /// Does the upkeep until told to stop, then gives the seat up.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), StationError> {
        let ended = shutdown.run_until_cancelled(self.rounds()).await;
        if let Some(Err(error)) = ended {
            return Err(error);
        }
        self.step_down().await;
        Ok(())
    }

    async fn rounds(&self) -> Result<(), StationError> {
        let mut dice = fastrand::Rng::with_seed(self.seed);
        let mut stale = BTreeSet::new();
        loop {
            if self.run_once().await? == Standing::Leads {
                stale = self.tell_stale(stale).await?;
            }
            tokio::time::sleep(about(self.options.interval, dice.f64())).await;
        }
    }

    /// One round: whatever there is to do, in bounded batches, if this one leads.
    async fn run_once(&self) -> Result<Standing, StationError> {
        let limit = self.options.batch.clamp(1, UPKEEP_MAX);
        let mut due = Duty::ALL.to_vec();
        while !due.is_empty() {
            if self.lead().await? == Standing::Waits {
                return Ok(Standing::Waits);
            }
            let batch: Vec<Op> = due.iter().map(|duty| self.op(*duty, limit)).collect();
            let outcomes = persist::apply(&*self.store, batch).await?;
            due = decide(&due, &outcomes, limit)?;
        }
        Ok(Standing::Leads)
    }

    /// Says, once each time, which origins' clocks fell behind and which caught up; answers
    /// those that are behind.
    async fn tell_stale(&self, before: BTreeSet<OriginName>) -> Result<BTreeSet<OriginName>, StationError> {
        let origins = persist::read(|| self.store.origins()).await?;
        let stale = stale(&origins, self.options.stale_after_ms);
        for origin in stale.difference(&before) {
            tracing::warn!(%origin, stale_after_ms = self.options.stale_after_ms, "the origin's clock is behind: what waits for its heights or times waits on; look whether it is followed, and whether its chain moves");
        }
        for origin in before.difference(&stale) {
            tracing::info!(%origin, "the origin's clock is up to date again");
        }
        Ok(stale)
    }

    fn op(&self, duty: Duty, limit: usize) -> Op {
        match duty {
            Duty::Rescue => Op::Rescue { limit },
            Duty::Expire => Op::Expire { limit },
            Duty::Fire => Op::Fire { limit },
            Duty::Prune => Op::Prune(Prune { limit, floors: (self.floors)() }),
        }
    }

    fn seat(&self, ttl_ms: u64) -> Lead {
        Lead { seat: Seat::Upkeep, holder: self.holder.clone(), ttl_ms }
    }

    async fn lead(&self) -> Result<Standing, StationError> {
        match persist::apply_one(&*self.store, self.seat(self.options.seat_ms)).await? {
            Outcome::Applied(Effect::Led(..)) => Ok(Standing::Leads),
            Outcome::Stale(Stale::Seat { .. }) => Ok(Standing::Waits),
            other => Err(StationError::Broken(format!("upkeep cannot take its seat: {other:?}"))),
        }
    }

    /// Gives the seat up if it is this one's; if that fails, it runs out by itself.
    async fn step_down(&self) {
        let given_up = self.store.apply_one(self.seat(0));
        if !matches!(tokio::time::timeout(STEP_DOWN_WITHIN, given_up).await, Ok(Ok(_))) {
            tracing::warn!(holder = %self.holder, "the upkeep seat was not given up: it runs out by itself");
        }
    }
}

/// Which duties found as much as they were allowed to do, and so may find more.
fn decide(done: &[Duty], outcomes: &[Outcome], limit: usize) -> Result<Vec<Duty>, StationError> {
    let mut left = Vec::new();
    for (duty, outcome) in done.iter().zip(outcomes) {
        match outcome {
            Outcome::Applied(Effect::Count(count)) if *count >= limit => left.push(*duty),
            Outcome::Applied(Effect::Count(_)) => {}
            other => return Err(StationError::Broken(format!("{duty:?} was refused by the store: {other:?}"))),
        }
    }
    Ok(left)
}

/// The origins whose clocks are further behind than this.
fn stale(origins: &[OriginView], after_ms: u64) -> BTreeSet<OriginName> {
    let is_stale = |origin: &&OriginView| origin.behind_ms.is_some_and(|behind| behind > after_ms);
    origins.iter().filter(is_stale).map(|origin| origin.name.clone()).collect()
}

/// An interval, a tenth more or less: stations that start together do not stay together.
fn about(interval: Duration, dice: f64) -> Duration {
    bounded(interval).mul_f64(0.9 + 0.2 * dice)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::store::op::Invalid;
    use crate::words::Height;

    #[test]
    fn only_what_found_its_limit_is_done_again() {
        let count = |count| Outcome::Applied(Effect::Count(count));
        let check = |counts: [usize; 4], left: &[Duty]| {
            assert_eq!(decide(&Duty::ALL, &counts.map(count), 10).unwrap(), left, "{counts:?}");
        };
        check([0, 0, 0, 0], &[]);
        check([10, 9, 0, 10], &[Duty::Rescue, Duty::Prune]);
        check([10; 4], &Duty::ALL);
        assert_eq!(decide(&[Duty::Fire], &[count(10)], 10).unwrap(), [Duty::Fire]);
        let refused = Outcome::Invalid(Invalid::TooManyNames(3));
        let error = decide(&[Duty::Prune], &[refused], 10).unwrap_err();
        assert!(error.to_string().starts_with("Prune was refused"), "{error}");
    }

    #[test]
    fn a_clock_is_stale_beyond_its_bound_and_one_that_never_ran_is_none() {
        let origin = |name: &str, behind_ms| OriginView {
            name: OriginName::new(name).unwrap(),
            floor: Height(0),
            head: None,
            behind_ms,
        };
        let origins = [origin("a", None), origin("b", Some(10)), origin("c", Some(11))];
        assert_eq!(stale(&origins, 10), BTreeSet::from([origins[2].name.clone()]));
    }

    #[test]
    fn waits_differ_by_a_tenth_at_most() {
        let second = Duration::from_secs(1);
        assert_eq!(about(second, 0.0), Duration::from_millis(900));
        assert_eq!(about(second, 1.0), Duration::from_millis(1100));
        assert!(about(Duration::MAX, 1.0) > bounded(Duration::MAX), "for ever is no overflow");
    }
}
