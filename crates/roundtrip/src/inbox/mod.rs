//! The inbox: requests from admission to their answer, and the receipts they leave.

mod identity;
mod receipt;
mod request;

pub use identity::{FIELDS_MAX, FieldPath, Identity, IdentityError};
pub use receipt::End;
pub(crate) use receipt::{OccurrenceNote, OriginMark, Receipt};
pub(crate) use request::{
    AnswerMark, LeaseMark, Occurrence, Occurrences, OriginNo, Request, RouteNo, RowFlags, Setback, State,
};
pub use request::{Standing, StateKind};
