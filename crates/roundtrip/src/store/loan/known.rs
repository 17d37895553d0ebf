//! What a process knows of all live requests without looking: how many there are of each
//! route in each state, as long as no other process has ticked.
//!
//! It saves questions, which cost a small batch more than its rows do: where a count says
//! that there is nothing, nothing is asked.

use std::collections::BTreeMap;

use super::changes::Changes;
use super::want::{Found, Want};
use crate::inbox::{RouteNo, StateKind};
use crate::outbox::LaneNo;
use crate::store::machine::Pace;

/// Counts and paces as a tick left them.
#[derive(Clone, Debug, Default)]
pub(in crate::store) struct Known {
    pub(in crate::store) counted: BTreeMap<(RouteNo, StateKind), u64>,
    pub(in crate::store) paces: Vec<(RouteNo, u64, Pace)>,
    /// How many parcels are under way on a lane, where that was looked up.
    pub(in crate::store) under_way: BTreeMap<LaneNo, u64>,
    /// Whether there ever was a group.
    pub(in crate::store) had_groups: bool,
}

impl Known {
    /// What a want brings, if that is known.
    pub(in crate::store) fn answer(&self, want: &Want) -> Option<Found> {
        let none_live = || Some(Found::Live(Vec::new()));
        match want {
            Want::Counted => Some(Found::Counted(self.counted.iter().map(|(of, count)| (*of, *count)).collect())),
            Want::Paces => Some(Found::Paces(self.paces.clone())),
            Want::UnderWay(lanes) => {
                let of = |lane: &LaneNo| Some((*lane, *self.under_way.get(lane)?));
                lanes.iter().map(of).collect::<Option<_>>().map(Found::UnderWay)
            }
            Want::Named { slots, .. } if slots.is_empty() && self.live() == 0 => none_live(),
            Want::Bodies(_) if self.live() == 0 => Some(Found::Bodies(Vec::new())),
            Want::Turns { route, .. } | Want::Next { route, .. } if self.of(*route, StateKind::Queued) == 0 => {
                none_live()
            }
            Want::Claimed(_) | Want::Silent { .. } if self.all(StateKind::Leased) == 0 => none_live(),
            Want::Due { .. } if self.all(StateKind::Held) == 0 => none_live(),
            Want::Overdue { .. } if self.live() == 0 => none_live(),
            Want::Dead { .. } if self.all(StateKind::Dead) == 0 => none_live(),
            Want::Groups(_) | Want::GroupsOf(_) | Want::Fired { .. } | Want::Outlived { .. } if !self.had_groups => {
                Some(Found::Groups(Vec::new()))
            }
            _ => None,
        }
    }

    pub(super) fn live(&self) -> u64 {
        self.counted.values().sum()
    }

    pub(super) fn all(&self, state: StateKind) -> u64 {
        self.counted.iter().filter(|((_, of), _)| *of == state).map(|(_, count)| count).sum()
    }

    pub(super) fn of(&self, route: RouteNo, state: StateKind) -> u64 {
        self.counted.get(&(route, state)).copied().unwrap_or(0)
    }

    /// What is known once these changes are written.
    pub(super) fn add(&mut self, changes: &Changes<'_>, newest_epoch: u64) {
        for (of, change) in &changes.counts {
            let count = self.counted.entry(*of).or_default();
            *count = count.saturating_add_signed(*change);
        }
        for (no, pace) in &changes.paces {
            self.paces.retain(|(other, _, _)| other != no);
            self.paces.push((*no, newest_epoch, (*pace).clone()));
        }
        self.had_groups |= !changes.groups.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::UnixMs;

    const ROUTE: RouteNo = RouteNo(3);

    fn known(state: StateKind, count: u64) -> Known {
        Known { counted: [((ROUTE, state), count)].into(), ..Known::default() }
    }

    #[test]
    fn what_cannot_bring_anything_is_not_asked() {
        let silent = Want::Silent { now: UnixMs(5), limit: 1 };
        let turns = |route| Want::Turns { route, requests: 1, reached: Vec::new(), bytes: 1, from: 0 };
        assert!(known(StateKind::Queued, 1).answer(&silent).is_some());
        assert!(known(StateKind::Leased, 1).answer(&silent).is_none());
        assert!(known(StateKind::Queued, 1).answer(&turns(ROUTE)).is_none());
        assert!(known(StateKind::Queued, 1).answer(&turns(RouteNo(4))).is_some());
        assert!(known(StateKind::Queued, 0).answer(&turns(ROUTE)).is_some());
    }

    #[test]
    fn counts_move_with_the_changes() {
        let counts = [((ROUTE, StateKind::Queued), -2), ((ROUTE, StateKind::Leased), 2)].into();
        let mut after = known(StateKind::Queued, 5);
        after.add(&Changes { counts, ..Changes::default() }, 1);
        assert_eq!((after.all(StateKind::Queued), after.all(StateKind::Leased), after.live()), (3, 2, 5));
        let counts = [((ROUTE, StateKind::Queued), 3), ((ROUTE, StateKind::Leased), 2)];
        assert!(matches!(after.answer(&Want::Counted), Some(Found::Counted(all)) if all == counts));
    }
}
