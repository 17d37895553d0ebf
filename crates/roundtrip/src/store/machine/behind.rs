//! Requests that wait behind a live one with the same id and other content.
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
use crate::words::{OccurrenceId, RequestId, Seq, UnixMs};

impl Machine {
    /// Those that wait behind this id, in the order of their coming.
    fn line(&self, id: RequestId) -> Vec<Slot> {
        self.behind.range((id, Seq(0))..=(id, Seq(u64::MAX))).map(|(_, slot)| *slot).collect()
    }

    /// The live request, or one that waits behind it, that asks for the same.
    pub(super) fn with_content<D: Disk>(&self, disk: &mut D, live: Slot, new: &NewRequest) -> Option<Slot> {
        let all = std::iter::once(live).chain(self.line(new.id));
        all.into_iter().find(|&slot| disk.body(self.requests.get(slot).seq).payload == new.payload)
    }

    /// Stores a request behind the live one; an occurrence of what already waits joins it.
    pub(super) fn wait_behind<D: Disk>(&mut self, disk: &mut D, live: Slot, new: &NewRequest, origin: OriginMark) {
        match self.with_content(disk, live, new) {
            Some(slot) => self.join(disk, slot, new, origin),
            None => {
                let waiting = u32::try_from(self.line(new.id).len()).unwrap_or(u32::MAX);
                let generation = self.requests.get(live).generation.saturating_add(1).saturating_add(waiting);
                self.insert(disk, new.clone(), origin, generation);
            }
        }
    }

    /// Lets the next in line take the place of a request that has ended, unless the
    /// route's horizon blocks its id now: then it was a repeat.
    pub(super) fn move_up<D: Disk>(&mut self, disk: &mut D, id: RequestId) {
        for slot in self.line(id) {
            match self.receipt_of(disk, &id) {
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
