//! How entries lie in a block, and the writer that turns a sorted stream into a run.

use rusqlite::Connection;

use super::filter::{Filter, Seed};
use super::run::{Run, Segment};
use super::{BLOCKS_PER_RUN, Entry, EntryKey, corrupt};

/// The longest block that SQLite keeps on one 4,096-byte page: a table leaf holds up to
/// 4,096 - 35 bytes of a row, and the row's own header takes four. One byte more and every block
/// would drag an overflow page behind it.
pub(super) const BLOCK_BYTES: usize = 4_057;

/// Entries after which a segment is closed. Its filter (48 KiB) and fences then fill the pages
/// that [`SEGMENT_COST`] counts.
const SEGMENT_ENTRIES: usize = 32_768;
/// What closing or deleting a segment costs, in blocks.
pub(super) const SEGMENT_COST: usize = 14;

/// Appends an entry: length of the prefix shared with the key before it, rest of the key, `until`,
/// length of the value, value.
fn encode(block: &mut Vec<u8>, previous: &EntryKey, entry: &Entry) -> rusqlite::Result<()> {
    let byte = |len: usize| u8::try_from(len).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()));
    let value_len = byte(entry.value.len())?;
    let shared = if block.is_empty() {
        0
    } else {
        previous.iter().zip(&entry.key).take_while(|(before, here)| before == here).count()
    };
    block.push(byte(shared)?);
    block.extend_from_slice(&entry.key[shared..]);
    // Off by one, because "for ever" (u64::MAX) is common and then takes one byte, not ten.
    let mut until = entry.until.wrapping_add(1);
    while until >= 0x80 {
        block.push(until.to_le_bytes()[0] | 0x80);
        until >>= 7;
    }
    block.push(until.to_le_bytes()[0]);
    block.push(value_len);
    block.extend_from_slice(&entry.value);
    Ok(())
}

fn decode_until(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0_u64;
    for (at, &byte) in bytes.iter().take(10).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Some((number.wrapping_sub(1), &bytes[at + 1..]));
        }
    }
    None
}

/// Walks through one block; `entry` is where it stands.
pub(super) struct BlockReader {
    pub(super) entry: Entry,
    at: usize,
}

impl BlockReader {
    /// Stands before the first entry.
    pub(super) fn new() -> BlockReader {
        BlockReader { entry: Entry { key: [0; 33], value: Vec::new(), until: 0 }, at: 0 }
    }

    /// Goes on to the next entry of `block`; false at the end, after which a next block may follow.
    pub(super) fn advance(&mut self, block: &[u8]) -> rusqlite::Result<bool> {
        if self.at == block.len() {
            self.at = 0;
            return Ok(false);
        }
        self.at = self.decode(block).ok_or_else(|| corrupt("malformed receipt block"))?;
        Ok(true)
    }

    fn decode(&mut self, block: &[u8]) -> Option<usize> {
        let (&shared, rest) = block.get(self.at..)?.split_first()?;
        let key_rest = self.entry.key.get_mut(usize::from(shared)..)?;
        let (key_bytes, rest) = rest.split_at_checked(key_rest.len())?;
        key_rest.copy_from_slice(key_bytes);
        let (until, rest) = decode_until(rest)?;
        self.entry.until = until;
        let (&value_len, rest) = rest.split_first()?;
        let (value, rest) = rest.split_at_checked(usize::from(value_len))?;
        self.entry.value.clear();
        self.entry.value.extend_from_slice(value);
        Some(block.len() - rest.len())
    }
}

/// Hands a block to `read`. Blocks are only asked for by who knows that they exist, so a missing
/// one is damage: calling it "not found" would let a repeated request through.
pub(super) fn with_block<T>(
    conn: &Connection,
    id: i64,
    read: impl FnOnce(&[u8]) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let mut select = conn.prepare_cached("SELECT data FROM receipt_block WHERE id = ?1")?;
    let mut rows = select.query([id])?;
    let row = rows.next()?.ok_or_else(|| corrupt("missing receipt block"))?;
    match row.get_ref(0)?.as_blob()? {
        [] => Err(corrupt("empty receipt block")),
        block => read(block),
    }
}

/// The first bytes of a key as a number that sorts as the key does.
pub(super) fn fence(key: &EntryKey) -> u64 {
    key.first_chunk().map_or(0, |start| u64::from_be_bytes(*start))
}

/// Writes one run from entries that come in the order of their keys.
pub(super) struct RunWriter {
    run: Run,
    next_block: i64,
    block: Vec<u8>,
    last_key: EntryKey,
    /// Of the open segment: its first key, its fences, and the hashes its filter will hold. The
    /// filter is made when the segment closes, since only then its size is known.
    segment_first: EntryKey,
    fences: Vec<u64>,
    hashes: Vec<u64>,
}

impl RunWriter {
    pub(super) fn new(id: i64, age: i64, tier: u32) -> RunWriter {
        RunWriter {
            run: Run { id, age, tier, entries: 0, until_max: 0, segments: Vec::new() },
            next_block: id * BLOCKS_PER_RUN,
            block: Vec::with_capacity(BLOCK_BYTES + 300),
            last_key: [0; 33],
            segment_first: [0; 33],
            fences: Vec::new(),
            hashes: Vec::new(),
        }
    }

    /// The run as far as it is written.
    pub(super) fn run(&self) -> &Run {
        &self.run
    }

    /// Adds an entry and returns how many blocks' worth of writing that caused.
    pub(super) fn push(&mut self, conn: &Connection, seed: &Seed, entry: &Entry) -> rusqlite::Result<usize> {
        let mut cost = 0;
        let end = self.block.len();
        encode(&mut self.block, &self.last_key, entry)?;
        if self.block.len() > BLOCK_BYTES {
            self.block.truncate(end);
            cost = self.flush_block(conn)?;
            if self.hashes.len() >= SEGMENT_ENTRIES {
                cost += self.close_segment(conn)?;
            }
            encode(&mut self.block, &self.last_key, entry)?;
        }
        if end == 0 || cost > 0 {
            if self.fences.is_empty() {
                self.segment_first = entry.key;
            }
            self.fences.push(fence(&entry.key));
        }
        self.last_key = entry.key;
        self.hashes.push(seed.hash(&entry.key));
        self.run.entries += 1;
        self.run.until_max = self.run.until_max.max(entry.until);
        Ok(cost)
    }

    /// Writes what is left. The caller records the run.
    pub(super) fn finish(mut self, conn: &Connection) -> rusqlite::Result<Run> {
        if !self.block.is_empty() {
            self.flush_block(conn)?;
            self.close_segment(conn)?;
        }
        Ok(self.run)
    }

    fn flush_block(&mut self, conn: &Connection) -> rusqlite::Result<usize> {
        conn.prepare_cached("INSERT INTO receipt_block (id, data) VALUES (?1, ?2)")?
            .execute((self.next_block, &self.block))?;
        self.next_block += 1;
        self.block.clear();
        Ok(1)
    }

    fn close_segment(&mut self, conn: &Connection) -> rusqlite::Result<usize> {
        let segment = Segment {
            first: self.segment_first,
            first_block: self.run.end_block(),
            fences: std::mem::take(&mut self.fences).into(),
            filter: Filter::build(&self.hashes),
        };
        self.hashes.clear();
        let fences: Vec<u8> = segment.fences.iter().flat_map(|fence| fence.to_be_bytes()).collect();
        conn.prepare_cached("INSERT INTO receipt_filter (id, first, fences, filter) VALUES (?1, ?2, ?3, ?4)")?
            .execute((segment.first_block, segment.first, fences, segment.filter.to_bytes()))?;
        self.run.segments.push(segment);
        Ok(SEGMENT_COST)
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.run.memory_bytes()
            + self.block.capacity()
            + (self.fences.capacity() + self.hashes.capacity()) * size_of::<u64>()
    }
}
