//! What things cost. The charges before execution are those of Ethereum, since pools
//! refuse by them; what the contract's code costs is of the right order, not exact.

use alloy::primitives::{LogData, TxKind};

const TRANSACTION: u64 = 21_000;
const CREATION: u64 = 32_000;
const ZERO_BYTE_TOKENS: u64 = 1;
const BYTE_TOKENS: u64 = 4;
const TOKEN: u64 = 4;
/// What a token of data costs at least, however little is executed (EIP-7623).
const TOKEN_FLOOR: u64 = 10;
/// Per 32 bytes of init code (EIP-3860).
const INIT_CODE_WORD: u64 = 2;

/// Dispatch, decoding and checks of one call.
pub(super) const CALL: u64 = 1_500;
/// The first read of a storage slot.
pub(super) const READ: u64 = 2_100;
/// A storage slot that was empty.
pub(super) const STORE: u64 = 22_100;
/// A storage slot that was not.
pub(super) const UPDATE: u64 = 5_000;
/// A byte of a contract's code.
pub(super) const CODE_BYTE: u64 = 200;
const LOG: u64 = 375;
const LOG_BYTE: u64 = 8;

fn tokens(input: &[u8]) -> u64 {
    input.iter().map(|byte| if *byte == 0 { ZERO_BYTE_TOKENS } else { BYTE_TOKENS }).sum()
}

/// What is charged before anything runs.
pub(super) fn intrinsic(to: TxKind, input: &[u8]) -> u64 {
    let creation = if to.is_create() { CREATION + INIT_CODE_WORD * (input.len() as u64).div_ceil(32) } else { 0 };
    TRANSACTION + creation + TOKEN * tokens(input)
}

/// What a transaction costs at least.
pub(super) fn floor(input: &[u8]) -> u64 {
    TRANSACTION + TOKEN_FLOOR * tokens(input)
}

/// What an event costs.
pub(super) fn log(data: &LogData) -> u64 {
    LOG + LOG * data.topics().len() as u64 + LOG_BYTE * data.data.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy::primitives::Address;

    #[test]
    fn charges_before_execution() {
        let call = TxKind::Call(Address::ZERO);
        let table: [(TxKind, &[u8], u64, u64); 4] = [
            (call, &[], 21_000, 21_000),
            (call, &[0, 0, 1], 21_000 + 2 * 4 + 16, 21_000 + 60),
            (TxKind::Create, &[], 53_000, 21_000),
            (TxKind::Create, &[1; 33], 53_000 + 4 + 33 * 16, 21_000 + 33 * 40),
        ];
        for (to, input, before, least) in table {
            assert_eq!((intrinsic(to, input), floor(input)), (before, least), "{to:?} {input:?}");
        }
    }
}
