//! Groups: `gather`, `close`, `fire`, and forgetting them.
//!
//! A group with a plan seals itself: by the item that makes it full, in that very
//! commit, or by `fire` when its moment has come. Whichever is first seals it, once. A
//! route without room leaves it open; it is tried again by the next item and the next
//! `fire`, so a seal may come late and is never lost.

use super::{Group, Machine, Planned};
use crate::groups::{Arrival, GroupState};
use crate::inbox::When;
use crate::store::disk::{Disk, GroupRow, ItemRow};
use crate::store::journal::{Event, Subject};
use crate::store::op::{Close, Effect, Full, Gather, GroupPlan, Invalid, NewRequest, Outcome};
use crate::words::{BATCH_BYTES_MAX, GATHER_MAX, GROUP_ITEMS_MAX, GroupKey, UPKEEP_MAX, UnixMs};

impl Machine {
    pub(super) fn gather<D: Disk>(&mut self, disk: &mut D, op: Gather) -> Result<Outcome, Outcome> {
        self.check_gather(std::slice::from_ref(&op))?;
        Ok(self.gather_checked(disk, op))
    }

    /// Refuses items that can never join, or that a group has no room for.
    pub(super) fn check_gather(&self, items: &[Gather]) -> Result<(), Outcome> {
        if items.len() > GATHER_MAX {
            let (what, count) = ("items", items.len());
            return Err(Outcome::Invalid(Invalid::TooMany { what, count, max: GATHER_MAX }));
        }
        for item in items {
            super::admit::check_payload(&item.payload)?;
            let Some(group) = self.groups.get(&item.group) else {
                item.plan.as_ref().map_or(Ok(()), |plan| self.check_plan(plan))?;
                continue;
            };
            let joins = |other: &&Gather| other.group == item.group && !group.members.contains_key(&other.item);
            let joining = items.iter().filter(joins).count() as u64;
            if joining > 0 && group.order.len() as u64 + joining > GROUP_ITEMS_MAX {
                return Err(Outcome::Full(Full::Group(item.group.clone())));
            }
        }
        Ok(())
    }

    /// Refuses a plan whose request could never be admitted.
    fn check_plan(&self, plan: &GroupPlan) -> Result<(), Outcome> {
        if let Some(items) = plan.seal_at_items.filter(|&items| items > GROUP_ITEMS_MAX) {
            let (count, max) = (usize::try_from(items).unwrap_or(usize::MAX), usize::try_from(GROUP_ITEMS_MAX));
            let (what, max) = ("items to seal at", max.unwrap_or(usize::MAX));
            return Err(Outcome::Invalid(Invalid::TooMany { what, count, max }));
        }
        if let Some(moment) = &plan.seal_at {
            super::admit::check_moment(moment)?;
        }
        self.check_requests(std::slice::from_ref(&plan.request))
    }

    pub(super) fn gather_checked<D: Disk>(&mut self, disk: &mut D, op: Gather) -> Outcome {
        if !self.groups.contains_key(&op.group) {
            self.open_group(disk, &op.group, op.plan);
        }
        let no = self.high.item;
        let group = self.groups.get_mut(&op.group).expect("an opened group is there");
        if let Some(&late) = group.members.get(&op.item) {
            return Outcome::Duplicate(Effect::Gathered { items: group.in_time(), late });
        }
        let late = group.state.arrival() == Arrival::Late;
        self.high.item += 1;
        disk.put_item(no, &ItemRow { group: group.no, id: op.item, late }, &op.payload);
        group.push(no, op.item, late);
        let (items, full) = (group.in_time(), group.is_full());
        if full && !late {
            self.seal_as_planned(disk, &op.group);
        }
        Outcome::Applied(Effect::Gathered { items, late })
    }

    fn open_group<D: Disk>(&mut self, disk: &mut D, key: &GroupKey, plan: Option<Box<GroupPlan>>) {
        let no = self.high.group;
        self.high.group += 1;
        let mut group = Group::new(no, GroupState::Open, None);
        if let Some(plan) = &plan {
            // The origins that it names have numbers from now on, whenever it is sealed.
            for origin in plan.request.origins() {
                self.origin_no(disk, origin);
            }
            let at = self.when(disk, plan.seal_at.as_ref()).unwrap_or(When::NEVER);
            group.plan = Some(Planned { items: plan.seal_at_items.unwrap_or(u64::MAX), at });
        }
        disk.put_group(no, &GroupRow { key: key.clone(), state: GroupState::Open, forget_at: None, plan });
        self.groups.insert(key.clone(), group);
        self.set_timer(key);
    }

    /// Lists a group under the moment at which `fire` is to seal it.
    pub(super) fn set_timer(&mut self, key: &GroupKey) {
        let Some(group) = self.groups.get_mut(key) else { return };
        let at = group.seal_at();
        if at != When::NEVER {
            group.timer = Some(at);
            self.timers.insert((at, group.no), key.clone());
        }
    }

    fn unset_timer(&mut self, key: &GroupKey) {
        let Some(group) = self.groups.get_mut(key) else { return };
        if let Some(at) = group.timer.take() {
            self.timers.remove(&(at, group.no));
        }
    }

    pub(super) fn close<D: Disk>(&mut self, disk: &mut D, op: Close) -> Result<Outcome, Outcome> {
        if let Some(Group { state: GroupState::Sealed { items, request, .. }, .. }) = self.groups.get(&op.group) {
            return Ok(Outcome::Duplicate(Effect::Closed { items: *items, request: *request }));
        }
        let requests = std::slice::from_ref(&op.request);
        self.check_requests(requests)?;
        self.check_capacity(disk, requests)?;
        if !self.groups.contains_key(&op.group) {
            self.open_group(disk, &op.group, None);
        }
        let request = op.request.id;
        let items = self.seal(disk, &op.group, op.request);
        Ok(Outcome::Applied(Effect::Closed { items, request }))
    }

    /// Seals groups whose moment has come, and those that wait for room in their route.
    pub(super) fn fire<D: Disk>(&mut self, disk: &mut D, limit: usize) -> Result<Outcome, Outcome> {
        let limit = limit.min(UPKEEP_MAX);
        let (mut fired, mut looked, mut bytes) = (0, 0, 0);
        while fired < limit && looked < UPKEEP_MAX && bytes < BATCH_BYTES_MAX {
            let at_or_after = |from| {
                let (&(at, _), key) = self.timers.range((from, 0)..).next()?;
                Some((at, key.clone()))
            };
            let Some(key) = self.clocks().first_reached(at_or_after) else { break };
            looked += 1;
            let sealed = self.seal_as_planned(disk, &key);
            fired += usize::from(sealed.is_some());
            bytes += sealed.unwrap_or(0);
        }
        Ok(Outcome::Applied(Effect::Count(fired)))
    }

    /// Seals a group with the request that it was opened with, unless the route is full:
    /// then it steps behind all others whose moment has come. Answers the request's bytes.
    fn seal_as_planned<D: Disk>(&mut self, disk: &mut D, key: &GroupKey) -> Option<usize> {
        self.unset_timer(key);
        let no = self.groups.get(key)?.no;
        let plan = disk.group_plan(no)?;
        if self.check_capacity(disk, std::slice::from_ref(&plan.request)).is_ok() {
            let bytes = plan.request.payload.bytes.len();
            self.seal(disk, key, plan.request);
            return Some(bytes);
        }
        let again = When::at(self.now.plus(1));
        self.groups.get_mut(key)?.timer = Some(again);
        self.timers.insert((again, no), key.clone());
        None
    }

    /// Seals an open group and admits the request that refers to it; answers how many items it has.
    fn seal<D: Disk>(&mut self, disk: &mut D, key: &GroupKey, new: NewRequest) -> u64 {
        self.unset_timer(key);
        let (request, now) = (new.id, self.now);
        let Some(group) = self.groups.get_mut(key) else { return 0 };
        let items = group.in_time();
        group.state = GroupState::Sealed { items, at: now, request };
        group.plan = None;
        let row = GroupRow { key: key.clone(), state: group.state, forget_at: None, plan: None };
        disk.put_group(group.no, &row);
        self.note_on(Subject::Group(key.clone()), Event::Sealed { items, request });
        self.admit_one(disk, new);
        if self.find_request(&request).is_some() {
            self.groups_of.entry(request).or_default().push(key.clone());
        } else {
            self.forget_group_at(disk, key, now);
        }
        items
    }

    /// The request that refers to a group has ended: the group may go after this time.
    pub(super) fn forget_group_at<D: Disk>(&mut self, disk: &mut D, key: &GroupKey, at: UnixMs) {
        if let Some(group) = self.groups.get_mut(key) {
            group.forget_at = Some(at);
            let row = GroupRow { key: key.clone(), state: group.state, forget_at: Some(at), plan: None };
            disk.put_group(group.no, &row);
            self.groups_to_forget.insert((at, key.clone()));
        }
    }

    /// Forgets up to `limit` items of groups whose time is over, and the groups when empty.
    pub(super) fn forget_groups<D: Disk>(&mut self, disk: &mut D, limit: usize) -> usize {
        let mut forgotten = 0;
        while forgotten < limit {
            let Some((at, key)) = self.groups_to_forget.first().cloned() else { break };
            if at > self.now {
                break;
            }
            let Some(group) = self.groups.get_mut(&key) else {
                self.groups_to_forget.remove(&(at, key));
                continue;
            };
            while forgotten < limit
                && let Some((no, id, late)) = group.order.pop()
            {
                group.members.remove(&id);
                group.late -= u64::from(late);
                disk.delete_item(no);
                forgotten += 1;
            }
            if forgotten < limit && group.order.is_empty() {
                disk.delete_group(group.no);
                self.groups.remove(&key);
                self.groups_to_forget.remove(&(at, key));
                forgotten += 1;
            }
        }
        forgotten
    }
}
