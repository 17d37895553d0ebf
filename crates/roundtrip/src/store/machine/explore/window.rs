//! A group that is sealed by count and by time at once: items that come in any order and
//! twice, a clock that passes the moment at any point, `fire` at any point, a route that is
//! full for a while, crashes, answers that are lost.

use stateright::{Model, Property};

use super::embedded::Embedded;
use super::frame::{self, Fate};
use super::{Witness, bytes_of};
use crate::groups::GroupState;
use crate::inbox::Standing;
use crate::store::op::{Admit, Effect, Gather, GroupPlan, NewRequest, Op, Outcome};
use crate::store::policy::RoutePolicy;
use crate::words::{GroupKey, ItemId, RequestId, UnixMs};

const WINDOW_MS: u64 = 1000;
const SEAL_AT_ITEMS: u64 = 2;
const DRAIN_ROUNDS: usize = 6;
/// The request that refers to the group, and the one that fills the route at first.
const GROUP: u8 = 9;
const BLOCKER: u8 = 1;

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    pub(super) crashes: u8,
    pub(super) lost: u8,
    pub(super) copies: u8,
}

pub(super) struct Window {
    pub(super) items: u8,
    /// Whether the route is full at first.
    pub(super) blocked: bool,
    /// Whether somebody does the upkeep.
    pub(super) fires: bool,
    pub(super) faults: Faults,
    pub(super) witness: Witness,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct State {
    store: Embedded,
    closes_at: UnixMs,
    /// The items that were acknowledged, as bits.
    told: u8,
    /// With how many items it was sealed, when that was first seen.
    sealed_with: Option<u64>,
    copy: Option<Op>,
    left: Faults,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Gather { item: u8, fate: Fate },
    Fire { fate: Fate },
    Work,
    Time,
    Copy,
    Crash,
}

fn group() -> GroupKey {
    GroupKey::new("g").unwrap()
}

fn new_request(n: u8) -> NewRequest {
    frame::request(n, n, Standing::Final)
}

impl State {
    fn new(model: &Window) -> State {
        let (mut store, _) = frame::routed(RoutePolicy { capacity: 1, ..Default::default() });
        if model.blocked {
            store.commit(Op::Admit(Admit { cursor: None, requests: vec![new_request(BLOCKER)] }));
        }
        let closes_at = store.now.plus(WINDOW_MS);
        State { store, closes_at, told: 0, sealed_with: None, copy: None, left: model.faults }
    }

    fn call(&mut self, op: Op, fate: Fate) -> Outcome {
        match fate {
            Fate::Heard => {}
            Fate::Lost => self.left.lost -= 1,
            Fate::Copied => {
                self.left.copies -= 1;
                self.copy = Some(op.clone());
            }
        }
        self.commit(op)
    }

    fn commit(&mut self, op: Op) -> Outcome {
        let outcome = self.store.commit(op);
        if let (None, Some(GroupState::Sealed { items, .. })) = (self.sealed_with, self.group_state()) {
            self.sealed_with = Some(items);
        }
        outcome
    }

    fn gather(&mut self, item: u8, fate: Fate) -> Outcome {
        let plan = GroupPlan {
            seal_at_items: Some(SEAL_AT_ITEMS),
            seal_at: Some(self.closes_at.into()),
            request: new_request(GROUP),
        };
        let op =
            Gather { group: group(), item: ItemId([item; 32]), payload: bytes_of(item), plan: Some(Box::new(plan)) };
        let outcome = self.call(Op::Gather(op), fate);
        if fate != Fate::Lost && outcome.holds() {
            self.told |= 1 << item;
        }
        outcome
    }

    fn work(&mut self) -> Option<()> {
        frame::work(self.store.machine.tokens, |op| self.commit(op))
    }

    fn group_state(&self) -> Option<GroupState> {
        self.store.machine.groups.get(&group()).map(|group| group.state)
    }

    fn request_is_there(&self) -> bool {
        let id = RequestId([GROUP; 32]);
        self.store.request(&id).is_some() || self.store.ended(&id).is_some()
    }

    /// Sealed is sealed, with what was in it, and its request is there; neither without the other.
    fn sealed_once(&self) -> bool {
        let held = self.store.machine.groups.get(&group());
        let (sealed, in_time) = match held.map(|group| (group.state, group.in_time())) {
            Some((GroupState::Sealed { items, .. }, in_time)) => (Some(items), in_time),
            Some((GroupState::Open, in_time)) => (None, in_time),
            None => (None, 0),
        };
        sealed == self.sealed_with
            && sealed.is_none_or(|items| items == in_time)
            && self.request_is_there() == sealed.is_some()
    }

    /// An item that was acknowledged is in the group.
    fn items_are_kept(&self) -> bool {
        let held = |item| {
            let group = self.store.machine.groups.get(&group());
            group.is_some_and(|group| group.members.contains_key(&ItemId([item; 32])))
        };
        (0..8).filter(|item| self.told & (1 << item) != 0).all(held)
    }

    fn drains(&self, model: &Window) -> bool {
        let mut rest = self.clone();
        for _ in 0..DRAIN_ROUNDS {
            for item in 0..model.items {
                rest.gather(item, Fate::Heard);
            }
            rest.store.now = rest.store.now.plus(WINDOW_MS);
            rest.work();
            if model.fires {
                rest.commit(Op::Fire { limit: 1 });
            }
            rest.work();
        }
        let all = rest.store.machine.groups.get(&group()).map_or(0, |group| group.order.len());
        let done = rest.store.ended(&RequestId([GROUP; 32])).is_some_and(|(_, generation)| generation == 0);
        done && all == usize::from(model.items) && rest.sealed_once()
    }
}

impl Window {
    fn note(&self, last: &State, state: &State, action: Action, outcome: &Outcome) {
        let sealed_now = last.sealed_with.is_none() && state.sealed_with.is_some();
        match (action, outcome) {
            (Action::Gather { .. }, _) if sealed_now => self.witness.note("sealed by count"),
            (Action::Fire { .. }, _) if sealed_now && state.sealed_with < Some(SEAL_AT_ITEMS) => {
                self.witness.note("sealed by time");
            }
            (Action::Fire { .. }, _) if sealed_now => self.witness.note("sealed when there was room"),
            (Action::Gather { .. } | Action::Copy, Outcome::Applied(Effect::Gathered { late: true, .. })) => {
                self.witness.note("an item came late");
            }
            (Action::Gather { .. } | Action::Copy, Outcome::Duplicate(_)) => {
                self.witness.note("a repeated item was recognised");
            }
            (Action::Gather { .. }, Outcome::Applied(Effect::Gathered { items, late: false }))
                if *items >= SEAL_AT_ITEMS =>
            {
                self.witness.note("a full route made the seal wait");
            }
            _ => {}
        }
    }
}

impl Model for Window {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for fate in Fate::left(state.left.lost, state.left.copies) {
            actions.extend((0..self.items).map(|item| Action::Gather { item, fate }));
            actions.extend(self.fires.then_some(Action::Fire { fate }));
        }
        actions.push(Action::Work);
        actions.extend((state.store.now < state.closes_at.plus(WINDOW_MS)).then_some(Action::Time));
        actions.extend(state.copy.is_some().then_some(Action::Copy));
        actions.extend((state.left.crashes > 0).then_some(Action::Crash));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let outcome = match action {
            Action::Gather { item, fate } => Some(state.gather(item, fate)),
            Action::Fire { fate } => Some(state.call(Op::Fire { limit: 1 }, fate)),
            Action::Work => state.work().map(|()| None)?,
            Action::Time => {
                state.store.now = state.store.now.plus(WINDOW_MS);
                None
            }
            Action::Copy => {
                let copy = state.copy.take()?;
                Some(state.commit(copy))
            }
            Action::Crash => {
                state.left.crashes -= 1;
                state.store.crash();
                None
            }
        };
        if let Some(outcome) = outcome {
            self.note(last, &state, action, &outcome);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a group is sealed once", |_, state: &State| state.sealed_once()),
            Property::always("items are kept", |_, state: &State| state.items_are_kept()),
            Property::always("a crash leaves what was committed", |_, state: &State| state.store.reloads_as_it_is()),
            Property::always("everything ends once faults stop", |model, state: &State| state.drains(model)),
        ]
    }
}
