//! Which call carries answers.

use std::fmt;

use alloy::dyn_abi::{DynSolType, DynSolValue, JsonAbiExt, Specifier};
use alloy::json_abi::{Function, Param};
use alloy::primitives::{Address, Bytes, U256, keccak256};
use roundtrip::sender::chain::Mark;
use roundtrip::store::query::ReadyDelivery;
use roundtrip::words::{Encoding, Payload};
use serde_json::Value;

use super::arguments::Asked;
use crate::abi;
use crate::json::shown;
use crate::listener::EventSignature;
use crate::mapping::Mapping;

/// The documents that arguments are made of.
const REQUEST: &str = "request";
const RESPONSE: &str = "response";

/// A call to a contract.
#[derive(Clone, PartialEq, Eq)]
pub struct Call {
    /// Which contract.
    pub to: Address,
    /// What is called, and with what.
    pub data: Bytes,
    /// How much is sent along.
    pub value: U256,
}

impl Call {
    /// What is the same in two calls that do the same.
    fn mark(&self) -> Mark {
        marked(&[self.to.as_slice(), &self.value.to_be_bytes::<32>(), &self.data])
    }
}

fn marked(parts: &[&[u8]]) -> Mark {
    Mark(keccak256(parts.concat()).0)
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({}, {} bytes)", self.to, self.data.len())
    }
}

/// Makes calls of answers.
pub trait Calls: Send + Sync + 'static {
    /// The call that carries these answers, or why the first of them never can be carried.
    fn call(&self, answers: &[ReadyDelivery]) -> Result<Call, String>;

    /// The contracts whose logs show that a call had its effect; mostly those that are
    /// called. One log is proof enough, since what fails leaves none; a call that leaves
    /// none at all is looked into by its receipt, and so is every call if there are no
    /// such contracts.
    fn contracts(&self) -> Vec<Address> {
        Vec::new()
    }

    /// Whether calls need [`ReadyDelivery::request`], which costs a read for each answer.
    fn wants_requests(&self) -> bool {
        false
    }

    /// By what an answer is known again in a call that carries it, when lanes are rebuilt from the
    /// chain: by the call that carries it alone, unless calls of several answers can be told
    /// apart.
    fn mark(&self, answer: &ReadyDelivery) -> Result<Mark, String> {
        self.call(std::slice::from_ref(answer)).map(|call| call.mark())
    }

    /// The answers that a call carries, each by its mark.
    fn carried(&self, call: &Call) -> Vec<Mark> {
        vec![call.mark()]
    }
}

impl<F: Fn(&[ReadyDelivery]) -> Result<Call, String> + Send + Sync + 'static> Calls for F {
    fn call(&self, answers: &[ReadyDelivery]) -> Result<Call, String> {
        self(answers)
    }
}

/// A contract's function, by its human-readable signature, whose arguments the answers are.
///
/// An answer is JSON: an object by the names of the parameters, or an array; or a mapping
/// makes the arguments of fields of the request and its answer
/// ([`ContractCall::with_arguments`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContractCall {
    to: Address,
    function: Function,
    shape: Shape,
    mapping: Mapping,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// One answer makes the arguments.
    One,
    /// The answers are the elements of the only argument.
    Many,
}

/// A text that is no signature of such a function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} cannot be called: {why}")]
pub struct BadFunction {
    pub(crate) text: String,
    pub(crate) why: String,
}

impl ContractCall {
    /// A function that takes one answer, such as `respond(uint256 id, bytes answer)`.
    pub fn one(to: Address, signature: &str) -> Result<ContractCall, BadFunction> {
        Ok(ContractCall { to, function: parse(signature)?, shape: Shape::One, mapping: Mapping::whole(RESPONSE) })
    }

    /// A function that takes many answers, such as `respondMany((uint256, bytes)[] responses)`.
    /// The parts of such a tuple have no names, so each answer is an array.
    pub fn many(to: Address, signature: &str) -> Result<ContractCall, BadFunction> {
        let function = parse(signature)?;
        let takes_a_list = matches!(&function.inputs[..], [list] if list.ty.ends_with("[]"));
        if !takes_a_list {
            let why = "a function for many answers takes one argument, a list".to_owned();
            return Err(BadFunction { text: signature.to_owned(), why });
        }
        Ok(ContractCall { to, function, shape: Shape::Many, mapping: Mapping::whole(RESPONSE) })
    }

    /// The same function, with arguments that are made of fields of the request and its
    /// answer: texts that begin with `/request/` or `/response/` name them by their paths,
    /// everything else is constant. For one answer, all parameters by their names, or in their
    /// order; for many, one element of the list.
    ///
    /// ```
    /// # use roundtrip_evm::ContractCall;
    /// # use alloy::primitives::Address;
    /// let respond = ContractCall::one(Address::ZERO, "respond(uint256 id, bytes answer, bool ok)")?;
    /// respond.with_arguments(&serde_json::json!({
    ///     "id": "/request/args/id", "answer": "/response/text", "ok": true
    /// }))?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_arguments(mut self, arguments: &Value) -> Result<ContractCall, BadFunction> {
        self.mapping = Mapping::read(arguments, &[REQUEST, RESPONSE]);
        self.check(None)?;
        Ok(self)
    }

    /// The same, with each field of the request that it uses checked: whether requests of this
    /// event have it, and whether it can fit. A route of several events is checked for each.
    pub fn asked_by(self, event: &EventSignature) -> Result<ContractCall, BadFunction> {
        self.check(Some(event))?;
        Ok(self)
    }

    fn check(&self, asked: Asked<'_>) -> Result<(), BadFunction> {
        let checked = match (self.shape, &self.function.inputs[..]) {
            (Shape::Many, [list]) => abi::type_of("", list).and_then(|list_type| match list_type {
                DynSolType::Array(inner) => self.mapping.check_value("", &inner, &list.components, asked),
                _ => Ok(()),
            }),
            (_, params) => self.mapping.check(params, asked),
        };
        let text = self.function.full_signature();
        checked.map_err(|error| BadFunction { text, why: error.to_string() })
    }

    fn arguments(&self, answers: &[ReadyDelivery]) -> Result<Vec<DynSolValue>, String> {
        let read = |params: &[Param], json: &Value| abi::from_json(params, json).map_err(|error| error.to_string());
        match (self.shape, answers) {
            (Shape::One, [answer]) => read(&self.function.inputs, &self.mapped(answer)?),
            (Shape::One, _) => {
                Err(format!("{} takes one answer, and a parcel has {}", self.function.name, answers.len()))
            }
            (Shape::Many, answers) => {
                let list: Result<Vec<Value>, String> = answers.iter().map(|answer| self.mapped(answer)).collect();
                read(&self.function.inputs, &Value::Array(vec![Value::Array(list?)]))
            }
        }
    }

    /// What a call of this function says: its signature, and its arguments as JSON by their
    /// names; nothing of a call to anything else.
    pub fn read(&self, to: Address, data: &[u8]) -> Option<(String, Value)> {
        let (selector, arguments) = data.split_at_checked(4)?;
        if to != self.to || selector != self.function.selector().as_slice() {
            return None;
        }
        let values = self.function.abi_decode_input(arguments).ok()?;
        Some((self.function.signature(), shown(&DynSolValue::Tuple(values), &self.function.inputs)))
    }

    /// One of the elements that a call carries.
    fn mark_of(&self, element: &DynSolValue) -> Mark {
        marked(&[self.to.as_slice(), self.function.selector().as_slice(), &element.abi_encode()])
    }

    /// What an answer makes of the mapping.
    fn mapped(&self, answer: &ReadyDelivery) -> Result<Value, String> {
        let request = match &answer.request {
            Some(payload) if self.mapping.wants(REQUEST) => Some(document("request", payload)?),
            _ => None,
        };
        let response = document("answer", &answer.response)?;
        self.mapping.fill(&|root: &str| if root == REQUEST { request.as_ref() } else { Some(&response) })
    }
}

pub(crate) fn parse(text: &str) -> Result<Function, BadFunction> {
    let bad = |why: String| BadFunction { text: text.to_owned(), why };
    let function = Function::parse(text.trim().trim_end_matches(';')).map_err(|error| bad(error.to_string()))?;
    for input in &function.inputs {
        input.resolve().map_err(|error| bad(error.to_string()))?;
    }
    Ok(function)
}

fn document(what: &str, payload: &Payload) -> Result<Value, String> {
    if payload.encoding != Encoding::Json {
        return Err(format!("the {what} is {:?}, not JSON", payload.encoding));
    }
    serde_json::from_slice(&payload.bytes).map_err(|error| format!("the {what} is no JSON: {error}"))
}

impl Calls for ContractCall {
    fn call(&self, answers: &[ReadyDelivery]) -> Result<Call, String> {
        let arguments = self.arguments(answers)?;
        let data = self.function.abi_encode_input(&arguments).map_err(|error| error.to_string())?;
        Ok(Call { to: self.to, data: data.into(), value: U256::ZERO })
    }

    fn contracts(&self) -> Vec<Address> {
        vec![self.to]
    }

    fn wants_requests(&self) -> bool {
        self.mapping.wants(REQUEST)
    }

    fn mark(&self, answer: &ReadyDelivery) -> Result<Mark, String> {
        let call = self.call(std::slice::from_ref(answer))?;
        match &self.carried(&call)[..] {
            [mark] => Ok(*mark),
            _ => Err("an answer that is not one element of its call".to_owned()),
        }
    }

    fn carried(&self, call: &Call) -> Vec<Mark> {
        if self.shape == Shape::One {
            return vec![call.mark()];
        }
        let (selector, arguments) = call.data.split_at_checked(4).unwrap_or_default();
        if call.to != self.to || selector != self.function.selector().as_slice() {
            return Vec::new();
        }
        match self.function.abi_decode_input(arguments).ok().as_deref() {
            Some([DynSolValue::Array(list)]) => list.iter().map(|one| self.mark_of(one)).collect(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::sol_types::SolCall;
    use roundtrip::words::{RequestId, RouteName, Seq, Token};
    use serde_json::json;

    use super::*;

    alloy::sol! {
        function respond(uint256 id, bytes answer);
        function respondMany((uint256, bytes)[] responses);
    }

    fn answer(response: Payload) -> ReadyDelivery {
        ReadyDelivery {
            id: RequestId([0; 32]),
            seq: Seq(0),
            route: RouteName::new("route").unwrap(),
            generation: 0,
            revision: 0,
            answer: Token { epoch: 0, count: 0 },
            response,
            failure: false,
            failures: 0,
            request: None,
            trace: None,
        }
    }

    #[test]
    fn a_mapping_makes_arguments_of_request_and_answer() {
        let asked = |text: &'static str, id: u64| ReadyDelivery {
            request: Some(Payload::json(format!(r#"{{"args": {{"id": "{id}"}}}}"#))),
            ..answer(Payload::json(text))
        };
        let one = ContractCall::one(Address::ZERO, "respond(uint256 id, bytes answer)").unwrap();
        let one = one.with_arguments(&json!({"id": "/request/args/id", "answer": "/response/text"})).unwrap();
        assert!(one.wants_requests());
        let made = one.call(&[asked(r#"{"text": "0x0102"}"#, 9)]).unwrap();
        assert_eq!(made.data, respondCall { id: U256::from(9), answer: Bytes::from_static(&[1, 2]) }.abi_encode());
        assert_eq!(one.call(&[asked("{}", 9)]).unwrap_err(), "there is no /response/text");
        assert_eq!(one.call(&[answer(Payload::json("{}"))]).unwrap_err(), "there is no /response/text");

        let many = ContractCall::many(Address::ZERO, "respondMany((uint256, bytes)[] responses)").unwrap();
        assert!(!many.wants_requests());
        let many = many.with_arguments(&json!(["/request/args/id", "/response"])).unwrap();
        let list = vec![(U256::from(1), Bytes::from_static(&[1])), (U256::from(2), Bytes::from_static(&[2]))];
        let answers = [asked(r#""0x01""#, 1), asked(r#""0x02""#, 2)];
        assert_eq!(many.call(&answers).unwrap().data, respondManyCall { responses: list }.abi_encode());
        let event = |text| EventSignature::parse(text).unwrap();
        assert!(many.clone().asked_by(&event("Asked(uint256 id)")).is_ok());
        let error = many.clone().asked_by(&event("Asked(bool id)")).unwrap_err().to_string();
        assert!(error.contains("/0: uint256 is wanted, and /request/args/id is bool"), "{error}");
        let error = many.with_arguments(&json!({"id": 1})).unwrap_err().to_string();
        assert!(error.contains("no such parameter"), "{error}");
    }

    #[test]
    fn an_answer_makes_the_arguments() {
        let call = ContractCall::one(Address::repeat_byte(7), "respond(uint256 id, bytes answer)").unwrap();
        let made = call.call(&[answer(Payload::json(r#"{"answer": "0x0102", "id": "9"}"#))]).unwrap();
        let expected = respondCall { id: U256::from(9), answer: Bytes::from_static(&[1, 2]) }.abi_encode();
        assert_eq!((made.to, made.data), (Address::repeat_byte(7), expected.into()));
    }

    #[test]
    fn a_call_is_read_back_by_its_function_alone() {
        let call = ContractCall::one(Address::repeat_byte(7), "respond(uint256 id, bytes answer)").unwrap();
        let made = call.call(&[answer(Payload::json(r#"{"answer": "0x0102", "id": "9"}"#))]).unwrap();
        let (signature, arguments) = call.read(made.to, &made.data).unwrap();
        assert_eq!(signature, "respond(uint256,bytes)");
        assert_eq!(arguments, json!({"id": "9", "answer": "0x0102"}));
        assert_eq!(call.read(Address::ZERO, &made.data), None);
        assert_eq!(call.read(made.to, &made.data[..10]), None);
        assert_eq!(call.read(made.to, b""), None);
    }

    #[test]
    fn many_answers_make_a_list() {
        let text = "function respondMany((uint256, bytes)[] responses)";
        let call = ContractCall::many(Address::ZERO, text).unwrap();
        let answers = [r#"[1, "0x01"]"#, r#"[2, "0x02"]"#].map(|text| answer(Payload::json(text)));
        let list = vec![(U256::from(1), Bytes::from_static(&[1])), (U256::from(2), Bytes::from_static(&[2]))];
        assert_eq!(call.call(&answers).unwrap().data, respondManyCall { responses: list }.abi_encode());
    }

    #[test]
    fn an_answer_is_known_again_in_whatever_call_carried_it() {
        let marks = |call: &ContractCall, carried: &[&'static str]| {
            let answers: Vec<_> = carried.iter().map(|text| answer(Payload::json(*text))).collect();
            call.carried(&call.call(&answers).unwrap())
        };
        let mark = |call: &ContractCall, text| call.mark(&answer(Payload::json(text))).unwrap();
        let (first, second, third) = (r#"[1, "0x01"]"#, r#"[2, "0x02"]"#, r#"[2, "0x03"]"#);
        let one = ContractCall::one(Address::ZERO, "respond(uint256 id, bytes answer)").unwrap();
        assert_eq!(marks(&one, &[first]), [mark(&one, first)]);
        assert_ne!(mark(&one, second), mark(&one, third));
        let many = ContractCall::many(Address::ZERO, "respondMany((uint256, bytes)[] responses)").unwrap();
        assert_eq!(marks(&many, &[first, second]), [mark(&many, first), mark(&many, second)]);
        assert_eq!(marks(&many, &[second, third, first])[2], mark(&many, first));
        let elsewhere = ContractCall::many(Address::repeat_byte(1), "respondMany((uint256, bytes)[] responses)");
        let other = elsewhere.unwrap().call(&[answer(Payload::json(first))]).unwrap();
        assert_eq!(many.carried(&other), [], "another contract");
        let nothing = Call { to: Address::ZERO, data: Bytes::new(), value: U256::ZERO };
        assert_eq!(many.carried(&nothing), []);
        let with_value = Call { value: U256::ONE, ..one.call(&[answer(Payload::json(first))]).unwrap() };
        assert_ne!(one.carried(&with_value), [mark(&one, first)], "money was sent along");
    }

    #[test]
    fn what_cannot_be_carried_says_why() {
        let call = ContractCall::one(Address::ZERO, "respond(uint256 id, bytes answer)").unwrap();
        let raw = answer(Payload::raw(&b"{}"[..]));
        let wrong = answer(Payload::json(r#"{"id": "x", "answer": "0x"}"#));
        let broken = answer(Payload::json("{"));
        let two = vec![wrong.clone(), wrong.clone()];
        for (answers, part) in
            [(vec![raw], "not JSON"), (vec![wrong], "/id"), (vec![broken], "no JSON"), (two, "one answer")]
        {
            let why = call.call(&answers).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
        assert!(ContractCall::one(Address::ZERO, "respond(").is_err());
        assert!(ContractCall::one(Address::ZERO, "respond(uint257 id)").is_err());
        assert!(ContractCall::many(Address::ZERO, "respond(uint256 id)").is_err());
    }
}
