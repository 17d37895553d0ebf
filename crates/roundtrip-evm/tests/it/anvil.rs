//! The round trip on a real node: events in, transactions out, through reorgs, drops, rising
//! fees, a stranger on a lane's account, and a person who cancels. The relay is in this
//! process, its store is a file, and blocks are made by the test.

use std::sync::Arc;
use std::time::Duration;

use alloy::consensus::Transaction;
use alloy::primitives::{B256, Bytes, TxKind, U64, U256, keccak256};
use alloy::sol_types::SolCall;
use roundtrip::clock::SystemClock;
use roundtrip::inbox::Standing;
use roundtrip::sender::chain::{Cargo, Chain, Depth, Mined};
use roundtrip::sender::{AttemptKind, ParcelStage, SenderOptions, SignedAttempt};
use roundtrip::store::journal::Event;
use roundtrip::store::op::{AfterCancel, Judgement, LaneOrder, Order};
use roundtrip::store::query::{ParcelView, Phase, ReadyDelivery};
use roundtrip::store::{ReadExt, StoreExt};
use roundtrip::words::{LaneName, Nonce, Payload, RequestId, RouteName, Seq, Token};
use roundtrip_evm::testkit::account::{Call, Fees, dev_signers, head};
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::deployment::{Deployment, GAS, answer_to};
use roundtrip_evm::testkit::submitter::{Submitter, SubmitterOptions};
use roundtrip_evm::{Gas, Outcome, Outcomes};

use super::world::{BUMPING, FINAL_DEPTH, STEADY, World, payloads, signed};

const GWEI: u64 = 1_000_000_000;
/// A base fee that nothing pays which was signed before.
const SPIKE: u64 = 100 * GWEI;

#[tokio::test]
async fn every_request_is_answered_over_several_lanes() {
    let world = World::on_anvil(3).await;
    let _relay = world.relay(STEADY).await;
    let payloads = payloads(60);
    let options = SubmitterOptions { window: 5, depth: FINAL_DEPTH, ..SubmitterOptions::default() };
    let keys = dev_signers()[1..3].to_vec();
    let submitter = Submitter::start(world.client.clone(), world.board, keys, payloads.clone(), options);
    world.mine_until("everything is asked", async || submitter.is_finished().then_some(())).await;
    world.settled(&payloads).await;
    for lane in &world.lanes {
        let sent: U64 = world.client.request("eth_getTransactionCount", (lane.address(), "latest")).await.unwrap();
        assert!(sent > U64::ZERO, "{} was not used", lane.address());
    }
}

#[tokio::test]
async fn answers_share_transactions_by_count_and_by_time() {
    let world = World::on_anvil(1).await;
    let deployment = Deployment { parcel_max: 5, gas: Gas::Fixed(1_000_000), ..world.deployment(STEADY) };
    let waiting = |wait| SenderOptions { parcel_wait: Duration::from_millis(wait), ..deployment.sending() };
    let relay = async |wait| world.relay_sending(&deployment, deployment.chain().unwrap(), waiting(wait)).await;
    let carried = async |nonce| Some(world.parcel(0, nonce).await?.deliveries.len());
    let patient = relay(600_000).await;
    let payloads = payloads(7);
    world.ask_all(&payloads[..3]).await;
    world.node.mine(FINAL_DEPTH).await.unwrap();
    let ready = async || {
        let requests = world.requests().await;
        (requests.len() == 3 && requests.iter().all(|request| request.phase == Phase::Ready)).then_some(())
    };
    world.until("three are ready, and wait", ready).await;
    for (payload, nonce) in payloads[3..].iter().zip(3..) {
        world.ask(nonce, payload).await;
    }
    world.node.mine(1 + FINAL_DEPTH).await.unwrap();
    assert_eq!(world.until("a full one goes out", async || carried(0).await).await, 5);
    drop(patient);
    let _relay = relay(100).await;
    assert_eq!(world.until("one that is not full goes out in time", async || carried(1).await).await, 2);
    world.settled(&payloads).await;
    let sent: U64 =
        world.client.request("eth_getTransactionCount", (world.lanes[0].address(), "latest")).await.unwrap();
    assert_eq!(sent, U64::from(2));
}

/// An answer comes as far as this, and then its block goes.
async fn taken_away(stage: ParcelStage) {
    let world = World::on_anvil(1).await;
    let _relay = world.relay(STEADY).await;
    let payloads = payloads(3);
    world.ask_all(&payloads).await;
    let sent = world.sent(0).await;
    let reached = async || world.parcel(0, 0).await.filter(|parcel| parcel.stage == stage);
    let blocks = if stage == ParcelStage::Included { 1 } else { 2 };
    world.node.mine(blocks).await.unwrap();
    let parcel = world.until("the answer is in a block", reached).await;
    let block = parcel.block.unwrap().at;

    world.node.reorg(blocks).await.unwrap();
    let back = async || world.parcel(0, 0).await.filter(|parcel| parcel.stage == ParcelStage::Assigned);
    world.until("the answer is to be sent again", back).await;
    world.settled(&payloads).await;
    let mined = world.mined(world.lanes[0].address(), 0).await.unwrap();
    assert_eq!(mined.hash, B256::from(sent.hash.0), "the same bytes");
    assert_ne!(mined.block_hash, Some(B256::from(block.hash)), "another block");
}

#[tokio::test]
async fn incident_7_an_answer_that_a_reorg_takes_away_is_sent_again() {
    taken_away(ParcelStage::Included).await;
}

#[tokio::test]
async fn incident_7_an_answer_that_a_reorg_takes_away_when_it_was_confirmed_is_sent_again() {
    taken_away(ParcelStage::Confirmed).await;
}

#[tokio::test]
async fn a_request_that_a_reorg_moves_to_another_block_is_answered_once() {
    let world = World::on_anvil(1).await;
    let _relay = world.relay(STEADY).await;
    let payloads = payloads(1);
    let raw = world.ask(0, &payloads[0]).await;
    let one = async |standing: Standing| {
        let request = world.requests().await.into_iter().next();
        request.filter(|request| request.standing == standing && request.phase == Phase::Waiting)
    };
    world.node.mine(1).await.unwrap();
    let before = world.until("it is answered", async || one(Standing::Seen).await).await;

    world.node.reorg(1).await.unwrap();
    world.until("it is gone", async || one(Standing::Orphaned).await).await;
    world.node.mine(1).await.unwrap();
    world.send_again(&raw).await;
    world.node.mine(1).await.unwrap();
    let after = world.until("it is back", async || one(Standing::Seen).await).await;
    assert_eq!(after.seq, before.seq, "the same request, not admitted again");
    assert_ne!(after.occurrences[0].place, before.occurrences[0].place, "in another block");
    world.settled(&payloads).await;
}

#[tokio::test]
async fn a_request_that_does_not_come_back_is_never_answered() {
    let world = World::on_anvil(1).await;
    let _relay = world.relay(STEADY).await;
    let payloads = payloads(2);
    world.ask(0, &payloads[0]).await;
    world.node.mine(1).await.unwrap();
    world.until("it is there", async || world.requests().await.into_iter().next()).await;
    world.node.reorg(1).await.unwrap();
    // Under the id of the one that is gone, the other is asked.
    world.ask(0, &payloads[1]).await;
    world.settled(&payloads[1..]).await;
}

#[tokio::test]
async fn a_dropped_transaction_is_sent_again() {
    let world = World::on_anvil(1).await;
    let _relay = world.relay(STEADY).await;
    let payloads = payloads(3);
    world.ask_all(&payloads).await;
    let sent = world.sent(0).await;
    world.node.drop_transaction(B256::from(sent.hash.0)).await.unwrap();
    world.settled(&payloads).await;
    let mined = world.mined(world.lanes[0].address(), 0).await.unwrap();
    assert_eq!(mined.hash, B256::from(sent.hash.0), "the same bytes");
}

#[tokio::test]
async fn a_base_fee_above_what_was_signed_leads_to_a_bump() {
    let world = World::on_anvil(1).await;
    let _relay = world.relay(BUMPING).await;
    let payloads = payloads(3);
    world.ask_all(&payloads).await;
    let first = signed(&world.sent(0).await);
    world.node.set_next_base_fee(SPIKE).await.unwrap();
    world.node.mine(1).await.unwrap();
    assert_eq!(world.mined(world.lanes[0].address(), 0).await, None, "too cheap to be mined");
    let bumped = async || {
        let last = signed(world.parcel(0, 0).await?.attempts.last()?);
        (last.max_fee_per_gas() > SPIKE.into()).then_some(last)
    };
    let bumped = world.until("it is dearer than the base fee", bumped).await;
    assert_eq!(bumped.input(), first.input(), "the same answer");

    world.settled(&payloads).await;
    let mined = world.mined(world.lanes[0].address(), 0).await.unwrap();
    assert!(mined.max_fee_per_gas.unwrap().to::<u128>() >= bumped.max_fee_per_gas(), "{mined:?}");
}

#[tokio::test]
async fn a_slot_that_a_stranger_left_empty_is_filled() {
    let world = World::on_anvil(1).await;
    // Somebody uses the lane's account, so that the lane begins above it.
    let lane = world.lanes[0].clone();
    let base_fee = head(&world.client).await.unwrap().base_fee();
    let fees = Fees { max_fee: base_fee, tip: Some(1) };
    let stranger = world.send(&lane, Call { fees, ..world.nothing(0).await }).await;
    world.node.set_next_base_fee(SPIKE).await.unwrap();
    world.node.mine(1).await.unwrap();

    let _relay = world.relay(STEADY).await;
    let payloads = payloads(3);
    world.ask_all(&payloads).await;
    world.sent(1).await;
    world.node.drop_transaction(stranger.hash).await.unwrap();
    world.settled(&payloads).await;
    let filled = world.mined(lane.address(), 0).await.unwrap();
    assert_ne!(filled.hash, stranger.hash);
}

#[tokio::test]
async fn a_person_who_cancels_uses_the_slot_up_and_the_answer_takes_another() {
    let world = World::on_anvil(1).await;
    let _relay = world.relay(STEADY).await;
    let payloads = payloads(1);
    world.ask_all(&payloads).await;
    let first = signed(&world.sent(0).await);
    let order = Order::Cancel { nonce: Nonce(0), then: AfterCancel::Requeue };
    let lane = LaneName::new("lane-0").unwrap();
    assert!(world.store.apply_one(LaneOrder { lane, order }).await.unwrap().holds());
    let cancel = world.until("there is a cancel", async || {
        let attempts = world.parcel(0, 0).await?.attempts;
        let cancel = attempts.into_iter().find(|attempt| attempt.kind == AttemptKind::Cancel)?;
        world.transaction(B256::from(cancel.hash.0)).await
    });
    let cancel = cancel.await;
    world.settled(&payloads).await;
    let account = world.lanes[0].address();
    let (used_up, answer) = (world.mined(account, 0).await.unwrap(), world.mined(account, 1).await.unwrap());
    assert_eq!((used_up.hash, used_up.input), (cancel.hash, Bytes::new()));
    assert_eq!(answer.input, *first.input(), "the same answer");
}

#[tokio::test]
async fn a_look_after_a_long_while_finds_what_is_there_and_not_what_was() {
    let world = World::on_anvil(1).await;
    let chain = world.deployment(STEADY).chain().unwrap();
    let lane = LaneName::new("lane-0").unwrap();
    let first = chain.sign(&lane, Nonce(0), Cargo::Nothing(&[])).await.unwrap();
    let second = chain.sign(&lane, Nonce(0), Cargo::Nothing(std::slice::from_ref(&first))).await.unwrap();
    let parcel = on_slot(0, vec![first.clone(), second.clone()]);
    let parcels = std::slice::from_ref(&parcel);
    let mined = async |depth| {
        let mined = chain.look(&lane, parcels).await.unwrap().mined;
        mined.into_iter().find(|mined| mined.depth == depth).map(|mined| mined.attempt)
    };
    chain.broadcast(&lane, std::slice::from_ref(&first)).await;
    world.node.mine(1).await.unwrap();
    assert_eq!(world.until("one is mined", async || mined(Depth::Included).await).await, first.hash);

    // Meanwhile another one takes its place, and becomes final.
    world.node.reorg(1).await.unwrap();
    chain.broadcast(&lane, std::slice::from_ref(&second)).await;
    world.node.mine(1 + 2 * FINAL_DEPTH).await.unwrap();
    assert_eq!(world.until("one is final", async || mined(Depth::Final).await).await, second.hash);
}

#[tokio::test]
async fn effects_are_told_by_logs_and_what_left_none_by_its_receipt() {
    let world = World::on_anvil(1).await;
    let payloads = payloads(5);
    world.ask_all(&payloads).await;
    let chain = world.deployment(STEADY).chain().unwrap();
    let lane = LaneName::new("lane-0").unwrap();
    // The last one answers what nobody asked, and fails.
    let mut parcels = Vec::new();
    for (n, payload) in (0..).zip(payloads.iter().chain([&Bytes::new()])) {
        let answer = answer_to_request(n, payload);
        let attempt = chain.sign(&lane, Nonce(n), Cargo::Deliveries(&[answer])).await.unwrap();
        parcels.push(on_slot(n, vec![attempt]));
    }
    let failed = |seen: &[Mined]| seen.iter().filter(|mined| matches!(mined.judgement, Judgement::Failed(_))).count();
    let look = async || chain.look(&lane, &parcels).await.unwrap();
    assert_eq!(look().await.latest, Nonce(0));

    let attempts: Vec<SignedAttempt> = parcels.iter().flat_map(|parcel| parcel.attempts.clone()).collect();
    chain.broadcast(&lane, &attempts).await;
    world.node.mine(1).await.unwrap();
    let all_mined = async || Some(look().await).filter(|seen| seen.latest == Nonce(6)).map(|seen| seen.mined);
    let mined = world.until("all are mined", all_mined).await;
    assert_eq!((mined.len(), failed(&mined)), (5, 0), "the silent one may be in a block that is newer than the head");

    world.node.mine(1).await.unwrap();
    let all_judged = async || all_mined().await.filter(|mined| mined.len() == 6);
    let mined = world.until("all are judged", all_judged).await;
    assert_eq!(failed(&mined), 1);
    let Judgement::Failed(why) = &mined[5].judgement else { panic!("{:?}", mined[5]) };
    assert!(why.text.contains("had no effect"), "{why:?}");
}

/// An answer that is ready for the contract's request of this number.
fn answer_to_request(n: u64, payload: &Bytes) -> ReadyDelivery {
    let content = keccak256(payload);
    ReadyDelivery {
        id: RequestId(content.0),
        seq: Seq(n),
        route: RouteName::new("board").unwrap(),
        generation: 0,
        revision: 0,
        answer: Token { epoch: 1, count: n },
        response: Payload::json(format!(r#"{{"id":"{n}","content":"{content}","answer":"0x01"}}"#)),
        failure: false,
        failures: 0,
        request: None,
        trace: None,
    }
}

fn on_slot(nonce: u64, attempts: Vec<SignedAttempt>) -> ParcelView {
    ParcelView {
        nonce: Nonce(nonce),
        deliveries: Vec::new(),
        attempts,
        stage: ParcelStage::Assigned,
        block: None,
        cancel: None,
        route: None,
    }
}

/// Whether gas is estimated or fixed, and how many slots an answer costs that is not needed.
#[tokio::test]
async fn what_somebody_else_did_is_success() {
    for (gas, slots) in [(Gas::Estimated { margin_percent: 20 }, 0), (GAS, 1)] {
        let world = World::on_anvil(2).await;
        let payloads = payloads(1);
        world.ask_all(&payloads).await;
        let respond = RequestBoard::respondCall {
            id: U256::ZERO,
            content: keccak256(&payloads[0]),
            answer: answer_to(&payloads[0]),
        };
        let nothing = world.nothing(0).await;
        let (to, input) = (TxKind::Call(world.board), respond.abi_encode().into());
        world.send(&world.lanes[1], Call { to, input, gas_limit: 200_000, ..nothing }).await;
        world.node.mine(FINAL_DEPTH + 1).await.unwrap();

        let deployment = Deployment { lanes: world.lanes[..1].to_vec(), gas, ..world.deployment(STEADY) };
        let done = Outcomes::new().on("error AlreadyResponded(uint256)", Outcome::AlreadyDone).unwrap();
        let chain = Arc::new(deployment.chain().unwrap().outcomes(done));
        let clock = Arc::new(SystemClock::new());
        let _relay = deployment.relay_to(world.store.clone(), clock, chain).unwrap().start().await.unwrap();
        let ended = async || {
            let page = world.store.journal(0, 1_000).await.unwrap();
            page.entries.iter().any(|entry| matches!(entry.event, Event::Ended { .. })).then_some(())
        };
        world.mine_until("it ends", ended).await;
        world.drained().await;
        let sent: U64 =
            world.client.request("eth_getTransactionCount", (world.lanes[0].address(), "latest")).await.unwrap();
        assert_eq!(sent, U64::from(slots), "{gas:?}");
    }
}
