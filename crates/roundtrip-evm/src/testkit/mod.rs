//! What the tests, the demo and the bench run on.

pub mod account;
pub mod board;
pub mod checker;
pub mod child;
pub mod deployment;
pub mod devchain;
pub mod fakenode;
pub mod node;
pub mod proxy;
pub mod signer;
pub mod speaker;
pub mod submitter;
pub mod way;
