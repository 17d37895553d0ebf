//! Messages of which only their description is known: JSON in, JSON out.

use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Value;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// A message of JSON, by protobuf's own mapping; fields that it has not are refused.
pub(super) fn message(kind: &MessageDescriptor, json: &Value) -> Result<DynamicMessage, String> {
    DynamicMessage::deserialize(kind.clone(), json).map_err(|error| format!("it is no {}: {error}", kind.full_name()))
}

/// A message as JSON: names in camel case, large numbers as texts. Messages and optional fields that are not set are
/// left out; a zero, an empty text and an empty list are not: they may be the answer.
pub(super) fn json(message: &DynamicMessage) -> Result<Value, String> {
    let options = SerializeOptions::new().skip_default_fields(false);
    message.serialize_with_options(serde_json::value::Serializer, &options).map_err(|error| error.to_string())
}

/// Writes messages, and reads those of one kind.
#[derive(Clone, Debug)]
pub(super) struct DynamicCodec(pub(super) MessageDescriptor);

impl Codec for DynamicCodec {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Writer;
    type Decoder = Reader;

    fn encoder(&mut self) -> Writer {
        Writer
    }

    fn decoder(&mut self) -> Reader {
        Reader(self.0.clone())
    }
}

#[derive(Debug)]
pub(super) struct Writer;

impl Encoder for Writer {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, message: DynamicMessage, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(into).map_err(|error| Status::internal(error.to_string()))
    }
}

#[derive(Debug)]
pub(super) struct Reader(MessageDescriptor);

impl Decoder for Reader {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let read = DynamicMessage::decode(self.0.clone(), from);
        read.map(Some).map_err(|error| Status::data_loss(format!("an answer that cannot be read: {error}")))
    }
}
