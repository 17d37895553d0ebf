//! The content of stores that lend their rows to a machine: what they share when they are read and
//! written whole.
//!
//! A page is written as the changes of a tick that has just admitted all of it. Where each request is
//! listed is worked out by a machine that borrows the page. Two things depend on more than a page, and
//! are worked out when all is there: whose turn it is among those of one key, and when a group that
//! is full is to be sealed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::contents::{Contents, Ground, Mark, PAGE_BYTES, PAGE_RECORDS, Page, Step, number};
use super::record::{self, Kind, Record, Whole};
use super::{Fault, contents};
use crate::groups::GroupState;
use crate::inbox::{Request, RouteNo, State, When};
use crate::outbox::{Delivery, LaneNo};
use crate::sender::Parcel;
use crate::store::disk::{ColdKey, ColdReceipt, Fixture, GroupRow, ItemRow};
use crate::store::loan::{
    Changes, FixtureRows, Found, Lender, LiveRow, Loaded, NewNumbers, Numbers, Put, PutReceipt, Want, encode,
};
use crate::store::machine::{Listed, Loan, Machine};
use crate::store::policy::QueueOrder;
use crate::store::{Options, StoreError};
use crate::words::{Nonce, Payload, RequestId, Seq};

/// How many responses are asked for at a time: their lengths are not known before.
const RESPONSES_AT_A_TIME: usize = 64;
/// How many faults are told of how requests are listed.
const LISTED_FAULTS_MAX: usize = 100;

/// Whoever keeps the rows of a store on a server, for reading and writing it whole.
pub(in crate::store) trait Keeper: Lender {
    /// As messages name the store.
    fn name(&self) -> String;

    /// What the caller is told of a failure.
    fn told(&self, error: Self::Error) -> StoreError;

    /// What is told of a row that cannot be read, if that is what failed.
    fn damage(&self, error: &Self::Error) -> Option<Fault>;

    /// What differs after anybody's tick.
    async fn version(&mut self) -> Result<Vec<u8>, Self::Error>;

    /// The numbers and all fixtures.
    async fn state(&mut self) -> Result<(Numbers, FixtureRows), Self::Error>;

    /// Up to so many live requests after a number, in the order of numbers.
    async fn live_after(&mut self, seq: u64, limit: usize) -> Result<Vec<LiveRow>, Self::Error>;

    /// Up to so many groups after a number, in the order of numbers.
    async fn groups_after(&mut self, no: u64, limit: usize) -> Result<Vec<(u64, GroupRow, When)>, Self::Error>;

    /// Up to so many items after a number, in the order of numbers, as long as they fit in a page.
    async fn items_after(&mut self, no: u64, limit: usize) -> Result<Vec<(u64, ItemRow, Payload)>, Self::Error>;

    /// Up to so many receipts after a key, in the order of keys.
    async fn receipts_after(
        &mut self,
        key: Option<ColdKey>,
        limit: usize,
    ) -> Result<Vec<(ColdKey, ColdReceipt)>, Self::Error>;

    /// How far a copy is that fills the store, if one does.
    async fn mark(&mut self) -> Result<Option<Vec<u8>>, Self::Error>;

    /// Writes changes and how far the copy is, and the newest epoch if it is given, in one commit.
    async fn put(&mut self, changes: &Changes<'_>, epoch: Option<u64>, mark: &[u8]) -> Result<(), Self::Error>;

    /// Removes everything, and the mark with it.
    async fn clear(&mut self) -> Result<(), Self::Error>;

    /// Removes the mark.
    async fn unmark(&mut self) -> Result<(), Self::Error>;

    /// What is wrong with rows that repeat what records say.
    async fn faults(&mut self) -> Result<Vec<Fault>, Self::Error>;
}

/// A store's content.
pub(in crate::store) struct LentContents<K> {
    keeper: K,
    numbers: Numbers,
    fixtures: FixtureRows,
    mark: Vec<u8>,
}

type Parcels = Vec<(LaneNo, Nonce, Parcel)>;

impl<K: Keeper> LentContents<K> {
    pub(in crate::store) async fn open(mut keeper: K) -> Result<LentContents<K>, StoreError> {
        match keeper.state().await {
            Ok((numbers, fixtures)) => Ok(LentContents { keeper, numbers, fixtures, mark: Vec::new() }),
            Err(error) => Err(keeper.told(error)),
        }
    }

    async fn read(&mut self, kind: Kind, from: &[u8]) -> Result<Page, K::Error> {
        let mut page = Page::default();
        match kind {
            Kind::Numbers => {
                let Numbers { newest_epoch, high, .. } = self.numbers;
                page.push(Record::Numbers(record::Numbers::new(newest_epoch, high)));
            }
            Kind::Fixtures => {
                let skip = usize::try_from(number(from)).unwrap_or(usize::MAX);
                let rest = self.fixtures.values().skip(skip).take(PAGE_RECORDS).cloned();
                rest.for_each(|fixture| page.push(Record::Fixture(fixture)));
                page.next = after_count(&page, number(from) + page.records.len() as u64);
            }
            Kind::Journal => {
                let from = number(from).max(self.numbers.journal_floor);
                let want = Want::Entries { from, limit: PAGE_RECORDS };
                if let Some(Found::Entries(entries)) = self.keeper.fly(&[want]).await?.pop() {
                    entries.into_iter().for_each(|entry| page.push(Record::Entry(entry)));
                }
                let next = from.saturating_add(PAGE_RECORDS as u64);
                page.next = (next < self.numbers.high.entry).then(|| next.to_be_bytes().to_vec());
            }
            Kind::Parcels => page = self.read_parcels(from).await?,
            Kind::Requests => page = self.read_requests(number(from)).await?,
            Kind::Groups => {
                let groups = self.keeper.groups_after(number(from), PAGE_RECORDS).await?;
                let last = groups.last().map_or(0, |(no, _, _)| *no);
                groups.into_iter().for_each(|(no, row, _)| page.push(Record::Group { no, row }));
                page.next = after_count(&page, last);
            }
            Kind::Items => {
                let items = self.keeper.items_after(number(from), PAGE_RECORDS).await?;
                let last = items.last().map(|(no, _, _)| no.to_be_bytes().to_vec());
                items.into_iter().for_each(|(no, row, payload)| page.push(Record::Item { no, row, payload }));
                page.next = last;
            }
            Kind::Receipts => {
                let key = postcard::from_bytes(from).ok();
                let receipts = self.keeper.receipts_after(key, PAGE_RECORDS).await?;
                let last = receipts.last().and_then(|(key, _)| postcard::to_allocvec(key).ok());
                receipts.into_iter().for_each(|(key, receipt)| page.push(Record::Receipt { key, receipt }));
                page.next = last;
            }
        }
        Ok(page)
    }

    /// The parcels of one lane after the other.
    async fn read_parcels(&mut self, from: &[u8]) -> Result<Page, K::Error> {
        let mut page = Page::default();
        let at = u16::try_from(number(from)).unwrap_or(u16::MAX);
        let next = self.lanes().filter(|no| no.0 >= at).min();
        let Some(lane) = next else { return Ok(page) };
        if let Some(Found::Parcels(parcels)) = self.keeper.fly(&[Want::Lanes([lane].into())]).await?.pop() {
            let records = parcels.into_iter().map(|((lane, nonce), parcel)| Record::Parcel { lane, nonce, parcel });
            records.for_each(|record| page.push(record));
        }
        page.next = Some((u64::from(lane.0) + 1).to_be_bytes().to_vec());
        Ok(page)
    }

    async fn read_requests(&mut self, from: u64) -> Result<Page, K::Error> {
        let mut page = Page::default();
        let rows = self.keeper.live_after(from, PAGE_RECORDS).await?;
        let seqs: Vec<Seq> = rows.iter().map(|row| row.loaded.request.seq).collect();
        let wanted = vec![Want::BodiesOf { seqs: seqs.clone(), bytes: PAGE_BYTES }];
        let mut bodies = BTreeMap::new();
        if let Some(Found::Bodies(found)) = self.keeper.fly(&wanted).await?.pop() {
            bodies.extend(found);
        }
        let mut last = None;
        let mut rows = rows.into_iter().peekable();
        while let Some(row) = rows.peek()
            && !page.is_full()
        {
            let few: BTreeSet<Seq> =
                seqs.iter().copied().filter(|seq| *seq >= row.loaded.request.seq).take(RESPONSES_AT_A_TIME).collect();
            let some: Vec<LiveRow> =
                std::iter::from_fn(|| rows.next_if(|row| few.contains(&row.loaded.request.seq))).collect();
            let mut responses = self.responses(&some).await?;
            for row in some {
                let seq = row.loaded.request.seq;
                let Some(body) = bodies.remove(&seq) else {
                    // The page has no room for it, unless it is the first.
                    if last.is_some() {
                        page.next = last;
                        return Ok(page);
                    }
                    let record = format!("request {} (number {})", row.loaded.request.id, seq.0);
                    page.damaged.push(Fault::new(record, "has no body"));
                    page.next = Some(seq.0.to_be_bytes().to_vec());
                    return Ok(page);
                };
                page.push(Record::request(row.loaded.request.clone(), body, responses.remove(&seq)));
                last = Some(seq.0.to_be_bytes().to_vec());
            }
        }
        page.next = last;
        Ok(page)
    }

    async fn responses(&mut self, rows: &[LiveRow]) -> Result<BTreeMap<Seq, Payload>, K::Error> {
        let ids: BTreeSet<RequestId> = rows.iter().map(|row| row.loaded.request.id).collect();
        match self.keeper.fly(&[Want::Responses(ids)]).await?.pop() {
            Some(Found::Responses(found)) => Ok(found.into_iter().collect()),
            _ => Ok(BTreeMap::new()),
        }
    }

    fn lanes(&self) -> impl Iterator<Item = LaneNo> {
        self.fixtures.values().filter_map(|fixture| match fixture {
            Fixture::Lane { no, .. } => Some(*no),
            _ => None,
        })
    }

    fn routes(&self, only: impl Fn(QueueOrder) -> bool) -> Vec<RouteNo> {
        let routes = self.fixtures.values().filter_map(|fixture| match fixture {
            Fixture::Route { no, policy, .. } if only(policy.order) => Some(*no),
            _ => None,
        });
        routes.collect()
    }

    /// The parcels on the slots of these requests.
    async fn parcels_of(&mut self, requests: impl Iterator<Item = &Request>) -> Result<Parcels, K::Error> {
        let slots: BTreeSet<(LaneNo, Nonce)> = requests.filter_map(slot_of).collect();
        if slots.is_empty() {
            return Ok(Vec::new());
        }
        match self.keeper.fly(&[Want::Parcels(slots)]).await?.pop() {
            Some(Found::Parcels(found)) => Ok(found.into_iter().map(|((lane, nonce), p)| (lane, nonce, p)).collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// A machine that has just these.
    fn borrow(&self, requests: Vec<Request>, parcels: Parcels) -> Machine {
        Machine::borrow(Options::default(), Loan { requests, parcels, ..self.loan() })
    }

    fn loan(&self) -> Loan {
        let Numbers { newest_epoch, high, journal_floor, .. } = self.numbers;
        Loan {
            epoch: newest_epoch,
            newest_epoch,
            high,
            first_entry: journal_floor,
            fixtures: self.fixtures.values().cloned().collect(),
            ..Loan::default()
        }
    }

    async fn write_page(&mut self, records: Vec<Record>) -> Result<(), K::Error> {
        let mut page = Written::default();
        let mut epoch = None;
        for record in records {
            match record {
                Record::Numbers(numbers) => {
                    epoch = Some(numbers.epoch);
                    (self.numbers.newest_epoch, self.numbers.high) = (numbers.epoch, numbers.high);
                    self.numbers.journal_floor = numbers.high.entry;
                }
                Record::Fixture(fixture) => drop(page.fixtures.insert(fixture.key(), fixture)),
                Record::Entry(entry) => page.entries.push(entry),
                Record::Parcel { lane, nonce, parcel } => page.parcels.push((lane, nonce, parcel)),
                Record::Request(whole) => page.requests.push(*whole),
                Record::Group { no, row } => page.groups.push((no, row)),
                Record::Item { no, row, payload } => page.items.push((no, row, payload)),
                Record::Receipt { key, receipt } => page.receipts.push((key, receipt)),
            }
        }
        if let Some(first) = page.entries.first() {
            self.numbers.journal_floor = self.numbers.journal_floor.min(first.position);
        }
        self.fixtures.extend(page.fixtures.clone());
        let parcels = self.parcels_of(page.requests.iter().map(|whole| &whole.request)).await?;
        let mut machine = self.borrow(page.requests.iter().map(|whole| whole.request.clone()).collect(), parcels);
        machine.open_gates();
        let changes = page.changes(&machine, &self.numbers)?;
        self.keeper.put(&changes, epoch, &self.mark).await
    }

    /// Works out what depends on more than a page.
    async fn finish(&mut self) -> Result<(), K::Error> {
        for route in self.routes(|order| matches!(order, QueueOrder::KeyedFifo { .. })) {
            let (loaded, machine) = self.whole_route(route).await?;
            let mut changes = self.no_changes();
            for (request, listed) in machine.places() {
                let Some(was) = loaded.get(&request.seq).filter(|was| was.listed != listed) else { continue };
                *changes.counts.entry((request.route, listed.state)).or_default() += 1;
                *changes.counts.entry((was.request.route, was.listed.state)).or_default() -= 1;
                changes.live.push(Put {
                    request,
                    record: encode(request)?,
                    listed,
                    was: Some(was),
                    body: None,
                    ahead: 0,
                    is_news: false,
                });
                if changes.live.len() >= PAGE_RECORDS {
                    self.keeper.put(&changes, None, &self.mark).await?;
                    changes = self.no_changes();
                }
            }
            self.keeper.put(&changes, None, &self.mark).await?;
        }
        let mut after = 0;
        loop {
            let groups = self.keeper.groups_after(after, PAGE_RECORDS).await?;
            let Some((last, _, _)) = groups.last() else { return Ok(()) };
            after = *last;
            for (no, row, timer) in groups {
                self.set_timer(no, row, timer).await?;
            }
        }
    }

    /// Changes in which the numbers stay as they are.
    fn no_changes<'a>(&self) -> Changes<'a> {
        Changes { numbers: Some(new_numbers(&self.numbers)), ..Changes::default() }
    }

    /// Sets when an open group that seals itself is to be looked at.
    async fn set_timer(&mut self, no: u64, row: GroupRow, timer: When) -> Result<(), K::Error> {
        if row.state != GroupState::Open || row.plan.is_none() {
            return Ok(());
        }
        let items = match self.keeper.fly(&[Want::Items(vec![(no, usize::MAX)])]).await?.pop() {
            Some(Found::Items(mut items)) => {
                items.sort_unstable_by_key(|(no, _)| *no);
                items
            }
            _ => Vec::new(),
        };
        let loan = Loan { groups: vec![(no, row, When::NEVER)], items, ..self.loan() };
        let machine = Machine::borrow(Options::default(), loan);
        let timers: Vec<(u64, When)> = machine.group_timers().filter(|(_, at)| *at != timer).collect();
        if timers.is_empty() {
            return Ok(());
        }
        let changes = Changes { timers, ..self.no_changes() };
        self.keeper.put(&changes, None, &self.mark).await
    }

    /// All live requests of a route, and the machine that lists them.
    async fn whole_route(&mut self, route: RouteNo) -> Result<(BTreeMap<Seq, Arc<Loaded>>, Machine), K::Error> {
        let found = self.keeper.fly(&[Want::Routes([route].into())]).await?.pop();
        let rows = match found {
            Some(Found::Live(rows)) => rows,
            _ => Vec::new(),
        };
        let names = Names::of(&self.fixtures);
        let loaded = rows.into_iter().map(|row| row.loaded).filter(|loaded| names.fit(&loaded.request));
        let loaded: BTreeMap<Seq, Arc<Loaded>> = loaded.map(|loaded| (loaded.request.seq, loaded)).collect();
        let parcels = self.parcels_of(loaded.values().map(|loaded| &loaded.request)).await?;
        let machine = self.borrow(loaded.values().map(|loaded| loaded.request.clone()).collect(), parcels);
        Ok((loaded, machine))
    }

    /// Compares how requests are listed and counted with what a machine makes of their records.
    async fn listed_otherwise(&mut self) -> Result<Vec<Fault>, K::Error> {
        let (mut faults, mut counts) = (Vec::new(), BTreeMap::new());
        if !Names::of(&self.fixtures).number(&self.fixtures) {
            return Ok(faults);
        }
        for route in self.routes(|_| true) {
            let (loaded, machine) = self.whole_route(route).await?;
            for (request, listed) in machine.places() {
                *counts.entry((route, listed.state)).or_insert(0) += 1;
                let otherwise = loaded.get(&request.seq).map(|was| was.listed).filter(|was| *was != listed);
                if let Some(was) = otherwise.filter(|_| faults.len() < LISTED_FAULTS_MAX) {
                    let record = format!("request {} (number {})", request.id, request.seq.0);
                    let rule = format!("is listed as {}, and its record says {}", in_words(&was), in_words(&listed));
                    faults.push(Fault::new(record, rule));
                }
            }
        }
        if let Some(Found::Counts(rows)) = self.keeper.fly(&[Want::Counts]).await?.pop() {
            let told = rows.into_iter().map(|row| ((row.route, row.state), row.requests)).collect();
            if counts != told {
                let rule = format!("tell {told:?}, and there are {counts:?}");
                faults.push(Fault::new("the counts of live requests", rule));
            }
        }
        Ok(faults)
    }

    /// A row that cannot be read is a fault too.
    fn or_damage(&self, found: Result<Vec<Fault>, K::Error>) -> Result<Vec<Fault>, StoreError> {
        found.or_else(|error| match self.keeper.damage(&error) {
            Some(fault) => Ok(vec![fault]),
            None => Err(self.keeper.told(error)),
        })
    }

    fn refuse_what_refers_to_nothing(&self, records: &[Record]) -> Result<(), StoreError> {
        let names = Names::of(&self.fixtures);
        let astray = records.iter().find(|record| match record {
            Record::Request(whole) => !names.fit(&whole.request),
            _ => false,
        });
        match astray {
            Some(record) => Err(StoreError::Damaged(format!("{record} refers to what does not exist; run verify"))),
            None => Ok(()),
        }
    }
}

/// What a page holds, by kind.
#[derive(Default)]
struct Written {
    fixtures: FixtureRows,
    entries: Vec<crate::store::journal::KeptEntry>,
    parcels: Parcels,
    requests: Vec<Whole>,
    groups: Vec<(u64, GroupRow)>,
    items: Vec<(u64, ItemRow, Payload)>,
    receipts: Vec<(ColdKey, ColdReceipt)>,
}

impl Written {
    /// As a tick would have written it; this machine lists the requests.
    fn changes<'a>(
        &'a self,
        machine: &'a Machine,
        numbers: &Numbers,
    ) -> Result<Changes<'a>, crate::store::loan::Damaged> {
        let bodies: BTreeMap<Seq, &Whole> = self.requests.iter().map(|whole| (whole.request.seq, whole)).collect();
        let mut changes = Changes {
            numbers: Some(new_numbers(numbers)),
            fixtures: Some(&self.fixtures).filter(|rows| !rows.is_empty()),
            bodies: self.requests.iter().map(|whole| (whole.request.seq, &whole.body)).collect(),
            receipts: self.receipts.iter().map(|(key, receipt)| PutReceipt { key, receipt, is_new: false }).collect(),
            parcels: self.parcels.iter().map(|(lane, nonce, parcel)| (*lane, *nonce, parcel)).collect(),
            groups: self.groups.iter().map(|(no, row)| (*no, row, When::NEVER)).collect(),
            items: self.items.iter().map(|(no, row, payload)| (*no, row, payload)).collect(),
            entries: &self.entries,
            ..Changes::default()
        };
        for (request, listed) in machine.places() {
            let Some(whole) = bodies.get(&request.seq) else { continue };
            *changes.counts.entry((request.route, listed.state)).or_default() += 1;
            changes.shown.extend(request.occurrences.as_slice().iter().map(|o| (o.id, request.seq)));
            changes.responses.extend(whole.response.as_ref().map(|response| (request.seq, response)));
            changes.live.push(Put {
                request,
                record: encode(request)?,
                listed,
                was: None,
                body: Some(&whole.body),
                ahead: 0,
                is_news: false,
            });
        }
        Ok(changes)
    }
}

/// The numbers as they are, with a version of fixtures that no process has seen.
fn new_numbers(numbers: &Numbers) -> NewNumbers {
    NewNumbers { high: numbers.high, journal_floor: numbers.journal_floor, fixtures: 1 }
}

/// Where the next page begins, if this one has as many records as a page can have.
fn after_count(page: &Page, last: u64) -> Option<Vec<u8>> {
    (page.records.len() >= PAGE_RECORDS).then(|| last.to_be_bytes().to_vec())
}

fn slot_of(request: &Request) -> Option<(LaneNo, Nonce)> {
    match &request.state {
        State::Answered(answer) => match answer.delivery {
            Delivery::Assigned { lane, nonce } => Some((lane, nonce)),
            Delivery::Waiting | Delivery::Ready => None,
        },
        State::Held | State::Queued | State::Leased(_) | State::Dead(_) => None,
    }
}

/// How many routes, origins and lanes there are.
struct Names {
    routes: usize,
    origins: usize,
    lanes: usize,
}

impl Names {
    fn of(fixtures: &FixtureRows) -> Names {
        let count = |is: fn(&Fixture) -> bool| fixtures.values().filter(|fixture| is(fixture)).count();
        Names {
            routes: count(|fixture| matches!(fixture, Fixture::Route { .. })),
            origins: count(|fixture| matches!(fixture, Fixture::Origin { .. })),
            lanes: count(|fixture| matches!(fixture, Fixture::Lane { .. })),
        }
    }

    /// Whether numbers are places in a list: else no machine can be made of them.
    fn number(&self, fixtures: &FixtureRows) -> bool {
        fixtures.values().all(|fixture| match fixture {
            Fixture::Route { no, .. } => usize::from(no.0) < self.routes,
            Fixture::Origin { no, .. } => usize::from(no.0) < self.origins,
            Fixture::Lane { no, .. } => usize::from(no.0) < self.lanes,
            Fixture::Cursor { .. } | Fixture::Seat { .. } => true,
        })
    }

    /// Whether all that a request refers to exists: else no machine can take it.
    fn fit(&self, request: &Request) -> bool {
        let seen = request.occurrences.as_slice().iter().filter_map(|occurrence| occurrence.origin);
        let awaited = request.due.origin().into_iter().chain(request.deadline.origin());
        usize::from(request.route.0) < self.routes
            && seen.chain(awaited).all(|origin| usize::from(origin.0) < self.origins)
            && slot_of(request).is_none_or(|(lane, _)| usize::from(lane.0) < self.lanes)
    }
}

fn in_words(listed: &Listed) -> String {
    let Listed { state, turn, due, deadline } = listed;
    format!("{state:?} (turn {turn:?}, due {due:?}, deadline {deadline:?})")
}

impl<K: Keeper> Contents for LentContents<K> {
    fn name(&self) -> String {
        self.keeper.name()
    }

    fn version(&mut self) -> Step<'_, Vec<u8>> {
        Box::pin(async move {
            let version = self.keeper.version().await;
            version.map_err(|error| self.keeper.told(error))
        })
    }

    fn page(&mut self, kind: Kind, from: Vec<u8>) -> Step<'_, Page> {
        Box::pin(async move {
            match self.read(kind, &from).await {
                Ok(page) => Ok(page),
                Err(error) => match self.keeper.damage(&error) {
                    // What comes after it is not read.
                    Some(fault) => Ok(Page::unreadable(fault)),
                    None => Err(self.keeper.told(error)),
                },
            }
        })
    }

    fn faults(&mut self) -> Step<'_, Vec<Fault>> {
        Box::pin(async move {
            let listed = self.listed_otherwise().await;
            let mut faults = self.or_damage(listed)?;
            let own = self.keeper.faults().await;
            faults.extend(self.or_damage(own)?);
            Ok(faults)
        })
    }

    fn ground(&mut self) -> Step<'_, Ground> {
        Box::pin(async move {
            let mark = self.keeper.mark().await;
            let mark = mark.map_err(|error| self.keeper.told(error))?;
            let unused = record::Numbers::new(0, self.numbers.high) == record::Numbers::new(0, Default::default());
            Ok(match mark {
                Some(bytes) => Ground::HalfCopied(Box::new(contents::read_mark(&bytes))),
                None if unused && self.fixtures.is_empty() => Ground::Empty,
                None => Ground::Taken,
            })
        })
    }

    fn clear(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            self.fixtures.clear();
            let cleared = self.keeper.clear().await;
            cleared.map_err(|error| self.keeper.told(error))
        })
    }

    fn write(&mut self, records: Vec<Record>, mark: Mark) -> Step<'_, ()> {
        Box::pin(async move {
            self.refuse_what_refers_to_nothing(&records)?;
            self.mark = contents::mark_bytes(&mark)?;
            let written = self.write_page(records).await;
            written.map_err(|error| self.keeper.told(error))
        })
    }

    fn release(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            let done = match self.finish().await {
                Ok(()) => self.keeper.unmark().await,
                Err(error) => Err(error),
            };
            done.map_err(|error| self.keeper.told(error))
        })
    }
}
