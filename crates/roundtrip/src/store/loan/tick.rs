//! One batch on a machine that borrows what it needs.

#[cfg(feature = "redis")]
use std::collections::BTreeSet;

use super::Numbers;
use super::Sight;
use super::changes::Changes;
use super::fetch::{Fetched, First};
use super::record::Damaged;
use super::tray::Tray;
use super::want::{Found, Lender, Want};
#[cfg(feature = "redis")]
use crate::store::Topic;
use crate::store::machine::Machine;
use crate::store::op::{Op, Outcome};
use crate::store::{News, Options};

/// A batch that is done, but for being written.
pub(in crate::store) struct Ticked {
    /// What to answer once the changes are written.
    pub(in crate::store) outcomes: Vec<Outcome>,
    machine: Machine,
    pub(super) fetched: Fetched,
    pub(super) tray: Tray,
    before: Numbers,
}

impl Ticked {
    /// What is to be written, at these numbers.
    pub(in crate::store) fn changes(&self) -> Result<Changes<'_>, Damaged> {
        Changes::of(&self.machine, &self.fetched, &self.tray, &self.before)
    }

    /// How many tokens this process has issued in its epoch. One that was issued is never
    /// issued again, whatever becomes of the commit.
    pub(in crate::store) fn tokens(&self) -> u64 {
        self.machine.tokens()
    }

    /// What those wait for who are to be told, once all is written.
    #[cfg(feature = "redis")]
    pub(in crate::store) fn touched(&self) -> &BTreeSet<Topic> {
        self.machine.touched()
    }

    /// What to tell those who wait, once all is written.
    pub(in crate::store) fn finish(mut self) -> (Vec<Outcome>, News) {
        (self.outcomes, self.machine.take_news())
    }
}

/// Does a batch on what is lent for it.
pub(in crate::store) async fn tick<L: Lender>(
    lender: &mut L,
    options: Options,
    sight: &Sight<'_>,
    batch: &[Op],
) -> Result<Ticked, L::Error> {
    let first = First::of(batch, sight);
    let found = lender.fly(&first.wants).await?;
    tick_after(lender, options, sight, batch, &first, found).await
}

/// Does a batch whose first wants are answered: they may have been asked before anything was
/// known of the numbers, as long as the fixtures turn out to be those that were seen.
pub(in crate::store) async fn tick_after<L: Lender>(
    lender: &mut L,
    options: Options,
    sight: &Sight<'_>,
    batch: &[Op],
    first: &First,
    found: Vec<Found>,
) -> Result<Ticked, L::Error> {
    let before = sight.numbers;
    let mut fetched = Fetched::all(lender, first, found, sight).await?;
    loop {
        let mut tray = fetched.tray.clone();
        let mut machine = Machine::borrow(options, fetched.loan(sight));
        machine.tick(&mut tray, before.now);
        let outcomes = batch.iter().map(|op| machine.apply(&mut tray, op.clone())).collect();
        machine.flush(&mut tray);
        if tray.missing.is_empty() {
            return Ok(Ticked { outcomes, machine, fetched, tray, before });
        }
        fetched.take_bodies(lender, tray.missing).await?;
    }
}

/// The tick of a process that starts: leases of all others go on, and none for longer than
/// it was granted for, whatever became of the clock.
pub(in crate::store) async fn shorten_leases<L: Lender>(
    lender: &mut L,
    options: Options,
    sight: &Sight<'_>,
) -> Result<Ticked, L::Error> {
    let before = sight.numbers;
    let mut fetched = Fetched::by(lender, vec![Want::Leased { now: before.now }], sight).await?;
    let mut machine = Machine::borrow(options, fetched.loan(sight));
    machine.set_now(before.now);
    machine.shorten_leases();
    let tray = std::mem::take(&mut fetched.tray);
    Ok(Ticked { outcomes: Vec::new(), machine, fetched, tray, before })
}

/// A tick that does nothing.
#[cfg(feature = "redis")]
pub(in crate::store) fn nothing(options: Options, sight: &Sight<'_>) -> Ticked {
    let (fetched, tray) = (Fetched::default(), Tray::default());
    let machine = Machine::borrow(options, fetched.loan(sight));
    Ticked { outcomes: Vec::new(), machine, fetched, tray, before: sight.numbers }
}

/// The tick of a process that finds acknowledged writes lost: nothing more is sent until a
/// person or a reconciliation has matched what was sent.
#[cfg(feature = "redis")]
pub(in crate::store) fn stop_lanes(options: Options, sight: &Sight<'_>) -> Ticked {
    let (before, fetched, mut tray) = (sight.numbers, Fetched::default(), Tray::default());
    let mut machine = Machine::borrow(options, fetched.loan(sight));
    machine.set_now(before.now);
    machine.stop_lanes();
    machine.flush(&mut tray);
    Ticked { outcomes: Vec::new(), machine, fetched, tray, before }
}
