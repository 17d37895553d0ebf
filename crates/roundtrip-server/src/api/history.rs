//! What the journal told over time, and what ended lately.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use roundtrip::words::RouteName;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::body::{Whole, at_most};
use super::problem::Problem;
use super::requests::Prefix;
use super::views::{self, State as WireState};
use crate::history::Ended;
use crate::history::series::{REACH_MS, Step};

/// How much is told unless asked for more, in milliseconds.
const LAST_MS: u64 = 15 * 60 * 1000;
/// Ends in one answer.
const ENDS: usize = 100;
const ENDS_MAX: usize = 1000;

/// Of what, and how far back.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryQuery {
    /// Only of this route.
    pub route: Option<String>,
    /// The last so many milliseconds; a week at the most. The more, the coarser.
    pub last_ms: Option<Whole>,
}

/// Steps over time: columns of equal length, oldest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct WireHistory {
    /// Since when this process has read the journal, in milliseconds since 1970; before, all is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// The time here.
    pub now_ms: u64,
    /// The length of time that one entry of a column is of.
    pub step_ms: u64,
    /// When the first one begins.
    pub from_ms: u64,
    /// Requests that came in.
    pub admitted: Vec<u32>,
    /// That workers took.
    pub leased: Vec<u32>,
    /// That were answered.
    pub answered: Vec<u32>,
    /// That got a slot of a lane.
    pub assigned: Vec<u32>,
    /// Whose transaction came into a block.
    pub included: Vec<u32>,
    /// That are done: at their route's depth, delivered, or kept for whoever asks.
    pub settled: Vec<u32>,
    /// Failures that are tried again.
    pub failed: Vec<u32>,
    /// That became dead letters.
    pub died: Vec<u32>,
    /// Of those that are done, the ones whose answer is kept for whoever asks: nobody is sent it.
    pub kept: Vec<u32>,
    /// Half of those that settled took no longer from their admission, in milliseconds, within an eighth.
    pub half_ms: Vec<Option<u64>>,
    /// 99 of 100 of them took no longer.
    pub most_ms: Vec<Option<u64>>,
}

/// How many requests took each step over time, and how long they took.
///
/// It is told from the journal by the process that is asked, which keeps it in memory: after a
/// start it reaches back as far as the journal, but not beyond 100,000 of its entries.
#[utoipa::path(
    get, path = "/v1/history", tag = "watch", params(HistoryQuery),
    responses(
        (status = 200, description = "The columns.", body = WireHistory),
        Problem,
    ),
)]
pub(super) async fn history(
    State(api): State<Api>,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Result<Json<WireHistory>, Problem> {
    let Query(query) = query?;
    let now = api.now();
    let (mut table, since) = {
        let book = api.premises.history.book();
        let last_ms = query.last_ms.map_or(LAST_MS, |last| last.0).clamp(1, REACH_MS);
        (book.table(query.route.as_deref(), now, last_ms), book.since())
    };
    let mut column = |step: Step| std::mem::take(&mut table.steps[step as usize]);
    Ok(Json(WireHistory {
        since_ms: since.map(|since| since.0),
        now_ms: now.0,
        admitted: column(Step::Admitted),
        leased: column(Step::Leased),
        answered: column(Step::Answered),
        assigned: column(Step::Assigned),
        included: column(Step::Included),
        settled: column(Step::Settled),
        failed: column(Step::Failed),
        died: column(Step::Died),
        kept: column(Step::Kept),
        step_ms: table.step_ms,
        from_ms: table.from_ms,
        half_ms: table.half_ms,
        most_ms: table.most_ms,
    }))
}

/// Which ends.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct EndedQuery {
    /// Only of this route.
    pub route: Option<String>,
    /// Only those that ended like this; several with commas.
    pub state: Option<String>,
    /// Only those that ended at this time or later, in milliseconds since 1970.
    pub from_ms: Option<Whole>,
    /// Only those that ended before this time.
    pub to_ms: Option<Whole>,
    /// Only ids that begin with these hexadecimal digits.
    pub id_prefix: Option<String>,
    /// What the page before said is next.
    pub after: Option<Whole>,
    /// At most so many; 100 if nothing is said, 1000 at the most.
    #[param(minimum = 1)]
    pub limit: Option<usize>,
}

/// The same, read.
struct Wanted {
    route: Option<RouteName>,
    states: Vec<WireState>,
    from_ms: u64,
    to_ms: u64,
    prefix: Prefix,
    after: Option<u64>,
}

impl Wanted {
    fn read(query: &EndedQuery) -> Result<Wanted, Problem> {
        let states = views::states(query.state.as_deref())?;
        if let Some(live) = states.iter().find(|state| state.live().is_some_and(|_| **state != WireState::Dead)) {
            let why = format!("{live}: only requests that ended are listed here; /v1/requests has the others");
            return Err(Problem::unprocessable(why));
        }
        Ok(Wanted {
            route: query.route.as_deref().map(RouteName::new).transpose()?,
            states,
            from_ms: query.from_ms.unwrap_or_default().0,
            to_ms: query.to_ms.map_or(u64::MAX, |to| to.0),
            prefix: query.id_prefix.as_deref().map(str::parse).transpose()?.unwrap_or_default(),
            after: query.after.map(|after| after.0),
        })
    }

    fn has(&self, ended: &Ended) -> bool {
        self.after.is_none_or(|after| ended.position < after)
            && (self.route.is_none() || ended.route == self.route)
            && (self.states.is_empty() || self.states.contains(&ended.end.into()))
            && (self.from_ms..self.to_ms).contains(&ended.at.0)
            && ended.id.as_bytes().starts_with(&self.prefix.bytes)
            && self.prefix.fits(&ended.id)
    }
}

/// What ended lately.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct WireEnds {
    /// Newest first.
    pub requests: Vec<WireEnd>,
    /// Where the next page begins, if there is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// How many were done on each route since this process began to read the journal, by name: settled, or done
    /// elsewhere.
    pub totals: Vec<WireTotal>,
}

/// How many requests of a route were done.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct WireTotal {
    /// The route.
    pub route: String,
    /// How many.
    pub requests: u64,
}

/// A request that ended.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct WireEnd {
    /// Its id.
    pub id: String,
    /// Its route, if this process knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// How it ended.
    pub state: WireState,
    /// When it came in, if this process knows it, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admitted_at_ms: Option<u64>,
    /// When it ended.
    pub ended_at_ms: u64,
}

/// The requests that ended lately, newest first: at most 2,000, as this process was told.
#[utoipa::path(
    get, path = "/v1/ended", tag = "watch", params(EndedQuery),
    responses(
        (status = 200, description = "What ended.", body = WireEnds),
        Problem,
    ),
)]
pub(super) async fn ended(
    State(api): State<Api>,
    query: Result<Query<EndedQuery>, QueryRejection>,
) -> Result<Json<WireEnds>, Problem> {
    let Query(query) = query?;
    let (wanted, limit) = (Wanted::read(&query)?, at_most(query.limit, ENDS, ENDS_MAX)?);
    let book = api.premises.history.book();
    let mut found = book.ended().filter(|ended| wanted.has(ended));
    let page: Vec<&Ended> = found.by_ref().take(limit).collect();
    let next = page.last().map(|last| last.position).filter(|_| found.next().is_some());
    let shown = |ended: &Ended| WireEnd {
        id: ended.id.to_string(),
        route: ended.route.as_ref().map(ToString::to_string),
        state: ended.end.into(),
        admitted_at_ms: ended.admitted_at.map(|at| at.0),
        ended_at_ms: ended.at.0,
    };
    let on = book.done_on().filter(|(name, _)| wanted.route.as_ref().is_none_or(|route| route == *name));
    let totals = on.map(|(route, requests)| WireTotal { route: route.to_string(), requests });
    let requests = page.into_iter().map(shown).collect();
    Ok(Json(WireEnds { requests, next, totals: totals.collect() }))
}
