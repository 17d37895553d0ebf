//! The stream between the program and its workers: the messages and both halves of the service,
//! made from `proto/roundtrip/v1/work.proto`, which is what workers in other languages take too.

/// As the .proto file says.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "it is generated; what its names mean is said in the .proto file"
)]
pub mod v1 {
    tonic::include_proto!("roundtrip.v1");
}
