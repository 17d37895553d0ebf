//! Whose turn it is: the index from which a route in any order but plain fifo hands
//! out its queued requests.
//!
//! ```text
//!   one key of a keyed route, in the order of admission, two at a time:
//!
//!   with workers   inside     outside
//!       [ 3 ]      [ 5 ] │ [ 6 ] [ 9 ] ...      answered, dead, ended: no longer in line
//! ```
//!
//! A request stands in line while it is held, queued or with a worker. Those with
//! workers and the first ones after them make up the window; of those inside, the
//! queued ones are listed to be handed out. Everything costs a few steps down a tree,
//! however long the line is.

use std::collections::BTreeMap;

use super::{HashMap, Route, Slot};
use crate::inbox::{Request, State};
use crate::store::policy::QueueOrder;
use crate::words::{OrderKey, Seq};

/// Queued requests that may be handed out, lowest rank first.
pub(super) type Ranked = BTreeMap<(u64, Seq), Slot>;

/// The lines of a route's keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    inside: BTreeMap<(OrderKey, Seq), Turn>,
    outside: BTreeMap<(OrderKey, Seq), Turn>,
    windows: HashMap<OrderKey, Window>,
}

/// A request that waits for its turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    slot: Slot,
    queued: bool,
}

/// How much of a key's window is taken.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    leased: usize,
    inside: usize,
}

impl Lines {
    fn wait(&mut self, per_key: u16, key: &OrderKey, seq: Seq, turn: Turn, ranked: &mut Ranked) -> bool {
        self.outside.insert((key.clone(), seq), turn);
        self.settle(per_key, key, ranked)
    }

    fn stop_waiting(&mut self, per_key: u16, key: &OrderKey, seq: Seq, ranked: &mut Ranked) -> bool {
        let place = (key.clone(), seq);
        if self.inside.remove(&place).is_some() {
            ranked.remove(&(0, seq));
            self.window(key).inside -= 1;
        } else {
            self.outside.remove(&place);
        }
        self.settle(per_key, key, ranked)
    }

    fn lease(&mut self, per_key: u16, key: &OrderKey, ranked: &mut Ranked) -> bool {
        self.window(key).leased += 1;
        self.settle(per_key, key, ranked)
    }

    fn stop_lease(&mut self, per_key: u16, key: &OrderKey, ranked: &mut Ranked) -> bool {
        self.window(key).leased -= 1;
        self.settle(per_key, key, ranked)
    }

    fn window(&mut self, key: &OrderKey) -> &mut Window {
        self.windows.entry(key.clone()).or_default()
    }

    /// Moves whoever should be inside the window in, and whoever should not out, after
    /// one came or went; answers whether one that is queued came in.
    fn settle(&mut self, per_key: u16, key: &OrderKey, ranked: &mut Ranked) -> bool {
        let mut opened = false;
        loop {
            let Window { leased, inside } = *self.window(key);
            // More may be with workers than the window holds: a dead letter that is tried
            // again has a place before those that went on without it.
            let room = usize::from(per_key).saturating_sub(leased);
            let last = in_line(&self.inside, key).next_back();
            let next = in_line(&self.outside, key).next();
            match (last, next) {
                (Some(last), _) if inside > room => self.move_out(key, last, ranked),
                (_, Some(next)) if inside < room => opened |= self.move_in(key, next, ranked),
                (Some(last), Some(next)) if next < last => opened |= self.move_in(key, next, ranked),
                _ => break,
            }
        }
        if matches!(self.windows.get(key), Some(Window { leased: 0, inside: 0 })) {
            self.windows.remove(key);
        }
        opened
    }

    fn move_in(&mut self, key: &OrderKey, seq: Seq, ranked: &mut Ranked) -> bool {
        let place = (key.clone(), seq);
        let Some(turn) = self.outside.remove(&place) else { return false };
        self.inside.insert(place, turn);
        self.window(key).inside += 1;
        if turn.queued {
            ranked.insert((0, seq), turn.slot);
        }
        turn.queued
    }

    fn move_out(&mut self, key: &OrderKey, seq: Seq, ranked: &mut Ranked) {
        let place = (key.clone(), seq);
        let Some(turn) = self.inside.remove(&place) else { return };
        self.outside.insert(place, turn);
        self.window(key).inside -= 1;
        ranked.remove(&(0, seq));
    }
}

/// Where the requests of one key stand.
fn in_line<'a>(
    places: &'a BTreeMap<(OrderKey, Seq), Turn>,
    key: &OrderKey,
) -> impl DoubleEndedIterator<Item = Seq> + 'a {
    let all = (key.clone(), Seq(0))..=(key.clone(), Seq(u64::MAX));
    places.range(all).map(|((_, seq), _)| *seq)
}

impl Route {
    /// Lets a request have its turn, if its state wants one; answers whether one of its
    /// key may be handed out that could not be before.
    pub(super) fn line_up(&mut self, request: &Request, slot: Slot) -> bool {
        let (order, seq, ranked) = (self.policy.order, request.seq, &mut self.ranked);
        let queued = matches!(request.state, State::Queued);
        match (order, &request.key) {
            (QueueOrder::KeyedFifo { per_key }, Some(key)) => match &request.state {
                State::Held if request.behind => false,
                State::Held | State::Queued => self.lines.wait(per_key, key, seq, Turn { slot, queued }, ranked),
                State::Leased(_) => self.lines.lease(per_key, key, ranked),
                State::Answered(_) | State::Dead(_) => false,
            },
            _ if queued => ranked.insert((rank(order, request), seq), slot).is_none(),
            _ => false,
        }
    }

    /// Undoes [`Route::line_up`], before the request's state changes.
    pub(super) fn leave_line(&mut self, request: &Request) -> bool {
        let (order, seq, ranked) = (self.policy.order, request.seq, &mut self.ranked);
        match (order, &request.key) {
            (QueueOrder::KeyedFifo { per_key }, Some(key)) => match &request.state {
                State::Held if request.behind => false,
                State::Held | State::Queued => self.lines.stop_waiting(per_key, key, seq, ranked),
                State::Leased(_) => self.lines.stop_lease(per_key, key, ranked),
                State::Answered(_) | State::Dead(_) => false,
            },
            _ => {
                ranked.remove(&(rank(order, request), seq));
                false
            }
        }
    }
}

pub(super) fn rank(order: QueueOrder, request: &Request) -> u64 {
    order.rank(&request.id, request.priority, request.deadline.rank())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Lines with their listing, changed by words: `+5` is queued, `~5` is held, `-5`
    /// goes; `L` and `l` are leases that begin and end.
    fn after(per_key: u16, steps: &str) -> Vec<u64> {
        let (mut lines, mut ranked, key) = (Lines::default(), Ranked::new(), OrderKey::new("k").unwrap());
        for step in steps.split_whitespace() {
            let seq = || Seq(step[1..].parse().unwrap());
            let turn = |queued| Turn { slot: 0, queued };
            match &step[..1] {
                "+" => lines.wait(per_key, &key, seq(), turn(true), &mut ranked),
                "~" => lines.wait(per_key, &key, seq(), turn(false), &mut ranked),
                "-" => lines.stop_waiting(per_key, &key, seq(), &mut ranked),
                "L" => lines.lease(per_key, &key, &mut ranked),
                _ => lines.stop_lease(per_key, &key, &mut ranked),
            };
        }
        let idle = lines.inside.is_empty() && lines.outside.is_empty();
        assert!(!idle || lines.windows.values().all(|window| window.leased > 0), "nothing is left behind");
        ranked.keys().map(|(_, seq)| seq.0).collect()
    }

    #[test]
    fn the_window_holds_the_first_ones() {
        for (per_key, steps, turns) in [
            (1, "", vec![]),
            (1, "+1 +2 +3", vec![1]),
            (2, "+1 +2 +3", vec![1, 2]),
            (1, "+1 +2 -1", vec![2]),
            (1, "+1 +2 -2", vec![1]),
            // The first is with a worker, then answered.
            (1, "+1 +2 -1 L", vec![]),
            (1, "+1 +2 -1 L l", vec![2]),
            (2, "+1 +2 +3 -1 L", vec![2]),
            // It is to be tried later, and keeps its place.
            (1, "+1 +2 -1 L l ~1", vec![]),
            (2, "+1 +2 +3 -1 L l ~1", vec![2]),
            // A dead letter is tried again, before those that went on without it.
            (1, "+5 +6 +3", vec![3]),
            (1, "+5 +6 -5 L +3", vec![]),
            (1, "+5 +6 -5 L +3 l +5", vec![3]),
            (2, "+5 -5 L +6 -6 L +3 l", vec![3]),
            (1, "+1 -1", vec![]),
        ] {
            assert_eq!(after(per_key, steps), turns, "{per_key} at a time: {steps}");
        }
    }
}
