//! Hints from process to process: a commit publishes what it touched, and one connection of
//! each process listens.
//!
//! Failure modes: whatever is lost on the way costs a poll interval, since everybody polls
//! besides. A listener that lost its connection gives every hint when it is back. A connection that takes what it is
//! told and does not answer is lost, too, whatever it was told.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use futures_util::StreamExt;
use redis::RedisError;
use redis::aio::PubSubSink;
use tokio::task::JoinHandle;

use super::place::Place;
use crate::store::loan::told::{self, Patience};
use crate::store::{Hints, Topic};

/// More topics than this are told as all of them.
const TOPICS_MAX: usize = 256;

/// The task that listens; it ends with the store.
pub(super) struct Ear(JoinHandle<()>);

impl Drop for Ear {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Ear {
    /// Listens for the process with this epoch, which need not hear of itself.
    pub(super) fn open(place: Place, channel: String, epoch: u64, patience: Patience, hints: &Arc<Hints>) -> Ear {
        Ear(tokio::spawn(listen(place, channel, epoch, patience, Arc::downgrade(hints))))
    }
}

async fn listen(place: Place, channel: String, epoch: u64, patience: Patience, hints: Weak<Hints>) {
    for node in 0.. {
        if let Err(error) = listen_once(&place, node, &channel, epoch, patience, &hints).await {
            tracing::warn!(%error, "hints from other processes are lost; polling goes on");
        }
        if hints.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(told::RECONNECT).await;
    }
}

/// Gives hints as they come, until the connection breaks. Any node hears of all.
async fn listen_once(
    place: &Place,
    node: usize,
    channel: &str,
    epoch: u64,
    patience: Patience,
    hints: &Weak<Hints>,
) -> Result<(), RedisError> {
    let client = place.client(node)?;
    let (mut ask, mut heard) = answer(patience, client.get_async_pubsub()).await?.split();
    let receive = async {
        while let (Some(message), Some(hints)) = (heard.next().await, hints.upgrade()) {
            told::give(&hints, &message.get_payload::<String>()?, epoch);
        }
        Ok(())
    };
    let ask = async {
        answer(patience, ask.subscribe(channel)).await?;
        // What was told before is lost: everybody looks once.
        if let Some(hints) = hints.upgrade() {
            hints.give_all();
        }
        beat(&mut ask, patience).await
    };
    tokio::select! {
        ended = receive => ended,
        ended = ask => ended,
    }
}

/// Asks again and again whether the server is there.
async fn beat(ask: &mut PubSubSink, patience: Patience) -> Result<(), RedisError> {
    loop {
        tokio::time::sleep(patience.unasked).await;
        answer(patience, ask.ping::<redis::Value>()).await?;
    }
}

/// What the server answers, unless it is silent.
async fn answer<T>(patience: Patience, call: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    tokio::time::timeout(patience.asked, call).await.map_err(std::io::Error::from)?
}

/// What the process with this epoch tells of these topics. Every commit is news for whoever
/// reads the journal.
pub(super) fn message(topics: &BTreeSet<Topic>, epoch: u64) -> String {
    if topics.len() > TOPICS_MAX {
        return told::everything(epoch);
    }
    topics.iter().fold(epoch.to_string(), |message, topic| format!("{message}\n{}", told::line(topic)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::words::RouteName;

    fn inbox(n: usize) -> Topic {
        Topic::Inbox(RouteName::new(&format!("route-{n}")).unwrap())
    }

    #[test]
    fn messages_are_bounded() {
        let topics = |count| (0..count).map(inbox).collect();
        assert_eq!(message(&BTreeSet::new(), 7), "7");
        assert_eq!(message(&topics(1), 7), "7\ninbox route-0");
        assert_eq!(message(&topics(TOPICS_MAX), 7).lines().count(), 1 + TOPICS_MAX);
        assert_eq!(message(&topics(TOPICS_MAX + 1), 7), "7\n*");
    }
}
