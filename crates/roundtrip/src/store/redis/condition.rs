//! Whether there is a store of this name.

use super::RedisStore;
use crate::store::condition::{Condition, place};
use crate::store::{Options, StoreError};

/// Asks the server. There is one format so far, so none is older; where a store would have to be made, a server that
/// could not keep it is refused.
pub(in crate::store) async fn condition(url: &str) -> Result<Condition, StoreError> {
    let server = RedisStore::new(url, Options::default())?.server;
    if !server.kinds().await?.is_empty() {
        return Ok(Condition::Ready);
    }
    server.check(false).await?;
    Ok(Condition::Missing { place: place(url, &format!("store {}", server.place.name)) })
}
