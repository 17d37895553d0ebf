//! What people and programs watch: counts, routes, lanes, origins, and the stream of updates.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::{Extension, Json};
use futures_util::Stream;
use roundtrip::store::op::Seat;
use roundtrip::store::query::{JournalPage, LaneView};
use roundtrip::store::{Changes, ReadExt, Topic};
use roundtrip::words::{LaneName, RequestId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::auth::Caller;
use super::body::Whole;
use super::lanes::WireLane;
use super::path::Path;
use super::policies::WireRoute;
use super::problem::Problem;
use super::views::{EVENTS, WireCount, WireEntry, WireOrigin};
use crate::doctor::{self, Diagnosis, Here};

/// Updates in one read.
const PAGE: usize = 256;
/// How often to look for updates without a hint.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often something is sent where nothing happens.
const ALIVE_EVERY: Duration = Duration::from_secs(15);

/// The event of whoever has missed something.
const RESET: &str = "reset";

/// Counts of live requests.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Counts {
    /// Of each route and state that has any.
    pub counts: Vec<WireCount>,
}

/// How many live requests each route has in each state.
#[utoipa::path(
    get, path = "/v1/counts", tag = "watch",
    responses(
        (status = 200, description = "The counts.", body = Counts),
        Problem,
    ),
)]
pub(super) async fn counts(State(api): State<Api>) -> Result<Json<Counts>, Problem> {
    let counts = api.store.counts().await?;
    Ok(Json(Counts { counts: counts.into_iter().map(WireCount::from).collect() }))
}

/// All routes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Routes {
    /// By name.
    pub routes: Vec<WireRoute>,
}

/// All routes.
#[utoipa::path(
    get, path = "/v1/routes", tag = "watch",
    responses(
        (status = 200, description = "The routes.", body = Routes),
        Problem,
    ),
)]
pub(super) async fn routes(State(api): State<Api>) -> Result<Json<Routes>, Problem> {
    let routes = api.store.routes().await?;
    let deliveries = &api.premises.deliveries;
    Ok(Json(Routes { routes: routes.into_iter().map(|route| WireRoute::of(route, deliveries)).collect() }))
}

/// All lanes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Lanes {
    /// By name, without their parcels.
    pub lanes: Vec<WireLane>,
}

/// All lanes, without their parcels.
#[utoipa::path(
    get, path = "/v1/lanes", tag = "watch",
    responses(
        (status = 200, description = "The lanes.", body = Lanes),
        Problem,
    ),
)]
pub(super) async fn lanes(State(api): State<Api>) -> Result<Json<Lanes>, Problem> {
    let lanes = api.store.lanes().await?;
    let shown = |lane: LaneView| WireLane { at_fee_cap: api.premises.at_fee_cap(&lane.name), ..WireLane::from(lane) };
    Ok(Json(Lanes { lanes: lanes.into_iter().map(shown).collect() }))
}

/// One lane with its parcels.
#[utoipa::path(
    get, path = "/v1/lanes/{lane}", tag = "watch", params(("lane" = String, Path, description = "Which lane.")),
    responses(
        (status = 200, description = "The lane.", body = WireLane),
        Problem,
    ),
)]
pub(super) async fn lane(State(api): State<Api>, Path(lane): Path<String>) -> Result<Json<WireLane>, Problem> {
    let name = LaneName::new(&lane)?;
    let found = api.store.lane(name.clone()).await?;
    let found = found.ok_or_else(|| Problem::not_found(format!("no lane is called {lane:?}")))?;
    let (at_fee_cap, seat) = (api.premises.at_fee_cap(&name), api.store.seat(Seat::Lane(name)).await?);
    Ok(Json(WireLane { at_fee_cap, ..WireLane::whole(found, seat, &api.premises.calls) }))
}

/// All origins.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Origins {
    /// By name.
    pub origins: Vec<WireOrigin>,
}

/// Where requests come from, and how far the store has been told of each.
#[utoipa::path(
    get, path = "/v1/origins", tag = "watch",
    responses(
        (status = 200, description = "The origins.", body = Origins),
        Problem,
    ),
)]
pub(super) async fn origins(State(api): State<Api>) -> Result<Json<Origins>, Problem> {
    let origins = api.store.origins().await?;
    Ok(Json(Origins { origins: origins.into_iter().map(WireOrigin::from).collect() }))
}

/// What the process has done and how everything stands, for Prometheus; `docs/metrics.md` has the list.
#[utoipa::path(
    get, path = "/metrics", tag = "watch",
    responses(
        (status = 200, description = "The metrics.", body = String, content_type = "application/openmetrics-text"),
        Problem,
    ),
)]
pub(super) async fn metrics(State(api): State<Api>) -> Response {
    api.telemetry.scrape().await
}

/// How old what is told may be.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct DoctorQuery {
    /// What was found less than so many milliseconds ago will do; else everything is looked at anew, and nodes are asked.
    pub within_ms: Option<Whole>,
}

/// Whether all is well with the store, its server, routes, lanes, listeners, nodes and accounts; and
/// what to do about what is not.
#[utoipa::path(
    get, path = "/v1/doctor", tag = "watch", params(DoctorQuery),
    responses(
        (status = 200, description = "What was found.", body = Diagnosis),
        Problem,
    ),
)]
pub(super) async fn doctor(
    State(api): State<Api>,
    query: Result<Query<DoctorQuery>, QueryRejection>,
) -> Result<Json<Diagnosis>, Problem> {
    let Query(query) = query?;
    let age = Duration::from_millis(query.within_ms.map_or(0, |within| within.0));
    let look = async {
        let (now, premises) = (api.now(), &api.premises);
        let tools = premises.tools.iter().map(|(route, tool)| (route.clone(), tool.away())).collect();
        // What cannot be asked is what it is asked about.
        let listeners = api.listeners().await.map_err(|problem| problem.detail);
        let here = Here { listeners, tools, senders: premises.senders.values().cloned().collect() };
        doctor::examine(&*api.store, here, &premises.outside, now).await
    };
    Ok(Json(api.looks.within(age, look).await))
}

/// Which updates.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdatesQuery {
    /// From this place of the journal on; from now on if absent. `Last-Event-ID` goes before it.
    pub from: Option<Whole>,
    /// Only about this request.
    pub request: Option<String>,
    /// Only of requests of this route, and of the route itself.
    pub route: Option<String>,
    /// Only of this lane.
    pub lane: Option<String>,
    /// Only these events, such as `admitted`, `leased`, `answered`, `ended`; several with commas. One that nobody knows
    /// is refused with the list of those that there are. `reset` is always told.
    pub event: Option<String>,
}

/// What a filter can name.
struct Nameable {
    routes: BTreeSet<String>,
    lanes: BTreeSet<String>,
}

impl UpdatesQuery {
    /// The same in the words of the journal, unless it could never match anything: silence would look like peace.
    fn sensible(self, nameable: &Nameable) -> Result<UpdatesQuery, String> {
        let request = self.request.map(|text| match text.parse::<RequestId>() {
            Ok(id) => Ok(id.to_string()),
            Err(error) => Err(format!("no update is of the request {text:?}: {error}")),
        });
        let known = |what: &str, name: &Option<String>, names: &BTreeSet<String>| match name {
            Some(name) if !names.contains(name) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let there_is = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                Err(format!("no {what} is called {name:?}: there is {there_is}"))
            }
            _ => Ok(()),
        };
        known("route", &self.route, &nameable.routes)?;
        known("lane", &self.lane, &nameable.lanes)?;
        let mut events = self.event.iter().flat_map(|events| events.split(',').map(str::trim));
        if let Some(unknown) = events.find(|event| *event != RESET && !EVENTS.contains(event)) {
            return Err(format!("no event is called {unknown:?}: there is {}", EVENTS.join(", ")));
        }
        Ok(UpdatesQuery { request: request.transpose()?, ..self })
    }

    fn wants(&self, entry: &WireEntry) -> bool {
        let fits = |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
        let events =
            self.event.as_deref().is_none_or(|events| events.split(',').any(|event| event.trim() == entry.event));
        events
            && fits(&self.request, &entry.request)
            && fits(&self.route, &entry.route)
            && fits(&self.lane, &entry.lane)
    }
}

/// What happens, as it happens: server-sent events from the journal.
///
/// Each has its place in the journal as its id: whoever comes back with it as `Last-Event-ID` goes
/// on where it was. An event `reset` says that what was asked for is forgotten: read the state anew.
/// A filter that could never match, such as an event, a route or a lane that there is not, is refused.
#[utoipa::path(
    get, path = "/v1/updates", tag = "watch", params(UpdatesQuery),
    responses(
        (status = 200, description = "The stream.", body = WireEntry, content_type = "text/event-stream"),
        (status = 400, description = "A filter names what there is not; the detail says what there is.", body = Problem,
            content_type = "application/problem+json"),
        Problem,
    ),
)]
pub(super) async fn updates(
    State(api): State<Api>,
    query: Result<Query<UpdatesQuery>, QueryRejection>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let Query(query) = query?;
    let nameable = api.nameable(&query).await?;
    let query = query.sensible(&nameable).map_err(|why| Problem::new(StatusCode::BAD_REQUEST, why))?;
    let last = headers.get("last-event-id").map(|value| value.to_str().ok().and_then(|text| text.parse::<u64>().ok()));
    // A place that is none is one that is forgotten: whoever names it has missed something.
    let lost = last == Some(None);
    let from = match last.flatten().map(|last| last.saturating_add(1)).or(query.from.map(|from| from.0)) {
        Some(from) if !lost => from,
        _ => api.store.journal(u64::MAX, 1).await?.head,
    };
    let changes = api.store.changes(Topic::Journal);
    let ready = lost.then(|| reset(from)).into_iter().collect();
    let reader = Reader { api, query, from, changes, until: caller.until, ready };
    let stream = futures_util::stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((Ok(event), reader))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(ALIVE_EVERY)))
}

impl Api {
    /// What this filter can name: what there is, and what is configured and will be.
    async fn nameable(&self, query: &UpdatesQuery) -> Result<Nameable, Problem> {
        let mut routes: BTreeSet<String> = self.premises.routes.keys().cloned().collect();
        if query.route.is_some() {
            routes.extend(self.store.routes().await?.into_iter().map(|route| route.name.to_string()));
        }
        let mut lanes: BTreeSet<String> = self.premises.outside.lanes().map(str::to_owned).collect();
        if query.lane.is_some() {
            lanes.extend(self.store.lanes().await?.into_iter().map(|lane| lane.name.to_string()));
        }
        Ok(Nameable { routes, lanes })
    }
}

/// Says that something was missed; whoever comes back with its id goes on from here.
fn reset(from: u64) -> Event {
    Event::default().id(from.saturating_sub(1).to_string()).event(RESET).data("read the state anew")
}

/// Whoever follows the journal.
struct Reader {
    api: Api,
    query: UpdatesQuery,
    from: u64,
    changes: Changes,
    /// When the caller's token expires.
    until: Option<Instant>,
    ready: VecDeque<Event>,
}

impl Reader {
    /// The next event; `None` when the program stops, or the caller may no longer listen.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.api.stopping() || self.until.is_some_and(|until| Instant::now() >= until) {
                return None;
            }
            // A store that does not answer now is asked again.
            let page = self.api.store.journal(self.from, PAGE).await.ok();
            if page.is_some_and(|page| self.take(page)) {
                continue;
            }
            tokio::select! {
                () = self.changes.hinted() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.api.shutdown.cancelled() => {}
            }
        }
    }

    /// Takes what a page shows; whether there may be more at once.
    fn take(&mut self, page: JournalPage) -> bool {
        if page.reset {
            self.from = page.entries.first().map_or(page.head, |entry| entry.position);
            self.ready.push_back(reset(self.from));
        }
        let any = !page.entries.is_empty();
        for entry in page.entries {
            self.from = entry.position + 1;
            let entry = WireEntry::from(entry);
            if self.query.wants(&entry) {
                let event = Event::default().id(entry.position.to_string()).event(&*entry.event);
                self.ready.extend(event.json_data(&entry));
            }
        }
        any || !self.ready.is_empty()
    }
}
