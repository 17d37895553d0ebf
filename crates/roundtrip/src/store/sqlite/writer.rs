//! The thread that has the file: applies batches to the machine, writes their rows,
//! commits, and only then answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::disk::{SqliteDisk, meta, put_meta};
use super::file::{LogPages, Ownership, PAGE_BYTES, open_for_writing, store_error};
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
    /// The disk was full: the machine is ahead of the file and must be loaded again.
    Reopen,
    /// What the disk kept is unknown.
    Failed(StoreError),
}

/// The owner of the file.
pub(super) struct Writer {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    options: Options,
    hints: Arc<Hints>,
    opened: Option<Opened>,
    _owned: Ownership,
}

struct Opened {
    conn: Connection,
    log_pages: LogPages,
    machine: Machine,
}

impl Writer {
    pub(super) fn open(
        path: PathBuf,
        clock: Arc<dyn Clock>,
        options: Options,
        hints: Arc<Hints>,
    ) -> Result<Writer, StoreError> {
        let owned = Ownership::take(&path)?;
        let opened = Some(load(&path, &*clock, options)?);
        Ok(Writer { path, clock, options, hints, opened, _owned: owned })
    }

    /// Works until told to stop.
    pub(super) fn run(mut self, jobs: &Jobs) {
        loop {
            let exit = match self.opened.take() {
                Some(opened) => self.work(opened, jobs),
                None => self.try_again(jobs),
            };
            match exit {
                Exit::Close => return,
                Exit::Reopen => {}
                Exit::Failed(error) => {
                    tracing::error!(%error, "the store stopped");
                    return refuse_all(jobs, &error);
                }
            }
        }
    }

    /// Waits for a call, and opens the file again before answering it.
    fn try_again(&mut self, jobs: &Jobs) -> Exit {
        let Ok((job, _permit)) = jobs.recv() else { return Exit::Close };
        if matches!(job, Job::Close | Job::Crash) {
            return Exit::Close;
        }
        match load(&self.path, &*self.clock, self.options) {
            // The caller that brought the store back replays its batch like the others.
            Ok(opened) => {
                self.opened = Some(opened);
                refuse(job, &StoreError::DiskFull { path: self.path.display().to_string() });
                Exit::Reopen
            }
            Err(error @ StoreError::DiskFull { .. }) => {
                refuse(job, &error);
                Exit::Reopen
            }
            Err(error) => {
                refuse(job, &error);
                Exit::Failed(error)
            }
        }
    }

    fn work(&self, opened: Opened, jobs: &Jobs) -> Exit {
        let Opened { conn, log_pages, mut machine } = opened;
        let mut disk = match SqliteDisk::new(&conn) {
            Ok(disk) => disk,
            Err(error) => return Exit::Failed(store_error(&self.path, &error)),
        };
        let lease_write = Duration::from_millis(self.options.lease_write_ms);
        let mut unwritten = false;
        let exit = loop {
            let received = if unwritten { jobs.recv_timeout(lease_write) } else { jobs.recv().map_err(Into::into) };
            let (committed, answer) = match received {
                Ok((Job::Apply(batch, answer), _permit)) => {
                    let forgettable = batch.iter().all(Op::may_be_forgotten);
                    machine.tick(&mut disk, self.clock.now());
                    let outcomes: Vec<Outcome> = batch.into_iter().map(|op| machine.apply(&mut disk, op)).collect();
                    if forgettable && !disk.is_dirty() {
                        unwritten = machine.is_dirty();
                        self.hints.give(machine.take_touched());
                        let _gone = answer.send(self.end_reads(&mut disk, outcomes));
                        continue;
                    }
                    (self.commit(&mut machine, &mut disk), Some((answer, outcomes)))
                }
                Ok((Job::Read(query, answer), _permit)) => {
                    machine.set_now(self.clock.now());
                    let reply = machine.read(&mut disk, query);
                    let _gone = answer.send(self.end_reads(&mut disk, reply));
                    continue;
                }
                Ok((Job::Crash, _)) => return Exit::Close,
                Err(RecvTimeoutError::Timeout) => (self.commit(&mut machine, &mut disk), None),
                Ok((Job::Close, _)) | Err(RecvTimeoutError::Disconnected) => {
                    // The second commit writes the leases that the first found too fresh.
                    let written = self.commit(&mut machine, &mut disk);
                    break match written.and_then(|()| self.commit(&mut machine, &mut disk)) {
                        Ok(()) => Exit::Close,
                        Err(error) => Exit::Failed(error),
                    };
                }
            };
            unwritten = machine.is_dirty();
            match committed {
                Ok(()) => {
                    if let Some((answer, outcomes)) = answer {
                        let _gone = answer.send(Ok(outcomes));
                    }
                    self.hints.give(machine.take_touched());
                }
                Err(error) => {
                    if let Some((answer, _)) = answer {
                        let _gone = answer.send(Err(error.clone()));
                    }
                    return if matches!(error, StoreError::DiskFull { .. }) {
                        Exit::Reopen
                    } else {
                        Exit::Failed(error)
                    };
                }
            }
            if log_pages.load(Ordering::Relaxed) >= CHECKPOINT_PAGES
                && let Err(error) = checkpoint(&conn, &log_pages)
            {
                let error = store_error(&self.path, &error);
                return if matches!(error, StoreError::DiskFull { .. }) { Exit::Reopen } else { Exit::Failed(error) };
            }
        };
        drop(disk);
        if let Err(error) = conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
            tracing::warn!(%error, "the log was not emptied; the next start reads it");
        }
        exit
    }

    /// An answer that needed no commit, unless the disk failed while it was read.
    fn end_reads<T>(&self, disk: &mut SqliteDisk<'_>, answer: T) -> Result<T, StoreError> {
        disk.end_reads().map_err(|error| store_error(&self.path, &error))?;
        Ok(answer)
    }

    fn commit(&self, machine: &mut Machine, disk: &mut SqliteDisk<'_>) -> Result<(), StoreError> {
        if machine.is_dirty() || disk.is_dirty() {
            machine.flush(disk);
            disk.commit().map_err(|error| store_error(&self.path, &error))?;
        }
        Ok(())
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
        let mut seen: Option<(i64, Machine)> = None;
        while let Ok((job, _permit)) = jobs.recv() {
            match job {
                Job::Read(query, answer) => {
                    let reply = self.read(&mut seen, query).map_err(|error| store_error(&self.path, &error));
                    let _gone = answer.send(reply);
                }
                Job::Apply(_, answer) => drop(answer.send(Err(StoreError::ReadOnly))),
                Job::Close | Job::Crash => return,
            }
        }
    }

    /// One read in one transaction, so that the machine and the bodies are of one commit.
    fn read(&self, seen: &mut Option<(i64, Machine)>, query: Query) -> rusqlite::Result<Reply> {
        let mut disk = SqliteDisk::new(&self.conn)?;
        disk.begin_snapshot()?;
        let version: i64 = self.conn.query_row("PRAGMA data_version", [], |row| row.get(0))?;
        let now = self.clock.now();
        let mut machine = match seen.take() {
            Some((of, machine)) if of == version => machine,
            _ => Machine::load(self.options, &SqliteRows(&self.conn), 0, now)?,
        };
        machine.set_now(now);
        let reply = machine.read(&mut disk, query);
        disk.end_reads()?;
        *seen = Some((version, machine));
        Ok(reply)
    }
}
