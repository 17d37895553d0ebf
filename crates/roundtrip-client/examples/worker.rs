//! A worker in Rust: squares numbers. `cargo run -p roundtrip-client --example worker -- http://127.0.0.1:8080 square`

use roundtrip_client::{Client, Failure, Options, Settings, Shutdown, Worker};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(route)) = (arguments.next(), arguments.next()) else {
        return Err("usage: worker URL ROUTE; a token in ROUNDTRIP_TOKEN".into());
    };
    let client = Client::new(Settings { token: std::env::var("ROUNDTRIP_TOKEN").ok(), ..Settings::of(&url) })?;
    let shutdown = Shutdown::new();
    let stop = shutdown.clone();
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::spawn(async move {
        terminated.recv().await;
        stop.cancel();
    });
    let options = Options { in_flight: 8, ..Options::of(&route, "rust") };
    Worker::new(client, options).run(|job| async move { square(&job.payload, job.attempt) }, shutdown).await?;
    Ok(())
}

fn square(payload: &Value, attempt: u16) -> Result<Value, Failure> {
    if payload["fail_once"] == true && attempt == 1 {
        return Err(Failure::Retry("not at the first attempt".to_owned()));
    }
    let n = payload["n"].as_i64().ok_or_else(|| Failure::Never("n is no whole number".to_owned()))?;
    Ok(json!({"square": n * n}))
}
