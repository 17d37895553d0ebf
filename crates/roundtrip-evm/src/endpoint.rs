//! A node as one of several: how well it did lately, and whether it is on the right chain.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::health::{Failing, Health, order};
use crate::listener::limits::{Meaning, meaning};
use crate::rpc::{CallError, Rpc};

/// A way to a node, and how well it did lately.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) rpc: Rpc,
    health: Mutex<Health>,
    tally: Tally,
    /// Which chain it is on, once it has said so.
    chain_id: OnceCell<u64>,
}

/// How often it did what.
#[derive(Debug, Default)]
struct Tally {
    good: AtomicU64,
    busy: AtomicU64,
    silent: AtomicU64,
    astray: AtomicU64,
}

/// How a node did for one that asks it; others that ask the same node have reports of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Where it is, less what may be a key.
    pub name: String,
    /// Whether little is held against it: it is asked, and sent to.
    pub is_well: bool,
    /// How often it answered.
    pub good: u64,
    /// How often it asked for patience.
    pub busy: u64,
    /// How often it had no answer.
    pub silent: u64,
    /// How often it said what others say is not so, or was on another chain.
    pub astray: u64,
}

/// Why a node is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NodeError {
    /// It has no answer.
    #[error("{node}: {error}")]
    Call {
        /// Which node.
        node: String,
        /// Why.
        error: CallError,
    },
    /// It is on another chain.
    #[error("{node} is on chain {found}, not on {wanted}: correct its URL, or the chain's number")]
    OtherChain {
        /// Which node.
        node: String,
        /// Its chain.
        found: u64,
        /// The chain that is wanted.
        wanted: u64,
    },
}

impl Endpoint {
    pub(crate) fn new(rpc: Rpc) -> Endpoint {
        Endpoint {
            rpc,
            health: Mutex::new(Health::good(Instant::now())),
            tally: Tally::default(),
            chain_id: OnceCell::new(),
        }
    }

    /// How well it did lately.
    pub(crate) fn health(&self) -> Health {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds an answer in its favour, or the lack of one against it.
    pub(crate) fn judge<T>(&self, answer: &Result<T, NodeError>) {
        let failing = match answer {
            Ok(_) => None,
            Err(NodeError::Call { error, .. }) if meaning(error) == Meaning::Busy => Some(Failing::Busy),
            Err(NodeError::Call { .. }) => Some(Failing::Silent),
            Err(NodeError::OtherChain { .. }) => Some(Failing::Lying),
        };
        if let Err(error) = answer {
            tracing::debug!(node = self.rpc.name(), %error, "a node has no answer");
        }
        match failing {
            Some(failing) => self.held_against(failing),
            None => {
                self.tally.good.fetch_add(1, Ordering::Relaxed);
                self.health.lock().unwrap_or_else(PoisonError::into_inner).answered(Instant::now());
            }
        }
    }

    fn held_against(&self, failing: Failing) {
        let count = match failing {
            Failing::Busy => &self.tally.busy,
            Failing::Silent => &self.tally.silent,
            Failing::Lying => &self.tally.astray,
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.health.lock().unwrap_or_else(PoisonError::into_inner).failed(Instant::now(), failing);
    }

    /// How it did so far.
    pub(crate) fn report(&self) -> NodeReport {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Tally { good, busy, silent, astray } = &self.tally;
        NodeReport {
            name: self.rpc.name().to_owned(),
            is_well: self.health().is_good(Instant::now()),
            good: read(good),
            busy: read(busy),
            silent: read(silent),
            astray: read(astray),
        }
    }

    /// Says whose error it is.
    pub(crate) fn failed(&self, error: CallError) -> NodeError {
        NodeError::Call { node: self.rpc.name().to_owned(), error }
    }

    /// It showed what others say is not so.
    pub(crate) fn astray(&self) {
        tracing::error!(
            node = self.rpc.name(),
            "a node shows something else than the others: check whether it is in order"
        );
        self.held_against(Failing::Lying);
    }

    /// Refuses a node of another chain; asked once.
    pub(crate) async fn on_chain(&self, wanted: u64) -> Result<(), NodeError> {
        let found = self.chain_id.get_or_try_init(|| self.rpc.chain_id()).await;
        let found = *found.map_err(|error| self.failed(error))?;
        if found == wanted {
            return Ok(());
        }
        Err(NodeError::OtherChain { node: self.rpc.name().to_owned(), found, wanted })
    }
}

/// The order in which to ask these nodes: those first that did well lately.
pub(crate) fn by_health<'a>(endpoints: impl Iterator<Item = &'a Endpoint>) -> Vec<usize> {
    let healths: Vec<Health> = endpoints.map(Endpoint::health).collect();
    order(&healths, Instant::now())
}
