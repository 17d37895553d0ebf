//! What the writer's thread is asked, and how much of it goes into one commit: all
//! that queued up while the last one was in flight.

use std::sync::mpsc::Receiver;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::store::op::{Op, Outcome};
use crate::store::query::{Query, Reply};
use crate::store::{BatchLimits, StoreError};

type Sender<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the thread is asked to do.
pub(super) enum Job {
    Apply(Vec<Op>, Sender<Vec<Outcome>>),
    Read(Query, Sender<Reply>),
    Close,
    #[cfg_attr(not(feature = "testkit"), expect(dead_code, reason = "only the testkit crashes a store"))]
    Crash,
}

impl Job {
    /// Refuses the job.
    pub(super) fn refuse(self, error: &StoreError) {
        match self {
            Job::Apply(_, caller) => drop(caller.send(Err(error.clone()))),
            Job::Read(_, caller) => drop(caller.send(Err(error.clone()))),
            Job::Close | Job::Crash => {}
        }
    }
}

/// A job, and its place among those that may wait.
pub(super) type Waiting = (Job, Option<OwnedSemaphorePermit>);
pub(super) type Jobs = Receiver<Waiting>;

/// How the thread is to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Close,
    Crash,
}

/// The jobs of one commit. A call is never split.
#[derive(Default)]
pub(super) struct Round {
    /// Calls that a crash may forget: they need not wait for the disk, and go first.
    pub(super) quick: Vec<(Vec<Op>, Sender<Vec<Outcome>>)>,
    pub(super) reads: Vec<(Query, Sender<Reply>)>,
    pub(super) calls: Vec<(Vec<Op>, Sender<Vec<Outcome>>)>,
    pub(super) end: Option<End>,
    ops: usize,
    bytes: usize,
}

impl Round {
    /// Takes this job and as many more as are waiting and fit.
    pub(super) fn gather(first: Job, jobs: &Jobs) -> Round {
        let mut round = Round::default();
        round.take(first);
        while round.has_room()
            && let Ok((job, _permit)) = jobs.try_recv()
        {
            round.take(job);
        }
        round
    }

    fn has_room(&self) -> bool {
        let limits = BatchLimits::default();
        self.end.is_none() && self.ops < limits.ops && self.bytes < limits.bytes
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Apply(ops, caller) => {
                self.ops += ops.len();
                self.bytes += ops.iter().map(Op::payload_bytes).sum::<usize>();
                let calls = if ops.iter().all(Op::may_be_forgotten) { &mut self.quick } else { &mut self.calls };
                calls.push((ops, caller));
            }
            Job::Read(query, caller) => {
                self.ops += 1;
                self.reads.push((query, caller));
            }
            Job::Close => self.end = Some(End::Close),
            Job::Crash => self.end = Some(End::Crash),
        }
    }
}

/// What a caller is to be told once what it is about is durable.
pub(super) enum Answer {
    Outcomes(Sender<Vec<Outcome>>, Vec<Outcome>),
    Reply(Sender<Reply>, Reply),
}

impl Answer {
    /// Tells the caller, unless it has gone: then the commit stands all the same.
    pub(super) fn tell(self, durable: &Result<(), StoreError>) {
        match self {
            Answer::Outcomes(caller, outcomes) => {
                let _gone = caller.send(durable.clone().map(|()| outcomes));
            }
            Answer::Reply(caller, reply) => {
                let _gone = caller.send(durable.clone().map(|()| reply));
            }
        }
    }
}
