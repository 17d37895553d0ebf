//! Hints from process to process: a commit publishes what it touched, and one connection of
//! each process listens.
//!
//! Failure modes: whatever is lost on the way costs a poll interval, since everybody polls
//! besides. A listener that lost its connection gives every hint when it is back.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use redis::RedisError;
use redis::aio::PubSubSink;
use tokio::task::JoinHandle;

use super::place::Place;
use crate::store::{Hints, Topic};
use crate::words::{Destination, RouteName};

/// How often a silent connection is asked whether it is still there.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long it may take to answer.
const HEARTBEAT_MAX: Duration = Duration::from_secs(5);
/// How long a broken connection is left alone.
const RECONNECT: Duration = Duration::from_millis(500);
/// More topics than this are told as all of them.
const TOPICS_MAX: usize = 256;
/// Stands for all topics.
const ALL: &str = "*";

/// The task that listens; it ends with the store.
pub(super) struct Ear(JoinHandle<()>);

impl Drop for Ear {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Ear {
    /// Listens for the process with this epoch, which need not hear of itself.
    pub(super) fn open(place: Place, channel: String, epoch: u64, hints: &Arc<Hints>) -> Ear {
        Ear(tokio::spawn(listen(place, channel, epoch, Arc::downgrade(hints))))
    }
}

async fn listen(place: Place, channel: String, epoch: u64, hints: Weak<Hints>) {
    for node in 0.. {
        if let Err(error) = listen_once(&place, node, &channel, epoch, &hints).await {
            tracing::warn!(%error, "hints from other processes are lost; polling goes on");
        }
        if hints.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// Gives hints as they come, until the connection breaks. Any node hears of all.
async fn listen_once(
    place: &Place,
    node: usize,
    channel: &str,
    epoch: u64,
    hints: &Weak<Hints>,
) -> Result<(), RedisError> {
    let (mut ask, mut told) = place.client(node)?.get_async_pubsub().await?.split();
    let receive = async {
        while let (Some(message), Some(hints)) = (told.next().await, hints.upgrade()) {
            give(&hints, &message.get_payload::<String>()?, epoch);
        }
        Ok(())
    };
    let ask = async {
        ask.subscribe(channel).await?;
        // What was told before is lost: everybody looks once.
        if let Some(hints) = hints.upgrade() {
            hints.give_all();
        }
        beat(&mut ask).await
    };
    tokio::select! {
        ended = receive => ended,
        ended = ask => ended,
    }
}

/// Asks again and again whether the server is there; ends when it is not.
async fn beat(ask: &mut PubSubSink) -> Result<(), RedisError> {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        match tokio::time::timeout(HEARTBEAT_MAX, ask.ping::<redis::Value>()).await {
            Ok(answer) => drop(answer?),
            Err(_silent) => return Ok(()),
        }
    }
}

fn give(hints: &Hints, told: &str, own_epoch: u64) {
    let mut lines = told.lines();
    if lines.next() == Some(own_epoch.to_string().as_str()) {
        return;
    }
    match lines.map(read).collect::<Option<Vec<Topic>>>() {
        Some(topics) => hints.give(topics),
        None => hints.give_all(),
    }
}

/// What the process with this epoch tells of these topics. Every commit is news for whoever
/// reads the journal.
pub(super) fn message(topics: &BTreeSet<Topic>, epoch: u64) -> String {
    if topics.len() > TOPICS_MAX {
        return format!("{epoch}\n{ALL}");
    }
    topics.iter().fold(epoch.to_string(), |message, topic| format!("{message}\n{}", written(topic)))
}

fn written(topic: &Topic) -> String {
    match topic {
        Topic::Inbox(route) => format!("inbox {route}"),
        Topic::Outbox(destination) => format!("outbox {destination}"),
        Topic::Amendments => "amendments".to_owned(),
        Topic::Journal => "journal".to_owned(),
    }
}

/// The topic of a line; none, if it stands for all or comes from a newer version.
fn read(line: &str) -> Option<Topic> {
    match line.split_once(' ') {
        Some(("inbox", route)) => RouteName::new(route).ok().map(Topic::Inbox),
        Some(("outbox", destination)) => Destination::new(destination).ok().map(Topic::Outbox),
        None if line == "amendments" => Some(Topic::Amendments),
        None if line == "journal" => Some(Topic::Journal),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn inbox(n: usize) -> Topic {
        Topic::Inbox(RouteName::new(&format!("route-{n}")).unwrap())
    }

    #[test]
    fn topics_survive_the_wire() {
        let outbox = Topic::Outbox(Destination::new("chain").unwrap());
        for topic in [inbox(1), outbox, Topic::Amendments, Topic::Journal] {
            assert_eq!(read(&written(&topic)), Some(topic));
        }
        assert_eq!((read(ALL), read("weather fine")), (None, None));
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
