//! Transactions that wait, and the rules by which they are let in: those of geth, in its
//! order and in its words, since senders decide by them.
//!
//! ```text
//! raw bytes ─▶ read ─▶ judge ─▶ insert ─▶ trim
//! ```
//!
//! A transaction below the base fee is let in and waits, one above a gap is queued. As on a
//! node, being let in promises nothing: when the pool or an account's queue is full,
//! something that was let in goes, and nobody is told.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use alloy::consensus::transaction::{Recovered, SignerRecoverable};
use alloy::consensus::{Transaction, TxEnvelope};
use alloy::eips::eip2718::{Decodable2718, Encodable2718};
use alloy::primitives::{Address, B256, U256};

use super::gas;

/// How long a transaction may be.
pub(super) const TRANSACTION_BYTES_MAX: usize = 128 * 1024;
/// What goes to the miner at the least, per gas.
pub(super) const TIP_MIN: u128 = 1;
/// How much dearer a replacement must be, in both fees.
pub(super) const REPLACEMENT_PERCENT: u128 = 10;

/// Why a transaction is not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Bytes that are no transaction.
    #[error("rlp: {0}")]
    Unreadable(String),
    /// This very transaction waits already.
    #[error("already known")]
    Known,
    /// Neither legacy nor EIP-1559.
    #[error("transaction type not supported")]
    Type,
    /// Its signature would hold on any chain.
    #[error("only replay-protected (EIP-155) transactions allowed over RPC")]
    Unprotected,
    /// Signed for another chain, or not at all.
    #[error("invalid sender: {0}")]
    Sender(String),
    /// Longer than nodes pass on.
    #[error("oversized data: transaction size {0}, limit {TRANSACTION_BYTES_MAX}")]
    Oversized(usize),
    /// It would not fit into any block.
    #[error("exceeds block gas limit")]
    BlockGas,
    /// Its fees contradict each other.
    #[error("max priority fee per gas higher than max fee per gas")]
    TipAboveFee,
    /// Not enough gas to begin.
    #[error("intrinsic gas too low: gas {gas}, minimum needed {needed}")]
    IntrinsicGas {
        /// What it brings.
        gas: u64,
        /// What it would need.
        needed: u64,
    },
    /// Not enough gas for its data.
    #[error("insufficient gas for floor data gas cost: gas {gas}, minimum needed {needed}")]
    FloorGas {
        /// What it brings.
        gas: u64,
        /// What it would need.
        needed: u64,
    },
    /// Nothing for the miner.
    #[error("transaction underpriced: gas tip cap {0}, minimum needed {TIP_MIN}")]
    Tip(u128),
    /// The pool is full of dearer ones.
    #[error("transaction underpriced")]
    Underpriced,
    /// Its slot is used.
    #[error("nonce too low: next nonce {next}, tx nonce {nonce}")]
    NonceTooLow {
        /// The first slot that is free.
        next: u64,
        /// Its own.
        nonce: u64,
    },
    /// The account cannot pay for it and for what waits already.
    #[error(
        "insufficient funds for gas * price + value: balance {balance}, queued cost {queued}, tx cost {cost}, \
         overshot {}", queued.saturating_add(*cost).saturating_sub(*balance)
    )]
    Funds {
        /// What the account has.
        balance: U256,
        /// What the account's waiting transactions may cost.
        queued: U256,
        /// What this one may cost.
        cost: U256,
    },
    /// The transaction that waits on the same slot pays as much, or nearly.
    #[error("replacement transaction underpriced")]
    Replacement,
    /// What only a whole EVM could run.
    #[error("the development chain runs its sample contract and plain transfers only")]
    Foreign,
}

/// A transaction that waits.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// What was sent, and by whom.
    pub transaction: Recovered<TxEnvelope>,
    /// Its hash.
    pub hash: B256,
    /// How many came before it.
    pub(super) arrival: u64,
}

impl Waiting {
    /// Whose it is.
    pub fn from(&self) -> Address {
        self.transaction.signer()
    }

    pub(super) fn nonce(&self) -> u64 {
        self.transaction.nonce()
    }

    /// What it may cost at most.
    pub(super) fn cost(&self) -> U256 {
        let gas = U256::from(self.transaction.gas_limit()) * U256::from(self.transaction.max_fee_per_gas());
        gas.saturating_add(self.transaction.value())
    }

    pub(super) fn tip(&self) -> u128 {
        self.transaction.priority_fee_or_price()
    }

    fn slot(&self) -> (Address, u64) {
        (self.from(), self.nonce())
    }
}

/// Reads a transaction that somebody sent.
pub(super) fn read(raw: &[u8], chain_id: u64) -> Result<Recovered<TxEnvelope>, Refused> {
    let mut rest = raw;
    let transaction = TxEnvelope::decode_2718(&mut rest).map_err(|error| Refused::Unreadable(error.to_string()))?;
    if !rest.is_empty() {
        return Err(Refused::Unreadable("trailing bytes".into()));
    }
    if !matches!(transaction, TxEnvelope::Legacy(_) | TxEnvelope::Eip1559(_)) {
        return Err(Refused::Type);
    }
    match transaction.chain_id() {
        None => return Err(Refused::Unprotected),
        Some(id) if id != chain_id => {
            return Err(Refused::Sender(format!("invalid chain id for signer: have {id} want {chain_id}")));
        }
        Some(_) => {}
    }
    transaction.try_into_recovered().map_err(|error| Refused::Sender(error.to_string()))
}

/// What the rules look at beside the transaction.
pub(super) struct Standing<'a> {
    pub(super) block_gas_limit: u64,
    pub(super) next_nonce: u64,
    pub(super) balance: U256,
    /// What the account's other waiting transactions may cost.
    pub(super) queued: U256,
    /// What waits on the same slot.
    pub(super) rival: Option<&'a Waiting>,
}

/// Whether a transaction is let in.
pub(super) fn judge(sent: &Recovered<TxEnvelope>, standing: &Standing<'_>) -> Result<(), Refused> {
    let bytes = sent.inner().encode_2718_len();
    if bytes > TRANSACTION_BYTES_MAX {
        return Err(Refused::Oversized(bytes));
    }
    let (gas, tip, fee) = (sent.gas_limit(), sent.priority_fee_or_price(), sent.max_fee_per_gas());
    if gas > standing.block_gas_limit {
        return Err(Refused::BlockGas);
    }
    if tip > fee {
        return Err(Refused::TipAboveFee);
    }
    let needed = gas::intrinsic(sent.kind(), sent.input());
    if gas < needed {
        return Err(Refused::IntrinsicGas { gas, needed });
    }
    let needed = gas::floor(sent.input());
    if gas < needed {
        return Err(Refused::FloorGas { gas, needed });
    }
    if tip < TIP_MIN {
        return Err(Refused::Tip(tip));
    }
    let (next, nonce) = (standing.next_nonce, sent.nonce());
    if nonce < next {
        return Err(Refused::NonceTooLow { next, nonce });
    }
    let cost = (U256::from(gas) * U256::from(fee)).saturating_add(sent.value());
    if standing.queued.saturating_add(cost) > standing.balance {
        return Err(Refused::Funds { balance: standing.balance, queued: standing.queued, cost });
    }
    match standing.rival {
        Some(rival) if fee < dearer(rival.transaction.max_fee_per_gas()) || tip < dearer(rival.tip()) => {
            Err(Refused::Replacement)
        }
        _ => Ok(()),
    }
}

/// What replaces this fee: a tenth more, and more in any case.
fn dearer(fee: u128) -> u128 {
    let raised = fee.saturating_mul(100 + REPLACEMENT_PERCENT) / 100;
    raised.max(fee.saturating_add(1))
}

/// What waits.
#[derive(Default)]
pub(super) struct Pool {
    slots: BTreeMap<(Address, u64), Arc<Waiting>>,
    hashes: HashMap<B256, (Address, u64)>,
    arrivals: u64,
}

impl Pool {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, hash: &B256) -> Option<&Arc<Waiting>> {
        self.slots.get(self.hashes.get(hash)?)
    }

    pub(super) fn at(&self, account: Address, nonce: u64) -> Option<&Arc<Waiting>> {
        self.slots.get(&(account, nonce))
    }

    /// All that waits, by account and nonce.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Waiting>> {
        self.slots.values()
    }

    pub(super) fn of(&self, account: Address) -> impl DoubleEndedIterator<Item = &Arc<Waiting>> {
        self.slots.range((account, 0)..=(account, u64::MAX)).map(|(_, waiting)| waiting)
    }

    pub(super) fn accounts(&self) -> BTreeSet<Address> {
        self.slots.keys().map(|(account, _)| *account).collect()
    }

    /// Lets a transaction in that comes for the first time.
    pub(super) fn insert(&mut self, transaction: Recovered<TxEnvelope>) -> B256 {
        let hash = *transaction.inner().tx_hash();
        self.arrivals += 1;
        self.put_back(Arc::new(Waiting { transaction, hash, arrival: self.arrivals }));
        hash
    }

    /// Lets a transaction in that a reorg took out of its block.
    pub(super) fn put_back(&mut self, waiting: Arc<Waiting>) {
        self.hashes.insert(waiting.hash, waiting.slot());
        if let Some(replaced) = self.slots.insert(waiting.slot(), waiting) {
            self.hashes.remove(&replaced.hash);
        }
    }

    pub(super) fn remove(&mut self, hash: &B256) -> Option<Arc<Waiting>> {
        let slot = self.hashes.remove(hash)?;
        self.slots.remove(&slot)
    }

    pub(super) fn clear(&mut self) -> usize {
        self.hashes.clear();
        std::mem::take(&mut self.slots).len()
    }

    /// The account's next slot when all that can be mined is.
    pub(super) fn next_nonce(&self, account: Address, mined: u64) -> u64 {
        let run = self.of(account).skip_while(|waiting| waiting.nonce() < mined).zip(mined..);
        mined + run.take_while(|(waiting, expected)| waiting.nonce() == *expected).count() as u64
    }

    /// What would have to go if one more came: the cheapest of the accounts' last ones, so
    /// that no gap is torn.
    pub(super) fn cheapest(&self) -> Option<&Arc<Waiting>> {
        let last = |account| self.of(account).next_back();
        self.accounts().into_iter().filter_map(last).min_by_key(|waiting| (waiting.tip(), u64::MAX - waiting.arrival))
    }

    /// Forgets the cheapest beyond so many.
    pub(super) fn trim(&mut self, most: usize) {
        while self.len() > most
            && let Some(hash) = self.cheapest().map(|cheapest| cheapest.hash)
        {
            self.remove(&hash);
        }
    }

    /// Forgets what lies above a gap of this account beyond so many.
    pub(super) fn trim_queue(&mut self, account: Address, mined: u64, queued_max: usize) {
        let next = self.next_nonce(account, mined);
        let queued = self.of(account).filter(|waiting| waiting.nonce() > next).map(|waiting| waiting.hash);
        for hash in queued.skip(queued_max).collect::<Vec<_>>() {
            self.remove(&hash);
        }
    }
}

#[cfg(test)]
mod tests;
