//! What stores share that lend a part of the state to the state machine for each batch: all
//! of it that does not depend on the server which keeps the rows.
//!
//! ```text
//!   batch ──▶ needs ──▶ wants ──▶ a lender brings rows ──▶ a machine borrows them
//!                                                               │ tick, apply, flush
//!             a lender writes them in one commit ◀── changes ◀──┘
//! ```
//!
//! A store on a server answers [`Want`]s and writes [`Changes`]; what a batch may touch, in
//! which order it is fetched, and what came of it, is worked out here. Whoever lends sees to
//! it that nothing of what it lent changes before the changes are written, and that ticks of
//! all processes follow each other: the numbers of one tick begin where those of the last
//! ended.
//!
//! Failure modes: whatever fails before the changes are written leaves nothing behind but
//! the count of issued tokens, which only grows.

mod changes;
mod fetch;
mod known;
mod needs;
mod read;
mod record;
mod shelf;
mod steps;
mod tick;
pub(in crate::store) mod told;
mod tray;
mod want;

use std::collections::BTreeMap;

pub(in crate::store) use changes::{Changes, NewNumbers, Put, PutReceipt, request_of};
#[cfg(feature = "postgres")]
pub(in crate::store) use fetch::First;
pub(in crate::store) use fetch::Loaded;
#[cfg(feature = "postgres")]
pub(in crate::store) use known::Known;
pub(in crate::store) use read::read;
pub(in crate::store) use record::{Damaged, decode, encode};
pub(in crate::store) use shelf::{Assumed, Shelf};
pub(in crate::store) use steps::{Texts, routes};
#[cfg(feature = "postgres")]
pub(in crate::store) use tick::tick_after;
pub(in crate::store) use tick::{Ticked, shorten_leases, tick};
#[cfg(feature = "redis")]
pub(in crate::store) use tick::{nothing, stop_lanes};
#[cfg(feature = "redis")]
pub(in crate::store) use want::Reached;
pub(in crate::store) use want::{CountedRow, Found, Lender, LiveRow, Want};

use super::disk::{Fixture, HighWater};
use crate::inbox::RouteNo;
use crate::outbox::LaneNo;
use crate::store::policy::{QueueOrder, RoutePolicy};
use crate::words::{LaneName, RouteName, UnixMs};

/// Maps are looked up for every operation; keys that outsiders choose are hashed with a
/// seed of the process's own.
type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;
type HashSet<K> = std::collections::HashSet<K, foldhash::fast::RandomState>;

/// Routes, origins, lanes, cursors and seats, under their keys.
pub(in crate::store) type FixtureRows = BTreeMap<(u8, String), Fixture>;

/// Where all processes' numbers stand when a tick or a read begins, and the time.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store) struct Numbers {
    pub(in crate::store) newest_epoch: u64,
    pub(in crate::store) high: HighWater,
    pub(in crate::store) journal_floor: u64,
    /// Grows with every tick that changes a fixture.
    pub(in crate::store) fixtures: u64,
    pub(in crate::store) now: UnixMs,
}

/// What a store knows before it fetches anything.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Sight<'a> {
    /// The process's own epoch, and how many tokens it has issued in it.
    pub(in crate::store) epoch: u64,
    pub(in crate::store) tokens: u64,
    pub(in crate::store) numbers: Numbers,
    /// All of them, as they are at these numbers.
    pub(in crate::store) fixtures: &'a FixtureRows,
}

impl Sight<'_> {
    fn routes(&self) -> impl Iterator<Item = (RouteNo, &RouteName, &RoutePolicy)> {
        self.fixtures.values().filter_map(|fixture| match fixture {
            Fixture::Route { no, name, policy, .. } => Some((*no, name, policy)),
            _ => None,
        })
    }

    fn lanes(&self) -> impl Iterator<Item = (LaneNo, &LaneName)> {
        self.fixtures.values().filter_map(|fixture| match fixture {
            Fixture::Lane { no, name, .. } => Some((*no, name)),
            _ => None,
        })
    }

    /// How many of one key each route with keys hands out at a time.
    fn keyed(&self) -> BTreeMap<RouteNo, u16> {
        let keyed = self.routes().filter_map(|(no, _, policy)| match policy.order {
            QueueOrder::KeyedFifo { per_key } => Some((no, per_key)),
            _ => None,
        });
        keyed.collect()
    }

    fn order(&self, route: RouteNo) -> Option<QueueOrder> {
        self.routes().find(|(no, _, _)| *no == route).map(|(_, _, policy)| policy.order)
    }
}
