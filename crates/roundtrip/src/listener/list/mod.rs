//! A list on a Redis server, filled by other programs, as a source of requests for any store.
//!
//! ```text
//!   list ──▶ take: out of the list, under a number, in one step ──▶ admit ──▶ done: forgotten
//!              ▲ what was taken and is not done comes first            └─ no store takes it ──▶ rejected
//! ```
//!
//! An item has no name of its own, and two may be alike. So it is given a number when it is
//! taken, which stays with it until it is done, through every crash: number and content make the
//! occurrence by which the store knows it again.
//!
//! Failure modes: a crash after an item is taken leaves it among the taken ones, from where it
//! is admitted again at the next start, or by another process after [`STALE_MS`]; if it was in the
//! store already, the store recognises it for as long as it keeps receipts. A route without room
//! is waited for, with its items taken and no more than [`ITEMS_MAX`] of them. An item that can
//! never be admitted goes to a list of its own with the reason. A server that is away is waited
//! for. What a server lost that it had acknowledged is lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Script};
use serde_json::json;
use tokio::sync::Mutex;

use super::{Source, request_with_id};
use crate::clock::Clock;
use crate::foreign::{BadList, Foreign, ForeignError, check_name};
use crate::inbox::Identity;
use crate::persist;
use crate::station::{Shutdown, StationError};
use crate::store::Store;
use crate::store::op::{Admit, Invalid, NewRequest, Op, Outcome};
use crate::store::projection::ListEnd;
use crate::words::{Encoding, ListenerName, OccurrenceId, PAYLOAD_BYTES_MAX, Payload, RequestId, RouteName};

/// How many items are taken and not done, at most.
const ITEMS_MAX: usize = 256;
/// Beyond how many bytes of them no more are taken.
const BYTES_MAX: usize = 4 << 20;
/// After how long another process may see to an item that was taken.
const STALE_MS: u64 = 30_000;
/// How long a list is waited for that is empty, before it is looked at anyway.
const WAIT: Duration = Duration::from_secs(2);
/// How long a wait may take to be answered.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How long to wait when a route has no room.
const FULL_WAIT: Duration = Duration::from_millis(200);
/// How long to wait for a server that is away, at first and at most.
const AWAY_FIRST: Duration = Duration::from_millis(10);
const AWAY_MAX: Duration = Duration::from_secs(2);

/// An item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListItem {
    /// The number under which it was taken; no other of this list and listener has it.
    pub number: u64,
    /// What it says.
    pub bytes: Bytes,
}

/// What makes the request of an item, or says why it can be none.
type Make = Box<dyn Fn(&ListItem) -> Result<NewRequest, String> + Send + Sync>;

/// A source that admits the items of a list, each once.
///
/// Beside the list it keeps `roundtrip-list:LIST:NAME:taken`, `…:taken_at`, `…:last` and
/// `…:rejected`. Processes that share a store may drain one list under one name together; under
/// two names, each item goes to one of them.
pub struct RedisList {
    name: ListenerName,
    list: String,
    from: ListEnd,
    make: Make,
    rejected: String,
    server: Foreign,
    /// The connection that waits for items, once there is one.
    waiting: Mutex<Option<MultiplexedConnection>>,
    take: Script,
    done: Script,
}

impl RedisList {
    /// The list at this URL, under this name, drained from its left end. The request's
    /// occurrence is that of the item, whatever `make` says.
    pub fn new(
        url: &str,
        list: &str,
        name: ListenerName,
        make: impl Fn(&ListItem) -> Result<NewRequest, String> + Send + Sync + 'static,
    ) -> Result<RedisList, BadList> {
        check_name(list)?;
        Ok(RedisList {
            server: Foreign::new(url)?,
            rejected: format!("roundtrip-list:{list}:{name}:rejected"),
            list: list.to_owned(),
            name,
            from: ListEnd::Left,
            make: Box::new(make),
            waiting: Mutex::default(),
            take: Script::new(include_str!("take.lua")),
            done: Script::new(include_str!("done.lua")),
        })
    }

    /// The same for one route, whose items have this encoding and this identity, which must be
    /// the route's. With [`Identity::Given`] every item is a request of its own.
    pub fn of_route(
        url: &str,
        list: &str,
        name: ListenerName,
        route: RouteName,
        encoding: Encoding,
        identity: Identity,
    ) -> Result<RedisList, BadList> {
        let (listener, key) = (name.clone(), list.to_owned());
        RedisList::new(url, list, name, move |item| {
            let payload = Payload { encoding, bytes: item.bytes.clone() };
            let id = match identity.id_of(&route, &payload) {
                Ok(Some(id)) => id,
                Ok(None) => RequestId(occurrence(&listener, &key, item).0),
                Err(why) => return Err(why.to_string()),
            };
            Ok(request_with_id(&route, id, payload))
        })
    }

    /// From which end items are taken.
    #[must_use]
    pub fn from_end(mut self, end: ListEnd) -> RedisList {
        self.from = end;
        self
    }

    /// Where items go that can never be admitted: to this list, each as a JSON object with
    /// `reason` and `item`, or `item_hex` if it is no text.
    #[must_use]
    pub fn rejected(mut self, list: &str) -> RedisList {
        self.rejected = list.to_owned();
        self
    }

    fn own(&self, what: &str) -> String {
        format!("roundtrip-list:{}:{}:{what}", self.list, self.name)
    }
}

/// This very item: its number, and what it says, since a server that lost writes counts some
/// numbers again.
fn occurrence(name: &ListenerName, list: &str, item: &ListItem) -> OccurrenceId {
    let (name, number) = (name.as_str().as_bytes(), item.number.to_le_bytes());
    OccurrenceId::of(&[b"list", name, list.as_bytes(), &number, &item.bytes])
}

/// What becomes of an item that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// It is in the store.
    Stored,
    /// Its route has no room.
    Waits,
    /// No store takes it.
    Rejected(String),
}

/// What a store's answer means for the item.
fn fate(outcome: &Outcome) -> Result<Fate, String> {
    match outcome {
        Outcome::Applied(_) | Outcome::Duplicate(_) => Ok(Fate::Stored),
        Outcome::Full(_) => Ok(Fate::Waits),
        // That is no fault of the item's.
        Outcome::Invalid(why @ (Invalid::UnknownRoute(_) | Invalid::IdIsNotTheHash { .. })) => Err(why.to_string()),
        Outcome::Invalid(reason) => Ok(Fate::Rejected(reason.to_string())),
        refused => Err(format!("the store answered {refused:?}")),
    }
}

/// A rejected item as a person finds it.
fn entry(item: &ListItem, reason: &str) -> Vec<u8> {
    let entry = match std::str::from_utf8(&item.bytes) {
        Ok(text) => json!({ "reason": reason, "item": text }),
        Err(_) => {
            json!({ "reason": reason, "item_hex": item.bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() })
        }
    };
    entry.to_string().into_bytes()
}

impl Source for RedisList {
    async fn run(self, store: Arc<dyn Store>, _clock: Arc<dyn Clock>, shutdown: Shutdown) -> Result<(), StationError> {
        // What is under way when the station stops is taken, and not done.
        shutdown.run_until_cancelled(self.drain(&*store)).await.unwrap_or(Ok(()))
    }
}

impl RedisList {
    /// Takes and admits, for ever.
    async fn drain(&self, store: &dyn Store) -> Result<(), StationError> {
        let (mut stale_ms, mut failures) = (0, 0);
        loop {
            match self.pass(store, stale_ms).await? {
                // What was taken before this start, or before an answer was lost, comes first.
                Pass::Away => {
                    tokio::time::sleep(AWAY_FIRST.saturating_mul(1 << failures.min(16)).min(AWAY_MAX)).await;
                    (stale_ms, failures) = (0, failures + 1);
                }
                Pass::Done => (stale_ms, failures) = (STALE_MS, 0),
            }
        }
    }

    /// Takes some items and sees to them until each is done, or waits for one to come.
    async fn pass(&self, store: &dyn Store, stale_ms: u64) -> Result<Pass, StationError> {
        let mut items = match self.take(stale_ms).await {
            Ok(items) => items,
            Err(error) => return self.away(error),
        };
        if items.is_empty() {
            return match self.wait().await {
                Ok(()) => Ok(Pass::Done),
                Err(error) => self.away(error.into()),
            };
        }
        while !items.is_empty() {
            let fates = self.admit(store, &items).await?;
            if let Err(error) = self.settle(&items, &fates).await {
                return self.away(error);
            }
            let mut fates = fates.into_iter();
            items.retain(|_| fates.next() == Some(Fate::Waits));
            if !items.is_empty() {
                tracing::warn!(list = %self.list, items = items.len(), "no room for items of a list; they wait");
                tokio::time::sleep(FULL_WAIT).await;
            }
        }
        Ok(Pass::Done)
    }

    fn away(&self, error: ForeignError) -> Result<Pass, StationError> {
        if let ForeignError::Cluster = error {
            return Err(StationError::Broken(format!("list {}: {error}", self.list)));
        }
        tracing::warn!(list = %self.list, server = %self.server.address(), %error, "a list cannot be read; it is tried again");
        Ok(Pass::Away)
    }

    async fn take(&self, stale_ms: u64) -> Result<Vec<ListItem>, ForeignError> {
        let pop = match self.from {
            ListEnd::Left => "LPOP",
            ListEnd::Right => "RPOP",
        };
        let keys = [self.list.clone(), self.own("taken"), self.own("taken_at"), self.own("last")];
        let numbers = [ITEMS_MAX as u64, BYTES_MAX as u64, stale_ms].map(|number| number.to_string().into_bytes());
        let arguments: Vec<Vec<u8>> = std::iter::once(pop.into()).chain(numbers).collect();
        let taken: Vec<(u64, Vec<u8>)> =
            self.server.call(&self.take, &keys.each_ref().map(String::as_str), &arguments).await?;
        Ok(taken.into_iter().map(|(number, bytes)| ListItem { number, bytes: bytes.into() }).collect())
    }

    /// Admits each item that can be a request, all of them in one commit.
    async fn admit(&self, store: &dyn Store, items: &[ListItem]) -> Result<Vec<Fate>, StationError> {
        let made: Vec<Result<NewRequest, String>> = items.iter().map(|item| self.request(item)).collect();
        let admits = made.iter().filter_map(|made| made.as_ref().ok());
        let batch: Vec<Op> =
            admits.map(|request| Op::Admit(Admit { cursor: None, requests: vec![request.clone()] })).collect();
        let mut outcomes = match batch.is_empty() {
            true => Vec::new(),
            false => persist::apply(store, batch).await?,
        }
        .into_iter();
        let each = made.into_iter().map(|made| match (made, &mut outcomes) {
            (Ok(_), outcomes) => {
                outcomes.next().map_or(Err("the store answered another batch".to_owned()), |outcome| fate(&outcome))
            }
            (Err(reason), _) => Ok(Fate::Rejected(reason)),
        });
        let each: Result<Vec<Fate>, String> = each.collect();
        each.map_err(|reason| StationError::Broken(format!("list {} cannot be drained: {reason}", self.list)))
    }

    fn request(&self, item: &ListItem) -> Result<NewRequest, String> {
        if item.bytes.len() > PAYLOAD_BYTES_MAX {
            return Err(format!("an item of {} bytes is over the limit of {PAYLOAD_BYTES_MAX}", item.bytes.len()));
        }
        let request = (self.make)(item)?;
        Ok(NewRequest { occurrence: occurrence(&self.name, &self.list, item), ..request })
    }

    /// Forgets what is in the store, and puts away what no store takes.
    async fn settle(&self, items: &[ListItem], fates: &[Fate]) -> Result<(), ForeignError> {
        let (mut arguments, mut rejected) = (Vec::with_capacity(2 * items.len()), Vec::new());
        for (item, fate) in items.iter().zip(fates) {
            let number = item.number.to_string().into_bytes();
            match fate {
                Fate::Waits => {}
                Fate::Stored => arguments.extend([number, Vec::new()]),
                Fate::Rejected(reason) => {
                    tracing::warn!(list = %self.list, number = item.number, %reason, rejected = %self.rejected, "an item is no request");
                    rejected.extend([number, entry(item, reason)]);
                }
            }
        }
        // Last, so that nobody else waits if that list is none.
        arguments.append(&mut rejected);
        if arguments.is_empty() {
            return Ok(());
        }
        let keys = [self.own("taken"), self.own("taken_at"), self.rejected.clone()];
        self.server.call(&self.done, &keys.each_ref().map(String::as_str), &arguments).await
    }

    /// Waits until the list has an item: one that is moved from an end to the same end stays
    /// where it is.
    async fn wait(&self) -> Result<(), RedisError> {
        let end = match self.from {
            ListEnd::Left => "LEFT",
            ListEnd::Right => "RIGHT",
        };
        // A call that waits holds up all others on its connection.
        let mut held = self.waiting.lock().await;
        let mut connection = match held.take() {
            Some(connection) => connection,
            None => self.server.open(WAIT_MAX).await?,
        };
        let mut wait = redis::cmd("BLMOVE");
        wait.arg(&self.list).arg(&self.list).arg(end).arg(end).arg(WAIT.as_secs());
        let _item: Option<Vec<u8>> = wait.query_async(&mut connection).await?;
        *held = Some(connection);
        Ok(())
    }
}

/// What a pass came to.
enum Pass {
    Done,
    /// The server is away.
    Away,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::store::op::{Effect, Full, Stale};

    #[test]
    fn only_what_no_store_takes_is_rejected() {
        let route = RouteName::new("r").unwrap();
        let full = Outcome::Full(Full::Route { route: route.clone(), capacity: 1 });
        assert_eq!(fate(&Outcome::Applied(Effect::Done)), Ok(Fate::Stored));
        assert_eq!(fate(&Outcome::Duplicate(Effect::Done)), Ok(Fate::Stored));
        assert_eq!(fate(&full), Ok(Fate::Waits));
        let large = Outcome::Invalid(Invalid::PayloadTooLarge { bytes: 9, max: 1 });
        assert!(matches!(fate(&large), Ok(Fate::Rejected(reason)) if reason.contains("9 bytes")));
        assert!(fate(&Outcome::Invalid(Invalid::UnknownRoute(route))).unwrap_err().contains("not defined"));
        assert!(fate(&Outcome::Stale(Stale::Cursor(None))).is_err());
        let (given, hash) = (RequestId([1; 32]), RequestId([2; 32]));
        let other = Outcome::Invalid(Invalid::IdIsNotTheHash { given, hash });
        assert!(fate(&other).unwrap_err().contains("by its route's identity"), "its route is set up otherwise");
    }

    #[test]
    fn a_rejected_item_is_kept_whole() {
        let item = |bytes: &'static [u8]| ListItem { number: 1, bytes: Bytes::from_static(bytes) };
        assert_eq!(entry(&item(b"a\"b"), "no"), br#"{"item":"a\"b","reason":"no"}"#);
        assert_eq!(entry(&item(&[0xff, 0x01]), "no"), br#"{"item_hex":"ff01","reason":"no"}"#);
    }

    #[test]
    fn items_that_are_alike_are_told_apart_and_each_is_known_again() {
        let name = ListenerName::new("l").unwrap();
        let of = |number, bytes: &'static str| occurrence(&name, "list", &ListItem { number, bytes: bytes.into() });
        assert_eq!(of(1, "a"), of(1, "a"));
        assert_ne!(of(1, "a"), of(2, "a"));
        assert_ne!(of(1, "a"), of(1, "b"));
    }
}
