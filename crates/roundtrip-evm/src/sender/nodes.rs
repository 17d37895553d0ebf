//! The nodes that a chain is seen by, and those that are sent to.
//!
//! One look, or one signature, is of one node: the best by its health, which looks and
//! broadcasts decide. Bytes go to all nodes that are well; what they say is made one.

use std::time::Duration;

use alloy::primitives::{B256, Bytes};
use futures_util::future::{join_all, select};
use futures_util::{FutureExt, future::Either};
use roundtrip::sender::SignedAttempt;
use roundtrip::sender::chain::{Reception, Unreachable};
use tokio::time::Instant;

use super::reception::reception;
use crate::endpoint::{Endpoint, NodeReport, by_health};
use crate::rpc::{CallError, Rpc};

/// How long the others are waited for when one node has taken everything.
const GRACE: Duration = Duration::from_millis(500);

/// What a node said to each of several attempts.
type Said = Vec<Result<Reception, Unreachable>>;

/// The nodes of one chain, in the order in which they are preferred.
pub(super) struct Nodes {
    chain_id: u64,
    nodes: Vec<Endpoint>,
}

impl Nodes {
    pub(super) fn new(chain_id: u64, first: Rpc) -> Nodes {
        Nodes { chain_id, nodes: vec![Endpoint::new(first)] }
    }

    pub(super) fn add(&mut self, rpc: Rpc) {
        self.nodes.push(Endpoint::new(rpc));
    }

    /// How each of them did so far.
    pub(super) fn reports(&self) -> Vec<NodeReport> {
        self.nodes.iter().map(Endpoint::report).collect()
    }

    /// The best node that says to be on the chain.
    pub(super) async fn best(&self) -> Result<&Endpoint, Unreachable> {
        let mut why = String::new();
        for at in by_health(self.nodes.iter()) {
            let node = &self.nodes[at];
            match node.on_chain(self.chain_id).await {
                Ok(()) => return Ok(node),
                Err(error) => {
                    why = error.to_string();
                    node.judge::<()>(&Err(error));
                }
            }
        }
        Err(Unreachable(why))
    }

    /// Sends to all nodes that are well, and to the best one in any case.
    pub(super) async fn broadcast(&self, attempts: &[SignedAttempt]) -> Said {
        let now = Instant::now();
        let order = by_health(self.nodes.iter());
        let chosen = order.iter().enumerate().filter(|(n, at)| *n == 0 || self.nodes[**at].health().is_good(now));
        let mut asked: Vec<_> = chosen.map(|(_, at)| self.send(&self.nodes[*at], attempts).boxed()).collect();
        let all_taken = |said: &Said| said.iter().all(|one| *one == Ok(Reception::Taken));
        let mut answers: Vec<Said> = Vec::with_capacity(asked.len());
        while !asked.is_empty() {
            let (said, _, rest) = futures_util::future::select_all(asked).await;
            asked = rest;
            let taken = all_taken(&said);
            answers.push(said);
            if taken && !asked.is_empty() {
                // Nobody's answer matters any more, but the others should have the bytes too.
                if let Either::Left((said, _)) = select(join_all(asked), Box::pin(tokio::time::sleep(GRACE))).await {
                    answers.extend(said);
                }
                break;
            }
        }
        let of = |n: usize| merged(answers.iter().filter_map(|said| said.get(n).cloned()));
        (0..attempts.len()).map(of).collect()
    }

    /// What one node says; silence is held against it.
    async fn send(&self, node: &Endpoint, attempts: &[SignedAttempt]) -> Said {
        if let Err(error) = node.on_chain(self.chain_id).await {
            let why = Unreachable(error.to_string());
            node.judge::<()>(&Err(error));
            return vec![Err(why); attempts.len()];
        }
        let params: Vec<_> = attempts.iter().map(|attempt| [Bytes::from(attempt.bytes.clone())]).collect();
        let answers = node.rpc.calls::<_, B256>("eth_sendRawTransaction", &params).await;
        let silent = answers.iter().find_map(|answer| match answer {
            Err(error @ CallError::NoAnswer(_)) => Some(error.clone()),
            _ => None,
        });
        node.judge(&silent.map_or(Ok(()), |error| Err(node.failed(error))));
        answers.into_iter().map(reception).collect()
    }
}

/// What several nodes' answers to the same bytes come to. One that has them is enough; bytes are
/// rejected, or not paid for, only if all say so, since one that is silent may have them.
fn merged(answers: impl Iterator<Item = Result<Reception, Unreachable>>) -> Result<Reception, Unreachable> {
    let rank = |answer: &Result<Reception, Unreachable>| match answer {
        Ok(Reception::Taken) => 0,
        Ok(Reception::TooCheap) => 1,
        Err(_) => 2,
        Ok(Reception::Funds(_)) => 3,
        Ok(Reception::Rejected(_)) => 4,
    };
    answers.min_by_key(rank).unwrap_or_else(|| Err(Unreachable("nobody was asked".into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_answers_are_one() {
        let taken = || Ok(Reception::Taken);
        let cheap = || Ok(Reception::TooCheap);
        let funds = || Ok(Reception::Funds("no money".into()));
        let rejected = || Ok(Reception::Rejected("never".into()));
        let silent = || Err(Unreachable("silent".into()));
        let cases = [
            (vec![taken(), rejected(), silent()], taken()),
            (vec![rejected(), cheap(), funds()], cheap()),
            (vec![rejected(), silent()], silent()),
            (vec![funds(), silent()], silent()),
            (vec![rejected(), funds()], funds()),
            (vec![rejected(), rejected()], rejected()),
            (vec![funds()], funds()),
            (vec![], Err(Unreachable("nobody was asked".into()))),
        ];
        for (answers, one) in cases {
            assert_eq!(merged(answers.clone().into_iter()), one, "{answers:?}");
        }
    }
}
