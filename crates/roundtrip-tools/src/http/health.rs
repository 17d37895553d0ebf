//! Whether a tool is well: its `/health` is asked every so often, and it is given work only
//! while it says yes.

use std::time::Duration;

use roundtrip::station::{Shutdown, StationError};
use tokio::sync::watch;

use crate::presence::Presence;
use crate::web::Web;

/// How long a tool may take to say how it is.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How much of what it says is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Watches a tool.
pub struct HealthWatch {
    web: Web,
    url: String,
    every: Duration,
    say: watch::Sender<bool>,
    presence: Option<Presence>,
}

impl HealthWatch {
    /// Asks this URL so often; the receiver hears whether the tool is well. It is not, until it
    /// has said so.
    pub fn new(web: Web, url: &str, every: Duration) -> (HealthWatch, watch::Receiver<bool>) {
        let (say, hear) = watch::channel(false);
        (HealthWatch { web, url: url.to_owned(), every, say, presence: None }, hear)
    }

    /// Tells here, too, what it finds.
    #[must_use]
    pub fn telling(mut self, presence: Presence) -> HealthWatch {
        self.presence = Some(presence);
        self
    }

    /// Whether the tool is well; if not, why.
    pub async fn ask(&self) -> Result<(), String> {
        let call = self.web.get(&self.url, ANSWER_BYTES_MAX);
        match tokio::time::timeout(ANSWER_WITHIN, call).await {
            Err(_late) => Err(format!("no answer within {} s", ANSWER_WITHIN.as_secs())),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(answer)) if (200..300).contains(&answer.status) => Ok(()),
            Ok(Ok(answer)) => Err(format!("it answered {}", answer.status)),
        }
    }

    /// Watches until told to stop.
    pub async fn run(self, route: String, shutdown: Shutdown) -> Result<(), StationError> {
        let mut before = None;
        loop {
            let found = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                found = self.ask() => found,
            };
            let well = found.is_ok();
            if before != Some(well) {
                match &found {
                    Ok(()) => tracing::info!(%route, "the tool is well, and is given work"),
                    Err(why) => tracing::warn!(%route, why, "the tool is not well, and is given no work until it is"),
                }
            }
            before = Some(well);
            if let Some(presence) = &self.presence {
                presence.health(found.as_ref().map(|_well| ()).map_err(String::as_str));
            }
            self.say.send_replace(well);
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                () = tokio::time::sleep(self.every) => {}
            }
        }
    }
}
