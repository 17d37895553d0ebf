//! A still life: a store as hours of work leave it, painted by its own operations at times of
//! the past, so that every page has something to show and nothing moves while it is looked at.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use alloy::primitives::{Address, Bytes, TxKind};
use roundtrip::clock::{Clock, ManualClock};
use roundtrip::inbox::Standing;
use roundtrip::listener::{Cursor, request_with_id};
use roundtrip::sender::{AttemptKind, Block, ParcelStage, SignedAttempt};
use roundtrip::store::op::{
    Admit, Amend, Amendment, Answer, Assign, Attempt, ChainTick, CursorMove, Define, Effect, Fail, Grant, Judgement,
    LaneOrder, Lead, Lease, NewParcel, NewRequest, Op, Order, Outcome, Pause, Reject, Seat, Settle, Sight, Verdict,
};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::ReadyDelivery;
use roundtrip::store::{Options, ReadExt, SqliteStore, Store, StoreExt};
use roundtrip::words::{
    AttemptHash, ClaimId, Destination, ErrorClass, ErrorNote, Height, HolderName, LaneName, ListenerName, Nonce,
    OriginName, Payload, Place, Position, RequestId, RouteName, Token, UnixMs, WorkerName,
};
use roundtrip_evm::ContractCall;
use roundtrip_evm::sender::Calls;
use roundtrip_evm::testkit::account::{Call, Fees, dev_key};
use serde_json::json;

const CONTRACT: Address = Address::repeat_byte(0x5a);
const FUNCTION: &str = "respond(uint256 id, uint256 price, bytes proof)";
const GWEI: u128 = 1_000_000_000;
const HOUR_MS: u64 = 3_600_000;
/// Answers that are kept for whoever asks.
const KEPT: usize = 18;
/// One round of work.
const ROUND_MS: u64 = 20_000;

/// The configuration of a program that shows it.
pub(crate) fn config() -> String {
    format!(
        r#"
[store]
url = "sqlite:store.db"

[api.auth]
secret = {{ env = "API_SECRET" }}

[chains.base]
chain_id = 8453
urls = ["http://127.0.0.1:9"]

[lanes.north]
signer = {{ key = {{ env = "KEY" }} }}
[lanes.south]
signer = {{ key = {{ env = "KEY" }} }}
[lanes.east]
signer = {{ key = {{ env = "KEY" }} }}

[routes.prices]
to = "oracle"
identity = ["/args/id"]
lease = "2h"

[[routes.prices.events]]
chain = "base"
event = "PriceRequested(uint256 indexed id, string pair)"
addresses = ["{CONTRACT}"]

[destinations.oracle.transactions]
chain = "base"
lanes = ["north", "south", "east"]
contract = "{CONTRACT}"
function = "{FUNCTION}"
arguments = {{ id = "/request/args/id", price = "/response/price", proof = "/response/proof" }}
gas = 150000

[routes.thumbnails]
to = "gallery"
lease = "2h"

[routes.reports]
to = "gallery"

[destinations.gallery.webhook]
url = "http://127.0.0.1:9/"
secret = {{ env = "API_SECRET" }}

[routes.lookups]
to = "caller"

[destinations.caller.keep]
at_least = "1d"
"#
    )
}

/// What a test needs to know of it.
pub(crate) struct Still {
    /// A request whose whole story is in the journal.
    pub(crate) settled: RequestId,
    /// The transaction that carried its answer.
    pub(crate) transaction: String,
    /// A dead letter whose worker failed.
    pub(crate) dead: RequestId,
}

struct Painter {
    store: SqliteStore,
    clock: ManualClock,
    call: ContractCall,
    made: u64,
    height: u64,
    cursor: Option<Cursor>,
    feed: Token,
    /// The lanes, with the token of each and its next slot.
    lanes: Vec<(LaneName, Token, u64)>,
}

fn route(name: &str) -> RouteName {
    RouteName::new(name).unwrap()
}

/// Whose turn it is, of so many.
fn turn(n: u64, of: u64) -> usize {
    usize::try_from(n % of).unwrap()
}

fn position(height: u64) -> Position {
    Position { height: Height(height), hash: RequestId::of(&[b"block", &height.to_le_bytes()]).0 }
}

impl Painter {
    async fn apply(&self, op: impl Into<Op>) -> Effect {
        match self.store.apply_one(op.into()).await.unwrap() {
            Outcome::Applied(effect) => effect,
            other => panic!("{other:?}"),
        }
    }

    async fn each(&self, ops: Vec<Op>) {
        for outcome in self.store.apply(ops).await.unwrap() {
            assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
        }
    }

    fn price(&mut self) -> NewRequest {
        self.made += 1;
        let n = self.made;
        let pair = ["ETH/USD", "BTC/USD", "SOL/USD", "ETH/EUR"][turn(n, 4)];
        let payload = json!({
            "address": CONTRACT, "event": "PriceRequested", "block": self.height,
            "args": {"id": n.to_string(), "pair": pair},
        });
        let id = RequestId::of(&[b"price", &n.to_le_bytes()]);
        let trace = format!("00-{:032x}-{:016x}-01", u128::from(n) * 0x9e37_79b9_7f4a_7c15, n);
        NewRequest {
            place: Some(Place { origin: OriginName::new("base").unwrap(), height: Height(self.height) }),
            standing: Standing::Seen,
            trace: Some(trace.into_boxed_str()),
            ..request_with_id(&route("prices"), id, Payload::json(payload.to_string()))
        }
    }

    fn other(&mut self, name: &str, payload: serde_json::Value) -> NewRequest {
        self.made += 1;
        request_with_id(
            &route(name),
            RequestId::of(&[name.as_bytes(), &self.made.to_le_bytes()]),
            Payload::json(payload.to_string()),
        )
    }

    async fn lease(&self, name: &str, worker: &str, max: usize) -> Vec<Grant> {
        let claim = ClaimId(fastrand::u64(..));
        let worker = WorkerName::new(worker).unwrap();
        match self.apply(Lease { route: route(name), worker, max, claim, lease_ms: Some(2 * HOUR_MS) }).await {
            Effect::Leased(grants) => grants,
            other => panic!("{other:?}"),
        }
    }

    fn answer(grant: &Grant) -> Op {
        let price = 300_000 + u64::from(grant.id.0[0]) * 17;
        let response = json!({"price": price.to_string(), "proof": format!("0x{}", &grant.id.to_string()[..32])});
        let response = Payload::json(response.to_string());
        Answer { id: grant.id, token: grant.token, response, follow_ups: Vec::new(), items: Vec::new() }.into()
    }

    /// Signed bytes that carry an answer, dearer from try to try.
    fn signed(&self, lane: usize, nonce: u64, ready: &ReadyDelivery, bumps: u32) -> SignedAttempt {
        let input: Bytes = self.call.call(std::slice::from_ref(ready)).unwrap().data;
        let max_fee = 18 * GWEI * 11u128.pow(bumps) / 10u128.pow(bumps);
        let fees = Fees { max_fee, tip: Some(GWEI * u128::from(bumps + 1)) };
        let call = Call { chain_id: 8453, nonce, to: TxKind::Call(CONTRACT), input, gas_limit: 150_000, fees };
        let raw = call.sign(&dev_key(lane)).unwrap();
        let (hash, bytes) = (AttemptHash(raw.hash.0), raw.bytes.0);
        SignedAttempt { hash, kind: AttemptKind::Carry, bytes, fee: Some(max_fee) }
    }

    /// Everything that is ready, with what was asked.
    async fn ready(&self, limit: usize) -> Vec<ReadyDelivery> {
        let mut ready = self.store.ready(Destination::new("oracle").unwrap(), limit).await.unwrap();
        for one in &mut ready {
            let found = self.store.get(one.id).await.unwrap();
            if let Some(roundtrip::store::query::Found::Live(_, bodies)) = found {
                one.request = Some(bodies.payload);
            }
        }
        ready
    }

    /// Puts what is ready onto a lane, each alone; their slots and attempts.
    async fn assign(&mut self, lane: usize, limit: usize) -> Vec<(u64, SignedAttempt, RequestId)> {
        let ready = self.ready(limit).await;
        let (name, owner, first) = self.lanes[lane].clone();
        let slots: Vec<(u64, SignedAttempt, RequestId)> =
            (first..).zip(&ready).map(|(nonce, one)| (nonce, self.signed(lane, nonce, one, 0), one.id)).collect();
        let parcels: Vec<NewParcel> = ready
            .iter()
            .zip(&slots)
            .map(|(one, (_, attempt, _))| NewParcel::of(std::slice::from_ref(one), attempt.clone()))
            .collect();
        if !parcels.is_empty() {
            let count = parcels.len();
            let done = self.apply(Assign { lane: name, owner, first: Nonce(first), parcels }).await;
            assert_eq!(done, Effect::Assigned(count, None));
        }
        self.lanes[lane].2 += slots.len() as u64;
        slots
    }

    fn sight(&self, lane: usize, slot: &(u64, SignedAttempt, RequestId), from: ParcelStage, to: u8) -> Op {
        let (name, owner, _) = self.lanes[lane].clone();
        let block = Block { attempt: slot.1.hash, at: position(self.height) };
        let sight = match to {
            0 => Sight::Included(block),
            1 => Sight::Confirmed(block),
            _ => Sight::Final(block, Judgement::Done),
        };
        Settle { lane: name, owner, nonce: Nonce(slot.0), expected: from, sight }.into()
    }

    /// One round of prices, from the chain and back.
    async fn round(&mut self, n: u64) -> Vec<(u64, SignedAttempt, RequestId)> {
        let count = 5 + (n * 7 % 11) / 2 + if n % 40 > 30 { 6 } else { 0 };
        self.height += 2;
        let requests: Vec<NewRequest> = (0..count).map(|_| self.price()).collect();
        let occurrences: Vec<_> = requests.iter().map(|request| request.occurrence).collect();
        let listener = ListenerName::new("prices@base").unwrap();
        let cursor = CursorMove { listener, expected: self.cursor, next: position(self.height - 4) };
        match self.apply(Admit { cursor: Some(cursor), requests }).await {
            Effect::Admitted(_, cursor) => self.cursor = cursor,
            other => panic!("{other:?}"),
        }
        self.clock.advance_ms(150);
        let worker = ["pricer-1", "pricer-2"][turn(n, 2)];
        let grants = self.lease("prices", worker, 64).await;
        self.clock.advance_ms(250 + n * 37 % 300);
        self.each(grants.iter().map(Self::answer).collect()).await;
        self.clock.advance_ms(2_000);
        let finalize = |occurrence| Amend { lead: self.feed, change: Amendment::Finalize { occurrence } }.into();
        self.each(occurrences.into_iter().map(finalize).collect()).await;
        self.clock.advance_ms(120);
        let lane = turn(n, 2);
        let slots = self.assign(lane, 64).await;
        self.clock.advance_ms(2_100);
        self.height += 1;
        self.each(slots.iter().map(|slot| self.sight(lane, slot, ParcelStage::Assigned, 0)).collect()).await;
        self.clock.advance_ms(1_500 + n * 131 % 2_500);
        self.each(slots.iter().map(|slot| self.sight(lane, slot, ParcelStage::Included, 1)).collect()).await;
        self.clock.advance_ms(3_000);
        self.each(slots.iter().map(|slot| self.sight(lane, slot, ParcelStage::Confirmed, 2)).collect()).await;
        slots
    }

    async fn die(&mut self, name: &str, count: usize, class: ErrorClass, error: impl Fn(usize) -> String) -> RequestId {
        let requests =
            (0..count).map(|n| self.other(name, json!({"image": format!("cat-{n}.png"), "width": 320}))).collect();
        self.apply(Admit { cursor: None, requests }).await;
        self.clock.advance_ms(900);
        let grants = self.lease(name, "encoder-7", count).await;
        let fail = |(n, grant): (usize, &Grant)| {
            let error = ErrorNote::new(class, &error(n));
            Fail { id: grant.id, token: grant.token, error, verdict: Verdict::Dead { response: None } }.into()
        };
        self.each(grants.iter().enumerate().map(fail).collect()).await;
        grants[0].id
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

/// Paints it into this folder: so many rounds of 20 s, which end now.
pub(crate) async fn paint(folder: &Path, rounds: u64) -> Still {
    let clock = ManualClock::at(UnixMs(now() - rounds * ROUND_MS - 30_000));
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let store = SqliteStore::open(folder.join("store.db"), shared, Options::default()).unwrap();
    let call = ContractCall::one(CONTRACT, FUNCTION).unwrap();
    let arguments = json!({"id": "/request/args/id", "price": "/response/price", "proof": "/response/proof"});
    let call = call.with_arguments(&arguments).unwrap();
    let none = Token { epoch: 0, count: 0 };
    let mut painter =
        Painter { store, clock, call, made: 0, height: 21_400_000, cursor: None, feed: none, lanes: Vec::new() };
    open(&mut painter).await;
    keep(&mut painter).await;
    let mut last = Vec::new();
    for n in 0..rounds {
        let start = painter.clock.now().0;
        last = painter.round(n).await;
        painter.clock.set(UnixMs(start + ROUND_MS));
    }
    let told = ChainTick {
        origin: OriginName::new("base").unwrap(),
        height: Height(painter.height),
        at: UnixMs(painter.clock.now().0 - 1_900),
    };
    painter.apply(told).await;
    let dead = leave(&mut painter).await;
    painter.store.close().await.unwrap();
    let (_, attempt, settled) = last.swap_remove(0);
    Still { settled, transaction: format!("0x{}", attempt.hash), dead }
}

async fn open(painter: &mut Painter) {
    let policy = |to: &str| RoutePolicy { destination: Some(Destination::new(to).unwrap()), ..RoutePolicy::default() };
    let routes = [("prices", "oracle"), ("thumbnails", "gallery"), ("reports", "gallery"), ("lookups", "caller")];
    for (name, to) in routes {
        painter.apply(Define { route: route(name), policy: policy(to) }).await;
    }
    let holder = HolderName::new("sender-oracle-5f2c91d0").unwrap();
    let hold = |seat| Lead { seat, holder: holder.clone(), ttl_ms: 24 * HOUR_MS };
    let feed = Seat::Feed(route("prices"), OriginName::new("base").unwrap());
    let Effect::Led(token, _) = painter.apply(hold(feed)).await else { panic!("a seat is led") };
    painter.feed = token;
    for (name, first) in [("north", 4_180), ("south", 977), ("east", 12)] {
        let lane = LaneName::new(name).unwrap();
        let destination = Destination::new("oracle").unwrap();
        let order = Order::Open { destination, window: 64, first: Nonce(first) };
        // As a sender does: what the account did before is on the chain, and final.
        for order in [order, Order::Settled { below: Nonce(first) }] {
            painter.apply(LaneOrder { lane: lane.clone(), order }).await;
        }
        let Effect::Led(token, _) = painter.apply(hold(Seat::Lane(lane.clone()))).await else {
            panic!("a seat is led")
        };
        painter.lanes.push((lane, token, first));
    }
}

/// Answers that are kept for whoever asks, since before all that follows.
async fn keep(painter: &mut Painter) {
    let requests = (0..KEPT).map(|n| painter.other("lookups", json!({"name": format!("peer-{n}")}))).collect();
    painter.apply(Admit { cursor: None, requests }).await;
    let grants = painter.lease("lookups", "resolver-1", KEPT).await;
    painter.each(grants.iter().map(Painter::answer).collect()).await;
}

/// What is under way, and what went wrong.
async fn leave(painter: &mut Painter) -> RequestId {
    // A window with every kind of slot: 3 confirmed, 4 in a block, 3 passed over, 5 in flight, one of them bumped.
    let occurrences = leave_prices(painter, 26).await;
    let finalize = |occurrence| Amend { lead: painter.feed, change: Amendment::Finalize { occurrence } }.into();
    painter.each(occurrences.into_iter().map(finalize).collect()).await;
    let ready = painter.ready(2).await;
    let (name, owner, _) = painter.lanes[0].clone();
    for one in &ready {
        let error = ErrorNote::new(ErrorClass::Fatal, "execution reverted: StalePrice(1731866400)");
        let (lane, id, answer) = (name.clone(), one.id, one.answer);
        painter.apply(Reject { lane, owner, id, answer, error, instead: None }).await;
    }
    let mined = painter.assign(0, 7).await;
    painter.clock.advance_ms(1_000);
    painter.each(mined.iter().map(|slot| painter.sight(0, slot, ParcelStage::Assigned, 0)).collect()).await;
    painter.each(mined[..3].iter().map(|slot| painter.sight(0, slot, ParcelStage::Included, 1)).collect()).await;
    let outside_next = Nonce(painter.lanes[0].2 + 3);
    for order in [Order::Observe { outside_next }, Order::Reconcile { outside_next }] {
        painter.apply(LaneOrder { lane: name.clone(), order }).await;
    }
    painter.lanes[0].2 += 3;
    let dearer = painter.ready(1).await;
    let flying = painter.assign(0, 5).await;
    let again = painter.signed(0, flying[0].0, &dearer[0], 1);
    painter.apply(Attempt { lane: name, owner, nonce: Nonce(flying[0].0), attempt: again }).await;
    let rest = painter.assign(1, 6).await;
    painter.each(rest[..2].iter().map(|slot| painter.sight(1, slot, ParcelStage::Assigned, 0)).collect()).await;
    let pause = Order::Pause { reason: "key rotation, back on Thursday".into() };
    painter.apply(LaneOrder { lane: painter.lanes[1].0.clone(), order: pause }).await;
    let unfunded =
        Order::Unfunded { reason: "insufficient funds for gas * price + value: balance 1200000000000".into() };
    painter.apply(LaneOrder { lane: painter.lanes[2].0.clone(), order: unfunded }).await;

    painter
        .die("thumbnails", 23, ErrorClass::Fatal, |n| format!("the encoder answered 503 after {} ms", 900 + n))
        .await;
    let dead = painter.die("thumbnails", 4, ErrorClass::Fatal, |n| format!("no such image: cat-{n}.png")).await;
    painter.die("reports", 1, ErrorClass::Crash, |_| "its worker went silent 5 times".to_owned()).await;
    painter.apply(Pause { route: route("reports"), paused: true }).await;
    let queued =
        (0..180).map(|n| painter.other("thumbnails", json!({"image": format!("dog-{n}.png"), "width": 320}))).collect();
    painter.apply(Admit { cursor: None, requests: queued }).await;
    painter.lease("thumbnails", "encoder-7", 5).await;
    let later = |request: NewRequest| NewRequest { due: Some(UnixMs(now() + HOUR_MS).into()), ..request };
    let held = (0..12).map(|n| later(painter.other("reports", json!({"month": n + 1})))).collect();
    painter.apply(Admit { cursor: None, requests: held }).await;
    dead
}

/// Prices that are answered, and not final yet.
async fn leave_prices(painter: &mut Painter, count: usize) -> Vec<roundtrip::words::OccurrenceId> {
    let requests: Vec<NewRequest> = (0..count).map(|_| painter.price()).collect();
    let occurrences = requests.iter().take(count - 6).map(|request| request.occurrence).collect();
    painter.apply(Admit { cursor: None, requests }).await;
    painter.clock.advance_ms(200);
    let grants = painter.lease("prices", "pricer-2", count - 2).await;
    painter.each(grants.iter().map(Painter::answer).collect()).await;
    painter.lease("prices", "pricer-1", 2).await;
    occurrences
}
