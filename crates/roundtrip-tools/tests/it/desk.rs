//! A relay with one route that a tool works on, in memory.

use std::sync::Arc;
use std::time::Duration;

use roundtrip::listener::Ending;
use roundtrip::relay::{Relay, Running};
use roundtrip::store::policy::{Backoff, RoutePolicy};
use roundtrip::store::query::Found;
use roundtrip::store::{Options, ReadExt, Store, open};
use roundtrip::words::{Destination, ErrorClass, ErrorNote, RequestId};
use roundtrip::worker::{RawHandler, WorkerOptions};
use roundtrip_tools::egress::Allowed;
use roundtrip_tools::{ClientTls, Tool, Web, Work};
use serde_json::Value;
use tokio::sync::watch;

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Desk {
    relay: Running,
    store: Arc<dyn Store>,
}

/// Calls that may go to this machine.
pub(crate) fn web() -> Web {
    Web::new(Allowed::read(&["127.0.0.1".to_owned()]).unwrap(), ClientTls::default()).unwrap()
}

impl Desk {
    pub(crate) async fn of(tool: impl Tool) -> Desk {
        Desk::with(Work::new(Arc::new(tool))).await
    }

    pub(crate) async fn with(work: impl RawHandler) -> Desk {
        let options = WorkerOptions { timeout: Some(Duration::from_secs(2)), ..WorkerOptions::default() };
        Desk::open(work, options, None).await
    }

    pub(crate) async fn open(
        work: impl RawHandler,
        options: WorkerOptions,
        open_while: Option<watch::Receiver<bool>>,
    ) -> Desk {
        let store = open("memory:", Options::default()).unwrap();
        let policy = RoutePolicy {
            attempts_max: 2,
            backoff: Backoff { first_ms: 1, max_ms: 20, ..RoutePolicy::default().backoff },
            destination: Some(Destination::new("out").unwrap()),
            ..RoutePolicy::default()
        };
        let relay =
            Relay::new(store.clone()).define("route", policy).work("route", Arc::new(work), options, open_while);
        Desk { relay: relay.start().await.unwrap(), store }
    }

    pub(crate) async fn submit(&self, payload: &Value) -> RequestId {
        self.relay.submitter().submit_json("route", payload).await.unwrap().id
    }

    /// The answer, or why the request is dead, or how else it ended.
    pub(crate) async fn answer(&self, id: RequestId) -> Result<Value, String> {
        let ending = tokio::time::timeout(PATIENCE, self.relay.submitter().answered(id)).await;
        match ending.expect("neither an answer nor an end").unwrap().unwrap() {
            Ending::Answered(payload) => Ok(serde_json::from_slice(&payload.bytes).unwrap()),
            Ending::Dead(Some(note)) => Err(note.text.into()),
            Ending::Ended(receipt) => Err(format!("{:?}", receipt.end)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn ask(&self, payload: &Value) -> Result<Value, String> {
        let id = self.submit(payload).await;
        self.answer(id).await
    }

    /// How often it was tried, and what went wrong last.
    pub(crate) async fn trouble(&self, id: RequestId) -> (u16, Option<ErrorNote>) {
        match self.store.get(id).await.unwrap() {
            Some(Found::Live(view, _)) => (view.attempts, view.error),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until something went wrong with it that is said in these words; of which class.
    pub(crate) async fn until_trouble(&self, id: RequestId, words: &str) -> ErrorClass {
        let seen = async {
            loop {
                let (_, error) = self.trouble(id).await;
                if let Some(note) = error.filter(|note| note.text.contains(words)) {
                    return note.class;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("it never said {words:?}"))
    }
}
