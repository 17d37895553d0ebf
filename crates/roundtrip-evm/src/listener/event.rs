//! An event by its human-readable signature, and its arguments as JSON.

use std::fmt;

use alloy::dyn_abi::{DecodedEvent, EventExt, Specifier};
use alloy::json_abi::{Event, Param};
use alloy::primitives::{B256, LogData};
use serde_json::{Map, Value};

use crate::abi;

/// An event such as `event Requested(uint256 indexed id, address indexed from, bytes payload)`.
#[derive(Clone, PartialEq, Eq)]
pub struct EventSignature {
    event: Event,
    /// What each argument is called: its name, or its place where it has none.
    names: Vec<String>,
}

/// A text that is no signature of an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no signature of an event, such as event Requested(uint256 indexed id, bytes payload): {why}")]
pub struct BadSignature {
    text: String,
    why: String,
}

impl EventSignature {
    /// Reads a signature; the word `event` may be left out.
    pub fn parse(text: &str) -> Result<EventSignature, BadSignature> {
        let bad = |why: String| BadSignature { text: text.to_owned(), why };
        let event = Event::parse(text.trim().trim_end_matches(';')).map_err(|error| bad(error.to_string()))?;
        if event.anonymous {
            return Err(bad("an anonymous event cannot be told from others".to_owned()));
        }
        event.resolve().map_err(|error| bad(error.to_string()))?;
        let name = |(at, name): (usize, &str)| if name.is_empty() { at.to_string() } else { name.to_owned() };
        let names: Vec<String> = event.inputs.iter().map(|input| &*input.name).enumerate().map(name).collect();
        let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
        if let Some((_, name)) = twice {
            return Err(bad(format!("two arguments are called {name}")));
        }
        Ok(EventSignature { event, names })
    }

    /// The event's name.
    pub fn name(&self) -> &str {
        &self.event.name
    }

    /// The first topic of its logs.
    pub fn topic(&self) -> B256 {
        self.event.selector()
    }

    /// The arguments of a log, by name.
    pub fn decode(&self, log: &LogData) -> Result<Value, String> {
        let DecodedEvent { indexed, body, .. } = self.event.decode_log(log).map_err(|error| error.to_string())?;
        let (mut indexed, mut body) = (indexed.into_iter(), body.into_iter());
        let mut arguments = Map::new();
        for (input, name) in self.event.inputs.iter().zip(&self.names) {
            let value = if input.indexed { indexed.next() } else { body.next() };
            let value = value.ok_or("a log with too few values")?;
            // An indexed argument of unbounded size is only there as a hash, which has no parts.
            let fields: &[Param] = &input.components;
            arguments.insert(name.clone(), abi::to_json(&value, fields));
        }
        Ok(Value::Object(arguments))
    }
}

impl fmt::Display for EventSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.event.full_signature())
    }
}

impl fmt::Debug for EventSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventSignature({self})")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::primitives::{Bytes, keccak256};
    use alloy::sol_types::SolValue;
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_keep_their_names_and_their_order() {
        let event = EventSignature::parse("Asked(bytes data, uint256 indexed id, string indexed topic, bool)").unwrap();
        let data = (Bytes::from_static(&[1, 2]), true).abi_encode_params();
        let topics = vec![event.topic(), B256::with_last_byte(9), keccak256("tea")];
        let decoded = event.decode(&LogData::new_unchecked(topics, data.into())).unwrap();
        let hash = keccak256("tea").to_string();
        assert_eq!(decoded, json!({"data": "0x0102", "id": "9", "topic": hash, "3": true}));
        let order: Vec<&String> = decoded.as_object().unwrap().keys().collect();
        assert_eq!(order.len(), 4);
    }

    #[test]
    fn the_topic_is_that_of_the_bare_signature() {
        let event = EventSignature::parse("event Transfer(address indexed from, address indexed to, uint256 value);");
        assert_eq!(event.unwrap().topic(), keccak256("Transfer(address,address,uint256)"));
    }

    #[test]
    fn a_log_that_does_not_fit_is_an_error() {
        let event = EventSignature::parse("Asked(uint256 indexed id, bytes data)").unwrap();
        let short = LogData::new_unchecked(vec![event.topic()], Bytes::new());
        assert!(event.decode(&short).is_err());
    }

    #[test]
    fn bad_signatures_say_why() {
        for text in ["", "Asked(", "Asked(uint257 a)", "Asked(uint8 a, uint8 a)", "event Asked(uint8 a) anonymous"] {
            assert!(EventSignature::parse(text).is_err(), "{text}");
        }
    }
}
