//! Payloads on the wire: JSON as it is, everything else as base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use roundtrip::words::{Encoding, Payload};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::problem::Problem;

/// A number as every language can hold it: signed, of 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "u64")]
#[schema(value_type = i64, minimum = 0)]
pub(crate) struct Whole(pub(crate) u64);

impl TryFrom<u64> for Whole {
    type Error = &'static str;

    fn try_from(number: u64) -> Result<Whole, &'static str> {
        if i64::try_from(number).is_ok() { Ok(Whole(number)) } else { Err("a number of at most 63 bits is meant") }
    }
}

/// How many are wanted: so many if nothing is said, and no more than that. None at all is a mistake.
pub(super) fn at_most(wanted: Option<usize>, usual: usize, most: usize) -> Result<usize, Problem> {
    match wanted {
        Some(0) => Err(Problem::unprocessable(format!("0 is nothing to ask for: use a number from 1 to {most}"))),
        wanted => Ok(wanted.unwrap_or(usual).min(most)),
    }
}

/// How a payload is to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WireEncoding {
    /// Bytes whose meaning only the route knows, as base64.
    Raw,
    /// Any JSON value, as it is.
    #[default]
    Json,
    /// CBOR, as base64.
    Cbor,
    /// A protobuf message, as base64.
    Protobuf,
}

impl From<Encoding> for WireEncoding {
    fn from(encoding: Encoding) -> WireEncoding {
        match encoding {
            Encoding::Raw => WireEncoding::Raw,
            Encoding::Json => WireEncoding::Json,
            Encoding::Cbor => WireEncoding::Cbor,
            Encoding::Protobuf => WireEncoding::Protobuf,
        }
    }
}

impl From<WireEncoding> for Encoding {
    fn from(encoding: WireEncoding) -> Encoding {
        match encoding {
            WireEncoding::Raw => Encoding::Raw,
            WireEncoding::Json => Encoding::Json,
            WireEncoding::Cbor => Encoding::Cbor,
            WireEncoding::Protobuf => Encoding::Protobuf,
        }
    }
}

/// A payload as it is shown. What is declared as JSON and is none is shown as base64, with
/// the encoding `raw`.
pub(super) fn shown(payload: &Payload) -> (WireEncoding, Box<RawValue>) {
    let json = std::str::from_utf8(&payload.bytes).ok().filter(|_| payload.encoding == Encoding::Json);
    if let Some(json) = json.and_then(|text| RawValue::from_string(text.to_owned()).ok()) {
        return (WireEncoding::Json, json);
    }
    let encoding = if payload.encoding == Encoding::Json { WireEncoding::Raw } else { payload.encoding.into() };
    // Base64 needs no escapes, so that this is always JSON.
    let text = format!("\"{}\"", BASE64.encode(&payload.bytes));
    (encoding, RawValue::from_string(text).unwrap_or_default())
}

/// A payload as it came.
pub(super) fn read(encoding: WireEncoding, value: &RawValue) -> Result<Payload, Problem> {
    if encoding == WireEncoding::Json {
        return Ok(Payload::json(value.get().to_owned()));
    }
    let text: Value = serde_json::from_str(value.get()).map_err(|error| Problem::unprocessable(error.to_string()))?;
    let bytes = text.as_str().and_then(|text| BASE64.decode(text).ok());
    let bytes = bytes.ok_or_else(|| Problem::unprocessable("a payload that is not JSON is a text of base64"))?;
    Ok(Payload { encoding: encoding.into(), bytes: bytes.into() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn payloads_come_back_as_they_went() {
        for payload in [
            Payload::json("{\"a\": 1.0}"),
            Payload::raw(vec![0, 255]),
            Payload { encoding: Encoding::Cbor, bytes: vec![1].into() },
        ] {
            let (encoding, value) = shown(&payload);
            assert_eq!(read(encoding, &value).unwrap(), payload);
        }
        let (encoding, _) = shown(&Payload::json("{"));
        assert_eq!(encoding, WireEncoding::Raw, "what is no JSON is shown as bytes");
        let number = RawValue::from_string("7".to_owned()).unwrap();
        assert!(read(WireEncoding::Raw, &number).is_err());
    }
}
