//! A small chain in memory: blocks, a pool of transactions per lane, events, reorgs,
//! eviction and a rising fee, all on demand. It is nobody's chain: it drives the sender
//! and the listener in tests and in the simulation.
//!
//! Its contract takes every answer that comes, also a second one to the same request, so
//! that a double shows. Signing gives other bytes each time, so that a crash that made
//! anybody sign again shows too.

mod past;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::listener::{BlockSource, SourceBlock, SourceError, SourceFuture, Tips};
use crate::sender::chain::{
    Broadcast, Cargo, Chain, ChainFuture, Depth, Mark, Mined, Past, Reception, Sighting, Unreachable, Unsigned,
};
use crate::sender::{AttemptKind, SignedAttempt};
use crate::store::op::{Judgement, NewRequest};
use crate::store::query::{ParcelView, ReadyDelivery};
use crate::words::{AttemptHash, ErrorClass, ErrorNote, Height, LaneName, Nonce, Position, RequestId, UnixMs};

/// At how many blocks a transaction counts as confirmed, its own included.
pub const CONFIRMED_DEPTH: u64 = 2;
/// At how many blocks it is beyond any reorg.
pub const FINAL_DEPTH: u64 = 5;

/// A transaction of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// Which lane's.
    pub lane: LaneName,
    /// On which slot.
    pub nonce: Nonce,
    /// What it pays.
    pub fee: u64,
    /// The requests that it answers.
    pub answers: Vec<RequestId>,
    /// Those of them that it tells of a failure.
    pub failures: Vec<RequestId>,
    /// Whose it is and what it is for.
    pub purpose: Purpose,
    /// Makes every signature another one.
    salt: u64,
    padding: Vec<u8>,
}

/// Whose a transaction is and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// It carries answers.
    Carry,
    /// It only uses its slot up.
    Cancel,
    /// It is somebody else's.
    Outsider,
}

impl Transaction {
    /// The hash by which the chain knows it.
    pub fn hash(&self) -> AttemptHash {
        AttemptHash::of(&[&self.bytes()])
    }

    fn bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Whether it carries answers, or only uses its slot up.
    pub fn kind(&self) -> AttemptKind {
        if self.purpose == Purpose::Carry { AttemptKind::Carry } else { AttemptKind::Cancel }
    }

    fn signed(&self) -> SignedAttempt {
        SignedAttempt { hash: self.hash(), kind: self.kind(), bytes: self.bytes().into(), fee: Some(self.fee.into()) }
    }
}

/// A block: events that were emitted, and transactions that were mined.
#[derive(Clone, Debug)]
pub struct ChainBlock {
    /// Where it is.
    pub at: Position,
    /// The block before.
    pub parent: [u8; 32],
    /// The numbers of the events that it shows.
    pub events: Vec<u64>,
    /// The transactions that it holds, in order.
    pub transactions: Vec<Transaction>,
    /// Those of them that had no effect.
    pub failed: BTreeSet<AttemptHash>,
}

#[derive(Default)]
struct State {
    blocks: Vec<ChainBlock>,
    /// What waits to be mined, the dearest of each slot.
    pool: BTreeMap<(LaneName, Nonce), Transaction>,
    events: Vec<u64>,
    /// The height up to which blocks are beyond any reorg; it only grows.
    finalized: u64,
    base_fee: u64,
    forks: u64,
    salt: u64,
    /// Requests whose transactions have no effect.
    reverting: BTreeSet<RequestId>,
    /// Requests whose answers make transactions this much longer.
    padding: BTreeMap<RequestId, usize>,
    /// Requests whose answers never have an effect, unless they tell of a failure.
    failing: BTreeSet<RequestId>,
    /// Requests that nothing can be signed for but what tells of a failure.
    impossible: BTreeSet<RequestId>,
    /// Lanes whose answers the contract does not take.
    barred: BTreeSet<LaneName>,
    broke: bool,
    fee_cap: Option<u64>,
    /// How many of the next broadcasts are rejected.
    rejecting: u64,
}

/// What an event asks for.
type Ask = Arc<dyn Fn(u64) -> NewRequest + Send + Sync>;

/// The chain; clones are the same chain.
#[derive(Clone)]
pub struct TestChain {
    state: Arc<Mutex<State>>,
    ask: Option<Ask>,
}

impl Default for TestChain {
    fn default() -> Self {
        TestChain::new()
    }
}

impl TestChain {
    /// A chain with one empty block.
    pub fn new() -> TestChain {
        let chain = TestChain { state: Arc::new(Mutex::new(State { base_fee: 1, ..State::default() })), ask: None };
        chain.mine();
        chain
    }

    /// A chain whose events ask for something.
    pub fn with_events(ask: impl Fn(u64) -> NewRequest + Send + Sync + 'static) -> TestChain {
        TestChain { ask: Some(Arc::new(ask)), ..TestChain::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event with this number is to be in the next block.
    pub fn emit(&self, event: u64) {
        self.state().events.push(event);
    }

    /// Mines a block of all that waits and can be mined.
    pub fn mine(&self) {
        self.state().mine();
    }

    /// Takes the newest blocks away, but no final one; their transactions and events wait
    /// again to be mined. Answers how many were taken.
    pub fn reorg(&self, depth: u64) -> u64 {
        let mut state = self.state();
        let depth = depth.min(state.head().height.0 - state.finalized);
        state.forks += 1;
        for _ in 0..depth {
            let Some(block) = state.blocks.pop() else { break };
            for transaction in block.transactions {
                state.pool.entry((transaction.lane.clone(), transaction.nonce)).or_insert(transaction);
            }
            // Events come again in the order in which they came.
            let later = std::mem::take(&mut state.events);
            state.events = block.events.into_iter().chain(later).collect();
        }
        depth
    }

    /// Forgets the transactions that wait, as a node does that starts again.
    pub fn evict(&self) {
        self.state().pool.clear();
    }

    /// Forgets an event that waits: the transaction that showed it never comes back.
    pub fn forget_event(&self, event: u64) -> bool {
        let mut state = self.state();
        let before = state.events.len();
        state.events.retain(|waiting| *waiting != event);
        state.events.len() < before
    }

    /// The events that wait to be mined.
    pub fn waiting_events(&self) -> Vec<u64> {
        self.state().events.clone()
    }

    /// What a transaction must pay from now on.
    pub fn set_base_fee(&self, fee: u64) {
        self.state().base_fee = fee;
    }

    /// Whether lanes can pay.
    pub fn set_broke(&self, broke: bool) {
        self.state().broke = broke;
    }

    /// Whether the contract takes no answers from this lane: nothing more is signed for it, and
    /// what is mined from now on has no effect.
    pub fn set_barred(&self, lane: &LaneName, barred: bool) {
        let mut state = self.state();
        if barred {
            state.barred.insert(lane.clone())
        } else {
            state.barred.remove(lane)
        };
    }

    /// Transactions that answer this request are this many bytes longer.
    pub fn set_padding(&self, request: RequestId, bytes: usize) {
        self.state().padding.insert(request, bytes);
    }

    /// Nothing dearer than this is signed.
    pub fn set_fee_cap(&self, cap: Option<u64>) {
        self.state().fee_cap = cap;
    }

    /// So many of the next broadcasts are rejected.
    pub fn reject_next(&self, count: u64) {
        self.state().rejecting = count;
    }

    /// The lane's next slot: with what waits, at the head, and beyond any reorg.
    pub fn slots(&self, lane: &LaneName) -> [Nonce; 3] {
        let seen = self.state().look(lane, &[]);
        [seen.pending, seen.latest, seen.settled]
    }

    /// Transactions that answer this request have no effect, or have one again.
    pub fn set_reverting(&self, request: RequestId, reverting: bool) {
        let mut state = self.state();
        if reverting {
            state.reverting.insert(request)
        } else {
            state.reverting.remove(&request)
        };
    }

    /// From now on, transactions that answer this request alone have no effect. What was
    /// mined stays as it was.
    pub fn set_reverting_alone(&self, request: Option<RequestId>) {
        self.state().reverting = request.into_iter().collect();
    }

    /// Transactions that answer this request have no effect and never will, unless they tell of
    /// a failure.
    pub fn set_failing(&self, request: RequestId) {
        self.state().failing.insert(request);
    }

    /// Nothing can ever be signed that answers this request, unless it tells of a failure.
    pub fn set_impossible(&self, request: RequestId) {
        self.state().impossible.insert(request);
    }

    /// Somebody else uses the lane's next slot, at a price that nobody else pays.
    pub fn use_slot(&self, lane: &LaneName) {
        let mut state = self.state();
        let (nonce, fee) = (state.next(lane), state.base_fee * 1000);
        state.outsider(lane, nonce, fee);
    }

    /// Somebody else uses the slot after all that waits, too cheaply to be mined soon.
    pub fn use_slot_after(&self, lane: &LaneName) {
        let mut state = self.state();
        let nonce = state.look(lane, &[]).pending;
        state.outsider(lane, nonce, 0);
    }

    /// Forgets what others wait for on this lane; answers how much that was.
    pub fn drop_outsiders(&self, lane: &LaneName) -> usize {
        let mut state = self.state();
        let before = state.pool.len();
        state.pool.retain(|(of, _), transaction| of != lane || transaction.purpose != Purpose::Outsider);
        before - state.pool.len()
    }

    /// The blocks of the present chain.
    pub fn blocks(&self) -> Vec<ChainBlock> {
        self.state().blocks.clone()
    }

    /// The newest block.
    pub fn head(&self) -> Position {
        self.state().head()
    }

    /// The newest block beyond any reorg.
    pub fn finalized(&self) -> Position {
        let state = self.state();
        let final_block = state.blocks.iter().find(|block| block.at.height.0 == state.finalized);
        final_block.map_or_else(|| state.head(), |block| block.at)
    }

    /// How often the present chain answers each request: the outside's own count.
    pub fn answers(&self) -> BTreeMap<RequestId, usize> {
        let state = self.state();
        let mut answers = BTreeMap::new();
        let effective = |block: &'_ ChainBlock| {
            let done = block.transactions.iter().filter(|transaction| !block.failed.contains(&transaction.hash()));
            done.flat_map(|transaction| transaction.answers.clone()).collect::<Vec<_>>()
        };
        for id in &state.blocks.iter().flat_map(effective).collect::<Vec<_>>() {
            *answers.entry(*id).or_default() += 1;
        }
        answers
    }

    /// The requests that the present chain tells of a failure, each as often as it does.
    pub fn failures(&self) -> Vec<RequestId> {
        let state = self.state();
        let told = |block: &ChainBlock| {
            let done = block.transactions.iter().filter(|transaction| !block.failed.contains(&transaction.hash()));
            done.flat_map(|transaction| transaction.failures.clone()).collect::<Vec<_>>()
        };
        state.blocks.iter().flat_map(told).collect()
    }

    /// Slots that wait although a slot below them is empty: nobody will ever mine them.
    pub fn gaps(&self) -> Vec<(LaneName, Nonce)> {
        let state = self.state();
        let mut gaps = Vec::new();
        let mut next: BTreeMap<&LaneName, Nonce> = BTreeMap::new();
        for (lane, nonce) in state.pool.keys() {
            let expected = *next.entry(lane).or_insert_with(|| state.next(lane));
            if *nonce > expected {
                gaps.push((lane.clone(), *nonce));
            }
            next.insert(lane, nonce.plus(1));
        }
        gaps
    }
}

impl State {
    fn head(&self) -> Position {
        self.blocks.last().map_or(Position { height: Height(0), hash: [0; 32] }, |block| block.at)
    }

    /// The lane's next slot at the head.
    fn next(&self, lane: &LaneName) -> Nonce {
        self.next_at(lane, self.head().height)
    }

    /// The lane's next slot after this block.
    fn next_at(&self, lane: &LaneName, height: Height) -> Nonce {
        let visible = self.blocks.iter().filter(|block| block.at.height <= height);
        let mined = visible.flat_map(|block| &block.transactions);
        Nonce(mined.filter(|transaction| transaction.lane == *lane).count() as u64)
    }

    fn outsider(&mut self, lane: &LaneName, nonce: Nonce, fee: u64) {
        self.salt += 1;
        let (answers, failures, padding) = Default::default();
        let (lane, salt, purpose) = (lane.clone(), self.salt, Purpose::Outsider);
        let transaction = Transaction { lane: lane.clone(), nonce, fee, answers, failures, purpose, salt, padding };
        self.pool.insert((lane, nonce), transaction);
    }

    fn reverts(&self, transaction: &Transaction) -> bool {
        let barred = !transaction.answers.is_empty() && self.barred.contains(&transaction.lane);
        barred || self.fails(transaction) || transaction.answers.iter().any(|id| self.reverting.contains(id))
    }

    fn fails(&self, transaction: &Transaction) -> bool {
        transaction.answers.iter().any(|id| self.failing.contains(id) && !transaction.failures.contains(id))
    }

    fn mine(&mut self) {
        let lanes: BTreeSet<LaneName> = self.pool.keys().map(|(lane, _)| lane.clone()).collect();
        let mut transactions = Vec::new();
        for lane in lanes {
            let mut nonce = self.next(&lane);
            while let Some(transaction) = self.pool.get(&(lane.clone(), nonce)) {
                if transaction.fee < self.base_fee {
                    break;
                }
                transactions.push(transaction.clone());
                self.pool.remove(&(lane.clone(), nonce));
                nonce = nonce.plus(1);
            }
            let mined = nonce;
            self.pool.retain(|(other, nonce), _| *other != lane || *nonce >= mined);
        }
        let (height, parent) = (self.blocks.len() as u64, self.head().hash);
        let hash = RequestId::of(&[&height.to_le_bytes(), &self.forks.to_le_bytes(), &parent]).0;
        let events = std::mem::take(&mut self.events);
        let failed =
            transactions.iter().filter(|transaction| self.reverts(transaction)).map(Transaction::hash).collect();
        let at = Position { height: Height(height), hash };
        self.blocks.push(ChainBlock { at, parent, events, transactions, failed });
        self.finalized = self.finalized.max((height + 1).saturating_sub(FINAL_DEPTH));
    }

    fn look(&self, lane: &LaneName, parcels: &[ParcelView]) -> Sighting {
        let latest = self.next(lane);
        let settled = self.next_at(lane, Height(self.finalized));
        let forgotten = self.forgotten(lane, settled, parcels);
        let settled = forgotten.first().map_or(settled, |(nonce, _)| settled.min(*nonce));
        let mut pending = latest;
        while self.pool.contains_key(&(lane.clone(), pending)) {
            pending = pending.plus(1);
        }
        let ours = |transaction: &Transaction| {
            let parcel = parcels.iter().find(|parcel| parcel.nonce == transaction.nonce)?;
            parcel.attempts.iter().map(|attempt| attempt.hash).find(|hash| *hash == transaction.hash())
        };
        let mined = self.blocks.iter().flat_map(|block| block.transactions.iter().map(move |t| (block, t)));
        let mined = mined.filter(|(_, transaction)| transaction.lane == *lane).filter_map(|(block, transaction)| {
            let (attempt, at) = (ours(transaction)?, block.at);
            let failed = block.failed.contains(&attempt);
            let judgement = match failed {
                true if self.fails(transaction) => Judgement::Failed(ErrorNote::new(ErrorClass::Fatal, "never")),
                true => Judgement::Again(ErrorNote::new(ErrorClass::Retryable, "no effect")),
                false => Judgement::Done,
            };
            let (nonce, depth) = (transaction.nonce, self.depth(at.height));
            Some(Mined { nonce, attempt, at, depth, judgement, lane_to_blame: failed && self.barred.contains(lane) })
        });
        let below = |parcel: &&ParcelView| {
            let newest = parcel.attempts.last().and_then(read);
            parcel.nonce >= latest && newest.is_some_and(|transaction| transaction.fee < self.base_fee)
        };
        let below = parcels.iter().filter(below).map(|parcel| parcel.nonce).collect();
        let funds = Some(if self.broke { 0 } else { u128::MAX });
        Sighting { head: self.head(), pending, latest, settled, mined: mined.collect(), below, funds, forgotten }
    }

    fn depth(&self, height: Height) -> Depth {
        match self.blocks.len() as u64 - height.0 {
            _ if height.0 <= self.finalized => Depth::Final,
            depth if depth >= CONFIRMED_DEPTH => Depth::Confirmed,
            _ => Depth::Included,
        }
    }

    fn sign(&mut self, lane: &LaneName, nonce: Nonce, cargo: Cargo<'_>) -> Result<SignedAttempt, Unsigned> {
        if self.broke {
            return Err(Unsigned::Funds("nothing left".into()));
        }
        type Carried<'a> = (Vec<RequestId>, Vec<RequestId>, Purpose, &'a [SignedAttempt]);
        let (answers, failures, purpose, attempts): Carried<'_> = match cargo {
            Cargo::Deliveries(ready) => {
                let failures = ready.iter().filter(|delivery| delivery.failure).map(|delivery| delivery.id);
                (ready.iter().map(|delivery| delivery.id).collect(), failures.collect(), Purpose::Carry, &[])
            }
            Cargo::Dearer(attempts, _) => {
                let last = attempts.last().and_then(read);
                let last = last.ok_or_else(|| Unreachable("bytes of another chain".into()))?;
                (last.answers, last.failures, last.purpose, attempts)
            }
            Cargo::Nothing(attempts) => (Vec::new(), Vec::new(), Purpose::Cancel, attempts),
        };
        if !answers.is_empty() && attempts.is_empty() && self.barred.contains(lane) {
            return Err(Unsigned::Lane("the contract takes nothing from it".into()));
        }
        let dearest = attempts.iter().filter_map(read).map(|known| known.fee).max();
        let fee = dearest.map_or(0, |fee| fee + fee.div_ceil(10)).max(self.base_fee);
        if answers.iter().any(|id| self.impossible.contains(id) && !failures.contains(id)) {
            let why = "the contract would refuse it";
            // As on a real chain, a call that carries several does not tell which is to blame.
            return Err(match answers.len() {
                1 => Unsigned::Never(ErrorNote::new(ErrorClass::Fatal, why)),
                _ => Unsigned::Apart(why.into()),
            });
        }
        if self.fee_cap.is_some_and(|cap| fee > cap) {
            return Err(Unsigned::AtCap);
        }
        self.salt += 1;
        let padding = vec![0; answers.iter().filter_map(|id| self.padding.get(id)).sum()];
        let (lane, salt) = (lane.clone(), self.salt);
        Ok(Transaction { lane, nonce, fee, answers, failures, purpose, salt, padding }.signed())
    }

    fn receive(&mut self, attempt: &SignedAttempt) -> Reception {
        let Some(transaction) = read(attempt) else { return Reception::Rejected("not a transaction".into()) };
        if self.rejecting > 0 {
            self.rejecting -= 1;
            return Reception::Rejected("not these bytes".into());
        }
        if self.broke {
            return Reception::Funds("nothing left".into());
        }
        if transaction.nonce < self.next(&transaction.lane) {
            return Reception::Taken;
        }
        let slot = (transaction.lane.clone(), transaction.nonce);
        match self.pool.get(&slot) {
            Some(known) if *known == transaction => Reception::Taken,
            Some(known) if transaction.fee < known.fee + known.fee.div_ceil(10) => Reception::TooCheap,
            _ => {
                self.pool.insert(slot, transaction);
                Reception::Taken
            }
        }
    }
}

fn read(attempt: &SignedAttempt) -> Option<Transaction> {
    postcard::from_bytes(&attempt.bytes).ok()
}

impl Chain for TestChain {
    fn look<'a>(&'a self, lane: &'a LaneName, parcels: &'a [ParcelView]) -> ChainFuture<'a, Sighting> {
        Box::pin(async move { Ok(self.state().look(lane, parcels)) })
    }

    fn sign<'a>(
        &'a self,
        lane: &'a LaneName,
        nonce: Nonce,
        cargo: Cargo<'a>,
    ) -> ChainFuture<'a, SignedAttempt, Unsigned> {
        Box::pin(async move { self.state().sign(lane, nonce, cargo) })
    }

    fn broadcast<'a>(&'a self, _lane: &'a LaneName, attempts: &'a [SignedAttempt]) -> Broadcast<'a> {
        Box::pin(async move { attempts.iter().map(|attempt| Ok(self.state().receive(attempt))).collect() })
    }

    fn past<'a>(&'a self, lane: &'a LaneName, from: Nonce, _after: Option<&'a Past>) -> ChainFuture<'a, Vec<Past>> {
        Box::pin(async move { Ok(self.state().past(lane, from)) })
    }

    fn mark(&self, answer: &ReadyDelivery) -> Option<Mark> {
        Some(past::mark(answer))
    }
}

impl BlockSource for TestChain {
    fn tips(&self) -> SourceFuture<'_, Tips> {
        Box::pin(async move {
            let head = self.head();
            Ok(Tips { head, finalized: self.finalized(), time: time(head.height) })
        })
    }

    fn blocks(&self, from: Height, to: Height) -> SourceFuture<'_, Vec<SourceBlock>> {
        let within = |block: &ChainBlock| (from..=to).contains(&block.at.height);
        let blocks: Vec<ChainBlock> = self.blocks().into_iter().filter(within).collect();
        Box::pin(async move {
            if blocks.is_empty() {
                return Err(SourceError::Unreachable("no such block yet".into()));
            }
            let shown = |block: ChainBlock| SourceBlock {
                answered: Vec::new(),
                at: block.at,
                parent: block.parent,
                time: time(block.at.height),
                requests: self.ask.iter().flat_map(|ask| block.events.iter().map(|event| ask(*event))).collect(),
            };
            Ok(blocks.into_iter().map(shown).collect())
        })
    }
}

/// A block a second.
fn time(height: Height) -> UnixMs {
    UnixMs(height.0 * 1000)
}
