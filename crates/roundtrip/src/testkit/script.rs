//! One whole story, told to a store batch by batch: two routes, a reorg, work that
//! fails and work that lasts, groups closed by hand, by count and by time, a lane with a
//! bump, a cancel and a reorg, deliveries without a lane, deadlines and retention. Cutting it at every commit, replaying every batch, and
//! restarting after each must all lead to the same end.

use std::collections::BTreeSet;

use futures_util::StreamExt;

use super::bench::{Bench, Harness, must};
use super::faulty::{Cut, Faulty};
use super::picture::{Picture, Sights};
use super::samples::*;
use crate::inbox::{Standing, StateKind};
use crate::listener::Cursor;
use crate::sender::{AttemptKind, ParcelStage};
use crate::store::op::{
    Admit, AfterCancel, Answer, Close, CursorMove, Define, Effect, Extend, Fail, Gather, Grant, GroupPlan, Judgement,
    LaneOrder, Lead, Lease, NewRequest, Op, Order, Outcome, Pause, Prune, Publish, PublishResult, Remedy, Seat, Sight,
    Verdict,
};
use crate::store::policy::{Gate, QueueOrder, Retention, RoutePolicy};
use crate::store::{ReadExt, Store, StoreError};
use crate::words::{ClaimId, ErrorClass, Nonce, Payload, RouteName, Token};

/// What befalls the story's batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// Nothing.
    Plain,
    /// Each is given to the store twice.
    Replay,
    /// The store is closed and opened again after each.
    Restart,
    /// The answer to this one is lost, and it is replayed.
    Cut {
        /// Which.
        call: usize,
        /// Whether it was in the store by then.
        cut: Cut,
        /// Whether the store is closed and opened again before the replay.
        crash: bool,
    },
}

/// How many cuts are tried at once, each on a store of its own: most of the time a server is waited for.
const CUTS_AT_ONCE: usize = 8;

/// Runs the story through with a cut at every batch; the end must be that of the
/// story without a cut.
pub async fn cut_at_every_commit<H: Harness>(fresh: impl Fn() -> H, cut: Cut, crash: bool) {
    let (uncut, calls) = tell(Bench::open(fresh()).await, Trial::Plain).await;
    assert!(calls > 30, "the story has {calls} batches");
    let (fresh, uncut) = (&fresh, &uncut.without_tokens());
    let cut_at = |call: usize| async move {
        let (end, _) = tell(Bench::open(fresh()).await, Trial::Cut { call, cut, crash }).await;
        let context = format!("cut {cut:?} the commit of batch {call}, crash: {crash}");
        uncut.assert_same(&end.without_tokens(), context);
    };
    futures_util::stream::iter(0..calls).for_each_concurrent(CUTS_AT_ONCE, cut_at).await;
}

/// Tells the story to a store; shows the end, and how many batches there were.
pub async fn tell(bench: Bench, trial: Trial) -> (Picture, usize) {
    let mut stage = Stage::new(bench, trial);
    story(&mut stage).await;
    stage.bench.commit().await;
    let calls = stage.calls_before + stage.faulty.as_ref().map_or(0, Faulty::calls);
    (stage.picture().await, calls)
}

struct Stage {
    bench: Bench,
    faulty: Option<Faulty<std::sync::Arc<dyn Store>>>,
    trial: Trial,
    /// Calls before the last restart.
    calls_before: usize,
}

impl Stage {
    fn new(bench: Bench, trial: Trial) -> Stage {
        let (call, cut) = match trial {
            Trial::Cut { call, cut, .. } => (call, cut),
            _ => (usize::MAX, Cut::Before),
        };
        let faulty = Some(Faulty::new(bench.store().clone(), cut, call));
        Stage { bench, faulty, trial, calls_before: 0 }
    }

    async fn picture(&self) -> Picture {
        let sights = Sights {
            ids: (1..=30).map(id).collect(),
            listeners: BTreeSet::from([listener()]),
            groups: BTreeSet::from([group(), group_named("full"), group_named("timed")]),
            destinations: BTreeSet::from([destination(), other_destination()]),
        };
        Picture::of(&**self.bench.store(), &sights).await
    }

    async fn restart(&mut self) {
        self.calls_before += self.faulty.take().map_or(0, |faulty| faulty.calls());
        self.bench.restart().await;
        self.faulty = Some(Faulty::new(self.bench.store().clone(), Cut::Before, usize::MAX));
    }

    /// Gives a batch to the store, under the stage's trial.
    async fn tell(&mut self, batch: Vec<Op>) -> Vec<Outcome> {
        let faulty = self.faulty.as_ref().unwrap_or_else(|| panic!("the store is open between restarts"));
        let outcomes = match faulty.apply(batch.clone()).await {
            Err(StoreError::Unknown) => {
                if matches!(self.trial, Trial::Cut { crash: true, .. }) {
                    self.restart().await;
                }
                must(self.bench.store().apply(batch.clone()).await, "the replay")
            }
            answer => must(answer, "apply"),
        };
        match self.trial {
            Trial::Replay => self.replay(batch).await,
            Trial::Restart => {
                self.bench.commit().await;
                let before = self.picture().await;
                self.restart().await;
                before.assert_same(&self.picture().await, format_args!("a restart after {batch:?}"));
            }
            Trial::Plain | Trial::Cut { .. } => {}
        }
        outcomes
    }

    /// A replay is answered, and changes nothing at all.
    async fn replay(&mut self, batch: Vec<Op>) {
        let before = self.picture().await;
        let outcomes = must(self.bench.store().apply(batch.clone()).await, "the replay");
        for (op, outcome) in batch.iter().zip(&outcomes) {
            // Saying the same again is no second effect.
            let same = matches!(
                outcome,
                Outcome::Applied(Effect::Count(0) | Effect::Extended(..) | Effect::Led(..)) | Outcome::Duplicate(_)
            );
            assert!(same || !outcome.holds(), "the replay of {op:?} had an effect: {outcome:?}");
        }
        before.assert_same(&self.picture().await, format_args!("a replay of {batch:?}"));
    }

    async fn tell_one(&mut self, op: impl Into<Op>) -> Outcome {
        let mut outcomes = self.tell(vec![op.into()]).await;
        outcomes.pop().unwrap_or_else(|| panic!("an outcome for each operation"))
    }

    async fn lead(&mut self, seat: Seat) -> Token {
        match self.tell_one(Lead { seat, ..lead() }).await {
            Outcome::Applied(Effect::Led(token, _)) => token,
            other => panic!("no seat: {other:?}"),
        }
    }

    /// Leases, durably where there are crashes: a lease is no commit point, and if a
    /// crash forgot it, the end would depend on where the story is cut.
    async fn lease(&mut self, route: RouteName, claim: u64, max: usize) -> Vec<Grant> {
        let lease = Lease { route, claim: ClaimId(claim), ..lease(max) };
        let outcome = match self.trial {
            Trial::Restart | Trial::Cut { crash: true, .. } => {
                let outcome = self.bench.apply(lease).await;
                self.bench.commit().await;
                outcome
            }
            _ => self.tell_one(lease).await,
        };
        match outcome {
            Outcome::Applied(Effect::Leased(grants)) | Outcome::Duplicate(Effect::Leased(grants)) => {
                assert_eq!(grants.len(), max, "claim {claim}");
                grants
            }
            other => panic!("no lease: {other:?}"),
        }
    }

    async fn state(&self, n: u64, expected: StateKind) {
        self.bench.expect(&[(n, expected)]).await;
    }
}

async fn story(stage: &mut Stage) {
    let quotes = || route_named("quotes");
    let quick = RoutePolicy {
        work_on: Gate::Final,
        publish_on: Gate::Seen,
        order: QueueOrder::Priority,
        retention: Retention::all(1000),
        dead_ms: 1000,
        ..RoutePolicy::default()
    };
    stage
        .tell(vec![
            Define { route: route(), policy: policy() }.into(),
            Define { route: quotes(), policy: quick }.into(),
        ])
        .await;
    let order = Order::Open { destination: destination(), window: 4, first: Nonce(7) };
    stage.tell_one(LaneOrder { lane: lane(), order }).await;
    let owner = stage.lead(Seat::Lane(lane())).await;
    let lead = stage.lead(Seat::Route(route())).await;
    let quote_lead = stage.lead(Seat::Route(quotes())).await;

    listen(stage, lead, quote_lead, quotes()).await;
    work(stage, quotes()).await;
    send(stage, owner).await;
    mend_and_end(stage, lead).await;
    publish(stage).await;
    tidy(stage).await;
}

/// Blocks with requests, and a reorg.
async fn listen(stage: &mut Stage, lead: Token, quote_lead: Token, quotes: RouteName) {
    let quote = |n, priority| NewRequest { route: quotes.clone(), priority, ..request(n) };
    let at = |expected, height, requests| Admit {
        cursor: Some(CursorMove { listener: listener(), expected, next: position(height) }),
        requests,
    };
    stage.tell_one(at(None, 110, vec![request(1), request(2), quote(11, 0)])).await;
    let first = Some(Cursor { version: 1, at: position(110) });
    stage.tell_one(at(first, 120, vec![request(3), quote(12, 9), request(1), request(8)])).await;
    // One waits for a height, one ends by one.
    let later = NewRequest { due: Some(place(300).into()), ..final_request(13) };
    let doomed = NewRequest { deadline: Some(place(250).into()), due: Some(place(900).into()), ..final_request(14) };
    stage.tell_one(Admit { cursor: None, requests: vec![later, doomed] }).await;
    stage
        .tell(vec![
            orphan(lead, 1).into(),
            orphan(lead, 8).into(),
            finalize(lead, 2).into(),
            finalize(quote_lead, 11).into(),
        ])
        .await;
    let second = Some(Cursor { version: 2, at: position(120) });
    stage.tell_one(at(second, 115, vec![])).await;
    stage.tell_one(include(lead, 1, 116)).await;
    stage.tell(vec![finalize(lead, 1).into(), supersede(lead, 3, 1003, "other content").into()]).await;
    stage.tell(vec![finalize(lead, 1003).into(), finalize(quote_lead, 12).into(), withdraw(lead, 8).into()]).await;
    stage.state(8, StateKind::Withdrawn).await;
}

/// Answers with what follows, failures, and a lease that lasts.
async fn work(stage: &mut Stage, quotes: RouteName) {
    let grants = stage.lease(route(), 1, 3).await;
    let quoted = stage.lease(quotes, 2, 2).await;
    stage.bench.clock.advance_ms(10_000);
    let extend: Vec<Op> =
        grants.iter().map(|grant| Extend { lease_ms: Some(40_000), ..extend(grant) }.into()).collect();
    stage.tell(extend).await;
    let follow_ups = vec![final_request(5)];
    let answer_1 = Answer { follow_ups, items: vec![gather(1), gather(2)], ..answer(&grants[0]) };
    let later = Fail { verdict: Verdict::Retry { after_ms: Some(100) }, ..fail(&grants[2], ErrorClass::Retryable) };
    stage.tell(vec![answer_1.into(), answer(&grants[1]).into(), later.into()]).await;
    stage.tell(vec![answer(&quoted[0]).into(), release(&quoted[1]).into()]).await;
    stage.tell_one(gather(3)).await;
    stage.tell_one(Close { group: group(), request: final_request(6) }).await;
    stage.tell_one(gather(4)).await;
    for (n, state) in [(1, StateKind::Ready), (3, StateKind::Held), (12, StateKind::Settled), (11, StateKind::Queued)] {
        stage.state(n, state).await;
    }
}

/// Two parcels: one is bumped and settles, one is cancelled and sent again; and two gaps.
async fn send(stage: &mut Stage, owner: Token) {
    use AttemptKind::{Cancel, Carry};
    use ParcelStage::{Assigned, Confirmed, Included};
    let parcels = vec![parcel(&[1], signed(1, Carry)), parcel(&[2], signed(2, Carry))];
    stage.tell_one(assign(owner, 7, parcels)).await;
    stage.tell_one(cancel(8, AfterCancel::Requeue)).await;
    stage.tell(vec![attempt(owner, 7, signed(21, Carry)).into(), attempt(owner, 8, signed(22, Cancel)).into()]).await;
    stage
        .tell(vec![
            settle(owner, 7, Assigned, Sight::Included(block(21, 200))).into(),
            settle(owner, 8, Assigned, Sight::Included(block(2, 200))).into(),
        ])
        .await;
    stage.tell_one(settle(owner, 8, Included, Sight::Back)).await;
    stage.tell_one(settle(owner, 7, Included, Sight::Confirmed(block(21, 200)))).await;
    stage.state(1, StateKind::Confirmed).await;
    stage
        .tell(vec![
            settle(owner, 7, Confirmed, Sight::Final(block(21, 200), Judgement::Done)).into(),
            settle(owner, 8, Assigned, Sight::Final(block(22, 201), Judgement::Done)).into(),
        ])
        .await;
    stage.tell_one(assign(owner, 9, vec![parcel(&[2], signed(3, Carry))])).await;
    stage.tell_one(settle(owner, 9, Assigned, Sight::Included(block(3, 210)))).await;
    // Slots of somebody else's that were never used after all.
    let outside_next = Nonce(12);
    for order in [Order::Observe { outside_next }, Order::Reconcile { outside_next }] {
        stage.tell_one(LaneOrder { lane: lane(), order }).await;
    }
    stage.tell_one(fill(owner, 10, parcel(&[], signed(4, Cancel)))).await;
    stage.tell_one(settle(owner, 10, Assigned, Sight::Final(block(4, 211), Judgement::Done))).await;
    stage.tell_one(fill(owner, 11, parcel(&[], signed(5, Cancel)))).await;
    for (n, state) in [(1, StateKind::Settled), (2, StateKind::Included)] {
        stage.state(n, state).await;
    }
}

/// A silent worker, a dead letter, a person, a deadline, somebody else's answer.
async fn mend_and_end(stage: &mut Stage, lead: Token) {
    stage.bench.clock.advance_ms(1000);
    stage.lease(route(), 3, 3).await;
    stage.bench.clock.advance_ms(60_000);
    stage.tell_one(Op::Rescue { limit: 10 }).await;
    let grants = stage.lease(route(), 4, 3).await;
    let fatal = |grant: &Grant| Op::from(fail(grant, ErrorClass::Fatal));
    let response = Some(Payload::raw("it failed"));
    let published = Fail { verdict: Verdict::Dead { response }, ..fail(&grants[2], ErrorClass::Fatal) };
    stage.tell(vec![fatal(&grants[0]), fatal(&grants[1]), published.into()]).await;
    stage.state(3, StateKind::Dead).await;
    stage.tell_one(mend(3, Remedy::Retry)).await;
    let deadline = Some(stage.bench.now().plus(500).into());
    let doomed = NewRequest { deadline, standing: Standing::Final, ..request(7) };
    stage.tell_one(Admit { cursor: None, requests: vec![doomed, request(9), request(10)] }).await;
    stage.tell_one(Pause { route: route(), paused: true }).await;
    stage.tell(vec![elsewhere(lead, 9).into(), mend(10, Remedy::Cancel).into()]).await;
    stage.bench.clock.advance_ms(500);
    stage.tell(vec![tick(299).into(), Op::Expire { limit: 10 }]).await;
    stage.state(13, StateKind::Held).await;
    stage.tell_one(tick(300)).await;
    stage.tell_one(Pause { route: route(), paused: false }).await;
    for (n, state) in [(13, StateKind::Queued), (14, StateKind::Expired)] {
        stage.state(n, state).await;
    }
    for (n, state) in [(7, StateKind::Expired), (9, StateKind::Elsewhere), (10, StateKind::Withdrawn)] {
        stage.state(n, state).await;
    }
}

/// Two groups that seal themselves, whose answers go out without a lane: one is taken,
/// one is refused and, when a person says so, tried again, and then worked out anew and delivered after all.
async fn publish(stage: &mut Stage) {
    let hooks = || route_named("hooks");
    let policy = RoutePolicy { destination: Some(other_destination()), ..policy() };
    stage.tell_one(Define { route: hooks(), policy }).await;
    let owner = stage.lead(Seat::Destination(other_destination())).await;
    let hook = |n| NewRequest { route: hooks(), ..final_request(n) };
    let planned = |key: &str, n, seal_at_items, seal_at, request| {
        let plan = Some(Box::new(GroupPlan { seal_at_items, seal_at, request: hook(request) }));
        Op::from(Gather { group: group_named(key), plan, ..gather(n) })
    };
    let at = stage.bench.now().plus(100);
    stage.tell(vec![planned("full", 1, Some(2), None, 15), planned("timed", 1, Some(9), Some(at.into()), 16)]).await;
    stage.tell_one(Gather { group: group_named("full"), ..gather(2) }).await;
    stage.bench.clock.advance_ms(100);
    stage.tell_one(Op::Fire { limit: 10 }).await;
    stage.tell_one(Gather { group: group_named("timed"), ..gather(2) }).await;
    let grants = stage.lease(hooks(), 6, 2).await;
    stage.tell(grants.iter().map(|grant| answer(grant).into()).collect()).await;
    let ready = must(stage.bench.store().ready(other_destination(), 9).await, "ready");
    let to = |delivery| Publish { destination: other_destination(), ..delivered(owner, delivery) };
    let refused = Publish { result: PublishResult::Refused(note(ErrorClass::Fatal)), ..to(&ready[1]) };
    let result = PublishResult::Failed { error: note(ErrorClass::Transport), before: 0 };
    stage.tell_one(Publish { result, ..to(&ready[1]) }).await;
    stage.tell(vec![to(&ready[0]).into(), refused.into()]).await;
    for (n, state) in [(15, StateKind::Settled), (16, StateKind::Dead)] {
        stage.state(n, state).await;
    }
    stage.tell_one(mend(16, Remedy::Retry)).await;
    let refused = Publish { result: PublishResult::Refused(note(ErrorClass::Retryable)), ..to(&ready[1]) };
    stage.tell_one(refused).await;
    stage.tell_one(mend(16, Remedy::Rework)).await;
    stage.state(16, StateKind::Queued).await;
    let grants = stage.lease(hooks(), 8, 1).await;
    stage.tell(grants.iter().map(|grant| answer(grant).into()).collect()).await;
    let ready = must(stage.bench.store().ready(other_destination(), 9).await, "ready");
    stage.tell_one(to(&ready[0])).await;
    stage.state(16, StateKind::Settled).await;
}

/// Retention, after which much is forgotten; one lease lasts beyond the end.
async fn tidy(stage: &mut Stage) {
    stage.tell_one(LaneOrder { lane: lane(), order: Order::Observe { outside_next: Nonce(10) } }).await;
    stage.tell_one(LaneOrder { lane: lane(), order: Order::Quarantine { for_ms: 5 } }).await;
    stage.bench.clock.advance_ms(40 * 24 * 60 * 60 * 1000);
    stage.tell_one(Prune { limit: 100, floors: vec![place(105)] }).await;
    stage.tell_one(Prune { limit: 100, floors: vec![] }).await;
    stage.lease(route(), 5, 1).await;
    assert_eq!(stage.bench.found(12).await, None, "its receipt is forgotten");
}
