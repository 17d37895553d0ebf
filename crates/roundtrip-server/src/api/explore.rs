//! Transactions by their hashes: which requests they ask for, whose answers they carry, what they say;
//! and of a request, the transactions that ask for it.
//!
//! ```text
//!   hash ──▶ lanes, then what the journal told ──▶ whose answers it carries
//!     └────▶ the chains: its receipt ──▶ events ──▶ ids of requests ──▶ how the store has them
//!   request ──▶ the blocks that it was seen in ──▶ events ──▶ their transactions
//! ```
//!
//! Failure modes: a chain that does not answer shows nothing; whoever asks is told so, if nothing
//! else is known by the hash.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use futures_util::future::join_all;
use roundtrip::sender::AttemptKind;
use roundtrip::store::ReadExt;
use roundtrip::store::query::{Found, OccurrenceView};
use roundtrip::words::{AttemptHash, RequestId};
use roundtrip_evm::listener::Asked;
use roundtrip_evm::sender::Signed;
use roundtrip_evm::{ContractCall, EvmSource, Rpc};
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::lanes::WireSigned;
use super::path::Path;
use super::problem::Problem;
use super::requests::gone;
use super::views::{State as WireState, WireRequest};

/// How long chains have to show a transaction.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);
/// Requests of one transaction that are told of.
const ASKS_MAX: usize = 500;
/// Events of one request whose transactions are looked for.
const SHOWN_MAX: usize = 8;

/// The chains, for whoever knows a transaction's hash and nothing else.
#[derive(Default)]
pub struct Explorer {
    /// What shows the requests of routes, with the name of the chain.
    sources: Vec<(String, EvmSource)>,
    /// The nodes by which each destination's transactions are seen.
    nodes: BTreeMap<String, Vec<Rpc>>,
}

impl Explorer {
    /// Looks here.
    pub(crate) fn new(sources: Vec<(String, EvmSource)>, nodes: BTreeMap<String, Vec<Rpc>>) -> Explorer {
        Explorer { sources, nodes }
    }

    /// What a transaction asks for, by chain; and why some could not be asked.
    async fn asked(&self, hash: AttemptHash) -> (Vec<(&str, Asked)>, Vec<String>) {
        let asking = self.sources.iter().map(|(chain, source)| async move {
            match tokio::time::timeout(SHOWN_WITHIN, source.asked_by(hash.0.into())).await {
                Ok(Ok(asked)) => Ok(asked.map(|asked| (chain.as_str(), asked))),
                Ok(Err(error)) => Err(format!("{chain}: {error}")),
                Err(_) => Err(format!("{chain}: it does not answer")),
            }
        });
        let (mut found, mut silent) = (Vec::new(), Vec::new());
        for answer in join_all(asking).await {
            match answer {
                Ok(asked) => found.extend(asked),
                Err(why) => silent.push(why),
            }
        }
        silent.dedup();
        (found, silent)
    }

    /// The transactions that show one of these occurrences; and why some could not be told.
    async fn asking(&self, occurrences: &[OccurrenceView]) -> (Vec<WireAsker>, Vec<String>) {
        let placed = occurrences.iter().filter_map(|shown| Some((shown.id, shown.place.as_ref()?)));
        let (mut found, mut silent) = (Vec::new(), Vec::new());
        for (occurrence, place) in placed.take(SHOWN_MAX) {
            for (chain, source) in self.sources.iter().filter(|(chain, _)| chain == place.origin.as_str()) {
                let asking = source.asking(place.height, occurrence);
                match tokio::time::timeout(SHOWN_WITHIN, asking).await {
                    Ok(Ok(None)) => continue,
                    Ok(Ok(Some(hash))) => {
                        found.push(WireAsker { hash: hash.to_string(), chain: chain.clone(), height: place.height.0 });
                    }
                    Ok(Err(error)) => silent.push(format!("{chain}: {error}")),
                    Err(_) => silent.push(format!("{chain}: it does not answer")),
                }
                break;
            }
        }
        silent.dedup();
        (found, silent)
    }

    /// What a transaction says, if it calls what one of the destinations does.
    async fn said(&self, hash: AttemptHash, calls: &BTreeMap<String, ContractCall>) -> Option<WireSigned> {
        for (destination, nodes) in &self.nodes {
            let call = calls.get(destination);
            for rpc in nodes {
                let Ok(Ok(shown)) = tokio::time::timeout(SHOWN_WITHIN, Signed::fetch(rpc, hash)).await else {
                    continue;
                };
                let said = shown.map(|signed| WireSigned::of(&signed, call)).filter(|said| said.function.is_some());
                if said.is_some() {
                    return said;
                }
                break;
            }
        }
        None
    }
}

/// What is known of a transaction.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct WireTransaction {
    /// Its hash.
    pub hash: String,
    /// The lane that it is of, while its slot is not final.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Its slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nonce: Option<u64>,
    /// The requests whose answers are on its slot.
    pub requests: Vec<String>,
    /// Whether it carries them, if it was signed here; else it only uses the slot up: a cancel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carries: Option<bool>,
    /// The requests that its events ask for.
    pub asks: Vec<WireAsk>,
    /// What it says, if it is one of a lane's: by the stored bytes, or by what its chain shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<WireSigned>,
}

/// A request that a transaction asks for.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct WireAsk {
    /// Its id.
    pub id: String,
    /// On which route.
    pub route: String,
    /// On which chain.
    pub chain: String,
    /// In the block of this height.
    pub height: u64,
    /// How it stands; absent if it is not stored: not read yet, or forgotten since it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<WireState>,
}

/// The transactions that ask for a request.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct WireAskers {
    /// In the order in which their events were seen.
    pub transactions: Vec<WireAsker>,
    /// Why some could not be told: their chain does not answer.
    pub silent: Vec<String>,
}

/// A transaction whose event shows a request.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct WireAsker {
    /// Its hash.
    pub hash: String,
    /// On which chain.
    pub chain: String,
    /// In the block of this height.
    pub height: u64,
}

/// The transactions that ask for a live request, as its chain shows them.
///
/// A store keeps the blocks in which a request was seen, not the transactions: those are read from
/// the chain. None are told of what came by a call or a timer, and of what a reorg took away.
#[utoipa::path(
    get, path = "/v1/requests/{id}/asked_by", tag = "requests",
    params(("id" = String, Path, pattern = "^(0x)?[0-9a-fA-F]{64}$", description = "Which request.")),
    responses(
        (status = 200, description = "The transactions.", body = WireAskers),
        Problem,
    ),
)]
pub(super) async fn asked_by(State(api): State<Api>, Path(id): Path<String>) -> Result<Json<WireAskers>, Problem> {
    let id = id.parse()?;
    let occurrences = match api.store.get(id).await? {
        Some(Found::Live(view, _)) => view.occurrences,
        Some(Found::Ended(_)) => Vec::new(),
        None => return Err(gone(id)),
    };
    let (transactions, silent) = api.premises.explorer.asking(&occurrences).await;
    Ok(Json(WireAskers { transactions, silent }))
}

/// What a transaction carries and asks for, and what it says.
///
/// Every signed attempt is known while its slot is not final, and afterwards as long as this process
/// remembers it. What it asks for is told by the chains that routes listen
/// to: the ids of requests are made of its events.
#[utoipa::path(
    get, path = "/v1/transactions/{hash}", tag = "watch",
    params(("hash" = String, Path, description = "The transaction's hash.")),
    responses(
        (status = 200, description = "What is known of it.", body = WireTransaction),
        Problem,
    ),
)]
pub(super) async fn transaction(
    State(api): State<Api>,
    Path(hash): Path<String>,
) -> Result<Json<WireTransaction>, Problem> {
    let hash: AttemptHash = hash.strip_prefix("0x").unwrap_or(&hash).parse()?;
    let (explorer, calls) = (&api.premises.explorer, &api.premises.calls);
    let ((asked, silent), carried) = tokio::join!(explorer.asked(hash), api.carried(hash));
    let mut found = carried?;
    found.asks = api.asks(asked).await?;
    let ours = found.lane.is_some() || !found.requests.is_empty();
    if ours && found.transaction.is_none() {
        found.transaction = explorer.said(hash, calls).await;
    }
    match ours || !found.asks.is_empty() {
        true => Ok(Json(found)),
        false if silent.is_empty() => Err(Problem::not_found(format!(
            "no transaction 0x{hash} is known here: it asks for nothing and answers nothing, or it is so old that it is forgotten"
        ))),
        false => Err(Problem::later(format!(
            "no lane has a transaction 0x{hash}, and whether it asks for anything cannot be told now: {}",
            silent.join("; ")
        ))),
    }
}

impl Api {
    /// Whose answers a transaction carries, as far as the store or this process remembers it.
    async fn carried(&self, hash: AttemptHash) -> Result<WireTransaction, Problem> {
        let ids = |requests: &[RequestId]| requests.iter().map(ToString::to_string).collect();
        let bare = WireTransaction {
            hash: format!("0x{hash}"),
            lane: None,
            nonce: None,
            requests: Vec::new(),
            carries: None,
            asks: Vec::new(),
            transaction: None,
        };
        for lane in self.store.lanes().await? {
            let Some(lane) = self.store.lane(lane.name).await? else { continue };
            let call = self.premises.calls.get(lane.destination.as_str());
            for parcel in &lane.parcels {
                let Some(attempt) = parcel.attempts.iter().find(|one| one.hash == hash) else { continue };
                return Ok(WireTransaction {
                    lane: Some(lane.name.to_string()),
                    nonce: Some(parcel.nonce.0),
                    requests: ids(&parcel.deliveries),
                    carries: Some(attempt.kind == AttemptKind::Carry),
                    transaction: Signed::read(attempt).map(|signed| WireSigned::of(&signed, call)),
                    ..bare
                });
            }
        }
        Ok(match self.premises.history.book().signed_for(&hash) {
            Some(signed) => WireTransaction {
                requests: ids(&signed.requests),
                carries: Some(signed.kind == AttemptKind::Carry),
                ..bare
            },
            None => bare,
        })
    }

    /// How the store has what was asked for. A listener of each route and chain showed it.
    async fn asks(&self, asked: Vec<(&str, Asked)>) -> Result<Vec<WireAsk>, Problem> {
        let mut asks = Vec::new();
        for (chain, Asked { height, requests }) in asked {
            for request in requests {
                if asks.len() == ASKS_MAX {
                    return Ok(asks);
                }
                let state = self.store.get(request.id).await?.map(|found| WireRequest::from(found).state);
                let (id, route, chain) = (request.id.to_string(), request.route.to_string(), chain.to_owned());
                asks.push(WireAsk { id, route, chain, height: height.0, state });
            }
        }
        Ok(asks)
    }
}
