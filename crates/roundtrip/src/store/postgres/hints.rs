//! Hints from process to process: one connection that listens, one that notifies.
//!
//! ```text
//!   tick ──▶ topics that are pending ──▶ notify, outside of any tick ──▶ listen ──▶ Hints
//! ```
//!
//! A notification in the transaction that writes would hold up all others until its commit;
//! on a connection of its own it holds up nobody. What is touched while one notification is
//! under way, and for a moment after it, goes with the next.
//!
//! Failure modes: whatever is lost on the way costs a poll interval, since everybody polls
//! besides. A listener that lost its connection gives every hint when it is back. A connection that takes what it is
//! told and does not answer is lost, too, whatever it was told.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, Statement};

use super::Topic;
use super::tls::Dial;
use super::wire::PgError;
use crate::store::Hints;
use crate::store::loan::told::{self, Patience};

/// How long the next notification waits after one: each wakes every listener on the server.
const PAUSE: Duration = Duration::from_millis(5);
/// More topics than this are told as all of them.
const TOPICS_MAX: usize = 1024;
/// How much one notification carries; the server takes fewer than 8000 bytes.
const NOTIFICATION_BYTES_MAX: usize = 7000;

/// What is still to be told to other processes.
#[derive(Default)]
struct Pending {
    topics: Mutex<BTreeSet<Topic>>,
    more: Notify,
}

/// The two tasks; they end with the store.
pub(super) struct Bells {
    pending: Arc<Pending>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Bells {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Bells {
    /// Starts listening and notifying for the process with this epoch.
    pub(super) fn hang(dial: &Dial, schema: &str, epoch: u64, patience: Patience, hints: &Arc<Hints>) -> Bells {
        let channel = channel(schema);
        let pending = Arc::new(Pending::default());
        let listen = listen(dial.clone(), channel.clone(), epoch, patience, Arc::downgrade(hints));
        let notify = notify(dial.clone(), channel, epoch, patience, pending.clone());
        Bells { pending, tasks: [tokio::spawn(listen), tokio::spawn(notify)] }
    }

    /// Lets other processes know, soon.
    pub(super) fn ring(&self, touched: &BTreeSet<Topic>) {
        let mut topics = self.pending.topics.lock().unwrap_or_else(PoisonError::into_inner);
        // Every tick is news for whoever reads the journal.
        topics.insert(Topic::Journal);
        topics.extend(touched.iter().take(TOPICS_MAX + 1).cloned());
        self.pending.more.notify_one();
    }
}

/// A name that fits, whatever the schema's is.
fn channel(schema: &str) -> String {
    let hash = blake3::hash(schema.as_bytes()).to_hex();
    format!("roundtrip_{}", &hash[..16])
}

async fn listen(dial: Dial, channel: String, epoch: u64, patience: Patience, hints: Weak<Hints>) {
    loop {
        if let Err(error) = listen_once(&dial, &channel, epoch, patience, &hints).await {
            tracing::warn!(%error, "hints from other processes are lost; polling goes on");
        }
        if hints.strong_count() == 0 {
            return;
        }
        tokio::time::sleep(told::RECONNECT).await;
    }
}

/// Gives hints as they come, until the connection breaks.
async fn listen_once(
    dial: &Dial,
    channel: &str,
    epoch: u64,
    patience: Patience,
    hints: &Weak<Hints>,
) -> Result<(), PgError> {
    let (client, mut connection) = dial.connect().await?;
    let receive = async {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let (AsyncMessage::Notification(heard), Some(hints)) = (message?, hints.upgrade()) {
                told::give(&hints, heard.payload(), epoch);
            }
        }
        Ok(())
    };
    let ask = async {
        answer(patience, client.batch_execute(&format!("LISTEN {channel}"))).await?;
        // What was told before is lost: everybody looks once.
        if let Some(hints) = hints.upgrade() {
            hints.give_all();
        }
        beat(&client, patience).await
    };
    tokio::select! {
        ended = receive => ended,
        ended = ask => ended,
    }
}

/// Asks again and again whether the server is there.
async fn beat(client: &Client, patience: Patience) -> Result<(), PgError> {
    loop {
        tokio::time::sleep(patience.unasked).await;
        answer(patience, client.batch_execute("SELECT")).await?;
    }
}

/// What the server answers whoever listens or notifies, unless it is silent.
pub(super) async fn answer<T>(
    patience: Patience,
    call: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, PgError> {
    let answered = tokio::time::timeout(patience.asked, call).await;
    Ok(answered.map_err(|_silent| PgError::Silent { within: patience.asked })??)
}

/// The statement that notifies on a connection that does nothing else: what a crash forgets is no loss.
pub(super) async fn ready_to_notify(
    client: &Client,
    patience: Patience,
    sql: &'static str,
) -> Result<Statement, PgError> {
    answer(patience, client.batch_execute("SET synchronous_commit = off")).await?;
    answer(patience, client.prepare(sql)).await
}

async fn notify(dial: Dial, channel: String, epoch: u64, patience: Patience, pending: Arc<Pending>) {
    loop {
        pending.more.notified().await;
        if let Err(error) = notify_all(&dial, &channel, epoch, patience, &pending).await {
            tracing::warn!(%error, "hints to other processes are lost; they poll");
        }
        tokio::time::sleep(told::RECONNECT).await;
    }
}

/// Tells what is pending, again and again, until the connection breaks.
async fn notify_all(
    dial: &Dial,
    channel: &str,
    epoch: u64,
    patience: Patience,
    pending: &Pending,
) -> Result<(), PgError> {
    let (client, connection) = dial.connect().await?;
    let tell = async {
        let statement = ready_to_notify(&client, patience, "SELECT pg_notify($1, $2)").await?;
        loop {
            let topics = std::mem::take(&mut *pending.topics.lock().unwrap_or_else(PoisonError::into_inner));
            for message in messages(&topics, epoch) {
                answer(patience, client.execute(&statement, &[&channel, &message])).await?;
            }
            tokio::time::sleep(PAUSE).await;
            pending.more.notified().await;
        }
    };
    tokio::select! {
        ended = connection => Ok(ended?),
        ended = tell => ended,
    }
}

/// These topics as notifications.
fn messages(topics: &BTreeSet<Topic>, epoch: u64) -> Vec<String> {
    if topics.len() > TOPICS_MAX {
        return vec![told::everything(epoch)];
    }
    let mut messages: Vec<String> = Vec::new();
    for topic in topics {
        let line = told::line(topic);
        match messages.last_mut().filter(|last| last.len() + line.len() < NOTIFICATION_BYTES_MAX) {
            Some(last) => *last = format!("{last}\n{line}"),
            None => messages.push(format!("{epoch}\n{line}")),
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::words::RouteName;

    fn inbox(n: usize) -> Topic {
        Topic::Inbox(RouteName::new(&format!("{n:0>120}")).unwrap())
    }

    #[test]
    fn notifications_are_bounded() {
        let topics: BTreeSet<Topic> = (0..TOPICS_MAX).map(inbox).collect();
        let told = messages(&topics, 7);
        assert!(told.iter().all(|told| told.len() < 8000 && told.starts_with("7\n")));
        let lines: usize = told.iter().map(|told| told.lines().count() - 1).sum();
        assert_eq!(lines, TOPICS_MAX);
        let too_many: BTreeSet<Topic> = (0..=TOPICS_MAX).map(inbox).collect();
        assert_eq!(messages(&too_many, 7), ["7\n*"]);
        assert_eq!(messages(&BTreeSet::new(), 7), Vec::<String>::new());
    }
}
