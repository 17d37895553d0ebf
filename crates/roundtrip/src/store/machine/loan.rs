//! A machine on loan: the same functions over a part of the state, for a store that
//! many processes share.
//!
//! ```text
//!   rows that a batch may touch ──▶ borrow ──▶ tick, apply ──▶ what is here now ──▶ rows
//! ```
//!
//! Whoever lends must bring everything that an operation looks at: the requests that it
//! names with all that share their ids, what waits in line with them, and all routes,
//! lanes, cursors and seats. What is not here does not exist to the machine, except that
//! each route knows how many more it has. Records come and go whole, with their state:
//! nothing is worked out anew from a clock that may differ from process to process.

use std::convert::Infallible;

use super::pace::Pace;
use super::{Machine, Seq, Slot, line};
use crate::inbox::{Request, RouteNo, State, StateKind, When};
use crate::outbox::LaneNo;
use crate::sender::Parcel;
use crate::store::Options;
use crate::store::disk::{AnswerHead, Fixture, GroupRow, HighWater, ItemRow, Mark, ReceiptRow, RequestRow, Rows};
use crate::store::policy::QueueOrder;
use crate::words::{Nonce, UnixMs};

/// What is lent.
#[derive(Debug, Default)]
pub(crate) struct Loan {
    /// The borrower's own epoch, and how many tokens it has issued in it.
    pub(crate) epoch: u64,
    pub(crate) tokens: u64,
    /// The newest epoch of all borrowers.
    pub(crate) newest_epoch: u64,
    pub(crate) now: UnixMs,
    pub(crate) high: HighWater,
    /// The first entry that the journal still has.
    pub(crate) first_entry: u64,
    pub(crate) fixtures: Vec<Fixture>,
    /// Live requests, in the order of their numbers.
    pub(crate) requests: Vec<Request>,
    pub(crate) parcels: Vec<(LaneNo, Nonce, Parcel)>,
    /// How many parcels are under way on a lane in all, where that counts.
    pub(crate) under_way: Vec<(LaneNo, u64)>,
    /// Groups, and when `fire` is to look at each.
    pub(crate) groups: Vec<(u64, GroupRow, When)>,
    /// Items, in the order of their numbers.
    pub(crate) items: Vec<(u64, ItemRow)>,
    /// How many live requests a route has in all.
    pub(crate) live: Vec<(RouteNo, u64)>,
    /// What routes with a rate handed out lately, as far as that is known.
    pub(crate) paces: Vec<(RouteNo, Pace)>,
}

/// Where a live request is listed: what does not follow from its record alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) state: StateKind,
    /// Its rank among those that may be handed out, if it may be.
    pub(crate) turn: Option<u64>,
    /// What alone keeps it from being queued.
    pub(crate) due: Option<When>,
    /// When it expires, if it can.
    pub(crate) deadline: Option<When>,
}

impl Machine {
    /// A machine over what is lent.
    pub(crate) fn borrow(options: Options, mut loan: Loan) -> Machine {
        let requests = std::mem::take(&mut loan.requests);
        let Ok(mut machine) = Machine::load(options, &loan, loan.epoch, loan.now);
        machine.tokens = loan.tokens;
        machine.newest_epoch = Some(loan.newest_epoch);
        for (no, pace) in loan.paces {
            machine.routes[usize::from(no.0)].pace = pace;
        }
        for (no, row, timer) in &loan.groups {
            machine.move_timer(*no, &row.key, *timer);
        }
        for request in requests {
            let slot = machine.requests.insert(request);
            machine.list(slot);
        }
        for (no, live) in loan.live {
            let route = &mut machine.routes[usize::from(no.0)];
            route.elsewhere = live.saturating_sub(route.live());
        }
        for (no, parcels) in loan.under_way {
            let lane = &mut machine.lanes[usize::from(no.0)];
            lane.elsewhere = usize::try_from(parcels).unwrap_or(usize::MAX).saturating_sub(lane.parcels.len());
        }
        // Whose head moved on in another process is not told; looking costs little.
        machine.ticked =
            (0..machine.origins.len()).filter_map(|at| u16::try_from(at).ok()).map(super::OriginNo).collect();
        machine.touched.clear();
        machine
    }

    /// Lists a group under the moment at which `fire` looks at it next, which is later
    /// than planned if its route had no room.
    fn move_timer(&mut self, no: u64, key: &crate::words::GroupKey, timer: When) {
        let Some(group) = self.groups.get_mut(key) else { return };
        if let Some(planned) = group.timer.filter(|planned| *planned != timer && timer != When::NEVER) {
            group.timer = Some(timer);
            self.timers.remove(&(planned, no));
            self.timers.insert((timer, no), key.clone());
        }
    }

    /// A lease lasts at most as long from now as it was granted for, whatever clock it
    /// was granted by.
    pub(crate) fn shorten_leases(&mut self) {
        let leased: Vec<Slot> = self.leases.values().copied().collect();
        for slot in leased {
            self.change(slot, |request, _, now| {
                if let State::Leased(lease) = &mut request.state {
                    lease.until = lease.until.min(now.plus(lease.lease_ms));
                }
            });
        }
    }

    /// Lets the gates decide about every live request that is here, as a start does.
    pub(crate) fn open_gates(&mut self) {
        let all: Vec<Slot> =
            self.routes.iter().flat_map(|route| route.lists.iter().flat_map(|list| list.values())).copied().collect();
        for slot in all {
            self.change_by_clocks(slot, |request, policy, clocks| request.pass_gates(policy, clocks));
        }
    }

    /// Every live request that is here, and where it is listed.
    pub(crate) fn places(&self) -> impl Iterator<Item = (&Request, Listed)> {
        self.requests.iter().map(|request| (request, self.place(request)))
    }

    fn place(&self, request: &Request) -> Listed {
        let route = self.route(request.route);
        let rank = line::rank(route.policy.order, request);
        let turn = match route.policy.order {
            QueueOrder::Fifo => (request.state == State::Queued).then_some(rank),
            _ => route.ranked.contains_key(&(rank, request.seq)).then_some(rank),
        };
        let listed = |when: When, index: &std::collections::BTreeMap<(When, Seq), Slot>| {
            index.contains_key(&(when, request.seq)).then_some(when)
        };
        Listed {
            state: self.kind(request),
            turn,
            due: listed(request.due, &self.due),
            deadline: listed(request.deadline, &self.deadlines),
        }
    }

    /// When `fire` is to look at each group that is here.
    pub(crate) fn group_timers(&self) -> impl Iterator<Item = (u64, When)> {
        self.groups.values().map(|group| (group.no, group.timer.unwrap_or(When::NEVER)))
    }

    /// What routes with a rate handed out lately.
    pub(crate) fn paces(&self) -> impl Iterator<Item = (RouteNo, &Pace)> {
        let rated = self.routes.iter().zip(0..).filter(|(route, _)| route.policy.rate.is_some());
        rated.map(|(route, no)| (RouteNo(no), &route.pace))
    }

    /// The hints that the commit will give.
    #[cfg(feature = "redis")]
    pub(crate) fn touched(&self) -> &std::collections::BTreeSet<crate::store::Topic> {
        &self.touched
    }

    /// How many tokens were issued in this epoch.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }
}

impl Rows for Loan {
    type Error = Infallible;

    fn fixtures(&self, each: &mut dyn FnMut(Fixture)) -> Result<(), Infallible> {
        self.fixtures.iter().cloned().for_each(each);
        Ok(())
    }

    fn requests(&self, _: &mut dyn FnMut(RequestRow)) -> Result<(), Infallible> {
        Ok(())
    }

    fn answers(&self, _: &mut dyn FnMut(Seq, AnswerHead)) -> Result<(), Infallible> {
        Ok(())
    }

    fn marks(&self, _: &mut dyn FnMut(Seq, Mark)) -> Result<(), Infallible> {
        Ok(())
    }

    fn parcels(&self, each: &mut dyn FnMut(LaneNo, Nonce, Parcel)) -> Result<(), Infallible> {
        self.parcels.iter().for_each(|(lane, nonce, parcel)| each(*lane, *nonce, parcel.clone()));
        Ok(())
    }

    fn groups(&self, each: &mut dyn FnMut(u64, GroupRow)) -> Result<(), Infallible> {
        self.groups.iter().for_each(|(no, row, _)| each(*no, row.clone()));
        Ok(())
    }

    fn items(&self, each: &mut dyn FnMut(u64, ItemRow)) -> Result<(), Infallible> {
        self.items.iter().for_each(|(no, row)| each(*no, *row));
        Ok(())
    }

    fn receipts(&self, _: &mut dyn FnMut(u64, ReceiptRow)) -> Result<(), Infallible> {
        Ok(())
    }

    fn first_entry(&self) -> Result<u64, Infallible> {
        Ok(self.first_entry)
    }

    fn high_water(&self) -> Result<HighWater, Infallible> {
        Ok(self.high)
    }
}
