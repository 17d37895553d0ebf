//! Workers that the program calls: what is asked of whom, and what is read before.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
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
use roundtrip_tools::grpc::{Codes, GrpcOptions, GrpcTool, MethodName, Poll, check_url, code, read_descriptors};
use roundtrip_tools::http::{HealthWatch, HttpOptions, HttpTool, Source, Statuses};
use roundtrip_tools::identity::Identity;
use roundtrip_tools::prepare::Page;
use roundtrip_tools::{ClientTls, Preparation, Prepared, Presence, RESERVED, Tool, UrlTemplate, Web, Work};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::Findings;
use super::routes::{address, nodes};
use crate::config::{
    CallTlsConfig, ContractReadConfig, Fault, GrpcToolConfig, HttpToolConfig, Loaded, PrepareConfig, ReadBlock,
    WorkConfig,
};
use crate::run::{read_certificate, read_key, read_secret};
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

/// Reads what a route says of its work, as far as it makes sense; faults, and none if nobody could be called.
///
/// Each part is judged whatever the others come to. What a part needs and is wrong is told where it stands, and
/// something that fits takes its place.
pub(super) fn plan(
    findings: &mut Findings<'_>,
    name: &str,
    config: &WorkConfig,
    has_way_out: bool,
) -> Option<WorkPlan> {
    let at = |key: &'static str| ["routes", name, "work", key];
    let kinds = kinds(findings, name, config);
    let names = names(findings, name, &config.prepare);
    if config.concurrency == 0 {
        findings.add(&at("concurrency"), "nothing would be worked on: use at least 1");
    }
    check_chains(findings, name, config);
    let web = web(findings, name, config);
    let (is_callable, web) = (web.is_some(), web.or_else(|| Web::new(Allowed::default(), ClientTls::default()).ok())?);
    // One that could not be read as a whole is not asked.
    let mut chains = findings.config().chains.clone();
    chains.retain(|name, _| !findings.loaded.is_unread(&["chains", name]));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut plan = None;
    // Everything is made once, so that what cannot be made is told at its place.
    let mut wrong = Wrong::default();
    let is_one = kinds.len() == 1;
    for kind in kinds {
        let (config, web, names) = (config.clone(), web.clone(), names.clone());
        let made = WorkPlan { config, web, kind, names, to_nowhere: !has_way_out, chains: chains.clone() };
        // What is read before is the same for each.
        if plan.is_none() {
            made.preparations(&mut wrong);
        }
        made.make(clock.clone(), None, &mut wrong);
        plan = Some(made);
    }
    for (path, why) in wrong.0 {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        findings.add(&[&["routes", name, "work"][..], &path].concat(), why);
    }
    plan.filter(|_| is_one && is_callable)
}

/// Who is named to work: one of these, or else each that is named, to be judged.
fn kinds(findings: &mut Findings<'_>, name: &str, config: &WorkConfig) -> Vec<Kind> {
    let at = ["routes", name, "work"];
    let mut kinds = Vec::new();
    if let Some(http) = &config.http {
        if http.meta.is_some() && http.definition.is_some() {
            findings
                .add(&[&at[..], &["http", "definition"]].concat(), "a tool is defined by `meta` or by `definition`");
        }
        kinds.push(Kind::Http(Box::new(http.clone())));
    }
    if let Some(grpc) = &config.grpc {
        let file = grpc.descriptors.as_ref();
        let read = file.and_then(|file| findings.read_bytes(&[&at[..], &["grpc", "descriptors"]].concat(), file));
        kinds.push(Kind::Grpc(Box::new(grpc.clone()), read));
    }
    kinds.extend(config.call.clone().map(|call| Kind::Call(Box::new(call))));
    kinds.extend(config.identity.then_some(Kind::Identity));
    if kinds.len() != 1 {
        findings.add(&at, "work is one of `http`, `grpc`, `call` and `identity`");
    }
    // What is read before is judged even if nobody is named.
    if kinds.is_empty() { vec![Kind::Identity] } else { kinds }
}

/// Whether there is each chain that a contract is read on.
fn check_chains(findings: &mut Findings<'_>, name: &str, config: &WorkConfig) {
    if let Some(call) = &config.call {
        findings.chain(&["routes", name, "work", "call", "chain"], &call.chain);
    }
    for (n, prepare) in config.prepare.iter().enumerate() {
        if let Some(call) = &prepare.call {
            findings.chain(&["routes", name, "work", "prepare", &n.to_string(), "call", "chain"], &call.chain);
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

/// The way out, if all that is said of it makes sense.
fn web(findings: &mut Findings<'_>, name: &str, config: &WorkConfig) -> Option<Web> {
    let before = findings.faults.0.len();
    for (n, text) in config.internal.iter().enumerate() {
        let path = ["routes", name, "work", "internal", &n.to_string()];
        findings.ok(&path, Allowed::read(std::slice::from_ref(text)));
    }
    let tls = config.tls.as_ref().map(|tls| client_tls(findings, name, tls));
    if findings.faults.0.len() > before {
        return None;
    }
    let allowed = Allowed::read(&config.internal).ok()?;
    findings.ok(&["routes", name, "work", "tls"], Web::new(allowed, tls.unwrap_or_default()))
}

/// Whom calls trust and who they say that they are; each file is read whatever the others are.
fn client_tls(findings: &mut Findings<'_>, name: &str, config: &CallTlsConfig) -> ClientTls {
    let at = |key: &'static str| ["routes", name, "work", "tls", key];
    let told = |error: anyhow::Error| format!("{error:#}");
    for (key, file) in [("ca", &config.ca), ("certificate", &config.certificate)] {
        if let Some(file) = file {
            findings.ok(&at(key), read_certificate(file).map_err(told));
        }
    }
    if let Some(file) = &config.key {
        findings.ok(&at("key"), read_key(file).map_err(told));
    }
    if config.certificate.is_some() != config.key.is_some() {
        findings.add(&["routes", name, "work", "tls"], "a certificate comes with its key");
    }
    // What cannot be read is told by now.
    let bytes = |file: &Option<PathBuf>| file.as_ref().and_then(|file| std::fs::read(file).ok());
    ClientTls { trusted: bytes(&config.ca), own: bytes(&config.certificate).zip(bytes(&config.key)) }
}

/// What is wrong, each with the way to it from the table on.
#[derive(Debug, Default)]
struct Wrong(Vec<(Vec<String>, String)>);

impl Wrong {
    fn add(&mut self, path: &[&str], why: impl Into<String>) {
        self.0.push((path.iter().map(|&part| part.to_owned()).collect(), why.into()));
    }

    /// The value, or nothing and a fault at this path.
    fn ok<T, E: ToString>(&mut self, path: &[&str], result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(path, error.to_string())).ok()
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> = self.0.iter().map(|(path, why)| format!("{}: {why}", path.join("."))).collect();
        f.write_str(&each.join("; "))
    }
}

impl WorkPlan {
    fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }

    /// What is read before.
    fn preparations(&self, wrong: &mut Wrong) -> Vec<Preparation> {
        let mut made = Vec::new();
        for (n, config) in self.config.prepare.iter().enumerate() {
            // Each knows what those before it found.
            let names: Vec<&str> = self.names().into_iter().take(RESERVED.len() + n).collect();
            let at = n.to_string();
            let page = config.get.as_ref().and_then(|url| {
                let url = wrong.ok(&["prepare", &at, "get"], UrlTemplate::read(url, &names))?;
                Some(Prepared::Page(Page::new(self.web.clone(), url, PAGE_BYTES_MAX, config.ttl.0)))
            });
            let read = config.call.as_ref().and_then(|call| {
                let read = self.contract(&["prepare", &at, "call"], call, &names, wrong)?;
                Some(Prepared::contract(read, config.ttl.0))
            });
            if config.get.is_some() == config.call.is_some() {
                wrong.add(&["prepare", &at, "name"], "it is one of `get` and `call`");
            }
            if let Some(prepared) = page.or(read) {
                made.push(Preparation { name: config.name.clone(), prepared, failure: config.failure });
            }
        }
        made
    }

    /// A contract that is read. Whether there is its chain is told elsewhere, and all else judged without it.
    fn contract(
        &self,
        path: &[&str],
        config: &ContractReadConfig,
        names: &[&str],
        wrong: &mut Wrong,
    ) -> Option<ContractRead> {
        let at = |key| [path, &[key]].concat();
        let contract = wrong.ok(&at("contract"), address(&config.contract));
        let mut outcomes = Outcomes::new();
        for (refusal, outcome) in &config.outcomes {
            let read = outcomes.clone().on(refusal, *outcome);
            outcomes = wrong.ok(&[path, &["outcomes", refusal]].concat(), read).unwrap_or(outcomes);
        }
        let chain = self.chains.get(&config.chain);
        // What is no URL is told where the chain is.
        let nodes = chain.map(nodes).transpose().ok().flatten().unwrap_or_default();
        let chain_id = chain.map(|chain| chain.chain_id).unwrap_or_default();
        let read = ContractRead::new(chain_id, nodes, contract.unwrap_or_default(), &config.function);
        let read = wrong.ok(&at("function"), read)?;
        let read = match &config.arguments {
            Some(arguments) => wrong.ok(&at("arguments"), read.with_arguments(arguments, names))?,
            None => read,
        };
        let block = match (config.block, chain?.finality.0) {
            (ReadBlock::Latest, _) => ReadAt::Latest,
            (ReadBlock::Final, finality) => ReadAt::Final(finality),
        };
        contract.map(|_| read.at(block).outcomes(outcomes))
    }

    /// The tool, or why it cannot be made.
    fn made(&self, clock: Arc<dyn Clock>, key: Option<SigningKey>) -> Result<Made, Wrong> {
        let mut wrong = Wrong::default();
        self.make(clock, key, &mut wrong).ok_or(wrong)
    }

    fn make(&self, clock: Arc<dyn Clock>, key: Option<SigningKey>, wrong: &mut Wrong) -> Option<Made> {
        match &self.kind {
            Kind::Http(config) => self.http(config, clock, key, wrong),
            Kind::Grpc(config, descriptors) => self.grpc(config, descriptors.as_deref(), wrong),
            Kind::Call(config) => {
                let tool = Arc::new(ContractTool(self.contract(&["call"], config, &self.names(), wrong)?));
                Some(Made { tool: tool.clone(), probe: Probe::Call(tool), watch: None })
            }
            Kind::Identity => Some(Made { tool: Arc::new(Identity), probe: Probe::Nothing, watch: None }),
        }
    }

    fn http(
        &self,
        config: &HttpToolConfig,
        clock: Arc<dyn Clock>,
        key: Option<SigningKey>,
        wrong: &mut Wrong,
    ) -> Option<Made> {
        let (names, before) = (self.names(), wrong.0.len());
        let url = wrong.ok(&["http", "url"], UrlTemplate::read(&config.url, &names));
        let mut statuses = Statuses::new();
        for (status, meaning) in &config.outcomes {
            let number = status.parse().ok().filter(|number| (200..=599).contains(number));
            let number = number.ok_or_else(|| format!("{status:?} is no status: use a number from 200 to 599"));
            statuses.extend(wrong.ok(&["http", "outcomes", status], number).map(|number| (number, *meaning)));
        }
        let meta = config.meta.as_ref().and_then(|meta| {
            let url = wrong.ok(&["http", "meta"], UrlTemplate::read(meta, &names))?;
            Some(Source::Meta(Page::new(self.web.clone(), url, PAGE_BYTES_MAX, config.meta_ttl.0)))
        });
        let part = config.definition.as_ref().map(|path| Source::Part(path.clone()));
        if let Some(path) = &config.definition
            && !matches!(Mapping::read(&json!(path), &names), Mapping::Field { .. })
        {
            wrong.add(&["http", "definition"], format!("{path:?} names nothing that was prepared"));
        }
        let watch = config.health.as_ref().and_then(|url| {
            wrong.ok(&["http", "health"], UrlTemplate::read(url, &[]))?;
            Some(HealthWatch::new(self.web.clone(), url, config.health_every.0))
        });
        if wrong.0.len() > before {
            return None;
        }
        let options =
            HttpOptions { key, answer_bytes_max: config.answer_bytes_max, statuses, back_for: config.health_every.0 };
        let mut tool = HttpTool::new(self.web.clone(), url?, clock, options);
        if let Some(source) = meta.or(part) {
            tool = tool.defined_by(source);
        }
        if let Some((_, well)) = &watch {
            tool = tool.while_well(well.clone());
        }
        let tool = Arc::new(tool);
        Some(Made { tool: tool.clone(), probe: Probe::Http(tool), watch })
    }

    fn grpc(&self, config: &GrpcToolConfig, descriptors: Option<&[u8]>, wrong: &mut Wrong) -> Option<Made> {
        let before = wrong.0.len();
        let pool = descriptors.map(read_descriptors);
        let pool = pool.and_then(|pool| wrong.ok(&["grpc", "descriptors"], pool));
        let mut method = |path: &[&str], text: &str| {
            let method = wrong.ok(path, MethodName::read(text))?;
            wrong.ok(path, pool.as_ref().map_or(Ok(()), |pool| method.find(pool).map(|_| ())))?;
            Some(method)
        };
        let taken_by = method(&["grpc", "method"], &config.method);
        let fetched_by = config.poll.as_ref().map(|poll| method(&["grpc", "poll", "method"], &poll.method));
        let poll = config.poll.as_ref().zip(fetched_by.flatten());
        let mut codes = |key: &str, names: &[String]| {
            let mut read = Vec::new();
            for (n, name) in names.iter().enumerate() {
                read.extend(wrong.ok(&["grpc", "poll", key, &n.to_string()], code(name)));
            }
            read
        };
        let told = config.poll.as_ref().map(|poll| (codes("pending", &poll.pending), codes("unknown", &poll.unknown)));
        let poll = poll.zip(told).map(|((poll, method), (pending, unknown))| Poll {
            method,
            request: Mapping::read(&poll.request, &self.names()),
            every: poll.every.0,
            answer: poll.answer.clone(),
            pending,
            unknown,
        });
        for name in config.outcomes.keys() {
            wrong.ok(&["grpc", "outcomes", name], code(name));
        }
        if config.urls.is_empty() {
            wrong.add(&["grpc", "urls"], "no address is named");
        }
        for (n, url) in config.urls.iter().enumerate() {
            wrong.ok(&["grpc", "urls", &n.to_string()], check_url(&self.web, url));
        }
        if wrong.0.len() > before {
            return None;
        }
        let codes = Codes::read(&config.outcomes).ok()?;
        let options = GrpcOptions { answer_bytes_max: config.answer_bytes_max, codes, poll };
        let tool = GrpcTool::new(&self.web, &config.urls, taken_by?, pool, options);
        let tool = Arc::new(wrong.ok(&["grpc"], tool)?);
        Some(Made { tool: tool.clone(), probe: Probe::Grpc(tool), watch: None })
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
        let made = self.made(clock, key).map_err(|wrong| anyhow::anyhow!("routes.{name}.work.{wrong}"))?;
        telemetry.watch_tool(name, presence.clone());
        let mut work = Work::new(made.tool)
            .prepared_by(self.preparations(&mut Wrong::default()))
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
        let made = self.made(Arc::new(SystemClock::new()), None).map_err(|wrong| wrong.to_string())?;
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
        for (n, preparation) in self.preparations(&mut Wrong::default()).iter().enumerate() {
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
