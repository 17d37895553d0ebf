//! What a route has of its own among those that share a destination.

use std::fmt;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};

use super::decide::{Patience, Plan};
use super::run::{Held, OnTimeout, Sender};
use crate::persist;
use crate::station::StationError;
use crate::store::ReadExt;
use crate::store::op::{Judgement, Sight};
use crate::store::query::{Found, LaneView, ParcelView, ReadyDelivery};
use crate::words::{ErrorNote, Nonce, PAYLOAD_BYTES_MAX, Payload, RequestId, RouteName};

/// How many requests are looked up at once.
const LOOK_UP_AT_ONCE: usize = 16;

/// How the answers of one route are sent, where that is not as its destination's options say.
/// They share no parcel with those of other routes.
#[derive(Clone, Debug, Default)]
pub struct RouteTerms {
    /// Its lowest slot is late after so long, in place of [`Patience::bump_ms`].
    pub bump_ms: Option<u64>,
    /// What to do then, in place of [`SenderOptions::on_timeout`](super::SenderOptions::on_timeout).
    pub on_timeout: Option<OnTimeout>,
    /// What is sent in place of an answer that can never be; without it, such an answer is a
    /// dead letter.
    pub failure: Option<FailureResponse>,
}

/// An answer that can never be sent.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// Which request.
    pub id: RequestId,
    /// Its route.
    pub route: &'a RouteName,
    /// What was asked.
    pub request: &'a Payload,
    /// The answer.
    pub answer: &'a Payload,
    /// Why it can never be sent.
    pub error: &'a ErrorNote,
}

/// What is sent in place of an answer that can never be. The request ends dead, and what was
/// to be told is told. If the failure response can never be sent either, it is a dead letter.
#[derive(Clone)]
pub struct FailureResponse(Arc<dyn Fn(&Refused<'_>) -> Payload + Send + Sync>);

impl FailureResponse {
    /// Always the same.
    pub fn fixed(response: Payload) -> FailureResponse {
        FailureResponse::of(move |_| response.clone())
    }

    /// What this function makes of the request, its answer and the error.
    pub fn of(make: impl Fn(&Refused<'_>) -> Payload + Send + Sync + 'static) -> FailureResponse {
        FailureResponse(Arc::new(make))
    }

    /// The response in place of this answer.
    pub(super) fn to(&self, refused: &Refused<'_>) -> Payload {
        (self.0)(refused)
    }
}

impl fmt::Debug for FailureResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FailureResponse")
    }
}

impl Sender {
    fn terms(&self, route: &RouteName) -> Option<&RouteTerms> {
        self.options.routes.get(route)
    }

    /// How patient the sender is with what is of this route.
    pub(super) fn patience_with(&self, route: Option<&RouteName>) -> Patience {
        let (own, patience) = (route.and_then(|route| self.terms(route)?.bump_ms), self.options.patience);
        Patience { bump_ms: own.unwrap_or(patience.bump_ms), ..patience }
    }

    /// What becomes of a slot that is late, if it is of this route.
    pub(super) fn on_timeout_of(&self, route: Option<&RouteName>) -> OnTimeout {
        route.and_then(|route| self.terms(route)?.on_timeout).unwrap_or(self.options.on_timeout)
    }

    /// Whether a route's answers are sent on terms of their own.
    pub(super) fn goes_apart(&self, route: &RouteName) -> bool {
        self.terms(route).is_some() || self.chain.routes_apart().contains(route)
    }

    fn any_goes_apart(&self) -> bool {
        !self.options.routes.is_empty() || !self.chain.routes_apart().is_empty()
    }

    /// Remembers whose answers are on a slot.
    pub(super) fn remember_route(&self, lane: &mut Held, nonce: Nonce, carried: &[ReadyDelivery]) {
        if let Some(first) = carried.first().filter(|_| self.any_goes_apart()) {
            lane.memory.routes.insert(nonce, first.route.clone());
        }
    }

    /// Adds to parcels which routes they are of, if those have terms of their own. After a start,
    /// what they carry tells. One that was assigned under other terms, and carries answers of
    /// several routes, goes by the first.
    pub(super) async fn know_routes(&self, lane: &mut Held, view: &mut LaneView) -> Result<(), StationError> {
        if !self.any_goes_apart() {
            return Ok(());
        }
        let known = &mut lane.memory.routes;
        known.retain(|nonce, _| view.parcels.binary_search_by_key(nonce, |parcel| parcel.nonce).is_ok());
        let first = |parcel: &ParcelView| Some((parcel.nonce, *parcel.deliveries.first()?));
        let unknown = view.parcels.iter().filter(|parcel| !known.contains_key(&parcel.nonce)).filter_map(first);
        let found = unknown.map(|(nonce, id)| async move {
            let found = persist::read(|| self.store.get(id)).await;
            found.map(|found| (nonce, found))
        });
        let found: Vec<_> = stream::iter(found.collect::<Vec<_>>()).buffered(LOOK_UP_AT_ONCE).collect().await;
        for found in found {
            if let (nonce, Some(Found::Live(request, _))) = found? {
                known.insert(nonce, request.route);
            }
        }
        for parcel in &mut view.parcels {
            parcel.route = known.get(&parcel.nonce).filter(|route| self.goes_apart(route)).cloned();
        }
        Ok(())
    }

    /// What is to be sent in place of an answer that can never be, if its route has something.
    pub(super) async fn instead(
        &self,
        route: &RouteName,
        id: RequestId,
        error: &ErrorNote,
    ) -> Result<Option<Payload>, StationError> {
        let Some(failure) = self.terms(route).and_then(|terms| terms.failure.as_ref()) else { return Ok(None) };
        let Some(Found::Live(_, bodies)) = persist::read(|| self.store.get(id)).await? else { return Ok(None) };
        let Some(answer) = &bodies.response else { return Ok(None) };
        let response = failure.to(&Refused { id, route, request: &bodies.payload, answer, error });
        if response.bytes.len() > PAYLOAD_BYTES_MAX {
            let bytes = response.bytes.len();
            tracing::error!(%route, request = %id, bytes, "a failure response is too long, and the answer a dead letter: shorten it");
            return Ok(None);
        }
        Ok(Some(response))
    }

    /// What failed for good is answered by its route's failure response, if there is one. Of
    /// several that failed together one may be to blame: then each is tried alone.
    pub(super) async fn replace_failed<'a>(
        &self,
        plan: &mut Plan,
        parcel: impl Fn(&Nonce) -> Option<&'a ParcelView>,
    ) -> Result<(), StationError> {
        for (nonce, _, sight) in &mut plan.settles {
            let Sight::Final(_, judgement) = sight else { continue };
            let Judgement::Failed(error) = &*judgement else { continue };
            let Some(ParcelView { deliveries, route: Some(route), .. }) = parcel(nonce) else { continue };
            if self.terms(route).is_none_or(|terms| terms.failure.is_none()) {
                continue;
            }
            *judgement = match deliveries[..] {
                [id] => match self.instead(route, id, error).await? {
                    Some(response) => Judgement::Replaced(error.clone(), response),
                    None => continue,
                },
                _ => Judgement::Again(error.clone()),
            };
        }
        Ok(())
    }
}
