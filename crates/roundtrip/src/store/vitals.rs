//! What a store's file or server says about itself, for whoever looks whether all is well. It
//! is read beside whoever uses the store, and changes nothing.

use std::collections::BTreeMap;

use super::{StoreError, without_password};

/// What a store says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vitals {
    /// It is in the memory of its process, and says nothing.
    Memory,
    /// Of an embedded store.
    Sqlite(SqliteVitals),
    /// Of a store on a Postgres server.
    Postgres(PostgresVitals),
    /// Of a store on a Redis server.
    Redis(RedisVitals),
}

/// What the file of an embedded store is like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SqliteVitals {
    /// Where it is.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// How much of it is free: new rows go there first.
    pub free_bytes: u64,
    /// How long its log is, which is copied back now and then.
    pub log_bytes: u64,
    /// `wal`, or somebody has changed it.
    pub journal_mode: String,
}

/// What a Postgres server says about itself and the store's tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PostgresVitals {
    /// `fsync`, `synchronous_commit`, `full_page_writes`, `autovacuum`, `max_connections`.
    pub settings: BTreeMap<String, String>,
    /// The tables, largest first.
    pub tables: Vec<TableVitals>,
    /// For how long the oldest snapshot is held that keeps the server from clearing up, in seconds.
    pub oldest_snapshot_s: u64,
    /// Replication slots that nobody reads; they keep the server from clearing up.
    pub idle_slots: u64,
    /// Connections of all users.
    pub connections: u64,
}

/// What a table is like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableVitals {
    /// Its name.
    pub name: String,
    /// How many rows there are, as the server estimates.
    pub rows: u64,
    /// How many rows are dead and not cleared up.
    pub dead_rows: u64,
    /// How much it takes, with its indexes.
    pub bytes: u64,
}

/// What a Redis server says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedisVitals {
    /// `appendonly`, `appendfsync`, `maxmemory-policy`; nothing, if it may not be asked.
    pub settings: BTreeMap<String, String>,
    /// How much memory it uses.
    pub used_bytes: u64,
    /// How much it may use; 0 for as much as there is.
    pub max_bytes: u64,
    /// Whether its last write to the log went well.
    pub log_is_written: bool,
    /// How many replicas follow it.
    pub replicas: u64,
}

/// What the store at this URL says about itself. Needs a tokio runtime.
pub async fn vitals(url: &str) -> Result<Vitals, StoreError> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Vitals::Memory),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) if !path.trim_start_matches('/').is_empty() => {
            let path = std::path::PathBuf::from(path.strip_prefix("//").unwrap_or(path));
            let looked = tokio::task::spawn_blocking(move || super::sqlite::vitals(&path)).await;
            looked.unwrap_or(Err(StoreError::Unknown)).map(Vitals::Sqlite)
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => super::postgres::vitals(url).await.map(Vitals::Postgres),
        #[cfg(feature = "redis")]
        Some((scheme, _)) if super::RedisStore::SCHEMES.contains(&scheme) => {
            super::redis::vitals(url).await.map(Vitals::Redis)
        }
        _ => Err(StoreError::BadUrl { url: without_password(url) }),
    }
}
