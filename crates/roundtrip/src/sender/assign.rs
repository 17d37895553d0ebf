//! Ready answers get slots: gaps first, then the next ones; signed, stored, and only then sent.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use tokio::time::Instant;

use super::broadcast::{BROADCAST_MAX, Outgoing};
use super::chain::{Cargo, ChainFuture, Unsigned};
use super::pack::{Company, Filling, Load, Packed, Since, pack, ripe_first};
use super::run::{Held, Left, Room, SendOrder, Sender};
use super::{LaneStatus, SignedAttempt};
use crate::inbox::StateKind;
use crate::persist;
use crate::station::StationError;
use crate::store::ReadExt;
use crate::store::op::{Already, Assign, Effect, Fill, Invalid, NewParcel, Outcome, Reject};
use crate::store::query::{Found, ListFilter, ReadyDelivery};
use crate::words::{ErrorClass, ErrorNote, LaneName, Nonce, PAGE_MAX, PARCEL_MAX, RequestId, Seq, Token};

/// How many slots of a lane are signed for at once.
const SIGN_AT_ONCE: usize = 16;

/// Whether answers may go out, as the store said a moment ago.
#[derive(Default)]
pub(super) struct Gate(Option<(Instant, bool)>);

impl Gate {
    pub(super) fn known_for(&self, fresh_for: Duration) -> Option<bool> {
        self.0.filter(|(asked, _)| asked.elapsed() < fresh_for).map(|(_, open)| open)
    }

    pub(super) fn set(&mut self, open: bool) -> bool {
        // What is closed may open at any time.
        self.0 = open.then(|| (Instant::now(), open));
        open
    }
}

impl Sender {
    /// Puts ready answers on the free slots of the lanes, on all lanes at once.
    pub(super) async fn assign_ready(
        &self,
        lanes: &mut [Held],
        gate: &mut Gate,
        since: &mut Since,
    ) -> Result<Left, StationError> {
        since.ripens = None;
        // A strict order goes by the first lane; the others only have their gaps filled.
        let strict = self.options.order == SendOrder::Strict;
        let usable = |(at, lane): (usize, &Held)| match &lane.room {
            Some(room) if strict && at > 0 => (0, room.gaps.len()),
            Some(room) => (room.parcels, room.gaps.len()),
            None => (0, 0),
        };
        let per_parcel = self.options.parcel_max.clamp(1, PARCEL_MAX);
        let wait_ms = u64::try_from(self.options.parcel_wait.as_millis()).unwrap_or(u64::MAX);
        let filling = Filling { per_parcel, order: self.options.order, wait_ms };
        let free: usize = lanes.iter().enumerate().map(usable).map(|(slots, gaps)| slots + gaps).sum();
        if free == 0 {
            return Ok(Left::Nothing);
        }
        let oldest_open = match self.options.order {
            SendOrder::Strict => self.oldest_open().await?,
            SendOrder::Spread => None,
        };
        let later = self.put_off(lanes);
        let mut ready = match self.passes(lanes, gate).await? {
            true => self.ready((free * per_parcel + later.len()).min(PAGE_MAX)).await?,
            // Gaps are filled with nothing meanwhile, so that what is above them can end.
            false => Vec::new(),
        };
        let now = self.clock.now();
        if filling.wait_ms > 0 {
            since.note(&ready, now);
        }
        ready.retain(|delivery| !later.contains(&delivery.id));
        ready.retain(|delivery| oldest_open.is_none_or(|open| delivery.seq < open));
        let company = |delivery: &ReadyDelivery| self.company(lanes, delivery);
        let loads = pack(ready, filling, company);
        let Packed { loads, ripe, ripens } = ripe_first(loads, filling, company, since, now);
        since.ripens = ripens;
        let mut rest = loads.as_slice();
        for lane in lanes.iter_mut() {
            rest = self.fill_gaps(lane, rest).await?;
        }
        // Gaps do not wait for anybody's company, but free slots do.
        let ripe = ripe.saturating_sub(loads.len() - rest.len());
        rest = &rest[..rest.len().min(ripe)];
        let slots: Vec<usize> = lanes.iter().enumerate().map(usable).map(|(slots, _)| slots).collect();
        let open = slots.iter().filter(|slots| **slots > 0).count().max(1);
        // Shared out evenly, so that one slow lane does not hold up what another could take.
        let share = rest.len().div_ceil(open);
        let mut assigns = Vec::new();
        for (lane, slots) in lanes.iter_mut().zip(slots) {
            let (mine, others) = rest.split_at(share.min(slots).min(rest.len()));
            rest = others;
            assigns.push(self.assign_all(lane, mine));
        }
        let mut assigned = 0;
        for stored in join_all(assigns).await {
            assigned += stored?;
        }
        // Until nothing is ready, or nothing can be assigned.
        let mut passed = false;
        lanes.iter_mut().for_each(|lane| passed |= std::mem::take(&mut lane.passed));
        Ok(if assigned > 0 || passed { Left::Maybe } else { Left::Nothing })
    }

    /// Whether answers may go out: not while any lane of the destination is stopped, nor before
    /// each that may be used was compared with the outside. What one lane has sent and the store
    /// has forgotten would go out again on another.
    async fn passes(&self, lanes: &[Held], gate: &mut Gate) -> Result<bool, StationError> {
        if lanes.iter().any(|lane| lane.stopped) {
            return Ok(gate.set(false));
        }
        if let Some(open) = gate.known_for(self.options.poll) {
            return Ok(open);
        }
        let known = persist::read(|| self.store.lane_outlines()).await?;
        let ours = known.iter().filter(|lane| lane.destination == self.destination);
        let uncompared = |name: &LaneName| lanes.iter().any(|held| held.name == *name && !held.open);
        let closed = ours.filter(|lane| lane.status == LaneStatus::Stopped || uncompared(&lane.name)).count();
        Ok(gate.set(closed == 0))
    }

    /// With whom an answer shares a parcel: what failed with others goes alone.
    fn company(&self, lanes: &[Held], delivery: &ReadyDelivery) -> Company {
        match () {
            () if lanes.iter().any(|lane| lane.alone.contains(&delivery.id)) => Company::Nobody,
            () if self.goes_apart(&delivery.route) => Company::Route(delivery.route.clone()),
            () => Company::Anyone,
        }
    }

    /// The answers that have to wait. In a strict order nothing overtakes them.
    fn put_off(&self, lanes: &mut [Held]) -> HashSet<RequestId> {
        let now = self.clock.now();
        lanes.iter_mut().for_each(|lane| lane.later.retain(|_, until| *until > now));
        match self.options.order {
            SendOrder::Spread => lanes.iter().flat_map(|lane| lane.later.keys().copied()).collect(),
            SendOrder::Strict => HashSet::new(),
        }
    }

    /// Fills a lane's gaps, with ready answers as far as there are any and the order lets:
    /// on a gap they would overtake those above it. Answers what is left of them.
    async fn fill_gaps<'a>(&self, lane: &mut Held, loads: &'a [Load]) -> Result<&'a [Load], StationError> {
        let Some(room) = &mut lane.room else { return Ok(loads) };
        let (gaps, owner) = (std::mem::take(&mut room.gaps), room.token);
        room.parcels = room.parcels.saturating_sub(gaps.len());
        let carries = room.active && self.options.order == SendOrder::Spread;
        let mut rest = loads;
        for nonce in gaps {
            let mine = match rest {
                [load, others @ ..] if carries => {
                    rest = others;
                    load.as_slice()
                }
                _ => &[],
            };
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
        let parcel = NewParcel::of(ready, attempt.clone());
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
                self.remember_route(lane, nonce, ready);
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
            (Err(Unsigned::Done), [first, ..]) => self.already(lane, owner, first).await?,
            (Err(Unsigned::Later(why)), [first, ..]) if self.options.order == SendOrder::Spread => {
                tracing::info!(lane = %lane.name, request = %first.id, why, "an answer has to wait");
                let until = self.clock.now().plus(self.options.patience.resend_ms);
                lane.put_off(first.id, until);
            }
            (Err(Unsigned::Funds(why)), _) => self.pause(lane, &why).await?,
            (Err(Unsigned::Lane(why)), _) => self.quarantine(lane, &why).await?,
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

    /// The oldest answers that wait to be sent. Those after one that changed meanwhile wait, for
    /// the sake of their order.
    async fn ready(&self, limit: usize) -> Result<Vec<ReadyDelivery>, StationError> {
        let (ready, _) = self.ready_after(None, limit).await?;
        Ok(ready.into_iter().map_while(|delivery| delivery).collect())
    }

    /// Answers that wait to be sent, from the oldest after this one on, with their requests if the
    /// chain wants them, and up to where they go; none for one that changed meanwhile.
    pub(super) async fn ready_after(
        &self,
        after: Option<Seq>,
        limit: usize,
    ) -> Result<(Vec<Option<ReadyDelivery>>, Option<Seq>), StationError> {
        let wants_requests = self.chain.wants_requests();
        let limit = if wants_requests { limit.min(BROADCAST_MAX) } else { limit };
        let ready = persist::read(|| self.store.ready_after(self.destination.clone(), after, limit)).await?;
        let last = ready.last().map(|delivery| delivery.seq);
        if !wants_requests {
            return Ok((ready.into_iter().map(Some).collect(), last));
        }
        let asked = ready.iter().map(|delivery| persist::read(|| self.store.get(delivery.id)));
        let asked: Vec<_> = stream::iter(asked.collect::<Vec<_>>()).buffered(SIGN_AT_ONCE).collect().await;
        let mut whole = Vec::with_capacity(ready.len());
        for (delivery, found) in ready.into_iter().zip(asked) {
            whole.push(match found? {
                Some(Found::Live(view, bodies)) if view.revision == delivery.revision => {
                    Some(ReadyDelivery { request: Some(bodies.payload), ..delivery })
                }
                _ => None,
            });
        }
        Ok((whole, last))
    }

    /// Signs for consecutive slots, several at once; answers the parcels up to the first
    /// that failed, and why it did.
    async fn sign(&self, lane: &LaneName, first: Nonce, loads: &[Load]) -> (Vec<NewParcel>, Option<Unsigned>) {
        let mut calls: Vec<ChainFuture<'_, NewParcel, Unsigned>> = Vec::new();
        for (deliveries, n) in loads.iter().zip(0..) {
            let call = self.chain.sign(lane, first.plus(n), Cargo::Deliveries(deliveries));
            calls.push(Box::pin(async move {
                let attempt = self.ask(call).await?;
                Ok(NewParcel::of(deliveries, attempt))
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
    async fn assign_all(&self, lane: &mut Held, loads: &[Load]) -> Result<usize, StationError> {
        let mut assigned = 0;
        for some in loads.chunks(BROADCAST_MAX) {
            let stored = self.assign(lane, some).await?;
            assigned += stored;
            let Some(room) = &mut lane.room else { break };
            if stored < some.len() {
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
    async fn assign(&self, lane: &mut Held, loads: &[Load]) -> Result<usize, StationError> {
        let Some(&Room { next: first, token: owner, .. }) = lane.room.as_ref() else { return Ok(0) };
        let (parcels, failed) = self.sign(&lane.name, first, loads).await;
        match (failed, loads.get(parcels.len())) {
            (Some(Unsigned::Apart(_)), Some(load)) if parcels.is_empty() && load.len() > 1 => {
                return Box::pin(self.assign(lane, &[load[..1].to_vec()])).await;
            }
            // Those before them go first.
            (Some(Unsigned::Apart(_)), _) | (None, _) => {}
            (Some(error), unsigned) => {
                self.signed(lane, owner, unsigned.map_or(&[], Vec::as_slice), Err(error)).await?;
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
            Outcome::Invalid(reason) => return self.never_assigned(lane, owner, loads, &reason).await,
            outcome => {
                tracing::debug!(lane = %lane.name, ?outcome, "nothing was assigned");
                return Ok(0);
            }
        };
        let slots = (0..).map(|n| first.plus(n));
        for (load, nonce) in loads.iter().take(stored).zip(slots.clone()) {
            self.remember_route(lane, nonce, load);
        }
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
        loads: &[Load],
        reason: &Invalid,
    ) -> Result<usize, StationError> {
        tracing::error!(lane = %lane.name, %reason, "the store can never take a parcel");
        match loads.first().map_or(&[][..], Vec::as_slice) {
            [one] => self.reject(lane, owner, one, never(reason)).await.map(|()| 0),
            [first, ..] => Box::pin(self.assign(lane, &[vec![first.clone()]])).await,
            [] => Ok(0),
        }
    }

    /// A delivery that can never be sent waits for a person, with its answer; or its route's
    /// failure response takes its place.
    async fn reject(
        &self,
        lane: &mut Held,
        owner: Token,
        delivery: &ReadyDelivery,
        error: ErrorNote,
    ) -> Result<(), StationError> {
        let instead = match delivery.failure {
            true => None,
            false => self.instead(&delivery.route, delivery.id, &error).await?,
        };
        let op = Reject { lane: lane.name.clone(), owner, id: delivery.id, answer: delivery.answer, error, instead };
        let outcome = persist::apply_one(&*self.store, op).await?;
        lane.passed |= self.still_ours(lane, std::slice::from_ref(&outcome)) && outcome.holds();
        Ok(())
    }

    /// A delivery that had its effect before ends well.
    async fn already(&self, lane: &mut Held, owner: Token, delivery: &ReadyDelivery) -> Result<(), StationError> {
        tracing::info!(lane = %lane.name, request = %delivery.id, "an answer is done already");
        let op = Already { lane: lane.name.clone(), owner, id: delivery.id, answer: delivery.answer };
        let outcome = persist::apply_one(&*self.store, op).await?;
        lane.passed |= self.still_ours(lane, std::slice::from_ref(&outcome)) && outcome.holds();
        Ok(())
    }
}

/// The store can never take it.
fn never(reason: &Invalid) -> ErrorNote {
    ErrorNote::new(ErrorClass::Fatal, &reason.to_string())
}
