//! What a configuration may say, as data: for editors, for the reference, and for telling
//! which keys nobody knows.

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::file::Path;
use super::model::Config;

/// How alike two names must be for one to be taken for the other, from 0 to 1.
const ALIKE: f64 = 0.75;

/// The JSON Schema of the file.
pub fn schema() -> Value {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Config>().to_value();
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".into(), "Roundtrip".into());
    }
    schema
}

/// A key that nobody knows, and the one that may be meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unknown {
    /// Where it is.
    pub path: Path,
    /// What may be meant.
    pub meant: Option<String>,
    /// All keys that could stand there.
    pub known: Vec<String>,
}

/// The keys of a document that nobody knows.
pub(super) fn unknown_keys(schema: &Value, document: &Value) -> Vec<Unknown> {
    let mut found = Vec::new();
    look(schema, schema, document, &mut Path::new(), &mut found);
    found
}

/// Follows a reference, and leaves out that a value may be missing.
pub(super) fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let pointer = name.trim_start_matches('#');
        return root.pointer(pointer).map_or(schema, |found| resolved(root, found));
    }
    let present = |one: &&Value| one.get("type").and_then(Value::as_str) != Some("null");
    match schema.get("anyOf").and_then(Value::as_array).map(|any| any.iter().filter(present).collect::<Vec<_>>()) {
        Some(any) if any.len() == 1 => resolved(root, any[0]),
        _ => schema,
    }
}

/// A value that fits at this path, so that what is beside it can be looked at; none if nobody knows one.
pub(super) fn fitting(root: &Value, path: &[String]) -> Option<Value> {
    let mut schema = root;
    for part in path {
        let table = resolved(root, schema);
        let named = table.get("properties").and_then(|properties| properties.get(part));
        schema = named.or_else(|| table.get("additionalProperties")).or_else(|| table.get("items"))?;
    }
    fitting_here(root, schema)
}

fn fitting_here(root: &Value, schema: &Value) -> Option<Value> {
    let schema = resolved(root, schema);
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    if let Some(word) = schema.get("const").or_else(|| list("enum")?.first()) {
        return Some(word.clone());
    }
    if let Some(ways) = list("oneOf").or_else(|| list("anyOf")) {
        return ways.iter().find_map(|way| fitting_here(root, way));
    }
    match schema.get("type").and_then(Value::as_str) {
        // Of all texts only lengths of time have a form that the schema tells.
        Some("string") if schema.get("pattern").is_some() => Some("1s".into()),
        Some("string") | None => Some("".into()),
        Some("integer" | "number") => Some(1.into()),
        Some("boolean") => Some(false.into()),
        Some("array") => Some(Value::Array(Vec::new())),
        Some("object") => {
            let keys = list("required").into_iter().flatten().filter_map(Value::as_str);
            let fields =
                keys.map(|key| Some((key.to_owned(), fitting_here(root, schema.get("properties")?.get(key)?)?)));
            fields.collect::<Option<_>>().map(Value::Object)
        }
        Some(_) => None,
    }
}

fn look(root: &Value, schema: &Value, value: &Value, path: &mut Path, found: &mut Vec<Unknown>) {
    let schema = resolved(root, schema);
    let properties = schema.get("properties").and_then(Value::as_object);
    let others = schema.get("additionalProperties");
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                path.push(key.clone());
                let known = properties.and_then(|properties| properties.get(key));
                match (known, others) {
                    (Some(schema), _) => look(root, schema, inner, path, found),
                    (None, Some(Value::Bool(false))) => {
                        found.push(unknown(path, key, properties.map(|p| p.keys().cloned().collect())))
                    }
                    (None, Some(schema)) => look(root, schema, inner, path, found),
                    (None, None) => {}
                }
                path.pop();
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else { return };
            for (n, item) in items.iter().enumerate() {
                path.push(n.to_string());
                look(root, schema, item, path, found);
                path.pop();
            }
        }
        _ => {}
    }
}

/// How alike two names are, from 0 to 1. One slip, such as two letters in each other's place, makes a short name very
/// unlike by its letters alone.
fn likeness(key: &str, candidate: &str) -> f64 {
    match strsim::damerau_levenshtein(key, candidate) {
        0 | 1 => 1.0,
        _ => strsim::jaro_winkler(key, candidate),
    }
}

/// Which of these names is meant by one that nobody knows, if any is like it.
pub(super) fn meant<'a>(name: &str, known: &'a [impl AsRef<str>]) -> Option<&'a str> {
    let likeness = |candidate: &&str| likeness(name, candidate);
    let best = known.iter().map(AsRef::as_ref).max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    best.filter(|best| likeness(best) >= ALIKE)
}

fn unknown(path: &Path, key: &str, known: Option<Vec<String>>) -> Unknown {
    let known = known.unwrap_or_default();
    Unknown { path: path.clone(), meant: meant(key, &known).map(str::to_owned), known }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_that_nobody_knows_are_found_wherever_they_are() {
        let document = json!({
            "stroe": {},
            "store": {"url": "memory:", "uri": "", "ulr": ""},
            "routes": {"any-name": {"events": [{"chain": "a", "event": "E()", "adresses": []}], "lease": "1s"}},
            "chains": {"any": {"urls": [], "zzz": 1}},
        });
        let found: Vec<(String, Option<String>)> =
            unknown_keys(&schema(), &document).into_iter().map(|one| (one.path.join("."), one.meant)).collect();
        let expected = [
            ("stroe", Some("store")),
            ("store.uri", Some("url")),
            ("store.ulr", Some("url")),
            ("routes.any-name.events.0.adresses", Some("addresses")),
            ("chains.any.zzz", None),
        ];
        let mut expected: Vec<_> = expected.map(|(path, meant)| (path.to_owned(), meant.map(str::to_owned))).into();
        let mut found = found;
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
    }
}
