//! The store: one write verb, `apply(batch of operations) → an outcome for each`, in
//! one durable commit; plus reads and hints that something changed.
//!
//! ```text
//!   callers ──▶ Batched ──▶ Store::apply ──▶ one commit ──▶ every caller answered
//!               drains what queued up while the last commit was in flight
//! ```
//!
//! Failure modes: an operation that cannot apply is refused by its [`Outcome`], alone.
//! A [`StoreError`] concerns the whole call: nothing of it is promised, and if
//! [`StoreError::is_retryable`] says so it may be replayed, which has no second effect.

pub mod archive;
mod batched;
pub mod condition;
pub(crate) mod disk;
pub mod journal;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod loan;
mod machine;
mod memory;
pub mod op;
pub mod policy;
#[cfg(feature = "postgres")]
mod postgres;
pub mod projection;
pub mod query;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod sent;
#[cfg(feature = "sqlite")]
mod sqlite;
pub mod vitals;
pub mod witness;

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::Notify;

pub use batched::{BatchLimits, Batched};
pub use memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
#[cfg(feature = "redis")]
pub use redis::{ProjectionHealth, RedisStore};
#[cfg(feature = "sqlite")]
pub use sqlite::{Glimpse, SqliteReader, SqliteStore};

use crate::clock::{Clock, SystemClock};
use crate::words::{BATCH_BYTES_MAX, BATCH_OPS_MAX, BATCH_RECORDS_MAX, Destination, RouteName};
use op::{Op, Outcome};
use query::{Query, Reply};
use witness::{Move, Witness};

/// A future that a store hands out.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// What every store does. Small, for those who write one; those who use one have the
/// named calls of [`StoreExt`] besides.
pub trait Store: Send + Sync + 'static {
    /// Does every operation of the batch, or refuses it by its outcome, in one durable
    /// commit. The answer comes after the commit, except that a batch of leases and
    /// extends alone is answered at once: a store may write those later, or never if
    /// the work is done by then.
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>>;

    /// Reads what the last commit left, and leases that the next one will write.
    fn read(&self, query: Query) -> StoreFuture<'_, Reply>;

    /// Finishes what was accepted, writes what is unwritten, and lets go of what the store
    /// holds; calls after it are refused. Dropping the last handle does the same, later.
    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Hints that something about this topic changed. Polling alone is correct; a hint
    /// only makes it fast.
    fn changes(&self, topic: Topic) -> Changes;

    /// Tells this witness of each step that this process makes from now on; a second one is not
    /// told. A store that wraps another passes this on.
    fn witness(&self, witness: Arc<dyn Witness>) {
        drop(witness);
    }

    /// Whether an operation does better in a commit without others, or with such as are like it: what a crash may
    /// forget need not wait for the disk.
    fn keeps_apart(&self, op: &Op) -> bool {
        op.may_be_forgotten()
    }

    /// How many batches may be on their way at a time, each done after the one before it.
    fn batches_under_way(&self) -> usize {
        1
    }
}

/// The same calls under their own names.
pub trait StoreExt: Store {
    /// Applies one operation.
    fn apply_one(&self, op: impl Into<Op>) -> impl Future<Output = Result<Outcome, StoreError>> + Send {
        let op = op.into();
        async move {
            let outcomes = self.apply(vec![op]).await?;
            outcomes.into_iter().next().ok_or(StoreError::Unknown)
        }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        (**self).apply(batch)
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        (**self).read(query)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        (**self).close()
    }

    fn changes(&self, topic: Topic) -> Changes {
        (**self).changes(topic)
    }

    fn witness(&self, witness: Arc<dyn Witness>) {
        (**self).witness(witness);
    }

    fn keeps_apart(&self, op: &Op) -> bool {
        (**self).keeps_apart(op)
    }

    fn batches_under_way(&self) -> usize {
        (**self).batches_under_way()
    }
}

macro_rules! named_reads {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) -> $answer:ty = $query:expr => $reply:ident;)*) => {
        /// The reads under their own names.
        pub trait ReadExt: Store {
            $(
                $(#[$doc])*
                fn $name(&self, $($arg: $type),*) -> impl Future<Output = Result<$answer, StoreError>> + Send {
                    async move {
                        match self.read($query).await? {
                            Reply::$reply(answer) => Ok(answer),
                            _ => Err(StoreError::Damaged("a store answered another read".into())),
                        }
                    }
                }
            )*
        }

        impl<S: Store + ?Sized> ReadExt for S {}
    };
}

named_reads! {
    /// One request, live or remembered.
    get(id: crate::words::RequestId) -> Option<query::Found> = Query::Get(id) => Get;
    /// A page of live requests, oldest first.
    list(filter: query::ListFilter) -> query::Page = Query::List(filter) => List;
    /// How many live requests each route has in each state.
    counts() -> Vec<query::Count> = Query::Counts => Counts;
    /// What the journal still holds about one request.
    timeline(id: crate::words::RequestId) -> Vec<journal::Entry> = Query::Timeline(id) => Timeline;
    /// A page of the journal.
    journal(from: u64, limit: usize) -> query::JournalPage = Query::Journal { from, limit } => Journal;
    /// Answers that wait to be sent, from the oldest on.
    ready(destination: Destination, limit: usize) -> Vec<query::ReadyDelivery>
        = Query::Ready { destination, after: None, limit } => Ready;
    /// Answers that wait to be sent, from the oldest after this one on.
    ready_after(destination: Destination, after: Option<crate::words::Seq>, limit: usize) -> Vec<query::ReadyDelivery>
        = Query::Ready { destination, after, limit } => Ready;
    /// All routes.
    routes() -> Vec<query::RouteView> = Query::Routes => Routes;
    /// All lanes, without their parcels.
    lanes() -> Vec<query::LaneView> = Query::Lanes => Lanes;
    /// All lanes, without anything of what is under way on them.
    lane_outlines() -> Vec<query::LaneOutline> = Query::LaneOutlines => LaneOutlines;
    /// One lane with its parcels.
    lane(name: crate::words::LaneName) -> Option<query::LaneView> = Query::Lane(name) => Lane;
    /// A listener's cursor.
    cursor(listener: crate::words::ListenerName) -> Option<crate::listener::Cursor>
        = Query::Cursor(listener) => Cursor;
    /// All cursors, by listener.
    cursors() -> Vec<(crate::words::ListenerName, crate::listener::Cursor)> = Query::Cursors => Cursors;
    /// All origins, with what is known of their heads.
    origins() -> Vec<query::OriginView> = Query::Origins => Origins;
    /// Who holds a seat.
    seat(seat: op::Seat) -> Option<query::SeatView> = Query::Seat(seat) => Seat;
    /// A group and a page of its items.
    group(group: crate::words::GroupKey, skip: u64, limit: usize) -> Option<query::GroupView>
        = Query::Group { group, skip, limit } => Group;
}

/// What a hint is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Requests of a route may be waiting for a worker.
    Inbox(RouteName),
    /// Answers for a destination may be waiting to be sent.
    Outbox(Destination),
    /// A live request was amended.
    Amendments,
    /// The journal grew.
    Journal,
}

/// What followers of one topic wait for. They are woken in the order in which they came,
/// so that a simulated run repeats exactly.
#[derive(Debug, Default)]
struct Signal {
    hints: AtomicU64,
    gone: AtomicBool,
    woken: Notify,
}

/// Hints about one topic. Starts with one hint, so that a reader looks once at once.
#[derive(Debug)]
pub struct Changes {
    signal: Arc<Signal>,
    seen: Option<u64>,
}

impl Changes {
    /// Waits for the next hint; `false` when the store is gone.
    pub async fn changed(&mut self) -> bool {
        loop {
            let woken = self.signal.woken.notified();
            let hints = self.signal.hints.load(Ordering::Acquire);
            if self.seen.replace(hints) != Some(hints) {
                return true;
            }
            if self.signal.gone.load(Ordering::Acquire) {
                return false;
            }
            woken.await;
        }
    }
}

impl Changes {
    /// Waits for the next hint; for ever, once the store is gone: whoever waits polls besides.
    pub async fn hinted(&mut self) {
        if !self.changed().await {
            std::future::pending().await
        }
    }
}

/// What a commit tells once it is durable.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) touched: BTreeSet<Topic>,
    pub(crate) moves: Vec<Move>,
}

/// Where hints are handed out; a topic that nobody follows costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    topics: Mutex<HashMap<Topic, Arc<Signal>>>,
    witness: OnceLock<Arc<dyn Witness>>,
}

impl Hints {
    pub(crate) fn follow(&self, topic: Topic) -> Changes {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        topics.retain(|_, signal| Arc::strong_count(signal) > 1);
        Changes { signal: topics.entry(topic).or_default().clone(), seen: None }
    }

    /// Shows this witness what is told from now on.
    pub(crate) fn show(&self, witness: Arc<dyn Witness>) {
        // The first one stays.
        let _second = self.witness.set(witness);
    }

    /// Tells what a commit did.
    pub(crate) fn tell(&self, news: News) {
        self.tell_witness(&news.moves);
        self.give(news.touched);
    }

    pub(crate) fn tell_witness(&self, moves: &[Move]) {
        if let Some(witness) = self.witness.get().filter(|_| !moves.is_empty()) {
            witness.saw(moves);
        }
    }

    pub(crate) fn give(&self, touched: impl IntoIterator<Item = Topic>) {
        let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if topics.is_empty() {
            return;
        }
        for topic in touched.into_iter().chain(std::iter::once(Topic::Journal)) {
            if let Some(signal) = topics.get(&topic) {
                signal.hints.fetch_add(1, Ordering::Release);
                signal.woken.notify_waiters();
            }
        }
    }
}

#[cfg(any(feature = "postgres", feature = "redis"))]
impl Hints {
    /// Hints about every topic that is followed: something may have changed, and nobody
    /// knows what.
    pub(crate) fn give_all(&self) {
        for signal in self.topics.lock().unwrap_or_else(PoisonError::into_inner).values() {
            signal.hints.fetch_add(1, Ordering::Release);
            signal.woken.notify_waiters();
        }
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        for signal in self.topics.get_mut().unwrap_or_else(PoisonError::into_inner).values() {
            signal.gone.store(true, Ordering::Release);
            signal.woken.notify_waiters();
        }
    }
}

/// The epoch of whoever takes none: earlier than every other.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
pub(crate) const NO_EPOCH: u64 = 0;

/// How much a store keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many entries the journal holds.
    pub journal_entries: u64,
    /// How many receipts are moved to sorted runs at a time; twice as many are in memory at most.
    pub spill_receipts: usize,
    /// How long a lease may stay unwritten if nothing else is to be committed; a crash
    /// before that hands the request out again.
    pub lease_write_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { journal_entries: 1 << 20, spill_receipts: 1 << 14, lease_write_ms: 20 }
    }
}

/// Why a call got no outcomes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The answer was lost: the batch may or may not be durable. Replay it.
    #[error("the store's answer was lost; the batch may or may not be durable")]
    Unknown,
    /// No connection to the server was made. It is told apart for people: as after a lost answer, replay the batch.
    #[error("{server} was not reached: {reason}")]
    Unreachable {
        /// The server, without who logs in.
        server: String,
        /// What the system or the server said.
        reason: String,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// More than one call may bring.
    #[error(
        "a batch of {ops} operations and {bytes} bytes; at most {BATCH_OPS_MAX} and {BATCH_BYTES_MAX}, and {BATCH_RECORDS_MAX} records in all"
    )]
    BatchTooLarge {
        /// How many operations.
        ops: usize,
        /// How many bytes of payload.
        bytes: usize,
    },
    /// The disk is full; nothing of the batch was stored.
    #[error(
        "the disk of {path} is full: nothing of this batch was stored, everything before it is safe; free space and try again"
    )]
    DiskFull {
        /// The store's file.
        path: String,
    },
    /// The disk did not keep what it was given. Only a new start can tell what is there.
    #[error(
        "{path} can no longer be trusted ({reason}): nothing of this batch was acknowledged; check the disk, then start again"
    )]
    Failed {
        /// The store's file.
        path: String,
        /// What the disk said.
        reason: String,
    },
    /// Another process owns the file.
    #[error("{path} is in use by process {owner}: one process owns a store; stop that one, or use its API")]
    Owned {
        /// The store's file.
        path: String,
        /// Which process.
        owner: String,
    },
    /// The file was written by a newer version.
    #[error("{path} has format {found}, this version reads up to {known}: use the newer version that wrote it")]
    NewerFormat {
        /// The store's file.
        path: String,
        /// Its format.
        found: u32,
        /// The newest format that this version reads.
        known: u32,
    },
    /// The store was written by an older version.
    #[error(
        "{path} has version {found}, and this program reads {known}: bring it there first (`roundtrip store migrate`)"
    )]
    OlderFormat {
        /// The store.
        path: String,
        /// Its version.
        found: u32,
        /// The version that this program reads.
        known: u32,
    },
    /// The file is something else.
    #[error("{path} is not a Roundtrip store: {reason}")]
    NotAStore {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A copy into it has begun and is not complete.
    #[error("{path} is half copied: run the copy again to complete it, or remove it and copy to a new place")]
    HalfCopied {
        /// The store.
        path: String,
    },
    /// The URL names no store.
    #[error(
        "{url:?} names no store: use memory:, sqlite:PATH, such as sqlite:roundtrip.db, postgres://HOST/DATABASE or redis://HOST"
    )]
    BadUrl {
        /// The URL.
        url: String,
    },
    /// The file cannot be opened or read.
    #[error("{path}: {reason}")]
    Io {
        /// The store's file.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// Something that a store wrote cannot be read back.
    #[error("damaged: {0}")]
    Damaged(String),
    /// The store is open for reading only.
    #[error("the store is open for reading only")]
    ReadOnly,
}

impl StoreError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, StoreError::Unknown | StoreError::Unreachable { .. } | StoreError::DiskFull { .. })
    }
}

/// Refuses a batch that is larger than one call may bring.
pub(crate) fn check_batch(batch: &[Op]) -> Result<usize, StoreError> {
    let (ops, bytes) = (batch.len(), batch.iter().map(Op::payload_bytes).sum());
    let records: usize = batch.iter().map(Op::records).sum();
    if ops > BATCH_OPS_MAX || records > BATCH_RECORDS_MAX || bytes > BATCH_BYTES_MAX {
        return Err(StoreError::BatchTooLarge { ops, bytes });
    }
    Ok(bytes)
}

/// The file of an embedded store, if this URL names one.
pub fn file_of(url: &str) -> Option<&std::path::Path> {
    let path = url.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    (!path.trim_start_matches('/').is_empty()).then(|| path.as_ref())
}

/// Opens the store that a URL names, with natural batching in front of it. Needs a
/// tokio runtime.
///
/// `memory:` keeps everything in memory; `sqlite:PATH` keeps it in a file;
/// `postgres://HOST/DATABASE`, `redis://HOST` and `redis-cluster://HOST:PORT,…` keep it on
/// servers that many processes share, which the first call connects to.
pub fn open(url: &str, options: Options) -> Result<Arc<dyn Store>, StoreError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Arc::new(Batched::new(MemoryStore::new(clock, options)))),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) if !path.trim_start_matches('/').is_empty() => {
            let path = path.strip_prefix("//").unwrap_or(path);
            Ok(Arc::new(SqliteStore::open(path, clock, options)?))
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => Ok(Arc::new(Batched::new(PostgresStore::new(url, options)?))),
        #[cfg(feature = "redis")]
        Some((scheme, _)) if RedisStore::SCHEMES.contains(&scheme) => {
            Ok(Arc::new(Batched::new(RedisStore::new(url, options)?)))
        }
        _ => Err(StoreError::BadUrl { url: without_password(url) }),
    }
}

/// Opens the store that a URL names for whoever only looks: nothing is made, upgraded or written, not even that
/// somebody was there, and a file may be in use by its owner meanwhile. Writes are refused as
/// [`StoreError::ReadOnly`]. What is not there or of an older version is told by [`condition`]; a store in
/// memory cannot be looked at from outside. Needs a tokio runtime.
#[cfg_attr(
    not(any(feature = "sqlite", feature = "postgres", feature = "redis")),
    allow(unused_variables, reason = "there is no store to be looked at")
)]
pub fn look(url: &str, options: Options) -> Result<Arc<dyn Store>, StoreError> {
    match url.split_once(':') {
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) if !path.trim_start_matches('/').is_empty() => {
            let path = path.strip_prefix("//").unwrap_or(path);
            Ok(Arc::new(SqliteReader::open(path, Arc::new(SystemClock::new()), options)?))
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => Ok(Arc::new(PostgresStore::new(url, options)?.looking())),
        #[cfg(feature = "redis")]
        Some((scheme, _)) if RedisStore::SCHEMES.contains(&scheme) => {
            Ok(Arc::new(RedisStore::new(url, options)?.looking()))
        }
        _ => Err(StoreError::BadUrl { url: without_password(url) }),
    }
}

/// A URL as an error may show it.
pub fn without_password(url: &str) -> String {
    let url = match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://...@{place}"),
        _ => url.to_owned(),
    };
    let Some((place, parameters)) = url.split_once('?') else { return url };
    let shown = parameters.split('&').map(|one| if one.starts_with("password=") { "password=..." } else { one });
    format!("{place}?{}", shown.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_shows_a_password() {
        assert_eq!(without_password("postgres://me:secret@h:1/d"), "postgres://...@h:1/d");
        assert_eq!(without_password("postgres://h/d"), "postgres://h/d");
        let parameters = without_password("postgres://h/d?user=me&password=secret&schema=a");
        assert_eq!(parameters, "postgres://h/d?user=me&password=...&schema=a");
        let refused = open("http://me:secret@h/d", Options::default()).err();
        assert_eq!(refused, Some(StoreError::BadUrl { url: "http://...@h/d".to_owned() }));
    }
}
