//! The store under exploration: the real machine on a disk in memory, committed as
//! the memory store does it, and what makes two of them the same state.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::super::{Group, Machine, Slot, next_epoch};
use super::content_of;
use crate::inbox::{End, Request, RowFlags, State, StateKind, When};
use crate::listener::{Cursor, Origin};
use crate::sender::Lane;
use crate::store::Options;
use crate::store::disk::{ColdReceipt, Disk, RamDisk, Tenure};
use crate::store::op::{Op, Outcome, Seat};
use crate::words::{GroupKey, ListenerName, OccurrenceId, Payload, RequestId, Seq, UnixMs};

/// A start takes at least so long, as the epoch's rule assumes.
const START_MS: u64 = 1000;

/// No journal is kept: it differs by path and decides nothing.
const OPTIONS: Options = Options { journal_entries: 0, spill_receipts: 1 << 14, lease_write_ms: 20 };

/// The machine and its disk.
#[derive(Clone)]
pub(super) struct Embedded {
    pub(super) machine: Machine,
    pub(super) disk: RamDisk,
    pub(super) now: UnixMs,
}

impl Embedded {
    pub(super) fn new() -> Embedded {
        let now = UnixMs(1_000_000);
        let epoch = next_epoch(0, now);
        Embedded { machine: Machine::new(OPTIONS, epoch), disk: RamDisk::new(epoch), now }
    }

    /// One operation, one commit.
    pub(super) fn commit(&mut self, op: Op) -> Outcome {
        let forgettable = op.may_be_forgotten();
        self.machine.tick(&mut self.disk, self.now);
        let outcome = self.machine.apply(&mut self.disk, op);
        if !forgettable {
            self.machine.flush(&mut self.disk);
            self.renumber_journal();
        }
        self.machine.take_news();
        outcome
    }

    /// Journal places restart with every commit, so that two ways to the same state
    /// lead to one state.
    fn renumber_journal(&mut self) {
        self.machine.high.entry = 1;
        self.machine.high_flushed.entry = 1;
        self.disk.high_water.entry = 1;
    }

    /// The process dies and starts again with what was committed.
    pub(super) fn crash(&mut self) {
        self.now = self.now.plus(START_MS);
        self.disk.epoch = next_epoch(self.disk.epoch, self.now);
        let Ok(machine) = Machine::load(OPTIONS, &self.disk, self.disk.epoch, self.now);
        self.machine = machine;
    }

    /// The process starts again on an older disk.
    pub(super) fn restore(&mut self, older: RamDisk) {
        self.disk = older;
        self.crash();
    }

    pub(super) fn kind(&self, id: &RequestId) -> Option<StateKind> {
        self.machine.find_request(id).map(|slot| self.machine.kind_at(slot))
    }

    pub(super) fn request(&self, id: &RequestId) -> Option<&Request> {
        self.machine.find_request(id).map(|slot| self.machine.requests.get(slot))
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.machine.requests.iter()
    }

    /// How an id ended last, and in which generation.
    pub(super) fn ended(&self, id: &RequestId) -> Option<(End, u32)> {
        let mut disk = self.disk.clone();
        match self.machine.receipt_of(&mut disk, id)? {
            ColdReceipt::Ended { end, generation, .. } => Some((end, generation)),
            ColdReceipt::Seen { .. } => None,
        }
    }

    /// Whether an occurrence is live or remembered.
    pub(super) fn knows(&self, id: &OccurrenceId) -> bool {
        let mut disk = self.disk.clone();
        self.machine.find_occurrence(id).is_some() || self.machine.note_of(&mut disk, id).is_some()
    }

    /// Whether an occurrence waits behind a live request with the same id.
    pub(super) fn waits(&self, id: &OccurrenceId) -> bool {
        self.machine.find_occurrence(id).is_some_and(|slot| self.machine.requests.get(slot).behind)
    }

    pub(super) fn payload(&self, seq: Seq) -> Payload {
        self.disk.clone().body(seq).payload
    }

    pub(super) fn response(&self, seq: Seq) -> Payload {
        self.disk.clone().response(seq)
    }

    /// The content of each request's response; nothing sensible where there is none.
    pub(super) fn responses(&self, requests: &[Request]) -> Vec<u8> {
        if !requests.iter().any(|request| matches!(request.state, State::Answered(_))) {
            return vec![u8::MAX; requests.len()];
        }
        let mut disk = self.disk.clone();
        requests.iter().map(|request| content_of(&disk.response(request.seq))).collect()
    }

    pub(super) fn cursor(&self, listener: &ListenerName) -> Option<Cursor> {
        self.machine.cursors.get(listener).copied()
    }

    pub(super) fn lane(&self) -> &Lane {
        &self.machine.lanes[0]
    }

    /// What a crash now would leave is all that the machine knows, indexes included.
    /// Leases that no commit has written are the one exception, so a machine that is
    /// ahead of its disk is not compared.
    pub(super) fn reloads_as_it_is(&self) -> bool {
        if self.machine.is_dirty() || self.machine.now != self.now {
            return true;
        }
        let Ok(reloaded) = Machine::load(OPTIONS, &self.disk, self.disk.epoch, self.now);
        Image::of(&reloaded) == Image::of(&self.machine)
    }
}

/// All that a machine knows, less where it keeps it.
#[derive(PartialEq, Eq)]
struct Image {
    requests: Vec<Request>,
    lanes: Vec<Lane>,
    cursors: Vec<(ListenerName, Cursor)>,
    seats: Vec<(Seat, Tenure)>,
    receipts: String,
    lists: Vec<Vec<Seq>>,
    turns: Vec<Vec<(u64, Seq)>>,
    times: [Vec<(UnixMs, Seq)>; 2],
    moments: [Vec<(When, Seq)>; 2],
    ready: Vec<Seq>,
    claims: Vec<Seq>,
    groups: Vec<String>,
    origins: Vec<Origin>,
}

impl Image {
    fn of(machine: &Machine) -> Image {
        let lists = machine.routes.iter().flat_map(|route| &route.lists);
        let times = [&machine.leases, &machine.dead];
        let moments = [&machine.due, &machine.deadlines];
        Image {
            requests: bare_requests(machine),
            lanes: machine.lanes.clone(),
            cursors: machine.cursors.clone().into_iter().collect(),
            seats: machine.seats.clone().into_iter().collect(),
            receipts: format!("{:?}", machine.receipts),
            lists: lists.map(|list| list.keys().copied().collect()).collect(),
            turns: machine.routes.iter().map(|route| route.ranked.keys().copied().collect()).collect(),
            times: times.map(|index| index.keys().copied().collect()),
            moments: moments.map(|index| index.keys().copied().collect()),
            ready: machine.outbox.values().flat_map(|ready| ready.keys().copied()).collect(),
            claims: machine.claims.keys().map(|(_, seq)| *seq).collect(),
            groups: machine.groups.iter().map(bare_group).collect(),
            origins: machine.origins.clone(),
        }
    }
}

/// A group, without the time until which a full route makes its seal wait.
fn bare_group((key, group): (&GroupKey, &Group)) -> String {
    let (state, plan, waits) = (group.state, group.plan, group.timer.is_some());
    format!("{key} {state:?} {plan:?} {waits} {:?}", group.order)
}

/// The live requests in order, without what only places them.
fn bare_requests(machine: &Machine) -> Vec<Request> {
    let rows = RowFlags { has_mark: false, dirty: false, as_admitted: false };
    let mut all: Vec<Request> =
        machine.requests.iter().map(|request| Request { last_entry: 0, rows, ..request.clone() }).collect();
    for request in &mut all {
        // One occurrence is one occurrence, however it is kept.
        if let [one] = request.occurrences.as_slice() {
            request.occurrences = crate::inbox::Occurrences::One(*one);
        }
    }
    all.sort_by_key(|request| request.seq);
    all
}

/// What a machine has beyond its disk.
#[derive(PartialEq, Eq, Hash)]
struct Identity {
    tokens: u64,
    times: [UnixMs; 2],
    ahead: Vec<Request>,
    fresh: Vec<Seq>,
    timers: Vec<(When, u64)>,
}

impl Embedded {
    /// What tells two states apart: the disk, and what the machine has beyond it.
    fn identity(&self) -> Identity {
        let mut ahead: Vec<Request> = self.requests().map(|r| Request { last_entry: 0, ..r.clone() }).collect();
        ahead.sort_by_key(|request| request.seq);
        let fresh = ahead.iter().map(|request| request.seq).filter(|seq| {
            let slots = self.machine.fresh_leases.iter();
            let live =
                |slot: &Slot| self.requests().any(|r| self.machine.find_request(&r.id) == Some(*slot) && r.seq == *seq);
            slots.filter(|slot| live(slot)).count() > 0
        });
        let fresh = fresh.collect();
        let timers = self.machine.timers.keys().copied().collect();
        Identity { tokens: self.machine.tokens, times: [self.machine.now, self.now], ahead, fresh, timers }
    }
}

impl Hash for Embedded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.disk.hash(state);
        self.identity().hash(state);
    }
}

impl PartialEq for Embedded {
    fn eq(&self, other: &Embedded) -> bool {
        self.disk == other.disk && self.identity() == other.identity()
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests: Vec<_> = self.requests().map(|r| (r.seq.0, &r.state, r.standing(), r.revision)).collect();
        let lanes = self.machine.lanes.iter().map(|lane| (lane.next.0, &lane.status, &lane.parcels));
        f.debug_struct("Embedded")
            .field("epoch", &self.disk.epoch)
            .field("requests", &requests)
            .field("lanes", &lanes.collect::<Vec<_>>())
            .field("cursors", &self.machine.cursors)
            .finish_non_exhaustive()
    }
}
