//! Whether there is a store at a URL, for whoever only looks: opening one makes it, or brings it to this version.

use super::{StoreError, without_password};

/// What there is at a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No store; the first start makes it.
    Missing {
        /// Where it would be.
        place: String,
    },
    /// A store of an older version; a start brings it to this one, and programs of that version may have to stop then.
    Older {
        /// Where it is.
        place: String,
        /// Its version.
        found: u32,
        /// The version that this program wants.
        known: u32,
    },
    /// A store that this program can open.
    Ready,
}

/// Looks what there is at this URL, and changes nothing. What cannot hold a store, or holds one of a newer version,
/// is refused as a start would. Needs a tokio runtime.
pub async fn condition(url: &str) -> Result<Condition, StoreError> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Condition::Ready),
        #[cfg(feature = "sqlite")]
        Some(("sqlite", path)) if !path.trim_start_matches('/').is_empty() => {
            let path = path.strip_prefix("//").unwrap_or(path);
            // What is in the file is told by whoever opens it, who changes nothing of another's.
            match std::fs::metadata(path) {
                Ok(file) if file.len() > 0 => Ok(Condition::Ready),
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(StoreError::Io { path: path.to_owned(), reason: error.to_string() })
                }
                Ok(_) | Err(_) => Ok(Condition::Missing { place: path.to_owned() }),
            }
        }
        #[cfg(feature = "postgres")]
        Some(("postgres" | "postgresql", _)) => super::postgres::condition(url).await,
        #[cfg(feature = "redis")]
        Some((scheme, _)) if super::RedisStore::SCHEMES.contains(&scheme) => super::redis::condition(url).await,
        _ => Err(StoreError::BadUrl { url: without_password(url) }),
    }
}

/// A store's place: the URL, and which of the stores there it is.
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(in crate::store) fn place(url: &str, which: &str) -> String {
    format!("{} ({which})", without_password(url))
}
