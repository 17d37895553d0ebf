//! The embedded store: the state machine in memory, SQLite its durable form.
//!
//! ```text
//!   apply, read ──▶ queue ──▶ one thread: machine ──▶ rows ──▶ COMMIT ──▶ sync ──▶ answers
//!                     │           takes all that queued up meanwhile       └─▶ while the next is prepared
//! ```
//!
//! One process owns the file, by a lock beside it; others may read. Everything that
//! decides is in memory and rebuilt at open by sequential scans, so no table that
//! changes with every request needs an index on a hash.
//!
//! Failure modes:
//! - *A crash* loses nothing that was answered, except that leases and extends may be
//!   forgotten that no commit had written yet: those requests are handed out again,
//!   under tokens of the new epoch.
//! - *A sync that fails* is fatal and never retried: what the disk kept is unknown, so
//!   every call from then on is refused until the store is opened again.
//! - *A full disk* refuses the batch; what was answered before is safe. The next call
//!   opens the file again, and goes on if there is room. So it is after a failed read.

mod archive;
mod disk;
mod file;
mod log;
mod reader;
mod recent;
mod round;
mod rows;
mod runs;
mod vitals;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::{Semaphore, oneshot};

use super::op::{Op, Outcome};
use super::query::{Query, Reply};
use super::witness::Witness;
use super::{Changes, Hints, Options, Store, StoreError, StoreFuture, Topic, check_batch};
use crate::clock::Clock;
pub(super) use archive::SqliteContents;
use reader::Reader;
use round::{Job, Jobs, Waiting};
pub(super) use vitals::vitals;
pub use writer::Glimpse;
use writer::{Watch, Writer};

/// How many calls may wait for the thread.
const WAITING_MAX: usize = 8192;

/// A handle on the thread that has the file.
struct Worker {
    jobs: mpsc::Sender<Waiting>,
    waiting: Arc<Semaphore>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Worker {
    fn start(name: &str, run: impl FnOnce(Jobs) + Send + 'static) -> std::io::Result<Worker> {
        let (jobs, received) = mpsc::channel();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(received))?;
        Ok(Worker { jobs, waiting: Arc::new(Semaphore::new(WAITING_MAX)), thread: Mutex::new(Some(thread)) })
    }

    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Job) -> Result<T, StoreError> {
        let permit = self.waiting.clone().acquire_owned().await.map_err(|_closed| StoreError::Closed)?;
        let (answer, answered) = oneshot::channel();
        self.jobs.send((job(answer), Some(permit))).map_err(|_gone| StoreError::Closed)?;
        answered.await.map_err(|_gone| StoreError::Unknown)?
    }

    /// Tells the thread to end; answers how to wait until it has let go of the file.
    fn end(&self, job: Job) -> impl FnOnce() + Send + 'static {
        self.waiting.close();
        let _already_gone = self.jobs.send((job, None));
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        move || {
            if thread.is_some_and(|thread| thread.join().is_err()) {
                tracing::error!("the store's thread panicked");
            }
        }
    }

    fn stop(&self, job: Job) {
        self.end(job)();
    }

    async fn close(&self) -> Result<(), StoreError> {
        tokio::task::spawn_blocking(self.end(Job::Close)).await.map_err(|_panicked| StoreError::Unknown)
    }
}

/// The embedded store. Dropping it writes what is unwritten and lets go of the file.
pub struct SqliteStore {
    worker: Worker,
    hints: Arc<Hints>,
}

impl SqliteStore {
    /// Opens or creates the store in this file and takes ownership of it.
    pub fn open(path: impl AsRef<Path>, clock: Arc<dyn Clock>, options: Options) -> Result<SqliteStore, StoreError> {
        SqliteStore::start(path.as_ref(), clock, options, None)
    }

    /// Opens the store with somebody who watches what goes into each commit.
    #[cfg(feature = "testkit")]
    pub fn open_watched(
        path: impl AsRef<Path>,
        clock: Arc<dyn Clock>,
        options: Options,
        watch: impl FnMut(Glimpse<'_>) + Send + 'static,
    ) -> Result<SqliteStore, StoreError> {
        SqliteStore::start(path.as_ref(), clock, options, Some(Box::new(watch)))
    }

    fn start(path: &Path, clock: Arc<dyn Clock>, options: Options, watch: Watch) -> Result<SqliteStore, StoreError> {
        let hints = Arc::new(Hints::default());
        let (opened, result) = mpsc::channel();
        let (at, given) = (path.to_owned(), hints.clone());
        let run = move |jobs| {
            Writer::run(&at, clock, options, given, watch, jobs, move |how| {
                let _caller_waits = opened.send(how);
            });
        };
        let worker = Worker::start("roundtrip-sqlite", run).map_err(|error| file::io_error(path, error.to_string()))?;
        result.recv().unwrap_or(Err(StoreError::Closed))?;
        Ok(SqliteStore { worker, hints })
    }

    /// Ends as a crash would: what no commit has written is lost.
    #[cfg(feature = "testkit")]
    pub fn crash(self) {
        self.worker.stop(Job::Crash);
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.worker.stop(Job::Close);
    }
}

impl Store for SqliteStore {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            check_batch(&batch)?;
            self.worker.ask(|answer| Job::Apply(batch, answer)).await
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        Box::pin(self.worker.ask(|answer| Job::Read(query, answer)))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.worker.close())
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.hints.follow(topic)
    }

    fn witness(&self, witness: Arc<dyn Witness>) {
        self.hints.show(witness);
    }
}

/// Reads a store's file beside the process that owns it.
///
/// Every read sees one commit. The state is rebuilt from the file when the file has
/// changed since the last read, which takes as long as opening the store does.
pub struct SqliteReader {
    worker: Worker,
    hints: Hints,
}

impl SqliteReader {
    /// Opens the file for reading only.
    pub fn open(path: impl AsRef<Path>, clock: Arc<dyn Clock>, options: Options) -> Result<SqliteReader, StoreError> {
        let path: PathBuf = path.as_ref().to_owned();
        let conn = file::open_for_reading(&path)?;
        file::refuse_half_copied(&conn, &path)?;
        let at = path.clone();
        let run = move |jobs: Jobs| Reader::new(at, conn, clock, options).run(&jobs);
        let worker =
            Worker::start("roundtrip-reader", run).map_err(|error| file::io_error(&path, error.to_string()))?;
        Ok(SqliteReader { worker, hints: Hints::default() })
    }
}

impl Drop for SqliteReader {
    fn drop(&mut self) {
        self.worker.stop(Job::Close);
    }
}

impl Store for SqliteReader {
    fn apply(&self, _batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async { Err(StoreError::ReadOnly) })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        Box::pin(self.worker.ask(|answer| Job::Read(query, answer)))
    }

    /// Gives the first hint only: a reader beside the owner polls.
    fn changes(&self, topic: Topic) -> Changes {
        self.hints.follow(topic)
    }
}
