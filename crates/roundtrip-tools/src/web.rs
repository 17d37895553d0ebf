//! The way out: connections to addresses that may be called, and HTTP over them.
//!
//! Failure modes: a name without an address, a refused connection and a handshake that fails
//! are [`WebError::Unreachable`]: nothing was asked. A connection that breaks later is
//! [`WebError::Broken`]: it may have been. No redirect is followed, no cookie kept, no proxy used.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::header::{HeaderMap, USER_AGENT};
use hyper::{Request, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use roundtrip::calling::cause;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tower_service::Service;

use crate::egress::{Allowed, Internal};

/// How long a connection may take, its name and its handshake included.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Who calls, as the tools are told.
pub(crate) const AGENT: &str = concat!("roundtrip/", env!("CARGO_PKG_VERSION"));

/// Whom TLS trusts, and who this side says that it is; all as PEM.
#[derive(Clone, Default)]
pub struct ClientTls {
    /// Certificates that are trusted; without any, those of the web.
    pub trusted: Option<Vec<u8>>,
    /// The certificate, and the key, that are shown to whoever asks for them.
    pub own: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClientTls")
    }
}

impl ClientTls {
    fn config(&self) -> Result<rustls::ClientConfig, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?;
        let mut roots = rustls::RootCertStore::empty();
        match &self.trusted {
            Some(pem) => {
                for certificate in certificates(pem)? {
                    roots.add(certificate).map_err(|error| format!("a certificate to trust: {error}"))?;
                }
            }
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        }
        let builder = builder.with_root_certificates(roots);
        match &self.own {
            None => Ok(builder.with_no_client_auth()),
            Some((chain, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the key: {error}"))?;
                builder.with_client_auth_cert(certificates(chain)?, key).map_err(|error| error.to_string())
            }
        }
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|error| format!("a certificate: {error}"))?;
    if read.is_empty() { Err("there is no certificate in the file".to_owned()) } else { Ok(read) }
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WebError {
    /// It may not be called.
    #[error("it may not be called: {0}")]
    Forbidden(Internal),
    /// Nothing was asked.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// It may have been asked.
    #[error("the connection broke: {0}")]
    Broken(String),
}

/// What was answered.
pub(crate) struct WebAnswer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// What was said, if it is no longer than may be read. A status stands however much is said with it.
    pub(crate) body: Result<Bytes, TooLarge>,
}

/// More was said than may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer of more than {0} bytes")]
pub(crate) struct TooLarge(usize);

/// Calls over HTTP to addresses that may be called; clones share connections.
#[derive(Clone)]
pub struct Web(Arc<Lines>);

struct Lines {
    client: Client<HttpsConnector<Dial>, Full<Bytes>>,
    dial: Dial,
    tls: ClientTls,
}

impl std::fmt::Debug for Web {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Web")
    }
}

impl Web {
    /// Calls to public addresses and to those that are allowed.
    pub fn new(allowed: Allowed, tls: ClientTls) -> Result<Web, String> {
        let dial = Dial { allowed: Arc::new(allowed) };
        let https = HttpsConnectorBuilder::new().with_tls_config(tls.config()?).https_or_http().enable_http1();
        let connector = https.wrap_connector(dial.clone());
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Ok(Web(Arc::new(Lines { client, dial, tls })))
    }

    pub(crate) fn dial(&self) -> Dial {
        self.0.dial.clone()
    }

    pub(crate) fn tls(&self) -> &ClientTls {
        &self.0.tls
    }

    /// Reads a URL, of an answer at most so long.
    pub(crate) async fn get(&self, url: &str, bytes_max: usize) -> Result<WebAnswer, WebError> {
        let unreachable = |why: String| WebError::Unreachable(why);
        let request = Request::get(url).header(USER_AGENT, AGENT).body(Full::new(Bytes::new()));
        self.send(request.map_err(|error| unreachable(error.to_string()))?, bytes_max).await
    }

    /// Makes a call, and reads its answer of at most so many bytes.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>, bytes_max: usize) -> Result<WebAnswer, WebError> {
        let answer = self.0.client.request(request).await.map_err(|error| {
            let forbidden = found::<Internal>(&error).cloned().map(WebError::Forbidden);
            let why = cause(&error);
            let unasked = error.is_connect() || found(&error).is_some_and(is_turned_away);
            forbidden.unwrap_or(if unasked { WebError::Unreachable(why) } else { WebError::Broken(why) })
        })?;
        let (head, body) = answer.into_parts();
        let body = match Limited::new(body, bytes_max).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(TooLarge(bytes_max)),
            Err(error) => return Err(WebError::Broken(cause(&*error))),
        };
        Ok(WebAnswer { status: head.status.as_u16(), headers: head.headers, body })
    }
}

/// Whether the other side says that it does not know the caller. By TLS 1.3 that is heard only after the
/// handshake, when the call is on its way; but nobody has read it.
fn is_turned_away(error: &rustls::Error) -> bool {
    use rustls::AlertDescription as Alert;
    let rustls::Error::AlertReceived(alert) = error else { return false };
    matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError
            | Alert::HandshakeFailure
    )
}

/// What an error comes from, if it is of this kind.
fn found<'a, E: std::error::Error + 'static>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a E> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|error| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.and_then(|inner| inner.downcast_ref()).or_else(|| error.downcast_ref())
    })
}

/// Connects to addresses that may be called.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    allowed: Arc<Allowed>,
}

impl Dial {
    async fn connect(self, url: Uri) -> io::Result<TokioIo<TcpStream>> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "a URL without a host");
        let host = url.host().ok_or_else(invalid)?;
        let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("https") { 443 } else { 80 });
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let found: Vec<SocketAddr> = match bare.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, port)],
            Err(_) => tokio::net::lookup_host((bare, port)).await?.collect(),
        };
        let may = self.allowed.of(bare, found).map_err(io::Error::other)?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{bare} has no address"));
        for address in may {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(TokioIo::new(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<TcpStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let dial = self.clone();
        Box::pin(async move {
            let late = |_elapsed| io::Error::new(io::ErrorKind::TimedOut, "no connection in time");
            tokio::time::timeout(CONNECT_WITHIN, dial.connect(url)).await.map_err(late)?
        })
    }
}
