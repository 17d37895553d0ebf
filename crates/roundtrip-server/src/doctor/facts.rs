//! What is looked at: the store through its own eyes, its file or server, nodes and accounts.

use std::path::Path;
use std::time::Duration;

use alloy::network::TxSigner;
use alloy::primitives::{Address, U256};
use futures_util::future::join_all;
use roundtrip::store::query::{Count, LaneView, RouteView};
use roundtrip::store::vitals::{Vitals, vitals};
use roundtrip::store::{ReadExt, Store, StoreError};
use roundtrip_evm::{Rpc, SignerSource};
use tokio::sync::OnceCell;

use crate::api::WireListener;
use crate::config::ChainConfig;
use crate::plan::{Delivery, Plan};

/// How long anything that is asked has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What is around a store: where it is, and by the configuration the nodes and accounts.
#[derive(Default)]
pub struct Outside {
    /// The store's URL.
    store: String,
    chains: Vec<(String, ChainConfig)>,
    accounts: Vec<Account>,
}

/// An account that sends.
struct Account {
    lane: String,
    chain: String,
    signer: SignerSource,
    /// Its address, once its key was opened.
    address: OnceCell<Address>,
    balance_min: u128,
}

impl Outside {
    /// What is around the store of this plan; of a store alone, nothing but its file or server.
    pub fn of(url: &str, plan: Option<&Plan>) -> Outside {
        let Some(plan) = plan else { return Outside { store: url.to_owned(), ..Outside::default() } };
        let mut accounts = Vec::new();
        for delivery in plan.destinations.values() {
            let Delivery::Transactions(to) = delivery else { continue };
            accounts.extend(to.accounts().map(|(lane, signer)| Account {
                lane: lane.clone(),
                chain: to.chain_name().to_owned(),
                signer: signer.clone(),
                address: OnceCell::new(),
                balance_min: to.balance_min(),
            }));
        }
        let chains = plan.chains.iter().map(|(name, chain)| (name.clone(), chain.clone())).collect();
        Outside { store: url.to_owned(), chains, accounts }
    }
}

/// Everything that findings are made of. What could not be asked says why.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) vitals: Result<Vitals, String>,
    pub(super) disk: Option<Disk>,
    pub(super) now_ms: u64,
    pub(super) routes: Result<Vec<(RouteView, Vec<Count>)>, String>,
    pub(super) lanes: Result<Vec<LaneView>, String>,
    pub(super) listeners: Vec<WireListener>,
    pub(super) nodes: Vec<NodeFacts>,
    pub(super) accounts: Vec<AccountFacts>,
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
    /// Its chain and its newest block.
    pub(super) says: Result<(u64, u64), String>,
}

/// What an account has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccountFacts {
    pub(super) lane: String,
    /// Its address, or why its key cannot be opened.
    pub(super) address: Result<String, String>,
    /// In wei; nothing, if no node told.
    pub(super) balance: Option<u128>,
    pub(super) balance_min: u128,
}

impl Facts {
    /// Asks everybody.
    pub(super) async fn gather(store: &dyn Store, listeners: Vec<WireListener>, outside: &Outside) -> Facts {
        let (vitals, nodes, accounts, routes, lanes) = tokio::join!(
            within(async { vitals(&outside.store).await.map_err(|error| error.to_string()) }),
            nodes_of(outside),
            join_all(outside.accounts.iter().map(|account| account_of(account, outside))),
            within(async { routes(store).await.map_err(|error| error.to_string()) }),
            within(async { lanes(store).await.map_err(|error| error.to_string()) }),
        );
        let disk = match &vitals {
            Ok(Vitals::Sqlite(file)) => disk_of(Path::new(&file.path)),
            _ => None,
        };
        let now_ms = roundtrip::clock::Clock::now(&roundtrip::clock::SystemClock::new()).0;
        Facts { vitals, disk, now_ms, routes, lanes, listeners, nodes, accounts }
    }
}

async fn within<T>(asked: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = |_| Err(format!("no answer within {} s", ANSWER_WITHIN.as_secs()));
    tokio::time::timeout(ANSWER_WITHIN, asked).await.unwrap_or_else(late)
}

async fn routes(store: &dyn Store) -> Result<Vec<(RouteView, Vec<Count>)>, StoreError> {
    let counts = store.counts().await?;
    let of = |route: &RouteView| counts.iter().filter(|count| count.route == route.name).cloned().collect();
    Ok(store.routes().await?.into_iter().map(|route| (route.clone(), of(&route))).collect())
}

async fn lanes(store: &dyn Store) -> Result<Vec<LaneView>, StoreError> {
    let mut whole = Vec::new();
    for lane in store.lanes().await? {
        whole.extend(store.lane(lane.name).await?);
    }
    Ok(whole)
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
            Ok((id, head.at.height.0))
        });
        bare(rpc.name().to_owned(), says.await)
    }))
    .await
}

async fn account_of(account: &Account, outside: &Outside) -> AccountFacts {
    let open = async || account.signer.open().await.map(|signer| signer.address());
    let address = account.address.get_or_try_init(open).await.copied().map_err(|error| error.to_string());
    let balance = match address {
        Ok(address) => balance_of(address, &account.chain, outside).await,
        Err(_) => None,
    };
    let address = address.map(|address| address.to_string());
    AccountFacts { lane: account.lane.clone(), address, balance, balance_min: account.balance_min }
}

/// What the first node says that says anything.
async fn balance_of(address: Address, chain: &str, outside: &Outside) -> Option<u128> {
    let (_, chain) = outside.chains.iter().find(|(name, _)| name == chain)?;
    for rpc in chain.urls.iter().filter_map(|url| Rpc::http(url).ok()) {
        let asked = rpc.call::<_, U256>("eth_getBalance", (address, "latest"));
        if let Ok(Ok(balance)) = tokio::time::timeout(ANSWER_WITHIN, asked).await {
            return Some(u128::try_from(balance).unwrap_or(u128::MAX));
        }
    }
    None
}
