//! What a configuration says. The comments here are the reference that users read:
//! `docs/configuration.md` and the JSON Schema are made of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use roundtrip_evm::SignerSource;
use roundtrip_evm::sender::{Outcome, SecretSource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::values::{FinalBlocks, Span};
use super::work::WorkConfig;

/// The whole file.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where everything is kept.
    pub store: StoreConfig,
    /// How long a process that died keeps what one process at a time may do, such as sending from a lane.
    #[serde(default = "seat")]
    pub seat: Span,
    /// Where people and workers reach the program.
    #[serde(default)]
    pub api: ApiConfig,
    /// What the program says while it runs.
    #[serde(default)]
    pub log: LogConfig,
    /// What shows how the program is doing.
    #[serde(default)]
    pub telemetry: TelemetryConfig,
    /// Chains, by a name of your choice.
    #[serde(default)]
    pub chains: BTreeMap<String, ChainConfig>,
    /// Accounts that send transactions, by a name of your choice. A lane serves one destination.
    #[serde(default)]
    pub lanes: BTreeMap<String, LaneConfig>,
    /// Where answers go, by a name of your choice.
    #[serde(default)]
    pub destinations: BTreeMap<String, DestinationConfig>,
    /// Routes: where requests come from, who works on them, where answers go.
    #[serde(default)]
    pub routes: BTreeMap<String, RouteConfig>,
}

fn seat() -> Span {
    Span::ms(roundtrip::sender::SenderOptions::default().seat_ms)
}

/// Where everything is kept.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// `sqlite:PATH` for one process, the path from the folder of this file; `postgres://HOST/DATABASE`, `redis://HOST` or
    /// `redis-cluster://HOST:PORT,HOST:PORT` for many. `memory:` forgets everything at the end.
    pub url: String,
    /// How many changes the journal holds, which timelines and the update stream read.
    #[serde(default = "journal_entries")]
    pub journal_entries: u64,
}

fn journal_entries() -> u64 {
    roundtrip::store::Options::default().journal_entries
}

/// Where people and workers reach the program.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApiConfig {
    /// The address and port of the HTTP API. Other addresses than those of this machine need `auth`.
    pub listen: SocketAddr,
    /// Who may call. Without it, everybody on this machine may do everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthConfig>,
    /// The certificate and key with which calls are encrypted; without them, they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Largest body of a call, in bytes.
    pub body_bytes_max: usize,
    /// Longest headers of a call, in bytes.
    pub header_bytes_max: usize,
    /// Most connections at a time; more wait.
    pub connections_max: usize,
    /// Most calls at a time; more are told to come again later.
    pub calls_max: usize,
    /// Most calls of one caller in a second, told apart by the names in their tokens; without it, as many as they like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_second: Option<std::num::NonZeroU32>,
    /// How long a call may wait for work or for an answer, at the most.
    pub wait_max: Span,
    /// How long a call waits for the store, at the most; then its caller is told that nobody knows what became of it,
    /// and may make the same call again.
    pub store_wait_max: Span,
}

impl Default for ApiConfig {
    fn default() -> Self {
        ApiConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            auth: None,
            tls: None,
            body_bytes_max: 4 << 20,
            header_bytes_max: 16 << 10,
            connections_max: 1024,
            calls_max: 1024,
            calls_per_second: None,
            wait_max: Span::ms(60_000),
            store_wait_max: Span::ms(30_000),
        }
    }
}

impl ApiConfig {
    /// Where a browser of this machine finds it.
    pub fn address(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let port = self.listen.port();
        match self.listen.ip() {
            ip if ip.is_unspecified() => format!("{scheme}://localhost:{port}"),
            _ => format!("{scheme}://{}", self.listen),
        }
    }
}

/// How calls are encrypted.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The file with the certificate and those that vouch for it, as PEM.
    pub certificate: PathBuf,
    /// The file with its key, as PEM.
    pub key: PathBuf,
}

/// Who may call: whoever brings a JSON Web Token that one of these keys signed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuthConfig {
    /// The secret that HS256 tokens are signed with, at least 32 bytes.
    #[serde(default)]
    pub secret: Option<SecretSource>,
    /// The public key that EdDSA tokens are checked with, as PEM.
    #[serde(default)]
    pub public_key: Option<SecretSource>,
}

impl Serialize for AuthConfig {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

/// What the program says while it runs.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// For people or for programs.
    pub format: LogFormat,
    /// How much: `error`, `warn`, `info`, `debug`, `trace`; or for each part, such as `info,roundtrip_evm=debug`. With
    /// `info,roundtrip::steps=debug` each step of each request is a line. What operators do is told at every level, unless it
    /// says `audit=off`.
    pub level: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { format: LogFormat::Human, level: "info".to_owned() }
    }
}

impl LogConfig {
    /// What the log shows. Clients of nodes show whole URLs, with the keys in them, unless they are kept quiet; what
    /// operators do is shown, unless that is named.
    pub fn filter(&self) -> String {
        const QUIET: [&str; 3] = ["alloy", "hyper", "reqwest"];
        let names = |parts: &[&str]| parts.iter().any(|part| self.level.contains(part));
        let quiet = "alloy_rpc_client=info,alloy_transport=info,alloy_transport_http=info,hyper=info,hyper_util=info,reqwest=info,";
        let quiet = if names(&QUIET) { "" } else { quiet };
        let audit = if names(&["audit"]) { "" } else { "audit=info," };
        format!("{quiet}{audit}{}", self.level)
    }

    /// What is no level, if anything is.
    pub fn misunderstood(&self) -> Option<&str> {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        let level = |part: &&str| {
            let level = part.rsplit_once('=').map_or(*part, |(_, level)| level).trim();
            !LEVELS.contains(&level.to_ascii_lowercase().as_str())
        };
        self.level.split(',').find(level)
    }
}

/// How lines of the log look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

/// What shows how the program is doing, besides `/metrics` of the API.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// An address and port where every process, also one without the API, serves `/metrics`, `/health`, `/ready`, and what
    /// `roundtrip doctor`, `top`, `routes list`, `lanes list`, `lanes show` and `listeners` ask, with `--url`; encrypted as the API is. Other addresses than those of this machine need `api.auth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Where spans of what this process does go; without it, none are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traces: Option<TracesConfig>,
}

/// OpenTelemetry: a request's way from its admission to its end, over all processes, is one trace: that of the `traceparent` that it was
/// submitted with, or one that is made of its id.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TracesConfig {
    /// Where a collector takes spans over HTTP (OTLP as protobuf), such as `http://localhost:4318/v1/traces`.
    pub endpoint: String,
    /// Headers of these calls, such as `authorization`; their values are secrets.
    #[serde(default)]
    pub headers: BTreeMap<String, SecretSource>,
    /// Which part of the traces that were not begun by whoever submitted is recorded, from 0 to 1.
    #[serde(default = "all")]
    pub ratio: f64,
}

impl Serialize for TracesConfig {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

fn all() -> f64 {
    1.0
}

/// A chain, and the nodes that show it.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChainConfig {
    /// The number of the chain. A node that is on another one is not used.
    pub chain_id: u64,
    /// Its nodes, over HTTP; the best is asked first.
    pub urls: Vec<String>,
    /// Where nodes tell of new blocks, over WebSockets. Without any, they are looked for by polling.
    #[serde(default)]
    pub websockets: Vec<String>,
    /// Which blocks no reorg can take away: `"finalized"`, `"safe"`, `"latest"`, or a number of blocks below the newest.
    #[serde(default = "finalized")]
    pub finality: FinalBlocks,
    /// How many nodes must show the same blocks and events before they are believed.
    #[serde(default = "one")]
    pub quorum: usize,
    /// How often to look for new blocks.
    #[serde(default = "chain_poll")]
    pub poll: Span,
    /// Most blocks in one read.
    #[serde(default = "range")]
    pub range: u64,
    /// The deepest reorg that is followed; a deeper one stops the listener until a person has looked.
    #[serde(default)]
    pub reorg_max: Option<u64>,
    /// Most calls to each node in a second.
    #[serde(default)]
    pub calls_per_second: Option<u32>,
    /// What it is paid in, for whoever reads balances.
    #[serde(default = "currency")]
    pub currency: String,
}

fn currency() -> String {
    "ETH".to_owned()
}

fn finalized() -> FinalBlocks {
    FinalBlocks(roundtrip_evm::Finality::Finalized)
}

fn one() -> usize {
    1
}

fn chain_poll() -> Span {
    Span(roundtrip::listener::FollowerOptions::default().poll)
}

fn range() -> u64 {
    roundtrip::listener::FollowerOptions::default().range
}

/// An account that sends transactions.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LaneConfig {
    /// Where its key is, or who signs for it.
    pub signer: SignerSource,
}

impl Serialize for LaneConfig {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

/// Where answers go: one of these.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DestinationConfig {
    /// To a contract, as transactions.
    #[serde(default)]
    pub transactions: Option<TransactionsConfig>,
    /// To a web server, as signed webhooks.
    #[serde(default)]
    pub webhook: Option<WebhookConfig>,
    /// Nowhere: they are kept here, for whoever asks over the API.
    #[serde(default)]
    pub keep: Option<KeepConfig>,
    /// To a list on a Redis server, for other programs.
    #[serde(default)]
    pub list: Option<ListSinkConfig>,
}

/// Answers as transactions.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TransactionsConfig {
    /// On which chain.
    pub chain: String,
    /// From which accounts; each belongs to this destination alone.
    pub lanes: Vec<String>,
    /// Which contract.
    pub contract: String,
    /// Which function, such as `respond(uint256 id, bytes answer)`. With `parcel_max` above 1, one that
    /// takes a list of answers, such as `respondMany((uint256, bytes)[] responses)`.
    pub function: String,
    /// Its arguments, by name or in order: texts that begin with `/request/` or `/response/` stand for that
    /// field, everything else for itself. Without it, the answer is the arguments.
    #[serde(default)]
    pub arguments: Option<Value>,
    /// How many answers go out in one transaction, at the most.
    #[serde(default = "one")]
    pub parcel_max: usize,
    /// How long a transaction that carries fewer waits for more of them.
    #[serde(default = "at_once")]
    pub parcel_wait: Span,
    /// How many transactions may be under way on each lane.
    #[serde(default = "window")]
    pub window: u32,
    /// Over all lanes as fast as they go, or strictly in order on the first lane.
    #[serde(default)]
    pub order: SendOrderConfig,
    /// How many blocks, its own counted, make a transaction what users call settled.
    #[serde(default = "confirmations")]
    pub confirmations: u64,
    /// After how long a transaction that is not mined is late.
    #[serde(default = "timeout")]
    pub timeout: Span,
    /// What is done about a late one.
    #[serde(default)]
    pub on_timeout: OnTimeoutConfig,
    /// After how long stored bytes that are not mined are sent again.
    #[serde(default = "resend")]
    pub resend: Span,
    /// How much gas a transaction may use; without it, what the node estimates and `gas_margin_percent` more.
    #[serde(default)]
    pub gas: Option<u64>,
    /// How much more gas than the node estimates.
    #[serde(default = "gas_margin")]
    pub gas_margin_percent: u64,
    /// The most that is paid for a unit of gas, in gwei.
    #[serde(default = "fee_cap")]
    pub fee_cap_gwei: f64,
    /// What is paid at least to whoever builds the block, in gwei.
    #[serde(default)]
    pub tip_min_gwei: f64,
    /// A balance below this, in gwei, is told in the log and by `doctor`. Without it, `doctor` tells of one
    /// that would not pay for a full window of transactions at the fee of now.
    #[serde(default)]
    pub balance_min_gwei: f64,
    /// What puts a lane into quarantine: it takes nothing new, and the others take the answers.
    #[serde(default)]
    pub quarantine_on: QuarantineConfig,
    /// For how long.
    #[serde(default = "quarantine")]
    pub quarantine: Span,
    /// What refusals of the contract mean, by selector (`0x1a2b3c4d`), error signature
    /// (`error AlreadyAnswered(uint256)`) or reason (`already answered`): `already_done`, `retry`, `fatal` or
    /// `lane_to_blame`. Others are fatal.
    #[serde(default)]
    pub outcomes: BTreeMap<String, Outcome>,
}

fn at_once() -> Span {
    Span::ms(0)
}

fn quarantine() -> Span {
    Span::ms(roundtrip::sender::SenderOptions::default().quarantine_ms)
}

fn window() -> u32 {
    roundtrip::sender::SenderOptions::default().window
}

fn confirmations() -> u64 {
    roundtrip_evm::EvmChainOptions::default().confirmations
}

fn timeout() -> Span {
    Span::ms(roundtrip::sender::SenderOptions::default().patience.bump_ms)
}

fn resend() -> Span {
    Span::ms(roundtrip::sender::SenderOptions::default().patience.resend_ms)
}

fn gas_margin() -> u64 {
    20
}

fn fee_cap() -> f64 {
    500.0
}

/// In which order answers go out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SendOrderConfig {
    /// Over all lanes, as fast as they go.
    #[default]
    Spread,
    /// On the first lane alone, in the order of admission.
    Strict,
}

/// What puts a lane into quarantine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QuarantineConfig {
    /// A refusal that `outcomes` blames on the lane.
    #[default]
    Blame,
    /// Every transaction that had no effect, also for lack of gas.
    NoEffect,
}

/// What is done about a transaction that is late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeoutConfig {
    /// It pays more.
    #[default]
    Bump,
    /// Its slot is filled with nothing, and its answers go out again on another.
    FillAndRequeue,
}

/// Answers as webhooks, signed as Standard Webhooks are.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    /// Where to.
    pub url: String,
    /// What they are signed with: `whsec_` and base64 of at least 24 bytes.
    pub secret: SecretSource,
    /// How long the receiver has to answer.
    #[serde(default = "webhook_timeout")]
    pub timeout: Span,
}

impl Serialize for WebhookConfig {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

fn webhook_timeout() -> Span {
    Span::ms(15_000)
}

/// Answers that are kept for whoever asks.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeepConfig {
    /// For how long, at least.
    pub at_least: Span,
}

/// Answers at the end of a list on a Redis server.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListSinkConfig {
    /// Which server.
    pub url: String,
    /// Which list; `{response/field}` stands for that field.
    pub list: String,
    /// What is added: a text in which `{response}`, `{id}` and so on stand for their values. Without it, the answer.
    #[serde(default)]
    pub value: Option<String>,
    /// At how many items the list is full, and answers wait; without it, never.
    #[serde(default)]
    pub capacity: u64,
}

/// A route.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Where its answers go: the name of a destination. Without one, an answer ends the request and is not kept.
    #[serde(default)]
    pub to: Option<String>,
    /// What its transactions have of their own, where the destination is a contract.
    #[serde(default)]
    pub sending: Option<SendingConfig>,
    /// Who works on its requests, if the program itself asks them. Without it, workers pull them over the API.
    #[serde(default)]
    pub work: Option<WorkConfig>,
    /// Events of a chain that are requests.
    #[serde(default)]
    pub events: Vec<EventConfig>,
    /// Events by which a chain shows that somebody else answered.
    #[serde(default)]
    pub answered_elsewhere: Vec<EventConfig>,
    /// Blocks of a chain that are requests.
    #[serde(default)]
    pub blocks: Vec<BlocksConfig>,
    /// Transactions in a node's mempool that are requests.
    #[serde(default)]
    pub mempool: Vec<MempoolConfig>,
    /// Lists on a Redis server whose items are requests.
    #[serde(default)]
    pub lists: Vec<ListSourceConfig>,
    /// A request at every tick of a timer.
    #[serde(default)]
    pub every: Option<EveryConfig>,
    /// Whether requests are taken over the API; without it, only if they come from nowhere else.
    #[serde(default)]
    pub submit: Option<bool>,
    /// A path of its own under which the API takes its requests besides, such as `/price`.
    #[serde(default)]
    pub submit_path: Option<String>,
    /// Whether parameters of the URL's query, or of a form, are taken as the fields of a JSON object under that path.
    #[serde(default)]
    pub forms: bool,
    /// What makes it the same request: `"given"`, `"content"`, or a list of fields of its payload, such as `["/args/id"]`.
    #[serde(default)]
    pub identity: IdentityConfig,
    /// When work may start: as soon as a request is `seen`, or when its chain calls it `final`.
    #[serde(default = "seen")]
    pub work_on: GateConfig,
    /// When an answer may go out.
    #[serde(default = "on_final")]
    pub publish_on: GateConfig,
    /// What becomes of a repeat of a request that has not ended.
    #[serde(default)]
    pub on_duplicate: DuplicateConfig,
    /// With `on_duplicate = "vote"`: how many must ask for the same.
    #[serde(default)]
    pub votes: Option<u32>,
    /// In which order requests are handed out.
    #[serde(default)]
    pub order: OrderConfig,
    /// With `order = "key"`: how many of one key may be with workers.
    #[serde(default = "per_key")]
    pub per_key: u16,
    /// For how long an ended request blocks a repeat: a length of time or `"forever"`; without it, not at all.
    #[serde(default)]
    pub horizon: Option<String>,
    /// How many requests may be live before the route takes no more.
    #[serde(default = "capacity")]
    pub capacity: u64,
    /// How long a worker has a request, unless it says otherwise.
    #[serde(default = "lease")]
    pub lease: Span,
    /// How many attempts fail before a request is a dead letter.
    #[serde(default = "attempts_max")]
    pub attempts_max: u16,
    /// How many workers may die or go silent with a request before it is a dead letter.
    #[serde(default = "crashes_max")]
    pub crashes_max: u16,
    /// How long a request waits that failed.
    #[serde(default)]
    pub backoff: BackoffConfig,
    /// How many are handed out in a period.
    #[serde(default)]
    pub rate: Option<RateConfig>,
    /// For how long settled requests can be looked up.
    #[serde(default = "keep_settled")]
    pub keep_settled: Span,
    /// For how long requests that failed or expired can be looked up.
    #[serde(default = "keep_failed")]
    pub keep_failed: Span,
    /// For how long a dead letter waits for a person.
    #[serde(default = "keep_dead")]
    pub keep_dead: Span,
}

/// What the transactions of one route have of their own; what is not said is as for the destination. They
/// share no transaction with answers of other routes.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SendingConfig {
    /// How many blocks, its own counted, make a transaction what users call settled.
    #[serde(default)]
    pub confirmations: Option<u64>,
    /// After how long a transaction that is not mined is late.
    #[serde(default)]
    pub timeout: Option<Span>,
    /// What is done about a late one.
    #[serde(default)]
    pub on_timeout: Option<OnTimeoutConfig>,
    /// What refusals of the contract mean.
    #[serde(default)]
    pub outcomes: Option<BTreeMap<String, Outcome>>,
    /// What is sent, as a response, in place of an answer that is refused for good; without it, such an answer is
    /// a dead letter.
    #[serde(default)]
    pub failure_response: Option<Value>,
}

fn seen() -> GateConfig {
    GateConfig::Seen
}

fn on_final() -> GateConfig {
    GateConfig::Final
}

fn per_key() -> u16 {
    1
}

fn policy() -> roundtrip::store::policy::RoutePolicy {
    roundtrip::store::policy::RoutePolicy::default()
}

fn capacity() -> u64 {
    policy().capacity
}

fn lease() -> Span {
    Span::ms(policy().lease_ms)
}

fn attempts_max() -> u16 {
    policy().attempts_max
}

fn crashes_max() -> u16 {
    policy().crashes_max
}

fn keep_settled() -> Span {
    Span::ms(policy().retention.settled_ms)
}

fn keep_failed() -> Span {
    Span::ms(policy().retention.failed_ms)
}

fn keep_dead() -> Span {
    Span::ms(policy().dead_ms)
}

/// What makes it the same request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged, expecting = "write \"given\", \"content\", or a list of fields such as [\"/args/id\"]")]
pub enum IdentityConfig {
    /// One of the words.
    Word(IdentityWord),
    /// These fields of its payload.
    Fields(Vec<String>),
}

impl Default for IdentityConfig {
    fn default() -> Self {
        IdentityConfig::Word(IdentityWord::Given)
    }
}

/// What makes it the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IdentityWord {
    /// The id that it comes with; an event's is that of this very log.
    Given,
    /// Its whole payload.
    Content,
}

/// Which standing opens the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GateConfig {
    /// As soon as it is seen.
    Seen,
    /// When its chain calls it final.
    Final,
}

/// What becomes of a repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DuplicateConfig {
    /// It joins the live request.
    #[default]
    Attach,
    /// It is remembered and changes nothing.
    Drop,
    /// It joins the live request, and a dead letter is worked on again.
    Rearm,
    /// It is a request of its own, after the live one.
    NewGeneration,
    /// It is a vote; work starts when there are enough.
    Vote,
}

/// In which order requests are handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OrderConfig {
    /// As they came in.
    #[default]
    Fifo,
    /// Higher priority first.
    Priority,
    /// As they came in; of those with the same key so many at a time.
    Key,
    /// The earliest deadline first.
    Deadline,
    /// In no order.
    Random,
}

/// How long a request waits that failed.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BackoffConfig {
    /// After the first attempt.
    pub first: Span,
    /// At most.
    pub max: Span,
    /// By how much the wait grows from one to the next: 200 doubles it.
    pub factor_percent: u16,
    /// Up to so much of it is left out, so that what failed together comes back apart.
    pub jitter_percent: u8,
}

impl Default for BackoffConfig {
    fn default() -> Self {
        let backoff = policy().backoff;
        BackoffConfig {
            first: Span::ms(backoff.first_ms),
            max: Span::ms(backoff.max_ms),
            factor_percent: backoff.factor_percent,
            jitter_percent: backoff.jitter_percent,
        }
    }
}

/// How many requests are handed out.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateConfig {
    /// How many.
    pub count: u32,
    /// In any period of this length.
    pub per: Span,
}

/// Events of a chain.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventConfig {
    /// Which chain.
    pub chain: String,
    /// Which event: its signature, such as `Asked(uint256 indexed id, bytes payload)`; with `abi`, its name.
    pub event: String,
    /// A file with the ABI, or an artifact of a compiler.
    #[serde(default)]
    pub abi: Option<PathBuf>,
    /// Of which contracts; without any, of all.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Only those whose indexed arguments have one of these values.
    #[serde(default)]
    pub only: BTreeMap<String, Vec<Value>>,
    /// The first block to read.
    #[serde(default)]
    pub from_block: u64,
    /// The argument, in seconds, after which an answer is of no use, by the time of the chain's blocks.
    #[serde(default)]
    pub deadline: Option<String>,
}

/// Blocks of a chain.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BlocksConfig {
    /// Which chain.
    pub chain: String,
    /// Every so many.
    pub every: std::num::NonZeroU64,
    /// The first block to read.
    #[serde(default)]
    pub from_block: u64,
}

/// Transactions in a mempool.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MempoolConfig {
    /// Of which chain; it must have a WebSocket.
    pub chain: String,
    /// To which contracts; without any, to all.
    #[serde(default)]
    pub to: Vec<String>,
}

/// A list on a Redis server.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListSourceConfig {
    /// Which server.
    pub url: String,
    /// Which list.
    pub list: String,
}

/// A timer.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EveryConfig {
    /// How long from tick to tick.
    pub period: Span,
    /// What each request says; the tick's number and time are added to it as `tick` and `at_ms`.
    #[serde(default)]
    pub payload: serde_json::Map<String, Value>,
}
