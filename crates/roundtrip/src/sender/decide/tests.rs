#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use crate::sender::SignedAttempt;
use crate::store::op::AfterCancel;
use crate::words::{AttemptHash, Destination, ErrorClass, ErrorNote, Height, LaneName, Position, RouteName};

const NOW: UnixMs = UnixMs(1_000_000);
const PATIENCE: Patience = Patience { resend_ms: 100, bump_ms: 1000 };

fn at(height: u64) -> Position {
    Position { height: Height(height), hash: [height.to_le_bytes()[0]; 32] }
}

fn hash(nonce: u64) -> AttemptHash {
    AttemptHash::of(&[&nonce.to_le_bytes()])
}

fn parcel(nonce: u64, stage: ParcelStage, height: Option<u64>) -> ParcelView {
    let attempt = SignedAttempt { hash: hash(nonce), kind: AttemptKind::Carry, bytes: bytes::Bytes::new(), fee: None };
    let block = height.map(|height| Block { attempt: hash(nonce), at: at(height) });
    let (deliveries, attempts) = (Vec::new(), vec![attempt]);
    ParcelView { nonce: Nonce(nonce), deliveries, attempts, stage, block, cancel: None, route: None }
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
    let lane_to_blame = false;
    Mined { nonce: Nonce(nonce), attempt: hash(nonce), at: at(height), depth, judgement, lane_to_blame }
}

fn seen(head: u64, slots: [u64; 3], mined: Vec<Mined>) -> Sighting {
    let [pending, latest, settled] = slots.map(Nonce);
    Sighting { head: at(head), pending, latest, settled, mined, below: Vec::new(), funds: None, forgotten: Vec::new() }
}

fn plan(parcels: Vec<ParcelView>, seen: &Sighting) -> Plan {
    decide(&lane(parcels, LaneStatus::Active), seen, &Memory::default(), |_| PATIENCE, NOW)
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
        assert_eq!(settles, expected.map(|sight| (Nonce(5), stage, sight)).into_iter().collect::<Vec<_>>(), "{name}");
    }
}

/// A memory of slots that were last sent, and first sent at their price, so long ago.
fn sent(ages: &[(u64, u64, u64)]) -> Memory {
    let ago = |ms| UnixMs(NOW.0 - ms);
    let sent = |&(nonce, last, at_price): &(u64, u64, u64)| {
        (Nonce(nonce), Sent { last: ago(last), ..Sent::at(ago(at_price)) })
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
        let plan = decide(&lane, &seen, &sent(ages), |_| PATIENCE, NOW);
        let resend: Vec<Nonce> = resend.iter().copied().map(Nonce).collect();
        let bump: Vec<_> = bump.map(|nonce| (Nonce(nonce), Because::Late)).into_iter().collect();
        assert_eq!((plan.resend, plan.bump), (resend, bump), "{name}");
    }
}

/// The lowest slot, last sent at its price 500 ms ago, and how long it takes until it is late.
#[test]
fn a_parcel_is_late_by_its_own_terms() {
    let slow = RouteName::new("slow").unwrap();
    let parcels = |lowest: Option<&RouteName>| {
        let lowest = ParcelView { route: lowest.cloned(), ..parcel(5, ParcelStage::Assigned, None) };
        vec![lowest, ParcelView { route: Some(slow.clone()), ..parcel(6, ParcelStage::Assigned, None) }]
    };
    let patience = |parcel: Option<&ParcelView>| match parcel.and_then(|parcel| parcel.route.as_ref()) {
        Some(_) => Patience { bump_ms: 501, ..PATIENCE },
        None => Patience { bump_ms: 500, ..PATIENCE },
    };
    let seen = seen(20, [7, 5, 5], vec![]);
    for (route, bump) in [(None, vec![(Nonce(5), Because::Late)]), (Some(&slow), vec![])] {
        let lane = lane(parcels(route), LaneStatus::Active);
        let plan = decide(&lane, &seen, &sent(&[(5, 1, 500), (6, 1, 9_000)]), patience, NOW);
        assert_eq!(plan.bump, bump, "{route:?}");
    }
}

/// Slots 5 and 6, last sent at a price of 1,000 ms and 100 ms ago.
#[test]
fn dearer_bytes_have_a_reason_and_a_pace() {
    use Because::{Below, Late, TooCheap};
    let parcels = || (5..7).map(|nonce| parcel(nonce, ParcelStage::Assigned, None)).collect::<Vec<_>>();
    let lane = lane(parcels(), LaneStatus::Active);
    let below =
        |slots: &[u64]| Sighting { below: slots.iter().copied().map(Nonce).collect(), ..seen(20, [7, 5, 5], vec![]) };
    let changed = |change: fn(&mut Sent)| {
        let mut memory = sent(&[(5, 1, 1000), (6, 1, 100)]);
        memory.sent.values_mut().for_each(change);
        memory
    };
    type Case = (&'static str, &'static [u64], Memory, &'static [(u64, Because)]);
    let cases: [Case; 7] = [
        ("late", &[], changed(|_| {}), &[(5, Late)]),
        ("all that are below", &[5, 6], changed(|_| {}), &[(5, Below), (6, Below)]),
        ("below, and just signed", &[6], sent(&[(5, 1, 99), (6, 1, 99)]), &[]),
        ("more is wanted", &[], changed(|sent| sent.too_cheap = true), &[(5, TooCheap), (6, TooCheap)]),
        ("in vain a moment ago", &[5, 6], changed(|sent| sent.stayed = Some(UnixMs(NOW.0 - 99))), &[]),
        (
            "in vain a while ago",
            &[5],
            changed(|sent| (sent.stayed, sent.too_cheap) = (Some(UnixMs(NOW.0 - 100)), true)),
            &[(5, TooCheap), (6, TooCheap)],
        ),
        ("nothing was sent yet", &[5, 6], Memory::default(), &[]),
    ];
    for (name, slots, memory, bump) in cases {
        let plan = decide(&lane, &below(slots), &memory, |_| PATIENCE, NOW);
        let bump: Vec<_> = bump.iter().map(|&(nonce, because)| (Nonce(nonce), because)).collect();
        assert_eq!(plan.bump, bump, "{name}");
    }
}

#[test]
fn only_so_many_slots_get_dearer_bytes_at_once() {
    let slots = 5..205;
    let lane =
        lane(slots.clone().map(|nonce| parcel(nonce, ParcelStage::Assigned, None)).collect(), LaneStatus::Active);
    let below = Sighting { below: slots.clone().map(Nonce).collect(), ..seen(20, [205, 5, 5], vec![]) };
    let ages: Vec<(u64, u64, u64)> = slots.map(|nonce| (nonce, 1, 1000)).collect();
    let plan = decide(&lane, &below, &sent(&ages), |_| PATIENCE, NOW);
    assert_eq!((plan.bump.len(), plan.bump[0]), (BUMPS_MAX, (Nonce(5), Because::Below)));
}

#[test]
fn a_lane_that_cannot_pay_is_tried_again_when_it_is_funded() {
    let unfunded = || LaneStatus::Unfunded { reason: "nothing left".into() };
    let paused = || LaneStatus::Paused { reason: "by a person".into() };
    let broke = |ago: u64, funds| Some(Broke { since: UnixMs(NOW.0 - ago), funds });
    let look = |funds| Sighting { funds, ..seen(20, [0, 0, 0], vec![]) };
    let cases = [
        ("just now", unfunded(), broke(1, None), Some(5), broke(1, Some(5)), false),
        ("no more than before", unfunded(), broke(9, Some(5)), Some(5), broke(9, Some(5)), false),
        ("less than before", unfunded(), broke(9, Some(5)), Some(4), broke(9, Some(4)), false),
        ("not known", unfunded(), broke(9, Some(5)), None, broke(9, Some(5)), false),
        ("funded", unfunded(), broke(9, Some(5)), Some(6), None, true),
        ("after a while", unfunded(), broke(FUNDS_AGAIN_MS, Some(5)), Some(5), None, true),
        ("after a start", unfunded(), None, Some(5), None, true),
        ("a person's pause stays", paused(), broke(FUNDS_AGAIN_MS, Some(5)), Some(6), None, false),
        ("nothing is wrong", LaneStatus::Active, None, Some(6), None, false),
    ];
    for (name, status, broke, funds, kept, resume) in cases {
        let memory = Memory { broke, ..Memory::default() };
        let plan = decide(&lane(Vec::new(), status), &look(funds), &memory, |_| PATIENCE, NOW);
        assert_eq!((plan.broke, plan.resume), (kept, resume), "{name}");
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
        let plan = decide(&lane, &seen(20, [pending, 5, 5], vec![]), &Memory::default(), |_| PATIENCE, NOW);
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
        let plan = decide(&lane, &seen(20, slots, vec![]), &memory, |_| PATIENCE, NOW);
        assert_eq!(plan.gaps, remembered(watched), "{name}");
        assert_eq!(numbers(&plan.fill), filled, "{name}");
    }
}

/// A lane whose next slot is 9, with these parcels, of which these slots are settled in the store; and
/// what it learns from an outside that has used up these.
#[test]
fn what_others_used_up_is_remembered_and_what_is_ours_is_told_by_its_end() {
    type Case = (&'static str, &'static [u64], u64, u64, Option<u64>);
    let cases: [Case; 7] = [
        ("before the lane was opened", &[], 0, 7, Some(7)),
        ("all of it", &[], 0, 9, Some(9)),
        ("never more than was given out", &[], 0, 12, Some(9)),
        ("below our own", &[7, 8], 0, 7, Some(7)),
        ("our own among them", &[6, 8], 0, 7, None),
        ("known already", &[8], 7, 7, None),
        ("an answer from behind", &[8], 7, 5, None),
    ];
    for (name, parcels, settled, outside, told) in cases {
        let parcels = parcels.iter().map(|&nonce| parcel(nonce, ParcelStage::Assigned, None)).collect();
        let lane = LaneView { settled: Nonce(settled), next: Nonce(9), ..lane(parcels, LaneStatus::Active) };
        let plan = decide(&lane, &seen(20, [outside; 3], vec![]), &Memory::default(), |_| PATIENCE, NOW);
        assert_eq!(plan.settled, told.map(Nonce), "{name}");
    }
}

#[test]
fn filling_is_bounded_and_never_ahead_of_the_store() {
    let wide = LaneView { next: Nonce(u64::MAX), ..lane(Vec::new(), LaneStatus::Active) };
    let look = seen(20, [3, 3, 3], vec![]);
    let first = decide(&wide, &look, &Memory::default(), |_| PATIENCE, NOW);
    assert_eq!((first.gaps.len(), first.fill.len()), (GAPS_WATCHED_MAX, 0));
    let memory = Memory { gaps: first.gaps, ..Memory::default() };
    let later = decide(&wide, &look, &memory, |_| PATIENCE, NOW.plus(PATIENCE.resend_ms));
    assert_eq!(numbers(&later.fill), (3..19).collect::<Vec<_>>());
    let ahead = LaneView { next: Nonce(6), ..lane(Vec::new(), LaneStatus::Active) };
    let plan = decide(&ahead, &seen(20, [7, 3, 3], vec![]), &memory, |_| PATIENCE, NOW.plus(PATIENCE.resend_ms));
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
        let plan = decide(&lane(vec![parcel], LaneStatus::Active), &seen, &memory, |_| PATIENCE, NOW);
        let done = (numbers(&plan.cancel), numbers(&plan.resend), plan.bump);
        let bump: Vec<_> = bump.map(|nonce| (Nonce(nonce), Because::Late)).into_iter().collect();
        assert_eq!(done, (cancel.to_vec(), resend.to_vec(), bump), "{name}");
    }
}

/// A parcel on slot 5, where it was seen before, and its transaction in block 9.
#[test]
fn a_transaction_without_effect_is_a_fault_once() {
    use ParcelStage::{Assigned, Confirmed, Included};
    let error = || ErrorNote::new(ErrorClass::Fatal, "reverted");
    let (again, failed) = (Judgement::Again(error()), Judgement::Failed(error()));
    let cases = [
        ("done", Assigned, None, Depth::Included, Judgement::Done, false, None),
        ("as soon as it shows", Assigned, None, Depth::Included, again.clone(), false, Some(Fault::NoEffect)),
        ("for good too", Assigned, None, Depth::Final, failed.clone(), false, Some(Fault::NoEffect)),
        ("because of the lane", Assigned, None, Depth::Included, again.clone(), true, Some(Fault::OfTheLane)),
        ("deeper", Included, Some(9), Depth::Confirmed, again.clone(), true, None),
        ("final", Confirmed, Some(9), Depth::Final, failed, true, None),
        ("in another block than before", Included, Some(8), Depth::Included, again, false, Some(Fault::NoEffect)),
    ];
    for (name, stage, height, depth, judgement, lane_to_blame, fault) in cases {
        let mined = Mined { lane_to_blame, ..mined(5, 9, depth, judgement) };
        let plan = plan(vec![parcel(5, stage, height)], &seen(20, [6, 6, 6], vec![mined]));
        assert_eq!(plan.fault, fault, "{name}");
    }
}

/// A lane that is settled up to slot 6, and what a look at it shows to have been taken back.
#[test]
fn less_than_is_settled_breaks_the_word_of_a_chain_only_above_what_was_seen() {
    let settled = || LaneView { settled: Nonce(6), next: Nonce(6), ..lane(Vec::new(), LaneStatus::Active) };
    let cases = [
        ("nothing is missing", 20, 6, Some(19), Some(20), false),
        ("from the past", 19, 5, Some(19), Some(19), false),
        ("after a start", 20, 5, None, None, false),
        ("taken back", 20, 5, Some(19), Some(19), true),
        ("all of it, a little behind", 18, 6, Some(19), Some(19), false),
    ];
    for (name, head, latest, highest, remembered, took_back) in cases {
        let memory = Memory { highest: highest.map(Height), ..Memory::default() };
        let plan = decide(&settled(), &seen(head, [latest, latest, latest], vec![]), &memory, |_| PATIENCE, NOW);
        assert_eq!((plan.highest, plan.took_back), (remembered.map(Height), took_back), "{name}");
    }
}
