//! What is stored goes out, and what the outside says to it is heard: sent again, made
//! dearer, cancelled, paused.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinError;

use super::chain::{Cargo, Chain, Reception, Unreachable, Unsigned};
use super::decide::{Broke, Patience, Sent};
use super::run::{Held, Sender};
use super::{AttemptKind, SignedAttempt};
use crate::persist;
use crate::station::StationError;
use crate::store::op::{AfterCancel, Attempt, LaneOrder, Order, Outcome};
use crate::store::query::ParcelView;
use crate::words::{ErrorClass, ErrorNote, LaneName, Nonce, Token, UnixMs};

/// How many parcels are stored in one commit, and sent in one broadcast.
pub(super) const BROADCAST_MAX: usize = 100;
/// How many broadcasts of a lane are under way at most.
const BROADCASTS_AT_ONCE: usize = 4;

/// Stored bytes that were sent, and how the outside received each.
pub(super) struct Answered {
    outgoing: Vec<Outgoing>,
    receptions: Vec<Result<Reception, Unreachable>>,
}

/// Stored bytes on their way out.
pub(super) struct Outgoing {
    nonce: Nonce,
    attempt: SignedAttempt,
    /// Whether they are the only ones that could carry their parcel's answers.
    sole_carrier: bool,
}

impl Outgoing {
    /// The newest bytes of a parcel.
    pub(super) fn newest(parcel: &ParcelView) -> Option<Outgoing> {
        let attempt = parcel.attempts.last()?.clone();
        let sole_carrier = parcel.attempts.len() == 1 && attempt.kind == AttemptKind::Carry;
        Some(Outgoing { nonce: parcel.nonce, attempt, sole_carrier })
    }

    /// The first bytes of a parcel.
    pub(super) fn first(nonce: Nonce, attempt: SignedAttempt) -> Outgoing {
        let sole_carrier = attempt.kind == AttemptKind::Carry;
        Outgoing { nonce, attempt, sole_carrier }
    }
}

impl Sender {
    /// Sends stored bytes, while the sender goes on: every slot's are stored, so any order
    /// will do. What the outside says to them is heard later.
    pub(super) async fn send(&self, lane: &mut Held, mut outgoing: Vec<Outgoing>) -> Result<(), StationError> {
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
    pub(super) async fn hear_all(&self, lane: &mut Held) -> Result<(), StationError> {
        while let Some(answered) = lane.sending.join_next().await {
            self.received(lane, answered).await?;
        }
        Ok(())
    }

    /// Acts on how the outside received a broadcast.
    pub(super) async fn received(
        &self,
        lane: &mut Held,
        answered: Result<Answered, JoinError>,
    ) -> Result<(), StationError> {
        let Answered { outgoing, receptions } =
            answered.map_err(|error| StationError::Broken(format!("a broadcast ended: {error}")))?;
        let mut broke = None;
        for (one, reception) in outgoing.iter().zip(receptions) {
            match reception {
                Ok(Reception::Taken) => {
                    if let Some(sent) = lane.memory.sent.get_mut(&one.nonce) {
                        sent.too_cheap = false;
                    }
                }
                Ok(Reception::TooCheap) => {
                    if let Some(sent) = lane.memory.sent.get_mut(&one.nonce) {
                        sent.too_cheap = true;
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
        let Patience { resend_ms, bump_ms } = self.patience_with(lane.memory.routes.get(&one.nonce));
        if let Some(sent) = lane.memory.sent.get_mut(&one.nonce) {
            // Not at once: a slot has only so many attempts.
            sent.at_price = UnixMs(sent.last.plus(resend_ms).0.saturating_sub(bump_ms));
        }
        Ok(())
    }

    /// A lane that cannot pay takes nothing new until it is funded.
    pub(super) async fn pause(&self, lane: &mut Held, why: &str) -> Result<(), StationError> {
        if lane.memory.broke.is_some() {
            return Ok(());
        }
        tracing::error!(lane = %lane.name, why, "the lane cannot pay and pauses: fund its account");
        lane.memory.broke = Some(Broke { since: self.clock.now(), funds: None });
        let order = Order::Unfunded { reason: why.into() };
        persist::apply_one(&*self.store, LaneOrder { lane: lane.name.clone(), order }).await?;
        Ok(())
    }

    /// A lane that is to blame takes nothing new for a while; what it could not take, others do.
    pub(super) async fn quarantine(&self, lane: &mut Held, why: &str) -> Result<(), StationError> {
        tracing::warn!(lane = %lane.name, why, "the lane is to blame and goes into quarantine");
        let order = Order::Quarantine { for_ms: self.options.quarantine_ms };
        persist::apply_one(&*self.store, LaneOrder { lane: lane.name.clone(), order }).await?;
        lane.room = None;
        Ok(())
    }

    /// Asks for a slot to be filled with nothing, and for its answers to go out again.
    pub(super) async fn requeue(&self, lane: &Held, nonce: Nonce) -> Result<(), StationError> {
        tracing::warn!(lane = %lane.name, nonce = nonce.0, "a slot was not mined in time: it is filled, and its answers go out again");
        let order = Order::Cancel { nonce, then: AfterCancel::Requeue };
        persist::apply_one(&*self.store, LaneOrder { lane: lane.name.clone(), order }).await?;
        Ok(())
    }

    /// Stores other bytes for an occupied slot, then sends them.
    pub(super) async fn try_again(
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
            Err(error) => return self.stay(lane, parcel, &error).await,
        };
        let op = Attempt { lane: lane.name.clone(), owner, nonce, attempt: attempt.clone() };
        let outcome = persist::apply_one(&*self.store, op).await?;
        if !self.still_ours(lane, std::slice::from_ref(&outcome)) {
            return Ok(());
        }
        match outcome {
            // No more attempts fit.
            Outcome::Full(_) => self.stay(lane, parcel, &Unsigned::AtCap).await,
            outcome if outcome.holds() => {
                lane.memory.sent.insert(nonce, Sent::at(self.clock.now()));
                self.send(lane, vec![Outgoing { nonce, attempt, sole_carrier: false }]).await
            }
            // The parcel has ended or moved on since the look.
            _ => Ok(()),
        }
    }

    /// What is stored for a slot is sent again, and other bytes are thought of again later. It
    /// is told once, and not at every try.
    async fn stay(&self, lane: &mut Held, parcel: &ParcelView, why: &Unsigned) -> Result<(), StationError> {
        let (now, nonce) = (self.clock.now(), parcel.nonce.0);
        let before = lane.memory.sent.get(&parcel.nonce).copied();
        let known = before.is_some_and(|sent| sent.stayed.is_some());
        match why {
            Unsigned::AtCap if !known => {
                tracing::error!(lane = %lane.name, nonce, "a slot pays all that it may and is not mined: raise the fee cap, or wait");
            }
            _ if !known && *why != Unsigned::Unmoved => {
                tracing::warn!(lane = %lane.name, nonce, %why, "a slot stays with the bytes that it has");
            }
            _ => tracing::debug!(lane = %lane.name, nonce, %why, "a slot stays with the bytes that it has"),
        }
        let sent = Sent {
            uncancelled: parcel.cancel.as_ref().map(|_| now),
            too_cheap: before.is_some_and(|sent| sent.too_cheap),
            stayed: Some(now),
            at_cap: match why {
                Unsigned::AtCap => true,
                Unsigned::Unmoved => false,
                // Nothing was found out about it.
                _ => before.is_some_and(|sent| sent.at_cap),
            },
            ..Sent::at(now)
        };
        lane.memory.sent.insert(parcel.nonce, sent);
        self.send(lane, Outgoing::newest(parcel).into_iter().collect()).await
    }
}

/// The next broadcast that ends, and on which lane; never, if none is under way.
pub(super) async fn next_answered(lanes: &mut [Held]) -> (usize, Result<Answered, JoinError>) {
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
