//! The newest receipts, in memory and on disk in the order of their making; older
//! ones are spilled to the disk's sorted runs, where a filter answers most look-ups.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::Machine;
use crate::inbox::{OccurrenceNote, OriginMark, Receipt};
use crate::store::disk::{ColdKey, ColdReceipt, Disk, ReceiptRow};
use crate::words::{OccurrenceId, RequestId, UnixMs};

/// Most receipts that are spilled at a time, whatever the options say.
const SPILL_MAX: usize = 1 << 20;

/// The receipts that were not spilled yet.
#[derive(Clone)]
pub(super) struct HotReceipts {
    rows: VecDeque<ReceiptRow>,
    /// The number of the first row.
    base: u64,
    ids: HashTable<(RequestId, u64)>,
    occurrences: HashTable<(OccurrenceId, u64)>,
    hasher: RandomState,
}

impl std::fmt::Debug for HotReceipts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.rows).finish()
    }
}

impl HotReceipts {
    pub(super) fn new(base: u64) -> HotReceipts {
        let hasher = RandomState::default();
        HotReceipts { rows: VecDeque::new(), base, ids: HashTable::new(), occurrences: HashTable::new(), hasher }
    }

    /// Adds a row with this number; numbers have no gaps.
    pub(super) fn push(&mut self, no: u64, row: ReceiptRow) {
        if self.rows.is_empty() {
            self.base = no;
        }
        debug_assert_eq!(no, self.base + self.rows.len() as u64, "receipts are numbered without gaps");
        match &row {
            ReceiptRow::Ended(receipt) => {
                put(&mut self.ids, &self.hasher, receipt.id, no);
                for (occurrence, _) in &receipt.occurrences {
                    put(&mut self.occurrences, &self.hasher, *occurrence, no);
                }
            }
            ReceiptRow::Seen(note) => put(&mut self.occurrences, &self.hasher, note.occurrence, no),
        }
        self.rows.push_back(row);
    }

    fn pop(&mut self) -> Option<ReceiptRow> {
        let no = self.base;
        let row = self.rows.pop_front()?;
        self.base += 1;
        match &row {
            ReceiptRow::Ended(receipt) => {
                take(&mut self.ids, &self.hasher, &receipt.id, no);
                for (occurrence, _) in &receipt.occurrences {
                    take(&mut self.occurrences, &self.hasher, occurrence, no);
                }
            }
            ReceiptRow::Seen(note) => take(&mut self.occurrences, &self.hasher, &note.occurrence, no),
        }
        Some(row)
    }

    fn row(&self, no: u64) -> &ReceiptRow {
        &self.rows[usize::try_from(no - self.base).expect("a row in memory")]
    }

    fn ended(&self, id: &RequestId) -> Option<ColdReceipt> {
        match self.row(find(&self.ids, &self.hasher, id)?) {
            ReceiptRow::Ended(receipt) => Some(cold_end(receipt)),
            ReceiptRow::Seen(_) => None,
        }
    }

    fn seen(&self, id: &OccurrenceId) -> Option<ColdReceipt> {
        match self.row(find(&self.occurrences, &self.hasher, id)?) {
            ReceiptRow::Ended(receipt) => {
                let (_, origin) = receipt.occurrences.iter().find(|(occurrence, _)| occurrence == id)?;
                Some(cold_occurrence(receipt, *origin))
            }
            ReceiptRow::Seen(note) => Some(cold_note(note)),
        }
    }
}

fn put<K: Copy + Eq + std::hash::Hash>(table: &mut HashTable<(K, u64)>, hasher: &RandomState, key: K, no: u64) {
    let hash = hasher.hash_one(key);
    match table.find_mut(hash, |(known, _)| *known == key) {
        Some(entry) => entry.1 = no,
        None => {
            table.insert_unique(hash, (key, no), |(key, _)| hasher.hash_one(*key));
        }
    }
}

/// Removes a key only if no newer row has taken it over.
fn take<K: Eq + std::hash::Hash>(table: &mut HashTable<(K, u64)>, hasher: &RandomState, key: &K, no: u64) {
    if let Ok(entry) = table.find_entry(hasher.hash_one(key), |(known, at)| known == key && *at == no) {
        entry.remove();
    }
}

fn find<K: Eq + std::hash::Hash>(table: &HashTable<(K, u64)>, hasher: &RandomState, key: &K) -> Option<u64> {
    table.find(hasher.hash_one(key), |(known, _)| known == key).map(|(_, no)| *no)
}

fn cold_end(receipt: &Receipt) -> ColdReceipt {
    ColdReceipt::Ended {
        generation: receipt.generation,
        end: receipt.end,
        ended_at: receipt.ended_at,
        blocks_until: receipt.blocks_until,
        kept_until: receipt.kept_until,
        last_entry: receipt.last_entry,
    }
}

fn cold_occurrence(receipt: &Receipt, origin: OriginMark) -> ColdReceipt {
    let kept_until = receipt.kept_until.max(receipt.blocks_until);
    ColdReceipt::Seen { id: receipt.id, end: receipt.end, origin, kept_until }
}

fn cold_note(note: &OccurrenceNote) -> ColdReceipt {
    ColdReceipt::Seen { id: note.id, end: note.end, origin: note.origin, kept_until: note.kept_until }
}

/// What a receipt is found by, and what each of these leads to.
pub(crate) fn cold_keys(row: &ReceiptRow) -> Vec<(ColdKey, ColdReceipt)> {
    match row {
        ReceiptRow::Ended(receipt) => {
            let seen = receipt.occurrences.iter();
            let seen = seen.map(|(id, origin)| (ColdKey::Occurrence(*id), cold_occurrence(receipt, *origin)));
            std::iter::once((ColdKey::Request(receipt.id), cold_end(receipt))).chain(seen).collect()
        }
        ReceiptRow::Seen(note) => vec![(ColdKey::Occurrence(note.occurrence), cold_note(note))],
    }
}

impl Machine {
    /// Whether a receipt still counts: by time, or by its origin's floor.
    fn still_counts(&self, cold: &ColdReceipt, now: UnixMs) -> bool {
        match cold {
            ColdReceipt::Seen { origin: Some((origin, height)), .. } => {
                *height >= self.origins[usize::from(origin.0)].floor
            }
            _ => cold.until() > now,
        }
    }

    /// How this id ended, if that is still remembered.
    pub(super) fn receipt_of<D: Disk>(&self, disk: &mut D, id: &RequestId) -> Option<ColdReceipt> {
        let found = self.receipts.ended(id).or_else(|| disk.cold(&ColdKey::Request(*id)))?;
        self.still_counts(&found, self.now).then_some(found)
    }

    /// That this occurrence was here before its request ended, if that is still remembered.
    pub(super) fn note_of<D: Disk>(&self, disk: &mut D, id: &OccurrenceId) -> Option<ColdReceipt> {
        let found = self.receipts.seen(id).or_else(|| disk.cold(&ColdKey::Occurrence(*id)))?;
        self.still_counts(&found, self.now).then_some(found)
    }

    pub(super) fn remember_receipt<D: Disk>(&mut self, disk: &mut D, receipt: Receipt) {
        self.remember(disk, ReceiptRow::Ended(receipt));
    }

    pub(super) fn remember_occurrence<D: Disk>(&mut self, disk: &mut D, note: OccurrenceNote) {
        self.remember(disk, ReceiptRow::Seen(note));
    }

    fn remember<D: Disk>(&mut self, disk: &mut D, row: ReceiptRow) {
        let no = self.high.receipt;
        self.high.receipt += 1;
        disk.put_receipt(no, &row);
        self.receipts.push(no, row);
    }

    /// Moves the older half of the hot receipts to the disk's sorted runs when there
    /// are too many of them.
    pub(super) fn spill_receipts<D: Disk>(&mut self, disk: &mut D) {
        let half = self.options.spill_receipts.clamp(1, SPILL_MAX);
        while self.receipts.rows.len() >= half * 2 {
            let mut cold = Vec::with_capacity(half * 2);
            for _ in 0..half {
                let Some(row) = self.receipts.pop() else { break };
                cold.extend(cold_keys(&row).into_iter().filter(|(_, cold)| self.still_counts(cold, self.now)));
            }
            disk.spill(cold);
            disk.delete_receipts_below(self.receipts.base);
        }
    }

    /// Forgets receipts whose time is over, oldest first; the rest of the work is the
    /// disk's, in bounded steps.
    pub(super) fn forget_receipts<D: Disk>(&mut self, disk: &mut D, limit: usize) -> usize {
        let mut forgotten = 0;
        while forgotten < limit {
            let Some(row) = self.receipts.rows.front() else { break };
            if cold_keys(row).iter().any(|(_, cold)| self.still_counts(cold, self.now)) {
                break;
            }
            self.receipts.pop();
            forgotten += 1;
        }
        if forgotten > 0 {
            disk.delete_receipts_below(self.receipts.base);
        }
        forgotten += disk.forget_cold(limit - forgotten);
        self.tidy_receipts(disk);
        forgotten
    }

    /// Lets the disk do a bounded part of its work on cold receipts.
    pub(super) fn tidy_receipts<D: Disk>(&self, disk: &mut D) {
        disk.tidy_cold(self.now, &|cold| self.still_counts(cold, self.now));
    }
}
