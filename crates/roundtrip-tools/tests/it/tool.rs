//! Tools as anybody could write them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use serde_json::Value;
use tokio::net::TcpListener;

/// What a tool was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// A tool that answers as it is told, and remembers what it was asked.
#[derive(Clone)]
pub(crate) struct HttpServer {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// What a tool answers.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    status: u16,
    header: Option<(&'static str, &'static str)>,
    body: String,
}

/// A status with a body.
pub(crate) fn says(status: u16, body: &str) -> Said {
    Said { status, header: None, body: body.to_owned() }
}

impl Said {
    pub(crate) fn with(mut self, name: &'static str, value: &'static str) -> Said {
        self.header = Some((name, value));
        self
    }
}

impl IntoResponse for Said {
    fn into_response(self) -> Response {
        let headers: HeaderMap = self
            .header
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .into_iter()
            .collect();
        (StatusCode::from_u16(self.status).unwrap(), headers, self.body).into_response()
    }
}

impl HttpServer {
    /// Answers each call by this function.
    pub(crate) async fn answering(answer: impl Fn(&Asked) -> Said + Clone + Send + Sync + 'static) -> HttpServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        HttpServer::on(listener, answer)
    }

    pub(crate) fn on(
        listener: impl Listener<Addr = SocketAddr>,
        answer: impl Fn(&Asked) -> Said + Clone + Send + Sync + 'static,
    ) -> HttpServer {
        let server = HttpServer { address: listener.local_addr().unwrap(), asked: Arc::default() };
        let asked = server.asked.clone();
        let call = move |State(asked): State<Arc<Mutex<Vec<Asked>>>>, url: Uri, headers: HeaderMap, body: Bytes| {
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let one = Asked { path: url.path().to_owned(), headers, body };
            let response = answer(&one);
            asked.lock().unwrap().push(one);
            async move { response }
        };
        let app = Router::new().fallback(call).with_state(asked);
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        server
    }

    /// Answers its calls in this order, and all others with the last.
    pub(crate) async fn in_turn(answers: Vec<Said>) -> HttpServer {
        let turn = Arc::new(AtomicUsize::new(0));
        HttpServer::answering(move |_| {
            let turn = turn.fetch_add(1, Ordering::SeqCst);
            answers[turn.min(answers.len() - 1)].clone()
        })
        .await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}
