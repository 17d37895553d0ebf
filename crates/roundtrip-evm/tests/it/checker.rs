//! The outside parties together on a real node: the submitter asks through drops and reorgs,
//! a responder that is a few lines long answers, and the checker counts what it did wrong.

use std::time::Duration;

use alloy::primitives::{Address, Bytes, TxKind, U256, keccak256};
use alloy::rpc::client::RpcClient;
use alloy::signers::local::PrivateKeySigner;
use alloy::sol_types::SolCall;
use roundtrip_evm::testkit::account::{Call, deploy_board, dev_signers, head, send_raw};
use roundtrip_evm::testkit::board::RequestBoard::{self, Response};
use roundtrip_evm::testkit::board::creation_input;
use roundtrip_evm::testkit::checker::{Verdict, check, read_facts};
use roundtrip_evm::testkit::node::{AnvilOptions, Mining, Node};
use roundtrip_evm::testkit::submitter::{Asked, Submitter, SubmitterOptions, SubmitterProgress};

const PATIENCE: Duration = Duration::from_secs(60);

fn payloads(count: usize) -> Vec<Bytes> {
    (0..count).map(|at| Bytes::from(format!("payload {at}").into_bytes())).collect()
}

fn expected(payload: &[u8]) -> Bytes {
    [b"re: ", payload].concat().into()
}

struct World {
    node: Node,
    client: RpcClient,
    board: Address,
    responder: PrivateKeySigner,
    next_nonce: u64,
}

impl World {
    async fn start() -> World {
        let node = Node::anvil(AnvilOptions::default()).await.unwrap();
        let client = node.client();
        let [deployer, responder] = [0, 1].map(|at| dev_signers()[at].clone());
        let board = deploy_board(&client, &deployer, &[responder.address()]).await.unwrap();
        World { node, client, board, responder, next_nonce: 0 }
    }

    fn submit(&self, payloads: Vec<Bytes>) -> Submitter {
        let keys = dev_signers()[2..4].to_vec();
        let options = SubmitterOptions { window: 10, depth: 3, ..SubmitterOptions::default() };
        Submitter::start(self.client.clone(), self.board, keys, payloads, options)
    }

    /// Mines until the submitter has its list; it looks at every block.
    async fn mine_until_asked(&self, mut submitter: Submitter) -> Vec<Asked> {
        while !submitter.is_finished() {
            self.node.mine(1).await.unwrap();
            let number = self.node.block_number().await.unwrap();
            wait(&mut submitter, |progress| progress.head >= number || progress.deep == progress.total).await;
        }
        submitter.finish().await.unwrap()
    }

    /// Which id the chain gave to each payload.
    async fn ids(&self, payloads: &[Bytes]) -> Vec<U256> {
        let hashes: Vec<_> = payloads.iter().map(keccak256).collect();
        let mut ids = vec![U256::MAX; payloads.len()];
        for id in (0..payloads.len()).map(U256::from) {
            let input: Bytes = RequestBoard::contentsCall { id }.abi_encode().into();
            let call = serde_json::json!([{"to": self.board, "input": input}, "latest"]);
            let answer: Bytes = self.client.request("eth_call", call).await.unwrap();
            let at = hashes.iter().position(|hash| hash.as_slice() == &answer[..]).unwrap();
            ids[at] = id;
        }
        ids
    }

    /// Sends a call of the responder; it waits to be mined.
    async fn call(&mut self, input: Vec<u8>) {
        let fees = head(&self.client).await.unwrap().fees();
        let call = Call {
            chain_id: 31337,
            nonce: self.next_nonce,
            to: TxKind::Call(self.board),
            input: input.into(),
            gas_limit: 500_000,
            fees,
        };
        let raw = call.sign(&self.responder).unwrap();
        self.next_nonce += 1;
        send_raw(&self.client, &[raw.bytes]).await.unwrap().remove(0).unwrap();
    }

    async fn respond(&mut self, id: U256, payload: &Bytes) {
        let call = RequestBoard::respondCall { id, content: keccak256(payload), answer: expected(payload) };
        self.call(call.abi_encode()).await;
    }

    async fn respond_many(&mut self, asked: &[(U256, Bytes)]) {
        let response = |(id, payload): &(U256, Bytes)| Response {
            id: *id,
            content: keccak256(payload),
            answer: expected(payload),
        };
        let responses = asked.iter().map(response).collect();
        self.call(RequestBoard::respondManyCall { responses }.abi_encode()).await;
    }

    async fn verdict(&self, payloads: &[Bytes]) -> Verdict {
        check(&self.client, self.board, payloads, &[self.responder.address()], expected).await.unwrap()
    }
}

async fn wait(submitter: &mut Submitter, far: impl FnMut(&SubmitterProgress) -> bool) -> SubmitterProgress {
    let reached = tokio::time::timeout(PATIENCE, submitter.wait_until(far)).await;
    reached.unwrap_or_else(|_| panic!("no further than {:?}", submitter.progress()))
}

#[tokio::test]
async fn every_request_is_asked_and_answered_through_a_drop_and_a_reorg() {
    let mut world = World::start().await;
    let payloads = payloads(50);
    let mut submitter = world.submit(payloads.clone());

    // A full window, and the pool forgets it.
    wait(&mut submitter, |progress| progress.sent == 20).await;
    world.node.drop_all().await.unwrap();
    world.node.mine(3).await.unwrap();
    let after_drop = wait(&mut submitter, |progress| progress.resent >= 20).await;
    assert_eq!((after_drop.mined, after_drop.sent), (0, 20));

    // Mined, and the blocks are replaced by empty ones.
    world.node.mine(1).await.unwrap();
    wait(&mut submitter, |progress| progress.mined >= 20).await;
    world.node.reorg(2).await.unwrap();
    wait(&mut submitter, |progress| progress.resent >= 40).await;

    let asked = world.mine_until_asked(submitter).await;
    assert_eq!(asked.len(), 50);
    assert_eq!(world.verdict(&payloads).await.to_string(), "settled 0, lost 50, doubled 0");

    let ids = world.ids(&payloads).await;
    let (single, many) = payloads.split_at(40);
    for (payload, id) in single.iter().zip(&ids) {
        world.respond(*id, payload).await;
    }
    let many: Vec<_> = ids[40..].iter().copied().zip(many.iter().cloned()).collect();
    world.respond_many(&many).await;
    world.node.mine(1).await.unwrap();
    assert_eq!(world.verdict(&payloads).await.to_string(), "settled 50, lost 0, doubled 0");
}

#[tokio::test]
async fn every_request_is_asked_once_through_a_storm() {
    let node = Node::anvil(AnvilOptions { mining: Mining::Every { ms: 50 }, ..AnvilOptions::default() }).await.unwrap();
    let client = node.client();
    let board = deploy_board(&client, &dev_signers()[0], &[]).await.unwrap();
    let payloads = payloads(300);
    let keys = dev_signers()[2..5].to_vec();
    let options = SubmitterOptions { window: 4, depth: 4, ..SubmitterOptions::default() };
    let mut submitter = Submitter::start(client.clone(), board, keys, payloads.clone(), options);

    let mut dice = fastrand::Rng::with_seed(4);
    for disturbance in 0..12 {
        // No reorg is as deep as the submitter waits for, and none reaches the board.
        let before = submitter.progress().head.max(4);
        let progress = wait(&mut submitter, |progress| progress.head >= before + 2).await;
        assert!(progress.mined < progress.total, "it was over before the storm: {progress:?}");
        match disturbance % 3 {
            0 => node.reorg(dice.u64(1..=3)).await.unwrap(),
            1 => node.drop_all().await.unwrap(),
            _ => node.set_next_base_fee(dice.u64(5..20) * 1_000_000_000).await.unwrap(),
        }
    }
    let after = wait(&mut submitter, |progress| progress.mined == progress.total).await;
    assert!(after.resent > 0 && after.bumped > 0, "{after:?}");
    let asked = tokio::time::timeout(PATIENCE, submitter.finish()).await.unwrap().unwrap();
    assert_eq!(asked.len(), 300);

    let facts = read_facts(&client, &[]).await.unwrap();
    let mut inputs: Vec<Bytes> = facts.transactions.into_iter().map(|mined| mined.input).collect();
    inputs.sort();
    let mut wanted: Vec<Bytes> = payloads
        .into_iter()
        .map(|payload| RequestBoard::requestCall { payload }.abi_encode().into())
        .chain([creation_input(&[])])
        .collect();
    wanted.sort();
    assert_eq!(inputs, wanted);
}

#[tokio::test]
async fn the_list_names_the_transaction_that_asked() {
    let world = World::start().await;
    let mut submitter = world.submit(payloads(4));
    wait(&mut submitter, |progress| progress.sent == 4).await;
    // What waits in the pool is too cheap from now on: it is signed again.
    world.node.set_next_base_fee(50_000_000_000).await.unwrap();
    world.node.mine(1).await.unwrap();
    wait(&mut submitter, |progress| progress.bumped >= 4).await;
    let asked = world.mine_until_asked(submitter).await;

    let facts = read_facts(&world.client, &[]).await.unwrap();
    for Asked { payload, transaction } in asked {
        let input = Bytes::from(RequestBoard::requestCall { payload }.abi_encode());
        let mined = facts.transactions.iter().filter(|mined| mined.input == input).count();
        assert_eq!(mined, 1);
        let read: serde_json::Value = world.client.request("eth_getTransactionByHash", (transaction,)).await.unwrap();
        assert_eq!(read["input"], serde_json::json!(input));
    }
}

#[tokio::test]
async fn what_the_responder_does_wrong_is_counted() {
    let mut world = World::start().await;
    let payloads = payloads(4);
    world.mine_until_asked(world.submit(payloads.clone())).await;
    let ids = world.ids(&payloads).await;

    // One is left out.
    for at in [0, 1] {
        world.respond(ids[at], &payloads[at]).await;
    }
    let wrong = RequestBoard::respondCall { id: ids[2], content: keccak256(&payloads[2]), answer: "no".into() };
    world.call(wrong.abi_encode()).await;
    world.node.mine(1).await.unwrap();
    assert_eq!(world.verdict(&payloads).await.to_string(), "settled 3, lost 1, doubled 0, wrong 1");

    // One is tried twice, alone and among others; the contract refuses both.
    world.respond(ids[0], &payloads[0]).await;
    let many = [(ids[1], payloads[1].clone()), (ids[3], payloads[3].clone())];
    world.respond_many(&many).await;
    world.node.mine(1).await.unwrap();
    assert_eq!(world.verdict(&payloads).await.to_string(), "settled 3, lost 1, doubled 2, wrong 1");
}

#[tokio::test]
async fn what_waits_behind_a_missing_nonce_is_counted() {
    let mut world = World::start().await;
    let payloads = payloads(2);
    world.mine_until_asked(world.submit(payloads.clone())).await;
    let ids = world.ids(&payloads).await;
    world.respond(ids[0], &payloads[0]).await;
    world.next_nonce += 1;
    world.respond(ids[1], &payloads[1]).await;
    world.node.mine(1).await.unwrap();
    assert_eq!(world.verdict(&payloads).await.to_string(), "settled 1, lost 1, doubled 0, gaps 1");
}

#[tokio::test]
async fn a_submitter_without_keys_says_so() {
    let world = World::start().await;
    let submitter =
        Submitter::start(world.client.clone(), world.board, vec![], payloads(1), SubmitterOptions::default());
    assert!(submitter.finish().await.err().unwrap().to_string().contains("no keys"));
    let idle = Submitter::start(world.client.clone(), world.board, vec![], vec![], SubmitterOptions::default());
    assert_eq!(idle.finish().await.unwrap(), vec![]);
}
