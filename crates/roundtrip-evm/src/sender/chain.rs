//! A chain, as the lanes of one destination see it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alloy::primitives::{Address, B256, Bytes, U64, U128, U256};
use roundtrip::sender::chain::{Broadcast, Cargo, Chain, ChainFuture, Reception, Sighting, Unreachable, Unsigned};
use roundtrip::sender::{AttemptKind, SignedAttempt};
use roundtrip::store::op::Judgement;
use roundtrip::store::query::{ParcelView, ReadyDelivery};
use roundtrip::words::{AttemptHash, ErrorClass, ErrorNote, Height, LaneName, Nonce, Position};
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{Call, Calls};
use super::effects::Effects;
use super::fees::Fees;
use super::heads::{Heads, View};
use super::look::{Counts, Depths, Receipt, sighting};
use super::reception::{Estimate, estimate, reception};
use super::signer::LaneSigner;
use super::transaction::{Draft, FeeKind};
use crate::rpc::{CallError, Finality, Rpc};

/// How much gas transactions may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gas {
    /// Always so much. What a contract refuses is then only known when it is mined.
    Fixed(u64),
    /// As the node estimates, and so many percent more. What a contract refuses becomes a
    /// dead letter and never has a slot.
    Estimated {
        /// How much more.
        margin_percent: u64,
    },
}

/// How a chain is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvmChainOptions {
    /// Which blocks no reorg can take away.
    pub finality: Finality,
    /// So many blocks, its own counted, make a transaction what users call settled.
    pub confirmations: u64,
    /// How much gas a transaction may use.
    pub gas: Gas,
    /// The most that is paid for a unit of gas, in wei.
    pub fee_cap: u128,
    /// What is paid at least to whoever builds the block, in wei.
    pub tip_min: u128,
    /// How long a look at the newest block is good for.
    pub head_fresh_for: Duration,
}

impl Default for EvmChainOptions {
    fn default() -> Self {
        EvmChainOptions {
            finality: Finality::Depth(64),
            confirmations: 2,
            gas: Gas::Estimated { margin_percent: 20 },
            fee_cap: 500_000_000_000,
            tip_min: 1,
            head_fresh_for: Duration::from_millis(200),
        }
    }
}

/// An EVM chain over JSON-RPC, with an account for each lane.
pub struct EvmChain {
    rpc: Rpc,
    chain_id: u64,
    calls: Arc<dyn Calls>,
    signers: BTreeMap<LaneName, LaneSigner>,
    options: EvmChainOptions,
    heads: Heads,
    effects: Effects,
    /// What a look found, so that the next need not ask again.
    known: Mutex<HashMap<LaneName, Known>>,
    /// What a builder wants, and at which head it was asked for.
    tip: tokio::sync::Mutex<Option<(Position, u128)>>,
}

/// What is known of a lane; only worth something as long as its blocks stay where they are.
#[derive(Default)]
struct Known {
    counts: Option<(Position, Counts)>,
    /// The slots that were used at the head before: by transactions of blocks that the view
    /// has, even if a node answers for a head that moved meanwhile.
    used_before: Option<Nonce>,
    receipts: HashMap<AttemptHash, Receipt>,
}

impl Known {
    /// Keeps only what is of these parcels, and of blocks that are still where they were.
    fn forget(&mut self, view: &View, parcels: &[ParcelView]) {
        let attempts = parcels.iter().flat_map(|parcel| &parcel.attempts);
        let under_way: HashSet<AttemptHash> = attempts.map(|attempt| attempt.hash).collect();
        // A block that is too deep to know may have gone between two looks.
        self.receipts.retain(|hash, receipt| under_way.contains(hash) && view.holds(receipt.at) == Some(true));
    }

    fn has(&self, parcel: &ParcelView) -> bool {
        parcel.attempts.iter().any(|attempt| self.receipts.contains_key(&attempt.hash))
    }

    /// The attempts of parcels below this slot, where it is not known which of them was mined.
    fn missing(&self, below: Nonce, parcels: &[ParcelView]) -> Vec<AttemptHash> {
        let mined = parcels.iter().filter(|parcel| parcel.nonce < below && !self.has(parcel));
        mined.flat_map(|parcel| &parcel.attempts).map(|attempt| attempt.hash).collect()
    }
}

impl EvmChain {
    /// The chain of this number, which the node is trusted to be on.
    pub fn new(
        rpc: Rpc,
        chain_id: u64,
        calls: impl Calls,
        signers: BTreeMap<LaneName, LaneSigner>,
        options: EvmChainOptions,
    ) -> EvmChain {
        let heads = Heads::new(rpc.clone(), options.finality, options.head_fresh_for);
        let effects = Effects::new(rpc.clone(), calls.contracts());
        let (calls, known, tip) = (Arc::new(calls), Mutex::default(), tokio::sync::Mutex::default());
        EvmChain { rpc, chain_id, calls, signers, options, heads, effects, known, tip }
    }

    fn signer(&self, lane: &LaneName) -> Result<&LaneSigner, Unreachable> {
        self.signers.get(lane).ok_or_else(|| Unreachable(format!("lane {lane} has no account: give it a key")))
    }

    fn known<T>(&self, lane: &LaneName, with: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        with(known.entry(lane.clone()).or_default())
    }

    async fn seen(&self, lane: &LaneName, parcels: &[ParcelView]) -> Result<Sighting, Unreachable> {
        let account = self.signer(lane)?.address();
        let view = self.heads.view().await?;
        let mut counts = self.counts(lane, account, &view).await?;
        let mined = self.known(lane, |known| {
            known.forget(&view, parcels);
            known.missing(counts.latest, parcels)
        });
        let shown = self.effects.of(&view, &mined).await;
        let silent = self.known(lane, |known| {
            let below = match shown {
                Some(shown) => {
                    let done = |(hash, at)| (hash, Receipt { at, judgement: Judgement::Done });
                    known.receipts.extend(shown.into_iter().map(done));
                    known.used_before.unwrap_or(counts.latest).max(counts.settled)
                }
                None => counts.latest,
            };
            known.missing(below, parcels)
        });
        let found = self.receipts(&view, silent).await?;
        let unproven = self.known(lane, |known| {
            known.receipts.extend(found);
            let below = parcels.iter().filter(|parcel| parcel.nonce < counts.settled);
            below.filter(|parcel| !known.has(parcel)).collect::<Vec<_>>()
        });
        for parcel in unproven {
            if let Err(error) = self.prove_foreign(account, &view, parcel).await {
                // What cannot be proven is not settled, nor what is above it; the lane goes on.
                tracing::warn!(%lane, nonce = parcel.nonce.0, %error, "who used a slot is not known yet");
                counts.settled = parcel.nonce;
                break;
            }
        }
        let depths = Depths {
            head: view.head.at.height,
            final_height: view.final_height,
            confirmations: self.options.confirmations,
        };
        Ok(self.known(lane, |known| sighting(view.head.at, &depths, counts, parcels, &known.receipts)))
    }

    /// The account's counts at one head do not change; only what is pending may be out of date.
    async fn counts(&self, lane: &LaneName, account: Address, view: &View) -> Result<Counts, CallError> {
        let head = view.head.at;
        if let Some(counts) = self.known(lane, |known| known.counts.filter(|(at, _)| *at == head)) {
            return Ok(counts.1);
        }
        let blocks =
            [json!({"blockHash": B256::from(head.hash)}), json!(U64::from(view.final_height.0)), json!("pending")];
        let params = blocks.map(|block| json!([account, block]));
        let mut counted = Vec::with_capacity(params.len());
        for count in self.rpc.calls::<_, U64>("eth_getTransactionCount", &params).await {
            counted.push(Nonce(count?.to()));
        }
        let [latest, settled, pending] = counted[..] else {
            return Err(CallError::NoAnswer("too few answers".into()));
        };
        let counts = Counts { pending, latest, settled };
        self.known(lane, |known| {
            known.used_before = known.counts.map(|(_, before)| before.latest);
            known.counts = Some((head, counts));
        });
        Ok(counts)
    }

    /// The receipts of these transactions, as far as they are mined.
    async fn receipts(
        &self,
        view: &View,
        transactions: Vec<AttemptHash>,
    ) -> Result<HashMap<AttemptHash, Receipt>, CallError> {
        let mut found = HashMap::new();
        let params: Vec<_> = transactions.iter().map(|hash| [B256::from(hash.0)]).collect();
        let answers = self.rpc.calls::<_, Option<WireReceipt>>("eth_getTransactionReceipt", &params).await;
        for (hash, answer) in transactions.into_iter().zip(answers) {
            let Some(wire) = answer? else { continue };
            let receipt = self.judged(wire).await?;
            if receipt.at.height > view.head.at.height {
                // The chain has moved on since; the next look sees that block.
                continue;
            }
            if view.holds(receipt.at) == Some(false) {
                return Err(CallError::NoAnswer("a receipt of a block that is not part of this chain".into()));
            }
            found.insert(hash, receipt);
        }
        Ok(found)
    }

    /// A transaction that had no effect is looked into, for the person who reads of it.
    async fn judged(&self, wire: WireReceipt) -> Result<Receipt, CallError> {
        let at = Position { height: Height(wire.block_number.to()), hash: wire.block_hash.0 };
        if wire.status == U64::from(1) {
            return Ok(Receipt { at, judgement: Judgement::Done });
        }
        let why = self.why_reverted(&wire).await?;
        let text = format!("transaction {} in block {} had no effect: {why}", wire.transaction_hash, at.height.0);
        Ok(Receipt { at, judgement: Judgement::Failed(ErrorNote::new(ErrorClass::Fatal, &text)) })
    }

    /// What the same call says on the block before, which is mostly why it failed.
    async fn why_reverted(&self, wire: &WireReceipt) -> Result<String, CallError> {
        let sent: Option<WireTransaction> = self.rpc.call("eth_getTransactionByHash", [wire.transaction_hash]).await?;
        let Some(sent) = sent else { return Err(CallError::NoAnswer("a receipt without its transaction".into())) };
        let call = json!({"from": sent.from, "to": sent.to, "data": sent.input, "value": sent.value, "gas": sent.gas});
        let before = U64::from(wire.block_number.to::<u64>().saturating_sub(1));
        match self.rpc.call::<_, Value>("eth_call", (call, before)).await {
            Err(CallError::Refused { message, revert, .. }) => Ok(revert_text(&message, revert)),
            Err(error) => Err(error),
            Ok(_) => Ok("it ran out of gas, or another transaction of its block changed the outcome".to_owned()),
        }
    }

    /// Makes sure that somebody else used a slot: the transaction itself is looked for,
    /// since a node that lost a receipt says the same as one that never had it.
    async fn prove_foreign(&self, account: Address, view: &View, parcel: &ParcelView) -> Result<(), CallError> {
        let block = self.block_of(account, parcel.nonce, view.final_height).await?;
        let block: Option<WireBlock> = self.rpc.call("eth_getBlockByNumber", (U64::from(block.0), true)).await?;
        let sent = block.into_iter().flat_map(|block| block.transactions);
        let user = sent.into_iter().find(|sent| sent.from == account && sent.nonce.to::<u64>() == parcel.nonce.0);
        let user =
            user.ok_or_else(|| CallError::NoAnswer("the transaction that used a slot cannot be found".into()))?;
        if parcel.attempts.iter().any(|attempt| attempt.hash.0 == user.hash.0) {
            return Err(CallError::NoAnswer("the node has our transaction and no receipt for it".into()));
        }
        tracing::warn!(nonce = parcel.nonce.0, transaction = %user.hash, "somebody else used a slot of this lane");
        Ok(())
    }

    /// The block in which an account used a nonce, at or below this one, where it is used:
    /// in growing steps down, then halving.
    async fn block_of(&self, account: Address, nonce: Nonce, used_at: Height) -> Result<Height, CallError> {
        let (mut used, mut step) = (used_at.0, 1);
        let mut free = loop {
            let Some(below) = used.checked_sub(step) else { break 0 };
            if self.count_at(account, below).await? <= nonce {
                break below + 1;
            }
            (used, step) = (below, step * 2);
        };
        while free < used {
            let middle = free + (used - free) / 2;
            match self.count_at(account, middle).await? > nonce {
                true => used = middle,
                false => free = middle + 1,
            }
        }
        Ok(Height(used))
    }

    async fn count_at(&self, account: Address, height: u64) -> Result<Nonce, CallError> {
        let count: U64 = self.rpc.call("eth_getTransactionCount", (account, U64::from(height))).await?;
        Ok(Nonce(count.to()))
    }

    async fn signed(&self, lane: &LaneName, nonce: Nonce, cargo: Cargo<'_>) -> Result<SignedAttempt, Unsigned> {
        let signer = self.signer(lane)?;
        let view = self.heads.view().await.map_err(Unreachable::from)?;
        let now = self.fees(&view).await.map_err(Unreachable::from)?;
        let (draft, kind) = match cargo {
            Cargo::Deliveries(answers) => {
                (self.first(signer.address(), nonce, answers, &view, now).await?, AttemptKind::Carry)
            }
            Cargo::Dearer(attempts) => self.dearer(attempts, now)?,
            Cargo::Nothing(attempts) => {
                (self.nothing(signer.address(), nonce, attempts, &view, now).await?, AttemptKind::Cancel)
            }
        };
        // A task of its own, so that slots that are signed at once share all processors.
        let signer = signer.clone();
        let signing = tokio::spawn(async move { draft.sign(&*signer, kind).await });
        let refused = |error: &dyn std::fmt::Display| Unreachable(format!("the signer of {lane}: {error}"));
        Ok(signing.await.map_err(|error| refused(&error))?.map_err(|error| refused(&error))?)
    }

    /// What is right to pay by now.
    async fn fees(&self, view: &View) -> Result<Fees, CallError> {
        // Held over the call, so that slots that are signed at once share it.
        let mut remembered = self.tip.lock().await;
        let tip = match remembered.filter(|(at, _)| *at == view.head.at) {
            Some((_, tip)) => tip,
            None => {
                let method = if view.head.base_fee.is_some() { "eth_maxPriorityFeePerGas" } else { "eth_gasPrice" };
                let tip = self.rpc.call::<_, U128>(method, ()).await?.to::<u128>().max(self.options.tip_min);
                *remembered = Some((view.head.at, tip));
                tip
            }
        };
        Ok(Fees::now(view.head.base_fee, tip, self.options.fee_cap))
    }

    async fn first(
        &self,
        from: Address,
        nonce: Nonce,
        answers: &[ReadyDelivery],
        view: &View,
        fees: Fees,
    ) -> Result<Draft, Unsigned> {
        // Of several answers, a call does not tell which one it cannot carry.
        let refused = |refusal: Unsigned| match refusal {
            Unsigned::Never(why) if answers.len() > 1 => Unsigned::Apart(why.text.into()),
            other => other,
        };
        let never = |why: String| refused(Unsigned::Never(ErrorNote::new(ErrorClass::Fatal, &why)));
        let call = self.calls.call(answers).map_err(never)?;
        let gas = match self.options.gas {
            Gas::Fixed(gas) => gas,
            Gas::Estimated { margin_percent } => {
                let gas = self.estimate(from, &call, view).await.map_err(refused)?;
                gas.saturating_add(gas.saturating_mul(margin_percent) / 100)
            }
        };
        Ok(Draft { chain_id: self.chain_id, nonce, call, gas, fees, fee_kind: fee_kind(view) })
    }

    /// What a call needs at the head that was looked at: a node that lags behind does not
    /// know that block, and cannot mistake what it has not seen for a refusal.
    async fn estimate(&self, from: Address, call: &Call, view: &View) -> Result<u64, Unsigned> {
        let request = json!({"from": from, "to": call.to, "data": call.data, "value": call.value});
        let at = json!({"blockHash": B256::from(view.head.at.hash)});
        let answer = self.rpc.call::<_, U64>("eth_estimateGas", (request, at)).await;
        let (message, revert) = match answer {
            Ok(gas) => return Ok(gas.to()),
            Err(CallError::Refused { message, revert, .. }) => (message, revert),
            Err(error) => return Err(Unreachable::from(error).into()),
        };
        Err(match estimate(&message, revert.is_some()) {
            Estimate::Refused => {
                let text = format!("the contract would refuse it: {}", revert_text(&message, revert));
                Unsigned::Never(ErrorNote::new(ErrorClass::Fatal, &text))
            }
            Estimate::Funds => Unsigned::Funds(message),
            Estimate::Unknown => Unreachable(message).into(),
        })
    }

    fn dearer(&self, attempts: &[SignedAttempt], now: Fees) -> Result<(Draft, AttemptKind), Unsigned> {
        let last = attempts.last().ok_or_else(|| Unreachable("no attempt to go by".into()))?;
        let fees = self.above(attempts, now)?;
        Ok((Draft { fees, ..Draft::read(last).map_err(Unreachable)? }, last.kind))
    }

    /// More than any of these attempts pays, since any may be the one that waits to be mined.
    fn above(&self, attempts: &[SignedAttempt], now: Fees) -> Result<Fees, Unsigned> {
        let mut paid: Option<Fees> = None;
        for attempt in attempts {
            let fees = Draft::read(attempt).map_err(Unreachable)?.fees;
            paid = Some(paid.map_or(fees, |paid| paid.max(fees)));
        }
        paid.map_or(Some(now), |paid| paid.dearer(now, self.options.fee_cap)).ok_or(Unsigned::AtCap)
    }

    /// A transfer of nothing to oneself.
    async fn nothing(
        &self,
        account: Address,
        nonce: Nonce,
        attempts: &[SignedAttempt],
        view: &View,
        now: Fees,
    ) -> Result<Draft, Unsigned> {
        let call = Call { to: account, data: Bytes::new(), value: U256::ZERO };
        let gas = self.estimate(account, &call, view).await?;
        let fees = self.above(attempts, now)?;
        Ok(Draft { chain_id: self.chain_id, nonce, call, gas, fees, fee_kind: fee_kind(view) })
    }

    async fn sent(&self, attempts: &[SignedAttempt]) -> Vec<Result<Reception, Unreachable>> {
        let params: Vec<_> = attempts.iter().map(|attempt| [Bytes::from(attempt.bytes.clone())]).collect();
        self.rpc.calls::<_, B256>("eth_sendRawTransaction", &params).await.into_iter().map(reception).collect()
    }
}

fn fee_kind(view: &View) -> FeeKind {
    if view.head.base_fee.is_some() { FeeKind::Dynamic } else { FeeKind::Legacy }
}

/// What a contract reverted with: the node's words, and the bytes, whose first four name the error.
fn revert_text(message: &str, revert: Option<Bytes>) -> String {
    match revert {
        Some(data) if !data.is_empty() && !message.contains(&data.to_string()) => format!("{message} ({data})"),
        _ => message.to_owned(),
    }
}

impl From<CallError> for Unreachable {
    fn from(error: CallError) -> Unreachable {
        Unreachable(error.to_string())
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireReceipt {
    transaction_hash: B256,
    block_number: U64,
    block_hash: B256,
    status: U64,
}

#[derive(Debug, Deserialize)]
struct WireBlock {
    transactions: Vec<WireTransaction>,
}

#[derive(Debug, Deserialize)]
struct WireTransaction {
    hash: B256,
    from: Address,
    to: Option<Address>,
    nonce: U64,
    input: Bytes,
    value: U256,
    gas: U64,
}

impl Chain for EvmChain {
    fn look<'a>(&'a self, lane: &'a LaneName, parcels: &'a [ParcelView]) -> ChainFuture<'a, Sighting> {
        Box::pin(self.seen(lane, parcels))
    }

    fn wants_requests(&self) -> bool {
        self.calls.wants_requests()
    }

    fn sign<'a>(
        &'a self,
        lane: &'a LaneName,
        nonce: Nonce,
        cargo: Cargo<'a>,
    ) -> ChainFuture<'a, SignedAttempt, Unsigned> {
        Box::pin(self.signed(lane, nonce, cargo))
    }

    fn broadcast<'a>(&'a self, _lane: &'a LaneName, attempts: &'a [SignedAttempt]) -> Broadcast<'a> {
        Box::pin(self.sent(attempts))
    }
}
