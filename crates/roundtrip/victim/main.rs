//! The process that the crash tests kill: all stations of a small deployment on one
//! embedded store. It prints a line for everything that was acknowledged, at once, so
//! that whoever reads knows what must still be there after the kill.
//!
//! `victim FILE FIRST COUNT CALLS HOURS`: carries requests FIRST..FIRST+COUNT, and
//! whatever an earlier victim left, until all are settled, with CALLS calls in flight.
//! HOURS is how far its clock is ahead, so that a later victim finds earlier leases
//! run out without anybody waiting for it.
//!
//! `victim copy FROM TO`: copies one store to another, and prints a line for every page.
//!
//! `victim work URL WORKERS`: so many workers on a store that other processes share, see `work.rs`.
//!
//! Lines: `page KIND`, `copied`; `ready`, `began ID KEY`, `holds ID KEY`, `finished`; `admitted ID`, `token TOKEN`, `answered ID`, `sent ID NONCE HASH`,
//! `settled ID`, `refused WHY`, `finished`.

mod work;

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use roundtrip::clock::{Clock, SystemClock};
use roundtrip::inbox::Standing;
use roundtrip::sender::{AttemptKind, Block, ParcelStage, SignedAttempt};
use roundtrip::store::op::{
    Admit, Answer, Assign, Define, Effect, Grant, Judgement, LaneOrder, Lead, Lease, NewParcel, NewRequest, Op, Order,
    Outcome, Seat, Settle, Sight,
};
use roundtrip::store::policy::{Backoff, Horizon, RoutePolicy};
use roundtrip::store::query::{ListFilter, ParcelView, ReadyDelivery};
use roundtrip::store::{Options, ReadExt, SqliteStore, Store, StoreError, StoreExt, archive};
use roundtrip::words::{
    AttemptHash, ClaimId, Destination, Height, HolderName, LaneName, Nonce, OccurrenceId, Payload, Position, RequestId,
    RouteName, Token, UnixMs, WorkerName,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The system's clock, some hours ahead.
struct Ahead(SystemClock, u64);

impl Clock for Ahead {
    fn now(&self) -> UnixMs {
        self.0.now().plus(self.1 * 3_600_000)
    }
}

/// Tells the reader at once; what is not told may be lost.
fn tell(line: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())?;
    Ok(out.flush()?)
}

struct Victim<S> {
    store: S,
    calls: usize,
    lane: LaneName,
    owner: Token,
    hours: u64,
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let [verb, first, second] = args.as_slice() {
        match verb.as_str() {
            "copy" => return runtime.block_on(copy(first, second)),
            "work" => return runtime.block_on(work::work(first, second.parse()?)),
            _ => {}
        }
    }
    let [file, first, count, calls, hours] = args.as_slice() else {
        return Err(
            "usage: victim FILE FIRST COUNT CALLS HOURS, victim copy FROM TO, or victim work URL WORKERS".into()
        );
    };
    let (first, count, calls, hours) = (first.parse()?, count.parse()?, calls.parse()?, hours.parse()?);
    runtime.block_on(async {
        // Small sizes, so that receipts are spilled and the journal is trimmed here too.
        let options = Options { journal_entries: 512, spill_receipts: 16, ..Options::default() };
        let store = Arc::new(SqliteStore::open(file, Arc::new(Ahead(SystemClock::new(), hours)), options)?);
        let victim = Victim::prepare(store, calls, hours).await?;
        victim.recover().await?;
        victim.carry(first, count).await?;
        tell("finished")
    })
}

async fn copy(from: &str, to: &str) -> Result<(), Failure> {
    let told = |progress: archive::Progress| match tell(&format!("page {}", progress.kind)) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    archive::copy(from, to, told).await?;
    tell("copied")
}

impl<S: Store + Clone> Victim<S> {
    async fn prepare(store: S, calls: usize, hours: u64) -> Result<Victim<S>, Failure> {
        let policy = RoutePolicy {
            destination: Some(Destination::new("outside")?),
            horizon: Horizon::Forever,
            crashes_max: u16::MAX,
            lease_ms: 60_000,
            backoff: Backoff::NONE,
            ..RoutePolicy::default()
        };
        let lane = LaneName::new("lane")?;
        let order = Order::Open { destination: Destination::new("outside")?, window: 64, first: Nonce(0) };
        // A holder that is killed keeps the seat until its time runs out: an hour at the most.
        let holder = HolderName::new(&format!("victim-{}", std::process::id()))?;
        let lead = Lead { seat: Seat::Lane(lane.clone()), holder, ttl_ms: 60_000 };
        let batch = vec![
            Op::Define(Define { route: RouteName::new("route")?, policy }),
            Op::Lane(LaneOrder { lane: lane.clone(), order }),
            Op::Lead(lead),
        ];
        match until_stored(&store, batch).await?.pop() {
            Some(Outcome::Applied(Effect::Led(owner, _))) => Ok(Victim { store, calls, lane, owner, hours }),
            other => Err(format!("no seat: {other:?}").into()),
        }
    }

    /// What every start does: leases that ran out go back, and stored attempts are sent again.
    async fn recover(&self) -> Result<(), Failure> {
        until_stored(&self.store, vec![Op::Rescue { limit: 1000 }]).await?;
        let lane = self.store.lane(self.lane.clone()).await?.ok_or("no lane")?;
        let under_way: Vec<_> = lane.parcels.iter().map(|parcel| self.settle(parcel)).collect();
        for parcel in &lane.parcels {
            tell_sent(parcel)?;
        }
        let ids: Vec<_> = lane.parcels.iter().flat_map(|parcel| parcel.deliveries.clone()).collect();
        self.settle_all(under_way, &ids).await
    }

    async fn carry(&self, first: u64, count: u64) -> Result<(), Failure> {
        let numbers: Vec<u64> = (first..first + count).collect();
        for handful in numbers.chunks(self.calls) {
            self.admit(handful).await?;
            self.work(handful[0]).await?;
            self.send().await?;
        }
        self.work(u64::MAX).await?;
        self.send().await?;
        let left = self.store.list(ListFilter { limit: 1, ..ListFilter::default() }).await?.requests;
        left.first().map_or(Ok(()), |request| Err(format!("left behind: {request:?}").into()))
    }

    /// Each request in a call of its own, all in flight together.
    async fn admit(&self, numbers: &[u64]) -> Result<(), Failure> {
        let mut calls = tokio::task::JoinSet::new();
        for &n in numbers {
            let (store, request) = (self.store.clone(), request(n)?);
            calls.spawn(async move {
                let id = request.id;
                let op = Op::Admit(Admit { cursor: None, requests: vec![request] });
                until_stored(&store, vec![op]).await.map(|_| id).map_err(|error| error.to_string())
            });
        }
        while let Some(done) = calls.join_next().await {
            tell(&format!("admitted {}", done??))?;
        }
        Ok(())
    }

    async fn work(&self, claim: u64) -> Result<(), Failure> {
        for turn in 0.. {
            let lease = Lease {
                route: RouteName::new("route")?,
                worker: WorkerName::new(&format!("worker-{}", std::process::id()))?,
                max: self.calls,
                claim: ClaimId(claim ^ (turn << 32) ^ (self.hours << 48)),
                lease_ms: None,
            };
            let mut outcomes = until_stored(&self.store, vec![Op::Lease(lease)]).await?;
            let Some(Outcome::Applied(Effect::Leased(grants))) = outcomes.pop() else { break };
            if grants.is_empty() {
                break;
            }
            for grant in &grants {
                tell(&format!("token {}", grant.token))?;
            }
            let answers = grants.iter().map(answer).collect();
            for (outcome, grant) in until_stored(&self.store, answers).await?.iter().zip(&grants) {
                if outcome.holds() {
                    tell(&format!("answered {}", grant.id))?;
                }
            }
        }
        Ok(())
    }

    /// Stores signed bytes, only then sends them, and settles what the outside took.
    async fn send(&self) -> Result<(), Failure> {
        loop {
            let ready = self.store.ready(Destination::new("outside")?, 64).await?;
            let first = self.store.lane(self.lane.clone()).await?.ok_or("no lane")?.next;
            if ready.is_empty() {
                return Ok(());
            }
            let parcels = ready.iter().map(parcel).collect();
            let assign = Assign { lane: self.lane.clone(), owner: self.owner, first, parcels };
            until_stored(&self.store, vec![Op::Assign(assign)]).await?;
            let lane = self.store.lane(self.lane.clone()).await?.ok_or("no lane")?;
            for parcel in &lane.parcels {
                tell_sent(parcel)?;
            }
            let settles = lane.parcels.iter().map(|parcel| self.settle(parcel)).collect();
            let ids: Vec<_> = lane.parcels.iter().flat_map(|parcel| parcel.deliveries.clone()).collect();
            self.settle_all(settles, &ids).await?;
        }
    }

    fn settle(&self, parcel: &ParcelView) -> Op {
        let block =
            Block { attempt: parcel.attempts[0].hash, at: Position { height: Height(parcel.nonce.0), hash: [0; 32] } };
        Op::Settle(Settle {
            lane: self.lane.clone(),
            owner: self.owner,
            nonce: parcel.nonce,
            expected: ParcelStage::Assigned,
            sight: Sight::Final(block, Judgement::Done),
        })
    }

    async fn settle_all(&self, settles: Vec<Op>, ids: &[RequestId]) -> Result<(), Failure> {
        for (outcome, id) in until_stored(&self.store, settles).await?.iter().zip(ids) {
            if outcome.holds() {
                tell(&format!("settled {id}"))?;
            }
        }
        Ok(())
    }
}

fn tell_sent(parcel: &ParcelView) -> Result<(), Failure> {
    let hash = parcel.attempts[0].hash;
    parcel.deliveries.iter().try_for_each(|id| tell(&format!("sent {id} {} {hash}", parcel.nonce.0)))
}

/// Applies a batch again until it is stored, or until the store can no longer be used.
async fn until_stored<S: Store>(store: &S, batch: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
    loop {
        match store.apply(batch.clone()).await {
            Err(error) if error.is_retryable() => {
                // Nobody is told of an answer that never came.
                let _told = tell(&format!("refused {error}"));
            }
            Err(error) => {
                let _told = tell(&format!("refused {error}"));
                // A failed store stays failed: the next call must be refused as well.
                let again = store.apply_one(Op::Rescue { limit: 0 }).await;
                let _told = tell(&format!("then {}", again.err().map_or("accepted".into(), |e| e.to_string())));
                return Err(error);
            }
            stored => return stored,
        }
    }
}

fn request(n: u64) -> Result<NewRequest, Failure> {
    Ok(NewRequest {
        route: RouteName::new("route")?,
        id: RequestId::of(&[&n.to_le_bytes()]),
        occurrence: OccurrenceId::of(&[&n.to_le_bytes()]),
        place: None,
        standing: Standing::Final,
        payload: Payload::raw(n.to_le_bytes().repeat(32)),
        due: None,
        deadline: None,
        priority: 0,
        key: None,
        trace: None,
        flaw: None,
    })
}

fn answer(grant: &Grant) -> Op {
    let (id, token, response) = (grant.id, grant.token, grant.payload.clone());
    Op::Answer(Answer { id, token, response, follow_ups: Vec::new(), items: Vec::new() })
}

/// Signing is not deterministic everywhere, so the hash depends on the process: a crash
/// that made anybody sign again would show.
fn parcel(ready: &ReadyDelivery) -> NewParcel {
    let hash = AttemptHash::of(&[&ready.id.0, &std::process::id().to_le_bytes()]);
    let attempt = SignedAttempt { hash, kind: AttemptKind::Carry, bytes: ready.response.bytes.clone(), fee: None };
    NewParcel::of(std::slice::from_ref(ready), attempt)
}
