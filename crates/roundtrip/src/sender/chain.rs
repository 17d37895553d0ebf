//! What a sender needs of the outside, whatever chain that is.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;

use super::SignedAttempt;
use crate::store::op::Judgement;
use crate::store::query::{ParcelView, ReadyDelivery};
use crate::words::{AttemptHash, ErrorNote, LaneName, Nonce, Position, RouteName, UnixMs};

/// A future that a chain hands out.
pub type ChainFuture<'a, T, E = Unreachable> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// How the outside received each of several attempts, in their order.
pub type Broadcast<'a> = Pin<Box<dyn Future<Output = Vec<Result<Reception, Unreachable>>> + Send + 'a>>;

/// No answer that could be relied on: what was asked for may or may not have happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the chain gave no answer: {0}")]
pub struct Unreachable(pub String);

/// A chain, as the lanes of one destination see it.
pub trait Chain: Send + Sync + 'static {
    /// What is known outside of this lane and of the parcels that are under way on it.
    ///
    /// One answer must be of one moment: a slot below [`Sighting::latest`] with none of
    /// its attempts in [`Sighting::mined`] counts as used by somebody else.
    fn look<'a>(&'a self, lane: &'a LaneName, parcels: &'a [ParcelView]) -> ChainFuture<'a, Sighting>;

    /// Whether it needs [`ReadyDelivery::request`] to sign, which costs a read for each answer.
    fn wants_requests(&self) -> bool {
        false
    }

    /// The routes whose answers it sends on terms of their own: they share no parcel with
    /// others, and [`ParcelView::route`] tells whose a parcel is.
    fn routes_apart(&self) -> &BTreeSet<RouteName> {
        static NONE: BTreeSet<RouteName> = BTreeSet::new();
        &NONE
    }

    /// Signs what a slot is to carry. Nothing is sent: the bytes are stored first. Several
    /// slots of a lane may be signed at once.
    fn sign<'a>(
        &'a self,
        lane: &'a LaneName,
        nonce: Nonce,
        cargo: Cargo<'a>,
    ) -> ChainFuture<'a, SignedAttempt, Unsigned>;

    /// Sends stored bytes, one result for each attempt, in order; all of them may go in
    /// one call to the outside. A result that is missing at the end counts as
    /// [`Unreachable`]. Sending the same bytes again is harmless.
    fn broadcast<'a>(&'a self, lane: &'a LaneName, attempts: &'a [SignedAttempt]) -> Broadcast<'a>;

    /// What a lane has sent, beyond any reorg, from this slot on: in the order of slots, without a
    /// hole, and as much as one answer holds; `after` is what the last answer ended with. Only
    /// a rebuild asks for it ([`Rebuild`](crate::sender::Rebuild)).
    fn past<'a>(&'a self, _lane: &'a LaneName, _from: Nonce, _after: Option<&'a Past>) -> ChainFuture<'a, Vec<Past>> {
        Box::pin(async { Err(Unreachable("this chain does not tell what was sent: match it by hand".into())) })
    }

    /// By what an answer is known again in [`Past::carried`], whatever slot it was on; none if
    /// nothing could carry it.
    fn mark(&self, _answer: &ReadyDelivery) -> Option<Mark> {
        None
    }
}

/// What makes it the same answer in two transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark(pub [u8; 32]);

/// A transaction of a lane beyond any reorg, whoever sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// On which slot.
    pub nonce: Nonce,
    /// Which transaction.
    pub transaction: AttemptHash,
    /// In which block.
    pub at: Position,
    /// The block's own time.
    pub time: UnixMs,
    /// The answers that it carried, as far as it can be told.
    pub carried: Vec<Mark>,
    /// What it did to them, if they are of a route that does not judge otherwise.
    pub judgement: Judgement,
    /// What it did to the answers of routes that judge by themselves: whose they were shows only
    /// when they are found.
    pub by_route: BTreeMap<RouteName, Judgement>,
}

impl Past {
    /// What it did to an answer of this route.
    pub fn judged(&self, route: &RouteName) -> &Judgement {
        self.by_route.get(route).unwrap_or(&self.judgement)
    }
}

/// What is to be signed.
#[derive(Clone, Copy, Debug)]
pub enum Cargo<'a> {
    /// Answers that go out for the first time on this slot.
    Deliveries(&'a [ReadyDelivery]),
    /// The same as the last of these attempts carries, of the same kind, and dearer than
    /// all of them.
    Dearer(&'a [SignedAttempt], Because),
    /// Nothing: bytes that only use the slot up, dearer than all of these attempts, of
    /// which a gap has none. What is signed is of the kind `Cancel`.
    Nothing(&'a [SignedAttempt]),
}

/// Why a slot is to get dearer bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// It was not mined in time. If nothing has moved since, dearer bytes would be no better:
    /// [`Unsigned::Unmoved`].
    Late,
    /// It pays less than the newest block asks for.
    Below,
    /// The outside wants more for it.
    TooCheap,
}

/// Why nothing was signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsigned {
    /// Not now; to be tried again.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The first of these deliveries can never be sent: it becomes a dead letter, and no slot is used.
    #[error("it can never be sent: {}", .0.text)]
    Never(ErrorNote),
    /// The first of these deliveries had its effect before, beyond any reorg: it ends well, and
    /// no slot is used.
    #[error("it is done already")]
    Done,
    /// The first of these deliveries cannot be sent for now; others go before it.
    #[error("it has to wait: {0}")]
    Later(String),
    /// These deliveries cannot go together, and which of them is to blame is not known: the
    /// first is tried alone.
    #[error("they cannot be sent together: {0}")]
    Apart(String),
    /// The lane cannot pay; it pauses.
    #[error("the lane cannot pay: {0}")]
    Funds(String),
    /// The lane is to blame: it goes into quarantine, and other lanes take the deliveries.
    #[error("the lane is to blame: {0}")]
    Lane(String),
    /// The bytes may not cost more; what is stored is sent again.
    #[error("at the highest fee that is allowed")]
    AtCap,
    /// Dearer bytes would be no better; what is stored is sent again.
    #[error("nothing has moved since the bytes were signed")]
    Unmoved,
}

/// How the outside received a broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reception {
    /// It has the bytes, from now or from before, or the slot is used.
    Taken,
    /// It wants more for a slot that has something already.
    TooCheap,
    /// The lane cannot pay.
    Funds(String),
    /// It proves that these bytes will never be taken. Silence, and whatever is not surely
    /// a proof, is [`Unreachable`] instead: a slot whose only bytes are rejected is
    /// cancelled, and its answers wait for a person.
    Rejected(String),
}

/// What the outside shows of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The newest block that this answer knows.
    pub head: Position,
    /// The next slot, counting what waits to be mined.
    pub pending: Nonce,
    /// The next slot at the head.
    pub latest: Nonce,
    /// The next slot beyond any reorg.
    pub settled: Nonce,
    /// Those of our attempts that are in a block.
    pub mined: Vec<Mined>,
    /// Slots whose newest bytes pay less than the newest block asks for.
    pub below: Vec<Nonce>,
    /// What the lane can spend, in the chain's smallest unit, if that is known.
    pub funds: Option<u128>,
    /// Bytes beyond any reorg that carry what a parcel carries and are none of its attempts: a
    /// store that was rolled back forgot them. Its slot is not below [`Sighting::settled`] until
    /// they are stored.
    pub forgotten: Vec<(Nonce, SignedAttempt)>,
}

/// One of our attempts in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mined {
    /// On which slot.
    pub nonce: Nonce,
    /// Which attempt.
    pub attempt: AttemptHash,
    /// In which block.
    pub at: Position,
    /// How deep that block is.
    pub depth: Depth,
    /// What it did to the deliveries that it carried.
    pub judgement: Judgement,
    /// Whether it had no effect because of the lane, so that another lane may do better.
    pub lane_to_blame: bool,
}

/// How deep a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// In the chain.
    Included,
    /// As deep as users call settled.
    Confirmed,
    /// Beyond any reorg.
    Final,
}
