//! The newest blocks of a chain, shared by all lanes: which block is where, so that what
//! was found in one can be trusted for as long as it stays there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use roundtrip::words::{Height, Position};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::fees::Fees;
use crate::rpc::{CallError, Finality, Header, Rpc};

/// How many blocks are remembered at most, however far finality is behind.
const WINDOW_MAX: u64 = 1024;
/// How many are remembered as long as they come, however close finality is.
const WINDOW_MIN: u64 = 32;

/// A chain at one moment.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) head: Header,
    /// The newest block beyond any reorg.
    pub(super) final_height: Height,
    /// Which block is where, from the head down to what is final, or as far as is remembered.
    hashes: BTreeMap<Height, [u8; 32]>,
    /// What transactions of these blocks paid at least, on chains with a base fee.
    base_fees: BTreeMap<Height, u128>,
}

impl View {
    /// Whether this block is part of the chain; `None` if it is below what is remembered.
    pub(super) fn holds(&self, at: Position) -> Option<bool> {
        let lowest = self.hashes.keys().next()?;
        (at.height >= *lowest).then(|| self.hashes.get(&at.height) == Some(&at.hash))
    }

    /// What a transaction with these fees paid for a unit of gas in this block; `None` if the block is not known.
    pub(super) fn paid(&self, at: Position, fees: Fees) -> Option<u128> {
        let known = self.holds(at) == Some(true);
        known.then(|| fees.paid(self.base_fees.get(&at.height).copied()))
    }

    /// The newest blocks, from the head down.
    pub(super) fn newest(&self, count: usize) -> impl Iterator<Item = Position> {
        self.hashes.iter().rev().take(count).map(|(&height, &hash)| Position { height, hash })
    }

    /// The view after newer blocks, if they go on from its head. It goes down to what was
    /// final before, so that what became final since is still known to have stayed.
    fn extended(&self, newer: &[Header], final_height: Height) -> Option<View> {
        let mut tip = self.head.at.hash;
        for header in newer {
            if header.parent != tip {
                return None;
            }
            tip = header.at.hash;
        }
        let head = newer.last()?.clone();
        let kept = Height(head.at.height.0.saturating_sub(WINDOW_MIN));
        let lowest = lowest(&head, self.final_height.min(final_height).min(kept));
        let mut hashes = self.hashes.clone();
        hashes.extend(newer.iter().map(|header| (header.at.height, header.at.hash)));
        let hashes = hashes.split_off(&lowest);
        let mut base_fees = self.base_fees.clone();
        base_fees.extend(newer.iter().filter_map(base_fee));
        let base_fees = base_fees.split_off(&lowest);
        Some(View { head, final_height, hashes, base_fees })
    }

    /// A view of these blocks, as far down as they hang together.
    fn fresh(headers: &[Header], final_height: Height) -> Option<View> {
        let head = headers.last()?.clone();
        let mut hashes = BTreeMap::from([(head.at.height, head.at.hash)]);
        for pair in headers.windows(2).rev() {
            if pair[1].parent != pair[0].at.hash {
                break;
            }
            hashes.insert(pair[0].at.height, pair[0].at.hash);
        }
        let base_fees = headers.iter().filter_map(base_fee).collect();
        Some(View { head, final_height, hashes, base_fees })
    }
}

fn base_fee(header: &Header) -> Option<(Height, u128)> {
    Some((header.at.height, header.base_fee?))
}

fn lowest(head: &Header, final_height: Height) -> Height {
    final_height.max(Height(head.at.height.0.saturating_sub(WINDOW_MAX)))
}

/// Looks at the newest blocks, and remembers them.
pub(super) struct Heads {
    finality: Finality,
    /// A look is good for so long.
    fresh_for: Duration,
    last: Mutex<Option<(Instant, Arc<View>)>>,
}

impl Heads {
    pub(super) fn new(finality: Finality, fresh_for: Duration) -> Heads {
        Heads { finality, fresh_for, last: Mutex::new(None) }
    }

    /// The chain as it is, or was a moment ago.
    pub(super) async fn view(&self, rpc: &Rpc) -> Result<Arc<View>, CallError> {
        // Held over the calls, so that lanes that look at once share one look.
        let mut last = self.last.lock().await;
        if let Some((at, view)) = &*last
            && at.elapsed() < self.fresh_for
        {
            return Ok(view.clone());
        }
        let view = self.look(rpc, last.as_ref().map(|(_, view)| view)).await?;
        *last = Some((Instant::now(), view.clone()));
        Ok(view)
    }

    async fn look(&self, rpc: &Rpc, before: Option<&Arc<View>>) -> Result<Arc<View>, CallError> {
        let head = rpc.head().await?;
        if let Some(before) = before
            && before.head.at == head.at
        {
            return Ok(before.clone());
        }
        let final_height = match self.finality {
            Finality::Latest => head.at.height,
            Finality::Depth(depth) => Height(head.at.height.0.saturating_sub(depth)),
            Finality::Safe | Finality::Finalized => rpc.finalized(&head, self.finality).await?.at.height,
        };
        let gone = || CallError::NoAnswer("the chain moved while it was looked at".into());
        if let Some(before) = before
            && let Some(newer) = newer(rpc, before, &head).await?
            && let Some(view) = before.extended(&newer, final_height)
        {
            return Ok(Arc::new(view));
        }
        let headers = rpc.headers(lowest(&head, final_height), head.at.height).await?;
        let view = View::fresh(&headers, final_height).filter(|view| view.head.at == head.at);
        view.map(Arc::new).ok_or_else(gone)
    }
}

/// The blocks between an older look and the head, if it is not too old.
async fn newer(rpc: &Rpc, before: &View, head: &Header) -> Result<Option<Vec<Header>>, CallError> {
    let known = before.head.at.height.0;
    match head.at.height.0.checked_sub(known) {
        Some(1) => Ok(Some(vec![head.clone()])),
        Some(count @ 2..=WINDOW_MAX) => {
            let mut newer = rpc.headers(Height(known + 1), Height(known + count - 1)).await?;
            newer.push(head.clone());
            Ok(Some(newer))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use alloy::primitives::Bloom;
    use roundtrip::words::UnixMs;

    use super::*;

    fn at(height: u8, fork: u8) -> Position {
        let mut hash = [0; 32];
        hash[..2].copy_from_slice(&[height, fork]);
        Position { height: Height(height.into()), hash }
    }

    fn header(height: u8, fork: u8, parent: u8) -> Header {
        let parent = at(height - 1, parent).hash;
        Header { at: at(height, fork), parent, time: UnixMs(0), bloom: Bloom::ZERO, base_fee: None }
    }

    #[test]
    fn a_view_knows_which_block_is_where() {
        let view = View::fresh(&[header(4, 0, 0), header(5, 0, 0), header(6, 0, 0)], Height(4)).unwrap();
        assert_eq!(view.holds(at(5, 0)), Some(true));
        assert_eq!(view.holds(at(5, 1)), Some(false), "another block");
        assert_eq!(view.holds(at(7, 0)), Some(false), "beyond the head");
        assert_eq!(view.holds(at(3, 0)), None, "too deep to know");
    }

    #[test]
    fn a_view_tells_what_was_paid_in_its_blocks() {
        let dear = |height: u8, base: u128| Header { base_fee: Some(base), ..header(height, 0, 0) };
        let view = View::fresh(&[dear(4, 70), dear(5, 80), header(6, 0, 0)], Height(4)).unwrap();
        let view = view.extended(&[dear(7, 95)], Height(4)).unwrap();
        let fees = Fees { most: 100, tip: 10 };
        let paid: Vec<Option<u128>> = (3..=8).map(|height| view.paid(at(height, 0), fees)).collect();
        assert_eq!(paid, [None, Some(80), Some(90), Some(100), Some(100), None]);
        assert_eq!(view.paid(at(5, 1), fees), None, "another block");
    }

    #[test]
    fn a_view_goes_no_further_down_than_blocks_hang_together() {
        let view = View::fresh(&[header(4, 1, 1), header(5, 0, 0), header(6, 0, 0)], Height(4)).unwrap();
        assert_eq!(view.holds(at(4, 1)), None);
        assert_eq!(view.holds(at(5, 0)), Some(true));
    }

    #[test]
    fn newer_blocks_extend_a_view_only_if_they_go_on_from_it() {
        let view = View::fresh(&[header(4, 0, 0), header(5, 0, 0)], Height(3)).unwrap();
        let next = view.extended(&[header(6, 0, 0), header(7, 0, 0)], Height(5)).unwrap();
        assert_eq!((next.head.at, next.holds(at(6, 0))), (at(7, 0), Some(true)));
        assert_eq!(next.holds(at(4, 0)), Some(true), "it became final since");
        let many: Vec<Header> = (8..100).map(|height| header(height, 0, 0)).collect();
        let (far, last) = many.split_at(91);
        let later = next.extended(far, Height(98)).and_then(|view| view.extended(last, Height(98))).unwrap();
        assert_eq!((later.holds(at(67, 0)), later.holds(at(66, 0))), (Some(true), None), "as far as is remembered");
        let slow = view.extended(&[&[header(6, 0, 0), header(7, 0, 0)], far].concat(), Height(5)).unwrap();
        assert_eq!((slow.holds(at(5, 0)), slow.holds(at(4, 0))), (Some(true), Some(true)), "not yet final");
        assert!(view.extended(&[header(6, 0, 1)], Height(3)).is_none(), "from another block");
        assert!(view.extended(&[header(6, 0, 0), header(7, 0, 1)], Height(3)).is_none(), "with a break");
    }
}
