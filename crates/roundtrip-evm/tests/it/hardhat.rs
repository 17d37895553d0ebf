//! The sender on a node with a strict pool: hardhat takes a transaction in place of another
//! only if both of its fees are a tenth higher, as geth and reth do, and Anvil does not.

use alloy::consensus::Transaction;
use alloy::primitives::{B256, Bytes};
use roundtrip::listener::BlockSource;
use roundtrip::sender::{AttemptKind, SignedAttempt};
use roundtrip::store::StoreExt;
use roundtrip::store::op::{AfterCancel, LaneOrder, Order};
use roundtrip::words::{Height, LaneName, Nonce};
use roundtrip_evm::Rpc;
use roundtrip_evm::testkit::deployment::Deployment;
use roundtrip_evm::testkit::node::Node;
use roundtrip_evm::testkit::proxy::{Fault, Proxy, ProxyFaults};

use super::world::{BUMPING, World, payloads, signed};

/// How often the same slot gets dearer bytes.
const BUMPS: usize = 3;

/// Waits until the newest of the attempts on the lane's first slot is one of these, and is
/// what the node's pool holds; answers all of them.
pub(super) async fn held(world: &World, wanted: impl Fn(&[SignedAttempt]) -> bool) -> Vec<SignedAttempt> {
    let held = async || {
        let attempts = world.parcel(0, 0).await?.attempts;
        let newest = B256::from(attempts.last()?.hash.0);
        (wanted(&attempts) && world.transaction(newest).await.is_some()).then_some(attempts)
    };
    world.until("the node holds the newest attempt", held).await
}

/// Both fees, as what was signed says.
fn fees(attempt: &SignedAttempt) -> [u128; 2] {
    let signed = signed(attempt);
    [signed.max_fee_per_gas(), signed.max_priority_fee_per_gas().unwrap()]
}

#[tokio::test]
async fn bumps_and_a_cancel_are_taken_in_place_of_what_was_sent_before() {
    let world = World::on(Node::hardhat().await.unwrap(), 1).await;
    let _relay = world.relay(BUMPING).await;
    let payloads = payloads(1);
    world.ask_all(&payloads).await;
    world.sent(0).await;
    let mut carries = held(&world, |attempts| !attempts.is_empty()).await;
    while carries.len() <= BUMPS {
        // The next block asks for more than was offered, so what was sent is stuck.
        let paid = u64::try_from(fees(carries.last().unwrap())[0]).unwrap();
        world.node.set_next_base_fee(2 * paid).await.unwrap();
        world.node.mine(1).await.unwrap();
        let known = carries.len();
        carries = held(&world, |attempts| attempts.len() > known).await;
    }
    for replaced in &carries[..carries.len() - 1] {
        assert_eq!(world.transaction(B256::from(replaced.hash.0)).await, None, "one transaction to a slot");
    }

    let order = Order::Cancel { nonce: Nonce(0), then: AfterCancel::Requeue };
    let lane = LaneName::new("lane-0").unwrap();
    assert!(world.store.apply_one(LaneOrder { lane, order }).await.unwrap().holds());
    let cancels = |attempts: &[SignedAttempt]| attempts.iter().any(|attempt| attempt.kind == AttemptKind::Cancel);
    let all = held(&world, cancels).await;
    for pair in all.windows(2) {
        for (next, last) in fees(&pair[1]).into_iter().zip(fees(&pair[0])) {
            assert!(next * 10 >= last * 11, "{next} is too little after {last}");
        }
    }

    world.drained().await;
    let account = world.lanes[0].address();
    let (used_up, answer) = (world.mined(account, 0).await.unwrap(), world.mined(account, 1).await.unwrap());
    assert_eq!(used_up.input, Bytes::new(), "the cancel");
    assert_eq!(answer.input, *signed(&carries[0]).input(), "the same answer, on the next slot");
}

/// A node that hides logs is found out by the block's bloom, and this one shows receipts only
/// one by one.
#[tokio::test]
async fn logs_that_a_node_hides_are_found_by_its_receipts() {
    let node = Node::hardhat().await.unwrap();
    let proxy = Proxy::start(node.url(), 1, ProxyFaults::none().always(Fault::EmptyLogs)).await.unwrap();
    let world = World::on(node, 1).await;
    let rpc = Rpc::http(proxy.url().as_str()).unwrap();
    let source = Deployment { rpc, ..world.deployment(BUMPING) }.source().unwrap();
    world.ask_all(&payloads(3)).await;
    let head = Height(world.node.block_number().await.unwrap());
    let shown: Vec<usize> =
        source.blocks(Height(0), head).await.unwrap().iter().map(|block| block.requests.len()).collect();
    assert_eq!(shown, [0, 0, 3]);
    assert!(proxy.count(Fault::EmptyLogs) > 0, "it did not hide them");
}
