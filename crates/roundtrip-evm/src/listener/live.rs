//! News of a chain over a WebSocket: when to look, never what is there.
//!
//! ```text
//!   connect ──▶ subscribe ──▶ look once more ──▶ wait for a message ──▶ look ──▶ wait …
//!      ▲                                              │ closed, silent, or not understood
//!      └───────────── after a while ──────────────────┘
//! ```
//!
//! The subscription is made first, and then the chain is looked at, up to where it is live:
//! so nothing falls between the two. What a message says is not believed, a new head and a
//! log that was `removed` alike: each only brings the next look forward, which checks parents
//! as ever. So a connection that is lost, late or lying costs time and never an event, and
//! without one polling goes on alone.
//!
//! Whoever waits may stop waiting at any time: the connection stays, half made or whole.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{FutureExt, SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::watch::{Watch, filter};
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

/// A node's WebSocket, connected when it is first waited for.
pub(super) struct Live {
    url: String,
    subscriptions: Vec<Value>,
    state: Mutex<State>,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Live({})", without_secrets(&self.url))
    }
}

/// How far the connection is.
struct State {
    line: Line,
    pause: Duration,
}

enum Line {
    /// Nothing is tried before then.
    Down(Instant),
    Connecting(Connecting),
    Up {
        socket: Box<Socket>,
        heard: Instant,
    },
}

/// What came of waiting for a message.
enum Heard {
    /// There may be news.
    News,
    /// Something that says nothing of the chain.
    Noise,
    /// The connection is of no use any more.
    Lost(String),
}

impl Live {
    /// The WebSocket at this URL, for what is watched.
    pub(super) fn new(url: &str, watches: &[Watch]) -> Result<Live, BadUrl> {
        if !url.starts_with("ws://") && !url.starts_with("wss://") {
            return Err(BadUrl::new(url, "it starts with neither ws:// nor wss://"));
        }
        let subscribe =
            |n: u64, params: Value| json!({"jsonrpc": "2.0", "id": n, "method": "eth_subscribe", "params": params});
        let subscriptions =
            vec![subscribe(1, json!(["newHeads"])), subscribe(2, json!(["logs", filter(json!({}), watches)]))];
        let state = Mutex::new(State { line: Line::Down(Instant::now()), pause: PAUSE_FIRST });
        Ok(Live { url: url.to_owned(), subscriptions, state })
    }

    /// Ends when there may be something new.
    pub(super) async fn news(&self) {
        let mut state = self.state.lock().await;
        loop {
            let State { line, pause } = &mut *state;
            *line = match line {
                Line::Down(until) => {
                    tokio::time::sleep_until(*until).await;
                    Line::Connecting(Box::pin(connect(self.url.clone(), self.subscriptions.clone())))
                }
                Line::Connecting(connecting) => match connecting.await {
                    Ok(socket) => {
                        tracing::info!(node = without_secrets(&self.url), "news of the chain come over a WebSocket");
                        *line = Line::Up { socket: Box::new(socket), heard: Instant::now() };
                        *pause = PAUSE_FIRST;
                        // What came before the subscription is read by the next look.
                        return;
                    }
                    Err(why) => self.down(why, pause),
                },
                Line::Up { socket, heard } => match next(socket, *heard + SILENT_FOR).await {
                    Heard::News => {
                        *heard = Instant::now();
                        return;
                    }
                    Heard::Noise => {
                        *heard = Instant::now();
                        continue;
                    }
                    Heard::Lost(why) => self.down(why, pause),
                },
            };
        }
    }

    /// The connection is tried again after a pause, which grows.
    fn down(&self, why: String, pause: &mut Duration) -> Line {
        tracing::warn!(
            node = without_secrets(&self.url),
            why = without_secrets(&why),
            pause_ms = pause.as_millis(),
            "no news of the chain over the WebSocket: it is polled until there are"
        );
        let until = Instant::now() + *pause;
        *pause = pause.saturating_mul(2).min(PAUSE_LAST);
        Line::Down(until)
    }
}

/// Connects, subscribes, and hears that it is subscribed.
async fn connect(url: String, subscriptions: Vec<Value>) -> Result<Socket, String> {
    let subscribed = async {
        install_crypto();
        let config = WebSocketConfig::default().max_message_size(Some(MESSAGE_BYTES_MAX));
        let (mut socket, _) =
            connect_async_with_config(url, Some(config), true).await.map_err(|error| error.to_string())?;
        for subscription in &subscriptions {
            socket.send(Message::text(subscription.to_string())).await.map_err(|error| error.to_string())?;
        }
        let mut waiting = subscriptions.len();
        while waiting > 0 {
            let message = socket.next().await.ok_or("it closed at once")?.map_err(|error| error.to_string())?;
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

/// The next message, and those that are there already.
async fn next(socket: &mut Socket, until: Instant) -> Heard {
    let first = match tokio::time::timeout_at(until, socket.next()).await {
        Ok(message) => heard(message),
        Err(_elapsed) => return Heard::Lost("nothing came for a long time".to_owned()),
    };
    if let Heard::News = first {
        // One look is enough for all of them.
        while let Some(Some(Ok(_))) = socket.next().now_or_never() {}
    }
    first
}

fn heard(message: Option<Result<Message, tokio_tungstenite::tungstenite::Error>>) -> Heard {
    match message {
        None | Some(Ok(Message::Close(_))) => Heard::Lost("it was closed".to_owned()),
        Some(Err(error)) => Heard::Lost(error.to_string()),
        Some(Ok(message)) => match read(&message) {
            Some(message) if message["method"] == "eth_subscription" => {
                if message["params"]["result"]["removed"] == true {
                    tracing::debug!("a log was removed: a reorg is looked for");
                }
                Heard::News
            }
            _ => Heard::Noise,
        },
    }
}

fn read(message: &Message) -> Option<Value> {
    serde_json::from_str(message.to_text().ok()?).ok()
}
