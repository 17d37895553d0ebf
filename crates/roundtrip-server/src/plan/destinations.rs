//! Destinations: where answers go, and how.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use anyhow::Context;
use roundtrip::clock::Clock;
use roundtrip::outbox::{BadEndpoint, CourierOptions, Endpoint, RedisListSink, WebhookOptions, WebhookSink};
use roundtrip::relay::Relay;
use roundtrip::sender::{FailureResponse, OnTimeout, Patience, QuarantineOn, RouteTerms, SendOrder, SenderOptions};
use roundtrip::store::Store;
use roundtrip::store::projection::Template;
use roundtrip::words::{Destination, HolderName, LaneName, ParseError, Payload, RouteName};
use roundtrip_evm::sender::LaneSigner;
use roundtrip_evm::{ContractCall, EvmChain, EvmChainOptions, EvmRoute, Gas, Outcome, Outcomes, SignerSource};

use super::routes::{address, nodes};
use super::{Findings, Plan};
use crate::config::{
    ChainConfig, Config, DestinationConfig, KeepConfig, ListSinkConfig, OnTimeoutConfig, QuarantineConfig,
    SendOrderConfig, Span, TransactionsConfig, WebhookConfig,
};
use crate::run::read_secret;
use crate::shelf::Shelf;
use crate::telemetry::{Observed, Telemetry, WatchedChain};

const WEI_IN_GWEI: f64 = 1e9;

/// How answers for a destination are delivered.
#[derive(Debug)]
pub enum Delivery {
    /// As transactions.
    Transactions(Box<Transactions>),
    /// As webhooks.
    Webhook(WebhookConfig),
    /// Not at all: they are kept for whoever asks.
    Keep(KeepConfig),
    /// To a list.
    List(ListSinkConfig),
}

impl Delivery {
    /// How, in one word of the configuration.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Delivery::Transactions(_) => "transactions",
            Delivery::Webhook(_) => "webhook",
            Delivery::Keep(_) => "keep",
            Delivery::List(_) => "list",
        }
    }
}

/// Answers as transactions.
#[derive(Debug)]
pub struct Transactions {
    chain: String,
    /// What is called.
    pub call: ContractCall,
    options: EvmChainOptions,
    send: SenderOptions,
    outcomes: Outcomes,
    apart: Vec<(RouteName, EvmRoute)>,
    lanes: Vec<(String, SignerSource)>,
}

/// What whoever delivers works with.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) plan: &'a Plan,
    pub(super) store: &'a Arc<dyn Store>,
    pub(super) clock: &'a Arc<dyn Clock>,
    pub(super) telemetry: &'a Telemetry,
}

/// Reads every destination; those that make no sense are left out, with faults.
pub(super) fn plan(findings: &mut Findings<'_>) -> BTreeMap<String, Delivery> {
    let mut planned = BTreeMap::new();
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    for (name, config) in findings.loaded.config.destinations.iter() {
        let named = findings.ok(&["destinations", name], Destination::new(name)).is_some();
        let DestinationConfig { transactions: to, webhook, keep, list } = config;
        // Each is judged, whatever the name is and how many there are.
        let ways = [
            to.as_ref().map(|to| {
                transactions(findings, name, to, &mut owners).map(|found| Delivery::Transactions(Box::new(found)))
            }),
            webhook.as_ref().map(|webhook| {
                let url = findings.ok(&["destinations", name, "webhook", "url"], callable(name, webhook));
                url.map(|()| Delivery::Webhook(webhook.clone()))
            }),
            keep.as_ref().map(|keep| Some(Delivery::Keep(keep.clone()))),
            list.as_ref().map(|list| check_list(findings, name, list).map(|()| Delivery::List(list.clone()))),
        ];
        let mut ways: Vec<Option<Delivery>> = ways.into_iter().flatten().collect();
        if ways.len() != 1 {
            findings
                .add(&["destinations", name], "a destination is one of `transactions`, `webhook`, `keep` and `list`");
            continue;
        }
        let delivery = ways.pop().flatten().filter(|_| named);
        planned.extend(delivery.map(|delivery| (name.clone(), delivery)));
    }
    planned
}

fn transactions(
    findings: &mut Findings<'_>,
    name: &str,
    config: &TransactionsConfig,
    owners: &mut BTreeMap<String, String>,
) -> Option<Transactions> {
    let at = |key: &'static str| ["destinations", name, "transactions", key];
    let chain = findings.chain(&at("chain"), &config.chain);
    let lanes = lanes(findings, name, config, owners);
    let contract = findings.ok(&at("contract"), address(&config.contract));
    // A function is judged wherever it is called.
    let called = match config.parcel_max {
        0 | 1 => ContractCall::one(contract.unwrap_or_default(), &config.function),
        _ => ContractCall::many(contract.unwrap_or_default(), &config.function),
    };
    let call = findings.ok(&at("function"), called).and_then(|call| match &config.arguments {
        Some(arguments) => findings.ok(&at("arguments"), call.with_arguments(arguments)),
        None => Some(call),
    });
    let call = contract.and(call);
    let outcomes = outcomes(findings, &at("outcomes"), &config.outcomes);
    let apart = routes_apart(findings, name);
    let [fee_cap, tip_min, balance_min] = [
        ("fee_cap_gwei", config.fee_cap_gwei),
        ("tip_min_gwei", config.tip_min_gwei),
        ("balance_min_gwei", config.balance_min_gwei),
    ]
    .map(|(key, gwei)| findings.ok(&at(key), wei(gwei)));
    let defaults = EvmChainOptions::default();
    let options = EvmChainOptions {
        finality: chain.as_ref()?.finality.0,
        confirmations: config.confirmations,
        gas: match config.gas {
            Some(gas) => Gas::Fixed(gas),
            None => Gas::Estimated { margin_percent: config.gas_margin_percent },
        },
        fee_cap: fee_cap?,
        tip_min: tip_min?.max(defaults.tip_min),
        balance_min: balance_min?,
        ..defaults
    };
    let send = SenderOptions {
        order: match config.order {
            SendOrderConfig::Spread => SendOrder::Spread,
            SendOrderConfig::Strict => SendOrder::Strict,
        },
        window: config.window,
        parcel_max: config.parcel_max.max(1),
        parcel_wait: config.parcel_wait.0,
        patience: Patience { resend_ms: config.resend.as_ms(), bump_ms: config.timeout.as_ms() },
        on_timeout: on_timeout(config.on_timeout),
        routes: apart.iter().map(|(route, _, terms)| (route.clone(), terms.clone())).collect(),
        quarantine_on: match config.quarantine_on {
            QuarantineConfig::Blame => QuarantineOn::Blame,
            QuarantineConfig::NoEffect => QuarantineOn::NoEffect,
        },
        quarantine_ms: config.quarantine.as_ms(),
        poll: chain.as_ref()?.poll.0,
        ..SenderOptions::default()
    };
    let apart = apart.into_iter().map(|(route, chain, _)| (route, chain)).collect();
    Some(Transactions { chain: config.chain.clone(), call: call?, options, send, outcomes, apart, lanes })
}

fn on_timeout(config: OnTimeoutConfig) -> OnTimeout {
    match config {
        OnTimeoutConfig::Bump => OnTimeout::Bump,
        OnTimeoutConfig::FillAndRequeue => OnTimeout::FillAndRequeue,
    }
}

/// What refusals mean.
fn outcomes(findings: &mut Findings<'_>, path: &[&str], config: &BTreeMap<String, Outcome>) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for (refusal, outcome) in config {
        let read = outcomes.clone().on(refusal, *outcome);
        outcomes = findings.ok(&[path, &[refusal.as_str()]].concat(), read).unwrap_or(outcomes);
    }
    outcomes
}

/// What the routes of a destination have of their own.
fn routes_apart(findings: &mut Findings<'_>, destination: &str) -> Vec<(RouteName, EvmRoute, RouteTerms)> {
    let mut apart = Vec::new();
    for (name, route) in &findings.loaded.config.routes {
        let (Some(config), true) = (&route.sending, route.to.as_deref() == Some(destination)) else { continue };
        // A name that is none is told where the route is read.
        let Ok(route) = RouteName::new(name) else { continue };
        let own = config.outcomes.as_ref();
        let outcomes = own.map(|own| outcomes(findings, &["routes", name, "sending", "outcomes"], own));
        let failure = config.failure_response.as_ref();
        let terms = RouteTerms {
            bump_ms: config.timeout.map(Span::as_ms),
            on_timeout: config.on_timeout.map(on_timeout),
            failure: failure.map(|response| FailureResponse::fixed(Payload::json(response.to_string()))),
        };
        apart.push((route, EvmRoute { confirmations: config.confirmations, outcomes }, terms));
    }
    apart
}

/// The accounts of a destination; each belongs to one alone.
fn lanes(
    findings: &mut Findings<'_>,
    name: &str,
    config: &TransactionsConfig,
    owners: &mut BTreeMap<String, String>,
) -> Vec<(String, SignerSource)> {
    let path = ["destinations", name, "transactions", "lanes"];
    if config.lanes.is_empty() {
        findings.add(&path, "no lane is named: transactions need an account");
    }
    let mut found = Vec::new();
    for (n, lane) in config.lanes.iter().enumerate() {
        let at = n.to_string();
        let path = [&path[..], &[at.as_str()]].concat();
        if let Some(owner) = owners.insert(lane.clone(), name.to_owned()) {
            findings.add(&path, format!("lane {lane:?} serves {owner:?} already: a lane serves one destination"));
        }
        match findings.loaded.config.lanes.get(lane) {
            Some(config) => {
                findings.ok(&["lanes", lane], LaneName::new(lane));
                found.push((lane.clone(), config.signer.clone()));
            }
            None => {
                let why = format!("no lane is called {lane:?}: add [lanes.{lane}] with its signer");
                findings.missing(&path, ["lanes", lane], why);
            }
        }
    }
    found
}

/// Whether something is sent from a lane.
pub(super) fn uses(config: &Config, lane: &str) -> bool {
    let mut sent = config.destinations.values().filter_map(|destination| destination.transactions.as_ref());
    sent.any(|to| to.lanes.iter().any(|named| named == lane))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is checked to be in range")]
fn wei(gwei: f64) -> Result<u128, String> {
    let wei = gwei * WEI_IN_GWEI;
    if wei.is_finite() && (0.0..1e30).contains(&wei) {
        Ok(wei as u128)
    } else {
        Err(format!("{gwei} is no amount of gwei"))
    }
}

/// Whether answers can be added to a list; its server, its name and what is added are judged each by itself.
fn check_list(findings: &mut Findings<'_>, name: &str, config: &ListSinkConfig) -> Option<()> {
    let fitting =
        ListSinkConfig { url: "redis://127.0.0.1".to_owned(), list: "list".to_owned(), value: None, capacity: 0 };
    let each = [
        ("url", ListSinkConfig { url: config.url.clone(), ..fitting.clone() }),
        ("list", ListSinkConfig { list: config.list.clone(), ..fitting.clone() }),
        ("value", ListSinkConfig { value: config.value.clone(), ..fitting }),
    ];
    let judged = each.map(|(key, alone)| findings.ok(&["destinations", name, "list", key], list_of(&alone)));
    judged.iter().all(Option::is_some).then_some(())
}

fn list_of(config: &ListSinkConfig) -> Result<RedisListSink, String> {
    let template = |text: &str| Template::new(text).map_err(|error| error.to_string());
    let mut sink = RedisListSink::new(&config.url, template(&config.list)?).map_err(|error| error.to_string())?;
    if let Some(value) = &config.value {
        sink = sink.value(template(value)?).map_err(|error| error.to_string())?;
    }
    Ok(if config.capacity > 0 { sink.capacity(config.capacity) } else { sink })
}

async fn webhook_of(name: &str, config: &WebhookConfig, clock: Arc<dyn Clock>) -> Result<WebhookSink, anyhow::Error> {
    let endpoint = Arc::new(endpoint_of(name, config).await?);
    let options = WebhookOptions { timeout: config.timeout.0, ..WebhookOptions::default() };
    Ok(WebhookSink::new(Arc::new(move |_| Some(endpoint.clone())), clock, options)?)
}

async fn endpoint_of(name: &str, config: &WebhookConfig) -> anyhow::Result<Endpoint> {
    Ok(Endpoint::new(name, &config.url, read_secret(&config.secret).await?.reveal())?)
}

/// Whether a webhook's URL can be called, whatever its secret is.
fn callable(name: &str, config: &WebhookConfig) -> Result<(), BadEndpoint> {
    match Endpoint::new(name, &config.url, "") {
        Err(bad @ BadEndpoint::Url { .. }) => Err(bad),
        Err(BadEndpoint::Secret { .. }) | Ok(_) => Ok(()),
    }
}

/// What is wrong with a webhook's secret, whatever its URL is.
pub(super) async fn wrong_with_secret(name: &str, config: &WebhookConfig) -> Option<anyhow::Error> {
    let wrong = endpoint_of(name, config).await.err()?;
    Some(wrong).filter(|wrong| !matches!(wrong.downcast_ref(), Some(BadEndpoint::Url { .. })))
}

/// A name that no other process has, and no other start of this one.
fn own_name(name: &str) -> Result<HolderName, ParseError> {
    let start = std::hash::RandomState::new().build_hasher().finish();
    HolderName::new(&format!("shelf-{name}-{start:016x}"))
}

impl Transactions {
    /// On which chain.
    pub(crate) fn chain_name(&self) -> &str {
        &self.chain
    }

    /// The lanes, and who signs for each.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = (&String, &SignerSource)> {
        self.lanes.iter().map(|(lane, signer)| (lane, signer))
    }

    /// A balance below this, in wei, is told, if the configuration says one.
    pub(crate) fn balance_min(&self) -> Option<u128> {
        Some(self.options.balance_min).filter(|least| *least > 0)
    }

    /// How many transactions may be under way on each lane.
    pub(crate) fn window(&self) -> u32 {
        self.send.window
    }

    /// How much gas a transaction may use, if the configuration says it.
    pub(crate) fn gas(&self) -> Option<u64> {
        match self.options.gas {
            Gas::Fixed(gas) => Some(gas),
            Gas::Estimated { .. } => None,
        }
    }

    /// What a unit of gas may cost at the most, in wei.
    pub(crate) fn fee_cap(&self) -> u128 {
        self.options.fee_cap
    }

    fn chain(&self, chain: &ChainConfig, signers: BTreeMap<LaneName, LaneSigner>) -> Result<EvmChain, anyhow::Error> {
        let mut nodes = nodes(chain)?.into_iter();
        let first = nodes.next().ok_or_else(|| anyhow::anyhow!("a chain without a node"))?;
        let mut view = EvmChain::new(first, chain.chain_id, self.call.clone(), signers, self.options);
        for node in nodes {
            view = view.also(node);
        }
        for (route, terms) in self.apart.iter().cloned() {
            view = view.route(route, terms);
        }
        for (lane, _) in self.lanes.iter().filter(|(_, signer)| signer.is_lost()) {
            view = view.lost(LaneName::new(lane)?);
        }
        Ok(view.outcomes(self.outcomes.clone()))
    }
}

impl Delivery {
    /// The lanes that answers go out on; none if they need no lane.
    pub(super) fn lanes(&self) -> &[(String, SignerSource)] {
        match self {
            Delivery::Transactions(to) => &to.lanes,
            Delivery::Webhook(_) | Delivery::Keep(_) | Delivery::List(_) => &[],
        }
    }

    /// Adds who delivers.
    pub(super) async fn send(
        &self,
        relay: Relay,
        name: &str,
        surroundings: Surroundings<'_>,
    ) -> Result<Relay, anyhow::Error> {
        let Surroundings { plan, store, clock, telemetry } = surroundings;
        let courier = CourierOptions { seat_ms: plan.seat_ms, ..CourierOptions::default() };
        Ok(match self {
            Delivery::Transactions(to) => {
                let Some(chain) = plan.chains.get(&to.chain) else { return Ok(relay) };
                let mut signers = BTreeMap::new();
                for (lane, source) in &to.lanes {
                    let signer = source.open().await.with_context(|| format!("lane {lane} cannot sign"))?;
                    signers.insert(LaneName::new(lane)?, signer);
                }
                let lanes: Vec<&str> = to.lanes.iter().map(|(lane, _)| lane.as_str()).collect();
                let options = SenderOptions { seat_ms: plan.seat_ms, ..to.send.clone() };
                let view = Arc::new(to.chain(chain, signers)?);
                let (chain, destination) = (to.chain.clone(), name.to_owned());
                let watched = lanes.iter().map(|lane| LaneName::new(lane)).collect::<Result<_, _>>()?;
                let relay = relay.lanes(name, view.clone(), &lanes, options);
                let stats = relay.senders().remove(name).unwrap_or_default();
                telemetry.watch_chain(WatchedChain { destination, chain, view, lanes: watched, stats });
                relay
            }
            Delivery::Webhook(config) => {
                let sink = webhook_of(name, config, clock.clone()).await?;
                relay.sink_with(name, Observed::new(sink, name, telemetry), courier)
            }
            Delivery::Keep(config) => {
                let destination = Destination::new(name)?;
                let shelf = Shelf {
                    store: store.clone(),
                    destination,
                    holder: own_name(name)?,
                    at_least: config.at_least.0,
                    seat_ms: plan.seat_ms,
                    traces: telemetry.traces(),
                };
                relay.station(&format!("shelf of {name}"), move |shutdown| shelf.run(shutdown))
            }
            Delivery::List(config) => {
                let sink = list_of(config).map_err(anyhow::Error::msg)?;
                relay.sink_with(name, Observed::new(sink, name, telemetry), courier)
            }
        })
    }
}
