//! Tools from the outside: real servers, a real node, and the engine that asks them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod certificates;
mod chain;
mod desk;
mod grpc;
mod http;
mod prepare;
mod squares;
mod tool;
