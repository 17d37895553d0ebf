//! What goes wrong, by chance from the chain's seed or on demand.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

/// How likely something is, in thousandths.
pub type PerMille = u16;

/// What goes wrong by chance. Chances are drawn from one generator in the order of the
/// calls, so that the same calls on the same seed have the same fate. The default is that
/// nothing goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A request, and its answer, are under way for up to so long each.
    pub delay_ms: u64,
    /// A request fails, and was not carried out.
    pub fail: PerMille,
    /// A request is carried out, and its answer is lost.
    pub lose_answer: PerMille,
    /// A request is answered from the past; what it sends arrives in the present.
    pub lag: PerMille,
    /// How far from the past, in blocks.
    pub lag_blocks: u64,
    /// A request is answered by a node that lost its indexes: it shows no logs, and no
    /// transaction's receipt, and says nothing of it.
    pub blind: PerMille,
    /// A transaction that waits is forgotten when a block is mined; for each of them.
    pub drop: PerMille,
    /// All that waits is forgotten when a block is mined.
    pub evict: PerMille,
    /// The base fee jumps when a block is mined.
    pub spike: PerMille,
    /// To how many times what it was.
    pub spike_times: u64,
    /// For how many blocks.
    pub spike_blocks: u64,
    /// The newest blocks are replaced when a block is mined; never final ones.
    pub reorg: PerMille,
    /// How many of them, at most.
    pub reorg_blocks: u64,
}

/// What becomes of one exchange over the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passage {
    pub(super) fate: Fate,
    pub(super) sight: Sight,
}

/// How well the chain is seen by whoever answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sight {
    /// How many blocks behind the newest the answer is.
    pub(super) lag: u64,
    /// Whether logs and receipts are not found.
    pub(super) blind: bool,
}

/// Whether an exchange comes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Through,
    NotCarriedOut,
    AnswerLost,
}

/// The chain's chance.
pub(super) struct Chance {
    dice: Rng,
    pub(super) faults: Faults,
    /// How many answers of which method are lost next.
    losing: BTreeMap<String, u64>,
}

impl Chance {
    pub(super) fn new(seed: u64) -> Chance {
        Chance { dice: Rng::with_seed(seed), faults: Faults::default(), losing: BTreeMap::new() }
    }

    pub(super) fn happens(&mut self, chance: PerMille) -> bool {
        chance > 0 && self.dice.u16(..1000) < chance
    }

    /// A number below `limit`, or 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.dice.usize(..limit.max(1))
    }

    /// A number from 1 to `most`, or 0 if that is 0.
    pub(super) fn up_to(&mut self, most: u64) -> u64 {
        if most == 0 { 0 } else { self.dice.u64(1..=most) }
    }

    pub(super) fn lose_next(&mut self, method: &str, answers: u64) {
        self.losing.insert(method.to_owned(), answers);
    }

    /// How long the next one is under way.
    pub(super) fn delay(&mut self) -> Duration {
        match self.faults.delay_ms {
            0 => Duration::ZERO,
            most => Duration::from_millis(self.dice.u64(..=most)),
        }
    }

    /// What becomes of an exchange with these methods in it.
    pub(super) fn passage<'a>(&mut self, methods: impl Iterator<Item = &'a str>) -> Passage {
        let faults = self.faults;
        let fails = self.happens(faults.fail);
        let loses = self.happens(faults.lose_answer);
        let lag = if self.happens(faults.lag) { self.up_to(faults.lag_blocks) } else { 0 };
        let blind = self.happens(faults.blind);
        let mut doomed = false;
        for method in methods {
            if let Some(left) = self.losing.get_mut(method).filter(|left| **left > 0 && !doomed) {
                *left -= 1;
                doomed = true;
            }
        }
        let fate = match (fails, loses) {
            // What is to be lost on demand is carried out in any case.
            _ if doomed => Fate::AnswerLost,
            (true, _) => Fate::NotCarriedOut,
            (false, true) => Fate::AnswerLost,
            (false, false) => Fate::Through,
        };
        Passage { fate, sight: Sight { lag, blind } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_lost_on_demand_and_no_more() {
        let mut chance = Chance::new(1);
        chance.lose_next("a", 2);
        let mut fate = |methods: &[&str]| chance.passage(methods.iter().copied()).fate;
        let seen = [fate(&["b"]), fate(&["b", "a", "a"]), fate(&["a"]), fate(&["a"])];
        assert_eq!(seen, [Fate::Through, Fate::AnswerLost, Fate::AnswerLost, Fate::Through]);
    }

    #[test]
    fn the_same_seed_has_the_same_weather() {
        let stormy = |seed| {
            let mut chance = Chance::new(seed);
            chance.faults = Faults { fail: 200, lose_answer: 200, lag: 300, lag_blocks: 5, ..Faults::default() };
            (0..200).map(|_| chance.passage(std::iter::empty())).collect::<Vec<_>>()
        };
        let seen = stormy(7);
        assert_eq!(seen, stormy(7));
        assert_ne!(seen, stormy(8));
        for fate in [Fate::Through, Fate::NotCarriedOut, Fate::AnswerLost] {
            assert!(seen.iter().any(|passage| passage.fate == fate), "{fate:?}");
        }
        assert!(seen.iter().all(|passage| passage.sight.lag <= 5) && seen.iter().any(|passage| passage.sight.lag == 5));
    }
}
