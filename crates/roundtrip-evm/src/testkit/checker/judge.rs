//! The decision: from what the chain shows to a verdict, as data.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

use alloy::primitives::{Address, B256, Bytes, LogData, U256};
use alloy::sol_types::{SolEventInterface, SolInterface};

use crate::testkit::board::RequestBoard::{self, RequestBoardCalls, RequestBoardEvents};

/// What the chain shows.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// All transactions of the canonical chain, in their order.
    pub transactions: Vec<Transaction>,
    /// The lanes.
    pub accounts: Vec<Account>,
}

/// A mined transaction.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// Whose it is.
    pub from: Address,
    /// Whom it called; none when it created a contract.
    pub to: Option<Address>,
    /// Which of the account's it is.
    pub nonce: u64,
    /// With what it called.
    pub input: Bytes,
    /// Whether it had its effect.
    pub succeeded: bool,
    /// What it emitted.
    pub logs: Vec<Log>,
}

/// An event of a transaction.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Whose it is.
    pub address: Address,
    /// Its topics.
    pub topics: Vec<B256>,
    /// Its data.
    pub data: Bytes,
}

/// A lane as the node shows it.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Whose account.
    pub address: Address,
    /// How many of its transactions are mined.
    pub latest: u64,
    /// The same with those that wait.
    pub pending: u64,
    /// The nonces of its transactions in the pool.
    pub pool: BTreeSet<u64>,
}

/// What the checker counted. All but `settled` should be nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Payloads that were answered.
    pub settled: u64,
    /// Payloads that were not.
    pub lost: u64,
    /// Answers to what was answered before, those that the contract refused included.
    pub doubled: u64,
    /// Answers that are not what was expected.
    pub wrong: u64,
    /// Nonces of the lanes that are missing, or used and not mined.
    pub gaps: u64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "settled {}, lost {}, doubled {}", self.settled, self.lost, self.doubled)?;
        match self.wrong {
            0 => {}
            wrong => write!(f, ", wrong {wrong}")?,
        }
        match self.gaps {
            0 => Ok(()),
            gaps => write!(f, ", gaps {gaps}"),
        }
    }
}

/// Judges the facts by the submitter's list.
pub fn judge(facts: &Facts, board: Address, payloads: &[Bytes], expected_answer: fn(&[u8]) -> Bytes) -> Verdict {
    let lanes: HashSet<Address> = facts.accounts.iter().map(|account| account.address).collect();
    let mut ledger = Ledger { expected_answer, asked: HashMap::new(), answered: HashSet::new(), doubled: 0, wrong: 0 };
    for transaction in &facts.transactions {
        if transaction.succeeded {
            ledger.take_events(board, transaction);
        } else if transaction.to == Some(board) && lanes.contains(&transaction.from) {
            ledger.take_refused(transaction);
        }
    }
    let listed: HashSet<&Bytes> = payloads.iter().collect();
    let settled = listed.iter().filter(|payload| ledger.answered.contains(**payload)).count() as u64;
    Verdict {
        settled,
        lost: payloads.len() as u64 - settled,
        doubled: ledger.doubled,
        wrong: ledger.wrong,
        gaps: facts.accounts.iter().map(|account| gaps(account, &facts.transactions)).sum(),
    }
}

/// What was asked and answered so far, in the order of the chain.
struct Ledger {
    expected_answer: fn(&[u8]) -> Bytes,
    asked: HashMap<U256, Bytes>,
    answered: HashSet<Bytes>,
    doubled: u64,
    wrong: u64,
}

impl Ledger {
    fn take_events(&mut self, board: Address, transaction: &Transaction) {
        for log in transaction.logs.iter().filter(|log| log.address == board) {
            let data = LogData::new_unchecked(log.topics.clone(), log.data.clone());
            match RequestBoardEvents::decode_raw_log(data.topics(), &data.data) {
                Ok(RequestBoardEvents::Requested(event)) => {
                    self.asked.insert(event.id, event.payload);
                }
                Ok(RequestBoardEvents::Responded(event)) => self.take_answer(event),
                // Not an event of the board: this address is not one.
                Err(_) => self.wrong += 1,
            }
        }
    }

    fn take_answer(&mut self, event: RequestBoard::Responded) {
        let Some(payload) = self.asked.get(&event.id) else {
            self.wrong += 1;
            return;
        };
        if (self.expected_answer)(payload) != event.answer {
            self.wrong += 1;
        }
        if !self.answered.insert(payload.clone()) {
            self.doubled += 1;
        }
    }

    /// A transaction of a lane that had no effect: was it a second answer?
    fn take_refused(&mut self, transaction: &Transaction) {
        let ids = match RequestBoardCalls::abi_decode(&transaction.input) {
            Ok(RequestBoardCalls::respond(call)) => vec![call.id],
            Ok(RequestBoardCalls::respondMany(call)) => call.responses.into_iter().map(|one| one.id).collect(),
            Ok(_) | Err(_) => return,
        };
        let was_answered = |id: &U256| self.asked.get(id).is_some_and(|payload| self.answered.contains(payload));
        self.doubled += ids.iter().filter(|id| was_answered(id)).count() as u64;
    }
}

/// What is amiss with a lane's nonces: holes on the chain, what can never be mined because a
/// nonce before it is missing, and what is still under way.
fn gaps(account: &Account, transactions: &[Transaction]) -> u64 {
    let own = transactions.iter().filter(|transaction| transaction.from == account.address);
    let mined: BTreeSet<u64> = own.map(|transaction| transaction.nonce).collect();
    let beyond = mined.last().map_or(0, |last| last + 1).max(account.latest);
    let holes = beyond - mined.len() as u64;

    let mut next = account.latest;
    let waiting = account.pool.iter().filter(|nonce| **nonce >= account.latest);
    let stranded = waiting
        .filter(|nonce| {
            let reachable = **nonce == next;
            next += u64::from(reachable);
            !reachable
        })
        .count() as u64;

    holes + stranded + u64::from(account.latest != account.pending)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use alloy::primitives::keccak256;
    use alloy::sol_types::{SolCall, SolEvent};

    use super::*;

    const BOARD: Address = Address::repeat_byte(0xb0);
    const LANE: Address = Address::repeat_byte(0x1a);
    const ASKER: Address = Address::repeat_byte(0xa5);

    fn expected(payload: &[u8]) -> Bytes {
        [b"re: ", payload].concat().into()
    }

    fn payload(id: u64) -> Bytes {
        format!("payload {id}").into_bytes().into()
    }

    fn log(event: &impl SolEvent) -> Log {
        let data = event.encode_log_data();
        Log { address: BOARD, topics: data.topics().to_vec(), data: data.data.clone() }
    }

    fn asks(id: u64, payload: Bytes) -> Transaction {
        let event = RequestBoard::Requested { id: U256::from(id), from: ASKER, payload };
        Transaction { from: ASKER, to: Some(BOARD), succeeded: true, logs: vec![log(&event)], ..Transaction::default() }
    }

    fn responded(id: u64, answer: Bytes) -> Log {
        log(&RequestBoard::Responded { id: U256::from(id), by: LANE, answer })
    }

    fn answers(nonce: u64, id: u64) -> Transaction {
        answers_with(nonce, id, expected(&payload(id)))
    }

    fn answers_with(nonce: u64, id: u64, answer: Bytes) -> Transaction {
        Transaction {
            from: LANE,
            to: Some(BOARD),
            nonce,
            succeeded: true,
            logs: vec![responded(id, answer)],
            ..Transaction::default()
        }
    }

    fn refused(nonce: u64, input: Vec<u8>) -> Transaction {
        Transaction { from: LANE, to: Some(BOARD), nonce, input: input.into(), ..Transaction::default() }
    }

    fn respond(id: u64) -> Vec<u8> {
        let content = keccak256(payload(id));
        RequestBoard::respondCall { id: U256::from(id), content, answer: Bytes::new() }.abi_encode()
    }

    fn respond_many(ids: &[u64]) -> Vec<u8> {
        let response = |id: &u64| RequestBoard::Response {
            id: U256::from(*id),
            content: keccak256(payload(*id)),
            answer: Bytes::new(),
        };
        RequestBoard::respondManyCall { responses: ids.iter().map(response).collect() }.abi_encode()
    }

    /// A lane with nothing under way.
    fn at_rest(transactions: &[Transaction]) -> Account {
        let count = transactions.iter().filter(|transaction| transaction.from == LANE).count() as u64;
        Account { address: LANE, latest: count, pending: count, pool: BTreeSet::new() }
    }

    /// Judges a chain on which payloads 0 and 1 were asked first.
    fn verdict(then: Vec<Transaction>, lane: impl FnOnce(&mut Account)) -> Verdict {
        let mut transactions = vec![asks(0, payload(0)), asks(1, payload(1))];
        transactions.extend(then);
        let mut account = at_rest(&transactions);
        lane(&mut account);
        judge(&Facts { transactions, accounts: vec![account] }, BOARD, &[payload(0), payload(1)], expected)
    }

    fn check(then: Vec<Transaction>, words: &str) {
        assert_eq!(verdict(then, |_| {}).to_string(), words);
    }

    fn check_lane(lane: impl FnOnce(&mut Account), words: &str) {
        assert_eq!(verdict(vec![answers(0, 0), answers(1, 1)], lane).to_string(), words);
    }

    #[test]
    fn all_answered_once_is_settled() {
        check(vec![answers(0, 0), answers(1, 1)], "settled 2, lost 0, doubled 0");
        let mut both = answers(0, 0);
        both.logs.push(responded(1, expected(&payload(1))));
        check(vec![both], "settled 2, lost 0, doubled 0");
    }

    #[test]
    fn what_nobody_answered_is_lost() {
        check(vec![answers(0, 0)], "settled 1, lost 1, doubled 0");
        check(vec![], "settled 0, lost 2, doubled 0");
        let nothing = judge(&Facts::default(), BOARD, &[payload(7)], expected);
        assert_eq!(nothing.to_string(), "settled 0, lost 1, doubled 0");
    }

    #[test]
    fn a_payload_that_is_listed_twice_is_lost_once() {
        let transactions = vec![asks(0, payload(0)), answers(0, 0)];
        let facts = Facts { accounts: vec![at_rest(&transactions)], transactions };
        let verdict = judge(&facts, BOARD, &[payload(0), payload(0)], expected);
        assert_eq!(verdict.to_string(), "settled 1, lost 1, doubled 0");
    }

    #[test]
    fn another_contract_s_events_answer_nothing() {
        let mut elsewhere = answers(0, 0);
        elsewhere.logs[0].address = ASKER;
        check(vec![elsewhere, answers(1, 1)], "settled 1, lost 1, doubled 0");
    }

    #[test]
    fn a_second_answer_is_doubled() {
        check(vec![answers(0, 0), answers(1, 1), answers(2, 0)], "settled 2, lost 0, doubled 1");
        // Asked again under another id, and answered again.
        let again = answers_with(2, 2, expected(&payload(0)));
        check(vec![answers(0, 0), answers(1, 1), asks(2, payload(0)), again], "settled 2, lost 0, doubled 1");
    }

    #[test]
    fn a_second_answer_that_the_contract_refused_is_doubled() {
        let settled = || vec![answers(0, 0), answers(1, 1)];
        let with = |transaction| [settled(), vec![transaction]].concat();
        check(with(refused(2, respond(0))), "settled 2, lost 0, doubled 1");
        check(with(refused(2, respond_many(&[0, 1]))), "settled 2, lost 0, doubled 2");
        check(vec![answers(0, 0), refused(1, respond_many(&[0, 1])), answers(2, 1)], "settled 2, lost 0, doubled 1");
    }

    #[test]
    fn a_first_answer_that_failed_is_not_doubled() {
        check(vec![refused(0, respond(0)), answers(1, 0), answers(2, 1)], "settled 2, lost 0, doubled 0");
        check(vec![answers(0, 0), answers(1, 1), refused(2, vec![1, 2, 3])], "settled 2, lost 0, doubled 0");
    }

    #[test]
    fn what_others_tried_is_not_the_lanes_fault() {
        let mut other = refused(0, respond(0));
        other.from = ASKER;
        check(vec![answers(0, 0), answers(1, 1), other], "settled 2, lost 0, doubled 0");
    }

    #[test]
    fn another_answer_than_expected_is_wrong() {
        let other = answers_with(0, 0, "something".into());
        check(vec![other, answers(1, 1)], "settled 2, lost 0, doubled 0, wrong 1");
        check(vec![answers(0, 0), answers(1, 1), answers(2, 9)], "settled 2, lost 0, doubled 0, wrong 1");
    }

    #[test]
    fn an_address_that_is_no_board_is_wrong() {
        let mut strange = answers(2, 0);
        strange.logs[0].topics = vec![B256::ZERO];
        check(vec![answers(0, 0), answers(1, 1), strange], "settled 2, lost 0, doubled 0, wrong 1");
    }

    #[test]
    fn a_hole_in_the_nonces_is_a_gap() {
        // Nonce 1 is missing: 3 is the third of the lane.
        let then = vec![answers(0, 0), answers(2, 1)];
        let with_hole = verdict(then, |lane| (lane.latest, lane.pending) = (3, 3));
        assert_eq!(with_hole.to_string(), "settled 2, lost 0, doubled 0, gaps 1");
        check_lane(|lane| (lane.latest, lane.pending) = (4, 4), "settled 2, lost 0, doubled 0, gaps 2");
    }

    #[test]
    fn what_waits_behind_a_missing_nonce_is_a_gap() {
        check_lane(|lane| lane.pool = [1, 3, 4].into(), "settled 2, lost 0, doubled 0, gaps 2");
        // Left over in the pool and mined already: nothing that waits.
        check_lane(|lane| lane.pool = [0, 1].into(), "settled 2, lost 0, doubled 0");
    }

    #[test]
    fn what_is_under_way_is_a_gap() {
        check_lane(|lane| (lane.pending, lane.pool) = (3, [2].into()), "settled 2, lost 0, doubled 0, gaps 1");
    }

    #[test]
    fn everything_amiss_is_said() {
        let then = vec![answers_with(0, 0, "something".into()), answers(1, 0)];
        let verdict = verdict(then, |lane| lane.pending = 3);
        assert_eq!(verdict.to_string(), "settled 1, lost 1, doubled 1, wrong 1, gaps 1");
    }
}
