//! The keys of a store and the scripts that use them.
//!
//! All keys have one hash tag, the store's name: a store is in one slot, and on one node of
//! a cluster. Every call declares all keys, in one order, which `lua/keys.lua` repeats; a commit by script those that
//! it uses.

use std::sync::atomic::AtomicBool;

/// A key, by its place among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Key {
    Numbers = 1,
    Turn,
    Lineage,
    Fixture,
    Changed,
    Fresh,
    Live,
    Body,
    Response,
    Id,
    Behind,
    Shown,
    State,
    Queue,
    Line,
    Due,
    Deadline,
    Lease,
    Claim,
    Dead,
    Ended,
    Seen,
    EndedAt,
    SeenAt,
    SeenBelow,
    Parcel,
    Slot,
    Group,
    GroupNamed,
    GroupOf,
    GroupTimer,
    GroupForget,
    Item,
    ItemBody,
    ItemOf,
    Journal,
    Counted,
    Pace,
    Copying,
}

impl Key {
    /// As a person names it.
    pub(super) fn name(self) -> &'static str {
        KEYS[self as usize - 1].0
    }
}

/// Names and kinds of all keys, in their order.
const KEYS: [(&str, &str); 39] = [
    ("numbers", "hash"),
    ("turn", "hash"),
    ("lineage", "hash"),
    ("fixture", "hash"),
    ("changed", "zset"),
    ("fresh", "stream"),
    ("live", "hash"),
    ("body", "hash"),
    ("response", "hash"),
    ("id", "hash"),
    ("behind", "zset"),
    ("shown", "hash"),
    ("state", "zset"),
    ("queue", "zset"),
    ("line", "zset"),
    ("due", "zset"),
    ("deadline", "zset"),
    ("lease", "zset"),
    ("claim", "zset"),
    ("dead", "zset"),
    ("ended", "hash"),
    ("seen", "hash"),
    ("ended_at", "zset"),
    ("seen_at", "zset"),
    ("seen_below", "zset"),
    ("parcel", "hash"),
    ("slot", "zset"),
    ("group", "hash"),
    ("group_key", "hash"),
    ("group_of", "zset"),
    ("group_timer", "zset"),
    ("group_forget", "zset"),
    ("item", "hash"),
    ("item_body", "hash"),
    ("item_of", "zset"),
    ("journal", "stream"),
    ("counted", "hash"),
    ("pace", "hash"),
    ("copying", "string"),
];

/// All keys of the store with this name, and of what kind each is.
pub(super) fn keys_of(store: &str) -> Vec<(String, &'static str)> {
    KEYS.iter().map(|(name, kind)| (format!("roundtrip:{{{store}}}:{name}"), *kind)).collect()
}

/// The keys that every call of `commit.lua` declares first, in their order.
pub(super) const COMMIT_KEYS: [Key; 7] =
    [Key::Numbers, Key::Turn, Key::Lineage, Key::Id, Key::Ended, Key::Shown, Key::Seen];

/// Keys whose entries are short, and come and go with every request. A server keeps few short entries as one string,
/// which it reads from its start for each of them; a long one keeps it from that, whatever its settings. No script
/// takes it for an entry.
pub(super) const ANCHORED: [(Key, &str); 9] = [
    (Key::Id, "HSET"),
    (Key::Shown, "HSET"),
    (Key::State, "ZADD"),
    (Key::Queue, "ZADD"),
    (Key::Due, "ZADD"),
    (Key::Deadline, "ZADD"),
    (Key::Lease, "ZADD"),
    (Key::Claim, "ZADD"),
    (Key::Slot, "ZADD"),
];
/// After all others; `lua/whole.lua` repeats it.
pub(super) const ANCHOR: [u8; 1024] = [0xff; 1024];

const ALL_KEYS: &str = include_str!("lua/keys.lua");
const BASICS: &str = include_str!("lua/basics.lua");
const ROWS: &str = include_str!("lua/rows.lua");

/// Forgets what is left of a group's items.
pub(super) const CLEAR: &str = include_str!("lua/clear.lua");

/// Writes what a commit shows under keys of the user's naming.
pub(super) const SHOW: &str = include_str!("lua/show.lua");

/// Where a store's hints are published.
pub(super) fn channel_of(store: &str) -> String {
    format!("roundtrip:{{{store}}}:hints")
}

/// A script and the name by which a server remembers it.
pub(super) struct Script {
    pub(super) source: String,
    pub(super) hash: String,
    /// Whether the server seems to remember it: for calls that are tried once.
    pub(super) is_known: AtomicBool,
}

impl Script {
    fn new(parts: &[&str]) -> Script {
        let source = parts.concat();
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Script { source, hash, is_known: AtomicBool::new(false) }
    }

    /// Brings what a tick or a read wants.
    pub(super) fn fetch() -> Script {
        Script::new(&[ALL_KEYS, BASICS, ROWS, include_str!("lua/turn.lua"), include_str!("lua/fetch.lua")])
    }

    /// Commits what a process did with what it has at hand.
    pub(super) fn commit() -> Script {
        let keys = include_str!("lua/commit_keys.lua");
        Script::new(&[keys, BASICS, include_str!("lua/turn.lua"), include_str!("lua/commit.lua")])
    }

    /// Tells of what kind each key is.
    pub(super) fn kinds() -> Script {
        Script::new(&[include_str!("lua/kinds.lua")])
    }

    /// Reads a store as a whole.
    pub(super) fn whole() -> Script {
        Script::new(&[ALL_KEYS, BASICS, ROWS, include_str!("lua/whole.lua")])
    }

    /// Gives back a turn.
    pub(super) fn give() -> Script {
        Script::new(&[ALL_KEYS, BASICS, include_str!("lua/give.lua")])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn declared(script: &str) -> Vec<String> {
        let lines = script.lines().filter(|line| line.starts_with("local ") && line.contains("KEYS["));
        let names = lines.flat_map(|line| line[6..].split_once('=').unwrap().0.split(',')).map(str::trim);
        names.map(str::to_lowercase).collect()
    }

    /// The scripts call the keys what the program calls them.
    #[test]
    fn both_sides_have_the_keys_in_one_order() {
        assert_eq!(declared(ALL_KEYS), KEYS.map(|(name, _)| name));
        assert_eq!(declared(include_str!("lua/commit_keys.lua")), COMMIT_KEYS.map(Key::name));
        assert_eq!((Key::Numbers as usize, Key::Journal as usize, Key::Copying as usize), (1, 36, KEYS.len()));
    }

    #[test]
    fn a_store_has_one_hash_tag() {
        assert!(keys_of("orders").iter().all(|(key, _)| key.starts_with("roundtrip:{orders}:")));
    }
}
