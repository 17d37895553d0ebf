//! Requests that wait behind a live one with the same id: they have other content, or
//! their route makes a generation of its own of every repeat.
//!
//! A cursor passes only what is stored, and a live request's content changes only by
//! its lead's `supersede`; so what an origin shows meanwhile is stored as a request of
//! its own that is handed out to nobody. The lead's supersede takes its content over;
//! if the live one ends first, the next in line takes its place.

use super::{Machine, Slot};
use crate::inbox::{End, Occurrence, OccurrenceNote, OriginMark};
use crate::store::disk::{ColdReceipt, Disk};
use crate::store::journal::Event;
use crate::store::op::NewRequest;
use crate::store::policy::OnDuplicate;
use crate::words::{OccurrenceId, Payload, RequestId, Seq, UnixMs};

impl Machine {
    /// Those that wait behind this id, in the order of their coming.
    fn line(&self, id: RequestId) -> impl DoubleEndedIterator<Item = Slot> {
        self.behind.range((id, Seq(0))..=(id, Seq(u64::MAX))).map(|(_, slot)| *slot)
    }

    /// The live request, or one that waits behind it, that asks for the same.
    pub(super) fn with_content<D: Disk>(&self, disk: &mut D, live: Slot, new: &NewRequest) -> Option<Slot> {
        let route = self.route(self.requests.get(live).route);
        let (identity, name) = (&route.policy.identity, &route.name);
        let same = |payload: &Payload| identity.same_content(name, payload, &new.payload);
        let mut all = std::iter::once(live).chain(self.line(new.id));
        all.find(|&slot| same(&disk.body(self.requests.get(slot).seq).payload))
    }

    /// Stores a request behind the live one; answers which generation it is.
    pub(super) fn wait_behind<D: Disk>(
        &mut self,
        disk: &mut D,
        live: Slot,
        new: &NewRequest,
        origin: OriginMark,
    ) -> u32 {
        let last = self.line(new.id).next_back().unwrap_or(live);
        let generation = self.requests.get(last).generation.saturating_add(1);
        self.insert(disk, new.clone(), origin, generation);
        generation
    }

    /// Lets the next in line take the place of a request that has ended, unless the
    /// route's horizon blocks its id now: then it was a repeat. A generation of its own
    /// is never blocked.
    pub(super) fn move_up<D: Disk>(&mut self, disk: &mut D, id: RequestId) {
        loop {
            let Some(slot) = self.line(id).next() else { return };
            let policy = &self.route(self.requests.get(slot).route).policy;
            let can_be_blocked = policy.on_duplicate != OnDuplicate::NewGeneration;
            match self.receipt_of(disk, &id).filter(|_| can_be_blocked) {
                Some(ColdReceipt::Ended { end, blocks_until, kept_until, .. }) if blocks_until > self.now => {
                    self.end_repeat(disk, slot, end, blocks_until.max(kept_until));
                }
                _ => {
                    self.unlist(slot);
                    self.requests.move_up(slot);
                    self.list(slot);
                    return self.regate(disk, slot);
                }
            }
        }
    }

    fn end_repeat<D: Disk>(&mut self, disk: &mut D, slot: Slot, end: End, kept_until: UnixMs) {
        self.note(slot, Event::Ended { end });
        self.unlist(slot);
        let repeat = self.requests.remove(slot);
        self.delete_rows(disk, &repeat);
        for o in repeat.occurrences.as_slice() {
            let origin = o.origin.map(|origin| (origin, o.height));
            let (occurrence, id) = (o.id, repeat.id);
            self.remember_occurrence(disk, OccurrenceNote { occurrence, id, end, origin, kept_until });
        }
    }

    /// Takes an occurrence out of what waits behind this id, for the live request to
    /// have; what is then left without one is gone.
    pub(super) fn take_from_behind<D: Disk>(
        &mut self,
        disk: &mut D,
        slot: Slot,
        id: &OccurrenceId,
    ) -> Option<Occurrence> {
        let waiting = self.requests.get(slot);
        let taken = waiting.occurrences.as_slice().iter().find(|o| o.id == *id).copied()?;
        if waiting.occurrences.as_slice().len() == 1 {
            self.unlist(slot);
            let gone = self.requests.remove(slot);
            self.delete_rows(disk, &gone);
        } else {
            self.requests.detach(slot, id);
            self.change(slot, |request, _, _| request.rows.as_admitted = false);
        }
        Some(taken)
    }
}
