//! The program's API beside the library: workers over a stream beside handlers in the process, and
//! submissions over HTTP beside the same server with a handler that stores nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use bytes::Bytes;
use roundtrip::clock::SystemClock;
use roundtrip::inbox::Identity;
use roundtrip::station::Shutdown;
use roundtrip::store::op::Define;
use roundtrip::store::{Options, Store, StoreExt, open};
use roundtrip::testkit::servers::PostgresServer;
use roundtrip_client::{Settings, Worker};
use roundtrip_server::api::{Api, Intake, Limits, Manners, Premises, limited, serve};
use roundtrip_server::telemetry::{Scope, Telemetry};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::Scale;
use crate::lifecycle::{route, runtime};
use crate::report::{Report, median};
use crate::stations::{By, open_sqlite, policy, rate};

/// How many lifecycles are in flight.
const IN_FLIGHT: usize = 1024;
/// How many submit at a time, each on a connection of its own.
const CONNECTIONS: usize = 64;
/// How many go together, where many do.
const BULK: usize = 100;
/// What a submission asks.
const ASKED: &str = r#"{"n":7,"of":"0x5fbdb2315678afecb367f032d93f642f64180aa3"}"#;
/// What a submission is told, about.
const TOLD: &str = r#"{"id":"5ab1d09d4dbd8bc2d9a0b8c9a3d6f6e15ab1d09d4dbd8bc2d9a0b8c9a3d6f6e1","admission":"new","status_url":"/v1/requests/5ab1d09d4dbd8bc2d9a0b8c9a3d6f6e15ab1d09d4dbd8bc2d9a0b8c9a3d6f6e1"}"#;

const LIMITS: Limits =
    Limits { body_bytes_max: 8 << 20, header_bytes_max: 16 << 10, connections_max: 1024, calls_max: 1024 };

type Failure = Box<dyn std::error::Error>;

fn api(store: Arc<dyn Store>) -> Router {
    let intake = Intake { submit: true, path: None, forms: false, identity: Identity::Given };
    let routes = BTreeMap::from([(route().to_string(), intake)]);
    let manners = Manners {
        keys: None,
        calls_per_second: None,
        wait_max: Duration::from_secs(30),
        store_wait_max: Duration::from_secs(30),
        body_bytes_max: LIMITS.body_bytes_max,
    };
    // As the program runs it: everything is counted.
    let telemetry = Telemetry::start(store.clone(), Arc::new(SystemClock::new()), Scope::default(), None);
    let premises = Arc::new(Premises { routes, ..Premises::default() });
    let router = Api::new(store, premises, manners, telemetry.clone(), Shutdown::new()).router();
    telemetry.counted(router)
}

/// Serves this on a port of the system's choice, as long as the set lasts; its address.
async fn serving(router: Router, stations: &mut JoinSet<()>) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    stations.spawn(async move {
        if let Err(error) = serve(listener, limited(router, LIMITS), LIMITS, None, Shutdown::new()).await {
            eprintln!("the server ended: {error}");
        }
    });
    Ok(address)
}

/// Serves this store, and works on it over a stream: answers with what is asked.
pub(crate) async fn work_over_stream(store: Arc<dyn Store>, handlers: usize) {
    let mut server = JoinSet::new();
    let Ok(url) = serving(api(store), &mut server).await else { return eprintln!("no port is free") };
    let options =
        roundtrip_client::Options { in_flight: handlers, ..roundtrip_client::Options::of(route().as_str(), "stream") };
    let ended = match Worker::streaming(Settings::of(&url), options) {
        Ok(worker) => worker.run(|job| async move { Ok(job.payload) }, roundtrip_client::Shutdown::new()).await,
        Err(error) => Err(error),
    };
    eprintln!("the worker ended: {ended:?}");
}

/// A fresh store, of either kind.
struct Places {
    folder: tempfile::TempDir,
    postgres: PostgresServer,
    count: u32,
}

impl Places {
    fn store(&mut self, name: &str) -> Result<Arc<dyn Store>, Failure> {
        self.count += 1;
        if name == "sqlite" {
            self.folder = tempfile::tempdir_in(".")?;
            return open_sqlite(&self.folder);
        }
        Ok(open(&self.postgres.url(&format!("program{}", self.count)), Options::default())?)
    }
}

/// Submissions per second: so many at a time on each connection, until there are this many.
async fn submissions(router: Router, bulk: Option<usize>, count: usize) -> Result<f64, Failure> {
    let mut server = JoinSet::new();
    let url = serving(router, &mut server).await?;
    let (path, body) = match bulk {
        None => ("requests", ASKED.to_owned()),
        Some(size) => {
            let item = format!("{{\"payload\":{ASKED}}}");
            ("requests/bulk", format!("{{\"requests\":[{}]}}", vec![item; size].join(",")))
        }
    };
    let calls = count.div_ceil(CONNECTIONS * bulk.unwrap_or(1));
    let body = Bytes::from(body);
    let mut submitting = JoinSet::new();
    let started = Instant::now();
    for _ in 0..CONNECTIONS {
        let (body, url) = (body.clone(), format!("{url}/v1/routes/{}/{path}", route()));
        let client = roundtrip_evm::rpc::web_client(Duration::from_secs(60))?;
        submitting.spawn(async move {
            for _ in 0..calls {
                let call = client.post(&url).header("content-type", "application/json").body(body.clone());
                let answer = call.send().await.map_err(|error| error.to_string())?;
                if !answer.status().is_success() {
                    return Err(format!("{}: {:?}", answer.status(), answer.text().await));
                }
                answer.bytes().await.map_err(|error| error.to_string())?;
            }
            Ok(())
        });
    }
    while let Some(ended) = submitting.join_next().await {
        ended??;
    }
    Ok((calls * CONNECTIONS * bulk.unwrap_or(1)) as f64 / started.elapsed().as_secs_f64())
}

/// The same calls, and nothing behind them.
fn nothing() -> Router {
    let one = post(|_: Bytes| async { (StatusCode::CREATED, TOLD) });
    let many = format!("{{\"requests\":[{}]}}", vec![TOLD; BULK].join(","));
    let many = post(move |_: Bytes| {
        let told = many.clone();
        async move { (StatusCode::CREATED, told) }
    });
    Router::new().route("/v1/routes/{route}/requests", one).route("/v1/routes/{route}/requests/bulk", many)
}

/// The API beside what does the same without it, or nothing.
pub(crate) fn beside_the_library(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    let postgres = PostgresServer::start(&[])?;
    let mut places = Places { folder: tempfile::tempdir_in(".")?, postgres, count: 0 };
    for store in ["sqlite", "postgres"] {
        report.store = store;
        let lifecycles = (scale.lifecycles * 64) as u64;
        let (mut streamed, mut in_process) = (Vec::new(), Vec::new());
        for _ in 0..scale.rounds {
            for (by, rates) in [(By::Stream, &mut streamed), (By::Worker, &mut in_process)] {
                let rate =
                    runtime()?.block_on(async { rate(by, places.store(store)?, IN_FLIGHT, lifecycles).await })?;
                rates.push(rate);
            }
        }
        let bench = format!("{store}, workers over gRPC, {IN_FLIGHT} in flight");
        report.speed(bench, median(streamed), "handlers in the process".into(), median(in_process), "lifecycles/s");
        for (name, bulk, count) in [("one by one", None, 8), ("100 together", Some(BULK), 64)] {
            let (mut ours, mut null) = (Vec::new(), Vec::new());
            for _ in 0..scale.rounds {
                let count = scale.lifecycles * count;
                ours.push(runtime()?.block_on(async {
                    let store = places.store(store)?;
                    store.apply_one(Define { route: route(), policy: policy() }).await?;
                    submissions(api(store), bulk, count).await
                })?);
                null.push(runtime()?.block_on(submissions(nothing(), bulk, count))?);
            }
            let bench = format!("{store}, submitted over {CONNECTIONS} connections, {name}");
            report.speed(bench, median(ours), "a handler that stores nothing".into(), median(null), "requests/s");
        }
    }
    report.store = "sqlite";
    Ok(())
}
