//! Running a plan until somebody says stop.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use roundtrip::relay::Relay;
use roundtrip::station::Shutdown;
use roundtrip::store::{Options, Store, open};
use roundtrip_evm::sender::{Secret, SecretSource};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::api::auth::Keys;
use crate::api::{Api, Limits, Manners, serve};
use crate::config::{ApiConfig, AuthConfig, Config, TlsConfig};
use crate::plan::{Plan, Role};

/// Every role.
const ALL: [Role; 4] = [Role::Listen, Role::Work, Role::Send, Role::Api];

/// Opens the store that the configuration names.
pub(crate) fn open_store(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    let options = Options { journal_entries: config.store.journal_entries, ..Options::default() };
    open(&config.store.url, options).context("store.url")
}

/// Runs these roles, all if none is named, until the process is told to stop; then every
/// station finishes what it has in hand.
pub async fn until_stopped(config: &Config, plan: &Plan, only: &[Role]) -> anyhow::Result<()> {
    let roles = if only.is_empty() { &ALL } else { only };
    let store = open_store(config)?;
    let stop = Shutdown::new();
    let mut relay = plan.relay(store.clone(), roles).await?.stop_on(&stop);
    if roles.contains(&Role::Api) {
        relay = with_api(relay, config, plan, store.clone()).await?;
    }
    let (told, stopping) = (told_to_stop()?, stop.clone());
    let listening = tokio::spawn(async move {
        told.await;
        stopping.cancel();
    });
    // A store that is away is waited for, and that wait must end too.
    let running = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        running = relay.start() => running?,
    };
    tracing::info!(?roles, routes = plan.routes.len(), destinations = plan.destinations.len(), "running");
    let ended = running.ended().await;
    listening.abort();
    store.close().await.context("closing the store")?;
    ended?;
    tracing::info!("stopped");
    Ok(())
}

/// Adds the API; its address is taken at once, so that one that is taken already is told.
async fn with_api(relay: Relay, config: &Config, plan: &Plan, store: Arc<dyn Store>) -> anyhow::Result<Relay> {
    let ApiConfig { listen, body_bytes_max, header_bytes_max, connections_max, calls_max, .. } = config.api;
    let limits = Limits { body_bytes_max, header_bytes_max, connections_max, calls_max };
    let keys = match &config.api.auth {
        Some(auth) => Some(open_keys(auth).await.context("api.auth")?),
        None => None,
    };
    let tls = config.api.tls.as_ref().map(open_tls).transpose().context("api.tls")?;
    let listener = TcpListener::bind(listen).await.with_context(|| format!("api.listen: {listen}"))?;
    tracing::info!(address = %listener.local_addr()?, tls = tls.is_some(), auth = keys.is_some(), "the API listens");
    let intakes = plan.routes.iter().map(|(name, route)| (name.clone(), route.intake())).collect();
    let (wait_max, calls_per_second) = (config.api.wait_max.0, config.api.calls_per_second);
    let (manners, rebuilds) = (Manners { keys, calls_per_second, wait_max, body_bytes_max }, relay.rebuilds());
    Ok(relay.station("api", move |shutdown| {
        let api = Api::new(store, intakes, rebuilds, manners, shutdown.clone());
        serve(listener, api.router(), limits, tls, shutdown)
    }))
}

/// Reads what tokens are checked with.
pub(crate) async fn open_keys(auth: &AuthConfig) -> anyhow::Result<Keys> {
    let mut keys = Keys::default();
    if let Some(source) = &auth.secret {
        keys = keys.secret(read_secret(source).await?.reveal().as_bytes())?;
    }
    if let Some(source) = &auth.public_key {
        keys = keys.public(read_secret(source).await?.reveal().as_bytes())?;
    }
    Ok(keys)
}

/// Reads a secret, or says where it should be.
pub async fn read_secret(source: &SecretSource) -> anyhow::Result<Secret> {
    let read = source.read(&|name| std::env::var(name).ok()).await;
    read.map_err(|why| anyhow::anyhow!("no secret in {source}: {why}"))
}

/// Reads a certificate and its key.
pub(crate) fn open_tls(config: &TlsConfig) -> anyhow::Result<TlsAcceptor> {
    let at = |path: &Path| path.display().to_string();
    let chain = CertificateDer::pem_file_iter(&config.certificate).with_context(|| at(&config.certificate))?;
    let chain: Vec<_> = chain.collect::<Result<_, _>>().with_context(|| at(&config.certificate))?;
    let key = PrivateKeyDer::from_pem_file(&config.key).with_context(|| at(&config.key))?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .with_context(|| at(&config.certificate))?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(server)))
}

/// Waits for ctrl-c, or for the signal that service managers send.
fn told_to_stop() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let (mut pressed, mut terminated) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = pressed.recv() => {}
            _ = terminated.recv() => {}
        }
        tracing::info!("stopping: everything in hand is finished first");
    })
}
