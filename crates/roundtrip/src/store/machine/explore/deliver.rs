//! Deliveries without a lane: two couriers that take the same seat in turn, a sink that
//! takes whatever it is given, an origin that changes its mind, crashes on both sides,
//! answers that are lost and calls that arrive twice.
//!
//! The sink may see an answer more than once; that it can tell is its id's business. The
//! store ends each request once, and never by an answer that the sink has not seen.

use stateright::{Model, Property};

use super::embedded::Embedded;
use super::frame::{self, Fate};
use super::{Witness, bytes_of, content_of};
use crate::inbox::{End, Standing, State as RequestState, StateKind};
use crate::store::op::{
    Admit, Amend, Amendment, Effect, Lead, Mend, Op, Outcome, Publish, PublishResult, Remedy, Seat, Stale,
};
use crate::store::policy::{Gate, RoutePolicy};
use crate::store::query::{Query, Reply};
use crate::words::{Destination, ErrorClass, ErrorNote, HolderName, OccurrenceId, RequestId, Token};

const SEAT_MS: u64 = 100_000;
const DRAIN_ROUNDS: usize = 8;
const COURIERS: usize = 2;
const BEFORE: u8 = 7;
const AFTER: u8 = 8;

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    /// The store's process dies, or a courier's.
    pub(super) crashes: u8,
    /// A whole seat's time passes.
    pub(super) waits: u8,
    /// The content changes.
    pub(super) changes: u8,
    /// The sink does not take what it is given.
    pub(super) failures: u8,
    /// The sink refuses it for good, and a person has it worked on anew.
    pub(super) refusals: u8,
    pub(super) lost: u8,
    pub(super) copies: u8,
}

/// What couriers do; the honest one, and deviations that prove that the model can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Honest,
    /// Records before it delivers.
    RecordsFirst,
    /// Records whatever answer is the newest, not the one that it delivered.
    RecordsNewest,
}

pub(super) struct Deliver {
    pub(super) faults: Faults,
    pub(super) protocol: Protocol,
    pub(super) witness: Witness,
}

/// What a courier remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Courier {
    token: Option<Token>,
    /// The answer in its hand, its content, and whether the sink has it.
    hand: Option<(Token, u8, bool)>,
    /// How often that answer had failed when it was taken in hand.
    failures: u32,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct State {
    store: Embedded,
    lead: Token,
    couriers: [Courier; COURIERS],
    /// How often the sink saw each content; more than twice is twice.
    seen: [u8; 2],
    /// The content that the request ended with, each time it did.
    ended_with: Vec<u8>,
    /// How many failures were taken in.
    failed: u8,
    copy: Option<Op>,
    left: Faults,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Work,
    Change,
    Lead(usize),
    Take(usize),
    Hand(usize),
    Record { by: usize, fate: Fate },
    Fail { by: usize, fate: Fate },
    Refuse { by: usize, fate: Fate },
    Rework,
    Copy,
    Wait,
    CrashStore,
    CrashCourier(usize),
}

fn id() -> RequestId {
    RequestId([1; 32])
}

fn destination() -> Destination {
    Destination::new("hook").unwrap()
}

impl State {
    fn new(model: &Deliver) -> State {
        let policy = RoutePolicy { publish_on: Gate::Seen, destination: Some(destination()), ..Default::default() };
        let (mut store, lead) = frame::routed(policy);
        let requests = vec![frame::request(1, BEFORE, Standing::Seen)];
        store.commit(Op::Admit(Admit { cursor: None, requests }));
        let couriers = Default::default();
        State { store, lead, couriers, seen: [0; 2], ended_with: Vec::new(), failed: 0, copy: None, left: model.faults }
    }

    fn work(&mut self) -> Option<()> {
        frame::work(self.store.machine.tokens, |op| self.store.commit(op))
    }

    fn change(&mut self) -> Outcome {
        self.left.changes -= 1;
        let (occurrence, payload) = (OccurrenceId([2; 32]), bytes_of(AFTER));
        let change = Amendment::Supersede { id: id(), occurrence, place: None, payload, deadline: None };
        self.store.commit(Op::Amend(Amend { lead: self.lead, change }))
    }

    fn lead(&mut self, by: usize) -> Outcome {
        let holder = HolderName::new(&format!("c{by}")).unwrap();
        let seat = Seat::Destination(destination());
        let outcome = self.store.commit(Op::Lead(Lead { seat, holder, ttl_ms: SEAT_MS }));
        if let Outcome::Applied(Effect::Led(token, _)) = outcome {
            self.couriers[by].token = Some(token);
        }
        outcome
    }

    /// The answer that is ready, by the read that couriers use.
    fn ready(&self) -> Option<(Token, u8, u32)> {
        let query = Query::Ready { destination: destination(), after: None, limit: 1 };
        let Reply::Ready(ready) = self.store.machine.read(&mut self.store.disk.clone(), query) else { return None };
        ready.first().map(|delivery| (delivery.answer, content_of(&delivery.response), delivery.failures))
    }

    fn take(&mut self, by: usize) -> Option<()> {
        self.couriers[by].token?;
        let (answer, content, failures) = self.ready()?;
        self.couriers[by].hand = Some((answer, content, false));
        self.couriers[by].failures = failures;
        Some(())
    }

    fn hand_over(&mut self, by: usize) -> Option<()> {
        let (answer, content, _) = self.couriers[by].hand?;
        let seen = &mut self.seen[usize::from(content - BEFORE)];
        *seen = (*seen + 1).min(2);
        self.couriers[by].hand = Some((answer, content, true));
        Some(())
    }

    fn record(&mut self, model: &Deliver, by: usize, fate: Fate) -> Option<Outcome> {
        let Courier { token, hand, .. } = self.couriers[by];
        let (delivered, _, done) = hand?;
        if !done && model.protocol != Protocol::RecordsFirst {
            return None;
        }
        let answer = match model.protocol {
            Protocol::RecordsNewest => self.ready().map_or(delivered, |(newest, ..)| newest),
            _ => delivered,
        };
        let (destination, owner, result) = (destination(), token?, PublishResult::Delivered);
        let op = Op::Publish(Publish { destination, owner, id: id(), answer, result });
        Some(self.tell(by, fate, op))
    }

    /// Records that the sink did not take what the courier has in its hand.
    fn fail(&mut self, by: usize, fate: Fate) -> Option<Outcome> {
        let Courier { token, hand, failures: before } = self.couriers[by];
        let (answer, _, done) = hand?;
        if done {
            return None;
        }
        self.left.failures -= 1;
        let error = ErrorNote::new(ErrorClass::Transport, "no");
        let result = PublishResult::Failed { error, before };
        let (destination, owner) = (destination(), token?);
        Some(self.tell(by, fate, Op::Publish(Publish { destination, owner, id: id(), answer, result })))
    }

    /// Records that the sink will never take what the courier has in its hand.
    fn refuse(&mut self, by: usize, fate: Fate) -> Option<Outcome> {
        let Courier { token, hand, .. } = self.couriers[by];
        let (answer, _, done) = hand?;
        if done {
            return None;
        }
        self.left.refusals -= 1;
        let result = PublishResult::Refused(ErrorNote::new(ErrorClass::Fatal, "never"));
        let (destination, owner) = (destination(), token?);
        Some(self.tell(by, fate, Op::Publish(Publish { destination, owner, id: id(), answer, result })))
    }

    fn rework(&mut self) -> Outcome {
        self.store.commit(Op::Mend(Mend { id: id(), remedy: Remedy::Rework }))
    }

    fn tell(&mut self, by: usize, fate: Fate, op: Op) -> Outcome {
        match fate {
            Fate::Heard => self.couriers[by].hand = None,
            Fate::Lost => self.left.lost -= 1,
            Fate::Copied => {
                self.left.copies -= 1;
                self.couriers[by].hand = None;
                self.copy = Some(op.clone());
            }
        }
        let outcome = self.publish(op);
        if matches!(outcome, Outcome::Stale(Stale::Seat { .. })) && fate != Fate::Lost {
            self.couriers[by] = Courier::default();
        }
        outcome
    }

    fn publish(&mut self, op: Op) -> Outcome {
        let content = self.store.request(&id()).map(|request| content_of(&self.store.response(request.seq)));
        let outcome = self.store.commit(op);
        match outcome {
            Outcome::Applied(Effect::Now(StateKind::Ready)) => self.failed += 1,
            Outcome::Applied(Effect::Now(StateKind::Settled)) => self.ended_with.extend(content),
            _ => {}
        }
        outcome
    }

    /// What failed is counted once, however often that is told.
    fn failures_are_counted(&self, model: &Deliver) -> bool {
        let counted = self.ready().map_or(0, |(_, _, failures)| failures);
        counted <= u32::from(self.failed) && self.failed <= model.faults.failures - self.left.failures
    }

    fn ends_once(&self) -> bool {
        self.ended_with.len() <= 1 && (self.ended_with.len() == 1) == self.store.ended(&id()).is_some()
    }

    fn ends_with_what_was_seen(&self) -> bool {
        self.ended_with.iter().all(|content| self.seen[usize::from(content - BEFORE)] > 0)
    }

    /// An answer that is ready is for the content that is there.
    fn answers_fit(&self) -> bool {
        self.store.request(&id()).is_none_or(|request| match &request.state {
            RequestState::Answered(_) => self.store.response(request.seq) == self.store.payload(request.seq),
            _ => true,
        })
    }

    fn drains(&self, model: &Deliver) -> bool {
        let mut rest = self.clone();
        for _ in 0..DRAIN_ROUNDS {
            if rest.store.ended(&id()).is_some() {
                return rest.ends_once();
            }
            rest.rework();
            rest.work();
            if !rest.lead(0).holds() {
                rest.store.now = rest.store.now.plus(SEAT_MS);
                rest.lead(0);
            }
            rest.take(0);
            rest.hand_over(0);
            rest.record(model, 0, Fate::Heard);
        }
        false
    }
}

impl Deliver {
    fn note(&self, last: &State, action: Action, outcome: &Outcome) {
        match (action, outcome) {
            (Action::Record { .. }, Outcome::Stale(Stale::Seat { .. })) => {
                self.witness.note("a courier without the seat was refused");
            }
            (Action::Record { .. } | Action::Copy, Outcome::Stale(Stale::Delivery(_, state)))
                if last.left.refusals < self.faults.refusals && *state != StateKind::Dead =>
            {
                self.witness.note("what was said of an answer that was thrown away ended nothing");
            }
            (Action::Record { .. } | Action::Copy, Outcome::Stale(Stale::Delivery(_, StateKind::Ready))) => {
                self.witness.note("a superseded answer ended nothing");
            }
            (Action::Fail { .. } | Action::Copy, Outcome::Duplicate(Effect::Now(StateKind::Ready))) => {
                self.witness.note("a repeated failure counted once");
            }
            (Action::Record { .. } | Action::Copy, Outcome::Duplicate(_)) => {
                self.witness.note("a repeated record was recognised");
            }
            (Action::Fail { .. }, Outcome::Stale(Stale::Delivery(_, StateKind::Ready))) => {
                self.witness.note("the failure of a superseded answer was not taken");
            }
            (Action::Record { .. }, Outcome::Applied(_)) if last.seen.contains(&2) => {
                self.witness.note("the sink saw it twice and it ended once");
            }
            _ => {}
        }
    }
}

impl Model for Deliver {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let left = &state.left;
        actions.push(Action::Work);
        actions.extend((left.changes > 0).then_some(Action::Change));
        for by in 0..COURIERS {
            actions.extend([Action::Lead(by), Action::Take(by), Action::Hand(by)]);
            actions.extend(Fate::left(left.lost, left.copies).map(|fate| Action::Record { by, fate }));
            if left.failures > 0 {
                actions.extend(Fate::left(left.lost, left.copies).map(|fate| Action::Fail { by, fate }));
            }
            if left.refusals > 0 {
                actions.extend(Fate::left(left.lost, left.copies).map(|fate| Action::Refuse { by, fate }));
            }
            actions.extend((left.crashes > 0).then_some(Action::CrashCourier(by)));
        }
        actions.extend(state.copy.is_some().then_some(Action::Copy));
        actions.extend((self.faults.refusals > left.refusals).then_some(Action::Rework));
        actions.extend((left.waits > 0).then_some(Action::Wait));
        actions.extend((left.crashes > 0).then_some(Action::CrashStore));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let outcome = match action {
            Action::Work => state.work().map(|()| None)?,
            Action::Change => Some(state.change()),
            Action::Lead(by) => Some(state.lead(by)),
            Action::Take(by) => state.take(by).map(|()| None)?,
            Action::Hand(by) => state.hand_over(by).map(|()| None)?,
            Action::Record { by, fate } => Some(state.record(self, by, fate)?),
            Action::Fail { by, fate } => Some(state.fail(by, fate)?),
            Action::Refuse { by, fate } => Some(state.refuse(by, fate)?),
            Action::Rework => Some(state.rework()),
            Action::Copy => {
                let copy = state.copy.take()?;
                Some(state.publish(copy))
            }
            Action::Wait => {
                state.left.waits -= 1;
                state.store.now = state.store.now.plus(SEAT_MS);
                None
            }
            Action::CrashStore => {
                state.left.crashes -= 1;
                state.store.crash();
                None
            }
            Action::CrashCourier(by) => {
                state.left.crashes -= 1;
                state.couriers[by] = Courier::default();
                None
            }
        };
        if let Some(outcome) = outcome {
            self.note(last, action, &outcome);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a request ends once", |_, state: &State| state.ends_once()),
            Property::always("it ends with what the sink saw", |_, state: &State| state.ends_with_what_was_seen()),
            Property::always("a failure is counted once", |model: &Deliver, state: &State| {
                state.failures_are_counted(model)
            }),
            Property::always("an answer fits its content", |_, state: &State| state.answers_fit()),
            Property::always("it settles", |_, state: &State| {
                matches!(state.store.ended(&id()), None | Some((End::Settled, 0)))
            }),
            Property::always("a crash leaves what was committed", |_, state: &State| state.store.reloads_as_it_is()),
            Property::always("everything ends once faults stop", |model, state: &State| state.drains(model)),
        ]
    }
}
