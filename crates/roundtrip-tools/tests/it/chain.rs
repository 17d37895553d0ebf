//! A contract as a tool, and as what is read before: on a real node.

use std::sync::Arc;

use alloy::primitives::{Address, keccak256};
use roundtrip_evm::testkit::account::{deploy_board, dev_key, dev_signers};
use roundtrip_evm::testkit::node::{AnvilOptions, Mining, Node};
use roundtrip_evm::testkit::submitter::{Submitter, SubmitterOptions};
use roundtrip_evm::{ContractRead, Outcome, Outcomes, Rpc};
use roundtrip_tools::contract::ContractTool;
use roundtrip_tools::identity::Identity;
use roundtrip_tools::{Preparation, Prepared, Work};
use serde_json::{Value, json};

use super::desk::Desk;

const KNOWN: [&str; 2] = ["id", "request"];
const CHAIN: u64 = 31337;

async fn site() -> (Node, Address) {
    let options = AnvilOptions { mining: Mining::Every { ms: 50 }, ..AnvilOptions::default() };
    let node = Node::anvil(options).await.unwrap();
    let board = deploy_board(&node.client(), &dev_signers()[0], &[dev_key(8).address()]).await.unwrap();
    (node, board)
}

fn read(urls: &[&str], board: Address, function: &str, arguments: Value) -> ContractRead {
    let nodes = urls.iter().map(|url| Rpc::http(url).unwrap()).collect();
    ContractRead::new(CHAIN, nodes, board, function).unwrap().with_arguments(&arguments, &KNOWN).unwrap()
}

#[tokio::test]
async fn what_a_contract_returns_is_the_answer() {
    let (node, board) = site().await;
    let url = node.url().to_string();
    let is_responder = "isResponder(address who) returns (bool may)";
    // The first node is not there: the next one is asked.
    let tool = read(&["http://127.0.0.1:1", &url], board, is_responder, json!(["/request/who"]));
    assert_eq!(read(&[&url], board, is_responder, json!(["/request/who"])).probe().await, Ok(()));
    let desk = Desk::of(ContractTool(tool)).await;
    assert_eq!(desk.ask(&json!({"who": dev_key(8).address()})).await, Ok(json!({"may": true})));
    assert_eq!(desk.ask(&json!({"who": Address::ZERO})).await, Ok(json!({"may": false})));
    let told = desk.ask(&json!({"who": "nobody"})).await.unwrap_err();
    assert!(told.starts_with("/who: not address"), "{told}");
    assert_eq!(desk.ask(&json!({})).await, Err("there is no /request/who".to_owned()));
    let nobody = read(&[&url], Address::ZERO, is_responder, json!(["/request/who"]));
    assert!(nobody.probe().await.unwrap_err().contains("there is no contract at"));
}

#[tokio::test]
async fn a_revert_is_fatal_unless_the_route_says_otherwise() {
    let (node, board) = site().await;
    let url = node.url().to_string();
    let respond = "respond(uint256 id, bytes32 content, bytes answer) returns (bool)";
    let arguments = json!({"id": "/request/id", "content": format!("0x{}", "00".repeat(32)), "answer": "0x"});
    let tool = || read(&[&url], board, respond, arguments.clone());
    let told = Desk::of(ContractTool(tool())).await.ask(&json!({"id": 7})).await.unwrap_err();
    assert!(told.starts_with("the contract reverted: "), "{told}");
    let done = Outcomes::new().on("error NotAResponder(address)", Outcome::AlreadyDone).unwrap();
    let work = Work::new(Arc::new(ContractTool(tool().outcomes(done)))).when_already_done(json!("done"));
    assert_eq!(Desk::with(work).await.ask(&json!({"id": 7})).await, Ok(json!("done")));
}

#[tokio::test]
async fn input_data_is_read_from_the_chain_before_the_work() {
    let (node, board) = site().await;
    let payload = alloy::primitives::Bytes::from_static(b"what is asked");
    let asks = Submitter::start(
        node.client(),
        board,
        dev_signers()[1..2].to_vec(),
        vec![payload.clone()],
        SubmitterOptions::default(),
    );
    asks.finish().await.unwrap();
    let url = node.url().to_string();
    let read = read(&[&url], board, "contents(uint256) returns (bytes32)", json!(["/request/args/id"]));
    let prepared = Prepared::contract(read, std::time::Duration::from_secs(60));
    let preparation = Preparation { name: "content".to_owned(), prepared, failure: None };
    let desk = Desk::with(Work::new(Arc::new(Identity)).prepared_by(vec![preparation])).await;
    let request = json!({"args": {"id": "0"}});
    let id = desk.submit(&request).await;
    let expected = json!({"id": id.to_string(), "request": request, "content": keccak256(&payload)});
    assert_eq!(desk.answer(id).await, Ok(expected));
    let told = desk.ask(&json!({"args": {"id": "5"}})).await.unwrap_err();
    assert!(told.starts_with("preparing content: the contract reverted: "), "{told}");
}
