//! `reject` and `already`: answers that get no slot, and failure responses in the place of
//! those that can never be sent.

use crate::inbox::StateKind;
use crate::sender::{AttemptKind, ParcelStage};
use crate::store::ReadExt;
use crate::store::op::{
    Already, Effect, Invalid, Judgement, Missing, NewParcel, Outcome, Reject, Remedy, Sight, Stale,
};
use crate::store::query::LaneView;
use crate::testkit::bench::{Bench, must};
use crate::testkit::samples::*;
use crate::words::{ErrorClass, Nonce, PAYLOAD_BYTES_MAX, Payload, Token};

use AttemptKind::Carry;
use ParcelStage::Assigned;

async fn lane_view(bench: &Bench) -> LaneView {
    must(bench.store().lane(lane()).await, "lane").unwrap_or_else(|| panic!("the lane is open"))
}

/// The token of an answer that is ready.
async fn ready_answer(bench: &Bench, n: u64) -> Token {
    let ready = must(bench.store().ready(destination(), 10).await, "ready");
    let answer = ready.iter().find(|delivery| delivery.id == id(n)).map(|delivery| delivery.answer);
    answer.unwrap_or_else(|| panic!("the answer is ready"))
}

/// An answer that can never be sent is a dead letter before it has a slot, and is sent
/// after all when a person says so.
pub async fn an_answer_that_can_never_be_sent_waits_for_a_person(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(8).await;
    bench.assigned(owner, 0, 1).await;
    bench.answered(2).await;
    let answer = ready_answer(&bench, 2).await;
    let reject = |n| Reject { lane: lane(), owner, id: id(n), answer, error: note(ErrorClass::Fatal), instead: None };
    let sent = Outcome::Stale(Stale::Delivery(id(1), StateKind::Assigned));
    assert_eq!(bench.apply(reject(1)).await, sent, "what is on a slot is the outside's to decide");
    assert_eq!(bench.apply(reject(3)).await, Outcome::NotFound(Missing::Request(id(3))));
    let stranger = Token { count: owner.count + 1000, ..owner };
    let refused = bench.apply(Reject { owner: stranger, ..reject(2) }).await;
    assert!(matches!(refused, Outcome::Stale(Stale::Seat { .. })), "{refused:?}");
    let other = Token { count: answer.count + 1000, ..answer };
    let stale = Outcome::Stale(Stale::Delivery(id(2), StateKind::Ready));
    assert_eq!(bench.apply(Reject { answer: other, ..reject(2) }).await, stale, "another answer");
    assert_eq!(bench.applied(reject(2)).await, Effect::Now(StateKind::Dead));
    bench.restart().await;
    assert_eq!(bench.apply(reject(2)).await, Outcome::Duplicate(Effect::Now(StateKind::Dead)));
    assert_eq!(lane_view(&bench).await.next, Nonce(1), "no slot was used");
    let (view, bodies) = bench.live(2).await;
    assert_eq!((view.error, bodies.response), (Some(note(ErrorClass::Fatal)), Some(response())));
    bench.applied(mend(2, Remedy::Retry)).await;
    bench.applied(assign(owner, 1, vec![parcel(&[2], signed(2, Carry))])).await;
    assert_eq!(bench.state(2).await, Some(StateKind::Assigned));
}

/// What was signed is what goes out: an answer that changed since then has no slot by it.
pub async fn an_answer_that_changed_since_it_was_signed_gets_no_slot(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(8).await;
    bench.answered(1).await;
    bench.answered(2).await;
    let [first, other] = [ready_answer(&bench, 1).await, ready_answer(&bench, 2).await];
    let replace = |answer| Reject {
        lane: lane(),
        owner,
        id: id(1),
        answer,
        error: note(ErrorClass::Fatal),
        instead: Some(Payload::raw("another answer")),
    };
    bench.applied(replace(first)).await;
    bench.restart().await;
    let carrying = |answers: &[Token]| NewParcel { answers: answers.to_vec(), ..parcel(&[2, 1], signed(1, Carry)) };
    let stale = Outcome::Stale(Stale::Delivery(id(1), StateKind::Ready));
    assert_eq!(bench.apply(assign(owner, 0, vec![carrying(&[other, first])])).await, stale);
    let refused = bench.apply(assign(owner, 0, vec![carrying(&[other])])).await;
    assert!(matches!(refused, Outcome::Invalid(Invalid::TooMany { what: "answers", .. })), "{refused:?}");
    assert_eq!(lane_view(&bench).await.next, Nonce(0), "no slot was used");
    let now = ready_answer(&bench, 1).await;
    assert_ne!(now, first);
    assert_eq!(bench.applied(assign(owner, 0, vec![carrying(&[other, now])])).await, Effect::Assigned(1, None));
    bench.expect(&[(1, StateKind::Assigned), (2, StateKind::Assigned)]).await;
}

/// A failure response takes the place of an answer that can never be sent, whether that shows
/// before it has a slot or when its transaction is final; once, and under a token of its own.
pub async fn a_failure_response_takes_the_place_of_an_answer(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(8).await;
    let (error, sorry) = (|| note(ErrorClass::Fatal), || Payload::raw("sorry"));
    bench.assigned(owner, 0, 1).await;
    let replaced = || Judgement::Replaced(error(), sorry());
    let settle_first = settle(owner, 0, Assigned, Sight::Final(block(1, 5), replaced()));
    bench.applied(settle_first.clone()).await;
    assert_eq!(bench.apply(settle_first).await, Outcome::Duplicate(Effect::Done));
    bench.answered(2).await;
    let answer = ready_answer(&bench, 2).await;
    let reject = Reject { lane: lane(), owner, id: id(2), answer, error: error(), instead: Some(sorry()) };
    assert_eq!(bench.applied(reject.clone()).await, Effect::Now(StateKind::Ready));
    bench.restart().await;
    let stale = Outcome::Stale(Stale::Delivery(id(2), StateKind::Ready));
    assert_eq!(bench.apply(reject.clone()).await, stale, "it was of the answer that is gone");
    for n in [1, 2] {
        let (view, bodies) = bench.live(n).await;
        assert_eq!((view.phase.kind(), view.error, bodies.response), (StateKind::Ready, Some(error()), Some(sorry())));
    }
    let ready = must(bench.store().ready(destination(), 10).await, "ready");
    assert_eq!(ready.iter().map(|one| (one.id, one.failure)).collect::<Vec<_>>(), [(id(1), true), (id(2), true)]);
    assert!(ready.iter().all(|one| one.answer != answer && one.response == sorry()));
    // One is sent, and the request ends dead; the other cannot be sent either, and waits for a person.
    bench.applied(assign(owner, 1, vec![parcel(&[1], signed(11, Carry))])).await;
    bench.applied(settle(owner, 1, Assigned, Sight::Final(block(11, 6), Judgement::Done))).await;
    assert_eq!(bench.state(1).await, Some(StateKind::Dead));
    let again = Reject { answer: ready[1].answer, ..reject };
    assert_eq!(bench.applied(again.clone()).await, Effect::Now(StateKind::Dead));
    assert_eq!(bench.apply(again).await, Outcome::Duplicate(Effect::Now(StateKind::Dead)));
    bench.applied(mend(2, Remedy::Retry)).await;
    bench.applied(assign(owner, 2, vec![parcel(&[2], signed(12, Carry))])).await;
    bench.applied(settle(owner, 2, Assigned, Sight::Final(block(12, 7), replaced()))).await;
    assert_eq!(bench.state(2).await, Some(StateKind::Dead));
    let (_, bodies) = bench.live(2).await;
    assert_eq!(bodies.response, Some(sorry()), "it is kept");
}

/// A failure response is no longer than any other.
pub async fn a_failure_response_has_the_length_of_a_payload(bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(8).await;
    bench.assigned(owner, 0, 1).await;
    bench.answered(2).await;
    let long = || Payload::raw(vec![0; PAYLOAD_BYTES_MAX + 1]);
    let (bytes, max) = (PAYLOAD_BYTES_MAX + 1, PAYLOAD_BYTES_MAX);
    let invalid = || Outcome::Invalid(Invalid::PayloadTooLarge { bytes, max });
    let judgement = Judgement::Replaced(note(ErrorClass::Fatal), long());
    assert_eq!(bench.apply(settle(owner, 0, Assigned, Sight::Final(block(1, 5), judgement))).await, invalid());
    let (answer, error) = (ready_answer(&bench, 2).await, note(ErrorClass::Fatal));
    let reject = Reject { lane: lane(), owner, id: id(2), answer, error, instead: Some(long()) };
    assert_eq!(bench.apply(reject).await, invalid());
    bench.expect(&[(1, StateKind::Assigned), (2, StateKind::Ready)]).await;
}

/// An answer that the outside shows to be done ends well before it has a slot, and only the
/// answer that was meant.
pub async fn an_answer_that_is_done_already_ends_well(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(8).await;
    bench.assigned(owner, 0, 1).await;
    bench.answered(2).await;
    let answer = ready_answer(&bench, 2).await;
    let already = |n| Already { lane: lane(), owner, id: id(n), answer };
    let sent = Outcome::Stale(Stale::Delivery(id(1), StateKind::Assigned));
    assert_eq!(bench.apply(already(1)).await, sent, "what is on a slot is the outside's to decide");
    assert_eq!(bench.apply(already(3)).await, Outcome::NotFound(Missing::Request(id(3))));
    let other = Token { count: answer.count + 1000, ..answer };
    let stale = Outcome::Stale(Stale::Delivery(id(2), StateKind::Ready));
    assert_eq!(bench.apply(Already { answer: other, ..already(2) }).await, stale, "another answer");
    let stranger = Token { count: owner.count + 1000, ..owner };
    let refused = bench.apply(Already { owner: stranger, ..already(2) }).await;
    assert!(matches!(refused, Outcome::Stale(Stale::Seat { .. })), "{refused:?}");
    assert_eq!(bench.applied(already(2)).await, Effect::Now(StateKind::Settled));
    bench.restart().await;
    assert_eq!(bench.apply(already(2)).await, Outcome::Duplicate(Effect::Now(StateKind::Settled)));
    assert_eq!(lane_view(&bench).await.next, Nonce(1), "no slot was used");
}
