//! Requests that code submits, and the wait for their end.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use crate::persist;
use crate::store::op::{Admission, Admit, Effect, Full, Invalid, NewRequest, Outcome, Stale};
use crate::store::query::{Bodies, Found, Phase, ReceiptView, RequestView};
use crate::store::{ReadExt, Store, StoreError, Topic};
use crate::words::{ErrorNote, Payload, RequestId, RouteName};

/// How often a request that is waited for is looked at, at most.
const LOOK_GAP: Duration = Duration::from_millis(10);
/// How often it is looked at without a hint.
const LOOK_POLL: Duration = Duration::from_secs(1);

/// Submits requests from code. Cheap to clone.
#[derive(Clone)]
pub struct Submitter {
    store: Arc<dyn Store>,
}

/// A request that is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Its id, to wait for it.
    pub id: RequestId,
    /// Whether it is new, or what it was recognised as.
    pub admission: Admission,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The route takes no more now. Nothing was stored; try again later.
    #[error("{0}; nothing was stored: try again later")]
    Full(Full),
    /// The request is wrong and will never be taken.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The store refused it for another reason.
    #[error("the request was refused: what it builds on has changed since")]
    Refused(Stale),
    /// The request cannot be written as JSON.
    #[error("the request does not encode: {0}")]
    Encode(String),
    /// The store failed. If it forgot nothing, submitting again is recognised.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SubmitError {
    /// Whether the same submission may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            SubmitError::Full(_) => true,
            SubmitError::Store(error) => error.is_retryable(),
            SubmitError::Invalid(_) | SubmitError::Refused(_) | SubmitError::Encode(_) => false,
        }
    }
}

/// How a request that was waited for stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A response is recorded and still on its way.
    Answered(Payload),
    /// It is over; its response went with it.
    Ended(ReceiptView),
    /// It is a dead letter, and waits for a person.
    Dead(Option<ErrorNote>),
}

/// What the wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Answered,
    Ended,
}

impl Submitter {
    /// Submits to this store.
    pub fn new(store: Arc<dyn Store>) -> Submitter {
        Submitter { store }
    }

    /// Submits a request; it is durable when this returns. One that is live already is
    /// joined, one that was submitted before is recognised.
    ///
    /// Dropping the future leaves open whether it was stored; submitting it again tells.
    pub async fn submit(&self, request: NewRequest) -> Result<Submitted, SubmitError> {
        let id = request.id;
        let admit = Admit { cursor: None, requests: vec![request] };
        let outcome = persist::apply_one(&*self.store, admit).await?;
        let admission = admission_of(outcome)?;
        Ok(Submitted { id, admission })
    }

    /// Submits a value as JSON; its id is the hash of that, see [`super::request`].
    pub async fn submit_json(&self, route: &str, value: &impl Serialize) -> Result<Submitted, SubmitError> {
        let route = RouteName::new(route).map_err(|bad| SubmitError::Encode(bad.to_string()))?;
        let json = serde_json::to_vec(value).map_err(|error| SubmitError::Encode(error.to_string()))?;
        self.submit(super::request(&route, Payload::json(json))).await
    }

    /// Waits until a request is answered, or over without an answer; `None` if the store
    /// knows no such request.
    ///
    /// The response can be read until it has arrived where it was wanted. On a route
    /// without a destination that is at once, so there the wait ends with `Ended`.
    pub async fn answered(&self, id: RequestId) -> Result<Option<Ending>, StoreError> {
        self.wait(id, Until::Answered).await
    }

    /// Waits until a request is over, or a dead letter; `None` if the store knows no such
    /// request.
    pub async fn ended(&self, id: RequestId) -> Result<Option<Ending>, StoreError> {
        self.wait(id, Until::Ended).await
    }

    async fn wait(&self, id: RequestId, until: Until) -> Result<Option<Ending>, StoreError> {
        let mut changes = self.store.changes(Topic::Journal);
        loop {
            let looked = Instant::now();
            let found = persist::read(|| self.store.get(id)).await?;
            match found.map(|found| ending(found, until)) {
                None => return Ok(None),
                Some(Some(ending)) => return Ok(Some(ending)),
                Some(None) => {}
            }
            let hinted = tokio::select! {
                biased;
                alive = changes.changed() => alive,
                () = sleep_until(looked + LOOK_POLL) => true,
            };
            if !hinted {
                sleep_until(looked + LOOK_POLL).await;
            }
            sleep_until(looked + LOOK_GAP).await;
        }
    }
}

fn admission_of(outcome: Outcome) -> Result<Admission, SubmitError> {
    match outcome {
        Outcome::Applied(Effect::Admitted(admissions, _)) | Outcome::Duplicate(Effect::Admitted(admissions, _)) => {
            let first = admissions.into_iter().next();
            first.ok_or_else(|| StoreError::Damaged("a store admitted nothing".into()).into())
        }
        Outcome::Full(full) => Err(SubmitError::Full(full)),
        Outcome::Invalid(invalid) => Err(SubmitError::Invalid(invalid)),
        Outcome::Stale(stale) => Err(SubmitError::Refused(stale)),
        other => Err(StoreError::Damaged(format!("a store answered an admit with {other:?}")).into()),
    }
}

/// How a request stands, if that is what is waited for.
fn ending(found: Found, until: Until) -> Option<Ending> {
    match found {
        Found::Ended(receipt) => Some(Ending::Ended(receipt)),
        Found::Live(view, bodies) => live_ending(*view, bodies, until),
    }
}

fn live_ending(view: RequestView, bodies: Bodies, until: Until) -> Option<Ending> {
    match (view.phase, bodies.response, until) {
        (Phase::Dead { .. }, ..) => Some(Ending::Dead(view.error)),
        (_, Some(response), Until::Answered) => Some(Ending::Answered(response)),
        _ => None,
    }
}
