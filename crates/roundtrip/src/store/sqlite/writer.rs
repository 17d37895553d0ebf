//! The thread that has the file: applies batches to the machine, writes their rows,
//! commits, and only then answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::disk::{SqliteDisk, meta, put_meta};
use super::file::{LogPages, Ownership, PAGE_BYTES, canonical, open_for_writing, store_error, sync_directory};
use super::rows::SqliteRows;
use crate::clock::Clock;
use crate::store::machine::{Machine, next_epoch};
use crate::store::op::{Op, Outcome};
use crate::store::query::{Query, Reply};
use crate::store::{Hints, Options, StoreError};

/// At how many pages the log is copied back into the file.
const CHECKPOINT_PAGES: u64 = (32 << 20) / PAGE_BYTES;
/// At how many pages somebody should know that a reader holds the log up.
const LOG_PAGES_WARN: u64 = (1 << 30) / PAGE_BYTES;

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the thread is asked to do.
pub(super) enum Job {
    Apply(Vec<Op>, Answer<Vec<Outcome>>),
    Read(Query, Answer<Reply>),
    Close,
    #[cfg_attr(not(feature = "testkit"), expect(dead_code, reason = "only the testkit crashes a store"))]
    Crash,
}

pub(super) type Jobs = Receiver<(Job, Option<OwnedSemaphorePermit>)>;

/// Why a round of work ended.
enum Exit {
    Close,
    /// The machine is ahead of the file, or a read failed: both must be opened again.
    Reopen,
    /// What the disk kept is unknown.
    Failed(StoreError),
}

impl Exit {
    /// A full disk keeps what it had; after any other failed commit that is unknown.
    fn after_commit(error: StoreError) -> Exit {
        if matches!(error, StoreError::DiskFull { .. }) { Exit::Reopen } else { Exit::Failed(error) }
    }
}

/// The owner of the file.
pub(super) struct Writer {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    options: Options,
    hints: Arc<Hints>,
    _owned: Ownership,
}

/// A file that was opened, and the machine that was loaded from it.
pub(super) struct Opened {
    conn: Connection,
    log_pages: LogPages,
    machine: Machine,
}

impl Writer {
    pub(super) fn open(
        path: &Path,
        clock: Arc<dyn Clock>,
        options: Options,
        hints: Arc<Hints>,
    ) -> Result<(Writer, Opened), StoreError> {
        let path = canonical(path)?;
        let owned = Ownership::take(&path)?;
        let opened = load(&path, &*clock, options)?;
        Ok((Writer { path, clock, options, hints, _owned: owned }, opened))
    }

    /// Works until told to stop.
    pub(super) fn run(self, opened: Opened, jobs: &Jobs) {
        let mut exit = self.work(opened, None, jobs);
        loop {
            exit = match exit {
                Exit::Close => return,
                Exit::Reopen => self.try_again(jobs),
                Exit::Failed(error) => {
                    tracing::error!(%error, "the store stopped");
                    return refuse_all(jobs, &error);
                }
            }
        }
    }

    /// Waits for a call, and opens the file again to answer it.
    fn try_again(&self, jobs: &Jobs) -> Exit {
        let Ok((job, _permit)) = jobs.recv() else { return Exit::Close };
        if matches!(job, Job::Close | Job::Crash) {
            return Exit::Close;
        }
        match load(&self.path, &*self.clock, self.options) {
            Ok(opened) => self.work(opened, Some(job), jobs),
            Err(error) => {
                refuse(job, &error);
                Exit::after_commit(error)
            }
        }
    }

    /// Does one job after the other on an open file.
    fn work(&self, opened: Opened, first: Option<Job>, jobs: &Jobs) -> Exit {
        let Opened { conn, log_pages, machine } = opened;
        let mut desk = match SqliteDisk::new(&conn) {
            Ok(disk) => Desk { writer: self, machine, disk, write_by: None },
            Err(error) => return Exit::Failed(store_error(&self.path, &error)),
        };
        let mut next = first;
        let exit = loop {
            let job = next.take().map_or_else(|| desk.wait_for_job(jobs), |job| Ok((job, None)));
            let done = match job {
                Ok((Job::Apply(batch, answer), _permit)) => desk.apply(batch, answer),
                Ok((Job::Read(query, answer), _permit)) => desk.read(query, answer),
                Ok((Job::Crash, _)) => return Exit::Close,
                Err(RecvTimeoutError::Timeout) => desk.write_leases(),
                Ok((Job::Close, _)) | Err(RecvTimeoutError::Disconnected) => break desk.write_leases(),
            };
            let checkpointed = done.and_then(|()| {
                if log_pages.load(Ordering::Relaxed) < CHECKPOINT_PAGES {
                    return Ok(());
                }
                checkpoint(&conn, &log_pages).map_err(|error| Exit::after_commit(store_error(&self.path, &error)))
            });
            if let Err(exit) = checkpointed {
                return exit;
            }
        };
        drop(desk);
        if let Err(exit) = exit {
            return exit;
        }
        if let Err(error) = conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
            tracing::warn!(%error, "the log was not emptied; the next start reads it");
        }
        Exit::Close
    }
}

/// Where the thread does its jobs while the file is open.
struct Desk<'w, 'c> {
    writer: &'w Writer,
    machine: Machine,
    disk: SqliteDisk<'c>,
    /// When leases must be written that no commit has written yet.
    write_by: Option<Instant>,
}

impl Desk<'_, '_> {
    fn wait_for_job(&self, jobs: &Jobs) -> Result<(Job, Option<OwnedSemaphorePermit>), RecvTimeoutError> {
        match self.write_by {
            None => jobs.recv().map_err(Into::into),
            // A crowd of jobs does not put the writing off.
            Some(by) => match by.checked_duration_since(Instant::now()) {
                Some(left) => jobs.recv_timeout(left),
                None => Err(RecvTimeoutError::Timeout),
            },
        }
    }

    fn apply(&mut self, batch: Vec<Op>, answer: Answer<Vec<Outcome>>) -> Result<(), Exit> {
        let Desk { writer, machine, disk, .. } = self;
        let forgettable = batch.iter().all(Op::may_be_forgotten);
        machine.tick(disk, writer.clock.now());
        let outcomes: Vec<Outcome> = batch.into_iter().map(|op| machine.apply(disk, op)).collect();
        if forgettable && !disk.is_dirty() {
            writer.hints.give(machine.take_touched());
            self.note_unwritten();
            return self.answer_read(outcomes, answer);
        }
        match self.commit() {
            Ok(()) => {
                let _gone = answer.send(Ok(outcomes));
                Ok(())
            }
            Err(error) => {
                let _gone = answer.send(Err(error.clone()));
                Err(Exit::after_commit(error))
            }
        }
    }

    fn read(&mut self, query: Query, answer: Answer<Reply>) -> Result<(), Exit> {
        self.machine.set_now(self.writer.clock.now());
        let reply = self.machine.read(&mut self.disk, query);
        self.answer_read(reply, answer)
    }

    /// Answers what needed no commit, unless the disk failed while it was read: then the
    /// file is opened again, since SQLite may have ended the transaction by itself.
    fn answer_read<T>(&mut self, reply: T, answer: Answer<T>) -> Result<(), Exit> {
        match self.disk.end_reads() {
            Ok(()) => {
                let _gone = answer.send(Ok(reply));
                Ok(())
            }
            Err(error) => {
                let _gone = answer.send(Err(store_error(&self.writer.path, &error)));
                Err(Exit::Reopen)
            }
        }
    }

    /// Writes what no commit has written; a second commit for leases that the first found too fresh.
    fn write_leases(&mut self) -> Result<(), Exit> {
        self.commit().and_then(|()| self.commit()).map_err(Exit::after_commit)
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        let Desk { writer, machine, disk, .. } = self;
        if machine.is_dirty() || disk.is_dirty() {
            machine.flush(disk);
            disk.commit().map_err(|error| store_error(&writer.path, &error))?;
            writer.hints.give(machine.take_touched());
        }
        self.write_by = None;
        self.note_unwritten();
        Ok(())
    }

    fn note_unwritten(&mut self) {
        if self.write_by.is_none() && self.machine.is_dirty() {
            self.write_by = Some(Instant::now() + Duration::from_millis(self.writer.options.lease_write_ms));
        }
    }
}

/// Loads the machine in a new epoch, which is durable before the first token is issued.
fn load(path: &Path, clock: &dyn Clock, options: Options) -> Result<Opened, StoreError> {
    let (conn, log_pages) = open_for_writing(path)?;
    let opened = (|| {
        let last = meta(&conn, "epoch")?.unwrap_or(0);
        let now = clock.now();
        let epoch = next_epoch(last, now);
        put_meta(&conn, "epoch", epoch)?;
        Machine::load(options, &SqliteRows(&conn), epoch, now)
    })();
    let machine = opened.map_err(|error| store_error(path, &error))?;
    sync_directory(path)?;
    Ok(Opened { conn, log_pages, machine })
}

/// Copies the log back into the file as far as readers allow.
fn checkpoint(conn: &Connection, log_pages: &LogPages) -> rusqlite::Result<()> {
    let (log, copied): (i64, i64) =
        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?)))?;
    if log == copied {
        // The next commit begins the log anew.
        log_pages.store(0, Ordering::Relaxed);
    } else if u64::try_from(log).is_ok_and(|log| log > LOG_PAGES_WARN) {
        tracing::warn!(pages = log, "a reader keeps the log from being emptied: it grows until that reader is done");
    }
    Ok(())
}

fn refuse(job: Job, error: &StoreError) {
    match job {
        Job::Apply(_, answer) => drop(answer.send(Err(error.clone()))),
        Job::Read(_, answer) => drop(answer.send(Err(error.clone()))),
        Job::Close | Job::Crash => {}
    }
}

fn refuse_all(jobs: &Jobs, error: &StoreError) {
    while let Ok((job, _permit)) = jobs.recv() {
        match job {
            Job::Close | Job::Crash => return,
            job => refuse(job, error),
        }
    }
}

/// Reads beside the owner.
pub(super) struct Reader {
    path: PathBuf,
    conn: Connection,
    clock: Arc<dyn Clock>,
    options: Options,
}

impl Reader {
    pub(super) fn new(path: PathBuf, conn: Connection, clock: Arc<dyn Clock>, options: Options) -> Reader {
        Reader { path, conn, clock, options }
    }

    pub(super) fn run(self, jobs: &Jobs) {
        let mut seen = None;
        while let Ok((job, _permit)) = jobs.recv() {
            match job {
                Job::Read(query, answer) => {
                    let reply = self.read_snapshot(&mut seen, query);
                    let _gone = answer.send(reply.map_err(|error| store_error(&self.path, &error)));
                }
                Job::Apply(_, answer) => drop(answer.send(Err(StoreError::ReadOnly))),
                Job::Close | Job::Crash => return,
            }
        }
    }

    /// One read in one transaction, so that the machine and the bodies are of one
    /// commit; the transaction ends however the read does, or the owner's log would grow.
    fn read_snapshot<'c>(&'c self, seen: &mut Option<Seen<'c>>, query: Query) -> rusqlite::Result<Reply> {
        self.conn.execute_batch("BEGIN")?;
        let reply = self.read(seen, query);
        if reply.is_err() {
            *seen = None;
        }
        if !self.conn.is_autocommit() {
            self.conn.execute_batch("ROLLBACK")?;
        }
        reply
    }

    fn read<'c>(&'c self, seen: &mut Option<Seen<'c>>, query: Query) -> rusqlite::Result<Reply> {
        // The snapshot is taken by the first look into the file.
        meta(&self.conn, "epoch")?;
        let version: i64 = self.conn.query_row("PRAGMA data_version", [], |row| row.get(0))?;
        let now = self.clock.now();
        let current = match seen.take().filter(|seen| seen.version == version) {
            Some(current) => current,
            None => Seen {
                version,
                machine: Machine::load(self.options, &SqliteRows(&self.conn), 0, now)?,
                disk: SqliteDisk::within_transaction(&self.conn)?,
            },
        };
        let Seen { machine, disk, .. } = seen.insert(current);
        machine.set_now(now);
        let reply = machine.read(disk, query);
        disk.take_failure().map_or(Ok(reply), Err)
    }
}

/// What a reader built when it last found the file changed.
struct Seen<'c> {
    version: i64,
    machine: Machine,
    disk: SqliteDisk<'c>,
}
