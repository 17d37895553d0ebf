//! The fields of a hash in the order of their bytes, some at a time.
//!
//! A server shows fields in an order of its own, some of them twice, and in another order after a
//! restart. So all are looked at, and the first so many after the last one are kept; and again, for
//! those after them.

use super::keys::Key;

/// How many fields are kept of one look at all of them.
pub(super) const FIELDS_MAX: usize = 1 << 18;

/// The first fields after one.
#[derive(Debug)]
pub(super) struct Sorted {
    key: Key,
    after: Vec<u8>,
    fields: Vec<Box<[u8]>>,
    most: usize,
    /// Whether there are more than are kept.
    has_more: bool,
}

impl Sorted {
    /// The first so many fields of a hash after this one; of all, if it is empty.
    pub(super) fn new(key: Key, after: &[u8], most: usize) -> Sorted {
        Sorted { key, after: after.to_vec(), fields: Vec::new(), most, has_more: false }
    }

    /// Looks at one more, perhaps not for the first time.
    pub(super) fn add(&mut self, field: Vec<u8>) {
        if field > self.after {
            self.fields.push(field.into());
        }
        if self.fields.len() >= 2 * self.most {
            self.sort();
        }
    }

    /// All fields have been looked at.
    pub(super) fn sort(&mut self) {
        self.fields.sort_unstable();
        self.fields.dedup();
        self.has_more |= self.fields.len() > self.most;
        self.fields.truncate(self.most);
    }

    /// Up to so many after this one; nothing, if they are not among those that were kept.
    pub(super) fn after(&self, key: Key, after: &[u8], limit: usize) -> Option<Vec<Box<[u8]>>> {
        if self.key != key || *after < self.after[..] {
            return None;
        }
        let from = self.fields.partition_point(|field| **field <= *after);
        let fields: Vec<Box<[u8]>> = self.fields[from..].iter().take(limit).cloned().collect();
        (!fields.is_empty() || !self.has_more).then_some(fields)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn looked_at(fields: &[u8], after: &[u8], most: usize) -> Sorted {
        let mut sorted = Sorted::new(Key::Live, after, most);
        fields.iter().for_each(|field| sorted.add(vec![*field]));
        sorted.sort();
        sorted
    }

    #[test]
    fn fields_come_in_order_and_once() {
        let check = |fields: &[u8], after: &[u8], most: usize, limit: usize, expected: Option<&[u8]>| {
            let found = looked_at(fields, after, most).after(Key::Live, after, limit);
            assert_eq!(found.map(|found| found.concat()).as_deref(), expected);
        };
        check(&[3, 1, 2, 1, 3], &[], 10, 10, Some(&[1, 2, 3]));
        check(&[3, 1, 2, 1, 3], &[], 10, 2, Some(&[1, 2]));
        check(&[3, 1, 2, 1, 3], &[1], 10, 10, Some(&[2, 3]));
        check(&[9, 8, 7, 6, 5, 4, 3, 2, 1], &[2], 3, 10, Some(&[3, 4, 5]));
        check(&[1, 2], &[2], 10, 10, Some(&[]));
        check(&[], &[], 10, 10, Some(&[]));
    }

    #[test]
    fn what_was_not_kept_is_to_be_looked_for() {
        let first = looked_at(&[1, 2, 3, 4, 5], &[], 3);
        assert_eq!(first.after(Key::Live, &[1], 10).unwrap().concat(), [2, 3]);
        assert_eq!(first.after(Key::Live, &[3], 10), None, "there are more");
        assert_eq!(first.after(Key::Body, &[], 10), None, "another hash");
        let second = looked_at(&[1, 2, 3, 4, 5], &[3], 3);
        assert_eq!(second.after(Key::Live, &[2], 10), None, "those before were not kept");
        assert_eq!(second.after(Key::Live, &[5], 10), Some(Vec::new()), "these were all");
    }
}
