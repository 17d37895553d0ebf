//! Whether there is a store of this name.

use super::RedisStore;
use crate::store::condition::{Condition, place};
use crate::store::{Options, StoreError};

/// Asks the server. No release has another format, so none is brought up to date; a server that does not keep what it acknowledges is
/// refused.
pub(in crate::store) async fn condition(url: &str) -> Result<Condition, StoreError> {
    let server = RedisStore::new(url, Options::default())?.server;
    let kinds = server.kinds().await?;
    server.check(false).await?;
    Ok(match kinds.is_empty() {
        true => Condition::Missing { place: place(url, &format!("store {}", server.place.name)) },
        false => Condition::Ready,
    })
}
