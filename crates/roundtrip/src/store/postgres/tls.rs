//! How the server is reached: plainly, or by TLS with its certificate and name verified.
//!
//! There is no third way. A connection that is encrypted if the server happens to allow it
//! protects from nobody who can answer in the server's place.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::wire::PgError;
use crate::store::StoreError;

/// How long a host has to take a connection, unless the URL says it (`connect_timeout`).
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long it has to let whoever connected in, after that.
const LET_IN_MAX: Duration = Duration::from_secs(5);
/// How long what was sent may stay unacknowledged before the host is taken to be gone, unless the URL says it
/// (`tcp_user_timeout`).
const UNHEARD_MAX: Duration = Duration::from_secs(30);

/// What carries a client's statements.
pub(super) type Line = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// Whether and how a connection is encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Tls {
    #[default]
    None,
    /// Against the certificates of the public authorities, or those in a file.
    Verified { roots: Option<String> },
}

/// Everything that it takes to connect.
#[derive(Clone)]
pub(super) struct Dial {
    pub(super) config: Config,
    tls: MakeRustlsConnect,
    /// How long all of it may take, whoever is silent.
    within: Duration,
}

impl Dial {
    pub(super) fn new(mut config: Config, tls: &Tls) -> Result<Dial, StoreError> {
        let roots = match tls {
            Tls::None => {
                config.ssl_mode(SslMode::Disable);
                RootCertStore::empty()
            }
            Tls::Verified { roots } => {
                config.ssl_mode(SslMode::Require);
                roots.as_deref().map_or_else(|| Ok(public_roots()), roots_of)?
            }
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let versions = versions.map_err(|error| StoreError::Io { path: "TLS".into(), reason: error.to_string() })?;
        let client = versions.with_root_certificates(roots).with_no_client_auth();
        let per_host = config.get_connect_timeout().copied().unwrap_or(CONNECT_MAX);
        config.connect_timeout(per_host);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(UNHEARD_MAX);
        }
        // One host after the other is tried.
        let hosts = u32::try_from(config.get_hosts().len()).unwrap_or(u32::MAX).max(1);
        let within = per_host.saturating_add(LET_IN_MAX).saturating_mul(hosts);
        Ok(Dial { config, tls: MakeRustlsConnect::new(client), within })
    }

    /// A connection; a server that takes it and says nothing is away as one is that does not take it.
    pub(super) async fn connect(&self) -> Result<(Client, Line), PgError> {
        let connecting = tokio::time::timeout(self.within, self.config.connect(self.tls.clone()));
        connecting.await.map_err(|_elapsed| PgError::Silent { within: self.within })?.map_err(PgError::Away)
    }
}

fn public_roots() -> RootCertStore {
    webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect()
}

/// The certificates in a PEM file; a file without any would trust nobody.
fn roots_of(path: &str) -> Result<RootCertStore, StoreError> {
    let bad = |reason: String| StoreError::Io { path: path.to_owned(), reason };
    let certificates = CertificateDer::pem_file_iter(Path::new(path)).map_err(|error| bad(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let certificate = certificate.map_err(|error| bad(error.to_string()))?;
        roots.add(certificate).map_err(|error| bad(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(bad("it holds no certificate".to_owned()));
    }
    Ok(roots)
}
