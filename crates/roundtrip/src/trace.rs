//! Trace contexts: by what the spans of all who had a hand in a request are one trace.
//!
//! A request that came with a context keeps it. One that came without, such as a chain's event,
//! has one that is made of its id, so that every process knows it without being told.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::words::{RequestId, UnixMs, framed_hash};

/// Bit of the flags that says whether the trace is recorded.
const SAMPLED: u8 = 1;

/// Which trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TraceId(pub [u8; 16]);

impl TraceId {
    /// The trace of a request that came without one.
    pub fn of_request(id: &RequestId) -> TraceId {
        TraceId(first(framed_hash("trace", &[&id.0])))
    }
}

/// Which part of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

impl SpanId {
    /// The span of a request, from its admission to its end.
    pub fn of_request(id: &RequestId, generation: u32) -> SpanId {
        SpanId(first(framed_hash("span", &[&id.0, &generation.to_le_bytes()])))
    }

    /// The span of something that happened at this time within another.
    pub fn of_step(within: &SpanId, name: &str, at: UnixMs) -> SpanId {
        SpanId(first(framed_hash("span", &[&within.0, name.as_bytes(), &at.0.to_le_bytes()])))
    }
}

/// The first bytes of a hash; all zeros, which is no id, do not come up.
fn first<const N: usize>(hash: [u8; 32]) -> [u8; N] {
    std::array::from_fn(|at| hash[at])
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A context, as W3C Trace Context writes it in `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// Which trace.
    pub trace: TraceId,
    /// The span that what follows belongs to.
    pub span: SpanId,
    /// Whether whoever made it records it.
    pub sampled: bool,
}

impl TraceContext {
    /// Reads a `traceparent`; one that is none is nobody's. Later versions may say more at the
    /// end, which is left out.
    pub fn parse(text: &str) -> Option<TraceContext> {
        let mut parts = text.split('-');
        let version = parts.next().filter(|version| hex::<1>(version).is_some() && *version != "ff")?;
        let (trace, span) = (hex::<16>(parts.next()?)?, hex::<8>(parts.next()?)?);
        let [flags] = hex::<1>(parts.next()?)?;
        if (version == "00" && parts.next().is_some()) || trace == [0; 16] || span == [0; 8] {
            return None;
        }
        Some(TraceContext { trace: TraceId(trace), span: SpanId(span), sampled: flags & SAMPLED != 0 })
    }

    /// The context of a request that came with this one, or with none.
    pub fn of(id: &RequestId, given: Option<&str>) -> TraceContext {
        given.and_then(TraceContext::parse).unwrap_or_else(|| TraceContext {
            trace: TraceId::of_request(id),
            span: SpanId::of_request(id, 0),
            sampled: true,
        })
    }

    /// The same trace, within another span.
    #[must_use]
    pub fn within(self, span: SpanId) -> TraceContext {
        TraceContext { span, ..self }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.sampled) * SAMPLED)
    }
}

/// So many bytes, as lower-case hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || digits.iter().any(|digit| !matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn only_what_is_a_context_is_read() {
        let read = TraceContext::parse(GIVEN).unwrap();
        assert_eq!((read.to_string().as_str(), read.sampled), (GIVEN, true));
        let quiet = GIVEN.replace("-01", "-00");
        assert!(!TraceContext::parse(&quiet).unwrap().sampled);
        let later = format!("cc{}-more", &GIVEN[2..]);
        assert_eq!(TraceContext::parse(&later), Some(read), "a later version may say more");
        for bad in [
            "",
            "00",
            &GIVEN[..54],
            &GIVEN.to_uppercase(),
            &GIVEN.replace("00-4", "ff-4"),
            &format!("{GIVEN}-more"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0é",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn who_came_without_one_has_the_one_of_its_id() {
        let (one, other) = (RequestId([1; 32]), RequestId([2; 32]));
        let derived = TraceContext::of(&one, None);
        assert_eq!(TraceContext::of(&one, Some("nonsense")), derived);
        assert_eq!(TraceContext::parse(&derived.to_string()), Some(derived));
        assert_ne!(TraceContext::of(&other, None).trace, derived.trace);
        assert_eq!(TraceContext::of(&one, Some(GIVEN)).to_string(), GIVEN);
        assert_ne!(SpanId::of_request(&one, 0), SpanId::of_request(&one, 1), "each generation has a span of its own");
    }
}
