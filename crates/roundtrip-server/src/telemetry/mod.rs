//! What shows how the program is doing: metrics.
//!
//! ```text
//!   store ── told after each commit ──▶ meters ──┐
//!   calls, deliveries ─────────────────▶         ├──▶ /metrics
//!   store, stations ◀── looked at ── state ──────┘
//! ```
//!
//! Counting never waits, and a scrape reads the store once a second at the most. Failure modes:
//! a store that is away is shown as down, and counters go on.

mod count;
pub mod list;
mod meters;
mod state;

use std::collections::HashMap;
use std::sync::Arc;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use roundtrip::clock::Clock;
use roundtrip::store::Store;
use roundtrip::words::{LaneName, ListenerName, RouteName};

pub(crate) use count::{Counted, count};
pub(crate) use meters::Meters;
use state::State;
pub(crate) use state::{WatchedChain, WatchedListener};

/// As what metrics are served.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What there is to be counted.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    /// All routes.
    pub(crate) routes: Vec<RouteName>,
    /// Where answers of routes go, if no lane takes them.
    pub(crate) published_to: HashMap<RouteName, String>,
    /// The lanes that this process sends from.
    pub(crate) lanes: Vec<LaneName>,
    /// The listeners of chains, in whatever process.
    pub(crate) listeners: Vec<ListenerName>,
}

/// The metrics of this process.
#[derive(Clone)]
pub struct Telemetry(Arc<Inner>);

struct Inner {
    registry: Registry,
    meters: Arc<Meters>,
    state: State,
}

impl Telemetry {
    /// Counts what this process does on this store from now on. A store has one witness: this is it.
    pub(crate) fn start(store: Arc<dyn Store>, clock: Arc<dyn Clock>, scope: Scope) -> Telemetry {
        let Scope { routes, published_to, lanes, listeners } = scope;
        let mut registry = Registry::default();
        let meters = Arc::new(Meters::new(&mut registry, published_to));
        meters.expect(&routes, &lanes);
        store.witness(meters.clone());
        let state = State::new(store, clock, listeners);
        registry.register_collector(Box::new(state.shown()));
        Telemetry(Arc::new(Inner { registry, meters, state }))
    }

    /// What is counted.
    pub(crate) fn meters(&self) -> Arc<Meters> {
        self.0.meters.clone()
    }

    /// Shows what this listener does, too.
    pub(crate) fn watch_listener(&self, listener: WatchedListener) {
        self.0.state.watch(|watched| watched.listeners.push(listener));
    }

    /// Shows what is known of this chain, too.
    pub(crate) fn watch_chain(&self, chain: WatchedChain) {
        self.0.state.watch(|watched| watched.chains.push(chain));
    }

    /// Everything, as a scrape is answered.
    pub async fn scrape(&self) -> Response {
        self.0.state.look().await;
        let mut text = String::new();
        // Text never fails to take more text.
        let _infallible = encode(&mut text, &self.0.registry);
        ([(CONTENT_TYPE, OPENMETRICS)], text).into_response()
    }
}
