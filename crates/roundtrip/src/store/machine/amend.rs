//! The listener's second thoughts: `amend`. Before a nonce is assigned everything can
//! still change; afterwards the outside decides.

use super::{Machine, Slot};
use crate::inbox::{End, Occurrence, Standing, State, StateKind, When};
use crate::store::disk::{Body, Disk, RequestHead, RequestRow};
use crate::store::journal::Event;
use crate::store::op::{Amend, Amendment, Effect, Invalid, Missing, Notice, Outcome, Seat, Stale};
use crate::words::{Height, Moment, OCCURRENCES_MAX, OccurrenceId, OriginName, Payload, Place, RequestId, Seq, Token};

impl Machine {
    pub(super) fn amend<D: Disk>(&mut self, disk: &mut D, op: Amend) -> Result<Outcome, Outcome> {
        match op.change {
            Amendment::Finalize { occurrence } => {
                let slot = self.amendable(op.lead, &occurrence)?;
                self.finalize(disk, slot, occurrence)
            }
            Amendment::Orphan { occurrence } => {
                let slot = self.amendable(op.lead, &occurrence)?;
                self.restand(disk, slot, occurrence, Standing::Orphaned, None)
            }
            Amendment::Include { occurrence, height } => {
                let slot = self.amendable(op.lead, &occurrence)?;
                self.restand(disk, slot, occurrence, Standing::Seen, Some(height))
            }
            Amendment::Withdraw { occurrence } => {
                let slot = self.amendable(op.lead, &occurrence)?;
                self.withdraw(disk, slot, occurrence)
            }
            Amendment::Supersede { id, occurrence, place, payload, deadline } => {
                super::admit::check_payload(&payload)?;
                deadline.as_ref().map_or(Ok(()), super::admit::check_moment)?;
                let slot = self.live_for_lead(disk, op.lead, &id)?;
                let route = self.route(self.requests.get(slot).route);
                route.policy.identity.verify(&route.name, &id, &payload).map_err(Outcome::Invalid)?;
                self.supersede(disk, slot, occurrence, place, payload, deadline.as_ref())
            }
            Amendment::Elsewhere { id } => {
                let slot = self.live_for_lead(disk, op.lead, &id)?;
                self.not_yet_assigned(slot)?;
                self.end(disk, slot, End::Elsewhere);
                Ok(Outcome::Applied(Effect::Now(StateKind::Elsewhere)))
            }
        }
    }

    fn amendable(&mut self, lead: Token, occurrence: &OccurrenceId) -> Result<Slot, Outcome> {
        let slot = self.find_occurrence(occurrence);
        let slot = slot.ok_or(Outcome::NotFound(Missing::Occurrence(*occurrence)))?;
        let shown = self.requests.get(slot).occurrences.as_slice().iter().find(|shown| shown.id == *occurrence);
        let origin = shown.and_then(|shown| shown.origin);
        let origin = origin.map(|no| self.origins[usize::from(no.0)].name.clone());
        self.check_lead(lead, slot, |feed| Some(feed) == origin.as_ref())?;
        Ok(slot)
    }

    fn live_for_lead<D: Disk>(&mut self, disk: &mut D, lead: Token, id: &RequestId) -> Result<Slot, Outcome> {
        let slot = self.live(disk, id, Stale::State)?;
        self.check_lead(lead, slot, |_| true)?;
        Ok(slot)
    }

    /// Whether this token is of the request's route, or of a feed of it that may speak here.
    fn check_lead(&mut self, lead: Token, slot: Slot, may: impl Fn(&OriginName) -> bool) -> Result<(), Outcome> {
        let route = self.route(self.requests.get(slot).route).name.clone();
        let feeds = self.origins.iter().map(|origin| &origin.name).filter(|origin| may(origin));
        let seats: Vec<Seat> = feeds.map(|origin| Seat::Feed(route.clone(), origin.clone())).collect();
        let held = |seat: &&Seat| self.seats.get(*seat).is_some_and(|tenure| tenure.token == lead);
        let taken = |seat: &&Seat| self.seats.contains_key(*seat);
        let seat = seats.iter().find(held).or_else(|| seats.iter().find(taken)).cloned();
        let whole = Seat::Route(route);
        match seat {
            // Where both are taken, the refusal names who leads the feed.
            Some(seat) if self.seats.get(&whole).is_none_or(|tenure| tenure.token != lead) => {
                self.check_seat(&seat, lead)
            }
            _ => self.check_seat(&whole, lead),
        }
    }

    /// Refuses what comes too late: bytes may be out for it.
    pub(super) fn not_yet_assigned(&self, slot: Slot) -> Result<(), Outcome> {
        match self.kind_at(slot) {
            kind @ (StateKind::Assigned | StateKind::Included | StateKind::Confirmed) => {
                Err(Outcome::Stale(Stale::State(kind)))
            }
            _ => Ok(()),
        }
    }

    fn shown(&self, slot: Slot, id: &OccurrenceId) -> Result<Occurrence, Outcome> {
        let shown = self.requests.get(slot).occurrences.as_slice().iter().find(|o| o.id == *id).copied();
        shown.ok_or(Outcome::NotFound(Missing::Occurrence(*id)))
    }

    fn finalize<D: Disk>(&mut self, disk: &mut D, slot: Slot, id: OccurrenceId) -> Result<Outcome, Outcome> {
        let shown = self.shown(slot, &id)?;
        if shown.revision != self.requests.get(slot).revision {
            return Err(Outcome::Stale(Stale::Superseded));
        }
        self.stand(disk, slot, shown, Occurrence { standing: Standing::Final, ..shown })
    }

    fn restand<D: Disk>(
        &mut self,
        disk: &mut D,
        slot: Slot,
        id: OccurrenceId,
        standing: Standing,
        height: Option<Height>,
    ) -> Result<Outcome, Outcome> {
        let shown = self.shown(slot, &id)?;
        if shown.standing == Standing::Final {
            // What was final cannot be seen or orphaned again: the lead is behind, or
            // its origin broke its word, which is for the listener to say loudly.
            return Err(Outcome::Stale(Stale::State(self.kind_at(slot))));
        }
        let height = height.filter(|_| shown.origin.is_some()).unwrap_or(shown.height);
        self.stand(disk, slot, shown, Occurrence { standing, height, ..shown })
    }

    /// Gives an occurrence its new standing, tells the worker, and lets the gates decide.
    fn stand<D: Disk>(
        &mut self,
        disk: &mut D,
        slot: Slot,
        before: Occurrence,
        after: Occurrence,
    ) -> Result<Outcome, Outcome> {
        if before == after {
            return Ok(Outcome::Duplicate(Effect::Now(self.kind_at(slot))));
        }
        let (event, notice) = match after.standing {
            Standing::Final => (Event::Finalized, Notice::Finalized),
            Standing::Seen => (Event::Included, Notice::Included),
            Standing::Orphaned => (Event::Orphaned, Notice::Orphaned),
        };
        self.note(slot, event);
        let seq = self.requests.get(slot).seq;
        self.change(slot, |request, _, _| {
            if let Some(occurrence) = request.occurrences.find(&after.id) {
                *occurrence = after;
            }
            request.rows.as_admitted = false;
            if let State::Leased(lease) = &mut request.state {
                lease.notice(notice);
            }
        });
        self.touched.insert(crate::store::Topic::Amendments);
        self.regate(disk, slot);
        Ok(Outcome::Applied(Effect::Now(self.kind_unless(slot, seq, StateKind::Settled))))
    }

    /// The state of a request that may just have ended in this way; another may have its
    /// id, or its slot, by now.
    pub(super) fn kind_unless(&self, slot: Slot, seq: Seq, ended: StateKind) -> StateKind {
        self.requests.live(slot, seq).map_or(ended, |request| self.kind(request))
    }

    fn withdraw<D: Disk>(&mut self, disk: &mut D, slot: Slot, id: OccurrenceId) -> Result<Outcome, Outcome> {
        let shown = self.shown(slot, &id)?;
        // Only what was taken away can be gone for good: a withdrawal that arrives again
        // after the event came back must not take it away.
        if shown.standing != Standing::Orphaned {
            return Err(Outcome::Stale(Stale::State(self.kind_at(slot))));
        }
        let last = self.requests.get(slot).occurrences.as_slice().len() == 1;
        if last {
            self.not_yet_assigned(slot)?;
            // Its receipt must not block the event if it comes back after all.
            self.requests.detach(slot, &id);
            self.end(disk, slot, End::Withdrawn);
            return Ok(Outcome::Applied(Effect::Now(StateKind::Withdrawn)));
        }
        self.requests.detach(slot, &id);
        self.note(slot, Event::Orphaned);
        self.change(slot, |request, _, _| request.rows.as_admitted = false);
        self.regate(disk, slot);
        Ok(Outcome::Applied(Effect::Now(self.kind_at(slot))))
    }

    fn supersede<D: Disk>(
        &mut self,
        disk: &mut D,
        slot: Slot,
        id: OccurrenceId,
        place: Option<Place>,
        payload: Payload,
        deadline: Option<&Moment>,
    ) -> Result<Outcome, Outcome> {
        self.not_yet_assigned(slot)?;
        let known = self.find_occurrence(&id);
        // An occurrence that was already answered for does not speak again.
        let spent = known.is_none() && self.note_of(disk, &id).is_some();
        let waits_behind = known.filter(|&other| {
            let other = self.requests.get(other);
            other.behind && other.id == self.requests.get(slot).id
        });
        if spent || (waits_behind.is_none() && known.is_some_and(|other| other != slot)) {
            return Err(Outcome::Stale(Stale::State(self.kind_at(slot))));
        }
        let known = known.filter(|_| waits_behind.is_none());
        let request = self.requests.get(slot);
        let current = known.is_some() && self.shown(slot, &id)?.revision == request.revision;
        let body = disk.body(request.seq);
        if current && body.payload == payload {
            return Ok(Outcome::Duplicate(Effect::Now(self.kind_at(slot))));
        }
        let count = request.occurrences.as_slice().len();
        if known.is_none() && count >= OCCURRENCES_MAX {
            let (what, max) = ("occurrences", OCCURRENCES_MAX);
            return Err(Outcome::Invalid(Invalid::TooMany { what, count: count + 1, max }));
        }
        self.check_new_origins(place.iter().map(|place| &place.origin).chain(deadline.and_then(Moment::origin)))?;
        if known.is_none() {
            place.as_ref().map_or(Ok(()), |place| self.check_place(place))?;
            let origin = place.as_ref().map(|place| self.origin_no(disk, &place.origin));
            let height = place.map_or(Height(0), |place| place.height);
            let shown = Occurrence { id, height, origin, revision: 0, standing: Standing::Seen };
            let taken = waits_behind.and_then(|other| self.take_from_behind(disk, other, &id));
            self.requests.attach(slot, Occurrence { revision: 0, ..taken.unwrap_or(shown) });
        }
        let request = self.requests.get(slot);
        if request.has_answer() {
            disk.void_answer(request.seq);
        }
        let deadline = self.when(disk, deadline).unwrap_or(When::NEVER);
        let revision = self.change(slot, |request, _, now| {
            request.supersede(&id, now);
            request.deadline = deadline;
            request.rows.as_admitted = false;
            request.revision
        });
        let request = self.requests.get(slot);
        let head = RequestHead {
            generation: request.generation,
            revision,
            due: request.due,
            deadline: request.deadline,
            priority: request.priority,
            key: request.key.clone(),
            occurrence: self.shown(slot, &id)?,
            entry: self.high.entry,
        };
        let (seq, id, route, admitted_at) = (request.seq, request.id, request.route, request.admitted_at);
        disk.replace_request(&RequestRow { seq, id, route, admitted_at, head }, &Body { payload, trace: body.trace });
        self.note(slot, Event::Superseded { revision });
        self.touched.insert(crate::store::Topic::Amendments);
        self.regate(disk, slot);
        Ok(Outcome::Applied(Effect::Now(self.kind_at(slot))))
    }
}
