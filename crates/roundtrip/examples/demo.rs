//! Carries 1,000 requests through an embedded store, from admission to settled, and
//! closes and opens the store on the way. The outside is a list in this program that
//! counts what reached it; the store knows nothing of it.
//!
//! ```text
//! cargo run --release -p roundtrip --example demo
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use roundtrip::inbox::Standing;
use roundtrip::sender::{AttemptKind, Block, ParcelStage, SignedAttempt};
use roundtrip::store::op::{
    Admit, Answer, Assign, Define, Effect, Grant, Judgement, LaneOrder, Lead, Lease, NewParcel, NewRequest, Op, Order,
    Outcome, Seat, Settle, Sight,
};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::Found;
use roundtrip::store::{Options, ReadExt, Store, StoreExt, open};
use roundtrip::words::{
    AttemptHash, ClaimId, Destination, Height, HolderName, LaneName, Nonce, OccurrenceId, Payload, Position, RequestId,
    RouteName, Token, WorkerName,
};

const REQUESTS: u64 = 1000;
const HANDFUL: usize = 100;

/// What the outside has received: how often, for each request.
type Outside = HashMap<RequestId, u32>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("roundtrip-demo-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let file = folder.join("demo.db");
    let mut outside = Outside::new();
    // Each stage opens the store anew and goes on with whatever it finds.
    for stage in 1..=3 {
        let store = start(&file).await?;
        let owner = take_lane(&*store).await?;
        match stage {
            1 => admit(&*store).await?,
            2 => work(&*store, REQUESTS / 2).await?,
            _ => {
                work(&*store, REQUESTS).await?;
                send(&*store, owner, &mut outside).await?;
            }
        }
        let counts = store.counts().await?;
        let shown: Vec<_> = counts.iter().map(|count| format!("{} {:?}", count.requests, count.state)).collect();
        println!("stage {stage}: {}", if shown.is_empty() { "nothing left".into() } else { shown.join(", ") });
        store.close().await?;
    }
    report(&file, &outside).await?;
    Ok(std::fs::remove_dir_all(folder)?)
}

async fn start(file: &Path) -> Result<Arc<dyn Store>, Box<dyn Error>> {
    let store = open(&format!("sqlite:{}", file.display()), Options::default())?;
    let policy = RoutePolicy { destination: Some(Destination::new("outside")?), ..RoutePolicy::default() };
    let order = Order::Open { destination: Destination::new("outside")?, window: 256, first: Nonce(0) };
    store.apply_one(Define { route: RouteName::new("demo")?, policy }).await?;
    store.apply_one(LaneOrder { lane: LaneName::new("lane")?, order }).await?;
    Ok(store)
}

async fn take_lane(store: &dyn Store) -> Result<Token, Box<dyn Error>> {
    let lead = Lead { seat: Seat::Lane(LaneName::new("lane")?), holder: HolderName::new("demo")?, ttl_ms: 60_000 };
    match store.apply_one(lead).await? {
        Outcome::Applied(Effect::Led(token, _)) => Ok(token),
        other => Err(format!("the lane is taken: {other:?}").into()),
    }
}

fn id(n: u64) -> RequestId {
    RequestId::of(&[b"demo", &n.to_le_bytes()])
}

async fn admit(store: &dyn Store) -> Result<(), Box<dyn Error>> {
    let numbers: Vec<u64> = (0..REQUESTS).collect();
    for handful in numbers.chunks(HANDFUL) {
        let route = RouteName::new("demo")?;
        let request = |&n: &u64| NewRequest {
            route: route.clone(),
            id: id(n),
            occurrence: OccurrenceId::of(&[&n.to_le_bytes()]),
            place: None,
            standing: Standing::Final,
            payload: Payload::json(format!("{{\"square\":{n}}}")),
            due: None,
            deadline: None,
            priority: 0,
            key: None,
            trace: None,
        };
        let admit = Admit { cursor: None, requests: handful.iter().map(request).collect() };
        store.apply_one(admit.clone()).await?;
        // The answer might have been lost: sending it again changes nothing.
        let again = store.apply_one(admit).await?;
        assert!(matches!(again, Outcome::Duplicate(_)), "a repeat is recognised");
    }
    Ok(())
}

async fn work(store: &dyn Store, count: u64) -> Result<(), Box<dyn Error>> {
    let answer = |grant: Grant| {
        let (id, token) = (grant.id, grant.token);
        let response = Payload::json(format!("{{\"worked on\":{}}}", grant.payload.bytes.len()));
        Op::Answer(Answer { id, token, response, follow_ups: Vec::new(), items: Vec::new() })
    };
    for claim in 0..count.div_ceil(HANDFUL as u64) {
        let (route, worker) = (RouteName::new("demo")?, WorkerName::new("demo")?);
        let lease = Lease { route, worker, max: HANDFUL, claim: ClaimId(claim), lease_ms: None };
        if let Outcome::Applied(Effect::Leased(grants)) = store.apply_one(lease).await? {
            store.apply(grants.into_iter().map(answer).collect()).await?;
        }
    }
    Ok(())
}

async fn send(store: &dyn Store, owner: Token, outside: &mut Outside) -> Result<(), Box<dyn Error>> {
    let lane = LaneName::new("lane")?;
    loop {
        let ready = store.ready(Destination::new("outside")?, HANDFUL).await?;
        if ready.is_empty() {
            return Ok(());
        }
        let hash = |id: &RequestId| AttemptHash::of(&[&id.0]);
        let parcels = ready.iter().map(|delivery| NewParcel {
            deliveries: vec![delivery.id],
            attempt: SignedAttempt {
                hash: hash(&delivery.id),
                kind: AttemptKind::Carry,
                bytes: delivery.response.bytes.clone(),
            },
        });
        let first = store.lane(lane.clone()).await?.ok_or("no lane")?.next;
        let assign = Assign { lane: lane.clone(), owner, first, parcels: parcels.collect() };
        store.apply_one(assign).await?;
        // The bytes are stored; only now may anybody outside see them.
        let settle = |(n, delivery): (u64, &roundtrip::store::query::ReadyDelivery)| {
            *outside.entry(delivery.id).or_default() += 1;
            let at = Position { height: Height(1), hash: [0; 32] };
            Op::Settle(Settle {
                lane: lane.clone(),
                owner,
                nonce: first.plus(n),
                expected: ParcelStage::Assigned,
                sight: Sight::Final(Block { attempt: hash(&delivery.id), at }, Judgement::Done),
            })
        };
        store.apply((0..).zip(&ready).map(settle).collect()).await?;
    }
}

/// Counts from outside: what was asked for against what arrived.
async fn report(file: &Path, outside: &Outside) -> Result<(), Box<dyn Error>> {
    let store = start(file).await?;
    let (mut settled, mut lost) = (0, 0);
    for n in 0..REQUESTS {
        match (store.get(id(n)).await?, outside.get(&id(n))) {
            (Some(Found::Ended(_)), Some(_)) => settled += 1,
            _ => lost += 1,
        }
    }
    let doubled = outside.values().filter(|&&times| times > 1).count();
    println!("settled {settled}, lost {lost}, doubled {doubled}");
    store.close().await?;
    if lost + doubled > 0 { Err("not every request went exactly once".into()) } else { Ok(()) }
}
