//! The reads. None of them changes anything, and none looks at more than a bounded
//! number of records.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Machine, Slot};
use crate::inbox::{Request, State, StateKind, When};
use crate::listener::Origin;
use crate::outbox::Delivery;
use crate::sender::{Lane, LaneStatus, Parcel, Stage};
use crate::store::disk::{ColdReceipt, Disk};
use crate::store::journal::{Entry, KeptEntry};
use crate::store::query::{
    Bodies, Count, Found, GroupView, ItemView, JournalPage, LaneOutline, LaneView, ListFilter, OccurrenceView,
    OriginView, Page, ParcelView, Phase, Query, ReadyDelivery, ReceiptView, Reply, RequestView, RouteView, SeatView,
};
use crate::words::{Destination, GroupKey, Nonce, PAGE_MAX, Place, REPLY_BYTES_MAX, RequestId, Seq, UnixMs};

/// How many records one page of a list looks at.
pub(crate) const LOOK_MAX: usize = 20_000;
/// How many entries one timeline shows.
pub(crate) const TIMELINE_MAX: usize = 1000;

impl Machine {
    /// Answers a read at this time.
    pub(crate) fn read<D: Disk>(&self, disk: &mut D, query: Query) -> Reply {
        match query {
            Query::Get(id) => Reply::Get(self.get(disk, &id)),
            Query::List(filter) => Reply::List(self.page(&filter)),
            Query::Counts => Reply::Counts(self.counts()),
            Query::Timeline(id) => Reply::Timeline(self.timeline(disk, &id)),
            Query::Journal { from, limit } => Reply::Journal(self.journal_page(disk, from, limit)),
            Query::Ready { destination, after, limit } => Reply::Ready(self.ready(disk, &destination, after, limit)),
            Query::Routes => Reply::Routes(self.routes.iter().map(super::Route::view).collect()),
            Query::Lanes => Reply::Lanes(self.lanes.iter().map(|lane| lane_view(lane, self.now, false)).collect()),
            Query::LaneOutlines => {
                Reply::LaneOutlines(self.lanes.iter().map(|lane| lane_outline(lane, self.now)).collect())
            }
            Query::Lane(name) => {
                let no = self.lane_numbers.get(&name);
                Reply::Lane(no.map(|no| lane_view(&self.lanes[usize::from(no.0)], self.now, true)))
            }
            Query::Cursor(listener) => Reply::Cursor(self.cursors.get(&listener).copied()),
            Query::Cursors => {
                Reply::Cursors(self.cursors.iter().map(|(listener, cursor)| (listener.clone(), *cursor)).collect())
            }
            Query::Origins => Reply::Origins(self.origins.iter().map(|origin| origin_view(origin, self.now)).collect()),
            Query::Seat(seat) => Reply::Seat(self.seats.get(&seat).map(|tenure| SeatView {
                holder: tenure.holder.clone(),
                token: tenure.token,
                until: tenure.until,
            })),
            Query::Group { group, skip, limit } => Reply::Group(self.group(disk, &group, skip, limit)),
        }
    }

    fn get<D: Disk>(&self, disk: &mut D, id: &RequestId) -> Option<Found> {
        if let Some(slot) = self.find_request(id) {
            let request = self.requests.get(slot);
            let body = disk.body(request.seq);
            let response = request.has_answer().then(|| disk.response(request.seq));
            let bodies = Bodies { payload: body.payload, response, trace: body.trace };
            return Some(Found::Live(Box::new(self.view(request)), bodies));
        }
        match self.receipt_of(disk, id)? {
            ColdReceipt::Ended { generation, end, ended_at, .. } => {
                Some(Found::Ended(ReceiptView { id: *id, generation, end, ended_at }))
            }
            ColdReceipt::Seen { .. } => None,
        }
    }

    fn view(&self, request: &Request) -> RequestView {
        let place = |o: &crate::inbox::Occurrence| {
            let origin = self.origins[usize::from(o.origin?.0)].name.clone();
            Some(Place { origin, height: o.height })
        };
        let occurrences = request.occurrences.as_slice().iter().map(|o| OccurrenceView {
            id: o.id,
            place: place(o),
            revision: o.revision,
            standing: o.standing,
        });
        RequestView {
            seq: request.seq,
            id: request.id,
            route: self.route(request.route).name.clone(),
            generation: request.generation,
            revision: request.revision,
            phase: self.phase(request),
            standing: request.standing(),
            occurrences: occurrences.collect(),
            admitted_at: request.admitted_at,
            due: request.due.moment_unless(When::ALWAYS, &self.origins),
            deadline: request.deadline.moment_unless(When::NEVER, &self.origins),
            priority: request.priority,
            key: request.key.as_deref().cloned(),
            behind: request.behind,
            attempts: request.attempts,
            crashes: request.crashes,
            misses: request.misses,
            error: request.error.as_deref().cloned(),
            undelivered: request.answer().and_then(|answer| answer.undelivered.as_deref().copied()),
        }
    }

    fn phase(&self, request: &Request) -> Phase {
        match &request.state {
            State::Held => Phase::Held,
            State::Queued => Phase::Queued,
            State::Leased(lease) => {
                Phase::Leased { worker: lease.worker.clone(), token: lease.token, until: lease.until }
            }
            State::Answered(answer) => match answer.delivery {
                Delivery::Waiting => Phase::Waiting,
                Delivery::Ready => Phase::Ready,
                Delivery::Assigned { lane, nonce } => {
                    let name = self.lanes[usize::from(lane.0)].name.clone();
                    Phase::Assigned { lane: name, nonce, stage: self.stage(lane, nonce) }
                }
            },
            State::Dead(letter) => Phase::Dead { at: letter.at, answered: letter.answer.is_some() },
        }
    }

    /// Merges the lists that the filter asks for, in the order of admission.
    fn page(&self, filter: &ListFilter) -> Page {
        let limit = filter.limit.clamp(1, PAGE_MAX);
        let states: &[StateKind] = if filter.states.is_empty() { &StateKind::LIVE } else { &filter.states };
        let after = filter.after.map_or(Seq(0), |seq| Seq(seq.0.saturating_add(1)));
        let routes = self.routes.iter().filter(|route| filter.route.as_ref().is_none_or(|name| *name == route.name));
        let live = states.iter().filter(|state| StateKind::LIVE.contains(state));
        let mut lists: Vec<_> =
            routes.flat_map(|route| live.clone().map(|state| route.lists[*state as usize].range(after..))).collect();
        let mut heads: BinaryHeap<_> = lists.iter_mut().enumerate().filter_map(|(at, list)| head(at, list)).collect();
        let (mut requests, mut looked) = (Vec::new(), 0);
        while let Some(Reverse((seq, slot, at))) = heads.pop() {
            looked += 1;
            let request = self.requests.get(slot);
            if matches(filter, request) {
                requests.push(self.view(request));
            }
            if requests.len() == limit || looked == LOOK_MAX {
                return Page { requests, next: Some(seq) };
            }
            heads.extend(head(at, &mut lists[at]));
        }
        Page { requests, next: None }
    }

    fn counts(&self) -> Vec<Count> {
        let count = |route: &super::Route, state: StateKind| {
            let list = &route.lists[state as usize];
            let oldest = self.requests.get(*list.values().next()?);
            let (requests, oldest_at) = (list.len() as u64, oldest.admitted_at);
            Some(Count { route: route.name.clone(), state, requests, oldest_at })
        };
        self.routes
            .iter()
            .flat_map(|route| StateKind::LIVE.iter().filter_map(move |state| count(route, *state)))
            .collect()
    }

    /// Follows the chain of a request's entries back as far as the journal reaches.
    fn timeline<D: Disk>(&self, disk: &mut D, id: &RequestId) -> Vec<Entry> {
        let last = match self.find_request(id) {
            Some(slot) => self.requests.get(slot).last_entry,
            None => match self.receipt_of(disk, id) {
                Some(ColdReceipt::Ended { last_entry, .. }) => last_entry,
                _ => 0,
            },
        };
        let (mut entries, mut at) = (Vec::new(), last);
        while at >= self.journal_floor() && entries.len() < TIMELINE_MAX {
            let Some(entry) = self.entry(disk, at) else { break };
            at = entry.previous;
            entries.push(self.told(entry));
        }
        entries.reverse();
        entries
    }

    /// One entry, from the disk or from what the next commit will write.
    fn entry<D: Disk>(&self, disk: &mut D, position: u64) -> Option<KeptEntry> {
        match position.checked_sub(self.high_flushed.entry) {
            Some(unwritten) => self.entries.get(usize::try_from(unwritten).ok()?).cloned(),
            None => disk.journal(position, 1).pop(),
        }
    }

    fn told(&self, entry: KeptEntry) -> Entry {
        entry.named(|no| self.routes.get(usize::from(no.0)).map(|route| route.name.clone()))
    }

    fn journal_page<D: Disk>(&self, disk: &mut D, from: u64, limit: usize) -> JournalPage {
        let (floor, head) = (self.journal_floor(), self.high_flushed.entry.max(1));
        let start = from.max(floor);
        let entries = if start < head { disk.journal(start, limit.clamp(1, PAGE_MAX)) } else { Vec::new() };
        let entries = entries.into_iter().map(|entry| self.told(entry)).collect();
        // A reader ahead of the head read from a store that has since been rolled back.
        JournalPage { entries, head, reset: from.max(1) < floor || from > head }
    }

    fn ready<D: Disk>(
        &self,
        disk: &mut D,
        destination: &Destination,
        after: Option<Seq>,
        limit: usize,
    ) -> Vec<ReadyDelivery> {
        let Some(ready) = self.outbox.get(destination) else { return Vec::new() };
        let from = after.map_or(Seq(0), |seq| Seq(seq.0.saturating_add(1)));
        let delivery = |(&seq, &slot): (&Seq, &Slot)| {
            let request = self.requests.get(slot);
            let State::Answered(answer) = &request.state else { return None };
            let (route, response) = (self.route(request.route).name.clone(), disk.response(seq));
            Some(ReadyDelivery {
                id: request.id,
                seq,
                route,
                generation: request.generation,
                revision: request.revision,
                answer: answer.token,
                response,
                failure: answer.failure,
                failures: answer.failures(),
                request: None,
                trace: None,
            })
        };
        let deliveries = ready.range(from..).take(limit.min(PAGE_MAX)).filter_map(delivery);
        within_bytes(deliveries, |delivery| delivery.response.bytes.len())
    }

    fn group<D: Disk>(&self, disk: &mut D, key: &GroupKey, skip: u64, limit: usize) -> Option<GroupView> {
        let group = self.groups.get(key)?;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let page = group.order.iter().skip(skip).take(limit.min(PAGE_MAX));
        let page = page.map(|(no, id, late)| ItemView { id: *id, late: *late, payload: disk.item_payload(*no) });
        let (items, late) = (group.in_time(), group.late);
        let page = within_bytes(page, |item| item.payload.bytes.len());
        let seal_at_items = group.plan.map(|plan| plan.items).filter(|&items| items != u64::MAX);
        let seal_at = group.plan.and_then(|plan| plan.at.moment_unless(When::NEVER, &self.origins));
        Some(GroupView { key: key.clone(), state: group.state, items, late, seal_at_items, seal_at, page })
    }
}

/// As many as fit in one reply, and at least one.
fn within_bytes<T>(items: impl Iterator<Item = T>, weigh: impl Fn(&T) -> usize) -> Vec<T> {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    for item in items {
        bytes += weigh(&item);
        if bytes > REPLY_BYTES_MAX && !taken.is_empty() {
            break;
        }
        taken.push(item);
    }
    taken
}

type ListRange<'a> = std::collections::btree_map::Range<'a, Seq, Slot>;

fn head(at: usize, list: &mut ListRange<'_>) -> Option<Reverse<(Seq, Slot, usize)>> {
    list.next().map(|(&seq, &slot)| Reverse((seq, slot, at)))
}

fn matches(filter: &ListFilter, request: &Request) -> bool {
    let error = request.error.as_ref();
    filter.from.is_none_or(|from| request.admitted_at >= from)
        && filter.to.is_none_or(|to| request.admitted_at < to)
        && request.id.0.starts_with(&filter.id_prefix)
        && filter.error_text.as_ref().is_none_or(|text| error.is_some_and(|error| says(&error.text, text)))
}

/// Whether a text has these words, in whatever case.
fn says(text: &str, words: &str) -> bool {
    text.to_lowercase().contains(&words.to_lowercase())
}

fn origin_view(origin: &Origin, now: UnixMs) -> OriginView {
    let Origin { name, floor, head } = origin.clone();
    OriginView { name, floor, head, behind_ms: head.map(|head| head.behind_ms(now)) }
}

fn lane_outline(lane: &Lane, now: UnixMs) -> LaneOutline {
    let status = if lane.quarantine_is_over(now) { LaneStatus::Active } else { lane.status.clone() };
    LaneOutline { name: lane.name.clone(), destination: lane.destination.clone(), status }
}

fn lane_view(lane: &Lane, now: UnixMs, with_parcels: bool) -> LaneView {
    let parcels = lane.parcels.iter().filter(|_| with_parcels);
    let LaneOutline { name, destination, status } = lane_outline(lane, now);
    LaneView {
        name,
        destination,
        window: lane.window,
        next: lane.next,
        settled: lane.settled,
        status,
        under_way: lane.under_way(),
        parcels: parcels.map(|(nonce, parcel)| parcel_view(*nonce, parcel)).collect(),
    }
}

fn parcel_view(nonce: Nonce, parcel: &Parcel) -> ParcelView {
    let block = match parcel.stage {
        Stage::Assigned => None,
        Stage::Included(block) | Stage::Confirmed(block) => Some(block),
    };
    ParcelView {
        nonce,
        deliveries: parcel.deliveries.clone(),
        attempts: parcel.attempts.clone(),
        stage: parcel.stage.kind(),
        block,
        cancel: parcel.cancel.clone(),
        route: None,
    }
}

impl super::Route {
    fn view(&self) -> RouteView {
        RouteView { name: self.name.clone(), policy: self.policy.clone(), paused: self.paused }
    }
}
