//! What facts about a lane come to: a pure function.

use std::collections::HashMap;

use roundtrip::sender::chain::{Depth, Mined, Sighting};
use roundtrip::store::op::Judgement;
use roundtrip::store::query::ParcelView;
use roundtrip::words::{AttemptHash, Height, Nonce, Position};

/// How many transactions an account has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// With those that wait to be mined.
    pub(super) pending: Nonce,
    /// At the head.
    pub(super) latest: Nonce,
    /// Beyond any reorg.
    pub(super) settled: Nonce,
}

/// Where a transaction was mined, and what it did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Receipt {
    pub(super) at: Position,
    pub(super) judgement: Judgement,
    pub(super) lane_to_blame: bool,
}

impl Receipt {
    pub(super) fn done(at: Position) -> Receipt {
        Receipt { at, judgement: Judgement::Done, lane_to_blame: false }
    }
}

/// How deep a block is.
pub(super) struct Depths {
    pub(super) head: Height,
    pub(super) final_height: Height,
}

impl Depths {
    /// So many blocks, its own counted, make a block confirmed.
    fn of(&self, height: Height, settled: bool, confirmations: u64) -> Depth {
        let blocks = (self.head.0 + 1).saturating_sub(height.0);
        match () {
            () if settled && height <= self.final_height => Depth::Final,
            () if blocks >= confirmations => Depth::Confirmed,
            () => Depth::Included,
        }
    }
}

/// What is seen of a lane, with what it takes to confirm each parcel.
pub(super) fn sighting(
    head: Position,
    depths: &Depths,
    counts: Counts,
    parcels: &[ParcelView],
    found: &HashMap<AttemptHash, Receipt>,
    confirmations: impl Fn(&ParcelView) -> u64,
) -> Sighting {
    let mined = |parcel: &ParcelView| {
        // A receipt above the account's count is of another moment.
        let attempts = parcel.attempts.iter().filter(|_| parcel.nonce < counts.latest);
        let (attempt, receipt) =
            attempts.filter_map(|attempt| Some((attempt.hash, found.get(&attempt.hash)?))).next()?;
        Some(Mined {
            nonce: parcel.nonce,
            attempt,
            at: receipt.at,
            depth: depths.of(receipt.at.height, parcel.nonce < counts.settled, confirmations(parcel)),
            judgement: receipt.judgement.clone(),
            lane_to_blame: receipt.lane_to_blame,
        })
    };
    let Counts { pending, latest, settled } = counts;
    let mined = parcels.iter().filter_map(mined).collect();
    let (below, forgotten) = (Vec::new(), Vec::new());
    Sighting { head, pending: pending.max(latest), latest, settled, mined, below, funds: None, forgotten }
}

#[cfg(test)]
mod tests {
    use roundtrip::sender::{AttemptKind, ParcelStage, SignedAttempt};

    use super::*;

    fn at(height: u64) -> Position {
        Position { height: Height(height), hash: [7; 32] }
    }

    #[test]
    fn a_receipt_is_as_deep_as_its_block_and_final_only_with_the_count() {
        let hash = AttemptHash([1; 32]);
        let attempts = [AttemptHash([9; 32]), hash].map(|hash| SignedAttempt {
            hash,
            kind: AttemptKind::Carry,
            bytes: bytes::Bytes::new(),
            fee: None,
        });
        let parcel = ParcelView {
            nonce: Nonce(5),
            deliveries: Vec::new(),
            attempts: attempts.to_vec(),
            stage: ParcelStage::Assigned,
            block: None,
            cancel: None,
            route: None,
        };
        let counts = |latest, settled| Counts { pending: Nonce(6), latest: Nonce(latest), settled: Nonce(settled) };
        let cases = [
            ("just mined", 20, counts(6, 5), Some(Depth::Included)),
            ("two blocks", 19, counts(6, 5), Some(Depth::Confirmed)),
            ("deep", 10, counts(6, 6), Some(Depth::Final)),
            ("deep, and the count does not say so", 10, counts(6, 5), Some(Depth::Confirmed)),
            ("counted as final, and the block is not", 11, counts(6, 6), Some(Depth::Confirmed)),
            ("of another moment", 20, counts(5, 5), None),
        ];
        for (name, height, counts, depth) in cases {
            let found = HashMap::from([(hash, Receipt::done(at(height)))]);
            let depths = Depths { head: Height(20), final_height: Height(10) };
            let seen = sighting(at(20), &depths, counts, std::slice::from_ref(&parcel), &found, |_| 2);
            assert_eq!(
                seen.mined.first().map(|mined| (mined.attempt, mined.depth)),
                depth.map(|depth| (hash, depth)),
                "{name}"
            );
        }
    }
}
