//! Four processes with eight workers each on one store. One is killed and another stopped beyond its leases while they
//! hold requests, and goes on as if nothing had been.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use roundtrip::clock::SystemClock;
use roundtrip::inbox::{End, StateKind};
use roundtrip::listener::Ending;
use roundtrip::store::archive::{Place, verify};
use roundtrip::store::journal::Event;
use roundtrip::store::op::Op;
use roundtrip::store::policy::{Backoff, RoutePolicy};
use roundtrip::store::query::{Found, Phase};
use roundtrip::store::{Options, ReadExt, open};
use roundtrip::testkit::bench::Harness;
use roundtrip::testkit::samples::id;
use roundtrip::words::RequestId;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Rig, numbered};
use crate::sharing::HAPPEN_MAX;

const PROCESSES: usize = 4;
const WORKERS_EACH: &str = "8";
const LEASE_MS: u64 = 1500;
/// So many requests are asked at a time.
const ASKED: u64 = 100;
/// So many before any process dies.
const ASKED_FIRST: u64 = 500;

/// Whoever waits longer for a commit waits for a process that was stopped in one.
const COMMIT_MAX: Duration = Duration::from_millis(500);

/// Who is killed, and who is stopped.
const KILLED: usize = 0;
const STOPPED: usize = 1;

/// A process with workers, which goes with this.
struct Process(Child);

impl Process {
    /// Starts the one with this number, and passes on what it tells.
    fn start(number: usize, url: &str, lines: mpsc::UnboundedSender<(usize, String)>) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_victim"));
        command.args(["work", url, WORKERS_EACH]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let told = BufReader::new(child.stdout.take().unwrap()).lines();
        // It ends with the process.
        std::thread::spawn(move || told.map_while(Result::ok).try_for_each(|line| lines.send((number, line))));
        Process(child)
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.0.id().to_string()).status().unwrap();
        assert!(sent.success(), "kill -{name}: {sent}");
    }

    /// Has it let go of what it holds.
    fn go_on(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    /// Tells it to stop, and waits until it has.
    fn stop(mut self) {
        drop(self.0.stdin.take());
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Process {
    /// One that was stopped, too; one that has ended needs nothing.
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// What processes told.
struct Heard {
    lines: mpsc::UnboundedReceiver<(usize, String)>,
    ready: usize,
    finished: usize,
    /// Who began each request, and under which lease.
    began: HashMap<RequestId, Vec<(usize, String)>>,
    /// What each process held, and under which lease at last.
    held: [BTreeMap<RequestId, String>; PROCESSES],
    keys: HashSet<String>,
}

impl Heard {
    fn new(lines: mpsc::UnboundedReceiver<(usize, String)>) -> Heard {
        Heard { lines, ready: 0, finished: 0, began: HashMap::new(), held: Default::default(), keys: HashSet::new() }
    }

    /// Listens until this is so.
    async fn until(&mut self, what: &str, holds: impl Fn(&Heard) -> bool) {
        let hear = async {
            while !holds(self) {
                let (by, line) = self.lines.recv().await.unwrap();
                self.hears(by, &line);
            }
        };
        assert!(timeout(HAPPEN_MAX, hear).await.is_ok(), "not so after {HAPPEN_MAX:?}: {what}");
    }

    fn hears(&mut self, by: usize, line: &str) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["ready"] => self.ready += 1,
            ["finished"] => self.finished += 1,
            ["began", id, key] => {
                assert!(self.keys.insert(key.to_owned()), "lease {key} was granted twice");
                self.began.entry(id.parse().unwrap()).or_default().push((by, key.to_owned()));
            }
            ["holds", id, key] => _ = self.held[by].insert(id.parse().unwrap(), key.to_owned()),
            _ => panic!("what is this? {line}"),
        }
    }

    /// Whether all requests up to this one were begun.
    fn are_begun(&self, asked: u64) -> bool {
        self.began.len() as u64 == asked
    }

    /// Whether somebody else has whatever this process held.
    fn are_taken_over(&self, from: usize) -> bool {
        self.held[from].keys().all(|id| self.began[id].last().is_some_and(|(by, _)| *by != from))
    }
}

/// Who asks.
struct Asking {
    rig: Rig,
    asked: u64,
}

impl Asking {
    /// Asks for more until this is so.
    async fn until(&mut self, heard: &mut Heard, what: &str, holds: impl Fn(&Heard) -> bool) {
        while !holds(heard) {
            self.more().await;
            heard.until(what, |heard| holds(heard) || heard.are_begun(self.asked)).await;
        }
    }

    async fn more(&mut self) {
        self.rig.admit((self.asked..self.asked + ASKED).map(numbered).collect()).await;
        self.asked += ASKED;
    }

    /// Stops a process that holds nobody up: in the middle of a commit it would on Postgres, until the server ends its
    /// transaction.
    async fn stop_between_commits(&self, process: &Process) {
        let stop = async {
            loop {
                process.signal("STOP");
                if timeout(COMMIT_MAX, self.rig.apply(Op::Rescue { limit: 1 })).await.is_ok() {
                    break;
                }
                process.signal("CONT");
            }
        };
        assert!(timeout(HAPPEN_MAX, stop).await.is_ok(), "always in the middle of a commit");
    }

    /// What a process held is with whoever took it over, and holds it too, although that process has said its own of it
    /// since; or was handed out once more, if that one was too slow as well.
    async fn check_taken_over(&self, id: RequestId, lost: &str) {
        let found = self.rig.store.get(id).await.unwrap();
        let leases = self.rig.count(id, |event| matches!(event, Event::Leased { .. })).await;
        let is_others = match &found {
            Some(Found::Live(view, _)) => match &view.phase {
                Phase::Leased { token, .. } => token.to_string() != lost,
                phase => phase.kind() == StateKind::Queued,
            },
            _ => false,
        };
        assert!(is_others || leases > 2, "after {leases} leases {lost} was taken: {found:?}");
    }

    /// Waits until all is answered.
    async fn answered(&self) {
        for end in self.rig.ends((0..self.asked).map(id)).await {
            assert!(matches!(end, Ending::Ended(receipt) if receipt.end == End::Settled), "{end:?}");
        }
    }

    /// Each request has one answer, and one end.
    async fn check(&self, heard: &Heard) {
        for n in 0..self.asked {
            let told = self.rig.store.timeline(id(n)).await.unwrap();
            let count = |event: fn(&Event) -> bool| told.iter().filter(|entry| event(&entry.event)).count();
            let ends =
                (count(|event| matches!(event, Event::Answered)), count(|event| matches!(event, Event::Ended { .. })));
            assert_eq!(ends, (1, 1), "request {n}: {told:?}");
            // What a process died with may not have been told.
            assert!(count(|event| matches!(event, Event::Leased { .. })) >= heard.began[&id(n)].len(), "{told:?}");
        }
        assert_eq!(self.rig.store.counts().await.unwrap(), []);
    }
}

async fn share_a_store(server: impl Harness) {
    let Some(Place::Url(url)) = server.place() else { panic!("processes share a server") };
    let store = open(&url, Options::default()).unwrap();
    let mut asking = Asking { rig: Rig::new(store, Arc::new(SystemClock::new()), None), asked: 0 };
    let policy =
        RoutePolicy { lease_ms: LEASE_MS, crashes_max: u16::MAX, backoff: Backoff::NONE, ..RoutePolicy::default() };
    asking.rig.define(policy).await;
    let (lines, told) = mpsc::unbounded_channel();
    let mut processes: Vec<_> = (0..PROCESSES).map(|number| Process::start(number, &url, lines.clone())).collect();
    let mut heard = Heard::new(told);
    heard.until("all are ready", |heard| heard.ready == PROCESSES).await;

    // One dies while it holds something, and all are at work.
    while asking.asked < ASKED_FIRST {
        asking.more().await;
    }
    let all_hold = |heard: &Heard| heard.held.iter().all(|held| !held.is_empty());
    asking.until(&mut heard, "every process holds something", all_hold).await;
    processes[KILLED].signal("KILL");
    heard.until("everything was begun", |heard| heard.are_begun(asking.asked)).await;
    heard.until("others have what the killed one held", |heard| heard.are_taken_over(KILLED)).await;

    // Another stands still, and goes on when others have what it held: nothing that it says of that is taken.
    asking.stop_between_commits(&processes[STOPPED]).await;
    let lost = heard.held[STOPPED].clone();
    heard.until("others have what the stopped one held", |heard| heard.are_taken_over(STOPPED)).await;
    processes[STOPPED].go_on();
    processes[STOPPED].signal("CONT");
    let before: HashSet<RequestId> = heard.began.keys().copied().collect();
    let is_back = |heard: &Heard| {
        let mut new = heard.began.iter().filter(|(id, _)| !before.contains(id));
        new.any(|(_, began)| began.iter().any(|(by, _)| *by == STOPPED))
    };
    asking.until(&mut heard, "the one that was stopped works on", is_back).await;
    for (id, key) in lost {
        asking.check_taken_over(id, &key).await;
    }

    processes.iter_mut().skip(STOPPED + 1).for_each(Process::go_on);
    asking.answered().await;
    tokio::task::block_in_place(|| processes.into_iter().skip(KILLED + 1).for_each(Process::stop));
    heard.until("all but one have told everything", |heard| heard.finished == PROCESSES - 1).await;
    asking.check(&heard).await;
    asking.rig.store.close().await.unwrap();
    assert_eq!(verify(server.place().unwrap()).await.unwrap().faults, []);
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_a_store_on_postgres() {
    share_a_store(crate::postgres::OnServer::default()).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_a_store_on_redis() {
    share_a_store(crate::redis::OnServer::default()).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_a_store_on_a_cluster() {
    share_a_store(crate::redis::OnServer::on_cluster()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_a_store_by_polling_on_postgres() {
    share_a_store(crate::postgres::OnServer::default().by_polling()).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_a_store_by_polling_on_redis() {
    share_a_store(crate::redis::OnServer::default().by_polling()).await;
}
