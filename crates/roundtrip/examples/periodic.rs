//! Periodic use: a durable timer. Each of its ticks is one request, whatever crashes and
//! restarts lie in between; here the relay is stopped after two ticks and started again.
//!
//! ```text
//! cargo run -p roundtrip --example periodic
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use roundtrip::clock::{Clock, SystemClock};
use roundtrip::listener::request;
use roundtrip::relay::Relay;
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::{Batched, MemoryStore, Options, Store};
use roundtrip::words::{Payload, RouteName};
use roundtrip::worker::handler_fn;
use tokio::sync::mpsc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    run(Arc::new(SystemClock::new())).await
}

/// Handles four ticks, two before and two after a restart.
pub(crate) async fn run(clock: Arc<dyn Clock>) -> Result<(), Box<dyn Error>> {
    let store: Arc<dyn Store> = Arc::new(Batched::new(MemoryStore::new(clock.clone(), Options::default())));
    let mut ticks = Vec::new();
    for _start in 0..2 {
        let (seen, mut sees) = mpsc::channel(16);
        let route = RouteName::new("chime")?;
        let chime = handler_fn(move |number: u64, _job| {
            let seen = seen.clone();
            async move { Ok(seen.send(number).await?) }
        });
        let relay = Relay::new(store.clone())
            .clock(clock.clone())
            .route("chime", RoutePolicy::default(), chime)
            .every("clock", Duration::from_millis(200), move |tick| {
                request(&route, Payload::json(tick.number.to_string()))
            })
            .start()
            .await?;
        for _ in 0..2 {
            ticks.extend(sees.recv().await);
        }
        relay.shutdown().await?;
    }
    let each_once = ticks.windows(2).all(|pair| pair[0] < pair[1]);
    assert!(ticks.len() == 4 && each_once, "{ticks:?}");
    Ok(())
}
