//! Rebuilding a destination's lanes from the chain, when the store was rolled back: by a person's
//! word, while the lanes are stopped and everything else runs.
//!
//! ```text
//!   quiet ──▶ what was sent ──▶ read again ──▶ answered again ──▶ matched ──▶ reconciled
//!   (all of it is final)        (listeners)    (workers)          (stored)    (the lanes go on)
//! ```
//!
//! What the store forgot to have sent is on the chain. The listeners read again what it forgot to
//! have read, and workers answer it again; each answer that is ready then is looked for among the
//! transactions that the store does not know. One that was sent ends by that transaction,
//! and has no second one. A transaction that carries no answer that is ready is somebody else's.
//!
//! Failure modes: nothing is kept but in the store, where the lanes stay stopped until the last step,
//! so a crash at any point is a rebuild that has to be asked for again. An answer that came out
//! otherwise than before is not found, and goes out: whoever cannot answer alike matches by hand.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::LaneStatus;
use super::chain::{Mark, Past, Sighting};
use super::run::{Held, Sender, batches};
use crate::inbox::StateKind;
use crate::persist;
use crate::station::StationError;
use crate::store::ReadExt;
use crate::store::op::{Already, Judgement, LaneOrder, Op, Order, Outcome, Reject};
use crate::store::query::{LaneView, ListFilter, OriginView, Phase, ReadyDelivery, RequestView};
use crate::words::{LaneName, Moment, Nonce, PAGE_MAX, Place, RequestId, RouteName, Seq, Token, UnixMs};

/// How many transactions may have been forgotten.
const PAST_MAX: usize = 1 << 20;
/// How many transactions of somebody else are told one by one.
const TOLD_MAX: usize = 20;

/// A person's word to a sender: rebuild the lanes of your destination. Clones are of the same
/// sender.
#[derive(Clone, Debug)]
pub struct Rebuild(Arc<watch::Sender<Progress>>);

/// How far a rebuild is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nobody has asked for one since the start.
    Idle,
    /// It goes on when this is so; the lanes are stopped meanwhile.
    Waits {
        /// For how long requests without an answer are waited for.
        patience: Duration,
        /// What it waits for.
        until: String,
    },
    /// The lanes go on.
    Done(Rebuilt),
}

/// What a rebuild came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Transactions that the store did not know.
    pub sent: usize,
    /// Answers that were found in them, and are done.
    pub done: usize,
    /// Answers that were found in them, and that can never be sent: dead letters.
    pub failed: usize,
    /// Transactions in which no answer was found.
    pub foreign: usize,
    /// Requests that were waited for in vain. What they are answered later goes out, even if it
    /// did before.
    pub unanswered: usize,
}

impl Default for Rebuild {
    fn default() -> Self {
        Rebuild(Arc::new(watch::Sender::new(Progress::Idle)))
    }
}

impl Rebuild {
    /// Asks for a rebuild; requests that have no answer are waited for as long as this.
    pub fn begin(&self, patience: Duration) {
        self.0.send_replace(Progress::Waits { patience, until: "the sender has heard of it".into() });
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.0.borrow().clone()
    }

    fn wanted(&self) -> Option<Duration> {
        match &*self.0.borrow() {
            Progress::Waits { patience, .. } => Some(*patience),
            Progress::Idle | Progress::Done(_) => None,
        }
    }

    fn waits(&self, patience: Duration, until: String) {
        let news = Progress::Waits { patience, until };
        self.0.send_if_modified(|known| {
            let changed = *known != news;
            if changed {
                tracing::info!(progress = ?news, "a rebuild waits");
                known.clone_from(&news);
            }
            changed
        });
    }
}

/// What is known in the middle of a rebuild.
#[derive(Default)]
pub(super) struct Rebuilding {
    past: BTreeMap<LaneName, Vec<Past>>,
    /// The newest request that may have to be answered again, and since when it is waited for.
    answers: Option<(Option<Seq>, UnixMs)>,
}

impl Rebuilding {
    fn len(&self) -> usize {
        self.past.values().map(Vec::len).sum()
    }

    /// When the last of what was forgotten was mined.
    fn newest(&self) -> Option<UnixMs> {
        self.past.values().flatten().map(|past| past.time).max()
    }
}

/// A step of a rebuild.
enum Step {
    Waits(String),
    Done(Rebuilt),
}

/// Why a lane is not quiet: something on it may still change.
fn restless(lane: &LaneView, seen: &Sighting) -> Option<String> {
    let Sighting { pending, latest, settled, .. } = seen;
    match () {
        () if settled < pending.max(latest) => {
            Some(format!("what was sent on {} is final up to slot {}", lane.name, pending.max(latest).0))
        }
        () if !lane.parcels.is_empty() => Some(format!("what is under way on {} has ended", lane.name)),
        () => None,
    }
}

/// An origin that has to be read further, if what it asked up to this time is to be known.
fn unread(origins: &[OriginView], newest: UnixMs) -> Option<String> {
    let behind = |origin: &&OriginView| origin.head.is_some_and(|head| head.at < newest);
    let origin = origins.iter().find(behind)?;
    Some(format!("{} is read up to the time {}", origin.name, newest.0))
}

/// Whether a request without an answer may have had one by this time, before it was forgotten.
fn may_be_forgotten(request: &RequestView, newest: UnixMs, origins: &[OriginView]) -> bool {
    let head = |place: &Place| origins.iter().find(|origin| origin.name == place.origin).and_then(|origin| origin.head);
    match (&request.phase, &request.due) {
        (Phase::Held, Some(Moment::At(at) | Moment::BlockTime { at, .. })) => *at <= newest,
        (Phase::Held, Some(Moment::Height(place))) => head(place).is_some_and(|head| head.height >= place.height),
        _ => true,
    }
}

/// The transactions in which answers may be found, each of them once.
struct Unmatched<'a> {
    by_mark: HashMap<Mark, VecDeque<(&'a LaneName, &'a Past)>>,
}

impl<'a> Unmatched<'a> {
    fn of(past: &'a BTreeMap<LaneName, Vec<Past>>) -> Unmatched<'a> {
        let mut by_mark: HashMap<Mark, VecDeque<_>> = HashMap::new();
        for (lane, sent) in past {
            for one in sent {
                one.carried.iter().for_each(|mark| by_mark.entry(*mark).or_default().push_back((lane, one)));
            }
        }
        Unmatched { by_mark }
    }

    /// The transaction that carried this answer of a route, if there is one. Of several, the one
    /// that says most: an answer that had its effect needs no other, whatever came of those before.
    fn take(&mut self, mark: Mark, route: &RouteName) -> Option<(&'a LaneName, &'a Past)> {
        let carriers = self.by_mark.get_mut(&mark)?;
        let effect = |(_, past): &(&LaneName, &Past)| *past.judged(route) == Judgement::Done;
        let at = carriers.iter().position(effect).or_else(|| carriers.len().checked_sub(1))?;
        carriers.remove(at)
    }
}

/// What becomes of an answer that was sent before.
fn fate(lane: LaneName, owner: Token, answer: &ReadyDelivery, past: &Past) -> Option<Op> {
    let id = answer.id;
    match past.judged(&answer.route) {
        Judgement::Done => Some(Op::Already(Already { lane, owner, id, answer: answer.answer })),
        // Whether a failure response was sent too is not known, so a person decides.
        Judgement::Failed(error) | Judgement::Replaced(error, _) => {
            let (answer, error) = (answer.answer, error.clone());
            Some(Op::Reject(Reject { lane, owner, id, answer, error, instead: None }))
        }
        // It had no effect, and goes out again.
        Judgement::Again(_) => None,
    }
}

impl Sender {
    /// Goes on with a rebuild, if one is asked for.
    pub(super) async fn go_on_rebuilding(
        &self,
        lanes: &mut [Held],
        work: &mut Option<Rebuilding>,
    ) -> Result<(), StationError> {
        let Some(patience) = self.rebuild.wanted() else {
            *work = None;
            return Ok(());
        };
        match self.rebuild_on(lanes, work.get_or_insert_default(), patience).await? {
            Step::Waits(until) => self.rebuild.waits(patience, until),
            Step::Done(rebuilt) => {
                tracing::warn!(destination = %self.destination, ?rebuilt, "the lanes are rebuilt and go on");
                self.rebuild.0.send_replace(Progress::Done(rebuilt));
            }
        }
        Ok(())
    }

    async fn rebuild_on(
        &self,
        lanes: &mut [Held],
        work: &mut Rebuilding,
        patience: Duration,
    ) -> Result<Step, StationError> {
        let known = persist::read(|| self.store.lanes()).await?;
        let known: Vec<LaneView> = known.into_iter().filter(|lane| lane.destination == self.destination).collect();
        if let Some(lane) = known.iter().find(|lane| !self.lanes.contains(&lane.name)) {
            return Ok(Step::Waits(format!("lane {} is this sender's too: rebuild where all of them are", lane.name)));
        }
        let compared = lanes.iter().all(|lane| lane.open);
        if compared && known.iter().all(|lane| lane.status != LaneStatus::Stopped) {
            return Ok(Step::Done(Rebuilt::default()));
        }
        for lane in &known {
            if let Some(until) = self.read_past(lane, work).await? {
                return Ok(Step::Waits(until));
            }
        }
        let unanswered = match work.newest() {
            Some(newest) => match self.answered_again(work, newest, patience).await? {
                Ok(unanswered) => unanswered,
                Err(until) => return Ok(Step::Waits(until)),
            },
            None => 0,
        };
        let Some((lane, owner)) = lanes.iter().find_map(|lane| Some((lane.name.clone(), lane.seat?))) else {
            return Ok(Step::Waits("a seat of a lane is free".into()));
        };
        let Some(rebuilt) = self.match_all(&lane, owner, work).await? else {
            lanes.iter_mut().for_each(|lane| lane.seat = None);
            return Ok(Step::Waits("the seat of a lane is free again".into()));
        };
        self.reconcile(&known, work).await?;
        Ok(Step::Done(Rebuilt { unanswered, ..rebuilt }))
    }

    /// Reads what a lane has sent and the store does not know; answers what to wait for first.
    async fn read_past(&self, lane: &LaneView, work: &mut Rebuilding) -> Result<Option<String>, StationError> {
        let Some(view) = self.view(&lane.name).await? else { return Ok(None) };
        let silent = |error| Ok(Some(format!("the chain tells of {}: {error}", lane.name)));
        let seen = match self.ask(self.chain.look(&lane.name, &view.parcels)).await {
            Ok(seen) => seen,
            Err(error) => return silent(error),
        };
        if let Some(until) = restless(&view, &seen) {
            return Ok(Some(until));
        }
        loop {
            let known = work.past.get(&lane.name).and_then(|past| past.last());
            let from = known.map_or(view.next, |last| last.nonce.plus(1));
            if from >= seen.settled {
                return Ok(None);
            }
            let page = match self.ask(self.chain.past(&lane.name, from, known)).await {
                Ok(page) => page,
                Err(error) => return silent(error),
            };
            let contiguous = page.iter().zip(0..).all(|(past, n)| past.nonce == from.plus(n));
            if page.is_empty() || !contiguous {
                return Ok(Some(format!("the chain shows what used slot {} of {}", from.0, lane.name)));
            }
            if work.len() + page.len() > PAST_MAX {
                return Ok(Some(format!("somebody matches by hand: more than {PAST_MAX} transactions are not known")));
            }
            work.past.entry(lane.name.clone()).or_default().extend(page);
        }
    }

    /// Whether everything that may have been answered before it was forgotten is answered again,
    /// but for so many; or what to wait for.
    async fn answered_again(
        &self,
        work: &mut Rebuilding,
        newest: UnixMs,
        patience: Duration,
    ) -> Result<Result<usize, String>, StationError> {
        let origins = persist::read(|| self.store.origins()).await?;
        if let Some(until) = unread(&origins, newest) {
            return Ok(Err(until));
        }
        let now = self.clock.now();
        let open = self.open_requests(newest, &origins).await?;
        let (bound, since) = *work.answers.get_or_insert_with(|| (open.iter().map(|request| request.seq).max(), now));
        let mut waited_for = open.iter().filter(|request| bound.is_some_and(|bound| request.seq <= bound));
        let Some(first) = waited_for.next() else { return Ok(Ok(0)) };
        let count = 1 + waited_for.count();
        if now >= since.plus(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX)) {
            tracing::error!(destination = %self.destination, count, request = %first.id, "requests have no answer yet: if one went out before, it will go out again");
            return Ok(Ok(count));
        }
        Ok(Err(format!("{count} requests are answered again, {} among them", first.id)))
    }

    /// The requests for this destination that have no answer to send, and may have had one.
    async fn open_requests(&self, newest: UnixMs, origins: &[OriginView]) -> Result<Vec<Open>, StationError> {
        let routes = persist::read(|| self.store.routes()).await?;
        let ours = routes.into_iter().filter(|route| route.policy.destination.as_ref() == Some(&self.destination));
        let mut open = Vec::new();
        for route in ours {
            let states = vec![StateKind::Held, StateKind::Queued, StateKind::Leased, StateKind::Waiting];
            let mut filter = ListFilter { route: Some(route.name), states, limit: PAGE_MAX, ..ListFilter::default() };
            loop {
                let page = persist::read(|| self.store.list(filter.clone())).await?;
                let waiting = page.requests.iter().filter(|request| may_be_forgotten(request, newest, origins));
                open.extend(waiting.map(|request| Open { seq: request.seq, id: request.id }));
                filter.after = page.next;
                if page.next.is_none() {
                    break;
                }
            }
        }
        Ok(open)
    }

    /// Ends every ready answer that was sent before; none if the seat is lost.
    async fn match_all(
        &self,
        lane: &LaneName,
        owner: Token,
        work: &Rebuilding,
    ) -> Result<Option<Rebuilt>, StationError> {
        let mut unmatched = Unmatched::of(&work.past);
        let mut rebuilt = Rebuilt { sent: work.len(), ..Rebuilt::default() };
        let mut found: HashSet<(&LaneName, Nonce)> = HashSet::new();
        let mut after = None;
        loop {
            let (page, last) = self.ready_after(after, PAGE_MAX).await?;
            let Some(last) = last else { break };
            after = Some(last);
            let mut ops = Vec::new();
            // One that changed since it was listed is not ready any more.
            for answer in page.iter().flatten() {
                let found_in = self.chain.mark(answer).and_then(|mark| unmatched.take(mark, &answer.route));
                let Some((on, past)) = found_in else { continue };
                tracing::info!(lane = %on, nonce = past.nonce.0, transaction = %past.transaction, request = %answer.id, "an answer was sent before");
                found.insert((on, past.nonce));
                let judgement = past.judged(&answer.route);
                rebuilt.done += usize::from(*judgement == Judgement::Done);
                rebuilt.failed += usize::from(matches!(judgement, Judgement::Failed(_)));
                ops.extend(fate(lane.clone(), owner, answer, past));
            }
            let outcomes = persist::apply(&*self.store, ops).await?;
            if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Stale(_))) {
                // The seat is lost, or an answer changed meanwhile: all of it once more.
                return Ok(None);
            }
        }
        let all = work.past.iter().flat_map(|(lane, past)| past.iter().map(move |past| (lane, past)));
        let foreign: Vec<_> = all.filter(|(lane, past)| !found.contains(&(lane, past.nonce))).collect();
        for (lane, past) in foreign.iter().take(TOLD_MAX) {
            tracing::warn!(%lane, nonce = past.nonce.0, transaction = %past.transaction, "a transaction carries no answer that is ready: it counts as somebody else's");
        }
        rebuilt.foreign = foreign.len();
        Ok(Some(rebuilt))
    }

    /// Lets the lanes go on from where the chain is.
    async fn reconcile(&self, known: &[LaneView], work: &Rebuilding) -> Result<(), StationError> {
        let orders = |lane: &LaneView| {
            let last = work.past.get(&lane.name).and_then(|past| past.last());
            let outside_next = last.map_or(lane.next, |last| last.nonce.plus(1));
            // One that nobody has compared with the chain yet has not stopped.
            let orders = [Order::Observe { outside_next }, Order::Reconcile { outside_next }];
            orders.map(|order| Op::Lane(LaneOrder { lane: lane.name.clone(), order }))
        };
        for batch in batches(known.iter().flat_map(orders).collect()) {
            persist::apply(&*self.store, batch).await?;
        }
        Ok(())
    }
}

/// A request without an answer.
struct Open {
    seq: Seq,
    id: RequestId,
}

#[cfg(test)]
mod tests;
