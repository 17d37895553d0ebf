//! What memory knows of a run, and how a key is looked up in it.

use std::cmp::Ordering;

use rusqlite::Connection;

use super::block::{BlockReader, fence, with_block};
use super::filter::Filter;
use super::{BLOCKS_PER_RUN, Entry, EntryKey, corrupt};

/// The blocks that [`Run::sample`] reads.
const SAMPLES: i64 = 8;

/// A stretch of a run: consecutive blocks with one filter over their keys.
pub(super) struct Segment {
    pub(super) first: EntryKey,
    pub(super) first_block: i64,
    /// Per block, the [`fence`] of its first key.
    pub(super) fences: Box<[u64]>,
    pub(super) filter: Filter,
}

impl Segment {
    pub(super) fn end_block(&self) -> i64 {
        self.block_id(self.fences.len())
    }

    fn block_id(&self, at: usize) -> i64 {
        self.first_block + (at as u64).cast_signed()
    }

    /// The first block that may hold the key, which is not before the segment's first.
    fn block_of(&self, key: &EntryKey) -> i64 {
        let fence = fence(key);
        self.block_id(self.fences.partition_point(|other| *other < fence).saturating_sub(1))
    }

    /// Looks for a key that is not before the segment's first.
    pub(super) fn find(&self, conn: &Connection, key: &EntryKey) -> rusqlite::Result<Option<Entry>> {
        // Every block whose fence equals the key's may hold it, and so may the one before these.
        // Mostly that leaves a single block.
        let fence = fence(key);
        let mut low = self.fences.partition_point(|other| *other < fence).saturating_sub(1);
        let mut high = self.fences.partition_point(|other| *other <= fence);
        while low < high {
            let middle = low.midpoint(high);
            match with_block(conn, self.block_id(middle), |block| find_in_block(block, key))? {
                InBlock::Found(entry) => return Ok(Some(entry)),
                InBlock::Absent => return Ok(None),
                InBlock::Before => high = middle,
                InBlock::After => low = middle + 1,
            }
        }
        Ok(None)
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Segment>() + size_of_val(&*self.fences) + self.filter.memory_bytes()
    }
}

/// Where a key is, seen from one block.
enum InBlock {
    Found(Entry),
    /// Within the block's range, but not there.
    Absent,
    Before,
    After,
}

fn find_in_block(block: &[u8], key: &EntryKey) -> rusqlite::Result<InBlock> {
    let mut reader = BlockReader::new();
    let mut passed_any = false;
    while reader.advance(block)? {
        match reader.entry.key.cmp(key) {
            Ordering::Less => passed_any = true,
            Ordering::Equal => return Ok(InBlock::Found(reader.entry)),
            Ordering::Greater if passed_any => return Ok(InBlock::Absent),
            Ordering::Greater => return Ok(InBlock::Before),
        }
    }
    Ok(InBlock::After)
}

/// A run as the directory holds it.
pub(super) struct Run {
    pub(super) id: i64,
    pub(super) age: i64,
    pub(super) tier: u32,
    pub(super) entries: u64,
    pub(super) until_max: u64,
    pub(super) segments: Vec<Segment>,
}

impl Run {
    pub(super) fn first_block(&self) -> i64 {
        self.id * BLOCKS_PER_RUN
    }

    /// One past the last block.
    pub(super) fn end_block(&self) -> i64 {
        self.segments.last().map_or(self.first_block(), Segment::end_block)
    }

    /// The segment that holds the key if the run does and its filter does not deny it.
    pub(super) fn candidate(&self, key: &EntryKey, hash: u64) -> Option<&Segment> {
        let after = self.segments.partition_point(|segment| segment.first <= *key);
        let segment = self.segments.get(after.checked_sub(1)?)?;
        segment.filter.may_contain(hash).then_some(segment)
    }

    /// A block before which no entry is after this key.
    pub(super) fn block_of(&self, key: &EntryKey) -> i64 {
        let after = self.segments.partition_point(|segment| segment.first <= *key);
        let segment = after.checked_sub(1).and_then(|at| self.segments.get(at));
        segment.map_or(self.first_block(), |segment| segment.block_of(key))
    }

    /// Of the entries in a few blocks, evenly spread: how many are to be retained, and how many
    /// there are.
    pub(super) fn sample(
        &self,
        conn: &Connection,
        retain: &dyn Fn(&Entry) -> bool,
    ) -> rusqlite::Result<(usize, usize)> {
        let blocks = self.end_block() - self.first_block();
        let samples = blocks.min(SAMPLES);
        let (mut retained, mut total) = (0, 0);
        for sample in 0..samples {
            with_block(conn, self.first_block() + sample * blocks / samples, |block| {
                let mut reader = BlockReader::new();
                while reader.advance(block)? {
                    total += 1;
                    retained += usize::from(retain(&reader.entry));
                }
                Ok(())
            })?;
        }
        Ok((retained, total))
    }

    pub(super) fn save(&self, conn: &Connection, state: i64) -> rusqlite::Result<()> {
        conn.prepare_cached(
            "INSERT OR REPLACE INTO receipt_run
                 (id, age, tier, entries, end_block, until_max, state)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute((
            self.id,
            self.age,
            self.tier,
            self.entries.cast_signed(),
            self.end_block(),
            self.until_max.cast_signed(),
            state,
        ))?;
        Ok(())
    }

    /// Reads the segments, and makes sure that none is missing.
    pub(super) fn load_segments(&mut self, conn: &Connection, end_block: i64) -> rusqlite::Result<()> {
        let mut select = conn.prepare_cached(
            "SELECT id, first, fences, filter FROM receipt_filter
             WHERE id >= ?1 AND id < ?2 ORDER BY id",
        )?;
        let mut rows = select.query([self.first_block(), end_block])?;
        while let Some(row) = rows.next()? {
            let (fences, rest) = row.get_ref(2)?.as_blob()?.as_chunks();
            let filter = Filter::from_bytes(row.get_ref(3)?.as_blob()?);
            let first_block = row.get(0)?;
            match filter {
                Some(filter) if rest.is_empty() && first_block == self.end_block() => {
                    self.segments.push(Segment {
                        first: row.get(1)?,
                        first_block,
                        fences: fences.iter().map(|fence| u64::from_be_bytes(*fence)).collect(),
                        filter,
                    });
                }
                _ => return Err(corrupt("malformed receipt filter")),
            }
        }
        if self.end_block() != end_block {
            return Err(corrupt("missing receipt filter"));
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Run>() + self.segments.iter().map(Segment::memory_bytes).sum::<usize>()
    }
}
