//! The memory store: the state machine without a disk. For simulation, tests and
//! demonstrations; what it keeps ends with the process.

use std::sync::{Arc, Mutex, MutexGuard};

use super::disk::RamDisk;
use super::machine::{Machine, next_epoch};
use super::op::{Op, Outcome};
use super::query::{Query, Reply};
use super::witness::Witness;
use super::{Changes, Hints, Options, Store, StoreFuture, Topic, check_batch};
use crate::clock::Clock;

/// A store in memory.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    options: Options,
    hints: Hints,
    core: Mutex<Core>,
}

struct Core {
    machine: Machine,
    disk: RamDisk,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(clock: Arc<dyn Clock>, options: Options) -> MemoryStore {
        let epoch = next_epoch(0, clock.now());
        let disk = RamDisk::new(epoch);
        let core = Mutex::new(Core { machine: Machine::new(options, epoch), disk });
        MemoryStore { shared: Arc::new(Shared { clock, options, hints: Hints::default(), core }) }
    }

    /// What a crash and a new start leave: everything committed, under a new epoch;
    /// leases that no commit has written yet are forgotten.
    pub fn crash(&self) {
        let mut core = self.core();
        let now = self.shared.clock.now();
        core.disk.epoch = next_epoch(core.disk.epoch, now);
        let Ok(machine) = Machine::load(self.shared.options, &core.disk, core.disk.epoch, now);
        core.machine = machine;
    }

    /// All that is here, with what no commit has written yet.
    pub(crate) fn snapshot(&self) -> RamDisk {
        let mut core = self.core();
        let Core { machine, disk } = &mut *core;
        // Leases are written by the flush after the next.
        while machine.is_dirty() {
            machine.flush(disk);
        }
        disk.clone()
    }

    /// Goes on with what this disk holds, as after a start on it.
    pub(crate) fn take_over(&self, disk: RamDisk) {
        self.core().disk = disk;
        self.crash();
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.shared.core.lock().unwrap_or_else(|_| panic!("an earlier call panicked and left the store half changed"))
    }
}

impl Store for MemoryStore {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            check_batch(&batch)?;
            let mut core = self.core();
            let Core { machine, disk } = &mut *core;
            let forgettable = batch.iter().all(Op::may_be_forgotten);
            machine.tick(disk, self.shared.clock.now());
            let outcomes = batch.into_iter().map(|op| machine.apply(disk, op)).collect();
            if !forgettable && machine.is_dirty() {
                machine.flush(disk);
            }
            self.shared.hints.tell(machine.take_news());
            Ok(outcomes)
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        Box::pin(async move {
            let mut core = self.core();
            let Core { machine, disk } = &mut *core;
            machine.set_now(self.shared.clock.now());
            Ok(machine.read(disk, query))
        })
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.shared.hints.follow(topic)
    }

    fn witness(&self, witness: Arc<dyn Witness>) {
        self.shared.hints.show(witness);
    }
}
