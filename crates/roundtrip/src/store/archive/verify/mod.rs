//! A store's invariants, checked record by record.
//!
//! ```text
//!   numbers, fixtures, journal, parcels ──▶ what others refer to, kept compactly
//!   requests, groups, items, receipts   ──▶ checked against it as they pass
//!   the end                             ──▶ what nobody referred to
//! ```
//!
//! Memory: about 250 bytes for each live request, 100 for each item, 8 for each entry of the
//! journal; receipts, however many, pass by. Some rules depend on a route's policies at the time of
//! an admission, which are not kept; they are applied where the journal shows that the policies were
//! the same then.

mod groups;
mod history;
mod lanes;
mod requests;
#[cfg(test)]
mod tests;

use std::fmt;

use groups::Groups;
use history::History;
use lanes::Lanes;
use requests::Requests;

use super::contents::Contents;
use super::record::{Kind, Numbers, Record};
use super::tally::Tally;
use super::write_counts;
use crate::inbox::{OriginNo, RouteNo};
use crate::store::StoreError;
use crate::store::disk::{ColdKey, ColdReceipt, Fixture};
use crate::store::policy::{OnDuplicate, RoutePolicy};
use crate::words::{Height, RouteName, Token, UnixMs};

/// How many faults are told one by one.
const FAULTS_MAX: usize = 100;

/// A record that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which record.
    pub record: String,
    /// What is wrong with it.
    pub rule: String,
}

impl Fault {
    pub(crate) fn new(record: impl fmt::Display, rule: impl fmt::Display) -> Fault {
        Fault { record: record.to_string(), rule: rule.to_string() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.record, self.rule)
    }
}

/// What was found in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How many records of each kind could be read.
    pub records: Vec<(Kind, u64)>,
    /// What is wrong; the first hundred.
    pub faults: Vec<Fault>,
    /// How many more there are.
    pub more: u64,
}

impl Verdict {
    /// Whether every invariant holds.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_counts(f, &self.records)?;
        if self.is_sound() {
            return write!(f, "; every invariant holds");
        }
        write!(f, "; {} faults:", self.faults.len() as u64 + self.more)?;
        self.faults.iter().try_for_each(|fault| write!(f, "\n  {fault}"))?;
        if self.more > 0 { write!(f, "\n  and {} more", self.more) } else { Ok(()) }
    }
}

/// Checks a whole store.
pub(super) async fn verify(
    contents: &mut dyn Contents,
    now: UnixMs,
    on_progress: &mut dyn FnMut(u64),
) -> Result<Verdict, StoreError> {
    let (mut check, mut tally) = (Check::at(now), Tally::default());
    for kind in Kind::ALL {
        let mut at = Some(Vec::new());
        while let Some(place) = at {
            let page = contents.page(kind, place).await?;
            page.damaged.into_iter().for_each(|fault| check.faults.push(fault));
            for record in &page.records {
                tally.add(record)?;
                check.see(record);
            }
            on_progress(tally.count());
            at = page.next;
        }
    }
    check.end();
    contents.faults().await?.into_iter().for_each(|fault| check.faults.push(fault));
    Ok(Verdict { records: tally.counts(), faults: check.faults.first, more: check.faults.more })
}

/// What was found so far.
#[derive(Debug, Default)]
struct Faults {
    first: Vec<Fault>,
    more: u64,
}

impl Faults {
    fn push(&mut self, fault: Fault) {
        if self.first.len() < FAULTS_MAX {
            self.first.push(fault);
        } else {
            self.more += 1;
        }
    }

    /// Notes that a record breaks a rule, unless it holds.
    fn unless(&mut self, holds: bool, record: &dyn fmt::Display, rule: impl fmt::Display) {
        if !holds {
            self.push(Fault::new(record, rule));
        }
    }
}

/// A route as others refer to it.
#[derive(Debug)]
struct RouteSeen {
    name: RouteName,
    policy: RoutePolicy,
}

/// What is known of a store, as its records pass in the order of their kinds.
#[derive(Debug)]
struct Check {
    now: UnixMs,
    faults: Faults,
    numbers: Numbers,
    routes: Vec<(u16, RouteSeen)>,
    origins: Vec<(u16, Height)>,
    history: History,
    lanes: Lanes,
    requests: Requests,
    groups: Groups,
}

impl Check {
    fn at(now: UnixMs) -> Check {
        Check {
            now,
            faults: Faults::default(),
            numbers: Numbers::new(0, Default::default()),
            routes: Vec::new(),
            origins: Vec::new(),
            history: History::default(),
            lanes: Lanes::default(),
            requests: Requests::default(),
            groups: Groups::default(),
        }
    }

    fn see(&mut self, record: &Record) {
        match record {
            Record::Numbers(numbers) => self.numbers = *numbers,
            Record::Fixture(fixture) => self.see_fixture(record, fixture),
            Record::Entry(entry) => {
                let known = entry.route.is_none_or(|RouteNo(no)| self.route(no).is_some());
                self.faults.unless(known, record, "is of a route that does not exist");
                self.history.see(&mut self.faults, record, entry);
            }
            Record::Parcel { lane, nonce, parcel } => self.see_parcel(record, *lane, *nonce, parcel),
            Record::Request(whole) => self.see_request(record, whole),
            Record::Group { no, row } => self.see_group(record, *no, row),
            Record::Item { no, row, .. } => self.see_item(record, *no, row),
            Record::Receipt { key, receipt } => self.see_receipt(record, key, receipt),
        }
    }

    /// Checks what only the whole can tell.
    fn end(&mut self) {
        let Check { faults, routes, origins, lanes, .. } = self;
        check_numbering(faults, "route", routes.iter().map(|(no, _)| *no));
        check_numbering(faults, "origin", origins.iter().map(|(no, _)| *no));
        check_numbering(faults, "lane", lanes.numbers());
        self.history.end(&mut self.faults, self.numbers.high.entry);
        self.end_parcels();
        self.requests.end(&mut self.faults);
        self.end_groups();
    }

    fn see_fixture(&mut self, record: &Record, fixture: &Fixture) {
        let faults = &mut self.faults;
        match fixture {
            Fixture::Route { no, name, policy, .. } => {
                if let Err(invalid) = policy.check() {
                    faults.push(Fault::new(record, format!("has policies that cannot be: {invalid}")));
                }
                self.routes.push((no.0, RouteSeen { name: name.clone(), policy: policy.clone() }));
            }
            Fixture::Origin { no, floor, .. } => self.origins.push((no.0, *floor)),
            Fixture::Lane { no, next, settled, .. } => {
                faults.unless(settled <= next, record, "has settled slots that it never gave out");
                self.lanes.see(*no, *next);
            }
            Fixture::Seat { tenure, .. } => self.check_token(record, tenure.token),
            Fixture::Cursor { .. } => {}
        }
    }

    /// A token of an epoch to come would be taken for proof of a rollback.
    fn check_token(&mut self, record: &Record, token: Token) {
        let holds = token.epoch <= self.numbers.epoch;
        self.faults.unless(holds, record, format!("has token {token}, of a start that has not been"));
    }

    fn route(&self, no: u16) -> Option<&RouteSeen> {
        self.routes.iter().find(|(known, _)| *known == no).map(|(_, route)| route)
    }

    fn check_origin(&mut self, record: &Record, origin: Option<OriginNo>) {
        if let Some(OriginNo(no)) = origin {
            let known = self.origins.iter().any(|(known, _)| *known == no);
            self.faults.unless(known, record, format!("refers to origin number {no}, which does not exist"));
        }
    }

    fn see_receipt(&mut self, record: &Record, key: &ColdKey, receipt: &ColdReceipt) {
        match (key, receipt) {
            (ColdKey::Request(id), ColdReceipt::Ended { generation, blocks_until, last_entry, .. }) => {
                self.check_last_entry(record, id, *last_entry);
                // One that waited behind it may have ended first.
                let Some(live) = self.requests.front(id).filter(|live| live.generation > *generation) else { return };
                // Policies that were others then may have let it in.
                let policy =
                    self.route(live.route).filter(|route| self.history.kept_policies(&route.name, *last_entry));
                let blocks = policy.is_some_and(|route| route.policy.on_duplicate != OnDuplicate::NewGeneration);
                let holds = !blocks || *blocks_until <= self.latest();
                self.faults.unless(holds, record, "blocks its id, and yet a live request has it");
            }
            (ColdKey::Occurrence(id), ColdReceipt::Seen { origin, kept_until, .. }) => {
                self.check_origin(record, origin.map(|(no, _)| no));
                let counts = match origin {
                    Some((no, height)) => self.origins.iter().any(|(known, floor)| *known == no.0 && height >= floor),
                    None => *kept_until > self.latest(),
                };
                let holds = !counts || !self.requests.shows(id);
                self.faults.unless(holds, record, "still counts, and yet a live request shows it");
            }
            _ => self.faults.push(Fault::new(record, "tells of something else than its key")),
        }
    }

    /// Now, or the latest time that the store has seen, if its clock stepped back since.
    fn latest(&self) -> UnixMs {
        self.now.max(self.history.latest()).max(self.requests.latest())
    }

    fn check_last_entry(&mut self, record: &Record, id: &crate::words::RequestId, position: u64) {
        let next = self.numbers.high.entry;
        if position == 0 || position >= next {
            let rule = format!("ends its timeline at entry {position}, where the journal never was");
            self.faults.push(Fault::new(record, rule));
            return;
        }
        let holds = self.history.tells_of(id, position);
        self.faults.unless(holds, record, format!("ends its timeline at entry {position}, which is not its own"));
    }
}

/// Numbers are places in a list, so they have no holes and none comes twice.
fn check_numbering(faults: &mut Faults, what: &str, numbers: impl Iterator<Item = u16>) {
    let mut numbers: Vec<u16> = numbers.collect();
    numbers.sort_unstable();
    for (place, no) in numbers.into_iter().enumerate() {
        if usize::from(no) != place {
            let rule = format!("has number {no}, and number {place} is missing or came twice");
            return faults.push(Fault::new(format!("a {what}"), rule));
        }
    }
}
