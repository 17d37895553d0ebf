//! The reads of a store, and what they show.

use bytes::Bytes;

use crate::groups::GroupState;
use crate::inbox::{End, Standing, StateKind};
use crate::listener::{Cursor, Head};
use crate::outbox::Undelivered;
use crate::sender::{Block, LaneStatus, ParcelStage, SignedAttempt};
use crate::store::journal::Entry;
use crate::store::op::{AfterCancel, Seat};
use crate::store::policy::RoutePolicy;
use crate::words::{
    Destination, ErrorNote, GroupKey, Height, HolderName, ItemId, LaneName, ListenerName, Moment, Nonce, OccurrenceId,
    OrderKey, OriginName, Payload, Place, RequestId, RouteName, Seq, Token, UnixMs, WorkerName,
};

/// One read; it sees what the last commit left.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Query {
    /// One request, live or remembered.
    Get(RequestId),
    /// A page of live requests, oldest first.
    List(ListFilter),
    /// How many live requests each route has in each state, and the age of the oldest.
    Counts,
    /// What the journal still holds about one request, oldest first.
    Timeline(RequestId),
    /// A page of the journal.
    Journal {
        /// From this place on.
        from: u64,
        /// At most so many.
        limit: usize,
    },
    /// Answers that wait to be sent, oldest first.
    Ready {
        /// Of which destination.
        destination: Destination,
        /// Only those admitted after this one.
        after: Option<Seq>,
        /// At most so many.
        limit: usize,
    },
    /// All routes.
    Routes,
    /// All lanes, without their parcels.
    Lanes,
    /// All lanes, without anything of what is under way on them: what a look at each costs does not
    /// grow with that.
    LaneOutlines,
    /// One lane with its parcels.
    Lane(LaneName),
    /// A listener's cursor.
    Cursor(ListenerName),
    /// All cursors, by listener.
    Cursors,
    /// All origins, with what is known of their heads.
    Origins,
    /// Who holds a seat.
    Seat(Seat),
    /// A group and a page of its items.
    Group {
        /// Which group.
        group: GroupKey,
        /// Skip so many items.
        skip: u64,
        /// At most so many.
        limit: usize,
    },
}

/// Which requests a page shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ListFilter {
    /// Only of this route.
    pub route: Option<RouteName>,
    /// Only in one of these states; all live states if empty.
    pub states: Vec<StateKind>,
    /// Only those admitted at this time or later.
    pub from: Option<UnixMs>,
    /// Only those admitted before this time.
    pub to: Option<UnixMs>,
    /// Only ids that start with these bytes.
    pub id_prefix: Vec<u8>,
    /// Only those whose last error contains this text, in whatever case.
    pub error_text: Option<String>,
    /// Only those admitted after this one: the end of the page before.
    pub after: Option<Seq>,
    /// At most so many; [`crate::words::PAGE_MAX`] at the most.
    pub limit: usize,
}

/// The answer to a [`Query`], of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To `Get`.
    Get(Option<Found>),
    /// To `List`.
    List(Page),
    /// To `Counts`.
    Counts(Vec<Count>),
    /// To `Timeline`.
    Timeline(Vec<Entry>),
    /// To `Journal`.
    Journal(JournalPage),
    /// To `Ready`.
    Ready(Vec<ReadyDelivery>),
    /// To `Routes`.
    Routes(Vec<RouteView>),
    /// To `Lanes`.
    Lanes(Vec<LaneView>),
    /// To `LaneOutlines`.
    LaneOutlines(Vec<LaneOutline>),
    /// To `Lane`.
    Lane(Option<LaneView>),
    /// To `Cursor`.
    Cursor(Option<Cursor>),
    /// To `Cursors`.
    Cursors(Vec<(ListenerName, Cursor)>),
    /// To `Origins`.
    Origins(Vec<OriginView>),
    /// To `Seat`.
    Seat(Option<SeatView>),
    /// To `Group`.
    Group(Option<GroupView>),
}

/// A request, live or remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It has not ended, or waits for a person.
    Live(Box<RequestView>, Bodies),
    /// It has ended.
    Ended(ReceiptView),
}

/// What a live request carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bodies {
    /// What is asked.
    pub payload: Payload,
    /// What the handler made of it.
    pub response: Option<Payload>,
    /// The trace context that it came with.
    pub trace: Option<Box<str>>,
}

/// A live request without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestView {
    /// Its place in the order of admission.
    pub seq: Seq,
    /// Its id.
    pub id: RequestId,
    /// Its route.
    pub route: RouteName,
    /// Which generation of its id.
    pub generation: u32,
    /// Which content, from 0.
    pub revision: u16,
    /// Where it is.
    pub phase: Phase,
    /// Finality of its origin.
    pub standing: Standing,
    /// The events that show it.
    pub occurrences: Vec<OccurrenceView>,
    /// When it came in.
    pub admitted_at: UnixMs,
    /// Not to be worked on before.
    pub due: Option<Moment>,
    /// Of no use after.
    pub deadline: Option<Moment>,
    /// For routes ordered by priority.
    pub priority: u8,
    /// For routes ordered by key.
    pub key: Option<OrderKey>,
    /// Whether it waits for the end of another live request with the same id.
    pub behind: bool,
    /// How often it was handed out.
    pub attempts: u16,
    /// How often a worker died or went silent with it.
    pub crashes: u16,
    /// How often in a row the way to its worker failed.
    pub misses: u16,
    /// What last went wrong.
    pub error: Option<ErrorNote>,
    /// That its answer could not be delivered so far, to a destination without lanes.
    pub undelivered: Option<Undelivered>,
}

/// An event that shows a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OccurrenceView {
    /// Which.
    pub id: OccurrenceId,
    /// Where.
    pub place: Option<Place>,
    /// Which content it shows.
    pub revision: u16,
    /// How its origin stands by it.
    pub standing: Standing,
}

/// Where a live request is, with what belongs to that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not yet due, or not yet final enough.
    Held,
    /// Ready for a worker.
    Queued,
    /// In a worker's hand.
    Leased {
        /// Whose.
        worker: WorkerName,
        /// Under which token.
        token: Token,
        /// Until when.
        until: UnixMs,
    },
    /// Answered, not yet final enough to be sent.
    Waiting,
    /// Answered, to be sent.
    Ready,
    /// On a slot.
    Assigned {
        /// Of which lane.
        lane: LaneName,
        /// Which slot.
        nonce: Nonce,
        /// How far its parcel is.
        stage: ParcelStage,
    },
    /// A dead letter.
    Dead {
        /// Since when.
        at: UnixMs,
        /// Whether it has an answer that could not be delivered.
        answered: bool,
    },
}

impl Phase {
    /// The phase without its data.
    pub fn kind(&self) -> StateKind {
        match self {
            Phase::Held => StateKind::Held,
            Phase::Queued => StateKind::Queued,
            Phase::Leased { .. } => StateKind::Leased,
            Phase::Waiting => StateKind::Waiting,
            Phase::Ready => StateKind::Ready,
            Phase::Assigned { stage: ParcelStage::Assigned, .. } => StateKind::Assigned,
            Phase::Assigned { stage: ParcelStage::Included, .. } => StateKind::Included,
            Phase::Assigned { stage: ParcelStage::Confirmed, .. } => StateKind::Confirmed,
            Phase::Dead { .. } => StateKind::Dead,
        }
    }
}

/// What is remembered of an ended request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptView {
    /// Which request.
    pub id: RequestId,
    /// Which generation of its id.
    pub generation: u32,
    /// How it ended.
    pub end: End,
    /// When.
    pub ended_at: UnixMs,
}

/// A page of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The requests.
    pub requests: Vec<RequestView>,
    /// Where the next page starts; `None` at the end. A page may hold fewer than its
    /// limit, even none, and still have a next one: a read looks at a bounded number
    /// of records.
    pub next: Option<Seq>,
}

/// How many requests of a route are in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// Which route.
    pub route: RouteName,
    /// Which state.
    pub state: StateKind,
    /// How many.
    pub requests: u64,
    /// When the oldest of them came in.
    pub oldest_at: UnixMs,
}

/// A page of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalPage {
    /// The entries, in order.
    pub entries: Vec<Entry>,
    /// The place after the newest entry.
    pub head: u64,
    /// Whether entries were asked for that are already forgotten: the reader has
    /// missed something and must read the state anew.
    pub reset: bool,
}

/// An answer that waits to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyDelivery {
    /// Which request.
    pub id: RequestId,
    /// Its place in the order of admission.
    pub seq: Seq,
    /// Its route.
    pub route: RouteName,
    /// Which generation of its id.
    pub generation: u32,
    /// Which content was answered, from 0.
    pub revision: u16,
    /// The token under which the answer was recorded; no other answer has it.
    pub answer: Token,
    /// The response to deliver.
    pub response: Payload,
    /// Whether it tells of a failure.
    pub failure: bool,
    /// How often it failed to be delivered.
    pub failures: u32,
    /// What was asked. A store leaves it out; a sender adds it where its chain wants it
    /// ([`Chain::wants_requests`](crate::sender::chain::Chain::wants_requests)).
    pub request: Option<Payload>,
    /// The trace context that it came with. A store leaves it out; a courier adds it where its
    /// sink wants it ([`Sink::wants_trace`](crate::outbox::Sink::wants_trace)).
    pub trace: Option<Box<str>>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteView {
    /// Its name.
    pub name: RouteName,
    /// Its policies.
    pub policy: RoutePolicy,
    /// Whether it hands out nothing.
    pub paused: bool,
}

/// A lane, as far as it is known without what is under way on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneOutline {
    /// Its name.
    pub name: LaneName,
    /// Whose deliveries it takes.
    pub destination: Destination,
    /// Whether it takes new parcels.
    pub status: LaneStatus,
}

/// A lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneView {
    /// Its name.
    pub name: LaneName,
    /// Whose deliveries it takes.
    pub destination: Destination,
    /// How many parcels may be under way.
    pub window: u32,
    /// The next slot; every slot below was given out, or used outside.
    pub next: Nonce,
    /// Every slot below is used up beyond any reorg. From here to `next`, a slot without
    /// a parcel was passed over, and may be a gap.
    pub settled: Nonce,
    /// Whether it takes new parcels.
    pub status: LaneStatus,
    /// How many parcels are not final.
    pub under_way: usize,
    /// The parcels, by slot; empty in a list of lanes.
    pub parcels: Vec<ParcelView>,
}

/// What a slot carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParcelView {
    /// Which slot.
    pub nonce: Nonce,
    /// The requests whose answers it carries; none for a gap fill.
    pub deliveries: Vec<RequestId>,
    /// The signed attempts, oldest first.
    pub attempts: Vec<SignedAttempt>,
    /// How far it is.
    pub stage: ParcelStage,
    /// Where it was found.
    pub block: Option<Block>,
    /// Whether it is to be cancelled, and what becomes of its deliveries then.
    pub cancel: Option<AfterCancel>,
    /// Whose answers it carries, if their route is sent on terms of its own. A store leaves it
    /// out; a sender adds it.
    pub route: Option<RouteName>,
}

/// An origin, and its clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginView {
    /// Its name.
    pub name: OriginName,
    /// Nothing below is admitted any longer.
    pub floor: Height,
    /// Its newest block, and when the store was told; `None` before the first tick.
    pub head: Option<Head>,
    /// How far its clock is behind the store's: since its newest block, or since the store was
    /// told of that, whichever is longer. What waits for the origin's height or time waits on.
    pub behind_ms: Option<u64>,
}

/// Who holds a seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatView {
    /// Who.
    pub holder: HolderName,
    /// Under which token.
    pub token: Token,
    /// Until when.
    pub until: UnixMs,
}

/// A group and a page of its items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its key.
    pub key: GroupKey,
    /// Whether it still gathers.
    pub state: GroupState,
    /// How many items came in time.
    pub items: u64,
    /// How many came late.
    pub late: u64,
    /// With how many items it seals itself, while it is open.
    pub seal_at_items: Option<u64>,
    /// When it is to be sealed, while it is open.
    pub seal_at: Option<Moment>,
    /// The page.
    pub page: Vec<ItemView>,
}

/// An item of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemView {
    /// Which.
    pub id: ItemId,
    /// Whether it came after the group was sealed.
    pub late: bool,
    /// The item.
    pub payload: Payload,
}

impl ListFilter {
    /// The id prefix as bytes, for a caller that has text of even length.
    pub fn with_id_prefix(mut self, prefix: impl Into<Bytes>) -> Self {
        self.id_prefix = prefix.into().to_vec();
        self
    }
}
