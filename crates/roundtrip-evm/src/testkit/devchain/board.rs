//! What a call does: the sample contract's rules, line by line those of
//! `contracts/RequestBoard.sol`, and transfers. Running a call changes nothing: it says
//! what would change.

use std::collections::BTreeSet;

use alloy::primitives::{Address, Bytes, LogData, TxKind, U256, keccak256};
use alloy::sol_types::{SolCall, SolError, SolEvent, SolInterface};

use super::state::{BoardAt, Change, State};
use super::{code, gas};
use crate::testkit::board::DEPLOYED_CODE;
use crate::testkit::board::RequestBoard::{self, RequestBoardCalls};

/// What somebody calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) from: Address,
    /// Of which a created contract's address is made.
    pub(super) nonce: u64,
    pub(super) to: TxKind,
    pub(super) value: U256,
    pub(super) input: &'a [u8],
}

/// What a call that succeeds does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    pub(super) output: Bytes,
    pub(super) logs: Vec<LogData>,
    pub(super) changes: Vec<Change>,
    gas: u64,
}

/// What a call that the contract refuses answers: its error, encoded, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reverted(pub(super) Bytes);

/// How a call ends, and what it costs beyond what is charged before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) gas: u64,
    pub(super) end: Result<Effects, Reverted>,
}

/// Runs a call on the state at a block.
pub(super) fn run(state: &State, height: u64, call: &Call<'_>) -> Run {
    let end = match call.to {
        TxKind::Create => create(call),
        TxKind::Call(to) => match state.board(to, height) {
            Some(board) => enter(to, board, call),
            None => return Run { gas: 0, end: Ok(Effects::default()) },
        },
    };
    // A refusal costs about what it read until then.
    let gas = gas::CALL + end.as_ref().map_or(gas::READ, |effects| effects.gas);
    Run { gas, end }
}

/// Creates the sample contract; other code is refused before it comes here.
fn create(call: &Call<'_>) -> Result<Effects, Reverted> {
    let responders = code::created(call.input).filter(|_| call.value.is_zero()).ok_or_else(silent)?;
    let gas = gas::CODE_BYTE * DEPLOYED_CODE.len() as u64 + gas::STORE * responders.len() as u64;
    let board = call.from.create(call.nonce);
    let changes = vec![Change::Deployed { board, responders: responders.into_iter().collect() }];
    Ok(Effects { output: Bytes::from_static(DEPLOYED_CODE), logs: Vec::new(), changes, gas })
}

fn enter(to: Address, board: BoardAt<'_>, call: &Call<'_>) -> Result<Effects, Reverted> {
    // No function takes money, and there is none for calls that name no function.
    if !call.value.is_zero() {
        return Err(silent());
    }
    match RequestBoardCalls::abi_decode(call.input).map_err(|_| silent())? {
        RequestBoardCalls::isResponder(ask) => {
            Ok(read(RequestBoard::isResponderCall::abi_encode_returns(&board.is_responder(ask.caller))))
        }
        RequestBoardCalls::isResponded(ask) => {
            let responded = known(ask.id).is_some_and(|id| board.is_responded(id));
            Ok(read(RequestBoard::isRespondedCall::abi_encode_returns(&responded)))
        }
        RequestBoardCalls::contents(ask) => {
            let content = known(ask.id).and_then(|id| board.content(id)).ok_or_else(silent)?;
            Ok(read(RequestBoard::contentsCall::abi_encode_returns(&content)))
        }
        RequestBoardCalls::request(ask) => Ok(request(to, board, call.from, &ask.payload)),
        RequestBoardCalls::respond(one) => {
            let one = RequestBoard::Response { id: one.id, content: one.content, answer: one.answer };
            respond(to, board, call.from, vec![one])
        }
        RequestBoardCalls::respondMany(many) => respond(to, board, call.from, many.responses),
    }
}

fn request(to: Address, board: BoardAt<'_>, from: Address, payload: &Bytes) -> Effects {
    let id = U256::from(board.asked());
    let log = RequestBoard::Requested { id, from, payload: payload.clone() }.encode_log_data();
    // The first request also fills the slot of the count.
    let count = if id.is_zero() { gas::STORE } else { gas::UPDATE };
    Effects {
        output: RequestBoard::requestCall::abi_encode_returns(&id).into(),
        gas: count + gas::STORE + gas::log(&log),
        changes: vec![Change::Asked { board: to, content: keccak256(payload) }],
        logs: vec![log],
    }
}

/// All or none; a request that is named twice was answered by the first.
fn respond(
    to: Address,
    board: BoardAt<'_>,
    by: Address,
    responses: Vec<RequestBoard::Response>,
) -> Result<Effects, Reverted> {
    let mut effects = Effects::default();
    let mut answered = BTreeSet::new();
    for response in responses {
        if !board.is_responder(by) {
            return Err(because(&RequestBoard::NotAResponder { caller: by }));
        }
        let asked = known(response.id).and_then(|id| Some((id, board.content(id)?)));
        let Some((id, content)) = asked else {
            return Err(because(&RequestBoard::UnknownRequest { id: response.id }));
        };
        if content != response.content {
            return Err(because(&RequestBoard::OtherContent { id: response.id, content }));
        }
        if board.is_responded(id) || !answered.insert(id) {
            return Err(because(&RequestBoard::AlreadyResponded { id: response.id }));
        }
        let log = RequestBoard::Responded { id: response.id, by, answer: response.answer }.encode_log_data();
        effects.gas += 3 * gas::READ + gas::STORE + gas::log(&log);
        effects.logs.push(log);
        effects.changes.push(Change::Responded { board: to, id });
    }
    Ok(effects)
}

/// An id that may have been given; ids are counted.
fn known(id: U256) -> Option<u64> {
    u64::try_from(id).ok()
}

fn read(output: Vec<u8>) -> Effects {
    Effects { output: output.into(), gas: gas::READ, ..Effects::default() }
}

fn silent() -> Reverted {
    Reverted(Bytes::new())
}

fn because(error: &impl SolError) -> Reverted {
    Reverted(error.abi_encode().into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use alloy::primitives::B256;

    const BOARD: Address = Address::with_last_byte(1);
    const RESPONDER: Address = Address::with_last_byte(2);
    const STRANGER: Address = Address::with_last_byte(3);

    /// A board on which `a` (answered) and `b` were asked.
    fn scene() -> State {
        let mut state = State::default();
        state.apply(0, Change::Deployed { board: BOARD, responders: [RESPONDER].into() });
        for payload in ["a", "b"] {
            state.apply(1, Change::Asked { board: BOARD, content: keccak256(payload) });
        }
        state.apply(1, Change::Responded { board: BOARD, id: 0 });
        state
    }

    fn call(from: Address, input: Vec<u8>) -> Result<Effects, Reverted> {
        run(&scene(), 1, &Call { from, nonce: 0, to: BOARD.into(), value: U256::ZERO, input: &input }).end
    }

    fn one(id: u64, payload: &str) -> RequestBoard::Response {
        RequestBoard::Response { id: U256::from(id), content: keccak256(payload), answer: Bytes::from_static(b"!") }
    }

    fn respond_with(from: Address, responses: Vec<RequestBoard::Response>) -> Result<Effects, Reverted> {
        call(from, RequestBoard::respondManyCall { responses }.abi_encode())
    }

    #[test]
    fn what_the_contract_refuses() {
        let id = |id: u64| U256::from(id);
        let table = [
            (STRANGER, vec![one(1, "b")], because(&RequestBoard::NotAResponder { caller: STRANGER })),
            (RESPONDER, vec![one(2, "c")], because(&RequestBoard::UnknownRequest { id: id(2) })),
            (RESPONDER, vec![one(1, "c")], because(&RequestBoard::OtherContent { id: id(1), content: keccak256("b") })),
            (RESPONDER, vec![one(0, "a")], because(&RequestBoard::AlreadyResponded { id: id(0) })),
            (RESPONDER, vec![one(1, "b"), one(1, "b")], because(&RequestBoard::AlreadyResponded { id: id(1) })),
        ];
        for (from, responses, refusal) in table {
            assert_eq!(respond_with(from, responses.clone()), Err(refusal), "{responses:?}");
        }
        assert_eq!(call(STRANGER, vec![1, 2, 3, 4]), Err(silent()));
        assert_eq!(call(STRANGER, RequestBoard::contentsCall { id: id(2) }.abi_encode()), Err(silent()));
        let paid = RequestBoard::requestCall { payload: Bytes::new() }.abi_encode();
        let paid = Call { from: STRANGER, nonce: 0, to: BOARD.into(), value: U256::from(1), input: &paid };
        assert_eq!(run(&scene(), 1, &paid).end, Err(silent()));
    }

    /// Measured on a real EVM with the payload `what?`: 51,996 and 54,295.
    #[test]
    fn gas_is_of_the_right_order() {
        let cost = |from, input: Vec<u8>| {
            let call = Call { from, nonce: 0, to: BOARD.into(), value: U256::ZERO, input: &input };
            gas::intrinsic(call.to, &input) + run(&scene(), 1, &call).gas
        };
        let asked = cost(STRANGER, RequestBoard::requestCall { payload: Bytes::from_static(b"what?") }.abi_encode());
        assert!((50_000..54_000).contains(&asked), "{asked}");
        let answer = Bytes::from_static(b"answer");
        let respond = RequestBoard::respondCall { id: U256::from(1), content: keccak256("b"), answer };
        let answered = cost(RESPONDER, respond.abi_encode());
        assert!((52_000..57_000).contains(&answered), "{answered}");
    }

    #[test]
    fn what_the_contract_does() {
        let answered = respond_with(RESPONDER, vec![one(1, "b")]).unwrap();
        assert_eq!(answered.changes, [Change::Responded { board: BOARD, id: 1 }]);
        let log = RequestBoard::Responded::decode_log_data(&answered.logs[0]).unwrap();
        assert_eq!((log.id, log.by), (U256::from(1), RESPONDER));

        let asked = call(STRANGER, RequestBoard::requestCall { payload: Bytes::from_static(b"c") }.abi_encode());
        let asked = asked.unwrap();
        assert_eq!(asked.changes, [Change::Asked { board: BOARD, content: keccak256("c") }]);
        assert_eq!(asked.output, Bytes::from(B256::with_last_byte(2)));

        let truth = |input: Vec<u8>| call(STRANGER, input).unwrap().output == Bytes::from(B256::with_last_byte(1));
        assert!(truth(RequestBoard::isRespondedCall { id: U256::ZERO }.abi_encode()));
        assert!(!truth(RequestBoard::isRespondedCall { id: U256::MAX }.abi_encode()));
        assert!(truth(RequestBoard::isResponderCall { caller: RESPONDER }.abi_encode()));
        assert!(!truth(RequestBoard::isResponderCall { caller: STRANGER }.abi_encode()));
    }
}
