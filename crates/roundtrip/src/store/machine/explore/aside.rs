//! Answers that get no slot: somebody else did what they were to do, or the outside refuses
//! them for good and a failure response is sent in their place. Two senders that take the same
//! lane in turn, an outside whose newest block may go, an origin that changes its mind, crashes
//! on both sides, answers that are lost and calls that arrive twice.
//!
//! A request ends well only when the outside shows its answer's effect for good, and what it
//! refuses is answered once by the failure response.

use stateright::{Model, Property};

use super::embedded::Embedded;
use super::frame::{self, Fate};
use super::{Witness, bytes_of, content_of};
use crate::inbox::{End, Standing, State as RequestState, StateKind};
use crate::sender::{AttemptKind, Block, ParcelStage, SignedAttempt};
use crate::store::op::{
    Admit, Already, Amend, Amendment, Assign, Effect, Judgement, LaneOrder, Lead, NewParcel, Op, Order, Outcome,
    Reject, Seat, Settle, Sight, Stale,
};
use crate::store::policy::{Gate, RoutePolicy};
use crate::store::query::{Query, Reply};
use crate::words::{
    AttemptHash, Destination, ErrorClass, ErrorNote, Height, HolderName, LaneName, Nonce, OccurrenceId, Position,
    RequestId, Token,
};

const SEAT_MS: u64 = 100_000;
const DRAIN_ROUNDS: usize = 10;
const SENDERS: usize = 2;
const BEFORE: u8 = 7;
const AFTER: u8 = 8;
/// What a failure response says.
const SORRY: u8 = 9;

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    /// The store's process dies, or a sender's.
    pub(super) crashes: u8,
    /// A whole seat's time passes.
    pub(super) waits: u8,
    /// The content changes.
    pub(super) changes: u8,
    /// Somebody else does what an answer was to do.
    pub(super) others: u8,
    /// The outside's newest block goes.
    pub(super) reorgs: u8,
    pub(super) lost: u8,
    pub(super) copies: u8,
}

/// What senders do; the honest one, and deviations that prove that the model can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Honest,
    /// Believes what the newest block shows before it is final.
    BelievesTheHead,
    /// Speaks of whatever answer is the newest, not of the one that it looked into.
    NamesTheNewest,
}

pub(super) struct Aside {
    /// The outside refuses every answer but failure responses.
    pub(super) refuses: bool,
    pub(super) faults: Faults,
    pub(super) protocol: Protocol,
    pub(super) witness: Witness,
}

/// Whether the outside shows what an answer was to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Shown {
    #[default]
    No,
    Newest,
    Final,
}

/// An answer that a sender has looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Hand {
    answer: Token,
    content: u8,
    failure: bool,
}

/// What a sender remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Sender {
    token: Option<Token>,
    hand: Option<Hand>,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct State {
    store: Embedded,
    lead: Token,
    senders: [Sender; SENDERS],
    /// What the outside shows of each content's answer.
    shown: [Shown; 2],
    /// How often the outside was told of the failure.
    sorry: u8,
    /// Whether each slot that is used, beyond any reorg, had an effect.
    used: Vec<bool>,
    /// How the request ended, each time it did: with which response.
    ended_with: Vec<u8>,
    copy: Option<Op>,
    left: Faults,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Work,
    Change,
    /// Somebody else does what the answer to this content was to do.
    Somebody(u8),
    Finalize,
    Reorg,
    Lead(usize),
    Look(usize),
    /// The answer gets no slot.
    Aside {
        by: usize,
        fate: Fate,
    },
    Send {
        by: usize,
        fate: Fate,
    },
    Mine,
    Settle {
        by: usize,
        fate: Fate,
    },
    Copy,
    Wait,
    CrashStore,
    CrashSender(usize),
}

fn id() -> RequestId {
    RequestId([1; 32])
}

fn lane() -> LaneName {
    LaneName::new("account").unwrap()
}

fn destination() -> Destination {
    Destination::new("chain").unwrap()
}

fn error() -> ErrorNote {
    ErrorNote::new(ErrorClass::Fatal, "refused")
}

fn block(nonce: Nonce, attempt: AttemptHash) -> Block {
    Block { attempt, at: Position { height: Height(nonce.0), hash: [0; 32] } }
}

impl State {
    fn new(model: &Aside) -> State {
        let policy = RoutePolicy { publish_on: Gate::Seen, destination: Some(destination()), ..Default::default() };
        let (mut store, lead) = frame::routed(policy);
        let order = Order::Open { destination: destination(), window: 1, first: Nonce(0) };
        store.commit(Op::Lane(LaneOrder { lane: lane(), order }));
        let requests = vec![frame::request(1, BEFORE, Standing::Seen)];
        store.commit(Op::Admit(Admit { cursor: None, requests }));
        State {
            store,
            lead,
            senders: Default::default(),
            shown: Default::default(),
            sorry: 0,
            used: Vec::new(),
            ended_with: Vec::new(),
            copy: None,
            left: model.faults,
        }
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

    fn shown(&mut self, content: u8) -> &mut Shown {
        &mut self.shown[usize::from(content - BEFORE)]
    }

    fn lead(&mut self, by: usize) -> Outcome {
        let holder = HolderName::new(&format!("s{by}")).unwrap();
        let outcome = self.store.commit(Op::Lead(Lead { seat: Seat::Lane(lane()), holder, ttl_ms: SEAT_MS }));
        if let Outcome::Applied(Effect::Led(token, _)) = outcome {
            self.senders[by].token = Some(token);
        }
        outcome
    }

    /// The answer that is ready, by the read that senders use.
    fn ready(&self) -> Option<Hand> {
        let query = Query::Ready { destination: destination(), after: None, limit: 1 };
        let Reply::Ready(ready) = self.store.machine.read(&mut self.store.disk.clone(), query) else { return None };
        let delivery = ready.first()?;
        let content = content_of(&delivery.response);
        Some(Hand { answer: delivery.answer, content, failure: delivery.failure })
    }

    fn look(&mut self, by: usize) -> Option<()> {
        self.senders[by].token?;
        self.senders[by].hand = Some(self.ready()?);
        Some(())
    }

    /// What is said of the answer in a sender's hand, if it needs no slot.
    fn aside(&mut self, model: &Aside, by: usize, fate: Fate) -> Option<Outcome> {
        let Sender { token, hand } = self.senders[by];
        let (owner, hand) = (token?, hand?);
        let newest = || self.ready().map_or(hand.answer, |newest| newest.answer);
        let answer = if model.protocol == Protocol::NamesTheNewest { newest() } else { hand.answer };
        let shown = if hand.failure { Shown::No } else { *self.shown(hand.content) };
        let done = match model.protocol {
            Protocol::BelievesTheHead => shown != Shown::No,
            _ => shown == Shown::Final,
        };
        let op = match () {
            () if done => Op::Already(Already { lane: lane(), owner, id: id(), answer }),
            () if model.refuses && !hand.failure => {
                let instead = Some(bytes_of(SORRY));
                Op::Reject(Reject { lane: lane(), owner, id: id(), answer, error: error(), instead })
            }
            () => return None,
        };
        Some(self.call(op, by, fate))
    }

    /// Puts the answer in a sender's hand on the lane, unless the outside shows that it is done.
    /// An assignment names no answer, so it is the one that is ready.
    fn send(&mut self, by: usize, fate: Fate) -> Option<Outcome> {
        let Sender { token, hand } = self.senders[by];
        let (owner, hand) = (token?, hand.filter(|hand| self.ready() == Some(*hand))?);
        if !hand.failure && *self.shown(hand.content) != Shown::No {
            return None;
        }
        let first = self.store.lane().next;
        let mut hash = [0; 32];
        hash[..2].copy_from_slice(&[hand.content, u8::from(hand.failure)]);
        hash[2..10].copy_from_slice(&first.0.to_le_bytes());
        let attempt =
            SignedAttempt { hash: AttemptHash(hash), kind: AttemptKind::Carry, bytes: Default::default(), fee: None };
        let parcels = vec![NewParcel { deliveries: vec![id()], answers: Vec::new(), attempt }];
        Some(self.call(Op::Assign(Assign { lane: lane(), owner, first, parcels }), by, fate))
    }

    /// The lane's transaction is mined, beyond any reorg; the contract decides what it does.
    fn mine(&mut self, model: &Aside) -> Option<()> {
        let next = self.used.len();
        let attempt = self.store.lane().parcels.get(&Nonce(next as u64))?.attempts[0].hash;
        let [content, failure, ..] = attempt.0;
        let taken = match failure == 1 {
            true => {
                self.sorry += 1;
                true
            }
            false => {
                let shown = self.shown(content);
                let taken = !model.refuses && *shown == Shown::No;
                *shown = if taken { Shown::Final } else { *shown };
                taken
            }
        };
        self.used.push(taken);
        Some(())
    }

    fn settle(&mut self, model: &Aside, by: usize, fate: Fate) -> Option<Outcome> {
        let owner = self.senders[by].token?;
        let (&nonce, parcel) = self.store.lane().parcels.first_key_value()?;
        let attempt = parcel.attempts[0].hash;
        let taken = *self.used.get(usize::try_from(nonce.0).unwrap())?;
        let judgement = match () {
            () if taken => Judgement::Done,
            () if model.refuses => Judgement::Replaced(error(), bytes_of(SORRY)),
            // Whoever did it may be taken back.
            () => Judgement::Again(error()),
        };
        let sight = Sight::Final(block(nonce, attempt), judgement);
        let op = Settle { lane: lane(), owner, nonce, expected: ParcelStage::Assigned, sight };
        Some(self.call(Op::Settle(op), by, fate))
    }

    fn call(&mut self, op: Op, by: usize, fate: Fate) -> Outcome {
        match fate {
            Fate::Heard => self.senders[by].hand = None,
            // It is said again.
            Fate::Lost => self.left.lost -= 1,
            Fate::Copied => {
                self.left.copies -= 1;
                self.senders[by].hand = None;
                self.copy = Some(op.clone());
            }
        }
        let outcome = self.commit(op);
        if matches!(outcome, Outcome::Stale(Stale::Seat { .. })) && fate != Fate::Lost {
            self.senders[by] = Sender::default();
        }
        outcome
    }

    fn commit(&mut self, op: Op) -> Outcome {
        let response = self.store.request(&id()).and_then(|request| match request.state {
            RequestState::Answered(_) => Some(content_of(&self.store.response(request.seq))),
            _ => None,
        });
        let outcome = self.store.commit(op);
        if matches!(outcome, Outcome::Applied(_)) && self.store.request(&id()).is_none() {
            self.ended_with.extend(response);
        }
        outcome
    }
}

/// The promises.
impl State {
    fn ends_once(&self) -> bool {
        self.ended_with.len() <= 1 && (self.ended_with.len() == 1) == self.store.ended(&id()).is_some()
    }

    /// What ended well has its effect for good, and what ended badly was told so.
    fn ends_with_what_is_shown(&self) -> bool {
        match (self.ended_with.first(), self.store.ended(&id())) {
            (Some(&SORRY), Some((End::Dead, 0))) => self.sorry == 1,
            (Some(&content), Some((End::Settled, 0))) => self.shown[usize::from(content - BEFORE)] == Shown::Final,
            (None, None) => true,
            _ => false,
        }
    }

    /// An answer is for the content that is there, or a failure response.
    fn answers_fit(&self) -> bool {
        self.store.request(&id()).is_none_or(|request| match &request.state {
            RequestState::Answered(answer) if answer.failure => self.store.response(request.seq) == bytes_of(SORRY),
            RequestState::Answered(_) => self.store.response(request.seq) == self.store.payload(request.seq),
            _ => true,
        })
    }

    fn is_no_dead_letter(&self) -> bool {
        self.store.kind(&id()) != Some(StateKind::Dead)
    }

    fn drains(&self, model: &Aside) -> bool {
        let mut rest = self.clone();
        for _ in 0..DRAIN_ROUNDS {
            if rest.store.ended(&id()).is_some() {
                return rest.ends_once() && rest.ends_with_what_is_shown();
            }
            rest.work();
            if !rest.lead(0).holds() {
                rest.store.now = rest.store.now.plus(SEAT_MS);
                rest.lead(0);
            }
            rest.shown = rest.shown.map(|shown| if shown == Shown::Newest { Shown::Final } else { shown });
            rest.settle(model, 0, Fate::Heard);
            rest.look(0);
            if rest.aside(model, 0, Fate::Heard).is_none() {
                rest.send(0, Fate::Heard);
            }
            rest.mine(model);
        }
        false
    }
}

impl Aside {
    fn note(&self, last: &State, action: Action, outcome: &Outcome) {
        let said = matches!(action, Action::Aside { .. } | Action::Copy);
        match outcome {
            Outcome::Stale(Stale::Seat { .. }) => self.witness.note("a sender without the seat was refused"),
            Outcome::Stale(Stale::Delivery(_, StateKind::Ready)) if said => {
                self.witness.note("what was said of another answer did nothing");
            }
            Outcome::Stale(Stale::Delivery(_, StateKind::Assigned)) if said => {
                self.witness.note("what is on a slot was left there");
            }
            Outcome::Duplicate(_) if said => self.witness.note("a repeat was recognised"),
            Outcome::Applied(Effect::Now(StateKind::Settled)) if said => {
                self.witness.note("what was done already ended without a slot");
            }
            Outcome::Applied(Effect::Now(StateKind::Ready)) if said => {
                self.witness.note("a failure response took an answer's place before it had a slot");
            }
            Outcome::Applied(_) if matches!(action, Action::Settle { .. }) && self.refuses && last.sorry == 0 => {
                self.witness.note("a failure response took the place of what was mined");
            }
            _ => {}
        }
    }
}

impl Model for Aside {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let left = &state.left;
        actions.extend([Action::Work, Action::Mine]);
        actions.extend((left.changes > 0).then_some(Action::Change));
        if left.others > 0 {
            actions.extend([BEFORE, AFTER].map(Action::Somebody));
        }
        if state.shown.contains(&Shown::Newest) {
            actions.push(Action::Finalize);
            actions.extend((left.reorgs > 0).then_some(Action::Reorg));
        }
        for by in 0..SENDERS {
            actions.extend([Action::Lead(by), Action::Look(by)]);
            for fate in Fate::left(left.lost, left.copies) {
                actions.extend([Action::Aside { by, fate }, Action::Send { by, fate }, Action::Settle { by, fate }]);
            }
            actions.extend((left.crashes > 0).then_some(Action::CrashSender(by)));
        }
        actions.extend(state.copy.is_some().then_some(Action::Copy));
        actions.extend((left.waits > 0).then_some(Action::Wait));
        actions.extend((left.crashes > 0).then_some(Action::CrashStore));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let outcome = match action {
            Action::Work => state.work().map(|()| None)?,
            Action::Change => Some(state.change()),
            Action::Somebody(content) => {
                state.left.others -= 1;
                let shown = state.shown(content);
                *shown = if *shown == Shown::No { Shown::Newest } else { return None };
                None
            }
            Action::Finalize => {
                state.shown = state.shown.map(|shown| if shown == Shown::Newest { Shown::Final } else { shown });
                None
            }
            Action::Reorg => {
                state.left.reorgs -= 1;
                state.shown = state.shown.map(|shown| if shown == Shown::Newest { Shown::No } else { shown });
                None
            }
            Action::Lead(by) => Some(state.lead(by)),
            Action::Look(by) => state.look(by).map(|()| None)?,
            Action::Aside { by, fate } => Some(state.aside(self, by, fate)?),
            Action::Send { by, fate } => Some(state.send(by, fate)?),
            Action::Mine => state.mine(self).map(|()| None)?,
            Action::Settle { by, fate } => Some(state.settle(self, by, fate)?),
            Action::Copy => {
                let copy = state.copy.take()?;
                Some(state.commit(copy))
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
            Action::CrashSender(by) => {
                state.left.crashes -= 1;
                state.senders[by] = Sender::default();
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
            Property::always("it ends with what the outside shows", |_, state: &State| state.ends_with_what_is_shown()),
            Property::always("the failure is told once", |_, state: &State| state.sorry <= 1),
            Property::always("an answer fits its content", |_, state: &State| state.answers_fit()),
            Property::always("nobody has to look into it", |_, state: &State| state.is_no_dead_letter()),
            Property::always("a crash leaves what was committed", |_, state: &State| state.store.reloads_as_it_is()),
            Property::always("everything ends once faults stop", |model, state: &State| state.drains(model)),
        ]
    }
}
