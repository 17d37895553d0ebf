//! Accounts of the outside parties: they sign, and send what they signed, by plain JSON-RPC
//! and none of our sender, so that what they show says something about it.

use alloy::consensus::{SignableTransaction, TxEip1559, TxEnvelope, TxLegacy};
use alloy::eips::eip2718::Encodable2718;
use alloy::primitives::{Address, B256, Bytes, TxHash, TxKind, U64, b256, keccak256};
use alloy::rpc::client::RpcClient;
use alloy::signers::SignerSync;
use alloy::signers::local::PrivateKeySigner;
use alloy::transports::{TransportError, TransportResult};
use serde::Deserialize;

use super::board;

/// How many transactions are sent in one JSON-RPC batch.
pub const SEND_BATCH: usize = 100;
const CREATION_GAS: u64 = 3_000_000;
const TIP_WEI: u128 = 1_000_000_000;
/// More than any development node asks for where there is no base fee.
const GAS_PRICE_WEI: u128 = 20_000_000_000;

/// Why an outside party could not do something.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// The node refused it, or was not reached.
    #[error("the node did not take a call: {0}")]
    Rpc(#[from] TransportError),
    /// Nothing was signed.
    #[error("not signed: {0}")]
    Unsigned(#[from] alloy::signers::Error),
    /// The transaction that was to create the board is not mined, or failed.
    #[error("the board was not created by {0}: is the account funded?")]
    NotCreated(TxHash),
    /// A transaction was mined and had no effect.
    #[error("transaction {0} failed: has it enough gas?")]
    Failed(TxHash),
    /// It cannot go on.
    #[error("stopped: {0}")]
    Stopped(String),
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

/// The accounts that every development node funds, in their order.
pub fn dev_signers() -> Vec<PrivateKeySigner> {
    (0..KNOWN_KEYS.len()).map(dev_key).collect()
}

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

/// What a transaction offers per unit of gas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fees {
    /// At most this, in wei.
    pub max_fee: u128,
    /// To whoever mines it, in wei; none where there is no base fee, and all is one price.
    pub tip: Option<u128>,
}

impl Fees {
    /// An offer that holds while the base fee doubles.
    pub fn above(base_fee: u128) -> Fees {
        Fees { max_fee: base_fee.saturating_mul(2).saturating_add(TIP_WEI), tip: Some(TIP_WEI) }
    }

    /// An offer that every pool takes in place of this one, at this base fee.
    pub fn bumped(self, base_fee: u128) -> Fees {
        let raised = |wei: u128| wei.saturating_mul(5).div_ceil(4);
        let fresh = Fees::above(base_fee);
        Fees { max_fee: raised(self.max_fee).max(fresh.max_fee), tip: self.tip.map(|tip| raised(tip).max(TIP_WEI)) }
    }
}

/// What is to be signed.
#[derive(Clone, Debug)]
pub struct Call {
    /// On which chain.
    pub chain_id: u64,
    /// As which transaction of the account.
    pub nonce: u64,
    /// Whom it calls, or that it creates.
    pub to: TxKind,
    /// With what.
    pub input: Bytes,
    /// At most this much gas.
    pub gas_limit: u64,
    /// At this price.
    pub fees: Fees,
}

/// A transaction as it goes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawTransaction {
    /// The hash by which the chain knows it.
    pub hash: TxHash,
    /// Its signed bytes.
    pub bytes: Bytes,
}

impl Call {
    /// Signs it.
    pub fn sign(self, signer: &PrivateKeySigner) -> Result<RawTransaction, alloy::signers::Error> {
        let signed: TxEnvelope = match self.fees.tip {
            Some(tip) => {
                let transaction = TxEip1559 {
                    chain_id: self.chain_id,
                    nonce: self.nonce,
                    gas_limit: self.gas_limit,
                    max_fee_per_gas: self.fees.max_fee,
                    max_priority_fee_per_gas: tip,
                    to: self.to,
                    input: self.input,
                    ..TxEip1559::default()
                };
                let signature = signer.sign_hash_sync(&transaction.signature_hash())?;
                transaction.into_signed(signature).into()
            }
            None => {
                let transaction = TxLegacy {
                    chain_id: Some(self.chain_id),
                    nonce: self.nonce,
                    gas_price: self.fees.max_fee,
                    gas_limit: self.gas_limit,
                    to: self.to,
                    input: self.input,
                    ..TxLegacy::default()
                };
                let signature = signer.sign_hash_sync(&transaction.signature_hash())?;
                transaction.into_signed(signature).into()
            }
        };
        Ok(RawTransaction { hash: *signed.tx_hash(), bytes: signed.encoded_2718().into() })
    }
}

/// Hands transactions to a node, in their order; answers what it said to each.
pub async fn send_raw(client: &RpcClient, transactions: &[Bytes]) -> TransportResult<Vec<TransportResult<TxHash>>> {
    let mut answers = Vec::with_capacity(transactions.len());
    for some in transactions.chunks(SEND_BATCH) {
        let mut batch = client.new_batch();
        let waiters = some
            .iter()
            .map(|bytes| batch.add_call::<_, TxHash>("eth_sendRawTransaction", &(bytes,)))
            .collect::<TransportResult<Vec<_>>>()?;
        batch.send().await?;
        for waiter in waiters {
            answers.push(waiter.await);
        }
    }
    Ok(answers)
}

/// The newest block, as far as an account needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// Its number.
    pub number: U64,
    /// Its hash.
    pub hash: B256,
    /// What gas costs in it, on chains that have it.
    pub base_fee_per_gas: Option<U64>,
}

impl Head {
    /// What gas costs in it; nothing, where there is no base fee.
    pub fn base_fee(&self) -> u128 {
        self.base_fee_per_gas.map_or(0, |wei| wei.to())
    }

    /// What the coming blocks take.
    pub fn fees(&self) -> Fees {
        match self.base_fee_per_gas {
            Some(wei) => Fees::above(wei.to()),
            None => Fees { max_fee: GAS_PRICE_WEI, tip: None },
        }
    }
}

/// Reads the newest block.
pub async fn head(client: &RpcClient) -> TransportResult<Head> {
    client.request("eth_getBlockByNumber", ("latest", false)).await
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Creation {
    status: U64,
    contract_address: Option<Address>,
}

/// Creates a board with these responders, in a block that is mined for it.
pub async fn deploy_board(
    client: &RpcClient,
    signer: &PrivateKeySigner,
    responders: &[Address],
) -> Result<Address, AccountError> {
    let chain_id: U64 = client.request_noparams("eth_chainId").await?;
    let nonce: U64 = client.request("eth_getTransactionCount", (signer.address(), "latest")).await?;
    let fees = head(client).await?.fees();
    let call = Call {
        chain_id: chain_id.to(),
        nonce: nonce.to(),
        to: TxKind::Create,
        input: board::creation_input(responders),
        gas_limit: CREATION_GAS,
        fees,
    };
    let creation = call.sign(signer)?;
    let _: TxHash = client.request("eth_sendRawTransaction", (&creation.bytes,)).await?;
    let _: serde_json::Value = client.request_noparams("evm_mine").await?;
    let receipt: Option<Creation> = client.request("eth_getTransactionReceipt", (creation.hash,)).await?;
    match receipt {
        Some(Creation { status, contract_address: Some(address) }) if status == U64::ONE => Ok(address),
        _ => Err(AccountError::NotCreated(creation.hash)),
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
