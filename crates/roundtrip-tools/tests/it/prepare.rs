//! Reads before the work: a registry that tells which tool is called, and how it is held to its word.

use std::sync::Arc;
use std::time::Duration;

use roundtrip::clock::SystemClock;
use roundtrip::words::ErrorClass;
use roundtrip_evm::mapping::Mapping;
use roundtrip_tools::http::{HttpOptions, HttpTool, Source};
use roundtrip_tools::identity::Identity;
use roundtrip_tools::prepare::Page;
use roundtrip_tools::{Meaning, Preparation, Prepared, UrlTemplate, Work};
use serde_json::json;
use tokio::net::TcpListener;

use super::desk::{Desk, web};
use super::tool::{HttpServer, says};

const KNOWN: [&str; 2] = ["id", "request"];

fn page(url: &str, ttl: Duration) -> Prepared {
    Prepared::Page(Page::new(web(), UrlTemplate::read(url, &KNOWN).unwrap(), 1 << 20, ttl))
}

fn preparation(url: &str, ttl: Duration) -> Preparation {
    Preparation { name: "tool".to_owned(), prepared: page(url, ttl), failure: None }
}

#[tokio::test]
async fn a_registry_says_which_tool_is_called_and_what_it_takes() {
    let tools =
        HttpServer::answering(|asked| says(200, &json!({"from": asked.path, "was": asked.body}).to_string())).await;
    let base = tools.url("/square/");
    let registry = HttpServer::answering(move |asked| match &asked.path[..] {
        "/tools/x.square%401" => says(200, &json!({"url": base, "input_schema": {"type": "integer"}}).to_string()),
        _ => says(404, ""),
    })
    .await;
    let known = [&KNOWN[..], &["tool"]].concat();
    let tool = HttpTool::new(
        web(),
        UrlTemplate::read("{tool/url}/invoke", &known).unwrap(),
        Arc::new(SystemClock::new()),
        HttpOptions::default(),
    );
    let work = Work::new(Arc::new(tool.defined_by(Source::Part("/tool".to_owned()))))
        .prepared_by(vec![preparation(&registry.url("/tools/{request/tool}"), Duration::from_secs(60))])
        .with_input(Mapping::read(&json!("/request/n"), &known));
    let desk = Desk::with(work).await;
    for n in 0..3 {
        let answer = desk.ask(&json!({"tool": "x.square@1", "n": n})).await;
        assert_eq!(answer, Ok(json!({"from": "/square/invoke", "was": n})));
    }
    assert_eq!(registry.asked().len(), 1, "an entry is believed for its time");
    let told = desk.ask(&json!({"tool": "x.square@1", "n": "seven"})).await.unwrap_err();
    assert!(told.starts_with("the input is not what the tool takes"), "{told}");
    let told = desk.ask(&json!({"tool": "nobody", "n": 1})).await;
    assert_eq!(told, Err("preparing tool: its page answered 404".to_owned()), "it is not there: that is final");
    assert_eq!(tools.asked().len(), 3);
}

#[tokio::test]
async fn what_a_failed_read_means_is_its_own_to_say() {
    let registry = HttpServer::in_turn(vec![says(404, ""), says(404, ""), says(404, ""), says(200, "7")]).await;
    let waits = Preparation { failure: Some(Meaning::Unavailable), ..preparation(&registry.url("/x"), Duration::ZERO) };
    let desk = Desk::with(Work::new(Arc::new(Identity)).prepared_by(vec![waits])).await;
    let id = desk.submit(&json!(1)).await;
    assert_eq!(desk.answer(id).await, Ok(json!({"id": id.to_string(), "request": 1, "tool": 7})), "at no cost");
}

/// Whoever hangs: the read ends before the attempt does, and costs none.
#[tokio::test]
async fn reads_that_hang_are_waited_for() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slow = Preparation {
        name: "slow".to_owned(),
        ..preparation(&format!("http://{}/", silent.local_addr().unwrap()), Duration::ZERO)
    };
    // The desk gives an attempt two seconds.
    let work = Work::new(Arc::new(Identity)).prepared_by(vec![slow]).within(Duration::from_secs(2));
    let desk = Desk::with(work).await;
    let id = desk.submit(&json!(1)).await;
    let words = "preparing slow: it could not be read in time";
    assert_eq!(desk.until_trouble(id, words).await, ErrorClass::Transport);
    let _page = HttpServer::on(silent, |_| says(200, "7"));
    assert_eq!(desk.answer(id).await, Ok(json!({"id": id.to_string(), "request": 1, "slow": 7})));
}

#[tokio::test]
async fn the_payload_or_a_part_of_it_is_the_answer() {
    let desk = Desk::of(Identity).await;
    assert_eq!(desk.ask(&json!({"n": 1})).await, Ok(json!({"n": 1})));
    let part = Work::new(Arc::new(Identity)).with_input(Mapping::read(&json!({"m": "/request/n"}), &KNOWN));
    let desk = Desk::with(part).await;
    assert_eq!(desk.ask(&json!({"n": 1})).await, Ok(json!({"m": 1})));
    assert_eq!(desk.ask(&json!({})).await, Err("no input can be made: there is no /request/n".to_owned()));
}
