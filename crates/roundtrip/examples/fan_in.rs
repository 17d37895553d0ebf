//! Fan-in: parts are worked on one by one, their results gathered into a group, and one
//! request is made of all of them.
//!
//! ```text
//!   part 1 ─┐ item, in the commit of the answer
//!   part 2 ─┼──▶ group ──▶ the commit that brings the last item seals the group ──▶ sum
//!   part 3 ─┘
//! ```
//!
//! ```text
//! cargo run -p roundtrip --example fan_in
//! ```

use std::error::Error;
use std::sync::Arc;

use roundtrip::listener::{Ending, request_with_id};
use roundtrip::relay::Relay;
use roundtrip::store::op::{Gather, GroupPlan};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::{Options, ReadExt, Store, Topic, open};
use roundtrip::words::{Destination, GroupKey, ItemId, Payload, RequestId, RouteName};
use roundtrip::worker::{Done, Failure, Job, handler_fn};

const PARTS: u64 = 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    run("memory:").await
}

/// Sums the squares of ten numbers.
pub(crate) async fn run(url: &str) -> Result<(), Box<dyn Error>> {
    let store = open(url, Options::default())?;
    let (group, sum_route) = (GroupKey::new("squares")?, RouteName::new("sum")?);
    let sum_id = RequestId::of(&[b"sum", group.as_str().as_bytes()]);
    let sum = request_with_id(&sum_route, sum_id, Payload::json("\"squares\""));
    let plan = GroupPlan { seal_at_items: Some(PARTS), seal_at: None, request: sum };

    // Every item brings the plan; that of the first one counts.
    let part = handler_fn(move |n: u64, job: Job| {
        let item = Gather {
            group: group.clone(),
            item: ItemId::of(&[job.id().as_bytes()]),
            payload: Payload::json((n * n).to_string()),
            plan: Some(Box::new(plan.clone())),
        };
        async move { Ok(Done::new(n * n).gather(item)) }
    });

    let sums = store.clone();
    let add = handler_fn(move |group: String, _job| add_up(sums.clone(), group));

    let to_caller = RoutePolicy { destination: Some(Destination::new("caller")?), ..RoutePolicy::default() };
    let relay = Relay::new(store.clone())
        .route("part", RoutePolicy::default(), part)
        .route("sum", to_caller, add)
        .start()
        .await?;
    let submitter = relay.submitter();
    let mut sum_hints = store.changes(Topic::Inbox(sum_route));
    for n in 1..=PARTS {
        submitter.submit_json("part", &n).await?;
    }

    // The sum's request does not exist before the group is sealed; a hint tells.
    let answer = loop {
        if let Some(answer) = submitter.answered(sum_id).await? {
            break answer;
        }
        sum_hints.changed().await;
    };
    assert_eq!(answer, Ending::Answered(Payload::json("385")));
    relay.shutdown().await?;
    Ok(store.close().await?)
}

/// Adds up the items of a group, page by page.
async fn add_up(store: Arc<dyn Store>, group: String) -> Result<u64, Failure> {
    let (group, mut sum, mut skip) = (GroupKey::new(&group)?, 0, 0);
    while let Some(view) = store.group(group.clone(), skip, 4).await? {
        for item in &view.page {
            sum += serde_json::from_slice::<u64>(&item.payload.bytes)?;
        }
        skip += view.page.len() as u64;
        if view.page.is_empty() {
            break;
        }
    }
    Ok(sum)
}
