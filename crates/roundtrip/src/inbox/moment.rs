//! Moments as requests and groups keep them: a wall time, a chain's height or a chain's own
//! time in eight bytes, ordered clock by clock, so that one index holds them all.
//!
//! ```text
//!   0 │ milliseconds since 1970 (63 bits)
//!   1 │ origin (16 bits) │ 0 │ height (46 bits)
//!   1 │ origin (16 bits) │ 1 │ milliseconds since 1970, by its blocks (46 bits)
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::inbox::OriginNo;
use crate::listener::Origin;
use crate::words::{Height, Moment, Place, UnixMs};

const VALUE_BITS: u32 = 46;
const VALUE_MAX: u64 = (1 << VALUE_BITS) - 1;
const BY_TIME: u64 = 1 << VALUE_BITS;
const ORIGIN_SHIFT: u32 = VALUE_BITS + 1;
const BY_ORIGIN: u64 = 1 << 63;

/// The highest height that a moment can name.
pub(crate) const MOMENT_HEIGHT_MAX: Height = Height(VALUE_MAX);

/// A packed moment. Wall times come first, then the heights and the times of each origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct When(u64);

impl When {
    /// A moment that has always been.
    pub(crate) const ALWAYS: When = When(0);
    /// A moment that never comes.
    pub(crate) const NEVER: When = When(BY_ORIGIN - 1);

    /// A wall time; one beyond all calendars never comes.
    pub(crate) fn at(time: UnixMs) -> When {
        When(time.0.min(When::NEVER.0))
    }

    /// A height of an origin, at most [`MOMENT_HEIGHT_MAX`].
    pub(crate) fn height(origin: OriginNo, height: Height) -> When {
        When(BY_ORIGIN | u64::from(origin.0) << ORIGIN_SHIFT | height.0.min(VALUE_MAX))
    }

    /// A time of an origin's blocks; one beyond all calendars never comes.
    pub(crate) fn block_time(origin: OriginNo, time: UnixMs) -> When {
        match time.0 > VALUE_MAX {
            true => When::NEVER,
            false => When(BY_ORIGIN | u64::from(origin.0) << ORIGIN_SHIFT | BY_TIME | time.0),
        }
    }

    /// The first moment of each clock that an origin is.
    pub(crate) fn clocks_of(origin: OriginNo) -> [When; 2] {
        [When::height(origin, Height(0)), When::block_time(origin, UnixMs(0))]
    }

    /// All moments that an origin's head has reached: a range for each of its clocks.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn reached_by(origin: OriginNo, height: Height, time: UnixMs) -> [(When, When); 2] {
        let [heights, times] = When::clocks_of(origin);
        let last = UnixMs(time.0.min(VALUE_MAX));
        [(heights, When::height(origin, height)), (times, When::block_time(origin, last))]
    }

    /// By which clock, and when by it.
    fn reading(self) -> Reading {
        if self.0 < BY_ORIGIN {
            return Reading::Wall(UnixMs(self.0));
        }
        let origin = OriginNo(u16::try_from((self.0 & !BY_ORIGIN) >> ORIGIN_SHIFT).unwrap_or(u16::MAX));
        match self.0 & BY_TIME == 0 {
            true => Reading::Height(origin, Height(self.0 & VALUE_MAX)),
            false => Reading::BlockTime(origin, UnixMs(self.0 & VALUE_MAX)),
        }
    }

    /// Which origin's clock it is by, if by one.
    pub(crate) fn origin(self) -> Option<OriginNo> {
        match self.reading() {
            Reading::Wall(_) => None,
            Reading::Height(origin, _) | Reading::BlockTime(origin, _) => Some(origin),
        }
    }

    /// The wall time, if it is one.
    pub(crate) fn wall(self) -> Option<UnixMs> {
        (self.0 < BY_ORIGIN).then_some(UnixMs(self.0))
    }

    /// The first moment of the clock after this one's; the last origin's time has none.
    fn next_clock(self) -> Option<When> {
        match self.reading() {
            Reading::Wall(_) => Some(When(BY_ORIGIN)),
            Reading::Height(origin, _) => Some(When::block_time(origin, UnixMs(0))),
            Reading::BlockTime(OriginNo(origin), _) => {
                origin.checked_add(1).map(|next| When::height(OriginNo(next), Height(0)))
            }
        }
    }

    /// The eight bytes, as a server keeps them: wall times are positive, what is an origin's
    /// negative, and both in order.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn to_bits(self) -> i64 {
        self.0.cast_signed()
    }

    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn from_bits(bits: i64) -> When {
        When(bits.cast_unsigned())
    }

    /// Where it stands among deadlines: times first, whoever's they are, then heights, then
    /// what never comes.
    pub(crate) fn rank(self) -> UnixMs {
        match self.reading() {
            _ if self == When::NEVER => UnixMs::NEVER,
            Reading::Wall(time) | Reading::BlockTime(_, time) => time,
            Reading::Height(..) => UnixMs(self.0),
        }
    }

    /// As callers know it.
    pub(crate) fn moment(self, origins: &[Origin]) -> Moment {
        let name = |no: OriginNo| origins[usize::from(no.0)].name.clone();
        match self.reading() {
            _ if self == When::NEVER => Moment::At(UnixMs::NEVER),
            Reading::Wall(time) => Moment::At(time),
            Reading::Height(no, height) => Moment::Height(Place { origin: name(no), height }),
            Reading::BlockTime(no, at) => Moment::BlockTime { origin: name(no), at },
        }
    }

    /// As callers know it, unless it is this, which they leave out.
    pub(crate) fn moment_unless(self, usual: When, origins: &[Origin]) -> Option<Moment> {
        (self != usual).then(|| self.moment(origins))
    }
}

impl fmt::Debug for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reading() {
            Reading::Wall(time) => write!(f, "When({} ms)", time.0),
            Reading::Height(origin, height) => write!(f, "When({} of origin {})", height.0, origin.0),
            Reading::BlockTime(origin, time) => write!(f, "When({} ms of origin {})", time.0, origin.0),
        }
    }
}

/// A moment, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Wall(UnixMs),
    Height(OriginNo, Height),
    BlockTime(OriginNo, UnixMs),
}

/// All clocks as they stand: the wall's, and height and time of each origin's head.
#[derive(Clone, Copy)]
pub(crate) struct Clocks<'a> {
    pub(crate) now: UnixMs,
    pub(crate) origins: &'a [Origin],
}

impl Clocks<'_> {
    /// Whether the moment has come.
    pub(crate) fn reached(&self, when: When) -> bool {
        let head = |no: OriginNo| self.origins[usize::from(no.0)].head;
        match when.reading() {
            Reading::Wall(time) => time <= self.now,
            Reading::Height(no, height) => head(no).is_some_and(|head| head.height >= height),
            // Never by the wall's: while the origin stands still, so does its clock.
            Reading::BlockTime(no, time) => head(no).is_some_and(|head| head.at >= time),
        }
    }

    /// The first of an index whose moment has come. `at_or_after` looks the index up: each
    /// clock's moments are in order, so one look at each clock that is in it is enough.
    pub(crate) fn first_reached<T>(&self, at_or_after: impl Fn(When) -> Option<(When, T)>) -> Option<T> {
        let mut from = When::ALWAYS;
        loop {
            let (when, first) = at_or_after(from)?;
            if self.reached(when) {
                return Some(first);
            }
            from = when.next_clock()?;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::collections::BTreeSet;

    use super::*;
    use crate::listener::Head;
    use crate::words::OriginName;

    /// An origin whose blocks are a hundred milliseconds apart.
    fn origin(name: &str, head: Option<u64>) -> Origin {
        let told = |height| Head { height: Height(height), at: UnixMs(height * 100), told_at: UnixMs(0) };
        Origin { name: OriginName::new(name).unwrap(), floor: Height(0), head: head.map(told) }
    }

    #[test]
    fn moments_survive_packing() {
        let origins = [origin("a", None), origin("b", None)];
        let place = |height| Moment::Height(Place { origin: origins[1].name.clone(), height: Height(height) });
        for height in [0, 1, MOMENT_HEIGHT_MAX.0] {
            assert_eq!(When::height(OriginNo(1), Height(height)).moment(&origins), place(height));
        }
        for at in [0, 1, VALUE_MAX].map(UnixMs) {
            let expected = Moment::BlockTime { origin: origins[1].name.clone(), at };
            assert_eq!(When::block_time(OriginNo(1), at).moment(&origins), expected);
        }
        assert_eq!(When::block_time(OriginNo(1), UnixMs(VALUE_MAX + 1)), When::NEVER);
        assert_eq!(When::at(UnixMs(7)).moment(&origins), Moment::At(UnixMs(7)));
        assert_eq!(When::at(UnixMs::NEVER), When::NEVER);
        assert_eq!(When::NEVER.moment(&origins), Moment::At(UnixMs::NEVER));
        let time = |at| When::block_time(OriginNo(1), UnixMs(at));
        let ranked =
            [When::at(UnixMs(7)), time(8), When::at(UnixMs(9)), When::height(OriginNo(1), Height(0)), When::NEVER];
        assert!(ranked.is_sorted_by_key(|when| when.rank()), "{ranked:?}");
        assert_eq!(When::NEVER.moment_unless(When::NEVER, &origins), None);
        let last = OriginNo(u16::MAX);
        assert_eq!(When::height(last, Height(5)).reading(), Reading::Height(last, Height(5)));
        assert_eq!(When::height(last, Height(5)).next_clock(), Some(When::block_time(last, UnixMs(0))));
        assert_eq!(When::block_time(last, UnixMs(5)).next_clock(), None);
    }

    #[test]
    fn each_clock_reaches_its_own_moments() {
        let origins = [origin("a", None), origin("b", Some(10))];
        let clocks = Clocks { now: UnixMs(1000), origins: &origins };
        let a = |height| When::height(OriginNo(0), Height(height));
        let b = |height| When::height(OriginNo(1), Height(height));
        let time_of_a = |time| When::block_time(OriginNo(0), UnixMs(time));
        let time_of_b = |time| When::block_time(OriginNo(1), UnixMs(time));
        let cases = [
            (When::ALWAYS, true),
            (When::at(UnixMs(1000)), true),
            (When::at(UnixMs(1001)), false),
            (When::NEVER, false),
            (a(0), false),
            (b(10), true),
            (b(11), false),
            (time_of_a(0), false),
            (time_of_b(1000), true),
            (time_of_b(1001), false),
        ];
        for (when, reached) in cases {
            assert_eq!(clocks.reached(when), reached, "{when:?}");
        }
        let check = |index: &[When], first| {
            let index: BTreeSet<When> = index.iter().copied().collect();
            let at_or_after = |from| index.range(from..).next().map(|&when| (when, when));
            assert_eq!(clocks.first_reached(at_or_after), first, "{index:?}");
        };
        check(&[], None);
        check(&[When::at(UnixMs(2000)), a(1)], None);
        check(&[When::at(UnixMs(2000)), a(1), b(3), b(4)], Some(b(3)));
        check(&[When::at(UnixMs(999)), b(3)], Some(When::at(UnixMs(999))));
        check(&[When::NEVER, b(11)], None);
        check(&[a(1), time_of_a(1), b(11), time_of_b(1000)], Some(time_of_b(1000)));
        check(&[a(1), time_of_a(1), b(10), time_of_b(1001)], Some(b(10)));
        check(&[time_of_b(1001)], None);
    }
}
