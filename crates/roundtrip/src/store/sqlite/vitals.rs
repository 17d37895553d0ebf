//! What the file is like, read beside its owner.

use std::path::Path;

use super::file::{canonical, open_for_reading, store_error};
use crate::store::StoreError;
use crate::store::vitals::SqliteVitals;

/// Looks at the file.
pub(in crate::store) fn vitals(path: &Path) -> Result<SqliteVitals, StoreError> {
    let path = canonical(path)?;
    let conn = open_for_reading(&path)?;
    let fail = |error: rusqlite::Error| store_error(&path, &error);
    let number = |sql: &str| -> Result<u64, StoreError> {
        let value: i64 = conn.query_row(sql, [], |row| row.get(0)).map_err(fail)?;
        Ok(u64::try_from(value).unwrap_or(0))
    };
    let page = number("PRAGMA page_size")?;
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    Ok(SqliteVitals {
        bytes: number("PRAGMA page_count")? * page,
        free_bytes: number("PRAGMA freelist_count")? * page,
        log_bytes: std::fs::metadata(&log).map_or(0, |log| log.len()),
        journal_mode: conn.query_row("PRAGMA journal_mode", [], |row| row.get(0)).map_err(fail)?,
        path: path.display().to_string(),
    })
}
