//! How a development chain is set up.

use alloy::primitives::U256;

/// A gwei in wei.
pub const GWEI: u64 = 1_000_000_000;

/// What becomes of the base fee from block to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseFee {
    /// It stays, until it is set to another.
    Fixed(u64),
    /// It begins here and follows the use of gas (EIP-1559).
    Moving(u64),
}

impl BaseFee {
    /// The first block's.
    pub(super) fn first(self) -> u64 {
        match self {
            BaseFee::Fixed(fee) | BaseFee::Moving(fee) => fee,
        }
    }
}

/// How a development chain is set up.
#[derive(Clone, Debug)]
pub struct DevChainOptions {
    /// Which chain signatures must be for.
    pub chain_id: u64,
    /// All chance comes from this, and it is in every block's hash.
    pub seed: u64,
    /// How many development accounts have money.
    pub accounts: usize,
    /// How much each of them has, in wei.
    pub balance: U256,
    /// The base fee.
    pub base_fee: BaseFee,
    /// What `eth_maxPriorityFeePerGas` suggests, in wei.
    pub tip: u64,
    /// How much gas a block holds.
    pub block_gas_limit: u64,
    /// The first block's time; the chain has no clock but its blocks.
    pub start_seconds: u64,
    /// How much later each next block is.
    pub block_seconds: u64,
    /// How many blocks behind the newest one is final; half as many make it safe.
    pub finality: u64,
    /// How many transactions may wait.
    pub pool_max: usize,
    /// How many transactions of one account may wait above a gap.
    pub queued_max: usize,
    /// How many logs one `eth_getLogs` answers at most.
    pub logs_max: Option<usize>,
}

impl Default for DevChainOptions {
    fn default() -> Self {
        DevChainOptions {
            chain_id: 31_337,
            seed: 0,
            accounts: 10,
            balance: U256::from(10_000) * U256::from(GWEI) * U256::from(GWEI),
            base_fee: BaseFee::Moving(GWEI),
            tip: GWEI,
            block_gas_limit: 36_000_000,
            start_seconds: 1_700_000_000,
            block_seconds: 12,
            finality: 64,
            pool_max: 6_144,
            queued_max: 64,
            logs_max: None,
        }
    }
}
