//! Values of a configuration that have a form of their own.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A length of time, such as `"500ms"`, `"15s"`, `"1h 30m"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl Span {
    /// So many milliseconds.
    pub const fn ms(ms: u64) -> Span {
        Span(Duration::from_millis(ms))
    }

    /// Its length in milliseconds.
    pub fn as_ms(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let length = value.as_str().and_then(|text| humantime::parse_duration(text).ok());
        let wanted = || format!("{value} is no length of time: write \"500ms\", \"15s\" or \"1h 30m\"");
        length.map(Span).ok_or_else(|| de::Error::custom(wanted()))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Span {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": r"^\s*(\d+\s*[a-zµ]+\s*)+$"})
    }
}

/// Which blocks no reorg can take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalBlocks(pub roundtrip_evm::Finality);

impl<'de> Deserialize<'de> for FinalBlocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FinalBlocks, D::Error> {
        use roundtrip_evm::Finality;
        let value = serde_json::Value::deserialize(deserializer)?;
        let finality = match (&value, value.as_u64()) {
            (_, Some(blocks)) => Finality::Depth(blocks),
            (serde_json::Value::String(text), _) => match text.as_str() {
                "latest" => Finality::Latest,
                "safe" => Finality::Safe,
                "finalized" => Finality::Finalized,
                _ => return Err(de::Error::custom(format!("{text:?} is no finality: {FINAL_BLOCKS}"))),
            },
            _ => return Err(de::Error::custom(format!("{value} is no finality: {FINAL_BLOCKS}"))),
        };
        Ok(FinalBlocks(finality))
    }
}

const FINAL_BLOCKS: &str = "write \"finalized\", \"safe\", \"latest\", or a number of blocks";

impl Serialize for FinalBlocks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use roundtrip_evm::Finality;
        match self.0 {
            Finality::Latest => serializer.serialize_str("latest"),
            Finality::Safe => serializer.serialize_str("safe"),
            Finality::Finalized => serializer.serialize_str("finalized"),
            Finality::Depth(blocks) => serializer.serialize_u64(blocks),
        }
    }
}

impl JsonSchema for FinalBlocks {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "FinalBlocks".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"enum": ["finalized", "safe", "latest"]}, {"type": "integer", "minimum": 0}]})
    }
}
