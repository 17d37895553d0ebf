//! The calls over one stream: everything that is said meanwhile goes in one message.
//!
//! ```text
//!   calls ──▶ line ──▶ program        the line connects, and connects again; it alone has the stream
//!   results ◀─┤
//!   jobs ◀────┤
//!   warnings ◀┘
//! ```
//!
//! Failure modes: when the stream breaks, calls without a result come to nothing and are made again
//! by whoever made them; calls that were not sent wait for the next stream. When the program
//! refuses for good (a bad token, no such route), every call says so.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use roundtrip_wire::v1::work_client::WorkClient;
use roundtrip_wire::v1::{self, FromWorker, Held, Open, ToWorker};
use serde_json::Value;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

use crate::client::{CallError, Failed, Job, Kept, Leased, Outcome, Settings, Verdict};
use crate::worker::{AGAIN_FIRST, AGAIN_MAX, Options};

/// How long the program may take to be reached.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How often the program must show that it is there.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
/// Most that is said in one message.
const SAYINGS_MAX: usize = 1024;

/// What is said to the program.
enum Saying {
    /// So many more jobs are wanted.
    Room(usize),
    /// About a job; whoever said it waits for the result.
    Job(About, oneshot::Sender<Kept>),
}

enum About {
    Extend(Held),
    Answer(v1::Answer),
    Fail(v1::Failure),
    Release(Held),
}

impl About {
    fn tag(&mut self, tag: u64) {
        let held = match self {
            About::Extend(held) | About::Release(held) => Some(held),
            About::Answer(answer) => answer.held.as_mut(),
            About::Fail(failure) => failure.held.as_mut(),
        };
        if let Some(held) = held {
            held.tag = tag;
        }
    }
}

/// A worker's end of the stream.
pub(crate) struct Stream {
    says: mpsc::UnboundedSender<Saying>,
    arrived: Mutex<Arrived>,
    warned: watch::Receiver<()>,
    refused: Arc<OnceLock<Refusal>>,
}

/// What came, and what is still to come.
struct Arrived {
    jobs: mpsc::UnboundedReceiver<Job>,
    /// How many were asked for and not taken from here.
    asked: usize,
}

/// Why nothing will ever come.
struct Refusal {
    status: u16,
    detail: String,
}

/// Tells a worker when it should look after what it has in hand.
pub(crate) struct Warnings(Option<watch::Receiver<()>>);

impl Warnings {
    /// Of a way that has none.
    pub(crate) fn never() -> Warnings {
        Warnings(None)
    }

    /// Waits for the next; for ever, if none will come.
    pub(crate) async fn next(&mut self) {
        let warned = match &mut self.0 {
            Some(warned) => warned.changed().await.is_ok(),
            None => false,
        };
        if !warned {
            std::future::pending::<()>().await;
        }
    }
}

impl Stream {
    /// Connects, in a task that ends with this.
    pub(crate) fn open(settings: Settings, options: &Options) -> Result<Stream, CallError> {
        let endpoint = endpoint(&settings.url).map_err(|error| refusal(422, &error.to_string()))?;
        let ((says, sayings), (arrive, jobs)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let ((warn, warned), refused) = (watch::channel(()), Arc::new(OnceLock::new()));
        let open = Open { route: options.route.clone(), worker: options.name.clone(), lease_ms: None };
        let (token, why) = (settings.token, refused.clone());
        tokio::spawn(Line { endpoint, token, open, sayings, arrive, warn, refused: why, owed: 0, next_tag: 0 }.run());
        Ok(Stream { says, arrived: Mutex::new(Arrived { jobs, asked: 0 }), warned, refused })
    }

    /// Takes up to so many requests; waits for the first.
    pub(crate) async fn lease(&self, max: usize) -> Result<Leased, CallError> {
        let mut arrived = self.arrived.lock().await;
        let more = max.saturating_sub(arrived.asked);
        if more > 0 {
            arrived.asked += more;
            self.say(Saying::Room(more))?;
        }
        let mut jobs = Vec::new();
        if arrived.jobs.recv_many(&mut jobs, max.max(1)).await == 0 {
            return Err(self.ended());
        }
        arrived.asked = arrived.asked.saturating_sub(jobs.len());
        Ok(Leased { jobs })
    }

    /// Gives back what came and was not taken.
    pub(crate) async fn give_back(&self) {
        let mut arrived = self.arrived.lock().await;
        while let Ok(job) = arrived.jobs.try_recv() {
            // Unheard, its lease runs out.
            let _unheard = self.release(&job).await;
        }
    }

    pub(crate) async fn extend(&self, job: &Job) -> Result<Kept, CallError> {
        self.about(About::Extend(held(job))).await
    }

    pub(crate) async fn answer(&self, job: &Job, response: &Value) -> Result<Kept, CallError> {
        let response = v1::Payload { encoding: v1::Encoding::Json.into(), bytes: response.to_string().into() };
        let answer = v1::Answer { held: Some(held(job)), response: Some(response), ..v1::Answer::default() };
        self.about(About::Answer(answer)).await
    }

    pub(crate) async fn fail(&self, job: &Job, failed: &Failed) -> Result<Kept, CallError> {
        let dead = failed.then == Verdict::Dead;
        let failure =
            v1::Failure { held: Some(held(job)), error: failed.error.clone(), dead, ..v1::Failure::default() };
        self.about(About::Fail(failure)).await
    }

    pub(crate) async fn release(&self, job: &Job) -> Result<Kept, CallError> {
        self.about(About::Release(held(job))).await
    }

    pub(crate) fn warnings(&self) -> Warnings {
        Warnings(Some(self.warned.clone()))
    }

    async fn about(&self, about: About) -> Result<Kept, CallError> {
        let (hear, heard) = oneshot::channel();
        self.say(Saying::Job(about, hear))?;
        heard.await.map_err(|_| self.ended())
    }

    fn say(&self, saying: Saying) -> Result<(), CallError> {
        self.says.send(saying).map_err(|_| self.ended())
    }

    /// Why there is no result.
    fn ended(&self) -> CallError {
        match self.refused.get() {
            Some(Refusal { status, detail }) => refusal(*status, detail),
            None => CallError::NoAnswer("the stream broke".to_owned()),
        }
    }
}

fn refusal(status: u16, detail: &str) -> CallError {
    CallError::Refused { status, detail: detail.to_owned() }
}

fn held(job: &Job) -> Held {
    Held { id: job.id.clone(), token: job.token.clone(), tag: 0 }
}

fn endpoint(url: &str) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(url.to_owned())?
        .connect_timeout(CONNECT_WITHIN)
        .http2_keep_alive_interval(ALIVE_EVERY)
        .keep_alive_timeout(ALIVE_EVERY)
        .keep_alive_while_idle(true)
        .http2_adaptive_window(true)
        .tcp_nodelay(true);
    if url.starts_with("https:") {
        return endpoint.tls_config(ClientTlsConfig::new().with_webpki_roots());
    }
    Ok(endpoint)
}

/// Whoever has the connection.
struct Line {
    endpoint: Endpoint,
    token: Option<String>,
    open: Open,
    sayings: mpsc::UnboundedReceiver<Saying>,
    arrive: mpsc::UnboundedSender<Job>,
    warn: watch::Sender<()>,
    refused: Arc<OnceLock<Refusal>>,
    /// How many jobs were asked for and have not come.
    owed: usize,
    next_tag: u64,
}

impl Line {
    /// Connects, again and again, until nobody wants anything or the program refuses for good.
    async fn run(mut self) {
        let mut again = AGAIN_FIRST;
        loop {
            let mut reached = false;
            let Err(status) = self.talk(&mut reached).await else { return };
            if let Some(refusal) = refused_for_good(&status) {
                // Nobody else sets it.
                let _set = self.refused.set(refusal);
                return;
            }
            again = if reached { AGAIN_FIRST } else { (again * 2).min(AGAIN_MAX) };
            tracing::warn!(code = ?status.code(), why = status.message(), "the stream broke, and is opened again");
            tokio::time::sleep(again).await;
        }
    }

    /// One stream, to its end. Those who wait for a result when it breaks hear that it broke.
    async fn talk(&mut self, reached: &mut bool) -> Result<(), Status> {
        let unreached = |error: tonic::transport::Error| Status::unavailable(error.to_string());
        let channel = self.endpoint.connect().await.map_err(unreached)?;
        // Bounded by what is in hand, since each job has one call under way at most.
        let (say, mut said) = mpsc::unbounded_channel();
        let room = u32::try_from(self.owed).unwrap_or(u32::MAX);
        let gone = |_| Status::unavailable("the program no longer listens");
        say.send(FromWorker { open: Some(self.open.clone()), room, ..FromWorker::default() }).map_err(gone)?;
        let outbound = futures_util::stream::poll_fn(move |context| said.poll_recv(context));
        let mut heard = self.client(channel).pull(self.request(outbound)?).await?.into_inner();
        let mut waiting: HashMap<u64, oneshot::Sender<Kept>> = HashMap::new();
        let mut sayings = Vec::new();
        loop {
            tokio::select! {
                count = self.sayings.recv_many(&mut sayings, SAYINGS_MAX) => {
                    if count == 0 {
                        return Ok(());
                    }
                    let message = self.message(sayings.drain(..), &mut waiting);
                    say.send(message).map_err(gone)?;
                }
                message = heard.message() => {
                    let message = message?.ok_or_else(|| Status::unavailable("the program is about to stop"))?;
                    *reached = true;
                    self.take(message, &mut waiting);
                }
            }
        }
    }

    fn client(&self, channel: Channel) -> WorkClient<Channel> {
        WorkClient::new(channel).max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX)
    }

    fn request<T>(&self, outbound: T) -> Result<Request<T>, Status> {
        let mut request = Request::new(outbound);
        if let Some(token) = &self.token {
            let value = format!("Bearer {token}").parse();
            let value = value.map_err(|_| Status::unauthenticated("the token has characters that no token has"))?;
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }

    /// All of this in one message.
    fn message(
        &mut self,
        sayings: impl Iterator<Item = Saying>,
        waiting: &mut HashMap<u64, oneshot::Sender<Kept>>,
    ) -> FromWorker {
        let mut message = FromWorker::default();
        for saying in sayings {
            match saying {
                Saying::Room(more) => {
                    self.owed += more;
                    message.room = message.room.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
                }
                Saying::Job(mut about, hear) => {
                    self.next_tag += 1;
                    waiting.insert(self.next_tag, hear);
                    about.tag(self.next_tag);
                    match about {
                        About::Extend(held) => message.extend.push(held),
                        About::Answer(answer) => message.answer.push(answer),
                        About::Fail(failure) => message.fail.push(failure),
                        About::Release(held) => message.release.push(held),
                    }
                }
            }
        }
        message
    }

    /// Passes on what the program says.
    fn take(&mut self, message: ToWorker, waiting: &mut HashMap<u64, oneshot::Sender<Kept>>) {
        // Whoever no longer listens need not know: of all three.
        for result in message.results {
            if let Some(hear) = waiting.remove(&result.held.as_ref().map_or(0, |held| held.tag)) {
                let _gone = hear.send(kept(result));
            }
        }
        self.owed = self.owed.saturating_sub(message.jobs.len());
        for job in message.jobs {
            let _gone = self.arrive.send(read(job));
        }
        if message.amended {
            let _gone = self.warn.send(());
        }
    }
}

/// Whether the same call will never succeed.
fn refused_for_good(status: &Status) -> Option<Refusal> {
    let code = match status.code() {
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound | Code::Unimplemented => 404,
        Code::FailedPrecondition => 409,
        Code::InvalidArgument => 422,
        _ => return None,
    };
    Some(Refusal { status: code, detail: status.message().to_owned() })
}

fn kept(result: v1::Result) -> Kept {
    let notices = result.notices().map(|notice| notice.as_str_name().trim_start_matches("NOTICE_").to_lowercase());
    Kept {
        notices: notices.collect(),
        result: match result.verdict() {
            v1::Verdict::Done => Outcome::Done,
            v1::Verdict::Lost => Outcome::Lost,
            v1::Verdict::Superseded => Outcome::Superseded,
            v1::Verdict::Unknown => Outcome::Unknown,
            v1::Verdict::Invalid => Outcome::Invalid,
            v1::Verdict::Full => Outcome::Full,
        },
        detail: Some(result.detail).filter(|detail| !detail.is_empty()),
    }
}

fn read(job: v1::Job) -> Job {
    let (held, payload) = (job.held.unwrap_or_default(), job.payload.unwrap_or_default());
    let json =
        (payload.encoding() == v1::Encoding::Json).then(|| serde_json::from_slice(&payload.bytes).ok()).flatten();
    let (encoding, payload) = match (payload.encoding(), json) {
        (v1::Encoding::Json, Some(value)) => ("json", value),
        (v1::Encoding::Json | v1::Encoding::Raw, _) => ("raw", Value::String(BASE64.encode(&payload.bytes))),
        (v1::Encoding::Cbor, _) => ("cbor", Value::String(BASE64.encode(&payload.bytes))),
        (v1::Encoding::Protobuf, _) => ("protobuf", Value::String(BASE64.encode(&payload.bytes))),
    };
    Job {
        id: held.id,
        token: held.token,
        until_ms: job.until_ms,
        attempt: u16::try_from(job.attempt).unwrap_or(u16::MAX),
        revision: u16::try_from(job.revision).unwrap_or(u16::MAX),
        encoding: encoding.to_owned(),
        payload,
        trace: job.trace,
    }
}
