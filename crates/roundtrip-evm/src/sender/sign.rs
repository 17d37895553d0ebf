//! Signing: which call, how much gas, at what price; and what a contract's refusal leads to.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use alloy::primitives::{Address, B256, Bytes, U64, U128, U256};
use roundtrip::sender::chain::{Because, Cargo, Unreachable, Unsigned};
use roundtrip::sender::{AttemptKind, SignedAttempt};
use roundtrip::store::query::ReadyDelivery;
use roundtrip::words::{ErrorClass, ErrorNote, Height, LaneName, Nonce, RequestId};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::call::Call;
use super::chain::{EvmChain, Gas};
use super::fees::Fees;
use super::heads::View;
use super::outcomes::{Outcome, Outcomes};
use super::reception::{Estimate, estimate};
use super::transaction::{Draft, FeeKind};
use super::why::revert_text;
use crate::rpc::{CallError, Rpc};

/// How many refusals are remembered.
const REFUSALS_MAX: usize = 1024;
/// A refusal of so long ago counts again although the chain stands still.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// Who looks, at what, by which node.
#[derive(Clone, Copy)]
struct Sight<'a> {
    lane: &'a LaneName,
    rpc: &'a Rpc,
    view: &'a View,
    from: Address,
}

impl Sight<'_> {
    fn request(&self, call: &Call) -> Value {
        json!({"from": self.from, "to": call.to, "data": call.data, "value": call.value})
    }
}

/// What a contract says against a call.
struct Refusal {
    message: String,
    revert: Option<Bytes>,
}

impl Refusal {
    fn text(&self) -> String {
        revert_text(&self.message, self.revert.as_ref())
    }
}

/// Whom a contract refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Refused {
    Answer(RequestId),
    Lane(LaneName),
}

/// Whom a contract refused once, and at which head.
#[derive(Default)]
pub(super) struct Refusals(Mutex<HashMap<Refused, (Height, Instant)>>);

impl Refusals {
    /// Whether it was refused before, at a lower head or long ago; else it is remembered.
    fn again(&self, refused: Refused, head: Height) -> bool {
        let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((before, when)) = refusals.get(&refused) {
            let again = *before < head || when.elapsed() >= REFUSED_FOR;
            if again {
                refusals.remove(&refused);
            }
            return again;
        }
        if refusals.len() >= REFUSALS_MAX {
            // Those that are forgotten are only refused once more.
            refusals.clear();
        }
        refusals.insert(refused, (head, Instant::now()));
        false
    }
}

impl EvmChain {
    pub(super) async fn signed(
        &self,
        lane: &LaneName,
        nonce: Nonce,
        cargo: Cargo<'_>,
    ) -> Result<SignedAttempt, Unsigned> {
        let signer = self.signer(lane)?;
        if self.lost.contains(lane) {
            // Before anything is asked of the contract: what it says to this account means nothing to others.
            return Err(Unsigned::Lane("its key is lost".into()));
        }
        let rpc = &self.nodes.best().await?.rpc;
        let view = self.heads.view(rpc).await.map_err(Unreachable::from)?;
        let now = self.fees(rpc, &view).await.map_err(Unreachable::from)?;
        let (draft, kind) = match cargo {
            Cargo::Deliveries(answers) => {
                let sight = Sight { lane, rpc, view: &view, from: signer.address() };
                (self.first(sight, nonce, answers, now).await?, AttemptKind::Carry)
            }
            Cargo::Dearer(attempts, because) => self.dearer(attempts, because, now)?,
            Cargo::Nothing(attempts) => {
                let sight = Sight { lane, rpc, view: &view, from: signer.address() };
                (self.nothing(sight, nonce, attempts, now).await?, AttemptKind::Cancel)
            }
        };
        let offered = draft.fees;
        // A task of its own, so that slots that are signed at once share all processors.
        let signer = signer.clone();
        let signing = tokio::spawn(async move { draft.sign(&*signer, kind).await });
        let refused = |error: &dyn std::fmt::Display| Unreachable(format!("the signer of {lane}: {error}"));
        let signed = signing.await.map_err(|error| refused(&error))?.map_err(|error| refused(&error))?;
        self.known(lane, |known| known.offered = Some(offered));
        Ok(signed)
    }

    /// What is right to pay by now.
    async fn fees(&self, rpc: &Rpc, view: &View) -> Result<Fees, CallError> {
        // Held over the call, so that slots that are signed at once share it.
        let mut remembered = self.tip.lock().await;
        let tip = match remembered.filter(|(at, _)| *at == view.head.at) {
            Some((_, tip)) => tip,
            None => {
                let method = if view.head.base_fee.is_some() { "eth_maxPriorityFeePerGas" } else { "eth_gasPrice" };
                let tip = rpc.call::<_, U128>(method, ()).await?.to::<u128>().max(self.options.tip_min);
                *remembered = Some((view.head.at, tip));
                tip
            }
        };
        Ok(Fees::now(view.head.base_fee, tip, self.options.fee_cap))
    }

    async fn first(
        &self,
        sight: Sight<'_>,
        nonce: Nonce,
        answers: &[ReadyDelivery],
        fees: Fees,
    ) -> Result<Draft, Unsigned> {
        // Of several answers, a call does not tell which one it cannot carry.
        let apart = |why: String| match answers.len() {
            1 => Unsigned::Never(ErrorNote::new(ErrorClass::Fatal, &why)),
            _ => Unsigned::Apart(why),
        };
        let call = self.calls.call(answers).map_err(apart)?;
        let gas = match self.options.gas {
            Gas::Fixed(gas) => gas,
            Gas::Estimated { margin_percent } => {
                let gas = match (self.estimate(sight, &call).await?, answers) {
                    (Ok(gas), _) => gas,
                    (Err(refusal), [answer]) => return Err(self.refused(sight, &call, answer, refusal).await?),
                    (Err(refusal), _) => return Err(Unsigned::Apart(refusal.text())),
                };
                gas.saturating_add(gas.saturating_mul(margin_percent) / 100)
            }
        };
        Ok(Draft { chain_id: self.chain_id, nonce, call, gas, fees, fee_kind: fee_kind(sight.view) })
    }

    /// What a call needs at the head that was looked at, or what the contract says against it:
    /// a node that lags behind does not know that block, and cannot mistake what it has not
    /// seen for a refusal.
    async fn estimate(&self, sight: Sight<'_>, call: &Call) -> Result<Result<u64, Refusal>, Unsigned> {
        let at = json!({"blockHash": B256::from(sight.view.head.at.hash)});
        let answer = sight.rpc.call::<_, U64>("eth_estimateGas", (sight.request(call), at)).await;
        let (message, revert) = match answer {
            Ok(gas) => return Ok(Ok(gas.to())),
            Err(CallError::Refused { message, revert, .. }) => (message, revert),
            Err(error) => return Err(Unreachable::from(error).into()),
        };
        match estimate(&message, revert.is_some()) {
            Estimate::Refused => Ok(Err(Refusal { message, revert })),
            Estimate::Funds => Err(Unsigned::Funds(message)),
            Estimate::Unknown => Err(Unreachable(message).into()),
        }
    }

    /// What it means that a contract refuses an answer. What is done must be so at final depth;
    /// what is fatal, or the lane's fault, must be so at a later head too: the first one may be
    /// gone by then.
    async fn refused(
        &self,
        sight: Sight<'_>,
        call: &Call,
        answer: &ReadyDelivery,
        refusal: Refusal,
    ) -> Result<Unsigned, Unsigned> {
        let text = format!("the contract would refuse it: {}", refusal.text());
        let head = sight.view.head.at.height;
        let outcomes = self.outcomes_of(Some(&answer.route));
        Ok(match outcomes.meaning(&refusal.message, refusal.revert.as_ref()) {
            Outcome::Retry => Unsigned::Later(text),
            Outcome::AlreadyDone if is_done_for_good(sight, call, outcomes).await? => Unsigned::Done,
            Outcome::AlreadyDone => Unsigned::Later(format!("{text}, and that is not final yet")),
            Outcome::Fatal if self.refusals.again(Refused::Answer(answer.id), head) => {
                Unsigned::Never(ErrorNote::new(ErrorClass::Fatal, &text))
            }
            Outcome::LaneToBlame if self.refusals.again(Refused::Lane(sight.lane.clone()), head) => {
                Unsigned::Lane(text)
            }
            Outcome::Fatal | Outcome::LaneToBlame => Unsigned::Later(text),
        })
    }

    fn dearer(
        &self,
        attempts: &[SignedAttempt],
        because: Because,
        now: Fees,
    ) -> Result<(Draft, AttemptKind), Unsigned> {
        let last = attempts.last().ok_or_else(|| Unreachable("no attempt to go by".into()))?;
        if because == Because::Late && !now.moved_above(paid(attempts)?.unwrap_or(now)) {
            return Err(Unsigned::Unmoved);
        }
        let fees = self.above(attempts, now)?;
        Ok((Draft { fees, ..Draft::read(last).map_err(Unreachable)? }, last.kind))
    }

    /// More than any of these attempts pays, since any may be the one that waits to be mined.
    fn above(&self, attempts: &[SignedAttempt], now: Fees) -> Result<Fees, Unsigned> {
        paid(attempts)?.map_or(Some(now), |paid| paid.dearer(now, self.options.fee_cap)).ok_or(Unsigned::AtCap)
    }

    /// A transfer of nothing to oneself.
    async fn nothing(
        &self,
        sight: Sight<'_>,
        nonce: Nonce,
        attempts: &[SignedAttempt],
        now: Fees,
    ) -> Result<Draft, Unsigned> {
        let call = Call { to: sight.from, data: Bytes::new(), value: U256::ZERO };
        let gas = self.estimate(sight, &call).await?.map_err(|refusal| Unreachable(refusal.text()))?;
        let fees = self.above(attempts, now)?;
        Ok(Draft { chain_id: self.chain_id, nonce, call, gas, fees, fee_kind: fee_kind(sight.view) })
    }
}

/// Whether the newest final block, too, shows that a call is done already.
async fn is_done_for_good(sight: Sight<'_>, call: &Call, outcomes: &Outcomes) -> Result<bool, Unreachable> {
    let at = U64::from(sight.view.final_height.0);
    match sight.rpc.call::<_, Value>("eth_call", (sight.request(call), at)).await {
        Ok(_) => Ok(false),
        Err(CallError::Refused { message, revert, .. }) => {
            let refused = estimate(&message, revert.is_some()) == Estimate::Refused;
            Ok(refused && outcomes.meaning(&message, revert.as_ref()) == Outcome::AlreadyDone)
        }
        Err(error) => Err(error.into()),
    }
}

/// The most that any of these attempts pays, field by field.
fn paid(attempts: &[SignedAttempt]) -> Result<Option<Fees>, Unreachable> {
    let mut paid: Option<Fees> = None;
    for attempt in attempts {
        let fees = Draft::read(attempt).map_err(Unreachable)?.fees;
        paid = Some(paid.map_or(fees, |paid| paid.max(fees)));
    }
    Ok(paid)
}

fn fee_kind(view: &View) -> FeeKind {
    if view.head.base_fee.is_some() { FeeKind::Dynamic } else { FeeKind::Legacy }
}
