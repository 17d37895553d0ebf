//! What a route handed out lately, so that it never exceeds its rate.
//!
//! Counted in ticks of a 256th of the period: the memory is bounded, and a hand-out may
//! count one tick longer than it must, never shorter. Failure modes: a start knows
//! nothing of what was handed out before it, and a clock that steps back leaves hand-outs
//! in the future; both count as handed out now.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::store::policy::Rate;
use crate::words::UnixMs;

/// Into how many ticks a period is divided.
const TICKS: u64 = 256;

/// Hand-outs by tick, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pace {
    given: VecDeque<(u64, u32)>,
    total: u32,
}

fn tick_ms(rate: Rate) -> u64 {
    (rate.per_ms / TICKS).max(1)
}

impl Pace {
    /// The whole allowance was used just now.
    pub(super) fn used_up(rate: Option<Rate>, now: UnixMs) -> Pace {
        let mut pace = Pace::default();
        if let Some(rate) = rate {
            pace.give(rate, now, rate.count);
        }
        pace
    }

    /// How many may be handed out now.
    pub(super) fn room(&mut self, rate: Rate, now: UnixMs) -> usize {
        let tick_ms = tick_ms(rate);
        let tick = now.0 / tick_ms;
        if self.given.back().is_some_and(|(last, _)| *last > tick) {
            self.given = VecDeque::from([(tick, self.total)]);
        }
        while let Some(&(oldest, count)) = self.given.front() {
            let last_of_tick = (oldest + 1).saturating_mul(tick_ms) - 1;
            if last_of_tick.saturating_add(rate.per_ms) > now.0 {
                break;
            }
            self.given.pop_front();
            self.total -= count;
        }
        rate.count.saturating_sub(self.total) as usize
    }

    /// So many were handed out now.
    pub(super) fn give(&mut self, rate: Rate, now: UnixMs, count: u32) {
        let tick = now.0 / tick_ms(rate);
        self.total += count;
        match self.given.back_mut() {
            Some((last, given)) if *last == tick => *given += count,
            _ => self.given.push_back((tick, count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_period_holds_more_than_the_rate() {
        for rate in [Rate { count: 5, per_ms: 10 }, Rate { count: 40, per_ms: 3000 }, Rate { count: 1, per_ms: 1000 }] {
            let (mut pace, mut given) = (Pace::default(), Vec::<u64>::new());
            let mut now = 1_000_003;
            for step in 0..4000u32 {
                now += u64::from(step) * 7 % 11;
                let room = u32::try_from(pace.room(rate, UnixMs(now))).unwrap_or(u32::MAX);
                let count = (step * 13 % 50).min(room);
                pace.give(rate, UnixMs(now), count);
                given.extend(std::iter::repeat_n(now, count as usize));
            }
            for (at, start) in given.iter().enumerate() {
                let within = given[at..].iter().take_while(|end| **end < start + rate.per_ms).count();
                assert!(within <= rate.count as usize, "{within} from {start} on, at {rate:?}");
            }
            // What is lost is a tick in 256, and what nobody asked for at once.
            let periods = (now - 1_000_003) / rate.per_ms;
            assert!(given.len() as u64 >= periods * u64::from(rate.count) / 2, "{} at {rate:?}", given.len());
            assert!(pace.given.len() as u64 <= 2 * TICKS + 2);
        }
    }

    #[test]
    fn a_start_and_a_clock_that_steps_back_wait_a_period_and_no_longer() {
        let rate = Rate { count: 3, per_ms: 1000 };
        let mut pace = Pace::used_up(Some(rate), UnixMs(50_000));
        assert_eq!(pace.room(rate, UnixMs(50_999)), 0);
        assert_eq!(pace.room(rate, UnixMs(51_003)), 3);
        pace.give(rate, UnixMs(51_003), 2);
        assert_eq!(pace.room(rate, UnixMs(10_000)), 1);
        assert_eq!(pace.room(rate, UnixMs(11_003)), 3);
    }
}
