//! The sender's process killed at every point where that could matter: before and after
//! each commit, and before and after each broadcast, for a first send, a bump, a fill, a
//! cancel, a rejection and a failure response. Whoever starts next brings all of them to the same end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use roundtrip::inbox::StateKind;
use roundtrip::sender::chain::{Broadcast, Cargo, Chain, ChainFuture, Sighting, Unsigned};
use roundtrip::sender::{AttemptKind, FailureResponse, RouteTerms, Sender, SignedAttempt};
use roundtrip::station::Shutdown;
use roundtrip::store::journal::Event;
use roundtrip::store::op::{AfterCancel, LaneOrder, Mend, Op, Order, Outcome, Remedy};
use roundtrip::store::query::{ListFilter, ParcelView, Query, Reply};
use roundtrip::store::{Changes, ReadExt, Store, StoreExt, StoreFuture, Topic};
use roundtrip::testkit::samples::{destination, id, lane_named, route};
use roundtrip::words::{ErrorClass, ErrorNote, LaneName, Nonce, Payload};

use crate::sender::{Running, Scene};

/// So many blocks are enough for every scene, with the time that a dead owner's seat takes.
const BLOCKS: usize = 60;
const BLOCK: Duration = Duration::from_secs(1);

/// A process with so many points of its life left; from the last on it does nothing more.
struct Doom {
    left: AtomicUsize,
    struck: AtomicBool,
}

impl Doom {
    fn after(points: usize) -> Arc<Doom> {
        Arc::new(Doom { left: AtomicUsize::new(points), struck: AtomicBool::new(false) })
    }

    async fn point(&self) {
        let lived = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if lived.is_err() {
            self.struck.store(true, Ordering::SeqCst);
            std::future::pending().await
        }
    }

    fn has_struck(&self) -> bool {
        self.struck.load(Ordering::SeqCst)
    }
}

/// A store or a chain, as a doomed process calls it.
struct Doomed<T>(T, Arc<Doom>);

impl<S: Store> Store for Doomed<S> {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            self.1.point().await;
            let outcomes = self.0.apply(batch).await;
            self.1.point().await;
            outcomes
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.0.read(query)
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.0.changes(topic)
    }
}

impl<C: Chain> Chain for Doomed<C> {
    fn look<'a>(&'a self, lane: &'a LaneName, parcels: &'a [ParcelView]) -> ChainFuture<'a, Sighting> {
        self.0.look(lane, parcels)
    }

    fn sign<'a>(&'a self, lane: &'a LaneName, at: Nonce, cargo: Cargo<'a>) -> ChainFuture<'a, SignedAttempt, Unsigned> {
        self.0.sign(lane, at, cargo)
    }

    fn broadcast<'a>(&'a self, lane: &'a LaneName, attempts: &'a [SignedAttempt]) -> Broadcast<'a> {
        Box::pin(async move {
            self.1.point().await;
            let receptions = self.0.broadcast(lane, attempts).await;
            self.1.point().await;
            receptions
        })
    }
}

/// What the outside does while the sender lives, dies and lives again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plot {
    FirstSend,
    /// The fee rises before anything is mined.
    Bump,
    /// Two slots were passed over, and answers wait.
    FillWithAnswers,
    /// Two slots were passed over, and everything is above them.
    FillWithNothing,
    /// A person cancels the first slot, which goes back to be sent again.
    CancelAndRequeue,
    /// A person cancels the first slot, and later changes their mind about the dead letter.
    CancelAndDie,
    /// The first bytes are rejected; a person retries the dead letter.
    Reject,
    /// The first answer can never be sent, and its route's failure response is, in its place.
    ReplaceUnsigned,
    /// The same, which only shows when its transaction is mined.
    ReplaceMined,
}

struct Play {
    scene: Scene,
    plot: Plot,
    wished: bool,
}

impl Play {
    async fn new(plot: Plot) -> Play {
        let mut scene = Scene::new(&["a"]).await;
        if plot == Plot::FillWithAnswers {
            scene.options.window = 1;
        }
        if matches!(plot, Plot::FillWithAnswers | Plot::FillWithNothing) {
            let (destination, window) = (destination(), scene.options.window);
            let order = Order::Open { destination, window, first: Nonce(2) };
            scene.store.apply_one(LaneOrder { lane: lane_named("a"), order }).await.unwrap();
        }
        if plot == Plot::Reject {
            scene.chain.reject_next(1);
        }
        if matches!(plot, Plot::ReplaceUnsigned | Plot::ReplaceMined) {
            let failure = Some(FailureResponse::fixed(Payload::raw("sorry")));
            scene.options.routes.insert(route(), RouteTerms { failure, ..RouteTerms::default() });
        }
        match plot {
            Plot::ReplaceUnsigned => scene.chain.set_impossible(id(0)),
            Plot::ReplaceMined => scene.chain.set_failing(id(0)),
            _ => {}
        }
        scene.answered(0..3).await;
        Play { scene, plot, wished: false }
    }

    fn start(&self, doom: Arc<Doom>, name: &str) -> Running {
        let store: Arc<dyn Store> = Arc::new(Doomed(self.scene.store.clone(), doom.clone()));
        let chain: Arc<dyn Chain> = Arc::new(Doomed(self.scene.chain.clone(), doom));
        let shutdown = Shutdown::new();
        let sender = Sender { chain, ..self.scene.sender(store, name) };
        let task = tokio::spawn(sender.run(shutdown.clone()));
        Running { shutdown, task }
    }

    /// Everything of the plot that is not the sender's, during one block.
    async fn block(&mut self) {
        tokio::time::sleep(BLOCK).await;
        let first = match self.scene.store.lane(lane_named("a")).await.unwrap() {
            Some(lane) => lane.parcels.into_iter().find(|parcel| parcel.nonce == Nonce(0)),
            None => None,
        };
        let rises = matches!(self.plot, Plot::Bump | Plot::CancelAndRequeue | Plot::CancelAndDie);
        if rises && first.is_some() {
            self.scene.chain.set_base_fee(5);
        }
        let then = match self.plot {
            Plot::CancelAndRequeue => Some(AfterCancel::Requeue),
            Plot::CancelAndDie => Some(AfterCancel::Dead(ErrorNote::new(ErrorClass::Fatal, "unwanted"))),
            _ => None,
        };
        if let (false, Some(then), Some(_)) = (self.wished, then, first) {
            let order = Order::Cancel { nonce: Nonce(0), then };
            let outcome = self.scene.store.apply_one(LaneOrder { lane: lane_named("a"), order }).await.unwrap();
            self.wished = outcome.holds();
        }
        let filter = ListFilter { states: vec![StateKind::Dead], limit: 10, ..ListFilter::default() };
        for dead in self.scene.store.list(filter).await.unwrap().requests {
            self.scene.store.apply_one(Mend { id: dead.id, remedy: Remedy::Retry }).await.unwrap();
        }
        self.scene.chain.mine();
    }

    async fn assert_ended(&self) {
        self.scene.assert_all_settled(3).await;
        let lane = self.scene.store.lane(lane_named("a")).await.unwrap().unwrap();
        let [_, latest, settled] = self.scene.chain.slots(&lane_named("a"));
        assert_eq!((lane.parcels.len(), lane.settled, latest, settled), (0, lane.next, lane.next, lane.next));
        let slots = if self.plot == Plot::Bump { 3 } else { 5 };
        assert!(lane.next.0 <= slots, "{} slots for three answers", lane.next.0);
        let replaces = matches!(self.plot, Plot::ReplaceUnsigned | Plot::ReplaceMined);
        assert_eq!(self.scene.chain.failures(), if replaces { vec![id(0)] } else { vec![] });
        assert!(!replaces || !self.happened(|event| matches!(event, Event::Died { .. })).await);
    }

    async fn happened(&self, event: impl Fn(&Event) -> bool) -> bool {
        let page = self.scene.store.journal(1, 1000).await.unwrap();
        page.entries.iter().any(|entry| event(&entry.event))
    }

    /// Whether the run was what the plot is about.
    async fn is_told(&self) -> bool {
        let blocks = self.scene.chain.blocks();
        let kinds: Vec<AttemptKind> = blocks.iter().flat_map(|b| &b.transactions).map(|t| t.kind()).collect();
        let cancels = kinds.iter().filter(|kind| **kind == AttemptKind::Cancel).count();
        match self.plot {
            Plot::FirstSend => kinds.len() == 3 && cancels == 0,
            Plot::Bump => self.happened(|event| matches!(event, Event::Attempted { .. })).await && cancels == 0,
            Plot::FillWithAnswers => self.happened(|event| matches!(event, Event::Filled { .. })).await && cancels == 0,
            Plot::FillWithNothing => self.happened(|event| matches!(event, Event::Filled { .. })).await && cancels == 2,
            Plot::CancelAndRequeue => self.happened(|event| matches!(event, Event::Returned { .. })).await,
            Plot::CancelAndDie | Plot::Reject => {
                self.happened(|event| matches!(event, Event::Died { .. })).await && cancels == 1
            }
            Plot::ReplaceUnsigned => kinds.len() == 3 && cancels == 0,
            Plot::ReplaceMined => kinds.len() == 4 && cancels == 0,
        }
    }
}

/// Kills at every point in turn, until a run comes to its end without a kill.
async fn kill_everywhere(plot: Plot, points_min: usize) {
    for point in 0.. {
        let mut play = Play::new(plot).await;
        let doom = Doom::after(point);
        let one = play.start(doom.clone(), "one");
        let mut blocks = 0;
        // Until it is killed: what happens after that happens without it.
        while blocks < BLOCKS && !doom.has_struck() {
            play.block().await;
            blocks += 1;
        }
        let killed = doom.has_struck();
        one.crash().await;
        play.scene.store.crash();
        let two = play.start(Doom::after(usize::MAX), "two");
        for _ in 0..BLOCKS {
            play.block().await;
        }
        play.assert_ended().await;
        two.stop().await;
        if !killed {
            assert!(play.is_told().await, "{plot:?} was about something else");
            assert!(point >= points_min, "{plot:?} came to its end after {point} points");
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_first_send() {
    kill_everywhere(Plot::FirstSend, 10).await;
}

#[tokio::test(start_paused = true)]
async fn in_a_bump() {
    kill_everywhere(Plot::Bump, 14).await;
}

#[tokio::test(start_paused = true)]
async fn in_a_fill_with_answers() {
    kill_everywhere(Plot::FillWithAnswers, 14).await;
}

#[tokio::test(start_paused = true)]
async fn in_a_fill_with_nothing() {
    kill_everywhere(Plot::FillWithNothing, 14).await;
}

#[tokio::test(start_paused = true)]
async fn in_a_cancel_that_sends_it_again() {
    kill_everywhere(Plot::CancelAndRequeue, 14).await;
}

#[tokio::test(start_paused = true)]
async fn in_a_cancel_that_makes_a_dead_letter() {
    kill_everywhere(Plot::CancelAndDie, 14).await;
}

#[tokio::test(start_paused = true)]
async fn in_a_failure_response_to_what_could_not_be_signed() {
    kill_everywhere(Plot::ReplaceUnsigned, 12).await;
}

#[tokio::test(start_paused = true)]
async fn in_a_failure_response_to_what_had_no_effect() {
    kill_everywhere(Plot::ReplaceMined, 14).await;
}

#[tokio::test(start_paused = true)]
async fn in_a_rejection() {
    kill_everywhere(Plot::Reject, 14).await;
}
