//! A real Prometheus: it takes what the program serves, every expression of the dashboard runs in it,
//! and each alert goes off when it should and only then.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use roundtrip_server::telemetry::list;
use serde_json::{Value, json};

use super::fuzz::tools;
use super::program::Program;

const DASHBOARD: &str = include_str!("../../../../deploy/grafana/roundtrip.json");
const ALERTS: &str = include_str!("../../../../deploy/prometheus/alerts.yml");

fn tool(name: &str) -> Command {
    Command::new(tools().join("prometheus/usr/bin").join(name))
}

fn alerts_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus/alerts.yml")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// How many minutes of values there are; what goes wrong does so in the last of them.
const MINUTES: usize = 240;
const BAD: usize = 50;

/// The same value all the time.
fn steady(value: &str) -> String {
    format!("{value}+0x{}", MINUTES - 1)
}

/// A counter that grows by so much a minute.
fn growing(by: u32) -> String {
    format!("0+{by}x{}", MINUTES - 1)
}

/// One value, and another one in the last of them.
fn turned(from: &str, to: &str) -> String {
    format!("{from}+0x{} {to}+0x{}", MINUTES - BAD - 1, BAD - 1)
}

/// How everything looks while all is well: nearly everything succeeds, a little fails.
fn well() -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (r#"roundtrip_build_info{version="1",instance="i"}"#, steady("1")),
        (r#"roundtrip_store_up{instance="i"}"#, steady("1")),
        (r#"roundtrip_requests_oldest_age_seconds{route="r",state="queued"}"#, steady("5")),
        (r#"roundtrip_requests_oldest_age_seconds{route="r",state="ready"}"#, steady("5")),
        (r#"roundtrip_requests_settled_total{route="r"}"#, growing(10)),
        (r#"roundtrip_lane_at_fee_cap{lane="a"}"#, steady("0")),
        (r#"roundtrip_tool_there{route="r"}"#, steady("1")),
        (r#"roundtrip_requests_dead_total{route="r"}"#, steady("3")),
        (r#"roundtrip_requests_leased_total{route="r"}"#, growing(10)),
        (r#"roundtrip_attempts_failed_total{route="r",class="crash"}"#, growing(1)),
        (r#"roundtrip_attempts_failed_total{route="r",class="transport"}"#, growing(1)),
        (r#"roundtrip_request_settle_seconds_bucket{route="r",le="60"}"#, growing(10)),
        (r#"roundtrip_request_settle_seconds_bucket{route="r",le="3600"}"#, growing(10)),
        (r#"roundtrip_request_settle_seconds_bucket{route="r",le="10800"}"#, growing(10)),
        (r#"roundtrip_request_settle_seconds_bucket{route="r",le="+Inf"}"#, growing(10)),
        (r#"roundtrip_lane_status{lane="a",status="active"}"#, steady("1")),
        (r#"roundtrip_lane_status{lane="a",status="stopped"}"#, steady("0")),
        (r#"roundtrip_lane_status{lane="a",status="unfunded"}"#, steady("0")),
        (r#"roundtrip_lane_status{lane="a",status="quarantined"}"#, steady("0")),
        (r#"roundtrip_lane_balance_wei{lane="a"}"#, steady("1000000000000000000")),
        (r#"roundtrip_lane_in_flight{lane="a"}"#, steady("3")),
        (r#"roundtrip_lane_settled_nonce{lane="a"}"#, growing(10)),
        (r#"roundtrip_lane_gap_slots{lane="a"}"#, steady("0")),
        (r#"roundtrip_lane_attempts_total{lane="a"}"#, steady("7")),
        (r#"roundtrip_listener_lag_blocks{listener="r@c"}"#, steady("1")),
        (r#"roundtrip_origin_behind_seconds{origin="c"}"#, steady("12")),
        (r#"roundtrip_node_well{chain="c",node="n",url="0",by="r@c"}"#, steady("1")),
        (r#"roundtrip_node_well{chain="c",node="m",url="1",by="r@c"}"#, steady("1")),
        (r#"roundtrip_listener_missed_total{listener="r@c"}"#, steady("1")),
        (r#"roundtrip_listener_flawed_total{listener="r@c"}"#, steady("1")),
        (r#"roundtrip_destination_attempts_total{destination="h",result="delivered"}"#, growing(10)),
        (r#"roundtrip_destination_attempts_total{destination="h",result="failed"}"#, growing(1)),
        (r#"roundtrip_http_calls_total{method="GET",path="/p",status="200"}"#, growing(100)),
        (r#"roundtrip_http_calls_total{method="GET",path="/p",status="503"}"#, growing(1)),
        (r#"roundtrip_spans_dropped_total{instance="i"}"#, steady("4")),
    ])
}

/// What is otherwise when something is wrong, and which alerts go off then.
type Trouble = (&'static [&'static str], Vec<(&'static str, String)>);

fn troubles() -> Vec<Trouble> {
    let none = || format!("1+0x{} _x{BAD}", MINUTES - BAD - 1);
    vec![
        (&["RoundtripGone"], vec![(r#"roundtrip_build_info{version="1",instance="i"}"#, none())]),
        (&["RoundtripStoreDown"], vec![(r#"roundtrip_store_up{instance="i"}"#, turned("1", "0"))]),
        (
            &["RoundtripQueueStands"],
            vec![(r#"roundtrip_requests_oldest_age_seconds{route="r",state="queued"}"#, turned("5", "700"))],
        ),
        // Old answers alone are no trouble, as long as some are settled.
        (&[], vec![(r#"roundtrip_requests_oldest_age_seconds{route="r",state="ready"}"#, turned("5", "2000"))]),
        (
            &["RoundtripAnswersStand"],
            vec![
                (r#"roundtrip_requests_oldest_age_seconds{route="r",state="ready"}"#, turned("5", "2000")),
                (r#"roundtrip_requests_settled_total{route="r"}"#, steady("10")),
            ],
        ),
        (
            &["RoundtripDeadLetters"],
            vec![(r#"roundtrip_requests_dead_total{route="r"}"#, format!("3+0x{} 4+0x4", MINUTES - 6))],
        ),
        (&["RoundtripAttemptsFail"], vec![(r#"roundtrip_attempts_failed_total{route="r",class="crash"}"#, growing(6))]),
        (
            &["RoundtripSlow"],
            vec![
                (r#"roundtrip_request_settle_seconds_bucket{route="r",le="60"}"#, growing(8)),
                (r#"roundtrip_request_settle_seconds_bucket{route="r",le="3600"}"#, growing(9)),
            ],
        ),
        (&["RoundtripLaneStopped"], vec![(r#"roundtrip_lane_status{lane="a",status="stopped"}"#, turned("0", "1"))]),
        (&["RoundtripLaneUnfunded"], vec![(r#"roundtrip_lane_status{lane="a",status="unfunded"}"#, turned("0", "1"))]),
        (
            &["RoundtripLaneFundsLow"],
            vec![(r#"roundtrip_lane_balance_wei{lane="a"}"#, turned("1000000000000000000", "40000000000000000"))],
        ),
        (
            &["RoundtripLaneQuarantined"],
            vec![(r#"roundtrip_lane_status{lane="a",status="quarantined"}"#, turned("0", "1"))],
        ),
        (&["RoundtripLaneStands"], vec![(r#"roundtrip_lane_settled_nonce{lane="a"}"#, steady("10"))]),
        // A lane that has nothing to send stands still, and that is well.
        (
            &[],
            vec![
                (r#"roundtrip_lane_settled_nonce{lane="a"}"#, steady("10")),
                (r#"roundtrip_lane_in_flight{lane="a"}"#, steady("0")),
            ],
        ),
        (&["RoundtripLaneAtFeeCap"], vec![(r#"roundtrip_lane_at_fee_cap{lane="a"}"#, turned("0", "1"))]),
        (&["RoundtripToolAway"], vec![(r#"roundtrip_tool_there{route="r"}"#, turned("1", "0"))]),
        (&["RoundtripLaneGap"], vec![(r#"roundtrip_lane_gap_slots{lane="a"}"#, turned("0", "1"))]),
        (&["RoundtripLaneBumps"], vec![(r#"roundtrip_lane_attempts_total{lane="a"}"#, growing(1))]),
        (&["RoundtripListenerBehind"], vec![(r#"roundtrip_listener_lag_blocks{listener="r@c"}"#, turned("1", "101"))]),
        (&["RoundtripChainStands"], vec![(r#"roundtrip_origin_behind_seconds{origin="c"}"#, turned("12", "700"))]),
        (
            &["RoundtripNodeUnwell"],
            vec![(r#"roundtrip_node_well{chain="c",node="n",url="0",by="r@c"}"#, turned("1", "0"))],
        ),
        (
            &["RoundtripNodeUnwell", "RoundtripNodesUnwell"],
            vec![
                (r#"roundtrip_node_well{chain="c",node="n",url="0",by="r@c"}"#, turned("1", "0")),
                (r#"roundtrip_node_well{chain="c",node="m",url="1",by="r@c"}"#, turned("1", "0")),
            ],
        ),
        (&["RoundtripEventsMissed"], vec![(r#"roundtrip_listener_missed_total{listener="r@c"}"#, turned("1", "2"))]),
        (&["RoundtripEventsFlawed"], vec![(r#"roundtrip_listener_flawed_total{listener="r@c"}"#, turned("1", "2"))]),
        (
            &["RoundtripDeliveriesFail"],
            vec![(r#"roundtrip_destination_attempts_total{destination="h",result="delivered"}"#, steady("10"))],
        ),
        (
            &["RoundtripApiErrors"],
            vec![(r#"roundtrip_http_calls_total{method="GET",path="/p",status="503"}"#, growing(10))],
        ),
        (&["RoundtripSpansDropped"], vec![(r#"roundtrip_spans_dropped_total{instance="i"}"#, growing(1))]),
    ]
}

/// A test of promtool: with these series, exactly these alerts go off.
fn case(changed: &[(&'static str, String)], alerts: &[&str]) -> Value {
    let mut series = well();
    for (name, values) in changed {
        assert!(series.insert(name, values.clone()).is_some(), "{name} is not among what is well");
    }
    let series: Vec<Value> =
        series.iter().map(|(series, values)| json!({"series": series, "values": values})).collect();
    let names: BTreeSet<&str> = alerts.iter().copied().collect();
    let samples: Vec<Value> =
        names.iter().map(|name| json!({"labels": format!("{{alertname=\"{name}\"}}"), "value": 1})).collect();
    let firing = json!({
        "expr": r#"group by (alertname) (ALERTS{alertstate="firing"})"#,
        "eval_time": format!("{}m", MINUTES - 1),
        "exp_samples": samples,
    });
    json!({"interval": "1m", "input_series": series, "promql_expr_test": [firing]})
}

#[test]
fn each_alert_goes_off_when_it_should_and_only_then() {
    let checked = tool("promtool").args(["check", "rules"]).arg(alerts_file()).output().unwrap();
    assert!(checked.status.success(), "{}", said(&checked));
    let troubles = troubles();
    let rules: BTreeSet<&str> = ALERTS.split("- alert: ").skip(1).filter_map(|rule| rule.lines().next()).collect();
    let troubled: BTreeSet<&str> = troubles.iter().flat_map(|(alerts, _)| alerts.iter().copied()).collect();
    assert_eq!(troubled, rules, "each rule has its trouble");
    let mut cases = vec![case(&[], &[])];
    cases.extend(troubles.iter().map(|(alerts, changed)| case(changed, alerts)));
    let test = json!({"rule_files": [alerts_file()], "evaluation_interval": "1m", "tests": cases});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("alerts_test.yml");
    // YAML takes JSON.
    std::fs::write(&file, test.to_string()).unwrap();
    let tested = tool("promtool").args(["test", "rules"]).arg(&file).output().unwrap();
    assert!(tested.status.success(), "{}", said(&tested));
}

/// Every expression of the dashboard, as it is asked with all routes and lanes chosen.
fn expressions(of: &Value, found: &mut Vec<String>) {
    match of {
        Value::Object(fields) => {
            let asked = fields.get("expr").and_then(Value::as_str);
            found.extend(
                asked.map(|expr| expr.replace("$__rate_interval", "1m").replace("$route", ".*").replace("$lane", ".*")),
            );
            fields.values().for_each(|field| expressions(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        _ => {}
    }
}

/// A running Prometheus; killed when it goes.
struct Prometheus {
    child: Child,
    base: String,
}

impl Prometheus {
    /// Scrapes this every second, and has the alerts.
    fn start(folder: &Path, target: &str) -> Prometheus {
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [alerts_file()],
            "scrape_configs": [{"job_name": "roundtrip", "static_configs": [{"targets": [target]}]}],
        });
        std::fs::write(folder.join("prometheus.yml"), config.to_string()).unwrap();
        let mut child = tool("prometheus")
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:0"])
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut heard = Vec::new();
        let address = lines.by_ref().find_map(|line| {
            let address = line.split_once("msg=\"Listening on\" address=").map(|(_, address)| address.to_owned());
            heard.push(line);
            address
        });
        // Whoever is not heard to the end would have to wait.
        std::thread::spawn(move || lines.count());
        let base = format!("http://{}", address.unwrap_or_else(|| panic!("it does not run: {heard:?}")));
        Prometheus { child, base }
    }

    async fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let url = reqwest::Url::parse_with_params(&format!("{}/api/v1/{path}", self.base), parameters).unwrap();
        let client = roundtrip_evm::rpc::web_client(Duration::from_secs(60)).unwrap();
        // Until it is ready, what it says is no JSON.
        serde_json::from_str(&client.get(url).send().await.unwrap().text().await.unwrap()).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

const CONFIG: &str = r#"
[store]
url = "sqlite:store.db"

[routes.work]
to = "caller"

[destinations.caller.keep]
at_least = "1h"
"#;

fn is_empty(result: &Value) -> bool {
    result.as_array().is_none_or(Vec::is_empty)
}

/// Whether each rule was evaluated, and none goes off or is about to.
fn all_quiet(rules: &Value) -> bool {
    let quiet = |rule: &Value| rule["health"] == "ok" && rule["state"] == "inactive";
    rules.as_array().is_some_and(|rules| rules.iter().all(quiet))
}

/// What is shown for every route even if nothing happens.
const ALWAYS: [&str; 3] =
    ["roundtrip_requests_admitted_total", "roundtrip_request_settle_seconds_bucket", "roundtrip_store_up"];

#[tokio::test]
async fn a_prometheus_takes_what_is_served_and_every_expression_of_the_dashboard_runs_in_it() {
    let (folder, watching) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = Program::start(folder.path(), CONFIG);
    let accepted = program.post("/v1/routes/work/requests", &json!(1)).await.1;
    assert_eq!(program.answer(&program.lease("work").await, json!(2)).await, "done");
    assert!(accepted["id"].is_string(), "{accepted}");
    let prometheus = Prometheus::start(watching.path(), program.base().trim_start_matches("http://"));
    // Rates need two scrapes, and rules one evaluation.
    let rate = r#"rate(roundtrip_requests_admitted_total{route="work"}[1m])"#;
    let (mut scraped, mut rules) = (Value::Null, Value::Null);
    for _ in 0..600 {
        scraped = prometheus.ask("query", &[("query", rate)]).await["data"]["result"].clone();
        rules = prometheus.ask("rules", &[]).await["data"]["groups"][0]["rules"].clone();
        if !is_empty(&scraped) && all_quiet(&rules) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!is_empty(&scraped), "{scraped}");
    // All is well: no rule fails, and none goes off.
    assert!(all_quiet(&rules), "{rules}");
    assert_eq!(rules.as_array().unwrap().len(), ALERTS.matches("- alert: ").count());
    let targets = prometheus.ask("targets", &[]).await;
    assert_eq!(targets["data"]["activeTargets"][0]["health"], "up", "{targets}");
    let names = prometheus.ask("label/__name__/values", &[]).await;
    let names: BTreeSet<&str> = names["data"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(ALWAYS.iter().all(|name| names.contains(name)), "{names:?}");
    let mut asked = Vec::new();
    expressions(&serde_json::from_str(DASHBOARD).unwrap(), &mut asked);
    assert!(asked.len() > list::metrics().count(), "{}", asked.len());
    for expr in &asked {
        let answer = prometheus.ask("query", &[("query", expr)]).await;
        assert_eq!(answer["status"], "success", "{expr}: {answer}");
        // What is shown of all routes has a value for this one.
        if ALWAYS.iter().any(|name| expr.contains(name)) {
            assert!(!is_empty(&answer["data"]["result"]), "{expr}: {answer}");
        }
    }
}
