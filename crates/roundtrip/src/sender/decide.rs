//! What a sender does about a lane, from what the store holds and what the outside
//! shows: pure functions.

use std::collections::{BTreeMap, HashMap};

use super::chain::{Because, Depth, Mined, Sighting};
use super::{AttemptKind, Block, LaneStatus, ParcelStage, SignedAttempt};
use crate::store::op::{Judgement, Sight};
use crate::store::query::{LaneView, ParcelView};
use crate::words::{Height, Nonce, RouteName, UnixMs};

/// How many gaps of a lane are watched at once; those above wait for them anyway.
const GAPS_WATCHED_MAX: usize = 256;
/// How many gaps of a lane one round fills.
const FILLS_MAX: usize = 16;
/// How many slots of a lane get dearer bytes in one round; a seat must outlast it.
const BUMPS_MAX: usize = 64;

/// How patient a sender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Stored bytes that are not mined are sent again after so long; and a slot that was
    /// passed over is filled when it has been empty for so long.
    pub resend_ms: u64,
    /// The lowest slot that is not mined is late after so long.
    pub bump_ms: u64,
}

/// A lane that cannot pay is tried again after so long, even if nobody was seen to fund it.
const FUNDS_AGAIN_MS: u64 = 60_000;

/// When a slot's bytes were last sent, and when they were first sent at their price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) last: UnixMs,
    pub(super) at_price: UnixMs,
    /// When a cancel was last tried in vain.
    pub(super) uncancelled: Option<UnixMs>,
    /// Whether the outside wants more for the slot.
    pub(super) too_cheap: bool,
    /// When dearer bytes were last to be had in vain.
    pub(super) stayed: Option<UnixMs>,
    /// Whether that was because they pay all that they may.
    pub(super) at_cap: bool,
}

impl Sent {
    /// Sent for the first time at their price.
    pub(super) fn at(now: UnixMs) -> Sent {
        Sent { last: now, at_price: now, uncancelled: None, too_cheap: false, stayed: None, at_cap: false }
    }

    /// Whether a slot is to get dearer bytes, and why. Only the lowest can be late: those above
    /// wait for it. What cannot be had is not asked for again at once.
    fn dearer(&self, lowest: bool, below: bool, patience: Patience, now: UnixMs) -> Option<Because> {
        let Patience { resend_ms, bump_ms } = patience;
        match () {
            () if self.stayed.is_some_and(|stayed| now < stayed.plus(resend_ms)) => None,
            () if self.too_cheap => Some(Because::TooCheap),
            () if below && now >= self.at_price.plus(resend_ms.min(bump_ms)) => Some(Because::Below),
            () if lowest && now >= self.at_price.plus(bump_ms) => Some(Because::Late),
            () => None,
        }
    }
}

/// What a sender remembers of a lane between two looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) sent: BTreeMap<Nonce, Sent>,
    /// Slots that were passed over, and since when that shows.
    pub(super) gaps: BTreeMap<Nonce, UnixMs>,
    /// Since when the lane cannot pay.
    pub(super) broke: Option<Broke>,
    /// The highest block that was looked at and showed all that is settled.
    pub(super) highest: Option<Height>,
    /// Which routes the parcels on slots are of, as far as it was of interest.
    pub(super) routes: BTreeMap<Nonce, RouteName>,
}

/// A lane that cannot pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broke {
    pub(super) since: UnixMs,
    /// The least that it was seen to have since.
    pub(super) funds: Option<u128>,
}

impl Broke {
    /// What is known after another look; none if it is worth a try again.
    fn still(self, funds: Option<u128>, now: UnixMs) -> Option<Broke> {
        let funded = self.funds.zip(funds).is_some_and(|(least, funds)| funds > least);
        if funded || now >= self.since.plus(FUNDS_AGAIN_MS) {
            return None;
        }
        Some(Broke { funds: self.funds.into_iter().chain(funds).min(), ..self })
    }
}

/// What is wrong with a transaction in a block; the worst is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// It had no effect.
    NoEffect,
    /// It had no effect, and the lane is to blame for it.
    OfTheLane,
}

/// What is to be done about a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// The outside has used slots that the store knows nothing of.
    pub(super) observe: Option<Nonce>,
    /// The outside has used up all slots below, and nothing of ours is among them.
    pub(super) settled: Option<Nonce>,
    pub(super) settles: Vec<(Nonce, ParcelStage, Sight)>,
    /// Bytes that were mined for a slot, and that the store forgot.
    pub(super) adopt: Vec<(Nonce, SignedAttempt)>,
    /// Slots whose newest bytes are to be sent again, lowest first.
    pub(super) resend: Vec<Nonce>,
    /// Slots that need a dearer attempt, and why, lowest first.
    pub(super) bump: Vec<(Nonce, Because)>,
    /// Slots that are to be cancelled and have nothing to do it with yet, lowest first.
    pub(super) cancel: Vec<Nonce>,
    /// The gaps to remember until the next look.
    pub(super) gaps: BTreeMap<Nonce, UnixMs>,
    /// Those to be filled now, lowest first.
    pub(super) fill: Vec<Nonce>,
    /// Whether the lane takes answers.
    pub(super) active: bool,
    /// The worst that blocks newly show of the lane's transactions.
    pub(super) fault: Option<Fault>,
    /// How many more parcels may be assigned.
    pub(super) room: usize,
    /// What to remember of a lane that cannot pay.
    pub(super) broke: Option<Broke>,
    /// Whether a lane that could not pay is to be tried again.
    pub(super) resume: bool,
    /// The highest block to remember that showed all that is settled.
    pub(super) highest: Option<Height>,
    /// Whether the chain took back what was beyond any reorg.
    pub(super) took_back: bool,
    /// Whether a slot that is not mined was looked at: those after it are not the lowest.
    past_lowest: bool,
}

/// Decides what one look at the outside comes to, with this patience with each parcel, and with
/// what has none.
pub(super) fn decide(
    lane: &LaneView,
    seen: &Sighting,
    memory: &Memory,
    patience: impl Fn(Option<&ParcelView>) -> Patience,
    now: UnixMs,
) -> Plan {
    let observe = Some(seen.pending).filter(|&pending| pending > lane.next);
    let settled = Some(seen.settled.min(lane.next)).filter(|&below| used_by_others(lane, below));
    let mut plan = Plan { observe, settled, adopt: seen.forgotten.clone(), ..Plan::default() };
    let mined: HashMap<Nonce, &Mined> = seen.mined.iter().map(|mined| (mined.nonce, mined)).collect();
    for parcel in &lane.parcels {
        match sight(parcel, mined.get(&parcel.nonce).copied(), seen) {
            Verdict::Settle(sight) => {
                plan.fault = plan.fault.max(mined.get(&parcel.nonce).and_then(|mined| fault(parcel, mined)));
                plan.settles.push((parcel.nonce, parcel.stage, sight));
            }
            Verdict::Unmined => {
                let below = seen.below.contains(&parcel.nonce);
                plan.tend(parcel, memory.sent.get(&parcel.nonce), below, patience(Some(parcel)), now);
            }
            Verdict::Nothing => {}
        }
    }
    if lane.status == LaneStatus::Active && plan.observe.is_none() {
        plan.active = true;
        plan.room = (lane.window as usize).saturating_sub(lane.under_way);
    }
    if matches!(lane.status, LaneStatus::Unfunded { .. }) {
        // After a start nothing is known of it, so it is tried once.
        plan.broke = memory.broke.and_then(|broke| broke.still(seen.funds, now));
        plan.resume = plan.broke.is_none();
    }
    let behind = seen.latest < lane.settled;
    // Less than is settled, above a block that showed all of it, is no answer from the past.
    plan.took_back = behind && memory.highest.is_some_and(|highest| seen.head.height > highest);
    plan.highest = if behind { memory.highest } else { memory.highest.max(Some(seen.head.height)) };
    if behind {
        // An answer from before what is settled knows nothing of gaps.
        plan.gaps = memory.gaps.clone();
    } else if lane.status != LaneStatus::Stopped && plan.observe.is_none() {
        plan.gaps = gaps(lane, seen, &memory.gaps, now);
        let Patience { resend_ms, .. } = patience(None);
        let ripe = |since: &UnixMs| now >= since.plus(resend_ms);
        let ripe = plan.gaps.iter().filter(|(_, since)| ripe(since)).map(|(nonce, _)| *nonce);
        plan.fill = ripe.take(FILLS_MAX).collect();
    }
    plan
}

/// Whether the store knows less than that all slots below are used up. Of its own parcels, their ends tell.
fn used_by_others(lane: &LaneView, below: Nonce) -> bool {
    below > lane.settled && lane.parcels.first().is_none_or(|lowest| lowest.nonce >= below)
}

/// The slots that were passed over and that nothing in a block uses, with since when that
/// shows.
fn gaps(lane: &LaneView, seen: &Sighting, known: &BTreeMap<Nonce, UnixMs>, now: UnixMs) -> BTreeMap<Nonce, UnixMs> {
    let has_parcel = |nonce: Nonce| lane.parcels.binary_search_by_key(&nonce, |parcel| parcel.nonce).is_ok();
    let empty = (seen.latest.0..lane.next.0).map(Nonce).filter(|nonce| !has_parcel(*nonce));
    // One that was not known shows since now.
    empty.take(GAPS_WATCHED_MAX).map(|nonce| (nonce, known.get(&nonce).copied().unwrap_or(now))).collect()
}

impl Plan {
    /// Whether an occupied slot is to get bytes beside those that it has.
    pub(super) fn wants_other_bytes(&self) -> bool {
        !self.bump.is_empty() || !self.cancel.is_empty()
    }

    /// What is to be cancelled gets the bytes for it first, and never dearer ones that carry it.
    fn tend(&mut self, parcel: &ParcelView, sent: Option<&Sent>, below: bool, patience: Patience, now: UnixMs) {
        let lowest = !std::mem::replace(&mut self.past_lowest, true);
        let nonce = parcel.nonce;
        let cancelled = parcel.attempts.iter().any(|attempt| attempt.kind == AttemptKind::Cancel);
        let uncancelled = parcel.cancel.is_some() && !cancelled;
        let tried = sent.and_then(|sent| sent.uncancelled);
        if uncancelled && tried.is_none_or(|tried| now >= tried.plus(patience.resend_ms)) {
            self.cancel.push(nonce);
            return;
        }
        let Some(sent) = sent else {
            self.resend.push(nonce);
            return;
        };
        let dearer = sent.dearer(lowest, below, patience, now);
        let dearer = dearer.filter(|_| !uncancelled && self.bump.len() < BUMPS_MAX);
        if let Some(because) = dearer {
            self.bump.push((nonce, because));
        } else if now >= sent.last.plus(patience.resend_ms) {
            self.resend.push(nonce);
        }
    }
}

enum Verdict {
    Settle(Sight),
    Unmined,
    Nothing,
}

/// What one look shows of one parcel.
fn sight(parcel: &ParcelView, mined: Option<&Mined>, seen: &Sighting) -> Verdict {
    let Some(mined) = mined else { return unseen(parcel, seen) };
    let block = Block { attempt: mined.attempt, at: mined.at };
    let moved = parcel.block != Some(block);
    match (mined.depth, parcel.stage) {
        (Depth::Final, _) => Verdict::Settle(Sight::Final(block, mined.judgement.clone())),
        (Depth::Confirmed, ParcelStage::Confirmed) if !moved => Verdict::Nothing,
        (Depth::Confirmed, _) => Verdict::Settle(Sight::Confirmed(block)),
        (Depth::Included, ParcelStage::Included) if !moved => Verdict::Nothing,
        (Depth::Included, ParcelStage::Assigned | ParcelStage::Included) => Verdict::Settle(Sight::Included(block)),
        // The same block less deep than before is an answer from behind; another block is a reorg.
        (Depth::Included, ParcelStage::Confirmed) if !moved => Verdict::Nothing,
        (Depth::Included, ParcelStage::Confirmed) => Verdict::Settle(Sight::Back),
    }
}

/// What is wrong with a parcel's transaction, if this look is the first to show it there.
fn fault(parcel: &ParcelView, mined: &Mined) -> Option<Fault> {
    if parcel.block == Some(Block { attempt: mined.attempt, at: mined.at }) || mined.judgement == Judgement::Done {
        return None;
    }
    Some(if mined.lane_to_blame { Fault::OfTheLane } else { Fault::NoEffect })
}

/// What it means that none of a parcel's attempts is in the chain.
fn unseen(parcel: &ParcelView, seen: &Sighting) -> Verdict {
    if parcel.nonce < seen.settled {
        return Verdict::Settle(Sight::Displaced);
    }
    if parcel.nonce < seen.latest {
        // Somebody else's transaction has the slot for now; only final depth decides.
        return Verdict::Nothing;
    }
    match parcel.block {
        // An answer from before the block that it was in says nothing about it.
        Some(block) if seen.head.height < block.at.height => Verdict::Nothing,
        Some(_) => Verdict::Settle(Sight::Back),
        None => Verdict::Unmined,
    }
}

#[cfg(test)]
mod tests;
