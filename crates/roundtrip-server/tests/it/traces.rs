//! Traces: a collector is shown one trace of each request, by all processes that had a hand in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alloy::primitives::{Bytes, keccak256};
use axum::Router;
use axum::http::{HeaderMap, StatusCode as Status};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value as Any};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use roundtrip::testkit::servers::{PostgresServer, RedisServer};
use roundtrip::trace::TraceContext;
use roundtrip::words::RequestId;
use roundtrip_evm::testkit::deployment::answer_to;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::chain::Site;
use super::program::Program;

const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A small collector: what it was sent, by which process.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<(String, Span)>>>);

fn value(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.clone()?.value) {
        Some(Any::StringValue(text)) => text,
        _ => String::new(),
    }
}

impl Collector {
    /// Takes spans from whoever knows the key; where.
    async fn open(&self) -> String {
        let spans = self.0.clone();
        let take = move |headers: HeaderMap, body: axum::body::Bytes| async move {
            if headers["x-key"] != "secret key" || headers["content-type"] != "application/x-protobuf" {
                return Status::UNAUTHORIZED;
            }
            for sent in ExportTraceServiceRequest::decode(body).unwrap().resource_spans {
                let resource = sent.resource.unwrap().attributes;
                assert_eq!(value(&resource, "service.name"), "roundtrip");
                let all = sent.scope_spans.into_iter().flat_map(|scope| scope.spans);
                spans.lock().unwrap().extend(all.map(|span| (value(&resource, "process.pid"), span)));
            }
            Status::OK
        };
        served(Router::new().route("/v1/traces", post(take))).await + "/v1/traces"
    }

    /// The trace of a request, once each of these is in it; processes export when they come to it.
    async fn trace(&self, request: &str, wanted: &[&str]) -> Vec<(String, Span)> {
        for _ in 0..600 {
            let mut of = self.0.lock().unwrap().clone();
            of.retain(|(_, span)| value(&span.attributes, "roundtrip.request") == request);
            if wanted.iter().all(|name| of.iter().any(|(_, span)| span.name == *name)) {
                return of;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("not all of {wanted:?} of {request}: {:?}", self.0.lock().unwrap());
    }
}

async fn served(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

fn traced(endpoint: &str) -> String {
    format!("\n[telemetry.traces]\nendpoint = \"{endpoint}\"\nheaders = {{ x-key = {{ file = \"trace.key\" }} }}\n")
}

/// Names of spans with their processes, in the order of time; all are of one trace, under one span.
fn steps(spans: &[(String, Span)], context: TraceContext) -> Vec<(String, String)> {
    let mut steps: Vec<&(String, Span)> = spans.iter().collect();
    steps.sort_by_key(|(_, span)| span.end_time_unix_nano);
    for (_, span) in &steps {
        assert_eq!(span.trace_id, context.trace.0, "{}", span.name);
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{}", span.name);
    }
    let whole = steps.iter().filter(|(_, span)| span.name.starts_with("request ")).count();
    assert_eq!(whole, 1, "the whole request is one span");
    let whole = &steps.iter().find(|(_, span)| span.name.starts_with("request ")).unwrap().1;
    let apart = steps.iter().filter(|(_, span)| span.span_id != whole.span_id && span.parent_span_id != whole.span_id);
    assert_eq!(apart.count(), 0, "all steps are within it");
    steps
        .iter()
        .filter(|(_, span)| span.span_id != whole.span_id)
        .map(|(by, span)| (span.name.clone(), by.clone()))
        .collect()
}

/// The names, in their order, without those that may or may not be there.
fn names(steps: &[(String, String)]) -> Vec<&str> {
    steps.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "finalized").collect()
}

#[tokio::test]
async fn a_chains_request_is_one_trace_over_three_processes() {
    let server = PostgresServer::start(&[]).unwrap();
    server.wait_until_ready(None).unwrap();
    let (site, folder, collector) = (Site::ready(500).await, tempfile::tempdir().unwrap(), Collector::default());
    std::fs::write(folder.path().join("trace.key"), "secret key").unwrap();
    // Time to be seen in its block, and at its depth, before it is final.
    let config = site.config(&server.url("roundtrip")).replace("finality = 3", "finality = 8");
    let config = config.replace("gas = 150000", "gas = 150000\nconfirmations = 4") + &traced(&collector.open().await);
    let [_listen, _send, api] = ["listen", "send", "api"].map(|role| site.start(folder.path(), &config, &[role]));
    let payload = Bytes::from_static(b"only one");
    let submitter = site.ask(std::slice::from_ref(&payload));
    let job = api.lease("board").await;
    let id = job["id"].as_str().unwrap().to_owned();
    let context = TraceContext::of(&id.parse::<RequestId>().unwrap(), None);
    assert_eq!(job["trace"], json!(context.to_string()), "who came without a context has one by its id");
    let answer = json!({"content": keccak256(&payload), "answer": answer_to(&payload)});
    assert_eq!(api.answer(&job, answer).await, "done");
    submitter.finish().await.unwrap();
    let wanted = ["admitted", "leased", "answered", "assigned", "mined", "confirmed", "settled"];
    let steps = steps(&collector.trace(&id, &wanted).await, context);
    assert_eq!(names(&steps), wanted);
    let by: BTreeMap<&str, &str> = steps.iter().map(|(name, by)| (name.as_str(), by.as_str())).collect();
    let processes: BTreeSet<&str> = ["admitted", "answered", "settled"].map(|name| by[name]).into();
    assert_eq!(processes.len(), 3, "{by:?}");
}

/// A receiver of webhooks, and the contexts that it was given.
async fn receiver() -> (String, Arc<Mutex<Vec<String>>>) {
    let contexts = Arc::<Mutex<Vec<String>>>::default();
    let kept = contexts.clone();
    let take = move |headers: HeaderMap| async move {
        kept.lock().unwrap().push(headers["traceparent"].to_str().unwrap().to_owned());
        Status::OK
    };
    (served(Router::new().route("/", post(take))).await, contexts)
}

#[tokio::test]
async fn the_context_of_a_submission_reaches_the_worker_and_the_receiver() {
    let server = RedisServer::start(RedisServer::SYNCED).unwrap();
    server.wait_until_ready(None).unwrap();
    let (folder, collector, (hook, contexts)) = (tempfile::tempdir().unwrap(), Collector::default(), receiver().await);
    std::fs::write(folder.path().join("trace.key"), "secret key").unwrap();
    std::fs::write(folder.path().join("hook.secret"), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let config = format!(
        r#"
[store]
url = "{}"

[log]
level = "info,roundtrip::steps=debug"

[routes.told]
to = "hook"

[destinations.hook.webhook]
url = "{hook}"
secret = {{ file = "hook.secret" }}
{}"#,
        server.url("roundtrip"),
        traced(&collector.open().await)
    );
    let [send, api] = ["send", "api"].map(|role| Program::start_as(folder.path(), &config, &[], &[role]));
    let submit = api.call(reqwest::Method::POST, "/v1/routes/told/requests").header("traceparent", GIVEN).body("1");
    let accepted: Value = serde_json::from_str(&submit.send().await.unwrap().text().await.unwrap()).unwrap();
    let id = accepted["id"].as_str().unwrap();
    let job = api.lease("told").await;
    let handed = TraceContext::parse(job["trace"].as_str().unwrap()).unwrap();
    assert_eq!(api.answer(&job, json!(2)).await, "done");
    let given = TraceContext::parse(GIVEN).unwrap();
    let wanted = ["admitted", "leased", "answered", "deliver", "delivered", "settled"];
    let spans = collector.trace(id, &wanted).await;
    let steps = steps(&spans, given);
    assert_eq!(names(&steps), wanted);
    let (_, whole) = spans.iter().find(|(_, span)| span.name == "request told").unwrap();
    assert_eq!(whole.parent_span_id, given.span.0, "the request is part of what its caller does");
    assert_eq!((handed.trace, handed.span.0.to_vec()), (given.trace, whole.span_id.clone()));
    assert_eq!(*contexts.lock().unwrap(), [handed.to_string()], "the receiver is part of the request");
    let said = api.stop() + &send.stop();
    let lines: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let about = |step: &str| {
        lines.iter().any(|line| line["request"] == id && line["step"].as_str().is_some_and(|s| s.starts_with(step)))
    };
    for step in ["admitted", "leased, attempt 1", "answered", "published", "ended, settled"] {
        assert!(about(step), "{step} of {id} is not in the log:\n{said}");
    }
    assert!(!said.contains("secret key"), "no key is in the log");
}

#[tokio::test]
async fn a_collector_that_is_away_costs_spans_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("trace.key"), "secret key").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let config =
        format!("[store]\nurl = \"memory:\"\n[routes.work]\n{}", traced(&format!("http://{closed}/v1/traces")));
    let program = Program::start(folder.path(), &config);
    for n in 0..50 {
        program.post("/v1/routes/work/requests", &json!(n)).await;
        let job = program.lease("work").await;
        assert_eq!(program.answer(&job, json!(n)).await, "done");
    }
    let said = tokio::task::spawn_blocking(move || program.stop()).await.unwrap();
    assert_eq!(said.matches("takes no spans").count(), 1, "{said}");
}
