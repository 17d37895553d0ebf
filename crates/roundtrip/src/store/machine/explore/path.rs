//! From a listener's block to a final effect on the destination's chain: lanes under
//! bumps, cancels, gaps, rejections, reorgs, outsiders, two owners, crashes, calls that
//! arrive twice, and a disk that was rolled back.
//!
//! Whatever was signed and stored is out: any attempt may be mined at its nonce at any
//! time, also long after the store has forgotten it. A transaction shows what it
//! carries, so a sender can match one that its store does not know.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use super::Witness;
use super::embedded::Embedded;
use super::frame::{self, Fate};
use crate::inbox::{End, Standing, StateKind};
use crate::listener::Cursor;
use crate::sender::{AttemptKind, Block, LaneStatus, Parcel, SignedAttempt, Stage};
use crate::store::disk::RamDisk;
use crate::store::op::{
    Admit, AfterCancel, Amend, Amendment, Assign, Attempt, CursorMove, Effect, Fill, Judgement, LaneOrder, Lead,
    Missing, NewParcel, NewRequest, Op, Order, Outcome, Seat, Settle, Sight, Stale,
};
use crate::store::policy::{Gate, RoutePolicy};
use crate::words::{
    AttemptHash, Destination, ErrorClass, ErrorNote, Height, HolderName, LaneName, ListenerName, Nonce, Position,
    RequestId, Token,
};

/// A seat lasts so long without being kept.
const SEAT_MS: u64 = 100_000;
const WINDOW: u32 = 2;
/// So many honest rounds finish whatever the faults left behind.
const DRAIN_ROUNDS: usize = 24;

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    pub(super) crashes: u8,
    /// A whole seat's time passes with nobody keeping it.
    pub(super) waits: u8,
    /// Further attempts of parcels: bumps and cancels.
    pub(super) bumps: u8,
    pub(super) outsiders: u8,
    /// Wishes that a parcel be cancelled.
    pub(super) wishes: u8,
    /// The destination's node proves that an attempt will never be mined.
    pub(super) rejections: u8,
    /// A transaction is mined and does nothing.
    pub(super) reverts: u8,
    pub(super) reorgs: u8,
    /// Answers of the store that are lost.
    pub(super) lost: u8,
    /// Calls of which a copy arrives again later.
    pub(super) copies: u8,
    /// An older disk is put back.
    pub(super) restores: u8,
}

/// What a sender asks its node before it sends anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    Nothing,
    /// The account's next nonce by mined transactions alone.
    Latest,
    /// The account's next nonce with what waits to be mined.
    Pending,
}

/// What the senders do; the honest one, and deviations that prove that the model can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Protocol {
    pub(super) asks: Asks,
    /// Bytes go out only after they are stored.
    pub(super) stores_first: bool,
    /// A transaction that the store does not know is judged by what it carries.
    pub(super) matches_content: bool,
    /// A stopped lane goes on only when all that was ever sent is final and matched.
    pub(super) reconciles_when_quiet: bool,
    /// A nonce that was passed over is filled, and a rejected parcel's is used up by a cancel.
    pub(super) fills_gaps: bool,
}

pub(super) const HONEST: Protocol = Protocol {
    asks: Asks::Pending,
    stores_first: true,
    matches_content: true,
    reconciles_when_quiet: true,
    fills_gaps: true,
};

pub(super) struct Path {
    pub(super) requests: u8,
    pub(super) senders: usize,
    /// Start with every request answered and ready to be sent.
    pub(super) all_ready: bool,
    pub(super) faults: Faults,
    pub(super) protocol: Protocol,
    pub(super) witness: Witness,
}

/// A signed transaction; its hash spells out what it is, as its bytes would.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Tx {
    nonce: u8,
    /// The requests whose answers it carries, as bits.
    carries: u8,
    cancel: bool,
    by: u8,
    fee: u8,
}

/// Somebody else with the same key.
const OUTSIDER: u8 = u8::MAX;

impl Tx {
    fn hash(self) -> AttemptHash {
        let mut hash = [0; 32];
        hash[..5].copy_from_slice(&[self.nonce, self.carries, u8::from(self.cancel), self.by, self.fee]);
        AttemptHash(hash)
    }

    fn of(hash: &AttemptHash) -> Tx {
        let [nonce, carries, cancel, by, fee, ..] = hash.0;
        Tx { nonce, carries, cancel: cancel == 1, by, fee }
    }

    fn signed(self) -> SignedAttempt {
        let kind = if self.cancel { AttemptKind::Cancel } else { AttemptKind::Carry };
        SignedAttempt { hash: self.hash(), kind, bytes: Default::default(), fee: None }
    }

    /// What being mined does.
    fn effects(self) -> u8 {
        if self.cancel { 0 } else { self.carries }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mined {
    tx: Tx,
    reverted: bool,
    fork: u8,
}

impl Mined {
    fn block(&self) -> Block {
        let at = Position { height: Height(u64::from(self.tx.nonce)), hash: [self.fork; 32] };
        Block { attempt: self.tx.hash(), at }
    }

    fn effects(&self) -> u8 {
        if self.reverted { 0 } else { self.tx.effects() }
    }
}

/// The account at the destination: one transaction per nonce, one block each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Chain {
    mined: Vec<Mined>,
    finals: usize,
    fork: u8,
    /// All signed bytes that anybody may still send.
    out: BTreeSet<Tx>,
    rejected: BTreeSet<Tx>,
}

impl Chain {
    fn next(&self) -> u8 {
        u8::try_from(self.mined.len()).unwrap()
    }

    fn at(&self, nonce: u8) -> Option<&Mined> {
        self.mined.get(usize::from(nonce))
    }

    fn is_final(&self, nonce: u8) -> bool {
        usize::from(nonce) < self.finals
    }

    /// The next nonce after all that is mined or waits to be.
    fn pending(&self) -> u8 {
        let waiting = self.out.difference(&self.rejected).map(|tx| tx.nonce + 1).max();
        self.next().max(waiting.unwrap_or(0))
    }

    fn minable(&self) -> Vec<Tx> {
        let at_next = self.out.iter().copied().filter(|tx| tx.nonce == self.next());
        at_next.filter(|tx| !self.rejected.contains(tx)).collect()
    }

    fn mine(&mut self, tx: Tx, reverted: bool) {
        self.mined.push(Mined { tx, reverted, fork: self.fork });
    }

    fn reorg(&mut self) {
        self.mined.truncate(self.finals);
        self.fork += 1;
    }

    /// How often the request was carried out, on the chain as it is.
    fn effects(&self, request: u8) -> usize {
        self.mined.iter().filter(|mined| mined.effects() & bit(request) != 0).count()
    }

    fn final_effects(&self, request: u8) -> usize {
        self.mined[..self.finals].iter().filter(|mined| mined.effects() & bit(request) != 0).count()
    }
}

fn bit(request: u8) -> u8 {
    1 << request
}

/// What a sender remembers of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Sender {
    token: Option<Token>,
    /// The lane's next nonce as last acknowledged to it.
    next: u8,
    /// It compared the lane with the chain since it started.
    asked: bool,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(super) struct State {
    store: Embedded,
    chain: Chain,
    senders: Vec<Sender>,
    cursor: Option<Cursor>,
    lead: Token,
    copy: Option<Op>,
    backup: Option<RamDisk>,
    left: Faults,
    rolled_back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Admit,
    Work,
    Lead(usize),
    Ask(usize),
    Assign {
        by: usize,
        carries: u8,
        fate: Fate,
    },
    Again {
        by: usize,
        nonce: u8,
        cancel: bool,
        fate: Fate,
    },
    /// A person no longer wants what is on a slot.
    Wish {
        nonce: u8,
    },
    /// A sender does what was wished.
    Cancel {
        by: usize,
        nonce: u8,
        fate: Fate,
    },
    /// A sender puts something, or nothing, on a slot that was passed over.
    Fill {
        by: usize,
        nonce: u8,
        carries: u8,
        fate: Fate,
    },
    Send(Tx),
    Settle {
        by: usize,
        nonce: u8,
        fate: Fate,
    },
    Match {
        by: usize,
    },
    Reconcile {
        by: usize,
    },
    /// A person takes a lane that goes well for a stopped one.
    Hasten,
    Mine {
        tx: Tx,
        reverted: bool,
    },
    Outsider,
    Reject(Tx),
    Finalize,
    Reorg,
    Deliver,
    Wait,
    Crash,
    Backup,
    Restore {
        senders_survive: bool,
    },
}

fn lane_name() -> LaneName {
    LaneName::new("account").unwrap()
}

fn destination() -> Destination {
    Destination::new("chain").unwrap()
}

fn listener() -> ListenerName {
    ListenerName::new("l").unwrap()
}

fn id_of(request: u8) -> RequestId {
    RequestId([request + 1; 32])
}

fn ids(carries: u8) -> Vec<RequestId> {
    (0..8).filter(|&request| carries & bit(request) != 0).map(id_of).collect()
}

fn bits(deliveries: &[RequestId]) -> u8 {
    deliveries.iter().map(|id| bit(id.0[0] - 1)).sum()
}

fn nonce(n: u8) -> Nonce {
    Nonce(u64::from(n))
}

fn new_request(n: u8) -> NewRequest {
    frame::request(n + 1, n, Standing::Final)
}

impl State {
    fn new(model: &Path) -> State {
        let policy = RoutePolicy { publish_on: Gate::Seen, destination: Some(destination()), ..Default::default() };
        let (mut store, lead) = frame::routed(policy);
        let order = Order::Open { destination: destination(), window: WINDOW, first: nonce(0) };
        store.commit(Op::Lane(LaneOrder { lane: lane_name(), order }));
        let mut state = State {
            store,
            chain: Chain::default(),
            senders: vec![Sender::default(); model.senders],
            cursor: None,
            lead,
            copy: None,
            backup: None,
            left: model.faults,
            rolled_back: false,
        };
        if model.all_ready {
            while state.admit(model).is_some() {}
            while state.work().is_some() {}
        }
        state
    }

    fn kind(&self, request: u8) -> Option<StateKind> {
        self.store.kind(&id_of(request))
    }

    fn ready(&self, model: &Path) -> Vec<u8> {
        (0..model.requests).filter(|&request| self.kind(request) == Some(StateKind::Ready)).collect()
    }

    fn lane_next(&self) -> u8 {
        u8::try_from(self.store.lane().next.0).unwrap()
    }

    fn parcel(&self, n: u8) -> Option<&Parcel> {
        self.store.lane().parcels.get(&nonce(n))
    }

    fn stopped(&self) -> bool {
        self.store.lane().status == LaneStatus::Stopped
    }

    /// The listener reads one more block; the first ones have one request each, and all
    /// are final. Later ones are empty: they only matter to a listener that knows more
    /// than its store.
    fn admit(&mut self, model: &Path) -> Option<Outcome> {
        let at = self.cursor.map_or(0, |cursor| cursor.at.height.0);
        let request = u8::try_from(at).unwrap();
        let empty = request >= model.requests;
        if empty && self.cursor == self.store.cursor(&listener()) {
            return None;
        }
        let next = Position { height: Height(at + 1), hash: [0; 32] };
        let requests = if empty { Vec::new() } else { vec![new_request(request)] };
        let cursor = Some(CursorMove { listener: listener(), expected: self.cursor, next });
        let outcome = self.store.commit(Op::Admit(Admit { cursor, requests }));
        match &outcome {
            Outcome::Applied(Effect::Admitted(_, cursor)) | Outcome::Duplicate(Effect::Admitted(_, cursor)) => {
                self.cursor = *cursor;
            }
            // It has said so loudly, and reads on from what the store still knows.
            Outcome::Stale(Stale::Cursor(_) | Stale::RolledBack) => self.cursor = self.store.cursor(&listener()),
            _ => {}
        }
        Some(outcome)
    }

    /// A worker takes a request and answers it.
    fn work(&mut self) -> Option<()> {
        frame::work(self.store.machine.tokens, |op| self.store.commit(op))
    }

    fn lead(&mut self, by: usize) -> Outcome {
        let holder = HolderName::new(&format!("s{by}")).unwrap();
        let op = Lead { seat: Seat::Lane(lane_name()), holder, ttl_ms: SEAT_MS };
        let outcome = self.store.commit(Op::Lead(op));
        if let Outcome::Applied(Effect::Led(token, _)) = outcome {
            let asked = self.senders[by].asked && self.senders[by].token == Some(token);
            self.senders[by] = Sender { token: Some(token), asked, ..self.senders[by] };
        }
        outcome
    }

    /// A sender that starts compares the lane with the chain before it sends anything.
    fn ask(&mut self, model: &Path, by: usize) {
        let outside = match model.protocol.asks {
            Asks::Nothing => 0,
            Asks::Latest => self.chain.next(),
            Asks::Pending => self.chain.pending().max(self.senders[by].next),
        };
        if outside > 0 {
            let order = Order::Observe { outside_next: nonce(outside) };
            self.store.commit(Op::Lane(LaneOrder { lane: lane_name(), order }));
        }
        let next = self.lane_next();
        self.senders[by] = Sender { asked: true, next, ..self.senders[by] };
    }

    /// Puts requests on the lane's next slot, as the sender knows it.
    fn assign(&mut self, model: &Path, by: usize, carries: u8, fate: Fate) -> Option<Outcome> {
        let Sender { token, next, asked } = self.senders[by];
        let owner = token.filter(|_| asked)?;
        let tx = Tx { nonce: next, carries, cancel: false, by: u8::try_from(by).unwrap(), fee: 0 };
        if !model.protocol.stores_first {
            self.chain.out.insert(tx);
        }
        let parcels = vec![NewParcel { deliveries: ids(carries), answers: Vec::new(), attempt: tx.signed() }];
        let op = Op::Assign(Assign { lane: lane_name(), owner, first: nonce(next), parcels });
        let outcome = self.call(op, fate);
        if fate == Fate::Lost {
            return Some(outcome);
        }
        match &outcome {
            Outcome::Applied(_) | Outcome::Duplicate(_) => {
                self.chain.out.insert(tx);
                self.senders[by].next = next + 1;
            }
            // Further than it knew: another owner was here, or its answer was lost. Less
            // far than it was told: the store forgot.
            Outcome::Stale(Stale::Nonce { next: held }) if held.0 > u64::from(next) => {
                self.senders[by].next = u8::try_from(held.0).unwrap();
            }
            Outcome::Stale(Stale::Nonce { .. }) => self.senders[by].asked = false,
            Outcome::Stale(Stale::Seat { .. }) => self.senders[by] = Sender::default(),
            _ => {}
        }
        Some(outcome)
    }

    fn again(&mut self, by: usize, n: u8, cancel: bool, fate: Fate) -> Option<Outcome> {
        let owner = self.senders[by].token?;
        let parcel = self.parcel(n)?;
        let fee = u8::try_from(parcel.attempts.len()).unwrap();
        let carries = bits(&parcel.deliveries);
        let tx = Tx { nonce: n, carries, cancel, by: u8::try_from(by).unwrap(), fee };
        let outcome =
            self.call(Op::Attempt(Attempt { lane: lane_name(), owner, nonce: nonce(n), attempt: tx.signed() }), fate);
        if fate != Fate::Lost && outcome.holds() {
            self.chain.out.insert(tx);
        }
        Some(outcome)
    }

    fn wish(&mut self, n: u8) -> Outcome {
        let order = Order::Cancel { nonce: nonce(n), then: AfterCancel::Requeue };
        self.store.commit(Op::Lane(LaneOrder { lane: lane_name(), order }))
    }

    /// Whether a slot is to be cancelled and nothing does it yet.
    fn is_wished(&self, n: u8) -> bool {
        self.parcel(n).is_some_and(|parcel| {
            let carries = parcel.attempts.iter().all(|known| known.kind == AttemptKind::Carry);
            parcel.cancel.is_some() && parcel.stage == Stage::Assigned && carries && n >= self.chain.next()
        })
    }

    /// Whether a slot was passed over, and the chain shows nothing on it.
    fn is_empty(&self, n: u8) -> bool {
        self.store.lane().is_gap(nonce(n)) && n >= self.chain.next()
    }

    fn fill(&mut self, by: usize, n: u8, carries: u8, fate: Fate) -> Option<Outcome> {
        let owner = self.senders[by].token.filter(|_| self.is_empty(n))?;
        let tx = Tx { nonce: n, carries, cancel: carries == 0, by: u8::try_from(by).unwrap(), fee: 0 };
        let parcel = NewParcel { deliveries: ids(carries), answers: Vec::new(), attempt: tx.signed() };
        let outcome = self.call(Op::Fill(Fill { lane: lane_name(), owner, nonce: nonce(n), parcel }), fate);
        if fate != Fate::Lost && outcome.holds() {
            self.chain.out.insert(tx);
        }
        Some(outcome)
    }

    /// Tells the store what the chain shows of a slot, if that is news.
    fn settle(&mut self, model: &Path, by: usize, n: u8, fate: Fate) -> Option<Outcome> {
        let owner = self.senders[by].token?;
        let parcel = self.parcel(n)?;
        let (expected, settle_at) = (parcel.stage.kind(), nonce(n));
        if let Some(adopted) = self.unknown_carrier(model, n) {
            let op = Attempt { lane: lane_name(), owner, nonce: settle_at, attempt: adopted.signed() };
            return Some(self.call(Op::Attempt(op), fate));
        }
        let sight = self.sight(parcel, n)?;
        Some(self.call(Op::Settle(Settle { lane: lane_name(), owner, nonce: settle_at, expected, sight }), fate))
    }

    /// A mined transaction that the store forgot and that carries what its parcel does.
    fn unknown_carrier(&self, model: &Path, n: u8) -> Option<Tx> {
        let (parcel, mined) = (self.parcel(n)?, self.chain.at(n)?);
        let known = parcel.attempts.iter().any(|attempt| attempt.hash == mined.tx.hash());
        let ours = mined.tx.by != OUTSIDER && mined.tx.carries == bits(&parcel.deliveries);
        (model.protocol.matches_content && !known && ours).then_some(mined.tx)
    }

    fn sight(&self, parcel: &Parcel, n: u8) -> Option<Sight> {
        let Some(mined) = self.chain.at(n) else {
            return (parcel.stage != Stage::Assigned).then_some(Sight::Back);
        };
        let known = parcel.attempts.iter().any(|attempt| attempt.hash == mined.tx.hash());
        let block = mined.block();
        match parcel.stage {
            _ if self.chain.is_final(n) && !known => Some(Sight::Displaced),
            _ if self.chain.is_final(n) => Some(Sight::Final(block, self.judgement(mined))),
            Stage::Assigned if known => Some(Sight::Included(block)),
            Stage::Included(seen) if seen == block => Some(Sight::Confirmed(block)),
            Stage::Included(seen) | Stage::Confirmed(seen) if seen != block => Some(Sight::Back),
            _ => None,
        }
    }

    fn judgement(&self, mined: &Mined) -> Judgement {
        if mined.reverted {
            return Judgement::Again(ErrorNote::new(ErrorClass::Retryable, "reverted"));
        }
        Judgement::Done
    }

    /// A request that the chain shows as carried out although the store would send it.
    fn unmatched(&self, model: &Path) -> Option<u8> {
        (0..model.requests).find(|&request| {
            let sent =
                matches!(self.kind(request), Some(StateKind::Assigned | StateKind::Included | StateKind::Confirmed));
            self.chain.final_effects(request) > 0 && self.kind(request).is_some() && !sent
        })
    }

    /// Nothing that was ever sent can still change: all is final, every slot below is
    /// settled, and the listener has read again all that could have been sent.
    fn is_quiet(&self, model: &Path) -> bool {
        let chain = &self.chain;
        let stored = |n: u8| self.parcel(n).is_some();
        let settled = (0..chain.next()).all(|n| chain.is_final(n) && !stored(n));
        let forgotten = (chain.next()..chain.pending())
            .any(|n| chain.out.iter().any(|tx| tx.nonce == n && !chain.rejected.contains(tx) && !self.is_stored(*tx)));
        let read_again =
            self.store.cursor(&listener()).map_or(0, |cursor| cursor.at.height.0) >= u64::from(model.requests);
        settled && !forgotten && read_again && self.unmatched(model).is_none()
    }

    fn is_stored(&self, tx: Tx) -> bool {
        self.parcel(tx.nonce).is_some_and(|parcel| parcel.attempts.iter().any(|known| known.hash == tx.hash()))
    }

    fn reconcile(&mut self, model: &Path, by: usize) -> Option<Outcome> {
        self.senders[by].token?;
        if !self.stopped() || (model.protocol.reconciles_when_quiet && !self.is_quiet(model)) {
            return None;
        }
        let order = Order::Reconcile { outside_next: nonce(self.chain.next()) };
        let outcome = self.store.commit(Op::Lane(LaneOrder { lane: lane_name(), order }));
        self.senders[by] = Sender { next: self.lane_next(), asked: true, ..self.senders[by] };
        Some(outcome)
    }

    /// A slot that nobody was given or has used; were it passed over, it would be filled for nothing.
    fn hasten(&mut self) -> Outcome {
        let order = Order::Reconcile { outside_next: nonce(self.lane_next() + 1) };
        let outcome = self.store.commit(Op::Lane(LaneOrder { lane: lane_name(), order }));
        assert!(!outcome.holds(), "a lane that goes well was reconciled: {outcome:?}");
        outcome
    }

    /// While the lane is stopped: what the chain carried out is not to be sent again.
    fn match_one(&mut self, model: &Path) -> Option<Outcome> {
        let request = self.unmatched(model).filter(|_| self.stopped())?;
        let change = Amendment::Elsewhere { id: id_of(request) };
        Some(self.store.commit(Op::Amend(Amend { lead: self.lead, change })))
    }

    fn call(&mut self, op: Op, fate: Fate) -> Outcome {
        match fate {
            Fate::Heard => self.store.commit(op),
            Fate::Lost => {
                self.left.lost -= 1;
                self.store.commit(op)
            }
            Fate::Copied => {
                self.left.copies -= 1;
                self.copy = Some(op.clone());
                self.store.commit(op)
            }
        }
    }

    fn restore(&mut self, older: RamDisk, senders_survive: bool) {
        self.store.restore(older);
        self.rolled_back = true;
        if !senders_survive {
            for sender in &mut self.senders {
                *sender = Sender { token: sender.token, ..Sender::default() };
            }
            self.cursor = self.store.cursor(&listener());
        }
    }
}

/// The promises.
impl State {
    fn one_effect(&self, model: &Path) -> bool {
        (0..model.requests).all(|request| self.chain.effects(request) <= 1)
    }

    /// What the cursor has passed is live, or the chain shows its effect for good.
    fn nothing_lost(&self, model: &Path) -> bool {
        let passed = self.store.cursor(&listener()).map_or(0, |cursor| cursor.at.height.0);
        (0..model.requests).filter(|&request| u64::from(request) < passed).all(|request| {
            let done = || {
                let ended = matches!(self.store.ended(&id_of(request)), Some((End::Settled | End::Elsewhere, _)));
                ended && self.chain.final_effects(request) == 1
            };
            self.kind(request).is_some() || done()
        })
    }

    /// Every slot that may still be needed has a parcel with bytes to send, or is shown as a gap.
    fn none_is_forgotten(&self) -> bool {
        let finals = u8::try_from(self.chain.finals).unwrap();
        let has_bytes = |n: u8| self.parcel(n).is_some_and(|parcel| !parcel.attempts.is_empty());
        (finals..self.lane_next()).all(|n| has_bytes(n) || self.store.lane().is_gap(nonce(n)))
    }

    /// Unless the outside was believed before it was final, every slot has its parcel.
    fn no_gaps(&self, model: &Path) -> bool {
        let finals = u8::try_from(self.chain.finals).unwrap();
        !model.protocol.reconciles_when_quiet || (finals..self.lane_next()).all(|n| self.parcel(n).is_some())
    }

    /// Unless the disk was rolled back, what may still be mined is in the store.
    fn out_is_stored(&self) -> bool {
        let open = |tx: &&Tx| usize::from(tx.nonce) >= self.chain.finals;
        self.rolled_back || self.chain.out.iter().filter(open).all(|tx| self.is_stored(*tx))
    }

    fn drains(&self, model: &Path) -> bool {
        let mut rest = self.clone();
        for _ in 0..DRAIN_ROUNDS {
            if rest.is_done(model) {
                return true;
            }
            rest.honest_round(model);
            if !rest.one_effect(model) || !rest.none_is_forgotten() {
                return false;
            }
        }
        false
    }

    fn is_done(&self, model: &Path) -> bool {
        let read = self.store.cursor(&listener()).map_or(0, |cursor| cursor.at.height.0) >= u64::from(model.requests);
        read && (0..model.requests)
            .all(|request| self.chain.final_effects(request) == 1 && self.kind(request).is_none())
            && self.no_lasting_gap()
    }

    /// Every slot of the lane is used for good.
    fn no_lasting_gap(&self) -> bool {
        self.chain.finals >= usize::from(self.lane_next())
    }

    /// One step of everybody who is honest, with the first sender as the owner.
    fn honest_round(&mut self, model: &Path) {
        self.admit(model);
        self.work();
        if !self.lead(0).holds() {
            self.store.now = self.store.now.plus(SEAT_MS);
            self.lead(0);
        }
        self.ask(model, 0);
        for n in 0..self.lane_next() {
            while self.settle(model, 0, n, Fate::Heard).is_some_and(|outcome| outcome.holds()) {}
            self.unblock(model, n);
        }
        while self.match_one(model).is_some() {}
        self.reconcile(model, 0);
        if let Some(&request) = self.ready(model).first() {
            self.assign(model, 0, bit(request), Fate::Heard);
        }
        self.send_all();
        while let Some(&tx) = self.chain.minable().first() {
            self.chain.mine(tx, false);
        }
        self.chain.finals = self.chain.mined.len();
    }

    /// Gives a slot that has nothing that can be mined, or nothing that is wanted, what it needs.
    fn unblock(&mut self, model: &Path, n: u8) {
        if !model.protocol.fills_gaps {
            return;
        }
        let Some(parcel) = self.parcel(n) else {
            let carries = self.ready(model).first().map_or(0, |&request| bit(request));
            self.fill(0, n, carries, Fate::Heard);
            return;
        };
        let hopeless = parcel.attempts.iter().all(|known| self.chain.rejected.contains(&Tx::of(&known.hash)));
        if hopeless || self.is_wished(n) {
            self.again(0, n, true, Fate::Heard);
        }
    }

    /// Whatever is stored is sent, again and again.
    fn send_all(&mut self) {
        let stored: Vec<Tx> = self.stored().collect();
        self.chain.out.extend(stored);
    }

    fn stored(&self) -> impl Iterator<Item = Tx> {
        self.store.lane().parcels.values().flat_map(|parcel| parcel.attempts.iter().map(|known| Tx::of(&known.hash)))
    }
}

impl Path {
    fn sender_actions(&self, state: &State, by: usize, actions: &mut Vec<Action>) {
        let sender = state.senders[by];
        actions.push(Action::Lead(by));
        if sender.token.is_none() {
            return;
        }
        if !sender.asked {
            actions.push(Action::Ask(by));
        }
        if state.stopped() {
            actions.extend([Action::Match { by }, Action::Reconcile { by }]);
        }
        let ready = state.ready(self);
        for fate in Fate::left(state.left.lost, state.left.copies) {
            if sender.asked {
                // Also what is not ready: the sender's list may be out of date.
                let each = (0..self.requests).map(|request| Action::Assign { by, carries: bit(request), fate });
                actions.extend(each);
                if ready.len() > 1 && self.all_ready {
                    let carries = ready.iter().map(|&request| bit(request)).sum();
                    actions.push(Action::Assign { by, carries, fate });
                }
            }
            for n in state.store.lane().parcels.keys().map(|n| u8::try_from(n.0).unwrap()) {
                actions.push(Action::Settle { by, nonce: n, fate });
                if state.left.bumps > 0 {
                    actions.extend([true, false].map(|cancel| Action::Again { by, nonce: n, cancel, fate }));
                }
                actions.extend(state.is_wished(n).then_some(Action::Cancel { by, nonce: n, fate }));
            }
            if self.protocol.fills_gaps {
                for n in (0..state.lane_next()).filter(|&n| state.is_empty(n)) {
                    let each = ready.iter().map(|&request| bit(request)).chain([0]);
                    actions.extend(each.map(|carries| Action::Fill { by, nonce: n, carries, fate }));
                }
            }
        }
    }

    fn chain_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (chain, left) = (&state.chain, &state.left);
        for tx in chain.minable() {
            actions.push(Action::Mine { tx, reverted: false });
            if left.reverts > 0 && tx.effects() != 0 {
                actions.push(Action::Mine { tx, reverted: true });
            }
            if left.rejections > 0 {
                actions.push(Action::Reject(tx));
            }
        }
        if left.outsiders > 0 {
            actions.push(Action::Outsider);
        }
        if chain.finals < chain.mined.len() {
            actions.push(Action::Finalize);
            if left.reorgs > 0 {
                actions.push(Action::Reorg);
            }
        }
    }

    fn note(&self, state: &State, action: Action, outcome: &Outcome) {
        match (action, outcome) {
            (_, Outcome::Stale(Stale::RolledBack)) => self.witness.note("the cursor showed a rollback"),
            (_, Outcome::Stale(Stale::Seat { .. })) => self.witness.note("an owner with a stale token was refused"),
            (Action::Assign { by, .. }, Outcome::Stale(Stale::Nonce { next })) => {
                let behind = next.0 < u64::from(state.senders[by].next);
                self.witness.note(if behind {
                    "the nonce showed a rollback"
                } else {
                    "a nonce was taken by the other owner"
                });
            }
            (Action::Assign { .. }, Outcome::Stale(Stale::Delivery(..))) => {
                self.witness.note("a delivery that is not ready was refused");
            }
            (Action::Assign { .. }, Outcome::Stale(Stale::Lane(LaneStatus::Stopped))) => {
                self.witness.note("a stopped lane took nothing");
            }
            (Action::Settle { nonce, .. }, Outcome::Applied(_)) => self.note_settled(state, nonce),
            (Action::Wish { .. }, Outcome::Stale(Stale::Parcel(_))) => self.witness.note("a wish came too late"),
            (Action::Fill { carries: 0, .. }, Outcome::Applied(_)) => {
                self.witness.note("a gap was filled with nothing");
            }
            (Action::Fill { .. }, Outcome::Applied(_)) => self.witness.note("a gap was filled with an answer"),
            (Action::Match { .. }, Outcome::Applied(_)) => self.witness.note("a forgotten delivery was matched"),
            (Action::Reconcile { .. }, Outcome::Applied(_)) => self.witness.note("a lane was reconciled"),
            (Action::Hasten, Outcome::Stale(Stale::Lane(_))) => {
                self.witness.note("a lane that goes well was not reconciled");
            }
            (_, Outcome::NotFound(Missing::Parcel(_))) => self.witness.note("a late call found its parcel gone"),
            _ => {}
        }
    }

    /// What kind of settling it was, by what was there before.
    fn note_settled(&self, before: &State, n: u8) {
        let Some(parcel) = before.parcel(n) else { return };
        if before.unknown_carrier(self, n).is_some() {
            return self.witness.note("a forgotten attempt was adopted");
        }
        match before.sight(parcel, n) {
            Some(Sight::Back) => self.witness.note("a reorg took a parcel back"),
            Some(Sight::Displaced) => self.witness.note("an outsider displaced a parcel"),
            Some(Sight::Final(_, Judgement::Again(_))) => self.witness.note("a reverted parcel was returned"),
            Some(Sight::Final(block, _)) if Tx::of(&block.attempt).cancel => {
                let wished = parcel.cancel.is_some();
                self.witness.note(if wished { "a wish was fulfilled" } else { "a cancel used the slot up" });
            }
            Some(Sight::Final(..)) if parcel.cancel.is_some() => {
                self.witness.note("what was to be cancelled was mined");
            }
            Some(Sight::Final(block, _)) if Tx::of(&block.attempt).fee > 0 => {
                self.witness.note("a bump was the one mined")
            }
            _ => {}
        }
    }
}

impl Model for Path {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend([Action::Admit, Action::Work]);
        for by in 0..self.senders {
            self.sender_actions(state, by, actions);
        }
        actions.extend(state.stored().filter(|tx| !state.chain.out.contains(tx)).map(Action::Send));
        self.chain_actions(state, actions);
        let left = &state.left;
        if left.wishes > 0 {
            let slots = state.store.lane().parcels.keys().map(|n| u8::try_from(n.0).unwrap());
            actions.extend(slots.map(|nonce| Action::Wish { nonce }));
        }
        actions.extend((left.wishes > 0 && !state.stopped()).then_some(Action::Hasten));
        actions.extend(state.copy.is_some().then_some(Action::Deliver));
        actions.extend((left.waits > 0).then_some(Action::Wait));
        actions.extend((left.crashes > 0).then_some(Action::Crash));
        if left.restores > 0 {
            actions.extend(state.backup.is_none().then_some(Action::Backup));
            if state.backup.is_some() {
                actions.extend([true, false].map(|senders_survive| Action::Restore { senders_survive }));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let outcome = match action {
            Action::Admit => state.admit(self),
            Action::Work => {
                state.work()?;
                None
            }
            Action::Lead(by) => Some(state.lead(by)),
            Action::Ask(by) => {
                state.ask(self, by);
                if state.stopped() && !last.stopped() {
                    self.witness.note("the chain showed more than the lane knew");
                }
                None
            }
            Action::Assign { by, carries, fate } => {
                let outcome = state.assign(self, by, carries, fate)?;
                if fate != Fate::Heard && matches!(outcome, Outcome::Stale(Stale::Delivery(..)) | Outcome::NotFound(_))
                {
                    return None;
                }
                Some(outcome)
            }
            Action::Again { by, nonce, cancel, fate } => {
                state.left.bumps -= 1;
                Some(state.again(by, nonce, cancel, fate)?)
            }
            Action::Wish { nonce } => {
                state.left.wishes -= 1;
                Some(state.wish(nonce))
            }
            Action::Cancel { by, nonce, fate } => Some(state.again(by, nonce, true, fate)?),
            Action::Fill { by, nonce, carries, fate } => Some(state.fill(by, nonce, carries, fate)?),
            Action::Send(tx) => {
                state.chain.out.insert(tx);
                None
            }
            Action::Settle { by, nonce, fate } => Some(state.settle(self, by, nonce, fate)?),
            Action::Match { .. } => Some(state.match_one(self)?),
            Action::Reconcile { by } => Some(state.reconcile(self, by)?),
            Action::Hasten => Some(state.hasten()),
            Action::Mine { tx, reverted } => {
                state.left.reverts -= u8::from(reverted);
                state.chain.mine(tx, reverted);
                None
            }
            Action::Outsider => {
                state.left.outsiders -= 1;
                let tx = Tx { nonce: state.chain.next(), carries: 0, cancel: true, by: OUTSIDER, fee: 0 };
                state.chain.mine(tx, false);
                None
            }
            Action::Reject(tx) => {
                state.left.rejections -= 1;
                state.chain.rejected.insert(tx);
                None
            }
            Action::Finalize => {
                state.chain.finals += 1;
                None
            }
            Action::Reorg => {
                state.left.reorgs -= 1;
                state.chain.reorg();
                None
            }
            Action::Deliver => {
                let copy = state.copy.take()?;
                Some(state.store.commit(copy))
            }
            Action::Wait => {
                state.left.waits -= 1;
                state.store.now = state.store.now.plus(SEAT_MS);
                None
            }
            Action::Crash => {
                state.left.crashes -= 1;
                state.store.crash();
                None
            }
            Action::Backup => {
                state.backup = Some(state.store.disk.clone());
                None
            }
            Action::Restore { senders_survive } => {
                state.left.restores -= 1;
                let older = state.backup.take()?;
                state.restore(older, senders_survive);
                None
            }
        };
        if let Some(outcome) = outcome {
            self.note(last, action, &outcome);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most one effect", |model, state: &State| state.one_effect(model)),
            Property::always("nothing is lost", |model, state: &State| state.nothing_lost(model)),
            Property::always("no gap among the slots", |model, state: &State| state.no_gaps(model)),
            Property::always("no slot is forgotten", |_, state: &State| state.none_is_forgotten()),
            Property::always("nothing is out that is not stored", |_, state: &State| state.out_is_stored()),
            Property::always("a crash leaves what was committed", |_, state: &State| state.store.reloads_as_it_is()),
            Property::always("everything ends once faults stop", |model, state: &State| state.drains(model)),
        ]
    }
}
