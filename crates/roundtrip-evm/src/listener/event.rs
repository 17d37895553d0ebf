//! An event by its human-readable signature or from an ABI, and its arguments as JSON.
//!
//! Only what has one word is in a topic as itself. An indexed argument of any other type,
//! a text, bytes, a list or a tuple, is there as its hash, and is given as `{"hash": "0x…"}`,
//! so that nobody takes the hash for the value.

use std::fmt;

use alloy::dyn_abi::{DecodedEvent, DynSolEvent, DynSolType, DynSolValue, Specifier};
use alloy::json_abi::{Event, EventParam, Param};
use alloy::primitives::{B256, U256, keccak256};
use serde_json::{Value, json};

use crate::abi;
use crate::json::{self, Json, Shape};

/// An event such as `event Requested(uint256 indexed id, address indexed from, bytes payload)`.
#[derive(Clone, PartialEq)]
pub struct EventSignature {
    event: Event,
    /// Its name and types.
    signature: String,
    layout: DynSolEvent,
    /// What each argument is called: its name, or its place where it has none.
    names: Vec<String>,
    /// How the arguments are shown.
    shape: Shape,
    /// The name, and the signature, as JSON.
    quoted: [String; 2],
}

impl Eq for EventSignature {}

/// A text that is no signature of an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no signature of an event, such as event Requested(uint256 indexed id, bytes payload): {why}")]
pub struct BadSignature {
    text: String,
    why: String,
}

/// Why an ABI does not give an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AbiError {
    /// The text is neither an ABI nor a compiler's artifact that has one.
    #[error("this is no ABI in JSON, and no artifact with one under \"abi\": {0}")]
    NotAnAbi(String),
    /// There is no such event.
    #[error("the ABI has no event {wanted}; it has: {}", list(.there))]
    NoSuchEvent {
        /// What was asked for.
        wanted: String,
        /// What is there.
        there: Vec<String>,
    },
    /// Several events have the name.
    #[error("the ABI has several events {wanted}: give one of them in full: {}", list(.there))]
    Ambiguous {
        /// What was asked for.
        wanted: String,
        /// What is there.
        there: Vec<String>,
    },
    /// The event cannot be used.
    #[error(transparent)]
    Unusable(#[from] BadSignature),
}

fn list(there: &[String]) -> String {
    if there.is_empty() { "no events at all".to_owned() } else { there.join(", ") }
}

/// Values that an argument cannot be asked for by.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event} cannot be filtered by {argument}: {why}")]
pub struct BadFilter {
    event: String,
    argument: String,
    why: String,
}

/// An argument that cannot be a deadline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event} has no deadline {argument}: {why}")]
pub struct BadDeadline {
    event: String,
    argument: String,
    why: String,
}

impl EventSignature {
    /// Reads a signature; the word `event` may be left out.
    pub fn parse(text: &str) -> Result<EventSignature, BadSignature> {
        let event = Event::parse(text.trim().trim_end_matches(';'));
        let event = event.map_err(|error| BadSignature { text: text.to_owned(), why: error.to_string() })?;
        EventSignature::of(event)
    }

    /// Finds an event in an ABI, or in an artifact of a compiler: by its name, or, where
    /// several have the same, by name and types, such as `Requested(uint256,bytes)`.
    pub fn from_abi(json: &str, wanted: &str) -> Result<EventSignature, AbiError> {
        let abi = abi::read(json).map_err(|error| AbiError::NotAnAbi(error.to_string()))?;
        let there = abi.events().map(Event::signature).collect();
        let is_wanted = |event: &&Event| event.name == wanted || event.signature() == wanted;
        let found: Vec<&Event> = abi.events().filter(is_wanted).collect();
        match found.as_slice() {
            [] => Err(AbiError::NoSuchEvent { wanted: wanted.to_owned(), there }),
            [event] => Ok(EventSignature::of((*event).clone())?),
            several => {
                let there = several.iter().map(|event| event.signature()).collect();
                Err(AbiError::Ambiguous { wanted: wanted.to_owned(), there })
            }
        }
    }

    fn of(event: Event) -> Result<EventSignature, BadSignature> {
        let bad = |why: String| BadSignature { text: event.full_signature(), why };
        let layout = event.resolve().map_err(|error| bad(error.to_string()))?;
        let name = |(at, name): (usize, &str)| if name.is_empty() { at.to_string() } else { name.to_owned() };
        let names: Vec<String> = event.inputs.iter().map(|input| &*input.name).enumerate().map(name).collect();
        let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
        if let Some((_, name)) = twice {
            return Err(bad(format!("two arguments are called {name}")));
        }
        let mut kinds = layout.indexed().iter();
        let mut is_shown_as_hash = |input: &EventParam| input.indexed && kinds.next().is_some_and(is_hashed);
        let field = |(input, name): (&EventParam, &String)| shown_as(input, name, is_shown_as_hash(input));
        let fields: Vec<Param> = event.inputs.iter().zip(&names).map(field).collect();
        let signature = event.signature();
        let quoted = [&event.name, &signature].map(|text| json::quoted(text));
        Ok(EventSignature { shape: Shape::of(&fields), event, signature, layout, names, quoted })
    }

    /// The event's name.
    pub fn name(&self) -> &str {
        &self.event.name
    }

    /// Its name and types, such as `Requested(uint256,bytes)`: what tells events of one name apart.
    pub fn signature(&self) -> &str {
        &self.signature
    }

    /// Its name, and its name and types, as JSON.
    pub(super) fn quoted(&self) -> [&str; 2] {
        self.quoted.each_ref().map(String::as_str)
    }

    /// The first topic of its logs; an anonymous event has none.
    pub fn topic(&self) -> Option<B256> {
        self.layout.topic_0()
    }

    /// How many topics its logs have.
    pub fn topics(&self) -> usize {
        self.layout.indexed().len() + usize::from(self.topic().is_some())
    }

    /// The arguments of a log, in their order.
    ///
    /// A log of an anonymous event must be exactly what the event encodes to: nothing else
    /// tells it from the logs of other events.
    pub(super) fn decode(&self, topics: &[B256], data: &[u8]) -> Result<Arguments<'_>, String> {
        let decoded = self.layout.decode_log_parts(topics.iter().copied(), data);
        let DecodedEvent { indexed, body, .. } = decoded.map_err(|error| error.to_string())?;
        if self.topic().is_none() && !is_exact(&indexed, &body, topics, data) {
            return Err("its bytes are not what this anonymous event would show".to_owned());
        }
        let (mut indexed, mut body) = (indexed.into_iter().zip(self.layout.indexed()), body.into_iter());
        let mut values = Vec::with_capacity(self.names.len());
        for input in &self.event.inputs {
            let value = match input.indexed {
                true => indexed.next().map(|(value, kind)| if is_hashed(kind) { hash_of(value) } else { value }),
                false => body.next(),
            };
            values.push(value.ok_or("a log with too few values")?);
        }
        Ok(Arguments { event: self, values })
    }

    /// Refuses an argument that is no number of seconds.
    pub(super) fn check_deadline(&self, argument: &str) -> Result<(), BadDeadline> {
        let bad = |why: String| BadDeadline { event: self.signature.clone(), argument: argument.to_owned(), why };
        let at = self.names.iter().position(|name| name == argument);
        let input = at.and_then(|at| self.event.inputs.get(at));
        match input.ok_or_else(|| bad("it has no such argument".to_owned()))?.resolve() {
            Ok(DynSolType::Uint(_)) => Ok(()),
            Ok(kind) => Err(bad(format!("a {kind} is no number of seconds"))),
            Err(error) => Err(bad(error.to_string())),
        }
    }

    /// What a field of the requests that it makes is, by its path; `None` for those that a
    /// contract has no type for, an error if there is no such field.
    pub(crate) fn field(&self, path: &str) -> Result<Option<DynSolType>, String> {
        let missing = || format!("requests of {} have no {path}", self.signature());
        let mut parts = path.split('/').skip(1);
        let input = match (parts.next(), parts.next()) {
            (None, _) | (Some("args" | "log"), None) => return Ok(None),
            (Some("address"), None) => return Ok(Some(DynSolType::Address)),
            (Some("event" | "signature"), None) => return Ok(Some(DynSolType::String)),
            (Some("args"), Some(name)) => {
                let at = self.names.iter().position(|known| known == name).ok_or_else(missing)?;
                &self.event.inputs[at]
            }
            _ => return Err(missing()),
        };
        let kind = input.resolve().map_err(|error| error.to_string())?;
        let rest: Vec<&str> = parts.collect();
        if input.indexed && is_hashed(&kind) {
            // Only its hash is in the log.
            return match rest[..] {
                [] => Ok(None),
                ["hash"] => Ok(Some(DynSolType::FixedBytes(32))),
                _ => Err(missing()),
            };
        }
        part_of(&kind, &input.components, &rest).map(Some).ok_or_else(missing)
    }

    /// The place among the topics, and the topics, of an indexed argument that has one of
    /// these values. What is there only as a hash may be given as `{"hash": "0x…"}` too.
    pub(super) fn topics_of(&self, argument: &str, values: &[Value]) -> Result<(usize, Vec<B256>), BadFilter> {
        let bad = |why: &str| {
            let (event, argument) = (self.signature.clone(), argument.to_owned());
            BadFilter { event, argument, why: why.to_owned() }
        };
        let at = self.names.iter().position(|name| name == argument).ok_or_else(|| bad("it has no such argument"))?;
        let input = &self.event.inputs[at];
        if !input.indexed {
            return Err(bad("the argument is not indexed, so nodes cannot find it"));
        }
        if values.is_empty() {
            return Err(bad("no value was given, so nothing would ever match"));
        }
        let before = self.event.inputs[..at].iter().filter(|input| input.indexed).count();
        let topics: Result<Vec<B256>, String> = values.iter().map(|value| topic_of(input, value)).collect();
        Ok((before + usize::from(self.topic().is_some()), topics.map_err(|why| bad(&why))?))
    }
}

/// The arguments of a log.
#[derive(Debug)]
pub(super) struct Arguments<'e> {
    event: &'e EventSignature,
    /// In the order of the event's inputs.
    values: Vec<DynSolValue>,
}

impl Arguments<'_> {
    /// Writes them by name.
    pub(super) fn write(&self, json: &mut Json) {
        json.tuple(&self.values, &self.event.shape);
    }

    /// The number that an argument is.
    pub(super) fn number(&self, argument: &str) -> Option<U256> {
        let at = self.event.names.iter().position(|name| name == argument)?;
        self.values.get(at)?.as_uint().map(|(number, _)| number)
    }
}

/// An argument as a field of what is shown.
fn shown_as(input: &EventParam, name: &str, hashed: bool) -> Param {
    let field = |name: &str, ty: &str, components: Vec<Param>| Param {
        ty: ty.to_owned(),
        name: name.to_owned(),
        components,
        internal_type: None,
    };
    match hashed {
        true => field(name, "tuple", vec![field("hash", "bytes32", Vec::new())]),
        false => field(name, &input.ty, input.components.clone()),
    }
}

/// A hash as the only part of a tuple, so that nobody takes it for the value.
fn hash_of(value: DynSolValue) -> DynSolValue {
    DynSolValue::Tuple(vec![value])
}

/// The type of a part of a value, by the way to it.
fn part_of(kind: &DynSolType, fields: &[Param], path: &[&str]) -> Option<DynSolType> {
    let [first, rest @ ..] = path else { return Some(kind.clone()) };
    match kind {
        DynSolType::Array(inner) | DynSolType::FixedArray(inner, _) => {
            first.parse::<usize>().ok()?;
            part_of(inner, fields, rest)
        }
        DynSolType::Tuple(parts) => {
            let named = fields.iter().position(|field| field.name == *first);
            let at = named.or_else(|| first.parse().ok())?;
            part_of(parts.get(at)?, fields.get(at).map_or(&[], |field| &field.components), rest)
        }
        _ => None,
    }
}

/// Whether an indexed argument of this type is in its topic as a hash.
fn is_hashed(kind: &DynSolType) -> bool {
    matches!(
        kind,
        DynSolType::Bytes
            | DynSolType::String
            | DynSolType::Array(_)
            | DynSolType::FixedArray(..)
            | DynSolType::Tuple(_)
    )
}

/// Whether a log is, byte by byte, what these values encode to.
fn is_exact(indexed: &[DynSolValue], body: &[DynSolValue], topics: &[B256], data: &[u8]) -> bool {
    let words = indexed.iter().map(DynSolValue::as_word);
    let bytes = DynSolValue::Tuple(body.to_vec()).abi_encode_params();
    // A word that is too large for its type still reads as a value of it.
    let fits = |value: &DynSolValue| match value {
        DynSolValue::Uint(value, bits) => value.bit_len() <= *bits,
        DynSolValue::FixedBytes(word, size) => word[*size..].iter().all(|byte| *byte == 0),
        _ => true,
    };
    let all_fit = indexed.iter().chain(body).all(fits);
    all_fit && words.eq(topics.iter().map(|topic| Some(*topic))) && bytes == data
}

/// The topic of an argument with this value.
fn topic_of(input: &EventParam, value: &Value) -> Result<B256, String> {
    let kind = input.resolve().map_err(|error| error.to_string())?;
    if is_hashed(&kind)
        && let Some(hash) = value.get("hash").and_then(Value::as_str)
    {
        return hash.parse().map_err(|_| format!("{hash:?} is no hash of 32 bytes"));
    }
    let param = Param {
        ty: input.ty.clone(),
        name: input.name.clone(),
        components: input.components.clone(),
        internal_type: None,
    };
    let values = abi::from_json(&[param], &json!([value])).map_err(|error| error.to_string())?;
    match values.first() {
        Some(DynSolValue::String(text)) => Ok(keccak256(text)),
        Some(DynSolValue::Bytes(bytes)) => Ok(keccak256(bytes)),
        Some(value) => {
            value.as_word().ok_or_else(|| format!("{kind} is in logs as a hash: give it as {{\"hash\": ..}}"))
        }
        None => Err("there is no value".to_owned()),
    }
}

impl fmt::Display for EventSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.event.full_signature())
    }
}

impl fmt::Debug for EventSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventSignature({self})")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::primitives::{Address, Bytes, LogData};
    use alloy::sol;
    use alloy::sol_types::{SolEvent, SolValue};

    use super::*;

    sol! {
        #[derive(Debug)]
        struct Item { uint256 id; string[] tags; }
        struct Pair { uint8 a; uint8 b; }
        event Listed(Item[] items, uint8[2][] grid, Item one);
        event Hashed(string indexed text, bytes indexed data, uint8[2] indexed list, Pair pair);
        event Plain(uint256 indexed id, address indexed from, bytes32 indexed key, int64 low);
        #[derive(Debug)]
        event Noted(bytes4 indexed sig, address indexed by, bytes data) anonymous;
    }

    const ABI: &str = r#"{"contractName": "Any", "abi": [
        {"type": "function", "name": "ask", "inputs": [], "outputs": [], "stateMutability": "view"},
        {"type": "event", "name": "Asked", "anonymous": false, "inputs": [
            {"name": "id", "type": "uint256", "indexed": true}]},
        {"type": "event", "name": "Asked", "anonymous": false, "inputs": [
            {"name": "id", "type": "uint256", "indexed": true}, {"name": "data", "type": "bytes", "indexed": false}]},
        {"type": "event", "name": "Listed", "anonymous": false, "inputs": [
            {"name": "items", "type": "tuple[]", "indexed": false, "components": [
                {"name": "id", "type": "uint256"}, {"name": "tags", "type": "string[]"}]},
            {"name": "grid", "type": "uint8[2][]", "indexed": false},
            {"name": "one", "type": "tuple", "indexed": false, "components": [
                {"name": "id", "type": "uint256"}, {"name": "tags", "type": "string[]"}]}]}]}"#;

    /// The arguments of a log, as they are shown.
    fn decoded(event: &EventSignature, log: &LogData) -> Result<Value, String> {
        let mut json = Json::default();
        event.decode(log.topics(), &log.data)?.write(&mut json);
        let value: Value = serde_json::from_slice(json.text()).unwrap();
        assert_eq!(json.text(), value.to_string().as_bytes(), "its keys are in order");
        Ok(value)
    }

    fn items() -> (Item, Item) {
        let tags = |tags: &[&str]| tags.iter().map(|&tag| tag.to_owned()).collect();
        (Item { id: U256::from(1), tags: tags(&["a", "b"]) }, Item { id: U256::MAX, tags: tags(&[]) })
    }

    #[test]
    fn arguments_keep_their_names_and_values() {
        let event = EventSignature::parse("Asked(bytes data, uint256 indexed id, string indexed topic, bool)").unwrap();
        let data = (Bytes::from_static(&[1, 2]), true).abi_encode_params();
        let topics = vec![event.topic().unwrap(), B256::with_last_byte(9), keccak256("tea")];
        let shown = decoded(&event, &LogData::new_unchecked(topics, data.into())).unwrap();
        let hash = keccak256("tea").to_string();
        assert_eq!(shown, json!({"data": "0x0102", "id": "9", "topic": {"hash": hash}, "3": true}));
    }

    #[test]
    fn tuples_and_nested_lists_are_read_by_their_names() {
        let (first, second) = items();
        let log = Listed { items: vec![first.clone(), second], grid: vec![[1, 2], [3, 4]], one: first };
        let event = EventSignature::from_abi(ABI, "Listed").unwrap();
        let first = json!({"id": "1", "tags": ["a", "b"]});
        let second = json!({"id": U256::MAX.to_string(), "tags": []});
        let expected = json!({"items": [first, second], "grid": [["1", "2"], ["3", "4"]], "one": first});
        assert_eq!(decoded(&event, &log.encode_log_data()), Ok(expected));
        // A signature in one line names no parts of tuples.
        let unnamed = EventSignature::parse(Listed::SIGNATURE).unwrap();
        let shown = decoded(&unnamed, &log.encode_log_data()).unwrap();
        assert_eq!(shown["2"], json!(["1", ["a", "b"]]));
    }

    #[test]
    fn what_is_indexed_and_has_no_word_is_given_as_its_hash() {
        let signature = "Hashed(string indexed text, bytes indexed data, uint8[2] indexed list, (uint8,uint8) pair)";
        let event = EventSignature::parse(signature).unwrap();
        let list = keccak256([[1u8, 2].map(U256::from)].abi_encode_packed());
        let log = Hashed { text: keccak256("tea"), data: keccak256([7]), list, pair: Pair { a: 1, b: 2 } };
        let hash = |hash: B256| json!({"hash": hash.to_string()});
        let expected = json!({"text": hash(keccak256("tea")), "data": hash(keccak256([7])), "list": hash(list), "pair": ["1", "2"]});
        assert_eq!(decoded(&event, &log.encode_log_data()), Ok(expected));
    }

    #[test]
    fn numbers_of_any_size_are_decimal_strings() {
        let event = "Plain(uint256 indexed id, address indexed from, bytes32 indexed key, int64 low)";
        let event = EventSignature::parse(event).unwrap();
        for id in [U256::from(0), U256::from(1) << 248, (U256::from(1) << 248) + U256::from(1), U256::MAX] {
            let log = Plain { id, from: Address::repeat_byte(7), key: B256::repeat_byte(8), low: i64::MIN };
            let shown = decoded(&event, &log.encode_log_data()).unwrap();
            assert_eq!(shown["id"], json!(id.to_string()));
            assert_eq!(shown["low"], json!("-9223372036854775808"));
        }
    }

    #[test]
    fn events_of_one_name_are_told_apart() {
        let (short, long) = ("Asked(uint256)", "Asked(uint256,bytes)");
        let [one, other] = [short, long].map(|wanted| EventSignature::from_abi(ABI, wanted).unwrap());
        assert_eq!([one.signature(), other.signature()], [short, long]);
        assert_eq!([one.topic(), other.topic()], [short, long].map(|text| Some(keccak256(text))));
        let log = LogData::new_unchecked(vec![one.topic().unwrap(), B256::ZERO], Bytes::new());
        assert!(decoded(&one, &log).is_ok() && decoded(&other, &log).is_err());
    }

    #[test]
    fn an_abi_without_the_event_says_what_it_has() {
        let error = |abi: &str, wanted: &str| EventSignature::from_abi(abi, wanted).unwrap_err().to_string();
        let cases = [
            (ABI, "Answered", "no event Answered; it has: Asked(uint256), Asked(uint256,bytes), Listed("),
            (ABI, "Asked", "several events Asked: give one of them in full: Asked(uint256), Asked(uint256,bytes)"),
            ("[]", "Asked", "it has: no events at all"),
            ("{}", "Asked", "no ABI in JSON"),
            ("not json", "Asked", "no ABI in JSON"),
        ];
        for (abi, wanted, part) in cases {
            assert!(error(abi, wanted).contains(part), "{}", error(abi, wanted));
        }
    }

    #[test]
    fn an_anonymous_event_is_what_encodes_to_it_exactly() {
        let text = "event Noted(bytes4 indexed sig, address indexed by, bytes data) anonymous";
        let event = EventSignature::parse(text).unwrap();
        assert_eq!((event.topic(), event.topics()), (None, 2));
        let noted = Noted { sig: [1, 2, 3, 4].into(), by: Address::repeat_byte(7), data: Bytes::from_static(&[9]) };
        let log = noted.encode_log_data();
        let by = Address::repeat_byte(7).to_string();
        assert_eq!(decoded(&event, &log), Ok(json!({"sig": "0x01020304", "by": by, "data": "0x09"})));
        let (topics, data) = (log.topics().to_vec(), log.data.clone());
        let twisted = [
            LogData::new_unchecked(topics[..1].to_vec(), data.clone()),
            LogData::new_unchecked(vec![B256::repeat_byte(1), topics[1]], data.clone()),
            LogData::new_unchecked(vec![topics[0], B256::repeat_byte(1)], data.clone()),
            LogData::new_unchecked(topics.clone(), [data.as_ref(), &[0; 32]].concat().into()),
            LogData::new_unchecked(topics, Bytes::new()),
        ];
        for other in twisted {
            assert!(decoded(&event, &other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn indexed_arguments_can_be_asked_for_by_value() {
        let text = "Asked(uint8 indexed kind, bytes data, string indexed topic, (uint8,uint8) indexed pair)";
        let event = EventSignature::parse(text).unwrap();
        let hash = B256::repeat_byte(5);
        let topics = |argument: &str, value: Value| event.topics_of(argument, &[value]);
        assert_eq!(topics("kind", json!(7)), Ok((1, vec![B256::with_last_byte(7)])));
        assert_eq!(topics("topic", json!("tea")), Ok((2, vec![keccak256("tea")])));
        assert_eq!(topics("pair", json!({"hash": hash.to_string()})), Ok((3, vec![hash])));
        let refused = [
            ("data", json!("0x"), "not indexed"),
            ("other", json!(1), "no such argument"),
            ("kind", json!(256), "cannot be filtered by kind"),
            ("pair", json!([1, 2]), "as a hash"),
            ("topic", json!({"hash": "0x12"}), "no hash of 32 bytes"),
        ];
        for (argument, value, part) in refused {
            let error = topics(argument, value).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(event.topics_of("kind", &[]).is_err());
        let anonymous = EventSignature::parse("event Noted(bytes4 indexed sig) anonymous").unwrap();
        let padded = B256::right_padding_from(&[1, 2, 3, 4]);
        assert_eq!(anonymous.topics_of("sig", &[json!("0x01020304")]), Ok((0, vec![padded])));
    }

    #[test]
    fn the_topic_is_that_of_the_bare_signature() {
        let event = EventSignature::parse("event Transfer(address indexed from, address indexed to, uint256 value);");
        assert_eq!(event.unwrap().topic(), Some(keccak256("Transfer(address,address,uint256)")));
    }

    #[test]
    fn a_log_that_does_not_fit_is_an_error() {
        let event = EventSignature::parse("Asked(uint256 indexed id, bytes data)").unwrap();
        let topic = event.topic().unwrap();
        let short = LogData::new_unchecked(vec![topic], Bytes::new());
        assert!(decoded(&event, &short).is_err());
        let empty = LogData::new_unchecked(vec![topic, B256::ZERO], Bytes::new());
        assert!(decoded(&event, &empty).is_err());
    }

    #[test]
    fn bad_signatures_say_why() {
        let too_many = "Asked(uint8 indexed a, uint8 indexed b, uint8 indexed c, uint8 indexed d)";
        for text in ["", "Asked(", "Asked(uint257 a)", "Asked(uint8 a, uint8 a)", too_many] {
            assert!(EventSignature::parse(text).is_err(), "{text}");
        }
    }
}
