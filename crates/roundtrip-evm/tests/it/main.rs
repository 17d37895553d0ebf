//! The tests of EVM chains from outside: against real nodes, the development chain, and the testkit itself.
#![cfg(feature = "testkit")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod anvil;
mod chaos;
mod checker;
mod clock;
mod contracts;
mod devchain;
mod fees;
mod hardhat;
mod heard;
mod incidents;
mod kills;
mod listener;
mod live;
mod misuse;
mod nodes;
mod op_stack;
mod proxy;
mod restored;
mod scene;
mod sending;
mod signers;
mod simulation;
mod storm;
mod witness;
mod world;
