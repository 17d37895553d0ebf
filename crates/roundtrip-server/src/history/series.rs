//! Counts and waits over time, finer for what is recent: pure functions over what was noted.

use std::collections::VecDeque;

/// The resolutions, each with how many buckets it keeps.
const TIERS: [(u64, usize); 3] = [(1_000, 900), (15_000, 960), (300_000, 2_016)];
/// Parts of a doubling in which waits are told apart: a wait is known within an eighth.
const PARTS: u64 = 4;

/// How far back the coarsest resolution reaches.
pub const REACH_MS: u64 = TIERS[2].0 * TIERS[2].1 as u64;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Came in.
    Admitted,
    /// Taken by a worker.
    Leased,
    /// Has a response.
    Answered,
    /// On a slot of a lane.
    Assigned,
    /// In a block.
    Included,
    /// At the route's depth, or delivered; once for each request.
    Settled,
    /// A worker failed; it will be tried again.
    Failed,
    /// A dead letter.
    Died,
    /// Settled because its answer is kept for whoever asks.
    Kept,
}

impl Step {
    /// How many there are.
    pub const COUNT: usize = 9;
}

/// What happened in one length of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bucket {
    steps: [u32; Step::COUNT],
    /// How often a wait of this class was seen, by class.
    waits: Vec<(u8, u32)>,
}

impl Bucket {
    fn wait(&mut self, wait_ms: u64) {
        let class = class_of(wait_ms);
        match self.waits.binary_search_by_key(&class, |(class, _)| *class) {
            Ok(at) => self.waits[at].1 = self.waits[at].1.saturating_add(1),
            Err(at) => self.waits.insert(at, (class, 1)),
        }
    }

    /// The wait that this part of all did not exceed, in thousandths.
    fn quantile(&self, thousandths: u64) -> Option<u64> {
        let all: u64 = self.waits.iter().map(|(_, times)| u64::from(*times)).sum();
        let wanted = (all * thousandths).div_ceil(1000).max(1);
        let mut seen = 0;
        self.waits.iter().find_map(|(class, times)| {
            seen += u64::from(*times);
            (seen >= wanted).then(|| middle_of(*class))
        })
    }
}

/// Waits that are told as one: four classes for each doubling.
fn class_of(wait_ms: u64) -> u8 {
    let wait = wait_ms.saturating_add(1);
    let doublings = u64::from(wait.ilog2());
    let part = ((u128::from(wait) * u128::from(PARTS)) >> doublings) % u128::from(PARTS);
    u8::try_from(doublings * PARTS).unwrap_or(u8::MAX).saturating_add(u8::try_from(part).unwrap_or(0))
}

/// The wait in the middle of a class.
fn middle_of(class: u8) -> u64 {
    let from = |class: u64| ((u128::from(PARTS + class % PARTS)) << (class / PARTS)) / u128::from(PARTS);
    let (low, high) = (from(u64::from(class)), from(u64::from(class) + 1));
    u64::try_from(low + high.saturating_sub(low) / 2 - 1).unwrap_or(u64::MAX)
}

/// One resolution: the buckets that have anything, by their number since 1970.
#[derive(Clone, Debug)]
struct Tier {
    step_ms: u64,
    length: usize,
    buckets: VecDeque<(u64, Bucket)>,
}

impl Tier {
    fn at(&mut self, at_ms: u64) -> Option<&mut Bucket> {
        let number = at_ms / self.step_ms;
        let newest = self.buckets.back().map_or(number, |(newest, _)| number.max(*newest));
        let oldest = newest.saturating_sub(self.length as u64 - 1);
        if number < oldest {
            return None;
        }
        while self.buckets.front().is_some_and(|(number, _)| *number < oldest) {
            self.buckets.pop_front();
        }
        // Nearly always the last one: the journal is in the order of time.
        let place = self.buckets.iter().rposition(|(earlier, _)| *earlier <= number);
        let place = match place {
            Some(place) if self.buckets[place].0 == number => place,
            place => {
                let place = place.map_or(0, |place| place + 1);
                self.buckets.insert(place, (number, Bucket::default()));
                place
            }
        };
        self.buckets.get_mut(place).map(|(_, bucket)| bucket)
    }
}

/// What was counted over time.
#[derive(Clone, Debug)]
pub struct Series {
    tiers: [Tier; 3],
}

impl Default for Series {
    fn default() -> Self {
        Series { tiers: TIERS.map(|(step_ms, length)| Tier { step_ms, length, buckets: VecDeque::new() }) }
    }
}

/// Columns of equal length: one entry for each length of time, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The length of time that one entry is of.
    pub step_ms: u64,
    /// When the first one begins.
    pub from_ms: u64,
    /// How often each step was made, by [`Step`].
    pub steps: [Vec<u32>; Step::COUNT],
    /// Half of those that settled took no longer, from their admission.
    pub half_ms: Vec<Option<u64>>,
    /// All but one in a hundred of them took no longer.
    pub most_ms: Vec<Option<u64>>,
}

impl Series {
    /// A step was made.
    pub fn note(&mut self, at_ms: u64, step: Step) {
        for tier in &mut self.tiers {
            if let Some(bucket) = tier.at(at_ms) {
                let count = &mut bucket.steps[step as usize];
                *count = count.saturating_add(1);
            }
        }
    }

    /// A request settled so long after it came in.
    pub fn settled(&mut self, at_ms: u64, wait_ms: u64) {
        self.note(at_ms, Step::Settled);
        for tier in &mut self.tiers {
            if let Some(bucket) = tier.at(at_ms) {
                bucket.wait(wait_ms);
            }
        }
    }

    /// The last so many milliseconds up to now, at the finest resolution that reaches so far.
    pub fn table(&self, now_ms: u64, last_ms: u64) -> Table {
        let reaches = |tier: &&Tier| tier.step_ms * tier.length as u64 >= last_ms;
        let tier = self.tiers.iter().find(reaches).unwrap_or(&self.tiers[2]);
        let newest = now_ms / tier.step_ms;
        let wanted = usize::try_from(last_ms.div_ceil(tier.step_ms)).unwrap_or(usize::MAX).clamp(1, tier.length);
        let oldest = newest.saturating_sub(wanted as u64 - 1);
        let empty = Bucket::default();
        let mut found = tier.buckets.iter().skip_while(|(number, _)| *number < oldest).peekable();
        let mut table = Table {
            step_ms: tier.step_ms,
            from_ms: oldest * tier.step_ms,
            steps: Default::default(),
            half_ms: Vec::with_capacity(wanted),
            most_ms: Vec::with_capacity(wanted),
        };
        for number in oldest..=newest {
            let bucket = found.next_if(|(at, _)| *at == number).map_or(&empty, |(_, bucket)| bucket);
            table.steps.iter_mut().zip(bucket.steps).for_each(|(column, count)| column.push(count));
            table.half_ms.push(bucket.quantile(500));
            table.most_ms.push(bucket.quantile(990));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_wait_is_known_within_an_eighth() {
        for wait in (0..200).chain([999, 12_345, 86_400_000, u64::from(u32::MAX)]) {
            let told = middle_of(class_of(wait));
            assert!(told.abs_diff(wait) <= wait / 8 + 1, "{wait} is told as {told}");
        }
        assert!((0..500).all(|wait| class_of(wait) <= class_of(wait + 1)));
        assert!(middle_of(class_of(u64::MAX)) > 1 << 62);
    }

    #[test]
    fn quantiles_are_those_of_what_was_noted() {
        let mut bucket = Bucket::default();
        assert_eq!(bucket.quantile(500), None);
        (0..99).for_each(|_| bucket.wait(10));
        bucket.wait(5_000);
        assert_eq!(bucket.quantile(500), Some(middle_of(class_of(10))));
        assert_eq!(bucket.quantile(990), Some(middle_of(class_of(10))));
        assert_eq!(bucket.quantile(1000), Some(middle_of(class_of(5_000))));
    }

    #[test]
    fn a_table_has_a_place_for_every_length_of_time_and_forgets_what_is_too_old() {
        let mut series = Series::default();
        let start = 1_790_000_000_000;
        for second in 0..2_000 {
            series.note(start + second * 1_000, Step::Admitted);
        }
        // One that comes late still counts where it belongs.
        series.note(start + 1_990_500, Step::Admitted);
        series.settled(start + 1_999_999, 40);
        let table = series.table(start + 2_001_000, 10_000);
        assert_eq!((table.step_ms, table.from_ms), (1_000, start + 1_992_000));
        assert_eq!(table.steps[Step::Admitted as usize], [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
        assert_eq!(table.steps[Step::Settled as usize], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(table.half_ms[7], Some(middle_of(class_of(40))));
        let day = series.table(start + 2_001_000, 24 * 3_600_000);
        assert_eq!(day.step_ms, 300_000);
        assert_eq!(day.steps[Step::Admitted as usize].iter().sum::<u32>(), 2_001);
        assert!(series.tiers[0].buckets.len() <= 900);
        assert_eq!(series.table(start, u64::MAX).half_ms.len(), TIERS[2].1);
    }
}
