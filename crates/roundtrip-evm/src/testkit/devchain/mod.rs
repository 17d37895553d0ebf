//! The development chain: an EVM chain in this process, for tests, the simulation and the
//! demo. It speaks enough JSON-RPC to listen for events and to send, bump, cancel and
//! confirm transactions, and it reorgs, drops, evicts, lags, loses answers and raises its
//! fees on demand or by a seed.
//!
//! ```text
//! client() ─────┐                                        ┌─ pool
//!               ├─▶ door: faults ─▶ rpc ─▶ ledger ───────┼─ blocks
//! serve_http() ─┘                            ▲           └─ state
//!                             mine, reorg ───┘
//! ```
//!
//! It executes the sample contract `contracts/RequestBoard.sol` and plain transfers, and
//! nothing else: there is no EVM in it, and other contracts are refused. Gas is of the right
//! order, not exact; the state root is a placeholder; everything else in a header is real.
//! `pending` is `latest` except for an account's count of transactions. Blocks come when
//! [`DevChain::mine`] or `evm_mine` is called and at no other time; there is no clock and no task, so that
//! it runs under a paused clock, and the same seed with the same calls in the same order is
//! the same history, hash by hash. All of the chain is kept in memory.
//!
//! What it cannot show is what a real node does that nobody thought of: no guarantee is
//! proven on it alone.

mod block;
mod board;
mod code;
mod door;
mod faults;
mod gas;
mod ledger;
mod options;
mod pool;
mod rpc;
#[cfg(test)]
mod samples;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alloy::primitives::{Address, B256, U256};
use roundtrip::words::Position;

pub use block::{DevBlock, DevTransaction};
pub use door::Served;
pub use faults::{Faults, PerMille};
pub use ledger::{Reorg, Reorged};
pub use options::{BaseFee, DevChainOptions, GWEI};
pub use pool::{Refused, Waiting};

use faults::Sight;
use ledger::{Ledger, Pick};

/// A development chain; clones are the same chain.
#[derive(Clone)]
pub struct DevChain {
    ledger: Arc<Mutex<Ledger>>,
}

impl Default for DevChain {
    fn default() -> Self {
        DevChain::new(DevChainOptions::default())
    }
}

impl DevChain {
    /// A chain with one empty block.
    pub fn new(options: DevChainOptions) -> DevChain {
        DevChain { ledger: Arc::new(Mutex::new(Ledger::new(options))) }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the sample contract there, as if it had always been: no reorg takes it away.
    pub fn deploy_board(&self, responders: &[Address]) -> Address {
        self.ledger().deploy(responders)
    }

    /// Mines what waits: of each account consecutive nonces, the highest tip first. Faults
    /// that happen with blocks happen before.
    pub fn mine(&self) -> Position {
        self.ledger().mine()
    }

    /// Mines a block with nothing in it, and nothing happens before.
    pub fn mine_empty(&self) -> Position {
        self.ledger().build(Pick::Nothing)
    }

    /// Replaces the newest blocks by a branch that is one longer. This reaches below what
    /// was final, if told to; the first block stays.
    pub fn reorg(&self, depth: u64, how: Reorg) -> Reorged {
        self.ledger().reorg(depth, how)
    }

    /// Takes a transaction, as `eth_sendRawTransaction` does, past all faults.
    pub fn send(&self, raw: &[u8]) -> Result<B256, Refused> {
        self.ledger().send(raw)
    }

    /// Forgets a transaction that waits; answers whether it did.
    pub fn drop_pending(&self, hash: B256) -> bool {
        self.ledger().pool.remove(&hash).is_some()
    }

    /// Forgets all that waits, as a node does that starts again; answers how many.
    pub fn drop_all_pending(&self) -> usize {
        self.ledger().pool.clear()
    }

    /// The next block's base fee, in wei; it stays or moves on from there.
    pub fn set_base_fee(&self, wei: u64) {
        self.ledger().base_fee = wei;
    }

    /// What an account holds, as if it had always held it: no reorg takes it away.
    pub fn set_balance(&self, account: Address, wei: U256) {
        self.ledger().state.endow(account, wei);
    }

    /// What goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.ledger().chance.faults = faults;
    }

    /// The next so many answers to this method are lost, after it was carried out.
    pub fn lose_next(&self, method: &str, answers: u64) {
        self.ledger().chance.lose_next(method, answers);
    }

    /// Which chain signatures must be for.
    pub fn chain_id(&self) -> u64 {
        self.ledger().options.chain_id
    }

    /// The newest block.
    pub fn head(&self) -> Position {
        self.ledger().head()
    }

    /// The newest final block's height.
    pub fn finalized(&self) -> u64 {
        let ledger = self.ledger();
        ledger.finalized(ledger.height())
    }

    /// How many reorgs there were.
    pub fn reorgs(&self) -> u64 {
        self.ledger().forks
    }

    /// The next block's base fee, in wei.
    pub fn base_fee(&self) -> u64 {
        self.ledger().base_fee
    }

    /// The account's first slot that no block uses.
    pub fn nonce(&self, account: Address) -> u64 {
        let ledger = self.ledger();
        ledger.state.nonce(account, ledger.height())
    }

    /// What the account holds, in wei.
    pub fn balance(&self, account: Address) -> U256 {
        let ledger = self.ledger();
        ledger.state.balance(account, ledger.height())
    }

    /// What waits, by account and nonce.
    pub fn pool(&self) -> Vec<Arc<Waiting>> {
        self.ledger().pool.all().cloned().collect()
    }

    /// The blocks of the present chain, the first one first.
    pub fn blocks(&self) -> Vec<Arc<DevBlock>> {
        self.ledger().blocks.clone()
    }

    /// Answers a JSON-RPC request or batch, past all faults. What asks for no answer gets
    /// the empty string.
    pub fn handle(&self, request: &str) -> String {
        rpc::answer(&mut self.ledger(), &rpc::read(request), Sight::default())
    }
}
