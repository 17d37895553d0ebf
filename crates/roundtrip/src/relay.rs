//! The relay: routes with their handlers, sources, sinks and further stations, assembled
//! from code and run as one.
//!
//! ```text
//!   Relay ── start ──▶ Running ── one task owns all stations
//!                        │          │
//!                        │          ├─ one ends with an error or a panic: all others stop, and run says why
//!                        │          └─ one is halted by what it works with: the others go on
//!                        └─ shutdown: every station finishes what it has in hand
//! ```
//!
//! Failure modes: what a station could not handle by itself ends the relay, loudly: an
//! error in the log, and the reason to whoever waits. A station that halts, such as a
//! listener whose chain broke its word, is an error in the log and in [`Running::halted`];
//! the others go on, and the relay's end says it too. A station that does not stop in time
//! is aborted and named. Dropping a [`Running`] is a crash: everything stops where it is.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};

use crate::clock::{Clock, SystemClock};
use crate::listener::{
    BlockSource, Every, Follower, FollowerOptions, FollowerStats, Source, SourceNode, Submitter, Tick,
};
use crate::outbox::{Courier, CourierOptions, CourierStats, Sink};
use crate::persist;
use crate::sender::chain::Chain;
use crate::sender::{Rebuild, Sender, SenderOptions, SenderStats};
use crate::station::{Shutdown, StationError, bounded};
use crate::store::op::{Define, NewRequest, Op, Outcome};
use crate::store::policy::RoutePolicy;
use crate::store::{Store, StoreError};
use crate::upkeep::{Floors, Upkeep, UpkeepOptions};
use crate::words::{Destination, HolderName, LaneName, ListenerName, OriginName, ParseError, RouteName, WorkerName};
use crate::worker::{Handler, RawHandler, Typed, Worker, WorkerOptions, panic_message};

/// How long stations have to stop before they are aborted.
const STOP_WITHIN: Duration = Duration::from_secs(60);

/// Why a relay did not start, or ended although nobody told it to.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// A name that was given is none.
    #[error(transparent)]
    Name(#[from] ParseError),
    /// The same name twice.
    #[error("{0} is there twice: give each route and each station a name of its own")]
    Repeated(String),
    /// The store failed before anything ran.
    #[error("the store failed: {0}")]
    Store(#[from] StoreError),
    /// A route's policies were refused.
    #[error("route {route} was refused: {refusal:?}")]
    Refused {
        /// Which route.
        route: RouteName,
        /// By what outcome.
        refusal: Box<Outcome>,
    },
    /// A station ended with an error; all others were stopped, unless it was halted.
    #[error("{station} ended: {error}")]
    Station {
        /// Which station.
        station: String,
        /// Why.
        error: StationError,
    },
    /// A station panicked; all others were stopped.
    #[error("{station} panicked: {message}")]
    Panicked {
        /// Which station.
        station: String,
        /// What the panic said.
        message: String,
    },
    /// Stations did not stop in time and were aborted.
    #[error("not stopped in time, and aborted: {}", stations.join(", "))]
    Stuck {
        /// Which stations.
        stations: Vec<String>,
    },
}

type StationFuture = Pin<Box<dyn Future<Output = Result<(), StationError>> + Send>>;
/// Makes a station's future when the relay starts.
type Launch = Box<dyn FnOnce(&Surroundings) -> Result<StationFuture, ParseError> + Send>;

/// What stations get from the relay.
struct Surroundings {
    name: String,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    seed: u64,
    shutdown: Shutdown,
}

impl Surroundings {
    /// Who works and holds seats: another with every start, unless the seed was given.
    fn holder(&self) -> Result<HolderName, ParseError> {
        HolderName::new(&format!("{}-{:016x}", self.name, self.seed))
    }
}

/// A relay in the making.
///
/// ```
/// use roundtrip::relay::Relay;
/// use roundtrip::store::{open, Options, policy::RoutePolicy};
/// use roundtrip::worker::handler_fn;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = open("memory:", Options::default())?; // or "sqlite:roundtrip.db"
/// let relay = Relay::new(store)
///     .route("square", RoutePolicy::default(), handler_fn(|n: u64, _job| async move { Ok(n * n) }))
///     .start()
///     .await?;
/// let submitted = relay.submitter().submit_json("square", &7).await?;
/// println!("{:?}", relay.submitter().ended(submitted.id).await?);
/// relay.shutdown().await?;
/// # Ok(())
/// # }
/// ```
pub struct Relay {
    surroundings: Surroundings,
    stop_within: Duration,
    upkeep: Option<(UpkeepOptions, Floors)>,
    routes: Vec<(String, RoutePolicy)>,
    stations: Vec<(String, Launch)>,
    rebuilds: BTreeMap<String, Rebuild>,
    senders: BTreeMap<String, Arc<SenderStats>>,
    couriers: BTreeMap<String, Arc<CourierStats>>,
    followers: BTreeMap<String, Following>,
}

/// A listener of a chain that runs here, for whoever watches it.
#[derive(Clone)]
pub struct Following {
    /// What it has done since its start.
    pub stats: Arc<FollowerStats>,
    source: Arc<dyn BlockSource>,
}

impl Following {
    /// The nodes by which it sees its chain.
    pub fn nodes(&self) -> Vec<SourceNode> {
        self.source.nodes()
    }
}

impl Relay {
    /// A relay on this store that does its upkeep, without any other station yet.
    pub fn new(store: Arc<dyn Store>) -> Relay {
        let seed = std::hash::RandomState::new().build_hasher().finish();
        let name = format!("relay-{}", std::process::id());
        let (clock, shutdown) = (Arc::new(SystemClock::new()), Shutdown::new());
        Relay {
            surroundings: Surroundings { name, store, clock, seed, shutdown },
            stop_within: STOP_WITHIN,
            upkeep: Some((UpkeepOptions::default(), Arc::new(Vec::new))),
            routes: Vec::new(),
            stations: Vec::new(),
            rebuilds: BTreeMap::new(),
            senders: BTreeMap::new(),
            couriers: BTreeMap::new(),
            followers: BTreeMap::new(),
        }
    }

    /// Under which name it works; unique among all that work on the store at once.
    #[must_use]
    pub fn name(mut self, name: &str) -> Relay {
        self.surroundings.name = name.to_owned();
        self
    }

    /// Where the stations get the time from.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Relay {
        self.surroundings.clock = clock;
        self
    }

    /// Where the stations' randomness starts; the same seed repeats a run.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Relay {
        self.surroundings.seed = seed;
        self
    }

    /// Stops, gracefully, when this token is cancelled.
    #[must_use]
    pub fn stop_on(mut self, shutdown: &Shutdown) -> Relay {
        self.surroundings.shutdown = shutdown.child_token();
        self
    }

    /// Stops, gracefully, when this future ends; such as that of ctrl-c.
    #[must_use]
    pub fn stop_when(mut self, stop: impl Future<Output = ()> + Send + 'static) -> Relay {
        let launch = move |given: &Surroundings| {
            let shutdown = given.shutdown.clone();
            Ok(Box::pin(async move {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => {}
                    () = stop => shutdown.cancel(),
                }
                Ok(())
            }) as StationFuture)
        };
        self.stations.push(("what stops the relay".to_owned(), Box::new(launch)));
        self
    }

    /// How long stations have to stop before they are aborted; a minute by default.
    #[must_use]
    pub fn stop_within(mut self, time: Duration) -> Relay {
        self.stop_within = bounded(time);
        self
    }

    /// A route whose requests this handler answers.
    #[must_use]
    pub fn route(self, name: &str, policy: RoutePolicy, handler: impl Handler) -> Relay {
        self.route_with(name, policy, Typed(handler), WorkerOptions::default())
    }

    /// A route whose requests this handler of bytes answers, worked on with these options.
    /// [`Typed`] makes one of a handler with types.
    #[must_use]
    pub fn route_with(
        mut self,
        name: &str,
        policy: RoutePolicy,
        handler: impl RawHandler,
        options: WorkerOptions,
    ) -> Relay {
        self.routes.push((name.to_owned(), policy));
        self.work(name, Arc::new(handler), options, None)
    }

    /// A handler for a route that is defined elsewhere. It is given work only while `open`
    /// says so, if there is any.
    #[must_use]
    pub fn work(
        mut self,
        route: &str,
        handler: Arc<dyn RawHandler>,
        options: WorkerOptions,
        open: Option<watch::Receiver<bool>>,
    ) -> Relay {
        let name = route.to_owned();
        let launch = move |given: &Surroundings| {
            let worker = Worker {
                store: given.store.clone(),
                clock: given.clock.clone(),
                seed: given.seed,
                name: WorkerName::new(given.holder()?.as_str())?,
                route: RouteName::new(&name)?,
                handler,
                options,
                open,
            };
            Ok(Box::pin(worker.run(given.shutdown.child_token())) as StationFuture)
        };
        self.stations.push((format!("worker of {route}"), Box::new(launch)));
        self
    }

    /// A route that others work on, or nobody yet.
    #[must_use]
    pub fn define(mut self, name: &str, policy: RoutePolicy) -> Relay {
        self.routes.push((name.to_owned(), policy));
        self
    }

    /// A timer that admits a request at every tick; of ticks that were missed, the newest.
    #[must_use]
    pub fn every(
        mut self,
        name: &str,
        period: Duration,
        make: impl Fn(Tick) -> NewRequest + Send + Sync + 'static,
    ) -> Relay {
        let timer = name.to_owned();
        let launch = move |given: &Surroundings| {
            let every = Every::new(ListenerName::new(&timer)?, period, make);
            let (store, clock) = (given.store.clone(), given.clock.clone());
            Ok(Box::pin(every.run(store, clock, given.shutdown.child_token())) as StationFuture)
        };
        self.stations.push((format!("timer {name}"), Box::new(launch)));
        self
    }

    /// A source of requests.
    #[must_use]
    pub fn source(mut self, name: &str, source: impl Source) -> Relay {
        let launch = move |given: &Surroundings| {
            let (store, clock) = (given.store.clone(), given.clock.clone());
            Ok(Box::pin(source.run(store, clock, given.shutdown.child_token())) as StationFuture)
        };
        self.stations.push((format!("source {name}"), Box::new(launch)));
        self
    }

    /// Answers for this destination are delivered to this sink.
    #[must_use]
    pub fn sink(self, destination: &str, sink: impl Sink) -> Relay {
        self.sink_with(destination, sink, CourierOptions::default())
    }

    /// Answers for this destination are delivered to this sink, with these options.
    #[must_use]
    pub fn sink_with(mut self, destination: &str, sink: impl Sink, options: CourierOptions) -> Relay {
        let (to, stats) = (destination.to_owned(), Arc::<CourierStats>::default());
        self.couriers.insert(to.clone(), stats.clone());
        let launch = move |given: &Surroundings| {
            let courier = Courier {
                store: given.store.clone(),
                seed: given.seed,
                holder: given.holder()?,
                destination: Destination::new(&to)?,
                sink: Arc::new(sink),
                options,
                stats,
            };
            Ok(Box::pin(courier.run(given.shutdown.child_token())) as StationFuture)
        };
        self.stations.push((format!("courier to {destination}"), Box::new(launch)));
        self
    }

    /// Answers for this destination go out as transactions of these lanes of a chain.
    #[must_use]
    pub fn lanes(mut self, destination: &str, chain: Arc<dyn Chain>, lanes: &[&str], options: SenderOptions) -> Relay {
        let (to, names) = (destination.to_owned(), lanes.iter().map(|&lane| lane.to_owned()).collect::<Vec<_>>());
        let (rebuild, stats) = (Rebuild::default(), Arc::<SenderStats>::default());
        self.rebuilds.insert(to.clone(), rebuild.clone());
        self.senders.insert(to.clone(), stats.clone());
        let launch = move |given: &Surroundings| {
            let sender = Sender {
                store: given.store.clone(),
                chain,
                clock: given.clock.clone(),
                holder: given.holder()?,
                destination: Destination::new(&to)?,
                lanes: names.iter().map(|lane| LaneName::new(lane)).collect::<Result<_, _>>()?,
                options,
                rebuild,
                stats,
            };
            Ok(Box::pin(sender.run(given.shutdown.child_token())) as StationFuture)
        };
        self.stations.push((format!("sender to {destination}"), Box::new(launch)));
        self
    }

    /// Requests for these routes come from the blocks of an origin, read under this listener's name.
    #[must_use]
    pub fn follow(
        mut self,
        listener: &str,
        origin: &str,
        source: Arc<dyn BlockSource>,
        routes: &[&str],
        options: FollowerOptions,
    ) -> Relay {
        let (name, at) = (listener.to_owned(), origin.to_owned());
        let routes: Vec<String> = routes.iter().map(|&route| route.to_owned()).collect();
        let stats = Arc::<FollowerStats>::default();
        self.followers.insert(name.clone(), Following { stats: stats.clone(), source: source.clone() });
        let launch = move |given: &Surroundings| {
            let follower = Follower {
                store: given.store.clone(),
                source,
                clock: given.clock.clone(),
                holder: given.holder()?,
                listener: ListenerName::new(&name)?,
                origin: OriginName::new(&at)?,
                routes: routes.iter().map(|route| RouteName::new(route)).collect::<Result<_, _>>()?,
                options,
                stats,
            };
            Ok(Box::pin(follower.run(given.shutdown.child_token())) as StationFuture)
        };
        self.stations.push((format!("listener {listener}"), Box::new(launch)));
        self
    }

    /// By what to ask for lanes to be rebuilt, by destination; as [`Running::rebuild`], for
    /// stations that are still to be added.
    pub fn rebuilds(&self) -> BTreeMap<String, Rebuild> {
        self.rebuilds.clone()
    }

    /// What couriers know of their deliveries, by destination, for whoever watches them.
    pub fn couriers(&self) -> BTreeMap<String, Arc<CourierStats>> {
        self.couriers.clone()
    }

    /// What senders know of their lanes, by destination, for whoever watches them.
    pub fn senders(&self) -> BTreeMap<String, Arc<SenderStats>> {
        self.senders.clone()
    }

    /// The listeners of chains, by name, for whoever watches them.
    pub fn followers(&self) -> BTreeMap<String, Following> {
        self.followers.clone()
    }

    /// How upkeep is done, and how deep re-scans may still reach.
    #[must_use]
    pub fn upkeep(mut self, options: UpkeepOptions, floors: Floors) -> Relay {
        self.upkeep = Some((options, floors));
        self
    }

    /// Leaves the upkeep to another process. Somebody must do it, or the requests of
    /// workers that died stay with them.
    #[must_use]
    pub fn without_upkeep(mut self) -> Relay {
        self.upkeep = None;
        self
    }

    /// Anything else that runs until it is told to stop. One that ends by itself without
    /// an error has done its work.
    #[must_use]
    pub fn station<W>(mut self, name: &str, station: impl FnOnce(Shutdown) -> W + Send + 'static) -> Relay
    where
        W: Future<Output = Result<(), StationError>> + Send + 'static,
    {
        let launch = move |given: &Surroundings| Ok(Box::pin(station(given.shutdown.child_token())) as StationFuture);
        self.stations.push((name.to_owned(), Box::new(launch)));
        self
    }

    /// Defines the routes, and starts every station.
    pub async fn start(self) -> Result<Running, RelayError> {
        let Relay { surroundings, stop_within, upkeep, routes, mut stations, rebuilds, .. } = self;
        if let Some((options, floors)) = upkeep {
            stations.push(("upkeep".to_owned(), launch_upkeep(options, floors)));
        }
        if let Some(name) =
            repeated(stations.iter().map(|(name, _)| name)).or_else(|| repeated(routes.iter().map(|(name, _)| name)))
        {
            return Err(RelayError::Repeated(name));
        }
        define(&*surroundings.store, routes).await?;
        let mut futures = Vec::new();
        for (name, launch) in stations {
            futures.push((name, launch(&surroundings)?));
        }
        let (shutdown, halted) = (surroundings.shutdown.clone(), Halted::default());
        let mut supervisor = JoinSet::new();
        supervisor.spawn(supervise(futures, shutdown.clone(), stop_within, halted.clone()));
        Ok(Running { submitter: Submitter::new(surroundings.store), shutdown, supervisor, halted, rebuilds })
    }

    /// Starts, and runs until told to stop, or until a station cannot go on.
    pub async fn run(self) -> Result<(), RelayError> {
        self.start().await?.ended().await
    }
}

fn launch_upkeep(options: UpkeepOptions, floors: Floors) -> Launch {
    Box::new(move |given| {
        let (store, seed) = (given.store.clone(), given.seed);
        let upkeep = Upkeep { store, seed, holder: given.holder()?, floors, options };
        Ok(Box::pin(upkeep.run(given.shutdown.child_token())))
    })
}

/// The first name that comes a second time.
fn repeated<'a>(names: impl Iterator<Item = &'a String>) -> Option<String> {
    let mut seen = std::collections::HashSet::new();
    names.into_iter().find(|name| !seen.insert(*name)).cloned()
}

async fn define(store: &dyn Store, routes: Vec<(String, RoutePolicy)>) -> Result<(), RelayError> {
    let mut names = Vec::new();
    let mut batch = Vec::new();
    for (name, policy) in routes {
        let route = RouteName::new(&name)?;
        names.push(route.clone());
        batch.push(Op::Define(Define { route, policy }));
    }
    let outcomes = persist::apply(store, batch).await?;
    match names.into_iter().zip(outcomes).find(|(_, outcome)| !outcome.holds()) {
        Some((route, refusal)) => Err(RelayError::Refused { route, refusal: Box::new(refusal) }),
        None => Ok(()),
    }
}

/// A relay at work. Dropping it is a crash; see [`Running::shutdown`].
pub struct Running {
    submitter: Submitter,
    shutdown: Shutdown,
    supervisor: JoinSet<Result<(), RelayError>>,
    halted: Halted,
    rebuilds: BTreeMap<String, Rebuild>,
}

/// The stations that are halted, and why.
type Halted = Arc<Mutex<Vec<(String, String)>>>;

impl Running {
    /// A handle to submit requests with.
    pub fn submitter(&self) -> Submitter {
        self.submitter.clone()
    }

    /// The stations that stand still until a person has looked, and what they say.
    pub fn halted(&self) -> Vec<(String, String)> {
        self.halted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// By what to ask for the lanes of this destination to be rebuilt from the chain, after the
    /// store was rolled back; none if it has no lanes here.
    pub fn rebuild(&self, destination: &str) -> Option<Rebuild> {
        self.rebuilds.get(destination).cloned()
    }

    /// Cancelled when the relay stops; cancelling it stops the relay.
    pub fn token(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// Waits until every station has ended: told to stop, with nothing left to do, or
    /// because one could not go on, which is the error. If none is, one that was halted is.
    pub async fn ended(mut self) -> Result<(), RelayError> {
        match self.supervisor.join_next().await {
            Some(Ok(result)) => result,
            Some(Err(error)) => Err(panicked("the relay".into(), error)),
            None => Ok(()),
        }
    }

    /// Stops every station gracefully, and waits until all have ended.
    pub async fn shutdown(self) -> Result<(), RelayError> {
        self.shutdown.cancel();
        self.ended().await
    }
}

/// Owns the stations' tasks until the last has ended. The first that cannot go on stops
/// all others and is the reason; one that is halted stops alone.
async fn supervise(
    stations: Vec<(String, StationFuture)>,
    shutdown: Shutdown,
    stop_within: Duration,
    halted: Halted,
) -> Result<(), RelayError> {
    let mut tasks = JoinSet::new();
    let mut names: HashMap<Id, String> = HashMap::new();
    for (name, station) in stations {
        names.insert(tasks.spawn(station).id(), name);
    }
    let mut reason = None;
    let mut stop_by = None;
    loop {
        let ended = tokio::select! {
            biased;
            () = shutdown.cancelled(), if stop_by.is_none() => {
                stop_by = Some(tokio::time::Instant::now() + stop_within);
                continue;
            }
            () = tokio::time::sleep_until(stop_by.unwrap_or_else(tokio::time::Instant::now)), if stop_by.is_some() => {
                return Err(abort(names, reason));
            }
            ended = tasks.join_next_with_id() => ended,
        };
        let Some(ended) = ended else { break };
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let station = names.remove(&id).unwrap_or_default();
        match end_of(station, ended) {
            Some(RelayError::Station { station, error: StationError::Halted(text) }) => {
                tracing::error!(station, text, "a station is halted; the others go on");
                halted.lock().unwrap_or_else(PoisonError::into_inner).push((station, text));
            }
            Some(error) => {
                tracing::error!(%error, "the relay stops");
                reason.get_or_insert(error);
                shutdown.cancel();
            }
            None => {}
        }
    }
    let halted = halted.lock().unwrap_or_else(PoisonError::into_inner).first().cloned();
    let halted = halted.map(|(station, text)| RelayError::Station { station, error: StationError::Halted(text) });
    reason.or(halted).map_or(Ok(()), Err)
}

/// Why a station's end is the end of the relay, if it is.
fn end_of(station: String, ended: Result<(Id, Result<(), StationError>), JoinError>) -> Option<RelayError> {
    match ended {
        Ok((_, Ok(()))) => {
            tracing::debug!(station, "ended");
            None
        }
        Ok((_, Err(error))) => Some(RelayError::Station { station, error }),
        Err(error) => Some(panicked(station, error)),
    }
}

fn panicked(station: String, error: JoinError) -> RelayError {
    let message = match error.try_into_panic() {
        Ok(panic) => panic_message(&*panic),
        Err(_aborted) => "its task was aborted".to_owned(),
    };
    RelayError::Panicked { station, message }
}

fn abort(left: HashMap<Id, String>, reason: Option<RelayError>) -> RelayError {
    let mut stations: Vec<String> = left.into_values().collect();
    stations.sort();
    let stuck = RelayError::Stuck { stations };
    tracing::error!(error = %stuck, "stations are aborted");
    reason.unwrap_or(stuck)
}
