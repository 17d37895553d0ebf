//! What a contract's refusal means to a deployment: pure functions over what it reverted with.
//!
//! A refusal is known by its error's selector, by its error's name, or by its reason. What no
//! row names is fatal.

use alloy::json_abi::Error as ErrorItem;
use alloy::primitives::{Bytes, FixedBytes};
use alloy::sol_types::{Revert, SolError};

use crate::abi;

/// What becomes of an answer that the contract refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It had its effect before: that is success, once it is so beyond any reorg.
    AlreadyDone,
    /// It is tried again later.
    Retry,
    /// It is a dead letter, or its route's failure response is sent in its place.
    Fatal,
    /// The account that sent it is to blame, such as one that may not answer, or has answered
    /// too often: its lane goes into quarantine, and the answer goes out from another.
    LaneToBlame,
}

/// Which refusals mean what; the first that fits decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    rows: Vec<(Refusal, Outcome)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    /// Any of these errors.
    Errors(Vec<FixedBytes<4>>),
    /// This reason, to the letter.
    Reason(String),
}

/// A text that names no refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no refusal: {why}")]
pub struct BadRefusal {
    text: String,
    why: String,
}

impl Outcomes {
    /// All refusals are fatal.
    pub fn new() -> Outcomes {
        Outcomes::default()
    }

    /// What a refusal means that is named by its selector (`0x1a2b3c4d`), by its error's
    /// signature (`error AlreadyAnswered(uint256)`), or else by its reason (`already answered`).
    pub fn on(mut self, refusal: &str, outcome: Outcome) -> Result<Outcomes, BadRefusal> {
        let bad = |why: String| BadRefusal { text: refusal.to_owned(), why };
        let refusal = match refusal.trim() {
            "" => return Err(bad("it is empty".to_owned())),
            text if text.starts_with("0x") => {
                let selector = text.parse().map_err(|_| bad("a selector has 8 hexadecimal digits".to_owned()))?;
                Refusal::Errors(vec![selector])
            }
            text if text.starts_with("error ") => {
                let error = ErrorItem::parse(text.trim_end_matches(';')).map_err(|error| bad(error.to_string()))?;
                // A type that nobody knows parses, and its selector is that of no error.
                for input in &error.inputs {
                    abi::type_of("", input).map_err(|error| bad(error.to_string()))?;
                }
                Refusal::Errors(vec![error.selector()])
            }
            text => Refusal::Reason(text.to_owned()),
        };
        self.rows.push((refusal, outcome));
        Ok(self)
    }

    /// The same for errors of this name in an ABI, or in an artifact of a compiler, as JSON.
    pub fn on_error(mut self, abi: &str, name: &str, outcome: Outcome) -> Result<Outcomes, BadRefusal> {
        let bad = |why: String| BadRefusal { text: name.to_owned(), why };
        let abi = abi::read(abi).map_err(|error| bad(format!("this is no ABI: {error}")))?;
        let errors = abi.error(name).ok_or_else(|| bad("the ABI has no such error".to_owned()))?;
        self.rows.push((Refusal::Errors(errors.iter().map(ErrorItem::selector).collect()), outcome));
        Ok(self)
    }

    /// What it means that a contract reverted with these bytes, or, of nodes that do not show
    /// them, with these words.
    pub(crate) fn meaning(&self, message: &str, revert: Option<&Bytes>) -> Outcome {
        let selector = revert.and_then(|data| data.get(..4)).map(FixedBytes::<4>::from_slice);
        let reason = reason(message, revert);
        let fits = |refusal: &Refusal| match refusal {
            Refusal::Errors(errors) => selector.is_some_and(|selector| errors.contains(&selector)),
            Refusal::Reason(text) => reason == *text,
        };
        let row = self.rows.iter().find(|(refusal, _)| fits(refusal));
        row.map_or(Outcome::Fatal, |(_, outcome)| *outcome)
    }
}

/// What nodes put around a reason.
const AROUND: &[&str] =
    &["execution reverted:", "VM Exception while processing transaction:", "reverted with reason string", "revert:"];

/// The reason that a contract gave, without what a node puts around it.
pub(crate) fn reason(message: &str, revert: Option<&Bytes>) -> String {
    let decoded = revert.and_then(|data| Revert::abi_decode(data).ok()).map(|revert| revert.reason);
    let text = decoded.unwrap_or_else(|| {
        let mut text = message.trim();
        for around in AROUND {
            text = text.strip_prefix(around).unwrap_or(text).trim_start();
        }
        text.trim_matches('\'').to_owned()
    });
    readable(&text)
}

/// A text without the bytes that only pad it: some nodes show a reason with the zeros that
/// fill its last word.
pub(super) fn readable(text: &str) -> String {
    text.replace('\0', "").trim().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::sol_types::SolError;

    use super::*;

    alloy::sol! {
        error AlreadyAnswered(uint256 id);
        error Busy();
    }

    #[test]
    fn refusals_are_known_by_selector_name_or_reason() {
        let abi = r#"[{"type": "error", "name": "Busy", "inputs": []}]"#;
        let outcomes = Outcomes::new()
            .on("error AlreadyAnswered(uint256 id)", Outcome::AlreadyDone)
            .and_then(|outcomes| outcomes.on_error(abi, "Busy", Outcome::Retry))
            .and_then(|outcomes| outcomes.on("0x4e487b71", Outcome::Retry))
            .and_then(|outcomes| outcomes.on("already done", Outcome::AlreadyDone))
            .unwrap();
        let answered: Bytes = AlreadyAnswered { id: alloy::primitives::U256::from(7) }.abi_encode().into();
        let busy: Bytes = Busy {}.abi_encode().into();
        let panic: Bytes = [&[0x4e, 0x48, 0x7b, 0x71][..], &[0; 32]].concat().into();
        let done: Bytes = Revert::from("already done").abi_encode().into();
        let other: Bytes = Revert::from("not already done").abi_encode().into();
        let cases = [
            ("execution reverted", Some(answered), Outcome::AlreadyDone),
            ("execution reverted", Some(busy), Outcome::Retry),
            ("execution reverted: panic", Some(panic), Outcome::Retry),
            ("execution reverted: already done", Some(done), Outcome::AlreadyDone),
            ("execution reverted: not already done", Some(other), Outcome::Fatal),
            ("execution reverted: already done", None, Outcome::AlreadyDone),
            ("execution reverted: already done\0\0\0\0", None, Outcome::AlreadyDone),
            (
                "VM Exception while processing transaction: reverted with reason string 'already done'",
                None,
                Outcome::AlreadyDone,
            ),
            ("execution reverted: not already done", None, Outcome::Fatal),
            ("execution reverted", Some(Bytes::from_static(&[1, 2])), Outcome::Fatal),
            ("execution reverted", None, Outcome::Fatal),
            ("out of gas", None, Outcome::Fatal),
        ];
        for (message, revert, outcome) in cases {
            assert_eq!(outcomes.meaning(message, revert.as_ref()), outcome, "{message} {revert:?}");
        }
    }

    #[test]
    fn what_names_no_refusal_says_why() {
        for text in ["", "0x12", "0x1234567g", "error (", "error Done(uint2567)", "error"] {
            let named = Outcomes::new().on(text, Outcome::Retry);
            // The word alone may be a reason.
            assert_eq!(named.is_ok(), text == "error", "{text:?}");
        }
        assert!(Outcomes::new().on_error("[]", "Busy", Outcome::Retry).is_err());
        assert!(Outcomes::new().on_error("{", "Busy", Outcome::Retry).is_err());
    }
}
