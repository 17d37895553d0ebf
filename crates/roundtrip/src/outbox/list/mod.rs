//! A list on a Redis server, read by other programs, as a sink: each answer is added once.
//!
//! ```text
//!   deliver ──▶ one step: is there a marker? else add the answer, and set it ──▶ publish
//! ```
//!
//! Failure modes: a crash between the two, or a lost answer of either side, delivers again, and
//! the marker says that it was done: as long as that happens within the horizon, an answer is in
//! the list once. A server that is away, or a list that is full, is tried again without end. A key
//! that is no list is tried again too, until a person has seen to it. What a server lost that it
//! had acknowledged is lost: the store has recorded it as delivered.

use std::time::Duration;

use redis::Script;

use super::sink::{Sink, SinkError, SinkFuture};
use crate::foreign::{BadList, Foreign, check_name};
use crate::station::bounded;
use crate::store::projection::{Facts, ListEnd, Template};
use crate::store::query::ReadyDelivery;

/// How long a marker stays, unless the sink is told otherwise: longer than a courier is away.
const HORIZON: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long a list rests that is full.
const FULL_REST: Duration = Duration::from_secs(1);

/// A sink that adds answers to lists; each list is a target.
///
/// The marker of an answer is `roundtrip-list:LIST:sent:ID-GENERATION-REVISION`.
pub struct RedisListSink {
    server: Foreign,
    list: Template,
    value: Template,
    end: ListEnd,
    horizon: Duration,
    capacity: u64,
    push: Script,
}

impl RedisListSink {
    /// Adds answers as they are to the right end of the list that this text names, such as
    /// `responses` or `responses:{response/chain}`.
    pub fn new(url: &str, list: Template) -> Result<RedisListSink, BadList> {
        if !list.prefix().is_empty() {
            check_name(list.prefix())?;
        }
        fits(&list)?;
        Ok(RedisListSink {
            server: Foreign::new(url)?,
            list,
            value: Template::response(),
            end: ListEnd::Right,
            horizon: HORIZON,
            capacity: 0,
            push: Script::new(include_str!("push.lua")),
        })
    }

    /// What is added, in place of the answer as it is.
    pub fn value(mut self, value: Template) -> Result<RedisListSink, BadList> {
        fits(&value)?;
        self.value = value;
        Ok(self)
    }

    /// At which end answers are added.
    #[must_use]
    pub fn at_end(mut self, end: ListEnd) -> RedisListSink {
        self.end = end;
        self
    }

    /// For how long it is remembered that an answer was added; a year at most.
    #[must_use]
    pub fn horizon(mut self, horizon: Duration) -> RedisListSink {
        self.horizon = horizon;
        self
    }

    /// How many items a list may have before answers wait.
    #[must_use]
    pub fn capacity(mut self, items: u64) -> RedisListSink {
        self.capacity = items;
        self
    }

    async fn add(&self, delivery: &ReadyDelivery) -> Result<(), SinkError> {
        let list = self.list_of(delivery).ok_or_else(|| refused("has no field that its list is named by"))?;
        check_name(&list).map_err(|bad| SinkError::Refused(bad.to_string()))?;
        let value = self.value.render(&facts(delivery)).ok_or_else(|| refused("has no field that is asked for"))?;
        let marker =
            format!("roundtrip-list:{list}:sent:{}-{}-{}", delivery.id, delivery.generation, delivery.revision);
        let push = match self.end {
            ListEnd::Left => "LPUSH",
            ListEnd::Right => "RPUSH",
        };
        let horizon_ms = u64::try_from(bounded(self.horizon).as_millis()).unwrap_or(u64::MAX).max(1);
        let numbers = [horizon_ms, self.capacity].map(|number| number.to_string().into_bytes());
        let arguments: Vec<Vec<u8>> = [push.into(), value].into_iter().chain(numbers).collect();
        let said = self.server.call::<String>(&self.push, &[&list, &marker], &arguments).await;
        match said.as_deref() {
            Ok("full") => Err(SinkError::Retry { after: Some(FULL_REST), error: "the list is full".to_owned() }),
            Ok(_) => Ok(()),
            Err(error) => Err(SinkError::retry(error.to_string())),
        }
    }

    fn list_of(&self, delivery: &ReadyDelivery) -> Option<String> {
        String::from_utf8(self.list.render(&facts(delivery))?).ok()
    }
}

impl Sink for RedisListSink {
    fn deliver<'a>(&'a self, delivery: &'a ReadyDelivery) -> SinkFuture<'a> {
        Box::pin(self.add(delivery))
    }

    fn target(&self, delivery: &ReadyDelivery) -> String {
        self.list_of(delivery).unwrap_or_default()
    }
}

fn facts(delivery: &ReadyDelivery) -> Facts<'_> {
    Facts {
        route: &delivery.route,
        id: delivery.id,
        generation: delivery.generation,
        revision: delivery.revision,
        state: "",
        record: None,
        request: None,
        response: Some(&delivery.response),
    }
}

fn fits(template: &Template) -> Result<(), BadList> {
    match template.fits_delivery() {
        true => Ok(()),
        false => Err(BadList::Template(template.as_str().to_owned())),
    }
}

fn refused(why: &str) -> SinkError {
    SinkError::Refused(format!("the answer {why}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::words::{Payload, RequestId, RouteName, Seq, Token};

    fn template(text: &str) -> Template {
        Template::new(text).unwrap()
    }

    #[test]
    fn lists_are_named_by_what_was_answered() {
        let sink = |list| RedisListSink::new("redis://h", template(list));
        let delivery = ReadyDelivery {
            id: RequestId([0xAB; 32]),
            seq: Seq(1),
            route: RouteName::new("route").unwrap(),
            generation: 0,
            revision: 0,
            answer: Token { epoch: 1, count: 1 },
            response: Payload::json(r#"{"chain":"near"}"#),
            failure: false,
            failures: 0,
            request: None,
            trace: None,
        };
        assert_eq!(sink("responses:{response/chain}").unwrap().target(&delivery), "responses:near");
        assert_eq!(sink("{route}:{response/other}").unwrap().target(&delivery), "", "nobody's");
        assert_eq!(sink("r:{request/a}").err(), Some(BadList::Template("r:{request/a}".to_owned())));
        assert_eq!(sink("roundtrip:{{main}}:live").err(), Some(BadList::Name));
        let by_state = sink("responses").unwrap().value(template("{state}")).err();
        assert!(by_state.unwrap().to_string().contains("does not tell"));
        let cluster = RedisListSink::new("redis-cluster://h:1", template("a")).err().unwrap();
        assert!(cluster.to_string().contains("without cluster mode"), "{cluster}");
    }
}
