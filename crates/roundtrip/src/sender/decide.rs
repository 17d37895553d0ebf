//! What a sender does about a lane, from what the store holds and what the outside
//! shows: pure functions.

use std::collections::BTreeMap;

use super::chain::{Depth, Mined, Sighting};
use super::{Block, LaneStatus, ParcelStage};
use crate::store::op::{Judgement, Sight};
use crate::store::query::{LaneView, ParcelView};
use crate::words::{Nonce, UnixMs};

/// How patient a sender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Stored bytes that are not mined are sent again after so long.
    pub resend_ms: u64,
    /// The lowest slot that is not mined gets a dearer attempt after so long.
    pub bump_ms: u64,
}

/// When a slot's bytes were last sent, and when they were first sent at their price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) last: UnixMs,
    pub(super) at_price: UnixMs,
}

/// What is to be done about a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// The outside has used slots that the store knows nothing of.
    pub(super) observe: Option<Nonce>,
    pub(super) settles: Vec<(Nonce, ParcelStage, Sight)>,
    /// Slots whose newest bytes are to be sent again, lowest first.
    pub(super) resend: Vec<Nonce>,
    /// The slot that needs a dearer attempt.
    pub(super) bump: Option<Nonce>,
    /// How many parcels of a final transaction had no effect.
    pub(super) failed: usize,
    /// How many more parcels may be assigned.
    pub(super) room: usize,
    /// Whether a slot that is not mined was looked at: those after it are not the lowest.
    past_lowest: bool,
}

/// Decides what one look at the outside comes to.
pub(super) fn decide(
    lane: &LaneView,
    seen: &Sighting,
    sent: &BTreeMap<Nonce, Sent>,
    patience: Patience,
    now: UnixMs,
) -> Plan {
    let mut plan = Plan { observe: Some(seen.pending).filter(|&pending| pending > lane.next), ..Plan::default() };
    for parcel in &lane.parcels {
        let mined = seen.mined.iter().find(|mined| mined.nonce == parcel.nonce);
        match sight(parcel, mined, seen) {
            Verdict::Settle(sight) => {
                plan.failed +=
                    usize::from(matches!(&sight, Sight::Final(_, judgement) if *judgement != Judgement::Done));
                plan.settles.push((parcel.nonce, parcel.stage, sight));
            }
            Verdict::Unmined => plan.tend(parcel.nonce, sent.get(&parcel.nonce), patience, now),
            Verdict::Nothing => {}
        }
    }
    let active = lane.status == LaneStatus::Active || quarantine_is_over(&lane.status, now);
    if active && plan.observe.is_none() {
        plan.room = (lane.window as usize).saturating_sub(lane.under_way);
    }
    plan
}

fn quarantine_is_over(status: &LaneStatus, now: UnixMs) -> bool {
    matches!(status, LaneStatus::Quarantined { until } if *until <= now)
}

impl Plan {
    /// Only the lowest slot can be stuck: those above it wait for it, and dearer bytes would not help them.
    fn tend(&mut self, nonce: Nonce, sent: Option<&Sent>, patience: Patience, now: UnixMs) {
        let lowest = !std::mem::replace(&mut self.past_lowest, true);
        let Some(sent) = sent else {
            self.resend.push(nonce);
            return;
        };
        if lowest && now >= sent.at_price.plus(patience.bump_ms) {
            self.bump = Some(nonce);
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
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::sender::{AttemptKind, SignedAttempt};
    use crate::words::{AttemptHash, Destination, ErrorClass, ErrorNote, Height, LaneName, Position};

    const NOW: UnixMs = UnixMs(1_000_000);
    const PATIENCE: Patience = Patience { resend_ms: 100, bump_ms: 1000 };

    fn at(height: u64) -> Position {
        Position { height: Height(height), hash: [height.to_le_bytes()[0]; 32] }
    }

    fn hash(nonce: u64) -> AttemptHash {
        AttemptHash::of(&[&nonce.to_le_bytes()])
    }

    fn parcel(nonce: u64, stage: ParcelStage, height: Option<u64>) -> ParcelView {
        let attempt = SignedAttempt { hash: hash(nonce), kind: AttemptKind::Carry, bytes: bytes::Bytes::new() };
        let block = height.map(|height| Block { attempt: hash(nonce), at: at(height) });
        ParcelView { nonce: Nonce(nonce), deliveries: Vec::new(), attempts: vec![attempt], stage, block }
    }

    fn lane(parcels: Vec<ParcelView>, status: LaneStatus) -> LaneView {
        LaneView {
            name: LaneName::new("lane").unwrap(),
            destination: Destination::new("chain").unwrap(),
            window: 4,
            next: Nonce(parcels.last().map_or(0, |parcel| parcel.nonce.0 + 1)),
            status,
            under_way: parcels.len(),
            parcels,
        }
    }

    fn mined(nonce: u64, height: u64, depth: Depth, judgement: Judgement) -> Mined {
        Mined { nonce: Nonce(nonce), attempt: hash(nonce), at: at(height), depth, judgement }
    }

    fn seen(head: u64, slots: [u64; 3], mined: Vec<Mined>) -> Sighting {
        let [pending, latest, settled] = slots.map(Nonce);
        Sighting { head: at(head), pending, latest, settled, mined }
    }

    fn plan(parcels: Vec<ParcelView>, seen: &Sighting) -> Plan {
        decide(&lane(parcels, LaneStatus::Active), seen, &BTreeMap::new(), PATIENCE, NOW)
    }

    /// One parcel on slot 5, and what a look at it comes to.
    #[test]
    fn a_look_moves_a_parcel_on_or_back_or_not_at_all() {
        use ParcelStage::{Assigned, Confirmed, Included};
        let found = |height| Block { attempt: hash(5), at: at(height) };
        let done = || Judgement::Done;
        let in_block = |height, depth| seen(20, [6, 6, 0], vec![mined(5, height, depth, done())]);
        let nowhere = |head, slots| seen(head, slots, vec![]);
        let cases = [
            ("in a block", Assigned, None, in_block(9, Depth::Included), Some(Sight::Included(found(9)))),
            ("still there", Included, Some(9), in_block(9, Depth::Included), None),
            ("in another block", Included, Some(9), in_block(10, Depth::Included), Some(Sight::Included(found(10)))),
            ("deep", Included, Some(9), in_block(9, Depth::Confirmed), Some(Sight::Confirmed(found(9)))),
            ("deep at once", Assigned, None, in_block(9, Depth::Confirmed), Some(Sight::Confirmed(found(9)))),
            ("still deep", Confirmed, Some(9), in_block(9, Depth::Confirmed), None),
            ("an answer from behind", Confirmed, Some(9), in_block(9, Depth::Included), None),
            ("moved after it was deep", Confirmed, Some(9), in_block(10, Depth::Included), Some(Sight::Back)),
            ("final", Confirmed, Some(9), in_block(9, Depth::Final), Some(Sight::Final(found(9), done()))),
            ("gone", Included, Some(9), nowhere(20, [6, 5, 0]), Some(Sight::Back)),
            ("gone after it was deep", Confirmed, Some(9), nowhere(20, [6, 5, 0]), Some(Sight::Back)),
            ("a head below its block says nothing", Included, Some(9), nowhere(8, [6, 5, 0]), None),
            ("somebody else's for now", Assigned, None, nowhere(20, [6, 6, 5]), None),
            ("somebody else's for good", Assigned, None, nowhere(20, [6, 6, 6]), Some(Sight::Displaced)),
        ];
        for (name, stage, height, seen, expected) in cases {
            let settles = plan(vec![parcel(5, stage, height)], &seen).settles;
            assert_eq!(
                settles,
                expected.map(|sight| (Nonce(5), stage, sight)).into_iter().collect::<Vec<_>>(),
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_not_mined_is_sent_again_and_only_the_lowest_gets_dearer() {
        let parcels: Vec<_> = (5..8).map(|nonce| parcel(nonce, ParcelStage::Assigned, None)).collect();
        let lane = lane(parcels, LaneStatus::Active);
        let seen = seen(20, [8, 5, 5], vec![]);
        let sent = |ages: &[(u64, u64, u64)]| -> BTreeMap<Nonce, Sent> {
            let sent = |&(nonce, last, at_price): &(u64, u64, u64)| {
                (Nonce(nonce), Sent { last: UnixMs(NOW.0 - last), at_price: UnixMs(NOW.0 - at_price) })
            };
            ages.iter().map(sent).collect()
        };
        type Case = (&'static str, &'static [(u64, u64, u64)], &'static [u64], Option<u64>);
        let cases: [Case; 5] = [
            ("after a start all of them", &[], &[5, 6, 7], None),
            ("nothing is old", &[(5, 1, 1), (6, 1, 1), (7, 1, 1)], &[], None),
            ("some are old", &[(5, 100, 100), (6, 1, 1), (7, 100, 100)], &[5, 7], None),
            ("the lowest is stuck", &[(5, 1, 1000), (6, 1, 1000), (7, 1, 1000)], &[], Some(5)),
            ("the others are sent again", &[(5, 100, 1000), (6, 100, 1000), (7, 1, 1)], &[6], Some(5)),
        ];
        for (name, ages, resend, bump) in cases {
            let plan = decide(&lane, &seen, &sent(ages), PATIENCE, NOW);
            let resend: Vec<Nonce> = resend.iter().copied().map(Nonce).collect();
            assert_eq!((plan.resend, plan.bump), (resend, bump.map(Nonce)), "{name}");
        }
    }

    #[test]
    fn there_is_room_on_active_lanes_that_the_outside_knows_nothing_more_of() {
        let paused = || LaneStatus::Paused { reason: "why".into() };
        let quarantined = |until| LaneStatus::Quarantined { until };
        let cases = [
            (LaneStatus::Active, 6, 3, None),
            (LaneStatus::Active, 7, 0, Some(Nonce(7))),
            (paused(), 6, 0, None),
            (quarantined(NOW.plus(1)), 6, 0, None),
            (quarantined(NOW), 6, 3, None),
            (LaneStatus::Stopped, 6, 0, None),
        ];
        for (status, pending, room, observe) in cases {
            let lane = lane(vec![parcel(5, ParcelStage::Assigned, None)], status.clone());
            let plan = decide(&lane, &seen(20, [pending, 5, 5], vec![]), &BTreeMap::new(), PATIENCE, NOW);
            assert_eq!((plan.room, plan.observe), (room, observe), "{status:?}");
        }
    }

    #[test]
    fn transactions_without_effect_are_counted() {
        let error = || ErrorNote::new(ErrorClass::Fatal, "reverted");
        let judged = |nonce, judgement| mined(nonce, 9, Depth::Final, judgement);
        let all = vec![
            judged(5, Judgement::Done),
            judged(6, Judgement::Again(error())),
            judged(7, Judgement::Failed(error())),
        ];
        let parcels = (5..8).map(|nonce| parcel(nonce, ParcelStage::Assigned, None)).collect();
        assert_eq!(plan(parcels, &seen(20, [8, 8, 8], all)).failed, 2);
    }
}
