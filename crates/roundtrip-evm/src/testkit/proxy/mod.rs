//! A JSON-RPC proxy in front of a node that misbehaves by a seed: it forwards a request and
//! loses the answer, takes its time, refuses, cuts, reorders, and tells of the past.
//!
//! ```text
//! request ──▶ plan ──▶ delay ──▶ refuse? ──▶ node ──▶ twist ──▶ lose, fail or cut? ──▶ answer
//! ```
//!
//! The dice are the seed's; which request meets which throw depends on the order in which
//! requests come. Every fault that had an effect is counted, so that a test can show that it
//! met it. A node that is not there is answered with 502, which is no fault of the seed and
//! counts as none.

mod faults;
mod twist;

pub use faults::{Fault, ProxyFaults};

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use alloy::rpc::client::RpcClient;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use reqwest::Url;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use faults::{Fate, Plan};

use crate::rpc::{Rpc, web_client};

/// No request may be longer.
pub const REQUEST_BYTES_LIMIT: usize = 16 << 20;
/// How many connections are served at once; more wait to be accepted.
pub const CONNECTIONS_LIMIT: usize = 512;
/// How long it waits after it could not accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// How long the node may take.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(60);

/// A running proxy; dropped, it stops and closes its connections.
pub struct Proxy {
    url: Url,
    through: RpcClient,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of a node, on a port of its own.
    pub async fn start(upstream: Url, seed: u64, faults: ProxyFaults) -> io::Result<Proxy> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let url: Url = format!("http://{}", listener.local_addr()?).parse().map_err(io::Error::other)?;
        let through = Rpc::http(url.as_str()).map_err(io::Error::other)?.client();
        let client = web_client(UPSTREAM_TIMEOUT).map_err(io::Error::other)?;
        let state = State { faults, dice: fastrand::Rng::with_seed(seed), lose_next: HashMap::new() };
        let shared = Arc::new(Shared { upstream, client, state: Mutex::new(state), counts: Counts::default() });
        let task = tokio::spawn(accept(listener, shared.clone()));
        Ok(Proxy { url, through, shared, task })
    }

    /// Where it listens.
    pub fn url(&self) -> Url {
        self.url.clone()
    }

    /// A client that goes through it.
    pub fn client(&self) -> RpcClient {
        self.through.clone()
    }

    /// From now on it misbehaves like this.
    pub fn set_faults(&self, faults: ProxyFaults) {
        self.shared.state().faults = faults;
    }

    /// The next answers to requests that hold such a call are lost, after the node had them.
    pub fn lose_next(&self, method: &str, answers: u64) {
        self.shared.state().lose_next.insert(method.to_owned(), answers);
    }

    /// How often this fault had an effect.
    pub fn count(&self, fault: Fault) -> u64 {
        self.shared.counts.of(fault)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Shared {
    upstream: Url,
    client: reqwest::Client,
    state: Mutex<State>,
    counts: Counts,
}

struct State {
    faults: ProxyFaults,
    dice: fastrand::Rng,
    lose_next: HashMap<String, u64>,
}

#[derive(Default)]
struct Counts([AtomicU64; Fault::ALL.len()]);

impl Counts {
    fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize].load(Ordering::Relaxed)
    }

    fn add(&self, fault: Fault, times: u64) {
        self.0[fault as usize].fetch_add(times, Ordering::Relaxed);
    }
}

/// Serves connections. They end with this task: the set owns theirs.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_LIMIT => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, shared.clone()));
                }
                // Out of descriptors, or gone before it was accepted: others may do better.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let service = hyper::service::service_fn(move |request| answer(shared.clone(), request));
    // An error here is a client that left, or an answer that was lost on purpose.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// The connection is closed, and nothing is answered.
#[derive(Debug, thiserror::Error)]
#[error("the answer is lost")]
struct Lost;

type Answer = Response<Full<Bytes>>;

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Answer, Lost> {
    let Ok(body) = Limited::new(request.into_body(), REQUEST_BYTES_LIMIT).collect().await else {
        return Ok(status(StatusCode::PAYLOAD_TOO_LARGE));
    };
    let body = body.to_bytes();
    // What is not JSON is for the node to refuse.
    let request = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let plan = shared.plan(&request);
    if let Some(ms) = plan.delay_ms {
        shared.counts.add(Fault::Delay, 1);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    match plan.fate {
        Fate::TooManyRequests { retry_after_s } => {
            shared.counts.add(Fault::TooManyRequests, 1);
            let mut refusal = status(StatusCode::TOO_MANY_REQUESTS);
            refusal.headers_mut().insert(RETRY_AFTER, retry_after_s.into());
            return Ok(refusal);
        }
        Fate::ErrorBefore(code) => {
            shared.counts.add(Fault::ErrorBefore, 1);
            return Ok(status(code));
        }
        Fate::Whole | Fate::LostAnswer | Fate::ErrorAfter(_) | Fate::Truncated => {}
    }
    let Ok((code, answered)) = shared.forward(body, request, &plan).await else {
        return Ok(status(StatusCode::BAD_GATEWAY));
    };
    match plan.fate {
        Fate::LostAnswer => {
            shared.counts.add(Fault::LostAnswer, 1);
            Err(Lost)
        }
        Fate::ErrorAfter(code) => {
            shared.counts.add(Fault::ErrorAfter, 1);
            Ok(status(code))
        }
        Fate::Truncated => {
            shared.counts.add(Fault::Truncated, 1);
            Ok(json_answer(code, answered.slice(..answered.len() / 2)))
        }
        Fate::Whole | Fate::TooManyRequests { .. } | Fate::ErrorBefore(_) => Ok(json_answer(code, answered)),
    }
}

fn status(code: StatusCode) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from_static(b"by the proxy")));
    *answer.status_mut() = code;
    answer
}

fn json_answer(code: StatusCode, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = code;
    answer.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    answer
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Throws the dice for a request.
    fn plan(&self, request: &Value) -> Plan {
        let mut state = self.state();
        let State { faults, dice, lose_next } = &mut *state;
        let mut plan = Plan::draw(faults, dice);
        let lost = twist::each(request).iter().filter_map(twist::method).find_map(|method| {
            let left = lose_next.get_mut(method).filter(|left| **left > 0)?;
            *left -= 1;
            Some(())
        });
        if lost.is_some() {
            plan.fate = Fate::LostAnswer;
        }
        plan
    }

    /// Asks the node, in the past if so planned, and twists what it answers.
    async fn forward(&self, body: Bytes, mut request: Value, plan: &Plan) -> reqwest::Result<(StatusCode, Bytes)> {
        let past = match plan.lag_blocks {
            Some(lag) if twist::each(&request).iter().any(twist::asks_for_head) => self.past(lag).await?,
            _ => None,
        };
        let body = match past {
            Some(past) => {
                let lagging = twist::ask_in_the_past(&mut request, past);
                self.counts.add(Fault::LaggingHead, lagging);
                Bytes::from(request.to_string())
            }
            None => body,
        };
        let (code, answered) = self.ask(body).await?;
        let Ok(mut answer) = serde_json::from_slice::<Value>(&answered) else { return Ok((code, answered)) };
        for (fault, times) in twist::twist(&request, &mut answer, past, plan) {
            self.counts.add(fault, times);
        }
        Ok((code, answer.to_string().into()))
    }

    async fn ask(&self, body: Bytes) -> reqwest::Result<(StatusCode, Bytes)> {
        let asked = self.client.post(self.upstream.clone()).header(CONTENT_TYPE, "application/json").body(body);
        let answered = asked.send().await?;
        Ok((answered.status(), answered.bytes().await?))
    }

    /// The block so many before the newest; none when the node does not say which that is.
    async fn past(&self, lag_blocks: u64) -> reqwest::Result<Option<u64>> {
        let call = json!({"jsonrpc": "2.0", "id": 0, "method": "eth_blockNumber", "params": []});
        let (_, answered) = self.ask(call.to_string().into()).await?;
        let answer: Value = serde_json::from_slice(&answered).unwrap_or(Value::Null);
        let newest = answer.get("result").and_then(twist::number);
        Ok(newest.map(|newest| newest.saturating_sub(lag_blocks)))
    }
}
