//! Whether a mapping can make the arguments of a call.
//!
//! It is checked against the function at the start: parameters that are unknown or missing,
//! constants that do not fit, lists and objects where something else is wanted. What only an
//! answer can show, a field that is missing or does not fit, makes that answer a dead letter.

use alloy::dyn_abi::DynSolType;
use alloy::json_abi::Param;

use crate::abi::{self, Mismatch};
use crate::listener::EventSignature;
use crate::mapping::Mapping;

/// The event that makes the requests, if it is to be checked against.
pub(crate) type Asked<'a> = Option<&'a EventSignature>;

/// The document that an event makes.
const REQUEST: &str = "request";
/// How long an address is.
const ADDRESS_BYTES: usize = 20;

impl Mapping {
    /// Whether it could ever make these parameters.
    pub(crate) fn check(&self, params: &[Param], asked: Asked<'_>) -> Result<(), Mismatch> {
        self.check_parts("", params, asked)
    }

    /// Whether it could ever make a value of this type.
    pub(crate) fn check_value(
        &self,
        at: &str,
        wanted: &DynSolType,
        fields: &[Param],
        asked: Asked<'_>,
    ) -> Result<(), Mismatch> {
        let each = |items: &[Mapping], inner: &DynSolType| {
            let mut items = items.iter().enumerate();
            items.try_for_each(|(n, item)| item.check_value(&format!("{at}/{n}"), inner, fields, asked))
        };
        match (self, wanted) {
            (Mapping::Field { root, path }, _) if root == REQUEST => {
                let Some(event) = asked else { return Ok(()) };
                match event.field(path).map_err(|why| Mismatch::new(at, why))? {
                    Some(kind) if fits(&kind, wanted) => Ok(()),
                    Some(kind) => Err(Mismatch::new(at, format!("{wanted} is wanted, and /request{path} is {kind}"))),
                    None => Err(Mismatch::new(at, format!("{wanted} is wanted, and /request{path} is none"))),
                }
            }
            (Mapping::Field { .. }, _) => Ok(()),
            (Mapping::Constant(value), _) => abi::value_of(at, wanted, fields, value).map(|_| ()),
            (Mapping::List(items), DynSolType::Array(inner)) => each(items, inner),
            (Mapping::List(items), DynSolType::FixedArray(inner, size)) if items.len() == *size => each(items, inner),
            (Mapping::List(_) | Mapping::Fields(_), DynSolType::Tuple(_)) => self.check_parts(at, fields, asked),
            _ => Err(Mismatch::new(at, format!("{wanted} is wanted"))),
        }
    }

    /// Whether it names each of these parts, and no other.
    fn check_parts(&self, at: &str, params: &[Param], asked: Asked<'_>) -> Result<(), Mismatch> {
        let part = |n: usize, param: &Param| match self {
            Mapping::Fields(fields) => fields.get(&param.name),
            Mapping::List(items) => items.get(n),
            _ => None,
        };
        let known = |name: &String| params.iter().any(|param| param.name == *name);
        match self {
            // All of the arguments at once; only answers can show whether they fit.
            Mapping::Field { .. } => return Ok(()),
            Mapping::Constant(_) => return Err(Mismatch::new(at, "an object or a list is wanted")),
            Mapping::Fields(fields) => {
                if let Some(name) = fields.keys().find(|name| !known(name)) {
                    return Err(Mismatch::new(&format!("{at}/{name}"), "there is no such parameter"));
                }
            }
            Mapping::List(items) if items.len() > params.len() => {
                let why = format!("{} values where {} are wanted", items.len(), params.len());
                return Err(Mismatch::new(at, why));
            }
            Mapping::List(_) => {}
        }
        for (n, param) in params.iter().enumerate() {
            let name = if param.name.is_empty() { n.to_string() } else { param.name.clone() };
            let here = format!("{at}/{name}");
            let part = part(n, param).ok_or_else(|| Mismatch::new(&here, "it is missing"))?;
            part.check_value(&here, &abi::type_of(&here, param)?, &param.components, asked)?;
        }
        Ok(())
    }
}

/// Whether the JSON of a value of one type can ever be read as another. Texts may hold
/// anything; what is written in decimal is never read as bytes.
fn fits(from: &DynSolType, to: &DynSolType) -> bool {
    use DynSolType::{Address, Array, Bool, Bytes, FixedArray, FixedBytes, Int, String, Tuple, Uint};
    match (from, to) {
        (Bool, Bool) => true,
        (Bool | Array(_) | FixedArray(..) | Tuple(_), String) => false,
        (_, String) | (String, Int(_) | Uint(_) | Address | Bytes | FixedBytes(_)) => true,
        (Int(_) | Uint(_) | Address | Bytes | FixedBytes(_), Int(_) | Uint(_)) => true,
        (FixedBytes(size), FixedBytes(wanted)) => size == wanted,
        (FixedBytes(size), Address) | (Address, FixedBytes(size)) => *size == ADDRESS_BYTES,
        (Bytes, FixedBytes(_) | Address | Bytes) | (FixedBytes(_) | Address, Bytes) | (Address, Address) => true,
        (FixedArray(one, size), FixedArray(other, wanted)) => size == wanted && fits(one, other),
        (Array(one) | FixedArray(one, _), Array(other)) | (Array(one), FixedArray(other, _)) => fits(one, other),
        (Tuple(ones), Tuple(others)) => {
            ones.len() == others.len() && ones.iter().zip(others).all(|(one, other)| fits(one, other))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::json_abi::Function;
    use serde_json::{Value, json};

    use super::*;

    fn read(mapping: &Value) -> Mapping {
        Mapping::read(mapping, &["request", "response"])
    }

    #[test]
    fn a_mapping_that_can_never_fit_is_refused_at_the_start() {
        let function = |text| Function::parse(text).unwrap();
        let cases = [
            ("f(uint8 a, bytes b)", json!({"a": "/request/x", "b": "/response"}), ""),
            ("f(uint8 a, bytes b)", json!({"a": 255, "b": "0x01"}), ""),
            ("f(uint8 a, bytes b)", json!(["/request/x", "0x"]), ""),
            ("f(uint8 a)", json!("/response"), ""),
            ("f(uint8 a)", json!({"a": 1, "b": 2}), "/b: there is no such parameter"),
            ("f(uint8 a, bytes b)", json!({"a": 1}), "/b: it is missing"),
            ("f(uint8 a)", json!({"a": 256}), "/a"),
            ("f(uint8 a)", json!({"a": "x"}), "/a"),
            ("f(uint8 a)", json!({"a": ["/response"]}), "/a: uint8 is wanted"),
            ("f(uint8 a)", json!({"a": {"x": "/response"}}), "/a: uint8 is wanted"),
            ("f(address a)", json!({"a": "0x12"}), "/a"),
            ("f(bytes4 a)", json!({"a": "0x010203"}), "/a"),
            ("f(uint8[2] a)", json!({"a": ["/response/x"]}), "/a: uint8[2] is wanted"),
            ("f(uint8[] a)", json!({"a": ["/response/x", 300]}), "/a/1"),
            ("f((uint8,bytes) a)", json!({"a": ["/response/x", "0x"]}), ""),
            ("f((uint8,bytes) a)", json!({"a": ["/response/x"]}), "/a/1: it is missing"),
            ("f((uint8,bytes) a)", json!({"a": [1, "0x", 3]}), "3 values where 2 are wanted"),
            ("f(uint8 a)", json!(7), "an object or a list is wanted"),
        ];
        for (text, mapping, part) in cases {
            match read(&mapping).check(&function(text).inputs, None) {
                Ok(()) => assert_eq!(part, "", "{text} {mapping}"),
                Err(error) => {
                    assert!(!part.is_empty() && error.to_string().contains(part), "{text} {mapping}: {error}");
                }
            }
        }
    }

    #[test]
    fn fields_of_a_request_must_be_there_and_fit() {
        let event = "event E(uint256 indexed id, address who, bytes data, (uint8, string)[] list, string indexed note)";
        let event = EventSignature::parse(event).unwrap();
        let cases = [
            ("uint8", "/request/args/id", ""),
            ("string", "/request/args/id", ""),
            ("bytes", "/request/args/id", "is uint256"),
            ("address", "/request/args/id", "is uint256"),
            ("address", "/request/args/who", ""),
            ("bytes20", "/request/args/who", ""),
            ("bytes32", "/request/args/who", "is address"),
            ("address", "/request/address", ""),
            ("string", "/request/event", ""),
            ("bytes32", "/request/args/data", ""),
            ("bool", "/request/args/data", "is bytes"),
            ("uint8[]", "/request/args/data", "is bytes"),
            ("uint256", "/request/args/list/0/0", ""),
            ("bool", "/request/args/list/0/1", "is string"),
            ("uint256", "/request/args/list/0/2", "have no /args/list/0/2"),
            ("bytes32", "/request/args/note/hash", ""),
            ("string", "/request/args/note", "is none"),
            ("uint256", "/request/args/nothing", "have no /args/nothing"),
            ("uint256", "/request/nothing", "have no /nothing"),
            ("uint256", "/request/args", "is none"),
        ];
        for (kind, path, part) in cases {
            let function = Function::parse(&format!("f({kind} a)")).unwrap();
            match read(&json!([path])).check(&function.inputs, Some(&event)) {
                Ok(()) => assert_eq!(part, "", "{kind} {path}"),
                Err(error) => assert!(!part.is_empty() && error.to_string().contains(part), "{kind} {path}: {error}"),
            }
        }
        let list = Function::parse("f((uint256, bytes)[] a)").unwrap();
        assert!(read(&json!(["/request/args/list"])).check(&list.inputs, Some(&event)).is_ok());
        let list = Function::parse("f((uint256, bool)[] a)").unwrap();
        assert!(read(&json!(["/request/args/list"])).check(&list.inputs, Some(&event)).is_err());
    }
}
