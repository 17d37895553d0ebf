//! Lists of other programs on a real Redis server, as sources and as sinks: stopped at every
//! point, the server killed, several at work at once; each item and each answer is counted.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use roundtrip::clock::SystemClock;
use roundtrip::inbox::{FieldPath, Identity, StateKind};
use roundtrip::listener::{BadList, RedisList, Source};
use roundtrip::outbox::{Courier, CourierOptions, RedisListSink};
use roundtrip::station::StationError;
use roundtrip::store::op::{Define, Effect, Lease, Op, Outcome};
use roundtrip::store::policy::{Horizon, OnDuplicate, RoutePolicy};
use roundtrip::store::projection::{ListEnd, Template};
use roundtrip::store::query::{Found, ListFilter};
use roundtrip::store::{MemoryStore, Options, ReadExt, Store, StoreError, StoreExt, Topic};
use roundtrip::testkit::faulty::{Cut, Faulty};
use roundtrip::testkit::samples::*;
use roundtrip::testkit::servers::{RedisCluster, RedisServer};
use roundtrip::words::{ClaimId, Encoding, HolderName, ListenerName};

use crate::delivering::{Running, answered, start, until};

/// How long anything may take to happen.
const HAPPEN_MAX: Duration = Duration::from_secs(30);
const LIST: &str = "submissionQueue";

/// A server of a case's own, and a store elsewhere.
struct Bench {
    server: RedisServer,
    store: Arc<dyn Store>,
}

impl Bench {
    async fn new(policy: RoutePolicy) -> Bench {
        let server = RedisServer::start(RedisServer::SYNCED).unwrap();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(SystemClock::new()), Options::default()));
        store.apply_one(Define { route: route(), policy }).await.unwrap();
        Bench { server, store }
    }

    fn url(&self) -> String {
        format!("redis://{}", self.server.address())
    }

    fn source(&self) -> RedisList {
        let name = ListenerName::new("relay").unwrap();
        RedisList::of_route(&self.url(), LIST, name, route(), Encoding::Json, by_id()).unwrap()
    }

    fn drain(&self) -> Running {
        let store = self.store.clone();
        start(|shutdown| self.source().run(store, Arc::new(SystemClock::new()), shutdown))
    }

    fn said(&self, command: &str) -> String {
        let words: Vec<&str> = command.split(' ').collect();
        self.server.said(&words).unwrap()
    }

    /// Items that are in the list or taken.
    fn left(&self) -> u64 {
        let count = |command: &str| self.said(command).parse::<u64>().unwrap();
        count("LLEN submissionQueue") + count("HLEN roundtrip-list:submissionQueue:relay:taken")
    }

    fn push(&self, numbers: Range<u64>) {
        for n in numbers {
            self.said(&format!("RPUSH submissionQueue {}", item(n)));
        }
    }

    async fn all(&self) -> BTreeMap<String, u32> {
        all(&*self.store).await
    }

    /// Waits until so many requests are live, and nothing is left of the list.
    async fn drained(&self, requests: usize) {
        let waited = async {
            let mut changes = self.store.changes(Topic::Journal);
            while all(&*self.store).await.len() < requests {
                changes.changed().await;
            }
            while tokio::task::block_in_place(|| self.left()) > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(HAPPEN_MAX, waited).await.expect("the list is not drained");
        assert_eq!(self.said("EXISTS roundtrip-list:submissionQueue:relay:taken_at"), "0", "nothing is filed");
    }
}

/// What each live request asks, and how many occurrences it has.
async fn all(store: &dyn Store) -> BTreeMap<String, u32> {
    let (mut all, mut after) = (BTreeMap::new(), None);
    loop {
        let page = store.list(ListFilter { after, limit: 1000, ..ListFilter::default() }).await.unwrap();
        let Some(last) = page.requests.last() else { return all };
        after = Some(last.seq);
        for view in &page.requests {
            let Some(Found::Live(_, bodies)) = store.get(view.id).await.unwrap() else { panic!("it is live") };
            *all.entry(String::from_utf8(bodies.payload.bytes.to_vec()).unwrap()).or_default() += 1;
        }
    }
}

fn item(n: u64) -> String {
    format!(r#"{{"id":"s{n}"}}"#)
}

fn items(numbers: Range<u64>) -> BTreeMap<String, u32> {
    numbers.map(|n| (item(n), 1)).collect()
}

fn by_id() -> Identity {
    Identity::Fields(vec![FieldPath::new("/id").unwrap()])
}

fn by_field() -> RoutePolicy {
    RoutePolicy { identity: by_id(), horizon: Horizon::Forever, ..policy() }
}

async fn connect(url: String) -> MultiplexedConnection {
    ::redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_are_admitted_once_in_their_order_and_leave_the_list() {
    let bench = Bench::new(by_field()).await;
    bench.push(0..600);
    let running = bench.drain();
    bench.drained(600).await;
    // What comes later is waited for, not polled for.
    bench.push(600..603);
    bench.drained(603).await;
    running.stop().await.unwrap();
    assert_eq!(bench.all().await, items(0..603));
    let lease = Lease { claim: ClaimId(1), ..lease(1000) };
    let Outcome::Applied(Effect::Leased(grants)) = bench.store.apply_one(lease).await.unwrap() else {
        panic!("leased")
    };
    let order: Vec<String> =
        grants.iter().map(|grant| String::from_utf8(grant.payload.bytes.to_vec()).unwrap()).collect();
    assert_eq!(order, (0..603).map(item).collect::<Vec<_>>());
}

/// A crash on either side of the commit that admits: what was taken is admitted again, first,
/// and recognised if it is in the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_before_or_after_the_commit_loses_and_repeats_nothing() {
    for (cut, stored) in [(Cut::Before, 0), (Cut::After, 20)] {
        let bench = Bench::new(by_field()).await;
        bench.push(0..20);
        let fatal = Faulty::with_error(bench.store.clone(), cut, 0..1, StoreError::Closed);
        let crashed = bench.source().run(Arc::new(fatal), Arc::new(SystemClock::new()), Default::default()).await;
        assert!(matches!(crashed, Err(StationError::Store(StoreError::Closed))), "{crashed:?}");
        assert_eq!((bench.all().await.len(), bench.left()), (stored, 20), "{cut:?}");
        assert_eq!(bench.said("LLEN submissionQueue"), "0", "all are taken, none is done");
        bench.push(20..25);
        let running = bench.drain();
        bench.drained(25).await;
        running.stop().await.unwrap();
        assert_eq!(bench.all().await, items(0..25));
        let journal = bench.store.journal(1, 1000).await.unwrap().entries;
        let admitted =
            journal.iter().filter(|entry| matches!(entry.event, roundtrip::store::journal::Event::Admitted { .. }));
        assert_eq!(admitted.count(), 25, "{cut:?}");
        let attached = journal.iter().filter(|entry| entry.event == roundtrip::store::journal::Event::Attached);
        assert_eq!(attached.count(), 0, "{cut:?}: an item that comes again is the same occurrence");
    }
}

/// Two that are alike are two occurrences: the route decides what becomes of the second, as
/// it does for every other source.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_that_are_alike_are_as_many_as_they_are() {
    let bench = Bench::new(RoutePolicy { on_duplicate: OnDuplicate::NewGeneration, ..policy() }).await;
    for _ in 0..3 {
        bench.push(7..8);
    }
    let name = || ListenerName::new("relay").unwrap();
    let each = RedisList::of_route(&bench.url(), LIST, name(), route(), Encoding::Raw, Identity::Given).unwrap();
    let store = bench.store.clone();
    let running = start(|shutdown| each.run(store, Arc::new(SystemClock::new()), shutdown));
    bench.drained(1).await;
    running.stop().await.unwrap();
    assert_eq!(bench.all().await, BTreeMap::from([(item(7), 3)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_request_is_put_away_with_its_reason_and_holds_nobody_up() {
    let bench = Bench::new(by_field()).await;
    let mut connection = connect(bench.url()).await;
    let large = format!(r#"{{"id":"{}"}}"#, "x".repeat(1 << 20));
    let bad: [&[u8]; 4] = [b"{", br#"{"name":1}"#, &[0xff, 0xfe], large.as_bytes()];
    for (n, bad) in bad.iter().enumerate() {
        let () = ::redis::cmd("RPUSH").arg(LIST).arg(*bad).query_async(&mut connection).await.unwrap();
        bench.push(n as u64..n as u64 + 1);
    }
    let running = bench.drain();
    bench.drained(4).await;
    running.stop().await.unwrap();
    assert_eq!(bench.all().await, items(0..4));
    let key = "roundtrip-list:submissionQueue:relay:rejected";
    let rejected: Vec<String> =
        ::redis::cmd("LRANGE").arg(key).arg(0).arg(-1).query_async(&mut connection).await.unwrap();
    let rejected: Vec<serde_json::Value> = rejected.iter().map(|entry| serde_json::from_str(entry).unwrap()).collect();
    let reason = |at: usize| rejected[at]["reason"].as_str().unwrap();
    assert_eq!(rejected.len(), 4);
    assert!(reason(0).contains("no JSON") && rejected[0]["item"] == "{", "{}", reason(0));
    assert!(reason(1).contains("no field /id"), "{}", reason(1));
    assert_eq!(rejected[2]["item_hex"], "fffe");
    assert!(reason(3).contains("over the limit") && rejected[3]["item"] == large, "{}", reason(3));
}

/// A route without room: its items wait, taken or in the list, and go on when there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_route_is_waited_for() {
    let bench = Bench::new(RoutePolicy { capacity: 10, ..by_field() }).await;
    bench.push(0..30);
    let running = bench.drain();
    let full = async {
        while all(&*bench.store).await.len() < 10 || tokio::task::block_in_place(|| bench.left()) > 20 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(HAPPEN_MAX, full).await.unwrap();
    assert_eq!(bench.left(), 20, "nothing is lost");
    let policy = RoutePolicy { capacity: 100, ..by_field() };
    bench.store.apply_one(Define { route: route(), policy }).await.unwrap();
    bench.drained(30).await;
    running.stop().await.unwrap();
    assert_eq!(bench.all().await, items(0..30));
}

/// Two processes drain one list under one name while others fill it, and the server is killed
/// again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_or_doubled_while_the_server_is_killed() {
    const ITEMS: u64 = 900;
    let bench = Bench::new(by_field()).await;
    let drains = [bench.drain(), bench.drain()];
    let produce = |from: u64| {
        let url = bench.url();
        async move {
            let mut pushed = from;
            while pushed < ITEMS {
                // Who is not answered pushes again: it may be there twice then.
                let Ok(client) = ::redis::Client::open(url.clone()) else { continue };
                let Ok(mut connection) = client.get_multiplexed_async_connection().await else { continue };
                while pushed < ITEMS {
                    let push =
                        ::redis::cmd("RPUSH").arg(LIST).arg(item(pushed)).query_async::<u64>(&mut connection).await;
                    if push.is_err() {
                        break;
                    }
                    pushed += 3;
                }
            }
        }
    };
    let producers: Vec<_> = (0..3).map(|from| tokio::spawn(produce(from))).collect();
    for time in 1..=3 {
        let mut changes = bench.store.changes(Topic::Journal);
        while bench.all().await.len() < time * 200 {
            changes.changed().await;
        }
        let killed = bench.server.kill().unwrap();
        tokio::task::block_in_place(|| bench.server.wait_until_ready(killed)).unwrap();
    }
    for producer in producers {
        producer.await.unwrap();
    }
    bench.drained(usize::try_from(ITEMS).unwrap()).await;
    for drain in drains {
        drain.stop().await.unwrap();
    }
    assert_eq!(bench.all().await, items(0..ITEMS));
    assert_eq!(bench.said("EXISTS roundtrip-list:submissionQueue:relay:rejected"), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_is_refused_by_both() {
    let cluster = RedisCluster::start().unwrap();
    let url = cluster.url("main");
    let name = || ListenerName::new("relay").unwrap();
    let of = |url: &str| RedisList::of_route(url, LIST, name(), route(), Encoding::Json, by_id());
    assert!(matches!(of(&url), Err(BadList::OnCluster { .. })));
    assert!(matches!(RedisListSink::new(&url, list("a")), Err(BadList::OnCluster { .. })));
    let node = url.replace("redis-cluster://", "redis://");
    let node = node.split(',').next().unwrap();
    let bench = Bench::new(by_field()).await;
    let run = of(node).unwrap().run(bench.store.clone(), Arc::new(SystemClock::new()), Default::default());
    let refused = run.await.unwrap_err().to_string();
    assert!(refused.contains("without cluster mode"), "{refused}");
}

fn list(text: &str) -> Template {
    Template::new(text).unwrap()
}

fn courier(store: Arc<dyn Store>, name: &str, sink: RedisListSink) -> Courier {
    let backoff_max = Duration::from_millis(50);
    Courier {
        store,
        seed: 7,
        holder: HolderName::new(name).unwrap(),
        destination: destination(),
        sink: Arc::new(sink),
        options: CourierOptions {
            backoff_first: Duration::from_millis(5),
            backoff_max,
            seat_ms: 500,
            poll: Duration::from_millis(50),
            ..CourierOptions::default()
        },
        stats: Arc::default(),
    }
}

/// A crash between the push and its record, at every commit of the courier: each answer is in
/// its list once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_pushed_once_wherever_the_courier_dies() {
    for cut in [Cut::Before, Cut::After] {
        let bench = Bench::new(policy()).await;
        answered(&*bench.store, 1..31, |n| format!(r#"{{"chain":"c{}","n":{n}}}"#, n % 2)).await;
        let sink = || {
            RedisListSink::new(&bench.url(), list("responses:{response/chain}"))
                .unwrap()
                .value(list("{response/n}"))
                .unwrap()
        };
        for call in 1..6 {
            let dying = Faulty::with_error(bench.store.clone(), cut, call..call + 1, StoreError::Closed);
            let died = courier(Arc::new(dying), &format!("dying-{call}"), sink()).run(Default::default()).await;
            assert!(matches!(died, Err(StationError::Store(StoreError::Closed))), "{died:?}");
        }
        let store = bench.store.clone();
        let running = start(|shutdown| courier(store, "last", sink()).run(shutdown));
        tokio::time::timeout(HAPPEN_MAX, until(&*bench.store, 1..31, StateKind::Settled)).await.unwrap();
        running.stop().await.unwrap();
        for (chain, first) in [(0, 2), (1, 1)] {
            let pushed = bench.said(&format!("LRANGE responses:c{chain} 0 -1"));
            let expected: Vec<String> = (first..31).step_by(2).map(|n: u64| n.to_string()).collect();
            assert_eq!(pushed.lines().collect::<Vec<_>>(), expected, "{cut:?}: once, and in order");
        }
    }
}

/// The server is killed while answers go out, and a full list holds them back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_pushed_once_while_the_server_is_killed() {
    let bench = Bench::new(policy()).await;
    answered(&*bench.store, 1..401, |n| n.to_string()).await;
    let sink = RedisListSink::new(&bench.url(), list("responses")).unwrap().at_end(ListEnd::Left).capacity(1000);
    let store = bench.store.clone();
    let running = start(|shutdown| courier(store, "courier", sink).run(shutdown));
    for last in [80, 200, 320] {
        tokio::time::timeout(HAPPEN_MAX, until(&*bench.store, last..last + 1, StateKind::Settled)).await.unwrap();
        let killed = bench.server.kill().unwrap();
        tokio::task::block_in_place(|| bench.server.wait_until_ready(killed)).unwrap();
    }
    tokio::time::timeout(HAPPEN_MAX, until(&*bench.store, 1..401, StateKind::Settled)).await.unwrap();
    running.stop().await.unwrap();
    let pushed = bench.said("LRANGE responses 0 -1");
    assert!(pushed.lines().rev().map(|line| line.parse::<u64>().unwrap()).eq(1..401), "{pushed}");
}

/// A list that is full, or no list, holds its answers back until somebody has seen to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_list_and_a_key_that_is_none_are_waited_for() {
    let bench = Bench::new(policy()).await;
    bench.said("SET responses mine");
    answered(&*bench.store, 1..6, |n| n.to_string()).await;
    let sink = RedisListSink::new(&bench.url(), list("responses")).unwrap().capacity(3);
    let store = bench.store.clone();
    let running = start(|shutdown| courier(store, "courier", sink).run(shutdown));
    let failed = async {
        while bench.said("INFO errorstats").lines().all(|line| !line.starts_with("errorstat_WRONGTYPE")) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(HAPPEN_MAX, failed).await.unwrap();
    assert_eq!(bench.said("GET responses"), "mine");
    bench.said("DEL responses");
    tokio::time::timeout(HAPPEN_MAX, until(&*bench.store, 1..4, StateKind::Settled)).await.unwrap();
    assert_eq!(bench.said("LPOP responses"), "1");
    tokio::time::timeout(HAPPEN_MAX, until(&*bench.store, 4..5, StateKind::Settled)).await.unwrap();
    assert_eq!(bench.said("LRANGE responses 0 -1"), "2\n3\n4");
    running.stop().await.unwrap();
    let rest = bench.store.apply(vec![Op::Rescue { limit: 1 }]).await.unwrap();
    assert!(rest[0].holds());
    assert_eq!(bench.store.counts().await.unwrap()[0].requests, 1, "the fifth waits");
}
