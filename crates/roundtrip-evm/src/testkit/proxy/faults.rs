//! The faults, their chances, and the throw of the dice for one request.

use hyper::StatusCode;

/// What can go wrong on the way to a node and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The node has the request, and the connection is closed without an answer.
    LostAnswer,
    /// Everything takes longer.
    Delay,
    /// 429 with a Retry-After; the node does not see the request.
    TooManyRequests,
    /// 500, 502 or 503; the node does not see the request.
    ErrorBefore,
    /// 500, 502 or 503, and the node has the request.
    ErrorAfter,
    /// The answer ends in the middle.
    Truncated,
    /// The answers of a batch come in another order, which is legal.
    Reordered,
    /// The newest block and an account's count are told as of some blocks ago.
    LaggingHead,
    /// `eth_getLogs` finds nothing. This is a lie: only the block's bloom or its receipts
    /// show it, so it is for listeners that compare them.
    EmptyLogs,
    /// Receipts are not there yet, of a transaction or of a block.
    NullReceipts,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 10] = [
        Fault::LostAnswer,
        Fault::Delay,
        Fault::TooManyRequests,
        Fault::ErrorBefore,
        Fault::ErrorAfter,
        Fault::Truncated,
        Fault::Reordered,
        Fault::LaggingHead,
        Fault::EmptyLogs,
        Fault::NullReceipts,
    ];
}

const CERTAIN: u16 = 1_000;
const ERRORS: [StatusCode; 3] =
    [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE];

/// How likely each fault is, and how bad.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyFaults {
    per_mille: [u16; Fault::ALL.len()],
    /// The longest delay; each is up to this.
    delay_ms_max: u64,
    /// How many blocks ago a lagging node is.
    lag_blocks: u64,
    /// What a 429 asks for.
    retry_after_s: u64,
}

impl Default for ProxyFaults {
    fn default() -> Self {
        ProxyFaults::none()
    }
}

impl ProxyFaults {
    /// Nothing goes wrong.
    pub fn none() -> ProxyFaults {
        ProxyFaults { per_mille: [0; Fault::ALL.len()], delay_ms_max: 50, lag_blocks: 2, retry_after_s: 1 }
    }

    /// The same, and this fault meets so many of a thousand requests.
    pub fn with(mut self, fault: Fault, per_mille: u16) -> ProxyFaults {
        self.per_mille[fault as usize] = per_mille.min(CERTAIN);
        self
    }

    /// The same, and every request meets this fault.
    pub fn always(self, fault: Fault) -> ProxyFaults {
        self.with(fault, CERTAIN)
    }

    /// The same, and no delay is longer than this.
    pub fn delay_up_to(mut self, ms: u64) -> ProxyFaults {
        self.delay_ms_max = ms;
        self
    }

    /// The same, and a lagging node is so many blocks behind.
    pub fn lag_by(mut self, blocks: u64) -> ProxyFaults {
        self.lag_blocks = blocks;
        self
    }

    /// The same, and a 429 asks to wait so long.
    pub fn retry_after(mut self, seconds: u64) -> ProxyFaults {
        self.retry_after_s = seconds;
        self
    }
}

/// What becomes of a request as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Whole,
    TooManyRequests { retry_after_s: u64 },
    ErrorBefore(StatusCode),
    ErrorAfter(StatusCode),
    LostAnswer,
    Truncated,
}

/// What was thrown for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) delay_ms: Option<u64>,
    pub(super) fate: Fate,
    /// By how much the answers of a batch are turned.
    pub(super) turn: Option<usize>,
    pub(super) lag_blocks: Option<u64>,
    pub(super) empty_logs: bool,
    pub(super) null_receipts: bool,
}

impl Plan {
    /// Throws every die whatever the others show: one chance changed leaves the rest of a
    /// seed's throws as they were.
    pub(super) fn draw(faults: &ProxyFaults, dice: &mut fastrand::Rng) -> Plan {
        let met = Fault::ALL.map(|fault| dice.u16(..CERTAIN) < faults.per_mille[fault as usize]);
        let meets = |fault: Fault| met[fault as usize];
        let delay_ms = dice.u64(..=faults.delay_ms_max);
        let error = ERRORS[dice.usize(..ERRORS.len())];
        let turn = dice.usize(..);
        let fates = [
            (Fault::TooManyRequests, Fate::TooManyRequests { retry_after_s: faults.retry_after_s }),
            (Fault::ErrorBefore, Fate::ErrorBefore(error)),
            (Fault::LostAnswer, Fate::LostAnswer),
            (Fault::ErrorAfter, Fate::ErrorAfter(error)),
            (Fault::Truncated, Fate::Truncated),
        ];
        Plan {
            delay_ms: meets(Fault::Delay).then_some(delay_ms),
            fate: fates.into_iter().find(|(fault, _)| meets(*fault)).map_or(Fate::Whole, |(_, fate)| fate),
            turn: meets(Fault::Reordered).then_some(turn),
            lag_blocks: meets(Fault::LaggingHead).then_some(faults.lag_blocks),
            empty_logs: meets(Fault::EmptyLogs),
            null_receipts: meets(Fault::NullReceipts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plans(faults: &ProxyFaults, seed: u64) -> Vec<Plan> {
        let mut dice = fastrand::Rng::with_seed(seed);
        (0..1_000).map(|_| Plan::draw(faults, &mut dice)).collect()
    }

    #[test]
    fn each_fault_has_its_own_place() {
        for (at, fault) in Fault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, at);
        }
    }

    #[test]
    fn no_chance_no_fault() {
        let calm = Plan {
            delay_ms: None,
            fate: Fate::Whole,
            turn: None,
            lag_blocks: None,
            empty_logs: false,
            null_receipts: false,
        };
        assert!(plans(&ProxyFaults::none(), 1).iter().all(|plan| *plan == calm));
    }

    #[test]
    fn a_chance_is_met_about_as_often() {
        let faults = ProxyFaults::none().with(Fault::LostAnswer, 100).with(Fault::Delay, 500);
        let plans = plans(&faults, 1);
        let lost = plans.iter().filter(|plan| plan.fate == Fate::LostAnswer).count();
        let delayed = plans.iter().filter(|plan| plan.delay_ms.is_some()).count();
        assert!((60..140).contains(&lost) && (430..570).contains(&delayed), "{lost} {delayed}");
        assert!(plans.iter().filter_map(|plan| plan.delay_ms).all(|ms| ms <= faults.delay_ms_max));
    }

    #[test]
    fn a_seed_throws_the_same_again() {
        let faults = ProxyFaults::none().with(Fault::ErrorAfter, 300).with(Fault::EmptyLogs, 300);
        assert_eq!(plans(&faults, 7), plans(&faults, 7));
        assert_ne!(plans(&faults, 7), plans(&faults, 8));
    }
}
