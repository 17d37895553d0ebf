//! The words that every station shares: identities, names, time, tokens, payloads.
//!
//! Numbers that could be confused have types of their own, and every size that a
//! caller can choose has a named bound here.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Longest payload or response that a store takes.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Most operations in one call of `apply`.
pub const BATCH_OPS_MAX: usize = 4096;
/// Most payload bytes in one call of `apply`.
pub const BATCH_BYTES_MAX: usize = 32 << 20;
/// Most requests in one `admit`.
pub const ADMIT_MAX: usize = 4096;
/// Most requests that one `lease` hands out.
pub const LEASE_MAX: usize = 1024;
/// Most parcels in one `assign`.
pub const ASSIGN_MAX: usize = 1024;
/// Most deliveries in one parcel.
pub const PARCEL_MAX: usize = 256;
/// Most signed attempts kept for one parcel.
pub const ATTEMPTS_MAX: usize = 64;
/// Most items that one answer may add to groups.
pub const GATHER_MAX: usize = 1024;
/// Most parcels under way on one lane.
pub const WINDOW_MAX: u32 = 4096;
/// Most records that one call of upkeep moves; a larger limit counts as this.
pub const UPKEEP_MAX: usize = 10_000;
/// Longest lease and longest hold of a seat; longer ones count as this.
pub const HOLD_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1000;
/// Most bytes of bodies in one answer of a lease or a read, unless one body alone is larger.
pub const REPLY_BYTES_MAX: usize = 16 << 20;
/// Most records that the operations of one call may write.
pub const BATCH_RECORDS_MAX: usize = 1 << 16;
/// Most items in one group.
pub const GROUP_ITEMS_MAX: u64 = 1_000_000;
/// Most rows in one page of a read.
pub const PAGE_MAX: usize = 1000;
/// Longest name of a route, lane, listener, destination, worker, holder, group or order key.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest error text kept; longer ones are cut.
pub const ERROR_BYTES_MAX: usize = 1024;
/// Longest trace context kept with a request.
pub const TRACE_BYTES_MAX: usize = 256;
/// Most occurrences of one request.
pub const OCCURRENCES_MAX: usize = 64;

/// Why a text is not the value that it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct ParseError {
    text: String,
    expected: &'static str,
}

impl ParseError {
    pub(crate) fn new(text: &str, expected: &'static str) -> ParseError {
        ParseError { text: text.to_owned(), expected }
    }
}

macro_rules! hash_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(#[serde(with = "hash_bytes")] pub [u8; 32]);

        /// By words: maps of them are looked up for every operation.
        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                let (words, _) = self.0.as_chunks::<8>();
                words.iter().for_each(|word| state.write_u64(u64::from_ne_bytes(*word)));
            }
        }

        impl $name {
            /// The hash of these parts; each part's length is hashed with it, so that
            /// moving a byte from one part to the next gives another id.
            pub fn of(parts: &[&[u8]]) -> Self {
                Self(framed_hash($what, parts))
            }

            /// The 32 bytes.
            pub fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = ParseError;
            fn from_str(text: &str) -> Result<Self, ParseError> {
                parse_hash(text).map(Self).ok_or_else(|| ParseError {
                    text: text.to_owned(),
                    expected: concat!("64 hexadecimal digits of ", $what),
                })
            }
        }
    };
}

hash_id!(
    /// What makes it the same request: a hash of its content, or of named fields.
    RequestId,
    "a request id"
);
hash_id!(
    /// This very event at its origin; never depends on the block, so that an event
    /// that a reorg puts in another block is the same occurrence.
    OccurrenceId,
    "an occurrence id"
);
hash_id!(
    /// What makes it the same item of a group.
    ItemId,
    "an item id"
);
hash_id!(
    /// The hash by which the outside knows a signed attempt.
    AttemptHash,
    "an attempt hash"
);

/// Hashes are written as one run of bytes; left to itself, serde writes an array byte
/// by byte, which shows in the cost of a commit.
mod hash_bytes {
    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(hash: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(hash)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        struct Hash;

        impl Visitor<'_> for Hash {
            type Value = [u8; 32];

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("32 bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<[u8; 32], E> {
                bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))
            }
        }

        deserializer.deserialize_bytes(Hash)
    }
}

/// Short inputs are hashed in one go, which costs a third of hashing them part by part.
const HASHED_AT_ONCE: usize = 512;

pub(crate) fn framed_hash(domain: &str, parts: &[&[u8]]) -> [u8; 32] {
    let framed = || std::iter::once(domain.as_bytes()).chain(parts.iter().copied());
    let frames = framed().map(|part| (part.len() as u64).to_le_bytes());
    let mut together = [0; HASHED_AT_ONCE];
    let mut length = 0;
    for (frame, part) in frames.clone().zip(framed()) {
        for bytes in [&frame[..], part] {
            let Some(room) = together.get_mut(length..length + bytes.len()) else {
                let mut hasher = blake3::Hasher::new();
                for (frame, part) in frames.zip(framed()) {
                    hasher.update(&frame).update(part);
                }
                return *hasher.finalize().as_bytes();
            };
            room.copy_from_slice(bytes);
            length += bytes.len();
        }
    }
    *blake3::hash(&together[..length]).as_bytes()
}

fn parse_hash(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix("0x").unwrap_or(text).as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let high = (pair[0] as char).to_digit(16)?;
        let low = (pair[1] as char).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(out)
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(Arc<str>);

        impl $name {
            /// A name of 1 to [`NAME_BYTES_MAX`] visible characters.
            pub fn new(text: &str) -> Result<Self, ParseError> {
                let fits = !text.is_empty() && text.len() <= NAME_BYTES_MAX;
                if fits && !text.chars().any(|c| c.is_control() || c.is_whitespace()) {
                    return Ok(Self(text.into()));
                }
                Err(ParseError {
                    text: text.to_owned(),
                    expected: "a name of 1 to 128 characters without spaces",
                })
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?})", stringify!($name), &*self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseError;
            fn from_str(text: &str) -> Result<Self, ParseError> {
                Self::new(text)
            }
        }
    };
}

name!(
    /// A named path: sources, one handler, one sink, and its policies.
    RouteName
);
name!(
    /// An exclusive path to a destination with its own order.
    LaneName
);
name!(
    /// Where answers go; lanes serve it.
    Destination
);
name!(
    /// One reader of a source, with a cursor of its own.
    ListenerName
);
name!(
    /// Where requests come from; the listeners of one origin share its heights.
    OriginName
);
name!(
    /// Who works on requests.
    WorkerName
);
name!(
    /// Who holds a seat; unique to a process and its start.
    HolderName
);
name!(
    /// Under which items are gathered.
    GroupKey
);
name!(
    /// Whose requests are worked on one after the other, such as an account.
    OrderKey
);

/// Wall-clock time in milliseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct UnixMs(pub u64);

impl UnixMs {
    /// A time that never comes.
    pub const NEVER: UnixMs = UnixMs(u64::MAX);

    /// This time and `ms` more.
    #[must_use]
    pub fn plus(self, ms: u64) -> UnixMs {
        UnixMs(self.0.saturating_add(ms))
    }

    /// How many milliseconds lie between `earlier` and this time; none if it is later.
    #[must_use]
    pub fn since(self, earlier: UnixMs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A fencing token: who holds the newest one may write, whoever holds an older one may not.
///
/// The epoch is new at every start of a store and never repeats, not even after an
/// older file was restored, so a token that a crash forgot is never issued again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Token {
    /// The store's start in which the token was issued.
    pub epoch: u64,
    /// Its number in that epoch.
    pub count: u64,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.count)
    }
}

impl FromStr for Token {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parsed = text
            .split_once('-')
            .and_then(|(epoch, count)| Some(Token { epoch: epoch.parse().ok()?, count: count.parse().ok()? }));
        parsed.ok_or_else(|| ParseError { text: text.to_owned(), expected: "a token, such as 1790000000000-42" })
    }
}

/// The caller's own number for one `lease` call; its replay returns the same grant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ClaimId(pub u64);

/// A request's place in the order of admission.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Seq(pub u64);

/// A slot of a lane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Nonce(pub u64);

impl Nonce {
    /// The slot `n` further on.
    #[must_use]
    pub fn plus(self, n: u64) -> Nonce {
        Nonce(self.0.saturating_add(n))
    }
}

/// How far along an origin something is: a block number, a slot, a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Height(pub u64);

/// A height and the hash found there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Position {
    /// How far along.
    pub height: Height,
    /// What was found there.
    #[serde(with = "hash_bytes")]
    pub hash: [u8; 32],
}

/// Where an occurrence was seen.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The origin whose heights these are.
    pub origin: OriginName,
    /// How far along it.
    pub height: Height,
}

/// When something is due, or no longer of use: by the store's clock, or by a chain's.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Moment {
    /// When the store's clock shows this time.
    At(UnixMs),
    /// When a tick says that the origin's head is this high.
    Height(Place),
    /// When a tick tells of a block of the origin that is of this time, or later. The origin's
    /// blocks alone are its clock: while they stand still, or nobody tells of them, so does it.
    BlockTime {
        /// By whose blocks.
        origin: OriginName,
        /// The time.
        at: UnixMs,
    },
}

impl Moment {
    /// By whose clock, if not by the store's.
    pub fn origin(&self) -> Option<&OriginName> {
        match self {
            Moment::At(_) => None,
            Moment::Height(place) => Some(&place.origin),
            Moment::BlockTime { origin, .. } => Some(origin),
        }
    }
}

impl From<UnixMs> for Moment {
    fn from(time: UnixMs) -> Moment {
        Moment::At(time)
    }
}

impl From<Place> for Moment {
    fn from(place: Place) -> Moment {
        Moment::Height(place)
    }
}

/// How a payload's bytes are to be read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[repr(u8)]
pub enum Encoding {
    /// Bytes whose meaning only the route knows.
    #[default]
    Raw = 0,
    /// JSON text.
    Json = 1,
    /// CBOR.
    Cbor = 2,
    /// A protobuf message.
    Protobuf = 3,
}

/// Bytes with a declared encoding.
///
/// `Debug` shows the length alone: payloads never reach a log line.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Payload {
    /// How to read the bytes.
    pub encoding: Encoding,
    /// The bytes.
    pub bytes: Bytes,
}

impl Payload {
    /// Bytes whose meaning only the route knows.
    pub fn raw(bytes: impl Into<Bytes>) -> Payload {
        Payload { encoding: Encoding::Raw, bytes: bytes.into() }
    }

    /// JSON text.
    pub fn json(text: impl Into<Bytes>) -> Payload {
        Payload { encoding: Encoding::Json, bytes: text.into() }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({:?}, {} bytes)", self.encoding, self.bytes.len())
    }
}

/// What kind of failure an error was; decides whether it costs an attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ErrorClass {
    /// The way to the worker failed, not the work.
    Transport,
    /// The work failed and may succeed later.
    Retryable,
    /// The work will never succeed.
    Fatal,
    /// The worker died, or went silent, with the request in hand.
    Crash,
}

impl ErrorClass {
    /// The class in a word, as people and other programs read it.
    pub fn word(self) -> &'static str {
        match self {
            ErrorClass::Transport => "transport",
            ErrorClass::Retryable => "retryable",
            ErrorClass::Fatal => "fatal",
            ErrorClass::Crash => "crash",
        }
    }
}

/// What went wrong, for the person who reads it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ErrorNote {
    /// What kind of failure.
    pub class: ErrorClass,
    /// In words; at most [`ERROR_BYTES_MAX`] bytes.
    pub text: Box<str>,
}

impl ErrorNote {
    /// A note whose text is cut to [`ERROR_BYTES_MAX`] bytes at a character border.
    pub fn new(class: ErrorClass, text: &str) -> ErrorNote {
        let mut end = text.len().min(ERROR_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        ErrorNote { class, text: text[..end].into() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn hash_ids_frame_their_parts() {
        assert_ne!(RequestId::of(&[b"ab", b"c"]), RequestId::of(&[b"a", b"bc"]));
        assert_ne!(RequestId::of(&[b"x"]).0, OccurrenceId::of(&[b"x"]).0);
    }

    #[test]
    fn a_hash_does_not_depend_on_how_it_was_made() {
        let part_by_part = |parts: &[&[u8]]| {
            let mut hasher = blake3::Hasher::new();
            for part in std::iter::once(b"a request id".as_slice()).chain(parts.iter().copied()) {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part);
            }
            *hasher.finalize().as_bytes()
        };
        for length in (0..HASHED_AT_ONCE + 2).chain([5_000]) {
            let long = vec![7; length];
            assert_eq!(RequestId::of(&[b"ab", &long, b"c"]).0, part_by_part(&[b"ab", &long, b"c"]), "{length}");
        }
    }

    #[test]
    fn texts_round_trip() {
        let id = RequestId::of(&[b"x"]);
        assert_eq!(id.to_string().parse::<RequestId>().unwrap(), id);
        let token = Token { epoch: 7, count: 9 };
        assert_eq!(token.to_string().parse::<Token>().unwrap(), token);
    }

    #[test]
    fn bad_texts_are_refused_with_what_was_expected() {
        let error = "0x12".parse::<RequestId>().unwrap_err();
        assert_eq!(error.to_string(), "\"0x12\" is not 64 hexadecimal digits of a request id");
        assert!("7".parse::<Token>().is_err());
        assert!(RouteName::new("").is_err());
        assert!(RouteName::new("a b").is_err());
        assert!(RouteName::new(&"r".repeat(NAME_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn error_text_is_cut_at_a_character() {
        let note = ErrorNote::new(ErrorClass::Fatal, &"é".repeat(ERROR_BYTES_MAX));
        assert_eq!(note.text.len(), ERROR_BYTES_MAX);
    }
}
