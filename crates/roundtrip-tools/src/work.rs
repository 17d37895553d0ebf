//! What the engine calls: from a request to a tool and back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use roundtrip::words::{Encoding, Payload};
use roundtrip::worker::{Failure, Handled, HandlerFuture, Job, RawHandler};
use roundtrip_evm::mapping::Mapping;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::errand::{Errand, Meaning, Times, Tool, Trouble};
use crate::prepare::Preparation;
use crate::presence::Presence;

/// The names of what is always known of a request: its id, and what it says.
pub const RESERVED: [&str; 2] = ["id", "request"];

/// How long all that is read before a call may take, if an attempt has the time.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// How long before the end of an attempt polling ends, if a tenth of the attempt is not less: so that an answer which is
/// not ready is no attempt that took too long.
const POLL_ENDS_BEFORE: Duration = Duration::from_secs(1);

/// Works on requests by asking a tool.
pub struct Work {
    preparations: Vec<Preparation>,
    input: Option<Mapping>,
    tool: Arc<dyn Tool>,
    already_done: Option<Value>,
    presence: Option<Presence>,
    read_within: Duration,
    poll_within: Option<Duration>,
}

impl Work {
    /// Asks this tool, with what requests say.
    pub fn new(tool: Arc<dyn Tool>) -> Work {
        Work {
            preparations: Vec::new(),
            input: None,
            tool,
            already_done: None,
            presence: None,
            read_within: READ_WITHIN,
            poll_within: None,
        }
    }

    /// Reads these first, in their order. Without a mapping the tool is then given all that is
    /// known: `request`, `id`, and what was found, by their names.
    #[must_use]
    pub fn prepared_by(mut self, preparations: Vec<Preparation>) -> Work {
        self.preparations = preparations;
        self
    }

    /// What the tool is given, made of what is known.
    #[must_use]
    pub fn with_input(mut self, input: Mapping) -> Work {
        self.input = Some(input);
        self
    }

    /// What is answered where the tool says that it did this before, and not what came of it;
    /// without it, such a request ends as answered elsewhere, without an answer.
    #[must_use]
    pub fn when_already_done(mut self, answer: Value) -> Work {
        self.already_done = Some(answer);
        self
    }

    /// Tells whether the tool can be asked, and what is read before it.
    #[must_use]
    pub fn telling(mut self, presence: Presence) -> Work {
        self.presence = Some(presence);
        self
    }

    /// An attempt has so long. What is read before the call has at most half of it, so that what cannot be read
    /// is known before the attempt is over, and costs none; an answer that is polled for and not ready is left to
    /// another attempt shortly before.
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> Work {
        self.read_within = READ_WITHIN.min(timeout / 2);
        self.poll_within = Some(timeout - POLL_ENDS_BEFORE.min(timeout / 10));
        self
    }

    async fn errand(&self, payload: &Payload, job: &Job) -> Result<Errand, Trouble> {
        let now = Instant::now();
        let times = Times {
            read_until: now + self.read_within,
            poll_until: self.poll_within.map(|poll_within| now + poll_within),
        };
        if payload.encoding != Encoding::Json {
            return Err(Trouble::fatal(format!("the request is {:?}, and the tool reads Json", payload.encoding)));
        }
        let request: Value = serde_json::from_slice(&payload.bytes)
            .map_err(|error| Trouble::fatal(format!("the request does not decode: {error}")))?;
        let mut document = json!({"id": job.id().to_string(), "request": request});
        for preparation in &self.preparations {
            let found = preparation.read(&document, times.read_until).await?;
            document[preparation.name.as_str()] = found;
        }
        let input = match &self.input {
            Some(mapping) => {
                let made = mapping.fill(&|root: &str| document.get(root));
                written(made.map_err(|why| Trouble::fatal(format!("no input can be made: {why}")))?)
            }
            None if self.preparations.is_empty() => (document["request"].clone(), payload.bytes.clone()),
            None => written(document.clone()),
        };
        Ok(Errand::of(job, document, input, times))
    }

    async fn ask(&self, payload: Payload, job: &Job) -> Result<Payload, Trouble> {
        let came = self.asked(payload, job).await;
        if let Some(presence) = &self.presence {
            match &came {
                // Whom one request names says nothing of the others.
                Err(Trouble { own: true, .. }) => {}
                Err(Trouble { meaning: Meaning::Unavailable, text, .. }) => presence.call(Err(text)),
                _ => presence.call(Ok(())),
            }
        }
        came
    }

    async fn asked(&self, payload: Payload, job: &Job) -> Result<Payload, Trouble> {
        let unchanged = self.input.is_none() && self.preparations.is_empty();
        if unchanged && self.tool.passes_on() {
            return Ok(payload);
        }
        let errand = self.errand(&payload, job).await?;
        self.tool.ask(&errand).await
    }
}

/// A value, and its text.
fn written(value: Value) -> (Value, Bytes) {
    let body = Bytes::from(value.to_string());
    (value, body)
}

/// What the engine is told of an errand's end.
fn told(came: Result<Payload, Trouble>, already_done: Option<&Value>) -> Result<Handled<Payload>, Failure> {
    match came {
        Ok(answer) => Ok(Handled::from(answer)),
        Err(trouble) => match (trouble.meaning, already_done) {
            (Meaning::AlreadyDone, Some(answer)) => Ok(Handled::from(Payload::json(answer.to_string()))),
            (Meaning::AlreadyDone, None) => Ok(Handled::Elsewhere { reason: trouble.text }),
            // Nothing went wrong: it has what was asked, and comes to it.
            (Meaning::Pending, _) => Ok(Handled::Snooze(trouble.after.unwrap_or_default())),
            (Meaning::Retry, _) => Err(trouble.into_failure(Failure::retry)),
            (Meaning::Unavailable, _) => Err(trouble.into_failure(Failure::transport)),
            (Meaning::Fatal, _) => Err(trouble.into_failure(Failure::fatal)),
        },
    }
}

impl RawHandler for Work {
    fn handle(&self, payload: Payload, job: Job) -> HandlerFuture<'_> {
        Box::pin(async move {
            tokio::select! {
                came = self.ask(payload, &job) => told(came, self.already_done.as_ref()),
                // Nobody wants it any more, so that this costs nothing.
                () = job.stopped() => Err(Failure::retry("stopped")),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn what_came_of_an_errand_is_told_in_the_engines_words() {
        let trouble = |meaning| Err(Trouble::new(meaning, "so"));
        let done = json!({"done": true});
        assert_eq!(told(Ok(Payload::json("1")), None), Ok(Handled::from(Payload::json("1"))));
        assert_eq!(told(trouble(Meaning::Retry), Some(&done)), Err(Failure::retry("so")));
        assert_eq!(told(trouble(Meaning::Unavailable), None), Err(Failure::transport("so")));
        assert_eq!(told(trouble(Meaning::Fatal), Some(&done)), Err(Failure::fatal("so")));
        let answered = Handled::from(Payload::json(done.to_string()));
        assert_eq!(told(trouble(Meaning::AlreadyDone), Some(&done)), Ok(answered));
        assert_eq!(told(trouble(Meaning::AlreadyDone), None), Ok(Handled::Elsewhere { reason: "so".to_owned() }));
        let asked = Duration::from_secs(7);
        let busy = Trouble::unavailable("so").after(Some(asked));
        assert_eq!(told(Err(busy), None), Err(Failure::transport("so").after(asked)));
        assert_eq!(told(Err(Trouble::pending(asked)), Some(&done)), Ok(Handled::Snooze(asked)));
    }
}
