//! How many records of each kind a store has, and a sum of their hashes.
//!
//! The sum does not depend on the order in which records are read, so every store may be
//! read in the order that is cheapest for it, and a copy that goes on where another stopped
//! goes on adding.

use serde::{Deserialize, Serialize};

use super::record::{Kind, Record};
use crate::store::StoreError;

/// The sum of hashes, as one number of 256 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sum([u64; 4]);

impl Sum {
    pub(crate) fn add(&mut self, hash: &[u8; 32]) {
        let (words, _) = hash.as_chunks::<8>();
        let mut carry = false;
        for (sum, word) in self.0.iter_mut().zip(words) {
            let (partial, over) = sum.overflowing_add(u64::from_le_bytes(*word));
            let (whole, over_again) = partial.overflowing_add(u64::from(carry));
            *sum = whole;
            carry = over || over_again;
        }
    }
}

/// What was counted of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct OfKind {
    count: u64,
    sum: Sum,
}

/// What was counted of all kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally([OfKind; Kind::ALL.len()]);

impl Tally {
    pub(crate) fn add(&mut self, record: &Record) -> Result<(), StoreError> {
        let of_kind = &mut self.0[record.kind() as usize];
        of_kind.count += 1;
        of_kind.sum.add(&hash(record)?);
        Ok(())
    }

    pub(crate) fn counts(&self) -> Vec<(Kind, u64)> {
        Kind::ALL.iter().zip(&self.0).map(|(kind, of_kind)| (*kind, of_kind.count)).collect()
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|of_kind| of_kind.count).sum()
    }

    /// The kinds in which two stores differ.
    pub(crate) fn differing(&self, other: &Tally) -> Vec<Kind> {
        let differs = |kind: &Kind| self.0[*kind as usize] != other.0[*kind as usize];
        Kind::ALL.into_iter().filter(differs).collect()
    }
}

/// The hash of a record with all that it carries.
pub(crate) fn hash(record: &Record) -> Result<[u8; 32], StoreError> {
    let bytes = postcard::to_allocvec(record)
        .map_err(|error| StoreError::Damaged(format!("{record} cannot be written: {error}")))?;
    Ok(*blake3::hash(&bytes).as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::store::archive::record::Numbers;
    use crate::store::disk::HighWater;

    fn numbers(epoch: u64) -> Record {
        Record::Numbers(Numbers::new(epoch, HighWater::default()))
    }

    fn tally(epochs: &[u64]) -> Tally {
        let mut tally = Tally::default();
        epochs.iter().for_each(|epoch| tally.add(&numbers(*epoch)).unwrap());
        tally
    }

    #[test]
    fn the_order_does_not_matter_and_everything_else_does() {
        assert_eq!(tally(&[1, 2, 3]), tally(&[3, 1, 2]));
        assert_eq!(tally(&[1, 2]).differing(&tally(&[1, 3])), [Kind::Numbers]);
        assert_eq!(tally(&[1, 1]).differing(&tally(&[1])), [Kind::Numbers]);
        assert_ne!(tally(&[1, 1, 2, 2]), tally(&[1, 1, 3, 3]), "what comes twice does not cancel out");
    }

    #[test]
    fn a_sum_carries_over_to_its_last_word() {
        let mut sum = Sum([u64::MAX, u64::MAX, u64::MAX, 7]);
        let mut one = [0; 32];
        one[0] = 1;
        sum.add(&one);
        assert_eq!(sum, Sum([0, 0, 0, 8]));
    }
}
