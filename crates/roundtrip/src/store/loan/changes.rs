//! What a machine on loan changed, as typed rows: a pure function of what it borrowed and
//! what it left.
//!
//! Live requests are compared whole with what was fetched; of everything else the machine
//! told the tray. Each row is here once, put or gone, so a store may write them in any order
//! within its commit, except that a row may be put which takes the place of one that is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::fetch::{Fetched, Loaded};
use super::record::{Damaged, encode};
use super::tray::Tray;
use super::{FixtureRows, Numbers};
use crate::groups::GroupState;
use crate::inbox::{LeaseMark, Request, RouteNo, State, StateKind, When};
use crate::outbox::LaneNo;
use crate::sender::Parcel;
use crate::store::disk::{Body, ColdKey, ColdReceipt, GroupRow, HighWater, ItemRow};
use crate::store::journal::KeptEntry;
use crate::store::machine::{Listed, Machine, Pace};
use crate::words::{Nonce, OccurrenceId, Payload, RequestId, Seq, UnixMs};

/// What is to be written in one commit.
#[derive(Debug, Default)]
pub(in crate::store) struct Changes<'a> {
    /// Where the numbers stand now, if anything is written at all.
    pub(in crate::store) numbers: Option<NewNumbers>,
    /// Fixtures that changed; their version is that of the numbers.
    pub(in crate::store) fixtures: Option<&'a FixtureRows>,
    pub(in crate::store) live: Vec<Put<'a>>,
    /// Live requests that ended, as they were; their bodies and responses go with them.
    pub(in crate::store) gone: Vec<&'a Loaded>,
    pub(in crate::store) bodies: Vec<(Seq, &'a Body)>,
    pub(in crate::store) responses: Vec<(Seq, &'a Payload)>,
    /// Responses that go although their requests stay.
    pub(in crate::store) void_responses: Vec<Seq>,
    /// Which live request shows an occurrence.
    pub(in crate::store) shown: Vec<(OccurrenceId, Seq)>,
    /// Occurrences that no live request shows any more.
    pub(in crate::store) hidden: Vec<OccurrenceId>,
    pub(in crate::store) receipts: Vec<PutReceipt<'a>>,
    pub(in crate::store) forgotten: Vec<&'a ColdKey>,
    pub(in crate::store) parcels: Vec<(LaneNo, Nonce, &'a Parcel)>,
    pub(in crate::store) gone_parcels: Vec<(LaneNo, Nonce)>,
    /// Groups by number, and when `fire` is to look at each.
    pub(in crate::store) groups: Vec<(u64, &'a GroupRow, When)>,
    /// Groups of which nothing but that changed.
    pub(in crate::store) timers: Vec<(u64, When)>,
    /// Groups that are forgotten; what is left of their items goes with them.
    pub(in crate::store) gone_groups: Vec<u64>,
    pub(in crate::store) items: Vec<(u64, &'a ItemRow, &'a Payload)>,
    pub(in crate::store) gone_items: Vec<u64>,
    pub(in crate::store) entries: &'a [KeptEntry],
    /// Positions of the journal that are forgotten; empty, if none are.
    pub(in crate::store) trimmed: Range<u64>,
    /// How many more live requests, or fewer, a route has in a state.
    pub(in crate::store) counts: BTreeMap<(RouteNo, StateKind), i64>,
    /// What routes with a rate handed out lately, in the newest epoch.
    pub(in crate::store) paces: Vec<(RouteNo, &'a Pace)>,
}

/// Where the numbers stand after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct NewNumbers {
    pub(in crate::store) high: HighWater,
    pub(in crate::store) journal_floor: u64,
    pub(in crate::store) fixtures: u64,
}

impl NewNumbers {
    /// What the numbers are once these are written.
    pub(in crate::store) fn after(&self, before: Numbers) -> Numbers {
        Numbers { high: self.high, journal_floor: self.journal_floor, fixtures: self.fixtures, ..before }
    }
}

/// A live request that is new or changed.
#[derive(Debug)]
pub(in crate::store) struct Put<'a> {
    pub(in crate::store) request: &'a Request,
    pub(in crate::store) record: Vec<u8>,
    pub(in crate::store) listed: Listed,
    /// As it was before, if it was there.
    pub(in crate::store) was: Option<&'a Loaded>,
    /// Its body, if that is new too.
    pub(in crate::store) body: Option<&'a Body>,
    /// How many of its route were queued before this commit, if it is queued: about as many are handed out before it.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "Postgres puts all alike"))]
    pub(in crate::store) ahead: u64,
    /// Whether it is new, and there is no receipt of its id, nor of what shows it, for sure.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "Postgres puts all alike"))]
    pub(in crate::store) is_news: bool,
}

#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "Redis keeps both in the record alone"))]
impl Put<'_> {
    /// Who holds it.
    pub(in crate::store) fn lease(&self) -> Option<&LeaseMark> {
        match &self.request.state {
            State::Leased(lease) => Some(lease),
            _ => None,
        }
    }

    /// When it is forgotten, if it is a dead letter.
    pub(in crate::store) fn forget_at(&self) -> Option<UnixMs> {
        match &self.request.state {
            State::Dead(letter) => Some(letter.forget_at),
            _ => None,
        }
    }
}

/// A receipt that is new or changed.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct PutReceipt<'a> {
    pub(in crate::store) key: &'a ColdKey,
    pub(in crate::store) receipt: &'a ColdReceipt,
    /// Whether none was there, for sure.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "Redis puts both alike"))]
    pub(in crate::store) is_new: bool,
}

/// The request that a group refers to.
pub(in crate::store) fn request_of(group: &GroupRow) -> Option<RequestId> {
    match group.state {
        GroupState::Sealed { request, .. } => Some(request),
        GroupState::Open => None,
    }
}

/// Under which names something may be remembered of a request.
fn names(request: &Request) -> impl Iterator<Item = ColdKey> {
    let shown = request.occurrences.as_slice().iter().map(|occurrence| ColdKey::Occurrence(occurrence.id));
    std::iter::once(ColdKey::Request(request.id)).chain(shown)
}

impl<'a> Changes<'a> {
    /// What this machine changed of what was fetched, with what it told the tray.
    pub(super) fn of(
        machine: &'a Machine,
        fetched: &'a Fetched,
        tray: &'a Tray,
        before: &Numbers,
    ) -> Result<Changes<'a>, Damaged> {
        let mut changes = Changes { entries: &tray.entries, ..Changes::default() };
        changes.add_live(machine, fetched, tray)?;
        changes.add_told(fetched, tray);
        changes.add_groups(machine, fetched, tray);
        changes.add_paces(machine, fetched, before);
        if tray.journal_floor > before.journal_floor {
            changes.trimmed = before.journal_floor..tray.journal_floor;
        }
        if tray.high.is_some() || !changes.is_empty() {
            let fixtures = before.fixtures + u64::from(changes.fixtures.is_some());
            let journal_floor = tray.journal_floor.max(before.journal_floor);
            changes.numbers = Some(NewNumbers { high: tray.high.unwrap_or(before.high), journal_floor, fixtures });
        }
        Ok(changes)
    }

    /// Whether there is nothing to write.
    pub(in crate::store) fn is_empty(&self) -> bool {
        let Changes { numbers, fixtures, live, gone, bodies, responses, void_responses, shown, hidden, .. } = self;
        let Changes { receipts, forgotten, parcels, gone_parcels, groups, timers, gone_groups, .. } = self;
        let Changes { items, gone_items, entries, trimmed, counts, paces, .. } = self;
        let requests = live.is_empty() && gone.is_empty() && bodies.is_empty() && responses.is_empty();
        let ends = void_responses.is_empty() && shown.is_empty() && hidden.is_empty() && receipts.is_empty();
        let rest = forgotten.is_empty() && parcels.is_empty() && gone_parcels.is_empty() && groups.is_empty();
        let gathered = timers.is_empty() && gone_groups.is_empty() && items.is_empty() && gone_items.is_empty();
        let told = entries.is_empty() && trimmed.is_empty() && counts.is_empty() && paces.is_empty();
        requests && ends && rest && gathered && told && numbers.is_none() && fixtures.is_none()
    }

    fn add_live(&mut self, machine: &'a Machine, fetched: &'a Fetched, tray: &'a Tray) -> Result<(), Damaged> {
        let loaded = &fetched.live;
        let queued = |route: RouteNo| fetched.counted.get(&(route, StateKind::Queued)).copied().unwrap_or(0);
        let (mut here, mut shown, mut shown_before) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        for (request, listed) in machine.places() {
            here.insert(request.seq);
            let (record, was) = (encode(request)?, loaded.get(&request.seq).map(Arc::as_ref));
            // One whose id another ended with is news no more, and written anew for that.
            let is_same = was.is_some_and(|was| was.listed == listed && was.record == record);
            if is_same && !tray.receipts.contains_key(&ColdKey::Request(request.id)) {
                continue;
            }
            *self.counts.entry((request.route, listed.state)).or_default() += 1;
            shown.extend(request.occurrences.as_slice().iter().map(|o| (o.id, request.seq)));
            if let Some(was) = was {
                *self.counts.entry((was.request.route, was.listed.state)).or_default() -= 1;
                shown_before.extend(was.request.occurrences.as_slice().iter().map(|o| (o.id, request.seq)));
            }
            let body = tray.bodies.get(&request.seq).filter(|_| tray.new_bodies.contains(&request.seq));
            let ahead = if listed.state == StateKind::Queued { queued(request.route) } else { 0 };
            let mut names = names(request);
            let is_news = was.is_none() && names.all(|name| fetched.is_absent(&name) && !tray.cold.contains_key(&name));
            self.live.push(Put { request, record, listed, was, body, ahead, is_news });
        }
        for (seq, was) in loaded.iter().filter(|(seq, _)| !here.contains(seq)) {
            self.gone.push(was);
            *self.counts.entry((was.request.route, was.listed.state)).or_default() -= 1;
            shown_before.extend(was.request.occurrences.as_slice().iter().map(|o| (o.id, *seq)));
        }
        self.counts.retain(|_, change| *change != 0);
        self.hidden = shown_before.keys().filter(|id| !shown.contains_key(id)).copied().collect();
        self.shown = shown.into_iter().filter(|(id, seq)| shown_before.get(id) != Some(seq)).collect();
        let bodies = tray.new_bodies.intersection(&here);
        self.bodies = bodies.filter_map(|seq| Some((*seq, tray.bodies.get(seq)?))).collect();
        let responses = tray.new_responses.intersection(&here);
        self.responses = responses.filter_map(|seq| Some((*seq, tray.responses.get(seq)?))).collect();
        self.void_responses = tray.void_responses.intersection(&here).copied().collect();
        Ok(())
    }

    fn add_told(&mut self, fetched: &Fetched, tray: &'a Tray) {
        self.fixtures = Some(&tray.fixtures).filter(|rows| !rows.is_empty());
        let put = |(key, receipt)| PutReceipt { key, receipt, is_new: fetched.is_absent(key) };
        self.receipts = tray.receipts.iter().map(put).collect();
        self.forgotten = tray.forgotten.iter().collect();
        for (&(lane, nonce), parcel) in &tray.parcels {
            match parcel {
                Some(parcel) => self.parcels.push((lane, nonce, parcel)),
                None => self.gone_parcels.push((lane, nonce)),
            }
        }
        for (&no, item) in &tray.items {
            match item {
                Some((row, payload)) => self.items.push((no, row, payload)),
                None => self.gone_items.push(no),
            }
        }
    }

    fn add_groups(&mut self, machine: &Machine, fetched: &Fetched, tray: &'a Tray) {
        let timers: BTreeMap<u64, When> = machine.group_timers().collect();
        let timer = |no: &u64| timers.get(no).copied().unwrap_or(When::NEVER);
        for (no, row) in &tray.groups {
            match row {
                Some(row) => self.groups.push((*no, row, timer(no))),
                None => self.gone_groups.push(*no),
            }
        }
        // One that found no room is looked at again later.
        let moved = fetched.groups.iter().filter(|(no, (_, was))| !tray.groups.contains_key(no) && timer(no) != *was);
        self.timers = moved.map(|(no, _)| (*no, timer(no))).collect();
    }

    fn add_paces(&mut self, machine: &'a Machine, fetched: &Fetched, before: &Numbers) {
        let known = |no: RouteNo, pace: &Pace| {
            fetched.paces.get(&no).is_some_and(|(epoch, was)| *epoch == before.newest_epoch && was == pace)
        };
        self.paces = machine.paces().filter(|(no, pace)| !known(*no, pace)).collect();
    }
}

#[cfg(all(test, feature = "testkit"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::Sight;
    use super::super::tick::{Ticked, tick};
    use super::super::want::{Found, Lender, LiveRow, Want};
    use super::*;
    use crate::inbox::End;
    use crate::store::Options;
    use crate::store::disk::Fixture;
    use crate::store::op::{Admit, Effect, Op, Outcome};
    use crate::store::policy::RoutePolicy;
    use crate::testkit::samples;

    /// Lends one live request to whoever asks for any, and nothing else.
    #[derive(Default)]
    struct Shelf(Option<(Request, Listed, Body)>);

    impl Lender for Shelf {
        type Error = Damaged;

        async fn fly(&mut self, wants: &[Want]) -> Result<Vec<Found>, Damaged> {
            let row = |(request, listed, body): &(Request, Listed, Body)| LiveRow {
                loaded: Arc::new(Loaded {
                    record: encode(request).unwrap(),
                    request: request.clone(),
                    listed: *listed,
                }),
                body: Some(body.clone()),
                response: None,
                is_news: false,
            };
            let found = |want: &Want| match want {
                Want::Named { .. } | Want::Turns { .. } => Found::Live(self.0.iter().map(row).collect()),
                _ => Found::Live(Vec::new()),
            };
            Ok(wants.iter().map(found).collect())
        }
    }

    impl Shelf {
        /// Keeps what changed of the one request.
        fn keep(&mut self, changes: &Changes<'_>) {
            let body = changes.bodies.first().map(|(_, body)| (*body).clone());
            let put = changes.live.first().unwrap();
            let body = body.or_else(|| self.0.take().map(|(_, _, body)| body)).unwrap();
            self.0 = Some((put.request.clone(), put.listed, body));
        }

        async fn tick(&mut self, op: Op) -> Ticked {
            let (no, name) = (RouteNo(0), samples::route());
            let route = Fixture::Route { no, name, policy: RoutePolicy::default(), paused: false };
            let fixtures = [(route.key(), route)].into();
            let high = HighWater { seq: 1, entry: 1, receipt: 1, item: 1, group: 1 };
            let numbers = Numbers { newest_epoch: 1, high, journal_floor: 1, fixtures: 7, now: UnixMs(1000) };
            let sight = Sight { epoch: 1, tokens: 0, numbers, fixtures: &fixtures };
            tick(self, Options::default(), &sight, &[op]).await.unwrap()
        }
    }

    fn new_request() -> Op {
        let request = crate::store::op::NewRequest { place: None, ..samples::final_request(1) };
        Op::Admit(Admit { cursor: None, requests: vec![request] })
    }

    #[tokio::test]
    async fn what_is_new_is_put_with_its_body_and_shown() {
        let ticked = Shelf::default().tick(new_request()).await;
        let changes = ticked.changes().unwrap();
        let [put] = &changes.live[..] else { panic!("one request: {changes:?}") };
        assert_eq!((put.request.id, put.listed.state), (samples::id(1), StateKind::Queued));
        assert!(put.was.is_none());
        assert_eq!(put.body.unwrap().payload, samples::request(1).payload);
        assert_eq!(changes.shown, [(samples::occurrence(1), Seq(1))]);
        assert_eq!(changes.bodies.len(), 1);
        assert_eq!(changes.counts, BTreeMap::from([((RouteNo(0), StateKind::Queued), 1)]));
        let numbers = changes.numbers.unwrap();
        assert_eq!((numbers.high.seq, numbers.journal_floor, numbers.fixtures), (2, 1, 7));
    }

    #[tokio::test]
    async fn what_changes_moves_from_count_to_count_and_keeps_its_body() {
        let mut shelf = Shelf::default();
        let admitted = shelf.tick(new_request()).await;
        shelf.keep(&admitted.changes().unwrap());
        let leased = shelf.tick(Op::Lease(samples::lease(1))).await;
        let changes = leased.changes().unwrap();
        let [put] = &changes.live[..] else { panic!("one request: {changes:?}") };
        assert_eq!(put.was.unwrap().listed.state, StateKind::Queued);
        assert_eq!((put.body, changes.bodies.len(), changes.shown.len()), (None, 0, 0));
        assert_eq!(put.lease().unwrap().claim, samples::lease(1).claim);
        let moved = BTreeMap::from([((RouteNo(0), StateKind::Queued), -1), ((RouteNo(0), StateKind::Leased), 1)]);
        assert_eq!(changes.counts, moved);
    }

    #[tokio::test]
    async fn what_ends_goes_and_leaves_receipts() {
        let mut shelf = Shelf::default();
        let admitted = shelf.tick(new_request()).await;
        shelf.keep(&admitted.changes().unwrap());
        let leased = shelf.tick(Op::Lease(samples::lease(1))).await;
        let Outcome::Applied(Effect::Leased(grants)) = &leased.outcomes[0] else { panic!("not leased") };
        let answer = Op::Answer(samples::answer(&grants[0]));
        shelf.keep(&leased.changes().unwrap());
        let ended = shelf.tick(answer).await;
        let changes = ended.changes().unwrap();
        assert_eq!(changes.gone.iter().map(|was| was.request.seq).collect::<Vec<_>>(), [Seq(1)]);
        assert_eq!((changes.live.len(), changes.responses.len()), (0, 0));
        assert_eq!(changes.hidden, [samples::occurrence(1)]);
        assert_eq!(changes.counts, BTreeMap::from([((RouteNo(0), StateKind::Leased), -1)]));
        let [ended, seen] = changes.receipts[..] else { panic!("two receipts: {changes:?}") };
        let ColdReceipt::Ended { end, .. } = ended.receipt else { panic!("how it ended: {ended:?}") };
        assert_eq!((ended.key, *end), (&ColdKey::Request(samples::id(1)), End::Settled));
        assert_eq!(seen.key, &ColdKey::Occurrence(samples::occurrence(1)));
        // Nobody looked for a receipt of the occurrence.
        assert!(ended.is_new && !seen.is_new);
    }

    #[tokio::test]
    async fn a_batch_that_changes_nothing_writes_nothing() {
        let ticked = Shelf::default().tick(Op::Lease(samples::lease(1))).await;
        assert!(ticked.changes().unwrap().is_empty());
    }
}
