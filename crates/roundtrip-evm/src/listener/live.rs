//! News of a chain over a WebSocket: when to look, never what is there.
//!
//! The subscription is made first, and then the chain is looked at, up to where it is live:
//! so nothing falls between the two. What a message says is not believed, a new head and a
//! log that was `removed` alike: each only brings the next look forward, which checks parents
//! as ever. So a connection that is lost, late or lying costs time and never an event, and
//! without one polling goes on alone.

use std::fmt;

use serde_json::json;
use tokio::sync::Mutex;

use super::subscription::{Subscription, Told};
use super::watch::{Watch, filter};
use crate::rpc::BadUrl;

/// A node's WebSocket.
pub(super) struct Live {
    name: String,
    subscription: Mutex<Subscription>,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Live({})", self.name)
    }
}

impl Live {
    /// The WebSocket at this URL, for what is watched.
    pub(super) fn new(url: &str, watches: &[Watch]) -> Result<Live, BadUrl> {
        let wanted = [json!(["newHeads"]), json!(["logs", filter(json!({}), watches)])];
        let subscription = Subscription::new(url, &wanted)?;
        Ok(Live { name: subscription.name(), subscription: Mutex::new(subscription) })
    }

    /// Where it is, less what may be a key.
    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    /// Whether it takes the subscriptions.
    pub(super) async fn probe(&self) -> Result<(), String> {
        self.subscription.lock().await.probe().await
    }

    /// Ends when there may be something new.
    pub(super) async fn news(&self) {
        let mut subscription = self.subscription.lock().await;
        // What came before a subscription is read by the next look.
        if let Told::Said(said) = subscription.next().await {
            if said["removed"] == true {
                tracing::debug!("a log was removed: a reorg is looked for");
            }
            // One look is enough for all of them.
            while subscription.more().is_some() {}
        }
    }
}
