//! The worker's loop: one task that owns the running handlers and the calls under way.
//!
//! The loop waits for one event at a time and never for a call, so a slow commit holds
//! up neither heartbeats nor handlers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::decide::{self, Aftermath, Claims, Ended, Hold, LeaseKey};
use super::handler::{Failure, Handled, RawHandler};
use super::job::{Desk, Job, JobNotice};
use crate::clock::Clock;
use crate::persist;
use crate::station::{Shutdown, StationError, bounded};
use crate::store::op::{Effect, Extend, Grant, Invalid, Lease, Op, Outcome};
use crate::store::{Changes, ReadExt, Store, StoreError, Topic};
use crate::words::{HOLD_MS_MAX, LEASE_MAX, Payload, RouteName, Token, WorkerName};

/// How often running jobs are looked after at most, however much is amended.
const NOTICE_GAP: Duration = Duration::from_millis(20);
/// How long until a result that a full route has no room for is offered again.
const OFFER_GAP: Duration = Duration::from_millis(250);
/// How long the last calls may take after the grace time is over.
const LAST_CALLS: Duration = Duration::from_secs(5);

/// How a worker works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerOptions {
    /// How many handlers run at once; [`LEASE_MAX`] at the most.
    pub concurrency: usize,
    /// How long a lease lasts between heartbeats; the route's lease time if absent.
    pub lease_ms: Option<u64>,
    /// How long a handler may take; then it has failed, and its request is tried again.
    pub timeout: Option<Duration>,
    /// How long running handlers have to finish when the worker is told to stop.
    pub grace: Duration,
    /// How often to look for work that no hint told of, such as what has come due.
    pub poll: Duration,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        WorkerOptions {
            concurrency: 16,
            lease_ms: None,
            timeout: None,
            grace: Duration::from_secs(30),
            poll: Duration::from_millis(250),
        }
    }
}

/// A station that works on the requests of one route.
///
/// Dropping its future is a crash: handlers stop, and leases run out by themselves.
pub struct Worker {
    /// Where the requests are.
    pub store: Arc<dyn Store>,
    /// What the time is at the start.
    pub clock: Arc<dyn Clock>,
    /// Tells the claims of workers apart that have the same name and start at the same time.
    pub seed: u64,
    /// Who works; two workers at once must not share a name.
    pub name: WorkerName,
    /// Whose requests.
    pub route: RouteName,
    /// What answers them.
    pub handler: Arc<dyn RawHandler>,
    /// How.
    pub options: WorkerOptions,
    /// Whether work may be taken now, by whoever watches what the handler depends on;
    /// without it, always. What was taken before is worked on.
    pub open: Option<watch::Receiver<bool>>,
}

impl Worker {
    /// Works until told to stop, then lets running handlers finish, gives back what
    /// they did not finish at no cost, and ends.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), StationError> {
        let lease_ms = self.lease_ms().await?;
        let mut hints = Hints {
            queued: self.store.changes(Topic::Inbox(self.route.clone())),
            amended: self.store.changes(Topic::Amendments),
        };
        let mut shift = Shift::new(self, lease_ms);
        while !shift.is_over() {
            shift.start_calls();
            let event = shift.next_event(&shutdown, &mut hints).await;
            shift.take(event)?;
        }
        Ok(())
    }

    async fn lease_ms(&self) -> Result<u64, StationError> {
        let routes = persist::read(|| self.store.routes()).await?;
        let route = routes.into_iter().find(|route| route.name == self.route);
        let route = route.ok_or_else(|| unknown_route(&self.route))?;
        Ok(self.options.lease_ms.unwrap_or(route.policy.lease_ms).clamp(1, HOLD_MS_MAX))
    }
}

fn unknown_route(route: &RouteName) -> StationError {
    StationError::Broken(format!("{}, before its worker starts", Invalid::UnknownRoute(route.clone())))
}

/// What wakes the worker before it would look by itself.
struct Hints {
    queued: Changes,
    amended: Changes,
}

type Outcomes = Result<Vec<Outcome>, StoreError>;

/// A call to the store that is under way.
type Call = Option<Pin<Box<dyn Future<Output = Outcomes> + Send>>>;

/// Waits for the outcome of a call; for ever, if none is under way.
async fn outcome_of(call: &mut Call) -> Outcomes {
    match call {
        Some(under_way) => {
            let outcomes = under_way.await;
            *call = None;
            outcomes
        }
        None => std::future::pending().await,
    }
}

/// Waits until work may be taken; for ever, if nobody is left to say so.
async fn opened(open: Option<&mut watch::Receiver<bool>>) {
    if let Some(open) = open
        && open.wait_for(|open| *open).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Waits for a time; for ever, if none is set.
async fn time_of(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

type TaskEnd = Result<(Id, Result<Handled<Payload>, Failure>), JoinError>;

/// What can happen to a worker.
enum Event {
    Stop,
    GraceOver,
    Ended(TaskEnd),
    Answered(Outcomes),
    Leased(Outcomes),
    Extended(Outcomes),
    HeartbeatDue,
    Amended,
    WorkHinted,
    OfferDue,
}

/// How far a worker is with stopping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// No new leases; handlers may finish until then.
    Grace(Instant),
    /// Handlers are stopped; the last calls may take until then.
    LastCalls(Instant),
    /// Nothing more is waited for.
    Over,
}

/// A handler at work.
struct Running {
    lease: LeaseKey,
    desk: Desk,
}

impl Running {
    fn hold(&self) -> Hold {
        if self.desk.was_told(JobNotice::Withdrawn) {
            Hold::Lost
        } else if self.desk.was_told(JobNotice::Superseded) {
            Hold::Superseded
        } else {
            Hold::Held
        }
    }
}

/// What a handler came to, until the store has it.
struct Finished {
    lease: LeaseKey,
    op: Op,
    /// How often it was offered and there was no room.
    offers: u32,
}

/// One run of a worker.
struct Shift {
    worker: Worker,
    concurrency: usize,
    lease_ms: u64,
    claims: Claims,
    stage: Stage,
    tasks: JoinSet<Result<Handled<Payload>, Failure>>,
    tokens: HashMap<Id, Token>,
    running: BTreeMap<Token, Running>,
    /// Results for the next call.
    finished: VecDeque<Finished>,
    /// Results in the call under way.
    offered: Vec<Finished>,
    /// Results that there was no room for, until it is time to offer them again.
    held_back: Vec<Finished>,
    offer_at: Option<Instant>,
    leasing: Call,
    answering: Call,
    extending: Call,
    /// The leases in the heartbeat under way.
    extended: Vec<LeaseKey>,
    heartbeat_at: Option<Instant>,
    heartbeat_last: Instant,
    /// Whether something was amended while grants were on their way here.
    amended_meanwhile: bool,
    /// Whether there may be work that was not looked for.
    hungry: bool,
    look_at: Instant,
}

impl Shift {
    fn new(worker: Worker, lease_ms: u64) -> Shift {
        let claims = Claims::new(&worker.name, &worker.route, worker.seed, worker.clock.now());
        let now = Instant::now();
        Shift {
            concurrency: worker.options.concurrency.clamp(1, LEASE_MAX),
            worker,
            lease_ms,
            claims,
            stage: Stage::Open,
            tasks: JoinSet::new(),
            tokens: HashMap::new(),
            running: BTreeMap::new(),
            finished: VecDeque::new(),
            offered: Vec::new(),
            held_back: Vec::new(),
            offer_at: None,
            leasing: None,
            answering: None,
            extending: None,
            extended: Vec::new(),
            heartbeat_at: None,
            heartbeat_last: now,
            amended_meanwhile: false,
            hungry: true,
            look_at: now,
        }
    }

    /// Whether nothing is left to do.
    fn is_over(&self) -> bool {
        let idle = self.running.is_empty() && self.unanswered() == 0 && self.leasing.is_none();
        self.stage == Stage::Over || (self.stage != Stage::Open && idle)
    }

    fn unanswered(&self) -> usize {
        self.finished.len() + self.offered.len() + self.held_back.len()
    }

    fn may_take(&self) -> bool {
        self.worker.open.as_ref().is_none_or(|open| *open.borrow())
    }

    /// Starts every call that there is something for and that is not under way.
    fn start_calls(&mut self) {
        let room = decide::room(self.concurrency, self.running.len(), self.unanswered());
        if self.hungry && self.stage == Stage::Open && self.leasing.is_none() && room > 0 && self.may_take() {
            let lease = Lease {
                route: self.worker.route.clone(),
                worker: self.worker.name.clone(),
                max: room,
                claim: self.claims.next(),
                lease_ms: Some(self.lease_ms),
            };
            self.leasing = self.call(vec![Op::Lease(lease)]);
            self.hungry = false;
            self.look_at = Instant::now() + bounded(self.worker.options.poll);
        }
        if self.answering.is_none() && !self.finished.is_empty() {
            let count = decide::results_per_call(self.finished.iter().map(|finished| finished.op.payload_bytes()));
            self.offered = self.finished.drain(..count).collect();
            self.answering = self.call(self.offered.iter().map(|finished| finished.op.clone()).collect());
        }
    }

    fn call(&self, batch: Vec<Op>) -> Call {
        let store = self.worker.store.clone();
        Some(Box::pin(async move { persist::apply(&*store, batch).await }))
    }

    async fn next_event(&mut self, shutdown: &Shutdown, hints: &mut Hints) -> Event {
        let open = self.stage == Stage::Open;
        let looks = open && !self.hungry;
        let closed = open && self.hungry && !self.may_take();
        let stop_at = match self.stage {
            Stage::Grace(until) | Stage::LastCalls(until) => Some(until),
            Stage::Open | Stage::Over => None,
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled(), if open => Event::Stop,
            () = time_of(stop_at) => Event::GraceOver,
            Some(ended) = self.tasks.join_next_with_id() => Event::Ended(ended),
            outcomes = outcome_of(&mut self.answering) => Event::Answered(outcomes),
            outcomes = outcome_of(&mut self.leasing) => Event::Leased(outcomes),
            outcomes = outcome_of(&mut self.extending) => Event::Extended(outcomes),
            () = time_of(self.heartbeat_at), if self.extended.is_empty() => Event::HeartbeatDue,
            () = hints.amended.hinted() => Event::Amended,
            () = hints.queued.hinted(), if looks => Event::WorkHinted,
            () = sleep_until(self.look_at), if looks => Event::WorkHinted,
            () = opened(self.worker.open.as_mut()), if closed => Event::WorkHinted,
            () = time_of(self.offer_at) => Event::OfferDue,
        }
    }

    fn take(&mut self, event: Event) -> Result<(), StationError> {
        match event {
            Event::Stop => self.stage = Stage::Grace(Instant::now() + bounded(self.worker.options.grace)),
            Event::GraceOver => self.grace_is_over(),
            Event::Ended(ended) => {
                self.task_ended(ended);
                // Whatever else has ended by now goes into the same call.
                while let Some(ended) = self.tasks.try_join_next_with_id() {
                    self.task_ended(ended);
                }
            }
            Event::Answered(outcomes) => self.answered(outcomes?),
            Event::Leased(outcomes) => self.leased(outcomes?)?,
            Event::Extended(outcomes) => self.were_extended(outcomes?),
            Event::HeartbeatDue => self.extend(),
            Event::Amended => {
                self.amended_meanwhile |= self.leasing.is_some();
                if !self.running.is_empty() {
                    self.extend_soon();
                }
            }
            Event::WorkHinted => self.hungry = true,
            Event::OfferDue => {
                self.offer_at = None;
                self.finished.extend(self.held_back.drain(..));
            }
        }
        Ok(())
    }

    fn leased(&mut self, outcomes: Vec<Outcome>) -> Result<(), StationError> {
        for outcome in outcomes {
            match outcome {
                Outcome::Applied(Effect::Leased(grants)) | Outcome::Duplicate(Effect::Leased(grants)) => {
                    // Fewer than asked for is not the end; none is.
                    self.hungry |= !grants.is_empty();
                    grants.into_iter().for_each(|grant| self.start(grant));
                }
                Outcome::Invalid(Invalid::UnknownRoute(route)) => return Err(unknown_route(&route)),
                Outcome::Invalid(invalid) => return Err(StationError::Broken(invalid.to_string())),
                refused => tracing::debug!(route = %self.worker.route, ?refused, "no lease now"),
            }
        }
        if std::mem::take(&mut self.amended_meanwhile) {
            self.extend_soon();
        }
        Ok(())
    }

    /// Has the handler work on a grant; gives it back if the worker is stopping.
    fn start(&mut self, grant: Grant) {
        let lease = LeaseKey { id: grant.id, token: grant.token };
        if self.stage != Stage::Open {
            let op = decide::release(lease, Duration::ZERO);
            return self.finished.push_back(Finished { lease, op, offers: 0 });
        }
        let (desk, job) = Desk::open(&grant);
        let (handler, limit) = (self.worker.handler.clone(), self.worker.options.timeout);
        let task = self.tasks.spawn(attend(handler, grant.payload, job, limit));
        self.tokens.insert(task.id(), grant.token);
        self.running.insert(grant.token, Running { lease, desk });
        self.heartbeat_at.get_or_insert_with(|| Instant::now() + heartbeat(self.lease_ms));
    }

    fn task_ended(&mut self, ended: TaskEnd) {
        let (id, ended) = match ended {
            Ok((id, returned)) => (id, Ended::Returned(returned)),
            Err(error) => (error.id(), ended_badly(error)),
        };
        let Some(running) = self.tokens.remove(&id).and_then(|token| self.running.remove(&token)) else { return };
        let lease = running.lease;
        if let Ended::Panicked(_) = ended {
            tracing::error!(request = %lease.id, route = %self.worker.route, "a handler panicked; its request counts a crash");
        }
        match decide::operation(lease, running.hold(), ended) {
            Some(op) => self.finished.push_back(Finished { lease, op, offers: 0 }),
            None => self.dropped(lease),
        }
    }

    fn dropped(&self, lease: LeaseKey) {
        let LeaseKey { id, token } = lease;
        tracing::warn!(request = %id, %token, route = %self.worker.route, "the lease was lost, so the result was dropped");
    }

    fn answered(&mut self, outcomes: Vec<Outcome>) {
        let offered = std::mem::take(&mut self.offered);
        for (mut finished, outcome) in offered.into_iter().zip(outcomes) {
            let lease = finished.lease;
            match decide::aftermath(lease, &finished.op, finished.offers, &outcome) {
                Aftermath::Recorded => {}
                Aftermath::Superseded => {
                    tracing::info!(request = %lease.id, route = %self.worker.route, "superseded; to be worked on anew");
                }
                Aftermath::Lost => self.dropped(lease),
                Aftermath::Later => {
                    finished.offers += 1;
                    self.held_back.push(finished);
                    self.offer_at.get_or_insert_with(|| Instant::now() + OFFER_GAP);
                }
                Aftermath::Instead(op) => {
                    tracing::warn!(request = %lease.id, route = %self.worker.route, ?outcome, "a result was refused");
                    self.finished.push_back(Finished { lease, op: *op, offers: 0 });
                }
                Aftermath::Abandoned => {
                    tracing::error!(request = %lease.id, route = %self.worker.route, ?outcome, "a lease is left to run out");
                }
            }
        }
    }

    fn extend_soon(&mut self) {
        self.heartbeat_at = Some(decide::sooner(self.heartbeat_at, self.heartbeat_last, NOTICE_GAP));
    }

    /// One heartbeat for everything in hand, results that wait for the store included.
    fn extend(&mut self) {
        let running = self.running.values().filter(|running| running.hold() != Hold::Lost).map(|running| running.lease);
        let finished = self.finished.iter().chain(&self.offered).chain(&self.held_back).map(|finished| finished.lease);
        self.extended = running.chain(finished).collect();
        if self.extended.is_empty() {
            self.heartbeat_at = None;
            return;
        }
        let lease_ms = Some(self.lease_ms);
        let extend = |&LeaseKey { id, token }: &LeaseKey| Op::Extend(Extend { id, token, lease_ms });
        self.extending = self.call(self.extended.iter().map(extend).collect());
        self.heartbeat_last = Instant::now();
        self.heartbeat_at = Some(self.heartbeat_last + heartbeat(self.lease_ms));
    }

    fn were_extended(&mut self, outcomes: Vec<Outcome>) {
        for (lease, outcome) in std::mem::take(&mut self.extended).into_iter().zip(outcomes) {
            match (self.running.get_mut(&lease.token), outcome) {
                (Some(running), Outcome::Applied(Effect::Extended(_, notices))) => running.desk.list(notices),
                (Some(running), Outcome::Stale(_) | Outcome::NotFound(_)) => {
                    tracing::warn!(request = %lease.id, route = %self.worker.route, "a lease was lost to a handler at work");
                    running.desk.tell(JobNotice::Withdrawn);
                }
                // It ended meanwhile; the store says what becomes of its result.
                _ => {}
            }
        }
    }

    fn grace_is_over(&mut self) {
        if let Stage::LastCalls(_) = self.stage {
            let leases = self.running.len() + self.unanswered();
            tracing::error!(route = %self.worker.route, leases, "the store took too long; leases are left to run out");
            self.stage = Stage::Over;
            return;
        }
        self.stage = Stage::LastCalls(Instant::now() + LAST_CALLS);
        self.tasks.abort_all();
        self.offer_at = None;
        for held in self.held_back.drain(..) {
            let op = decide::release(held.lease, Duration::ZERO);
            self.finished.push_back(Finished { op, ..held });
        }
    }
}

fn heartbeat(lease_ms: u64) -> Duration {
    Duration::from_millis((lease_ms / 3).max(1))
}

/// One run of the handler, within its time.
async fn attend(
    handler: Arc<dyn RawHandler>,
    payload: Payload,
    job: Job,
    limit: Option<Duration>,
) -> Result<Handled<Payload>, Failure> {
    let work = handler.handle(payload, job);
    let Some(limit) = limit else { return work.await };
    let late = |_elapsed| Err(Failure::retry(format!("the handler took longer than {} ms", limit.as_millis())));
    tokio::time::timeout(limit, work).await.unwrap_or_else(late)
}

fn ended_badly(error: JoinError) -> Ended {
    match error.try_into_panic() {
        Ok(panic) => Ended::Panicked(panic_message(&*panic)),
        Err(_aborted) => Ended::Aborted,
    }
}

/// What a panic said, if it was text.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
