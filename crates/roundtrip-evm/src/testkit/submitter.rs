//! The outside party that asks: it puts every payload of its list on the chain once, and
//! stays with it until all are as deep as it was told, through reorgs, drops and rising fees.
//!
//! ```text
//! look: head, base fee, two counts per key ──▶ decide per ask ──▶ sign, send, send again, bump
//!   ▲                                                                                   │
//!   └───────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A payload keeps its key and its nonce for good: whatever is sent again or bumped is one
//! transaction in the end, so each payload is asked once and none is asked twice. What is not
//! mined is sent again with the same bytes. The list is its own; it shares nothing with what
//! it tests. It ends with an error only when the node does not answer for long.

use std::time::Duration;

use alloy::primitives::{Address, Bytes, TxHash, TxKind, U64};
use alloy::rpc::client::RpcClient;
use alloy::signers::local::PrivateKeySigner;
use alloy::sol_types::SolCall;
use alloy::transports::TransportResult;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::account::{AccountError, Call, Fees, RawTransaction, head, send_raw};
use super::board::RequestBoard;

/// So many looks may fail in a row.
pub const FAILED_LOOKS_LIMIT: u32 = 200;
/// What was not mined after so many blocks is sent again.
const RESEND_AFTER_BLOCKS: u64 = 2;
/// The lowest is bumped when it was sent so often at one price.
const SENDS_BEFORE_BUMP: u32 = 3;
/// No more prices than these are tried; the last is sent again and again.
const ATTEMPTS_LIMIT: usize = 40;
/// Storing a request costs less than this, and each byte of it less than that.
const REQUEST_GAS: u64 = 150_000;
const GAS_PER_BYTE: u64 = 50;

/// How it asks.
#[derive(Clone, Copy, Debug)]
pub struct SubmitterOptions {
    /// How many of a key's transactions may wait to be mined.
    pub window: usize,
    /// How many blocks must hold a transaction, its own included.
    pub depth: u64,
    /// How long it waits before it looks at the chain again.
    pub look_every: Duration,
}

impl Default for SubmitterOptions {
    fn default() -> Self {
        SubmitterOptions { window: 64, depth: 3, look_every: Duration::from_millis(25) }
    }
}

/// How far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubmitterProgress {
    /// How many payloads there are.
    pub total: usize,
    /// How many were sent at least once.
    pub sent: usize,
    /// How many are mined now; a reorg makes it less.
    pub mined: usize,
    /// How many are mined at the depth that was asked for.
    pub deep: usize,
    /// How often something was sent again.
    pub resent: u64,
    /// How often something was signed again at a higher price.
    pub bumped: u64,
    /// The newest block that it looked at, and has acted upon.
    pub head: u64,
    /// What the node last said against a transaction.
    pub refusal: Option<String>,
}

/// A payload, and the transaction that asked it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What was asked.
    pub payload: Bytes,
    /// By which transaction.
    pub transaction: TxHash,
}

/// A submitter at work; dropped, it stops.
pub struct Submitter {
    progress: watch::Receiver<SubmitterProgress>,
    task: JoinHandle<Result<Vec<Asked>, AccountError>>,
}

impl Submitter {
    /// Begins to ask. The keys take turns, and must be funded and in nobody else's use.
    ///
    /// No key is an error at [`finish`](Submitter::finish) unless there is nothing to ask.
    pub fn start(
        client: RpcClient,
        board: Address,
        keys: Vec<PrivateKeySigner>,
        payloads: Vec<Bytes>,
        options: SubmitterOptions,
    ) -> Submitter {
        let total = payloads.len();
        let (sender, progress) = watch::channel(SubmitterProgress { total, ..SubmitterProgress::default() });
        let run = Run { client, board, chain_id: 0, options, lanes: lanes(keys, payloads), progress: sender };
        Submitter { progress, task: tokio::spawn(run.run()) }
    }

    /// How far it is.
    pub fn progress(&self) -> SubmitterProgress {
        self.progress.borrow().clone()
    }

    /// Waits until it is so far, or has ended.
    pub async fn wait_until(&mut self, far: impl FnMut(&SubmitterProgress) -> bool) -> SubmitterProgress {
        let reached = self.progress.wait_for(far).await.map(|progress| progress.clone());
        reached.unwrap_or_else(|_| self.progress())
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits until all is asked at its depth; answers its list.
    pub async fn finish(mut self) -> Result<Vec<Asked>, AccountError> {
        match (&mut self.task).await {
            Ok(ended) => ended,
            Err(failed) => Err(AccountError::Stopped(failed.to_string())),
        }
    }
}

impl Drop for Submitter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One payload on its nonce.
struct Ask {
    payload: Bytes,
    attempts: Vec<RawTransaction>,
    state: AskState,
}

/// What the next step depends on, beside the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AskState {
    Unsigned,
    Signed {
        fees: Fees,
        /// The head when it was last sent; none when it must be sent at once.
        sent_at: Option<u64>,
        sends: u32,
        prices: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Wait,
    Sign,
    Resend,
    Bump,
}

/// What becomes of an ask that is not mined; `lowest`: nothing of its key is before it.
fn next_step(state: AskState, lowest: bool, head: u64, base_fee: u128) -> Step {
    let AskState::Signed { fees, sent_at, sends, prices } = state else { return Step::Sign };
    let too_cheap = fees.max_fee < base_fee;
    let waited = sent_at.is_none_or(|at| head >= at.saturating_add(RESEND_AFTER_BLOCKS));
    let stuck = lowest && waited && sends >= SENDS_BEFORE_BUMP;
    match (too_cheap || stuck, waited) {
        (true, _) if prices < ATTEMPTS_LIMIT => Step::Bump,
        (_, true) => Step::Resend,
        (_, false) => Step::Wait,
    }
}

/// A key, and what it asks in the order of its nonces.
struct Lane {
    key: PrivateKeySigner,
    first_nonce: u64,
    asks: Vec<Ask>,
    /// How many of its asks are mined, and how many deeply.
    mined: usize,
    deep: usize,
}

fn lanes(keys: Vec<PrivateKeySigner>, payloads: Vec<Bytes>) -> Vec<Lane> {
    let count = keys.len();
    let lane = |key| Lane { key, first_nonce: 0, asks: Vec::new(), mined: 0, deep: 0 };
    let mut lanes: Vec<Lane> = keys.into_iter().map(lane).collect();
    for (at, payload) in payloads.into_iter().enumerate() {
        if let Some(lane) = at.checked_rem(count).and_then(|lane| lanes.get_mut(lane)) {
            lane.asks.push(Ask { payload, attempts: Vec::new(), state: AskState::Unsigned });
        }
    }
    lanes
}

impl Lane {
    /// Takes note of the account's counts. What a reorg took is sent again at once.
    fn counted(&mut self, latest: u64, deep: u64) {
        let asks = |count: u64| usize::try_from(count.saturating_sub(self.first_nonce)).unwrap_or(usize::MAX);
        let (mined, deep) = (asks(latest), asks(deep));
        if mined < self.mined {
            let taken = self.asks.iter_mut().take(self.mined).skip(mined);
            for ask in taken {
                if let AskState::Signed { sent_at, .. } = &mut ask.state {
                    *sent_at = None;
                }
            }
        }
        (self.mined, self.deep) = (mined, deep);
    }
}

/// What is sent at one look.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<Bytes>,
    resent: u64,
    bumped: u64,
}

struct Run {
    client: RpcClient,
    board: Address,
    chain_id: u64,
    options: SubmitterOptions,
    lanes: Vec<Lane>,
    progress: watch::Sender<SubmitterProgress>,
}

impl Run {
    async fn run(mut self) -> Result<Vec<Asked>, AccountError> {
        if self.lanes.iter().map(|lane| lane.asks.len()).sum::<usize>() < self.progress.borrow().total {
            return Err(AccountError::Stopped("there are payloads and no keys".into()));
        }
        let (mut prepared, mut failed_looks) = (false, 0);
        loop {
            let looked = match prepared {
                true => self.turn().await,
                false => self.prepare().await.map(|()| None),
            };
            prepared |= looked.is_ok();
            match looked {
                Ok(Some(list)) => return Ok(list),
                Ok(None) => failed_looks = 0,
                Err(error) if failed_looks >= FAILED_LOOKS_LIMIT => return Err(error),
                Err(_) => failed_looks += 1,
            }
            tokio::time::sleep(self.options.look_every).await;
        }
    }

    async fn prepare(&mut self) -> Result<(), AccountError> {
        let chain_id: U64 = self.client.request_noparams("eth_chainId").await?;
        self.chain_id = chain_id.to();
        for lane in &mut self.lanes {
            let params = (lane.key.address(), "latest");
            let count: U64 = self.client.request("eth_getTransactionCount", params).await?;
            lane.first_nonce = count.to();
        }
        Ok(())
    }

    /// Looks and acts once; answers the list when all is deep.
    async fn turn(&mut self) -> Result<Option<Vec<Asked>>, AccountError> {
        let head = head(&self.client).await?;
        self.count(head.number.to()).await?;
        let outgoing = self.act(head.number.to(), head.base_fee())?;
        let answers = send_raw(&self.client, &outgoing.bytes).await?;
        let refusal = answers.into_iter().filter_map(Result::err).last().map(|error| error.to_string());
        let sum = |part: fn(&Lane) -> usize| self.lanes.iter().map(part).sum();
        self.progress.send_modify(|progress| {
            progress.sent = sum(|lane| lane.asks.iter().filter(|ask| !ask.attempts.is_empty()).count());
            progress.mined = sum(|lane| lane.mined.min(lane.asks.len()));
            progress.deep = sum(|lane| lane.deep.min(lane.asks.len()));
            progress.resent += outgoing.resent;
            progress.bumped += outgoing.bumped;
            progress.head = head.number.to();
            progress.refusal = refusal.or(progress.refusal.take());
        });
        match self.lanes.iter().all(|lane| lane.deep >= lane.asks.len()) {
            true => Ok(Some(self.list().await?)),
            false => Ok(None),
        }
    }

    /// Asks how many transactions of each key are mined, now and at the depth.
    async fn count(&mut self, head: u64) -> TransportResult<()> {
        let deep_block = (head + 1).checked_sub(self.options.depth);
        let mut batch = self.client.new_batch();
        let mut waiters = Vec::with_capacity(self.lanes.len());
        for lane in &self.lanes {
            let account = lane.key.address();
            let latest = batch.add_call::<_, U64>("eth_getTransactionCount", &(account, U64::from(head)))?;
            let deep = match deep_block {
                Some(block) => Some(batch.add_call::<_, U64>("eth_getTransactionCount", &(account, U64::from(block)))?),
                None => None,
            };
            waiters.push((latest, deep));
        }
        batch.send().await?;
        for (lane, (latest, deep)) in self.lanes.iter_mut().zip(waiters) {
            let latest: U64 = latest.await?;
            let deep = match deep {
                Some(deep) => deep.await?,
                None => U64::ZERO,
            };
            lane.counted(latest.to(), deep.to());
        }
        Ok(())
    }

    /// Decides for every ask in the windows.
    fn act(&mut self, head: u64, base_fee: u128) -> Result<Outgoing, AccountError> {
        let mut outgoing = Outgoing::default();
        for lane in &mut self.lanes {
            let mined = lane.mined;
            for (at, ask) in lane.asks.iter_mut().enumerate().skip(mined).take(self.options.window) {
                let step = next_step(ask.state, at == mined, head, base_fee);
                match step {
                    Step::Wait => continue,
                    Step::Resend => outgoing.resent += 1,
                    Step::Bump => outgoing.bumped += 1,
                    Step::Sign => {}
                }
                if let Step::Sign | Step::Bump = step {
                    let nonce = lane.first_nonce + at as u64;
                    ask.sign(&lane.key, self.board, self.chain_id, nonce, base_fee)?;
                }
                ask.going_out(head);
                outgoing.bytes.extend(ask.attempts.last().map(|attempt| attempt.bytes.clone()));
            }
        }
        Ok(outgoing)
    }

    /// The list: which of its transactions asked each payload.
    async fn list(&self) -> Result<Vec<Asked>, AccountError> {
        let mut list = Vec::new();
        for ask in self.lanes.iter().flat_map(|lane| &lane.asks) {
            let transaction = self.mined_attempt(ask).await?;
            list.push(Asked { payload: ask.payload.clone(), transaction });
        }
        Ok(list)
    }

    /// A reorg that came after the counts is an error here, and seen at the next look.
    async fn mined_attempt(&self, ask: &Ask) -> Result<TxHash, AccountError> {
        for attempt in &ask.attempts {
            let receipt: Option<Mined> = self.client.request("eth_getTransactionReceipt", (attempt.hash,)).await?;
            match receipt {
                Some(mined) if mined.status == U64::ONE => return Ok(attempt.hash),
                Some(_) => return Err(AccountError::Failed(attempt.hash)),
                None => {}
            }
        }
        Err(AccountError::Stopped(
            "a mined nonce has none of its transactions: does somebody else use its keys?".into(),
        ))
    }
}

#[derive(Debug, Deserialize)]
struct Mined {
    status: U64,
}

impl Ask {
    fn sign(
        &mut self,
        key: &PrivateKeySigner,
        board: Address,
        chain_id: u64,
        nonce: u64,
        base_fee: u128,
    ) -> Result<(), AccountError> {
        let (fees, prices) = match self.state {
            AskState::Unsigned => (Fees::above(base_fee), 1),
            AskState::Signed { fees, prices, .. } => (fees.bumped(base_fee), prices + 1),
        };
        let input: Bytes = RequestBoard::requestCall { payload: self.payload.clone() }.abi_encode().into();
        let gas_limit = REQUEST_GAS + GAS_PER_BYTE * input.len() as u64;
        let call = Call { chain_id, nonce, to: TxKind::Call(board), input, gas_limit, fees };
        self.attempts.push(call.sign(key)?);
        self.state = AskState::Signed { fees, sent_at: None, sends: 0, prices };
        Ok(())
    }

    fn going_out(&mut self, head: u64) {
        if let AskState::Signed { sent_at, sends, .. } = &mut self.state {
            *sent_at = Some(head);
            *sends += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(sent_at: Option<u64>, sends: u32, prices: usize) -> AskState {
        AskState::Signed { fees: Fees { max_fee: 100, tip: Some(1) }, sent_at, sends, prices }
    }

    #[test]
    fn the_next_step_follows_the_head_and_the_base_fee() {
        let late = 10 + RESEND_AFTER_BLOCKS;
        let table = [
            ("new", AskState::Unsigned, true, 10, 50, Step::Sign),
            ("just sent", signed(Some(10), 1, 1), true, 11, 50, Step::Wait),
            ("not mined", signed(Some(10), 1, 1), true, late, 50, Step::Resend),
            ("taken by a reorg", signed(None, 1, 1), true, 10, 50, Step::Resend),
            ("often sent", signed(Some(10), SENDS_BEFORE_BUMP, 1), true, late, 50, Step::Bump),
            ("often sent, behind another", signed(Some(10), SENDS_BEFORE_BUMP, 1), false, late, 50, Step::Resend),
            ("often sent, just now", signed(Some(10), SENDS_BEFORE_BUMP, 1), true, 11, 50, Step::Wait),
            ("below the base fee", signed(Some(10), 1, 1), false, 10, 101, Step::Bump),
            ("all prices tried", signed(Some(10), 1, ATTEMPTS_LIMIT), true, late, 101, Step::Resend),
            ("all prices tried, just sent", signed(Some(10), 1, ATTEMPTS_LIMIT), true, 10, 101, Step::Wait),
        ];
        for (name, state, lowest, head, base_fee, step) in table {
            assert_eq!(next_step(state, lowest, head, base_fee), step, "{name}");
        }
    }

    #[test]
    fn what_a_reorg_took_is_sent_again() {
        let ask = || Ask { payload: Bytes::new(), attempts: Vec::new(), state: signed(Some(9), 1, 1) };
        let asks = vec![ask(), ask(), ask(), ask()];
        let mut lane = Lane { key: PrivateKeySigner::random(), first_nonce: 5, asks, mined: 0, deep: 0 };
        lane.counted(8, 6);
        assert_eq!((lane.mined, lane.deep), (3, 1));
        lane.counted(6, 6);
        let states: Vec<AskState> = lane.asks.iter().map(|ask| ask.state).collect();
        let [kept, taken, waiting] = [signed(Some(9), 1, 1), signed(None, 1, 1), signed(Some(9), 1, 1)];
        assert_eq!(states, [kept, taken, taken, waiting]);
        assert_eq!((lane.mined, lane.deep), (1, 1));
    }
}
