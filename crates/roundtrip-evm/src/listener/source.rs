//! The blocks of a chain, with the requests that their events make.

use std::sync::Arc;

use roundtrip::inbox::Standing;
use roundtrip::listener::{BlockSource, SourceBlock, SourceError, SourceFuture, Tips, flawed, request_with_id};
use roundtrip::store::op::NewRequest;
use roundtrip::words::{Height, OccurrenceId, Payload, RequestId, RouteName};
use serde_json::{Value, json};

use super::logs::{Occurrences, WireLog};
use super::node::Node;
use super::watch::Watch;
use crate::rpc::{CallError, Finality, Header, Rpc};

/// A chain whose events are requests, over JSON-RPC.
///
/// A request's payload is `{"event": name, "signature": name and types, "address": contract,
/// "args": {..}}`; that of a log which cannot be decoded, a dead letter, has
/// `"log": {"topics": [..], "data": ..}` instead of the arguments.
#[derive(Clone, Debug)]
pub struct EvmSource {
    node: Arc<Node>,
    chain_id: u64,
    finality: Finality,
    watches: Vec<Watch>,
}

impl EvmSource {
    /// The chain of this number, which the node is trusted to be on.
    pub fn new(rpc: Rpc, chain_id: u64, finality: Finality, watches: Vec<Watch>) -> EvmSource {
        EvmSource { node: Arc::new(Node::new(rpc)), chain_id, finality, watches }
    }

    async fn look(&self) -> Result<Tips, CallError> {
        let head = self.node.rpc.head().await?;
        let finalized = self.node.rpc.finalized(&head, self.finality).await?;
        Ok(Tips { head: head.at, finalized: finalized.at, time: head.time })
    }

    async fn read(&self, from: Height, to: Height) -> Result<Vec<SourceBlock>, CallError> {
        let read = self.node.read(from, to, &self.watches).await?;
        let block = |(header, logs): (Header, Vec<WireLog>)| {
            let requests = self.requests(&logs);
            SourceBlock { at: header.at, parent: header.parent, time: header.time, requests }
        };
        Ok(read.into_iter().map(block).collect())
    }

    fn requests(&self, logs: &[WireLog]) -> Vec<NewRequest> {
        let mut occurrences = Occurrences::on(self.chain_id);
        let mut requests = Vec::new();
        for log in logs {
            let wanting = self.watches.iter().filter(|watch| watch.wants(&log.address, &log.topics));
            let wanting: Vec<&Watch> = wanting.collect();
            if !wanting.is_empty() {
                requests.extend(requests_of(log, occurrences.of(log), &wanting));
            }
        }
        requests
    }
}

/// What a log asks for: one request on each route that watches it.
fn requests_of(log: &WireLog, occurrence: OccurrenceId, watches: &[&Watch]) -> Vec<NewRequest> {
    let mut requests: Vec<NewRequest> = Vec::new();
    for watch in watches {
        if requests.iter().any(|request| request.route == watch.route) {
            continue;
        }
        match request(watch, occurrence, log) {
            Ok(request) => requests.push(request),
            // Nothing but its form says that a log is of an anonymous event.
            Err(_) if watch.event.topic().is_none() => {}
            Err(reason) => requests.push(undecoded(watch, occurrence, log, &reason)),
        }
    }
    requests
}

fn request(watch: &Watch, occurrence: OccurrenceId, log: &WireLog) -> Result<NewRequest, String> {
    let args = watch.event.decode(&log.body())?;
    let payload = payload_of(watch, log, "args", args);
    let id = watch.identity.id_of(&watch.route, &payload).map_err(|error| error.to_string())?;
    let id = id.unwrap_or_else(|| RequestId::of(&[watch.route.as_str().as_bytes(), occurrence.as_bytes()]));
    let (occurrence, standing) = (on_route(occurrence, &watch.route), Standing::Seen);
    Ok(NewRequest { occurrence, standing, ..request_with_id(&watch.route, id, payload) })
}

/// The dead letter of a log that says that it is of the event, and is not.
fn undecoded(watch: &Watch, occurrence: OccurrenceId, log: &WireLog, reason: &str) -> NewRequest {
    let body = json!({"topics": log.topics, "data": log.data});
    let reason = format!("a log of transaction {} cannot be a request: {reason}", log.transaction_hash);
    let payload = payload_of(watch, log, "log", body);
    flawed(&watch.route, on_route(occurrence, &watch.route), payload, &reason)
}

fn payload_of(watch: &Watch, log: &WireLog, what: &str, body: Value) -> Payload {
    let (event, address) = (&watch.event, log.address.to_string());
    Payload::json(
        json!({"event": event.name(), "signature": event.signature(), "address": address, what: body}).to_string(),
    )
}

/// One log may make requests on several routes.
fn on_route(occurrence: OccurrenceId, route: &RouteName) -> OccurrenceId {
    OccurrenceId::of(&[occurrence.as_bytes(), route.as_str().as_bytes()])
}

impl From<CallError> for SourceError {
    fn from(error: CallError) -> SourceError {
        SourceError::Unreachable(error.to_string())
    }
}

impl BlockSource for EvmSource {
    fn tips(&self) -> SourceFuture<'_, Tips> {
        Box::pin(async { Ok(self.look().await?) })
    }

    fn blocks(&self, from: Height, to: Height) -> SourceFuture<'_, Vec<SourceBlock>> {
        Box::pin(async move { Ok(self.read(from, to).await?) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::primitives::{Address, B256, Bytes, U64};
    use roundtrip::inbox::{FieldPath, Identity};

    use super::*;
    use crate::EventSignature;

    fn watch(route: &str, event: &str) -> Watch {
        Watch::new(RouteName::new(route).unwrap(), EventSignature::parse(event).unwrap(), Identity::Given)
    }

    fn log(topics: Vec<B256>, data: &[u8]) -> WireLog {
        WireLog {
            address: Address::repeat_byte(1),
            topics,
            data: Bytes::copy_from_slice(data),
            block_number: U64::from(5),
            block_hash: B256::ZERO,
            transaction_hash: B256::repeat_byte(3),
            log_index: U64::ZERO,
            removed: false,
        }
    }

    const ASKED: &str = "Asked(uint256 indexed id, uint8 kind)";

    fn made(watches: &[Watch], logs: &[WireLog]) -> Vec<NewRequest> {
        let rpc = Rpc::http("http://127.0.0.1:1").unwrap();
        EvmSource::new(rpc, 1, Finality::Finalized, watches.to_vec()).requests(logs)
    }

    #[test]
    fn a_log_makes_one_request_on_each_route_that_watches_it() {
        let watches =
            [watch("a", ASKED), watch("a", ASKED), watch("b", ASKED), watch("c", "Other(uint256 indexed id)")];
        let topic = watches[0].event.topic().unwrap();
        let requests = made(&watches, &[log(vec![topic, B256::with_last_byte(7)], &B256::with_last_byte(2).0)]);
        let routes: Vec<&str> = requests.iter().map(|request| request.route.as_str()).collect();
        assert_eq!(routes, ["a", "b"]);
        assert_ne!(requests[0].occurrence, requests[1].occurrence);
        let payload: Value = serde_json::from_slice(&requests[0].payload.bytes).unwrap();
        let address = Address::repeat_byte(1).to_string();
        let args = json!({"id": "7", "kind": "2"});
        let expected = json!({"event": "Asked", "signature": "Asked(uint256,uint8)", "address": address, "args": args});
        assert_eq!(payload, expected);
    }

    #[test]
    fn a_log_that_cannot_be_decoded_is_a_dead_letter_and_the_rest_goes_on() {
        let anonymous = "event Noted(uint256 indexed id, uint8 kind) anonymous";
        let watches = [watch("a", ASKED), watch("b", anonymous).at([Address::repeat_byte(1)])];
        let topic = watches[0].event.topic().unwrap();
        let (bad, good) = (log(vec![topic], &[1]), log(vec![topic, B256::ZERO], &B256::ZERO.0));
        let requests = made(&watches, &[bad.clone(), bad, good]);
        let flaws: Vec<bool> = requests.iter().map(|request| request.flaw.is_some()).collect();
        assert_eq!(flaws, [true, true, false], "and nothing on the route of the anonymous event");
        assert_ne!(requests[0].id, requests[1].id);
        let payload: Value = serde_json::from_slice(&requests[0].payload.bytes).unwrap();
        assert_eq!(payload["log"], json!({"topics": [topic], "data": "0x01"}));
        let reason = &requests[0].flaw.as_ref().unwrap().text;
        assert!(reason.contains(&B256::repeat_byte(3).to_string()), "{reason}");
    }

    #[test]
    fn a_log_without_the_fields_of_its_identity_is_a_dead_letter() {
        let identity = Identity::Fields(vec![FieldPath::new("/args/nowhere").unwrap()]);
        let watch = Watch::new(RouteName::new("a").unwrap(), EventSignature::parse(ASKED).unwrap(), identity);
        let topic = watch.event.topic().unwrap();
        let requests = made(&[watch], &[log(vec![topic, B256::ZERO], &B256::ZERO.0)]);
        assert!(requests[0].flaw.as_ref().is_some_and(|flaw| flaw.text.contains("/args/nowhere")), "{requests:?}");
    }
}
