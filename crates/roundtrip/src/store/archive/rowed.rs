//! Records and the rows of the machine's own disk: for the stores that load their machine
//! from rows.
//!
//! A request is several rows there: as admitted, as answered, what changed since; and its
//! parcel's. Which of these are written is the machine's economy, not content.

use std::collections::HashMap;

use super::record::{Numbers, Record, Whole};
use crate::inbox::{AnswerMark, Occurrence, Request, Standing, State};
use crate::outbox::LaneNo;
use crate::sender::Parcel;
use crate::store::disk::{AnswerHead, Disk, Mark, RequestHead, RequestRow};
use crate::words::{Height, Nonce, OccurrenceId, RequestId, Seq};

/// What other rows tell of a request: who has its id, and which slot carries its answer.
#[derive(Debug, Default)]
pub(crate) struct Surroundings {
    first: HashMap<RequestId, Seq, foldhash::fast::RandomState>,
    slots: HashMap<RequestId, (LaneNo, Nonce, u64)>,
}

impl Surroundings {
    /// Requests come in the order of their numbers.
    pub(crate) fn see_request(&mut self, id: RequestId, seq: Seq) {
        self.first.entry(id).or_insert(seq);
    }

    pub(crate) fn see_parcel(&mut self, lane: LaneNo, nonce: Nonce, parcel: &Parcel) {
        let deliveries = parcel.deliveries.iter().zip(parcel.entry..);
        self.slots.extend(deliveries.map(|(id, entry)| (*id, (lane, nonce, entry))));
    }

    /// The request that these rows stand for.
    pub(crate) fn request(&self, row: &RequestRow, answer: Option<&AnswerHead>, mark: Option<Mark>) -> Request {
        let mut request = Request::admitted(row);
        if let Some(head) = answer {
            request.take_answer(head);
        }
        if let Some(mark) = mark {
            request.take_mark(mark);
        }
        request.behind = self.first.get(&row.id).is_some_and(|first| *first < row.seq);
        if let Some((lane, nonce, entry)) = self.slots.get(&row.id).filter(|_| !request.behind) {
            request.take_slot(*lane, *nonce, *entry);
        }
        request
    }
}

/// Writes the rows of records of one kind. Receipts are all cold here.
pub(crate) fn put<D: Disk>(disk: &mut D, records: Vec<Record>, numbers: &Numbers) {
    let (mut entries, mut receipts) = (Vec::new(), Vec::new());
    for record in records {
        match record {
            // What is used up is told by the journal, also by an empty one.
            Record::Numbers(numbers) => disk.append_journal(&[], &numbers.high),
            Record::Fixture(fixture) => disk.put_fixture(&fixture),
            Record::Entry(entry) => entries.push(entry),
            Record::Parcel { lane, nonce, parcel } => disk.put_parcel(lane, nonce, &parcel),
            Record::Request(whole) => put_request(disk, &whole),
            Record::Group { no, row } => disk.put_group(no, &row),
            Record::Item { no, row, payload } => disk.put_item(no, &row, &payload),
            Record::Receipt { key, receipt } => receipts.push((key, receipt)),
        }
    }
    if !entries.is_empty() {
        disk.append_journal(&entries, &numbers.high);
    }
    if !receipts.is_empty() {
        disk.spill(receipts);
    }
}

fn put_request<D: Disk>(disk: &mut D, whole: &Whole) {
    let Whole { request, body, response } = whole;
    let row = admitted_row(request);
    disk.put_request(&row, body);
    let mut implied = Request::admitted(&row);
    if let (Some(response), Some(answer)) = (response, answer_of(request)) {
        let head = AnswerHead {
            token: answer.token,
            failure: answer.failure,
            attempts: request.attempts,
            crashes: request.crashes,
            entry: request.last_entry,
        };
        disk.put_answer(request.seq, &head, response);
        implied.take_answer(&head);
    }
    let mark = request.mark();
    if !says_the_same(&implied, &mark) {
        disk.put_mark(request.seq, &mark);
    }
}

/// Whether a mark tells no more than a request's other rows do; its slot is its parcel's to tell.
fn says_the_same(implied: &Request, mark: &Mark) -> bool {
    let mut marked = implied.clone();
    marked.take_mark(mark.clone());
    marked.rows = implied.rows;
    marked == *implied
}

fn admitted_row(request: &Request) -> RequestRow {
    let Request { seq, id, route, admitted_at, .. } = *request;
    let first = request.occurrences.as_slice().first().copied();
    let head = RequestHead {
        generation: request.generation,
        revision: request.revision,
        due: request.due,
        deadline: request.deadline,
        priority: request.priority,
        key: request.key.clone(),
        // Every sound request has one; of another, the mark tells that it has none.
        occurrence: first.unwrap_or(Occurrence {
            id: OccurrenceId(id.0),
            height: Height(0),
            origin: None,
            revision: 0,
            standing: Standing::Orphaned,
        }),
        entry: request.last_entry,
    };
    RequestRow { seq, id, route, admitted_at, head }
}

fn answer_of(request: &Request) -> Option<&AnswerMark> {
    match &request.state {
        State::Answered(answer) => Some(answer),
        State::Dead(letter) => letter.answer.as_ref(),
        State::Held | State::Queued | State::Leased(_) => None,
    }
}
