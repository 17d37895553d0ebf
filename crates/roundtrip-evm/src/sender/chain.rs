//! A chain, as the lanes of one destination see it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use alloy::primitives::{Address, B256, Bytes, U64, U256};
use roundtrip::sender::SignedAttempt;
use roundtrip::sender::chain::{Broadcast, Cargo, Chain, ChainFuture, Mark, Past, Sighting, Unreachable, Unsigned};
use roundtrip::store::op::Judgement;
use roundtrip::store::query::{ParcelView, ReadyDelivery};
use roundtrip::words::{AttemptHash, ErrorClass, ErrorNote, Height, LaneName, Nonce, Position, RouteName};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::call::{Call, Calls};
use super::effects::Effects;
use super::fees::Fees;
use super::foreign::{self, User};
use super::heads::{Heads, View};
use super::history;
use super::look::{Counts, Depths, Receipt, sighting};
use super::nodes::Nodes;
use super::outcomes::{Outcome, Outcomes};
use super::sign::Refusals;
use super::signer::LaneSigner;
use super::transaction::Draft;
use super::why::NoEffect;
use crate::endpoint::NodeReport;
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
    /// So many blocks, its own counted, make a transaction what users call settled, unless its
    /// route says otherwise.
    pub confirmations: u64,
    /// How much gas a transaction may use.
    pub gas: Gas,
    /// The most that is paid for a unit of gas, in wei.
    pub fee_cap: u128,
    /// What is paid at least to whoever builds the block, in wei.
    pub tip_min: u128,
    /// How long a look at the newest block is good for.
    pub head_fresh_for: Duration,
    /// How long a look at an account's balance is good for.
    pub balance_fresh_for: Duration,
    /// A balance below this is told, in wei.
    pub balance_min: u128,
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
            balance_fresh_for: Duration::from_secs(15),
            balance_min: 0,
        }
    }
}

/// How the answers of one route are sent, where that is not as for the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvmRoute {
    /// So many blocks, its own counted, make a transaction what users call settled, in place of
    /// [`EvmChainOptions::confirmations`].
    pub confirmations: Option<u64>,
    /// What the contract's refusals mean, in place of [`EvmChain::outcomes`].
    pub outcomes: Option<Outcomes>,
}

/// An EVM chain over JSON-RPC, with an account for each lane.
pub struct EvmChain {
    pub(super) nodes: Nodes,
    pub(super) chain_id: u64,
    pub(super) calls: Arc<dyn Calls>,
    signers: BTreeMap<LaneName, LaneSigner>,
    pub(super) lost: BTreeSet<LaneName>,
    pub(super) options: EvmChainOptions,
    outcomes: Outcomes,
    routes: BTreeMap<RouteName, EvmRoute>,
    apart: BTreeSet<RouteName>,
    pub(super) refusals: Refusals,
    pub(super) heads: Heads,
    effects: Effects,
    /// What a look found, so that the next need not ask again.
    known: Mutex<HashMap<LaneName, Known>>,
    /// What a builder wants, and at which head it was asked for.
    pub(super) tip: tokio::sync::Mutex<Option<(Position, u128)>>,
}

/// What is known of a lane; only worth something as long as its blocks stay where they are.
#[derive(Default)]
pub(super) struct Known {
    counts: Option<(Position, Counts)>,
    /// The slots that were used at the head before: by transactions of blocks that the view
    /// has, even if a node answers for a head that moved meanwhile.
    used_before: Option<Nonce>,
    receipts: HashMap<AttemptHash, Receipt>,
    /// The most that attempts pay for a unit of gas.
    most: HashMap<AttemptHash, u128>,
    /// What the account holds, and when it was asked for.
    balance: Option<(Instant, u128)>,
    /// What was last signed to be paid.
    pub(super) offered: Option<Fees>,
    /// What the newest slot that was mined paid for a unit of gas, and where.
    paid: Option<(Nonce, Position, u128)>,
}

/// What is known of a lane's money, in wei.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purse {
    /// What the account holds, as of the last look.
    pub balance: Option<u128>,
    /// The most that the last signed transaction pays for a unit of gas.
    pub fee: Option<u128>,
    /// What of it goes to whoever builds the block.
    pub tip: Option<u128>,
    /// What the newest transaction that was mined paid for a unit of gas.
    pub paid: Option<u128>,
}

impl Known {
    /// Keeps only what is of these parcels, and of blocks that are still where they were.
    fn forget(&mut self, view: &View, parcels: &[ParcelView]) {
        let attempts = parcels.iter().flat_map(|parcel| &parcel.attempts);
        let under_way: HashSet<AttemptHash> = attempts.map(|attempt| attempt.hash).collect();
        // A block that is too deep to know may have gone between two looks.
        self.receipts.retain(|hash, receipt| under_way.contains(hash) && view.holds(receipt.at) == Some(true));
        self.most.retain(|hash, _| under_way.contains(hash));
    }

    /// The slots from this one on whose newest bytes pay less than this; none, on a chain without a base fee.
    fn below(&mut self, base_fee: Option<u128>, from: Nonce, parcels: &[ParcelView]) -> Vec<Nonce> {
        let Some(base_fee) = base_fee else { return Vec::new() };
        let mut pays = |attempt: &SignedAttempt| {
            // What cannot be read is not known to pay too little.
            let read = || Draft::read(attempt).map_or(u128::MAX, |draft| draft.fees.most);
            *self.most.entry(attempt.hash).or_insert_with(read)
        };
        let unmined = parcels.iter().filter(|parcel| parcel.nonce >= from);
        let below = unmined.filter(|parcel| parcel.attempts.last().is_some_and(|newest| pays(newest) < base_fee));
        below.map(|parcel| parcel.nonce).collect()
    }

    /// Notes what the newest slot that was mined paid. Its block tells the base fee, so no receipt is asked for.
    fn note_paid(&mut self, view: &View, parcels: &[ParcelView]) {
        let mined = |parcel: &ParcelView| {
            let attempt = parcel.attempts.iter().find(|attempt| self.receipts.contains_key(&attempt.hash))?;
            Some((parcel.nonce, self.receipts.get(&attempt.hash)?.at, attempt.clone()))
        };
        let newest = parcels.iter().rev().filter(|parcel| self.paid.is_none_or(|(last, ..)| parcel.nonce >= last));
        let Some((nonce, at, attempt)) = newest.filter_map(mined).max_by_key(|(nonce, ..)| *nonce) else { return };
        if self.paid.is_some_and(|(last, there, _)| (last, there) == (nonce, at)) {
            return;
        }
        let fees = Draft::read(&attempt).ok().map(|draft| draft.fees);
        if let Some(paid) = fees.and_then(|fees| view.paid(at, fees)) {
            self.paid = Some((nonce, at, paid));
        }
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
    /// The chain of this number. A node that is on another one is not used.
    pub fn new(
        rpc: Rpc,
        chain_id: u64,
        calls: impl Calls,
        signers: BTreeMap<LaneName, LaneSigner>,
        options: EvmChainOptions,
    ) -> EvmChain {
        EvmChain {
            nodes: Nodes::new(chain_id, rpc),
            chain_id,
            effects: Effects::new(calls.contracts()),
            calls: Arc::new(calls),
            signers,
            lost: BTreeSet::new(),
            options,
            outcomes: Outcomes::new(),
            routes: BTreeMap::new(),
            apart: BTreeSet::new(),
            refusals: Refusals::default(),
            heads: Heads::new(options.finality, options.head_fresh_for),
            known: Mutex::default(),
            tip: tokio::sync::Mutex::default(),
        }
    }

    /// Another node of the same chain: bytes go to all that are well, and the chain is looked
    /// at by the best.
    #[must_use]
    pub fn also(mut self, rpc: Rpc) -> EvmChain {
        self.nodes.add(rpc);
        self
    }

    /// The key of this lane is lost: nothing is signed for it, and other lanes take what is new.
    #[must_use]
    pub fn lost(mut self, lane: LaneName) -> EvmChain {
        self.lost.insert(lane);
        self
    }

    /// What the contract's refusals mean to all routes that do not say otherwise; without it, all
    /// are fatal.
    #[must_use]
    pub fn outcomes(mut self, outcomes: Outcomes) -> EvmChain {
        self.outcomes = outcomes;
        self
    }

    /// What this route has of its own. Its answers share no transaction with those of others.
    #[must_use]
    pub fn route(mut self, name: RouteName, route: EvmRoute) -> EvmChain {
        self.apart.insert(name.clone());
        self.routes.insert(name, route);
        self
    }

    /// What refusals mean to a route's answers.
    pub(super) fn outcomes_of(&self, route: Option<&RouteName>) -> &Outcomes {
        let own = route.and_then(|route| self.routes.get(route)?.outcomes.as_ref());
        own.unwrap_or(&self.outcomes)
    }

    fn confirmations_of(&self, route: Option<&RouteName>) -> u64 {
        let own = route.and_then(|route| self.routes.get(route)?.confirmations);
        own.unwrap_or(self.options.confirmations)
    }

    pub(super) fn signer(&self, lane: &LaneName) -> Result<&LaneSigner, Unreachable> {
        self.signers.get(lane).ok_or_else(|| Unreachable(format!("lane {lane} has no account: give it a key")))
    }

    /// How each of its nodes did so far, in the order in which they are preferred.
    pub fn nodes(&self) -> Vec<NodeReport> {
        self.nodes.reports()
    }

    /// What is known of a lane's money, without asking anybody.
    pub fn purse(&self, lane: &LaneName) -> Purse {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(lane).map_or(Purse::default(), |known| Purse {
            balance: known.balance.map(|(_, balance)| balance),
            fee: known.offered.map(|fees| fees.most),
            tip: known.offered.map(|fees| fees.tip),
            paid: known.paid.map(|(_, _, paid)| paid),
        })
    }

    pub(super) fn known<T>(&self, lane: &LaneName, with: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        with(known.entry(lane.clone()).or_default())
    }

    /// What the best node shows of a lane; a look that fails is held against it.
    async fn seen(&self, lane: &LaneName, parcels: &[ParcelView]) -> Result<Sighting, Unreachable> {
        let account = self.signer(lane)?.address();
        let node = self.nodes.best().await?;
        let seen = self.seen_by(&node.rpc, lane, account, parcels).await.map_err(|error| node.failed(error));
        node.judge(&seen);
        seen.map_err(|error| Unreachable(error.to_string()))
    }

    async fn seen_by(
        &self,
        rpc: &Rpc,
        lane: &LaneName,
        account: Address,
        parcels: &[ParcelView],
    ) -> Result<Sighting, CallError> {
        let view = self.heads.view(rpc).await?;
        let mut counts = self.counts(rpc, lane, account, &view).await?;
        let mined = self.known(lane, |known| {
            known.forget(&view, parcels);
            known.missing(counts.latest, parcels)
        });
        let shown = self.effects.of(rpc, &view, &mined).await;
        let silent = self.known(lane, |known| {
            let below = match shown {
                Some(shown) => {
                    let done = |(hash, at)| (hash, Receipt::done(at));
                    known.receipts.extend(shown.into_iter().map(done));
                    known.used_before.unwrap_or(counts.latest).max(counts.settled)
                }
                None => counts.latest,
            };
            known.missing(below, parcels)
        });
        let found = self.receipts(rpc, &view, silent, parcels).await?;
        let unproven = self.known(lane, |known| {
            known.receipts.extend(found);
            let below = parcels.iter().filter(|parcel| parcel.nonce < counts.settled);
            below.filter(|parcel| !known.has(parcel)).collect::<Vec<_>>()
        });
        let mut forgotten = Vec::new();
        for parcel in unproven {
            match foreign::user(rpc, account, &view, parcel).await {
                Ok(User::Somebody) => {}
                // Stored first, then settled.
                Ok(User::Us(attempt)) => {
                    counts.settled = counts.settled.min(parcel.nonce);
                    forgotten.push((parcel.nonce, attempt));
                }
                Err(error) => {
                    // What cannot be proven is not settled, nor what is above it; the lane goes on.
                    tracing::warn!(%lane, nonce = parcel.nonce.0, %error, "who used a slot is not known yet");
                    counts.settled = counts.settled.min(parcel.nonce);
                    break;
                }
            }
        }
        let depths = Depths { head: view.head.at.height, final_height: view.final_height };
        let confirmations = |parcel: &ParcelView| self.confirmations_of(parcel.route.as_ref());
        let funds = self.funds(rpc, lane, account).await;
        self.known(lane, |known| known.note_paid(&view, parcels));
        Ok(self.known(lane, |known| Sighting {
            below: known.below(view.head.base_fee, counts.latest, parcels),
            funds,
            forgotten,
            ..sighting(view.head.at, &depths, counts, parcels, &known.receipts, confirmations)
        }))
    }

    /// What the account holds, asked for now and then; none if it is not known.
    async fn funds(&self, rpc: &Rpc, lane: &LaneName, account: Address) -> Option<u128> {
        let every = self.options.balance_fresh_for;
        let before = self.known(lane, |known| known.balance);
        if let Some((_, balance)) = before.filter(|(when, _)| when.elapsed() < every) {
            return Some(balance);
        }
        let balance: U256 = rpc.call("eth_getBalance", (account, "latest")).await.ok()?;
        let balance = u128::try_from(balance).unwrap_or(u128::MAX);
        let low = self.options.balance_min;
        if balance < low && before.is_none_or(|(_, before)| before >= low) {
            tracing::warn!(%lane, %account, balance, low, "an account has little left: fund it");
        }
        self.known(lane, |known| known.balance = Some((Instant::now(), balance)));
        Some(balance)
    }

    /// What an account has sent beyond any reorg, from this slot on.
    async fn past_of(&self, lane: &LaneName, from: Nonce, after: Option<&Past>) -> Result<Vec<Past>, Unreachable> {
        let account = self.signer(lane)?.address();
        let node = self.nodes.best().await?;
        let past = self.past_by(&node.rpc, account, from, after).await.map_err(|error| node.failed(error));
        node.judge(&past);
        past.map_err(|error| Unreachable(error.to_string()))
    }

    async fn past_by(
        &self,
        rpc: &Rpc,
        account: Address,
        from: Nonce,
        after: Option<&Past>,
    ) -> Result<Vec<Past>, CallError> {
        let up_to = self.heads.view(rpc).await?.final_height;
        let sent = history::sent(rpc, account, from, after.map(|past| past.at.height), up_to).await?;
        let hashes: Vec<_> = sent.iter().map(|sent| [sent.transaction.hash]).collect();
        let receipts = rpc.calls::<_, Option<WireReceipt>>("eth_getTransactionReceipt", &hashes).await;
        let mut past = Vec::with_capacity(sent.len());
        for (sent, receipt) in sent.into_iter().zip(receipts) {
            let receipt = receipt?.ok_or_else(|| CallError::NoAnswer("a transaction without its receipt".into()))?;
            let carried = sent.transaction.call().map(|call| self.calls.carried(&call)).unwrap_or_default();
            let no_effect = NoEffect::of(rpc, &receipt).await?;
            let judged = |route| self.judged(sent.at, no_effect.as_ref(), carried.len(), route).judgement;
            // Whose it was is not known any more, so it is judged as each of them would.
            let own = self.routes.iter().filter(|(_, route)| route.outcomes.is_some());
            let by_route = own.map(|(name, _)| (name.clone(), judged(Some(name)))).collect();
            let judgement = judged(None);
            let (nonce, transaction) = (Nonce(sent.transaction.nonce.to()), AttemptHash(sent.transaction.hash.0));
            past.push(Past { nonce, transaction, at: sent.at, time: sent.time, carried, judgement, by_route });
        }
        Ok(past)
    }

    /// The account's counts at one head do not change; only what is pending may be out of date.
    async fn counts(&self, rpc: &Rpc, lane: &LaneName, account: Address, view: &View) -> Result<Counts, CallError> {
        let head = view.head.at;
        if let Some(counts) = self.known(lane, |known| known.counts.filter(|(at, _)| *at == head)) {
            return Ok(counts.1);
        }
        let blocks =
            [json!({"blockHash": B256::from(head.hash)}), json!(U64::from(view.final_height.0)), json!("pending")];
        let params = blocks.map(|block| json!([account, block]));
        let mut counted = Vec::with_capacity(params.len());
        for count in rpc.calls::<_, U64>("eth_getTransactionCount", &params).await {
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
        rpc: &Rpc,
        view: &View,
        transactions: Vec<AttemptHash>,
        parcels: &[ParcelView],
    ) -> Result<HashMap<AttemptHash, Receipt>, CallError> {
        let mut found = HashMap::new();
        let params: Vec<_> = transactions.iter().map(|hash| [B256::from(hash.0)]).collect();
        let answers = rpc.calls::<_, Option<WireReceipt>>("eth_getTransactionReceipt", &params).await;
        for (hash, answer) in transactions.into_iter().zip(answers) {
            let Some(wire) = answer? else { continue };
            let carries = |parcel: &&ParcelView| parcel.attempts.iter().any(|attempt| attempt.hash == hash);
            let parcel = parcels.iter().find(carries);
            let (carried, route) =
                (parcel.map_or(0, |parcel| parcel.deliveries.len()), parcel.and_then(|parcel| parcel.route.as_ref()));
            let receipt = self.judged(wire.at(), NoEffect::of(rpc, &wire).await?.as_ref(), carried, route);
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

    /// What a transaction did to the answers that it carried, if they are of this route.
    fn judged(&self, at: Position, no_effect: Option<&NoEffect>, carried: usize, route: Option<&RouteName>) -> Receipt {
        let Some(NoEffect { text, message, revert }) = no_effect else { return Receipt::done(at) };
        let outcome = self.outcomes_of(route).meaning(message, revert.as_ref());
        let judgement = match outcome {
            // One of several may be to blame: each is tried alone.
            _ if carried > 1 => Judgement::Again(ErrorNote::new(ErrorClass::Retryable, text)),
            Outcome::AlreadyDone => Judgement::Done,
            Outcome::Retry | Outcome::LaneToBlame => Judgement::Again(ErrorNote::new(ErrorClass::Retryable, text)),
            Outcome::Fatal => Judgement::Failed(ErrorNote::new(ErrorClass::Fatal, text)),
        };
        Receipt { at, judgement, lane_to_blame: outcome == Outcome::LaneToBlame }
    }
}

impl From<CallError> for Unreachable {
    fn from(error: CallError) -> Unreachable {
        Unreachable(error.to_string())
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WireReceipt {
    pub(super) transaction_hash: B256,
    pub(super) block_number: U64,
    block_hash: B256,
    pub(super) status: U64,
}

impl WireReceipt {
    fn at(&self) -> Position {
        Position { height: Height(self.block_number.to()), hash: self.block_hash.0 }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct WireTransaction {
    pub(super) hash: B256,
    pub(super) from: Address,
    pub(super) to: Option<Address>,
    pub(super) nonce: U64,
    pub(super) input: Bytes,
    pub(super) value: U256,
    pub(super) gas: U64,
}

impl WireTransaction {
    /// What it calls; none if it creates a contract.
    pub(super) fn call(&self) -> Option<Call> {
        Some(Call { to: self.to?, data: self.input.clone(), value: self.value })
    }
}

impl Chain for EvmChain {
    fn look<'a>(&'a self, lane: &'a LaneName, parcels: &'a [ParcelView]) -> ChainFuture<'a, Sighting> {
        Box::pin(self.seen(lane, parcels))
    }

    fn wants_requests(&self) -> bool {
        self.calls.wants_requests()
    }

    fn routes_apart(&self) -> &BTreeSet<RouteName> {
        &self.apart
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
        Box::pin(self.nodes.broadcast(attempts))
    }

    fn past<'a>(&'a self, lane: &'a LaneName, from: Nonce, after: Option<&'a Past>) -> ChainFuture<'a, Vec<Past>> {
        Box::pin(self.past_of(lane, from, after))
    }

    fn mark(&self, answer: &ReadyDelivery) -> Option<Mark> {
        self.calls.mark(answer).ok()
    }
}
