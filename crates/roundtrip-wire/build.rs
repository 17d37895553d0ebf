//! Makes the messages and both halves of the service from the .proto file; no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["roundtrip/v1/work.proto"], ["proto"])?;
    // Whoever connects brings a transport of its own, so that the program does without a client's.
    tonic_prost_build::configure().build_transport(false).bytes(".").compile_fds(files)?;
    Ok(())
}
