//! Workers that the program calls, and what becomes of requests when they misbehave: slow, wrong, huge,
//! unreachable, lying, answering twice, restarting. Meanwhile another route's tool goes on.

use std::convert::Infallible;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use alloy::primitives::{Bytes, keccak256};
use axum::Router;
use axum::body::Body;
use futures_util::stream;
use rcgen::ExtendedKeyUsagePurpose;
use reqwest::StatusCode;
use roundtrip_evm::testkit::deployment::answer_to;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::certificates::{Guarded, authority, certificate};
use super::chain::Site;
use super::program::{PROGRAM, Program};
use super::squares::{Squares, descriptors};
use super::tool::{HttpServer, says};

/// A program with a route of a good tool, and one whose work is said in this text.
struct Pair {
    program: Program,
    folder: tempfile::TempDir,
    config: String,
    _good: HttpServer,
}

/// How many requests a bad tool is given at once: more than it is asked at a time.
const MANY: usize = 12;

impl Pair {
    async fn start(bad: &str) -> Pair {
        Pair::beside(bad, &[]).await
    }

    /// The same, with these files beside its configuration.
    async fn beside(bad: &str, files: &[(&str, &str)]) -> Pair {
        let good = HttpServer::answering(|asked| {
            let n = asked.body["n"].as_u64().unwrap();
            says(200, &json!({"square": n * n}).to_string())
        })
        .await;
        let config = format!(
            r#"
[store]
url = "sqlite:store.db"

[destinations.caller.keep]
at_least = "1h"

[routes.good]
to = "caller"

[routes.good.work]
internal = ["127.0.0.1"]
http.url = "{}"

[routes.bad]
to = "caller"
attempts_max = 2
backoff = {{ first = "10ms", max = "50ms" }}
lease = "2s"
crashes_max = 100

[routes.bad.work]
internal = ["127.0.0.1"]
concurrency = 4
{timeout}
{bad}
"#,
            good.url("/"),
            timeout = if bad.contains("timeout") { "" } else { "timeout = \"500ms\"" },
        );
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("squares.binpb"), descriptors()).unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let program = Program::start(folder.path(), &config);
        Pair { program, folder, config, _good: good }
    }

    async fn submit(&self, route: &str, payload: Value) -> String {
        let (status, accepted) = self.program.post(&format!("/v1/routes/{route}/requests"), &payload).await;
        assert_eq!(status, StatusCode::CREATED, "{accepted}");
        accepted["status_url"].as_str().unwrap().to_owned()
    }

    async fn ended(&self, status_url: &str) -> Value {
        let (status, found) = self.program.get(&format!("{status_url}?wait=30s")).await;
        assert_eq!(status, StatusCode::OK, "{found}");
        found
    }

    /// The good tool answers as ever.
    async fn good_goes_on(&self) {
        for n in 0..10 {
            let asked = self.submit("good", json!({"n": n})).await;
            assert_eq!(self.ended(&asked).await["response"], json!({"square": n * n}));
        }
    }

    /// Gives the bad tool many requests; all of them end dead, with these words, after so many attempts, while the
    /// good one goes on.
    async fn ends_dead(&self, payload: Value, words: &str, attempts: u64) {
        let mut asked = Vec::new();
        for n in 0..MANY {
            let mut payload = payload.clone();
            payload["number"] = json!(n);
            asked.push(self.submit("bad", payload).await);
        }
        self.good_goes_on().await;
        for one in asked {
            let end = self.ended(&one).await;
            assert_eq!(end["state"], json!("dead"), "{end}");
            assert_eq!(end["attempts"], json!(attempts), "{end}");
            assert!(end["error"]["text"].as_str().unwrap().contains(words), "{end}");
        }
    }

    /// Waits until a request of the bad tool's has this trouble; it is queued, and has cost nothing.
    async fn waits_at_no_cost(&self, status_url: &str, words: &str) {
        loop {
            let (_, found) = self.program.get(status_url).await;
            if found["error"]["text"].as_str().is_some_and(|text| text.contains(words)) {
                assert_ne!(found["state"], json!("dead"), "{found}");
                assert_eq!(found["error"]["class"], json!("transport"), "{found}");
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// The program dies, and comes back.
    fn again(self) -> Pair {
        let Pair { program, folder, config, _good } = self;
        program.kill();
        let program = Program::start(folder.path(), &config);
        Pair { program, folder, config, _good }
    }
}

/// A server of one answer, that any response of axum's can be.
async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    url
}

#[tokio::test]
async fn a_slow_tool_costs_attempts_of_its_own_requests() {
    let url = serve(Router::new().fallback(|| async {
        std::future::pending::<()>().await;
    }))
    .await;
    let pair = Pair::start(&format!("http.url = \"{url}\"")).await;
    pair.ends_dead(json!({}), "the handler took longer than 500 ms", 2).await;
}

#[tokio::test]
async fn a_tool_that_answers_byte_by_byte_is_slow_too() {
    let url = serve(Router::new().fallback(|| async {
        let drops = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Some((Ok::<_, Infallible>(bytes::Bytes::from_static(b" ")), ()))
        });
        Body::from_stream(drops)
    }))
    .await;
    let pair = Pair::start(&format!("http.url = \"{url}\"")).await;
    pair.ends_dead(json!({}), "the handler took longer than 500 ms", 2).await;
}

#[tokio::test]
async fn a_wrong_answer_is_a_failed_attempt() {
    let server = HttpServer::answering(|_| says(200, "<html>welcome</html>")).await;
    let pair = Pair::start(&format!("http.url = \"{}\"", server.url("/"))).await;
    pair.ends_dead(json!({}), "the tool's answer is no JSON", 2).await;
    assert_eq!(server.asked().len(), 2 * MANY);
}

#[tokio::test]
async fn a_huge_answer_is_cut_off() {
    let url = serve(Router::new().fallback(|| async {
        let flood = stream::repeat_with(|| Ok::<_, Infallible>(bytes::Bytes::from_static(&[b'7'; 64 << 10])));
        Body::from_stream(flood)
    }))
    .await;
    let pair = Pair::start(&format!("http = {{ url = \"{url}\", answer_bytes_max = 100000 }}")).await;
    pair.ends_dead(json!({}), "an answer of more than 100000 bytes", 2).await;
}

#[tokio::test]
async fn an_unreachable_tool_is_waited_for_at_no_cost() {
    let place = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = place.local_addr().unwrap();
    drop(place);
    let pair = Pair::start(&format!("http.url = \"http://{address}/\"")).await;
    let mut asked = Vec::new();
    for n in 0..MANY {
        asked.push(pair.submit("bad", json!({"n": n})).await);
    }
    for one in &asked {
        pair.waits_at_no_cost(one, "it cannot be reached").await;
    }
    pair.good_goes_on().await;
    let _server = HttpServer::on(TcpListener::bind(address).await.unwrap(), |_| says(200, "1"));
    for one in &asked {
        assert_eq!(pair.ended(one).await["response"], json!(1));
    }
}

#[tokio::test]
async fn a_tool_that_lies_about_its_schema_costs_its_own_requests() {
    let server = HttpServer::answering(|asked| match &asked.path[..] {
        "/meta" => says(200, r#"{"input_schema": {"type": "object"}, "output_schema": {"type": "integer"}}"#),
        _ => says(200, r#""seven""#),
    })
    .await;
    let work = format!("http = {{ url = \"{}\", meta = \"{}\" }}", server.url("/invoke"), server.url("/meta"));
    let pair = Pair::start(&work).await;
    pair.ends_dead(json!({}), "the tool's answer is not what it says that it answers", 2).await;
    let refused = pair.submit("bad", json!("no object")).await;
    let end = pair.ended(&refused).await;
    assert_eq!((&end["state"], &end["attempts"]), (&json!("dead"), &json!(1)), "{end}");
    assert!(end["error"]["text"].as_str().unwrap().contains("the input is not what the tool takes"), "{end}");
}

#[tokio::test]
async fn a_schema_that_would_never_end_stops_nobody() {
    let server = HttpServer::answering(|asked| match &asked.path[..] {
        "/meta" => says(200, r##"{"output_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#"}}}}"##),
        _ => says(200, "[]"),
    })
    .await;
    let work = format!("http = {{ url = \"{}\", meta = \"{}\" }}", server.url("/invoke"), server.url("/meta"));
    let pair = Pair::start(&work).await;
    let asked = pair.submit("bad", json!({})).await;
    pair.waits_at_no_cost(&asked, "the tool's definition cannot be used").await;
    pair.good_goes_on().await;
}

#[tokio::test]
async fn a_tool_that_answers_twice_is_heard_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut heard = vec![0; 64 << 10];
                while let Ok(bytes @ 1..) = stream.read(&mut heard).await {
                    let text = String::from_utf8_lossy(&heard[..bytes]).into_owned();
                    let body = text.rsplit("\r\n\r\n").next().unwrap_or_default().to_owned();
                    let answer =
                        |body: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                    let both = answer(&body) + &answer(r#""what nobody asked for""#);
                    if stream.write_all(both.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let pair = Pair::start(&format!("http.url = \"{url}\"")).await;
    let mut asked = Vec::new();
    for n in 0..2 * MANY {
        asked.push((n, pair.submit("bad", json!({"n": n})).await));
    }
    for (n, one) in asked {
        let end = pair.ended(&one).await;
        // A call whose body came apart from its head may have failed; none has another's answer.
        assert!(end["response"] == json!({"n": n}) || end["state"] == "dead", "{end}");
    }
    pair.good_goes_on().await;
}

#[tokio::test]
async fn an_answer_that_comes_after_its_attempt_is_over_is_not_taken() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let url = serve(Router::new().fallback(move || {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            if call == 0 {
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
            call.to_string()
        }
    }))
    .await;
    let pair = Pair::start(&format!("http.url = \"{url}\"")).await;
    let asked = pair.submit("bad", json!({})).await;
    let end = pair.ended(&asked).await;
    assert_eq!((&end["response"], &end["attempts"]), (&json!(1), &json!(2)), "the second attempt's: {end}");
    pair.good_goes_on().await;
}

#[tokio::test]
async fn a_tool_that_is_not_well_is_given_no_work() {
    let well = Arc::new(AtomicBool::new(false));
    let says_so = well.clone();
    let server = HttpServer::answering(move |asked| match &asked.path[..] {
        "/health" if says_so.load(Ordering::SeqCst) => says(200, ""),
        "/health" => says(500, ""),
        _ => says(200, "1"),
    })
    .await;
    let (url, health) = (server.url("/invoke"), server.url("/health"));
    let pair =
        Pair::start(&format!("http = {{ url = \"{url}\", health = \"{health}\", health_every = \"20ms\" }}")).await;
    let asked = pair.submit("bad", json!({})).await;
    pair.good_goes_on().await;
    assert!(server.asked().iter().all(|asked| asked.path == "/health"), "{:?}", server.asked());
    let (_, found) = pair.program.get(&asked).await;
    assert_eq!((&found["state"], &found["attempts"]), (&json!("queued"), &json!(0)), "{found}");
    well.store(true, Ordering::SeqCst);
    assert_eq!(pair.ended(&asked).await["response"], json!(1));
}

/// A tool behind an authority of its own, which wants to see who calls.
#[tokio::test]
async fn a_tool_behind_its_own_authority_is_called_with_a_certificate() {
    let own = authority();
    let server = HttpServer::on(Guarded::by(&own).await, |_| says(200, "1"));
    let port = server.address.port();
    let work = format!(
        r#"
http = {{ url = "https://localhost:{port}/invoke", health = "https://localhost:{port}/health", health_every = "20ms" }}
tls = {{ ca = "ca.pem", certificate = "client.pem", key = "client.key" }}
"#
    );
    let (certificate, key) = certificate(&own, ExtendedKeyUsagePurpose::ClientAuth);
    let files = [("ca.pem", own.pem()), ("client.pem", certificate), ("client.key", key)];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let pair = Pair::beside(&work, &files).await;
    let asked = pair.submit("bad", json!({})).await;
    assert_eq!(pair.ended(&asked).await["response"], json!(1));
}

const SQUARES: &str = r#"
timeout = "20s"
input = { request_id = "/id", n = "/request/n" }

[routes.bad.work.grpc]
urls = ["URL"]
method = "test.v1.Squares/Submit"
descriptors = "squares.binpb"

[routes.bad.work.grpc.poll]
method = "test.v1.Squares/Fetch"
request = { request_id = "/id" }
every = "20ms"
answer = "/result"
"#;

#[tokio::test]
async fn a_grpc_service_that_restarts_gets_what_it_forgot() {
    let squares = Squares::default();
    let serving = squares.serve("127.0.0.1:0", None);
    let address = serving.address;
    let pair = Pair::start(&SQUARES.replace("URL", &serving.url())).await;
    let first = pair.submit("bad", json!({"n": 3})).await;
    assert_eq!(pair.ended(&first).await["response"], json!({"square": "9", "proof": ""}));
    drop(serving);
    let mut asked = Vec::new();
    for n in 2..10_u64 {
        asked.push((n, pair.submit("bad", json!({"n": n})).await));
    }
    pair.waits_at_no_cost(&asked[0].1, "it cannot be reached").await;
    pair.good_goes_on().await;
    let reborn = Squares::default();
    let _serving = reborn.serve(&address.to_string(), None);
    for (n, one) in &asked {
        let end = pair.ended(one).await;
        assert_eq!(end["response"], json!({"square": (n * n).to_string(), "proof": ""}), "{end}");
    }
    assert_eq!(reborn.book.lock().unwrap().submissions, 8, "each was submitted once");
}

#[tokio::test]
async fn what_was_submitted_before_the_program_died_is_not_submitted_again() {
    let squares = Squares::default();
    let serving = squares.serve("127.0.0.1:0", None);
    let work = SQUARES.replace("URL", &serving.url()).replace("20ms", "400ms");
    let pair = Pair::start(&work).await;
    let asked = pair.submit("bad", json!({"n": 5})).await;
    while squares.book.lock().unwrap().submissions == 0 {
        tokio::task::yield_now().await;
    }
    let pair = pair.again();
    assert_eq!(pair.ended(&asked).await["response"], json!({"square": "25", "proof": ""}));
    assert_eq!(squares.book.lock().unwrap().submissions, 1);
}

fn check(folder: &Path, config: &str) -> String {
    std::fs::write(folder.join("roundtrip.toml"), config).unwrap();
    let output = Command::new(PROGRAM).arg("check").current_dir(folder).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn check_tells_what_would_not_work() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("squares.binpb"), descriptors()).unwrap();
    let makes_no_sense = r#"
[store]
url = "memory:"

[chains.main]
chain_id = 1
urls = ["http://127.0.0.1:1"]

[routes.both.work]
identity = true
http = { url = "https://tool.example" }

[routes.url.work.http]
url = "https://{request/host}/x"
outcomes = { teapot = "retry" }

[routes.method.work.grpc]
urls = ["http://127.0.0.1:1"]
method = "test.v1.Squares/Cube"
descriptors = "squares.binpb"

[routes.function.work.call]
chain = "mian"
contract = "0x12"
function = "f(uint256 id)"

[routes.internal.work]
identity = true
internal = ["localhost"]
prepare = [{ name = "request", get = "https://registry.example" }, { name = "x", get = "https://{y/z}" }, { name = "z" }]
"#;
    let told = check(folder.path(), makes_no_sense);
    for line in [
        "routes.both.work: work is one of `http`, `grpc`, `call` and `identity`",
        "routes.url.work.http.url: \"https://{request/host}/x\": a place may not stand for the host",
        "routes.method.work.grpc.method: test.v1.Squares has no method Cube: it has Square, Submit, Fetch, Watch",
        "routes.function.work.call.chain: no chain is called \"mian\"",
        "routes.internal.work.internal.0: \"localhost\" is no address and no network",
    ] {
        assert!(told.contains(line), "{line} is not in:\n{told}");
    }
    let server = HttpServer::answering(|asked| match &asked.path[..] {
        "/health" => says(500, ""),
        _ => says(200, "[]"),
    })
    .await;
    let serving = Squares::default().serve("127.0.0.1:0", None);
    let not_there = format!(
        r#"
[store]
url = "memory:"

[routes.internal.work.http]
url = "{url}"

[routes.away.work]
internal = ["127.0.0.1"]
http.url = "http://127.0.0.1:1/"

[routes.meta.work]
internal = ["127.0.0.1"]
http = {{ url = "{url}", meta = "{url}", health = "{health}", secret = {{ env = "NO_SUCH_SECRET" }} }}

[routes.method.work]
internal = ["127.0.0.1"]
grpc = {{ urls = ["{squares}"], method = "test.v1.Squares/Cube" }}

[routes.gone.work]
internal = ["127.0.0.1"]
grpc = {{ urls = ["http://127.0.0.1:1"], method = "test.v1.Squares/Square", descriptors = "squares.binpb" }}
"#,
        url = server.url("/"),
        health = server.url("/health"),
        squares = serving.url(),
    );
    let told = tokio::task::spawn_blocking({
        let folder = folder.path().to_owned();
        move || check(&folder, &not_there)
    })
    .await
    .unwrap();
    for line in [
        "routes.internal.work.http: it may not be called: 127.0.0.1, this machine: name it in `internal` if it is meant",
        "routes.away.work.http: it cannot be reached",
        "routes.meta.work.http: its definition: a definition is an object",
        "routes.meta.work.http.health: it is not well: it answered 500",
        "routes.meta.work.http.secret: no secret in the environment variable NO_SUCH_SECRET",
        "routes.method.work.grpc: test.v1.Squares has no method Cube",
        "routes.gone.work.grpc: http://127.0.0.1:1/ cannot be reached",
    ] {
        assert!(told.contains(line), "{line} is not in:\n{told}");
    }
}

#[tokio::test]
async fn from_a_chain_to_a_tool_and_back() {
    let tool = HttpServer::answering(|asked| {
        let payload: Bytes = asked.body["payload"].as_str().unwrap().parse().unwrap();
        // The program read what was asked from the contract, before it asked the tool.
        assert_eq!(asked.body["content"], json!(keccak256(&payload)));
        says(200, &json!({"content": keccak256(&payload), "answer": answer_to(&payload)}).to_string())
    })
    .await;
    let (site, folder) = (Site::ready(200).await, tempfile::tempdir().unwrap());
    let config = format!(
        r#"{}
[routes.board.work]
internal = ["127.0.0.1"]
http.url = "{}"
input = {{ payload = "/request/args/payload", content = "/content" }}

[[routes.board.work.prepare]]
name = "content"
call = {{ chain = "dev", contract = "{}", function = "contents(uint256) returns (bytes32)", arguments = ["/request/args/id"] }}
ttl = "1h"
"#,
        site.config("sqlite:store.db"),
        tool.url("/"),
        site.board,
    );
    let program = site.start(folder.path(), &config, &[]);
    let payloads: Vec<Bytes> = (0..20).map(|n| format!("request {n}").into_bytes().into()).collect();
    site.ask(&payloads).finish().await.unwrap();
    site.settled(&payloads).await;
    assert_eq!(tool.asked().len(), payloads.len());
    assert!(program.stop().contains("stopped"));
}
