//! Sending: lanes, the parcels on their slots, and what the outside shows of them.
//!
//! ```text
//!            assign                 included            confirmed          final
//!   next ─────────────▶ Assigned ───────────▶ Included ───────────▶ Confirmed ────▶ gone
//!                          ▲  │                  │                     │
//!                          └──┼──── back ────────┴─────────────────────┘
//!                             └─▶ displaced (somebody else used the slot, at final depth)
//! ```
//!
//! A slot is never skipped and never used for other deliveries, so a lane has no gaps of
//! its own making. Others make them: an outsider's transaction that was counted on may
//! vanish. Such a slot is filled, with an answer that is ready or with nothing; and a
//! parcel that is no longer wanted is cancelled by an attempt that only uses its slot up.

mod assign;
mod broadcast;
pub mod chain;
mod decide;
mod pack;
mod rebuild;
mod run;
mod stats;
mod terms;

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub use decide::Patience;
pub use rebuild::{Progress, Rebuild, Rebuilt};
pub use run::{OnTimeout, QuarantineOn, SendOrder, Sender, SenderOptions};
pub use stats::SenderStats;
pub use terms::{FailureResponse, Refused, RouteTerms};

use crate::outbox::LaneNo;
use crate::store::op::{AfterCancel, Full, Judgement, Missing, Outcome, Sight, Stale};
use crate::words::{
    AttemptHash, Destination, ErrorNote, LaneName, Nonce, Payload, Position, RequestId, UnixMs, WINDOW_MAX,
};

/// Whether a lane takes new parcels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LaneStatus {
    /// It does.
    Active,
    /// Not until resumed.
    Paused {
        /// Why.
        reason: Box<str>,
    },
    /// Not until this time.
    Quarantined {
        /// Until when.
        until: UnixMs,
    },
    /// Not until reconciled: the outside has seen more of this lane than the store
    /// remembers, so the store may have been rolled back.
    Stopped,
    /// Not until it can pay, which ends by itself.
    Unfunded {
        /// What it was told.
        reason: Box<str>,
    },
}

impl LaneStatus {
    /// What it is if it is put in quarantine until then. One that lasts longer is not cut short.
    pub(crate) fn quarantined(&self, until: UnixMs) -> LaneStatus {
        match self {
            // A person's pause ends by a person's word, and not with a quarantine.
            LaneStatus::Paused { .. } => self.clone(),
            LaneStatus::Quarantined { until: before } => LaneStatus::Quarantined { until: until.max(*before) },
            _ => LaneStatus::Quarantined { until },
        }
    }

    /// What it is if it cannot pay. That ends by itself, which would cut short what does not,
    /// or not as soon.
    pub(crate) fn unfunded(&self, reason: Box<str>, now: UnixMs) -> LaneStatus {
        match self {
            LaneStatus::Paused { .. } => self.clone(),
            LaneStatus::Quarantined { until } if *until > now => self.clone(),
            _ => LaneStatus::Unfunded { reason },
        }
    }

    /// What it is if it may be able to pay.
    pub(crate) fn funded(&self) -> LaneStatus {
        match self {
            LaneStatus::Unfunded { .. } => LaneStatus::Active,
            other => other.clone(),
        }
    }
}

/// What a signed attempt does if it is the one that is mined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AttemptKind {
    /// Carries the parcel.
    Carry,
    /// Uses the slot up without carrying anything.
    Cancel,
}

/// Bytes that may be broadcast at any time after they are stored.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SignedAttempt {
    /// The hash by which the outside knows it.
    pub hash: AttemptHash,
    /// Whether it carries the parcel.
    pub kind: AttemptKind,
    /// The signed bytes.
    pub bytes: Bytes,
    /// The most that it pays for a unit of the chain's work, in the chain's smallest coin, if the
    /// chain has such a price. For people: nothing is decided by it.
    pub fee: Option<u128>,
}

impl SignedAttempt {
    /// What is remembered of it when its bytes are gone.
    pub(crate) fn note(&self) -> AttemptNote {
        AttemptNote { hash: self.hash, kind: self.kind, fee: self.fee }
    }
}

/// What is remembered of a signed attempt when its bytes are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptNote {
    /// The hash by which the outside knows it.
    pub hash: AttemptHash,
    /// Whether it carries the parcel.
    pub kind: AttemptKind,
    /// The most that it pays for a unit of the chain's work, if the chain has such a price.
    pub fee: Option<u128>,
}

impl fmt::Debug for SignedAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignedAttempt({:?}, {}, {} bytes)", self.kind, self.hash, self.bytes.len())
    }
}

/// Where one of our attempts was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Block {
    /// Which attempt.
    pub attempt: AttemptHash,
    /// In which block.
    pub at: Position,
}

/// A parcel's stage without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ParcelStage {
    /// Stored, perhaps broadcast.
    Assigned,
    /// In a block.
    Included,
    /// At the route's depth.
    Confirmed,
}

/// Where a parcel is, with only what is legal there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Stage {
    Assigned,
    Included(Block),
    Confirmed(Block),
}

impl Stage {
    pub(crate) fn kind(&self) -> ParcelStage {
        match self {
            Stage::Assigned => ParcelStage::Assigned,
            Stage::Included(_) => ParcelStage::Included,
            Stage::Confirmed(_) => ParcelStage::Confirmed,
        }
    }
}

/// What one slot carries.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Parcel {
    /// The requests whose answers it carries; none for a gap fill.
    pub(crate) deliveries: Vec<RequestId>,
    pub(crate) attempts: Vec<SignedAttempt>,
    pub(crate) stage: Stage,
    /// Where the journal last told of the first delivery; the others follow in order.
    pub(crate) entry: u64,
    /// Whether somebody wants it cancelled. A wish alone: what is mined decides.
    pub(crate) cancel: Option<AfterCancel>,
}

/// What a sight comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It was known.
    Known,
    /// The parcel is at this stage now.
    To(Stage),
    /// The slot is used up; this becomes of the deliveries.
    End(Fate),
}

/// What becomes of a parcel's deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They are done.
    Done,
    /// They go back to be sent on another slot.
    Return(Option<ErrorNote>),
    /// They are dead letters, with their answers.
    Dead(ErrorNote),
    /// A failure response takes the place of each.
    Replaced(ErrorNote, Payload),
}

impl Parcel {
    /// Decides what a sight does, only from the stage that the caller saw.
    pub(crate) fn see(&self, expected: ParcelStage, sight: &Sight) -> Result<Step, Outcome> {
        let to = match sight {
            Sight::Included(block) => Stage::Included(*block),
            Sight::Confirmed(block) => Stage::Confirmed(*block),
            Sight::Back => Stage::Assigned,
            Sight::Final(block, judgement) => {
                let kind = self.kind_of(block)?;
                self.expect(expected)?;
                return Ok(Step::End(self.fate(kind, judgement)));
            }
            Sight::Displaced => {
                self.expect(expected)?;
                return Ok(Step::End(self.uncarried()));
            }
        };
        if let Stage::Included(block) | Stage::Confirmed(block) = &to {
            self.kind_of(block)?;
        }
        if self.stage == to {
            return Ok(Step::Known);
        }
        self.expect(expected)?;
        match (&self.stage, &to) {
            // Depth does not shrink without a reorg, and a reorg is told by `Back`.
            (Stage::Confirmed(_), Stage::Included(_)) => Err(Outcome::Stale(Stale::Parcel(self.stage.kind()))),
            _ => Ok(Step::To(to)),
        }
    }

    /// The block that a sight is the first to tell of, although it says more than that the parcel is in
    /// it: both came at once.
    pub(crate) fn passed_over(&self, sight: &Sight) -> Option<Block> {
        let (Sight::Confirmed(block) | Sight::Final(block, _)) = sight else { return None };
        match &self.stage {
            Stage::Included(known) | Stage::Confirmed(known) if known == block => None,
            _ => Some(*block),
        }
    }

    pub(crate) fn has_attempt(&self, hash: &AttemptHash) -> bool {
        self.attempts.iter().any(|attempt| attempt.hash == *hash)
    }

    fn expect(&self, expected: ParcelStage) -> Result<(), Outcome> {
        if self.stage.kind() == expected {
            return Ok(());
        }
        Err(Outcome::Stale(Stale::Parcel(self.stage.kind())))
    }

    fn kind_of(&self, block: &Block) -> Result<AttemptKind, Outcome> {
        let found = self.attempts.iter().find(|attempt| attempt.hash == block.attempt);
        found.map(|attempt| attempt.kind).ok_or(Outcome::NotFound(Missing::Attempt(block.attempt)))
    }

    /// What a final attempt makes of the deliveries. One that carries them wins over every wish.
    fn fate(&self, mined: AttemptKind, judgement: &Judgement) -> Fate {
        match (mined, judgement) {
            (AttemptKind::Cancel, _) => self.uncarried(),
            (AttemptKind::Carry, Judgement::Done) => Fate::Done,
            (AttemptKind::Carry, Judgement::Again(error)) => Fate::Return(Some(error.clone())),
            (AttemptKind::Carry, Judgement::Failed(error)) => Fate::Dead(error.clone()),
            (AttemptKind::Carry, Judgement::Replaced(error, response)) => {
                Fate::Replaced(error.clone(), response.clone())
            }
        }
    }

    /// What becomes of the deliveries when the slot is used up and carried none of them.
    fn uncarried(&self) -> Fate {
        match &self.cancel {
            Some(AfterCancel::Dead(error)) => Fate::Dead(error.clone()),
            Some(AfterCancel::Requeue) | None => Fate::Return(None),
        }
    }
}

/// An exclusive path with consecutive slots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    pub(crate) no: LaneNo,
    pub(crate) name: LaneName,
    pub(crate) destination: Destination,
    pub(crate) window: u32,
    /// The high-water mark: every slot below was given out, or used outside, whether or
    /// not a parcel is kept for it.
    pub(crate) next: Nonce,
    /// Every slot below is used up at final depth: one that ended shows it of all below.
    pub(crate) settled: Nonce,
    pub(crate) status: LaneStatus,
    pub(crate) parcels: BTreeMap<Nonce, Parcel>,
    /// How many parcels it has besides those that are here: none, unless they are on loan.
    pub(crate) elsewhere: usize,
}

impl Lane {
    /// How many parcels it has.
    pub(crate) fn under_way(&self) -> usize {
        self.elsewhere + self.parcels.len()
    }

    /// Whether its quarantine is over; it ends by itself.
    pub(crate) fn quarantine_is_over(&self, now: UnixMs) -> bool {
        matches!(self.status, LaneStatus::Quarantined { until } if until <= now)
    }

    /// Whether nothing is known to use this slot, although later ones were given out.
    pub(crate) fn is_gap(&self, nonce: Nonce) -> bool {
        (self.settled..self.next).contains(&nonce) && !self.parcels.contains_key(&nonce)
    }

    /// Whether a gap may be filled now. What lies above it waits for it, so the window
    /// alone must not keep it open; and the lowest of all always has its place.
    pub(crate) fn takes_fill(&self, nonce: Nonce, with_nothing: bool) -> Result<(), Outcome> {
        match &self.status {
            LaneStatus::Active => {}
            LaneStatus::Paused { .. } | LaneStatus::Quarantined { .. } | LaneStatus::Unfunded { .. }
                if with_nothing => {}
            status => return Err(Outcome::Stale(Stale::Lane(status.clone()))),
        }
        let lowest = self.parcels.keys().next().is_none_or(|first| nonce < *first);
        let most = if lowest { WINDOW_MAX } else { self.window };
        if self.under_way() >= 2 * most as usize {
            return Err(Outcome::Full(Full::Window { window: self.window }));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{ErrorClass, Height};

    fn block(attempt: u8, height: u64) -> Block {
        Block { attempt: AttemptHash([attempt; 32]), at: Position { height: Height(height), hash: [0; 32] } }
    }

    fn parcel(stage: Stage) -> Parcel {
        let attempt =
            |byte, kind| SignedAttempt { hash: AttemptHash([byte; 32]), kind, bytes: Bytes::new(), fee: None };
        let attempts = vec![attempt(1, AttemptKind::Carry), attempt(2, AttemptKind::Cancel)];
        Parcel { deliveries: vec![RequestId([1; 32])], attempts, stage, entry: 0, cancel: None }
    }

    #[test]
    fn a_wish_decides_only_when_nothing_was_carried() {
        let note = |text| ErrorNote::new(ErrorClass::Fatal, text);
        let dead = || AfterCancel::Dead(note("unwanted"));
        let at = |attempt, judgement| Sight::Final(block(attempt, 5), judgement);
        let instead = || Judgement::Replaced(note("no"), Payload::raw("sorry"));
        let (carry, cancel) = (1, 2);
        let cases = [
            (None, at(cancel, Judgement::Done), Fate::Return(None)),
            (Some(AfterCancel::Requeue), at(cancel, Judgement::Done), Fate::Return(None)),
            (Some(dead()), at(cancel, Judgement::Done), Fate::Dead(note("unwanted"))),
            (Some(dead()), Sight::Displaced, Fate::Dead(note("unwanted"))),
            (Some(AfterCancel::Requeue), Sight::Displaced, Fate::Return(None)),
            (Some(dead()), at(carry, Judgement::Done), Fate::Done),
            (Some(dead()), at(carry, Judgement::Again(note("no"))), Fate::Return(Some(note("no")))),
            (Some(AfterCancel::Requeue), at(carry, Judgement::Failed(note("no"))), Fate::Dead(note("no"))),
            (Some(dead()), at(carry, instead()), Fate::Replaced(note("no"), Payload::raw("sorry"))),
            (Some(dead()), at(cancel, instead()), Fate::Dead(note("unwanted"))),
        ];
        for (cancel, sight, fate) in cases {
            let parcel = Parcel { cancel: cancel.clone(), ..parcel(Stage::Assigned) };
            assert_eq!(parcel.see(ParcelStage::Assigned, &sight), Ok(Step::End(fate)), "{cancel:?} {sight:?}");
        }
    }

    #[test]
    fn a_block_that_nothing_told_of_before_is_passed_over() {
        let (low, high) = (block(1, 5), block(1, 6));
        let last = |at| Sight::Final(at, Judgement::Done);
        let cases = [
            (Stage::Assigned, Sight::Included(low), None),
            (Stage::Assigned, Sight::Confirmed(low), Some(low)),
            (Stage::Assigned, last(low), Some(low)),
            (Stage::Assigned, Sight::Displaced, None),
            (Stage::Included(low), Sight::Confirmed(low), None),
            (Stage::Included(low), Sight::Confirmed(high), Some(high)),
            (Stage::Included(low), last(low), None),
            (Stage::Confirmed(low), last(low), None),
            (Stage::Confirmed(low), last(high), Some(high)),
            (Stage::Confirmed(low), Sight::Back, None),
        ];
        for (stage, sight, passed) in cases {
            assert_eq!(parcel(stage).passed_over(&sight), passed, "{stage:?} {sight:?}");
        }
    }

    #[test]
    fn a_parcel_moves_only_from_the_stage_that_was_seen() {
        use ParcelStage as P;
        let stale = |stage| Err(Outcome::Stale(Stale::Parcel(stage)));
        let failed = || Judgement::Failed(ErrorNote::new(ErrorClass::Fatal, "no"));
        let cases = [
            (Stage::Assigned, P::Assigned, Sight::Included(block(1, 5)), Ok(Step::To(Stage::Included(block(1, 5))))),
            (Stage::Assigned, P::Included, Sight::Included(block(1, 5)), stale(P::Assigned)),
            (Stage::Included(block(1, 5)), P::Assigned, Sight::Included(block(1, 5)), Ok(Step::Known)),
            (
                Stage::Included(block(1, 5)),
                P::Included,
                Sight::Included(block(1, 6)),
                Ok(Step::To(Stage::Included(block(1, 6)))),
            ),
            (Stage::Confirmed(block(1, 5)), P::Confirmed, Sight::Included(block(1, 6)), stale(P::Confirmed)),
            (Stage::Confirmed(block(1, 5)), P::Confirmed, Sight::Back, Ok(Step::To(Stage::Assigned))),
            (Stage::Assigned, P::Assigned, Sight::Back, Ok(Step::Known)),
            (Stage::Assigned, P::Assigned, Sight::Final(block(1, 5), Judgement::Done), Ok(Step::End(Fate::Done))),
            // The cancel was mined, so nothing was carried, whatever anybody judged.
            (
                Stage::Assigned,
                P::Assigned,
                Sight::Final(block(2, 5), Judgement::Done),
                Ok(Step::End(Fate::Return(None))),
            ),
            (
                Stage::Confirmed(block(1, 5)),
                P::Confirmed,
                Sight::Final(block(1, 5), failed()),
                Ok(Step::End(Fate::Dead(ErrorNote::new(ErrorClass::Fatal, "no")))),
            ),
            (Stage::Assigned, P::Assigned, Sight::Displaced, Ok(Step::End(Fate::Return(None)))),
            (Stage::Included(block(1, 5)), P::Assigned, Sight::Displaced, stale(P::Included)),
            (
                Stage::Assigned,
                P::Assigned,
                Sight::Included(block(9, 5)),
                Err(Outcome::NotFound(Missing::Attempt(AttemptHash([9; 32])))),
            ),
        ];
        for (stage, expected, sight, step) in cases {
            assert_eq!(parcel(stage).see(expected, &sight), step, "{stage:?} {sight:?}");
        }
    }
}
