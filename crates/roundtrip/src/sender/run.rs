//! The sender's loop: holds the seats of its lanes, looks at the outside, settles what
//! it shows, sends again what is missing there, and puts ready answers on free slots.
//!
//! ```text
//!   seat ──▶ look ──▶ decide ──▶ settle ──▶ send again ──▶ cancel, or dearer if stuck ──▶ fill, assign
//!                                (stored)                  (stored, then sent)            (stored, then sent)
//! ```
//!
//! Failure modes: a crash between a commit and its broadcast leaves stored bytes that no
//! one has sent; the first round after any start sends everything again that is not mined.
//! An outside that does not answer means "maybe sent", and is asked again. Bytes that the
//! outside proves it will never take are cancelled on their slot, and their answers wait
//! for a person. A slot that was passed over is filled when it stays empty. A seat that
//! somebody else took ends all writing on that lane at once, by the store's refusal.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::assign::Gate;
use super::broadcast::{Answered, Outgoing, next_answered};
use super::chain::{Because, Cargo, Chain, Unreachable};
use super::decide::{Fault, Memory, Patience, Plan, decide};
use super::pack::Since;
use super::rebuild::Rebuild;
use super::stats::SenderStats;
use super::terms::RouteTerms;
use super::{LaneStatus, ParcelStage};
use crate::clock::Clock;
use crate::persist;
use crate::station::{Shutdown, StationError, seat_is_due};
use crate::store::op::{Attempt, Effect, Judgement, LaneOrder, Lead, Op, Order, Outcome, Seat, Settle, Sight, Stale};
use crate::store::query::{LaneView, ParcelView};
use crate::store::{Changes, ReadExt, Store, Topic};
use crate::words::{
    BATCH_BYTES_MAX, BATCH_OPS_MAX, Destination, HolderName, LaneName, Nonce, RequestId, RouteName, Token, UnixMs,
};

/// How many answers a lane puts off at most.
const LATER_MAX: usize = 256;
/// How many answers that failed together a lane remembers, but for those of one parcel.
const ALONE_MAX: usize = 1024;
/// Why a lane pauses whose chain broke its word.
const TOOK_BACK: &str = "the chain took back what was final, and with it answers that count as settled: compare them \
                         with the chain, then resume the lane";
/// How long giving up the seats may take.
const STEP_DOWN_WITHIN: Duration = Duration::from_secs(5);

/// In which order answers go onto the lanes of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOrder {
    /// Over all lanes: as fast as they go, in no order between lanes.
    Spread,
    /// On the first lane alone, in the order of admission: an answer waits for those of
    /// older requests, unless they are dead letters or have ended. A delivery whose
    /// transaction had no effect goes out again after those that were under way.
    Strict,
}

/// What becomes of the lowest slot of a lane that is not mined in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTimeout {
    /// It pays more, if anything has moved; else the same bytes are sent again.
    #[default]
    Bump,
    /// It is filled with nothing, and its answers go out again on another slot once that is
    /// final, unless the bytes that carry them are mined first.
    FillAndRequeue,
}

/// What puts a lane into quarantine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuarantineOn {
    /// What the chain says the lane is to blame for.
    #[default]
    Blame,
    /// Every transaction in a block that had no effect, also for lack of gas.
    NoEffect,
}

impl QuarantineOn {
    fn covers(self, fault: Fault) -> bool {
        match self {
            QuarantineOn::Blame => fault == Fault::OfTheLane,
            QuarantineOn::NoEffect => true,
        }
    }
}

/// How a sender sends.
#[derive(Clone, Debug)]
pub struct SenderOptions {
    /// In which order.
    pub order: SendOrder,
    /// How many parcels may be under way on a lane.
    pub window: u32,
    /// How many answers one parcel carries at most.
    pub parcel_max: usize,
    /// How long a parcel that is not full waits for company, from when its first answer was seen
    /// to be ready; zero is not at all. One that carries answers into a gap does not wait.
    pub parcel_wait: Duration,
    /// How long to wait for the outside.
    pub patience: Patience,
    /// What to do about the lowest slot that is not mined within [`Patience::bump_ms`].
    pub on_timeout: OnTimeout,
    /// What puts a lane into quarantine: it takes nothing new, and the others take the answers.
    /// In a strict order there is no other, and all wait.
    pub quarantine_on: QuarantineOn,
    /// How long a quarantine is; a person's [`Order::Resume`] ends it sooner.
    pub quarantine_ms: u64,
    /// How long a seat is taken for; a dead sender holds its lanes up for so long.
    pub seat_ms: u64,
    /// How often to look at the outside.
    pub poll: Duration,
    /// How long the outside may take to answer; then it is asked again.
    pub answer_within: Duration,
    /// What routes have of their own.
    pub routes: BTreeMap<RouteName, RouteTerms>,
}

impl Default for SenderOptions {
    fn default() -> Self {
        SenderOptions {
            order: SendOrder::Spread,
            window: 16,
            parcel_max: 1,
            parcel_wait: Duration::ZERO,
            patience: Patience { resend_ms: 15_000, bump_ms: 60_000 },
            on_timeout: OnTimeout::default(),
            quarantine_on: QuarantineOn::default(),
            quarantine_ms: 24 * 3_600_000,
            seat_ms: 15_000,
            poll: Duration::from_millis(500),
            answer_within: Duration::from_secs(10),
            routes: BTreeMap::new(),
        }
    }
}

/// The station that sends the answers of one destination.
///
/// Dropping its future is a crash: the seats run out by themselves, and whoever takes
/// them next sends again what was stored.
pub struct Sender {
    /// Where the answers are.
    pub store: Arc<dyn Store>,
    /// Where they go.
    pub chain: Arc<dyn Chain>,
    /// What the time is.
    pub clock: Arc<dyn Clock>,
    /// Who sends; unique to a process and its start.
    pub holder: HolderName,
    /// Whose answers.
    pub destination: Destination,
    /// The lanes that it may use.
    pub lanes: Vec<LaneName>,
    /// How.
    pub options: SenderOptions,
    /// By what a person asks it to rebuild its lanes.
    pub rebuild: Rebuild,
    /// Where it tells what it knows beyond the store.
    pub stats: Arc<SenderStats>,
}

/// What a sender knows of a lane beyond the store.
pub(super) struct Held {
    pub(super) name: LaneName,
    /// Whether it is in the store, and was compared with the outside since the start.
    pub(super) open: bool,
    /// Whether it was stopped when it was last looked at.
    pub(super) stopped: bool,
    pub(super) seat: Option<Token>,
    /// When it was last asked for, by our own clock.
    seat_asked_at: Option<UnixMs>,
    pub(super) memory: Memory,
    /// Broadcasts under way.
    pub(super) sending: JoinSet<Answered>,
    /// What the last look left room for; none if the lane is to be looked at anew.
    pub(super) room: Option<Room>,
    /// Answers that have to wait although they are ready, and until when.
    pub(super) later: BTreeMap<RequestId, UnixMs>,
    /// Answers that failed together, so that each is tried alone. A start forgets them, which
    /// costs another failure.
    pub(super) alone: BTreeSet<RequestId>,
    /// Whether an answer was ended or put off, so that those after it may go.
    pub(super) passed: bool,
}

impl Held {
    fn new(name: &LaneName) -> Held {
        let (name, memory, sending) = (name.clone(), Memory::default(), JoinSet::new());
        let (later, alone, passed) = (BTreeMap::new(), BTreeSet::new(), false);
        let (open, stopped, seat, seat_asked_at, room) = (false, false, None, None, None);
        Held { name, open, stopped, seat, seat_asked_at, memory, sending, room, later, alone, passed }
    }

    /// Remembers that these answers failed together.
    fn split(&mut self, failed: &[RequestId]) {
        if self.alone.len() >= ALONE_MAX {
            self.alone.clear();
        }
        self.alone.extend(failed);
    }

    /// Puts an answer off, unless too many are put off already: then those behind it wait.
    pub(super) fn put_off(&mut self, id: RequestId, until: UnixMs) {
        if self.later.len() < LATER_MAX {
            self.later.insert(id, until);
            self.passed = true;
        }
    }

    /// Whether more can be assigned by what the last look showed, not long ago.
    fn has_room(&self, looked_within: Duration) -> bool {
        self.room.as_ref().is_some_and(|room| room.parcels > 0 && room.looked.elapsed() < looked_within)
    }
}

/// Whether there may be more to send at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    Maybe,
}

/// The free slots of a lane.
pub(super) struct Room {
    /// When the outside was looked at.
    looked: Instant,
    pub(super) token: Token,
    pub(super) next: Nonce,
    pub(super) parcels: usize,
    /// Slots below `next` that are to be filled, lowest first.
    pub(super) gaps: Vec<Nonce>,
    /// Whether gaps may be filled with answers.
    pub(super) active: bool,
}

impl Sender {
    /// Sends until told to stop, then gives its seats up.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), StationError> {
        let mut lanes: Vec<Held> = self.lanes.iter().map(Held::new).collect();
        let ended = shutdown.run_until_cancelled(self.rounds(&mut lanes)).await;
        if let Some(Err(error)) = ended {
            return Err(error);
        }
        self.step_down(&lanes).await;
        Ok(())
    }

    async fn rounds(&self, lanes: &mut [Held]) -> Result<(), StationError> {
        let mut ready = self.store.changes(Topic::Outbox(self.destination.clone()));
        let (mut gate, mut since, mut rebuilding) = (Gate::default(), Since::default(), None);
        loop {
            while self.run_once(lanes, &mut gate, &mut since).await? == Left::Maybe {}
            self.go_on_rebuilding(lanes, &mut rebuilding).await?;
            self.wait(lanes, &mut ready, &since).await?;
            lanes.iter_mut().for_each(|lane| lane.room = None);
        }
    }

    /// Waits for a hint, or until it is time to look again or a parcel has waited long enough; hears
    /// meanwhile what the outside says to broadcasts.
    async fn wait(&self, lanes: &mut [Held], ready: &mut Changes, since: &Since) -> Result<(), StationError> {
        let ripe = since.ripe_in(self.clock.now());
        let mut poll = pin!(tokio::time::sleep(ripe.map_or(self.options.poll, |ripe| ripe.min(self.options.poll))));
        loop {
            let (at, answered) = tokio::select! {
                biased;
                () = ready.hinted() => return Ok(()),
                () = &mut poll => return Ok(()),
                answered = next_answered(lanes) => answered,
            };
            self.received(&mut lanes[at], answered).await?;
        }
    }

    /// One round over all lanes.
    async fn run_once(&self, lanes: &mut [Held], gate: &mut Gate, since: &mut Since) -> Result<Left, StationError> {
        for tended in join_all(lanes.iter_mut().map(|lane| self.tend(lane))).await {
            tended?;
        }
        self.assign_ready(lanes, gate, since).await
    }

    /// Looks at a lane, unless it is known to have room: what is ready goes out first.
    async fn tend(&self, lane: &mut Held) -> Result<(), StationError> {
        while let Some(answered) = lane.sending.try_join_next() {
            self.received(lane, answered).await?;
        }
        let held = self.hold_seat(lane).await?;
        if held.is_some() && lane.has_room(self.options.poll) {
            return Ok(());
        }
        lane.room = match held {
            Some(token) => self.look(lane, token).await?,
            None => {
                self.stats.set_at_cap(&lane.name, None);
                None
            }
        };
        Ok(())
    }

    /// Settles and sends again what is under way on a lane; answers what room there is.
    async fn look(&self, lane: &mut Held, token: Token) -> Result<Option<Room>, StationError> {
        let looked = Instant::now();
        let Some(mut view) = self.view(&lane.name).await? else { return Ok(None) };
        self.know_routes(lane, &mut view).await?;
        let parcel = |nonce: &Nonce| {
            let at = view.parcels.binary_search_by_key(nonce, |parcel| parcel.nonce).ok()?;
            view.parcels.get(at)
        };
        lane.memory.sent.retain(|nonce, _| parcel(nonce).is_some());
        let seen = match self.ask(self.chain.look(&lane.name, &view.parcels)).await {
            Ok(seen) => seen,
            Err(error) => {
                tracing::warn!(lane = %lane.name, %error, "looked at a lane in vain");
                return Ok(None);
            }
        };
        let patience =
            |parcel: Option<&ParcelView>| self.patience_with(parcel.and_then(|parcel| parcel.route.as_ref()));
        let mut plan = decide(&view, &seen, &lane.memory, patience, self.clock.now());
        if plan.wants_other_bytes() && !lane.sending.is_empty() {
            // An answer that is still to come says whether those that were sent can be mined.
            self.hear_all(lane).await?;
            return Box::pin(self.look(lane, token)).await;
        }
        lane.memory.gaps.clone_from(&plan.gaps);
        lane.memory.broke = plan.broke;
        lane.memory.highest = plan.highest;
        let stopped = view.status == LaneStatus::Stopped || plan.observe.is_some();
        let was_stopped = std::mem::replace(&mut lane.stopped, stopped);
        if let Some(outside) = plan.observe.filter(|_| !was_stopped) {
            tracing::error!(lane = %lane.name, outside = outside.0, "the chain has seen more of this lane than the store: it stops until reconciled");
        }
        let paused = matches!(view.status, LaneStatus::Paused { .. });
        self.replace_failed(&mut plan, parcel).await?;
        if !self.settle(lane, token, &plan, paused).await? {
            return Ok(None);
        }
        // What a reorg took away was not stuck: it is sent again as after a start, at its price.
        for (nonce, ..) in plan.settles.iter().filter(|(_, _, sight)| *sight == Sight::Back) {
            lane.memory.sent.remove(nonce);
        }
        self.put_off_again(lane, &plan, parcel);
        self.send(lane, plan.resend.iter().filter_map(parcel).filter_map(Outgoing::newest).collect()).await?;
        for parcel in plan.cancel.iter().filter_map(parcel) {
            self.try_again(lane, token, parcel, Cargo::Nothing(&parcel.attempts)).await?;
        }
        for (nonce, because) in &plan.bump {
            let Some(parcel) = parcel(nonce) else { continue };
            let requeue =
                self.on_timeout_of(parcel.route.as_ref()) == OnTimeout::FillAndRequeue && *because == Because::Late;
            if requeue && parcel.cancel.is_none() && !parcel.deliveries.is_empty() {
                self.requeue(lane, parcel.nonce).await?;
            } else {
                self.try_again(lane, token, parcel, Cargo::Dearer(&parcel.attempts, *because)).await?;
            }
        }
        let at_cap = |parcel: &&ParcelView| lane.memory.sent.get(&parcel.nonce).is_some_and(|sent| sent.at_cap);
        let mut unmined = view.parcels.iter().filter(|parcel| parcel.stage == ParcelStage::Assigned);
        self.stats.set_at_cap(&lane.name, unmined.find(at_cap).map(|parcel| parcel.nonce));
        if lane.seat.is_none() {
            return Ok(None);
        }
        // What was settled has made room, which the next look shows.
        let Plan { room: parcels, fill: gaps, active, .. } = plan;
        Ok(Some(Room { looked, token, next: view.next, parcels, gaps, active }))
    }

    /// An answer whose transaction had no effect goes out again, not at once, and alone: of
    /// several that went together one may be to blame.
    fn put_off_again<'a>(&self, lane: &mut Held, plan: &Plan, parcel: impl Fn(&Nonce) -> Option<&'a ParcelView>) {
        let until = self.clock.now().plus(self.options.patience.resend_ms);
        let again = |sight: &Sight| matches!(sight, Sight::Final(_, Judgement::Again(_)));
        for (nonce, ..) in plan.settles.iter().filter(|(_, _, sight)| again(sight)) {
            let Some(ParcelView { deliveries, .. }) = parcel(nonce) else { continue };
            deliveries.iter().for_each(|id| lane.put_off(*id, until));
            if deliveries.len() > 1 {
                lane.split(deliveries);
            }
        }
    }

    /// Takes or keeps the lane's seat, and opens the lane if it is new.
    async fn hold_seat(&self, lane: &mut Held) -> Result<Option<Token>, StationError> {
        let now = self.clock.now();
        if !seat_is_due(now, lane.seat_asked_at, lane.seat.is_some(), self.options.seat_ms) {
            return Ok(lane.seat);
        }
        if !lane.open && !self.open(lane).await? {
            return Ok(None);
        }
        let seat = Seat::Lane(lane.name.clone());
        let lead = Lead { seat, holder: self.holder.clone(), ttl_ms: self.options.seat_ms };
        lane.seat = match persist::apply_one(&*self.store, lead).await? {
            Outcome::Applied(Effect::Led(token, _)) => {
                // Whatever was sent under another token is sent again.
                if lane.seat != Some(token) {
                    (lane.memory, lane.room) = (Memory::default(), None);
                }
                Some(token)
            }
            Outcome::Stale(_) => None,
            other => return Err(refused("the seat of a lane", &other)),
        };
        lane.seat_asked_at = Some(now);
        Ok(lane.seat)
    }

    async fn open(&self, lane: &mut Held) -> Result<bool, StationError> {
        let Ok(seen) = self.ask(self.chain.look(&lane.name, &[])).await else { return Ok(false) };
        let (destination, window) = (self.destination.clone(), self.options.window);
        // One that is there already is compared with the outside, whoever has its seat.
        let orders =
            [Order::Open { destination, window, first: seen.pending }, Order::Observe { outside_next: seen.pending }];
        let batch = orders.map(|order| Op::Lane(LaneOrder { lane: lane.name.clone(), order })).to_vec();
        match persist::apply(&*self.store, batch).await?.into_iter().find(|outcome| !outcome.holds()) {
            None => {
                lane.open = true;
                Ok(true)
            }
            Some(refusal) => Err(refused("opening a lane", &refusal)),
        }
    }

    pub(super) async fn view(&self, lane: &LaneName) -> Result<Option<LaneView>, StationError> {
        Ok(persist::read(|| self.store.lane(lane.clone())).await?)
    }

    /// Records what the outside shows; `false` if somebody else has the seat.
    async fn settle(&self, lane: &mut Held, owner: Token, plan: &Plan, paused: bool) -> Result<bool, StationError> {
        let order = |order| Op::Lane(LaneOrder { lane: lane.name.clone(), order });
        let mut ops: Vec<Op> = Vec::new();
        if plan.resume {
            tracing::info!(lane = %lane.name, "a lane that could not pay is tried again");
            ops.push(order(Order::Funded));
        }
        ops.extend(plan.observe.map(|outside_next| order(Order::Observe { outside_next })));
        ops.extend(plan.settled.map(|below| order(Order::Settled { below })));
        if plan.took_back && !paused {
            tracing::error!(lane = %lane.name, "{TOOK_BACK}");
            ops.push(order(Order::Pause { reason: TOOK_BACK.into() }));
        }
        if let Some(fault) = plan.fault.filter(|fault| self.options.quarantine_on.covers(*fault)) {
            tracing::warn!(lane = %lane.name, ?fault, "a transaction had no effect: the lane is in quarantine");
            ops.push(order(Order::Quarantine { for_ms: self.options.quarantine_ms }));
        }
        for (nonce, attempt) in plan.adopt.iter().cloned() {
            tracing::warn!(lane = %lane.name, nonce = nonce.0, hash = %attempt.hash, "a slot was used by bytes of ours that the store forgot");
            ops.push(Op::Attempt(Attempt { lane: lane.name.clone(), owner, nonce, attempt }));
        }
        for (nonce, expected, sight) in plan.settles.iter().cloned() {
            ops.push(Op::Settle(Settle { lane: lane.name.clone(), owner, nonce, expected, sight }));
        }
        for batch in batches(ops) {
            let outcomes = persist::apply(&*self.store, batch).await?;
            if !self.still_ours(lane, &outcomes) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether no outcome says that the seat is somebody else's.
    pub(super) fn still_ours(&self, lane: &mut Held, outcomes: &[Outcome]) -> bool {
        let lost = |outcome: &Outcome| matches!(outcome, Outcome::Stale(Stale::Seat { .. } | Stale::RolledBack));
        if outcomes.iter().any(lost) {
            tracing::warn!(lane = %lane.name, "somebody else has this lane now");
            (lane.seat, lane.room) = (None, None);
        }
        lane.seat.is_some()
    }

    /// Asks the outside, for as long as it may take.
    pub(super) async fn ask<T, E: From<Unreachable>>(&self, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        match tokio::time::timeout(self.options.answer_within, call).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(Unreachable("no answer in time".into()).into()),
        }
    }

    async fn step_down(&self, lanes: &[Held]) {
        let lead = |lane: &Held| {
            let seat = Seat::Lane(lane.name.clone());
            Op::Lead(Lead { seat, holder: self.holder.clone(), ttl_ms: 0 })
        };
        let batch: Vec<Op> = lanes.iter().filter(|lane| lane.seat.is_some()).map(lead).collect();
        let given_up = tokio::time::timeout(STEP_DOWN_WITHIN, persist::apply(&*self.store, batch)).await;
        if !matches!(given_up, Ok(Ok(_))) {
            tracing::warn!("the seats of lanes were not given up: they run out by themselves");
        }
    }
}

/// Cuts operations into batches that a store takes: a full window and its gaps may be more.
pub(super) fn batches(ops: Vec<Op>) -> Vec<Vec<Op>> {
    let (mut batches, mut bytes) = (Vec::<Vec<Op>>::new(), 0);
    for op in ops {
        bytes += op.payload_bytes();
        match batches.last_mut().filter(|batch| batch.len() < BATCH_OPS_MAX && bytes <= BATCH_BYTES_MAX) {
            Some(batch) => batch.push(op),
            None => {
                bytes = op.payload_bytes();
                batches.push(vec![op]);
            }
        }
    }
    batches
}

fn refused(what: &str, outcome: &Outcome) -> StationError {
    match outcome {
        Outcome::Invalid(reason) => StationError::Broken(format!("{what} was refused: {reason}")),
        other => StationError::Broken(format!("{what} was refused: {other:?}")),
    }
}
