//! What only the outside can tell: whether nodes, keys, contracts and tools are there and fit.
//!
//! Keys and contracts are looked for as the configuration names them, whatever else is wrong beside them.

use roundtrip_evm::Rpc;

use super::destinations::wrong_with_secret;
use super::routes::address;
use super::work::signing_key;
use super::{Plan, destinations};
use crate::config::{ChainConfig, Config, Fault, Loaded};

impl Plan {
    /// What is wrong with nodes, keys, contracts and tools, as far as it can be found out now.
    pub async fn probe(&self, loaded: &Loaded) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (name, chain) in &self.chains {
            if let Some(node) = probe_nodes(loaded, name, chain, &mut faults).await {
                probe_contracts(loaded, name, &node, &mut faults).await;
            }
        }
        probe_keys(loaded, &mut faults).await;
        for (name, route) in &self.routes {
            route.probe(loaded, name, &self.chains, &mut faults).await;
            if let Some(work) = &route.work {
                work.probe(loaded, name, &mut faults).await;
            }
        }
        faults
    }
}

/// Finds out whether each node of a chain is there, and on that chain; the first that is.
async fn probe_nodes(loaded: &Loaded, name: &str, chain: &ChainConfig, faults: &mut Vec<Fault>) -> Option<Rpc> {
    let mut good = None;
    for (n, url) in chain.urls.iter().enumerate() {
        // What is no URL is told without asking anybody.
        let Ok(rpc) = Rpc::http(url) else { continue };
        let wrong = match rpc.chain_id().await {
            // What could not be read is told, and nobody knows on which chain the node should be.
            Ok(found) if found == chain.chain_id || loaded.is_unread(&["chains", name, "chain_id"]) => {
                good = good.or(Some(rpc));
                continue;
            }
            Ok(found) => format!("this node is on chain {found}, not {}", chain.chain_id),
            Err(error) => error.to_string(),
        };
        faults.push(loaded.fault(&["chains", name, "urls", &n.to_string()], wrong));
    }
    good
}

/// Finds out whether there is a contract wherever one is called or its events are read.
async fn probe_contracts(loaded: &Loaded, chain: &str, node: &Rpc, faults: &mut Vec<Fault>) {
    for (path, text) in contracts_on(&loaded.config, chain) {
        // What is no address is told without asking anybody.
        let Ok(address) = address(text) else { continue };
        let wrong = match node.has_code(address).await {
            Ok(true) => continue,
            Ok(false) => {
                format!("there is no contract at {address} on chain {chain}: correct it, or deploy the contract")
            }
            Err(error) => error.to_string(),
        };
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        faults.push(loaded.fault(&path, wrong));
    }
}

/// The contracts of a chain that a configuration names, and where. Those that are read to work ask for themselves.
fn contracts_on<'a>(config: &'a Config, chain: &str) -> Vec<(Vec<String>, &'a str)> {
    let at = |parts: &[&str]| parts.iter().map(|&part| part.to_owned()).collect::<Vec<_>>();
    let mut found = Vec::new();
    for (name, destination) in &config.destinations {
        if let Some(to) = destination.transactions.as_ref().filter(|to| to.chain == chain) {
            found.push((at(&["destinations", name, "transactions", "contract"]), to.contract.as_str()));
        }
    }
    for (name, route) in &config.routes {
        for (kind, events) in [("events", &route.events), ("answered_elsewhere", &route.answered_elsewhere)] {
            for (n, event) in events.iter().enumerate().filter(|(_, event)| event.chain == chain) {
                let place = |m: usize| at(&["routes", name, kind, &n.to_string(), "addresses", &m.to_string()]);
                found.extend(event.addresses.iter().enumerate().map(|(m, text)| (place(m), text.as_str())));
            }
        }
    }
    found
}

/// Finds out whether keys and secrets are there and fit: of lanes that something is sent from, of webhooks and of tools.
async fn probe_keys(loaded: &Loaded, faults: &mut Vec<Fault>) {
    let config = &loaded.config;
    for (name, lane) in config.lanes.iter().filter(|(name, _)| destinations::uses(config, name)) {
        if let Err(error) = lane.signer.open().await {
            faults.push(loaded.fault(&["lanes", name, "signer"], error.to_string()));
        }
    }
    for (name, destination) in &config.destinations {
        if let Some(webhook) = &destination.webhook
            && let Some(wrong) = wrong_with_secret(name, webhook).await
        {
            faults.push(loaded.fault(&["destinations", name, "webhook", "secret"], wrong.to_string()));
        }
    }
    for (name, route) in &config.routes {
        let http = route.work.as_ref().and_then(|work| work.http.as_ref());
        if let Some(source) = http.and_then(|http| http.secret.as_ref())
            && let Err(why) = signing_key(source).await
        {
            faults.push(loaded.fault(&["routes", name, "work", "http", "secret"], why));
        }
    }
}
