//! Each rule by a store that breaks it alone.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::groups::GroupState;
use crate::inbox::{
    AnswerMark, DeadLetter, End, LeaseMark, Occurrence, Occurrences, Request, RouteNo, RowFlags, Standing, State, When,
};
use crate::outbox::{Delivery, LaneNo};
use crate::sender::{AttemptKind, Block, LaneStatus, Parcel, SignedAttempt, Stage};
use crate::store::disk::{Body, GroupRow, HighWater, ItemRow, Tenure};
use crate::store::journal::{Event, KeptEntry, Subject};
use crate::store::op::{GroupPlan, NewRequest, Seat};
use crate::words::{
    AttemptHash, ClaimId, Destination, GroupKey, HolderName, ItemId, LaneName, Nonce, OccurrenceId, OriginName,
    PARCEL_MAX, Payload, Position, RequestId, Seq, WorkerName,
};

const NOW: UnixMs = UnixMs(1000);
const EPOCH: u64 = 50;

fn id(n: u8) -> RequestId {
    RequestId([n; 32])
}

fn occurrence(n: u8) -> Occurrence {
    let (id, height) = (OccurrenceId([n; 32]), Height(100));
    Occurrence { id, height, origin: Some(OriginNo(0)), revision: 0, standing: Standing::Final }
}

fn token(epoch: u64) -> Token {
    Token { epoch, count: 1 }
}

fn entry(position: u64, subject: Subject, event: Event, previous: u64) -> Record {
    let route = matches!(subject, Subject::Request(_)).then_some(RouteNo(0));
    Record::Entry(KeptEntry { position, at: UnixMs(500), subject, route, event, previous })
}

fn of_request(position: u64, n: u8, previous: u64) -> Record {
    entry(position, Subject::Request(id(n)), Event::Attached, previous)
}

fn answer(delivery: Delivery) -> AnswerMark {
    AnswerMark { token: token(EPOCH), failure: false, delivery, undelivered: None }
}

fn leased() -> State {
    State::Leased(Box::new(LeaseMark {
        token: token(EPOCH),
        until: UnixMs(2000),
        lease_ms: 1000,
        claim: ClaimId(1),
        worker: WorkerName::new("worker").unwrap(),
        revision: 0,
        notices: Vec::new(),
    }))
}

/// Request `n` with number `n`, whose last entry is at `n` too.
fn request(n: u8, state: State) -> Record {
    let has_answer = match &state {
        State::Answered(_) => true,
        State::Dead(letter) => letter.answer.is_some(),
        _ => false,
    };
    let request = Request {
        seq: Seq(n.into()),
        id: id(n),
        occurrences: Occurrences::One(occurrence(n)),
        admitted_at: UnixMs(400),
        due: When::ALWAYS,
        deadline: When::NEVER,
        state,
        error: None,
        key: None,
        last_entry: n.into(),
        generation: 0,
        revision: 0,
        attempts: 1,
        crashes: 0,
        misses: 0,
        route: RouteNo(0),
        priority: 0,
        behind: false,
        rows: RowFlags::default(),
    };
    Record::request(request, Body::default(), has_answer.then(Payload::default))
}

fn attempt(n: u8, kind: AttemptKind) -> SignedAttempt {
    SignedAttempt { hash: AttemptHash([n; 32]), kind, bytes: "signed".into(), fee: None }
}

fn group(no: u64, state: GroupState) -> Record {
    let key = GroupKey::new(&format!("group-{no}")).unwrap();
    Record::Group { no, row: GroupRow { key, state, forget_at: None, plan: None } }
}

fn item(no: u64, group: u64, late: bool) -> Record {
    let id = ItemId([u8::try_from(no).unwrap(); 32]);
    Record::Item { no, row: ItemRow { group, id, late }, payload: Payload::default() }
}

fn ended(n: u8, blocks_until: u64) -> Record {
    let receipt = ColdReceipt::Ended {
        generation: 0,
        end: End::Settled,
        ended_at: UnixMs(300),
        blocks_until: UnixMs(blocks_until),
        kept_until: UnixMs(5000),
        last_entry: 8,
    };
    Record::Receipt { key: ColdKey::Request(id(n)), receipt }
}

fn seen(n: u8, origin: Option<(OriginNo, Height)>) -> Record {
    let receipt = ColdReceipt::Seen { id: id(8), end: End::Settled, origin, kept_until: UnixMs(5000) };
    Record::Receipt { key: ColdKey::Occurrence(OccurrenceId([n; 32])), receipt }
}

fn fixtures() -> Vec<Record> {
    let route = RouteName::new("route").unwrap();
    let (lane, destination) = (LaneName::new("lane").unwrap(), Destination::new("chain").unwrap());
    let holder = HolderName::new("holder").unwrap();
    let tenure = Tenure { holder, token: token(EPOCH), until: UnixMs(2000) };
    let (origin, policy) = (OriginName::new("origin").unwrap(), RoutePolicy::default());
    let fixtures = [
        Fixture::Route { no: RouteNo(0), name: route, policy, paused: false },
        Fixture::Origin { no: OriginNo(0), name: origin, floor: Height(50), head: None },
        Fixture::Lane {
            no: LaneNo(0),
            name: lane,
            destination,
            window: 4,
            next: Nonce(7),
            settled: Nonce(5),
            status: LaneStatus::Active,
        },
        Fixture::Seat { seat: Seat::Upkeep, tenure },
    ];
    fixtures.into_iter().map(Record::Fixture).collect()
}

/// A small store with something of everything, in which nothing is wrong.
///
/// Requests 1 held, 2 leased, 3 answered, 4 assigned to slot 6, 5 dead with its answer, 6 behind 1.
/// Groups 1 open, 2 sealed for request 3. Request 8 has ended.
fn sound() -> Vec<Record> {
    let high = HighWater { seq: 10, entry: 10, receipt: 10, item: 10, group: 10 };
    let mut all = vec![Record::Numbers(Numbers { epoch: EPOCH, high })];
    all.extend(fixtures());
    all.extend((1..=3).map(|n| of_request(n.into(), n, 0)));
    let assigned = Event::Assigned {
        lane: LaneName::new("lane").unwrap(),
        nonce: Nonce(6),
        attempt: attempt(1, AttemptKind::Carry).note(),
    };
    all.push(entry(4, Subject::Request(id(4)), assigned, 0));
    all.push(of_request(5, 5, 0));
    all.push(of_request(6, 1, 0));
    all.push(entry(7, Subject::Route(RouteName::new("route").unwrap()), Event::Defined, 0));
    all.push(of_request(8, 8, 0));
    all.push(of_request(9, 8, 8));
    let parcel = Parcel {
        deliveries: vec![id(4)],
        attempts: vec![attempt(1, AttemptKind::Carry), attempt(2, AttemptKind::Cancel)],
        stage: Stage::Included(block(1)),
        entry: 4,
        cancel: None,
    };
    all.push(Record::Parcel { lane: LaneNo(0), nonce: Nonce(6), parcel });
    let assigned = Delivery::Assigned { lane: LaneNo(0), nonce: Nonce(6) };
    let letter = DeadLetter { at: UnixMs(1), forget_at: UnixMs(9000), answer: Some(answer(Delivery::Waiting)) };
    all.push(request(1, State::Held));
    all.push(request(2, leased()));
    all.push(request(3, State::Answered(Box::new(answer(Delivery::Waiting)))));
    all.push(request(4, State::Answered(Box::new(answer(assigned)))));
    all.push(request(5, State::Dead(Box::new(letter))));
    let mut behind = request(6, State::Held);
    edit(&mut behind, |request| (request.id, request.behind, request.generation) = (id(1), true, 1));
    all.push(behind);
    all.push(group(1, GroupState::Open));
    all.push(group(2, GroupState::Sealed { items: 2, at: UnixMs(1), request: id(3) }));
    all.extend([item(1, 1, false), item(2, 2, false), item(3, 2, false), item(4, 2, true)]);
    all.extend([ended(8, 5000), seen(8, Some((OriginNo(0), Height(100)))), seen(9, None)]);
    all
}

fn block(attempt: u8) -> Block {
    Block { attempt: AttemptHash([attempt; 32]), at: Position { height: Height(1), hash: [0; 32] } }
}

fn edit(record: &mut Record, with: impl FnOnce(&mut Request)) {
    let Record::Request(whole) = record else { panic!("a request") };
    with(&mut whole.request);
}

/// What a check tells of these records.
fn faults(records: &[Record]) -> Vec<String> {
    let mut check = Check::at(NOW);
    let mut sorted: Vec<&Record> = records.iter().collect();
    sorted.sort_by_key(|record| record.kind());
    sorted.into_iter().for_each(|record| check.see(record));
    check.end();
    check.faults.first.iter().map(Fault::to_string).collect()
}

/// What a check tells after one record was changed.
#[track_caller]
fn broken(name: &str, with: impl FnOnce(&mut Record)) -> Vec<String> {
    let mut records = sound();
    let found = records.iter_mut().find(|record| record.to_string().starts_with(name));
    with(found.unwrap_or_else(|| panic!("no record is called {name}")));
    faults(&records)
}

#[track_caller]
fn breaks(name: &str, with: impl FnOnce(&mut Record), rules: &[&str]) {
    let told = broken(name, with);
    assert_eq!(told.len(), rules.len(), "{told:#?}");
    told.iter().zip(rules).for_each(|(told, rule)| assert!(told.ends_with(rule), "{told:?} is not {rule:?}"));
}

#[track_caller]
fn adding(record: Record, rules: &[&str]) {
    let mut records = sound();
    records.push(record);
    let told = faults(&records);
    assert_eq!(told.len(), rules.len(), "{told:#?}");
    told.iter().zip(rules).for_each(|(told, rule)| assert!(told.ends_with(rule), "{told:?} is not {rule:?}"));
}

#[track_caller]
fn without(name: &str, rules: &[&str]) {
    let mut records = sound();
    let count = records.len();
    records.retain(|record| !record.to_string().starts_with(name));
    assert!(records.len() < count, "no record is called {name}");
    let told = faults(&records);
    assert_eq!(told.len(), rules.len(), "{told:#?}");
    told.iter().zip(rules).for_each(|(told, rule)| assert!(told.ends_with(rule), "{told:?} is not {rule:?}"));
}

/// The beginning of what request `n` is called.
fn called(n: u8) -> String {
    format!("request {} (number {n})", id(n))
}

#[track_caller]
fn request_breaks(n: u8, with: impl FnOnce(&mut Request), rules: &[&str]) {
    breaks(&called(n), |record| edit(record, with), rules);
}

#[track_caller]
fn parcel_breaks(with: impl FnOnce(&mut Parcel), rules: &[&str]) {
    let with = |record: &mut Record| {
        let Record::Parcel { parcel, .. } = record else { panic!("a parcel") };
        with(parcel);
    };
    breaks("the parcel", with, rules);
}

#[track_caller]
fn group_breaks(no: u64, with: impl FnOnce(&mut GroupRow), rules: &[&str]) {
    let with = |record: &mut Record| {
        let Record::Group { row, .. } = record else { panic!("a group") };
        with(row);
    };
    breaks(&format!("group group-{no}"), with, rules);
}

#[test]
fn a_sound_store_has_no_faults() {
    assert_eq!(faults(&sound()), [""; 0]);
    assert_eq!(faults(&[]), [""; 0]);
}

#[test]
fn faults_are_bounded_and_counted() {
    let mut faults = Faults::default();
    (0..FAULTS_MAX + 3).for_each(|n| faults.unless(false, &n, "is wrong"));
    assert_eq!((faults.first.len(), faults.more), (FAULTS_MAX, 3));
    let verdict = Verdict { records: vec![(Kind::Requests, 7)], faults: faults.first[..1].to_vec(), more: 2 };
    assert_eq!(verdict.to_string(), "7 requests; 3 faults:\n  0 is wrong\n  and 2 more");
}

#[test]
fn fixtures_are_numbered_and_of_this_time() {
    let renumber = |record: &mut Record| {
        let Record::Fixture(fixture) = record else { panic!("a fixture") };
        match fixture {
            Fixture::Route { no, .. } => no.0 = 1,
            Fixture::Origin { no, .. } => no.0 = 1,
            Fixture::Lane { no, .. } => no.0 = 1,
            _ => panic!("not numbered"),
        }
    };
    for (name, what) in [("route route", "a route"), ("origin", "an origin"), ("lane lane", "a lane")] {
        let told = broken(name, renumber);
        let rule = format!("{} has number 1, and number 0 is missing or came twice", what.replace("an ", "a "));
        assert!(told.contains(&rule), "{told:?}");
    }
    let route = |record: &mut Record| {
        let Record::Fixture(Fixture::Route { policy, .. }) = record else { panic!("a route") };
        policy.on_duplicate = OnDuplicate::Vote { needed: 0 };
    };
    assert!(broken("route", route)[0].starts_with("route route has policies that cannot be"));
    let lane = |record: &mut Record| {
        let Record::Fixture(Fixture::Lane { settled, .. }) = record else { panic!("a lane") };
        *settled = Nonce(8);
    };
    breaks("lane", lane, &["lane lane has settled slots that it never gave out"]);
    let seat = |record: &mut Record| {
        let Record::Fixture(Fixture::Seat { tenure, .. }) = record else { panic!("a seat") };
        tenure.token = token(EPOCH + 1);
    };
    breaks("the seat", seat, &["has token 51-1, of a start that has not been"]);
}

#[test]
fn the_journal_has_no_holes_and_its_chains_stay_with_their_subject() {
    let previous = |to: u64| {
        move |record: &mut Record| {
            let Record::Entry(entry) = record else { panic!("an entry") };
            entry.previous = to;
        }
    };
    let of_no_route = |record: &mut Record| {
        let Record::Entry(entry) = record else { panic!("an entry") };
        entry.route = Some(RouteNo(7));
    };
    breaks("journal entry 9", of_no_route, &["is of a route that does not exist"]);
    breaks("journal entry 9", previous(9), &["names entry 9 as the one before it"]);
    breaks("journal entry 9", previous(7), &["names entry 7 as the one before it, which is about something else"]);
    let lost = format!("request {} was put on a slot, as entry 4 tells, and no parcel carries it", id(4));
    request_breaks(
        4,
        |request| request.state = State::Answered(Box::new(answer(Delivery::Waiting))),
        &[&lost, &format!("carries request {}, which is not assigned to it", id(4))],
    );
    without("journal entry 9", &["ends before entry 9, and 10 is the next to be written"]);
    without("journal entry 6", &["is where entry 6 should be"]);
    adding(of_request(9, 8, 0), &["journal entry 9 is where entry 10 should be"]);
}

#[test]
fn parcels_are_on_slots_that_were_given_out() {
    let mut second = sound().into_iter().find(|record| matches!(record, Record::Parcel { .. })).unwrap();
    let Record::Parcel { lane, nonce, parcel } = &mut second else { panic!("a parcel") };
    (parcel.deliveries, parcel.attempts) = (Vec::new(), vec![attempt(1, AttemptKind::Cancel)]);
    let (lane_no, slot) = (*lane, *nonce);
    adding(Record::Parcel { lane: lane_no, nonce: slot, parcel: parcel.clone() }, &["is there twice"]);
    adding(
        Record::Parcel { lane: lane_no, nonce: Nonce(7), parcel: parcel.clone() },
        &["is on a slot that was never given out"],
    );
    adding(
        Record::Parcel { lane: LaneNo(1), nonce: slot, parcel: parcel.clone() },
        &["is on a lane that does not exist"],
    );
}

#[test]
fn parcels_have_attempts_of_their_own_and_carry_what_is_assigned() {
    let (carry, cancel) = (AttemptKind::Carry, AttemptKind::Cancel);
    parcel_breaks(|parcel| (parcel.attempts, parcel.stage) = (Vec::new(), Stage::Assigned), &["has 0 signed attempts"]);
    parcel_breaks(|parcel| parcel.attempts.push(attempt(1, carry)), &["has a signed attempt twice"]);
    let strange = AttemptHash([9; 32]);
    let rule = format!("is in a block by attempt {strange}, which is not one of its own");
    parcel_breaks(|parcel| parcel.stage = Stage::Confirmed(block(9)), &[&rule]);
    parcel_breaks(|parcel| parcel.deliveries.push(id(4)), &["carries an answer twice"]);
    parcel_breaks(|parcel| parcel.entry = 10, &["was last told of at entry 10, where the journal never was"]);
    let rule = format!("carries request {}, which is not assigned to it", id(3));
    parcel_breaks(|parcel| parcel.deliveries.push(id(3)), &[&rule]);
    let nothing = "is on slot 6 of lane number 0, where no parcel carries it";
    parcel_breaks(|parcel| (parcel.deliveries, parcel.attempts) = (Vec::new(), vec![attempt(1, cancel)]), &[nothing]);
    parcel_breaks(|parcel| parcel.deliveries.clear(), &["carries nothing by an attempt that carries", nothing]);
    let many: Vec<RequestId> = (0..=PARCEL_MAX).map(|n| RequestId::of(&[&n.to_le_bytes()])).collect();
    let told = broken("the parcel", |record| {
        let Record::Parcel { parcel, .. } = record else { panic!("a parcel") };
        parcel.deliveries = many;
    });
    assert!(told[0].ends_with("carries 257 answers"), "{told:?}");
}

#[test]
fn requests_refer_to_what_exists() {
    request_breaks(2, |request| request.seq = Seq(10), &["has a number that is not below 10, the next to be given"]);
    request_breaks(2, |request| request.route = RouteNo(1), &["is on route number 1, which does not exist"]);
    let nowhere = "refers to origin number 3, which does not exist";
    request_breaks(2, |request| request.due = When::height(OriginNo(3), Height(1)), &[nowhere]);
    request_breaks(2, |request| request.deadline = When::height(OriginNo(3), Height(1)), &[nowhere]);
    let occurrence = Occurrence { origin: Some(OriginNo(3)), ..occurrence(2) };
    request_breaks(2, |request| request.occurrences = Occurrences::One(occurrence), &[nowhere]);
    request_breaks(2, |request| request.last_entry = 3, &["ends its timeline at entry 3, which is not its own"]);
    for entry in [0, 10] {
        let rule = format!("ends its timeline at entry {entry}, where the journal never was");
        request_breaks(2, |request| request.last_entry = entry, &[&rule]);
    }
}

#[test]
fn an_id_has_one_live_request_and_others_behind_it() {
    request_breaks(
        2,
        |request| (request.behind, request.state) = (true, State::Held),
        &["waits behind a request that is not before it"],
    );
    let six = |with: fn(&mut Request)| {
        let name = format!("request {} (number 6)", id(1));
        broken(&name, |record| edit(record, with))
    };
    let told = six(|request| request.behind = false);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].ends_with("has the id of request number 1 and does not wait behind it"), "{told:?}");
    let told = six(|request| request.generation = 0);
    assert!(told[0].ends_with("has no later generation than the one before it"), "{told:?}");
    let told = six(|request| request.state = leased());
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].ends_with("waits behind another and is not held"), "{told:?}");
}

#[test]
fn an_occurrence_is_shown_by_one_request() {
    let rule = format!("has occurrence {}, which request number 1 shows", occurrence(1).id);
    request_breaks(2, |request| request.occurrences = Occurrences::One(occurrence(1)), &[&rule]);
    request_breaks(2, |request| request.occurrences = Occurrences::Many(Vec::new()), &["has 0 occurrences"]);
    let later = Occurrence { revision: 1, ..occurrence(2) };
    let rule = format!("has occurrence {} of content that is still to come", later.id);
    request_breaks(2, |request| request.occurrences = Occurrences::One(later), &[&rule]);
}

#[test]
fn states_have_what_belongs_to_them() {
    let response = |with: Option<Payload>| {
        move |record: &mut Record| {
            let Record::Request(whole) = record else { panic!("a request") };
            whole.response = with;
        }
    };
    breaks(&called(3), response(None), &["is answered and has no response"]);
    breaks(&called(5), response(None), &["is answered and has no response"]);
    breaks(&called(2), response(Some(Payload::default())), &["has a response and is not answered"]);
    request_breaks(2, |request| request.attempts = 0, &["is with a worker at its attempt 0"]);
    let ahead = |request: &mut Request, with: fn(&mut LeaseMark)| match &mut request.state {
        State::Leased(lease) => with(lease),
        _ => panic!("leased"),
    };
    let rule = "is with a worker that has content still to come";
    request_breaks(2, |request| ahead(request, |lease| lease.revision = 1), &[rule]);
    let future = "has token 51-1, of a start that has not been";
    request_breaks(2, |request| ahead(request, |lease| lease.token = token(EPOCH + 1)), &[future]);
    let mark = || AnswerMark { token: token(EPOCH + 1), ..answer(Delivery::Waiting) };
    request_breaks(3, |request| request.state = State::Answered(Box::new(mark())), &[future]);
    let elsewhere = Delivery::Assigned { lane: LaneNo(0), nonce: Nonce(5) };
    let carried = format!("carries request {}, which is not assigned to it", id(4));
    let rules = ["is on slot 5 of lane number 0, where no parcel carries it", &carried];
    request_breaks(4, |request| request.state = State::Answered(Box::new(answer(elsewhere))), &rules);
}

#[test]
fn groups_have_the_items_that_they_were_sealed_with() {
    group_breaks(1, |row| row.forget_at = Some(UnixMs(1)), &["is open and to be forgotten"]);
    group_breaks(2, |row| row.plan = Some(Box::new(plan())), &["is sealed and has a plan to seal itself"]);
    let sealed = |items, n| GroupState::Sealed { items, at: UnixMs(1), request: id(n) };
    group_breaks(2, |row| row.state = sealed(3, 3), &["was sealed with 3 items and has 2"]);
    group_breaks(2, |row| (row.state, row.forget_at) = (sealed(3, 3), Some(UnixMs(1))), &[]);
    group_breaks(
        2,
        |row| (row.state, row.forget_at) = (sealed(1, 3), Some(UnixMs(1))),
        &["was sealed with 1 items and has 2"],
    );
    let rule = format!("is kept for request {}, which is not live", id(8));
    group_breaks(2, |row| row.state = sealed(2, 8), &[&rule]);
    group_breaks(2, |row| (row.state, row.forget_at) = (sealed(2, 8), Some(UnixMs(1))), &[]);
    adding(group(1, GroupState::Open), &["is there twice"]);
    adding(group(10, GroupState::Open), &["has number 10, which is not below 10, the next to be given"]);
}

fn plan() -> GroupPlan {
    let request = NewRequest {
        route: RouteName::new("route").unwrap(),
        id: id(7),
        occurrence: OccurrenceId([7; 32]),
        place: None,
        standing: Standing::Final,
        payload: Payload::default(),
        due: None,
        deadline: None,
        priority: 0,
        key: None,
        trace: None,
        flaw: None,
    };
    GroupPlan { seal_at: None, seal_at_items: None, request }
}

#[test]
fn items_are_of_a_group_once() {
    adding(item(10, 1, false), &["has a number that is not below 10, the next to be given"]);
    adding(item(5, 3, false), &["is of group number 3, which does not exist"]);
    adding(item(5, 1, true), &["came late to group group-1, which is open"]);
    adding(item(1, 1, false), &["is twice in group group-1"]);
}

#[test]
fn receipts_tell_of_their_key_and_of_what_exists() {
    let Record::Receipt { receipt, .. } = seen(8, None) else { panic!("a receipt") };
    adding(Record::Receipt { key: ColdKey::Request(id(9)), receipt }, &["tells of something else than its key"]);
    adding(seen(20, Some((OriginNo(3), Height(1)))), &["refers to origin number 3, which does not exist"]);
    adding(ended(9, 0), &["ends its timeline at entry 8, which is not its own"]);
}

/// A receipt of request 2, whose timeline ended at this entry, where the journal tells of it.
fn ended_before(blocks_until: u64, at: u64) -> Vec<Record> {
    let mut records = sound();
    for record in &mut records {
        match record {
            Record::Entry(entry) if entry.position == at => {
                (entry.subject, entry.previous) = (Subject::Request(id(2)), 0);
            }
            Record::Request(whole) if whole.request.id == id(2) => whole.request.generation = 1,
            _ => {}
        }
    }
    let mut receipt = ended(2, blocks_until);
    if let Record::Receipt { receipt: ColdReceipt::Ended { last_entry, .. }, .. } = &mut receipt {
        *last_entry = at;
    }
    records.push(receipt);
    records
}

#[test]
fn a_receipt_blocks_its_id_unless_the_machine_let_it_in() {
    let told = faults(&ended_before(5000, 9));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].ends_with("blocks its id, and yet a live request has it"), "{told:?}");
    assert_eq!(faults(&ended_before(1000, 9)), [""; 0], "its time is over");
    assert_eq!(faults(&ended_before(5000, 2)), [""; 0], "policies changed since");
    let older = |record: &mut Record| {
        if let Record::Request(whole) = record
            && whole.request.id == id(2)
        {
            whole.request.generation = 0;
        }
    };
    let mut records = ended_before(5000, 9);
    records.iter_mut().for_each(older);
    assert_eq!(faults(&records), [""; 0], "one that waited behind it ended first");
    let mut records = ended_before(5000, 9);
    for record in &mut records {
        if let Record::Fixture(Fixture::Route { policy, .. }) = record {
            policy.on_duplicate = OnDuplicate::NewGeneration;
        }
    }
    assert_eq!(faults(&records), [""; 0], "every repeat is a generation of its own");
    let mut records = ended_before(5000, 9);
    for record in &mut records {
        if let Record::Entry(entry) = record {
            entry.at = UnixMs(5000);
        }
    }
    assert_eq!(faults(&records), [""; 0], "the clock stepped back since");
}

#[test]
fn an_occurrence_that_counts_as_seen_is_not_shown() {
    let rule = "still counts, and yet a live request shows it";
    adding(seen(2, Some((OriginNo(0), Height(50)))), &[rule]);
    adding(seen(2, Some((OriginNo(0), Height(49)))), &[]);
    adding(seen(2, None), &[rule]);
    let Record::Receipt { key, .. } = seen(2, None) else { panic!("a receipt") };
    let receipt = ColdReceipt::Seen { id: id(8), end: End::Settled, origin: None, kept_until: NOW };
    adding(Record::Receipt { key, receipt }, &[]);
}
