//! The file: who owns it, what is in it, how SQLite is to treat it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};

use super::runs;
use crate::store::StoreError;

/// The format that this version writes, and the newest that it reads.
const FORMAT: u32 = 1;
/// Marks the file as ours, for SQLite's and everybody's `file` command.
const APPLICATION_ID: i32 = 0x5254_5250;
/// Large pages cost fewer calls of the system when much is committed, small ones fewer
/// bytes when little is.
pub(super) const PAGE_BYTES: u64 = 8192;
/// What SQLite may keep of the file in memory.
const CACHE_KIB: i32 = 16 * 1024;
/// How large the log's file stays when it is empty.
const LOG_BYTES_KEPT: i32 = 64 << 20;

/// A process that is just being started by this one holds its locks too, until it runs its
/// own program: a lock that this process gave up is waited for that long.
const FORK_MAX: Duration = Duration::from_millis(500);
/// How often it is looked at meanwhile.
const FORK_LOOK: Duration = Duration::from_millis(5);

const SCHEMA: &str = include_str!("schema.sql");

/// The right to write, held as long as the process lives and holds this.
///
/// The lock is on a file of its own: closing any handle of the database's own file
/// would drop the locks that SQLite holds on it.
pub(super) struct Ownership {
    _lock: File,
}

/// The one name of a file that may have several, so that all of them share one lock.
pub(super) fn canonical(path: &Path) -> Result<PathBuf, StoreError> {
    let fail = |error: std::io::Error| io_error(path, error.to_string());
    if path.exists() {
        return path.canonicalize().map_err(fail);
    }
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| io_error(path, "it has no file name".into()))?;
    Ok(folder.canonicalize().map_err(fail)?.join(name))
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

impl Ownership {
    pub(super) fn take(path: &Path) -> Result<Ownership, StoreError> {
        let lock_path = lock_path(path);
        let io = |error: std::io::Error| io_error(&lock_path, error.to_string());
        let mut lock = OpenOptions::new();
        let mut lock = lock.read(true).write(true).create(true).truncate(false).open(&lock_path).map_err(io)?;
        let started = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(std::fs::TryLockError::Error(error)) => return Err(io(error)),
                Err(std::fs::TryLockError::WouldBlock) => {}
            }
            let mut owner = String::new();
            lock.rewind().map_err(io)?;
            lock.read_to_string(&mut owner).map_err(io)?;
            if owner != std::process::id().to_string() || started.elapsed() > FORK_MAX {
                let owner = if owner.is_empty() { "unknown".to_owned() } else { owner };
                return Err(StoreError::Owned { path: path.display().to_string(), owner });
            }
            std::thread::sleep(FORK_LOOK);
        }
        lock.set_len(0).map_err(io)?;
        lock.rewind().map_err(io)?;
        write!(lock, "{}", std::process::id()).map_err(io)?;
        Ok(Ownership { _lock: lock })
    }
}

pub(super) fn io_error(path: &Path, reason: String) -> StoreError {
    StoreError::Io { path: path.display().to_string(), reason }
}

/// An error of SQLite's as a condition that callers can tell apart.
pub(super) fn store_error(path: &Path, error: &rusqlite::Error) -> StoreError {
    let (path, reason) = (path.display().to_string(), error.to_string());
    // SQLite's shared memory is a file too; that it cannot grow is all that is wrong.
    let no_room = error.sqlite_error().is_some_and(|error| error.extended_code == ffi::SQLITE_IOERR_SHMSIZE);
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::DiskFull { path },
        _ if no_room => StoreError::DiskFull { path },
        Some(ErrorCode::NotADatabase) => StoreError::NotAStore { path, reason },
        _ => StoreError::Failed { path, reason },
    }
}

/// How many pages the log holds, kept up to date by SQLite after every commit.
pub(super) type LogPages = Arc<AtomicU64>;

/// Opens the file for writing, creates what is missing, refuses what is not ours.
pub(super) fn open_for_writing(path: &Path) -> Result<(Connection, LogPages), StoreError> {
    // No URIs: a name that SQLite reads in its own way would be locked under another.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags).map_err(|error| io_error(path, error.to_string()))?;
    let fail = |error: rusqlite::Error| store_error(path, &error);
    check_format(&conn, path)?;
    // NORMAL: SQLite syncs when it copies the log back; commits are synced by `Log`.
    conn.execute_batch(&format!(
        "PRAGMA page_size = {PAGE_BYTES};
         PRAGMA synchronous = NORMAL;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = {LOG_BYTES_KEPT};
         PRAGMA cache_size = -{CACHE_KIB};
         PRAGMA temp_store = MEMORY;
         PRAGMA mmap_size = 0;
         PRAGMA busy_timeout = 5000;"
    ))
    .map_err(fail)?;
    conn.set_prepared_statement_cache_capacity(64);
    // After a sync that failed nothing may be synced again, not even at the end.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(fail)?;
    // SQLite stays with another mode, and says so without an error, if it cannot have this one.
    let mode: String = conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(fail)?;
    if mode != "wal" {
        return Err(io_error(path, format!("its disk gives no write-ahead log, only {mode}: use a local disk")));
    }
    if user_version(&conn).map_err(fail)? == 0 {
        let runs = runs::SCHEMA;
        let create = format!(
            "BEGIN IMMEDIATE; {SCHEMA} {runs}
             PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT}; COMMIT;"
        );
        conn.execute_batch(&create).map_err(fail)?;
    }
    let pages = LogPages::default();
    let counted = pages.clone();
    let count = move |_: &mut rusqlite::hooks::Wal, pages: i32| {
        counted.store(u64::try_from(pages).unwrap_or(0), Ordering::Relaxed);
        Ok(())
    };
    conn.wal_hook(Some(count)).map_err(fail)?;
    Ok((conn, pages))
}

/// The names of a new file and of its log must outlive a power cut too; SQLite does not
/// mind if they do not.
pub(super) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(parent).and_then(|directory| directory.sync_all());
    synced.map_err(|error| io_error(parent, error.to_string()))
}

/// Refuses a file that a copy has begun to fill: what is missing would be taken for never seen.
pub(super) fn refuse_half_copied(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let found = conn.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'copying'").and_then(|mut all| all.exists([]));
    match found.map_err(|error| store_error(path, &error))? {
        true => Err(StoreError::HalfCopied { path: path.display().to_string() }),
        false => Ok(()),
    }
}

/// Opens the file for reading only, beside its owner.
pub(super) fn open_for_reading(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(|error| io_error(path, error.to_string()))?;
    check_format(&conn, path)?;
    let not_ours = || StoreError::NotAStore { path: path.display().to_string(), reason: "it is empty".into() };
    let fail = |error: rusqlite::Error| store_error(path, &error);
    conn.execute_batch(&format!("PRAGMA cache_size = -{CACHE_KIB}; PRAGMA busy_timeout = 5000;")).map_err(fail)?;
    conn.set_prepared_statement_cache_capacity(64);
    if user_version(&conn).map_err(fail)? == 0 { Err(not_ours()) } else { Ok(conn) }
}

fn user_version(conn: &Connection) -> rusqlite::Result<u32> {
    conn.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Refuses a newer format, and a database of somebody else's.
fn check_format(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let fail = |error: rusqlite::Error| store_error(path, &error);
    let application: i32 = conn.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(fail)?;
    let tables: u32 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(fail)?;
    let path = path.display().to_string();
    if application != APPLICATION_ID && (application != 0 || tables > 0) {
        let reason = "it is a SQLite database of another program".into();
        return Err(StoreError::NotAStore { path, reason });
    }
    match user_version(conn).map_err(fail)? {
        found if found > FORMAT => Err(StoreError::NewerFormat { path, found, known: FORMAT }),
        _ => Ok(()),
    }
}
