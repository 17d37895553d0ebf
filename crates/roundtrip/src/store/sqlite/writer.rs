//! The thread that has the file: applies what queued up to the machine, writes the rows,
//! commits, and only when the commit is durable answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::disk::{SqliteDisk, meta, put_meta};
use super::file::{
    LogPages, Ownership, PAGE_BYTES, canonical, open_for_writing, refuse_half_copied, store_error, sync_directory,
};
use super::log::{Log, Told};
use super::round::{Answer, End, Job, Jobs, Round};
use super::rows::SqliteRows;
use crate::clock::Clock;
use crate::store::machine::{Machine, next_epoch};
use crate::store::op::{Op, Outcome};
use crate::store::{Hints, Options, StoreError, Topic};
use crate::words::UnixMs;

/// At how many pages the log is copied back into the file.
const CHECKPOINT_PAGES: u64 = (64 << 20) / PAGE_BYTES;
/// At how many pages somebody should know that a reader holds the log up.
const LOG_PAGES_WARN: u64 = (1 << 30) / PAGE_BYTES;

/// What a watcher of the store's commits is shown.
#[derive(Clone, Copy, Debug)]
pub enum Glimpse<'a> {
    /// The outcomes of one call.
    Outcomes(&'a [Outcome]),
    /// All of them since the last commit are written together.
    Commit,
}

/// Watches what goes into each commit.
pub(super) type Watch = Option<Box<dyn FnMut(Glimpse<'_>) + Send>>;

/// Why the work on an open file ended.
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
    watch: Watch,
    jobs: Jobs,
    /// Taken from the queue already, to see whether anybody waits.
    next: Option<Job>,
    _owned: Ownership,
}

/// A file that was opened, and the machine that was loaded from it.
struct Opened {
    conn: Connection,
    log_pages: LogPages,
    log: Log,
    machine: Machine,
}

impl Writer {
    /// Opens the file, reports how that went, and works until told to stop.
    pub(super) fn run(
        path: &Path,
        clock: Arc<dyn Clock>,
        options: Options,
        hints: Arc<Hints>,
        watch: Watch,
        jobs: Jobs,
        report: impl FnOnce(Result<(), StoreError>),
    ) {
        let opened = canonical(path).and_then(|path| {
            let owned = Ownership::take(&path)?;
            let writer = Writer { path, clock, options, hints, watch, jobs, next: None, _owned: owned };
            let opened = writer.load()?;
            Ok((writer, opened))
        });
        match opened {
            Ok((writer, opened)) => {
                report(Ok(()));
                writer.work_on(opened);
            }
            Err(error) => report(Err(error)),
        }
    }

    /// Loads the machine in a new epoch, which is durable before the first token is issued.
    fn load(&self) -> Result<Opened, StoreError> {
        let (conn, log_pages) = open_for_writing(&self.path)?;
        refuse_half_copied(&conn, &self.path)?;
        let loaded = (|| {
            let last = meta(&conn, "epoch")?.unwrap_or(0);
            let now = self.clock.now();
            let epoch = next_epoch(last, now);
            put_meta(&conn, "epoch", epoch)?;
            Machine::load(self.options, &SqliteRows(&conn), epoch, now)
        })();
        let machine = loaded.map_err(|error| store_error(&self.path, &error))?;
        let log = Log::open(&self.path, self.hints.clone())?;
        sync_directory(&self.path)?;
        Ok(Opened { conn, log_pages, log, machine })
    }

    fn work_on(mut self, opened: Opened) {
        let mut exit = self.work(opened);
        loop {
            exit = match exit {
                Exit::Close => return,
                Exit::Reopen => self.try_again(),
                Exit::Failed(error) => {
                    tracing::error!(%error, "the store stopped");
                    return self.refuse_all(&error);
                }
            }
        }
    }

    /// Waits for a call, and opens the file again to answer it.
    fn try_again(&mut self) -> Exit {
        let Some(job) = self.next.take().or_else(|| self.jobs.recv().ok().map(|(job, _permit)| job)) else {
            return Exit::Close;
        };
        if matches!(job, Job::Close | Job::Crash) {
            return Exit::Close;
        }
        match self.load() {
            Ok(opened) => {
                self.next = Some(job);
                self.work(opened)
            }
            Err(error) => {
                job.refuse(&error);
                Exit::after_commit(error)
            }
        }
    }

    /// Does one round of jobs after the other on an open file.
    fn work(&mut self, opened: Opened) -> Exit {
        let Opened { conn, log_pages, log, machine } = opened;
        let disk = match SqliteDisk::new(&conn) {
            Ok(disk) => disk,
            Err(error) => return Exit::Failed(store_error(&self.path, &error)),
        };
        let mut desk = Desk { writer: self, machine, disk, log, write_by: None };
        loop {
            let done = match desk.wait_for_job() {
                Ok(job) => {
                    let round = Round::gather(job, &desk.writer.jobs);
                    if round.end == Some(End::Crash) {
                        return Exit::Close;
                    }
                    let end = round.end;
                    desk.do_round(round).map(|()| end)
                }
                Err(RecvTimeoutError::Timeout) => desk.wake().map(|()| None),
                Err(RecvTimeoutError::Disconnected) => Ok(Some(End::Close)),
            };
            let goes_on = done.and_then(|end| desk.checkpoint(&conn, &log_pages).map(|()| end.is_none()));
            match goes_on {
                Ok(true) => {}
                Ok(false) => break,
                Err(exit) => return exit,
            }
        }
        let written = desk.write_leases();
        drop(desk);
        if let Err(exit) = written {
            return exit;
        }
        if let Err(error) = conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
            tracing::warn!(%error, "the log was not emptied; the next start reads it");
        }
        Exit::Close
    }

    fn refuse_all(mut self, error: &StoreError) {
        while let Some(job) = self.next.take().or_else(|| self.jobs.recv().ok().map(|(job, _permit)| job)) {
            match job {
                Job::Close | Job::Crash => return,
                job => job.refuse(error),
            }
        }
    }
}

/// Where the thread does its jobs while the file is open.
struct Desk<'w, 'c> {
    writer: &'w mut Writer,
    machine: Machine,
    disk: SqliteDisk<'c>,
    log: Log,
    /// When leases must be written that no commit has written yet.
    write_by: Option<Instant>,
}

impl Desk<'_, '_> {
    fn wait_for_job(&mut self) -> Result<Job, RecvTimeoutError> {
        if let Some(job) = self.writer.next.take() {
            return Ok(job);
        }
        let job = match self.sleep_at_most() {
            None => self.writer.jobs.recv().map_err(Into::into),
            // A crowd of jobs does not put off what is overdue.
            Some(Duration::ZERO) => Err(RecvTimeoutError::Timeout),
            Some(left) => self.writer.jobs.recv_timeout(left),
        };
        job.map(|(job, _permit)| job)
    }

    /// How long until leases must be written, or until the next request comes due.
    fn sleep_at_most(&self) -> Option<Duration> {
        let until_due = |due: UnixMs| Duration::from_millis(due.0.saturating_sub(self.writer.clock.now().0));
        let due = self.machine.next_due().map(until_due);
        let write = self.write_by.map(|by| by.saturating_duration_since(Instant::now()));
        due.into_iter().chain(write).min()
    }

    /// Does what nobody asks for: tells of what has come due, and writes leases.
    fn wake(&mut self) -> Result<(), Exit> {
        self.do_round(Round::default())?;
        if self.write_by.is_some_and(|by| by <= Instant::now()) { self.write_leases() } else { Ok(()) }
    }

    /// Does the jobs, commits, and sees to it that everybody is answered: those who need
    /// no commit of theirs as soon as the one before is durable.
    fn do_round(&mut self, round: Round) -> Result<(), Exit> {
        self.machine.tick(&mut self.disk, self.writer.clock.now());
        let mut told = Told::default();
        for (ops, caller) in round.quick {
            told.answers.push(Answer::Outcomes(caller, self.apply(ops)));
        }
        for (query, caller) in round.reads {
            told.answers.push(Answer::Reply(caller, self.machine.read(&mut self.disk, query)));
        }
        if !self.disk.has_written() {
            let told = std::mem::take(&mut told);
            self.answer_without_commit(told)?;
        }
        if round.calls.is_empty() && told.answers.is_empty() && !self.disk.has_written() {
            self.note_unwritten();
            return Ok(());
        }
        for (ops, caller) in round.calls {
            told.answers.push(Answer::Outcomes(caller, self.apply(ops)));
        }
        self.commit(told)
    }

    fn apply(&mut self, ops: Vec<Op>) -> Vec<Outcome> {
        let outcomes: Vec<Outcome> = ops.into_iter().map(|op| self.machine.apply(&mut self.disk, op)).collect();
        if let Some(watch) = &mut self.writer.watch {
            watch(Glimpse::Outcomes(&outcomes));
        }
        outcomes
    }

    /// Answers what needed no commit, unless the disk failed while it was read: then the
    /// file is opened again, since SQLite may have ended the transaction by itself.
    fn answer_without_commit(&mut self, mut told: Told) -> Result<(), Exit> {
        if let Err(error) = self.disk.end_reads() {
            told.refuse(&store_error(&self.writer.path, &error));
            return Err(self.log.wait().map_or_else(Exit::Failed, |()| Exit::Reopen));
        }
        told.news = self.machine.take_news();
        self.log.tell(told);
        Ok(())
    }

    /// Writes what no commit has written; a second commit for leases that the first found too fresh.
    fn write_leases(&mut self) -> Result<(), Exit> {
        self.commit(Told::default()).and_then(|()| self.commit(Told::default()))?;
        self.log.wait().map_err(Exit::Failed)
    }

    /// Writes what changed and has it made durable, then tells; if jobs are waiting, those
    /// are done meanwhile.
    fn commit(&mut self, mut told: Told) -> Result<(), Exit> {
        self.write_by = None;
        if !self.machine.is_dirty() && !self.disk.is_dirty() {
            self.answer_without_commit(told)?;
        } else {
            self.machine.flush(&mut self.disk);
            if let Err(error) = self.disk.commit() {
                let error = store_error(&self.writer.path, &error);
                told.refuse(&error);
                return Err(self.log.wait().map_or_else(Exit::Failed, |()| Exit::after_commit(error)));
            }
            if let Some(watch) = &mut self.writer.watch {
                watch(Glimpse::Commit);
            }
            told.news = self.machine.take_news();
            told.news.touched.insert(Topic::Journal);
            if self.writer.next.is_none() {
                self.writer.next = self.writer.jobs.try_recv().ok().map(|(job, _permit)| job);
            }
            self.log.sync(told, self.writer.next.is_none()).map_err(Exit::Failed)?;
        }
        self.note_unwritten();
        Ok(())
    }

    fn note_unwritten(&mut self) {
        if self.write_by.is_none() && self.machine.is_dirty() {
            self.write_by = Some(Instant::now() + Duration::from_millis(self.writer.options.lease_write_ms));
        }
    }

    /// Copies a log that has become long back into the file, as far as readers allow.
    fn checkpoint(&mut self, conn: &Connection, log_pages: &LogPages) -> Result<(), Exit> {
        if log_pages.load(Ordering::Relaxed) < CHECKPOINT_PAGES {
            return Ok(());
        }
        self.log.wait().map_err(Exit::Failed)?;
        let copy = "PRAGMA wal_checkpoint(PASSIVE)";
        let (log, copied): (i64, i64) = conn
            .query_row(copy, [], |row| Ok((row.get(1)?, row.get(2)?)))
            .map_err(|error| Exit::after_commit(store_error(&self.writer.path, &error)))?;
        if log == copied {
            // The next commit begins the log anew.
            log_pages.store(0, Ordering::Relaxed);
        } else if u64::try_from(log).is_ok_and(|log| log > LOG_PAGES_WARN) {
            tracing::warn!(
                pages = log,
                "a reader keeps the log from being emptied: it grows until that reader is done"
            );
        }
        Ok(())
    }
}
