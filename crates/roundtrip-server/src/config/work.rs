//! What a configuration says of workers that the program calls.

use std::collections::BTreeMap;
use std::path::PathBuf;

use roundtrip_evm::sender::{Outcome, SecretSource};
use roundtrip_tools::Meaning;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::values::Span;

/// Who works on a route's requests, where the program itself asks them: one of `http`, `grpc`, `call` and `identity`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkConfig {
    /// A tool over HTTP: the request is posted to it, and what it answers is the answer.
    #[serde(default)]
    pub http: Option<HttpToolConfig>,
    /// A method of a gRPC service.
    #[serde(default)]
    pub grpc: Option<GrpcToolConfig>,
    /// A function of a contract, read by `eth_call`: what it returns is the answer.
    #[serde(default)]
    pub call: Option<ContractReadConfig>,
    /// Nobody: the input is the answer.
    #[serde(default)]
    pub identity: bool,
    /// What is read before, in this order; the tool is given what was found under these names.
    #[serde(default)]
    pub prepare: Vec<PrepareConfig>,
    /// What the tool is given: texts that begin with `/request/`, `/id` or `/` and the name of what was prepared stand for
    /// that, everything else for itself. Without it, the request; with `prepare`, an object of `id`, `request` and all that
    /// was prepared.
    #[serde(default)]
    pub input: Option<Value>,
    /// How many requests are worked on at a time, by each process.
    #[serde(default = "concurrency")]
    pub concurrency: usize,
    /// How long one attempt may take, with all that is read before; then it has failed.
    #[serde(default = "timeout")]
    pub timeout: Span,
    /// What is answered where a tool says that it did this before, and not what came of it. Without it, such a
    /// request ends as answered elsewhere, without an answer; or settled, where its route's answers go nowhere.
    #[serde(default)]
    pub already_done: Option<Value>,
    /// Internal addresses that may be called, such as `127.0.0.1` or `10.1.0.0/16`: without them, only those of
    /// the public internet are, whatever a name resolves to.
    #[serde(default)]
    pub internal: Vec<String>,
    /// Whom calls over TLS trust, and who they say that they are.
    #[serde(default)]
    pub tls: Option<CallTlsConfig>,
}

fn concurrency() -> usize {
    roundtrip::worker::WorkerOptions::default().concurrency
}

fn timeout() -> Span {
    Span::ms(60_000)
}

/// How calls are encrypted.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CallTlsConfig {
    /// The file with the certificates that are trusted, as PEM; without it, those of the web.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// The file with the certificate that is shown to whoever asks for one, as PEM.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// The file with its key, as PEM.
    #[serde(default)]
    pub key: Option<PathBuf>,
}

/// A tool over HTTP.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpToolConfig {
    /// Where it is called. `{request/args/tool}` stands for that field, `{NAME/url}` for what was prepared; at the very
    /// beginning a place stands for the beginning of a URL.
    pub url: String,
    /// What calls are signed with, as Standard Webhooks are: `whsec_` and base64 of at least 24 bytes. Without it, they are not.
    #[serde(default)]
    pub secret: Option<SecretSource>,
    /// Where it tells what it takes and answers, such as `https://tool.example/meta`: JSON with `input_schema` and
    /// `output_schema`, which its input and its answers are held against.
    #[serde(default)]
    pub meta: Option<String>,
    /// For how long what it tells there is believed.
    #[serde(default = "meta_ttl")]
    pub meta_ttl: Span,
    /// The same from what was prepared, such as a registry's entry: where in it, such as `/tool`.
    #[serde(default)]
    pub definition: Option<String>,
    /// Where it tells whether it is well, such as `https://tool.example/health`: it is given work only while that
    /// answers with 2xx.
    #[serde(default)]
    pub health: Option<String>,
    /// How often that is asked.
    #[serde(default = "health_every")]
    pub health_every: Span,
    /// Longest answer, in bytes.
    #[serde(default = "http_answer")]
    pub answer_bytes_max: usize,
    /// What statuses mean, such as `{ 404 = "retry" }`: `already_done`, `retry` (costs an attempt), `unavailable` (costs none)
    /// or `fatal`. Others: 2xx an answer, 409 already done, 429, 502, 503 and 504 unavailable, other 4xx fatal, all else retry.
    #[serde(default)]
    pub outcomes: BTreeMap<String, Meaning>,
}

impl Serialize for HttpToolConfig {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

fn meta_ttl() -> Span {
    Span::ms(300_000)
}

fn health_every() -> Span {
    Span::ms(5_000)
}

fn http_answer() -> usize {
    roundtrip_tools::http::HttpOptions::default().answer_bytes_max
}

/// A method of a gRPC service.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrpcToolConfig {
    /// Where it is; with several addresses, each has the requests of some ids, always the same.
    pub urls: Vec<String>,
    /// Which method, as `package.Service/Method`. With `poll`, the one that takes the work.
    pub method: String,
    /// The file that describes its messages, as `protoc --include_imports --descriptor_set_out` writes it; without it,
    /// the service is asked by reflection.
    #[serde(default)]
    pub descriptors: Option<PathBuf>,
    /// How the answer is fetched, where `method` only takes the work.
    #[serde(default)]
    pub poll: Option<PollConfig>,
    /// Longest answer, in bytes.
    #[serde(default = "grpc_answer")]
    pub answer_bytes_max: usize,
    /// What codes mean, such as `{ NOT_FOUND = "retry" }`: `already_done`, `retry` (costs an attempt), `unavailable` (costs none) or
    /// `fatal`. Others: `ALREADY_EXISTS` already done, `UNAVAILABLE` and `RESOURCE_EXHAUSTED` unavailable, what is wrong
    /// with the call fatal, all else retry.
    #[serde(default)]
    pub outcomes: BTreeMap<String, Meaning>,
}

fn grpc_answer() -> usize {
    roundtrip_tools::grpc::GrpcOptions::default().answer_bytes_max
}

/// How an answer is fetched. Every attempt polls first, and submits only what the service does not know.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PollConfig {
    /// By which method.
    pub method: String,
    /// With what: as `input`, such as `{ request_id = "/id" }`.
    pub request: Value,
    /// How often.
    #[serde(default = "poll_every")]
    pub every: Span,
    /// Which field of its answer is the answer, such as `/result`; while it is missing, it is not ready. Without it, all of it.
    #[serde(default)]
    pub answer: String,
    /// The codes by which the service says that it is not ready.
    #[serde(default = "pending")]
    pub pending: Vec<String>,
    /// The codes by which the service says that nothing was submitted.
    #[serde(default = "unknown")]
    pub unknown: Vec<String>,
}

fn poll_every() -> Span {
    Span::ms(500)
}

fn pending() -> Vec<String> {
    vec!["UNAVAILABLE".to_owned()]
}

fn unknown() -> Vec<String> {
    vec!["NOT_FOUND".to_owned()]
}

/// A function of a contract that is read.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContractReadConfig {
    /// On which chain.
    pub chain: String,
    /// Which contract.
    pub contract: String,
    /// Which function, with what it returns, such as `priceOf(uint256 id) returns (uint256 price)`.
    pub function: String,
    /// Its arguments, by name or in order: as `input`. Without it, the request is the arguments.
    #[serde(default)]
    pub arguments: Option<Value>,
    /// On which block it is read.
    #[serde(default)]
    pub block: ReadBlock,
    /// What refusals of the contract mean, by selector (`0x1a2b3c4d`), error signature or reason: `already_done`, `retry` or
    /// `fatal`. Others are fatal.
    #[serde(default)]
    pub outcomes: BTreeMap<String, Outcome>,
}

/// On which block a contract is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadBlock {
    /// On the newest.
    #[default]
    Latest,
    /// On the newest that the chain calls final.
    Final,
}

/// A read before the work: one of `get` and `call`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrepareConfig {
    /// Under which name what it finds is known.
    pub name: String,
    /// JSON at a URL, such as `https://registry.example/tools/{request/args/tool}`.
    #[serde(default)]
    pub get: Option<String>,
    /// What a function of a contract returns.
    #[serde(default)]
    pub call: Option<ContractReadConfig>,
    /// For how long what it found is believed; without it, it is read for every attempt.
    #[serde(default = "not_kept")]
    pub ttl: Span,
    /// What it means that it fails: `retry` (costs an attempt), `unavailable` (costs none) or `fatal`. Without it, as the status says:
    /// what is not there is fatal, what cannot be reached unavailable.
    #[serde(default)]
    pub failure: Option<Meaning>,
}

fn not_kept() -> Span {
    Span::ms(0)
}
