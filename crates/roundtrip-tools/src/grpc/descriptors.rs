//! What a service's messages are: from a descriptor set, or from the service itself by
//! reflection (`grpc.reflection.v1`, or `v1alpha` where that is all it has).

use std::collections::{BTreeMap, BTreeSet};

use futures_util::StreamExt;
use prost::Message;
use prost_reflect::prost_types::FileDescriptorProto;
use prost_reflect::{DescriptorPool, MethodDescriptor};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

/// Where services are asked what they are: the newer name first.
const REFLECTION: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];
/// Most files that one service may be described by.
const FILES_MAX: usize = 1024;

/// Which method, as `package.Service/Method`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodName {
    service: String,
    method: String,
}

impl MethodName {
    /// Reads a name such as `kms.v1.Core/Decrypt`.
    pub fn read(text: &str) -> Result<MethodName, String> {
        match text.trim_start_matches('/').split_once('/') {
            Some((service, method)) if !service.is_empty() && !method.is_empty() && !method.contains('/') => {
                Ok(MethodName { service: service.to_owned(), method: method.to_owned() })
            }
            _ => Err(format!("{text:?} is no method: write package.Service/Method")),
        }
    }

    /// Its description, if it is one that takes one message and answers with one.
    pub fn find(&self, pool: &DescriptorPool) -> Result<MethodDescriptor, String> {
        let service = pool.get_service_by_name(&self.service);
        let service = service.ok_or_else(|| format!("there is no service {}", self.service))?;
        let method = service.methods().find(|method| method.name() == self.method).ok_or_else(|| {
            let known: Vec<String> = service.methods().map(|method| method.name().to_owned()).collect();
            format!("{} has no method {}: it has {}", self.service, self.method, known.join(", "))
        })?;
        if method.is_client_streaming() || method.is_server_streaming() {
            return Err(format!("{}/{} is a stream: only calls with one answer are made", self.service, self.method));
        }
        Ok(method)
    }

    pub(super) fn path(&self) -> Result<PathAndQuery, String> {
        format!("/{}/{}", self.service, self.method).parse().map_err(|_| "no path can be made of it".to_owned())
    }
}

/// The descriptions in a descriptor set, as `protoc --include_imports --descriptor_set_out` writes it.
pub fn read(bytes: &[u8]) -> Result<DescriptorPool, String> {
    DescriptorPool::decode(bytes).map_err(|error| format!("it is no descriptor set with all its imports: {error}"))
}

/// What these methods are, as the other side says.
pub(super) async fn reflect(channel: Channel, methods: &[&MethodName]) -> Result<DescriptorPool, Status> {
    let mut last = Status::unimplemented("no reflection");
    for path in REFLECTION {
        match reflect_by(channel.clone(), path, methods).await {
            Err(status) if status.code() == Code::Unimplemented => last = status,
            other => return other,
        }
    }
    Err(last)
}

async fn reflect_by(channel: Channel, path: &'static str, methods: &[&MethodName]) -> Result<DescriptorPool, Status> {
    let mut files: BTreeMap<String, FileDescriptorProto> = BTreeMap::new();
    let mut asked = BTreeSet::new();
    let service = |method: &&MethodName| MessageRequest::FileContainingSymbol(method.service.clone());
    let mut questions: Vec<MessageRequest> = methods.iter().map(service).collect();
    while let Some(question) = questions.pop() {
        for file in ask(channel.clone(), path, question).await? {
            files.insert(file.name().to_owned(), file);
        }
        if files.len() > FILES_MAX {
            return Err(Status::data_loss("more descriptions than any service needs"));
        }
        let mut wanted = files.values().flat_map(|file| &file.dependency);
        let missing = wanted.find(|name| !files.contains_key(*name) && !asked.contains(*name)).cloned();
        if let Some(name) = missing {
            asked.insert(name.clone());
            questions.push(MessageRequest::FileByFilename(name));
        }
    }
    let mut pool = DescriptorPool::new();
    let added = pool.add_file_descriptor_protos(files.into_values());
    added.map_err(|error| Status::data_loss(format!("its descriptions do not fit together: {error}")))?;
    Ok(pool)
}

async fn ask(
    channel: Channel,
    path: &'static str,
    question: MessageRequest,
) -> Result<Vec<FileDescriptorProto>, Status> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    let codec = tonic_prost::ProstCodec::<ServerReflectionRequest, ServerReflectionResponse>::default();
    let once = Request::new(futures_util::stream::once(async { request }));
    let mut answers = grpc.streaming(once, PathAndQuery::from_static(path), codec).await?.into_inner();
    let answer = answers.next().await.ok_or_else(|| Status::unavailable("no answer"))??;
    match answer.message_response {
        Some(MessageResponse::FileDescriptorResponse(found)) => {
            let read = found.file_descriptor_proto.iter().map(|bytes| FileDescriptorProto::decode(&bytes[..]));
            read.collect::<Result<_, _>>().map_err(|error| Status::data_loss(error.to_string()))
        }
        Some(MessageResponse::ErrorResponse(error)) => {
            Err(Status::new(Code::from_i32(error.error_code), error.error_message))
        }
        _ => Err(Status::data_loss("an answer to another question")),
    }
}
