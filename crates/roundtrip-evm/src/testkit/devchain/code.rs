//! The sample contract's compiled code: what a creation must carry to be understood, and
//! what is then at the contract's address. It is compared and shown, never run.

use std::sync::LazyLock;

use alloy::primitives::{Address, Bytes};
use alloy::sol_types::SolValue;
use serde::Deserialize;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Code {
    bytecode: Bytes,
    deployed_bytecode: Bytes,
}

/// An artifact that cannot be read makes every creation a foreign one; a test keeps it from
/// coming to that.
static CODE: LazyLock<Code> = LazyLock::new(|| {
    let artifact = include_str!("../../../contracts/RequestBoard.json");
    serde_json::from_str(artifact).unwrap_or_default()
});

/// What is at the address of a sample contract.
pub(super) fn deployed() -> &'static Bytes {
    &CODE.deployed_bytecode
}

/// The responders of the sample contract that this init code creates, if it does.
pub(super) fn created(init: &[u8]) -> Option<Vec<Address>> {
    let arguments = init.strip_prefix(CODE.bytecode.as_ref()).filter(|_| !CODE.bytecode.is_empty())?;
    <(Vec<Address>,)>::abi_decode_params(arguments).ok().map(|(responders,)| responders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_sample_contract_is_understood() {
        assert!(!deployed().is_empty());
        let responders = vec![Address::with_last_byte(1), Address::with_last_byte(2)];
        let arguments = (responders.clone(),).abi_encode_params();
        let init = [CODE.bytecode.as_ref(), &arguments].concat();
        assert_eq!(created(&init), Some(responders));
        assert_eq!(created(&arguments), None);
        assert_eq!(created(&init[..init.len() - 1]), None);
        assert_eq!(created(&[]), None);
    }
}
