//! The edges: batches of 0, 1 and the most; payloads of 0 bytes and 1 MiB; ids that
//! share their prefixes.

use crate::sender::AttemptKind;
use crate::store::op::{
    Admission, Admit, Amendment, Answer, Effect, Gather, Invalid, NewRequest, Op, Outcome, Seat, Stale,
};
use crate::store::policy::{Gate, RoutePolicy};
use crate::store::query::Found;
use crate::store::{ReadExt, Store, StoreError};
use crate::testkit::bench::{Bench, must};
use crate::testkit::samples::*;
use crate::words::{
    ADMIT_MAX, ASSIGN_MAX, BATCH_BYTES_MAX, BATCH_OPS_MAX, OccurrenceId, PARCEL_MAX, PAYLOAD_BYTES_MAX, Payload,
    RequestId, Token,
};

fn admit(requests: Vec<NewRequest>) -> Op {
    Op::Admit(Admit { cursor: None, requests })
}

fn full_payload() -> Payload {
    Payload::raw(vec![0xEE; PAYLOAD_BYTES_MAX])
}

/// An empty batch, and one of a single operation.
pub async fn the_smallest_batches(bench: Bench) {
    assert_eq!(bench.batch(vec![]).await, []);
    bench.define(policy()).await;
    assert_eq!(bench.batch(vec![admit(vec![])]).await, [Outcome::Duplicate(Effect::Admitted(vec![], None))]);
    assert!(bench.batch(vec![admit(requests([1]))]).await[0].holds());
}

/// The largest batch, in operations and in requests of one of them; nothing larger.
pub async fn the_largest_batches(mut bench: Bench) {
    bench.define(policy()).await;
    let many = BATCH_OPS_MAX as u64;
    let outcomes = bench.batch((0..many).map(|n| admit(vec![request(n)])).collect()).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Applied(_))));
    let over = bench.store().apply((0..=many).map(|n| admit(vec![request(n)])).collect()).await;
    assert!(matches!(over, Err(StoreError::BatchTooLarge { ops, .. }) if ops == BATCH_OPS_MAX + 1), "{over:?}");
    let most = (many..many + ADMIT_MAX as u64).map(request).collect();
    assert!(bench.apply(admit(most)).await.holds());
    let over = bench.apply(admit((0..=ADMIT_MAX as u64).map(request).collect())).await;
    let (count, max) = (ADMIT_MAX + 1, ADMIT_MAX);
    assert_eq!(over, Outcome::Invalid(Invalid::TooMany { what: "requests", count, max }));
    bench.restart().await;
    let queued: u64 = must(bench.store().counts().await, "counts").iter().map(|count| count.requests).sum();
    assert_eq!(queued, many + ADMIT_MAX as u64);
}

/// Payloads of 0 bytes and of the most come back as they were; one byte more is refused.
pub async fn payloads_of_nothing_and_of_the_most(mut bench: Bench) {
    bench.define(policy()).await;
    let with = |n, payload| NewRequest { payload, ..final_request(n) };
    bench.admit(vec![with(1, Payload::default()), with(2, full_payload())]).await;
    let grants = bench.lease(2).await;
    assert_eq!(grants[0].payload, Payload::default());
    assert_eq!(grants[1].payload, full_payload());
    bench.applied(Answer { response: full_payload(), ..answer(&grants[0]) }).await;
    bench.applied(Answer { response: Payload::default(), ..answer(&grants[1]) }).await;
    bench.restart().await;
    let (one, two) = (bench.live(1).await.1, bench.live(2).await.1);
    assert_eq!((one.payload, one.response), (Payload::default(), Some(full_payload())));
    assert_eq!((two.payload, two.response), (full_payload(), Some(Payload::default())));

    bench.admit(vec![request(3)]).await;
    let grant = bench.lease_one().await;
    let over = || Payload::raw(vec![0; PAYLOAD_BYTES_MAX + 1]);
    let owner = bench.open_lane(4).await;
    let mut bytes_over = signed(1, AttemptKind::Carry);
    bytes_over.bytes = over().bytes;
    let lead = bench.lead(Seat::Route(route())).await;
    let change =
        Amendment::Supersede { id: id(3), occurrence: occurrence(3), place: None, payload: over(), deadline: None };
    let ops: [Op; 5] = [
        admit(vec![with(4, over())]),
        Answer { response: over(), ..answer(&grant) }.into(),
        Gather { payload: over(), ..gather(1) }.into(),
        assign(owner, 0, vec![parcel(&[1], bytes_over)]).into(),
        amend(lead, change).into(),
    ];
    for op in ops {
        let (bytes, max) = (PAYLOAD_BYTES_MAX + 1, PAYLOAD_BYTES_MAX);
        assert_eq!(bench.apply(op).await, Outcome::Invalid(Invalid::PayloadTooLarge { bytes, max }));
    }
}

/// A batch brings at most so many bytes.
pub async fn a_batch_of_too_many_bytes_is_refused(bench: Bench) {
    bench.define(policy()).await;
    let large = full_payload();
    let fits = BATCH_BYTES_MAX / PAYLOAD_BYTES_MAX;
    let new = |n: usize| NewRequest { payload: large.clone(), ..request(n as u64) };
    let batch = |count: usize| (0..count).map(|n| admit(vec![new(n)])).collect::<Vec<_>>();
    let over = bench.store().apply(batch(fits + 1)).await;
    let bytes = (fits + 1) * PAYLOAD_BYTES_MAX;
    assert_eq!(over, Err(StoreError::BatchTooLarge { ops: fits + 1, bytes }));
    assert_eq!(must(bench.store().counts().await, "counts"), []);
    assert_eq!(bench.batch(batch(fits)).await.len(), fits);
}

/// Parcels are bounded, one and all.
pub async fn the_largest_parcels(bench: Bench) {
    bench.define(RoutePolicy { publish_on: Gate::Seen, ..policy() }).await;
    let owner = bench.open_lane(crate::words::WINDOW_MAX).await;
    let numbers: Vec<u64> = (0..=PARCEL_MAX as u64).collect();
    bench.admit(requests(numbers.iter().copied())).await;
    let answers = bench.lease(PARCEL_MAX + 1).await.iter().map(|grant| answer(grant).into()).collect();
    assert!(bench.batch(answers).await.iter().all(Outcome::holds));
    let carry = |n| signed(n, AttemptKind::Carry);
    let over = bench.apply(assign(owner, 0, vec![parcel(&numbers, carry(0))])).await;
    let (count, max) = (PARCEL_MAX + 1, PARCEL_MAX);
    assert_eq!(over, Outcome::Invalid(Invalid::TooMany { what: "deliveries", count, max }));
    let most = bench.applied(assign(owner, 0, vec![parcel(&numbers[1..], carry(0))])).await;
    assert_eq!(most, Effect::Assigned(1, None));
    let fills = |count: usize| (0..count as u64).map(|n| parcel(&[], signed(n + 1, AttemptKind::Cancel))).collect();
    let over = bench.apply(assign(owner, 1, fills(ASSIGN_MAX + 1))).await;
    let (count, max) = (ASSIGN_MAX + 1, ASSIGN_MAX);
    assert_eq!(over, Outcome::Invalid(Invalid::TooMany { what: "parcels", count, max }));
    let most = bench.applied(assign(owner, 1, fills(ASSIGN_MAX))).await;
    assert_eq!(most, Effect::Assigned(ASSIGN_MAX, None));
}

/// Ids that share all but one bit are different, as requests and as occurrences.
pub async fn ids_that_share_a_prefix_are_different(mut bench: Bench) {
    bench.define(RoutePolicy { destination: None, ..policy() }).await;
    let ids: Vec<[u8; 32]> = (0..256)
        .map(|bit: usize| {
            let mut bytes = [0x55; 32];
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        })
        .collect();
    let new =
        |bytes: &[u8; 32]| NewRequest { id: RequestId(*bytes), occurrence: OccurrenceId(*bytes), ..final_request(1) };
    let all = || ids.iter().map(new).collect::<Vec<_>>();
    let admissions = bench.admit(all()).await;
    assert!(admissions.iter().all(|a| matches!(a, Admission::New { generation: 0 })));
    let grants = bench.lease(1000).await;
    assert_eq!(grants.iter().map(|grant| grant.id.0).collect::<Vec<_>>(), ids);
    bench.commit().await;
    // Settled and spilled, they are as different.
    for half in [&grants[..128], &grants[128..]] {
        assert!(bench.batch(half.iter().map(|grant| answer(grant).into()).collect()).await.iter().all(Outcome::holds));
        bench.restart().await;
    }
    for bytes in &ids {
        let found = must(bench.store().get(RequestId(*bytes)).await, "get");
        assert!(matches!(found, Some(Found::Ended(receipt)) if receipt.id.0 == *bytes));
    }
    let again = bench.admit(all()).await;
    assert!(again.iter().all(|a| matches!(a, Admission::Known { .. })), "{again:?}");
    assert_eq!(must(bench.store().get(RequestId([0x55; 32])).await, "get"), None);
}

/// An operation that is refused is refused alone; those around it apply, in order.
pub async fn a_refused_operation_is_refused_alone(bench: Bench) {
    bench.define(policy()).await;
    let nowhere = NewRequest { route: route_named("nowhere"), ..request(2) };
    let outcomes = bench
        .batch(vec![
            admit(vec![request(1)]),
            admit(vec![nowhere]),
            lease(5).into(),
            finalize(Token { epoch: 0, count: 0 }, 1).into(),
            admit(vec![request(3)]),
        ])
        .await;
    assert!(outcomes[0].holds());
    assert_eq!(outcomes[1], Outcome::Invalid(Invalid::UnknownRoute(route_named("nowhere"))));
    let Outcome::Applied(Effect::Leased(grants)) = &outcomes[2] else { panic!("{:?}", outcomes[2]) };
    assert_eq!(grants.iter().map(|grant| grant.id).collect::<Vec<_>>(), [id(1)], "a batch sees its own effects");
    assert!(matches!(outcomes[3], Outcome::Stale(Stale::Seat { holder: None, .. })), "{:?}", outcomes[3]);
    assert!(outcomes[4].holds());
}
