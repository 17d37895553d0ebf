//! What transactions pay: pure functions.

/// A node replaces a transaction only if both fields grow by a tenth.
const BUMP_PARTS: u128 = 10;
/// The base fee may double within six full blocks before a transaction must wait.
const BASE_FEE_HEADROOM: u128 = 2;

/// What a transaction pays for each unit of gas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fees {
    /// At most so much in all; the gas price of a legacy transaction.
    pub(super) most: u128,
    /// To whoever builds the block; the gas price, too, of a legacy transaction.
    pub(super) tip: u128,
}

impl Fees {
    /// Enough for the coming blocks, as far as the newest one tells, within the cap.
    pub(super) fn now(base_fee: Option<u128>, tip: u128, cap: u128) -> Fees {
        let most = base_fee.map_or(tip, |base| base.saturating_mul(BASE_FEE_HEADROOM).saturating_add(tip)).min(cap);
        Fees { most, tip: tip.min(most) }
    }

    /// The least that replaces these, or what is right by now if that is more; `None` beyond the cap.
    ///
    /// Anchored at what was last signed, since that is what may sit in a mempool.
    pub(super) fn dearer(self, now: Fees, cap: u128) -> Option<Fees> {
        let bumped = |fee: u128| fee.saturating_add(fee.div_ceil(BUMP_PARTS).max(1));
        let (least, tip) = (bumped(self.most), bumped(self.tip).max(now.tip));
        let most = least.max(now.most).max(tip);
        (most <= cap).then_some(Fees { most, tip }).or_else(|| Fees::at_most(cap, least, bumped(self.tip)))
    }

    /// Less than what is right by now, but enough to replace, where the cap allows no more.
    fn at_most(cap: u128, least: u128, tip: u128) -> Option<Fees> {
        (least.max(tip) <= cap).then_some(Fees { most: cap, tip })
    }

    /// Whether more is right by now, in either field, than was paid.
    pub(super) fn moved_above(self, paid: Fees) -> bool {
        self.most > paid.most || self.tip > paid.tip
    }

    /// What is paid in a block of this base fee; all of it on a chain without one.
    pub(super) fn paid(self, base_fee: Option<u128>) -> u128 {
        base_fee.map_or(self.most, |base| base.saturating_add(self.tip).min(self.most))
    }

    /// The higher of both, field by field.
    pub(super) fn max(self, other: Fees) -> Fees {
        Fees { most: self.most.max(other.most), tip: self.tip.max(other.tip) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fees(most: u128, tip: u128) -> Fees {
        Fees { most, tip }
    }

    #[test]
    fn a_first_attempt_has_room_for_a_base_fee_that_doubles() {
        let cases = [
            ("room", Some(100), 5, 1000, fees(205, 5)),
            ("the cap holds", Some(100), 5, 150, fees(150, 5)),
            ("a tip beyond the cap", Some(0), 500, 150, fees(150, 150)),
            ("legacy", None, 70, 1000, fees(70, 70)),
            ("no overflow", Some(u128::MAX), 5, u128::MAX, fees(u128::MAX, 5)),
        ];
        for (name, base, tip, cap, expected) in cases {
            assert_eq!(Fees::now(base, tip, cap), expected, "{name}");
        }
    }

    #[test]
    fn a_bump_raises_both_fields_by_a_tenth_rounded_up() {
        let cases = [
            ("a tenth of both", fees(100, 10), fees(50, 1), 1000, Some(fees(110, 11))),
            ("rounded up", fees(101, 11), fees(0, 0), 1000, Some(fees(112, 13))),
            ("never the same", fees(0, 0), fees(0, 0), 1000, Some(fees(1, 1))),
            ("the market has moved", fees(100, 10), fees(400, 20), 1000, Some(fees(400, 20))),
            ("only the tip has moved", fees(100, 10), fees(90, 200), 1000, Some(fees(200, 200))),
            ("no more than the cap", fees(100, 10), fees(400, 20), 300, Some(fees(300, 11))),
            ("exactly the cap", fees(100, 10), fees(0, 0), 110, Some(fees(110, 11))),
            ("beyond the cap", fees(100, 10), fees(0, 0), 109, None),
        ];
        for (name, last, now, cap, expected) in cases {
            assert_eq!(last.dearer(now, cap), expected, "{name}");
        }
    }
}
