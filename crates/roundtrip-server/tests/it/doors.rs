//! The door: encrypted if that is wanted, and no wider than the configuration says. How often one may call is for `auth.rs`.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use reqwest::{Certificate, Client, Method, StatusCode};
use roundtrip_client::{Options, Settings, Shutdown, Worker};
use roundtrip_wire::v1::FromWorker;
use serde_json::json;
use tonic::Code;

use super::certificate::certificate;
use super::program::{PROGRAM, Program};
use super::stream::{Line, answer, wants};

const ROUTE: &str = r#"
[store]
url = "memory:"

[routes.work]
to = "caller"

[destinations.caller.keep]
at_least = "1h"
"#;

/// The trusted certificate lets calls and streams through; without it nobody gets in, nor without encryption.
#[tokio::test]
async fn whoever_trusts_the_certificate_gets_through_and_nobody_else() {
    let (folder, made) = (tempfile::tempdir().unwrap(), certificate());
    let config =
        format!("{ROUTE}\n[api.tls]\ncertificate = \"{0}/cert.pem\"\nkey = \"{0}/key.pem\"\n", made.path().display());
    let program = Program::start(folder.path(), &config);
    let url = program.base().replace("http://127.0.0.1", "https://localhost");
    let pem = std::fs::read(made.path().join("cert.pem")).unwrap();
    let trusted = Certificate::from_pem(&pem).unwrap();
    let trusting = Client::builder().tls_certs_only([trusted]).timeout(Duration::from_secs(30)).build().unwrap();
    let health = trusting.get(format!("{url}/health")).send().await.unwrap();
    assert_eq!((health.status(), health.text().await.unwrap()), (StatusCode::OK, "ok\n".to_owned()));
    assert!(program.call_at(&url, Method::GET, "/health").send().await.is_err(), "nobody vouches for the certificate");
    assert!(program.call(Method::GET, "/health").send().await.is_err(), "it is not encrypted");
    let plain = Line::open(program.base(), None, wants("work", 1)).await;
    assert!(plain.is_err(), "a stream that is not encrypted");
    // Each way tells a certificate that it does not trust from a program that is away.
    let authority = made.path().join("cert.pem").display().to_string();
    let routes = |given: &[&str]| {
        let listed = Command::new(PROGRAM).args(["routes", "list", "--url", &url]).args(given).output().unwrap();
        (listed.status.success(), String::from_utf8([listed.stdout, listed.stderr].concat()).unwrap())
    };
    let (done, said) = routes(&["--ca", &authority]);
    assert!(done && said.contains("work"), "{said}");
    let (done, said) = routes(&[]);
    assert!(!done && said.contains("is not trusted: ") && said.contains("--ca"), "{said}");
    let key = made.path().join("key.pem").display().to_string();
    for (file, why) in [(key.as_str(), "it holds no certificate"), ("nowhere.pem", "nowhere.pem")] {
        let (done, said) = routes(&["--ca", file]);
        assert!(!done && said.contains(why), "{said}");
    }
    let strangers = roundtrip_client::Client::new(Settings::of(&url)).unwrap();
    let refused = strangers.lease("work", "w", 1, Duration::ZERO).await.unwrap_err().to_string();
    assert!(refused.contains("certificate"), "{refused}");
    // Work over a stream, and an answer to whoever asked.
    let settings = Settings { trusted: Some(pem), ..Settings::of(&url) };
    let worker = Worker::streaming(settings, Options::of("work", "w")).unwrap();
    let stop = Shutdown::new();
    let working = tokio::spawn({
        let stop = stop.clone();
        async move { worker.run(|job| async move { Ok(json!({"of": job.payload})) }, stop).await }
    });
    let asked = trusting.post(format!("{url}/v1/routes/work/requests?wait=20s")).body("7").send().await.unwrap();
    let told: serde_json::Value = serde_json::from_str(&asked.text().await.unwrap()).unwrap();
    assert_eq!(told["response"], json!({"of": 7}), "{told}");
    stop.cancel();
    working.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_is_too_large_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("{ROUTE}\n[api]\nbody_bytes_max = 1000\nheader_bytes_max = 9000\n");
    let program = Program::start(folder.path(), &config);
    let submitted = async |bytes: usize| {
        let call = program.call(Method::POST, "/v1/routes/work/requests").header("content-type", "text/plain");
        call.body(vec![b'x'; bytes]).send().await.unwrap().status()
    };
    assert_eq!(submitted(1000).await, StatusCode::CREATED);
    assert_eq!(submitted(1001).await, StatusCode::PAYLOAD_TOO_LARGE);
    let bulk = json!({"requests": [{"payload": "x".repeat(1000)}]});
    let (status, told) = program.post("/v1/routes/work/requests/bulk", &bulk).await;
    let why = "the body is too large: 1000 bytes are taken at the most (api.body_bytes_max)";
    assert_eq!((status, &told["detail"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!(why)));
    let headed = async |bytes: usize| {
        let call = program.call(Method::GET, "/health").header("x-long", "x".repeat(bytes));
        call.send().await.unwrap().status()
    };
    assert_eq!(headed(8000).await, StatusCode::OK);
    // What comes with the last bytes that fit is read with them.
    assert_eq!(headed(30_000).await, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    // The same on a stream: a message that is too large ends it, and says why.
    let mut line = Line::open(program.base(), None, wants("work", 1)).await.unwrap();
    let held = line.next().await.unwrap().jobs.remove(0).held.unwrap();
    let large = answer(&held, Box::leak(format!("\"{}\"", "x".repeat(1000)).into_boxed_str()));
    line.say(FromWorker { answer: vec![large], ..FromWorker::default() });
    assert_eq!(line.next().await.unwrap_err().code(), Code::OutOfRange);
}

/// Asks for something on a connection that stays open.
fn ask(connection: &mut TcpStream) {
    connection.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
}

fn answered(connection: &mut TcpStream) -> std::io::Result<String> {
    let mut heard = vec![0; 4096];
    let count = connection.read(&mut heard)?;
    Ok(String::from_utf8_lossy(&heard[..count]).into_owned())
}

#[test]
fn beyond_the_limit_of_connections_callers_wait() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), &format!("{ROUTE}\n[api]\nconnections_max = 1\n"));
    let address = program.base().trim_start_matches("http://");
    let [mut first, mut second] = [(); 2].map(|()| TcpStream::connect(address).unwrap());
    ask(&mut first);
    assert!(answered(&mut first).unwrap().starts_with("HTTP/1.1 200"));
    ask(&mut second);
    second.set_nonblocking(true).unwrap();
    for _ in 0..50 {
        ask(&mut first);
        assert!(answered(&mut first).unwrap().starts_with("HTTP/1.1 200"));
        assert_eq!(answered(&mut second).unwrap_err().kind(), ErrorKind::WouldBlock, "there is no room for it");
    }
    drop(first);
    second.set_nonblocking(false).unwrap();
    assert!(answered(&mut second).unwrap().starts_with("HTTP/1.1 200"));
}

/// Waits for work that never comes. It is itself refused while another call is under way, and asks again.
fn holding_the_only_call(program: &Program) -> impl Future<Output = ()> + Send + 'static {
    let asks = program.call(Method::POST, "/v1/work/lease").header("content-type", "application/json");
    let asks = asks.body(json!({"route": "work", "worker": "w", "wait_ms": 30_000}).to_string());
    async move {
        while asks.try_clone().unwrap().send().await.unwrap().status() == StatusCode::SERVICE_UNAVAILABLE {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn beyond_the_limit_of_calls_callers_are_told_to_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), &format!("{ROUTE}\n[api]\ncalls_max = 1\n"));
    let waiting = tokio::spawn(holding_the_only_call(&program));
    let refused = loop {
        let answer = program.call(Method::GET, "/v1/counts").send().await.unwrap();
        if answer.status() == StatusCode::SERVICE_UNAVAILABLE {
            break answer;
        }
        assert!(!waiting.is_finished(), "nobody was refused while another waited");
        tokio::task::yield_now().await;
    };
    assert_eq!(refused.headers()["retry-after"], "1");
    assert!(refused.text().await.unwrap().contains("too many calls"));
    waiting.abort();
    // Whoever hangs up makes room.
    while program.call(Method::GET, "/v1/counts").send().await.unwrap().status() != StatusCode::OK {
        tokio::task::yield_now().await;
    }
}
