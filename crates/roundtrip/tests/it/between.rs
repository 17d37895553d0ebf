//! Between a store and its server: connections that break in the middle of a commit, stand still, or go silent.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use roundtrip::store::op::{Admit, Define, NewRequest, Outcome};
use roundtrip::store::policy::{QueueOrder, RoutePolicy};
use roundtrip::store::{ReadExt, Store, StoreError, StoreExt, Topic};
use roundtrip::testkit::samples::{destination, policy, request, route};
use roundtrip::words::OrderKey;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::sharing::HAPPEN_MAX;

/// Where a server is.
#[derive(Clone)]
pub(crate) enum To {
    #[cfg(feature = "redis")]
    Address(String),
    #[cfg(feature = "postgres")]
    Socket(PathBuf),
}

trait Both: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Both for T {}

impl To {
    async fn connect(&self) -> Box<dyn Both> {
        match self {
            #[cfg(feature = "redis")]
            To::Address(address) => Box::new(TcpStream::connect(address).await.unwrap()),
            #[cfg(feature = "postgres")]
            To::Socket(path) => Box::new(UnixStream::connect(path).await.unwrap()),
        }
    }
}

/// Lets everything through until it is told to meddle with what is said next of one kind, such as commits.
pub(crate) struct Between {
    pub(crate) address: String,
    pub(crate) meddling: Arc<Meddling>,
}

#[derive(Default)]
pub(crate) struct Meddling {
    how: Mutex<Option<How>>,
    pub(crate) caught: Notify,
    pub(crate) go_on: Notify,
    /// The store has let go of a connection that was meddled with.
    pub(crate) left: Notify,
}

/// What becomes of what is said next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// It is held back until somebody says so.
    Hold,
    /// The connection breaks before it.
    CutBefore,
    /// The connection breaks after it, with the answer.
    CutAfter,
    /// The connection stays, and nothing comes back on it any more.
    Silence,
}

impl Between {
    /// Before a server, to which nothing says this but what is to be meddled with.
    pub(crate) async fn open(to: To, says: &'static [u8]) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let meddling = Arc::new(Meddling::default());
        let meddler = meddling.clone();
        tokio::spawn(async move {
            while let Ok((from, _)) = listener.accept().await {
                tokio::spawn(carry(from, to.connect().await, says, meddler.clone()));
            }
        });
        Between { address, meddling }
    }

    pub(crate) fn meddle(&self, how: How) {
        *self.meddling.how.lock().unwrap() = Some(how);
    }

    /// Waits until it does.
    pub(crate) async fn happens(&self, what: &Notify) {
        assert!(timeout(HAPPEN_MAX, what.notified()).await.is_ok(), "it does not happen within {HAPPEN_MAX:?}");
    }
}

async fn carry(from: TcpStream, to: Box<dyn Both>, says: &[u8], meddling: Arc<Meddling>) {
    let ((mut from_read, from_write), (to_read, mut to_write)) = (from.into_split(), tokio::io::split(to));
    let (mute, muted) = tokio::sync::oneshot::channel();
    let (back, mut mute, mut meddled) = (tokio::spawn(carry_back(to_read, from_write, muted)), Some(mute), false);
    let (mut bytes, mut buffer) = (vec![0; 1 << 16], Vec::new());
    while let Ok(count @ 1..) = from_read.read(&mut bytes).await {
        buffer.extend(&bytes[..count]);
        let is_said = buffer.windows(says.len()).any(|window| window == says);
        let how = is_said.then(|| meddling.how.lock().unwrap().take()).flatten();
        if how == Some(How::Silence) {
            mute.take().unwrap().send(()).unwrap();
        }
        if how.is_some() {
            meddling.caught.notify_one();
            meddled = true;
        }
        match how {
            Some(How::CutBefore) => break,
            Some(How::CutAfter) => drop(mute.take()),
            Some(How::Hold) => meddling.go_on.notified().await,
            Some(How::Silence) | None => {}
        }
        if to_write.write_all(&buffer).await.is_err() {
            break;
        }
        buffer.clear();
    }
    if mute.is_some() {
        back.abort();
    }
    // The server hears the end only after all that it was sent.
    let _gone = to_write.shutdown().await;
    if meddled {
        meddling.left.notify_one();
    }
}

/// Carries answers back, until it is told that they are lost, or that nobody is left to tell it: the server must not notice,
/// or it might not do what it was sent before.
async fn carry_back(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    muted: tokio::sync::oneshot::Receiver<()>,
) {
    let is_open = tokio::select! {
        biased;
        told = muted => told.is_ok(),
        _ = tokio::io::copy(&mut from, &mut to) => return,
    };
    let _silent = is_open.then_some(to);
    let _ended = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
}

/// Cuts the commit of these off; answers whether it was written all the same. Its replay has no second effect.
async fn is_written(store: &impl Store, between: &Between, how: How, requests: Vec<NewRequest>) -> bool {
    between.meddle(how);
    let admit = Admit { cursor: None, requests };
    assert_eq!(store.apply_one(admit.clone()).await, Err(StoreError::Unknown));
    let again = store.apply_one(admit).await.unwrap();
    matches!(again, Outcome::Duplicate(_))
}

/// Two batches, after which the server knows every statement and script: one that it must be sent first is not cut off in
/// the right place.
async fn begin(store: &impl Store, policy: RoutePolicy) -> u64 {
    store.apply_one(Define { route: route(), policy }).await.unwrap();
    let before = 2;
    for n in 0..before {
        store.apply_one(Admit { cursor: None, requests: vec![request(1000 + n)] }).await.unwrap();
    }
    before
}

/// A commit whose answer never comes may or may not have been written; its replay has no second effect.
pub(crate) async fn a_connection_that_breaks_leaves_the_outcome_unknown(store: &impl Store, between: &Between) {
    let before = begin(store, RoutePolicy { order: QueueOrder::KeyedFifo { per_key: 1 }, ..policy() }).await;
    let cuts =
        [(1, How::CutBefore, false), (2, How::CutAfter, true), (3, How::CutBefore, false), (4, How::CutAfter, true)];
    for (n, how, expected) in cuts {
        // What has a key looks at its line first; the others are done with what is at hand.
        let key = (n > 2).then(|| OrderKey::new("line").unwrap());
        assert_eq!(is_written(store, between, how, vec![NewRequest { key, ..request(n) }]).await, expected);
        assert_eq!(store.counts().await.unwrap()[0].requests, before + n);
    }
}

/// A large commit is sent in parts. Whatever is cut off of it, it is written whole or not at all.
pub(crate) async fn a_large_commit_that_is_cut_off_is_written_whole_or_not_at_all(
    store: &impl Store,
    between: &Between,
    cuts: &[(How, bool)],
) {
    const MANY: u64 = 100;
    let mut count = begin(store, policy()).await;
    for (n, (how, expected)) in (0..).zip(cuts) {
        let requests = (n * MANY..(n + 1) * MANY).map(|n| request(n + 1)).collect();
        assert_eq!(is_written(store, between, *how, requests).await, *expected);
        count += MANY;
        assert_eq!(store.counts().await.unwrap()[0].requests, count);
    }
}

/// A server that takes a commit and never answers, whether the commit has reached it or not: the outcome is unknown in the
/// end, the connection is let go of, and the next call goes by another. What arrives late does nothing.
pub(crate) async fn a_silent_server_leaves_the_outcome_unknown(store: &impl Store, between: &Between) {
    let before = begin(store, policy()).await;
    for (n, how, expected) in [(1, How::Hold, false), (2, How::Silence, true)] {
        assert_eq!(is_written(store, between, how, vec![request(n)]).await, expected);
        if how == How::Hold {
            between.meddling.go_on.notify_one();
        }
        between.happens(&between.meddling.left).await;
        assert_eq!(store.counts().await.unwrap()[0].requests, before + n);
    }
}

/// A server that takes a read and never answers: it is asked again by another connection.
pub(crate) async fn a_read_that_a_silent_server_took_is_asked_again(store: &impl Store, between: &Between) {
    store.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    assert_eq!(store.counts().await.unwrap(), []);
    between.meddle(How::Silence);
    assert_eq!(store.counts().await, Err(StoreError::Unknown));
    between.happens(&between.meddling.left).await;
    assert_eq!(store.counts().await.unwrap(), []);
}

/// Where a process listens, or asks whether it is still heard, its server goes silent. It looks at everything once, by
/// another connection, and is told of what comes then.
pub(crate) async fn hints_that_a_silent_connection_lost_are_given(
    listens: &impl Store,
    other: &impl Store,
    between: &Between,
) {
    other.apply_one(Define { route: route(), policy: policy() }).await.unwrap();
    between.meddle(How::Silence);
    // The first call listens.
    listens.counts().await.unwrap();
    between.happens(&between.meddling.caught).await;
    let topics = [Topic::Inbox(route()), Topic::Outbox(destination()), Topic::Amendments, Topic::Journal];
    let mut changes = topics.map(|topic| listens.changes(topic));
    for changes in &mut changes {
        assert!(changes.changed().await, "everybody looks once at the start");
    }
    let admit = |n| other.apply_one(Admit { cursor: None, requests: vec![request(n)] });
    admit(1).await.unwrap();
    between.happens(&between.meddling.left).await;
    for changes in &mut changes {
        assert!(timeout(HAPPEN_MAX, changes.changed()).await.unwrap(), "everybody looks once more");
    }
    admit(2).await.unwrap();
    assert!(timeout(HAPPEN_MAX, changes[0].changed()).await.unwrap(), "told again");
}
