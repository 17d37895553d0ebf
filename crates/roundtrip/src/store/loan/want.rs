//! What can be asked of whoever keeps the rows, and what comes.
//!
//! A want says which rows and how many, in the order in which those are to be picked of
//! which there are too many; rows may come in any order, and some more than once in a
//! flight. Rows that are not there are left out.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::fetch::Loaded;
use super::record::Damaged;
use crate::inbox::{OriginNo, RouteNo, StateKind, When};
use crate::outbox::LaneNo;
use crate::sender::Parcel;
use crate::store::disk::{Body, ColdKey, ColdReceipt, GroupRow, ItemRow};
use crate::store::journal::KeptEntry;
use crate::store::machine::Pace;
use crate::words::{ClaimId, GroupKey, Height, Nonce, OccurrenceId, OrderKey, Payload, RequestId, Seq, UnixMs};

/// Ranges of moments, from the first to the last of each, both of them included.
pub(in crate::store) type Reached = Vec<(When, When)>;

/// One question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) enum Want {
    /// All live requests with these ids, or with an id that one has which shows one of these
    /// occurrences or is a delivery of one of these slots. Brings `Live`.
    Named { ids: BTreeSet<RequestId>, occurrences: BTreeSet<OccurrenceId>, slots: BTreeSet<(LaneNo, Nonce)> },
    /// Those that wait behind another with one of these ids. Brings `Live`.
    Behind(BTreeSet<RequestId>),
    /// The bodies of all live requests with these ids. Brings `Bodies`.
    Bodies(BTreeSet<RequestId>),
    /// The bodies of these, in this order, until their payloads together are longer than so
    /// many bytes. Brings `Bodies`.
    BodiesOf { seqs: Vec<Seq>, bytes: usize },
    /// What was answered to live requests with these ids. Brings `Responses`.
    Responses(BTreeSet<RequestId>),
    /// Receipts of these. Brings `Receipts`.
    Ended(BTreeSet<RequestId>),
    /// Receipts of these. Brings `Receipts`.
    Seen(BTreeSet<OccurrenceId>),
    /// Groups that refer to these requests, and are not yet to be forgotten. Brings `Groups`.
    GroupsOf(BTreeSet<RequestId>),
    /// The first of a route by turn and number, with bodies: from the turn `from` on, and
    /// then those before it; up to so many of either, none whose deadline is reached, and
    /// until their payloads together are as long as `bytes`. Brings `Live`.
    Turns { route: RouteNo, requests: usize, reached: Reached, bytes: usize, from: u64 },
    /// The first of a route by turn and number that come after this one, with bodies: up to so many, none whose deadline
    /// is reached, and until their payloads together are as long as `bytes`. Brings `Live`.
    Next { route: RouteNo, after: (u64, Seq), requests: usize, reached: Reached, bytes: usize },
    /// What workers hold under these claims, with bodies. Brings `Live`.
    Claimed(BTreeSet<ClaimId>),
    /// Those whose due moment is reached: the first of each range. Brings `Live`.
    Due { reached: Reached, limit: usize },
    /// Those whose deadline is reached: the first of each range. Brings `Live`.
    Overdue { reached: Reached, limit: usize },
    /// Those whose lease has run out, the earliest first. Brings `Live`.
    Silent { now: UnixMs, limit: usize },
    /// All whose lease has not run out. Brings `Live`.
    Leased { now: UnixMs },
    /// Dead letters that are to be forgotten, the earliest first. Brings `Live`.
    Dead { now: UnixMs, limit: usize },
    /// Groups whose timer is reached: the first of each range. Brings `Groups`.
    Fired { reached: Reached, limit: usize },
    /// Groups that are to be forgotten, the earliest first. Brings `Groups`.
    Outlived { now: UnixMs, limit: usize },
    /// Receipts of ids whose time is over. Brings `Expired`.
    ExpiredIds { now: UnixMs, limit: usize },
    /// Receipts of occurrences whose time is over, or whose height is below their origin's
    /// floor. Brings `Expired`.
    ExpiredOccurrences { now: UnixMs, limit: usize, floors: Vec<(OriginNo, Height)> },
    /// All live requests of these routes. Brings `Live`.
    Routes(BTreeSet<RouteNo>),
    /// All parcels of these lanes. Brings `Parcels`.
    Lanes(BTreeSet<LaneNo>),
    /// How many parcels are under way on these lanes. Brings `UnderWay`.
    UnderWay(BTreeSet<LaneNo>),
    /// The parcels on these slots. Brings `Parcels`.
    Parcels(BTreeSet<(LaneNo, Nonce)>),
    /// Groups by key. Brings `Groups`.
    Groups(BTreeSet<GroupKey>),
    /// The newest so many items of each of these groups. Brings `Items`.
    Items(Vec<(u64, usize)>),
    /// Of each key of a route those that workers hold, and the first so many by number that
    /// are held or queued and not behind another of their id. Brings `Live`.
    Lines(Vec<(RouteNo, OrderKey, usize)>),
    /// How many live requests each route has in each state. Brings `Counted`.
    Counted,
    /// What routes handed out lately. Brings `Paces`.
    Paces,
    /// The first live requests by number after one, of these routes in these states. Brings `Live`.
    Page { of: Vec<(RouteNo, StateKind)>, after: Option<Seq>, limit: usize },
    /// The first by number after one that are ready, of these routes, with responses, until
    /// those together are longer than `bytes`. Brings `Live`.
    Ready { routes: Vec<RouteNo>, after: Option<Seq>, limit: usize, bytes: usize },
    /// The journal's entry at a position, and those before it of the same subject. Brings `Entries`.
    Chain { last: u64, limit: usize },
    /// The journal's entries from a position on. Brings `Entries`.
    Entries { from: u64, limit: usize },
    /// A group's items by number, less the first so many, until their payloads together are
    /// longer than `bytes`. Brings `ItemPayloads`.
    ItemPayloads { group: GroupKey, skip: u64, limit: usize, bytes: usize },
    /// How many live requests each route has in each state that has some. Brings `Counts`.
    Counts,
}

/// The rows that one want brought.
#[derive(Debug)]
pub(in crate::store) enum Found {
    Live(Vec<LiveRow>),
    Bodies(Vec<(Seq, Body)>),
    Responses(Vec<(Seq, Payload)>),
    Receipts(Vec<(ColdKey, ColdReceipt)>),
    Expired(Vec<ColdKey>),
    Parcels(Vec<((LaneNo, Nonce), Parcel)>),
    /// A lane on which there are none may be left out.
    UnderWay(Vec<(LaneNo, u64)>),
    /// Groups by number, and when `fire` is to look at each; never, if it need not.
    Groups(Vec<(u64, GroupRow, When)>),
    Items(Vec<(u64, ItemRow)>),
    ItemPayloads(Vec<(u64, Payload)>),
    Entries(Vec<KeptEntry>),
    Counted(Vec<((RouteNo, StateKind), u64)>),
    /// A pace, and the newest epoch at the time of writing: it holds only in that one.
    Paces(Vec<(RouteNo, u64, Pace)>),
    Counts(Vec<CountedRow>),
}

impl Found {
    /// The live requests, if that is what was asked for.
    pub(super) fn live(&self) -> &[LiveRow] {
        match self {
            Found::Live(rows) => rows,
            _ => &[],
        }
    }
}

/// A live request.
#[derive(Debug)]
pub(in crate::store) struct LiveRow {
    pub(in crate::store) loaded: Arc<Loaded>,
    /// Its body, where a want says so.
    pub(in crate::store) body: Option<Body>,
    /// What was answered to it, where a want says so.
    pub(in crate::store) response: Option<Payload>,
    /// Whether there is no receipt of its id, nor of what shows it, for sure.
    pub(in crate::store) is_news: bool,
}

/// How many live requests a route has in a state, and when the oldest of them came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct CountedRow {
    pub(in crate::store) route: RouteNo,
    pub(in crate::store) state: StateKind,
    pub(in crate::store) requests: u64,
    pub(in crate::store) oldest_at: UnixMs,
}

/// Whoever keeps the rows, within one transaction or snapshot.
pub(in crate::store) trait Lender: Send {
    /// Why nothing came.
    type Error: From<Damaged> + Send;

    /// Brings what each of these wants asks for, in the order of the wants.
    fn fly(&mut self, wants: &[Want]) -> impl Future<Output = Result<Vec<Found>, Self::Error>> + Send;
}
