//! What makes it the same request, where a route lets the content say so.
//!
//! ```text
//!   payload ──▶ canonical (JSON: RFC 8785) ──▶ blake3 over kind, route, encoding, content ──▶ RequestId
//! ```
//!
//! Whoever submits computes the id with [`Identity::id_of`]; a store computes it again
//! and refuses one that differs. Failure modes: JSON that two readers could take for
//! different things has no id. A key that stands twice in an object, and a number
//! beyond 2^53, which most readers round, are refused; a string carries such a number.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::store::op::Invalid;
use crate::words::{Encoding, NAME_BYTES_MAX, ParseError, Payload, RequestId, RouteName};

/// Most fields that an identity names.
pub const FIELDS_MAX: usize = 32;
/// Integers up to here are the same for every reader of JSON.
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;

/// What makes it the same request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Identity {
    /// The id that whoever submits it gives it.
    #[default]
    Given,
    /// The hash of its payload. White space and the order of keys do not matter in JSON;
    /// other encodings are hashed as they are.
    Content,
    /// The hash of these fields of its JSON payload, in whatever order they are named.
    Fields(Vec<FieldPath>),
}

/// Where a field is: a JSON pointer (RFC 6901), such as `/order/id` or `/legs/0/price`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FieldPath(Box<str>);

impl FieldPath {
    /// A pointer to something inside a document, of at most [`NAME_BYTES_MAX`] bytes.
    pub fn new(text: &str) -> Result<FieldPath, ParseError> {
        let escapes = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        if text.starts_with('/') && text.len() <= NAME_BYTES_MAX && escapes {
            return Ok(FieldPath(text.into()));
        }
        Err(ParseError::new(text, "a JSON pointer of at most 128 bytes, such as /order/id"))
    }

    /// The pointer as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FieldPath({:?})", &*self.0)
    }
}

/// Why a payload has no id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum IdentityError {
    /// Fields are named, and the payload is not declared as JSON.
    #[error("its route names fields, and its payload is {0:?}, not JSON")]
    NotDeclaredJson(Encoding),
    /// It cannot be read, or not by everybody alike.
    #[error("its payload is no JSON that every reader understands alike: {0}")]
    NotJson(Box<str>),
    /// A field that makes the id is not there.
    #[error("its payload has no field {0}")]
    MissingField(FieldPath),
}

impl Identity {
    /// The id that this payload must have on this route; `None` if any will do.
    pub fn id_of(&self, route: &RouteName, payload: &Payload) -> Result<Option<RequestId>, IdentityError> {
        let route = route.as_str().as_bytes();
        match self {
            Identity::Given => Ok(None),
            Identity::Content => {
                let content = match payload.encoding {
                    Encoding::Json => Cow::Owned(canonical(&read_json(payload)?)?),
                    _ => Cow::Borrowed(&payload.bytes[..]),
                };
                Ok(Some(RequestId::of(&[b"content", route, &[payload.encoding as u8], &content])))
            }
            Identity::Fields(_) if payload.encoding != Encoding::Json => {
                Err(IdentityError::NotDeclaredJson(payload.encoding))
            }
            Identity::Fields(paths) => {
                let document = read_json(payload)?;
                let mut fields = Vec::with_capacity(paths.len());
                for path in paths {
                    let field = document.pointer(path.as_str());
                    let field = field.ok_or_else(|| IdentityError::MissingField(path.clone()))?;
                    fields.push((path.as_str().as_bytes(), canonical(field)?));
                }
                fields.sort_unstable();
                let named = fields.iter().flat_map(|(path, field)| [*path, field.as_slice()]);
                let parts: Vec<&[u8]> = [&b"fields"[..], route].into_iter().chain(named).collect();
                Ok(Some(RequestId::of(&parts)))
            }
        }
    }

    /// Refuses an id that is not what this identity makes of the payload: the check that
    /// every store does before it takes a request in, or other content for one.
    pub fn verify(&self, route: &RouteName, id: &RequestId, payload: &Payload) -> Result<(), Invalid> {
        match self.id_of(route, payload) {
            Ok(None) => Ok(()),
            Ok(Some(hash)) if hash == *id => Ok(()),
            Ok(Some(hash)) => Err(Invalid::IdIsNotTheHash { given: *id, hash }),
            Err(why) => Err(Invalid::NoIdentity { given: *id, why }),
        }
    }

    /// Whether two payloads ask for the same: byte by byte, or, where the content is the
    /// identity, by its hash.
    pub fn same_content(&self, route: &RouteName, one: &Payload, two: &Payload) -> bool {
        let same_hash = || matches!((self.id_of(route, one), self.id_of(route, two)), (Ok(a), Ok(b)) if a == b);
        one == two || (*self == Identity::Content && same_hash())
    }

    /// Says what is wrong with the fields that are named, if something is.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let Identity::Fields(paths) = self else { return Ok(()) };
        if paths.is_empty() || paths.len() > FIELDS_MAX {
            return Err("an identity names from 1 to 32 fields");
        }
        let twice = paths.iter().enumerate().any(|(at, path)| paths[..at].contains(path));
        if twice { Err("an identity names a field twice") } else { Ok(()) }
    }
}

fn canonical(value: &Value) -> Result<Vec<u8>, IdentityError> {
    serde_json_canonicalizer::to_vec(value).map_err(|error| IdentityError::NotJson(error.to_string().into()))
}

fn read_json(payload: &Payload) -> Result<Value, IdentityError> {
    let unreadable = |error: serde_json::Error| IdentityError::NotJson(error.to_string().into());
    let mut reader = serde_json::Deserializer::from_slice(&payload.bytes);
    let value = Strict.deserialize(&mut reader).map_err(unreadable)?;
    reader.end().map_err(unreadable)?;
    Ok(value)
}

/// Reads JSON and refuses what readers differ about.
struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        if value > SAFE_INTEGER_MAX {
            return Err(E::custom("a number beyond 2^53; write it as a string"));
        }
        Ok(Value::from(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        self.visit_u64::<E>(value.unsigned_abs())?;
        Ok(Value::from(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        if value.abs() > SAFE_INTEGER_MAX as f64 {
            return Err(E::custom("a number beyond 2^53; write it as a string"));
        }
        Ok(Value::from(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(Strict)? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Strict)?;
            if all.insert(key, value).is_some() {
                return Err(de::Error::custom("a key twice in one object"));
            }
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn route() -> RouteName {
        RouteName::new("orders").unwrap()
    }

    fn fields(paths: &[&str]) -> Identity {
        Identity::Fields(paths.iter().map(|path| FieldPath::new(path).unwrap()).collect())
    }

    fn id(identity: &Identity, text: &'static str) -> RequestId {
        identity.id_of(&route(), &Payload::json(text)).unwrap().unwrap()
    }

    fn refusal(identity: &Identity, text: &'static str) -> String {
        identity.id_of(&route(), &Payload::json(text)).unwrap_err().to_string()
    }

    #[test]
    fn the_form_of_json_does_not_matter_and_its_meaning_does() {
        let content = Identity::Content;
        let plain = id(&content, r#"{"a":1,"b":[1.5,"x"],"c":null}"#);
        assert_eq!(id(&content, " { \"c\" : null, \"b\":[ 1.50 , \"\\u0078\" ],\n\"a\":1.0 } "), plain);
        for other in
            [r#"{"a":1,"b":["x",1.5],"c":null}"#, r#"{"a":"1","b":[1.5,"x"],"c":null}"#, r#"{"a":1,"b":[1.5,"x"]}"#]
        {
            assert_ne!(id(&content, other), plain, "{other}");
        }
    }

    #[test]
    fn bytes_are_hashed_as_they_are_under_their_route_and_encoding() {
        let of = |route: &str, payload| Identity::Content.id_of(&RouteName::new(route).unwrap(), &payload).unwrap();
        let raw = of("orders", Payload::raw("{}"));
        assert_eq!(of("orders", Payload::raw("{}")), raw);
        assert_ne!(of("orders", Payload::raw("{ }")), raw);
        assert_ne!(of("orders", Payload::json("{}")), raw);
        assert_ne!(of("quotes", Payload::raw("{}")), raw);
        assert_eq!(Identity::Given.id_of(&route(), &Payload::raw("{}")), Ok(None));
    }

    #[test]
    fn named_fields_make_the_id_alone() {
        let identity = fields(&["/order/id", "/legs/1"]);
        let one = id(&identity, r#"{"order":{"id":"7","at":1},"legs":["x",{"p":1}]}"#);
        assert_eq!(id(&identity, r#"{"legs":["y",{"p":1.0}],"order":{"at":2,"id":"7"},"more":true}"#), one);
        assert_eq!(id(&fields(&["/legs/1", "/order/id"]), r#"{"order":{"id":"7"},"legs":["x",{"p":1}]}"#), one);
        assert_ne!(id(&identity, r#"{"order":{"id":7},"legs":["x",{"p":1}]}"#), one);
        assert_ne!(id(&fields(&["/a", "/b"]), r#"{"a":1,"b":2}"#), id(&fields(&["/a", "/b"]), r#"{"a":2,"b":1}"#));
        assert_eq!(refusal(&identity, r#"{"order":{"id":7}}"#), "its payload has no field /legs/1");
        let raw = identity.id_of(&route(), &Payload::raw("{}"));
        assert_eq!(raw, Err(IdentityError::NotDeclaredJson(Encoding::Raw)));
        // A field that is there and says nothing is there.
        id(&fields(&["/a"]), r#"{"a":null}"#);
    }

    #[test]
    fn json_that_readers_differ_about_has_no_id() {
        for (text, why) in [
            (r#"{"a":1,"a":2}"#, "a key twice"),
            (r#"{"a":{"b":1,"\u0062":2}}"#, "a key twice"),
            ("[9007199254740992]", "beyond 2^53"),
            ("[-9007199254740993]", "beyond 2^53"),
            ("[123456789012345678901234567890]", "beyond 2^53"),
            ("{", "EOF"),
            ("{} {}", "trailing"),
            ("", "EOF"),
        ] {
            let refused = refusal(&Identity::Content, text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
        id(&Identity::Content, "[9007199254740991, -9007199254740991, 0.1, \"9007199254740993\"]");
    }

    #[test]
    fn pointers_are_checked() {
        for bad in ["", "order", "/a~", "/a~2"] {
            assert!(FieldPath::new(bad).is_err(), "{bad:?}");
        }
        assert!(FieldPath::new(&format!("/{}", "x".repeat(NAME_BYTES_MAX))).is_err());
        assert_eq!(id(&fields(&["/a~1b"]), r#"{"a/b":1}"#), id(&fields(&["/a~1b"]), r#"{"a/b":1,"c":2}"#));
        assert!(fields(&["/a", "/a"]).check().is_err());
    }

    #[test]
    fn the_same_content_is_found_behind_its_form() {
        let (one, two) = (Payload::json("{\"a\":1}"), Payload::json("{ \"a\": 1 }"));
        assert!(Identity::Content.same_content(&route(), &one, &two));
        assert!(!Identity::Given.same_content(&route(), &one, &two));
        assert!(!Identity::Content.same_content(&route(), &one, &Payload::json("{")));
    }
}
