//! Whether all is well, and what to do about what is not.
//!
//! ```text
//!   store, its file or server, nodes, accounts ──▶ facts ──▶ decide ──▶ findings, each with what to do
//! ```
//!
//! Failure modes: what cannot be asked is a finding itself; a look changes nothing. One that is dropped halfway
//! is made again by whoever asks next.

mod decide;
mod facts;

pub use decide::{Finding, Kind, Level};
pub use facts::Outside;

use facts::{AccountFacts, Facts};

use std::sync::Arc;
use std::time::Duration;

use roundtrip::sender::SenderStats;
use roundtrip::store::Store;
use roundtrip::words::UnixMs;
use roundtrip_tools::Away;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::Instant;
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
    /// When the look began, in milliseconds since 1970; absent if nothing could be looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at_ms: Option<u64>,
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
pub(crate) async fn examine(store: &dyn Store, here: Here, outside: &Outside, now: UnixMs) -> Diagnosis {
    let facts = Facts::gather(store, here, outside).await;
    let findings = decide::findings(&facts);
    let accounts = facts.accounts.into_iter().map(WireAccount::from).collect();
    Diagnosis { findings, accounts, looked_at_ms: Some(now.0) }
}

/// What was found last. A look asks every node, so those who are content with what somebody else was told a
/// moment ago share it, and there is one at a time.
#[derive(Default)]
pub(crate) struct Looks(Mutex<Option<(Instant, Diagnosis)>>);

impl Looks {
    /// What was found at most so long ago, by a new look if need be.
    pub(crate) async fn within(&self, age: Duration, look: impl Future<Output = Diagnosis>) -> Diagnosis {
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        if let Some((began, found)) = &*last
            && will_do(*began, asked, age)
        {
            return found.clone();
        }
        let began = Instant::now();
        let found = look.await;
        *last = Some((began, found.clone()));
        found
    }
}

/// Whether a look that began then is new enough. Whoever wants it anew is content with one that began while
/// they waited for their turn.
fn will_do(began: Instant, asked: Instant, age: Duration) -> bool {
    asked.saturating_duration_since(began) < age || began > asked
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_look_is_shared_while_it_is_new_enough_for_whoever_asks() {
        let began = Instant::now();
        let second = Duration::from_secs(1);
        let cases = [
            (began + second, 2 * second, true),
            (began + 2 * second, 2 * second, false),
            (began, Duration::ZERO, false),
            (began + second, Duration::ZERO, false),
        ];
        for (asked, age, shared) in cases {
            assert_eq!(will_do(began, asked, age), shared, "{:?} after it, within {age:?}", asked - began);
        }
        assert!(will_do(began + second, began, Duration::ZERO), "it began while they waited");
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_ask_at_once_are_told_of_one_look() {
        let (looks, made) = (Looks::default(), AtomicU64::new(0));
        let look = || async {
            let n = made.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(5)).await;
            Diagnosis { findings: Vec::new(), accounts: Vec::new(), looked_at_ms: Some(n) }
        };
        let age = Duration::from_secs(30);
        let asked = futures_util::future::join_all((0..10).map(|_| looks.within(age, look())));
        assert!(asked.await.iter().all(|found| found.looked_at_ms == Some(0)));
        assert_eq!(looks.within(Duration::ZERO, look()).await.looked_at_ms, Some(1), "asked for anew");
        tokio::time::advance(age).await;
        assert_eq!(looks.within(age, look()).await.looked_at_ms, Some(2), "the last one is too old");
    }
}
