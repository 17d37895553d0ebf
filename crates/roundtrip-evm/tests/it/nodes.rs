//! Real nodes start, obey and end; and their pools differ as the sender must expect.

use std::path::Path;

use alloy::primitives::{Address, TxHash, TxKind, U64};
use alloy::rpc::client::RpcClient;
use alloy::signers::local::PrivateKeySigner;
use alloy::transports::TransportResult;
use roundtrip_evm::testkit::account::{Call, Fees, RawTransaction, dev_signers, head};
use roundtrip_evm::testkit::node::{AnvilOptions, Mining, Node};

const CHAIN_ID: u64 = 31337;
const GWEI: u128 = 1_000_000_000;

fn transfer(signer: &PrivateKeySigner, nonce: u64, fees: Fees) -> RawTransaction {
    let to = TxKind::Call(Address::repeat_byte(7));
    let call = Call { chain_id: CHAIN_ID, nonce, to, input: Default::default(), gas_limit: 21_000, fees };
    call.sign(signer).unwrap()
}

async fn send(client: &RpcClient, transaction: &RawTransaction) -> TransportResult<TxHash> {
    client.request("eth_sendRawTransaction", (&transaction.bytes,)).await
}

async fn is_mined(client: &RpcClient, transaction: &RawTransaction) -> bool {
    let receipt: Option<serde_json::Value> =
        client.request("eth_getTransactionReceipt", (transaction.hash,)).await.unwrap();
    receipt.is_some()
}

#[tokio::test]
async fn anvil_mines_when_told_and_forgets_when_told() {
    let node = Node::anvil(AnvilOptions::default()).await.unwrap();
    let client = node.client();
    let signer = &dev_signers()[0];
    let fees = Fees::above(GWEI);
    let [first, second] = [0, 1].map(|nonce| transfer(signer, nonce, fees));

    send(&client, &first).await.unwrap();
    assert!(!is_mined(&client, &first).await);
    node.mine(2).await.unwrap();
    assert_eq!(node.block_number().await.unwrap(), 2);
    assert!(is_mined(&client, &first).await);

    send(&client, &second).await.unwrap();
    node.drop_transaction(second.hash).await.unwrap();
    node.mine(1).await.unwrap();
    assert!(!is_mined(&client, &second).await);

    send(&client, &second).await.unwrap();
    node.drop_all().await.unwrap();
    node.mine(1).await.unwrap();
    assert!(!is_mined(&client, &second).await);

    let before = head(&client).await.unwrap();
    node.reorg(4).await.unwrap();
    let after = head(&client).await.unwrap();
    assert_eq!(before.number, after.number);
    assert_ne!(before.hash, after.hash);
    assert!(!is_mined(&client, &first).await);

    node.set_next_base_fee(77 * 1_000_000_000).await.unwrap();
    node.mine(1).await.unwrap();
    assert_eq!(head(&client).await.unwrap().base_fee(), 77 * GWEI);
}

#[tokio::test]
async fn anvil_mines_each_transaction_when_told_to() {
    let node = Node::anvil(AnvilOptions { mining: Mining::Each, ..AnvilOptions::default() }).await.unwrap();
    let client = node.client();
    let signer = &dev_signers()[0];
    node.set_automine(false).await.unwrap();
    let first = transfer(signer, 0, Fees::above(GWEI));
    send(&client, &first).await.unwrap();
    assert!(!is_mined(&client, &first).await);
    node.mine(1).await.unwrap();
    assert!(is_mined(&client, &first).await);
}

#[tokio::test]
async fn the_dev_signers_are_funded_and_others_can_be() {
    let node = Node::anvil(AnvilOptions { balance_ether: 3, ..AnvilOptions::default() }).await.unwrap();
    let client = node.client();
    let signers = dev_signers();
    assert_eq!(signers.len(), 10);
    let stranger = Address::repeat_byte(9);
    node.set_balance(stranger, 5).await.unwrap();
    for (account, ether) in [(signers[0].address(), 3u128), (signers[9].address(), 3), (stranger, 5)] {
        let balance: alloy::primitives::U128 = client.request("eth_getBalance", (account, "latest")).await.unwrap();
        assert_eq!(balance.to::<u128>(), ether * 1_000_000_000 * GWEI);
    }
}

#[tokio::test]
async fn a_dropped_node_is_gone() {
    let node = Node::anvil(AnvilOptions::default()).await.unwrap();
    let process = format!("/proc/{}", node.process_id());
    assert!(Path::new(&process).exists());
    let client = node.client();
    drop(node);
    // Not even as a zombie.
    assert!(!Path::new(&process).exists());
    assert!(client.request_noparams::<U64>("eth_blockNumber").await.is_err());
}

#[tokio::test]
async fn a_node_that_does_not_start_says_why() {
    let options = AnvilOptions { extra: vec!["--no-such-option".into()], ..AnvilOptions::default() };
    let error = Node::anvil(options).await.err().unwrap();
    assert!(error.to_string().contains("unexpected argument '--no-such-option'"), "{error}");
}

/// The replacement rule that geth and reth have too, and Anvil has not.
#[tokio::test]
async fn hardhat_takes_a_replacement_only_ten_percent_above_in_both_fields() {
    let node = Node::hardhat().await.unwrap();
    let client = node.client();
    let signer = &dev_signers()[0];
    let offer = |max_fee: u128, tip: u128| {
        transfer(signer, 0, Fees { max_fee: max_fee * GWEI / 10, tip: Some(tip * GWEI / 10) })
    };

    let first = offer(100, 20);
    send(&client, &first).await.unwrap();
    for (max_fee, tip) in [(109, 21), (110, 21), (109, 22), (200, 20)] {
        let refused = send(&client, &offer(max_fee, tip)).await.err().unwrap();
        assert!(refused.to_string().to_lowercase().contains("underpriced"), "{max_fee} {tip}: {refused}");
    }
    let replacement = offer(110, 22);
    send(&client, &replacement).await.unwrap();
    let known = send(&client, &replacement).await.err().unwrap();
    assert!(known.to_string().contains("Known transaction"), "{known}");

    node.mine(1).await.unwrap();
    assert!(is_mined(&client, &replacement).await);
    assert!(!is_mined(&client, &first).await);
}
