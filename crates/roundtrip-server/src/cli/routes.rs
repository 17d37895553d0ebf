//! Routes: how full they are, and whether they hand out work.

use std::collections::BTreeMap;

use anyhow::bail;
use clap::Subcommand;
use serde::Serialize;
use serde_json::Value;

use super::desk::{self, Desk, look};
use super::given::Reach;
use super::requests::{segment, word};
use super::show::{self, Table, ago, now_ms, or_dash};
use crate::api::operate::Done;
use crate::api::policies::WireRoute;
use crate::api::watch::{Counts, Routes as AllRoutes};

/// What is done to routes.
#[derive(Subcommand)]
pub(super) enum Routes {
    /// Lists them, with how many requests each has.
    List {
        #[command(flatten)]
        reach: Reach,
    },
    /// Hands out nothing more; what workers have in hand goes on.
    Pause {
        /// Which route.
        route: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Hands out work again.
    Resume {
        /// Which route.
        route: String,
        #[command(flatten)]
        reach: Reach,
    },
}

/// A route with its counts.
#[derive(Serialize)]
pub(super) struct Filled {
    #[serde(flatten)]
    pub(super) route: WireRoute,
    /// How many live requests it has.
    pub(super) live: u64,
    /// How many in each state that has any.
    pub(super) states: BTreeMap<String, u64>,
    /// When the oldest came in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) oldest_at_ms: Option<u64>,
}

impl Routes {
    pub(super) async fn act(self) -> anyhow::Result<()> {
        match self {
            Routes::List { reach } => {
                let routes = look(&reach, filled).await?;
                show::print(reach.json, &routes, |routes| table(routes, now_ms()))
            }
            Routes::Pause { route, reach } => order("pause", &route, &reach).await,
            Routes::Resume { route, reach } => order("resume", &route, &reach).await,
        }
    }
}

async fn order(order: &str, route: &str, reach: &Reach) -> anyhow::Result<()> {
    let path = format!("/v1/routes/{}/{order}", segment(route)?);
    let done: Done = desk::order(reach, async |desk| desk.post(&path, &Value::Null).await).await?;
    let past = if order == "pause" { "paused" } else { "resumed" };
    show::print(reach.json, &done, |done| match &*done.result {
        "already" => format!("route {route} was {past} before\n"),
        _ => format!("route {route} is {past}\n"),
    })
}

/// Refuses a route that there is not: a list of its requests would be empty, as that of one without any.
pub(super) async fn must_exist(desk: &Desk, route: Option<&str>) -> anyhow::Result<()> {
    let Some(route) = route else { return Ok(()) };
    let AllRoutes { routes } = desk.get("/v1/routes").await?;
    let names: Vec<&str> = routes.iter().map(|route| route.name.as_str()).collect();
    match (names.contains(&route), names.is_empty()) {
        (true, _) => Ok(()),
        (false, true) => bail!("no route is called {route:?}: there is none yet"),
        (false, false) => bail!("no route is called {route:?}: there are {}", names.join(", ")),
    }
}

/// Every route with its counts.
pub(super) async fn filled(desk: &Desk) -> anyhow::Result<Vec<Filled>> {
    let AllRoutes { routes } = desk.get("/v1/routes").await?;
    let Counts { counts } = desk.get("/v1/counts").await?;
    let fill = |route: WireRoute| {
        let of: Vec<_> = counts.iter().filter(|count| count.route == route.name).collect();
        let states = of.iter().map(|count| (word(&count.state), count.requests)).collect();
        let (live, oldest_at_ms) =
            (of.iter().map(|count| count.requests).sum(), of.iter().map(|count| count.oldest_at_ms).min());
        Filled { route, live, states, oldest_at_ms }
    };
    Ok(routes.into_iter().map(fill).collect())
}

/// The routes in one view.
pub(super) fn table(routes: &Vec<Filled>, now_ms: u64) -> String {
    let mut table = Table::of(&[
        "route", "to", "held", "queued", "leased", "answered", "sending", "dead", "live", "capacity", "oldest",
        "paused",
    ]);
    for filled in routes {
        let of = |states: &[&str]| states.iter().filter_map(|state| filled.states.get(*state)).sum::<u64>().to_string();
        table.row([
            filled.route.name.clone(),
            or_dash(filled.route.destination.clone()),
            of(&["held"]),
            of(&["queued"]),
            of(&["leased"]),
            of(&["waiting", "ready"]),
            of(&["assigned", "included", "confirmed"]),
            of(&["dead"]),
            filled.live.to_string(),
            filled.route.capacity.to_string(),
            or_dash(filled.oldest_at_ms.map(|at| ago(at, now_ms))),
            if filled.route.paused { "paused" } else { "" }.to_owned(),
        ]);
    }
    if routes.is_empty() { "there is no route yet\n".to_owned() } else { table.to_string() }
}
