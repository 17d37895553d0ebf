//! How a development chain is set up.

use alloy::primitives::{B256, U256, b256, keccak256};
use alloy::signers::local::PrivateKeySigner;

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

/// The keys that Anvil and hardhat give money to. Everybody knows them.
const KNOWN_KEYS: [B256; 10] = [
    b256!("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"),
    b256!("59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d"),
    b256!("5de4111afa1a4b94908f83103eb1f1706367c2e68ca870fc3fb9a804cdab365a"),
    b256!("7c852118294e51e653712a81e05800f419141751be58f605c371e15141b007a6"),
    b256!("47e179ec197488593b187f80a00eb0da91f1b9d0b13f8733639f19c30a34926a"),
    b256!("8b3a350cf5c34c9194ca85829a2df0ec3153be0318b5e2d3348e872092edffba"),
    b256!("92db14e403b83dfe3df233f83dfa3a0d7096f21ca9b0d6d6b8d88b2b4ec1564e"),
    b256!("4bbbf85ce3377467afe5d46f804f221813b2bb87f24d81f60f1fcdbf7cbf4356"),
    b256!("dbda1821b80551c9d65939329250298aa3472ba22feea921c0cf5d620ea67b97"),
    b256!("2a871d0798f97d79848a013d4936a73bf4cc922c825d33c1cf7073dff6d409c6"),
];

/// The key of a development account, the same on every development chain and in every
/// process: the first ten are those of other development nodes.
pub fn dev_key(index: usize) -> PrivateKeySigner {
    let made = || keccak256(format!("roundtrip development account {index}"));
    let mut secret = KNOWN_KEYS.get(index).copied().unwrap_or_else(made);
    loop {
        // Nearly every 32 bytes are a key; those that are none lead to the next.
        match PrivateKeySigner::from_bytes(&secret) {
            Ok(key) => return key,
            Err(_) => secret = keccak256(secret),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy::primitives::address;

    #[test]
    fn the_first_accounts_are_those_of_other_nodes() {
        assert_eq!(dev_key(0).address(), address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266"));
        assert_eq!(dev_key(9).address(), address!("a0Ee7A142d267C1f36714E4a8F75612F20a79720"));
        assert_ne!(dev_key(10).address(), dev_key(11).address());
    }
}
