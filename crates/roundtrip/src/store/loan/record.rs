//! Records as servers keep them: the machine's own types, in postcard.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a server keeps cannot be what this program wrote.
#[derive(Debug, thiserror::Error)]
#[error("a row of {what} cannot be read: {reason}")]
pub(in crate::store) struct Damaged {
    what: String,
    reason: String,
}

impl Damaged {
    pub(in crate::store) fn new(what: &str, reason: impl std::fmt::Display) -> Damaged {
        Damaged { what: what.to_owned(), reason: reason.to_string() }
    }
}

/// The bytes of a record.
pub(in crate::store) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Damaged> {
    postcard::to_allocvec(value).map_err(|error| Damaged::new("new records", error))
}

/// A record of these bytes, which stood in `what`.
pub(in crate::store) fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, Damaged> {
    postcard::from_bytes(bytes).map_err(|error| Damaged::new(what, error))
}
