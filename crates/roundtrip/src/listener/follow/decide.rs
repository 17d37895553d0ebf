//! What a follower does next: pure functions of what the source says, what was read and
//! what the store believes.

use std::collections::BTreeMap;

use super::source::{SourceBlock, Tips};
use super::window::Window;
use crate::inbox::Standing;
use crate::store::op::Amendment;
use crate::store::query::{OccurrenceView, RequestView};
use crate::words::{Height, OccurrenceId, OriginName, Position, RequestId, RouteName};

/// How far ahead of the chain a listener may start; a node lags behind by less.
const AHEAD_MAX: u64 = 1_000;

/// How far a follower reads at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    /// Where the listener starts.
    pub(super) first: Height,
    /// Most heights in one read.
    pub(super) range: u64,
    /// Most heights remembered.
    pub(super) window_max: u64,
}

/// What to do about the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// All there is was read.
    Level,
    /// Nothing can be done now, and why.
    Wait(&'static str),
    /// As much was read as may be remembered: finality must come first.
    Hold,
    /// Finality went past this block unseen: look whether it is still there.
    Check(Position),
    /// Read these heights: all of them final, or none.
    Read { from: Height, to: Height },
    /// The chain is another one from somewhere on: find out from where.
    Fork,
    /// What was final is not there any more.
    Violation(String),
}

/// Decides what to do about what the source says of itself.
pub(super) fn look(window: &Window, tips: &Tips, reach: Reach) -> Step {
    if tips.finalized.height > tips.head.height {
        return Step::Wait("the source calls a block final that it does not have yet");
    }
    let tip = window.tip();
    // Blocks that finality has passed are left out where they show nothing, so a parent
    // would not tell that the last block read went before it became final.
    let unseen = tip.filter(|tip| !window.checked || !window.is_final(tip.height));
    match unseen {
        Some(tip) if tips.finalized.height > tip.height => return Step::Check(tip),
        Some(tip) if !window.checked && tips.finalized.height < tip.height => {
            return Step::Wait("the source has not come as far as the cursor");
        }
        _ => {}
    }
    if let Some(known) = window.at(tips.finalized.height)
        && known != tips.finalized
    {
        return if window.is_final(known.height) { taken_back(known, tips.finalized) } else { Step::Fork };
    }
    match window.at(tips.head.height) {
        Some(known) if known != tips.head && window.is_final(known.height) => {
            return Step::Wait("the source is on a branch that finality has left behind");
        }
        Some(known) if known != tips.head => return Step::Fork,
        _ => {}
    }
    ahead(window, tips, reach)
}

/// The next heights to read, if there are any.
fn ahead(window: &Window, tips: &Tips, reach: Reach) -> Step {
    let from = window.next(reach.first);
    if from > tips.head.height {
        return Step::Level;
    }
    let finalized = window.finalized().max(Some(tips.finalized.height)).unwrap_or(tips.finalized.height);
    let far = Height(from.0.saturating_add(reach.range.max(1) - 1)).min(tips.head.height);
    if from <= finalized {
        return Step::Read { from, to: far.min(finalized) };
    }
    match window.depth_of(far) > reach.window_max {
        true => Step::Hold,
        false => Step::Read { from, to: far },
    }
}

/// What an operator reads when finality broke its word.
pub(super) fn taken_back(known: Position, found: Position) -> Step {
    Step::Violation(violation(known, Some(found.hash)))
}

/// The words for it.
pub(super) fn violation(known: Position, found: Option<[u8; 32]>) -> String {
    let found = found.map_or("nothing".to_owned(), |hash| OccurrenceId(hash).to_string());
    format!(
        "block {} was final as {} and now is {found}: the source broke its promise of finality, or is another chain; \
         check which chain the source serves, and whether what was sent for its blocks still stands, before starting again",
        known.height.0,
        OccurrenceId(known.hash),
    )
}

/// What an operator reads when a reorg is deeper than may be followed.
pub(super) fn too_deep(tip: Option<Position>, ancestor: Option<Height>, max: u64) -> Option<String> {
    let tip = tip?;
    let depth = tip.height.0.saturating_sub(ancestor.map_or(0, |height| height.0));
    (depth > max).then(|| {
        format!(
            "a reorg took back {depth} blocks below {}, and at most {max} are followed: check which chain the source \
             serves; if it is the right one, raise reorg_max and start again",
            tip.height.0
        )
    })
}

/// Whether there is something to start with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// The first block is there, or was.
    There,
    /// It comes after some others.
    Soon,
    /// It is so far ahead that nobody means it; what an operator reads.
    Never(String),
}

/// Looks whether a listener that has read nothing yet can start.
pub(super) fn start(window: &Window, tips: &Tips, first: Height) -> Start {
    let head = tips.head.height;
    // The block after the newest is there as soon as it is.
    if window.tip().is_some() || first.0 <= head.0.saturating_add(1) {
        return Start::There;
    }
    if first.0 <= head.0.saturating_add(AHEAD_MAX) {
        return Start::Soon;
    }
    Start::Never(format!(
        "the first block to read is {}, and the chain's newest is {}: correct from_block, or check which chain the \
         source serves",
        first.0, head.0
    ))
}

/// What fetched blocks are worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// So many of them follow on what was read.
    Take(usize),
    /// They follow on another chain.
    Fork,
    /// They cannot be.
    Violation(String),
}

/// Decides whether the blocks that were fetched for these heights follow on what was read.
pub(super) fn join(window: &Window, from: Height, to: Height, blocks: &[SourceBlock]) -> Joined {
    let settled = window.is_final(from);
    let mut before = window.tip();
    for (count, block) in blocks.iter().enumerate() {
        let at = block.at;
        let expected = before.map_or(from, |before| Height(before.height.0.saturating_add(1)).max(from));
        if at.height < expected || at.height > to || (!settled && at.height != expected) {
            let text = format!("asked for blocks {} to {}, the source answered {}", from.0, to.0, at.height.0);
            return Joined::Violation(text);
        }
        let breaks = before.filter(|before| before.height.0 + 1 == at.height.0 && before.hash != block.parent);
        match breaks {
            None => before = Some(at),
            Some(known) if settled || window.is_final(known.height) => {
                return Joined::Violation(violation(known, Some(block.parent)));
            }
            Some(_) if count == 0 => return Joined::Fork,
            // The chain changed while it was read; what follows is read again.
            Some(_) => return Joined::Take(count),
        }
    }
    match blocks.len() {
        0 => Joined::Violation(format!("asked for blocks {} to {}, the source answered none", from.0, to.0)),
        count => Joined::Take(count),
    }
}

/// The newest of these blocks that was read as it is.
pub(super) fn common(window: &Window, present: &[SourceBlock]) -> Option<Height> {
    let same = |block: &&SourceBlock| window.at(block.at.height) == Some(block.at);
    present.iter().rev().find(same).map(|block| block.at.height)
}

/// What the store believes of an occurrence that is not final there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unsettled {
    /// Of which route.
    pub(super) route: RouteName,
    /// Of which request.
    pub(super) id: RequestId,
    /// Where it was last seen.
    pub(super) height: Height,
    /// Whether the store is known to hold that height.
    pub(super) placed: bool,
    /// Seen or orphaned.
    pub(super) standing: Standing,
    /// Whether a reorg took away the block that showed it.
    pub(super) lost: bool,
    /// Whether it is final and shows what was superseded: what superseded it may yet go.
    pub(super) superseded: bool,
}

/// What is not final in the store, by occurrence.
pub(super) type Unsettleds = BTreeMap<OccurrenceId, Unsettled>;

/// The lead's amendments, in the order in which they must be made; superseding comes
/// between those that are gone and those that are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Amendments {
    /// What a reorg took away.
    pub(super) gone: Vec<OccurrenceId>,
    /// What is there, what of that is final, and what is gone for good.
    pub(super) settled: Vec<Amendment>,
}

/// Compares what the store believes with what was read. `level` says whether all that
/// there is was read.
pub(super) fn amend(unsettled: &Unsettleds, window: &Window, level: bool) -> Amendments {
    let Some(read_to) = window.tip().map(|tip| tip.height) else { return Amendments::default() };
    let (mut gone, mut back, mut settled, mut withdrawn) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (&occurrence, known) in unsettled {
        let Some(height) = window.place_of(&occurrence) else {
            let missed = known.height <= read_to || (known.lost && level);
            if known.standing == Standing::Seen && missed {
                gone.push(occurrence);
            }
            // Beyond what was read it may be back in a final block.
            let passed = window.is_final(known.height) && window.finalized() <= Some(read_to);
            if passed {
                withdrawn.push(Amendment::Withdraw { occurrence });
            }
            continue;
        };
        if known.standing == Standing::Orphaned || !known.placed || known.height != height {
            back.push(Amendment::Include { occurrence, height });
        }
        if window.is_final(height) && !known.superseded {
            settled.push(Amendment::Finalize { occurrence });
        }
    }
    back.append(&mut settled);
    back.append(&mut withdrawn);
    Amendments { gone, settled: back }
}

/// The newest event of an origin that shows a request, among those read and those that are
/// final, if the store has other content for the request. What another origin shows stands:
/// heights of two chains say nothing of which is newer, and neither lead can read the other's.
pub(super) fn newest(window: &Window, live: &RequestView, origin: &OriginName) -> Option<(OccurrenceId, Height)> {
    let foreign = |shown: &OccurrenceView| shown.place.as_ref().is_some_and(|place| place.origin != *origin);
    if live.occurrences.iter().any(|shown| shown.revision == live.revision && foreign(shown)) {
        return None;
    }
    let read =
        window.links().flat_map(|link| link.shown.iter().map(move |(occurrence, id)| (link.at.height, occurrence, id)));
    let read = read.filter(|(_, _, id)| **id == live.id).map(|(height, occurrence, _)| (height, *occurrence));
    let settled = live.occurrences.iter().filter(|shown| shown.standing == Standing::Final && !foreign(shown));
    let settled = settled.filter_map(|shown| Some((shown.place.as_ref()?.height, shown.id)));
    // Of one block the last counts, and what was read comes after what was final before.
    let (height, newest) = settled.chain(read).max_by_key(|(height, _)| *height)?;
    let shows = |shown: &&OccurrenceView| shown.id == newest && shown.revision == live.revision;
    live.occurrences.iter().find(shows).is_none().then_some((newest, height))
}

/// Up to where everything of a route that is on the chain is final in the store too.
pub(super) fn settled_to(unsettled: &Unsettleds, window: &Window, route: &RouteName) -> Option<Position> {
    let of_route = unsettled.iter().filter(|(_, known)| known.route == *route);
    let open = of_route.filter_map(|(occurrence, _)| window.place_of(occurrence)).min();
    let below = open.map_or(window.finalized(), |open| window.finalized().min(Some(Height(open.0.checked_sub(1)?))));
    window.at_or_below(below?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::window::Link;
    use super::*;
    use crate::words::UnixMs;

    const REACH: Reach = Reach { first: Height(1), range: 4, window_max: 20 };

    fn at(height: u64, fork: u8) -> Position {
        Position {
            height: Height(height),
            hash: [fork.wrapping_mul(64).wrapping_add(u8::try_from(height).unwrap()); 32],
        }
    }

    fn block(height: u64, fork: u8) -> SourceBlock {
        let (at, parent) = (at(height, fork), at(height - 1, fork).hash);
        SourceBlock { at, parent, time: UnixMs(0), requests: Vec::new(), answered: Vec::new() }
    }

    fn blocks(heights: impl IntoIterator<Item = u64>, fork: u8) -> Vec<SourceBlock> {
        heights.into_iter().map(|height| block(height, fork)).collect()
    }

    fn tips(head: (u64, u8), finalized: (u64, u8)) -> Tips {
        Tips { head: at(head.0, head.1), finalized: at(finalized.0, finalized.1), time: UnixMs(0) }
    }

    /// A base at 10, blocks up to `tip`, final up to `finalized`, all of branch 0.
    fn window(tip: u64, finalized: u64) -> Window {
        let mut window = Window::from(Some(at(10, 0)));
        window.checked = true;
        (11..=tip).for_each(|height| window.push(Link { at: at(height, 0), shown: Vec::new(), answered: Vec::new() }));
        window.raise(Height(finalized));
        window
    }

    fn read(from: u64, to: u64) -> Step {
        Step::Read { from: Height(from), to: Height(to) }
    }

    #[test]
    fn what_the_source_says_of_itself_decides_the_next_step() {
        let check = |window: &Window, tips, step| assert_eq!(look(window, &tips, REACH), step);
        let new = Window::from(None);
        check(&new, tips((30, 0), (20, 0)), read(1, 4));
        check(&new, tips((3, 0), (2, 0)), read(1, 2));
        check(&new, tips((3, 0), (0, 0)), read(1, 3));

        // The cursor is looked for before anything is read.
        let started = Window::from(Some(at(10, 0)));
        check(&started, tips((30, 0), (20, 0)), Step::Check(at(10, 0)));
        check(&started, tips((12, 0), (10, 0)), read(11, 12));
        check(&started, tips((12, 0), (10, 1)), Step::Violation(violation(at(10, 0), Some(at(10, 1).hash))));
        check(&started, tips((9, 0), (8, 0)), Step::Wait("the source has not come as far as the cursor"));

        // Ranges are final or not, never both.
        check(&window(10, 10), tips((30, 0), (12, 0)), read(11, 12));
        check(&window(12, 12), tips((30, 0), (12, 0)), read(13, 16));
        check(&window(15, 12), tips((16, 0), (12, 0)), read(16, 16));
        check(&window(15, 12), tips((15, 0), (13, 0)), Step::Level);

        // A head or a finality that goes back is a node that lags behind.
        check(&window(15, 12), tips((14, 0), (11, 0)), Step::Level);
        check(&window(15, 12), tips((9, 0), (8, 0)), Step::Level);
        check(
            &window(15, 12),
            tips((11, 1), (10, 0)),
            Step::Wait("the source is on a branch that finality has left behind"),
        );
        let beyond = Step::Wait("the source calls a block final that it does not have yet");
        check(&window(15, 12), tips((15, 0), (16, 0)), beyond);

        // Another block where one was read.
        check(&window(15, 12), tips((15, 1), (12, 0)), Step::Fork);
        check(&window(15, 12), tips((13, 1), (12, 0)), Step::Fork);
        check(&window(15, 12), tips((20, 1), (14, 1)), Step::Fork);
        check(&window(15, 12), tips((20, 1), (12, 1)), Step::Violation(violation(at(12, 0), Some(at(12, 1).hash))));

        // Finality went past the last block read, which may be gone.
        check(&window(15, 12), tips((30, 0), (16, 0)), Step::Check(at(15, 0)));
        check(&window(15, 12), tips((30, 0), (15, 0)), read(16, 19));

        check(&window(29, 10), tips((60, 0), (10, 0)), Step::Hold);
    }

    #[test]
    fn blocks_are_taken_as_far_as_they_follow() {
        let check = |window: &Window, from, to, blocks: Vec<SourceBlock>, joined| {
            assert_eq!(join(window, Height(from), Height(to), &blocks), joined);
        };
        let refused = |from: u64, to: u64, said: &str| {
            Joined::Violation(format!("asked for blocks {from} to {to}, the source answered {said}"))
        };
        check(&window(15, 12), 16, 18, blocks(16..=18, 0), Joined::Take(3));
        check(&window(15, 12), 16, 18, blocks(16..=17, 0), Joined::Take(2));
        check(&window(15, 12), 16, 18, blocks(16..=18, 1), Joined::Fork);
        check(&Window::from(None), 16, 18, blocks(16..=18, 1), Joined::Take(3));
        // It changed while it was read.
        check(&window(15, 12), 16, 18, [blocks(16..=17, 0), blocks(18..=18, 1)].concat(), Joined::Take(2));
        check(&window(15, 12), 16, 18, Vec::new(), refused(16, 18, "none"));
        check(&window(15, 12), 16, 18, blocks([16, 18], 0), refused(16, 18, "18"));
        check(&window(15, 12), 16, 18, blocks(17..=18, 0), refused(16, 18, "17"));
        check(&window(15, 12), 16, 18, blocks(16..=19, 0), refused(16, 18, "19"));
        // What is final may have holes, and must hang together.
        check(&window(15, 18), 16, 18, blocks([18], 0), Joined::Take(1));
        check(&window(15, 18), 16, 18, blocks([18, 17], 0), refused(16, 18, "17"));
        check(
            &window(15, 18),
            16,
            18,
            blocks(16..=18, 1),
            Joined::Violation(violation(at(15, 0), Some(at(15, 1).hash))),
        );
        check(
            &window(15, 15),
            16,
            18,
            blocks(16..=18, 1),
            Joined::Violation(violation(at(15, 0), Some(at(15, 1).hash))),
        );
    }

    #[test]
    fn chains_part_after_the_newest_common_block() {
        let check = |present: Vec<SourceBlock>, height: Option<u64>| {
            assert_eq!(common(&window(15, 12), &present), height.map(Height));
        };
        check([blocks(12..=13, 0), blocks(14..=15, 1)].concat(), Some(13));
        check(blocks(13..=15, 1), None);
        check(blocks(13..=14, 0), Some(14));
    }

    fn route() -> RouteName {
        RouteName::new("r").unwrap()
    }

    fn occurrence(n: u8) -> OccurrenceId {
        OccurrenceId([n; 32])
    }

    fn known(standing: Standing, height: u64) -> Unsettled {
        let (route, id) = (route(), RequestId([0; 32]));
        Unsettled { route, id, height: Height(height), placed: true, standing, lost: false, superseded: false }
    }

    /// The same as `window`, with these occurrences at these heights.
    fn showing(tip: u64, finalized: u64, shown: &[(u8, u64)]) -> Window {
        let mut window = Window::from(Some(at(10, 0)));
        for height in 11..=tip {
            let here = shown.iter().filter(|(_, at)| *at == height);
            let shown = here.map(|(n, _)| (occurrence(*n), RequestId([*n; 32]))).collect();
            window.push(Link { at: at(height, 0), shown, answered: Vec::new() });
        }
        window.raise(Height(finalized));
        window
    }

    #[test]
    fn amendments_come_in_their_order() {
        let include = |n, height| Amendment::Include { occurrence: occurrence(n), height: Height(height) };
        let finalize = |n| Amendment::Finalize { occurrence: occurrence(n) };
        let withdraw = |n| Amendment::Withdraw { occurrence: occurrence(n) };
        let unsettled: Unsettleds = [
            (1, known(Standing::Seen, 12)),     // where it was, and final now
            (2, known(Standing::Seen, 14)),     // where it was, not yet final
            (3, known(Standing::Orphaned, 12)), // back, and final
            (4, known(Standing::Seen, 12)),     // moved
            (5, known(Standing::Seen, 12)),     // gone, and finality has passed
            (6, known(Standing::Seen, 14)),     // gone
            (7, known(Standing::Orphaned, 14)), // still gone
            (8, known(Standing::Seen, 16)),     // not read that far
            (9, Unsettled { placed: false, ..known(Standing::Seen, 14) }), // there, but what does the store say?
        ]
        .map(|(n, known)| (occurrence(n), known))
        .into();
        let window = showing(15, 13, &[(1, 12), (2, 14), (3, 13), (4, 14), (9, 14)]);
        let amendments = amend(&unsettled, &window, true);
        assert_eq!(amendments.gone, [occurrence(5), occurrence(6)]);
        let expected = [include(3, 13), include(4, 14), include(9, 14), finalize(1), finalize(3), withdraw(5)];
        assert_eq!(amendments.settled, expected);
    }

    #[test]
    fn nothing_is_gone_that_may_yet_be_read() {
        let lost =
            |height| Unsettleds::from([(occurrence(1), Unsettled { lost: true, ..known(Standing::Seen, height) })]);
        // The chain became shorter: it is gone, once all of it was read.
        assert_eq!(amend(&lost(17), &window(15, 12), true).gone, [occurrence(1)]);
        assert_eq!(amend(&lost(17), &window(15, 12), false).gone, []);
        // Finality is further than what was read: it may be back in between.
        assert_eq!(amend(&lost(14), &window(15, 20), false).settled, []);
        assert_eq!(amend(&lost(14), &window(20, 20), false).settled.len(), 1);
        assert_eq!(amend(&lost(14), &Window::from(None), true), Amendments::default());
    }

    #[test]
    fn a_route_is_settled_up_to_what_is_open() {
        let check = |height: u64, tip, finalized, settled| {
            let unsettled = Unsettleds::from([(occurrence(1), known(Standing::Seen, height))]);
            let window = showing(tip, finalized, &[(1, height)]);
            assert_eq!(settled_to(&unsettled, &window, &route()), Some(at(settled, 0)));
        };
        check(14, 15, 12, 12);
        check(12, 15, 13, 11);
        check(20, 15, 13, 13);
        let window = showing(15, 13, &[]);
        assert_eq!(settled_to(&Unsettleds::new(), &window, &route()), Some(at(13, 0)));
    }

    #[test]
    fn a_reorg_is_followed_up_to_its_bound() {
        let check = |tip: u64, ancestor: Option<u64>, max, followed| {
            assert_eq!(too_deep(Some(at(tip, 0)), ancestor.map(Height), max).is_none(), followed);
        };
        check(15, Some(12), 3, true);
        check(15, Some(11), 3, false);
        check(15, None, 15, true);
        check(15, None, 14, false);
        assert_eq!(too_deep(None, None, 0), None);
    }

    #[test]
    fn a_start_beyond_the_chain_is_no_start() {
        let new = Window::from(None);
        let started = |window: &Window, first: u64| start(window, &tips((9, 0), (9, 0)), Height(first));
        assert_eq!(
            [9, 10, 11, 1009].map(|first| started(&new, first)),
            [Start::There, Start::There, Start::Soon, Start::Soon]
        );
        assert!(matches!(started(&new, 1010), Start::Never(text) if text.contains("1010")));
        assert_eq!(started(&window(12, 12), 5_000), Start::There, "it has its cursor");
    }
}
