//! The schema, in numbered steps that run once, under a lock, each with its record in one
//! transaction.
//!
//! Failure modes: a process that dies in the middle leaves the step undone. A schema that a
//! newer version wrote is refused: an older one could break what it does not know.

use super::wire::{PgError, Wire, param, quoted};
use crate::store::StoreError;
use crate::store::loan::Damaged;

/// The steps; a schema's version is how many of them it has seen.
const STEPS: [&str; 1] = [include_str!("schema/0001.sql")];
/// Which lock migrations of all schemas take.
pub(super) const LOCK: &str = "SELECT pg_advisory_xact_lock(7305517184)";
const STARTED: &str = "SELECT 1 WHERE to_regclass($1) IS NOT NULL";
const VERSION: &str = "SELECT coalesce(max(version), 0)::integer FROM migration";
const RECORD: &str = "INSERT INTO migration (version) VALUES ($1)";

/// Brings the schema to this version.
pub(super) async fn migrate(wire: &mut Wire, server: &str, schema: &str) -> Result<(), StoreError> {
    let found = step_by_step(wire, schema).await.map_err(|error| error.at(server))?;
    let known = STEPS.len();
    match usize::try_from(found) {
        Ok(found) if found <= known => Ok(()),
        _ => Err(StoreError::NewerFormat {
            path: format!("{server}, schema {schema}"),
            found: u32::try_from(found).unwrap_or(u32::MAX),
            known: u32::try_from(known).unwrap_or(u32::MAX),
        }),
    }
}

/// Answers the version that the schema has then.
async fn step_by_step(wire: &mut Wire, schema: &str) -> Result<i32, PgError> {
    wire.run("BEGIN").await?;
    wire.run(LOCK).await?;
    // Whoever may only use what is there must not be asked to create it.
    if wire.query(STARTED, vec![param(format!("{}.migration", quoted(schema)))]).await?.is_empty() {
        let start = format!(
            "CREATE SCHEMA IF NOT EXISTS {}; CREATE TABLE IF NOT EXISTS migration (version integer PRIMARY KEY)",
            quoted(schema)
        );
        wire.run(&start).await?;
    }
    let mut version = current(wire).await?;
    for (step, number) in STEPS.iter().zip(1..) {
        if version < number {
            wire.run(step).await?;
            wire.query(RECORD, vec![param(number)]).await?;
            version = number;
        }
    }
    wire.run("COMMIT").await?;
    Ok(version)
}

async fn current(wire: &mut Wire) -> Result<i32, PgError> {
    let rows = wire.query(VERSION, Vec::new()).await?;
    let row = rows.first().ok_or_else(|| Damaged::new("migration", "no version"))?;
    Ok(row.try_get(0)?)
}
