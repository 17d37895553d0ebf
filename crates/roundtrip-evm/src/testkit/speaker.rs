//! Code that only speaks: each call of it emits as many events as it is told to, so that a
//! node can be made to show any number of them in one transaction. It is no compiler's work;
//! a node is told to have it (`anvil_setCode`).

use alloy::primitives::{Address, B256, Bytes, U256, address, hex};
use alloy::rpc::client::RpcClient;
use alloy::transports::TransportResult;

/// Where the code is.
pub const SPEAKER: Address = address!("00000000000000000000000000000000000b0a2d");
/// What it emits.
pub const EVENT: &str = "event Requested(uint256 indexed id, address indexed from, bytes payload)";

/// Puts the code where it belongs. Only Anvil can.
pub async fn place(client: &RpcClient, topic: B256) -> TransportResult<()> {
    let _: serde_json::Value = client.request("anvil_setCode", (SPEAKER, code(topic))).await?;
    Ok(())
}

/// What a call carries that emits so many events, numbered from the first.
pub fn input(first: u64, count: u64) -> Bytes {
    [U256::from(first), U256::from(count)].map(|word| word.to_be_bytes::<32>()).concat().into()
}

/// A loop over its second word, around a `LOG3`.
fn code(topic: B256) -> Bytes {
    let before = hex!("602060005260206020526000356020355b8015604e578160405233827f");
    let after = hex!("60606000a36001900390600101906010565b00");
    [&before[..], topic.as_slice(), &after[..]].concat().into()
}
