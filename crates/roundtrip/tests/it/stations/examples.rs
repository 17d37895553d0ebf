//! The examples are tests.

#[path = "../../../examples/embedded.rs"]
#[allow(dead_code, reason = "an example has a main that a test does not call")]
mod embedded;
#[path = "../../../examples/fan_in.rs"]
#[allow(dead_code, reason = "an example has a main that a test does not call")]
mod fan_in;
#[cfg(feature = "redis")]
#[path = "../../../examples/lists.rs"]
#[allow(dead_code, reason = "an example has a main that a test does not call")]
mod lists;
#[path = "../../../examples/periodic.rs"]
#[allow(dead_code, reason = "an example has a main that a test does not call")]
mod periodic;

use std::sync::Arc;

use roundtrip::clock::TokioClock;
use roundtrip::testkit::bench::START;

#[tokio::test(start_paused = true)]
async fn embedded_in_memory() {
    embedded::run("memory:").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn periodic_in_memory() {
    periodic::run(Arc::new(TokioClock::starting_at(START))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn fan_in_in_memory() {
    fan_in::run("memory:").await.unwrap();
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn lists_on_redis() {
    use roundtrip::testkit::servers::RedisServer;
    let server = RedisServer::start(RedisServer::SYNCED).unwrap();
    lists::run(&format!("redis://{}", server.address())).await.unwrap();
}

#[cfg(feature = "sqlite")]
mod sqlite {
    fn url(folder: &tempfile::TempDir) -> String {
        format!("sqlite:{}", folder.path().join("store.db").display())
    }

    #[tokio::test]
    async fn embedded() {
        let folder = tempfile::tempdir().unwrap();
        super::embedded::run(&url(&folder)).await.unwrap();
    }

    #[tokio::test]
    async fn fan_in() {
        let folder = tempfile::tempdir().unwrap();
        super::fan_in::run(&url(&folder)).await.unwrap();
    }
}
