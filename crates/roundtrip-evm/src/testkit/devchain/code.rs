//! What a creation must carry to be understood. Code is compared and shown, never run.

use alloy::primitives::Address;
use alloy::sol_types::SolValue;

use crate::testkit::board::CREATION_CODE;

/// The responders of the sample contract that this init code creates, if it does.
pub(super) fn created(init: &[u8]) -> Option<Vec<Address>> {
    let arguments = init.strip_prefix(CREATION_CODE)?;
    <(Vec<Address>,)>::abi_decode_params(arguments).ok().map(|(responders,)| responders)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_sample_contract_is_understood() {
        let responders = vec![Address::with_last_byte(1), Address::with_last_byte(2)];
        let arguments = (responders.clone(),).abi_encode_params();
        let init = [CREATION_CODE, &arguments].concat();
        assert_eq!(created(&init), Some(responders));
        assert_eq!(created(&arguments), None);
        assert_eq!(created(&init[..init.len() - 1]), None);
        assert_eq!(created(&[]), None);
    }
}
