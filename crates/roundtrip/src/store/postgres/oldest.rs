//! From when on receipts are looked for whose time is over. Whoever looks from the first one on passes over all that
//! were forgotten before and are not cleared yet: while anybody holds a snapshot, that is all of them.
//!
//! Failure modes: a receipt that is written with an older time than was looked for last, since the server's clock was
//! set back, or since whoever wrote it was far behind it, is found when all are looked at again, minutes later.

use std::time::{Duration, Instant};

use tokio_postgres::Row;

use super::wire::{PgError, time};
use super::write::LATE_MAX_MS;
use crate::store::loan::Want;

/// How often all are looked at, from the first on.
const WHOLE_EVERY: Duration = Duration::from_secs(600);

/// Before these times nothing is left that could be forgotten by time.
#[derive(Debug)]
pub(super) struct Oldest {
    pub(super) id: i64,
    pub(super) occurrence: i64,
    whole_at: Instant,
}

impl Default for Oldest {
    fn default() -> Self {
        Oldest { id: i64::MIN, occurrence: i64::MIN, whole_at: Instant::now() }
    }
}

impl Oldest {
    /// Takes in what a want for what is over brought. Its second column is the time; nothing, of what a height ends.
    pub(super) fn learn(&mut self, want: &Want, rows: &[Row]) -> Result<(), PgError> {
        let times = || rows.iter().map(|row| row.try_get(1)).collect::<Result<Vec<Option<i64>>, _>>();
        match want {
            Want::ExpiredIds { now, .. } => self.id = after(&times()?, time(*now)),
            Want::ExpiredOccurrences { now, .. } => self.occurrence = after(&times()?, time(*now)),
            _ => return Ok(()),
        }
        if self.whole_at.elapsed() > WHOLE_EVERY {
            *self = Oldest::default();
        }
        Ok(())
    }
}

/// From when on to look next, given what was over at a time. A tick may take it to be earlier by so much, and write that
/// what it ends is over then.
fn after(over: &[Option<i64>], now: i64) -> i64 {
    over.iter().flatten().min().copied().unwrap_or(now).saturating_sub(LATE_MAX_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_and_was_not_brought_is_looked_for_next() {
        let check = |over: &[Option<i64>], expected| assert_eq!(after(over, 90_000), expected, "{over:?}");
        check(&[], 90_000 - LATE_MAX_MS);
        check(&[None, None], 90_000 - LATE_MAX_MS);
        // Whether these are forgotten is not known yet, and there may be more of their time.
        check(&[Some(70_000), Some(80_000)], 70_000 - LATE_MAX_MS);
        check(&[None, Some(80_000), Some(70_000)], 70_000 - LATE_MAX_MS);
        check(&[Some(i64::MIN)], i64::MIN);
    }
}
