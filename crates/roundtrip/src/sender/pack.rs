//! Which ready answers share a parcel, and which parcels wait for company: pure functions.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::run::SendOrder;
use crate::store::query::ReadyDelivery;
use crate::words::{PAGE_MAX, RouteName, Token, UnixMs};

/// How many answers it is remembered of since when they are ready.
const SINCE_MAX: usize = 4 * PAGE_MAX;

/// The answers of one parcel.
pub(super) type Load = Vec<ReadyDelivery>;

/// With whom an answer shares a parcel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Company {
    /// With all others that have none of their own.
    Anyone,
    /// With its route's alone.
    Route(RouteName),
    /// With nobody.
    Nobody,
}

/// How parcels are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filling {
    /// How many answers a parcel carries at most.
    pub(super) per_parcel: usize,
    pub(super) order: SendOrder,
    /// How long one that is not full waits for company.
    pub(super) wait_ms: u64,
}

/// Parcels to be, those that may go first.
pub(super) struct Packed {
    pub(super) loads: Vec<Load>,
    /// How many of them may go.
    pub(super) ripe: usize,
    /// When the next one may.
    pub(super) ripens: Option<UnixMs>,
}

/// Since when answers are ready, as far as this sender has seen. They are known by their tokens:
/// one that takes the place of another is new. A start forgets it, so that they wait anew.
#[derive(Default)]
pub(super) struct Since {
    seen: HashMap<Token, UnixMs>,
    /// When the first of the parcels that wait for company may go.
    pub(super) ripens: Option<UnixMs>,
}

impl Since {
    /// Remembers what is ready now. Others are remembered too, as long as there is room: one read
    /// does not show all.
    pub(super) fn note(&mut self, ready: &[ReadyDelivery], now: UnixMs) {
        for delivery in ready {
            self.seen.entry(delivery.answer).or_insert(now);
        }
        if self.seen.len() > SINCE_MAX {
            let shown: HashSet<Token> = ready.iter().map(|delivery| delivery.answer).collect();
            self.seen.retain(|answer, _| shown.contains(answer));
        }
    }

    /// How long until the first of the parcels that wait for company may go.
    pub(super) fn ripe_in(&self, now: UnixMs) -> Option<Duration> {
        self.ripens.map(|ripens| Duration::from_millis(ripens.since(now)))
    }

    /// Since when the first of a parcel's answers is ready.
    fn first(&self, load: &Load, now: UnixMs) -> UnixMs {
        load.iter().filter_map(|delivery| self.seen.get(&delivery.answer)).min().copied().unwrap_or(now)
    }
}

/// Puts parcels that need not wait for company before those that do: full ones, those whose
/// answers go alone, and those that have waited long enough. In a strict order only the last can
/// still get company.
pub(super) fn ripe_first(
    loads: Vec<Load>,
    filling: Filling,
    company: impl Fn(&ReadyDelivery) -> Company,
    since: &Since,
    now: UnixMs,
) -> Packed {
    let Filling { per_parcel, order, wait_ms } = filling;
    let (count, mut ripens) = (loads.len(), None);
    let (mut ripe, mut unripe) = (Vec::with_capacity(count), Vec::new());
    for (at, load) in loads.into_iter().enumerate() {
        let alone = load.first().is_some_and(|first| company(first) == Company::Nobody);
        let closed = order == SendOrder::Strict && at + 1 < count;
        let at = since.first(&load, now).plus(wait_ms);
        if load.len() >= per_parcel || alone || closed || at <= now {
            ripe.push(load);
        } else {
            ripens = Some(ripens.map_or(at, |sooner: UnixMs| sooner.min(at)));
            unripe.push(load);
        }
    }
    let count = ripe.len();
    ripe.extend(unripe);
    Packed { loads: ripe, ripe: count, ripens }
}

/// Puts ready answers into parcels of at most so many. In a strict order none goes before one
/// that was ready sooner; else those that may share a parcel find each other.
pub(super) fn pack(
    ready: Vec<ReadyDelivery>,
    filling: Filling,
    company: impl Fn(&ReadyDelivery) -> Company,
) -> Vec<Load> {
    let Filling { per_parcel, order, .. } = filling;
    let mut loads: Vec<Load> = Vec::new();
    let mut open: BTreeMap<Company, usize> = BTreeMap::new();
    for delivery in ready {
        let company = company(&delivery);
        if order == SendOrder::Strict {
            open.retain(|with, _| *with == company);
        }
        let at = open.get(&company).copied().filter(|_| company != Company::Nobody);
        match at.and_then(|at| loads.get_mut(at)).filter(|load| load.len() < per_parcel) {
            Some(load) => load.push(delivery),
            None => {
                open.insert(company, loads.len());
                loads.push(vec![delivery]);
            }
        }
    }
    loads
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::words::{Payload, RequestId, Seq, Token};

    fn delivery(n: u64, route: char) -> ReadyDelivery {
        ReadyDelivery {
            id: RequestId([n.to_le_bytes()[0]; 32]),
            seq: Seq(n),
            route: RouteName::new(&route.to_string()).unwrap(),
            generation: 0,
            revision: 0,
            answer: Token { epoch: 0, count: n },
            response: Payload::default(),
            failure: false,
            failures: 0,
            request: None,
            trace: None,
        }
    }

    /// Answers by the letters of their routes: small ones share parcels, great ones go apart,
    /// and `x` goes alone.
    fn company(delivery: &ReadyDelivery) -> Company {
        match delivery.route.as_str() {
            "x" => Company::Nobody,
            name if name.chars().all(char::is_uppercase) => Company::Route(delivery.route.clone()),
            _ => Company::Anyone,
        }
    }

    fn ready(routes: &str) -> Vec<ReadyDelivery> {
        (0..).zip(routes.chars()).map(|(n, route)| delivery(n, route)).collect()
    }

    fn numbers(loads: &[Load]) -> Vec<Vec<u64>> {
        loads.iter().map(|load| load.iter().map(|one| one.seq.0).collect()).collect()
    }

    #[test]
    fn answers_share_parcels_with_those_that_they_may() {
        use SendOrder::{Spread, Strict};
        let cases: [(&str, usize, SendOrder, &[&[u64]]); 11] = [
            ("", 3, Spread, &[]),
            ("abab", 1, Spread, &[&[0], &[1], &[2], &[3]]),
            ("abab", 3, Spread, &[&[0, 1, 2], &[3]]),
            ("AAAA", 3, Spread, &[&[0, 1, 2], &[3]]),
            ("ABAB", 3, Spread, &[&[0, 2], &[1, 3]]),
            ("ABAB", 3, Strict, &[&[0], &[1], &[2], &[3]]),
            ("AABA", 3, Strict, &[&[0, 1], &[2], &[3]]),
            ("aAbA", 3, Spread, &[&[0, 2], &[1, 3]]),
            ("axbx", 3, Spread, &[&[0, 2], &[1], &[3]]),
            ("axbb", 3, Strict, &[&[0], &[1], &[2, 3]]),
            ("AAAAB", 2, Spread, &[&[0, 1], &[2, 3], &[4]]),
        ];
        for (routes, per_parcel, order, expected) in cases {
            let loads = pack(ready(routes), Filling { per_parcel, order, wait_ms: 0 }, company);
            assert_eq!(numbers(&loads), expected, "{routes} {per_parcel} {order:?}");
        }
    }

    /// Answer `n` is ready since the time `n`. At the time 10, with parcels of two: which go, which
    /// wait for company, and until when.
    #[test]
    fn a_parcel_that_is_not_full_waits_for_company() {
        use SendOrder::{Spread, Strict};
        type Case = (&'static str, SendOrder, u64, &'static [&'static [u64]], &'static [&'static [u64]], Option<u64>);
        let cases: [Case; 12] = [
            ("", Spread, 10, &[], &[], None),
            ("a", Spread, 0, &[&[0]], &[], None),
            ("a", Spread, 10, &[&[0]], &[], None),
            ("a", Spread, 11, &[], &[&[0]], Some(11)),
            ("aa", Spread, 11, &[&[0, 1]], &[], None),
            ("aaa", Spread, 9, &[&[0, 1]], &[&[2]], Some(11)),
            ("ABAC", Spread, 20, &[&[0, 2]], &[&[1], &[3]], Some(21)),
            ("BAA", Spread, 20, &[&[1, 2]], &[&[0]], Some(20)),
            ("xa", Spread, 20, &[&[0]], &[&[1]], Some(21)),
            ("BAA", Strict, 20, &[&[0], &[1, 2]], &[], None),
            ("BAB", Strict, 20, &[&[0], &[1]], &[&[2]], Some(22)),
            ("xx", Strict, 20, &[&[0], &[1]], &[], None),
        ];
        let of = |loads: &[&[u64]]| loads.iter().map(|load| load.to_vec()).collect::<Vec<_>>();
        let mut since = Since::default();
        (0..5).for_each(|n| since.note(&[delivery(n, 'a')], UnixMs(n)));
        for (routes, order, wait_ms, go, wait, ripens) in cases {
            let filling = Filling { per_parcel: 2, order, wait_ms };
            let packed = ripe_first(pack(ready(routes), filling, company), filling, company, &since, UnixMs(10));
            let (ripe, unripe) = packed.loads.split_at(packed.ripe);
            let found = (numbers(ripe), numbers(unripe), packed.ripens.map(|at| at.0));
            assert_eq!(found, (of(go), of(wait), ripens), "{routes} {order:?} {wait_ms}");
        }
    }

    #[test]
    fn what_is_ready_is_known_since_it_was_first_seen_and_never_too_much_of_it() {
        let mut since = Since::default();
        since.note(&ready("a"), UnixMs(5));
        // One read that does not show it changes nothing.
        since.note(&[delivery(1, 'a')], UnixMs(6));
        since.note(&ready("a"), UnixMs(7));
        assert_eq!(since.first(&ready("a"), UnixMs(9)), UnixMs(5));
        for n in 2..=2 * SINCE_MAX as u64 {
            since.note(&[delivery(n, 'a')], UnixMs(8));
        }
        assert!(since.seen.len() <= SINCE_MAX);
    }
}
