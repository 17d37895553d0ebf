//! Texts with places for what a request says: `batch:{request/epoch}:{state}`.
//!
//! ```text
//!   text ──▶ parts, checked once ──▶ render: what each place says of one request, as bytes
//! ```
//!
//! Failure modes: a text with a place that is none is refused when it is read. What a request
//! does not say, such as a field that its payload has not, makes the whole text nothing: a key
//! that names nobody is no key.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::inbox::{FieldPath, Request, Standing, State};
use crate::words::{Encoding, Payload, RequestId, RouteName};

/// Longest text.
const TEXT_BYTES_MAX: usize = 1024;
/// All places, as a refusal lists them.
const PLACES: &str = "route, id, state, standing, generation, revision, attempts, number, priority, key, worker, \
                      error, admitted_at, request, response, request/FIELD or response/FIELD";

/// A text with places between braces, such as `orders:{id}`. Braces that are meant are written
/// twice: `{{` and `}}`.
///
/// | place | what is put there |
/// |---|---|
/// | `{route}`, `{id}` | the route's name, the request's id in hexadecimal digits |
/// | `{state}` | its state in a word, or in the projection's own |
/// | `{standing}` | `orphaned`, `seen` or `final` |
/// | `{generation}`, `{revision}`, `{attempts}`, `{number}`, `{priority}` | decimal numbers; its number is its place in the order of admission |
/// | `{admitted_at}` | milliseconds since 1970 |
/// | `{key}`, `{worker}`, `{error}` | its order key, who works on it, what went wrong last; nothing, if there is none |
/// | `{request}`, `{response}` | the payload, as it is |
/// | `{request/a/b}`, `{response/a/0}` | a field of a JSON payload: a string without its quotes, anything else as it is written |
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Template {
    text: Box<str>,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    Place(Place),
}

/// What may stand between braces.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Route,
    Id,
    State,
    Generation,
    Revision,
    Of(Mark),
    Request(Option<FieldPath>),
    Response(Option<FieldPath>),
}

/// What only the request's own record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Standing,
    Attempts,
    Number,
    Priority,
    Key,
    Worker,
    Error,
    AdmittedAt,
}

/// Why a text is no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTemplate {
    /// Nothing, or too much.
    #[error("a text of {0} bytes: write from 1 to {TEXT_BYTES_MAX}")]
    Length(usize),
    /// A brace without the other.
    #[error("{0:?} has a brace without its other: write {{{{ and }}}} for braces that are meant")]
    Brace(String),
    /// Nothing that a request says.
    #[error("{text:?}: nobody knows {{{place}}}: use one of {PLACES}")]
    UnknownPlace {
        /// The whole text.
        text: String,
        /// What stands between the braces.
        place: String,
    },
}

/// What of a request a text depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    pub(crate) request: bool,
    pub(crate) response: bool,
    pub(crate) state: bool,
    /// What may change from one record of it to the next.
    pub(crate) record: bool,
}

impl Uses {
    pub(crate) fn or(self, other: Uses) -> Uses {
        Uses {
            request: self.request || other.request,
            response: self.response || other.response,
            state: self.state || other.state,
            record: self.record || other.record,
        }
    }
}

/// What is known of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) route: &'a RouteName,
    pub(crate) id: RequestId,
    pub(crate) generation: u32,
    pub(crate) revision: u16,
    /// Its state in a word.
    pub(crate) state: &'a str,
    pub(crate) record: Option<&'a Request>,
    pub(crate) request: Option<&'a Payload>,
    pub(crate) response: Option<&'a Payload>,
}

impl Template {
    /// Reads a text.
    pub fn new(text: &str) -> Result<Template, BadTemplate> {
        if !(1..=TEXT_BYTES_MAX).contains(&text.len()) {
            return Err(BadTemplate::Length(text.len()));
        }
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        let lone = || BadTemplate::Brace(text.to_owned());
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                plain.push_str(brace);
                rest = after;
                continue;
            }
            let (place, after) = rest.split_once('}').filter(|_| brace == "{").ok_or_else(lone)?;
            push_text(&mut parts, &mut plain);
            parts.push(Part::Place(Place::of(text, place)?));
            rest = after;
        }
        plain.push_str(rest);
        push_text(&mut parts, &mut plain);
        Ok(Template { text: text.into(), parts })
    }

    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it says the same of all requests of a route.
    pub(crate) fn is_plain(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Text(_) | Part::Place(Place::Route)))
    }

    /// What it begins with, whatever the request.
    pub(crate) fn prefix(&self) -> &str {
        match self.parts.first() {
            Some(Part::Text(text)) => text,
            _ => "",
        }
    }

    /// What it depends on.
    pub(crate) fn uses(&self) -> Uses {
        let each = self.parts.iter().map(|part| match part {
            Part::Place(Place::Request(_)) => Uses { request: true, ..Uses::default() },
            Part::Place(Place::Response(_)) => Uses { response: true, ..Uses::default() },
            Part::Place(Place::State) => Uses { state: true, ..Uses::default() },
            Part::Place(Place::Revision) => Uses { record: true, ..Uses::default() },
            Part::Place(Place::Of(mark)) => Uses { record: mark.changes(), ..Uses::default() },
            Part::Place(Place::Route | Place::Id | Place::Generation) | Part::Text(_) => Uses::default(),
        });
        each.fold(Uses::default(), Uses::or)
    }

    /// The answer as it is.
    #[cfg(feature = "redis")]
    pub(crate) fn response() -> Template {
        Template { text: "{response}".into(), parts: vec![Part::Place(Place::Response(None))] }
    }

    /// Whether a delivery tells all that it asks for: what was answered, and to what.
    #[cfg(feature = "redis")]
    pub(crate) fn fits_delivery(&self) -> bool {
        self.parts.iter().all(|part| match part {
            Part::Place(place) => !matches!(place, Place::State | Place::Request(_) | Place::Of(_)),
            Part::Text(_) => true,
        })
    }

    /// The text for one request; nothing, if the request does not say what one of the places
    /// asks for.
    pub(crate) fn render(&self, facts: &Facts<'_>) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => bytes.extend(text.as_bytes()),
                Part::Place(place) => place.put(facts, &mut bytes)?,
            }
        }
        Some(bytes)
    }
}

fn push_text(parts: &mut Vec<Part>, plain: &mut String) {
    if !plain.is_empty() {
        parts.push(Part::Text(std::mem::take(plain).into()));
    }
}

impl Place {
    fn of(text: &str, place: &str) -> Result<Place, BadTemplate> {
        let unknown = || BadTemplate::UnknownPlace { text: text.to_owned(), place: place.to_owned() };
        if let Some(at) = place.find('/') {
            let path = FieldPath::new(&place[at..]).map_err(|_bad| unknown())?;
            return match &place[..at] {
                "request" => Ok(Place::Request(Some(path))),
                "response" => Ok(Place::Response(Some(path))),
                _ => Err(unknown()),
            };
        }
        Ok(match place {
            "route" => Place::Route,
            "id" => Place::Id,
            "state" => Place::State,
            "generation" => Place::Generation,
            "revision" => Place::Revision,
            "request" => Place::Request(None),
            "response" => Place::Response(None),
            "standing" => Place::Of(Mark::Standing),
            "attempts" => Place::Of(Mark::Attempts),
            "number" => Place::Of(Mark::Number),
            "priority" => Place::Of(Mark::Priority),
            "key" => Place::Of(Mark::Key),
            "worker" => Place::Of(Mark::Worker),
            "error" => Place::Of(Mark::Error),
            "admitted_at" => Place::Of(Mark::AdmittedAt),
            _ => return Err(unknown()),
        })
    }

    /// Writes what it says of a request; nothing, if it says nothing.
    fn put(&self, facts: &Facts<'_>, bytes: &mut Vec<u8>) -> Option<()> {
        match self {
            Place::Route => bytes.extend(facts.route.as_str().as_bytes()),
            Place::Id => bytes.extend(facts.id.to_string().as_bytes()),
            Place::State => bytes.extend(facts.state.as_bytes()),
            Place::Generation => bytes.extend(facts.generation.to_string().as_bytes()),
            Place::Revision => bytes.extend(facts.revision.to_string().as_bytes()),
            Place::Of(mark) => bytes.extend(mark.text(facts.record?)?.as_bytes()),
            Place::Request(path) => put_payload(facts.request?, path.as_ref(), bytes)?,
            Place::Response(path) => put_payload(facts.response?, path.as_ref(), bytes)?,
        }
        Some(())
    }
}

impl Mark {
    fn changes(self) -> bool {
        !matches!(self, Mark::Number | Mark::Priority | Mark::Key | Mark::AdmittedAt)
    }

    fn text(self, record: &Request) -> Option<String> {
        Some(match self {
            Mark::Standing => standing_word(record.standing()).to_owned(),
            Mark::Attempts => record.attempts.to_string(),
            Mark::Number => record.seq.0.to_string(),
            Mark::Priority => record.priority.to_string(),
            Mark::AdmittedAt => record.admitted_at.0.to_string(),
            Mark::Key => record.key.as_ref()?.as_str().to_owned(),
            Mark::Error => record.error.as_ref()?.text.to_string(),
            Mark::Worker => match &record.state {
                State::Leased(lease) => lease.worker.as_str().to_owned(),
                _ => return None,
            },
        })
    }
}

fn standing_word(standing: Standing) -> &'static str {
    match standing {
        Standing::Orphaned => "orphaned",
        Standing::Seen => "seen",
        Standing::Final => "final",
    }
}

fn put_payload(payload: &Payload, path: Option<&FieldPath>, bytes: &mut Vec<u8>) -> Option<()> {
    match path {
        None => bytes.extend(&payload.bytes),
        Some(path) if payload.encoding == Encoding::Json => {
            let document: &RawValue = serde_json::from_slice(&payload.bytes).ok()?;
            put_field(document, path, bytes)?;
        }
        Some(_) => return None,
    }
    Some(())
}

/// Writes a field as it is written: numbers keep all their digits.
fn put_field(document: &RawValue, path: &FieldPath, bytes: &mut Vec<u8>) -> Option<()> {
    let mut at = document;
    for name in path.as_str().split('/').skip(1) {
        let name = name.replace("~1", "/").replace("~0", "~");
        at = match at.get().as_bytes().first()? {
            b'{' => serde_json::from_str::<BTreeMap<String, &RawValue>>(at.get()).ok()?.get(&name)?,
            b'[' => serde_json::from_str::<Vec<&RawValue>>(at.get()).ok()?.get(name.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    match at.get() {
        "null" => return None,
        text if text.starts_with('"') => bytes.extend(serde_json::from_str::<String>(text).ok()?.as_bytes()),
        text => bytes.extend(text.as_bytes()),
    }
    Some(())
}

impl TryFrom<String> for Template {
    type Error = BadTemplate;

    fn try_from(text: String) -> Result<Template, BadTemplate> {
        Template::new(&text)
    }
}

impl From<Template> for String {
    fn from(template: Template) -> String {
        template.text.into()
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Template({:?})", self.text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn render(text: &str, request: &Payload, response: Option<&Payload>) -> Option<String> {
        let route = RouteName::new("orders").unwrap();
        let (id, generation, revision) = (RequestId([0xAB; 32]), 2, 3);
        let request = Some(request);
        let facts = Facts { route: &route, id, generation, revision, state: "queued", record: None, request, response };
        Template::new(text).unwrap().render(&facts).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn places_are_filled_with_what_a_request_says() {
        let request =
            Payload::json(r#"{"a":{"b/c":"x y"},"n":[1,12345678901234567890123,1.50],"o":{"p": 1},"z":null}"#);
        let response = Payload::raw(&b"bytes"[..]);
        let check = |text: &str, rendered: Option<&str>| {
            assert_eq!(render(text, &request, Some(&response)).as_deref(), rendered, "{text}");
        };
        check("plain", Some("plain"));
        check("{route}:{state}:{generation}:{revision}", Some("orders:queued:2:3"));
        check("{id}", Some(&"ab".repeat(32)));
        check("{request/a/b~1c}", Some("x y"));
        check("{request/n/0}-{request/n/1}-{request/n/2}", Some("1-12345678901234567890123-1.50"));
        check("{request/o}", Some(r#"{"p": 1}"#));
        check("{response}", Some("bytes"));
        check("{{\"id\":\"{generation}\"}}", Some("{\"id\":\"2\"}"));
        // What is not said.
        check("{request/z}", None);
        check("{request/n/3}", None);
        check("{request/a/b/c/d}", None);
        check("{response/a}", None);
        check("x{worker}", None);
        assert_eq!(render("{response}", &request, None), None);
    }

    #[test]
    fn what_is_no_template_is_refused_in_plain_words() {
        let refusal = |text: &str| Template::new(text).unwrap_err().to_string();
        for text in ["a{id", "a}", "{", "a{id}}"] {
            assert!(refusal(text).contains("a brace without its other"), "{text}: {}", refusal(text));
        }
        for text in ["{}", "{ID}", "{other/a}", "{request/~2}"] {
            assert!(refusal(text).contains("nobody knows {"), "{text}: {}", refusal(text));
        }
        assert!(refusal("").contains("from 1 to 1024"));
        assert!(refusal(&"x".repeat(TEXT_BYTES_MAX + 1)).contains("1025 bytes"));
    }

    #[test]
    fn what_a_text_depends_on_is_known() {
        let uses = |text: &str| Template::new(text).unwrap().uses();
        assert_eq!(uses("a:{route}:{id}:{generation}:{number}"), Uses::default());
        assert_eq!(uses("{request/a}{state}"), Uses { request: true, state: true, ..Uses::default() });
        assert_eq!(uses("{response}{attempts}"), Uses { response: true, record: true, ..Uses::default() });
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_delivery_tells_of_the_answer_alone() {
        let fits = |text: &str| Template::new(text).unwrap().fits_delivery();
        assert!(fits("{route}{id}{generation}{revision}{response/a}"));
        assert!(!fits("{request/a}") && !fits("{state}") && !fits("{attempts}"));
    }
}
