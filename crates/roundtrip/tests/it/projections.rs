//! Projections: what a Redis store shows under keys of the user's naming, read as any client
//! reads it.

use std::sync::Arc;

use roundtrip::clock::ManualClock;
use roundtrip::store::op::{Admit, Define, Effect, Grant, NewRequest, Outcome};
use roundtrip::store::policy::{Gate, RoutePolicy};
use roundtrip::store::projection::{BadProjection, Projection};
use roundtrip::store::{Options, ReadExt, RedisStore, Store, StoreExt};
use roundtrip::testkit::bench::{OPTIONS, START};
use roundtrip::testkit::samples::*;
use roundtrip::testkit::servers::{RedisCluster, RedisServer};
use roundtrip::words::{ClaimId, Payload};

use crate::sharing::until_known;

/// A server of a case's own: its keys are all the user's.
struct Bench {
    server: RedisServer,
}

fn read(text: &str) -> Projection {
    serde_json::from_str(text).unwrap()
}

/// Request `n` of an epoch, in JSON.
fn asked(n: u64, epoch: u64) -> NewRequest {
    let payload = Payload::json(format!(r#"{{"epoch":{epoch},"market":"uni","sub":{{"id":"s{n}"}}}}"#));
    NewRequest { payload, place: None, ..final_request(n) }
}

impl Bench {
    fn new() -> Bench {
        Bench { server: RedisServer::start(RedisServer::SYNCED).unwrap() }
    }

    async fn store(&self, projections: &[&str]) -> RedisStore {
        let projections = projections.iter().map(|text| read(text)).collect();
        let store = RedisStore::new(&self.server.url("main"), OPTIONS).unwrap().with_far_back(0);
        let store = store.with_clock(Arc::new(ManualClock::at(START))).with_projections(projections).unwrap();
        let policy = RoutePolicy { destination: None, publish_on: Gate::Seen, ..policy() };
        store.apply_one(Define { route: route(), policy }).await.unwrap();
        store
    }

    fn said(&self, command: &str) -> String {
        let words: Vec<&str> = command.split(' ').collect();
        self.server.said(&words).unwrap()
    }

    fn check(&self, command: &str, said: &str) {
        assert_eq!(self.said(command), said, "{command}");
    }
}

async fn admit(store: &impl Store, requests: Vec<NewRequest>) {
    let outcome = store.apply_one(Admit { cursor: None, requests }).await.unwrap();
    assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
}

async fn take(store: &impl Store, claim: u64, max: usize) -> Vec<Grant> {
    let lease = roundtrip::store::op::Lease { claim: ClaimId(claim), ..lease(max) };
    match store.apply_one(lease).await.unwrap() {
        Outcome::Applied(Effect::Leased(grants)) => grants,
        other => panic!("{other:?}"),
    }
}

async fn answer_with(store: &impl Store, grant: &Grant, response: &'static str) {
    let outcome = store.apply_one(roundtrip::store::op::Answer { response: Payload::json(response), ..answer(grant) });
    assert!(matches!(outcome.await.unwrap(), Outcome::Applied(_)));
}

/// What a process that is alone shows is written beside what it has at hand: it asks the server for nothing first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_alone_shows_without_asking() {
    let bench = Bench::new();
    let updates = r#"{"route":"orders","key":"updates","as":{"list":{"value":"{id} {state}","max":1000}},
        "states":["live","ended"]}"#;
    let requests =
        r#"{"route":"orders","key":"requests","as":{"map":{"field":"{request/sub/id}","value":"{request}"}}}"#;
    let store = bench.store(&[updates, requests]).await;
    // Fetches, and commits by script, which show nothing.
    let asked_so_far = || bench.server.calls("evalsha").unwrap();
    let life = async |n: u64| {
        admit(&store, vec![asked(n, 7)]).await;
        let grants = take(&store, n, 1).await;
        answer_with(&store, &grants[0], "1").await;
    };
    life(1).await;
    let before = asked_so_far();
    for n in 2..=21 {
        life(n).await;
    }
    let asked = asked_so_far() - before;
    assert!(asked < 20, "60 batches asked {asked} times");
    bench.check("LLEN updates", &(3 * 21).to_string());
    bench.check("HLEN requests", "0");
}

/// As the system of a sign queue kept it: two maps by id, deleted at the end, and a queue of news.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_responses_are_maps_by_id() {
    let bench = Bench::new();
    let projections = [
        r#"{"route":"orders","key":"requests","as":{"map":{"field":"{id}","value":"{request}"}}}"#,
        r#"{"route":"orders","key":"responses","as":{"map":{"field":"{id}","value":"{response}"}}}"#,
        r#"{"route":"orders","key":"request_updates","as":{"list":{"value":"{id} {state}","max":3}},"states":["live","ended"]}"#,
    ];
    let store = bench.store(&projections).await;
    let policy = RoutePolicy { publish_on: Gate::Seen, ..policy() };
    store.apply_one(Define { route: route(), policy }).await.unwrap();
    admit(&store, vec![asked(1, 7), asked(2, 7)]).await;
    bench.check("HLEN requests", "2");
    bench.check(&format!("HGET requests {}", id(1)), r#"{"epoch":7,"market":"uni","sub":{"id":"s1"}}"#);
    let grants = take(&store, 1, 1).await;
    bench.check("EXISTS responses", "0");
    answer_with(&store, &grants[0], r#"{"big": 12345678901234567890.0}"#).await;
    bench.check(&format!("HGET responses {}", id(1)), r#"{"big": 12345678901234567890.0}"#);
    bench.check("LRANGE request_updates 0 -1", &format!("{1} queued\n{0} leased\n{0} ready", id(1), id(2)));
    // Taken back by its origin.
    let lead = match store
        .apply_one(roundtrip::store::op::Lead { seat: roundtrip::store::op::Seat::Route(route()), ..lead() })
        .await
        .unwrap()
    {
        Outcome::Applied(Effect::Led(token, _)) => token,
        other => panic!("{other:?}"),
    };
    let outcome = store.apply_one(elsewhere(lead, 1)).await.unwrap();
    assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
    bench.check(&format!("HEXISTS requests {}", id(1)), "0");
    bench.check("EXISTS responses", "0");
    bench.check("LRANGE request_updates -1 -1", &format!("{} elsewhere", id(1)));
    assert_eq!(store.projection_health().left_out, 0);
}

/// As the system of a snapshot sequencer kept it: keys by fields of the payload, with times to live.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_named_by_fields_and_expire_after_the_end() {
    let bench = Bench::new();
    let projections = [
        r#"{"route":"orders","key":"epoch:{request/market}:{request/epoch}:window","as":{"string":"{state}"},
            "states":["live","ended"],"words":{"live":"open","ended":"closed"},"keep_ms":3600000}"#,
        r#"{"route":"orders","key":"processing:{request/sub/id}","as":{"string":"{worker}"},"states":["leased"]}"#,
        r#"{"route":"orders","key":"uni:epoch:{request/epoch}:processed","as":{"set":"{request/sub/id}"},
            "states":["settled"],"keep_ms":600000}"#,
        r#"{"route":"orders","key":"batch:{request/epoch}","as":{"string":"{response}"},"states":["settled"]}"#,
        r#"{"route":"orders","key":"submission_stats:{request/epoch}","as":{"count":{"field":"total_submissions"}}}"#,
        r#"{"route":"orders","key":"row:{number}","as":{"hash":{"id":"{id}","status":"{state}","error":"{error}",
            "at":"{admitted_at}","cid":"{response/cid}"}},"words":{"live":"pending","leased":"under_process"}}"#,
        r#"{"route":"orders","key":"in:{state}","as":{"set":"{request/sub/id}"}}"#,
    ];
    let store = bench.store(&projections).await;
    admit(&store, vec![asked(1, 12), asked(2, 12)]).await;
    bench.check("GET epoch:uni:12:window", "open");
    bench.check("TTL epoch:uni:12:window", "-1");
    bench.check("HGETALL row:1", &format!("at\n{}\nid\n{}\nstatus\npending", START.0, id(1)));
    bench.check("SORT in:queued ALPHA", "s1\ns2");
    let grants = take(&store, 1, 1).await;
    bench.check("GET processing:s1", "worker-1");
    bench.check("HGET row:1 status", "under_process");
    bench.check("SMEMBERS in:queued", "s2");
    answer_with(&store, &grants[0], r#"{"cid":"bafy"}"#).await;
    bench.check("GET epoch:uni:12:window", "closed");
    let ttl: u64 = bench.said("PTTL epoch:uni:12:window").parse().unwrap();
    assert!((3_000_000..=3_600_000).contains(&ttl), "{ttl}");
    bench.check("EXISTS processing:s1 row:1 in:leased", "0");
    bench.check("SMEMBERS uni:epoch:12:processed", "s1");
    assert!(bench.said("PTTL uni:epoch:12:processed").parse::<u64>().unwrap() <= 600_000);
    bench.check("GET batch:12", r#"{"cid":"bafy"}"#);
    bench.check("HGET submission_stats:12 total_submissions", "2");
    assert_eq!(store.projection_health().left_out, 0);
}

/// Keys that are something else, hold what is no number, or may not be written: the commit is
/// complete, they are left alone, and once they are free everything can be shown again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_key_in_the_way_holds_nothing_up_and_is_left_alone() {
    let bench = Bench::new();
    bench.check("SET requests mine", "OK");
    bench.check("RPUSH row:1 mine", "1");
    bench.check("SET total none", "OK");
    let projections = [
        r#"{"route":"orders","key":"requests","as":{"map":{"field":"{number}","value":"{state}"}}}"#,
        r#"{"route":"orders","key":"row:{number}","as":{"string":"{state}"}}"#,
        r#"{"route":"orders","key":"total","as":{"count":{}}}"#,
        r#"{"route":"orders","key":"news","as":{"list":{"value":"{number}","max":9}}}"#,
        r#"{"route":"orders","key":"{request/sub/id}","as":{"set":"{number}"}}"#,
    ];
    let store = bench.store(&projections).await;
    let store = &store;
    let own = NewRequest { payload: Payload::json(r#"{"sub":{"id":"roundtrip:{main}:id"}}"#), ..asked(3, 1) };
    admit(store, vec![asked(1, 1), asked(2, 1), own]).await;
    assert_eq!(store.counts().await.unwrap()[0].requests, 3, "stored, whatever becomes of what is shown");
    bench.check("GET requests", "mine");
    bench.check("LRANGE row:1 0 -1", "mine");
    bench.check("GET total", "none");
    bench.check("GET row:2", "queued");
    bench.check("LRANGE news 0 -1", "1\n2\n3");
    bench.check("SMEMBERS s2", "2");
    bench.check("TYPE roundtrip:{main}:id", "hash");
    let health = store.projection_health();
    // A write of all to the map, one string, three times to the number, and the store's own key.
    assert_eq!(health.left_out, 1 + 1 + 3 + 1, "{health:?}");
    bench.check("DEL requests row:1 row:2", "3");
    assert_eq!(store.project_again().await.unwrap(), 3);
    bench.check("HGETALL requests", "1\nqueued\n2\nqueued\n3\nqueued");
    bench.check("GET row:1", "queued");
    bench.check("GET row:2", "queued");
    bench.check("LLEN news", "3");
    let (_, why) = store.projection_health().last.unwrap();
    assert!(why.contains("the store's own"), "{why}");
}

/// A role that may write some keys alone: a request cannot name others, and cannot hold up the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_not_write_a_key_holds_nothing_up() {
    let bench = Bench::new();
    bench.check("ACL SETUSER relay on >word ~roundtrip:* ~s1 &* +@all", "OK");
    let url = bench.server.url("main").replace("redis://", "redis://relay:word@");
    let by_field = read(r#"{"route":"orders","key":"{request/sub/id}","as":{"set":"{number}"}}"#);
    let store = RedisStore::new(&url, OPTIONS).unwrap().with_projections(vec![by_field]).unwrap();
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    admit(&store, vec![asked(1, 1), asked(2, 1)]).await;
    assert_eq!(store.counts().await.unwrap()[0].requests, 2);
    bench.check("SMEMBERS s1", "1");
    bench.check("EXISTS s2", "0");
    let health = store.projection_health();
    assert_eq!((health.left_out, health.last.unwrap().0), (1, "s2".to_owned()));
}

/// A route and its first request come in one commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_with_its_route_is_shown() {
    let bench = Bench::new();
    let by_id = read(r#"{"route":"orders","key":"requests","as":{"set":"{number}"}}"#);
    let store = RedisStore::new(&bench.server.url("main"), OPTIONS).unwrap().with_projections(vec![by_id]).unwrap();
    let define = Define { route: route(), policy: policy() };
    let batch = vec![define.into(), Admit { cursor: None, requests: vec![asked(1, 1)] }.into()];
    assert!(store.apply(batch).await.unwrap().iter().all(Outcome::holds));
    bench.check("SMEMBERS requests", "1");
}

/// More requests than one page, and more writes than one call of the script.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_can_be_shown_again_page_by_page() {
    let bench = Bench::new();
    let projections = [
        r#"{"route":"orders","key":"requests","as":{"map":{"field":"{number}","value":"{request/sub/id}"}}}"#,
        r#"{"route":"orders","key":"e:{request/epoch}","as":{"set":"{number}"}}"#,
    ];
    let store = bench.store(&projections).await;
    admit(&store, (1..=700).map(|n| asked(n, n % 3)).collect()).await;
    bench.check("HLEN requests", "700");
    bench.check("SCARD e:0", "233");
    bench.check("DEL requests e:0 e:1 e:2", "4");
    assert_eq!(store.project_again().await.unwrap(), 700);
    bench.check("HLEN requests", "700");
    bench.check("HGET requests 700", "s700");
    bench.check("SCARD e:0", "233");
    let plain = RedisStore::new(&bench.server.url("main"), OPTIONS).unwrap();
    assert_eq!(plain.project_again().await.unwrap(), 0, "it shows nothing");
}

/// The server dies again and again: what is shown is what is stored, to the last item.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_shown_is_what_is_stored_when_the_server_is_killed() {
    let bench = Bench::new();
    let projections = || {
        vec![
            read(r#"{"route":"orders","key":"live","as":{"set":"{number}"}}"#),
            read(r#"{"route":"orders","key":"came","as":{"count":{}}}"#),
            read(
                r#"{"route":"orders","key":"ended","as":{"list":{"value":"{number}","max":1000}},"states":["ended"]}"#,
            ),
        ]
    };
    let open = || {
        RedisStore::new(&bench.server.url("main"), Options::default()).unwrap().with_projections(projections()).unwrap()
    };
    let intake = Arc::new(open());
    crate::sharing::nothing_is_lost(intake.clone(), Arc::new(open()), 200, 3, async || {
        let killed = bench.server.kill().unwrap();
        tokio::task::block_in_place(|| bench.server.wait_until_ready(killed)).unwrap();
    })
    .await;
    bench.check("EXISTS live", "0");
    bench.check("GET came", "200");
    let ended = bench.said("SORT ended");
    assert!(ended.lines().map(|line| line.parse::<u64>().unwrap()).eq(1..=200), "each once: {ended}");
    until_known(&*intake, Admit { cursor: None, requests: vec![request(500)] }.into()).await;
    bench.check("SCARD live", "1");
}

/// A node of a cluster is noticed however it is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_refused_in_plain_words() {
    let map = || vec![read(r#"{"route":"orders","key":"requests","as":{"set":"{id}"}}"#)];
    let cluster = RedisCluster::start().unwrap();
    let refused = RedisStore::new(&cluster.url("main"), OPTIONS).unwrap().with_projections(map()).err();
    assert_eq!(refused, Some(BadProjection::OnCluster));
    let one = cluster.url("main").replace("redis-cluster://", "redis://");
    let (first, name) = (one.split(',').next().unwrap(), "?name=main");
    let store = RedisStore::new(&format!("{first}{name}"), OPTIONS).unwrap().with_projections(map()).unwrap();
    let refused = store.start().await.unwrap_err().to_string();
    assert!(refused.contains("projections need one Redis server"), "{refused}");
}
