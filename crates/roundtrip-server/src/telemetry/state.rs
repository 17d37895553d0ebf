//! How everything stands, read when somebody asks: the store once a second at the most,
//! whatever asks; and what stations of this process know, without asking anybody.
//!
//! Failure modes: a store that is away or too slow is shown as down, and nothing that it would
//! have shown is shown; what it showed before would be taken for the truth.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use roundtrip::clock::Clock;
use roundtrip::listener::{Cursor, FollowerStats};
use roundtrip::sender::{LaneStatus, SenderStats};
use roundtrip::store::query::{Count, LaneView, OriginView, RouteView};
use roundtrip::store::{ReadExt, Store, StoreError};
use roundtrip::words::{LaneName, ListenerName, UnixMs};
use roundtrip_evm::{EvmChain, EvmSource, NodeReport};
use roundtrip_tools::Presence;

use super::list::{self, Kind, Metric};
use super::meters::{Labels, labels};

/// For how long a look at the store is good.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// How long the store has to answer.
const READ_WITHIN: Duration = Duration::from_secs(3);

/// Counters that stations keep themselves.
const KEPT: [Metric; 5] =
    [list::LISTENER_BLOCKS, list::LISTENER_REORGS, list::LISTENER_FLAWED, list::LISTENER_MISSED, list::NODE_ANSWERS];

/// Whether a metric is read when it is asked for, and not counted.
pub(super) fn is_read(metric: &Metric) -> bool {
    metric.kind == Kind::Gauge || KEPT.contains(metric)
}

/// What this process runs that can be looked at without asking anybody.
#[derive(Default)]
pub(super) struct Watched {
    /// Listeners of chains.
    pub(super) listeners: Vec<WatchedListener>,
    /// Chains that are sent to.
    pub(super) chains: Vec<WatchedChain>,
    /// Tools that are called, by their routes.
    pub(super) tools: BTreeMap<String, Presence>,
}

/// A listener of a chain.
pub(crate) struct WatchedListener {
    pub(crate) name: String,
    pub(crate) chain: String,
    pub(crate) source: Arc<EvmSource>,
    pub(crate) stats: Arc<FollowerStats>,
}

/// A chain, as one destination sees it.
pub(crate) struct WatchedChain {
    pub(crate) destination: String,
    pub(crate) chain: String,
    pub(crate) view: Arc<EvmChain>,
    pub(crate) lanes: Vec<LaneName>,
    pub(crate) stats: Arc<SenderStats>,
}

/// One value of a metric.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    metric: &'static str,
    labels: Labels,
    value: f64,
}

/// Values in the making.
#[derive(Default)]
struct Samples(Vec<Sample>);

impl Samples {
    fn add(&mut self, metric: &Metric, values: &[&str], value: f64) {
        self.0.push(Sample { metric: metric.name, labels: labels(metric, values), value });
    }
}

/// What was last read.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown(Arc<Mutex<Vec<Sample>>>);

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for metric in list::metrics().filter(|metric| is_read(metric)) {
            let mut of = samples.iter().filter(|sample| sample.metric == metric.name).peekable();
            if of.peek().is_none() {
                continue;
            }
            let kind = if metric.kind == Kind::Counter { MetricType::Counter } else { MetricType::Gauge };
            let help = format!("{}.", metric.help);
            let mut values = encoder.encode_descriptor(metric.stem(), &help, None, kind)?;
            for Sample { labels, value, .. } in of {
                match metric.kind {
                    Kind::Counter => {
                        values.encode_family(labels)?.encode_counter::<NoLabelSet, _, f64>(value, None)?;
                    }
                    _ if labels.is_empty() => values.encode_gauge(value)?,
                    _ => values.encode_family(labels)?.encode_gauge(value)?,
                }
            }
        }
        Ok(())
    }
}

/// How the store says that everything stands.
struct Standing {
    counts: Vec<Count>,
    routes: Vec<RouteView>,
    lanes: Vec<LaneView>,
    origins: Vec<OriginView>,
    cursors: Vec<(ListenerName, Cursor)>,
}

/// Reads how everything stands.
pub(super) struct State {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    started_at: UnixMs,
    watched: Mutex<Watched>,
    /// Listeners of all processes.
    listeners: Vec<ListenerName>,
    shown: Shown,
    /// When the store was last looked at; held while it is, so that those who ask at once share a look.
    looked: tokio::sync::Mutex<Option<Instant>>,
}

impl State {
    pub(super) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, listeners: Vec<ListenerName>) -> State {
        let (started_at, watched, shown) = (clock.now(), Mutex::default(), Shown::default());
        State { store, clock, started_at, watched, listeners, shown, looked: tokio::sync::Mutex::default() }
    }

    /// Adds to what is watched.
    pub(super) fn watch(&self, add: impl FnOnce(&mut Watched)) {
        add(&mut self.watched.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Tools that are called, by their routes.
    pub(super) fn tools(&self) -> BTreeMap<String, Presence> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).tools.clone()
    }

    pub(super) fn shown(&self) -> Shown {
        self.shown.clone()
    }

    /// Looks anew, unless that was done within the last second.
    pub(super) async fn look(&self) {
        let mut looked = self.looked.lock().await;
        if looked.is_some_and(|at| at.elapsed() < FRESH_FOR) {
            return;
        }
        let begun = Instant::now();
        let standing = tokio::time::timeout(READ_WITHIN, self.read()).await;
        let standing = standing.map_err(|_late| StoreError::Unknown).flatten();
        let mut samples = Samples::default();
        samples.add(&list::BUILD, &[env!("CARGO_PKG_VERSION")], 1.0);
        samples.add(&list::STARTED, &[], seconds(self.started_at.0));
        samples.add(&list::STORE_UP, &[], flag(standing.is_ok()));
        match standing {
            Ok(standing) => {
                samples.add(&list::STORE_READ, &[], begun.elapsed().as_secs_f64());
                standing_of(&standing, self.clock.now(), &mut samples);
            }
            Err(error) => tracing::debug!(%error, "the store did not show how everything stands"),
        }
        self.watched(&mut samples);
        *self.shown.0.lock().unwrap_or_else(PoisonError::into_inner) = samples.0;
        *looked = Some(Instant::now());
    }

    async fn read(&self) -> Result<Standing, StoreError> {
        let (counts, routes) = (self.store.counts().await?, self.store.routes().await?);
        let (lanes, origins) = (self.store.lanes().await?, self.store.origins().await?);
        let mut cursors = Vec::new();
        for listener in &self.listeners {
            cursors.extend(self.store.cursor(listener.clone()).await?.map(|cursor| (listener.clone(), cursor)));
        }
        Ok(Standing { counts, routes, lanes, origins, cursors })
    }

    /// What stations of this process know.
    fn watched(&self, samples: &mut Samples) {
        let now = self.clock.now();
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        for WatchedListener { name, chain, source, stats } in &watched.listeners {
            listener(name, stats, now, samples);
            nodes(chain, name, &source.nodes(), samples);
        }
        for (route, presence) in &watched.tools {
            samples.add(&list::TOOL_THERE, &[route], flag(presence.away().is_none()));
        }
        for WatchedChain { destination, chain, view, lanes, stats } in &watched.chains {
            nodes(chain, destination, &view.nodes(), samples);
            for lane in lanes {
                samples.add(&list::LANE_AT_CAP, &[lane.as_str()], flag(stats.at_cap(lane).is_some()));
                let purse = view.purse(lane);
                let money = [
                    (&list::LANE_FEE, purse.fee),
                    (&list::LANE_TIP, purse.tip),
                    (&list::LANE_PAID, purse.paid),
                    (&list::LANE_BALANCE, purse.balance),
                ];
                for (metric, wei) in money {
                    wei.into_iter().for_each(|wei| samples.add(metric, &[lane.as_str()], wei as f64));
                }
            }
        }
    }
}

fn flag(holds: bool) -> f64 {
    if holds { 1.0 } else { 0.0 }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

fn standing_of(standing: &Standing, now: UnixMs, samples: &mut Samples) {
    for Count { route, state, requests, oldest_at } in &standing.counts {
        let of = [route.as_str(), state.word()];
        samples.add(&list::LIVE, &of, *requests as f64);
        samples.add(&list::OLDEST, &of, seconds(now.since(*oldest_at)));
    }
    for route in &standing.routes {
        samples.add(&list::PAUSED, &[route.name.as_str()], flag(route.paused));
    }
    standing.lanes.iter().for_each(|view| lane(view, now, samples));
    for origin in &standing.origins {
        let name = [origin.name.as_str()];
        origin.head.iter().for_each(|head| samples.add(&list::ORIGIN_HEAD, &name, head.height.0 as f64));
        origin.behind_ms.iter().for_each(|ms| samples.add(&list::ORIGIN_BEHIND, &name, seconds(*ms)));
    }
    for (listener, cursor) in &standing.cursors {
        samples.add(&list::CURSOR, &[listener.as_str()], cursor.at.height.0 as f64);
    }
}

fn lane(view: &LaneView, now: UnixMs, samples: &mut Samples) {
    let of = [view.name.as_str(), view.destination.as_str()];
    let status = match &view.status {
        LaneStatus::Active => "active",
        LaneStatus::Paused { .. } => "paused",
        // One that is over takes parcels again, though nobody has said so.
        LaneStatus::Quarantined { until } if *until <= now => "active",
        LaneStatus::Quarantined { .. } => "quarantined",
        LaneStatus::Stopped => "stopped",
        LaneStatus::Unfunded { .. } => "unfunded",
    };
    for word in ["active", "paused", "quarantined", "stopped", "unfunded"] {
        samples.add(&list::LANE_STATUS, &[of[0], of[1], word], flag(word == status));
    }
    samples.add(&list::LANE_IN_FLIGHT, &of, view.under_way as f64);
    samples.add(&list::LANE_WINDOW, &of, f64::from(view.window));
    samples.add(&list::LANE_GAP, &of, gap(view) as f64);
    samples.add(&list::LANE_NEXT, &of, view.next.0 as f64);
    samples.add(&list::LANE_SETTLED, &of, view.settled.0 as f64);
}

/// Slots from the settled to the next that no parcel has. Parcels below what is settled, which
/// the next look ends, may hide some for that long.
fn gap(view: &LaneView) -> u64 {
    view.next.0.saturating_sub(view.settled.0).saturating_sub(view.under_way as u64)
}

fn listener(name: &str, stats: &FollowerStats, now: UnixMs, samples: &mut Samples) {
    let (head, read, of) = (stats.head().0, stats.read_to().0, [name]);
    samples.add(&list::LISTENER_HEAD, &of, head as f64);
    samples.add(&list::LISTENER_FINAL, &of, stats.finalized().0 as f64);
    samples.add(&list::LISTENER_READ, &of, read as f64);
    samples.add(&list::LISTENER_LAG, &of, head.saturating_sub(read) as f64);
    // Before the first block there is nothing whose age could be told.
    if stats.read_time() > UnixMs(0) {
        samples.add(&list::LISTENER_LAG_SECONDS, &of, seconds(now.since(stats.read_time())));
    }
    samples.add(&list::LISTENER_BLOCKS, &of, stats.blocks() as f64);
    samples.add(&list::LISTENER_REORGS, &of, stats.reorgs() as f64);
    samples.add(&list::LISTENER_FLAWED, &of, stats.quarantined() as f64);
    samples.add(&list::LISTENER_MISSED, &of, stats.missed() as f64);
}

fn nodes(chain: &str, by: &str, reports: &[NodeReport], samples: &mut Samples) {
    for (n, report) in reports.iter().enumerate() {
        let NodeReport { name, is_well, good, busy, silent, astray } = report;
        // Two nodes of one provider differ only in what is not shown.
        let url = n.to_string();
        samples.add(&list::NODE_WELL, &[chain, name, &url, by], flag(*is_well));
        for (result, count) in [("good", good), ("busy", busy), ("silent", silent), ("astray", astray)] {
            samples.add(&list::NODE_ANSWERS, &[chain, name, &url, by, result], *count as f64);
        }
    }
}
