//! What the store remembers of how far each listener has read, and of the origins
//! themselves.

use serde::{Deserialize, Serialize};

use crate::words::{Height, OriginName, Position, UnixMs};

/// An origin's newest block, as a tick last told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Head {
    /// How high.
    pub height: Height,
    /// The latest time of a block so far: the origin's own clock.
    pub at: UnixMs,
    /// When the store was told; long ago means that nobody watches the origin, or that
    /// it stands still.
    pub told_at: UnixMs,
}

impl Head {
    /// How far the origin's clock is behind: since its newest block, or since that was told,
    /// whichever is longer. A chain whose blocks are dated ahead can stand still too.
    pub(crate) fn behind_ms(&self, now: UnixMs) -> u64 {
        now.since(self.at.min(self.told_at))
    }
}

/// What the store remembers of an origin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    pub(crate) name: OriginName,
    /// No re-scan reaches below.
    pub(crate) floor: Height,
    /// Only ever grows.
    pub(crate) head: Option<Head>,
}

/// How far a listener has read, and how often it has moved.
///
/// The version only ever grows. A listener that remembers a higher version than the
/// store holds was acknowledged by commits that the store no longer has: the store
/// was rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cursor {
    /// How often the cursor has moved.
    pub version: u64,
    /// Where it is.
    pub at: Position,
}

/// What a compare-and-set of a cursor comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CursorStep {
    /// It moves here.
    Move(Cursor),
    /// This very move was made before.
    Replay(Cursor),
    /// The cursor is not where the listener believes.
    Elsewhere,
    /// The listener was acknowledged further on than the store remembers.
    RolledBack,
}

impl Cursor {
    /// Decides a move from what the store holds, what the listener expects, and where it wants to go.
    pub(crate) fn step(held: Option<Cursor>, expected: Option<Cursor>, next: Position) -> CursorStep {
        let version = |cursor: Option<Cursor>| cursor.map_or(0, |cursor| cursor.version);
        if held == expected {
            return CursorStep::Move(Cursor { version: version(held) + 1, at: next });
        }
        if version(expected) > version(held) {
            return CursorStep::RolledBack;
        }
        match held {
            Some(held) if held.version == version(expected) + 1 && held.at == next => CursorStep::Replay(held),
            _ => CursorStep::Elsewhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(height: u64) -> Position {
        Position { height: Height(height), hash: [0; 32] }
    }

    fn cursor(version: u64, height: u64) -> Cursor {
        Cursor { version, at: at(height) }
    }

    #[test]
    fn a_clock_is_behind_since_its_block_or_since_it_was_told() {
        let check = |at, told_at, behind| {
            let head = Head { height: Height(1), at: UnixMs(at), told_at: UnixMs(told_at) };
            assert_eq!(head.behind_ms(UnixMs(1_000)), behind);
        };
        check(990, 995, 10);
        // Old blocks that are read now; a chain that is ahead of us; one that stands still.
        check(200, 1_000, 800);
        check(5_000, 1_000, 0);
        check(5_000, 400, 600);
    }

    #[test]
    fn a_cursor_moves_only_from_where_it_is() {
        let check = |held, expected, next, step| assert_eq!(Cursor::step(held, expected, next), step);
        check(None, None, at(5), CursorStep::Move(cursor(1, 5)));
        check(Some(cursor(1, 5)), Some(cursor(1, 5)), at(9), CursorStep::Move(cursor(2, 9)));
        // A reorg moves it back, and the version still grows.
        check(Some(cursor(2, 9)), Some(cursor(2, 9)), at(4), CursorStep::Move(cursor(3, 4)));
        check(Some(cursor(2, 9)), Some(cursor(1, 5)), at(9), CursorStep::Replay(cursor(2, 9)));
        check(Some(cursor(1, 5)), None, at(5), CursorStep::Replay(cursor(1, 5)));
        check(Some(cursor(2, 9)), Some(cursor(1, 5)), at(8), CursorStep::Elsewhere);
        check(Some(cursor(1, 5)), Some(cursor(2, 9)), at(12), CursorStep::RolledBack);
        check(None, Some(cursor(1, 5)), at(9), CursorStep::RolledBack);
    }
}
