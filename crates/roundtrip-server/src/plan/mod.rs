//! What a configuration comes to: every name resolved, every signature read, nothing opened.
//!
//! ```text
//!   Config ──▶ Plan ──▶ Relay, of the stations that this process runs
//!                └────▶ check: keys, nodes and the store, without running anything
//! ```

mod destinations;
mod probe;
mod routes;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use roundtrip::clock::{Clock, SystemClock};
use roundtrip::relay::Relay;
use roundtrip::store::Store;
use roundtrip::upkeep::UpkeepOptions;
use roundtrip::words::{LaneName, ListenerName, ParseError, RouteName};
use roundtrip_evm::ContractCall;
use tokio::sync::Semaphore;

use destinations::Surroundings;
pub use destinations::{Delivery, Transactions};
pub use routes::{Feed, RoutePlan};
pub use work::WorkPlan;

use crate::api::explore::Explorer;
use crate::config::{ChainConfig, Config, Faults, Loaded, TracesConfig};
use crate::telemetry::{Scope, Telemetry};

/// What hyper takes of headers at the least.
const HEADER_BYTES_LEAST: usize = 8192;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Role {
    /// Reads chains, lists and timers into the inbox.
    Listen,
    /// Hands requests to workers that it calls.
    Work,
    /// Delivers answers.
    Send,
    /// Serves the HTTP API, and with it the workers that pull.
    Api,
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 4] = [Role::Listen, Role::Work, Role::Send, Role::Api];

    /// As `--only` names it.
    pub fn word(self) -> &'static str {
        match self {
            Role::Listen => "listen",
            Role::Work => "work",
            Role::Send => "send",
            Role::Api => "api",
        }
    }

    /// Several, as `--only` names them.
    pub fn words(roles: &[Role]) -> String {
        roles.iter().map(|role| role.word()).collect::<Vec<_>>().join(",")
    }
}

/// A configuration that makes sense.
#[derive(Debug)]
pub struct Plan {
    /// Its routes, by name.
    pub routes: BTreeMap<String, RoutePlan>,
    /// Its destinations, by name.
    pub destinations: BTreeMap<String, Delivery>,
    pub(crate) chains: BTreeMap<String, ChainConfig>,
    /// How long a process that died keeps its seats.
    pub(crate) seat_ms: u64,
}

/// Collects what is wrong, while the rest is looked at.
pub(crate) struct Findings<'a> {
    loaded: &'a Loaded,
    faults: Faults,
}

impl Findings<'_> {
    fn add(&mut self, path: &[&str], text: impl Into<String>) {
        self.faults.0.push(self.loaded.fault(path, text));
    }

    /// The value, or nothing and a fault at this path.
    fn ok<T, E: ToString>(&mut self, path: &[&str], result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(path, error.to_string())).ok()
    }

    fn config(&self) -> &Config {
        &self.loaded.config
    }

    fn chain(&mut self, path: &[&str], name: &str) -> Option<ChainConfig> {
        let found = self.config().chains.get(name).cloned();
        if found.is_none() {
            let known: Vec<&str> = self.config().chains.keys().map(String::as_str).collect();
            let why = format!("no chain is called {name:?}: {}", there_is(&known));
            self.missing(path, ["chains", name], why);
        }
        found
    }

    /// What this names is not there; unless it is, and could not be read.
    fn missing(&mut self, path: &[&str], named: [&str; 2], why: String) {
        if !self.loaded.is_unread(&named) {
            self.add(path, why);
        }
    }

    fn read(&mut self, path: &[&str], file: &Path) -> Option<String> {
        let found = std::fs::read_to_string(file);
        self.ok(path, found.map_err(|error| format!("{}: {error}", file.display())))
    }

    fn read_bytes(&mut self, path: &[&str], file: &Path) -> Option<Vec<u8>> {
        let found = std::fs::read(file);
        self.ok(path, found.map_err(|error| format!("{}: {error}", file.display())))
    }
}

impl Plan {
    /// What this configuration comes to.
    pub fn of(loaded: &Loaded) -> Result<Plan, Faults> {
        let (plan, faults) = Plan::sketch(loaded);
        faults.unless_any(plan)
    }

    /// The part of it that makes sense, and what is wrong with the rest. It is to be looked at, not to be run.
    pub fn sketch(loaded: &Loaded) -> (Plan, Faults) {
        let mut findings = Findings { loaded, faults: Faults::default() };
        let config = &loaded.config;
        check_chains(&mut findings);
        check_api(&mut findings);
        check_traces(&mut findings);
        let destinations = destinations::plan(&mut findings);
        let mut routes = BTreeMap::new();
        for (name, route) in &config.routes {
            if let Some(plan) = routes::plan(&mut findings, name, route, &destinations) {
                routes.insert(name.clone(), plan);
            }
        }
        let mut faults = findings.faults.in_order();
        faults.0.retain(|fault| !loaded.is_unread(&fault.path));
        (Plan { routes, destinations, chains: config.chains.clone(), seat_ms: config.seat.as_ms() }, faults)
    }

    /// The relay of these roles on this store; its keys are opened.
    pub async fn relay(
        &self,
        store: Arc<dyn Store>,
        roles: &[Role],
        telemetry: &Telemetry,
    ) -> Result<Relay, anyhow::Error> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let upkeep = UpkeepOptions { seat_ms: self.seat_ms, ..UpkeepOptions::default() };
        let mut relay = Relay::new(store.clone()).upkeep(upkeep, Arc::new(Vec::new));
        for (name, route) in &self.routes {
            relay = relay.define(name, route.policy.clone());
            if roles.contains(&Role::Listen) {
                relay = route.listen(relay, name, self, telemetry)?;
            }
            if let Some(work) = route.work.as_ref().filter(|_| roles.contains(&Role::Work)) {
                relay = work.start(relay, name, clock.clone(), telemetry, &route.policy.backoff).await?;
            }
        }
        if roles.contains(&Role::Send) {
            for (name, delivery) in &self.destinations {
                let surroundings = Surroundings { plan: self, store: &store, clock: &clock, telemetry };
                relay = delivery.send(relay, name, surroundings).await?;
            }
        }
        Ok(relay)
    }

    /// The roles that this configuration has something for, less these.
    pub(crate) fn roles_beside(&self, roles: &[Role]) -> Vec<Role> {
        let mut routes = self.routes.values();
        let needed = |role: &Role| match role {
            Role::Listen => routes.clone().any(RoutePlan::has_source),
            Role::Work => routes.clone().any(|route| route.work.is_some()),
            Role::Send => !self.destinations.is_empty(),
            // Whoever pulls work, or submits, does so over the API.
            Role::Api => routes.any(|route| route.work.is_none() || route.intake().submit),
        };
        let beside = Role::ALL.into_iter().filter(|role| !roles.contains(role));
        beside.filter(needed).collect()
    }

    /// What a process of these roles counts.
    pub(crate) fn scope(&self, roles: &[Role]) -> Result<Scope, ParseError> {
        let mut scope = Scope::default();
        for (name, plan) in &self.routes {
            let route = RouteName::new(name)?;
            for origin in plan.feeds() {
                scope.listeners.push(ListenerName::new(&listener(name, origin))?);
            }
            let to = plan.policy.destination.as_ref().map(|to| to.to_string());
            let to = to.filter(|to| self.destinations.get(to).is_some_and(|to| to.lanes().is_empty()));
            scope.published_to.extend(to.map(|to| (route.clone(), to)));
            if plan.intake().submit {
                scope.submitted.insert(route.clone());
            }
            scope.routes.push(route);
        }
        if roles.contains(&Role::Send) {
            let lanes = self.destinations.values().flat_map(Delivery::lanes);
            scope.lanes = lanes.map(|(lane, _)| LaneName::new(lane)).collect::<Result<_, _>>()?;
        }
        Ok(scope)
    }

    /// Who is called to work over the network, by their routes.
    pub(crate) fn works(&self) -> BTreeMap<String, Arc<WorkPlan>> {
        let work = |(name, route): (&String, &RoutePlan)| {
            let work = route.work.clone().filter(|work| work.is_service())?;
            Some((name.clone(), work))
        };
        self.routes.iter().filter_map(work).collect()
    }

    /// The listeners of chains, whichever process runs them.
    pub(crate) fn listeners(&self) -> Vec<String> {
        let of_route = |(name, plan): (&String, &RoutePlan)| {
            plan.feeds().map(|origin| listener(name, origin)).collect::<Vec<String>>()
        };
        self.routes.iter().flat_map(of_route).collect()
    }

    /// What is called at each destination of transactions.
    pub(crate) fn calls(&self) -> BTreeMap<String, ContractCall> {
        let called = |(name, delivery): (&String, &Delivery)| match delivery {
            Delivery::Transactions(to) => Some((name.clone(), to.call.clone())),
            _ => None,
        };
        self.destinations.iter().filter_map(called).collect()
    }

    /// How each destination's answers go out, in one word.
    pub(crate) fn deliveries(&self) -> BTreeMap<String, &'static str> {
        self.destinations.iter().map(|(name, delivery)| (name.clone(), delivery.word())).collect()
    }

    /// The routes whose answers are kept for whoever asks.
    pub(crate) fn kept(&self) -> BTreeSet<RouteName> {
        let keeps = |to: &str| matches!(self.destinations.get(to), Some(Delivery::Keep(_)));
        let kept = |route: &&RoutePlan| route.policy.destination.as_ref().is_some_and(|to| keeps(to.as_str()));
        self.routes.values().filter(kept).map(RoutePlan::name).cloned().collect()
    }

    /// Where transactions are looked up.
    pub(crate) fn explorer(&self) -> Explorer {
        let witnesses = |route: &RoutePlan| route.witnesses(&self.chains);
        let sources = self.routes.values().flat_map(witnesses).collect();
        let nodes = |(name, delivery): (&String, &Delivery)| match delivery {
            Delivery::Transactions(to) => {
                Some((name.clone(), routes::nodes(self.chains.get(to.chain_name())?).unwrap_or_default()))
            }
            _ => None,
        };
        Explorer::new(sources, self.destinations.iter().filter_map(nodes).collect())
    }
}

/// Which names there are.
fn there_is(known: &[&str]) -> String {
    if known.is_empty() { "there is none".to_owned() } else { format!("there is {}", known.join(", ")) }
}

/// Under which name a route's listener of an origin keeps its cursor.
fn listener(route: &str, origin: &str) -> String {
    format!("{route}@{origin}")
}

fn check_api(findings: &mut Findings<'_>) {
    if let Some(word) = findings.loaded.config.log.misunderstood() {
        findings
            .add(&["log", "level"], format!("{word:?} is no level: error, warn, info, debug or trace, or part=level"));
    }
    let (api, telemetry) = (&findings.loaded.config.api, &findings.loaded.config.telemetry);
    let doors = [("api", Some(api.listen)), ("telemetry", telemetry.listen)];
    for (part, listen) in doors.into_iter().filter_map(|(part, listen)| Some((part, listen?))) {
        if api.auth.is_none() && !findings.loaded.is_unread(&["api", "auth"]) && !listen.ip().is_loopback() {
            let why = format!(
                "{listen} can be reached from other machines: say who may call in [api.auth], or listen on 127.0.0.1"
            );
            findings.add(&[part, "listen"], why);
        }
    }
    if telemetry.listen == Some(api.listen) && api.listen.port() != 0 {
        findings.add(&["telemetry", "listen"], "the API listens here: use another port");
    }
    if api.body_bytes_max == 0 {
        findings.add(&["api", "body_bytes_max"], "no request would be taken: use at least 1");
    }
    if api.store_wait_max.as_ms() == 0 {
        findings
            .add(&["api", "store_wait_max"], "no answer of the store would be waited for: use \"30s\", for example");
    }
    if api.header_bytes_max < HEADER_BYTES_LEAST {
        findings.add(&["api", "header_bytes_max"], format!("use at least {HEADER_BYTES_LEAST}: less is never taken"));
    }
    for (key, most) in [("connections_max", api.connections_max), ("calls_max", api.calls_max)] {
        if !(1..=Semaphore::MAX_PERMITS).contains(&most) {
            findings.add(&["api", key], format!("use a number from 1 to {}", Semaphore::MAX_PERMITS));
        }
    }
    if api.auth.as_ref().is_some_and(|auth| auth.secret.is_none() && auth.public_key.is_none()) {
        findings.add(&["api", "auth"], "nobody could call: give a `secret` or a `public_key`");
    }
}

/// Where spans go, without what only the outside can tell.
pub(crate) fn endpoint(traces: &TracesConfig) -> Result<reqwest::Url, String> {
    let url = reqwest::Url::parse(&traces.endpoint).map_err(|error| format!("this is no URL: {error}"))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        _ => Err("spans are sent over http:// or https://".to_owned()),
    }
}

fn check_traces(findings: &mut Findings<'_>) {
    let Some(traces) = &findings.loaded.config.telemetry.traces else { return };
    findings.ok(&["telemetry", "traces", "endpoint"], endpoint(traces));
    if !(0.0..=1.0).contains(&traces.ratio) {
        findings.add(&["telemetry", "traces", "ratio"], "a ratio is a number from 0 to 1");
    }
}

/// Whether it can be the address of a WebSocket.
fn websocket(url: &str) -> Result<(), String> {
    match reqwest::Url::parse(url) {
        Ok(url) if matches!(url.scheme(), "ws" | "wss") && url.has_host() => Ok(()),
        Ok(_) => Err("a WebSocket is called by ws:// or wss:// and a host".to_owned()),
        Err(error) => Err(format!("this is no URL: {error}")),
    }
}

fn check_chains(findings: &mut Findings<'_>) {
    for (name, chain) in &findings.loaded.config.chains {
        let at = |key: &'static str| ["chains", name.as_str(), key];
        if chain.urls.is_empty() {
            findings.add(&at("urls"), "no node is named: give at least one URL");
        }
        for (n, url) in chain.urls.iter().enumerate() {
            findings.ok(&["chains", name, "urls", &n.to_string()], roundtrip_evm::Rpc::http(url));
        }
        for (n, url) in chain.websockets.iter().enumerate() {
            findings.ok(&["chains", name, "websockets", &n.to_string()], websocket(url));
        }
        if chain.quorum == 0 || chain.quorum > chain.urls.len().max(1) && !findings.loaded.is_unread(&at("urls")) {
            let why = format!(
                "{} of {} nodes cannot agree: use a number from 1 to as many as there are",
                chain.quorum,
                chain.urls.len()
            );
            findings.add(&at("quorum"), why);
        }
        if chain.range == 0 {
            findings.add(&at("range"), "no block in a read: use at least 1");
        }
    }
}
