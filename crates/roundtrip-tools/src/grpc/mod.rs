//! A gRPC service as a tool: any method with one answer, whose messages are known by their
//! descriptions alone.
//!
//! ```text
//!   input (JSON) ──▶ message ──▶ method, on the shard of the request's id ──▶ message ──▶ answer (JSON)
//!
//!   submit and poll:   poll ──▶ answer
//!                       │ ▲
//!            not known  │ └─── not ready: again after a while
//!                       ▼
//!                      submit   under the request's id: what is known already is fine
//! ```
//!
//! Every attempt polls first, and submits only what the service does not know. So an attempt after a time-out,
//! a restart of either side or a lost answer never submits twice, and needs to remember nothing.
//!
//! Failure modes: see the crate. A service that is away is waited for at no cost; one that came back without its
//! memory does not know the submission, and gets it again. An answer that is not ready when an attempt is all but over
//! costs none either: the request goes back, and another attempt polls on, for as long as the request lives. A
//! submission that takes too long costs an attempt, since the service may have broken over it.

mod codes;
mod descriptors;
mod dynamic;

use std::sync::OnceLock;
use std::time::Duration;

use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor};
use roundtrip::calling::cause;
use roundtrip::words::{Payload, RequestId};
use roundtrip_evm::mapping::Mapping;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

pub use self::codes::{Codes, code};
pub use self::descriptors::{MethodName, read as read_descriptors};
use self::dynamic::{DynamicCodec, json, message};
use crate::cache::Cache;
use crate::errand::{Errand, Meaning, Tool, ToolFuture, Trouble, in_time};
use crate::web::{AGENT, Dial, Web};

/// How long what a service said of itself is believed.
const REFLECTED_FOR: Duration = Duration::from_secs(600);
/// How long a service may take to say what it is.
const REFLECTED_WITHIN: Duration = Duration::from_secs(10);
/// How often the other side is asked whether it is still there while an answer is awaited.
const ALIVE_EVERY: Duration = Duration::from_secs(20);

/// How a service is called.
#[derive(Clone, Debug)]
pub struct GrpcOptions {
    /// Longest answer.
    pub answer_bytes_max: usize,
    /// What codes mean, where it is something else than usual.
    pub codes: Codes,
    /// How its answer is fetched, if the method only takes the work.
    pub poll: Option<Poll>,
}

impl Default for GrpcOptions {
    fn default() -> Self {
        GrpcOptions { answer_bytes_max: 4 << 20, codes: Codes::default(), poll: None }
    }
}

/// How the answer to what was submitted is fetched.
#[derive(Clone, Debug)]
pub struct Poll {
    /// By which method.
    pub method: MethodName,
    /// With what, made of what is known; the request's id is `/id`.
    pub request: Mapping,
    /// How often.
    pub every: Duration,
    /// Which field of its answer is the answer, as a path; while it is missing, it is not ready.
    /// All of it if empty. A field that is neither a message nor optional is missing only with what it is part of.
    pub answer: String,
    /// The codes by which it says that the answer is not ready.
    pub pending: Vec<Code>,
    /// The codes by which it says that nothing was submitted.
    pub unknown: Vec<Code>,
}

/// One address of a service; connected to when it is first called.
struct Shard {
    endpoint: Endpoint,
    dial: Dial,
    channel: OnceLock<Channel>,
}

impl Shard {
    fn channel(&self) -> Channel {
        self.channel.get_or_init(|| self.endpoint.connect_with_connector_lazy(self.dial.clone())).clone()
    }
}

/// A service.
pub struct GrpcTool {
    shards: Vec<Shard>,
    method: MethodName,
    descriptions: Option<DescriptorPool>,
    reflected: Cache<DescriptorPool>,
    options: GrpcOptions,
}

impl GrpcTool {
    /// A method of a service at these addresses, each of which has the requests of some ids.
    /// Without descriptions, the service is asked for them.
    pub fn new(
        web: &Web,
        urls: &[String],
        method: MethodName,
        descriptions: Option<DescriptorPool>,
        options: GrpcOptions,
    ) -> Result<GrpcTool, String> {
        let shards = urls.iter().map(|url| shard(web, url)).collect::<Result<Vec<_>, _>>()?;
        if shards.is_empty() {
            return Err("no address is named".to_owned());
        }
        if let Some(pool) = &descriptions {
            method.find(pool)?;
            options.poll.as_ref().map_or(Ok(()), |poll| poll.method.find(pool).map(|_| ()))?;
        }
        Ok(GrpcTool { shards, method, descriptions, reflected: Cache::new(REFLECTED_FOR), options })
    }

    /// What is wrong with it, as far as it can be found out without asking it to do anything.
    pub async fn probe(&self) -> Result<(), String> {
        for shard in &self.shards {
            let connected = shard.endpoint.connect_with_connector(shard.dial.clone()).await;
            connected.map_err(|error| format!("{} cannot be reached: {}", shard.endpoint.uri(), innermost(&error)))?;
        }
        let pool = self.pool(&self.shards[0].channel()).await.map_err(|trouble| trouble.text)?;
        self.method.find(&pool)?;
        self.options.poll.as_ref().map_or(Ok(()), |poll| poll.method.find(&pool).map(|_| ()))
    }

    async fn pool(&self, shard: &Channel) -> Result<DescriptorPool, Trouble> {
        if let Some(pool) = &self.descriptions {
            return Ok(pool.clone());
        }
        let polls = self.options.poll.as_ref().map(|poll| &poll.method);
        let methods: Vec<&MethodName> = std::iter::once(&self.method).chain(polls).collect();
        let read = async {
            let late = |_elapsed| Status::unavailable("it did not say in time what it is");
            tokio::time::timeout(REFLECTED_WITHIN, descriptors::reflect(shard.clone(), &methods)).await.map_err(late)?
        };
        let failed = |status: Status| match is_silence(&status) {
            true => silent(&status),
            false => Trouble::unavailable(format!("what the service is: {}", said(&status))),
        };
        self.reflected.get("", read).await.map_err(failed)
    }

    async fn call(&self, errand: &Errand) -> Result<Payload, Trouble> {
        let shard = &self.shards[shard_of(errand.id, self.shards.len())].channel();
        let pool = in_time(errand.read_until, self.pool(shard)).await?;
        // What the service says of itself may change with its next version.
        let find = |name: &MethodName| name.find(&pool).map_err(Trouble::unavailable);
        let method = find(&self.method)?;
        let asked = message(&method.input(), &errand.input)
            .map_err(|why| Trouble::fatal(format!("the input is not what the service takes: {why}")))?;
        let answer = match &self.options.poll {
            None => {
                self.unary(shard, &self.method, &method, asked, errand).await.map_err(|status| self.failed(&status))?
            }
            Some(poll) => self.submit_and_poll(shard, (&method, asked), (poll, &find(&poll.method)?), errand).await?,
        };
        Ok(Payload::json(answer.to_string()))
    }

    async fn submit_and_poll(
        &self,
        shard: &Channel,
        (submits, asked): (&MethodDescriptor, DynamicMessage),
        (poll, polls): (&Poll, &MethodDescriptor),
        errand: &Errand,
    ) -> Result<Value, Trouble> {
        let question =
            poll.request.fill(&|root: &str| errand.part(root)).and_then(|json| message(&polls.input(), &json));
        let question = question.map_err(|why| Trouble::fatal(format!("no poll can be made: {why}")))?;
        loop {
            let asking = self.unary(shard, &poll.method, polls, question.clone(), errand);
            match polled(errand.poll_until, asking).await? {
                Ok(answer) => {
                    if let Some(answer) = answer.pointer(&poll.answer) {
                        return Ok(answer.clone());
                    }
                }
                // Whatever became of it, a question can be asked again.
                Err(status) if is_silence(&status) => return Err(silent(&status)),
                Err(status) if poll.unknown.contains(&status.code()) => {
                    match self.unary(shard, &self.method, submits, asked.clone(), errand).await {
                        Ok(_taken) => {}
                        // Another attempt's submission arrived in between.
                        Err(status) if self.options.codes.meaning(status.code()) == Meaning::AlreadyDone => {}
                        Err(status) => return Err(self.failed(&status)),
                    }
                }
                Err(status) if poll.pending.contains(&status.code()) => {}
                Err(status) => return Err(self.failed(&status)),
            }
            let next = Instant::now() + poll.every;
            if errand.poll_until.is_some_and(|until| next >= until) {
                return Err(Trouble::pending(poll.every));
            }
            tokio::time::sleep_until(next).await;
        }
    }

    /// One call; its answer as JSON.
    async fn unary(
        &self,
        shard: &Channel,
        name: &MethodName,
        method: &MethodDescriptor,
        asked: DynamicMessage,
        errand: &Errand,
    ) -> Result<Value, Status> {
        let mut grpc = Grpc::new(shard.clone()).max_decoding_message_size(self.options.answer_bytes_max);
        grpc.ready().await.map_err(|error| Status::unavailable(cause(&error)))?;
        let mut request = Request::new(asked);
        let said = [
            ("roundtrip-request-id", Some(errand.id.to_string())),
            ("roundtrip-attempt-id", Some(errand.attempt.clone())),
            ("idempotency-key", Some(errand.key.clone())),
            ("traceparent", errand.trace.clone()),
        ];
        for (name, value) in said {
            // A trace that is no text of ASCII is nobody's trace.
            if let Some(value) = value.and_then(|value| AsciiMetadataValue::try_from(value).ok()) {
                request.metadata_mut().insert(name, value);
            }
        }
        let path = name.path().map_err(Status::internal)?;
        let answer = grpc.unary(request, path, DynamicCodec(method.output())).await?;
        json(&answer.into_inner()).map_err(Status::data_loss)
    }

    fn failed(&self, status: &Status) -> Trouble {
        match (is_silence(status), status.code()) {
            (true, Code::Unavailable) => return silent(status),
            // It may have been asked, and may have broken over it.
            (true, _) => return Trouble::retry(format!("the connection broke: {}", innermost(status))),
            (false, _) => {}
        }
        Trouble::new(self.options.codes.meaning(status.code()), format!("the service answered {}", said(status)))
    }
}

/// What a poll comes to, if it is answered while there is time. If not, a question can be asked again.
async fn polled<T>(until: Option<Instant>, asking: impl Future<Output = T>) -> Result<T, Trouble> {
    let Some(until) = until else { return Ok(asking.await) };
    timeout_at(until, asking).await.map_err(|_elapsed| Trouble::unavailable("a poll had no answer in time"))
}

/// Whether nobody answered: a status that no service said, but the way to it.
fn is_silence(status: &Status) -> bool {
    let first = std::error::Error::source(status);
    let mut causes = std::iter::successors(first, |error| error.source());
    causes.any(|error| error.is::<tonic::transport::Error>())
}

fn silent(status: &Status) -> Trouble {
    Trouble::unavailable(format!("it cannot be reached: {}", innermost(status)))
}

/// What an error comes from in the end: what is around it says no more, and not in words.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.last().map(ToString::to_string).unwrap_or_default()
}

/// A status as a person reads it.
fn said(status: &Status) -> String {
    /// Most characters of what a service says.
    const MESSAGE_CHARS_MAX: usize = 300;
    let message: String = status.message().chars().take(MESSAGE_CHARS_MAX).collect();
    let name = codes::name(status.code());
    if message.is_empty() { name.to_owned() } else { format!("{name}: {message}") }
}

/// Which of so many shards has a request: the same for ever, however ids are made.
fn shard_of(id: RequestId, shards: usize) -> usize {
    let hash = RequestId::of(&[b"shard", id.as_bytes()]);
    let number = hash.as_bytes().iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    usize::try_from(number % u64::try_from(shards.max(1)).unwrap_or(1)).unwrap_or_default()
}

/// Whether a service can be at this address, whoever is there.
pub fn check_url(web: &Web, url: &str) -> Result<(), String> {
    shard(web, url).map(|_| ())
}

fn shard(web: &Web, url: &str) -> Result<Shard, String> {
    let bad = |error: tonic::transport::Error| format!("{url:?}: {}", cause(&error));
    if !(url.starts_with("http://") || url.starts_with("https://")) {
        return Err(format!("{url:?} begins with neither http:// nor https://"));
    }
    let mut endpoint = Endpoint::from_shared(url.to_owned()).map_err(bad)?.user_agent(AGENT).map_err(bad)?;
    endpoint = endpoint.http2_keep_alive_interval(ALIVE_EVERY);
    if url.starts_with("https://") {
        let tls = match &web.tls().trusted {
            Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
            None => ClientTlsConfig::new().with_webpki_roots(),
        };
        let tls = match &web.tls().own {
            Some((chain, key)) => tls.identity(Identity::from_pem(chain, key)),
            None => tls,
        };
        endpoint = endpoint.tls_config(tls).map_err(bad)?;
    }
    Ok(Shard { endpoint, dial: web.dial(), channel: OnceLock::new() })
}

impl Tool for GrpcTool {
    fn ask<'a>(&'a self, errand: &'a Errand) -> ToolFuture<'a> {
        Box::pin(self.call(errand))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_request_stays_with_its_shard_and_shards_share_alike() {
        let mut shares = [0; 4];
        for n in 0..4_000_u32 {
            // Ids that differ in their last bytes only, as those of counters do.
            let mut id = [0; 32];
            id[28..].copy_from_slice(&n.to_be_bytes());
            shares[shard_of(RequestId(id), 4)] += 1;
        }
        assert!(shares.iter().all(|share| (900..1100).contains(share)), "{shares:?}");
        assert_eq!(
            [0, 1, 2, 3].map(|n| shard_of(RequestId([n; 32]), 4)),
            [0, 1, 2, 3].map(|n| shard_of(RequestId([n; 32]), 4))
        );
        assert_eq!(shard_of(RequestId([7; 32]), 1), 0);
    }

    #[test]
    fn a_method_is_a_service_and_its_method() {
        assert!(MethodName::read("kms.v1.Core/Decrypt").is_ok() && MethodName::read("/Core/Decrypt").is_ok());
        for bad in ["", "Decrypt", "/", "a/", "/b", "a/b/c"] {
            assert!(MethodName::read(bad).unwrap_err().contains("package.Service/Method"), "{bad}");
        }
    }
}
