//! Exhaustive exploration of the machine's own functions, with stateright, before any
//! disk: every order of calls, crashes between any two commits, answers that are lost,
//! calls that arrive twice, reorgs on both chains, two owners of a lane, a slot taken
//! by an outsider, a disk that was rolled back.
//!
//! ```text
//!   intake:   origin ──▶ listener ──▶ [ machine ] ◀──▶ worker          (intake.rs)
//!   lanes:               [ machine ] ◀──▶ two senders ──▶ chain        (path.rs)
//!   rollback: origin ──▶ [ machine ] ◀──▶ sender ──▶ chain, and an older disk
//! ```
//!
//! Faults are counted and run out; every order of what is left is tried. Liveness is a
//! property of each state: from there, with no more faults, the honest parties bring
//! everything to its end within a fixed number of rounds.

#![allow(clippy::unwrap_used, reason = "tests")]

mod embedded;
mod intake;
mod path;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use crate::words::Payload;
use intake::{Faults, Intake, Protocol, Shown};

/// Threads of one exploration.
const THREADS: usize = 2;

/// The rare paths that an exploration took. Beside the states, not in them: a call
/// that is refused leads back to a state that is already known.
#[derive(Clone, Default)]
pub(super) struct Witness(Arc<Mutex<BTreeSet<&'static str>>>);

impl Witness {
    fn note(&self, path: &'static str) {
        self.0.lock().unwrap().insert(path);
    }

    fn saw(&self, paths: &[&'static str]) {
        let seen = self.0.lock().unwrap();
        let missing: Vec<_> = paths.iter().filter(|path| !seen.contains(*path)).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}; happened: {seen:?}");
    }
}

fn bytes_of(content: u8) -> Payload {
    Payload::raw(vec![content])
}

fn content_of(payload: &Payload) -> u8 {
    payload.bytes.first().copied().unwrap_or(u8::MAX)
}

/// Explores every state, and at least so many of them.
fn holds<M>(name: &str, model: M, states_min: usize)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + PartialEq + std::hash::Hash + std::fmt::Debug + Send + Sync + 'static,
    M::Action: Clone + PartialEq + std::fmt::Debug + Send + 'static,
{
    let start = Instant::now();
    let checker = model.checker().threads(THREADS).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{name}: {states} states, depth {}, {:?}", checker.max_depth(), start.elapsed());
    if std::env::var("SIZES").is_ok() {
        for (n, p) in checker.discoveries() {
            println!("{n}: {:?} -> {:?}", p.clone().into_actions(), p.into_states().last());
        }
        return;
    }
    checker.assert_properties();
    assert!(states >= states_min, "{name}: only {states} states");
}

/// Explores until the property fails; it must.
fn fails<M>(name: &str, model: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + PartialEq + std::hash::Hash + std::fmt::Debug + Send + Sync + 'static,
    M::Action: Clone + PartialEq + std::fmt::Debug + Send + 'static,
{
    let start = Instant::now();
    let stop = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = model.checker().threads(THREADS).finish_when(stop).spawn_bfs().join();
    let found = checker.discovery(property);
    let states = checker.unique_state_count();
    let found = found.unwrap_or_else(|| panic!("{name}: {states} states, and {property:?} never failed"));
    println!("{name}: fails as it must after {:?}, {states} states, {:?}", found.into_actions(), start.elapsed());
}

const NO_FAULTS: Faults = Faults { crashes: 0, waits: 0, reorgs: 0, leases: 2, lost: 0, copies: 0 };

#[test]
fn sizes() {
    let shown = &[Shown { request: 0, content: 7 }, Shown { request: 0, content: 8 }];
    let two = &[Shown { request: 0, content: 7 }, Shown { request: 1, content: 8 }];
    for (name, shown, height_max, c, w, r, le, lo, co) in [("sup reorg", &shown[..], 2, 0, 0, 1, 1, 0, 0)] {
        let faults = Faults { crashes: c, waits: w, reorgs: r, leases: le, lost: lo, copies: co };
        let model = Intake { shown, height_max, faults, protocol: Protocol::Honest, witness: Witness::default() };
        let r = std::panic::catch_unwind(|| holds(name, model, 0));
        if r.is_err() {
            println!("{name} FAILED");
        }
    }
}

#[test]
fn sizes_path() {
    use path::{Faults, HONEST, Path};
    let d = Faults::default();
    for (name, requests, senders, all_ready, faults) in [
        ("bumps", 2, 1, true, Faults { bumps: 2, crashes: 1, reorgs: 1, ..d }),
        ("outsider", 2, 1, true, Faults { outsiders: 1, reorgs: 1, bumps: 1, ..d }),
        ("reject", 2, 1, true, Faults { rejections: 1, bumps: 1, reverts: 1, ..d }),
        ("owners", 2, 2, true, Faults { waits: 1, lost: 1, copies: 1, ..d }),
        ("owners", 1, 2, true, Faults { waits: 1, crashes: 1, copies: 1, bumps: 1, reorgs: 1, ..d }),
        ("rollback bump", 1, 1, false, Faults { restores: 1, bumps: 1, crashes: 1, ..d }),
        ("rollback 2", 2, 1, false, Faults { restores: 1, ..d }),
        ("rollback 2 bump", 2, 1, false, Faults { restores: 1, bumps: 1, ..d }),
    ] {
        let model = Path { requests, senders, all_ready, faults, protocol: HONEST, witness: Witness::default() };
        holds(name, model, 0);
    }
}
