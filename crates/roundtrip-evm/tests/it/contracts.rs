//! The committed artifact is what the source compiles to, and what the bindings say.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use alloy::json_abi::JsonAbi;
use alloy::sol_types::{SolConstructor, SolEvent, SolType, TopicList};
use roundtrip_evm::testkit::board::RequestBoard::{
    RequestBoardCalls, RequestBoardErrors, RequestBoardEvents, Requested, Responded, constructorCall,
};
use roundtrip_evm::testkit::board::{ARTIFACT, CREATION_CODE};

fn artifact() -> serde_json::Value {
    serde_json::from_str(ARTIFACT).unwrap()
}

fn abi() -> JsonAbi {
    serde_json::from_value(artifact()["abi"].clone()).unwrap()
}

fn set<T: Ord + Copy>(items: &[T]) -> BTreeSet<T> {
    items.iter().copied().collect()
}

#[test]
fn the_artifact_is_what_the_source_compiles_to() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/build-contracts");
    let compiled = Command::new("node").arg(script).arg("--stdout").output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let same = compiled.stdout == ARTIFACT.as_bytes();
    assert!(same, "the committed artifact is of another source or compiler: run scripts/build-contracts");
}

#[test]
fn the_creation_code_is_the_artifact_s() {
    let bytecode = artifact()["bytecode"].as_str().unwrap().to_owned();
    assert_eq!(alloy::hex::encode_prefixed(CREATION_CODE), bytecode);
    // What is deployed is what creation copies: no metadata and no path follows it.
    let deployed = artifact()["deployedBytecode"].as_str().unwrap()[2..].to_owned();
    assert!(bytecode.ends_with(&deployed));
}

#[test]
fn the_bindings_are_those_of_the_artifact() {
    let abi = abi();
    let functions = abi.functions().map(|function| function.selector().0).collect();
    assert_eq!(set(RequestBoardCalls::SELECTORS), functions);
    let errors = abi.errors().map(|error| error.selector().0).collect();
    assert_eq!(set(RequestBoardErrors::SELECTORS), errors);
    let events = abi.events().map(|event| event.selector().0).collect();
    assert_eq!(set(RequestBoardEvents::SELECTORS), events);
}

#[test]
fn the_bindings_index_what_the_artifact_indexes() {
    fn topics<E: SolEvent>() -> (String, usize) {
        (E::SIGNATURE.to_owned(), <E::TopicList as TopicList>::COUNT)
    }
    // The signature's own topic counts too.
    let indexed = |event: &alloy::json_abi::Event| 1 + event.inputs.iter().filter(|input| input.indexed).count();
    let events: BTreeSet<_> = abi().events().map(|event| (event.signature(), indexed(event))).collect();
    assert_eq!(BTreeSet::from([topics::<Requested>(), topics::<Responded>()]), events);
}

#[test]
fn the_constructor_takes_what_the_artifact_s_takes() {
    let inputs = abi().constructor.unwrap().inputs;
    let types: Vec<String> = inputs.iter().map(|input| input.selector_type().into_owned()).collect();
    let bound = <<constructorCall as SolConstructor>::Parameters<'static> as SolType>::SOL_NAME;
    assert_eq!(bound, format!("({})", types.join(",")));
}
