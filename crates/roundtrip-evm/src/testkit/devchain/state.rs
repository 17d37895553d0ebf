//! Accounts and contracts, with their past: every value knows since which block it holds.
//! So the state at any block can be read, and a reorg only cuts off what is younger.

use std::collections::{BTreeMap, BTreeSet};

use alloy::primitives::{Address, B256, U256};

/// A value at every block.
#[derive(Clone, Debug)]
struct History<V>(Vec<(u64, V)>);

impl<V> Default for History<V> {
    fn default() -> Self {
        History(Vec::new())
    }
}

impl<V: Copy> History<V> {
    fn at(&self, height: u64) -> Option<V> {
        let known = self.0.partition_point(|(since, _)| *since <= height);
        known.checked_sub(1).and_then(|last| self.0.get(last)).map(|(_, value)| *value)
    }

    fn set(&mut self, height: u64, value: V) {
        match self.0.last_mut() {
            Some((since, newest)) if *since == height => *newest = value,
            _ => self.0.push((height, value)),
        }
    }

    fn cut(&mut self, height: u64) {
        self.0.truncate(self.0.partition_point(|(since, _)| *since <= height));
    }
}

#[derive(Default)]
struct Account {
    nonce: History<u64>,
    balance: History<U256>,
}

/// A sample contract.
#[derive(Debug)]
pub(super) struct Board {
    since: u64,
    responders: BTreeSet<Address>,
    /// What was asked, with the block of each.
    contents: Vec<(u64, B256)>,
    /// What was answered, with the block of each.
    responded: BTreeMap<u64, u64>,
}

/// A sample contract as it is at a block.
#[derive(Clone, Copy)]
pub(super) struct BoardAt<'a> {
    board: &'a Board,
    height: u64,
}

impl BoardAt<'_> {
    pub(super) fn is_responder(&self, caller: Address) -> bool {
        self.board.responders.contains(&caller)
    }

    pub(super) fn asked(&self) -> u64 {
        self.board.contents.partition_point(|(since, _)| *since <= self.height) as u64
    }

    pub(super) fn content(&self, id: u64) -> Option<B256> {
        let (since, content) = self.board.contents.get(usize::try_from(id).ok()?)?;
        (*since <= self.height).then_some(*content)
    }

    pub(super) fn is_responded(&self, id: u64) -> bool {
        self.board.responded.get(&id).is_some_and(|since| *since <= self.height)
    }
}

/// What a transaction changes in a contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Deployed { board: Address, responders: BTreeSet<Address> },
    Asked { board: Address, content: B256 },
    Responded { board: Address, id: u64 },
}

/// All accounts and contracts.
#[derive(Default)]
pub(super) struct State {
    accounts: BTreeMap<Address, Account>,
    boards: BTreeMap<Address, Board>,
}

impl State {
    pub(super) fn nonce(&self, address: Address, height: u64) -> u64 {
        // An account that was never used has used no nonce and holds nothing.
        self.accounts.get(&address).and_then(|account| account.nonce.at(height)).unwrap_or(0)
    }

    pub(super) fn balance(&self, address: Address, height: u64) -> U256 {
        self.accounts.get(&address).and_then(|account| account.balance.at(height)).unwrap_or(U256::ZERO)
    }

    pub(super) fn board(&self, address: Address, height: u64) -> Option<BoardAt<'_>> {
        let board = self.boards.get(&address).filter(|board| board.since <= height)?;
        Some(BoardAt { board, height })
    }

    pub(super) fn set_nonce(&mut self, address: Address, height: u64, nonce: u64) {
        self.accounts.entry(address).or_default().nonce.set(height, nonce);
    }

    pub(super) fn set_balance(&mut self, address: Address, height: u64, balance: U256) {
        self.accounts.entry(address).or_default().balance.set(height, balance);
    }

    /// As if the account had always held this.
    pub(super) fn endow(&mut self, address: Address, balance: U256) {
        self.accounts.entry(address).or_default().balance = History(vec![(0, balance)]);
    }

    pub(super) fn apply(&mut self, height: u64, change: Change) {
        match change {
            Change::Deployed { board, responders } => {
                let fresh = Board { since: height, responders, contents: Vec::new(), responded: BTreeMap::new() };
                self.boards.insert(board, fresh);
            }
            Change::Asked { board, content } => {
                if let Some(board) = self.boards.get_mut(&board) {
                    board.contents.push((height, content));
                }
            }
            Change::Responded { board, id } => {
                if let Some(board) = self.boards.get_mut(&board) {
                    board.responded.insert(id, height);
                }
            }
        }
    }

    /// Forgets all that came after this block.
    pub(super) fn cut(&mut self, height: u64) {
        for account in self.accounts.values_mut() {
            account.nonce.cut(height);
            account.balance.cut(height);
        }
        self.boards.retain(|_, board| board.since <= height);
        for board in self.boards.values_mut() {
            board.contents.truncate(board.contents.partition_point(|(since, _)| *since <= height));
            board.responded.retain(|_, since| *since <= height);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_its_own_past() {
        let mut history = History::default();
        for (height, value) in [(0, 'a'), (3, 'b'), (3, 'c'), (7, 'd')] {
            history.set(height, value);
        }
        let seen: String = (0..9).filter_map(|height| history.at(height)).collect();
        assert_eq!(seen, "aaaccccdd");
        history.cut(6);
        assert_eq!(history.at(9), Some('c'));
        history.set(5, 'e');
        assert_eq!((history.at(4), history.at(5)), (Some('c'), Some('e')));
    }

    #[test]
    fn a_cut_takes_back_what_the_contract_learned() {
        let (at, asker) = (Address::with_last_byte(1), Address::with_last_byte(2));
        let content = |n| B256::with_last_byte(n);
        let mut state = State::default();
        state.apply(1, Change::Deployed { board: at, responders: [asker].into() });
        state.apply(2, Change::Asked { board: at, content: content(7) });
        state.apply(3, Change::Asked { board: at, content: content(8) });
        state.apply(3, Change::Responded { board: at, id: 0 });
        assert!(state.board(at, 0).is_none());
        let seen = |state: &State, height| {
            state.board(at, height).map(|board| (board.asked(), board.content(1), board.is_responded(0)))
        };
        assert_eq!(seen(&state, 2), Some((1, None, false)));
        assert_eq!(seen(&state, 3), Some((2, Some(content(8)), true)));
        state.cut(2);
        assert_eq!(seen(&state, 9), Some((1, None, false)));
        state.cut(0);
        assert!(state.board(at, 9).is_none());
    }
}
