//! What each commit of a run was made of, so that the floor can do the same.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use roundtrip::clock::SystemClock;
use roundtrip::store::op::{Effect, Outcome};
use roundtrip::store::{Glimpse, Options, SqliteStore, StoreError};

/// How many of each one commit did.
#[derive(Clone, Copy, Default)]
pub(crate) struct Commit {
    pub(crate) admitted: u32,
    pub(crate) leased: u32,
    pub(crate) answered: u32,
    pub(crate) assigned: u32,
    pub(crate) settled: u32,
}

impl Commit {
    fn count(&mut self, outcome: &Outcome) {
        let Outcome::Applied(effect) = outcome else { return };
        match effect {
            Effect::Admitted(admissions, _) => self.admitted += number(admissions.len()),
            Effect::Leased(grants) => self.leased += number(grants.len()),
            Effect::Now(_) => self.answered += 1,
            Effect::Assigned(parcels, _) => self.assigned += number(*parcels),
            Effect::Done => self.settled += 1,
            _ => {}
        }
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The commits of a store so far.
#[derive(Clone, Default)]
pub(crate) struct Trace(Arc<Mutex<Vec<Commit>>>);

impl Trace {
    /// Opens a store whose commits are noted.
    pub(crate) fn open(path: &Path) -> Result<(SqliteStore, Trace), StoreError> {
        let trace = Trace::default();
        let (commits, mut open) = (trace.clone(), Commit::default());
        let watch = move |glimpse: Glimpse<'_>| match glimpse {
            Glimpse::Outcomes(outcomes) => outcomes.iter().for_each(|outcome| open.count(outcome)),
            Glimpse::Commit => commits.with(|commits| commits.push(std::mem::take(&mut open))),
        };
        let store = SqliteStore::open_watched(path, Arc::new(SystemClock::new()), Options::default(), watch)?;
        Ok((store, trace))
    }

    /// The commits since this was last called.
    pub(crate) fn take(&self) -> Vec<Commit> {
        self.with(std::mem::take)
    }

    fn with<T>(&self, with: impl FnOnce(&mut Vec<Commit>) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
