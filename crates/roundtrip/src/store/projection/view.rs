//! What a route shows on a Postgres server: a view with columns of the user's choice, and
//! notifications under a name of the user's choice.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{States, Template, Words};
use crate::inbox::FieldPath;
use crate::words::RouteName;

/// Most views, and most announcements, of one store.
pub const VIEWS_MAX: usize = 256;
/// Most columns of a view.
pub const COLUMNS_MAX: usize = 200;
/// Longest name that the server keeps whole.
const NAME_BYTES_MAX: usize = 63;
/// What the store's own channels begin with.
const OWN_CHANNEL: &str = "roundtrip_";

/// A view of a route's live requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct View {
    /// Whose requests.
    pub route: RouteName,
    /// The view's name.
    pub name: String,
    /// In which schema, which is created if it is not there; the store's own, if none is named.
    #[serde(default)]
    pub schema: Option<String>,
    /// Its columns, in their order.
    pub columns: Vec<ViewColumn>,
    /// What a column of states says, where the word for a state is not to be its own.
    #[serde(default)]
    pub words: Words,
}

/// A column of a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewColumn {
    /// Its name.
    pub name: String,
    /// What it shows.
    pub from: ColumnSource,
    /// As what: of `request`, `response` and their fields alone, which are text if nothing is said.
    /// What cannot be read as that is null.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<ColumnType>,
}

/// What a column shows. In a file: a word, `request/FIELD` or `response/FIELD`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ColumnSource {
    /// Its id, in hexadecimal digits: text.
    Id,
    /// Its place in the order of admission: bigint.
    Number,
    /// Its route: text.
    Route,
    /// Its state in a word: text.
    State,
    /// Its order key: text.
    Key,
    /// When it came in: timestamptz.
    AdmittedAt,
    /// When it is due, while only time keeps it from being queued: timestamptz.
    DueAt,
    /// When it expires, if at a time: timestamptz.
    DeadlineAt,
    /// Until when a worker holds it: timestamptz.
    LeasedUntil,
    /// When it is forgotten, if it is a dead letter: timestamptz.
    ForgetAt,
    /// What it asks, or a field of that.
    Request(Option<FieldPath>),
    /// What was answered, or a field of that.
    Response(Option<FieldPath>),
}

/// What a field is read as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnType {
    /// text: a string without its quotes, anything else as JSON.
    #[default]
    Text,
    /// bigint.
    Integer,
    /// numeric, for numbers of any length.
    Numeric,
    /// double precision.
    Float,
    /// boolean.
    Boolean,
    /// timestamptz, of a text such as `2026-11-16T10:00:00Z`.
    Timestamp,
    /// timestamptz, of seconds since 1970.
    Seconds,
    /// timestamptz, of milliseconds since 1970.
    Milliseconds,
    /// jsonb.
    Json,
    /// bytea: of a field, hexadecimal digits with or without `0x`; of a payload, as it is.
    Bytes,
}

/// A notification for every request of a route that comes into one of some states.
///
/// It is sent after the commit, on a connection of its own: within it, all commits on the server
/// would have to wait for each other. So a crash may lose some, as may whoever listens; it says
/// when to look, and looking now and then besides is what is safe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Announcement {
    /// Whose requests.
    pub route: RouteName,
    /// Under which name, as LISTEN has it.
    pub channel: String,
    /// What it says; nothing, if none is given, or if there is more to tell than can be told.
    #[serde(default)]
    pub payload: Option<Template>,
    /// Coming into which states; all, if none are named.
    #[serde(default = "all_states")]
    pub states: States,
    /// What `{state}` says, where the word for a state is not to be its own.
    #[serde(default)]
    pub words: Words,
}

fn all_states() -> States {
    States::new(super::Stage::ALL)
}

/// Why views or announcements cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadView {
    /// No column of a view.
    #[error(
        "{0:?} is nothing that a view shows: use id, number, route, state, key, admitted_at, due_at, deadline_at, \
         leased_until, forget_at, request, response, request/FIELD or response/FIELD"
    )]
    Source(String),
    /// A name that the server would cut or not take.
    #[error("{0:?} is no name for a view, a column, a schema or a channel: use from 1 to {NAME_BYTES_MAX} bytes")]
    Name(String),
    /// One name for two.
    #[error("{0:?} is there twice: give each a name of its own")]
    Repeated(String),
    /// More, or less, than makes sense.
    #[error("{name:?} has {count} columns: use from 1 to {COLUMNS_MAX}")]
    Columns {
        /// Of which view.
        name: String,
        /// How many.
        count: usize,
    },
    /// More than a start should create.
    #[error("{0} views or announcements; at most {VIEWS_MAX}")]
    TooMany(usize),
    /// A type for what has its own.
    #[error("column {0:?} has a type of its own: leave the type out")]
    OwnType(String),
    /// What is not at hand after a commit.
    #[error("{0:?} asks for a payload, which no announcement carries: name the request, such as {{id}}")]
    Payload(String),
    /// A channel that is the store's.
    #[error("channel {0:?} begins with {OWN_CHANNEL}, as the store's own does: choose another name")]
    OwnChannel(String),
}

impl ColumnSource {
    fn is_payload(&self) -> bool {
        matches!(self, ColumnSource::Request(_) | ColumnSource::Response(_))
    }

    fn word(&self) -> String {
        let of =
            |word: &str, path: &Option<FieldPath>| format!("{word}{}", path.as_ref().map_or("", FieldPath::as_str));
        match self {
            ColumnSource::Id => "id".to_owned(),
            ColumnSource::Number => "number".to_owned(),
            ColumnSource::Route => "route".to_owned(),
            ColumnSource::State => "state".to_owned(),
            ColumnSource::Key => "key".to_owned(),
            ColumnSource::AdmittedAt => "admitted_at".to_owned(),
            ColumnSource::DueAt => "due_at".to_owned(),
            ColumnSource::DeadlineAt => "deadline_at".to_owned(),
            ColumnSource::LeasedUntil => "leased_until".to_owned(),
            ColumnSource::ForgetAt => "forget_at".to_owned(),
            ColumnSource::Request(path) => of("request", path),
            ColumnSource::Response(path) => of("response", path),
        }
    }
}

impl TryFrom<String> for ColumnSource {
    type Error = BadView;

    fn try_from(text: String) -> Result<ColumnSource, BadView> {
        let bad = || BadView::Source(text.clone());
        let (word, path) = match text.find('/') {
            Some(at) => (&text[..at], Some(FieldPath::new(&text[at..]).map_err(|_bad| bad())?)),
            None => (&text[..], None),
        };
        Ok(match (word, path) {
            ("request", path) => ColumnSource::Request(path),
            ("response", path) => ColumnSource::Response(path),
            (_, Some(_)) => return Err(bad()),
            ("id", None) => ColumnSource::Id,
            ("number", None) => ColumnSource::Number,
            ("route", None) => ColumnSource::Route,
            ("state", None) => ColumnSource::State,
            ("key", None) => ColumnSource::Key,
            ("admitted_at", None) => ColumnSource::AdmittedAt,
            ("due_at", None) => ColumnSource::DueAt,
            ("deadline_at", None) => ColumnSource::DeadlineAt,
            ("leased_until", None) => ColumnSource::LeasedUntil,
            ("forget_at", None) => ColumnSource::ForgetAt,
            _ => return Err(bad()),
        })
    }
}

impl From<ColumnSource> for String {
    fn from(source: ColumnSource) -> String {
        source.word()
    }
}

fn check_name(name: &str) -> Result<(), BadView> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains('\0');
    if fits { Ok(()) } else { Err(BadView::Name(name.to_owned())) }
}

impl View {
    fn check(&self) -> Result<(), BadView> {
        check_name(&self.name)?;
        self.schema.as_deref().map_or(Ok(()), check_name)?;
        let count = self.columns.len();
        if !(1..=COLUMNS_MAX).contains(&count) {
            return Err(BadView::Columns { name: self.name.clone(), count });
        }
        let mut names = BTreeSet::new();
        for column in &self.columns {
            check_name(&column.name)?;
            if !names.insert(&column.name) {
                return Err(BadView::Repeated(column.name.clone()));
            }
            if column.kind.is_some() && !column.from.is_payload() {
                return Err(BadView::OwnType(column.name.clone()));
            }
        }
        Ok(())
    }
}

/// Says what is wrong with views and announcements, if something is.
pub fn check_views(views: &[View], announcements: &[Announcement]) -> Result<(), BadView> {
    let most = views.len().max(announcements.len());
    if most > VIEWS_MAX {
        return Err(BadView::TooMany(most));
    }
    let mut names = BTreeSet::new();
    for view in views {
        view.check()?;
        if !names.insert((&view.schema, &view.name)) {
            return Err(BadView::Repeated(view.name.clone()));
        }
    }
    for announcement in announcements {
        check_name(&announcement.channel)?;
        if announcement.channel.starts_with(OWN_CHANNEL) {
            return Err(BadView::OwnChannel(announcement.channel.clone()));
        }
        let payload = announcement.payload.as_ref().filter(|payload| payload.uses().request || payload.uses().response);
        if let Some(payload) = payload {
            return Err(BadView::Payload(payload.as_str().to_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn view(columns: &str) -> Result<View, serde_json::Error> {
        serde_json::from_str(&format!(r#"{{"route":"r","name":"v","columns":[{columns}]}}"#))
    }

    #[test]
    fn a_view_is_read_as_it_is_written() {
        let read = view(
            r#"{"name":"id","from":"id"},{"name":"amount","from":"request/order/amount","type":"numeric"},
               {"name":"raw","from":"response","type":"bytes"}"#,
        );
        let read = read.unwrap();
        assert_eq!(read.columns[1].from, ColumnSource::Request(Some(FieldPath::new("/order/amount").unwrap())));
        assert_eq!(read.columns[1].kind, Some(ColumnType::Numeric));
        assert_eq!(serde_json::from_str::<View>(&serde_json::to_string(&read).unwrap()).unwrap(), read);
        assert_eq!(check_views(&[read], &[]), Ok(()));
        let unknown = view(r#"{"name":"x","from":"worker"}"#).unwrap_err().to_string();
        assert!(unknown.contains("\"worker\" is nothing that a view shows"), "{unknown}");
        assert!(view(r#"{"name":"x","from":"id/a"}"#).is_err());
    }

    #[test]
    fn what_cannot_work_is_refused_in_plain_words() {
        let refusal = |columns: &str| check_views(&[view(columns).unwrap()], &[]).unwrap_err().to_string();
        assert!(refusal("").contains("0 columns"));
        assert!(refusal(r#"{"name":"a","from":"id"},{"name":"a","from":"key"}"#).contains("\"a\" is there twice"));
        assert!(refusal(r#"{"name":"a","from":"id","type":"text"}"#).contains("leave the type out"));
        assert!(refusal(&format!(r#"{{"name":"{}","from":"id"}}"#, "x".repeat(64))).contains("from 1 to 63 bytes"));
        let both = view(r#"{"name":"a","from":"id"}"#).unwrap();
        assert_eq!(check_views(&[both.clone(), both], &[]), Err(BadView::Repeated("v".to_owned())));
        let tell = |channel: &str, payload: &str| {
            let told =
                serde_json::from_value(serde_json::json!({"route": "r", "channel": channel, "payload": payload}));
            check_views(&[], &[told.unwrap()])
        };
        assert_eq!(tell("news", "{id} {state}"), Ok(()));
        assert!(tell("news", "{request/a}").unwrap_err().to_string().contains("asks for a payload"));
        assert!(matches!(tell("roundtrip_x", "{id}"), Err(BadView::OwnChannel(_))));
    }
}
