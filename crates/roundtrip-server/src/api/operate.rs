//! What a person does to routes and lanes. Every one of these is in the log, with who did it.

use std::borrow::Cow;
use std::time::Duration;

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::{Extension, Json};
use roundtrip::sender::{LaneStatus, Progress, Rebuild, Rebuilt};
use roundtrip::store::StoreExt;
use roundtrip::store::op::{AfterCancel, Effect, LaneOrder, Missing, Order, Outcome, Pause, Stale};
use roundtrip::words::{ErrorClass, ErrorNote, LaneName, Nonce, RouteName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;
use super::auth::Caller;
use super::body::Whole;
use super::path::Path;
use super::problem::Problem;

/// It is done.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Done {
    /// `done`, or `already` if it was so before.
    pub result: Cow<'static, str>,
}

fn done(outcome: Outcome, what: &str) -> Result<Json<Done>, Problem> {
    match outcome {
        Outcome::Applied(_) => Ok(Json(Done { result: "done".into() })),
        Outcome::Duplicate(_) => Ok(Json(Done { result: "already".into() })),
        Outcome::NotFound(_) => Err(Problem::not_found(format!("no {what} of this name is here"))),
        other => Err(other.into()),
    }
}

/// What is ordered of a route.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum RouteOrder {
    /// Nothing more is handed out.
    Pause,
    /// Work goes on.
    Resume,
}

/// Stops a route's work, or lets it go on. What is in a worker's hand goes on.
#[utoipa::path(
    post, path = "/v1/routes/{route}/{order}", tag = "operations",
    params(("route" = String, Path, description = "Which route."), ("order" = inline(RouteOrder), Path, description = "What is ordered.")),
    responses(
        (status = 200, description = "It is so.", body = Done),
        Problem,
    ),
)]
pub(super) async fn route(
    State(api): State<Api>,
    Path((route, order)): Path<(String, RouteOrder)>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Done>, Problem> {
    let (paused, called) = match order {
        RouteOrder::Pause => (true, "pause"),
        RouteOrder::Resume => (false, "resume"),
    };
    let outcome = api.store.apply_one(Pause { route: RouteName::new(&route)?, paused }).await?;
    super::audit(&caller, called, &route, outcome.holds());
    done(outcome, "route")
}

/// What is ordered of a lane.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum WireLaneOrder {
    /// Nothing new is sent.
    Pause,
    /// A pause or a quarantine ends.
    Resume,
    /// Nothing new is sent for `for_ms`.
    Quarantine,
    /// A stopped lane goes on from `next`.
    Reconcile,
    /// What is on the slot `nonce` is cancelled.
    Cancel,
}

/// With what it is ordered.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LaneCall {
    /// With `pause`: why, for the person who reads it.
    pub reason: Option<String>,
    /// With `quarantine`: for how long, in milliseconds.
    pub for_ms: Option<Whole>,
    /// With `reconcile`: the next slot that is free on the chain, after all that was used there was matched.
    pub next: Option<Whole>,
    /// With `cancel`: which slot.
    pub nonce: Option<Whole>,
    /// With `cancel`: whether the answers go out again on another slot; else they are dead letters.
    pub requeue: bool,
}

/// Pauses, resumes, quarantines or reconciles a lane, or cancels what is on one of its slots.
#[utoipa::path(
    post, path = "/v1/lanes/{lane}/{order}", tag = "operations",
    params(("lane" = String, Path, description = "Which lane."),
        ("order" = inline(WireLaneOrder), Path, description = "What is ordered.")),
    request_body = LaneCall,
    responses(
        (status = 200, description = "It is so.", body = Done),
        Problem,
    ),
)]
pub(super) async fn lane(
    State(api): State<Api>,
    Path((lane, order)): Path<(String, WireLaneOrder)>,
    Extension(caller): Extension<Caller>,
    call: Result<Option<Json<LaneCall>>, JsonRejection>,
) -> Result<Json<Done>, Problem> {
    let call = call?.map(|Json(call)| call).unwrap_or_default();
    let missing = |what: &str| Problem::unprocessable(format!("`{what}` is missing"));
    let what = match order {
        WireLaneOrder::Pause => {
            Order::Pause { reason: call.reason.clone().unwrap_or_else(|| format!("by {}", caller.name)).into() }
        }
        WireLaneOrder::Resume => Order::Resume,
        WireLaneOrder::Quarantine => Order::Quarantine { for_ms: call.for_ms.ok_or_else(|| missing("for_ms"))?.0 },
        WireLaneOrder::Reconcile => {
            Order::Reconcile { outside_next: Nonce(call.next.ok_or_else(|| missing("next"))?.0) }
        }
        WireLaneOrder::Cancel => {
            let note = || ErrorNote::new(ErrorClass::Fatal, &format!("cancelled by {}", caller.name));
            let then = if call.requeue { AfterCancel::Requeue } else { AfterCancel::Dead(note()) };
            Order::Cancel { nonce: Nonce(call.nonce.ok_or_else(|| missing("nonce"))?.0), then }
        }
    };
    let outcome = api.store.apply_one(LaneOrder { lane: LaneName::new(&lane)?, order: what }).await?;
    super::audit(&caller, &format!("{order:?}").to_lowercase(), &lane, outcome.holds());
    match outcome {
        Outcome::Stale(Stale::Lane(status))
            if matches!(order, WireLaneOrder::Reconcile) && status != LaneStatus::Stopped =>
        {
            Err(Problem::conflict("only a stopped lane is reconciled, and this one is not"))
        }
        Outcome::NotFound(Missing::Parcel(nonce)) => Err(Problem::not_found(format!("nothing is on slot {}", nonce.0))),
        Outcome::Applied(Effect::Lane(_)) => Ok(Json(Done { result: "done".into() })),
        outcome => done(outcome, "lane"),
    }
}

/// Asks for lanes to be rebuilt.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RebuildCall {
    /// For how long requests without an answer are waited for, in milliseconds.
    pub patience_ms: Whole,
}

/// How far a rebuild is.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct RebuildProgress {
    /// `idle` if nobody asked since the start, `waits`, or `done`.
    pub progress: Cow<'static, str>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// What it came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuilt: Option<WireRebuilt>,
}

/// What a rebuild came to.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireRebuilt {
    /// Transactions that the store did not know.
    pub sent: usize,
    /// Answers that were found in them, and are done.
    pub done: usize,
    /// Answers that were found in them, and that can never be sent.
    pub failed: usize,
    /// Transactions in which no answer was found.
    pub foreign: usize,
    /// Requests that were waited for in vain.
    pub unanswered: usize,
}

impl From<Progress> for RebuildProgress {
    fn from(progress: Progress) -> RebuildProgress {
        let bare = |progress: &'static str| RebuildProgress { progress: progress.into(), until: None, rebuilt: None };
        match progress {
            Progress::Idle => bare("idle"),
            Progress::Waits { until, .. } => RebuildProgress { until: Some(until), ..bare("waits") },
            Progress::Done(Rebuilt { sent, done, failed, foreign, unanswered }) => {
                let rebuilt = WireRebuilt { sent, done, failed, foreign, unanswered };
                RebuildProgress { rebuilt: Some(rebuilt), ..bare("done") }
            }
        }
    }
}

impl Api {
    fn rebuild_of(&self, destination: &str) -> Result<&Rebuild, Problem> {
        let elsewhere = || format!("this process sends no transactions to {destination:?}: ask one that does");
        self.premises.rebuilds.get(destination).ok_or_else(|| Problem::not_found(elsewhere()))
    }
}

/// Rebuilds the lanes of a destination from the chain, after the store was rolled back.
///
/// Stopped lanes go on when every transaction that the store does not know was matched with the
/// answers that are made again. Only the process that sends can do it.
#[utoipa::path(
    post, path = "/v1/destinations/{destination}/rebuild", tag = "operations",
    params(("destination" = String, Path, description = "Which destination.")),
    request_body = RebuildCall,
    responses(
        (status = 200, description = "It has begun.", body = RebuildProgress),
        Problem,
    ),
)]
pub(super) async fn rebuild(
    State(api): State<Api>,
    Path(destination): Path<String>,
    Extension(caller): Extension<Caller>,
    call: Result<Json<RebuildCall>, JsonRejection>,
) -> Result<Json<RebuildProgress>, Problem> {
    let Json(call) = call?;
    let rebuild = api.rebuild_of(&destination)?;
    rebuild.begin(Duration::from_millis(call.patience_ms.0));
    super::audit(&caller, "rebuild", &destination, true);
    Ok(Json(rebuild.progress().into()))
}

/// How far a rebuild is.
#[utoipa::path(
    get, path = "/v1/destinations/{destination}/rebuild", tag = "watch",
    params(("destination" = String, Path, description = "Which destination.")),
    responses(
        (status = 200, description = "So far.", body = RebuildProgress),
        Problem,
    ),
)]
pub(super) async fn rebuilding(
    State(api): State<Api>,
    Path(destination): Path<String>,
) -> Result<Json<RebuildProgress>, Problem> {
    Ok(Json(api.rebuild_of(&destination)?.progress().into()))
}
