//! What a route decides for itself. A policy is here only if the conformance suite
//! has a test that fails without it.

use serde::{Deserialize, Serialize};

use crate::inbox::Standing;
use crate::words::Destination;

/// A route's policies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RoutePolicy {
    /// When work may start.
    pub work_on: Gate,
    /// When an answer may be published.
    pub publish_on: Gate,
    /// In which order requests are handed out.
    pub order: QueueOrder,
    /// How long an ended id blocks a repeat.
    pub horizon: Horizon,
    /// How many live requests it takes before it pushes back.
    pub capacity: u64,
    /// How long a lease lasts unless the worker says otherwise.
    pub lease_ms: u64,
    /// How many attempts fail before the request is a dead letter.
    pub attempts_max: u16,
    /// How many workers may die or go silent with it before it is a dead letter.
    pub crashes_max: u16,
    /// Where answers go; without one, an answer settles the request.
    pub destination: Option<Destination>,
    /// How long a receipt can be looked up, at the least.
    pub receipt_ms: u64,
    /// How long a dead letter waits for a person.
    pub dead_ms: u64,
}

impl Default for RoutePolicy {
    fn default() -> Self {
        RoutePolicy {
            work_on: Gate::Seen,
            publish_on: Gate::Final,
            order: QueueOrder::Fifo,
            horizon: Horizon::UntilSettled,
            capacity: 1_000_000,
            lease_ms: 60_000,
            attempts_max: 20,
            crashes_max: 5,
            destination: None,
            receipt_ms: 24 * 60 * 60 * 1000,
            dead_ms: 30 * 24 * 60 * 60 * 1000,
        }
    }
}

/// Which standing opens the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Gate {
    /// As soon as it is seen; shut while a reorg has taken it away.
    Seen,
    /// Only when its origin calls it final.
    Final,
}

impl Gate {
    /// Whether a request of this standing may pass.
    pub fn lets(self, standing: Standing) -> bool {
        match self {
            Gate::Seen => standing != Standing::Orphaned,
            Gate::Final => standing == Standing::Final,
        }
    }
}

/// The order in which a route hands out requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QueueOrder {
    /// As they came in.
    Fifo,
    /// Higher priority first, then as they came in.
    Priority,
}

/// How long an ended id blocks a repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Horizon {
    /// Not at all: a repeat is a new generation.
    UntilSettled,
    /// For so long after the end.
    For {
        /// How long.
        ms: u64,
    },
    /// For ever.
    Forever,
}
