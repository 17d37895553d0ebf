//! A deployment on the development chain in virtual time, with a way to the chain that a test
//! can cut, and with relays that a test can freeze.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use alloy::primitives::{Address, B256, Bytes, TxKind, keccak256};
use alloy::signers::local::PrivateKeySigner;
use alloy::sol_types::SolCall;
use alloy::transports::{TransportError, TransportErrorKind};
use roundtrip::clock::{Clock, TokioClock};
use roundtrip::relay::Running;
use roundtrip::sender::chain::Chain;
use roundtrip::sender::{LaneStatus, Patience};
use roundtrip::store::query::{Found, LaneView};
use roundtrip::store::{MemoryStore, Options, ReadExt, Store};
use roundtrip::words::{LaneName, RequestId, UnixMs};
use roundtrip_evm::testkit::account::{Call, Fees, dev_signers};
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::checker::check;
use roundtrip_evm::testkit::deployment::{Deployment, Pace, answer_to};
use roundtrip_evm::testkit::devchain::{BaseFee, DevChain, DevChainOptions, GWEI};
use roundtrip_evm::testkit::way;
use roundtrip_evm::{EvmChain, Rpc};
use serde_json::{Value, json};

pub(super) const FINAL_DEPTH: u64 = 4;
pub(super) const BLOCK: Duration = Duration::from_secs(1);
/// No test may take longer, in blocks.
const BLOCKS_MAX: u64 = 400;
const FIRST_LANE: usize = 5;

/// A chain with a board, and a store.
pub(super) struct Scene {
    pub(super) chain: DevChain,
    pub(super) board: Address,
    pub(super) lanes: Vec<PrivateKeySigner>,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) patience: Patience,
    pub(super) window: u32,
    pub(super) asked: Mutex<Vec<Bytes>>,
}

impl Scene {
    pub(super) fn new(lanes: usize) -> Scene {
        let options =
            DevChainOptions { finality: FINAL_DEPTH, base_fee: BaseFee::Fixed(GWEI), ..DevChainOptions::default() };
        let chain = DevChain::new(options);
        let lanes = dev_signers()[FIRST_LANE..FIRST_LANE + lanes].to_vec();
        let responders: Vec<Address> = dev_signers().iter().map(|key| key.address()).collect();
        let board = chain.deploy_board(&responders);
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(UnixMs(1_700_000_000_000)));
        let store = Arc::new(MemoryStore::new(clock.clone(), Options::default()));
        let patience = Patience { resend_ms: 3_000, bump_ms: 10_000 };
        Scene { chain, board, lanes, store, clock, patience, window: 16, asked: Mutex::default() }
    }

    pub(super) fn deployment(&self) -> Deployment {
        let pace =
            Pace { poll: Duration::from_millis(500), hold_ms: 5_000, patience: self.patience, window: self.window };
        Deployment::on(&self.chain, self.board, self.lanes.clone(), FINAL_DEPTH, pace).unwrap()
    }

    /// The sender's view of the chain by this way, which a test may cut.
    pub(super) fn view(&self, way: &Way) -> EvmChain {
        Deployment { rpc: way.rpc(), ..self.deployment() }.chain().unwrap()
    }

    /// Starts a relay; dropped, it is gone.
    pub(super) async fn relay(&self, chain: impl Chain) -> Running {
        self.relay_on(self.store.clone(), chain).await
    }

    pub(super) async fn relay_on(&self, store: Arc<dyn Store>, chain: impl Chain) -> Running {
        let relay = self.deployment().relay_to(store, self.clock.clone(), Arc::new(chain)).unwrap();
        relay.start().await.unwrap()
    }

    /// So many more requests wait to be mined.
    pub(super) fn ask(&self, count: usize) {
        let mut asked = self.asked.lock().unwrap();
        for _ in 0..count {
            let payload: Bytes = format!("ask {}", asked.len()).into_bytes().into();
            let input = RequestBoard::requestCall { payload: payload.clone() }.abi_encode();
            self.send(&dev_signers()[0], asked.len() as u64, self.board, input);
            asked.push(payload);
        }
    }

    /// Somebody's transaction waits to be mined.
    pub(super) fn send(&self, key: &PrivateKeySigner, nonce: u64, to: Address, input: Vec<u8>) {
        let call = Call {
            chain_id: self.chain.chain_id(),
            nonce,
            to: TxKind::Call(to),
            input: input.into(),
            gas_limit: 200_000,
            fees: Fees::above(self.chain.base_fee().into()),
        };
        self.chain.send(&call.sign(key).unwrap().bytes).unwrap();
    }

    /// Somebody else answers a request, as it should be answered.
    pub(super) fn answer_as(&self, key: &PrivateKeySigner, nonce: u64, id: u64) {
        let payload = self.asked.lock().unwrap()[usize::try_from(id).unwrap()].clone();
        let call = RequestBoard::respondCall {
            id: alloy::primitives::U256::from(id),
            content: keccak256(&payload),
            answer: answer_to(&payload),
        };
        self.send(key, nonce, self.board, call.abi_encode());
    }

    /// Makes so many blocks.
    pub(super) fn mine(&self, blocks: u64) {
        (0..blocks).for_each(|_| {
            self.chain.mine();
        });
    }

    /// Makes blocks until something is so.
    pub(super) async fn mine_until(&self, what: &str, so: impl AsyncFn() -> bool) {
        for _ in 0..BLOCKS_MAX {
            tokio::time::sleep(BLOCK).await;
            self.chain.mine();
            if so().await {
                return;
            }
        }
        panic!("waited in vain: {what}; {:?} {:?}", self.store.counts().await, self.store.lanes().await);
    }

    /// Waits until something is so; nothing is mined meanwhile.
    pub(super) async fn until(&self, what: &str, so: impl AsyncFn() -> bool) {
        for _ in 0..BLOCKS_MAX {
            if so().await {
                return;
            }
            tokio::time::sleep(BLOCK).await;
        }
        panic!("waited in vain: {what}; {:?} {:?}", self.store.counts().await, self.store.lanes().await);
    }

    /// Makes blocks until everything is answered once and nothing is left in the store.
    pub(super) async fn settled(&self) {
        let asked = self.asked.lock().unwrap().clone();
        let accounts: Vec<Address> = self.lanes.iter().map(|lane| lane.address()).collect();
        let clean = format!("settled {}, lost 0, doubled 0", asked.len());
        let settled = async || {
            let verdict = check(&self.chain.client(), self.board, &asked, &accounts, answer_to).await.unwrap();
            let open = self.store.counts().await.unwrap().iter().any(|count| count.requests > 0);
            verdict.to_string() == clean && verdict.gaps == 0 && !open
        };
        self.mine_until("everything is answered once", settled).await;
    }

    pub(super) async fn lane(&self, at: usize) -> LaneView {
        self.store.lane(LaneName::new(&format!("lane-{at}")).unwrap()).await.unwrap().unwrap()
    }

    pub(super) async fn status(&self, at: usize) -> LaneStatus {
        self.lane(at).await.status
    }

    /// How many slots of a lane blocks have used.
    pub(super) fn used(&self, at: usize) -> u64 {
        self.chain.nonce(self.lanes[at].address())
    }

    pub(super) async fn found(&self, id: RequestId) -> Option<Found> {
        self.store.get(id).await.unwrap()
    }
}

/// How a way to the chain is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mood {
    #[default]
    Open,
    /// Nothing gets through.
    Closed,
    /// Whatever is sent is said to be taken, and goes nowhere.
    Swallows,
    /// Whatever is sent is refused in these words, and goes nowhere.
    Refuses(&'static str),
    /// Whatever is sent gets no answer, and goes nowhere; all else gets through.
    Mute,
}

/// A way to the development chain; clones are the same one.
#[derive(Clone)]
pub(super) struct Way {
    chain: DevChain,
    mood: Arc<Mutex<Mood>>,
    /// What was sent by it.
    sent: Arc<Mutex<Vec<B256>>>,
}

impl Way {
    pub(super) fn to(chain: &DevChain) -> Way {
        Way { chain: chain.clone(), mood: Arc::default(), sent: Arc::default() }
    }

    /// The hashes of what was sent by it so far, whatever became of it.
    pub(super) fn sent(&self) -> Vec<B256> {
        self.sent.lock().unwrap().clone()
    }

    pub(super) fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub(super) fn rpc(&self) -> Rpc {
        let way = self.clone();
        Rpc::over(way::client(move |request| {
            let way = way.clone();
            Box::pin(async move { way.carry(&request) })
        }))
    }

    fn carry(&self, request: &str) -> Result<String, TransportError> {
        let mood = *self.mood.lock().unwrap();
        let calls: Value = serde_json::from_str(request).map_err(TransportError::ser_err)?;
        let answers = match &calls {
            Value::Array(calls) => calls.iter().map(|call| self.sending(mood, call)).collect::<Option<Vec<_>>>(),
            call => self.sending(mood, call).map(|answer| vec![answer]),
        };
        let gone = || Err(TransportErrorKind::custom_str("connection refused"));
        match (mood, answers) {
            (Mood::Closed, _) | (Mood::Mute, Some(_)) => gone(),
            (Mood::Swallows | Mood::Refuses(_), Some(answers)) => Ok(match calls {
                Value::Array(_) => Value::Array(answers).to_string(),
                _ => answers[0].to_string(),
            }),
            _ => Ok(self.chain.handle(request)),
        }
    }

    /// What this mood says to a call that sends, and to no other.
    fn sending(&self, mood: Mood, call: &Value) -> Option<Value> {
        if call["method"] != "eth_sendRawTransaction" {
            return None;
        }
        let bytes: Bytes = serde_json::from_value(call["params"][0].clone()).ok()?;
        let hash = B256::from(keccak256(&bytes));
        self.sent.lock().unwrap().push(hash);
        Some(match mood {
            Mood::Refuses(words) => {
                json!({"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32000, "message": words}})
            }
            _ => json!({"jsonrpc": "2.0", "id": call["id"], "result": hash}),
        })
    }
}
