//! The storm on a chain that the test writes.

use alloy::primitives::{Address, B256, Bytes, keccak256};
use roundtrip_evm::EventSignature;
use roundtrip_evm::testkit::fakenode::{FakeChain, FakeLog, FakeNode, ServedNode};

use super::{Canonical, DROPPED_PER_MILLE, EVENTS_IN_A_BLOCK, FINAL_DEPTH, REORG_BLOCKS_MAX, REORGS_PER_MILLE, Sky};

const CHAIN_ID: u64 = 7;
const EVENT: &str = "Asked(uint256 indexed id)";

fn asked(n: u64) -> FakeLog {
    let topic = EventSignature::parse(EVENT).unwrap().topic().unwrap();
    let topics = vec![topic, B256::left_padding_from(&n.to_be_bytes())];
    let address = Address::repeat_byte(0xB0);
    FakeLog { address, topics, data: Bytes::new(), transaction: keccak256(n.to_be_bytes()) }
}

pub(super) struct FakeSky {
    chain: FakeChain,
    node: ServedNode,
    dice: fastrand::Rng,
    asked: u64,
    /// What was taken back and is to come again.
    again: Vec<FakeLog>,
    reorgs: u64,
}

impl FakeSky {
    pub(super) async fn new(dice: fastrand::Rng) -> FakeSky {
        let chain = FakeChain::new();
        let node = FakeNode::on(&chain, CHAIN_ID).serve_http().await.unwrap();
        FakeSky { chain, node, dice, asked: 0, again: Vec::new(), reorgs: 0 }
    }
}

impl Sky for FakeSky {
    fn url(&self) -> String {
        self.node.url().to_owned()
    }

    fn chain_id(&self) -> u64 {
        CHAIN_ID
    }

    fn event(&self) -> &'static str {
        EVENT
    }

    async fn block(&mut self) {
        let fresh = self.asked..self.asked + EVENTS_IN_A_BLOCK;
        self.asked = fresh.end;
        let mut logs: Vec<FakeLog> = fresh.map(asked).collect();
        // Elsewhere, and at another place among others.
        let back = self.dice.usize(..=self.again.len());
        logs.extend(self.again.split_off(self.again.len() - back));
        self.dice.shuffle(&mut logs);
        self.chain.mine(logs);
        if self.dice.u16(..1_000) < REORGS_PER_MILLE {
            let taken = self.chain.take_back(self.dice.usize(1..=REORG_BLOCKS_MAX));
            let returns = |_: &FakeLog| self.dice.u16(..1_000) >= DROPPED_PER_MILLE;
            self.again.extend(taken.into_iter().filter(returns));
            self.reorgs += 1;
        }
        self.chain.finalize(self.chain.head().saturating_sub(FINAL_DEPTH));
    }

    async fn clear(&mut self) {
        self.chain.mine(std::mem::take(&mut self.again));
        self.chain.mine_empty(3);
        self.chain.finalize(self.chain.head());
    }

    fn asked(&self) -> u64 {
        self.asked
    }

    fn reorgs(&self) -> u64 {
        self.reorgs
    }

    async fn canonical(&self) -> Canonical {
        let number = |log: &FakeLog| u64::from_be_bytes(log.topics[1][24..].try_into().unwrap());
        self.chain.logs().iter().map(|(height, log)| (number(log), *height)).collect()
    }
}
