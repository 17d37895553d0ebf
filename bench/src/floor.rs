//! The floor: a hand-written loop that does the same statements with the same bytes in
//! the same batches, and nothing else: no dedup, no fencing, no order, no reads for
//! anybody but itself.

use std::collections::VecDeque;
use std::time::Instant;

use rusqlite::{Connection, params};

use crate::lifecycle::PAYLOAD_BYTES;
use crate::trace::Commit;

/// What a row weighs beside its payload, as measured in a store's file.
mod weight {
    pub(super) const HEAD: usize = 60;
    pub(super) const MARK: usize = 100;
    pub(super) const ANSWER_HEAD: usize = 10;
    pub(super) const PARCEL: usize = 110;
    pub(super) const RECEIPT: usize = 100;
    pub(super) const ENTRY: usize = 65;
    /// Both keys of a cold receipt, and the blocks that hold them.
    pub(super) const COLD: i64 = 2 * 56;
    pub(super) const BLOCK: i64 = 4057;
}

const SCHEMA: &str = "
    PRAGMA page_size = 8192; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
    PRAGMA wal_autocheckpoint = 8192; PRAGMA cache_size = -16384;
    CREATE TABLE request (seq INTEGER PRIMARY KEY, id BLOB, route INTEGER, at INTEGER, head BLOB, encoding INTEGER, trace TEXT, body BLOB) STRICT;
    CREATE TABLE mark (seq INTEGER PRIMARY KEY, row BLOB) STRICT;
    CREATE TABLE answer (seq INTEGER PRIMARY KEY, head BLOB, encoding INTEGER, response BLOB) STRICT;
    CREATE TABLE parcel (no INTEGER PRIMARY KEY, lane INTEGER, nonce INTEGER, row BLOB) STRICT;
    CREATE TABLE receipt (no INTEGER PRIMARY KEY, row BLOB) STRICT;
    CREATE TABLE receipt_block (id INTEGER PRIMARY KEY, data BLOB) STRICT;
    CREATE TABLE journal (position INTEGER PRIMARY KEY, entries BLOB) STRICT;
    CREATE TABLE lane (no INTEGER PRIMARY KEY, next INTEGER) STRICT;";

/// How many receipts are moved at a time.
const SPILL: i64 = 1 << 14;

/// Does what these commits did; answers lifecycles a second.
pub(crate) fn replay(commits: &[Commit]) -> Result<f64, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir_in(".")?;
    let conn = Connection::open(folder.path().join("floor.db"))?;
    conn.execute_batch(SCHEMA)?;
    let mut put_request = conn.prepare("INSERT INTO request VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
    let mut put_mark = conn.prepare("INSERT INTO mark VALUES (?1, ?2)")?;
    let mut delete_marks = conn.prepare("DELETE FROM mark WHERE seq BETWEEN ?1 AND ?2")?;
    let mut put_answer = conn.prepare("INSERT INTO answer VALUES (?1, ?2, ?3, ?4)")?;
    let mut put_parcel = conn.prepare("INSERT INTO parcel VALUES (?1, ?2, ?3, ?4)")?;
    let mut delete_parcels = conn.prepare("DELETE FROM parcel WHERE no BETWEEN ?1 AND ?2")?;
    let mut delete_requests = conn.prepare("DELETE FROM request WHERE seq BETWEEN ?1 AND ?2")?;
    let mut delete_answers = conn.prepare("DELETE FROM answer WHERE seq BETWEEN ?1 AND ?2")?;
    let mut put_receipt = conn.prepare("INSERT INTO receipt VALUES (?1, ?2)")?;
    let mut delete_receipts = conn.prepare("DELETE FROM receipt WHERE no <= ?1")?;
    let mut put_block = conn.prepare("INSERT INTO receipt_block (data) VALUES (?1)")?;
    let mut put_journal = conn.prepare("INSERT INTO journal VALUES (?1, ?2)")?;
    let mut put_lane = conn.prepare("INSERT OR REPLACE INTO lane VALUES (?1, ?2)")?;
    let body = vec![7_u8; PAYLOAD_BYTES];
    let id = [9_u8; 32];
    let (mut seq, mut position, mut done, mut spilled) = (0_i64, 1_i64, 0_i64, 0_i64);
    let (mut queued, mut leased) = (VecDeque::new(), VecDeque::new());
    let (mut answered, mut sent) = (VecDeque::new(), VecDeque::new());
    let started = Instant::now();
    for commit in commits {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        for _ in 0..commit.admitted {
            seq += 1;
            let head = [3_u8; weight::HEAD];
            put_request.execute(params![seq, id, 0, 1_790_000_000_000_i64, head, 0, Option::<&str>::None, body])?;
            queued.push_back(seq);
        }
        let mut marked = Vec::new();
        for seq in queued.drain(..queued.len().min(commit.leased as usize)) {
            marked.push(seq);
            leased.push_back(seq);
        }
        let mut unmarked = Vec::new();
        for seq in leased.drain(..leased.len().min(commit.answered as usize)) {
            put_answer.execute(params![seq, [3_u8; weight::ANSWER_HEAD], 0, body])?;
            unmarked.push(seq);
            answered.push_back(seq);
        }
        // Both in the order of admission.
        for seq in marked.iter().filter(|seq| unmarked.binary_search(seq).is_err()) {
            put_mark.execute(params![seq, [3_u8; weight::MARK]])?;
        }
        for range in unmarked.chunk_by(|a, b| a + 1 == *b) {
            delete_marks.execute([range[0], range[range.len() - 1]])?;
        }
        for seq in answered.drain(..answered.len().min(commit.assigned as usize)) {
            let parcel = vec![5_u8; weight::PARCEL + PAYLOAD_BYTES];
            put_parcel.execute(params![seq, 0, seq, parcel])?;
            sent.push_back(seq);
        }
        let ended: Vec<i64> = sent.drain(..sent.len().min(commit.settled as usize)).collect();
        for _ in &ended {
            done += 1;
            put_receipt.execute(params![done, [3_u8; weight::RECEIPT]])?;
        }
        for range in ended.chunk_by(|a, b| a + 1 == *b) {
            delete_requests.execute([range[0], range[range.len() - 1]])?;
            delete_answers.execute([range[0], range[range.len() - 1]])?;
            delete_parcels.execute([range[0], range[range.len() - 1]])?;
        }
        // Cold receipts are moved to blocks, as many at a time as the store moves.
        if done - spilled >= 2 * SPILL {
            spilled += SPILL;
            delete_receipts.execute([spilled])?;
            for _ in 0..SPILL * weight::COLD / weight::BLOCK {
                put_block.execute([vec![6_u8; usize::try_from(weight::BLOCK)?]])?;
            }
        }
        let entries = commit.admitted + commit.leased + commit.answered + commit.assigned + commit.settled;
        put_journal.execute(params![position, vec![4_u8; entries as usize * weight::ENTRY]])?;
        position += i64::from(entries).max(1);
        if commit.assigned > 0 {
            put_lane.execute(params![0, seq])?;
        }
        conn.execute_batch("COMMIT")?;
    }
    Ok(done as f64 / started.elapsed().as_secs_f64())
}
