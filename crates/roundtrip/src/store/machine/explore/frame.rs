//! What explorations have in common: one route with its lead, requests on it, a worker, and
//! what may become of a call.

use super::bytes_of;
use super::embedded::Embedded;
use crate::inbox::Standing;
use crate::store::op::{Answer, Define, Effect, Lead, Lease, NewRequest, Op, Outcome, Seat};
use crate::store::policy::RoutePolicy;
use crate::words::{ClaimId, HolderName, OccurrenceId, RequestId, RouteName, Token, WorkerName};

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Fate {
    /// The caller learns the outcome.
    Heard,
    /// The call is done and its answer is lost.
    Lost,
    /// The call is done, and a copy of it arrives again at any later time.
    Copied,
}

impl Fate {
    /// Those that may still happen, with so many faults left.
    pub(super) fn left(lost: u8, copies: u8) -> impl Iterator<Item = Fate> {
        let (lost, copied) = ((lost > 0).then_some(Fate::Lost), (copies > 0).then_some(Fate::Copied));
        std::iter::once(Fate::Heard).chain(copied).chain(lost)
    }
}

pub(super) fn route() -> RouteName {
    RouteName::new("r").unwrap()
}

/// The request of this number, with this content.
pub(super) fn request(n: u8, content: u8, standing: Standing) -> NewRequest {
    let base = crate::listener::request_with_id(&route(), RequestId([n; 32]), bytes_of(content));
    NewRequest { occurrence: OccurrenceId([n; 32]), standing, ..base }
}

/// A store with the route, and the token of the route's lead.
pub(super) fn routed(policy: RoutePolicy) -> (Embedded, Token) {
    let mut store = Embedded::new();
    store.commit(Op::Define(Define { route: route(), policy }));
    let holder = HolderName::new("lead").unwrap();
    let led = store.commit(Op::Lead(Lead { seat: Seat::Route(route()), holder, ttl_ms: u64::MAX }));
    let Outcome::Applied(Effect::Led(lead, _)) = led else { panic!("a free seat is given: {led:?}") };
    (store, lead)
}

/// A worker takes one request, if one is queued, and answers it with its own content.
pub(super) fn work(claim: u64, mut commit: impl FnMut(Op) -> Outcome) -> Option<()> {
    let (worker, claim) = (WorkerName::new("w").unwrap(), ClaimId(claim));
    let lease = Lease { route: route(), worker, max: 1, claim, lease_ms: None };
    let Outcome::Applied(Effect::Leased(grants)) = commit(Op::Lease(lease)) else { return None };
    let grant = grants.into_iter().next()?;
    let (id, token, response) = (grant.id, grant.token, grant.payload);
    commit(Op::Answer(Answer { id, token, response, follow_ups: Vec::new(), items: Vec::new() }));
    Some(())
}
