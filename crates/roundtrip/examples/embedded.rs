//! Embedded use: a route, a handler, and a request that is durable before it is worked on.
//!
//! ```text
//! cargo run -p roundtrip --example embedded
//! ```

use std::error::Error;

use roundtrip::listener::Ending;
use roundtrip::relay::Relay;
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::{Options, open};
use roundtrip::words::{Destination, Payload};
use roundtrip::worker::{Failure, handler_fn};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    run("memory:").await // or "sqlite:roundtrip.db"
}

/// Squares seven.
pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let store = open(url, Options::default())?;
    // With a destination, the answer waits here until a sender takes it there.
    let policy = RoutePolicy { destination: Some(Destination::new("caller")?), ..RoutePolicy::default() };
    let square =
        handler_fn(
            |n: u64, _job| async move { n.checked_mul(n).ok_or_else(|| Failure::fatal("the square does not fit")) },
        );
    let relay = Relay::new(store.clone()).route("square", policy, square).start().await?;

    let submitted = relay.submitter().submit_json("square", &7).await?;
    let answer = relay.submitter().answered(submitted.id).await?;
    assert_eq!(answer, Some(Ending::Answered(Payload::json("49"))));

    relay.shutdown().await?;
    Ok(store.close().await?)
}
