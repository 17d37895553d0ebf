//! Calls that are made until their outcome is known.
//!
//! A lost answer is asked for again, which has no second effect; a full disk is waited
//! for. Every other store error is final and goes to the caller. The wait between two
//! calls grows up to a bound; how often a call is made has none, so whoever must not
//! wait for ever drops the future, and replays the batch when it matters.

use std::time::Duration;

use crate::store::op::{Op, Outcome};
use crate::store::{Store, StoreError};

const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Applies a batch until the store says what became of it. Whoever needs it afterwards lends it.
pub(crate) async fn apply(store: &dyn Store, batch: impl AsRef<[Op]>) -> Result<Vec<Outcome>, StoreError> {
    let (batch, mut tries) = (batch.as_ref(), 0);
    loop {
        match store.apply(batch.to_vec()).await {
            Ok(outcomes) if outcomes.len() == batch.len() => return Ok(outcomes),
            Ok(_) => return Err(StoreError::Damaged("a store answered another batch".into())),
            Err(error) if error.is_retryable() => wait(&error, tries).await,
            Err(error) => return Err(error),
        }
        tries += 1;
    }
}

/// Applies one operation until the store says what became of it.
pub(crate) async fn apply_one(store: &dyn Store, op: impl Into<Op>) -> Result<Outcome, StoreError> {
    let outcomes = apply(store, vec![op.into()]).await?;
    outcomes.into_iter().next().ok_or(StoreError::Unknown)
}

/// Reads until the store answers.
pub(crate) async fn read<T, F>(ask: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut tries = 0;
    loop {
        match ask().await {
            Err(error) if error.is_retryable() => wait(&error, tries).await,
            answered => return answered,
        }
        tries += 1;
    }
}

async fn wait(error: &StoreError, tries: u32) {
    let wait = wait_after(tries);
    tracing::warn!(%error, tries, wait_ms = wait.as_millis(), "a call to the store is made again");
    tokio::time::sleep(wait).await;
}

/// How long to wait after so many calls that came to nothing.
fn wait_after(tries: u32) -> Duration {
    FIRST_WAIT.saturating_mul(1 << tries.min(16)).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_bound() {
        let waits: Vec<u128> = [0, 1, 2, 7, 8, u32::MAX].map(|tries| wait_after(tries).as_millis()).into();
        assert_eq!(waits, [10, 20, 40, 1280, 2000, 2000]);
    }
}
