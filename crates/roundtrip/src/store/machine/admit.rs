//! The listener's way in: `define`, `pause`, `admit`.

use std::collections::HashSet;

use super::pace::Pace;
use super::{Machine, NAMES_MAX, Slot, done};
use crate::inbox::{
    End, Identity, MOMENT_HEIGHT_MAX, Occurrence, OccurrenceNote, Occurrences, OriginMark, Request, RouteNo, RowFlags,
    Standing, State, StateKind, When,
};
use crate::listener::{Cursor, CursorStep, flawed_id};
use crate::store::disk::{Body, ColdReceipt, Disk, Fixture, RequestHead, RequestRow};
use crate::store::journal::{Event, Subject};
use crate::store::op::{Admission, Admit, Define, Effect, Full, Invalid, NewRequest, Outcome, Pause, Stale};
use crate::store::policy::OnDuplicate;
use crate::trace::TraceContext;
use crate::words::{
    ADMIT_MAX, ErrorNote, Height, Moment, OCCURRENCES_MAX, OriginName, PAYLOAD_BYTES_MAX, Payload, Place, Seq,
    TRACE_BYTES_MAX,
};

/// A queue shorter than this is worked off before what it holds has cooled down.
const SOON_MAX: usize = 4096;

impl Machine {
    pub(super) fn define<D: Disk>(&mut self, disk: &mut D, op: Define) -> Result<Outcome, Outcome> {
        op.policy.check().map_err(Outcome::Invalid)?;
        let no = match self.route_numbers.get(&op.route) {
            Some(&no) if self.route(no).policy == op.policy => return Ok(Outcome::Duplicate(Effect::Done)),
            Some(&no) => no,
            None if self.routes.len() >= NAMES_MAX => {
                return Err(Outcome::Invalid(Invalid::TooManyNames(NAMES_MAX)));
            }
            None => RouteNo(u16::try_from(self.routes.len()).unwrap_or(u16::MAX)),
        };
        self.set_route(no, &op.route, op.policy);
        self.put_route(disk, no);
        self.note_on(Subject::Route(op.route), Event::Defined);
        // Requests that are here follow the new policies: every index is built anew.
        let here: Vec<(Seq, Slot)> = self.route(no).lists.iter().flatten().map(|(seq, slot)| (*seq, *slot)).collect();
        for (seq, slot) in here {
            // One that settles now may take those with it that wait behind it.
            if self.requests.live(slot, seq).is_some() {
                self.regate(disk, slot);
            }
        }
        done()
    }

    /// Sets a route's policies; its requests are taken out of the indexes under the
    /// old policies and put back under the new.
    fn set_route(&mut self, no: RouteNo, name: &crate::words::RouteName, policy: crate::store::policy::RoutePolicy) {
        if usize::from(no.0) == self.routes.len() {
            self.route_numbers.insert(name.clone(), no);
            self.routes.push(super::Route::new(name.clone(), policy, false));
            return;
        }
        let here: Vec<Slot> = self.route(no).lists.iter().flat_map(|list| list.values().copied()).collect();
        here.iter().for_each(|&slot| self.unlist(slot));
        let route = &mut self.routes[usize::from(no.0)];
        if route.policy.rate != policy.rate {
            // What was handed out so far was not counted by the new rate.
            route.pace = Pace::used_up(policy.rate, self.now);
        }
        route.policy = policy;
        here.iter().for_each(|&slot| self.list(slot));
    }

    fn put_route<D: Disk>(&self, disk: &mut D, no: RouteNo) {
        let route = self.route(no);
        let (name, policy, paused) = (route.name.clone(), route.policy.clone(), route.paused);
        disk.put_fixture(&Fixture::Route { no, name, policy, paused });
    }

    pub(super) fn pause<D: Disk>(&mut self, disk: &mut D, op: Pause) -> Result<Outcome, Outcome> {
        let no = self.route_no(&op.route)?;
        let route = &mut self.routes[usize::from(no.0)];
        if std::mem::replace(&mut route.paused, op.paused) == op.paused {
            return Ok(Outcome::Duplicate(Effect::Done));
        }
        self.put_route(disk, no);
        self.touched.insert(crate::store::Topic::Inbox(op.route.clone()));
        self.note_on(Subject::Route(op.route), Event::Paused { paused: op.paused });
        done()
    }

    pub(super) fn admit<D: Disk>(&mut self, disk: &mut D, op: Admit) -> Result<Outcome, Outcome> {
        self.check_requests(&op.requests)?;
        let cursor = match &op.cursor {
            None => None,
            Some(to) => {
                let held = self.cursors.get(&to.listener).copied();
                match Cursor::step(held, to.expected, to.next) {
                    CursorStep::Move(cursor) => Some((cursor, true)),
                    // What the move stored is recognised below; what a fuller reading of the
                    // same blocks brings besides is as welcome as ever.
                    CursorStep::Replay(cursor) => Some((cursor, false)),
                    CursorStep::Elsewhere => return Err(Outcome::Stale(Stale::Cursor(held))),
                    CursorStep::RolledBack => return Err(self.stop_lanes()),
                }
            }
        };
        self.check_capacity(disk, &op.requests)?;
        if let (Some(to), Some((cursor, true))) = (&op.cursor, cursor) {
            self.cursors.insert(to.listener.clone(), cursor);
            disk.put_fixture(&Fixture::Cursor { listener: to.listener.clone(), cursor });
        }
        let admissions: Vec<Admission> = op.requests.into_iter().map(|r| self.admit_one(disk, r)).collect();
        let known =
            |a: &Admission| matches!(a, Admission::Known { .. } | Admission::Dropped { .. } | Admission::Ended(_));
        let fresh = !admissions.iter().all(known);
        let moved = matches!(cursor, Some((_, true)));
        let effect = Effect::Admitted(admissions, cursor.map(|(cursor, _)| cursor));
        Ok(if fresh || moved { Outcome::Applied(effect) } else { Outcome::Duplicate(effect) })
    }

    /// Refuses what can never be admitted.
    pub(super) fn check_requests(&self, requests: &[NewRequest]) -> Result<(), Outcome> {
        if requests.len() > ADMIT_MAX {
            let count = requests.len();
            return Err(Outcome::Invalid(Invalid::TooMany { what: "requests", count, max: ADMIT_MAX }));
        }
        self.check_new_origins(requests.iter().flat_map(NewRequest::origins))?;
        for request in requests {
            let route = self.route(self.route_no(&request.route)?);
            check_payload(&request.payload)?;
            check_identity(&route.policy.identity, request).map_err(Outcome::Invalid)?;
            let trace = request.trace.as_ref().map_or(0, |trace| trace.len());
            if trace > TRACE_BYTES_MAX {
                let what = "bytes of trace context";
                return Err(Outcome::Invalid(Invalid::TooMany { what, count: trace, max: TRACE_BYTES_MAX }));
            }
            if let Some(place) = &request.place {
                self.check_place(place)?;
            }
            request.moments().try_for_each(check_moment)?;
        }
        Ok(())
    }

    /// Refuses more origins than there are numbers for.
    pub(super) fn check_new_origins<'a>(&self, named: impl Iterator<Item = &'a OriginName>) -> Result<(), Outcome> {
        let new = named.filter(|origin| self.known_origin(origin).is_none()).count();
        match self.origins.len() + new > NAMES_MAX {
            true => Err(Outcome::Invalid(Invalid::TooManyNames(NAMES_MAX))),
            false => Ok(()),
        }
    }

    pub(super) fn check_place(&self, place: &Place) -> Result<(), Outcome> {
        let floor = match self.known_origin(&place.origin) {
            Some(no) => self.origins[usize::from(no.0)].floor,
            None if self.origins.len() >= NAMES_MAX => {
                return Err(Outcome::Invalid(Invalid::TooManyNames(NAMES_MAX)));
            }
            None => return Ok(()),
        };
        if place.height < floor {
            return Err(Outcome::Invalid(Invalid::TooDeep { place: place.clone(), floor }));
        }
        Ok(())
    }

    /// Refuses what the routes have no room for: all of it, so that the source holds its cursor.
    pub(super) fn check_capacity<D: Disk>(&self, disk: &mut D, requests: &[NewRequest]) -> Result<(), Outcome> {
        let tight = |no: RouteNo| {
            let route = self.route(no);
            route.live() + requests.len() as u64 > route.policy.capacity
        };
        let mut counted = HashSet::new();
        let mut new_by_route: Vec<(RouteNo, u64)> = Vec::new();
        for request in requests {
            let no = self.route_no(&request.route)?;
            // Where every repeat is a request of its own, each needs its own room.
            let own = self.route(no).policy.on_duplicate == OnDuplicate::NewGeneration;
            let place = (request.id, &request.payload, own.then_some(request.occurrence));
            if !tight(no) || !counted.insert(place) || self.takes_no_room(disk, no, request) {
                continue;
            }
            match new_by_route.iter_mut().find(|(route, _)| *route == no) {
                Some((_, count)) => *count += 1,
                None => new_by_route.push((no, 1)),
            }
        }
        for (no, count) in new_by_route {
            let route = self.route(no);
            let capacity = route.policy.capacity;
            if route.live() + count > capacity {
                return Err(Outcome::Full(Full::Route { route: route.name.clone(), capacity }));
            }
        }
        Ok(())
    }

    /// Whether a request takes up no room: it is here, was here, or its id is blocked.
    fn takes_no_room<D: Disk>(&self, disk: &mut D, no: RouteNo, request: &NewRequest) -> bool {
        let blocked = |found| matches!(found, ColdReceipt::Ended { blocks_until, .. } if blocks_until > self.now);
        if self.known_before(disk, request).is_some() {
            return true;
        }
        match self.find_request(&request.id) {
            Some(live) if self.on_duplicate(live) == OnDuplicate::NewGeneration => false,
            Some(live) => self.with_content(disk, live, request).is_some(),
            None if self.route(no).policy.on_duplicate == OnDuplicate::NewGeneration => false,
            None => self.receipt_of(disk, &request.id).is_some_and(blocked),
        }
    }

    /// What was known of a request before: its occurrence, or its id within the horizon.
    fn known_before<D: Disk>(&self, disk: &mut D, request: &NewRequest) -> Option<Admission> {
        if let Some(slot) = self.find_occurrence(&request.occurrence) {
            let live = self.requests.get(slot);
            let shown = live.occurrences.as_slice().iter().find(|o| o.id == request.occurrence);
            return Some(Admission::Known { state: self.kind(live), standing: shown.map(|o| o.standing) });
        }
        match self.note_of(disk, &request.occurrence) {
            Some(ColdReceipt::Seen { id, end, .. }) => {
                let state = self.find_request(&id).map_or(end.kind(), |slot| self.kind_at(slot));
                Some(Admission::Known { state, standing: None })
            }
            _ => None,
        }
    }

    pub(super) fn admit_one<D: Disk>(&mut self, disk: &mut D, request: NewRequest) -> Admission {
        if let Some(known) = self.known_before(disk, &request) {
            return known;
        }
        let origin: OriginMark =
            request.place.as_ref().map(|place| (self.origin_no(disk, &place.origin), place.height));
        if let Some(slot) = self.find_request(&request.id) {
            return self.repeat(disk, slot, &request, origin);
        }
        let before = self.receipt_of(disk, &request.id);
        if let Some(ColdReceipt::Ended { end, blocks_until, kept_until, .. }) = before
            && blocks_until > self.now
            && self.route(self.route_numbers[&request.route]).policy.on_duplicate != OnDuplicate::NewGeneration
        {
            let (occurrence, id) = (request.occurrence, request.id);
            let kept_until = kept_until.max(blocks_until);
            self.remember_occurrence(disk, OccurrenceNote { occurrence, id, end, origin, kept_until });
            return Admission::Ended(end);
        }
        let generation = match before {
            Some(ColdReceipt::Ended { generation, .. }) => generation.saturating_add(1),
            _ => 0,
        };
        self.insert(disk, request, origin, generation);
        Admission::New { generation }
    }

    pub(super) fn insert<D: Disk>(&mut self, disk: &mut D, new: NewRequest, origin: OriginMark, generation: u32) {
        let seq = Seq(self.high.seq);
        self.high.seq += 1;
        let route = self.route_numbers[&new.route];
        let occurrence = occurrence(&new, origin, 0);
        let head = RequestHead {
            generation,
            revision: 0,
            due: self.when(disk, new.due.as_ref()).unwrap_or(When::ALWAYS),
            deadline: self.when(disk, new.deadline.as_ref()).unwrap_or(When::NEVER),
            priority: new.priority,
            key: new.key.map(Box::new),
            occurrence,
            entry: self.high.entry,
        };
        let row = RequestRow { seq, id: new.id, route, admitted_at: self.now, head };
        let trace = new.trace.as_deref().and_then(TraceContext::parse).map(|context| context.trace);
        let body = Body { payload: new.payload, trace: new.trace };
        let flaw = new.flaw.map(|flaw| ErrorNote::new(flaw.class, &flaw.text));
        disk.put_request(&row, &body);
        if self.route(route).lists[StateKind::Queued as usize].len() < SOON_MAX {
            disk.expect_body(seq, body);
        }
        let mut request = Request::admitted(&row);
        // The entry that the row names is only noted below.
        request.last_entry = 0;
        request.behind = self.find_request(&row.id).is_some();
        request.pass_gates(&self.route(route).policy, self.clocks());
        let slot = self.requests.insert(request);
        self.list(slot);
        self.note(slot, Event::Admitted { generation, trace });
        if let Some(flaw) = flaw {
            self.die(slot, flaw);
        }
    }

    /// Gives a request another occurrence of its content.
    pub(super) fn join<D: Disk>(&mut self, disk: &mut D, slot: Slot, new: &NewRequest, origin: OriginMark) {
        let revision = self.requests.get(slot).revision;
        self.unlist(slot);
        self.requests.attach(slot, occurrence(new, origin, revision));
        self.list(slot);
        self.note(slot, Event::Attached);
        self.change_and_regate(disk, slot, |request, _| request.rows.as_admitted = false);
    }

    /// A live id comes again; the live request's route says what becomes of that.
    fn repeat<D: Disk>(&mut self, disk: &mut D, live: Slot, new: &NewRequest, origin: OriginMark) -> Admission {
        let on_duplicate = self.on_duplicate(live);
        if on_duplicate == OnDuplicate::NewGeneration {
            return Admission::Behind { generation: self.wait_behind(disk, live, new, origin) };
        }
        let Some(same) = self.with_content(disk, live, new) else {
            self.wait_behind(disk, live, new, origin);
            return Admission::Attached { state: self.kind_at(live), same_content: false };
        };
        let request = self.requests.get(same);
        // What is not final may be withdrawn, and then the repeat is all that is left.
        if on_duplicate == OnDuplicate::Drop && request.standing() == Standing::Final {
            self.remember_repeat(disk, same, new, origin);
            return Admission::Dropped { state: self.kind_at(same) };
        }
        let is_dead = matches!(request.state, State::Dead(_));
        let seq = self.requests.get(live).seq;
        if request.occurrences.as_slice().len() >= OCCURRENCES_MAX {
            // Too many to keep apart; remembered, so that it is known when it comes again.
            self.remember_repeat(disk, same, new, origin);
        } else {
            self.join(disk, same, new, origin);
        }
        let rearmed = is_dead && on_duplicate == OnDuplicate::Rearm;
        if rearmed {
            self.rearm(disk, live);
        }
        // A route without a destination may have settled it just now.
        let state = self.kind_unless(live, seq, StateKind::Settled);
        match on_duplicate {
            _ if rearmed => Admission::Rearmed { state },
            OnDuplicate::Vote { needed } if same == live => {
                Admission::Voted { state, votes: self.votes(live, seq).unwrap_or(needed), needed }
            }
            _ => Admission::Attached { state, same_content: same == live },
        }
    }

    fn on_duplicate(&self, slot: Slot) -> OnDuplicate {
        self.route(self.requests.get(slot).route).policy.on_duplicate
    }

    /// How many votes stand for a request, unless it has ended.
    fn votes(&self, slot: Slot, seq: Seq) -> Option<u32> {
        let request = self.requests.live(slot, seq)?;
        u32::try_from(request.votes(self.route(request.route).policy.work_on)).ok()
    }

    /// Remembers an occurrence that the live request does not keep.
    fn remember_repeat<D: Disk>(&mut self, disk: &mut D, slot: Slot, new: &NewRequest, origin: OriginMark) {
        let (occurrence, id, end) = (new.occurrence, new.id, End::Settled);
        let kept_until = self.now.plus(self.route(self.requests.get(slot).route).policy.retention.of(end));
        self.remember_occurrence(disk, OccurrenceNote { occurrence, id, end, origin, kept_until });
    }
}

/// Refuses an id that is not what the route makes of the content; of what is flawed, one
/// that is not its own: it must never meet a request that is sound.
fn check_identity(identity: &Identity, request: &NewRequest) -> Result<(), Invalid> {
    if request.flaw.is_none() {
        return identity.verify(&request.route, &request.id, &request.payload);
    }
    let (given, hash) = (request.id, flawed_id(&request.route, &request.occurrence));
    if given == hash { Ok(()) } else { Err(Invalid::IdIsNotTheHash { given, hash }) }
}

pub(super) fn check_payload(payload: &Payload) -> Result<(), Outcome> {
    let bytes = payload.bytes.len();
    if bytes > PAYLOAD_BYTES_MAX {
        return Err(Outcome::Invalid(Invalid::PayloadTooLarge { bytes, max: PAYLOAD_BYTES_MAX }));
    }
    Ok(())
}

/// Refuses a height that is too high to be kept.
pub(super) fn check_moment(moment: &Moment) -> Result<(), Outcome> {
    match moment {
        Moment::Height(place) if place.height > MOMENT_HEIGHT_MAX => {
            Err(Outcome::Invalid(Invalid::HeightTooHigh(place.clone())))
        }
        Moment::Height(_) | Moment::At(_) | Moment::BlockTime { .. } => Ok(()),
    }
}

impl NewRequest {
    fn moments(&self) -> impl Iterator<Item = &Moment> {
        self.due.iter().chain(&self.deadline)
    }

    /// Every origin that it names: where it was seen, and whose clock it waits for.
    pub(super) fn origins(&self) -> impl Iterator<Item = &OriginName> {
        let awaited = self.moments().filter_map(Moment::origin);
        self.place.iter().map(|place| &place.origin).chain(awaited)
    }
}

pub(super) fn occurrence(new: &NewRequest, origin: OriginMark, revision: u16) -> Occurrence {
    Occurrence {
        id: new.occurrence,
        height: origin.map_or(Height(0), |(_, height)| height),
        origin: origin.map(|(no, _)| no),
        revision,
        standing: new.standing,
    }
}

impl Request {
    /// The request that an admission row stands for.
    pub(crate) fn admitted(row: &RequestRow) -> Request {
        Request {
            seq: row.seq,
            id: row.id,
            occurrences: Occurrences::One(row.head.occurrence),
            admitted_at: row.admitted_at,
            due: row.head.due,
            deadline: row.head.deadline,
            state: State::Held,
            error: None,
            key: row.head.key.clone(),
            last_entry: row.head.entry,
            generation: row.head.generation,
            revision: row.head.revision,
            attempts: 0,
            crashes: 0,
            misses: 0,
            route: row.route,
            priority: row.head.priority,
            behind: false,
            rows: RowFlags { has_mark: false, dirty: false, as_admitted: true },
        }
    }
}
