//! Time and upkeep: `tick`, `rescue`, `expire`, `prune`; each in bounded steps, each
//! re-checking what it is about to change.

use super::{Machine, NAMES_MAX, done, silent_worker};
use crate::inbox::{End, OriginNo};
use crate::listener::Head;
use crate::store::disk::Disk;
use crate::store::op::{ChainTick, Effect, Invalid, Outcome, Prune};
use crate::words::{Height, OriginName, Seq, UPKEEP_MAX};

impl Machine {
    /// Moves an origin's head on, and queues what waited for that height or time: a bounded
    /// part of it now, the rest in the batches that follow.
    pub(super) fn tick_origin<D: Disk>(&mut self, disk: &mut D, op: ChainTick) -> Result<Outcome, Outcome> {
        if self.known_origin(&op.origin).is_none() && self.origins.len() >= NAMES_MAX {
            return Err(Outcome::Invalid(Invalid::TooManyNames(NAMES_MAX)));
        }
        let no = self.origin_no(disk, &op.origin);
        let origin = &mut self.origins[usize::from(no.0)];
        if origin.head.is_some_and(|head| head.height >= op.height) {
            return Ok(Outcome::Duplicate(Effect::Done));
        }
        // After a reorg a higher block may be of an earlier time; a clock does not go back.
        let at = origin.head.map_or(op.at, |head| head.at.max(op.at));
        origin.head = Some(Head { height: op.height, at, told_at: self.now });
        self.put_origin(disk, no);
        if !self.ticked.contains(&no) {
            self.ticked.push(no);
        }
        self.promote(disk);
        done()
    }

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
            let at_or_after = |from| {
                let (&(deadline, _), &slot) = self.deadlines.range((from, Seq(0))..).next()?;
                Some((deadline, slot))
            };
            let Some(slot) = self.clocks().first_reached(at_or_after) else { break };
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
            self.put_origin(disk, no);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::PROMOTE_MAX;
    use super::*;
    use crate::inbox::{Standing, StateKind};
    use crate::store::Options;
    use crate::store::disk::RamDisk;
    use crate::store::op::{Admit, Define, NewRequest, Op};
    use crate::store::policy::RoutePolicy;
    use crate::words::{Moment, OccurrenceId, Payload, Place, RequestId, RouteName, UnixMs};

    fn origin() -> OriginName {
        OriginName::new("chain").unwrap()
    }

    fn route() -> RouteName {
        RouteName::new("route").unwrap()
    }

    fn height(height: u64) -> Moment {
        Place { origin: origin(), height: Height(height) }.into()
    }

    fn request(n: usize, due: Moment) -> NewRequest {
        let n = n as u64;
        NewRequest {
            route: route(),
            id: RequestId::of(&[&n.to_le_bytes()]),
            occurrence: OccurrenceId::of(&[&n.to_le_bytes()]),
            place: None,
            standing: Standing::Final,
            payload: Payload::default(),
            due: Some(due),
            deadline: None,
            priority: 0,
            key: None,
            trace: None,
            flaw: None,
        }
    }

    /// A machine at time 0 with so many requests that wait for this moment.
    fn waiting(count: usize, due: &Moment) -> (Machine, RamDisk) {
        let (mut machine, mut disk) = (Machine::new(Options::default(), 1), RamDisk::new(1));
        machine.apply(&mut disk, Op::Define(Define { route: route(), policy: RoutePolicy::default() }));
        for from in (0..count).step_by(1000) {
            let requests = (from..count.min(from + 1000)).map(|n| request(n, due.clone())).collect();
            machine.apply(&mut disk, Op::Admit(Admit { cursor: None, requests }));
        }
        (machine, disk)
    }

    fn queued(machine: &Machine) -> usize {
        machine.routes[0].lists[StateKind::Queued as usize].len()
    }

    fn tick(height: u64) -> Op {
        Op::Tick(ChainTick { origin: origin(), height: Height(height), at: UnixMs(1) })
    }

    #[test]
    fn a_batch_queues_a_bounded_part_of_what_comes_due() {
        let count = PROMOTE_MAX * 2 + 1;
        let (mut machine, mut disk) = waiting(count, &UnixMs(1000).into());
        assert_eq!(machine.next_due(), Some(UnixMs(1000)));
        machine.tick(&mut disk, UnixMs(999));
        assert_eq!((queued(&machine), machine.next_due()), (0, Some(UnixMs(1000))));
        for (done, next) in [(PROMOTE_MAX, true), (PROMOTE_MAX * 2, true), (count, false)] {
            machine.tick(&mut disk, UnixMs(2000));
            assert_eq!((queued(&machine), machine.next_due().is_some()), (done, next));
        }
    }

    #[test]
    fn a_tick_queues_a_bounded_part_of_what_waited_for_it() {
        let count = PROMOTE_MAX * 2 + 1;
        let (mut machine, mut disk) = waiting(count, &height(10));
        machine.tick(&mut disk, UnixMs(1000));
        assert_eq!(machine.next_due(), None, "only a tick can tell");
        machine.apply(&mut disk, tick(9));
        assert_eq!((queued(&machine), machine.next_due()), (0, None));
        machine.apply(&mut disk, tick(10));
        machine.apply(&mut disk, tick(11));
        assert_eq!((queued(&machine), machine.next_due()), (PROMOTE_MAX, Some(UnixMs(1000))), "one share for a batch");
        for (done, next) in [(PROMOTE_MAX * 2, Some(UnixMs(1001))), (count, None)] {
            machine.tick(&mut disk, UnixMs(1001));
            assert_eq!((queued(&machine), machine.next_due()), (done, next));
        }
    }

    #[test]
    fn what_never_comes_wakes_nobody() {
        let (machine, _) = waiting(1, &UnixMs::NEVER.into());
        assert_eq!(machine.next_due(), None);
    }
}
