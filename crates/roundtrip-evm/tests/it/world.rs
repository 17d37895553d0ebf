//! A whole deployment on a real node: the relay in this process, an embedded store, and
//! blocks that are made when a test says so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use alloy::consensus::TxEnvelope;
use alloy::eips::eip2718::Decodable2718;
use alloy::primitives::{Address, B256, Bytes, TxKind, U64, U128};
use alloy::rpc::client::RpcClient;
use alloy::signers::local::PrivateKeySigner;
use alloy::sol_types::SolCall;
use roundtrip::clock::{Clock, SystemClock};
use roundtrip::relay::Running;
use roundtrip::sender::{Patience, SenderOptions, SignedAttempt};
use roundtrip::store::query::{ListFilter, ParcelView, RequestView};
use roundtrip::store::{Options, ReadExt, SqliteStore, Store};
use roundtrip::words::{Height, LaneName, Nonce, PAGE_MAX};
use roundtrip_evm::testkit::account::{Call, RawTransaction, deploy_board, dev_signers, head};
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::checker::check;
use roundtrip_evm::testkit::deployment::{Deployment, GAS, Pace, answer_to, by_the_contract};
use roundtrip_evm::testkit::node::{AnvilOptions, Node};
use roundtrip_evm::{EvmChain, Rpc};
use serde::Deserialize;

pub(super) const CHAIN_ID: u64 = 31337;
/// Blocks so deep are final.
pub(super) const FINAL_DEPTH: u64 = 4;
/// What sends again soon, and never bumps within a test.
pub(super) const STEADY: Patience = Patience { resend_ms: 200, bump_ms: 600_000 };
/// What bumps soon, and never sends the same again within a test.
pub(super) const BUMPING: Patience = Patience { resend_ms: 600_000, bump_ms: 300 };

/// How often a test looks whether what it waits for has come, and how long it waits.
const LOOK: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between blocks that are made while a test waits.
const BLOCK: Duration = Duration::from_millis(40);
const REQUEST_GAS: u64 = 200_000;
const DEPLOYER: usize = 0;
const ASKER: usize = 1;
const FIRST_LANE: usize = 5;

/// A transaction, as nodes show it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown {
    pub(super) hash: B256,
    pub(super) nonce: U64,
    pub(super) input: Bytes,
    pub(super) block_hash: Option<B256>,
    /// None, where there is no base fee.
    pub(super) max_fee_per_gas: Option<U128>,
}

/// A node with a board, and a store.
pub(super) struct World {
    pub(super) node: Node,
    pub(super) client: RpcClient,
    pub(super) board: Address,
    pub(super) store: Arc<dyn Store>,
    pub(super) lanes: Vec<PrivateKeySigner>,
    clock: Arc<dyn Clock>,
    _folder: tempfile::TempDir,
}

impl World {
    /// On Anvil, with so many lanes.
    pub(super) async fn on_anvil(lanes: usize) -> World {
        World::on(Node::anvil(AnvilOptions::default()).await.unwrap(), lanes).await
    }

    /// On this node, with so many lanes.
    pub(super) async fn on(node: Node, lanes: usize) -> World {
        let client = node.client();
        let lanes = dev_signers()[FIRST_LANE..FIRST_LANE + lanes].to_vec();
        let accounts: Vec<Address> = lanes.iter().map(|lane| lane.address()).collect();
        let board = deploy_board(&client, &dev_signers()[DEPLOYER], &accounts).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let file = folder.path().join("store.db");
        let store = Arc::new(SqliteStore::open(file, clock.clone(), Options::default()).unwrap());
        World { node, client, board, store, lanes, clock, _folder: folder }
    }

    pub(super) fn deployment(&self, patience: Patience) -> Deployment {
        Deployment {
            rpc: Rpc::over(self.client.clone()),
            chain_id: CHAIN_ID,
            board: self.board,
            from_block: Height(0),
            lanes: self.lanes.clone(),
            final_depth: FINAL_DEPTH,
            identity: by_the_contract().unwrap(),
            gas: GAS,
            parcel_max: 1,
            pace: Pace { poll: Duration::from_millis(20), hold_ms: 5_000, patience, window: 16 },
        }
    }

    /// Starts the relay; dropped, it is gone.
    pub(super) async fn relay(&self, patience: Patience) -> Running {
        let relay = self.deployment(patience).relay(self.store.clone(), self.clock.clone()).unwrap();
        relay.start().await.unwrap()
    }

    /// The same, of this deployment, with a sender that does it so.
    pub(super) async fn relay_sending(&self, deployment: &Deployment, chain: EvmChain, send: SenderOptions) -> Running {
        let (store, clock) = (self.store.clone(), self.clock.clone());
        deployment.relay_sending(store, clock, Arc::new(chain), send).unwrap().start().await.unwrap()
    }

    /// Sends a transaction of this account.
    pub(super) async fn send(&self, signer: &PrivateKeySigner, call: Call) -> RawTransaction {
        let raw = call.sign(signer).unwrap();
        self.send_again(&raw).await;
        raw
    }

    pub(super) async fn send_again(&self, raw: &RawTransaction) {
        let _: B256 = self.client.request("eth_sendRawTransaction", (&raw.bytes,)).await.unwrap();
    }

    /// A transaction that does nothing, on this slot.
    pub(super) async fn nothing(&self, nonce: u64) -> Call {
        let fees = head(&self.client).await.unwrap().fees();
        Call {
            chain_id: CHAIN_ID,
            nonce,
            to: TxKind::Call(Address::repeat_byte(7)),
            input: Bytes::new(),
            gas_limit: 21_000,
            fees,
        }
    }

    /// Asks this as the asker's transaction of this number; it waits to be mined.
    pub(super) async fn ask(&self, nonce: u64, payload: &Bytes) -> RawTransaction {
        let input = RequestBoard::requestCall { payload: payload.clone() }.abi_encode().into();
        let nothing = self.nothing(nonce).await;
        self.send(asker(), Call { to: TxKind::Call(self.board), input, gas_limit: REQUEST_GAS, ..nothing }).await
    }

    /// Asks these in the next block.
    pub(super) async fn ask_all(&self, payloads: &[Bytes]) {
        for (payload, nonce) in payloads.iter().zip(0..) {
            self.ask(nonce, payload).await;
        }
        self.node.mine(1).await.unwrap();
    }

    /// Waits until something is so; nothing is mined meanwhile.
    pub(super) async fn until<T>(&self, what: &str, so: impl AsyncFn() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = so().await {
                return found;
            }
            assert!(started.elapsed() < PATIENCE, "waited in vain: {what}; {}", self.state().await);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until something is so, and makes blocks meanwhile.
    pub(super) async fn mine_until<T>(&self, what: &str, so: impl AsyncFn() -> Option<T>) -> T {
        let mined = async || {
            let found = so().await;
            if found.is_none() {
                tokio::time::sleep(BLOCK).await;
                self.node.mine(1).await.unwrap();
            }
            found
        };
        self.until(what, mined).await
    }

    /// For whoever reads of a failure.
    async fn state(&self) -> String {
        let counts = self.store.counts().await.unwrap();
        let lanes = self.store.lanes().await.unwrap();
        format!("{counts:?} {lanes:?}")
    }

    /// What is under way on this slot of a lane.
    pub(super) async fn parcel(&self, lane: usize, nonce: u64) -> Option<ParcelView> {
        let lane = self.store.lane(LaneName::new(&format!("lane-{lane}")).unwrap()).await.unwrap()?;
        lane.parcels.into_iter().find(|parcel| parcel.nonce == Nonce(nonce))
    }

    /// Makes what was asked final, and waits until the node holds what is stored for this slot
    /// of the first lane; it is not mined.
    pub(super) async fn sent(&self, nonce: u64) -> SignedAttempt {
        self.node.mine(FINAL_DEPTH).await.unwrap();
        let held = async || {
            let stored = self.parcel(0, nonce).await?.attempts.last().cloned()?;
            self.transaction(B256::from(stored.hash.0)).await.map(|_| stored)
        };
        self.until("the node holds what is stored", held).await
    }

    pub(super) async fn transaction(&self, hash: B256) -> Option<Shown> {
        self.client.request("eth_getTransactionByHash", (hash,)).await.unwrap()
    }

    /// The transaction of an account on this slot, if it is mined.
    pub(super) async fn mined(&self, account: Address, nonce: u64) -> Option<Shown> {
        #[derive(Debug, Deserialize)]
        struct Block {
            transactions: Vec<Sent>,
        }
        #[derive(Debug, Deserialize)]
        struct Sent {
            from: Address,
            #[serde(flatten)]
            shown: Shown,
        }
        for number in 0..=self.node.block_number().await.unwrap() {
            let block: Block = self.client.request("eth_getBlockByNumber", (U64::from(number), true)).await.unwrap();
            let ours = |sent: &Sent| sent.from == account && sent.shown.nonce == U64::from(nonce);
            if let Some(sent) = block.transactions.into_iter().find(ours) {
                return Some(sent.shown);
            }
        }
        None
    }

    /// All that the store holds and that has not ended.
    pub(super) async fn requests(&self) -> Vec<RequestView> {
        let filter = ListFilter { limit: PAGE_MAX, ..ListFilter::default() };
        self.store.list(filter).await.unwrap().requests
    }

    /// Makes blocks until nothing is left in the store.
    pub(super) async fn drained(&self) {
        let drained = async || {
            let open = self.store.counts().await.unwrap().iter().any(|count| count.requests > 0);
            let under_way = self.store.lanes().await.unwrap().iter().any(|lane| lane.under_way > 0);
            (!open && !under_way).then_some(())
        };
        self.mine_until("nothing is left in the store", drained).await;
    }

    /// Makes blocks until the outside checker has nothing to say against it, and nothing is
    /// left in the store.
    pub(super) async fn settled(&self, payloads: &[Bytes]) {
        let accounts: Vec<Address> = self.lanes.iter().map(|lane| lane.address()).collect();
        let clean = format!("settled {}, lost 0, doubled 0", payloads.len());
        let settled = async || {
            let verdict = check(&self.client, self.board, payloads, &accounts, answer_to).await.unwrap();
            (verdict.to_string() == clean).then_some(())
        };
        self.mine_until("everything is answered once", settled).await;
        self.drained().await;
        settled().await.expect("it stays so");
    }
}

pub(super) fn asker() -> &'static PrivateKeySigner {
    static ASKER_KEY: std::sync::OnceLock<PrivateKeySigner> = std::sync::OnceLock::new();
    ASKER_KEY.get_or_init(|| dev_signers()[ASKER].clone())
}

/// What stored bytes say.
pub(super) fn signed(attempt: &SignedAttempt) -> TxEnvelope {
    TxEnvelope::decode_2718(&mut &attempt.bytes[..]).unwrap()
}

pub(super) fn payloads(count: usize) -> Vec<Bytes> {
    (0..count).map(|n| format!("ask {n}").into_bytes().into()).collect()
}
