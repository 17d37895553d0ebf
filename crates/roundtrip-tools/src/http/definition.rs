//! What a tool says of itself: the schemas of what it takes and what it answers.
//!
//! A definition is JSON with `input_schema` and `output_schema`; either may be missing. It comes from
//! the tool's own `/meta`, or from a registry that was read before ([`crate::prepare`]).

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::cache::Cache;
use crate::errand::{Errand, Meaning, Trouble};
use crate::prepare::Page;
use crate::schema::Schema;

/// How long a definition that was read stays ready; it is known by its text, so it never gets old.
const READY_FOR: Duration = Duration::from_secs(3600);

/// What a tool takes and answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Definition {
    pub(super) input: Option<Arc<Schema>>,
    pub(super) output: Option<Arc<Schema>>,
}

impl Definition {
    pub(super) fn read(json: &Value) -> Result<Definition, String> {
        if !json.is_object() {
            return Err("a definition is an object with `input_schema` and `output_schema`".to_owned());
        }
        let schema = |name: &str| match json.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(schema) => {
                Schema::read(schema).map(|schema| Some(Arc::new(schema))).map_err(|error| format!("{name}: {error}"))
            }
        };
        Ok(Definition { input: schema("input_schema")?, output: schema("output_schema")? })
    }
}

/// Where definitions come from.
#[derive(Debug)]
pub enum Source {
    /// A URL that tells it, such as the tool's `/meta`.
    Meta(Page),
    /// A part of what is known, as a path such as `/tool`.
    Part(String),
}

/// Definitions, each made ready once.
#[derive(Debug)]
pub(super) struct Definitions {
    source: Source,
    ready: Cache<Definition>,
}

impl Definitions {
    pub(super) fn new(source: Source) -> Definitions {
        Definitions { source, ready: Cache::new(READY_FOR) }
    }

    /// The definition of the tool that an errand is for. One that cannot be had or used is no
    /// fault of the request: it waits until there is a better one.
    pub(super) async fn of(&self, errand: &Errand) -> Result<Definition, Trouble> {
        let text = match &self.source {
            Source::Meta(page) => {
                page.read(&errand.document, errand.read_until).await.map_err(|trouble| match page.is_fixed() {
                    true => Trouble { meaning: Meaning::Unavailable, ..trouble },
                    // Whom the request names, and is not there, it names for ever.
                    false => trouble,
                })?
            }
            Source::Part(path) => {
                let part = errand.document.pointer(path);
                part.cloned().ok_or_else(|| Trouble::fatal(format!("there is no definition at {path}")))?
            }
        };
        let unusable = |why: String| Trouble::unavailable(format!("the tool's definition cannot be used: {why}"));
        self.ready.get(&text.to_string(), async { Definition::read(&text) }).await.map_err(unusable)
    }

    /// What is wrong with the tool's own definition, as far as it can be read now.
    pub(super) async fn probe(&self) -> Result<(), String> {
        match &self.source {
            Source::Meta(page) => match page.probe().await? {
                Some(text) => Definition::read(&text).map(|_| ()),
                None => Ok(()),
            },
            Source::Part(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_definition_is_two_schemas_or_fewer() {
        let read = |json: Value| Definition::read(&json);
        assert!(read(json!({"fqn": "a.b@1", "input_schema": {"type": "object"}})).unwrap().input.is_some());
        assert!(read(json!({"output_schema": null})).unwrap().output.is_none());
        assert!(read(json!([])).is_err());
        let told = read(json!({"output_schema": {"type": "nothing"}})).unwrap_err();
        assert!(told.starts_with("output_schema: it is no schema"), "{told}");
    }
}
