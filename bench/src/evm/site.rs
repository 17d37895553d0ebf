//! An Anvil of a run's own, on whose board everything was asked before the clock starts.

use std::time::Instant;

use alloy::primitives::{Address, B256, Bytes, TxKind, U64, U256, keccak256};
use alloy::rpc::client::RpcClient;
use alloy::signers::local::PrivateKeySigner;
use alloy::sol_types::SolCall;
use roundtrip_evm::Rpc;
use roundtrip_evm::testkit::account::{Call, deploy_board, dev_key, dev_signers, head, send_raw};
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::node::{AnvilOptions, Mining, Node};

use super::{Failure, POLL};
use crate::report::{cpu_seconds, cpu_seconds_of};

/// The time between two blocks: short, so that waiting for the next says little.
const BLOCK_MS: u64 = 100;
/// Blocks hold whatever there is: the node's speed is the bound, not a block's size.
const BLOCK_GAS: u64 = 2_000_000_000;
/// Enough for every question.
const REQUEST_GAS: u64 = 150_000;
/// The number of the first account that answers.
const FIRST_LANE: usize = 20;
/// What each of them has, in wei: a thousand ether.
const FUNDS: U256 = U256::from_limbs([0x35c9_adc5_dea0_0000, 0x36, 0, 0]);

/// A node with a board on which everything was asked, and the accounts that may answer.
pub(super) struct Site {
    node: Node,
    pub(super) rpc: Rpc,
    pub(super) client: RpcClient,
    pub(super) chain_id: u64,
    pub(super) board: Address,
    pub(super) signers: Vec<PrivateKeySigner>,
    pub(super) count: u64,
}

fn payload(n: u64) -> Bytes {
    format!("request {n}").into_bytes().into()
}

pub(super) fn content(n: u64) -> B256 {
    keccak256(payload(n))
}

pub(super) fn answer(n: u64) -> Bytes {
    n.to_be_bytes().to_vec().into()
}

impl Site {
    pub(super) async fn ready(count: u64, lanes: usize) -> Result<Site, Failure> {
        let extra = vec!["--gas-limit".to_owned(), BLOCK_GAS.to_string()];
        let mining = Mining::Every { ms: BLOCK_MS };
        let node = Node::anvil(AnvilOptions { mining, extra, ..AnvilOptions::default() }).await?;
        let rpc = Rpc::http(node.url().as_str())?;
        let client = rpc.client();
        // It writes a line for every call otherwise, which somebody has to read.
        let _: serde_json::Value = client.request("anvil_setLoggingEnabled", (false,)).await?;
        let asker = dev_signers().pop().ok_or("no account asks")?;
        let signers: Vec<PrivateKeySigner> = (FIRST_LANE..FIRST_LANE + lanes).map(dev_key).collect();
        for signer in &signers {
            let _: serde_json::Value = client.request("anvil_setBalance", (signer.address(), FUNDS)).await?;
        }
        let responders: Vec<Address> = signers.iter().map(PrivateKeySigner::address).collect();
        let board = deploy_board(&client, &asker, &responders).await?;
        let site = Site { node, chain_id: rpc.chain_id().await?, rpc, client, board, signers, count };
        site.ask_all(&asker).await?;
        Ok(site)
    }

    /// One account asks all, so that the ids are in the order of the payloads.
    async fn ask_all(&self, asker: &PrivateKeySigner) -> Result<(), Failure> {
        let first = self.nonce(asker.address(), "latest").await?;
        let fees = head(&self.client).await?.fees();
        let mut outgoing = Vec::new();
        for n in 0..self.count {
            let call = Call {
                chain_id: self.chain_id,
                nonce: first + n,
                to: TxKind::Call(self.board),
                input: RequestBoard::requestCall { payload: payload(n) }.abi_encode().into(),
                gas_limit: REQUEST_GAS,
                fees,
            };
            outgoing.push(call.sign(asker)?.bytes);
        }
        for answer in send_raw(&self.client, &outgoing).await? {
            answer?;
        }
        while self.nonce(asker.address(), "latest").await? < first + self.count {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    async fn nonce(&self, account: Address, block: impl Into<String>) -> Result<u64, Failure> {
        let nonce: U64 = self.client.request("eth_getTransactionCount", (account, block.into())).await?;
        Ok(nonce.to())
    }

    /// Every request has its answer, and each answer used one slot.
    pub(super) async fn check(&self) -> Result<(), Failure> {
        for n in [0, self.count / 2, self.count - 1] {
            let input: Bytes = RequestBoard::isRespondedCall { id: U256::from(n) }.abi_encode().into();
            let call = serde_json::json!({"to": self.board, "data": input});
            let answered: U256 = self.client.request("eth_call", (call, "latest")).await?;
            if answered != U256::ONE {
                return Err(format!("request {n} was not answered").into());
            }
        }
        let mut sent = 0;
        for signer in &self.signers {
            sent += self.nonce(signer.address(), "latest").await?;
        }
        if sent == self.count { Ok(()) } else { Err(format!("{sent} transactions for {} answers", self.count).into()) }
    }
}

/// A clock that runs while transactions are sent.
pub(super) struct Meter<'a> {
    site: &'a Site,
    started: Instant,
    before: (f64, f64),
}

/// What sending took, in seconds: in all, of our processor time, and of the node's.
pub(super) struct Cost {
    pub(super) seconds: f64,
    pub(super) here: f64,
    pub(super) node: f64,
    /// In how many the node had taken everything.
    pub(super) accepted: f64,
}

impl Meter<'_> {
    pub(super) fn start(site: &Site) -> Meter<'_> {
        let before = (cpu_seconds(), cpu_seconds_of(site.node.process_id()));
        Meter { site, before, started: Instant::now() }
    }

    /// All is confirmed, and the node had taken everything at this time.
    pub(super) fn stop(&self, accepted_at: Instant) -> Cost {
        let seconds = self.started.elapsed().as_secs_f64();
        let node = cpu_seconds_of(self.site.node.process_id()) - self.before.1;
        let accepted = accepted_at.duration_since(self.started).as_secs_f64();
        Cost { seconds, here: cpu_seconds() - self.before.0, node, accepted }
    }
}
