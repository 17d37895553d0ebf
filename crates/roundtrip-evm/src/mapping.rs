//! JSON that is made of fields of other documents.
//!
//! A mapping is JSON in the shape of what it makes. A text that begins with the name of a
//! document, such as `/request/` (or is that alone), stands for that field, by its path as in
//! RFC 6901; everything else is a constant, or made of its parts:
//!
//! ```json
//! {"id": "/request/args/id", "result": {"value": "/response/value", "ok": true}, "sources": ["/response/url"]}
//! ```

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// A field of a document, or all of it.
    Field {
        /// Which document.
        root: String,
        /// Which field, as a path; all of it if empty.
        path: String,
    },
    /// Always the same.
    Constant(Value),
    /// A list, of the value of each.
    List(Vec<Mapping>),
    /// An object, of the value of each.
    Fields(BTreeMap<String, Mapping>),
}

impl Mapping {
    /// Reads a mapping of fields of these documents.
    pub fn read(json: &Value, roots: &[&str]) -> Mapping {
        let place = |text: &str| {
            let rest = text.strip_prefix('/')?;
            let root = roots.iter().find(|root| {
                rest.strip_prefix(**root).is_some_and(|after| after.is_empty() || after.starts_with('/'))
            })?;
            Some(Mapping::Field { root: (*root).to_owned(), path: rest[root.len()..].to_owned() })
        };
        match json {
            Value::String(text) => place(text).unwrap_or_else(|| Mapping::Constant(json.clone())),
            Value::Array(items) => Mapping::List(items.iter().map(|item| Mapping::read(item, roots)).collect()),
            Value::Object(fields) => {
                let read = fields.iter().map(|(name, field)| (name.clone(), Mapping::read(field, roots)));
                Mapping::Fields(read.collect())
            }
            constant => Mapping::Constant(constant.clone()),
        }
    }

    /// All of a document.
    pub fn whole(root: &str) -> Mapping {
        Mapping::Field { root: root.to_owned(), path: String::new() }
    }

    /// Whether anything of this document is used.
    pub fn wants(&self, document: &str) -> bool {
        match self {
            Mapping::Field { root, .. } => root == document,
            Mapping::Constant(_) => false,
            Mapping::List(items) => items.iter().any(|item| item.wants(document)),
            Mapping::Fields(fields) => fields.values().any(|field| field.wants(document)),
        }
    }

    /// The value that it stands for, or which field is missing.
    pub fn fill<'a>(&self, document: &impl Fn(&str) -> Option<&'a Value>) -> Result<Value, String> {
        match self {
            Mapping::Field { root, path } => {
                let found = document(root).ok_or_else(|| format!("the {root} is not at hand"))?;
                found.pointer(path).cloned().ok_or_else(|| format!("there is no /{root}{path}"))
            }
            Mapping::Constant(value) => Ok(value.clone()),
            Mapping::List(items) => {
                Ok(Value::Array(items.iter().map(|item| item.fill(document)).collect::<Result<_, _>>()?))
            }
            Mapping::Fields(fields) => {
                let filled = fields.iter().map(|(name, field)| Ok((name.clone(), field.fill(document)?)));
                Ok(Value::Object(filled.collect::<Result<Map<_, _>, String>>()?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_documents_and_constants_make_a_value() {
        let (request, response) = (json!({"args": {"id": "7", "a/b": 1}}), json!({"value": [1, 2], "ok": false}));
        let document = |root: &str| match root {
            "request" => Some(&request),
            "response" => Some(&response),
            _ => None,
        };
        let read = |mapping: &Value| Mapping::read(mapping, &["request", "response", "away"]);
        let cases = [
            (json!("/request/args/id"), json!("7")),
            (json!("/request/args/a~1b"), json!(1)),
            (json!("/response/value/1"), json!(2)),
            (json!("/response"), response.clone()),
            (json!("/responses"), json!("/responses")),
            (json!("request"), json!("request")),
            (json!([true, "/response/ok"]), json!([true, false])),
            (json!({"x": {"y": "/request/args/id"}, "z": null}), json!({"x": {"y": "7"}, "z": null})),
        ];
        for (mapping, filled) in cases {
            assert_eq!(read(&mapping).fill(&document), Ok(filled), "{mapping}");
        }
        let missing = read(&json!({"x": "/response/nothing"})).fill(&document);
        assert_eq!(missing, Err("there is no /response/nothing".to_owned()));
        assert_eq!(read(&json!("/away/x")).fill(&document), Err("the away is not at hand".to_owned()));
        let asks = |mapping: Value| read(&mapping).wants("request");
        assert!(asks(json!({"a": ["/request/args"]})) && !asks(json!({"a": ["/response", 1]})));
    }
}
