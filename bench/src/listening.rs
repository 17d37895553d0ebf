//! Events in: 200,000 logs of an Anvil read into an embedded store, beside a bare alloy loop
//! of `eth_getLogs` over the same ranges that stores nothing; and how long a new block takes
//! to the inbox, over a WebSocket and by polling.
//!
//! ```text
//!   ours:   headers and logs ──▶ checked ──▶ decoded ──▶ stored, with the cursor (the next range meanwhile)
//!   theirs: logs ──▶ counted
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use alloy::primitives::{Address, B256, U64};
use alloy::rpc::client::RpcClient;
use alloy::rpc::types::Log;
use roundtrip::clock::SystemClock;
use roundtrip::inbox::Identity;
use roundtrip::listener::{Follower, FollowerOptions, FollowerStats};
use roundtrip::station::Shutdown;
use roundtrip::store::op::Define;
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::{Options, ReadExt, SqliteStore, Store, StoreExt, Topic};
use roundtrip::words::{Height, HolderName, ListenerName, OriginName, RouteName};
use roundtrip_evm::testkit::node::{AnvilOptions, Mining, Node};
use roundtrip_evm::testkit::speaker::{self, EVENT, SPEAKER};
use roundtrip_evm::{EventSignature, EvmSource, Finality, Rpc, Watch};
use serde_json::{Value, json};

use crate::Scale;
use crate::report::{Report, median};

/// Logs in one transaction, and so in one block.
const LOGS_IN_A_BLOCK: u64 = 200;
/// Blocks in one range.
const RANGE: u64 = 50;
/// How often the chain is looked at where nothing tells of news.
const POLL: Duration = Duration::from_millis(100);
/// Longer than a run.
const RARELY: Duration = Duration::from_secs(600);
/// Blocks whose way to the inbox is timed.
const TIMED: usize = 40;
/// No run takes this long.
const RUN_WITHIN: Duration = Duration::from_secs(180);
const BLOCK_GAS: u64 = 2_000_000_000;
const GAS: u64 = 20_000_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A node on which code emits events.
struct Site {
    node: Node,
    client: RpcClient,
    chain_id: u64,
    from: Address,
}

impl Site {
    async fn ready() -> Result<Site, Failure> {
        let extra = vec!["--gas-limit".to_owned(), BLOCK_GAS.to_string()];
        let node = Node::anvil(AnvilOptions { mining: Mining::OnDemand, extra, ..AnvilOptions::default() }).await?;
        let rpc = Rpc::http(node.url().as_str())?;
        let client = rpc.client();
        let _: Value = client.request("anvil_setLoggingEnabled", (false,)).await?;
        let topic = EventSignature::parse(EVENT)?.topic().ok_or("an event without a topic")?;
        speaker::place(&client, topic).await?;
        let accounts: Vec<Address> = client.request("eth_accounts", ()).await?;
        let from = accounts.first().copied().ok_or("no account")?;
        Ok(Site { node, chain_id: rpc.chain_id().await?, client, from })
    }

    /// One block with so many logs, numbered from the first.
    async fn speak(&self, first: u64, count: u64) -> Result<(), Failure> {
        let data = speaker::input(first, count);
        let call = json!({"from": self.from, "to": SPEAKER, "gas": U64::from(GAS), "data": data});
        let _: B256 = self.client.request("eth_sendTransaction", (call,)).await?;
        self.node.mine(1).await?;
        Ok(())
    }

    async fn height(&self) -> Result<u64, Failure> {
        Ok(self.client.request::<_, U64>("eth_blockNumber", ()).await?.to())
    }

    fn source(&self) -> Result<EvmSource, Failure> {
        let watch = Watch::new(route()?, EventSignature::parse(EVENT)?, Identity::Given).at([SPEAKER]);
        let rpc = Rpc::http(self.node.url().as_str())?;
        Ok(EvmSource::new(rpc, self.chain_id, Finality::Latest, vec![watch]))
    }
}

fn route() -> Result<RouteName, Failure> {
    Ok(RouteName::new("board")?)
}

/// A follower at work on a store of its own.
struct Ours {
    store: Arc<SqliteStore>,
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<Result<(), roundtrip::station::StationError>>,
    _folder: tempfile::TempDir,
}

impl Ours {
    async fn start(source: EvmSource, poll: Duration) -> Result<Ours, Failure> {
        let folder = tempfile::tempdir()?;
        let clock = Arc::new(SystemClock::new());
        let store = Arc::new(SqliteStore::open(folder.path().join("store.db"), clock.clone(), Options::default())?);
        let policy = RoutePolicy { capacity: 10_000_000, ..RoutePolicy::default() };
        store.apply_one(Define { route: route()?, policy }).await?;
        let options = FollowerOptions { from_block: Height(1), range: RANGE, poll, ..FollowerOptions::default() };
        let follower = Follower {
            store: store.clone(),
            source: Arc::new(source),
            clock,
            holder: HolderName::new("bench")?,
            listener: listener()?,
            origin: OriginName::new("chain")?,
            routes: vec![route()?],
            options,
            stats: Arc::<FollowerStats>::default(),
        };
        let shutdown = Shutdown::new();
        let task = tokio::spawn(follower.run(shutdown.clone()));
        Ok(Ours { store, shutdown, task, _folder: folder })
    }

    /// Waits until everything up to this height is stored.
    async fn reached(&self, height: u64) -> Result<(), Failure> {
        let reached = async {
            loop {
                let cursor = self.store.cursor(listener()?).await?;
                if cursor.is_some_and(|cursor| cursor.at.height >= Height(height)) {
                    return Ok::<(), Failure>(());
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(RUN_WITHIN, reached).await?
    }

    async fn live(&self) -> Result<u64, Failure> {
        let counts = self.store.counts().await?;
        Ok(counts.iter().map(|count| count.requests).sum())
    }

    async fn stop(self) -> Result<(), Failure> {
        self.shutdown.cancel();
        self.task.await??;
        Ok(())
    }
}

fn listener() -> Result<ListenerName, Failure> {
    Ok(ListenerName::new("board")?)
}

async fn bare(site: &Site, to: u64) -> Result<usize, Failure> {
    let topic = EventSignature::parse(EVENT)?.topic();
    let (mut from, mut found) = (1, 0);
    while from <= to {
        let end = (from + RANGE - 1).min(to);
        let filter =
            json!({"address": SPEAKER, "topics": [topic], "fromBlock": U64::from(from), "toBlock": U64::from(end)});
        found += site.client.request::<_, Vec<Log>>("eth_getLogs", (filter,)).await?.len();
        from = end + 1;
    }
    Ok(found)
}

async fn backfill(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    let site = Site::ready().await?;
    let blocks = if scale.rounds == 1 { 200 } else { 1_000 };
    for n in 0..blocks {
        site.speak(n * LOGS_IN_A_BLOCK, LOGS_IN_A_BLOCK).await?;
    }
    let (to, logs) = (site.height().await?, blocks * LOGS_IN_A_BLOCK);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        let started = Instant::now();
        let found = bare(&site, to).await?;
        theirs.push(found as f64 / started.elapsed().as_secs_f64());
        let started = Instant::now();
        let follower = Ours::start(site.source()?, POLL).await?;
        follower.reached(to).await?;
        ours.push(logs as f64 / started.elapsed().as_secs_f64());
        if (found as u64, follower.live().await?) != (logs, logs) {
            return Err(format!("{found} logs found, {} stored, of {logs}", follower.live().await?).into());
        }
        follower.stop().await?;
    }
    let beside = "bare alloy eth_getLogs loop, nothing stored".to_owned();
    report.speed(format!("EVM backfill of {logs} logs"), median(ours), beside, median(theirs), "logs/s");
    Ok(())
}

/// How long a block takes to the inbox, in milliseconds.
async fn latency(site: &Site, source: EvmSource, poll: Duration) -> Result<f64, Failure> {
    let follower = Ours::start(source, poll).await?;
    follower.reached(site.height().await?).await?;
    let mut changes = follower.store.changes(Topic::Inbox(route()?));
    let mut took = Vec::new();
    for n in 0..TIMED {
        // Not in step with the polling.
        tokio::time::sleep(Duration::from_millis(20 + (n as u64 * 37) % 100)).await;
        let before = follower.live().await?;
        let started = Instant::now();
        site.speak(0, 1).await?;
        while follower.live().await? == before {
            let _hint = tokio::time::timeout(Duration::from_millis(1), changes.changed()).await;
        }
        took.push(started.elapsed().as_secs_f64() * 1_000.0);
    }
    follower.stop().await?;
    Ok(median(took))
}

async fn to_the_inbox(report: &mut Report) -> Result<(), Failure> {
    let site = Site::ready().await?;
    site.speak(0, 1).await?;
    let polled = latency(&site, site.source()?, POLL).await?;
    let socket = site.node.url().as_str().replacen("http", "ws", 1);
    let told = latency(&site, site.source()?.live(&socket)?, RARELY).await?;
    let beside = format!("polling every {} ms", POLL.as_millis());
    report.cost("EVM block to inbox over a WebSocket".to_owned(), told, beside, polled, "ms, median");
    Ok(())
}

/// Measures both.
pub(crate) fn beside_bare_loop(report: &mut Report, scale: Scale) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(backfill(report, scale))?;
    runtime.block_on(to_the_inbox(report))
}
