//! What a courier knows of its targets: which deliveries wait for each, in order, and
//! which target rests after a failure. Everything here is a pure function of what it is told.
//!
//! Only numbers are kept, and of each target a bounded part: what does not fit is left in
//! the store, and all that follows it for that target with it, until the next look.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::station::bounded;
use crate::words::Seq;

/// How many deliveries are known of one target.
const OF_TARGET_MAX: usize = 1024;
/// With so many known in all, each target has at most one.
const KNOWN_MAX: usize = 1 << 16;
/// How many targets are known; deliveries for more wait until one of these is done.
const TARGETS_MAX: usize = 1 << 16;

/// How failures are waited out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) max: Duration,
    /// The longest wait that a receiver may ask for.
    pub(crate) asked_max: Duration,
}

impl Backoff {
    /// How long to wait after so many failures in a row: twice as long each time, up to a
    /// bound, somewhere between half of it and all of it; and as long as the receiver asks.
    pub(crate) fn wait(&self, failures: u32, asked: Option<Duration>, dice: f64) -> Duration {
        let grown = self.first.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(self.max);
        let own = bounded(grown).mul_f64(0.5 + 0.5 * dice);
        own.max(bounded(asked.unwrap_or_default().min(self.asked_max)))
    }
}

#[derive(Debug, Default)]
struct Target {
    waiting: BTreeSet<Seq>,
    under_way: Option<Seq>,
    failures: u32,
    /// When it may be tried again.
    rests_until: Option<Instant>,
    /// When its last delivery began, among all: who waited longest goes first.
    turn: u64,
    /// Something for it was left in the store since the last look from the start.
    left_out: bool,
}

/// The targets of one destination.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    by_name: BTreeMap<String, Target>,
    /// Whose each known delivery is.
    known: BTreeMap<Seq, String>,
    /// Made, and not yet recorded.
    made: BTreeSet<Seq>,
    idle: BTreeSet<(u64, String)>,
    resting: BTreeSet<(Instant, String)>,
    turns: u64,
    wants_look: bool,
    /// A target was left out since the last look from the start.
    takes_no_new: bool,
}

impl Targets {
    /// A look from the start begins: what was left out may be taken now.
    pub(crate) fn begin_look(&mut self) {
        self.wants_look = false;
        self.takes_no_new = false;
        self.by_name.values_mut().for_each(|target| target.left_out = false);
        self.by_name.retain(|_, target| target.under_way.is_some() || !target.waiting.is_empty());
    }

    /// Whether there is room for what was left out.
    pub(crate) fn wants_look(&self) -> bool {
        self.wants_look
    }

    /// A delivery was seen in the store.
    pub(crate) fn offer(&mut self, name: &str, seq: Seq) {
        if self.known.contains_key(&seq) || self.made.contains(&seq) {
            return;
        }
        let room = if self.known.len() < KNOWN_MAX { OF_TARGET_MAX } else { 1 };
        if !self.by_name.contains_key(name) && (self.takes_no_new || self.by_name.len() >= TARGETS_MAX) {
            self.takes_no_new = true;
            return;
        }
        let turn = self.turns;
        let target = self.by_name.entry(name.to_owned()).or_insert_with(|| Target { turn, ..Target::default() });
        if target.left_out || target.waiting.len() >= room {
            target.left_out = true;
            return;
        }
        target.waiting.insert(seq);
        self.known.insert(seq, name.to_owned());
        self.place(name);
    }

    /// Whether the delivery is known to be for this target.
    pub(crate) fn is_for(&self, seq: Seq, name: &str) -> bool {
        self.known.get(&seq).is_some_and(|known| known == name)
    }

    /// The next delivery to make now, if any may be made.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Seq> {
        self.wake(now);
        let (_, name) = self.idle.first()?;
        self.by_name.get(name)?.waiting.first().copied()
    }

    /// When the first resting target may be tried again.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.resting.first().map(|(until, _)| *until)
    }

    /// The delivery is under way; nothing else is, for its target, until it ends.
    pub(crate) fn start(&mut self, seq: Seq) {
        self.turns += 1;
        let turn = self.turns;
        self.update(seq, |target| {
            target.waiting.remove(&seq);
            target.under_way = Some(seq);
            target.turn = turn;
        });
    }

    /// The delivery was made, or refused for good; it is not taken up again before it is recorded.
    pub(crate) fn made(&mut self, seq: Seq) {
        self.made.insert(seq);
        self.update(seq, |target| target.failures = 0);
        self.forget(seq);
    }

    /// What became of the delivery is in the store.
    pub(crate) fn recorded(&mut self, seq: Seq) {
        self.made.remove(&seq);
    }

    /// The delivery failed: its target rests, and then it is the first to be tried again.
    /// Answers how often in a row the target has failed, and when it is tried again.
    pub(crate) fn failed(&mut self, seq: Seq, now: Instant, wait: impl FnOnce(u32) -> Duration) -> (u32, Instant) {
        let mut failed = (0, now);
        self.update(seq, |target| {
            target.waiting.insert(seq);
            target.under_way = None;
            target.failures = target.failures.saturating_add(1);
            failed = (target.failures, now + wait(target.failures));
            target.rests_until = Some(failed.1);
        });
        failed
    }

    /// The delivery is no longer ready.
    pub(crate) fn forget(&mut self, seq: Seq) {
        self.update(seq, |target| {
            target.waiting.remove(&seq);
            target.under_way = target.under_way.filter(|under_way| *under_way != seq);
        });
        self.known.remove(&seq);
    }

    fn wake(&mut self, now: Instant) {
        while let Some((until, name)) = self.resting.first().cloned() {
            if until > now {
                break;
            }
            self.take_out(&name);
            if let Some(target) = self.by_name.get_mut(&name) {
                target.rests_until = None;
            }
            self.place(&name);
        }
    }

    fn update(&mut self, seq: Seq, with: impl FnOnce(&mut Target)) {
        let Some(name) = self.known.get(&seq).cloned() else { return };
        self.take_out(&name);
        if let Some(target) = self.by_name.get_mut(&name) {
            with(target);
        }
        self.place(&name);
    }

    fn take_out(&mut self, name: &str) {
        let Some(target) = self.by_name.get(name) else { return };
        self.idle.remove(&(target.turn, name.to_owned()));
        if let Some(until) = target.rests_until {
            self.resting.remove(&(until, name.to_owned()));
        }
    }

    /// Lists a target where it is to be found next; one with nothing to do is forgotten.
    fn place(&mut self, name: &str) {
        let Some(target) = self.by_name.get(name) else { return };
        if target.under_way.is_some() {
            return;
        }
        if target.waiting.is_empty() {
            self.wants_look |= target.left_out || self.takes_no_new;
            // One that left something out must not take what follows it.
            if !target.left_out {
                self.by_name.remove(name);
            }
            return;
        }
        match target.rests_until {
            Some(until) => self.resting.insert((until, name.to_owned())),
            None => self.idle.insert((target.turn, name.to_owned())),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff =
        Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60), asked_max: Duration::from_secs(600) };

    fn soon(_failures: u32) -> Duration {
        Duration::from_secs(1)
    }

    #[test]
    fn waits_grow_up_to_a_bound_and_heed_the_receiver() {
        let check = |failures, asked: Option<u64>, dice, ms: u64| {
            let wait = BACKOFF.wait(failures, asked.map(Duration::from_secs), dice);
            assert_eq!(wait, Duration::from_millis(ms), "{failures} {asked:?} {dice}");
        };
        check(1, None, 1.0, 1000);
        check(1, None, 0.0, 500);
        check(3, None, 1.0, 4000);
        check(7, None, 1.0, 60_000);
        check(u32::MAX, None, 1.0, 60_000);
        check(1, Some(30), 1.0, 30_000);
        check(7, Some(30), 1.0, 60_000);
        check(1, Some(86_400), 1.0, 600_000);
    }

    #[test]
    fn for_ever_is_a_time_that_can_be_waited_for() {
        let (mut targets, now, ever) = (Targets::default(), Instant::now(), Duration::MAX);
        let waits = [
            (Backoff { first: ever, max: ever, ..BACKOFF }, None),
            (Backoff { asked_max: ever, ..BACKOFF }, Some(ever)),
        ];
        for (backoff, asked) in waits {
            targets.offer("a", Seq(1));
            targets.start(Seq(1));
            let (_, until) = targets.failed(Seq(1), now, |failures| backoff.wait(failures, asked, 1.0));
            assert_eq!(until, now + bounded(ever), "{backoff:?}");
        }
    }

    #[test]
    fn one_at_a_time_and_in_order_for_each_target() {
        let (mut targets, now) = (Targets::default(), Instant::now());
        for (name, seq) in [("a", 3), ("a", 1), ("b", 2), ("a", 1)] {
            targets.offer(name, Seq(seq));
        }
        assert_eq!(targets.next(now), Some(Seq(1)));
        targets.start(Seq(1));
        assert_eq!(targets.next(now), Some(Seq(2)));
        targets.start(Seq(2));
        assert_eq!(targets.next(now), None);
        // What became ready later goes first if it was admitted first.
        targets.offer("a", Seq(0));
        targets.made(Seq(1));
        assert_eq!(targets.next(now), Some(Seq(0)));
    }

    #[test]
    fn a_target_that_fails_rests_alone_and_keeps_its_order() {
        let (mut targets, now) = (Targets::default(), Instant::now());
        for (name, seq) in [("a", 1), ("a", 2), ("b", 3)] {
            targets.offer(name, Seq(seq));
        }
        targets.start(Seq(1));
        let until = now + Duration::from_secs(1);
        assert_eq!(targets.failed(Seq(1), now, soon), (1, until));
        assert_eq!((targets.next(now), targets.next_wake()), (Some(Seq(3)), Some(until)));
        targets.start(Seq(3));
        assert_eq!(targets.next(now), None);
        assert_eq!(targets.next(until), Some(Seq(1)), "before those that came after it");
        targets.start(Seq(1));
        assert_eq!(targets.failed(Seq(1), until, soon).0, 2);
        let later = until + Duration::from_secs(1);
        assert_eq!(targets.next(later), Some(Seq(1)));
        targets.start(Seq(1));
        targets.made(Seq(1));
        assert_eq!(targets.next(later), Some(Seq(2)));
        targets.start(Seq(2));
        assert_eq!(targets.failed(Seq(2), later, soon).0, 1, "a success ends the count");
    }

    #[test]
    fn what_is_made_is_not_taken_up_again_before_it_is_recorded() {
        let (mut targets, now) = (Targets::default(), Instant::now());
        targets.offer("a", Seq(1));
        targets.start(Seq(1));
        targets.made(Seq(1));
        targets.offer("a", Seq(1));
        assert_eq!(targets.next(now), None);
        targets.recorded(Seq(1));
        targets.offer("a", Seq(1));
        assert_eq!(targets.next(now), Some(Seq(1)));
        targets.forget(Seq(1));
        assert_eq!((targets.next(now), targets.by_name.len(), targets.known.len()), (None, 0, 0));
    }

    #[test]
    fn a_delivery_may_change_its_target_while_it_waits() {
        let (mut targets, now) = (Targets::default(), Instant::now());
        targets.offer("a", Seq(1));
        assert!(targets.is_for(Seq(1), "a") && !targets.is_for(Seq(1), "b"));
        targets.forget(Seq(1));
        targets.offer("b", Seq(1));
        targets.offer("b", Seq(2));
        assert!(targets.is_for(Seq(1), "b"));
        targets.start(Seq(1));
        assert_eq!(targets.next(now), None, "one at a time for its new target");
    }

    #[test]
    fn targets_take_turns() {
        let (mut targets, now) = (Targets::default(), Instant::now());
        for seq in 0..4 {
            targets.offer(if seq % 2 == 0 { "a" } else { "b" }, Seq(seq));
        }
        let mut order = Vec::new();
        while let Some(seq) = targets.next(now) {
            targets.start(seq);
            targets.made(seq);
            order.push(seq.0);
        }
        assert_eq!(order, [0, 1, 2, 3]);
    }

    #[test]
    fn what_does_not_fit_is_left_with_all_that_follows_it() {
        let (mut targets, now) = (Targets::default(), Instant::now());
        let most = OF_TARGET_MAX as u64;
        (0..=most).for_each(|seq| targets.offer("a", Seq(seq)));
        targets.offer("b", Seq(most + 1));
        assert_eq!(targets.known.len(), OF_TARGET_MAX + 1, "a full target leaves room for others");
        for seq in 0..most - 1 {
            targets.start(Seq(seq));
            targets.made(Seq(seq));
        }
        targets.offer("a", Seq(most + 2));
        assert!(!targets.known.contains_key(&Seq(most + 2)), "there is room, but an older one was left out");
        assert!(!targets.wants_look());
        targets.start(Seq(most - 1));
        targets.made(Seq(most - 1));
        assert!(targets.wants_look());
        targets.offer("a", Seq(most + 2));
        assert!(!targets.known.contains_key(&Seq(most + 2)), "not even when it has nothing else");
        targets.begin_look();
        targets.offer("a", Seq(most));
        assert_eq!(targets.next(now), Some(Seq(most + 1)), "the other target waited longer");
        targets.start(Seq(most + 1));
        assert_eq!(targets.next(now), Some(Seq(most)));
    }
}
