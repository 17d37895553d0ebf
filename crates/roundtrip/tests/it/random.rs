//! Two stores under the same random operations, clocks and restarts: the same
//! outcomes, and the same picture at every restart and in the end.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use roundtrip::inbox::{Identity, Standing};
use roundtrip::listener::Cursor;
use roundtrip::sender::{AttemptKind, ParcelStage};
use roundtrip::store::op::{
    Admit, AfterCancel, Already, Amend, Amendment, Answer, Assign, Attempt, ChainTick, Close, CursorMove, Define,
    Effect, Extend, Fail, Fill, Gather, Grant, GroupPlan, Judgement, LaneOrder, Lead, Lease, Mend, NewParcel,
    NewRequest, Op, Order, Outcome, Pause, Prune, Publish, PublishResult, Reject, Release, Remedy, Seat, Settle, Sight,
    Verdict,
};
use roundtrip::store::policy::{Backoff, Gate, Horizon, OnDuplicate, QueueOrder, Rate, Retention, RoutePolicy};
use roundtrip::store::query::{LaneView, ListFilter, ReadyDelivery, RequestView};
use roundtrip::store::{Options, ReadExt};
use roundtrip::testkit::bench::{Bench, Harness, InBatches, InMemory, START};
use roundtrip::testkit::picture::{Picture, Sights};
use roundtrip::testkit::samples::*;
use roundtrip::words::{
    ClaimId, Destination, ErrorClass, GroupKey, HolderName, LaneName, Moment, Nonce, OrderKey, Payload, RequestId,
    RouteName, Token, UnixMs,
};

/// Small enough that journals are trimmed and receipts spilled.
pub(crate) const OPTIONS: Options = Options { journal_entries: 64, spill_receipts: 4, lease_write_ms: 3_600_000 };
const CASES: u32 = 200;
/// Fewer, on a store whose every commit is synced.
#[cfg(any(feature = "postgres", feature = "redis"))]
const SERVER_CASES: u32 = 30;
const IDS: u64 = 10;
/// Requests whose ids are hashes, with occurrences of their own.
const BALLOTS: u64 = 2;
const BALLOT_OCCURRENCES: u64 = 8;
/// How many heights the origin's head goes through, mostly by leaps.
const HEADS: u64 = 40;
/// Of every route, and the longest: a restart shortens what is longer than its route's.
const LEASE_MS: u64 = 1000;

#[test]
fn batching_changes_nothing() {
    compare(InMemory::default, || InBatches::of(InMemory::default()));
}

#[cfg(feature = "sqlite")]
#[test]
fn sqlite_is_memory_with_a_disk() {
    compare(InMemory::default, crate::sqlite::OnDisk::default);
}

/// A server has no start at which states are worked out anew, and forgets receipts in an
/// order of its own: so nothing is restarted, and time does not step back.
#[cfg(feature = "postgres")]
#[test]
fn postgres_is_memory_on_a_server() {
    compare_under(Weather::Steady, SERVER_CASES, InMemory::default, crate::postgres::OnServer::default);
}

/// The same holds of this one.
#[cfg(feature = "redis")]
#[test]
fn redis_is_memory_on_a_server() {
    compare_under(Weather::Steady, SERVER_CASES, InMemory::default, crate::redis::OnServer::default);
}

/// And on a cluster.
#[cfg(feature = "redis")]
#[test]
fn redis_cluster_is_memory_on_servers() {
    compare_under(Weather::Steady, SERVER_CASES, InMemory::default, crate::redis::OnServer::on_cluster);
}

/// Compares two kinds of store. `PROPTEST_CASES` asks for more, and for random seeds.
fn compare<A: Harness, B: Harness>(one: impl Fn() -> A, two: impl Fn() -> B) {
    compare_under(Weather::Rough, CASES, one, two);
}

/// What befalls the stores besides operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weather {
    /// Restarts, and clocks that step back.
    Rough,
    /// Neither; and how much one prune forgets is not compared.
    #[cfg_attr(not(any(feature = "postgres", feature = "redis")), allow(dead_code, reason = "for stores on servers"))]
    Steady,
}

fn compare_under<A: Harness, B: Harness>(weather: Weather, cases: u32, one: impl Fn() -> A, two: impl Fn() -> B) {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let config = Config {
        cases: asked.unwrap_or(cases),
        failure_persistence: None,
        max_shrink_iters: 4000,
        ..Config::default()
    };
    let mut runner = match asked {
        Some(_) => TestRunner::new(config),
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let steps = vec((any::<u8>(), vec(any::<u64>(), 1..5)), 1..80);
    let result = runner.run(&steps, |steps| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let benches = [Bench::open_with(one(), OPTIONS).await, Bench::open_with(two(), OPTIONS).await];
            Pair { benches, world: World::new(), weather }.run(&steps).await;
        });
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// The two stores and what their callers know.
struct Pair {
    benches: [Bench; 2],
    world: World,
    weather: Weather,
}

impl Pair {
    async fn run(&mut self, steps: &[(u8, Vec<u64>)]) {
        self.apply(setup()).await;
        for (event, seeds) in steps {
            match event % 16 {
                0 if self.weather == Weather::Rough => self.restart().await,
                0 => drop(self.pictures().await),
                1..=4 => self.set_clock(self.world.now.plus(1 << (event >> 3))),
                5 if self.weather == Weather::Rough => self.set_clock(UnixMs(self.world.now.0 - 700)),
                _ => {}
            }
            self.world.look(&self.benches[0]).await;
            let batch: Vec<Op> = seeds.iter().map(|seed| self.world.op(&mut Dice(*seed))).collect();
            self.apply(batch).await;
        }
        match self.weather {
            Weather::Rough => self.restart().await,
            Weather::Steady => drop(self.pictures().await),
        }
        for bench in &mut self.benches {
            bench.verify().await;
        }
    }

    async fn apply(&mut self, batch: Vec<Op>) {
        let mut one = self.benches[0].batch(batch.clone()).await;
        let mut two = self.benches[1].batch(batch.clone()).await;
        if self.weather == Weather::Steady {
            for outcomes in [&mut one, &mut two] {
                let pruned = batch.iter().zip(outcomes).filter(|(op, _)| matches!(op, Op::Prune(_)));
                pruned.for_each(|(_, outcome)| forget_count(outcome));
            }
        }
        assert_eq!(one, two, "the stores answer differently to {batch:?}");
        batch.iter().zip(&one).for_each(|(op, outcome)| self.world.learn(op, outcome));
    }

    fn set_clock(&mut self, now: UnixMs) {
        self.world.now = now;
        self.world.latest = self.world.latest.max(now);
        self.benches.iter().for_each(|bench| bench.clock.set(now));
    }

    async fn restart(&mut self) {
        let before = self.pictures().await;
        for bench in &mut self.benches {
            bench.restart().await;
        }
        let after = self.pictures().await;
        // With a clock that stepped back, the new start holds what is not due again.
        if self.world.now == self.world.latest {
            before.assert_same(&after, "a restart");
        }
    }

    /// The one picture that both stores show.
    async fn pictures(&self) -> Picture {
        let mut pictures = Vec::new();
        for bench in &self.benches {
            // A store may or may not write leases when it is closed.
            bench.commit().await;
            pictures.push(Picture::of(&**bench.store(), &sights()).await);
        }
        pictures[0].assert_same(&pictures[1], "two stores");
        pictures.remove(0)
    }
}

/// Stores that live through the same random operations, for tests that need one with
/// something of everything in it.
pub(crate) struct Life {
    world: World,
    dice: Dice,
}

impl Life {
    pub(crate) async fn begin(bench: &Bench, seed: u64) -> Life {
        bench.batch(setup()).await;
        Life { world: World::new(), dice: Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1) }
    }

    /// So many batches, which all stores must answer alike. Where there are several nothing is
    /// pruned: a copy has its receipts in another order, and so forgets them at other times.
    pub(crate) async fn go_on(&mut self, benches: &[&Bench], batches: usize) {
        for _ in 0..batches {
            if self.dice.one_in(4) {
                self.world.now = self.world.now.plus(self.dice.roll(600));
                benches.iter().for_each(|bench| bench.clock.set(self.world.now));
            }
            self.world.look(benches[0]).await;
            let count = 1 + self.dice.roll(4);
            let mut batch: Vec<Op> = (0..count).map(|_| self.world.op(&mut Dice(fresh(&mut self.dice)))).collect();
            batch.retain(|op| benches.len() == 1 || !matches!(op, Op::Prune(_)));
            let outcomes = benches[0].batch(batch.clone()).await;
            for other in &benches[1..] {
                assert_eq!(other.batch(batch.clone()).await, outcomes, "the stores answer differently to {batch:?}");
            }
            batch.iter().zip(&outcomes).for_each(|(op, outcome)| self.world.learn(op, outcome));
        }
    }
}

/// A seed for one operation.
fn fresh(dice: &mut Dice) -> u64 {
    (0..4).fold(0, |seed, _| seed << 16 | dice.roll(1 << 16))
}

fn forget_count(outcome: &mut Outcome) {
    if let Outcome::Applied(Effect::Count(count)) = outcome {
        *count = 0;
    }
}

pub(crate) fn sights() -> Sights {
    Sights {
        ids: (0..IDS).map(id).chain((0..BALLOTS).map(|n| ballot(n).id)).collect(),
        listeners: BTreeSet::from([listener()]),
        groups: (0..2).map(group_at).collect(),
        destinations: BTreeSet::from([destination(), other_destination()]),
    }
}

fn setup() -> Vec<Op> {
    let mut ops = Vec::new();
    for n in 0..3 {
        let policy = RoutePolicy { lease_ms: LEASE_MS, ..policy() };
        let policy = if n == 2 { ballots(OnDuplicate::Vote { needed: 2 }, policy) } else { policy };
        ops.push(Op::Define(Define { route: route_at(n), policy }));
        ops.push(Op::Lead(Lead { seat: Seat::Route(route_at(n)), holder: holder(), ttl_ms: 5000 }));
    }
    for n in 0..2 {
        let order = Order::Open { destination: destination(), window: 3, first: Nonce(5) };
        ops.push(Op::Lane(LaneOrder { lane: lane_at(n), order }));
        ops.push(Op::Lead(Lead { seat: Seat::Lane(lane_at(n)), holder: holder(), ttl_ms: 5000 }));
    }
    ops.push(Op::Lead(Lead { seat: Seat::Destination(other_destination()), holder: holder(), ttl_ms: 5000 }));
    ops
}

fn route_at(n: u64) -> RouteName {
    route_named(["orders", "quotes", "ballots"][(n % 3) as usize])
}

/// The policies of the route on which ids are hashes of the content.
fn ballots(on_duplicate: OnDuplicate, policy: RoutePolicy) -> RoutePolicy {
    RoutePolicy { identity: Identity::Content, horizon: Horizon::For { ms: 900 }, on_duplicate, ..policy }
}

/// Question `n` on that route.
fn ballot(n: u64) -> NewRequest {
    let payload = Payload::json(format!("{{\"question\":{n}}}"));
    let id = Identity::Content.id_of(&route_at(2), &payload).unwrap().unwrap();
    NewRequest { route: route_at(2), id, payload, ..request(n) }
}

fn order_key(n: u64) -> OrderKey {
    OrderKey::new(["key-1", "key-2"][(n % 2) as usize]).unwrap()
}

fn lane_at(n: u64) -> LaneName {
    lane_named(["lane-1", "lane-2"][(n % 2) as usize])
}

fn group_at(n: u64) -> GroupKey {
    group_named(["group-1", "group-2"][(n % 2) as usize])
}

/// A seed, used up roll by roll.
struct Dice(u64);

impl Dice {
    /// A number below this.
    fn roll(&mut self, below: u64) -> u64 {
        let rolled = self.0 % below;
        // What is left is mixed, so that late rolls are not all zero.
        self.0 = (self.0 / below).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17) ^ (self.0 >> 7);
        rolled
    }

    fn roll_as<N: TryFrom<u64>>(&mut self, below: u64) -> N {
        N::try_from(self.roll(below)).ok().unwrap()
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == n - 1
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let at: usize = self.roll_as(from.len().max(1) as u64);
        from.get(at).cloned()
    }
}

/// What callers know: from outcomes, and so sometimes out of date, and from a look at
/// the store before each batch.
struct World {
    now: UnixMs,
    latest: UnixMs,
    grants: Vec<Grant>,
    cursors: Vec<Option<Cursor>>,
    seats: BTreeMap<Seat, Vec<Token>>,
    attempts: u64,
    live: Vec<RequestView>,
    ready: Vec<RequestId>,
    /// Answers that are ready, or were.
    aside: Vec<(RequestId, Token)>,
    /// What was ready for the destination without lanes, lately.
    courier: Vec<ReadyDelivery>,
    lanes: Vec<LaneView>,
}

const REMEMBERED: usize = 12;

impl World {
    fn new() -> World {
        World {
            now: START,
            latest: START,
            grants: Vec::new(),
            cursors: vec![None],
            seats: BTreeMap::new(),
            attempts: 0,
            live: Vec::new(),
            ready: Vec::new(),
            aside: Vec::new(),
            courier: Vec::new(),
            lanes: Vec::new(),
        }
    }

    async fn look(&mut self, bench: &Bench) {
        let store = bench.store();
        self.live = store.list(ListFilter { limit: 100, ..ListFilter::default() }).await.unwrap().requests;
        let ready = store.ready(destination(), 100).await.unwrap();
        self.ready = ready.iter().map(|ready| ready.id).collect();
        self.aside.extend(ready.iter().map(|ready| (ready.id, ready.answer)));
        self.aside.drain(..self.aside.len().saturating_sub(REMEMBERED));
        self.courier.extend(store.ready(other_destination(), 100).await.unwrap());
        self.courier.drain(..self.courier.len().saturating_sub(REMEMBERED));
        self.lanes.clear();
        for n in 0..2 {
            self.lanes.extend(store.lane(lane_at(n)).await.unwrap());
        }
    }

    fn learn(&mut self, op: &Op, outcome: &Outcome) {
        match (op, outcome) {
            (_, Outcome::Applied(Effect::Leased(grants))) => {
                self.grants.extend(grants.iter().cloned());
                self.grants.drain(..self.grants.len().saturating_sub(REMEMBERED));
            }
            (_, Outcome::Applied(Effect::Admitted(_, Some(cursor)))) => {
                self.cursors.push(Some(*cursor));
                self.cursors.drain(..self.cursors.len().saturating_sub(3));
            }
            (Op::Lead(lead), Outcome::Applied(Effect::Led(token, _))) => {
                let tokens = self.seats.entry(lead.seat.clone()).or_default();
                if tokens.last() != Some(token) {
                    tokens.push(*token);
                }
            }
            _ => {}
        }
    }

    /// Mostly the newest token of a seat; sometimes an older one, or one that never was.
    fn token(&self, dice: &mut Dice, seat: Seat) -> Token {
        let known = self.seats.get(&seat).map_or(&[][..], Vec::as_slice);
        let never = Token { epoch: 1, count: 99 };
        match dice.roll(20) {
            0 => never,
            1 => dice.pick(known).unwrap_or(never),
            _ => known.last().copied().unwrap_or(never),
        }
    }

    /// Mostly a grant that may still hold.
    fn grant(&self, dice: &mut Dice) -> Grant {
        dice.pick(&self.grants).unwrap_or_else(|| Grant {
            id: id(0),
            token: Token { epoch: 1, count: 1 },
            until: self.now,
            attempt: 1,
            generation: 0,
            revision: 0,
            standing: Standing::Seen,
            deadline: None,
            payload: Payload::default(),
            trace: None,
        })
    }

    fn op(&mut self, dice: &mut Dice) -> Op {
        match dice.roll(40) {
            0..=7 => self.admit(dice),
            8..=12 => self.amend(dice),
            13..=17 => self.lease(dice),
            18..=22 => self.answer(dice),
            23..=25 => self.give_back(dice),
            26..=28 => match dice.roll(16) {
                0..=3 => self.fill(dice),
                4 => self.aside(dice),
                _ => self.assign(dice),
            },
            29..=31 => self.settle(dice),
            32 => self.publish(dice),
            33..=35 => self.upkeep(dice),
            36 => self.gather(dice),
            37 => self.lead(dice),
            38 => self.order(dice),
            _ => self.govern(dice),
        }
    }

    /// Occurrence `n` belongs to request `n % IDS`, and shows one of two contents.
    fn request(&self, dice: &mut Dice) -> NewRequest {
        let occurrence_no = dice.roll(IDS * 3 + BALLOT_OCCURRENCES);
        let is_ballot = occurrence_no >= IDS * 3;
        let n = occurrence_no % IDS;
        let standings = [Standing::Seen, Standing::Final, Standing::Final];
        let content = Payload::raw(format!("content {}", u64::from(dice.one_in(4))));
        let asked = if is_ballot {
            ballot(occurrence_no % BALLOTS)
        } else {
            NewRequest { route: route_at(n % 2), payload: content, ..request(n) }
        };
        NewRequest {
            // Sometimes on the route where ids are hashes, and this is none.
            route: if dice.one_in(40) { route_at(2) } else { asked.route.clone() },
            occurrence: occurrence(occurrence_no),
            place: (!dice.one_in(4)).then(|| place(100 + occurrence_no)),
            standing: standings[dice.roll_as::<usize>(3)],
            key: dice.pick(&[None, Some(order_key(0)), Some(order_key(1))]).flatten(),
            due: dice.one_in(4).then(|| self.moment(dice, 2000)),
            deadline: dice.one_in(4).then(|| self.moment(dice, 20_000)),
            priority: dice.roll_as(3),
            trace: dice.one_in(4).then(|| "trace".into()),
            ..asked
        }
    }

    /// A time, or one of the heights or times that ticks reach.
    fn moment(&self, dice: &mut Dice, ms: u64) -> Moment {
        match dice.roll(4) {
            0 => place(100 + dice.roll(HEADS)).into(),
            1 => Moment::BlockTime { origin: origin(), at: self.now.plus(dice.roll(ms)) },
            _ => self.now.plus(dice.roll(ms)).into(),
        }
    }

    fn requests(&self, dice: &mut Dice, below: u64) -> Vec<NewRequest> {
        (0..dice.roll(below)).map(|_| self.request(dice)).collect()
    }

    fn admit(&self, dice: &mut Dice) -> Op {
        let cursor = dice.one_in(3).then(|| CursorMove {
            listener: listener(),
            expected: match dice.one_in(4) {
                true => dice.pick(&self.cursors).flatten(),
                false => self.cursors.last().copied().flatten(),
            },
            next: position(dice.roll(4)),
        });
        Op::Admit(Admit { cursor, requests: self.requests(dice, 4) })
    }

    fn amend(&self, dice: &mut Dice) -> Op {
        let occurrence_no = dice.roll(IDS * 3);
        let n = occurrence_no % IDS;
        let shown = dice.pick(&self.live).and_then(|live| dice.pick(&live.occurrences)).map(|shown| shown.id);
        let occurrence = shown.filter(|_| !dice.one_in(4)).unwrap_or(occurrence(occurrence_no));
        let shows = |live: &&RequestView| live.occurrences.iter().any(|shown| shown.id == occurrence);
        let (id, route) = match self.live.iter().find(shows) {
            Some(live) => (live.id, live.route.clone()),
            None => (id(n), route_at(n % 2)),
        };
        let change = match dice.roll(9) {
            0..=2 => Amendment::Finalize { occurrence },
            3 | 4 => Amendment::Orphan { occurrence },
            5 => Amendment::Include { occurrence, height: place(dice.roll(200)).height },
            6 => Amendment::Withdraw { occurrence },
            7 => Amendment::Supersede {
                id,
                occurrence,
                place: Some(place(occurrence_no)),
                payload: Payload::raw(format!("content {}", dice.roll(2))),
                deadline: dice.one_in(3).then(|| self.moment(dice, 20_000)),
            },
            _ => Amendment::Elsewhere { id },
        };
        Op::Amend(Amend { lead: self.token(dice, Seat::Route(route)), change })
    }

    fn lease(&self, dice: &mut Dice) -> Op {
        Op::Lease(Lease {
            route: route_at(dice.roll(3)),
            worker: [worker(), other_worker()][dice.roll_as::<usize>(2)].clone(),
            max: dice.roll_as::<usize>(4),
            claim: ClaimId(dice.roll(20)),
            lease_ms: dice.one_in(4).then(|| dice.roll(LEASE_MS)),
        })
    }

    fn answer(&self, dice: &mut Dice) -> Op {
        let grant = self.grant(dice);
        let follow_ups = if dice.one_in(4) { self.requests(dice, 3) } else { Vec::new() };
        let items = (0..dice.roll(8) / 5).map(|_| self.item(dice)).collect();
        Op::Answer(Answer { follow_ups, items, ..answer(&grant) })
    }

    fn item(&self, dice: &mut Dice) -> Gather {
        let plan = dice.one_in(2).then(|| {
            let seal_at_items = dice.one_in(2).then(|| 1 + dice.roll(3));
            let seal_at = dice.one_in(2).then(|| self.moment(dice, 2000));
            Box::new(GroupPlan { seal_at_items, seal_at, request: self.request(dice) })
        });
        Gather { group: group_at(dice.roll(2)), plan, ..gather(dice.roll(5)) }
    }

    /// Answers for the destination without lanes, mostly as they are, sometimes outdated.
    fn publish(&mut self, dice: &mut Dice) -> Op {
        let anyone = || {
            let (id, answer) = (id(0), Token { epoch: 1, count: 1 });
            Publish { destination: other_destination(), owner: answer, id, answer, result: PublishResult::Delivered }
        };
        let known = dice
            .pick(&self.courier)
            .map(|delivery| Publish { destination: other_destination(), ..delivered(delivery.answer, &delivery) });
        let result = match dice.roll(4) {
            0 => PublishResult::Refused(note(ErrorClass::Fatal)),
            1 => {
                let class = if dice.one_in(2) { ErrorClass::Transport } else { ErrorClass::Retryable };
                PublishResult::Failed { error: note(class), before: dice.roll_as(3) }
            }
            _ => PublishResult::Delivered,
        };
        let owner = self.token(dice, Seat::Destination(other_destination()));
        Op::Publish(Publish { owner, result, ..known.unwrap_or_else(anyone) })
    }

    fn give_back(&self, dice: &mut Dice) -> Op {
        let grant = self.grant(dice);
        let classes = [ErrorClass::Transport, ErrorClass::Retryable, ErrorClass::Crash, ErrorClass::Fatal];
        let (class, after_ms) = (classes[dice.roll_as::<usize>(4)], dice.roll(800));
        let verdict = match dice.roll(6) {
            0 => Verdict::Dead { response: None },
            1 => Verdict::Dead { response: Some(Payload::raw("it failed")) },
            _ => Verdict::Retry { after_ms: (!dice.one_in(3)).then_some(after_ms) },
        };
        match dice.roll(4) {
            0 => Op::Extend(Extend { lease_ms: None, ..extend(&grant) }),
            1 => Op::Release(Release { after_ms, ..release(&grant) }),
            _ => Op::Fail(Fail { verdict, ..fail(&grant, class) }),
        }
    }

    fn signed(&mut self, dice: &mut Dice) -> roundtrip::sender::SignedAttempt {
        self.attempts += 1;
        signed(self.attempts, if dice.one_in(4) { AttemptKind::Cancel } else { AttemptKind::Carry })
    }

    fn assign(&mut self, dice: &mut Dice) -> Op {
        let LaneView { name: lane, next, .. } = dice.pick(&self.lanes).unwrap();
        let first = Nonce(if dice.one_in(8) { next.0 - dice.roll(2) } else { next.0 });
        let mut ready = self.ready.clone();
        let parcels = (0..=dice.roll(2)).map(|_| {
            let anyone = (0..dice.roll(16) / 14).map(|_| id(dice.roll(IDS)));
            let deliveries: Vec<RequestId> = anyone.chain(ready.drain(..ready.len().min(2))).collect();
            self.parcel(dice, deliveries)
        });
        let parcels = parcels.collect();
        Op::Assign(Assign { owner: self.token(dice, Seat::Lane(lane.clone())), lane, first, parcels })
    }

    /// Mostly with an attempt that may be its first.
    fn parcel(&mut self, dice: &mut Dice, deliveries: Vec<RequestId>) -> NewParcel {
        let mut attempt = self.signed(dice);
        if deliveries.is_empty() && !dice.one_in(8) {
            attempt.kind = AttemptKind::Cancel;
        }
        NewParcel { deliveries, answers: Vec::new(), attempt }
    }

    /// Mostly onto a gap, if there is one.
    fn fill(&mut self, dice: &mut Dice) -> Op {
        let view = dice.pick(&self.lanes).unwrap();
        let occupied = |nonce: &u64| view.parcels.iter().any(|parcel| parcel.nonce.0 == *nonce);
        let gaps: Vec<u64> = (view.settled.0.max(5)..view.next.0).filter(|nonce| !occupied(nonce)).collect();
        let gap = dice.pick(&gaps).filter(|_| !dice.one_in(8));
        let nonce = Nonce(gap.unwrap_or_else(|| view.next.0.saturating_sub(dice.roll(4))));
        let ready = if dice.one_in(2) { dice.pick(&self.ready) } else { None };
        let parcel = self.parcel(dice, ready.into_iter().collect());
        Op::Fill(Fill { owner: self.token(dice, Seat::Lane(view.name.clone())), lane: view.name, nonce, parcel })
    }

    /// A ready answer that gets no slot, sometimes one that was ready before.
    fn aside(&mut self, dice: &mut Dice) -> Op {
        let lane = dice.pick(&self.lanes).unwrap().name;
        let owner = self.token(dice, Seat::Lane(lane.clone()));
        let nobody = (id(0), Token { epoch: 1, count: 1 });
        let (id, answer) = dice.pick(&self.aside).unwrap_or(nobody);
        if dice.one_in(3) {
            return Op::Already(Already { lane, owner, id, answer });
        }
        let instead = dice.one_in(2).then(|| Payload::raw("sorry"));
        Op::Reject(Reject { lane, owner, id, answer, error: note(ErrorClass::Fatal), instead })
    }

    fn settle(&mut self, dice: &mut Dice) -> Op {
        let view = dice.pick(&self.lanes).unwrap();
        let (lane, parcel) = (view.name, dice.pick(&view.parcels));
        let owner = self.token(dice, Seat::Lane(lane.clone()));
        let any_nonce = Nonce(view.next.0.saturating_sub(dice.roll(3)));
        let nonce = parcel.as_ref().map_or(any_nonce, |parcel| parcel.nonce);
        if dice.one_in(6) {
            return Op::Attempt(Attempt { lane, owner, nonce, attempt: self.signed(dice) });
        }
        let known = parcel.as_ref().and_then(|parcel| dice.pick(&parcel.attempts)).map(|attempt| attempt.hash);
        let mut found = block(self.attempts, dice.roll(3));
        found.attempt = known.filter(|_| !dice.one_in(8)).unwrap_or(found.attempt);
        let judgement = match dice.roll(5) {
            4 => Judgement::Replaced(note(ErrorClass::Fatal), Payload::raw("sorry")),
            0 => Judgement::Again(note(ErrorClass::Retryable)),
            1 => Judgement::Failed(note(ErrorClass::Fatal)),
            _ => Judgement::Done,
        };
        let sight = match dice.roll(6) {
            0 | 1 => Sight::Included(found),
            2 => Sight::Confirmed(found),
            3 => Sight::Final(found, judgement),
            4 => Sight::Back,
            _ => Sight::Displaced,
        };
        let stages = [ParcelStage::Assigned, ParcelStage::Included, ParcelStage::Confirmed];
        let stage = parcel.map(|parcel| parcel.stage).filter(|_| !dice.one_in(8));
        let expected = stage.unwrap_or(stages[dice.roll_as::<usize>(3)]);
        Op::Settle(Settle { lane, owner, nonce, expected, sight })
    }

    fn upkeep(&self, dice: &mut Dice) -> Op {
        let limit = dice.roll_as::<usize>(6);
        match dice.roll(6) {
            5 => Op::Fire { limit },
            3 | 4 => {
                let height = place(100 + dice.roll(HEADS)).height;
                let at = UnixMs(self.now.0.saturating_sub(dice.roll(5_000)));
                Op::Tick(ChainTick { origin: origin(), height, at })
            }
            0 => Op::Rescue { limit },
            1 => Op::Expire { limit },
            _ => {
                let floors = if dice.one_in(4) { vec![place(90 + dice.roll(20))] } else { Vec::new() };
                Op::Prune(Prune { limit, floors })
            }
        }
    }

    fn gather(&self, dice: &mut Dice) -> Op {
        match dice.one_in(3) {
            true => Op::Close(Close { group: group_at(dice.roll(2)), request: self.request(dice) }),
            false => Op::Gather(self.item(dice)),
        }
    }

    fn lead(&self, dice: &mut Dice) -> Op {
        let n = dice.roll(3);
        let to = if dice.one_in(8) { destination() } else { other_destination() };
        let seats = [Seat::Lane(lane_at(n)), Seat::Route(route_at(n)), Seat::Upkeep, Seat::Destination(to)];
        let seat = seats[dice.roll_as::<usize>(4)].clone();
        let holders: [HolderName; 2] = [holder(), other_holder()];
        Op::Lead(Lead { seat, holder: holders[dice.roll_as::<usize>(2)].clone(), ttl_ms: dice.roll(3) * 1000 })
    }

    fn order(&self, dice: &mut Dice) -> Op {
        let LaneView { name: lane, next, parcels, .. } = dice.pick(&self.lanes).unwrap();
        let further = |dice: &mut Dice| next.plus(if dice.one_in(3) { 1 + dice.roll(3) } else { 0 });
        if dice.one_in(3) {
            let nonce = dice.pick(&parcels).map_or(next, |parcel| parcel.nonce);
            let dead = AfterCancel::Dead(note(ErrorClass::Fatal));
            let then = if dice.one_in(2) { dead } else { AfterCancel::Requeue };
            return Op::Lane(LaneOrder { lane, order: Order::Cancel { nonce, then } });
        }
        let order = match dice.roll(9) {
            0 => Order::Pause { reason: "why".into() },
            8 if dice.one_in(2) => Order::Unfunded { reason: "nothing left".into() },
            8 => Order::Funded,
            1 => Order::Quarantine { for_ms: dice.roll(2000) },
            2 => Order::Observe { outside_next: further(dice) },
            3 => Order::Open { destination: destination(), window: 2 + dice.roll_as::<u32>(4), first: Nonce(0) },
            6 if dice.one_in(2) => Order::Settled { below: Nonce(dice.roll(next.0 + 2)) },
            4 | 5 => Order::Reconcile { outside_next: further(dice) },
            _ => Order::Resume,
        };
        Op::Lane(LaneOrder { lane, order })
    }

    fn govern(&self, dice: &mut Dice) -> Op {
        let n = dice.roll(3);
        let route = route_at(n);
        match dice.roll(6) {
            0 => Op::Pause(Pause { route, paused: dice.one_in(4) }),
            1 | 2 => {
                let policy = self.policy(dice);
                let on_duplicate = match dice.roll_as::<u32>(3) {
                    0 => policy.on_duplicate,
                    needed => OnDuplicate::Vote { needed: needed + 1 },
                };
                let policy = if n == 2 { ballots(on_duplicate, policy) } else { policy };
                Op::Define(Define { route, policy })
            }
            _ => {
                let remedies = [Remedy::Retry, Remedy::Rework, Remedy::Drop, Remedy::Cancel];
                Op::Mend(Mend { id: id(dice.roll(IDS)), remedy: remedies[dice.roll_as::<usize>(4)] })
            }
        }
    }

    fn policy(&self, dice: &mut Dice) -> RoutePolicy {
        let gate = |dice: &mut Dice| if dice.one_in(2) { Gate::Seen } else { Gate::Final };
        let destinations: [Option<Destination>; 4] =
            [Some(destination()), Some(destination()), Some(other_destination()), None];
        RoutePolicy {
            work_on: gate(dice),
            publish_on: gate(dice),
            identity: Identity::Given,
            on_duplicate: dice
                .pick(&[OnDuplicate::Attach, OnDuplicate::Drop, OnDuplicate::Rearm, OnDuplicate::NewGeneration])
                .unwrap(),
            order: match dice.roll_as::<u16>(6) {
                0 => QueueOrder::Fifo,
                1 => QueueOrder::Priority,
                2 => QueueOrder::Deadline,
                3 => QueueOrder::Random,
                per_key => QueueOrder::KeyedFifo { per_key: per_key - 3 },
            },
            horizon: [Horizon::UntilSettled, Horizon::For { ms: 900 }, Horizon::Forever][dice.roll_as::<usize>(3)],
            capacity: 3 + dice.roll(6),
            lease_ms: LEASE_MS,
            attempts_max: 2,
            crashes_max: 2,
            backoff: Backoff { first_ms: dice.roll(3) * 200, factor_percent: 200, max_ms: 900, jitter_percent: 50 },
            rate: dice.one_in(4).then(|| Rate { count: 2, per_ms: 1 + dice.roll(3) * 600 }),
            destination: destinations[dice.roll_as::<usize>(4)].clone(),
            retention: Retention {
                settled_ms: dice.roll(3) * 1000,
                failed_ms: dice.roll(3) * 1000,
                withdrawn_ms: dice.roll(3) * 1000,
            },
            dead_ms: dice.roll(3) * 1000,
        }
    }
}
