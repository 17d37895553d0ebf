//! The operations of a store and what each of them answers.
//!
//! An operation succeeds or is refused on its own and never halfway. Replaying one
//! whose answer was lost has no second effect: it is answered `Duplicate`, `Stale`,
//! or, where a claim id names the call, with the same grant again.

use crate::inbox::{End, IdentityError, Standing, StateKind};
use crate::listener::Cursor;
use crate::sender::{Block, LaneStatus, ParcelStage, SignedAttempt};
use crate::store::policy::RoutePolicy;
use crate::store::query::ReadyDelivery;
use crate::words::{
    AttemptHash, ClaimId, Destination, ErrorNote, GroupKey, Height, HolderName, ItemId, LaneName, ListenerName, Moment,
    Nonce, OccurrenceId, OrderKey, OriginName, Payload, Place, Position, RequestId, RouteName, Token, UnixMs,
    WorkerName,
};

/// One operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A route's policies are set.
    Define(Define),
    /// A route takes no more leases, or takes them again.
    Pause(Pause),
    /// Requests come in, and a listener's cursor moves.
    Admit(Admit),
    /// What is known of a live request's origin changes.
    Amend(Amend),
    /// A worker takes requests.
    Lease(Lease),
    /// A worker is still at work.
    Extend(Extend),
    /// A worker is done.
    Answer(Answer),
    /// A worker failed.
    Fail(Fail),
    /// A worker gives a request back at no cost.
    Release(Release),
    /// Somebody takes or keeps an exclusive seat.
    Lead(Lead),
    /// A lane is opened, or its standing changes.
    Lane(LaneOrder),
    /// Parcels with their signed attempts go onto a lane.
    Assign(Assign),
    /// A parcel goes onto a slot that was passed over.
    Fill(Fill),
    /// A ready answer can never be sent: it becomes a dead letter, or a failure response takes
    /// its place.
    Reject(Reject),
    /// A ready answer needs not be sent: it had its effect before.
    Already(Already),
    /// Another signed attempt for a parcel, before its broadcast.
    Attempt(Attempt),
    /// What the outside shows of a parcel.
    Settle(Settle),
    /// What became of a delivery to a destination without lanes.
    Publish(Publish),
    /// Leases that ran out go back.
    Rescue {
        /// At most so many.
        limit: usize,
    },
    /// An origin's head moved on: what waits for a height may go.
    Tick(ChainTick),
    /// Requests past their deadline end.
    Expire {
        /// At most so many.
        limit: usize,
    },
    /// Groups whose moment has come are sealed.
    Fire {
        /// At most so many.
        limit: usize,
    },
    /// What retention no longer wants is forgotten.
    Prune(Prune),
    /// An item joins a group.
    Gather(Gather),
    /// A group is sealed and becomes one request.
    Close(Close),
    /// A person retries, drops or cancels a request.
    Mend(Mend),
}

impl Op {
    /// How many records the operation may write.
    pub fn records(&self) -> usize {
        match self {
            Op::Admit(op) => op.requests.len().max(1),
            // An item may be the one that seals its group.
            Op::Answer(op) => 1 + op.follow_ups.len() + 2 * op.items.len(),
            Op::Gather(_) => 2,
            Op::Assign(op) => op.parcels.len().max(1),
            _ => 1,
        }
    }

    /// Bytes of payload that the operation brings.
    pub fn payload_bytes(&self) -> usize {
        let new = |requests: &[NewRequest]| requests.iter().map(|r| r.payload.bytes.len()).sum::<usize>();
        match self {
            Op::Admit(op) => new(&op.requests),
            Op::Amend(Amend { change: Amendment::Supersede { payload, .. }, .. }) => payload.bytes.len(),
            Op::Answer(op) => {
                let items: usize = op.items.iter().map(Gather::payload_bytes).sum();
                op.response.bytes.len() + new(&op.follow_ups) + items
            }
            Op::Fail(Fail { verdict: Verdict::Dead { response: Some(response) }, .. }) => response.bytes.len(),
            Op::Reject(Reject { instead: Some(response), .. }) => response.bytes.len(),
            Op::Settle(Settle { sight: Sight::Final(_, Judgement::Replaced(_, response)), .. }) => response.bytes.len(),
            Op::Assign(op) => op.parcels.iter().map(|p| p.attempt.bytes.len()).sum(),
            Op::Fill(op) => op.parcel.attempt.bytes.len(),
            Op::Attempt(op) => op.attempt.bytes.len(),
            Op::Gather(op) => op.payload_bytes(),
            Op::Close(op) => op.request.payload.bytes.len(),
            _ => 0,
        }
    }

    /// Whether a crash may forget the operation without breaking a promise: a lost
    /// lease only means that the request is handed out again under a new token.
    pub fn may_be_forgotten(&self) -> bool {
        matches!(self, Op::Lease(_) | Op::Extend(_))
    }

    /// Whether the operation looks for what it has to do.
    pub fn is_upkeep(&self) -> bool {
        matches!(self, Op::Rescue { .. } | Op::Expire { .. } | Op::Fire { .. } | Op::Prune(_))
    }
}

macro_rules! into_op {
    ($($name:ident($type:ty),)*) => {
        $(impl From<$type> for Op {
            fn from(op: $type) -> Op {
                Op::$name(op)
            }
        })*
    };
}

into_op! {
    Define(Define), Pause(Pause), Admit(Admit), Amend(Amend), Lease(Lease), Extend(Extend), Answer(Answer), Fail(Fail),
    Release(Release), Lead(Lead), Lane(LaneOrder), Assign(Assign), Fill(Fill), Reject(Reject), Already(Already), Attempt(Attempt),
    Settle(Settle), Prune(Prune), Tick(ChainTick), Publish(Publish), Gather(Gather), Close(Close), Mend(Mend),
}

/// Sets a route's policies; a route must be defined before it is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Define {
    /// The route.
    pub route: RouteName,
    /// Its policies from now on.
    pub policy: RoutePolicy,
}

/// Stops a route's leases or lets them go on; admission and running work go on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pause {
    /// The route.
    pub route: RouteName,
    /// Whether it is paused from now on.
    pub paused: bool,
}

/// All or nothing: stores every request and moves the cursor, or does neither.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Admit {
    /// The cursor that these requests' blocks move, if they come from a listener.
    pub cursor: Option<CursorMove>,
    /// The requests, in the order of their origin.
    pub requests: Vec<NewRequest>,
}

/// Compare-and-set of a listener's cursor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CursorMove {
    /// Whose cursor.
    pub listener: ListenerName,
    /// What the listener believes the store holds; `None` before the first move.
    pub expected: Option<Cursor>,
    /// Where the cursor goes.
    pub next: Position,
}

/// A request that comes in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct NewRequest {
    /// The route that it takes.
    pub route: RouteName,
    /// What makes it the same request.
    pub id: RequestId,
    /// This very event or submission; a repeat of it is always a duplicate.
    pub occurrence: OccurrenceId,
    /// Where its origin showed it, if the origin has heights.
    pub place: Option<Place>,
    /// Whether its origin calls it final.
    pub standing: Standing,
    /// What is asked.
    pub payload: Payload,
    /// Not to be worked on before this moment.
    pub due: Option<Moment>,
    /// Of no use after this moment.
    pub deadline: Option<Moment>,
    /// For routes ordered by priority: higher goes first.
    pub priority: u8,
    /// For routes ordered by key: those with the same key are worked on in order.
    pub key: Option<OrderKey>,
    /// The trace context that it came with.
    pub trace: Option<Box<str>>,
    /// Why nobody can work on it as it is: it is admitted as a dead letter. Its id is not
    /// that of its content then, but the one that [`flawed`](crate::listener::flawed) gives.
    #[serde(skip)]
    pub flaw: Option<Box<ErrorNote>>,
}

/// A change to a live request, by a lead of its route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Amend {
    /// The token of the route's seat, or of its feed from the origin that shows the
    /// occurrence. A supersession, and an answer elsewhere, may be told by any of its feeds.
    pub lead: Token,
    /// What changed.
    pub change: Amendment,
}

/// What an origin says about a request that is already here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Amendment {
    /// The occurrence is final.
    Finalize {
        /// Which.
        occurrence: OccurrenceId,
    },
    /// A reorg took the occurrence away.
    Orphan {
        /// Which.
        occurrence: OccurrenceId,
    },
    /// A reorg brought the occurrence back, perhaps elsewhere.
    Include {
        /// Which.
        occurrence: OccurrenceId,
        /// Where it is now.
        height: Height,
    },
    /// The same request with other content, shown by another occurrence.
    Supersede {
        /// Which request.
        id: RequestId,
        /// The occurrence that shows the new content.
        occurrence: OccurrenceId,
        /// Where.
        place: Option<Place>,
        /// The new content.
        payload: Payload,
        /// Until when an answer to it is of use; what was said of the old content is void.
        deadline: Option<Moment>,
    },
    /// Finality passed without the occurrence, which was orphaned before.
    Withdraw {
        /// Which.
        occurrence: OccurrenceId,
    },
    /// The origin shows that somebody else answered.
    Elsewhere {
        /// Which request.
        id: RequestId,
    },
}

/// Takes up to `max` queued requests, in the route's order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// From which route.
    pub route: RouteName,
    /// Who takes them.
    pub worker: WorkerName,
    /// How many at most.
    pub max: usize,
    /// The caller's number for this call; a replay returns the same grants.
    pub claim: ClaimId,
    /// For how long; the route's lease time if absent.
    pub lease_ms: Option<u64>,
}

/// Keeps a lease for longer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Extend {
    /// Which request.
    pub id: RequestId,
    /// The lease's token.
    pub token: Token,
    /// For how long from now; the route's lease time if absent.
    pub lease_ms: Option<u64>,
}

/// Records the response, with all that follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Which request.
    pub id: RequestId,
    /// The lease's token.
    pub token: Token,
    /// The response.
    pub response: Payload,
    /// Requests that follow from it.
    pub follow_ups: Vec<NewRequest>,
    /// Group items that follow from it.
    pub items: Vec<Gather>,
}

/// Reports that the work failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fail {
    /// Which request.
    pub id: RequestId,
    /// The lease's token.
    pub token: Token,
    /// What went wrong; a transport error costs no attempt.
    pub error: ErrorNote,
    /// What is to happen now.
    pub verdict: Verdict,
}

/// What a failure leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Again, unless the route's attempts are used up.
    Retry {
        /// After so long; as the route's backoff says if absent.
        after_ms: Option<u64>,
    },
    /// Never again: a dead letter, or a published failure response.
    Dead {
        /// What to publish, if the route publishes failures.
        response: Option<Payload>,
    },
    /// Never again, and well: it was done before, and what came of it is not known here. The request ends
    /// [`Elsewhere`](crate::inbox::End::Elsewhere), without an answer.
    Elsewhere,
}

/// Gives a lease back; the attempt is not counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Release {
    /// Which request.
    pub id: RequestId,
    /// The lease's token.
    pub token: Token,
    /// Not to be handed out again before so long.
    pub after_ms: u64,
}

/// What one holder at a time may have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum Seat {
    /// To write on a lane.
    Lane(LaneName),
    /// To amend a route's requests, wherever they come from.
    Route(RouteName),
    /// To deliver to a destination that has no lanes.
    Destination(Destination),
    /// To do the upkeep.
    Upkeep,
    /// To amend what one origin shows on a route. Each origin of a route has a lead of its
    /// own, so that several can feed it from different machines.
    Feed(RouteName, OriginName),
}

/// Takes a free seat, or keeps one's own for longer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lead {
    /// Which seat.
    pub seat: Seat,
    /// For whom; unique to a process and its start.
    pub holder: HolderName,
    /// For how long from now; 0 gives the seat up.
    pub ttl_ms: u64,
}

/// Opens a lane or changes its standing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LaneOrder {
    /// Which lane.
    pub lane: LaneName,
    /// What is ordered.
    pub order: Order,
}

/// An order to a lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The lane exists from now on.
    Open {
        /// Whose deliveries it takes.
        destination: Destination,
        /// How many parcels may be under way.
        window: u32,
        /// The first slot that is free outside.
        first: Nonce,
    },
    /// Nothing new is assigned until resumed.
    Pause {
        /// Why, for the person who reads it.
        reason: Box<str>,
    },
    /// Nothing new is assigned for a while. A person's pause stays, and so does a quarantine
    /// that lasts longer.
    Quarantine {
        /// For how long, by the store's clock.
        for_ms: u64,
    },
    /// Nothing new is assigned until the lane can pay. A pause and a quarantine stay.
    Unfunded {
        /// Why, for the person who reads it.
        reason: Box<str>,
    },
    /// A lane that could not pay is worth a try; every other status stays.
    Funded,
    /// Goes on, whatever it was that held it up; only a stopped lane needs `Reconcile`.
    Resume,
    /// What the outside says its next free slot is. Beyond the lane's high-water mark
    /// means that the store forgot what it sent, or that somebody else uses the lane:
    /// the lane stops.
    Observe {
        /// The next slot that is free outside.
        outside_next: Nonce,
    },
    /// What the outside shows to be used up beyond any reorg: none of these slots is a gap, whoever
    /// used it. Slots that the lane never gave out stay as they are.
    Settled {
        /// Every slot below.
        below: Nonce,
    },
    /// Every slot used outside was matched to deliveries; the stopped lane goes on from here. One
    /// that is not stopped refuses slots beyond its own: what nobody has used would be filled.
    Reconcile {
        /// The next slot that is free outside.
        outside_next: Nonce,
    },
    /// A parcel that is not mined is no longer wanted: its slot is to be used up by an
    /// attempt that carries nothing. A wish: whichever attempt is mined decides.
    Cancel {
        /// Which slot.
        nonce: Nonce,
        /// What becomes of its deliveries if nothing was carried.
        then: AfterCancel,
    },
}

/// What becomes of the deliveries of a parcel that was cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum AfterCancel {
    /// They go back to be sent on another slot.
    Requeue,
    /// They are dead letters, with their answers.
    Dead(ErrorNote),
}

/// Puts parcels on consecutive slots of a lane; the longest valid prefix applies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Assign {
    /// Which lane.
    pub lane: LaneName,
    /// The token of the lane's seat.
    pub owner: Token,
    /// The slot of the first parcel.
    pub first: Nonce,
    /// The parcels.
    pub parcels: Vec<NewParcel>,
}

/// Puts a parcel on a gap: a slot below the lane's next one that holds no parcel and is
/// not known to be used up. What lies above a gap waits for it, so a fill may go beyond
/// the lane's window: up to twice as many, and always below everything that is under way.
///
/// With deliveries it needs an active lane; without, any that is not stopped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fill {
    /// Which lane.
    pub lane: LaneName,
    /// The token of the lane's seat.
    pub owner: Token,
    /// Which slot.
    pub nonce: Nonce,
    /// The parcel.
    pub parcel: NewParcel,
}

/// What one slot is to carry, and the signed bytes that carry it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NewParcel {
    /// The answered requests that it carries; with none, its attempt carries nothing too.
    pub deliveries: Vec<RequestId>,
    /// Which of their answers are in the signed bytes, one for each, as
    /// [`ReadyDelivery::answer`](crate::store::query::ReadyDelivery::answer) names them: one that was
    /// superseded or replaced since it was signed keeps the parcel off its slot. Empty means
    /// whichever are ready, for who signs nothing that an answer is in.
    pub answers: Vec<Token>,
    /// The first signed attempt.
    pub attempt: SignedAttempt,
}

impl NewParcel {
    /// What carries these answers, signed.
    pub fn of(ready: &[ReadyDelivery], attempt: SignedAttempt) -> NewParcel {
        let (deliveries, answers) = ready.iter().map(|delivery| (delivery.id, delivery.answer)).unzip();
        NewParcel { deliveries, answers, attempt }
    }
}

/// Takes a ready answer that can never be sent out of the queue before it is on any slot: it
/// is a dead letter, and keeps its answer; or a failure response is to be sent in its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reject {
    /// The lane that it would have gone onto.
    pub lane: LaneName,
    /// The token of the lane's seat.
    pub owner: Token,
    /// Which request's answer.
    pub id: RequestId,
    /// Which answer, as [`ReadyDelivery::answer`](crate::store::query::ReadyDelivery::answer)
    /// names it: another one stays where it is.
    pub answer: Token,
    /// Why it can never be sent.
    pub error: ErrorNote,
    /// What is to be sent in its place. A failure response has no other: it is a dead letter.
    pub instead: Option<Payload>,
}

/// Ends a ready answer well before it is on any slot: the outside shows, beyond any reorg,
/// that it is done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Already {
    /// The lane that it would have gone onto.
    pub lane: LaneName,
    /// The token of the lane's seat.
    pub owner: Token,
    /// Which request's answer.
    pub id: RequestId,
    /// Which answer, as [`ReadyDelivery::answer`](crate::store::query::ReadyDelivery::answer)
    /// names it: one that was superseded meanwhile ends nothing.
    pub answer: Token,
}

/// Stores another signed attempt for an occupied slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// Which lane.
    pub lane: LaneName,
    /// The token of the lane's seat.
    pub owner: Token,
    /// Which slot.
    pub nonce: Nonce,
    /// The signed bytes.
    pub attempt: SignedAttempt,
}

/// Moves a parcel on or back, only from the expected stage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settle {
    /// Which lane.
    pub lane: LaneName,
    /// The token of the lane's seat.
    pub owner: Token,
    /// Which slot.
    pub nonce: Nonce,
    /// The stage that the caller saw.
    pub expected: ParcelStage,
    /// What the outside shows.
    pub sight: Sight,
}

/// What the outside shows of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sight {
    /// One of our attempts is in a block.
    Included(Block),
    /// At the route's depth.
    Confirmed(Block),
    /// Beyond any reorg: the parcel ends.
    Final(Block, Judgement),
    /// A reorg took it out again.
    Back,
    /// Beyond any reorg, a transaction of nobody here used the slot.
    Displaced,
}

/// What a final transaction did to the deliveries that it carried.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Judgement {
    /// They are done.
    Done,
    /// It had no effect; the deliveries may be sent again.
    Again(ErrorNote),
    /// It had no effect and never will.
    Failed(ErrorNote),
    /// It had no effect and never will; this failure response is to be sent in place of each
    /// delivery. One that is a failure response itself is a dead letter.
    Replaced(ErrorNote, Payload),
}

/// Records what became of a delivery, after it was made or tried. Only what is ready ends by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Publish {
    /// To which destination; it has no lanes.
    pub destination: Destination,
    /// The token of the destination's seat.
    pub owner: Token,
    /// Whose answer.
    pub id: RequestId,
    /// Which answer, as [`ReadyDelivery::answer`](crate::store::query::ReadyDelivery::answer)
    /// names it: one that was superseded on its way ends nothing.
    pub answer: Token,
    /// What became of it.
    pub result: PublishResult,
}

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PublishResult {
    /// It is where it was wanted.
    Delivered,
    /// It will never be taken: a dead letter that keeps its answer.
    Refused(ErrorNote),
    /// It was not taken, and will be tried again: the answer stays ready.
    Failed {
        /// Why.
        error: ErrorNote,
        /// How often it had failed before, as
        /// [`ReadyDelivery::failures`](crate::store::query::ReadyDelivery::failures) says, so that a replay counts
        /// nothing.
        before: u32,
    },
}

/// What an origin's newest block is. A head only ever grows: one that is not higher than
/// what was told before changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChainTick {
    /// Which origin.
    pub origin: OriginName,
    /// How high its head is.
    pub height: Height,
    /// The block's own time.
    pub at: UnixMs,
}

/// Forgets what retention no longer wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Prune {
    /// At most so many records.
    pub limit: usize,
    /// Heights below which no re-scan will reach: occurrences there may be forgotten,
    /// and admitting there is refused from now on.
    pub floors: Vec<Place>,
}

/// Adds an item to a group once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    /// Which group; it opens with its first item.
    pub group: GroupKey,
    /// What makes it the same item.
    pub item: ItemId,
    /// The item.
    pub payload: Payload,
    /// How the group is to be sealed by itself. The item that opens a group decides;
    /// the plans of those that follow are not looked at.
    pub plan: Option<Box<GroupPlan>>,
}

impl Gather {
    fn payload_bytes(&self) -> usize {
        self.payload.bytes.len() + self.plan.as_ref().map_or(0, |plan| plan.request.payload.bytes.len())
    }
}

/// How a group is sealed by itself: by whichever comes first. A route that has no room
/// leaves it open, and it is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct GroupPlan {
    /// With the commit that brings this many items.
    pub seal_at_items: Option<u64>,
    /// When this moment has come, by `fire`.
    pub seal_at: Option<Moment>,
    /// The request that refers to it.
    pub request: NewRequest,
}

/// Seals a group once and admits the request that refers to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Close {
    /// Which group.
    pub group: GroupKey,
    /// The request that refers to it.
    pub request: NewRequest,
}

/// What a person does to one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mend {
    /// Which request.
    pub id: RequestId,
    /// What is done.
    pub remedy: Remedy,
}

/// What a person can do to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// A dead letter is worked on again, from its first attempt; an answer that it has is only sent again.
    Retry,
    /// A dead letter is worked on again, from its first attempt, and its answer is thrown away: it was wrong.
    /// Refused while a lane of its destination is stopped: the answer may then be on the chain, forgotten, and
    /// is only found there as long as it is kept.
    Rework,
    /// A dead letter ends for good.
    Drop,
    /// A request that nothing was sent for ends as withdrawn.
    Cancel,
}

/// What became of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is durable.
    Applied(Effect),
    /// It was already so; nothing changed.
    Duplicate(Effect),
    /// The caller's picture is out of date; nothing that it asked for was done.
    Stale(Stale),
    /// There is no such thing here.
    NotFound(Missing),
    /// No room; nothing changed. Push back at the source.
    Full(Full),
    /// The operation itself is wrong and will never apply; nothing changed.
    Invalid(Invalid),
}

impl Outcome {
    /// Whether the operation's effect is in the store, from now or from before.
    pub fn holds(&self) -> bool {
        matches!(self, Outcome::Applied(_) | Outcome::Duplicate(_))
    }
}

/// What an operation brought about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// What was asked for is so.
    Done,
    /// What became of each request of an `admit`, and where the cursor is.
    Admitted(Vec<Admission>, Option<Cursor>),
    /// The requests handed out.
    Leased(Vec<Grant>),
    /// The lease holds until then; what the worker should know.
    Extended(UnixMs, Vec<Notice>),
    /// The request's state after the operation.
    Now(StateKind),
    /// The seat is held with this token until then.
    Led(Token, UnixMs),
    /// So many parcels of an `assign` are stored, and why the next one is not.
    Assigned(usize, Option<Box<Outcome>>),
    /// So many records were moved or forgotten; at the limit there may be more.
    Count(usize),
    /// The items that the group holds, and whether this one came late.
    Gathered {
        /// How many items.
        items: u64,
        /// Whether it came after the group was sealed.
        late: bool,
    },
    /// The group is sealed.
    Closed {
        /// How many items it was sealed with.
        items: u64,
        /// The request that refers to it.
        request: RequestId,
    },
    /// The lane's status after the operation.
    Lane(LaneStatus),
}

/// What became of one request of an `admit`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Admission {
    /// It is new.
    New {
        /// Which generation of its id.
        generation: u32,
    },
    /// Its id is live: this occurrence was added to it.
    Attached {
        /// The live request's state.
        state: StateKind,
        /// Whether the content is the same. If not, it waits behind the live request until
        /// the route's lead supersedes with it, or until that one ends.
        same_content: bool,
    },
    /// Its id is live and final: this occurrence is remembered, and nothing else changed.
    Dropped {
        /// The live request's state.
        state: StateKind,
    },
    /// Its id was a dead letter: this occurrence was added to it, and it is tried again.
    Rearmed {
        /// The request's state now.
        state: StateKind,
    },
    /// Its id is live: it is a request of its own that waits for the end of the live one.
    Behind {
        /// Which generation of its id.
        generation: u32,
    },
    /// Its id is live, and this occurrence is a vote for it.
    Voted {
        /// The live request's state.
        state: StateKind,
        /// How many votes stand.
        votes: u32,
        /// How many are needed.
        needed: u32,
    },
    /// This occurrence was admitted before.
    Known {
        /// How it stands.
        state: StateKind,
        /// What the store believes of the occurrence, while its request is live.
        standing: Option<Standing>,
    },
    /// Its id ended within the route's horizon.
    Ended(End),
}

/// A request in a worker's hand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Which request.
    pub id: RequestId,
    /// The token to answer with.
    pub token: Token,
    /// When the lease runs out.
    pub until: UnixMs,
    /// Which attempt this is, from 1.
    pub attempt: u16,
    /// Which generation of the id.
    pub generation: u32,
    /// Which content, from 0; a supersede raises it.
    pub revision: u16,
    /// Whether its origin calls it final.
    pub standing: Standing,
    /// Of no use after this moment.
    pub deadline: Option<Moment>,
    /// What is asked.
    pub payload: Payload,
    /// The trace context that it came with.
    pub trace: Option<Box<str>>,
}

/// What a worker at work is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum Notice {
    /// Its origin calls it final.
    Finalized,
    /// A reorg took it away; it may come back.
    Orphaned,
    /// A reorg brought it back.
    Included,
    /// The content changed: an answer to the old content will not be taken.
    Superseded,
}

/// Why an operation came too late.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stale {
    /// Another lease, or none, holds the request; its state now.
    Lease(StateKind),
    /// The content was superseded since the lease; it goes back to be worked again.
    Superseded,
    /// The request is past the point where this could still change it.
    State(StateKind),
    /// The cursor is elsewhere; here it is.
    Cursor(Option<Cursor>),
    /// The caller remembers what the store does not: the store was rolled back, and
    /// its lanes have stopped.
    RolledBack,
    /// Somebody else has the seat.
    Seat {
        /// Who.
        holder: Option<HolderName>,
        /// Until when.
        until: UnixMs,
    },
    /// The slot is not the lane's next one, or, to be filled, no gap.
    Nonce {
        /// The lane's next slot.
        next: Nonce,
    },
    /// The lane takes nothing now.
    Lane(LaneStatus),
    /// The parcel is at another stage.
    Parcel(ParcelStage),
    /// A delivery is not ready to be assigned.
    Delivery(RequestId, StateKind),
}

/// What is not here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Missing {
    /// No such request, live or remembered.
    Request(RequestId),
    /// No live request has this occurrence.
    Occurrence(OccurrenceId),
    /// No such lane.
    Lane(LaneName),
    /// Nothing is on this slot.
    Parcel(Nonce),
    /// The parcel has no such attempt. If it used the slot, what it carries decides: the
    /// parcel's deliveries, and it is an attempt that a rollback forgot, to be stored with
    /// `attempt` and then settled; anything else, and the parcel was displaced.
    Attempt(AttemptHash),
}

/// What has no room left.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Full {
    /// The route's capacity.
    #[error("route {route} is full: it takes {capacity} live requests at the most")]
    Route {
        /// Which route.
        route: RouteName,
        /// Its capacity.
        capacity: u64,
    },
    /// The lane's window.
    #[error("the lane is full: {window} of its slots may be under way")]
    Window {
        /// How many may be under way.
        window: u32,
    },
    /// The group's items.
    #[error("the group has all the items that it can have")]
    Group(GroupKey),
    /// The numbers that slots can have.
    #[error("the lane has no slots left")]
    Slots,
    /// The parcel's attempts.
    #[error("the slot has all the attempts that it can have")]
    Attempts,
}

/// Why an operation can never apply.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Invalid {
    /// A payload over the limit.
    #[error("a payload of {bytes} bytes is over the limit of {max} bytes")]
    PayloadTooLarge {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// A route that was never defined.
    #[error("route {0} is not defined: define it, or correct the name")]
    UnknownRoute(RouteName),
    /// More of something than one operation may hold.
    #[error("{count} {what} in one operation; at most {max}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// A block below what re-scans may reach.
    #[error("height {} of {} is below {}: what happened there is forgotten and may not be replayed", place.height.0, place.origin, floor.0)]
    TooDeep {
        /// Where.
        place: Place,
        /// The lowest height that may still be admitted.
        floor: Height,
    },
    /// A height that no moment can name.
    #[error("height {} of {} is higher than a moment can be", .0.height.0, .0.origin)]
    HeightTooHigh(Place),
    /// An empty list where something is needed.
    #[error("an empty {0}")]
    Empty(&'static str),
    /// Only deliveries for the destination may be sent there.
    #[error("request {0} is not for this destination")]
    OtherDestination(RequestId),
    /// Two parts of one operation name the same thing.
    #[error("{0} twice in one operation")]
    Repeated(&'static str),
    /// A lane that already serves something else.
    #[error("lane {lane} is open for destination {destination}")]
    LaneTaken {
        /// Which lane.
        lane: LaneName,
        /// What it serves.
        destination: Destination,
    },
    /// A route whose policies could never do what they say.
    #[error("these policies make no sense: {0}")]
    Policy(&'static str),
    /// The route takes ids that are hashes, and this is another one.
    #[error("request {given} should have the id {hash} by its route's identity")]
    IdIsNotTheHash {
        /// The id that it has.
        given: RequestId,
        /// The id that it should have.
        hash: RequestId,
    },
    /// The route takes ids that are hashes, and the payload has none.
    #[error("request {given} cannot be told from others: {why}")]
    NoIdentity {
        /// The id that it has.
        given: RequestId,
        /// What is wrong with its payload.
        why: IdentityError,
    },
    /// A destination that has lanes takes no courier.
    #[error("destination {0} is served by lanes: give what is delivered without them a destination of its own")]
    ServedByLanes(Destination),
    /// A destination that has a courier takes no lanes.
    #[error("destination {destination} is served by {holder} without lanes: give the lane a destination of its own")]
    ServedBySeat {
        /// Which destination.
        destination: Destination,
        /// Who delivers there.
        holder: HolderName,
    },
    /// More names than the store can number.
    #[error("more than {0} routes, lanes or origins")]
    TooManyNames(usize),
}
