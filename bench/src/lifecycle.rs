//! Full lifecycles through the store: admit, lease, answer, assign, settle, with
//! 512-byte payloads, every hand-over durable.
//!
//! One admitter keeps so many requests in flight; two workers and a sender on each of
//! four lanes take what there is, as the stations of a real deployment do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use roundtrip::clock::SystemClock;
use roundtrip::inbox::Standing;
use roundtrip::sender::{AttemptKind, Block, ParcelStage, SignedAttempt};
use roundtrip::store::op::{
    Admit, Answer, Assign, Define, Effect, Judgement, LaneOrder, Lead, Lease, NewParcel, NewRequest, Op, Order,
    Outcome, Seat, Settle, Sight,
};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::ReadyDelivery;
use roundtrip::store::{Batched, Options, ReadExt, SqliteStore, Store, StoreError, StoreExt, Topic};
use roundtrip::words::{
    AttemptHash, ClaimId, Destination, Height, HolderName, LaneName, Nonce, OccurrenceId, Payload, Position, RequestId,
    RouteName, Token, WorkerName,
};
use tokio::sync::Semaphore;

use crate::report::{Report, median};
use crate::trace::{Commit, Traced};
use crate::{Scale, floor};

/// Bytes of a payload, of a response, and of a signed attempt.
pub(crate) const PAYLOAD_BYTES: usize = 512;
/// Lanes that share the sending.
const LANES: usize = 4;
/// Workers that share the work.
const WORKERS: usize = 2;
/// How many a worker takes, and a sender sends, at a time.
const HANDFUL: usize = 128;

type Failure = Box<dyn std::error::Error>;

pub(crate) fn route() -> RouteName {
    RouteName::new("bench").expect("a name")
}

fn destination() -> Destination {
    Destination::new("chain").expect("a name")
}

/// The n-th request of all.
pub(crate) fn request(n: u64) -> NewRequest {
    let mut body = vec![7; PAYLOAD_BYTES];
    body[..8].copy_from_slice(&n.to_le_bytes());
    NewRequest {
        route: route(),
        id: RequestId::of(&[&n.to_le_bytes()]),
        occurrence: OccurrenceId::of(&[&n.to_le_bytes()]),
        place: None,
        standing: Standing::Final,
        payload: Payload::raw(body),
        due: None,
        deadline: None,
        priority: 0,
        trace: None,
    }
}

/// Defines the route and opens the lanes.
pub(crate) async fn prepare(store: &impl Store) -> Result<Vec<(LaneName, Token)>, Failure> {
    let policy = RoutePolicy { destination: Some(destination()), capacity: 10_000_000, ..RoutePolicy::default() };
    store.apply_one(Op::Define(Define { route: route(), policy })).await?;
    let mut lanes = Vec::new();
    for n in 0..LANES {
        let lane = LaneName::new(&format!("lane-{n}"))?;
        let order = Order::Open { destination: destination(), window: 4096, first: Nonce(0) };
        store.apply_one(Op::Lane(LaneOrder { lane: lane.clone(), order })).await?;
        let lead = Lead { seat: Seat::Lane(lane.clone()), holder: HolderName::new("bench")?, ttl_ms: 3_600_000 };
        match store.apply_one(Op::Lead(lead)).await? {
            Outcome::Applied(Effect::Led(token, _)) => lanes.push((lane, token)),
            other => return Err(format!("no seat: {other:?}").into()),
        }
    }
    Ok(lanes)
}

/// What the stations share.
struct Flow<S> {
    store: S,
    room: Semaphore,
    next: AtomicU64,
    settled: AtomicU64,
    stop_at: u64,
}

/// Runs lifecycles until `count` are settled; answers how many a second.
pub(crate) async fn run<S: Store + Clone>(
    store: S,
    lanes: &[(LaneName, Token)],
    first: u64,
    in_flight: usize,
    count: u64,
) -> Result<f64, Failure> {
    let flow = Arc::new(Flow {
        store,
        room: Semaphore::new(in_flight),
        next: AtomicU64::new(first),
        settled: AtomicU64::new(0),
        stop_at: count,
    });
    let started = Instant::now();
    let mut stations = tokio::task::JoinSet::new();
    stations.spawn(admit_all(flow.clone()));
    for n in 0..WORKERS.min(in_flight) {
        stations.spawn(work_all(flow.clone(), n));
    }
    for (lane, owner) in lanes.iter().take(in_flight) {
        stations.spawn(send_all(flow.clone(), lane.clone(), *owner));
    }
    while flow.settled.load(Ordering::Relaxed) < count {
        match stations.join_next().await {
            Some(ended) => ended??,
            None => break,
        }
    }
    let rate = flow.settled.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
    stations.shutdown().await;
    Ok(rate)
}

type Station = Result<(), StoreError>;

/// Keeps as many in flight as there is room for; each request is a call of its own.
async fn admit_all<S: Store + Clone>(flow: Arc<Flow<S>>) -> Station {
    let mut calls = tokio::task::JoinSet::new();
    loop {
        let Ok(permit) = flow.room.acquire().await else { return Ok(()) };
        permit.forget();
        let n = flow.next.fetch_add(1, Ordering::Relaxed);
        let store = flow.store.clone();
        calls
            .spawn(async move { store.apply_one(Op::Admit(Admit { cursor: None, requests: vec![request(n)] })).await });
        while let Some(done) = calls.try_join_next() {
            drop(done.map_err(|_panicked| StoreError::Closed)??);
        }
    }
}

async fn work_all<S: Store>(flow: Arc<Flow<S>>, n: usize) -> Station {
    let worker = WorkerName::new(&format!("worker-{n}")).map_err(|_bad| StoreError::Closed)?;
    let mut queued = flow.store.changes(Topic::Inbox(route()));
    let mut claim = (n as u64) << 48;
    while queued.changed().await {
        loop {
            claim += 1;
            let (claim, worker) = (ClaimId(claim), worker.clone());
            let lease = Lease { route: route(), worker, max: HANDFUL, claim, lease_ms: None };
            let Outcome::Applied(Effect::Leased(grants)) = flow.store.apply_one(Op::Lease(lease)).await? else { break };
            if grants.is_empty() {
                break;
            }
            let answer = |grant: roundtrip::store::op::Grant| {
                let (id, token, response) = (grant.id, grant.token, grant.payload);
                Op::Answer(Answer { id, token, response, follow_ups: Vec::new(), items: Vec::new() })
            };
            flow.store.apply(grants.into_iter().map(answer).collect()).await?;
        }
    }
    Ok(())
}

async fn send_all<S: Store>(flow: Arc<Flow<S>>, lane: LaneName, owner: Token) -> Station {
    let mut ready_hint = flow.store.changes(Topic::Outbox(destination()));
    let mut next = flow.store.lane(lane.clone()).await?.map_or(Nonce(0), |view| view.next);
    while ready_hint.changed().await {
        loop {
            let ready = flow.store.ready(destination(), HANDFUL).await?;
            if ready.is_empty() {
                break;
            }
            let assigned = send(&flow, &lane, owner, next, ready).await?;
            next = next.plus(assigned);
            let settled = flow.settled.fetch_add(assigned, Ordering::Relaxed) + assigned;
            if settled >= flow.stop_at {
                return Ok(());
            }
            flow.room.add_permits(usize::try_from(assigned).unwrap_or(0));
        }
    }
    Ok(())
}

/// Sends what it can of this on the lane, and settles it; answers how many that were.
async fn send<S: Store>(
    flow: &Flow<S>,
    lane: &LaneName,
    owner: Token,
    first: Nonce,
    ready: Vec<ReadyDelivery>,
) -> Result<u64, StoreError> {
    let hash = |delivery: &ReadyDelivery| AttemptHash(delivery.id.0);
    let hashes: Vec<_> = ready.iter().map(hash).collect();
    let parcel = |delivery: ReadyDelivery| {
        let attempt = SignedAttempt { hash: hash(&delivery), kind: AttemptKind::Carry, bytes: delivery.response.bytes };
        NewParcel { deliveries: vec![delivery.id], attempt }
    };
    let parcels = ready.into_iter().map(parcel).collect();
    let assign = Op::Assign(Assign { lane: lane.clone(), owner, first, parcels });
    // Another lane may have taken the first of them meanwhile: then none are ours.
    let Outcome::Applied(Effect::Assigned(assigned, _)) = flow.store.apply_one(assign).await? else { return Ok(0) };
    let settle = |(n, attempt): (usize, &AttemptHash)| {
        let block = Block { attempt: *attempt, at: Position { height: Height(1), hash: [0; 32] } };
        Op::Settle(Settle {
            lane: lane.clone(),
            owner,
            nonce: first.plus(n as u64),
            expected: ParcelStage::Assigned,
            sight: Sight::Final(block, Judgement::Done),
        })
    };
    let settles = hashes.iter().take(assigned).enumerate().map(settle).collect();
    flow.store.apply(settles).await?;
    Ok(assigned as u64)
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Opens a store in a new folder, runs lifecycles on it, and answers their rate and what each commit did.
fn measure(in_flight: usize, count: u64) -> Result<(f64, Vec<Commit>), Failure> {
    let folder = tempfile::tempdir_in(".")?;
    runtime()?.block_on(async {
        let store = SqliteStore::open(folder.path().join("ours.db"), Arc::new(SystemClock::new()), Options::default())?;
        let (store, commits) = Traced::new(store);
        let store = Arc::new(store);
        let batched = Batched::new(store.clone());
        let lanes = prepare(&batched).await?;
        commits.lock().map_err(|_poisoned| "poisoned")?.clear();
        commits.lock().map_err(|_poisoned| "poisoned")?.push(Commit::default());
        let rate = run(batched, &lanes, 0, in_flight, count).await?;
        let commits = std::mem::take(&mut *commits.lock().map_err(|_poisoned| "poisoned")?);
        Ok((rate, commits))
    })
}

/// Ours and the floor, each in turn, so that both meet the same weather.
pub(crate) fn beside_floor(report: &mut Report, in_flight: usize, scale: Scale) -> Result<(), Failure> {
    let count = (scale.lifecycles * in_flight.min(64)) as u64;
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        let (rate, commits) = measure(in_flight, count)?;
        let batch = count as f64 / commits.len() as f64;
        eprintln!("  {in_flight} in flight: {rate:.0}/s in {} commits of {batch:.1} lifecycles", commits.len());
        ours.push(rate);
        floors.push(floor::replay(&commits)?);
    }
    let bench = format!("lifecycle, {in_flight} in flight");
    report.speed(bench, median(ours), "hand-written loop".into(), median(floors), "lifecycles/s");
    Ok(())
}
