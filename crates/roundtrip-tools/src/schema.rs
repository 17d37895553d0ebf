//! JSON Schema, draft 2020-12: what a tool takes and what it answers, in its own words.
//!
//! A schema may come from anybody, so it is bounded: it refers to nothing outside itself, its
//! patterns are matched in linear time, and one that would go in circles or multiply its work
//! without going deeper into the value is refused. One that refers to itself can still multiply its
//! work with every level of a value; it is applied beside the other work, within a stated time,
//! and is not used again once it took longer.

use std::sync::Arc;
use std::time::Duration;

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;
use tokio::sync::{Mutex, oneshot};

/// Most schemas that one value may be held against at once, however they refer to each other.
const STEPS_MAX: usize = 2_000;
/// Deepest nesting of schemas within each other.
const DEPTH_MAX: usize = 64;
/// Most characters of what is wrong with a value.
const FAULT_CHARS_MAX: usize = 300;

/// How long a schema that refers to itself may take for one value.
const APPLIED_WITHIN: Duration = Duration::from_secs(2);

/// A schema, ready to be held against values.
#[derive(Debug)]
pub struct Schema {
    validator: Validator,
    /// Whether it refers to parts of itself.
    refers: bool,
    /// It took too long once.
    endless: Mutex<bool>,
}

/// A schema that takes too long to apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the schema takes too long to apply")]
pub struct Endless;

impl Schema {
    /// Reads a schema.
    pub fn read(schema: &Value) -> Result<Schema, String> {
        let (mut steps, endless) = (0, Mutex::new(false));
        weigh(schema, schema, 0, &mut steps)?;
        let options = jsonschema::options().with_draft(Draft::Draft202012).offline();
        let options = options.with_pattern_options(PatternOptions::regex().size_limit(1 << 20));
        let validator = options.build(schema).map_err(|error| short(&format!("it is no schema: {error}")))?;
        Ok(Schema { validator, refers: refers(schema), endless })
    }

    /// What of a value is not as the schema says, without the value itself.
    pub async fn check(self: &Arc<Schema>, value: &Value) -> Result<Option<String>, Endless> {
        if self.refers { self.check_within(value, APPLIED_WITHIN).await } else { Ok(self.fault(value)) }
    }

    /// The same beside the other work, one value at a time.
    async fn check_within(self: &Arc<Schema>, value: &Value, limit: Duration) -> Result<Option<String>, Endless> {
        let mut endless = self.endless.lock().await;
        if *endless {
            return Err(Endless);
        }
        let (schema, value) = (self.clone(), value.clone());
        let (say, hear) = oneshot::channel();
        // Not one of the runtime's threads: those are waited for when the program ends.
        let beside = std::thread::Builder::new().name("schema".to_owned()).spawn(move || {
            // Nobody hears what comes too late.
            let _late = say.send(schema.fault(&value));
        });
        match (beside, tokio::time::timeout(limit, hear).await) {
            (Ok(_), Ok(Ok(fault))) => Ok(fault),
            _ => {
                *endless = true;
                Err(Endless)
            }
        }
    }

    fn fault(&self, value: &Value) -> Option<String> {
        let error = self.validator.validate(value).err()?;
        let at = error.instance_path().to_string();
        let at = if at.is_empty() { "the value".to_owned() } else { at };
        Some(short(&format!("{at}: {}", error.masked())))
    }
}

fn short(text: &str) -> String {
    let end = text.char_indices().nth(FAULT_CHARS_MAX).map_or(text.len(), |(at, _)| at);
    text[..end].to_owned()
}

/// Whether any part of a schema refers to another.
fn refers(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            fields.iter().any(|(keyword, inner)| matches!(keyword.as_str(), "$ref" | "$dynamicRef") || refers(inner))
        }
        Value::Array(items) => items.iter().any(refers),
        _ => false,
    }
}

/// Counts the schemas that one value is held against: this one, and all that apply to the same
/// value. Those that apply to its parts are counted from there.
fn weigh(root: &Value, schema: &Value, depth: usize, steps: &mut usize) -> Result<(), String> {
    *steps += 1;
    if *steps > STEPS_MAX || depth > DEPTH_MAX {
        return Err("the schema goes in circles, or takes too much work to apply".to_owned());
    }
    let Value::Object(keywords) = schema else { return Ok(()) };
    for (keyword, inner) in keywords {
        match (keyword.as_str(), inner) {
            ("$ref" | "$dynamicRef", Value::String(target)) => {
                let found = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
                if let Some(found) = found {
                    weigh(root, found, depth + 1, steps)?;
                }
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(all)) => {
                for one in all {
                    weigh(root, one, depth + 1, steps)?;
                }
            }
            ("not" | "if" | "then" | "else", one) => weigh(root, one, depth + 1, steps)?,
            ("dependentSchemas", Value::Object(all)) => {
                for one in all.values() {
                    weigh(root, one, depth + 1, steps)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_held_against_what_the_schema_says() {
        let schema = Schema::read(&json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}},
            "required": ["n"], "additionalProperties": false}));
        let schema = schema.unwrap();
        assert_eq!(schema.fault(&json!({"n": 7})), None);
        for (value, part) in [
            (json!({"n": "secret"}), "/n: "),
            (json!({"n": -1}), "/n: "),
            (json!({}), "the value: "),
            (json!({"n": 1, "m": 2}), "the value: "),
        ] {
            let fault = schema.fault(&value).unwrap();
            assert!(fault.starts_with(part) && !fault.contains("secret"), "{fault}");
        }
        // Draft 2020-12, whatever the schema says of itself.
        let tuple = Schema::read(&json!({"prefixItems": [{"type": "string"}], "items": false})).unwrap();
        assert!(tuple.fault(&json!(["a"])).is_none() && tuple.fault(&json!(["a", 1])).is_some());
    }

    #[test]
    fn a_schema_refers_to_nothing_outside_itself() {
        for outside in ["http://127.0.0.1:1/schema.json", "file:///etc/passwd", "other.json"] {
            assert!(Schema::read(&json!({"$ref": outside})).is_err(), "{outside}");
        }
        let inside = Schema::read(&json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}})).unwrap();
        assert!(inside.fault(&json!("x")).is_some());
        for wrong in [json!({"type": "nothing"}), json!({"pattern": "("}), json!(7)] {
            assert!(Schema::read(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_schema_that_would_never_end_is_refused() {
        let circle = json!({"$ref": "#"});
        let pair = json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}});
        let mut doubling = json!({"$defs": {"d0": {"type": "integer"}}, "$ref": "#/$defs/d30"});
        for n in 1..=30 {
            let below = json!({"$ref": format!("#/$defs/d{}", n - 1)});
            doubling["$defs"][format!("d{n}")] = json!({"allOf": [below, below]});
        }
        for endless in [circle, pair, doubling] {
            assert!(Schema::read(&endless).unwrap_err().contains("in circles"), "{endless}");
        }
        // One that goes deeper with the value ends with it.
        let list = json!({"type": "array", "items": {"$ref": "#"}});
        assert!(Schema::read(&list).unwrap().fault(&json!([[[[]]]])).is_none());
    }

    #[tokio::test]
    async fn a_schema_whose_work_multiplies_with_depth_is_given_up() {
        let multiplies = json!({"items": {"allOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}]}});
        let schema = Arc::new(Schema::read(&multiplies).unwrap());
        let deep = (0..100).fold(json!([]), |inner, _| json!([inner]));
        assert_eq!(schema.check(&json!([[]])).await, Ok(None));
        assert_eq!(schema.check_within(&deep, Duration::from_millis(20)).await, Err(Endless));
        assert_eq!(schema.check(&json!([])).await, Err(Endless), "it is not used again");
    }
}
