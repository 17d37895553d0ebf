//! Reads before the work: a registry's entry, input data from a chain. What they find is part of
//! what the tool is given, under their names.
//!
//! Each is made with what the request says and with what those before it found, in the order
//! of the configuration, and is kept for its own time. A read that fails is of a class of its own:
//! by default, what is not there is fatal and what cannot be reached is waited for.

use std::time::Duration;

use roundtrip_evm::ContractRead;
use serde_json::Value;
use tokio::time::Instant;

use crate::cache::Cache;
use crate::contract::trouble_of;
use crate::errand::{Meaning, Trouble, in_time};
use crate::http::{Statuses, meaning};
use crate::template::UrlTemplate;
use crate::web::{Web, WebError};

/// How long a page may take, if its request leaves it so much time.
const PAGE_WITHIN: Duration = Duration::from_secs(10);

/// JSON at a URL, kept for a time.
#[derive(Debug)]
pub struct Page {
    web: Web,
    url: UrlTemplate,
    bytes_max: usize,
    kept: Cache<Value>,
}

impl Page {
    /// What this URL shows, of at most so many bytes, for so long.
    pub fn new(web: Web, url: UrlTemplate, bytes_max: usize, ttl: Duration) -> Page {
        Page { web, url, bytes_max, kept: Cache::new(ttl) }
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.url.fixed().is_some()
    }

    /// What it shows, if it is the same for all requests.
    pub(crate) async fn probe(&self) -> Result<Option<Value>, String> {
        match self.url.fixed() {
            Some(url) => self.fetch(url).await.map(Some).map_err(|trouble| trouble.text),
            None => Ok(None),
        }
    }

    /// What it shows for what is known of a request, until so late.
    pub(crate) async fn read(&self, document: &Value, until: Instant) -> Result<Value, Trouble> {
        let url = self.url.fill(document).map_err(|why| Trouble::fatal(format!("no URL to read: {why}")))?;
        let read = in_time(until, self.kept.get(&url, self.fetch(&url)));
        read.await.map_err(|trouble| trouble.own_if(!self.url.has_host()))
    }

    async fn fetch(&self, url: &str) -> Result<Value, Trouble> {
        let late = |_elapsed| Trouble::unavailable(format!("no page within {} s", PAGE_WITHIN.as_secs()));
        let answer = tokio::time::timeout(PAGE_WITHIN, self.web.get(url, self.bytes_max)).await.map_err(late)?;
        let answer = answer.map_err(|error| match error {
            WebError::Forbidden(_) if !self.is_fixed() => Trouble::fatal(error.to_string()),
            error => Trouble::unavailable(error.to_string()),
        })?;
        if let Some(meaning) = meaning(answer.status, &Statuses::new()) {
            return Err(Trouble::new(meaning, format!("its page answered {}", answer.status)));
        }
        let page = answer.body.map_err(|error| Trouble::retry(error.to_string()))?;
        serde_json::from_slice(&page).map_err(|error| Trouble::retry(format!("its page is no JSON: {error}")))
    }
}

/// What is read.
#[derive(Debug)]
pub enum Prepared {
    /// JSON at a URL.
    Page(Page),
    /// What a contract returns, kept for a time.
    Contract(Box<ContractRead>, Kept),
}

/// What a contract returned, by what it was called with.
#[derive(Debug)]
pub struct Kept(Cache<Value>);

impl Prepared {
    /// What a contract returns, for so long.
    pub fn contract(read: ContractRead, ttl: Duration) -> Prepared {
        Prepared::Contract(Box::new(read), Kept(Cache::new(ttl)))
    }
}

/// A read before the work.
#[derive(Debug)]
pub struct Preparation {
    /// Under which name the tool is given what it found.
    pub name: String,
    /// What is read.
    pub prepared: Prepared,
    /// What it means that it failed; without it, what happened decides.
    pub failure: Option<Meaning>,
}

impl Preparation {
    /// What it finds for what is known of a request, until so late.
    pub(crate) async fn read(&self, document: &Value, until: Instant) -> Result<Value, Trouble> {
        let found = match &self.prepared {
            Prepared::Page(page) => page.read(document, until).await,
            Prepared::Contract(read, kept) => match read.data(&|root| document.get(root)) {
                Ok(data) => {
                    let read = async { read.read(&data).await.map_err(trouble_of) };
                    in_time(until, kept.0.get(&data.to_string(), read)).await
                }
                Err(error) => Err(trouble_of(error)),
            },
        };
        found.map_err(|trouble| Trouble {
            meaning: self.failure.unwrap_or(trouble.meaning),
            text: format!("preparing {}: {}", self.name, trouble.text),
            ..trouble
        })
    }

    /// What is wrong with it, as far as it can be found out now.
    pub async fn probe(&self) -> Result<(), String> {
        match &self.prepared {
            Prepared::Page(page) => page.probe().await.map(|_| ()),
            Prepared::Contract(read, _) => read.probe().await,
        }
    }
}
