//! What this process counts: each step that the store tells of once it is durable, deliveries,
//! and calls.
//!
//! Counting is a few atomic additions: what a step adds to is looked up by its route, once, and
//! kept.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use roundtrip::inbox::End;
use roundtrip::store::witness::{LaneStep, Move, RequestStep, Witness};
use roundtrip::words::{ErrorClass, LaneName, RouteName, UnixMs};

use super::list::{self, Kind, Metric};

/// What tells values of one metric apart, in the order of its list.
pub(super) type Labels = Vec<(&'static str, String)>;

/// How long requests take: from 10 ms to a day.
const REQUEST_BUCKETS: [f64; 20] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10_800.0,
    43_200.0, 86_400.0,
];
/// How long calls take: from 1 ms to a minute.
const CALL_BUCKETS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0];

/// The labels of a metric with these values.
pub(super) fn labels(metric: &Metric, values: &[&str]) -> Labels {
    debug_assert_eq!(metric.labels.len(), values.len(), "{}", metric.name);
    metric.labels.iter().zip(values).map(|(label, value)| (*label, (*value).to_owned())).collect()
}

/// Histograms over these buckets.
#[derive(Clone, Debug)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

type Counters = Family<Labels, Counter>;
type Histograms = Family<Labels, Histogram, Buckets>;

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Meters {
    counters: HashMap<&'static str, Counters>,
    /// Those without labels.
    plain: HashMap<&'static str, Counter>,
    histograms: HashMap<&'static str, Histograms>,
    routes: RwLock<HashMap<RouteName, Arc<RouteMeters>>>,
    lanes: RwLock<HashMap<LaneName, Arc<LaneMeters>>>,
    /// Where answers of each route go, if no lane takes them.
    published_to: HashMap<RouteName, String>,
}

/// What steps of one route's requests add to.
#[derive(Debug)]
struct RouteMeters {
    admitted: Counter,
    repeated: Counter,
    superseded: Counter,
    leased: Counter,
    released: Counter,
    failed: [Counter; 4],
    answered: Counter,
    assigned: Counter,
    returned: Counter,
    unmined: Counter,
    replaced: Counter,
    died: Counter,
    rearmed: Counter,
    settled: Counter,
    ended: [Counter; 5],
    delivered: Option<Counter>,
    answer_seconds: Histogram,
    confirm_seconds: Histogram,
    settle_seconds: Histogram,
}

/// What steps of one lane add to.
#[derive(Debug)]
struct LaneMeters {
    assigned: Counter,
    attempts: Counter,
    fills: Counter,
    cancels: Counter,
}

const CLASSES: [ErrorClass; 4] = [ErrorClass::Transport, ErrorClass::Retryable, ErrorClass::Fatal, ErrorClass::Crash];
const ENDS: [End; 5] = [End::Settled, End::Dead, End::Expired, End::Withdrawn, End::Elsewhere];

impl Meters {
    /// Counts, and shows it in this registry. Answers of these routes go to these destinations
    /// without lanes.
    pub(super) fn new(registry: &mut Registry, published_to: HashMap<RouteName, String>) -> Meters {
        let (mut counters, mut plain, mut histograms) = (HashMap::new(), HashMap::new(), HashMap::new());
        for metric in list::metrics().filter(|metric| !super::state::is_read(metric)) {
            match metric.kind {
                Kind::Counter if metric.labels.is_empty() => {
                    let counter = Counter::default();
                    registry.register(metric.stem(), metric.help, counter.clone());
                    plain.insert(metric.name, counter);
                }
                Kind::Counter => {
                    let family = Counters::default();
                    registry.register(metric.stem(), metric.help, family.clone());
                    counters.insert(metric.name, family);
                }
                Kind::Histogram => {
                    let buckets: &[f64] =
                        if metric.name.starts_with("roundtrip_request_") { &REQUEST_BUCKETS } else { &CALL_BUCKETS };
                    let family = Histograms::new_with_constructor(Buckets(buckets));
                    registry.register(metric.stem(), metric.help, family.clone());
                    histograms.insert(metric.name, family);
                }
                // What goes up and down is read when it is asked for.
                Kind::Gauge => {}
            }
        }
        Meters { counters, plain, histograms, routes: RwLock::default(), lanes: RwLock::default(), published_to }
    }

    /// A counter; one that the list does not have counts for nobody.
    fn counter(&self, metric: &Metric, values: &[&str]) -> Counter {
        let family = self.counters.get(metric.name);
        debug_assert!(family.is_some(), "{} is not counted", metric.name);
        family.map(|family| family.get_or_create(&labels(metric, values)).clone()).unwrap_or_default()
    }

    fn histogram(&self, metric: &Metric, values: &[&str]) -> Histogram {
        let family = self.histograms.get(metric.name);
        debug_assert!(family.is_some(), "{} is not observed", metric.name);
        match family {
            Some(family) => family.get_or_create(&labels(metric, values)).clone(),
            None => Histogram::new(CALL_BUCKETS),
        }
    }

    /// How many spans a collector took, and how many are missing.
    pub(super) fn spans(&self) -> (Counter, Counter) {
        let plain = |metric: &Metric| self.plain.get(metric.name).cloned().unwrap_or_default();
        (plain(&list::SPANS), plain(&list::SPANS_DROPPED))
    }

    /// A delivery was attempted.
    pub(crate) fn delivery(&self, destination: &str, result: &str, took: Duration) {
        self.counter(&list::DELIVERIES, &[destination, result]).inc();
        self.histogram(&list::DELIVERY_SECONDS, &[destination]).observe(took.as_secs_f64());
    }

    /// A call was answered.
    pub(crate) fn call(&self, method: &str, path: &str, status: &str, took: Duration) {
        self.counter(&list::CALLS, &[method, path, status]).inc();
        self.histogram(&list::CALL_SECONDS, &[method, path]).observe(took.as_secs_f64());
    }

    fn of_route(&self, route: &RouteName) -> Arc<RouteMeters> {
        if let Some(found) = self.routes.read().unwrap_or_else(PoisonError::into_inner).get(route) {
            return found.clone();
        }
        let of = |metric: &Metric| self.counter(metric, &[route.as_str()]);
        let seconds = |metric: &Metric| self.histogram(metric, &[route.as_str()]);
        let made = Arc::new(RouteMeters {
            admitted: of(&list::ADMITTED),
            repeated: of(&list::REPEATED),
            superseded: of(&list::SUPERSEDED),
            leased: of(&list::LEASED),
            released: of(&list::RELEASED),
            failed: CLASSES.map(|class| self.counter(&list::FAILED, &[route.as_str(), class.word()])),
            answered: of(&list::ANSWERED),
            assigned: of(&list::ASSIGNED),
            returned: of(&list::RETURNED),
            unmined: of(&list::UNMINED),
            replaced: of(&list::REPLACED),
            died: of(&list::DIED),
            rearmed: of(&list::REARMED),
            settled: of(&list::SETTLED),
            ended: ENDS.map(|end| self.counter(&list::ENDED, &[route.as_str(), end.kind().word()])),
            delivered: self.published_to.get(route).map(|to| self.counter(&list::DELIVERED, &[to])),
            answer_seconds: seconds(&list::ANSWER_SECONDS),
            confirm_seconds: seconds(&list::CONFIRM_SECONDS),
            settle_seconds: seconds(&list::SETTLE_SECONDS),
        });
        self.routes.write().unwrap_or_else(PoisonError::into_inner).entry(route.clone()).or_insert(made).clone()
    }

    fn of_lane(&self, lane: &LaneName) -> Arc<LaneMeters> {
        if let Some(found) = self.lanes.read().unwrap_or_else(PoisonError::into_inner).get(lane) {
            return found.clone();
        }
        let of = |metric: &Metric| self.counter(metric, &[lane.as_str()]);
        let made = Arc::new(LaneMeters {
            assigned: of(&list::LANE_ASSIGNED),
            attempts: of(&list::LANE_ATTEMPTS),
            fills: of(&list::LANE_FILLS),
            cancels: of(&list::LANE_CANCELS),
        });
        self.lanes.write().unwrap_or_else(PoisonError::into_inner).entry(lane.clone()).or_insert(made).clone()
    }

    /// Shows these routes and lanes from the start, at zero: an alert can then tell nothing from nobody.
    pub(super) fn expect(&self, routes: &[RouteName], lanes: &[LaneName]) {
        routes.iter().for_each(|route| drop(self.of_route(route)));
        lanes.iter().for_each(|lane| drop(self.of_lane(lane)));
    }
}

impl RouteMeters {
    fn count(&self, step: &RequestStep, admitted_at: UnixMs, at: UnixMs) {
        let seconds = || Duration::from_millis(at.since(admitted_at)).as_secs_f64();
        let counter = match step {
            RequestStep::Admitted => &self.admitted,
            RequestStep::Repeated => &self.repeated,
            RequestStep::Superseded => &self.superseded,
            RequestStep::Leased { .. } => &self.leased,
            RequestStep::Released => &self.released,
            RequestStep::Failed(class) => return count_at(&CLASSES, &self.failed, *class),
            RequestStep::Answered => {
                self.answer_seconds.observe(seconds());
                &self.answered
            }
            RequestStep::Assigned(_) => &self.assigned,
            RequestStep::Confirmed => return self.confirm_seconds.observe(seconds()),
            RequestStep::Unmined => &self.unmined,
            RequestStep::Returned => &self.returned,
            RequestStep::Published => match &self.delivered {
                Some(delivered) => delivered,
                None => return,
            },
            RequestStep::Replaced => &self.replaced,
            RequestStep::Died => &self.died,
            RequestStep::Rearmed => &self.rearmed,
            RequestStep::Ended(end) => {
                if *end == End::Settled {
                    self.settle_seconds.observe(seconds());
                    self.settled.inc();
                }
                return count_at(&ENDS, &self.ended, *end);
            }
            // What the next step shows as well.
            RequestStep::Finalized | RequestStep::Mined => return,
        };
        counter.inc();
    }
}

/// Adds to the counter that stands where this one stands.
fn count_at<T: PartialEq, const N: usize>(kinds: &[T; N], counters: &[Counter; N], kind: T) {
    if let Some(at) = kinds.iter().position(|one| *one == kind) {
        counters[at].inc();
    }
}

impl Witness for Meters {
    fn saw(&self, moves: &[Move]) {
        // Most of a commit is of one route.
        let mut last: Option<(&RouteName, Arc<RouteMeters>)> = None;
        for one in moves {
            match one {
                Move::Request { route, admitted_at, at, step, .. } => {
                    let meters = match &last {
                        Some((name, meters)) if *name == route => meters,
                        _ => &last.insert((route, self.of_route(route))).1,
                    };
                    meters.count(step, *admitted_at, *at);
                    if let RequestStep::Assigned(lane) = step {
                        self.of_lane(lane).assigned.inc();
                    }
                }
                Move::Lane { lane, step } => {
                    let meters = self.of_lane(lane);
                    let counter = match step {
                        LaneStep::Attempted => &meters.attempts,
                        LaneStep::Filled => &meters.fills,
                        LaneStep::CancelWished => &meters.cancels,
                    };
                    counter.inc();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use prometheus_client::encoding::text::encode;
    use roundtrip::words::RequestId;

    use super::*;

    #[test]
    fn each_step_is_counted_where_it_belongs() {
        let route = RouteName::new("r").unwrap();
        let mut registry = Registry::default();
        let meters = Meters::new(&mut registry, HashMap::from([(route.clone(), "hook".to_owned())]));
        let step = |step| Move::Request {
            id: RequestId([1; 32]),
            generation: 0,
            route: route.clone(),
            admitted_at: UnixMs(1_000),
            at: UnixMs(1_040),
            step,
        };
        let lane = LaneName::new("a").unwrap();
        meters.saw(&[
            step(RequestStep::Admitted),
            step(RequestStep::Leased { attempt: 1 }),
            step(RequestStep::Failed(ErrorClass::Crash)),
            step(RequestStep::Leased { attempt: 2 }),
            step(RequestStep::Answered),
            step(RequestStep::Assigned(lane.clone())),
            Move::Lane { lane, step: LaneStep::Attempted },
            step(RequestStep::Published),
            step(RequestStep::Ended(End::Settled)),
        ]);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "roundtrip_requests_admitted_total{route=\"r\"} 1",
            "roundtrip_requests_leased_total{route=\"r\"} 2",
            "roundtrip_attempts_failed_total{route=\"r\",class=\"crash\"} 1",
            "roundtrip_attempts_failed_total{route=\"r\",class=\"fatal\"} 0",
            "roundtrip_lane_answers_assigned_total{lane=\"a\"} 1",
            "roundtrip_lane_attempts_total{lane=\"a\"} 1",
            "roundtrip_destination_delivered_total{destination=\"hook\"} 1",
            "roundtrip_requests_ended_total{route=\"r\",end=\"settled\"} 1",
            "roundtrip_requests_ended_total{route=\"r\",end=\"dead\"} 0",
            "roundtrip_request_settle_seconds_bucket{le=\"0.025\",route=\"r\"} 0",
            "roundtrip_request_settle_seconds_bucket{le=\"0.05\",route=\"r\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
