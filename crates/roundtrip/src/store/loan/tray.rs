//! What a machine on loan reads from and writes to: rows that were fetched before, and
//! rows that the tick's last flight will carry.

use std::collections::{BTreeMap, BTreeSet};

use super::HashMap;
use crate::outbox::LaneNo;
use crate::sender::Parcel;
use crate::store::disk::{
    AnswerHead, Body, ColdKey, ColdReceipt, Disk, Fixture, GroupRow, HighWater, ItemRow, Mark, ReceiptRow, RequestRow,
};
use crate::store::journal::KeptEntry;
use crate::store::machine::cold_keys;
use crate::store::op::GroupPlan;
use crate::words::{Nonce, Payload, Seq, UnixMs};

/// A disk that is filled before it is used and emptied after.
///
/// Live requests are not here: the machine holds them whole, and whoever lent it compares
/// what it holds before and after.
#[derive(Clone, Debug, Default)]
pub(in crate::store) struct Tray {
    /// Bodies that were asked for and not fetched: what was done without them counts for nothing.
    pub(in crate::store) missing: Vec<Seq>,
    /// Fetched.
    pub(in crate::store) bodies: HashMap<Seq, Body>,
    pub(in crate::store) responses: HashMap<Seq, Payload>,
    pub(in crate::store) plans: HashMap<u64, Box<GroupPlan>>,
    pub(in crate::store) item_payloads: HashMap<u64, Payload>,
    pub(in crate::store) cold: HashMap<ColdKey, ColdReceipt>,
    /// Receipts whose time is over.
    pub(in crate::store) expired: Vec<ColdKey>,
    pub(in crate::store) journal: BTreeMap<u64, KeptEntry>,
    /// To be written.
    pub(in crate::store) new_bodies: BTreeSet<Seq>,
    pub(in crate::store) new_responses: BTreeSet<Seq>,
    pub(in crate::store) void_responses: BTreeSet<Seq>,
    pub(in crate::store) parcels: BTreeMap<(LaneNo, Nonce), Option<Parcel>>,
    pub(in crate::store) fixtures: BTreeMap<(u8, String), Fixture>,
    pub(in crate::store) groups: BTreeMap<u64, Option<GroupRow>>,
    pub(in crate::store) items: BTreeMap<u64, Option<(ItemRow, Payload)>>,
    pub(in crate::store) receipts: BTreeMap<ColdKey, ColdReceipt>,
    pub(in crate::store) forgotten: BTreeSet<ColdKey>,
    pub(in crate::store) entries: Vec<KeptEntry>,
    pub(in crate::store) high: Option<HighWater>,
    pub(in crate::store) journal_floor: u64,
}

impl Disk for Tray {
    fn put_request(&mut self, row: &RequestRow, body: &Body) {
        self.bodies.insert(row.seq, body.clone());
        self.new_bodies.insert(row.seq);
    }

    fn replace_request(&mut self, row: &RequestRow, body: &Body) {
        self.put_request(row, body);
    }

    fn delete_request(&mut self, _: Seq) {}

    fn body(&mut self, seq: Seq) -> Body {
        match self.bodies.get(&seq) {
            Some(body) => body.clone(),
            None => {
                self.missing.push(seq);
                Body::default()
            }
        }
    }

    fn put_mark(&mut self, _: Seq, _: &Mark) {}

    fn delete_mark(&mut self, _: Seq) {}

    fn put_answer(&mut self, seq: Seq, _: &AnswerHead, response: &Payload) {
        self.responses.insert(seq, response.clone());
        self.new_responses.insert(seq);
        self.void_responses.remove(&seq);
    }

    fn delete_answer(&mut self, _: Seq) {}

    fn void_answer(&mut self, seq: Seq) {
        self.new_responses.remove(&seq);
        self.void_responses.insert(seq);
    }

    fn response(&mut self, seq: Seq) -> Payload {
        debug_assert!(self.responses.contains_key(&seq), "the response of {seq:?} was not fetched");
        self.responses.get(&seq).cloned().unwrap_or_default()
    }

    fn put_parcel(&mut self, lane: LaneNo, nonce: Nonce, parcel: &Parcel) {
        self.parcels.insert((lane, nonce), Some(parcel.clone()));
    }

    fn delete_parcel(&mut self, lane: LaneNo, nonce: Nonce) {
        self.parcels.insert((lane, nonce), None);
    }

    fn put_fixture(&mut self, fixture: &Fixture) {
        self.fixtures.insert(fixture.key(), fixture.clone());
    }

    fn put_group(&mut self, no: u64, row: &GroupRow) {
        if let Some(plan) = &row.plan {
            self.plans.insert(no, plan.clone());
        }
        self.groups.insert(no, Some(row.clone()));
    }

    fn group_plan(&mut self, no: u64) -> Option<Box<GroupPlan>> {
        self.plans.get(&no).cloned()
    }

    fn delete_group(&mut self, no: u64) {
        self.groups.insert(no, None);
    }

    fn put_item(&mut self, no: u64, row: &ItemRow, payload: &Payload) {
        self.items.insert(no, Some((*row, payload.clone())));
    }

    fn delete_item(&mut self, no: u64) {
        self.items.insert(no, None);
    }

    fn item_payload(&mut self, no: u64) -> Payload {
        self.item_payloads.get(&no).cloned().unwrap_or_default()
    }

    fn put_receipt(&mut self, _: u64, row: &ReceiptRow) {
        for (key, cold) in cold_keys(row) {
            self.forgotten.remove(&key);
            self.cold.insert(key, cold.clone());
            self.receipts.insert(key, cold);
        }
    }

    fn delete_receipts_below(&mut self, _: u64) {}

    fn spill(&mut self, _: Vec<(ColdKey, ColdReceipt)>) {}

    fn cold(&mut self, key: &ColdKey) -> Option<ColdReceipt> {
        self.cold.get(key).cloned()
    }

    fn forget_cold(&mut self, limit: usize) -> usize {
        let at = self.expired.len().saturating_sub(limit);
        let over = self.expired.split_off(at);
        let count = over.len();
        // What was written anew in this tick is another receipt.
        self.forgotten.extend(over.into_iter().filter(|key| !self.receipts.contains_key(key)));
        count
    }

    fn tidy_cold(&mut self, _: UnixMs, _: &dyn Fn(&ColdReceipt) -> bool) {}

    fn append_journal(&mut self, entries: &[KeptEntry], high_water: &HighWater) {
        self.entries.extend_from_slice(entries);
        self.high = Some(*high_water);
    }

    fn trim_journal(&mut self, floor: u64) {
        self.journal_floor = floor;
    }

    fn journal(&mut self, from: u64, limit: usize) -> Vec<KeptEntry> {
        self.journal.range(from..).take(limit).map(|(_, entry)| entry.clone()).collect()
    }
}
