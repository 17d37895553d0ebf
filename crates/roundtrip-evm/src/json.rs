//! JSON as it is written: values of contracts straight into text, with the keys of objects in
//! order. Every log of a long catch-up passes here.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::Write;

use alloy::dyn_abi::DynSolValue;
use alloy::hex;
use alloy::json_abi::Param;
use alloy::primitives::Address;
use serde::Serialize;
use serde_json::Value;

/// How many texts of addresses are kept.
const ADDRESSES_MAX: usize = 4096;
/// An address as text: `0x`, and two digits for each byte.
type AddressText = [u8; 42];

/// How the parts of a tuple are shown, at whatever depth of lists it is: as an object where
/// every part has a name of its own, else as an array. What is no tuple has no parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    is_object: bool,
    /// In the order in which they are shown.
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    /// Its place in the tuple.
    at: usize,
    /// Its name as the key of an object, with the colon.
    key: String,
    shape: Shape,
}

impl Shape {
    /// Of a tuple with these fields.
    pub(crate) fn of(fields: &[Param]) -> Shape {
        let is_new = |at: usize| fields[..at].iter().all(|before| before.name != fields[at].name);
        let is_object = fields.iter().enumerate().all(|(at, field)| !field.name.is_empty() && is_new(at));
        let mut shown: Vec<(usize, &Param)> = fields.iter().enumerate().collect();
        if is_object {
            shown.sort_by_key(|(_, field)| &field.name);
        }
        let part = |(at, field): (usize, &Param)| {
            let key = if is_object { quoted(&field.name) + ":" } else { String::new() };
            Part { at, key, shape: Shape::of(&field.components) }
        };
        Shape { is_object, parts: shown.into_iter().map(part).collect() }
    }
}

/// A text as JSON.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A value as a document, for where there are few; `fields` name the parts of a tuple.
pub(crate) fn shown(value: &DynSolValue, fields: &[Param]) -> Value {
    let mut json = Json::default();
    serde_json::from_slice(json.value(value, &Shape::of(fields)).text()).expect("what is written here is JSON")
}

/// A text of JSON, and what makes the next one cheaper to write.
#[derive(Debug, Default)]
pub(crate) struct Json {
    text: Vec<u8>,
    /// An address has a checksum in its text, and costs a hash; who was named is mostly
    /// named again.
    addresses: HashMap<Address, AddressText, foldhash::quality::RandomState>,
}

impl Json {
    /// Begins a new text.
    pub(crate) fn begin(&mut self) -> &mut Json {
        self.text.clear();
        self
    }

    /// The text so far.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// What is JSON already.
    pub(crate) fn raw(&mut self, json: &str) -> &mut Json {
        self.text.extend_from_slice(json.as_bytes());
        self
    }

    /// Whatever can be shown as JSON.
    pub(crate) fn any(&mut self, value: &(impl Serialize + ?Sized)) -> &mut Json {
        serde_json::to_writer(&mut self.text, value).expect("memory takes what is written, and keys are texts");
        self
    }

    /// An address, with its checksum.
    pub(crate) fn address(&mut self, address: Address) -> &mut Json {
        if self.addresses.len() >= ADDRESSES_MAX {
            self.addresses.clear();
        }
        let text = self.addresses.entry(address).or_insert_with(|| {
            let mut text = [0; size_of::<AddressText>()];
            let _text = address.to_checksum_raw(&mut text, None);
            text
        });
        self.text.push(b'"');
        self.text.extend_from_slice(text);
        self.text.push(b'"');
        self
    }

    /// A value; `shape` is that of the tuple that it is, or is a list of.
    pub(crate) fn value(&mut self, value: &DynSolValue, shape: &Shape) -> &mut Json {
        match value {
            DynSolValue::Bool(value) => self.raw(if *value { "true" } else { "false" }),
            DynSolValue::Int(value, _) => self.number(value),
            DynSolValue::Uint(value, _) => self.number(value),
            DynSolValue::FixedBytes(word, size) => self.bytes(&word[..*size]),
            DynSolValue::Address(address) => self.address(*address),
            DynSolValue::Function(function) => self.bytes(function.as_slice()),
            DynSolValue::Bytes(bytes) => self.bytes(bytes),
            DynSolValue::String(text) => self.any(text),
            DynSolValue::Array(items) | DynSolValue::FixedArray(items) => self.list(items, shape),
            DynSolValue::Tuple(parts) => self.tuple(parts, shape),
        }
    }

    fn list(&mut self, items: &[DynSolValue], shape: &Shape) -> &mut Json {
        self.raw("[");
        for (n, item) in items.iter().enumerate() {
            self.raw(if n > 0 { "," } else { "" }).value(item, shape);
        }
        self.raw("]")
    }

    /// The parts of a tuple, in the order of its shape.
    pub(crate) fn tuple(&mut self, values: &[DynSolValue], shape: &Shape) -> &mut Json {
        let (open, close) = if shape.is_object { ("{", "}") } else { ("[", "]") };
        self.raw(open);
        let there = shape.parts.iter().filter_map(|part| Some((part, values.get(part.at)?)));
        for (n, (part, value)) in there.enumerate() {
            self.raw(if n > 0 { "," } else { "" }).raw(&part.key).value(value, &part.shape);
        }
        self.raw(close)
    }

    /// A decimal string: many readers of JSON round numbers beyond 2^53.
    fn number(&mut self, number: &impl Display) -> &mut Json {
        write!(self.text, "\"{number}\"").expect("memory takes what is written");
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Json {
        self.raw("\"0x");
        let start = self.text.len();
        self.text.resize(start + 2 * bytes.len(), 0);
        hex::encode_to_slice(bytes, &mut self.text[start..]).expect("there is room for two digits of each byte");
        self.raw("\"")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::primitives::{Function, I256, U256};

    use super::*;

    fn shown(value: &DynSolValue, shape: &Shape) -> String {
        String::from_utf8(Json::default().value(value, shape).text().to_vec()).unwrap()
    }

    #[test]
    fn each_kind_of_value_has_one_text() {
        let none = Shape::of(&[]);
        let number = |n: u64| DynSolValue::Uint(U256::from(n), 256);
        let cases = [
            (DynSolValue::Bool(true), "true"),
            (DynSolValue::Int(I256::MINUS_ONE, 8), r#""-1""#),
            (number(u64::MAX), r#""18446744073709551615""#),
            (DynSolValue::FixedBytes([7; 32].into(), 2), r#""0x0707""#),
            (DynSolValue::Bytes(vec![]), r#""0x""#),
            (DynSolValue::Bytes(vec![0, 255]), r#""0x00ff""#),
            (DynSolValue::String("a \"b\"\n茶".into()), r#""a \"b\"\n茶""#),
            (DynSolValue::Function(Function::ZERO), r#""0x000000000000000000000000000000000000000000000000""#),
            (DynSolValue::Array(vec![]), "[]"),
            (DynSolValue::FixedArray(vec![DynSolValue::Array(vec![number(1), number(2)])]), r#"[["1","2"]]"#),
        ];
        for (value, text) in cases {
            assert_eq!(shown(&value, &none), text);
        }
    }

    #[test]
    fn an_address_has_its_checksum_however_often_it_is_written() {
        let address: Address = "0x5fbdb2315678afecb367f032d93f642f64180aa3".parse().unwrap();
        let mut json = Json::default();
        for n in 0..ADDRESSES_MAX + 2 {
            let other = Address::left_padding_from(&n.to_be_bytes());
            for address in [other, address, address] {
                let text = serde_json::to_vec(&address.to_string()).unwrap();
                assert_eq!(json.begin().address(address).text(), text);
            }
            assert!(json.addresses.len() <= ADDRESSES_MAX);
        }
    }

    #[test]
    fn parts_with_names_of_their_own_are_an_object_in_the_order_of_keys() {
        let field = |name: &str, components: &[Param]| Param {
            ty: "uint8".into(),
            name: name.into(),
            components: components.to_vec(),
            internal_type: None,
        };
        let number = |n: u64| DynSolValue::Uint(U256::from(n), 8);
        let pair = DynSolValue::Tuple(vec![number(1), number(2)]);
        let named = [field("y", &[]), field("X", &[])];
        assert_eq!(shown(&pair, &Shape::of(&named)), r#"{"X":"2","y":"1"}"#);
        for fields in [["x", "x"], ["x", ""], ["", ""]] {
            assert_eq!(shown(&pair, &Shape::of(&fields.map(|name| field(name, &[])))), r#"["1","2"]"#);
        }
        let deep = DynSolValue::Tuple(vec![DynSolValue::Array(vec![pair.clone(), pair]), number(3)]);
        let shape = Shape::of(&[field("l", &named), field("a", &[])]);
        assert_eq!(shown(&deep, &shape), r#"{"a":"3","l":[{"X":"2","y":"1"},{"X":"2","y":"1"}]}"#);
    }
}
