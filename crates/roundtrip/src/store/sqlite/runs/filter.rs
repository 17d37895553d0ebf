//! The filter that answers "certainly not in this segment" from memory.
//!
//! A blocked Bloom filter: a key's hash chooses one 64-byte line and six bits within it, so a
//! probe costs one cache miss. At twelve bits a key it errs for about one absent key in 200.

use super::EntryKey;

/// Bits spent on a key. With [`PROBES`] this keeps false positives under 1 %.
const BITS_PER_KEY: usize = 12;
/// Bits set for a key, each chosen by nine bits of its hash.
const PROBES: u32 = 6;
const LINE_BYTES: usize = 64;

/// The store's secret key for [`Seed::hash`].
///
/// Without it somebody who chooses request ids could choose them to collide in every filter and
/// turn each lookup into a disk read.
pub(super) struct Seed(u64, u64);

impl Seed {
    pub(super) fn from_bytes(bytes: [u8; 16]) -> Seed {
        let seed = u128::from_le_bytes(bytes);
        let low_half = u128::from(u64::MAX);
        let word = |bits: u128| u64::try_from(bits & low_half).unwrap_or_default();
        Seed(word(seed), word(seed >> 64))
    }

    /// `SipHash`-1-3 of the key.
    ///
    /// Filters outlive the process and the build that wrote them, so the hash must never change.
    /// Hashers out of libraries promise nothing of the kind; this is a published function,
    /// written out here and pinned by a test, that reads bytes in a fixed order on any machine.
    pub(super) fn hash(&self, key: &EntryKey) -> u64 {
        let mut state = [
            self.0 ^ 0x736f_6d65_7073_6575,
            self.1 ^ 0x646f_7261_6e64_6f6d,
            self.0 ^ 0x6c79_6765_6e65_7261,
            self.1 ^ 0x7465_6462_7974_6573,
        ];
        let (words, rest) = key.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let last = u64::from_le_bytes(last) | (key.len() as u64) << 56;
        for word in words.iter().map(|word| u64::from_le_bytes(*word)).chain([last]) {
            state[3] ^= word;
            sip_round(&mut state);
            state[0] ^= word;
        }
        state[2] ^= 0xff;
        for _ in 0..3 {
            sip_round(&mut state);
        }
        state[0] ^ state[1] ^ state[2] ^ state[3]
    }
}

fn sip_round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *c = c.wrapping_add(*d);
    *b = b.rotate_left(13) ^ *a;
    *d = d.rotate_left(16) ^ *c;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*b);
    *a = a.wrapping_add(*d);
    *b = b.rotate_left(17) ^ *c;
    *d = d.rotate_left(21) ^ *a;
    *c = c.rotate_left(32);
}

/// Aligned, so that a line of the filter is a line of the cache.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; LINE_BYTES]);

pub(super) struct Filter(Box<[Line]>);

impl Filter {
    pub(super) fn build(hashes: &[u64]) -> Filter {
        let line_count = (hashes.len() * BITS_PER_KEY).div_ceil(LINE_BYTES * 8).max(1);
        let mut lines = vec![Line([0; LINE_BYTES]); line_count];
        for &hash in hashes {
            let line = &mut lines[line_of(hash, line_count)].0;
            for (byte, mask) in bits_of(hash) {
                line[byte] |= mask;
            }
        }
        Filter(lines.into())
    }

    /// False means that no key with this hash went into the filter.
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        let line = &self.0[line_of(hash, self.0.len())].0;
        bits_of(hash).all(|(byte, mask)| line[byte] & mask != 0)
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|line| line.0).collect()
    }

    /// `None` if this is not what [`Filter::to_bytes`] wrote.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Filter> {
        let (lines, rest) = bytes.as_chunks::<LINE_BYTES>();
        (!lines.is_empty() && rest.is_empty()).then(|| Filter(lines.iter().map(|line| Line(*line)).collect()))
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.0.len() * LINE_BYTES
    }
}

/// Scales the hash's upper half onto the lines. A segment has some 800 lines, so in effect only
/// the top ten bits count here, which the six probes (the low 54) do not use.
fn line_of(hash: u64, line_count: usize) -> usize {
    let scaled = (u128::from(hash >> 32) * line_count as u128) >> 32;
    usize::try_from(scaled).unwrap_or_default()
}

fn bits_of(hash: u64) -> impl Iterator<Item = (usize, u8)> {
    (0..PROBES).map(move |probe| {
        let bit = (hash >> (9 * probe)) & 511;
        (usize::try_from(bit >> 3).unwrap_or_default(), 1 << (bit & 7))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn key(number: u64) -> EntryKey {
        let mut key = [7; 33];
        key[25..].copy_from_slice(&number.to_le_bytes());
        key
    }

    #[test]
    fn the_hash_is_siphash_1_3_and_stays_it() {
        let counting: EntryKey = std::array::from_fn(|at| u8::try_from(at).unwrap());
        assert_eq!(Seed::from_bytes([0; 16]).hash(&counting), 0x7fb7_1d24_dfa4_c9f6);
        let seed = Seed::from_bytes(std::array::from_fn(|at| u8::try_from(at).unwrap()));
        assert_eq!(seed.hash(&counting), 0x4d54_b9e5_7a8f_f9bf);
    }

    #[test]
    fn knows_every_key_and_errs_for_less_than_one_percent_of_others() {
        for (keys, seed) in [(1_u64, 1), (100, 2), (32_768, 3), (33_000, 4)] {
            let seed = Seed::from_bytes([seed; 16]);
            let hashes: Vec<u64> = (0..keys).map(|number| seed.hash(&key(number))).collect();
            let written = Filter::build(&hashes).to_bytes();
            let filter = Filter::from_bytes(&written).unwrap();
            assert!(hashes.iter().all(|hash| filter.may_contain(*hash)));
            let absent = 200_000;
            let wrong = (keys..keys + absent).filter(|number| filter.may_contain(seed.hash(&key(*number)))).count();
            let rate = wrong as f64 / absent as f64;
            println!("{keys} keys: false positive rate {rate:.4}");
            assert!(rate < 0.01, "{rate}");
        }
    }

    #[test]
    fn refuses_a_damaged_filter() {
        assert!(Filter::from_bytes(&[]).is_none());
        assert!(Filter::from_bytes(&[0; 65]).is_none());
    }
}
