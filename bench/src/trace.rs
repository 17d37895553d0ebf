//! What each commit of a run was made of, so that the floor can do the same.

use std::sync::{Arc, Mutex, PoisonError};

use roundtrip::store::op::{Effect, Op, Outcome};
use roundtrip::store::query::{Query, Reply};
use roundtrip::store::{Changes, Store, StoreFuture, Topic};

/// How many of each one commit did.
#[derive(Clone, Copy, Default)]
pub(crate) struct Commit {
    pub(crate) admitted: u32,
    pub(crate) leased: u32,
    pub(crate) answered: u32,
    pub(crate) assigned: u32,
    pub(crate) settled: u32,
    /// Answers read for sending since the commit before.
    pub(crate) read: u32,
}

/// A store that notes what every commit did.
pub(crate) struct Traced<S> {
    inner: S,
    commits: Arc<Mutex<Vec<Commit>>>,
}

impl<S: Store> Traced<S> {
    pub(crate) fn new(inner: S) -> (Traced<S>, Arc<Mutex<Vec<Commit>>>) {
        let commits = Arc::new(Mutex::new(vec![Commit::default()]));
        (Traced { inner, commits: commits.clone() }, commits)
    }

    fn note(&self, with: impl FnOnce(&mut Vec<Commit>)) {
        with(&mut self.commits.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn count(commit: &mut Commit, outcome: &Outcome) {
    let Outcome::Applied(effect) = outcome else { return };
    match effect {
        Effect::Admitted(admissions, _) => commit.admitted += u32::try_from(admissions.len()).unwrap_or(u32::MAX),
        Effect::Leased(grants) => commit.leased += u32::try_from(grants.len()).unwrap_or(u32::MAX),
        Effect::Now(_) => commit.answered += 1,
        Effect::Assigned(parcels, _) => commit.assigned += u32::try_from(*parcels).unwrap_or(u32::MAX),
        Effect::Done => commit.settled += 1,
        _ => {}
    }
}

impl<S: Store> Store for Traced<S> {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let forgettable = batch.iter().all(Op::may_be_forgotten);
            let outcomes = self.inner.apply(batch).await?;
            self.note(|commits| {
                if let Some(open) = commits.last_mut() {
                    outcomes.iter().for_each(|outcome| count(open, outcome));
                }
                if !forgettable {
                    commits.push(Commit::default());
                }
            });
            Ok(outcomes)
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        Box::pin(async move {
            let reply = self.inner.read(query).await?;
            if let Reply::Ready(ready) = &reply {
                let read = u32::try_from(ready.len()).unwrap_or(u32::MAX);
                self.note(|commits| commits.iter_mut().last().into_iter().for_each(|open| open.read += read));
            }
            Ok(reply)
        })
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.inner.changes(topic)
    }
}
