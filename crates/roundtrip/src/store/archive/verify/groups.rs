//! Groups and their items.

use std::collections::{BTreeMap, HashSet};

use super::{Check, Fault};
use crate::groups::GroupState;
use crate::store::archive::record::Record;
use crate::store::disk::{GroupRow, ItemRow};
use crate::words::{GroupKey, ItemId, RequestId};

/// What is kept of groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    by_number: BTreeMap<u64, GroupSeen>,
    keys: HashSet<GroupKey>,
    items: HashSet<(u64, ItemId), foldhash::fast::RandomState>,
}

#[derive(Debug)]
struct GroupSeen {
    key: GroupKey,
    /// How many items it was sealed with, and for which request.
    sealed: Option<(u64, RequestId)>,
    /// Whether its items may go.
    forgettable: bool,
    in_time: u64,
}

impl Check {
    pub(super) fn see_group(&mut self, record: &Record, no: u64, row: &GroupRow) {
        let (faults, next) = (&mut self.faults, self.numbers.high.group);
        faults.unless(no < next, record, format!("has number {no}, which is not below {next}, the next to be given"));
        faults.unless(self.groups.keys.insert(row.key.clone()), record, "is there twice");
        let sealed = match row.state {
            GroupState::Open => None,
            GroupState::Sealed { items, request, .. } => Some((items, request)),
        };
        let forgettable = row.forget_at.is_some();
        faults.unless(sealed.is_some() || !forgettable, record, "is open and to be forgotten");
        faults.unless(sealed.is_none() || row.plan.is_none(), record, "is sealed and has a plan to seal itself");
        self.groups.by_number.insert(no, GroupSeen { key: row.key.clone(), sealed, forgettable, in_time: 0 });
    }

    pub(super) fn see_item(&mut self, record: &Record, no: u64, row: &ItemRow) {
        let (faults, next) = (&mut self.faults, self.numbers.high.item);
        faults.unless(no < next, record, format!("has a number that is not below {next}, the next to be given"));
        let Some(group) = self.groups.by_number.get_mut(&row.group) else {
            return faults.push(Fault::new(record, format!("is of group number {}, which does not exist", row.group)));
        };
        group.in_time += u64::from(!row.late);
        faults.unless(
            !row.late || group.sealed.is_some(),
            record,
            format!("came late to group {}, which is open", group.key),
        );
        faults.unless(
            self.groups.items.insert((row.group, row.id)),
            record,
            format!("is twice in group {}", group.key),
        );
    }

    pub(super) fn end_groups(&mut self) {
        for group in self.groups.by_number.values() {
            let Some((items, request)) = group.sealed else { continue };
            let (record, here) = (format!("group {}", group.key), group.in_time);
            // Items of a group that may go do so bit by bit.
            let complete = if group.forgettable { here <= items } else { here == items };
            self.faults.unless(complete, &record, format!("was sealed with {items} items and has {here}"));
            let referred = group.forgettable || self.requests.front(&request).is_some();
            self.faults.unless(referred, &record, format!("is kept for request {request}, which is not live"));
        }
    }
}
