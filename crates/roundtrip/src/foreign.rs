//! Lists on a Redis server that belong to other programs: the connection by which a source
//! takes from one and a sink adds to one.
//!
//! A call is one script: all of it or nothing. Failure modes: a connection that breaks leaves
//! open what became of the call; every script here may be called again, with no second effect.
//! A server that is away is a reason to wait, never to go on without it.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, FromRedisValue, IntoConnectionInfo, RedisError, Script};
use tokio::sync::Mutex;

use crate::store::without_password;

/// How long the server may take to answer, and to connect.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Longest key.
const KEY_BYTES_MAX: usize = 1024;

/// Why a list cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadList {
    /// The URL names no server.
    #[error("{url:?} names no Redis server: use redis://HOST, rediss://HOST or redis+unix:///PATH")]
    Url {
        /// The URL, without a password.
        url: String,
    },
    /// A list and what is noted beside it would be in different slots.
    #[error(
        "{url:?} is a cluster: a list and what is noted beside it must be on one node; give the list a Redis server \
         without cluster mode"
    )]
    OnCluster {
        /// The URL, without a password.
        url: String,
    },
    /// No name for a list.
    #[error("a list's name has from 1 to {KEY_BYTES_MAX} bytes, and does not begin with roundtrip:")]
    Name,
    /// A text that asks for what a delivery does not tell.
    #[error("{0:?} asks for what an answer does not tell: use route, id, generation, revision or response")]
    Template(String),
}

/// Why a call brought nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForeignError {
    #[error(transparent)]
    Server(#[from] RedisError),
    /// The server is one node of a cluster.
    #[error("the server of the list is a node of a cluster: give the list a Redis server without cluster mode")]
    Cluster,
}

/// One server.
pub(crate) struct Foreign {
    info: ConnectionInfo,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Foreign {
    /// The server at a URL; nothing is connected yet.
    pub(crate) fn new(url: &str) -> Result<Foreign, BadList> {
        let shown = || without_password(url);
        match url.split_once(':').map_or("", |(scheme, _)| scheme) {
            "redis-cluster" | "rediss-cluster" => return Err(BadList::OnCluster { url: shown() }),
            "rediss" => {
                // Whatever the process has chosen already is as good.
                let _chosen = rustls::crypto::ring::default_provider().install_default();
            }
            _ => {}
        }
        let info = url.into_connection_info().map_err(|_invalid| BadList::Url { url: shown() })?;
        Ok(Foreign { info, connection: Mutex::default() })
    }

    /// Calls a script.
    pub(crate) async fn call<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        arguments: &[Vec<u8>],
    ) -> Result<T, ForeignError> {
        let mut connection = self.connect().await?;
        let mut call = script.prepare_invoke();
        keys.iter().for_each(|key| {
            call.key(*key);
        });
        arguments.iter().for_each(|argument| {
            call.arg(&argument[..]);
        });
        match call.invoke_async(&mut connection).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                // What the server itself says costs no connection.
                if error.code().is_none() {
                    *self.connection.lock().await = None;
                }
                Err(error.into())
            }
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, ForeignError> {
        let mut held = self.connection.lock().await;
        if let Some(connection) = &*held {
            return Ok(connection.clone());
        }
        let mut connection = self.open(ANSWER_MAX).await?;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
        if info.lines().any(|line| line.trim() == "redis_mode:cluster") {
            return Err(ForeignError::Cluster);
        }
        *held = Some(connection.clone());
        Ok(connection)
    }

    /// A connection of its own, for a call that waits.
    pub(crate) async fn open(&self, answer_max: Duration) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(answer_max))
            .set_connection_timeout(Some(CONNECT_MAX));
        Client::open(self.info.clone())?.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Where it is, without a password.
    pub(crate) fn address(&self) -> String {
        self.info.addr().to_string()
    }
}

/// Refuses what cannot be the name of a list that is somebody else's.
pub(crate) fn check_name(list: &str) -> Result<(), BadList> {
    let fits = (1..=KEY_BYTES_MAX).contains(&list.len()) && !list.starts_with("roundtrip:");
    if fits { Ok(()) } else { Err(BadList::Name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_refused_and_no_error_shows_a_password() {
        let refusal = |url| Foreign::new(url).err().map(|error| error.to_string()).unwrap_or_default();
        let cluster = refusal("redis-cluster://me:secret@a:1,b:2");
        assert!(cluster.contains("is a cluster") && !cluster.contains("secret"), "{cluster}");
        let none = refusal("http://me:secret@h");
        assert!(none.contains("names no Redis server") && !none.contains("secret"), "{none}");
        assert_eq!(refusal("redis://h"), "");
        assert_eq!(check_name("roundtrip:{main}:live"), Err(BadList::Name));
    }
}
