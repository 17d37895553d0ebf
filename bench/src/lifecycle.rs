//! Full lifecycles through the store: admit, lease, answer, assign, settle, with
//! 512-byte payloads, every hand-over durable.
//!
//! One admitter keeps so many requests in flight; two workers and a sender with four
//! lanes take what there is, as the stations of a real deployment do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use roundtrip::inbox::Standing;
use roundtrip::sender::{AttemptKind, Block, ParcelStage, SignedAttempt};
use roundtrip::store::op::{
    Admit, Answer, Assign, Define, Effect, Judgement, LaneOrder, Lead, Lease, NewParcel, NewRequest, Op, Order,
    Outcome, Seat, Settle, Sight,
};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::ReadyDelivery;
use roundtrip::store::{ReadExt, Store, StoreError, StoreExt, Topic};
use roundtrip::words::{
    AttemptHash, ClaimId, Destination, Height, HolderName, LaneName, Nonce, OccurrenceId, Payload, Position, RequestId,
    RouteName, Token, WorkerName,
};
use tokio::sync::{Notify, Semaphore};

use crate::report::{Report, cpu_seconds, median};
use crate::trace::{Commit, Trace};
use crate::{Scale, floor};

/// Bytes of a payload, of a response, and of a signed attempt.
pub(crate) const PAYLOAD_BYTES: usize = 512;
/// Lanes that share the sending.
const LANES: usize = 4;
/// Workers that share the work.
const WORKERS: usize = 2;
/// How many a worker takes, and a sender sends, at a time.
const HANDFUL: usize = 512;

type Failure = Box<dyn std::error::Error>;

pub(crate) fn route() -> RouteName {
    RouteName::new("bench").expect("a name")
}

fn destination() -> Destination {
    Destination::new("chain").expect("a name")
}

/// The n-th id: as random as a hash, and cheaper, since hashing is the caller's business.
pub(crate) fn id(n: u64) -> RequestId {
    let mut bytes = [0; 32];
    for (word, salt) in bytes.chunks_exact_mut(8).zip(1_u64..) {
        let mut mixed = (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_mul(2 * salt + 1);
        mixed ^= mixed >> 29;
        mixed = mixed.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word.copy_from_slice(&(mixed ^ (mixed >> 32)).to_le_bytes());
    }
    RequestId(bytes)
}

/// The n-th request of all.
pub(crate) fn request(n: u64) -> NewRequest {
    let mut body = vec![7; PAYLOAD_BYTES];
    body[..8].copy_from_slice(&n.to_le_bytes());
    NewRequest {
        route: route(),
        id: id(n),
        occurrence: OccurrenceId(id(n).0),
        place: None,
        standing: Standing::Final,
        payload: Payload::raw(body),
        due: None,
        deadline: None,
        priority: 0,
        key: None,
        trace: None,
        flaw: None,
    }
}

/// Defines the route and opens the lanes.
pub(crate) async fn prepare(store: &impl Store) -> Result<Vec<(LaneName, Token)>, Failure> {
    let policy = RoutePolicy { destination: Some(destination()), capacity: 10_000_000, ..RoutePolicy::default() };
    store.apply_one(Define { route: route(), policy }).await?;
    let mut lanes = Vec::new();
    for n in 0..LANES {
        let lane = LaneName::new(&format!("lane-{n}"))?;
        let order = Order::Open { destination: destination(), window: 4096, first: Nonce(0) };
        store.apply_one(LaneOrder { lane: lane.clone(), order }).await?;
        let lead = Lead { seat: Seat::Lane(lane.clone()), holder: HolderName::new("bench")?, ttl_ms: 3_600_000 };
        match store.apply_one(lead).await? {
            Outcome::Applied(Effect::Led(token, _)) => lanes.push((lane, token)),
            other => return Err(format!("no seat: {other:?}").into()),
        }
    }
    Ok(lanes)
}

/// What the stations share.
struct Flow<S> {
    store: S,
    /// How many more may be admitted.
    room: Semaphore,
    /// How many more may be in hands: with a backlog, workers would run far ahead of the sender.
    hands: Semaphore,
    next: AtomicU64,
    settled: AtomicU64,
    stop_at: u64,
    /// Whether an answer ends a request, since nothing is sent.
    answers_end: bool,
    done: Notify,
}

/// Runs lifecycles until `count` are settled, or answered if there are no lanes; answers how
/// many a second.
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
        hands: Semaphore::new(in_flight),
        next: AtomicU64::new(first),
        settled: AtomicU64::new(0),
        stop_at: count,
        answers_end: lanes.is_empty(),
        done: Notify::new(),
    });
    let started = Instant::now();
    let mut stations = tokio::task::JoinSet::new();
    stations.spawn(admit_all(flow.clone()));
    for n in 0..WORKERS.min(in_flight) {
        stations.spawn(work_all(flow.clone(), n, first));
    }
    if !lanes.is_empty() {
        stations.spawn(send_all(flow.clone(), lanes.to_vec()));
    }
    tokio::select! {
        () = flow.done.notified() => {}
        Some(ended) = stations.join_next() => ended??,
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
        calls.spawn(async move { store.apply_one(Admit { cursor: None, requests: vec![request(n)] }).await });
        while let Some(done) = calls.try_join_next() {
            drop(done.map_err(|_panicked| StoreError::Closed)??);
        }
    }
}

/// No two runs make the same claim: it would be taken for the one that was made before.
async fn work_all<S: Store>(flow: Arc<Flow<S>>, n: usize, first: u64) -> Station {
    let worker = WorkerName::new(&format!("worker-{n}")).map_err(|_bad| StoreError::Closed)?;
    let mut queued = flow.store.changes(Topic::Inbox(route()));
    let mut claim = ((n as u64) << 48) + first;
    while queued.changed().await {
        loop {
            let free = flow.take_hands().await;
            claim += 1;
            let (claim, worker) = (ClaimId(claim), worker.clone());
            let lease = Lease { route: route(), worker, max: free, claim, lease_ms: None };
            let grants = match flow.store.apply_one(lease).await? {
                Outcome::Applied(Effect::Leased(grants)) => grants,
                _ => Vec::new(),
            };
            flow.hands.add_permits(free - grants.len());
            if grants.is_empty() {
                break;
            }
            let answer = |grant: roundtrip::store::op::Grant| {
                let (id, token, response) = (grant.id, grant.token, grant.payload);
                Op::Answer(Answer { id, token, response, follow_ups: Vec::new(), items: Vec::new() })
            };
            let answers: Vec<Op> = grants.into_iter().map(answer).collect();
            let count = answers.len();
            flow.store.apply(answers).await?;
            if flow.answers_end {
                flow.count_ended(count);
            }
        }
    }
    Ok(())
}

impl<S> Flow<S> {
    /// Waits for a free hand, and takes as many as there are, up to a handful.
    async fn take_hands(&self) -> usize {
        let Ok(first) = self.hands.acquire().await else { return 0 };
        first.forget();
        let more = self.hands.available_permits().min(HANDFUL - 1);
        let more = self.hands.try_acquire_many(u32::try_from(more).unwrap_or(0)).map_or(0, |permits| {
            permits.forget();
            more
        });
        1 + more
    }

    fn count_ended(&self, count: usize) {
        let before = self.settled.fetch_add(count as u64, Ordering::Relaxed);
        if before + count as u64 >= self.stop_at {
            self.done.notify_one();
        }
        self.room.add_permits(count);
        self.hands.add_permits(count);
    }
}

/// One sender for all lanes: it shares out what is ready, and settles one handful while
/// it assigns the next.
async fn send_all<S: Store + Clone>(flow: Arc<Flow<S>>, lanes: Vec<(LaneName, Token)>) -> Station {
    let mut ready_hint = flow.store.changes(Topic::Outbox(destination()));
    let mut next = Vec::new();
    for (lane, _) in &lanes {
        next.push(flow.store.lane(lane.clone()).await?.map_or(Nonce(0), |view| view.next));
    }
    let mut settling = tokio::task::JoinSet::new();
    while ready_hint.changed().await {
        loop {
            let ready = flow.store.ready(destination(), HANDFUL).await?;
            if ready.is_empty() {
                break;
            }
            let share = ready.len().div_ceil(lanes.len());
            let mut assigns = Vec::new();
            let mut settles = Vec::new();
            for (ready, ((lane, owner), next)) in ready.chunks(share).zip(lanes.iter().zip(&mut next)) {
                let (assign, ends) = send(lane, *owner, *next, ready);
                *next = next.plus(ends.len() as u64);
                assigns.push(assign);
                settles.extend(ends);
            }
            if flow.store.apply(assigns).await?.iter().any(|outcome| !outcome.holds()) {
                return Err(StoreError::Damaged("an assign was refused".into()));
            }
            settling.spawn(settle_all(flow.clone(), settles));
            while let Some(done) = settling.try_join_next() {
                done.map_err(|_panicked| StoreError::Closed)??;
            }
        }
    }
    Ok(())
}

async fn settle_all<S: Store>(flow: Arc<Flow<S>>, settles: Vec<Op>) -> Station {
    let count = settles.len();
    flow.store.apply(settles).await?;
    flow.count_ended(count);
    Ok(())
}

/// The operations that put these deliveries on a lane, and that settle them there.
fn send(lane: &LaneName, owner: Token, first: Nonce, ready: &[ReadyDelivery]) -> (Op, Vec<Op>) {
    let hash = |delivery: &ReadyDelivery| AttemptHash(delivery.id.0);
    let parcel = |delivery: &ReadyDelivery| {
        let bytes = delivery.response.bytes.clone();
        let attempt = SignedAttempt { hash: hash(delivery), kind: AttemptKind::Carry, bytes, fee: None };
        NewParcel::of(std::slice::from_ref(delivery), attempt)
    };
    let settle = |(n, delivery): (usize, &ReadyDelivery)| {
        let block = Block { attempt: hash(delivery), at: Position { height: Height(1), hash: [0; 32] } };
        Op::Settle(Settle {
            lane: lane.clone(),
            owner,
            nonce: first.plus(n as u64),
            expected: ParcelStage::Assigned,
            sight: Sight::Final(block, Judgement::Done),
        })
    };
    let parcels = ready.iter().map(parcel).collect();
    let assign = Op::Assign(Assign { lane: lane.clone(), owner, first, parcels });
    (assign, ready.iter().enumerate().map(settle).collect())
}

pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Opens a store in a new folder, runs lifecycles on it, and answers their rate and what each commit did.
fn measure(in_flight: usize, count: u64) -> Result<(f64, Vec<Commit>), Failure> {
    let folder = tempfile::tempdir_in(".")?;
    runtime()?.block_on(async {
        let (store, trace) = Trace::open(&folder.path().join("ours.db"))?;
        let store = Arc::new(store);
        let lanes = prepare(&store).await?;
        trace.take();
        let rate = run(store, &lanes, 0, in_flight, count).await?;
        Ok((rate, trace.take()))
    })
}

/// Ours and the floor, each in turn, so that both meet the same weather.
pub(crate) fn beside_floor(report: &mut Report, in_flight: usize, scale: Scale) -> Result<(), Failure> {
    let count = (scale.lifecycles * in_flight.min(64)) as u64;
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        let before = cpu_seconds();
        let (rate, commits) = measure(in_flight, count)?;
        let cpu_us = (cpu_seconds() - before) * 1e6 / count as f64;
        let batch = count as f64 / commits.len() as f64;
        eprintln!(
            "  {in_flight} in flight: {rate:.0}/s, {cpu_us:.1} us of processor time each, {} commits of {batch:.1}",
            commits.len()
        );
        ours.push(rate);
        let before = cpu_seconds();
        floors.push(floor::replay(&commits)?);
        let cpu_us = (cpu_seconds() - before) * 1e6 / count as f64;
        eprintln!("  floor: {cpu_us:.1} us");
    }
    let bench = format!("lifecycle, {in_flight} in flight");
    report.speed(bench, median(ours), "hand-written loop".into(), median(floors), "lifecycles/s");
    Ok(())
}
