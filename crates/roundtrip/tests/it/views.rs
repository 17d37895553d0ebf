//! Views and notifications of a Postgres store under names of the user's choice, read as any
//! client reads them.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use roundtrip::clock::ManualClock;
use roundtrip::store::op::{Admit, Answer, Define, Effect, Grant, Lease, NewRequest, Outcome};
use roundtrip::store::policy::{Gate, RoutePolicy};
use roundtrip::store::projection::{Announcement, View};
use roundtrip::store::{PostgresStore, ReadExt, Store, StoreExt};
use roundtrip::testkit::bench::{OPTIONS, START};
use roundtrip::testkit::samples::*;
use roundtrip::words::{ClaimId, Payload, UnixMs};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::between::How;
use crate::postgres::{OnServer, PATIENCE, before, server};

const HAPPEN_MAX: Duration = Duration::from_secs(30);

/// A schema of a case's own.
struct Bench {
    schema: &'static str,
    client: Client,
}

impl Bench {
    async fn new(schema: &'static str) -> Bench {
        let (client, connection) = tokio_postgres::connect(&plain(schema), NoTls).await.unwrap();
        tokio::spawn(connection);
        Bench { schema, client }
    }

    fn of(&self, views: &[&str], announcements: &[&str]) -> PostgresStore {
        let views: Vec<View> = views.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
        let told: Vec<Announcement> = announcements.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
        let store = PostgresStore::new(&server().url(self.schema), OPTIONS).unwrap();
        store.with_clock(Arc::new(ManualClock::at(START))).with_views(views, told).unwrap()
    }

    async fn store(&self, views: &[&str], announcements: &[&str]) -> PostgresStore {
        let store = self.of(views, announcements);
        let policy = RoutePolicy { publish_on: Gate::Seen, ..policy() };
        store.apply_one(Define { route: route(), policy }).await.unwrap();
        store
    }

    /// The rows of a query as text, with null as `-`.
    async fn rows(&self, sql: &str) -> Vec<String> {
        let messages = self.client.simple_query(sql).await.unwrap();
        let rows = messages.iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|at| row.get(at).unwrap_or("-")).collect::<Vec<_>>().join(" | "))
            }
            _ => None,
        });
        rows.collect()
    }

    async fn check(&self, sql: &str, rows: &[&str]) {
        assert_eq!(self.rows(sql).await, rows, "{sql}");
    }
}

fn plain(schema: &str) -> String {
    server().url(schema).split('?').next().unwrap().to_owned()
}

fn asked(n: u64, payload: &'static str) -> NewRequest {
    NewRequest { payload: Payload::json(payload), place: None, ..final_request(n) }
}

async fn admit(store: &impl Store, requests: Vec<NewRequest>) {
    let outcome = store.apply_one(Admit { cursor: None, requests }).await.unwrap();
    assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
}

async fn take(store: &impl Store, claim: u64) -> Vec<Grant> {
    match store.apply_one(Lease { claim: ClaimId(claim), ..lease(1) }).await.unwrap() {
        Outcome::Applied(Effect::Leased(grants)) => grants,
        other => panic!("{other:?}"),
    }
}

const TYPED: &str = r#"{"route":"orders","name":"Decryption Requests","schema":"dashboard",
    "words":{"live":"pending","leased":"under_process","answered":"completed","dead":"failed"},
    "columns":[
        {"name":"number","from":"number"},{"name":"status","from":"state"},
        {"name":"amount","from":"request/order/amount","type":"numeric"},
        {"name":"count","from":"request/count","type":"integer"},
        {"name":"ratio","from":"request/ratio","type":"float"},
        {"name":"urgent","from":"request/urgent","type":"boolean"},
        {"name":"at","from":"request/at","type":"timestamp"},
        {"name":"since","from":"request/since","type":"milliseconds"},
        {"name":"who","from":"request/who"},
        {"name":"handle","from":"request/handle","type":"bytes"},
        {"name":"tags","from":"request/tags","type":"json"},
        {"name":"admitted","from":"admitted_at"},{"name":"expires","from":"deadline_at"},
        {"name":"held_until","from":"leased_until"},
        {"name":"cid","from":"response/cid"}]}"#;

const VIEW: &str = r#"dashboard."Decryption Requests""#;

#[tokio::test]
async fn a_view_has_typed_columns_and_says_what_is_so() {
    let bench = Bench::new("typed").await;
    let store = bench.store(&[TYPED], &[]).await;
    let whole = r#"{"order":{"amount":123456789012345678901234567890},"count":7,"ratio":1.5,"urgent":true,
        "at":"2026-11-16T10:00:00Z","since":1790000000000,"who":"o'neil","handle":"0x00ff","tags":["a",1]}"#;
    let deadline = Some(UnixMs(START.0 + 60_000).into());
    admit(&store, vec![NewRequest { deadline, ..asked(1, whole) }]).await;
    // What is not what it should be is null, and hides nobody else.
    let wrong = r#"{"order":{"amount":"much"},"count":1.5,"ratio":"x","urgent":"maybe","at":"soon","since":"x","handle":"0xz"}"#;
    let raw = NewRequest { payload: Payload::raw(&[0xff, 0x00][..]), ..asked(4, "") };
    admit(&store, vec![asked(2, wrong), asked(3, "{"), raw]).await;
    bench.client.batch_execute("SET timezone = 'UTC'").await.unwrap();
    let columns = "number, status, amount, count, ratio, urgent, at, since, who, handle, tags, expires - admitted";
    let nulls = "- | - | - | - | - | - | - | - | - | -";
    bench
        .check(
            &format!("SELECT {columns} FROM {VIEW} ORDER BY number"),
            &[
                "1 | pending | 123456789012345678901234567890 | 7 | 1.5 | t | 2026-11-16 10:00:00+00 | \
                 2026-09-21 14:13:20+00 | o'neil | \\x00ff | [\"a\", 1] | 00:01:00",
                &format!("2 | pending | {nulls}"),
                &format!("3 | pending | {nulls}"),
                &format!("4 | pending | {nulls}"),
            ],
        )
        .await;
    let types = "SELECT string_agg(data_type, ', ' ORDER BY ordinal_position) FROM information_schema.columns \
                 WHERE table_schema = 'dashboard' AND table_name = 'Decryption Requests'";
    let timestamp = "timestamp with time zone";
    bench
        .check(
            types,
            &[&format!(
                "bigint, text, numeric, bigint, double precision, boolean, {timestamp}, {timestamp}, text, bytea, jsonb, \
                 {timestamp}, {timestamp}, {timestamp}, text"
            )],
        )
        .await;
    let grants = take(&store, 1).await;
    let held = format!("SELECT status, held_until - admitted FROM {VIEW} WHERE number = 1");
    bench.check(&held, &["under_process | 00:01:00"]).await;
    let answer = Answer { response: Payload::json(r#"{"cid":"bafy"}"#), ..answer(&grants[0]) };
    store.apply_one(answer).await.unwrap();
    bench
        .check(&format!("SELECT status, cid, held_until FROM {VIEW} WHERE number = 1"), &["completed | bafy | -"])
        .await;
    bench
        .check(&format!("SELECT status, count(*) FROM {VIEW} GROUP BY 1 ORDER BY 1"), &["completed | 1", "pending | 3"])
        .await;
}

#[tokio::test]
async fn views_follow_what_is_declared_and_leave_others_alone() {
    let bench = Bench::new("declared").await;
    let view = |name: &str, column: &str| {
        format!(r#"{{"route":"orders","name":"{name}","columns":[{{"name":"a","from":"{column}"}}]}}"#)
    };
    let (one, two, other) = (view("one", "id"), view("two", "id"), view("two", "request/n"));
    let store = bench.store(&[&one, &two], &[]).await;
    admit(&store, vec![asked(1, r#"{"n":"x"}"#)]).await;
    bench.check("SELECT a FROM declared.two", &[&id(1).to_string()]).await;
    let oid = "SELECT 'declared.one'::regclass::oid";
    let before = bench.rows(oid).await;
    bench
        .client
        .batch_execute("CREATE VIEW declared.mine AS SELECT 1; CREATE SCHEMA mine; CREATE TABLE mine.one (a int)")
        .await
        .unwrap();
    // Changed, unchanged.
    bench.of(&[&one, &other], &[]).start().await.unwrap();
    bench.check("SELECT a FROM declared.two", &["x"]).await;
    assert_eq!(bench.rows(oid).await, before, "what is as declared is not touched");
    // A store that was told nothing of views leaves them.
    PostgresStore::new(&server().url("declared"), OPTIONS).unwrap().start().await.unwrap();
    let there = "SELECT relname FROM pg_class WHERE relkind = 'v' AND relnamespace = 'declared'::regnamespace \
                 AND relname <> 'request' ORDER BY 1";
    bench.check(there, &["mine", "one", "two"]).await;
    bench.of(&[&other], &[]).start().await.unwrap();
    bench.check(there, &["mine", "two"]).await;
    // What is somebody else's is neither replaced nor dropped.
    let taken = view("mine", "id");
    let refused = bench.of(&[&taken], &[]).start().await.unwrap_err().to_string();
    assert!(refused.contains("declared.mine is there and is no view of this store"), "{refused}");
    bench.check(there, &["mine", "two"]).await;
    let table = r#"{"route":"orders","name":"one","schema":"mine","columns":[{"name":"a","from":"id"}]}"#;
    let refused = bench.of(&[table], &[]).start().await.unwrap_err().to_string();
    assert!(refused.contains("mine.one is there"), "{refused}");
    bench.of(&[], &[]).start().await.unwrap();
    bench.check(there, &["mine"]).await;
    assert_eq!(store.counts().await.unwrap()[0].requests, 1);
}

/// A role that creates nothing is enough while the views are as declared.
#[tokio::test]
async fn views_that_are_there_need_no_rights_to_create() {
    let bench = Bench::new("granted").await;
    let view = r#"{"route":"orders","name":"v","columns":[{"name":"a","from":"request/n","type":"integer"}]}"#;
    let store = bench.store(&[view], &[]).await;
    admit(&store, vec![asked(1, r#"{"n":5}"#)]).await;
    let grants = "CREATE ROLE user_granted LOGIN; CREATE ROLE reader_granted LOGIN; \
                  GRANT USAGE ON SCHEMA granted TO user_granted, reader_granted; \
                  GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA granted TO user_granted; \
                  GRANT SELECT ON granted.v TO reader_granted";
    bench.client.batch_execute(grants).await.unwrap();
    let url = server().url("granted").replace("postgres@", "user_granted@");
    let views = vec![serde_json::from_str(view).unwrap()];
    let user = PostgresStore::new(&url, OPTIONS).unwrap().with_views(views, Vec::new()).unwrap();
    admit(&user, vec![asked(2, r#"{"n":6}"#)]).await;
    // Whoever may read the view need not read the tables.
    let reader = plain("granted").replace("postgres@", "reader_granted@");
    let (reader, connection) = tokio_postgres::connect(&reader, NoTls).await.unwrap();
    tokio::spawn(connection);
    let rows = reader.query("SELECT a FROM granted.v ORDER BY a", &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), [5, 6]);
    assert!(reader.query("SELECT * FROM granted.live", &[]).await.is_err());
}

/// What is heard by whoever listens so, for as long as the client is there.
async fn listening(schema: &str, listen: &str) -> (Client, tokio::sync::mpsc::Receiver<String>) {
    let (client, mut connection) = tokio_postgres::connect(&plain(schema), NoTls).await.unwrap();
    let (heard, hears) = tokio::sync::mpsc::channel(100);
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(told) = message {
                heard.send(format!("{}: {}", told.channel(), told.payload())).await.unwrap();
            }
        }
    });
    client.batch_execute(listen).await.unwrap();
    (client, hears)
}

#[tokio::test]
async fn whoever_listens_is_told_of_each_change() {
    let bench = Bench::new("told").await;
    let told = [
        r#"{"route":"orders","channel":"Decryption Available","payload":"{number} {state}","states":["queued","ended"],
            "words":{"queued":"pending"}}"#,
        r#"{"route":"orders","channel":"wake","states":["ready"]}"#,
    ];
    let store = bench.store(&[], &told).await;
    let (_client, mut hears) = listening("told", "LISTEN \"Decryption Available\"; LISTEN wake").await;
    let mut next = async || tokio::time::timeout(HAPPEN_MAX, hears.recv()).await.unwrap().unwrap();
    admit(&store, vec![asked(1, "{}"), asked(2, "{}")]).await;
    assert_eq!(next().await, "Decryption Available: 1 pending");
    assert_eq!(next().await, "Decryption Available: 2 pending");
    let grants = take(&store, 1).await;
    store.apply_one(answer(&grants[0])).await.unwrap();
    assert_eq!(next().await, "wake: ");
    store.apply_one(mend(2, roundtrip::store::op::Remedy::Cancel)).await.unwrap();
    assert_eq!(next().await, "Decryption Available: 2 withdrawn");
}

/// The connection that announces goes silent where this is said; what comes then is announced by another.
async fn announcements_go_on_after_a_silence(schema: &str, says: &'static [u8]) {
    let (place, between) = before(&OnServer::at(server().url(schema)), says).await;
    // Schemas of one database share their channels.
    let told = format!(r#"{{"route":"orders","channel":"of {schema}","payload":"{{number}}","states":["queued"]}}"#);
    let store = PostgresStore::new(&place.0, OPTIONS).unwrap().with_patience(PATIENCE);
    let store = store.with_views(Vec::new(), vec![serde_json::from_str(&told).unwrap()]).unwrap();
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    let (_client, mut hears) = listening(schema, &format!("LISTEN \"of {schema}\"")).await;
    between.meddle(How::Silence);
    admit(&store, vec![asked(1, "{}")]).await;
    between.happens(&between.meddling.left).await;
    admit(&store, vec![asked(2, "{}")]).await;
    // The first was on its way, or still to be told.
    for n in 1..=2 {
        let told = tokio::time::timeout(HAPPEN_MAX, hears.recv()).await.unwrap().unwrap();
        assert_eq!(told, format!("of {schema}: {n}"));
    }
}

#[tokio::test]
async fn announcements_go_on_after_a_connection_that_was_silent_from_the_first() {
    announcements_go_on_after_a_silence("told_late", b"told(channel, text)").await;
}

#[tokio::test]
async fn announcements_go_on_after_one_that_nobody_answered() {
    announcements_go_on_after_a_silence("told_again", b"of told_again").await;
}
