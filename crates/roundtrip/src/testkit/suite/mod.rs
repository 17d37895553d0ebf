//! The cases that every store passes, by station. [`crate::conformance`] runs them all.

pub mod admit;
pub mod amend;
pub mod aside;
pub mod groups;
pub mod identity;
pub mod limits;
pub mod order;
pub mod policies;
pub mod publish;
pub mod reads;
pub mod repeats;
pub mod replay;
pub mod retry;
pub mod send;
pub mod time;
pub mod upkeep;
pub mod work;
