//! What the tests, the demo and the bench run on.

pub mod board;
pub mod deployment;
pub mod devchain;
