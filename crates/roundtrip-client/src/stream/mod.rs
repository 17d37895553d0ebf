//! The calls over one stream: everything that is said meanwhile goes in one message.
//!
//! ```text
//!   calls ──▶ line ──▶ program        the line connects, and connects again; it alone has the stream
//!   results ◀─┤
//!   jobs ◀────┤                       and it alone asks for them: as many as there are hands for
//!   warnings ◀┘
//! ```
//!
//! Failure modes: when the stream breaks, calls without a result come to nothing and are made again
//! by whoever made them; calls that were not sent wait for the next stream. When the program
//! refuses for good (a bad token, no such route), every call says so.

mod hands;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use roundtrip_wire::v1::work_client::WorkClient;
use roundtrip_wire::v1::{self, FromWorker, Held, Open, ToWorker};
use serde_json::Value;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

use self::hands::Hands;
use crate::client::{CallError, Failed, Job, Kept, Outcome, Settings, Verdict, with_causes};
use crate::worker::{AGAIN_FIRST, AGAIN_MAX, Options};

/// How long the program may take to be reached.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How often the program must show that it is there.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
/// Most that is taken together.
const SAYINGS_MAX: usize = 1024;
/// Largest message, if there is more than one thing in it: well below what a program takes.
const LETTER_BYTES_MAX: usize = 256 << 10;
/// What is said of a job takes beside its payload, about.
const SAYING_BYTES: usize = 128;

/// What is said to the line.
enum Saying {
    /// About a job, to the program; whoever said it waits for the result.
    Job(About, oneshot::Sender<Kept>),
    /// The work on a job has ended, and what came of it is not recorded yet.
    Ended,
    /// A job is over; whether it was still worked on.
    Over { running: bool },
    /// No more jobs are wanted.
    Stop,
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

    fn bytes(&self) -> usize {
        let more = match self {
            About::Extend(_) | About::Release(_) => 0,
            About::Answer(answer) => answer.response.as_ref().map_or(0, |response| response.bytes.len()),
            About::Fail(failure) => failure.error.len(),
        };
        SAYING_BYTES + more
    }
}

/// A worker's end of the stream.
pub(crate) struct Stream {
    says: mpsc::UnboundedSender<Saying>,
    arrived: Mutex<mpsc::UnboundedReceiver<Vec<Arrival>>>,
    refused: Arc<OnceLock<Refusal>>,
}

/// A job that came, and its place in the worker's hands.
pub(crate) struct Arrival {
    pub(crate) job: Job,
    pub(crate) place: Place,
}

/// A job's place in a worker's hands, which is free again when this goes.
pub(crate) struct Place {
    says: mpsc::UnboundedSender<Saying>,
    warned: watch::Receiver<()>,
    running: bool,
}

impl Place {
    /// The work on it has ended; what came of it is still to be recorded.
    pub(crate) fn ended(&mut self) {
        self.running = false;
        // Whoever is gone asks for nothing.
        let _gone = self.says.send(Saying::Ended);
    }

    /// Waits until the worker should look after what it has in hand; for ever, if nobody will say so.
    pub(crate) async fn warned(&mut self) {
        if self.warned.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Whoever is gone asks for nothing.
        let _gone = self.says.send(Saying::Over { running: self.running });
    }
}

/// Why nothing will ever come.
struct Refusal {
    status: u16,
    detail: String,
}

impl Stream {
    /// Connects, in a task that ends with this.
    pub(crate) fn open(settings: Settings, options: &Options) -> Result<Stream, CallError> {
        let endpoint = endpoint(&settings).map_err(|error| refusal(422, &error.to_string()))?;
        let ((says, sayings), (arrive, arrived)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let refused = Arc::new(OnceLock::new());
        let line = Line {
            endpoint,
            token: settings.token,
            open: Open { route: options.route.clone(), worker: options.name.clone(), lease_ms: None },
            says: says.downgrade(),
            sayings,
            arrive,
            warn: watch::Sender::new(()),
            refused: refused.clone(),
            hands: Hands::of(options.in_flight),
            next_tag: 0,
        };
        tokio::spawn(line.run());
        Ok(Stream { says, arrived: Mutex::new(arrived), refused })
    }

    /// What came; waits for it.
    pub(crate) async fn next(&self) -> Result<Vec<Arrival>, CallError> {
        self.arrived.lock().await.recv().await.ok_or_else(|| self.ended())
    }

    /// Asks for nothing more, and gives back what came and was not taken.
    pub(crate) async fn stop(&self) {
        // Whoever is gone asks for nothing.
        let _gone = self.say(Saying::Stop);
        let mut arrived = self.arrived.lock().await;
        while let Ok(arrivals) = arrived.try_recv() {
            // Unheard, their leases run out.
            futures_util::future::join_all(arrivals.iter().map(|arrival| self.release(&arrival.job))).await;
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
        let (dead, elsewhere) = (failed.then == Verdict::Dead, failed.then == Verdict::Elsewhere);
        let error = failed.error.clone();
        let failure = v1::Failure { held: Some(held(job)), error, dead, elsewhere, ..v1::Failure::default() };
        self.about(About::Fail(failure)).await
    }

    pub(crate) async fn release(&self, job: &Job) -> Result<Kept, CallError> {
        self.about(About::Release(held(job))).await
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

fn endpoint(settings: &Settings) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(settings.url.clone())?
        .connect_timeout(CONNECT_WITHIN)
        .http2_keep_alive_interval(ALIVE_EVERY)
        .keep_alive_timeout(ALIVE_EVERY)
        .keep_alive_while_idle(true)
        .http2_adaptive_window(true)
        .tcp_nodelay(true);
    if !settings.url.starts_with("https:") {
        return Ok(endpoint);
    }
    endpoint.tls_config(match &settings.trusted {
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_webpki_roots(),
    })
}

/// Who waits for the result of what was said under a tag.
type Waiting = HashMap<u64, oneshot::Sender<Kept>>;

/// Whoever has the connection.
struct Line {
    endpoint: Endpoint,
    token: Option<String>,
    open: Open,
    /// What places of jobs say; they must not keep the line open.
    says: mpsc::WeakUnboundedSender<Saying>,
    /// Bounded by what is in hand, since each job has one call under way at most.
    sayings: mpsc::UnboundedReceiver<Saying>,
    arrive: mpsc::UnboundedSender<Vec<Arrival>>,
    warn: watch::Sender<()>,
    refused: Arc<OnceLock<Refusal>>,
    hands: Hands,
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
        let unreached = |error: tonic::transport::Error| Status::unavailable(with_causes(&error));
        let channel = self.endpoint.connect().await.map_err(unreached)?;
        // As bounded as the sayings.
        let (say, mut said) = mpsc::unbounded_channel();
        let gone = |_| Status::unavailable("the program no longer listens");
        let room = self.hands.ask_again();
        say.send(FromWorker { open: Some(self.open.clone()), room, ..FromWorker::default() }).map_err(gone)?;
        let outbound = futures_util::stream::poll_fn(move |context| said.poll_recv(context));
        let mut heard = self.client(channel).pull(self.request(outbound)?).await?.into_inner();
        let (mut waiting, mut sayings) = (Waiting::new(), Vec::new());
        loop {
            tokio::select! {
                count = self.sayings.recv_many(&mut sayings, SAYINGS_MAX) => {
                    if count == 0 {
                        return Ok(());
                    }
                    for letter in self.letters(sayings.drain(..), &mut waiting) {
                        say.send(letter).map_err(gone)?;
                    }
                }
                message = heard.message() => {
                    let message = message?.ok_or_else(|| Status::unavailable("the program is about to stop"))?;
                    *reached = true;
                    if let Some(refused) = self.take(message, &mut waiting) {
                        say.send(refused).map_err(gone)?;
                    }
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

    /// All of this in as few messages as may be; the last one says for how many more there is room.
    fn letters(&mut self, sayings: impl Iterator<Item = Saying>, waiting: &mut Waiting) -> Vec<FromWorker> {
        let (mut letters, mut bytes) = (Vec::<FromWorker>::new(), 0);
        for saying in sayings {
            let (mut about, hear) = match saying {
                Saying::Job(about, hear) => (about, hear),
                Saying::Ended => {
                    self.hands.ended();
                    continue;
                }
                Saying::Over { running } => {
                    self.hands.over(running);
                    continue;
                }
                Saying::Stop => {
                    self.hands.stop();
                    continue;
                }
            };
            self.next_tag += 1;
            waiting.insert(self.next_tag, hear);
            about.tag(self.next_tag);
            bytes += about.bytes();
            if letters.is_empty() || bytes > LETTER_BYTES_MAX {
                bytes = about.bytes();
                letters.push(FromWorker::default());
            }
            let Some(letter) = letters.last_mut() else { continue };
            match about {
                About::Extend(held) => letter.extend.push(held),
                About::Answer(answer) => letter.answer.push(answer),
                About::Fail(failure) => letter.fail.push(failure),
                About::Release(held) => letter.release.push(held),
            }
        }
        // What is waited for brings the next letter about, and little room can go with that.
        let room = self.hands.ask(letters.is_empty() && !waiting.is_empty());
        match letters.last_mut() {
            Some(letter) => letter.room = room,
            None if room > 0 => letters.push(FromWorker { room, ..FromWorker::default() }),
            None => {}
        }
        letters
    }

    /// Passes on what the program says; jobs that nobody is there for are given back.
    fn take(&mut self, message: ToWorker, waiting: &mut Waiting) -> Option<FromWorker> {
        // Whoever no longer listens need not know: of all three.
        for result in message.results {
            if let Some(hear) = waiting.remove(&result.held.as_ref().map_or(0, |held| held.tag)) {
                let _gone = hear.send(kept(result));
            }
        }
        let mut refused = None;
        if !message.jobs.is_empty() {
            match self.says.upgrade().filter(|_| self.hands.take(message.jobs.len())) {
                Some(says) => {
                    let place = || Place { says: says.clone(), warned: self.warn.subscribe(), running: true };
                    let arrivals = message.jobs.into_iter().map(|job| Arrival { job: read(job), place: place() });
                    let _gone = self.arrive.send(arrivals.collect());
                }
                None => {
                    let release = message.jobs.into_iter().filter_map(|job| job.held).collect();
                    refused = Some(FromWorker { release, ..FromWorker::default() });
                }
            }
        }
        if message.amended {
            let _gone = self.warn.send(());
        }
        refused
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
