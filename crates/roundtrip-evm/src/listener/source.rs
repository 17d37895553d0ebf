//! The blocks of a chain, with the requests that their events make.

use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;

use alloy::primitives::{B256, U64};
use bytes::Bytes;
use futures_util::future::{join_all, select_all};
use roundtrip::listener::{
    Answered, BlockSource, SourceBlock, SourceError, SourceFuture, SourceNode, Tips, flawed, seen,
};
use roundtrip::store::op::NewRequest;
use roundtrip::words::{Height, OccurrenceId, Payload, RequestId, RouteName};
use serde_json::json;

use super::event::Arguments;
use super::live::Live;
use super::logs::{Occurrences, WireLog};
use super::node::{Node, ReadBlock};
use super::probe::{Trouble, probe};
use super::quorum::{agreed, agreed_blocks, reached_by};
use super::watch::{Shows, Watch};
use crate::endpoint::{NodeError, NodeReport, by_health};
use crate::json::Json;
use crate::rpc::{BadUrl, CallError, Finality, Header, Rpc};

/// A chain whose events are requests, over JSON-RPC.
///
/// A request's payload is `{"event": name, "signature": name and types, "address": contract,
/// "args": {..}}`; that of a log which cannot be decoded, a dead letter, has
/// `"log": {"topics": [..], "data": ..}` instead of the arguments.
#[derive(Clone, Debug)]
pub struct EvmSource {
    /// In the order in which they are preferred.
    nodes: Vec<Arc<Node>>,
    /// How many of them must show the same.
    quorum: usize,
    chain_id: u64,
    finality: Finality,
    watches: Vec<Watch>,
    /// Where news of the chain come from.
    live: Vec<Arc<Live>>,
    /// Blocks that are requests themselves.
    ticks: Vec<Ticks>,
}

/// A quorum that could never come about, or that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a quorum of {needed} of {nodes} nodes: at least 1, and no more than there are URLs")]
pub struct BadQuorum {
    needed: usize,
    nodes: usize,
}

/// What is asked of one node.
pub(super) type Asking<'a, T> = Pin<Box<dyn Future<Output = Result<T, CallError>> + Send + 'a>>;

impl EvmSource {
    /// What would keep a listener from its work, found out by asking every node, with one
    /// call of each kind that a listener makes; for whoever checks a setup before it runs.
    pub async fn probe(&self, from_block: Height) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        for node in &self.nodes {
            troubles.extend(probe(node, self.chain_id, self.finality, from_block, &self.watches).await);
        }
        for live in &self.live {
            troubles.extend(live.probe().await.err().map(|why| Trouble::NoSubscriptions { node: live.name(), why }));
        }
        troubles
    }

    /// How each of its nodes did so far, in the order in which they are preferred.
    pub fn nodes(&self) -> Vec<NodeReport> {
        self.nodes.iter().map(|node| node.endpoint.report()).collect()
    }

    /// The chain of this number, by way of a node. One that is on another chain is refused.
    pub fn new(rpc: Rpc, chain_id: u64, finality: Finality, watches: Vec<Watch>) -> EvmSource {
        EvmSource {
            nodes: vec![Arc::new(Node::new(rpc))],
            quorum: 1,
            chain_id,
            finality,
            watches,
            live: Vec::new(),
            ticks: Vec::new(),
        }
    }

    /// Another node of the same chain, asked when those before it fail.
    #[must_use]
    pub fn also(mut self, rpc: Rpc) -> EvmSource {
        self.nodes.push(Arc::new(Node::new(rpc)));
        self
    }

    /// News of the chain come over this WebSocket too (`ws://` or `wss://`); blocks are read
    /// over HTTP as ever. With it, polling may be rare: it is what remains when the
    /// connection is lost.
    pub fn live(mut self, url: &str) -> Result<EvmSource, BadUrl> {
        self.live.push(Arc::new(Live::new(url, &self.watches)?));
        Ok(self)
    }

    /// Every block whose height is a multiple of this is a request on a route:
    /// `{"block": height, "hash": .., "time_ms": ..}`, of the identity [`Identity::Given`](roundtrip::inbox::Identity).
    #[must_use]
    pub fn ticking(mut self, route: RouteName, every: NonZeroU64) -> EvmSource {
        self.ticks.push(Ticks { route, every });
        self
    }

    /// Only what so many of the nodes show alike is taken, so that fewer can neither forge nor
    /// hide a request. All nodes are asked, every time.
    pub fn quorum(mut self, needed: usize) -> Result<EvmSource, BadQuorum> {
        if needed == 0 || needed > self.nodes.len() {
            return Err(BadQuorum { needed, nodes: self.nodes.len() });
        }
        self.quorum = needed;
        Ok(self)
    }

    /// The nodes, those first that did well lately.
    pub(super) fn in_order(&self) -> Vec<&Arc<Node>> {
        by_health(self.nodes.iter().map(|node| &node.endpoint)).into_iter().map(|at| &self.nodes[at]).collect()
    }

    /// One node's answer, which is held for or against it.
    async fn one<'a, T>(&self, node: &'a Node, asked: impl Fn(&'a Node) -> Asking<'a, T>) -> Result<T, NodeError> {
        let answer = match node.endpoint.on_chain(self.chain_id).await {
            Ok(()) => asked(node).await.map_err(|error| node.endpoint.failed(error)),
            Err(error) => Err(error),
        };
        node.endpoint.judge(&answer);
        answer
    }

    /// The answer of the first of these nodes that has one. A range is read from one node
    /// alone: what two have read does not make one range.
    pub(super) async fn first<'a, T>(
        &self,
        nodes: Vec<&'a Arc<Node>>,
        asked: impl Fn(&'a Node) -> Asking<'a, T>,
    ) -> Result<T, SourceError> {
        let mut failures = Vec::new();
        for node in nodes {
            match self.one(node, &asked).await {
                Ok(answer) => return Ok(answer),
                Err(error) => failures.push(error),
            }
        }
        Err(no_answer(&failures))
    }

    /// The answers of all nodes that have one, with their places.
    async fn all<'a, T>(&'a self, asked: impl Fn(&'a Node) -> Asking<'a, T>) -> Result<Vec<(usize, T)>, SourceError> {
        let answers = join_all(self.nodes.iter().map(|node| self.one(node, &asked))).await;
        let (mut answered, mut failures) = (Vec::new(), Vec::new());
        for (at, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(answer) => answered.push((at, answer)),
                Err(error) => failures.push(error),
            }
        }
        match answered.len() < self.quorum {
            true => Err(no_answer(&failures)),
            false => Ok(answered),
        }
    }

    async fn look(&self) -> Result<Tips, SourceError> {
        if self.quorum == 1 {
            return self.first(self.in_order(), |node| Box::pin(node.look(self.finality))).await;
        }
        let looks = self.all(|node| Box::pin(node.look(self.finality))).await?;
        let head = self.common(looks.iter().map(|(_, tips)| tips.head.height.0).collect()).await?;
        let finalized = self.common(looks.iter().map(|(_, tips)| tips.finalized.height.0).collect()).await?;
        Ok(Tips { head: head.at, finalized: finalized.at, time: head.time })
    }

    /// The block at the height that enough nodes have reached, as enough of them have it.
    async fn common(&self, heights: Vec<u64>) -> Result<Header, SourceError> {
        let disagree = || SourceError::Unreachable("too few nodes agree on the newest block".to_owned());
        let height = reached_by(heights, self.quorum).ok_or_else(disagree)?;
        let headers = self.all(|node| Box::pin(node.endpoint.rpc.tagged(json!(U64::from(height))))).await?;
        let headers: Vec<Header> = headers.into_iter().filter_map(|(_, header)| header).collect();
        agreed(&headers, self.quorum).ok_or_else(disagree)
    }

    async fn read(&self, from: Height, to: Height) -> Result<Vec<SourceBlock>, SourceError> {
        if self.quorum == 1 {
            let read = self.first(self.in_order(), |node| Box::pin(node.read(from, to, &self.watches))).await?;
            return Ok(self.blocks_of(read));
        }
        let answers = self.all(|node| Box::pin(node.read(from, to, &self.watches))).await?;
        let (places, answers): (Vec<usize>, Vec<Vec<SourceBlock>>) =
            answers.into_iter().map(|(at, read)| (at, self.blocks_of(read))).unzip();
        let (blocks, astray) = agreed_blocks(&answers, self.quorum);
        astray.iter().filter_map(|at| self.nodes.get(*places.get(*at)?)).for_each(|node| node.endpoint.astray());
        match blocks.is_empty() {
            true => Err(SourceError::Unreachable(format!(
                "fewer than {} nodes show the same block {}",
                self.quorum, from.0
            ))),
            false => Ok(blocks),
        }
    }

    /// The same blocks by their receipts, from another node where there is one.
    async fn read_again(&self, from: Height, to: Height) -> Result<Vec<SourceBlock>, SourceError> {
        let mut nodes = self.in_order();
        nodes.rotate_left(1);
        let read = self.first(nodes, |node| Box::pin(node.read_again(from, to, &self.watches))).await?;
        Ok(self.blocks_of(read))
    }

    fn blocks_of(&self, read: Vec<ReadBlock>) -> Vec<SourceBlock> {
        let mut json = Json::default();
        let block = |(header, logs): ReadBlock| {
            let (mut requests, answered) = self.shown(&logs, &mut json);
            requests.extend(self.ticks.iter().filter_map(|ticks| ticks.of(self.chain_id, &header)));
            SourceBlock { at: header.at, parent: header.parent, time: header.time, requests, answered }
        };
        read.into_iter().map(block).collect()
    }

    /// The logs of one block, as the first node that answers shows them.
    pub(super) async fn logs_at(&self, height: Height) -> Result<Vec<WireLog>, SourceError> {
        let read = self.first(self.in_order(), |node| Box::pin(node.read(height, height, &self.watches))).await?;
        Ok(read.into_iter().flat_map(|(_, logs)| logs).collect())
    }

    /// What the logs of one transaction ask for.
    pub(super) fn asks(&self, logs: &[WireLog]) -> Vec<NewRequest> {
        self.shown(logs, &mut Json::default()).0
    }

    /// What the logs of a block ask for, and what they show to be answered.
    fn shown(&self, logs: &[WireLog], json: &mut Json) -> (Vec<NewRequest>, Vec<Answered>) {
        let mut occurrences = Occurrences::on(self.chain_id);
        let (mut requests, mut answered): (Vec<NewRequest>, Vec<Answered>) =
            (Vec::with_capacity(logs.len()), Vec::new());
        for log in logs {
            let (first, mut occurrence) = (requests.len(), None);
            for watch in self.watches.iter().filter(|watch| watch.wants(&log.address, &log.topics)) {
                match watch.shows() {
                    Shows::Answer => answered.extend(answered_by(watch, log, json)),
                    // One log makes one request on a route, however many of its watches want it.
                    Shows::Request if requests[first..].iter().any(|made| made.route == watch.route) => {}
                    Shows::Request => {
                        let occurrence = *occurrence.get_or_insert_with(|| occurrences.of(log));
                        requests.extend(asked_by(watch, occurrence, log, json));
                    }
                }
            }
        }
        (requests, answered)
    }
}

/// The request that a log shows to be answered.
fn answered_by(watch: &Watch, log: &WireLog, json: &mut Json) -> Option<Answered> {
    let id = watch.event.decode(&log.topics, &log.data).and_then(|args| {
        let payload = payload_of(watch, log, &args, json);
        watch.identity.id_of(&watch.route, &payload).map_err(|error| error.to_string())
    });
    match id {
        Ok(id) => Some(Answered { route: watch.route.clone(), id: id? }),
        Err(error) => {
            tracing::error!(route = %watch.route, transaction = %log.transaction_hash, error, "an answer that cannot be read ends nothing");
            None
        }
    }
}

/// A request on a route for every so many blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ticks {
    route: RouteName,
    every: NonZeroU64,
}

impl Ticks {
    /// The tick that a block is, if it is one. Its height is what makes it the same request; a
    /// reorg gives it another block.
    fn of(&self, chain_id: u64, header: &Header) -> Option<NewRequest> {
        let height = header.at.height.0;
        if !height.is_multiple_of(self.every.get()) {
            return None;
        }
        let (route, chain) = (self.route.as_str().as_bytes(), chain_id.to_be_bytes());
        let id = RequestId::of(&[b"tick", route, &chain, &height.to_be_bytes()]);
        let occurrence = OccurrenceId::of(&[b"tick", route, &chain, &header.at.hash]);
        let hash = B256::from(header.at.hash);
        let payload = json!({"block": height.to_string(), "hash": hash, "time_ms": header.time.0.to_string()});
        Some(seen(&self.route, id, occurrence, Payload::json(payload.to_string())))
    }
}

/// What a log asks for.
fn asked_by(watch: &Watch, occurrence: OccurrenceId, log: &WireLog, json: &mut Json) -> Option<NewRequest> {
    match request(watch, occurrence, log, json) {
        Ok(request) => Some(request),
        // Nothing but its form says that a log is of an anonymous event.
        Err(_) if watch.event.topic().is_none() => None,
        Err(reason) => Some(undecoded(watch, occurrence, log, &reason, json)),
    }
}

fn request(watch: &Watch, occurrence: OccurrenceId, log: &WireLog, json: &mut Json) -> Result<NewRequest, String> {
    let args = watch.event.decode(&log.topics, &log.data)?;
    let deadline = watch.deadline(&args);
    let payload = payload_of(watch, log, &args, json);
    let id = watch.identity.id_of(&watch.route, &payload).map_err(|error| error.to_string())?;
    let id = id.unwrap_or_else(|| RequestId::of(&[watch.route.as_str().as_bytes(), occurrence.as_bytes()]));
    let occurrence = on_route(occurrence, &watch.route);
    Ok(NewRequest { deadline, ..seen(&watch.route, id, occurrence, payload) })
}

/// The dead letter of a log that says that it is of the event, and is not.
fn undecoded(watch: &Watch, occurrence: OccurrenceId, log: &WireLog, reason: &str, json: &mut Json) -> NewRequest {
    let reason = format!("a log of transaction {} cannot be a request: {reason}", log.transaction_hash);
    let [name, signature] = watch.event.quoted();
    json.begin().raw(r#"{"address":"#).address(log.address).raw(r#","event":"#).raw(name);
    json.raw(r#","log":{"data":"#).any(&log.data).raw(r#","topics":"#).any(&log.topics);
    json.raw(r#"},"signature":"#).raw(signature).raw("}");
    flawed(&watch.route, on_route(occurrence, &watch.route), written(json), &reason)
}

/// What a request says.
fn payload_of(watch: &Watch, log: &WireLog, args: &Arguments<'_>, json: &mut Json) -> Payload {
    let [name, signature] = watch.event.quoted();
    args.write(json.begin().raw(r#"{"address":"#).address(log.address).raw(r#","args":"#));
    json.raw(r#","event":"#).raw(name).raw(r#","signature":"#).raw(signature).raw("}");
    written(json)
}

fn written(json: &Json) -> Payload {
    Payload::json(Bytes::copy_from_slice(json.text()))
}

/// One log may make requests on several routes.
fn on_route(occurrence: OccurrenceId, route: &RouteName) -> OccurrenceId {
    OccurrenceId::of(&[occurrence.as_bytes(), route.as_str().as_bytes()])
}

/// What it comes to that no node, or too few, answered: nodes that are all on another chain
/// will never do.
fn no_answer(failures: &[NodeError]) -> SourceError {
    let texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
    match failures.iter().all(|error| matches!(error, NodeError::OtherChain { .. })) {
        true => SourceError::Violation(texts.join("; ")),
        false => SourceError::Unreachable(texts.join("; ")),
    }
}

impl BlockSource for EvmSource {
    fn tips(&self) -> SourceFuture<'_, Tips> {
        Box::pin(self.look())
    }

    fn blocks(&self, from: Height, to: Height) -> SourceFuture<'_, Vec<SourceBlock>> {
        Box::pin(self.read(from, to))
    }

    fn blocks_again(&self, from: Height, to: Height) -> SourceFuture<'_, Vec<SourceBlock>> {
        Box::pin(self.read_again(from, to))
    }

    fn news(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        if self.live.is_empty() {
            return Box::pin(std::future::pending());
        }
        Box::pin(async {
            select_all(self.live.iter().map(|live| Box::pin(live.news()))).await;
        })
    }

    fn nodes(&self) -> Vec<SourceNode> {
        let now = tokio::time::Instant::now();
        let node = |node: &Arc<Node>| {
            let health = node.endpoint.health();
            SourceNode {
                name: node.endpoint.rpc.name().to_owned(),
                healthy: health.is_good(now),
                asked: health.asked(now),
                answered: health.last_answer(now),
            }
        };
        self.nodes.iter().map(node).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::primitives::Address;
    use roundtrip::inbox::{FieldPath, Identity};

    use serde_json::Value;

    use super::*;
    use crate::EventSignature;

    fn watch(route: &str, event: &str) -> Watch {
        Watch::new(RouteName::new(route).unwrap(), EventSignature::parse(event).unwrap(), Identity::Given)
    }

    fn log(topics: Vec<B256>, data: &[u8]) -> WireLog {
        WireLog {
            address: Address::repeat_byte(1),
            topics,
            data: Bytes::copy_from_slice(data).into(),
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
        EvmSource::new(rpc, 1, Finality::Finalized, watches.to_vec()).shown(logs, &mut Json::default()).0
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
        let address = Address::repeat_byte(1).to_string();
        let args = json!({"id": "7", "kind": "2"});
        let expected = json!({"event": "Asked", "signature": "Asked(uint256,uint8)", "address": address, "args": args});
        assert_eq!(requests[0].payload, Payload::json(expected.to_string()), "its keys are in order");
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
        let (address, log) = (Address::repeat_byte(1).to_string(), json!({"topics": [topic], "data": "0x01"}));
        let expected = json!({"event": "Asked", "signature": "Asked(uint256,uint8)", "address": address, "log": log});
        assert_eq!(requests[0].payload, Payload::json(expected.to_string()));
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

    #[test]
    fn an_answer_is_matched_to_its_request_by_the_fields_of_both() {
        let fields = ["/address", "/args/id"].map(|path| FieldPath::new(path).unwrap());
        let identity = Identity::Fields(fields.to_vec());
        let route = RouteName::new("a").unwrap();
        let asks = Watch::new(route.clone(), EventSignature::parse(ASKED).unwrap(), identity.clone());
        let event = EventSignature::parse("Done(address indexed by, uint256 indexed id)").unwrap();
        let answers = Watch::answers(route.clone(), event, identity).unwrap();
        let (ask, done) = (asks.event.topic().unwrap(), answers.event.topic().unwrap());
        let seven = B256::with_last_byte(7);
        let source =
            EvmSource::new(Rpc::http("http://127.0.0.1:1").unwrap(), 1, Finality::Finalized, vec![asks, answers]);
        let logs = [
            log(vec![ask, seven], &B256::ZERO.0),
            log(vec![done, B256::ZERO, seven], &[]),
            log(vec![done, B256::ZERO], &[]),
        ];
        let (requests, answered) = source.shown(&logs, &mut Json::default());
        assert_eq!(requests.len(), 1);
        assert_eq!(answered, [Answered { route: route.clone(), id: requests[0].id }], "and the bad one ends nothing");
        let event = EventSignature::parse("Done(uint256 indexed id)").unwrap();
        assert!(Watch::answers(route, event, Identity::Given).is_err(), "nothing says what it answers");
    }

    #[test]
    fn a_block_is_a_tick_by_its_height() {
        let ticks = Ticks { route: RouteName::new("t").unwrap(), every: NonZeroU64::new(5).unwrap() };
        let header = |height: u64, fork: u8| Header {
            at: roundtrip::words::Position { height: Height(height), hash: [fork; 32] },
            parent: [0; 32],
            time: roundtrip::words::UnixMs(60_000),
            bloom: alloy::primitives::Bloom::ZERO,
            base_fee: None,
        };
        assert_eq!(ticks.of(1, &header(9, 0)), None);
        let (one, other) = (ticks.of(1, &header(10, 0)).unwrap(), ticks.of(1, &header(10, 1)).unwrap());
        assert_eq!(one.id, other.id);
        assert_ne!(one.occurrence, other.occurrence, "a reorg gave it another block");
        let payload: Value = serde_json::from_slice(&one.payload.bytes).unwrap();
        assert_eq!(payload, json!({"block": "10", "hash": B256::ZERO, "time_ms": "60000"}));
    }
}
