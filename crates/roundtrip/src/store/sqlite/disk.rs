//! The state machine's rows in SQLite: statements prepared once, errors kept for the
//! commit, deletes gathered into ranges.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, Row, Statement, ToSql, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::recent::Recent;
use super::runs::{self, Progress, Runs};
use crate::outbox::LaneNo;
use crate::sender::Parcel;
use crate::store::disk::{
    AnswerHead, Body, ColdKey, ColdReceipt, Disk, Fixture, GroupRow, HighWater, ItemRow, Mark, ReceiptRow, RequestRow,
};
use crate::store::journal::KeptEntry;
use crate::store::op::GroupPlan;
use crate::words::{Encoding, Nonce, Payload, Seq, UnixMs};

/// How many entries share a row of the journal.
const ENTRIES_PER_ROW: usize = 256;
/// How many blocks of cold receipts one commit works on at the least.
const TIDY_BLOCKS: usize = 32;
/// For how many new receipts a commit works on one more. A receipt's two entries are a 36th
/// of a block, and are read, written and deleted once in each of some four tiers: less work than
/// comes in lets runs pile up.
const RECEIPTS_PER_BLOCK: usize = 2;

/// How many bodies are read at once when they are asked for one after the other.
const READ_AHEAD: u64 = 64;
/// At how many bytes reading ahead ends.
const READ_AHEAD_BYTES: usize = 256 << 10;

type SqlResult<T> = rusqlite::Result<T>;

/// One connection with the statements that every commit uses.
pub(super) struct SqliteDisk<'c> {
    conn: &'c Connection,
    runs: Runs,
    tidy: Progress,
    /// Receipts since the last tidying.
    new_receipts: usize,
    failure: Option<rusqlite::Error>,
    in_transaction: bool,
    wrote: bool,
    scratch: Vec<u8>,
    ended: Doomed,
    answers_ended: Doomed,
    marks_gone: Doomed,
    parcels_ended: Doomed,
    /// The row of every occupied slot.
    parcel_rows: HashMap<(LaneNo, Nonce), i64, foldhash::fast::RandomState>,
    next_parcel_row: i64,
    bodies: Recent<Body>,
    responses: Recent<Payload>,
    /// The last body that was read from the file.
    last_body: Seq,
    journal_trimmed: u64,
    put_request: Statement<'c>,
    get_bodies: Statement<'c>,
    put_mark: Statement<'c>,
    put_answer: Statement<'c>,
    get_response: Statement<'c>,
    put_parcel: Statement<'c>,
    put_receipt: Statement<'c>,
    append_journal: Statement<'c>,
}

/// Rows to delete with the commit, in as few statements as their numbers allow.
struct Doomed {
    seqs: Vec<i64>,
    sql: &'static str,
}

impl Doomed {
    fn new(sql: &'static str) -> Doomed {
        Doomed { seqs: Vec::new(), sql }
    }

    fn delete(&mut self, conn: &Connection) -> SqlResult<()> {
        if self.seqs.is_empty() {
            return Ok(());
        }
        let mut delete = conn.prepare_cached(self.sql)?;
        self.seqs.sort_unstable();
        for range in self.seqs.chunk_by(|a, b| a + 1 == *b) {
            delete.execute([range[0], range[range.len() - 1]])?;
        }
        self.seqs.clear();
        Ok(())
    }
}

/// SQLite's integers are signed; ours are not. The bits are kept.
pub(super) fn int(value: u64) -> i64 {
    value.cast_signed()
}

fn uint(value: i64) -> u64 {
    value.cast_unsigned()
}

fn damaged(what: &str, error: postcard::Error) -> rusqlite::Error {
    let text = format!("a row of {what} cannot be read: {error}");
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, text.into())
}

/// Reads what `encode` wrote.
pub(super) fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> SqlResult<T> {
    postcard::from_bytes(bytes).map_err(|error| damaged(what, error))
}

fn encode<T: Serialize>(scratch: &mut Vec<u8>, value: &T) -> SqlResult<()> {
    let mut buffer = std::mem::take(scratch);
    buffer.clear();
    *scratch = postcard::to_extend(value, buffer).map_err(|error| damaged("a new record", error))?;
    Ok(())
}

fn encoding(code: i64) -> SqlResult<Encoding> {
    match code {
        0 => Ok(Encoding::Raw),
        1 => Ok(Encoding::Json),
        2 => Ok(Encoding::Cbor),
        3 => Ok(Encoding::Protobuf),
        other => Err(rusqlite::Error::IntegralValueOutOfRange(0, other)),
    }
}

/// A payload from two columns, the encoding first.
pub(super) fn payload(row: &Row<'_>, at: usize) -> SqlResult<Payload> {
    let bytes: Vec<u8> = row.get(at + 1)?;
    Ok(Payload { encoding: encoding(row.get(at)?)?, bytes: bytes.into() })
}

/// A row of the journal: the entries, and the numbers used up so far.
pub(super) fn read_journal_row(bytes: &[u8]) -> SqlResult<(HighWater, Vec<KeptEntry>)> {
    decode("the journal", bytes)
}

pub(super) fn cold_key(key: &ColdKey) -> runs::EntryKey {
    let (kind, id) = match key {
        ColdKey::Request(id) => (0, id.0),
        ColdKey::Occurrence(id) => (1, id.0),
    };
    let mut out = [kind; 33];
    out[1..].copy_from_slice(&id);
    out
}

impl<'c> SqliteDisk<'c> {
    pub(super) fn new(conn: &'c Connection) -> SqlResult<SqliteDisk<'c>> {
        SqliteDisk::with_runs(conn, Runs::open(conn)?)
    }

    /// A disk on which the directory of cold receipts is known already.
    pub(super) fn with_runs(conn: &'c Connection, runs: Runs) -> SqlResult<SqliteDisk<'c>> {
        let mut parcel_rows = HashMap::default();
        each_row(conn, "SELECT no, lane, nonce FROM parcel", |row| {
            parcel_rows.insert((LaneNo(row.get(1)?), Nonce(number(row, 2)?)), row.get(0)?);
            Ok(())
        })?;
        Ok(SqliteDisk {
            conn,
            runs,
            tidy: Progress::More,
            new_receipts: 0,
            failure: None,
            in_transaction: false,
            wrote: false,
            scratch: Vec::new(),
            ended: Doomed::new("DELETE FROM request WHERE seq BETWEEN ?1 AND ?2"),
            answers_ended: Doomed::new("DELETE FROM answer WHERE seq BETWEEN ?1 AND ?2"),
            marks_gone: Doomed::new("DELETE FROM mark WHERE seq BETWEEN ?1 AND ?2"),
            parcels_ended: Doomed::new("DELETE FROM parcel WHERE no BETWEEN ?1 AND ?2"),
            next_parcel_row: parcel_rows.values().max().map_or(1, |last| last + 1),
            parcel_rows,
            bodies: Recent::new(),
            responses: Recent::new(),
            last_body: Seq(0),
            journal_trimmed: 0,
            put_request: conn.prepare(
                "INSERT INTO request (seq, id, route, at, head, encoding, trace, body)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?,
            get_bodies: conn.prepare("SELECT seq, encoding, body, trace FROM request WHERE seq >= ?1 LIMIT ?2")?,
            put_mark: conn.prepare("INSERT OR REPLACE INTO mark (seq, row) VALUES (?1, ?2)")?,
            put_answer: conn.prepare("INSERT INTO answer (seq, head, encoding, response) VALUES (?1, ?2, ?3, ?4)")?,
            get_response: conn.prepare("SELECT encoding, response FROM answer WHERE seq = ?1")?,
            put_parcel: conn.prepare("INSERT OR REPLACE INTO parcel (no, lane, nonce, row) VALUES (?1, ?2, ?3, ?4)")?,
            put_receipt: conn.prepare("INSERT INTO receipt (no, row) VALUES (?1, ?2)")?,
            append_journal: conn.prepare("INSERT OR REPLACE INTO journal (position, entries) VALUES (?1, ?2)")?,
        })
    }

    /// Makes everything since the last commit durable, or tells why nothing of it is.
    ///
    /// After a failure neither this disk nor the machine on it may be used again.
    pub(super) fn commit(&mut self) -> SqlResult<()> {
        self.write(|disk| {
            disk.ended.delete(disk.conn)?;
            disk.answers_ended.delete(disk.conn)?;
            disk.marks_gone.delete(disk.conn)?;
            disk.parcels_ended.delete(disk.conn)
        });
        self.end_transaction()
    }

    /// The directory of cold receipts, after the last commit.
    pub(super) fn into_runs(self) -> Runs {
        self.runs
    }

    /// Lets go of the snapshot that reads took, if nothing was written since.
    pub(super) fn end_reads(&mut self) -> SqlResult<()> {
        if self.wrote { Ok(()) } else { self.end_transaction() }
    }

    fn end_transaction(&mut self) -> SqlResult<()> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.wrote = false;
        if std::mem::take(&mut self.in_transaction) {
            self.conn.prepare_cached("COMMIT")?.execute([])?;
        }
        Ok(())
    }

    /// Whether there is anything to commit.
    pub(super) fn is_dirty(&self) -> bool {
        self.has_written() || self.failure.is_some()
    }

    /// Whether rows changed since the last commit.
    pub(super) fn has_written(&self) -> bool {
        self.wrote || !self.ended.seqs.is_empty() || !self.parcels_ended.seqs.is_empty()
    }

    /// Begins the transaction of this tick. Reads begin it too: one snapshot for all of
    /// them is far cheaper than one each.
    fn begin(&mut self) -> SqlResult<()> {
        if !self.in_transaction {
            self.conn.prepare_cached("BEGIN")?.execute([])?;
            self.in_transaction = true;
        }
        // Some failures end the transaction by themselves: nothing may be written outside one.
        if self.conn.is_autocommit() {
            return Err(rusqlite::Error::InvalidQuery);
        }
        Ok(())
    }

    /// The disk as the transaction sees it that the caller has begun on the connection.
    pub(super) fn within_transaction(conn: &'c Connection) -> SqlResult<SqliteDisk<'c>> {
        Ok(SqliteDisk { in_transaction: true, ..SqliteDisk::new(conn)? })
    }

    /// What a read stumbled over, if it did.
    pub(super) fn take_failure(&mut self) -> Option<rusqlite::Error> {
        self.failure.take()
    }

    /// Does something inside the transaction, unless something has failed before.
    fn write(&mut self, with: impl FnOnce(&mut Self) -> SqlResult<()>) {
        self.look(|disk| {
            disk.wrote = true;
            with(disk)
        });
    }

    /// Reads something; nothing, if that or anything before has failed.
    fn look<T: Default>(&mut self, with: impl FnOnce(&mut Self) -> SqlResult<T>) -> T {
        if self.failure.is_some() {
            return T::default();
        }
        self.begin().and_then(|()| with(self)).unwrap_or_else(|failure| {
            self.failure = Some(failure);
            T::default()
        })
    }

    /// Reads a body, and those of the next requests for when they are asked for.
    fn read_bodies(&mut self, first: Seq, count: u64) -> SqlResult<Body> {
        let mut rows = self.get_bodies.query([int(first.0), int(count)])?;
        let (mut asked, mut bytes) = (None, 0);
        while bytes < READ_AHEAD_BYTES
            && let Some(row) = rows.next()?
        {
            let trace: Option<String> = row.get(3)?;
            let body = Body { payload: payload(row, 1)?, trace: trace.map(String::into_boxed_str) };
            self.last_body = seq(row)?;
            bytes += body.payload.bytes.len();
            if self.last_body == first {
                asked = Some(body);
            } else {
                let bytes = body.payload.bytes.len();
                self.bodies.put(self.last_body, body, bytes);
            }
        }
        asked.ok_or(rusqlite::Error::QueryReturnedNoRows)
    }

    pub(super) fn execute(&mut self, sql: &str, params: &[&dyn ToSql]) {
        self.write(|disk| disk.conn.prepare_cached(sql)?.execute(params).map(drop));
    }
}

impl Disk for SqliteDisk<'_> {
    fn put_request(&mut self, row: &RequestRow, body: &Body) {
        self.write(|disk| {
            encode(&mut disk.scratch, &row.head)?;
            let (seq, route, at) = (int(row.seq.0), row.route.0, int(row.admitted_at.0));
            let (encoding, bytes) = (body.payload.encoding as u8, &body.payload.bytes[..]);
            let row = params![seq, row.id.0, route, at, disk.scratch, encoding, body.trace.as_deref(), bytes];
            disk.put_request.execute(row).map(drop)
        });
    }

    fn replace_request(&mut self, row: &RequestRow, body: &Body) {
        self.bodies.forget(row.seq);
        self.execute("DELETE FROM request WHERE seq = ?1", &[&int(row.seq.0)]);
        self.put_request(row, body);
    }

    fn delete_request(&mut self, seq: Seq) {
        self.bodies.forget(seq);
        self.ended.seqs.push(int(seq.0));
    }

    fn body(&mut self, seq: Seq) -> Body {
        if let Some(recent) = self.bodies.get(seq) {
            return recent;
        }
        let ahead = seq > self.last_body && seq.0 - self.last_body.0 <= READ_AHEAD;
        self.look(|disk| disk.read_bodies(seq, if ahead { READ_AHEAD } else { 1 }))
    }

    fn expect_body(&mut self, seq: Seq, body: Body) {
        let bytes = body.payload.bytes.len();
        self.bodies.put(seq, body, bytes);
    }

    fn put_mark(&mut self, seq: Seq, mark: &Mark) {
        self.write(|disk| {
            encode(&mut disk.scratch, mark)?;
            disk.put_mark.execute(params![int(seq.0), disk.scratch]).map(drop)
        });
    }

    fn delete_mark(&mut self, seq: Seq) {
        self.marks_gone.seqs.push(int(seq.0));
    }

    fn put_answer(&mut self, seq: Seq, head: &AnswerHead, response: &Payload) {
        self.responses.put(seq, response.clone(), response.bytes.len());
        self.write(|disk| {
            encode(&mut disk.scratch, head)?;
            let (encoding, bytes) = (response.encoding as u8, &response.bytes[..]);
            disk.put_answer.execute(params![int(seq.0), disk.scratch, encoding, bytes]).map(drop)
        });
    }

    fn delete_answer(&mut self, seq: Seq) {
        self.responses.forget(seq);
        self.answers_ended.seqs.push(int(seq.0));
    }

    fn void_answer(&mut self, seq: Seq) {
        self.responses.forget(seq);
        self.execute("DELETE FROM answer WHERE seq = ?1", &[&int(seq.0)]);
    }

    fn response(&mut self, seq: Seq) -> Payload {
        if let Some(recent) = self.responses.get(seq) {
            return recent;
        }
        self.look(|disk| disk.get_response.query_row([int(seq.0)], |row| payload(row, 0)))
    }

    fn put_parcel(&mut self, lane: LaneNo, nonce: Nonce, parcel: &Parcel) {
        self.write(|disk| {
            encode(&mut disk.scratch, parcel)?;
            let row = *disk.parcel_rows.entry((lane, nonce)).or_insert_with(|| {
                disk.next_parcel_row += 1;
                disk.next_parcel_row - 1
            });
            disk.put_parcel.execute(params![row, lane.0, int(nonce.0), disk.scratch]).map(drop)
        });
    }

    fn delete_parcel(&mut self, lane: LaneNo, nonce: Nonce) {
        self.parcels_ended.seqs.extend(self.parcel_rows.remove(&(lane, nonce)));
    }

    fn put_fixture(&mut self, fixture: &Fixture) {
        self.write(|disk| {
            encode(&mut disk.scratch, fixture)?;
            let (kind, name) = fixture.key();
            let sql = "INSERT OR REPLACE INTO fixture (kind, name, row) VALUES (?1, ?2, ?3)";
            disk.conn.prepare_cached(sql)?.execute(params![kind, name, disk.scratch]).map(drop)
        });
    }

    fn put_group(&mut self, no: u64, row: &GroupRow) {
        self.write(|disk| {
            encode(&mut disk.scratch, row)?;
            let sql = "INSERT OR REPLACE INTO groups (no, row) VALUES (?1, ?2)";
            disk.conn.prepare_cached(sql)?.execute(params![int(no), disk.scratch]).map(drop)
        });
    }

    fn group_plan(&mut self, no: u64) -> Option<Box<GroupPlan>> {
        self.look(|disk| {
            let mut select = disk.conn.prepare_cached("SELECT row FROM groups WHERE no = ?1")?;
            let row: GroupRow = select.query_row([int(no)], |row| decode("groups", row.get_ref(0)?.as_blob()?))?;
            Ok(row.plan)
        })
    }

    fn delete_group(&mut self, no: u64) {
        self.execute("DELETE FROM groups WHERE no = ?1", &[&int(no)]);
    }

    fn put_item(&mut self, no: u64, row: &ItemRow, payload: &Payload) {
        self.write(|disk| {
            let sql = "INSERT INTO item (no, groups, id, late, encoding, payload) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
            let (group, encoding, bytes) = (int(row.group), payload.encoding as u8, &payload.bytes[..]);
            let row = params![int(no), group, row.id.0, row.late, encoding, bytes];
            disk.conn.prepare_cached(sql)?.execute(row).map(drop)
        });
    }

    fn delete_item(&mut self, no: u64) {
        self.execute("DELETE FROM item WHERE no = ?1", &[&int(no)]);
    }

    fn item_payload(&mut self, no: u64) -> Payload {
        self.look(|disk| {
            let mut select = disk.conn.prepare_cached("SELECT encoding, payload FROM item WHERE no = ?1")?;
            select.query_row([int(no)], |row| payload(row, 0))
        })
    }

    fn put_receipt(&mut self, no: u64, row: &ReceiptRow) {
        self.new_receipts += 1;
        self.write(|disk| {
            encode(&mut disk.scratch, row)?;
            disk.put_receipt.execute(params![int(no), disk.scratch]).map(drop)
        });
    }

    fn delete_receipts_below(&mut self, no: u64) {
        self.execute("DELETE FROM receipt WHERE no < ?1", &[&int(no)]);
    }

    fn spill(&mut self, cold: Vec<(ColdKey, ColdReceipt)>) {
        self.write(|disk| {
            let entry = |(key, receipt): (ColdKey, ColdReceipt)| {
                let value = postcard::to_stdvec(&receipt).map_err(|error| damaged("a receipt", error))?;
                Ok(runs::Entry { key: cold_key(&key), value, until: receipt.until().0 })
            };
            let entries = cold.into_iter().map(entry).collect::<SqlResult<Vec<_>>>()?;
            disk.tidy = Progress::More;
            disk.runs.spill(disk.conn, entries)
        });
    }

    fn cold(&mut self, key: &ColdKey) -> Option<ColdReceipt> {
        self.look(|disk| {
            let found = disk.runs.find(disk.conn, &cold_key(key))?;
            found.map(|entry| decode("a receipt", &entry.value)).transpose()
        })
    }

    fn wants_tidying(&self) -> bool {
        self.tidy == Progress::More
    }

    fn tidy_cold(&mut self, now: UnixMs, keep: &dyn Fn(&ColdReceipt) -> bool) {
        self.write(|disk| {
            // What cannot be read is kept: `find` will say so when it is asked for.
            let keep = |entry: &runs::Entry| decode("a receipt", &entry.value).map_or(true, |cold| keep(&cold));
            let blocks = TIDY_BLOCKS.max(std::mem::take(&mut disk.new_receipts) / RECEIPTS_PER_BLOCK);
            disk.tidy = disk.runs.step(disk.conn, blocks, now.0, &keep)?;
            Ok(())
        });
    }

    fn append_journal(&mut self, entries: &[KeptEntry], high_water: &HighWater) {
        self.write(|disk| {
            if entries.is_empty() {
                // Keeps the numbers; the commit with the next entry replaces the row.
                encode(&mut disk.scratch, &(high_water, entries))?;
                return disk.append_journal.execute(params![int(high_water.entry), disk.scratch]).map(drop);
            }
            for row in entries.chunks(ENTRIES_PER_ROW) {
                encode(&mut disk.scratch, &(high_water, row))?;
                disk.append_journal.execute(params![int(row[0].position), disk.scratch])?;
            }
            Ok(())
        });
    }

    fn trim_journal(&mut self, floor: u64) {
        // The row that holds the floor may begin before it.
        let floor = floor.saturating_sub(ENTRIES_PER_ROW as u64);
        if floor >= self.journal_trimmed + ENTRIES_PER_ROW as u64 {
            self.journal_trimmed = floor;
            self.execute("DELETE FROM journal WHERE position < ?1", &[&int(floor)]);
        }
    }

    fn journal(&mut self, from: u64, limit: usize) -> Vec<KeptEntry> {
        self.look(|disk| {
            let first = "SELECT max(position) FROM journal WHERE position <= ?1";
            let first: Option<i64> = disk.conn.prepare_cached(first)?.query_row([int(from)], |row| row.get(0))?;
            let rows = "SELECT entries FROM journal WHERE position >= ?1 ORDER BY position";
            let mut select = disk.conn.prepare_cached(rows)?;
            let mut rows = select.query([first.unwrap_or(int(from))])?;
            let mut entries = Vec::new();
            while entries.len() < limit
                && let Some(row) = rows.next()?
            {
                let (_, read) = read_journal_row(row.get_ref(0)?.as_blob()?)?;
                entries.extend(read.into_iter().filter(|entry| entry.position >= from).take(limit - entries.len()));
            }
            Ok(entries)
        })
    }
}

/// One number of the `meta` table.
pub(super) fn meta(conn: &Connection, key: &str) -> SqlResult<Option<u64>> {
    let mut select = conn.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
    select.query_row([key], |row| row.get(0)).optional().map(|value| value.map(uint))
}

pub(super) fn put_meta(conn: &Connection, key: &str, value: u64) -> SqlResult<()> {
    let mut put = conn.prepare_cached("INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)")?;
    put.execute(params![key, int(value)]).map(drop)
}

/// Every row of a query, decoded and passed on.
pub(super) fn each_row(conn: &Connection, sql: &str, mut each: impl FnMut(&Row<'_>) -> SqlResult<()>) -> SqlResult<()> {
    let mut select = conn.prepare(sql)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        each(row)?;
    }
    Ok(())
}

pub(super) fn seq(row: &Row<'_>) -> SqlResult<Seq> {
    row.get(0).map(uint).map(Seq)
}

pub(super) fn number(row: &Row<'_>, at: usize) -> SqlResult<u64> {
    row.get(at).map(uint)
}
