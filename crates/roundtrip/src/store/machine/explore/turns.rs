//! Whose turn it is: keyed order and votes, under failures, silence and crashes between
//! any two commits.
//!
//! What may be handed out is worked out here from the bare requests, without the index
//! that the machine keeps for it.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use super::Witness;
use super::embedded::Embedded;
use super::frame::{self, route};
use crate::inbox::{Identity, Request, Standing, State as RequestState};
use crate::store::op::{
    Admit, Amend, Amendment, Answer, Effect, Fail, Grant, Lease, Mend, NewRequest, Op, Outcome, Release, Remedy,
    Verdict,
};
use crate::store::policy::{Backoff, Gate, Horizon, OnDuplicate, QueueOrder, RoutePolicy};
use crate::words::{ClaimId, ErrorClass, ErrorNote, OccurrenceId, OrderKey, Payload, RequestId, Token, WorkerName};

const LEASE_MS: u64 = 10_000;
const LATER_MS: u64 = 500;
/// So many honest rounds finish whatever the faults left behind.
const DRAIN_ROUNDS: usize = 12;

/// How often each thing may happen before only honest rounds are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    pub(super) crashes: u8,
    pub(super) waits: u8,
    pub(super) leases: u8,
    /// Requests that come back: to be tried at once or later, given back, or dead.
    pub(super) setbacks: u8,
    pub(super) mends: u8,
    /// Occurrences that a reorg takes away, or brings back.
    pub(super) reorgs: u8,
}

pub(super) const CALM: Faults = Faults { crashes: 0, waits: 0, leases: 3, setbacks: 0, mends: 0, reorgs: 0 };

/// What comes in, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coming {
    /// Requests with these keys.
    Keys { keys: &'static [u8], per_key: u16 },
    /// Votes for one request.
    Votes { voters: u8, needed: u32 },
}

pub(super) struct Turns {
    pub(super) coming: Coming,
    pub(super) faults: Faults,
    pub(super) witness: Witness,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct State {
    store: Embedded,
    lead: Token,
    came: u8,
    grants: BTreeSet<(Token, RequestId)>,
    claim: u64,
    left: Faults,
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Come,
    Lease,
    Answer(Token, RequestId),
    Retry(Token, RequestId, u64),
    Release(Token, RequestId),
    Die(Token, RequestId),
    Mend(RequestId),
    Orphan(u8),
    Include(u8),
    Withdraw(u8),
    /// So long that leases run out, which are then taken back.
    Wait,
    Crash,
}

fn occurrence_of(n: u8) -> OccurrenceId {
    OccurrenceId([n + 1; 32])
}

fn note(class: ErrorClass) -> ErrorNote {
    ErrorNote::new(class, "x")
}

impl Turns {
    fn policy(&self) -> RoutePolicy {
        let plain = RoutePolicy {
            lease_ms: LEASE_MS,
            backoff: Backoff::NONE,
            publish_on: Gate::Seen,
            horizon: Horizon::Forever,
            ..RoutePolicy::default()
        };
        match self.coming {
            Coming::Keys { per_key, .. } => RoutePolicy { order: QueueOrder::KeyedFifo { per_key }, ..plain },
            Coming::Votes { needed, .. } => {
                let on_duplicate = OnDuplicate::Vote { needed };
                RoutePolicy { identity: Identity::Content, on_duplicate, ..plain }
            }
        }
    }

    fn count(&self) -> u8 {
        match self.coming {
            Coming::Keys { keys, .. } => u8::try_from(keys.len()).unwrap(),
            Coming::Votes { voters, .. } => voters,
        }
    }

    fn new_request(&self, n: u8) -> NewRequest {
        let (id, payload, key, standing) = match self.coming {
            Coming::Keys { keys, .. } => {
                let key = OrderKey::new(&format!("k{}", keys[usize::from(n)])).unwrap();
                (RequestId([n + 1; 32]), Payload::raw(vec![n]), Some(key), Standing::Final)
            }
            Coming::Votes { .. } => {
                let payload = Payload::json("{}");
                let id = Identity::Content.id_of(&route(), &payload).unwrap().unwrap();
                (id, payload, None, Standing::Seen)
            }
        };
        let base = crate::listener::request_with_id(&route(), id, payload);
        NewRequest { occurrence: occurrence_of(n), standing, key, ..base }
    }

    /// Whether this request may be handed out now, beside what is there.
    fn may_lease(&self, request: &Request, all: &[Request]) -> bool {
        match self.coming {
            Coming::Keys { per_key, .. } => {
                let ahead = all.iter().filter(|other| other.key == request.key).filter(|other| match other.state {
                    RequestState::Held | RequestState::Queued => other.seq < request.seq,
                    RequestState::Leased(_) => true,
                    RequestState::Answered(_) | RequestState::Dead(_) => false,
                });
                ahead.count() < usize::from(per_key)
            }
            Coming::Votes { needed, .. } => {
                let standing = request.occurrences.as_slice().iter().filter(|o| o.standing != Standing::Orphaned);
                standing.count() >= needed as usize
            }
        }
    }

    fn lease(&self, state: &mut State, max: usize) -> Vec<Grant> {
        state.claim += 1;
        let before: Vec<Request> = state.store.requests().cloned().collect();
        let worker = WorkerName::new("w").unwrap();
        let lease = Lease { route: route(), worker, max, claim: ClaimId(state.claim), lease_ms: None };
        let outcome = state.store.commit(Op::Lease(lease));
        let Outcome::Applied(Effect::Leased(grants)) = outcome else { panic!("a lease is answered: {outcome:?}") };
        let mut all = before;
        for grant in &grants {
            let at = all.iter().position(|request| request.id == grant.id).unwrap();
            if !self.may_lease(&all[at], &all) {
                state.broken = Some("a request was handed out before its turn");
            }
            all[at] = state.store.request(&grant.id).unwrap().clone();
            state.grants.insert((grant.token, grant.id));
        }
        if max == 1
            && grants.is_empty()
            && all.iter().any(|r| r.state == RequestState::Queued && self.may_lease(r, &all))
        {
            state.broken = Some("a request whose turn it is was not handed out");
        }
        grants
    }

    fn answer(&self, state: &mut State, token: Token, id: RequestId) -> Outcome {
        let votes_before = state.store.request(&id).map(|request| request.votes(Gate::Seen));
        let (response, follow_ups, items) = (Payload::raw("a"), Vec::new(), Vec::new());
        let outcome = state.store.commit(Op::Answer(Answer { id, token, response, follow_ups, items }));
        if let (Coming::Votes { needed, .. }, Some(votes)) = (self.coming, votes_before)
            && state.store.request(&id).is_none()
            && votes < needed as usize
        {
            state.broken = Some("an answer was let out without its votes");
        }
        outcome
    }

    /// Honest rounds from here on: everything comes, what was taken away comes back,
    /// what failed is tried again, and all of it ends.
    fn drains(&self, from: &State) -> bool {
        let mut state = from.clone();
        for n in state.came..self.count() {
            state.store.commit(Op::Admit(Admit { cursor: None, requests: vec![self.new_request(n)] }));
        }
        for _ in 0..DRAIN_ROUNDS {
            state.store.now = state.store.now.plus(LEASE_MS);
            state.store.commit(Op::Rescue { limit: 99 });
            for n in 0..self.count() {
                self.amend(&mut state, include(n));
            }
            let dead = state.store.requests().filter(|request| matches!(request.state, RequestState::Dead(_)));
            for id in dead.map(|request| request.id).collect::<Vec<_>>() {
                state.store.commit(Op::Mend(Mend { id, remedy: Remedy::Retry }));
            }
            for grant in self.lease(&mut state, 9) {
                self.answer(&mut state, grant.token, grant.id);
            }
        }
        state.broken.is_none() && state.store.requests().all(|request| self.may_stay(request))
    }

    /// Votes that were withdrawn may leave the rest without a majority, for ever.
    fn may_stay(&self, request: &Request) -> bool {
        match self.coming {
            Coming::Keys { .. } => false,
            Coming::Votes { needed, .. } => request.votes(Gate::Seen) < needed as usize,
        }
    }

    fn amend(&self, state: &mut State, change: Amendment) -> Outcome {
        state.store.commit(Op::Amend(Amend { lead: state.lead, change }))
    }
}

fn include(n: u8) -> Amendment {
    Amendment::Include { occurrence: occurrence_of(n), height: crate::words::Height(0) }
}

impl Model for Turns {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (store, lead) = frame::routed(self.policy());
        let (grants, left) = (BTreeSet::new(), self.faults);
        vec![State { store, lead, came: 0, grants, claim: 0, left, broken: None }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let left = state.left;
        if state.came < self.count() {
            actions.push(Action::Come);
        }
        if left.leases > 0 {
            actions.push(Action::Lease);
        }
        for &(token, id) in &state.grants {
            actions.push(Action::Answer(token, id));
            if left.setbacks > 0 {
                let again = [0, LATER_MS].map(|after_ms| Action::Retry(token, id, after_ms));
                actions.extend(again.into_iter().chain([Action::Release(token, id), Action::Die(token, id)]));
            }
        }
        if left.mends > 0 {
            let dead = state.store.requests().filter(|request| matches!(request.state, RequestState::Dead(_)));
            actions.extend(dead.map(|request| Action::Mend(request.id)));
        }
        if left.reorgs > 0 && matches!(self.coming, Coming::Votes { .. }) {
            actions.extend((0..state.came).flat_map(|n| [Action::Orphan(n), Action::Include(n), Action::Withdraw(n)]));
        }
        if left.waits > 0 {
            actions.push(Action::Wait);
        }
        if left.crashes > 0 {
            actions.push(Action::Crash);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let outcome = match action {
            Action::Come => {
                let requests = vec![self.new_request(state.came)];
                state.came += 1;
                state.store.commit(Op::Admit(Admit { cursor: None, requests }))
            }
            Action::Lease => {
                state.left.leases -= 1;
                let grants = self.lease(&mut state, 1);
                if grants.is_empty() && state.broken.is_none() {
                    self.witness.note("nobody's turn");
                    return None;
                }
                return Some(state);
            }
            Action::Answer(token, id) => {
                state.grants.remove(&(token, id));
                self.answer(&mut state, token, id)
            }
            Action::Retry(token, id, after_ms) => {
                let verdict = Verdict::Retry { after_ms: Some(after_ms) };
                let fail = Fail { id, token, error: note(ErrorClass::Retryable), verdict };
                self.set_back(&mut state, token, id, Op::Fail(fail))
            }
            Action::Release(token, id) => {
                self.set_back(&mut state, token, id, Op::Release(Release { id, token, after_ms: 0 }))
            }
            Action::Die(token, id) => {
                let verdict = Verdict::Dead { response: None };
                let fail = Fail { id, token, error: note(ErrorClass::Fatal), verdict };
                self.set_back(&mut state, token, id, Op::Fail(fail))
            }
            Action::Mend(id) => {
                state.left.mends -= 1;
                let ahead = |request: &&Request| matches!(request.state, RequestState::Leased(_));
                if state.store.requests().filter(ahead).any(|request| request.id > id) {
                    self.witness.note("a dead letter came back while a later one was with a worker");
                }
                state.store.commit(Op::Mend(Mend { id, remedy: Remedy::Retry }))
            }
            Action::Orphan(n) => {
                state.left.reorgs -= 1;
                self.amend(&mut state, Amendment::Orphan { occurrence: occurrence_of(n) })
            }
            Action::Include(n) => {
                state.left.reorgs -= 1;
                self.amend(&mut state, include(n))
            }
            Action::Withdraw(n) => {
                state.left.reorgs -= 1;
                self.amend(&mut state, Amendment::Withdraw { occurrence: occurrence_of(n) })
            }
            Action::Wait => {
                state.left.waits -= 1;
                state.store.now = state.store.now.plus(LEASE_MS);
                state.store.commit(Op::Rescue { limit: 99 })
            }
            Action::Crash => {
                state.left.crashes -= 1;
                state.store.crash();
                let is_leased = |request: &Request| matches!(request.state, RequestState::Leased(_));
                if state.store.requests().any(is_leased) {
                    self.witness.note("a lease outlived a crash");
                }
                return Some(state);
            }
        };
        match outcome {
            Outcome::Applied(_) => Some(state),
            Outcome::Stale(_) if matches!(action, Action::Answer(..)) => {
                self.witness.note("a stale token was refused");
                Some(state)
            }
            _ => None,
        }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("everything in its turn", |_, state: &State| state.broken.is_none()),
            Property::always("a start finds what was there", |_, state: &State| state.store.reloads_as_it_is()),
            Property::always("everything ends once faults stop", |model: &Turns, state| model.drains(state)),
        ]
    }
}

impl Turns {
    fn set_back(&self, state: &mut State, token: Token, id: RequestId, op: Op) -> Outcome {
        state.left.setbacks -= 1;
        state.grants.remove(&(token, id));
        state.store.commit(op)
    }
}
