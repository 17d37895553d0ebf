//! The courier: delivers what is ready for a destination without lanes, and records it.
//!
//! ```text
//!   seat ──▶ look: what is ready ──▶ targets ──▶ deliveries under way ──▶ record
//!              ▲    page by page      in order,      bounded                 │ in batches
//!              └──── hint, or poll ◀──────── failures rest and come again ◀──┘
//! ```
//!
//! Failure modes: a crash between a delivery and its record makes it again, under the same
//! id. A courier that loses its seat stops at once; what it had under way may be delivered by
//! two, and is recorded by one. A target that fails is tried again without end, ever more
//! rarely, and holds up nobody else. A lost answer of the store or a full disk is waited for;
//! any other store error, and a sink that panics, ends the station.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use super::sink::{Sink, SinkError};
use super::stats::CourierStats;
use super::targets::{Backoff, Targets};
use crate::persist;
use crate::station::{Shutdown, StationError, bounded};
use crate::store::op::{Effect, Invalid, Lead, Op, Outcome, Publish, PublishResult, Seat, Stale};
use crate::store::query::{Found, ReadyDelivery};
use crate::store::{Changes, ReadExt, Store, StoreExt, Topic};
use crate::words::{BATCH_OPS_MAX, Destination, ErrorClass, ErrorNote, HolderName, RequestId, Seq, Token};

/// How many deliveries one look at the store brings.
const PAGE: usize = 256;
/// A look of more pages is not begun anew by every hint.
const PAGES_FEW: u32 = 8;
/// How long the last calls may take after the grace time is over.
const LAST_CALLS: Duration = Duration::from_secs(5);

/// How a courier delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CourierOptions {
    /// How many deliveries are under way at once, each for another target.
    pub in_flight: usize,
    /// How long the seat is taken for; a dead courier holds its destination up for so long.
    pub seat_ms: u64,
    /// How often to look for what no hint told of.
    pub poll: Duration,
    /// How long a target rests after its first failure; twice as long after each further one.
    pub backoff_first: Duration,
    /// How long it rests at the most.
    pub backoff_max: Duration,
    /// How long it rests at the most if the receiver asks for it.
    pub retry_after_max: Duration,
    /// How long deliveries under way have to end when the courier is told to stop.
    pub grace: Duration,
}

impl Default for CourierOptions {
    fn default() -> Self {
        CourierOptions {
            in_flight: 64,
            seat_ms: 30_000,
            poll: Duration::from_secs(1),
            backoff_first: Duration::from_millis(500),
            backoff_max: Duration::from_secs(300),
            retry_after_max: Duration::from_secs(3600),
            grace: Duration::from_secs(30),
        }
    }
}

/// The station that delivers to one destination.
///
/// Dropping its future is a crash: deliveries stop, and the seat runs out by itself.
pub struct Courier {
    /// Where the answers are.
    pub store: Arc<dyn Store>,
    /// Where the randomness of its waiting starts.
    pub seed: u64,
    /// Who delivers; unique to a process and its start.
    pub holder: HolderName,
    /// To which destination; no lane serves it.
    pub destination: Destination,
    /// What takes the answers.
    pub sink: Arc<dyn Sink>,
    /// How.
    pub options: CourierOptions,
    /// What it knows of its deliveries, for whoever watches it.
    pub stats: Arc<CourierStats>,
}

impl Courier {
    /// Delivers until told to stop, then lets what is under way end, records it, and gives
    /// the seat up.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), StationError> {
        let mut shift = Shift::new(self);
        match shutdown.run_until_cancelled(shift.work()).await {
            Some(ended) => ended,
            None => shift.finish().await,
        }
    }
}

/// What one delivery came to.
struct Ended {
    seq: Seq,
    publish: Publish,
    /// How often it had failed before.
    failures: u32,
    target: String,
    trace: Option<Box<str>>,
    result: Result<(), SinkError>,
}

/// The trace context that a request came with; a store that does not say holds no delivery up.
async fn trace_of(store: &dyn Store, id: RequestId) -> Option<Box<str>> {
    match store.get(id).await {
        Ok(Some(Found::Live(_, bodies))) => bodies.trace,
        _ => None,
    }
}

/// The right to deliver.
#[derive(Clone, Copy)]
struct Held {
    token: Token,
    keep_at: Instant,
}

/// A look at what is ready, page by page.
#[derive(Clone, Copy)]
struct Look {
    after: Option<Seq>,
    pages: u32,
    /// Whether it began with the oldest.
    whole: bool,
}

/// A courier at work. Its futures may be dropped at any point: what is not yet recorded
/// stays known, and is recorded by the next call.
struct Shift {
    courier: Courier,
    dice: fastrand::Rng,
    seat: Option<Held>,
    targets: Targets,
    look: Option<Look>,
    /// Somebody said that there is something to look for.
    hinted: bool,
    /// When to look from the start again, whatever hints say.
    look_at: Instant,
    /// How many pages the last whole look had, and the newest that was ever seen.
    last_pages: u32,
    newest: Option<Seq>,
    /// What the last page brought, until the next wait.
    page: BTreeMap<Seq, ReadyDelivery>,
    running: JoinSet<Ended>,
    unrecorded: Vec<(Seq, Publish)>,
}

impl Shift {
    fn new(courier: Courier) -> Shift {
        Shift {
            dice: fastrand::Rng::with_seed(courier.seed),
            courier,
            seat: None,
            targets: Targets::default(),
            look: None,
            hinted: true,
            look_at: Instant::now(),
            last_pages: 0,
            newest: None,
            page: BTreeMap::new(),
            running: JoinSet::new(),
            unrecorded: Vec::new(),
        }
    }

    async fn work(&mut self) -> Result<(), StationError> {
        let mut hints = self.courier.store.changes(Topic::Outbox(self.courier.destination.clone()));
        loop {
            self.run_once().await?;
            if self.seat.is_none() {
                // Whoever waits for the seat has no use for hints.
                tokio::time::sleep(self.courier.options.poll).await;
            } else if self.look.is_none() {
                self.wait(&mut hints).await?;
            }
        }
    }

    /// Does all that can be done without waiting for anybody but the store.
    async fn run_once(&mut self) -> Result<(), StationError> {
        self.keep_seat().await?;
        if self.seat.is_some() {
            self.look_on().await?;
            self.start().await?;
            self.gather_ended()?;
            self.record().await?;
        }
        self.page.clear();
        Ok(())
    }

    /// Waits for whatever happens first: a delivery ends, a hint, a rest is over, or it is time
    /// to look or to keep the seat.
    async fn wait(&mut self, hints: &mut Changes) -> Result<(), StationError> {
        let wake = self.next_wake();
        tokio::select! {
            biased;
            Some(ended) = self.running.join_next() => self.took(ended),
            () = hints.hinted() => {
                self.hinted = true;
                Ok(())
            }
            () = sleep_until(wake) => Ok(()),
        }
    }

    fn next_wake(&self) -> Instant {
        let wake = self.seat.map_or(self.look_at, |seat| seat.keep_at.min(self.look_at));
        // A target whose rest is over waits for room, if there is none.
        match self.targets.next_wake() {
            Some(rested) if self.has_room() => wake.min(rested),
            _ => wake,
        }
    }

    fn has_room(&self) -> bool {
        self.running.len() < self.courier.options.in_flight.clamp(1, BATCH_OPS_MAX)
    }

    fn lead(&self, ttl_ms: u64) -> Lead {
        let seat = Seat::Destination(self.courier.destination.clone());
        Lead { seat, holder: self.courier.holder.clone(), ttl_ms }
    }

    /// Takes the seat, or keeps it when a third of its time is over.
    async fn keep_seat(&mut self) -> Result<(), StationError> {
        let asked = Instant::now();
        if self.seat.is_some_and(|seat| seat.keep_at > asked) {
            return Ok(());
        }
        let ttl_ms = self.courier.options.seat_ms;
        match persist::apply_one(&*self.courier.store, self.lead(ttl_ms)).await? {
            Outcome::Applied(Effect::Led(token, _)) => {
                if self.seat.is_none_or(|seat| seat.token != token) {
                    self.drop_everything();
                }
                self.seat = Some(Held { token, keep_at: asked + Duration::from_millis(ttl_ms / 3) });
                Ok(())
            }
            Outcome::Stale(Stale::Seat { .. }) => {
                self.drop_everything();
                Ok(())
            }
            Outcome::Invalid(reason) => Err(StationError::Broken(reason.to_string())),
            other => Err(self.broken("its seat", &other)),
        }
    }

    /// Another delivers here, or did meanwhile: nothing that is known counts any longer.
    fn drop_everything(&mut self) {
        self.seat = None;
        self.targets = Targets::default();
        self.courier.stats.forget_all();
        self.running = JoinSet::new();
        self.unrecorded.clear();
        self.page.clear();
        (self.look, self.hinted, self.newest) = (None, true, None);
    }

    /// Reads one page of what is ready, if somebody said that there may be more.
    async fn look_on(&mut self) -> Result<(), StationError> {
        self.begin_look();
        let Some(look) = self.look else { return Ok(()) };
        let page = self.ready(look.after, PAGE).await?;
        let Some(last) = page.last().map(|delivery| delivery.seq) else {
            self.end_look(look);
            return Ok(());
        };
        self.newest = self.newest.max(Some(last));
        for delivery in page {
            self.targets.offer(&self.courier.sink.target(&delivery), delivery.seq);
            self.page.insert(delivery.seq, delivery);
        }
        self.look = Some(Look { after: Some(last), pages: look.pages.saturating_add(1), ..look });
        Ok(())
    }

    /// Begins a look if it is time. After a long one, hints only lead to what is newer than
    /// all that was seen; what became ready out of order waits for the next whole look.
    fn begin_look(&mut self) {
        if self.look.is_some() {
            return;
        }
        let few = self.last_pages <= PAGES_FEW;
        if Instant::now() >= self.look_at || self.targets.wants_look() || (self.hinted && few) {
            self.hinted = false;
            self.targets.begin_look();
            self.look = Some(Look { after: None, pages: 0, whole: true });
        } else if std::mem::take(&mut self.hinted) {
            self.look = Some(Look { after: self.newest, pages: 0, whole: false });
        }
    }

    fn end_look(&mut self, look: Look) {
        self.look = None;
        if look.whole {
            self.last_pages = look.pages;
            self.look_at = Instant::now() + bounded(self.courier.options.poll) * (1 + look.pages / PAGES_FEW);
        }
    }

    async fn ready(&self, after: Option<Seq>, limit: usize) -> Result<Vec<ReadyDelivery>, StationError> {
        let Courier { store, destination, .. } = &self.courier;
        Ok(persist::read(|| store.ready_after(destination.clone(), after, limit)).await?)
    }

    /// Starts what may start. Each delivery is as the store has it now: it may have been
    /// withdrawn or superseded while it waited.
    async fn start(&mut self) -> Result<(), StationError> {
        while self.has_room()
            && let Some(seq) = self.targets.next(Instant::now())
        {
            let Some(delivery) = self.fresh(seq).await? else {
                self.targets.forget(seq);
                continue;
            };
            let target = self.courier.sink.target(&delivery);
            if self.targets.is_for(seq, &target) {
                self.deliver(delivery, target);
            } else {
                // Another answer is ready by now, and for somebody else.
                self.targets.forget(seq);
                self.targets.offer(&target, seq);
            }
        }
        Ok(())
    }

    async fn fresh(&mut self, seq: Seq) -> Result<Option<ReadyDelivery>, StationError> {
        if let Some(delivery) = self.page.remove(&seq) {
            return Ok(Some(delivery));
        }
        let found = self.ready(seq.0.checked_sub(1).map(Seq), 1).await?;
        Ok(found.into_iter().find(|delivery| delivery.seq == seq))
    }

    fn deliver(&mut self, mut delivery: ReadyDelivery, target: String) {
        let Some(Held { token: owner, .. }) = self.seat else { return };
        let (seq, sink, store) = (delivery.seq, self.courier.sink.clone(), self.courier.store.clone());
        let (destination, id, answer) = (self.courier.destination.clone(), delivery.id, delivery.answer);
        let publish = Publish { destination, owner, id, answer, result: PublishResult::Delivered };
        let failures = delivery.failures;
        self.targets.start(seq);
        self.courier.stats.forget(&id);
        self.running.spawn(async move {
            if sink.wants_trace() {
                delivery.trace = trace_of(&*store, id).await;
            }
            let result = sink.deliver(&delivery).await;
            Ended { seq, publish, failures, target, trace: delivery.trace, result }
        });
    }

    fn gather_ended(&mut self) -> Result<(), StationError> {
        while let Some(ended) = self.running.try_join_next() {
            self.took(ended)?;
        }
        Ok(())
    }

    fn took(&mut self, ended: Result<Ended, JoinError>) -> Result<(), StationError> {
        let Ended { seq, publish, failures: before, target, trace, result } = ended
            .map_err(|error| StationError::Broken(format!("the sink of {}: {error}", self.courier.destination)))?;
        match result {
            Ok(()) => {
                self.targets.made(seq);
                self.unrecorded.push((seq, publish));
            }
            Err(SinkError::Refused(error)) => {
                tracing::warn!(request = %publish.id, trace, %target, %error, "a delivery was refused for good: it is a dead letter");
                let result = PublishResult::Refused(ErrorNote::new(ErrorClass::Fatal, &error));
                self.targets.made(seq);
                self.unrecorded.push((seq, Publish { result, ..publish }));
            }
            Err(SinkError::Retry { after, error }) => {
                let (backoff, dice) = (self.backoff(), self.dice.f64());
                let now = Instant::now();
                let (failures, until) = self.targets.failed(seq, now, |failures| backoff.wait(failures, after, dice));
                self.courier.stats.set_due(publish.id, until, now);
                let rest_ms = (until - now).as_millis();
                tracing::warn!(request = %publish.id, trace, %target, failures, rest_ms, %error, "a delivery failed: it is tried again");
                let error = ErrorNote::new(ErrorClass::Transport, &error);
                self.unrecorded.push((seq, Publish { result: PublishResult::Failed { error, before }, ..publish }));
            }
        }
        Ok(())
    }

    fn backoff(&self) -> Backoff {
        let options = &self.courier.options;
        Backoff { first: options.backoff_first, max: options.backoff_max, asked_max: options.retry_after_max }
    }

    /// Records what became of deliveries, or why they failed, all that ended since the last time in one commit.
    async fn record(&mut self) -> Result<(), StationError> {
        if self.unrecorded.is_empty() {
            return Ok(());
        }
        let batch: Vec<Op> = self.unrecorded.iter().map(|(_, publish)| Op::Publish(publish.clone())).collect();
        let outcomes = persist::apply(&*self.courier.store, batch).await?;
        for (seq, _) in std::mem::take(&mut self.unrecorded) {
            self.targets.recorded(seq);
        }
        for outcome in &outcomes {
            match outcome {
                Outcome::Applied(_) | Outcome::Duplicate(_) => {}
                // It changed on its way, and is delivered again if it is ready again.
                Outcome::Stale(Stale::Delivery(..)) | Outcome::NotFound(_) => self.hinted = true,
                Outcome::Stale(Stale::Seat { .. }) => {
                    self.drop_everything();
                    return Ok(());
                }
                // Its route was given another destination meanwhile.
                Outcome::Invalid(Invalid::OtherDestination(_)) => {}
                Outcome::Invalid(reason) => return Err(StationError::Broken(reason.to_string())),
                other => return Err(self.broken("a delivery", other)),
            }
        }
        Ok(())
    }

    fn broken(&self, what: &str, outcome: &Outcome) -> StationError {
        StationError::Broken(format!(
            "the store refused the courier of {} {what}: {outcome:?}",
            self.courier.destination
        ))
    }

    /// Lets what is under way end within the grace time, and records it; what does not end is
    /// given up, and delivered again by the next courier.
    async fn finish(mut self) -> Result<(), StationError> {
        if self.seat.is_none() {
            return Ok(());
        }
        let grace = bounded(self.courier.options.grace);
        let keep_ms = u64::try_from((grace + LAST_CALLS).as_millis()).unwrap_or(u64::MAX);
        let kept = timeout(LAST_CALLS, persist::apply_one(&*self.courier.store, self.lead(keep_ms))).await;
        if let Ok(kept) = kept {
            kept?;
        }
        // Too late is no failure: whatever ended by then is recorded.
        if let Ok(drained) = timeout(grace, self.drain()).await {
            drained?;
        }
        if let Ok(recorded) = timeout(LAST_CALLS, self.record()).await {
            recorded?;
        }
        let stepped_down = timeout(LAST_CALLS, self.courier.store.apply_one(self.lead(0))).await;
        if !matches!(stepped_down, Ok(Ok(_))) {
            tracing::warn!(destination = %self.courier.destination, "the seat was not given up: it runs out by itself");
        }
        Ok(())
    }

    async fn drain(&mut self) -> Result<(), StationError> {
        while let Some(ended) = self.running.join_next().await {
            self.took(ended)?;
        }
        Ok(())
    }
}
