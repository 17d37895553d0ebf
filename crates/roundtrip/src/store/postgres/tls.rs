//! How the server is reached: plainly, or by TLS with its certificate and name verified.
//!
//! There is no third way. A connection that is encrypted if the server happens to allow it
//! protects from nobody who can answer in the server's place.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::store::StoreError;

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
        Ok(Dial { config, tls: MakeRustlsConnect::new(client) })
    }

    pub(super) async fn connect(&self) -> Result<(Client, Line), Error> {
        self.config.connect(self.tls.clone()).await
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
