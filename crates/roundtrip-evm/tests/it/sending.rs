//! Sending on the development chain: arguments by a mapping, refusals that mean something,
//! accounts that run dry, prices that move, and several nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alloy::consensus::Transaction;
use alloy::primitives::{B256, U256, keccak256};
use alloy::sol_types::SolCall;
use roundtrip::inbox::{End, StateKind};
use roundtrip::sender::chain::{Because, Cargo, Chain, Depth, Unsigned};
use roundtrip::sender::{
    FailureResponse, LaneStatus, OnTimeout, ParcelStage, RouteTerms, SenderOptions, SignedAttempt,
};
use roundtrip::store::ReadExt;
use roundtrip::store::journal::{Entry, Event, Subject};
use roundtrip::store::op::Judgement;
use roundtrip::store::query::{Found, ListFilter, ParcelView, Phase, ReadyDelivery, RequestView};
use roundtrip::words::{LaneName, Nonce, Payload, RequestId, RouteName, Seq, Token};
use roundtrip_evm::sender::{Call, Calls, LaneSigner};
use roundtrip_evm::testkit::account::dev_signers;
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::deployment::{ROUTE, answer_to};
use roundtrip_evm::testkit::devchain::{GWEI, Reorg};
use roundtrip_evm::testkit::fakenode::{FakeChain, FakeNode};
use roundtrip_evm::{ContractCall, EvmChain, EvmChainOptions, EvmRoute, Finality, Gas, Outcome, Outcomes};
use serde_json::json;

use super::heard::Heard;
use super::scene::{BLOCK, FINAL_DEPTH, Mood, Scene, Way};
use super::world::signed;

const RESPOND: &str = "function respond(uint256 id, bytes32 content, bytes answer)";

fn options() -> EvmChainOptions {
    EvmChainOptions {
        finality: Finality::Depth(FINAL_DEPTH),
        gas: Gas::Estimated { margin_percent: 20 },
        head_fresh_for: Duration::from_millis(400),
        balance_fresh_for: Duration::from_secs(1),
        ..EvmChainOptions::default()
    }
}

fn chain(scene: &Scene, call: impl Calls, options: EvmChainOptions) -> EvmChain {
    let keys = scene.lanes.iter().cloned().zip(0..);
    let signers: BTreeMap<LaneName, LaneSigner> = keys
        .map(|(key, at): (_, usize)| (LaneName::new(&format!("lane-{at}")).unwrap(), Arc::new(key) as LaneSigner))
        .collect();
    EvmChain::new(scene.deployment().rpc, scene.chain.chain_id(), call, signers, options)
}

fn respond(scene: &Scene) -> ContractCall {
    ContractCall::one(scene.board, RESPOND).unwrap()
}

/// The only request that has not ended.
async fn only(scene: &Scene) -> Option<RequestView> {
    let filter = ListFilter { limit: 10, ..ListFilter::default() };
    scene.store.list(filter).await.unwrap().requests.into_iter().next()
}

#[tokio::test(start_paused = true)]
async fn arguments_come_from_the_request_and_its_answer() {
    let scene = Scene::new(1);
    let mapping = json!({"id": "/request/args/id", "content": "/response/content", "answer": "/response/answer"});
    let _relay = scene.relay(chain(&scene, respond(&scene).with_arguments(&mapping).unwrap(), options())).await;
    scene.ask(30);
    scene.settled().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_a_field_that_is_mapped_is_a_dead_letter() {
    let scene = Scene::new(1);
    let mapping = json!({"id": "/request/args/id", "content": "/response/nothing", "answer": "0x"});
    let _relay = scene.relay(chain(&scene, respond(&scene).with_arguments(&mapping).unwrap(), options())).await;
    scene.ask(1);
    scene
        .mine_until("a dead letter", async || {
            only(&scene).await.is_some_and(|view| view.phase.kind() == StateKind::Dead)
        })
        .await;
    let error = only(&scene).await.unwrap().error.unwrap();
    assert!(error.text.contains("there is no /response/nothing"), "{error:?}");
    assert_eq!(scene.used(0), 0);
}

fn done_already() -> Outcomes {
    Outcomes::new().on("error AlreadyResponded(uint256)", Outcome::AlreadyDone).unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_did_for_good_is_success_without_a_slot() {
    let scene = Scene::new(1);
    scene.ask(1);
    scene.chain.mine();
    scene.answer_as(&dev_signers()[1], 0, 0);
    scene.mine(FINAL_DEPTH + 1);
    let _relay = scene.relay(chain(&scene, respond(&scene), options()).outcomes(done_already())).await;
    let published = |entry: &Entry| matches!(entry.event, Event::Published { .. }).then_some(entry.subject.clone());
    let done = async || {
        let page = scene.store.journal(0, 100).await.unwrap();
        page.entries.iter().find_map(published)
    };
    scene.until("it ends without being sent", async || done().await.is_some()).await;
    let Some(Subject::Request(id)) = done().await else { panic!("a request is done") };
    let Some(Found::Ended(receipt)) = scene.found(id).await else { panic!("it has ended") };
    assert_eq!(receipt.end, End::Settled);
    assert_eq!((scene.used(0), scene.lane(0).await.next), (0, Nonce(0)));
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_did_in_a_block_that_goes_is_done_after_all() {
    let heard = Heard::default();
    let _listening = tracing::subscriber::set_default(heard.clone());
    let scene = Scene::new(1);
    scene.ask(1);
    scene.mine(FINAL_DEPTH + 1);
    scene.answer_as(&dev_signers()[1], 0, 0);
    scene.chain.mine();
    let _relay = scene.relay(chain(&scene, respond(&scene), options()).outcomes(done_already())).await;
    scene.until("it has to wait", async || heard.text().contains("that is not final yet")).await;
    assert_eq!(only(&scene).await.unwrap().phase, Phase::Ready, "it is not done for good");
    scene.chain.reorg(1, Reorg::Dropped);
    scene.settled().await;
    assert_eq!(scene.used(0), 1, "its own answer is the one that counts");
}

#[tokio::test(start_paused = true)]
async fn a_revert_at_final_depth_means_what_the_route_says() {
    for (outcomes, end) in [(done_already(), Some(End::Settled)), (Outcomes::new(), None)] {
        let scene = Scene::new(1);
        scene.ask(1);
        scene.chain.mine();
        scene.answer_as(&dev_signers()[1], 0, 0);
        scene.chain.mine();
        // Without an estimate, a refusal shows only when it is mined.
        let fixed = EvmChainOptions { gas: Gas::Fixed(150_000), ..options() };
        let _relay = scene.relay(chain(&scene, respond(&scene), fixed).outcomes(outcomes)).await;
        scene.mine_until("the request comes in", async || only(&scene).await.is_some()).await;
        let id = only(&scene).await.unwrap().id;
        let over = async || match scene.found(id).await {
            Some(Found::Ended(receipt)) => Some(receipt.end) == end,
            Some(Found::Live(view, _)) => end.is_none() && view.phase.kind() == StateKind::Dead,
            None => false,
        };
        scene.mine_until("it is over", over).await;
        assert_eq!(scene.used(0), 1, "it used a slot");
    }
}

#[tokio::test(start_paused = true)]
async fn a_parcel_that_reverts_because_of_one_is_split() {
    let scene = Scene::new(1);
    scene.ask(5);
    scene.chain.mine();
    scene.answer_as(&dev_signers()[1], 0, 2);
    scene.mine(FINAL_DEPTH);
    let many = ContractCall::many(scene.board, "respondMany((uint256, bytes32, bytes)[] responses)").unwrap();
    let many = many.with_arguments(&json!(["/response/id", "/response/content", "/response/answer"])).unwrap();
    // Without an estimate, nobody knows before it is mined.
    let fixed = EvmChainOptions { gas: Gas::Fixed(1_000_000), ..options() };
    let evm = Arc::new(chain(&scene, many, fixed).outcomes(done_already()));
    let send = SenderOptions {
        patience: scene.patience,
        parcel_max: 5,
        poll: Duration::from_millis(500),
        ..SenderOptions::default()
    };
    let relay = scene.deployment().relay_sending(scene.store.clone(), scene.clock.clone(), evm, send).unwrap();
    let _relay = relay.start().await.unwrap();
    let over = async || scene.used(0) >= 6 && scene.store.counts().await.unwrap().is_empty();
    scene.mine_until("nothing is left", over).await;
    assert_eq!(scene.used(0), 6, "one for all, then one for each");
    let page = scene.store.journal(0, 1_000).await.unwrap();
    let well = |entry: &&Entry| matches!(entry.event, Event::Ended { end: End::Settled, .. });
    assert_eq!(page.entries.iter().filter(well).count(), 5, "each ended well");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_final_only_when_a_later_block_says_so_too() {
    let heard = Heard::default();
    let _listening = tracing::subscriber::set_default(heard.clone());
    let scene = Scene::new(1);
    scene.ask(2);
    scene.chain.mine();
    scene.answer_as(&dev_signers()[1], 0, 0);
    scene.mine(FINAL_DEPTH + 1);
    let _relay = scene.relay(chain(&scene, respond(&scene), options())).await;
    // The other answer does not wait for it.
    scene.until("the other goes on", async || !scene.chain.pool().is_empty()).await;
    assert!(heard.text().contains("an answer has to wait"));
    let dead = async || only(&scene).await.is_some_and(|view| view.phase.kind() == StateKind::Dead);
    tokio::time::sleep(BLOCK * 10).await;
    assert!(!dead().await, "one block is not enough");
    scene.mine_until("a dead letter", dead).await;
    let error = only(&scene).await.unwrap().error.unwrap();
    assert!(error.text.contains("the contract would refuse it"), "{error:?}");
    assert_eq!(scene.used(0), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_is_worth_a_retry_is_tried_again_and_holds_up_nobody() {
    let scene = Scene::new(1);
    scene.ask(2);
    scene.chain.mine();
    scene.answer_as(&dev_signers()[1], 0, 0);
    scene.mine(FINAL_DEPTH + 1);
    let retry = Outcomes::new().on("error AlreadyResponded(uint256)", Outcome::Retry).unwrap();
    let _relay = scene.relay(chain(&scene, respond(&scene), options()).outcomes(retry)).await;
    scene.mine_until("the other goes on", async || scene.used(0) == 1).await;
    for _ in 0..20 {
        scene.chain.mine();
        tokio::time::sleep(BLOCK).await;
    }
    assert_eq!(only(&scene).await.unwrap().phase, Phase::Ready);
    assert_eq!(scene.used(0), 1, "a refusal costs no slot");
}

/// The answer to the first request, as a route of this name gives it.
fn answer_of(scene: &Scene, route: &str) -> ReadyDelivery {
    let payload = scene.asked.lock().unwrap()[0].clone();
    let answer = json!({"id": "0", "content": keccak256(&payload), "answer": answer_to(&payload)});
    ReadyDelivery {
        id: RequestId([7; 32]),
        seq: Seq(1),
        route: RouteName::new(route).unwrap(),
        generation: 0,
        revision: 0,
        answer: Token { epoch: 1, count: 1 },
        response: Payload::json(answer.to_string()),
        failure: false,
        failures: 0,
        request: None,
        trace: None,
    }
}

/// A parcel with this answer, of a route that has terms of its own or none.
fn sent(answer: &ReadyDelivery, attempt: &SignedAttempt, route: Option<RouteName>) -> ParcelView {
    ParcelView {
        nonce: Nonce(0),
        deliveries: vec![answer.id],
        attempts: vec![attempt.clone()],
        stage: ParcelStage::Assigned,
        block: None,
        cancel: None,
        route,
    }
}

/// Two routes that say what a refusal means, among others that do not.
fn with_routes(evm: EvmChain) -> EvmChain {
    let means = |outcome| Outcomes::new().on("error AlreadyResponded(uint256)", outcome).unwrap();
    let route = |outcome| EvmRoute { outcomes: Some(means(outcome)), ..EvmRoute::default() };
    evm.route(RouteName::new("done").unwrap(), route(Outcome::AlreadyDone))
        .route(RouteName::new("again").unwrap(), route(Outcome::Retry))
}

async fn answered_by_somebody_else() -> Scene {
    let scene = Scene::new(1);
    scene.ask(1);
    scene.chain.mine();
    scene.answer_as(&dev_signers()[1], 0, 0);
    scene.mine(FINAL_DEPTH + 1);
    scene
}

#[tokio::test(start_paused = true)]
async fn an_estimate_that_is_refused_means_what_its_route_says() {
    let scene = answered_by_somebody_else().await;
    let evm = with_routes(chain(&scene, respond(&scene), options()));
    let lane = LaneName::new("lane-0").unwrap();
    let sign = async |route| {
        let answers = [answer_of(&scene, route)];
        evm.sign(&lane, Nonce(0), Cargo::Deliveries(&answers)).await.unwrap_err()
    };
    assert_eq!(sign("done").await, Unsigned::Done);
    assert!(matches!(sign("other").await, Unsigned::Later(_)), "it may be gone at the next head");
    scene.chain.mine();
    tokio::time::sleep(BLOCK).await;
    assert!(matches!(sign("other").await, Unsigned::Never(_)));
    for _ in 0..2 {
        assert!(matches!(sign("again").await, Unsigned::Later(_)));
        scene.chain.mine();
        tokio::time::sleep(BLOCK).await;
    }
    assert_eq!(evm.routes_apart().iter().map(|route| route.as_str()).collect::<Vec<_>>(), ["again", "done"]);
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_reverts_means_what_its_route_says() {
    for (route, expected) in [("done", 0), ("again", 1), ("other", 2)] {
        let scene = answered_by_somebody_else().await;
        let fixed = EvmChainOptions { gas: Gas::Fixed(150_000), ..options() };
        let evm = with_routes(chain(&scene, respond(&scene), fixed));
        let lane = LaneName::new("lane-0").unwrap();
        let answer = answer_of(&scene, route);
        let attempt = evm.sign(&lane, Nonce(0), Cargo::Deliveries(std::slice::from_ref(&answer))).await.unwrap();
        evm.broadcast(&lane, std::slice::from_ref(&attempt)).await.pop().unwrap().unwrap();
        scene.chain.mine();
        tokio::time::sleep(BLOCK).await;
        let parcel = sent(&answer, &attempt, (route != "other").then(|| answer.route.clone()));
        // What leaves no log is asked for a head later.
        evm.look(&lane, std::slice::from_ref(&parcel)).await.unwrap();
        scene.chain.mine();
        tokio::time::sleep(BLOCK).await;
        let seen = evm.look(&lane, std::slice::from_ref(&parcel)).await.unwrap();
        let meant = |judgement: &Judgement| match judgement {
            Judgement::Done => 0,
            Judgement::Again(_) => 1,
            Judgement::Failed(_) => 2,
            Judgement::Replaced(..) => 3,
        };
        assert_eq!(meant(&seen.mined[0].judgement), expected, "{route}: {:?}", seen.mined);
        // To whoever looks it up after the store forgot whose it was, too.
        scene.mine(FINAL_DEPTH);
        tokio::time::sleep(BLOCK).await;
        let past = evm.past(&lane, Nonce(0), None).await.unwrap();
        assert_eq!(meant(past[0].judged(&answer.route)), expected, "{route}: {past:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_confirmed_when_its_route_says_so() {
    let scene = Scene::new(1);
    scene.ask(1);
    scene.chain.mine();
    let route = |confirmations| EvmRoute { confirmations: Some(confirmations), ..EvmRoute::default() };
    let evm = chain(&scene, respond(&scene), options())
        .route(RouteName::new("hasty").unwrap(), route(1))
        .route(RouteName::new("careful").unwrap(), route(3));
    let lane = LaneName::new("lane-0").unwrap();
    let answer = answer_of(&scene, "any");
    let attempt = evm.sign(&lane, Nonce(0), Cargo::Deliveries(std::slice::from_ref(&answer))).await.unwrap();
    evm.broadcast(&lane, std::slice::from_ref(&attempt)).await.pop().unwrap().unwrap();
    for confirmed in [vec!["hasty"], vec!["hasty", "any"], vec!["hasty", "any", "careful"]] {
        scene.chain.mine();
        tokio::time::sleep(BLOCK).await;
        for route in ["hasty", "any", "careful"] {
            let own = (route != "any").then(|| RouteName::new(route).unwrap());
            let parcel = sent(&answer, &attempt, own);
            let seen = evm.look(&lane, std::slice::from_ref(&parcel)).await.unwrap();
            let depth = if confirmed.contains(&route) { Depth::Confirmed } else { Depth::Included };
            assert_eq!(seen.mined[0].depth, depth, "{route}, when {confirmed:?} are");
        }
    }
}

/// The contract refuses every answer, and takes the failure responses.
#[tokio::test(start_paused = true)]
async fn a_failure_response_is_sent_in_place_of_what_the_contract_refuses_for_good() {
    for (gas, slots) in [(Gas::Estimated { margin_percent: 20 }, 5), (Gas::Fixed(150_000), 10)] {
        let scene = Scene::new(1);
        let respond = respond(&scene);
        let wrong_unless_failed = move |answers: &[ReadyDelivery]| {
            let call = respond.call(answers)?;
            if answers.iter().all(|answer| answer.failure) {
                return Ok(call);
            }
            let right = RequestBoard::respondCall::abi_decode(&call.data).map_err(|error| error.to_string())?;
            let wrong = RequestBoard::respondCall { content: B256::ZERO, ..right };
            Ok(Call { data: wrong.abi_encode().into(), ..call })
        };
        let evm = chain(&scene, wrong_unless_failed, EvmChainOptions { gas, ..options() });
        let failure = Some(FailureResponse::of(|refused| refused.answer.clone()));
        let terms = RouteTerms { failure, ..RouteTerms::default() };
        let send = SenderOptions {
            patience: scene.patience,
            poll: Duration::from_millis(500),
            routes: BTreeMap::from([(RouteName::new(ROUTE).unwrap(), terms)]),
            ..SenderOptions::default()
        };
        let deployment = scene.deployment();
        let relay = deployment.relay_sending(scene.store.clone(), scene.clock.clone(), Arc::new(evm), send).unwrap();
        let _relay = relay.start().await.unwrap();
        scene.ask(5);
        scene.settled().await;
        assert_eq!(scene.used(0), slots, "an estimate saves the slots of what is refused");
        let page = scene.store.journal(0, 1_000).await.unwrap();
        let count = |wanted: fn(&Event) -> bool| page.entries.iter().filter(|entry| wanted(&entry.event)).count();
        assert_eq!(count(|event| matches!(event, Event::Replaced { .. })), 5);
        assert_eq!(count(|event| matches!(event, Event::Ended { end: End::Dead, .. })), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_cannot_pay_goes_on_by_itself_when_it_is_funded() {
    let scene = Scene::new(2);
    let [poor, rich] = [0, 1].map(|at: usize| scene.lanes[at].address());
    scene.chain.set_balance(poor, U256::from(1));
    let _relay = scene.relay(chain(&scene, respond(&scene), options())).await;
    scene.ask(12);
    scene.mine_until("it pauses", async || matches!(scene.status(0).await, LaneStatus::Unfunded { .. })).await;
    scene.mine_until("the other goes on", async || scene.chain.nonce(rich) > 3).await;
    assert_eq!(scene.chain.nonce(poor), 0);
    scene.chain.set_balance(poor, U256::from(10u128.pow(18)));
    scene.mine_until("it goes on", async || scene.status(0).await == LaneStatus::Active).await;
    scene.settled().await;
}

/// The board takes nothing from the first lane, which an estimate shows, or else a block.
#[tokio::test(start_paused = true)]
async fn an_account_that_is_to_blame_is_quarantined_and_another_answers() {
    for (gas, used) in [(Gas::Estimated { margin_percent: 20 }, false), (Gas::Fixed(150_000), true)] {
        let scene = Scene::new(2);
        let board = scene.chain.deploy_board(&[scene.lanes[1].address()]);
        let scene = Scene { board, ..scene };
        let blame = Outcomes::new().on("error NotAResponder(address)", Outcome::LaneToBlame).unwrap();
        let evm = chain(&scene, respond(&scene), EvmChainOptions { gas, ..options() }).outcomes(blame);
        let _relay = scene.relay(evm).await;
        scene.ask(12);
        scene.settled().await;
        let status = scene.status(0).await;
        assert!(matches!(status, LaneStatus::Quarantined { .. }), "{status:?}");
        assert_eq!(scene.used(0) > 0, used, "what an estimate refuses has no slot");
        assert_eq!(scene.used(1), 12);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_paid_for_waiting_when_nothing_has_moved() {
    let scene = Scene::new(1);
    let evm = chain(&scene, respond(&scene), EvmChainOptions { gas: Gas::Fixed(150_000), ..options() });
    let lane = LaneName::new("lane-0").unwrap();
    let first = evm.sign(&lane, Nonce(0), Cargo::Nothing(&[])).await.unwrap();
    let attempts = std::slice::from_ref(&first);
    let late = evm.sign(&lane, Nonce(0), Cargo::Dearer(attempts, Because::Late)).await;
    assert_eq!(late, Err(Unsigned::Unmoved));
    let wanted = evm.sign(&lane, Nonce(0), Cargo::Dearer(attempts, Because::TooCheap)).await.unwrap();
    assert!(signed(&wanted).max_fee_per_gas() > signed(&first).max_fee_per_gas());
    scene.chain.set_base_fee(2 * GWEI);
    scene.chain.mine();
    tokio::time::sleep(BLOCK).await;
    let moved = evm.sign(&lane, Nonce(0), Cargo::Dearer(attempts, Because::Late)).await.unwrap();
    assert!(signed(&moved).max_fee_per_gas() >= 4 * u128::from(GWEI));
}

#[tokio::test(start_paused = true)]
async fn all_that_is_below_the_base_fee_pays_more() {
    let scene = Scene { patience: roundtrip::sender::Patience { resend_ms: 3_000, bump_ms: 600_000 }, ..Scene::new(1) };
    let _relay =
        scene.relay(chain(&scene, respond(&scene), EvmChainOptions { gas: Gas::Fixed(150_000), ..options() })).await;
    scene.ask(4);
    let sent =
        async || scene.chain.pool().iter().filter(|waiting| waiting.from() == scene.lanes[0].address()).count() == 4;
    scene.mine(FINAL_DEPTH + 1);
    scene.until("four answers wait", sent).await;
    scene.chain.set_base_fee(50 * GWEI);
    scene.chain.mine();
    let dearer = async || scene.lane(0).await.parcels.iter().filter(|parcel| parcel.attempts.len() > 1).count() == 4;
    scene.until("all four pay more, long before they are late", dearer).await;
    scene.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_late_is_filled_and_its_answer_takes_another() {
    let scene = Scene::new(1);
    let way = Way::to(&scene.chain);
    let evm: Arc<dyn Chain> = Arc::new(scene.view(&way));
    way.set(Mood::Swallows);
    let deployment = scene.deployment();
    let send = SenderOptions {
        patience: scene.patience,
        on_timeout: OnTimeout::FillAndRequeue,
        poll: Duration::from_millis(500),
        ..SenderOptions::default()
    };
    let relay = deployment.relay_sending(scene.store.clone(), scene.clock.clone(), evm, send).unwrap();
    let _relay = relay.start().await.unwrap();
    scene.ask(1);
    scene
        .mine_until("it is late", async || {
            let parcels = scene.lane(0).await.parcels;
            parcels.first().is_some_and(|parcel| parcel.cancel.is_some())
        })
        .await;
    way.set(Mood::Open);
    scene.settled().await;
    assert_eq!(scene.used(0), 2, "one slot was filled with nothing");
}

#[tokio::test(start_paused = true)]
async fn bytes_go_to_every_node_that_is_well() {
    let scene = Scene::new(1);
    let [first, second] = [Way::to(&scene.chain), Way::to(&scene.chain)];
    let evm = scene.view(&first).also(second.rpc());
    // It is the one that is looked at, and keeps what it is sent to itself.
    first.set(Mood::Swallows);
    let _relay = scene.relay(evm).await;
    scene.ask(10);
    scene.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_or_on_another_chain_is_passed_over() {
    let scene = Scene::new(1);
    let gone = Way::to(&scene.chain);
    gone.set(Mood::Closed);
    let elsewhere = FakeNode::on(&FakeChain::new(), scene.chain.chain_id() + 1);
    let evm = scene.view(&gone).also(elsewhere.rpc()).also(Way::to(&scene.chain).rpc());
    let _relay = scene.relay(evm).await;
    scene.ask(10);
    scene.settled().await;
    assert_eq!(elsewhere.asked("eth_sendRawTransaction"), 0, "nothing is sent to another chain");
}
