//! Traces: what this process did, as spans, to an OpenTelemetry collector.
//!
//! ```text
//!   store ── told after each commit ──▶ queue ──▶ whose trace? ──▶ spans ──▶ collector
//!                                       bounded   remembered,      in batches, over HTTP
//!                                                 or read
//! ```
//!
//! Nobody waits for any of it. Failure modes: what comes faster than a collector takes it, what
//! a collector refuses, and what was told in the last moment before a crash is missing in the
//! traces, and counted if the process lives; a request that has ended before this process
//! could read whose trace it belongs to has no spans of that end.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prometheus_client::metrics::counter::Counter;
use prost::Message;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, StatusCode, Url};
use roundtrip::station::Shutdown;
use roundtrip::store::query::Found;
use roundtrip::store::witness::{Move, RequestStep};
use roundtrip::store::{ReadExt, Store};
use roundtrip::trace::{SpanId, TraceContext, TraceId};
use roundtrip::words::{RequestId, RouteName, UnixMs};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::spans::{self, Delivery, Step, text};

/// Most steps that wait to be exported; more are dropped.
const QUEUE_MAX: usize = 1 << 16;
/// Most requests whose trace is remembered, twice over.
const REMEMBERED_MAX: usize = 1 << 16;
/// Most spans in one call.
const BATCH: usize = 512;
/// How long steps are collected before they go out.
const COLLECT_FOR: Duration = Duration::from_millis(500);
/// How long a collector has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long the store has to say whose trace it is.
const READ_WITHIN: Duration = Duration::from_secs(3);
/// How often spans are offered to a collector that does not take them.
const TRIES: u32 = 4;
/// How long to wait before the second time; twice as long before each further one.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long the last spans have to go out.
const LAST_WITHIN: Duration = Duration::from_secs(5);
/// How often it is said that a collector takes nothing.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// Where spans go, and which.
#[derive(Clone, Debug)]
pub(crate) struct Collector {
    /// Where they are taken.
    pub(crate) endpoint: Url,
    /// What calls bring, such as who calls.
    pub(crate) headers: HeaderMap,
}

/// Something that is to be a span.
#[derive(Debug)]
enum Told {
    Step(Move),
    Delivery {
        id: RequestId,
        generation: u32,
        route: RouteName,
        destination: String,
        result: &'static str,
        from: UnixMs,
        to: UnixMs,
    },
    /// Soon something will be told of it, and by then it may be gone.
    Expected(RequestId, RouteName),
}

/// What is known of a request's trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    context: TraceContext,
    /// The last step that this process made.
    since: Option<UnixMs>,
}

/// What is known of the traces of requests that were heard of lately.
#[derive(Debug, Default)]
struct Memory {
    young: HashMap<RequestId, Known>,
    /// Forgotten when the young are many, unless they are asked for before.
    old: HashMap<RequestId, Known>,
}

impl Memory {
    fn get(&mut self, id: &RequestId) -> Option<Known> {
        if let Some(known) = self.young.get(id) {
            return Some(*known);
        }
        let known = self.old.remove(id)?;
        self.put(*id, known);
        Some(known)
    }

    fn put(&mut self, id: RequestId, known: Known) {
        if self.young.len() >= REMEMBERED_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, known);
    }

    fn forget(&mut self, id: &RequestId) {
        self.young.remove(id);
        self.old.remove(id);
    }
}

/// What makes spans of what happens.
#[derive(Debug)]
pub(crate) struct Traces {
    queue: Mutex<Vec<Told>>,
    /// Enough has come together for a batch.
    many: Notify,
    memory: Mutex<Memory>,
    /// Routes whose requests may come with a context.
    submitted: HashSet<RouteName>,
    ratio: f64,
    exported: Counter,
    dropped: Counter,
}

impl Traces {
    pub(super) fn new(submitted: HashSet<RouteName>, ratio: f64, exported: Counter, dropped: Counter) -> Traces {
        let (queue, many, memory) = (Mutex::default(), Notify::new(), Mutex::default());
        Traces { queue, many, memory, submitted, ratio, exported, dropped }
    }

    /// Takes what is to become spans, as far as there is room.
    fn take(&self, told: impl ExactSizeIterator<Item = Told>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, room) = (queue.len(), QUEUE_MAX - queue.len());
        self.dropped.inc_by(told.len().saturating_sub(room) as u64);
        queue.extend(told.take(room));
        if before < BATCH && queue.len() >= BATCH {
            self.many.notify_one();
        }
    }

    /// These steps are durable.
    pub(super) fn saw(&self, moves: &[Move]) {
        self.take(moves.iter().map(|one| Told::Step(one.clone())));
    }

    /// A delivery was attempted.
    pub(super) fn delivery(&self, to: &Delivery<'_>) {
        let Delivery { id, generation, result, from, to: until, .. } = *to;
        let (route, destination) = (to.route.clone(), to.destination.to_owned());
        let told = Told::Delivery { id, generation, route, destination, result, from, to: until };
        self.take(std::iter::once(told));
    }

    /// Something will be told of this request, and then it may be gone.
    pub(crate) fn expect(&self, id: RequestId, route: &RouteName) {
        self.take(std::iter::once(Told::Expected(id, route.clone())));
    }

    /// Remembers what a request came with.
    pub(super) fn learn(&self, id: RequestId, given: Option<&str>) -> TraceContext {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let known = memory.get(&id).unwrap_or_else(|| Known { context: self.context(&id, given), since: None });
        memory.put(id, known);
        known.context
    }

    /// The trace of a request that was heard of lately.
    pub(super) fn remembered(&self, id: &RequestId) -> Option<TraceId> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.get(id).map(|known| known.context.trace)
    }

    /// What others who have a hand in it are told.
    pub(super) fn handed_on(&self, id: RequestId, generation: u32, given: Option<&str>) -> TraceContext {
        self.learn(id, given).within(SpanId::of_request(&id, generation))
    }

    /// The context of a request; of those that nobody else began, a part is recorded.
    fn context(&self, id: &RequestId, given: Option<&str>) -> TraceContext {
        match given.and_then(TraceContext::parse) {
            Some(given) => given,
            None => {
                let derived = TraceContext::of(id, None);
                TraceContext { sampled: is_within(&derived, self.ratio), ..derived }
            }
        }
    }

    /// What is known of a request's trace; the store is asked for what it came with, if it may
    /// have come with anything.
    async fn known(&self, store: &dyn Store, id: RequestId, route: &RouteName) -> Option<Known> {
        let remembered = self.memory.lock().unwrap_or_else(PoisonError::into_inner).get(&id);
        if remembered.is_some() {
            return remembered;
        }
        let given = if self.submitted.contains(route) {
            match tokio::time::timeout(READ_WITHIN, store.get(id)).await {
                Ok(Ok(Some(Found::Live(_, bodies)))) => bodies.trace,
                // It is gone, or nobody says.
                _ => return None,
            }
        } else {
            None
        };
        Some(Known { context: self.context(&id, given.as_deref()), since: None })
    }

    /// The spans of what was told.
    async fn spans(&self, store: &dyn Store, told: Told) -> Vec<Span> {
        let (id, route) = match &told {
            Told::Step(Move::Request { id, route, .. }) => (*id, route),
            Told::Delivery { id, route, .. } | Told::Expected(id, route) => (*id, route),
            Told::Step(Move::Lane { .. }) => return Vec::new(),
        };
        let Some(mut known) = self.known(store, id, route).await else {
            self.dropped.inc();
            return Vec::new();
        };
        let made = match &told {
            Told::Step(Move::Request { route, generation, admitted_at, at, step, .. }) => {
                let (generation, admitted_at, since) = (*generation, *admitted_at, known.since.replace(*at));
                spans::of_step(&known.context, &Step { id, generation, route, admitted_at, since, at: *at, step })
            }
            Told::Delivery { generation, route, destination, result, from, to, .. } => {
                let (generation, result, from, to) = (*generation, *result, *from, *to);
                let delivery = Delivery { id, generation, route, destination, result, from, to };
                vec![spans::of_delivery(&known.context, &delivery)]
            }
            _ => Vec::new(),
        };
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        match told {
            Told::Step(Move::Request { step: RequestStep::Ended(_), .. }) => memory.forget(&id),
            _ => memory.put(id, known),
        }
        if known.context.sampled { made } else { Vec::new() }
    }

    /// Exports until told to stop, and then what is left.
    pub(crate) async fn run(self: Arc<Traces>, store: Arc<dyn Store>, collector: Collector, shutdown: Shutdown) {
        let Some(mut line) = Line::open(collector) else { return };
        while !shutdown.is_cancelled() {
            tokio::select! {
                () = self.many.notified() => {}
                () = tokio::time::sleep(COLLECT_FOR) => {}
                () = shutdown.cancelled() => break,
            }
            self.export(&*store, &mut line, &shutdown).await;
        }
        if tokio::time::timeout(LAST_WITHIN, self.export(&*store, &mut line, &shutdown)).await.is_err() {
            tracing::warn!("the last spans were not taken in time, and are missing in their traces");
        }
    }

    /// Exports all that was told so far.
    async fn export(&self, store: &dyn Store, line: &mut Line, shutdown: &Shutdown) {
        let told = std::mem::take(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner));
        let mut batch = Vec::new();
        for told in told {
            batch.extend(self.spans(store, told).await);
            if batch.len() >= BATCH {
                self.send(std::mem::take(&mut batch), line, shutdown).await;
            }
        }
        if !batch.is_empty() {
            self.send(batch, line, shutdown).await;
        }
    }

    async fn send(&self, batch: Vec<Span>, line: &mut Line, shutdown: &Shutdown) {
        let count = batch.len() as u64;
        match line.send(batch, shutdown).await {
            Ok(()) => {
                self.exported.inc_by(count);
            }
            Err(why) => {
                self.dropped.inc_by(count);
                line.complain(&why);
            }
        }
    }
}

/// Whether a trace is in the part that is recorded: decided by its id, so that all processes
/// decide alike.
fn is_within(context: &TraceContext, ratio: f64) -> bool {
    let mut first = [0; 8];
    first.copy_from_slice(&context.trace.0[..8]);
    ratio >= 1.0 || (u64::from_be_bytes(first) as f64) < ratio * (u64::MAX as f64)
}

/// The line to a collector.
struct Line {
    client: Client,
    collector: Collector,
    resource: Resource,
    complained: Option<Instant>,
}

impl Line {
    fn open(collector: Collector) -> Option<Line> {
        let client = match roundtrip_evm::rpc::web_client(ANSWER_WITHIN) {
            Ok(client) => client,
            Err(error) => {
                tracing::error!(%error, "no traces are exported");
                return None;
            }
        };
        let process = std::process::id().to_string();
        let attributes = vec![
            text("service.name", "roundtrip".to_owned()),
            text("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            text("process.pid", process),
        ];
        let resource = Resource { attributes, ..Resource::default() };
        Some(Line { client, collector, resource, complained: None })
    }

    /// Offers spans until they are taken, refused for good, or offered often enough.
    async fn send(&self, spans: Vec<Span>, shutdown: &Shutdown) -> Result<(), String> {
        let (name, version) = ("roundtrip".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        let scope = InstrumentationScope { name, version, ..InstrumentationScope::default() };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, schema_url: String::new() }];
        let resource = Some(self.resource.clone());
        let resource_spans = vec![ResourceSpans { resource, scope_spans, schema_url: String::new() }];
        let body = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        let (mut wait, mut why) = (AGAIN_AFTER, String::new());
        for attempt in 1..=TRIES {
            match self.offer(body.clone()).await {
                Ok(()) => return Ok(()),
                Err(Refusal::Ever(error)) => return Err(error),
                Err(Refusal::Now(error)) => why = error,
            }
            if attempt == TRIES || shutdown.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                break;
            }
            wait *= 2;
        }
        Err(why)
    }

    async fn offer(&self, body: Vec<u8>) -> Result<(), Refusal> {
        let call = self.client.post(self.collector.endpoint.clone()).headers(self.collector.headers.clone());
        let call = call.header(CONTENT_TYPE, "application/x-protobuf").body(body);
        // An address may have a key in it.
        let answer = call.send().await.map_err(|error| Refusal::Now(error.without_url().to_string()))?;
        let status = answer.status();
        let later = [StatusCode::TOO_MANY_REQUESTS, StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE];
        match status {
            _ if status.is_success() => Ok(()),
            _ if later.contains(&status) || status == StatusCode::GATEWAY_TIMEOUT => {
                Err(Refusal::Now(status.to_string()))
            }
            _ => Err(Refusal::Ever(status.to_string())),
        }
    }

    /// Says that nothing is taken, once in a while.
    fn complain(&mut self, why: &str) {
        if self.complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
            self.complained = Some(Instant::now());
            let collector = self.collector.endpoint.host_str().unwrap_or_default();
            tracing::warn!(
                collector,
                why,
                "the collector of traces takes no spans, and they are dropped: look whether it runs"
            );
        }
    }
}

/// Why a collector took nothing.
enum Refusal {
    /// It may take it later.
    Now(String),
    /// It never will.
    Ever(String),
}

/// The headers of these names and values; no log shows the values.
pub(crate) fn headers(named: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in named {
        let bad = || format!("{name:?} is no header, or its value cannot be one");
        let mut value = HeaderValue::try_from(value).map_err(|_| bad())?;
        value.set_sensitive(true);
        headers.insert(HeaderName::try_from(name).map_err(|_| bad())?, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn traces(ratio: f64) -> Traces {
        Traces::new(HashSet::new(), ratio, Counter::default(), Counter::default())
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let traces = traces(1.0);
        let route = RouteName::new("r").unwrap();
        let told = |_| Told::Expected(RequestId([0; 32]), route.clone());
        traces.take((0..QUEUE_MAX + 5).map(told));
        traces.take((0..3).map(told));
        assert_eq!((traces.dropped.get(), traces.queue.lock().map(|queue| queue.len()).ok()), (8, Some(QUEUE_MAX)));
    }

    #[test]
    fn memory_is_bounded_and_keeps_what_is_asked_for() {
        let mut memory = Memory::default();
        let id = |n: usize| RequestId::of(&[&n.to_le_bytes()]);
        let known = Known { context: TraceContext::of(&id(0), None), since: None };
        for n in 0..REMEMBERED_MAX * 3 {
            memory.put(id(n), known);
            assert!(memory.get(&id(0)).is_some(), "it is asked for all the time");
        }
        assert!(memory.young.len() + memory.old.len() <= 2 * REMEMBERED_MAX + 1);
        assert_eq!(memory.get(&id(1)), None, "nobody asked for it");
    }

    #[test]
    fn a_part_of_the_traces_that_nobody_began_is_recorded_and_all_of_the_others() {
        let sampled = |ratio: f64| {
            let traces = traces(ratio);
            (0_u64..1000).filter(|n| traces.context(&RequestId::of(&[&n.to_le_bytes()]), None).sampled).count()
        };
        assert_eq!((sampled(0.0), sampled(1.0)), (0, 1000));
        assert!((150..350).contains(&sampled(0.25)), "{}", sampled(0.25));
        let given = "00-ffffffffffffffffffffffffffffffff-00f067aa0ba902b7-01";
        assert!(traces(0.0).context(&RequestId([0; 32]), Some(given)).sampled);
    }
}
