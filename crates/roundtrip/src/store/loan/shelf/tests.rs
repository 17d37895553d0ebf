#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::sender::{AttemptKind, ParcelStage};
use crate::store::disk::{Fixture, HighWater};
use crate::store::loan::FixtureRows;
use crate::store::op::{
    self, Admit, Define, Effect, Full, Grant, Judgement, LaneOrder, Lead, Lease, NewRequest, Order, Outcome, Seat,
};
use crate::store::policy::RoutePolicy;
use crate::testkit::samples;
use crate::words::{Token, UnixMs};

/// A store that is all at hand, since all of it was written from here.
struct Alone {
    shelf: Shelf,
    numbers: Numbers,
    fixtures: FixtureRows,
    tokens: u64,
    server: Server,
}

/// Where everything is, and how often it was asked.
#[derive(Default)]
struct Server {
    live: BTreeMap<Seq, (Arc<Loaded>, Option<Body>)>,
    asked: usize,
}

impl Server {
    fn write(&mut self, changes: &Changes<'_>) {
        for gone in &changes.gone {
            self.live.remove(&gone.request.seq);
        }
        for put in &changes.live {
            let (request, record, listed) = (put.request.clone(), put.record.clone(), put.listed);
            let body = put.body.cloned().or_else(|| self.live.remove(&request.seq)?.1);
            self.live.insert(request.seq, (Arc::new(Loaded { request, record, listed }), body));
        }
    }
}

impl Lender for Server {
    type Error = Damaged;

    async fn fly(&mut self, wants: &[Want]) -> Result<Vec<Found>, Damaged> {
        self.asked += 1;
        let rows = |is_wanted: &dyn Fn(&Loaded) -> bool, limit: usize| {
            let wanted = self.live.values().filter(|(loaded, _)| is_wanted(loaded)).take(limit);
            let row = |(loaded, body): &(Arc<Loaded>, Option<Body>)| LiveRow {
                loaded: loaded.clone(),
                body: body.clone(),
                response: None,
                is_news: false,
            };
            Found::Live(wanted.map(row).collect())
        };
        let found = |want: &Want| match want {
            Want::Named { ids, .. } => rows(&|loaded| ids.contains(&loaded.request.id), usize::MAX),
            // Turns are as numbers are.
            Want::Next { requests, after: (_, after), .. } => {
                rows(&|loaded| loaded.listed.turn.is_some() && loaded.request.seq > *after, *requests)
            }
            Want::Counted => {
                let mut counted: BTreeMap<_, u64> = BTreeMap::new();
                for (loaded, _) in self.live.values() {
                    *counted.entry((loaded.request.route, loaded.listed.state)).or_default() += 1;
                }
                Found::Counted(counted.into_iter().collect())
            }
            Want::Ended(_) | Want::Seen(_) => Found::Receipts(Vec::new()),
            _ => Found::Live(Vec::new()),
        };
        Ok(wants.iter().map(found).collect())
    }
}

impl Alone {
    fn new() -> Alone {
        Alone::with(RoutePolicy::default())
    }

    /// One whose route has this policy.
    fn with(policy: RoutePolicy) -> Alone {
        let high = HighWater { seq: 1, entry: 1, receipt: 1, item: 1, group: 1 };
        let numbers = Numbers { newest_epoch: 1, high, journal_floor: 1, fixtures: 7, now: UnixMs(1000) };
        let (no, name) = (RouteNo(0), samples::route());
        let route = Fixture::Route { no, name, policy, paused: false };
        let fixtures = [(route.key(), route)].into();
        Alone { shelf: Shelf::default(), numbers, fixtures, tokens: 0, server: Server::default() }
    }

    /// What came of an operation and what was assumed; none, if more is needed than is here.
    async fn tick(&mut self, op: impl Into<Op>) -> Option<(Outcome, Assumed)> {
        let Alone { tokens, numbers, .. } = *self;
        let sight = Sight { epoch: 1, tokens, numbers, fixtures: &self.fixtures };
        let (ticked, assumed) = self.shelf.tick(Options::default(), &sight, &[op.into()]).await.unwrap()?;
        Some((self.write(&ticked), assumed))
    }

    /// Fetches more of the queue that ran short.
    async fn restock(&mut self) -> bool {
        let Alone { tokens, numbers, .. } = *self;
        let sight = Sight { epoch: 1, tokens, numbers, fixtures: &self.fixtures };
        self.shelf.restock(&mut self.server, &sight).await.unwrap()
    }

    fn write(&mut self, ticked: &Ticked) -> Outcome {
        let changes = ticked.changes().unwrap();
        self.shelf.learn(ticked, &changes, &self.numbers);
        self.server.write(&changes);
        self.fixtures.extend(changes.fixtures.into_iter().flatten().map(|(key, row)| (key.clone(), row.clone())));
        self.tokens = ticked.tokens();
        self.numbers = changes.numbers.map_or(self.numbers, |numbers| numbers.after(self.numbers));
        ticked.outcomes[0].clone()
    }

    async fn admit(&mut self, numbers: std::ops::Range<u64>) -> Assumed {
        let request = |n| NewRequest { place: None, ..samples::final_request(n) };
        let admit = Admit { cursor: None, requests: numbers.map(request).collect() };
        let (outcome, assumed) = self.tick(admit).await.unwrap();
        assert!(matches!(outcome, Outcome::Applied(_)), "{outcome:?}");
        assumed
    }

    async fn grants(&mut self, claim: u64, max: usize) -> Option<Vec<Grant>> {
        let lease = Lease { max, claim: ClaimId(claim), ..samples::lease(1) };
        let Outcome::Applied(Effect::Leased(grants)) = self.tick(lease).await?.0 else { panic!("not leased") };
        Some(grants)
    }

    async fn lease(&mut self, claim: u64, max: usize) -> Option<Vec<u64>> {
        let number = |id: RequestId| (1..10_000).find(|n| samples::id(*n) == id).unwrap();
        Some(self.grants(claim, max).await?.into_iter().map(|grant| number(grant.id)).collect())
    }
}

#[tokio::test]
async fn a_lifecycle_needs_nothing_but_that_it_is_new() {
    let mut store = Alone::new();
    let assumed = store.admit(1..2).await;
    assert_eq!((assumed.ids, assumed.occurrences), (vec![samples::id(1)], vec![samples::occurrence(1)]));
    let (outcome, assumed) = store.tick(samples::lease(1)).await.unwrap();
    assert!(assumed.is_empty());
    let Outcome::Applied(Effect::Leased(grants)) = outcome else { panic!("not leased") };
    let (outcome, assumed) = store.tick(samples::answer(&grants[0])).await.unwrap();
    assert!(matches!(outcome, Outcome::Applied(_)) && assumed.is_empty(), "{outcome:?}");
    let Shelf { rows, ids, shown, unseen, claims, bytes, .. } = store.shelf;
    assert_eq!((rows.len(), ids.len(), shown.len(), unseen.len(), claims.len(), bytes), (0, 0, 0, 0, 0, 0));
}

/// One with a lane, which was looked at if it says so, and this many answers for it.
async fn with_lane(is_looked_at: bool, answers: u64) -> (Alone, Token) {
    let mut store = Alone::with(samples::policy());
    let order = Order::Open { destination: samples::destination(), window: 2, first: Nonce(0) };
    store.tick(LaneOrder { lane: samples::lane(), order }).await.unwrap();
    let lead = Lead { seat: Seat::Lane(samples::lane()), ..samples::lead() };
    let Outcome::Applied(Effect::Led(owner, _)) = store.tick(lead).await.unwrap().0 else { panic!("no seat") };
    store.shelf.known.under_way.extend(is_looked_at.then_some((LaneNo(0), 0)));
    store.admit(1..answers + 1).await;
    let lease = Lease { max: 10, ..samples::lease(1) };
    let Outcome::Applied(Effect::Leased(grants)) = store.tick(lease).await.unwrap().0 else { panic!("not leased") };
    for grant in &grants {
        store.tick(samples::answer(grant)).await.unwrap();
    }
    (store, owner)
}

#[tokio::test]
async fn what_is_sent_needs_nothing_either_once_its_lane_was_looked_at() {
    let (mut store, owner) = with_lane(true, 3).await;
    let parcel = |n| samples::parcel(&[n], samples::signed(n, AttemptKind::Carry));
    let assign = |first, numbers: &[u64]| samples::assign(owner, first, numbers.iter().map(|n| parcel(*n)).collect());
    let (outcome, _) = store.tick(assign(0, &[1, 2, 3])).await.unwrap();
    let Outcome::Applied(Effect::Assigned(2, Some(rest))) = outcome else { panic!("{outcome:?}") };
    assert_eq!(*rest, Outcome::Full(Full::Window { window: 2 }));
    let (outcome, _) = store.tick(assign(0, &[1])).await.unwrap();
    assert!(matches!(outcome, Outcome::Duplicate(_)), "{outcome:?}");
    assert_eq!((store.shelf.parcels.len(), store.shelf.known.under_way[&LaneNo(0)]), (2, 2));
    for (nonce, n) in [(0, 1), (1, 2)] {
        let sight = op::Sight::Final(samples::block(n, 200), Judgement::Done);
        let settle = samples::settle(owner, nonce, ParcelStage::Assigned, sight);
        assert!(matches!(store.tick(settle.clone()).await.unwrap().0, Outcome::Applied(_)));
        // Where all are here, none that is not was forgotten.
        assert!(matches!(store.tick(settle).await.unwrap().0, Outcome::Duplicate(_)));
    }
    let Shelf { parcels, known, rows, .. } = &store.shelf;
    assert_eq!((parcels.len(), known.under_way[&LaneNo(0)], rows.len()), (0, 0, 1));
    assert!(matches!(store.tick(assign(2, &[3])).await.unwrap().0, Outcome::Applied(Effect::Assigned(1, None))));
}

#[tokio::test]
async fn how_many_are_under_way_is_not_guessed() {
    let (mut store, owner) = with_lane(false, 1).await;
    let parcel = samples::parcel(&[1], samples::signed(1, AttemptKind::Carry));
    assert!(store.tick(samples::assign(owner, 0, vec![parcel])).await.is_none());
}

#[tokio::test]
async fn what_is_here_is_recognised_and_not_assumed() {
    let mut store = Alone::new();
    store.admit(1..2).await;
    let repeated = Admit { cursor: None, requests: vec![NewRequest { place: None, ..samples::final_request(1) }] };
    let (outcome, assumed) = store.tick(repeated).await.unwrap();
    assert!(matches!(outcome, Outcome::Duplicate(_)) && assumed.is_empty(), "{outcome:?}");
}

#[tokio::test]
async fn what_is_not_here_is_not_answered() {
    let mut store = Alone::new();
    store.admit(1..2).await;
    let (outcome, _) = store.tick(samples::lease(1)).await.unwrap();
    let Outcome::Applied(Effect::Leased(grants)) = outcome else { panic!("not leased") };
    let known = std::mem::take(&mut store.shelf.known);
    store.shelf = Shelf::knowing(known);
    assert!(store.tick(samples::answer(&grants[0])).await.is_none(), "somebody may hold it");
    assert!(store.lease(1, 1).await.is_none(), "what the claim holds is not here");
    let policy = RoutePolicy { capacity: 9, ..RoutePolicy::default() };
    assert!(store.tick(Define { route: samples::route(), policy }).await.is_none(), "all requests are looked at");
}

#[tokio::test]
async fn of_a_long_queue_the_first_are_here_and_come_in_order() {
    let mut store = Alone::new();
    let all = DEPTH as u64 + 10;
    for first in (1..=all).step_by(512) {
        store.admit(first..(all + 1).min(first + 512)).await;
    }
    assert_eq!(store.shelf.rows.len(), DEPTH);
    assert_eq!(store.lease(1, 3).await.unwrap(), [1, 2, 3]);
    // What comes in now comes after those that are not here.
    store.admit(all + 1..all + 2).await;
    assert_eq!(store.shelf.queues[&RouteNo(0)].turns.len(), DEPTH - 3);
    let mut next = 4;
    while let Some(leased) = store.lease(next, 500).await {
        assert_eq!(leased, (next..next + 500).collect::<Vec<_>>());
        next += 500;
    }
    assert!(next + 500 > DEPTH as u64, "asks for more only when they run out: {next}");
}

#[tokio::test]
async fn a_queue_that_ran_short_is_fetched_ahead_with_what_its_answers_need() {
    let mut store = Alone::new();
    let all = DEPTH as u64 + 1900;
    for first in (1..=all).step_by(500) {
        store.admit(first..(all + 1).min(first + 500)).await;
    }
    let mut claim = 1;
    while store.grants(claim, 500).await.is_some() {
        claim += 1;
    }
    assert_eq!(store.server.asked, 0);
    assert!(store.restock().await && !store.restock().await, "once it has, it is short no more");
    assert_eq!(store.server.asked, 2, "the queue, and what is known by its names");
    let grants = store.grants(claim, 500).await.unwrap();
    let mut left = all - 500 * claim;
    while left > 0 {
        claim += 1;
        let more = store.grants(claim, 400).await.expect("one fetch does for all that are left");
        assert!(!more.is_empty(), "{left} are left");
        left -= more.len() as u64;
    }
    for grant in grants {
        let (outcome, assumed) = store.tick(samples::answer(&grant)).await.unwrap();
        assert!(matches!(outcome, Outcome::Applied(_)) && assumed.is_empty(), "{outcome:?}");
    }
    assert_eq!(store.server.asked, 2);
}
