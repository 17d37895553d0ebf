//! A tool over HTTP: a POST of the input, whose answer is the answer.
//!
//! ```text
//!   definition ──▶ input fits? ──▶ POST ──▶ status ──▶ output fits? ──▶ answer
//!   (/meta, or a                   signed,             what does not is a failed
//!   registry's entry)              bounded             attempt of the tool's
//! ```
//!
//! The call carries `roundtrip-request-id`, `roundtrip-attempt-id`, `idempotency-key` (the same for
//! every attempt at the same content) and `traceparent`; with a secret also the three headers of
//! Standard Webhooks, whose id is the idempotency key.
//!
//! Failure modes: see the crate. An input that its schema forbids is never sent, and is fatal. An answer that
//! is no JSON, is too large, or is not as the tool's own schema says, costs an attempt. A tool that says
//! that it did this before (409) may bring its answer again; a report of the conflict
//! (`application/problem+json`) is none, and what is answered then is the route's to say.

mod decide;
mod definition;
mod health;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use roundtrip::calling::{SigningKey, retry_after};
use roundtrip::clock::Clock;
use roundtrip::words::Payload;
use serde_json::Value;
use tokio::sync::watch;

pub use self::decide::Statuses;
pub(crate) use self::decide::meaning;
pub use self::definition::Source;
use self::definition::{Definition, Definitions};
pub use self::health::HealthWatch;
use crate::errand::{Errand, Meaning, Tool, ToolFuture, Trouble};
use crate::template::UrlTemplate;
use crate::web::{AGENT, Web, WebAnswer, WebError};

/// How a tool is called.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// What calls are signed with, if they are.
    pub key: Option<SigningKey>,
    /// Longest answer.
    pub answer_bytes_max: usize,
    /// What statuses mean, where it is something else than usual.
    pub statuses: Statuses,
    /// How long a request goes back for when the tool is not well.
    pub back_for: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        HttpOptions {
            key: None,
            answer_bytes_max: 1 << 20,
            statuses: Statuses::new(),
            back_for: Duration::from_secs(5),
        }
    }
}

/// A tool over HTTP.
pub struct HttpTool {
    web: Web,
    url: UrlTemplate,
    clock: Arc<dyn Clock>,
    options: HttpOptions,
    definitions: Option<Definitions>,
    well: Option<watch::Receiver<bool>>,
}

impl HttpTool {
    /// A tool at this URL. Signatures bear the time of this clock.
    pub fn new(web: Web, url: UrlTemplate, clock: Arc<dyn Clock>, options: HttpOptions) -> HttpTool {
        HttpTool { web, url, clock, options, definitions: None, well: None }
    }

    /// What it is given and answers is held against its definition.
    #[must_use]
    pub fn defined_by(mut self, source: Source) -> HttpTool {
        self.definitions = Some(Definitions::new(source));
        self
    }

    /// It is called only while this says that it is well.
    #[must_use]
    pub fn while_well(mut self, well: watch::Receiver<bool>) -> HttpTool {
        self.well = Some(well);
        self
    }

    /// What is wrong with it, as far as it can be found out without asking it to do anything.
    pub async fn probe(&self) -> Result<(), String> {
        if let Some(url) = self.url.fixed() {
            // Whatever it answers to this, it is there.
            match self.web.get(url, self.options.answer_bytes_max).await {
                Ok(_) | Err(WebError::Broken(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        match &self.definitions {
            Some(definitions) => definitions.probe().await.map_err(|why| format!("its definition: {why}")),
            None => Ok(()),
        }
    }

    async fn call(&self, errand: &Errand) -> Result<Payload, Trouble> {
        if self.well.as_ref().is_some_and(|well| !*well.borrow()) {
            return Err(Trouble::unavailable("the tool is not well").after(Some(self.options.back_for)));
        }
        let definition = match &self.definitions {
            Some(definitions) => definitions.of(errand).await?,
            None => Definition::default(),
        };
        if let Some(schema) = &definition.input {
            let fault =
                schema.check(&errand.input).await.map_err(|endless| Trouble::unavailable(endless.to_string()))?;
            if let Some(fault) = fault {
                return Err(Trouble::fatal(format!("the input is not what the tool takes: {fault}")));
            }
        }
        let url = self.url.fill(&errand.document).map_err(|why| Trouble::fatal(format!("no URL to call: {why}")))?;
        let request = self.request(&url, errand)?;
        let answer = self.web.send(request, self.options.answer_bytes_max).await;
        let answer = answer.map_err(|error| self.unanswered(error))?;
        self.read(answer, &definition).await
    }

    fn request(&self, url: &str, errand: &Errand) -> Result<Request<Full<Bytes>>, Trouble> {
        let mut request = Request::post(url)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, AGENT)
            .header("roundtrip-request-id", errand.id.to_string())
            .header("roundtrip-attempt-id", &errand.attempt)
            .header("idempotency-key", &errand.key);
        // A trace that cannot be a header is nobody's trace.
        if let Some(trace) = errand.trace.as_ref().and_then(|trace| HeaderValue::from_str(trace).ok()) {
            request = request.header("traceparent", trace);
        }
        if let Some(key) = &self.options.key {
            let timestamp = self.clock.now().0 / 1000;
            request = request
                .header("webhook-id", &errand.key)
                .header("webhook-timestamp", timestamp)
                .header("webhook-signature", key.sign(&errand.key, timestamp, &errand.body));
        }
        let request = request.body(Full::new(errand.body.clone()));
        request.map_err(|error| Trouble::fatal(format!("no call can be made of it: {error}")))
    }

    /// What it means that there was no answer at all.
    fn unanswered(&self, error: WebError) -> Trouble {
        let text = error.to_string();
        match error {
            // Where requests say whom to call, one that names the inside says so for ever.
            WebError::Forbidden(_) if self.url.fixed().is_none() => Trouble::fatal(text),
            WebError::Forbidden(_) | WebError::Unreachable(_) => Trouble::unavailable(text),
            WebError::Broken(_) => Trouble::retry(text),
        }
    }

    async fn read(&self, answer: WebAnswer, definition: &Definition) -> Result<Payload, Trouble> {
        let after = retry_after(&answer.headers, self.clock.now());
        match meaning(answer.status, &self.options.statuses) {
            None => answered(answer, definition).await,
            Some(Meaning::AlreadyDone) => {
                let text = format!("the tool answered {}: it did this before", answer.status);
                let done = Trouble::new(Meaning::AlreadyDone, text);
                if is_problem(&answer.headers) {
                    return Err(done);
                }
                answered(answer, definition).await.map_err(|_none| done)
            }
            Some(meaning) => {
                let text = format!("the tool answered {}{}", answer.status, said(&answer));
                Err(Trouble::new(meaning, text).after(after))
            }
        }
    }
}

/// Whether a body reports a problem, by RFC 9457, and so is no answer.
fn is_problem(headers: &HeaderMap) -> bool {
    let said = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = said.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/problem+json")
}

/// How a tool's own words on what went wrong begin, on one line; nothing if it says none.
fn said(answer: &WebAnswer) -> String {
    /// Most characters of what a tool says.
    const CHARS_MAX: usize = 200;
    let text = answer.body.as_ref().ok().and_then(|body| std::str::from_utf8(body).ok()).unwrap_or_default();
    let on_a_line = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(CHARS_MAX);
    match on_a_line.collect::<String>().trim() {
        "" => String::new(),
        words => format!(": {words}"),
    }
}

/// The answer in a body, if it is one.
async fn answered(answer: WebAnswer, definition: &Definition) -> Result<Payload, Trouble> {
    const NOTHING: u16 = 204;
    let said = answer.body.map_err(|error| Trouble::retry(error.to_string()))?;
    let body = if answer.status == NOTHING { Bytes::from_static(b"null") } else { said };
    let value: Value = serde_json::from_slice(&body)
        .map_err(|error| Trouble::retry(format!("the tool's answer is no JSON: {error}")))?;
    if let Some(schema) = &definition.output {
        let fault = schema.check(&value).await.map_err(|endless| Trouble::unavailable(endless.to_string()))?;
        if let Some(fault) = fault {
            return Err(Trouble::retry(format!("the tool's answer is not what it says that it answers: {fault}")));
        }
    }
    Ok(Payload::json(body))
}

impl Tool for HttpTool {
    fn ask<'a>(&'a self, errand: &'a Errand) -> ToolFuture<'a> {
        let own = !self.url.has_host();
        Box::pin(async move { self.call(errand).await.map_err(|trouble| trouble.own_if(own)) })
    }
}
