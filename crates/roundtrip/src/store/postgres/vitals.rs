//! What the server says about itself and the store's tables.

use super::PostgresStore;
use super::wire::{PgError, Wire, uint};
use crate::store::vitals::{PostgresVitals, TableVitals};
use crate::store::{Options, StoreError};

const IS_STORE: &str = "SELECT to_regclass('numbers') IS NOT NULL";
const SETTINGS: &str = "
SELECT name, setting FROM pg_settings
WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'autovacuum', 'max_connections')";
const TABLES: &str = "
SELECT relname::text, n_live_tup, n_dead_tup, pg_total_relation_size(relid)
FROM pg_stat_user_tables WHERE schemaname = current_schema() ORDER BY 4 DESC";
/// Whoever reads here holds a snapshot too.
const SNAPSHOTS: &str = "
SELECT coalesce(extract(epoch FROM clock_timestamp() - min(xact_start)), 0)::bigint
FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()";
const SLOTS: &str = "SELECT count(*) FROM pg_replication_slots WHERE NOT active";
const CONNECTIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";

/// Asks the server.
pub(in crate::store) async fn vitals(url: &str) -> Result<PostgresVitals, StoreError> {
    let server = PostgresStore::new(url, Options::default())?.server;
    let mut wire = server.connect().await?;
    let (path, schema) = (server.name.clone(), server.schema.clone());
    match ask(&mut wire).await.map_err(|error| error.at(&server.name))? {
        Some(vitals) => Ok(vitals),
        None => Err(StoreError::NotAStore { path, reason: format!("there is nothing in the schema {schema}") }),
    }
}

async fn ask(wire: &mut Wire) -> Result<Option<PostgresVitals>, PgError> {
    let rows = wire.query(IS_STORE, Vec::new()).await?;
    let is_store = rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false);
    if !is_store {
        return Ok(None);
    }
    let mut vitals = PostgresVitals::default();
    for row in wire.query(SETTINGS, Vec::new()).await? {
        vitals.settings.insert(row.try_get(0)?, row.try_get(1)?);
    }
    for row in wire.query(TABLES, Vec::new()).await? {
        let number = |at: usize| row.try_get(at).map(uint);
        let (name, rows, dead_rows, bytes) = (row.try_get(0)?, number(1)?, number(2)?, number(3)?);
        vitals.tables.push(TableVitals { name, rows, dead_rows, bytes });
    }
    for (sql, into) in [
        (SNAPSHOTS, &mut vitals.oldest_snapshot_s),
        (SLOTS, &mut vitals.idle_slots),
        (CONNECTIONS, &mut vitals.connections),
    ] {
        if let Some(row) = wire.query(sql, Vec::new()).await?.first() {
            *into = uint(row.try_get(0)?);
        }
    }
    Ok(Some(vitals))
}
