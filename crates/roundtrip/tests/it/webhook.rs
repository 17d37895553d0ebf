//! Webhooks to real servers on this machine, under real time: waits are for what servers
//! see and for what the store shows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use roundtrip::clock::{Clock, ManualClock, SystemClock};
use roundtrip::inbox::StateKind;
use roundtrip::outbox::{Courier, CourierOptions, Endpoint, Endpoints, WebhookOptions, WebhookSink};
use roundtrip::store::ReadExt;
use roundtrip::store::Store;
use roundtrip::store::query::{Found, ReadyDelivery};
use roundtrip::testkit::bench::START;
use roundtrip::testkit::samples::*;
use tokio::sync::{mpsc, watch};

use crate::delivering::{Running, answered, courier, start, store_with, until};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// What a server saw of one call.
#[derive(Clone, Debug)]
struct Seen {
    headers: HeaderMap,
    body: String,
}

impl Seen {
    fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }
}

type Answers = dyn Fn(usize, &Seen) -> Response<Body> + Send + Sync;

/// A receiver on a port of its own, which answers the n-th call as it is told to.
struct Receiver {
    url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    calls: mpsc::UnboundedReceiver<Seen>,
    server: tokio::task::JoinHandle<()>,
}

#[derive(Clone)]
struct Desk {
    seen: Arc<Mutex<Vec<Seen>>>,
    calls: mpsc::UnboundedSender<Seen>,
    answers: Arc<Answers>,
}

async fn receive(State(desk): State<Desk>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let seen = Seen { headers, body: String::from_utf8(body.to_vec()).unwrap() };
    let call = {
        let mut all = desk.seen.lock().unwrap();
        all.push(seen.clone());
        all.len() - 1
    };
    let answer = (desk.answers)(call, &seen);
    // A test that has seen enough no longer listens.
    let _unheard = desk.calls.send(seen);
    answer
}

impl Receiver {
    async fn open(answers: impl Fn(usize, &Seen) -> Response<Body> + Send + Sync + 'static) -> Receiver {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (sender, calls) = mpsc::unbounded_channel();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let desk = Desk { seen: seen.clone(), calls: sender, answers: Arc::new(answers) };
        let router = Router::new().route("/hook", post(receive)).with_state(desk);
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Receiver { url, seen, calls, server }
    }

    /// Answers every call with this status.
    async fn always(status: StatusCode) -> Receiver {
        Receiver::open(move |_, _| status.into_response()).await
    }

    fn bodies(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|seen| seen.body.clone()).collect()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn options() -> CourierOptions {
    CourierOptions {
        backoff_first: Duration::from_millis(1),
        backoff_max: Duration::from_millis(20),
        seat_ms: 60_000,
        ..CourierOptions::default()
    }
}

/// Each answer goes to the endpoint that its first word names.
fn by_first_word(urls: &[(&str, &str)]) -> Endpoints {
    let endpoint = |(name, url): &(&str, &str)| (name.to_string(), Arc::new(Endpoint::new(name, url, SECRET).unwrap()));
    let endpoints: HashMap<String, Arc<Endpoint>> = urls.iter().map(endpoint).collect();
    Arc::new(move |delivery: &ReadyDelivery| {
        let text = String::from_utf8(delivery.response.bytes.to_vec()).unwrap();
        endpoints.get(text.split_whitespace().next()?).cloned()
    })
}

fn sending(store: &Arc<dyn Store>, name: &str, urls: &[(&str, &str)], webhooks: WebhookOptions) -> Courier {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(START));
    let sink = WebhookSink::new(by_first_word(urls), clock, webhooks).unwrap();
    Courier { options: options(), ..courier(store, name, sink) }
}

fn send(store: &Arc<dyn Store>, urls: &[(&str, &str)]) -> Running {
    let courier = sending(store, "one", urls, WebhookOptions::default());
    start(|shutdown| courier.run(shutdown))
}

async fn store() -> Arc<dyn Store> {
    store_with(Arc::new(SystemClock::new())).await
}

async fn error_of(store: &dyn Store, n: u64) -> String {
    match store.get(id(n)).await.unwrap() {
        Some(Found::Live(view, _)) => view.error.map(|error| error.text.into()).unwrap_or_default(),
        other => panic!("request {n} is not live: {other:?}"),
    }
}

/// HMAC-SHA256 by its definition, from nothing but a hash that is written out here.
fn independent_signature(key: &[u8], message: &[u8]) -> String {
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    let pad = |with: u8| block.map(|byte| byte ^ with);
    let inner = sha256(&[&pad(0x36), message].concat());
    format!("v1,{}", BASE64.encode(sha256(&[&pad(0x5c)[..], &inner].concat())))
}

/// SHA-256 of FIPS 180-4; its constants are the fractions of roots of primes.
fn sha256(message: &[u8]) -> [u8; 32] {
    let primes = (2u64..).filter(|n| (2..*n).all(|d| n % d != 0));
    let primes: Vec<u64> = primes.take(64).collect();
    let fraction =
        |root: fn(u128) -> u128, shift: u32, prime: u64| (root(u128::from(prime) << shift) & 0xFFFF_FFFF) as u32;
    let mut h: Vec<u32> = primes[..8].iter().map(|p| fraction(u128::isqrt, 64, *p)).collect();
    let k: Vec<u32> = primes.iter().map(|p| fraction(cube_root, 96, *p)).collect();
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64), 0);
    if padded.len() - message.len() < 9 {
        padded.resize(padded.len() + 64, 0);
    }
    let end = padded.len() - 8;
    padded[end..].copy_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    for chunk in padded.chunks(64) {
        let mut w: Vec<u32> = chunk.chunks(4).map(|four| u32::from_be_bytes(four.try_into().unwrap())).collect();
        for i in 16..64 {
            let s0 = w[i - 15].rotate_right(7) ^ w[i - 15].rotate_right(18) ^ (w[i - 15] >> 3);
            let s1 = w[i - 2].rotate_right(17) ^ w[i - 2].rotate_right(19) ^ (w[i - 2] >> 10);
            w.push(w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1));
        }
        let mut v = h.clone();
        for i in 0..64 {
            let s1 = v[4].rotate_right(6) ^ v[4].rotate_right(11) ^ v[4].rotate_right(25);
            let choice = (v[4] & v[5]) ^ (!v[4] & v[6]);
            let one = v[7].wrapping_add(s1).wrapping_add(choice).wrapping_add(k[i]).wrapping_add(w[i]);
            let s0 = v[0].rotate_right(2) ^ v[0].rotate_right(13) ^ v[0].rotate_right(22);
            let majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
            v.rotate_right(1);
            v[4] = v[4].wrapping_add(one);
            v[0] = one.wrapping_add(s0).wrapping_add(majority);
        }
        h.iter_mut().zip(v).for_each(|(h, v)| *h = h.wrapping_add(v));
    }
    let bytes: Vec<u8> = h.iter().flat_map(|word| word.to_be_bytes()).collect();
    bytes.try_into().unwrap()
}

/// The largest number whose cube is not more.
fn cube_root(n: u128) -> u128 {
    let (mut low, mut high) = (0, 1 << 40);
    while low < high {
        let middle: u128 = (low + high + 1_u128) >> 1;
        if middle * middle * middle <= n { low = middle } else { high = middle - 1 }
    }
    low
}

#[test]
fn the_independent_signature_is_right() {
    let key = BASE64.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let message = br#"msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}"#;
    assert_eq!(independent_signature(&key, message), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
}

#[tokio::test]
async fn a_receiver_can_verify_what_it_gets() {
    let (store, mut receiver) = (store().await, Receiver::always(StatusCode::NO_CONTENT).await);
    answered(&*store, 1..2, |n| format!("a {n}")).await;
    let running = send(&store, &[("a", &receiver.url)]);
    let seen = receiver.calls.recv().await.unwrap();
    until(&*store, [1], StateKind::Settled).await;
    assert_eq!(seen.body, "a 1");
    assert_eq!(seen.header("content-type"), "application/json");
    assert_eq!(seen.header("webhook-id"), format!("msg_{}_0_0", id(1)));
    assert_eq!(seen.header("webhook-timestamp"), (START.0 / 1000).to_string());
    let key = BASE64.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let signed = format!("{}.{}.{}", seen.header("webhook-id"), seen.header("webhook-timestamp"), seen.body);
    assert_eq!(seen.header("webhook-signature"), independent_signature(&key, signed.as_bytes()));
    running.stop().await.unwrap();
}

#[tokio::test]
async fn order_is_kept_through_failures() {
    let store = store().await;
    // Two of three calls fail, each in another way.
    let receiver = Receiver::open(|call, _| match call % 3 {
        0 => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        1 => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "0")]).into_response(),
        _ => StatusCode::OK.into_response(),
    })
    .await;
    answered(&*store, 0..10, |n| format!("a {n}")).await;
    let running = send(&store, &[("a", &receiver.url)]);
    until(&*store, 0..10, StateKind::Settled).await;
    running.stop().await.unwrap();
    let expected: Vec<String> = (0..10).flat_map(|n| vec![format!("a {n}"); 3]).collect();
    assert_eq!(receiver.bodies(), expected, "each until it is taken, and only then the next");
    let seen = receiver.seen.lock().unwrap().clone();
    for same in seen.chunks(3) {
        assert!(same.iter().all(|seen| seen.header("webhook-id") == same[0].header("webhook-id")));
    }
}

#[tokio::test]
async fn one_of_ten_targets_is_down() {
    let store = store().await;
    let (up, is_up) = watch::channel(false);
    let mut receivers = Vec::new();
    for n in 0..10 {
        let is_up = is_up.clone();
        let answers = move |_: usize, _: &Seen| match n == 3 && !*is_up.borrow() {
            true => StatusCode::BAD_GATEWAY.into_response(),
            false => StatusCode::OK.into_response(),
        };
        receivers.push(Receiver::open(answers).await);
    }
    answered(&*store, 0..100, |n| format!("hook-{} {n}", n % 10)).await;
    let names: Vec<String> = (0..10).map(|n| format!("hook-{n}")).collect();
    let urls: Vec<(&str, &str)> =
        names.iter().zip(&receivers).map(|(name, receiver)| (&**name, &*receiver.url)).collect();
    let running = send(&store, &urls);
    until(&*store, (0..100).filter(|n| n % 10 != 3), StateKind::Settled).await;
    for (n, receiver) in receivers.iter().enumerate().filter(|(n, _)| *n != 3) {
        let expected: Vec<String> = (0..10).map(|turn| format!("hook-{n} {}", turn * 10 + n)).collect();
        assert_eq!(receiver.bodies(), expected);
    }
    assert!(receivers[3].bodies().iter().all(|body| body == "hook-3 3"), "the first holds up the rest of its target");
    up.send(true).unwrap();
    until(&*store, (0..100).filter(|n| n % 10 == 3), StateKind::Settled).await;
    let mut taken = receivers[3].bodies();
    taken.dedup();
    assert_eq!(taken, (0..10).map(|turn| format!("hook-3 {}", turn * 10 + 3)).collect::<Vec<_>>());
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_crash_between_delivery_and_commit_repeats_the_id() {
    let store = store().await;
    let (release, released) = watch::channel(false);
    let mut receiver = Receiver::always(StatusCode::OK).await;
    answered(&*store, 1..2, |n| format!("a {n}")).await;
    // The first answer comes back, but its courier is dead by then.
    let stalled = {
        let released = released.clone();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (sender, calls) = mpsc::unbounded_channel();
        let handler = move |headers: HeaderMap, body: Bytes| {
            let (sender, mut released) = (sender.clone(), released.clone());
            async move {
                let body = String::from_utf8(body.to_vec()).unwrap();
                sender.send(Seen { headers, body }).unwrap();
                released.wait_for(|released| *released).await.unwrap();
                StatusCode::OK
            }
        };
        let router = Router::new().route("/hook", post(handler));
        (url, calls, tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }))
    };
    let (url, mut calls, server) = stalled;
    let running = send(&store, &[("a", &url)]);
    let first = calls.recv().await.unwrap();
    running.task.abort();
    assert!(running.task.await.unwrap_err().is_cancelled());
    release.send(true).unwrap();
    // The same holder starts again, as a process does that keeps its name.
    let running = send(&store, &[("a", &receiver.url)]);
    let again = receiver.calls.recv().await.unwrap();
    until(&*store, [1], StateKind::Settled).await;
    assert_eq!(again.header("webhook-id"), first.header("webhook-id"));
    assert_eq!(again.body, first.body);
    running.stop().await.unwrap();
    server.abort();
}

#[tokio::test]
async fn statuses_decide() {
    let store = store().await;
    let receiver = Receiver::open(|_, seen| match seen.body.as_str() {
        "a 1" => StatusCode::GONE.into_response(),
        "a 2" => StatusCode::CONFLICT.into_response(),
        "a 3" => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
        _ => StatusCode::ACCEPTED.into_response(),
    })
    .await;
    answered(&*store, 1..6, |n| format!("{} {n}", if n == 5 { "nowhere" } else { "a" })).await;
    let running = send(&store, &[("a", &receiver.url)]);
    until(&*store, [1, 3, 5], StateKind::Dead).await;
    until(&*store, [2, 4], StateKind::Settled).await;
    assert_eq!(error_of(&*store, 1).await, "the receiver answered 410");
    assert_eq!(error_of(&*store, 3).await, "the receiver answered 422");
    assert_eq!(error_of(&*store, 5).await, "route orders has no endpoint for this answer");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn no_redirect_is_followed_and_no_long_answer_read() {
    let store = store().await;
    let elsewhere = Receiver::always(StatusCode::OK).await;
    let to = elsewhere.url.clone();
    let receiver = Receiver::open(move |call, _| match call {
        0 => (StatusCode::TEMPORARY_REDIRECT, [("location", to.as_str())]).into_response(),
        // Without an end.
        _ => {
            let endless = std::iter::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[0; 1024])));
            Response::new(Body::new(Endless(Box::new(endless))))
        }
    })
    .await;
    answered(&*store, 1..2, |n| format!("a {n}")).await;
    let running = send(&store, &[("a", &receiver.url)]);
    until(&*store, [1], StateKind::Settled).await;
    assert_eq!(elsewhere.bodies().len(), 0);
    assert_eq!(receiver.bodies().len(), 2);
    running.stop().await.unwrap();
}

/// A body that goes on for ever.
struct Endless(Box<dyn Iterator<Item = Result<Bytes, std::io::Error>> + Send>);

impl axum::body::HttpBody for Endless {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, std::io::Error>>> {
        std::task::Poll::Ready(self.0.next().map(|bytes| bytes.map(hyper::body::Frame::data)))
    }
}

#[tokio::test]
async fn silence_and_nobody_are_tried_again() {
    let store = store().await;
    let (begun, mut began) = mpsc::unbounded_channel();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("http://{}/hook", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((socket, _)) = listener.accept().await {
            held.push(socket);
            // The test may have seen enough.
            let _unheard = begun.send(());
        }
    });
    let nobody = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}/hook", listener.local_addr().unwrap())
    };
    let (up, webhooks) = (
        Receiver::always(StatusCode::OK).await,
        WebhookOptions { timeout: Duration::from_millis(20), ..WebhookOptions::default() },
    );
    let target = |n| match n {
        1 => "silent",
        2 => "nobody",
        _ => "up",
    };
    answered(&*store, 1..4, |n| format!("{} {n}", target(n))).await;
    let urls = [("silent", &*silent), ("nobody", &*nobody), ("up", &*up.url)];
    let courier = sending(&store, "one", &urls, webhooks);
    let running = start(|shutdown| courier.run(shutdown));
    for _ in 0..3 {
        began.recv().await.unwrap();
    }
    until(&*store, [3], StateKind::Settled).await;
    until(&*store, [1, 2], StateKind::Ready).await;
    running.stop().await.unwrap();
    server.abort();
}
