//! Exhaustive exploration of the machine's own functions, with stateright, before any
//! disk: every order of calls, crashes between any two commits, answers that are lost,
//! calls that arrive twice, reorgs on both chains, two owners of a lane, a slot taken
//! by an outsider, a disk that was rolled back.
//!
//! ```text
//!   intake:   origin ──▶ listener ──▶ [ machine ] ◀──▶ worker          (intake.rs)
//!   lanes:               [ machine ] ◀──▶ two senders ──▶ chain        (path.rs)
//!   rollback: origin ──▶ [ machine ] ◀──▶ sender ──▶ chain, and an older disk
//!   turns:               [ machine ] ◀──▶ workers, by key and by vote  (turns.rs)
//!   aside:               [ machine ] ◀──▶ two senders ◀── chain        (aside.rs)
//!   deliver:             [ machine ] ◀──▶ two couriers ──▶ sink        (deliver.rs)
//!   window:   items ──▶ [ machine ] ◀── count and timer                (window.rs)
//! ```
//!
//! Faults are counted and run out; every order of what is left is tried. Liveness is a
//! property of each state: from there, with no more faults, the honest parties bring
//! everything to its end within a fixed number of rounds.

#![allow(clippy::unwrap_used, reason = "tests")]

mod aside;
mod deliver;
mod embedded;
mod frame;
mod intake;
mod path;
mod turns;
mod window;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use crate::words::Payload;
use aside::Aside;
use deliver::Deliver;
use intake::{Intake, Shown};
use path::{Asks, HONEST, Path, Protocol};
use turns::{Coming, Turns};
use window::Window;

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

const CHANGING: &[Shown] = &[Shown { request: 0, content: 7 }, Shown { request: 0, content: 8 }];
const TWO: &[Shown] = &[Shown { request: 0, content: 7 }, Shown { request: 1, content: 8 }];
const ONE: &[Shown] = &[Shown { request: 0, content: 7 }];

fn intake(shown: &'static [Shown], height_max: u64, faults: intake::Faults, witness: &Witness) -> Intake {
    Intake { shown, height_max, faults, protocol: intake::Protocol::Honest, witness: witness.clone() }
}

const CALM: intake::Faults = intake::Faults { crashes: 0, waits: 0, reorgs: 0, leases: 1, lost: 0, copies: 0 };

#[test]
fn content_that_changes_while_the_chain_does() {
    let witness = Witness::default();
    let faults = intake::Faults { reorgs: 1, ..CALM };
    holds("changing, reorg", intake(CHANGING, 2, faults, &witness), 10_000);
    witness.saw(&[
        "other content arrived",
        "superseded while leased",
        "superseded after the answer",
        "an answer to superseded content was refused",
        "a reorg brought a known event back",
        "included again",
        "withdrawn",
        "an id came again after its end",
    ]);
}

#[test]
fn content_that_changes_while_the_store_crashes() {
    let witness = Witness::default();
    let faults = intake::Faults { crashes: 1, leases: 2, ..CALM };
    holds("changing, crash", intake(CHANGING, 2, faults, &witness), 2_000);
    let faults = intake::Faults { copies: 1, leases: 2, ..CALM };
    holds("changing, copies", intake(CHANGING, 2, faults, &witness), 2_000);
    witness.saw(&["superseded while leased", "a stale token was refused", "a lease outlived a crash"]);
}

#[test]
fn a_lead_that_is_behind() {
    let faults = intake::Faults { leases: 2, lost: 1, ..CALM };
    let protocol = intake::Protocol::LaggingLead;
    let model = Intake { protocol, ..intake(CHANGING, 2, faults, &Witness::default()) };
    holds("changing, lost, lagging lead", model, 1_000);
}

#[test]
fn events_that_come_back() {
    let witness = Witness::default();
    let faults = intake::Faults { crashes: 1, reorgs: 1, leases: 2, ..CALM };
    holds("one, reorg, crash", intake(ONE, 2, faults, &witness), 5_000);
    witness.saw(&["included again", "withdrawn", "an id came again after its end", "a crash forgot a lease"]);
}

#[test]
fn silent_workers_and_lost_answers() {
    let witness = Witness::default();
    let faults = intake::Faults { crashes: 2, waits: 1, leases: 2, lost: 1, ..CALM };
    holds("one, crash, wait, lost", intake(ONE, 1, faults, &witness), 5_000);
    witness.saw(&[
        "a silent worker's lease was taken back",
        "a crash forgot a lease",
        "a lease outlived a crash",
        "a stale token was refused",
        "a repeated answer was recognised",
        "a repeated admit was recognised",
        "a replayed claim got its grant again",
    ]);
}

#[test]
fn two_requests_in_a_reorg() {
    let faults = intake::Faults { reorgs: 1, ..CALM };
    holds("two, reorg", intake(TWO, 2, faults, &Witness::default()), 5_000);
}

#[test]
fn a_wrong_intake_is_found_out() {
    use intake::{Faults, Protocol};
    let wrong = |protocol, model| Intake { protocol, ..model };
    let witness = Witness::default();
    let reorg = Faults { reorgs: 1, ..CALM };
    fails(
        "answers that ignore tokens",
        wrong(Protocol::AnswersIgnoreTokens, intake(CHANGING, 2, Faults { leases: 2, ..CALM }, &witness)),
        "an answer fits its request's content",
    );
    fails(
        "a cursor that moves before its requests are stored",
        wrong(Protocol::CursorFirst, intake(ONE, 1, CALM, &witness)),
        "nothing is lost",
    );
    fails(
        "a listener that goes back to what is final by now",
        wrong(Protocol::BackToFinal, intake(TWO, 2, reorg, &witness)),
        "nothing is lost",
    );
    // A copy of a withdrawal that arrives after the event came back does no harm.
    holds(
        "a late copy of a withdrawal",
        wrong(Protocol::LateWithdrawals, intake(ONE, 2, Faults { copies: 1, ..reorg }, &witness)),
        1000,
    );
}

fn lanes(requests: u8, senders: usize, faults: path::Faults, witness: &Witness) -> Path {
    Path { requests, senders, all_ready: true, faults, protocol: HONEST, witness: witness.clone() }
}

fn whole_path(requests: u8, faults: path::Faults, witness: &Witness) -> Path {
    Path { all_ready: false, ..lanes(requests, 1, faults, witness) }
}

#[test]
fn bumps_and_cancels_in_a_reorg() {
    let witness = Witness::default();
    let faults = path::Faults { bumps: 2, crashes: 1, reorgs: 1, ..Default::default() };
    holds("lanes: bumps, crash, reorg", lanes(1, 1, faults, &witness), 1000);
    witness.saw(&["a bump was the one mined", "a cancel used the slot up", "a reorg took a parcel back"]);
}

#[test]
fn wishes_to_cancel() {
    let witness = Witness::default();
    let faults = path::Faults { wishes: 1, crashes: 1, reorgs: 1, ..Default::default() };
    holds("lanes: wish, crash, reorg", lanes(1, 1, faults, &witness), 500);
    let faults = path::Faults { wishes: 1, waits: 1, copies: 1, ..Default::default() };
    holds("lanes: wish, two owners, copies", lanes(1, 2, faults, &witness), 1000);
    witness.saw(&["a wish was fulfilled", "a wish came too late", "what was to be cancelled was mined"]);
    witness.saw(&["a lane that goes well was not reconciled"]);
}

/// Whoever reconciles believes an outsider's transaction before it is final, and a reorg
/// takes it away: the slot is empty, and does not stay so.
#[test]
fn no_gap_lasts() {
    let witness = Witness::default();
    let hasty = Protocol { reconciles_when_quiet: false, ..HONEST };
    let gaps = |requests, faults| Path { protocol: hasty, ..lanes(requests, 1, faults, &witness) };
    let faults = path::Faults { outsiders: 1, reorgs: 1, crashes: 1, ..Default::default() };
    holds("lanes: gap, crash", gaps(1, faults), 1000);
    let faults = path::Faults { outsiders: 1, reorgs: 1, lost: 1, ..Default::default() };
    holds("lanes: gap, lost", gaps(1, faults), 500);
    let faults = path::Faults { outsiders: 1, reorgs: 1, ..Default::default() };
    holds("lanes: gap, two requests", gaps(2, faults), 1000);
    let faults = path::Faults { outsiders: 1, reorgs: 1, copies: 1, wishes: 1, ..Default::default() };
    holds("lanes: gap, copies, wish", gaps(1, faults), 1000);
    witness.saw(&["a gap was filled with nothing", "a gap was filled with an answer"]);
}

#[test]
fn an_outsider_takes_a_nonce() {
    let witness = Witness::default();
    let faults = path::Faults { outsiders: 1, bumps: 1, reorgs: 1, ..Default::default() };
    holds("lanes: outsider, bump, reorg", lanes(1, 1, faults, &witness), 1000);
    witness.saw(&[
        "an outsider displaced a parcel",
        "the chain showed more than the lane knew",
        "a stopped lane took nothing",
        "a lane was reconciled",
    ]);
}

#[test]
fn rejections_and_reverts() {
    let witness = Witness::default();
    let faults = path::Faults { rejections: 1, bumps: 1, ..Default::default() };
    holds("lanes: rejection, bump", lanes(2, 1, faults, &witness), 1000);
    let faults = path::Faults { reverts: 1, crashes: 1, ..Default::default() };
    holds("lanes: revert, crash", lanes(2, 1, faults, &witness), 1000);
    witness.saw(&["a cancel used the slot up", "a reverted parcel was returned"]);
}

#[test]
fn two_owners_of_a_lane() {
    let witness = Witness::default();
    let faults = path::Faults { waits: 1, lost: 1, copies: 1, ..Default::default() };
    holds("lanes: two owners, lost, copies", lanes(1, 2, faults, &witness), 1000);
    let faults = path::Faults { waits: 1, copies: 1, bumps: 1, ..Default::default() };
    holds("lanes: two owners, copies, bump", lanes(1, 2, faults, &witness), 1000);
    witness.saw(&["an owner with a stale token was refused", "a delivery that is not ready was refused"]);
}

#[test]
fn a_disk_that_was_rolled_back() {
    let witness = Witness::default();
    let faults = path::Faults { restores: 1, bumps: 1, ..Default::default() };
    holds("whole path: rollback, bump", whole_path(1, faults, &witness), 1000);
    let faults = path::Faults { restores: 1, ..Default::default() };
    holds("lanes: rollback with two requests", lanes(2, 1, faults, &witness), 1000);
    witness.saw(&[
        "the cursor showed a rollback",
        "the nonce showed a rollback",
        "the chain showed more than the lane knew",
        "a stopped lane took nothing",
        "a forgotten attempt was adopted",
        "a forgotten delivery was matched",
        "a lane was reconciled",
    ]);
}

#[test]
fn a_wrong_sender_is_found_out() {
    let witness = Witness::default();
    let calm = path::Faults::default();
    let wrong = |protocol, model: Path| Path { protocol, ..model };
    let rollback = path::Faults { restores: 1, bumps: 1, ..calm };
    let effect = "at most one effect";
    let owners = path::Faults { waits: 1, ..calm };
    fails(
        "bytes that go out before they are stored",
        wrong(Protocol { stores_first: false, ..HONEST }, lanes(1, 2, owners, &witness)),
        "nothing is out that is not stored",
    );
    fails(
        "a rejected parcel whose nonce nobody fills",
        wrong(Protocol { fills_gaps: false, ..HONEST }, lanes(1, 1, path::Faults { rejections: 1, ..calm }, &witness)),
        "everything ends once faults stop",
    );
    let forgetful = path::Faults { restores: 1, ..calm };
    fails(
        "a sender that starts without asking",
        wrong(Protocol { asks: Asks::Nothing, ..HONEST }, lanes(2, 1, forgetful, &witness)),
        effect,
    );
    fails(
        "a sender that asks for mined transactions alone",
        wrong(Protocol { asks: Asks::Latest, ..HONEST }, lanes(2, 1, forgetful, &witness)),
        effect,
    );
    fails(
        "a sender that takes what it forgot for an outsider's",
        wrong(Protocol { matches_content: false, ..HONEST }, lanes(1, 1, rollback, &witness)),
        effect,
    );
    let hasty = Protocol { reconciles_when_quiet: false, ..HONEST };
    fails("a lane that goes on before all is matched", wrong(hasty, lanes(1, 1, rollback, &witness)), effect);
    fails(
        "a lane that goes on from a nonce that is not final, and whose gaps nobody fills",
        wrong(
            Protocol { fills_gaps: false, ..hasty },
            lanes(1, 1, path::Faults { outsiders: 1, reorgs: 1, ..calm }, &witness),
        ),
        "everything ends once faults stop",
    );
}

#[test]
fn keys_keep_their_order() {
    let witness = Witness::default();
    let turns =
        |keys, per_key, faults| Turns { coming: Coming::Keys { keys, per_key }, faults, witness: witness.clone() };
    let faults = turns::Faults { crashes: 1, setbacks: 1, ..turns::CALM };
    holds("turns: two keys, crash, setback", turns(&[0, 0, 1], 1, faults), 2000);
    let faults = turns::Faults { waits: 1, ..faults };
    holds("turns: one key, crash, setback, wait", turns(&[0, 0], 1, faults), 2000);
    let faults = turns::Faults { setbacks: 1, mends: 1, crashes: 1, leases: 4, ..turns::CALM };
    holds("turns: one key, dead letters, crash", turns(&[0, 0, 0], 1, faults), 2000);
    holds("turns: two at a time, dead letters", turns(&[0, 0, 0, 0], 2, turns::Faults { crashes: 0, ..faults }), 2000);
    witness.saw(&[
        "nobody's turn",
        "a dead letter came back while a later one was with a worker",
        "a lease outlived a crash",
        "a stale token was refused",
    ]);
}

#[test]
fn votes_are_counted_while_the_chain_changes() {
    let witness = Witness::default();
    let turns =
        |voters, needed, faults| Turns { coming: Coming::Votes { voters, needed }, faults, witness: witness.clone() };
    let faults = turns::Faults { crashes: 1, reorgs: 3, leases: 2, waits: 1, ..turns::CALM };
    holds("turns: three votes, two needed, reorgs, crash", turns(3, 2, faults), 2000);
    witness.saw(&["nobody's turn", "a stale token was refused"]);
}

fn aside(refuses: bool, faults: aside::Faults, witness: &Witness) -> Aside {
    Aside { refuses, faults, protocol: aside::Protocol::Honest, witness: witness.clone() }
}

#[test]
fn what_somebody_else_did_gets_no_slot() {
    let witness = Witness::default();
    let faults = aside::Faults { others: 1, reorgs: 1, crashes: 1, lost: 1, ..Default::default() };
    holds("aside: somebody else, reorg, crash, lost", aside(false, faults, &witness), 500);
    let faults = aside::Faults { others: 1, changes: 1, copies: 1, ..Default::default() };
    holds("aside: somebody else, change, copies", aside(false, faults, &witness), 500);
    let faults = aside::Faults { others: 1, waits: 1, copies: 1, ..Default::default() };
    holds("aside: somebody else, two owners, copies", aside(false, faults, &witness), 500);
    witness.saw(&[
        "what was done already ended without a slot",
        "what was said of another answer did nothing",
        "what is on a slot was left there",
        "a sender without the seat was refused",
        "a repeat was recognised",
    ]);
}

#[test]
fn what_is_refused_for_good_is_answered_by_a_failure_response() {
    let witness = Witness::default();
    let faults = aside::Faults { crashes: 1, lost: 1, copies: 1, ..Default::default() };
    holds("aside: refused, crash, lost, copies", aside(true, faults, &witness), 500);
    let faults = aside::Faults { waits: 1, copies: 1, ..Default::default() };
    holds("aside: refused, two owners, copies", aside(true, faults, &witness), 500);
    let faults = aside::Faults { changes: 1, copies: 1, ..Default::default() };
    holds("aside: refused, change, copies", aside(true, faults, &witness), 500);
    witness.saw(&[
        "a failure response took an answer's place before it had a slot",
        "a failure response took the place of what was mined",
        "what was said of another answer did nothing",
        "a sender without the seat was refused",
    ]);
}

#[test]
fn a_wrong_word_about_an_answer_is_found_out() {
    use aside::{Faults, Protocol};
    let wrong = |protocol, refuses, faults| Aside { protocol, ..aside(refuses, faults, &Witness::default()) };
    let ends = "it ends with what the outside shows";
    let reorg = Faults { others: 1, reorgs: 1, ..Default::default() };
    fails("a sender that believes the newest block", wrong(Protocol::BelievesTheHead, false, reorg), ends);
    let change = Faults { others: 1, changes: 1, ..Default::default() };
    fails("a sender that ends another answer", wrong(Protocol::NamesTheNewest, false, change), ends);
    let lost = Faults { lost: 1, ..Default::default() };
    let nobody = "nobody has to look into it";
    fails("a sender that gives up what took the place", wrong(Protocol::NamesTheNewest, true, lost), nobody);
}

fn deliver(faults: deliver::Faults, witness: &Witness) -> Deliver {
    Deliver { faults, protocol: deliver::Protocol::Honest, witness: witness.clone() }
}

#[test]
fn deliveries_without_a_lane() {
    let witness = Witness::default();
    let faults = deliver::Faults { crashes: 1, waits: 1, lost: 1, ..Default::default() };
    holds("deliver: crash, wait, lost", deliver(faults, &witness), 500);
    let faults = deliver::Faults { changes: 1, waits: 1, copies: 1, ..Default::default() };
    holds("deliver: change, wait, copies", deliver(faults, &witness), 500);
    let faults = deliver::Faults { failures: 2, lost: 1, crashes: 1, ..Default::default() };
    holds("deliver: failures, lost, crash", deliver(faults, &witness), 500);
    let faults = deliver::Faults { refusals: 1, lost: 1, copies: 1, crashes: 1, ..Default::default() };
    holds("deliver: refused and worked on anew, lost, copies, crash", deliver(faults, &witness), 500);
    let faults = deliver::Faults { failures: 1, changes: 1, copies: 1, ..Default::default() };
    holds("deliver: failure, change, copies", deliver(faults, &witness), 500);
    witness.saw(&[
        "a courier without the seat was refused",
        "a superseded answer ended nothing",
        "a repeated record was recognised",
        "the sink saw it twice and it ended once",
        "a repeated failure counted once",
        "the failure of a superseded answer was not taken",
        "what was said of an answer that was thrown away ended nothing",
    ]);
}

#[test]
fn a_wrong_courier_is_found_out() {
    use deliver::{Faults, Protocol};
    let seen = "it ends with what the sink saw";
    let wrong = |protocol, faults| Deliver { protocol, ..deliver(faults, &Witness::default()) };
    fails("a courier that records first", wrong(Protocol::RecordsFirst, Faults::default()), seen);
    let changes = Faults { changes: 1, ..Default::default() };
    fails("a courier that records what it did not deliver", wrong(Protocol::RecordsNewest, changes), seen);
}

fn window(items: u8, blocked: bool, faults: window::Faults, witness: &Witness) -> Window {
    Window { items, blocked, fires: true, faults, witness: witness.clone() }
}

#[test]
fn a_group_sealed_by_count_and_by_time() {
    let witness = Witness::default();
    let faults = window::Faults { crashes: 1, lost: 1, copies: 1 };
    holds("window: crash, lost, copies", window(3, false, faults, &witness), 500);
    let faults = window::Faults { crashes: 1, copies: 1, lost: 0 };
    holds("window: a full route, crash, copies", window(3, true, faults, &witness), 500);
    witness.saw(&[
        "sealed by count",
        "sealed by time",
        "sealed when there was room",
        "a full route made the seal wait",
        "an item came late",
        "a repeated item was recognised",
    ]);
}

#[test]
fn a_group_that_nobody_fires_is_found_out() {
    let model = Window { fires: false, ..window(1, false, Default::default(), &Witness::default()) };
    fails("a window without upkeep", model, "everything ends once faults stop");
}

/// The same promises with more of everything: five minutes, for `make soak`.
#[cfg(soak)]
#[test]
fn the_long_way() {
    let witness = Witness::default();
    let faults = intake::Faults { crashes: 1, waits: 1, leases: 2, lost: 1, ..CALM };
    holds("changing, crash, wait, lost", intake(CHANGING, 2, faults, &witness), 50_000);
    let faults = intake::Faults { crashes: 1, copies: 1, leases: 2, ..CALM };
    holds("changing, crash, copies", intake(CHANGING, 2, faults, &witness), 10_000);
    let faults = intake::Faults { crashes: 1, reorgs: 1, leases: 2, copies: 1, ..CALM };
    holds("one, reorg, crash, copies", intake(ONE, 2, faults, &witness), 20_000);
    let faults = path::Faults { bumps: 2, crashes: 1, reorgs: 1, ..Default::default() };
    holds("lanes: two requests, bumps, crash, reorg", lanes(2, 1, faults, &witness), 100_000);
    let faults = path::Faults { waits: 1, crashes: 1, copies: 1, bumps: 1, ..Default::default() };
    holds("lanes: two owners, crash, copies, bump", lanes(1, 2, faults, &witness), 20_000);
    let faults = path::Faults { restores: 1, bumps: 1, crashes: 1, ..Default::default() };
    holds("whole path: rollback, bump, crash", whole_path(1, faults, &witness), 20_000);
    let faults = path::Faults { restores: 1, ..Default::default() };
    holds("whole path: rollback with two requests", whole_path(2, faults, &witness), 20_000);
}
