//! The worker: what it leases, keeps, passes on, records and gives back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use roundtrip::inbox::{End, StateKind};
use roundtrip::listener::{Ending, request_with_id};
use roundtrip::station::StationError;
use roundtrip::store::journal::Event;
use roundtrip::store::op::{Define, Effect, Gather, Lead, NewRequest, Op, Outcome, Seat};
use roundtrip::store::policy::RoutePolicy;
use roundtrip::store::{ReadExt, StoreError};
use roundtrip::testkit::faulty::{Cut, Faulty};
use roundtrip::testkit::observed::Observed;
use roundtrip::testkit::samples::{
    finalize, group, id, include, item, lead, orphan, policy, request, route, route_named, supersede, withdraw,
};
use roundtrip::testkit::slow::Slow;
use roundtrip::words::{ErrorClass, Payload, Token};
use roundtrip::worker::{
    Done, Failure, Handled, Job, JobNotice, RawHandler, Typed, WorkerOptions, handler_fn, raw_handler_fn,
};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::{Rig, Task, numbered, on_each_store};

on_each_store! {
    a_worker_drains_a_route_within_its_concurrency
    results_that_come_together_share_a_call
    a_heartbeat_keeps_a_long_job
    a_worker_paused_beyond_its_lease_cannot_write
    a_request_that_panics_ends_dead_while_others_proceed
    a_request_that_kills_its_worker_ends_dead_while_others_proceed
    a_handler_that_takes_too_long_has_failed
    shutdown_gives_leases_back_at_no_cost
    shutdown_lets_handlers_finish
    a_worker_may_wait_for_ever
    a_worker_takes_nothing_while_what_it_needs_is_away
    what_is_leased_while_stopping_is_given_back
    what_is_amended_before_a_grant_arrives_is_told
    superseded_work_is_stopped_at_no_cost
    withdrawn_work_is_stopped_and_its_result_dropped
    what_a_handler_returns_decides
    what_does_not_decode_is_a_dead_letter
    an_answer_brings_what_follows_from_it
    an_answer_waits_for_room
    an_answer_that_can_never_be_taken_ends_dead
    lost_answers_are_asked_for_again
    a_full_disk_is_waited_for
    a_fatal_store_error_ends_the_worker
    an_undefined_route_ends_the_worker
    work_that_comes_due_is_found_without_a_hint
    a_missed_wake_up_costs_a_poll_at_most
}

/// Without hints a heartbeat would tell of it, much later.
mod by_hints {
    use super::notices_reach_a_running_handler;

    super::super::on_stores_with_hints! {
        notices_reach_a_running_handler
    }
}

fn with(concurrency: usize) -> WorkerOptions {
    WorkerOptions { concurrency, ..WorkerOptions::default() }
}

fn square() -> impl RawHandler {
    Typed(handler_fn(|n: u64, _job| async move { Ok(n * n) }))
}

/// A handler that reports each start, and then works until it is stopped from outside.
fn endless() -> (impl RawHandler, mpsc::Receiver<Job>) {
    let (started, starts) = mpsc::channel(64);
    let handler = raw_handler_fn(move |_payload, job| {
        let started = started.clone();
        async move {
            started.send(job).await?;
            std::future::pending().await
        }
    });
    (handler, starts)
}

fn is_settled(end: &Ending) -> bool {
    matches!(end, Ending::Ended(receipt) if receipt.end == End::Settled)
}

async fn leads(rig: &Rig) -> Token {
    match rig.apply(Lead { seat: Seat::Route(route()), ..lead() }).await {
        Outcome::Applied(Effect::Led(token, _)) => token,
        other => panic!("no seat: {other:?}"),
    }
}

async fn a_worker_drains_a_route_within_its_concurrency(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    rig.admit((0..100).map(numbered).collect()).await;
    let (observed, record) = Observed::new(rig.store.clone());
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let peak = most.clone();
    let handler = handler_fn(move |n: u64, _job| {
        let (now, most) = (now.clone(), most.clone());
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(n)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(n)
        }
    });
    let hour = Duration::from_secs(3600);
    let worker = Task::of(rig.worker_on(Arc::new(observed), WorkerOptions { poll: hour, ..with(4) }, Typed(handler)));
    let begun = Instant::now();
    assert!(rig.ends((0..100).map(id)).await.iter().all(is_settled));
    assert!(begun.elapsed() < hour, "it goes on until nothing is left, and does not wait to be told");
    worker.stop().await;
    assert_eq!(peak.load(Ordering::SeqCst), 4);
    let leases = record.calls().into_iter().flat_map(|seen| seen.batch);
    let asked: Vec<usize> = leases.filter_map(|op| if let Op::Lease(op) = op { Some(op.max) } else { None }).collect();
    assert!(asked.iter().all(|&max| (1..=4).contains(&max)), "{asked:?}");
}

async fn results_that_come_together_share_a_call(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    rig.admit((0..40).map(numbered).collect()).await;
    let (observed, record) = Observed::new(rig.store.clone());
    let go = Arc::new(Notify::new());
    let gate = go.clone();
    let started = Arc::new(AtomicUsize::new(0));
    let handler = handler_fn(move |n: u64, _job| {
        let (gate, started) = (gate.clone(), started.clone());
        async move {
            if started.fetch_add(1, Ordering::SeqCst) + 1 == 40 {
                gate.notify_waiters();
            } else {
                gate.notified().await;
            }
            Ok(n)
        }
    });
    let worker = Task::of(rig.worker_on(Arc::new(observed), with(40), Typed(handler)));
    assert!(rig.ends((0..40).map(id)).await.iter().all(is_settled));
    worker.stop().await;
    drop(go);
    let is_answer = |op: &Op| matches!(op, Op::Answer(_));
    let calls = record.calls().into_iter().map(|seen| seen.batch.iter().filter(|op| is_answer(op)).count());
    assert_eq!(calls.filter(|&count| count > 0).collect::<Vec<_>>(), [40]);
}

async fn a_heartbeat_keeps_a_long_job(rig: Rig) {
    rig.define(RoutePolicy { lease_ms: 3000, ..RoutePolicy::default() }).await;
    rig.admit(vec![numbered(1)]).await;
    let _rescuer = rig.rescuer(Duration::from_millis(500));
    let handler = handler_fn(|n: u64, _job| async move {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(n)
    });
    let worker = Task::of(rig.worker(with(1), Typed(handler)));
    let started = Instant::now();
    assert!(rig.ends([id(1)]).await.iter().all(is_settled));
    assert!(started.elapsed() >= Duration::from_secs(60), "it took the whole time");
    assert_eq!(rig.count(id(1), |event| matches!(event, Event::Leased { .. })).await, 1);
    assert_eq!(rig.count(id(1), |event| matches!(event, Event::Failed { .. })).await, 0);
    worker.stop().await;
}

async fn a_worker_paused_beyond_its_lease_cannot_write(rig: Rig) {
    rig.define(policy()).await;
    rig.admit(vec![numbered(1)]).await;
    // The first worker gets a lease, and then no call of its passes the gate.
    let (slow, gate) = Slow::new(rig.store.clone());
    gate.let_through(1);
    let (started, mut starts) = mpsc::channel::<Job>(1);
    let resume = Arc::new(Notify::new());
    let resumed = resume.clone();
    let handler = raw_handler_fn(move |_payload, job| {
        let (started, resumed) = (started.clone(), resumed.clone());
        async move {
            started.send(job).await?;
            resumed.notified().await;
            Ok(Payload::raw("from the paused one").into())
        }
    });
    let paused = Task::of(rig.worker_on(Arc::new(slow), with(1), handler));
    let mut job = starts.recv().await.unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;
    rig.apply(Op::Rescue { limit: 1 }).await;

    let other = raw_handler_fn(|_payload, _job| async { Ok(Payload::raw("from the other").into()) });
    let worker = Task::of(rig.worker(with(1), other));
    let answered = roundtrip::listener::Submitter::new(rig.store.clone()).answered(id(1)).await.unwrap();
    assert_eq!(answered, Some(Ending::Answered(Payload::raw("from the other"))));

    // The paused one is told that it is too late, and answers all the same.
    gate.let_through(100);
    assert_eq!(job.changed().await, JobNotice::Withdrawn);
    resume.notify_one();
    paused.stop().await;
    worker.stop().await;
    let (view, bodies) = rig.live(id(1)).await;
    assert_eq!((view.phase.kind(), bodies.response), (StateKind::Ready, Some(Payload::raw("from the other"))));
    assert_eq!(rig.count(id(1), |event| *event == Event::Answered).await, 1);
}

async fn a_request_that_panics_ends_dead_while_others_proceed(rig: Rig) {
    rig.define(RoutePolicy { crashes_max: 3, ..RoutePolicy::default() }).await;
    rig.admit((0..20).map(numbered).collect()).await;
    let handler = handler_fn(|n: u64, _job| async move {
        assert_ne!(n, 7, "seven is poison");
        Ok(n)
    });
    let worker = Task::of(rig.worker(with(2), Typed(handler)));
    let ends = rig.ends((0..20).map(id)).await;
    assert!(ends.iter().enumerate().all(|(n, end)| n == 7 || is_settled(end)), "{ends:?}");
    let Ending::Dead(Some(error)) = &ends[7] else { panic!("{:?}", ends[7]) };
    assert_eq!(error.class, ErrorClass::Crash);
    assert!(error.text.starts_with("the handler panicked: ") && error.text.contains("seven is poison"), "{error:?}");
    let (view, _) = rig.live(id(7)).await;
    assert_eq!((view.attempts, view.crashes), (3, 3));
    worker.stop().await;
}

async fn a_request_that_kills_its_worker_ends_dead_while_others_proceed(rig: Rig) {
    rig.define(RoutePolicy { crashes_max: 3, lease_ms: 1000, ..RoutePolicy::default() }).await;
    rig.admit((0..20).map(numbered).collect()).await;
    for _ in 0..3 {
        let (poisoned, mut poison) = mpsc::channel::<()>(1);
        let handler = handler_fn(move |n: u64, _job| {
            let poisoned = poisoned.clone();
            async move {
                if n == 7 {
                    poisoned.send(()).await?;
                    std::future::pending::<()>().await;
                }
                Ok(n)
            }
        });
        let worker = Task::of(rig.worker(with(2), Typed(handler)));
        poison.recv().await.unwrap();
        worker.kill().await;
        tokio::time::sleep(Duration::from_millis(1001)).await;
        rig.apply(Op::Rescue { limit: 100 }).await;
    }
    assert_eq!(rig.state(id(7)).await, Some(StateKind::Dead));
    let worker = Task::of(rig.worker(with(2), square()));
    let ends = rig.ends((0..20).map(id)).await;
    assert!(ends.iter().enumerate().all(|(n, end)| n == 7 || is_settled(end)), "{ends:?}");
    let (view, _) = rig.live(id(7)).await;
    assert_eq!((view.crashes, view.error.unwrap().class), (3, ErrorClass::Crash));
    worker.stop().await;
}

async fn a_handler_that_takes_too_long_has_failed(rig: Rig) {
    rig.define(RoutePolicy { attempts_max: 2, ..RoutePolicy::default() }).await;
    rig.admit(vec![numbered(1)]).await;
    let (handler, mut starts) = endless();
    let options = WorkerOptions { timeout: Some(Duration::from_secs(5)), ..with(1) };
    let worker = Task::of(rig.worker(options, handler));
    let ends = rig.ends([id(1)]).await;
    let Ending::Dead(Some(error)) = &ends[0] else { panic!("{ends:?}") };
    assert_eq!((error.class, &*error.text), (ErrorClass::Retryable, "the handler took longer than 5000 ms"));
    assert_eq!([starts.recv().await.unwrap().attempt(), starts.recv().await.unwrap().attempt()], [1, 2]);
    worker.stop().await;
}

async fn shutdown_gives_leases_back_at_no_cost(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    rig.admit((0..5).map(numbered).collect()).await;
    let (handler, mut starts) = endless();
    let worker = Task::of(rig.worker(with(3), handler));
    for _ in 0..3 {
        starts.recv().await.unwrap();
    }
    let told = Instant::now();
    worker.stop().await;
    assert_eq!(told.elapsed(), WorkerOptions::default().grace, "no longer than the grace time");
    for n in 0..5 {
        let (view, _) = rig.live(id(n)).await;
        assert_eq!((view.phase.kind(), view.attempts, view.error), (StateKind::Queued, 0, None), "request {n}");
    }
}

async fn shutdown_lets_handlers_finish(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    rig.admit((0..5).map(numbered).collect()).await;
    let (started, mut starts) = mpsc::channel::<()>(8);
    let handler = handler_fn(move |n: u64, _job| {
        let started = started.clone();
        async move {
            started.send(()).await?;
            tokio::time::sleep(Duration::from_secs(10)).await;
            Ok(n)
        }
    });
    let worker = Task::of(rig.worker(with(2), Typed(handler)));
    starts.recv().await.unwrap();
    starts.recv().await.unwrap();
    worker.stop().await;
    let mut states = Vec::new();
    for n in 0..5 {
        states.push(rig.state(id(n)).await.unwrap());
    }
    use StateKind::{Queued, Settled};
    assert_eq!(states, [Settled, Settled, Queued, Queued, Queued], "nothing new was begun");
}

async fn a_worker_may_wait_for_ever(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    let ever = Duration::MAX;
    let options = WorkerOptions { timeout: Some(ever), grace: ever, poll: ever, ..with(1) };
    let worker = Task::of(rig.worker(options, square()));
    rig.admit(vec![numbered(1)]).await;
    let ends = tokio::time::timeout(Duration::from_secs(60), rig.ends([id(1)])).await.unwrap();
    assert!(ends.iter().all(is_settled), "a hint tells of it");
    worker.stop().await;
}

async fn a_worker_takes_nothing_while_what_it_needs_is_away(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    rig.admit(vec![numbered(1)]).await;
    let (say, open) = tokio::sync::watch::channel(false);
    let worker = Task::of(roundtrip::worker::Worker { open: Some(open), ..rig.worker(with(1), square()) });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.count(id(1), |event| matches!(event, Event::Leased { .. })).await, 0);
    say.send(true).unwrap();
    assert!(rig.ends([id(1)]).await.iter().all(is_settled));
    worker.stop().await;
}

async fn what_is_leased_while_stopping_is_given_back(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    rig.admit(vec![numbered(1)]).await;
    let (slow, gate) = Slow::new(rig.store.clone());
    let worker = Task::of(rig.worker_on(Arc::new(slow), with(1), square()));
    gate.arrived(1).await;
    worker.shutdown.cancel();
    gate.let_through(100);
    worker.stop().await;
    let (view, _) = rig.live(id(1)).await;
    assert_eq!((view.phase.kind(), view.attempts), (StateKind::Queued, 0));
    assert_eq!(rig.count(id(1), |event| *event == Event::Released).await, 1, "it was leased, and given back");
}

async fn what_is_amended_before_a_grant_arrives_is_told(rig: Rig) {
    rig.define(policy()).await;
    let lead = leads(&rig).await;
    rig.admit(vec![request(1)]).await;
    // The lease is made, and its grant is on its way for 10 ms.
    let faulty = Faulty::new(rig.store.clone(), Cut::After, 0);
    let (handler, mut starts) = endless();
    let worker = Task::of(rig.worker_on(Arc::new(faulty), with(1), handler));
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(rig.state(id(1)).await, Some(StateKind::Leased));
    rig.apply(orphan(lead, 1)).await;
    assert!(starts.try_recv().is_err(), "the grant has not arrived");
    let mut job = starts.recv().await.unwrap();
    assert_eq!(job.changed().await, JobNotice::Orphaned);
    assert!(begun.elapsed() < Duration::from_secs(1), "long before a heartbeat: {:?}", begun.elapsed());
    worker.kill().await;
}

async fn notices_reach_a_running_handler(rig: Rig) {
    rig.define(policy()).await;
    let lead = leads(&rig).await;
    rig.admit(vec![request(1)]).await;
    let (handler, mut starts) = endless();
    let worker = Task::of(rig.worker(with(1), handler));
    let mut job = starts.recv().await.unwrap();
    assert_eq!(job.notices(), []);
    let begun = Instant::now();
    for (amend, notice) in [
        (orphan(lead, 1), JobNotice::Orphaned),
        (include(lead, 1, 105), JobNotice::Included),
        (orphan(lead, 1), JobNotice::Orphaned),
        (include(lead, 1, 106), JobNotice::Included),
        (finalize(lead, 1), JobNotice::Finalized),
    ] {
        rig.apply(amend).await;
        assert_eq!(job.changed().await, notice);
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "long before a heartbeat: {:?}", begun.elapsed());
    assert_eq!(job.notices().len(), 5);
    worker.kill().await;
}

async fn superseded_work_is_stopped_at_no_cost(rig: Rig) {
    rig.define(policy()).await;
    let lead = leads(&rig).await;
    rig.admit(vec![request(1)]).await;
    let (started, mut starts) = mpsc::channel::<(Payload, Job)>(2);
    let handler = raw_handler_fn(move |payload: Payload, job: Job| {
        let started = started.clone();
        async move {
            started.send((payload.clone(), job.clone())).await?;
            if job.revision() == 0 {
                job.stopped().await;
                return Err(Failure::fatal("this says nothing about the new content"));
            }
            Ok(payload.into())
        }
    });
    let worker = Task::of(rig.worker(with(1), handler));
    starts.recv().await.unwrap();
    rig.apply(supersede(lead, 1, 1001, "second")).await;
    let (payload, job) = starts.recv().await.unwrap();
    assert_eq!((payload, job.revision(), job.attempt()), (Payload::raw("second"), 1, 1));
    worker.stop().await;
    let (view, bodies) = rig.live(id(1)).await;
    assert_eq!((view.phase.kind(), view.error), (StateKind::Waiting, None));
    assert_eq!(bodies.response, Some(Payload::raw("second")));
}

async fn withdrawn_work_is_stopped_and_its_result_dropped(rig: Rig) {
    rig.define(policy()).await;
    let lead = leads(&rig).await;
    rig.admit(vec![request(1), numbered(2)]).await;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = heard.clone();
    let (started, mut starts) = mpsc::channel::<Job>(2);
    let handler = raw_handler_fn(move |payload: Payload, job: Job| {
        let (started, hears) = (started.clone(), hears.clone());
        async move {
            started.send(job.clone()).await?;
            if job.id() == id(1) {
                job.stopped().await;
                *hears.lock().unwrap() = job.notices();
            }
            Ok(payload.into())
        }
    });
    let worker = Task::of(rig.worker(with(1), handler));
    starts.recv().await.unwrap();
    let begun = Instant::now();
    rig.apply(orphan(lead, 1)).await;
    rig.apply(withdraw(lead, 1)).await;
    // It goes on with the next.
    assert_eq!(starts.recv().await.unwrap().id(), id(2));
    assert!(begun.elapsed() < Duration::from_secs(1), "long before a heartbeat");
    worker.stop().await;
    assert_eq!(heard.lock().unwrap().last(), Some(&JobNotice::Withdrawn));
    assert_eq!(rig.state(id(1)).await, Some(StateKind::Withdrawn));
    assert_eq!(rig.count(id(1), |event| *event == Event::Answered).await, 0);
}

/// Each way to return, and what is left after it.
async fn what_a_handler_returns_decides(rig: Rig) {
    rig.define(RoutePolicy { publish_on: roundtrip::store::policy::Gate::Final, ..policy() }).await;
    rig.admit((0..6).map(numbered).collect()).await;
    let minute = Duration::from_secs(60);
    let handler = raw_handler_fn(move |payload: Payload, _job| async move {
        match &payload.bytes[..] {
            b"0" => Ok(Payload::raw("answer").into()),
            b"1" => Ok(Handled::Snooze(minute)),
            b"2" => Ok(Handled::cancel("not wanted")),
            b"3" => Err(Failure::retry("later").after(minute)),
            b"4" => Err(Failure::transport("no way").after(minute)),
            _ => Err(Failure::fatal("never").with_response(Payload::raw("sorry"))),
        }
    });
    let (observed, record) = Observed::new(rig.store.clone());
    let worker = Task::of(rig.worker_on(Arc::new(observed), with(6), handler));
    tokio::time::sleep(Duration::from_secs(1)).await;
    worker.stop().await;
    assert!(record.calls().iter().any(|seen| seen.batch.len() == 6), "all in one call");
    let note = |class, text: &str| Some((class, text.to_owned()));
    let expected = [
        (StateKind::Ready, 1, None, Some(Payload::raw("answer"))),
        (StateKind::Held, 0, None, None),
        (StateKind::Dead, 1, note(ErrorClass::Fatal, "not wanted"), None),
        (StateKind::Held, 1, note(ErrorClass::Retryable, "later"), None),
        (StateKind::Held, 0, note(ErrorClass::Transport, "no way"), None),
        (StateKind::Ready, 1, note(ErrorClass::Fatal, "never"), Some(Payload::raw("sorry"))),
    ];
    for (n, expected) in (0..).zip(expected) {
        let (view, bodies) = rig.live(id(n)).await;
        let error = view.error.map(|error| (error.class, error.text.to_string()));
        assert_eq!((view.phase.kind(), view.attempts, error, bodies.response), expected, "request {n}");
    }
    // What was put off comes back.
    let worker = Task::of(rig.worker(with(6), square()));
    let submitter = roundtrip::listener::Submitter::new(rig.store.clone());
    for (n, answer) in [(1, "1"), (3, "9"), (4, "16")] {
        let answered = submitter.answered(id(n)).await.unwrap();
        assert_eq!(answered, Some(Ending::Answered(Payload::json(answer))), "request {n}");
    }
    worker.stop().await;
}

async fn what_does_not_decode_is_a_dead_letter(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    rig.admit(vec![NewRequest { payload: Payload::json("\"seven\""), ..numbered(1) }, numbered(2)]).await;
    let worker = Task::of(rig.worker(with(1), square()));
    let ends = rig.ends([id(1), id(2)]).await;
    let Ending::Dead(Some(error)) = &ends[0] else { panic!("{ends:?}") };
    assert!(error.text.starts_with("the request does not decode: invalid type: string"), "{error:?}");
    assert_eq!(error.class, ErrorClass::Fatal);
    assert!(is_settled(&ends[1]));
    worker.stop().await;
}

async fn an_answer_brings_what_follows_from_it(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    rig.apply(Define { route: route_named("next"), policy: RoutePolicy::default() }).await;
    rig.admit(vec![numbered(1)]).await;
    let handler = handler_fn(|n: u64, _job| async move {
        let next = request_with_id(&route_named("next"), id(100 + n), Payload::json("null"));
        let gathered = Gather { group: group(), item: item(n), payload: Payload::json("true"), plan: None };
        Ok(Done::new(n).then(next).gather(gathered))
    });
    let (observed, record) = Observed::new(rig.store.clone());
    let worker = Task::of(rig.worker_on(Arc::new(observed), with(1), Typed(handler)));
    assert!(rig.ends([id(1)]).await.iter().all(is_settled));
    worker.stop().await;
    assert_eq!(rig.state(id(101)).await, Some(StateKind::Queued));
    assert_eq!(rig.store.group(group(), 0, 10).await.unwrap().unwrap().items, 1);
    let writes = record.calls().into_iter().flat_map(|seen| seen.batch).filter(|op| !op.may_be_forgotten());
    assert_eq!(writes.count(), 1, "one operation for all of it");
}

async fn an_answer_waits_for_room(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    let next = || route_named("next");
    rig.apply(Define { route: next(), policy: RoutePolicy { capacity: 1, ..RoutePolicy::default() } }).await;
    rig.admit(vec![numbered(1), request_with_id(&next(), id(100), Payload::default())]).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let handler = handler_fn(move |n: u64, _job| {
        counted.fetch_add(1, Ordering::SeqCst);
        let next = request_with_id(&route_named("next"), id(100 + n), Payload::json("null"));
        async move { Ok(Done::new(n).then(next)) }
    });
    let worker = Task::of(rig.worker(with(1), Typed(handler)));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(rig.state(id(1)).await, Some(StateKind::Leased), "the answer waits in the worker's hand");
    rig.apply(roundtrip::testkit::samples::mend(100, roundtrip::store::op::Remedy::Cancel)).await;
    assert!(rig.ends([id(1)]).await.iter().all(is_settled));
    assert_eq!((rig.state(id(101)).await, runs.load(Ordering::SeqCst)), (Some(StateKind::Queued), 1));

    // If no room comes, the request goes back, at no cost.
    rig.admit(vec![numbered(2)]).await;
    tokio::time::sleep(Duration::from_secs(12)).await;
    let (view, _) = rig.live(id(2)).await;
    assert_eq!((view.phase.kind(), view.attempts), (StateKind::Held, 0));
    assert_eq!(view.error.unwrap().class, ErrorClass::Transport);
    worker.stop().await;
}

async fn an_answer_that_can_never_be_taken_ends_dead(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    rig.admit(vec![numbered(1), numbered(2)]).await;
    let handler = handler_fn(|n: u64, _job| async move {
        let nowhere = request_with_id(&route_named("nowhere"), id(100), Payload::default());
        let done = Done::new(n);
        Ok(if n == 1 { done.then(nowhere) } else { done })
    });
    let worker = Task::of(rig.worker(with(2), Typed(handler)));
    let ends = rig.ends([id(1), id(2)]).await;
    let Ending::Dead(Some(error)) = &ends[0] else { panic!("{ends:?}") };
    assert!(error.text.starts_with("the answer was refused: route nowhere is not defined"), "{error:?}");
    assert!(is_settled(&ends[1]));
    worker.stop().await;
}

/// Every call of a run is cut, on either side of its commit; the run ends as if none had been.
async fn lost_answers_are_asked_for_again(rig: Rig) {
    rig.define(policy()).await;
    let mut next = 0;
    for cut in [Cut::Before, Cut::After] {
        for call in 0.. {
            let numbers = next..next + 3;
            next += 3;
            rig.admit(numbers.clone().map(numbered).collect()).await;
            let faulty = Arc::new(Faulty::new(rig.store.clone(), cut, call));
            let handler = handler_fn(|n: u64, job: Job| async move {
                assert_eq!(job.attempt(), 1, "nothing is worked on twice");
                Ok(n)
            });
            let worker = Task::of(rig.worker_on(faulty.clone(), with(2), Typed(handler)));
            let submitter = roundtrip::listener::Submitter::new(rig.store.clone());
            for n in numbers.clone() {
                let answered = submitter.answered(id(n)).await.unwrap();
                assert_eq!(answered, Some(Ending::Answered(Payload::json(n.to_string()))), "{cut:?} {call}");
                assert_eq!(rig.count(id(n), |event| *event == Event::Answered).await, 1);
            }
            worker.stop().await;
            if faulty.calls() <= call {
                assert!(call > 3, "a run has several calls");
                break;
            }
        }
    }
}

async fn a_full_disk_is_waited_for(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    rig.admit((0..10).map(numbered).collect()).await;
    let full = StoreError::DiskFull { path: "store.db".into() };
    let faulty = Faulty::with_error(rig.store.clone(), Cut::Before, 1..20, full);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let handler = handler_fn(move |n: u64, _job| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { Ok(n) }
    });
    let worker = Task::of(rig.worker_on(Arc::new(faulty), with(10), Typed(handler)));
    assert!(rig.ends((0..10).map(id)).await.iter().all(is_settled));
    assert_eq!(runs.load(Ordering::SeqCst), 10, "no answer was thrown away");
    worker.stop().await;
}

async fn a_fatal_store_error_ends_the_worker(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    rig.admit(vec![numbered(1)]).await;
    let failed = StoreError::Failed { path: "store.db".into(), reason: "a sync failed".into() };
    let faulty = Faulty::with_error(rig.store.clone(), Cut::Before, 1..usize::MAX, failed.clone());
    let worker = Task::of(rig.worker_on(Arc::new(faulty), with(1), square()));
    let ended = worker.ended().await.unwrap_err();
    assert!(matches!(&ended, StationError::Store(error) if *error == failed), "{ended}");
}

async fn an_undefined_route_ends_the_worker(rig: Rig) {
    let ended = Task::of(rig.worker(with(1), square())).ended().await.unwrap_err();
    assert!(ended.to_string().starts_with("route orders is not defined"), "{ended}");
}

async fn work_that_comes_due_is_found_without_a_hint(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    let due = Some(rig.clock.now().plus(5000).into());
    rig.admit(vec![NewRequest { due, ..numbered(1) }]).await;
    let worker = Task::of(rig.worker(with(1), square()));
    let begun = Instant::now();
    assert!(rig.ends([id(1)]).await.iter().all(is_settled));
    assert!((5..7).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    worker.stop().await;
}

/// However long nothing came, what comes is leased within one interval of polling.
async fn a_missed_wake_up_costs_a_poll_at_most(rig: Rig) {
    rig.define(RoutePolicy::default()).await;
    let options = with(1);
    let poll = options.poll;
    let worker = Task::of(rig.worker(options, square()));
    for n in 1..=20 {
        tokio::time::sleep(Duration::from_millis(n * 137)).await;
        let admitted = rig.clock.now();
        rig.admit(vec![numbered(n)]).await;
        assert!(rig.ends([id(n)]).await.iter().all(is_settled));
        let told = rig.store.timeline(id(n)).await.unwrap();
        let leased = told.iter().find(|entry| matches!(entry.event, Event::Leased { .. })).unwrap();
        let waited = Duration::from_millis(leased.at.0 - admitted.0);
        assert!(waited <= poll, "request {n} waited for {waited:?}");
    }
    worker.stop().await;
}

/// A run under a paused clock repeats exactly: the same seed, the same journal.
#[tokio::test(start_paused = true)]
async fn a_run_repeats_exactly() {
    let mut journals = Vec::new();
    for _ in 0..2 {
        let rig = Rig::in_memory();
        rig.define(RoutePolicy::default()).await;
        rig.admit((0..50).map(numbered).collect()).await;
        let handler = handler_fn(|n: u64, job: Job| async move {
            tokio::time::sleep(Duration::from_millis(n * 37 % 11)).await;
            if n.is_multiple_of(5) && job.attempt() == 1 {
                return Err(Failure::retry("once more"));
            }
            Ok(n)
        });
        let worker = Task::of(rig.worker(with(3), Typed(handler)));
        assert!(rig.ends((0..50).map(id)).await.iter().all(is_settled));
        worker.stop().await;
        let page = rig.store.journal(1, 1000).await.unwrap();
        journals.push(page.entries.into_iter().map(|entry| (entry.at, entry.subject, entry.event)).collect::<Vec<_>>());
    }
    assert!(journals[0].len() >= 200, "{}", journals[0].len());
    assert_eq!(journals[0], journals[1]);
}
