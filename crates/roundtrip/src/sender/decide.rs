//! What a sender does about a lane, from what the store holds and what the outside
//! shows: pure functions.

use std::collections::{BTreeMap, HashMap};

use super::chain::{Depth, Mined, Sighting};
use super::{AttemptKind, Block, LaneStatus, ParcelStage};
use crate::store::op::{Judgement, Sight};
use crate::store::query::{LaneView, ParcelView};
use crate::words::{Nonce, UnixMs};

/// How many gaps of a lane are watched at once; those above wait for them anyway.
const GAPS_WATCHED_MAX: usize = 256;
/// How many gaps of a lane one round fills.
const FILLS_MAX: usize = 16;

/// How patient a sender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Stored bytes that are not mined are sent again after so long; and a slot that was
    /// passed over is filled when it has been empty for so long.
    pub resend_ms: u64,
    /// The lowest slot that is not mined gets a dearer attempt after so long.
    pub bump_ms: u64,
}

/// When a slot's bytes were last sent, and when they were first sent at their price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) last: UnixMs,
    pub(super) at_price: UnixMs,
    /// When a cancel was last tried in vain.
    pub(super) uncancelled: Option<UnixMs>,
}

impl Sent {
    /// Sent for the first time at their price.
    pub(super) fn at(now: UnixMs) -> Sent {
        Sent { last: now, at_price: now, uncancelled: None }
    }
}

/// What a sender remembers of a lane between two looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) sent: BTreeMap<Nonce, Sent>,
    /// Slots that were passed over, and since when that shows.
    pub(super) gaps: BTreeMap<Nonce, UnixMs>,
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
    /// Slots that are to be cancelled and have nothing to do it with yet, lowest first.
    pub(super) cancel: Vec<Nonce>,
    /// The gaps to remember until the next look.
    pub(super) gaps: BTreeMap<Nonce, UnixMs>,
    /// Those to be filled now, lowest first.
    pub(super) fill: Vec<Nonce>,
    /// Whether the lane takes answers.
    pub(super) active: bool,
    /// How many parcels of a final transaction had no effect.
    pub(super) failed: usize,
    /// How many more parcels may be assigned.
    pub(super) room: usize,
    /// Whether a slot that is not mined was looked at: those after it are not the lowest.
    past_lowest: bool,
}

/// Decides what one look at the outside comes to.
pub(super) fn decide(lane: &LaneView, seen: &Sighting, memory: &Memory, patience: Patience, now: UnixMs) -> Plan {
    let mut plan = Plan { observe: Some(seen.pending).filter(|&pending| pending > lane.next), ..Plan::default() };
    let mined: HashMap<Nonce, &Mined> = seen.mined.iter().map(|mined| (mined.nonce, mined)).collect();
    for parcel in &lane.parcels {
        match sight(parcel, mined.get(&parcel.nonce).copied(), seen) {
            Verdict::Settle(sight) => {
                plan.failed +=
                    usize::from(matches!(&sight, Sight::Final(_, judgement) if *judgement != Judgement::Done));
                plan.settles.push((parcel.nonce, parcel.stage, sight));
            }
            Verdict::Unmined => plan.tend(parcel, memory.sent.get(&parcel.nonce), patience, now),
            Verdict::Nothing => {}
        }
    }
    if lane.status == LaneStatus::Active && plan.observe.is_none() {
        plan.active = true;
        plan.room = (lane.window as usize).saturating_sub(lane.under_way);
    }
    if seen.latest < lane.settled {
        // An answer from before what is settled knows nothing of gaps.
        plan.gaps = memory.gaps.clone();
    } else if lane.status != LaneStatus::Stopped && plan.observe.is_none() {
        plan.gaps = gaps(lane, seen, &memory.gaps, now);
        let ripe = |since: &UnixMs| now >= since.plus(patience.resend_ms);
        let ripe = plan.gaps.iter().filter(|(_, since)| ripe(since)).map(|(nonce, _)| *nonce);
        plan.fill = ripe.take(FILLS_MAX).collect();
    }
    plan
}

/// The slots that were passed over and that nothing in a block uses, with since when that
/// shows.
fn gaps(lane: &LaneView, seen: &Sighting, known: &BTreeMap<Nonce, UnixMs>, now: UnixMs) -> BTreeMap<Nonce, UnixMs> {
    let has_parcel = |nonce: Nonce| lane.parcels.binary_search_by_key(&nonce, |parcel| parcel.nonce).is_ok();
    let empty = (seen.latest.0..lane.next.0).map(Nonce).filter(|nonce| !has_parcel(*nonce));
    empty.take(GAPS_WATCHED_MAX).map(|nonce| (nonce, known.get(&nonce).copied().unwrap_or(now))).collect()
}

impl Plan {
    /// Whether an occupied slot is to get bytes beside those that it has.
    pub(super) fn wants_other_bytes(&self) -> bool {
        self.bump.is_some() || !self.cancel.is_empty()
    }

    /// Only the lowest slot can be stuck: those above it wait for it, and dearer bytes would
    /// not help them. What is to be cancelled gets the bytes for it first, and never dearer
    /// ones that carry it.
    fn tend(&mut self, parcel: &ParcelView, sent: Option<&Sent>, patience: Patience, now: UnixMs) {
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
        if lowest && !uncancelled && now >= sent.at_price.plus(patience.bump_ms) {
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
    use crate::sender::SignedAttempt;
    use crate::store::op::AfterCancel;
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
        let deliveries = Vec::new();
        ParcelView { nonce: Nonce(nonce), deliveries, attempts: vec![attempt], stage, block, cancel: None }
    }

    fn lane(parcels: Vec<ParcelView>, status: LaneStatus) -> LaneView {
        LaneView {
            name: LaneName::new("lane").unwrap(),
            destination: Destination::new("chain").unwrap(),
            window: 4,
            next: Nonce(parcels.last().map_or(0, |parcel| parcel.nonce.0 + 1)),
            settled: Nonce(0),
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
        decide(&lane(parcels, LaneStatus::Active), seen, &Memory::default(), PATIENCE, NOW)
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

    /// A memory of slots that were last sent, and first sent at their price, so long ago.
    fn sent(ages: &[(u64, u64, u64)]) -> Memory {
        let ago = |ms| UnixMs(NOW.0 - ms);
        let sent = |&(nonce, last, at_price): &(u64, u64, u64)| {
            (Nonce(nonce), Sent { last: ago(last), at_price: ago(at_price), uncancelled: None })
        };
        Memory { sent: ages.iter().map(sent).collect(), ..Memory::default() }
    }

    #[test]
    fn what_is_not_mined_is_sent_again_and_only_the_lowest_gets_dearer() {
        let parcels: Vec<_> = (5..8).map(|nonce| parcel(nonce, ParcelStage::Assigned, None)).collect();
        let lane = lane(parcels, LaneStatus::Active);
        let seen = seen(20, [8, 5, 5], vec![]);
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
        let quarantined = LaneStatus::Quarantined { until: NOW };
        let cases = [
            (LaneStatus::Active, 6, 3, None),
            (LaneStatus::Active, 7, 0, Some(Nonce(7))),
            (paused(), 6, 0, None),
            // Whether its time is over is the store's to say.
            (quarantined, 6, 0, None),
            (LaneStatus::Stopped, 6, 0, None),
        ];
        for (status, pending, room, observe) in cases {
            let lane = lane(vec![parcel(5, ParcelStage::Assigned, None)], status.clone());
            let plan = decide(&lane, &seen(20, [pending, 5, 5], vec![]), &Memory::default(), PATIENCE, NOW);
            assert_eq!((plan.room, plan.observe), (room, observe), "{status:?}");
        }
    }

    fn numbers(nonces: &[Nonce]) -> Vec<u64> {
        nonces.iter().map(|nonce| nonce.0).collect()
    }

    /// Parcels on slots 5 and 8 of a lane whose next slot is 9, and what is to be filled.
    #[test]
    fn slots_that_were_passed_over_are_filled_when_they_stay_empty() {
        let parcels = || vec![parcel(5, ParcelStage::Assigned, None), parcel(8, ParcelStage::Assigned, None)];
        let ago = |ms: u64| UnixMs(NOW.0 - ms);
        let paused = || LaneStatus::Paused { reason: "why".into() };
        let quarantined = || LaneStatus::Quarantined { until: NOW.plus(1) };
        let active = LaneStatus::Active;
        type Gaps = &'static [(u64, u64)];
        type Case = (&'static str, LaneStatus, u64, [u64; 3], Gaps, Gaps, &'static [u64]);
        let cases: [Case; 9] = [
            ("new gaps are watched", active.clone(), 0, [6, 5, 5], &[], &[(6, 0), (7, 0)], &[]),
            ("old ones are filled", active.clone(), 0, [6, 5, 5], &[(6, 100), (7, 99)], &[(6, 100), (7, 99)], &[6]),
            ("lowest first", active.clone(), 0, [6, 5, 5], &[(7, 100), (6, 200)], &[(6, 200), (7, 100)], &[6, 7]),
            ("one that is used is none", active.clone(), 0, [7, 7, 5], &[(6, 100), (7, 100)], &[(7, 100)], &[7]),
            ("below all parcels too", active, 0, [4, 4, 4], &[(4, 100)], &[(4, 100), (6, 0), (7, 0)], &[4]),
            ("an answer from behind", LaneStatus::Active, 6, [5, 5, 5], &[(6, 100)], &[(6, 100)], &[]),
            ("paused", paused(), 0, [6, 5, 5], &[(6, 100)], &[(6, 100), (7, 0)], &[6]),
            ("quarantined", quarantined(), 0, [6, 5, 5], &[(6, 100)], &[(6, 100), (7, 0)], &[6]),
            ("stopped", LaneStatus::Stopped, 0, [6, 5, 5], &[(6, 100)], &[], &[]),
        ];
        for (name, status, settled, slots, known, watched, filled) in cases {
            let remembered = |gaps: Gaps| gaps.iter().map(|&(nonce, ms)| (Nonce(nonce), ago(ms))).collect();
            let memory = Memory { gaps: remembered(known), ..Memory::default() };
            let lane = LaneView { settled: Nonce(settled), ..lane(parcels(), status) };
            let plan = decide(&lane, &seen(20, slots, vec![]), &memory, PATIENCE, NOW);
            assert_eq!(plan.gaps, remembered(watched), "{name}");
            assert_eq!(numbers(&plan.fill), filled, "{name}");
        }
    }

    #[test]
    fn filling_is_bounded_and_never_ahead_of_the_store() {
        let wide = LaneView { next: Nonce(u64::MAX), ..lane(Vec::new(), LaneStatus::Active) };
        let look = seen(20, [3, 3, 3], vec![]);
        let first = decide(&wide, &look, &Memory::default(), PATIENCE, NOW);
        assert_eq!((first.gaps.len(), first.fill.len()), (GAPS_WATCHED_MAX, 0));
        let memory = Memory { gaps: first.gaps, ..Memory::default() };
        let later = decide(&wide, &look, &memory, PATIENCE, NOW.plus(PATIENCE.resend_ms));
        assert_eq!(numbers(&later.fill), (3..19).collect::<Vec<_>>());
        let ahead = LaneView { next: Nonce(6), ..lane(Vec::new(), LaneStatus::Active) };
        let plan = decide(&ahead, &seen(20, [7, 3, 3], vec![]), &memory, PATIENCE, NOW.plus(PATIENCE.resend_ms));
        assert_eq!((plan.observe, plan.fill), (Some(Nonce(7)), vec![]), "the lane is about to stop");
    }

    /// A parcel on slot 5 that is to be cancelled, with what may be on slot 6 above it.
    #[test]
    fn what_is_to_be_cancelled_gets_the_bytes_for_it() {
        use ParcelStage::{Assigned, Included};
        let wished = |stage, height, kinds: &[AttemptKind]| {
            let mut parcel = ParcelView { cancel: Some(AfterCancel::Requeue), ..parcel(5, stage, height) };
            let more = kinds.iter().map(|&kind| SignedAttempt { kind, ..parcel.attempts[0].clone() });
            parcel.attempts = more.collect();
            parcel
        };
        let carry = || wished(Assigned, None, &[AttemptKind::Carry]);
        let both = || wished(Assigned, None, &[AttemptKind::Carry, AttemptKind::Cancel]);
        let gone = |height| wished(Included, Some(height), &[AttemptKind::Carry]);
        let tried = |ms: u64| {
            let mut memory = sent(&[(5, 1, 1000)]);
            memory.sent.values_mut().for_each(|sent| sent.uncancelled = Some(UnixMs(NOW.0 - ms)));
            memory
        };
        let unmined = || seen(20, [6, 5, 5], vec![]);
        let in_block = || seen(20, [6, 6, 0], vec![mined(5, 9, Depth::Included, Judgement::Done)]);
        type Case = (&'static str, ParcelView, Sighting, Memory, &'static [u64], &'static [u64], Option<u64>);
        let cases: [Case; 8] = [
            ("at once", carry(), unmined(), sent(&[(5, 1, 1)]), &[5], &[], None),
            ("after a start", carry(), unmined(), Memory::default(), &[5], &[], None),
            ("not again at once, nor dearer", carry(), unmined(), tried(99), &[], &[], None),
            ("again later", carry(), unmined(), tried(100), &[5], &[], None),
            ("sent again like any other", both(), unmined(), sent(&[(5, 100, 100)]), &[], &[5], None),
            ("dearer like any other", both(), unmined(), sent(&[(5, 1, 1000)]), &[], &[], Some(5)),
            ("it is mined", gone(9), in_block(), Memory::default(), &[], &[], None),
            ("somebody has the slot", carry(), seen(20, [6, 6, 5], vec![]), Memory::default(), &[], &[], None),
        ];
        for (name, parcel, seen, memory, cancel, resend, bump) in cases {
            let plan = decide(&lane(vec![parcel], LaneStatus::Active), &seen, &memory, PATIENCE, NOW);
            let done = (numbers(&plan.cancel), numbers(&plan.resend), plan.bump);
            assert_eq!(done, (cancel.to_vec(), resend.to_vec(), bump.map(Nonce)), "{name}");
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
