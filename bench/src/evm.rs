//! Confirmed transactions over 4 lanes: the sender on an embedded store, beside a bare
//! loop on alloy that signs and sends the same calls to the same node and stores nothing.
//!
//! ```text
//!   ours:   ready answers in the store ──▶ sign ──▶ store ──▶ send ──▶ look ──▶ Confirmed, stored
//!   theirs: a list in memory ──▶ sign ──▶ send ──▶ the account's count at the same depth
//! ```
//!
//! Each run has an Anvil of its own, on whose board everything was asked before the clock
//! starts. Whether all of it was answered is asked of the board after the clock stopped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use alloy::consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy::eips::eip2718::Encodable2718;
use alloy::primitives::{Address, B256, Bytes, TxHash, TxKind, U64, U256, keccak256};
use alloy::rpc::client::RpcClient;
use alloy::signers::SignerSync;
use alloy::signers::local::PrivateKeySigner;
use alloy::sol_types::SolCall;
use roundtrip::clock::SystemClock;
use roundtrip::sender::{ParcelStage, Rebuild, Sender, SenderOptions};
use roundtrip::station::Shutdown;
use roundtrip::store::op::{Admit, Answer, Define, Effect, Lease, Op, Outcome, Settle, Sight};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::{Query, Reply};
use roundtrip::store::{Changes, Options, SqliteStore, Store, StoreExt, StoreFuture, Topic};
use roundtrip::words::{ClaimId, Destination, HolderName, LaneName, Payload, WorkerName};
use roundtrip_evm::sender::LaneSigner;
use roundtrip_evm::testkit::account::{Call, Fees, deploy_board, dev_signers, head, send_raw};
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::node::{AnvilOptions, Mining, Node};
use roundtrip_evm::{ContractCall, EvmChain, EvmChainOptions, Finality, Gas, Rpc};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::Scale;
use crate::lifecycle::{request, route};
use crate::report::{Report, cpu_seconds, cpu_seconds_of, median};

/// Accounts that share the sending.
const LANES: usize = 4;
/// The time between two blocks: short, so that waiting for the next says little.
const BLOCK_MS: u64 = 100;
/// Blocks hold whatever there is: the node's speed is the bound, not a block's size.
const BLOCK_GAS: u64 = 2_000_000_000;
/// Enough for every answer.
const GAS: u64 = 150_000;
/// Enough for every question.
const REQUEST_GAS: u64 = 150_000;
/// So many blocks, its own counted, make a transaction confirmed.
const CONFIRMATIONS: u64 = 2;
/// Blocks so deep are final: what is confirmed ends during the run.
const FINAL_DEPTH: u64 = 4;
/// How often each side looks at the chain.
const POLL: Duration = Duration::from_millis(100);
/// Parcels under way on a lane of ours; the bare loop has no bound.
const WINDOW: u32 = 4096;
/// Transactions in one call of the bare loop, as many as in one of ours.
const BATCH: usize = 100;
/// Calls of one account under way in the bare loop, as many as a lane of ours has.
const BATCHES_AT_ONCE: usize = 4;
/// How many requests are admitted, leased and answered at a time.
const HANDFUL: usize = 1000;
/// No run takes this long.
const RUN_WITHIN: Duration = Duration::from_secs(120);
const FUNCTION: &str = "function respond(uint256 id, bytes32 content, bytes answer)";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A node with a board on which everything was asked, and the accounts that may answer.
struct Site {
    node: Node,
    rpc: Rpc,
    client: RpcClient,
    chain_id: u64,
    board: Address,
    signers: Vec<PrivateKeySigner>,
    count: u64,
}

fn payload(n: u64) -> Bytes {
    format!("request {n}").into_bytes().into()
}

fn content(n: u64) -> B256 {
    keccak256(payload(n))
}

fn answer(n: u64) -> Bytes {
    n.to_be_bytes().to_vec().into()
}

impl Site {
    async fn ready(count: u64) -> Result<Site, Failure> {
        let extra = vec!["--gas-limit".to_owned(), BLOCK_GAS.to_string()];
        let mining = Mining::Every { ms: BLOCK_MS };
        let node = Node::anvil(AnvilOptions { mining, extra, ..AnvilOptions::default() }).await?;
        let rpc = Rpc::http(node.url().as_str())?;
        let client = rpc.client();
        // It writes a line for every call otherwise, which somebody has to read.
        let _: serde_json::Value = client.request("anvil_setLoggingEnabled", (false,)).await?;
        let mut signers = dev_signers();
        let asker = signers.pop().ok_or("no account asks")?;
        signers.truncate(LANES);
        let responders: Vec<Address> = signers.iter().map(PrivateKeySigner::address).collect();
        let board = deploy_board(&client, &asker, &responders).await?;
        let site = Site { node, chain_id: rpc.chain_id().await?, rpc, client, board, signers, count };
        site.ask_all(&asker).await?;
        Ok(site)
    }

    /// One account asks all, so that the ids are in the order of the payloads.
    async fn ask_all(&self, asker: &PrivateKeySigner) -> Result<(), Failure> {
        let first = self.nonce(asker.address(), "latest").await?;
        let fees = Fees::above(head(&self.client).await?.base_fee_per_gas.to());
        let mut outgoing = Vec::new();
        for n in 0..self.count {
            let call = Call {
                chain_id: self.chain_id,
                nonce: first + n,
                to: TxKind::Call(self.board),
                input: RequestBoard::requestCall { payload: payload(n) }.abi_encode().into(),
                gas_limit: REQUEST_GAS,
                fees,
            };
            outgoing.push(call.sign(asker)?.bytes);
        }
        for answer in send_raw(&self.client, &outgoing).await? {
            answer?;
        }
        while self.nonce(asker.address(), "latest").await? < first + self.count {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    async fn nonce(&self, account: Address, block: impl Into<String>) -> Result<u64, Failure> {
        let nonce: U64 = self.client.request("eth_getTransactionCount", (account, block.into())).await?;
        Ok(nonce.to())
    }

    /// Every request has its answer, and each answer used one slot.
    async fn check(&self) -> Result<(), Failure> {
        for n in [0, self.count / 2, self.count - 1] {
            let input: Bytes = RequestBoard::isRespondedCall { id: U256::from(n) }.abi_encode().into();
            let call = serde_json::json!({"to": self.board, "data": input});
            let answered: U256 = self.client.request("eth_call", (call, "latest")).await?;
            if answered != U256::ONE {
                return Err(format!("request {n} was not answered").into());
            }
        }
        let mut sent = 0;
        for signer in &self.signers {
            sent += self.nonce(signer.address(), "latest").await?;
        }
        if sent == self.count { Ok(()) } else { Err(format!("{sent} transactions for {} answers", self.count).into()) }
    }
}

/// A clock that runs while transactions are sent.
struct Meter<'a> {
    site: &'a Site,
    started: Instant,
    before: (f64, f64),
}

/// What sending took, in seconds: in all, of our processor time, and of the node's.
struct Cost {
    seconds: f64,
    here: f64,
    node: f64,
}

impl Meter<'_> {
    fn start(site: &Site) -> Meter<'_> {
        let before = (cpu_seconds(), cpu_seconds_of(site.node.process_id()));
        Meter { site, before, started: Instant::now() }
    }

    fn stop(&self) -> Cost {
        let seconds = self.started.elapsed().as_secs_f64();
        let node = cpu_seconds_of(self.site.node.process_id()) - self.before.1;
        Cost { seconds, here: cpu_seconds() - self.before.0, node }
    }
}

/// A store that counts what becomes confirmed.
struct Watched {
    store: SqliteStore,
    confirmed: AtomicU64,
    stop_at: u64,
    done: Notify,
}

fn confirms(op: &Op) -> bool {
    let Op::Settle(Settle { expected, sight, .. }) = op else { return false };
    *expected != ParcelStage::Confirmed && matches!(sight, Sight::Confirmed(_) | Sight::Final(..))
}

impl Store for Watched {
    fn apply(&self, batch: Vec<Op>) -> StoreFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            let confirming: Vec<bool> = batch.iter().map(confirms).collect();
            let outcomes = self.store.apply(batch).await?;
            let applied = |outcome: &Outcome| matches!(outcome, Outcome::Applied(_));
            let count = confirming.iter().zip(&outcomes).filter(|(confirms, outcome)| **confirms && applied(outcome));
            let count = count.count() as u64;
            if self.confirmed.fetch_add(count, Ordering::Relaxed) + count >= self.stop_at {
                self.done.notify_one();
            }
            Ok(outcomes)
        })
    }

    fn read(&self, query: Query) -> StoreFuture<'_, Reply> {
        self.store.read(query)
    }

    fn changes(&self, topic: Topic) -> Changes {
        self.store.changes(topic)
    }
}

fn destination() -> Result<Destination, Failure> {
    Ok(Destination::new("chain")?)
}

/// Admits, leases and answers so many, as a listener and a worker would.
async fn fill(store: &SqliteStore, count: u64) -> Result<(), Failure> {
    let policy = RoutePolicy { destination: Some(destination()?), capacity: 10_000_000, ..RoutePolicy::default() };
    store.apply_one(Define { route: route(), policy }).await?;
    let worker = WorkerName::new("worker")?;
    let mut next = 0;
    while next < count {
        let some = next..count.min(next + HANDFUL as u64);
        store.apply_one(Admit { cursor: None, requests: some.clone().map(request).collect() }).await?;
        let (worker, claim) = (worker.clone(), ClaimId(next));
        let lease = Lease { route: route(), worker, max: HANDFUL, claim, lease_ms: None };
        let Outcome::Applied(Effect::Leased(grants)) = store.apply_one(lease).await? else {
            return Err("nothing was leased".into());
        };
        let answers = grants.into_iter().zip(some.clone()).map(|(grant, n)| {
            let response =
                Payload::json(format!(r#"{{"id":"{n}","content":"{}","answer":"{}"}}"#, content(n), answer(n)));
            let (id, token) = (grant.id, grant.token);
            Op::Answer(Answer { id, token, response, follow_ups: Vec::new(), items: Vec::new() })
        });
        let answered = store.apply(answers.collect()).await?;
        if answered.len() as u64 != some.end - some.start || !answered.iter().all(Outcome::holds) {
            return Err("an answer was refused".into());
        }
        next = some.end;
    }
    Ok(())
}

/// The sender as it is, until all is confirmed.
async fn ours(site: &Site) -> Result<Cost, Failure> {
    let folder = tempfile::tempdir_in(".")?;
    let clock = Arc::new(SystemClock::new());
    let store = SqliteStore::open(folder.path().join("evm.db"), clock.clone(), Options::default())?;
    fill(&store, site.count).await?;
    let store = Arc::new(Watched { store, confirmed: AtomicU64::new(0), stop_at: site.count, done: Notify::new() });
    let mut signers: BTreeMap<LaneName, LaneSigner> = BTreeMap::new();
    for (n, signer) in site.signers.iter().enumerate() {
        signers.insert(LaneName::new(&format!("lane-{n}"))?, Arc::new(signer.clone()));
    }
    let lanes = signers.keys().cloned().collect();
    let options = EvmChainOptions {
        finality: Finality::Depth(FINAL_DEPTH),
        confirmations: CONFIRMATIONS,
        gas: Gas::Fixed(GAS),
        head_fresh_for: POLL,
        ..EvmChainOptions::default()
    };
    let call = ContractCall::one(site.board, FUNCTION)?;
    let sender = Sender {
        store: store.clone(),
        chain: Arc::new(EvmChain::new(site.rpc.clone(), site.chain_id, call, signers, options)),
        clock,
        holder: HolderName::new("bench")?,
        destination: destination()?,
        lanes,
        options: SenderOptions { window: WINDOW, poll: POLL, ..SenderOptions::default() },
        rebuild: Rebuild::default(),
    };
    let shutdown = Shutdown::new();
    let meter = Meter::start(site);
    let mut sending = tokio::spawn(sender.run(shutdown.clone()));
    tokio::select! {
        () = store.done.notified() => {}
        ended = &mut sending => return Err(format!("the sender ended: {ended:?}").into()),
    }
    let cost = meter.stop();
    shutdown.cancel();
    sending.await??;
    store.store.close().await?;
    Ok(cost)
}

/// The loop that somebody writes for speed alone.
async fn bare(site: &Site) -> Result<Cost, Failure> {
    let meter = Meter::start(site);
    let fees = Fees::above(head(&site.client).await?.base_fee_per_gas.to());
    let mut accounts = JoinSet::new();
    for (at, signer) in site.signers.iter().enumerate() {
        let numbers: Vec<u64> = (0..site.count).skip(at).step_by(LANES).collect();
        let account = Account { client: site.client.clone(), signer: signer.clone(), fees };
        accounts.spawn(account.send_all(site.chain_id, site.board, numbers));
    }
    while let Some(ended) = accounts.join_next().await {
        ended??;
    }
    Ok(meter.stop())
}

struct Account {
    client: RpcClient,
    signer: PrivateKeySigner,
    fees: Fees,
}

impl Account {
    /// Signs a batch while the last ones are on their way, then waits until all are deep.
    async fn send_all(self, chain_id: u64, board: Address, numbers: Vec<u64>) -> Result<(), Failure> {
        let mut sending: JoinSet<Result<(), Failure>> = JoinSet::new();
        let mut nonce = 0;
        for some in numbers.chunks(BATCH) {
            let mut raw: Vec<Bytes> = Vec::with_capacity(BATCH);
            for &n in some {
                raw.push(self.sign(chain_id, board, nonce, n)?);
                nonce += 1;
            }
            while sending.len() >= BATCHES_AT_ONCE {
                sending.join_next().await.ok_or("nothing is under way")???;
            }
            let client = self.client.clone();
            sending.spawn(async move {
                send_raw(&client, &raw).await?.into_iter().collect::<Result<Vec<TxHash>, _>>()?;
                Ok(())
            });
        }
        while let Some(sent) = sending.join_next().await {
            sent??;
        }
        while self.deep().await? < nonce {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    fn sign(&self, chain_id: u64, board: Address, nonce: u64, n: u64) -> Result<Bytes, Failure> {
        let (id, content, answer) = (U256::from(n), content(n), answer(n));
        let transaction = TxEip1559 {
            chain_id,
            nonce,
            gas_limit: GAS,
            max_fee_per_gas: self.fees.max_fee,
            max_priority_fee_per_gas: self.fees.tip,
            to: TxKind::Call(board),
            input: RequestBoard::respondCall { id, content, answer }.abi_encode().into(),
            ..TxEip1559::default()
        };
        let signature = self.signer.sign_hash_sync(&transaction.signature_hash())?;
        Ok(TxEnvelope::Eip1559(transaction.into_signed(signature)).encoded_2718().into())
    }

    /// How many of its transactions are confirmed.
    async fn deep(&self) -> Result<u64, Failure> {
        let head: U64 = self.client.request_noparams("eth_blockNumber").await?;
        let block = U64::from(head.to::<u64>().saturating_sub(CONFIRMATIONS - 1));
        let count: U64 = self.client.request("eth_getTransactionCount", (self.signer.address(), block)).await?;
        Ok(count.to())
    }
}

/// Who sends.
#[derive(Clone, Copy, Debug)]
enum By {
    Sender,
    BareLoop,
}

/// Confirmed transactions per second, on a node of its own.
fn rate(by: By, count: u64) -> Result<f64, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let site = Site::ready(count).await?;
        let run = async {
            match by {
                By::Sender => ours(&site).await,
                By::BareLoop => bare(&site).await,
            }
        };
        let cost = tokio::time::timeout(RUN_WITHIN, run).await??;
        site.check().await?;
        let each_us = |seconds: f64| seconds * 1e6 / count as f64;
        let (rate, here_us, node_us) = (count as f64 / cost.seconds, each_us(cost.here), each_us(cost.node));
        eprintln!("  {by:?}: {rate:.0}/s, {here_us:.0} us of processor time each, and {node_us:.0} us in the node");
        Ok(rate)
    })
}

/// Both in turn, so that both meet the same weather.
pub(crate) fn beside_bare_loop(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    let count = 8 * scale.lifecycles as u64;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // Short runs meet more weather, so there are more of them.
    for _ in 0..2 * scale.rounds - 1 {
        ours.push(rate(By::Sender, count)?);
        theirs.push(rate(By::BareLoop, count)?);
    }
    let bench = format!("confirmed transactions, {LANES} lanes");
    report.speed(bench, median(ours), "bare alloy loop".into(), median(theirs), "tx/s");
    Ok(())
}
