//! The program from the outside: its command, its API, its workers.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod auth;
#[path = "../../../roundtrip/tests/it/certificate.rs"]
mod certificate;
#[path = "../../../roundtrip-tools/tests/it/certificates.rs"]
mod certificates;
mod chain;
mod cli;
mod command;
mod dashboard;
mod dead;
mod doors;
mod frozen;
mod fuzz;
mod metrics;
mod program;
mod prometheus;

mod requests;
#[allow(dead_code, reason = "shared with the tests of the tools, which use more of it")]
#[path = "../../../roundtrip-tools/tests/it/squares.rs"]
mod squares;
mod stream;
mod submissions;
#[allow(dead_code, reason = "shared with the tests of the tools, which use more of it")]
#[path = "../../../roundtrip-tools/tests/it/tool.rs"]
mod tool;
mod tools;
mod traces;
mod updates;
mod work;
mod workers;
