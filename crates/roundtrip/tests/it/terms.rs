//! What a route has of its own: its failure response, and how long it waits for a block.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use roundtrip::inbox::{End, StateKind};
use roundtrip::sender::{FailureResponse, OnTimeout, RouteTerms, SendOrder};
use roundtrip::store::ReadExt;
use roundtrip::store::op::AfterCancel;
use roundtrip::store::query::Found;
use roundtrip::testkit::samples::{final_request, id, response, route, route_named};
use roundtrip::words::{Nonce, PAYLOAD_BYTES_MAX, Payload, RouteName};

use crate::sender::{BLOCK, Scene};

fn loans() -> RouteName {
    route_named("loans")
}

/// The ends of these requests, as their receipts tell.
async fn ends(scene: &Scene, numbers: std::ops::Range<u64>) -> Vec<End> {
    let mut ends = Vec::new();
    for n in numbers {
        let Some(Found::Ended(receipt)) = scene.store.get(id(n)).await.unwrap() else { panic!("{n} has ended") };
        ends.push(receipt.end);
    }
    ends
}

#[tokio::test(start_paused = true)]
async fn a_failure_response_is_sent_in_place_of_what_can_never_be() {
    for (parcel_max, mined) in [(1, false), (1, true), (3, false), (3, true)] {
        let mut scene = Scene::new(&["a"]).await;
        scene.options.parcel_max = parcel_max;
        let told: Arc<Mutex<Vec<(Payload, Payload, String)>>> = Arc::default();
        let telling = told.clone();
        let failure = FailureResponse::of(move |refused| {
            let told = (refused.request.clone(), refused.answer.clone(), refused.error.text.to_string());
            telling.lock().unwrap().push(told);
            Payload::raw(format!("{}: {}", refused.id, refused.error.text))
        });
        scene.options.routes.insert(route(), RouteTerms { failure: Some(failure), ..RouteTerms::default() });
        if mined {
            scene.chain.set_failing(id(1))
        } else {
            scene.chain.set_impossible(id(1))
        };
        scene.answered(0..3).await;
        let running = scene.start("one");
        scene.blocks(60).await;
        scene.assert_all_settled(3).await;
        assert_eq!(scene.chain.failures(), [id(1)], "{parcel_max} {mined}");
        assert_eq!(ends(&scene, 0..3).await, [End::Settled, End::Dead, End::Settled]);
        let (request, answer) = (final_request(1).payload, response());
        let error = if mined { "never" } else { "the contract would refuse it" };
        assert_eq!(*told.lock().unwrap(), [(request, answer, error.to_owned())], "{parcel_max} {mined}");
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_response_that_can_never_be_sent_waits_for_a_person() {
    let mut scene = Scene::new(&["a"]).await;
    let failure = FailureResponse::fixed(Payload::raw(vec![0; PAYLOAD_BYTES_MAX + 1]));
    scene.options.routes.insert(route(), RouteTerms { failure: Some(failure), ..RouteTerms::default() });
    scene.chain.set_impossible(id(0));
    scene.chain.set_failing(id(1));
    scene.answered(0..3).await;
    let running = scene.start("one");
    scene.blocks(20).await;
    assert_eq!(scene.chain.answers().into_keys().collect::<Vec<_>>(), [id(2)]);
    let left = scene.store.counts().await.unwrap();
    assert_eq!(left.iter().map(|count| (count.state, count.requests)).collect::<Vec<_>>(), [(StateKind::Dead, 2)]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn answers_of_a_route_with_terms_of_its_own_share_no_parcel_with_others() {
    for (order, parcels) in [
        (SendOrder::Spread, vec![vec![0, 3, 4], vec![1, 2, 5], vec![6]]),
        (SendOrder::Strict, vec![vec![0], vec![1, 2], vec![3, 4], vec![5], vec![6]]),
    ] {
        let mut scene = Scene::new(&["a"]).await;
        (scene.options.parcel_max, scene.options.order) = (3, order);
        scene.options.routes.insert(loans(), RouteTerms::default());
        scene.answered(0..1).await;
        scene.answered_on(loans(), 1..3).await;
        scene.answered(3..4).await;
        // Routes without terms of their own do share.
        scene.answered_on(route_named("others"), 4..5).await;
        scene.answered_on(loans(), 5..6).await;
        scene.answered(6..7).await;
        let running = scene.start("one");
        tokio::time::sleep(BLOCK / 4).await;
        let carried: Vec<_> = scene.lane("a").await.parcels.into_iter().map(|parcel| parcel.deliveries).collect();
        let expected: Vec<Vec<_>> = parcels.iter().map(|numbers| numbers.iter().map(|n| id(*n)).collect()).collect();
        assert_eq!(carried, expected, "{order:?}");
        scene.blocks(10).await;
        scene.assert_all_settled(7).await;
        running.stop().await;
    }
}

/// Nothing is mined for a while; one route waits for two seconds and gives the slot up, the
/// other waits for ten and pays more. A restart does not make it forget which is which.
#[tokio::test(start_paused = true)]
async fn a_route_waits_for_a_block_as_long_as_it_says() {
    for restarts in [false, true] {
        for (name, late_after) in [(loans(), 2), (route(), 10)] {
            let mut scene = Scene::new(&["a"]).await;
            let terms = RouteTerms {
                bump_ms: Some(2_000),
                on_timeout: Some(OnTimeout::FillAndRequeue),
                ..RouteTerms::default()
            };
            scene.options.routes.insert(loans(), terms);
            scene.answered_on(name.clone(), 0..1).await;
            let mut running = scene.start("one");
            tokio::time::sleep(BLOCK / 4).await;
            assert_eq!(scene.lane("a").await.next, Nonce(1));
            if restarts {
                running.crash().await;
                scene.store.crash();
                running = scene.start("two");
                // A seat of the one that died runs out first, unless its store did with it.
                tokio::time::sleep(BLOCK).await;
            }
            let stays = Duration::from_secs(late_after) - BLOCK * 3 / 2;
            tokio::time::sleep(stays).await;
            let first = scene.lane("a").await.parcels[0].clone();
            assert_eq!((first.attempts.len(), first.cancel), (1, None), "{name}, {restarts}: it is not late yet");
            tokio::time::sleep(BLOCK * 3).await;
            let first = scene.lane("a").await.parcels[0].clone();
            let wish = (name == loans()).then_some(AfterCancel::Requeue);
            assert_eq!((first.attempts.len() > 1, first.cancel), (true, wish), "{name}, {restarts}: it is late");
            scene.blocks(15).await;
            scene.assert_all_settled(1).await;
            running.stop().await;
        }
    }
}
