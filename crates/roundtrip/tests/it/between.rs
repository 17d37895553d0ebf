//! Between a store and its server: connections that break in the middle of a commit, or stand still.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use roundtrip::store::op::{Admit, Define, NewRequest, Outcome};
use roundtrip::store::policy::{QueueOrder, RoutePolicy};
use roundtrip::store::{ReadExt, Store, StoreError, StoreExt};
use roundtrip::testkit::samples::{policy, request, route};
use roundtrip::words::OrderKey;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Notify;

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

/// Lets everything through until it is told to meddle with the next commit.
pub(crate) struct Between {
    pub(crate) address: String,
    pub(crate) meddling: Arc<Meddling>,
}

#[derive(Default)]
pub(crate) struct Meddling {
    how: Mutex<Option<How>>,
    pub(crate) caught: Notify,
    pub(crate) go_on: Notify,
}

/// What becomes of the next commit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// It is held back until somebody says so.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "on Postgres a test stops the server"))]
    Hold,
    /// The connection breaks before it.
    CutBefore,
    /// The connection breaks after it, with the answer.
    CutAfter,
}

impl Between {
    /// Before a server, to which only commits say this.
    pub(crate) async fn open(to: To, commit_says: &'static [u8]) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let meddling = Arc::new(Meddling::default());
        let meddler = meddling.clone();
        tokio::spawn(async move {
            while let Ok((from, _)) = listener.accept().await {
                tokio::spawn(carry(from, to.connect().await, commit_says, meddler.clone()));
            }
        });
        Between { address, meddling }
    }

    pub(crate) fn next_commit(&self, how: How) {
        *self.meddling.how.lock().unwrap() = Some(how);
    }
}

async fn carry(from: TcpStream, to: Box<dyn Both>, commit_says: &[u8], meddling: Arc<Meddling>) {
    let ((mut from_read, from_write), (to_read, mut to_write)) = (from.into_split(), tokio::io::split(to));
    let (mute, muted) = tokio::sync::oneshot::channel();
    let (back, mut mute) = (tokio::spawn(carry_back(to_read, from_write, muted)), Some(mute));
    let (mut bytes, mut buffer) = (vec![0; 1 << 16], Vec::new());
    while let Ok(count @ 1..) = from_read.read(&mut bytes).await {
        buffer.extend(&bytes[..count]);
        let is_commit = buffer.windows(commit_says.len()).any(|window| window == commit_says);
        let how = is_commit.then(|| meddling.how.lock().unwrap().take()).flatten();
        if how.is_some() {
            meddling.caught.notify_one();
        }
        match how {
            Some(How::CutBefore) => break,
            Some(How::CutAfter) => drop(mute.take()),
            Some(How::Hold) => meddling.go_on.notified().await,
            None => {}
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
}

/// Carries answers back, until it is told that they are lost: the server must not notice, or it might not do what it was
/// sent before.
async fn carry_back(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    muted: tokio::sync::oneshot::Receiver<()>,
) {
    tokio::select! {
        biased;
        _ = muted => {}
        _ = tokio::io::copy(&mut from, &mut to) => return,
    }
    drop(to);
    let _ended = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
}

/// Cuts the commit of these off; answers whether it was written all the same. Its replay has no second effect.
async fn is_written(store: &impl Store, between: &Between, how: How, requests: Vec<NewRequest>) -> bool {
    between.next_commit(how);
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
