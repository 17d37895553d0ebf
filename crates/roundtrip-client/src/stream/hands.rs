//! How many jobs a worker has in its hands, and how many more it asks for: pure numbers.

/// The part of all hands for which it is worth a message to ask.
const STEP: usize = 4;
/// Most hands: no program hands out more at a time.
const HANDS_MAX: usize = 1 << 16;

/// What a worker has, and has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hands {
    /// How many are worked on at a time.
    in_flight: usize,
    /// How many are worked on.
    running: usize,
    /// How many have ended, and what came of them is not recorded yet.
    unrecorded: usize,
    /// How many were asked for and have not come.
    asked: usize,
    /// Whether no more are wanted.
    stopping: bool,
}

impl Hands {
    /// Hands for so many at a time.
    pub(super) fn of(in_flight: usize) -> Hands {
        Hands { in_flight: in_flight.clamp(1, HANDS_MAX), running: 0, unrecorded: 0, asked: 0, stopping: false }
    }

    /// How many more could come: as many as can be worked on, while what waits to be recorded stays
    /// bounded too.
    fn room(&self) -> usize {
        let to_run = self.in_flight.saturating_sub(self.running + self.asked);
        let to_hold = (2 * self.in_flight).saturating_sub(self.running + self.unrecorded + self.asked);
        if self.stopping { 0 } else { to_run.min(to_hold) }
    }

    /// How many more to ask for now; none, if only a large step is worth it and this is none.
    pub(super) fn ask(&mut self, only_much: bool) -> u32 {
        let room = self.room();
        if only_much && room < self.in_flight.div_ceil(STEP) {
            return 0;
        }
        self.asked += room;
        u32::try_from(room).unwrap_or(u32::MAX)
    }

    /// How many to ask whoever was not asked before.
    pub(super) fn ask_again(&mut self) -> u32 {
        self.asked = 0;
        self.ask(false)
    }

    /// So many have come; whether they are wanted.
    pub(super) fn take(&mut self, count: usize) -> bool {
        self.asked = self.asked.saturating_sub(count);
        if self.stopping {
            return false;
        }
        self.running += count;
        true
    }

    /// The work on one has ended.
    pub(super) fn ended(&mut self) {
        self.running = self.running.saturating_sub(1);
        self.unrecorded += 1;
    }

    /// One is over, which was still worked on or not.
    pub(super) fn over(&mut self, running: bool) {
        let count = if running { &mut self.running } else { &mut self.unrecorded };
        *count = count.saturating_sub(1);
    }

    /// No more are wanted.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_asked_for_as_can_be_worked_on() {
        let mut hands = Hands::of(8);
        assert_eq!((hands.ask(false), hands.ask(false)), (8, 0));
        assert!(hands.take(3));
        assert_eq!(hands.ask(false), 0, "five are still to come");
        hands.ended();
        assert_eq!(hands.ask(true), 0, "one is not worth a message of its own");
        hands.ended();
        assert_eq!(hands.ask(true), 2);
        assert!(hands.take(7));
        for _ in 0..8 {
            hands.ended();
        }
        assert_eq!(hands, Hands { in_flight: 8, running: 0, unrecorded: 10, asked: 0, stopping: false });
        assert_eq!(hands.ask(false), 6, "what waits to be recorded is bounded");
        assert!(hands.take(6));
        hands.over(true);
        hands.over(false);
        assert_eq!(hands.ask(false), 2);
    }

    #[test]
    fn nobody_has_more_hands_than_a_program_has_work_for() {
        assert_eq!((Hands::of(0).ask(false), Hands::of(usize::MAX).ask(false)), (1, 1 << 16));
    }

    #[test]
    fn one_at_a_time_is_asked_for_one_at_a_time() {
        let mut hands = Hands::of(1);
        for _ in 0..2 {
            assert_eq!(hands.ask(true), 1);
            assert!(hands.take(1));
            assert_eq!(hands.ask(true), 0);
            hands.ended();
        }
        assert_eq!(hands.ask(true), 0, "two answers wait");
        hands.over(false);
        assert_eq!(hands.ask(true), 1);
    }

    #[test]
    fn a_new_stream_is_asked_for_all_and_nobody_is_when_it_is_time_to_stop() {
        let mut hands = Hands::of(4);
        assert_eq!(hands.ask(false), 4);
        assert!(hands.take(1));
        assert_eq!(hands.ask_again(), 3);
        hands.stop();
        assert_eq!((hands.ask(false), hands.ask_again()), (0, 0));
        assert!(!hands.take(1));
    }
}
