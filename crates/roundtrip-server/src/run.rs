//! Running a plan until somebody says stop.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use reqwest::header::HeaderMap;
use roundtrip::clock::SystemClock;
use roundtrip::relay::Relay;
use roundtrip::station::Shutdown;
use roundtrip::store::{Options, Store, open};
use roundtrip_evm::sender::{Secret, SecretSource};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::api::auth::Keys;
use crate::api::{Api, Limits, Manners, Premises, limited, serve};
use crate::config::{ApiConfig, AuthConfig, Config, TlsConfig, TracesConfig};
use crate::doctor::Outside;
use crate::history::History;
use crate::plan::{Plan, Role, endpoint};
use crate::telemetry::{Collector, Telemetry, headers};

/// Opens the store that the configuration names.
pub(crate) fn open_store(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    open_store_at(&config.store.url, Some(config)).context("store.url")
}

/// Opens this store as the configuration says, if there is one.
pub(crate) fn open_store_at(url: &str, config: Option<&Config>) -> anyhow::Result<Arc<dyn Store>> {
    Ok(open(url, store_options(config))?)
}

/// How much a store keeps, as the configuration says, if there is one.
pub(crate) fn store_options(config: Option<&Config>) -> Options {
    let defaults = Options::default();
    let journal_entries = config.map_or(defaults.journal_entries, |config| config.store.journal_entries);
    Options { journal_entries, ..defaults }
}

/// Runs these roles, all if none is named, until the process is told to stop; then every
/// station finishes what it has in hand.
pub async fn until_stopped(config: &Config, plan: &Plan, only: &[Role]) -> anyhow::Result<()> {
    let roles = if only.is_empty() { &Role::ALL } else { only };
    share(&config.store.url, plan, roles)?;
    let store = open_store(config)?;
    let stop = Shutdown::new();
    let (clock, traces) = (Arc::new(SystemClock::new()), &config.telemetry.traces);
    let ratio = traces.as_ref().map(|traces| traces.ratio);
    let telemetry = Telemetry::start(store.clone(), clock, plan.scope(roles)?, ratio);
    let exporting = Exporting::start(traces.as_ref(), &telemetry, &store).await.context("telemetry.traces")?;
    let relay = plan.relay(store.clone(), roles, &telemetry).await?.stop_on(&stop);
    let relay = with_doors(relay, config, plan, store.clone(), telemetry, roles).await?;
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
    tracing::info!(
        roles = Role::words(roles),
        routes = plan.routes.len(),
        destinations = plan.destinations.len(),
        "running"
    );
    let ended = running.ended().await;
    listening.abort();
    exporting.finish().await;
    store.close().await.context("closing the store")?;
    ended?;
    tracing::info!("stopped");
    Ok(())
}

/// Refuses to do a part where nobody can do the rest, and tells of a rest that nobody does meanwhile.
fn share(url: &str, plan: &Plan, roles: &[Role]) -> anyhow::Result<()> {
    let beside = Role::words(&plan.roles_beside(roles));
    let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
    match scheme {
        "memory" if !beside.is_empty() => anyhow::bail!(
            "store.url: a store in memory is shared with nobody, and this process leaves {beside} to others: \
             leave --only out, or use postgres:// or redis://"
        ),
        "sqlite" if !beside.is_empty() => tracing::warn!(
            nobody = beside,
            "one process at a time has an SQLite store: while this one runs, nobody does the rest; for several, use \
             postgres:// or redis://"
        ),
        _ => {}
    }
    Ok(())
}

/// Whoever exports spans: it goes on until all stations have ended, and ends before the store does.
struct Exporting {
    task: JoinSet<()>,
    stop: Shutdown,
}

impl Exporting {
    async fn start(
        config: Option<&TracesConfig>,
        telemetry: &Telemetry,
        store: &Arc<dyn Store>,
    ) -> anyhow::Result<Exporting> {
        let (mut task, stop) = (JoinSet::new(), Shutdown::new());
        if let (Some(config), Some(traces)) = (config, telemetry.traces()) {
            let collector = open_collector(config).await?;
            tracing::info!(collector = collector.endpoint.host_str(), "spans are exported");
            task.spawn(traces.run(store.clone(), collector, stop.clone()));
        }
        Ok(Exporting { task, stop })
    }

    async fn finish(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.task.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "whoever exports spans ended badly");
            }
        }
    }
}

/// Reads what calls to a collector bring.
async fn open_collector(config: &TracesConfig) -> anyhow::Result<Collector> {
    let headers = open_headers(&config.headers).await?;
    Ok(Collector { endpoint: endpoint(config).map_err(anyhow::Error::msg)?, headers })
}

/// Reads headers whose values are secrets.
pub(crate) async fn open_headers(sources: &BTreeMap<String, SecretSource>) -> anyhow::Result<HeaderMap> {
    let mut named = BTreeMap::new();
    for (name, source) in sources {
        named.insert(name.clone(), read_secret(source).await?.reveal().to_owned());
    }
    headers(&named).map_err(anyhow::Error::msg)
}

/// Adds where the process can be called.
async fn with_doors(
    mut relay: Relay,
    config: &Config,
    plan: &Plan,
    store: Arc<dyn Store>,
    telemetry: Telemetry,
    roles: &[Role],
) -> anyhow::Result<Relay> {
    let api = roles.contains(&Role::Api).then_some((Door::Api, config.api.listen));
    let listens = [api, config.telemetry.listen.map(|listen| (Door::Telemetry, listen))];
    if listens.iter().any(Option::is_some) {
        let routes = plan.routes.iter().map(|(name, route)| (name.clone(), route.intake())).collect();
        let outside = Outside::of(&config.store.url, Some(plan));
        let (rebuilds, followers, senders) = (relay.rebuilds(), relay.followers(), relay.senders());
        let (calls, tools, history) = (plan.calls(), telemetry.tools(), History::keeping(plan.kept()));
        let premises = Premises {
            routes,
            rebuilds,
            followers,
            senders,
            couriers: relay.couriers(),
            tools,
            outside,
            calls,
            deliveries: plan.deliveries(),
            explorer: plan.explorer(),
            history: history.clone(),
        };
        if api.is_some() {
            let journal = store.clone();
            relay = relay.station("history", move |shutdown| history.follow(journal, shutdown));
        }
        let doors = Doors::of(config, store, telemetry, premises).await?;
        for (door, listen) in listens.into_iter().flatten() {
            relay = doors.clone().add(relay, door, listen).await?;
        }
    }
    Ok(relay)
}

/// Where the process can be called.
struct Doors {
    store: Arc<dyn Store>,
    telemetry: Telemetry,
    premises: Arc<Premises>,
    manners: Manners,
    limits: Limits,
    tls: Option<TlsAcceptor>,
}

impl Doors {
    async fn of(
        config: &Config,
        store: Arc<dyn Store>,
        telemetry: Telemetry,
        premises: Premises,
    ) -> anyhow::Result<Arc<Doors>> {
        let ApiConfig { body_bytes_max, header_bytes_max, connections_max, calls_max, .. } = config.api;
        let keys = match &config.api.auth {
            Some(auth) => Some(Arc::new(open_keys(auth).await.context("api.auth")?)),
            None => None,
        };
        let (calls_per_second, wait_max) = (config.api.calls_per_second, config.api.wait_max.0);
        let store_wait_max = config.api.store_wait_max.0;
        Ok(Arc::new(Doors {
            store,
            telemetry,
            premises: Arc::new(premises),
            manners: Manners { keys, calls_per_second, wait_max, store_wait_max, body_bytes_max },
            limits: Limits { body_bytes_max, header_bytes_max, connections_max, calls_max },
            tls: config.api.tls.as_ref().map(open_tls).transpose().context("api.tls")?,
        }))
    }

    /// Adds one; its address is taken at once, so that one that is taken already is told.
    async fn add(self: Arc<Doors>, relay: Relay, door: Door, listen: SocketAddr) -> anyhow::Result<Relay> {
        let at = || format!("{}.listen: {listen}", door.name());
        let listener = TcpListener::bind(listen).await.with_context(at)?;
        let (address, tls, auth) = (listener.local_addr()?, self.tls.is_some(), self.manners.keys.is_some());
        match door {
            Door::Api => tracing::info!(%address, tls, auth, "the API listens"),
            Door::Telemetry => tracing::info!(metrics = %address, tls, auth, "metrics are served"),
        }
        Ok(relay.station(door.name(), move |shutdown| {
            let Doors { store, telemetry, premises, manners, limits, tls } = &*self;
            let (store, premises) = (store.clone(), premises.clone());
            let api = Api::new(store, premises, manners.clone(), telemetry.clone(), shutdown.clone());
            let router = match door {
                Door::Api => api.router(),
                Door::Telemetry => api.watched(),
            };
            serve(listener, telemetry.counted(limited(router, *limits)), *limits, tls.clone(), shutdown)
        }))
    }
}

/// For whom.
#[derive(Clone, Copy)]
enum Door {
    /// Those who submit, work, watch and operate.
    Api,
    /// Those who look how the process is doing.
    Telemetry,
}

impl Door {
    fn name(self) -> &'static str {
        match self {
            Door::Api => "api",
            Door::Telemetry => "telemetry",
        }
    }
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
    let (chain, key) = (read_certificate(&config.certificate)?, read_key(&config.key)?);
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .with_context(|| config.certificate.display().to_string())?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(server)))
}

/// Reads a certificate and those that vouch for it.
pub(crate) fn read_certificate(file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(file)?.collect::<Result<_, _>>();
    read().with_context(|| file.display().to_string())
}

/// Reads a certificate's key.
pub(crate) fn read_key(file: &Path) -> anyhow::Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(file).with_context(|| file.display().to_string())
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
