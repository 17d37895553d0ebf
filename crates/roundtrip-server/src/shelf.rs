//! Answers that nobody is sent: they are kept for whoever asks over the API, for a stated time
//! at least, and then end as delivered.
//!
//! ```text
//!   ready ──▶ seen in one pass ──▶ still there in the next, which is that time later ──▶ delivered
//! ```
//!
//! So an answer is kept for once to twice the stated time. Failure modes: what was seen is
//! remembered by this process alone, so after a crash the time begins anew; nothing ends early.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use roundtrip::station::{Shutdown, StationError};
use roundtrip::store::op::{Effect, Lead, Op, Outcome, Publish, PublishResult, Seat};
use roundtrip::store::query::ReadyDelivery;
use roundtrip::store::{ReadExt, Store, StoreError, StoreExt};
use roundtrip::words::{Destination, HolderName, Seq, Token};
use tokio::time::Instant;

use crate::telemetry::Traces;

/// How many times a seat is taken in the time that it is taken for.
const SEATINGS: u64 = 3;
/// Answers in one read.
const PAGE: usize = 256;

/// The station that keeps the answers of one destination.
///
/// Dropping its future is a crash: the seat runs out by itself.
pub struct Shelf {
    /// Where the answers are.
    pub store: Arc<dyn Store>,
    /// Whose answers.
    pub destination: Destination,
    /// Who holds the seat; unique to a process and its start.
    pub holder: HolderName,
    /// For how long each is kept at the least.
    pub at_least: Duration,
    /// How long the destination's seat is taken for.
    pub seat_ms: u64,
    /// What makes spans, if that is wanted.
    pub(crate) traces: Option<Arc<Traces>>,
}

/// This very answer.
type Kept = (Seq, Token);

impl Shelf {
    /// Keeps until told to stop.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), StationError> {
        let ended = shutdown.run_until_cancelled(self.rounds()).await;
        if let Some(ended) = ended {
            return ended;
        }
        let give_up =
            Lead { seat: Seat::Destination(self.destination.clone()), holder: self.holder.clone(), ttl_ms: 0 };
        // If it is not heard, the seat runs out by itself.
        let _unheard = self.store.apply_one(give_up).await;
        Ok(())
    }

    async fn rounds(&self) -> Result<(), StationError> {
        let (mut seen, mut passed) = (HashSet::new(), None::<Instant>);
        loop {
            let due = passed.is_none_or(|passed| passed.elapsed() >= self.at_least);
            if let Some(owner) = self.seat().await?
                && due
            {
                let started = Instant::now();
                if let Some(now) = self.pass(owner, &seen).await? {
                    (seen, passed) = (now, Some(started));
                }
            }
            let due = passed.map(|passed| (passed + self.at_least).saturating_duration_since(Instant::now()));
            let seat_again = Duration::from_millis((self.seat_ms / SEATINGS).max(50));
            tokio::time::sleep(due.unwrap_or(seat_again).clamp(Duration::from_millis(50), seat_again)).await;
        }
    }

    /// The seat's token, if the seat is ours.
    async fn seat(&self) -> Result<Option<Token>, StationError> {
        let (seat, holder) = (Seat::Destination(self.destination.clone()), self.holder.clone());
        let lead = Lead { seat, holder, ttl_ms: self.seat_ms };
        let taken = tolerated(self.store.apply_one(lead).await)?;
        match taken {
            Some(Outcome::Applied(Effect::Led(token, _)) | Outcome::Duplicate(Effect::Led(token, _))) => {
                Ok(Some(token))
            }
            Some(Outcome::Invalid(reason)) => Err(StationError::Broken(reason.to_string())),
            _ => Ok(None),
        }
    }

    /// Goes through all answers once: what was seen in the pass before ends. `None` if the
    /// store did not answer.
    async fn pass(&self, owner: Token, before: &HashSet<Kept>) -> Result<Option<HashSet<Kept>>, StationError> {
        let (mut now, mut after) = (HashSet::new(), None);
        loop {
            let read = self.store.ready_after(self.destination.clone(), after, PAGE).await;
            let Some(page) = tolerated(read)? else { return Ok(None) };
            let Some(last) = page.last() else { return Ok(Some(now)) };
            after = Some(last.seq);
            let (over, kept): (Vec<_>, Vec<_>) = page.into_iter().partition(|answer| before.contains(&kept(answer)));
            // When they end, nobody can ask any longer whose trace they belong to.
            if let Some(traces) = &self.traces {
                kept.iter().for_each(|answer| traces.expect(answer.id, &answer.route));
            }
            now.extend(kept.iter().map(self::kept));
            let ends: Vec<Op> = over.into_iter().map(|answer| self.end_of(owner, &answer)).collect();
            if !ends.is_empty() && tolerated(self.store.apply(ends).await)?.is_none() {
                return Ok(None);
            }
        }
    }

    fn end_of(&self, owner: Token, answer: &ReadyDelivery) -> Op {
        let (destination, result) = (self.destination.clone(), PublishResult::Delivered);
        Op::Publish(Publish { destination, owner, id: answer.id, answer: answer.answer, result })
    }
}

fn kept(answer: &ReadyDelivery) -> Kept {
    (answer.seq, answer.answer)
}

/// An answer that was lost is no reason to stop: whatever it was is done again.
fn tolerated<T>(result: Result<T, StoreError>) -> Result<Option<T>, StationError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_retryable() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use roundtrip::listener::{Ending, Submitter};
    use roundtrip::relay::Relay;
    use roundtrip::store::policy::RoutePolicy;
    use roundtrip::store::{Options, open};
    use roundtrip::words::Payload;
    use roundtrip::worker::handler_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_kept_for_its_time_and_not_for_ever() {
        let store = open("memory:", Options::default()).unwrap();
        let destination = Destination::new("caller").unwrap();
        let policy = RoutePolicy { destination: Some(destination.clone()), ..RoutePolicy::default() };
        let holder = HolderName::new("shelf").unwrap();
        let shelf = Shelf {
            store: store.clone(),
            destination,
            holder,
            at_least: Duration::from_secs(60),
            seat_ms: 15_000,
            traces: None,
        };
        let relay = Relay::new(store.clone())
            .route("square", policy, handler_fn(|n: u64, _job| async move { Ok(n * n) }))
            .station("shelf", move |shutdown| shelf.run(shutdown))
            .start()
            .await
            .unwrap();
        let submitter = Submitter::new(store);
        let id = submitter.submit_json("square", &7).await.unwrap().id;
        let answered = Some(Ending::Answered(Payload::json("49")));
        assert_eq!(submitter.answered(id).await.unwrap(), answered);
        let began = Instant::now();
        assert!(matches!(submitter.ended(id).await.unwrap(), Some(Ending::Ended(_))));
        let kept = began.elapsed();
        assert!((60..=130).contains(&kept.as_secs()), "{kept:?}");
        relay.shutdown().await.unwrap();
    }
}
