//! A request's life: its states, its standing, and what each operation does to them.
//!
//! ```text
//!          admit                lease              answer              settle: final
//!   ───▶ Held ───▶ Queued ───────────▶ Leased ───────────▶ Answered ───────────────▶ receipt
//!          ▲  gate    ▲                  │                    │
//!          └──────────┴── fail, release, rescue               └─▶ Dead (or Queued, when superseded)
//! ```
//!
//! Everything here is a pure function of the request and what is passed in; indexes,
//! disk and journal are the machine's business.

use serde::{Deserialize, Serialize};

use crate::inbox::{Clocks, When};
use crate::outbox::{Delivery, Undelivered};
use crate::store::op::{Notice, Stale};
use crate::store::policy::{Gate, RoutePolicy};
use crate::words::{
    ClaimId, ErrorClass, ErrorNote, Height, OccurrenceId, OrderKey, RequestId, Seq, Token, UnixMs, WorkerName,
};

/// A route's number in this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct RouteNo(pub(crate) u16);

/// An origin's number in this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct OriginNo(pub(crate) u16);

/// Finality of a request's origin; beside its state, not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Standing {
    /// A reorg took it away.
    Orphaned,
    /// Seen, and may still be taken away.
    Seen,
    /// Beyond any reorg.
    Final,
}

/// A request's state without its data: what counts and filters speak of.
///
/// Each is left by the station named; a crash leaves the request where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StateKind {
    /// Not yet due, or its route works only on final; the listener's amend or time moves it on.
    Held,
    /// Ready for a worker; lease moves it on.
    Queued,
    /// In a worker's hand; answer, fail, release or rescue moves it on.
    Leased,
    /// Answered, waiting for its origin's finality; the listener's amend moves it on.
    Waiting,
    /// Answered and ready to be sent; the sender's assign moves it on.
    Ready,
    /// On a slot of a lane with stored bytes; the sender's settle moves it on.
    Assigned,
    /// In a block; the sender's settle moves it on, or back.
    Included,
    /// At the route's depth, which users call settled; the sender's settle ends it.
    Confirmed,
    /// A dead letter; a person's mend or retention moves it on.
    Dead,
    /// Ended: the answer is final where it was wanted.
    Settled,
    /// Ended: the deadline came first.
    Expired,
    /// Ended: taken back.
    Withdrawn,
    /// Ended: somebody else answered.
    Elsewhere,
}

impl StateKind {
    /// The states of live requests, in the order of the flow.
    pub const LIVE: [StateKind; 9] = [
        StateKind::Held,
        StateKind::Queued,
        StateKind::Leased,
        StateKind::Waiting,
        StateKind::Ready,
        StateKind::Assigned,
        StateKind::Included,
        StateKind::Confirmed,
        StateKind::Dead,
    ];

    /// The state in a word, as people and other programs read it.
    pub fn word(self) -> &'static str {
        match self {
            StateKind::Held => "held",
            StateKind::Queued => "queued",
            StateKind::Leased => "leased",
            StateKind::Waiting => "waiting",
            StateKind::Ready => "ready",
            StateKind::Assigned => "assigned",
            StateKind::Included => "included",
            StateKind::Confirmed => "confirmed",
            StateKind::Dead => "dead",
            StateKind::Settled => "settled",
            StateKind::Expired => "expired",
            StateKind::Withdrawn => "withdrawn",
            StateKind::Elsewhere => "elsewhere",
        }
    }
}

/// One event that shows the request, as far as its origin stands by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Occurrence {
    pub(crate) id: OccurrenceId,
    pub(crate) height: Height,
    /// Where the height counts; `None` if the origin has no heights.
    pub(crate) origin: Option<OriginNo>,
    /// Which content it shows.
    pub(crate) revision: u16,
    pub(crate) standing: Standing,
}

/// A request's occurrences; nearly always one, which needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Occurrences {
    One(Occurrence),
    Many(Vec<Occurrence>),
}

impl Occurrences {
    pub(crate) fn as_slice(&self) -> &[Occurrence] {
        match self {
            Occurrences::One(one) => std::slice::from_ref(one),
            Occurrences::Many(many) => many,
        }
    }

    pub(crate) fn find(&mut self, id: &OccurrenceId) -> Option<&mut Occurrence> {
        let all = match self {
            Occurrences::One(one) => std::slice::from_mut(one),
            Occurrences::Many(many) => many.as_mut_slice(),
        };
        all.iter_mut().find(|occurrence| occurrence.id == *id)
    }

    pub(crate) fn push(&mut self, occurrence: Occurrence) {
        let mut all = self.as_slice().to_vec();
        all.push(occurrence);
        *self = Occurrences::Many(all);
    }

    pub(crate) fn remove(&mut self, id: &OccurrenceId) {
        *self = Occurrences::Many(self.as_slice().iter().copied().filter(|o| o.id != *id).collect());
    }
}

/// A lease as the request remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct LeaseMark {
    pub(crate) token: Token,
    pub(crate) until: UnixMs,
    /// For how long it was granted or last extended.
    pub(crate) lease_ms: u64,
    pub(crate) claim: ClaimId,
    pub(crate) worker: WorkerName,
    /// The content that was handed out.
    pub(crate) revision: u16,
    /// What the worker should know; kept until the lease ends, so that a lost answer
    /// to an extend loses none of it.
    pub(crate) notices: Vec<Notice>,
}

/// An answer as the request remembers it; the response itself is on disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct AnswerMark {
    /// The lease under which it was recorded.
    pub(crate) token: Token,
    /// Whether the response tells of a failure: it is published, and the request ends dead.
    pub(crate) failure: bool,
    pub(crate) delivery: Delivery,
    /// Boxed, because most are delivered at once.
    pub(crate) undelivered: Option<Box<Undelivered>>,
}

impl AnswerMark {
    /// How often it failed to be delivered.
    pub(crate) fn failures(&self) -> u32 {
        self.undelivered.as_ref().map_or(0, |undelivered| undelivered.times)
    }
}

/// A request that ended badly and waits for a person.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct DeadLetter {
    pub(crate) at: UnixMs,
    /// When nobody is waited for any longer.
    pub(crate) forget_at: UnixMs,
    /// The answer that could not be delivered; it is never thrown away.
    pub(crate) answer: Option<AnswerMark>,
}

/// Where a live request is, with only what is legal there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum State {
    Held,
    Queued,
    Leased(Box<LeaseMark>),
    Answered(Box<AnswerMark>),
    Dead(Box<DeadLetter>),
}

/// A live request, less its payload and response, which only the disk keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) seq: Seq,
    pub(crate) id: RequestId,
    pub(crate) occurrences: Occurrences,
    pub(crate) admitted_at: UnixMs,
    pub(crate) due: When,
    pub(crate) deadline: When,
    pub(crate) state: State,
    pub(crate) error: Option<Box<ErrorNote>>,
    /// Boxed, because most have none.
    pub(crate) key: Option<Box<OrderKey>>,
    /// Its newest entry in the journal; each entry names the one before.
    pub(crate) last_entry: u64,
    pub(crate) generation: u32,
    pub(crate) revision: u16,
    pub(crate) attempts: u16,
    pub(crate) crashes: u16,
    /// How often in a row the way to its worker failed.
    pub(crate) misses: u16,
    pub(crate) route: RouteNo,
    pub(crate) priority: u8,
    /// Whether another live request has its id, whose end it waits for.
    pub(crate) behind: bool,
    /// What the disk holds of it.
    #[serde(skip)]
    pub(crate) rows: RowFlags,
}

/// What the disk holds of a request, and whether it is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RowFlags {
    /// A row of its changeable part is on disk.
    pub(crate) has_mark: bool,
    /// The changeable part changed since the last commit.
    pub(crate) dirty: bool,
    /// The changeable part still is what admission and answer rows say.
    pub(crate) as_admitted: bool,
}

/// What a failure or a crash made of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setback {
    /// To be handed out again, from then on.
    Again { due: UnixMs },
    /// A dead letter.
    Dead,
}

impl Request {
    /// The best standing of the occurrences that show its content; one that shows
    /// superseded content, however final, does not speak for what is there now.
    pub(crate) fn standing(&self) -> Standing {
        let current = self.occurrences.as_slice().iter().filter(|occurrence| occurrence.revision == self.revision);
        current.map(|occurrence| occurrence.standing).max().unwrap_or(Standing::Orphaned)
    }

    /// How many of the occurrences that show its content stand as this gate wants it.
    pub(crate) fn votes(&self, gate: Gate) -> usize {
        let current = self.occurrences.as_slice().iter().filter(|occurrence| occurrence.revision == self.revision);
        current.filter(|occurrence| gate.lets(occurrence.standing)).count()
    }

    /// Whether enough of its occurrences stand as this gate wants it; one, unless its
    /// route counts votes.
    fn passes(&self, gate: Gate, policy: &RoutePolicy) -> bool {
        self.votes(gate) >= policy.on_duplicate.votes_needed()
    }

    /// Opens or shuts the gates after its standing, its due time or the time itself
    /// changed. An answer to superseded content never passes.
    pub(crate) fn pass_gates(&mut self, policy: &RoutePolicy, clocks: Clocks<'_>) {
        let opens = match &self.state {
            State::Held | State::Queued => {
                !self.behind && clocks.reached(self.due) && self.passes(policy.work_on, policy)
            }
            State::Answered(_) => self.passes(policy.publish_on, policy),
            State::Leased(_) | State::Dead(_) => return,
        };
        match &mut self.state {
            State::Answered(answer) => answer.delivery.pass_gate(opens),
            state => *state = if opens { State::Queued } else { State::Held },
        }
    }

    /// Whether only time keeps it from being queued.
    pub(crate) fn waits_for_time(&self, policy: &RoutePolicy) -> bool {
        self.state == State::Held && !self.behind && self.passes(policy.work_on, policy)
    }

    /// The lease, if this token holds it.
    pub(crate) fn lease_of(&mut self, token: Token, kind: StateKind) -> Result<&mut LeaseMark, Stale> {
        match &mut self.state {
            State::Leased(lease) if lease.token == token => Ok(lease),
            _ => Err(Stale::Lease(kind)),
        }
    }

    /// Hands it out; the attempt is counted now, so that a worker that dies has used one.
    pub(crate) fn lease(&mut self, lease: LeaseMark) {
        debug_assert!(self.state == State::Queued, "only a queued request is leased");
        self.attempts = self.attempts.saturating_add(1);
        self.state = State::Leased(Box::new(lease));
    }

    /// Ends the lease; the request is to be handed out again from `due`.
    pub(crate) fn requeue(&mut self, due: UnixMs) {
        self.due = When::at(due);
        self.state = State::Held;
    }

    /// It is worked on from its first attempt.
    fn start_over(&mut self, now: UnixMs) {
        self.attempts = 0;
        self.crashes = 0;
        self.misses = 0;
        self.requeue(now);
    }

    /// Ends the lease as if it had not been.
    pub(crate) fn release(&mut self, due: UnixMs) {
        self.attempts = self.attempts.saturating_sub(1);
        self.requeue(due);
    }

    /// A failure that may be tried again, after this time or as the route's backoff says.
    /// Transport costs no attempt, and its waits grow with how often it failed in a row.
    pub(crate) fn setback(
        &mut self,
        error: ErrorNote,
        after_ms: Option<u64>,
        policy: &RoutePolicy,
        now: UnixMs,
    ) -> Setback {
        let class = error.class;
        self.error = Some(Box::new(error));
        self.crashes = self.crashes.saturating_add(u16::from(class == ErrorClass::Crash));
        self.misses = if class == ErrorClass::Transport { self.misses.saturating_add(1) } else { 0 };
        let used_up = match class {
            ErrorClass::Transport => false,
            ErrorClass::Fatal => true,
            ErrorClass::Retryable => self.attempts >= policy.attempts_max,
            ErrorClass::Crash => self.crashes >= policy.crashes_max,
        };
        if used_up {
            return Setback::Dead;
        }
        let in_a_row = if class == ErrorClass::Transport { self.misses } else { self.attempts };
        let due = now.plus(after_ms.unwrap_or_else(|| policy.backoff.delay(&self.id, in_a_row)));
        match class {
            ErrorClass::Transport => self.release(due),
            _ => self.requeue(due),
        }
        Setback::Again { due }
    }

    /// It waits for a person from now on.
    pub(crate) fn die(&mut self, policy: &RoutePolicy, now: UnixMs) {
        let answer = match &self.state {
            State::Answered(answer) => Some((**answer).clone()),
            _ => None,
        };
        self.state = State::Dead(Box::new(DeadLetter { at: now, forget_at: now.plus(policy.dead_ms), answer }));
    }

    /// It is to be tried again: an answer is sent again, never worked out anew.
    pub(crate) fn rearm(&mut self, now: UnixMs) {
        if let State::Dead(letter) = &mut self.state {
            match letter.answer.take() {
                Some(mut answer) => {
                    answer.delivery = Delivery::Waiting;
                    answer.undelivered = None;
                    self.state = State::Answered(Box::new(answer));
                }
                None => {
                    self.start_over(now);
                }
            }
        }
    }

    /// A dead letter is worked on from its first attempt, whatever was answered to it.
    pub(crate) fn rework(&mut self, now: UnixMs) {
        if let State::Dead(_) = self.state {
            self.start_over(now);
        }
    }

    /// Other content from now on, shown by this occurrence of it. What was worked out
    /// for the old content is void; a worker at work is told, and its answer will not
    /// be taken.
    pub(crate) fn supersede(&mut self, shown_by: &OccurrenceId, now: UnixMs) {
        self.revision = self.revision.saturating_add(1);
        let revision = self.revision;
        if let Some(occurrence) = self.occurrences.find(shown_by) {
            occurrence.revision = revision;
            occurrence.standing = occurrence.standing.max(Standing::Seen);
        }
        match &mut self.state {
            State::Leased(lease) => lease.notice(Notice::Superseded),
            State::Answered(_) | State::Dead(_) => {
                self.start_over(now);
            }
            State::Held | State::Queued => {}
        }
    }
}

impl LeaseMark {
    /// Leaves word for the worker; what is said again moves to the end.
    pub(crate) fn notice(&mut self, notice: Notice) {
        self.notices.retain(|earlier| *earlier != notice);
        self.notices.push(notice);
    }
}
