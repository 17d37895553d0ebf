//! The courier on the memory store, under the runtime's paused clock.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use roundtrip::clock::{Clock, TokioClock};
use roundtrip::inbox::StateKind;
use roundtrip::outbox::{CallSink, ChannelSink, Courier, CourierOptions, Sink, SinkError, SinkFuture};
use roundtrip::station::{Shutdown, StationError};
use roundtrip::store::op::{
    Admit, Answer, Define, Effect, LaneOrder, Lease, NewRequest, Op, Order, Outcome, Publish, Remedy, Seat,
};
use roundtrip::store::query::{Found, ReadyDelivery};
use roundtrip::store::{MemoryStore, Options, ReadExt, Store, StoreError, StoreExt, StoreFuture, Topic};
use roundtrip::testkit::bench::START;
use roundtrip::testkit::faulty::{Cut, Faulty};
use roundtrip::testkit::samples::*;
use roundtrip::words::{ClaimId, ErrorClass, ErrorNote, HolderName, LEASE_MAX, Nonce, Payload};
use tokio::task::JoinHandle;

/// A memory store whose time is the runtime's, with the sample route defined.
pub(crate) async fn store_with(clock: Arc<dyn Clock>) -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(clock, Options::default()));
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    store
}

async fn store() -> Arc<dyn Store> {
    store_with(Arc::new(TokioClock::starting_at(START))).await
}

/// Admits these final requests and answers them, each with a text.
pub(crate) async fn answered(store: &dyn Store, numbers: std::ops::Range<u64>, text: impl Fn(u64) -> String) {
    let all: Vec<u64> = numbers.collect();
    for some in all.chunks(LEASE_MAX) {
        let requests: Vec<NewRequest> = some.iter().map(|&n| final_request(n)).collect();
        store.apply_one(Admit { cursor: None, requests }).await.unwrap();
        let lease = Lease { claim: ClaimId(some[0] + 7), ..lease(some.len()) };
        let Outcome::Applied(Effect::Leased(grants)) = store.apply_one(lease).await.unwrap() else {
            panic!("nothing was leased")
        };
        assert_eq!(grants.len(), some.len());
        let answers = grants
            .iter()
            .zip(some)
            .map(|(grant, &n)| Op::Answer(Answer { response: Payload::json(text(n)), ..answer(grant) }));
        assert!(store.apply(answers.collect()).await.unwrap().iter().all(Outcome::holds));
    }
}

pub(crate) async fn state(store: &dyn Store, n: u64) -> Option<StateKind> {
    store.get(id(n)).await.unwrap().map(|found| match found {
        Found::Live(view, _) => view.phase.kind(),
        Found::Ended(receipt) => receipt.end.kind(),
    })
}

/// Waits until these requests are in this state.
pub(crate) async fn until(store: &dyn Store, numbers: impl IntoIterator<Item = u64>, expected: StateKind) {
    let mut changes = store.changes(Topic::Journal);
    for n in numbers {
        while state(store, n).await != Some(expected) {
            assert!(changes.changed().await);
        }
    }
}

pub(crate) fn courier(store: &Arc<dyn Store>, name: &str, sink: impl Sink) -> Courier {
    Courier {
        store: store.clone(),
        seed: 7,
        holder: HolderName::new(name).unwrap(),
        destination: destination(),
        sink: Arc::new(sink),
        options: CourierOptions::default(),
        stats: Arc::default(),
    }
}

pub(crate) struct Running {
    pub(crate) shutdown: Shutdown,
    pub(crate) task: JoinHandle<Result<(), StationError>>,
}

pub(crate) fn start<F: Future<Output = Result<(), StationError>> + Send + 'static>(
    run: impl FnOnce(Shutdown) -> F,
) -> Running {
    let shutdown = Shutdown::new();
    Running { task: tokio::spawn(run(shutdown.clone())), shutdown }
}

impl Running {
    pub(crate) async fn stop(self) -> Result<(), StationError> {
        self.shutdown.cancel();
        self.task.await.unwrap()
    }

    /// Ends as a crash would.
    async fn crash(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

fn text(delivery: &ReadyDelivery) -> String {
    String::from_utf8(delivery.response.bytes.to_vec()).unwrap()
}

type Log = Arc<Mutex<Vec<(String, tokio::time::Instant)>>>;

/// A sink that writes down what it is given; each answer is for the target that its first
/// word names.
#[derive(Clone, Default)]
struct Book {
    tried: Log,
    taken: Log,
    down: Arc<Mutex<BTreeMap<String, SinkError>>>,
}

impl Book {
    fn set(&self, target: &str, down: Option<SinkError>) {
        let mut all = self.down.lock().unwrap();
        match down {
            Some(error) => all.insert(target.to_owned(), error),
            None => all.remove(target),
        };
    }

    fn texts(log: &Log) -> Vec<String> {
        log.lock().unwrap().iter().map(|(text, _)| text.clone()).collect()
    }

    fn taken_of(&self, target: &str) -> Vec<String> {
        Book::texts(&self.taken).into_iter().filter(|text| text.starts_with(target)).collect()
    }
}

impl Sink for Book {
    fn deliver<'a>(&'a self, delivery: &'a ReadyDelivery) -> SinkFuture<'a> {
        Box::pin(async move {
            let (text, now) = (text(delivery), tokio::time::Instant::now());
            self.tried.lock().unwrap().push((text.clone(), now));
            let down = self.down.lock().unwrap().get(&self.target(delivery)).cloned();
            down.map_or(Ok(()), Err)?;
            self.taken.lock().unwrap().push((text, now));
            Ok(())
        })
    }

    fn target(&self, delivery: &ReadyDelivery) -> String {
        text(delivery).split_whitespace().next().unwrap_or_default().to_owned()
    }
}

fn retry() -> SinkError {
    SinkError::retry("down")
}

#[tokio::test(start_paused = true)]
async fn a_channel_takes_answers_in_order() {
    let store = store().await;
    answered(&*store, 0..20, |n| format!("{n}")).await;
    let (sink, mut received) = ChannelSink::new(4);
    let running = start(|shutdown| courier(&store, "one", sink).run(shutdown));
    for n in 0..40 {
        if n == 20 {
            until(&*store, 0..20, StateKind::Settled).await;
            answered(&*store, 20..40, |n| format!("{n}")).await;
        }
        let handed = received.recv().await.unwrap();
        assert_eq!(text(&handed.delivery), format!("{n}"));
        assert_eq!(state(&*store, n).await, Some(StateKind::Ready), "it is not taken yet");
        handed.taken();
    }
    until(&*store, 0..40, StateKind::Settled).await;
    running.stop().await.unwrap();
    let seat = store.seat(Seat::Destination(destination())).await.unwrap().unwrap();
    assert!(seat.until <= TokioClock::starting_at(START).now().plus(60_000), "the seat was given up");
}

#[tokio::test(start_paused = true)]
async fn what_the_receiver_drops_comes_again() {
    let store = store().await;
    answered(&*store, 1..3, |n| format!("{n}")).await;
    let (sink, mut received) = ChannelSink::new(1);
    let running = start(|shutdown| courier(&store, "one", sink).run(shutdown));
    let first = received.recv().await.unwrap().delivery;
    let again = received.recv().await.unwrap();
    let told = ReadyDelivery { failures: 1, ..first };
    assert_eq!(again.delivery, told, "before the next, and the very same, of which it is known that it failed");
    again.taken();
    received.recv().await.unwrap().taken();
    until(&*store, 1..3, StateKind::Settled).await;
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_target_that_fails_holds_up_itself_alone() {
    let (store, book) = (store().await, Book::default());
    book.set("a", Some(retry()));
    answered(&*store, 0..12, |n| format!("{} {n}", ["a", "b", "c"][(n % 3) as usize])).await;
    let running = start(|shutdown| courier(&store, "one", book.clone()).run(shutdown));
    until(&*store, (0..12).filter(|n| n % 3 != 0), StateKind::Settled).await;
    assert_eq!(book.taken_of("b"), ["b 1", "b 4", "b 7", "b 10"]);
    assert_eq!(book.taken_of("c"), ["c 2", "c 5", "c 8", "c 11"]);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let tried: Vec<_> = book.tried.lock().unwrap().iter().filter(|(text, _)| text == "a 0").cloned().collect();
    assert!(Book::texts(&book.tried).iter().all(|text| !text.starts_with("a ") || text == "a 0"));
    let rests: Vec<Duration> = tried.windows(2).map(|two| two[1].1 - two[0].1).collect();
    assert!(rests[0] <= Duration::from_millis(510), "{rests:?}");
    assert!((12..40).contains(&rests.len()), "ever more rarely: {rests:?}");
    let longest = *rests.iter().max().unwrap();
    // The store says why it waits, how often it was tried, and when it last was; of those behind it nothing.
    let waiting = async |n| match store.get(id(n)).await.unwrap() {
        Some(Found::Live(view, _)) => (view.error, view.undelivered),
        other => panic!("{other:?}"),
    };
    let (error, undelivered) = waiting(0).await;
    assert_eq!(error, Some(ErrorNote::new(ErrorClass::Transport, "down")));
    let times = u32::try_from(tried.len()).unwrap();
    assert_eq!(undelivered.map(|undelivered| undelivered.times), Some(times));
    assert_eq!(waiting(3).await, (None, None));
    assert!(longest > Duration::from_secs(140) && longest <= Duration::from_secs(301), "{longest:?}");
    book.set("a", None);
    until(&*store, [0, 3, 6, 9], StateKind::Settled).await;
    assert_eq!(book.taken_of("a"), ["a 0", "a 3", "a 6", "a 9"]);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_asks_for_time_gets_it() {
    let (store, book) = (store().await, Book::default());
    let after = Some(Duration::from_secs(90));
    book.set("a", Some(SinkError::Retry { after, error: "busy".into() }));
    answered(&*store, 1..2, |n| format!("a {n}")).await;
    let running = start(|shutdown| courier(&store, "one", book.clone()).run(shutdown));
    tokio::time::sleep(Duration::from_secs(89)).await;
    book.set("a", None);
    assert_eq!(Book::texts(&book.tried).len(), 1);
    until(&*store, [1], StateKind::Settled).await;
    let tried = book.tried.lock().unwrap().clone();
    assert!(tried[1].1 - tried[0].1 >= Duration::from_secs(90));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refused_answer_is_a_dead_letter_until_a_person_retries() {
    let (store, book) = (store().await, Book::default());
    book.set("a", Some(SinkError::Refused("gone".into())));
    answered(&*store, 1..4, |n| format!("{} {n}", if n == 2 { "b" } else { "a" })).await;
    let running = start(|shutdown| courier(&store, "one", book.clone()).run(shutdown));
    until(&*store, [1, 3], StateKind::Dead).await;
    until(&*store, [2], StateKind::Settled).await;
    let Some(Found::Live(view, bodies)) = store.get(id(1)).await.unwrap() else { panic!("a dead letter is live") };
    assert_eq!(&*view.error.unwrap().text, "gone");
    assert_eq!(bodies.response, Some(Payload::json("a 1")));
    book.set("a", None);
    store.apply(vec![mend(1, Remedy::Retry).into(), mend(3, Remedy::Retry).into()]).await.unwrap();
    until(&*store, [1, 3], StateKind::Settled).await;
    assert_eq!(book.taken_of("a"), ["a 1", "a 3"]);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_a_delivery_makes_it_again_under_the_same_name() {
    let store = store().await;
    answered(&*store, 1..2, |n| format!("{n}")).await;
    let (seen, mut sights) = tokio::sync::mpsc::unbounded_channel();
    let forgetful = seen.clone();
    let delivered_then_silent = CallSink::new(move |delivery: ReadyDelivery| {
        forgetful.send((delivery.id, delivery.generation, delivery.revision)).unwrap();
        std::future::pending()
    });
    let running = start(|shutdown| courier(&store, "one", delivered_then_silent).run(shutdown));
    let first = sights.recv().await.unwrap();
    running.crash().await;
    assert_eq!(state(&*store, 1).await, Some(StateKind::Ready));
    let crashed_at = tokio::time::Instant::now();
    let sink = CallSink::new(move |delivery: ReadyDelivery| {
        seen.send((delivery.id, delivery.generation, delivery.revision)).unwrap();
        std::future::ready(Ok(()))
    });
    let running = start(|shutdown| courier(&store, "two", sink).run(shutdown));
    until(&*store, [1], StateKind::Settled).await;
    assert_eq!(sights.recv().await.unwrap(), first);
    assert!(crashed_at.elapsed() <= Duration::from_secs(32), "the seat of the dead one runs out");
    assert!(sights.try_recv().is_err());
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_courier_at_a_time() {
    let store = store().await;
    let books = [Book::default(), Book::default()];
    let first = start(|shutdown| courier(&store, "one", books[0].clone()).run(shutdown));
    answered(&*store, 0..5, |n| format!("a {n}")).await;
    until(&*store, 0..5, StateKind::Settled).await;
    let second = start(|shutdown| courier(&store, "two", books[1].clone()).run(shutdown));
    answered(&*store, 5..10, |n| format!("a {n}")).await;
    until(&*store, 5..10, StateKind::Settled).await;
    // Longer than the seat lasts: the first keeps it.
    tokio::time::sleep(Duration::from_secs(100)).await;
    answered(&*store, 10..15, |n| format!("a {n}")).await;
    until(&*store, 10..15, StateKind::Settled).await;
    assert_eq!(books.each_ref().map(|book| book.taken_of("a").len()), [15, 0]);
    first.stop().await.unwrap();
    answered(&*store, 15..20, |n| format!("a {n}")).await;
    until(&*store, 15..20, StateKind::Settled).await;
    assert_eq!(books.each_ref().map(|book| book.taken_of("a").len()), [15, 5]);
    second.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lost_answers_of_the_store_cost_nothing() {
    for (call, cut) in (0..6).flat_map(|call| [(call, Cut::Before), (call, Cut::After)]) {
        let (store, book) = (store().await, Book::default());
        answered(&*store, 0..6, |n| format!("{} {n}", n % 2)).await;
        let faulty: Arc<dyn Store> = Arc::new(Faulty::new(store.clone(), cut, call));
        let running = start(|shutdown| courier(&faulty, "one", book.clone()).run(shutdown));
        until(&*store, 0..6, StateKind::Settled).await;
        running.stop().await.unwrap();
        assert_eq!(book.taken_of("0"), ["0 0", "0 2", "0 4"], "{cut:?} {call}");
        assert_eq!(book.taken_of("1"), ["1 1", "1 3", "1 5"], "{cut:?} {call}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_changes_while_it_waits_is_not_delivered_as_it_was() {
    let (store, book) = (store().await, Book::default());
    book.set("a", Some(retry()));
    answered(&*store, 1..4, |n| format!("a {n}")).await;
    let running = start(|shutdown| courier(&store, "one", book.clone()).run(shutdown));
    while book.tried.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    // While its target rests, one is withdrawn and one ends elsewhere.
    store.apply_one(mend(1, Remedy::Cancel)).await.unwrap();
    let Outcome::Applied(Effect::Led(lead, _)) =
        store.apply_one(roundtrip::store::op::Lead { seat: Seat::Route(route()), ..lead() }).await.unwrap()
    else {
        panic!("the seat is free")
    };
    store.apply_one(elsewhere(lead, 2)).await.unwrap();
    book.set("a", None);
    until(&*store, [3], StateKind::Settled).await;
    assert_eq!(Book::texts(&book.taken), ["a 3"]);
    assert_eq!(state(&*store, 1).await, Some(StateKind::Withdrawn));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_superseded_goes_where_the_new_one_is_wanted() {
    let (store, book) = (store().await, Book::default());
    let policy = roundtrip::store::policy::RoutePolicy { publish_on: roundtrip::store::policy::Gate::Seen, ..policy() };
    store.apply_one(Define { route: route(), policy }).await.unwrap();
    book.set("a", Some(retry()));
    answered(&*store, 1..3, |n| format!("a {n}")).await;
    let running = start(|shutdown| courier(&store, "one", book.clone()).run(shutdown));
    while book.tried.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let seat = roundtrip::store::op::Lead { seat: Seat::Route(route()), ..lead() };
    let Outcome::Applied(Effect::Led(lead, _)) = store.apply_one(seat).await.unwrap() else {
        panic!("the seat is free")
    };
    store.apply_one(supersede(lead, 1, 1001, "other content")).await.unwrap();
    let leased = store.apply_one(Lease { claim: ClaimId(99), ..lease(1) }).await.unwrap();
    let Outcome::Applied(Effect::Leased(grants)) = leased else { panic!("nothing was leased") };
    let anew = Answer { response: Payload::json("b 1"), ..answer(&grants[0]) };
    assert!(store.apply_one(anew).await.unwrap().holds());
    until(&*store, [1], StateKind::Settled).await;
    assert_eq!(Book::texts(&book.taken), ["b 1"]);
    assert_eq!(state(&*store, 2).await, Some(StateKind::Ready), "its target is still down");
    book.set("a", None);
    until(&*store, [2], StateKind::Settled).await;
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_long_backlog_of_one_target_hides_no_other() {
    let (store, book) = (store().await, Book::default());
    book.set("down", Some(retry()));
    answered(&*store, 0..3000, |n| format!("down {n}")).await;
    answered(&*store, 3000..3005, |n| format!("up {n}")).await;
    let running = start(|shutdown| courier(&store, "one", book.clone()).run(shutdown));
    until(&*store, 3000..3005, StateKind::Settled).await;
    answered(&*store, 3005..3010, |n| format!("up {n}")).await;
    until(&*store, 3005..3010, StateKind::Settled).await;
    assert_eq!(book.taken_of("up"), (3000..3010).map(|n| format!("up {n}")).collect::<Vec<_>>());
    assert!(book.taken_of("down").is_empty());
    book.set("down", None);
    until(&*store, 0..3000, StateKind::Settled).await;
    assert_eq!(book.taken_of("down"), (0..3000).map(|n| format!("down {n}")).collect::<Vec<_>>(), "in order");
    running.stop().await.unwrap();
}

/// Takes its time: one target ends when it is told to, the other never.
struct Slow {
    ends: Arc<tokio::sync::Notify>,
    begun: tokio::sync::mpsc::UnboundedSender<()>,
}

impl Sink for Slow {
    fn deliver<'a>(&'a self, delivery: &'a ReadyDelivery) -> SinkFuture<'a> {
        Box::pin(async move {
            self.begun.send(()).unwrap();
            match text(delivery).as_str() {
                "1" => self.ends.notified().await,
                _ => std::future::pending().await,
            }
            Ok(())
        })
    }

    fn target(&self, delivery: &ReadyDelivery) -> String {
        text(delivery)
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_may_end_in_the_grace_time() {
    let store = store().await;
    answered(&*store, 1..3, |n| format!("{n}")).await;
    let ends = Arc::new(tokio::sync::Notify::new());
    let (begun, mut began) = tokio::sync::mpsc::unbounded_channel();
    let sink = Slow { ends: ends.clone(), begun };
    let running = start(|shutdown| courier(&store, "one", sink).run(shutdown));
    began.recv().await.unwrap();
    began.recv().await.unwrap();
    running.shutdown.cancel();
    answered(&*store, 3..4, |_| "1".into()).await;
    let stopped_at = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(20)).await;
    ends.notify_one();
    running.task.await.unwrap().unwrap();
    assert_eq!(stopped_at.elapsed().as_secs(), 30, "the other had the whole grace time");
    assert_eq!(state(&*store, 1).await, Some(StateKind::Settled));
    assert_eq!(state(&*store, 2).await, Some(StateKind::Ready), "given up, for the next courier");
    assert_eq!(state(&*store, 3).await, Some(StateKind::Ready), "nothing is begun after the word to stop");
    assert!(began.try_recv().is_err());
}

/// A store that can no longer be used for one kind of operation.
struct Broken(Arc<dyn Store>, AtomicBool);

impl Store for Broken {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        if batch.iter().any(|op| matches!(op, Op::Publish(Publish { .. }))) && self.1.load(Ordering::Relaxed) {
            return Box::pin(async { Err(StoreError::Closed) });
        }
        self.0.apply(batch)
    }

    fn read(&self, query: roundtrip::store::query::Query) -> StoreFuture<'_, roundtrip::store::query::Reply> {
        self.0.read(query)
    }

    fn changes(&self, topic: Topic) -> roundtrip::store::Changes {
        self.0.changes(topic)
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_go_on_says_why() {
    let store = store().await;
    answered(&*store, 1..2, |n| format!("{n}")).await;
    let broken: Arc<dyn Store> = Arc::new(Broken(store.clone(), AtomicBool::new(true)));
    let error = courier(&broken, "one", Book::default()).run(Shutdown::new()).await.unwrap_err();
    assert!(matches!(error, StationError::Store(StoreError::Closed)), "{error}");
    let panics = CallSink::new(|_: ReadyDelivery| -> std::future::Ready<Result<(), SinkError>> { panic!("a bug") });
    let error = courier(&store, "one", panics).run(Shutdown::new()).await.unwrap_err();
    assert!(error.to_string().contains("a bug"), "{error}");
    let order = Order::Open { destination: other_destination(), window: 1, first: Nonce(0) };
    store.apply_one(LaneOrder { lane: lane(), order }).await.unwrap();
    let to_lanes = Courier { destination: other_destination(), ..courier(&store, "one", Book::default()) };
    let error = to_lanes.run(Shutdown::new()).await.unwrap_err();
    assert!(error.to_string().contains("is served by lanes"), "{error}");
}
