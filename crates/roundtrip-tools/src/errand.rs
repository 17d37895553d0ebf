//! What a tool is asked, and what came of it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use roundtrip::words::{Payload, RequestId};
use roundtrip::worker::{Failure, Job};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

/// What it means that a tool did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// It did this before: success.
    AlreadyDone,
    /// It failed, and may succeed later: costs an attempt.
    Retry,
    /// It did not get to it: again later, at no cost.
    Unavailable,
    /// It has it, and is not done: asked again later, at no cost. No status means this by itself.
    #[serde(skip)]
    Pending,
    /// It never will.
    Fatal,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Trouble {
    /// What it means.
    pub meaning: Meaning,
    /// What happened, for the person who reads it; without payload or secret.
    pub text: String,
    /// Not again before so long, if the tool said so.
    pub after: Option<Duration>,
    /// Whether it is this request's alone, which says itself whom to ask: others are no worse off.
    pub own: bool,
}

impl Trouble {
    pub(crate) fn new(meaning: Meaning, text: impl Into<String>) -> Trouble {
        Trouble { meaning, text: text.into(), after: None, own: false }
    }

    pub(crate) fn fatal(text: impl Into<String>) -> Trouble {
        Trouble::new(Meaning::Fatal, text)
    }

    pub(crate) fn retry(text: impl Into<String>) -> Trouble {
        Trouble::new(Meaning::Retry, text)
    }

    pub(crate) fn unavailable(text: impl Into<String>) -> Trouble {
        Trouble::new(Meaning::Unavailable, text)
    }

    /// To be asked for again after so long.
    pub(crate) fn pending(every: Duration) -> Trouble {
        Trouble::new(Meaning::Pending, "the answer is not ready").after(Some(every))
    }

    pub(crate) fn after(mut self, after: Option<Duration>) -> Trouble {
        self.after = after;
        self
    }

    pub(crate) fn own_if(mut self, own: bool) -> Trouble {
        self.own |= own;
        self
    }

    /// As the engine is told of it: a failure of this class.
    pub(crate) fn into_failure(self, class: impl FnOnce(String) -> Failure) -> Failure {
        let failure = class(self.text);
        match self.after {
            Some(after) => failure.after(after),
            None => failure,
        }
    }
}

/// What a tool is asked. `Debug` shows which request it is of, and nothing that it says.
#[derive(Clone)]
pub struct Errand {
    /// Which request.
    pub id: RequestId,
    /// The same for every attempt at the same content, and for nothing else.
    pub key: String,
    /// Which attempt, different for each.
    pub attempt: String,
    /// The trace that it is part of.
    pub trace: Option<String>,
    /// All that is known: `id`, `request`, and what was prepared, by their names.
    pub document: Value,
    /// What the tool is given.
    pub input: Value,
    /// The same as it is written.
    pub body: Bytes,
    /// Until when what is needed before the call may be read.
    pub read_until: Instant,
    /// When an answer that is polled for is left for another attempt, if attempts have an end: a little before it.
    pub poll_until: Option<Instant>,
}

impl fmt::Debug for Errand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errand({})", self.key)
    }
}

impl Errand {
    /// An attempt at a request, within its times.
    pub(crate) fn of(job: &Job, document: Value, (input, body): (Value, Bytes), times: Times) -> Errand {
        Errand {
            id: job.id(),
            key: format!("{}-{}-{}", job.id(), job.generation(), job.revision()),
            attempt: job.key(),
            trace: job.trace().map(str::to_owned),
            document,
            input,
            body,
            read_until: times.read_until,
            poll_until: times.poll_until,
        }
    }

    /// A part of what is known, by its name.
    pub fn part(&self, name: &str) -> Option<&Value> {
        self.document.get(name)
    }
}

/// Until when the parts of an attempt may last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) read_until: Instant,
    pub(crate) poll_until: Option<Instant>,
}

/// What is read before a call, if it is there in time. If not, nobody was asked to do anything: that costs nothing.
pub(crate) async fn in_time<T>(until: Instant, read: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    let late = |_elapsed| Err(Trouble::unavailable("it could not be read in time"));
    timeout_at(until, read).await.unwrap_or_else(late)
}

/// What came of an errand.
pub type ToolFuture<'a> = Pin<Box<dyn Future<Output = Result<Payload, Trouble>> + Send + 'a>>;

/// Answers errands by calling out. Dropping the future gives the call up.
pub trait Tool: Send + Sync + 'static {
    /// Runs one errand.
    fn ask<'a>(&'a self, errand: &'a Errand) -> ToolFuture<'a>;

    /// Whether it answers with what it is given, so that this need not be JSON.
    fn passes_on(&self) -> bool {
        false
    }
}
