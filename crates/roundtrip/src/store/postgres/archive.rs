//! The Postgres store's content, whole: read in one snapshot, written page by page.
//!
//! How far a copy is stands in the table `copying`; while it has a row no process starts on the
//! schema. Nothing can keep processes out that have started before: a source that they worked on is
//! told by the version of `numbers`, which every tick writes, and a destination by what is read back.

use std::collections::HashMap;

use tokio_postgres::Row;

use super::condition::{number, version};
use super::fetch::{each, ended, group, live, payload, seen};
use super::wire::{Call, PgError, Wire, hash, int, param, time, uint};
use super::{FIXTURES, NUMBERS, PostgresStore, Server, migrate, write};
use crate::inbox::{Request, State, When};
use crate::store::archive::contents::{Contents, PAGE_BYTES};
use crate::store::archive::lent::{Keeper, LentContents};
use crate::store::archive::{Fault, Purpose};
use crate::store::disk::{ColdKey, ColdReceipt, Fixture, GroupRow, ItemRow};
use crate::store::loan::{Changes, Damaged, FixtureRows, Found, Lender, LiveRow, Numbers, Want, decode};
use crate::store::{Options, StoreError};
use crate::words::{ItemId, OccurrenceId, Payload, Seq};

/// How many faults are told of each kind of row.
const FAULTS_MAX: usize = 100;
/// How many rows are compared at a time.
const ROWS: i64 = 1000;
/// No block has room for more receipts.
const BLOCK_RECEIPTS: i64 = 100;
/// Before all rows of a table.
const FIRST_PLACE: &str = "(0,0)";

const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
/// Whoever reads all of a table does so in its order, and may take long between two pages.
const SETTINGS: &str = "SET idle_in_transaction_session_timeout = 0; SET lock_timeout = 0";
const HAS_MARK: &str = "SELECT to_regclass('copying') IS NOT NULL";
const MARK: &str = "SELECT mark FROM copying";
const BEGIN_COPY: &str = "
CREATE TABLE IF NOT EXISTS copying (one boolean PRIMARY KEY DEFAULT true CHECK (one), mark bytea NOT NULL)";
const PUT_MARK: &str = "INSERT INTO copying (mark) VALUES ($1) ON CONFLICT (one) DO UPDATE SET mark = excluded.mark";
const PUT_EPOCH: &str = "UPDATE numbers SET epoch = $1";
/// Every tick that writes anything is counted, and every start takes an epoch; the transaction
/// that did tells a restored backup apart.
const VERSION: &str = "
SELECT current_database() || '/' || current_schema() || '/' || xmin::text || '/' || epoch || '/' || tick FROM numbers";
const CLEAR: &str = "
TRUNCATE fixture, live, queued, held, response, shown, ended, seen, parcel, grp, item, journal, counted, pace, copying";
const LIVE_AFTER: &str = "
SELECT seq, record, state, turn, due, deadline FROM request WHERE seq > $1 ORDER BY seq LIMIT $2";
const GROUPS_AFTER: &str = "SELECT no, timer, record FROM grp WHERE no > $1 ORDER BY no LIMIT $2";
const ITEMS_AFTER: &str = "
SELECT no, grp, id, late, encoding, payload FROM (
    SELECT i.*, sum(length(payload)) OVER (ORDER BY no) - length(payload) AS before
    FROM (SELECT * FROM item WHERE no > $1 ORDER BY no LIMIT $2) i) i
WHERE before <= $3 ORDER BY no";
/// Receipts are in no order but that in which they lie.
const ENDED_WITHIN: &str = "
SELECT id, record FROM ended WHERE ctid > $1::text::tid AND ctid < $2::text::tid ORDER BY ctid";
const SEEN_WITHIN: &str = "
SELECT occurrence, record FROM seen WHERE ctid > $1::text::tid AND ctid < $2::text::tid ORDER BY ctid";
/// Where a receipt lies, and where all end.
const ENDED_AT: &str = "
SELECT (SELECT max(ctid)::text FROM ended WHERE id = $1), pg_relation_size('ended') / current_setting('block_size')::bigint";
const SEEN_AT: &str = "
SELECT (SELECT max(ctid)::text FROM seen WHERE occurrence = $1),
    pg_relation_size('seen') / current_setting('block_size')::bigint";
const COLUMNS: &str = "
SELECT r.seq, r.id, r.route, r.behind, r.key, r.admitted_at, h.lease_until, h.claim, r.forget_at, r.record, r.occurrence
FROM request r LEFT JOIN held h USING (seq) WHERE r.seq > $1 ORDER BY r.seq LIMIT $2";
const SHOWN_AFTER: &str = "SELECT occurrence, seq FROM shown WHERE occurrence > $1 ORDER BY occurrence LIMIT $2";
/// Rows that belong to no request, or to one that is elsewhere, by table and number.
const STRAY: &str = "
(SELECT 'response', r.seq FROM response r WHERE NOT EXISTS (SELECT FROM live l WHERE l.seq = r.seq) LIMIT 100)
UNION ALL
(SELECT 'held', h.seq FROM held h WHERE NOT EXISTS (SELECT FROM live l WHERE l.seq = h.seq) LIMIT 100)
UNION ALL
(SELECT 'queued', q.seq FROM queued q WHERE NOT EXISTS (SELECT FROM request r
    WHERE r.seq = q.seq AND r.route = q.route AND r.turn = q.turn) LIMIT 100)";
/// No constraint keeps receipts from being there twice.
const TWICE: &str = "
(SELECT 'ended', encode(id, 'hex') FROM ended GROUP BY id HAVING count(*) > 1 LIMIT 100)
UNION ALL
(SELECT 'seen', encode(occurrence, 'hex') FROM seen GROUP BY occurrence HAVING count(*) > 1 LIMIT 100)";
const ROUTES: &str = "SELECT name, no, record FROM fixture WHERE kind = 0 ORDER BY name";
const NOT_QUEUED: &str = "
SELECT r.seq FROM request r WHERE r.turn IS NOT NULL AND NOT EXISTS (SELECT FROM queued q
    WHERE q.route = r.route AND q.turn = r.turn AND q.seq = r.seq) LIMIT 100";

/// The content of the store at this URL.
pub(in crate::store) async fn contents(url: &str, purpose: Purpose) -> Result<Box<dyn Contents>, StoreError> {
    let keeper = PostgresKeeper::open(url, purpose).await?;
    Ok(Box::new(LentContents::open(keeper).await?))
}

/// Whoever reads or writes a schema whole.
struct PostgresKeeper {
    server: Server,
    wire: Wire,
    /// Sees what others write meanwhile.
    outside: Wire,
    /// What was there before the snapshot was taken, until it is asked for.
    version: Option<Vec<u8>>,
    has_mark: bool,
}

impl PostgresKeeper {
    async fn open(url: &str, purpose: Purpose) -> Result<PostgresKeeper, StoreError> {
        // Whole tables are read, checked and cleared by one statement each.
        let server = Server { answer_max: None, ..PostgresStore::new(url, Options::default())?.server };
        let (mut wire, mut outside) = (server.connect().await?, server.connect().await?);
        let fail = |error: PgError| error.at(&server.name);
        wire.run(SETTINGS).await.map_err(fail)?;
        let mut version = None;
        match purpose {
            Purpose::Read => {
                must_be_current(&mut wire, &server).await?;
                refuse_half_copied(&mut wire, &server.name).await?;
                version = Some(version_of(&mut outside).await.map_err(fail)?);
                wire.run(SNAPSHOT).await.map_err(fail)?;
            }
            Purpose::Fill => migrate::migrate(&mut wire, &server.name, &server.schema).await?,
        }
        Ok(PostgresKeeper { server, wire, outside, version, has_mark: false })
    }

    /// The receipts of a table that lie next after one of them, or first.
    async fn receipts(
        &mut self,
        (at, within): (&'static str, &'static str),
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Row>, PgError> {
        let rows = self.wire.query(at, vec![param(after.unwrap_or_default().to_vec())]).await?;
        let row = rows.first().ok_or_else(|| Damaged::new("receipts", "no size"))?;
        let (place, blocks): (Option<&str>, i64) = (row.try_get(0)?, row.try_get(1)?);
        let mut from = match after {
            None => FIRST_PLACE.to_owned(),
            Some(_) => place.ok_or_else(|| Damaged::new("receipts", "the last one that was read is gone"))?.to_owned(),
        };
        let mut block = block_of(&from)?;
        while block < blocks {
            block += (few(limit) / BLOCK_RECEIPTS).max(1);
            let to = format!("({block},0)");
            let found = self.wire.query(within, vec![param(from), param(to.clone())]).await?;
            if !found.is_empty() {
                return Ok(found);
            }
            from = to;
        }
        Ok(Vec::new())
    }

    /// Compares the columns that repeat what records say, and tells which request shows what.
    async fn check_columns(
        &mut self,
        faults: &mut Vec<Fault>,
    ) -> Result<HashMap<OccurrenceId, Seq, foldhash::fast::RandomState>, PgError> {
        let (mut shown, mut after) = (HashMap::default(), 0_i64);
        loop {
            let rows = self.wire.query(COLUMNS, vec![param(after), param(ROWS)]).await?;
            let Some(last) = rows.last() else { return Ok(shown) };
            after = last.try_get(0)?;
            for row in rows {
                let request: Request = decode("live", row.try_get(9)?)?;
                // The first of them has a column.
                shown.extend(request.occurrences.as_slice().iter().skip(1).map(|o| (o.id, request.seq)));
                if let Some(column) = differing_column(&row, &request)? {
                    let record = format!("request {} (number {})", request.id, request.seq.0);
                    faults.push(Fault::new(record, format!("has a column {column} that is not as its record says")));
                }
            }
        }
    }

    async fn check_shown(
        &mut self,
        faults: &mut Vec<Fault>,
        mut shown: HashMap<OccurrenceId, Seq, foldhash::fast::RandomState>,
    ) -> Result<(), PgError> {
        let mut after: Vec<u8> = Vec::new();
        loop {
            let rows = self.wire.query(SHOWN_AFTER, vec![param(after.clone()), param(ROWS)]).await?;
            let Some(last) = rows.last() else { break };
            after = last.try_get(0)?;
            for row in rows {
                let id = OccurrenceId(hash("shown", row.try_get(0)?)?);
                let seq = Seq(uint(row.try_get(1)?));
                if shown.remove(&id) != Some(seq) {
                    let record = format!("the row of occurrence {id} in table shown");
                    faults.push(Fault::new(record, format!("names request number {}, which does not show it", seq.0)));
                }
            }
        }
        let mut left: Vec<_> = shown.into_iter().collect();
        left.sort_unstable_by_key(|(id, seq)| (*seq, *id));
        for (id, seq) in left {
            let rule = format!("shows occurrence {id}, which has no row in table shown");
            faults.push(Fault::new(format!("request number {}", seq.0), rule));
        }
        Ok(())
    }
}

/// Refuses a schema that holds no store, or one of an older version: whoever reads brings nothing to this one.
async fn must_be_current(wire: &mut Wire, server: &Server) -> Result<(), StoreError> {
    let path = server.name.clone();
    match (version(wire).await.map_err(|error| error.at(&server.name))?, migrate::KNOWN) {
        (0, _) => {
            let reason = format!("there is none in schema {}", server.schema);
            Err(StoreError::NotAStore { path, reason })
        }
        (found, known) if found < known => {
            Err(StoreError::OlderFormat { path, found: number(found), known: number(known) })
        }
        _ => Ok(()),
    }
}

/// Refuses a schema that a copy has begun to fill: what is missing would be taken for never seen.
pub(super) async fn refuse_half_copied(wire: &mut Wire, name: &str) -> Result<(), StoreError> {
    match mark_of(wire).await.map_err(|error| error.at(name))? {
        Some(_) => Err(StoreError::HalfCopied { path: name.to_owned() }),
        None => Ok(()),
    }
}

async fn mark_of(wire: &mut Wire) -> Result<Option<Vec<u8>>, PgError> {
    if !is_true(wire, HAS_MARK).await? {
        return Ok(None);
    }
    let rows = wire.query(MARK, Vec::new()).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
}

async fn is_true(wire: &mut Wire, sql: &'static str) -> Result<bool, PgError> {
    let rows = wire.query(sql, Vec::new()).await?;
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false))
}

async fn version_of(wire: &mut Wire) -> Result<Vec<u8>, PgError> {
    let rows = wire.query(VERSION, Vec::new()).await?;
    let row = rows.first().ok_or_else(|| Damaged::new("numbers", "no row"))?;
    Ok(row.try_get::<_, String>(0)?.into_bytes())
}

/// The block of a place in a table, which is written `(block,row)`.
fn block_of(place: &str) -> Result<i64, Damaged> {
    let block = place.trim_start_matches('(').split(',').next().unwrap_or_default();
    block.parse().map_err(|error| Damaged::new("receipts", error))
}

fn few(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The first column that tells something else than the record.
fn differing_column(row: &Row, request: &Request) -> Result<Option<&'static str>, PgError> {
    let lease = match &request.state {
        State::Leased(lease) => Some(lease),
        _ => None,
    };
    let forget_at = match &request.state {
        State::Dead(letter) => Some(time(letter.forget_at)),
        _ => None,
    };
    let first = request.occurrences.as_slice().first();
    let columns = [
        ("seq", row.try_get::<_, i64>(0)? == int(request.seq.0)),
        ("id", row.try_get::<_, &[u8]>(1)? == request.id.0),
        ("route", row.try_get::<_, i32>(2)? == i32::from(request.route.0)),
        ("behind", row.try_get::<_, bool>(3)? == request.behind),
        ("key", row.try_get::<_, Option<&str>>(4)? == request.key.as_ref().map(|key| key.as_str())),
        ("admitted_at", row.try_get::<_, i64>(5)? == time(request.admitted_at)),
        ("lease_until", row.try_get::<_, Option<i64>>(6)? == lease.map(|lease| time(lease.until))),
        ("claim", row.try_get::<_, Option<i64>>(7)? == lease.map(|lease| int(lease.claim.0))),
        ("occurrence", row.try_get::<_, Option<&[u8]>>(10)? == first.map(|first| &first.id.0[..])),
        ("forget_at", row.try_get::<_, Option<i64>>(8)? == forget_at),
    ];
    Ok(columns.into_iter().find(|(_, same)| !same).map(|(name, _)| name))
}

impl Lender for PostgresKeeper {
    type Error = PgError;

    async fn fly(&mut self, wants: &[Want]) -> Result<Vec<Found>, PgError> {
        self.wire.fly(wants).await
    }
}

impl Keeper for PostgresKeeper {
    fn name(&self) -> String {
        format!("{}, schema {}", self.server.name, self.server.schema)
    }

    fn told(&self, error: PgError) -> StoreError {
        error.at(&self.server.name)
    }

    fn damage(&self, error: &PgError) -> Option<Fault> {
        match error {
            PgError::Damaged(damaged) => Some(Fault::new("the store", format!("is damaged: {damaged}"))),
            PgError::Server(_)
            | PgError::Away(_)
            | PgError::Silent { .. }
            | PgError::Unanswered { .. }
            | PgError::Newer { .. } => None,
        }
    }

    async fn version(&mut self) -> Result<Vec<u8>, PgError> {
        match self.version.take() {
            Some(version) => Ok(version),
            None => version_of(&mut self.outside).await,
        }
    }

    async fn state(&mut self) -> Result<(Numbers, FixtureRows), PgError> {
        let calls = vec![Call::new(NUMBERS, Vec::new()), Call::new(FIXTURES, vec![param(-1_i64)])];
        let answers = self.wire.send("", calls, "").await?;
        let (numbers, _) = self.server.numbers(&answers)?;
        let rows = answers.get(1).map_or(&[][..], Vec::as_slice);
        let fixtures: Vec<Fixture> = each(rows, |row| Ok(decode("fixture", row.try_get(0)?)?))?;
        Ok((numbers, fixtures.into_iter().map(|fixture| (fixture.key(), fixture)).collect()))
    }

    async fn live_after(&mut self, seq: u64, limit: usize) -> Result<Vec<LiveRow>, PgError> {
        let rows = self.wire.query(LIVE_AFTER, vec![param(int(seq)), param(few(limit))]).await?;
        each(&rows, live)
    }

    async fn groups_after(&mut self, no: u64, limit: usize) -> Result<Vec<(u64, GroupRow, When)>, PgError> {
        let rows = self.wire.query(GROUPS_AFTER, vec![param(int(no)), param(few(limit))]).await?;
        each(&rows, group)
    }

    async fn items_after(&mut self, no: u64, limit: usize) -> Result<Vec<(u64, ItemRow, Payload)>, PgError> {
        let params = vec![param(int(no)), param(few(limit)), param(few(PAGE_BYTES))];
        let rows = self.wire.query(ITEMS_AFTER, params).await?;
        each(&rows, |row| {
            let (group, id) = (uint(row.try_get(1)?), ItemId(hash("item", row.try_get(2)?)?));
            Ok((uint(row.try_get(0)?), ItemRow { group, id, late: row.try_get(3)? }, payload(row, 4)?))
        })
    }

    async fn receipts_after(
        &mut self,
        key: Option<ColdKey>,
        limit: usize,
    ) -> Result<Vec<(ColdKey, ColdReceipt)>, PgError> {
        let (id, occurrence) = match &key {
            Some(ColdKey::Occurrence(occurrence)) => (None, Some(&occurrence.0[..])),
            Some(ColdKey::Request(id)) => (Some(&id.0[..]), None),
            None => (None, None),
        };
        if occurrence.is_none() {
            let rows = self.receipts((ENDED_AT, ENDED_WITHIN), id, limit).await?;
            if !rows.is_empty() {
                return each(&rows, |row| Ok((ended(row)?, decode("ended", row.try_get(1)?)?)));
            }
        }
        let rows = self.receipts((SEEN_AT, SEEN_WITHIN), occurrence, limit).await?;
        each(&rows, |row| Ok((seen(row)?, decode("seen", row.try_get(1)?)?)))
    }

    async fn mark(&mut self) -> Result<Option<Vec<u8>>, PgError> {
        mark_of(&mut self.wire).await
    }

    async fn put(&mut self, changes: &Changes<'_>, epoch: Option<u64>, mark: &[u8]) -> Result<(), PgError> {
        if !self.has_mark {
            self.wire.run(BEGIN_COPY).await?;
            self.has_mark = true;
        }
        let mut calls = write::writes(changes, epoch.unwrap_or(0), 0)?;
        calls.extend(epoch.map(|epoch| Call::new(PUT_EPOCH, vec![param(int(epoch))])));
        calls.push(Call::new(PUT_MARK, vec![param(mark.to_vec())]));
        self.wire.send("BEGIN", calls, "COMMIT").await.map(drop)
    }

    async fn clear(&mut self) -> Result<(), PgError> {
        self.wire.run(CLEAR).await
    }

    async fn unmark(&mut self) -> Result<(), PgError> {
        self.wire.run("DROP TABLE copying").await
    }

    async fn faults(&mut self) -> Result<Vec<Fault>, PgError> {
        let mut faults = Vec::new();
        for row in self.wire.query(ROUTES, Vec::new()).await? {
            let (name, no): (&str, i32) = (row.try_get(0)?, row.try_get(1)?);
            let fixture: Fixture = decode("fixture", row.try_get(2)?)?;
            if !matches!(fixture, Fixture::Route { no: is, .. } if i32::from(is.0) == no) {
                faults.push(Fault::new(format!("route {name}"), "has a column no that is not as its record says"));
            }
        }
        let shown = self.check_columns(&mut faults).await?;
        self.check_shown(&mut faults, shown).await?;
        for row in self.wire.query(STRAY, Vec::new()).await? {
            let record = format!("row {} of table {}", row.try_get::<_, i64>(1)?, row.try_get::<_, &str>(0)?);
            faults.push(Fault::new(record, "belongs to no live request that is there"));
        }
        for row in self.wire.query(NOT_QUEUED, Vec::new()).await? {
            let record = format!("request number {}", row.try_get::<_, i64>(0)?);
            faults.push(Fault::new(record, "may be handed out, and has no row in table queued"));
        }
        for row in self.wire.query(TWICE, Vec::new()).await? {
            let record = format!("receipt {} of table {}", row.try_get::<_, &str>(1)?, row.try_get::<_, &str>(0)?);
            faults.push(Fault::new(record, "is there more than once"));
        }
        faults.truncate(FAULTS_MAX);
        Ok(faults)
    }
}
