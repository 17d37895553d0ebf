//! The journal: without holes, and each chain of entries about one subject.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::Faults;
use crate::store::archive::record::Record;
use crate::store::journal::{Event, KeptEntry, Subject};
use crate::words::{RequestId, RouteName, UnixMs};

/// What is kept of the journal.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The first entry that is there.
    first: u64,
    /// The hash of each entry's subject, from the first on.
    subjects: Vec<u64>,
    /// The last change of each route's policies that is there.
    defined: HashMap<RouteName, u64>,
    /// Requests whose newest entry tells that they are on a slot, until they are seen there.
    on_slot: HashMap<u64, RequestId>,
    latest: UnixMs,
}

fn hash(subject: &Subject) -> u64 {
    let mut hasher = DefaultHasher::new();
    subject.hash(&mut hasher);
    hasher.finish()
}

fn tells_of_a_slot(event: &Event) -> bool {
    matches!(
        event,
        Event::Assigned { .. }
            | Event::Attempted { .. }
            | Event::CancelWished { .. }
            | Event::Mined { .. }
            | Event::Confirmed { .. }
            | Event::Unmined
    )
}

impl History {
    pub(super) fn see(&mut self, faults: &mut Faults, record: &Record, entry: &KeptEntry) {
        if self.subjects.is_empty() {
            self.first = entry.position;
        }
        let expected = self.next();
        if entry.position != expected {
            faults.unless(false, record, format!("is where entry {expected} should be"));
            // What comes after it is judged by where it says it is.
            (self.first, self.subjects) = (entry.position, Vec::new());
        }
        let subject = hash(&entry.subject);
        let back = entry.previous < entry.position;
        faults.unless(back, record, format!("names entry {} as the one before it", entry.previous));
        if back && let Some(before) = self.subject_at(entry.previous) {
            let rule = format!("names entry {} as the one before it, which is about something else", entry.previous);
            faults.unless(before == subject, record, rule);
        }
        if let (Subject::Route(name), Event::Defined) = (&entry.subject, &entry.event) {
            self.defined.insert(name.clone(), entry.position);
        }
        self.on_slot.remove(&entry.previous);
        if let (Subject::Request(id), true) = (&entry.subject, tells_of_a_slot(&entry.event)) {
            self.on_slot.insert(entry.position, *id);
        }
        self.latest = self.latest.max(entry.at);
        self.subjects.push(subject);
    }

    fn next(&self) -> u64 {
        self.first + self.subjects.len() as u64
    }

    fn subject_at(&self, position: u64) -> Option<u64> {
        let at = position.checked_sub(self.first)?;
        self.subjects.get(usize::try_from(at).ok()?).copied()
    }

    pub(super) fn end(&self, faults: &mut Faults, next: u64) {
        let holds = self.subjects.is_empty() || self.next() == next;
        let rule = format!("ends before entry {}, and {next} is the next to be written", self.next());
        faults.unless(holds, &"the journal", rule);
        let mut left: Vec<_> = self.on_slot.iter().collect();
        left.sort_unstable();
        for (position, id) in left {
            let rule = format!("was put on a slot, as entry {position} tells, and no parcel carries it");
            faults.unless(false, &format!("request {id}"), rule);
        }
    }

    /// A request whose timeline ends here is on a slot.
    pub(super) fn see_on_slot(&mut self, position: u64) {
        self.on_slot.remove(&position);
    }

    /// Whether the entry at this place is about this request, or is no longer kept.
    pub(super) fn tells_of(&self, id: &RequestId, position: u64) -> bool {
        self.subject_at(position).is_none_or(|subject| subject == hash(&Subject::Request(*id)))
    }

    /// Whether the journal shows that a route's policies are what they were at this entry.
    pub(super) fn kept_policies(&self, route: &RouteName, since: u64) -> bool {
        let reaches_back = !self.subjects.is_empty() && self.first <= since;
        reaches_back && self.defined.get(route).is_none_or(|defined| *defined < since)
    }

    /// The latest time that an entry tells.
    pub(super) fn latest(&self) -> UnixMs {
        self.latest
    }
}
