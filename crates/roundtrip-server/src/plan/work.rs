//! Workers that the program calls: what is asked of whom, and what is read before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use roundtrip::calling::SigningKey;
use roundtrip::clock::{Clock, SystemClock};
use roundtrip::relay::Relay;
use roundtrip::store::policy::Backoff;
use roundtrip::worker::WorkerOptions;
use roundtrip_evm::mapping::Mapping;
use roundtrip_evm::sender::SecretSource;
use roundtrip_evm::{ContractRead, Outcomes, ReadAt};
use roundtrip_tools::contract::ContractTool;
use roundtrip_tools::egress::Allowed;
use roundtrip_tools::grpc::{Codes, GrpcOptions, GrpcTool, MethodName, Poll, code, read_descriptors};
use roundtrip_tools::http::{HealthWatch, HttpOptions, HttpTool, Source, Statuses};
use roundtrip_tools::identity::Identity;
use roundtrip_tools::prepare::Page;
use roundtrip_tools::{ClientTls, Preparation, Prepared, Presence, RESERVED, Tool, UrlTemplate, Web, Work};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::Findings;
use super::routes::{address, nodes};
use crate::config::{
    CallTlsConfig, ContractReadConfig, Fault, GrpcToolConfig, HttpToolConfig, Loaded, PollConfig, PrepareConfig,
    ReadBlock, WorkConfig,
};
use crate::run::read_secret;
use crate::telemetry::Telemetry;

/// Longest page of a registry or of a tool's definition.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// How long `check` waits for a tool.
const PROBED_WITHIN: Duration = Duration::from_secs(15);

/// Who works on a route's requests.
#[derive(Debug)]
pub struct WorkPlan {
    config: WorkConfig,
    web: Web,
    kind: Kind,
    /// What is known of a request, by name.
    names: Vec<String>,
    to_nowhere: bool,
    chains: BTreeMap<String, crate::config::ChainConfig>,
}

#[derive(Debug)]
enum Kind {
    Http(Box<HttpToolConfig>),
    Grpc(Box<GrpcToolConfig>, Option<Vec<u8>>),
    Call(Box<ContractReadConfig>),
    Identity,
}

/// A tool that was made, and whoever watches it.
struct Made {
    tool: Arc<dyn Tool>,
    probe: Probe,
    watch: Option<(HealthWatch, watch::Receiver<bool>)>,
}

/// What is asked whether it is there.
enum Probe {
    Http(Arc<HttpTool>),
    Grpc(Arc<GrpcTool>),
    Call(Arc<ContractTool>),
    Nothing,
}

/// Reads what a route says of its work; none, and faults, if it makes no sense.
pub(super) fn plan(
    findings: &mut Findings<'_>,
    name: &str,
    config: &WorkConfig,
    has_way_out: bool,
) -> Option<WorkPlan> {
    let at = |key: &'static str| ["routes", name, "work", key];
    let before = findings.faults.0.len();
    let kind = kind(findings, name, config);
    let names = names(findings, name, &config.prepare);
    if config.concurrency == 0 {
        findings.add(&at("concurrency"), "nothing would be worked on: use at least 1");
    }
    let allowed = findings.ok(&at("internal"), Allowed::read(&config.internal));
    let tls = match &config.tls {
        Some(tls) => client_tls(findings, name, tls)?,
        None => ClientTls::default(),
    };
    let web = findings.ok(&at("tls"), Web::new(allowed?, tls))?;
    let chains = findings.config().chains.clone();
    let plan = WorkPlan { config: config.clone(), web, kind: kind?, names, to_nowhere: !has_way_out, chains };
    // Everything is made once, so that what cannot be made is told at its place.
    plan.preparations(|key, n, why| {
        findings.add(&["routes", name, "work", "prepare", &n.to_string(), key], why);
    });
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    if let Err((key, why)) = plan.made(clock, None) {
        findings.add(&[&["routes", name, "work"][..], &key[..]].concat(), why);
    }
    (findings.faults.0.len() == before).then_some(plan)
}

fn kind(findings: &mut Findings<'_>, name: &str, config: &WorkConfig) -> Option<Kind> {
    let at = ["routes", name, "work"];
    match config {
        WorkConfig { http: Some(http), grpc: None, call: None, identity: false, .. } => {
            if http.meta.is_some() && http.definition.is_some() {
                findings.add(
                    &[&at[..], &["http", "definition"]].concat(),
                    "a tool is defined by `meta` or by `definition`",
                );
            }
            Some(Kind::Http(Box::new(http.clone())))
        }
        WorkConfig { http: None, grpc: Some(grpc), call: None, identity: false, .. } => {
            let descriptors = match &grpc.descriptors {
                Some(file) => Some(findings.read_bytes(&[&at[..], &["grpc", "descriptors"]].concat(), file)?),
                None => None,
            };
            Some(Kind::Grpc(Box::new(grpc.clone()), descriptors))
        }
        WorkConfig { http: None, grpc: None, call: Some(call), identity: false, .. } => {
            Some(Kind::Call(Box::new(call.clone())))
        }
        WorkConfig { http: None, grpc: None, call: None, identity: true, .. } => Some(Kind::Identity),
        _ => {
            findings.add(&at, "work is one of `http`, `grpc`, `call` and `identity`");
            None
        }
    }
}

/// The names of what is known of a request, each once.
fn names(findings: &mut Findings<'_>, route: &str, prepare: &[PrepareConfig]) -> Vec<String> {
    let mut names: Vec<String> = RESERVED.map(str::to_owned).into();
    for (n, config) in prepare.iter().enumerate() {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let path = ["routes", route, "work", "prepare", &n.to_string(), "name"];
        if config.name.is_empty() || !config.name.chars().all(plain) {
            findings.add(&path, format!("{:?} is no name: use letters, digits, - and _", config.name));
        } else if names.contains(&config.name) {
            findings.add(&path, format!("{:?} stands for something else already", config.name));
        }
        names.push(config.name.clone());
    }
    names
}

fn client_tls(findings: &mut Findings<'_>, name: &str, config: &CallTlsConfig) -> Option<ClientTls> {
    let at = |key: &'static str| ["routes", name, "work", "tls", key];
    let trusted = match &config.ca {
        Some(file) => Some(findings.read_bytes(&at("ca"), file)?),
        None => None,
    };
    let own = match (&config.certificate, &config.key) {
        (Some(certificate), Some(key)) => {
            let certificate = findings.read_bytes(&at("certificate"), certificate);
            Some((certificate?, findings.read_bytes(&at("key"), key)?))
        }
        (None, None) => None,
        _ => {
            findings.add(&["routes", name, "work", "tls"], "a certificate comes with its key");
            return None;
        }
    };
    Some(ClientTls { trusted, own })
}

/// What is wrong, and with which key.
type Wrong = (Vec<&'static str>, String);

impl WorkPlan {
    fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }

    /// What is read before; each fault is told with its key and its number.
    fn preparations(&self, mut fault: impl FnMut(&'static str, usize, String)) -> Vec<Preparation> {
        let mut made = Vec::new();
        for (n, config) in self.config.prepare.iter().enumerate() {
            // Each knows what those before it found.
            let names: Vec<&str> = self.names().into_iter().take(RESERVED.len() + n).collect();
            let prepared = match (&config.get, &config.call) {
                (Some(url), None) => UrlTemplate::read(url, &names)
                    .map(|url| Prepared::Page(Page::new(self.web.clone(), url, PAGE_BYTES_MAX, config.ttl.0)))
                    .map_err(|why| ("get", why)),
                (None, Some(call)) => self
                    .contract(call, &names)
                    .map(|read| Prepared::contract(read, config.ttl.0))
                    .map_err(|(_, why)| ("call", why)),
                _ => Err(("name", "it is one of `get` and `call`".to_owned())),
            };
            match prepared {
                Ok(prepared) => {
                    made.push(Preparation { name: config.name.clone(), prepared, failure: config.failure });
                }
                Err((key, why)) => fault(key, n, why),
            }
        }
        made
    }

    fn contract(&self, config: &ContractReadConfig, names: &[&str]) -> Result<ContractRead, (&'static str, String)> {
        let chain = self.chains.get(&config.chain);
        let chain = chain.ok_or_else(|| ("chain", format!("no chain is called {:?}", config.chain)))?;
        let contract = address(&config.contract).map_err(|why| ("contract", why))?;
        let nodes = nodes(chain).map_err(|error| ("chain", error.to_string()))?;
        let arguments = config.arguments.clone().unwrap_or_else(|| json!("/request"));
        let read = ContractRead::new(chain.chain_id, nodes, contract, &config.function, &arguments, names);
        let mut outcomes = Outcomes::new();
        for (refusal, outcome) in &config.outcomes {
            outcomes = outcomes.on(refusal, *outcome).map_err(|error| ("outcomes", error.to_string()))?;
        }
        let at = match config.block {
            ReadBlock::Latest => ReadAt::Latest,
            ReadBlock::Final => ReadAt::Final(chain.finality.0),
        };
        Ok(read.map_err(|error| ("function", error.to_string()))?.at(at).outcomes(outcomes))
    }

    fn made(&self, clock: Arc<dyn Clock>, key: Option<SigningKey>) -> Result<Made, Wrong> {
        match &self.kind {
            Kind::Http(config) => self.http(config, clock, key),
            Kind::Grpc(config, descriptors) => self.grpc(config, descriptors.as_deref()),
            Kind::Call(config) => {
                let read = self.contract(config, &self.names()).map_err(|(key, why)| (vec!["call", key], why))?;
                let tool = Arc::new(ContractTool(read));
                Ok(Made { tool: tool.clone(), probe: Probe::Call(tool), watch: None })
            }
            Kind::Identity => Ok(Made { tool: Arc::new(Identity), probe: Probe::Nothing, watch: None }),
        }
    }

    fn http(&self, config: &HttpToolConfig, clock: Arc<dyn Clock>, key: Option<SigningKey>) -> Result<Made, Wrong> {
        let names = self.names();
        let at = |key: &'static str| move |why: String| (vec!["http", key], why);
        let url = UrlTemplate::read(&config.url, &names).map_err(at("url"))?;
        let status = |(status, meaning): (&String, &roundtrip_tools::Meaning)| match status.parse::<u16>() {
            Ok(number @ 200..=599) => Ok((number, *meaning)),
            _ => Err(format!("{status:?} is no status: use a number from 200 to 599")),
        };
        let statuses: Statuses =
            config.outcomes.iter().map(status).collect::<Result<_, _>>().map_err(at("outcomes"))?;
        let options =
            HttpOptions { key, answer_bytes_max: config.answer_bytes_max, statuses, back_for: config.health_every.0 };
        let mut tool = HttpTool::new(self.web.clone(), url, clock, options);
        if let Some(meta) = &config.meta {
            let url = UrlTemplate::read(meta, &names).map_err(at("meta"))?;
            tool = tool.defined_by(Source::Meta(Page::new(self.web.clone(), url, PAGE_BYTES_MAX, config.meta_ttl.0)));
        }
        if let Some(path) = &config.definition {
            if !matches!(Mapping::read(&json!(path), &names), Mapping::Field { .. }) {
                return Err(at("definition")(format!("{path:?} names nothing that was prepared")));
            }
            tool = tool.defined_by(Source::Part(path.clone()));
        }
        let watch = match &config.health {
            Some(url) => {
                UrlTemplate::read(url, &[]).map_err(at("health"))?;
                Some(HealthWatch::new(self.web.clone(), url, config.health_every.0))
            }
            None => None,
        };
        if let Some((_, well)) = &watch {
            tool = tool.while_well(well.clone());
        }
        let tool = Arc::new(tool);
        Ok(Made { tool: tool.clone(), probe: Probe::Http(tool), watch })
    }

    fn grpc(&self, config: &GrpcToolConfig, descriptors: Option<&[u8]>) -> Result<Made, Wrong> {
        let at = |key: &'static str| move |why: String| (vec!["grpc", key], why);
        let method = MethodName::read(&config.method).map_err(at("method"))?;
        let descriptions = descriptors.map(read_descriptors).transpose().map_err(at("descriptors"))?;
        let poll = config.poll.as_ref().map(|poll| self.poll(poll)).transpose().map_err(at("poll"))?;
        if let Some(pool) = &descriptions {
            method.find(pool).map_err(at("method"))?;
        }
        let codes = Codes::read(&config.outcomes).map_err(at("outcomes"))?;
        let options = GrpcOptions { answer_bytes_max: config.answer_bytes_max, codes, poll };
        let tool = GrpcTool::new(&self.web, &config.urls, method, descriptions, options).map_err(at("urls"))?;
        let tool = Arc::new(tool);
        Ok(Made { tool: tool.clone(), probe: Probe::Grpc(tool), watch: None })
    }

    fn poll(&self, config: &PollConfig) -> Result<Poll, String> {
        let codes = |names: &[String]| names.iter().map(|name| code(name)).collect::<Result<Vec<_>, _>>();
        Ok(Poll {
            method: MethodName::read(&config.method)?,
            request: Mapping::read(&config.request, &self.names()),
            every: config.every.0,
            answer: config.answer.clone(),
            pending: codes(&config.pending)?,
            unknown: codes(&config.unknown)?,
        })
    }

    /// What calls are signed with.
    async fn key(&self) -> Result<Option<SigningKey>, String> {
        let Kind::Http(config) = &self.kind else { return Ok(None) };
        let Some(source) = &config.secret else { return Ok(None) };
        signing_key(source).await.map(Some)
    }

    /// Adds who works.
    pub(super) async fn start(
        &self,
        relay: Relay,
        name: &str,
        clock: Arc<dyn Clock>,
        telemetry: &Telemetry,
        backoff: &Backoff,
    ) -> Result<Relay, anyhow::Error> {
        let presence = Presence::new(clock.clone()).believing_calls_for(calls_hold_for(backoff));
        let key = self.key().await.map_err(|why| anyhow::anyhow!("routes.{name}.work.http.secret: {why}"))?;
        let made = self.made(clock, key).map_err(|(_, why)| anyhow::anyhow!("routes.{name}.work: {why}"))?;
        telemetry.watch_tool(name, presence.clone());
        let mut work = Work::new(made.tool)
            .prepared_by(self.preparations(|_, _, _| {}))
            .within(self.config.timeout.0)
            .telling(presence.clone());
        if let Some(input) = &self.config.input {
            work = work.with_input(Mapping::read(input, &self.names()));
        }
        // Where answers go nowhere, that it is done is all that is wanted.
        let done = self.config.already_done.clone().or_else(|| self.to_nowhere.then_some(Value::Null));
        if let Some(answer) = done {
            work = work.when_already_done(answer);
        }
        let options = WorkerOptions {
            concurrency: self.config.concurrency,
            timeout: Some(self.config.timeout.0),
            ..WorkerOptions::default()
        };
        let (watch, open) = made.watch.map_or((None, None), |(watch, open)| (Some(watch), Some(open)));
        let mut relay = relay.work(name, Arc::new(work), options, open);
        if let Some(watch) = watch {
            let (route, watch) = (name.to_owned(), watch.telling(presence));
            relay = relay.station(&format!("health of {name}'s tool"), move |shutdown| watch.run(route, shutdown));
        }
        Ok(relay)
    }

    /// Whether it is somebody who is called over the network, and not a contract or nobody.
    pub(super) fn is_service(&self) -> bool {
        matches!(self.kind, Kind::Http(_) | Kind::Grpc(..))
    }

    /// What the tool says of itself now, if it is asked: its `health`, or else whether it is there.
    pub(crate) async fn ask(&self) -> Result<(), String> {
        let made = self.made(Arc::new(SystemClock::new()), None).map_err(|(_, why)| why)?;
        match (&made.watch, &made.probe) {
            (Some((watch, _)), _) => watch.ask().await,
            (None, Probe::Http(tool)) => tool.probe().await,
            (None, Probe::Grpc(tool)) => tool.probe().await,
            (None, Probe::Call(_) | Probe::Nothing) => Ok(()),
        }
    }

    /// Finds out whether the tool is there, and is what the configuration says.
    pub(super) async fn probe(&self, loaded: &Loaded, name: &str, faults: &mut Vec<Fault>) {
        let path = ["routes", name, "work"];
        for (n, preparation) in self.preparations(|_, _, _| {}).iter().enumerate() {
            if let Err(why) = in_time(preparation.probe()).await {
                faults.push(loaded.fault(&["routes", name, "work", "prepare", &n.to_string()], why));
            }
        }
        let Ok(made) = self.made(Arc::new(SystemClock::new()), None) else { return };
        let (key, found) = match &made.probe {
            Probe::Http(tool) => ("http", in_time(tool.probe()).await),
            Probe::Grpc(tool) => ("grpc", in_time(tool.probe()).await),
            Probe::Call(tool) => ("call", in_time(tool.0.probe()).await),
            Probe::Nothing => return,
        };
        if let Err(why) = found {
            faults.push(loaded.fault(&[&path[..], &[key]].concat(), why));
        }
        if let Some((watch, _)) = &made.watch
            && let Err(why) = in_time(watch.ask()).await
        {
            faults.push(loaded.fault(&[&path[..], &["http", "health"]].concat(), format!("it is not well: {why}")));
        }
    }
}

/// Reads what calls are signed with.
pub(super) async fn signing_key(source: &SecretSource) -> Result<SigningKey, String> {
    let secret = read_secret(source).await.map_err(|error| error.to_string())?;
    SigningKey::read(secret.reveal()).map_err(|error| error.to_string())
}

/// How long what a failed call tells of a tool holds: a minute longer than a request that waits for it waits at the
/// most, so that the tool is away for as long as one is told so again and again.
fn calls_hold_for(backoff: &Backoff) -> Duration {
    const LONGER: Duration = Duration::from_secs(60);
    let jitter = backoff.max_ms.saturating_mul(u64::from(backoff.jitter_percent)) / 100;
    Duration::from_millis(backoff.max_ms.saturating_add(jitter)).saturating_add(LONGER)
}

async fn in_time(probe: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let late = |_elapsed| Err(format!("no answer within {} s", PROBED_WITHIN.as_secs()));
    tokio::time::timeout(PROBED_WITHIN, probe).await.unwrap_or_else(late)
}
