//! Work over one stream, message by message: whoever writes a worker in another language sees this.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use roundtrip_client::{Options, Settings, Shutdown, Worker};
use roundtrip_server::api::auth::{Role, sign};
use roundtrip_wire::v1::work_client::WorkClient;
use roundtrip_wire::v1::work_server::{Work, WorkServer};
use roundtrip_wire::v1::{Answer, Failure, FromWorker, Held, Job, Notice, Open, Payload, ToWorker, Verdict};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::codegen::BoxStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};

use super::program::Program;

const CONFIG: &str = r#"
[store]
url = "sqlite:store.db"

[routes.work]
to = "caller"
backoff = { first = "0s" }

[destinations.caller.keep]
at_least = "1h"
"#;

/// A worker's end.
pub(crate) struct Line {
    say: mpsc::UnboundedSender<FromWorker>,
    heard: Streaming<ToWorker>,
}

impl Line {
    /// Opens a stream by saying this.
    pub(crate) async fn open(base: &str, token: Option<&str>, first: FromWorker) -> Result<Line, Status> {
        let reached = Endpoint::from_shared(base.to_owned()).unwrap().connect().await;
        let channel: Channel = reached.map_err(|error| Status::unavailable(error.to_string()))?;
        let (say, mut said) = mpsc::unbounded_channel();
        say.send(first).unwrap();
        let mut request = Request::new(futures_util::stream::poll_fn(move |context| said.poll_recv(context)));
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let heard = WorkClient::new(channel).pull(request).await?.into_inner();
        Ok(Line { say, heard })
    }

    pub(crate) fn say(&self, message: FromWorker) {
        self.say.send(message).unwrap();
    }

    pub(crate) async fn next(&mut self) -> Result<ToWorker, Status> {
        let next = tokio::time::timeout(Duration::from_secs(30), self.heard.message()).await.expect("silence");
        next?.ok_or_else(|| Status::cancelled("over"))
    }

    /// What became of this.
    async fn told(&mut self, message: FromWorker) -> Vec<roundtrip_wire::v1::Result> {
        self.say(message);
        loop {
            let next = self.next().await.unwrap();
            if !next.results.is_empty() {
                return next.results;
            }
        }
    }
}

pub(crate) fn wants(route: &str, room: u32) -> FromWorker {
    let open = Open { route: route.to_owned(), worker: "w".to_owned(), lease_ms: None };
    FromWorker { open: Some(open), room, ..FromWorker::default() }
}

pub(crate) fn answer(held: &Held, text: &'static str) -> Answer {
    let response = Payload { encoding: 0, bytes: text.into() };
    Answer { held: Some(held.clone()), response: Some(response), ..Answer::default() }
}

#[tokio::test]
async fn as_much_comes_as_there_is_room_for_and_each_thing_said_has_its_result() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let mut line = Line::open(program.base(), None, wants("work", 2)).await.unwrap();
    for n in 0..4 {
        program.post("/v1/routes/work/requests", &json!(n)).await;
    }
    let mut jobs = Vec::new();
    while jobs.len() < 2 {
        jobs.extend(line.next().await.unwrap().jobs);
    }
    assert_eq!(jobs.len(), 2);
    let mut helds = jobs.iter().map(|job| job.held.clone().unwrap());
    let (mut first, mut second) = (helds.next().unwrap(), helds.next().unwrap());
    (first.tag, second.tag) = (7, 8);
    let bad = Held { token: "?".to_owned(), tag: 9, ..second.clone() };
    let failure = Failure { held: Some(second), error: "never".to_owned(), dead: true, ..Failure::default() };
    let all = FromWorker {
        answer: vec![answer(&first, "1")],
        fail: vec![failure],
        extend: vec![bad],
        ..FromWorker::default()
    };
    let mut results: Vec<(u64, Verdict)> = Vec::new();
    results.extend(line.told(all).await.iter().map(|result| (result.held.as_ref().unwrap().tag, result.verdict())));
    results.sort_unstable_by_key(|(tag, _)| *tag);
    assert_eq!(results, [(7, Verdict::Done), (8, Verdict::Done), (9, Verdict::Invalid)]);
    // Said again, it is as it was; and what is no JSON is not taken for it.
    let again = FromWorker { answer: vec![answer(&first, "1"), answer(&first, "{")], ..FromWorker::default() };
    let verdicts: Vec<Verdict> = line.told(again).await.iter().map(|result| result.verdict()).collect();
    assert!(verdicts.contains(&Verdict::Done) && verdicts.contains(&Verdict::Invalid), "{verdicts:?}");
    // Nothing more comes until there is room: then it does.
    line.say(FromWorker { room: 1, ..FromWorker::default() });
    assert_eq!(line.next().await.unwrap().jobs.len(), 1);
    let counts = program.get("/v1/counts").await.1;
    let count = |state: &str| {
        let counts = counts["counts"].as_array().unwrap().iter();
        counts.filter(|count| count["state"] == state).map(|count| count["requests"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((count("queued"), count("leased"), count("dead")), (1, 1, 1), "{counts}");
}

#[tokio::test]
async fn a_lease_is_answered_on_another_stream_and_after_the_program_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    program.post("/v1/routes/work/requests", &json!(1)).await;
    let mut line = Line::open(program.base(), None, wants("work", 1)).await.unwrap();
    let held = line.next().await.unwrap().jobs.remove(0).held.unwrap();
    // A lease is written by the commit after the next.
    for n in 2..4 {
        program.post("/v1/routes/work/requests", &json!(n)).await;
    }
    program.kill();
    assert!(line.next().await.is_err());
    let program = Program::start(folder.path(), CONFIG);
    let mut line = Line::open(program.base(), None, wants("work", 0)).await.unwrap();
    let results = line.told(FromWorker { answer: vec![answer(&held, "2")], ..FromWorker::default() }).await;
    assert_eq!(results[0].verdict(), Verdict::Done, "{results:?}");
    let found = program.get(&format!("/v1/requests/{}?wait=20s", held.id)).await.1;
    assert_eq!(found["response"], json!(2));
    // A program that is told to stop ends its streams.
    let stopped = tokio::task::spawn_blocking(|| program.stop());
    assert_eq!(line.next().await.unwrap_err().code(), Code::Cancelled);
    let said = stopped.await.unwrap();
    assert!(!said.contains("cut off"), "{said}");
}

#[tokio::test]
async fn a_stream_that_makes_no_sense_is_told_why() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), CONFIG);
    let refused = async |first: FromWorker| {
        let mut line = Line::open(program.base(), None, first).await.unwrap();
        let status = line.next().await.unwrap_err();
        (status.code(), status.message().to_owned())
    };
    assert_eq!(refused(FromWorker::default()).await.0, Code::InvalidArgument);
    assert_eq!(refused(wants("", 1)).await.0, Code::InvalidArgument);
    let unknown = refused(wants("other", 1)).await;
    assert!(unknown.0 == Code::NotFound && unknown.1.contains("other"), "{unknown:?}");
}

#[tokio::test]
async fn a_stream_ends_when_its_token_does() {
    const SECRET: &str = "a secret of more than 32 bytes, for tests";
    let folder = tempfile::tempdir().unwrap();
    let config = format!("{CONFIG}\n[api.auth]\nsecret = {{ env = \"API_SECRET\" }}\n");
    let program = Program::start_with(folder.path(), &config, &[("API_SECRET", SECRET)]);
    let hour = Duration::from_secs(3600);
    // Of a clock that is behind by nearly as much as is allowed for.
    let claims = json!({"sub": "w", "exp": jsonwebtoken::get_current_timestamp() - 28, "roles": ["worker"]});
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes());
    let short = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap();
    let mut line = Line::open(program.base(), Some(&short), wants("work", 1)).await.unwrap();
    assert_eq!(line.next().await.unwrap_err().code(), Code::Unauthenticated);
    let refused =
        async |token: Option<&str>| Line::open(program.base(), token, wants("work", 1)).await.err().unwrap().code();
    assert_eq!(refused(None).await, Code::Unauthenticated);
    let viewer = sign(SECRET.as_bytes(), "v", &[Role::Viewer], hour).unwrap();
    assert_eq!(refused(Some(&viewer)).await, Code::PermissionDenied);
}

#[tokio::test]
async fn what_is_amended_reaches_workers_on_a_stream_and_on_calls() {
    let (site, folder) = (super::chain::Site::ready(1_000).await, tempfile::tempdir().unwrap());
    let config = site.config("sqlite:store.db").replace("finality = 3", "finality = 20").replace("\"2s\"", "\"60s\"");
    let program = site.start(folder.path(), &config, &[]);
    let _asking = site.ask(&[b"one".to_vec().into(), b"two".to_vec().into()]);
    let called = program.lease("board").await;
    let mut line = Line::open(program.base(), None, wants("board", 1)).await.unwrap();
    let held = loop {
        if let Some(job) = line.next().await.unwrap().jobs.pop() {
            break job.held.unwrap();
        }
    };
    site.node.mine(20).await.unwrap();
    let extend = || FromWorker { extend: vec![held.clone()], ..FromWorker::default() };
    loop {
        if line.next().await.unwrap().amended {
            let results = line.told(extend()).await;
            if results[0].notices().any(|notice| notice == Notice::Finalized) {
                break;
            }
        }
    }
    let call = json!({"jobs": [{"id": called["id"], "token": called["token"]}]});
    let (_, kept) = program.post("/v1/work/extend", &call).await;
    assert_eq!(kept["jobs"][0]["notices"], json!(["finalized"]));
}

/// A program that has so many jobs, takes every answer, and counts what it hears.
struct Counting {
    jobs: usize,
    messages: Arc<AtomicUsize>,
    in_hand_max: Arc<AtomicUsize>,
    done: Shutdown,
}

#[tonic::async_trait]
impl Work for Counting {
    type PullStream = BoxStream<ToWorker>;

    async fn pull(&self, request: Request<Streaming<FromWorker>>) -> Result<Response<Self::PullStream>, Status> {
        let (tell, mut told) = mpsc::unbounded_channel();
        let (messages, in_hand_max, done) = (self.messages.clone(), self.in_hand_max.clone(), self.done.clone());
        let (mut left, mut room, mut in_hand, mut heard) = (self.jobs, 0, 0, request.into_inner());
        tokio::spawn(async move {
            while let Ok(Some(message)) = heard.message().await {
                messages.fetch_add(1, Ordering::SeqCst);
                let result = |held| roundtrip_wire::v1::Result { held, ..Default::default() };
                let results: Vec<_> = message.answer.into_iter().map(|answer| result(answer.held)).collect();
                in_hand -= results.len();
                room += message.room as usize;
                let count = room.min(left);
                (room, left, in_hand) = (room - count, left - count, in_hand + count);
                in_hand_max.fetch_max(in_hand, Ordering::SeqCst);
                let jobs = vec![Job { held: Some(Held::default()), ..Job::default() }; count];
                tell.send(Ok(ToWorker { jobs, results, amended: false })).unwrap();
                if left + in_hand == 0 {
                    done.cancel();
                }
            }
        });
        Ok(Response::new(Box::pin(futures_util::stream::poll_fn(move |context| told.poll_recv(context)))))
    }
}

/// A worker asks for much at a time, with the answers that make room for it, and has no more in hand than it may.
#[tokio::test]
async fn a_worker_keeps_its_hands_full_with_few_messages() {
    const JOBS: usize = 2_000;
    const IN_FLIGHT: usize = 64;
    let (messages, in_hand_max, done) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Shutdown::new());
    let program =
        Counting { jobs: JOBS, messages: messages.clone(), in_hand_max: in_hand_max.clone(), done: done.clone() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = Server::builder().add_service(WorkServer::new(program));
    let serving = tokio::spawn(serving.serve_with_incoming(TcpIncoming::from(listener)));
    let options = Options { in_flight: IN_FLIGHT, ..Options::of("work", "w") };
    let worker = Worker::streaming(Settings::of(&url), options).unwrap();
    worker.run(|job| async move { Ok(job.payload) }, done).await.unwrap();
    serving.abort();
    let (messages, most) = (messages.load(Ordering::SeqCst), in_hand_max.load(Ordering::SeqCst));
    assert!(messages < JOBS / 4, "{messages} messages for {JOBS} jobs");
    assert!((IN_FLIGHT..=2 * IN_FLIGHT).contains(&most), "{most} in hand at a time");
}
