//! The program from the outside: its command, its API, its workers.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod auth;
mod chain;
mod cli;
mod command;
mod dashboard;
mod dead;
mod fuzz;
mod metrics;
mod program;

mod requests;
mod stream;
mod traces;
mod updates;
mod work;
mod workers;
