//! What is looked at: the store through its own eyes, its file or server, nodes and accounts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use alloy::network::TxSigner;
use alloy::primitives::{Address, U256};
use futures_util::future::join_all;
use roundtrip::inbox::StateKind;
use roundtrip::sender::SenderStats;
use roundtrip::store::query::{Count, LaneView, ListFilter, RequestView, RouteView};
use roundtrip::store::vitals::{Vitals, vitals};
use roundtrip::store::{ReadExt, Store, StoreError};
use roundtrip::words::{Nonce, UnixMs};
use roundtrip_evm::sender::Signed;
use roundtrip_evm::{Rpc, SignerSource};
use roundtrip_tools::Away;
use tokio::sync::OnceCell;

use super::Here;
use crate::api::WireListener;
use crate::config::ChainConfig;
use crate::plan::{Delivery, Plan, WorkPlan};

/// How long anything that is asked has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How many of a route's oldest waiting requests are looked at.
const WAITING_MAX: usize = 100;
/// What was not reached so often in a row is away.
const MISSES_MANY: u16 = 3;
/// Of how many of a route's oldest undelivered answers it is found out since when they are.
const READY_MAX: usize = 16;

/// How much gas a transaction is taken to use, where neither the configuration nor one that is under way tells.
const GAS_ASSUMED: u64 = 200_000;

/// What is around a store: where it is, and by the configuration the nodes and accounts.
#[derive(Default)]
pub struct Outside {
    /// The store's URL.
    store: String,
    chains: Vec<(String, ChainConfig)>,
    accounts: Vec<Account>,
    /// The destinations that answers are brought to one by one, as webhooks or into lists.
    couriers: BTreeSet<String>,
    /// Who is called to work, by their routes.
    works: BTreeMap<String, Arc<WorkPlan>>,
    /// The listeners of chains that there are to be.
    listeners: Vec<String>,
}

/// An account that sends.
struct Account {
    lane: String,
    chain: String,
    signer: SignerSource,
    /// Its address, once its key was opened.
    address: OnceCell<Address>,
    balance_min: Option<u128>,
    window: u32,
    gas: Option<u64>,
    fee_cap: u128,
}

impl Outside {
    /// The lanes that there are to be.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &str> {
        self.accounts.iter().map(|account| account.lane.as_str())
    }

    /// What is around the store of this plan; of a store alone, nothing but its file or server.
    pub fn of(url: &str, plan: Option<&Plan>) -> Outside {
        let Some(plan) = plan else { return Outside { store: url.to_owned(), ..Outside::default() } };
        let (mut accounts, mut couriers) = (Vec::new(), BTreeSet::new());
        for (name, delivery) in &plan.destinations {
            let to = match delivery {
                Delivery::Transactions(to) => to,
                Delivery::Webhook(_) | Delivery::List(_) => {
                    couriers.insert(name.clone());
                    continue;
                }
                Delivery::Keep(_) => continue,
            };
            accounts.extend(to.accounts().map(|(lane, signer)| Account {
                lane: lane.clone(),
                chain: to.chain_name().to_owned(),
                signer: signer.clone(),
                address: OnceCell::new(),
                balance_min: to.balance_min(),
                window: to.window(),
                gas: to.gas(),
                fee_cap: to.fee_cap(),
            }));
        }
        let chains = plan.chains.iter().map(|(name, chain)| (name.clone(), chain.clone())).collect();
        let (works, listeners) = (plan.works(), plan.listeners());
        Outside { store: url.to_owned(), chains, accounts, couriers, works, listeners }
    }
}

/// Everything that findings are made of. What could not be asked says why.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) vitals: Result<Vitals, String>,
    pub(super) disk: Option<Disk>,
    pub(super) now_ms: u64,
    pub(super) routes: Result<Vec<RouteFacts>, String>,
    pub(super) tools: Vec<ToolFacts>,
    pub(super) lanes: Result<Vec<LaneFacts>, String>,
    pub(super) listeners: Result<Vec<WireListener>, String>,
    /// The listeners of chains that there are to be, whoever runs them.
    pub(super) wanted_listeners: Vec<String>,
    pub(super) nodes: Vec<NodeFacts>,
    pub(super) accounts: Vec<AccountFacts>,
}

/// A route, as the store shows it.
#[derive(Clone, Debug)]
pub(super) struct RouteFacts {
    pub(super) view: RouteView,
    pub(super) counts: Vec<Count>,
    /// Requests that wait, because what their worker works with was not reached.
    pub(super) unreached: Unreached,
    /// Since when the oldest answer is there that a receiver has not taken, if the route's are brought to one.
    pub(super) undelivered: Option<UnixMs>,
}

/// Requests that wait at no cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unreached {
    /// How many of the oldest were tried so often in vain that it is no accident.
    pub(super) requests: usize,
    /// What the first of them was told last.
    pub(super) why: String,
}

impl Unreached {
    fn among(waiting: &[RequestView]) -> Unreached {
        let mut unreached = waiting.iter().filter(|request| request.misses >= MISSES_MANY).peekable();
        let why = unreached.peek().and_then(|first| first.error.as_ref()).map(|note| note.text.to_string());
        Unreached { why: why.unwrap_or_default(), requests: unreached.count() }
    }
}

/// A lane, as the store shows it and whoever sends on it.
#[derive(Clone, Debug)]
pub(super) struct LaneFacts {
    pub(super) view: LaneView,
    /// The lowest slot that pays all that it may and is not mined, as whoever sends on it says.
    pub(super) at_cap: Option<Nonce>,
    /// What a unit of gas may cost on it at the most, in wei, by the configuration.
    pub(super) fee_cap: Option<u128>,
    /// Which chain it is on, by the configuration.
    pub(super) chain: Option<String>,
}

/// Who works on a route, as found by whoever calls it or by asking now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolFacts {
    pub(super) route: String,
    pub(super) found: ToolFound,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToolFound {
    /// This process calls it; since when it is away, if it is.
    Called(Option<Away>),
    /// Another process calls it; what it said now to this one.
    Asked(Result<(), String>),
}

impl ToolFacts {
    /// Whether it cannot be asked.
    pub(super) fn is_away(&self) -> bool {
        matches!(self.found, ToolFound::Called(Some(_)) | ToolFound::Asked(Err(_)))
    }
}

/// The disk that a store's file is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) free_bytes: u64,
    pub(super) bytes: u64,
}

/// What a node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeFacts {
    pub(super) chain: String,
    pub(super) chain_id: u64,
    pub(super) node: String,
    pub(super) says: Result<NodeSays, String>,
}

/// A node's chain and its newest block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeSays {
    pub(super) chain_id: u64,
    pub(super) head: u64,
    /// What a unit of gas costs there at the least, in wei, if the chain has such a price.
    pub(super) base_fee: Option<u128>,
}

/// What an account has, and what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccountFacts {
    pub(super) lane: String,
    pub(super) chain: String,
    /// What its chain is paid in.
    pub(super) currency: String,
    /// Its address, or why its key cannot be opened.
    pub(super) address: Result<String, String>,
    /// In wei; nothing, if no node told.
    pub(super) balance: Option<u128>,
    /// What the configuration says that it should have.
    pub(super) balance_min: Option<u128>,
    /// How many of its transactions may be under way.
    pub(super) window: u32,
    /// How much gas one of them may use; nothing, if that is not known.
    pub(super) gas: Option<u64>,
    /// What a unit of gas costs now, in wei; nothing, if no node told.
    pub(super) gas_price: Option<u128>,
    /// Whether nobody signs for it any longer.
    pub(super) lost: bool,
}

/// What an account should have at least, in wei.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Least {
    /// As the configuration says.
    Said(u128),
    /// What a full window of transactions costs at the fee of now.
    Window {
        /// How many those are.
        transactions: u32,
        /// What they cost.
        wei: u128,
    },
}

impl Least {
    pub(super) fn wei(self) -> u128 {
        match self {
            Least::Said(wei) | Least::Window { wei, .. } => wei,
        }
    }
}

impl AccountFacts {
    /// What it should have at least; nothing, if that cannot be told.
    pub(super) fn least(&self) -> Option<Least> {
        let each = |price: u128| price.saturating_mul(self.gas.unwrap_or(GAS_ASSUMED).into());
        let window =
            |price| Least::Window { transactions: self.window, wei: each(price).saturating_mul(self.window.into()) };
        self.balance_min.map(Least::Said).or_else(|| self.gas_price.map(window))
    }
}

impl Facts {
    /// Asks everybody.
    pub(super) async fn gather(store: &dyn Store, here: Here, outside: &Outside) -> Facts {
        let Here { listeners, tools, senders } = here;
        let (vitals, nodes, mut accounts, routes, lanes, tools) = tokio::join!(
            within(async { vitals(&outside.store).await.map_err(|error| error.to_string()) }),
            nodes_of(outside),
            join_all(outside.accounts.iter().map(|account| account_of(account, outside))),
            within(async { routes(store, outside).await.map_err(|error| error.to_string()) }),
            within(async { lanes(store, &senders, outside).await.map_err(|error| error.to_string()) }),
            tools_of(tools, outside),
        );
        let disk = match &vitals {
            Ok(Vitals::Sqlite(file)) => disk_of(Path::new(&file.path)),
            _ => None,
        };
        for account in &mut accounts {
            let seen = || lanes.iter().flatten().find(|lane| lane.view.name.as_str() == account.lane);
            account.gas = account.gas.or_else(|| gas_of(&seen()?.view));
        }
        let now_ms = roundtrip::clock::Clock::now(&roundtrip::clock::SystemClock::new()).0;
        let wanted_listeners = outside.listeners.clone();
        Facts { vitals, disk, now_ms, routes, tools, lanes, listeners, wanted_listeners, nodes, accounts }
    }
}

async fn within<T>(asked: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = |_| Err(format!("no answer within {} s", ANSWER_WITHIN.as_secs()));
    tokio::time::timeout(ANSWER_WITHIN, asked).await.unwrap_or_else(late)
}

async fn routes(store: &dyn Store, outside: &Outside) -> Result<Vec<RouteFacts>, StoreError> {
    let counts = store.counts().await?;
    let mut routes = Vec::new();
    for view in store.routes().await? {
        let states = vec![StateKind::Held, StateKind::Queued];
        let filter = ListFilter { route: Some(view.name.clone()), states, limit: WAITING_MAX, ..ListFilter::default() };
        let unreached = Unreached::among(&store.list(filter).await?.requests);
        let counts = counts.iter().filter(|count| count.route == view.name).cloned().collect();
        let brought = view.policy.destination.as_ref().is_some_and(|to| outside.couriers.contains(to.as_str()));
        let undelivered = if brought { undelivered(store, &view).await? } else { None };
        routes.push(RouteFacts { view, counts, unreached, undelivered });
    }
    Ok(routes)
}

/// Since when the oldest answer is ready to be sent: since the last that happened to its request.
async fn undelivered(store: &dyn Store, route: &RouteView) -> Result<Option<UnixMs>, StoreError> {
    let (route, states) = (Some(route.name.clone()), vec![StateKind::Ready]);
    let filter = ListFilter { route, states, limit: READY_MAX, ..ListFilter::default() };
    let mut oldest = None;
    for request in store.list(filter).await?.requests {
        let last = store.timeline(request.id).await?.iter().map(|entry| entry.at).max();
        let since = last.unwrap_or(request.admitted_at);
        oldest = Some(oldest.map_or(since, |oldest: UnixMs| oldest.min(since)));
    }
    Ok(oldest)
}

async fn lanes(
    store: &dyn Store,
    senders: &[Arc<SenderStats>],
    outside: &Outside,
) -> Result<Vec<LaneFacts>, StoreError> {
    let mut whole = Vec::new();
    for lane in store.lanes().await? {
        let at_cap = senders.iter().find_map(|sender| sender.at_cap(&lane.name));
        let account = outside.accounts.iter().find(|account| account.lane == lane.name.as_str());
        let (fee_cap, chain) = (account.map(|account| account.fee_cap), account.map(|account| account.chain.clone()));
        whole.extend(store.lane(lane.name).await?.map(|view| LaneFacts { view, at_cap, fee_cap, chain }));
    }
    Ok(whole)
}

/// How the tools are, by what this process knows of those that it calls; the others are asked, as nodes are.
async fn tools_of(called: Vec<(String, Option<Away>)>, outside: &Outside) -> Vec<ToolFacts> {
    let others = outside.works.iter().filter(|(route, _)| called.iter().all(|(known, _)| known != *route));
    let asked = join_all(others.map(|(route, work)| async move {
        let found = within(work.ask()).await;
        ToolFacts { route: route.clone(), found: ToolFound::Asked(found) }
    }));
    let called = called.into_iter().map(|(route, away)| ToolFacts { route, found: ToolFound::Called(away) });
    let mut tools: Vec<ToolFacts> = called.collect();
    tools.extend(asked.await);
    tools.sort_by(|one, other| one.route.cmp(&other.route));
    tools
}

fn disk_of(file: &Path) -> Option<Disk> {
    let folder = file.parent()?;
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some(Disk { free_bytes: stat.f_bavail * stat.f_frsize, bytes: stat.f_blocks * stat.f_frsize })
}

async fn nodes_of(outside: &Outside) -> Vec<NodeFacts> {
    let asked = outside.chains.iter().flat_map(|(name, chain)| chain.urls.iter().map(move |url| (name, chain, url)));
    join_all(asked.map(|(name, chain, url)| async move {
        let bare = |node: String, says| NodeFacts { chain: name.clone(), chain_id: chain.chain_id, node, says };
        let rpc = match Rpc::http(url) {
            Ok(rpc) => rpc,
            Err(error) => return bare("its URL".to_owned(), Err(error.to_string())),
        };
        let says = within(async {
            let id = rpc.chain_id().await.map_err(|error| error.to_string())?;
            let head = rpc.head().await.map_err(|error| error.to_string())?;
            Ok(NodeSays { chain_id: id, head: head.at.height.0, base_fee: head.base_fee })
        });
        bare(rpc.name().to_owned(), says.await)
    }))
    .await
}

async fn account_of(account: &Account, outside: &Outside) -> AccountFacts {
    let open = async || account.signer.open().await.map(|signer| signer.address());
    let address = account.address.get_or_try_init(open).await.copied().map_err(|error| error.to_string());
    let told = match address {
        Ok(address) => told_of(address, &account.chain, outside).await,
        Err(_) => None,
    };
    let chain = outside.chains.iter().find(|(name, _)| *name == account.chain);
    AccountFacts {
        lane: account.lane.clone(),
        chain: account.chain.clone(),
        currency: chain.map(|(_, chain)| chain.currency.clone()).unwrap_or_default(),
        address: address.map(|address| address.to_string()),
        balance: told.map(|(balance, _)| balance),
        balance_min: account.balance_min,
        window: account.window,
        gas: account.gas,
        gas_price: told.and_then(|(_, price)| price),
        lost: account.signer.is_lost(),
    }
}

/// What the first node says that says anything: what the account has, and what gas costs.
async fn told_of(address: Address, chain: &str, outside: &Outside) -> Option<(u128, Option<u128>)> {
    let (_, chain) = outside.chains.iter().find(|(name, _)| name == chain)?;
    let whole = |amount: U256| u128::try_from(amount).unwrap_or(u128::MAX);
    for rpc in chain.urls.iter().filter_map(|url| Rpc::http(url).ok()) {
        let asked = async {
            let balance = rpc.call::<_, U256>("eth_getBalance", (address, "latest"));
            let price = rpc.call::<_, U256>("eth_gasPrice", ());
            tokio::join!(balance, price)
        };
        if let Ok((Ok(balance), price)) = tokio::time::timeout(ANSWER_WITHIN, asked).await {
            return Some((whole(balance), price.ok().map(whole)));
        }
    }
    None
}

/// The most gas that anything may use which is under way on a lane.
fn gas_of(lane: &LaneView) -> Option<u64> {
    let attempts = lane.parcels.iter().flat_map(|parcel| &parcel.attempts);
    attempts.filter_map(Signed::read).map(|signed| signed.gas).max()
}
