//! An independent witness: alloy's stream of canonical logs follows the same chain through
//! the same reorgs. What it leaves standing is what our listener has in the store.
//!
//! The stream is no part of the listener: it begins at a number without a hash, costs two
//! calls a block, ends at the first call that fails, and forgets its blocks with its process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use alloy::network::Ethereum;
use alloy::primitives::{Bytes, U256};
use alloy::providers::{BlockLogs, CanonicalEvent, Provider, RootProvider};
use alloy::rpc::types::{Filter, Log};
use alloy::sol_types::SolEvent;
use alloy::transports::TransportResult;
use futures_util::StreamExt;
use roundtrip::inbox::Standing;
use roundtrip::listener::FollowerOptions;
use roundtrip::relay::Relay;
use roundtrip::store::ReadExt;
use roundtrip::store::query::Found;
use roundtrip_evm::testkit::board::RequestBoard;
use roundtrip_evm::testkit::deployment::ROUTE;
use serde::Deserialize;

use super::world::{FINAL_DEPTH, STEADY, World, payloads};

const LOOK: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(30);

/// What is asked, by the contract's id.
type Asked = BTreeMap<U256, Bytes>;

/// What the stream leaves standing.
struct Witness {
    asked: Asked,
    removed: usize,
    read_to: u64,
}

impl Witness {
    fn take(&mut self, event: CanonicalEvent<BlockLogs<Ethereum>>) {
        let decoded = |log: &Log| RequestBoard::Requested::decode_log(&log.inner).unwrap();
        match event {
            CanonicalEvent::Added(block) => {
                for log in block.logs.iter().map(decoded) {
                    let before = self.asked.insert(log.id, log.payload.clone());
                    assert_eq!(before, None, "an id stands once");
                }
                self.read_to = block.block.header.number;
            }
            CanonicalEvent::Removed(block) => {
                for log in block.logs.iter().map(decoded) {
                    assert_eq!(self.asked.remove(&log.id).as_ref(), Some(&log.payload));
                    self.removed += 1;
                }
            }
        }
    }
}

#[derive(Deserialize)]
struct Stored {
    args: Arguments,
}

#[derive(Deserialize)]
struct Arguments {
    id: U256,
    payload: Bytes,
}

/// What the listener has in the store, all of it final; none while some of it is not.
async fn admitted(world: &World) -> Option<Asked> {
    let mut asked = Asked::new();
    for request in world.requests().await {
        if request.standing != Standing::Final || request.behind {
            return None;
        }
        let Some(Found::Live(_, bodies)) = world.store.get(request.id).await.unwrap() else { return None };
        let stored: Stored = serde_json::from_slice(&bodies.payload.bytes).unwrap();
        asked.insert(stored.args.id, stored.args.payload);
    }
    Some(asked)
}

#[tokio::test]
async fn the_listener_and_alloy_s_canonical_logs_agree_through_reorgs() {
    let world = World::on_anvil(1).await;
    let deployment = world.deployment(STEADY);
    let follow = FollowerOptions { poll: LOOK, ..FollowerOptions::default() };
    let source = Arc::new(deployment.source().unwrap());
    // Nobody works on the requests, so that all of them stay to be looked at.
    let listener = Relay::new(world.store.clone()).define(ROUTE, deployment.policy().unwrap());
    let _listener = listener.follow("board", "chain", source, &[ROUTE], follow).start().await.unwrap();

    let provider = RootProvider::<Ethereum>::new(world.client.clone());
    let filter = Filter::new().address(world.board).event_signature(RequestBoard::Requested::SIGNATURE_HASH);
    let mut stream = provider.watch_canonical_logs_from(0, &filter).poll_interval(LOOK).into_stream();
    let mut witness = Witness { asked: Asked::new(), removed: 0, read_to: 0 };

    let payloads = payloads(12);
    let mut nonce = 0;
    for (some, taken) in payloads.chunks(3).zip([1, 2, 3, 1]) {
        // A block each; a reorg then takes one, two or all three of them, and the first of
        // those comes back in another block, under the id that it finds.
        let mut raws = Vec::new();
        for payload in some {
            raws.push(world.ask(nonce, payload).await);
            world.node.mine(1).await.unwrap();
            nonce += 1;
        }
        catch_up(&world, &mut stream, &mut witness).await;
        let seen = async || {
            let requests = world.requests().await;
            let there = requests.iter().filter(|request| request.standing != Standing::Orphaned).count();
            (there == witness.asked.len()).then_some(())
        };
        world.until("the listener has seen it too", seen).await;
        world.node.reorg(taken).await.unwrap();
        nonce -= taken;
        world.send_again(&raws[raws.len() - usize::try_from(taken).unwrap()]).await;
        nonce += 1;
        world.node.mine(1).await.unwrap();
        catch_up(&world, &mut stream, &mut witness).await;
    }
    world.node.mine(FINAL_DEPTH).await.unwrap();
    catch_up(&world, &mut stream, &mut witness).await;
    assert!(witness.removed >= 4, "no reorg took anything away: {}", witness.removed);
    let agreed = async || (admitted(&world).await? == witness.asked).then_some(());
    world.until("both say the same", agreed).await;
    assert!(!witness.asked.is_empty() && witness.asked.len() < payloads.len());
}

/// Reads what the stream has to say up to the newest block.
async fn catch_up<S>(world: &World, stream: &mut S, witness: &mut Witness)
where
    S: futures_util::Stream<Item = TransportResult<CanonicalEvent<BlockLogs<Ethereum>>>> + Unpin,
{
    let newest = world.node.block_number().await.unwrap();
    while witness.read_to < newest {
        let event = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap();
        witness.take(event.unwrap().unwrap());
    }
}
