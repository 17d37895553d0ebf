//! The merge of neighbouring runs into one, a bounded piece at a time.

use rusqlite::Connection;

use super::block::{BlockReader, RunWriter, with_block};
use super::filter::Seed;
use super::{Entry, EntryKey, run::Run};

/// Reads one source, block by block.
pub(super) struct Cursor {
    next_block: i64,
    end_block: i64,
    block: Vec<u8>,
    pub(super) reader: BlockReader,
}

impl Cursor {
    fn new(run: &Run) -> Cursor {
        let (next_block, end_block) = (run.first_block(), run.end_block());
        Cursor { next_block, end_block, block: Vec::new(), reader: BlockReader::new() }
    }

    /// Stands on the first entry after this key; nothing, if there is none.
    pub(super) fn after(conn: &Connection, run: &Run, key: &EntryKey) -> rusqlite::Result<Option<Cursor>> {
        let mut cursor = Cursor { next_block: run.block_of(key), ..Cursor::new(run) };
        while cursor.advance(conn, &mut 0)? {
            if cursor.reader.entry.key > *key {
                return Ok(Some(cursor));
            }
        }
        Ok(None)
    }

    /// Goes on to the next entry; false at the end of the run. Counts a block read in `cost`.
    pub(super) fn advance(&mut self, conn: &Connection, cost: &mut usize) -> rusqlite::Result<bool> {
        while !self.reader.advance(&self.block)? {
            if self.next_block == self.end_block {
                return Ok(false);
            }
            let block = &mut self.block;
            with_block(conn, self.next_block, |data| {
                block.clear();
                block.extend_from_slice(data);
                Ok(())
            })?;
            self.next_block += 1;
            *cost += 1;
        }
        Ok(true)
    }
}

pub(super) struct Merge {
    /// The runs that the output will replace, and their tier.
    pub(super) sources: Vec<i64>,
    pub(super) source_tier: u32,
    /// The sources not yet read to their end, newest first; each stands on an entry.
    cursors: Vec<Cursor>,
    output: RunWriter,
}

impl Merge {
    /// Opens `sources`, which come oldest first.
    pub(super) fn start(
        conn: &Connection,
        sources: &[Run],
        output: RunWriter,
        cost: &mut usize,
    ) -> rusqlite::Result<Merge> {
        let mut cursors = Vec::with_capacity(sources.len());
        for run in sources.iter().rev() {
            let mut cursor = Cursor::new(run);
            if cursor.advance(conn, cost)? {
                cursors.push(cursor);
            }
        }
        Ok(Merge {
            sources: sources.iter().map(|run| run.id).collect(),
            source_tier: sources.first().map_or(0, |run| run.tier),
            cursors,
            output,
        })
    }

    /// Merges until `budget` blocks were read or written; true when the sources are exhausted.
    pub(super) fn advance(
        &mut self,
        conn: &Connection,
        seed: &Seed,
        budget: usize,
        cost: &mut usize,
        retain: &dyn Fn(&Entry) -> bool,
    ) -> rusqlite::Result<bool> {
        while *cost < budget {
            // Of equal keys `min_by` answers the first, which is the newest.
            let entries = self.cursors.iter().map(|cursor| &cursor.reader.entry);
            let Some(entry) = entries.min_by(|a, b| a.key.cmp(&b.key)) else {
                return Ok(true);
            };
            if retain(entry) {
                *cost += self.output.push(conn, seed, entry)?;
            }
            // The older entries of the key go with it, also if it was itself dropped.
            let key = entry.key;
            let mut at = 0;
            while let Some(cursor) = self.cursors.get_mut(at) {
                if cursor.reader.entry.key == key && !cursor.advance(conn, cost)? {
                    self.cursors.remove(at);
                } else {
                    at += 1;
                }
            }
        }
        Ok(false)
    }

    /// Closes the output and returns it, with the runs it replaces.
    pub(super) fn finish(self, conn: &Connection) -> rusqlite::Result<(Run, Vec<i64>)> {
        Ok((self.output.finish(conn)?, self.sources))
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        let blocks: usize = self.cursors.iter().map(|cursor| cursor.block.capacity()).sum();
        blocks + self.output.memory_bytes()
    }
}
