//! How far each listener is, and whether it gets on.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use roundtrip::listener::{Cursor, SourceNode, Stall};
use roundtrip::relay::Following;
use roundtrip::store::ReadExt;
use roundtrip::store::query::OriginView;
use roundtrip::words::{ListenerName, UnixMs};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;
use super::problem::Problem;

/// How the cursor of a route's lead begins, which the store keeps beside those of listeners.
const LEAD: &str = "lead:";

/// All listeners.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Listeners {
    /// By name.
    pub listeners: Vec<WireListener>,
}

/// Whether a listener gets on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ListenerState {
    /// This process does not run it; another one may.
    Elsewhere,
    /// It reads what comes.
    Following,
    /// It waits, and goes on by itself.
    Waits,
    /// It stopped until a person has looked.
    Halted,
}

/// A listener of a chain, or a timer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireListener {
    /// Its name: `ROUTE@CHAIN`; of a timer, its route.
    pub name: String,
    /// Whether it gets on, as far as this process can tell.
    pub state: ListenerState,
    /// What it waits for, or why it stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Which chain it reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Up to where everything is stored and final: a block's height, or the number of a tick.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<u64>,
    /// Up to where the store was told what became of each request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead: Option<u64>,
    /// The last block that this process read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_to: Option<u64>,
    /// The newest final block that the chain showed this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finalized: Option<u64>,
    /// The newest block that the chain showed this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<u64>,
    /// When the chain last showed this process how far it is, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub looked_at_ms: Option<u64>,
    /// How many blocks there were, then, that this process has not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_blocks: Option<u64>,
    /// How old what was read of the chain is, by whichever listener is furthest, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_ms: Option<u64>,
    /// The nodes by which this process sees the chain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<WireNode>,
}

/// A node of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireNode {
    /// Where it is, less what may be a key.
    pub name: String,
    /// Whether little is held against it: it answered well lately, or was not asked.
    pub healthy: bool,
    /// When this listener last asked it, in milliseconds since 1970; absent, if it never did. Nodes are
    /// asked in their order, so that one behind those that answer is asked only when they do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_at_ms: Option<u64>,
    /// When it last had an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered_at_ms: Option<u64>,
}

impl WireNode {
    fn of(node: SourceNode, now: UnixMs) -> WireNode {
        let at =
            |ago: Option<Duration>| ago.map(|ago| now.0.saturating_sub(ago.as_millis().try_into().unwrap_or(u64::MAX)));
        let (asked_at_ms, answered_at_ms) = (at(node.asked), at(node.answered));
        WireNode { name: node.name, healthy: node.healthy, asked_at_ms, answered_at_ms }
    }
}

/// What the store and this process know of listeners, together.
fn listeners_of(
    cursors: &[(ListenerName, Cursor)],
    origins: &[OriginView],
    here: &BTreeMap<String, Following>,
    now: UnixMs,
) -> Vec<WireListener> {
    let cursors: BTreeMap<&str, u64> = cursors.iter().map(|(name, at)| (name.as_str(), at.at.height.0)).collect();
    let mut names: Vec<&str> = cursors.keys().copied().filter(|name| !name.starts_with(LEAD)).collect();
    names.extend(here.keys().map(String::as_str));
    names.sort_unstable();
    names.dedup();
    let listener = |name: &str| {
        let origin = name.rsplit_once('@').map(|(_, origin)| origin);
        let known = origin.and_then(|origin| origins.iter().find(|view| view.name.as_str() == origin));
        let shown = WireListener {
            name: name.to_owned(),
            state: ListenerState::Elsewhere,
            detail: None,
            origin: origin.map(str::to_owned),
            cursor: cursors.get(name).copied(),
            lead: cursors.get(format!("{LEAD}{name}").as_str()).copied(),
            read_to: None,
            finalized: None,
            head: None,
            looked_at_ms: None,
            behind_blocks: None,
            behind_ms: known.and_then(|view| view.behind_ms),
            nodes: Vec::new(),
        };
        here.get(name).map_or(shown.clone(), |following| followed(shown, following, now))
    };
    names.into_iter().map(listener).collect()
}

/// What this process knows of a listener that it runs.
fn followed(shown: WireListener, following: &Following, now: UnixMs) -> WireListener {
    let stats = &following.stats;
    let (state, detail) = match stats.stall() {
        None => (ListenerState::Following, None),
        Some(Stall::Waits(why)) => (ListenerState::Waits, Some(why)),
        Some(Stall::Halted(why)) => (ListenerState::Halted, Some(why)),
    };
    let some = |number: u64| Some(number).filter(|number| *number > 0);
    let (head, read_to) = (some(stats.head().0), some(stats.read_to().0));
    let furthest = read_to.max(shown.cursor);
    WireListener {
        state,
        detail,
        read_to,
        finalized: some(stats.finalized().0),
        head,
        looked_at_ms: some(stats.looked_at().0),
        // Whoever has read nothing yet may begin anywhere: how much it has to read is not known.
        behind_blocks: head.zip(furthest).map(|(head, furthest)| head.saturating_sub(furthest)),
        nodes: following.nodes().into_iter().map(|node| WireNode::of(node, now)).collect(),
        ..shown
    }
}

impl Api {
    /// How far each listener is.
    pub(super) async fn listeners(&self) -> Result<Vec<WireListener>, Problem> {
        let (cursors, origins) = (self.store.cursors().await?, self.store.origins().await?);
        Ok(listeners_of(&cursors, &origins, &self.premises.followers, self.now()))
    }
}

/// How far each listener is, and whether it gets on.
#[utoipa::path(
    get, path = "/v1/listeners", tag = "watch",
    responses(
        (status = 200, description = "The listeners.", body = Listeners),
        Problem,
    ),
)]
pub(super) async fn listeners(State(api): State<Api>) -> Result<Json<Listeners>, Problem> {
    Ok(Json(Listeners { listeners: api.listeners().await? }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use roundtrip::listener::Head;
    use roundtrip::words::{Height, OriginName, Position};

    use super::*;

    #[test]
    fn a_node_that_was_never_asked_is_told_from_one_that_answered() {
        let node = |asked, answered| {
            WireNode::of(SourceNode { name: "a".to_owned(), healthy: true, asked, answered }, UnixMs(10_000))
        };
        let told = |node: WireNode| (node.asked_at_ms, node.answered_at_ms);
        let ago = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(told(node(None, None)), (None, None));
        assert_eq!(told(node(ago(1), None)), (Some(9_000), None));
        assert_eq!(told(node(ago(1), ago(4))), (Some(9_000), Some(6_000)));
    }

    #[test]
    fn a_listener_is_known_by_its_cursor_and_its_lead_is_not_another() {
        let cursor = |name: &str, height: u64| {
            let at = Position { height: Height(height), hash: [0; 32] };
            (ListenerName::new(name).unwrap(), Cursor { version: 1, at })
        };
        let head = Head { height: Height(12), at: UnixMs(0), told_at: UnixMs(0) };
        let origin = OriginView {
            name: OriginName::new("main").unwrap(),
            floor: Height(0),
            head: Some(head),
            behind_ms: Some(500),
        };
        let cursors = [cursor("lead:price@main", 8), cursor("price@main", 9), cursor("tick", 3)];
        let shown = listeners_of(&cursors, &[origin], &BTreeMap::new(), UnixMs(0));
        let told: Vec<_> = shown.iter().map(|l| (l.name.as_str(), l.cursor, l.lead, l.behind_ms)).collect();
        assert_eq!(told, [("price@main", Some(9), Some(8), Some(500)), ("tick", Some(3), None, None)]);
        assert!(shown.iter().all(|listener| listener.state == ListenerState::Elsewhere));
    }
}
