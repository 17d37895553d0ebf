//! What a process keeps at hand of a store while nobody else writes to it: rows that its own
//! ticks fetched and left. Most ticks then need nothing from the server but their commit.
//!
//! ```text
//!   batch ──▶ is all that it needs here? ──▶ tick ──▶ commit, if nobody else wrote and what
//!                 │ no                                was taken to be absent is absent
//!                 └──▶ a tick that borrows ──▶ commit ──▶ learn what it fetched and left
//! ```
//!
//! That a request is new cannot be known from what is here. It is assumed, and the commit
//! looks: in the common case it is right, and in the other nothing was written.
//!
//! Failure modes: whoever else writes makes all of it worthless, which the commit notices; it
//! then does nothing, the shelf is cleared, and the batch borrows. Everything is bounded: of
//! long queues only the first are here, and a shelf that is too heavy is cleared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::changes::{Changes, Put};
use super::fetch::{Fetched, Loaded};
use super::known::Known;
use super::record::Damaged;
use super::tick::{Ticked, tick};
use super::tray::Tray;
use super::want::{Found, Lender, LiveRow, Reached, Want};
use super::{HashMap, HashSet, Numbers, Sight};
use crate::inbox::{Request, RouteNo, State, StateKind, When};
use crate::outbox::LaneNo;
use crate::sender::Parcel;
use crate::store::Options;
use crate::store::disk::{Body, ColdKey, ColdReceipt};
use crate::store::machine::Listed;
use crate::store::op::Op;
use crate::words::{ClaimId, Nonce, OccurrenceId, RequestId, Seq};

/// How many requests of a queue are kept at hand, and the fewest that a test may say.
const DEPTH: usize = 4096;
const DEPTH_MIN: usize = 8;
/// How many requests are, and parcels, and how many bytes of payloads and of signed attempts.
const ROWS_MAX: usize = 16_384;
const BYTES_MAX: usize = 32 << 20;

/// Rows at hand.
#[derive(Debug)]
pub(in crate::store) struct Shelf {
    pub(in crate::store) known: Known,
    /// How many requests of a queue are kept, and half as many fetched at once.
    depth: usize,
    rows: HashMap<Seq, Row>,
    ids: HashMap<RequestId, OfId>,
    /// Who shows an occurrence.
    shown: HashMap<OccurrenceId, Seq>,
    /// Occurrences that are known to have no receipt.
    unseen: HashSet<OccurrenceId>,
    parcels: BTreeMap<(LaneNo, Nonce), Parcel>,
    queues: HashMap<RouteNo, Queue>,
    claims: BTreeSet<(ClaimId, Seq)>,
    due: BTreeSet<(When, Seq)>,
    states: HashMap<StateKind, u64>,
    bytes: usize,
    /// The route whose queue did not do for the last batch that came.
    short: Option<RouteNo>,
}

/// A live request.
#[derive(Debug)]
struct Row {
    loaded: Arc<Loaded>,
    body: Option<Body>,
}

/// The requests at hand with one id.
#[derive(Debug, Default)]
struct OfId {
    seqs: Vec<Seq>,
    /// Whether there are no others, and its receipt is known.
    closed: bool,
    ended: Option<ColdReceipt>,
}

/// The first of a route that may be handed out, by turn.
#[derive(Debug, Default)]
struct Queue {
    turns: BTreeSet<(u64, Seq)>,
    reach: Reach,
}

/// How many of a queue are at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    All,
    /// All up to this one.
    To((u64, Seq)),
}

impl Default for Reach {
    fn default() -> Reach {
        Reach::To((0, Seq(0)))
    }
}

impl Reach {
    fn has(self, turn: (u64, Seq)) -> bool {
        match self {
            Reach::All => true,
            Reach::To(last) => turn <= last,
        }
    }
}

/// What a tick took to be absent, for its commit to make sure of.
#[derive(Debug, Default)]
pub(in crate::store) struct Assumed {
    /// No live request has one of these ids, and none has ended with it.
    pub(in crate::store) ids: Vec<RequestId>,
    /// No live request shows one of these, and none has a receipt.
    pub(in crate::store) occurrences: Vec<OccurrenceId>,
    /// Whether live requests are all at hand: of these none is, so only receipts are to be looked for.
    pub(in crate::store) has_all_live: bool,
}

impl Assumed {
    pub(in crate::store) fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.occurrences.is_empty()
    }
}

impl Default for Shelf {
    fn default() -> Shelf {
        Shelf::of_depth(DEPTH)
    }
}

impl Shelf {
    /// One with no rows, which will keep so many of a queue.
    pub(in crate::store) fn of_depth(depth: usize) -> Shelf {
        Shelf {
            depth: depth.max(DEPTH_MIN),
            known: Known::default(),
            rows: HashMap::default(),
            ids: HashMap::default(),
            shown: HashMap::default(),
            unseen: HashSet::default(),
            parcels: BTreeMap::new(),
            queues: HashMap::default(),
            claims: BTreeSet::new(),
            due: BTreeSet::new(),
            states: HashMap::default(),
            bytes: 0,
            short: None,
        }
    }

    /// One with no rows, in a store of which this is known.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "Redis clears the one it has"))]
    pub(in crate::store) fn knowing(known: Known) -> Shelf {
        Shelf { known, ..Shelf::default() }
    }

    /// Forgets all rows, and what was known.
    pub(in crate::store) fn clear(&mut self) {
        *self = Shelf::of_depth(self.depth);
    }

    /// Does a batch on what is at hand; nothing, if that does not do.
    pub(in crate::store) async fn tick(
        &mut self,
        options: Options,
        sight: &Sight<'_>,
        batch: &[Op],
    ) -> Result<Option<(Ticked, Assumed)>, Damaged> {
        self.short = None;
        let mut hand = Hand::new(self, batch);
        let done = tick(&mut hand, options, sight, batch).await;
        let assumed = hand.assumed;
        match done {
            Ok(mut ticked) => {
                ticked.fetched.looked_up.extend(self.unseen_of(&ticked.fetched));
                ticked.fetched.closed.extend(self.unended_of(&ticked.fetched));
                Ok(Some((ticked, assumed)))
            }
            Err(Away::NotHere { short }) => {
                self.short = short;
                Ok(None)
            }
            Err(Away::Damaged(damaged)) => Err(damaged),
        }
    }

    /// Fetches more of the queue that ran short, if that was why the last batch could not be done: so many that leases and the
    /// answers to them ask for nothing for long. Answers whether it did.
    pub(in crate::store) async fn restock<L: Lender>(
        &mut self,
        lender: &mut L,
        sight: &Sight<'_>,
    ) -> Result<bool, L::Error> {
        let Some(route) = self.short.take() else { return Ok(false) };
        let Reach::To(last) = self.queues.get(&route).map_or(Reach::default(), |queue| queue.reach) else {
            return Ok(false);
        };
        let mut fetched =
            Fetched::queue(lender, sight, (route, last, self.depth / 2), self.known.all(StateKind::Held) > 0).await?;
        self.learn_reach(&fetched);
        let (live, mut bodies) = (std::mem::take(&mut fetched.live), std::mem::take(&mut fetched.tray.bodies));
        let new = live.into_iter().filter(|(seq, _)| !self.rows.contains_key(seq));
        let new = new.map(|(seq, loaded)| (loaded, bodies.remove(&seq))).collect();
        let left_out = self.learn_live(new);
        self.learn_names(&fetched, &fetched.tray, &left_out);
        self.reach_all(&[route].into());
        self.shorten();
        Ok(true)
    }

    /// Whether a batch could not be done since a queue ran short.
    #[cfg(feature = "postgres")]
    pub(in crate::store) fn is_short(&self) -> bool {
        self.short.is_some()
    }

    /// What is known to have no receipt of the occurrences that were borrowed.
    fn unseen_of(&self, fetched: &Fetched) -> Vec<OccurrenceId> {
        let shown = fetched.live.values().flat_map(|loaded| loaded.request.occurrences.as_slice());
        shown.map(|occurrence| occurrence.id).filter(|id| self.unseen.contains(id)).collect()
    }

    /// What is known to have no receipt of the ids that were borrowed.
    fn unended_of(&self, fetched: &Fetched) -> Vec<RequestId> {
        let ids = fetched.live.values().map(|loaded| loaded.request.id);
        ids.filter(|id| self.of_id(id).is_some_and(|of_id| of_id.ended.is_none())).collect()
    }

    /// Keeps what a tick fetched and left, once it is written. All that it did not fetch was
    /// as it is here.
    pub(in crate::store) fn learn(&mut self, ticked: &Ticked, changes: &Changes<'_>, before: &Numbers) {
        let Ticked { fetched, tray, .. } = ticked;
        self.known = Known {
            counted: fetched.counted.clone(),
            paces: fetched.paces.iter().map(|(no, (epoch, pace))| (*no, *epoch, pace.clone())).collect(),
            under_way: std::mem::take(&mut self.known.under_way),
            had_groups: before.high.group > 1,
        };
        let live =
            fetched.live.values().map(|loaded| &loaded.request).chain(changes.live.iter().map(|put| put.request));
        let routes: BTreeSet<RouteNo> = live.map(|request| request.route).collect();
        self.reach_all(&routes);
        self.known.add(changes, before.newest_epoch);
        self.learn_reach(fetched);
        self.learn_parcels(fetched, changes);
        let new = fetched.live.iter().filter(|(seq, _)| !self.rows.contains_key(seq));
        let new = new.map(|(seq, loaded)| (loaded.clone(), tray.bodies.get(seq).cloned())).collect();
        let mut left_out = self.learn_live(new);
        for gone in &changes.gone {
            self.discard(gone.request.seq);
        }
        for Put { request, record, listed, .. } in &changes.live {
            if !self.has_place(request, listed) {
                left_out.insert(self.leave_out(request));
                continue;
            }
            let body = tray.bodies.get(&request.seq).cloned();
            let loaded = Loaded { request: (*request).clone(), record: record.clone(), listed: *listed };
            self.put(Arc::new(loaded), body);
        }
        self.learn_names(fetched, tray, &left_out);
        self.reach_all(&routes);
        self.shorten();
    }

    /// Keeps in mind up to where queues are at hand.
    fn learn_reach(&mut self, fetched: &Fetched) {
        for (route, last) in &fetched.reach {
            let queue = self.queues.entry(*route).or_default();
            if !queue.reach.has(*last) {
                queue.reach = Reach::To(*last);
            }
        }
    }

    /// Keeps what was fetched and was not here; answers the ids of what was left out.
    fn learn_live(&mut self, new: Vec<(Arc<Loaded>, Option<Body>)>) -> HashSet<RequestId> {
        let mut left_out = HashSet::default();
        for (loaded, body) in new {
            match self.has_place(&loaded.request, &loaded.listed) {
                true => self.put(loaded, body),
                false => _ = left_out.insert(self.leave_out(&loaded.request)),
            }
        }
        left_out
    }

    /// Keeps what was found of ids and occurrences.
    fn learn_names(&mut self, fetched: &Fetched, tray: &Tray, left_out: &HashSet<RequestId>) {
        for id in &fetched.closed {
            if let Some(of_id) = self.ids.get_mut(id) {
                of_id.closed = !left_out.contains(id);
                of_id.ended = tray.cold.get(&ColdKey::Request(*id)).cloned();
            }
        }
        for occurrence in fetched.looked_up.iter().filter(|occurrence| self.shown.contains_key(occurrence)) {
            match tray.cold.contains_key(&ColdKey::Occurrence(*occurrence)) {
                true => self.unseen.remove(occurrence),
                false => self.unseen.insert(*occurrence),
            };
        }
    }

    /// Keeps the parcels that a tick fetched and left, and how many are under way now.
    fn learn_parcels(&mut self, fetched: &Fetched, changes: &Changes<'_>) {
        self.known.under_way.extend(&fetched.under_way);
        for (slot, parcel) in &fetched.parcels {
            self.put_parcel(*slot, Some(parcel.clone()));
        }
        let put = changes.parcels.iter().map(|(lane, nonce, parcel)| ((*lane, *nonce), Some((*parcel).clone())));
        let gone = changes.gone_parcels.iter().map(|slot| (*slot, None));
        for (slot, parcel) in put.chain(gone) {
            let change = i64::from(parcel.is_some()) - i64::from(fetched.parcels.contains_key(&slot));
            if let Some(count) = self.known.under_way.get_mut(&slot.0) {
                *count = count.saturating_add_signed(change);
            }
            self.put_parcel(slot, parcel);
        }
    }

    fn put_parcel(&mut self, slot: (LaneNo, Nonce), parcel: Option<Parcel>) {
        self.bytes += parcel.as_ref().map_or(0, signed);
        let before = match parcel {
            Some(parcel) => self.parcels.insert(slot, parcel),
            None => self.parcels.remove(&slot),
        };
        self.bytes -= before.as_ref().map_or(0, signed);
    }

    /// The parcels on these slots.
    fn parcels(&self, slots: &BTreeSet<(LaneNo, Nonce)>) -> Option<Vec<((LaneNo, Nonce), &Parcel)>> {
        let mut found = Vec::with_capacity(slots.len());
        for slot in slots {
            match self.parcels.get(slot) {
                Some(parcel) => found.push((*slot, parcel)),
                // Where all are here, there is none.
                None => self.has_lane(slot.0).then_some(())?,
            }
        }
        Some(found)
    }

    /// Whether all parcels of a lane are at hand.
    fn has_lane(&self, lane: LaneNo) -> bool {
        let here = self.parcels.range((lane, Nonce(0))..=(lane, Nonce(u64::MAX))).count() as u64;
        self.known.under_way.get(&lane) == Some(&here)
    }

    /// Notes of which of these routes all are here that may be handed out.
    fn reach_all(&mut self, routes: &BTreeSet<RouteNo>) {
        for route in routes {
            let queue = self.queues.entry(*route).or_default();
            if queue.turns.len() as u64 == self.known.of(*route, StateKind::Queued) {
                queue.reach = Reach::All;
            }
        }
    }

    /// Keeps to the bounds.
    fn shorten(&mut self) {
        let mut beyond = Vec::new();
        let depth = self.depth;
        for queue in self.queues.values_mut().filter(|queue| queue.turns.len() > depth) {
            while queue.turns.len() > depth {
                beyond.extend(queue.turns.pop_last().map(|(_, seq)| seq));
            }
            queue.reach = queue.turns.last().map_or(Reach::default(), |last| Reach::To(*last));
        }
        for seq in beyond {
            if let Some(id) = self.discard(seq) {
                self.open(id);
            }
        }
        if self.rows.len().max(self.parcels.len()) > ROWS_MAX || self.bytes > BYTES_MAX {
            let known = std::mem::take(&mut self.known);
            self.clear();
            self.known = known;
        }
    }

    /// Whether a row is to be at hand: not if its turn comes long after those that are.
    fn has_place(&self, request: &Request, listed: &Listed) -> bool {
        let reach = self.queues.get(&request.route).map_or(Reach::default(), |queue| queue.reach);
        listed.turn.is_none_or(|turn| reach.has((turn, request.seq)))
    }

    /// Takes away what there was of a row; answers its id.
    fn leave_out(&mut self, request: &Request) -> RequestId {
        self.discard(request.seq);
        self.open(request.id);
        request.id
    }

    /// Puts a row in the place of what was there.
    fn put(&mut self, loaded: Arc<Loaded>, body: Option<Body>) {
        let (seq, id) = (loaded.request.seq, loaded.request.id);
        let turn = loaded.listed.turn.map(|turn| (turn, seq));
        let before = self.remove(seq);
        let body = body.or_else(|| before.and_then(|row| row.body));
        self.queues.entry(loaded.request.route).or_default().turns.extend(turn);
        self.claims.extend(claim(&loaded).map(|claim| (claim, seq)));
        self.due.extend(loaded.listed.due.map(|due| (due, seq)));
        *self.states.entry(loaded.listed.state).or_default() += 1;
        self.bytes += weight(body.as_ref());
        self.ids.entry(id).or_default().seqs.push(seq);
        self.shown.extend(loaded.request.occurrences.as_slice().iter().map(|occurrence| (occurrence.id, seq)));
        self.rows.insert(seq, Row { loaded, body });
    }

    /// Takes away a row, for another to be put in its place.
    fn remove(&mut self, seq: Seq) -> Option<Row> {
        let row = self.rows.remove(&seq)?;
        let Loaded { request, listed, .. } = &*row.loaded;
        if let (Some(turn), Some(queue)) = (listed.turn, self.queues.get_mut(&request.route)) {
            queue.turns.remove(&(turn, seq));
        }
        if let Some(claim) = claim(&row.loaded) {
            self.claims.remove(&(claim, seq));
        }
        if let Some(due) = listed.due {
            self.due.remove(&(due, seq));
        }
        if let Some(count) = self.states.get_mut(&listed.state) {
            *count -= 1;
        }
        self.bytes -= weight(row.body.as_ref());
        if let Some(of_id) = self.ids.get_mut(&request.id) {
            of_id.seqs.retain(|other| *other != seq);
        }
        for occurrence in request.occurrences.as_slice() {
            if self.shown.get(&occurrence.id) == Some(&seq) {
                self.shown.remove(&occurrence.id);
            }
        }
        Some(row)
    }

    /// Takes away a row for good, and what was known of its names.
    fn discard(&mut self, seq: Seq) -> Option<RequestId> {
        let loaded = self.remove(seq)?.loaded;
        let request = &loaded.request;
        for occurrence in request.occurrences.as_slice() {
            self.unseen.remove(&occurrence.id);
        }
        if self.ids.get(&request.id).is_some_and(|of_id| of_id.seqs.is_empty()) {
            self.ids.remove(&request.id);
        }
        Some(request.id)
    }

    /// Notes that there are others with this id than those at hand.
    fn open(&mut self, id: RequestId) {
        if let Some(of_id) = self.ids.get_mut(&id) {
            of_id.closed = false;
        }
    }

    /// Whether all in this state are at hand.
    fn has_all(&self, state: StateKind) -> bool {
        self.states.get(&state).copied().unwrap_or(0) == self.known.all(state)
    }

    /// All live requests with this id.
    fn of_id(&self, id: &RequestId) -> Option<&OfId> {
        self.ids.get(id).filter(|of_id| of_id.closed)
    }

    fn row(&self, seq: &Seq) -> Option<LiveRow> {
        let loaded = self.rows.get(seq)?.loaded.clone();
        Some(LiveRow { loaded, body: None, response: None, is_news: false })
    }

    fn row_with_body(&self, seq: &Seq) -> Option<LiveRow> {
        let body = self.rows.get(seq)?.body.clone()?;
        Some(LiveRow { body: Some(body), ..self.row(seq)? })
    }

    /// The bodies of these, if all are at hand.
    pub(in crate::store) fn bodies(&self, seqs: impl IntoIterator<Item = Seq>) -> Option<Found> {
        let body = |seq| Some((seq, self.rows.get(&seq)?.body.clone()?));
        seqs.into_iter().map(body).collect::<Option<_>>().map(Found::Bodies)
    }

    /// The first of a route that may be handed out.
    fn turns(&self, route: RouteNo, requests: usize, reached: &Reached, bytes: usize, from: u64) -> Option<Found> {
        let queue = self.queues.get(&route)?;
        let has_all = queue.reach == Reach::All;
        if from > 0 && !has_all {
            return None;
        }
        let is_over = |when: When| reached.iter().any(|(first, last)| (*first..=*last).contains(&when));
        let (mut rows, mut heavy) = (Vec::new(), 0);
        let start = (from, Seq(0));
        for half in [queue.turns.range(start..), queue.turns.range(..start)] {
            let enough = rows.len() + requests;
            for (_, seq) in half {
                if rows.len() >= enough || heavy >= bytes {
                    break;
                }
                let row = self.row_with_body(seq)?;
                if !row.loaded.listed.deadline.is_some_and(is_over) {
                    heavy += weight(row.body.as_ref());
                    rows.push(row);
                }
            }
        }
        (has_all || rows.len() >= requests || heavy >= bytes).then_some(Found::Live(rows))
    }
}

fn claim(loaded: &Loaded) -> Option<ClaimId> {
    match &loaded.request.state {
        State::Leased(lease) => Some(lease.claim),
        _ => None,
    }
}

fn signed(parcel: &Parcel) -> usize {
    parcel.attempts.iter().map(|attempt| attempt.bytes.len()).sum()
}

fn weight(body: Option<&Body>) -> usize {
    body.map_or(0, |body| body.payload.bytes.len())
}

/// Why a batch cannot be done with what is at hand.
#[derive(Debug)]
enum Away {
    /// Not all of it is; nor is enough of this queue, if that is what is missing.
    NotHere {
        short: Option<RouteNo>,
    },
    Damaged(Damaged),
}

impl From<Damaged> for Away {
    fn from(damaged: Damaged) -> Away {
        Away::Damaged(damaged)
    }
}

/// A shelf that lends to a batch.
struct Hand<'a> {
    shelf: &'a Shelf,
    /// What the batch admits: taken to be new, unless it is here.
    new_ids: HashSet<RequestId>,
    new_occurrences: HashSet<OccurrenceId>,
    assumed: Assumed,
}

impl<'a> Hand<'a> {
    fn new(shelf: &'a Shelf, batch: &[Op]) -> Hand<'a> {
        let (mut new_ids, mut new_occurrences) = (HashSet::default(), HashSet::default());
        for op in batch {
            if let Op::Admit(admit) = op {
                new_ids.extend(admit.requests.iter().map(|request| request.id));
                new_occurrences.extend(admit.requests.iter().map(|request| request.occurrence));
            }
        }
        let has_all_live = shelf.rows.len() as u64 == shelf.known.live();
        Hand { shelf, new_ids, new_occurrences, assumed: Assumed { has_all_live, ..Assumed::default() } }
    }

    /// What a want brings, if that is at hand.
    fn bring(&mut self, want: &Want) -> Option<Found> {
        let shelf = self.shelf;
        if let Some(found) = shelf.known.answer(want) {
            return Some(found);
        }
        match want {
            Want::Named { ids, occurrences, slots } => self.named(ids, occurrences, slots),
            Want::Bodies(ids) => {
                let seqs = ids.iter().map(|id| Some(&shelf.of_id(id)?.seqs)).collect::<Option<Vec<_>>>()?;
                shelf.bodies(seqs.into_iter().flatten().copied())
            }
            Want::BodiesOf { seqs, .. } => shelf.bodies(seqs.iter().copied()),
            Want::Ended(ids) => self.ended(ids),
            Want::Seen(occurrences) => self.seen(occurrences),
            Want::Parcels(slots) => {
                let found = shelf.parcels(slots)?;
                Some(Found::Parcels(found.into_iter().map(|(slot, parcel)| (slot, parcel.clone())).collect()))
            }
            Want::Turns { route, requests, reached, bytes, from } => {
                shelf.turns(*route, *requests, reached, *bytes, *from)
            }
            Want::Claimed(claims) if shelf.has_all(StateKind::Leased) => {
                let of = |claim: &ClaimId| shelf.claims.range((*claim, Seq(0))..=(*claim, Seq(u64::MAX)));
                let rows = claims.iter().flat_map(of).map(|(_, seq)| shelf.row_with_body(seq));
                rows.collect::<Option<_>>().map(Found::Live)
            }
            Want::Due { reached, limit } if shelf.has_all(StateKind::Held) => {
                let of = |(first, last): &(When, When)| {
                    shelf.due.range((*first, Seq(0))..=(*last, Seq(u64::MAX))).take(*limit)
                };
                let rows = reached.iter().flat_map(of).map(|(_, seq)| shelf.row(seq));
                rows.collect::<Option<_>>().map(Found::Live)
            }
            _ => None,
        }
    }

    fn named(
        &self,
        ids: &BTreeSet<RequestId>,
        occurrences: &BTreeSet<OccurrenceId>,
        slots: &BTreeSet<(LaneNo, Nonce)>,
    ) -> Option<Found> {
        let mut named = BTreeSet::new();
        for id in ids {
            match self.shelf.ids.contains_key(id) {
                true => _ = named.insert(*id),
                false => self.new_ids.get(id).map(drop)?,
            }
        }
        for occurrence in occurrences {
            match self.shelf.shown.get(occurrence) {
                Some(seq) => _ = named.insert(self.shelf.rows.get(seq)?.loaded.request.id),
                None => self.new_occurrences.get(occurrence).map(drop)?,
            }
        }
        // Whom a parcel carries is live as long as it does.
        named.extend(self.shelf.parcels(slots)?.into_iter().flat_map(|(_, parcel)| parcel.deliveries.iter().copied()));
        let mut rows = Vec::new();
        for id in &named {
            for seq in &self.shelf.of_id(id)?.seqs {
                rows.push(self.shelf.row(seq)?);
            }
        }
        Some(Found::Live(rows))
    }

    /// Receipts of ids: those that are not live here are assumed to have none.
    fn ended(&mut self, ids: &BTreeSet<RequestId>) -> Option<Found> {
        let mut receipts = Vec::new();
        for id in ids {
            if self.shelf.ids.contains_key(id) {
                let ended = self.shelf.of_id(id)?.ended.clone();
                receipts.extend(ended.map(|ended| (ColdKey::Request(*id), ended)));
            } else {
                self.assumed.ids.push(*self.new_ids.get(id)?);
            }
        }
        Some(Found::Receipts(receipts))
    }

    /// Receipts of occurrences: of those that are not shown here, none is assumed.
    fn seen(&mut self, occurrences: &BTreeSet<OccurrenceId>) -> Option<Found> {
        for occurrence in occurrences.iter().filter(|occurrence| !self.shelf.unseen.contains(occurrence)) {
            let new = self.new_occurrences.get(occurrence).filter(|new| !self.shelf.shown.contains_key(new))?;
            self.assumed.occurrences.push(*new);
        }
        Some(Found::Receipts(Vec::new()))
    }
}

impl Lender for Hand<'_> {
    type Error = Away;

    async fn fly(&mut self, wants: &[Want]) -> Result<Vec<Found>, Away> {
        let short = |want: &Want| match want {
            Want::Turns { route, from: 0, .. } => Some(*route),
            _ => None,
        };
        wants.iter().map(|want| self.bring(want).ok_or(Away::NotHere { short: short(want) })).collect()
    }
}

#[cfg(all(test, feature = "testkit"))]
mod tests;
