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

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::chain::{Cargo, Chain, ChainFuture, Reception, Unreachable, Unsigned};
use super::decide::{Memory, Patience, Plan, Sent, decide};
use super::{AttemptKind, SignedAttempt};
use crate::clock::Clock;
use crate::inbox::StateKind;
use crate::persist;
use crate::station::{Shutdown, StationError, seat_is_due};
use crate::store::op::{
    AfterCancel, Assign, Attempt, Effect, Fill, Invalid, LaneOrder, Lead, NewParcel, Op, Order, Outcome, Reject, Seat,
    Settle, Sight, Stale,
};
use crate::store::query::{LaneView, ListFilter, ParcelView, ReadyDelivery};
use crate::store::{Changes, ReadExt, Store, Topic};
use crate::words::{
    BATCH_OPS_MAX, Destination, ErrorClass, ErrorNote, HolderName, LaneName, Nonce, PAGE_MAX, PARCEL_MAX, RequestId,
    Seq, Token, UnixMs,
};

/// How long giving up the seats may take.
const STEP_DOWN_WITHIN: Duration = Duration::from_secs(5);
/// How many slots of a lane are signed for at once.
const SIGN_AT_ONCE: usize = 16;
/// How many parcels are stored in one commit, and sent in one broadcast.
const BROADCAST_MAX: usize = 100;
/// How many broadcasts of a lane are under way at most.
const BROADCASTS_AT_ONCE: usize = 4;

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

/// How a sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderOptions {
    /// In which order.
    pub order: SendOrder,
    /// How many parcels may be under way on a lane.
    pub window: u32,
    /// How many answers one parcel carries at most.
    pub parcel_max: usize,
    /// How long to wait for the outside.
    pub patience: Patience,
    /// How long a lane takes nothing new after one of its transactions had no effect.
    pub quarantine_ms: Option<u64>,
    /// How long a seat is taken for; a dead sender holds its lanes up for so long.
    pub seat_ms: u64,
    /// How often to look at the outside.
    pub poll: Duration,
    /// How long the outside may take to answer; then it is asked again.
    pub answer_within: Duration,
}

impl Default for SenderOptions {
    fn default() -> Self {
        SenderOptions {
            order: SendOrder::Spread,
            window: 16,
            parcel_max: 1,
            patience: Patience { resend_ms: 15_000, bump_ms: 60_000 },
            quarantine_ms: None,
            seat_ms: 15_000,
            poll: Duration::from_millis(500),
            answer_within: Duration::from_secs(10),
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
}

/// What a sender knows of a lane beyond the store.
struct Held {
    name: LaneName,
    open: bool,
    seat: Option<Token>,
    /// When it was last asked for, by our own clock.
    seat_asked_at: Option<UnixMs>,
    memory: Memory,
    /// Broadcasts under way.
    sending: JoinSet<Answered>,
    /// What the last look left room for; none if the lane is to be looked at anew.
    room: Option<Room>,
}

/// Stored bytes that were sent, and how the outside received each.
struct Answered {
    outgoing: Vec<Outgoing>,
    receptions: Vec<Result<Reception, Unreachable>>,
}

impl Held {
    fn new(name: &LaneName) -> Held {
        let (name, memory, sending) = (name.clone(), Memory::default(), JoinSet::new());
        Held { name, open: false, seat: None, seat_asked_at: None, memory, sending, room: None }
    }

    /// Whether more can be assigned by what the last look showed, not long ago.
    fn has_room(&self, looked_within: Duration) -> bool {
        self.room.as_ref().is_some_and(|room| room.parcels > 0 && room.looked.elapsed() < looked_within)
    }
}

/// Whether there may be more to send at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    Maybe,
}

/// The free slots of a lane.
struct Room {
    /// When the outside was looked at.
    looked: Instant,
    token: Token,
    next: Nonce,
    parcels: usize,
    /// Slots below `next` that are to be filled, lowest first.
    gaps: Vec<Nonce>,
    /// Whether gaps may be filled with answers.
    active: bool,
}

/// Stored bytes on their way out.
struct Outgoing {
    nonce: Nonce,
    attempt: SignedAttempt,
    /// Whether they are the only ones that could carry their parcel's answers.
    sole_carrier: bool,
}

impl Outgoing {
    /// The newest bytes of a parcel.
    fn newest(parcel: &ParcelView) -> Option<Outgoing> {
        let attempt = parcel.attempts.last()?.clone();
        let sole_carrier = parcel.attempts.len() == 1 && attempt.kind == AttemptKind::Carry;
        Some(Outgoing { nonce: parcel.nonce, attempt, sole_carrier })
    }

    /// The first bytes of a parcel.
    fn first(nonce: Nonce, attempt: SignedAttempt) -> Outgoing {
        let sole_carrier = attempt.kind == AttemptKind::Carry;
        Outgoing { nonce, attempt, sole_carrier }
    }
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
        loop {
            while self.run_once(lanes).await? == Left::Maybe {}
            self.wait(lanes, &mut ready).await?;
            lanes.iter_mut().for_each(|lane| lane.room = None);
        }
    }

    /// Waits for a hint, or until it is time to look again; hears meanwhile what the
    /// outside says to broadcasts.
    async fn wait(&self, lanes: &mut [Held], ready: &mut Changes) -> Result<(), StationError> {
        let mut poll = pin!(tokio::time::sleep(self.options.poll));
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
    async fn run_once(&self, lanes: &mut [Held]) -> Result<Left, StationError> {
        for tended in join_all(lanes.iter_mut().map(|lane| self.tend(lane))).await {
            tended?;
        }
        self.assign_ready(lanes).await
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
            None => None,
        };
        Ok(())
    }

    /// Settles and sends again what is under way on a lane; answers what room there is.
    async fn look(&self, lane: &mut Held, token: Token) -> Result<Option<Room>, StationError> {
        let looked = Instant::now();
        let Some(view) = self.view(&lane.name).await? else { return Ok(None) };
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
        let plan = decide(&view, &seen, &lane.memory, self.options.patience, self.clock.now());
        if plan.wants_other_bytes() && !lane.sending.is_empty() {
            // An answer that is still to come says whether those that were sent can be mined.
            self.hear_all(lane).await?;
            return Box::pin(self.look(lane, token)).await;
        }
        lane.memory.gaps.clone_from(&plan.gaps);
        if !self.settle(lane, token, &plan).await? {
            return Ok(None);
        }
        // What a reorg took away was not stuck: it is sent again as after a start, at its price.
        for (nonce, ..) in plan.settles.iter().filter(|(_, _, sight)| *sight == Sight::Back) {
            lane.memory.sent.remove(nonce);
        }
        self.send(lane, plan.resend.iter().filter_map(parcel).filter_map(Outgoing::newest).collect()).await?;
        for parcel in plan.cancel.iter().filter_map(parcel) {
            self.try_again(lane, token, parcel, Cargo::Nothing(&parcel.attempts)).await?;
        }
        if let Some(parcel) = plan.bump.as_ref().and_then(parcel) {
            self.try_again(lane, token, parcel, Cargo::Dearer(&parcel.attempts)).await?;
        }
        if lane.seat.is_none() {
            return Ok(None);
        }
        // What was settled has made room, which the next look shows.
        let Plan { room: parcels, fill: gaps, active, .. } = plan;
        Ok(Some(Room { looked, token, next: view.next, parcels, gaps, active }))
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
        let order = Order::Open { destination, window, first: seen.pending };
        match persist::apply_one(&*self.store, LaneOrder { lane: lane.name.clone(), order }).await? {
            outcome if outcome.holds() => {
                lane.open = true;
                Ok(true)
            }
            other => Err(refused("opening a lane", &other)),
        }
    }

    async fn view(&self, lane: &LaneName) -> Result<Option<LaneView>, StationError> {
        Ok(persist::read(|| self.store.lane(lane.clone())).await?)
    }

    /// Records what the outside shows; `false` if somebody else has the seat.
    async fn settle(&self, lane: &mut Held, owner: Token, plan: &Plan) -> Result<bool, StationError> {
        let order = |order| Op::Lane(LaneOrder { lane: lane.name.clone(), order });
        let mut ops: Vec<Op> = Vec::new();
        ops.extend(plan.observe.map(|outside_next| order(Order::Observe { outside_next })));
        if let (Some(ms), true) = (self.options.quarantine_ms, plan.failed > 0) {
            ops.push(order(Order::Quarantine { for_ms: ms }));
        }
        for (nonce, expected, sight) in plan.settles.iter().cloned() {
            ops.push(Op::Settle(Settle { lane: lane.name.clone(), owner, nonce, expected, sight }));
        }
        if let Some(outside) = plan.observe {
            tracing::error!(lane = %lane.name, outside = outside.0, "the chain has seen more of this lane than the store: it stops until reconciled");
        }
        // A full window and its gaps may be more than one batch may hold.
        for batch in ops.chunks(BATCH_OPS_MAX) {
            let outcomes = persist::apply(&*self.store, batch.to_vec()).await?;
            if !self.still_ours(lane, &outcomes) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether no outcome says that the seat is somebody else's.
    fn still_ours(&self, lane: &mut Held, outcomes: &[Outcome]) -> bool {
        let lost = |outcome: &Outcome| matches!(outcome, Outcome::Stale(Stale::Seat { .. } | Stale::RolledBack));
        if outcomes.iter().any(lost) {
            tracing::warn!(lane = %lane.name, "somebody else has this lane now");
            (lane.seat, lane.room) = (None, None);
        }
        lane.seat.is_some()
    }

    /// Asks the outside, for as long as it may take.
    async fn ask<T, E: From<Unreachable>>(&self, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        match tokio::time::timeout(self.options.answer_within, call).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(Unreachable("no answer in time".into()).into()),
        }
    }

    /// Sends stored bytes, while the sender goes on: every slot's are stored, so any order
    /// will do. What the outside says to them is heard later.
    async fn send(&self, lane: &mut Held, mut outgoing: Vec<Outgoing>) -> Result<(), StationError> {
        while !outgoing.is_empty() {
            let later = outgoing.split_off(outgoing.len().min(BROADCAST_MAX));
            let now = self.clock.now();
            for one in &outgoing {
                lane.memory.sent.entry(one.nonce).or_insert(Sent::at(now)).last = now;
            }
            while lane.sending.len() >= BROADCASTS_AT_ONCE
                && let Some(answered) = lane.sending.join_next().await
            {
                self.received(lane, answered).await?;
            }
            let (chain, within) = (self.chain.clone(), self.options.answer_within);
            lane.sending.spawn(broadcast(chain, lane.name.clone(), outgoing, within));
            outgoing = later;
        }
        Ok(())
    }

    /// Waits until the outside has said to all broadcasts of a lane how it received them.
    async fn hear_all(&self, lane: &mut Held) -> Result<(), StationError> {
        while let Some(answered) = lane.sending.join_next().await {
            self.received(lane, answered).await?;
        }
        Ok(())
    }

    /// Acts on how the outside received a broadcast.
    async fn received(&self, lane: &mut Held, answered: Result<Answered, JoinError>) -> Result<(), StationError> {
        let Answered { outgoing, receptions } =
            answered.map_err(|error| StationError::Broken(format!("a broadcast ended: {error}")))?;
        let mut broke = None;
        for (one, reception) in outgoing.iter().zip(receptions) {
            match reception {
                Ok(Reception::Taken) => {}
                Ok(Reception::TooCheap) => {
                    if let Some(sent) = lane.memory.sent.get_mut(&one.nonce) {
                        sent.at_price = UnixMs(0);
                    }
                }
                Ok(Reception::Rejected(why)) => self.rejected(lane, one, &why).await?,
                Ok(Reception::Funds(why)) => broke = Some(why),
                // Maybe sent: the next looks will tell.
                Err(error) => {
                    tracing::warn!(lane = %lane.name, nonce = one.nonce.0, %error, "sent without an answer");
                }
            }
        }
        match broke {
            Some(why) => self.pause(lane, &why).await,
            None => Ok(()),
        }
    }

    /// Stored bytes will never be taken. If nothing else could carry their answers, the
    /// slot is cancelled and the answers wait for a person. What else was sent for the slot
    /// may be on its way, and others are signed.
    async fn rejected(&self, lane: &mut Held, one: &Outgoing, why: &str) -> Result<(), StationError> {
        tracing::error!(lane = %lane.name, nonce = one.nonce.0, why, "stored bytes were rejected");
        if one.sole_carrier {
            let then = AfterCancel::Dead(ErrorNote::new(ErrorClass::Fatal, &format!("rejected: {why}")));
            let order = Order::Cancel { nonce: one.nonce, then };
            persist::apply_one(&*self.store, LaneOrder { lane: lane.name.clone(), order }).await?;
        }
        if let Some(sent) = lane.memory.sent.get_mut(&one.nonce) {
            // Not at once: a slot has only so many attempts.
            let Patience { resend_ms, bump_ms } = self.options.patience;
            sent.at_price = UnixMs(sent.last.plus(resend_ms).0.saturating_sub(bump_ms));
        }
        Ok(())
    }

    async fn pause(&self, lane: &Held, why: &str) -> Result<(), StationError> {
        tracing::error!(lane = %lane.name, why, "the lane cannot pay and pauses");
        let order = Order::Pause { reason: format!("cannot pay: {why}").into() };
        persist::apply_one(&*self.store, LaneOrder { lane: lane.name.clone(), order }).await?;
        Ok(())
    }

    /// Stores other bytes for an occupied slot, then sends them.
    async fn try_again(
        &self,
        lane: &mut Held,
        owner: Token,
        parcel: &ParcelView,
        cargo: Cargo<'_>,
    ) -> Result<(), StationError> {
        let nonce = parcel.nonce;
        let attempt = match self.ask(self.chain.sign(&lane.name, nonce, cargo)).await {
            Ok(attempt) => attempt,
            Err(Unsigned::Funds(why)) => return self.pause(lane, &why).await,
            Err(error) => return self.stay(lane, parcel, &error.to_string()).await,
        };
        let op = Attempt { lane: lane.name.clone(), owner, nonce, attempt: attempt.clone() };
        let outcome = persist::apply_one(&*self.store, op).await?;
        if !self.still_ours(lane, std::slice::from_ref(&outcome)) {
            return Ok(());
        }
        match outcome {
            Outcome::Full(_) => self.stay(lane, parcel, "it has as many attempts as a slot may have").await,
            outcome if outcome.holds() => {
                lane.memory.sent.insert(nonce, Sent::at(self.clock.now()));
                self.send(lane, vec![Outgoing { nonce, attempt, sole_carrier: false }]).await
            }
            // The parcel has ended or moved on since the look.
            _ => Ok(()),
        }
    }

    /// What is stored for a slot is sent again, and other bytes are thought of again later.
    async fn stay(&self, lane: &mut Held, parcel: &ParcelView, why: &str) -> Result<(), StationError> {
        tracing::warn!(lane = %lane.name, nonce = parcel.nonce.0, why, "a slot stays with the bytes that it has");
        let now = self.clock.now();
        let sent = Sent { uncancelled: parcel.cancel.as_ref().map(|_| now), ..Sent::at(now) };
        lane.memory.sent.insert(parcel.nonce, sent);
        self.send(lane, Outgoing::newest(parcel).into_iter().collect()).await
    }

    /// Puts ready answers on the free slots of the lanes, on all lanes at once.
    async fn assign_ready(&self, lanes: &mut [Held]) -> Result<Left, StationError> {
        // A strict order goes by the first lane; the others only have their gaps filled.
        let strict = self.options.order == SendOrder::Strict;
        let usable = |(at, lane): (usize, &Held)| match &lane.room {
            Some(room) if strict && at > 0 => (0, room.gaps.len()),
            Some(room) => (room.parcels, room.gaps.len()),
            None => (0, 0),
        };
        let per_parcel = self.options.parcel_max.clamp(1, PARCEL_MAX);
        let free: usize = lanes.iter().enumerate().map(usable).map(|(slots, gaps)| slots + gaps).sum();
        if free == 0 {
            return Ok(Left::Nothing);
        }
        let oldest_open = match self.options.order {
            SendOrder::Strict => self.oldest_open().await?,
            SendOrder::Spread => None,
        };
        let mut ready = self.ready((free * per_parcel).min(PAGE_MAX)).await?;
        ready.retain(|delivery| oldest_open.is_none_or(|open| delivery.seq < open));
        let mut rest = ready.as_slice();
        for lane in lanes.iter_mut() {
            rest = self.fill_gaps(lane, rest, per_parcel).await?;
        }
        let slots: Vec<usize> = lanes.iter().enumerate().map(usable).map(|(slots, _)| slots).collect();
        let open = slots.iter().filter(|slots| **slots > 0).count().max(1);
        // Shared out evenly, so that one slow lane does not hold up what another could take.
        let share = rest.len().div_ceil(open).next_multiple_of(per_parcel).max(per_parcel);
        let mut assigns = Vec::new();
        for (lane, slots) in lanes.iter_mut().zip(slots) {
            let (mine, others) = rest.split_at(share.min(slots * per_parcel).min(rest.len()));
            rest = others;
            assigns.push(self.assign_all(lane, mine, per_parcel));
        }
        let mut assigned = 0;
        for stored in join_all(assigns).await {
            assigned += stored?;
        }
        // Until nothing is ready, or nothing can be assigned.
        Ok(if assigned > 0 { Left::Maybe } else { Left::Nothing })
    }

    /// Fills a lane's gaps, with ready answers as far as there are any and the order lets:
    /// on a gap they would overtake those above it. Answers what is left of them.
    async fn fill_gaps<'a>(
        &self,
        lane: &mut Held,
        ready: &'a [ReadyDelivery],
        per_parcel: usize,
    ) -> Result<&'a [ReadyDelivery], StationError> {
        let Some(room) = &mut lane.room else { return Ok(ready) };
        let (gaps, owner) = (std::mem::take(&mut room.gaps), room.token);
        room.parcels = room.parcels.saturating_sub(gaps.len());
        let carries = room.active && self.options.order == SendOrder::Spread;
        let mut rest = ready;
        for nonce in gaps {
            let (mine, others) = rest.split_at(if carries { per_parcel.min(rest.len()) } else { 0 });
            rest = others;
            self.fill(lane, owner, nonce, mine).await?;
        }
        Ok(rest)
    }

    /// Signs, stores and only then sends what fills a gap: these answers, or nothing.
    async fn fill(
        &self,
        lane: &mut Held,
        owner: Token,
        nonce: Nonce,
        ready: &[ReadyDelivery],
    ) -> Result<(), StationError> {
        let cargo = if ready.is_empty() { Cargo::Nothing(&[]) } else { Cargo::Deliveries(ready) };
        let signed = self.ask(self.chain.sign(&lane.name, nonce, cargo)).await;
        if let (Err(Unsigned::Apart(_)), [_, _, ..]) = (&signed, ready) {
            return Box::pin(self.fill(lane, owner, nonce, &ready[..1])).await;
        }
        let Some(attempt) = self.signed(lane, owner, ready, signed).await? else { return Ok(()) };
        let parcel = NewParcel { deliveries: ids(ready), attempt: attempt.clone() };
        let fill = Fill { lane: lane.name.clone(), owner, nonce, parcel };
        let outcome = persist::apply_one(&*self.store, fill).await?;
        if !self.still_ours(lane, std::slice::from_ref(&outcome)) {
            return Ok(());
        }
        match (outcome, ready) {
            (Outcome::Invalid(reason), [first, others @ ..]) => {
                tracing::error!(lane = %lane.name, %reason, "the store can never take what was to fill a gap");
                if others.is_empty() {
                    return self.reject(lane, owner, first, never(&reason)).await;
                }
                Box::pin(self.fill(lane, owner, nonce, std::slice::from_ref(first))).await
            }
            (outcome, _) if outcome.holds() => {
                tracing::warn!(lane = %lane.name, nonce = nonce.0, answers = ready.len(), "a gap is filled");
                self.send(lane, vec![Outgoing::first(nonce, attempt)]).await
            }
            (outcome, _) => {
                tracing::debug!(lane = %lane.name, nonce = nonce.0, ?outcome, "a gap was not filled");
                Ok(())
            }
        }
    }

    /// The signed bytes, or what their absence leads to.
    async fn signed(
        &self,
        lane: &mut Held,
        owner: Token,
        ready: &[ReadyDelivery],
        signed: Result<SignedAttempt, Unsigned>,
    ) -> Result<Option<SignedAttempt>, StationError> {
        match (signed, ready) {
            (Ok(attempt), _) => return Ok(Some(attempt)),
            (Err(Unsigned::Never(error)), [first, ..]) => self.reject(lane, owner, first, error).await?,
            (Err(Unsigned::Funds(why)), _) => self.pause(lane, &why).await?,
            (Err(error), _) => tracing::warn!(lane = %lane.name, %error, "a slot waits for signed bytes"),
        }
        Ok(None)
    }

    /// The oldest request for this destination that has no answer to send yet. Asked for
    /// before what is ready: an answer that comes in between is then in its place there.
    async fn oldest_open(&self) -> Result<Option<Seq>, StationError> {
        let routes = persist::read(|| self.store.routes()).await?;
        let ours = routes.into_iter().filter(|route| route.policy.destination.as_ref() == Some(&self.destination));
        let mut oldest: Option<Seq> = None;
        for route in ours {
            let states = vec![StateKind::Held, StateKind::Queued, StateKind::Leased, StateKind::Waiting];
            let filter = ListFilter { route: Some(route.name), states, limit: 1, ..ListFilter::default() };
            let page = persist::read(|| self.store.list(filter.clone())).await?;
            oldest = oldest.into_iter().chain(page.requests.first().map(|request| request.seq)).min();
        }
        Ok(oldest)
    }

    async fn ready(&self, limit: usize) -> Result<Vec<ReadyDelivery>, StationError> {
        Ok(persist::read(|| self.store.ready(self.destination.clone(), limit)).await?)
    }

    /// Signs for consecutive slots, several at once; answers the parcels up to the first
    /// that failed, and why it did.
    async fn sign(
        &self,
        lane: &LaneName,
        first: Nonce,
        ready: &[ReadyDelivery],
        per_parcel: usize,
    ) -> (Vec<NewParcel>, Option<Unsigned>) {
        let mut calls: Vec<ChainFuture<'_, NewParcel, Unsigned>> = Vec::new();
        for (deliveries, n) in ready.chunks(per_parcel).zip(0..) {
            let call = self.chain.sign(lane, first.plus(n), Cargo::Deliveries(deliveries));
            calls.push(Box::pin(async move {
                let attempt = self.ask(call).await?;
                Ok(NewParcel { deliveries: ids(deliveries), attempt })
            }));
        }
        let mut signed = stream::iter(calls).buffered(SIGN_AT_ONCE);
        let mut parcels = Vec::new();
        while let Some(one) = signed.next().await {
            match one {
                Ok(parcel) => parcels.push(parcel),
                Err(error) => return (parcels, Some(error)),
            }
        }
        (parcels, None)
    }

    /// Signs, stores and only then sends these answers on a lane, some at a time: those that
    /// are stored are on their way while the next are signed. Answers how many parcels were
    /// stored.
    async fn assign_all(
        &self,
        lane: &mut Held,
        ready: &[ReadyDelivery],
        per_parcel: usize,
    ) -> Result<usize, StationError> {
        let mut assigned = 0;
        for some in ready.chunks(BROADCAST_MAX * per_parcel) {
            let stored = self.assign(lane, some, per_parcel).await?;
            assigned += stored;
            let Some(room) = &mut lane.room else { break };
            if stored < some.len().div_ceil(per_parcel) {
                // Something is not as it was: the next look shows what.
                lane.room = None;
                break;
            }
            room.next = room.next.plus(stored as u64);
            room.parcels = room.parcels.saturating_sub(stored);
        }
        Ok(assigned)
    }

    /// Signs, stores and only then sends these answers on a lane's next slots; answers how
    /// many parcels were stored.
    async fn assign(&self, lane: &mut Held, ready: &[ReadyDelivery], per_parcel: usize) -> Result<usize, StationError> {
        let Some(&Room { next: first, token: owner, .. }) = lane.room.as_ref() else { return Ok(0) };
        let (parcels, failed) = self.sign(&lane.name, first, ready, per_parcel).await;
        match failed {
            Some(Unsigned::Apart(_)) if parcels.is_empty() && ready.len() > 1 => {
                return Box::pin(self.assign(lane, &ready[..1], 1)).await;
            }
            // Those before them go first.
            Some(Unsigned::Apart(_)) | None => {}
            Some(error) => {
                let unsigned = &ready[parcels.len() * per_parcel..];
                self.signed(lane, owner, unsigned, Err(error)).await?;
            }
        }
        if parcels.is_empty() {
            return Ok(0);
        }
        let assign = Assign { lane: lane.name.clone(), owner, first, parcels: parcels.clone() };
        let outcome = persist::apply_one(&*self.store, assign).await?;
        if !self.still_ours(lane, std::slice::from_ref(&outcome)) {
            return Ok(0);
        }
        let stored = match outcome {
            Outcome::Applied(Effect::Assigned(stored, _)) | Outcome::Duplicate(Effect::Assigned(stored, _)) => stored,
            Outcome::Invalid(reason) => return self.never_assigned(lane, owner, ready, &reason).await,
            outcome => {
                tracing::debug!(lane = %lane.name, ?outcome, "nothing was assigned");
                return Ok(0);
            }
        };
        let slots = (0..).map(|n| first.plus(n));
        let parcels = parcels.into_iter().take(stored).zip(slots);
        self.send(lane, parcels.map(|(parcel, nonce)| Outgoing::first(nonce, parcel.attempt)).collect()).await?;
        Ok(stored)
    }

    /// The store can never take the first parcel: its first delivery is tried alone, and
    /// waits for a person if that does not help.
    async fn never_assigned(
        &self,
        lane: &mut Held,
        owner: Token,
        ready: &[ReadyDelivery],
        reason: &Invalid,
    ) -> Result<usize, StationError> {
        tracing::error!(lane = %lane.name, %reason, "the store can never take a parcel");
        match ready {
            [one] => self.reject(lane, owner, one, never(reason)).await.map(|()| 0),
            [first, ..] => Box::pin(self.assign(lane, std::slice::from_ref(first), 1)).await,
            [] => Ok(0),
        }
    }

    /// A delivery that can never be sent waits for a person, with its answer.
    async fn reject(
        &self,
        lane: &mut Held,
        owner: Token,
        delivery: &ReadyDelivery,
        error: ErrorNote,
    ) -> Result<(), StationError> {
        let op = Reject { lane: lane.name.clone(), owner, id: delivery.id, error };
        let outcome = persist::apply_one(&*self.store, op).await?;
        self.still_ours(lane, std::slice::from_ref(&outcome));
        Ok(())
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

/// The next broadcast that ends, and on which lane; never, if none is under way.
async fn next_answered(lanes: &mut [Held]) -> (usize, Result<Answered, JoinError>) {
    poll_fn(|cx| {
        for (at, lane) in lanes.iter_mut().enumerate() {
            if let Poll::Ready(Some(answered)) = lane.sending.poll_join_next(cx) {
                return Poll::Ready((at, answered));
            }
        }
        Poll::Pending
    })
    .await
}

/// Hands stored bytes to the outside, for as long as it may take.
async fn broadcast(chain: Arc<dyn Chain>, lane: LaneName, outgoing: Vec<Outgoing>, within: Duration) -> Answered {
    let attempts: Vec<SignedAttempt> = outgoing.iter().map(|one| one.attempt.clone()).collect();
    let answer = tokio::time::timeout(within, chain.broadcast(&lane, &attempts)).await;
    let (mut receptions, missing) = match answer {
        Ok(receptions) => (receptions, "no answer for this attempt"),
        Err(_elapsed) => (Vec::new(), "no answer in time"),
    };
    receptions.resize(outgoing.len(), Err(Unreachable(missing.into())));
    Answered { outgoing, receptions }
}

fn ids(ready: &[ReadyDelivery]) -> Vec<RequestId> {
    ready.iter().map(|delivery| delivery.id).collect()
}

/// The store can never take it.
fn never(reason: &Invalid) -> ErrorNote {
    ErrorNote::new(ErrorClass::Fatal, &reason.to_string())
}

fn refused(what: &str, outcome: &Outcome) -> StationError {
    match outcome {
        Outcome::Invalid(reason) => StationError::Broken(format!("{what} was refused: {reason}")),
        other => StationError::Broken(format!("{what} was refused: {other:?}")),
    }
}
