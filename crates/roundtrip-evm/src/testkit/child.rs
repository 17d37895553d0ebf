//! A deployment in a process of its own, for whoever wants to kill it.
//!
//! It runs until its standard input ends, so that it never outlives whoever started it, or
//! until it is killed.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;

use alloy::primitives::Address;
use roundtrip::clock::{Clock, SystemClock};
use roundtrip::inbox::{FieldPath, Identity};
use roundtrip::listener::FollowerOptions;
use roundtrip::relay::Relay;
use roundtrip::station::Shutdown;
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::{Options, open};
use roundtrip::words::{Height, RouteName, UnixMs};
use serde::{Deserialize, Serialize};

use super::account::dev_signers;
use super::deployment::{Deployment, Failed, GAS, Pace, by_the_contract};
use crate::{EventSignature, EvmSource, Finality, Rpc, Watch};

/// What a child is told; it travels as JSON in its first argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// The node.
    pub url: String,
    /// The store.
    pub store: String,
    /// The sample contract.
    pub board: Address,
    /// The first block to read.
    pub from_block: u64,
    /// Which of the development accounts are lanes.
    pub lanes: Vec<usize>,
    /// Blocks so deep are final.
    pub final_depth: u64,
    /// How far its clock is ahead; behind, if negative.
    pub clock_ahead_ms: i64,
}

/// A clock that is wrong.
struct Skewed(SystemClock, i64);

impl Clock for Skewed {
    fn now(&self) -> UnixMs {
        UnixMs(self.0.now().0.saturating_add_signed(self.1))
    }
}

impl Orders {
    /// The addresses of the lanes.
    pub fn lane_accounts(&self) -> Vec<Address> {
        let signers = dev_signers();
        self.lanes.iter().filter_map(|&lane| signers.get(lane)).map(|signer| signer.address()).collect()
    }

    async fn deployment(&self) -> Result<Deployment, Failed> {
        let rpc = Rpc::http(&self.url)?;
        let chain_id = loop {
            match rpc.chain_id().await {
                Ok(chain_id) => break chain_id,
                Err(error) => tracing::warn!(%error, "the node is asked again"),
            }
        };
        let signers = dev_signers();
        let lane = |&at: &usize| signers.get(at).cloned().ok_or_else(|| format!("there is no account {at}"));
        Ok(Deployment {
            rpc,
            chain_id,
            board: self.board,
            from_block: Height(self.from_block),
            lanes: self.lanes.iter().map(lane).collect::<Result<_, _>>()?,
            final_depth: self.final_depth,
            identity: by_the_contract()?,
            gas: GAS,
            parcel_max: 1,
            pace: Pace::default(),
        })
    }
}

/// What the child does.
pub async fn obey(orders: &Orders) -> Result<(), Failed> {
    let deployment = orders.deployment().await?;
    let store = open(&orders.store, Options::default())?;
    let clock = Skewed(SystemClock::new(), orders.clock_ahead_ms);
    let relay = deployment.relay(store.clone(), Arc::new(clock))?;
    let left_alone = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    relay.stop_when(async { drop(left_alone.await) }).run().await?;
    Ok(store.close().await?)
}

/// What a child that only listens is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenOrders {
    /// The nodes.
    pub urls: Vec<String>,
    /// Which chain they are on.
    pub chain_id: u64,
    /// The store.
    pub store: String,
    /// The event, of any contract.
    pub event: String,
    /// The argument that makes it the same request.
    pub argument: String,
    /// The route that the requests take.
    pub route: String,
    /// Whose cursors move; each of them reads all.
    pub listeners: Vec<String>,
}

/// What either kind of child is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AnyOrders {
    /// To listen.
    Listen(ListenOrders),
    /// To run a deployment.
    Deploy(Orders),
}

impl AnyOrders {
    /// Does what it is told.
    pub async fn obey(&self) -> Result<(), Failed> {
        match self {
            AnyOrders::Listen(orders) => listen(orders).await,
            AnyOrders::Deploy(orders) => obey(orders).await,
        }
    }
}

impl ListenOrders {
    /// What makes it the same request.
    pub fn identity(&self) -> Result<Identity, Failed> {
        Ok(Identity::Fields(vec![FieldPath::new(&format!("/args/{}", self.argument))?]))
    }

    fn source(&self) -> Result<EvmSource, Failed> {
        let event = EventSignature::parse(&self.event)?;
        let watch = Watch::new(RouteName::new(&self.route)?, event, self.identity()?);
        let mut urls = self.urls.iter();
        let first = Rpc::http(urls.next().ok_or("no URL")?)?;
        let mut source = EvmSource::new(first, self.chain_id, Finality::Finalized, vec![watch]);
        for url in urls {
            source = source.also(Rpc::http(url)?);
        }
        Ok(source)
    }
}

/// What a child does that only listens: a relay for each listener, so that each has seats of
/// its own to win and to lose.
async fn listen(orders: &ListenOrders) -> Result<(), Failed> {
    let store = open(&orders.store, Options::default())?;
    let pace = Pace::default();
    let stop = Shutdown::new();
    let mut relays = Vec::new();
    for listener in &orders.listeners {
        let policy = RoutePolicy { identity: orders.identity()?, ..RoutePolicy::default() };
        let follow = FollowerOptions {
            from_block: Height(1),
            seat_ms: pace.hold_ms,
            poll: pace.poll,
            ..FollowerOptions::default()
        };
        let relay = Relay::new(store.clone())
            .name(&format!("{listener}-{}", std::process::id()))
            .stop_on(&stop)
            .without_upkeep()
            .define(&orders.route, policy)
            .follow(listener, "chain", Arc::new(orders.source()?), &[&orders.route], follow);
        relays.push(relay.start().await?);
    }
    let left_alone = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    left_alone.await??;
    stop.cancel();
    for relay in relays {
        relay.ended().await?;
    }
    Ok(store.close().await?)
}

/// A child at work; dropped, it is killed.
pub struct Child {
    process: std::process::Child,
}

impl Child {
    /// Starts a program that obeys its first argument.
    pub fn start(program: &Path, orders: &impl Serialize) -> Result<Child, Failed> {
        let process = Command::new(program)
            .arg(serde_json::to_string(orders)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Child { process })
    }

    /// How it ended, if it did without being told to.
    pub fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Kills it, wherever it is, and waits until it is gone.
    pub fn kill(&mut self) -> std::io::Result<()> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }

    /// Stops it where it is, without its knowledge, as a machine that is moved or swaps does.
    pub fn freeze(&self) -> std::io::Result<()> {
        self.signal("STOP")
    }

    /// Lets a frozen one go on.
    pub fn thaw(&self) -> std::io::Result<()> {
        self.signal("CONT")
    }

    fn signal(&self, name: &str) -> std::io::Result<()> {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.process.id().to_string()).status()?;
        if sent.success() { Ok(()) } else { Err(std::io::Error::other(format!("kill -{name}: {sent}"))) }
    }

    /// Tells it to stop, and waits until it has; an error if it ended badly, or before.
    pub async fn stop(mut self) -> Result<(), Failed> {
        if let Some(status) = self.ended()? {
            return Err(format!("it ended before it was told to: {status}").into());
        }
        // Waiting closes its standard input first.
        let waited = tokio::task::spawn_blocking(move || {
            let child = &mut self;
            child.process.wait()
        });
        let status = waited.await??;
        if status.success() { Ok(()) } else { Err(format!("it ended with {status}").into()) }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may be gone already, which is as well.
        let _ = self.kill();
    }
}
