//! The reference of the configuration, made of its schema: one table for each part of the file.

use std::fmt::Write;

use serde_json::Value;

use super::schema::{resolved, schema};

/// The reference, as Markdown.
pub fn reference() -> String {
    let root = schema();
    let mut text = String::from(
        "# Configuration\n\n\
         One TOML file, `roundtrip.toml` by default. Every key can be overridden by an environment variable:\n\
         `ROUNDTRIP__STORE__URL` stands for `store.url`. `roundtrip check` names everything that is wrong with a file;\n\
         `roundtrip schema` prints its JSON Schema, for editors. `roundtrip run --only listen,work,send,api` runs a part of it, so that the\n\
         parts are on several machines that share a store on a server. Files are named by whole paths, or from the folder of the\n\
         configuration, wherever the command runs: certificates, secrets, ABIs, descriptors and `sqlite:PATH`, also those that the environment\n\
         gives. This page is made by `roundtrip reference`.\n",
    );
    let mut parts = vec![(String::new(), &root)];
    let mut at = 0;
    while at < parts.len() {
        let (path, part) = parts[at].clone();
        part_of(&root, &path, part, &mut text, &mut parts);
        at += 1;
    }
    text
}

/// One part of the file, and those that are inside it.
fn part_of<'a>(
    root: &'a Value,
    path: &str,
    schema: &'a Value,
    text: &mut String,
    parts: &mut Vec<(String, &'a Value)>,
) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    let mut rows = String::new();
    for (key, property) in properties {
        let inner = resolved(root, property);
        let inside = if path.is_empty() { key.clone() } else { format!("{}.{key}", path.trim_matches(['[', ']'])) };
        let (kind, next) = kind_of(root, &inside, inner);
        parts.extend(next);
        let required =
            schema.get("required").and_then(Value::as_array).is_some_and(|names| names.iter().any(|name| name == key));
        let default = match property.get("default").filter(|value| !value.is_null()) {
            _ if required => "required".to_owned(),
            Some(value) if value.as_object().is_some() || value.as_array().is_some_and(Vec::is_empty) => String::new(),
            Some(value) => format!("`{value}`"),
            None => String::new(),
        };
        let about =
            property.get("description").or(inner.get("description")).and_then(Value::as_str).unwrap_or_default();
        let _infallible =
            writeln!(rows, "| `{key}` | {kind} | {default} | {} |", about.replace('\n', " ").replace('|', "\\|"));
    }
    let title = if path.is_empty() { "The file".to_owned() } else { format!("`{path}`") };
    let about = schema.get("description").and_then(Value::as_str).filter(|_| !path.is_empty()).unwrap_or_default();
    let _infallible = write!(text, "\n## {title}\n\n");
    if !about.is_empty() {
        let _infallible = write!(text, "{}\n\n", about.replace('\n', " "));
    }
    let _infallible = write!(text, "| key | type | default | what it is |\n|---|---|---|---|\n{rows}");
}

/// What a value is, and the part of the file that it opens, if any.
fn kind_of<'a>(root: &'a Value, path: &str, schema: &'a Value) -> (String, Option<(String, &'a Value)>) {
    if schema.get("properties").is_some() {
        return ("table".into(), Some((format!("[{path}]"), schema)));
    }
    if let Some(inner) = schema.get("additionalProperties").filter(|inner| inner.is_object()) {
        let inner = resolved(root, inner);
        let next = inner.get("properties").map(|_| (format!("[{path}.NAME]"), inner));
        return (if next.is_some() { "tables by name" } else { "values by name" }.into(), next);
    }
    if let Some(items) = schema.get("items") {
        let inner = resolved(root, items);
        if inner.get("properties").is_some() {
            return ("list of tables".into(), Some((format!("[[{path}]]"), inner)));
        }
        return (format!("list of {}", kind_of(root, path, inner).0), None);
    }
    (words_of(root, schema), None)
}

/// What a value without parts may be.
fn words_of(root: &Value, schema: &Value) -> String {
    let quoted = |values: &Vec<Value>| values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return quoted(values);
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    for of in ["oneOf", "anyOf"] {
        if let Some(any) = schema.get(of).and_then(Value::as_array) {
            let words: Vec<String> = any.iter().map(|one| one_of(root, resolved(root, one))).collect();
            return words.join(", ");
        }
    }
    match schema.get("type") {
        Some(Value::String(kind)) => kind_name(kind, schema),
        Some(Value::Array(kinds)) => kinds
            .iter()
            .filter_map(Value::as_str)
            .filter(|kind| *kind != "null")
            .map(|kind| kind_name(kind, schema))
            .collect::<Vec<_>>()
            .join(" or "),
        _ => "any value".into(),
    }
}

/// One of several forms: a word, or a table with a certain key.
fn one_of(root: &Value, schema: &Value) -> String {
    match schema.get("properties").and_then(Value::as_object) {
        Some(properties) => properties.keys().map(|key| format!("`{{ {key} = … }}`")).collect::<Vec<_>>().join(", "),
        None if schema.get("items").is_some() => kind_of(root, "", schema).0,
        None => words_of(root, schema),
    }
}

fn kind_name(kind: &str, schema: &Value) -> String {
    match kind {
        "string" if schema.get("pattern").is_some() => "length of time".into(),
        "string" => "text".into(),
        "integer" | "number" => "number".into(),
        "boolean" => "`true`, `false`".into(),
        "object" => "table".into(),
        "array" => "list".into(),
        other => other.into(),
    }
}
