//! Whether there is a store in the schema.

use super::wire::{PgError, Wire};
use super::{PostgresStore, migrate};
use crate::store::condition::{Condition, place};
use crate::store::{Options, StoreError};

const IS_STARTED: &str = "SELECT FROM pg_class WHERE oid = to_regclass('migration')";

/// Asks the server.
pub(in crate::store) async fn condition(url: &str) -> Result<Condition, StoreError> {
    let server = PostgresStore::new(url, Options::default())?.server;
    let mut wire = server.connect().await?;
    let place = || place(url, &format!("schema {}", server.schema));
    let (found, known) = (version(&mut wire).await.map_err(|error| error.at(&server.name))?, migrate::KNOWN);
    Ok(match found {
        0 => Condition::Missing { place: place() },
        found if found < known => Condition::Older { place: place(), found: number(found), known: number(known) },
        _ => Condition::Ready,
    })
}

pub(super) fn number(version: i32) -> u32 {
    u32::try_from(version).unwrap_or(0)
}

/// The schema's version; 0, if there is none. One that needs a newer program is refused.
pub(super) async fn version(wire: &mut Wire) -> Result<i32, PgError> {
    if wire.query(IS_STARTED, Vec::new()).await?.is_empty() {
        return Ok(0);
    }
    let found = migrate::current(wire).await?;
    let (needs, known) = (if found > 0 { migrate::needs(wire).await? } else { 0 }, migrate::KNOWN);
    match needs > known {
        true => Err(PgError::Newer { needs, known }),
        false => Ok(found),
    }
}
