//! What one answer costs: a signature, and the time from the answer to its broadcast.

use std::sync::Arc;
use std::time::{Duration, Instant};

use roundtrip::sender::chain::{Cargo, Chain};
use roundtrip::station::Shutdown;
use roundtrip::store::query::ReadyDelivery;
use roundtrip::store::{ReadExt, Store, StoreExt};
use roundtrip::words::{Destination, LaneName, Nonce};
use roundtrip_evm::testkit::account::head;

use super::Failure;
use super::bare::Account;
use super::ours::{Timed, chain, leased, start};
use super::site::Site;

/// How long an answer may take to be sent.
const SENT_WITHIN: Duration = Duration::from_secs(10);

/// Signatures a second on one processor: ours, from the answer to the bytes, and bare ones of the
/// same calls.
pub(super) async fn signatures(site: &Site, store: &dyn Store) -> Result<(f64, f64), Failure> {
    for answer in leased(store, site.count).await? {
        store.apply_one(answer).await?;
    }
    let ready: Vec<ReadyDelivery> = store.ready(Destination::new("chain")?, 1000).await?;
    let (chain, lane) = (chain(site)?, LaneName::new("lane-0")?);
    // The first look at the chain is not what is measured.
    chain.sign(&lane, Nonce(0), Cargo::Deliveries(&ready[..1])).await?;
    let started = Instant::now();
    for (answer, nonce) in ready.iter().zip(0..) {
        chain.sign(&lane, Nonce(nonce), Cargo::Deliveries(std::slice::from_ref(answer))).await?;
    }
    let ours = ready.len() as f64 / started.elapsed().as_secs_f64();

    let fees = head(&site.client).await?.fees();
    let account = Account { client: site.client.clone(), signer: site.signers[0].clone(), fees };
    let started = Instant::now();
    for n in 0..ready.len() as u64 {
        account.sign(site.chain_id, site.board, n, n)?;
    }
    Ok((ours, ready.len() as f64 / started.elapsed().as_secs_f64()))
}

/// Times in microseconds.
pub(super) struct Waits {
    /// From when an answer is stored to when its bytes are handed to the node.
    pub(super) to_broadcast: Vec<f64>,
    /// What storing the answer took: one commit.
    pub(super) commit: Vec<f64>,
}

/// One answer after the other, each when the one before was sent.
pub(super) async fn answer_to_broadcast(site: &Site, store: Arc<dyn Store>) -> Result<Waits, Failure> {
    let answers = leased(&*store, site.count).await?;
    let (chain, shutdown) = (Arc::new(Timed::new(chain(site)?)), Shutdown::new());
    let sending = start(site, store.clone(), chain.clone(), &shutdown)?;
    let mut waits = Waits { to_broadcast: Vec::new(), commit: Vec::new() };
    for answer in answers {
        let before = Instant::now();
        store.apply_one(answer).await?;
        let stored = Instant::now();
        tokio::time::timeout(SENT_WITHIN, chain.sending.notified()).await?;
        waits.commit.push(stored.duration_since(before).as_secs_f64() * 1e6);
        waits.to_broadcast.push(chain.times().0.saturating_duration_since(stored).as_secs_f64() * 1e6);
    }
    shutdown.cancel();
    sending.await??;
    store.close().await?;
    Ok(waits)
}
