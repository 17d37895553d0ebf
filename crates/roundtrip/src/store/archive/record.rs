//! A store's content, record by record, the same whatever store holds it.
//!
//! What a start works out anew is left out, so that two stores with the same future have the
//! same records: whether gates are open, in how many parts receipts lie, in which order rows were
//! written. What a caller can ever be told is in.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::inbox::{Occurrences, Request, State};
use crate::outbox::{Delivery, LaneNo};
use crate::sender::Parcel;
use crate::store::disk::{Body, ColdKey, ColdReceipt, Fixture, GroupRow, HighWater, ItemRow};
use crate::store::journal::KeptEntry;
use crate::words::{Nonce, Payload};

/// A kind of record. A copy goes through them in this order: what is referred to by many
/// comes first, so that whoever checks need not remember the many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// The numbers that must not be used again.
    Numbers,
    /// Routes, origins, lanes, cursors, seats.
    Fixtures,
    /// The entries of the journal.
    Journal,
    /// What the slots of lanes carry.
    Parcels,
    /// Live requests with what they ask and what was answered.
    Requests,
    /// Groups.
    Groups,
    /// Items of groups.
    Items,
    /// What is left of ended requests.
    Receipts,
}

impl Kind {
    /// All kinds, in the order of a copy.
    pub const ALL: [Kind; 8] = [
        Kind::Numbers,
        Kind::Fixtures,
        Kind::Journal,
        Kind::Parcels,
        Kind::Requests,
        Kind::Groups,
        Kind::Items,
        Kind::Receipts,
    ];

    /// The kind that a copy goes on to.
    pub(crate) fn next(self) -> Option<Kind> {
        Kind::ALL.get(self as usize + 1).copied()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Numbers => "numbers",
            Kind::Fixtures => "fixtures",
            Kind::Journal => "journal entries",
            Kind::Parcels => "parcels",
            Kind::Requests => "requests",
            Kind::Groups => "groups",
            Kind::Items => "items",
            Kind::Receipts => "receipts",
        })
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Record {
    Numbers(Numbers),
    Fixture(Fixture),
    Entry(KeptEntry),
    Parcel { lane: LaneNo, nonce: Nonce, parcel: Parcel },
    Request(Box<Whole>),
    Group { no: u64, row: GroupRow },
    Item { no: u64, row: ItemRow, payload: Payload },
    Receipt { key: ColdKey, receipt: ColdReceipt },
}

/// Numbers that must not be used again. The next start takes a later epoch, so that no token
/// repeats, wherever it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Numbers {
    pub(crate) epoch: u64,
    pub(crate) high: HighWater,
}

impl Numbers {
    /// The numbers of a store that wrote these; one that has used none begins at one.
    pub(crate) fn new(epoch: u64, high: HighWater) -> Numbers {
        let first = HighWater { seq: 1, entry: 1, receipt: 1, item: 1, group: 1 };
        Numbers { epoch, high: if high == HighWater::default() { first } else { high } }
    }
}

/// A live request with all that a store keeps of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Whole {
    pub(crate) request: Request,
    pub(crate) body: Body,
    pub(crate) response: Option<Payload>,
}

impl Record {
    /// A live request, less what the next start lets gates decide anew.
    pub(crate) fn request(mut request: Request, body: Body, response: Option<Payload>) -> Record {
        match &mut request.state {
            State::Queued => request.state = State::Held,
            State::Answered(answer) if answer.delivery == Delivery::Ready => answer.delivery = Delivery::Waiting,
            State::Held | State::Leased(_) | State::Answered(_) | State::Dead(_) => {}
        }
        if let Occurrences::Many(many) = &request.occurrences
            && let [one] = many[..]
        {
            request.occurrences = Occurrences::One(one);
        }
        request.rows = Default::default();
        Record::Request(Box::new(Whole { request, body, response }))
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Record::Numbers(_) => Kind::Numbers,
            Record::Fixture(_) => Kind::Fixtures,
            Record::Entry(_) => Kind::Journal,
            Record::Parcel { .. } => Kind::Parcels,
            Record::Request(_) => Kind::Requests,
            Record::Group { .. } => Kind::Groups,
            Record::Item { .. } => Kind::Items,
            Record::Receipt { .. } => Kind::Receipts,
        }
    }

    /// About how many bytes it takes, for bounding pages.
    pub(crate) fn bytes(&self) -> usize {
        let payload = match self {
            Record::Request(whole) => {
                whole.body.payload.bytes.len() + whole.response.as_ref().map_or(0, |response| response.bytes.len())
            }
            Record::Item { payload, .. } => payload.bytes.len(),
            Record::Parcel { parcel, .. } => parcel.attempts.iter().map(|attempt| attempt.bytes.len()).sum(),
            Record::Group { row, .. } => row.plan.as_ref().map_or(0, |plan| plan.request.payload.bytes.len()),
            Record::Numbers(_) | Record::Fixture(_) | Record::Entry(_) | Record::Receipt { .. } => 0,
        };
        payload + size_of::<Record>()
    }
}

/// What the record is called when something is wrong with it.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Record::Numbers(_) => f.write_str("the numbers"),
            Record::Fixture(fixture) => write_fixture(f, fixture),
            Record::Entry(entry) => write!(f, "journal entry {}", entry.position),
            Record::Parcel { lane, nonce, .. } => write!(f, "the parcel on slot {} of lane number {}", nonce.0, lane.0),
            Record::Request(whole) => write!(f, "request {} (number {})", whole.request.id, whole.request.seq.0),
            Record::Group { row, .. } => write!(f, "group {}", row.key),
            Record::Item { no, row, .. } => write!(f, "item {} (number {no})", row.id),
            Record::Receipt { key: ColdKey::Request(id), .. } => write!(f, "the receipt of request {id}"),
            Record::Receipt { key: ColdKey::Occurrence(id), .. } => write!(f, "the receipt of occurrence {id}"),
        }
    }
}

fn write_fixture(f: &mut fmt::Formatter<'_>, fixture: &Fixture) -> fmt::Result {
    match fixture {
        Fixture::Route { name, .. } => write!(f, "route {name}"),
        Fixture::Origin { name, .. } => write!(f, "origin {name}"),
        Fixture::Lane { name, .. } => write!(f, "lane {name}"),
        Fixture::Cursor { listener, .. } => write!(f, "the cursor of {listener}"),
        Fixture::Seat { seat, .. } => write!(f, "the seat {seat:?}"),
    }
}
