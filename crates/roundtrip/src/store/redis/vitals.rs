//! What the server says about itself.

use super::RedisStore;
use super::check::{line, settings};
use super::link::Link;
use crate::store::vitals::RedisVitals;
use crate::store::{Options, StoreError};

/// Asks the server. A store that is not there is refused.
pub(in crate::store) async fn vitals(url: &str) -> Result<RedisVitals, StoreError> {
    let server = RedisStore::new(url, Options::default())?.server;
    if server.kinds().await?.is_empty() {
        let reason = format!("there is none of the name {}", server.place.name);
        return Err(StoreError::NotAStore { path: server.name, reason });
    }
    let (memory, log, replicas) = (
        info(&server.reading, "memory").await,
        info(&server.reading, "persistence").await,
        info(&server.reading, "replication").await,
    );
    let number = |info: &str, name: &str| line(info, name).and_then(|text| text.parse().ok()).unwrap_or(0);
    let asked = ["appendonly", "appendfsync", "maxmemory-policy"];
    let config = server.reading.run(redis::cmd("CONFIG").arg("GET").arg(&asked)).await.ok();
    Ok(RedisVitals {
        settings: config.and_then(settings).unwrap_or_default(),
        used_bytes: number(&memory, "used_memory:"),
        max_bytes: number(&memory, "maxmemory:"),
        log_is_written: line(&log, "aof_last_write_status:").is_none_or(|status| status == "ok"),
        replicas: number(&replicas, "connected_slaves:"),
    })
}

/// A part of what it says; nothing, if it may not be asked.
async fn info(link: &Link, part: &str) -> String {
    let said = link.run(redis::cmd("INFO").arg(part)).await.ok();
    said.and_then(|said| redis::from_redis_value(said).ok()).unwrap_or_default()
}
