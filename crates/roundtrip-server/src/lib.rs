//! The program: reads a configuration, runs what it says, and serves those who work and watch.
//!
//! ```text
//!   roundtrip.toml ──▶ config ──▶ plan ──▶ run: the relay's stations, the API ◀── cli: what people do
//!                                  ├─────▶ check: what would not work
//!                                  └─────▶ doctor: whether all is well
//! ```

pub mod api;
pub mod check;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod history;
pub mod init;
pub mod plan;
pub mod run;
pub mod shelf;
pub mod telemetry;
