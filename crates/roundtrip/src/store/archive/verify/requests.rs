//! Live requests: who has an id, who shows an occurrence, and what belongs to each state.

use std::collections::HashMap;

use super::{Check, Fault, Faults};
use crate::inbox::{AnswerMark, Request, State};
use crate::outbox::Delivery;
use crate::store::archive::record::{Record, Whole};
use crate::words::{OCCURRENCES_MAX, OccurrenceId, RequestId, Seq, UnixMs};

/// What is kept of live requests.
#[derive(Debug, Default)]
pub(super) struct Requests {
    lines: HashMap<RequestId, Line, foldhash::fast::RandomState>,
    shown: HashMap<OccurrenceId, Seq, foldhash::fast::RandomState>,
    latest: UnixMs,
}

/// The live requests of one id, as far as they were seen; they come in the order of their numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    front: Option<Front>,
    /// The first that waits behind.
    behind: Option<Seq>,
    /// The last that was seen.
    generation: Option<u32>,
}

/// The live request that is found by its id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Front {
    pub(super) seq: Seq,
    pub(super) route: u16,
    pub(super) generation: u32,
}

impl Requests {
    pub(super) fn front(&self, id: &RequestId) -> Option<Front> {
        self.lines.get(id).and_then(|line| line.front)
    }

    pub(super) fn shows(&self, id: &OccurrenceId) -> bool {
        self.shown.contains_key(id)
    }

    /// The latest time that a request was admitted at.
    pub(super) fn latest(&self) -> UnixMs {
        self.latest
    }

    fn line_up(&mut self, faults: &mut Faults, record: &Record, request: &Request) {
        self.latest = self.latest.max(request.admitted_at);
        let line = self.lines.entry(request.id).or_default();
        let grows = line.generation.is_none_or(|last| request.generation > last || last == u32::MAX);
        faults.unless(grows, record, "has no later generation than the one before it");
        line.generation = Some(request.generation);
        if request.behind {
            faults.unless(request.state == State::Held, record, "waits behind another and is not held");
            line.behind.get_or_insert(request.seq);
            return;
        }
        match line.front {
            Some(other) => {
                let rule = format!("has the id of request number {} and does not wait behind it", other.seq.0);
                faults.unless(false, record, rule);
            }
            None => {
                let Request { seq, generation, .. } = *request;
                line.front = Some(Front { seq, route: request.route.0, generation });
            }
        }
    }

    pub(super) fn end(&self, faults: &mut Faults) {
        let astray = |line: &Line| line.behind.filter(|first| line.front.is_none_or(|front| front.seq > *first));
        let mut astray: Vec<_> = self.lines.iter().filter_map(|(id, line)| Some((astray(line)?, *id))).collect();
        astray.sort_unstable();
        for (seq, id) in astray {
            let record = format!("request {id} (number {})", seq.0);
            faults.push(Fault::new(record, "waits behind a request that is not before it"));
        }
    }
}

impl Check {
    pub(super) fn see_request(&mut self, record: &Record, whole: &Whole) {
        let request = &whole.request;
        let (number, next) = (request.seq.0, self.numbers.high.seq);
        self.faults.unless(
            number < next,
            record,
            format!("has a number that is not below {next}, the next to be given"),
        );
        let no = request.route.0;
        let known = self.route(no).is_some();
        self.faults.unless(known, record, format!("is on route number {no}, which does not exist"));
        self.check_origin(record, request.due.origin());
        self.check_origin(record, request.deadline.origin());
        self.requests.line_up(&mut self.faults, record, request);
        self.check_occurrences(record, request);
        self.check_state(record, whole);
        self.check_last_entry(record, &request.id, request.last_entry);
    }

    fn check_occurrences(&mut self, record: &Record, request: &Request) {
        let occurrences = request.occurrences.as_slice();
        let count = occurrences.len();
        self.faults.unless((1..=OCCURRENCES_MAX).contains(&count), record, format!("has {count} occurrences"));
        for occurrence in occurrences {
            self.check_origin(record, occurrence.origin);
            let id = occurrence.id;
            let seen = occurrence.revision <= request.revision;
            self.faults.unless(seen, record, format!("has occurrence {id} of content that is still to come"));
            if let Some(other) = self.requests.shown.insert(id, request.seq) {
                let rule = format!("has occurrence {id}, which request number {} shows", other.0);
                self.faults.push(Fault::new(record, rule));
            }
        }
    }

    /// What belongs to the state is there, and nothing else is.
    fn check_state(&mut self, record: &Record, whole: &Whole) {
        let request = &whole.request;
        let answer = match &request.state {
            State::Held | State::Queued => None,
            State::Leased(lease) => {
                self.check_token(record, lease.token);
                self.faults.unless(request.attempts > 0, record, "is with a worker at its attempt 0");
                let handed_out = lease.revision <= request.revision;
                self.faults.unless(handed_out, record, "is with a worker that has content still to come");
                None
            }
            State::Answered(answer) => {
                self.check_slot(record, request, answer);
                Some(&**answer)
            }
            State::Dead(letter) => letter.answer.as_ref(),
        };
        if let Some(answer) = answer {
            self.check_token(record, answer.token);
        }
        match (answer, &whole.response) {
            (Some(_), None) => self.faults.push(Fault::new(record, "is answered and has no response")),
            (None, Some(_)) => self.faults.push(Fault::new(record, "has a response and is not answered")),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }

    fn check_slot(&mut self, record: &Record, request: &Request, answer: &AnswerMark) {
        if let Delivery::Assigned { lane, nonce } = answer.delivery {
            let carried = self.lanes.take_carried(&request.id, (lane, nonce));
            let rule = format!("is on slot {} of lane number {}, where no parcel carries it", nonce.0, lane.0);
            self.faults.unless(carried, record, rule);
            self.history.see_on_slot(request.last_entry);
        }
    }
}
