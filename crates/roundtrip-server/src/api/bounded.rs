//! A store that is waited for only so long.
//!
//! Each call of the store has its own bound, so whoever waits for work or for an answer, which is many calls, is not
//! cut off. Failure modes: a batch whose answer is not waited for may be done nevertheless, as if its answer was
//! lost; a read that is given up changes nothing.

use std::sync::Arc;
use std::time::Duration;

use roundtrip::store::op::{Op, Outcome};
use roundtrip::store::query::{Query, Reply};
use roundtrip::store::witness::Witness;
use roundtrip::store::{Changes, Store, StoreError, StoreFuture, Topic};

/// That the answer to a read was lost says only that nobody answered: no batch was under way.
fn unread(error: StoreError) -> StoreError {
    match error {
        StoreError::Unknown => not_reached("its answer was lost".to_owned()),
        error => error,
    }
}

fn not_reached(reason: String) -> StoreError {
    StoreError::Unreachable { server: "the store".to_owned(), reason }
}

/// A store whose answers come within a time, or count as lost.
pub(super) struct Bounded {
    pub(super) inner: Arc<dyn Store>,
    pub(super) within: Duration,
}

impl Store for Bounded {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        let applied = tokio::time::timeout(self.within, self.inner.apply(batch));
        Box::pin(async move { applied.await.unwrap_or(Err(StoreError::Unknown)) })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        let read = tokio::time::timeout(self.within, self.inner.read(query));
        let late = || not_reached(format!("it did not answer within {}", humantime::format_duration(self.within)));
        Box::pin(async move { read.await.unwrap_or_else(|_elapsed| Err(late())).map_err(unread) })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.close()
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.inner.changes(topic)
    }

    fn witness(&self, witness: Arc<dyn Witness>) {
        self.inner.witness(witness);
    }

    fn keeps_apart(&self, op: &Op) -> bool {
        self.inner.keeps_apart(op)
    }

    fn batches_under_way(&self) -> usize {
        self.inner.batches_under_way()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use roundtrip::store::{ReadExt, StoreExt, op};
    use roundtrip::words::RouteName;

    use super::*;

    /// A store that never answers.
    struct Frozen;

    impl Store for Frozen {
        fn apply(&self, _: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
            Box::pin(std::future::pending())
        }

        fn read(&self, _: Query) -> StoreFuture<'_, Reply> {
            Box::pin(std::future::pending())
        }

        fn changes(&self, _: Topic) -> Changes {
            unreachable!("nobody asks")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_silent_store_was_told_is_unknown_and_what_it_was_asked_is_not_read() {
        let store = Bounded { inner: Arc::new(Frozen), within: Duration::from_secs(30) };
        let before = tokio::time::Instant::now();
        let pause = op::Pause { route: RouteName::new("r").unwrap(), paused: true };
        assert_eq!(store.apply_one(pause).await, Err(StoreError::Unknown));
        assert_eq!(before.elapsed(), Duration::from_secs(30));
        let told = store.counts().await.unwrap_err().to_string();
        assert_eq!(told, "the store was not reached: it did not answer within 30s");
    }
}
