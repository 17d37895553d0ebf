//! Reading a contract: one `eth_call`, with arguments made of JSON and an answer that is JSON.
//!
//! Failure modes: a node that does not answer, refuses what is no revert, or is on another chain,
//! is passed over for the next; if there is none left, the read has no answer and may be
//! made again. A revert is the contract's own answer, and says what it means by [`Outcomes`].
//! What the contract returns and the signature cannot read is no answer either.

use alloy::dyn_abi::{DynSolValue, FunctionExt, JsonAbiExt};
use alloy::json_abi::Function;
use alloy::primitives::{Address, Bytes, U64};
use serde_json::{Value, json};

use crate::abi;
use crate::endpoint::{Endpoint, by_health};
use crate::json::shown;
use crate::mapping::Mapping;
use crate::rpc::{CallError, Finality, Rpc};
use crate::sender::call::{BadFunction, parse};
use crate::sender::outcomes::{Outcome, Outcomes};
use crate::sender::reception::{Estimate, estimate};
use crate::sender::why::revert_text;

/// The document that arguments are, where nothing else is said.
const REQUEST: &str = "request";

/// On which block a contract is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAt {
    /// On the newest.
    Latest,
    /// On the newest that no reorg can take away.
    Final(Finality),
}

/// Why a read has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// What was given does not make the arguments.
    #[error("{0}")]
    Arguments(String),
    /// The contract refused.
    #[error("the contract reverted: {text}")]
    Reverted {
        /// What that means.
        outcome: Outcome,
        /// What it reverted with.
        text: String,
    },
    /// It returned what its signature does not say; mostly, there is no such function.
    #[error("the contract's answer cannot be read: {0}")]
    Unreadable(String),
    /// No node has an answer.
    #[error("{0}")]
    NoAnswer(String),
}

/// A function of a contract that is read.
#[derive(Debug)]
pub struct ContractRead {
    chain_id: u64,
    nodes: Vec<Endpoint>,
    to: Address,
    function: Function,
    arguments: Mapping,
    at: ReadAt,
    outcomes: Outcomes,
}

impl ContractRead {
    /// A function by its signature, such as `priceOf(uint256 id) returns (uint256 price)`, whose
    /// arguments are the request.
    pub fn new(chain_id: u64, nodes: Vec<Rpc>, to: Address, signature: &str) -> Result<ContractRead, BadFunction> {
        let function = parse(signature)?;
        let bad = |why: String| BadFunction { text: signature.to_owned(), why };
        if function.outputs.is_empty() {
            return Err(bad("it returns nothing: write what it returns, such as `returns (uint256 price)`".to_owned()));
        }
        for output in &function.outputs {
            abi::type_of(&output.name, output).map_err(|error| bad(error.to_string()))?;
        }
        let nodes = nodes.into_iter().map(Endpoint::new).collect();
        let (arguments, at, outcomes) = (Mapping::whole(REQUEST), ReadAt::Latest, Outcomes::new());
        Ok(ContractRead { chain_id, nodes, to, function, arguments, at, outcomes })
    }

    /// The same function, with arguments that are made of fields of these documents; see [`Mapping`].
    pub fn with_arguments(mut self, arguments: &Value, documents: &[&str]) -> Result<ContractRead, BadFunction> {
        self.arguments = Mapping::read(arguments, documents);
        let bad = |why: String| BadFunction { text: self.function.full_signature(), why };
        self.arguments.check(&self.function.inputs, None).map_err(|error| bad(error.to_string()))?;
        Ok(self)
    }

    /// Read on this block.
    #[must_use]
    pub fn at(mut self, at: ReadAt) -> ContractRead {
        self.at = at;
        self
    }

    /// What its refusals mean; without it, they are fatal.
    #[must_use]
    pub fn outcomes(mut self, outcomes: Outcomes) -> ContractRead {
        self.outcomes = outcomes;
        self
    }

    /// What is called, and with what: the same for the same arguments.
    pub fn data<'a>(&self, document: &impl Fn(&str) -> Option<&'a Value>) -> Result<Bytes, ReadError> {
        let refused = |why: String| ReadError::Arguments(why);
        let filled = self.arguments.fill(document).map_err(refused)?;
        let values = abi::from_json(&self.function.inputs, &filled).map_err(|error| refused(error.to_string()))?;
        let data = self.function.abi_encode_input(&values).map_err(|error| refused(error.to_string()))?;
        Ok(data.into())
    }

    /// What the contract returns: an object where all that it returns has names, one value
    /// where it is one without a name, else a list.
    pub async fn read(&self, data: &Bytes) -> Result<Value, ReadError> {
        let mut why = "no node is named".to_owned();
        for at in by_health(self.nodes.iter()) {
            let node = &self.nodes[at];
            if let Err(error) = node.on_chain(self.chain_id).await {
                why = error.to_string();
                node.judge::<()>(&Err(error));
                continue;
            }
            match self.ask(&node.rpc, data).await {
                Ok(returned) => {
                    node.judge(&Ok(()));
                    return self.value(&returned);
                }
                Err(CallError::Refused { message, revert, .. })
                    if estimate(&message, revert.is_some()) == Estimate::Refused =>
                {
                    let outcome = self.outcomes.meaning(&message, revert.as_ref());
                    return Err(ReadError::Reverted { outcome, text: revert_text(&message, revert.as_ref()) });
                }
                Err(error) => {
                    let error = node.failed(error);
                    why = error.to_string();
                    node.judge::<()>(&Err(error));
                }
            }
        }
        Err(ReadError::NoAnswer(why))
    }

    async fn ask(&self, rpc: &Rpc, data: &Bytes) -> Result<Bytes, CallError> {
        let block = match self.at {
            ReadAt::Latest => json!("latest"),
            ReadAt::Final(finality) => {
                let head = rpc.head().await?;
                json!(U64::from(rpc.finalized(&head, finality).await?.at.height.0))
            }
        };
        rpc.call("eth_call", (json!({"to": self.to, "data": data}), block)).await
    }

    fn value(&self, returned: &Bytes) -> Result<Value, ReadError> {
        let values = self.function.abi_decode_output(returned).map_err(|error| {
            let none = if returned.is_empty() { "it returned nothing: is there such a contract?" } else { "" };
            ReadError::Unreadable(if none.is_empty() { error.to_string() } else { none.to_owned() })
        })?;
        Ok(match (&values[..], &self.function.outputs[..]) {
            ([value], [output]) if output.name.is_empty() => shown(value, &output.components),
            _ => shown(&DynSolValue::Tuple(values), &self.function.outputs),
        })
    }

    /// What would make every read fail, as far as the nodes tell.
    pub async fn probe(&self) -> Result<(), String> {
        for node in &self.nodes {
            node.on_chain(self.chain_id).await.map_err(|error| error.to_string())?;
            if !node.rpc.has_code(self.to).await.map_err(|error| node.failed(error).to_string())? {
                return Err(format!("there is no contract at {}", self.to));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::primitives::U256;

    use super::*;

    fn reads(signature: &str, arguments: Value) -> Result<ContractRead, BadFunction> {
        ContractRead::new(1, Vec::new(), Address::ZERO, signature)?.with_arguments(&arguments, &["request"])
    }

    #[test]
    fn what_is_returned_is_json_by_its_names() {
        let word = |n: u64| Bytes::from(U256::from(n).to_be_bytes_vec());
        let value = |signature: &str, returned: &Bytes| reads(signature, json!([])).unwrap().value(returned);
        assert_eq!(value("f() returns (uint256)", &word(7)), Ok(json!("7")));
        assert_eq!(value("f() returns (uint256 price)", &word(7)), Ok(json!({"price": "7"})));
        let two: Bytes = [word(1), word(0)].concat().into();
        assert_eq!(value("f() returns (uint256, bool)", &two), Ok(json!(["1", false])));
        assert_eq!(value("f() returns (uint256 a, bool b)", &two), Ok(json!({"a": "1", "b": false})));
        assert!(matches!(value("f() returns (uint256)", &Bytes::new()), Err(ReadError::Unreadable(_))));
    }

    #[test]
    fn a_function_that_can_never_be_read_is_refused_at_the_start() {
        for (signature, arguments, part) in [
            ("f(uint256 id)", json!(["/request/id"]), "it returns nothing"),
            ("f(uint256 id) returns (uint7)", json!(["/request/id"]), "uint7"),
            ("f(uint256 id) returns (uint8)", json!({}), "/id: it is missing"),
            ("f(uint256 id) returns (uint8)", json!({"id": "x"}), "/id"),
            ("f(", json!([]), "cannot be called"),
        ] {
            let error = reads(signature, arguments).unwrap_err().to_string();
            assert!(error.contains(part), "{signature}: {error}");
        }
        let read = reads("f(uint256 id) returns (uint8)", json!({"id": "/request/id"})).unwrap();
        let request = json!({"id": 7});
        let data = read.data(&|_| Some(&request)).unwrap();
        assert_eq!(data.len(), 36);
        let request = json!({});
        let missing = read.data(&|_| Some(&request));
        assert_eq!(missing, Err(ReadError::Arguments("there is no /request/id".to_owned())));
    }
}
