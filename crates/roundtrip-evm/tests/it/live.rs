//! News of a chain over a WebSocket, from a server that a test writes: it says what it likes,
//! `removed: true` too, which Anvil never does. The follower polls once in an hour, so what
//! comes in comes by news.

use std::sync::Arc;
use std::time::Duration;

use alloy::primitives::{Address, B256};
use futures_util::{SinkExt, StreamExt};
use roundtrip::clock::SystemClock;
use roundtrip::inbox::Standing;
use roundtrip::relay::Relay;
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::{Found, ListFilter};
use roundtrip::store::{MemoryStore, Options, ReadExt};
use roundtrip::words::{PAGE_MAX, RouteName};
use roundtrip_evm::Rpc;
use roundtrip_evm::listener::Mempool;
use roundtrip_evm::testkit::node::{AnvilOptions, Node};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, accept_async};

use super::listener::{World, asked, source};

/// The longest that a test waits for anything.
const BOUND: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

/// A server of one connection at a time.
struct Server {
    listener: TcpListener,
}

/// A connection on which both subscriptions were made.
struct Line {
    socket: WebSocketStream<TcpStream>,
    subscribed: Vec<Value>,
}

impl Server {
    async fn start() -> Server {
        Server { listener: TcpListener::bind("127.0.0.1:0").await.unwrap() }
    }

    fn url(&self) -> String {
        format!("ws://{}/secret", self.listener.local_addr().unwrap())
    }

    async fn connection(&self) -> WebSocketStream<TcpStream> {
        let (stream, _) = tokio::time::timeout(BOUND, self.listener.accept()).await.unwrap().unwrap();
        accept_async(stream).await.unwrap()
    }

    /// The next connection, once it has subscribed.
    async fn line(&self) -> Line {
        let mut socket = self.connection().await;
        let mut subscribed = Vec::new();
        while subscribed.len() < 2 {
            let request: Value = request(&mut socket).await;
            let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": format!("0x{}", subscribed.len())});
            socket.send(Message::text(answer.to_string())).await.unwrap();
            subscribed.push(request["params"][0].clone());
        }
        Line { socket, subscribed }
    }
}

async fn request(socket: &mut WebSocketStream<TcpStream>) -> Value {
    let message = tokio::time::timeout(BOUND, socket.next()).await.unwrap().unwrap().unwrap();
    serde_json::from_str(message.to_text().unwrap()).unwrap()
}

impl Line {
    async fn tell(&mut self, subscription: &str, result: Value) {
        let params = json!({"subscription": subscription, "result": result});
        let message = json!({"jsonrpc": "2.0", "method": "eth_subscription", "params": params});
        self.socket.send(Message::text(message.to_string())).await.unwrap();
    }
}

/// Waits until the store shows this.
async fn until(world: &World, expected: &[(u64, u64, Standing)]) {
    let reached = async {
        while world.live().await != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(BOUND, reached).await;
    assert!(in_time.is_ok(), "{:?} and not {expected:?}", world.live().await);
}

#[tokio::test]
async fn news_bring_in_what_is_new_what_was_removed_and_what_came_while_the_line_was_down() {
    let server = Server::start().await;
    let mut world = World::new(RoutePolicy::default()).await;
    world.options.poll = HOUR;
    world.chain.mine(vec![asked(1)]);
    let by = source(&[&world.node]).live(&server.url()).unwrap();
    let running = world.start_by(by);
    let mut line = server.line().await;
    assert_eq!(line.subscribed, ["newHeads", "logs"]);
    until(&world, &[(1, 1, Standing::Seen)]).await;

    world.chain.mine(vec![asked(2)]);
    line.tell("0x0", json!({"number": "0x2"})).await;
    until(&world, &[(1, 1, Standing::Seen), (2, 2, Standing::Seen)]).await;

    // A reorg, of which nothing is said but that a log is gone.
    world.chain.take_back(1);
    world.chain.mine(vec![asked(3)]);
    line.tell("0x1", json!({"removed": true, "blockNumber": "0x2"})).await;
    until(&world, &[(1, 1, Standing::Seen), (2, 2, Standing::Orphaned), (3, 2, Standing::Seen)]).await;

    // What happens while nobody listens is found once somebody does, without a word.
    drop(line);
    world.chain.take_back(1);
    world.chain.mine_empty(1);
    world.chain.mine(vec![asked(2), asked(4)]);
    let line = server.line().await;
    let back = [(1, 1, Standing::Seen), (2, 3, Standing::Seen), (3, 2, Standing::Orphaned), (4, 3, Standing::Seen)];
    until(&world, &back).await;
    drop(line);
    running.stop().await;
}

#[tokio::test]
async fn f14_what_comes_between_the_last_look_and_the_subscription_is_not_missed() {
    let server = Server::start().await;
    let mut world = World::new(RoutePolicy::default()).await;
    world.options.poll = HOUR;
    world.chain.mine(vec![asked(1)]);
    let by = source(&[&world.node]).live(&server.url()).unwrap();
    let running = world.start_by(by);
    // The first look is over, and the subscription is not yet made.
    let mut socket = server.connection().await;
    until(&world, &[(1, 1, Standing::Seen)]).await;
    world.chain.mine(vec![asked(2)]);
    for _ in 0..2 {
        let request = request(&mut socket).await;
        let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": "0x0"});
        socket.send(Message::text(answer.to_string())).await.unwrap();
    }
    until(&world, &[(1, 1, Standing::Seen), (2, 2, Standing::Seen)]).await;
    running.stop().await;
}

#[tokio::test]
async fn without_a_websocket_polling_goes_on() {
    let server = Server::start().await;
    let mut world = World::new(RoutePolicy::default()).await;
    world.options.poll = Duration::from_millis(10);
    let by = source(&[&world.node]).live("ws://127.0.0.1:1").unwrap().live(&server.url()).unwrap();
    let running = world.start_by(by);
    // One that nobody is behind, and one that knows no subscriptions.
    let mut socket = server.connection().await;
    let request = request(&mut socket).await;
    let error = json!({"code": -32601, "message": "notifications not supported"});
    socket.send(Message::text(json!({"id": request["id"], "error": error}).to_string())).await.unwrap();
    world.chain.mine(vec![asked(1)]);
    until(&world, &[(1, 1, Standing::Seen)]).await;
    world.chain.mine(vec![asked(2)]);
    until(&world, &[(1, 1, Standing::Seen), (2, 2, Standing::Seen)]).await;
    running.stop().await;
}

#[test]
fn a_url_that_is_no_websocket_is_refused_and_its_key_is_not_shown() {
    let node = roundtrip_evm::testkit::fakenode::FakeNode::on(&Default::default(), 7);
    let error = source(&[&node]).live("https://eth.example/KEY").unwrap_err().to_string();
    assert!(error.contains("neither ws:// nor wss://") && !error.contains("KEY"), "{error}");
}

#[tokio::test]
async fn transactions_that_wait_to_be_mined_are_requests() {
    let clock = Arc::new(SystemClock::new());
    let node = Node::anvil(AnvilOptions::default()).await.unwrap();
    let rpc = Rpc::http(node.url().as_str()).unwrap();
    let client = rpc.client();
    let socket = node.url().as_str().replacen("http", "ws", 1);
    let store = MemoryStore::new(clock.clone(), Options::default());
    let route = RouteName::new("pending").unwrap();
    let (watched, other) = (Address::repeat_byte(1), Address::repeat_byte(2));
    let mempool = Mempool::new(rpc, &socket, route.clone(), vec![watched]).unwrap();
    let relay =
        Relay::new(Arc::new(store.clone())).define("pending", RoutePolicy::default()).source("mempool", mempool);
    let running = relay.start().await.unwrap();
    let from: Vec<Address> = client.request("eth_accounts", ()).await.unwrap();
    let send = async |to: Address| -> B256 {
        client.request("eth_sendTransaction", (json!({"from": from[0], "to": to, "value": "0x7"}),)).await.unwrap()
    };
    // Whether anybody listens yet shows only by what is heard.
    let mut sent = Vec::new();
    let heard = async {
        loop {
            send(other).await;
            sent.push(send(watched).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
            let page = store.list(ListFilter { limit: PAGE_MAX, ..ListFilter::default() }).await.unwrap();
            if let Some(view) = page.requests.first() {
                return view.id;
            }
        }
    };
    let id = tokio::time::timeout(BOUND, heard).await.unwrap();
    let Some(Found::Live(_, bodies)) = store.get(id).await.unwrap() else { panic!("it is there") };
    let payload: Value = serde_json::from_slice(&bodies.payload.bytes).unwrap();
    assert_eq!((&payload["to"], &payload["value"]), (&json!(watched.to_string()), &json!("7")));
    let hash: B256 = payload["hash"].as_str().unwrap().parse().unwrap();
    assert!(sent.contains(&hash), "and nothing that goes elsewhere");
    running.shutdown().await.unwrap();
}
