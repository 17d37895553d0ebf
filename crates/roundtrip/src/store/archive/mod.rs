//! Copying all state from any store to any other, and checking a store's every invariant.
//!
//! ```text
//!   copy:    source ──▶ page of records ──▶ destination, with how far the copy is, in one commit
//!                            └─ tally                └─ read back: the same tally? ──▶ may be opened
//!   verify:  store  ──▶ page of records ──▶ rules ──▶ faults, each with its record and its rule
//! ```
//!
//! Both work offline: nobody else may use the store meanwhile. What is copied is a new start of
//! the same state, as after a crash: leases and seats are as they were written, and the epoch
//! of the next start is later than every one before, so no token repeats. Whoever goes on with
//! the copy must not go on with the source too: two stores would do everything twice.
//!
//! Failure modes:
//! - *The copy dies on any line*: the destination refuses to be opened, and the same copy, run
//!   again, goes on after the last page. If somebody worked on the source meanwhile it begins anew.
//! - *The source changes during the copy*, where nothing can keep others out: told in the end, and
//!   the destination stays shut.
//! - *What arrived is not what was sent*: the destination stays shut, and the records are named.
//! - *A record cannot be read*: a copy stops there; `verify` names it and goes on.

#[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "a store in memory is never half copied"))]
pub(in crate::store) mod contents;
mod differences;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(in crate::store) mod lent;
mod memory;
pub(in crate::store) mod record;
pub(in crate::store) mod rowed;
mod tally;
mod verify;

use std::fmt;
use std::ops::ControlFlow;

use contents::{Contents, Ground, Mark, Page};
pub use record::Kind;
use record::Record;
use tally::Tally;
pub use verify::{Fault, Verdict};

use super::{MemoryStore, StoreError, without_password};
use crate::clock::{Clock, SystemClock};
use crate::words::UnixMs;

/// Where a store is.
#[derive(Clone)]
pub enum Place {
    /// At a URL, as [`open`](super::open) takes it.
    Url(String),
    /// In the memory of this process.
    Memory(MemoryStore),
}

impl From<&str> for Place {
    fn from(url: &str) -> Place {
        Place::Url(url.to_owned())
    }
}

impl From<&MemoryStore> for Place {
    fn from(store: &MemoryStore) -> Place {
        Place::Memory(store.clone())
    }
}

/// What a store is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be read, if it is there and whole.
    Read,
    /// To be filled.
    Fill,
}

impl Place {
    /// The name of both, if they are one as far as their names tell.
    fn is(&self, other: &Place) -> Option<String> {
        let (Place::Url(one), Place::Url(other)) = (self, other) else { return None };
        let file = |url: &str| std::fs::canonicalize(super::file_of(url)?).ok();
        let same = one == other || file(one).is_some_and(|one| file(other) == Some(one));
        same.then(|| without_password(other))
    }

    #[cfg_attr(
        not(any(feature = "sqlite", feature = "postgres", feature = "redis")),
        allow(unused_variables, reason = "a store in memory is opened in one way")
    )]
    async fn open(&self, purpose: Purpose) -> Result<Box<dyn Contents>, StoreError> {
        let url = match self {
            Place::Memory(store) => return Ok(Box::new(memory::MemoryContents::of(store))),
            Place::Url(url) => url,
        };
        match url.split_once(':') {
            #[cfg(feature = "sqlite")]
            Some(("sqlite", path)) if !path.trim_start_matches('/').is_empty() => {
                let path = path.strip_prefix("//").unwrap_or(path);
                Ok(Box::new(super::sqlite::SqliteContents::open(path.as_ref(), purpose)?))
            }
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", _)) => super::postgres::contents(url, purpose).await,
            #[cfg(feature = "redis")]
            Some((scheme, _)) if super::RedisStore::SCHEMES.contains(&scheme) => {
                super::redis::contents(url, purpose).await
            }
            _ => Err(StoreError::BadUrl { url: url.clone() }),
        }
    }
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which kind of record it is at.
    pub kind: Kind,
    /// How many records are in the destination.
    pub written: u64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} records copied, now {}", self.written, self.kind)
    }
}

/// A copy that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// How many records of each kind there are.
    pub records: Vec<(Kind, u64)>,
    /// Whether it went on with a copy that had been broken off.
    pub resumed: bool,
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "copied and compared: ")?;
        write_counts(f, &self.records)
    }
}

pub(crate) fn write_counts(f: &mut fmt::Formatter<'_>, counts: &[(Kind, u64)]) -> fmt::Result {
    for (at, (kind, count)) in counts.iter().filter(|(kind, _)| *kind != Kind::Numbers).enumerate() {
        write!(f, "{}{count} {kind}", if at == 0 { "" } else { ", " })?;
    }
    Ok(())
}

/// Why a copy is not complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The source cannot be read.
    #[error("the source: {0}")]
    Source(StoreError),
    /// The destination cannot be written.
    #[error("the destination: {0}")]
    Destination(StoreError),
    /// The destination holds something else.
    #[error("{place} is not empty: copy to a new place")]
    NotEmpty {
        /// The destination.
        place: String,
    },
    /// The source and the destination are one.
    #[error("{place} is where everything is already: copy to another place")]
    Same {
        /// The store.
        place: String,
    },
    /// Somebody worked on the source meanwhile.
    #[error("{place} was in use while it was copied: stop everything that uses it, then run the copy again")]
    Moved {
        /// The source.
        place: String,
    },
    /// What arrived is not what was sent.
    #[error(
        "the copy differs from its source in {}: run verify on both, then remove the copy and run it again",
        differences.join("; ")
    )]
    Differs {
        /// Some of the records that differ.
        differences: Vec<String>,
    },
    /// The caller stopped it.
    #[error("the copy was stopped: run it again to go on")]
    Stopped,
}

impl CopyError {
    /// Whether the same copy, run again, may go on.
    pub fn is_retryable(&self) -> bool {
        match self {
            CopyError::Source(error) | CopyError::Destination(error) => error.is_retryable(),
            CopyError::Stopped | CopyError::Moved { .. } => true,
            CopyError::NotEmpty { .. } | CopyError::Same { .. } | CopyError::Differs { .. } => false,
        }
    }
}

/// Copies all state from one store to another, which must be new or half copied from there, and
/// compares what arrived. `on_progress` is called after every page and may break the copy off. Needs a
/// tokio runtime.
pub async fn copy(
    from: impl Into<Place>,
    to: impl Into<Place>,
    on_progress: impl FnMut(Progress) -> ControlFlow<()> + Send + 'static,
) -> Result<Copied, CopyError> {
    let (from, to, mut on_progress) = (from.into(), to.into(), on_progress);
    if let Some(place) = from.is(&to) {
        return Err(CopyError::Same { place });
    }
    let work = async move || {
        let mut source = from.open(Purpose::Read).await.map_err(CopyError::Source)?;
        let mut destination = to.open(Purpose::Fill).await.map_err(CopyError::Destination)?;
        carry(&mut *source, &mut *destination, &mut on_progress).await
    };
    on_a_thread(work).await.unwrap_or(Err(CopyError::Stopped))
}

/// Checks every invariant of a store that nobody uses.
pub async fn verify(place: impl Into<Place>) -> Result<Verdict, StoreError> {
    verify_at(place, &SystemClock::new()).await
}

/// The same; `on_progress` is told after every page how many records were checked.
pub async fn verify_with(
    place: impl Into<Place>,
    on_progress: impl FnMut(u64) + Send + 'static,
) -> Result<Verdict, StoreError> {
    verify_by(place.into(), SystemClock::new().now(), on_progress).await
}

/// The same by another clock, which tells what still counts.
pub async fn verify_at(place: impl Into<Place>, clock: &dyn Clock) -> Result<Verdict, StoreError> {
    verify_by(place.into(), clock.now(), |_| {}).await
}

async fn verify_by(
    place: Place,
    now: UnixMs,
    mut on_progress: impl FnMut(u64) + Send + 'static,
) -> Result<Verdict, StoreError> {
    let work = async move || {
        let mut contents = place.open(Purpose::Read).await?;
        verify::verify(&mut *contents, now, &mut on_progress).await
    };
    on_a_thread(work).await.unwrap_or(Err(StoreError::Unknown))
}

/// Runs something that may block, and stays where it is, on a thread of its own; nothing, if the
/// runtime ends first.
async fn on_a_thread<T: Send + 'static>(work: impl AsyncFnOnce() -> T + Send + 'static) -> Option<T> {
    let runtime = tokio::runtime::Handle::current();
    match tokio::task::spawn_blocking(move || runtime.block_on(work())).await {
        Ok(answer) => Some(answer),
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_cancelled) => None,
        },
    }
}

async fn carry(
    from: &mut dyn Contents,
    to: &mut dyn Contents,
    on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Copied, CopyError> {
    let version = from.version().await.map_err(CopyError::Source)?;
    let (mut mark, resumed) = match to.ground().await.map_err(CopyError::Destination)? {
        Ground::Empty => (Mark::start(version.clone()), false),
        Ground::HalfCopied(mark) if mark.version == version => (*mark, true),
        Ground::HalfCopied(_) => {
            to.clear().await.map_err(CopyError::Destination)?;
            (Mark::start(version.clone()), false)
        }
        Ground::Taken => return Err(CopyError::NotEmpty { place: to.name() }),
    };
    while let Some((kind, place)) = mark.at.take() {
        let page = match whole_page(from, kind, place).await {
            Ok(page) => page,
            Err(error) => return Err(moved_or(from, &version, error).await),
        };
        for record in &page.records {
            mark.tally.add(record).map_err(CopyError::Source)?;
        }
        mark.at = page.next.map(|next| (kind, next)).or(kind.next().map(|next| (next, Vec::new())));
        to.write(page.records, mark.clone()).await.map_err(CopyError::Destination)?;
        let progress = Progress { kind, written: mark.tally.count() };
        if on_progress(progress).is_break() {
            return Err(CopyError::Stopped);
        }
    }
    let arrived = tally(to).await.map_err(CopyError::Destination)?;
    let kinds = mark.tally.differing(&arrived);
    if !kinds.is_empty() {
        let differences = differences::between(from, to, &kinds).await?;
        return Err(CopyError::Differs { differences });
    }
    if from.version().await.map_err(CopyError::Source)? != version {
        return Err(CopyError::Moved { place: from.name() });
    }
    to.release().await.map_err(CopyError::Destination)?;
    Ok(Copied { records: arrived.counts(), resumed })
}

/// Why the source cannot be read: mostly because somebody works on it, if somebody does.
async fn moved_or(from: &mut dyn Contents, version: &[u8], error: StoreError) -> CopyError {
    match from.version().await {
        Ok(now) if now != version => CopyError::Moved { place: from.name() },
        _ => CopyError::Source(error),
    }
}

/// A page in which everything can be read.
async fn whole_page(contents: &mut dyn Contents, kind: Kind, from: Vec<u8>) -> Result<Page, StoreError> {
    let page = contents.page(kind, from).await?;
    match page.damaged.first() {
        Some(fault) => Err(StoreError::Damaged(format!("{fault}; verify names everything that is"))),
        None => Ok(page),
    }
}

async fn tally(contents: &mut dyn Contents) -> Result<Tally, StoreError> {
    let mut tally = Tally::default();
    for kind in Kind::ALL {
        each(contents, kind, &mut |record| tally.add(&record)).await?;
    }
    Ok(tally)
}

/// Goes through all records of one kind.
async fn each(
    contents: &mut dyn Contents,
    kind: Kind,
    with: &mut dyn FnMut(Record) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut at = Some(Vec::new());
    while let Some(place) = at {
        let page = whole_page(contents, kind, place).await?;
        page.records.into_iter().try_for_each(&mut *with)?;
        at = page.next;
    }
    Ok(())
}
