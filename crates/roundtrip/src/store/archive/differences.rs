//! Which records differ between two stores that should be the same.
//!
//! Neither store's records fit in memory, and their orders differ. So both are read twice: once
//! to find in which of many buckets they differ, and once to compare the records of a few of these.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::contents::Contents;
use super::record::{Kind, Record};
use super::tally::{Sum, hash};
use super::{CopyError, each};
use crate::store::StoreError;

/// Into how many buckets records are sorted by their names.
const BUCKETS: usize = 4096;
/// How many records are named.
const NAMED_MAX: usize = 5;

/// Records by name, with their hashes.
type Hashes = BTreeMap<String, [u8; 32]>;

/// Some of the records of these kinds that differ, in words.
pub(super) async fn between(
    from: &mut dyn Contents,
    to: &mut dyn Contents,
    kinds: &[Kind],
) -> Result<Vec<String>, CopyError> {
    let here = sums(from, kinds).await.map_err(CopyError::Source)?;
    let there = sums(to, kinds).await.map_err(CopyError::Destination)?;
    let suspects: Vec<usize> = (0..BUCKETS).filter(|at| here[*at] != there[*at]).take(NAMED_MAX).collect();
    let here = within(from, kinds, &suspects).await.map_err(CopyError::Source)?;
    let there = within(to, kinds, &suspects).await.map_err(CopyError::Destination)?;
    Ok(in_words(&here, &there))
}

fn bucket(record: &Record) -> usize {
    let mut hasher = DefaultHasher::new();
    record.to_string().hash(&mut hasher);
    usize::try_from(hasher.finish() % BUCKETS as u64).unwrap_or(0)
}

async fn sums(contents: &mut dyn Contents, kinds: &[Kind]) -> Result<Vec<Sum>, StoreError> {
    let mut sums = vec![Sum::default(); BUCKETS];
    for kind in kinds {
        each(contents, *kind, &mut |record| {
            sums[bucket(&record)].add(&hash(&record)?);
            Ok(())
        })
        .await?;
    }
    Ok(sums)
}

async fn within(contents: &mut dyn Contents, kinds: &[Kind], buckets: &[usize]) -> Result<Hashes, StoreError> {
    let mut found = Hashes::new();
    for kind in kinds {
        each(contents, *kind, &mut |record| {
            if buckets.contains(&bucket(&record)) {
                found.insert(record.to_string(), hash(&record)?);
            }
            Ok(())
        })
        .await?;
    }
    Ok(found)
}

fn in_words(here: &Hashes, there: &Hashes) -> Vec<String> {
    let missing = here.keys().filter(|name| !there.contains_key(*name)).map(|name| format!("{name}, which is missing"));
    let strange = there.keys().filter(|name| !here.contains_key(*name)).map(|name| format!("{name}, which is new"));
    let changed = here.iter().filter(|(name, hash)| there.get(*name).is_some_and(|other| other != *hash));
    let changed = changed.map(|(name, _)| format!("{name}, which is changed"));
    missing.chain(strange).chain(changed).take(NAMED_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let of =
            |all: &[(&str, u8)]| -> Hashes { all.iter().map(|(name, byte)| ((*name).into(), [*byte; 32])).collect() };
        let check = |here: &[(&str, u8)], there: &[(&str, u8)], words: &[&str]| {
            assert_eq!(in_words(&of(here), &of(there)), words, "{here:?} {there:?}");
        };
        check(&[("a", 1)], &[("a", 1)], &[]);
        check(&[("a", 1), ("b", 1)], &[("b", 1)], &["a, which is missing"]);
        check(&[("b", 1)], &[("a", 1), ("b", 1)], &["a, which is new"]);
        check(&[("a", 1)], &[("a", 2)], &["a, which is changed"]);
    }
}
