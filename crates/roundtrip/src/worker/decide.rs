//! What a worker does next, as pure functions of what it knows.

use std::time::Duration;

use tokio::time::Instant;

use super::handler::{Done, Failure, Handled};
use crate::store::op::{Answer, Fail, Full, Op, Outcome, Release, Stale, Verdict};
use crate::words::{
    BATCH_BYTES_MAX, BATCH_RECORDS_MAX, ClaimId, ErrorClass, ErrorNote, LEASE_MAX, Payload, RequestId, RouteName,
    Token, UnixMs, WorkerName,
};

/// Most results in one call; more wait for the next.
const RESULTS_MAX: usize = 512;
/// Most bytes of results in one call, unless one result alone is larger.
const RESULT_BYTES_MAX: usize = 4 << 20;
/// How often a result that a full route has no room for is offered before it is given up.
const OFFERS_MAX: u32 = 40;
/// After how long a request whose result was given up comes back.
const FULL_DELAY: Duration = Duration::from_secs(5);

/// Whose lease it is that a result is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseKey {
    pub(super) id: RequestId,
    pub(super) token: Token,
}

/// How a handler's run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It returned.
    Returned(Result<Handled<Payload>, Failure>),
    /// It panicked with this message.
    Panicked(String),
    /// The worker stopped it, because it is stopping itself.
    Aborted,
}

/// Whether a result still counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// The lease holds.
    Held,
    /// The lease holds, for content that nobody wants any longer.
    Superseded,
    /// The lease is gone.
    Lost,
}

/// The operation that an ended job comes to; none if its lease is gone.
pub(super) fn operation(lease: LeaseKey, hold: Hold, ended: Ended) -> Option<Op> {
    let op = match (hold, ended) {
        (Hold::Lost, _) => return None,
        // Whatever was found out about the old content says nothing about the new.
        (Hold::Superseded, _) | (_, Ended::Aborted) => release(lease, Duration::ZERO),
        (_, Ended::Panicked(message)) => {
            let note = ErrorNote::new(ErrorClass::Crash, &format!("the handler panicked: {message}"));
            fail(lease, note, retry(None))
        }
        (_, Ended::Returned(Ok(handled))) => operation_for(lease, handled),
        (_, Ended::Returned(Err(failure))) => {
            let verdict = match failure.class {
                ErrorClass::Fatal => Verdict::Dead { response: failure.response },
                _ => retry(failure.after),
            };
            fail(lease, ErrorNote::new(failure.class, &failure.text), verdict)
        }
    };
    Some(if fits(&op) { op } else { too_large(lease) })
}

fn operation_for(lease: LeaseKey, handled: Handled<Payload>) -> Op {
    let LeaseKey { id, token } = lease;
    match handled {
        Handled::Done(Done { response, follow_ups, items }) => {
            Op::Answer(Answer { id, token, response, follow_ups, items })
        }
        Handled::Snooze(delay) => release(lease, delay),
        Handled::Cancel { reason, response } => {
            fail(lease, ErrorNote::new(ErrorClass::Fatal, &reason), Verdict::Dead { response })
        }
        Handled::Elsewhere { reason } => fail(lease, ErrorNote::new(ErrorClass::Fatal, &reason), Verdict::Elsewhere),
    }
}

/// Gives a lease back at no cost.
pub(super) fn release(LeaseKey { id, token }: LeaseKey, delay: Duration) -> Op {
    Op::Release(Release { id, token, after_ms: ms(delay) })
}

fn fail(LeaseKey { id, token }: LeaseKey, error: ErrorNote, verdict: Verdict) -> Op {
    Op::Fail(Fail { id, token, error, verdict })
}

fn retry(after: Option<Duration>) -> Verdict {
    Verdict::Retry { after_ms: after.map(ms) }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whether one call can bring the operation at all.
fn fits(op: &Op) -> bool {
    op.payload_bytes() <= BATCH_BYTES_MAX && op.records() <= BATCH_RECORDS_MAX
}

fn too_large(lease: LeaseKey) -> Op {
    let text = "the response with all that follows from it is more than one call may bring";
    fail(lease, ErrorNote::new(ErrorClass::Fatal, text), Verdict::Dead { response: None })
}

/// What is left to do after the store answered a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Aftermath {
    /// Nothing: it is recorded.
    Recorded,
    /// Nothing: the content was superseded meanwhile, and the request goes back.
    Superseded,
    /// Nothing: the lease was lost, and with it the right to say anything.
    Lost,
    /// The same again, later: there is no room now.
    Later,
    /// This instead: the result can never be taken.
    Instead(Box<Op>),
    /// Nothing can be done; the lease runs out by itself.
    Abandoned,
}

/// What a result that was offered so many times before comes to.
pub(super) fn aftermath(lease: LeaseKey, op: &Op, offers: u32, outcome: &Outcome) -> Aftermath {
    let instead = |op: Op| Aftermath::Instead(Box::new(op));
    let dead =
        |text: String| instead(fail(lease, ErrorNote::new(ErrorClass::Fatal, &text), Verdict::Dead { response: None }));
    let carries = match op {
        Op::Answer(_) => true,
        Op::Fail(fail) => matches!(fail.verdict, Verdict::Dead { response: Some(_) }),
        _ => false,
    };
    match outcome {
        Outcome::Applied(_) | Outcome::Duplicate(_) => Aftermath::Recorded,
        Outcome::Stale(Stale::Superseded) => Aftermath::Superseded,
        Outcome::Stale(_) | Outcome::NotFound(_) => Aftermath::Lost,
        Outcome::Full(Full::Route { .. }) if offers < OFFERS_MAX => Aftermath::Later,
        Outcome::Full(Full::Route { route, .. }) => {
            let text = format!("route {route} had no room for what follows from the answer");
            instead(fail(lease, ErrorNote::new(ErrorClass::Transport, &text), retry(Some(FULL_DELAY))))
        }
        Outcome::Full(full) if carries => dead(format!("no room for the answer: {full:?}")),
        Outcome::Invalid(invalid) if carries => dead(format!("the answer was refused: {invalid}")),
        Outcome::Full(_) | Outcome::Invalid(_) => Aftermath::Abandoned,
    }
}

/// How many more requests to lease: as many as can run, while results that wait for
/// the store stay bounded too.
pub(super) fn room(concurrency: usize, running: usize, unanswered: usize) -> usize {
    let to_run = concurrency.saturating_sub(running);
    let in_hand = (2 * concurrency).saturating_sub(running + unanswered);
    to_run.min(in_hand).min(LEASE_MAX)
}

/// How many results from the front go into the next call, by their bytes.
pub(super) fn results_per_call(sizes: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let fits = |size: &usize| {
        let first = bytes == 0;
        bytes += size.max(&1);
        first || bytes <= RESULT_BYTES_MAX
    };
    sizes.take(RESULTS_MAX).take_while(fits).count()
}

/// When to extend next, after somebody amended something: soon, but not all the time.
pub(super) fn sooner(planned: Option<Instant>, last: Instant, gap: Duration) -> Instant {
    let soon = last + gap;
    planned.map_or(soon, |planned| planned.min(soon))
}

/// A worker's numbers for its lease calls. They start at a place that depends on who it
/// is, on its seed, and on when it started, so that no start repeats those of another.
#[derive(Clone, Debug)]
pub(super) struct Claims(u64);

impl Claims {
    pub(super) fn new(worker: &WorkerName, route: &RouteName, seed: u64, started_at: UnixMs) -> Claims {
        let numbers = [seed.to_le_bytes(), started_at.0.to_le_bytes()].concat();
        let hash = RequestId::of(&[b"claims", worker.as_str().as_bytes(), route.as_str().as_bytes(), &numbers]);
        Claims(hash.as_bytes().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub(super) fn next(&mut self) -> ClaimId {
        self.0 = self.0.wrapping_add(1);
        ClaimId(self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::inbox::StateKind;
    use crate::store::op::{Effect, Gather, Invalid, Missing};
    use crate::words::{BATCH_RECORDS_MAX, GroupKey, ItemId};

    const LEASE: LeaseKey = LeaseKey { id: RequestId([1; 32]), token: Token { epoch: 1, count: 2 } };

    fn note(class: ErrorClass, text: &str) -> ErrorNote {
        ErrorNote::new(class, text)
    }

    fn answer(done: Done<Payload>) -> Op {
        let Done { response, follow_ups, items } = done;
        Op::Answer(Answer { id: LEASE.id, token: LEASE.token, response, follow_ups, items })
    }

    fn dead(text: &str, response: Option<Payload>) -> Op {
        fail(LEASE, note(ErrorClass::Fatal, text), Verdict::Dead { response })
    }

    #[test]
    fn an_ended_job_becomes_one_operation() {
        let second = Duration::from_secs(1);
        let done = || Done::new(Payload::json("1"));
        let failed = |failure: Failure| Ended::Returned(Err(failure));
        let cases = [
            (Ended::Returned(Ok(done().into())), answer(done())),
            (Ended::Returned(Ok(Handled::Snooze(second))), release(LEASE, second)),
            (Ended::Returned(Ok(Handled::cancel("no"))), dead("no", None)),
            (
                Ended::Returned(Ok(Handled::Cancel { reason: "no".into(), response: Some(Payload::json("0")) })),
                dead("no", Some(Payload::json("0"))),
            ),
            (
                Ended::Returned(Ok(Handled::Elsewhere { reason: "it was done before".into() })),
                fail(LEASE, note(ErrorClass::Fatal, "it was done before"), Verdict::Elsewhere),
            ),
            (failed(Failure::retry("x")), fail(LEASE, note(ErrorClass::Retryable, "x"), retry(None))),
            (
                failed(Failure::transport("x").after(second)),
                fail(LEASE, note(ErrorClass::Transport, "x"), retry(Some(second))),
            ),
            (failed(Failure::fatal("x")), dead("x", None)),
            (failed(Failure::fatal("x").with_response(Payload::json("0"))), dead("x", Some(Payload::json("0")))),
            // A response is for the end; what is tried again has not ended.
            (
                failed(Failure::retry("x").with_response(Payload::json("0"))),
                fail(LEASE, note(ErrorClass::Retryable, "x"), retry(None)),
            ),
            (
                Ended::Panicked("oh".into()),
                fail(LEASE, note(ErrorClass::Crash, "the handler panicked: oh"), retry(None)),
            ),
            (Ended::Aborted, release(LEASE, Duration::ZERO)),
        ];
        for (ended, op) in cases {
            assert_eq!(operation(LEASE, Hold::Held, ended.clone()), Some(op), "{ended:?}");
            assert_eq!(operation(LEASE, Hold::Superseded, ended.clone()), Some(release(LEASE, Duration::ZERO)));
            assert_eq!(operation(LEASE, Hold::Lost, ended), None);
        }
    }

    #[test]
    fn what_no_call_can_bring_ends_dead() {
        let (group, payload) = (GroupKey::new("g").unwrap(), Payload::default());
        let item = Gather { group, item: ItemId([0; 32]), payload, plan: None };
        let done = Done { items: vec![item; BATCH_RECORDS_MAX], ..Done::new(Payload::default()) };
        let op = operation(LEASE, Hold::Held, Ended::Returned(Ok(done.into())));
        assert_eq!(op, Some(too_large(LEASE)));
    }

    #[test]
    fn a_refused_result_has_an_aftermath() {
        let full = || Outcome::Full(Full::Route { route: RouteName::new("r").unwrap(), capacity: 1 });
        let too_large = || Outcome::Invalid(Invalid::PayloadTooLarge { bytes: 2, max: 1 });
        let refused = "the answer was refused: a payload of 2 bytes is over the limit of 1 bytes";
        let given_up = "route r had no room for what follows from the answer";
        let instead = |op: Op| Aftermath::Instead(Box::new(op));
        let result = || answer(Done::new(Payload::default()));
        let cases = [
            (result(), 0, Outcome::Applied(Effect::Done), Aftermath::Recorded),
            (result(), 0, Outcome::Duplicate(Effect::Done), Aftermath::Recorded),
            (result(), 0, Outcome::Stale(Stale::Superseded), Aftermath::Superseded),
            (result(), 0, Outcome::Stale(Stale::Lease(StateKind::Queued)), Aftermath::Lost),
            (result(), 0, Outcome::NotFound(Missing::Request(LEASE.id)), Aftermath::Lost),
            (result(), 0, full(), Aftermath::Later),
            (
                result(),
                OFFERS_MAX,
                full(),
                instead(fail(LEASE, note(ErrorClass::Transport, given_up), retry(Some(FULL_DELAY)))),
            ),
            (result(), 0, too_large(), instead(dead(refused, None))),
            (dead("x", Some(Payload::default())), 0, too_large(), instead(dead(refused, None))),
            (dead("x", None), 0, too_large(), Aftermath::Abandoned),
        ];
        for (op, offers, outcome, expected) in cases {
            assert_eq!(aftermath(LEASE, &op, offers, &outcome), expected, "{op:?} {outcome:?}");
        }
    }

    #[test]
    fn only_what_there_is_room_for_is_leased() {
        let check = |concurrency, running, unanswered, expected| {
            assert_eq!(room(concurrency, running, unanswered), expected, "{concurrency} {running} {unanswered}");
        };
        check(4, 0, 0, 4);
        check(4, 3, 0, 1);
        check(4, 4, 0, 0);
        // Results that are on their way free their place, up to as many again.
        check(4, 0, 4, 4);
        check(4, 2, 4, 2);
        check(4, 2, 5, 1);
        check(4, 0, 8, 0);
        check(4, 4, 9, 0);
        check(2 * LEASE_MAX, 0, 0, LEASE_MAX);
    }

    #[test]
    fn results_share_a_call_up_to_its_bounds() {
        let check = |sizes: &[usize], expected| assert_eq!(results_per_call(sizes.iter().copied()), expected);
        check(&[], 0);
        check(&[0, 0, 0], 3);
        check(&[RESULT_BYTES_MAX - 1, 1, 1], 2);
        check(&[RESULT_BYTES_MAX + 1, 1], 1);
        check(&[1; RESULTS_MAX + 1], RESULTS_MAX);
    }

    #[tokio::test]
    async fn amendments_bring_the_heartbeat_forward() {
        let (last, gap) = (Instant::now(), Duration::from_millis(20));
        let far = last + Duration::from_secs(20);
        let near = last + Duration::from_millis(5);
        assert_eq!(sooner(Some(far), last, gap), last + gap);
        assert_eq!(sooner(Some(near), last, gap), near);
        assert_eq!(sooner(None, last, gap), last + gap);
    }

    #[test]
    fn no_start_repeats_the_claims_of_another() {
        let (worker, route) = (WorkerName::new("w").unwrap(), RouteName::new("r").unwrap());
        let first =
            |worker: &str, seed, at| Claims::new(&WorkerName::new(worker).unwrap(), &route, seed, UnixMs(at)).next();
        let mut claims = Claims::new(&worker, &route, 1, UnixMs(1));
        let own = claims.next();
        assert_ne!(own, claims.next());
        assert_eq!(own, first("w", 1, 1), "a run repeats exactly");
        for other in [first("v", 1, 1), first("w", 2, 1), first("w", 1, 2)] {
            assert!(other.0.abs_diff(own.0) > 1 << 32, "{other:?} is near {own:?}");
        }
    }
}
