//! Moments as requests and groups keep them: a wall time or a chain's height in eight
//! bytes, ordered clock by clock, so that one index holds them all.
//!
//! ```text
//!   0 │ milliseconds since 1970 (63 bits)
//!   1 │ origin (16 bits) │ height (47 bits)
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::inbox::OriginNo;
use crate::listener::Origin;
use crate::words::{Height, Moment, Place, UnixMs};

const HEIGHT_BITS: u32 = 47;
const BY_HEIGHT: u64 = 1 << 63;

/// The highest height that a moment can name.
pub(crate) const MOMENT_HEIGHT_MAX: Height = Height((1 << HEIGHT_BITS) - 1);

/// A packed moment. Wall times come first, then the heights of each origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct When(u64);

impl When {
    /// A moment that has always been.
    pub(crate) const ALWAYS: When = When(0);
    /// A moment that never comes.
    pub(crate) const NEVER: When = When(BY_HEIGHT - 1);

    /// A wall time; one beyond all calendars never comes.
    pub(crate) fn at(time: UnixMs) -> When {
        When(time.0.min(When::NEVER.0))
    }

    /// A height of an origin, at most [`MOMENT_HEIGHT_MAX`].
    pub(crate) fn height(origin: OriginNo, height: Height) -> When {
        When(BY_HEIGHT | u64::from(origin.0) << HEIGHT_BITS | height.0.min(MOMENT_HEIGHT_MAX.0))
    }

    /// Which origin's height it is, and how far along; `None` for a wall time.
    fn place(self) -> Option<(OriginNo, Height)> {
        let origin = u16::try_from((self.0 & !BY_HEIGHT) >> HEIGHT_BITS).unwrap_or(u16::MAX);
        (self.0 >= BY_HEIGHT).then_some((OriginNo(origin), Height(self.0 & MOMENT_HEIGHT_MAX.0)))
    }

    /// Which origin's height it is, if it is one.
    pub(crate) fn origin(self) -> Option<OriginNo> {
        self.place().map(|(origin, _)| origin)
    }

    /// The wall time, if it is one.
    pub(crate) fn wall(self) -> Option<UnixMs> {
        (self.0 < BY_HEIGHT).then_some(UnixMs(self.0))
    }

    /// The first moment of the clock after this one's; the last origin's has none.
    fn next_clock(self) -> Option<When> {
        match self.place() {
            None => Some(When(BY_HEIGHT)),
            Some((OriginNo(origin), _)) => origin.checked_add(1).map(|next| When::height(OriginNo(next), Height(0))),
        }
    }

    /// The eight bytes, as a server keeps them: times are positive, heights negative, and
    /// both in order.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn to_bits(self) -> i64 {
        self.0.cast_signed()
    }

    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn from_bits(bits: i64) -> When {
        When(bits.cast_unsigned())
    }

    /// Where it stands among deadlines: times first, then heights, then what never comes.
    pub(crate) fn rank(self) -> UnixMs {
        if self == When::NEVER { UnixMs::NEVER } else { UnixMs(self.0) }
    }

    /// As callers know it.
    pub(crate) fn moment(self, origins: &[Origin]) -> Moment {
        match self.place() {
            Some((no, height)) => {
                let origin = origins[usize::from(no.0)].name.clone();
                Moment::Height(Place { origin, height })
            }
            None if self == When::NEVER => Moment::At(UnixMs::NEVER),
            None => Moment::At(UnixMs(self.0)),
        }
    }

    /// As callers know it, unless it is this, which they leave out.
    pub(crate) fn moment_unless(self, usual: When, origins: &[Origin]) -> Option<Moment> {
        (self != usual).then(|| self.moment(origins))
    }
}

impl fmt::Debug for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place() {
            Some((origin, height)) => write!(f, "When({} of origin {})", height.0, origin.0),
            None => write!(f, "When({} ms)", self.0),
        }
    }
}

/// All clocks as they stand: the wall's, and each origin's head.
#[derive(Clone, Copy)]
pub(crate) struct Clocks<'a> {
    pub(crate) now: UnixMs,
    pub(crate) origins: &'a [Origin],
}

impl Clocks<'_> {
    /// Whether the moment has come.
    pub(crate) fn reached(&self, when: When) -> bool {
        match when.place() {
            None => when.0 <= self.now.0,
            Some((no, height)) => self.origins[usize::from(no.0)].head.is_some_and(|head| head.height >= height),
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

    fn origin(name: &str, head: Option<u64>) -> Origin {
        let told = |height| Head { height: Height(height), at: UnixMs(0), told_at: UnixMs(0) };
        Origin { name: OriginName::new(name).unwrap(), floor: Height(0), head: head.map(told) }
    }

    #[test]
    fn moments_survive_packing() {
        let origins = [origin("a", None), origin("b", None)];
        let place = |height| Moment::Height(Place { origin: origins[1].name.clone(), height: Height(height) });
        for height in [0, 1, MOMENT_HEIGHT_MAX.0] {
            assert_eq!(When::height(OriginNo(1), Height(height)).moment(&origins), place(height));
        }
        assert_eq!(When::at(UnixMs(7)).moment(&origins), Moment::At(UnixMs(7)));
        assert_eq!(When::at(UnixMs::NEVER), When::NEVER);
        assert_eq!(When::NEVER.moment(&origins), Moment::At(UnixMs::NEVER));
        let ranked = [When::at(UnixMs(7)), When::at(UnixMs(8)), When::height(OriginNo(1), Height(0)), When::NEVER];
        assert!(ranked.is_sorted_by_key(|when| when.rank()), "{ranked:?}");
        assert_eq!(When::NEVER.moment_unless(When::NEVER, &origins), None);
        assert_eq!(When::height(OriginNo(u16::MAX), Height(5)).place(), Some((OriginNo(u16::MAX), Height(5))));
        assert_eq!(When::height(OriginNo(u16::MAX), Height(5)).next_clock(), None);
    }

    #[test]
    fn each_clock_reaches_its_own_moments() {
        let origins = [origin("a", None), origin("b", Some(10))];
        let clocks = Clocks { now: UnixMs(1000), origins: &origins };
        let a = |height| When::height(OriginNo(0), Height(height));
        let b = |height| When::height(OriginNo(1), Height(height));
        let cases = [
            (When::ALWAYS, true),
            (When::at(UnixMs(1000)), true),
            (When::at(UnixMs(1001)), false),
            (When::NEVER, false),
            (a(0), false),
            (b(10), true),
            (b(11), false),
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
    }
}
