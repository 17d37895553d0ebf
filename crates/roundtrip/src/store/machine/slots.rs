//! Where live requests are kept in memory, found by id and by occurrence.
//!
//! The tables hold slot numbers only, four bytes each: a million live requests must
//! fit in a small machine.

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

use super::Slot;
use crate::inbox::{Occurrence, Request};
use crate::words::{OccurrenceId, RequestId, Seq};

/// The live requests.
#[derive(Clone, Default)]
pub(super) struct Slots {
    records: Vec<Option<Request>>,
    free: Vec<Slot>,
    ids: HashTable<Slot>,
    occurrences: HashTable<(Slot, u32)>,
    hasher: RandomState,
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Slots {
    pub(super) fn get(&self, slot: Slot) -> &Request {
        self.records[slot as usize].as_ref().expect("a listed slot holds a request")
    }

    /// A request to change; its id and occurrences are changed only by the functions below.
    pub(super) fn get_mut(&mut self, slot: Slot) -> &mut Request {
        self.records[slot as usize].as_mut().expect("a listed slot holds a request")
    }

    pub(super) fn get_mut_if_live(&mut self, slot: Slot) -> Option<&mut Request> {
        self.records[slot as usize].as_mut()
    }

    /// This very request, if it is still there.
    pub(super) fn live(&self, slot: Slot, seq: Seq) -> Option<&Request> {
        self.records[slot as usize].as_ref().filter(|request| request.seq == seq)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Request> {
        self.records.iter().flatten()
    }

    pub(super) fn by_id(&self, id: &RequestId) -> Option<Slot> {
        let hash = self.hasher.hash_one(id);
        self.ids.find(hash, |&slot| self.get(slot).id == *id).copied()
    }

    pub(super) fn by_occurrence(&self, id: &OccurrenceId) -> Option<Slot> {
        let shows = |slot: Slot| self.get(slot).occurrences.as_slice().iter().any(|o| o.id == *id);
        let found = self.occurrences.find(spread(self.tag(id)), |&(slot, _)| shows(slot));
        found.map(|&(slot, _)| slot)
    }

    pub(super) fn insert(&mut self, request: Request) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.records.push(None);
            Slot::try_from(self.records.len() - 1).expect("fewer than 2^32 live requests")
        });
        let (behind, occurrences) = (request.behind, request.occurrences.clone());
        self.records[slot as usize] = Some(request);
        if !behind {
            self.index_id(slot);
        }
        for occurrence in occurrences.as_slice() {
            self.index_occurrence(slot, &occurrence.id);
        }
        slot
    }

    /// Lets a request that waited behind another be found by its id.
    pub(super) fn move_up(&mut self, slot: Slot) {
        self.get_mut(slot).behind = false;
        self.index_id(slot);
    }

    fn index_id(&mut self, slot: Slot) {
        let (records, hasher) = (&self.records, &self.hasher);
        let hash = |slot: &Slot| hasher.hash_one(records[*slot as usize].as_ref().map(|r| r.id).expect("listed"));
        self.ids.insert_unique(hash(&slot), slot, hash);
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Request {
        let request = self.records[slot as usize].take().expect("a listed slot holds a request");
        self.free.push(slot);
        if let Ok(entry) = self.ids.find_entry(self.hasher.hash_one(request.id), |&at| at == slot) {
            entry.remove();
        }
        for occurrence in request.occurrences.as_slice() {
            self.unindex_occurrence(slot, &occurrence.id);
        }
        request
    }

    /// Adds an occurrence that the request does not have yet.
    pub(super) fn attach(&mut self, slot: Slot, occurrence: Occurrence) {
        self.get_mut(slot).occurrences.push(occurrence);
        self.index_occurrence(slot, &occurrence.id);
    }

    /// Takes an occurrence away.
    pub(super) fn detach(&mut self, slot: Slot, id: &OccurrenceId) {
        self.unindex_occurrence(slot, id);
        self.get_mut(slot).occurrences.remove(id);
    }

    fn index_occurrence(&mut self, slot: Slot, id: &OccurrenceId) {
        let tag = self.tag(id);
        self.occurrences.insert_unique(spread(tag), (slot, tag), |&(_, tag)| spread(tag));
    }

    fn unindex_occurrence(&mut self, slot: Slot, id: &OccurrenceId) {
        let tag = self.tag(id);
        if let Ok(entry) = self.occurrences.find_entry(spread(tag), |&at| at == (slot, tag)) {
            entry.remove();
        }
    }

    /// The part of an occurrence's hash that its entry keeps: a request may have
    /// several, so the slot alone could not tell an entry's hash when the table grows.
    fn tag(&self, id: &OccurrenceId) -> u32 {
        (self.hasher.hash_one(id) >> 32) as u32
    }
}

/// A tag as the well-spread hash that a table wants.
fn spread(tag: u32) -> u64 {
    u64::from(tag).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A million of them are held in memory; what is rare is boxed, or beside them.
    #[test]
    fn a_request_stays_small() {
        let bytes = std::mem::size_of::<Option<Request>>();
        assert!(bytes <= 184, "{bytes} bytes");
    }
}
