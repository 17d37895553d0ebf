//! From an origin that reorganises itself to an answer that may be published: the
//! listener's and the worker's operations under crashes, lost answers and calls that
//! arrive twice.
//!
//! The listener is the honest one of the design: it compares the chain with what the
//! store says and does the first thing that is not so yet. The worker keeps every
//! grant that it ever had, and answers with any of them at any time.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use super::embedded::Embedded;
use super::frame::{self, Fate, route};
use super::{Witness, bytes_of, content_of};
use crate::inbox::{End, Occurrence, Request, Standing, StateKind};
use crate::listener::Cursor;
use crate::store::op::{
    Admission, Admit, Amend, Amendment, Answer, CursorMove, Effect, Lease, NewRequest, Op, Outcome, Stale,
};
use crate::store::policy::{Backoff, RoutePolicy};
use crate::words::{
    ClaimId, Height, ListenerName, OccurrenceId, OriginName, Place, Position, RequestId, Token, WorkerName,
};

const LEASE_MS: u64 = 10_000;
/// So many honest rounds finish whatever the faults left behind.
const DRAIN_ROUNDS: usize = 8;

/// What the origin may show: which request, with which content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shown {
    pub(super) request: u8,
    pub(super) content: u8,
}

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    pub(super) crashes: u8,
    pub(super) waits: u8,
    pub(super) reorgs: u8,
    pub(super) leases: u8,
    pub(super) lost: u8,
    pub(super) copies: u8,
}

/// How the caller's side deviates from the protocol, to prove that the model can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Honest,
    /// Answers reach the store as if the newest lease had given them.
    AnswersIgnoreTokens,
    /// The listener moves its cursor first and stores the requests in the next commit.
    CursorFirst,
    /// After a reorg the listener goes back to what is final by now, not to where the
    /// chains part: blocks of the new chain became final unread.
    BackToFinal,
    /// The lead is behind, does not look at what the store shows, and brings content
    /// that was answered for already; the store must not mind.
    LaggingLead,
    /// A copy of a withdrawal may arrive late; the honest listener's do not.
    LateWithdrawals,
}

pub(super) struct Intake {
    pub(super) shown: &'static [Shown],
    pub(super) height_max: u64,
    pub(super) faults: Faults,
    pub(super) protocol: Protocol,
    pub(super) witness: Witness,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct OriginBlock {
    fork: u8,
    event: Option<u8>,
}

/// A chain that may replace whatever it has not called final.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Origin {
    blocks: Vec<OriginBlock>,
    final_height: u64,
    fork: u8,
    /// Events that are not in a block and may yet be.
    pending: BTreeSet<u8>,
}

impl Origin {
    fn head(&self) -> u64 {
        self.blocks.len() as u64
    }

    fn block(&self, height: u64) -> Option<OriginBlock> {
        let at = usize::try_from(height).ok()?.checked_sub(1)?;
        self.blocks.get(at).copied()
    }

    fn position(&self, height: u64) -> Position {
        Position { height: Height(height), hash: [self.block(height).map_or(0, |block| block.fork); 32] }
    }

    fn stands_by(&self, at: Position) -> bool {
        at.height.0 <= self.head() && self.position(at.height.0) == at
    }

    /// The highest block that was there when `at` was read, and still is.
    fn common_with(&self, at: Position) -> u64 {
        let old = |height: &u64| self.position(*height).hash <= at.hash;
        (0..=at.height.0.min(self.head())).rev().find(old).unwrap_or(0)
    }

    fn height_of(&self, event: u8) -> Option<u64> {
        (1..=self.head()).find(|&height| self.block(height).is_some_and(|block| block.event == Some(event)))
    }

    fn mine(&mut self, event: Option<u8>) {
        if let Some(event) = event {
            self.pending.remove(&event);
        }
        self.blocks.push(OriginBlock { fork: self.fork, event });
    }

    fn reorg(&mut self, events_come_back: bool) {
        let kept = usize::try_from(self.final_height).unwrap_or(usize::MAX);
        let gone = self.blocks.split_off(kept);
        if events_come_back {
            self.pending.extend(gone.iter().filter_map(|block| block.event));
        }
        self.fork += 1;
    }
}

/// A lease as its worker remembers it, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Held {
    token: Token,
    request: u8,
    content: u8,
}

/// An answer that was let out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Published {
    request: u8,
    generation: u32,
    content: u8,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct State {
    store: Embedded,
    origin: Origin,
    cursor: Option<Cursor>,
    lead: Token,
    grants: BTreeSet<Held>,
    claim: u64,
    copy: Option<Op>,
    left: Faults,
    answered: BTreeSet<Token>,
    published: Vec<Published>,
    /// A rule that was broken on the way here.
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Mine(Option<u8>),
    Finalize,
    Reorg { events_come_back: bool },
    Admit(Fate),
    Amend(Fate),
    Lease(Fate),
    ReplayLease,
    Answer(Held),
    Rescue,
    Deliver,
    Wait,
    Crash,
}

fn listener() -> ListenerName {
    ListenerName::new("l").unwrap()
}

fn id_of(request: u8) -> RequestId {
    RequestId([request + 1; 32])
}

fn occurrence_of(event: u8) -> OccurrenceId {
    OccurrenceId([event + 1; 32])
}

fn event_of(occurrence: &Occurrence) -> u8 {
    occurrence.id.0[0] - 1
}

fn place(height: u64) -> Place {
    Place { origin: OriginName::new("o").unwrap(), height: Height(height) }
}

impl State {
    fn new(model: &Intake) -> State {
        let policy = RoutePolicy { lease_ms: LEASE_MS, backoff: Backoff::NONE, ..Default::default() };
        let (store, lead) = frame::routed(policy);
        let events = u8::try_from(model.shown.len()).unwrap();
        State {
            store,
            origin: Origin { blocks: Vec::new(), final_height: 0, fork: 0, pending: (0..events).collect() },
            cursor: None,
            lead,
            grants: BTreeSet::new(),
            claim: 0,
            copy: None,
            left: model.faults,
            answered: BTreeSet::new(),
            published: Vec::new(),
            broken: None,
        }
    }

    /// Commits, and records what the commit let out.
    fn commit(&mut self, model: &Intake, op: Op) -> Outcome {
        let before: Vec<Request> = self.store.requests().cloned().collect();
        let responses = self.store.responses(&before);
        let answer = match &op {
            Op::Answer(op) => Some((op.id, op.token, content_of(&op.response))),
            _ => None,
        };
        let outcome = self.store.commit(op);
        if let (Some((_, token, _)), Outcome::Applied(_)) = (answer, &outcome)
            && !self.answered.insert(token)
        {
            self.broken = Some("two responses were recorded under one lease");
        }
        for (request, stored) in before.iter().zip(responses) {
            let gone = self.store.request(&request.id).is_none_or(|live| live.seq != request.seq);
            if gone && self.store.ended(&request.id) == Some((End::Settled, request.generation)) {
                let content = answer.filter(|(id, ..)| *id == request.id).map_or(stored, |(.., content)| content);
                self.publish(model, request.id.0[0] - 1, request.generation, content);
            }
        }
        outcome
    }

    fn publish(&mut self, model: &Intake, request: u8, generation: u32, content: u8) {
        let is_final = |event: u8| self.origin.height_of(event).is_some_and(|at| at <= self.origin.final_height);
        let mut shown = (0u8..).zip(model.shown);
        if !shown.any(|(event, shown)| *shown == (Shown { request, content }) && is_final(event)) {
            self.broken = Some("an answer was let out whose content is not final");
        }
        if self.published.iter().any(|known| known.request == request && known.generation == generation) {
            self.broken = Some("one generation of a request had two effects");
        }
        self.published.push(Published { request, generation, content });
        self.published.sort_unstable();
    }

    /// Where the listener goes next: back to what is surely there after a reorg, else
    /// over the next block.
    fn next_admit(&self, model: &Intake) -> Option<Op> {
        let at = self.cursor.map_or(self.origin.position(0), |cursor| cursor.at);
        let (next, event) = if !self.origin.stands_by(at) {
            let back = match model.protocol {
                Protocol::BackToFinal => self.origin.final_height.min(at.height.0),
                _ => self.origin.common_with(at),
            };
            (back, None)
        } else {
            let next = at.height.0 + 1;
            (next, self.origin.block(next)?.event)
        };
        let requests = event.map(|event| self.new_request(model, event, next)).into_iter().collect();
        let next = self.origin.position(next);
        Some(Op::Admit(Admit {
            cursor: Some(CursorMove { listener: listener(), expected: self.cursor, next }),
            requests,
        }))
    }

    fn new_request(&self, model: &Intake, event: u8, height: u64) -> NewRequest {
        let Shown { request, content } = model.shown[usize::from(event)];
        let standing = if height <= self.origin.final_height { Standing::Final } else { Standing::Seen };
        let base = frame::request(request + 1, content, standing);
        NewRequest { occurrence: occurrence_of(event), place: Some(place(height)), ..base }
    }

    /// The first thing that the store does not believe of the origin yet. The order
    /// matters: what is gone, then which content is the newest, then what is back where
    /// it was not the newest, and only then what is final. Otherwise content that was
    /// overtaken goes out, or the answer to it is taken for an answer to what is back.
    fn next_amend(&self, model: &Intake) -> Option<Op> {
        let first = |decide: fn(&State, &Request, &Occurrence) -> Option<Amendment>| {
            let shown = self.store.requests().flat_map(|r| r.occurrences.as_slice().iter().map(move |o| (r, o)));
            let change = shown.filter_map(|(request, shown)| decide(self, request, shown)).next()?;
            Some(Op::Amend(Amend { lead: self.lead, change }))
        };
        let gone = first(State::gone).or_else(|| self.next_content(model));
        gone.or_else(|| first(State::moved)).or_else(|| first(State::decided))
    }

    /// The newest event of each request, of those that the listener has read or the
    /// store shows, if the store does not hold it as the request's content.
    fn next_content(&self, model: &Intake) -> Option<Op> {
        let read = self.cursor.filter(|cursor| self.origin.stands_by(cursor.at)).map_or(0, |cursor| cursor.at.height.0);
        for request in model.requests() {
            let looks = model.protocol != Protocol::LaggingLead;
            let known = |(height, event): &(u64, u8)| {
                *height <= read || (looks && self.store.machine.find_occurrence(&occurrence_of(*event)).is_some())
            };
            let Some((height, event)) = self.on_chain(model, request).filter(known).max() else { continue };
            let content = bytes_of(model.shown[usize::from(event)].content);
            let occurrence = occurrence_of(event);
            let Some(live) = self.store.request(&id_of(request)) else {
                if !self.store.knows(&occurrence) {
                    let requests = vec![self.new_request(model, event, height)];
                    return Some(Op::Admit(Admit { cursor: None, requests }));
                }
                continue;
            };
            let shown = live.occurrences.as_slice().iter().find(|shown| shown.id == occurrence);
            if shown.is_none() && self.store.knows(&occurrence) && !self.store.waits(&occurrence) && looks {
                // It was answered for; what is live is there for another event.
                continue;
            }
            let current = shown.is_some_and(|shown| shown.revision == live.revision);
            if !current || self.store.payload(live.seq) != content {
                let (id, place, payload) = (live.id, Some(place(height)), content);
                let change = Amendment::Supersede { id, occurrence, place, payload, deadline: None };
                return Some(Op::Amend(Amend { lead: self.lead, change }));
            }
        }
        None
    }

    /// A reorg took the occurrence away.
    fn gone(&self, _: &Request, shown: &Occurrence) -> Option<Amendment> {
        let gone = shown.standing == Standing::Seen && self.origin.height_of(event_of(shown)).is_none();
        gone.then_some(Amendment::Orphan { occurrence: shown.id })
    }

    /// A reorg brought the occurrence back, or moved it.
    fn moved(&self, _: &Request, shown: &Occurrence) -> Option<Amendment> {
        let height = self.origin.height_of(event_of(shown)).filter(|_| shown.standing != Standing::Final)?;
        let moved = shown.standing == Standing::Orphaned || shown.height.0 != height;
        moved.then_some(Amendment::Include { occurrence: shown.id, height: Height(height) })
    }

    /// Finality came for the occurrence, or passed without it.
    fn decided(&self, request: &Request, shown: &Occurrence) -> Option<Amendment> {
        let occurrence = shown.id;
        match self.origin.height_of(event_of(shown)) {
            _ if shown.standing == Standing::Final => None,
            Some(height) if height <= self.origin.final_height && shown.revision == request.revision => {
                Some(Amendment::Finalize { occurrence })
            }
            None if self.origin.final_height >= shown.height.0 => Some(Amendment::Withdraw { occurrence }),
            _ => None,
        }
    }

    fn learn_cursor(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Applied(Effect::Admitted(_, Some(cursor)))
            | Outcome::Duplicate(Effect::Admitted(_, Some(cursor))) => {
                self.cursor = Some(*cursor);
            }
            Outcome::Stale(Stale::Cursor(held)) => self.cursor = *held,
            _ => {}
        }
    }

    fn lease(&mut self, model: &Intake, fate: Fate) -> Outcome {
        let (worker, claim) = (WorkerName::new("w").unwrap(), ClaimId(self.claim));
        let op = Lease { route: route(), worker, max: 1, claim, lease_ms: None };
        let outcome = self.commit(model, Op::Lease(op));
        if let (Fate::Heard, Outcome::Applied(Effect::Leased(grants)) | Outcome::Duplicate(Effect::Leased(grants))) =
            (fate, &outcome)
        {
            self.grants.extend(grants.iter().map(|grant| Held {
                token: grant.token,
                request: grant.id.0[0] - 1,
                content: content_of(&grant.payload),
            }));
        }
        outcome
    }

    fn answer(&mut self, model: &Intake, held: Held) -> Outcome {
        let id = id_of(held.request);
        let token = match model.protocol {
            Protocol::AnswersIgnoreTokens => self.newest_token(&id).unwrap_or(held.token),
            _ => held.token,
        };
        let response = bytes_of(held.content);
        self.commit(model, Op::Answer(Answer { id, token, response, follow_ups: Vec::new(), items: Vec::new() }))
    }

    fn newest_token(&self, id: &RequestId) -> Option<Token> {
        match &self.store.request(id)?.state {
            crate::inbox::State::Leased(lease) => Some(lease.token),
            _ => None,
        }
    }

    /// The newest event of every request, of those that the cursor has passed, is live
    /// in the store or was answered.
    fn nothing_lost(&self, model: &Intake) -> bool {
        let Some(cursor) = self.store.cursor(&listener()) else { return true };
        let passed = |(height, _): &(u64, u8)| *height <= cursor.at.height.0;
        !self.origin.stands_by(cursor.at)
            || model.requests().into_iter().all(|request| {
                let Some((_, event)) = self.on_chain(model, request).filter(passed).max() else { return true };
                let kept = self.store.kind(&id_of(request)).is_some() || self.store.knows(&occurrence_of(event));
                kept || self.lead_brings(model, cursor, model.shown[usize::from(event)])
            })
    }

    /// The events of a request that are on the chain, with their heights.
    fn on_chain(&self, model: &Intake, request: u8) -> impl Iterator<Item = (u64, u8)> {
        let of_request = (0u8..).zip(model.shown).filter(move |(_, shown)| shown.request == request);
        of_request.filter_map(|(event, _)| Some((self.origin.height_of(event)?, event)))
    }

    /// Other content of a live id is not stored by the admit that finds it: it is the
    /// lead's to bring, from its own reading of the chain.
    fn lead_brings(&self, model: &Intake, cursor: Cursor, event: Shown) -> bool {
        let changes = model.shown.iter().any(|other| other.request == event.request && other.content != event.content);
        changes && State { cursor: Some(cursor), ..self.clone() }.next_content(model).is_some()
    }

    /// A recorded response answers the content that the request has now.
    fn answers_fit(&self) -> bool {
        self.store.requests().all(|request| match request.state {
            crate::inbox::State::Answered(_) => self.store.response(request.seq) == self.store.payload(request.seq),
            _ => true,
        })
    }

    /// With no more faults, everything comes to its right end.
    fn drains(&self, model: &Intake) -> bool {
        let mut rest = self.clone();
        let model = &model.with_an_honest_lead();
        for _ in 0..DRAIN_ROUNDS {
            if rest.is_done(model) {
                return rest.broken.is_none();
            }
            rest.honest_round(model);
        }
        rest.is_done(model) && rest.broken.is_none()
    }

    fn honest_round(&mut self, model: &Intake) {
        while let Some(&event) = self.origin.pending.first() {
            self.origin.mine(Some(event));
        }
        // Finality passes the height of every block that a reorg took away.
        while self.origin.head() < model.height_max {
            self.origin.mine(None);
        }
        self.origin.final_height = self.origin.head();
        while let Some(op) = self.next_admit(model) {
            let outcome = self.commit(model, op);
            self.learn_cursor(&outcome);
        }
        let amends = model.shown.len() * 4;
        for _ in 0..amends {
            let Some(op) = self.next_amend(model) else { break };
            self.commit(model, op);
        }
        self.store.now = self.store.now.plus(LEASE_MS);
        self.commit(model, Op::Rescue { limit: 8 });
        for _ in 0..model.shown.len() {
            self.claim += 1;
            self.lease(model, Fate::Heard);
        }
        for held in self.grants.clone() {
            self.answer(model, held);
        }
    }

    fn is_done(&self, model: &Intake) -> bool {
        let read_all = self.origin.pending.is_empty() && self.next_admit(model).is_none();
        read_all
            && self.next_amend(model).is_none()
            && self.store.requests().next().is_none()
            && self.newest_published(model)
    }

    /// The newest content of every request on the chain was published.
    fn newest_published(&self, model: &Intake) -> bool {
        model.requests().into_iter().all(|request| {
            let newest = self.on_chain(model, request).max();
            newest.is_none_or(|(_, event)| {
                let content = model.shown[usize::from(event)].content;
                self.published.iter().any(|done| done.request == request && done.content == content)
            })
        })
    }
}

impl Intake {
    /// A lead that is behind catches up once faults stop; other deviations stay.
    fn with_an_honest_lead(&self) -> Intake {
        let protocol = match self.protocol {
            Protocol::LaggingLead => Protocol::Honest,
            other => other,
        };
        Intake { protocol, witness: self.witness.clone(), ..*self }
    }

    fn requests(&self) -> BTreeSet<u8> {
        self.shown.iter().map(|shown| shown.request).collect()
    }

    fn admit(&self, state: &mut State, fate: Fate) -> Option<()> {
        let op = state.next_admit(self)?;
        if let (Protocol::CursorFirst, Op::Admit(admit)) = (self.protocol, &op) {
            let first = Op::Admit(Admit { cursor: admit.cursor.clone(), requests: Vec::new() });
            let outcome = state.commit(self, first);
            state.learn_cursor(&outcome);
            return Some(());
        }
        let outcome = state.commit(self, op.clone());
        self.note_admission(&outcome);
        self.after(state, fate, op);
        if fate != Fate::Lost {
            state.learn_cursor(&outcome);
        }
        Some(())
    }

    fn after(&self, state: &mut State, fate: Fate, op: Op) {
        match fate {
            Fate::Heard => {}
            Fate::Lost => state.left.lost -= 1,
            Fate::Copied => {
                state.left.copies -= 1;
                state.copy = Some(op);
            }
        }
    }

    fn note_admission(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Duplicate(_) => self.witness.note("a repeated admit was recognised"),
            Outcome::Stale(Stale::Cursor(_)) => self.witness.note("a listener learnt where its cursor is"),
            Outcome::Applied(Effect::Admitted(all, _)) => match all.first() {
                Some(Admission::New { generation: 1 }) => self.witness.note("an id came again after its end"),
                Some(Admission::Known { standing: Some(Standing::Orphaned), .. }) => {
                    self.witness.note("a reorg brought a known event back");
                }
                Some(Admission::Attached { same_content: false, .. }) => self.witness.note("other content arrived"),
                _ => {}
            },
            _ => {}
        }
    }

    fn note_answer(&self, state: &State, held: Held, outcome: &Outcome) {
        match outcome {
            Outcome::Stale(Stale::Superseded) => self.witness.note("an answer to superseded content was refused"),
            Outcome::Stale(Stale::Lease(_)) => {
                self.witness.note("a stale token was refused");
                if held.token.epoch < state.store.disk.epoch && !state.answered.contains(&held.token) {
                    self.witness.note("a crash forgot a lease");
                }
            }
            Outcome::Duplicate(_) => self.witness.note("a repeated answer was recognised"),
            Outcome::Applied(_) if held.token.epoch < state.store.disk.epoch => {
                self.witness.note("a lease outlived a crash");
            }
            _ => {}
        }
    }

    fn note_amend(&self, before: &State, op: &Op, outcome: &Outcome) {
        let Op::Amend(Amend { change, .. }) = op else { return };
        match (change, outcome) {
            (Amendment::Supersede { id, .. }, Outcome::Applied(_)) => match before.store.kind(id) {
                Some(StateKind::Leased) => self.witness.note("superseded while leased"),
                Some(StateKind::Waiting) => self.witness.note("superseded after the answer"),
                _ => {}
            },
            (Amendment::Withdraw { .. }, Outcome::Applied(_)) => self.witness.note("withdrawn"),
            (Amendment::Include { .. }, Outcome::Applied(_)) => self.witness.note("included again"),
            _ => {}
        }
    }
}

impl Model for Intake {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let origin = &state.origin;
        if origin.head() < self.height_max {
            // Until a reorg the order is fixed: the events differ in name alone.
            let choices = if origin.fork == 0 { 1 } else { origin.pending.len() };
            actions.extend(origin.pending.iter().take(choices).map(|&event| Action::Mine(Some(event))));
            let idle = origin.pending.is_empty() || self.shown.len() == 1;
            if origin.fork > 0 && idle {
                actions.push(Action::Mine(None));
            }
        }
        if origin.final_height < origin.head() {
            actions.push(Action::Finalize);
            if state.left.reorgs > 0 {
                actions.extend([true, false].map(|events_come_back| Action::Reorg { events_come_back }));
            }
        }
        actions.extend(Fate::left(0, state.left.copies).map(Action::Amend));
        actions.extend(Fate::left(state.left.lost, state.left.copies).map(Action::Admit));
        if state.left.leases > 0 {
            actions.extend(Fate::left(state.left.lost, 0).map(Action::Lease));
        }
        if state.claim > 0 {
            actions.push(Action::ReplayLease);
        }
        actions.extend(state.grants.iter().map(|&held| Action::Answer(held)));
        actions.push(Action::Rescue);
        if state.copy.is_some() {
            actions.push(Action::Deliver);
        }
        if state.left.waits > 0 {
            actions.push(Action::Wait);
        }
        if state.left.crashes > 0 {
            actions.push(Action::Crash);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Mine(event) => state.origin.mine(event),
            Action::Finalize => state.origin.final_height += 1,
            Action::Reorg { events_come_back } => {
                state.left.reorgs -= 1;
                state.origin.reorg(events_come_back);
            }
            Action::Admit(fate) => self.admit(&mut state, fate)?,
            Action::Amend(fate) => {
                let op = state.next_amend(self)?;
                let withdrawal = matches!(&op, Op::Amend(Amend { change: Amendment::Withdraw { .. }, .. }));
                if withdrawal && fate == Fate::Copied && self.protocol != Protocol::LateWithdrawals {
                    return None;
                }
                let outcome = state.commit(self, op.clone());
                self.note_amend(last, &op, &outcome);
                self.after(&mut state, fate, op);
            }
            Action::Lease(fate) => {
                state.left.leases -= 1;
                state.claim += 1;
                let outcome = state.lease(self, fate);
                if outcome == Outcome::Applied(Effect::Leased(Vec::new())) {
                    return None;
                }
                if fate == Fate::Lost {
                    state.left.lost -= 1;
                }
            }
            Action::ReplayLease => {
                match state.lease(self, Fate::Heard) {
                    Outcome::Duplicate(_) => self.witness.note("a replayed claim got its grant again"),
                    // The first call was forgotten, or its work is done: this is a new lease.
                    _ => state.left.leases = state.left.leases.checked_sub(1)?,
                }
            }
            Action::Answer(held) => {
                let outcome = state.answer(self, held);
                self.note_answer(last, held, &outcome);
            }
            Action::Rescue => {
                if state.commit(self, Op::Rescue { limit: 8 }) == Outcome::Applied(Effect::Count(0)) {
                    return None;
                }
                self.witness.note("a silent worker's lease was taken back");
            }
            Action::Deliver => {
                let copy = state.copy.take()?;
                state.commit(self, copy);
            }
            Action::Wait => {
                state.left.waits -= 1;
                state.store.now = state.store.now.plus(LEASE_MS);
            }
            Action::Crash => {
                state.left.crashes -= 1;
                state.store.crash();
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no rule was broken on the way", |_, state: &State| state.broken.is_none()),
            Property::always("nothing is lost", |model, state: &State| state.nothing_lost(model)),
            Property::always("an answer fits its request's content", |_, state: &State| state.answers_fit()),
            Property::always("a crash leaves what was committed", |_, state: &State| state.store.reloads_as_it_is()),
            Property::always("everything ends once faults stop", |model, state: &State| state.drains(model)),
        ]
    }
}
