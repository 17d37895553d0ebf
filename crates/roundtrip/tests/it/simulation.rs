//! The stations together, on the memory store and the test chain, in virtual time, by a
//! seed: followers, timers, workers, groups, senders, couriers and upkeep of two processes that crash, on a chain
//! that reorgs, through wires that lose answers.
//!
//! Safety: at no moment does the chain hold two answers to one request, or one to a request
//! that its origin took back. Liveness: once the faults stop, everything ends, with one
//! answer to each event that is on the chain. The judge reads only the chain and its own
//! list of what it emitted.
//!
//! A failing seed is run again with `SEED=n cargo test ... simulation::`; the same seed
//! does exactly the same, which is a test too. Every seed that ever failed is in `KEPT`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use roundtrip::clock::{Clock, SystemClock, TokioClock};
use roundtrip::inbox::{Standing, StateKind};
use roundtrip::listener::{CatchUp, Every, Follower, FollowerOptions, FollowerStats, Source, Tick, request_with_id};
use roundtrip::outbox::{CallSink, Courier, CourierOptions, SinkError};
use roundtrip::sender::{LaneStatus, Patience, Rebuild, Sender, SenderOptions};
use roundtrip::station::{Shutdown, StationError};
use roundtrip::store::journal::Event;
use roundtrip::store::op::{AfterCancel, Define, Gather, GroupPlan, LaneOrder, Mend, NewRequest, Order, Remedy};
use roundtrip::store::policy::{Backoff, Gate, Horizon, RoutePolicy};
use roundtrip::store::query::{ListFilter, ReadyDelivery};
use roundtrip::store::{MemoryStore, Options, ReadExt, Store, StoreExt};
use roundtrip::testkit::bench::START;
use roundtrip::testkit::chain::TestChain;
use roundtrip::testkit::flaky::{Flaky, Weather};
use roundtrip::testkit::samples::{
    destination, group_named, id, lane_named, occurrence, origin, other_destination, request, route, route_named,
};
use roundtrip::testkit::silent::Silent;
use roundtrip::upkeep::{Upkeep, UpkeepOptions};
use roundtrip::words::{
    ErrorClass, ErrorNote, HolderName, ItemId, LaneName, ListenerName, Payload, RequestId, UnixMs, WorkerName,
};
use roundtrip::worker::{
    Done, Failure, Handled, Job, RawHandler, Typed, Worker, WorkerOptions, handler_fn, raw_handler_fn,
};
use tokio::task::JoinSet;

/// Seeds that failed once.
const KEPT: [u64; 0] = [];
/// How many seeds a plain run takes.
const SEEDS: u64 = 200;
const BLOCK: Duration = Duration::from_secs(2);

const PERIOD: Duration = Duration::from_secs(10);

type Stations = JoinSet<Result<(), StationError>>;

fn timer() -> ListenerName {
    ListenerName::new("timer").unwrap()
}

/// The request that refers to the three ticks around this one.
fn three(number: u64) -> RequestId {
    RequestId::of(&[b"three", &(number / 3).to_le_bytes()])
}

/// What the judge counts: paths that must be reached by some seed, or a run proves little.
#[derive(Debug, Default)]
struct Reached(BTreeMap<&'static str, u64>);

impl Reached {
    fn count(&mut self, path: &'static str, times: u64) {
        *self.0.entry(path).or_default() += times;
    }

    fn note(&mut self, event: &Event) {
        let path = match event {
            Event::Attached => "attached",
            Event::Orphaned => "orphaned",
            Event::Included => "included again",
            Event::Failed { .. } => "failed",
            Event::Released => "released",
            Event::Unmined => "unmined",
            Event::Attempted { .. } => "made dearer",
            Event::CancelWished { .. } => "cancel wished",
            Event::Filled { .. } => "gap filled",
            Event::Died { .. } => "died",
            Event::Returned { .. } => "returned",
            Event::Superseded { .. } => "superseded",
            Event::LaneStatus { status: LaneStatus::Stopped } => "lane stopped",
            Event::LaneStatus { status: LaneStatus::Unfunded { .. } } => "lane unfunded",
            Event::Ended { .. } => "ended",
            _ => return,
        };
        self.count(path, 1);
    }

    const ALL: [&'static str; 19] = [
        "attached",
        "orphaned",
        "included again",
        "superseded",
        "failed",
        "released",
        "unmined",
        "made dearer",
        "cancel wished",
        "gap filled",
        "died",
        "returned",
        "lane stopped",
        "lane unfunded",
        "ended",
        "crashed",
        "store crashed",
        "reorged",
        "taken back",
    ];
}

/// Everything that outlives a crash.
struct World {
    seed: u64,
    weather: Weather,
    chain: TestChain,
    store: Arc<MemoryStore>,
    clock: Arc<dyn Clock>,
    /// Events that were emitted, and not taken back for good.
    events: BTreeSet<u64>,
    /// Requests that had events.
    requests: u64,
    /// How often each answer was delivered to the hook.
    hooked: Arc<Mutex<BTreeMap<RequestId, u64>>>,
    reached: Reached,
    starts: u64,
}

/// Events come in three kinds: the first of a request, the same again, and the same
/// request with other content.
const KINDS: u64 = 3;
const AGAIN: u64 = 1;
const OTHER: u64 = 2;

/// What an event asks for: event `3n + kind` is about request n.
fn event_request(event: u64) -> NewRequest {
    let mut asked = NewRequest { standing: Standing::Seen, ..request(event / KINDS) };
    asked.occurrence = occurrence(event);
    if event % KINDS == OTHER {
        asked.payload = Payload::json("\"other content\"");
    }
    asked
}

fn event_id(event: u64) -> RequestId {
    event_request(event).id
}

impl World {
    async fn new(seed: u64) -> World {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(START));
        let store =
            Arc::new(MemoryStore::new(clock.clone(), Options { journal_entries: 1 << 16, ..Options::default() }));
        let policy = RoutePolicy {
            // Half of the seeds work while finality is awaited.
            work_on: if seed.is_multiple_of(2) { Gate::Seen } else { Gate::Final },
            publish_on: Gate::Final,
            destination: Some(destination()),
            horizon: Horizon::Forever,
            backoff: Backoff { first_ms: 100, factor_percent: 200, max_ms: 5_000, jitter_percent: 20 },
            lease_ms: 10_000,
            attempts_max: u16::MAX,
            crashes_max: u16::MAX,
            ..RoutePolicy::default()
        };
        let to_hook =
            RoutePolicy { destination: Some(other_destination()), horizon: Horizon::Forever, ..policy.clone() };
        for (route, policy) in
            [(route(), policy), (route_named("ticks"), to_hook.clone()), (route_named("threes"), to_hook)]
        {
            assert!(store.apply_one(Define { route, policy }).await.unwrap().holds());
        }
        let chain = TestChain::with_events(event_request);
        World {
            seed,
            weather: Weather::stormy(seed),
            chain,
            store,
            clock,
            events: BTreeSet::new(),
            requests: 0,
            hooked: Arc::default(),
            reached: Reached::default(),
            starts: 0,
        }
    }

    /// A timer, whose ticks are gathered by threes; each tick and each three goes to the hook.
    fn start_timer(&self, process: u64, store: &Arc<dyn Store>, holder: &HolderName, shutdown: &Shutdown) -> Stations {
        let seed = self.seed ^ (self.starts << 32);
        let tick = |tick: Tick| request_with_id(&route_named("ticks"), id(0), Payload::json(tick.number.to_string()));
        let every = Every::new(timer(), PERIOD, tick).catch_up(CatchUp::All);
        let weather = self.weather.clone();
        let gather = handler_fn(move |number: u64, job: Job| {
            let lucky = !weather.once_in(10);
            async move {
                let plan = GroupPlan {
                    seal_at_items: Some(3),
                    seal_at: None,
                    request: request_with_id(&route_named("threes"), three(number), Payload::json("3")),
                };
                let item = Gather {
                    group: group_named(&format!("three-{}", number / 3)),
                    item: ItemId::of(&[job.id().as_bytes()]),
                    payload: Payload::json(number.to_string()),
                    plan: Some(Box::new(plan)),
                };
                if lucky { Ok(Done::new(number).gather(item)) } else { Err(Failure::retry("not this time")) }
            }
        });
        let echo = handler_fn(|number: u64, _job| async move { Ok(number) });
        let worker = |name: &str, handler: Arc<dyn RawHandler>| Worker {
            store: store.clone(),
            clock: self.clock.clone(),
            seed,
            name: WorkerName::new(&format!("{name}-{process}")).unwrap(),
            route: route_named(name),
            handler,
            options: WorkerOptions::default(),
            open: None,
        };
        let (hooked, weather) = (self.hooked.clone(), self.weather.clone());
        let sink = CallSink::new(move |delivery: ReadyDelivery| {
            let (hooked, weather) = (hooked.clone(), weather.clone());
            async move {
                if weather.once_in(10) {
                    return Err(SinkError::retry("not there"));
                }
                *hooked.lock().unwrap().entry(delivery.id).or_default() += 1;
                if weather.once_in(10) { Err(SinkError::retry("the answer was lost")) } else { Ok(()) }
            }
        });
        let courier = Courier {
            store: store.clone(),
            seed,
            holder: holder.clone(),
            destination: other_destination(),
            sink: Arc::new(sink),
            options: CourierOptions { seat_ms: 8_000, ..CourierOptions::default() },
            stats: Arc::default(),
        };
        let mut stations = JoinSet::new();
        stations.spawn(every.run(store.clone(), self.clock.clone(), shutdown.clone()));
        stations.spawn(worker("ticks", Arc::new(Typed(gather))).run(shutdown.clone()));
        stations.spawn(worker("threes", Arc::new(Typed(echo))).run(shutdown.clone()));
        stations.spawn(courier.run(shutdown.clone()));
        stations
    }

    /// The stations of one process.
    fn start(&mut self, process: u64, shutdown: &Shutdown) -> Stations {
        self.starts += 1;
        let seed = self.seed ^ (self.starts << 32);
        let store: Arc<dyn Store> = Arc::new(Flaky::new(self.store.clone(), &self.weather));
        // In some seeds every hint is lost on its way.
        let store = if self.seed % 4 == 3 { Arc::new(Silent::new(store)) } else { store };
        let holder = HolderName::new(&format!("process-{process}-{}", self.starts)).unwrap();
        let follower = Follower {
            store: store.clone(),
            source: Arc::new(Flaky::new(self.chain.clone(), &self.weather)),
            clock: self.clock.clone(),
            holder: holder.clone(),
            listener: ListenerName::new(&format!("listener-{process}")).unwrap(),
            origin: origin(),
            routes: vec![route()],
            options: FollowerOptions {
                seat_ms: 8_000,
                relist_ms: 20_000,
                poll: BLOCK / 2,
                range: 7,
                ..FollowerOptions::default()
            },
            stats: Arc::new(FollowerStats::default()),
        };
        let weather = self.weather.clone();
        let worker = Worker {
            store: store.clone(),
            clock: self.clock.clone(),
            seed,
            name: WorkerName::new(&format!("worker-{process}")).unwrap(),
            route: route(),
            handler: Arc::new(raw_handler_fn(move |payload, job| work(weather.clone(), payload, job))),
            options: WorkerOptions {
                concurrency: 4,
                timeout: Some(Duration::from_secs(30)),
                ..WorkerOptions::default()
            },
            open: None,
        };
        let sender = Sender {
            store: store.clone(),
            chain: Arc::new(Flaky::new(self.chain.clone(), &self.weather)),
            clock: self.clock.clone(),
            holder: holder.clone(),
            destination: destination(),
            lanes: vec![lane_named("a"), lane_named("b")],
            options: SenderOptions {
                window: 4,
                parcel_max: 2,
                patience: Patience { resend_ms: 6_000, bump_ms: 20_000 },
                seat_ms: 8_000,
                poll: BLOCK / 2,
                ..SenderOptions::default()
            },
            rebuild: Rebuild::default(),
            stats: Arc::default(),
        };
        let floors = Arc::new(Vec::new);
        let options = UpkeepOptions { seat_ms: 8_000, ..UpkeepOptions::default() };
        let upkeep = Upkeep { store, seed, holder, floors, options };
        let mut stations = self.start_timer(process, &upkeep.store, &upkeep.holder, shutdown);
        stations.spawn(follower.run(shutdown.clone()));
        stations.spawn(worker.run(shutdown.clone()));
        stations.spawn(sender.run(shutdown.clone()));
        stations.spawn(upkeep.run(shutdown.clone()));
        stations
    }

    /// What happens outside during one block.
    async fn block(&mut self) {
        tokio::time::sleep(BLOCK).await;
        if self.weather.once_in(3) {
            for _ in 0..self.weather.below(4) {
                self.emit(self.requests * KINDS);
                self.requests += 1;
            }
        }
        if self.requests > 0 && self.weather.once_in(6) {
            let again = if self.weather.below(2) == 0 { AGAIN } else { OTHER };
            let recent = self.requests - 1 - self.weather.below(self.requests.min(4));
            self.emit(recent * KINDS + again);
        }
        self.trouble_lanes().await;
        if self.weather.once_in(8) {
            let depth = 1 + self.weather.below(4);
            if self.chain.reorg(depth) > 0 {
                self.reached.count("reorged", 1);
            }
            let waiting = self.chain.waiting_events();
            if let Some(event) = waiting.first().copied().filter(|_| self.weather.once_in(4)) {
                self.chain.forget_event(event);
                self.events.remove(&event);
                self.reached.count("taken back", 1);
            }
        }
        if self.weather.once_in(12) {
            self.chain.evict();
        }
        if self.weather.once_in(15) {
            self.chain.set_base_fee(1 + self.weather.below(20));
        }
        self.chain.mine();
        self.judge_safety();
    }

    fn emit(&mut self, event: u64) {
        if self.events.insert(event) {
            self.chain.emit(event);
        }
    }

    /// Outsiders use slots or leave them after all, transactions have no effect or are
    /// rejected, money runs out; and a person mends what only a person can.
    async fn trouble_lanes(&mut self) {
        let lane = lane_named(if self.weather.below(2) == 0 { "a" } else { "b" });
        let stormy = self.weather.once_in(1);
        for lane in [lane_named("a"), lane_named("b")] {
            if !stormy || self.weather.once_in(8) {
                self.chain.drop_outsiders(&lane);
            }
        }
        if self.weather.once_in(30) {
            self.chain.use_slot(&lane);
        }
        if self.weather.once_in(15) {
            self.chain.use_slot_after(&lane);
        }
        self.chain.reject_next(u64::from(self.weather.once_in(20)));
        if self.weather.once_in(6) {
            self.cancel_one(&lane).await;
        }
        self.mend_dead().await;
        let unlucky = request(self.weather.below(self.requests.max(1))).id;
        self.chain.set_reverting_alone(self.weather.once_in(4).then_some(unlucky));
        let broke = self.weather.once_in(20);
        self.chain.set_broke(broke);
        for lane in [lane_named("a"), lane_named("b")] {
            let Some(view) = self.store.lane(lane.clone()).await.unwrap() else { continue };
            let [pending, latest, settled] = self.chain.slots(&lane);
            let order = match view.status {
                LaneStatus::Unfunded { .. } if !broke => Order::Resume,
                // Hasty: what the outsider sent may yet vanish.
                LaneStatus::Stopped if pending > latest && self.weather.once_in(2) => {
                    Order::Reconcile { outside_next: pending }
                }
                // What the outsider sent must be beyond any reorg before it is believed.
                LaneStatus::Stopped if pending == latest && latest == settled => {
                    Order::Reconcile { outside_next: settled }
                }
                _ => continue,
            };
            self.store.apply_one(LaneOrder { lane, order }).await.unwrap();
        }
    }

    /// A person no longer wants one of the parcels that are under way.
    async fn cancel_one(&self, lane: &LaneName) {
        let Some(view) = self.store.lane(lane.clone()).await.unwrap() else { return };
        let at = self.weather.below(view.parcels.len() as u64);
        let Some(parcel) = view.parcels.get(usize::try_from(at).unwrap()) else { return };
        let then = match self.weather.below(2) {
            0 => AfterCancel::Requeue,
            _ => AfterCancel::Dead(ErrorNote::new(ErrorClass::Fatal, "a person did not want it")),
        };
        let order = Order::Cancel { nonce: parcel.nonce, then };
        self.store.apply_one(LaneOrder { lane: lane.clone(), order }).await.unwrap();
    }

    /// A person has another look at the dead letters.
    async fn mend_dead(&self) {
        let filter = ListFilter { states: vec![StateKind::Dead], limit: 10, ..ListFilter::default() };
        for dead in self.store.list(filter).await.unwrap().requests {
            let remedy = if self.weather.below(2) == 0 { Remedy::Retry } else { Remedy::Rework };
            self.store.apply_one(Mend { id: dead.id, remedy }).await.unwrap();
        }
    }

    /// The requests that the chain shows, or may show again.
    fn wanted(&self) -> BTreeSet<RequestId> {
        self.events.iter().map(|event| event_id(*event)).collect()
    }

    /// Nothing wrong, ever.
    fn judge_safety(&self) {
        for (id, times) in self.chain.answers() {
            assert_eq!(times, 1, "seed {}: {id} was answered {times} times", self.seed);
        }
        let wanted = self.wanted();
        let unasked: Vec<_> = self.chain.answers().into_keys().filter(|id| !wanted.contains(id)).collect();
        assert!(unasked.is_empty(), "seed {}: taken back, and answered: {unasked:?}", self.seed);
    }

    /// Everything ends.
    async fn judge_liveness(&self) {
        let answers = self.chain.answers();
        let lost: Vec<_> = self.wanted().into_iter().filter(|id| !answers.contains_key(id)).collect();
        let mut left = self.store.counts().await.unwrap();
        // The timer goes on.
        left.retain(|count| count.route == route());
        assert!(lost.is_empty() && left.is_empty(), "seed {}: lost {lost:?}, left {left:?}", self.seed);
        assert_eq!(self.chain.gaps(), [], "seed {}", self.seed);
        for lane in [lane_named("a"), lane_named("b")] {
            let view = self.store.lane(lane.clone()).await.unwrap().unwrap();
            let [_, latest, settled] = self.chain.slots(&lane);
            assert_eq!((view.parcels.len(), latest, settled), (0, view.next, view.next), "seed {}", self.seed);
        }
        self.judge_timer();
    }

    /// Every tick that is a while ago, and every three of them, reached the hook.
    fn judge_timer(&self) {
        let tick_at = |time: UnixMs| time.0 / u64::try_from(PERIOD.as_millis()).unwrap();
        let (first, last) = (tick_at(START) + 6, tick_at(self.clock.now()) - 12);
        let hooked = self.hooked.lock().unwrap();
        let missed: Vec<u64> =
            (first..last).filter(|n| !hooked.contains_key(&Every::id(&timer(), PERIOD, *n))).collect();
        let whole = (first..last).filter(|n| n % 3 == 0 && n + 2 < last);
        let unsealed: Vec<u64> = whole.filter(|n| !hooked.contains_key(&three(*n))).collect();
        assert!(missed.is_empty() && unsealed.is_empty(), "seed {}: {missed:?} {unsealed:?}", self.seed);
    }

    /// What the run was, for comparison with another one.
    async fn picture(&mut self) -> String {
        let mut from = 1;
        let mut events = Vec::new();
        loop {
            let page = self.store.journal(from, 1000).await.unwrap();
            assert!(!page.reset, "the journal holds a whole run");
            let Some(last) = page.entries.last() else { break };
            from = last.position + 1;
            page.entries.iter().for_each(|entry| self.reached.note(&entry.event));
            events.extend(page.entries.into_iter().map(|entry| format!("{:?}", (entry.at, entry.event))));
        }
        format!("{events:?} {:?}", self.chain.blocks())
    }
}

/// A handler that takes its time, and fails now and then.
async fn work(weather: Weather, payload: Payload, job: Job) -> Result<Handled<Payload>, Failure> {
    let effort = tokio::time::sleep(Duration::from_millis(weather.below(4_000)));
    tokio::select! {
        biased;
        () = job.stopped() => return Err(Failure::transport("no longer wanted")),
        () = effort => {}
    }
    if weather.once_in(40) {
        // Without the hook that would print it.
        std::panic::resume_unwind(Box::new("a handler that panics"));
    }
    match weather.below(10) {
        0 if weather.once_in(1) => Err(Failure::retry("not this time")),
        1 if weather.once_in(1) => Err(Failure::transport("no route")),
        2 if weather.once_in(1) => Ok(Handled::Snooze(Duration::from_secs(3))),
        _ => Ok(payload.into()),
    }
}

/// One run; answers what it did, for comparison.
async fn run(seed: u64) -> (Reached, String) {
    let mut world = World::new(seed).await;
    let shutdown = Shutdown::new();
    let mut processes: Vec<_> = (0..2).map(|process| world.start(process, &shutdown)).collect();
    for _ in 0..60 {
        world.block().await;
        for (process, stations) in (0..).zip(&mut processes) {
            if let Some(ended) = stations.try_join_next() {
                panic!("seed {seed}: a station ended: {ended:?}");
            }
            if world.weather.once_in(25) {
                // The process dies, and starts again.
                stations.shutdown().await;
                world.reached.count("crashed", 1);
                *stations = world.start(process, &shutdown);
            }
        }
        if world.weather.once_in(40) {
            // All of them die, and the store's own process with them.
            for stations in &mut processes {
                stations.shutdown().await;
            }
            world.store.crash();
            world.reached.count("store crashed", 1);
            processes = (0..2).map(|process| world.start(process, &shutdown)).collect();
        }
    }
    world.weather.calm_down();
    for _ in 0..150 {
        world.block().await;
    }
    world.judge_liveness().await;
    shutdown.cancel();
    for mut stations in processes {
        while let Some(ended) = stations.join_next().await {
            ended.unwrap().unwrap();
        }
    }
    let picture = world.picture().await;
    (world.reached, picture)
}

fn simulate(seed: u64) -> (Reached, String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run(seed))
}

/// Which seeds to run: one, a fixed few hundred, or new ones for so many seconds.
fn seeds() -> Box<dyn Iterator<Item = u64> + Send> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    if let Some(seed) = number("SEED") {
        return Box::new(std::iter::once(seed));
    }
    let usual = KEPT.into_iter().chain(0..SEEDS);
    let Some(seconds) = number("SIMULATE_SECONDS") else { return Box::new(usual) };
    let until = Instant::now() + Duration::from_secs(seconds);
    let first = SystemClock::new().now().0;
    println!("seeds from {first} on, for {seconds} s");
    Box::new(usual.chain((first..).take_while(move |_| Instant::now() < until)))
}

#[test]
fn every_seed_is_safe_and_comes_to_an_end() {
    let reached = Mutex::new(Reached::default());
    let (next, ran) = (Mutex::new(seeds()), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(seed) = { next.lock().unwrap().next() } {
                    let (one, _) = simulate(seed);
                    one.0.into_iter().for_each(|(path, times)| reached.lock().unwrap().count(path, times));
                    ran.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let (reached, ran) = (reached.into_inner().unwrap(), ran.into_inner());
    println!("{ran} seeds: {reached:?}");
    if ran >= SEEDS {
        let missed: Vec<_> = Reached::ALL.iter().filter(|path| !reached.0.contains_key(**path)).collect();
        assert!(missed.is_empty(), "never reached: {missed:?} of {reached:?}");
    }
}

#[test]
fn the_same_seed_does_exactly_the_same() {
    for seed in 0..4 {
        assert_eq!(simulate(seed).1, simulate(seed).1, "seed {seed}");
    }
}
