//! Parcels on the slots of lanes.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Check, Fault};
use crate::outbox::LaneNo;
use crate::sender::{AttemptKind, Parcel, Stage};
use crate::store::archive::record::Record;
use crate::words::{ATTEMPTS_MAX, Nonce, PARCEL_MAX, RequestId};

/// What is kept of lanes and parcels.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Each lane's next slot.
    next: BTreeMap<LaneNo, Nonce>,
    repeated: Vec<u16>,
    occupied: HashSet<(LaneNo, Nonce)>,
    /// The requests that parcels carry, until they are seen.
    carried: HashMap<RequestId, Vec<(LaneNo, Nonce)>>,
}

impl Lanes {
    pub(super) fn see(&mut self, no: LaneNo, next: Nonce) {
        if self.next.insert(no, next).is_some() {
            self.repeated.push(no.0);
        }
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u16> {
        self.next.keys().map(|no| no.0).chain(self.repeated.iter().copied())
    }

    /// Takes out that this slot carries this request; whether it did.
    pub(super) fn take_carried(&mut self, id: &RequestId, slot: (LaneNo, Nonce)) -> bool {
        let Some(slots) = self.carried.get_mut(id) else { return false };
        let Some(at) = slots.iter().position(|known| *known == slot) else { return false };
        slots.remove(at);
        true
    }
}

impl Check {
    pub(super) fn see_parcel(&mut self, record: &Record, lane: LaneNo, nonce: Nonce, parcel: &Parcel) {
        let (faults, lanes) = (&mut self.faults, &mut self.lanes);
        match lanes.next.get(&lane) {
            None => faults.unless(false, record, "is on a lane that does not exist"),
            Some(next) => faults.unless(nonce < *next, record, "is on a slot that was never given out"),
        }
        faults.unless(lanes.occupied.insert((lane, nonce)), record, "is there twice");
        let hashes: HashSet<_> = parcel.attempts.iter().map(|attempt| attempt.hash).collect();
        let count = parcel.attempts.len();
        faults.unless((1..=ATTEMPTS_MAX).contains(&count), record, format!("has {count} signed attempts"));
        faults.unless(hashes.len() == count, record, "has a signed attempt twice");
        if let Stage::Included(block) | Stage::Confirmed(block) = parcel.stage {
            let rule = format!("is in a block by attempt {}, which is not one of its own", block.attempt);
            faults.unless(hashes.contains(&block.attempt), record, rule);
        }
        let carries = parcel.attempts.iter().any(|attempt| attempt.kind == AttemptKind::Carry);
        faults.unless(!carries || !parcel.deliveries.is_empty(), record, "carries nothing by an attempt that carries");
        let several = parcel.deliveries.len();
        let distinct: HashSet<_> = parcel.deliveries.iter().collect();
        faults.unless(several <= PARCEL_MAX, record, format!("carries {several} answers"));
        faults.unless(distinct.len() == several, record, "carries an answer twice");
        // Of one that carries nothing the journal tells nothing.
        let told = several == 0 || (parcel.entry >= 1 && parcel.entry + several as u64 <= self.numbers.high.entry);
        faults.unless(told, record, format!("was last told of at entry {}, where the journal never was", parcel.entry));
        for id in distinct {
            lanes.carried.entry(*id).or_default().push((lane, nonce));
        }
    }

    /// What is still carried here is no request's that is assigned to that slot.
    pub(super) fn end_parcels(&mut self) {
        let mut left: Vec<_> = std::mem::take(&mut self.lanes.carried).into_iter().collect();
        left.sort_unstable();
        for (id, slots) in left {
            for (lane, nonce) in slots {
                let parcel = format!("the parcel on slot {} of lane number {}", nonce.0, lane.0);
                self.faults.push(Fault::new(parcel, format!("carries request {id}, which is not assigned to it")));
            }
        }
    }
}
