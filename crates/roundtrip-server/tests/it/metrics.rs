//! What the program shows of itself: every metric of the list by a running program, none besides;
//! what the dashboard and the alerts use; a process without the API.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use alloy::primitives::{Bytes, keccak256};
use axum::http::StatusCode as Status;
use reqwest::StatusCode;
use roundtrip::testkit::servers::RedisServer;
use roundtrip_evm::testkit::deployment::answer_to;
use roundtrip_server::telemetry::list::{self, Kind, Metric};
use serde_json::json;
use tokio::net::TcpListener;

use super::chain::Site;
use super::program::{PROGRAM, Program};

/// Every value of a scrape, by its name and labels.
struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    fn of(text: &str) -> Scrape {
        let values = text.lines().filter(|line| !line.starts_with('#'));
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        };
        Scrape(values.map(value).collect())
    }

    /// The names of all metrics, as the list has them.
    fn names(&self) -> BTreeSet<String> {
        self.0.keys().map(|series| metric_of(series.split('{').next().unwrap())).collect()
    }

    fn value(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("{series} is not shown:\n{:?}", self.0.keys()))
    }
}

/// The metric that a name of a series belongs to.
fn metric_of(name: &str) -> String {
    let is_histogram = |stem: &str| list::metrics().any(|metric| metric.name == stem && metric.kind == Kind::Histogram);
    let stem =
        ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end).filter(|stem| is_histogram(stem)));
    stem.unwrap_or(name).to_owned()
}

fn listed() -> BTreeSet<String> {
    list::metrics().map(|metric| metric.name.to_owned()).collect()
}

/// Scrapes until this holds.
async fn scraped(program: &Program, base: &str, holds: impl Fn(&Scrape) -> bool) -> Scrape {
    let mut last = String::new();
    for _ in 0..600 {
        let (status, text) = program.get_at(base, "/metrics").await;
        assert_eq!(status, StatusCode::OK, "{text}");
        last = text.as_str().unwrap().to_owned();
        let scrape = Scrape::of(&last);
        if holds(&scrape) {
            return scrape;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("what was waited for is not shown; missing: {:?}\n{last}", &listed() - &Scrape::of(&last).names());
}

/// Somebody who takes webhooks, but for the first so many, for which it is too busy.
pub(crate) async fn receiver(busy_for: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let take = move || async move {
        let busy = calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < busy_for;
        if busy { Status::SERVICE_UNAVAILABLE } else { Status::OK }
    };
    let router = axum::Router::new().route("/", axum::routing::post(take));
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/")
}

/// A route, `told`, whose answers go to a webhook here; its secret is put into the folder.
pub(crate) fn hooked(folder: &std::path::Path, url: &str) -> String {
    std::fs::write(folder.join("hook.secret"), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    format!(
        r#"
[routes.told]
to = "hook"

[destinations.hook.webhook]
url = "{url}"
secret = {{ file = "hook.secret" }}
"#
    )
}

#[tokio::test]
async fn every_metric_of_the_list_is_shown_by_a_running_program_and_none_besides() {
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let config = format!(
        r#"{}
[telemetry]
listen = "127.0.0.1:0"

[routes.called.work]
identity = true
{}"#,
        // Time to be seen at its depth before it is final.
        site.config("sqlite:store.db").replace("finality = 3", "finality = 10"),
        hooked(folder.path(), &receiver(1).await),
    );
    let program = site.start(folder.path(), &config, &[]);
    let payloads: Vec<Bytes> = (0..3).map(|n| format!("request {n}").into_bytes().into()).collect();
    let submitter = site.ask(&payloads);
    for _ in &payloads {
        let job = program.lease("board").await;
        let payload: Bytes = job["payload"]["args"]["payload"].as_str().unwrap().parse().unwrap();
        let answer = json!({"content": keccak256(&payload), "answer": answer_to(&payload)});
        assert_eq!(program.answer(&job, answer).await, "done");
    }
    submitter.finish().await.unwrap();
    program.post("/v1/routes/told/requests", &json!(1)).await;
    let job = program.lease("told").await;
    assert_eq!(program.answer(&job, json!(2)).await, "done");
    // One stays live, so that there is a state to show.
    program.post("/v1/routes/told/requests", &json!(3)).await;
    let door = program.metrics().to_owned();
    let wanted = [
        ("roundtrip_requests_admitted_total{route=\"board\"}", 3.0),
        ("roundtrip_requests_answered_total{route=\"board\"}", 3.0),
        ("roundtrip_requests_settled_total{route=\"board\"}", 3.0),
        ("roundtrip_requests_dead_total{route=\"board\"}", 0.0),
        ("roundtrip_request_settle_seconds_count{route=\"board\"}", 3.0),
        ("roundtrip_request_confirm_seconds_count{route=\"board\"}", 3.0),
        ("roundtrip_requests_settled_total{route=\"told\"}", 1.0),
        ("roundtrip_destination_delivered_total{destination=\"hook\"}", 1.0),
        ("roundtrip_destination_attempts_total{destination=\"hook\",result=\"failed\"}", 1.0),
        ("roundtrip_destination_attempts_total{destination=\"hook\",result=\"delivered\"}", 1.0),
        ("roundtrip_requests_live{route=\"told\",state=\"queued\"}", 1.0),
        ("roundtrip_lane_status{lane=\"a\",destination=\"board\",status=\"active\"}", 1.0),
        ("roundtrip_lane_status{lane=\"a\",destination=\"board\",status=\"stopped\"}", 0.0),
        ("roundtrip_lane_at_fee_cap{lane=\"a\"}", 0.0),
        ("roundtrip_tool_there{route=\"called\"}", 1.0),
        ("roundtrip_lane_gap_slots{lane=\"a\",destination=\"board\"}", 0.0),
        ("roundtrip_lane_in_flight{lane=\"a\",destination=\"board\"}", 0.0),
        ("roundtrip_http_calls_total{method=\"POST\",path=\"/v1/work/answer\",status=\"200\"}", 4.0),
        ("roundtrip_store_up", 1.0),
    ];
    let scrape = scraped(&program, &door, |scrape| {
        scrape.names() == listed() && wanted.iter().all(|(series, value)| scrape.0.get(*series) == Some(value))
    })
    .await;
    let lanes = ["a", "b"].map(|lane| format!("{{lane=\"{lane}\"}}"));
    let over = |metric: &str| lanes.iter().map(|lane| scrape.value(&format!("{metric}{lane}"))).sum::<f64>();
    assert_eq!(over("roundtrip_lane_answers_assigned_total"), 3.0);
    let ether = over("roundtrip_lane_balance_wei") / 1e18;
    assert!((19_000.0..=20_000.0).contains(&ether), "two accounts of a development chain: {ether}");
    for (series, _) in scrape.0 {
        assert_eq!(labels_of(&series), metric(&series).labels, "{series}");
    }
    // The API shows the same, to whoever may look.
    assert_eq!(Scrape::of(program.get("/metrics").await.1.as_str().unwrap()).names(), listed());
}

fn metric(series: &str) -> &'static Metric {
    let name = metric_of(series.split('{').next().unwrap());
    list::metrics().find(|metric| metric.name == name).unwrap()
}

/// The labels of a series, but for the bucket of a histogram.
fn labels_of(series: &str) -> Vec<&str> {
    let labels = series.split_once('{').map_or("", |(_, labels)| labels.trim_end_matches('}'));
    let names = labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0));
    names.filter(|name| *name != "le").collect()
}

#[test]
fn what_the_dashboard_and_the_alerts_use_is_in_the_list() {
    let (dashboard, alerts) = (
        include_str!("../../../../deploy/grafana/roundtrip.json"),
        include_str!("../../../../deploy/prometheus/alerts.yml"),
    );
    serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
    for (file, text, least) in [("the dashboard", dashboard, listed().len() * 9 / 10), ("the alerts", alerts, 15)] {
        let words =
            text.split(|c: char| !(c.is_ascii_lowercase() || c == '_')).filter(|word| word.starts_with("roundtrip_"));
        let used: BTreeSet<String> = words.map(metric_of).collect();
        assert!(used.is_subset(&listed()), "{file} uses {:?}", &used - &listed());
        assert!(used.len() >= least, "{file} uses {}", used.len());
    }
    let rules: Vec<&str> = alerts.split("- alert: ").skip(1).collect();
    for rule in rules {
        for part in ["expr: ", "severity: ", "summary: ", "action: "] {
            assert_eq!(rule.matches(part).count(), 1, "{part} of {}", rule.lines().next().unwrap());
        }
    }
}

#[test]
fn the_list_is_what_the_code_says() {
    let made = std::process::Command::new(PROGRAM).arg("metrics").output().unwrap();
    let kept = include_str!("../../../../docs/metrics.md");
    let made = String::from_utf8(made.stdout).unwrap();
    assert_eq!(made, kept, "run `cargo run -p roundtrip-server -- metrics > docs/metrics.md`");
}

/// A process without the API shows how it is doing, also when its store is away.
#[tokio::test]
async fn a_process_without_the_api_is_watched_at_a_door_of_its_own() {
    let server = RedisServer::start(RedisServer::SYNCED).unwrap();
    server.wait_until_ready(None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[store]\nurl = \"{}\"\n[telemetry]\nlisten = \"127.0.0.1:0\"\n[routes.work]\n",
        server.url("roundtrip")
    );
    let program = Program::start_as(folder.path(), &config, &[], &["send"]);
    let door = program.metrics().to_owned();
    for path in ["/health", "/ready", "/v1/counts", "/v1/routes", "/v1/lanes", "/v1/listeners"] {
        assert_eq!(program.get_at(&door, path).await.0, StatusCode::OK, "{path}");
    }
    // Each process tells the doctor what only it knows.
    let (_, diagnosis) = program.get_at(&door, "/v1/doctor").await;
    assert_eq!(diagnosis["findings"].as_array().map(Vec::len), Some(2), "its store and its route: {diagnosis}");
    for path in ["/v1/requests", "/docs", "/v1/openapi.json"] {
        assert_eq!(program.get_at(&door, path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    let up = |scrape: &Scrape, up: f64| scrape.value("roundtrip_store_up") == up;
    let scrape = scraped(&program, &door, |scrape| up(scrape, 1.0)).await;
    assert_eq!(scrape.value("roundtrip_route_paused{route=\"work\"}"), 0.0);
    drop(server);
    let scrape = scraped(&program, &door, |scrape| up(scrape, 0.0)).await;
    assert!(!scrape.0.contains_key("roundtrip_route_paused{route=\"work\"}"), "what is not known is not shown");
    assert_eq!(scrape.value("roundtrip_requests_admitted_total{route=\"work\"}"), 0.0);
    assert_eq!(program.get_at(&door, "/ready").await.0, StatusCode::SERVICE_UNAVAILABLE);
}
