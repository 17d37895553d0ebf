//! The inbox: requests from admission to their answer, and the receipts they leave.

mod identity;
mod moment;
mod receipt;
mod request;

pub use identity::{FIELDS_MAX, FieldPath, Identity, IdentityError};
pub(crate) use moment::{Clocks, MOMENT_HEIGHT_MAX, When};
pub use receipt::End;
pub(crate) use receipt::{OccurrenceNote, OriginMark, Receipt};
#[cfg(test)]
pub(crate) use request::DeadLetter;
pub(crate) use request::{
    AnswerMark, LeaseMark, Occurrence, Occurrences, OriginNo, Request, RouteNo, RowFlags, Setback, State,
};
pub use request::{Standing, StateKind};
