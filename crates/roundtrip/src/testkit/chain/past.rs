//! What the chain shows of transactions that a store forgot.

use std::collections::BTreeMap;

use super::{State, Transaction, time};
use crate::sender::SignedAttempt;
use crate::sender::chain::{Mark, Past};
use crate::store::op::Judgement;
use crate::store::query::{ParcelView, ReadyDelivery};
use crate::words::{ErrorClass, ErrorNote, LaneName, Nonce, Position, RequestId};

/// How many transactions one answer shows.
const AT_ONCE: usize = 7;

pub(super) fn mark(answer: &ReadyDelivery) -> Mark {
    mark_of(&answer.id)
}

fn mark_of(id: &RequestId) -> Mark {
    Mark(id.0)
}

impl State {
    /// What was mined of a lane beyond any reorg.
    fn final_of<'a>(&'a self, lane: &'a LaneName) -> impl Iterator<Item = (Position, &'a Transaction, bool)> {
        let blocks = self.blocks.iter().filter(|block| block.at.height.0 <= self.finalized);
        let mined = blocks.flat_map(|block| block.transactions.iter().map(move |sent| (block, sent)));
        let ours = mined.filter(move |(_, sent)| sent.lane == *lane);
        ours.map(|(block, sent)| (block.at, sent, block.failed.contains(&sent.hash())))
    }

    pub(super) fn past(&self, lane: &LaneName, from: Nonce) -> Vec<Past> {
        let shown = |(at, sent, failed): (Position, &Transaction, bool)| Past {
            nonce: sent.nonce,
            transaction: sent.hash(),
            at,
            time: time(at.height),
            carried: sent.answers.iter().map(mark_of).collect(),
            judgement: match failed {
                true => Judgement::Again(ErrorNote::new(ErrorClass::Retryable, "no effect")),
                false => Judgement::Done,
            },
            by_route: BTreeMap::new(),
        };
        self.final_of(lane).filter(|(_, sent, _)| sent.nonce >= from).take(AT_ONCE).map(shown).collect()
    }

    /// Bytes that used the slot of a parcel below this one, carry what it carries, and are not
    /// known to it.
    pub(super) fn forgotten(
        &self,
        lane: &LaneName,
        below: Nonce,
        parcels: &[ParcelView],
    ) -> Vec<(Nonce, SignedAttempt)> {
        let of = |parcel: &ParcelView| {
            let (_, sent, _) = self.final_of(lane).find(|(_, sent, _)| sent.nonce == parcel.nonce)?;
            let known = parcel.attempts.iter().any(|attempt| attempt.hash == sent.hash());
            let same = sent.answers == parcel.deliveries && !sent.answers.is_empty();
            (same && !known).then(|| (parcel.nonce, sent.signed()))
        };
        parcels.iter().filter(|parcel| parcel.nonce < below).filter_map(of).collect()
    }
}
