//! The reads: the rows that one read looks at, and the machine's own functions over them.
//! Counts alone are answered by the rows that hold them.

use super::Sight;
use super::fetch::Fetched;
use super::needs::Needs;
use super::record::Damaged;
use super::want::{CountedRow, Found, Lender, Want};
use crate::inbox::StateKind;
use crate::store::Options;
use crate::store::disk::{ColdKey, ColdReceipt};
use crate::store::machine::{LOOK_MAX, Machine, TIMELINE_MAX};
use crate::store::query::{Count, ListFilter, Query, Reply};
use crate::words::{PAGE_MAX, REPLY_BYTES_MAX, RequestId};

/// Answers a query by what a snapshot lends.
pub(in crate::store) async fn read<L: Lender>(
    lender: &mut L,
    options: Options,
    sight: &Sight<'_>,
    query: Query,
) -> Result<Reply, L::Error> {
    if query == Query::Counts {
        return Ok(Reply::Counts(counts(lender, sight).await?));
    }
    let mut fetched = fetch(lender, options, sight, &query).await?;
    let mut machine = Machine::borrow(options, fetched.loan(sight));
    machine.set_now(sight.numbers.now);
    let mut tray = std::mem::take(&mut fetched.tray);
    Ok(machine.read(&mut tray, query))
}

/// What this read looks at.
async fn fetch<L: Lender>(
    lender: &mut L,
    options: Options,
    sight: &Sight<'_>,
    query: &Query,
) -> Result<Fetched, L::Error> {
    let numbers = sight.numbers;
    match query {
        Query::Get(id) => Fetched::named(lender, &of_id(*id), sight).await,
        Query::List(filter) => Fetched::by(lender, vec![page(filter, sight)], sight).await,
        Query::Timeline(id) => {
            let mut fetched = Fetched::named(lender, &of_id(*id), sight).await?;
            let last = last_entry(&fetched, *id);
            fetched.fly(lender, vec![Want::Chain { last, limit: TIMELINE_MAX }]).await?;
            Ok(fetched)
        }
        Query::Journal { from, limit } => {
            let mut fetched = Fetched::default();
            if *from <= numbers.high.entry {
                let floor = numbers.high.entry.saturating_sub(options.journal_entries).max(numbers.journal_floor);
                let (from, limit) = (floor.max(*from), (*limit).clamp(1, PAGE_MAX));
                fetched.fly(lender, vec![Want::Entries { from, limit }]).await?;
            }
            Ok(fetched)
        }
        Query::Ready { destination, after, limit } => {
            let serving = sight.routes().filter(|(_, _, policy)| policy.destination.as_ref() == Some(destination));
            let routes = serving.map(|(no, _, _)| no).collect();
            let (after, limit) = (*after, (*limit).min(PAGE_MAX));
            Fetched::by(lender, vec![Want::Ready { routes, after, limit, bytes: REPLY_BYTES_MAX }], sight).await
        }
        Query::Lanes => {
            let windows = sight.lanes().map(|(no, _)| no).collect();
            Fetched::named(lender, &Needs { windows, ..Needs::default() }, sight).await
        }
        Query::Lane(name) => {
            let lanes = sight.lanes().filter(|(_, other)| *other == name).map(|(no, _)| no).collect();
            Fetched::named(lender, &Needs { lanes, ..Needs::default() }, sight).await
        }
        Query::Group { group, skip, limit } => {
            let needs = Needs { groups: [group.clone()].into(), ..Needs::default() };
            let mut fetched = Fetched::named(lender, &needs, sight).await?;
            let (group, skip, limit) = (group.clone(), *skip, (*limit).min(PAGE_MAX));
            fetched.fly(lender, vec![Want::ItemPayloads { group, skip, limit, bytes: REPLY_BYTES_MAX }]).await?;
            Ok(fetched)
        }
        Query::Counts
        | Query::Routes
        | Query::LaneOutlines
        | Query::Cursor(_)
        | Query::Cursors
        | Query::Origins
        | Query::Seat(_) => Ok(Fetched::default()),
    }
}

fn of_id(id: RequestId) -> Needs {
    Needs { ids: [id].into(), bodies: [id].into(), ..Needs::default() }
}

/// A page's routes and states, where it starts, and how many it looks at: with a filter that
/// only the records can tell, as many as a read may.
fn page(filter: &ListFilter, sight: &Sight<'_>) -> Want {
    let states: &[StateKind] = if filter.states.is_empty() { &StateKind::LIVE } else { &filter.states };
    let mut of = Vec::new();
    for (no, _, _) in sight.routes().filter(|(_, name, _)| filter.route.as_ref().is_none_or(|only| only == *name)) {
        of.extend(states.iter().filter(|state| StateKind::LIVE.contains(state)).map(|state| (no, *state)));
    }
    let picks = filter.from.is_some() || filter.to.is_some() || filter.error_text.is_some();
    let limit = if picks || !filter.id_prefix.is_empty() { LOOK_MAX } else { filter.limit.clamp(1, PAGE_MAX) };
    Want::Page { of, after: filter.after, limit }
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

async fn counts<L: Lender>(lender: &mut L, sight: &Sight<'_>) -> Result<Vec<Count>, L::Error> {
    let Some(Found::Counts(mut rows)) = lender.fly(&[Want::Counts]).await?.pop() else { return Ok(Vec::new()) };
    rows.sort_by_key(|row| (row.route, row.state));
    let mut counts = Vec::with_capacity(rows.len());
    for CountedRow { route: no, state, requests, oldest_at } in rows {
        let Some((_, route, _)) = sight.routes().find(|(route, _, _)| *route == no) else {
            return Err(Damaged::new("counts", format!("there is no route {}", no.0)).into());
        };
        counts.push(Count { route: route.clone(), state, requests, oldest_at });
    }
    Ok(counts)
}
