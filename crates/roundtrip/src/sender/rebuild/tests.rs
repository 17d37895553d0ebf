#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use crate::inbox::Standing;
use crate::listener::Head;
use crate::sender::{AttemptKind, ParcelStage, SignedAttempt};
use crate::store::query::ParcelView;
use crate::words::{AttemptHash, Destination, ErrorClass, ErrorNote, Height, OriginName, Position, RouteName};

fn at(height: u64) -> Position {
    Position { height: Height(height), hash: [0; 32] }
}

fn lane(parcels: usize) -> LaneView {
    let attempt =
        SignedAttempt { hash: AttemptHash([1; 32]), kind: AttemptKind::Carry, bytes: bytes::Bytes::new(), fee: None };
    let parcel = |n: usize| ParcelView {
        nonce: Nonce(n as u64),
        deliveries: Vec::new(),
        attempts: vec![attempt.clone()],
        stage: ParcelStage::Assigned,
        block: None,
        cancel: None,
        route: None,
    };
    LaneView {
        name: LaneName::new("lane").unwrap(),
        destination: Destination::new("chain").unwrap(),
        window: 4,
        next: Nonce(5),
        settled: Nonce(0),
        status: LaneStatus::Stopped,
        under_way: parcels,
        parcels: (0..parcels).map(parcel).collect(),
    }
}

#[test]
fn a_lane_is_quiet_when_nothing_on_it_can_change() {
    let cases = [
        ("all is final", 0, [9, 9, 9], true),
        ("something waits to be mined", 0, [10, 9, 9], false),
        ("something may be taken back", 0, [9, 9, 8], false),
        ("the store has not seen the end of it", 1, [9, 9, 9], false),
    ];
    for (name, parcels, slots, quiet) in cases {
        let [pending, latest, settled] = slots.map(Nonce);
        let (mined, below, forgotten) = Default::default();
        let seen = Sighting { head: at(20), pending, latest, settled, mined, below, funds: None, forgotten };
        assert_eq!(restless(&lane(parcels), &seen).is_none(), quiet, "{name}");
    }
}

fn origin(name: &str, head: Option<(u64, u64)>) -> OriginView {
    let head = head.map(|(height, at)| Head { height: Height(height), at: UnixMs(at), told_at: UnixMs(at) });
    OriginView { name: OriginName::new(name).unwrap(), floor: Height(0), head, behind_ms: None }
}

#[test]
fn every_origin_that_was_heard_of_is_read_far_enough() {
    let [read, unread_yet, never] = [origin("a", Some((9, 100))), origin("b", Some((9, 99))), origin("c", None)];
    assert_eq!(unread(&[], UnixMs(100)), None);
    assert_eq!(unread(&[read.clone(), never], UnixMs(100)), None);
    assert!(unread(&[read, unread_yet], UnixMs(100)).unwrap().starts_with("b is read"));
}

#[test]
fn what_was_not_due_by_then_had_no_answer() {
    let origins = [origin("a", Some((9, 100)))];
    let place = |height| Place { origin: origins[0].name.clone(), height: Height(height) };
    let cases = [
        (Phase::Held, None, true),
        (Phase::Held, Some(Moment::At(UnixMs(100))), true),
        (Phase::Held, Some(Moment::At(UnixMs(101))), false),
        (Phase::Held, Some(Moment::BlockTime { origin: origins[0].name.clone(), at: UnixMs(101) }), false),
        (Phase::Held, Some(Moment::Height(place(9))), true),
        (Phase::Held, Some(Moment::Height(place(10))), false),
        (Phase::Queued, Some(Moment::At(UnixMs(101))), true),
        (Phase::Waiting, None, true),
    ];
    for (phase, due, waited_for) in cases {
        let request = RequestView {
            seq: Seq(0),
            id: RequestId([0; 32]),
            route: RouteName::new("route").unwrap(),
            generation: 0,
            revision: 0,
            phase: phase.clone(),
            standing: Standing::Final,
            occurrences: Vec::new(),
            admitted_at: UnixMs(0),
            due: due.clone(),
            deadline: None,
            priority: 0,
            key: None,
            behind: false,
            attempts: 0,
            crashes: 0,
            misses: 0,
            error: None,
            undelivered: None,
        };
        assert_eq!(may_be_forgotten(&request, UnixMs(100), &origins), waited_for, "{phase:?} {due:?}");
    }
}

#[test]
fn each_transaction_is_found_once_and_one_that_had_its_effect_first() {
    let failed = || Judgement::Again(ErrorNote::new(ErrorClass::Retryable, "no effect"));
    let (route, lenient) = (RouteName::new("route").unwrap(), RouteName::new("lenient").unwrap());
    let sent = |nonce: u64, mark: u8, judgement| Past {
        nonce: Nonce(nonce),
        transaction: AttemptHash([7; 32]),
        at: at(nonce),
        time: UnixMs(0),
        carried: vec![Mark([mark; 32])],
        judgement,
        by_route: BTreeMap::new(),
    };
    let excused = Past { by_route: BTreeMap::from([(lenient.clone(), Judgement::Done)]), ..sent(3, 4, failed()) };
    let of_a = vec![sent(0, 1, failed()), sent(1, 2, Judgement::Done), sent(2, 1, Judgement::Done)];
    let of_a = [of_a, vec![excused.clone(), sent(4, 4, failed()), excused, sent(6, 4, failed())]].concat();
    let past = BTreeMap::from([(LaneName::new("a").unwrap(), of_a)]);
    let mut unmatched = Unmatched::of(&past);
    let mut take = |mark: u8| unmatched.take(Mark([mark; 32]), &route).map(|(_, past)| past.nonce.0);
    assert_eq!([take(1), take(1), take(1)], [Some(2), Some(0), None]);
    assert_eq!([take(2), take(2), take(3)], [Some(1), None, None]);
    // By what a route calls an effect.
    assert_eq!(take(4), Some(6));
    let mut take = |mark: u8| unmatched.take(Mark([mark; 32]), &lenient).map(|(_, past)| past.nonce.0);
    assert_eq!([take(4), take(4), take(4), take(4)], [Some(3), Some(3), Some(4), None]);
}
