//! Samples of everything that operations speak of: one route, one lane, one listener,
//! and numbered requests, so that a case names only what it is about.

use crate::inbox::Standing;
use crate::sender::{AttemptKind, Block, ParcelStage, SignedAttempt};
use crate::store::op::{
    Admit, AfterCancel, Amend, Amendment, Answer, Assign, Attempt, ChainTick, CursorMove, Extend, Fail, Fill, Gather,
    Grant, LaneOrder, Lead, Lease, Mend, NewParcel, NewRequest, Order, Publish, PublishResult, Release, Remedy, Seat,
    Settle, Sight, Verdict,
};
use crate::store::policy::{Backoff, RoutePolicy};
use crate::store::query::ReadyDelivery;
use crate::words::{
    AttemptHash, ClaimId, Destination, ErrorClass, ErrorNote, GroupKey, Height, HolderName, ItemId, LaneName,
    ListenerName, Moment, Nonce, OccurrenceId, OriginName, ParseError, Payload, Place, Position, RequestId, RouteName,
    Token, UnixMs, WorkerName,
};

/// A name that a case has spelled.
fn name<T>(parsed: Result<T, ParseError>) -> T {
    parsed.unwrap_or_else(|error| panic!("a case spells a name wrong: {error}"))
}

/// The route.
pub fn route() -> RouteName {
    route_named("orders")
}

/// A route by its name.
pub fn route_named(text: &str) -> RouteName {
    name(RouteName::new(text))
}

/// The destination that the lane serves.
pub fn destination() -> Destination {
    name(Destination::new("chain-b"))
}

/// A destination that no lane serves.
pub fn other_destination() -> Destination {
    name(Destination::new("chain-c"))
}

/// The lane.
pub fn lane() -> LaneName {
    lane_named("lane-1")
}

/// A lane by its name.
pub fn lane_named(text: &str) -> LaneName {
    name(LaneName::new(text))
}

/// The listener.
pub fn listener() -> ListenerName {
    listener_named("listener-1")
}

/// Another listener.
pub fn listener_named(text: &str) -> ListenerName {
    name(ListenerName::new(text))
}

/// The origin whose heights the requests have.
pub fn origin() -> OriginName {
    name(OriginName::new("chain-a"))
}

/// The worker.
pub fn worker() -> WorkerName {
    name(WorkerName::new("worker-1"))
}

/// Another worker.
pub fn other_worker() -> WorkerName {
    name(WorkerName::new("worker-2"))
}

/// Who holds the seats.
pub fn holder() -> HolderName {
    name(HolderName::new("holder-1"))
}

/// Who would like to.
pub fn other_holder() -> HolderName {
    name(HolderName::new("holder-2"))
}

/// The group.
pub fn group() -> GroupKey {
    group_named("group-1")
}

/// A group by its key.
pub fn group_named(text: &str) -> GroupKey {
    name(GroupKey::new(text))
}

/// The id of request `n`. All ids share their first 24 bytes.
pub fn id(n: u64) -> RequestId {
    RequestId(numbered(n))
}

/// The first occurrence of request `n`; others may be numbered from 1000. All share
/// their first 24 bytes.
pub fn occurrence(n: u64) -> OccurrenceId {
    OccurrenceId(numbered(n))
}

/// Item `n` of a group.
pub fn item(n: u64) -> ItemId {
    ItemId(numbered(n))
}

/// The hash of attempt `n`.
pub fn attempt_hash(n: u64) -> AttemptHash {
    AttemptHash(numbered(n))
}

fn numbered(n: u64) -> [u8; 32] {
    let mut bytes = [0xAB; 32];
    bytes[24..].copy_from_slice(&n.to_be_bytes());
    bytes
}

/// A place at the origin.
pub fn place(height: u64) -> Place {
    Place { origin: origin(), height: Height(height) }
}

/// A position of the origin.
pub fn position(height: u64) -> Position {
    Position { height: Height(height), hash: numbered(height) }
}

/// Publishes final answers to the destination; what failed may be tried again at once.
pub fn policy() -> RoutePolicy {
    RoutePolicy { destination: Some(destination()), backoff: Backoff::NONE, ..RoutePolicy::default() }
}

/// Request `n`, seen at height 100 + n.
pub fn request(n: u64) -> NewRequest {
    NewRequest {
        route: route(),
        id: id(n),
        occurrence: occurrence(n),
        place: Some(place(100 + n)),
        standing: Standing::Seen,
        payload: Payload::raw(format!("request {n}")),
        due: None,
        deadline: None,
        priority: 0,
        key: None,
        trace: None,
        flaw: None,
    }
}

/// Request `n`, final.
pub fn final_request(n: u64) -> NewRequest {
    NewRequest { standing: Standing::Final, ..request(n) }
}

/// Requests of these numbers.
pub fn requests(numbers: impl IntoIterator<Item = u64>) -> Vec<NewRequest> {
    numbers.into_iter().map(request).collect()
}

/// An admission by the listener.
pub fn admit_at(expected: Option<crate::listener::Cursor>, height: u64, requests: Vec<NewRequest>) -> Admit {
    Admit { cursor: Some(CursorMove { listener: listener(), expected, next: position(height) }), requests }
}

/// An amendment by the holder of this token.
pub fn amend(lead: Token, change: Amendment) -> Amend {
    Amend { lead, change }
}

/// Occurrence `n` is final.
pub fn finalize(lead: Token, n: u64) -> Amend {
    amend(lead, Amendment::Finalize { occurrence: occurrence(n) })
}

/// Occurrence `n` was taken away.
pub fn orphan(lead: Token, n: u64) -> Amend {
    amend(lead, Amendment::Orphan { occurrence: occurrence(n) })
}

/// Occurrence `n` is back, at this height.
pub fn include(lead: Token, n: u64, height: u64) -> Amend {
    amend(lead, Amendment::Include { occurrence: occurrence(n), height: Height(height) })
}

/// Finality passed without occurrence `n`.
pub fn withdraw(lead: Token, n: u64) -> Amend {
    amend(lead, Amendment::Withdraw { occurrence: occurrence(n) })
}

/// Request `n` has this content, shown by occurrence `by`.
pub fn supersede(lead: Token, n: u64, by: u64, content: &'static str) -> Amend {
    let payload = Payload::raw(content);
    let (occurrence, place) = (occurrence(by), Some(place(100 + by)));
    amend(lead, Amendment::Supersede { id: id(n), occurrence, place, payload, deadline: None })
}

/// Somebody else answered request `n`.
pub fn elsewhere(lead: Token, n: u64) -> Amend {
    amend(lead, Amendment::Elsewhere { id: id(n) })
}

/// A lease of the route under claim 1.
pub fn lease(max: usize) -> Lease {
    Lease { route: route(), worker: worker(), max, claim: ClaimId(1), lease_ms: None }
}

/// A heartbeat for a grant.
pub fn extend(grant: &Grant) -> Extend {
    Extend { id: grant.id, token: grant.token, lease_ms: None }
}

/// What every answer says.
pub fn response() -> Payload {
    Payload::raw("an answer")
}

/// An answer to a grant.
pub fn answer(grant: &Grant) -> Answer {
    Answer { id: grant.id, token: grant.token, response: response(), follow_ups: Vec::new(), items: Vec::new() }
}

/// A failure of this class.
pub fn note(class: ErrorClass) -> ErrorNote {
    ErrorNote::new(class, "it did not work")
}

/// A failure of a grant, to be tried again at once.
pub fn fail(grant: &Grant, class: ErrorClass) -> Fail {
    Fail { id: grant.id, token: grant.token, error: note(class), verdict: Verdict::Retry { after_ms: Some(0) } }
}

/// A grant given back.
pub fn release(grant: &Grant) -> Release {
    Release { id: grant.id, token: grant.token, after_ms: 0 }
}

/// What a person does to request `n`.
pub fn mend(n: u64, remedy: Remedy) -> Mend {
    Mend { id: id(n), remedy }
}

/// The upkeep seat, for the holder, for an hour.
pub fn lead() -> Lead {
    Lead { seat: Seat::Upkeep, holder: holder(), ttl_ms: 3_600_000 }
}

/// Signed bytes of attempt `n`.
pub fn signed(n: u64, kind: AttemptKind) -> SignedAttempt {
    SignedAttempt { hash: attempt_hash(n), kind, bytes: format!("signed {n}").into(), fee: Some(n.into()) }
}

/// A parcel with these requests' answers.
pub fn parcel(numbers: &[u64], attempt: SignedAttempt) -> NewParcel {
    NewParcel { deliveries: numbers.iter().map(|&n| id(n)).collect(), answers: Vec::new(), attempt }
}

/// Parcels onto the lane, from this slot on.
pub fn assign(owner: Token, first: u64, parcels: Vec<NewParcel>) -> Assign {
    Assign { lane: lane(), owner, first: Nonce(first), parcels }
}

/// A parcel onto a gap of the lane.
pub fn fill(owner: Token, nonce: u64, parcel: NewParcel) -> Fill {
    Fill { lane: lane(), owner, nonce: Nonce(nonce), parcel }
}

/// A wish that a slot of the lane be cancelled.
pub fn cancel(nonce: u64, then: AfterCancel) -> LaneOrder {
    LaneOrder { lane: lane(), order: Order::Cancel { nonce: Nonce(nonce), then } }
}

/// Another attempt for a slot.
pub fn attempt(owner: Token, nonce: u64, attempt: SignedAttempt) -> Attempt {
    Attempt { lane: lane(), owner, nonce: Nonce(nonce), attempt }
}

/// Attempt `n` was found at this height.
pub fn block(n: u64, height: u64) -> Block {
    Block { attempt: attempt_hash(n), at: position(height) }
}

/// What the outside shows of a slot.
pub fn settle(owner: Token, nonce: u64, expected: ParcelStage, sight: Sight) -> Settle {
    Settle { lane: lane(), owner, nonce: Nonce(nonce), expected, sight }
}

/// This delivery was made.
pub fn delivered(owner: Token, delivery: &ReadyDelivery) -> Publish {
    let (id, answer, result) = (delivery.id, delivery.answer, PublishResult::Delivered);
    Publish { destination: destination(), owner, id, answer, result }
}

/// The origin's head is this high.
pub fn tick(height: u64) -> ChainTick {
    ChainTick { origin: origin(), height: Height(height), at: UnixMs(height * 1000) }
}

/// A time of the sample origin's blocks.
pub fn block_time(ms: u64) -> Moment {
    Moment::BlockTime { origin: origin(), at: UnixMs(ms) }
}

/// Item `n` joins the group.
pub fn gather(n: u64) -> Gather {
    Gather { group: group(), item: item(n), payload: Payload::raw(format!("item {n}")), plan: None }
}
