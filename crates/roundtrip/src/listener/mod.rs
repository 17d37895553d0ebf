//! Listening: how requests come in.
//!
//! ```text
//!   code ──▶ Submitter ─┐
//!   time ──▶ Every ─────┼──▶ admit: the requests and the cursor in one commit ──▶ inbox
//!   chain ─▶ Follower ──┤
//!   list ──▶ RedisList ─┤
//!   any other Source ───┘
//! ```
//!
//! Failure modes: a store whose answer is lost is asked again, and what was stored is
//! recognised. What nobody could work on is stored as a dead letter. A route that is full pushes back: a submitter is told, a source waits with
//! its cursor held. A source that was away goes on from its cursor.

mod cursor;
mod every;
mod follow;
#[cfg(feature = "redis")]
mod list;
mod submit;

use std::future::Future;
use std::sync::Arc;

#[cfg(feature = "redis")]
pub use crate::foreign::BadList;
pub use cursor::{Cursor, Head};
pub(crate) use cursor::{CursorStep, Origin};
pub use every::{CatchUp, Every, Tick};
pub use follow::{
    Answered, BlockSource, Follower, FollowerOptions, FollowerStats, SourceBlock, SourceError, SourceFuture,
    SourceNode, Stall, Tips,
};
#[cfg(feature = "redis")]
pub use list::{ListItem, RedisList};
pub use submit::{Ending, SubmitError, Submitted, Submitter};

use crate::clock::Clock;
use crate::inbox::{Identity, Standing};
use crate::station::{Shutdown, StationError};
use crate::store::Store;
use crate::store::op::NewRequest;
use crate::words::{ErrorClass, ErrorNote, OccurrenceId, Payload, RequestId, RouteName};

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

/// What an origin shows and nobody can work on as it is: a dead letter from the start, with
/// the reason. It is one of its own, whatever the route's identity; a person who retries it
/// hands this payload to the worker.
pub fn flawed(route: &RouteName, occurrence: OccurrenceId, payload: Payload, reason: &str) -> NewRequest {
    let flaw = Some(Box::new(ErrorNote::new(ErrorClass::Fatal, reason)));
    NewRequest { flaw, ..seen(route, flawed_id(route, &occurrence), occurrence, payload) }
}

/// The id of what is flawed: one for each occurrence.
pub(crate) fn flawed_id(route: &RouteName, occurrence: &OccurrenceId) -> RequestId {
    RequestId::of(&[b"flawed", route.as_str().as_bytes(), occurrence.as_bytes()])
}

/// A final request with this id, to be worked on at once.
pub fn request_with_id(route: &RouteName, id: RequestId, payload: Payload) -> NewRequest {
    let occurrence = OccurrenceId::of(&[id.as_bytes()]);
    NewRequest { standing: Standing::Final, ..seen(route, id, occurrence, payload) }
}

/// A request that an origin shows here, and may take back.
pub fn seen(route: &RouteName, id: RequestId, occurrence: OccurrenceId, payload: Payload) -> NewRequest {
    NewRequest {
        route: route.clone(),
        id,
        occurrence,
        place: None,
        standing: Standing::Seen,
        payload,
        due: None,
        deadline: None,
        priority: 0,
        key: None,
        trace: None,
        flaw: None,
    }
}
