//! The chain itself: blocks, what waits, and the state; how a block is built, and how
//! blocks are taken back.
//!
//! ```text
//! pool ─▶ build: choose ─▶ execute ─▶ seal ─▶ blocks
//!  ▲                                            │
//!  └──────────────── reorg ◀────────────────────┘
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use alloy::consensus::Transaction;
use alloy::eips::eip1559::BaseFeeParams;
use alloy::primitives::{Address, B256, Log, U256};
use roundtrip::words::{Height, Position};

use super::block::{DevBlock, DevTransaction, Frame, MINER};
use super::board::{self, Call};
use super::faults::Chance;
use super::options::{BaseFee, DevChainOptions};
use super::pool::{self, Pool, Refused, Standing, Waiting};
use super::state::{Change, State};
use super::{code, gas};
use crate::testkit::account::dev_key;

/// How many blocks that a reorg took away can still be read by their hash.
pub(super) const ORPHANS_MAX: usize = 256;

/// What becomes of the transactions of the blocks that a reorg takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reorg {
    /// They wait again; the new branch is empty.
    ToPool,
    /// They are gone; the new branch is empty.
    Dropped,
    /// They, and whatever else waits, are in the new branch's first block, in an order by
    /// chance that keeps each account's nonces.
    Reordered,
    /// They, and whatever else waits, are in the new branch's last block.
    Later,
}

impl Reorg {
    /// Every way there is.
    pub const ALL: [Reorg; 4] = [Reorg::ToPool, Reorg::Dropped, Reorg::Reordered, Reorg::Later];
}

/// What a reorg did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reorged {
    /// The blocks that it took away, the lowest first.
    pub removed: Vec<Position>,
    /// The newest block of the new branch, which is one longer than the old.
    pub head: Position,
}

/// What goes into a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pick {
    Nothing,
    /// What pays the miner most, and of those what came first.
    Dearest,
    ByChance,
}

/// A jump of the base fee: what it goes back to, and with which block.
struct Spike {
    calm_fee: u64,
    ends_at: u64,
}

/// The chain.
pub(super) struct Ledger {
    pub(super) options: DevChainOptions,
    pub(super) blocks: Vec<Arc<DevBlock>>,
    pub(super) state: State,
    pub(super) pool: Pool,
    pub(super) chance: Chance,
    /// The next block's.
    pub(super) base_fee: u64,
    /// Where each transaction of the chain is.
    mined: HashMap<B256, (u64, usize)>,
    /// Where each block of the chain is.
    heights: HashMap<B256, u64>,
    orphans: VecDeque<Arc<DevBlock>>,
    pub(super) forks: u64,
    /// How many contracts were put there without a transaction.
    given: u64,
    spike: Option<Spike>,
}

impl Ledger {
    pub(super) fn new(options: DevChainOptions) -> Ledger {
        let mut state = State::default();
        for index in 0..options.accounts {
            state.endow(dev_key(index).address(), options.balance);
        }
        let mut ledger = Ledger {
            blocks: Vec::new(),
            state,
            pool: Pool::default(),
            chance: Chance::new(options.seed),
            base_fee: options.base_fee.first(),
            mined: HashMap::new(),
            heights: HashMap::new(),
            orphans: VecDeque::new(),
            forks: 0,
            given: 0,
            spike: None,
            options,
        };
        ledger.build(Pick::Nothing);
        ledger
    }

    /// The newest block's height.
    pub(super) fn height(&self) -> u64 {
        (self.blocks.len() as u64).saturating_sub(1)
    }

    pub(super) fn head(&self) -> Position {
        self.blocks.last().map_or(Position { height: Height(0), hash: [0; 32] }, |head| head.position())
    }

    pub(super) fn finalized(&self, head: u64) -> u64 {
        head.saturating_sub(self.options.finality)
    }

    /// Where a transaction is on the chain.
    pub(super) fn place(&self, hash: &B256) -> Option<(&Arc<DevBlock>, usize)> {
        let (height, index) = self.mined.get(hash)?;
        Some((self.blocks.get(usize::try_from(*height).ok()?)?, *index))
    }

    /// The height of a block of the chain.
    pub(super) fn height_of(&self, hash: &B256) -> Option<u64> {
        self.heights.get(hash).copied()
    }

    /// A block that was taken away, as long as it is remembered.
    pub(super) fn orphan(&self, hash: &B256) -> Option<&Arc<DevBlock>> {
        self.orphans.iter().find(|block| block.hash == *hash)
    }

    /// Takes a transaction from outside.
    pub(super) fn send(&mut self, raw: &[u8]) -> Result<B256, Refused> {
        let sent = pool::read(raw, self.options.chain_id)?;
        let (hash, from) = (*sent.inner().tx_hash(), sent.signer());
        if self.pool.get(&hash).is_some() {
            return Err(Refused::Known);
        }
        if sent.kind().is_create() && code::created(sent.input()).is_none() {
            return Err(Refused::Foreign);
        }
        let height = self.height();
        let rival = self.pool.at(from, sent.nonce()).cloned();
        let others = self.pool.of(from).filter(|waiting| waiting.nonce() != sent.nonce());
        let standing = Standing {
            block_gas_limit: self.options.block_gas_limit,
            next_nonce: self.state.nonce(from, height),
            balance: self.state.balance(from, height),
            queued: others.fold(U256::ZERO, |sum, waiting| sum.saturating_add(waiting.cost())),
            rival: rival.as_deref(),
        };
        pool::judge(&sent, &standing)?;
        if rival.is_none() && self.pool.len() >= self.options.pool_max {
            let cheapest = self.pool.cheapest().filter(|cheapest| cheapest.tip() < sent.priority_fee_or_price());
            let cheapest = cheapest.map(|cheapest| cheapest.hash).ok_or(Refused::Underpriced)?;
            self.pool.remove(&cheapest);
        }
        self.pool.insert(sent);
        self.pool.trim_queue(from, self.state.nonce(from, height), self.options.queued_max);
        Ok(hash)
    }

    /// Puts the sample contract there, as if it had always been.
    pub(super) fn deploy(&mut self, responders: &[Address]) -> Address {
        let board = Address::ZERO.create(self.given);
        self.given += 1;
        self.state.apply(0, Change::Deployed { board, responders: responders.iter().copied().collect() });
        board
    }

    /// A block, with whatever goes wrong by chance before it.
    pub(super) fn mine(&mut self) -> Position {
        self.misfortune();
        self.build(Pick::Dearest)
    }

    fn misfortune(&mut self) {
        let faults = self.chance.faults;
        let waiting: Vec<B256> = self.pool.all().map(|waiting| waiting.hash).collect();
        for hash in waiting {
            if self.chance.happens(faults.drop) {
                self.pool.remove(&hash);
            }
        }
        if self.chance.happens(faults.evict) {
            self.pool.clear();
        }
        if self.spike.is_none() && self.chance.happens(faults.spike) {
            let ends_at = self.height() + 1 + faults.spike_blocks;
            self.spike = Some(Spike { calm_fee: self.base_fee, ends_at });
            self.base_fee = self.base_fee.saturating_mul(faults.spike_times);
        }
        if self.chance.happens(faults.reorg) {
            let final_below = self.height() - self.finalized(self.height());
            let depth = self.chance.up_to(faults.reorg_blocks.min(final_below));
            let how = Reorg::ALL[self.chance.below(Reorg::ALL.len())];
            self.reorg(depth, how);
        }
    }

    /// Replaces the newest blocks by a longer branch; the first block stays.
    pub(super) fn reorg(&mut self, depth: u64, how: Reorg) -> Reorged {
        let depth = depth.min(self.height());
        if depth == 0 {
            return Reorged { removed: Vec::new(), head: self.head() };
        }
        let kept = self.height() - depth;
        let removed = self.blocks.split_off(usize::try_from(kept + 1).unwrap_or(self.blocks.len()));
        self.state.cut(kept);
        self.forks += 1;
        if let (BaseFee::Moving(_), Some(parent)) = (self.options.base_fee, self.blocks.last()) {
            self.base_fee = following(parent);
        }
        let positions = removed.iter().map(|block| block.position()).collect();
        self.take_back(removed, how);
        for number in 0..=depth {
            match how {
                Reorg::Reordered if number == 0 => self.build(Pick::ByChance),
                Reorg::Later if number == depth => self.build(Pick::Dearest),
                _ => self.build(Pick::Nothing),
            };
        }
        Reorged { removed: positions, head: self.head() }
    }

    fn take_back(&mut self, removed: Vec<Arc<DevBlock>>, how: Reorg) {
        for block in &removed {
            self.heights.remove(&block.hash);
            for transaction in &block.transactions {
                self.mined.remove(&transaction.sent.hash);
                if how != Reorg::Dropped {
                    self.pool.put_back(transaction.sent.clone());
                }
            }
        }
        self.pool.trim(self.options.pool_max);
        self.orphans.extend(removed);
        self.orphans.drain(..self.orphans.len().saturating_sub(ORPHANS_MAX));
    }

    /// Builds the next block.
    pub(super) fn build(&mut self, pick: Pick) -> Position {
        let number = self.blocks.len() as u64;
        if let Some(spike) = self.spike.take_if(|spike| number >= spike.ends_at) {
            self.base_fee = spike.calm_fee;
        }
        let transactions = if pick == Pick::Nothing { Vec::new() } else { self.fill(number, pick) };
        for (index, transaction) in transactions.iter().enumerate() {
            self.mined.insert(transaction.sent.hash, (number, index));
        }
        let frame = Frame {
            parent_hash: self.blocks.last().map_or(B256::ZERO, |parent| parent.hash),
            number,
            timestamp: self.options.start_seconds + number * self.options.block_seconds,
            base_fee: self.base_fee,
            gas_limit: self.options.block_gas_limit,
            seed: self.options.seed,
            forks: self.forks,
        };
        let block = DevBlock::seal(frame, transactions);
        if let BaseFee::Moving(_) = self.options.base_fee {
            self.base_fee = following(&block);
        }
        self.heights.insert(block.hash, number);
        self.blocks.push(Arc::new(block));
        self.sweep();
        self.head()
    }

    /// Executes what waits, each account's nonces in order.
    fn fill(&mut self, number: u64, pick: Pick) -> Vec<DevTransaction> {
        let mut done: Vec<DevTransaction> = Vec::new();
        let (mut gas_used, mut logs) = (0, 0);
        let candidate = |ledger: &Ledger, account| Some((account, ledger.candidate(account, number)?));
        let mut heads: BTreeMap<Address, Arc<Waiting>> =
            self.pool.accounts().into_iter().filter_map(|account| candidate(self, account)).collect();
        while let Some((account, next)) = self.choose(&heads, pick) {
            heads.remove(&account);
            if next.transaction.gas_limit() > self.options.block_gas_limit - gas_used {
                continue;
            }
            let mut transaction = self.execute(number, &next);
            gas_used += transaction.gas_used;
            transaction.cumulative_gas_used = gas_used;
            transaction.first_log = logs;
            logs += transaction.logs.len() as u64;
            done.push(transaction);
            self.pool.remove(&next.hash);
            heads.extend(candidate(self, account));
        }
        done
    }

    /// What this account's next transaction is, if a block would take it.
    fn candidate(&self, account: Address, number: u64) -> Option<Arc<Waiting>> {
        let next = self.pool.at(account, self.state.nonce(account, number))?;
        let pays = next.transaction.max_fee_per_gas() >= u128::from(self.base_fee);
        (pays && next.cost() <= self.state.balance(account, number)).then(|| next.clone())
    }

    fn choose(&mut self, heads: &BTreeMap<Address, Arc<Waiting>>, pick: Pick) -> Option<(Address, Arc<Waiting>)> {
        let (account, next) = match pick {
            Pick::ByChance => heads.iter().nth(self.chance.below(heads.len()))?,
            _ => heads.iter().max_by_key(|(_, waiting)| {
                (waiting.transaction.effective_tip_per_gas(self.base_fee), Reverse(waiting.arrival))
            })?,
        };
        Some((*account, next.clone()))
    }

    fn execute(&mut self, number: u64, sent: &Arc<Waiting>) -> DevTransaction {
        let (transaction, from) = (&sent.transaction, sent.from());
        let (to, value) = (transaction.kind(), transaction.value());
        let call = Call { from, nonce: sent.nonce(), to, value, input: transaction.input() };
        let run = board::run(&self.state, number, &call);
        let needed = (gas::intrinsic(to, transaction.input()) + run.gas).max(gas::floor(transaction.input()));
        let enough = needed <= transaction.gas_limit();
        let gas_used = needed.min(transaction.gas_limit());
        let gas_price = transaction.effective_gas_price(Some(self.base_fee));
        let tip = gas_price.saturating_sub(u128::from(self.base_fee));

        self.state.set_nonce(from, number, sent.nonce() + 1);
        self.pay(number, from, None, U256::from(gas_used) * U256::from(gas_price));
        let tip = U256::from(gas_used) * U256::from(tip);
        self.state.set_balance(MINER, number, self.state.balance(MINER, number).saturating_add(tip));
        let created = to.is_create().then(|| from.create(sent.nonce()));
        let address = to.to().copied().or(created).unwrap_or(Address::ZERO);
        let effects = run.end.ok().filter(|_| enough);
        let succeeded = effects.is_some();
        let mut logs = Vec::new();
        if let Some(effects) = effects {
            self.pay(number, from, Some(address), value);
            logs.extend(effects.logs.into_iter().map(|data| Log { address, data }));
            effects.changes.into_iter().for_each(|change| self.state.apply(number, change));
        }
        let sent = sent.clone();
        DevTransaction { sent, succeeded, gas_used, cumulative_gas_used: 0, gas_price, logs, first_log: 0, created }
    }

    /// Moves money, or burns it. A candidate can pay the most that it may cost.
    fn pay(&mut self, number: u64, from: Address, to: Option<Address>, amount: U256) {
        self.state.set_balance(from, number, self.state.balance(from, number).saturating_sub(amount));
        if let Some(to) = to {
            self.state.set_balance(to, number, self.state.balance(to, number).saturating_add(amount));
        }
    }

    /// Forgets what waits on a used slot, and what its account cannot pay for any more.
    fn sweep(&mut self) {
        let height = self.height();
        let hopeless = |waiting: &&Arc<Waiting>| {
            waiting.nonce() < self.state.nonce(waiting.from(), height)
                || waiting.cost() > self.state.balance(waiting.from(), height)
        };
        let hopeless: Vec<B256> = self.pool.all().filter(hopeless).map(|waiting| waiting.hash).collect();
        hopeless.iter().for_each(|hash| {
            self.pool.remove(hash);
        });
    }
}

/// The base fee of the block that follows.
fn following(parent: &DevBlock) -> u64 {
    let header = &parent.header;
    BaseFeeParams::ethereum().next_block_base_fee(header.gas_used, header.gas_limit, parent.base_fee())
}

#[cfg(test)]
mod tests;
