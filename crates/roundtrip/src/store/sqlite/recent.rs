//! Bodies that were written a moment ago. In a store without a backlog a request is
//! handed out, and its answer sent, soon after it was stored; those need not be read
//! back from the disk.

use std::collections::{HashMap, VecDeque};

use crate::words::Seq;

/// What the newest bodies may weigh together.
const BYTES_MAX: usize = 4 << 20;
/// What keeping one costs beside its bytes.
const ENTRY_BYTES: usize = 96;

/// The newest bodies by number, forgotten in the order of their coming.
pub(super) struct Recent<T> {
    bodies: HashMap<Seq, T, foldhash::fast::RandomState>,
    order: VecDeque<(Seq, usize)>,
    bytes: usize,
}

impl<T: Clone> Recent<T> {
    pub(super) fn new() -> Recent<T> {
        Recent { bodies: HashMap::default(), order: VecDeque::new(), bytes: 0 }
    }

    pub(super) fn put(&mut self, seq: Seq, body: T, bytes: usize) {
        let bytes = bytes + ENTRY_BYTES;
        self.bodies.insert(seq, body);
        self.order.push_back((seq, bytes));
        self.bytes += bytes;
        while self.bytes > BYTES_MAX
            && let Some((oldest, bytes)) = self.order.pop_front()
        {
            self.bodies.remove(&oldest);
            self.bytes -= bytes;
        }
    }

    pub(super) fn get(&self, seq: Seq) -> Option<T> {
        self.bodies.get(&seq).cloned()
    }

    pub(super) fn forget(&mut self, seq: Seq) {
        self.bodies.remove(&seq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten_first_and_the_weight_is_bounded() {
        let mut recent = Recent::new();
        let weight = BYTES_MAX / 10;
        for n in 0..20 {
            recent.put(Seq(n), n, weight);
            assert!(recent.bytes <= BYTES_MAX);
        }
        assert_eq!(recent.get(Seq(0)), None);
        assert_eq!(recent.get(Seq(19)), Some(19));
        recent.forget(Seq(19));
        assert_eq!(recent.get(Seq(19)), None);
        recent.put(Seq(20), 20, 2 * BYTES_MAX);
        assert_eq!((recent.bytes, recent.bodies.len()), (0, 0));
    }
}
