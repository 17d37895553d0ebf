//! Makes commits durable. SQLite writes them to its log and leaves the sync to this:
//! in place when nobody waits, on a thread of its own while the next commit is prepared.
//!
//! ```text
//!   commit n   ──▶ write ──▶ sync ──▶ answers
//!   commit n+1        ......└─▶ write ──▶ sync ──▶ answers
//! ```
//!
//! The log is read back as a chain, each commit sealed by the ones before it, so a power
//! cut keeps a prefix of the commits. At most one sync is under way, and nothing is
//! synced after one that failed: what the disk kept is then unknown.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use super::file::io_error;
use super::round::Answer;
use crate::store::{Hints, News, StoreError};

/// Who is to be told, and of what, once everything before is durable.
#[derive(Default)]
pub(super) struct Told {
    pub(super) answers: Vec<Answer>,
    pub(super) news: News,
}

impl Told {
    /// Hints first: by the time a caller is answered, whoever waits for its change is awake.
    fn tell(self, durable: &Result<(), StoreError>, hints: &Hints) {
        if durable.is_ok() {
            hints.tell_witness(&self.news.moves);
        }
        if durable.is_ok() && !self.news.touched.is_empty() {
            hints.give(self.news.touched);
        }
        for answer in self.answers {
            answer.tell(durable);
        }
    }

    /// Tells everybody that it went wrong.
    pub(super) fn refuse(self, error: &StoreError) {
        for answer in self.answers {
            answer.tell(&Err(error.clone()));
        }
    }
}

/// What the thread is asked: to sync first, or only to tell in its turn.
enum Message {
    SyncThenTell(Told),
    Tell(Told),
}

/// SQLite's log, as a file to be synced.
struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    fn sync(&self) -> Result<(), StoreError> {
        self.file.sync_data().map_err(|error| StoreError::Failed {
            path: self.path.display().to_string(),
            reason: format!("its log cannot be synced: {error}"),
        })
    }
}

/// How the thread's last sync stands.
enum LastSync {
    Done,
    UnderWay,
    Failed(StoreError),
}

/// The log with the thread that syncs it.
pub(super) struct Log {
    log: Arc<LogFile>,
    hints: Arc<Hints>,
    messages: Option<mpsc::Sender<Message>>,
    synced: mpsc::Receiver<Result<(), StoreError>>,
    last: LastSync,
    thread: Option<JoinHandle<()>>,
}

impl Log {
    /// Opens the log of this store, which SQLite must have created by now, and makes
    /// durable what is in it.
    pub(super) fn open(path: &Path, hints: Arc<Hints>) -> Result<Log, StoreError> {
        let mut name = path.as_os_str().to_owned();
        name.push("-wal");
        let name = PathBuf::from(name);
        let fail = |error: std::io::Error| io_error(&name, error.to_string());
        let log = Arc::new(LogFile { path: path.to_owned(), file: File::open(&name).map_err(fail)? });
        log.sync()?;
        let (messages, received) = mpsc::channel();
        let (tell_synced, synced) = mpsc::channel();
        let (its_log, its_hints) = (log.clone(), hints.clone());
        let run = move || sync_all(&its_log, &its_hints, &received, &tell_synced);
        let thread = std::thread::Builder::new().name("roundtrip-log".into()).spawn(run).map_err(fail)?;
        Ok(Log { log, hints, messages: Some(messages), synced, last: LastSync::Done, thread: Some(thread) })
    }

    /// Makes everything written so far durable and then tells; meanwhile the caller may
    /// go on, unless `in_place` says that it has nothing else to do.
    pub(super) fn sync(&mut self, told: Told, in_place: bool) -> Result<(), StoreError> {
        if let Err(error) = self.wait() {
            told.refuse(&error);
            return Err(error);
        }
        if in_place {
            self.note(self.log.sync());
            let synced = self.wait();
            told.tell(&synced, &self.hints);
            return synced;
        }
        self.last = LastSync::UnderWay;
        self.send(Message::SyncThenTell(told));
        Ok(())
    }

    /// Tells, in its turn, what needs no more than what was synced or is being synced.
    pub(super) fn tell(&mut self, told: Told) {
        if let (LastSync::UnderWay, Ok(synced)) = (&self.last, self.synced.try_recv()) {
            self.note(synced);
        }
        match &self.last {
            LastSync::Done => told.tell(&Ok(()), &self.hints),
            LastSync::UnderWay => self.send(Message::Tell(told)),
            LastSync::Failed(error) => told.refuse(error),
        }
    }

    /// Waits for the sync that is under way; tells how the last one ended.
    pub(super) fn wait(&mut self) -> Result<(), StoreError> {
        if let LastSync::UnderWay = self.last {
            let synced = self.synced.recv().unwrap_or(Err(StoreError::Unknown));
            self.note(synced);
        }
        match &self.last {
            LastSync::Failed(error) => Err(error.clone()),
            LastSync::Done | LastSync::UnderWay => Ok(()),
        }
    }

    fn note(&mut self, synced: Result<(), StoreError>) {
        self.last = match synced {
            Ok(()) => LastSync::Done,
            Err(error) => LastSync::Failed(error),
        };
    }

    fn send(&self, message: Message) {
        let sent = self.messages.as_ref().map(|messages| messages.send(message));
        if !matches!(sent, Some(Ok(()))) {
            tracing::error!("the thread that syncs the log is gone: callers learn nothing");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        drop(self.messages.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that syncs the log panicked");
        }
    }
}

/// Syncs and tells in the order of the messages until the log is dropped.
fn sync_all(
    log: &LogFile,
    hints: &Hints,
    messages: &mpsc::Receiver<Message>,
    synced: &mpsc::Sender<Result<(), StoreError>>,
) {
    let mut durable = Ok(());
    for message in messages {
        let told = match message {
            Message::Tell(told) => told,
            Message::SyncThenTell(told) => {
                if durable.is_ok() {
                    durable = log.sync();
                }
                // The writer is waiting for this more often than the callers are.
                let _writer_gone = synced.send(durable.clone());
                told
            }
        };
        told.tell(&durable, hints);
    }
}
