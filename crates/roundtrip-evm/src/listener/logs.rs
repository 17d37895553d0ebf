//! What the logs of a range come to: pure functions.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use alloy::primitives::{Address, B256, Bloom, BloomInput, U64};
use roundtrip::words::{Height, OccurrenceId};
use serde::Deserialize;

use crate::rpc::Header;

/// A log, as nodes write it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WireLog {
    pub(super) address: Address,
    pub(super) topics: Vec<B256>,
    pub(super) data: alloy::primitives::Bytes,
    pub(super) block_number: U64,
    pub(super) block_hash: B256,
    pub(super) transaction_hash: B256,
    pub(super) log_index: U64,
    #[serde(default)]
    pub(super) removed: bool,
}

/// The part of a list of headers that hangs together: each block's parent is the one before it.
pub(super) fn linked(mut headers: Vec<Header>) -> Vec<Header> {
    let breaks = headers.windows(2).position(|pair| pair[1].parent != pair[0].at.hash);
    if let Some(at) = breaks {
        headers.truncate(at + 1);
    }
    headers
}

/// The logs of each of these blocks, in their order; an error if one is of another block.
pub(super) fn by_block(headers: &[Header], logs: Vec<WireLog>) -> Result<Vec<Vec<WireLog>>, String> {
    let mut blocks: Vec<Vec<WireLog>> = headers.iter().map(|_| Vec::new()).collect();
    let first = headers.first().map_or(Height(0), |header| header.at.height);
    for log in logs {
        let height: u64 = log.block_number.to();
        let at = height.checked_sub(first.0).and_then(|at| usize::try_from(at).ok());
        let Some((header, block)) = at.and_then(|at| Some((headers.get(at)?, blocks.get_mut(at)?))) else {
            return Err(format!("a log of block {height}, which was not asked for"));
        };
        if log.removed || log.block_hash.0 != header.at.hash {
            return Err(format!("a log of another block {height}: the chain moved"));
        }
        block.push(log);
    }
    for block in &mut blocks {
        block.sort_by_key(|log| log.log_index);
    }
    Ok(blocks)
}

/// Whether these logs are all that a block's bloom tells of; some chains show more of them.
pub(super) fn explains(logs: &[WireLog], bloom: &Bloom) -> bool {
    let shown = bloom_of(logs);
    bloom.iter().zip(shown.iter()).all(|(told, shown)| told & !shown == 0)
}

/// The bloom of these logs.
fn bloom_of(logs: &[WireLog]) -> Bloom {
    let mut bloom = Bloom::ZERO;
    for log in logs {
        bloom.accrue(BloomInput::Raw(log.address.as_slice()));
        log.topics.iter().for_each(|topic| bloom.accrue(BloomInput::Raw(topic.as_slice())));
    }
    bloom
}

/// This very log, wherever a reorg may put its transaction: identical logs of one
/// transaction are told apart by how many came before.
pub(super) struct Occurrences {
    chain: [u8; 8],
    /// How many were identical to the one that came first.
    repeats: HashMap<OccurrenceId, u64, foldhash::fast::RandomState>,
}

impl Occurrences {
    /// For the logs of one block, in their order.
    pub(super) fn on(chain_id: u64) -> Occurrences {
        Occurrences { chain: chain_id.to_be_bytes(), repeats: HashMap::default() }
    }

    pub(super) fn of(&mut self, log: &WireLog) -> OccurrenceId {
        let first = self.nth(log, 0);
        match self.repeats.entry(first) {
            Entry::Vacant(new) => {
                new.insert(0);
                first
            }
            Entry::Occupied(mut repeats) => {
                *repeats.get_mut() += 1;
                let nth = *repeats.get();
                self.nth(log, nth)
            }
        }
    }

    /// A log with the same transaction, contract, topics and data as so many before it.
    fn nth(&self, log: &WireLog, before: u64) -> OccurrenceId {
        let topics = log.topics.concat();
        let (transaction, address) = (log.transaction_hash.as_slice(), log.address.as_slice());
        OccurrenceId::of(&[&self.chain, transaction, address, &topics, &log.data, &before.to_be_bytes()])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::primitives::Bytes;
    use roundtrip::words::{Position, UnixMs};

    use super::*;

    fn header(height: u64, fork: u8, parent_fork: u8) -> Header {
        let hash = |height: u64, fork: u8| B256::left_padding_from(&[fork, height.to_le_bytes()[0]]).0;
        let at = Position { height: Height(height), hash: hash(height, fork) };
        let parent = hash(height - 1, parent_fork);
        Header { at, parent, time: UnixMs(0), bloom: Bloom::ZERO, base_fee: None }
    }

    fn log(block: &Header, index: u64) -> WireLog {
        WireLog {
            address: Address::repeat_byte(1),
            topics: vec![B256::repeat_byte(2)],
            data: Bytes::from_static(b"data"),
            block_number: U64::from(block.at.height.0),
            block_hash: B256::from(block.at.hash),
            transaction_hash: B256::repeat_byte(3),
            log_index: U64::from(index),
            removed: false,
        }
    }

    #[test]
    fn headers_of_two_chains_are_cut_where_they_part() {
        let headers = vec![header(5, 0, 0), header(6, 0, 0), header(7, 1, 1), header(8, 1, 1)];
        let heights: Vec<u64> = linked(headers).iter().map(|header| header.at.height.0).collect();
        assert_eq!(heights, [5, 6]);
        assert_eq!(linked(Vec::new()), []);
    }

    #[test]
    fn logs_are_sorted_into_their_blocks() {
        let headers = [header(5, 0, 0), header(6, 0, 0)];
        let logs = vec![log(&headers[1], 4), log(&headers[0], 0), log(&headers[1], 2)];
        let sorted = by_block(&headers, logs).unwrap();
        let indexes: Vec<Vec<u64>> =
            sorted.iter().map(|block| block.iter().map(|log| log.log_index.to()).collect()).collect();
        assert_eq!(indexes, [vec![0], vec![2, 4]]);
    }

    #[test]
    fn a_log_of_another_block_is_no_answer() {
        let headers = [header(5, 0, 0)];
        let removed = WireLog { removed: true, ..log(&headers[0], 0) };
        for log in [log(&header(5, 1, 1), 0), log(&header(6, 0, 0), 0), log(&header(4, 0, 0), 0), removed] {
            assert!(by_block(&headers, vec![log]).is_err());
        }
    }

    #[test]
    fn logs_explain_a_bloom_or_something_is_missing() {
        let shown = log(&header(5, 0, 0), 0);
        let other = WireLog { address: Address::repeat_byte(9), ..shown.clone() };
        let bloom = bloom_of(std::slice::from_ref(&shown));
        assert!(explains(std::slice::from_ref(&shown), &bloom) && explains(&[shown, other.clone()], &bloom));
        assert!(!explains(&[other], &bloom) && !explains(&[], &bloom), "something is missing");
    }

    #[test]
    fn an_occurrence_is_the_same_in_any_block_and_identical_logs_are_told_apart() {
        let (one, other) = (header(5, 0, 0), header(9, 1, 1));
        let mut here = Occurrences::on(1);
        let (first, second) = (here.of(&log(&one, 0)), here.of(&log(&one, 1)));
        assert_ne!(first, second);
        let mut there = Occurrences::on(1);
        assert_eq!((first, second), (there.of(&log(&other, 7)), there.of(&log(&other, 8))));
        assert_ne!(first, Occurrences::on(2).of(&log(&one, 0)), "another chain");
        let moved = WireLog { transaction_hash: B256::repeat_byte(4), ..log(&one, 0) };
        assert_ne!(first, Occurrences::on(1).of(&moved), "another transaction");
    }
}
