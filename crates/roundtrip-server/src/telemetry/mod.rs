//! What shows how the program is doing: metrics, traces, and each step in the log if that is wanted.
//!
//! ```text
//!   store ── told after each commit ──┬─▶ meters ──────┐
//!   calls, deliveries ────────────────┤                ├──▶ /metrics
//!   store, stations ◀── looked at ────┼── state ───────┘
//!                                     └─▶ traces ──▶ spans ──▶ a collector
//! ```
//!
//! Counting never waits, a scrape reads the store once a second at the most, and spans go out
//! beside everything else. Failure modes: a store that is away is shown as down, and counters go
//! on; a collector that is away costs spans and nothing else.

mod count;
pub mod list;
mod meters;
mod spans;
mod state;
mod traces;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use roundtrip::clock::Clock;
use roundtrip::store::Store;
use roundtrip::store::op::Grant;
use roundtrip::store::witness::{LaneStep, Move, RequestStep, Witness};
use roundtrip::words::{LaneName, ListenerName, RequestId, RouteName};
use roundtrip_tools::Presence;

pub(crate) use count::Observed;
use count::count;
use meters::Meters;
use state::State;
pub(crate) use state::{WatchedChain, WatchedListener};
pub(crate) use traces::{Collector, Traces, headers};

/// Under which name each step is in the log: `roundtrip::steps=debug`.
const STEPS: &str = "roundtrip::steps";
/// As what metrics are served.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What there is to be counted.
#[derive(Debug, Default)]
pub struct Scope {
    /// All routes.
    pub routes: Vec<RouteName>,
    /// Those whose requests may come with a trace context.
    pub submitted: HashSet<RouteName>,
    /// Where answers of routes go, if no lane takes them.
    pub published_to: HashMap<RouteName, String>,
    /// The lanes that this process sends from.
    pub lanes: Vec<LaneName>,
    /// The listeners of chains, in whatever process.
    pub listeners: Vec<ListenerName>,
}

/// Who is told of each step.
#[derive(Debug)]
struct Watcher {
    meters: Arc<Meters>,
    traces: Option<Arc<Traces>>,
}

impl Witness for Watcher {
    fn saw(&self, moves: &[Move]) {
        self.meters.saw(moves);
        if let Some(traces) = &self.traces {
            traces.saw(moves);
        }
        if tracing::enabled!(target: STEPS, tracing::Level::DEBUG) {
            moves.iter().for_each(|one| self.log(one));
        }
    }
}

impl Watcher {
    fn log(&self, one: &Move) {
        match one {
            Move::Request { id, route, step, .. } => {
                let trace =
                    self.traces.as_ref().and_then(|traces| traces.remembered(id)).map(|trace| trace.to_string());
                tracing::debug!(target: STEPS, request = %id, trace, %route, step = told(step), "a request went on");
            }
            Move::Lane { lane, step } => {
                let step = match step {
                    LaneStep::Attempted => "attempted",
                    LaneStep::Filled => "filled",
                    LaneStep::CancelWished => "cancel wished",
                };
                tracing::debug!(target: STEPS, %lane, step, "a lane went on");
            }
        }
    }
}

/// A step of a request, as the log shows it.
fn told(step: &RequestStep) -> String {
    match step {
        RequestStep::Leased { attempt } => format!("leased, attempt {attempt}"),
        RequestStep::Failed(class) => format!("failed, {}", class.word()),
        RequestStep::Assigned(lane) => format!("assigned to {lane}"),
        RequestStep::Ended(end) => format!("ended, {}", end.kind().word()),
        // The others are one word each.
        other => format!("{other:?}").to_lowercase(),
    }
}

/// What this process shows of itself.
#[derive(Clone)]
pub struct Telemetry(Arc<Inner>);

struct Inner {
    registry: Registry,
    meters: Arc<Meters>,
    traces: Option<Arc<Traces>>,
    clock: Arc<dyn Clock>,
    state: State,
}

impl Telemetry {
    /// Follows what this process does on this store from now on; of this part of the traces that
    /// nobody else began, spans are made. A store has one witness: this is it.
    pub fn start(store: Arc<dyn Store>, clock: Arc<dyn Clock>, scope: Scope, traced: Option<f64>) -> Telemetry {
        let Scope { routes, submitted, published_to, lanes, listeners } = scope;
        let mut registry = Registry::default();
        let meters = Arc::new(Meters::new(&mut registry, published_to));
        meters.expect(&routes, &lanes);
        let (exported, dropped) = meters.spans();
        let traces = traced.map(|ratio| Arc::new(Traces::new(submitted, ratio, exported, dropped)));
        store.witness(Arc::new(Watcher { meters: meters.clone(), traces: traces.clone() }));
        let state = State::new(store, clock.clone(), listeners);
        registry.register_collector(Box::new(state.shown()));
        Telemetry(Arc::new(Inner { registry, meters, traces, clock, state }))
    }

    /// The same router, whose calls are counted.
    pub fn counted(&self, router: Router) -> Router {
        router.layer(from_fn_with_state(self.0.meters.clone(), count))
    }

    /// What makes spans, if that is wanted.
    pub(crate) fn traces(&self) -> Option<Arc<Traces>> {
        self.0.traces.clone()
    }

    /// A request was admitted with this trace context, or with none.
    pub(crate) fn admitted(&self, id: RequestId, trace: Option<&str>) {
        if let Some(traces) = &self.0.traces {
            traces.learn(id, trace);
        }
    }

    /// What workers are told of the traces that these requests belong to: what they came with,
    /// or, if spans are made, that what the worker does is part of the request.
    pub(crate) fn hand_on(&self, grants: &mut [Grant]) {
        let Some(traces) = &self.0.traces else { return };
        for grant in grants {
            let context = traces.handed_on(grant.id, grant.generation, grant.trace.as_deref());
            grant.trace = Some(context.to_string().into());
        }
    }

    /// Shows what this listener does, too.
    pub(crate) fn watch_listener(&self, listener: WatchedListener) {
        self.0.state.watch(|watched| watched.listeners.push(listener));
    }

    /// Shows what is known of this chain, too.
    pub(crate) fn watch_chain(&self, chain: WatchedChain) {
        self.0.state.watch(|watched| watched.chains.push(chain));
    }

    /// Shows whether the tool that works on this route can be asked, too.
    pub(crate) fn watch_tool(&self, route: &str, presence: Presence) {
        self.0.state.watch(|watched| drop(watched.tools.insert(route.to_owned(), presence)));
    }

    /// The tools that this process calls, by their routes.
    pub(crate) fn tools(&self) -> BTreeMap<String, Presence> {
        self.0.state.tools()
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
