//! What a route decides for itself. A policy is here only if the conformance suite
//! has a test that fails without it.

use serde::{Deserialize, Serialize};

use crate::inbox::{End, Identity, Standing};
use crate::store::op::Invalid;
use crate::words::{Destination, OCCURRENCES_MAX, RequestId, UnixMs};

/// Longest period of a [`Rate`]; it starts anew with every start of a store.
pub const RATE_PERIOD_MS_MAX: u64 = 60 * 60 * 1000;

/// A route's policies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RoutePolicy {
    /// When work may start.
    pub work_on: Gate,
    /// When an answer may be published.
    pub publish_on: Gate,
    /// What makes it the same request.
    pub identity: Identity,
    /// What becomes of a repeat of a live request.
    pub on_duplicate: OnDuplicate,
    /// In which order requests are handed out.
    pub order: QueueOrder,
    /// How long an ended id blocks a repeat.
    pub horizon: Horizon,
    /// How many live requests it takes before it pushes back.
    pub capacity: u64,
    /// How long a lease lasts unless the worker says otherwise.
    pub lease_ms: u64,
    /// How many attempts fail before the request is a dead letter.
    pub attempts_max: u16,
    /// How many workers may die or go silent with it before it is a dead letter.
    pub crashes_max: u16,
    /// How long a request waits that failed, unless its worker says otherwise.
    pub backoff: Backoff,
    /// How many are handed out in a period; without one, as many as workers ask for.
    pub rate: Option<Rate>,
    /// Where answers go; without one, an answer settles the request.
    pub destination: Option<Destination>,
    /// How long receipts can be looked up, at the least.
    pub retention: Retention,
    /// How long a dead letter waits for a person.
    pub dead_ms: u64,
}

impl Default for RoutePolicy {
    fn default() -> Self {
        RoutePolicy {
            work_on: Gate::Seen,
            publish_on: Gate::Final,
            identity: Identity::Given,
            on_duplicate: OnDuplicate::Attach,
            order: QueueOrder::Fifo,
            horizon: Horizon::UntilSettled,
            capacity: 1_000_000,
            lease_ms: 60_000,
            attempts_max: 20,
            crashes_max: 5,
            backoff: Backoff::default(),
            rate: None,
            destination: None,
            retention: Retention::default(),
            dead_ms: 30 * 24 * 60 * 60 * 1000,
        }
    }
}

impl RoutePolicy {
    /// Refuses policies that could never do what they say.
    pub fn check(&self) -> Result<(), Invalid> {
        let refuse = |why| Err(Invalid::Policy(why));
        self.identity.check().map_err(Invalid::Policy)?;
        match self.on_duplicate {
            OnDuplicate::Vote { needed } if needed == 0 || needed as usize > OCCURRENCES_MAX => {
                return refuse("votes are counted from 1 to as many occurrences as a request keeps");
            }
            // Else what is voted for second would wait behind what is voted for first.
            OnDuplicate::Vote { .. } if self.identity != Identity::Content => {
                return refuse("votes need the identity of content: they are for what is asked");
            }
            // Else the vote that comes after the end would open a round that nobody completes.
            OnDuplicate::Vote { .. } if self.horizon == Horizon::UntilSettled => {
                return refuse("votes need a horizon, within which a late one is known as such");
            }
            _ => {}
        }
        match self.rate {
            Some(Rate { count: 0, .. } | Rate { per_ms: 0, .. }) => refuse("a rate of nothing, or in no time"),
            Some(Rate { per_ms, .. }) if per_ms > RATE_PERIOD_MS_MAX => refuse("a rate's period is an hour at most"),
            _ if self.order == (QueueOrder::KeyedFifo { per_key: 0 }) => refuse("no request of a key at a time"),
            _ if self.backoff.jitter_percent > 100 => refuse("a jitter of more than 100 percent"),
            _ => Ok(()),
        }
    }
}

/// Which standing opens the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Gate {
    /// As soon as it is seen; shut while a reorg has taken it away.
    Seen,
    /// Only when its origin calls it final.
    Final,
}

impl Gate {
    /// Whether a request of this standing may pass.
    pub fn lets(self, standing: Standing) -> bool {
        match self {
            Gate::Seen => standing != Standing::Orphaned,
            Gate::Final => standing == Standing::Final,
        }
    }
}

/// What becomes of a repeat: another occurrence of an id that is live.
///
/// The route of the live request decides. An occurrence that was admitted before is
/// known whatever this says, and content that differs waits behind the live request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnDuplicate {
    /// It is another occurrence of the live request.
    Attach,
    /// It is remembered and changes nothing, once the live request is final. Until then
    /// it is attached: after a reorg it may be all that is left.
    Drop,
    /// It is attached, and a dead letter is worked on again.
    Rearm,
    /// It is a request of its own, whatever its content, that is worked on when the live
    /// one has ended. No horizon blocks it.
    NewGeneration,
    /// It is attached, and work and publication wait until so many occurrences stand as
    /// `work_on` and `publish_on` want it. Needs the identity of content, and a horizon.
    Vote {
        /// How many; at most [`OCCURRENCES_MAX`], beyond which none is counted.
        needed: u32,
    },
}

impl OnDuplicate {
    /// How many occurrences must stand.
    pub fn votes_needed(self) -> usize {
        match self {
            OnDuplicate::Vote { needed } => needed as usize,
            _ => 1,
        }
    }
}

/// The order in which a route hands out requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QueueOrder {
    /// As they came in.
    Fifo,
    /// Higher priority first, then as they came in.
    Priority,
    /// As they came in; of those with the same key so many at a time. One that is to be
    /// tried again, is not due yet or is not final enough keeps its place, and those of
    /// its key wait; a dead letter, and what waits behind another request, does not.
    /// Without a key a request waits for nobody.
    KeyedFifo {
        /// How many of one key may be with workers.
        per_key: u16,
    },
    /// The earliest deadline first, then as they came in: times, then heights, which no time
    /// can be compared with; those without one last.
    Deadline,
    /// In no order: each lease starts at another place.
    Random,
}

impl QueueOrder {
    /// Where a request stands in the queue: lower goes first, and equal ones go as they
    /// came in. `Random` hands out from a changing place on, and around.
    pub fn rank(self, id: &RequestId, priority: u8, deadline: UnixMs) -> u64 {
        match self {
            QueueOrder::Fifo | QueueOrder::KeyedFifo { .. } => 0,
            QueueOrder::Priority => u64::from(u8::MAX - priority),
            QueueOrder::Deadline => deadline.0,
            QueueOrder::Random => first_word(&RequestId::of(&[b"order", &id.0])),
        }
    }
}

/// How long a request waits that failed: longer from attempt to attempt.
///
/// A silent worker's request waits like one that failed. A transport error costs no
/// attempt; its wait grows with how many of them came in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Backoff {
    /// After the first attempt.
    pub first_ms: u64,
    /// By how much the wait grows from one to the next: 200 doubles it.
    pub factor_percent: u16,
    /// At most so long.
    pub max_ms: u64,
    /// Up to so much of it is left out, so that what failed together comes back apart.
    pub jitter_percent: u8,
}

impl Backoff {
    /// No wait at all.
    pub const NONE: Backoff = Backoff { first_ms: 0, factor_percent: 100, max_ms: 0, jitter_percent: 0 };

    /// The wait after this attempt, counted from 1.
    ///
    /// The jitter is a hash of the id and the attempt, so every store and every worker
    /// arrives at the same wait: the first 8 bytes of
    /// `RequestId::of(["backoff", id, attempt])` as a little-endian number, the attempt
    /// as two little-endian bytes, modulo the longest jitter and 1, are left out.
    pub fn delay(&self, id: &RequestId, attempt: u16) -> u64 {
        let mut wait = self.first_ms.min(self.max_ms);
        for _ in 1..attempt {
            let longer = u128::from(wait) * u128::from(self.factor_percent) / 100;
            let longer = u64::try_from(longer).unwrap_or(u64::MAX).min(self.max_ms);
            // Neither at its longest nor standing still does it change any more.
            if longer <= wait {
                break;
            }
            wait = longer;
        }
        let jitter = u128::from(wait) * u128::from(self.jitter_percent.min(100)) / 100;
        let jitter = u64::try_from(jitter).unwrap_or(wait);
        let hash = first_word(&RequestId::of(&[b"backoff", &id.0, &attempt.to_le_bytes()]));
        wait - hash % jitter.saturating_add(1)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff { first_ms: 1000, factor_percent: 200, max_ms: 10 * 60 * 1000, jitter_percent: 20 }
    }
}

/// The first 8 bytes of a hash as a number.
fn first_word(hash: &RequestId) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&hash.0[..8]);
    u64::from_le_bytes(word)
}

/// At most so many requests are handed out in any period of this length.
///
/// What was handed out is counted in memory. A start cannot know it, so it counts as if
/// the whole allowance had just been used: nothing is handed out for one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rate {
    /// How many.
    pub count: u32,
    /// In any period of this length; at most [`RATE_PERIOD_MS_MAX`].
    pub per_ms: u64,
}

/// How long receipts can be looked up, by how their requests ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Retention {
    /// Settled.
    pub settled_ms: u64,
    /// Dead or expired.
    pub failed_ms: u64,
    /// Withdrawn, or answered elsewhere.
    pub withdrawn_ms: u64,
}

impl Retention {
    /// All receipts for the same time.
    pub fn all(ms: u64) -> Retention {
        Retention { settled_ms: ms, failed_ms: ms, withdrawn_ms: ms }
    }

    /// For how long the receipt of such an end is kept.
    pub fn of(&self, end: End) -> u64 {
        match end {
            End::Settled => self.settled_ms,
            End::Dead | End::Expired => self.failed_ms,
            End::Withdrawn | End::Elsewhere => self.withdrawn_ms,
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        const DAY_MS: u64 = 24 * 60 * 60 * 1000;
        Retention { settled_ms: DAY_MS, failed_ms: 7 * DAY_MS, withdrawn_ms: DAY_MS }
    }
}

/// How long an ended id blocks a repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Horizon {
    /// Not at all: a repeat is a new generation.
    UntilSettled,
    /// For so long after the end.
    For {
        /// How long.
        ms: u64,
    },
    /// For ever.
    Forever,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_grows_up_to_its_longest() {
        let id = RequestId::of(&[b"x"]);
        let plain = Backoff { first_ms: 100, factor_percent: 150, max_ms: 1000, jitter_percent: 0 };
        let waits: Vec<u64> = [0, 1, 2, 3, 4, 8, u16::MAX].map(|attempt| plain.delay(&id, attempt)).into();
        assert_eq!(waits, [100, 100, 150, 225, 337, 1000, 1000]);
        assert_eq!(Backoff::NONE.delay(&id, 9), 0);
        let steady = Backoff { factor_percent: 100, ..plain };
        assert_eq!(steady.delay(&id, u16::MAX), 100);
        let endless = Backoff { first_ms: u64::MAX, factor_percent: u16::MAX, max_ms: u64::MAX, jitter_percent: 100 };
        assert!(endless.delay(&id, u16::MAX) < u64::MAX, "some of it is left out");
    }

    #[test]
    fn jitter_differs_by_id_and_attempt_and_stays_within_its_bounds() {
        let backoff = Backoff { first_ms: 1000, factor_percent: 100, max_ms: 1000, jitter_percent: 30 };
        let ids: Vec<RequestId> = (0..100u8).map(|n| RequestId::of(&[&[n]])).collect();
        let mut waits: Vec<u64> = ids.iter().flat_map(|id| [1, 2].map(|attempt| backoff.delay(id, attempt))).collect();
        assert!(waits.iter().all(|wait| (700..=1000).contains(wait)), "{waits:?}");
        waits.sort_unstable();
        waits.dedup();
        assert!(waits.len() > 100, "they come back apart: {} waits", waits.len());
        // Workers in other languages arrive at the same.
        assert_eq!([1, 2, 3].map(|attempt| backoff.delay(&RequestId([7; 32]), attempt)), [982, 781, 893]);
    }

    #[test]
    fn ranks_follow_the_order() {
        let (one, two) = (RequestId::of(&[b"1"]), RequestId::of(&[b"2"]));
        let rank = |order: QueueOrder, id, priority, deadline| order.rank(id, priority, UnixMs(deadline));
        assert!(rank(QueueOrder::Priority, &one, 9, 0) < rank(QueueOrder::Priority, &two, 3, 0));
        assert!(rank(QueueOrder::Deadline, &one, 0, 5) < rank(QueueOrder::Deadline, &two, 0, u64::MAX));
        assert_ne!(rank(QueueOrder::Random, &one, 0, 0), rank(QueueOrder::Random, &two, 0, 0));
        assert_eq!(rank(QueueOrder::Fifo, &one, 9, 5), rank(QueueOrder::Fifo, &two, 3, 7));
    }

    #[test]
    fn policies_that_make_no_sense_are_refused() {
        let plain = RoutePolicy::default;
        let voting = || RoutePolicy {
            identity: Identity::Content,
            horizon: Horizon::Forever,
            on_duplicate: OnDuplicate::Vote { needed: 2 },
            ..plain()
        };
        assert_eq!((plain().check(), voting().check()), (Ok(()), Ok(())));
        let none = OnDuplicate::Vote { needed: 0 };
        let many = OnDuplicate::Vote { needed: u32::try_from(OCCURRENCES_MAX).map_or(u32::MAX, |max| max + 1) };
        let rate = |count, per_ms| RoutePolicy { rate: Some(Rate { count, per_ms }), ..plain() };
        let refused = [
            RoutePolicy { on_duplicate: none, ..voting() },
            RoutePolicy { on_duplicate: many, ..voting() },
            RoutePolicy { identity: Identity::Given, ..voting() },
            RoutePolicy { horizon: Horizon::UntilSettled, ..voting() },
            RoutePolicy { identity: Identity::Fields(vec![]), ..plain() },
            RoutePolicy { order: QueueOrder::KeyedFifo { per_key: 0 }, ..plain() },
            RoutePolicy { backoff: Backoff { jitter_percent: 101, ..Backoff::default() }, ..plain() },
            rate(0, 1),
            rate(1, 0),
            rate(1, RATE_PERIOD_MS_MAX + 1),
        ];
        for policy in refused {
            assert!(matches!(policy.check(), Err(Invalid::Policy(_))), "{policy:?}");
        }
    }
}
