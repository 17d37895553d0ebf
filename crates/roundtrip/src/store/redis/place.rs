//! Where a store is, as its URL says.
//!
//! | URL | |
//! |---|---|
//! | `redis://[USER:PASSWORD@]HOST[:PORT][/DB]` | one server |
//! | `rediss://…` | the same by TLS |
//! | `redis-cluster://[USER:PASSWORD@]HOST:PORT,HOST:PORT` | some nodes of a cluster |
//! | `rediss-cluster://…` | the same by TLS |
//! | `redis+unix:///PATH` | one server, by a socket |
//!
//! Parameters: `name=NAME`, the store's; `poll_only=true`, to do without hints; `sslrootcert=PATH`, by which
//! authorities the server's certificate is verified, in place of the system's.
//!
//! By TLS the server's certificate and name are verified, always: an encrypted connection to nobody knows whom
//! protects from nobody.

use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, TlsCertificates};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::store::{StoreError, without_password};
use crate::words::NAME_BYTES_MAX;

/// The store that a URL without a name means.
const NAME: &str = "main";

/// Where a store is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    nodes: Vec<ConnectionInfo>,
    pub(super) name: String,
    pub(super) poll_only: bool,
    pub(super) is_cluster: bool,
}

impl Place {
    pub(super) fn of(url: &str) -> Result<Place, StoreError> {
        let bad = || StoreError::BadUrl { url: without_password(url) };
        let (place, roots) = Place::parse(url).ok_or_else(bad)?;
        match roots {
            Some(path) => place.trusting(&path),
            None => Ok(place),
        }
    }

    /// The place, and the file with the authorities that vouch for it, if one is named.
    fn parse(url: &str) -> Option<(Place, Option<String>)> {
        let (base, parameters) = url.split_once('?').unwrap_or((url, ""));
        let (mut name, mut poll_only, mut roots, mut rest) = (NAME.to_owned(), false, None, Vec::new());
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("name", given)) if is_name(given) => name = given.to_owned(),
                Some(("poll_only", value @ ("true" | "false"))) => poll_only = value == "true",
                Some(("sslrootcert", path)) if !path.is_empty() => roots = Some(path.replace("%2F", "/")),
                Some(("name" | "poll_only" | "sslrootcert", _)) => return None,
                // What else makes no sense is left for the client to refuse.
                _ => rest.push(parameter),
            }
        }
        let (scheme, nodes) = base.split_once("://")?;
        let rest = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
        let (one, is_cluster) = match scheme {
            "redis-cluster" => ("redis", true),
            "rediss-cluster" => ("rediss", true),
            other => (other, false),
        };
        let nodes = match is_cluster {
            true => each_node(one, nodes),
            false => vec![format!("{one}://{nodes}{rest}")],
        };
        // What follows it could only ask for a certificate that is not verified; and no other scheme has one.
        if url.contains('#') || (roots.is_some() && one != "rediss") {
            return None;
        }
        if one == "rediss" {
            // Whatever the process has chosen already is as good.
            let _chosen = rustls::crypto::ring::default_provider().install_default();
        }
        let nodes: Option<Vec<_>> = nodes.into_iter().map(|node| node.into_connection_info().ok()).collect();
        Some((Place { nodes: nodes.filter(|nodes| !nodes.is_empty())?, name, poll_only, is_cluster }, roots))
    }

    /// The same, verified by the certificates in a PEM file; a file without any would trust nobody.
    fn trusting(mut self, path: &str) -> Result<Place, StoreError> {
        let bad = |reason: String| StoreError::Io { path: path.to_owned(), reason };
        let roots = std::fs::read(path).map_err(|error| bad(error.to_string()))?;
        if CertificateDer::pem_slice_iter(&roots).next().is_none() {
            return Err(bad("it holds no certificate".to_owned()));
        }
        for node in &mut self.nodes {
            let certificates = TlsCertificates { client_tls: None, root_cert: Some(roots.clone()) };
            let client = Client::build_with_tls(node.clone(), certificates).map_err(|error| bad(error.to_string()))?;
            *node = client.get_connection_info().clone();
        }
        Ok(self)
    }

    /// As errors name it.
    pub(super) fn in_words(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| node.addr().to_string()).collect();
        format!("redis at {}", nodes.join(","))
    }

    /// The node after so many others; round and round.
    pub(super) fn client(&self, at: usize) -> Result<Client, RedisError> {
        Client::open(self.nodes[at % self.nodes.len()].clone())
    }

    /// The node that another one names as HOST:PORT; with no host, it means its own.
    pub(super) fn client_of(&self, node: &str) -> Result<Client, RedisError> {
        let like = &self.nodes[0];
        let (host, port) = node.rsplit_once(':').unwrap_or((node, "6379"));
        let port = port.parse().unwrap_or(6379);
        let addr = match like.addr() {
            ConnectionAddr::TcpTls { host: first, insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host: if host.is_empty() { first.clone() } else { host.to_owned() },
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            ConnectionAddr::Tcp(first, _) if host.is_empty() => ConnectionAddr::Tcp(first.clone(), port),
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        Client::open(like.clone().set_addr(addr))
    }
}

/// The URL of each node, with what all of them share.
fn each_node(scheme: &str, nodes: &str) -> Vec<String> {
    let (user, nodes) = match nodes.rsplit_once('@') {
        Some((user, nodes)) => (format!("{user}@"), nodes),
        None => (String::new(), nodes),
    };
    nodes.split(',').map(|node| format!("{scheme}://{user}{node}")).collect()
}

/// A name is part of keys, between braces.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_url_says_where_and_which() {
        let check = |url: &str, words: &str, name: &str, poll_only| {
            let place = Place::of(url).unwrap();
            assert_eq!(place.in_words(), words);
            assert_eq!((&*place.name, place.poll_only), (name, poll_only));
        };
        check("redis://h", "redis at h:6379", "main", false);
        check("redis://me:secret@h:7/3?name=orders", "redis at h:7", "orders", false);
        check("redis-cluster://a:1,b:2?poll_only=true", "redis at a:1,b:2", "main", true);
        check("redis-cluster://me:secret@a:1,b:2?name=x", "redis at a:1,b:2", "x", false);
    }

    #[test]
    fn what_names_no_store_is_refused_without_its_password() {
        let unknown =
            ["redis:", "redis-cluster://", "redis://h?name=", "redis://h?name=a}b", "redis://h?poll_only=yes"];
        let unverified = ["rediss://h#insecure", "rediss://h?sslrootcert=", "redis://h?sslrootcert=a.pem"];
        for url in unknown.into_iter().chain(unverified) {
            assert!(matches!(Place::of(url), Err(StoreError::BadUrl { .. })), "{url}");
        }
        let refused = Place::of("redis://me:secret@h?name=").unwrap_err();
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }
}
