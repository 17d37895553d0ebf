//! What the journal told, kept for charts: steps over time, what ended lately, and which
//! transaction was signed for what.
//!
//! ```text
//!   journal ──▶ follow ──▶ Book: counts by time and route, the newest ends, transactions by hash
//! ```
//!
//! The journal tells of all processes, so each one that serves the API knows the same. All of it
//! is memory, bounded, and can be lost: after a start it is made anew of what the journal still
//! holds, up to a bound. Failure modes: a store that is away leaves a hole, never a wrong count.

pub mod series;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roundtrip::inbox::End;
use roundtrip::sender::AttemptKind;
use roundtrip::station::{Shutdown, StationError};
use roundtrip::store::journal::{Entry, Event, Subject};
use roundtrip::store::{ReadExt, Store, Topic};
use roundtrip::words::{AttemptHash, PAGE_MAX, RequestId, RouteName, UnixMs};

use series::{Series, Step, Table};

/// Entries of the journal that are read at a start.
const ENTRIES_AT_START: u64 = 100_000;
/// Live requests whose admission is remembered.
const FOLLOWED_MAX: usize = 100_000;
/// Routes with a series of their own; what others do is counted in the total alone.
const SERIES_MAX: usize = 32;
/// Routes whose ends are counted.
const ROUTES_MAX: usize = 1_000;
/// Ends that are remembered.
const ENDED_MAX: usize = 2_000;
/// Transactions that are remembered.
const TRANSACTIONS_MAX: usize = 50_000;
/// How long a look waits after the one before, hint or not.
const REST: Duration = Duration::from_millis(100);
/// How often to look without a hint.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is known of a live request.
#[derive(Clone, Copy, Debug)]
struct Followed {
    admitted_at: UnixMs,
    settled: bool,
}

/// A request that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which.
    pub id: RequestId,
    /// Its route.
    pub route: Option<RouteName>,
    /// When it came in, if that is remembered.
    pub admitted_at: Option<UnixMs>,
    /// How it ended.
    pub end: End,
    /// When.
    pub at: UnixMs,
    /// Where the journal tells it.
    pub position: u64,
}

/// A transaction that was signed for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// Whether it carries what is on the slot.
    pub kind: AttemptKind,
    /// The requests whose answers are on the slot.
    pub requests: Vec<RequestId>,
}

/// What was learned from the journal.
#[derive(Debug, Default)]
pub struct Book {
    total: Series,
    routes: Vec<(RouteName, Series)>,
    followed: HashMap<RequestId, Followed>,
    /// In the order in which they came; the oldest is forgotten first.
    order: VecDeque<RequestId>,
    ended: VecDeque<Ended>,
    /// How many were done since, by route.
    done_on: BTreeMap<RouteName, u64>,
    transactions: HashMap<AttemptHash, Signed>,
    transaction_order: VecDeque<AttemptHash>,
    /// Routes whose answers wait for nobody: each is done once it is answered, not when it is forgotten.
    kept: BTreeSet<RouteName>,
    since: Option<UnixMs>,
}

impl Book {
    /// Takes one entry of the journal.
    pub fn note(&mut self, entry: &Entry) {
        self.since.get_or_insert(entry.at);
        let Subject::Request(id) = entry.subject else { return };
        let step = match &entry.event {
            Event::Admitted { .. } => {
                self.follow(id, entry.at);
                Step::Admitted
            }
            Event::Leased { .. } => Step::Leased,
            Event::Answered => {
                if entry.route.as_ref().is_some_and(|route| self.kept.contains(route)) {
                    self.settle(id, entry);
                    self.count(entry, |series| series.note(entry.at.0, Step::Kept));
                }
                Step::Answered
            }
            Event::Assigned { attempt, .. } => {
                self.signed(attempt.hash, attempt.kind, id);
                Step::Assigned
            }
            // What was signed is looked for by its hash, whether or not a block ever shows it.
            Event::Attempted { attempt, .. } => return self.signed(attempt.hash, attempt.kind, id),
            // What was signed before this process began to read is known by its block alone.
            Event::Mined { block } => {
                self.signed(block.attempt, AttemptKind::Carry, id);
                Step::Included
            }
            Event::Confirmed { block } => {
                self.signed(block.attempt, AttemptKind::Carry, id);
                return self.settle(id, entry);
            }
            Event::Published { .. } => return self.settle(id, entry),
            Event::Failed { .. } => Step::Failed,
            Event::Died { .. } => Step::Died,
            Event::Ended { end } => return self.end(id, *end, entry),
            _ => return,
        };
        self.count(entry, |series| series.note(entry.at.0, step));
    }

    fn follow(&mut self, id: RequestId, admitted_at: UnixMs) {
        if self.order.len() == FOLLOWED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.followed.remove(&oldest);
        }
        self.followed.insert(id, Followed { admitted_at, settled: false });
        self.order.push_back(id);
    }

    /// Counts in the total, and for the entry's route.
    fn count(&mut self, entry: &Entry, note: impl Fn(&mut Series)) {
        note(&mut self.total);
        let Some(route) = &entry.route else { return };
        let at = match self.routes.iter().position(|(name, _)| name == route) {
            Some(at) => at,
            None if self.routes.len() < SERIES_MAX => {
                self.routes.push((route.clone(), Series::default()));
                self.routes.len() - 1
            }
            None => return,
        };
        note(&mut self.routes[at].1);
    }

    /// Counts a request that is done, once; one of which nothing is remembered is counted by its end.
    fn settle(&mut self, id: RequestId, entry: &Entry) {
        let Some(followed) = self.followed.get_mut(&id) else { return };
        if std::mem::replace(&mut followed.settled, true) {
            return;
        }
        let wait_ms = entry.at.since(followed.admitted_at);
        self.count(entry, |series| series.settled(entry.at.0, wait_ms));
    }

    fn end(&mut self, id: RequestId, end: End, entry: &Entry) {
        let known = self.followed.get(&id).copied();
        match (end, known) {
            (End::Settled, Some(_)) => self.settle(id, entry),
            (End::Settled, None) => self.count(entry, |series| series.note(entry.at.0, Step::Settled)),
            _ => {}
        }
        self.followed.remove(&id);
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        let (route, admitted_at) = (entry.route.clone(), known.map(|known| known.admitted_at));
        if let Some(route) = &route
            && matches!(end, End::Settled | End::Elsewhere)
            && (self.done_on.len() < ROUTES_MAX || self.done_on.contains_key(route))
        {
            *self.done_on.entry(route.clone()).or_default() += 1;
        }
        self.ended.push_back(Ended { id, route, admitted_at, end, at: entry.at, position: entry.position });
    }

    /// Remembers whose slot a transaction is for. What was said of its kind first is what its signer said.
    fn signed(&mut self, hash: AttemptHash, kind: AttemptKind, id: RequestId) {
        if !self.transactions.contains_key(&hash) {
            if self.transaction_order.len() == TRANSACTIONS_MAX
                && let Some(oldest) = self.transaction_order.pop_front()
            {
                self.transactions.remove(&oldest);
            }
            self.transaction_order.push_back(hash);
        }
        let signed = self.transactions.entry(hash).or_insert_with(|| Signed { kind, requests: Vec::new() });
        if !signed.requests.contains(&id) {
            signed.requests.push(id);
        }
    }

    /// Since when the journal was read.
    pub fn since(&self) -> Option<UnixMs> {
        self.since
    }

    /// The last so many milliseconds of everything, or of one route.
    pub fn table(&self, route: Option<&str>, now: UnixMs, last_ms: u64) -> Table {
        let of_route = |name: &str| self.routes.iter().find(|(route, _)| route.as_str() == name);
        match route {
            None => self.total.table(now.0, last_ms),
            Some(name) => match of_route(name) {
                Some((_, series)) => series.table(now.0, last_ms),
                None => Series::default().table(now.0, last_ms),
            },
        }
    }

    /// What ended lately, newest first.
    pub fn ended(&self) -> impl Iterator<Item = &Ended> {
        self.ended.iter().rev()
    }

    /// How many were done since the journal was read, by route: those that were given up are not among them.
    pub fn done_on(&self) -> impl Iterator<Item = (&RouteName, u64)> {
        self.done_on.iter().map(|(route, count)| (route, *count))
    }

    /// What a transaction was signed for, if that is remembered.
    pub fn signed_for(&self, hash: &AttemptHash) -> Option<&Signed> {
        self.transactions.get(hash)
    }
}

/// What was learned from the journal, by whoever follows it.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Mutex<Book>>);

impl History {
    /// Nothing yet; the answers of these routes are kept for whoever asks.
    pub fn keeping(kept: BTreeSet<RouteName>) -> History {
        History(Arc::new(Mutex::new(Book { kept, ..Book::default() })))
    }

    /// What is known now.
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the journal until told to stop.
    pub async fn follow(self, store: Arc<dyn Store>, shutdown: Shutdown) -> Result<(), StationError> {
        let mut changes = store.changes(Topic::Journal);
        let mut from = None;
        while !shutdown.is_cancelled() {
            // A store that does not answer now is asked again.
            let more = match from {
                None => {
                    let head = store.journal(u64::MAX, 1).await.ok().map(|page| page.head);
                    from = head.map(|head| head.saturating_sub(ENTRIES_AT_START));
                    from.is_some()
                }
                Some(place) => match store.journal(place, PAGE_MAX).await {
                    Ok(page) => {
                        let mut book = self.book();
                        page.entries.iter().for_each(|entry| book.note(entry));
                        from = Some(page.entries.last().map_or(page.head, |entry| entry.position + 1));
                        page.entries.len() == PAGE_MAX
                    }
                    Err(_) => false,
                },
            };
            if more {
                continue;
            }
            // Steps that come in quick succession are read together, so that following costs the store little.
            tokio::select! {
                () = async {
                    tokio::time::sleep(REST).await;
                    changes.hinted().await;
                } => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = shutdown.cancelled() => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use roundtrip::sender::{AttemptNote, Block};
    use roundtrip::words::{Height, LaneName, Nonce, Position};

    const NOW: UnixMs = UnixMs(1_790_000_000_000);

    const ADMITTED: Event = Event::Admitted { generation: 0, trace: None };

    fn entry(id: u8, route: &str, at: u64, event: Event) -> Entry {
        let (subject, route) = (Subject::Request(RequestId([id; 32])), RouteName::new(route).unwrap());
        Entry { position: 1, at: UnixMs(NOW.0 + at), subject, route: Some(route), event, previous: 0 }
    }

    fn sums(book: &Book, route: Option<&str>) -> [u32; Step::COUNT] {
        book.table(route, UnixMs(NOW.0 + 60_000), 120_000).steps.map(|column| column.iter().sum())
    }

    #[test]
    fn a_request_is_settled_once_and_counted_for_its_route() {
        let mut book = Book::default();
        let at = Position { height: Height(7), hash: [1; 32] };
        let block = Block { attempt: AttemptHash([9; 32]), at };
        book.note(&entry(1, "a", 0, ADMITTED));
        book.note(&entry(1, "a", 10, Event::Answered));
        book.note(&entry(1, "a", 20, Event::Mined { block }));
        book.note(&entry(1, "a", 100, Event::Confirmed { block }));
        book.note(&entry(1, "a", 900, Event::Ended { end: End::Settled }));
        book.note(&entry(2, "b", 0, ADMITTED));
        let admitted_and_settled = |sums: [u32; Step::COUNT]| (sums[0], sums[Step::Settled as usize]);
        assert_eq!(admitted_and_settled(sums(&book, None)), (2, 1));
        assert_eq!(admitted_and_settled(sums(&book, Some("a"))), (1, 1));
        assert_eq!(admitted_and_settled(sums(&book, Some("b"))), (1, 0));
        assert_eq!(sums(&book, Some("unheard of")), [0; Step::COUNT]);
        let ended: Vec<_> = book.ended().map(|ended| (ended.route.as_ref().unwrap().to_string(), ended.end)).collect();
        assert_eq!(ended, [("a".to_owned(), End::Settled)]);
        let counted: Vec<_> = book.done_on().map(|(route, count)| (route.as_str(), count)).collect();
        assert_eq!(counted, [("a", 1)]);
    }

    #[test]
    fn every_signed_transaction_is_remembered_also_if_no_block_was_told_of() {
        let mut book = Book::default();
        let (carry, cancel) = (AttemptKind::Carry, AttemptKind::Cancel);
        let note = |n, kind| AttemptNote { hash: AttemptHash([n; 32]), kind, fee: None };
        let (lane, nonce) = (LaneName::new("north").unwrap(), Nonce(3));
        for id in [1, 2] {
            book.note(&entry(id, "a", 0, Event::Assigned { lane: lane.clone(), nonce, attempt: note(7, carry) }));
        }
        book.note(&entry(1, "a", 1, Event::Attempted { nonce, attempt: note(8, cancel) }));
        let at = Position { height: Height(7), hash: [1; 32] };
        for n in [8, 9] {
            let block = Block { attempt: AttemptHash([n; 32]), at };
            book.note(&entry(1, "a", 2, Event::Mined { block }));
        }
        book.note(&entry(1, "a", 2, Event::Ended { end: End::Settled }));
        let known = |n| book.signed_for(&AttemptHash([n; 32])).map(|one| (one.kind, one.requests.len()));
        assert_eq!([7, 8, 9].map(known), [Some((carry, 2)), Some((cancel, 1)), Some((carry, 1))]);
        assert_eq!(known(6), None);
    }

    #[test]
    fn an_answer_that_is_kept_is_done_at_once_and_one_that_is_sent_when_it_is_delivered() {
        let history = History::keeping(BTreeSet::from([RouteName::new("kept").unwrap()]));
        let mut book = history.book();
        let settled = |book: &Book, route| sums(book, Some(route))[Step::Settled as usize];
        for (id, route) in [(1, "kept"), (2, "sent")] {
            book.note(&entry(id, route, 0, ADMITTED));
            book.note(&entry(id, route, 40, Event::Answered));
        }
        assert_eq!((settled(&book, "kept"), settled(&book, "sent")), (1, 0));
        for (id, route) in [(1, "kept"), (2, "sent")] {
            book.note(&entry(id, route, 50_000, Event::Ended { end: End::Settled }));
        }
        assert_eq!((settled(&book, "kept"), settled(&book, "sent")), (1, 1));
        let waits = book.table(Some("kept"), UnixMs(NOW.0 + 60_000), 120_000).most_ms;
        assert!(waits.into_iter().flatten().all(|wait_ms| wait_ms < 100), "not the time that it was kept for");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut book = Book::default();
        for n in 0..FOLLOWED_MAX + 10 {
            let id = RequestId::of(&[&n.to_le_bytes()]);
            book.note(&Entry { subject: Subject::Request(id), ..entry(0, "a", 0, ADMITTED) });
        }
        assert_eq!((book.followed.len(), book.order.len()), (FOLLOWED_MAX, FOLLOWED_MAX));
        for n in 0..ENDED_MAX + 10 {
            let id = RequestId::of(&[&n.to_le_bytes()]);
            book.note(&Entry { subject: Subject::Request(id), ..entry(0, "a", 0, Event::Ended { end: End::Expired }) });
        }
        assert_eq!(book.ended.len(), ENDED_MAX);
    }
}
