//! The HTTP API.
//!
//! ```text
//!   connection ──▶ limits ──▶ who calls, with which roles ──▶ one call of the store ──▶ JSON
//! ```
//!
//! A call that changes something is answered after the commit that it speaks of. Failure modes:
//! a store that is away, or full, is 503 with `Retry-After`, and nothing was done; so is one that does not
//! answer in time, and then nobody knows what was done: the call can be made again.

pub mod auth;
mod bodies;
mod body;
mod bounded;
mod dashboard;
pub(crate) mod dead;
mod docs;
pub(crate) mod explore;
mod hearing;
mod history;
pub(crate) mod lanes;
pub(crate) mod listeners;
pub(crate) mod operate;
mod path;
pub(crate) mod policies;
mod problem;
mod pull;
mod rate;
pub(crate) mod requests;
mod serve;
pub(crate) mod views;
pub(crate) mod watch;
mod work;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use roundtrip::clock::{Clock, SystemClock};
use roundtrip::inbox::Identity;
use roundtrip::listener::Submitter;
use roundtrip::outbox::CourierStats;
use roundtrip::relay::Following;
use roundtrip::sender::{Rebuild, SenderStats};
use roundtrip::station::Shutdown;
use roundtrip::store::{ReadExt, Store};
use roundtrip::words::{LaneName, RequestId, UnixMs};
use roundtrip_evm::ContractCall;
use roundtrip_tools::Presence;
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use auth::{Caller, Guard, Keys, Role, guard};
use bounded::Bounded;
use rate::Rates;

pub(crate) use body::Whole;
pub(crate) use listeners::{ListenerState, WireListener};
pub(crate) use problem::Problem;
pub use serve::{Limits, limited, serve};

use crate::doctor::{Looks, Outside};
use crate::history::History;
use crate::telemetry::Telemetry;

/// How long the store has to answer before the program counts as not ready.
const READY_WITHIN: Duration = Duration::from_secs(3);

/// Whoever has a token at all.
const ANYBODY: &[Role] = &[Role::Viewer, Role::Submitter, Role::Worker, Role::Operator];
/// Who may look.
const VIEWERS: &[Role] = &[Role::Viewer, Role::Operator];
/// Who may submit.
const SUBMITTERS: &[Role] = &[Role::Submitter, Role::Operator];
/// Who may work.
const WORKERS: &[Role] = &[Role::Worker];

/// What calls work with.
#[derive(Clone)]
pub struct Api(Arc<Inner>);

impl std::ops::Deref for Api {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// What calls work with.
pub struct Inner {
    store: Arc<dyn Store>,
    submitter: Submitter,
    premises: Arc<Premises>,
    guards: Guards,
    clock: SystemClock,
    wait_max: Duration,
    body_bytes_max: usize,
    telemetry: Telemetry,
    shutdown: Shutdown,
    document: OnceLock<utoipa::openapi::OpenApi>,
    looks: Looks,
}

/// What the process that serves does besides, by name.
#[derive(Default)]
pub struct Premises {
    /// How routes take requests.
    pub routes: BTreeMap<String, Intake>,
    /// By what lanes are rebuilt, of the destinations that this process sends to.
    pub rebuilds: BTreeMap<String, Rebuild>,
    /// The listeners of chains that this process runs.
    pub followers: BTreeMap<String, Following>,
    /// What the senders of this process know of their lanes, by destination.
    pub senders: BTreeMap<String, Arc<SenderStats>>,
    /// What the couriers of this process know of their deliveries, by destination.
    pub couriers: BTreeMap<String, Arc<CourierStats>>,
    /// The tools that this process calls, by their routes.
    pub tools: BTreeMap<String, Presence>,
    /// What is around the store.
    pub outside: Outside,
    /// What is called at each destination of transactions: by it their bytes are read.
    pub calls: BTreeMap<String, ContractCall>,
    /// How each destination's answers go out, in one word.
    pub deliveries: BTreeMap<String, &'static str>,
    /// Where transactions are looked up.
    pub explorer: explore::Explorer,
    /// What the journal told.
    pub history: History,
}

impl Premises {
    /// The lowest slot of a lane that pays all that it may and is not mined, as far as this process knows.
    pub(crate) fn at_fee_cap(&self, lane: &LaneName) -> Option<u64> {
        self.senders.values().find_map(|sender| sender.at_cap(lane)).map(|slot| slot.0)
    }

    /// In how long a delivery that failed is tried again, as far as this process knows.
    fn delivery_due_in(&self, id: &RequestId) -> Option<Duration> {
        let due = self.couriers.values().find_map(|courier| courier.due(id))?;
        Some(due.saturating_duration_since(tokio::time::Instant::now()))
    }
}

/// Who stands at the door.
struct Guards {
    keys: Option<Arc<Keys>>,
    rates: Option<Arc<Rates>>,
}

impl Guards {
    fn with(&self, roles: &'static [Role]) -> Guard {
        Guard { keys: self.keys.clone(), rates: self.rates.clone(), roles }
    }
}

/// Who may call, how often, and how long calls wait.
#[derive(Clone)]
pub struct Manners {
    /// What tokens are checked with; without keys, everybody may call everything.
    pub keys: Option<Arc<Keys>>,
    /// Most calls of one caller in a second.
    pub calls_per_second: Option<NonZeroU32>,
    /// How long a call waits for work or for an answer, at the most.
    pub wait_max: Duration,
    /// How long a call waits for each answer of the store.
    pub store_wait_max: Duration,
    /// Largest message of a stream, in bytes.
    pub body_bytes_max: usize,
}

/// How a route takes requests over the API.
#[derive(Clone, Debug)]
pub struct Intake {
    /// Whether it does.
    pub submit: bool,
    /// A path of its own.
    pub path: Option<String>,
    /// Whether parameters of a query or a form are the fields of a request under that path.
    pub forms: bool,
    /// What makes it the same request.
    pub identity: Identity,
}

impl Inner {
    fn now(&self) -> UnixMs {
        self.clock.now()
    }

    fn stopping(&self) -> bool {
        self.shutdown.is_cancelled()
    }
}

impl Api {
    /// Serves this store.
    pub fn new(
        store: Arc<dyn Store>,
        premises: Arc<Premises>,
        manners: Manners,
        telemetry: Telemetry,
        shutdown: Shutdown,
    ) -> Api {
        let Manners { keys, calls_per_second, wait_max, store_wait_max, body_bytes_max } = manners;
        let store: Arc<dyn Store> = Arc::new(Bounded { inner: store, within: store_wait_max });
        let submitter = Submitter::new(store.clone());
        let rates = calls_per_second.map(|most| Arc::new(Rates::new(most.get())));
        let guards = Guards { keys, rates };
        let clock = SystemClock::new();
        let document = OnceLock::new();
        Api(Arc::new(Inner {
            store,
            submitter,
            premises,
            guards,
            clock,
            wait_max,
            body_bytes_max,
            telemetry,
            shutdown,
            document,
            looks: Looks::default(),
        }))
    }

    /// All calls.
    pub fn router(&self) -> Router {
        let (mut router, _) = self.described();
        for (name, path) in self.premises.routes.iter().filter_map(|(name, intake)| Some((name, intake.path.as_ref()?)))
        {
            let name = name.clone();
            let submit = move |state, uri, headers, body| requests::submit_at(name.clone(), state, uri, headers, body);
            let guarding = self.guards.with(SUBMITTERS);
            let submitting = axum::routing::post(submit).route_layer(from_fn_with_state(guarding, guard));
            router = router.route(path, submitting);
        }
        let pulling = axum::routing::post_service(pull::service(self.clone(), self.body_bytes_max))
            .route_layer(from_fn_with_state(self.guards.with(WORKERS), guard))
            .route_layer(from_fn(pull::refused_in_its_words));
        router
            .merge(dashboard::files())
            .route(pull::PATH, pulling)
            .merge(docs::viewer())
            .fallback(dashboard::nothing_here)
            .method_not_allowed_fallback(|| async {
                Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path takes another method")
            })
            .with_state(self.clone())
    }

    /// What shows how the process is doing, without the rest: of lanes, listeners and tools each process knows what
    /// its own do, also one that serves no API.
    pub fn watched(&self) -> Router {
        use axum::routing::get;
        let looking = Router::new()
            .route("/metrics", get(watch::metrics))
            .route("/v1/counts", get(watch::counts))
            .route("/v1/routes", get(watch::routes))
            .route("/v1/lanes", get(watch::lanes))
            .route("/v1/lanes/{lane}", get(watch::lane))
            .route("/v1/listeners", get(listeners::listeners))
            .route("/v1/doctor", get(watch::doctor))
            .route_layer(from_fn_with_state(self.guards.with(VIEWERS), guard));
        Router::new().route("/health", get(health)).route("/ready", get(ready)).merge(looking).with_state(self.clone())
    }

    /// The calls and their description; both come from the same place.
    fn described(&self) -> (Router<Api>, utoipa::openapi::OpenApi) {
        let open = OpenApiRouter::with_openapi(Description::openapi()).routes(routes!(health)).routes(routes!(ready));
        let viewer = OpenApiRouter::new()
            .routes(routes!(watch::counts))
            .routes(routes!(watch::routes))
            .routes(routes!(watch::lanes))
            .routes(routes!(watch::lane))
            .routes(routes!(watch::origins))
            .routes(routes!(listeners::listeners))
            .routes(routes!(dead::dead))
            .routes(routes!(watch::doctor))
            .routes(routes!(watch::updates))
            .routes(routes!(watch::metrics))
            .routes(routes!(history::history))
            .routes(routes!(history::ended))
            .routes(routes!(explore::transaction))
            .routes(routes!(operate::rebuilding))
            .routes(routes!(requests::list))
            .routes(routes!(requests::timeline))
            .routes(routes!(explore::asked_by))
            .routes(routes!(bodies::payload))
            .routes(routes!(bodies::response));
        let anybody = OpenApiRouter::new().routes(routes!(dashboard::me)).routes(routes!(docs::document));
        let reader = OpenApiRouter::new().routes(routes!(requests::get));
        let submitter = OpenApiRouter::new().routes(routes!(requests::submit)).routes(routes!(requests::submit_bulk));
        let worker = OpenApiRouter::new()
            .routes(routes!(work::lease))
            .routes(routes!(work::extend))
            .routes(routes!(work::answer))
            .routes(routes!(work::fail))
            .routes(routes!(work::release));
        let operator = OpenApiRouter::new()
            .routes(routes!(requests::mend))
            .routes(routes!(dead::mend_dead))
            .routes(routes!(operate::route))
            .routes(routes!(operate::lane))
            .routes(routes!(operate::rebuild));
        let guarded = |router: OpenApiRouter<Api>, roles: &'static [Role]| {
            router.route_layer(from_fn_with_state(self.guards.with(roles), guard))
        };
        open.merge(guarded(anybody, ANYBODY))
            .merge(guarded(viewer, VIEWERS))
            .merge(guarded(reader, &[Role::Viewer, Role::Operator, Role::Submitter]))
            .merge(guarded(submitter, SUBMITTERS))
            .merge(guarded(worker, WORKERS))
            .merge(guarded(operator, &[Role::Operator]))
            .split_for_parts()
    }

    /// The description of all calls, with the paths that routes have of their own; made when it is first asked for.
    fn document(&self) -> &utoipa::openapi::OpenApi {
        self.document.get_or_init(|| docs::with_own_paths(self.described().1, &self.premises.routes))
    }
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Roundtrip", description = "Requests in, work handed out, answers delivered, each exactly once."),
    modifiers(&Bearer),
    security(("bearer" = [])),
)]
struct Description;

/// Calls bring a token.
struct Bearer;

impl utoipa::Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    }
}

/// Whether the program runs.
#[utoipa::path(get, path = "/health", tag = "health", security(()), responses((status = 200, description = "It runs.", body = String)))]
async fn health() -> &'static str {
    "ok\n"
}

/// Whether the store answers.
#[utoipa::path(
    get, path = "/ready", tag = "health", security(()),
    responses(
        (status = 200, description = "It does.", body = String),
        (status = 503, description = "It does not, or the program is about to stop.", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn ready(State(api): State<Api>) -> Result<&'static str, Problem> {
    if api.stopping() {
        return Err(Problem::later("the program is about to stop"));
    }
    match tokio::time::timeout(READY_WITHIN, api.store.origins()).await {
        Ok(Ok(_)) => Ok("ready\n"),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Problem::later("the store does not answer")),
    }
}

/// Every act of a person on a request is in the log, and whether it was done or refused.
fn audit_request(caller: &Caller, act: &str, request: &RequestId, done: bool) {
    tracing::info!(target: "audit", by = %caller.name, act, %request, done, "an operator acted");
}

/// Every act of a person is in the log, and whether it was done or refused.
fn audit(caller: &Caller, act: &str, on: &impl Display, done: bool) {
    tracing::info!(target: "audit", by = %caller.name, act, %on, done, "an operator acted");
}
