//! A gRPC service: messages by their descriptions, codes, submissions that are polled for, TLS, shards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rcgen::ExtendedKeyUsagePurpose;
use roundtrip::words::ErrorClass;
use roundtrip::worker::WorkerOptions;
use roundtrip_evm::mapping::Mapping;
use roundtrip_tools::egress::Allowed;
use roundtrip_tools::grpc::{Codes, GrpcOptions, GrpcTool, MethodName, Poll, code, read_descriptors};
use roundtrip_tools::{ClientTls, Meaning, Web, Work};
use serde_json::json;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use super::certificates::{Authority, authority, certificate};
use super::desk::{Desk, PATIENCE, web};
use super::squares::{Serving, Squares, descriptors};

const KNOWN: [&str; 2] = ["id", "request"];

fn method(name: &str) -> MethodName {
    MethodName::read(&format!("test.v1.Squares/{name}")).unwrap()
}

fn polled(answer: &str) -> GrpcOptions {
    let poll = Poll {
        method: method("Fetch"),
        request: Mapping::read(&json!({"requestId": "/id"}), &KNOWN),
        every: Duration::from_millis(1),
        answer: answer.to_owned(),
        pending: vec![code("UNAVAILABLE").unwrap()],
        unknown: vec![code("NOT_FOUND").unwrap()],
    };
    GrpcOptions { poll: Some(poll), ..GrpcOptions::default() }
}

fn submitting(url: String, answer: &str) -> Work {
    let tool = GrpcTool::new(&web(), &[url], method("Submit"), None, polled(answer)).unwrap();
    let input = Mapping::read(&json!({"request_id": "/id", "n": "/request/n"}), &KNOWN);
    Work::new(Arc::new(tool)).with_input(input)
}

#[tokio::test]
async fn any_method_is_called_with_json_and_answers_with_json() {
    let squares = Squares::default();
    let serving = squares.serve("127.0.0.1:0", None);
    let url = serving.url();
    let from_file = read_descriptors(&descriptors()).unwrap();
    for descriptions in [Some(from_file), None] {
        let by_reflection = descriptions.is_none();
        let options = GrpcOptions::default();
        let tool = GrpcTool::new(&web(), std::slice::from_ref(&url), method("Square"), descriptions, options).unwrap();
        assert_eq!(tool.probe().await, Ok(()));
        let desk = Desk::of(tool).await;
        let answer = desk.ask(&json!({"requestId": "a", "n": "3000000000"})).await;
        assert_eq!(answer, Ok(json!({"square": "9000000000000000000", "proof": "AQID"})), "{by_reflection}");
        let told = desk.ask(&json!({"requestId": "a", "m": 3})).await.unwrap_err();
        assert!(told.starts_with("the input is not what the service takes: it is no test.v1.Job: "), "{told}");
        let told = desk.ask(&json!({"n": 0})).await;
        assert_eq!(told, Err("the service answered INVALID_ARGUMENT: nothing to square".to_owned()));
    }
    let book = squares.book.lock().unwrap();
    let call = book.calls.iter().find(|call| call.contains_key("idempotency-key")).unwrap();
    let text = |name: &str| call.get(name).unwrap().to_str().unwrap().to_owned();
    assert!(text("idempotency-key").starts_with(&text("roundtrip-request-id")));
    assert!(!text("roundtrip-attempt-id").is_empty());
}

#[tokio::test]
async fn what_codes_mean_is_the_routes_to_say() {
    let serving = Squares::default().serve("127.0.0.1:0", None);
    let own = [("INVALID_ARGUMENT".to_owned(), Meaning::AlreadyDone)].into();
    let options = GrpcOptions { codes: Codes::read(&own).unwrap(), ..GrpcOptions::default() };
    let tool = GrpcTool::new(&web(), &[serving.url()], method("Square"), None, options).unwrap();
    let desk = Desk::with(Work::new(Arc::new(tool)).when_already_done(json!("before"))).await;
    assert_eq!(desk.ask(&json!({"n": 0})).await, Ok(json!("before")), "as the route says");
    assert_eq!(desk.ask(&json!({"n": 1})).await, Ok(json!("before")), "as it usually is");
    let tool = GrpcTool::new(&web(), &[serving.url()], method("Square"), None, GrpcOptions::default()).unwrap();
    assert_eq!(Desk::of(tool).await.ask(&json!({"n": 1})).await, Err("Elsewhere".to_owned()), "nothing is to be sent");
}

#[tokio::test]
async fn a_method_that_is_not_there_is_told_at_the_start() {
    let pool = || Some(read_descriptors(&descriptors()).unwrap());
    let urls = ["http://127.0.0.1:1".to_owned()];
    let make = |name: &str| GrpcTool::new(&web(), &urls, method(name), pool(), GrpcOptions::default()).err().unwrap();
    assert_eq!(make("Cube"), "test.v1.Squares has no method Cube: it has Square, Submit, Fetch, Watch");
    assert!(make("Watch").contains("is a stream"));
    assert!(read_descriptors(b"no descriptors").is_err());
    let serving = Squares::default().serve("127.0.0.1:0", None);
    let tool = GrpcTool::new(&web(), &[serving.url()], method("Cube"), None, GrpcOptions::default());
    assert!(tool.unwrap().probe().await.unwrap_err().contains("has no method Cube"));
}

#[tokio::test]
async fn what_was_submitted_is_polled_for_and_not_submitted_again() {
    let squares = Squares::default();
    let serving = squares.serve("127.0.0.1:0", None);
    let desk = Desk::with(submitting(serving.url(), "/result")).await;
    let id = desk.submit(&json!({"n": 7})).await;
    assert_eq!(desk.answer(id).await, Ok(json!({"square": "49", "proof": ""})));
    {
        let book = squares.book.lock().unwrap();
        assert_eq!((book.submissions, book.jobs.contains_key(&id.to_string())), (1, true));
    }
    // Another process of the program, which remembers nothing, is given the same request.
    let other = Desk::with(submitting(serving.url(), "/result")).await;
    assert_eq!(other.ask(&json!({"n": 8})).await, Ok(json!({"square": "64", "proof": ""})));
    assert_eq!(squares.book.lock().unwrap().submissions, 2, "one for each request");
}

/// What is not set is not ready, however often it is asked; a zero is an answer.
#[tokio::test]
async fn a_zero_is_an_answer() {
    for (answer, zero) in [("/result/square", json!("0")), ("/result", json!({"square": "0", "proof": ""}))] {
        let squares = Squares::default();
        let serving = squares.serve("127.0.0.1:0", None);
        let desk = Desk::with(submitting(serving.url(), answer)).await;
        let id = desk.submit(&json!({"n": 0})).await;
        assert_eq!(desk.answer(id).await, Ok(zero), "{answer}");
        assert_eq!(squares.book.lock().unwrap().jobs[&id.to_string()].1, 3, "twice it was not ready");
    }
}

/// However long it takes: it is no failure of the request, which may have two attempts here.
#[tokio::test]
async fn an_answer_that_is_not_ready_costs_no_attempt() {
    let squares = Squares::default();
    squares.book.lock().unwrap().busy = true;
    let serving = squares.serve("127.0.0.1:0", None);
    // What polls gives up well before the worker would.
    let work = submitting(serving.url(), "/result").within(Duration::from_millis(100));
    let options = WorkerOptions { timeout: Some(PATIENCE), ..WorkerOptions::default() };
    let desk = Desk::open(work, options, None).await;
    let id = desk.submit(&json!({"n": 7})).await;
    let attempts = || {
        let book = squares.book.lock().unwrap();
        let ids = book.calls.iter().filter_map(|call| call.get("roundtrip-attempt-id"));
        ids.map(|id| id.to_str().unwrap().to_owned()).collect::<BTreeSet<String>>().len()
    };
    let seen = tokio::time::timeout(PATIENCE, async {
        while attempts() < 5 {
            tokio::task::yield_now().await;
        }
    });
    seen.await.expect("five attempts");
    let (cost, error) = desk.trouble(id).await;
    assert!(cost <= 1, "{cost}: none but the one that is under way, {error:?}");
    squares.book.lock().unwrap().busy = false;
    assert_eq!(desk.answer(id).await, Ok(json!({"square": "49", "proof": ""})));
    assert_eq!(squares.book.lock().unwrap().submissions, 1, "and it is submitted once");
}

#[tokio::test]
async fn a_service_that_restarts_costs_no_attempt() {
    let squares = Squares::default();
    let serving = squares.serve("127.0.0.1:0", None);
    let address = serving.address;
    let desk = Desk::with(submitting(serving.url(), "/result")).await;
    assert_eq!(desk.ask(&json!({"n": 2})).await, Ok(json!({"square": "4", "proof": ""})));
    drop(serving);
    let id = desk.submit(&json!({"n": 3})).await;
    assert_eq!(desk.until_trouble(id, "").await, ErrorClass::Transport, "who is not there did not fail");
    // In words, and once.
    let told = desk.until_trouble(id, "it cannot be reached: Connection refused").await;
    assert_eq!(told, ErrorClass::Transport);
    // It comes back without its memory.
    let _serving = Squares::default().serve(&address.to_string(), None);
    assert_eq!(desk.answer(id).await, Ok(json!({"square": "9", "proof": ""})));
}

#[tokio::test]
async fn a_request_is_always_on_the_same_shard() {
    let services = [Squares::default(), Squares::default(), Squares::default()];
    let serving: Vec<_> = services.iter().map(|service| service.serve("127.0.0.1:0", None)).collect();
    let urls: Vec<String> = serving.iter().map(Serving::url).collect();
    let tool = GrpcTool::new(&web(), &urls, method("Submit"), None, polled("/result")).unwrap();
    let input = Mapping::read(&json!({"request_id": "/id", "n": "/request/n"}), &KNOWN);
    let desk = Desk::with(Work::new(Arc::new(tool)).with_input(input)).await;
    for n in 2..32 {
        assert_eq!(desk.ask(&json!({"n": n})).await, Ok(json!({"square": (n * n).to_string(), "proof": ""})));
    }
    let shares: Vec<usize> = services.iter().map(|service| service.book.lock().unwrap().jobs.len()).collect();
    assert_eq!(shares.iter().sum::<usize>(), 30, "each went to one, and was polled for there: {shares:?}");
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
}

#[tokio::test]
async fn both_sides_show_who_they_are() {
    let (own, other) = (authority(), authority());
    let (chain, key) = certificate(&own, ExtendedKeyUsagePurpose::ServerAuth);
    let tls = ServerTlsConfig::new()
        .identity(Identity::from_pem(chain, key))
        .client_ca_root(Certificate::from_pem(own.pem()));
    let squares = Squares::default();
    let serving = squares.serve("127.0.0.1:0", Some(tls));
    let url = format!("https://localhost:{}", serving.address.port());
    let tool = |trusted: &Authority, shown: Option<(String, String)>| {
        let shown = shown.map(|(chain, key)| (chain.into_bytes(), key.into_bytes()));
        let tls = ClientTls { trusted: Some(trusted.pem().into_bytes()), own: shown };
        let web = Web::new(Allowed::read(&["127.0.0.1".into(), "::1".into()]).unwrap(), tls).unwrap();
        let pool = Some(read_descriptors(&descriptors()).unwrap());
        GrpcTool::new(&web, std::slice::from_ref(&url), method("Square"), pool, GrpcOptions::default()).unwrap()
    };
    let client = |authority| Some(certificate(authority, ExtendedKeyUsagePurpose::ClientAuth));
    let desk = Desk::of(tool(&own, client(&own))).await;
    assert_eq!(desk.ask(&json!({"n": 3})).await, Ok(json!({"square": "9", "proof": "AQID"})));
    let calls = squares.book.lock().unwrap().calls.len();
    for stranger in [tool(&own, None), tool(&own, client(&other)), tool(&other, client(&own))] {
        let desk = Desk::of(stranger).await;
        let id = desk.submit(&json!({"n": 3})).await;
        desk.until_trouble(id, "").await;
    }
    assert_eq!(squares.book.lock().unwrap().calls.len(), calls, "nobody else was let in");
}

#[tokio::test]
async fn internal_addresses_are_not_called() {
    let squares = Squares::default();
    let serving = squares.serve("127.0.0.1:0", None);
    let guarded = Web::new(Allowed::default(), ClientTls::default()).unwrap();
    let url = format!("http://localhost:{}", serving.address.port());
    let desk = Desk::of(GrpcTool::new(&guarded, &[url], method("Square"), None, GrpcOptions::default()).unwrap()).await;
    let id = desk.submit(&json!({"n": 3})).await;
    assert_eq!(desk.until_trouble(id, "").await, ErrorClass::Transport);
    assert_eq!(squares.book.lock().unwrap().calls.len(), 0);
}
