//! The sample contract, `contracts/RequestBoard.sol`.

#![allow(missing_docs, reason = "the contract's source documents what is generated from it")]

use alloy::hex;
use alloy::primitives::{Address, Bytes};
use alloy::sol_types::SolConstructor;

alloy::sol! {
    #[derive(Debug, PartialEq, Eq)]
    contract RequestBoard {
        struct Response {
            uint256 id;
            bytes32 content;
            bytes answer;
        }

        event Requested(uint256 indexed id, address indexed from, bytes payload);
        event Responded(uint256 indexed id, address indexed by, bytes answer);

        error NotAResponder(address caller);
        error UnknownRequest(uint256 id);
        error OtherContent(uint256 id, bytes32 content);
        error AlreadyResponded(uint256 id);

        constructor(address[] memory responders);
        function isResponder(address caller) external view returns (bool);
        function isResponded(uint256 id) external view returns (bool);
        function contents(uint256 id) external view returns (bytes32);
        function request(bytes calldata payload) external returns (uint256 id);
        function respond(uint256 id, bytes32 content, bytes calldata answer) external;
        function respondMany(Response[] calldata responses) external;
    }
}

/// The compiled contract: compiler, settings, ABI and bytecode, as `scripts/build-contracts` wrote it.
pub const ARTIFACT: &str = include_str!("../../contracts/RequestBoard.json");

/// The bytecode that creates the contract; its constructor's arguments are to follow it.
pub const CREATION_CODE: &[u8] = match &hex::const_decode_to_array::<{ CREATION_HEX.len() / 2 }>(CREATION_HEX) {
    Ok(code) => code,
    Err(_) => panic!("the artifact's bytecode is not hex"),
};

/// The bytecode that is then at its address.
pub const DEPLOYED_CODE: &[u8] = match &hex::const_decode_to_array::<{ DEPLOYED_HEX.len() / 2 }>(DEPLOYED_HEX) {
    Ok(code) => code,
    Err(_) => panic!("the artifact's deployed bytecode is not hex"),
};

const CREATION_HEX: &[u8] = hex_after(ARTIFACT.as_bytes(), b"\"bytecode\": \"0x");
const DEPLOYED_HEX: &[u8] = hex_after(ARTIFACT.as_bytes(), b"\"deployedBytecode\": \"0x");

/// What a transaction carries that creates a board with these responders.
pub fn creation_input(responders: &[Address]) -> Bytes {
    let arguments = RequestBoard::constructorCall { responders: responders.to_vec() }.abi_encode();
    [CREATION_CODE, &arguments].concat().into()
}

/// The text between a key and the next quote, found while this is compiled: an artifact that
/// lacks it does not build.
const fn hex_after<'a>(text: &'a [u8], key: &[u8]) -> &'a [u8] {
    let mut at = 0;
    while !starts_with(text, at, key) {
        at += 1;
    }
    let (_, rest) = text.split_at(at + key.len());
    let mut end = 0;
    while rest[end] != b'"' {
        end += 1;
    }
    rest.split_at(end).0
}

const fn starts_with(text: &[u8], at: usize, key: &[u8]) -> bool {
    assert!(at + key.len() <= text.len(), "the artifact has no such key");
    let mut seen = 0;
    while seen < key.len() {
        if text[at + seen] != key[seen] {
            return false;
        }
        seen += 1;
    }
    true
}
