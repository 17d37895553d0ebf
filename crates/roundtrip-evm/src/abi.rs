//! From JSON to what contracts speak; `json.rs` writes the way back.
//!
//! Integers are decimal strings, since many readers of JSON round beyond 2^53; bytes and
//! addresses are hexadecimal strings; tuples are objects where all their fields have
//! names, else arrays. Both ways agree: what one writes the other reads.

use alloy::dyn_abi::{DynSolType, DynSolValue};
use alloy::json_abi::{JsonAbi, Param};
use serde_json::Value;

/// Why JSON is not what a contract wants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {why}")]
pub struct Mismatch {
    at: String,
    why: String,
}

impl Mismatch {
    pub(crate) fn new(at: &str, why: impl Into<String>) -> Mismatch {
        Mismatch { at: if at.is_empty() { "the value".to_owned() } else { at.to_owned() }, why: why.into() }
    }
}

/// An ABI, alone or in an artifact of a compiler.
pub(crate) fn read(json: &str) -> serde_json::Result<JsonAbi> {
    let document: Value = serde_json::from_str(json)?;
    let abi = document.get("abi").unwrap_or(&document);
    serde_json::from_value(abi.clone())
}

/// The values of a list of parameters, from an object by their names or from an array.
pub fn from_json(params: &[Param], json: &Value) -> Result<Vec<DynSolValue>, Mismatch> {
    parts_of("", params, json)
}

fn parts_of(at: &str, params: &[Param], json: &Value) -> Result<Vec<DynSolValue>, Mismatch> {
    let part = |n: usize, param: &Param| -> Result<DynSolValue, Mismatch> {
        let here = if param.name.is_empty() { format!("{at}/{n}") } else { format!("{at}/{}", param.name) };
        let part = match json {
            Value::Object(fields) => fields.get(&param.name),
            Value::Array(items) => items.get(n),
            _ => return Err(Mismatch::new(at, "an object or an array is wanted")),
        };
        let part = part.ok_or_else(|| Mismatch::new(&here, "it is missing"))?;
        value_of(&here, &type_of(&here, param)?, &param.components, part)
    };
    if let Value::Array(items) = json
        && items.len() > params.len()
    {
        return Err(Mismatch::new(at, format!("{} values where {} are wanted", items.len(), params.len())));
    }
    params.iter().enumerate().map(|(n, param)| part(n, param)).collect()
}

pub(crate) fn type_of(at: &str, param: &Param) -> Result<DynSolType, Mismatch> {
    use alloy::dyn_abi::Specifier;
    param.resolve().map_err(|error| Mismatch::new(at, error.to_string()))
}

/// One value; `fields` name the parts of a tuple.
pub(crate) fn value_of(at: &str, wanted: &DynSolType, fields: &[Param], json: &Value) -> Result<DynSolValue, Mismatch> {
    let text =
        |text: &str| wanted.coerce_str(text).map_err(|error| Mismatch::new(at, format!("not {wanted}: {error}")));
    let items = |inner: &DynSolType, items: &[Value]| -> Result<Vec<DynSolValue>, Mismatch> {
        items.iter().enumerate().map(|(n, item)| value_of(&format!("{at}/{n}"), inner, fields, item)).collect()
    };
    match (wanted, json) {
        (DynSolType::Bool, Value::Bool(value)) => Ok(DynSolValue::Bool(*value)),
        (DynSolType::String, Value::String(value)) => Ok(DynSolValue::String(value.clone())),
        (DynSolType::Int(_) | DynSolType::Uint(_), Value::Number(number)) => text(&number.to_string()),
        (DynSolType::Int(_) | DynSolType::Uint(_), Value::String(value)) => text(value),
        (DynSolType::Address | DynSolType::Bytes | DynSolType::FixedBytes(_), Value::String(value)) => text(value),
        (DynSolType::Array(inner), Value::Array(list)) => Ok(DynSolValue::Array(items(inner, list)?)),
        (DynSolType::FixedArray(inner, size), Value::Array(list)) if list.len() == *size => {
            Ok(DynSolValue::FixedArray(items(inner, list)?))
        }
        (DynSolType::Tuple(_), Value::Object(_) | Value::Array(_)) => {
            Ok(DynSolValue::Tuple(parts_of(at, fields, json)?))
        }
        _ => Err(Mismatch::new(at, format!("{wanted} is wanted"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::json_abi::Function;
    use serde_json::json;

    use super::*;
    use crate::json::{Json, Shape};

    fn to_json(values: Vec<DynSolValue>, params: &[Param]) -> Value {
        serde_json::from_slice(Json::default().tuple(&values, &Shape::of(params)).text()).unwrap()
    }

    /// What comes back after a way through the ABI's bytes.
    fn round(signature: &str, json: Value) -> Result<Value, Mismatch> {
        use alloy::dyn_abi::JsonAbiExt;
        let function = Function::parse(signature).unwrap();
        let values = from_json(&function.inputs, &json)?;
        let bytes = function.abi_encode_input_raw(&values).unwrap();
        Ok(to_json(function.abi_decode_input(&bytes).unwrap(), &function.inputs))
    }

    #[test]
    fn what_is_written_is_read_back() {
        let address = "0x5FbDB2315678afecb367f032d93F642f64180aa3";
        let big = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
        let cases = [
            ("f(uint256 id, bytes data)", json!({"id": big, "data": "0x"})),
            ("f(int8 a, bool b, string c)", json!({"a": "-128", "b": true, "c": "tea \"and\" 茶"})),
            ("f(address to, bytes4 s)", json!({"to": address, "s": "0x01020304"})),
            ("f((uint8, (string)[]) pair)", json!({"pair": ["1", [["a"], ["b"]]]})),
            ("f(uint8[2][] grid)", json!({"grid": [["1", "2"], ["3", "4"]]})),
            ("f(uint8, uint8)", json!(["1", "2"])),
        ];
        for (signature, json) in cases {
            assert_eq!(round(signature, json.clone()), Ok(json), "{signature}");
        }
    }

    #[test]
    fn parts_of_a_tuple_that_have_names_are_an_object() {
        let parts = json!([{"name": "x", "type": "uint8"}, {"name": "y", "type": "string"}]);
        let pair = json!({"name": "pair", "type": "tuple[]", "components": parts});
        let params: Vec<Param> = serde_json::from_value(json!([pair])).unwrap();
        let document = json!({"pair": [{"x": "1", "y": "a"}]});
        let values = from_json(&params, &document).unwrap();
        assert_eq!(to_json(values, &params), document);
    }

    #[test]
    fn numbers_and_arrays_are_understood_too() {
        assert_eq!(round("f(uint8 a, int16 b)", json!([7, -3])), Ok(json!({"a": "7", "b": "-3"})));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let cases = [
            ("f(uint8 a)", json!({"a": 256}), "/a"),
            ("f(uint8 a)", json!({}), "/a: it is missing"),
            ("f(uint8 a)", json!([1, 2]), "2 values where 1 are wanted"),
            ("f(uint8 a)", json!(1), "an object or an array"),
            ("f((bytes2)[] l)", json!({"l": [["0x0102"], ["0x010203"]]}), "/l/1/0"),
            ("f(uint8[2] l)", json!({"l": [1]}), "/l"),
            ("f(bool b)", json!({"b": "true"}), "/b: bool is wanted"),
            ("f(address a)", json!({"a": "0x12"}), "/a"),
        ];
        for (signature, json, part) in cases {
            let error = round(signature, json).unwrap_err().to_string();
            assert!(error.contains(part), "{signature}: {error}");
        }
    }
}
