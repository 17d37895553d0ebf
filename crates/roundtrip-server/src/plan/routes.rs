//! Routes: policies, and where requests come from.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy::primitives::Address;
use roundtrip::inbox::{FieldPath, Identity};
use roundtrip::listener::{FollowerOptions, RedisList};
use roundtrip::relay::Relay;
use roundtrip::store::policy::{Backoff, Gate, Horizon, OnDuplicate, QueueOrder, Rate, Retention, RoutePolicy};
use roundtrip::words::{Destination, Encoding, Height, ListenerName, OriginName, Payload, RouteName};
use roundtrip_evm::listener::{AbiError, Mempool};
use roundtrip_evm::{EventSignature, EvmSource, Rpc, Watch};

use super::destinations::Delivery;
use super::{Findings, Plan, WorkPlan, listener, there_is};
use crate::api::Intake;
use crate::config::{
    ChainConfig, DuplicateConfig, EventConfig, EveryConfig, Fault, GateConfig, IdentityConfig, IdentityWord,
    ListSourceConfig, Loaded, OrderConfig, RateConfig, RouteConfig, Span,
};
use crate::telemetry::{Telemetry, WatchedListener};

/// A route, and what feeds it.
#[derive(Debug)]
pub struct RoutePlan {
    /// What it decides for itself.
    pub policy: RoutePolicy,
    intake: Intake,
    route: RouteName,
    /// What it reads of chains, by their names.
    feeds: BTreeMap<String, Feed>,
    mempools: Vec<(String, Vec<Address>)>,
    lists: Vec<ListSourceConfig>,
    every: Option<EveryConfig>,
    /// Whom the program asks to work on it, if it does.
    pub(super) work: Option<Arc<WorkPlan>>,
}

/// What a route reads of one chain.
#[derive(Debug)]
pub struct Feed {
    watches: Vec<Watch>,
    ticks: Vec<std::num::NonZeroU64>,
    /// The lowest of the first blocks that its events and ticks name.
    from_block: Height,
}

/// The feed of a chain, which starts at this block or lower.
fn feed_from<'a>(feeds: &'a mut BTreeMap<String, Feed>, chain: &str, block: u64) -> &'a mut Feed {
    let from_block = Height(block);
    let feed = feeds.entry(chain.to_owned()).or_insert(Feed { watches: Vec::new(), ticks: Vec::new(), from_block });
    feed.from_block = feed.from_block.min(from_block);
    feed
}

/// Reads a route, as far as it makes sense; faults, and `None` if it has no name, if it makes none.
pub(super) fn plan(
    findings: &mut Findings<'_>,
    name: &str,
    config: &RouteConfig,
    destinations: &BTreeMap<String, Delivery>,
) -> Option<RoutePlan> {
    let named = findings.ok(&["routes", name], RouteName::new(name));
    // A name that is none is told; what is wrong under it is to be told too.
    let route = named.clone().or_else(|| RouteName::new("unnamed").ok())?;
    let stated = identity(findings, &["routes", name, "identity"], &config.identity);
    let policy = policy(findings, name, config, stated.as_ref());
    let mut feeds: BTreeMap<String, Feed> = BTreeMap::new();
    let identity = stated.clone().unwrap_or_default();
    for (kind, events) in [("events", &config.events), ("answered_elsewhere", &config.answered_elsewhere)] {
        for (n, event) in events.iter().enumerate() {
            let at = n.to_string();
            let path = ["routes", name, kind, at.as_str()];
            let chain = findings.chain(&[&path[..], &["chain"]].concat(), &event.chain);
            let Some(watch) = watch_of(findings, &path, &route, event, stated.as_ref(), kind == "events") else {
                continue;
            };
            findings.ok(&["routes", name, "identity"], watch.check_identity());
            check_call(findings, &path, config, destinations, &watch, kind);
            if chain.is_some() {
                feed_from(&mut feeds, &event.chain, event.from_block).watches.push(watch);
            }
        }
    }
    for (n, blocks) in config.blocks.iter().enumerate() {
        if findings.chain(&["routes", name, "blocks", &n.to_string(), "chain"], &blocks.chain).is_some() {
            feed_from(&mut feeds, &blocks.chain, blocks.from_block).ticks.push(blocks.every);
        }
    }
    let mut mempools = Vec::new();
    for (n, mempool) in config.mempool.iter().enumerate() {
        let at = n.to_string();
        let path = ["routes", name, "mempool", at.as_str()];
        let chain = findings.chain(&[&path[..], &["chain"]].concat(), &mempool.chain);
        if chain.is_some_and(|chain| chain.websockets.is_empty()) {
            let why = format!("chain {:?} has no `websockets`, and only they tell of a mempool", mempool.chain);
            findings.missing(&path, ["chains", &mempool.chain], why);
        }
        mempools.push((mempool.chain.clone(), addresses(findings, &[&path[..], &["to"]].concat(), &mempool.to)));
    }
    for (n, list) in config.lists.iter().enumerate() {
        check_list(findings, &["routes", name, "lists", &n.to_string()], list, &route, &identity);
    }
    let needs_given = config.every.is_some() || !config.mempool.is_empty() || !config.blocks.is_empty();
    if needs_given && identity != Identity::Given {
        let why =
            "timers, blocks and mempools give requests ids of their own: use \"given\", or another route for them";
        findings.add(&["routes", name, "identity"], why);
    }
    let (lists, every) = (config.lists.clone(), config.every.clone());
    let to = config.to.as_ref().and_then(|to| findings.loaded.config.destinations.get(to));
    if config.sending.is_some() && to.is_none_or(|to| to.transactions.is_none()) {
        let why = "only answers that go out as transactions have any of this".to_owned();
        findings.missing(&["routes", name, "sending"], ["destinations", config.to.as_deref().unwrap_or_default()], why);
    }
    let intake = intake(findings, name, config, &identity);
    let work = config.work.as_ref().map(|work| super::work::plan(findings, name, work, config.to.is_some()));
    // What makes no sense is told by now, and keeps nothing else from being looked at.
    let (policy, work) = (policy.unwrap_or_default(), work.flatten().map(Arc::new));
    named.map(|route| RoutePlan { policy, intake, route, feeds, mempools, lists, every, work })
}

/// How a route takes requests over the API.
fn intake(findings: &mut Findings<'_>, name: &str, config: &RouteConfig, identity: &Identity) -> Intake {
    if let Some(path) = &config.submit_path {
        let at = ["routes", name, "submit_path"];
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~/".contains(c);
        let plain = path.len() > 1 && path.starts_with('/') && path.chars().all(plain);
        let taken = ["/v1", "/health", "/ready", "/metrics", "/docs", "/dashboard", "/roundtrip.v1.Work"];
        if !plain || taken.iter().any(|own| path == own || path.starts_with(&format!("{own}/"))) {
            let why = format!(
                "{path:?} cannot be a path: use /, letters, digits, - . _ ~, and do not begin with one of {}",
                taken.join(", ")
            );
            findings.add(&at, why);
        }
        let same = |other: &&RouteConfig| other.submit_path.as_ref() == Some(path);
        if findings.config().routes.values().filter(same).count() > 1 {
            findings.add(&at, "two routes have this path");
        }
    } else if config.forms && !findings.loaded.is_unread(&["routes", name, "submit_path"]) {
        findings.add(&["routes", name, "forms"], "parameters are taken under `submit_path` alone, and there is none");
    }
    // What looks like an event of a chain must not be somebody's call, unless that is wanted.
    let fed = config.events.len() + config.blocks.len() + config.mempool.len() + config.lists.len() > 0
        || config.every.is_some();
    let (submit, path, forms) = (config.submit.unwrap_or(!fed), config.submit_path.clone(), config.forms);
    if path.is_some() && !submit && !findings.loaded.is_unread(&["routes", name, "submit"]) {
        let why = match config.submit {
            Some(_) => "nothing would be taken there: leave `submit = false` or the path out",
            None => {
                "nothing would be taken there, since the route has a source: say `submit = true`, or leave the path out"
            }
        };
        findings.add(&["routes", name, "submit_path"], why);
    }
    Intake { submit, path, forms, identity: identity.clone() }
}

/// Whether the fields that a call uses of requests are those that this event shows.
fn check_call(
    findings: &mut Findings<'_>,
    path: &[&str],
    config: &RouteConfig,
    destinations: &BTreeMap<String, Delivery>,
    watch: &Watch,
    kind: &str,
) {
    if kind == "events"
        && let Some(Delivery::Transactions(to)) = config.to.as_ref().and_then(|to| destinations.get(to))
    {
        findings.ok(path, to.call.clone().asked_by(&watch.event));
    }
}

fn watch_of(
    findings: &mut Findings<'_>,
    path: &[&str],
    route: &RouteName,
    config: &EventConfig,
    identity: Option<&Identity>,
    asks: bool,
) -> Option<Watch> {
    let at = |key: &'static str| [path, &[key]].concat();
    // Each is looked at whatever the others come to: every fault is told.
    let addresses = addresses(findings, &at("addresses"), &config.addresses);
    let event = match &config.abi {
        Some(file) => {
            let abi = findings.read(&at("abi"), file)?;
            match EventSignature::from_abi(&abi, &config.event) {
                Err(bad @ AbiError::NotAnAbi(_)) => {
                    findings.add(&at("abi"), format!("{}: {bad}", file.display()));
                    None
                }
                read => findings.ok(&at("event"), read),
            }
        }
        None => findings.ok(&at("event"), EventSignature::parse(&config.event)),
    }?;
    let own = identity.cloned().unwrap_or_default();
    // Whether answers can be matched to requests is to be judged if it is known what makes them the same.
    let answers = match asks || identity.is_none() {
        true => None,
        false => findings.ok(path, Watch::answers(route.clone(), event.clone(), own.clone())),
    };
    let mut watch = answers.unwrap_or_else(|| Watch::new(route.clone(), event, own)).at(addresses);
    for (argument, values) in &config.only {
        let narrowed = watch.clone().only(argument, values);
        watch = findings.ok(&[path, &["only", argument.as_str()]].concat(), narrowed).unwrap_or(watch);
    }
    if let Some(argument) = &config.deadline {
        let origin = findings.ok(&at("chain"), OriginName::new(&config.chain))?;
        watch = findings.ok(&at("deadline"), watch.until(argument, origin))?;
    }
    Some(watch)
}

pub(super) fn address(text: &str) -> Result<Address, String> {
    text.parse().map_err(|_| format!("{text:?} is no address: write 0x and 40 hexadecimal digits"))
}

fn addresses(findings: &mut Findings<'_>, path: &[&str], texts: &[String]) -> Vec<Address> {
    let mut read = Vec::new();
    for (n, text) in texts.iter().enumerate() {
        read.extend(findings.ok(&[path, &[n.to_string().as_str()]].concat(), address(text)));
    }
    read
}

fn policy(
    findings: &mut Findings<'_>,
    name: &str,
    config: &RouteConfig,
    identity: Option<&Identity>,
) -> Option<RoutePolicy> {
    let at = |key: &'static str| ["routes", name, key];
    let before = findings.faults.0.len();
    // Each is looked at whatever the others come to: every fault is told.
    let destination = destination(findings, &at("to"), config.to.as_deref());
    let horizon = findings.ok(&at("horizon"), horizon(config.horizon.as_deref()));
    let on_duplicate = on_duplicate(findings, name, config);
    for (key, why) in nothing_would_pass(config) {
        findings.add(&at(key), why);
    }
    if config.every.as_ref().is_some_and(|every| every.period.as_ms() == 0) {
        findings.add(&["routes", name, "every", "period"], "requests would come without end: use \"1m\", for example");
    }
    let backoff = Backoff {
        first_ms: config.backoff.first.as_ms(),
        factor_percent: config.backoff.factor_percent,
        max_ms: config.backoff.max.as_ms(),
        jitter_percent: config.backoff.jitter_percent,
    };
    let rate = config.rate.as_ref().map(|rate| Rate { count: rate.count, per_ms: rate.per.as_ms() });
    for (key, alone) in each_alone(identity, on_duplicate, horizon, backoff, rate) {
        // Nothing would pass, and that is told.
        if !nothing_would_pass(config).any(|(told, _)| told == key) {
            findings.ok(&at(key), alone.check());
        }
    }
    let policy = RoutePolicy {
        work_on: gate(config.work_on),
        publish_on: gate(config.publish_on),
        identity: identity?.clone(),
        on_duplicate: on_duplicate?,
        order: match config.order {
            OrderConfig::Fifo => QueueOrder::Fifo,
            OrderConfig::Priority => QueueOrder::Priority,
            OrderConfig::Key => QueueOrder::KeyedFifo { per_key: config.per_key },
            OrderConfig::Deadline => QueueOrder::Deadline,
            OrderConfig::Random => QueueOrder::Random,
        },
        horizon: horizon?,
        capacity: config.capacity,
        lease_ms: config.lease.as_ms(),
        attempts_max: config.attempts_max,
        crashes_max: config.crashes_max,
        backoff,
        rate,
        destination: destination?,
        retention: Retention {
            settled_ms: config.keep_settled.as_ms(),
            failed_ms: config.keep_failed.as_ms(),
            withdrawn_ms: config.keep_settled.as_ms(),
        },
        dead_ms: config.keep_dead.as_ms(),
    };
    if findings.faults.0.len() == before {
        findings.ok(&["routes", name], policy.check())?;
    }
    Some(policy)
}

/// What a route says of itself, each beside policies that fit, and the key that says it: together, what is wrong first
/// would hide what is wrong next.
fn each_alone(
    identity: Option<&Identity>,
    on_duplicate: Option<OnDuplicate>,
    horizon: Option<Horizon>,
    backoff: Backoff,
    rate: Option<Rate>,
) -> Vec<(&'static str, RoutePolicy)> {
    let fitting = RoutePolicy::default;
    let votes = |identity: Identity, horizon: Horizon| {
        on_duplicate.map(|on_duplicate| RoutePolicy { identity, horizon, on_duplicate, ..fitting() })
    };
    let counted = votes(Identity::Content, Horizon::Forever);
    let countable = counted.as_ref().is_some_and(|counted| counted.check().is_ok());
    let known = identity.filter(|identity| RoutePolicy { identity: (*identity).clone(), ..fitting() }.check().is_ok());
    let parts = [
        ("identity", identity.cloned().map(|identity| RoutePolicy { identity, ..fitting() })),
        ("votes", counted),
        ("on_duplicate", known.filter(|_| countable).and_then(|known| votes(known.clone(), Horizon::Forever))),
        ("on_duplicate", horizon.filter(|_| countable).and_then(|horizon| votes(Identity::Content, horizon))),
        ("backoff", Some(RoutePolicy { backoff, ..fitting() })),
        ("rate", Some(RoutePolicy { rate, ..fitting() })),
    ];
    parts.into_iter().filter_map(|(key, policy)| Some((key, policy?))).collect()
}

/// Where a route's answers go, if anywhere.
fn destination(findings: &mut Findings<'_>, path: &[&str], to: Option<&str>) -> Option<Option<Destination>> {
    match to {
        Some(to) if !findings.config().destinations.contains_key(to) => {
            let known: Vec<&str> = findings.config().destinations.keys().map(String::as_str).collect();
            let why = format!("no destination is called {to:?}: {}", there_is(&known));
            findings.missing(path, ["destinations", to], why);
            None
        }
        Some(to) => findings.ok(path, Destination::new(to)).map(Some),
        None => Some(None),
    }
}

/// The keys of a route with which nothing would ever be worked on, and why.
fn nothing_would_pass(config: &RouteConfig) -> impl Iterator<Item = (&'static str, &'static str)> {
    let no_rate = |rate: &RateConfig| rate.count == 0 || rate.per.as_ms() == 0;
    let keys = [
        (
            "lease",
            config.lease.as_ms() == 0,
            "a lease of no length has run out when it is given: use \"30s\", for example",
        ),
        ("capacity", config.capacity == 0, "no request would be taken: use at least 1"),
        (
            "rate",
            config.rate.as_ref().is_some_and(no_rate),
            "a rate of nothing, or in no time: nothing would be handed out",
        ),
        (
            "per_key",
            config.order == OrderConfig::Key && config.per_key == 0,
            "no request of a key at a time: use at least 1",
        ),
    ];
    keys.into_iter().filter(|(_, wrong, _)| *wrong).map(|(key, _, why)| (key, why))
}

fn gate(gate: GateConfig) -> Gate {
    match gate {
        GateConfig::Seen => Gate::Seen,
        GateConfig::Final => Gate::Final,
    }
}

fn on_duplicate(findings: &mut Findings<'_>, name: &str, config: &RouteConfig) -> Option<OnDuplicate> {
    match (config.on_duplicate, config.votes) {
        (DuplicateConfig::Vote, Some(needed)) => return Some(OnDuplicate::Vote { needed }),
        (DuplicateConfig::Vote, None) => {
            findings.add(&["routes", name, "on_duplicate"], "`votes` says how many are needed")
        }
        (_, Some(_)) if findings.loaded.is_unread(&["routes", name, "on_duplicate"]) => {}
        (_, Some(_)) => findings.add(&["routes", name, "votes"], "votes are counted only with on_duplicate = \"vote\""),
        (DuplicateConfig::Attach, None) => return Some(OnDuplicate::Attach),
        (DuplicateConfig::Drop, None) => return Some(OnDuplicate::Drop),
        (DuplicateConfig::Rearm, None) => return Some(OnDuplicate::Rearm),
        (DuplicateConfig::NewGeneration, None) => return Some(OnDuplicate::NewGeneration),
    }
    None
}

fn identity(findings: &mut Findings<'_>, path: &[&str], config: &IdentityConfig) -> Option<Identity> {
    match config {
        IdentityConfig::Word(IdentityWord::Given) => Some(Identity::Given),
        IdentityConfig::Word(IdentityWord::Content) => Some(Identity::Content),
        IdentityConfig::Fields(fields) => {
            let mut read = Vec::new();
            for (n, field) in fields.iter().enumerate() {
                read.extend(findings.ok(&[path, &[n.to_string().as_str()]].concat(), FieldPath::new(field)));
            }
            (read.len() == fields.len()).then_some(Identity::Fields(read))
        }
    }
}

fn horizon(text: Option<&str>) -> Result<Horizon, String> {
    match text {
        None => Ok(Horizon::UntilSettled),
        Some("forever") => Ok(Horizon::Forever),
        Some(text) => {
            let length = humantime::parse_duration(text).map(Span).map_err(|_| {
                format!("{text:?} is no horizon: write a length of time such as \"30days\", or \"forever\"")
            })?;
            Ok(Horizon::For { ms: length.as_ms() })
        }
    }
}

/// Whether a list can be read from; its server and its name are judged each by itself.
fn check_list(
    findings: &mut Findings<'_>,
    path: &[&str],
    config: &ListSourceConfig,
    route: &RouteName,
    identity: &Identity,
) {
    let fitting = ListSourceConfig { url: "redis://127.0.0.1".to_owned(), list: "list".to_owned() };
    let url = ListSourceConfig { url: config.url.clone(), ..fitting.clone() };
    let list = ListSourceConfig { list: config.list.clone(), ..fitting };
    for (key, alone) in [("url", url), ("list", list)] {
        findings.ok(&[path, &[key]].concat(), list_of(&alone, route.as_str(), route, identity.clone()));
    }
}

fn list_of(config: &ListSourceConfig, name: &str, route: &RouteName, identity: Identity) -> Result<RedisList, String> {
    let listener = ListenerName::new(&format!("{name}@{}", config.list)).map_err(|error| error.to_string())?;
    RedisList::of_route(&config.url, &config.list, listener, route.clone(), Encoding::Json, identity)
        .map_err(|error| error.to_string())
}

/// The way to each node of a chain.
pub(super) fn nodes(chain: &ChainConfig) -> Result<Vec<Rpc>, anyhow::Error> {
    let node = |url: &String| {
        let rpc = Rpc::http(url)?;
        Ok(match chain.calls_per_second {
            Some(most) => rpc.at_most(most),
            None => rpc,
        })
    };
    chain.urls.iter().map(node).collect()
}

/// What a chain's nodes show of the events that feed a route.
fn view(chain: &ChainConfig, feed: &Feed) -> Result<EvmSource, anyhow::Error> {
    let mut nodes = nodes(chain)?.into_iter();
    let first = nodes.next().ok_or_else(|| anyhow::anyhow!("a chain without a node"))?;
    let source = EvmSource::new(first, chain.chain_id, chain.finality.0, feed.watches.clone());
    Ok(nodes.fold(source, EvmSource::also))
}

impl RoutePlan {
    /// The origins whose events or blocks are its requests.
    pub(super) fn feeds(&self) -> impl Iterator<Item = &String> {
        self.feeds.keys()
    }

    /// Whether anything is read into it.
    pub(super) fn has_source(&self) -> bool {
        !(self.feeds.is_empty() && self.mempools.is_empty() && self.lists.is_empty()) || self.every.is_some()
    }

    /// Its name.
    pub(super) fn name(&self) -> &RouteName {
        &self.route
    }

    /// How it takes requests over the API.
    pub fn intake(&self) -> Intake {
        self.intake.clone()
    }

    /// What shows which of the route's requests a transaction asks for, of each chain.
    pub(super) fn witnesses(&self, chains: &BTreeMap<String, ChainConfig>) -> Vec<(String, EvmSource)> {
        let seen = |(origin, feed): (&String, &Feed)| Some((origin.clone(), view(chains.get(origin)?, feed).ok()?));
        self.feeds.iter().filter_map(seen).collect()
    }

    /// The view of a chain that feeds the route.
    fn source(&self, chain: &ChainConfig, feed: &Feed) -> Result<EvmSource, anyhow::Error> {
        let mut source = view(chain, feed)?;
        for url in &chain.websockets {
            source = source.live(url)?;
        }
        for every in &feed.ticks {
            source = source.ticking(self.route.clone(), *every);
        }
        Ok(source.quorum(chain.quorum)?)
    }

    /// Adds what feeds the route.
    pub(super) fn listen(
        &self,
        mut relay: Relay,
        name: &str,
        plan: &Plan,
        telemetry: &Telemetry,
    ) -> Result<Relay, anyhow::Error> {
        let chains = &plan.chains;
        for (origin, feed) in &self.feeds {
            let Some(chain) = chains.get(origin) else { continue };
            let defaults = FollowerOptions::default();
            let options = FollowerOptions {
                from_block: feed.from_block,
                range: chain.range,
                reorg_max: chain.reorg_max.unwrap_or(defaults.reorg_max),
                poll: chain.poll.0,
                seat_ms: plan.seat_ms,
                ..defaults
            };
            let source = Arc::new(self.source(chain, feed)?);
            let listener = listener(name, origin);
            relay = relay.follow(&listener, origin, source.clone(), &[name], options);
            if let Some(stats) = relay.followers().remove(&listener).map(|following| following.stats) {
                telemetry.watch_listener(WatchedListener { name: listener, chain: origin.clone(), source, stats });
            }
        }
        for (origin, to) in &self.mempools {
            let Some(chain) = chains.get(origin) else { continue };
            let node = nodes(chain)?.into_iter().next();
            let (Some(node), Some(url)) = (node, chain.websockets.first()) else { continue };
            let mempool = Mempool::new(node, url, self.route.clone(), to.clone())?;
            relay = relay.source(&format!("mempool of {origin} for {name}"), mempool);
        }
        for list in &self.lists {
            let source = list_of(list, name, &self.route, self.policy.identity.clone()).map_err(anyhow::Error::msg)?;
            relay = relay.source(&format!("list {} for {name}", list.list), source);
        }
        if let Some(EveryConfig { period, payload }) = self.every.clone() {
            let route = self.route.clone();
            relay = relay.every(name, period.0, move |tick| {
                let mut payload = payload.clone();
                payload.insert("tick".into(), tick.number.to_string().into());
                payload.insert("at_ms".into(), tick.at.0.to_string().into());
                let payload = Payload::json(serde_json::Value::Object(payload).to_string());
                roundtrip::listener::request(&route, payload)
            });
        }
        Ok(relay)
    }

    /// Finds out whether the nodes offer what the route needs.
    pub(super) async fn probe(
        &self,
        loaded: &Loaded,
        name: &str,
        chains: &BTreeMap<String, ChainConfig>,
        faults: &mut Vec<Fault>,
    ) {
        for (origin, feed) in &self.feeds {
            let Some(chain) = chains.get(origin) else { continue };
            match self.source(chain, feed) {
                Ok(source) => {
                    for trouble in source.probe(feed.from_block).await {
                        let text = format!("for route {name}: {trouble}");
                        faults.push(loaded.fault(&["chains", origin], text));
                    }
                }
                Err(error) => faults.push(loaded.fault(&["chains", origin], error.to_string())),
            }
        }
    }
}
