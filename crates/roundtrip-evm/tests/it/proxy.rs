//! Each fault of the proxy, as a client meets it, with a node that counts what reached it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use alloy::primitives::{Address, TxHash, U64};
use alloy::rpc::client::RpcClient;
use alloy::transports::{TransportError, TransportErrorKind};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use reqwest::Url;
use roundtrip_evm::rpc::web_client;
use roundtrip_evm::testkit::node::{AnvilOptions, Node};
use roundtrip_evm::testkit::proxy::{Fault, Proxy, ProxyFaults};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Answers every call with its own method's name, and counts.
struct Upstream {
    url: Url,
    calls: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Upstream {
    async fn start() -> Upstream {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let calls: Arc<AtomicU64> = Arc::default();
        let router = Router::new().route("/", post(echo)).with_state(calls.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Upstream { url, calls, task }
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn echo(State(calls): State<Arc<AtomicU64>>, body: Bytes) -> String {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let answer = |call: &Value| {
        calls.fetch_add(1, Ordering::SeqCst);
        let result = match call["method"].as_str().unwrap() {
            "eth_getLogs" => json!([{"data": "0x"}]),
            "eth_getTransactionReceipt" => json!({"status": "0x1"}),
            method => json!(method),
        };
        json!({"jsonrpc": "2.0", "id": call["id"], "result": result})
    };
    match &request {
        Value::Array(all) => Value::from(all.iter().map(answer).collect::<Vec<_>>()).to_string(),
        one => answer(one).to_string(),
    }
}

async fn proxied(faults: ProxyFaults) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(upstream.url.clone(), 1, faults).await.unwrap();
    (upstream, proxy)
}

async fn hello(client: &RpcClient) -> Result<String, TransportError> {
    client.request_noparams("hello").await
}

fn http_status(error: &TransportError) -> Option<u16> {
    match error {
        TransportError::Transport(TransportErrorKind::HttpError(error)) => Some(error.status),
        TransportError::Transport(TransportErrorKind::HttpErrorWithRetryAfter { error, .. }) => Some(error.status),
        _ => None,
    }
}

#[tokio::test]
async fn without_faults_everything_passes() {
    let (upstream, proxy) = proxied(ProxyFaults::none()).await;
    assert_eq!(hello(&proxy.client()).await.unwrap(), "hello");
    assert_eq!(upstream.calls(), 1);
    assert!(Fault::ALL.into_iter().all(|fault| proxy.count(fault) == 0));
}

#[tokio::test]
async fn an_answer_is_lost_after_the_node_has_the_request() {
    let (upstream, proxy) = proxied(ProxyFaults::none().always(Fault::LostAnswer)).await;
    let error = hello(&proxy.client()).await.err().unwrap();
    assert!(error.as_transport_err().is_some() && http_status(&error).is_none(), "{error:?}");
    assert_eq!((upstream.calls(), proxy.count(Fault::LostAnswer)), (1, 1));
}

#[tokio::test]
async fn the_next_answers_to_a_method_are_lost() {
    let (upstream, proxy) = proxied(ProxyFaults::none()).await;
    let client = proxy.client();
    proxy.lose_next("hello", 2);
    let other: Value = client.request_noparams("other").await.unwrap();
    assert_eq!(other, json!("other"));
    assert!(hello(&client).await.is_err());
    assert!(hello(&client).await.is_err());
    assert!(hello(&client).await.is_ok());
    assert_eq!((upstream.calls(), proxy.count(Fault::LostAnswer)), (4, 2));
}

#[tokio::test]
async fn a_delay_takes_time_and_is_bounded() {
    let faults = ProxyFaults::none().delay_up_to(40).always(Fault::Delay);
    let (upstream, proxy) = proxied(faults).await;
    let client = proxy.client();
    let start = Instant::now();
    for _ in 0..10 {
        hello(&client).await.unwrap();
    }
    // Ten throws of up to 40 ms by this seed; a lower bound alone cannot fail on a slow machine.
    assert!(start.elapsed() > Duration::from_millis(50));
    assert_eq!((upstream.calls(), proxy.count(Fault::Delay)), (10, 10));
}

#[tokio::test]
async fn too_many_requests_says_when_to_come_again() {
    let (upstream, proxy) = proxied(ProxyFaults::none().retry_after(7).always(Fault::TooManyRequests)).await;
    let answer = web_client(Duration::from_secs(10)).unwrap().post(proxy.url()).body("{}").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (429, &"7".parse().unwrap()));
    let error = hello(&proxy.client()).await.err().unwrap();
    assert_eq!(http_status(&error), Some(429));
    assert_eq!((upstream.calls(), proxy.count(Fault::TooManyRequests)), (0, 2));
}

#[tokio::test]
async fn errors_come_before_or_after_the_node_has_the_request() {
    for (fault, reached) in [(Fault::ErrorBefore, 0), (Fault::ErrorAfter, 20)] {
        let (upstream, proxy) = proxied(ProxyFaults::none().always(fault)).await;
        let client = proxy.client();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..20 {
            seen.insert(http_status(&hello(&client).await.err().unwrap()).unwrap());
        }
        assert_eq!(seen, [500, 502, 503].into());
        assert_eq!((upstream.calls(), proxy.count(fault)), (reached, 20));
    }
}

#[tokio::test]
async fn an_answer_ends_in_the_middle() {
    let (upstream, proxy) = proxied(ProxyFaults::none().always(Fault::Truncated)).await;
    let error = hello(&proxy.client()).await.err().unwrap();
    assert!(matches!(error, TransportError::DeserError { .. }), "{error:?}");
    assert_eq!((upstream.calls(), proxy.count(Fault::Truncated)), (1, 1));
}

#[tokio::test]
async fn a_batch_is_answered_in_another_order() {
    let (_upstream, proxy) = proxied(ProxyFaults::none().always(Fault::Reordered)).await;
    let methods = ["one", "two", "three"];
    let calls: Vec<Value> =
        methods.iter().enumerate().map(|(id, method)| json!({"id": id, "method": method})).collect();
    let answer = web_client(Duration::from_secs(10))
        .unwrap()
        .post(proxy.url())
        .body(Value::from(calls).to_string())
        .send()
        .await
        .unwrap();
    let answers: Vec<Value> = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    let ids: Vec<u64> = answers.iter().map(|answer| answer["id"].as_u64().unwrap()).collect();
    assert_ne!(ids, [0, 1, 2]);
    for answer in answers {
        let id = usize::try_from(answer["id"].as_u64().unwrap()).unwrap();
        assert_eq!(answer["result"], json!(methods[id]));
    }
    assert_eq!(proxy.count(Fault::Reordered), 1);
}

#[tokio::test]
async fn logs_and_receipts_are_missing_only_when_told() {
    let (_upstream, proxy) = proxied(ProxyFaults::none()).await;
    let client = proxy.client();
    let ask = async |method: &'static str| -> Value { client.request_noparams(method).await.unwrap() };
    assert_eq!(ask("eth_getLogs").await, json!([{"data": "0x"}]));
    proxy.set_faults(ProxyFaults::none().always(Fault::EmptyLogs));
    assert_eq!(ask("eth_getLogs").await, json!([]));
    assert_eq!(ask("eth_getTransactionReceipt").await, json!({"status": "0x1"}));
    proxy.set_faults(ProxyFaults::none().always(Fault::NullReceipts));
    assert_eq!(ask("eth_getLogs").await, json!([{"data": "0x"}]));
    assert_eq!(ask("eth_getTransactionReceipt").await, Value::Null);
    assert_eq!((proxy.count(Fault::EmptyLogs), proxy.count(Fault::NullReceipts)), (1, 1));
}

#[tokio::test]
async fn a_lagging_node_tells_of_the_past() {
    let node = Node::anvil(AnvilOptions::default()).await.unwrap();
    let proxy = Proxy::start(node.url(), 1, ProxyFaults::none().lag_by(3)).await.unwrap();
    let account = roundtrip_evm::testkit::account::dev_signers()[0].address();
    node.mine(4).await.unwrap();
    let transfer = json!([{"from": account, "to": Address::ZERO, "value": "0x1"}]);
    let _: TxHash = node.client().request("eth_sendTransaction", transfer).await.unwrap();
    node.mine(1).await.unwrap();

    let client = proxy.client();
    let look = async || {
        let number: U64 = client.request_noparams("eth_blockNumber").await.unwrap();
        let latest: Value = client.request("eth_getBlockByNumber", ("latest", false)).await.unwrap();
        let count: U64 = client.request("eth_getTransactionCount", (account, "latest")).await.unwrap();
        let pending: U64 = client.request("eth_getTransactionCount", (account, "pending")).await.unwrap();
        let latest = serde_json::from_value::<U64>(latest["number"].clone()).unwrap();
        [number, latest, count, pending].map(|number| number.to::<u64>())
    };
    assert_eq!(look().await, [5, 5, 1, 1]);
    proxy.set_faults(ProxyFaults::none().lag_by(3).always(Fault::LaggingHead));
    assert_eq!(look().await, [2, 2, 0, 0]);
    assert_eq!(proxy.count(Fault::LaggingHead), 4);
}

#[tokio::test]
async fn a_node_that_is_gone_is_a_bad_gateway() {
    let (upstream, proxy) = proxied(ProxyFaults::none()).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nowhere: Url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    drop((listener, upstream, proxy));
    let proxy = Proxy::start(nowhere, 1, ProxyFaults::none()).await.unwrap();
    assert_eq!(http_status(&hello(&proxy.client()).await.err().unwrap()), Some(502));
}

#[tokio::test]
async fn a_dropped_proxy_closes_its_connections() {
    let (_upstream, proxy) = proxied(ProxyFaults::none()).await;
    let client = proxy.client();
    hello(&client).await.unwrap();
    drop(proxy);
    // Its task ends at its next turn; the connection that is open goes with it.
    let gone = async {
        while hello(&client).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
}
