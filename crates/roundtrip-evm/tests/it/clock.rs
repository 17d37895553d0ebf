//! Deadlines by a chain's own clock: an event names a time in seconds, as contracts do, and its
//! request ends when a block of that time was read, whatever the clock on the wall says.

use alloy::primitives::B256;
use roundtrip::inbox::{End, Identity};
use roundtrip::store::op::{Effect, Op, Outcome};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::query::Found;
use roundtrip::store::{ReadExt, StoreExt};
use roundtrip::words::{Moment, OriginName, RequestId, RouteName, UnixMs};
use roundtrip_evm::testkit::fakenode::FakeLog;
use roundtrip_evm::{EventSignature, EvmSource, Finality, Watch};

use super::listener::{LONG, SHORT, World, asked, pass};

/// Blocks of the fake chain are 12 seconds apart, from 1970 on.
const DEADLINE_S: u64 = 10 * 12;

fn watch() -> Watch {
    let event = EventSignature::parse("Asked(uint256 indexed id, uint64 expiry)").unwrap();
    let watch = Watch::new(RouteName::new("board").unwrap(), event, Identity::Given);
    watch.until("expiry", OriginName::new("chain").unwrap()).unwrap()
}

async fn expire(world: &World) -> usize {
    match world.store.apply_one(Op::Expire { limit: 9 }).await.unwrap() {
        Outcome::Applied(Effect::Count(count)) => count,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_in_an_event_passes_by_the_time_of_blocks_and_not_by_the_wall() {
    let mut world = World::new(RoutePolicy::default()).await;
    let expiry = B256::left_padding_from(&DEADLINE_S.to_be_bytes());
    let topics = vec![watch().event.topic().unwrap(), B256::ZERO];
    world.chain.mine(vec![FakeLog { topics, data: expiry.to_vec().into(), ..asked(1) }]);
    let source = EvmSource::new(world.node.rpc(), 7, Finality::Finalized, vec![watch()]);
    let running = world.start_by(source);
    pass(SHORT).await;
    let [id]: [RequestId; 1] = world.ids().await.try_into().unwrap();
    let Some(Found::Live(view, _)) = world.store.get(id).await.unwrap() else { panic!("it is not there") };
    let at = UnixMs(DEADLINE_S * 1000);
    assert_eq!(view.deadline, Some(Moment::BlockTime { origin: OriginName::new("chain").unwrap(), at }));
    // The chain stands still: the wall's clock, minutes ahead of its blocks, ends nothing.
    pass(LONG).await;
    world.chain.mine_empty(8);
    pass(SHORT).await;
    assert_eq!(expire(&world).await, 0);
    let origins = world.store.origins().await.unwrap();
    assert!(origins[0].behind_ms.is_some_and(|behind| behind > 500_000), "and it shows: {origins:?}");
    world.chain.mine_empty(1);
    pass(SHORT).await;
    assert_eq!(expire(&world).await, 1);
    let Some(Found::Ended(receipt)) = world.store.get(id).await.unwrap() else { panic!("it lives on") };
    assert_eq!(receipt.end, End::Expired);
    running.stop().await;
}
