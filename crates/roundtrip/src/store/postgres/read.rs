//! The reads: a snapshot, the rows that one read looks at, and the machine's own functions
//! over them. Counts alone are answered by their table.

use std::sync::PoisonError;

use super::fetch::{Fetched, Flight, Sight, few, payload};
use super::needs::Needs;
use super::wire::{Call, Param, PgError, Wire, decode, int, param, uint};
use super::{FIXTURES, Fixtures, NUMBERS, Numbers, PostgresStore, loan};
use crate::inbox::{RouteNo, StateKind};
use crate::outbox::LaneNo;
use crate::store::StoreError;
use crate::store::disk::{ColdKey, ColdReceipt, Fixture};
use crate::store::journal::Entry;
use crate::store::machine::{LOOK_MAX, Machine, TIMELINE_MAX};
use crate::store::query::{Count, ListFilter, Query, Reply};
use crate::words::{Destination, GroupKey, LaneName, PAGE_MAX, REPLY_BYTES_MAX, RequestId, RouteName, Seq, UnixMs};

const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
const COUNTS: &str = "
SELECT c.route, c.state, c.requests, (SELECT l.admitted_at FROM live l
    WHERE l.route = c.route AND l.state = c.state ORDER BY l.seq LIMIT 1)
FROM counted c WHERE c.requests > 0 ORDER BY c.route, c.state";
const PAGE: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline FROM unnest($1::integer[], $2::smallint[]) w(route, state),
    LATERAL (SELECT * FROM live WHERE route = w.route AND state = w.state AND seq > $3 ORDER BY seq LIMIT $4) l
ORDER BY l.seq LIMIT $4";
const READY: &str = "
SELECT l.seq, l.record, l.state, l.turn, l.due, l.deadline, l.encoding, l.payload FROM (
    SELECT f.*, r.encoding, r.payload, sum(length(r.payload)) OVER (ORDER BY f.seq) - length(r.payload) AS before FROM (
        SELECT l.* FROM unnest($1::integer[]) w(route),
            LATERAL (SELECT * FROM live WHERE route = w.route AND state = 4 AND seq > $2 ORDER BY seq LIMIT $3) l
        ORDER BY l.seq LIMIT $3) f JOIN response r USING (seq)) l
WHERE l.before <= $4";
const CHAIN: &str = "
WITH RECURSIVE chain AS (
    SELECT position, previous, record, 1 AS length FROM journal WHERE position = $1
    UNION ALL SELECT j.position, j.previous, j.record, c.length + 1
    FROM chain c JOIN journal j ON j.position = c.previous WHERE c.length < $2)
SELECT record FROM chain";
const ENTRIES: &str = "SELECT record FROM journal WHERE position >= $1 ORDER BY position LIMIT $2";
const ITEM_PAYLOADS: &str = "
SELECT no, encoding, payload FROM (
    SELECT i.no, i.encoding, i.payload, sum(length(i.payload)) OVER (ORDER BY i.no) - length(i.payload) AS before FROM (
        SELECT i.* FROM item i JOIN grp g ON i.grp = g.no WHERE g.key = $1 ORDER BY i.no OFFSET $2 LIMIT $3) i) i
WHERE before <= $4";

impl PostgresStore {
    pub(super) async fn answer(&self, query: Query) -> Result<Reply, StoreError> {
        let epoch = self.epoch().await?;
        let _turn = self.readers.acquire().await.map_err(|_closed| StoreError::Closed)?;
        let idle = self.idle_readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut wire = match idle.filter(|wire| !wire.is_closed()) {
            Some(wire) => wire,
            None => self.server.connect().await?,
        };
        let reply = self.answer_on(&mut wire, epoch, query).await.map_err(|error| error.at(&self.server.name))?;
        self.idle_readers.lock().unwrap_or_else(PoisonError::into_inner).push(wire);
        Ok(reply)
    }

    async fn answer_on(&self, wire: &mut Wire, epoch: u64, query: Query) -> Result<Reply, PgError> {
        let mut fixtures = Fixtures { version: -1, ..Fixtures::default() };
        let calls = vec![Call::new(NUMBERS, Vec::new()), Call::new(FIXTURES, vec![param(fixtures.version)])];
        let answers = wire.fly(SNAPSHOT, calls, "").await?;
        let numbers = self.server.take_in(&answers, &mut fixtures)?;
        let sight = Sight { now: numbers.now, epoch, tokens: 0, fixtures: &fixtures.rows };
        let reply = match query {
            Query::Counts => Reply::Counts(counts(wire, &sight).await?),
            query => {
                let mut fetched = self.fetch(wire, &query, &sight, &numbers).await?;
                let mut machine = Machine::borrow(self.options, loan(&sight, &numbers, &fetched));
                machine.set_now(numbers.now);
                let mut tray = std::mem::take(&mut fetched.tray);
                machine.read(&mut tray, query)
            }
        };
        wire.run("COMMIT").await?;
        Ok(reply)
    }

    /// What this read looks at.
    async fn fetch(
        &self,
        wire: &mut Wire,
        query: &Query,
        sight: &Sight<'_>,
        numbers: &Numbers,
    ) -> Result<Fetched, PgError> {
        match query {
            Query::Get(id) => Fetched::named(wire, &of_id(*id), sight).await,
            Query::List(filter) => {
                let mut flight = Flight::default();
                flight.add_live(PAGE, page(filter, sight));
                Fetched::by(wire, flight, sight).await
            }
            Query::Timeline(id) => {
                let mut fetched = Fetched::named(wire, &of_id(*id), sight).await?;
                let last = last_entry(&fetched, *id);
                fetched.take_entries(wire, CHAIN, vec![param(int(last)), param(few_i32(TIMELINE_MAX))]).await?;
                Ok(fetched)
            }
            Query::Journal { from, limit } => {
                let floor = numbers.high.entry.saturating_sub(self.options.journal_entries).max(numbers.journal_floor);
                let mut fetched = Fetched::default();
                let page = vec![param(int(floor.max(*from))), param(few((*limit).clamp(1, PAGE_MAX)))];
                if *from <= numbers.high.entry {
                    fetched.take_entries(wire, ENTRIES, page).await?;
                }
                Ok(fetched)
            }
            Query::Ready { destination, after, limit } => ready(wire, sight, destination, *after, *limit).await,
            Query::Lanes => {
                let needs = Needs { lanes: lanes(sight).map(|(no, _)| no).collect(), ..Needs::default() };
                Fetched::named(wire, &needs, sight).await
            }
            Query::Lane(name) => {
                let lanes = lanes(sight).filter(|(_, other)| *other == name).map(|(no, _)| no).collect();
                Fetched::named(wire, &Needs { lanes, ..Needs::default() }, sight).await
            }
            Query::Group { group, skip, limit } => items(wire, sight, group, *skip, *limit).await,
            Query::Counts | Query::Routes | Query::Cursor(_) | Query::Origins | Query::Seat(_) => {
                Ok(Fetched::default())
            }
        }
    }
}

fn of_id(id: RequestId) -> Needs {
    Needs { ids: [id].into(), bodies: [id].into(), ..Needs::default() }
}

fn lanes<'a>(sight: &'a Sight<'_>) -> impl Iterator<Item = (LaneNo, &'a LaneName)> {
    sight.fixtures.values().filter_map(|fixture| match fixture {
        Fixture::Lane { no, name, .. } => Some((*no, name)),
        _ => None,
    })
}

fn routes<'a>(sight: &'a Sight<'_>) -> impl Iterator<Item = (RouteNo, &'a RouteName, Option<&'a Destination>)> {
    sight.fixtures.values().filter_map(|fixture| match fixture {
        Fixture::Route { no, name, policy, .. } => Some((*no, name, policy.destination.as_ref())),
        _ => None,
    })
}

/// A page's routes and states, where it starts, and how many it looks at: with a filter that
/// only the records can tell, as many as a read may.
fn page<'a>(filter: &ListFilter, sight: &Sight<'_>) -> Vec<Param<'a>> {
    let states: &[StateKind] = if filter.states.is_empty() { &StateKind::LIVE } else { &filter.states };
    let (mut of_routes, mut of_states) = (Vec::new(), Vec::new());
    for (no, _, _) in routes(sight).filter(|(_, name, _)| filter.route.as_ref().is_none_or(|only| only == *name)) {
        for state in states.iter().filter(|state| StateKind::LIVE.contains(state)) {
            of_routes.push(i32::from(no.0));
            of_states.push(*state as i16);
        }
    }
    let picks = filter.from.is_some() || filter.to.is_some() || filter.error_text.is_some();
    let limit = if picks || !filter.id_prefix.is_empty() { LOOK_MAX } else { filter.limit.clamp(1, PAGE_MAX) };
    let after = filter.after.map_or(0, |seq| int(seq.0));
    vec![param(of_routes), param(of_states), param(after), param(few(limit))]
}

fn few_i32(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Where a request's timeline ends.
fn last_entry(fetched: &Fetched, id: RequestId) -> u64 {
    let live = fetched.live.values().find(|loaded| loaded.request.id == id && !loaded.request.behind);
    match (live, fetched.tray.cold.get(&ColdKey::Request(id))) {
        (Some(loaded), _) => loaded.request.last_entry,
        (None, Some(ColdReceipt::Ended { last_entry, .. })) => *last_entry,
        _ => 0,
    }
}

async fn ready(
    wire: &mut Wire,
    sight: &Sight<'_>,
    destination: &Destination,
    after: Option<Seq>,
    limit: usize,
) -> Result<Fetched, PgError> {
    let serving = routes(sight).filter(|(_, _, to)| *to == Some(destination));
    let serving: Vec<i32> = serving.map(|(no, _, _)| i32::from(no.0)).collect();
    let bounds = vec![
        param(serving),
        param(after.map_or(0, |seq| int(seq.0))),
        param(few(limit.min(PAGE_MAX))),
        param(few(REPLY_BYTES_MAX)),
    ];
    let mut fetched = Fetched::default();
    for row in wire.query(READY, bounds).await? {
        let seq = fetched.take_live(&row)?;
        fetched.tray.responses.insert(seq, payload(&row, 6)?);
    }
    Ok(fetched)
}

async fn items(
    wire: &mut Wire,
    sight: &Sight<'_>,
    group: &GroupKey,
    skip: u64,
    limit: usize,
) -> Result<Fetched, PgError> {
    let needs = Needs { groups: [group.clone()].into(), ..Needs::default() };
    let mut fetched = Fetched::named(wire, &needs, sight).await?;
    let skip = i64::try_from(skip).unwrap_or(i64::MAX);
    let bounds = vec![param(group.as_str()), param(skip), param(few(limit.min(PAGE_MAX))), param(few(REPLY_BYTES_MAX))];
    for row in wire.query(ITEM_PAYLOADS, bounds).await? {
        fetched.tray.item_payloads.insert(uint(row.try_get(0)?), payload(&row, 1)?);
    }
    Ok(fetched)
}

async fn counts(wire: &mut Wire, sight: &Sight<'_>) -> Result<Vec<Count>, PgError> {
    let mut counts = Vec::new();
    for row in wire.query(COUNTS, Vec::new()).await? {
        let (no, state): (i32, i16) = (row.try_get(0)?, row.try_get(1)?);
        let name = routes(sight).find(|(route, _, _)| i32::from(route.0) == no).map(|(_, name, _)| name.clone());
        let state = StateKind::LIVE.into_iter().find(|kind| *kind as i16 == state);
        let (Some(route), Some(state)) = (name, state) else {
            return Err(PgError::damaged("counted", format!("route {no} in a state that is none")));
        };
        let oldest: Option<i64> = row.try_get(3)?;
        let oldest = oldest.ok_or_else(|| PgError::damaged("counted", "requests that are not there"))?;
        counts.push(Count { route, state, requests: uint(row.try_get(2)?), oldest_at: UnixMs(uint(oldest)) });
    }
    Ok(counts)
}

impl Fetched {
    async fn take_entries(&mut self, wire: &mut Wire, sql: &'static str, page: Vec<Param<'_>>) -> Result<(), PgError> {
        for row in wire.query(sql, page).await? {
            let entry: Entry = decode("journal", row.try_get(0)?)?;
            self.tray.journal.insert(entry.position, entry);
        }
        Ok(())
    }
}
