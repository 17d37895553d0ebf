//! Cold receipts in sorted runs.
//!
//! A receipt's key is as good as random, so an index over 10^8 of them would dirty a page for each
//! insert. Receipts are therefore gathered in memory elsewhere and arrive here by the ten
//! thousand. Each batch is sorted and written as one immutable *run*; eight neighbouring runs of a
//! tier are merged into one of the next, so that an entry is written about once per tier.
//!
//! ```text
//! receipt_run     one row per run: its place in age, its tier, its counts, its state
//! receipt_filter  one row per segment of a run (some 32,768 entries):
//!                 first key, a fence per block (8 bytes of its first key), Bloom filter
//! receipt_block   one row per block: sorted entries, just enough to fill one page
//!
//! id of a block   = run * 2^24 + place in the run   a run is a contiguous range of rowids
//! id of a segment = id of its first block           the same range deletes both
//!
//! find(key):  per run, newest first   segment by first key -> filter     in memory
//!             where the filter agrees    fence -> block id                in memory
//!                                        one row                          on disk
//! ```
//!
//! The two small tables are held in memory (about 13 bits an entry); blocks are read when needed.
//! A filter belongs to a range of keys rather than to the whole run, so a run of any size is
//! written as a stream: nothing has to be sized, kept or written at once for the run as a whole.
//!
//! # Order
//!
//! Where a key is in several runs the newest wins. A run's `age` is the id of the newest batch in
//! it: a batch's own id, or the greatest age among a merge's sources. Only runs that are neighbours
//! in age are merged, so everything else is older or newer than the output as a whole, also what
//! arrived while it was being written.
//!
//! An entry that was dropped no longer hides an older one of its key. Whoever writes a key again
//! must therefore not give it a shorter life (`until`, `keep`) than it had; then whatever comes to
//! light is itself past its time.
//!
//! # Failure
//!
//! - *The process dies or a transaction fails.* Every call leaves the tables consistent when
//!   committed. A merge's output is `BUILDING` until the transaction that also retires its
//!   sources; `open` never looks into a run in that state, and `step` deletes it. The merge begins
//!   again.
//! - *A row is missing or malformed.* An error, in `open` or when the block is read; never "not
//!   found", since that would let a repeated request through.
//! - *The directory does not match the snapshot*, as after a rollback, or on a connection with an
//!   older read transaction. Blocks will seem to be missing: throw the directory away, `open` again.
//! - *Keys chosen to share their first eight bytes.* Fences then no longer tell blocks apart and
//!   a lookup bisects among them, reading one block per halving. Filters are keyed and unaffected.
//! - *Too few steps.* Runs pile up and each costs a lookup one more probe. Nothing else suffers.
//! - *Entries without an end.* A run is dropped whole when its last entry has expired, which one
//!   entry without `until` prevents. Idle steps therefore look into the runs in turn and rewrite
//!   one where most is to be dropped.

mod block;
mod filter;
mod merge;
mod run;
#[cfg(test)]
mod tests;

use std::ops::Range;

use rusqlite::{Connection, types::Type};

use block::{RunWriter, SEGMENT_COST};
use filter::Seed;
use merge::{Cursor, Merge};
use run::Run;

/// Creates the tables, and draws the seed of the filters' hash.
pub(crate) const SCHEMA: &str = "
CREATE TABLE receipt_run (
    id        INTEGER PRIMARY KEY,
    age       INTEGER NOT NULL,
    tier      INTEGER NOT NULL,
    entries   INTEGER NOT NULL,
    end_block INTEGER NOT NULL,
    until_max INTEGER NOT NULL,
    state     INTEGER NOT NULL
) STRICT;
CREATE TABLE receipt_filter (
    id     INTEGER PRIMARY KEY,
    first  BLOB NOT NULL,
    fences BLOB NOT NULL,
    filter BLOB NOT NULL
) STRICT;
CREATE TABLE receipt_block (
    id   INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;
CREATE TABLE receipt_seed (seed BLOB NOT NULL) STRICT;
INSERT INTO receipt_seed (seed) VALUES (randomblob(16));
";

/// Runs of one tier that are merged into one of the next.
const FAN_IN: usize = 8;
/// No merge makes a run larger than this.
const RUN_ENTRIES_MAX: u64 = 1 << 24;
/// The rowids set aside for a run. A block holds at least 13 entries, so this is ample.
const BLOCKS_PER_RUN: i64 = 1 << 24;

/// Values of `receipt_run.state`.
mod state {
    /// May be read.
    pub(super) const LIVE: i64 = 0;
    /// The output of a merge that has not finished.
    pub(super) const BUILDING: i64 = 1;
    /// Waits for its blocks to be deleted.
    pub(super) const RETIRED: i64 = 2;
}

/// The kind of an entry, then the 32 bytes that identify it among its kind.
pub(crate) type EntryKey = [u8; 33];

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: EntryKey,
    /// At most 255 bytes.
    pub(crate) value: Vec<u8>,
    /// After this time the entry may be dropped; with `u64::MAX` only `keep` decides.
    pub(crate) until: u64,
}

/// Whether [`Runs::step`] left anything to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing that is known of: more may come with the next spill, or as time passes.
    Idle,
    /// Something.
    More,
}

fn corrupt(what: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Blob, what.into())
}

/// The directory of all runs, and the merges under way.
///
/// Every call must see the tables as the last one left them. If a transaction is rolled back the
/// directory is no longer true: drop it and [`open`](Runs::open) it again.
pub(crate) struct Runs {
    seed: Seed,
    next_id: i64,
    /// The live runs, oldest first.
    runs: Vec<Run>,
    /// Runs to be deleted, `BUILDING` or `RETIRED` on disk.
    retired: Vec<i64>,
    /// The merges under way, each of a lower tier than the one before it. Only the last goes on:
    /// a small merge does not wait for a large one, or runs would pile up meanwhile.
    merges: Vec<Merge>,
    /// Counts the runs looked at by [`Runs::next_stale`], which takes turns.
    inspections: usize,
}

impl Runs {
    /// Reads the directory and the filters, but no blocks.
    pub(crate) fn open(conn: &Connection) -> rusqlite::Result<Runs> {
        let seed = conn.query_row("SELECT seed FROM receipt_seed", [], |row| row.get(0))?;
        let mut this = Runs {
            seed: Seed::from_bytes(seed),
            next_id: 1,
            runs: Vec::new(),
            retired: Vec::new(),
            merges: Vec::new(),
            inspections: 0,
        };
        let mut select = conn.prepare_cached(
            "SELECT id, age, tier, entries, until_max, end_block, state FROM receipt_run
             ORDER BY age",
        )?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let mut run = Run {
                id: row.get(0)?,
                age: row.get(1)?,
                tier: row.get(2)?,
                entries: row.get::<_, i64>(3)?.cast_unsigned(),
                until_max: row.get::<_, i64>(4)?.cast_unsigned(),
                segments: Vec::new(),
            };
            // No age exceeds its run's id, so what comes next is also newer than all there is.
            this.next_id = this.next_id.max(run.id + 1);
            if row.get::<_, i64>(6)? == state::LIVE {
                run.load_segments(conn, row.get(5)?)?;
                this.runs.push(run);
            } else {
                this.retired.push(run.id);
            }
        }
        Ok(this)
    }

    /// Writes a batch as a new run. If it has a key twice the later one counts.
    pub(crate) fn spill(&mut self, conn: &Connection, mut entries: Vec<Entry>) -> rusqlite::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        // Stable, so equal keys stay in the order in which they came.
        entries.sort_by_key(|entry| entry.key);
        let id = self.take_id();
        let mut writer = RunWriter::new(id, id, 0);
        let mut entries = entries.iter().peekable();
        while let Some(entry) = entries.next() {
            if entries.peek().is_none_or(|next| next.key != entry.key) {
                writer.push(conn, &self.seed, entry)?;
            }
        }
        let run = writer.finish(conn)?;
        run.save(conn, state::LIVE)?;
        self.runs.push(run);
        Ok(())
    }

    /// The newest entry with this key. It may be past its time: dropping is left to `step`.
    pub(crate) fn find(&self, conn: &Connection, key: &EntryKey) -> rusqlite::Result<Option<Entry>> {
        if self.runs.is_empty() {
            return Ok(None);
        }
        let hash = self.seed.hash(key);
        for segment in self.runs.iter().rev().filter_map(|run| run.candidate(key, hash)) {
            if let Some(entry) = segment.find(conn, key)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Up to `limit` entries after this key, in the order of keys; of each key the newest.
    pub(crate) fn after(&self, conn: &Connection, key: &EntryKey, limit: usize) -> rusqlite::Result<Vec<Entry>> {
        // Newest first: of equal keys the first cursor's counts.
        let cursors = self.runs.iter().rev().map(|run| Cursor::after(conn, run, key));
        let mut cursors: Vec<Cursor> = cursors.filter_map(Result::transpose).collect::<rusqlite::Result<_>>()?;
        let mut found: Vec<Entry> = Vec::new();
        while found.len() < limit
            && let Some(at) = (0..cursors.len()).min_by_key(|at| cursors[*at].reader.entry.key)
        {
            let entry = &cursors[at].reader.entry;
            if found.last().is_none_or(|last| last.key != entry.key) {
                found.push(entry.clone());
            }
            if !cursors[at].advance(conn, &mut 0)? {
                cursors.remove(at);
            }
        }
        Ok(found)
    }

    /// Tidies up: drops runs that expired, deletes what was dropped, merges. Reads, writes and
    /// deletes about `blocks` blocks in all, overshooting by at most a segment's filter and the
    /// first blocks of a merge's sources.
    ///
    /// Merges leave out entries whose `until` is before `now` and those that `keep` refuses. With
    /// nothing to merge a step reads a few blocks of one run, the next one each time, and has the
    /// run rewritten if that would halve it. So a step now and then is of use also when idle.
    pub(crate) fn step(
        &mut self,
        conn: &Connection,
        blocks: usize,
        now: u64,
        keep: &dyn Fn(&Entry) -> bool,
    ) -> rusqlite::Result<Progress> {
        let retain = |entry: &Entry| entry.until >= now && keep(entry);
        self.retire_expired(conn, now)?;
        let mut cost = 0;
        self.delete_retired(conn, blocks, &mut cost)?;
        while cost < blocks {
            if let Some(sources) = self.next_merge() {
                let tier = self.runs[sources.start].tier + 1;
                self.start_merge(conn, sources, tier, &mut cost)?;
            }
            let Some(merge) = self.merges.last_mut() else {
                break;
            };
            if merge.advance(conn, &self.seed, blocks, &mut cost, &retain)? {
                cost += self.finish_merge(conn)?;
            }
        }
        if cost < blocks
            && let Some(at) = self.next_stale(conn, &retain)?
        {
            let tier = self.runs[at].tier;
            self.start_merge(conn, at..at + 1, tier, &mut cost)?;
        }
        let idle = self.retired.is_empty() && self.merges.is_empty() && self.next_merge().is_none();
        Ok(if idle { Progress::Idle } else { Progress::More })
    }

    /// The bytes of the directory, nearly all of them filters.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.runs.iter().map(Run::memory_bytes).sum::<usize>()
            + self.merges.iter().map(Merge::memory_bytes).sum::<usize>()
    }

    /// The entries on disk; a key in several runs counts in each.
    #[cfg(test)]
    pub(crate) fn len(&self) -> u64 {
        self.runs.iter().map(|run| run.entries).sum()
    }

    /// The runs that a lookup has to ask.
    #[cfg(test)]
    pub(crate) fn run_count(&self) -> usize {
        self.runs.len()
    }

    fn take_id(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn retire(&mut self, conn: &Connection, ids: &[i64]) -> rusqlite::Result<()> {
        for id in ids {
            conn.prepare_cached("UPDATE receipt_run SET state = ?2 WHERE id = ?1")?.execute([*id, state::RETIRED])?;
        }
        self.runs.retain(|run| !ids.contains(&run.id));
        self.retired.extend_from_slice(ids);
        Ok(())
    }

    /// Retires the runs in which every entry expired, save those that a merge is reading.
    fn retire_expired(&mut self, conn: &Connection, now: u64) -> rusqlite::Result<()> {
        let merging = |run: &Run| self.merges.iter().any(|merge| merge.sources.contains(&run.id));
        let expired = |run: &&Run| run.until_max < now && !merging(run);
        let ids: Vec<i64> = self.runs.iter().filter(expired).map(|run| run.id).collect();
        self.retire(conn, &ids)
    }

    /// Deletes blocks and segments of retired runs, and each run's row when the rest is gone.
    fn delete_retired(&mut self, conn: &Connection, budget: usize, cost: &mut usize) -> rusqlite::Result<()> {
        while let Some(&run) = self.retired.last()
            && *cost < budget
        {
            let blocks = delete_some(conn, "receipt_block", run, budget - *cost)?;
            *cost += blocks;
            if blocks == 0 {
                let segments = delete_some(conn, "receipt_filter", run, 1)?;
                *cost += segments * SEGMENT_COST;
                if segments == 0 {
                    conn.prepare_cached("DELETE FROM receipt_run WHERE id = ?1")?.execute([run])?;
                    self.retired.pop();
                }
            }
        }
        Ok(())
    }

    /// The places in `runs` of [`FAN_IN`] neighbours to be merged: those of the lowest tier, which
    /// are quickest done, and of these the oldest, so that tiers stay together. Nothing while a
    /// merge of that tier or a lower one is under way.
    fn next_merge(&self) -> Option<Range<usize>> {
        let busy_tier = self.merges.last().map_or(u32::MAX, |merge| merge.source_tier);
        let mergeable = |(_, runs): &(usize, &[Run])| {
            runs[0].tier < busy_tier
                && runs.iter().all(|run| run.tier == runs[0].tier)
                && runs.iter().map(|run| run.entries).sum::<u64>() <= RUN_ENTRIES_MAX
        };
        let windows = self.runs.windows(FAN_IN).enumerate().filter(mergeable);
        let (at, _) = windows.min_by_key(|(_, runs)| runs[0].tier)?;
        Some(at..at + FAN_IN)
    }

    /// The place of a run most of which need not be kept.
    ///
    /// A run that is too large to be merged would otherwise never shrink, as long as one entry in
    /// it lives. Keys have nothing to do with age, so a few blocks speak for all of them.
    fn next_stale(&mut self, conn: &Connection, retain: &dyn Fn(&Entry) -> bool) -> rusqlite::Result<Option<usize>> {
        self.inspections = self.inspections.wrapping_add(1);
        let Some(at) = self.inspections.checked_rem(self.runs.len()) else {
            return Ok(None);
        };
        let (retained, total) = self.runs[at].sample(conn, retain)?;
        Ok((retained * 2 < total).then_some(at))
    }

    fn start_merge(
        &mut self,
        conn: &Connection,
        sources: Range<usize>,
        tier: u32,
        cost: &mut usize,
    ) -> rusqlite::Result<()> {
        let id = self.take_id();
        let sources = &self.runs[sources];
        let age = sources.iter().map(|run| run.age).max().unwrap_or(id);
        let output = RunWriter::new(id, age, tier);
        output.run().save(conn, state::BUILDING)?;
        self.merges.push(Merge::start(conn, sources, output, cost)?);
        Ok(())
    }

    /// Puts the output of the last merge where its sources were, and returns the cost.
    fn finish_merge(&mut self, conn: &Connection) -> rusqlite::Result<usize> {
        let Some(merge) = self.merges.pop() else {
            return Ok(0);
        };
        let (output, sources) = merge.finish(conn)?;
        self.retire(conn, &sources)?;
        output.save(conn, state::LIVE)?;
        if output.entries == 0 {
            self.retire(conn, &[output.id])?;
        } else {
            let at = self.runs.partition_point(|run| run.age < output.age);
            self.runs.insert(at, output);
        }
        Ok(SEGMENT_COST)
    }
}

/// Deletes up to `limit` rows of a run and returns how many these were.
fn delete_some(conn: &Connection, table: &str, run: i64, limit: usize) -> rusqlite::Result<usize> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    conn.prepare_cached(&format!(
        "DELETE FROM {table} WHERE id IN
             (SELECT id FROM {table} WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT ?3)"
    ))?
    .execute([run * BLOCKS_PER_RUN, (run + 1) * BLOCKS_PER_RUN, limit])
}
