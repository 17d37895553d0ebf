//! A configuration file as a document of values, and where each of them stands.
//!
//! ```text
//!   roundtrip.toml ──▶ document, place of every key ──▶ keys of the environment laid over it
//! ```
//!
//! An environment variable `ROUNDTRIP__STORE__URL` stands for the key `store.url`. Its value is
//! read as TOML if it is any, and as a text otherwise.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Map, Number, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{Fault, Faults, Place};

/// What names of environment variables that override keys begin with.
pub const OVERRIDES: &str = "ROUNDTRIP__";
/// What stands between the parts of a key in such a name.
const BETWEEN: &str = "__";

/// The way to a value: keys, and numbers of list items.
pub type Path = Vec<String>;

/// A document, and where its values stand.
#[derive(Debug, PartialEq)]
pub struct Document {
    /// The values.
    pub values: Value,
    /// Where it begins: the place of what is not there.
    start: Place,
    places: BTreeMap<Path, Place>,
}

impl Document {
    /// Reads a file's text.
    pub fn read(file: &str, text: &str) -> Result<Document, Faults> {
        let table = DeTable::parse(text).map_err(|error| {
            let place = place(file, text, error.span().unwrap_or(0..0));
            Faults::one(Fault { place, path: Path::new(), text: error.message().to_owned() })
        })?;
        let mut reader = Reader { file, text, places: BTreeMap::new(), path: Path::new() };
        let values = reader.table(table.get_ref());
        Ok(Document { values, start: place(file, text, 0..0), places: reader.places })
    }

    /// Lays over it what the environment says.
    pub fn override_by(&mut self, environment: impl IntoIterator<Item = (String, String)>) {
        let mut overrides: Vec<(String, String)> =
            environment.into_iter().filter(|(name, _)| name.starts_with(OVERRIDES)).collect();
        // The environment has no order; one that always gives the same result is needed.
        overrides.sort();
        for (name, text) in overrides {
            let parts: Vec<&str> = name[OVERRIDES.len()..].split(BETWEEN).collect();
            let mut at = &mut self.values;
            let mut path = Path::new();
            for part in parts {
                let key = key_for(at, part);
                at = inside(at, &key);
                path.push(key);
            }
            *at = value_of(&text);
            self.places.retain(|known, _| !known.starts_with(&path));
            self.places.insert(path, Place::Variable(name));
        }
    }

    /// Where a value stands, or what is nearest around it; or else what is in it: a variable names no table. What stands
    /// nowhere would stand in the file.
    pub fn place(&self, path: &[String]) -> Place {
        let around = (0..=path.len()).rev().find_map(|length| self.places.get(&path[..length]));
        let inside = || self.places.iter().find(|(known, _)| !path.is_empty() && known.starts_with(path));
        around.or_else(|| inside().map(|(_, place)| place)).unwrap_or(&self.start).clone()
    }

    /// Takes a value out, so that the rest can be looked at.
    pub fn remove(&mut self, path: &[String]) -> bool {
        let Some((last, above)) = path.split_last() else { return false };
        self.table(above).is_some_and(|fields| fields.remove(last).is_some())
    }

    /// Puts a value where none is, so that the rest can be looked at.
    pub fn put(&mut self, path: &[String], value: Value) -> bool {
        let Some((last, above)) = path.split_last() else { return false };
        self.table(above).is_some_and(|fields| fields.insert(last.clone(), value).is_none())
    }

    /// The table at this path.
    fn table(&mut self, path: &[String]) -> Option<&mut Map<String, Value>> {
        let mut at = &mut self.values;
        for part in path {
            at = match at {
                Value::Object(fields) => fields.get_mut(part),
                Value::Array(items) => part.parse::<usize>().ok().and_then(|n| items.get_mut(n)),
                _ => None,
            }?;
        }
        at.as_object_mut()
    }
}

/// The key that a part of a variable's name stands for: names of variables have no small
/// letters and no dashes, so one that is there already is known by its letters alone.
fn key_for(at: &Value, part: &str) -> String {
    let plain = part.to_lowercase();
    let known =
        at.as_object().and_then(|fields| fields.keys().find(|key| key.to_lowercase().replace('-', "_") == plain));
    known.cloned().unwrap_or(plain)
}

/// The value under a key, made if there is none.
fn inside<'a>(at: &'a mut Value, key: &str) -> &'a mut Value {
    let item = key.parse::<usize>().ok().filter(|n| at.as_array().is_some_and(|items| *n < items.len()));
    if let Some(n) = item {
        return &mut at[n];
    }
    if !at.is_object() {
        *at = Value::Object(Map::new());
    }
    &mut at[key]
}

/// The value of a variable.
fn value_of(text: &str) -> Value {
    let line = format!("value = {text}");
    let read = DeTable::parse(&line).ok().filter(|table| table.get_ref().len() == 1);
    let mut reader = Reader { file: "", text: &line, places: BTreeMap::new(), path: Path::new() };
    match read.map(|table| reader.table(table.get_ref())) {
        Some(mut table) => table["value"].take(),
        None => Value::String(text.to_owned()),
    }
}

struct Reader<'a> {
    file: &'a str,
    text: &'a str,
    places: BTreeMap<Path, Place>,
    path: Path,
}

impl Reader<'_> {
    fn table(&mut self, table: &DeTable<'_>) -> Value {
        let mut fields = Map::new();
        for (key, value) in table {
            let read = self.at(key.get_ref().to_string(), key.span(), value);
            fields.insert(key.get_ref().to_string(), read);
        }
        Value::Object(fields)
    }

    /// Reads a value, and notes where its key stands.
    fn at(&mut self, key: String, span: Range<usize>, value: &Spanned<DeValue<'_>>) -> Value {
        self.path.push(key);
        self.places.insert(self.path.clone(), place(self.file, self.text, span));
        let read = self.value(value);
        self.path.pop();
        read
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>) -> Value {
        match value.get_ref() {
            DeValue::String(text) => Value::String(text.to_string()),
            DeValue::Integer(digits) => {
                let number = i128::from_str_radix(digits.as_str(), digits.radix()).ok();
                let fits = number
                    .and_then(|n| i64::try_from(n).ok().map(Number::from).or(u64::try_from(n).ok().map(Number::from)));
                fits.map_or_else(|| Value::String(digits.to_string()), Value::Number)
            }
            DeValue::Float(digits) => {
                let number = digits.as_str().parse().ok().and_then(Number::from_f64);
                number.map_or_else(|| Value::String(digits.to_string()), Value::Number)
            }
            DeValue::Boolean(yes) => Value::Bool(*yes),
            DeValue::Datetime(time) => Value::String(time.to_string()),
            DeValue::Array(items) => Value::Array(
                items.iter().enumerate().map(|(n, item)| self.at(n.to_string(), item.span(), item)).collect(),
            ),
            DeValue::Table(table) => self.table(table),
        }
    }
}

/// The line and column of a place in a text.
fn place(file: &str, text: &str, span: Range<usize>) -> Place {
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) + 1;
    Place::File { file: file.to_owned(), line, column }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    const TEXT: &str = "[store]\nurl = \"sqlite:a.db\"\n\n[[routes.my-price.events]]\nfrom_block = 7\n";

    fn path(text: &str) -> Path {
        text.split('.').map(str::to_owned).collect()
    }

    fn line(document: &Document, at: &str) -> String {
        document.place(&path(at)).to_string()
    }

    #[test]
    fn values_have_places() {
        let document = Document::read("r.toml", TEXT).unwrap();
        let values = json!({"store": {"url": "sqlite:a.db"}, "routes": {"my-price": {"events": [{"from_block": 7}]}}});
        assert_eq!(document.values, values);
        assert_eq!(line(&document, "store.url"), "r.toml:2:1");
        assert_eq!(line(&document, "routes.my-price.events.0.from_block"), "r.toml:5:1");
        assert_eq!(line(&document, "store.nothing"), "r.toml:1:2", "the nearest around it");
    }

    #[test]
    fn the_environment_is_laid_over_the_file() {
        let mut document = Document::read("r.toml", TEXT).unwrap();
        let set = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        document.override_by([
            set("ROUNDTRIP__STORE__URL", "postgres://h/d"),
            set("ROUNDTRIP__ROUTES__MY_PRICE__EVENTS__0__FROM_BLOCK", "9"),
            set("ROUNDTRIP__LOG__FORMAT", "\"json\""),
            set("HOME", "/"),
        ]);
        let routes = json!({"my-price": {"events": [{"from_block": 9}]}});
        let values = json!({"store": {"url": "postgres://h/d"}, "routes": routes, "log": {"format": "json"}});
        assert_eq!(document.values, values);
        assert_eq!(line(&document, "store.url"), "ROUNDTRIP__STORE__URL");
        assert_eq!(line(&document, "log"), "ROUNDTRIP__LOG__FORMAT", "what only the environment has");
    }

    #[test]
    fn what_is_no_toml_is_named_with_its_line() {
        let faults = Document::read("r.toml", "[store]\nurl = \n").unwrap_err();
        assert!(faults.to_string().starts_with("r.toml:2:"), "{faults}");
    }
}
