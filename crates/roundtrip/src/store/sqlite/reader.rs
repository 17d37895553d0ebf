//! Reads a store's file beside the process that owns it.

use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::Connection;

use super::disk::{SqliteDisk, meta};
use super::file::store_error;
use super::round::{Job, Jobs};
use super::rows::SqliteRows;
use crate::clock::Clock;
use crate::store::machine::Machine;
use crate::store::query::{Query, Reply};
use crate::store::{NO_EPOCH, Options, StoreError};

/// The thread that reads beside the owner.
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
                machine: Machine::load(self.options, &SqliteRows(&self.conn), NO_EPOCH, now)?,
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
