//! Notifications under names of the user's choice, outside of all ticks.
//!
//! ```text
//!   tick ──▶ what to tell, bounded ──▶ one connection that notifies, some at a time
//! ```
//!
//! A NOTIFY within the transaction that writes takes a lock of the whole server at its commit:
//! every commit would wait for every other. So it comes after, and what a crash or a broken
//! connection loses is lost; whoever listens looks now and then besides. A connection that takes what it is told and does
//! not answer is lost, too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::hints::{answer, ready_to_notify};
use super::tls::Dial;
use super::wire::PgError;
use crate::inbox::RouteNo;
use crate::store::loan::told::{self, Patience};
use crate::store::projection::{Announcement, Facts, Step};
use crate::words::RouteName;

/// How long the next notifications wait after some: each wakes every listener on the server.
const PAUSE: Duration = Duration::from_millis(5);
/// More than this for one channel is told as one that says nothing.
const TOLD_MAX: usize = 4096;
/// Longest text; the server takes fewer than 8000 bytes.
const TEXT_BYTES_MAX: usize = 7900;

const NOTIFY: &str = "SELECT pg_notify(channel, text) FROM unnest($1::text[], $2::text[]) told(channel, text)";

/// What is to be told, by channel.
#[derive(Default)]
struct Pending {
    told: Mutex<BTreeMap<String, Vec<String>>>,
    more: Notify,
}

/// The task that notifies; it ends with the store.
pub(super) struct Herald {
    pending: Arc<Pending>,
    task: JoinHandle<()>,
}

impl Drop for Herald {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Herald {
    pub(super) fn start(dial: &Dial, patience: Patience) -> Herald {
        let pending = Arc::new(Pending::default());
        Herald { task: tokio::spawn(notify(dial.clone(), patience, pending.clone())), pending }
    }

    /// Tells what these are, soon.
    pub(super) fn tell(&self, texts: Vec<(&str, String)>) {
        if texts.is_empty() {
            return;
        }
        let mut told = self.pending.told.lock().unwrap_or_else(PoisonError::into_inner);
        texts.into_iter().for_each(|(channel, text)| add(&mut told, channel, text));
        self.pending.more.notify_one();
    }
}

fn add(told: &mut BTreeMap<String, Vec<String>>, channel: &str, text: String) {
    let of = told.entry(channel.to_owned()).or_default();
    match of.len() < TOLD_MAX && text.len() <= TEXT_BYTES_MAX {
        true => of.push(text),
        // Whoever hears nothing in particular looks at everything.
        false => *of = vec![String::new()],
    }
}

/// What these steps are to be told as.
pub(super) fn texts<'a>(
    announcements: &'a [Announcement],
    routes: &BTreeMap<RouteNo, &RouteName>,
    steps: &[Step<'_>],
) -> Vec<(&'a str, String)> {
    let mut texts = Vec::new();
    for step in steps.iter().filter(|step| step.changes_stage()) {
        let Some(route) = routes.get(&step.after.request.route) else { continue };
        let of_route = announcements.iter().filter(|told| told.route == **route);
        for told in of_route.filter(|told| told.states.has(step.after.stage)) {
            let request = step.after.request;
            let facts = Facts {
                route,
                id: request.id,
                generation: request.generation,
                revision: request.revision,
                state: told.words.of(step.after.stage),
                record: Some(request),
                request: None,
                response: None,
            };
            let text = told.payload.as_ref().and_then(|payload| payload.render(&facts)).unwrap_or_default();
            texts.push((told.channel.as_str(), String::from_utf8_lossy(&text).into_owned()));
        }
    }
    texts
}

async fn notify(dial: Dial, patience: Patience, pending: Arc<Pending>) {
    loop {
        pending.more.notified().await;
        if let Err(error) = notify_all(&dial, patience, &pending).await {
            tracing::warn!(%error, "announcements are lost; whoever listens looks now and then besides");
        }
        tokio::time::sleep(told::RECONNECT).await;
    }
}

/// Tells what is pending, again and again, until the connection breaks.
async fn notify_all(dial: &Dial, patience: Patience, pending: &Pending) -> Result<(), PgError> {
    let (client, connection) = dial.connect().await?;
    let tell = async {
        let statement = ready_to_notify(&client, patience, NOTIFY).await?;
        loop {
            let told = std::mem::take(&mut *pending.told.lock().unwrap_or_else(PoisonError::into_inner));
            let each = told
                .into_iter()
                .flat_map(|(channel, texts)| texts.into_iter().map(move |text| (channel.clone(), text)));
            let (channels, texts): (Vec<String>, Vec<String>) = each.unzip();
            if !channels.is_empty() {
                answer(patience, client.execute(&statement, &[&channels, &texts])).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_bounded() {
        let mut told = BTreeMap::new();
        for n in 0..TOLD_MAX {
            add(&mut told, "news", n.to_string());
        }
        assert_eq!(told["news"].len(), TOLD_MAX);
        add(&mut told, "news", "one more".to_owned());
        assert_eq!(told["news"], [""]);
        add(&mut told, "long", "x".repeat(TEXT_BYTES_MAX + 1));
        assert_eq!(told["long"], [""]);
    }
}
