//! A request in a handler's hand, and what it is told while it works.

use std::sync::Arc;

use tokio::sync::watch;

use crate::inbox::Standing;
use crate::store::op::{Grant, Notice};
use crate::words::{Moment, RequestId, Token};

/// What a handler at work is told. It may ignore every one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobNotice {
    /// Its origin calls it final.
    Finalized,
    /// A reorg took it away; it may come back.
    Orphaned,
    /// A reorg brought it back.
    Included,
    /// The content changed: an answer to the old content will not be taken.
    Superseded,
    /// The lease is gone, since the request ended or was given to another: nothing that
    /// this handler returns will be taken.
    Withdrawn,
}

impl From<Notice> for JobNotice {
    fn from(notice: Notice) -> JobNotice {
        match notice {
            Notice::Finalized => JobNotice::Finalized,
            Notice::Orphaned => JobNotice::Orphaned,
            Notice::Included => JobNotice::Included,
            Notice::Superseded => JobNotice::Superseded,
        }
    }
}

impl JobNotice {
    /// Whether it makes further work useless.
    fn stops(self) -> bool {
        matches!(self, JobNotice::Superseded | JobNotice::Withdrawn)
    }
}

/// One attempt at one request.
///
/// A clone shares everything but what it has heard through [`Job::changed`].
#[derive(Clone, Debug)]
pub struct Job {
    facts: Arc<Facts>,
    told: watch::Receiver<Vec<JobNotice>>,
    heard: usize,
}

#[derive(Debug)]
struct Facts {
    id: RequestId,
    token: Token,
    attempt: u16,
    generation: u32,
    revision: u16,
    standing: Standing,
    deadline: Option<Moment>,
    trace: Option<Box<str>>,
}

impl Job {
    /// Which request.
    pub fn id(&self) -> RequestId {
        self.facts.id
    }

    /// The lease's token as text: different for every attempt at every request, for
    /// whoever outside wants to tell attempts apart.
    pub fn key(&self) -> String {
        self.facts.token.to_string()
    }

    /// Which attempt this is, from 1.
    pub fn attempt(&self) -> u16 {
        self.facts.attempt
    }

    /// Which generation of the id.
    pub fn generation(&self) -> u32 {
        self.facts.generation
    }

    /// Which content, from 0; a supersede raises it.
    pub fn revision(&self) -> u16 {
        self.facts.revision
    }

    /// Whether its origin called it final when it was handed out.
    pub fn standing(&self) -> Standing {
        self.facts.standing
    }

    /// Of no use after this moment.
    pub fn deadline(&self) -> Option<&Moment> {
        self.facts.deadline.as_ref()
    }

    /// The trace context that it came with.
    pub fn trace(&self) -> Option<&str> {
        self.facts.trace.as_deref()
    }

    /// All that was told so far, oldest first.
    pub fn notices(&self) -> Vec<JobNotice> {
        self.told.borrow().clone()
    }

    /// Waits for the next notice that this handle has not heard.
    pub async fn changed(&mut self) -> JobNotice {
        loop {
            if let Some(&notice) = self.told.borrow_and_update().get(self.heard) {
                self.heard += 1;
                return notice;
            }
            if self.told.changed().await.is_err() {
                forever().await;
            }
        }
    }

    /// Waits until further work is useless: superseded, or withdrawn.
    ///
    /// ```
    /// # use roundtrip::worker::{Failure, Job};
    /// # async fn compute() -> u64 { 1 }
    /// # async fn handle(job: Job) -> Result<u64, Failure> {
    /// tokio::select! {
    ///     answer = compute() => Ok(answer),
    ///     () = job.stopped() => Err(Failure::retry("stopped")), // costs nothing: nobody wants it now
    /// }
    /// # }
    /// ```
    pub async fn stopped(&self) {
        let mut told = self.told.clone();
        if told.wait_for(|told| told.iter().any(|notice| notice.stops())).await.is_err() {
            forever().await;
        }
    }
}

/// The worker is gone, or the handler has returned: nothing more will be told.
async fn forever() {
    std::future::pending().await
}

/// The worker's side of a [`Job`].
#[derive(Debug)]
pub(super) struct Desk {
    told: watch::Sender<Vec<JobNotice>>,
    /// What the store listed last, so that only news is passed on.
    listed: Vec<Notice>,
}

impl Desk {
    pub(super) fn open(grant: &Grant) -> (Desk, Job) {
        let facts = Facts {
            id: grant.id,
            token: grant.token,
            attempt: grant.attempt,
            generation: grant.generation,
            revision: grant.revision,
            standing: grant.standing,
            deadline: grant.deadline.clone(),
            trace: grant.trace.clone(),
        };
        let (told, hears) = watch::channel(Vec::new());
        let job = Job { facts: Arc::new(facts), told: hears, heard: 0 };
        (Desk { told, listed: Vec::new() }, job)
    }

    /// Passes on what is new in the store's list.
    pub(super) fn list(&mut self, notices: Vec<Notice>) {
        for &notice in &news(&self.listed, &notices) {
            self.tell(notice.into());
        }
        self.listed = notices;
    }

    pub(super) fn tell(&self, notice: JobNotice) {
        self.told.send_modify(|told| told.push(notice));
    }

    pub(super) fn was_told(&self, notice: JobNotice) -> bool {
        self.told.borrow().contains(&notice)
    }
}

/// What a list has that the one before had not. What is said again moves to the list's
/// end, so its beginning, as long as it is in the order of the one before, is old.
fn news(before: &[Notice], now: &[Notice]) -> Vec<Notice> {
    let mut earlier = before.iter();
    let old = now.iter().take_while(|notice| earlier.any(|known| known == *notice)).count();
    now[old..].to_vec()
}

#[cfg(test)]
pub(super) mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::words::{Payload, UnixMs};

    pub(crate) fn grant(n: u8) -> Grant {
        Grant {
            id: RequestId([n; 32]),
            token: Token { epoch: 7, count: n.into() },
            until: UnixMs(60_000),
            attempt: 2,
            generation: 1,
            revision: 3,
            standing: Standing::Seen,
            deadline: None,
            payload: Payload::json("1"),
            trace: Some("trace".into()),
        }
    }

    #[test]
    fn only_news_is_passed_on() {
        use Notice::{Finalized, Included, Orphaned, Superseded};
        let check = |before: &[Notice], now: &[Notice], expected: &[Notice]| assert_eq!(news(before, now), expected);
        check(&[], &[], &[]);
        check(&[], &[Orphaned, Included], &[Orphaned, Included]);
        check(&[Orphaned], &[Orphaned, Included], &[Included]);
        check(&[Orphaned, Included], &[Orphaned, Included], &[]);
        check(&[Orphaned, Included], &[Included, Orphaned], &[Orphaned]);
        check(&[Finalized, Orphaned, Included], &[Finalized, Included, Orphaned, Superseded], &[Orphaned, Superseded]);
    }

    #[tokio::test]
    async fn a_job_hears_each_notice_once_and_in_order() {
        let (mut desk, mut job) = Desk::open(&grant(1));
        assert_eq!((job.key(), job.attempt(), job.revision(), job.trace()), ("7-1".to_owned(), 2, 3, Some("trace")));
        desk.list(vec![Notice::Orphaned]);
        desk.list(vec![Notice::Orphaned, Notice::Included]);
        let mut stopped = Box::pin(job.stopped());
        assert!(stopped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        desk.list(vec![Notice::Orphaned, Notice::Included, Notice::Superseded]);
        stopped.await;
        let mut late = job.clone();
        for job in [&mut job, &mut late] {
            assert_eq!(job.changed().await, JobNotice::Orphaned);
            assert_eq!(job.changed().await, JobNotice::Included);
            assert_eq!(job.changed().await, JobNotice::Superseded);
        }
        desk.tell(JobNotice::Withdrawn);
        assert_eq!(job.changed().await, JobNotice::Withdrawn);
        assert_eq!(job.notices().len(), 4);
    }
}
