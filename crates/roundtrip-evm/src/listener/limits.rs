//! What nodes mean when they refuse a range of logs, and how wide the next one is.
//!
//! Providers cap ranges by blocks, by results, by bytes and by time, each in words of its
//! own; some name what they would take. One table knows the words. What no row knows is
//! tried narrower too: a refusal that was not about the range comes again for one block, and
//! is an error then.

use crate::rpc::CallError;

/// What a node that showed no logs means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// So many blocks are too many for it.
    TooWide {
        /// How many it would take, if it says.
        named: Option<u64>,
        /// Whether that holds for every range, or just for what is in this one.
        lasting: bool,
    },
    /// It is asked too often.
    Busy,
    /// It no longer has what is so old.
    Pruned,
    /// It has not come so far.
    Behind,
    /// It did not answer.
    Silent,
}

/// What stands behind words that name a number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// A cap for every range: a number follows.
    Cap,
    /// A range that would work this time: two heights follow.
    Range,
    /// Nothing.
    Nothing,
}

/// Words by which nodes say that they are asked too often.
const BUSY: [&str; 12] = [
    "rate limit",
    "ratelimit",
    "rate-limit",
    "request rate limited",
    "too many requests",
    "http error 429",
    "compute units per second",
    "credits limited",
    "request limit reached",
    "daily request count exceeded",
    "exceeded the quota",
    "no backend is currently healthy",
];

/// Words by which nodes say that they have forgotten.
const PRUNED: [&str; 4] = ["pruned", "archive", "missing trie node", "before the first available block"];
/// The code that EIP-4444 gives to history that is no longer there.
const PRUNED_CODE: i64 = 4444;

/// Words by which nodes say that they have not come so far.
const BEHIND: [&str; 7] = [
    "beyond current head",
    "blockoutofrange",
    "block out of range",
    "unknown block",
    "header not found",
    "block not found",
    "greater than latest",
];

/// Words by which nodes say that a range is too wide, the telling ones first.
const TOO_WIDE: [(&str, Names); 34] = [
    // Alchemy; Infura; reth.
    ("this block range should work: [", Names::Range),
    ("try with this block range [", Names::Range),
    ("retry with the range ", Names::Range),
    // Binance, publicnode; reth; QuickNode, 1RPC; Cloudflare; Alchemy; Ankr; Tenderly; Infura; Base; dRPC.
    ("exceed maximum block range: ", Names::Cap),
    ("max block range ", Names::Cap),
    ("max block range: ", Names::Cap),
    ("limited to a ", Names::Cap),
    ("limited to 0 - ", Names::Cap),
    ("max range: ", Names::Cap),
    ("up to a ", Names::Cap),
    ("blocks distance: ", Names::Cap),
    ("range limit ", Names::Cap),
    ("exceeds limit of ", Names::Cap),
    ("block range greater than ", Names::Cap),
    ("ranges over ", Names::Cap),
    ("block range too large, max: ", Names::Cap),
    // The same by results, bytes and time; Besu, Nethermind, erigon, Chainstack and others.
    ("query returned more than", Names::Nothing),
    ("log response size exceeded", Names::Nothing),
    ("range is too wide", Names::Nothing),
    ("range is too large", Names::Nothing),
    ("range too large", Names::Nothing),
    ("range limit exceeded", Names::Nothing),
    ("exceeds maximum rpc range", Names::Nothing),
    ("exceeds the range allowed", Names::Nothing),
    ("too many logs", Names::Nothing),
    ("exceeds max results", Names::Nothing),
    ("response is too big", Names::Nothing),
    ("response size", Names::Nothing),
    ("limit exceeded", Names::Nothing),
    ("timeout exceeded", Names::Nothing),
    ("timed out", Names::Nothing),
    ("timeout", Names::Nothing),
    ("http error 413", Names::Nothing),
    ("entity too large", Names::Nothing),
];

/// What it means that a range of logs was not shown.
pub(crate) fn meaning(error: &CallError) -> Meaning {
    let (text, refused) = match error {
        CallError::Refused { code: PRUNED_CODE, .. } => return Meaning::Pruned,
        CallError::Refused { message, .. } => (message.to_lowercase(), true),
        CallError::NoAnswer(text) => (text.to_lowercase(), false),
    };
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&BUSY) {
        return Meaning::Busy;
    }
    if let Some((at, names)) = TOO_WIDE.iter().find_map(|(word, names)| Some((text.find(word)? + word.len(), names))) {
        let told = &text[at..];
        let named = match names {
            Names::Cap => number(told),
            Names::Range => span_of(told),
            Names::Nothing => None,
        };
        return Meaning::TooWide { named, lasting: *names == Names::Cap };
    }
    match refused {
        true if says(&PRUNED) => Meaning::Pruned,
        true if says(&BEHIND) => Meaning::Behind,
        true => Meaning::TooWide { named: None, lasting: false },
        false => Meaning::Silent,
    }
}

/// The number that a text starts with, such as `10,000` or `2k`.
fn number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != ',' && c != '_').unwrap_or(text.len());
    let number: u64 = text[..end].replace([',', '_'], "").parse().ok()?;
    let thousands = text[end..].starts_with('k');
    (number > 0).then(|| if thousands { number.saturating_mul(1_000) } else { number })
}

/// How many blocks a range such as `0x10, 0x1f]` or `16-31` has.
fn span_of(text: &str) -> Option<u64> {
    let mut heights = text.splitn(2, [',', '-']).map(|part| height(part.trim()));
    let (from, to) = (heights.next()??, heights.next()??);
    to.checked_sub(from)?.checked_add(1)
}

fn height(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x");
    let text = digits.unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(text.len());
    u64::from_str_radix(&text[..end], if digits.is_some() { 16 } else { 10 }).ok()
}

/// Counts of logs at which answers of some nodes are cut off without a word.
const CUT_OFF_AT: [usize; 3] = [1_000, 10_000, 100_000];

/// Whether an answer of so many logs may be a part of what there is.
pub(super) fn may_be_cut_off(logs: usize) -> bool {
    CUT_OFF_AT.contains(&logs)
}

/// How many blocks are asked for at once, as a node's answers teach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    blocks: u64,
    /// What the node said it takes at most.
    cap: u64,
}

impl Span {
    /// As many as are wanted.
    pub(super) const ANY: Span = Span { blocks: u64::MAX, cap: u64::MAX };

    /// How many of so many wanted blocks to ask for.
    pub(super) fn of(&self, wanted: u64) -> u64 {
        wanted.min(self.blocks).max(1)
    }

    /// So many were too many. Narrower next time, by half if the node does not say.
    pub(super) fn narrow(&mut self, asked: u64, named: Option<u64>, lasting: bool) {
        let half = (asked / 2).max(1);
        self.blocks = named.map_or(half, |named| named.min(asked.saturating_sub(1))).max(1);
        if let Some(named) = named.filter(|_| lasting) {
            self.cap = named.max(1);
        }
    }

    /// So many were answered: a little more next time, within what the node takes.
    pub(super) fn widen(&mut self, answered: u64) {
        if answered >= self.blocks {
            self.blocks = self.blocks.saturating_add((self.blocks / 4).max(1)).min(self.cap);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: i64, message: &str) -> CallError {
        CallError::Refused { code, message: message.into(), revert: None }
    }

    fn cap(named: u64) -> Meaning {
        Meaning::TooWide { named: Some(named), lasting: true }
    }

    fn range(named: u64) -> Meaning {
        Meaning::TooWide { named: Some(named), lasting: false }
    }

    const NARROWER: Meaning = Meaning::TooWide { named: None, lasting: false };

    #[test]
    fn the_words_of_real_nodes_are_understood() {
        let cases = [
            (
                -32602,
                "Log response size exceeded. You can make eth_getLogs requests with up to a 2K block range and no limit on the response size, or you can request any block range with a cap of 10K logs in the response. Based on your parameters and the response size limit, this block range should work: [0x0, 0x7cf]",
                range(2_000),
            ),
            (
                -32600,
                "You can make eth_getLogs requests with up to a 500 block range. Based on your parameters, this block range should work: [0x123c9b2, 0x123cba5]",
                range(500),
            ),
            (
                -32600,
                "Under the Free tier plan, you can make eth_getLogs requests with up to a 10 block range.",
                cap(10),
            ),
            (-32602, "Log response size exceeded. Please reduce query block range.", NARROWER),
            (
                -32005,
                "query returned more than 10000 results. Try with this block range [0x1A2B00, 0x1A2B0F].",
                range(16),
            ),
            (-32005, "query returned more than 10000 results", NARROWER),
            (-32602, "range 1000000 exceeds limit of 10000", cap(10_000)),
            (-32602, "query exceeds max results 20000, retry with the range 24383075-24383096", range(22)),
            (-32602, "query exceeds max block range 100000", cap(100_000)),
            (-32000, "exceed maximum block range: 5000", cap(5_000)),
            (-32614, "eth_getLogs is limited to a 10,000 range", cap(10_000)),
            (-32614, "eth_getLogs is limited to 0 - 10000 blocks range", cap(10_000)),
            (-32047, "Invalid eth_getLogs request. 'fromBlock'-'toBlock' range too large. Max range: 800", cap(800)),
            (-32602, "maximum [from, to] blocks distance: 10000", cap(10_000)),
            (-32602, "range 9009594 is bigger than range limit 2000", cap(2_000)),
            (-32000, "block range greater than 10000 max", cap(10_000)),
            (35, "ranges over 10000 blocks are not supported on freetier", cap(10_000)),
            (-32600, "block range is too wide", NARROWER),
            (-32005, "Requested range exceeds maximum RPC range limit", NARROWER),
            (-32005, "Too many logs requested. Max logs per request is 20000.", NARROWER),
            (-32008, "Response is too big", NARROWER),
            (-32005, "limit exceeded", NARROWER),
            (-32000, "query timeout exceeded", NARROWER),
            (-32002, "request timed out", NARROWER),
            (-32000, "words that nobody has heard of", NARROWER),
            (429, "Your app has exceeded its compute units per second capacity.", Meaning::Busy),
            (-32012, "credits limited to 6000/sec", Meaning::Busy),
            (-32007, "50/second request limit reached - reduce calls per second", Meaning::Busy),
            (-32005, "daily request count exceeded, request rate limited", Meaning::Busy),
            (-32016, "over rate limit", Meaning::Busy),
            (4444, "resource unavailable", Meaning::Pruned),
            (-32000, "History has been pruned for this block", Meaning::Pruned),
            (-32000, "this request needs an archive node", Meaning::Pruned),
            (-32602, "block range extends beyond current head block", Meaning::Behind),
            (-32602, "BlockOutOfRangeError: block height is 5 but requested was 9", Meaning::Behind),
            (-32000, "unknown block", Meaning::Behind),
        ];
        for (code, message, expected) in cases {
            assert_eq!(meaning(&refused(code, message)), expected, "{message}");
        }
        let silent = |text: &str| meaning(&CallError::NoAnswer(text.into()));
        assert_eq!(silent("error sending request: operation timed out"), NARROWER);
        assert_eq!(
            silent("HTTP error 413 with body: {\"message\":\"eth_getLogs is limited to a 10,000 range\"}"),
            cap(10_000)
        );
        assert_eq!(silent("HTTP error 429 with body: slow down"), Meaning::Busy);
        assert_eq!(silent("HTTP error 502 with body: bad gateway"), Meaning::Silent);
        assert_eq!(silent("an answer that cannot be read: EOF"), Meaning::Silent);
    }

    #[test]
    fn a_span_narrows_to_what_is_named_and_widens_again() {
        let mut span = Span::ANY;
        assert_eq!(span.of(1_000), 1_000);
        span.narrow(1_000, None, false);
        assert_eq!(span.of(1_000), 500);
        span.narrow(500, Some(22), false);
        assert_eq!(span.of(1_000), 22);
        span.widen(21);
        assert_eq!(span.of(1_000), 22, "it was not put to the test");
        span.widen(22);
        assert_eq!(span.of(1_000), 27);
        span.narrow(27, Some(24), true);
        (0..9).for_each(|_| span.widen(span.of(1_000)));
        assert_eq!(span.of(1_000), 24, "never beyond what the node takes");
        (0..9).for_each(|_| span.narrow(span.of(1_000), None, false));
        assert_eq!(span.of(1_000), 1);
        (0..40).for_each(|_| span.widen(span.of(1_000)));
        assert_eq!(span.of(1_000), 24);
        // One that names more than was asked for is not believed.
        span.narrow(10, Some(500), false);
        assert_eq!(span.of(1_000), 9);
    }
}
