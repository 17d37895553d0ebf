//! A thousand keys in keyed order, on real threads, through failures, crashes of every
//! worker and crashes of the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use roundtrip::clock::{Clock, SystemClock};
use roundtrip::inbox::End;
use roundtrip::listener::Ending;
use roundtrip::station::Shutdown;
use roundtrip::store::op::{NewRequest, Op};
use roundtrip::store::policy::{Backoff, QueueOrder, RoutePolicy};
use roundtrip::store::{Options, SqliteStore, Store, StoreExt};
use roundtrip::testkit::samples::id;
use roundtrip::words::{OrderKey, UnixMs};
use roundtrip::worker::{Failure, Job, Typed, WorkerOptions, handler_fn};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Rig, numbered};

const KEYS: u64 = 1000;
const PER_KEY: u64 = 5;
const CRASHES: u64 = 3;

/// The system's clock, some hours ahead, so that the leases of the dead have run out.
struct Ahead(SystemClock, u64);

impl Clock for Ahead {
    fn now(&self) -> UnixMs {
        self.0.now().plus(self.1 * 3_600_000)
    }
}

/// What was handled to its end, in order; the same again after a crash that lost the answer.
type Log = Arc<Mutex<Vec<u64>>>;

fn keyed(n: u64) -> NewRequest {
    NewRequest { key: Some(OrderKey::new(&format!("key-{}", n % KEYS)).unwrap()), ..numbered(n) }
}

fn work(rig: &Rig, log: &Log, done: &watch::Sender<u64>) -> JoinSet<()> {
    let mut workers = JoinSet::new();
    for _ in 0..8 {
        let (log, done) = (log.clone(), done.clone());
        let handler = handler_fn(move |n: u64, job: Job| {
            let (log, done) = (log.clone(), done.clone());
            async move {
                tokio::task::yield_now().await;
                if (n + u64::from(job.attempt())).is_multiple_of(7) {
                    return Err(Failure::retry("not this time"));
                }
                log.lock().unwrap().push(n);
                done.send_modify(|done| *done += 1);
                Ok(n)
            }
        });
        let options = WorkerOptions { concurrency: 8, ..WorkerOptions::default() };
        let worker = rig.worker(options, Typed(handler));
        workers.spawn(async move { worker.run(Shutdown::new()).await.unwrap() });
    }
    workers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_keys_keep_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let (log, done) = (Log::default(), watch::channel(0).0);
    for round in 0..=CRASHES {
        let clock: Arc<dyn Clock> = Arc::new(Ahead(SystemClock::new(), round));
        let path = folder.path().join("store.db");
        let store = Arc::new(SqliteStore::open(path, clock.clone(), Options::default()).unwrap());
        let rig = Rig::new(store.clone() as Arc<dyn Store>, clock, None);
        if round == 0 {
            let (order, backoff) = (QueueOrder::KeyedFifo { per_key: 1 }, Backoff::NONE);
            rig.define(RoutePolicy { order, backoff, crashes_max: u16::MAX, ..RoutePolicy::default() }).await;
            let all: Vec<u64> = (0..KEYS * PER_KEY).collect();
            for batch in all.chunks(500) {
                rig.admit(batch.iter().map(|&n| keyed(n)).collect()).await;
            }
        }
        store.apply_one(Op::Rescue { limit: 1000 }).await.unwrap();
        let mut workers = work(&rig, &log, &done);
        if round == CRASHES {
            for end in rig.ends((0..KEYS * PER_KEY).map(id)).await {
                assert!(matches!(end, Ending::Ended(receipt) if receipt.end == End::Settled), "{end:?}");
            }
        } else {
            let some = KEYS * PER_KEY * (round + 1) / (CRASHES + 2);
            done.subscribe().wait_for(|done| *done >= some).await.unwrap();
        }
        workers.shutdown().await;
        drop(rig);
        Arc::into_inner(store).unwrap().crash();
    }
    let mut by_key: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    log.lock().unwrap().iter().for_each(|n| by_key.entry(n % KEYS).or_default().push(n / KEYS));
    assert_eq!(by_key.len() as u64, KEYS);
    for (key, mut handled) in by_key {
        assert!(handled.is_sorted(), "key {key} was handled in the order {handled:?}");
        handled.dedup();
        assert_eq!(handled, (0..PER_KEY).collect::<Vec<_>>());
    }
}
