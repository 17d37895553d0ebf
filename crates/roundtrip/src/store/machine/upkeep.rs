//! Upkeep: `rescue`, `expire`, `prune`; each in bounded steps, each re-checking what
//! it is about to change.

use super::{Machine, NAMES_MAX, silent_worker};
use crate::inbox::{End, OriginNo};
use crate::store::disk::{Disk, Fixture};
use crate::store::op::{Effect, Invalid, Outcome, Prune};
use crate::words::{Height, OriginName, UPKEEP_MAX};

impl Machine {
    /// Takes leases back that ran out; the crash is counted, and the route's backoff waited.
    pub(super) fn rescue<D: Disk>(&mut self, disk: &mut D, limit: usize) -> Result<Outcome, Outcome> {
        let (limit, mut rescued) = (limit.min(UPKEEP_MAX), 0);
        while rescued < limit {
            let Some((&(until, _), &slot)) = self.leases.first_key_value() else { break };
            if until > self.now {
                break;
            }
            self.setback(slot, silent_worker(), None);
            self.regate(disk, slot);
            rescued += 1;
        }
        Ok(Outcome::Applied(Effect::Count(rescued)))
    }

    /// Ends requests whose deadline has come, unless bytes may be out for them.
    pub(super) fn expire<D: Disk>(&mut self, disk: &mut D, limit: usize) -> Result<Outcome, Outcome> {
        let (limit, mut expired) = (limit.min(UPKEEP_MAX), 0);
        while expired < limit {
            let Some((&(deadline, _), &slot)) = self.deadlines.first_key_value() else { break };
            if deadline > self.now {
                break;
            }
            self.end(disk, slot, End::Expired);
            expired += 1;
        }
        Ok(Outcome::Applied(Effect::Count(expired)))
    }

    /// Forgets dead letters, groups and receipts whose time is over.
    pub(super) fn prune<D: Disk>(&mut self, disk: &mut D, op: Prune) -> Result<Outcome, Outcome> {
        if self.origins.len() + op.floors.len() > NAMES_MAX {
            return Err(Outcome::Invalid(Invalid::TooManyNames(NAMES_MAX)));
        }
        for place in &op.floors {
            self.raise_floor(disk, &place.origin, place.height);
        }
        let (limit, mut pruned) = (op.limit.min(UPKEEP_MAX), 0);
        while pruned < limit {
            let Some((&(forget_at, _), &slot)) = self.dead.first_key_value() else { break };
            if forget_at > self.now {
                break;
            }
            self.end(disk, slot, End::Dead);
            pruned += 1;
        }
        pruned += self.forget_groups(disk, limit - pruned);
        pruned += self.forget_receipts(disk, limit - pruned);
        Ok(Outcome::Applied(Effect::Count(pruned)))
    }

    fn raise_floor<D: Disk>(&mut self, disk: &mut D, name: &OriginName, height: Height) {
        let no: OriginNo = self.origin_no(disk, name);
        let origin = &mut self.origins[usize::from(no.0)];
        if height > origin.floor {
            origin.floor = height;
            disk.put_fixture(&Fixture::Origin { no, name: name.clone(), floor: height });
        }
    }
}
