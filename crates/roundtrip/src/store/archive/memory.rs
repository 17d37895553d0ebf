//! The memory store's content: what a crash would leave of it. As a destination it is filled
//! beside the store, and takes its place when all is there.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::Fault;
use super::contents::{Contents, Ground, Mark, Page, Step, done, number};
use super::record::{Kind, Numbers, Record};
use super::rowed::{self, Surroundings};
use crate::store::MemoryStore;
use crate::store::disk::{ColdKey, ColdReceipt, RamDisk};
use crate::store::machine::cold_keys;

/// A memory store's content.
pub(crate) struct MemoryContents {
    store: MemoryStore,
    disk: RamDisk,
    surroundings: Surroundings,
    receipts: BTreeMap<ColdKey, ColdReceipt>,
}

impl MemoryContents {
    pub(crate) fn of(store: &MemoryStore) -> MemoryContents {
        let disk = store.snapshot();
        MemoryContents { store: store.clone(), surroundings: surroundings(&disk), receipts: receipts(&disk), disk }
    }

    fn numbers(&self) -> Numbers {
        Numbers::new(self.disk.epoch, self.disk.high_water)
    }

    fn records(&self, kind: Kind) -> Box<dyn Iterator<Item = Record> + '_> {
        let disk = &self.disk;
        match kind {
            Kind::Numbers => Box::new(std::iter::once(Record::Numbers(self.numbers()))),
            Kind::Fixtures => Box::new(disk.fixtures.values().cloned().map(Record::Fixture)),
            Kind::Journal => Box::new(disk.journal.values().cloned().map(Record::Entry)),
            Kind::Parcels => Box::new(disk.parcels.iter().map(|(&(lane, nonce), parcel)| {
                let parcel = parcel.clone();
                Record::Parcel { lane, nonce, parcel }
            })),
            Kind::Requests => Box::new(disk.requests.iter().map(|(seq, (row, body))| {
                let answer = disk.answers.get(seq);
                let mark = disk.marks.get(seq).cloned();
                let request = self.surroundings.request(row, answer.map(|(head, _)| head), mark);
                Record::request(request, body.clone(), answer.map(|(_, response)| response.clone()))
            })),
            Kind::Groups => Box::new(disk.groups.iter().map(|(&no, row)| Record::Group { no, row: row.clone() })),
            Kind::Items => Box::new(disk.items.iter().map(|(&no, (row, payload))| {
                let (row, payload) = (*row, payload.clone());
                Record::Item { no, row, payload }
            })),
            Kind::Receipts => Box::new(self.receipts.iter().map(|(&key, receipt)| {
                let receipt = receipt.clone();
                Record::Receipt { key, receipt }
            })),
        }
    }

    /// Pages are counted from the first record on: a store in memory is small enough.
    fn read(&self, kind: Kind, from: u64) -> Page {
        let (mut page, mut at) = (Page::default(), from);
        let mut records = self.records(kind).skip(usize::try_from(from).unwrap_or(usize::MAX)).peekable();
        while !page.is_full()
            && let Some(record) = records.next()
        {
            page.push(record);
            at += 1;
        }
        page.next = records.peek().map(|_| at.to_be_bytes().to_vec());
        page
    }

    fn put(&mut self, records: Vec<Record>) {
        if let Some(Record::Numbers(numbers)) = records.first() {
            self.disk.epoch = numbers.epoch;
            self.disk.high_water = numbers.high;
        }
        let numbers = self.numbers();
        rowed::put(&mut self.disk, records, &numbers);
        self.surroundings = surroundings(&self.disk);
        self.receipts = receipts(&self.disk);
    }
}

fn surroundings(disk: &RamDisk) -> Surroundings {
    let mut around = Surroundings::default();
    disk.requests.iter().for_each(|(seq, (row, _))| around.see_request(row.id, *seq));
    disk.parcels.iter().for_each(|((lane, nonce), parcel)| around.see_parcel(*lane, *nonce, parcel));
    around
}

/// All receipts; where there are several under one key, the newest.
fn receipts(disk: &RamDisk) -> BTreeMap<ColdKey, ColdReceipt> {
    let mut all = disk.cold.clone();
    all.extend(disk.receipts.values().flat_map(cold_keys));
    all
}

impl Contents for MemoryContents {
    fn name(&self) -> String {
        "the store in memory".into()
    }

    fn version(&mut self) -> Step<'_, Vec<u8>> {
        let mut hasher = DefaultHasher::new();
        self.store.snapshot().hash(&mut hasher);
        done(Ok(hasher.finish().to_be_bytes().to_vec()))
    }

    fn page(&mut self, kind: Kind, from: Vec<u8>) -> Step<'_, Page> {
        done(Ok(self.read(kind, number(&from))))
    }

    fn faults(&mut self) -> Step<'_, Vec<Fault>> {
        done(Ok(Vec::new()))
    }

    fn ground(&mut self) -> Step<'_, Ground> {
        let first = Numbers::new(self.disk.epoch, Default::default());
        let empty = self.numbers() == first && self.disk.fixtures.is_empty();
        done(Ok(if empty { Ground::Empty } else { Ground::Taken }))
    }

    fn clear(&mut self) -> Step<'_, ()> {
        self.disk = RamDisk::default();
        done(Ok(()))
    }

    fn write(&mut self, records: Vec<Record>, _mark: Mark) -> Step<'_, ()> {
        self.put(records);
        done(Ok(()))
    }

    fn release(&mut self) -> Step<'_, ()> {
        self.store.take_over(self.disk.clone());
        done(Ok(()))
    }
}
