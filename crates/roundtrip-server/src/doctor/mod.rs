//! Whether all is well, and what to do about what is not.
//!
//! ```text
//!   store, its file or server, nodes, accounts ──▶ facts ──▶ decide ──▶ findings, each with what to do
//! ```
//!
//! Failure modes: what cannot be asked is a finding itself; a look changes nothing.

mod decide;
mod facts;

pub use decide::{Finding, Kind, Level};
pub use facts::Outside;

use facts::{AccountFacts, Facts};

use std::sync::Arc;

use roundtrip::sender::SenderStats;
use roundtrip::store::Store;
use roundtrip_tools::Away;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::WireListener;

/// What the process that is asked knows besides the store.
pub(crate) struct Here {
    /// How its listeners get on, and where those of others are; or why the store does not tell.
    pub(crate) listeners: Result<Vec<WireListener>, String>,
    /// The tools that it calls, by their routes; and since when those that cannot be asked are away.
    pub(crate) tools: Vec<(String, Option<Away>)>,
    /// What its senders know of their lanes.
    pub(crate) senders: Vec<Arc<SenderStats>>,
}

/// What a look at everything came to.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Diagnosis {
    /// Worst first.
    pub findings: Vec<Finding>,
    /// The accounts of lanes, as far as the configuration names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accounts: Vec<WireAccount>,
}

/// The account of a lane. Amounts are decimal texts of wei.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WireAccount {
    /// Which lane.
    pub lane: String,
    /// On which chain.
    pub chain: String,
    /// What that chain is paid in.
    pub currency: String,
    /// Its address, if its key can be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What it has, if a node told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance: Option<String>,
    /// What it should have: `balance_min_gwei`, or what a full window of transactions costs now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least: Option<String>,
}

impl From<AccountFacts> for WireAccount {
    fn from(facts: AccountFacts) -> WireAccount {
        let least = facts.least().map(|least| least.wei().to_string());
        let AccountFacts { lane, chain, currency, address, balance, .. } = facts;
        WireAccount { lane, chain, currency, address: address.ok(), balance: balance.map(|wei| wei.to_string()), least }
    }
}

/// Looks at everything that can be looked at from here.
pub(crate) async fn examine(store: &dyn Store, here: Here, outside: &Outside) -> Diagnosis {
    let facts = Facts::gather(store, here, outside).await;
    let findings = decide::findings(&facts);
    Diagnosis { findings, accounts: facts.accounts.into_iter().map(WireAccount::from).collect() }
}
