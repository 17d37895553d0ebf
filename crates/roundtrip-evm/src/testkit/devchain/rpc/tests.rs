//! What is answered to what, as data.

#![allow(clippy::unwrap_used, reason = "tests")]

use alloy::consensus::TxEip1559;
use alloy::primitives::{U256, keccak256};
use alloy::sol_types::{SolCall, SolError};

use super::*;
use crate::testkit::account::dev_key;
use crate::testkit::board::RequestBoard;
use crate::testkit::devchain::ledger::Reorg;
use crate::testkit::devchain::options::{BaseFee, DevChainOptions, GWEI};
use crate::testkit::devchain::samples::{request, signed, transfer};

/// Blocks 1 to 3 hold one request each of account 0; one waits, and one above a gap.
fn scene() -> (Ledger, Address) {
    let options = DevChainOptions { base_fee: BaseFee::Fixed(GWEI), finality: 2, ..DevChainOptions::default() };
    let mut ledger = Ledger::new(options);
    let board = ledger.deploy(&[dev_key(1).address()]);
    for (nonce, payload) in (0..).zip(["a", "b", "c"]) {
        ledger.send(&signed(0, request(board, nonce, payload))).unwrap();
        ledger.mine();
    }
    ledger.send(&signed(0, request(board, 3, "d"))).unwrap();
    ledger.send(&signed(0, request(board, 5, "e"))).unwrap();
    (ledger, board)
}

fn ask_at(ledger: &mut Ledger, lag: u64, method: &str, params: Value) -> Value {
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    let mut answer: Value =
        serde_json::from_str(&answer(ledger, &read(&request), Sight { lag, blind: false })).unwrap();
    let field = if answer.get("error").is_some() { "error" } else { "result" };
    answer[field].take()
}

fn ask(ledger: &mut Ledger, method: &str, params: Value) -> Value {
    ask_at(ledger, 0, method, params)
}

fn failure(code: i64, message: &str) -> Value {
    json!({ "code": code, "message": message })
}

#[test]
fn what_cannot_be_answered() {
    let (mut ledger, board) = scene();
    let table = [
        ("eth_nothing", json!([]), -32_601, "the method eth_nothing does not exist/is not available"),
        ("eth_getLogs", json!([]), -32_602, "missing value for required argument 0"),
        ("eth_getLogs", json!([{ "fromBlock": "0x4" }]), -32_602, "block range extends beyond current head block"),
        ("eth_getLogs", json!([{ "fromBlock": "0x3", "toBlock": "0x2" }]), -32_602, "invalid block range params"),
        ("eth_getLogs", json!([{ "blockHash": B256::ZERO }]), -32_000, "unknown block"),
        ("eth_getBalance", json!([board, "0x9"]), -32_000, "header not found"),
        ("eth_getBalance", json!([board, { "blockHash": B256::ZERO }]), -32_000, "header for hash not found"),
        ("eth_feeHistory", json!(["0x1", "latest", [2.0, 1.0]]), -32_602, "invalid reward percentile"),
        ("eth_feeHistory", json!(["0x1", "0x9"]), -32_000, "request beyond head block"),
        ("eth_call", json!([{ "to": board, "data": "0x01020304" }]), -32_000, "execution reverted"),
        (
            "eth_call",
            json!([{ "data": "0x6000" }]),
            -32_000,
            "the development chain runs its sample contract and plain transfers only",
        ),
        ("eth_estimateGas", json!([{ "to": board, "value": "0x1" }]), -32_000, "insufficient funds for transfer"),
    ];
    for (method, params, code, message) in table {
        let said = ask(&mut ledger, method, params.clone());
        assert_eq!(said, failure(code, message), "{method} {params}");
    }
    let foreign = signed(0, TxEip1559 { chain_id: 1, ..transfer(4) });
    let refused = ask(&mut ledger, "eth_sendRawTransaction", json!([Bytes::from(foreign)]));
    assert_eq!(refused, failure(-32_000, "invalid sender: invalid chain id for signer: have 1 want 31337"));
    let odd = ask(&mut ledger, "eth_getBalance", json!([1]));
    assert!(odd["message"].as_str().unwrap().starts_with("invalid argument 0: "), "{odd}");
}

#[test]
fn requests_that_are_none_and_batches() {
    let (mut ledger, _) = scene();
    let mut code = |request: &str| -> Value {
        let answer: Value = serde_json::from_str(&answer(&mut ledger, &read(request), Sight::default())).unwrap();
        answer["error"]["code"].clone()
    };
    assert_eq!(code("{"), PARSE_ERROR);
    assert_eq!(code("[]"), INVALID_REQUEST);
    assert_eq!(code("7"), INVALID_REQUEST);
    assert_eq!(code(r#"{"id":1,"method":"eth_chainId","params":{}}"#), INVALID_PARAMS);
    assert_eq!(code(&format!("[{}1]", "1,".repeat(BATCH_MAX))), INVALID_REQUEST);

    let batch = r#"[{"id":7,"method":"eth_chainId"},{"method":"eth_chainId"},{"id":"x","method":"no"},3]"#;
    let answers: Value = serde_json::from_str(&answer(&mut ledger, &read(batch), Sight::default())).unwrap();
    assert_eq!(answers.as_array().unwrap().len(), 3, "nobody asked for the second");
    assert_eq!((&answers[0]["id"], &answers[0]["result"]), (&json!(7), &json!("0x7a69")));
    assert_eq!((&answers[1]["id"], &answers[1]["error"]["code"]), (&json!("x"), &json!(METHOD_NOT_FOUND)));
    assert_eq!((&answers[2]["id"], &answers[2]["error"]["code"]), (&Value::Null, &json!(INVALID_REQUEST)));
    assert_eq!(answer(&mut ledger, &read(r#"{"method":"eth_chainId"}"#), Sight::default()), "");
}

#[test]
fn counts_at_every_block() {
    let (mut ledger, _) = scene();
    let (account, second) = (dev_key(0).address(), ledger.blocks[2].hash);
    let table = [
        (json!("latest"), "0x3"),
        (json!("pending"), "0x4"),
        (json!("earliest"), "0x0"),
        (json!("0x1"), "0x1"),
        (json!("finalized"), "0x1"),
        (json!("safe"), "0x2"),
        (json!({ "blockHash": second }), "0x2"),
        (Value::Null, "0x3"),
    ];
    for (at, count) in table {
        assert_eq!(ask(&mut ledger, "eth_getTransactionCount", json!([account, at])), count, "{at}");
    }
    ledger.reorg(2, Reorg::Dropped);
    let gone = ask(&mut ledger, "eth_getTransactionCount", json!([account, { "blockHash": second }]));
    assert_eq!(gone, failure(-32_000, "hash is not currently canonical"));
    assert_eq!(ask(&mut ledger, "eth_getBlockByHash", json!([second, false]))["hash"], json!(second));
}

#[test]
fn a_lagging_answer_knows_less() {
    let (mut ledger, _) = scene();
    let (account, newest) = (dev_key(0).address(), ledger.blocks[3].transactions[0].sent.hash);
    assert_eq!(ask_at(&mut ledger, 2, "eth_blockNumber", json!([])), "0x1");
    assert_eq!(ask_at(&mut ledger, 2, "eth_getTransactionCount", json!([account, "latest"])), "0x1");
    assert_eq!(ask_at(&mut ledger, 2, "eth_getTransactionReceipt", json!([newest])), Value::Null);
    assert_eq!(ask_at(&mut ledger, 2, "eth_getBlockByNumber", json!(["0x2", false])), Value::Null);
    let beyond = ask_at(&mut ledger, 2, "eth_getLogs", json!([{ "fromBlock": "0x2" }]));
    assert_eq!(beyond["code"], INVALID_PARAMS);
    assert_eq!(ask_at(&mut ledger, 99, "eth_blockNumber", json!([])), "0x0");
}

#[test]
fn logs_by_address_topics_and_block() {
    let (mut ledger, board) = scene();
    let topic = |id: u64| B256::from(U256::from(id));
    let second = ledger.blocks[2].hash;
    let table = [
        (json!({ "fromBlock": "earliest" }), 3),
        (json!({}), 1),
        (json!({ "fromBlock": "0x1", "toBlock": "0x2" }), 2),
        (json!({ "fromBlock": "0x2", "toBlock": "0x99" }), 2),
        (json!({ "fromBlock": "0x0", "address": [board, Address::ZERO] }), 3),
        (json!({ "fromBlock": "0x0", "address": Address::ZERO }), 0),
        (json!({ "fromBlock": "0x0", "topics": [null, [topic(0), topic(2)]] }), 2),
        (json!({ "fromBlock": "0x0", "topics": [keccak256("Responded(uint256,address,bytes)")] }), 0),
        (json!({ "blockHash": second }), 1),
    ];
    for (filter, count) in table {
        let found = ask(&mut ledger, "eth_getLogs", json!([filter]));
        assert_eq!(found.as_array().unwrap().len(), count, "{filter}");
    }
    ledger.options.logs_max = Some(2);
    let refused = ask(&mut ledger, "eth_getLogs", json!([{ "fromBlock": "0x0" }]));
    assert_eq!(refused, failure(-32_005, "query returned more than 2 results"));
}

#[test]
fn a_revert_has_its_reason() {
    let (mut ledger, board) = scene();
    let respond = RequestBoard::respondCall { id: U256::ZERO, content: keccak256("a"), answer: Bytes::new() };
    let call = |from| json!([{ "from": from, "to": board, "data": Bytes::from(respond.abi_encode()) }, "latest"]);
    let (responder, stranger) = (dev_key(1).address(), dev_key(2).address());
    let reason = Bytes::from(RequestBoard::NotAResponder { caller: stranger }.abi_encode());
    for method in ["eth_call", "eth_estimateGas"] {
        let refused = ask(&mut ledger, method, call(stranger));
        assert_eq!(refused, json!({ "code": 3, "message": "execution reverted", "data": reason }));
        assert!(ask(&mut ledger, method, call(responder)).is_string(), "{method}");
    }
    let transfer = json!([{ "from": stranger, "to": Address::ZERO, "value": "0x1" }]);
    assert_eq!(ask(&mut ledger, "eth_estimateGas", transfer), "0x5208");
    let poor = json!([{ "from": Address::ZERO, "to": board, "maxFeePerGas": "0x77359400" }]);
    assert_eq!(ask(&mut ledger, "eth_estimateGas", poor)["code"], SERVER_ERROR);
    let cheap = ask(&mut ledger, "eth_call", json!([{ "from": stranger, "to": board, "maxFeePerGas": "0x1" }]));
    assert!(cheap["message"].as_str().unwrap().starts_with("max fee per gas less than block base fee"), "{cheap}");
}

#[test]
fn fees_as_they_were() {
    let (mut ledger, _) = scene();
    let history = ask(&mut ledger, "eth_feeHistory", json!(["0x2", "latest", [0.0, 100.0]]));
    assert_eq!(history["oldestBlock"], "0x2");
    assert_eq!(history["baseFeePerGas"], json!(["0x3b9aca00", "0x3b9aca00", "0x3b9aca00"]));
    assert_eq!(history["reward"], json!([["0x3b9aca00", "0x3b9aca00"], ["0x3b9aca00", "0x3b9aca00"]]));
    assert_eq!(history["gasUsedRatio"].as_array().unwrap().len(), 2);
    assert_eq!(ask(&mut ledger, "eth_gasPrice", json!([])), "0x77359400");
    assert_eq!(ask(&mut ledger, "eth_maxPriorityFeePerGas", json!([])), "0x3b9aca00");
}

#[test]
fn the_pool_shows_what_waits_and_what_is_queued() {
    let (mut ledger, _) = scene();
    assert_eq!(ask(&mut ledger, "txpool_status", json!([])), json!({ "pending": "0x1", "queued": "0x1" }));
    let content = ask(&mut ledger, "txpool_content", json!([]));
    let account = dev_key(0).address().to_string();
    assert_eq!(content["pending"][&account]["3"]["nonce"], "0x3");
    assert_eq!(content["queued"][&account]["5"]["blockHash"], Value::Null);
}

#[test]
fn small_answers() {
    let (mut ledger, board) = scene();
    assert_eq!(ask(&mut ledger, "net_version", json!([])), "31337");
    assert_eq!(ask(&mut ledger, "eth_syncing", json!([])), false);
    assert!(ask(&mut ledger, "web3_clientVersion", json!([])).is_string());
    assert_eq!(ask(&mut ledger, "eth_getCode", json!([Address::ZERO, "latest"])), "0x");
    assert_eq!(ask(&mut ledger, "eth_getCode", json!([board, "latest"])), json!(Bytes::from_static(DEPLOYED_CODE)));
    let full = ask(&mut ledger, "eth_getBlockByNumber", json!(["0x1", true]));
    assert_eq!(full["transactions"][0]["from"], json!(dev_key(0).address()));
    assert_eq!(ask(&mut ledger, "eth_getBlockReceipts", json!(["0x1"]))[0]["logs"][0]["logIndex"], "0x0");
    ledger.send(&signed(2, transfer(0))).unwrap();
    assert_eq!(ask(&mut ledger, "evm_mine", json!([])), "0x0");
    assert_eq!(ask(&mut ledger, "eth_blockNumber", json!([])), "0x4");
}
