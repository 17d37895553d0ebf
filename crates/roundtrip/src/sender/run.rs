//! The sender's loop: holds the seats of its lanes, looks at the outside, settles what
//! it shows, sends again what is missing there, and puts ready answers on free slots.
//!
//! ```text
//!   seat ──▶ look ──▶ decide ──▶ settle ──▶ send again, dearer if stuck ──▶ assign ──▶ broadcast
//!                                (stored)                                  (stored)
//! ```
//!
//! Failure modes: a crash between a commit and its broadcast leaves stored bytes that no
//! one has sent; the first round after any start sends everything again that is not mined.
//! An outside that does not answer means "maybe sent", and is asked again. A seat that
//! somebody else took ends all writing on that lane at once, by the store's refusal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::SignedAttempt;
use super::chain::{Cargo, Chain, Reception, Unreachable, Unsigned};
use super::decide::{Patience, Plan, Sent, decide};
use crate::clock::Clock;
use crate::inbox::StateKind;
use crate::persist;
use crate::station::{Shutdown, StationError};
use crate::store::op::{
    Assign, Attempt, Effect, Invalid, LaneOrder, Lead, NewParcel, Op, Order, Outcome, Reject, Seat, Settle, Stale,
};
use crate::store::query::{LaneView, ListFilter, ParcelView, ReadyDelivery};
use crate::store::{ReadExt, Store, Topic};
use crate::words::{
    ASSIGN_MAX, Destination, ErrorClass, ErrorNote, HolderName, LaneName, Nonce, PAGE_MAX, PARCEL_MAX, Seq, Token,
    UnixMs,
};

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
    seat: Option<(Token, UnixMs)>,
    sent: BTreeMap<Nonce, Sent>,
}

/// A lane with free slots.
struct Room {
    at: usize,
    token: Token,
    next: Nonce,
    parcels: usize,
}

impl Sender {
    /// Sends until told to stop, then gives its seats up.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), StationError> {
        let held = |name: &LaneName| Held { name: name.clone(), open: false, seat: None, sent: BTreeMap::new() };
        let mut lanes: Vec<Held> = self.lanes.iter().map(held).collect();
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
            self.run_once(lanes).await?;
            tokio::select! {
                biased;
                () = ready.hinted() => {}
                () = tokio::time::sleep(self.options.poll) => {}
            }
        }
    }

    /// One round over all lanes.
    async fn run_once(&self, lanes: &mut [Held]) -> Result<(), StationError> {
        let tended = join_all(lanes.iter_mut().enumerate().map(|(at, lane)| self.tend(at, lane))).await;
        let mut rooms = Vec::new();
        for room in tended {
            rooms.extend(room?);
        }
        self.assign_ready(lanes, rooms).await
    }

    /// Settles and sends again what is under way on a lane; answers what room there is.
    async fn tend(&self, at: usize, lane: &mut Held) -> Result<Option<Room>, StationError> {
        let Some(token) = self.hold_seat(lane).await? else { return Ok(None) };
        let Some(view) = self.view(&lane.name).await? else { return Ok(None) };
        let under_way = |nonce: &Nonce| view.parcels.binary_search_by_key(nonce, |parcel| parcel.nonce).is_ok();
        lane.sent.retain(|nonce, _| under_way(nonce));
        let seen = match self.ask(self.chain.look(&lane.name, &view.parcels)).await {
            Ok(seen) => seen,
            Err(error) => {
                tracing::warn!(lane = %lane.name, %error, "looked at a lane in vain");
                return Ok(None);
            }
        };
        let plan = decide(&view, &seen, &lane.sent, self.options.patience, self.clock.now());
        if !self.settle(lane, token, &plan).await? {
            return Ok(None);
        }
        let newest = |nonce: &Nonce| {
            let parcel = view.parcels.iter().find(|parcel| parcel.nonce == *nonce);
            parcel.and_then(|parcel| parcel.attempts.last()).map(|attempt| (*nonce, attempt.clone()))
        };
        self.send(lane, plan.resend.iter().filter_map(newest).collect()).await?;
        if let Some(nonce) = plan.bump {
            self.bump(lane, token, &view, nonce).await?;
        }
        // What was settled has made room, which the next look shows.
        let parcels = if lane.seat.is_some() { plan.room } else { 0 };
        Ok(Some(Room { at, token, next: view.next, parcels }).filter(|room| room.parcels > 0))
    }

    /// Takes or keeps the lane's seat, and opens the lane if it is new.
    async fn hold_seat(&self, lane: &mut Held) -> Result<Option<Token>, StationError> {
        let now = self.clock.now();
        if let Some((token, until)) = lane.seat
            && now.plus(self.options.seat_ms / 2) < until
        {
            return Ok(Some(token));
        }
        if !lane.open && !self.open(lane).await? {
            return Ok(None);
        }
        let seat = Seat::Lane(lane.name.clone());
        let lead = Lead { seat, holder: self.holder.clone(), ttl_ms: self.options.seat_ms };
        lane.seat = match persist::apply_one(&*self.store, lead).await? {
            Outcome::Applied(Effect::Led(token, until)) => {
                // Whatever was sent under another token is sent again.
                if lane.seat.is_none_or(|(before, _)| before != token) {
                    lane.sent.clear();
                }
                Some((token, until))
            }
            Outcome::Stale(_) => None,
            other => return Err(refused("the seat of a lane", &other)),
        };
        Ok(lane.seat.map(|(token, _)| token))
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
        let mut batch: Vec<Op> = Vec::new();
        batch.extend(plan.observe.map(|outside_next| order(Order::Observe { outside_next })));
        if let (Some(ms), true) = (self.options.quarantine_ms, plan.failed > 0) {
            batch.push(order(Order::Quarantine { until: self.clock.now().plus(ms) }));
        }
        for (nonce, expected, sight) in plan.settles.iter().cloned() {
            batch.push(Op::Settle(Settle { lane: lane.name.clone(), owner, nonce, expected, sight }));
        }
        if batch.is_empty() {
            return Ok(true);
        }
        if let Some(outside) = plan.observe {
            tracing::error!(lane = %lane.name, outside = outside.0, "the chain has seen more of this lane than the store: it stops until reconciled");
        }
        let outcomes = persist::apply(&*self.store, batch).await?;
        Ok(self.still_ours(lane, &outcomes))
    }

    /// Whether no outcome says that the seat is somebody else's.
    fn still_ours(&self, lane: &mut Held, outcomes: &[Outcome]) -> bool {
        let lost = |outcome: &Outcome| matches!(outcome, Outcome::Stale(Stale::Seat { .. } | Stale::RolledBack));
        if outcomes.iter().any(lost) {
            tracing::warn!(lane = %lane.name, "somebody else has this lane now");
            lane.seat = None;
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

    /// Sends stored bytes, all at once: every slot's are stored, so any order will do.
    async fn send(&self, lane: &mut Held, attempts: Vec<(Nonce, SignedAttempt)>) -> Result<(), StationError> {
        let sends = attempts.iter().map(|(_, attempt)| self.ask(self.chain.broadcast(&lane.name, attempt)));
        let receptions = join_all(sends).await;
        let now = self.clock.now();
        let mut broke = None;
        for ((nonce, _), reception) in attempts.iter().zip(receptions) {
            let sent = lane.sent.entry(*nonce).or_insert(Sent { last: now, at_price: now });
            sent.last = now;
            match reception {
                Ok(Reception::Taken) => {}
                Ok(Reception::TooCheap) => sent.at_price = UnixMs(0),
                Ok(Reception::Rejected(why)) => {
                    tracing::error!(lane = %lane.name, nonce = nonce.0, why, "stored bytes were rejected: others are signed");
                    // Not at once: a slot has only so many attempts.
                    let Patience { resend_ms, bump_ms } = self.options.patience;
                    sent.at_price = UnixMs(now.plus(resend_ms).0.saturating_sub(bump_ms));
                }
                Ok(Reception::Funds(why)) => broke = Some(why),
                // Maybe sent: the next looks will tell.
                Err(error) => tracing::warn!(lane = %lane.name, nonce = nonce.0, %error, "sent without an answer"),
            }
        }
        match broke {
            Some(why) => self.pause(lane, &why).await,
            None => Ok(()),
        }
    }

    async fn pause(&self, lane: &Held, why: &str) -> Result<(), StationError> {
        tracing::error!(lane = %lane.name, why, "the lane cannot pay and pauses");
        let order = Order::Pause { reason: format!("cannot pay: {why}").into() };
        persist::apply_one(&*self.store, LaneOrder { lane: lane.name.clone(), order }).await?;
        Ok(())
    }

    /// Stores dearer bytes for a stuck slot, then sends them.
    async fn bump(&self, lane: &mut Held, owner: Token, view: &LaneView, nonce: Nonce) -> Result<(), StationError> {
        let Some(parcel) = view.parcels.iter().find(|parcel| parcel.nonce == nonce) else { return Ok(()) };
        let attempt = match self.ask(self.chain.sign(&lane.name, nonce, Cargo::Dearer(&parcel.attempts))).await {
            Ok(attempt) => attempt,
            Err(Unsigned::Funds(why)) => return self.pause(lane, &why).await,
            Err(error) => return self.stay_at_price(lane, parcel, &error.to_string()).await,
        };
        let op = Attempt { lane: lane.name.clone(), owner, nonce, attempt: attempt.clone() };
        let outcome = persist::apply_one(&*self.store, op).await?;
        if !self.still_ours(lane, std::slice::from_ref(&outcome)) {
            return Ok(());
        }
        if let Outcome::Full(_) = outcome {
            return self.stay_at_price(lane, parcel, "it has as many attempts as a slot may have").await;
        }
        if !outcome.holds() {
            // The parcel has ended or moved on since the look.
            return Ok(());
        }
        let now = self.clock.now();
        lane.sent.insert(nonce, Sent { last: now, at_price: now });
        self.send(lane, vec![(nonce, attempt)]).await
    }

    /// What is stored for a stuck slot is sent again, and its price looked at again later.
    async fn stay_at_price(&self, lane: &mut Held, parcel: &ParcelView, why: &str) -> Result<(), StationError> {
        tracing::warn!(lane = %lane.name, nonce = parcel.nonce.0, why, "a stuck slot stays at its price");
        let now = self.clock.now();
        lane.sent.insert(parcel.nonce, Sent { last: now, at_price: now });
        let again = parcel.attempts.last().map(|attempt| (parcel.nonce, attempt.clone()));
        self.send(lane, again.into_iter().collect()).await
    }

    /// Puts ready answers on the free slots of the lanes.
    async fn assign_ready(&self, lanes: &mut [Held], mut rooms: Vec<Room>) -> Result<(), StationError> {
        if self.options.order == SendOrder::Strict {
            rooms.retain(|room| room.at == 0);
        }
        let per_parcel = self.options.parcel_max.clamp(1, PARCEL_MAX);
        let free: usize = rooms.iter().map(|room| room.parcels).sum();
        if free == 0 {
            return Ok(());
        }
        let oldest_open = match self.options.order {
            SendOrder::Strict => self.oldest_open().await?,
            SendOrder::Spread => None,
        };
        let mut ready = self.ready((free * per_parcel).min(PAGE_MAX)).await?;
        ready.retain(|delivery| oldest_open.is_none_or(|open| delivery.seq < open));
        // Shared out evenly, so that one slow lane does not hold up what another could take.
        let share = ready.len().div_ceil(rooms.len()).next_multiple_of(per_parcel).max(per_parcel);
        let mut rest = ready.as_slice();
        for room in rooms {
            let count = share.min(room.parcels.min(ASSIGN_MAX) * per_parcel).min(rest.len());
            let (mine, others) = rest.split_at(count);
            rest = others;
            self.assign(&mut lanes[room.at], &room, mine, per_parcel).await?;
        }
        Ok(())
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

    /// Signs, stores and only then sends these answers on a lane.
    async fn assign(
        &self,
        lane: &mut Held,
        room: &Room,
        ready: &[ReadyDelivery],
        per_parcel: usize,
    ) -> Result<(), StationError> {
        let mut parcels: Vec<NewParcel> = Vec::new();
        for deliveries in ready.chunks(per_parcel) {
            let nonce = room.next.plus(parcels.len() as u64);
            match self.ask(self.chain.sign(&lane.name, nonce, Cargo::Deliveries(deliveries))).await {
                Ok(attempt) => {
                    let deliveries = deliveries.iter().map(|delivery| delivery.id).collect();
                    parcels.push(NewParcel { deliveries, attempt });
                }
                Err(Unsigned::Never(error)) => {
                    self.reject(lane, room.token, &deliveries[0], error).await?;
                    break;
                }
                Err(Unsigned::Funds(why)) => {
                    self.pause(lane, &why).await?;
                    break;
                }
                Err(error) => {
                    tracing::warn!(lane = %lane.name, %error, "ready answers wait");
                    break;
                }
            }
        }
        if parcels.is_empty() {
            return Ok(());
        }
        let (first, owner) = (room.next, room.token);
        let assign = Assign { lane: lane.name.clone(), owner, first, parcels: parcels.clone() };
        let outcome = persist::apply_one(&*self.store, assign).await?;
        if !self.still_ours(lane, std::slice::from_ref(&outcome)) {
            return Ok(());
        }
        let stored = match outcome {
            Outcome::Applied(Effect::Assigned(stored, _)) | Outcome::Duplicate(Effect::Assigned(stored, _)) => stored,
            Outcome::Invalid(reason) => return self.never_assigned(lane, room, ready, &reason).await,
            outcome => {
                tracing::debug!(lane = %lane.name, ?outcome, "nothing was assigned");
                return Ok(());
            }
        };
        let slots = (0..).map(|n| first.plus(n));
        let stored = parcels.into_iter().take(stored).zip(slots).map(|(parcel, nonce)| (nonce, parcel.attempt));
        self.send(lane, stored.collect()).await
    }

    /// The store can never take the first parcel: its first delivery is tried alone, and
    /// waits for a person if that does not help.
    async fn never_assigned(
        &self,
        lane: &mut Held,
        room: &Room,
        ready: &[ReadyDelivery],
        reason: &Invalid,
    ) -> Result<(), StationError> {
        tracing::error!(lane = %lane.name, %reason, "the store can never take a parcel");
        match ready {
            [one] => self.reject(lane, room.token, one, ErrorNote::new(ErrorClass::Fatal, &reason.to_string())).await,
            [first, ..] => Box::pin(self.assign(lane, room, std::slice::from_ref(first), 1)).await,
            [] => Ok(()),
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

fn refused(what: &str, outcome: &Outcome) -> StationError {
    match outcome {
        Outcome::Invalid(reason) => StationError::Broken(format!("{what} was refused: {reason}")),
        other => StationError::Broken(format!("{what} was refused: {other:?}")),
    }
}
