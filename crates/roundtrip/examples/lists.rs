//! A relay between programs that know nothing of it: one pushes submissions to a Redis list,
//! one takes answers from another, and a dashboard reads keys of names that it has always had.
//!
//! ```text
//!   LPUSH submissionQueue ──▶ RedisList ──▶ worker ──▶ RedisListSink ──▶ RPUSH outgoing:broadcast
//!                                  └── each commit shows what it changes: submission:ID, epoch:N:processed
//! ```
//!
//! ```text
//! redis-server --appendonly yes --appendfsync always &
//! cargo run -p roundtrip --features redis --example lists -- redis://127.0.0.1
//! ```

use std::error::Error;
use std::sync::Arc;

use roundtrip::inbox::{FieldPath, Identity};
use roundtrip::listener::RedisList;
use roundtrip::outbox::RedisListSink;
use roundtrip::relay::Relay;
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::projection::{Form, ListEnd, Projection, Stage, States, Template, Words};
use roundtrip::store::{Batched, Options, RedisStore};
use roundtrip::words::{Destination, Encoding, ListenerName, RouteName};
use roundtrip::worker::handler_fn;
use serde::{Deserialize, Serialize};

const SUBMISSIONS: u64 = 10;

#[derive(Deserialize)]
struct Submission {
    id: String,
    epoch: u64,
}

#[derive(Serialize)]
struct Batch {
    id: String,
    cid: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1".to_owned());
    run(&url).await
}

/// What the dashboard reads. A file says the same in a few lines.
fn projections(route: &RouteName) -> Result<Vec<Projection>, Box<dyn Error>> {
    let text = Template::new;
    let status = Projection {
        states: States::new(Stage::ALL),
        words: Words::new([(Stage::Held, "open"), (Stage::Queued, "open"), (Stage::Settled, "done")]),
        keep_ms: Some(3_600_000),
        ..Projection::new(route.clone(), text("submission:{request/id}")?, Form::String(text("{state}")?))
    };
    let processed = Projection {
        states: States::new([Stage::Settled]),
        ..Projection::new(route.clone(), text("epoch:{request/epoch}:processed")?, Form::Set(text("{request/id}")?))
    };
    Ok(vec![status, processed])
}

/// Carries ten submissions from one list to the other.
pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let route = RouteName::new("submission")?;
    let identity = Identity::Fields(vec![FieldPath::new("/id")?]);
    let store = RedisStore::new(&format!("{url}?name=example"), Options::default())?;
    let store = Arc::new(Batched::new(store.with_projections(projections(&route)?)?));

    let name = ListenerName::new("sequencer")?;
    let source = RedisList::of_route(url, "submissionQueue", name, route, Encoding::Json, identity.clone())?;
    let sink = RedisListSink::new(url, Template::new("outgoing:broadcast")?)?;
    let destination = Some(Destination::new("broadcast")?);
    let finalize = handler_fn(|submission: Submission, _job| async move {
        Ok(Batch { cid: format!("epoch-{}", submission.epoch), id: submission.id })
    });
    let relay = Relay::new(store)
        .route("submission", RoutePolicy { identity, destination, ..RoutePolicy::default() }, finalize)
        .source("submissionQueue", source.from_end(ListEnd::Right))
        .sink("broadcast", sink)
        .start()
        .await?;

    // Those who know nothing of the relay.
    let mut client = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    for n in 0..SUBMISSIONS {
        let submission = format!(r#"{{"id":"s{n}","epoch":7}}"#);
        let () = redis::cmd("LPUSH").arg("submissionQueue").arg(submission).query_async(&mut client).await?;
    }
    for n in 0..SUBMISSIONS {
        let batch: String = loop {
            match redis::cmd("LPOP").arg("outgoing:broadcast").query_async(&mut client).await? {
                Some(batch) => break batch,
                None => tokio::task::yield_now().await,
            }
        };
        assert_eq!(batch, format!(r#"{{"id":"s{n}","cid":"epoch-7"}}"#));
    }
    relay.shutdown().await?;
    let processed: u64 = redis::cmd("SCARD").arg("epoch:7:processed").query_async(&mut client).await?;
    let status: String = redis::cmd("GET").arg("submission:s0").query_async(&mut client).await?;
    assert_eq!((processed, &*status), (SUBMISSIONS, "done"));
    Ok(())
}
