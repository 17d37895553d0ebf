//! The sender on a test chain: every answer goes out once, whatever the chain does and
//! wherever the process dies.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use roundtrip::clock::{Clock, TokioClock};
use roundtrip::inbox::StateKind;
use roundtrip::sender::chain::{Broadcast, Cargo, Chain, ChainFuture, Sighting, Unsigned};
use roundtrip::sender::{
    LaneStatus, ParcelStage, Patience, QuarantineOn, Rebuild, SendOrder, Sender, SenderOptions, SenderStats,
    SignedAttempt,
};
use roundtrip::station::{Shutdown, StationError};
use roundtrip::store::op::{
    Admit, AfterCancel, Define, Effect, LaneOrder, Lease, Mend, NewRequest, Op, Order, Outcome, Remedy,
};
use roundtrip::store::query::{Found, LaneView, ParcelView, Query, Reply};
use roundtrip::store::{Changes, MemoryStore, Options, ReadExt, Store, StoreExt, StoreFuture, Topic};
use roundtrip::testkit::bench::START;
use roundtrip::testkit::chain::{FINAL_DEPTH, Purpose, TestChain};
use roundtrip::testkit::samples::{answer, destination, final_request, id, lane_named, lease, policy, route};
use roundtrip::words::{
    ATTEMPTS_MAX, ErrorClass, ErrorNote, HolderName, LaneName, Nonce, PAYLOAD_BYTES_MAX, Payload, RouteName,
};
use tokio::task::JoinHandle;

pub(crate) const BLOCK: Duration = Duration::from_secs(1);

/// A store with answers that are ready, and the chain that they go to.
pub(crate) struct Scene {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) chain: TestChain,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: SenderOptions,
    pub(crate) lanes: Vec<LaneName>,
    pub(crate) rebuild: Rebuild,
    pub(crate) stats: Arc<SenderStats>,
}

/// A store whose caller is gone after so many commits: the last is stored, and nothing
/// that should follow it happens.
struct Dying {
    store: Arc<MemoryStore>,
    commits: AtomicUsize,
}

impl Store for Dying {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        let left = self.commits.fetch_sub(1, Ordering::Relaxed);
        Box::pin(async move {
            let outcomes = self.store.apply(batch).await?;
            if left == 1 { std::future::pending().await } else { Ok(outcomes) }
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.store.read(query)
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.store.changes(topic)
    }
}

/// A sender at work.
pub(crate) struct Running {
    pub(crate) shutdown: Shutdown,
    pub(crate) task: JoinHandle<Result<(), StationError>>,
}

impl Running {
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// Ends it as a crash of its process would.
    pub(crate) async fn crash(self) {
        self.task.abort();
        assert!(self.task.await.is_err());
    }
}

impl Scene {
    pub(crate) async fn new(lanes: &[&str]) -> Scene {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(START));
        let store = Arc::new(MemoryStore::new(clock.clone(), Options::default()));
        store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
        let patience = Patience { resend_ms: 3_000, bump_ms: 10_000 };
        let options = SenderOptions { patience, poll: BLOCK / 2, seat_ms: 5_000, ..SenderOptions::default() };
        let lanes = lanes.iter().map(|name| lane_named(name)).collect();
        Scene {
            store,
            chain: TestChain::new(),
            clock,
            options,
            lanes,
            rebuild: Rebuild::default(),
            stats: Arc::default(),
        }
    }

    /// Requests that were answered and are ready to be sent.
    pub(crate) async fn answered(&self, numbers: std::ops::Range<u64>) {
        self.answered_on(route(), numbers).await;
    }

    /// The same, on another route to the same destination.
    pub(crate) async fn answered_on(&self, route: RouteName, numbers: std::ops::Range<u64>) {
        self.store.apply_one(Define { route: route.clone(), policy: policy() }).await.unwrap();
        let requests = numbers.map(|n| NewRequest { route: route.clone(), ..final_request(n) }).collect();
        self.store.apply_one(Op::Admit(Admit { cursor: None, requests })).await.unwrap();
        let leased = self.store.apply_one(Lease { route, ..lease(1000) }).await.unwrap();
        let Outcome::Applied(Effect::Leased(grants)) = leased else {
            panic!("nothing was leased");
        };
        self.store.apply(grants.iter().map(|grant| Op::Answer(answer(grant))).collect()).await.unwrap();
    }

    pub(crate) fn sender(&self, store: Arc<dyn Store>, name: &str) -> Sender {
        Sender {
            store,
            chain: Arc::new(self.chain.clone()) as Arc<dyn Chain>,
            clock: self.clock.clone(),
            holder: HolderName::new(name).unwrap(),
            destination: destination(),
            lanes: self.lanes.clone(),
            options: self.options.clone(),
            rebuild: self.rebuild.clone(),
            stats: self.stats.clone(),
        }
    }

    pub(crate) fn start(&self, name: &str) -> Running {
        self.start_on(self.store.clone(), name)
    }

    fn start_on(&self, store: Arc<dyn Store>, name: &str) -> Running {
        let shutdown = Shutdown::new();
        let task = tokio::spawn(self.sender(store, name).run(shutdown.clone()));
        Running { shutdown, task }
    }

    /// Time passes, and blocks with it.
    pub(crate) async fn blocks(&self, count: u64) {
        for _ in 0..count {
            tokio::time::sleep(BLOCK).await;
            self.chain.mine();
        }
        tokio::time::sleep(BLOCK).await;
    }

    pub(crate) async fn lane(&self, name: &str) -> LaneView {
        self.store.lane(lane_named(name)).await.unwrap().unwrap()
    }

    /// How many requests are still live.
    pub(crate) async fn live(&self) -> u64 {
        self.store.counts().await.unwrap().iter().map(|count| count.requests).sum()
    }

    /// All of these were answered on the chain, each once, and nothing is left to do.
    pub(crate) async fn assert_all_settled(&self, count: u64) {
        let answers = self.chain.answers();
        let once: Vec<usize> = (0..count).map(|n| answers.get(&id(n)).copied().unwrap_or(0)).collect();
        assert_eq!(once, vec![1; usize::try_from(count).unwrap()]);
        assert_eq!(self.live().await, 0);
        assert_eq!(self.chain.gaps(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn answers_are_spread_over_lanes_and_each_goes_out_once() {
    let scene = Scene::new(&["a", "b", "c"]).await;
    scene.answered(0..100).await;
    let running = scene.start("one");
    scene.blocks(30).await;
    scene.assert_all_settled(100).await;
    for lane in ["a", "b", "c"] {
        assert!(scene.lane(lane).await.next.0 >= 20, "every lane took its share");
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn several_answers_share_a_parcel() {
    let mut scene = Scene::new(&["a"]).await;
    scene.options.parcel_max = 10;
    scene.answered(0..100).await;
    let running = scene.start("one");
    scene.blocks(10).await;
    scene.assert_all_settled(100).await;
    assert_eq!(scene.lane("a").await.next, Nonce(10));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_parcel_that_is_not_full_goes_out_when_it_has_waited_long_enough() {
    for order in [SendOrder::Spread, SendOrder::Strict] {
        let mut scene = Scene::new(&["a"]).await;
        (scene.options.parcel_max, scene.options.order) = (10, order);
        scene.options.parcel_wait = Duration::from_millis(300);
        // Nothing else wakes the sender in time.
        scene.options.poll = Duration::from_secs(60);
        let running = scene.start("one");
        tokio::time::sleep(Duration::from_millis(1)).await;
        scene.answered(0..3).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        scene.answered(3..5).await;
        tokio::time::sleep(Duration::from_millis(99)).await;
        assert_eq!(scene.lane("a").await.next, Nonce(0), "they wait for company, {order:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
        let lane = scene.lane("a").await;
        assert_eq!((lane.next, lane.parcels[0].deliveries.len()), (Nonce(1), 5), "the first has waited long enough");
        // A full one does not wait.
        scene.answered(5..16).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let lane = scene.lane("a").await;
        assert_eq!((lane.next, lane.parcels[1].deliveries.len()), (Nonce(2), 10), "{order:?}");
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_parcel_that_fails_because_of_one_is_split_and_only_that_one_fails_again() {
    for order in [SendOrder::Spread, SendOrder::Strict] {
        let mut scene = Scene::new(&["a"]).await;
        (scene.options.parcel_max, scene.options.order) = (5, order);
        scene.chain.set_reverting(id(2), true);
        scene.answered(0..10).await;
        let running = scene.start("one");
        scene.blocks(60).await;
        let answers = scene.chain.answers();
        let done: Vec<usize> = (0..10).map(|n| answers.get(&id(n)).copied().unwrap_or(0)).collect();
        assert_eq!(done, [1, 1, 0, 1, 1, 1, 1, 1, 1, 1], "{order:?}");
        assert_eq!(scene.live().await, 1);
        scene.chain.set_reverting(id(2), false);
        scene.blocks(20).await;
        scene.assert_all_settled(10).await;
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_strict_destination_keeps_the_order_of_admission_on_one_lane() {
    let mut scene = Scene::new(&["a", "b"]).await;
    scene.options.order = SendOrder::Strict;
    scene.answered(0..60).await;
    let running = scene.start("one");
    scene.blocks(30).await;
    scene.assert_all_settled(60).await;
    let blocks = scene.chain.blocks();
    let sent: Vec<_> = blocks.iter().flat_map(|b| &b.transactions).flat_map(|t| t.answers.clone()).collect();
    assert_eq!(sent, (0..60).map(id).collect::<Vec<_>>());
    assert_eq!(scene.lane("b").await.next, Nonce(0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reorg_takes_nothing_away_and_brings_nothing_twice() {
    let scene = Scene::new(&["a", "b"]).await;
    scene.answered(0..40).await;
    let running = scene.start("one");
    for depth in [1, 3, 4, 2, 4] {
        scene.blocks(2).await;
        scene.chain.reorg(depth);
        // A reorg that forgets the transactions as well: the stored bytes are sent again.
        scene.chain.evict();
    }
    scene.blocks(40).await;
    scene.assert_all_settled(40).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_reorg_takes_away_is_sent_again_at_once_and_at_the_same_price() {
    let mut scene = Scene::new(&["a"]).await;
    scene.options.patience = Patience { resend_ms: 600_000, bump_ms: 3_000 };
    scene.answered(0..1).await;
    let running = scene.start("one");
    // Mined for longer than it takes until what is stuck gets dearer.
    scene.blocks(3).await;
    assert_eq!(scene.lane("a").await.parcels[0].stage, ParcelStage::Confirmed);
    scene.chain.reorg(3);
    scene.chain.evict();
    // The chain is longer than before, and has it again.
    scene.blocks(4).await;
    let lane = scene.lane("a").await;
    assert_eq!((lane.parcels[0].stage, lane.parcels[0].attempts.len()), (ParcelStage::Confirmed, 1));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_risen_fee_is_paid_by_the_lowest_slot_first() {
    let scene = Scene::new(&["a"]).await;
    scene.answered(0..3).await;
    let running = scene.start("one");
    tokio::time::sleep(BLOCK / 4).await;
    scene.chain.set_base_fee(100);
    scene.blocks(60).await;
    scene.assert_all_settled(3).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_commit_sends_the_same_bytes_again() {
    let mut cuts = 0;
    for at in 1.. {
        let scene = Scene::new(&["a"]).await;
        scene.answered(0..3).await;
        let dying = Dying { store: scene.store.clone(), commits: AtomicUsize::new(at) };
        let running = scene.start_on(Arc::new(dying), "one");
        scene.blocks(12).await;
        let finished = scene.live().await == 0;
        running.crash().await;
        scene.store.crash();
        let next = scene.start("two");
        scene.blocks(20).await;
        scene.assert_all_settled(3).await;
        assert_eq!(scene.lane("a").await.next, Nonce(3), "nobody signed for a second slot");
        next.stop().await;
        cuts = at;
        if finished {
            break;
        }
    }
    assert!(cuts > 5, "a run commits more often than {cuts} times");
}

#[tokio::test(start_paused = true)]
async fn a_lane_has_one_sender_at_a_time_and_another_takes_over() {
    let scene = Scene::new(&["a", "b"]).await;
    let (one, two) = (scene.start("one"), scene.start("two"));
    scene.answered(0..50).await;
    scene.blocks(5).await;
    one.crash().await;
    scene.blocks(30).await;
    scene.assert_all_settled(50).await;
    two.stop().await;
    // Given up, the seats are free at once.
    let three = scene.start("three");
    scene.answered(50..51).await;
    scene.blocks(8).await;
    scene.assert_all_settled(51).await;
    three.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_somebody_else_used_gives_its_answer_another_one() {
    let scene = Scene::new(&["a"]).await;
    scene.answered(0..1).await;
    let running = scene.start("one");
    tokio::time::sleep(BLOCK / 4).await;
    scene.chain.use_slot(&lane_named("a"));
    scene.blocks(FINAL_DEPTH - 1).await;
    assert_eq!(scene.lane("a").await.next, Nonce(1), "before final depth nothing is sent again");
    scene.blocks(15).await;
    scene.assert_all_settled(1).await;
    assert_eq!(scene.lane("a").await.next, Nonce(2));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn slots_that_the_store_knows_nothing_of_stop_the_lane() {
    let scene = Scene::new(&["a"]).await;
    let running = scene.start("one");
    scene.blocks(1).await;
    scene.chain.use_slot(&lane_named("a"));
    scene.blocks(2).await;
    assert_eq!(scene.lane("a").await.status, LaneStatus::Stopped);
    scene.answered(0..1).await;
    scene.blocks(3).await;
    assert_eq!(scene.live().await, 1);
    let order = Order::Reconcile { outside_next: Nonce(1) };
    scene.store.apply_one(LaneOrder { lane: lane_named("a"), order }).await.unwrap();
    scene.blocks(10).await;
    scene.assert_all_settled(1).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_cannot_pay_pauses_and_goes_on_when_resumed() {
    let scene = Scene::new(&["a"]).await;
    scene.chain.set_broke(true);
    let running = scene.start("one");
    scene.answered(0..5).await;
    scene.blocks(2).await;
    assert!(matches!(scene.lane("a").await.status, LaneStatus::Unfunded { .. }));
    assert_eq!(scene.lane("a").await.next, Nonce(0), "no slot was used");
    scene.chain.set_broke(false);
    scene.store.apply_one(LaneOrder { lane: lane_named("a"), order: Order::Resume }).await.unwrap();
    scene.blocks(12).await;
    scene.assert_all_settled(5).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_can_never_be_sent_does_not_hold_up_the_others() {
    let scene = Scene::new(&["a"]).await;
    scene.chain.set_impossible(id(1));
    scene.answered(0..3).await;
    let running = scene.start("one");
    scene.blocks(15).await;
    assert_eq!(scene.chain.answers().into_keys().collect::<Vec<_>>().len(), 2);
    let dead = scene.store.counts().await.unwrap();
    assert_eq!(dead.iter().map(|count| (count.state, count.requests)).collect::<Vec<_>>(), [(StateKind::Dead, 1)]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn of_answers_that_cannot_go_together_only_the_one_to_blame_is_a_dead_letter() {
    let mut scene = Scene::new(&["a"]).await;
    scene.options.parcel_max = 4;
    scene.chain.set_impossible(id(2));
    scene.answered(0..8).await;
    let running = scene.start("one");
    scene.blocks(20).await;
    let answered: Vec<_> = scene.chain.answers().into_keys().collect();
    assert_eq!(answered.len(), 7);
    assert!(!answered.contains(&id(2)), "the one to blame");
    let left = scene.store.counts().await.unwrap();
    assert_eq!(left.iter().map(|count| (count.state, count.requests)).collect::<Vec<_>>(), [(StateKind::Dead, 1)]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_transaction_without_effect_quarantines_its_lane_while_the_others_go_on() {
    let mut scene = Scene::new(&["a", "b"]).await;
    scene.options.quarantine_on = QuarantineOn::NoEffect;
    scene.chain.set_reverting(id(0), true);
    scene.answered(0..2).await;
    let running = scene.start("one");
    // What is mined by now keeps its fate.
    scene.blocks(1).await;
    scene.chain.set_reverting(id(0), false);
    let LaneStatus::Quarantined { until } = scene.lane("a").await.status else { panic!("long before it is final") };
    assert!(until > scene.clock.now().plus(23 * 3_600_000), "for a day");
    scene.answered(2..10).await;
    scene.blocks(30).await;
    let on_a = scene.lane("a").await.next;
    assert_eq!(on_a, Nonce(1), "nothing new while in quarantine");
    assert_eq!(scene.live().await, 0, "the other lane took all, also what had no effect");
    assert_eq!(scene.lane("a").await.status, LaneStatus::Quarantined { until }, "final depth adds nothing to it");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_transaction_without_effect_is_by_itself_no_reason_for_a_quarantine() {
    let scene = Scene::new(&["a"]).await;
    scene.chain.set_reverting(id(0), true);
    scene.answered(0..1).await;
    let running = scene.start("one");
    scene.blocks(2).await;
    assert_eq!(scene.lane("a").await.parcels[0].stage, ParcelStage::Confirmed);
    assert_eq!(scene.lane("a").await.status, LaneStatus::Active);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_is_to_blame_is_quarantined_and_another_takes_its_answers() {
    for mined in [false, true] {
        let mut scene = Scene::new(&["a", "b"]).await;
        scene.options.quarantine_ms = 40_000;
        scene.chain.set_barred(&lane_named("a"), !mined);
        scene.answered(0..20).await;
        let running = scene.start("one");
        tokio::time::sleep(BLOCK / 4).await;
        scene.chain.set_barred(&lane_named("a"), true);
        scene.blocks(2).await;
        let status = scene.lane("a").await.status;
        assert!(matches!(status, LaneStatus::Quarantined { .. }), "{status:?}");
        let used = scene.lane("a").await.next;
        assert_eq!(used == Nonce(0), !mined, "what could not be signed has no slot");
        scene.blocks(30).await;
        scene.assert_all_settled(20).await;
        assert_eq!(scene.lane("a").await.next, used, "nothing new while in quarantine");
        scene.chain.set_barred(&lane_named("a"), false);
        scene.blocks(15).await;
        assert_eq!(scene.lane("a").await.status, LaneStatus::Active, "it ends by itself");
        scene.answered(20..40).await;
        scene.blocks(10).await;
        assert!(scene.lane("a").await.next > used, "it takes its share again");
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_person_ends_a_quarantine_sooner() {
    let scene = Scene::new(&["a"]).await;
    scene.chain.set_barred(&lane_named("a"), true);
    scene.answered(0..3).await;
    let running = scene.start("one");
    scene.blocks(3).await;
    assert!(matches!(scene.lane("a").await.status, LaneStatus::Quarantined { .. }));
    scene.chain.set_barred(&lane_named("a"), false);
    order(&scene, Order::Resume).await;
    scene.blocks(10).await;
    scene.assert_all_settled(3).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_strict_destination_waits_for_the_answers_of_older_requests() {
    let mut scene = Scene::new(&["a"]).await;
    scene.options.order = SendOrder::Strict;
    let requests = (0..2).map(final_request).collect();
    scene.store.apply_one(Op::Admit(Admit { cursor: None, requests })).await.unwrap();
    let Outcome::Applied(Effect::Leased(grants)) = scene.store.apply_one(lease(2)).await.unwrap() else {
        panic!("both are leased");
    };
    let running = scene.start("one");
    scene.store.apply_one(Op::Answer(answer(&grants[1]))).await.unwrap();
    scene.blocks(3).await;
    assert_eq!(scene.lane("a").await.next, Nonce(0), "the younger answer waits");
    scene.store.apply_one(Op::Answer(answer(&grants[0]))).await.unwrap();
    scene.blocks(12).await;
    scene.assert_all_settled(2).await;
    let blocks = scene.chain.blocks();
    let sent: Vec<_> = blocks.iter().flat_map(|b| &b.transactions).flat_map(|t| t.answers.clone()).collect();
    assert_eq!(sent, [id(0), id(1)]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_whose_attempts_are_used_up_is_still_sent_again() {
    let scene = Scene::new(&["a"]).await;
    scene.answered(0..2).await;
    let running = scene.start("one");
    tokio::time::sleep(BLOCK / 4).await;
    // What a block costs is out of reach, and yet what is asked for seems to be little.
    while scene.lane("a").await.parcels[0].attempts.len() < ATTEMPTS_MAX {
        tokio::time::sleep(BLOCK).await;
        scene.chain.set_base_fee(u64::MAX / 4000);
        scene.chain.mine();
        scene.chain.set_base_fee(1);
    }
    scene.chain.evict();
    scene.blocks(60).await;
    scene.assert_all_settled(2).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn at_the_highest_fee_the_same_bytes_are_sent_again() {
    let scene = Scene::new(&["a"]).await;
    scene.chain.set_fee_cap(Some(10));
    scene.answered(0..2).await;
    let running = scene.start("one");
    tokio::time::sleep(BLOCK / 4).await;
    scene.chain.set_base_fee(100);
    scene.blocks(60).await;
    assert_eq!(scene.live().await, 2, "too dear to be mined");
    assert_eq!(scene.stats.at_cap(&lane_named("a")), Some(Nonce(0)), "whoever watches is told");
    scene.chain.evict();
    scene.chain.set_base_fee(1);
    scene.blocks(30).await;
    scene.assert_all_settled(2).await;
    assert_eq!(scene.stats.at_cap(&lane_named("a")), None);
    running.stop().await;
}

/// The kind of each state that live requests are in, with how many are.
async fn states(scene: &Scene) -> Vec<(StateKind, u64)> {
    let counts = scene.store.counts().await.unwrap();
    counts.iter().map(|count| (count.state, count.requests)).collect()
}

fn purposes(scene: &Scene) -> Vec<Purpose> {
    let blocks = scene.chain.blocks();
    blocks.iter().flat_map(|block| &block.transactions).map(|transaction| transaction.purpose).collect()
}

async fn order(scene: &Scene, order: Order) -> Outcome {
    scene.store.apply_one(LaneOrder { lane: lane_named("a"), order }).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn rejected_bytes_are_cancelled_on_their_slot_and_the_answer_waits_for_a_person() {
    let scene = Scene::new(&["a"]).await;
    // Also the first bytes that are to use the slot up.
    scene.chain.reject_next(2);
    scene.answered(0..1).await;
    let running = scene.start("one");
    tokio::time::sleep(BLOCK / 4).await;
    scene.answered(1..2).await;
    scene.blocks(30).await;
    assert_eq!(purposes(&scene), [Purpose::Cancel, Purpose::Carry]);
    assert_eq!(states(&scene).await, [(StateKind::Dead, 1)]);
    let Some(Found::Live(view, bodies)) = scene.store.get(id(0)).await.unwrap() else { panic!("it waits") };
    assert!(view.error.is_some_and(|error| error.text.contains("not these bytes")));
    assert!(bodies.response.is_some(), "with its answer");
    scene.store.apply_one(Mend { id: id(0), remedy: Remedy::Retry }).await.unwrap();
    scene.blocks(10).await;
    scene.assert_all_settled(2).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rejected_bump_leaves_the_bytes_before_it() {
    let mut scene = Scene::new(&["a"]).await;
    scene.options.patience.resend_ms = 60_000;
    scene.answered(0..1).await;
    let running = scene.start("one");
    tokio::time::sleep(BLOCK / 4).await;
    scene.chain.set_base_fee(100);
    while scene.lane("a").await.parcels[0].attempts.len() == 1 {
        scene.chain.reject_next(1);
        tokio::time::sleep(BLOCK).await;
    }
    assert_eq!(scene.lane("a").await.parcels[0].cancel, None);
    scene.chain.set_base_fee(1);
    scene.blocks(10).await;
    scene.assert_all_settled(1).await;
    assert_eq!(purposes(&scene), [Purpose::Carry]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_parcel_that_nobody_wants_is_cancelled_unless_it_is_faster() {
    let scene = Scene::new(&["a"]).await;
    scene.answered(0..2).await;
    let running = scene.start("one");
    tokio::time::sleep(BLOCK / 4).await;
    scene.chain.set_base_fee(5);
    let then = AfterCancel::Dead(ErrorNote::new(ErrorClass::Fatal, "no longer wanted"));
    assert!(order(&scene, Order::Cancel { nonce: Nonce(0), then }).await.holds());
    scene.blocks(1).await;
    // What the next slot carries is too cheap for now, and has not been mined.
    assert_eq!(purposes(&scene), [Purpose::Cancel]);
    scene.chain.set_base_fee(1);
    scene.blocks(10).await;
    assert_eq!(states(&scene).await, [(StateKind::Dead, 1)]);
    assert_eq!(scene.chain.answers().into_keys().collect::<Vec<_>>(), [id(1)]);
    // One that is mined before the wish comes to anything is done.
    scene.store.apply_one(Mend { id: id(0), remedy: Remedy::Retry }).await.unwrap();
    tokio::time::sleep(BLOCK / 4).await;
    scene.chain.mine();
    assert!(order(&scene, Order::Cancel { nonce: Nonce(2), then: AfterCancel::Requeue }).await.holds());
    scene.blocks(10).await;
    scene.assert_all_settled(2).await;
    assert_eq!(purposes(&scene), [Purpose::Cancel, Purpose::Carry, Purpose::Carry]);
    running.stop().await;
}

/// A lane whose slots below this one were passed over: nobody uses them after all.
async fn passed_over(scene: &Scene, lane: &str, slots: u64) {
    let order = Order::Open { destination: destination(), window: scene.options.window, first: Nonce(slots) };
    assert!(scene.store.apply_one(LaneOrder { lane: lane_named(lane), order }).await.unwrap().holds());
}

#[tokio::test(start_paused = true)]
async fn gaps_are_filled_with_answers_if_there_are_any_and_with_nothing_otherwise() {
    let mut scene = Scene::new(&["a"]).await;
    scene.options.window = 1;
    passed_over(&scene, "a", 3).await;
    scene.answered(0..3).await;
    let running = scene.start("one");
    scene.blocks(2).await;
    assert_eq!(purposes(&scene), [], "an empty slot may still be used by whoever had it");
    scene.blocks(20).await;
    scene.assert_all_settled(3).await;
    let view = scene.lane("a").await;
    assert_eq!((view.next, view.settled), (Nonce(4), Nonce(4)));
    use Purpose::{Cancel, Carry};
    assert_eq!(purposes(&scene), [Carry, Carry, Cancel, Carry]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_strict_destination_fills_gaps_with_nothing() {
    let mut scene = Scene::new(&["a", "b"]).await;
    scene.options.order = SendOrder::Strict;
    scene.options.window = 2;
    // Also those of a lane that takes no answers.
    for lane in ["a", "b"] {
        passed_over(&scene, lane, 2).await;
    }
    scene.answered(0..10).await;
    let running = scene.start("one");
    scene.blocks(40).await;
    scene.assert_all_settled(10).await;
    let blocks = scene.chain.blocks();
    let sent: Vec<_> = blocks.iter().flat_map(|b| &b.transactions).flat_map(|t| t.answers.clone()).collect();
    assert_eq!(sent, (0..10).map(id).collect::<Vec<_>>());
    assert_eq!(scene.chain.slots(&lane_named("b")), [Nonce(2); 3]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_an_account_did_before_it_was_a_lane_is_no_gap() {
    let scene = Scene::new(&["a"]).await;
    for _ in 0..3 {
        scene.chain.use_slot(&lane_named("a"));
        scene.chain.mine();
    }
    scene.blocks(10).await;
    let running = scene.start("one");
    scene.blocks(1).await;
    let view = scene.lane("a").await;
    assert_eq!((view.next, view.settled, view.under_way), (Nonce(3), Nonce(3), 0));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_outsider_who_leaves_a_slot_leaves_no_gap() {
    let scene = Scene::new(&["a"]).await;
    let running = scene.start("one");
    scene.blocks(1).await;
    scene.chain.use_slot_after(&lane_named("a"));
    scene.blocks(1).await;
    assert_eq!(scene.lane("a").await.status, LaneStatus::Stopped);
    assert!(order(&scene, Order::Reconcile { outside_next: Nonce(1) }).await.holds());
    scene.answered(0..3).await;
    scene.blocks(1).await;
    assert_eq!(scene.chain.drop_outsiders(&lane_named("a")), 1);
    assert_eq!(scene.chain.gaps(), [(lane_named("a"), Nonce(1))], "everything waits");
    scene.blocks(20).await;
    scene.assert_all_settled(3).await;
    assert_eq!(purposes(&scene)[0], Purpose::Cancel);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_lane_fills_its_gaps_with_nothing_and_a_stopped_one_does_not() {
    let scene = Scene::new(&["a"]).await;
    passed_over(&scene, "a", 2).await;
    order(&scene, Order::Observe { outside_next: Nonce(3) }).await;
    scene.answered(0..1).await;
    let running = scene.start("one");
    scene.blocks(20).await;
    assert_eq!(purposes(&scene), []);
    order(&scene, Order::Reconcile { outside_next: Nonce(2) }).await;
    order(&scene, Order::Pause { reason: "a person".into() }).await;
    scene.blocks(20).await;
    assert_eq!(purposes(&scene), [Purpose::Cancel, Purpose::Cancel]);
    order(&scene, Order::Resume).await;
    scene.blocks(10).await;
    scene.assert_all_settled(1).await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_parcel_that_the_store_can_never_take_waits_for_a_person() {
    let mut scene = Scene::new(&["a"]).await;
    scene.options.parcel_max = 2;
    let heavy = |n: u64| NewRequest { payload: Payload::raw(vec![0; 1000]), ..final_request(n) };
    scene.store.apply_one(Op::Admit(Admit { cursor: None, requests: (0..3).map(heavy).collect() })).await.unwrap();
    let Outcome::Applied(Effect::Leased(grants)) = scene.store.apply_one(lease(3)).await.unwrap() else {
        panic!("all are leased");
    };
    scene.store.apply(grants.iter().map(|grant| Op::Answer(answer(grant))).collect()).await.unwrap();
    scene.chain.set_padding(id(1), PAYLOAD_BYTES_MAX);
    let running = scene.start("one");
    scene.blocks(20).await;
    let answers = scene.chain.answers();
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [id(0), id(2)]);
    let left = scene.store.counts().await.unwrap();
    assert_eq!(left.iter().map(|count| (count.state, count.requests)).collect::<Vec<_>>(), [(StateKind::Dead, 1)]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_outlasts_a_quarantine() {
    let mut scene = Scene::new(&["a"]).await;
    (scene.options.quarantine_on, scene.options.quarantine_ms) = (QuarantineOn::NoEffect, 3_000);
    scene.chain.set_reverting(id(0), true);
    scene.answered(0..1).await;
    let running = scene.start("one");
    tokio::time::sleep(BLOCK / 4).await;
    let order = Order::Pause { reason: "a person".into() };
    scene.store.apply_one(LaneOrder { lane: lane_named("a"), order }).await.unwrap();
    scene.blocks(20).await;
    assert!(matches!(scene.lane("a").await.status, LaneStatus::Paused { .. }));
    running.stop().await;
}

/// A chain that never answers for one lane.
struct Silent(TestChain, LaneName);

impl Chain for Silent {
    fn look<'a>(&'a self, lane: &'a LaneName, parcels: &'a [ParcelView]) -> ChainFuture<'a, Sighting> {
        if *lane == self.1 { Box::pin(std::future::pending()) } else { self.0.look(lane, parcels) }
    }

    fn sign<'a>(&'a self, lane: &'a LaneName, at: Nonce, cargo: Cargo<'a>) -> ChainFuture<'a, SignedAttempt, Unsigned> {
        self.0.sign(lane, at, cargo)
    }

    fn broadcast<'a>(&'a self, lane: &'a LaneName, attempts: &'a [SignedAttempt]) -> Broadcast<'a> {
        self.0.broadcast(lane, attempts)
    }
}

#[tokio::test(start_paused = true)]
async fn a_lane_without_answers_does_not_stop_the_others() {
    let scene = Scene::new(&["a", "b"]).await;
    scene.answered(0..3).await;
    let chain = Arc::new(Silent(scene.chain.clone(), lane_named("b")));
    let sender = Sender { chain, ..scene.sender(scene.store.clone(), "one") };
    let shutdown = Shutdown::new();
    let task = tokio::spawn(sender.run(shutdown.clone()));
    scene.blocks(100).await;
    scene.assert_all_settled(3).await;
    Running { shutdown, task }.stop().await;
}

/// A chain that takes its time to sign, answers broadcasts for their first attempt alone,
/// and does not come back from the first of them.
#[derive(Default)]
struct Sluggish {
    chain: TestChain,
    signing: AtomicUsize,
    most_signing: AtomicUsize,
    broadcasts: Mutex<Vec<usize>>,
}

impl Chain for Sluggish {
    fn look<'a>(&'a self, lane: &'a LaneName, parcels: &'a [ParcelView]) -> ChainFuture<'a, Sighting> {
        self.chain.look(lane, parcels)
    }

    fn sign<'a>(&'a self, lane: &'a LaneName, at: Nonce, cargo: Cargo<'a>) -> ChainFuture<'a, SignedAttempt, Unsigned> {
        Box::pin(async move {
            let now = self.signing.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_signing.fetch_max(now, Ordering::SeqCst);
            // The later ones are done first.
            tokio::time::sleep(Duration::from_millis(100 - at.0)).await;
            self.signing.fetch_sub(1, Ordering::SeqCst);
            self.chain.sign(lane, at, cargo).await
        })
    }

    fn broadcast<'a>(&'a self, lane: &'a LaneName, attempts: &'a [SignedAttempt]) -> Broadcast<'a> {
        Box::pin(async move {
            let first = {
                let mut broadcasts = self.broadcasts.lock().unwrap();
                broadcasts.push(attempts.len());
                broadcasts.len() == 1
            };
            if first {
                std::future::pending().await
            }
            let mut receptions = self.chain.broadcast(lane, attempts).await;
            receptions.truncate(1);
            receptions
        })
    }
}

#[tokio::test(start_paused = true)]
async fn many_slots_are_signed_at_once_and_sent_in_one_call() {
    let mut scene = Scene::new(&["a"]).await;
    scene.options.window = 20;
    scene.answered(0..20).await;
    let chain = Arc::new(Sluggish { chain: scene.chain.clone(), ..Sluggish::default() });
    let sender = Sender { chain: chain.clone(), ..scene.sender(scene.store.clone(), "one") };
    let shutdown = Shutdown::new();
    let task = tokio::spawn(sender.run(shutdown.clone()));
    scene.blocks(40).await;
    scene.assert_all_settled(20).await;
    assert_eq!(scene.lane("a").await.next, Nonce(20), "nobody signed for a second slot");
    assert_eq!(chain.most_signing.load(Ordering::SeqCst), 16, "several at once, and not all");
    // Lost with its answer, the whole call is made again.
    assert_eq!(chain.broadcasts.lock().unwrap()[..2], [20, 20]);
    let blocks = scene.chain.blocks();
    let sent: Vec<_> = blocks.iter().flat_map(|b| &b.transactions).flat_map(|t| t.answers.clone()).collect();
    assert_eq!(sent, (0..20).map(id).collect::<Vec<_>>(), "each on its own slot");
    Running { shutdown, task }.stop().await;
}
