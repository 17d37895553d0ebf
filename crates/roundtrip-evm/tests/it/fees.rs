//! What is paid, on real nodes: a gas price where there is no base fee, no more than the cap and
//! whatever comes of that, accounts that run low and dry; and what real nodes say to a broadcast.
//! On Anvil, and on hardhat, whose pool is as strict as those of public nodes.

use std::time::Duration;

use alloy::consensus::Transaction;
use alloy::primitives::{B256, Bytes, U64};
use roundtrip::sender::chain::{Chain, Reception, Unreachable};
use roundtrip::sender::{AttemptKind, LaneStatus, Patience, SignedAttempt};
use roundtrip::store::op::{AfterCancel, LaneOrder, Order};
use roundtrip::store::{ReadExt, StoreExt};
use roundtrip::words::{AttemptHash, LaneName, Nonce};
use roundtrip_evm::EvmChainOptions;
use roundtrip_evm::testkit::account::{Call, Fees, RawTransaction, dev_key, dev_signers};
use roundtrip_evm::testkit::node::Node;

use super::hardhat::held;
use super::heard::Heard;
use super::world::{BUMPING, FINAL_DEPTH, STEADY, World, payloads, signed};

const GWEI: u64 = 1_000_000_000;
const ALERT: &str = "a slot pays all that it may";
const LOW: &str = "an account has little left";

fn lane() -> LaneName {
    LaneName::new("lane-0").unwrap()
}

async fn on_anvil() -> World {
    World::on_anvil(1).await
}

async fn on_hardhat() -> World {
    World::on(Node::hardhat().await.unwrap(), 1).await
}

/// Makes blocks until nothing is left, and so many slots are used. The outside checker asks for more than
/// hardhat can tell.
async fn all_sent(world: &World, slots: u64) {
    world.drained().await;
    let account = world.lanes[0].address();
    let sent: U64 = world.client.request("eth_getTransactionCount", (account, "latest")).await.unwrap();
    assert_eq!(sent, U64::from(slots));
}

/// Answers pay a price, and a person's cancel pays a tenth more; nothing has a base fee.
async fn at_a_gas_price(world: World) {
    let _relay = world.relay(STEADY).await;
    let payloads = payloads(3);
    world.ask_all(&payloads).await;
    let first = signed(&world.sent(0).await);
    assert!(!first.is_dynamic_fee(), "{first:?}");
    let asked: U64 = world.client.request_noparams("eth_gasPrice").await.unwrap();
    assert_eq!(first.max_fee_per_gas(), asked.to::<u128>(), "what the node suggests");

    let order = Order::Cancel { nonce: Nonce(0), then: AfterCancel::Requeue };
    assert!(world.store.apply_one(LaneOrder { lane: lane(), order }).await.unwrap().holds());
    let cancels = |attempts: &[SignedAttempt]| attempts.iter().any(|attempt| attempt.kind == AttemptKind::Cancel);
    let all = held(&world, cancels).await;
    let cancel = signed(all.last().unwrap());
    assert!(!cancel.is_dynamic_fee() && cancel.max_fee_per_gas() * 10 >= first.max_fee_per_gas() * 11, "{cancel:?}");

    all_sent(&world, 4).await;
    let account = world.lanes[0].address();
    let (used_up, answer) = (world.mined(account, 0).await.unwrap(), world.mined(account, 3).await.unwrap());
    assert_eq!((used_up.input, used_up.max_fee_per_gas), (Bytes::new(), None), "the cancel");
    assert_eq!(answer.input, *first.input(), "the same answer, on a slot of its own");
}

#[tokio::test]
async fn without_a_base_fee_answers_pay_a_gas_price_on_anvil() {
    at_a_gas_price(World::on(Node::anvil_at_a_gas_price().await.unwrap(), 1).await).await;
}

#[tokio::test]
async fn without_a_base_fee_answers_pay_a_gas_price_on_hardhat() {
    at_a_gas_price(World::on(Node::hardhat_at_a_gas_price().await.unwrap(), 1).await).await;
}

/// An answer that the node forgot, and that is late by the time the price has risen.
#[tokio::test]
async fn a_gas_price_that_has_risen_leads_to_a_bump() {
    let world = World::on(Node::anvil_at_a_gas_price().await.unwrap(), 1).await;
    let _relay = world.relay(BUMPING).await;
    let payloads = payloads(1);
    world.ask_all(&payloads).await;
    let first = world.sent(0).await;
    let paid = signed(&first).max_fee_per_gas();
    world.node.drop_transaction(B256::from(first.hash.0)).await.unwrap();
    world.node.set_gas_price(3 * u64::try_from(paid).unwrap()).await.unwrap();
    world.node.mine(1).await.unwrap();
    let all = held(&world, |attempts| attempts.len() > 1).await;
    let dearer = signed(all.last().unwrap());
    assert!(!dearer.is_dynamic_fee() && dearer.max_fee_per_gas() >= 3 * paid, "{dearer:?}");
    all_sent(&world, 1).await;
}

/// What a node does with a transaction that pays less than the newest block asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pool {
    Keeps,
    Refuses,
}

/// A base fee far above the cap: the answer pays all that it may, which is told once; it is sent again
/// however often the node forgets or refuses it, and mined when the base fee has fallen.
async fn at_the_cap(world: World, pool: Pool) {
    let heard = Heard::default();
    let _listening = tracing::subscriber::set_default(heard.clone());
    let cap = 10 * u128::from(GWEI);
    let deployment = world.deployment(Patience { resend_ms: 200, bump_ms: 300 });
    let options = EvmChainOptions { fee_cap: cap, ..deployment.chain_options() };
    let chain = deployment.chain_used(options).unwrap();
    let _relay = world.relay_sending(&deployment, chain, deployment.sending()).await;
    let payloads = payloads(1);
    world.ask_all(&payloads).await;
    world.sent(0).await;
    world.node.set_next_base_fee(100 * GWEI).await.unwrap();
    world.node.mine(1).await.unwrap();
    let newest = async || world.parcel(0, 0).await?.attempts.last().cloned();
    let told = || heard.text().matches(ALERT).count();
    let capped = async || newest().await.filter(|newest| signed(newest).max_fee_per_gas() == cap && told() > 0);
    let capped = world.until("it pays all that it may, and somebody is told", capped).await;
    let hash = B256::from(capped.hash.0);
    if pool == Pool::Keeps {
        for _ in 0..3 {
            world.until("the node has it", async || world.transaction(hash).await).await;
            world.node.drop_transaction(hash).await.unwrap();
        }
        world.until("the node has it again", async || world.transaction(hash).await).await;
    }
    assert_eq!((newest().await.map(|newest| newest.hash), told()), (Some(capped.hash), 1), "the same bytes, one alert");

    world.node.set_next_base_fee(GWEI).await.unwrap();
    world.node.mine(1).await.unwrap();
    all_sent(&world, 1).await;
    assert_eq!(world.mined(world.lanes[0].address(), 0).await.unwrap().hash, hash);
    assert_eq!(told(), 1);
}

#[tokio::test]
async fn at_the_fee_cap_the_same_bytes_go_out_until_fees_fall_on_anvil() {
    at_the_cap(on_anvil().await, Pool::Refuses).await;
}

#[tokio::test]
async fn at_the_fee_cap_the_same_bytes_go_out_until_fees_fall_on_hardhat() {
    at_the_cap(on_hardhat().await, Pool::Keeps).await;
}

/// An account that runs low is told of once; one that is dry holds its lane up until it is funded.
async fn runs_low_and_dry(world: World) {
    let heard = Heard::default();
    let _listening = tracing::subscriber::set_default(heard.clone());
    let deployment = world.deployment(STEADY);
    let ether = 10u128.pow(18);
    let options = EvmChainOptions {
        balance_min: 5 * ether,
        balance_fresh_for: Duration::from_millis(20),
        ..deployment.chain_options()
    };
    let chain = deployment.chain_used(options).unwrap();
    let _relay = world.relay_sending(&deployment, chain, deployment.sending()).await;
    let payloads = payloads(2);
    world.ask_all(&payloads[..1]).await;
    world.sent(0).await;
    let told = || heard.text().matches(LOW).count();
    assert_eq!(told(), 0, "there is enough");

    let account = world.lanes[0].address();
    world.node.set_balance(account, 3).await.unwrap();
    world.until("somebody is told", async || (told() > 0).then_some(())).await;
    all_sent(&world, 1).await;

    world.node.set_balance(account, 0).await.unwrap();
    world.ask(1, &payloads[1]).await;
    world.node.mine(1 + FINAL_DEPTH).await.unwrap();
    let status = async || world.store.lane(lane()).await.unwrap().unwrap().status;
    let dry = async || matches!(status().await, LaneStatus::Unfunded { .. }).then_some(());
    world.until("the lane cannot pay", dry).await;
    assert_eq!(told(), 1, "it was low all the time");
    // More than it had when the sender last looked, whenever that was.
    let ether = std::cell::Cell::new(10);
    let funded = async || {
        world.node.set_balance(account, ether.replace(ether.get() + 1)).await.unwrap();
        (status().await == LaneStatus::Active).then_some(())
    };
    world.until("the lane goes on by itself", funded).await;
    all_sent(&world, 2).await;
}

#[tokio::test]
async fn an_account_that_runs_low_is_told_of_and_one_that_is_dry_is_waited_for_on_anvil() {
    runs_low_and_dry(on_anvil().await).await;
}

#[tokio::test]
async fn an_account_that_runs_low_is_told_of_and_one_that_is_dry_is_waited_for_on_hardhat() {
    runs_low_and_dry(on_hardhat().await).await;
}

/// What a node says to bytes of every kind, in its own words.
async fn says(world: World) {
    let chain = world.deployment(STEADY).chain().unwrap();
    let said = async |raw: &RawTransaction| {
        let (hash, bytes) = (AttemptHash(raw.hash.0), raw.bytes.0.clone());
        let attempt = SignedAttempt { hash, kind: AttemptKind::Carry, bytes, fee: None };
        chain.broadcast(&lane(), &[attempt]).await.pop().unwrap()
    };
    let account = &dev_signers()[2];
    let plain = world.nothing(0).await;
    let first = plain.clone().sign(account).unwrap();
    assert_eq!(said(&first).await, Ok(Reception::Taken));
    assert_eq!(said(&first).await, Ok(Reception::Taken), "it is known");
    let rival = Call { gas_limit: 30_000, ..plain.clone() }.sign(account).unwrap();
    assert_eq!(said(&rival).await, Ok(Reception::TooCheap), "the slot has something as dear");
    world.node.mine(1).await.unwrap();
    assert_eq!(said(&first).await, Ok(Reception::Taken), "the slot is used");

    let next = Call { nonce: 1, ..plain };
    let rejected = |said: &Result<Reception, Unreachable>| matches!(said, Ok(Reception::Rejected(_)));
    let cases = [
        ("too little gas", Call { gas_limit: 20_000, ..next.clone() }),
        ("more gas than a block has", Call { gas_limit: 200_000_000, ..next.clone() }),
        ("another chain", Call { chain_id: 5, nonce: 2, ..next.clone() }),
    ];
    for (name, call) in cases {
        let said = said(&call.sign(account).unwrap()).await;
        assert!(rejected(&said), "{name}: {said:?}");
    }
    let poor = said(&Call { nonce: 0, ..next.clone() }.sign(&dev_key(77)).unwrap()).await;
    assert!(matches!(poor, Ok(Reception::Funds(_))), "{poor:?}");
    if next.fees.tip.is_none() {
        // There is no such transaction on a chain without a base fee.
        let fees = Fees { tip: Some(1), ..next.fees };
        let unknown = said(&Call { fees, ..next }.sign(account).unwrap()).await;
        assert!(rejected(&unknown), "{unknown:?}");
    }
}

#[tokio::test]
async fn what_anvil_says_to_a_broadcast_means_what_the_table_says() {
    says(on_anvil().await).await;
}

#[tokio::test]
async fn what_hardhat_says_to_a_broadcast_means_what_the_table_says() {
    says(on_hardhat().await).await;
    says(World::on(Node::hardhat_at_a_gas_price().await.unwrap(), 1).await).await;
}
