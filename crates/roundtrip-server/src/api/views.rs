//! What is shown of the store, in the words of the wire; read back by the command.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use roundtrip::inbox::{End, Standing, StateKind};
use roundtrip::sender::{AttemptKind, AttemptNote, Block};
use roundtrip::store::journal::{Entry, Event, Subject};
use roundtrip::store::query::{Bodies, Count, Found, OccurrenceView, OriginView, Phase, ReceiptView, RequestView};
use roundtrip::trace::TraceContext;
use roundtrip::words::{ErrorNote, Moment, Nonce};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::body::{WireEncoding, shown};
use super::problem::Problem;

/// A time as people write it.
pub(crate) fn time_text(ms: u64) -> String {
    /// The last millisecond that has a year of four digits.
    const LAST_MS: u64 = 253_402_300_799_999;
    let at = std::time::UNIX_EPOCH.checked_add(Duration::from_millis(ms)).filter(|_| ms <= LAST_MS);
    at.map_or_else(|| "never".to_owned(), |at| humantime::format_rfc3339_millis(at).to_string())
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Not yet due, or not yet final enough.
    Held,
    /// Ready for a worker.
    Queued,
    /// In a worker's hand.
    Leased,
    /// Answered, not yet final enough to be sent.
    Waiting,
    /// Answered, to be sent or fetched.
    Ready,
    /// On a slot of a lane.
    Assigned,
    /// In a block.
    Included,
    /// At the route's depth.
    Confirmed,
    /// A dead letter.
    Dead,
    /// Ended well.
    Settled,
    /// Ended by its deadline.
    Expired,
    /// Ended because it was taken back.
    Withdrawn,
    /// Ended because somebody else answered.
    Elsewhere,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

impl From<StateKind> for State {
    fn from(state: StateKind) -> State {
        match state {
            StateKind::Held => State::Held,
            StateKind::Queued => State::Queued,
            StateKind::Leased => State::Leased,
            StateKind::Waiting => State::Waiting,
            StateKind::Ready => State::Ready,
            StateKind::Assigned => State::Assigned,
            StateKind::Included => State::Included,
            StateKind::Confirmed => State::Confirmed,
            StateKind::Dead => State::Dead,
            StateKind::Settled => State::Settled,
            StateKind::Expired => State::Expired,
            StateKind::Withdrawn => State::Withdrawn,
            StateKind::Elsewhere => State::Elsewhere,
        }
    }
}

impl From<End> for State {
    fn from(end: End) -> State {
        match end {
            End::Settled => State::Settled,
            End::Dead => State::Dead,
            End::Expired => State::Expired,
            End::Withdrawn => State::Withdrawn,
            End::Elsewhere => State::Elsewhere,
        }
    }
}

/// The states that a filter names, separated by commas.
pub(crate) fn states(filter: Option<&str>) -> Result<Vec<State>, Problem> {
    let read = |word: &str| {
        let state = serde_json::from_value(word.trim().into());
        state.map_err(|_| Problem::unprocessable(format!("{word:?} is no state")))
    };
    filter.iter().flat_map(|text| text.split(',')).map(read).collect()
}

impl State {
    /// The state of live requests that this is, if it is one.
    pub(crate) fn live(self) -> Option<StateKind> {
        StateKind::LIVE.into_iter().find(|kind| State::from(*kind) == self)
    }
}

/// Finality of a request's origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WireStanding {
    /// It is there, and may still go.
    Seen,
    /// It stays.
    Final,
    /// A reorg took it away.
    Orphaned,
}

impl From<Standing> for WireStanding {
    fn from(standing: Standing) -> WireStanding {
        match standing {
            Standing::Seen => WireStanding::Seen,
            Standing::Final => WireStanding::Final,
            Standing::Orphaned => WireStanding::Orphaned,
        }
    }
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireError {
    /// `transport`, `retryable`, `fatal` or `crash`.
    pub class: Cow<'static, str>,
    /// In words.
    pub text: String,
}

impl From<&ErrorNote> for WireError {
    fn from(note: &ErrorNote) -> WireError {
        WireError { class: note.class.word().into(), text: note.text.to_string() }
    }
}

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireRequest {
    /// Its id.
    pub id: String,
    /// Where it is, or how it ended.
    pub state: State,
    /// Which generation of its id.
    pub generation: u32,
    /// Its route, while it is live.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Its place in the order of admission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Which content, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u16>,
    /// Finality of its origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standing: Option<WireStanding>,
    /// When it came in, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admitted_at_ms: Option<u64>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<u64>,
    /// When it became a dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub died_at_ms: Option<u64>,
    /// Not to be worked on before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<WireMoment>,
    /// Of no use after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<WireMoment>,
    /// How often it was handed out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u16>,
    /// How often a worker died or went silent with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crashes: Option<u16>,
    /// Who works on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Until when they have it, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leased_until_ms: Option<u64>,
    /// Of a dead letter: whether it has an answer that could not be delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<bool>,
    /// Whether it waits for the end of another live request with the same id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<bool>,
    /// The events that show it; not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub occurrences: Vec<WireOccurrence>,
    /// The trace that its spans are of: the one that it came with, or one that is made of its id. Not in lists; after its
    /// end as long as the journal tells of its admission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The trace context that it came with; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// On which lane its answer is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// On which slot of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    /// What last went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
    /// How often its answer failed to be delivered where no lane delivers it; `error` says why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_failures: Option<u32>,
    /// When it last did, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_failed_at_ms: Option<u64>,
    /// When it is tried again, if the process that is asked delivers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_due_at_ms: Option<u64>,
    /// How to read what is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding: Option<WireEncoding>,
    /// What is asked; not in lists.
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Box<RawValue>>,
    /// How to read the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_encoding: Option<WireEncoding>,
    /// The answer, as long as it is kept.
    #[schema(value_type = Option<serde_json::Value>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<Box<RawValue>>,
}

/// An event that shows a request.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireOccurrence {
    /// Which.
    pub id: String,
    /// Where it was seen: at which origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// At which height of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height: Option<u64>,
    /// Which content it shows.
    pub revision: u16,
    /// How its origin stands by it.
    pub standing: WireStanding,
}

impl From<&OccurrenceView> for WireOccurrence {
    fn from(view: &OccurrenceView) -> WireOccurrence {
        WireOccurrence {
            id: view.id.to_string(),
            origin: view.place.as_ref().map(|place| place.origin.to_string()),
            height: view.place.as_ref().map(|place| place.height.0),
            revision: view.revision,
            standing: view.standing.into(),
        }
    }
}

/// When something is due: by the clock, or by a chain's.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum WireMoment {
    /// At this time, in milliseconds since 1970.
    At {
        /// The time.
        at_ms: u64,
    },
    /// At this height of an origin.
    Height {
        /// Whose.
        origin: String,
        /// Which.
        height: u64,
    },
    /// At this time of an origin's blocks.
    BlockTime {
        /// Whose.
        origin: String,
        /// When.
        block_time_ms: u64,
    },
}

impl From<&Moment> for WireMoment {
    fn from(moment: &Moment) -> WireMoment {
        match moment {
            Moment::At(at) => WireMoment::At { at_ms: at.0 },
            Moment::Height(place) => WireMoment::Height { origin: place.origin.to_string(), height: place.height.0 },
            Moment::BlockTime { origin, at } => {
                WireMoment::BlockTime { origin: origin.to_string(), block_time_ms: at.0 }
            }
        }
    }
}

impl From<Found> for WireRequest {
    fn from(found: Found) -> WireRequest {
        match found {
            Found::Live(view, bodies) => {
                let occurrences = view.occurrences.iter().map(WireOccurrence::from).collect();
                let trace_id = Some(TraceContext::of(&view.id, bodies.trace.as_deref()).trace.to_string());
                WireRequest { occurrences, trace_id, ..WireRequest::from(*view).with(&bodies) }
            }
            Found::Ended(receipt) => receipt.into(),
        }
    }
}

impl From<ReceiptView> for WireRequest {
    fn from(receipt: ReceiptView) -> WireRequest {
        let ended_at_ms = Some(receipt.ended_at.0);
        WireRequest { ended_at_ms, ..WireRequest::bare(receipt.id.to_string(), receipt.end.into(), receipt.generation) }
    }
}

impl From<RequestView> for WireRequest {
    fn from(view: RequestView) -> WireRequest {
        let state = view.phase.kind().into();
        let (mut lease, mut slot, mut death) = (None, None, None);
        match &view.phase {
            Phase::Leased { worker, until, .. } => lease = Some((worker.to_string(), until.0)),
            Phase::Assigned { lane, nonce, .. } => slot = Some((lane.to_string(), nonce.0)),
            Phase::Dead { at, answered } => death = Some((at.0, *answered)),
            _ => {}
        }
        let (worker, leased_until_ms) = lease.unzip();
        let (lane, nonce) = slot.unzip();
        let (died_at_ms, answered) = death.unzip();
        WireRequest {
            route: Some(view.route.to_string()),
            seq: Some(view.seq.0),
            revision: Some(view.revision),
            standing: Some(view.standing.into()),
            admitted_at_ms: Some(view.admitted_at.0),
            died_at_ms,
            due: view.due.as_ref().map(WireMoment::from),
            deadline: view.deadline.as_ref().map(WireMoment::from),
            attempts: Some(view.attempts),
            crashes: Some(view.crashes),
            worker,
            leased_until_ms,
            answered,
            behind: view.behind.then_some(true),
            lane,
            nonce,
            error: view.error.as_ref().map(WireError::from),
            delivery_failures: view.undelivered.map(|undelivered| undelivered.times),
            delivery_failed_at_ms: view.undelivered.map(|undelivered| undelivered.at.0),
            delivery_due_at_ms: None,
            ..WireRequest::bare(view.id.to_string(), state, view.generation)
        }
    }
}

impl WireRequest {
    fn bare(id: String, state: State, generation: u32) -> WireRequest {
        WireRequest {
            id,
            state,
            generation,
            route: None,
            seq: None,
            revision: None,
            standing: None,
            admitted_at_ms: None,
            ended_at_ms: None,
            died_at_ms: None,
            due: None,
            deadline: None,
            attempts: None,
            crashes: None,
            worker: None,
            leased_until_ms: None,
            answered: None,
            behind: None,
            occurrences: Vec::new(),
            trace_id: None,
            trace: None,
            lane: None,
            nonce: None,
            error: None,
            delivery_failures: None,
            delivery_failed_at_ms: None,
            delivery_due_at_ms: None,
            encoding: None,
            payload: None,
            response_encoding: None,
            response: None,
        }
    }

    fn with(self, bodies: &Bodies) -> WireRequest {
        let (encoding, payload) = shown(&bodies.payload);
        let (response_encoding, response) = bodies.response.as_ref().map(shown).unzip();
        let trace = bodies.trace.as_ref().map(ToString::to_string);
        WireRequest { encoding: Some(encoding), payload: Some(payload), response_encoding, response, trace, ..self }
    }
}

/// A page of requests.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WirePage {
    /// The requests, oldest first. There may be fewer than were asked for, even none, and still a next page.
    pub requests: Vec<WireRequest>,
    /// What to give as `after` for the next page; none at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// How many requests of a route are in a state.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireCount {
    /// Which route.
    pub route: String,
    /// Which state.
    pub state: State,
    /// How many.
    pub requests: u64,
    /// When the oldest of them came in, in milliseconds since 1970.
    pub oldest_at_ms: u64,
}

impl From<Count> for WireCount {
    fn from(count: Count) -> WireCount {
        let Count { route, state, requests, oldest_at } = count;
        WireCount { route: route.to_string(), state: state.into(), requests, oldest_at_ms: oldest_at.0 }
    }
}

/// An origin of requests, such as a chain, and its clock.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireOrigin {
    /// Its name.
    pub name: String,
    /// Its newest block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height: Option<u64>,
    /// How far its clock is behind, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_ms: Option<u64>,
}

impl From<OriginView> for WireOrigin {
    fn from(view: OriginView) -> WireOrigin {
        WireOrigin {
            name: view.name.to_string(),
            height: view.head.map(|head| head.height.0),
            behind_ms: view.behind_ms,
        }
    }
}

/// A change.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireEntry {
    /// Its place in the journal.
    pub position: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What happened, such as `admitted`, `leased`, `answered`, `ended`.
    pub event: Cow<'static, str>,
    /// To which request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Of or to which route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// On or to which lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// On which slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    /// By which transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<String>,
    /// What that pays for a unit of gas at the most, decimal, in wei, if it was just signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fee_most: Option<String>,
    /// Whether it carries what is on its slot, if it was just signed; else it only uses the slot up: a cancel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carries: Option<bool>,
    /// The height of the block that it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<u64>,
    /// By or to whom, how, or why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What can happen, as [`WireEntry::event`] names it.
pub(super) const EVENTS: [&str; 32] = [
    "admitted",
    "attached",
    "finalized",
    "orphaned",
    "reincluded",
    "superseded",
    "leased",
    "released",
    "failed",
    "answered",
    "assigned",
    "included",
    "confirmed",
    "moved_back",
    "returned",
    "delivered",
    "died",
    "replaced",
    "undelivered",
    "rearmed",
    "reworked",
    "done_elsewhere",
    "ended",
    "lane_status",
    "attempted",
    "cancel_wished",
    "filled",
    "sealed",
    "defined",
    "paused",
    "resumed",
    "rolled_back",
];

impl From<Entry> for WireEntry {
    fn from(entry: Entry) -> WireEntry {
        let of_route = entry.route.map(|route| route.to_string());
        let (request, route, lane, group) = match entry.subject {
            Subject::Request(id) => (Some(id.to_string()), of_route, None, None),
            Subject::Lane(lane) => (None, None, Some(lane.to_string()), None),
            Subject::Route(route) => (None, Some(route.to_string()), None, None),
            Subject::Group(group) => (None, None, None, Some(group.to_string())),
            Subject::Store => (None, None, None, None),
        };
        let at_ms = entry.at.0;
        let position = entry.position;
        let bare = |event: &'static str| WireEntry {
            position,
            at_ms,
            event: event.into(),
            request: request.clone(),
            route: route.clone(),
            lane: lane.clone(),
            nonce: None,
            transaction: None,
            fee_most: None,
            carries: None,
            block: None,
            detail: group.clone(),
        };
        let detailed = |event: &'static str, detail: String| WireEntry { detail: Some(detail), ..bare(event) };
        let hash = |hash: &roundtrip::words::AttemptHash| Some(format!("0x{hash}"));
        let signed = |event: &'static str, nonce: Nonce, attempt: &AttemptNote| WireEntry {
            nonce: Some(nonce.0),
            transaction: hash(&attempt.hash),
            fee_most: attempt.fee.map(|fee| fee.to_string()),
            carries: Some(attempt.kind == AttemptKind::Carry),
            ..bare(event)
        };
        let mined = |event: &'static str, block: &Block| WireEntry {
            transaction: hash(&block.attempt),
            block: Some(block.at.height.0),
            ..bare(event)
        };
        let entry = match entry.event {
            Event::Admitted { generation, .. } => detailed("admitted", format!("generation {generation}")),
            Event::Attached => bare("attached"),
            Event::Finalized => bare("finalized"),
            Event::Orphaned => bare("orphaned"),
            Event::Included => bare("reincluded"),
            Event::Superseded { revision } => detailed("superseded", format!("revision {revision}")),
            Event::Leased { worker, attempt } => detailed("leased", format!("{worker}, attempt {attempt}")),
            Event::Released => bare("released"),
            Event::Failed { error, due } => {
                detailed("failed", format!("{}; due again at {}", error.text, time_text(due.0)))
            }
            Event::Answered => bare("answered"),
            Event::Assigned { lane, nonce, attempt } => {
                WireEntry { lane: Some(lane.to_string()), ..signed("assigned", nonce, &attempt) }
            }
            Event::Mined { block } => mined("included", &block),
            Event::Confirmed { block } => mined("confirmed", &block),
            Event::Unmined => bare("moved_back"),
            Event::Returned { error } => {
                WireEntry { detail: error.map(|note| note.text.to_string()), ..bare("returned") }
            }
            Event::Published { destination } => detailed("delivered", destination.to_string()),
            Event::Died { error } => detailed("died", error.text.to_string()),
            Event::Replaced { error } => detailed("replaced", error.text.to_string()),
            Event::Undelivered { error } => detailed("undelivered", error.text.to_string()),
            Event::Rearmed => bare("rearmed"),
            Event::Reworked => bare("reworked"),
            Event::DoneElsewhere { note } => detailed("done_elsewhere", note.text.to_string()),
            Event::Ended { end } => detailed("ended", format!("{end:?}").to_lowercase()),
            Event::LaneStatus { status } => detailed("lane_status", super::lanes::status_of(&status).0.to_owned()),
            Event::Attempted { nonce, attempt } => signed("attempted", nonce, &attempt),
            Event::CancelWished { nonce, .. } => WireEntry { nonce: Some(nonce.0), ..bare("cancel_wished") },
            Event::Filled { nonce, hash: attempt } => {
                WireEntry { nonce: Some(nonce.0), transaction: hash(&attempt), ..bare("filled") }
            }
            Event::Sealed { items, request } => {
                WireEntry { request: Some(request.to_string()), ..detailed("sealed", format!("{items} items")) }
            }
            Event::Defined => bare("defined"),
            Event::Paused { paused } => bare(if paused { "paused" } else { "resumed" }),
            Event::RolledBack => bare("rolled_back"),
        };
        // Whoever filters by a name that is not listed is refused.
        debug_assert!(EVENTS.contains(&&*entry.event), "{} is not listed", entry.event);
        entry
    }
}
