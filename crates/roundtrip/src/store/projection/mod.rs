//! Projections: what a route shows of its requests under names of the user's choice, for
//! dashboards and scripts that know nothing of this program.
//!
//! ```text
//!   a request before and after a commit ──▶ what it shows in either ──▶ writes, in the same commit
//! ```
//!
//! A projection is a description; a store does what it says. One on a Redis server writes keys of
//! the user's naming ([`Projection`], given to `RedisStore::with_projections`). One on a
//! Postgres server has views ([`View`]), and notifies ([`Announcement`]; both given to
//! `PostgresStore::with_views`).
//!
//! Failure modes: descriptions are checked before anything is written ([`check`],
//! [`check_views`]). A key that is something else already is left alone: the commit goes on without
//! it, and the store tells how often that happened. What is shown can be written again at any
//! time, since it follows from what the store keeps.

#[cfg(feature = "redis")]
mod show;
mod stage;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod step;
#[cfg_attr(
    not(any(feature = "postgres", feature = "redis")),
    allow(dead_code, reason = "who shows nothing only checks what was written")
)]
mod template;
mod view;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[cfg(feature = "redis")]
pub(in crate::store) use show::{Lacking, Shower, Write};
pub use stage::{Stage, States, UnknownState, Words};
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(in crate::store) use step::{Side, Step};
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use template::Facts;
pub use template::{BadTemplate, Template};
pub use view::{
    Announcement, BadView, COLUMNS_MAX, ColumnSource, ColumnType, VIEWS_MAX, View, ViewColumn, check_views,
};

use crate::words::RouteName;
#[cfg(feature = "redis")]
use template::Uses;

/// Most projections of one store.
pub const PROJECTIONS_MAX: usize = 256;
/// Most fields of a hash.
pub const FIELDS_MAX: usize = 64;
/// Longest list that a projection keeps.
pub const LIST_MAX: u32 = 1_000_000;
/// What the store's own keys begin with.
pub(crate) const OWN_PREFIX: &str = "roundtrip:{";

/// What a route shows under one key, or one key for each request.
///
/// A request is shown from the commit in which it comes into one of `states` to the one in
/// which it leaves them. One that waits behind another of its id is not shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Projection {
    /// Whose requests.
    pub route: RouteName,
    /// Under which key. A request whose payload has not what the key asks for is not shown.
    pub key: Template,
    /// As what.
    #[serde(rename = "as")]
    pub form: Form,
    /// In which states; in all in which it is live, if none are named.
    #[serde(default)]
    pub states: States,
    /// What `{state}` says, where the word for a state is not to be its own.
    #[serde(default)]
    pub words: Words,
    /// A string or a hash: how long it stays after its request has left the states, or has ended
    /// in one of them. Without it, it goes when the request leaves them, and one that shows an end
    /// stays for ever. Any other form: how long the key stays after it was last written to.
    #[serde(default)]
    pub keep_ms: Option<u64>,
}

/// As what a projection shows requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// A string for each request.
    String(Template),
    /// A hash for each request, with these fields. A field is left out while its request does
    /// not say what it asks for.
    Hash(BTreeMap<String, Template>),
    /// A field for each request, in one hash.
    Map(MapForm),
    /// A member for each request, in one set.
    Set(Template),
    /// An item for each time that a request comes into one of the states, or has other content.
    List(ListForm),
    /// How many requests have come into the states; one that comes again counts again.
    Count(CountForm),
}

/// A field for each request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapForm {
    /// Its name.
    pub field: Template,
    /// What it says.
    pub value: Template,
}

/// A list with a bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListForm {
    /// What an item says.
    pub value: Template,
    /// How many items stay; those at the other end go first. At most [`LIST_MAX`].
    pub max: u32,
    /// At which end items come in.
    #[serde(default)]
    pub end: ListEnd,
}

/// A number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountForm {
    /// In which field of a hash; without one, the key is a string.
    #[serde(default)]
    pub field: Option<String>,
}

/// One end of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListEnd {
    /// Where LPUSH puts and LPOP takes.
    Left,
    /// Where RPUSH puts and RPOP takes.
    #[default]
    Right,
}

/// Why projections cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProjection {
    /// Keys of the user's naming are in any slot.
    #[error(
        "projections need one Redis server: on a cluster their keys would be on other nodes than the store, out of \
         reach of its commits; use redis:// or rediss://, or leave the projections out"
    )]
    OnCluster,
    /// A store that has no keys.
    #[error("{url:?} names no store on a Redis server, which is what projections to keys need")]
    OtherStore {
        /// The URL.
        url: String,
    },
    /// More than a commit should carry.
    #[error("{0} projections; at most {PROJECTIONS_MAX}")]
    TooMany(usize),
    /// A key that is the store's own.
    #[error("{key:?} begins with {OWN_PREFIX:?}, as the store's own keys do: choose another name")]
    OwnKey {
        /// The key.
        key: String,
    },
    /// One key cannot be two things.
    #[error("{key:?} is to be a {one} and a {other}: give each a key of its own")]
    KindClash {
        /// The key.
        key: String,
        /// What it is to be.
        one: &'static str,
        /// What it is to be as well.
        other: &'static str,
    },
    /// All requests of a route would have one key.
    #[error("{key:?} is the same for all requests of {route}: name the request in it, such as {key}:{{id}}")]
    OneKeyForAll {
        /// The key.
        key: String,
        /// Whose requests.
        route: RouteName,
    },
    /// What is live must not vanish.
    #[error("{key:?} shows requests that are live, which must not vanish with time: leave keep_ms out, or show ends")]
    LiveExpires {
        /// The key.
        key: String,
    },
    /// A number that makes no sense.
    #[error("{key:?}: {what}")]
    Bound {
        /// The key.
        key: String,
        /// What is wrong.
        what: &'static str,
    },
}

/// What a key is, as the server calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    String,
    Hash,
    Set,
    List,
}

impl Kind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Hash => "hash",
            Kind::Set => "set",
            Kind::List => "list",
        }
    }
}

impl Form {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Form::String(_) | Form::Count(CountForm { field: None }) => Kind::String,
            Form::Hash(_) | Form::Map(_) | Form::Count(CountForm { field: Some(_) }) => Kind::Hash,
            Form::Set(_) => Kind::Set,
            Form::List(_) => Kind::List,
        }
    }

    /// Whether each request has a key of its own.
    fn is_owned(&self) -> bool {
        matches!(self, Form::String(_) | Form::Hash(_))
    }
}

impl Projection {
    /// All of a route's live requests, as this, under this key.
    pub fn new(route: RouteName, key: Template, form: Form) -> Projection {
        Projection { route, key, form, states: States::default(), words: Words::default(), keep_ms: None }
    }

    /// What decides where it shows a request.
    #[cfg(feature = "redis")]
    fn place_uses(&self) -> Uses {
        let part = match &self.form {
            Form::Map(map) => map.field.uses(),
            Form::Set(member) => member.uses(),
            Form::String(_) | Form::Hash(_) | Form::List(_) | Form::Count(_) => Uses::default(),
        };
        self.key.uses().or(part)
    }

    /// What decides what it shows there.
    #[cfg(feature = "redis")]
    fn value_uses(&self) -> Uses {
        match &self.form {
            Form::String(value) => value.uses(),
            Form::Hash(fields) => fields.values().map(Template::uses).fold(Uses::default(), Uses::or),
            Form::Map(map) => map.value.uses(),
            Form::List(list) => list.value.uses(),
            Form::Set(_) | Form::Count(_) => Uses::default(),
        }
    }

    fn check(&self) -> Result<(), BadProjection> {
        let key = || self.key.as_str().to_owned();
        if self.key.prefix().starts_with(OWN_PREFIX) {
            return Err(BadProjection::OwnKey { key: key() });
        }
        let bound = |what| Err(BadProjection::Bound { key: key(), what });
        match &self.form {
            Form::Hash(fields) if !(1..=FIELDS_MAX).contains(&fields.len()) => bound("a hash has from 1 to 64 fields"),
            Form::List(list) if !(1..=LIST_MAX).contains(&list.max) => bound("a list has from 1 to 1,000,000 items"),
            _ if self.keep_ms == Some(0) => bound("what is kept for no time is not kept: leave keep_ms out"),
            form if form.is_owned() && self.key.is_plain() => {
                Err(BadProjection::OneKeyForAll { key: key(), route: self.route.clone() })
            }
            Form::Map(_) | Form::Set(_) if self.keep_ms.is_some() && self.states.has_live() => {
                Err(BadProjection::LiveExpires { key: key() })
            }
            _ => Ok(()),
        }
    }
}

/// Says what is wrong with projections of the store at this URL, if something is.
pub fn check(url: &str, projections: &[Projection]) -> Result<(), BadProjection> {
    if projections.is_empty() {
        return Ok(());
    }
    match url.split_once(':').map_or(url, |(scheme, _)| scheme) {
        "redis" | "rediss" | "redis+unix" => {}
        "redis-cluster" | "rediss-cluster" => return Err(BadProjection::OnCluster),
        scheme => return Err(BadProjection::OtherStore { url: format!("{scheme}:...") }),
    }
    check_each(projections)
}

/// Says what is wrong with projections, wherever they are shown.
pub(in crate::store) fn check_each(projections: &[Projection]) -> Result<(), BadProjection> {
    if projections.len() > PROJECTIONS_MAX {
        return Err(BadProjection::TooMany(projections.len()));
    }
    projections.iter().try_for_each(Projection::check)?;
    let mut kinds: BTreeMap<String, Kind> = BTreeMap::new();
    for projection in projections {
        let key = projection.key.as_str().replace("{route}", projection.route.as_str());
        let kind = projection.form.kind();
        let one = *kinds.entry(key.clone()).or_insert(kind);
        if one != kind {
            return Err(BadProjection::KindClash { key, one: one.word(), other: kind.word() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn read(text: &str) -> Projection {
        serde_json::from_str(text).unwrap()
    }

    fn refusal(texts: &[&str]) -> String {
        let projections: Vec<Projection> = texts.iter().map(|text| read(text)).collect();
        check("redis://h", &projections).unwrap_err().to_string()
    }

    const MAP: &str = r#"{"route":"sign","key":"requests","as":{"map":{"field":"{id}","value":"{request}"}}}"#;

    #[test]
    fn a_projection_is_read_as_it_is_written() {
        let map = read(MAP);
        assert_eq!(map.states, States::live());
        assert_eq!(map.form.kind(), Kind::Hash);
        let window = read(
            r#"{"route":"epochs","key":"epoch:{request/market}:window","as":{"string":"{state}"},
                "states":["live","settled"],"words":{"live":"open","settled":"closed"},"keep_ms":3600000}"#,
        );
        assert_eq!(window.words.of(Stage::Leased), "open");
        assert_eq!(window.words.of(Stage::Settled), "closed");
        assert_eq!(serde_json::from_str::<Projection>(&serde_json::to_string(&window).unwrap()).unwrap(), window);
        assert_eq!(check("rediss://h", &[map, window]), Ok(()));
        for text in [r#"{"route":"r","key":"k","as":{"set":"{id}"},"more":1}"#, r#"{"route":"r","key":"k","as":"set"}"#]
        {
            assert!(serde_json::from_str::<Projection>(text).is_err(), "{text}");
        }
        let unknown = serde_json::from_str::<Projection>(r#"{"route":"r","key":"{who}","as":{"set":"{id}"}}"#);
        assert!(unknown.unwrap_err().to_string().contains("nobody knows {who}"));
    }

    #[test]
    fn what_cannot_work_is_refused_in_plain_words() {
        let cases: [(&[&str], &str); 7] = [
            (&[r#"{"route":"r","key":"roundtrip:{{main}}:live","as":{"set":"{id}"}}"#], "choose another name"),
            (
                &[MAP, r#"{"route":"r","key":"requests","as":{"set":"{id}"}}"#],
                "is to be a hash and a set: give each a key of its own",
            ),
            (&[r#"{"route":"r","key":"a:{route}","as":{"string":"{id}"}}"#], "the same for all requests of r"),
            (&[r#"{"route":"r","key":"a","as":{"set":"{id}"},"keep_ms":5}"#], "must not vanish"),
            (&[r#"{"route":"r","key":"a","as":{"list":{"value":"{id}","max":0}}}"#], "from 1 to 1,000,000"),
            (&[r#"{"route":"r","key":"a:{id}","as":{"hash":{}}}"#], "from 1 to 64 fields"),
            (&[r#"{"route":"r","key":"a:{id}","as":{"string":"x"},"keep_ms":0}"#], "leave keep_ms out"),
        ];
        for (texts, words) in cases {
            assert!(refusal(texts).contains(words), "{texts:?}: {}", refusal(texts));
        }
        assert!(refusal(&[MAP; PROJECTIONS_MAX + 1]).contains("at most 256"));
    }

    #[test]
    fn only_one_server_can_show_them() {
        let map = [read(MAP)];
        for url in ["redis-cluster://a:1,b:2", "rediss-cluster://a:1"] {
            let refused = check(url, &map).unwrap_err();
            assert_eq!(refused, BadProjection::OnCluster);
            assert!(refused.to_string().contains("use redis:// or rediss://"), "{refused}");
            assert_eq!(check(url, &[]), Ok(()));
        }
        assert!(
            matches!(check("postgres://me:secret@h/d", &map), Err(BadProjection::OtherStore { url }) if url == "postgres:...")
        );
    }
}
