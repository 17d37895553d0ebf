//! What a store does to be copied and checked: it is read and written whole, by pages, while
//! nobody works on it.

use std::future::Future;
use std::pin::Pin;

use serde::{Deserialize, Serialize};

use super::Fault;
use super::record::{Kind, Record};
use super::tally::Tally;
use crate::store::StoreError;

/// Most records in a page.
pub(crate) const PAGE_RECORDS: usize = 1000;
/// At how many bytes a page ends, unless one record alone is larger.
pub(crate) const PAGE_BYTES: usize = 4 << 20;

/// A step of the work on a store. It may block its thread, and stays on it.
pub(crate) type Step<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + 'a>>;

/// A step that was done at once.
pub(crate) fn done<'a, T: 'a>(result: Result<T, StoreError>) -> Step<'a, T> {
    Box::pin(std::future::ready(result))
}

/// Some records of one kind.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) records: Vec<Record>,
    /// What stands for a record and cannot be read.
    pub(crate) damaged: Vec<Fault>,
    /// Where the next page begins; nowhere after the last.
    pub(crate) next: Option<Vec<u8>>,
    bytes: usize,
}

impl Page {
    /// A last page, of which nothing can be read.
    #[cfg_attr(not(any(feature = "postgres", feature = "redis")), allow(dead_code, reason = "for stores on servers"))]
    pub(crate) fn unreadable(fault: Fault) -> Page {
        Page { damaged: vec![fault], ..Page::default() }
    }

    pub(crate) fn push(&mut self, record: Record) {
        self.bytes += record.bytes();
        self.records.push(record);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.records.len() + self.damaged.len() >= PAGE_RECORDS || self.bytes >= PAGE_BYTES
    }
}

/// How far a copy is; kept in the store that it fills until it is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// What the source was when the copy began.
    pub(crate) version: Vec<u8>,
    /// Where to go on; nowhere, when all is written.
    pub(crate) at: Option<(Kind, Vec<u8>)>,
    /// What was written so far.
    pub(crate) tally: Tally,
}

impl Mark {
    pub(crate) fn start(version: Vec<u8>) -> Mark {
        Mark { version, at: Some((Kind::Numbers, Vec::new())), tally: Tally::default() }
    }
}

/// What a copy finds where it is to write.
#[derive(Debug)]
pub(crate) enum Ground {
    Empty,
    HalfCopied(Box<Mark>),
    Taken,
}

/// A store's content while nobody works on it.
pub(crate) trait Contents {
    /// As messages name it.
    fn name(&self) -> String;

    /// What differs after anybody has worked on the store.
    fn version(&mut self) -> Step<'_, Vec<u8>>;

    /// A page of records of this kind, in an order of the store's own; `from` is where the page
    /// before said that it begins, and empty at first.
    fn page(&mut self, kind: Kind, from: Vec<u8>) -> Step<'_, Page>;

    /// What is wrong with the way in which the store keeps its records.
    fn faults(&mut self) -> Step<'_, Vec<Fault>>;

    /// Whether anything is there already.
    fn ground(&mut self) -> Step<'_, Ground>;

    /// Removes what an earlier copy has written.
    fn clear(&mut self) -> Step<'_, ()>;

    /// Writes records of one kind, and how far the copy is, in one commit. Kinds come in
    /// their order. Nobody can open the store from now on.
    fn write(&mut self, records: Vec<Record>, mark: Mark) -> Step<'_, ()>;

    /// All is there and compared: the store may be opened.
    fn release(&mut self) -> Step<'_, ()>;
}

/// A number that pages begin after.
pub(crate) fn number(from: &[u8]) -> u64 {
    from.try_into().map_or(0, u64::from_be_bytes)
}

/// A mark as stores keep it.
pub(crate) fn mark_bytes(mark: &Mark) -> Result<Vec<u8>, StoreError> {
    postcard::to_allocvec(mark).map_err(|error| StoreError::Damaged(format!("how far a copy is: {error}")))
}

/// One that cannot be read is of no copy that can go on.
pub(crate) fn read_mark(bytes: &[u8]) -> Mark {
    let unknown = Mark { version: Vec::new(), at: None, tally: Tally::default() };
    postcard::from_bytes(bytes).unwrap_or(unknown)
}
