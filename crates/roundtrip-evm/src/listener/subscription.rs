//! Subscriptions over a node's WebSocket: connected when they are first waited for, and again
//! after a pause whenever the connection is lost.
//!
//! ```text
//!   connect ──▶ subscribe ──▶ connected ──▶ said, said …
//!      ▲                          │ closed, silent, or refused
//!      └───── after a while ──────┘
//! ```
//!
//! Whoever waits may stop waiting at any time: the connection stays, half made or whole.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{FutureExt, SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use crate::rpc::{BadUrl, install_crypto, without_secrets};

/// How long connecting and subscribing may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);
/// A connection on which nothing came for so long is taken for dead.
const SILENT_FOR: Duration = Duration::from_secs(120);
/// How long to wait before the next connection: doubled from the first to the last.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LAST: Duration = Duration::from_secs(60);
/// The longest message that is read.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;
type Connecting = Pin<Box<dyn Future<Output = Result<Socket, String>> + Send>>;

/// What came of waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The subscriptions are made, perhaps anew: what came before was not told.
    Connected,
    /// What a subscription shows.
    Said(Value),
}

/// Subscriptions at one URL.
pub(super) struct Subscription {
    url: String,
    requests: Vec<Value>,
    line: Line,
    pause: Duration,
}

/// How far the connection is.
enum Line {
    /// Nothing is tried before then.
    Down(Instant),
    Connecting(Connecting),
    Up {
        socket: Box<Socket>,
        heard: Instant,
    },
}

impl Subscription {
    /// To what these parameters of `eth_subscribe` name.
    pub(super) fn new(url: &str, wanted: &[Value]) -> Result<Subscription, BadUrl> {
        if !url.starts_with("ws://") && !url.starts_with("wss://") {
            return Err(BadUrl::new(url, "it starts with neither ws:// nor wss://"));
        }
        let request = |(n, params): (usize, &Value)| json!({"jsonrpc": "2.0", "id": n, "method": "eth_subscribe", "params": params});
        let requests = wanted.iter().enumerate().map(request).collect();
        Ok(Subscription { url: url.to_owned(), requests, line: Line::Down(Instant::now()), pause: PAUSE_FIRST })
    }

    /// Where it is, less what may be a key.
    pub(super) fn name(&self) -> String {
        without_secrets(&self.url)
    }

    /// Whether the node takes the subscriptions, on a connection of its own.
    pub(super) async fn probe(&self) -> Result<(), String> {
        let connected = connect(self.url.clone(), self.requests.clone()).await;
        connected.map(|_socket| ()).map_err(|why| without_secrets(&why))
    }

    /// Waits for the next that is told.
    pub(super) async fn next(&mut self) -> Told {
        loop {
            let lost = match &mut self.line {
                Line::Down(until) => {
                    tokio::time::sleep_until(*until).await;
                    self.line = Line::Connecting(Box::pin(connect(self.url.clone(), self.requests.clone())));
                    continue;
                }
                Line::Connecting(connecting) => match connecting.await {
                    Ok(socket) => {
                        tracing::info!(node = self.name(), "a WebSocket tells of the chain");
                        self.line = Line::Up { socket: Box::new(socket), heard: Instant::now() };
                        self.pause = PAUSE_FIRST;
                        return Told::Connected;
                    }
                    Err(why) => why,
                },
                Line::Up { socket, heard } => match tokio::time::timeout_at(*heard + SILENT_FOR, socket.next()).await {
                    Ok(Some(Ok(message))) if !message.is_close() => {
                        *heard = Instant::now();
                        match said(&message) {
                            Some(said) => return Told::Said(said),
                            None => continue,
                        }
                    }
                    Ok(Some(Err(error))) => error.to_string(),
                    Ok(_) => "it was closed".to_owned(),
                    Err(_elapsed) => "nothing came for a long time".to_owned(),
                },
            };
            self.down(&lost);
        }
    }

    /// What else is there already, without waiting.
    pub(super) fn more(&mut self) -> Option<Value> {
        let Line::Up { socket, .. } = &mut self.line else { return None };
        while let Some(Some(Ok(message))) = socket.next().now_or_never() {
            if let Some(said) = said(&message) {
                return Some(said);
            }
        }
        None
    }

    /// The connection is tried again after a pause, which grows.
    fn down(&mut self, why: &str) {
        tracing::warn!(
            node = self.name(),
            why = without_secrets(why),
            pause_ms = self.pause.as_millis(),
            "no WebSocket tells of the chain"
        );
        self.line = Line::Down(Instant::now() + self.pause);
        self.pause = self.pause.saturating_mul(2).min(PAUSE_LAST);
    }
}

/// Connects, subscribes, and hears that it is subscribed.
async fn connect(url: String, requests: Vec<Value>) -> Result<Socket, String> {
    let subscribed = async {
        install_crypto();
        let config = WebSocketConfig::default().max_message_size(Some(MESSAGE_BYTES_MAX));
        let text = |error: Error| error.to_string();
        let (mut socket, _) = connect_async_with_config(url, Some(config), true).await.map_err(text)?;
        for request in &requests {
            socket.send(Message::text(request.to_string())).await.map_err(text)?;
        }
        let mut waiting = requests.len();
        while waiting > 0 {
            let message = socket.next().await.ok_or("it closed at once")?.map_err(text)?;
            waiting -= usize::from(is_subscribed(&message)?);
        }
        Ok(socket)
    };
    tokio::time::timeout(CONNECT_WITHIN, subscribed).await.map_err(|_elapsed| "it took too long".to_owned())?
}

/// Whether a message says that a subscription was made; an error if it was refused.
fn is_subscribed(message: &Message) -> Result<bool, String> {
    let Some(message) = read(message) else { return Ok(false) };
    if let Some(error) = message.get("error") {
        return Err(format!("the node refused a subscription: {error}"));
    }
    Ok(message.get("id").is_some() && message.get("result").is_some())
}

/// What a subscription shows, if the message is of one.
fn said(message: &Message) -> Option<Value> {
    let mut message = read(message)?;
    (message["method"] == "eth_subscription").then(|| message["params"]["result"].take())
}

fn read(message: &Message) -> Option<Value> {
    serde_json::from_str(message.to_text().ok()?).ok()
}
