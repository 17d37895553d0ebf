//! The seam between the state machine and what keeps its state.
//!
//! The machine decides and holds the indexes; a disk keeps typed rows, and the bodies
//! that the machine does not hold. `RamDisk` keeps them in memory, for the memory
//! store and for exploring crashes; the SQLite store has a disk of its own. Loading a
//! machine from either is the same code.
//!
//! A disk's methods do not fail one by one: the first failure is kept, everything
//! after it does nothing, and the commit reports it. Until then nothing was promised.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::groups::GroupState;
use crate::inbox::{AnswerMark, End, Occurrence, OccurrenceNote, Occurrences, OriginNo, Receipt, RouteNo, State, When};
use crate::listener::{Cursor, Head};
use crate::outbox::LaneNo;
use crate::sender::{LaneStatus, Parcel};
use crate::store::journal::KeptEntry;
use crate::store::op::{GroupPlan, Seat};
use crate::store::policy::RoutePolicy;
use crate::words::{
    Destination, ErrorNote, GroupKey, Height, HolderName, ItemId, LaneName, ListenerName, Nonce, OccurrenceId,
    OrderKey, OriginName, Payload, RequestId, RouteName, Seq, Token, UnixMs,
};

/// A request as it was admitted; written once, and again only when superseded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestRow {
    pub(crate) seq: Seq,
    pub(crate) id: RequestId,
    pub(crate) route: RouteNo,
    pub(crate) admitted_at: UnixMs,
    pub(crate) head: RequestHead,
}

/// The rest of a request's row that is read at open.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct RequestHead {
    pub(crate) generation: u32,
    pub(crate) revision: u16,
    pub(crate) due: When,
    pub(crate) deadline: When,
    pub(crate) priority: u8,
    pub(crate) key: Option<Box<OrderKey>>,
    pub(crate) occurrence: Occurrence,
    /// Where the journal tells of this.
    pub(crate) entry: u64,
}

/// What is asked, and the trace that it came with: on disk only.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize)]
pub(crate) struct Body {
    pub(crate) payload: Payload,
    pub(crate) trace: Option<Box<str>>,
}

/// A request's changeable part, where it is more than its other rows imply.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) attempts: u16,
    pub(crate) crashes: u16,
    pub(crate) misses: u16,
    pub(crate) revision: u16,
    pub(crate) due: When,
    pub(crate) occurrences: Occurrences,
    pub(crate) state: State,
    pub(crate) error: Option<Box<ErrorNote>>,
    /// Where the journal last told of the request.
    pub(crate) last_entry: u64,
}

/// A recorded response; written once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct AnswerHead {
    pub(crate) token: Token,
    pub(crate) failure: bool,
    pub(crate) attempts: u16,
    pub(crate) crashes: u16,
    /// Where the journal tells of this.
    pub(crate) entry: u64,
}

impl AnswerHead {
    pub(crate) fn mark(&self, delivery: crate::outbox::Delivery) -> AnswerMark {
        AnswerMark { token: self.token, failure: self.failure, delivery, undelivered: None }
    }
}

/// The few, small records: one row each, whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Fixture {
    Route {
        no: RouteNo,
        name: RouteName,
        policy: RoutePolicy,
        paused: bool,
    },
    Origin {
        no: OriginNo,
        name: OriginName,
        floor: Height,
        head: Option<Head>,
    },
    Lane {
        no: LaneNo,
        name: LaneName,
        destination: Destination,
        window: u32,
        next: Nonce,
        settled: Nonce,
        status: LaneStatus,
    },
    Cursor {
        listener: ListenerName,
        cursor: Cursor,
    },
    Seat {
        seat: Seat,
        tenure: Tenure,
    },
}

impl Fixture {
    /// What the row is filed under.
    pub(crate) fn key(&self) -> (u8, String) {
        match self {
            Fixture::Route { name, .. } => (0, name.to_string()),
            Fixture::Origin { name, .. } => (1, name.to_string()),
            Fixture::Lane { name, .. } => (2, name.to_string()),
            Fixture::Cursor { listener, .. } => (3, listener.to_string()),
            Fixture::Seat { seat: Seat::Lane(name), .. } => (4, name.to_string()),
            Fixture::Seat { seat: Seat::Route(name), .. } => (5, name.to_string()),
            // No name has a space in it.
            Fixture::Seat { seat: Seat::Feed(route, origin), .. } => (5, format!("{route} {origin}")),
            Fixture::Seat { seat: Seat::Upkeep, .. } => (6, String::new()),
            Fixture::Seat { seat: Seat::Destination(name), .. } => (7, name.to_string()),
        }
    }
}

/// Who holds a seat; stays after its time ran out, so that its token stays the newest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Tenure {
    pub(crate) holder: HolderName,
    pub(crate) token: Token,
    pub(crate) until: UnixMs,
}

/// A receipt, or the note of an occurrence that came when its request had ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum ReceiptRow {
    Ended(Receipt),
    Seen(OccurrenceNote),
}

/// One key of a cold receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum ColdKey {
    Request(RequestId),
    Occurrence(OccurrenceId),
}

/// What a cold key leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum ColdReceipt {
    Ended { generation: u32, end: End, ended_at: UnixMs, blocks_until: UnixMs, kept_until: UnixMs, last_entry: u64 },
    Seen { id: RequestId, end: End, origin: Option<(OriginNo, Height)>, kept_until: UnixMs },
}

impl ColdReceipt {
    /// After this time it may be forgotten; never, if an origin's floor decides.
    pub(crate) fn until(&self) -> UnixMs {
        match self {
            ColdReceipt::Ended { blocks_until, kept_until, .. } => *blocks_until.max(kept_until),
            ColdReceipt::Seen { origin: Some(_), .. } => UnixMs::NEVER,
            ColdReceipt::Seen { kept_until, .. } => *kept_until,
        }
    }
}

/// A group's row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct GroupRow {
    pub(crate) key: GroupKey,
    pub(crate) state: GroupState,
    /// When it may be forgotten; known once its request has ended.
    pub(crate) forget_at: Option<UnixMs>,
    /// How it seals itself, while it is open.
    pub(crate) plan: Option<Box<GroupPlan>>,
}

/// An item's row, less its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct ItemRow {
    pub(crate) group: u64,
    pub(crate) id: ItemId,
    pub(crate) late: bool,
}

/// What keeps the machine's rows.
pub(crate) trait Disk {
    fn put_request(&mut self, row: &RequestRow, body: &Body);
    /// The request goes on with other content.
    fn replace_request(&mut self, row: &RequestRow, body: &Body);
    fn delete_request(&mut self, seq: Seq);
    fn body(&mut self, seq: Seq) -> Body;
    /// This body will be asked for soon: the disk may keep it at hand.
    fn expect_body(&mut self, _seq: Seq, _body: Body) {}
    fn put_mark(&mut self, seq: Seq, mark: &Mark);
    fn delete_mark(&mut self, seq: Seq);
    fn put_answer(&mut self, seq: Seq, head: &AnswerHead, response: &Payload);
    /// The request has ended; its answer goes with it.
    fn delete_answer(&mut self, seq: Seq);
    /// The request goes on without this answer, and may get another in the same commit.
    fn void_answer(&mut self, seq: Seq);
    fn response(&mut self, seq: Seq) -> Payload;
    fn put_parcel(&mut self, lane: LaneNo, nonce: Nonce, parcel: &Parcel);
    fn delete_parcel(&mut self, lane: LaneNo, nonce: Nonce);
    fn put_fixture(&mut self, fixture: &Fixture);
    fn put_group(&mut self, no: u64, row: &GroupRow);
    /// How an open group seals itself.
    fn group_plan(&mut self, no: u64) -> Option<Box<GroupPlan>>;
    fn delete_group(&mut self, no: u64);
    fn put_item(&mut self, no: u64, row: &ItemRow, payload: &Payload);
    fn delete_item(&mut self, no: u64);
    fn item_payload(&mut self, no: u64) -> Payload;
    fn put_receipt(&mut self, no: u64, row: &ReceiptRow);
    /// Forgets the receipts numbered below; they expired or were spilled.
    fn delete_receipts_below(&mut self, no: u64);
    fn spill(&mut self, cold: Vec<(ColdKey, ColdReceipt)>);
    fn cold(&mut self, key: &ColdKey) -> Option<ColdReceipt>;
    /// Whether a bounded part of tidying should go along with the next commit.
    fn wants_tidying(&self) -> bool {
        false
    }
    /// Forgets up to `limit` cold receipts whose time is over, if the disk can name them;
    /// answers how many.
    fn forget_cold(&mut self, _limit: usize) -> usize {
        0
    }
    /// Does a bounded part of forgetting the cold receipts that `keep` does not want.
    fn tidy_cold(&mut self, now: UnixMs, keep: &dyn Fn(&ColdReceipt) -> bool);
    /// Appends the commit's entries, and the numbers that it used up.
    fn append_journal(&mut self, entries: &[KeptEntry], high_water: &HighWater);
    /// Forgets entries before this place.
    fn trim_journal(&mut self, floor: u64);
    /// Up to `limit` entries from this place on; nothing outside `floor..head` is asked for.
    fn journal(&mut self, from: u64, limit: usize) -> Vec<KeptEntry>;
}

/// All rows, read once when a machine is loaded.
pub(crate) trait Rows {
    type Error;
    fn fixtures(&self, each: &mut dyn FnMut(Fixture)) -> Result<(), Self::Error>;
    fn requests(&self, each: &mut dyn FnMut(RequestRow)) -> Result<(), Self::Error>;
    fn answers(&self, each: &mut dyn FnMut(Seq, AnswerHead)) -> Result<(), Self::Error>;
    fn marks(&self, each: &mut dyn FnMut(Seq, Mark)) -> Result<(), Self::Error>;
    fn parcels(&self, each: &mut dyn FnMut(LaneNo, Nonce, Parcel)) -> Result<(), Self::Error>;
    fn groups(&self, each: &mut dyn FnMut(u64, GroupRow)) -> Result<(), Self::Error>;
    fn items(&self, each: &mut dyn FnMut(u64, ItemRow)) -> Result<(), Self::Error>;
    fn receipts(&self, each: &mut dyn FnMut(u64, ReceiptRow)) -> Result<(), Self::Error>;
    /// The first entry that the journal still has; 0 if it has none.
    fn first_entry(&self) -> Result<u64, Self::Error>;
    /// The numbers after the highest ever used, where rows alone do not tell.
    fn high_water(&self) -> Result<HighWater, Self::Error>;
}

/// Numbers that must not be used again although their rows are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct HighWater {
    pub(crate) seq: u64,
    pub(crate) entry: u64,
    pub(crate) receipt: u64,
    pub(crate) item: u64,
    pub(crate) group: u64,
}

/// A disk in memory: what a crash would leave if every commit were kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RamDisk {
    pub(crate) epoch: u64,
    pub(crate) high_water: HighWater,
    pub(in crate::store) requests: BTreeMap<Seq, (RequestRow, Body)>,
    pub(in crate::store) answers: BTreeMap<Seq, (AnswerHead, Payload)>,
    pub(in crate::store) marks: BTreeMap<Seq, Mark>,
    pub(in crate::store) parcels: BTreeMap<(LaneNo, Nonce), Parcel>,
    pub(in crate::store) fixtures: BTreeMap<(u8, String), Fixture>,
    pub(in crate::store) groups: BTreeMap<u64, GroupRow>,
    pub(in crate::store) items: BTreeMap<u64, (ItemRow, Payload)>,
    pub(in crate::store) receipts: BTreeMap<u64, ReceiptRow>,
    pub(in crate::store) cold: BTreeMap<ColdKey, ColdReceipt>,
    pub(in crate::store) journal: BTreeMap<u64, KeptEntry>,
}

impl RamDisk {
    /// An empty disk in its first epoch.
    pub(crate) fn new(epoch: u64) -> RamDisk {
        RamDisk { epoch, ..RamDisk::default() }
    }
}

impl Disk for RamDisk {
    fn put_request(&mut self, row: &RequestRow, body: &Body) {
        self.requests.insert(row.seq, (row.clone(), body.clone()));
    }

    fn replace_request(&mut self, row: &RequestRow, body: &Body) {
        self.put_request(row, body);
    }

    fn delete_request(&mut self, seq: Seq) {
        self.requests.remove(&seq);
    }

    fn body(&mut self, seq: Seq) -> Body {
        self.requests.get(&seq).map(|(_, body)| body.clone()).unwrap_or_default()
    }

    fn put_mark(&mut self, seq: Seq, mark: &Mark) {
        self.marks.insert(seq, mark.clone());
    }

    fn delete_mark(&mut self, seq: Seq) {
        self.marks.remove(&seq);
    }

    fn put_answer(&mut self, seq: Seq, head: &AnswerHead, response: &Payload) {
        self.answers.insert(seq, (head.clone(), response.clone()));
    }

    fn delete_answer(&mut self, seq: Seq) {
        self.answers.remove(&seq);
    }

    fn void_answer(&mut self, seq: Seq) {
        self.answers.remove(&seq);
    }

    fn response(&mut self, seq: Seq) -> Payload {
        self.answers.get(&seq).map(|(_, response)| response.clone()).unwrap_or_default()
    }

    fn put_parcel(&mut self, lane: LaneNo, nonce: Nonce, parcel: &Parcel) {
        self.parcels.insert((lane, nonce), parcel.clone());
    }

    fn delete_parcel(&mut self, lane: LaneNo, nonce: Nonce) {
        self.parcels.remove(&(lane, nonce));
    }

    fn put_fixture(&mut self, fixture: &Fixture) {
        self.fixtures.insert(fixture.key(), fixture.clone());
    }

    fn put_group(&mut self, no: u64, row: &GroupRow) {
        self.groups.insert(no, row.clone());
    }

    fn group_plan(&mut self, no: u64) -> Option<Box<GroupPlan>> {
        self.groups.get(&no).and_then(|row| row.plan.clone())
    }

    fn delete_group(&mut self, no: u64) {
        self.groups.remove(&no);
    }

    fn put_item(&mut self, no: u64, row: &ItemRow, payload: &Payload) {
        self.items.insert(no, (*row, payload.clone()));
    }

    fn delete_item(&mut self, no: u64) {
        self.items.remove(&no);
    }

    fn item_payload(&mut self, no: u64) -> Payload {
        self.items.get(&no).map(|(_, payload)| payload.clone()).unwrap_or_default()
    }

    fn put_receipt(&mut self, no: u64, row: &ReceiptRow) {
        self.receipts.insert(no, row.clone());
    }

    fn delete_receipts_below(&mut self, no: u64) {
        self.receipts = self.receipts.split_off(&no);
    }

    fn spill(&mut self, cold: Vec<(ColdKey, ColdReceipt)>) {
        self.cold.extend(cold);
    }

    fn cold(&mut self, key: &ColdKey) -> Option<ColdReceipt> {
        self.cold.get(key).cloned()
    }

    fn tidy_cold(&mut self, now: UnixMs, keep: &dyn Fn(&ColdReceipt) -> bool) {
        self.cold.retain(|_, cold| cold.until() > now && keep(cold));
    }

    fn append_journal(&mut self, entries: &[KeptEntry], high_water: &HighWater) {
        self.high_water = *high_water;
        self.journal.extend(entries.iter().map(|entry| (entry.position, entry.clone())));
    }

    fn trim_journal(&mut self, floor: u64) {
        self.journal = self.journal.split_off(&floor);
    }

    fn journal(&mut self, from: u64, limit: usize) -> Vec<KeptEntry> {
        self.journal.range(from..).take(limit).map(|(_, entry)| entry.clone()).collect()
    }
}

impl Rows for RamDisk {
    type Error = std::convert::Infallible;

    fn fixtures(&self, each: &mut dyn FnMut(Fixture)) -> Result<(), Self::Error> {
        self.fixtures.values().cloned().for_each(each);
        Ok(())
    }

    fn requests(&self, each: &mut dyn FnMut(RequestRow)) -> Result<(), Self::Error> {
        self.requests.values().for_each(|(row, _)| each(row.clone()));
        Ok(())
    }

    fn answers(&self, each: &mut dyn FnMut(Seq, AnswerHead)) -> Result<(), Self::Error> {
        self.answers.iter().for_each(|(seq, (head, _))| each(*seq, head.clone()));
        Ok(())
    }

    fn marks(&self, each: &mut dyn FnMut(Seq, Mark)) -> Result<(), Self::Error> {
        self.marks.iter().for_each(|(seq, mark)| each(*seq, mark.clone()));
        Ok(())
    }

    fn parcels(&self, each: &mut dyn FnMut(LaneNo, Nonce, Parcel)) -> Result<(), Self::Error> {
        self.parcels.iter().for_each(|((lane, nonce), parcel)| each(*lane, *nonce, parcel.clone()));
        Ok(())
    }

    fn groups(&self, each: &mut dyn FnMut(u64, GroupRow)) -> Result<(), Self::Error> {
        self.groups.iter().for_each(|(no, row)| each(*no, row.clone()));
        Ok(())
    }

    fn items(&self, each: &mut dyn FnMut(u64, ItemRow)) -> Result<(), Self::Error> {
        self.items.iter().for_each(|(no, (row, _))| each(*no, *row));
        Ok(())
    }

    fn receipts(&self, each: &mut dyn FnMut(u64, ReceiptRow)) -> Result<(), Self::Error> {
        self.receipts.iter().for_each(|(no, row)| each(*no, row.clone()));
        Ok(())
    }

    fn first_entry(&self) -> Result<u64, Self::Error> {
        Ok(self.journal.keys().next().copied().unwrap_or(0))
    }

    fn high_water(&self) -> Result<HighWater, Self::Error> {
        Ok(self.high_water)
    }
}
