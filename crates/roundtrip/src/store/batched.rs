//! Natural batching in front of any store: while one commit is in flight, calls queue
//! up; the next commit takes all of them. No timers, so a lone caller never waits, and
//! a caller is answered only after the commit that holds its operations. A store that
//! takes a batch while another is on its way gets one, once enough calls wait.
//!
//! A call is never split over two commits. A store error is told to every caller of
//! the commit that it struck; an operation that is refused is refused alone.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::op::{Op, Outcome};
use super::query::{Query, Reply};
use super::witness::Witness;
use super::{Changes, Store, StoreError, StoreFuture, Topic, check_batch};

/// How many calls may wait before callers are held up.
const WAITING_MAX: usize = 8192;

/// How many operations are not shared out among several commits: what a commit costs, whatever is in it, is more than two
/// at a time would gain.
const SHARED_MIN: usize = 256;

/// How much one commit takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// At most so many operations; one call may bring more by itself.
    pub ops: usize,
    /// At most so many bytes of payload; one call may bring more by itself.
    pub bytes: usize,
}

impl Default for BatchLimits {
    fn default() -> Self {
        BatchLimits { ops: 2048, bytes: 8 << 20 }
    }
}

/// A store with natural batching in front of it. Cheap to clone; the commits end when
/// the last clone is dropped and all that was accepted is answered.
pub struct Batched<S> {
    inner: Arc<S>,
    calls: mpsc::Sender<Message>,
    commits: Arc<Mutex<Commits>>,
}

/// The task that commits, or why it ended.
enum Commits {
    Running(JoinHandle<()>),
    Ended(StoreError),
}

impl<S> Clone for Batched<S> {
    fn clone(&self) -> Self {
        Batched { inner: self.inner.clone(), calls: self.calls.clone(), commits: self.commits.clone() }
    }
}

/// Where a call's outcomes go.
type Answer = oneshot::Sender<Result<Vec<Outcome>, StoreError>>;

/// What the commits' task is told.
enum Message {
    Call(Call),
    Close(oneshot::Sender<Result<(), StoreError>>),
}

struct Call {
    ops: Vec<Op>,
    bytes: usize,
    answer: Answer,
}

impl<S: Store> Batched<S> {
    /// Puts batching in front of a store, with the usual limits. Needs a tokio runtime.
    pub fn new(inner: S) -> Batched<S> {
        Batched::with_limits(inner, BatchLimits::default())
    }

    /// Puts batching in front of a store. Needs a tokio runtime.
    pub fn with_limits(inner: S, limits: BatchLimits) -> Batched<S> {
        let inner = Arc::new(inner);
        let (calls, waiting) = mpsc::channel(WAITING_MAX);
        let task = tokio::spawn(commit_all(inner.clone(), waiting, limits));
        Batched { inner, calls, commits: Arc::new(Mutex::new(Commits::Running(task))) }
    }

    /// Why a call got no answer: the commits were closed, or their task panicked, which must
    /// not pass for something that a retry would mend.
    async fn why_gone(&self) -> StoreError {
        if !self.calls.is_closed() {
            return StoreError::Unknown;
        }
        let mut commits = self.commits.lock().await;
        let ended = match &mut *commits {
            Commits::Ended(error) => return error.clone(),
            Commits::Running(task) => task.await,
        };
        let error = match ended {
            Err(error) if error.is_panic() => StoreError::Damaged(format!("the task that commits panicked: {error}")),
            _ => StoreError::Closed,
        };
        tracing::debug!(%error, "the commits have ended");
        *commits = Commits::Ended(error.clone());
        error
    }

    /// The store behind.
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

/// Commits calls as they come until every handle is gone.
async fn commit_all<S: Store>(store: Arc<S>, waiting: mpsc::Receiver<Message>, limits: BatchLimits) {
    let line = Line {
        store: &*store,
        limits,
        waiting,
        next: Commit::default(),
        apart: Commit::default(),
        held_back: None,
        closing: None,
        under_way: FuturesUnordered::new(),
        ops_under_way: 0,
    };
    line.run().await;
}

/// What waits, and what is under way.
struct Line<'a, S> {
    store: &'a S,
    limits: BatchLimits,
    waiting: mpsc::Receiver<Message>,
    /// The next commit, as far as it is known.
    next: Commit,
    /// What goes before it, in a commit of its own, since the store keeps it apart.
    apart: Commit,
    /// The call that found no room in it.
    held_back: Option<Call>,
    closing: Option<oneshot::Sender<Result<(), StoreError>>>,
    /// Commits; each tells how many operations it had.
    under_way: FuturesUnordered<Pin<Box<dyn Future<Output = usize> + Send + 'a>>>,
    ops_under_way: usize,
}

impl<S: Store> Line<'_, S> {
    async fn run(mut self) {
        loop {
            self.fill();
            while self.is_worth_a_commit() {
                self.launch();
                self.fill();
            }
            if self.under_way.is_empty()
                && let Some(closed) = self.closing.take()
            {
                self.waiting.close();
                let _gone = closed.send(self.store.close().await);
            }
            let takes_more = self.takes_more();
            tokio::select! {
                biased;
                Some(ops) = self.under_way.next() => self.ops_under_way -= ops,
                message = self.waiting.recv(), if takes_more => match message {
                    Some(message) => self.take(message),
                    None => return self.finish().await,
                },
            }
        }
    }

    /// Nobody can call any more: what is under way ends.
    async fn finish(mut self) {
        while let Some(_ops) = self.under_way.next().await {}
    }

    fn takes_more(&self) -> bool {
        self.held_back.is_none() && self.closing.is_none()
    }

    /// Takes what waits, as far as there is room in the next commit.
    fn fill(&mut self) {
        while self.takes_more()
            && let Ok(message) = self.waiting.try_recv()
        {
            self.take(message);
        }
    }

    /// How much one commit takes: where the store does several at a time, no more than its share of all that is asked
    /// for. Else most callers would wait for one commit, and the store for them, in turn.
    fn share(&self) -> BatchLimits {
        let all = self.ops_under_way + self.waiting_ops() + self.waiting.len();
        let share = match self.store.batches_under_way() {
            1 => self.limits.ops,
            several => all.div_ceil(several).max(SHARED_MIN),
        };
        BatchLimits { ops: self.limits.ops.min(share), ..self.limits }
    }

    fn waiting_ops(&self) -> usize {
        self.next.ops.len() + self.apart.ops.len()
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Call(call) => self.place(call),
            Message::Close(closed) => self.closing = Some(closed),
        }
    }

    fn place(&mut self, call: Call) {
        let is_apart = call.ops.iter().all(|op| self.store.keeps_apart(op));
        let limits = self.share();
        let to = if is_apart { &mut self.apart } else { &mut self.next };
        match to.is_full_for(&call, limits) {
            true => self.held_back = Some(call),
            false => to.push(call),
        }
    }

    /// Whether to commit what waits. Beside others that are under way, only if the store can and
    /// if it is not much less than they are: small commits cost more than they gain.
    fn is_worth_a_commit(&self) -> bool {
        let ops = self.waiting_ops();
        let beside = self.under_way.len() < self.store.batches_under_way() && ops >= self.ops_under_way / 2;
        // A call without operations is answered too.
        let waits = !(self.next.answers.is_empty() && self.apart.answers.is_empty());
        waits && (self.under_way.is_empty() || beside)
    }

    fn launch(&mut self) {
        let (apart, next) = (std::mem::take(&mut self.apart), std::mem::take(&mut self.next));
        let (store, ops) = (self.store, apart.ops.len() + next.ops.len());
        self.ops_under_way += ops;
        self.under_way.push(Box::pin(async move {
            apart.run(store).await;
            next.run(store).await;
            ops
        }));
        if let Some(call) = self.held_back.take() {
            self.place(call);
        }
    }
}

/// The calls that go into one commit.
#[derive(Default)]
struct Commit {
    ops: Vec<Op>,
    bytes: usize,
    answers: Vec<(usize, Answer)>,
}

impl Commit {
    fn is_full_for(&self, call: &Call, limits: BatchLimits) -> bool {
        let over = self.ops.len() + call.ops.len() > limits.ops || self.bytes + call.bytes > limits.bytes;
        over && !self.answers.is_empty()
    }

    fn push(&mut self, call: Call) {
        self.answers.push((call.ops.len(), call.answer));
        self.bytes += call.bytes;
        self.ops.extend(call.ops);
    }

    /// Applies the calls and answers each of them.
    async fn run<S: Store>(self, store: &S) {
        if self.answers.is_empty() {
            return;
        }
        let mut outcomes = store.apply(self.ops).await.map(Vec::into_iter);
        for (count, answer) in self.answers {
            let own = match &mut outcomes {
                Ok(outcomes) => Ok(outcomes.by_ref().take(count).collect()),
                Err(error) => Err(error.clone()),
            };
            // A caller that went away has given up its answer; the commit stands.
            let _gone = answer.send(own);
        }
    }
}

impl<S: Store> Store for Batched<S> {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let bytes = check_batch(&batch)?;
            let (answer, answered) = oneshot::channel();
            let call = Call { ops: batch, bytes, answer };
            if self.calls.send(Message::Call(call)).await.is_err() {
                return Err(self.why_gone().await);
            }
            match answered.await {
                Ok(answer) => answer,
                Err(_lost) => Err(self.why_gone().await),
            }
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.inner.read(query)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let (closed, done) = oneshot::channel();
            self.calls.send(Message::Close(closed)).await.map_err(|_closed| StoreError::Closed)?;
            done.await.map_err(|_lost| StoreError::Unknown)?
        })
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.inner.changes(topic)
    }

    fn witness(&self, witness: Arc<dyn Witness>) {
        self.inner.witness(witness);
    }
}
