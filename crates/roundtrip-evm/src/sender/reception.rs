//! What a node's answer to a broadcast means: one table.
//!
//! Only what is on it proves anything; every other answer means "maybe sent".

use roundtrip::sender::chain::{Reception, Unreachable};

use crate::rpc::CallError;

/// What an answer means.
#[derive(Clone, Copy)]
enum Meaning {
    Taken,
    TooCheap,
    Funds,
    Rejected,
    MaybeSent,
}

/// Parts of nodes' answers in lower case, the first that is found decides. What a
/// contract says when it reverts may quote any other line, so it comes first.
const WORDS: &[(&str, Meaning)] = &[
    ("revert", Meaning::MaybeSent),
    ("unknown transaction", Meaning::MaybeSent),
    ("already known", Meaning::Taken),
    ("alreadyknown", Meaning::Taken),
    ("known transaction", Meaning::Taken),
    ("already imported", Meaning::Taken),
    ("nonce too low", Meaning::Taken),
    ("nonce is too low", Meaning::Taken),
    ("oldnonce", Meaning::Taken),
    ("underpriced", Meaning::TooCheap),
    ("replacementnotallowed", Meaning::TooCheap),
    ("feetoolow", Meaning::TooCheap),
    ("fee too low", Meaning::TooCheap),
    ("max fee per gas less than block base fee", Meaning::TooCheap),
    ("too low for the next block, which has a baseFeePerGas", Meaning::TooCheap),
    ("insufficient funds", Meaning::Funds),
    ("insufficientfunds", Meaning::Funds),
    ("doesn't have enough funds", Meaning::Funds),
    ("intrinsic gas too low", Meaning::Rejected),
    ("gas limit is below intrinsic gas", Meaning::Rejected),
    ("transaction requires at least", Meaning::Rejected),
    ("exceeds block gas limit", Meaning::Rejected),
    ("invalid chain id", Meaning::Rejected),
    ("invalid sender", Meaning::Rejected),
    ("invalid signature", Meaning::Rejected),
    ("oversized data", Meaning::Rejected),
    ("transaction type not supported", Meaning::Rejected),
];

/// What an answer to a broadcast means.
pub(super) fn reception<T>(answer: Result<T, CallError>) -> Result<Reception, Unreachable> {
    let message = match answer {
        Ok(_hash) => return Ok(Reception::Taken),
        Err(CallError::Refused { message, .. }) => message,
        Err(CallError::NoAnswer(why)) => return Err(Unreachable(why)),
    };
    let lower = message.to_lowercase();
    let meaning = WORDS.iter().find(|(words, _)| lower.contains(&words.to_lowercase()));
    match meaning.map_or(Meaning::MaybeSent, |(_, meaning)| *meaning) {
        Meaning::Taken => Ok(Reception::Taken),
        Meaning::TooCheap => Ok(Reception::TooCheap),
        Meaning::Funds => Ok(Reception::Funds(message)),
        Meaning::Rejected => Ok(Reception::Rejected(message)),
        Meaning::MaybeSent => Err(Unreachable(message)),
    }
}

/// What a node's refusal to estimate means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Estimate {
    /// The call itself fails.
    Refused,
    /// The account cannot pay.
    Funds,
    /// Nothing about the call.
    Unknown,
}

/// The same for estimates; what the machine itself says of a call decides.
const ESTIMATE_WORDS: &[(&str, Estimate)] = &[
    ("revert", Estimate::Refused),
    ("invalid opcode", Estimate::Refused),
    ("evm error", Estimate::Refused),
    ("out of gas", Estimate::Refused),
    ("gas required exceeds allowance", Estimate::Refused),
    ("stack underflow", Estimate::Refused),
    ("invalid jump", Estimate::Refused),
    ("insufficient funds", Estimate::Funds),
    ("insufficientfunds", Estimate::Funds),
    ("doesn't have enough funds", Estimate::Funds),
];

/// What a refusal to estimate means.
pub(super) fn estimate(message: &str, reverts: bool) -> Estimate {
    let lower = message.to_lowercase();
    let found = ESTIMATE_WORDS.iter().find(|(words, _)| lower.contains(words));
    if reverts { Estimate::Refused } else { found.map_or(Estimate::Unknown, |(_, meaning)| *meaning) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_fails_is_told_from_a_node_that_does_not_know() {
        let cases = [
            ("execution reverted: no", false, Estimate::Refused),
            ("something", true, Estimate::Refused),
            ("EVM error InvalidFEOpcode", false, Estimate::Refused),
            ("Out of gas: gas required exceeds allowance: 30000000", false, Estimate::Refused),
            ("invalid opcode: INVALID", false, Estimate::Refused),
            ("insufficient funds for transfer", false, Estimate::Funds),
            ("header not found", false, Estimate::Unknown),
            ("unknown block", false, Estimate::Unknown),
        ];
        for (message, reverts, meaning) in cases {
            assert_eq!(estimate(message, reverts), meaning, "{message}");
        }
    }

    #[test]
    fn answers_mean_what_nodes_mean_by_them() {
        let taken = || Ok(Reception::Taken);
        let cheap = || Ok(Reception::TooCheap);
        let funds = |text: &str| Ok(Reception::Funds(text.into()));
        let rejected = |text: &str| Ok(Reception::Rejected(text.into()));
        let maybe = |text: &str| Err(Unreachable(text.into()));
        type Meant<'a> = &'a dyn Fn(&str) -> Result<Reception, Unreachable>;
        let cases: &[(&str, Meant<'_>)] = &[
            // geth
            ("already known", &|_| taken()),
            ("nonce too low: next nonce 5, tx nonce 4", &|_| taken()),
            ("replacement transaction underpriced", &|_| cheap()),
            ("transaction underpriced: gas tip cap 0, minimum needed 1", &|_| cheap()),
            ("insufficient funds for gas * price + value: balance 0, tx cost 1", &funds),
            ("intrinsic gas too low: gas 20000, minimum needed 21000", &rejected),
            ("exceeds block gas limit", &rejected),
            ("tx fee (2.00 ether) exceeds the configured cap (1.00 ether)", &maybe),
            ("txpool is full", &maybe),
            // anvil
            ("transaction already imported", &|_| taken()),
            ("max fee per gas less than block base fee", &|_| cheap()),
            ("Insufficient funds for gas * price + value", &funds),
            ("invalid chain id for signer", &rejected),
            // hardhat
            ("Known transaction: 0xabc", &|_| taken()),
            ("Nonce too low. Expected nonce to be 3 but got 2.", &|_| taken()),
            ("Replacement transaction underpriced. A gasPrice/maxFeePerGas of at least 11 is necessary", &|_| cheap()),
            ("Nonce too high. Expected nonce to be 3 but got 9.", &maybe),
            // nethermind
            ("AlreadyKnown", &|_| taken()),
            ("OldNonce, Current nonce: 5, nonce of rejected tx: 4", &|_| taken()),
            ("FeeTooLowToCompete", &|_| cheap()),
            ("InsufficientFunds, Balance is 0", &funds),
            // what quotes others, and what nobody has heard of
            ("execution reverted: nonce too low", &maybe),
            ("unknown transaction 0xabc", &maybe),
            ("header not found", &maybe),
            ("", &maybe),
        ];
        for (message, meant) in cases {
            let refused = CallError::Refused { code: -32000, message: (*message).into(), revert: None };
            assert_eq!(reception::<()>(Err(refused)), meant(message), "{message}");
        }
        assert_eq!(reception(Ok("0xabc")), taken());
        assert_eq!(reception::<()>(Err(CallError::NoAnswer("429".into()))), maybe("429"));
    }
}
