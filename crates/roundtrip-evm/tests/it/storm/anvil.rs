//! The storm on a real node. Its reorgs replace blocks by empty ones and forget what was in
//! them; here the same signed transactions are handed in again, for other blocks, but for
//! those that never come back.

use std::collections::VecDeque;

use alloy::primitives::{Bytes, TxKind, U64, U256};
use alloy::rpc::client::RpcClient;
use alloy::rpc::types::Log;
use alloy::signers::local::PrivateKeySigner;
use roundtrip_evm::EventSignature;
use roundtrip_evm::testkit::account::{Call, Fees, dev_key, head, send_raw};
use roundtrip_evm::testkit::node::{AnvilOptions, Node};
use roundtrip_evm::testkit::speaker::{self, EVENT, SPEAKER};
use serde_json::json;

use super::{Canonical, DROPPED_PER_MILLE, EVENTS_IN_A_BLOCK, FINAL_DEPTH, REORG_BLOCKS_MAX, REORGS_PER_MILLE, Sky};

const GAS: u64 = 200_000;
/// More than have a transaction in the blocks that a reorg may take, or still to come.
const ACCOUNTS: usize = 20;
const ETHER: u64 = 1_000;
/// How many blocks are asked for their logs at once, by whoever checks.
const RANGE: usize = 500;

/// A signed transaction, and the account whose next one it was.
#[derive(Clone)]
struct Sent {
    account: usize,
    bytes: Bytes,
}

pub(super) struct AnvilSky {
    node: Node,
    client: RpcClient,
    chain_id: u64,
    dice: fastrand::Rng,
    accounts: Vec<PrivateKeySigner>,
    /// How many transactions of each account are on the chain.
    nonces: Vec<u64>,
    fees: Fees,
    asked: u64,
    /// The newest blocks' transactions, as far back as a reorg may reach.
    recent: VecDeque<Vec<Sent>>,
    /// What was taken back and is to come again, in the order of each account.
    again: Vec<Sent>,
    reorgs: u64,
}

impl AnvilSky {
    pub(super) async fn new(dice: fastrand::Rng) -> AnvilSky {
        // A block is final two epochs later.
        let options = AnvilOptions { slots_in_an_epoch: FINAL_DEPTH / 2, ..AnvilOptions::default() };
        let node = Node::anvil(options).await.unwrap();
        let client = node.client();
        speaker::place(&client, EventSignature::parse(EVENT).unwrap().topic().unwrap()).await.unwrap();
        let chain_id: U64 = client.request_noparams("eth_chainId").await.unwrap();
        let fees = head(&client).await.unwrap().fees();
        let accounts: Vec<PrivateKeySigner> = (0..ACCOUNTS).map(dev_key).collect();
        for account in &accounts {
            node.set_balance(account.address(), ETHER).await.unwrap();
        }
        let nonces = vec![0; accounts.len()];
        let (recent, again) = (VecDeque::new(), Vec::new());
        let chain_id = chain_id.to();
        AnvilSky { node, client, chain_id, dice, accounts, nonces, fees, asked: 0, recent, again, reorgs: 0 }
    }

    /// The next events, from an account of which nothing is still to come.
    fn fresh(&mut self) -> Sent {
        let waits = |account: &usize| self.again.iter().any(|sent| sent.account == *account);
        let free: Vec<usize> = (0..self.accounts.len()).filter(|account| !waits(account)).collect();
        let account = free[self.dice.usize(..free.len())];
        let call = Call {
            chain_id: self.chain_id,
            nonce: self.nonces[account],
            to: TxKind::Call(SPEAKER),
            input: speaker::input(self.asked, EVENTS_IN_A_BLOCK),
            gas_limit: GAS,
            fees: self.fees,
        };
        self.asked += EVENTS_IN_A_BLOCK;
        Sent { account, bytes: call.sign(&self.accounts[account]).unwrap().bytes }
    }

    /// A block with these.
    async fn mine(&mut self, sent: Vec<Sent>) {
        let bytes: Vec<Bytes> = sent.iter().map(|sent| sent.bytes.clone()).collect();
        for taken in send_raw(&self.client, &bytes).await.unwrap() {
            taken.unwrap();
        }
        self.node.mine(1).await.unwrap();
        sent.iter().for_each(|sent| self.nonces[sent.account] += 1);
        self.recent.push_back(sent);
        if self.recent.len() > REORG_BLOCKS_MAX {
            self.recent.pop_front();
        }
    }

    /// Replaces so many blocks by empty ones.
    async fn reorg(&mut self, depth: usize) {
        let depth = depth.min(self.recent.len());
        self.node.reorg(depth as u64).await.unwrap();
        self.reorgs += 1;
        let kept = self.recent.len() - depth;
        let mut gone_for_good = Vec::new();
        let mut returned = Vec::new();
        for sent in self.recent.split_off(kept).into_iter().flatten() {
            self.nonces[sent.account] -= 1;
            // What an account sent after one that does not come back has no place either.
            if gone_for_good.contains(&sent.account) || self.dice.u16(..1_000) < DROPPED_PER_MILLE {
                gone_for_good.push(sent.account);
            } else {
                returned.push(sent);
            }
        }
        // What waited already comes later in the order of its account.
        self.again.retain(|sent| !gone_for_good.contains(&sent.account));
        returned.append(&mut self.again);
        self.again = returned;
        self.recent.extend((0..depth).map(|_| Vec::new()));
    }
}

impl Sky for AnvilSky {
    fn url(&self) -> String {
        self.node.url().to_string()
    }

    fn chain_id(&self) -> u64 {
        self.chain_id
    }

    fn event(&self) -> &'static str {
        EVENT
    }

    async fn block(&mut self) {
        let fresh = self.fresh();
        // Elsewhere, and before or after others.
        let back = self.dice.usize(..=self.again.len());
        let mut sent: Vec<Sent> = self.again.drain(..back).collect();
        let at = if self.dice.bool() { 0 } else { sent.len() };
        sent.insert(at, fresh);
        self.mine(sent).await;
        if self.dice.u16(..1_000) < REORGS_PER_MILLE {
            let depth = self.dice.usize(1..=REORG_BLOCKS_MAX);
            self.reorg(depth).await;
        }
    }

    async fn clear(&mut self) {
        let left = std::mem::take(&mut self.again);
        self.mine(left).await;
        self.node.mine(FINAL_DEPTH + 1).await.unwrap();
    }

    fn asked(&self) -> u64 {
        self.asked
    }

    fn reorgs(&self) -> u64 {
        self.reorgs
    }

    async fn canonical(&self) -> Canonical {
        let newest = self.node.block_number().await.unwrap();
        let mut found = Vec::new();
        for from in (0..=newest).step_by(RANGE) {
            let [from, to] = [from, from + RANGE as u64 - 1].map(|height| U64::from(height.min(newest)));
            let filter = json!({"address": SPEAKER, "fromBlock": from, "toBlock": to});
            let logs: Vec<Log> = self.client.request("eth_getLogs", (filter,)).await.unwrap();
            let number = |log: &Log| U256::from_be_bytes(log.topics()[1].0).to::<u64>();
            found.extend(logs.iter().map(|log| (number(log), log.block_number.unwrap())));
        }
        found
    }
}
