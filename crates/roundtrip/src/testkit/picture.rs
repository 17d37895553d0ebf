//! Everything that a store shows, to be compared as a whole.

use std::collections::BTreeSet;
use std::fmt;

use super::bench::must;
use crate::store::Store;
use crate::store::op::Seat;
use crate::store::query::{Found, ListFilter, Phase, Query, Reply};
use crate::words::{Destination, GroupKey, ListenerName, PAGE_MAX, RequestId, Token};

/// What is to be looked at besides what a store lists by itself.
#[derive(Clone, Debug, Default)]
pub struct Sights {
    /// Requests that may have ended.
    pub ids: BTreeSet<RequestId>,
    /// Listeners.
    pub listeners: BTreeSet<ListenerName>,
    /// Groups.
    pub groups: BTreeSet<GroupKey>,
    /// Destinations.
    pub destinations: BTreeSet<Destination>,
}

/// The answers to all reads, each beside its question.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture(Vec<(Query, Reply)>);

impl Picture {
    /// Asks a store for all that it shows.
    pub async fn of(store: &dyn Store, sights: &Sights) -> Picture {
        let mut picture = Picture(Vec::new());
        for query in [Query::Counts, Query::Routes, Query::Cursors, Query::Origins] {
            picture.ask(store, query).await;
        }
        picture.page_through(store).await;
        for id in &sights.ids {
            picture.ask(store, Query::Get(*id)).await;
            picture.ask(store, Query::Timeline(*id)).await;
        }
        let cursors = sights.listeners.iter().cloned().map(Query::Cursor);
        let groups = sights.groups.iter().cloned().map(|group| Query::Group { group, skip: 0, limit: PAGE_MAX });
        let ready = sights.destinations.iter().cloned();
        let ready = ready.map(|destination| Query::Ready { destination, after: None, limit: PAGE_MAX });
        let couriers = sights.destinations.iter().cloned().map(|to| Query::Seat(Seat::Destination(to)));
        for query in cursors.chain(groups).chain(ready).chain(couriers).chain([Query::Seat(Seat::Upkeep)]) {
            picture.ask(store, query).await;
        }
        if let Reply::Routes(routes) = must(store.read(Query::Routes).await, "routes") {
            for route in routes {
                picture.ask(store, Query::Seat(Seat::Route(route.name.clone()))).await;
                picture.ask(store, Query::Seat(Seat::Feed(route.name, crate::testkit::samples::origin()))).await;
            }
        }
        if let Reply::Lanes(lanes) = picture.ask(store, Query::Lanes).await {
            for lane in lanes {
                picture.ask(store, Query::Seat(Seat::Lane(lane.name.clone()))).await;
                picture.ask(store, Query::Lane(lane.name)).await;
            }
        }
        picture
    }

    /// The live requests and the journal, page by page.
    async fn page_through(&mut self, store: &dyn Store) {
        let (mut after, mut from) = (None, 0);
        loop {
            let filter = ListFilter { after, limit: PAGE_MAX, ..ListFilter::default() };
            match self.ask(store, Query::List(filter)).await {
                Reply::List(page) if page.next.is_some() => after = page.next,
                _ => break,
            }
        }
        loop {
            match self.ask(store, Query::Journal { from, limit: PAGE_MAX }).await {
                Reply::Journal(page) if !page.entries.is_empty() => {
                    from = page.entries.last().map_or(0, |entry| entry.position + 1);
                }
                _ => break,
            }
        }
    }

    async fn ask(&mut self, store: &dyn Store, query: Query) -> Reply {
        let reply = must(store.read(query.clone()).await, "a read");
        self.0.push((query, reply.clone()));
        reply
    }

    /// The same picture with all tokens alike: which start of a store issued a token
    /// is no part of what happened.
    #[must_use]
    pub fn without_tokens(mut self) -> Picture {
        let none = Token { epoch: 0, count: 0 };
        let mask = |phase: &mut Phase| {
            if let Phase::Leased { token, .. } = phase {
                *token = none;
            }
        };
        for (_, reply) in &mut self.0 {
            match reply {
                Reply::Seat(Some(seat)) => seat.token = none,
                Reply::List(page) => page.requests.iter_mut().for_each(|request| mask(&mut request.phase)),
                Reply::Get(Some(Found::Live(request, _))) => mask(&mut request.phase),
                Reply::Ready(ready) => ready.iter_mut().for_each(|delivery| delivery.answer = none),
                _ => {}
            }
        }
        self
    }

    /// Panics at the first answer that differs.
    #[track_caller]
    pub fn assert_same(&self, other: &Picture, when: impl fmt::Display) {
        for (one, two) in self.0.iter().zip(&other.0) {
            if let ((_, Reply::List(one)), (_, Reply::List(two))) = (one, two) {
                one.requests.iter().zip(&two.requests).for_each(|(one, two)| assert_eq!(one, two, "{when}: a request"));
            }
            assert_eq!(one, two, "{when}: the stores show different things");
        }
        assert_eq!(self.0.len(), other.0.len(), "{when}: the stores show differently much");
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(query, reply)| (query, reply))).finish()
    }
}
