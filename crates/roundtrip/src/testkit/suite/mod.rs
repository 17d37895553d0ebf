//! The cases that every store passes, by station. [`crate::conformance`] runs them all.

pub mod admit;
pub mod amend;
pub mod groups;
pub mod limits;
pub mod policies;
pub mod reads;
pub mod replay;
pub mod send;
pub mod upkeep;
pub mod work;
