//! What a node's answer to a broadcast means: one table.
//!
//! Only what is on it proves anything; every other answer means "maybe sent".

use roundtrip::sender::chain::{Reception, Unreachable};

use crate::rpc::CallError;

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Taken,
    TooCheap,
    Funds,
    Rejected,
    MaybeSent,
}

/// One wording: which client says it (others may too), a part of it in lower case, and what
/// it means.
struct Wording(&'static str, &'static str, Meaning);

/// The first that is part of an answer decides. What a contract says when it reverts may
/// quote any other line, so it comes first.
///
/// What a node has no room for, or does not want to pay for, it may want later, or another
/// node may: none of that is here.
///
/// As their sources have it: geth's `core/error.go`, `core/txpool/errors.go` and `validation.go`; nethermind's
/// `AcceptTxResult` and `TxErrorMessages`, of before and after it took over geth's words; erigon's
/// `DiscardReason`; reth's `RpcPoolError` and `RpcInvalidTransactionError`; besu's `RpcErrorType`; anvil's
/// `error.rs`; hardhat's EDR; nitro's `sequencer.go`. What anvil and hardhat say is heard in a test too.
#[rustfmt::skip]
const WORDINGS: &[Wording] = &[
    Wording("any", "revert", Meaning::MaybeSent),
    Wording("any", "unknown transaction", Meaning::MaybeSent),
    Wording("hardhat", "nonce too high", Meaning::MaybeSent),
    // Of whom a transaction speaks for, and not of who sends it.
    Wording("geth", "authority nonce too low", Meaning::MaybeSent),
    Wording("geth", "already known", Meaning::Taken),
    Wording("geth", "known transaction", Meaning::Taken),
    Wording("geth", "nonce too low", Meaning::Taken),
    Wording("nethermind", "alreadyknown", Meaning::Taken),
    Wording("nethermind", "oldnonce", Meaning::Taken),
    Wording("nethermind", "ownnoncealreadyused", Meaning::Taken),
    Wording("erigon", "existing tx with same hash", Meaning::Taken),
    Wording("erigon", "existing txn with same hash", Meaning::Taken),
    Wording("anvil", "already imported", Meaning::Taken),
    Wording("parity", "nonce is too low", Meaning::Taken),
    Wording("geth", "underpriced", Meaning::TooCheap),
    Wording("geth", "transaction gas price below minimum", Meaning::TooCheap),
    Wording("geth", "max fee per gas less than block base fee", Meaning::TooCheap),
    Wording("reth", "below minimum required priority fee", Meaning::TooCheap),
    Wording("nethermind", "feetoolow", Meaning::TooCheap),
    Wording("nethermind", "replacementnotallowed", Meaning::TooCheap),
    Wording("erigon", "fee too low", Meaning::TooCheap),
    Wording("erigon", "could not replace existing tx", Meaning::TooCheap),
    Wording("besu", "gas price below configured minimum gas price", Meaning::TooCheap),
    Wording("besu", "gas price below current base fee", Meaning::TooCheap),
    Wording("hardhat", "too low for the next block, which has a basefeepergas", Meaning::TooCheap),
    Wording("arbitrum", "gas price too low", Meaning::TooCheap),
    Wording("geth", "insufficient funds", Meaning::Funds),
    Wording("geth", "insufficient balance for transfer", Meaning::Funds),
    Wording("geth", "transaction would cause overdraft", Meaning::Funds),
    Wording("nethermind", "insufficientfunds", Meaning::Funds),
    Wording("besu", "upfront cost exceeds account balance", Meaning::Funds),
    Wording("hardhat", "doesn't have enough funds", Meaning::Funds),
    Wording("arbitrum", "not enough funds for gas", Meaning::Funds),
    Wording("geth", "intrinsic gas too low", Meaning::Rejected),
    Wording("geth", "insufficient gas for floor data gas cost", Meaning::Rejected),
    Wording("geth", "gas uint64 overflow", Meaning::Rejected),
    Wording("geth", "exceeds block gas limit", Meaning::Rejected),
    Wording("geth", "max priority fee per gas higher than max fee per gas", Meaning::Rejected),
    Wording("geth", "invalid sender", Meaning::Rejected),
    Wording("geth", "invalid chain id", Meaning::Rejected),
    Wording("geth", "oversized data", Meaning::Rejected),
    Wording("geth", "transaction type not supported", Meaning::Rejected),
    Wording("reth", "gas limit too high", Meaning::Rejected),
    Wording("reth", "exceeds max transaction gas limit", Meaning::Rejected),
    Wording("reth", "intrinsic gas too high", Meaning::Rejected),
    Wording("reth", "invalid transaction signature", Meaning::Rejected),
    Wording("nethermind", "gas limit is below intrinsic gas", Meaning::Rejected),
    Wording("nethermind", "gaslimitexceeded", Meaning::Rejected),
    Wording("nethermind", "gas limit of rejected tx", Meaning::Rejected),
    Wording("nethermind", "gaslimitcapexceeded", Meaning::Rejected),
    Wording("nethermind", "failedtoresolvesender", Meaning::Rejected),
    Wording("nethermind", "failed to recover sender", Meaning::Rejected),
    Wording("nethermind", "invalidtxsignature", Meaning::Rejected),
    Wording("nethermind", "invalidtxchainid", Meaning::Rejected),
    Wording("nethermind", "invalidtxtype", Meaning::Rejected),
    Wording("nethermind", "unsupported transaction type", Meaning::Rejected),
    Wording("nethermind", "invalidmaxpriorityfeepergas", Meaning::Rejected),
    Wording("nethermind", "transaction too large", Meaning::Rejected),
    Wording("erigon", "intrinsicgas", Meaning::Rejected),
    Wording("erigon", "gasuintoverflow", Meaning::Rejected),
    Wording("erigon", "rlptoolong", Meaning::Rejected),
    Wording("erigon", "gas limit is too high", Meaning::Rejected),
    Wording("erigon", "fork supporting this transaction type is not activated", Meaning::Rejected),
    Wording("besu", "intrinsic gas exceeds gas limit", Meaning::Rejected),
    Wording("besu", "invalid signature", Meaning::Rejected),
    Wording("besu", "invalid transaction type", Meaning::Rejected),
    Wording("besu", "wrong chain", Meaning::Rejected),
    Wording("besu", "chainid not supported", Meaning::Rejected),
    Wording("besu", "max priority fee per gas exceeds max fee per gas", Meaning::Rejected),
    Wording("anvil", "gas limit is greater than the block gas limit", Meaning::Rejected),
    Wording("anvil", "signed for another chain", Meaning::Rejected),
    Wording("anvil", "not supported by the current hardfork", Meaning::Rejected),
    Wording("hardhat", "not supported by the current hard fork", Meaning::Rejected),
    Wording("hardhat", "transaction requires at least", Meaning::Rejected),
    Wording("hardhat", "transaction requires gas floor of", Meaning::Rejected),
    Wording("hardhat", "exceeds transaction gas cap", Meaning::Rejected),
    Wording("hardhat", "with an invalid chainid", Meaning::Rejected),
];

/// What these words mean.
fn meaning(message: &str) -> Meaning {
    let lower = message.to_lowercase();
    let Some(Wording(client, _, meaning)) = WORDINGS.iter().find(|Wording(_, words, _)| lower.contains(words)) else {
        return Meaning::MaybeSent;
    };
    tracing::debug!(message, ?meaning, wording_of = client, "what a node said to a broadcast");
    *meaning
}

/// What an answer to a broadcast means.
pub(super) fn reception<T>(answer: Result<T, CallError>) -> Result<Reception, Unreachable> {
    let message = match answer {
        Ok(_hash) => return Ok(Reception::Taken),
        Err(CallError::Refused { message, .. }) => message,
        Err(CallError::NoAnswer(why)) => return Err(Unreachable(why)),
    };
    match meaning(&message) {
        Meaning::Taken => Ok(Reception::Taken),
        Meaning::TooCheap => Ok(Reception::TooCheap),
        Meaning::Funds => Ok(Reception::Funds(message)),
        Meaning::Rejected => Ok(Reception::Rejected(message)),
        Meaning::MaybeSent => Err(Unreachable(message)),
    }
}

/// What a node's refusal to estimate means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Estimate {
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
    ("insufficient balance for transfer", Estimate::Funds),
    ("insufficient sender balance", Estimate::Funds),
    ("insufficientfunds", Estimate::Funds),
    ("upfront cost exceeds account balance", Estimate::Funds),
    ("doesn't have enough funds", Estimate::Funds),
    ("not enough funds for gas", Estimate::Funds),
];

/// What a refusal to estimate means.
pub(crate) fn estimate(message: &str, reverts: bool) -> Estimate {
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
        use Meaning::{Funds, MaybeSent, Rejected, Taken, TooCheap};
        let cases: &[(&str, &[(&str, Meaning)])] = &[
            (
                "geth",
                &[
                    ("already known", Taken),
                    ("known transaction: 0x7f657507", Taken),
                    ("nonce too low: next nonce 5, tx nonce 4", Taken),
                    ("replacement transaction underpriced: new tx gas fee cap 10 <= 10 queued", TooCheap),
                    ("transaction underpriced: gas tip cap 0, minimum needed 1", TooCheap),
                    ("transaction gas price below minimum: gas tip cap 0, minimum needed 1", TooCheap),
                    ("max fee per gas less than block base fee: address 0x1, maxFeePerGas: 1, baseFee: 2", TooCheap),
                    ("insufficient funds for gas * price + value: balance 0, tx cost 1, overshot 1", Funds),
                    ("intrinsic gas too low: gas 20000, minimum needed 21000", Rejected),
                    ("insufficient gas for floor data gas cost: gas 21000, minimum needed 22000", Rejected),
                    ("exceeds block gas limit", Rejected),
                    ("transaction gas limit too high (cap: 16777216, tx: 20000000)", Rejected),
                    ("oversized data: transaction size 200000, limit 131072", Rejected),
                    ("invalid sender", Rejected),
                    ("transaction type not supported", Rejected),
                    ("max priority fee per gas higher than max fee per gas", Rejected),
                    ("tx fee (2.00 ether) exceeds the configured cap (1.00 ether)", MaybeSent),
                    ("txpool is full", MaybeSent),
                    ("account limit exceeded: pooled 16 txs", MaybeSent),
                    ("in-flight transaction limit reached for delegated accounts", MaybeSent),
                    ("future transaction tries to replace pending", MaybeSent),
                    ("nonce too high", MaybeSent),
                    ("authority nonce too low", MaybeSent),
                    ("address already reserved", MaybeSent),
                    ("sender not an eoa", MaybeSent),
                ],
            ),
            (
                "reth",
                &[
                    ("already known", Taken),
                    ("nonce too low: next nonce 8, tx nonce 7", Taken),
                    ("replacement transaction underpriced", TooCheap),
                    ("transaction underpriced", TooCheap),
                    ("max fee per gas less than block base fee", TooCheap),
                    ("insufficient funds for gas * price + value: have 1 want 2", Funds),
                    ("exceeds block gas limit", Rejected),
                    ("intrinsic gas too low", Rejected),
                    ("invalid chain ID", Rejected),
                    ("oversized data: transaction size 200000, limit 131072", Rejected),
                    ("transaction priority fee below minimum required priority fee 1", TooCheap),
                    ("exceeds max transaction gas limit", Rejected),
                    ("gas limit too high", Rejected),
                    ("intrinsic gas too high", Rejected),
                    ("invalid transaction signature", Rejected),
                    ("tx fee (2 wei) exceeds the configured cap (1 wei)", MaybeSent),
                    ("sender is not an EOA", MaybeSent),
                    ("txpool is full", MaybeSent),
                ],
            ),
            (
                "nethermind",
                &[
                    ("AlreadyKnown", Taken),
                    ("OldNonce, Current nonce: 5, nonce of rejected tx: 4", Taken),
                    ("OwnNonceAlreadyUsed", Taken),
                    ("FeeTooLow, MaxFeePerGas too low. MaxFeePerGas: 50, BaseFee: 100", TooCheap),
                    ("FeeTooLowToCompete", TooCheap),
                    ("ReplacementNotAllowed", TooCheap),
                    ("InsufficientFunds, Balance is 0 less than sending value + gas 1", Funds),
                    ("GasLimitExceeded, Gas limit: 30000000, gas limit of rejected tx: 40000000", Rejected),
                    ("FailedToResolveSender", Rejected),
                    ("Invalid, InvalidTxSignature: Signature is invalid.", Rejected),
                    ("Invalid, InvalidTxChainId: Expected 1, got 2.", Rejected),
                    ("Invalid, IntrinsicGasTooLow: gas limit is below intrinsic gas.", Rejected),
                    ("already known", Taken),
                    ("nonce too low, Current nonce: 5, nonce of rejected tx: 4", Taken),
                    (
                        "transaction underpriced, FeePerGas needs to be higher than 5 to be added to the TxPool.",
                        TooCheap,
                    ),
                    ("insufficient funds for gas * price + value, Balance is 0 less than sending value + gas 1", Funds),
                    ("gas limit reached, Gas limit: 30000000, gas limit of rejected tx: 40000000", Rejected),
                    ("transaction invalid, intrinsic gas too low", Rejected),
                    (
                        "transaction invalid, TxGasLimitCapExceeded: Gas limit 20000000 exceeded cap of 16777216.",
                        Rejected,
                    ),
                    ("transaction invalid, InvalidTxType: Transaction type in Prague is not supported.", Rejected),
                    ("failed to recover sender", Rejected),
                    ("unsupported transaction type", Rejected),
                    ("transaction too large", Rejected),
                    ("gas limit reached", MaybeSent),
                    ("nonce too high, Future nonce. Expected nonce: 10", MaybeSent),
                    ("nonce too far in future", MaybeSent),
                    ("node is syncing", MaybeSent),
                    ("NonceGap, Future nonce. Expected nonce: 10", MaybeSent),
                    ("Int256Overflow", MaybeSent),
                ],
            ),
            (
                "erigon",
                &[
                    ("already known", Taken),
                    ("existing tx with same hash", Taken),
                    ("existing txn with same hash", Taken),
                    ("nonce too low", Taken),
                    ("underpriced", TooCheap),
                    ("fee too low", TooCheap),
                    ("could not replace existing tx", TooCheap),
                    ("insufficient funds", Funds),
                    ("IntrinsicGas", Rejected),
                    ("RLPTooLong", Rejected),
                    ("GasUintOverflow", Rejected),
                    ("gas limit is too high", Rejected),
                    ("fork supporting this transaction type is not activated yet", Rejected),
                    ("invalid sender", Rejected),
                    ("pending sub-pool is full", MaybeSent),
                    ("spammer", MaybeSent),
                ],
            ),
            (
                "besu",
                &[
                    ("Known transaction", Taken),
                    ("Nonce too low", Taken),
                    ("Replacement transaction underpriced", TooCheap),
                    ("Gas price below configured minimum gas price", TooCheap),
                    ("Gas price below current base fee", TooCheap),
                    ("Upfront cost exceeds account balance", Funds),
                    ("Invalid signature", Rejected),
                    ("Intrinsic gas exceeds gas limit", Rejected),
                    ("Transaction gas limit exceeds block gas limit", Rejected),
                    ("Wrong chainId", Rejected),
                    ("Wrong Chain ID in transaction signature", Rejected),
                    ("ChainId not supported", Rejected),
                    ("Invalid transaction type", Rejected),
                    ("An invalid transaction with a lower nonce exists", MaybeSent),
                    ("Nonce too high", MaybeSent),
                    ("Transaction nonce is too distant from current sender nonce", MaybeSent),
                    ("Transaction fee cap exceeded", MaybeSent),
                    ("Sender account not authorized to send transactions", MaybeSent),
                    ("Initial sync is still in progress", MaybeSent),
                ],
            ),
            (
                "anvil",
                &[
                    ("transaction already imported", Taken),
                    ("nonce too low", Taken),
                    ("replacement transaction underpriced", TooCheap),
                    ("max fee per gas less than block base fee", TooCheap),
                    ("Insufficient funds for gas * price + value", Funds),
                    ("intrinsic gas too low", Rejected),
                    ("intrinsic gas too high -- CallerGasLimitMoreThanBlock", Rejected),
                    (
                        "Transaction gas limit is greater than the block gas limit, gas_limit: 40000000, cap: 30000000",
                        Rejected,
                    ),
                    ("invalid chain id for signer", Rejected),
                    ("Incompatible EIP-155 transaction, signed for another chain", Rejected),
                    (
                        "EIP-1559 style fee params received but they are not supported by the current hardfork.",
                        Rejected,
                    ),
                    ("Failed to decode transaction", MaybeSent),
                ],
            ),
            (
                "hardhat",
                &[
                    ("Known transaction: 0xabc", Taken),
                    ("Nonce too low. Expected nonce to be 3 but got 2.", Taken),
                    (
                        "Replacement transaction underpriced. A gasPrice/maxFeePerGas of at least 11 is necessary",
                        TooCheap,
                    ),
                    (
                        "Transaction maxFeePerGas (1) is too low for the next block, which has a baseFeePerGas of 2",
                        TooCheap,
                    ),
                    ("Sender doesn't have enough funds to send tx. The max upfront cost is: 2", Funds),
                    ("Transaction requires at least 21000 gas but got 20000", Rejected),
                    ("Transaction requires gas floor of 22000 but got limit of 21000", Rejected),
                    (
                        "Trying to send an EIP-1559 transaction but they are not supported by the current hard fork.",
                        Rejected,
                    ),
                    ("Transaction gas limit is 40000000 and exceeds block gas limit of 30000000", Rejected),
                    ("Transaction gas limit is 40000000 and exceeds transaction gas cap of 16777216", Rejected),
                    (
                        "Trying to send a raw transaction with an invalid chainId. The expected chainId is 31337",
                        Rejected,
                    ),
                    ("Nonce too high. Expected nonce to be 3 but got 9.", MaybeSent),
                ],
            ),
            (
                "arbitrum",
                &[
                    ("nonce too low: address 0x336394A3219e71D9d9bd18201d34E95C1Bb7122C, tx: 8089 state: 8090", Taken),
                    ("max fee per gas less than block base fee: address 0x1, maxFeePerGas: 1 baseFee: 2", TooCheap),
                    ("gas price too low", TooCheap),
                    ("insufficient funds for gas * price + value: address 0x1 have 1 want 2", Funds),
                    ("not enough funds for gas", Funds),
                    ("intrinsic gas too low: have 20000, want 21000", Rejected),
                    ("nonce too high: address 0x1, tx: 9 state: 8", MaybeSent),
                    ("sequencer pending tx pool full, please try again", MaybeSent),
                    ("queue full", MaybeSent),
                    ("please retry transaction: not main sequencer", MaybeSent),
                    ("sequencer temporarily not available", MaybeSent),
                    ("transaction sender is not on the whitelist", MaybeSent),
                ],
            ),
            (
                "anybody",
                &[
                    ("execution reverted: nonce too low", MaybeSent),
                    ("unknown transaction 0xabc", MaybeSent),
                    ("header not found", MaybeSent),
                    ("rate limit exceeded", MaybeSent),
                    ("", MaybeSent),
                ],
            ),
        ];
        for (client, wordings) in cases {
            for (message, meant) in *wordings {
                assert_eq!(meaning(message), *meant, "{client}: {message}");
            }
        }
    }

    #[test]
    fn no_row_is_hidden_by_another_that_means_something_else() {
        for Wording(client, words, meant) in WORDINGS {
            assert_eq!(*words, words.to_lowercase(), "{client}");
            assert_eq!(meaning(words), *meant, "{client}: {words}");
        }
    }

    #[test]
    fn what_a_node_says_becomes_a_reception() {
        let refused = |message: &str| {
            reception::<()>(Err(CallError::Refused { code: -32000, message: message.into(), revert: None }))
        };
        assert_eq!(reception(Ok("0xabc")), Ok(Reception::Taken));
        assert_eq!(refused("already known"), Ok(Reception::Taken));
        assert_eq!(refused("underpriced"), Ok(Reception::TooCheap));
        assert_eq!(refused("insufficient funds"), Ok(Reception::Funds("insufficient funds".into())));
        assert_eq!(refused("invalid sender"), Ok(Reception::Rejected("invalid sender".into())));
        assert_eq!(refused("txpool is full"), Err(Unreachable("txpool is full".into())));
        assert_eq!(reception::<()>(Err(CallError::NoAnswer("429".into()))), Err(Unreachable("429".into())));
    }
}
