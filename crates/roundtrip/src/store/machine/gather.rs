//! Groups: `gather`, `close`, and forgetting them.

use super::{Group, Machine};
use crate::groups::{Arrival, GroupState};
use crate::store::disk::{Disk, GroupRow, ItemRow};
use crate::store::journal::{Event, Subject};
use crate::store::op::{Close, Effect, Full, Gather, Invalid, Outcome};
use crate::words::{GATHER_MAX, GROUP_ITEMS_MAX, GroupKey, UnixMs};

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
            let Some(group) = self.groups.get(&item.group) else { continue };
            let joins = |other: &&Gather| other.group == item.group && !group.members.contains_key(&other.item);
            let joining = items.iter().filter(joins).count() as u64;
            if joining > 0 && group.order.len() as u64 + joining > GROUP_ITEMS_MAX {
                return Err(Outcome::Full(Full::Group(item.group.clone())));
            }
        }
        Ok(())
    }

    pub(super) fn gather_checked<D: Disk>(&mut self, disk: &mut D, op: Gather) -> Outcome {
        let group = self.group_mut(disk, &op.group);
        let late = group.state.arrival() == Arrival::Late;
        if group.members.contains_key(&op.item) {
            return Outcome::Duplicate(Effect::Gathered { items: group.in_time(), late });
        }
        let group_no = group.no;
        let no = self.high.item;
        self.high.item += 1;
        disk.put_item(no, &ItemRow { group: group_no, id: op.item, late }, &op.payload);
        let group = self.group_mut(disk, &op.group);
        group.push(no, op.item, late);
        Outcome::Applied(Effect::Gathered { items: group.in_time(), late })
    }

    /// The group, opened now if it is new.
    fn group_mut<D: Disk>(&mut self, disk: &mut D, key: &GroupKey) -> &mut Group {
        let high = &mut self.high;
        self.groups.entry(key.clone()).or_insert_with(|| {
            let no = high.group;
            high.group += 1;
            disk.put_group(no, &GroupRow { key: key.clone(), state: GroupState::Open, forget_at: None });
            Group::new(no, GroupState::Open, None)
        })
    }

    pub(super) fn close<D: Disk>(&mut self, disk: &mut D, op: Close) -> Result<Outcome, Outcome> {
        if let Some(Group { state: GroupState::Sealed { items, request, .. }, .. }) = self.groups.get(&op.group) {
            return Ok(Outcome::Duplicate(Effect::Closed { items: *items, request: *request }));
        }
        let requests = std::slice::from_ref(&op.request);
        self.check_requests(requests)?;
        self.check_capacity(disk, requests)?;
        let (request, now) = (op.request.id, self.now);
        let group = self.group_mut(disk, &op.group);
        let items = group.in_time();
        group.state = GroupState::Sealed { items, at: now, request };
        let (no, state) = (group.no, group.state);
        disk.put_group(no, &GroupRow { key: op.group.clone(), state, forget_at: None });
        self.note_on(Subject::Group(op.group.clone()), Event::Sealed { items, request });
        self.admit_one(disk, op.request);
        if self.find_request(&request).is_some() {
            self.groups_of.entry(request).or_default().push(op.group);
        } else {
            self.forget_group_at(disk, &op.group, now);
        }
        Ok(Outcome::Applied(Effect::Closed { items, request }))
    }

    /// The request that refers to a group has ended: the group may go after this time.
    pub(super) fn forget_group_at<D: Disk>(&mut self, disk: &mut D, key: &GroupKey, at: UnixMs) {
        if let Some(group) = self.groups.get_mut(key) {
            group.forget_at = Some(at);
            disk.put_group(group.no, &GroupRow { key: key.clone(), state: group.state, forget_at: Some(at) });
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
