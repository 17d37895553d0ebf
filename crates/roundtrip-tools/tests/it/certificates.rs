//! Authorities of our own, certificates for this machine, and a listener that shows one.

use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

/// Whoever signs certificates.
pub(crate) type Authority = CertifiedIssuer<'static, KeyPair>;

pub(crate) fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate for this machine, signed by an authority, and its key, as PEM.
pub(crate) fn certificate(authority: &Authority, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.extended_key_usages = vec![purpose];
    (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}

/// A listener that shows a certificate of this authority, and lets in only those who show one too.
pub(crate) struct Guarded {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Guarded {
    pub(crate) async fn by(authority: &Authority) -> Guarded {
        let provider = Arc::new(default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let callers = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build().unwrap();
        let (chain, key) = certificate(authority, ExtendedKeyUsagePurpose::ServerAuth);
        let chain = vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_client_cert_verifier(callers).with_single_cert(chain, key).unwrap();
        Guarded {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            acceptor: TlsAcceptor::from(Arc::new(config)),
        }
    }
}

impl axum::serve::Listener for Guarded {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TlsStream<TcpStream>, SocketAddr) {
        loop {
            let (stream, from) = self.listener.accept().await.unwrap();
            match self.acceptor.accept(stream).into_fallible().await {
                Ok(stream) => return (stream, from),
                // Whoever does not show who it is, or does not like whom it sees, is told so. What it says meanwhile is
                // read to its end: a line that is cut takes along what was said last.
                Err((_refused, mut stream)) => {
                    let _gone = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                }
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
