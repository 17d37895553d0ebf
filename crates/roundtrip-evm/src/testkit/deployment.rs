//! A whole deployment on the sample contract: a listener, a worker and lanes on one store.
//!
//! ```text
//!   Requested(id, from, payload) ──▶ worker: answer_to(payload) ──▶ respond(id, content, answer)
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alloy::primitives::{Address, Bytes, keccak256};
use alloy::signers::local::PrivateKeySigner;
use roundtrip::clock::Clock;
use roundtrip::inbox::{FieldPath, Identity};
use roundtrip::listener::FollowerOptions;
use roundtrip::relay::Relay;
use roundtrip::sender::chain::Chain;
use roundtrip::sender::{Patience, SenderOptions};
use roundtrip::store::Store;
use roundtrip::store::policy::{Backoff, RoutePolicy};
use roundtrip::upkeep::UpkeepOptions;
use roundtrip::words::{Destination, Height, LaneName, RouteName};
use roundtrip::worker::{Failure, Typed, WorkerOptions, handler_fn};
use serde::{Deserialize, Serialize};

use super::devchain::DevChain;
use crate::sender::LaneSigner;
use crate::{ContractCall, EventSignature, EvmChain, EvmChainOptions, EvmSource, Finality, Gas, Rpc, Watch};

/// The route of the deployment.
pub const ROUTE: &str = "board";
const DESTINATION: &str = "chain";
const EVENT: &str = "event Requested(uint256 indexed id, address indexed from, bytes payload)";
const FUNCTION: &str = "function respond(uint256 id, bytes32 content, bytes answer)";
const FUNCTION_OF_MANY: &str = "function respondMany((uint256, bytes32, bytes)[] responses)";
/// Enough for any answer of the sample worker.
pub const GAS: Gas = Gas::Fixed(150_000);

/// Why a deployment cannot be put together.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The answer that the sample worker gives.
pub fn answer_to(payload: &[u8]) -> Bytes {
    keccak256([b"answer to ", payload].concat()).to_vec().into()
}

#[derive(Deserialize)]
struct Asked {
    args: Arguments,
}

#[derive(Deserialize)]
struct Arguments {
    id: String,
    payload: Bytes,
}

#[derive(Serialize)]
struct Answer {
    id: String,
    content: Bytes,
    answer: Bytes,
}

/// How fast a deployment looks and how patient it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How often chain and store are looked at.
    pub poll: Duration,
    /// How long seats and leases last: a killed process holds them for so long.
    pub hold_ms: u64,
    /// When to send again, and when to bump.
    pub patience: Patience,
    /// How many transactions may be under way on a lane.
    pub window: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            poll: Duration::from_millis(50),
            hold_ms: 500,
            patience: Patience { resend_ms: 1_000, bump_ms: 2_000 },
            window: 64,
        }
    }
}

/// What is to be deployed.
#[derive(Clone)]
pub struct Deployment {
    /// The way to the node.
    pub rpc: Rpc,
    /// Its chain's number.
    pub chain_id: u64,
    /// The sample contract.
    pub board: Address,
    /// The first block to read.
    pub from_block: Height,
    /// An account for each lane.
    pub lanes: Vec<PrivateKeySigner>,
    /// Blocks so deep are final, for listener and sender.
    pub final_depth: u64,
    /// What makes it the same request.
    pub identity: Identity,
    /// How much gas its transactions may use.
    pub gas: Gas,
    /// How many answers one of them carries at most.
    pub parcel_max: usize,
    /// How fast.
    pub pace: Pace,
}

/// The contract's own id makes it the same request.
pub fn by_the_contract() -> Result<Identity, Failed> {
    Ok(Identity::Fields(vec![FieldPath::new("/address")?, FieldPath::new("/args/id")?]))
}

impl Deployment {
    /// On the development chain, from its first block on.
    pub fn on(
        chain: &DevChain,
        board: Address,
        lanes: Vec<PrivateKeySigner>,
        final_depth: u64,
        pace: Pace,
    ) -> Result<Deployment, Failed> {
        Ok(Deployment {
            rpc: Rpc::over(chain.client()),
            chain_id: chain.chain_id(),
            board,
            from_block: Height(0),
            lanes,
            final_depth,
            identity: by_the_contract()?,
            gas: GAS,
            parcel_max: 1,
            pace,
        })
    }

    /// The names of the lanes, in the order of their accounts.
    pub fn lane_names(&self) -> Vec<String> {
        (0..self.lanes.len()).map(|n| format!("lane-{n}")).collect()
    }

    /// The listener's view of the chain.
    pub fn source(&self) -> Result<EvmSource, Failed> {
        let event = EventSignature::parse(EVENT)?;
        let watch = Watch::new(RouteName::new(ROUTE)?, event, self.identity.clone()).at([self.board]);
        Ok(EvmSource::new(self.rpc.clone(), self.chain_id, Finality::Depth(self.final_depth), vec![watch]))
    }

    /// The sender's view of the chain.
    pub fn chain(&self) -> Result<EvmChain, Failed> {
        self.chain_of(self.signers())
    }

    /// The same, with others who sign for the lanes.
    pub fn chain_of(&self, lanes: Vec<LaneSigner>) -> Result<EvmChain, Failed> {
        self.chain_with(lanes, self.chain_options())
    }

    /// The same, used in another way than [`Deployment::chain_options`] says.
    pub fn chain_used(&self, options: EvmChainOptions) -> Result<EvmChain, Failed> {
        self.chain_with(self.signers(), options)
    }

    /// How its sender uses the chain.
    pub fn chain_options(&self) -> EvmChainOptions {
        EvmChainOptions {
            finality: Finality::Depth(self.final_depth),
            gas: self.gas,
            head_fresh_for: self.pace.poll,
            ..EvmChainOptions::default()
        }
    }

    fn signers(&self) -> Vec<LaneSigner> {
        self.lanes.iter().map(|signer| Arc::new(signer.clone()) as LaneSigner).collect()
    }

    fn chain_with(&self, lanes: Vec<LaneSigner>, options: EvmChainOptions) -> Result<EvmChain, Failed> {
        let mut signers: BTreeMap<LaneName, LaneSigner> = BTreeMap::new();
        for (name, signer) in self.lane_names().iter().zip(lanes) {
            signers.insert(LaneName::new(name)?, signer);
        }
        Ok(EvmChain::new(self.rpc.clone(), self.chain_id, self.call()?, signers, options))
    }

    /// What is called with answers: for one, or for as many as there are.
    fn call(&self) -> Result<ContractCall, Failed> {
        if self.parcel_max == 1 {
            return Ok(ContractCall::one(self.board, FUNCTION)?);
        }
        let mapping = serde_json::json!(["/response/id", "/response/content", "/response/answer"]);
        Ok(ContractCall::many(self.board, FUNCTION_OF_MANY)?.with_arguments(&mapping)?)
    }

    /// How its sender sends.
    pub fn sending(&self) -> SenderOptions {
        let Pace { poll, hold_ms, patience, window } = self.pace;
        let parcel_max = self.parcel_max;
        SenderOptions { window, patience, seat_ms: hold_ms, poll, parcel_max, ..SenderOptions::default() }
    }

    /// How the sample route treats its requests.
    pub fn policy(&self) -> Result<RoutePolicy, Failed> {
        Ok(RoutePolicy {
            destination: Some(Destination::new(DESTINATION)?),
            identity: self.identity.clone(),
            lease_ms: self.pace.hold_ms,
            // Those who kill the process must not use up anybody's patience.
            crashes_max: u16::MAX,
            backoff: Backoff::NONE,
            ..RoutePolicy::default()
        })
    }

    /// All of it, on this store and clock; not yet started.
    pub fn relay(&self, store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Result<Relay, Failed> {
        self.relay_to(store, clock, Arc::new(self.chain()?))
    }

    /// The same, with another view of the chain for the sender.
    pub fn relay_to(
        &self,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        chain: Arc<dyn Chain>,
    ) -> Result<Relay, Failed> {
        self.relay_sending(store, clock, chain, self.sending())
    }

    /// The same, with a sender that does it so.
    pub fn relay_sending(
        &self,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        chain: Arc<dyn Chain>,
        send: SenderOptions,
    ) -> Result<Relay, Failed> {
        let Pace { poll, hold_ms, .. } = self.pace;
        let answer = handler_fn(|asked: Asked, _job| async move {
            let Arguments { id, payload } = asked.args;
            Ok::<_, Failure>(Answer { id, content: keccak256(&payload).to_vec().into(), answer: answer_to(&payload) })
        });
        let follow =
            FollowerOptions { from_block: self.from_block, seat_ms: hold_ms, poll, ..FollowerOptions::default() };
        let upkeep =
            UpkeepOptions { seat_ms: hold_ms, interval: Duration::from_millis(hold_ms), ..UpkeepOptions::default() };
        let work = WorkerOptions { poll, ..WorkerOptions::default() };
        let names = self.lane_names();
        let lanes: Vec<&str> = names.iter().map(String::as_str).collect();
        Ok(Relay::new(store)
            .clock(clock)
            .route_with(ROUTE, self.policy()?, Typed(answer), work)
            .follow("board", "chain", Arc::new(self.source()?), &[ROUTE], follow)
            .lanes(DESTINATION, chain, &lanes, send)
            .upkeep(upkeep, Arc::new(Vec::new)))
    }
}
