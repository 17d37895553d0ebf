//! The reads: exact, paged, bounded; and the hints that something changed.

use std::sync::{Arc, Mutex, PoisonError};

use crate::inbox::{End, StateKind};
use crate::sender::{AttemptKind, AttemptNote, ParcelStage};
use crate::store::journal::{Event, Subject};
use crate::store::op::{
    Admit, AfterCancel, CursorMove, Define, Fail, Judgement, NewRequest, Remedy, Seat, Sight, Verdict,
};
use crate::store::policy::RoutePolicy;
use crate::store::query::{Count, ListFilter};
use crate::store::witness::{LaneStep, Move, RequestStep, Witness};
use crate::store::{ReadExt, Topic};
use crate::testkit::bench::{Bench, OPTIONS, START, must};
use crate::testkit::samples::*;
use crate::words::{ErrorClass, ErrorNote, Nonce, RequestId};

async fn listed(bench: &Bench, filter: ListFilter) -> Vec<RequestId> {
    let mut filter = filter;
    let mut ids = Vec::new();
    loop {
        let page = must(bench.store().list(filter.clone()).await, "list");
        assert!(page.requests.len() <= filter.limit, "no more than asked for");
        ids.extend(page.requests.iter().map(|request| request.id));
        match page.next {
            None => return ids,
            next => filter.after = next,
        }
    }
}

/// Lists show what their filter asks for, oldest first, page by page.
pub async fn lists_are_filtered_and_paged(bench: Bench) {
    bench.define(policy()).await;
    let other = Define { route: route_named("other"), policy: policy() };
    bench.applied(other).await;
    bench.admit(requests([1, 2, 3])).await;
    bench.clock.advance_ms(1000);
    bench.admit(vec![NewRequest { route: route_named("other"), ..request(4) }, request(5)]).await;
    let [one, two] = &bench.lease(2).await[..] else { panic!("two were queued") };
    let error = ErrorNote::new(ErrorClass::Fatal, "no such pair: ETH/XYZ");
    bench.applied(Fail { error, verdict: Verdict::Dead { response: None }, ..fail(one, ErrorClass::Fatal) }).await;
    bench.applied(fail(two, ErrorClass::Retryable)).await;
    let all = || ListFilter { limit: 2, ..ListFilter::default() };
    let cases: [(ListFilter, &[u64]); 13] = [
        (all(), &[1, 2, 3, 4, 5]),
        (ListFilter { limit: 1000, ..all() }, &[1, 2, 3, 4, 5]),
        (ListFilter { route: Some(route()), ..all() }, &[1, 2, 3, 5]),
        (ListFilter { route: Some(route_named("nowhere")), ..all() }, &[]),
        (ListFilter { states: vec![StateKind::Dead], ..all() }, &[1]),
        (ListFilter { states: vec![StateKind::Dead, StateKind::Queued], ..all() }, &[1, 2, 3, 4, 5]),
        (ListFilter { from: Some(START.plus(1000)), ..all() }, &[4, 5]),
        (ListFilter { to: Some(START.plus(1000)), ..all() }, &[1, 2, 3]),
        (ListFilter { error_text: Some("ETH/".into()), ..all() }, &[1]),
        (ListFilter { error_text: Some("No Such pair: eth/x".into()), ..all() }, &[1]),
        (ListFilter { error_text: Some("eth/usd".into()), ..all() }, &[]),
        (all().with_id_prefix(id(3).0.to_vec()), &[3]),
        (all().with_id_prefix(id(3).0[..24].to_vec()), &[1, 2, 3, 4, 5]),
    ];
    for (filter, numbers) in cases {
        let expected: Vec<_> = numbers.iter().map(|&n| id(n)).collect();
        assert_eq!(listed(&bench, filter.clone()).await, expected, "{filter:?}");
    }
}

/// Every listener's cursor is shown, by the listener's name.
pub async fn cursors_are_listed(mut bench: Bench) {
    bench.define(policy()).await;
    assert_eq!(must(bench.store().cursors().await, "cursors"), []);
    for (name, height) in [("b", 7), ("a", 5)] {
        let listener = listener_named(name);
        let cursor = Some(CursorMove { listener, expected: None, next: position(height) });
        bench.applied(Admit { cursor, requests: Vec::new() }).await;
    }
    for _ in 0..2 {
        let cursors = must(bench.store().cursors().await, "cursors");
        let shown: Vec<_> =
            cursors.iter().map(|(name, cursor)| (name.as_str(), cursor.version, cursor.at.height.0)).collect();
        assert_eq!(shown, [("a", 1, 5), ("b", 1, 7)]);
        bench.restart().await;
    }
}

/// Counts say how many live requests are in each state, and since when.
pub async fn counts_are_exact(mut bench: Bench) {
    bench.define(policy()).await;
    bench.admit(requests([1, 2])).await;
    bench.clock.advance_ms(50);
    bench.admit(requests([3, 4])).await;
    let grants = bench.lease(2).await;
    bench.applied(answer(&grants[1])).await;
    let lead = bench.lead(Seat::Route(route())).await;
    bench.applied(elsewhere(lead, 3)).await;
    let count = |state, requests, oldest_at| Count { route: route(), state, requests, oldest_at };
    let expected = [
        count(StateKind::Queued, 1, START.plus(50)),
        count(StateKind::Leased, 1, START),
        count(StateKind::Waiting, 1, START),
    ];
    for _ in 0..2 {
        assert_eq!(must(bench.store().counts().await, "counts"), expected);
        bench.commit().await;
        bench.restart().await;
    }
}

/// A timeline tells a request's whole story, after its end and a restart too.
pub async fn a_timeline_tells_the_story(mut bench: Bench) {
    bench.define(RoutePolicy { destination: None, ..policy() }).await;
    let lead = bench.lead(Seat::Route(route())).await;
    bench.admit(requests([1, 2])).await;
    let grant = bench.lease_one().await;
    bench.applied(fail(&grant, ErrorClass::Retryable)).await;
    let grant = bench.lease_one().await;
    bench.applied(answer(&grant)).await;
    bench.clock.advance_ms(5);
    bench.applied(finalize(lead, 1)).await;
    let leased = |attempt| Event::Leased { worker: worker(), attempt };
    let story = [
        Event::Admitted { generation: 0, trace: None },
        leased(1),
        Event::Failed { error: note(ErrorClass::Retryable), due: START },
        leased(2),
        Event::Answered,
        Event::Finalized,
        Event::Ended { end: End::Settled },
    ];
    for _ in 0..2 {
        let entries = must(bench.store().timeline(id(1)).await, "timeline");
        assert_eq!(entries.iter().map(|entry| entry.event.clone()).collect::<Vec<_>>(), story);
        assert!(entries.iter().all(|entry| entry.subject == Subject::Request(id(1)) && entry.route == Some(route())));
        assert!(entries.is_sorted_by_key(|entry| entry.position));
        assert_eq!(entries.last().map(|entry| entry.at), Some(START.plus(5)));
        bench.restart().await;
    }
    assert_eq!(must(bench.store().timeline(id(9)).await, "timeline"), []);
}

/// Whatever is signed for a slot stands in the timeline of each request that is on it, with what it
/// offers; wishes to cancel it too. What carries nothing is told of its lane alone.
pub async fn a_timeline_tells_of_every_attempt(mut bench: Bench) {
    bench.define(policy()).await;
    let owner = bench.open_lane(4).await;
    for n in [1, 2] {
        bench.answered(n).await;
    }
    let (carry, cancels) = (AttemptKind::Carry, AttemptKind::Cancel);
    bench.applied(assign(owner, 0, vec![parcel(&[1, 2], signed(1, carry)), parcel(&[], signed(9, cancels))])).await;
    bench.restart().await;
    bench.applied(attempt(owner, 0, signed(2, carry))).await;
    bench.applied(attempt(owner, 1, signed(8, cancels))).await;
    bench.applied(cancel(0, AfterCancel::Requeue)).await;
    bench.restart().await;
    bench.applied(attempt(owner, 0, signed(3, cancels))).await;
    bench.apply(attempt(owner, 0, signed(3, cancels))).await;
    bench.restart().await;
    bench.applied(settle(owner, 0, ParcelStage::Assigned, Sight::Final(block(2, 9), Judgement::Done))).await;
    let noted = |n: u64, kind| AttemptNote { hash: attempt_hash(n), kind, fee: Some(n.into()) };
    let nonce = Nonce(0);
    let sent = [
        Event::Assigned { lane: lane(), nonce, attempt: noted(1, carry) },
        Event::Attempted { nonce, attempt: noted(2, carry) },
        Event::CancelWished { nonce, then: AfterCancel::Requeue },
        Event::Attempted { nonce, attempt: noted(3, cancels) },
        // Its block and that it is final came at once.
        Event::Mined { block: block(2, 9) },
        Event::Ended { end: End::Settled },
    ];
    for _ in 0..2 {
        for n in [1, 2] {
            let entries = must(bench.store().timeline(id(n)).await, "timeline");
            let events: Vec<Event> = entries.iter().map(|entry| entry.event.clone()).collect();
            assert_eq!(events[3..], sent, "request {n}, after admitted, leased, answered");
        }
        bench.restart().await;
    }
    let page = must(bench.store().journal(1, 1000).await, "journal");
    let of_lane = page.entries.iter().filter(|entry| entry.subject == Subject::Lane(lane()));
    let attempted = of_lane.filter_map(|entry| match &entry.event {
        Event::Attempted { nonce, attempt } => Some((nonce.0, *attempt)),
        _ => None,
    });
    assert_eq!(attempted.collect::<Vec<_>>(), [(0, noted(2, carry)), (1, noted(8, cancels)), (0, noted(3, cancels))]);
}

/// The journal is read page by page; a reader that fell behind, or that is ahead of a
/// store that was rolled back, is told.
pub async fn the_journal_is_paged_and_bounded(mut bench: Bench) {
    bench.define(policy()).await;
    let entries = OPTIONS.journal_entries;
    bench.admit(requests(0..50)).await;
    let page = must(bench.store().journal(0, 7).await, "journal");
    assert_eq!((page.entries.len(), page.reset), (7, false));
    let (mut from, mut seen) = (1, Vec::new());
    while from < page.head {
        let next = must(bench.store().journal(from, 7).await, "journal");
        assert!(!next.entries.is_empty() && !next.reset);
        from = next.entries[next.entries.len() - 1].position + 1;
        seen.extend(next.entries.into_iter().map(|entry| entry.position));
    }
    assert_eq!(seen, (1..page.head).collect::<Vec<_>>(), "every position once");
    let ahead = must(bench.store().journal(page.head + 1, 7).await, "journal");
    assert!(ahead.reset && ahead.entries.is_empty());
    bench.admit(requests(50..50 + entries)).await;
    for _ in 0..2 {
        let page = must(bench.store().journal(1, 7).await, "journal");
        assert!(page.reset, "the reader missed entries");
        assert_eq!(page.entries.first().map(|entry| entry.position), Some(page.head - entries));
        let floor = must(bench.store().journal(page.head - entries, 7).await, "journal");
        assert!(!floor.reset);
        assert_eq!(must(bench.store().timeline(id(1)).await, "timeline"), [], "its entries are forgotten");
        bench.restart().await;
    }
    // Positions go on where they were, over restarts.
    let head = must(bench.store().journal(0, 1).await, "journal").head;
    bench.admit(requests([9_999])).await;
    let timeline = must(bench.store().timeline(id(9_999)).await, "timeline");
    assert_eq!(timeline.iter().map(|entry| entry.position).collect::<Vec<_>>(), [head]);
}

/// Answers that wait for a slot are shown in the order of their requests.
pub async fn ready_answers_are_shown_in_order(mut bench: Bench) {
    bench.define(policy()).await;
    bench.admit((1..=3).map(final_request).collect()).await;
    let grants = bench.lease(3).await;
    for at in [2, 0, 1] {
        bench.applied(answer(&grants[at])).await;
    }
    for _ in 0..2 {
        let ready = must(bench.store().ready(destination(), 2).await, "ready");
        assert_eq!(ready.iter().map(|ready| ready.id).collect::<Vec<_>>(), [id(1), id(2)]);
        assert!(ready.iter().all(|ready| ready.response == response() && !ready.failure));
        assert_eq!(must(bench.store().ready(other_destination(), 9).await, "ready"), []);
        bench.restart().await;
    }
}

/// A hint comes first of all, and then after every change of its topic.
pub async fn changes_are_hinted(bench: Bench) {
    bench.define(policy()).await;
    let lead = bench.lead(Seat::Route(route())).await;
    let mut inbox = bench.store().changes(Topic::Inbox(route()));
    let mut outbox = bench.store().changes(Topic::Outbox(destination()));
    let mut amendments = bench.store().changes(Topic::Amendments);
    let mut journal = bench.store().changes(Topic::Journal);
    for changes in [&mut inbox, &mut outbox, &mut amendments, &mut journal] {
        assert!(changes.changed().await, "a reader looks once at once");
    }
    bench.admit(vec![request(1)]).await;
    assert!(inbox.changed().await && journal.changed().await);
    let grant = bench.lease_one().await;
    bench.applied(finalize(lead, 1)).await;
    assert!(amendments.changed().await && journal.changed().await);
    bench.applied(answer(&grant)).await;
    assert!(outbox.changed().await && journal.changed().await);
    // The journal grows also where nobody has anything to do.
    bench.applied(mend(1, Remedy::Cancel)).await;
    assert!(journal.changed().await);
}

/// Keeps what it is told.
#[derive(Debug, Default)]
struct Notebook(Mutex<Vec<Move>>);

impl Notebook {
    fn take(&self) -> Vec<Move> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Witness for Notebook {
    fn saw(&self, moves: &[Move]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(moves);
    }
}

/// A witness is told of each step once, by the time its caller is answered, and of no repeat.
pub async fn a_witness_is_told_of_each_step(bench: Bench) {
    let notebook = Arc::new(Notebook::default());
    bench.store().witness(notebook.clone());
    bench.define(policy()).await;
    let owner = bench.open_lane(4).await;
    let moved = |n, after_ms, step| {
        let (admitted_at, at) = (START, START.plus(after_ms));
        Move::Request { id: id(n), generation: 0, route: route(), admitted_at, at, step }
    };
    bench.admit(vec![final_request(1), final_request(2)]).await;
    let both = [moved(1, 0, RequestStep::Admitted), moved(2, 0, RequestStep::Admitted)];
    assert_eq!(notebook.take(), both);
    bench.admit(vec![final_request(1)]).await;
    assert_eq!(notebook.take(), [], "it was known");
    bench.clock.advance_ms(5);
    let [one, two] = &bench.lease(2).await[..] else { panic!("two were queued") };
    bench.applied(answer(one)).await;
    bench.apply(answer(one)).await;
    bench.applied(fail(two, ErrorClass::Retryable)).await;
    let leased = RequestStep::Leased { attempt: 1 };
    let worked = [
        moved(1, 5, leased.clone()),
        moved(2, 5, leased),
        moved(1, 5, RequestStep::Answered),
        moved(2, 5, RequestStep::Failed(ErrorClass::Retryable)),
    ];
    assert_eq!(notebook.take(), worked, "a repeat is no step");
    bench.applied(assign(owner, 0, vec![parcel(&[1], signed(1, AttemptKind::Carry))])).await;
    bench.applied(attempt(owner, 0, signed(2, AttemptKind::Carry))).await;
    bench.clock.advance_ms(7);
    let settled = Sight::Final(block(2, 9), Judgement::Done);
    bench.applied(settle(owner, 0, ParcelStage::Assigned, settled)).await;
    let attempted = Move::Lane { lane: lane(), step: LaneStep::Attempted };
    let sent = [
        moved(1, 5, RequestStep::Assigned(lane())),
        attempted,
        moved(1, 12, RequestStep::Mined),
        moved(1, 12, RequestStep::Ended(End::Settled)),
    ];
    assert_eq!(notebook.take(), sent);
}
