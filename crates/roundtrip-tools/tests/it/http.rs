//! A tool over HTTP: what it is told, what its answers mean, and what it cannot make the program do.

use std::sync::Arc;
use std::time::Duration;

use rcgen::ExtendedKeyUsagePurpose;
use roundtrip::calling::SigningKey;
use roundtrip::clock::SystemClock;
use roundtrip::station::Shutdown;
use roundtrip::words::ErrorClass;
use roundtrip::worker::WorkerOptions;
use roundtrip_tools::egress::Allowed;
use roundtrip_tools::http::{HealthWatch, HttpOptions, HttpTool, Source};
use roundtrip_tools::prepare::Page;
use roundtrip_tools::{ClientTls, Presence, UrlTemplate, Web, Work};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::certificates::{Authority, Guarded, authority, certificate};
use super::desk::{Desk, web};
use super::tool::{HttpServer, says};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const KNOWN: [&str; 2] = ["id", "request"];

fn at(url: &str) -> UrlTemplate {
    UrlTemplate::read(url, &KNOWN).unwrap()
}

fn tool_with(web: Web, url: &str, options: HttpOptions) -> HttpTool {
    HttpTool::new(web, at(url), Arc::new(SystemClock::new()), options)
}

fn tool(url: &str) -> HttpTool {
    tool_with(web(), url, HttpOptions::default())
}

#[tokio::test]
async fn every_attempt_has_its_own_id_and_the_same_key() {
    let server = HttpServer::in_turn(vec![says(500, "oh"), says(200, r#"{"square":49}"#)]).await;
    let options = HttpOptions { key: Some(SigningKey::read(SECRET).unwrap()), ..HttpOptions::default() };
    let desk = Desk::of(tool_with(web(), &server.url("/invoke"), options)).await;
    assert_eq!(desk.ask(&json!({"n": 7})).await, Ok(json!({"square": 49})));
    let asked = server.asked();
    let [first, second] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((&first.path[..], &first.body), ("/invoke", &json!({"n": 7})));
    assert_eq!(first.header("idempotency-key"), second.header("idempotency-key"));
    assert!(first.header("idempotency-key").starts_with(first.header("roundtrip-request-id")));
    assert_ne!(first.header("roundtrip-attempt-id"), second.header("roundtrip-attempt-id"));
    let (id, timestamp) = (second.header("webhook-id"), second.header("webhook-timestamp").parse().unwrap());
    let signed = SigningKey::read(SECRET).unwrap().sign(id, timestamp, br#"{"n":7}"#);
    assert_eq!((id, second.header("webhook-signature")), (second.header("idempotency-key"), &signed[..]));
}

#[tokio::test]
async fn a_status_decides_what_becomes_of_a_request() {
    let server = HttpServer::answering(|asked| match asked.body["case"].as_str().unwrap() {
        "gone" => says(404, "{}"),
        "done, and so" => says(409, r#"{"before":true}"#),
        "done" => says(409, ""),
        "reported" => {
            says(409, r#"{"title":"Conflict"}"#).with("content-type", "application/problem+json; charset=utf-8")
        }
        "nothing" => says(204, ""),
        "no JSON" => says(200, "<html>"),
        "long" => says(422, &format!("no \n{}", "ä".repeat(300))),
        "redirect" => says(302, "").with("location", "http://127.0.0.1:1/"),
        other => panic!("{other}"),
    })
    .await;
    let work = Work::new(Arc::new(tool(&server.url("/")))).when_already_done(json!({"done": true}));
    let desk = Desk::with(work).await;
    let error = |text: &str| Err(text.to_owned());
    for (case, ending, calls) in [
        ("gone", error("the tool answered 404: {}"), 1),
        ("done, and so", Ok(json!({"before": true})), 1),
        ("done", Ok(json!({"done": true})), 1),
        ("reported", Ok(json!({"done": true})), 1),
        ("nothing", Ok(Value::Null), 1),
        ("no JSON", error("the tool's answer is no JSON: expected value at line 1 column 1"), 2),
        ("long", error(&format!("the tool answered 422: no  {}", "ä".repeat(196))), 1),
        ("redirect", error("the tool answered 302"), 2),
    ] {
        let before = server.asked().len();
        assert_eq!(desk.ask(&json!({"case": case})).await, ending, "{case}");
        assert_eq!(server.asked().len() - before, calls, "{case}");
    }
}

/// Where the route does not say what is answered then, a tool that did it before and does not say what came of it
/// leaves nothing to send.
#[tokio::test]
async fn what_was_done_before_without_an_answer_ends_elsewhere() {
    let report = says(409, r#"{"title":"Conflict"}"#).with("content-type", "application/problem+json");
    for said in [says(409, ""), says(409, "<html>"), report] {
        let server = HttpServer::in_turn(vec![said]).await;
        let desk = Desk::of(tool(&server.url("/"))).await;
        assert_eq!(desk.ask(&json!({})).await, Err("Elsewhere".to_owned()));
        assert_eq!(server.asked().len(), 1);
    }
    // Nor is it an answer if it is not what the tool says that it answers.
    let server = HttpServer::answering(|asked| match &asked.path[..] {
        "/meta" => says(200, r#"{"output_schema": {"type": "integer"}}"#),
        _ => says(409, &asked.body.to_string()),
    })
    .await;
    let page = Page::new(web(), at(&server.url("/meta")), 1 << 20, Duration::from_secs(60));
    let desk = Desk::of(tool(&server.url("/invoke")).defined_by(Source::Meta(page))).await;
    assert_eq!(desk.ask(&json!(9)).await, Ok(json!(9)));
    assert_eq!(desk.ask(&json!("nine")).await, Err("Elsewhere".to_owned()));
}

#[tokio::test]
async fn a_tool_that_asks_for_time_gets_it_at_no_cost() {
    let busy = says(429, "").with("retry-after", "1");
    let server = HttpServer::in_turn(vec![busy, says(503, ""), says(503, ""), says(503, ""), says(200, "1")]).await;
    let desk = Desk::of(tool(&server.url("/"))).await;
    let begun = tokio::time::Instant::now();
    let id = desk.submit(&json!({})).await;
    assert_eq!(desk.answer(id).await, Ok(json!(1)), "four refusals cost no attempt of two");
    assert!(begun.elapsed() >= Duration::from_secs(1), "it asked for a second");
}

/// A tool whose definition, at `/meta`, says that it takes and answers numbers.
async fn defined(answer: &'static str) -> (HttpServer, HttpTool) {
    let server = HttpServer::answering(move |asked| match &asked.path[..] {
        "/meta" => says(200, r#"{"input_schema": {"type": "integer"}, "output_schema": {"type": "integer"}}"#),
        _ => says(200, answer),
    })
    .await;
    let page = Page::new(web(), at(&server.url("/meta")), 1 << 20, Duration::from_secs(60));
    let tool = tool(&server.url("/invoke")).defined_by(Source::Meta(page));
    (server, tool)
}

#[tokio::test]
async fn what_a_tool_takes_and_answers_is_held_against_its_own_words() {
    let (server, tool) = defined("9").await;
    let desk = Desk::of(tool).await;
    assert_eq!(desk.ask(&json!(3)).await, Ok(json!(9)));
    let told = desk.ask(&json!("three")).await.unwrap_err();
    assert!(told.starts_with("the input is not what the tool takes: the value: "), "{told}");
    let paths: Vec<String> = server.asked().iter().map(|asked| asked.path.clone()).collect();
    assert_eq!(paths, ["/meta", "/invoke"], "the definition is read once, and what it forbids is not sent");
}

#[tokio::test]
async fn a_tool_that_does_not_keep_its_word_costs_its_own_requests() {
    let (server, tool) = defined(r#""nine""#).await;
    let desk = Desk::of(tool).await;
    let told = desk.ask(&json!(3)).await.unwrap_err();
    assert!(told.starts_with("the tool's answer is not what it says that it answers: the value: "), "{told}");
    assert_eq!(server.asked().len(), 3, "its definition, and two attempts");
}

#[tokio::test]
async fn a_definition_that_cannot_be_used_is_waited_for() {
    let definitions = vec![says(200, r##"{"output_schema": {"$ref": "#"}}"##), says(404, ""), says(200, "{}")];
    let answers = Arc::new(std::sync::Mutex::new(definitions));
    let server = HttpServer::answering(move |asked| match &asked.path[..] {
        "/meta" => answers.lock().unwrap().remove(0),
        _ => says(200, "1"),
    })
    .await;
    let page = Page::new(web(), at(&server.url("/meta")), 1 << 20, Duration::ZERO);
    let desk = Desk::of(tool(&server.url("/invoke")).defined_by(Source::Meta(page))).await;
    let id = desk.submit(&json!({})).await;
    // A page that is not there is a person's mistake; the request must not pay for it.
    assert_eq!(desk.answer(id).await, Ok(json!(1)));
}

/// Who takes the connection and says nothing keeps nobody from trying again, at no cost.
#[tokio::test]
async fn a_definition_that_hangs_is_waited_for() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = HttpServer::answering(|_| says(200, "1")).await;
    let meta = format!("http://{}/meta", silent.local_addr().unwrap());
    let page = Page::new(web(), at(&meta), 1 << 20, Duration::from_secs(60));
    let tool = tool(&server.url("/invoke")).defined_by(Source::Meta(page));
    // The desk gives an attempt two seconds.
    let desk = Desk::with(Work::new(Arc::new(tool)).within(Duration::from_secs(2))).await;
    let id = desk.submit(&json!({})).await;
    assert_eq!(desk.until_trouble(id, "it could not be read in time").await, ErrorClass::Transport);
    let _meta = HttpServer::on(silent, |_| says(200, "{}"));
    assert_eq!(desk.answer(id).await, Ok(json!(1)));
}

#[tokio::test]
async fn one_request_that_names_nobody_does_not_make_the_tool_away() {
    let server = HttpServer::answering(|_| says(200, "1")).await;
    let presence = Presence::new(Arc::new(SystemClock::new()));
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nowhere = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let named = Work::new(Arc::new(tool("{request/url}/invoke"))).telling(presence.clone());
    let desk = Desk::with(named).await;
    assert_eq!(desk.ask(&json!({"url": server.url("")})).await, Ok(json!(1)));
    let id = desk.submit(&json!({"url": nowhere})).await;
    assert_eq!(desk.until_trouble(id, "it cannot be reached").await, ErrorClass::Transport);
    assert_eq!(presence.away(), None, "it is the request's own fault");
    let fixed = Work::new(Arc::new(tool(&nowhere))).telling(presence.clone());
    let desk = Desk::with(fixed).await;
    let id = desk.submit(&json!({})).await;
    desk.until_trouble(id, "it cannot be reached").await;
    assert!(presence.away().is_some_and(|away| away.why.starts_with("it cannot be reached")));
}

#[tokio::test]
async fn a_status_means_the_same_however_much_is_said_with_it() {
    let page = "x".repeat(4 << 20);
    let server =
        HttpServer::in_turn(vec![says(503, &page), says(503, &page), says(503, &page), says(400, &page)]).await;
    let options = HttpOptions { answer_bytes_max: 1000, ..HttpOptions::default() };
    let desk = Desk::of(tool_with(web(), &server.url("/"), options)).await;
    let ending = desk.ask(&json!({})).await;
    assert_eq!(ending, Err("the tool answered 400".to_owned()), "three refusals cost no attempt of two");
    assert_eq!(server.asked().len(), 4);
}

#[tokio::test]
async fn an_answer_without_an_end_is_cut_off() {
    let server = HttpServer::answering(|_| says(200, &"x".repeat(4 << 20))).await;
    let options = HttpOptions { answer_bytes_max: 1000, ..HttpOptions::default() };
    let desk = Desk::of(tool_with(web(), &server.url("/"), options)).await;
    assert_eq!(desk.ask(&json!({})).await, Err("an answer of more than 1000 bytes".to_owned()));
}

#[tokio::test]
async fn internal_addresses_are_not_called_however_they_are_named() {
    let server = HttpServer::answering(|_| says(200, "1")).await;
    let port = server.address.port();
    let guarded = || Web::new(Allowed::default(), ClientTls::default()).unwrap();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "127.1", "0x7f000001"] {
        let desk = Desk::of(tool_with(guarded(), &format!("http://{host}:{port}/"), HttpOptions::default())).await;
        let id = desk.submit(&json!({})).await;
        // A name that is none here is as good.
        assert_eq!(desk.until_trouble(id, "").await, ErrorClass::Transport, "{host}");
    }
    assert_eq!(server.asked().len(), 0, "nobody was called");
    // Where requests say whom to call, such a request is over.
    let steered = HttpTool::new(
        guarded(),
        UrlTemplate::read("{request/url}", &KNOWN).unwrap(),
        Arc::new(SystemClock::new()),
        HttpOptions::default(),
    );
    let told = Desk::of(steered).await.ask(&json!({"url": format!("http://localhost:{port}")})).await.unwrap_err();
    assert!(told.contains("this machine: name it in `internal` if it is meant"), "{told}");
    assert_eq!(server.asked().len(), 0, "nobody was called");
}

/// Answers on one connection: two to the first call, the second of which nobody asked for.
#[tokio::test]
async fn a_second_answer_is_nobodys_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut connections = 0;
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            connections += 1;
            let own = connections;
            tokio::spawn(async move {
                let mut heard = vec![0; 64 << 10];
                while stream.read(&mut heard).await.is_ok_and(|bytes| bytes > 0) {
                    let answer = |n: u32| format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{n}");
                    let both = format!("{}{}", answer(own), answer(9));
                    if stream.write_all(both.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let desk = Desk::of(tool(&url)).await;
    for n in 0..5 {
        let answer = desk.ask(&json!({"n": n})).await.unwrap();
        assert_ne!(answer, json!(9), "an answer that nobody asked for was taken");
    }
}

#[tokio::test]
async fn a_tool_that_is_not_there_is_waited_for_at_no_cost() {
    let place = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = place.local_addr().unwrap();
    drop(place);
    let desk = Desk::of(tool(&format!("http://{address}/"))).await;
    let id = desk.submit(&json!({})).await;
    assert_eq!(desk.until_trouble(id, "it cannot be reached").await, ErrorClass::Transport);
    let _server = HttpServer::on(TcpListener::bind(address).await.unwrap(), |_| says(200, "1"));
    assert_eq!(desk.answer(id).await, Ok(json!(1)));
}

#[tokio::test]
async fn a_tool_that_is_not_well_is_given_nothing() {
    let well = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let says_so = well.clone();
    let server = HttpServer::answering(move |asked| match &asked.path[..] {
        "/health" if says_so.load(std::sync::atomic::Ordering::SeqCst) => says(200, "{}"),
        "/health" => says(503, ""),
        _ => says(200, "1"),
    })
    .await;
    let (watch, open) = HealthWatch::new(web(), &server.url("/health"), Duration::from_millis(10));
    let shutdown = Shutdown::new();
    let watching = tokio::spawn(watch.run("route".to_owned(), shutdown.clone()));
    let work = Work::new(Arc::new(tool(&server.url("/invoke")).while_well(open.clone())));
    let desk = Desk::open(work, WorkerOptions::default(), Some(open)).await;
    let id = desk.submit(&json!({})).await;
    // It was asked how it is, more than once, and nothing else.
    while server.asked().len() < 5 {
        tokio::task::yield_now().await;
    }
    assert!(server.asked().iter().all(|asked| asked.path == "/health"));
    assert_eq!(desk.trouble(id).await, (0, None), "the request was not even taken");
    well.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(desk.answer(id).await, Ok(json!(1)));
    shutdown.cancel();
    watching.await.unwrap().unwrap();
}

#[tokio::test]
async fn both_sides_show_who_they_are() {
    let (own, other) = (authority(), authority());
    let server = HttpServer::on(Guarded::by(&own).await, |_| says(200, "1"));
    let url = format!("https://localhost:{}/", server.address.port());
    let tool = |tls: ClientTls| {
        let web = Web::new(Allowed::read(&["127.0.0.1".into(), "::1".into()]).unwrap(), tls).unwrap();
        tool_with(web, &url, HttpOptions::default())
    };
    let tls = |trusted: Option<&Authority>, shown: Option<&Authority>| ClientTls {
        trusted: trusted.map(|authority| authority.pem().into_bytes()),
        own: shown.map(|authority| {
            let (chain, key) = certificate(authority, ExtendedKeyUsagePurpose::ClientAuth);
            (chain.into_bytes(), key.into_bytes())
        }),
    };
    let known = tool(tls(Some(&own), Some(&own)));
    assert_eq!(known.probe().await, Ok(()));
    assert_eq!(Desk::of(known).await.ask(&json!({})).await, Ok(json!(1)));
    let asked = server.asked().len();
    let strangers =
        [tls(None, Some(&own)), tls(Some(&other), Some(&own)), tls(Some(&own), None), tls(Some(&own), Some(&other))];
    for stranger in strangers {
        let tool = tool(stranger);
        let told = tool.probe().await.unwrap_err();
        assert!(told.starts_with("it cannot be reached: "), "{told}");
        let desk = Desk::of(tool).await;
        let id = desk.submit(&json!({})).await;
        // A certificate is put right by a person, and until then costs no request an attempt.
        assert_eq!(desk.until_trouble(id, "").await, ErrorClass::Transport);
    }
    assert_eq!(server.asked().len(), asked, "nobody else was let in");
}
