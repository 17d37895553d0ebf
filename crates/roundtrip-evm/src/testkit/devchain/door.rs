//! How requests reach the chain: from this process through alloy's transport, and from
//! others over HTTP. Both pass the faults: a request may take its time, may fail before it is
//! carried out, its answer may be lost afterwards, or it may be answered from the past. A batch is one
//! exchange and has one fate.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use alloy::rpc::client::RpcClient;
use alloy::transports::TransportErrorKind;
use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::faults::Fate;
use super::{DevChain, rpc};
use crate::testkit::way;

/// How much one HTTP request may hold.
const REQUEST_BYTES_MAX: usize = 5 * 1024 * 1024;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Lost {
    #[error("connection refused by a fault, the request was not carried out")]
    Request,
    #[error("connection closed by a fault before the answer came")]
    Answer,
}

impl DevChain {
    /// One exchange, with whatever goes wrong; the chain may move on while it is under way.
    async fn exchange(&self, request: &str) -> Result<String, Lost> {
        self.travel().await;
        let answer = self.carried_out(request);
        self.travel().await;
        answer
    }

    /// The way there, or back.
    async fn travel(&self) {
        let delay = self.ledger().chance.delay();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    fn carried_out(&self, request: &str) -> Result<String, Lost> {
        let incoming = rpc::read(request);
        let mut ledger = self.ledger();
        let passage = ledger.chance.passage(incoming.methods());
        if passage.fate == Fate::NotCarriedOut {
            return Err(Lost::Request);
        }
        let answer = rpc::answer(&mut ledger, &incoming, passage.sight);
        if passage.fate == Fate::AnswerLost { Err(Lost::Answer) } else { Ok(answer) }
    }

    /// Serves the chain over HTTP on a free port of this machine, until what is returned is
    /// stopped or dropped.
    pub async fn serve_http(&self) -> io::Result<Served> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let limit = DefaultBodyLimit::max(REQUEST_BYTES_MAX);
        let router = Router::new().route("/", post(over_http)).layer(limit).with_state(self.clone());
        let server = axum::serve(listener, router).with_graceful_shutdown(async {
            // Stopped, or dropped: the end in both cases.
            stopped.await.ok();
        });
        let task = tokio::spawn(server.into_future());
        Ok(Served { address, stop, task })
    }
}

async fn over_http(State(chain): State<DevChain>, request: String) -> Response {
    match chain.exchange(&request).await {
        Ok(answer) => ([(header::CONTENT_TYPE, "application/json")], answer).into_response(),
        Err(Lost::Request) => (StatusCode::SERVICE_UNAVAILABLE, Lost::Request.to_string()).into_response(),
        // A body that breaks off closes the connection under the client's eyes.
        Err(Lost::Answer) => {
            let broken = futures_util::stream::iter([Err::<String, _>(io::Error::other(Lost::Answer))]);
            Response::new(Body::from_stream(broken))
        }
    }
}

/// A chain that is served over HTTP.
#[derive(Debug)]
pub struct Served {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<io::Result<()>>,
}

impl Served {
    /// Where it is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it is served, for clients.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Takes no more connections, and returns when those that there are have ended.
    pub async fn stop(self) -> io::Result<()> {
        drop(self.stop);
        self.task.await.map_err(io::Error::other)?
    }
}

impl DevChain {
    /// A client that talks to this chain in this process, through its faults: no network, no task, and no waiting
    /// but by a fault.
    pub fn client(&self) -> RpcClient {
        let chain = self.clone();
        way::client(move |request| {
            let chain = chain.clone();
            Box::pin(async move { chain.exchange(&request).await.map_err(TransportErrorKind::custom) })
        })
    }
}
