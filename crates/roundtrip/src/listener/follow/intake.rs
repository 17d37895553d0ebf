//! Storing what blocks show: every request of a range before the cursor passes it. One that
//! can never be stored as it is keeps no other out: it is stored as a dead letter.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::source::{Answered, SourceBlock};
use super::window::Link;
use super::{Follower, Halt, Known, Pace, Stall, broken, decide, halted, rolled_back};
use crate::inbox::Standing;
use crate::listener::{Cursor, flawed};
use crate::persist;
use crate::store::op::{
    Admission, Admit, Amend, ChainTick, CursorMove, Effect, Invalid, NewRequest, Op, Outcome, Stale,
};
use crate::words::{ADMIT_MAX, BATCH_BYTES_MAX, Height, PAYLOAD_BYTES_MAX, Payload, Place, Position, UnixMs};

/// Most bytes of payload in one admission.
const ADMIT_BYTES_MAX: usize = BATCH_BYTES_MAX / 2;

/// Most requests that end in one commit because they were answered elsewhere.
const ENDS_MAX: usize = 1024;

/// What became of blocks that were to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    /// They are stored.
    All,
    /// A route has no room; those stored will be recognised.
    Full,
    /// The cursor was elsewhere.
    Moved,
}

impl Follower {
    /// Stores what blocks show and moves the cursor; then they count as read.
    pub(super) async fn store_blocks(&self, known: &mut Known, mut blocks: Vec<SourceBlock>) -> Result<Pace, Halt> {
        blocks.iter_mut().for_each(cut_to_size);
        let links: Vec<Link> = blocks.iter().map(Link::of).collect();
        let read_time = blocks.last().map(|block| block.time);
        let is_final = |link: &&Link| known.window.is_final(link.at.height);
        let mark = links.iter().rev().find(is_final).map(|link| link.at);
        let next = Self::cursor_next(known, mark);
        let mut answered = Self::answered_up_to(known, next);
        let passed = links.iter().filter(|link| next.is_some_and(|next| link.at.height <= next.height));
        answered.extend(passed.flat_map(|link| link.answered.iter().cloned()));
        let shows_any = blocks.iter().any(|block| !block.requests.is_empty());
        if shows_any || next != known.cursor.map(|cursor| cursor.at) {
            let pieces = pieces(blocks.into_iter().flat_map(|block| self.requests_of(known, block)), known.admit_max);
            match self.admit(known, pieces, next, answered).await? {
                Stored::All => {}
                Stored::Full => {
                    self.stats.note(Some(Stall::Waits("a route has no room, and the cursor is held".to_owned())));
                    return Ok(Pace::Rest);
                }
                Stored::Moved => return Ok(Pace::Again),
            }
        }
        self.stats.note(None);
        self.stats.blocks.fetch_add(links.len() as u64, Ordering::Relaxed);
        if let Some(time) = read_time {
            self.stats.read_time_ms.store(time.0, Ordering::Relaxed);
        }
        for link in links {
            self.stats.read_to.store(link.at.height.0, Ordering::Relaxed);
            known.window.push(link);
        }
        known.leads.changed = true;
        Ok(Pace::Again)
    }

    /// What waits for a height may go, now that everything up to there is stored; answers
    /// what was told.
    pub(super) async fn tell_height(&self, last: Option<(Height, UnixMs)>) -> Result<Option<Height>, Halt> {
        let Some((height, at)) = last else { return Ok(None) };
        let tick = ChainTick { origin: self.origin.clone(), height, at };
        match persist::apply_one(&*self.store, tick).await? {
            outcome if outcome.holds() => Ok(Some(height)),
            other => Err(broken(format!("the height of {} was refused: {other:?}", self.origin))),
        }
    }

    /// Where the cursor belongs once these blocks are stored; it never goes back.
    fn cursor_next(known: &Known, mark: Option<Position>) -> Option<Position> {
        let mark = mark.or(known.window.mark());
        let cursor = known.cursor.map(|cursor| cursor.at);
        match (mark, cursor) {
            (Some(mark), Some(cursor)) if mark.height > cursor.height => Some(mark),
            (mark, None) => mark,
            (_, cursor) => cursor,
        }
    }

    /// What the blocks that were read show to be answered, and the cursor has not passed.
    fn answered_up_to(known: &Known, next: Option<Position>) -> Vec<Answered> {
        let after = known.cursor.map(|cursor| cursor.at.height);
        next.map_or(Vec::new(), |next| known.window.answered(after, next.height))
    }

    /// What a block shows, with its place and standing.
    fn requests_of(&self, known: &Known, block: SourceBlock) -> impl Iterator<Item = NewRequest> + use<> {
        let height = block.at.height;
        let standing = if known.window.is_final(height) { Standing::Final } else { Standing::Seen };
        let place = Place { origin: self.origin.clone(), height };
        let requests = block.requests.into_iter();
        requests.map(move |request| NewRequest { place: Some(place.clone()), standing, ..request })
    }

    /// Only finality moved on.
    pub(super) async fn move_cursor(&self, known: &mut Known) -> Result<(), Halt> {
        let next = Self::cursor_next(known, None);
        if next != known.cursor.map(|cursor| cursor.at) {
            let answered = Self::answered_up_to(known, next);
            self.admit(known, VecDeque::from([Vec::new()]), next, answered).await?;
        }
        Ok(())
    }

    /// Stores requests, each piece in a commit; the last one moves the cursor, and ends what
    /// the blocks that the cursor passes show to be answered elsewhere.
    async fn admit(
        &self,
        known: &mut Known,
        mut pieces: VecDeque<Vec<NewRequest>>,
        next: Option<Position>,
        answered: Vec<Answered>,
    ) -> Result<Stored, Halt> {
        let mut ended = known.leads.ends(&answered);
        if ended.len() > ENDS_MAX {
            // What is answered must be there before it ends.
            pieces.push_back(Vec::new());
        }
        while let Some(piece) = pieces.pop_front() {
            let to = next.filter(|_| pieces.is_empty());
            let cursor = to.map(|next| CursorMove { listener: self.listener.clone(), expected: known.cursor, next });
            if to.is_some() {
                self.end_most(&mut ended).await?;
            }
            let mut batch = vec![Op::Admit(Admit { cursor, requests: piece })];
            batch.extend(ended.iter().filter(|_| to.is_some()).cloned().map(Op::Amend));
            // What was answered elsewhere may have ended, or be sent: then that decides.
            let outcomes = persist::apply(&*self.store, &batch).await?;
            let Some((Op::Admit(Admit { requests: piece, .. }), outcome)) = batch.into_iter().zip(outcomes).next()
            else {
                return Err(broken("an admission was not answered".to_owned()));
            };
            match outcome {
                Outcome::Applied(Effect::Admitted(admissions, cursor))
                | Outcome::Duplicate(Effect::Admitted(admissions, cursor)) => {
                    known.cursor = cursor.or(known.cursor);
                    known.leads.learn(&piece, &admissions);
                    self.tell_flaws(&piece, &admissions);
                }
                Outcome::Full(full) => {
                    tracing::warn!(listener = %self.listener, ?full, "the cursor is held until there is room");
                    known.admit_max = (piece.len() / 2).max(1);
                    return Ok(Stored::Full);
                }
                Outcome::Stale(Stale::Cursor(held)) => return self.adopt(known, held),
                Outcome::Stale(Stale::RolledBack) => return Err(rolled_back()),
                Outcome::Invalid(
                    reason @ (Invalid::TooDeep { .. } | Invalid::TooManyNames(_) | Invalid::UnknownRoute(_)),
                ) => {
                    return Err(broken(format!("listener {} cannot go on: {reason}", self.listener)));
                }
                Outcome::Invalid(reason) => match halves(piece) {
                    Ok((first, second)) => {
                        pieces.push_front(second);
                        pieces.push_front(first);
                    }
                    Err(alone) => pieces.push_front(self.quarantined(alone, &reason)?),
                },
                other => return Err(broken(format!("an admission was refused: {other:?}"))),
            }
        }
        known.admit_max = known.admit_max.saturating_mul(2).min(ADMIT_MAX);
        Ok(Stored::All)
    }

    /// Ends what was answered elsewhere, but for as many as one commit takes besides.
    async fn end_most(&self, ended: &mut Vec<Amend>) -> Result<(), Halt> {
        while ended.len() > ENDS_MAX {
            let some: Vec<Op> = ended.drain(..ENDS_MAX).map(Op::Amend).collect();
            persist::apply(&*self.store, some).await?;
        }
        Ok(())
    }

    /// What the store refuses for good, as a dead letter that it takes.
    fn quarantined(&self, alone: Vec<NewRequest>, reason: &Invalid) -> Result<Vec<NewRequest>, Halt> {
        match alone.into_iter().next() {
            Some(refused) if refused.flaw.is_none() => Ok(vec![as_flawed(refused, &reason.to_string())]),
            _ => Err(broken(format!("listener {} cannot go on: an admission was refused: {reason}", self.listener))),
        }
    }

    /// Says loudly what is new among the dead letters.
    fn tell_flaws(&self, piece: &[NewRequest], admissions: &[Admission]) {
        for (request, admission) in piece.iter().zip(admissions) {
            let (Some(flaw), Admission::New { .. }) = (&request.flaw, admission) else { continue };
            self.stats.quarantined.fetch_add(1, Ordering::Relaxed);
            tracing::error!(
                listener = %self.listener, route = %request.route, request = %request.id, height = height_of(request).0,
                why = %flaw.text, "what the chain shows cannot be worked on: it is a dead letter"
            );
        }
    }

    /// The cursor is not where it was left: an answer was lost, or another process uses the
    /// same listener. What it passed is stored, whoever moved it.
    fn adopt(&self, known: &mut Known, held: Option<Cursor>) -> Result<Stored, Halt> {
        tracing::warn!(listener = %self.listener, ?held, "somebody else moved the cursor");
        if let Some(held) = held
            && let Some(read) = known.window.at(held.at.height)
            && read != held.at
            && known.window.is_final(read.height)
        {
            return Err(halted(decide::violation(held.at, Some(read.hash))));
        }
        known.cursor = held;
        Ok(Stored::Moved)
    }
}

/// Makes dead letters of what is too long for the store, less their payload.
pub(super) fn cut_to_size(block: &mut SourceBlock) {
    for request in &mut block.requests {
        let (bytes, max) = (request.payload.bytes.len(), PAYLOAD_BYTES_MAX);
        if bytes > max {
            let reason = Invalid::PayloadTooLarge { bytes, max }.to_string();
            let stub = Payload::json(format!("{{\"left_out_bytes\":{bytes}}}"));
            *request = as_flawed(NewRequest { payload: stub, ..request.clone() }, &reason);
        }
    }
}

/// The dead letter that a request becomes, in its place.
pub(super) fn as_flawed(request: NewRequest, reason: &str) -> NewRequest {
    let NewRequest { route, occurrence, payload, place, standing, .. } = request;
    NewRequest { place, standing, ..flawed(&route, occurrence, payload, reason) }
}

pub(super) fn height_of(request: &NewRequest) -> Height {
    request.place.as_ref().map_or(Height(0), |place| place.height)
}

/// Cuts requests into as many admissions as it takes; at least one, which moves the cursor.
fn pieces(requests: impl Iterator<Item = NewRequest>, max: usize) -> VecDeque<Vec<NewRequest>> {
    let (mut pieces, mut piece, mut bytes) = (VecDeque::new(), Vec::new(), 0);
    for request in requests {
        let more = request.payload.bytes.len();
        if piece.len() >= max || bytes + more > ADMIT_BYTES_MAX {
            pieces.push_back(std::mem::take(&mut piece));
            bytes = 0;
        }
        bytes += more;
        piece.push(request);
    }
    pieces.push_back(piece);
    pieces
}

/// Two halves of more than one; one alone is given back.
fn halves(mut piece: Vec<NewRequest>) -> Result<(Vec<NewRequest>, Vec<NewRequest>), Vec<NewRequest>> {
    if piece.len() < 2 {
        return Err(piece);
    }
    let second = piece.split_off(piece.len() / 2);
    Ok((piece, second))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::words::{OccurrenceId, RequestId, RouteName};

    fn request(bytes: usize) -> NewRequest {
        NewRequest {
            route: RouteName::new("r").unwrap(),
            id: RequestId([0; 32]),
            occurrence: OccurrenceId([0; 32]),
            place: None,
            standing: Standing::Seen,
            payload: Payload::raw(vec![0; bytes]),
            due: None,
            deadline: None,
            priority: 0,
            key: None,
            trace: None,
            flaw: None,
        }
    }

    #[test]
    fn admissions_are_bounded() {
        let check = |requests: &[usize], max, sizes: &[usize]| {
            let cut = pieces(requests.iter().map(|&bytes| request(bytes)), max);
            assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
        };
        check(&[], 3, &[0]);
        check(&[1, 1, 1], 3, &[3]);
        check(&[1, 1, 1, 1], 3, &[3, 1]);
        check(&[ADMIT_BYTES_MAX, 1, 1], 3, &[1, 2]);
        check(&[ADMIT_BYTES_MAX - 1, 1, 1], 3, &[2, 1]);
    }
}
