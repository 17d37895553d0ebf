//! Stations in two processes that tell each other nothing: what one admits, the other answers and delivers, since all of
//! them look by themselves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use roundtrip::clock::SystemClock;
use roundtrip::inbox::{End, Standing};
use roundtrip::listener::{Ending, FollowerOptions};
use roundtrip::outbox::{ChannelSink, CourierOptions};
use roundtrip::relay::{Relay, Running};
use roundtrip::sender::SenderOptions;
use roundtrip::store::op::NewRequest;
use roundtrip::store::{Batched, Changes, Options, ReadExt, Store, Topic};
use roundtrip::testkit::bench::Harness;
use roundtrip::testkit::chain::TestChain;
use roundtrip::testkit::samples::{destination, id, policy, route};
use roundtrip::words::Payload;
use roundtrip::worker::{Typed, WorkerOptions, handler_fn};
use tokio::time::{interval, timeout};

use super::{Rig, numbered};
use crate::sharing::HAPPEN_MAX;

const REQUESTS: u64 = 20;
/// How often everybody looks.
const POLL: Duration = Duration::from_millis(20);

/// Two processes on one store, and a third that only waits to be told of something.
struct Apart {
    /// The one that admits.
    rig: Rig,
    /// The one with the stations.
    other: Arc<dyn Store>,
    news: Changes,
    _bystander: Arc<dyn Store>,
}

impl Apart {
    async fn on(server: impl Harness) -> Apart {
        let clock = Arc::new(SystemClock::new());
        let open = async || server.open(clock.clone(), Options::default()).await.unwrap();
        let (one, other, bystander) = (open().await, open().await, open().await);
        let rig = Rig::new(Arc::new(Batched::new(one)), clock.clone(), None);
        let mut news = bystander.changes(Topic::Journal);
        assert!(news.changed().await, "everybody looks once at the start");
        Apart { rig, other: Arc::new(Batched::new(other)), news, _bystander: bystander }
    }

    /// A relay that squares numbers, in the process that admits nothing.
    fn squares(&self) -> Relay {
        let square = Typed(handler_fn(|n: u64, _job| async move { Ok(n * n) }));
        let options = WorkerOptions { poll: POLL, ..WorkerOptions::default() };
        let relay = Relay::new(self.other.clone()).name("answers");
        relay.work(route().as_str(), Arc::new(square), options, None)
    }

    /// All has ended, and nobody was told of any of it.
    async fn check(mut self, relays: impl IntoIterator<Item = Running>) {
        for end in self.rig.ends((0..REQUESTS).map(id)).await {
            assert!(matches!(end, Ending::Ended(receipt) if receipt.end == End::Settled), "{end:?}");
        }
        for relay in relays {
            relay.shutdown().await.unwrap();
        }
        assert_eq!(self.rig.store.counts().await.unwrap(), []);
        tokio::select! {
            biased;
            _ = self.news.changed() => panic!("processes that only poll tell each other nothing"),
            () = std::future::ready(()) => {}
        }
    }
}

async fn what_one_process_admits_another_delivers(server: impl Harness) {
    let apart = Apart::on(server).await;
    apart.rig.define(policy()).await;
    let (sink, mut handed) = ChannelSink::new(1);
    let options = CourierOptions { poll: POLL, ..CourierOptions::default() };
    let relay = apart.squares().sink_with(destination().as_str(), sink, options).start().await.unwrap();
    // Each when the last was delivered, so that none is found beside another.
    let mut delivered = BTreeSet::new();
    for n in 0..REQUESTS {
        apart.rig.admit(vec![NewRequest { standing: Standing::Final, ..numbered(n) }]).await;
        let delivery = timeout(HAPPEN_MAX, handed.recv()).await.unwrap().unwrap();
        assert_eq!(delivery.delivery.response, Payload::json((n * n).to_string()));
        assert!(delivered.insert(delivery.delivery.id), "{} was delivered twice", delivery.delivery.id);
        delivery.taken();
    }
    apart.check([relay]).await;
}

async fn what_one_process_reads_of_a_chain_another_answers_on_it(server: impl Harness) {
    let apart = Apart::on(server).await;
    apart.rig.define(policy()).await;
    let chain = TestChain::with_events(|event| NewRequest { standing: Standing::Seen, ..numbered(event) });
    let follow = FollowerOptions { poll: POLL, ..FollowerOptions::default() };
    let send = SenderOptions { poll: POLL, ..SenderOptions::default() };
    let reads = Relay::new(apart.rig.store.clone())
        .name("reads")
        .without_upkeep()
        .follow("listener", "chain", Arc::new(chain.clone()), &[route().as_str()], follow)
        .start();
    let sends = apart.squares().lanes(destination().as_str(), Arc::new(chain.clone()), &["a", "b"], send).start();
    let (reads, sends) = (reads.await.unwrap(), sends.await.unwrap());
    (0..REQUESTS).for_each(|event| chain.emit(event));
    let mut blocks = interval(POLL);
    let all_end = async {
        while !apart.rig.store.counts().await.unwrap().is_empty() || chain.answers().len() as u64 != REQUESTS {
            blocks.tick().await;
            chain.mine();
        }
    };
    timeout(HAPPEN_MAX, all_end).await.unwrap();
    assert_eq!(chain.answers(), (0..REQUESTS).map(|event| (id(event), 1)).collect());
    apart.check([reads, sends]).await;
}

/// Both cases on a server.
macro_rules! by_polling_on {
    ($server:expr) => {
        #[tokio::test]
        async fn what_one_process_admits_another_delivers() {
            super::what_one_process_admits_another_delivers($server.by_polling()).await;
        }

        #[tokio::test]
        async fn what_one_process_reads_of_a_chain_another_answers_on_it() {
            super::what_one_process_reads_of_a_chain_another_answers_on_it($server.by_polling()).await;
        }
    };
}
use by_polling_on;

#[cfg(feature = "postgres")]
mod postgres {
    super::by_polling_on!(crate::postgres::OnServer::default());
}

#[cfg(feature = "redis")]
mod redis {
    super::by_polling_on!(crate::redis::OnServer::default());
}

#[cfg(feature = "redis")]
mod on_a_cluster {
    super::by_polling_on!(crate::redis::OnServer::on_cluster());
}
