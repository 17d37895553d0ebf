//! The engine's tests from outside.
#![cfg(feature = "testkit")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[cfg(feature = "sqlite")]
mod archive;
mod batching;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod between;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod certificate;
#[cfg(feature = "sqlite")]
mod crash;
mod delivering;
#[cfg(feature = "redis")]
mod failover;
#[cfg(feature = "sqlite")]
mod file;
mod follow;
mod keeping;
mod killed;
#[cfg(feature = "redis")]
mod lists;
mod memory;
#[cfg(feature = "postgres")]
mod plans;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod projections;
mod random;
mod rebuild;
#[cfg(feature = "redis")]
mod redis;
mod sender;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod sharing;
mod simulation;
#[cfg(feature = "sqlite")]
mod sqlite;
mod stations;
mod terms;
#[cfg(feature = "postgres")]
mod views;
#[cfg(feature = "webhook")]
mod webhook;
