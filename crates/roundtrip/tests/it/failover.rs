//! A failover that loses acknowledged writes: a replica that had not heard of them takes over.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use roundtrip::sender::{AttemptKind, LaneStatus};
use roundtrip::store::journal::Event;
use roundtrip::store::op::{
    Admission, Admit, Define, Effect, LaneOrder, Lead, NewRequest, Op, Order, Outcome, Seat, Stale,
};
use roundtrip::store::policy::{Horizon, RoutePolicy};
use roundtrip::store::query::LaneView;
use roundtrip::store::{Options, ReadExt, RedisStore, Store, StoreExt};
use roundtrip::testkit::samples::*;
use roundtrip::testkit::servers::RedisServer;
use roundtrip::words::{Nonce, Token};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::sharing::{HAPPEN_MAX, until_known};

/// An address that leads to a server, until it leads to another or to none.
struct Way {
    address: String,
    to: Arc<Mutex<Leads>>,
}

#[derive(Default)]
struct Leads {
    to: Option<String>,
    /// What is connected now.
    open: Vec<AbortHandle>,
}

impl Way {
    async fn to(server: &RedisServer) -> Way {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let leads = Leads { to: Some(server.address()), open: Vec::new() };
        let way = Way { address: listener.local_addr().unwrap().to_string(), to: Arc::new(Mutex::new(leads)) };
        let to = way.to.clone();
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let mut leads = to.lock().unwrap();
                let Some(address) = leads.to.clone() else { continue };
                let carry = tokio::spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(address).await {
                        // Whoever ends it is none of its business.
                        let _ended = tokio::io::copy_bidirectional(&mut from, &mut server).await;
                    }
                });
                leads.open.push(carry.abort_handle());
            }
        });
        way
    }

    /// Cuts everything that is connected; whoever comes next is led there.
    fn lead(&self, to: Option<&RedisServer>) {
        let mut leads = self.to.lock().unwrap();
        leads.to = to.map(RedisServer::address);
        leads.open.drain(..).for_each(|carry| carry.abort());
    }
}

/// Waits until a server says this when it is asked that.
fn wait_until_says(server: &RedisServer, command: &[&str], words: &str) {
    let started = Instant::now();
    while !server.said(command).is_ok_and(|said| said.contains(words)) {
        assert!(started.elapsed() < HAPPEN_MAX, "{command:?} does not say {words:?}");
        std::thread::yield_now();
    }
}

/// The lane, as soon as the server can be asked.
async fn lane_of(store: &dyn Store) -> LaneView {
    let started = Instant::now();
    loop {
        match store.lane(lane()).await {
            Ok(view) => return view.unwrap(),
            Err(error) => assert!(error.is_retryable() && started.elapsed() < HAPPEN_MAX, "{error}"),
        }
        tokio::task::yield_now().await;
    }
}

async fn led(store: &dyn Store) -> Token {
    let lead = Lead { seat: Seat::Lane(lane()), holder: holder(), ttl_ms: 3_600_000 };
    match until_known(store, lead.into()).await {
        Effect::Led(token, _) => token,
        other => panic!("{other:?}"),
    }
}

/// A listener that reads a chain of one request to a block from where its cursor says.
async fn listen(store: &dyn Store, to: u64) -> Vec<Admission> {
    let cursor = store.cursor(listener()).await.unwrap();
    let from = cursor.as_ref().map_or(0, |cursor| cursor.at.height.0);
    let requests: Vec<NewRequest> = (from + 1..=to).map(final_request).collect();
    match until_known(store, Op::Admit(admit_at(cursor, to, requests))).await {
        Effect::Admitted(admissions, _) => admissions,
        other => panic!("{other:?}"),
    }
}

/// Answers everything that waits, and puts all of it on slots of the lane.
async fn work_and_assign(store: &dyn Store, owner: Token, first: u64) -> u64 {
    let Effect::Leased(grants) = until_known(store, lease(10).into()).await else { panic!("a lease brings grants") };
    for grant in &grants {
        until_known(store, answer(grant).into()).await;
    }
    let ready = store.ready(destination(), 10).await.unwrap();
    let parcels = ready.iter().enumerate().map(|(at, ready)| {
        let n = first + at as u64 + 1;
        roundtrip::store::op::NewParcel::of(std::slice::from_ref(ready), signed(n, AttemptKind::Carry))
    });
    let parcels: Vec<_> = parcels.collect();
    let count = parcels.len() as u64;
    until_known(store, assign(owner, first, parcels).into()).await;
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_that_a_failover_lost_are_noticed_and_made_up_for() {
    let (primary, replica) =
        (RedisServer::start(RedisServer::SYNCED).unwrap(), RedisServer::start(RedisServer::SYNCED).unwrap());
    let (way, behind) = (Way::to(&primary).await, Way::to(&primary).await);
    let (host, port) = behind.address.split_once(':').unwrap();
    replica.said(&["REPLICAOF", host, port]).unwrap();
    tokio::task::block_in_place(|| wait_until_says(&replica, &["INFO", "replication"], "master_link_status:up"));
    let open = || {
        RedisStore::new(&format!("redis://{}?name=failover", way.address), Options::default()).unwrap().with_far_back(0)
    };
    let (store, bystander) = (open(), open());
    let policy = RoutePolicy { horizon: Horizon::Forever, ..policy() };
    store.apply_one(Define { route: route(), policy }).await.unwrap();
    let order = |order| LaneOrder { lane: lane(), order };
    let opened = Order::Open { destination: destination(), window: 16, first: Nonce(0) };
    store.apply_one(order(opened)).await.unwrap();
    let owner = led(&store).await;
    assert_eq!(listen(&store, 3).await.len(), 3);
    assert_eq!(work_and_assign(&store, owner, 0).await, 3);
    bystander.start().await.unwrap();
    // So much the replica has; and no more.
    tokio::task::block_in_place(|| assert_eq!(primary.said(&["WAIT", "1", "10000"]).unwrap(), "1"));
    behind.lead(None);
    assert_eq!(listen(&store, 6).await.len(), 3);
    assert_eq!(work_and_assign(&store, owner, 3).await, 3, "the outside has seen these");
    primary.kill().unwrap();
    assert_eq!(replica.said(&["REPLICAOF", "NO", "ONE"]).unwrap(), "OK");
    way.lead(Some(&replica));

    // Whoever wrote what is lost notices it, whatever it does next; nothing goes out from then on.
    until_known(&store, Op::Rescue { limit: 1 }).await;
    let view = lane_of(&store).await;
    assert_eq!((view.status, view.next), (LaneStatus::Stopped, Nonce(3)));
    let empty = vec![parcel(&[], signed(99, AttemptKind::Cancel))];
    let refused = store.apply_one(assign(owner, 3, empty)).await.unwrap();
    assert_eq!(refused, Outcome::Stale(Stale::Lane(LaneStatus::Stopped)));
    // One that knew of nothing that is lost sees the same, and tells nothing of its own.
    assert_eq!(lane_of(&bystander).await.status, LaneStatus::Stopped);
    let told = bystander.journal(1, 1000).await.unwrap().entries;
    assert_eq!(told.iter().filter(|entry| entry.event == Event::RolledBack).count(), 1);

    // The listener reads again from where the cursor was committed: all that was lost is new.
    let again = listen(&store, 7).await;
    assert_eq!(again.iter().filter(|admission| matches!(admission, Admission::New { .. })).count(), 4, "{again:?}");
    // The outside tells that it has six; until that is matched nothing is sent, and then all goes on.
    for order in [Order::Observe { outside_next: Nonce(6) }, Order::Reconcile { outside_next: Nonce(6) }] {
        until_known(&store, LaneOrder { lane: lane(), order }.into()).await;
    }
    assert_eq!(lane_of(&store).await.status, LaneStatus::Active);
    let owner = led(&store).await;
    assert_eq!(work_and_assign(&store, owner, 6).await, 4);
    assert_eq!(lane_of(&store).await.next, Nonce(10));
    // Whoever admits besides the chain is asked again, and is not taken for known.
    let late = Admit { cursor: None, requests: vec![final_request(5)] };
    assert!(matches!(store.apply_one(late).await.unwrap(), Outcome::Duplicate(_)), "the chain brought it already");
}
