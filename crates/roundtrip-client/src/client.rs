//! The calls, one by one.

use std::error::Error;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How much longer than the wait that was asked for a call may take.
const BEYOND_WAIT: Duration = Duration::from_secs(30);

/// Where the program is, and what opens its door.
#[derive(Clone)]
pub struct Settings {
    /// Such as `http://127.0.0.1:8080`.
    pub url: String,
    /// The token, where one is wanted.
    pub token: Option<String>,
    /// Who alone is trusted to vouch for the program, as PEM; whom everybody trusts, if absent.
    pub trusted: Option<Vec<u8>>,
}

impl Settings {
    /// A program that wants no token.
    pub fn of(url: &str) -> Settings {
        Settings { url: url.to_owned(), token: None, trusted: None }
    }
}

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The program was not reached, or said nothing that could be read. The call may have been heard.
    #[error("no answer: {0}")]
    NoAnswer(String),
    /// Not now.
    #[error("not now: {0}")]
    Later(String),
    /// Never like this.
    #[error("refused with {status}: {detail}")]
    Refused {
        /// The status.
        status: u16,
        /// What is wrong, and what to do.
        detail: String,
    },
}

impl CallError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, CallError::NoAnswer(_) | CallError::Later(_))
    }
}

/// The calls that a worker makes. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    settings: Settings,
}

/// A request in a worker's hand.
#[derive(Clone, Debug, Deserialize)]
pub struct Job {
    /// Which request.
    pub id: String,
    /// What to answer with: it says who has the request.
    pub token: String,
    /// When the lease runs out, in milliseconds since 1970, by the store's clock.
    pub until_ms: u64,
    /// Which attempt this is, from 1.
    pub attempt: u16,
    /// Which content, from 0.
    pub revision: u16,
    /// `json`; else the payload is a text of base64.
    pub encoding: String,
    /// What is asked.
    pub payload: Value,
    /// The trace context that it came with.
    pub trace: Option<String>,
}

impl Job {
    /// The same without what is asked: enough to keep it and to say what came of it.
    pub(crate) fn lease(&self) -> Job {
        Job {
            id: self.id.clone(),
            token: self.token.clone(),
            until_ms: self.until_ms,
            attempt: self.attempt,
            revision: self.revision,
            encoding: self.encoding.clone(),
            payload: Value::Null,
            trace: None,
        }
    }
}

/// What was handed out.
#[derive(Clone, Debug, Deserialize)]
pub struct Leased {
    /// Empty if there was nothing.
    pub jobs: Vec<Job>,
}

/// What became of a call for one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is so.
    Done,
    /// The content changed: it will be handed out again.
    Superseded,
    /// Somebody else has it, or it is over.
    Lost,
    /// There is no such request.
    Unknown,
    /// There is no room for what follows from it.
    Full,
    /// The call makes no sense.
    Invalid,
}

/// What became of a lease that was to be kept.
#[derive(Clone, Debug, Deserialize)]
pub struct Kept {
    /// What became of it.
    pub result: Outcome,
    /// What the worker should know: `finalized`, `orphaned`, `included`, `superseded`.
    #[serde(default)]
    pub notices: Vec<String>,
    /// Why, in words.
    pub detail: Option<String>,
}

/// What a failure leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is tried again, unless its attempts are used up.
    Retry,
    /// It is a dead letter.
    Dead,
    /// It was done before: the request ends well, without an answer.
    Elsewhere,
}

/// A failure, for the person who reads it.
#[derive(Clone, Debug)]
pub struct Failed {
    /// What went wrong.
    pub error: String,
    /// What is to happen now.
    pub then: Verdict,
}

#[derive(Deserialize)]
struct Results {
    jobs: Vec<Kept>,
}

#[derive(Deserialize)]
struct Problem {
    detail: String,
}

/// An error and what led to it: a certificate that nobody vouches for is only told by the last of them.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |told, cause| format!("{told}: {cause}"))
}

impl Client {
    /// Calls this program.
    pub fn new(settings: Settings) -> Result<Client, CallError> {
        // Whoever links this may have installed another provider already, which will do.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let unusable = |error: reqwest::Error| CallError::NoAnswer(with_causes(&error));
        let builder = match &settings.trusted {
            Some(pem) => {
                let trusted = reqwest::Certificate::from_pem_bundle(pem).map_err(unusable)?;
                reqwest::Client::builder().tls_certs_only(trusted)
            }
            None => reqwest::Client::builder(),
        };
        Ok(Client { http: builder.build().map_err(unusable)?, settings })
    }

    /// Takes up to so many requests of a route; waits so long for the first.
    pub async fn lease(&self, route: &str, worker: &str, max: usize, wait: Duration) -> Result<Leased, CallError> {
        let body = serde_json::json!({"route": route, "worker": worker, "max": max, "wait_ms": wait.as_millis()});
        self.call("/v1/work/lease", &body, wait + BEYOND_WAIT).await
    }

    /// Keeps a lease for longer, and hears what changed.
    pub async fn extend(&self, job: &Job) -> Result<Kept, CallError> {
        self.one("/v1/work/extend", serde_json::json!({"id": job.id, "token": job.token})).await
    }

    /// Records an answer, once.
    pub async fn answer(&self, job: &Job, response: &Value) -> Result<Kept, CallError> {
        let body = serde_json::json!({"id": job.id, "token": job.token, "response": response});
        self.one("/v1/work/answer", body).await
    }

    /// Reports a failure.
    pub async fn fail(&self, job: &Job, failed: &Failed) -> Result<Kept, CallError> {
        let Failed { error, then } = failed;
        self.one("/v1/work/fail", serde_json::json!({"id": job.id, "token": job.token, "error": error, "then": then}))
            .await
    }

    /// Gives work back at no cost.
    pub async fn release(&self, job: &Job) -> Result<Kept, CallError> {
        self.one("/v1/work/release", serde_json::json!({"id": job.id, "token": job.token})).await
    }

    async fn one(&self, path: &str, job: Value) -> Result<Kept, CallError> {
        let results: Results = self.call(path, &serde_json::json!({"jobs": [job]}), BEYOND_WAIT).await?;
        let result = results.jobs.into_iter().next();
        result.ok_or_else(|| CallError::NoAnswer("no result for the job".to_owned()))
    }

    async fn call<T: DeserializeOwned>(&self, path: &str, body: &Value, within: Duration) -> Result<T, CallError> {
        let no_answer = |error: reqwest::Error| CallError::NoAnswer(with_causes(&error.without_url()));
        let call = self.http.post(format!("{}{path}", self.settings.url.trim_end_matches('/'))).timeout(within);
        let call = call.header("content-type", "application/json").body(body.to_string());
        let call = match &self.settings.token {
            Some(token) => call.bearer_auth(token),
            None => call,
        };
        let response = call.send().await.map_err(no_answer)?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await.map_err(no_answer)?;
        let detail =
            || serde_json::from_slice::<Problem>(&bytes).map_or_else(|_| "no reason given".to_owned(), |p| p.detail);
        match status {
            200..300 => serde_json::from_slice(&bytes).map_err(|error| CallError::NoAnswer(error.to_string())),
            429 | 500.. => Err(CallError::Later(detail())),
            status => Err(CallError::Refused { status, detail: detail() }),
        }
    }
}
