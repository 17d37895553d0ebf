//! `eth_call` and `eth_estimateGas`: what a transaction would do on the state at a block.

use alloy::eips::BlockId;
use alloy::primitives::{Address, TxKind, U256};
use alloy::rpc::types::TransactionRequest;
use serde_json::Value;

use super::view::View;
use super::{Fault, REVERTED, SERVER_ERROR, quantity, shown};
use crate::testkit::devchain::board::{self, Call, Reverted, Run};
use crate::testkit::devchain::pool::Refused;
use crate::testkit::devchain::{code, gas};

/// The answer of a contract's function.
pub(super) fn call(view: &View<'_>, request: &TransactionRequest, at: Option<BlockId>) -> Result<Value, Fault> {
    let run = try_run(view, request, view.height(at)?)?;
    shown(run.end.map_err(reverted)?.output)
}

/// The gas that a transaction needs.
pub(super) fn estimate(view: &View<'_>, request: &TransactionRequest, at: Option<BlockId>) -> Result<Value, Fault> {
    let height = view.height(at)?;
    let run = try_run(view, request, height)?;
    run.end.map_err(reverted)?;
    let (to, input) = (kind(request), input(request));
    let needed = (gas::intrinsic(to, input) + run.gas).max(gas::floor(input));
    let allowance = allowance(view, request, height)?;
    if needed > allowance {
        return Err(Fault::new(SERVER_ERROR, format!("gas required exceeds allowance ({allowance})")));
    }
    quantity(needed)
}

fn kind(request: &TransactionRequest) -> TxKind {
    request.to.unwrap_or(TxKind::Create)
}

fn input(request: &TransactionRequest) -> &[u8] {
    request.input.input().map_or(&[], |input| input)
}

fn fee_cap(request: &TransactionRequest) -> Option<u128> {
    request.max_fee_per_gas.or(request.gas_price).filter(|fee| *fee > 0)
}

fn try_run(view: &View<'_>, request: &TransactionRequest, height: u64) -> Result<Run, Fault> {
    let (from, base_fee) = (request.from.unwrap_or(Address::ZERO), view.ledger.base_fee);
    if let Some(fee) = fee_cap(request).filter(|fee| *fee < u128::from(base_fee)) {
        let message = format!(
            "max fee per gas less than block base fee: address {from}, maxFeePerGas: {fee}, baseFee: {base_fee}"
        );
        return Err(Fault::new(SERVER_ERROR, message));
    }
    if kind(request).is_create() && code::created(input(request)).is_none() {
        return Err(Refused::Foreign.into());
    }
    let value = request.value.unwrap_or(U256::ZERO);
    if value > view.ledger.state.balance(from, height) {
        return Err(Fault::new(SERVER_ERROR, "insufficient funds for transfer"));
    }
    let nonce = view.ledger.state.nonce(from, height);
    let call = Call { from, nonce, to: kind(request), value, input: input(request) };
    Ok(board::run(&view.ledger.state, height, &call))
}

/// How much gas the caller may use: what a block holds, what was asked for, what can be paid.
fn allowance(view: &View<'_>, request: &TransactionRequest, height: u64) -> Result<u64, Fault> {
    let most = request.gas.unwrap_or(u64::MAX).min(view.ledger.options.block_gas_limit);
    let Some(fee) = fee_cap(request) else { return Ok(most) };
    let balance = view.ledger.state.balance(request.from.unwrap_or(Address::ZERO), height);
    let left = balance.saturating_sub(request.value.unwrap_or(U256::ZERO));
    Ok(u64::try_from(left / U256::from(fee)).map_or(most, |paid| paid.min(most)))
}

/// As geth: with the contract's error, if it gave one.
fn reverted(Reverted(data): Reverted) -> Fault {
    match data.is_empty() {
        true => Fault::new(SERVER_ERROR, "execution reverted"),
        false => Fault { data: Some(data), ..Fault::new(REVERTED, "execution reverted") },
    }
}
