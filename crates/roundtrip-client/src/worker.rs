//! The loop: takes work, hands it to a function, keeps the leases meanwhile, and says what came of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::Shutdown;
use crate::client::{CallError, Client, Failed, Job, Kept, Outcome, Settings, Verdict};
use crate::stream::{self, Stream};

/// How long to wait after a call that came to nothing, at first and at most.
pub(crate) const AGAIN_FIRST: Duration = Duration::from_millis(50);
pub(crate) const AGAIN_MAX: Duration = Duration::from_secs(5);

/// How a worker works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of which route.
    pub route: String,
    /// Who it is; in timelines.
    pub name: String,
    /// How many requests are worked on at a time. Over a stream up to as many more are in hand while
    /// what came of them is recorded.
    pub in_flight: usize,
    /// How long one call waits for work.
    pub wait: Duration,
    /// How often leases are kept; well within the route's lease time.
    pub keep_every: Duration,
}

impl Options {
    /// Works on this route, one at a time.
    pub fn of(route: &str, name: &str) -> Options {
        let (route, name) = (route.to_owned(), name.to_owned());
        Options { route, name, in_flight: 1, wait: Duration::from_secs(20), keep_every: Duration::from_secs(10) }
    }
}

/// Why a handler has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It may succeed later.
    Retry(String),
    /// It never will.
    Never(String),
    /// It was done before, and what came of it is not known here: the request ends well, without an answer.
    Elsewhere(String),
}

impl Failure {
    fn told(&self) -> Failed {
        let (error, then) = match self {
            Failure::Retry(error) => (error, Verdict::Retry),
            Failure::Never(error) => (error, Verdict::Dead),
            Failure::Elsewhere(why) => (why, Verdict::Elsewhere),
        };
        Failed { error: error.clone(), then }
    }
}

/// How what a worker says travels.
#[derive(Clone)]
enum Way {
    /// Each call by itself; with places for as many jobs as may be in hand.
    Calls(Client, Arc<Semaphore>),
    Stream(Arc<Stream>),
}

/// A job's place in the worker's hands, as long as it is there.
enum Place {
    Call { _one_of_all: OwnedSemaphorePermit },
    Stream(stream::Place),
}

impl Place {
    /// The work on it has ended; what came of it is still to be recorded.
    fn ended(&mut self) {
        match self {
            // A call takes as long as its commit, and as many at a time are enough.
            Place::Call { .. } => {}
            Place::Stream(place) => place.ended(),
        }
    }

    /// Waits until the worker should look after what it has in hand; for ever, if nobody will say so.
    async fn warned(&mut self) {
        match self {
            Place::Call { .. } => std::future::pending().await,
            Place::Stream(place) => place.warned().await,
        }
    }
}

impl Way {
    /// Work, once there is some and there are hands for it.
    async fn next(&self, options: &Options) -> Result<Vec<(Job, Place)>, CallError> {
        match self {
            Way::Calls(client, hands) => leased(client, hands, options).await,
            Way::Stream(stream) => {
                let arrivals = stream.next().await?;
                Ok(arrivals.into_iter().map(|arrival| (arrival.job, Place::Stream(arrival.place))).collect())
            }
        }
    }

    async fn extend(&self, job: &Job) -> Result<Kept, CallError> {
        match self {
            Way::Calls(client, _) => client.extend(job).await,
            Way::Stream(stream) => stream.extend(job).await,
        }
    }

    async fn answer(&self, job: &Job, response: &Value) -> Result<Kept, CallError> {
        match self {
            Way::Calls(client, _) => client.answer(job, response).await,
            Way::Stream(stream) => stream.answer(job, response).await,
        }
    }

    async fn fail(&self, job: &Job, failed: &Failed) -> Result<Kept, CallError> {
        match self {
            Way::Calls(client, _) => client.fail(job, failed).await,
            Way::Stream(stream) => stream.fail(job, failed).await,
        }
    }

    async fn release(&self, job: &Job) -> Result<Kept, CallError> {
        match self {
            Way::Calls(client, _) => client.release(job).await,
            Way::Stream(stream) => stream.release(job).await,
        }
    }
}

/// As much work as there are hands for, taken by one call.
async fn leased(client: &Client, hands: &Arc<Semaphore>, options: &Options) -> Result<Vec<(Job, Place)>, CallError> {
    let closed = |_| CallError::NoAnswer("the worker is over".to_owned());
    let mut free = hands.clone().acquire_owned().await.map_err(closed)?;
    let more = u32::try_from(hands.available_permits()).unwrap_or(u32::MAX);
    if let Ok(more) = hands.clone().try_acquire_many_owned(more) {
        free.merge(more);
    }
    let leased = client.lease(&options.route, &options.name, free.num_permits(), options.wait).await?;
    // Nobody hands out more than was asked for.
    let placed = |job| free.split(1).map(|one| (job, Place::Call { _one_of_all: one }));
    Ok(leased.jobs.into_iter().filter_map(placed).collect())
}

/// A worker.
pub struct Worker {
    way: Way,
    options: Options,
}

impl Worker {
    /// Works through this client: a call for every lease, answer and extension.
    pub fn new(client: Client, options: Options) -> Worker {
        let hands = Arc::new(Semaphore::new(options.in_flight.clamp(1, Semaphore::MAX_PERMITS)));
        Worker { way: Way::Calls(client, hands), options }
    }

    /// Works over one stream, on which much is under way at a time. Must be called in a runtime.
    pub fn streaming(settings: Settings, options: Options) -> Result<Worker, CallError> {
        let stream = Stream::open(settings, &options)?;
        Ok(Worker { way: Way::Stream(Arc::new(stream)), options })
    }

    /// Works until told to stop, and then until nothing is in hand; an error if the program
    /// refuses its calls for good.
    pub async fn run<H, F>(self, handler: H, shutdown: Shutdown) -> Result<(), CallError>
    where
        H: Fn(Job) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Value, Failure>> + Send + 'static,
    {
        let (handler, mut under_way, mut again) = (Arc::new(handler), JoinSet::new(), AGAIN_FIRST);
        while !shutdown.is_cancelled() {
            // Those that are over need no further look.
            while under_way.try_join_next().is_some() {}
            let next = tokio::select! {
                // Work that is handed out meanwhile is not heard of: its lease runs out.
                () = shutdown.cancelled() => break,
                next = self.way.next(&self.options) => next,
            };
            match next {
                Ok(jobs) => {
                    again = AGAIN_FIRST;
                    for (job, place) in jobs {
                        let (way, keep_every, handler) = (self.way.clone(), self.options.keep_every, handler.clone());
                        under_way.spawn(async move {
                            let lease = job.lease();
                            one(&way, keep_every, lease, place, handler(job)).await;
                        });
                    }
                }
                Err(error) if error.is_retryable() => {
                    tracing::warn!(%error, "work is asked for again");
                    tokio::select! {
                        () = shutdown.cancelled() => {}
                        () = tokio::time::sleep(again) => {}
                    }
                    again = (again * 2).min(AGAIN_MAX);
                }
                Err(error) => return Err(error),
            }
        }
        if let Way::Stream(stream) = &self.way {
            stream.stop().await;
        }
        while under_way.join_next().await.is_some() {}
        Ok(())
    }
}

/// Works on one job, and says what came of it.
async fn one(
    way: &Way,
    keep_every: Duration,
    job: Job,
    mut place: Place,
    work: impl Future<Output = Result<Value, Failure>>,
) {
    tokio::pin!(work);
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut work => break ended,
            () = place.warned() => {}
            () = tokio::time::sleep(keep_every) => {}
        }
        // A call that came to nothing is made again the next time.
        if let Ok(Kept { result, notices, .. }) = way.extend(&job).await
            && (result != Outcome::Done || notices.iter().any(|notice| notice == "superseded"))
        {
            tracing::warn!(request = job.id, ?result, ?notices, "the work is no longer wanted, and dropped");
            if result == Outcome::Done {
                // It is to be handed out again, with its new content; else the lease runs out.
                let _unheard = way.release(&job).await;
            }
            return;
        }
    };
    place.ended();
    let mut again = AGAIN_FIRST;
    loop {
        let told = match &ended {
            Ok(response) => way.answer(&job, response).await,
            Err(failure) => way.fail(&job, &failure.told()).await,
        };
        match told {
            Ok(Kept { result: Outcome::Done, .. }) => return,
            // What follows from it finds no room; the lease is kept while it is offered again.
            Ok(Kept { result: Outcome::Full, .. }) => {
                let _kept = way.extend(&job).await;
                tokio::time::sleep(again).await;
            }
            Ok(Kept { result, detail, .. }) => {
                return tracing::warn!(request = job.id, ?result, ?detail, "what came of the work was not taken");
            }
            Err(error) if error.is_retryable() => tokio::time::sleep(again).await,
            Err(error) => return tracing::error!(request = job.id, %error, "what came of the work was refused"),
        }
        again = (again * 2).min(AGAIN_MAX);
    }
}
