//! Requests as they were and as they are after a tick, for those who show them elsewhere in
//! the same commit.

use std::collections::{BTreeMap, VecDeque};

use super::changes::Changes;
use super::tick::Ticked;
use super::{FixtureRows, HashMap};
use crate::inbox::{End, Request, RouteNo};
use crate::store::disk::{Body, Fixture};
use crate::store::journal::{Event, Subject};
#[cfg(feature = "redis")]
use crate::store::loan::{Found, LiveRow};
use crate::store::projection::{Side, Stage, Step};
use crate::words::{Payload, RequestId, RouteName, Seq};

/// Bodies and responses as they are kept, fetched because somebody shows them.
#[derive(Debug, Default)]
pub(in crate::store) struct Texts {
    bodies: HashMap<Seq, Body>,
    responses: HashMap<Seq, Payload>,
}

#[cfg(feature = "redis")]
impl Texts {
    /// Takes in what was brought; answers whether it was anything.
    pub(in crate::store) fn take(&mut self, found: Vec<Found>) -> bool {
        let before = self.bodies.len() + self.responses.len();
        for found in found {
            match found {
                Found::Bodies(rows) => self.bodies.extend(rows),
                Found::Responses(rows) => self.responses.extend(rows),
                _ => {}
            }
        }
        self.bodies.len() + self.responses.len() > before
    }

    /// Live requests as if each were new: all that they show is shown.
    pub(in crate::store) fn steps_of<'a>(&'a self, rows: &'a [LiveRow]) -> Vec<Step<'a>> {
        let step = |row: &'a LiveRow| {
            let (seq, request) = (row.loaded.request.seq, &row.loaded.request);
            let (body, response) = (self.bodies.get(&seq).map(|body| &body.payload), self.responses.get(&seq));
            let after = Side { request, stage: Stage::of_live(row.loaded.listed.state), body, response };
            Step { before: None, after, new_body: true, new_response: true }
        };
        rows.iter().map(step).collect()
    }
}

impl Ticked {
    /// What the tick did to each request, with what is at hand of what it asks and what was
    /// answered to it.
    pub(in crate::store) fn steps<'a>(&'a self, changes: &Changes<'a>, texts: &'a Texts) -> Vec<Step<'a>> {
        let mut ends = ends_of(changes);
        let mut steps = Vec::with_capacity(changes.live.len() + changes.gone.len());
        for was in &changes.gone {
            let (request, end) = (&was.request, ends.get_mut(&was.request.id).and_then(VecDeque::pop_front));
            // The journal tells of every end.
            let stage = end.map_or(Stage::Withdrawn, Stage::from);
            let (body, response) = self.texts_now(request.seq, texts);
            let after = Side { request, stage, body, response };
            let before = self.before(request, Stage::of_live(was.listed.state), texts);
            steps.push(Step {
                before: Some(before),
                after,
                new_body: false,
                new_response: self.is_answered(request.seq),
            });
        }
        for put in &changes.live {
            let (seq, request) = (put.request.seq, put.request);
            let (body, response) = self.texts_now(seq, texts);
            let after = Side { request, stage: Stage::of_live(put.listed.state), body, response };
            let before = put.was.map(|was| self.before(&was.request, Stage::of_live(was.listed.state), texts));
            steps.push(Step { before, after, new_body: put.body.is_some(), new_response: self.is_answered(seq) });
        }
        steps
    }

    /// Whether another response is there than before, or none.
    fn is_answered(&self, seq: Seq) -> bool {
        self.tray.new_responses.contains(&seq) || self.tray.void_responses.contains(&seq)
    }

    fn before<'a>(&'a self, request: &'a Request, stage: Stage, texts: &'a Texts) -> Side<'a> {
        let old = &self.fetched.tray;
        let body = old.bodies.get(&request.seq).or_else(|| texts.bodies.get(&request.seq));
        let response = old.responses.get(&request.seq).or_else(|| texts.responses.get(&request.seq));
        Side { request, stage, body: body.map(|body| &body.payload), response }
    }

    fn texts_now<'a>(&'a self, seq: Seq, texts: &'a Texts) -> (Option<&'a Payload>, Option<&'a Payload>) {
        let body = self.tray.bodies.get(&seq).or_else(|| texts.bodies.get(&seq));
        let response = match self.tray.void_responses.contains(&seq) {
            true => None,
            false => self.tray.responses.get(&seq).or_else(|| texts.responses.get(&seq)),
        };
        (body.map(|body| &body.payload), response)
    }
}

/// How requests ended in a tick, those of one id in their order.
fn ends_of(changes: &Changes<'_>) -> BTreeMap<RequestId, VecDeque<End>> {
    let mut ends: BTreeMap<RequestId, VecDeque<End>> = BTreeMap::new();
    for entry in changes.entries {
        if let (Subject::Request(id), Event::Ended { end }) = (&entry.subject, &entry.event) {
            ends.entry(*id).or_default().push_back(*end);
        }
    }
    ends
}

/// All routes by their numbers, with those that the tick defines.
pub(in crate::store) fn routes<'a>(
    fixtures: &'a FixtureRows,
    changes: Option<&Changes<'a>>,
) -> impl Iterator<Item = (RouteNo, &'a RouteName)> {
    let new = changes.and_then(|changes| changes.fixtures);
    fixtures.values().chain(new.into_iter().flat_map(FixtureRows::values)).filter_map(|fixture| match fixture {
        Fixture::Route { no, name, .. } => Some((*no, name)),
        _ => None,
    })
}
