//! The sender as it is, on a store as it is, with a look at what goes in and what comes out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use roundtrip::clock::SystemClock;
use roundtrip::sender::chain::{Broadcast, Cargo, Chain, ChainFuture, Reception, Sighting, Unsigned};
use roundtrip::sender::{ParcelStage, Rebuild, Sender, SenderOptions, SignedAttempt};
use roundtrip::station::{Shutdown, StationError};
use roundtrip::store::op::{Admit, Answer, Define, Effect, Lease, Op, Outcome, Settle, Sight};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::{ParcelView, Query, Reply};
use roundtrip::store::{Changes, Store, StoreExt, StoreFuture, Topic};
use roundtrip::words::{ClaimId, Destination, HolderName, LaneName, Nonce, Payload, WorkerName};
use roundtrip_evm::sender::LaneSigner;
use roundtrip_evm::{ContractCall, EvmChain, EvmChainOptions, Finality, Gas};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::site::{Cost, Meter, Site, answer, content};
use super::{CONFIRMATIONS, Failure, GAS, POLL};
use crate::lifecycle::{request, route};

/// Blocks so deep are final: what is confirmed ends during the run.
const FINAL_DEPTH: u64 = 4;
/// Parcels under way on a lane of ours; the bare loop has no bound.
const WINDOW: u32 = 4096;
/// How many requests are admitted, leased and answered at a time.
const HANDFUL: usize = 1000;
/// Longer than any run.
const LEASE_MS: u64 = 600_000;
const FUNCTION: &str = "function respond(uint256 id, bytes32 content, bytes answer)";

/// A store that counts what becomes confirmed.
struct Watched {
    store: Arc<dyn Store>,
    confirmed: AtomicU64,
    stop_at: u64,
    done: Notify,
}

fn confirms(op: &Op) -> bool {
    let Op::Settle(Settle { expected, sight, .. }) = op else { return false };
    *expected != ParcelStage::Confirmed && matches!(sight, Sight::Confirmed(_) | Sight::Final(..))
}

impl Store for Watched {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let confirming: Vec<bool> = batch.iter().map(confirms).collect();
            let outcomes = self.store.apply(batch).await?;
            let applied = |outcome: &Outcome| matches!(outcome, Outcome::Applied(_));
            let count = confirming.iter().zip(&outcomes).filter(|(confirms, outcome)| **confirms && applied(outcome));
            let count = count.count() as u64;
            if self.confirmed.fetch_add(count, Ordering::Relaxed) + count >= self.stop_at {
                self.done.notify_one();
            }
            Ok(outcomes)
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.store.read(query)
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.store.changes(topic)
    }
}

/// A chain that remembers when something was last handed to the node, and last taken by it.
pub(super) struct Timed {
    chain: EvmChain,
    times: Mutex<(Instant, Instant)>,
    pub(super) sending: Notify,
}

impl Timed {
    pub(super) fn new(chain: EvmChain) -> Timed {
        let now = Instant::now();
        Timed { chain, times: Mutex::new((now, now)), sending: Notify::new() }
    }

    /// When something was last handed over, and when something was last taken.
    pub(super) fn times(&self) -> (Instant, Instant) {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, change: impl FnOnce(&mut (Instant, Instant))) {
        change(&mut self.times.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Chain for Timed {
    fn look<'a>(&'a self, lane: &'a LaneName, parcels: &'a [ParcelView]) -> ChainFuture<'a, Sighting> {
        self.chain.look(lane, parcels)
    }

    fn sign<'a>(
        &'a self,
        lane: &'a LaneName,
        nonce: Nonce,
        cargo: Cargo<'a>,
    ) -> ChainFuture<'a, SignedAttempt, Unsigned> {
        self.chain.sign(lane, nonce, cargo)
    }

    fn broadcast<'a>(&'a self, lane: &'a LaneName, attempts: &'a [SignedAttempt]) -> Broadcast<'a> {
        Box::pin(async move {
            self.note(|times| times.0 = Instant::now());
            self.sending.notify_one();
            let received = self.chain.broadcast(lane, attempts).await;
            if received.contains(&Ok(Reception::Taken)) {
                self.note(|times| times.1 = Instant::now());
            }
            received
        })
    }
}

fn destination() -> Result<Destination, Failure> {
    Ok(Destination::new("chain")?)
}

/// Admits and leases so many, as a listener and a worker would, and answers what to answer them with.
pub(super) async fn leased(store: &dyn Store, count: u64) -> Result<Vec<Op>, Failure> {
    let policy = RoutePolicy { destination: Some(destination()?), capacity: 10_000_000, ..RoutePolicy::default() };
    store.apply_one(Define { route: route(), policy }).await?;
    let worker = WorkerName::new("worker")?;
    let mut answers = Vec::new();
    while (answers.len() as u64) < count {
        let next = answers.len() as u64;
        let some = next..count.min(next + HANDFUL as u64);
        store.apply_one(Admit { cursor: None, requests: some.clone().map(request).collect() }).await?;
        let (worker, claim) = (worker.clone(), ClaimId(next));
        let lease = Lease { route: route(), worker, max: HANDFUL, claim, lease_ms: Some(LEASE_MS) };
        let Outcome::Applied(Effect::Leased(grants)) = store.apply_one(lease).await? else {
            return Err("nothing was leased".into());
        };
        if grants.len() as u64 != some.end - some.start {
            return Err("not all were leased".into());
        }
        answers.extend(grants.into_iter().zip(some).map(|(grant, n)| {
            let response =
                Payload::json(format!(r#"{{"id":"{n}","content":"{}","answer":"{}"}}"#, content(n), answer(n)));
            let (id, token) = (grant.id, grant.token);
            Op::Answer(Answer { id, token, response, follow_ups: Vec::new(), items: Vec::new() })
        }));
    }
    Ok(answers)
}

/// The sender's view of the chain.
pub(super) fn chain(site: &Site) -> Result<EvmChain, Failure> {
    let mut signers: BTreeMap<LaneName, LaneSigner> = BTreeMap::new();
    for (name, signer) in lanes(site)?.into_iter().zip(&site.signers) {
        signers.insert(name, Arc::new(signer.clone()));
    }
    let options = EvmChainOptions {
        finality: Finality::Depth(FINAL_DEPTH),
        confirmations: CONFIRMATIONS,
        gas: Gas::Fixed(GAS),
        head_fresh_for: POLL,
        ..EvmChainOptions::default()
    };
    let call = ContractCall::one(site.board, FUNCTION)?;
    Ok(EvmChain::new(site.rpc.clone(), site.chain_id, call, signers, options))
}

fn lanes(site: &Site) -> Result<Vec<LaneName>, Failure> {
    let names = (0..site.signers.len()).map(|n| LaneName::new(&format!("lane-{n}")));
    Ok(names.collect::<Result<_, _>>()?)
}

/// Starts the sender on this store.
pub(super) fn start(
    site: &Site,
    store: Arc<dyn Store>,
    chain: Arc<Timed>,
    shutdown: &Shutdown,
) -> Result<JoinHandle<Result<(), StationError>>, Failure> {
    let sender = Sender {
        store,
        chain,
        clock: Arc::new(SystemClock::new()),
        holder: HolderName::new("bench")?,
        destination: destination()?,
        lanes: lanes(site)?,
        options: SenderOptions { window: WINDOW, poll: POLL, ..SenderOptions::default() },
        rebuild: Rebuild::default(),
        stats: Arc::default(),
    };
    Ok(tokio::spawn(sender.run(shutdown.clone())))
}

/// The sender on a store in which everything is answered, until all is confirmed.
pub(super) async fn send_all(site: &Site, store: Arc<dyn Store>) -> Result<Cost, Failure> {
    for some in leased(&*store, site.count).await?.chunks(HANDFUL) {
        if !store.apply(some.to_vec()).await?.iter().all(Outcome::holds) {
            return Err("an answer was refused".into());
        }
    }
    let watched = Watched { store, confirmed: AtomicU64::new(0), stop_at: site.count, done: Notify::new() };
    let (store, shutdown) = (Arc::new(watched), Shutdown::new());
    let chain = Arc::new(Timed::new(chain(site)?));
    let meter = Meter::start(site);
    let mut sending = start(site, store.clone(), chain.clone(), &shutdown)?;
    tokio::select! {
        () = store.done.notified() => {}
        ended = &mut sending => return Err(format!("the sender ended: {ended:?}").into()),
    }
    let cost = meter.stop(chain.times().1);
    shutdown.cancel();
    sending.await??;
    store.store.close().await?;
    Ok(cost)
}
