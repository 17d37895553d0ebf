//! What a commit does to a request.

use super::Stage;
use crate::inbox::Request;
use crate::words::Payload;

/// A request before or after a commit.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "what Postgres announces is a state"))]
pub(in crate::store) struct Side<'a> {
    pub(in crate::store) request: &'a Request,
    pub(in crate::store) stage: Stage,
    /// What it asks and what was answered, as far as that is at hand.
    pub(in crate::store) body: Option<&'a Payload>,
    pub(in crate::store) response: Option<&'a Payload>,
}

/// What a commit does to a request.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "what Postgres announces is a state"))]
pub(in crate::store) struct Step<'a> {
    /// None, if it is new.
    pub(in crate::store) before: Option<Side<'a>>,
    pub(in crate::store) after: Side<'a>,
    pub(in crate::store) new_body: bool,
    pub(in crate::store) new_response: bool,
}

impl Step<'_> {
    /// Whether the request is in another state than before, or new.
    pub(in crate::store) fn changes_stage(&self) -> bool {
        self.before.is_none_or(|before| before.stage != self.after.stage)
    }
}
