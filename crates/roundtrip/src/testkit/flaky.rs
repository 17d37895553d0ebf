//! Wrappers that misbehave by a seed: calls that fail before or after they had their
//! effect, that take their time, or that tell of the past. One switch makes all of them
//! behave, so that a run can show that everything ends once the faults do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::listener::{BlockSource, SourceBlock, SourceError, SourceFuture, Tips};
use crate::sender::SignedAttempt;
use crate::sender::chain::{Broadcast, Cargo, Chain, ChainFuture, Sighting, Unreachable, Unsigned};
use crate::store::op::{Op, Outcome};
use crate::store::query::{ParcelView, Query, Reply};
use crate::store::witness::Witness;
use crate::store::{Changes, Store, StoreError, StoreFuture, Topic};
use crate::words::{Height, LaneName, Nonce};

/// Chance by a seed, and the switch. Clones share both.
#[derive(Clone)]
pub struct Weather {
    dice: Arc<Mutex<fastrand::Rng>>,
    calm: Arc<AtomicBool>,
}

/// What becomes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// It fails without having had any effect.
    Before,
    /// It had its effect, and its answer is lost.
    After,
}

impl Weather {
    /// Stormy weather by this seed.
    pub fn stormy(seed: u64) -> Weather {
        Weather { dice: Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))), calm: Arc::default() }
    }

    /// From now on nothing fails.
    pub fn calm_down(&self) {
        self.calm.store(true, Ordering::Relaxed);
    }

    /// A number below `limit`, by chance.
    pub fn below(&self, limit: u64) -> u64 {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner).u64(..limit.max(1))
    }

    /// Whether something happens that happens once in so many times; never, when calm.
    pub fn once_in(&self, times: u64) -> bool {
        let chosen = self.below(times) == 0;
        chosen && !self.calm.load(Ordering::Relaxed)
    }

    /// A call takes its time, and may fail.
    async fn fault(&self) -> Fault {
        let delay = match self.once_in(10) {
            true => Duration::from_millis(self.below(3_000)),
            false => Duration::from_millis(self.below(5)),
        };
        tokio::time::sleep(delay).await;
        match (self.once_in(25), self.once_in(2)) {
            (false, _) => Fault::None,
            (true, false) => Fault::Before,
            (true, true) => Fault::After,
        }
    }

    async fn pass<T, E>(&self, lost: impl Fn() -> E, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        match self.fault().await {
            Fault::None => call.await,
            Fault::Before => Err(lost()),
            Fault::After => call.await.and(Err(lost())),
        }
    }
}

/// A store, a chain or a source in bad weather.
pub struct Flaky<T> {
    inner: T,
    weather: Weather,
}

impl<T> Flaky<T> {
    /// Puts something out into the weather.
    pub fn new(inner: T, weather: &Weather) -> Flaky<T> {
        Flaky { inner, weather: weather.clone() }
    }
}

impl<S: Store> Store for Flaky<S> {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(self.weather.pass(|| StoreError::Unknown, self.inner.apply(batch)))
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        Box::pin(self.weather.pass(|| StoreError::Unknown, self.inner.read(query)))
    }

    fn witness(&self, witness: Arc<dyn Witness>) {
        self.inner.witness(witness);
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.inner.changes(topic)
    }
}

fn lost() -> Unreachable {
    Unreachable("lost on the way".into())
}

impl<C: Chain> Chain for Flaky<C> {
    fn look<'a>(&'a self, lane: &'a LaneName, parcels: &'a [ParcelView]) -> ChainFuture<'a, Sighting> {
        Box::pin(self.weather.pass(lost, self.inner.look(lane, parcels)))
    }

    fn sign<'a>(
        &'a self,
        lane: &'a LaneName,
        nonce: Nonce,
        cargo: Cargo<'a>,
    ) -> ChainFuture<'a, SignedAttempt, Unsigned> {
        Box::pin(self.weather.pass(|| lost().into(), self.inner.sign(lane, nonce, cargo)))
    }

    /// Each attempt has its own fate, and now and then the end of the answer is lost.
    fn broadcast<'a>(&'a self, lane: &'a LaneName, attempts: &'a [SignedAttempt]) -> Broadcast<'a> {
        Box::pin(async move {
            let mut receptions = Vec::new();
            for attempt in attempts {
                let one = async {
                    let one = self.inner.broadcast(lane, std::slice::from_ref(attempt)).await.pop();
                    one.unwrap_or_else(|| Err(lost()))
                };
                receptions.push(self.weather.pass(lost, one).await);
            }
            if self.weather.once_in(25) {
                receptions.pop();
            }
            receptions
        })
    }
}

impl<B: BlockSource> BlockSource for Flaky<B> {
    fn tips(&self) -> SourceFuture<'_, Tips> {
        let lost = || SourceError::Unreachable("lost on the way".into());
        Box::pin(self.weather.pass(lost, self.inner.tips()))
    }

    fn blocks(&self, from: Height, to: Height) -> SourceFuture<'_, Vec<SourceBlock>> {
        let lost = || SourceError::Unreachable("lost on the way".into());
        Box::pin(async move {
            let mut blocks = self.weather.pass(lost, self.inner.blocks(from, to)).await?;
            // A node may answer a part of what it was asked for.
            if self.weather.once_in(8) && blocks.len() > 1 {
                blocks.truncate(1 + usize::try_from(self.weather.below(blocks.len() as u64 - 1)).unwrap_or(0));
            }
            Ok(blocks)
        })
    }
}
