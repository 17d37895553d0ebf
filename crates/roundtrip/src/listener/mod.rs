//! Listening: how requests come in.
//!
//! ```text
//!   code ──▶ Submitter ─┐
//!   time ──▶ Every ─────┼──▶ admit: the requests and the cursor in one commit ──▶ inbox
//!   chain ─▶ Follower ──┤
//!   any other Source ───┘
//! ```
//!
//! Failure modes: a store whose answer is lost is asked again, and what was stored is
//! recognised. A route that is full pushes back: a submitter is told, a source waits with
//! its cursor held. A source that was away goes on from its cursor.

mod cursor;
mod every;
mod follow;
mod submit;

use std::future::Future;
use std::sync::Arc;

pub use cursor::{Cursor, Head};
pub(crate) use cursor::{CursorStep, Origin};
pub use every::{CatchUp, Every, Tick};
pub use follow::{BlockSource, Follower, FollowerOptions, FollowerStats, SourceBlock, SourceError, SourceFuture, Tips};
pub use submit::{Ending, SubmitError, Submitted, Submitter};

use crate::clock::Clock;
use crate::inbox::{Identity, Standing};
use crate::station::{Shutdown, StationError};
use crate::store::Store;
use crate::store::op::NewRequest;
use crate::words::{OccurrenceId, Payload, RequestId, RouteName};

/// A station that admits requests.
///
/// It moves its cursor only in the commit that stores what the cursor passes, and
/// waits, with the cursor held, when a route has no room.
pub trait Source: Send + 'static {
    /// Admits until told to stop, or until there is nothing left to admit.
    fn run(
        self,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        shutdown: Shutdown,
    ) -> impl Future<Output = Result<(), StationError>> + Send;
}

/// A final request whose id is the hash of its content, as [`Identity::Content`] has it, to
/// be worked on at once. Asked a second time, it is the same request, and the same
/// submission of it. What is declared as JSON and is none has the hash of its bytes, which
/// a route with that identity refuses.
pub fn request(route: &RouteName, payload: Payload) -> NewRequest {
    let id = match Identity::Content.id_of(route, &payload) {
        Ok(Some(id)) => id,
        Ok(None) | Err(_) => RequestId::of(&[route.as_str().as_bytes(), &payload.bytes]),
    };
    request_with_id(route, id, payload)
}

/// A final request with this id, to be worked on at once.
pub fn request_with_id(route: &RouteName, id: RequestId, payload: Payload) -> NewRequest {
    NewRequest {
        route: route.clone(),
        id,
        occurrence: OccurrenceId::of(&[id.as_bytes()]),
        place: None,
        standing: Standing::Final,
        payload,
        due: None,
        deadline: None,
        priority: 0,
        key: None,
        trace: None,
    }
}
