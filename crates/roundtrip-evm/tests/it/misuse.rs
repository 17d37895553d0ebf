//! Wrong input, as whoever made the mistake meets it: what `probe` says before anything runs,
//! and what the log says once it does. Each says what is wrong, where, and what to do; and it
//! costs nothing: no request, no cursor, and no more calls than it takes to find out.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use roundtrip::store::policy::RoutePolicy;
use roundtrip::words::Height;
use roundtrip_evm::testkit::board::ARTIFACT;
use roundtrip_evm::testkit::fakenode::{FakeChain, FakeNode};
use roundtrip_evm::{EventSignature, EvmSource, Finality, Rpc};
use tokio::net::TcpListener;
use tracing::field::{Field, Visit};
use tracing::span;

use super::listener::{CHAIN_ID, World, asked, watch};

/// Everything is said within so long.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

/// Whoever reads the log of this thread, from warnings on.
#[derive(Clone, Default)]
struct Reader(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.0 = format!("{value:?} {}", self.0),
            name => self.0 += &format!("{name}={value:?} "),
        }
    }
}

impl tracing::Subscriber for Reader {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN && metadata.target().starts_with("roundtrip")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Reader {
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Waits until the log has a line with this in it.
    async fn reads(&self, part: &str) {
        until(part, async || self.lines().iter().any(|line| line.contains(part))).await;
    }
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < PATIENCE, "waited in vain: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// An address at which there is a page for people.
async fn page() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, Router::new().route("/", post("<html>Hello</html>"))).await });
    url
}

fn source(url: &str) -> EvmSource {
    EvmSource::new(Rpc::http(url).unwrap(), CHAIN_ID, Finality::Finalized, vec![watch()])
}

/// A mistake that shows only when nodes are asked.
struct Mistake<'a> {
    what: &'a str,
    url: String,
    from_block: u64,
    /// What the probe says; nothing where it cannot know.
    probed: Option<String>,
    /// What the log says.
    logged: String,
    /// Whether the listener halts, or goes on asking.
    halts: bool,
}

impl Mistake<'_> {
    async fn check(self) {
        let Mistake { what, url, from_block, probed, logged, halts } = self;
        let troubles = source(&url).probe(Height(from_block)).await;
        let troubles: Vec<String> = troubles.iter().map(ToString::to_string).collect();
        assert_eq!(troubles, probed.into_iter().collect::<Vec<_>>(), "{what}, before it runs");

        let mut world = World::new(RoutePolicy::default()).await;
        world.options.from_block = Height(from_block);
        world.options.poll = LOOK;
        let reader = Reader::default();
        let _reads = tracing::subscriber::set_default(reader.clone());
        let running = world.start_by(source(&url));
        reader.reads(&logged).await;
        match halts {
            true => assert!(running.halted().await.contains(&logged), "{what}"),
            false => running.stop().await,
        }
        assert_eq!((world.ids().await.len(), world.cursor().await), (0, None), "{what}: it costs nothing");
    }
}

#[tokio::test]
async fn wrong_input_gets_a_clear_error_and_costs_nothing() {
    let chain = FakeChain::new();
    (1..=9).for_each(|n| assert_eq!(chain.mine(vec![asked(n)]), n));
    chain.finalize(9);
    let (stranger, pruned, node) =
        (FakeNode::on(&chain, 1), FakeNode::on(&chain, CHAIN_ID), FakeNode::on(&chain, CHAIN_ID));
    pruned.moods().pruned_below = 5;
    let [stranger_http, pruned_http, node_http] =
        [stranger.serve_http().await, pruned.serve_http().await, node.serve_http().await].map(Result::unwrap);
    let (nobody, page) = ("http://127.0.0.1:1".to_owned(), page().await);

    // What can be told without a node is told at once.
    let no_event = EventSignature::from_abi(ARTIFACT, "Asked").unwrap_err().to_string();
    let there = "Requested(uint256,address,bytes), Responded(uint256,address,bytes)";
    assert_eq!(no_event, format!("the ABI has no event Asked; it has: {there}"));
    let bad_url = |url: &str| Rpc::http(url).unwrap_err().to_string();
    assert_eq!(
        bad_url("localhost:8545"),
        "localhost:8545 is no address of a node: it starts with neither http:// nor https://"
    );
    assert_eq!(bad_url("http://"), "http:// is no address of a node: empty host");
    assert_eq!(
        bad_url("wss://node.example/KEY"),
        "wss://node.example is no address of a node: blocks are read over http:// or https://; a WebSocket is for news"
    );

    let url = |node: &str| node.to_owned();
    let other_chain =
        format!("{} is on chain 1, not on {CHAIN_ID}: correct its URL, or the chain's number", stranger_http.url());
    let refused = format!(
        "{nobody}: no answer: error sending request for url ({nobody}): client error (Connect): tcp connect error: Connection refused (os error 111)"
    );
    let no_node = format!("{page}: no answer: an answer that is no JSON: is this the address of a node?");
    let no_block = format!(
        "{}: no answer: it does not have block 1: if it never comes, use a node with an archive, or a later from_block",
        pruned_http.url()
    );
    let future = |first: u64| {
        format!(
            "the first block to read is {first}, and the newest of {} is 9: correct from_block or the URL",
            node_http.url()
        )
    };
    let far = "the first block to read is 5000, and the chain's newest is 9: correct from_block, or check which chain the source serves";
    let soon = "the first block to read is not there yet, and is waited for: if that is not meant, correct from_block";
    let mistakes = [
        Mistake {
            what: "wrong chain id",
            url: url(stranger_http.url()),
            from_block: 1,
            probed: Some(other_chain.clone()),
            logged: other_chain,
            halts: true,
        },
        Mistake {
            what: "nobody there",
            url: nobody,
            from_block: 1,
            probed: Some(refused.clone()),
            logged: refused,
            halts: false,
        },
        Mistake {
            what: "no node",
            url: page,
            from_block: 1,
            probed: Some(no_node.clone()),
            logged: no_node,
            halts: false,
        },
        Mistake {
            what: "a pruned node",
            url: url(pruned_http.url()),
            from_block: 1,
            probed: Some(no_block.clone()),
            logged: no_block,
            halts: false,
        },
        Mistake {
            what: "far in the future",
            url: url(node_http.url()),
            from_block: 5_000,
            probed: Some(future(5_000)),
            logged: far.to_owned(),
            halts: true,
        },
        Mistake {
            what: "in the future",
            url: url(node_http.url()),
            from_block: 500,
            probed: Some(future(500)),
            logged: soon.to_owned(),
            halts: false,
        },
    ];
    for mistake in mistakes {
        mistake.check().await;
    }
    assert_eq!((stranger.asked("eth_chainId"), stranger.asked("eth_getBlockByNumber")), (2, 0), "once by each");
}

#[tokio::test]
async fn a_first_block_that_is_waited_for_is_told_once_and_then_read() {
    let mut world = World::new(RoutePolicy::default()).await;
    (world.options.from_block, world.options.poll) = (Height(3), LOOK);
    let reader = Reader::default();
    let _reads = tracing::subscriber::set_default(reader.clone());
    let rpc = world.node.rpc();
    let running = world.start_by(EvmSource::new(rpc, CHAIN_ID, Finality::Finalized, vec![watch()]));
    reader.reads("is waited for").await;
    let looks = world.node.asked("eth_chainId") + world.node.asked("eth_getBlockByNumber");
    until("it looks on", async || world.node.asked("eth_getBlockByNumber") >= looks + 20).await;
    assert_eq!(reader.lines().len(), 1, "{:#?}", reader.lines());
    (1..=3).for_each(|n| assert_eq!(world.chain.mine(vec![asked(n)]), n));
    world.chain.finalize(3);
    until("the block is read", async || world.cursor().await == Some(3)).await;
    assert_eq!(world.live().await.iter().map(|(n, ..)| *n).collect::<Vec<_>>(), [3]);
    running.stop().await;
}
