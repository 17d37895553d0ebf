//! The second pass: final blocks are read once more, later and by other means, so that what
//! a node hid at first comes in all the same. What is known is recognised; what is new was
//! missed, and is said loudly.
//!
//! The pass has no cursor of its own: it starts where the follower started, and after a
//! restart goes on from there. What the store no longer lets in is too old to matter.

use std::sync::atomic::Ordering;

use super::{Follower, Halt, Known, broken};
use crate::inbox::Standing;
use crate::persist;
use crate::store::op::{Admission, Admit, Effect, Invalid, NewRequest, Outcome};
use crate::words::{ADMIT_MAX, Height, Place, UnixMs};

/// How far the second pass is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Again {
    /// The next block of it.
    next: Height,
    /// When it was last at the end.
    at: UnixMs,
}

impl Again {
    /// What was read before the start was passed then, or is too old.
    pub(super) fn from(cursor: Option<Height>, first: Height, now: UnixMs) -> Again {
        Again { next: cursor.map_or(first, |cursor| Height(cursor.0.saturating_add(1))), at: now }
    }

    /// The heights that are to be read: what became final since the last pass, at most so
    /// many of them, and not before it is time.
    fn due(&self, settled: Height, now: UnixMs, every_ms: u64, most: u64) -> Option<(Height, Height)> {
        let newest = settled.0.saturating_add(1).saturating_sub(most);
        let from = Height(self.next.0.max(newest));
        (now.since(self.at) >= every_ms && from <= settled).then_some((from, settled))
    }
}

impl Follower {
    /// Reads one range of final blocks once more, if it is time.
    pub(super) async fn look_again(&self, known: &mut Known) -> Result<(), Halt> {
        let Some(settled) = known.cursor.map(|cursor| cursor.at.height) else { return Ok(()) };
        let (now, every, most) = (self.clock.now(), self.options.again_ms, self.options.again_max);
        let Some((from, settled)) = known.again.due(settled, now, every, most) else { return Ok(()) };
        let to = Height(from.0.saturating_add(self.options.range.max(1) - 1)).min(settled);
        let blocks = self.source.blocks_again(from, to).await?;
        let Some(last) = blocks.last().map(|block| block.at.height) else { return Ok(()) };
        let placed = |request: NewRequest, height: Height| {
            let place = Some(Place { origin: self.origin.clone(), height });
            NewRequest { place, standing: Standing::Final, ..request }
        };
        let requests = blocks.into_iter().flat_map(|mut block| {
            super::intake::cut_to_size(&mut block);
            block.requests.into_iter().map(move |request| placed(request, block.at.height))
        });
        let requests: Vec<NewRequest> = requests.collect();
        for piece in requests.chunks(ADMIT_MAX / 4) {
            if !self.admit_again(piece).await? {
                return Ok(());
            }
        }
        known.again.next = Height(last.0.saturating_add(1));
        if last >= settled {
            known.again.at = now;
        }
        Ok(())
    }

    /// Admits what was missed; `false` if there is no room for it yet.
    async fn admit_again(&self, piece: &[NewRequest]) -> Result<bool, Halt> {
        let admit = Admit { cursor: None, requests: piece.to_vec() };
        match persist::apply_one(&*self.store, admit).await? {
            Outcome::Duplicate(_) => Ok(true),
            Outcome::Applied(Effect::Admitted(admissions, _)) => {
                let known = |admission: &Admission| {
                    matches!(admission, Admission::Known { .. } | Admission::Dropped { .. } | Admission::Ended(_))
                };
                for (request, _) in piece.iter().zip(&admissions).filter(|(_, admission)| !known(admission)) {
                    self.stats.missed.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(
                        listener = %self.listener, route = %request.route, request = %request.id,
                        height = super::intake::height_of(request).0,
                        "the source did not show this at first: it is admitted now; check the source"
                    );
                }
                Ok(true)
            }
            Outcome::Full(_) => Ok(false),
            // What cannot be stored as it is was stored as a dead letter, or is now.
            Outcome::Invalid(_) if piece.len() > 1 => {
                let (first, second) = piece.split_at(piece.len() / 2);
                Ok(Box::pin(self.admit_again(first)).await? && Box::pin(self.admit_again(second)).await?)
            }
            Outcome::Invalid(Invalid::TooDeep { .. }) => Ok(true),
            Outcome::Invalid(reason) => match piece.first().filter(|request| request.flaw.is_none()) {
                Some(request) => {
                    let flawed = super::intake::as_flawed(request.clone(), &reason.to_string());
                    Box::pin(self.admit_again(&[flawed])).await
                }
                None => Err(broken(format!("an admission was refused: {reason}"))),
            },
            other => Err(broken(format!("an admission was refused: {other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_takes_what_became_final_since_the_last_when_it_is_time() {
        let check = |next: u64, settled: u64, now: u64, most: u64, expected: Option<(u64, u64)>| {
            let again = Again { next: Height(next), at: UnixMs(1_000) };
            let found = again.due(Height(settled), UnixMs(now), 100, most);
            assert_eq!(found, expected.map(|(from, to)| (Height(from), Height(to))));
        };
        check(6, 9, 1_099, 10, None);
        check(6, 9, 1_100, 10, Some((6, 9)));
        check(0, 9, 1_100, 10, Some((0, 9)));
        check(10, 9, 5_000, 10, None);
        // More than it may read: the newest of it.
        check(6, 100, 5_000, 10, Some((91, 100)));
        check(6, 9, 5_000, 0, None);
        assert_eq!(Again::from(None, Height(4), UnixMs(0)).next, Height(4));
        assert_eq!(Again::from(Some(Height(9)), Height(4), UnixMs(0)).next, Height(10));
    }
}
