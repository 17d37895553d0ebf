//! The embedded store's content, whole: read and written under the lock of its owner.
//!
//! A copy writes by the functions that commits use, in bounded transactions, each synced, with
//! how far the copy is in the table `copying`. While that table is there the file is not opened
//! for work. Reads go through the tables by their keys, and through the sorted runs of cold receipts
//! with the newest first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use super::disk::{SqliteDisk, cold_key, decode, each_row, int, meta, number, payload, read_journal_row, seq};
use super::file::{
    Ownership, canonical, io_error, open_for_reading, open_for_writing, refuse_half_copied, store_error, sync_directory,
};
use super::rows::SqliteRows;
use super::runs::{EntryKey, Runs};
use crate::inbox::RouteNo;
use crate::outbox::LaneNo;
use crate::store::StoreError;
use crate::store::archive::contents::{
    Contents, Ground, Mark, PAGE_RECORDS, Page, Step, done, mark_bytes, number as number_in, read_mark,
};
use crate::store::archive::record::{Kind, Numbers, Record};
use crate::store::archive::rowed::{self, Surroundings};
use crate::store::archive::{Fault, Purpose};
use crate::store::disk::{
    AnswerHead, Body, ColdKey, ColdReceipt, Disk, Fixture, ItemRow, Mark as MarkRow, RequestRow, Rows,
};
use crate::store::machine::cold_keys;
use crate::words::{ItemId, Nonce, OccurrenceId, Payload, RequestId, UnixMs};

type SqlResult<T> = rusqlite::Result<T>;

/// How often receipts that arrive are tidied after each page, at the most.
const TIDY_STEPS: usize = 16;

const FIXTURES: &str = "
SELECT kind, name, row FROM fixture WHERE (kind, name) > (?1, ?2) ORDER BY kind, name LIMIT ?3";
const JOURNAL: &str = "SELECT position, entries FROM journal WHERE position > ?1 ORDER BY position";
const PARCELS: &str = "SELECT no, lane, nonce, row FROM parcel WHERE no > ?1 ORDER BY no";
const REQUESTS: &str = "
SELECT r.seq, r.id, r.route, r.at, r.head, r.encoding, r.body, r.trace, a.head, a.encoding, a.response, m.row
FROM request r LEFT JOIN answer a ON a.seq = r.seq LEFT JOIN mark m ON m.seq = r.seq
WHERE r.seq > ?1 ORDER BY r.seq";
const GROUPS: &str = "SELECT no, row FROM groups WHERE no > ?1 ORDER BY no";
const ITEMS: &str = "SELECT no, groups, id, late, encoding, payload FROM item WHERE no > ?1 ORDER BY no";
const HOT: &str = "SELECT no, row FROM receipt ORDER BY no";
const STRAY_ANSWERS: &str = "SELECT seq FROM answer WHERE seq NOT IN (SELECT seq FROM request) LIMIT 100";
const STRAY_MARKS: &str = "SELECT seq FROM mark WHERE seq NOT IN (SELECT seq FROM request) LIMIT 100";
const BEGIN_COPY: &str = "
CREATE TABLE IF NOT EXISTS copying (one INTEGER PRIMARY KEY CHECK (one = 1), mark BLOB NOT NULL) STRICT";
const PUT_MARK: &str = "INSERT OR REPLACE INTO copying (one, mark) VALUES (1, ?1)";
/// Everything that a copy may have written.
const CLEAR: &str = "
BEGIN IMMEDIATE;
DELETE FROM meta; DELETE FROM fixture; DELETE FROM request; DELETE FROM mark; DELETE FROM answer; DELETE FROM parcel;
DELETE FROM groups; DELETE FROM item; DELETE FROM receipt; DELETE FROM journal; DELETE FROM receipt_run;
DELETE FROM receipt_filter; DELETE FROM receipt_block;
COMMIT";

/// A file's content.
pub(in crate::store) struct SqliteContents {
    path: PathBuf,
    conn: Connection,
    numbers: Numbers,
    /// What is worked out when it is first asked for, and anew after a write.
    around: Option<Surroundings>,
    receipts: Option<Receipts>,
    _owned: Ownership,
}

/// Where receipts are.
struct Receipts {
    runs: Runs,
    /// Those that are not spilled, newer than all that are.
    hot: BTreeMap<EntryKey, (ColdKey, ColdReceipt)>,
    damaged: Vec<Fault>,
}

impl SqliteContents {
    pub(in crate::store) fn open(path: &Path, purpose: Purpose) -> Result<SqliteContents, StoreError> {
        if purpose == Purpose::Read && !path.exists() {
            return Err(io_error(path, "there is no such file".into()));
        }
        let path = canonical(path)?;
        let owned = Ownership::take(&path)?;
        let conn = match purpose {
            Purpose::Read => {
                let conn = open_for_reading(&path)?;
                refuse_half_copied(&conn, &path)?;
                conn
            }
            Purpose::Fill => {
                let (conn, _) = open_for_writing(&path)?;
                sync_directory(&path)?;
                conn
            }
        };
        // What a copy commits is synced before it goes on.
        let numbers = conn.execute_batch("PRAGMA synchronous = FULL").and_then(|()| numbers_of(&conn));
        let numbers = numbers.map_err(|error| store_error(&path, &error))?;
        Ok(SqliteContents { path, conn, numbers, around: None, receipts: None, _owned: owned })
    }

    fn told<T>(&self, result: SqlResult<T>) -> Result<T, StoreError> {
        result.map_err(|error| store_error(&self.path, &error))
    }

    fn read(&mut self, kind: Kind, from: &[u8]) -> SqlResult<Page> {
        match kind {
            Kind::Numbers => {
                let mut page = Page::default();
                page.push(Record::Numbers(self.numbers));
                Ok(page)
            }
            Kind::Fixtures => self.fixtures(from),
            Kind::Journal => self.journal(from),
            Kind::Parcels => self.table("parcel", PARCELS, from, parcel),
            Kind::Requests => {
                if self.around.is_none() {
                    self.around = Some(surroundings(&self.conn)?);
                }
                let around = self.around.as_ref().ok_or(rusqlite::Error::InvalidQuery)?;
                self.table("request", REQUESTS, from, |row| request(around, row))
            }
            Kind::Groups => self.table("groups", GROUPS, from, |row| {
                Ok(Record::Group { no: number(row, 0)?, row: decode("groups", blob(row, 1)?)? })
            }),
            Kind::Items => self.table("item", ITEMS, from, item),
            Kind::Receipts => self.receipts(from),
        }
    }

    /// A page of a table whose first column numbers its rows.
    fn table(
        &self,
        name: &str,
        sql: &str,
        from: &[u8],
        record: impl Fn(&Row<'_>) -> SqlResult<Record>,
    ) -> SqlResult<Page> {
        self.rows(sql, params![int(number_in(from))], |row, page| {
            let no: i64 = row.get(0)?;
            match record(row) {
                Ok(record) => page.push(record),
                Err(error) => page.damaged.push(damaged(format!("row {no} of table {name}"), &error)?),
            }
            Ok(no.to_be_bytes().to_vec())
        })
    }

    /// Reads rows until the page is full; each tells where it is.
    fn rows(
        &self,
        sql: &str,
        from: impl Params,
        mut each: impl FnMut(&Row<'_>, &mut Page) -> SqlResult<Vec<u8>>,
    ) -> SqlResult<Page> {
        let mut select = self.conn.prepare_cached(sql)?;
        let mut rows = select.query(from)?;
        let (mut page, mut last) = (Page::default(), None);
        while let Some(row) = rows.next()? {
            if page.is_full() {
                page.next = last;
                break;
            }
            last = Some(each(row, &mut page)?);
        }
        Ok(page)
    }

    fn fixtures(&self, from: &[u8]) -> SqlResult<Page> {
        let (kind, name) = match from.split_first() {
            Some((kind, name)) => (i64::from(*kind), String::from_utf8_lossy(name).into_owned()),
            None => (-1, String::new()),
        };
        let most = i64::try_from(PAGE_RECORDS).unwrap_or(i64::MAX).saturating_add(1);
        self.rows(FIXTURES, params![kind, name, most], |row, page| {
            let (kind, name): (u8, String) = (row.get(0)?, row.get(1)?);
            match decode::<Fixture>("fixture", blob(row, 2)?) {
                Ok(fixture) if fixture.key() == (kind, name.clone()) => page.push(Record::Fixture(fixture)),
                Ok(_) => page
                    .damaged
                    .push(Fault::new(format!("row {kind}, {name:?} of table fixture"), "is of another name")),
                Err(error) => page.damaged.push(damaged(format!("row {kind}, {name:?} of table fixture"), &error)?),
            }
            let mut at = vec![kind];
            at.extend_from_slice(name.as_bytes());
            Ok(at)
        })
    }

    fn journal(&self, from: &[u8]) -> SqlResult<Page> {
        self.rows(JOURNAL, params![int(number_in(from))], |row, page| {
            let position: i64 = row.get(0)?;
            match read_journal_row(blob(row, 1)?) {
                Ok((_, entries)) => entries.into_iter().for_each(|entry| page.push(Record::Entry(entry))),
                Err(error) => page.damaged.push(damaged(format!("row {position} of table journal"), &error)?),
            }
            Ok(position.to_be_bytes().to_vec())
        })
    }

    /// Receipts in the order of their keys, from the sorted runs and from those not yet spilled.
    fn receipts(&mut self, from: &[u8]) -> SqlResult<Page> {
        let mut page = Page::default();
        if self.receipts.is_none() {
            let mut receipts = open_receipts(&self.conn)?;
            page.damaged.append(&mut receipts.damaged);
            self.receipts = Some(receipts);
        }
        let Some(Receipts { runs, hot, .. }) = &self.receipts else { return Ok(page) };
        let from: EntryKey = from.try_into().unwrap_or([0; 33]);
        let cold = match runs.after(&self.conn, &from, PAGE_RECORDS) {
            Ok(cold) => cold,
            Err(error) => {
                page.damaged.push(damaged("the sorted runs of receipts".into(), &error)?);
                Vec::new()
            }
        };
        let end = cold.last().filter(|_| cold.len() == PAGE_RECORDS).map_or([u8::MAX; 33], |last| last.key);
        let mut merged = BTreeMap::new();
        for entry in cold {
            let key = key_of(&entry.key);
            match decode("a receipt", &entry.value) {
                Ok(receipt) => drop(merged.insert(entry.key, Record::Receipt { key, receipt })),
                Err(error) => page.damaged.push(damaged(format!("the receipt under {key:?}"), &error)?),
            }
        }
        let later = (std::ops::Bound::Excluded(from), std::ops::Bound::Included(end));
        let newer = hot.range(later).map(|(at, (key, receipt))| (*at, (*key, receipt.clone())));
        merged.extend(newer.map(|(at, (key, receipt))| (at, Record::Receipt { key, receipt })));
        let mut last = (end != [u8::MAX; 33]).then(|| end.to_vec());
        for (at, record) in merged {
            if page.is_full() {
                break;
            }
            page.push(record);
            if page.is_full() {
                last = Some(at.to_vec());
            }
        }
        page.next = last;
        Ok(page)
    }

    fn put(&mut self, records: Vec<Record>, mark: &[u8]) -> SqlResult<()> {
        self.around = None;
        let runs = match self.receipts.take() {
            Some(receipts) => receipts.runs,
            None => Runs::open(&self.conn)?,
        };
        let mut disk = SqliteDisk::with_runs(&self.conn, runs)?;
        disk.execute(BEGIN_COPY, &[]);
        if let Some(Record::Numbers(numbers)) = records.first() {
            self.numbers = *numbers;
            disk.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('epoch', ?1)", &[&int(numbers.epoch)]);
        }
        rowed::put(&mut disk, records, &self.numbers);
        for _ in 0..TIDY_STEPS {
            if disk.wants_tidying() {
                disk.tidy_cold(UnixMs(0), &|_| true);
            }
        }
        disk.execute(PUT_MARK, &[&mark]);
        disk.commit()?;
        let (runs, hot, damaged) = (disk.into_runs(), BTreeMap::new(), Vec::new());
        self.receipts = Some(Receipts { runs, hot, damaged });
        Ok(())
    }

    fn mark(&self) -> Result<Option<Mark>, StoreError> {
        if refuse_half_copied(&self.conn, &self.path).is_ok() {
            return Ok(None);
        }
        let bytes = self.conn.query_row("SELECT mark FROM copying", [], |row| row.get::<_, Vec<u8>>(0)).optional();
        let bytes = self.told(bytes)?.unwrap_or_default();
        Ok(Some(read_mark(&bytes)))
    }
}

fn numbers_of(conn: &Connection) -> SqlResult<Numbers> {
    Ok(Numbers::new(meta(conn, "epoch")?.unwrap_or(0), SqliteRows(conn).high_water()?))
}

/// What cannot be read of a row, unless it is the file that cannot be read.
fn damaged(what: String, error: &rusqlite::Error) -> SqlResult<Fault> {
    match error.sqlite_error_code() {
        Some(_) => Err(rusqlite::Error::InvalidParameterName(format!("{what}: {error}"))),
        None => Ok(Fault::new(what, format!("cannot be read: {error}"))),
    }
}

fn blob<'r>(row: &'r Row<'_>, at: usize) -> SqlResult<&'r [u8]> {
    Ok(row.get_ref(at)?.as_blob()?)
}

fn blob_if_any<'r>(row: &'r Row<'_>, at: usize) -> SqlResult<Option<&'r [u8]>> {
    Ok(row.get_ref(at)?.as_blob_or_null()?)
}

fn surroundings(conn: &Connection) -> SqlResult<Surroundings> {
    let mut around = Surroundings::default();
    each_row(conn, "SELECT seq, id FROM request ORDER BY seq", |row| {
        // What has no id cannot be read, which is told when its turn comes.
        if let Ok(id) = row.get(1) {
            around.see_request(RequestId(id), seq(row)?);
        }
        Ok(())
    })?;
    each_row(conn, "SELECT lane, nonce, row FROM parcel ORDER BY no", |row| {
        if let (Ok(lane), Ok(parcel)) = (row.get(0), decode("parcel", blob(row, 2)?)) {
            around.see_parcel(LaneNo(lane), Nonce(number(row, 1)?), &parcel);
        }
        Ok(())
    })?;
    Ok(around)
}

fn parcel(row: &Row<'_>) -> SqlResult<Record> {
    let (lane, nonce) = (LaneNo(row.get(1)?), Nonce(number(row, 2)?));
    Ok(Record::Parcel { lane, nonce, parcel: decode("parcel", blob(row, 3)?)? })
}

fn request(around: &Surroundings, row: &Row<'_>) -> SqlResult<Record> {
    let admitted = RequestRow {
        seq: seq(row)?,
        id: RequestId(row.get(1)?),
        route: RouteNo(row.get(2)?),
        admitted_at: UnixMs(number(row, 3)?),
        head: decode("request", blob(row, 4)?)?,
    };
    let trace: Option<String> = row.get(7)?;
    let body = Body { payload: payload(row, 5)?, trace: trace.map(String::into_boxed_str) };
    let answer: Option<AnswerHead> = blob_if_any(row, 8)?.map(|head| decode("answer", head)).transpose()?;
    let response: Option<Payload> = answer.as_ref().map(|_| payload(row, 9)).transpose()?;
    let mark: Option<MarkRow> = blob_if_any(row, 11)?.map(|mark| decode("mark", mark)).transpose()?;
    Ok(Record::request(around.request(&admitted, answer.as_ref(), mark), body, response))
}

fn item(row: &Row<'_>) -> SqlResult<Record> {
    let (no, group) = (number(row, 0)?, number(row, 1)?);
    let item = ItemRow { group, id: ItemId(row.get(2)?), late: row.get(3)? };
    Ok(Record::Item { no, row: item, payload: payload(row, 4)? })
}

fn key_of(key: &EntryKey) -> ColdKey {
    let mut id = [0; 32];
    id.copy_from_slice(&key[1..]);
    if key[0] == 0 { ColdKey::Request(RequestId(id)) } else { ColdKey::Occurrence(OccurrenceId(id)) }
}

fn open_receipts(conn: &Connection) -> SqlResult<Receipts> {
    let (mut hot, mut broken) = (BTreeMap::new(), Vec::new());
    each_row(conn, HOT, |row| {
        let no: i64 = row.get(0)?;
        match decode("receipt", blob(row, 1)?) {
            Ok(receipt) => hot.extend(cold_keys(&receipt).into_iter().map(|(key, cold)| (cold_key(&key), (key, cold)))),
            Err(error) => broken.push(damaged(format!("row {no} of table receipt"), &error)?),
        }
        Ok(())
    })?;
    Ok(Receipts { runs: Runs::open(conn)?, hot, damaged: broken })
}

/// What SQLite itself finds, and rows without the row that they belong to.
fn faults_of(conn: &Connection) -> SqlResult<Vec<Fault>> {
    let mut faults = Vec::new();
    each_row(conn, "PRAGMA integrity_check(100)", |row| {
        let finding: String = row.get(0)?;
        if finding != "ok" {
            faults.push(Fault::new("the file", format!("is damaged: {finding}")));
        }
        Ok(())
    })?;
    for (table, sql) in [("answer", STRAY_ANSWERS), ("mark", STRAY_MARKS)] {
        each_row(conn, sql, |row| {
            let no: i64 = row.get(0)?;
            faults.push(Fault::new(format!("row {no} of table {table}"), "belongs to no live request"));
            Ok(())
        })?;
    }
    Ok(faults)
}

impl Contents for SqliteContents {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// A file's own seed, and what every start and every commit of its owner changes.
    fn version(&mut self) -> Step<'_, Vec<u8>> {
        let seed = self.conn.query_row("SELECT seed FROM receipt_seed", [], |row| row.get::<_, Vec<u8>>(0));
        let version = seed.and_then(|seed| Ok((seed, numbers_of(&self.conn)?)));
        let encode = |version| {
            postcard::to_allocvec(&version).map_err(|error| StoreError::Damaged(format!("a version: {error}")))
        };
        done(self.told(version).and_then(encode))
    }

    fn page(&mut self, kind: Kind, from: Vec<u8>) -> Step<'_, Page> {
        let page = self.read(kind, &from);
        done(self.told(page))
    }

    fn faults(&mut self) -> Step<'_, Vec<Fault>> {
        done(self.told(faults_of(&self.conn)))
    }

    fn ground(&mut self) -> Step<'_, Ground> {
        let ground = self.mark().and_then(|mark| {
            if let Some(mark) = mark {
                return Ok(Ground::HalfCopied(Box::new(mark)));
            }
            let fixtures = self.conn.query_row("SELECT count(*) FROM fixture", [], |row| row.get::<_, i64>(0));
            let unused = self.numbers == Numbers::new(self.numbers.epoch, Default::default());
            Ok(if unused && self.told(fixtures)? == 0 { Ground::Empty } else { Ground::Taken })
        });
        done(ground)
    }

    fn clear(&mut self) -> Step<'_, ()> {
        (self.around, self.receipts) = (None, None);
        done(self.told(self.conn.execute_batch(CLEAR)))
    }

    fn write(&mut self, records: Vec<Record>, mark: Mark) -> Step<'_, ()> {
        done(mark_bytes(&mark).and_then(|mark| {
            let put = self.put(records, &mark);
            self.told(put)
        }))
    }

    fn release(&mut self) -> Step<'_, ()> {
        let released = self.conn.execute_batch("DROP TABLE copying; PRAGMA wal_checkpoint(TRUNCATE)");
        done(self.told(released))
    }
}
